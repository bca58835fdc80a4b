/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c: from Python's keys and memory to struct icms_block, and from there to results.
 *
 * Memory is taken by the buffer protocol, or else as a tensor (tensor.c), and never copied. What
 * was taken is held until batch_release, so it cannot move or go while the library uses it. The
 * memory of a block may be several pieces: a tuple or a list, of as many for each block.
 *
 * Arguments are hostile: objects may run any code while they are asked, so nothing here is
 * reachable by others until batch_init is over, and nothing is held locked.
 */
#include "module.h"

#include <string.h>

/* ---- memory --------------------------------------------------------------------------------- */

/* Puts the place of the argument in front of the exception that there is, of the same type. */
static void memory_explain(PyObject *object, Py_ssize_t index, bool writable)
{
    PyObject *type = NULL, *value = NULL, *trace = NULL, *name = NULL;

    PyErr_Fetch(&type, &value, &trace);
    if (type != NULL && (PyErr_GivenExceptionMatches(type, PyExc_BufferError) ||
                         PyErr_GivenExceptionMatches(type, PyExc_TypeError) ||
                         PyErr_GivenExceptionMatches(type, PyExc_ValueError)))
        name = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
    if (name == NULL) {
        PyErr_Restore(type, value, trace); /* KeyboardInterrupt, MemoryError, ... as they are */
        return;
    }
    PyErr_Format(PyErr_GivenExceptionMatches(type, PyExc_TypeError) ? PyExc_TypeError
                                                                    : PyExc_BufferError,
                 "block %zd: %S is not %s memory that is C-contiguous: %S", index, name,
                 writable ? "writable" : "readable", value == NULL ? type : value);
    Py_DECREF(name);
    Py_DECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* The stream that an array names is the batch's, if the caller named none. */
static bool memory_stream(struct batch *batch, uint64_t stream)
{
    if (stream == 0 || batch->stream == stream || batch->stream_given)
        return true;
    if (batch->stream != 0) {
        PyErr_SetString(PyExc_ValueError,
                        "arrays of one batch name several streams: name the stream in the call");
        return false;
    }
    batch->stream = stream;
    return true;
}

static bool memory_take(struct batch *batch, PyObject *object, bool writable,
                        struct batch_memory *memory, void **out_data, uint64_t *out_bytes)
{
    struct tensor_place place = {0};

    if (PyObject_CheckBuffer(object) || !tensor_is(object)) {
        if (PyObject_GetBuffer(object, &memory->view,
                               writable ? PyBUF_ND | PyBUF_WRITABLE : PyBUF_ND) != 0)
            return false;
        *out_data = memory->view.buf;
        *out_bytes = (uint64_t)memory->view.len;
        return true;
    }
    if (!tensor_take(object, writable, batch->stream, &memory->owner, &place))
        return false;
    *out_data = place.data;
    *out_bytes = place.bytes;
    return memory_stream(batch, place.stream);
}

static void memory_give(struct batch_memory *memory)
{
    if (memory->view.obj != NULL)
        PyBuffer_Release(&memory->view);
    Py_CLEAR(memory->owner);
}

/* ---- keys ----------------------------------------------------------------------------------- */

static bool key_wrong(Py_ssize_t bytes, Py_ssize_t index)
{
    if (index >= 0)
        PyErr_Format(PyExc_ValueError,
                     "block %zd: a key has 1 to %d bytes or %d, not %zd; icms.key() makes one from "
                     "any name",
                     index, ICMS_KEY_BYTES, MODULE_KEY_BYTES, bytes);
    else
        PyErr_Format(PyExc_ValueError,
                     "a key has 1 to %d bytes or %d, not %zd; icms.key() makes one from any name",
                     ICMS_KEY_BYTES, MODULE_KEY_BYTES, bytes);
    return false;
}

/* The volume as it is. While it is not known what a call would end with is raised, also where it
 * becomes known until the call: a key would be one of a raw volume. */
static bool key_volume(const struct volume *volume, struct icms_volume_info *out_info)
{
    icms_err err;

    volume_info_look(volume, out_info);
    if (out_info->run_blocks != 0 || !handle_enter_silently(volume->handle))
        return true;
    Py_BEGIN_ALLOW_THREADS;
    err = icms_volume_state(volume->volume);
    handle_leave(volume->handle);
    Py_END_ALLOW_THREADS;
    if (err != ICMS_OK) {
        (void)module_raise(err, NULL);
        return false;
    }
    volume_info_look(volume, out_info);
    return true;
}

/* A name: hashed in a sealed volume and where it is longer than a key, else the key. */
static bool key_name(const struct volume *volume, const void *name, Py_ssize_t bytes,
                     struct icms_key *out_key)
{
    struct icms_volume_info info;

    if (!key_volume(volume, &info))
        return false;
    if (info.sealed || icms_key_raw(name, (size_t)bytes, out_key) != ICMS_OK)
        icms_key_from_name(name, (size_t)bytes, out_key);
    return true;
}

/* A str is a name of any length, taken as UTF-8. */
static bool key_text(const struct volume *volume, PyObject *text, Py_ssize_t index,
                     struct icms_key *out_key)
{
    Py_ssize_t bytes;
    const char *name = PyUnicode_AsUTF8AndSize(text, &bytes);

    if (name == NULL)
        return false;
    if (bytes == 0)
        return key_wrong(0, index);
    return key_name(volume, name, bytes, out_key);
}

/* A key that was made, or a short name. */
static bool key_bytes(const struct volume *volume, const uint8_t *data, Py_ssize_t bytes,
                      Py_ssize_t index, struct icms_key *out_key)
{
    if (bytes == MODULE_KEY_BYTES)
        icms_key_from_digest(data, data + ICMS_RUN_BYTES, out_key);
    else if (bytes >= 1 && bytes <= ICMS_KEY_BYTES)
        return key_name(volume, data, bytes, out_key);
    else
        return key_wrong(bytes, index);
    return true;
}

bool batch_key(const struct volume *volume, PyObject *object, Py_ssize_t index,
               struct icms_key *out_key)
{
    Py_buffer view;
    bool made;

    if (PyUnicode_Check(object))
        return key_text(volume, object, index, out_key);
    if (!PyObject_CheckBuffer(object)) {
        PyErr_Format(PyExc_TypeError, "a key is bytes or str, not %R", (PyObject *)Py_TYPE(object));
        return false;
    }
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) != 0)
        return false;
    made = key_bytes(volume, view.buf, view.len, index, out_key);
    PyBuffer_Release(&view);
    return made;
}

/* ---- batches -------------------------------------------------------------------------------- */

/* How many there are; -1 with an exception. */
static Py_ssize_t batch_length(enum batch_op op, PyObject *sequence, const char *what)
{
    Py_ssize_t count;

    if (!PySequence_Check(sequence) || PyUnicode_Check(sequence) ||
        PyObject_CheckBuffer(sequence)) {
        PyErr_Format(PyExc_TypeError, "%s is a sequence with one entry a block, not %R", what,
                     (PyObject *)Py_TYPE(sequence));
        return -1;
    }
    count = PySequence_Size(sequence);
    if (count > ICMS_BATCH_MAX && op != BATCH_MATCH) {
        PyErr_Format(PyExc_ValueError, "a batch has at most %d blocks, not %zd: make several calls",
                     ICMS_BATCH_MAX, count);
        return -1;
    }
    return count;
}

/* Takes the memory of a block, or a piece of it. */
static bool batch_take_piece(struct batch *batch, PyObject *object, Py_ssize_t i,
                             struct batch_memory *memory, void **out_data, uint64_t *out_bytes)
{
    bool writable = batch->op == BATCH_GET;
    bool taken = memory_take(batch, object, writable, memory, out_data, out_bytes);

    if (taken && *out_bytes == 0 && (writable || batch->pieces != 0)) {
        /* To the library that is a request without memory, or no piece. */
        PyErr_SetString(PyExc_BufferError, "it is empty");
        taken = false;
    }
    if (!taken)
        memory_explain(object, i, writable);
    return taken;
}

/* Room for the pieces of all blocks, as many as the first one has. No memory was taken yet. */
static bool batch_pieces_begin(struct batch *batch, Py_ssize_t pieces)
{
    size_t count;

    if (pieces < 1 || pieces > ICMS_PIECES_MAX) {
        PyErr_Format(PyExc_ValueError, "block 0: its memory is 1 to %d pieces, not %zd",
                     ICMS_PIECES_MAX, pieces);
        return false;
    }
    count = (size_t)batch->count * (size_t)pieces;
    PyMem_Free(batch->memory);
    batch->memory_count = 0;
    batch->memory = PyMem_Calloc(count, sizeof(*batch->memory));
    batch->piece = PyMem_Calloc(count, sizeof(*batch->piece));
    if (batch->memory == NULL || batch->piece == NULL) {
        (void)PyErr_NoMemory();
        return false;
    }
    batch->memory_count = (Py_ssize_t)count;
    batch->pieces = (uint32_t)pieces;
    return true;
}

/* Takes the memory of a block that is several pieces. */
static bool batch_take_pieces(struct batch *batch, PyObject *tuple, Py_ssize_t i)
{
    Py_ssize_t pieces = PyTuple_Size(tuple);
    struct icms_block *block = &batch->blocks[i];
    struct batch_memory *memory;
    struct icms_piece *piece;

    if (i == 0 && !batch_pieces_begin(batch, pieces))
        return false;
    if (pieces != (Py_ssize_t)batch->pieces) {
        PyErr_Format(PyExc_ValueError,
                     "block %zd: its memory is %zd pieces, and that of the first block is %u", i,
                     pieces, (unsigned)batch->pieces);
        return false;
    }
    memory = &batch->memory[i * pieces];
    piece = &batch->piece[i * pieces];
    block->data = piece;
    for (Py_ssize_t n = 0; n < pieces; n++) {
        if (!batch_take_piece(batch, PyTuple_GetItem(tuple, n), i, &memory[n], &piece[n].data,
                              &piece[n].bytes))
            return false;
        block->bytes += piece[n].bytes; /* the library looks whether it is their sum */
    }
    return true;
}

static bool batch_take_memory(struct batch *batch, PyObject *memory, Py_ssize_t i)
{
    struct icms_block *block = &batch->blocks[i];
    PyObject *object = PySequence_GetItem(memory, i), *tuple = NULL;
    bool taken = false, is_pieces;

    if (object == NULL)
        return false;
    is_pieces = PyTuple_Check(object) || PyList_Check(object);
    if (is_pieces)
        tuple = PySequence_Tuple(object); /* a list could change while its entries are asked */
    if (tuple != NULL)
        taken = batch_take_pieces(batch, tuple, i);
    else if (!is_pieces && batch->pieces != 0)
        PyErr_Format(PyExc_ValueError,
                     "block %zd: its memory is not in pieces, and that of the first block is", i);
    else if (!is_pieces)
        taken = batch_take_piece(batch, object, i, &batch->memory[i], &block->data, &block->bytes);
    Py_XDECREF(tuple);
    Py_DECREF(object);
    return taken;
}

/* One array for all: its first dimension is the block. */
static bool batch_take_rows(struct batch *batch, PyObject *array)
{
    bool writable = batch->op == BATCH_GET;
    Py_buffer *view = &batch->memory[0].view;
    uint64_t bytes;

    if (PyObject_GetBuffer(array, view, writable ? PyBUF_ND | PyBUF_WRITABLE : PyBUF_ND) != 0) {
        memory_explain(array, 0, writable);
        return false;
    }
    if (view->ndim < 2) {
        PyErr_Format(PyExc_TypeError,
                     "memory is a sequence with one entry a block, or an array whose first "
                     "dimension is the block, not %R of %d dimensions",
                     (PyObject *)Py_TYPE(array), view->ndim);
        return false;
    }
    if (view->shape[0] != batch->count || (writable && view->len == 0)) {
        PyErr_Format(PyExc_ValueError, "%zd keys and memory of %zd blocks with %zd bytes in all",
                     batch->count, view->shape[0], view->len);
        return false;
    }
    bytes = (uint64_t)(view->len / batch->count);
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        batch->blocks[i].data = (char *)view->buf + (uint64_t)i * bytes;
        batch->blocks[i].bytes = bytes;
    }
    return true;
}

static bool batch_take(struct batch *batch, const struct volume *volume, PyObject *keys,
                       PyObject *memory)
{
    bool rows = batch->memory != NULL && PyObject_CheckBuffer(memory);

    for (Py_ssize_t i = 0; i < batch->count; i++) {
        PyObject *key = PySequence_GetItem(keys, i);
        bool taken;

        if (key == NULL)
            return false;
        taken = batch_key(volume, key, i, &batch->blocks[i].key);
        Py_DECREF(key);
        if (taken && batch->memory != NULL && !rows)
            taken = batch_take_memory(batch, memory, i);
        if (!taken)
            return false;
    }
    return !rows || batch_take_rows(batch, memory);
}

/* True when there is one entry a block, or none. */
static bool batch_fits(enum batch_op op, PyObject *sequence, const char *what, Py_ssize_t count)
{
    Py_ssize_t length = sequence == Py_None ? count : batch_length(op, sequence, what);

    if (length >= 0 && length != count)
        PyErr_Format(PyExc_ValueError, "%zd keys and %s of %zd blocks", count, what, length);
    return length == count;
}

bool batch_init(struct batch *batch, const struct volume *volume, enum batch_op op, PyObject *keys,
                PyObject *memory, uint64_t stream)
{
    Py_ssize_t count = batch_length(op, keys, "keys");

    *batch = (struct batch){.op = op, .stream = stream, .stream_given = stream != 0};
    if (count < 0 || (!PyObject_CheckBuffer(memory) && !batch_fits(op, memory, "memory", count)))
        return false;
    if (count == 0) {
        PyErr_SetString(PyExc_ValueError, "a batch has at least one block");
        return false;
    }
    batch->count = count;
    batch->blocks = PyMem_Calloc((size_t)count, sizeof(*batch->blocks));
    if (memory != Py_None)
        batch->memory = PyMem_Calloc((size_t)count, sizeof(*batch->memory));
    batch->memory_count = count;
    if (batch->blocks == NULL || (memory != Py_None && batch->memory == NULL))
        (void)PyErr_NoMemory();
    else if (batch_take(batch, volume, keys, memory))
        return true;
    batch_fini(batch);
    return false;
}

void batch_release(struct batch *batch)
{
    struct batch_memory *memory = batch->memory;

    batch->memory = NULL; /* releasing runs others' code */
    for (Py_ssize_t i = 0; memory != NULL && i < batch->memory_count; i++)
        memory_give(&memory[i]);
    PyMem_Free(memory);
}

void batch_fini(struct batch *batch)
{
    batch_release(batch);
    PyMem_Free(batch->piece);
    PyMem_Free(batch->blocks);
    batch->piece = NULL;
    batch->blocks = NULL;
}

void batch_options_memory(const struct batch *batch, struct icms_request_options *options)
{
    options->stream = (void *)(uintptr_t)batch->stream;
    options->pieces = batch->pieces;
}

struct icms_request_options batch_options(uint32_t deadline_ms, uint32_t flags)
{
    struct icms_request_options options;

    icms_request_options_init(&options);
    options.deadline_ms = deadline_ms;
    options.class_ = flags & BATCH_PRESTAGE ? ICMS_CLASS_PRESTAGE : ICMS_CLASS_LOAD;
    options.put_ack = flags & BATCH_ON_FLASH ? ICMS_PUT_ON_FLASH : ICMS_PUT_ACCEPTED;
    options.put_if_absent = (flags & BATCH_IF_ABSENT) != 0;
    options.once = (flags & BATCH_ONCE) != 0;
    return options;
}

PyObject *batch_result(const struct batch *batch, icms_err err)
{
    size_t count = (size_t)batch->count;
    uint8_t *small = PyMem_Calloc(3, count + 1);
    uint64_t *sizes = PyMem_Calloc(count + 1, sizeof(*sizes));
    PyObject *result = NULL;

    if (small == NULL || sizes == NULL) {
        (void)PyErr_NoMemory();
    } else {
        for (size_t i = 0; i < count; i++) {
            const struct icms_block *block = &batch->blocks[i];

            small[i] = (uint8_t)block->status;
            small[count + i] = (uint8_t)block->reason;
            small[2 * count + i] = (uint8_t)block->source;
            sizes[i] = block->bytes;
        }
        result = Py_BuildValue("(iy#y#y#y#)", (int)err, (const char *)small, batch->count,
                               (const char *)small + count, batch->count,
                               (const char *)small + 2 * count, batch->count, (const char *)sizes,
                               batch->count * (Py_ssize_t)sizeof(*sizes));
    }
    PyMem_Free(small);
    PyMem_Free(sizes);
    return result;
}
