/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c: asynchronous requests.
 *
 * start -> RUNNING -> over, seen by whoever comes first: poll() of any thread, wait() of one, the
 * close of the handle. Until then the handle holds the request, and with it the memory it moves;
 * a request that its user forgot goes on and ends with the handle at the latest.
 *
 * The library gives a request that is over to icms_poll or to the thread that waits for it. Between
 * icms_poll and icms_request_tag another thread must not end that request: poll_lock. It is never
 * taken with the GIL, because icms_poll copies values while it is held.
 */
#include "module.h"

#include <string.h>

enum request_state {
    REQUEST_STARTING, /* icms_*_start has not returned; ends as RUNNING or OVER               */
    REQUEST_RUNNING,  /* with the library, nobody waits                                       */
    REQUEST_TAKEN,    /* a thread waits for it and will end it, or make it RUNNING again      */
    REQUEST_OVER,     /* ended, its results are there                                         */
};

struct request {
    PyObject head;                 /* of every object */
    struct volume *volume;         /* a reference                                      */
    struct icms_request *request;  /* the library's; poll_lock                         */
    _Atomic int state;             /* enum request_state; set under poll_lock          */
    icms_err err;                  /* of the whole, when over                          */
    uint64_t number;               /* its tag with the library */
    struct request *next, *before; /* of its handle, while it holds this; GIL */
    bool listed;                   /* its handle holds it; GIL */
    struct batch batch;            /* what it moves                                    */
    PyObject *tag;                 /* what poll() returns; NULL when over; GIL         */
};

PyTypeObject *request_type;

/* Its handle holds it from now on. Takes no memory, so a request cannot be lost. GIL. */
static void request_list(struct request *request)
{
    struct handle *handle = request->volume->handle;

    request->next = handle->requests;
    request->before = NULL;
    if (request->next != NULL)
        request->next->before = request;
    handle->requests = request;
    request->listed = true;
    module_hold(request);
}

/* Its handle holds it no more, and its memory is let go, once. The caller has a reference. GIL. */
static void request_over(struct request *request)
{
    struct handle *handle = request->volume->handle;
    PyObject *tag = request->tag;

    if (!request->listed)
        return;
    request->listed = false;
    if (request->before != NULL)
        request->before->next = request->next;
    else
        handle->requests = request->next;
    if (request->next != NULL)
        request->next->before = request->before;
    request->tag = NULL;
    batch_release(&request->batch);
    Py_XDECREF(tag);
    module_rele(request);
}

/* Ends it: the library is done with it. poll_lock. */
static void request_end(struct request *request)
{
    request->err = icms_request_end(&request->request);
    request->state = REQUEST_OVER;
}

static icms_err request_start_c(struct request *request, const struct icms_request_options *options,
                                struct icms_request **out_request)
{
    struct icms_volume *volume = request->volume->volume;
    struct icms_block *blocks = request->batch.blocks;
    size_t count = (size_t)request->batch.count;

    switch (request->batch.op) {
    case BATCH_PUT:
        return icms_put_start(volume, blocks, count, options, out_request);
    case BATCH_GET:
        return icms_get_start(volume, blocks, count, options, out_request);
    case BATCH_EXISTS:
        return icms_exists_start(volume, blocks, count, options, out_request);
    case BATCH_REMOVE:
        return icms_remove_start(volume, blocks, count, options, out_request);
    case BATCH_FLUSH:
        return icms_flush_start(volume, options, out_request);
    case BATCH_OPS:
    case BATCH_MATCH:
        break;
    }
    return ICMS_INVALID;
}

/* Starts it. The handle has it already, since poll() of another thread may meet it before this
 * returns. GIL, not held meanwhile; the handle was entered. */
static icms_err request_begin(struct request *request, struct icms_request_options options)
{
    struct handle *handle = request->volume->handle;
    struct icms_request *started = NULL;
    icms_err err;

    options.tag = (void *)(uintptr_t)request->number;
    Py_BEGIN_ALLOW_THREADS;
    err = request_start_c(request, &options, &started);
    if (err == ICMS_OK) {
        (void)pthread_mutex_lock(&handle->poll_lock);
        if (request->state == REQUEST_STARTING) {
            request->request = started;
            request->state = REQUEST_RUNNING;
        }
        (void)pthread_mutex_unlock(&handle->poll_lock);
    }
    handle_leave(handle);
    Py_END_ALLOW_THREADS;
    return err;
}

static struct request *request_new(struct volume *volume, PyObject *tag)
{
    struct request *request = PyObject_New(struct request, request_type);

    if (request == NULL)
        return NULL;
    module_hold(volume);
    Py_INCREF(tag);
    request->volume = volume;
    request->tag = tag;
    request->request = NULL;
    request->state = REQUEST_STARTING;
    request->err = ICMS_OK;
    request->number = ++volume->handle->request_last;
    request->next = request->before = NULL;
    request->listed = false;
    request->batch = (struct batch){.op = BATCH_FLUSH};
    return request;
}

PyObject *request_start(PyObject *self, PyObject *args)
{
    struct volume *volume = (struct volume *)self;
    uint32_t op, deadline_ms, flags;
    uint64_t stream;
    PyObject *keys, *memory, *tag;
    struct icms_request_options options;
    struct request *request;
    icms_err err;

    if (!PyArg_ParseTuple(args, "O&OOO&O&O&O", module_number_u32, &op, &keys, &memory,
                          module_number_u32, &deadline_ms, module_number_u32, &flags,
                          module_number_u64, &stream, &tag))
        return NULL;
    options = batch_options(deadline_ms, flags);
    request = request_new(volume, tag);
    if (request == NULL)
        return NULL;
    if ((op != BATCH_FLUSH &&
         !batch_init(&request->batch, volume, (enum batch_op)op, keys, memory, stream)) ||
        !handle_enter(volume->handle)) {
        module_rele(request);
        return NULL;
    }
    batch_options_memory(&request->batch, &options);
    request_list(request);
    err = request_begin(request, options);
    if (err != ICMS_OK) {
        request->state = REQUEST_OVER;
        request_over(request);
        module_rele(request);
        return module_raise(err, NULL);
    }
    return (PyObject *)request;
}

/* The request of a number, when it is neither over nor waited for; it is over then. A reference, or
 * NULL. GIL. */
static struct request *request_polled(struct handle *handle, uint64_t number,
                                      struct icms_request *over)
{
    struct request *request = handle->requests;

    while (request != NULL && request->number != number)
        request = request->next;
    if (request == NULL)
        return NULL;
    module_hold(request);
    Py_BEGIN_ALLOW_THREADS;
    (void)pthread_mutex_lock(&handle->poll_lock);
    if (request->state == REQUEST_STARTING || request->state == REQUEST_RUNNING) {
        request->request = over;
        request_end(request);
    } else {
        over = NULL; /* the thread that waits ends it */
    }
    (void)pthread_mutex_unlock(&handle->poll_lock);
    Py_END_ALLOW_THREADS;
    if (over != NULL)
        return request;
    module_rele(request);
    return NULL;
}

PyObject *request_poll(PyObject *self, PyObject *none)
{
    struct handle *handle = (struct handle *)self;
    struct request *request = NULL;
    struct icms_request *over;
    PyObject *tag = NULL;

    if (!handle_enter(handle))
        return NULL;
    do {
        uint64_t number = 0;

        Py_BEGIN_ALLOW_THREADS;
        (void)pthread_mutex_lock(&handle->poll_lock);
        over = icms_poll(handle->icms);
        number = (uint64_t)(uintptr_t)icms_request_tag(over);
        (void)pthread_mutex_unlock(&handle->poll_lock);
        Py_END_ALLOW_THREADS;
        if (over != NULL)
            request = request_polled(handle, number, over);
    } while (over != NULL && request == NULL);
    handle_leave(handle);
    if (request != NULL) {
        tag = request->tag;
        Py_XINCREF(tag);
        request_over(request);
        module_rele(request);
    }
    if (tag != NULL)
        return tag;
    Py_RETURN_NONE;
}

/* Waits for it, when nobody else does. Any thread, without the GIL. */
static icms_err request_wait_c(struct request *request, int timeout_ms)
{
    struct handle *handle = request->volume->handle;
    icms_err err = ICMS_OK;

    (void)pthread_mutex_lock(&handle->poll_lock);
    if (request->state == REQUEST_RUNNING)
        request->state = REQUEST_TAKEN;
    else
        err = request->state == REQUEST_OVER ? ICMS_EXISTS : ICMS_BUSY;
    (void)pthread_mutex_unlock(&handle->poll_lock);
    if (err != ICMS_OK)
        return err;
    err = icms_request_wait(request->request, timeout_ms);
    (void)pthread_mutex_lock(&handle->poll_lock);
    if (err == ICMS_OK)
        request_end(request);
    else
        request->state = REQUEST_RUNNING;
    (void)pthread_mutex_unlock(&handle->poll_lock);
    return err;
}

/* wait(timeout_ms): True when it is over; -1 as long as it takes. */
static PyObject *request_wait(PyObject *self, PyObject *args)
{
    struct request *request = (struct request *)self;
    int timeout_ms;
    icms_err err;

    if (!PyArg_ParseTuple(args, "i", &timeout_ms))
        return NULL;
    if (request->state == REQUEST_OVER)
        Py_RETURN_TRUE;
    if (!handle_enter(request->volume->handle))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    err = request_wait_c(request, timeout_ms);
    handle_leave(request->volume->handle);
    Py_END_ALLOW_THREADS;
    if (err == ICMS_BUSY)
        return module_raise(err, "another thread waits for this request");
    if (err == ICMS_OK)
        request_over(request);
    if (err == ICMS_DEADLINE)
        Py_RETURN_FALSE;
    if (err == ICMS_OK || err == ICMS_EXISTS)
        Py_RETURN_TRUE;
    return module_raise(err, NULL);
}

static PyObject *request_cancel(PyObject *self, PyObject *none)
{
    struct request *request = (struct request *)self;
    struct handle *handle = request->volume->handle;

    if (request->state == REQUEST_OVER)
        Py_RETURN_NONE;
    if (!handle_enter(handle))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    (void)pthread_mutex_lock(&handle->poll_lock);
    if (request->request != NULL)
        icms_request_cancel(request->request);
    (void)pthread_mutex_unlock(&handle->poll_lock);
    handle_leave(handle);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* result(): what batch_result says; only when it is over. */
static PyObject *request_result(PyObject *self, PyObject *none)
{
    struct request *request = (struct request *)self;

    if (request->state != REQUEST_OVER)
        return module_raise(ICMS_BUSY, "the request is not over: wait() or poll() first");
    return batch_result(&request->batch, request->err);
}

static PyObject *request_done(PyObject *self, void *closure)
{
    return PyBool_FromLong(((struct request *)self)->state == REQUEST_OVER);
}

void request_end_all(struct handle *handle)
{
    struct request *request;

    while ((request = handle->requests) != NULL) {
        module_hold(request);
        Py_BEGIN_ALLOW_THREADS;
        (void)pthread_mutex_lock(&handle->poll_lock);
        if (request->state != REQUEST_OVER)
            request_end(request);
        (void)pthread_mutex_unlock(&handle->poll_lock);
        Py_END_ALLOW_THREADS;
        request_over(request);
        module_rele(request);
    }
}

/* It is over, or was never started: the handle holds those under way. */
static void request_dealloc(PyObject *self)
{
    struct request *request = (struct request *)self;

    batch_fini(&request->batch);
    Py_XDECREF(request->tag);
    module_rele(request->volume);
    module_object_free(self);
}

static PyMethodDef request_methods[] = {
    {"wait", request_wait, METH_VARARGS, "Waits until it is over."},
    {"cancel", request_cancel, METH_NOARGS, "Asks for an early end."},
    {"result", request_result, METH_NOARGS, "The results."},
    {0},
};

static PyGetSetDef request_properties[] = {
    {"done", request_done, NULL, "True when it is over.", NULL},
    {0},
};

bool request_types_make(void)
{
    static PyType_Slot slots[] = {{Py_tp_dealloc, request_dealloc},
                                  {Py_tp_methods, request_methods},
                                  {Py_tp_getset, request_properties},
                                  {0}};
    static PyType_Spec spec = {.name = "icms._icms.Request",
                               .basicsize = sizeof(struct request),
                               .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               .slots = slots};

    return module_type_make(&spec, &request_type);
}
