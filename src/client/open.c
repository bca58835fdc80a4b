/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/open.c: handles: opened, asked for their state, closed.
 *
 * icms_open -> calls of any thread -> icms_close, the last call. All memory of a handle is taken
 * here.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "client/client_int.h"
#include "conf/conf.h"

#ifndef CLIENT_VERSION
#error "the build says which version this is"
#endif

void client_why(const struct err_why *from, char *why, size_t why_bytes)
{
    if (why != NULL && why_bytes != 0)
        (void)snprintf(why, why_bytes, "%s", from->text);
}

/* The handle whose `log` this thread is in; NULL: none. It may be freed. */
static _Thread_local const struct icms *log_inside;

void client_log_to(const struct icms *icms, void (*log)(void *arg, const char *line), void *arg,
                   const char *line)
{
    const struct icms *before = log_inside;

    log_inside = icms;
    if (log != NULL)
        log(arg, line);
    else
        (void)fprintf(stderr, "icms: %s\n", line);
    log_inside = before;
}

void client_log(const struct icms *icms, const char *line)
{
    client_log_to(icms, icms->options.log, icms->options.log_arg, line);
}

const char *icms_version(void)
{
    return CLIENT_VERSION;
}

void icms_options_init(struct icms_options *options)
{
    *options = (struct icms_options){.struct_bytes = sizeof(*options)};
}

/* ---- parts of a handle ---------------------------------------------------------------------- */

void client_ops_reset(struct icms *icms)
{
    bool idle = icms->calls == 0;

    list_init(&icms->ops_free);
    for (uint32_t i = 0; i < CLIENT_OPS; i++) {
        struct client_op *op = &icms->ops[i];

        idle = idle && (op->state == OP_FREE || op->state == OP_LOST);
        op->state = OP_FREE;
        op->lease = CLIENT_LEASE_NONE;
        op->staging_bytes = 0;
        op->buffer = NULL;
        op->request = NULL;
        list_init(&op->part_link);
        list_push(&icms->ops_free, &op->link);
    }
    check(idle);
}

icms_err client_link_watch(struct icms *icms)
{
    icms_err err = sys_set_add(icms->epoll_fd, icms->link->client_event);

    icms->link->icms = icms;
    if (err == ICMS_OK && icms->link->sock >= 0)
        err = sys_set_add(icms->epoll_fd, icms->link->sock);
    if (err == ICMS_OK)
        client_reap(icms); /* from now on the agent signals its answers */
    return err;
}

static icms_err open_events(struct icms *icms)
{
    icms_err err;

    icms->epoll_fd = sys_set_new();
    icms->notify_fd = sys_event_new();
    icms->wake_fd = sys_event_new();
    icms->timer_fd = sys_timer_new();
    if (icms->epoll_fd < 0 || icms->notify_fd < 0 || icms->wake_fd < 0 || icms->timer_fd < 0)
        return err_from_errno(errno);
    err = sys_set_add(icms->epoll_fd, icms->notify_fd);
    if (err == ICMS_OK)
        err = sys_set_add(icms->epoll_fd, icms->timer_fd);
    return err;
}

static void open_lists(struct icms *icms)
{
    list_init(&icms->requests_free);
    list_init(&icms->under_way);
    list_init(&icms->ready);
    list_init(&icms->over);
    list_init(&icms->volumes);
    for (int i = 0; i < ROOM_COUNT; i++)
        list_init(&icms->rooms[i]);
    for (uint32_t i = 0; i < CLIENT_REQUESTS; i++)
        list_push(&icms->requests_free, &icms->requests[i].all);
}

/* Frees a handle without calls or requests, also a half-made one. */
static void open_free(struct icms *icms)
{
    struct list *at;

    if (icms->link != NULL && icms->link->kept)
        icms->local = NULL; /* an agent that is left behind goes on in it */
    client_link_free(&icms->link);
    client_link_free(&icms->attaching);
    while ((at = list_pop(&icms->retired)) != NULL) {
        struct client_link *link = container_of(at, struct client_link, retired);

        client_link_free(&link);
    }
    client_local_close(&icms->local);
    if (icms->epoll_fd >= 0)
        sys_close(icms->epoll_fd);
    if (icms->notify_fd >= 0)
        sys_close(icms->notify_fd);
    if (icms->wake_fd >= 0)
        sys_close(icms->wake_fd);
    if (icms->timer_fd >= 0)
        sys_close(icms->timer_fd);
    (void)pthread_mutex_destroy(&icms->lock);
    (void)pthread_cond_destroy(&icms->changed);
    client_crypt_free(&icms->crypt);
    free(icms->ops);
    free(icms->requests);
    icms->magic = 0;
    free(icms);
}

static icms_err open_new(struct icms **out_icms)
{
    struct icms *icms = calloc(1, sizeof(*icms));
    pthread_condattr_t attributes;

    if (icms == NULL)
        return ICMS_NO_MEMORY;
    icms->magic = CLIENT_ICMS_MAGIC;
    icms->epoll_fd = icms->notify_fd = icms->wake_fd = icms->timer_fd = -1;
    icms->watch_fd = -1;
    icms->absent = ICMS_PEER_DOWN;
    icms->expiry_ns = UINT64_MAX;
    /* With these attributes they do not fail here: they take no memory. */
    (void)pthread_mutex_init(&icms->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&icms->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    list_init(&icms->retired);
    icms->ops = calloc(CLIENT_OPS, sizeof(*icms->ops));
    icms->requests = calloc(CLIENT_REQUESTS, sizeof(*icms->requests));
    if (icms->ops == NULL || icms->requests == NULL) {
        open_free(icms);
        return ICMS_NO_MEMORY;
    }
    open_lists(icms);
    *out_icms = icms;
    return ICMS_OK;
}

/* ---- opening -------------------------------------------------------------------------------- */

static icms_err open_unix(struct icms *icms, const char *path, struct err_why *why)
{
    char socket[104];
    icms_err err;

    if (path[0] == 0)
        path = secure_getenv("ICMS_SOCKET");
    if (path == NULL || path[0] == 0) {
        conf_socket_find(socket);
        path = socket;
    }
    if (strlen(path) >= sizeof(icms->socket))
        return err_set(why, ICMS_INVALID, "the socket's path is too long: %s", path);
    memcpy(icms->socket, path, strlen(path) + 1);
    err = client_attach_unix(path, icms->options.buffer_bytes, CLIENT_ATTACH_MS, why, &icms->link);
    return icms->options.agent_optional != 0 && client_agent_may_come(err) ? ICMS_OK : err;
}

static icms_err open_where(struct icms *icms, const char *where, struct err_why *why)
{
    icms_err err;

    if (strncmp(where, "unix:", 5) == 0) {
        err = open_unix(icms, where + 5, why);
    } else if (strncmp(where, "pod:", 4) == 0) {
        err = client_local_open_pod(where + 4, &icms->options, why, &icms->local);
        if (err == ICMS_OK)
            err = client_local_start(icms->local, why, &icms->link);
    } else if (strncmp(where, "dir:", 4) == 0) {
        err = client_local_open_dir(where + 4, &icms->options, why, &icms->local);
        if (err == ICMS_OK && client_local_volumes(icms->local) == 0)
            return ICMS_OK; /* icms_volume_open makes the first one and starts the agent */
        if (err == ICMS_OK)
            err = client_local_start(icms->local, why, &icms->link);
    } else {
        return err_set(why, ICMS_INVALID,
                       "cannot open \"%s\": unknown kind of tier; use unix:SOCKET, pod:FILE or "
                       "dir:DIRECTORY",
                       where);
    }
    if (err != ICMS_OK)
        return err;
    client_ops_reset(icms);
    client_lock(icms);
    if (icms->link != NULL)
        err = client_link_watch(icms);
    client_unlock(icms);
    return err;
}

struct open_call {
    struct icms *icms;
    const char *where;
    struct err_why *why;
    icms_err err;
};

static void open_inside(void *arg)
{
    struct open_call *call = arg;

    call->err = open_where(call->icms, call->where, call->why);
}

/* The list of keys is read now, so that what is wrong with it is said here; the keys themselves
 * when their volume is opened. */
static icms_err open_keys(struct icms *icms, struct err_why *why)
{
    const char *path = icms->options.keys;
    struct client_keys *none = NULL;
    icms_err err;

    if (path == NULL)
        path = secure_getenv("ICMS_KEYS");
    icms->options.keys = NULL; /* it is the caller's */
    if (path == NULL || path[0] == 0)
        return ICMS_OK;
    if (strlen(path) >= sizeof(icms->keys_path))
        return err_set(why, ICMS_INVALID, "the path of the list of keys is too long: %.80s...",
                       path);
    memcpy(icms->keys_path, path, strlen(path) + 1);
    err = client_keys_load(path, NULL, why, &none);
    return err == ICMS_OK ? client_crypt_new(&icms->crypt) : err;
}

icms_err icms_open(const char *where, const struct icms_options *options, char *why,
                   size_t why_bytes, struct icms **out_icms)
{
    struct err_why sentence = {{0}};
    struct icms *icms = NULL;
    icms_err err = ICMS_INVALID;

    if (where == NULL || out_icms == NULL ||
        (options != NULL && options->struct_bytes < sizeof(size_t))) {
        (void)err_set(&sentence, err,
                      "icms_open needs a tier, options from icms_options_init and "
                      "a place for the handle");
        client_why(&sentence, why, why_bytes);
        return err;
    }
    err = open_new(&icms);
    if (err == ICMS_OK) {
        client_fork_watch(icms);
        icms_options_init(&icms->options);
        if (options != NULL)
            memcpy(&icms->options, options,
                   options->struct_bytes < sizeof(*options) ? options->struct_bytes
                                                            : sizeof(*options));
        err = open_events(icms);
    }
    if (err == ICMS_OK)
        err = open_keys(icms, &sentence);
    if (err == ICMS_OK) {
        struct open_call call = {.icms = icms, .where = where, .why = &sentence};

        icms->guarded = strncmp(where, "unix:", 5) == 0;
        if (client_guarded(icms, open_inside, &call))
            err = call.err;
        else
            err = err_set(&sentence, ICMS_CLOSED,
                          "cannot open %s: internal error of libicms, which was logged; please "
                          "report it",
                          where);
    }
    if (err == ICMS_OK && icms->guarded)
        err = client_watch_start(icms, &sentence);
    if (err != ICMS_OK) {
        if (sentence.text[0] == 0)
            (void)err_set(&sentence, err, "cannot open %s: %s", where, icms_err_text(err));
        client_why(&sentence, why, why_bytes);
        if (icms != NULL)
            open_free(icms);
        return err;
    }
    *out_icms = icms;
    return ICMS_OK;
}

static void close_inside(void *arg)
{
    struct icms *icms = arg;

    client_lock(icms);
    while (icms->state == ICMS_STATE_RESTART) /* icms_volume_open makes a volume */
        client_wait(icms);
    icms->state = ICMS_STATE_CLOSING;
    client_unlock(icms);
    client_quiesce(icms);
}

void icms_close(struct icms **icms)
{
    struct icms *i = icms == NULL ? NULL : *icms;
    struct list *at;

    if (i == NULL)
        return;
    if (i ==
        log_inside) { /* this thread is one that it would wait for, and goes on in the handle */
        (void)fprintf(stderr,
                      "icms: icms_close was called by `log` of the same handle, which stays "
                      "open; close it on another thread, or when `log` has returned\n");
        return;
    }
    *icms = NULL;
    if (i->magic != CLIENT_ICMS_MAGIC)
        return;
    /* The child of a fork has no threads of the agent and no say over the rings: what it inherited
     * is left alone. */
    if (client_forked(i))
        return;
    client_watch_stop(i);
    (void)!client_guarded(i, close_inside, i);
    (void)client_idle_wait(i,
                           UINT64_MAX); /* who has no request any more, or left a failed handle */
    while ((at = list_pop(&i->volumes)) != NULL) {
        struct icms_volume *volume = container_of(at, struct icms_volume, link);

        client_volume_free(volume);
    }
    client_memories_free(i);
    open_free(i);
}

/* ---- state ---------------------------------------------------------------------------------- */

struct text_call {
    const struct icms *icms;
    const struct client_question *question;
    struct client_link *link;
    char *out;
    size_t bytes, out_bytes;
    icms_err err;
};

static void text_inside(void *arg)
{
    struct text_call *call = arg;

    call->err = client_text_unix(call->icms->socket, call->link, call->question, call->out,
                                 call->bytes, &call->out_bytes);
}

static icms_err text_unix(struct icms *icms, const struct client_question *question, char *out,
                          size_t bytes, size_t *out_bytes)
{
    struct text_call call = {.icms = icms, .question = question, .out = out, .bytes = bytes};
    icms_err err = client_link_new(&call.link);

    if (err != ICMS_OK)
        return err;
    err = client_guarded(icms, text_inside, &call) ? call.err : ICMS_CLOSED;
    client_link_free(&call.link);
    if (err == ICMS_OK)
        *out_bytes = call.out_bytes;
    return err;
}

static icms_err text_ask(struct icms *icms, const struct client_question *question, char *out,
                         size_t bytes, size_t *out_bytes)
{
    icms_err err;

    if (icms == NULL || out_bytes == NULL || (out == NULL && bytes != 0))
        return ICMS_INVALID;
    if (client_forked(icms))
        return ICMS_FORKED;
    if (icms->local == NULL)
        return text_unix(icms, question, out, bytes, out_bytes);
    /* The agent of a directory without volumes has nothing to run for, nor to say. */
    if (client_local_volumes(icms->local) == 0) {
        *out_bytes = (size_t)snprintf(out, bytes, "%s",
                                      question->trace ? "{\"requests\":[]}"
                                                      : "{\"enclosures\":[],\"volumes\":[]}") +
                     1;
        return ICMS_OK;
    }
    err = client_call_begin(icms);
    if (err != ICMS_OK)
        return err;
    if (question->trace)
        err = client_inside_trace(icms->link->inside, question->key, out, bytes, out_bytes);
    else
        *out_bytes = client_inside_status(icms->link->inside, out, bytes) + 1;
    client_call_end(icms);
    return err;
}

/* What this process knows besides, into the object that the agent gave. */
static void status_devices(struct icms *icms, char *out, size_t bytes, size_t *io_bytes)
{
    char text[512 * ICMS_DEVICES_MAX];
    size_t end = *io_bytes - 2; /* of the object */

    if (*io_bytes < 4 || client_devices_text(icms, text, sizeof(text)) == 0)
        return;
    if (*io_bytes <= bytes && out[end] == '}')
        (void)snprintf(out + end, bytes - end, ",\"devices\":%s}", text);
    *io_bytes += strlen(",\"devices\":") + strlen(text);
}

icms_err icms_status(struct icms *icms, char *out, size_t bytes, size_t *out_bytes)
{
    const struct client_question question = {0};
    icms_err err = text_ask(icms, &question, out, bytes, out_bytes);

    if (err == ICMS_OK)
        status_devices(icms, out, bytes, out_bytes);
    return err;
}

icms_err icms_trace(struct icms *icms, const struct icms_key *key, char *out, size_t bytes,
                    size_t *out_bytes)
{
    const struct client_question question = {.trace = true, .key = key};

    if (key != NULL && (key->length == 0 || key->length > ICMS_KEY_BYTES))
        return ICMS_KEY_SIZE;
    return text_ask(icms, &question, out, bytes, out_bytes);
}
