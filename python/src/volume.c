/* SPDX-License-Identifier: Apache-2.0 */
/*
 * volume.c: volumes, and the calls that wait for their answer.
 *
 * A volume lives as long as its handle is open; its object holds the handle, not the other way.
 */
#include "module.h"

#include <string.h>
#include <unistd.h>

PyTypeObject *volume_type;

PyObject *volume_open(PyObject *self, PyObject *args)
{
    struct handle *handle = (struct handle *)self;
    struct icms_volume *volume = NULL;
    struct volume *object;
    const char *name;
    char why[512] = "";
    icms_err err;

    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    if (!handle_enter(handle))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    err = icms_volume_open(handle->icms, name, why, sizeof(why), &volume);
    Py_END_ALLOW_THREADS;
    object = err == ICMS_OK ? PyObject_New(struct volume, volume_type) : NULL;
    if (object != NULL) {
        module_hold(handle);
        object->handle = handle;
        object->volume = volume;
        icms_volume_info(volume, &object->info);
    } else if (err == ICMS_OK) {
        icms_volume_close(&volume);
    }
    handle_leave(handle);
    return err == ICMS_OK ? (PyObject *)object : module_raise(err, why);
}

void volume_info_look(const struct volume *volume, struct icms_volume_info *out_info)
{
    if (handle_alive(volume->handle))
        icms_volume_info(volume->volume, out_info);
    else
        *out_info = volume->info;
}

static void volume_dealloc(PyObject *self)
{
    struct volume *volume = (struct volume *)self;

    if (handle_alive(volume->handle))
        icms_volume_close(&volume->volume);
    module_rele(volume->handle);
    module_object_free(self);
}

static icms_err volume_call_c(struct volume *volume, struct batch *batch,
                              const struct icms_request_options *options)
{
    struct icms_block *blocks = batch->blocks;
    size_t count = (size_t)batch->count;

    switch (batch->op) {
    case BATCH_PUT:
        return icms_put(volume->volume, blocks, count, options);
    case BATCH_GET:
        return icms_get(volume->volume, blocks, count, options);
    case BATCH_EXISTS:
        return icms_exists(volume->volume, blocks, count, options);
    case BATCH_REMOVE:
        return icms_remove(volume->volume, blocks, count, options);
    case BATCH_FLUSH:
    case BATCH_OPS:
    case BATCH_MATCH:
        break;
    }
    return ICMS_INVALID;
}

/* call(op, keys, memory, deadline_ms, flags, stream) -> what batch_result says */
static PyObject *volume_call(PyObject *self, PyObject *args)
{
    struct volume *volume = (struct volume *)self;
    struct icms_request_options options;
    PyObject *keys, *memory, *result;
    uint32_t op, deadline_ms, flags;
    uint64_t stream;
    struct batch batch;
    icms_err err;

    if (!PyArg_ParseTuple(args, "O&OOO&O&O&", module_number_u32, &op, &keys, &memory,
                          module_number_u32, &deadline_ms, module_number_u32, &flags,
                          module_number_u64, &stream))
        return NULL;
    options = batch_options(deadline_ms, flags);
    if (!batch_init(&batch, volume, (enum batch_op)op, keys, memory, stream))
        return NULL;
    batch_options_memory(&batch, &options);
    if (!handle_enter(volume->handle)) {
        batch_fini(&batch);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    err = volume_call_c(volume, &batch, &options);
    handle_leave(volume->handle);
    Py_END_ALLOW_THREADS;
    batch_release(&batch);
    result = batch_result(&batch, err);
    batch_fini(&batch);
    return result;
}

/* Any number of keys, in memory of their own. */
struct volume_keys {
    struct icms_key *keys; /* PyMem's */
    size_t count;
};

/* Takes the keys and enters the handle; false with an exception. */
static bool volume_keys_begin(struct volume *volume, PyObject *keys, struct volume_keys *out)
{
    struct batch batch;

    if (!batch_init(&batch, volume, BATCH_MATCH, keys, Py_None, 0))
        return false;
    out->count = (size_t)batch.count;
    out->keys = PyMem_Calloc(out->count, sizeof(*out->keys));
    for (size_t i = 0; out->keys != NULL && i < out->count; i++)
        out->keys[i] = batch.blocks[i].key;
    batch_fini(&batch);
    if (out->keys == NULL) {
        (void)PyErr_NoMemory();
        return false;
    }
    if (handle_enter(volume->handle))
        return true;
    PyMem_Free(out->keys);
    return false;
}

/* match(keys, deadline_ms) -> how many from the first on are there */
static PyObject *volume_match(PyObject *self, PyObject *args)
{
    struct volume *volume = (struct volume *)self;
    struct icms_request_options options;
    struct volume_keys keys;
    uint32_t deadline_ms;
    size_t matched = 0;
    PyObject *given;
    icms_err err;

    if (!PyArg_ParseTuple(args, "OO&", &given, module_number_u32, &deadline_ms) ||
        !volume_keys_begin(volume, given, &keys))
        return NULL;
    options = batch_options(deadline_ms, 0);
    Py_BEGIN_ALLOW_THREADS;
    err = icms_match(volume->volume, keys.keys, keys.count, &options, &matched);
    handle_leave(volume->handle);
    Py_END_ALLOW_THREADS;
    PyMem_Free(keys.keys);
    if (err != ICMS_OK && err != ICMS_MISS)
        return module_raise(err, NULL);
    return PyLong_FromSize_t(matched);
}

/* A list of (load_us, error_us, bytes, source) of the blocks that matched; -1: unknown. */
static PyObject *volume_estimates(const struct icms_estimate *estimates, size_t matched)
{
    PyObject *list = PyList_New((Py_ssize_t)matched);

    for (size_t i = 0; list != NULL && i < matched; i++) {
        const struct icms_estimate *one = &estimates[i];
        bool is_known = one->load_us != ICMS_ESTIMATE_UNKNOWN;
        PyObject *item = Py_BuildValue("LLKi", is_known ? (long long)one->load_us : -1,
                                       is_known ? (long long)one->error_us : -1,
                                       (unsigned long long)one->bytes, (int)one->source);

        if (item == NULL || PyList_SetItem(list, (Py_ssize_t)i, item) != 0)
            Py_CLEAR(list);
    }
    return list;
}

/* match_estimate(keys, deadline_ms) -> what it takes to have each block of the prefix */
static PyObject *volume_match_estimate(PyObject *self, PyObject *args)
{
    struct volume *volume = (struct volume *)self;
    struct icms_request_options options;
    struct icms_estimate *estimates;
    struct volume_keys keys;
    PyObject *given, *result;
    uint32_t deadline_ms;
    size_t matched = 0;
    icms_err err = ICMS_NO_MEMORY;

    if (!PyArg_ParseTuple(args, "OO&", &given, module_number_u32, &deadline_ms) ||
        !volume_keys_begin(volume, given, &keys))
        return NULL;
    options = batch_options(deadline_ms, 0);
    estimates = PyMem_Calloc(keys.count, sizeof(*estimates));
    Py_BEGIN_ALLOW_THREADS;
    if (estimates != NULL)
        err = icms_match_estimate(volume->volume, keys.keys, keys.count, &options, estimates,
                                  &matched);
    handle_leave(volume->handle);
    Py_END_ALLOW_THREADS;
    PyMem_Free(keys.keys);
    if (estimates == NULL)
        result = PyErr_NoMemory();
    else if (err != ICMS_OK && err != ICMS_MISS)
        result = module_raise(err, NULL);
    else
        result = volume_estimates(estimates, matched);
    PyMem_Free(estimates);
    return result;
}

/* That fewer hints were taken is no exception. */
static PyObject *volume_hints(icms_err err, size_t count)
{
    if (err != ICMS_OK && err != ICMS_MISS && err != ICMS_BUSY && err != ICMS_DEADLINE &&
        err != ICMS_LIMIT)
        return module_raise(err, NULL);
    return PyLong_FromSize_t(count);
}

/* prestage(keys, deadline_ms, priority, timeout_ms, tier, pin_seconds, once) -> how many hints were
 * taken */
static PyObject *volume_prestage(PyObject *self, PyObject *args)
{
    struct volume *volume = (struct volume *)self;
    struct icms_prestage_options options;
    struct volume_keys keys;
    size_t taken = 0;
    PyObject *given;
    icms_err err;
    int once;

    icms_prestage_options_init(&options);
    if (!PyArg_ParseTuple(args, "OO&O&O&O&O&p", &given, module_number_u32, &options.deadline_ms,
                          module_number_u32, &options.priority, module_number_u32,
                          &options.timeout_ms, module_number_u32, &options.tier, module_number_u32,
                          &options.pin_seconds, &once) ||
        !volume_keys_begin(volume, given, &keys))
        return NULL;
    options.once = once != 0;
    Py_BEGIN_ALLOW_THREADS;
    err = icms_prestage(volume->volume, keys.keys, keys.count, &options, &taken);
    handle_leave(volume->handle);
    Py_END_ALLOW_THREADS;
    PyMem_Free(keys.keys);
    return volume_hints(err, taken);
}

/* prestage_cancel(keys) -> how many hints there were */
static PyObject *volume_prestage_cancel(PyObject *self, PyObject *args)
{
    struct volume *volume = (struct volume *)self;
    struct volume_keys keys;
    size_t canceled = 0;
    PyObject *given;
    icms_err err;

    if (!PyArg_ParseTuple(args, "O", &given) || !volume_keys_begin(volume, given, &keys))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    err = icms_prestage_cancel(volume->volume, keys.keys, keys.count, &canceled);
    handle_leave(volume->handle);
    Py_END_ALLOW_THREADS;
    PyMem_Free(keys.keys);
    return volume_hints(err, canceled);
}

static PyObject *volume_flush(PyObject *self, PyObject *args)
{
    struct volume *volume = (struct volume *)self;
    struct icms_request_options options;
    uint32_t deadline_ms;
    icms_err err;

    if (!PyArg_ParseTuple(args, "O&", module_number_u32, &deadline_ms) ||
        !handle_enter(volume->handle))
        return NULL;
    options = batch_options(deadline_ms, 0);
    Py_BEGIN_ALLOW_THREADS;
    err = icms_flush(volume->volume, &options);
    handle_leave(volume->handle);
    Py_END_ALLOW_THREADS;
    if (err != ICMS_OK)
        return module_raise(err, NULL);
    Py_RETURN_NONE;
}

static PyObject *volume_trace(PyObject *self, PyObject *object)
{
    struct volume *volume = (struct volume *)self;
    struct icms_key key;

    return batch_key(volume, object, -1, &key) ? handle_trace(volume->handle, &key) : NULL;
}

/* info() -> (name, uuid, value_bytes_max, run_blocks, sealed); also when it is closed. */
static PyObject *volume_info(PyObject *self, PyObject *none)
{
    struct volume *volume = (struct volume *)self;
    struct icms_volume_info info;

    volume_info_look(volume, &info);
    volume->info = info;
    return Py_BuildValue("(sy#KIN)", info.name, (const char *)info.uuid,
                         (Py_ssize_t)sizeof(info.uuid), (unsigned long long)info.value_bytes_max,
                         (unsigned)info.run_blocks, PyBool_FromLong(info.sealed != 0));
}

/* state() -> number of the status that a call would answer now; */
static PyObject *volume_state(PyObject *self, PyObject *none)
{
    struct volume *volume = (struct volume *)self;
    icms_err err;

    if (!handle_enter(volume->handle)) {
        PyErr_Clear();
        return PyLong_FromLong(volume->handle->pid == getpid() ? ICMS_CLOSED : ICMS_FORKED);
    }
    Py_BEGIN_ALLOW_THREADS;
    err = icms_volume_state(volume->volume);
    handle_leave(volume->handle);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong((long)err);
}

static PyMethodDef volume_methods[] = {
    {"call", volume_call, METH_VARARGS, "A batch, and its results."},
    {"start", request_start, METH_VARARGS, "A batch as a request."},
    {"match", volume_match, METH_VARARGS, "The longest prefix that is there."},
    {"match_estimate", volume_match_estimate, METH_VARARGS, "And what it takes to load it."},
    {"prestage", volume_prestage, METH_VARARGS, "Hints that blocks will be asked for soon."},
    {"prestage_cancel", volume_prestage_cancel, METH_VARARGS, "Takes hints back."},
    {"flush", volume_flush, METH_VARARGS, "Waits until what was put is on flash."},
    {"lease", region_lease, METH_VARARGS, "A block in place."},
    {"chain", chain_begin, METH_VARARGS, "The keys of a chain of blocks."},
    {"trace", volume_trace, METH_O, "JSON about the requests of a key."},
    {"info", volume_info, METH_NOARGS, "What the volume is."},
    {"state", volume_state, METH_NOARGS, "What a call would answer now."},
    {0},
};

bool volume_types_make(void)
{
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, volume_dealloc}, {Py_tp_methods, volume_methods}, {0}};
    static PyType_Spec spec = {.name = "icms._icms.Volume",
                               .basicsize = sizeof(struct volume),
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               .slots = slots};

    return module_type_make(&spec, &volume_type);
}
