/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/calls.c: the functions of icms.h that move, look for and forget blocks, in their
 * synchronous and asynchronous forms, and what is done with a request.
 *
 * Any thread. A synchronous call has its request on the stack; asynchronous ones come from the
 * handle's pool and go back with icms_request_end.
 */
#include "base/check.h"
#include "client/client_int.h"

void icms_request_options_init(struct icms_request_options *options)
{
    *options = (struct icms_request_options){.struct_bytes = sizeof(*options)};
}

/* The caller's options, also of a caller that was compiled with fewer of them. */
static struct icms_request_options calls_options(const struct icms_request_options *from)
{
    struct icms_request_options options;
    size_t bytes = sizeof(options);

    icms_request_options_init(&options);
    if (from == NULL)
        return options;
    if (from->struct_bytes < bytes)
        bytes = from->struct_bytes;
    memcpy(&options, from, bytes);
    return options;
}

static uint32_t calls_deadline_ms(const struct icms *icms, enum shm_op op, uint32_t wanted)
{
    bool load = op == SHM_OP_GET || op == SHM_OP_EXISTS;
    const struct client_link *link = icms->link;

    if (wanted == 0)
        wanted = load ? icms->options.load_deadline_ms : icms->options.store_deadline_ms;
    if (wanted == 0)
        wanted = load ? link->load_deadline_ms : link->store_deadline_ms;
    if (wanted == 0)
        wanted = load ? CLIENT_LOAD_DEADLINE_MS : CLIENT_STORE_DEADLINE_MS;
    return wanted;
}

/* What a call wants. */
struct calls_order {
    enum shm_op op;
    struct icms_block *blocks;   /* NULL for match and flush */
    const struct icms_key *keys; /* match                    */
    size_t count;
    const struct icms_request_options *options; /* may be NULL */
};

static void calls_request_init(struct icms_request *request, struct icms_volume *volume,
                               const struct calls_order *order)
{
    struct icms_request_options options = calls_options(order->options);
    struct icms *icms = volume->icms;

    *request = (struct icms_request){
        .magic = CLIENT_REQUEST_MAGIC,
        .state = REQUEST_RUN,
        .icms = icms,
        .volume = volume,
        .link_used = icms->link,
        .op = order->op,
        .lease_index = CLIENT_LEASE_NONE,
        .blocks = order->blocks,
        .keys = order->keys,
        .count = order->count,
        .hole = order->count,
        .tag = options.tag,
    };
    if (order->op == SHM_OP_FLUSH) {
        request->blocks = &request->own;
        request->flush_puts = atomic_load(&volume->account->puts);
    }
    if (options.put_ack == ICMS_PUT_ON_FLASH)
        request->flags |= SHM_FLAG_ON_FLASH;
    if (options.put_if_absent != 0)
        request->flags |= SHM_FLAG_IF_ABSENT;
    if (options.class_ == ICMS_CLASS_PRESTAGE)
        request->flags |= SHM_FLAG_PRESTAGE;
    request->deadline_ns =
        client_now_ns() +
        (uint64_t)calls_deadline_ms(icms, order->op, options.deadline_ms) * 1000000;
    list_init(&request->sent);
    list_init(&request->answered);
    list_init(&request->queue);
    list_init(&request->all);
    list_init(&request->ready);
    for (size_t i = 0; i < request->count && request->blocks != NULL; i++) {
        request->blocks[i].source = ICMS_SOURCE_NONE;
        request->blocks[i].reason = ICMS_MISS_NONE;
    }
}

/* Sets every status to the error of the whole call and returns it. */
static icms_err calls_fail(const struct calls_order *order, icms_err err)
{
    if (order->blocks != NULL && order->count <= ICMS_BATCH_MAX)
        for (size_t i = 0; i < order->count; i++) {
            order->blocks[i].status = err;
            order->blocks[i].reason = ICMS_MISS_NONE;
            order->blocks[i].source = ICMS_SOURCE_NONE;
        }
    return err;
}

static icms_err calls_begin(struct icms_volume *volume, const struct calls_order *order)
{
    bool batch = order->op != SHM_OP_FLUSH;
    icms_err err;

    if (volume == NULL || volume->magic != CLIENT_VOLUME_MAGIC)
        return calls_fail(order, ICMS_INVALID);
    if (batch && (order->count == 0 || order->count > ICMS_BATCH_MAX ||
                  (order->blocks == NULL && order->keys == NULL)))
        return calls_fail(order, ICMS_INVALID);
    if (order->options != NULL && order->options->struct_bytes < sizeof(size_t))
        return calls_fail(order, ICMS_INVALID);
    err = client_call_begin(volume->icms);
    if (err == ICMS_OK && volume->gone) {
        client_call_look(volume->icms);
        client_call_end(volume->icms);
        err = ICMS_NO_VOLUME;
    }
    return err == ICMS_OK ? ICMS_OK : calls_fail(order, err);
}

/* Runs a synchronous request. */
static icms_err calls_finish(struct icms_request *request)
{
    client_request_run(request);
    if (request->state != REQUEST_OVER)
        (void)client_request_finish(request, UINT64_MAX);
    return client_request_result(request);
}

static icms_err calls_run(struct icms_volume *volume, const struct calls_order *order,
                          struct icms_request *request)
{
    icms_err err = calls_begin(volume, order);

    if (err != ICMS_OK)
        return err;
    calls_request_init(request, volume, order);
    err = calls_finish(request);
    client_call_end(volume->icms);
    return err;
}

static icms_err calls_start(struct icms_volume *volume, const struct calls_order *order,
                            struct icms_request **out_request)
{
    icms_err err = calls_begin(volume, order);
    struct icms_request *request = NULL;
    struct icms *icms;
    struct list *at;

    if (err != ICMS_OK)
        return err;
    icms = volume->icms;
    check(pthread_mutex_lock(&icms->lock) == 0);
    at = list_pop(&icms->requests_free);
    check(pthread_mutex_unlock(&icms->lock) == 0);
    if (at == NULL) {
        client_call_end(icms);
        return calls_fail(order, ICMS_LIMIT);
    }
    request = container_of(at, struct icms_request, all);
    calls_request_init(request, volume, order);
    client_async_begin(request);
    *out_request = request;
    return ICMS_OK;
}

/* ---- synchronous ---------------------------------------------------------------------------- */

static icms_err calls_batch(struct icms_volume *volume, enum shm_op op, struct icms_block *blocks,
                            size_t count, const struct icms_request_options *options)
{
    struct calls_order order = {.op = op, .blocks = blocks, .count = count, .options = options};
    struct icms_request request;

    return calls_run(volume, &order, &request);
}

icms_err icms_put(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                  const struct icms_request_options *options)
{
    return calls_batch(volume, SHM_OP_PUT, blocks, count, options);
}

icms_err icms_get(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                  const struct icms_request_options *options)
{
    return calls_batch(volume, SHM_OP_GET, blocks, count, options);
}

icms_err icms_exists(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                     const struct icms_request_options *options)
{
    return calls_batch(volume, SHM_OP_EXISTS, blocks, count, options);
}

icms_err icms_remove(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                     const struct icms_request_options *options)
{
    return calls_batch(volume, SHM_OP_REMOVE, blocks, count, options);
}

/* One request after the other, up to the first hole, in one call and with one deadline. */
icms_err icms_match(struct icms_volume *volume, const struct icms_key *keys, size_t count,
                    const struct icms_request_options *options, size_t *out_matched)
{
    struct calls_order order = {.op = SHM_OP_EXISTS, .keys = keys, .count = 1, .options = options};
    struct icms_request request;
    uint64_t deadline_ns = 0;
    size_t matched = 0;
    icms_err err;

    if (out_matched == NULL || count == 0 || keys == NULL)
        return ICMS_INVALID;
    err = calls_begin(volume, &order);
    if (err != ICMS_OK)
        return err;
    do {
        order.keys = keys + matched;
        order.count = count - matched < ICMS_BATCH_MAX ? count - matched : ICMS_BATCH_MAX;
        calls_request_init(&request, volume, &order);
        request.before = matched;
        request.behind = count - matched - order.count;
        if (deadline_ns != 0)
            request.deadline_ns = deadline_ns;
        deadline_ns = request.deadline_ns;
        err = calls_finish(&request);
        matched += request.hole;
    } while (err == ICMS_OK && matched < count);
    client_call_end(volume->icms);
    /* An agent that died later leaves the prefix that was found before. */
    if (err != ICMS_OK && err != ICMS_MISS && matched == 0)
        return err;
    *out_matched = matched;
    return ICMS_OK;
}

/* A flush has one block of its own, so its status is the call's. */
static icms_err calls_result(const struct icms_request *request)
{
    if (request->op == SHM_OP_FLUSH)
        return request->own.status;
    return client_request_result(request);
}

icms_err icms_flush(struct icms_volume *volume, const struct icms_request_options *options)
{
    struct calls_order order = {.op = SHM_OP_FLUSH, .count = 1, .options = options};
    struct icms_request request;
    icms_err err = calls_run(volume, &order, &request);

    return err == ICMS_MISS ? calls_result(&request) : err;
}

icms_err client_lease_load(struct icms_volume *volume, struct icms_block *block,
                           const struct icms_request_options *options,
                           struct icms_request *out_request)
{
    struct calls_order order = {.op = SHM_OP_GET, .blocks = block, .count = 1, .options = options};
    icms_err err = calls_begin(volume, &order);

    if (err != ICMS_OK)
        return err;
    calls_request_init(out_request, volume, &order);
    out_request->lease_wanted = true;
    client_request_run(out_request);
    if (out_request->state != REQUEST_OVER)
        (void)client_request_finish(out_request, UINT64_MAX);
    return block->status; /* the call goes on: icms_lease_take ends it */
}

/* ---- asynchronous --------------------------------------------------------------------------- */

static icms_err calls_batch_start(struct icms_volume *volume, enum shm_op op,
                                  struct icms_block *blocks, size_t count,
                                  const struct icms_request_options *options,
                                  struct icms_request **out_request)
{
    struct calls_order order = {.op = op, .blocks = blocks, .count = count, .options = options};

    return out_request == NULL ? ICMS_INVALID : calls_start(volume, &order, out_request);
}

icms_err icms_put_start(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                        const struct icms_request_options *options,
                        struct icms_request **out_request)
{
    return calls_batch_start(volume, SHM_OP_PUT, blocks, count, options, out_request);
}

icms_err icms_get_start(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                        const struct icms_request_options *options,
                        struct icms_request **out_request)
{
    return calls_batch_start(volume, SHM_OP_GET, blocks, count, options, out_request);
}

icms_err icms_exists_start(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                           const struct icms_request_options *options,
                           struct icms_request **out_request)
{
    return calls_batch_start(volume, SHM_OP_EXISTS, blocks, count, options, out_request);
}

icms_err icms_remove_start(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                           const struct icms_request_options *options,
                           struct icms_request **out_request)
{
    return calls_batch_start(volume, SHM_OP_REMOVE, blocks, count, options, out_request);
}

icms_err icms_flush_start(struct icms_volume *volume, const struct icms_request_options *options,
                          struct icms_request **out_request)
{
    return calls_batch_start(volume, SHM_OP_FLUSH, NULL, 1, options, out_request);
}

/* ---- what is done with a request ------------------------------------------------------------ */

int icms_event_fd(struct icms *icms)
{
    if (icms == NULL || client_forked(icms))
        return -1;
    check(pthread_mutex_lock(&icms->lock) == 0);
    client_event_ask(icms);
    check(pthread_mutex_unlock(&icms->lock) == 0);
    return icms->epoll_fd;
}

struct icms_request *icms_poll(struct icms *icms)
{
    if (icms == NULL || client_forked(icms))
        return NULL;
    return client_async_poll(icms);
}

icms_err icms_request_wait(struct icms_request *request, int timeout_ms)
{
    uint64_t until_ns = UINT64_MAX;

    if (request == NULL || request->magic != CLIENT_REQUEST_MAGIC)
        return ICMS_INVALID;
    if (client_forked(request->icms))
        return ICMS_FORKED;
    if (timeout_ms >= 0)
        until_ns = client_now_ns() + (uint64_t)timeout_ms * 1000000;
    return client_async_wait(request, until_ns) ? ICMS_OK : ICMS_DEADLINE;
}

int icms_request_over(struct icms_request *request)
{
    struct icms *icms;
    bool over;

    if (request == NULL || request->magic != CLIENT_REQUEST_MAGIC || client_forked(request->icms))
        return 0;
    icms = request->icms;
    check(pthread_mutex_lock(&icms->lock) == 0);
    over = request->state == REQUEST_OVER && !request->held;
    check(pthread_mutex_unlock(&icms->lock) == 0);
    return over;
}

void *icms_request_tag(const struct icms_request *request)
{
    return request == NULL ? NULL : request->tag;
}

void icms_request_cancel(struct icms_request *request)
{
    if (request != NULL && request->magic == CLIENT_REQUEST_MAGIC && !client_forked(request->icms))
        client_async_cancel(request);
}

icms_err icms_request_end(struct icms_request **request)
{
    struct icms_request *r = request == NULL ? NULL : *request;
    struct icms *icms;
    icms_err err;

    if (r == NULL || r->magic != CLIENT_REQUEST_MAGIC)
        return ICMS_INVALID;
    *request = NULL;
    icms = r->icms;
    if (client_forked(icms))
        return ICMS_FORKED;
    (void)client_async_wait(r, UINT64_MAX);
    err = calls_result(r);
    check(pthread_mutex_lock(&icms->lock) == 0);
    r->state = REQUEST_FREE;
    r->magic = 0;
    list_push(&icms->requests_free, &r->all);
    check(pthread_mutex_unlock(&icms->lock) == 0);
    return err;
}
