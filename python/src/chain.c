/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chain.c: keys of chains of blocks, and of names.
 *
 * A chain is plain memory: it needs its volume only to begin. Every call holds the GIL, so a chain
 * may be used by any thread, in whatever order they come.
 */
#include "module.h"

#include <string.h>

PyTypeObject *chain_type;

struct chain {
    PyObject head;           /* of every object */
    struct icms_chain chain; /* the hash so far */
};

static PyObject *chain_new(const struct icms_chain *state)
{
    struct chain *chain = PyObject_New(struct chain, chain_type);

    if (chain != NULL)
        chain->chain = *state;
    return (PyObject *)chain;
}

/* Four numbers of a tuple. */
static bool chain_numbers(PyObject *tuple, uint32_t out_numbers[4])
{
    return PyArg_ParseTuple(tuple, "O&O&O&O&", module_number_u32, &out_numbers[0],
                            module_number_u32, &out_numbers[1], module_number_u32, &out_numbers[2],
                            module_number_u32, &out_numbers[3]) != 0;
}

PyObject *chain_begin(PyObject *self, PyObject *args)
{
    struct volume *volume = (struct volume *)self;
    PyObject *rank, *ranks, *made = NULL;
    struct icms_layout layout = {0};
    struct icms_volume_info info;
    struct icms_chain chain;
    Py_ssize_t weights_bytes;
    const char *weights;

    if (!PyArg_ParseTuple(args, "ssy#ssO&O!O!", &layout.tenant, &layout.model, &weights,
                          &weights_bytes, &layout.dtype, &layout.layout, module_number_u32,
                          &layout.block_tokens, &PyTuple_Type, &rank, &PyTuple_Type, &ranks) ||
        !chain_numbers(rank, layout.rank) || !chain_numbers(ranks, layout.ranks) ||
        !handle_enter(volume->handle))
        return NULL;
    layout.weights = weights;
    layout.weights_bytes = (size_t)weights_bytes;
    volume_info_look(volume, &info);
    icms_chain_init(&chain, volume->volume, &layout);
    if (info.run_blocks == 0)
        made = module_raise(ICMS_PEER_DOWN,
                            "cannot begin a chain: the volume is not known yet, since its agent is "
                            "not there; look at Volume.state first");
    else
        made = chain_new(&chain);
    handle_leave(volume->handle);
    return made;
}

/* A key as bytes: its run, then its digest. */
static PyObject *chain_key(const struct icms_key *key)
{
    uint8_t bytes[MODULE_KEY_BYTES];

    memcpy(bytes, key->bytes, ICMS_RUN_BYTES);
    memcpy(bytes + ICMS_RUN_BYTES, key->digest, ICMS_DIGEST_BYTES);
    return PyBytes_FromStringAndSize((const char *)bytes, sizeof(bytes));
}

static PyObject *chain_next(PyObject *self, PyObject *content)
{
    struct chain *chain = (struct chain *)self;
    struct icms_key key;
    Py_buffer view;

    if (PyUnicode_Check(content)) {
        PyErr_SetString(PyExc_TypeError, "the content of a block is bytes, not str");
        return NULL;
    }
    if (PyObject_GetBuffer(content, &view, PyBUF_ND) != 0)
        return NULL;
    icms_chain_next(&chain->chain, view.buf, (size_t)view.len, &key);
    PyBuffer_Release(&view);
    return chain_key(&key);
}

static PyObject *chain_copy(PyObject *self, PyObject *none)
{
    return chain_new(&((struct chain *)self)->chain);
}

/* state(): the 32 bytes of the hash so far. */
static PyObject *chain_state(PyObject *self, PyObject *none)
{
    const struct icms_chain *chain = &((struct chain *)self)->chain;

    return PyBytes_FromStringAndSize((const char *)chain->state, sizeof(chain->state));
}

static PyObject *chain_blocks(PyObject *self, void *closure)
{
    return PyLong_FromUnsignedLongLong(((struct chain *)self)->chain.blocks);
}

static void chain_dealloc(PyObject *self)
{
    module_object_free(self);
}

PyObject *chain_key_from_name(PyObject *module, PyObject *name)
{
    struct icms_key key;
    Py_buffer view;

    if (PyObject_GetBuffer(name, &view, PyBUF_SIMPLE) != 0)
        return NULL;
    if (view.len == 0) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "a name has at least one byte");
        return NULL;
    }
    icms_key_from_name(view.buf, (size_t)view.len, &key);
    PyBuffer_Release(&view);
    return chain_key(&key);
}

static PyMethodDef chain_methods[] = {
    {"next", chain_next, METH_O, "Appends a block; its key."},
    {"copy", chain_copy, METH_NOARGS, "A chain that goes on from here."},
    {"state", chain_state, METH_NOARGS, "The hash so far."},
    {0},
};

static PyGetSetDef chain_properties[] = {
    {"blocks", chain_blocks, NULL, "Blocks so far.", NULL},
    {0},
};

bool chain_types_make(void)
{
    static PyType_Slot slots[] = {{Py_tp_dealloc, chain_dealloc},
                                  {Py_tp_methods, chain_methods},
                                  {Py_tp_getset, chain_properties},
                                  {0}};
    static PyType_Spec spec = {.name = "icms._icms.Chain",
                               .basicsize = sizeof(struct chain),
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               .slots = slots};

    return module_type_make(&spec, &chain_type);
}
