/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor.c: where memory lies that has no buffer protocol: tensors by __dlpack__, on the host or on
 * a GPU, arrays of GPUs by __cuda_array_interface__, and PyTorch's tensors on Gaudi, for which
 * neither has a name. And what icms_memory_register is told of it.
 *
 * Nothing is copied, and nothing on a GPU is read: a producer says address, shape and strides.
 */
#include "module.h"

#include <stdlib.h>
#include <string.h>

/* ---- DLPack --------------------------------------------------------------------------------- */

/* The part of DLPack's ABI, unversioned form, that says where a tensor lies. */
struct dlpack_tensor {
    void *data;             /* of the allocation                    */
    int32_t device_type;    /* DLPACK_...                           */
    int32_t device_id;      /* which of them                        */
    int32_t dimensions;     /* of shape and strides                 */
    uint8_t type_code;      /* integer, float, ...                  */
    uint8_t type_bits;      /* of one lane                          */
    uint16_t type_lanes;    /* of one element                       */
    const int64_t *shape;   /* elements a dimension                 */
    const int64_t *strides; /* in elements; NULL: C-contiguous      */
    uint64_t byte_offset;   /* of the first element, from data      */
};

#define DLPACK_CPU          1
#define DLPACK_CUDA         2
#define DLPACK_HOST_PINNED  3
#define DLPACK_ROCM         10
#define DLPACK_ROCM_HOST    11
#define DLPACK_CUDA_MANAGED 13

/* What kind of memory a device has. False: none that is used here. */
static bool dlpack_kind(long device_type, enum icms_memory_kind *out_kind)
{
    *out_kind = ICMS_MEMORY_HOST;
    if (device_type == DLPACK_CUDA)
        *out_kind = ICMS_MEMORY_CUDA;
    else if (device_type == DLPACK_ROCM)
        *out_kind = ICMS_MEMORY_HIP;
    return *out_kind != ICMS_MEMORY_HOST || device_type == DLPACK_CPU ||
           device_type == DLPACK_HOST_PINNED || device_type == DLPACK_ROCM_HOST ||
           device_type == DLPACK_CUDA_MANAGED;
}

static bool dlpack_contiguous(const struct dlpack_tensor *tensor)
{
    int64_t expected = 1;

    if (tensor->strides == NULL)
        return true;
    for (int32_t i = tensor->dimensions - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != expected)
            return false;
        expected *= tensor->shape[i];
    }
    return true;
}

/* Where a tensor lies and how many bytes it has. False with an exception. */
static bool dlpack_place(PyObject *capsule, struct tensor_place *out_place)
{
    const struct dlpack_tensor *tensor = PyCapsule_GetPointer(capsule, "dltensor");
    uint64_t elements = 1;

    if (tensor == NULL)
        return false;
    if (!dlpack_kind(tensor->device_type, &out_place->kind)) {
        PyErr_Format(PyExc_BufferError,
                     "the tensor is on a device (DLPack type %d); copy it to the host first",
                     (int)tensor->device_type);
        return false;
    }
    if (!dlpack_contiguous(tensor)) {
        PyErr_SetString(PyExc_BufferError, "the tensor is not C-contiguous");
        return false;
    }
    for (int32_t i = 0; i < tensor->dimensions; i++)
        elements *= (uint64_t)tensor->shape[i];
    out_place->data = (char *)tensor->data + tensor->byte_offset;
    out_place->bytes = (elements * tensor->type_bits * tensor->type_lanes + 7) / 8;
    return true;
}

/* The device of __dlpack_device__; DLPACK_CPU where a tensor has none. -1 with an exception. */
static long dlpack_device(PyObject *object)
{
    PyObject *pair = NULL, *first = NULL;
    long device = -1;

    if (!PyObject_HasAttrString(object, "__dlpack_device__"))
        return DLPACK_CPU;
    pair = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    if (pair != NULL)
        first = PySequence_GetItem(pair, 0);
    if (first != NULL)
        device = PyLong_AsLong(first);
    Py_XDECREF(first);
    Py_XDECREF(pair);
    return device;
}

/* A producer on a GPU is told which stream its work has to precede; without one the caller has
 * waited, and -1 says so. The default stream is 1 to CUDA and 0 to ROCm, which takes no 1. */
static PyObject *dlpack_capsule(PyObject *object, uint64_t stream)
{
    PyObject *method, *none, *words, *capsule = NULL;
    enum icms_memory_kind kind;
    long device = dlpack_device(object);

    if (device == -1 && PyErr_Occurred() != NULL)
        return NULL;
    if (!dlpack_kind(device, &kind) || kind == ICMS_MEMORY_HOST)
        return PyObject_CallMethod(object, "__dlpack__", NULL);
    method = PyObject_GetAttrString(object, "__dlpack__");
    none = PyTuple_New(0);
    if (device == DLPACK_ROCM && stream == 1)
        words = Py_BuildValue("{s:i}", "stream", 0);
    else
        words = stream != 0 ? Py_BuildValue("{s:K}", "stream", (unsigned long long)stream)
                            : Py_BuildValue("{s:i}", "stream", -1);
    if (method != NULL && none != NULL && words != NULL)
        capsule = PyObject_Call(method, none, words);
    Py_XDECREF(method);
    Py_XDECREF(none);
    Py_XDECREF(words);
    return capsule;
}

/* ---- __cuda_array_interface__ --------------------------------------------------------------- */

/* A number of a tuple; false with an exception, also when it is not from 0 on. */
static bool array_number(PyObject *tuple, Py_ssize_t index, uint64_t *out_number)
{
    PyObject *item = PySequence_GetItem(tuple, index);
    bool good = item != NULL && module_number_u64(item, out_number) != 0;

    Py_XDECREF(item);
    return good;
}

/* Bytes of an element, from "<f2". */
static bool array_element(PyObject *dict, uint64_t *out_bytes)
{
    PyObject *typestr = PyMapping_GetItemString(dict, "typestr");
    const char *text = typestr == NULL ? NULL : PyUnicode_AsUTF8AndSize(typestr, NULL);
    bool good = text != NULL && strlen(text) >= 3 && strlen(text) < 8;

    *out_bytes = 0;
    for (size_t i = 2; good && text[i] != 0; i++) {
        good = text[i] >= '0' && text[i] <= '9';
        *out_bytes = *out_bytes * 10 + (uint64_t)(text[i] - '0');
    }
    if (text != NULL && (!good || *out_bytes == 0))
        PyErr_Format(PyExc_BufferError, "its typestr is %R", typestr);
    Py_XDECREF(typestr);
    return text != NULL && good && *out_bytes != 0;
}

/* Bytes of all elements, which have to be C-contiguous. */
static bool array_bytes(PyObject *dict, uint64_t *out_bytes)
{
    PyObject *shape = PyMapping_GetItemString(dict, "shape"), *strides = NULL;
    Py_ssize_t count = shape == NULL ? -1 : PySequence_Size(shape);
    uint64_t bytes = 0, length = 0, stride = 0;
    bool good = count >= 0 && array_element(dict, &bytes);

    if (good && PyMapping_HasKeyString(dict, "strides"))
        good = (strides = PyMapping_GetItemString(dict, "strides")) != NULL;
    if (good && strides == Py_None)
        Py_CLEAR(strides);
    for (Py_ssize_t i = count - 1; good && i >= 0; i--) {
        good = array_number(shape, i, &length) &&
               (strides == NULL || array_number(strides, i, &stride));
        if (good && strides != NULL && length != 1 && stride != bytes) {
            PyErr_SetString(PyExc_BufferError, "the array is not C-contiguous");
            good = false;
        }
        if (good && length != 0 && bytes > UINT64_MAX / length) {
            PyErr_SetString(PyExc_BufferError, "its shape is larger than any memory");
            good = false;
        }
        bytes = good ? bytes * length : 0;
    }
    Py_XDECREF(strides);
    Py_XDECREF(shape);
    *out_bytes = bytes;
    return good;
}

/* Where it begins, and whether it may be written to. */
static bool array_data(PyObject *dict, bool writable, void **out_data)
{
    PyObject *pair = PyMapping_GetItemString(dict, "data"), *second = NULL;
    uint64_t address = 0;
    int readonly = 1;
    bool good = pair != NULL && array_number(pair, 0, &address);

    if (good)
        second = PySequence_GetItem(pair, 1);
    if (second != NULL)
        readonly = PyObject_IsTrue(second);
    good = good && second != NULL && readonly >= 0;
    if (good && writable && readonly != 0) {
        PyErr_SetString(PyExc_BufferError, "the array is read-only");
        good = false;
    }
    Py_XDECREF(second);
    Py_XDECREF(pair);
    *out_data = (void *)(uintptr_t)address;
    return good;
}

/* The stream that the producer's work is on; 0: none. */
static bool array_stream(PyObject *dict, uint64_t *out_stream)
{
    PyObject *stream = NULL;
    bool good = true;

    *out_stream = 0;
    if (!PyMapping_HasKeyString(dict, "stream"))
        return true;
    stream = PyMapping_GetItemString(dict, "stream");
    if (stream != Py_None)
        good = stream != NULL && module_number_u64(stream, out_stream) != 0;
    Py_XDECREF(stream);
    return good;
}

static bool array_place(PyObject *object, bool writable, struct tensor_place *out_place)
{
    PyObject *dict = PyObject_GetAttrString(object, "__cuda_array_interface__"), *mask = NULL;
    bool good = dict != NULL;

    if (good && PyMapping_HasKeyString(dict, "mask"))
        good = (mask = PyMapping_GetItemString(dict, "mask")) != NULL;
    if (good && mask != NULL && mask != Py_None) {
        PyErr_SetString(PyExc_BufferError, "the array has a mask");
        good = false;
    }
    out_place->kind = ICMS_MEMORY_CUDA;
    good = good && array_bytes(dict, &out_place->bytes) &&
           array_data(dict, writable, &out_place->data) && array_stream(dict, &out_place->stream);
    Py_XDECREF(mask);
    Py_XDECREF(dict);
    return good;
}

/* ---- Gaudi ---------------------------------------------------------------------------------- */

/* Whether it is a tensor of PyTorch whose device has the type "hpu". Sets no exception. */
static bool gaudi_is(PyObject *object)
{
    PyObject *device = PyObject_GetAttrString(object, "device"), *type = NULL;
    bool is = false;

    if (device != NULL)
        type = PyObject_GetAttrString(device, "type");
    if (type != NULL && PyUnicode_Check(type))
        is = PyUnicode_CompareWithASCIIString(type, "hpu") == 0;
    PyErr_Clear();
    Py_XDECREF(type);
    Py_XDECREF(device);
    return is;
}

/* A number that a tensor has (bytes) or that a method of it returns. */
static bool gaudi_number(PyObject *value, uint64_t *out_number)
{
    bool good = value != NULL && module_number_u64(value, out_number) != 0;

    Py_XDECREF(value);
    return good;
}

static bool gaudi_place(PyObject *object, struct tensor_place *out_place)
{
    PyObject *whole = PyObject_CallMethod(object, "is_contiguous", NULL);
    uint64_t address = 0;
    int contiguous = whole == NULL ? -1 : PyObject_IsTrue(whole);

    Py_XDECREF(whole);
    if (contiguous == 0)
        PyErr_SetString(PyExc_BufferError, "the tensor is not C-contiguous");
    if (contiguous != 1 || !gaudi_number(PyObject_CallMethod(object, "data_ptr", NULL), &address) ||
        !gaudi_number(PyObject_GetAttrString(object, "nbytes"), &out_place->bytes))
        return false;
    out_place->kind = ICMS_MEMORY_GAUDI;
    out_place->data = (void *)(uintptr_t)address;
    return true;
}

/* ---- all ------------------------------------------------------------------------------------ */

bool tensor_is(PyObject *object)
{
    return PyObject_HasAttrString(object, "__dlpack__") ||
           PyObject_HasAttrString(object, "__cuda_array_interface__");
}

bool tensor_take(PyObject *object, bool writable, uint64_t stream, PyObject **out_owner,
                 struct tensor_place *out_place)
{
    bool gaudi = gaudi_is(object);

    *out_place = (struct tensor_place){0};
    if (gaudi || !PyObject_HasAttrString(object, "__dlpack__")) {
        Py_INCREF(object);
        *out_owner = object;
        return gaudi ? gaudi_place(object, out_place) : array_place(object, writable, out_place);
    }
    *out_owner = dlpack_capsule(object, stream);
    return *out_owner != NULL && dlpack_place(*out_owner, out_place);
}

/* ---- registered memory ---------------------------------------------------------------------- */

PyTypeObject *memory_type;

struct memory {
    PyObject head;              /* of every object */
    struct handle *handle;      /* a reference                                          */
    PyObject *owner;            /* keeps the memory; NULL: it is not registered any more */
    struct icms_memory *memory; /* freed with the handle                                */
    uint64_t bytes;
};

/* A range whose Memory is gone while a device may still use it, with what keeps it. */
struct memory_kept {
    struct memory_kept *next;
    PyObject *owner;
    struct icms_memory *memory;
};

/* Keeps a range and a reference of its owner. Without memory for that it is kept for ever. */
static void memory_keep(struct handle *handle, struct icms_memory *memory, PyObject *owner)
{
    struct memory_kept *kept = malloc(sizeof(*kept));

    if (kept == NULL)
        return;
    *kept = (struct memory_kept){.next = handle->kept, .owner = owner, .memory = memory};
    handle->kept = kept;
}

/* The driver may work, and the library may wait for `log`, which needs the GIL: not held meanwhile.
 * The handle was entered, or is being closed by this thread. */
static icms_err memory_unregister_c(struct icms_memory **memory)
{
    icms_err err;

    Py_BEGIN_ALLOW_THREADS;
    err = icms_memory_unregister(memory);
    Py_END_ALLOW_THREADS;
    return err;
}

bool memory_sweep(struct handle *handle)
{
    struct memory_kept *busy = NULL, *kept;

    while ((kept = handle->kept) != NULL) {
        PyObject *owner = kept->owner;

        handle->kept = kept->next;
        if (memory_unregister_c(&kept->memory) == ICMS_BUSY) {
            kept->next = busy;
            busy = kept;
            continue;
        }
        free(kept);
        Py_DECREF(owner); /* may come here again */
    }
    while ((kept = busy) != NULL) {
        busy = kept->next;
        kept->next = handle->kept;
        handle->kept = kept;
    }
    return handle->kept == NULL;
}

void memory_forget(struct handle *handle)
{
    struct memory_kept *kept;

    while ((kept = handle->kept) != NULL) {
        handle->kept = kept->next;
        free(kept); /* its owner stays */
    }
}

/* As CUDA's, or where that is not on this machine as HIP's, which names arrays so, too. No GIL. */
static icms_err memory_register_c(struct icms *icms, const struct tensor_place *place, char *why,
                                  size_t why_bytes, struct icms_memory **out_memory)
{
    icms_err err = icms_memory_register(icms, place->kind, place->data, place->bytes, why,
                                        why_bytes, out_memory);
    char other[512];

    if (err == ICMS_UNSUPPORTED && place->kind == ICMS_MEMORY_CUDA &&
        icms_memory_register(icms, ICMS_MEMORY_HIP, place->data, place->bytes, other, sizeof(other),
                             out_memory) == ICMS_OK)
        return ICMS_OK;
    return err;
}

PyObject *memory_register(PyObject *self, PyObject *object)
{
    struct handle *handle = (struct handle *)self;
    struct tensor_place place;
    struct memory *memory;
    PyObject *owner = NULL;
    char why[512] = "";
    icms_err err;

    if (!tensor_is(object)) {
        PyErr_Format(
            PyExc_TypeError,
            "memory that is registered has __dlpack__ or __cuda_array_interface__, %R does "
            "not; memory of the host needs no registration",
            (PyObject *)Py_TYPE(object));
        return NULL;
    }
    if (!tensor_take(object, false, 0, &owner, &place)) {
        Py_XDECREF(owner);
        return NULL;
    }
    memory = PyObject_New(struct memory, memory_type);
    if (memory == NULL) {
        Py_DECREF(owner);
        return NULL;
    }
    module_hold(handle);
    memory->handle = handle;
    memory->owner = owner;
    memory->memory = NULL;
    memory->bytes = place.bytes;
    if (!handle_enter(handle)) {
        module_rele(memory);
        return NULL;
    }
    if (!handle_says(handle))
        (void)memory_sweep(handle);
    Py_BEGIN_ALLOW_THREADS;
    err = memory_register_c(handle->icms, &place, why, sizeof(why), &memory->memory);
    handle_leave(handle);
    Py_END_ALLOW_THREADS;
    if (err == ICMS_OK)
        return (PyObject *)memory;
    module_rele(memory);
    return module_raise(err, why);
}

static PyObject *memory_unregister(PyObject *self, PyObject *none)
{
    struct memory *memory = (struct memory *)self;
    struct icms_memory *registered = memory->memory;
    icms_err err;

    if (registered == NULL || !handle_alive(memory->handle)) {
        memory->memory = NULL;
        Py_CLEAR(memory->owner);
        Py_RETURN_NONE;
    }
    if (handle_says(memory->handle))
        return module_raise(ICMS_BUSY,
                            "cannot unregister memory inside the log of its client: do it "
                            "after log has returned, on another thread");
    if (!handle_enter(memory->handle))
        return NULL;
    memory->memory = NULL; /* of one thread alone */
    err = memory_unregister_c(&registered);
    handle_leave(memory->handle);
    if (err != ICMS_OK) {
        memory->memory = registered;
        return module_raise(
            err, err == ICMS_BUSY ? "copies of calls that ended at their deadline are still with "
                                    "the driver: try again"
                                  : NULL);
    }
    Py_CLEAR(memory->owner);
    Py_RETURN_NONE;
}

/* What is busy stays registered, and its owner stays with it: a device may write there. So does
 * what goes inside the handle's `log`, or while another thread closes the handle: a later call or
 * the close unregisters it. */
static void memory_dealloc(PyObject *self)
{
    struct memory *memory = (struct memory *)self;
    struct handle *handle = memory->handle;
    bool keep = memory->memory != NULL && handle_alive(handle);

    if (!handle_says(handle) && handle_enter_silently(handle)) {
        (void)memory_sweep(handle);
        keep = keep && memory_unregister_c(&memory->memory) == ICMS_BUSY;
        handle_leave(handle);
    }
    if (keep)
        memory_keep(handle, memory->memory, memory->owner);
    else
        Py_XDECREF(memory->owner);
    module_rele(handle);
    module_object_free(self);
}

static PyObject *memory_nbytes(PyObject *self, void *closure)
{
    return PyLong_FromUnsignedLongLong(((const struct memory *)self)->bytes);
}

static PyMethodDef memory_methods[] = {
    {"unregister", memory_unregister, METH_NOARGS, "Forgets the memory."},
    {0},
};

static PyGetSetDef memory_properties[] = {
    {"nbytes", memory_nbytes, NULL, "Bytes of the memory.", NULL},
    {0},
};

bool memory_types_make(void)
{
    static PyType_Slot slots[] = {{Py_tp_dealloc, memory_dealloc},
                                  {Py_tp_methods, memory_methods},
                                  {Py_tp_getset, memory_properties},
                                  {0}};
    static PyType_Spec spec = {.name = "icms._icms.Memory",
                               .basicsize = sizeof(struct memory),
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               .slots = slots};

    return module_type_make(&spec, &memory_type);
}
