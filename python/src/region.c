/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region.c: shared memory that Python reads (leases) or writes (buffers) in place.
 *
 * A region is out from lease() or buffer() until release(), or until its handle closes. Views of it
 * (memoryviews, arrays made from them, slices) are counted, whoever made them: while there is one,
 * release() and the handle's close() are refused with BufferError. A region whose release was
 * refused goes back when its last view does. So no view ever reads what is not there any more.
 */
#include "module.h"

PyTypeObject *region_type;

struct region {
    PyObject head;           /* of every object */
    struct handle *handle;   /* a reference                                */
    struct icms_lease lease; /* of a lease                                 */
    void *data;              /* NULL: given back                           */
    Py_ssize_t bytes;        /* of the value, or of the buffer             */
    Py_ssize_t exports;      /* views that exist                           */
    bool readonly;           /* a lease, not a buffer                      */
    bool given;              /* release() was refused: with the last view  */
};

static struct region *region_new(struct handle *handle)
{
    struct region *region = PyObject_New(struct region, region_type);

    if (region == NULL)
        return NULL;
    module_hold(handle);
    region->handle = handle;
    region->lease = (struct icms_lease){0};
    region->data = NULL;
    region->bytes = 0;
    region->exports = 0;
    region->readonly = region->given = false;
    return region;
}

/* Gives it back, unless its handle took it along. GIL. */
static void region_give(struct region *region)
{
    void *data = region->data;

    region->data = NULL;
    if (data == NULL || !handle_alive(region->handle))
        return;
    if (region->readonly)
        icms_lease_give(&region->lease);
    else
        icms_buffer_give(region->handle->icms, data);
}

PyObject *region_lease(PyObject *self, PyObject *args)
{
    struct volume *volume = (struct volume *)self;
    struct icms_request_options options;
    enum icms_miss reason = ICMS_MISS_NONE;
    struct region *region;
    struct icms_key key;
    uint32_t deadline_ms;
    PyObject *name;
    icms_err err;

    if (!PyArg_ParseTuple(args, "OO&", &name, module_number_u32, &deadline_ms) ||
        !batch_key(volume, name, -1, &key))
        return NULL;
    region = region_new(volume->handle);
    if (region == NULL)
        return NULL;
    if (!handle_enter(volume->handle)) {
        module_rele(region);
        return NULL;
    }
    options = batch_options(deadline_ms, 0);
    Py_BEGIN_ALLOW_THREADS;
    err = icms_lease_take(volume->volume, &key, &options, &reason, &region->lease);
    Py_END_ALLOW_THREADS;
    if (err == ICMS_OK) {
        region->data = (void *)(uintptr_t)region->lease.data;
        region->bytes = (Py_ssize_t)region->lease.bytes;
        region->readonly = true;
    }
    handle_leave(volume->handle);
    if (err == ICMS_OK)
        return (PyObject *)region;
    module_rele(region);
    return module_raise_miss(err, reason);
}

PyObject *region_buffer(PyObject *self, PyObject *args)
{
    struct handle *handle = (struct handle *)self;
    struct region *region;
    uint64_t bytes;
    icms_err err;

    if (!PyArg_ParseTuple(args, "O&", module_number_u64, &bytes))
        return NULL;
    region = region_new(handle);
    if (region == NULL)
        return NULL;
    if (!handle_enter(handle)) {
        module_rele(region);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    err = icms_buffer_take(handle->icms, bytes, &region->data);
    Py_END_ALLOW_THREADS;
    if (err == ICMS_OK)
        region->bytes = (Py_ssize_t)bytes;
    handle_leave(handle);
    if (err == ICMS_OK)
        return (PyObject *)region;
    module_rele(region);
    return module_raise(err, NULL);
}

static int region_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    struct region *region = (struct region *)self;

    if (region->data == NULL || region->given || region->handle->closing ||
        !handle_alive(region->handle)) {
        view->obj = NULL;
        PyErr_SetString(PyExc_BufferError, "this memory was given back to the tier");
        return -1;
    }
    if (PyBuffer_FillInfo(view, self, region->data, region->bytes, region->readonly, flags) != 0)
        return -1;
    region->exports++;
    region->handle->exports++;
    return 0;
}

static void region_releasebuffer(PyObject *self, Py_buffer *view)
{
    struct region *region = (struct region *)self;

    region->exports--;
    region->handle->exports--;
    if (region->exports == 0 && region->given)
        region_give(region);
}

static PyObject *region_release(PyObject *self, PyObject *none)
{
    struct region *region = (struct region *)self;

    if (region->exports == 0) {
        region_give(region);
        Py_RETURN_NONE;
    }
    region->given = true;
    PyErr_Format(PyExc_BufferError,
                 "%zd views of this memory still exist (arrays or slices made from it?); it goes "
                 "back to the tier with the last of them",
                 region->exports);
    return NULL;
}

static void region_dealloc(PyObject *self)
{
    struct region *region = (struct region *)self;

    region_give(region); /* views hold the object: there is none */
    module_rele(region->handle);
    module_object_free(self);
}

static PyObject *region_released(PyObject *self, void *closure)
{
    const struct region *region = (const struct region *)self;

    return PyBool_FromLong(region->data == NULL || region->given || !handle_alive(region->handle));
}

static PyObject *region_nbytes(PyObject *self, void *closure)
{
    return PyLong_FromSsize_t(((const struct region *)self)->bytes);
}

static PyMethodDef region_methods[] = {
    {"release", region_release, METH_NOARGS, "Gives the memory back to the tier."},
    {0},
};

static PyGetSetDef region_properties[] = {
    {"released", region_released, NULL, "True when no more views can be had.", NULL},
    {"nbytes", region_nbytes, NULL, "Bytes of the memory.", NULL},
    {0},
};

bool region_types_make(void)
{
    static PyType_Slot slots[] = {{Py_tp_dealloc, region_dealloc},
                                  {Py_tp_methods, region_methods},
                                  {Py_tp_getset, region_properties},
                                  {Py_bf_getbuffer, region_getbuffer},
                                  {Py_bf_releasebuffer, region_releasebuffer},
                                  {0}};
    static PyType_Spec spec = {.name = "icms._icms.Region",
                               .basicsize = sizeof(struct region),
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               .slots = slots};

    return module_type_make(&spec, &region_type);
}
