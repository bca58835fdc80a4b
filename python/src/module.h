/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.h: what the files of icms._icms share.
 *
 * The module is a thin layer on include/icms, for Python's stable ABI from 3.11 on: one wheel for
 * all later versions. It owns what has to be exact, namely memory, threads and life times; the
 * package in python/icms makes it pleasant. Nothing of it is called from outside that package.
 *
 * "GIL" at a field or function: the caller holds Python's global lock. Calls that may wait or copy
 * give it up in between handle_enter and handle_leave.
 */
#ifndef ICMS_PYTHON_MODULE_H
#define ICMS_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "icms/icms.h"

/* A key in Python: its run, then its digest. */
#define MODULE_KEY_BYTES (ICMS_RUN_BYTES + ICMS_DIGEST_BYTES)

/* ---- module.c ------------------------------------------------------------------------------- */

/* A str of a text of libicms; what is not UTF-8 in it is replaced. GIL. */
PyObject *module_text(const char *text);

/* Raises the exception of an error with this sentence (NULL or "": the error's text); returns NULL.
 * GIL. */
PyObject *module_raise(icms_err err, const char *why);

/* The same with a miss's reason. */
PyObject *module_raise_miss(icms_err err, enum icms_miss reason);

/* Converters of PyArg_ParseTuple: whole numbers of 0 .. 2^32 - 1 and 0 .. 2^64 - 1 or an exception
 * that names the range. */
int module_number_u32(PyObject *object, void *out_number);
int module_number_u64(PyObject *object, void *out_number);

/* Makes a type from its spec, keeps it in *out_type and adds nothing to the module: instances come
 * from functions. False with an exception. */
bool module_type_make(PyType_Spec *spec, PyTypeObject **out_type);

/* One reference more or less to an object of a type of this module. GIL. */
static inline void module_hold(void *object)
{
    Py_INCREF((PyObject *)object);
}

static inline void module_rele(void *object)
{
    Py_DECREF((PyObject *)object);
}

/* tp_dealloc's last step, for every type here. */
void module_object_free(void *object);

/* ---- handle.c ------------------------------------------------------------------------------- */

struct request;

/* A tier that is open. icms_close runs when no thread is inside a call and no view of shared
 * memory is left. */
struct handle {
    PyObject head;                /* of every object */
    struct icms *icms;            /* NULL: closed; GIL                                     */
    PyObject *log;                /* takes the lines of libicms; None: standard error      */
    struct request *requests;     /* those under way, each held; GIL */
    struct memory_kept *kept;     /* memory that devices may still use; GIL */
    struct handle *next, *before; /* of the open handles of this process; GIL              */
    pid_t pid;                    /* of the process that opened it                         */
    bool closing;                 /* no new calls; GIL                                     */
    Py_ssize_t exports;           /* views of leases and buffers that exist; GIL           */
    uint64_t request_last;        /* number of the last request; GIL                       */
    unsigned calls;               /* threads between handle_enter and handle_leave; lock   */
    pthread_mutex_t lock;         /* of calls                                              */
    pthread_cond_t idle;          /* calls became 0                                        */
    pthread_mutex_t poll_lock;    /* between icms_poll and a request's end; never taken
                                     with the GIL                                          */
};

extern PyTypeObject *handle_type;
bool handle_types_make(void);

/* open(where, load_deadline_ms, store_deadline_ms, buffer_bytes, directory_bytes, value_bytes_max,
 * keys or None, agent_optional, log or None) */
PyObject *handle_open(PyObject *module, PyObject *args);

/* close_all(): for the end of the interpreter. */
PyObject *handle_close_all(PyObject *module, PyObject *none);

/* True when calls are possible, and then the handle stays open until handle_leave; else false with
 * an exception. GIL. */
bool handle_enter(struct handle *handle);

/* The same without an exception. */
bool handle_enter_silently(struct handle *handle);
void handle_leave(struct handle *handle);

/* True on a thread that is inside the `log` of the handle, which those wait for who close it or
 * unregister memory. */
bool handle_says(const struct handle *handle);

/* What icms_trace says of a key, as a str. GIL. */
PyObject *handle_trace(struct handle *handle, const struct icms_key *key);

/* True when what was opened from it may still be given back: open, and by this process. GIL. */
bool handle_alive(const struct handle *handle);

/* ---- volume.c ------------------------------------------------------------------------------- */

struct volume {
    PyObject head;                /* of every object */
    struct handle *handle;        /* a reference                 */
    struct icms_volume *volume;   /* freed with the handle       */
    struct icms_volume_info info; /* as info() saw it last        */
};

/* What the volume is now; of a handle that is closed, as it was. GIL. */
void volume_info_look(const struct volume *volume, struct icms_volume_info *out_info);

extern PyTypeObject *volume_type;
bool volume_types_make(void);

/* Handle.volume(name) */
PyObject *volume_open(PyObject *self, PyObject *args);

/* ---- batch.c -------------------------------------------------------------------------------- */

enum batch_op {
    BATCH_PUT,
    BATCH_GET,
    BATCH_EXISTS,
    BATCH_REMOVE,
    BATCH_FLUSH,
    BATCH_OPS,
    BATCH_MATCH, /* of volume_match only: any number of keys */
};

enum batch_flag {
    BATCH_ON_FLASH = 1,
    BATCH_IF_ABSENT = 2,
    BATCH_PRESTAGE = 4,
    BATCH_ONCE = 8,
};

/* The memory of one block, or a piece of it, held for as long as the library may use it. */
struct batch_memory {
    Py_buffer view;  /* obj NULL: none                                     */
    PyObject *owner; /* of a tensor: its capsule, or the array; NULL: none */
};

/* The blocks of one call and the memory they name. */
struct batch {
    enum batch_op op;
    Py_ssize_t count;
    struct icms_block *blocks;
    struct batch_memory *memory; /* memory_count entries, or NULL where no bytes move */
    Py_ssize_t memory_count;     /* count, or count times pieces                 */
    struct icms_piece *piece;    /* of all blocks, one behind the other; NULL    */
    uint32_t pieces;             /* of each block; 0: its memory is no list of pieces */
    uint64_t stream;             /* of a GPU, on which copies are ordered; 0: none */
    bool stream_given;           /* by the caller, not by an array               */
};

/* Checks and takes keys (a sequence of bytes) and memory (a sequence as long, one array whose first
 * dimension is as long, or None: no bytes move). An entry of the sequence may be a tuple or a list
 * of pieces. False with an exception, and then nothing is held. GIL. */
bool batch_init(struct batch *batch, const struct volume *volume, enum batch_op op, PyObject *keys,
                PyObject *memory, uint64_t stream);

/* Lets go of the memory: the library is done with it. May be called again. GIL. */
void batch_release(struct batch *batch);
void batch_fini(struct batch *batch);

/* (error, statuses, reasons, sources, sizes): bytes, one a block, sizes eight. GIL. */
PyObject *batch_result(const struct batch *batch, icms_err err);

/* Options of a call, and what they say of its batch's memory. */
struct icms_request_options batch_options(uint32_t deadline_ms, uint32_t flags);
void batch_options_memory(const struct batch *batch, struct icms_request_options *options);

/* A key of the volume from a str or a bytes-like object; index is for the exception, -1: none. GIL.
 */
bool batch_key(const struct volume *volume, PyObject *object, Py_ssize_t index,
               struct icms_key *out_key);

/* ---- tensor.c ------------------------------------------------------------------------------- */

/* Where a tensor lies. */
struct tensor_place {
    void *data;
    uint64_t bytes;
    enum icms_memory_kind kind;
    uint64_t stream; /* that its producer names; 0: none */
};

/* True when it says in one of two ways where it lies. GIL. */
bool tensor_is(PyObject *object);

/* Asks it. stream: on which it will be used; 0: the caller has waited. *out_owner keeps it, also
 * when this is false with an exception. GIL. */
bool tensor_take(PyObject *object, bool writable, uint64_t stream, PyObject **out_owner,
                 struct tensor_place *out_place);

extern PyTypeObject *memory_type;
bool memory_types_make(void);

/* Handle.register(object) */
PyObject *memory_register(PyObject *self, PyObject *object);

/* Lets go of memory whose Memory is gone, as far as no device uses it any more. True: there is no
 * more of it. The handle is open. GIL. */
bool memory_sweep(struct handle *handle);

/* The handle is closed: what a device may still use is never freed. GIL. */
void memory_forget(struct handle *handle);

/* ---- request.c ------------------------------------------------------------------------------ */

extern PyTypeObject *request_type;
bool request_types_make(void);

/* Volume.start(op, keys, memory, deadline_ms, flags, stream, tag): a request; Handle.poll() gives
 * its tag. */
PyObject *request_start(PyObject *self, PyObject *args);

/* Handle.poll() */
PyObject *request_poll(PyObject *self, PyObject *none);

/* Ends all requests of a handle that no thread is inside any more. GIL. */
void request_end_all(struct handle *handle);

/* ---- region.c ------------------------------------------------------------------------------- */

extern PyTypeObject *region_type;
bool region_types_make(void);

/* Volume.lease(key, deadline_ms) */
PyObject *region_lease(PyObject *self, PyObject *args);

/* Handle.buffer(bytes) */
PyObject *region_buffer(PyObject *self, PyObject *args);

/* ---- chain.c -------------------------------------------------------------------------------- */

extern PyTypeObject *chain_type;
bool chain_types_make(void);

/* Volume.chain(tenant, model, weights, dtype, layout, block_tokens, rank, ranks) */
PyObject *chain_begin(PyObject *self, PyObject *args);

/* key_from_name(name) */
PyObject *chain_key_from_name(PyObject *module, PyObject *name);

#endif
