/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.c: tiers: opened, asked, closed.
 *
 * open -> calls of any thread between handle_enter and handle_leave -> close, which refuses new
 * calls, waits for those inside, ends the requests under way and gives the tier back. Whatever was
 * opened from a handle holds a reference to it, so a handle that nobody closed is closed by its
 * last reference, or by close_all at the end of the interpreter.
 *
 * A child of fork() has the objects and none of the threads: it touches no lock and closes nothing.
 */
#include "module.h"

#include <unistd.h>

/* First guess for the text of status() and trace(), and how often it may have grown meanwhile. */
#define TEXT_BYTES 16384
#define TEXT_TRIES 8

PyTypeObject *handle_type;

/* The open handles of this process; GIL. */
static struct handle *handle_first;

static bool handle_forked(const struct handle *handle)
{
    return handle->pid != getpid();
}

bool handle_alive(const struct handle *handle)
{
    return handle->icms != NULL && !handle_forked(handle);
}

bool handle_enter_silently(struct handle *handle)
{
    if (!handle_alive(handle) || handle->closing)
        return false;
    (void)pthread_mutex_lock(&handle->lock);
    handle->calls++;
    (void)pthread_mutex_unlock(&handle->lock);
    return true;
}

bool handle_enter(struct handle *handle)
{
    if (handle_enter_silently(handle))
        return true;
    if (handle_forked(handle))
        (void)module_raise(ICMS_FORKED, "this client was opened before fork(): open one in this "
                                        "process");
    else
        (void)module_raise(ICMS_CLOSED, "the client is closed");
    return false;
}

void handle_leave(struct handle *handle)
{
    (void)pthread_mutex_lock(&handle->lock);
    if (--handle->calls == 0)
        (void)pthread_cond_broadcast(&handle->idle);
    (void)pthread_mutex_unlock(&handle->lock);
}

static void handle_unlist(struct handle *handle)
{
    if (handle->before != NULL)
        handle->before->next = handle->next;
    else if (handle_first == handle)
        handle_first = handle->next;
    if (handle->next != NULL)
        handle->next->before = handle->before;
    handle->next = handle->before = NULL;
}

/* How often, and how many times, a close looks at memory that devices use. */
#define HANDLE_LOOK_US 1000
#define HANDLE_LOOKS   2000

/* Gives the tier back, and then the program's `log`. No thread is inside and none can enter. GIL,
 * not held while it waits. */
static void handle_shut(struct handle *handle)
{
    struct icms *icms = handle->icms;
    PyObject *log = handle->log;

    for (int i = 0; i < HANDLE_LOOKS && !memory_sweep(handle); i++) {
        Py_BEGIN_ALLOW_THREADS;
        (void)usleep(HANDLE_LOOK_US);
        Py_END_ALLOW_THREADS;
    }
    memory_forget(handle);
    handle->icms = NULL; /* volumes, leases and buffers go with it: nobody gives them back now */
    handle_unlist(handle);
    Py_BEGIN_ALLOW_THREADS;
    icms_close(&icms);
    Py_END_ALLOW_THREADS;
    handle->log = Py_NewRef(Py_None);
    Py_DECREF(log);
}

/* ---- lines for the program ------------------------------------------------------------------ */

/* A thread that is inside the `log` of a handle, and inside that of another one before. */
struct handle_saying {
    const struct handle *handle;
    const struct handle_saying *outer;
};

static _Thread_local const struct handle_saying *handle_saying;

bool handle_says(const struct handle *handle)
{
    for (const struct handle_saying *at = handle_saying; at != NULL; at = at->outer)
        if (at->handle == handle)
            return true;
    return false;
}

/* On the main thread, as a pending call. GIL. */
static int handle_rele_later(void *arg)
{
    module_rele(arg);
    return 0;
}

/* Gives back the reference of a thread that was inside `log`. That thread is one which a close
 * waits for, so the last reference is left to the main thread; when Python takes no more pending
 * calls, to close_all. GIL. */
static void handle_rele_outside(struct handle *handle)
{
    if (Py_REFCNT((PyObject *)handle) > 1)
        module_rele(handle);
    else
        (void)Py_AddPendingCall(handle_rele_later, handle);
}

static void handle_say(struct handle *handle, const char *line)
{
    PyObject *text = module_text(line);
    PyObject *result = NULL;

    if (text != NULL)
        result = PyObject_CallFunctionObjArgs(handle->log, text, NULL);
    if (result == NULL)
        PyErr_WriteUnraisable(handle->log);
    Py_XDECREF(result);
    Py_XDECREF(text);
}

/* A line of libicms to the program; on any thread, without the GIL, and maybe with an exception.
 * Nobody frees the handle meanwhile: without a reference left it is being freed already, which
 * waits for this. */
static void handle_log(void *arg, const char *line)
{
    struct handle *handle = arg;
    struct handle_saying saying = {.handle = handle, .outer = handle_saying};
    PyObject *type, *value, *trace;
    PyGILState_STATE state;
    bool held;

    if (handle_forked(handle) || !Py_IsInitialized())
        return;
    state = PyGILState_Ensure();
    PyErr_Fetch(&type, &value, &trace);
    held = Py_REFCNT((PyObject *)handle) > 0;
    if (held)
        module_hold(handle);
    handle_saying = &saying;
    handle_say(handle, line);
    handle_saying = saying.outer;
    if (held)
        handle_rele_outside(handle);
    PyErr_Restore(type, value, trace);
    PyGILState_Release(state);
}

PyObject *handle_open(PyObject *module, PyObject *args)
{
    struct icms_options options;
    struct icms *icms = NULL;
    struct handle *handle;
    PyObject *log;
    const char *where;
    char why[512] = "";
    int agent_optional;
    icms_err err;

    icms_options_init(&options);
    if (!PyArg_ParseTuple(args, "sO&O&O&O&O&zpO", &where, module_number_u32,
                          &options.load_deadline_ms, module_number_u32, &options.store_deadline_ms,
                          module_number_u64, &options.buffer_bytes, module_number_u64,
                          &options.directory_bytes, module_number_u64, &options.value_bytes_max,
                          &options.keys, &agent_optional, &log))
        return NULL;
    options.agent_optional = (uint32_t)agent_optional;
    handle = PyObject_New(struct handle, handle_type);
    if (handle == NULL)
        return NULL;
    if (log != Py_None) {
        options.log = handle_log;
        options.log_arg = handle;
    }
    handle->log = Py_NewRef(log);
    handle->icms = NULL;
    handle->requests = NULL;
    handle->kept = NULL;
    handle->next = handle->before = NULL;
    handle->pid = getpid();
    handle->closing = false;
    handle->exports = 0;
    handle->request_last = 0;
    handle->calls = 0;
    (void)pthread_mutex_init(&handle->lock, NULL);
    (void)pthread_cond_init(&handle->idle, NULL);
    (void)pthread_mutex_init(&handle->poll_lock, NULL);
    Py_BEGIN_ALLOW_THREADS;
    err = icms_open(where, &options, why, sizeof(why), &icms);
    Py_END_ALLOW_THREADS;
    if (err != ICMS_OK) {
        module_rele(handle);
        return module_raise(err, why);
    }
    handle->icms = icms;
    handle->next = handle_first;
    if (handle_first != NULL)
        handle_first->before = handle;
    handle_first = handle;
    return (PyObject *)handle;
}

/* Waits until no thread is inside. GIL, not held meanwhile. */
static void handle_wait_idle(struct handle *handle)
{
    Py_BEGIN_ALLOW_THREADS;
    (void)pthread_mutex_lock(&handle->lock);
    while (handle->calls != 0)
        (void)pthread_cond_wait(&handle->idle, &handle->lock);
    (void)pthread_mutex_unlock(&handle->lock);
    Py_END_ALLOW_THREADS;
}

static PyObject *handle_close(PyObject *self, PyObject *none)
{
    struct handle *handle = (struct handle *)self;

    if (handle->icms == NULL || handle->closing || handle_forked(handle))
        Py_RETURN_NONE;
    if (handle->exports != 0) {
        PyErr_Format(PyExc_BufferError,
                     "cannot close the client: %zd views of its leases and buffers exist; release "
                     "them, and what was made from them, first",
                     handle->exports);
        return NULL;
    }
    if (handle_says(handle))
        return module_raise(ICMS_BUSY,
                            "cannot close the client inside its log, which close() waits "
                            "for: close it after log has returned, on another thread");
    handle->closing = true;
    handle_wait_idle(handle);
    request_end_all(handle);
    handle_shut(handle);
    Py_RETURN_NONE;
}

PyObject *handle_close_all(PyObject *module, PyObject *none)
{
    struct handle *handle = handle_first;

    while (handle != NULL) {
        PyObject *closed = NULL;

        if (handle->closing || handle->exports != 0 || handle_forked(handle)) {
            handle = handle->next;
            continue;
        }
        module_hold(handle);
        closed = handle_close((PyObject *)handle, NULL);
        module_rele(handle);
        if (closed == NULL)
            return NULL;
        Py_DECREF(closed);
        handle = handle_first; /* others ran meanwhile */
    }
    Py_RETURN_NONE;
}

static void handle_dealloc(PyObject *self)
{
    struct handle *handle = (struct handle *)self;

    handle->closing = true; /* close_all of another thread leaves it alone meanwhile */
    if (handle_alive(handle))
        handle_shut(handle);
    else
        handle_unlist(handle);
    if (!handle_forked(handle)) {
        (void)pthread_mutex_destroy(&handle->lock);
        (void)pthread_cond_destroy(&handle->idle);
        (void)pthread_mutex_destroy(&handle->poll_lock);
    }
    Py_DECREF(handle->log);
    module_object_free(self);
}

static PyObject *handle_closed(PyObject *self, void *closure)
{
    const struct handle *handle = (const struct handle *)self;

    return PyBool_FromLong(handle->icms == NULL || handle->closing);
}

static PyObject *handle_event_fd(PyObject *self, PyObject *none)
{
    struct handle *handle = (struct handle *)self;
    int fd;

    if (!handle_enter(handle))
        return NULL;
    fd = icms_event_fd(handle->icms);
    handle_leave(handle);
    return PyLong_FromLong(fd);
}

/* What icms_status says or, asked, icms_trace; key NULL: of the slowest requests. */
static PyObject *handle_text(struct handle *handle, bool trace, const struct icms_key *key)
{
    size_t bytes = TEXT_BYTES, needed = 0;
    PyObject *text = NULL;
    char *room = NULL;
    icms_err err = ICMS_OK;

    if (!handle_enter(handle))
        return NULL;
    for (int i = 0; i < TEXT_TRIES; i++) {
        char *more = PyMem_Realloc(room, bytes);

        if (more == NULL) {
            err = ICMS_NO_MEMORY;
            break;
        }
        room = more;
        Py_BEGIN_ALLOW_THREADS;
        err = trace ? icms_trace(handle->icms, key, room, bytes, &needed)
                    : icms_status(handle->icms, room, bytes, &needed);
        Py_END_ALLOW_THREADS;
        if (err != ICMS_OK || needed <= bytes)
            break;
        bytes = needed * 2;
    }
    handle_leave(handle);
    if (err == ICMS_OK && needed > bytes)
        err = ICMS_BUSY; /* it grew faster than we asked */
    if (err == ICMS_OK)
        text = PyUnicode_FromString(room);
    else
        (void)module_raise(err, NULL);
    PyMem_Free(room);
    return text;
}

static PyObject *handle_status(PyObject *self, PyObject *none)
{
    return handle_text((struct handle *)self, false, NULL);
}

static PyObject *handle_trace_slowest(PyObject *self, PyObject *none)
{
    return handle_text((struct handle *)self, true, NULL);
}

PyObject *handle_trace(struct handle *handle, const struct icms_key *key)
{
    return handle_text(handle, true, key);
}

static PyMethodDef handle_methods[] = {
    {"close", handle_close, METH_NOARGS, "Gives the tier back."},
    {"event_fd", handle_event_fd, METH_NOARGS, "Readable when poll() may have something."},
    {"status", handle_status, METH_NOARGS, "JSON about the tier."},
    {"trace", handle_trace_slowest, METH_NOARGS, "JSON about the slowest requests."},
    {"volume", volume_open, METH_VARARGS, "A volume by its name."},
    {"buffer", region_buffer, METH_VARARGS, "Memory shared with the agent."},
    {"register", memory_register, METH_O, "Memory of a GPU for puts and gets."},
    {"poll", request_poll, METH_NOARGS, "The tag of a request that is over, or None."},
    {0},
};

static PyGetSetDef handle_properties[] = {
    {"closed", handle_closed, NULL, "True when it takes no calls.", NULL},
    {0},
};

bool handle_types_make(void)
{
    static PyType_Slot slots[] = {{Py_tp_dealloc, handle_dealloc},
                                  {Py_tp_methods, handle_methods},
                                  {Py_tp_getset, handle_properties},
                                  {0}};
    static PyType_Spec spec = {.name = "icms._icms.Handle",
                               .basicsize = sizeof(struct handle),
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               .slots = slots};

    return module_type_make(&spec, &handle_type);
}
