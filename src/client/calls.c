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
    bool load = op == SHM_OP_GET || op == SHM_OP_EXISTS || op == SHM_OP_PRESTAGE;
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
    struct icms_block *blocks;   /* NULL for match, flush and prestage */
    const struct icms_key *keys; /* match, prestage                    */
    size_t count;
    const struct icms_request_options *options;   /* may be NULL                 */
    const struct icms_prestage_options *prestage; /* prestage; NULL: hints are taken back */
};

/* What a hint says of its blocks. */
static void calls_prestage_init(struct icms_request *request,
                                const struct icms_prestage_options *options)
{
    if (options == NULL) {
        request->flags |= SHM_FLAG_FORGET;
        return;
    }
    if (options->deadline_ms != 0) /* else it has passed, wherever a clock stands */
        request->need_ns = client_now_ns() + (uint64_t)options->deadline_ms * 1000000;
    if (options->once != 0)
        request->flags |= SHM_FLAG_ONCE;
    request->hint = shm_hint(options->tier, options->priority, options->pin_seconds);
    request->tag = options->tag;
}

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
        .view = client_view(volume),
        .link_used = icms->link,
        .op = order->op,
        .lease_index = CLIENT_LEASE_NONE,
        .blocks = order->blocks,
        .keys = order->keys,
        .count = order->count,
        .hole = order->count,
        .tag = options.tag,
        .stream = options.stream,
        .pieces = order->op == SHM_OP_PUT || order->op == SHM_OP_GET ? options.pieces : 0,
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
    if (options.once != 0)
        request->flags |= SHM_FLAG_ONCE;
    if (order->op == SHM_OP_PRESTAGE) {
        calls_prestage_init(request, order->prestage);
        options.deadline_ms = order->prestage == NULL ? 0 : order->prestage->timeout_ms;
    }
    request->deadline_ns =
        client_now_ns() +
        (uint64_t)calls_deadline_ms(icms, order->op, options.deadline_ms) * 1000000;
    list_init(&request->copies);
    list_init(&request->sent);
    list_init(&request->answered);
    list_init(&request->parted);
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

/* What is wrong with a call before its handle is asked. */
static icms_err calls_wrong(const struct icms_volume *volume, const struct calls_order *order)
{
    bool batch = order->op != SHM_OP_FLUSH;

    if (volume == NULL || volume->magic != CLIENT_VOLUME_MAGIC)
        return calls_fail(order, ICMS_INVALID);
    if (batch && (order->count == 0 || order->count > ICMS_BATCH_MAX ||
                  (order->blocks == NULL && order->keys == NULL)))
        return calls_fail(order, ICMS_INVALID);
    if (order->options != NULL && order->options->struct_bytes < sizeof(size_t))
        return calls_fail(order, ICMS_INVALID);
    return client_forked(volume->icms) ? calls_fail(order, ICMS_FORKED) : ICMS_OK;
}

static icms_err calls_begin(struct icms_volume *volume, const struct calls_order *order)
{
    icms_err err = client_call_begin(volume->icms);

    if (err == ICMS_OK) {
        err = client_volume_look(volume);
        if (err != ICMS_OK) {
            client_call_look(volume->icms);
            client_call_end(volume->icms);
        }
    }
    return err == ICMS_OK ? ICMS_OK : calls_fail(order, err);
}

/* What the copies of a request to and from devices have to wait for. */
static icms_err calls_mark(struct icms_request *request, const struct calls_order *order)
{
    icms_err err;

    if (request->stream == NULL || (request->op != SHM_OP_PUT && request->op != SHM_OP_GET))
        return ICMS_OK;
    err = client_copy_mark(request);
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

/* A call, as client_guarded runs it. */
struct calls_call {
    struct icms_volume *volume;
    const struct calls_order *order;
    struct icms_request *request; /* synchronous: the caller's; asynchronous: what was started */
    bool begun;                   /* synchronous: the request is filled in */
    icms_err err;
};

static void calls_run_inside(void *arg)
{
    struct calls_call *call = arg;

    call->err = calls_begin(call->volume, call->order);
    if (call->err != ICMS_OK)
        return;
    calls_request_init(call->request, call->volume, call->order);
    call->begun = true;
    call->err = calls_mark(call->request, call->order);
    if (call->err == ICMS_OK)
        call->err = calls_finish(call->request);
    client_call_end(call->volume->icms);
}

static icms_err calls_run(struct icms_volume *volume, const struct calls_order *order,
                          struct icms_request *request)
{
    struct calls_call call = {.volume = volume, .order = order, .request = request};
    icms_err err = calls_wrong(volume, order);

    if (err != ICMS_OK)
        return err;
    if (!client_guarded(volume->icms, calls_run_inside, &call)) {
        if (call.begun)
            client_failed_sync(request);
        return calls_fail(order, ICMS_CLOSED);
    }
    return call.err;
}

static icms_err calls_start_one(struct icms_volume *volume, const struct calls_order *order,
                                struct icms_request **out_request)
{
    struct icms *icms = volume->icms;
    icms_err err = calls_begin(volume, order);
    struct icms_request *request = NULL;
    struct list *at;

    if (err != ICMS_OK)
        return err;
    client_lock(icms);
    at = list_pop(&icms->requests_free);
    client_unlock(icms);
    if (at == NULL) {
        client_call_end(icms);
        return calls_fail(order, ICMS_LIMIT);
    }
    request = container_of(at, struct icms_request, all);
    calls_request_init(request, volume, order);
    err = calls_mark(request, order);
    if (err != ICMS_OK) {
        client_lock(icms);
        request->state = REQUEST_FREE;
        request->magic = 0;
        list_push(&icms->requests_free, &request->all);
        client_call_leave(icms);
        client_unlock(icms);
        return err;
    }
    client_async_begin(request);
    *out_request = request;
    return ICMS_OK;
}

static void calls_start_inside(void *arg)
{
    struct calls_call *call = arg;

    call->err = calls_start_one(call->volume, call->order, &call->request);
}

static icms_err calls_start(struct icms_volume *volume, const struct calls_order *order,
                            struct icms_request **out_request)
{
    struct calls_call call = {.volume = volume, .order = order};
    icms_err err = calls_wrong(volume, order);

    if (err != ICMS_OK)
        return err;
    if (!client_guarded(volume->icms, calls_start_inside, &call))
        return calls_fail(order, ICMS_CLOSED);
    if (call.err == ICMS_OK)
        *out_request = call.request;
    return call.err;
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
struct match_call {
    struct icms_volume *volume;
    struct calls_order order;        /* of the request that runs */
    size_t count, matched;           /* of all keys              */
    struct icms_estimate *estimates; /* of all keys; NULL        */
    icms_err err;
};

static void match_inside(void *arg)
{
    struct match_call *call = arg;
    struct calls_order *order = &call->order;
    const struct icms_key *keys = order->keys;
    struct icms_request request;
    uint64_t deadline_ns = 0;

    call->err = calls_begin(call->volume, order);
    if (call->err != ICMS_OK)
        return;
    do {
        size_t left = call->count - call->matched;

        order->keys = keys + call->matched;
        order->count = left < ICMS_BATCH_MAX ? left : ICMS_BATCH_MAX;
        calls_request_init(&request, call->volume, order);
        request.before = call->matched;
        request.behind = left - order->count;
        if (call->estimates != NULL) {
            request.estimates = call->estimates + call->matched;
            request.flags |= SHM_FLAG_ESTIMATE;
            client_estimates_init(request.estimates, request.count);
        }
        if (deadline_ns != 0)
            request.deadline_ns = deadline_ns;
        deadline_ns = request.deadline_ns;
        call->err = calls_finish(&request);
        call->matched += request.hole;
    } while (call->err == ICMS_OK && call->matched < call->count);
    if (call->estimates != NULL)
        client_estimates_settle(call->volume->icms, call->estimates, call->matched);
    client_call_end(call->volume->icms);
}

static icms_err match_keys(struct icms_volume *volume, const struct icms_key *keys, size_t count,
                           const struct icms_request_options *options,
                           struct icms_estimate *estimates, size_t *out_matched)
{
    struct match_call call = {
        .estimates = estimates,
        .volume = volume,
        .order = {.op = SHM_OP_EXISTS, .keys = keys, .count = 1, .options = options},
        .count = count,
    };
    icms_err err;

    if (out_matched == NULL || count == 0 || keys == NULL)
        return ICMS_INVALID;
    err = calls_wrong(volume, &call.order);
    if (err != ICMS_OK)
        return err;
    if (!client_guarded(volume->icms, match_inside, &call))
        return ICMS_CLOSED;
    /* An agent that died later leaves the prefix that was found before. */
    if (call.err != ICMS_OK && call.err != ICMS_MISS && call.matched == 0)
        return call.err;
    *out_matched = call.matched;
    return ICMS_OK;
}

icms_err icms_match(struct icms_volume *volume, const struct icms_key *keys, size_t count,
                    const struct icms_request_options *options, size_t *out_matched)
{
    return match_keys(volume, keys, count, options, NULL, out_matched);
}

icms_err icms_match_estimate(struct icms_volume *volume, const struct icms_key *keys, size_t count,
                             const struct icms_request_options *options,
                             struct icms_estimate *out_estimates, size_t *out_matched)
{
    return out_estimates == NULL
               ? ICMS_INVALID
               : match_keys(volume, keys, count, options, out_estimates, out_matched);
}

/* ---- prestage ------------------------------------------------------------------------------- */

void icms_prestage_options_init(struct icms_prestage_options *options)
{
    *options =
        (struct icms_prestage_options){.struct_bytes = sizeof(*options), .deadline_ms = 1000};
}

/* The caller's options, also of a caller that was compiled with fewer of them. */
static icms_err prestage_options(const struct icms_prestage_options *from,
                                 struct icms_prestage_options *out_options)
{
    size_t bytes = sizeof(*out_options);

    icms_prestage_options_init(out_options);
    if (from == NULL)
        return ICMS_OK;
    if (from->struct_bytes < sizeof(size_t))
        return ICMS_INVALID;
    if (from->struct_bytes < bytes)
        bytes = from->struct_bytes;
    memcpy(out_options, from, bytes);
    if (out_options->deadline_ms > CLIENT_PRESTAGE_MS_MAX || out_options->tier > ICMS_TIER_LOCAL ||
        out_options->priority > ICMS_PRIORITY_MAX ||
        out_options->pin_seconds > ICMS_PIN_SECONDS_MAX)
        return ICMS_INVALID;
    if (out_options->once != 0 &&
        (out_options->tier != ICMS_TIER_DRAM || out_options->pin_seconds != 0))
        return ICMS_INVALID;
    return ICMS_OK;
}

/* One request after the other in one call, with one deadline. Hints go on behind keys that are
 * none, and stop when the agent takes no more. */
static void prestage_inside(void *arg)
{
    struct match_call *call = arg; /* matched: that were taken */
    struct calls_order *order = &call->order;
    const struct icms_key *keys = order->keys;
    struct icms_request request;
    uint64_t deadline_ns = 0, need_ns = 0;

    call->err = calls_begin(call->volume, order);
    if (call->err != ICMS_OK)
        return;
    for (size_t i = 0; i < call->count; i += order->count) {
        size_t left = call->count - i;
        icms_err err;

        order->keys = keys + i;
        order->count = left < ICMS_BATCH_MAX ? left : ICMS_BATCH_MAX;
        calls_request_init(&request, call->volume, order);
        if (i != 0) {
            request.deadline_ns = deadline_ns;
            request.need_ns = need_ns;
        }
        deadline_ns = request.deadline_ns;
        need_ns = request.need_ns;
        err = calls_finish(&request);
        call->matched += order->count - request.not_ok;
        call->err = call->err == ICMS_OK ? err : call->err;
        if (err != ICMS_OK && err != ICMS_MISS && err != ICMS_KEY_SIZE && err != ICMS_INVALID)
            break;
    }
    client_call_end(call->volume->icms);
}

/* options NULL: takes hints back. */
static icms_err prestage_run(struct icms_volume *volume, const struct icms_key *keys, size_t count,
                             const struct icms_prestage_options *options, size_t *out_count)
{
    struct match_call call = {
        .volume = volume,
        .order = {.op = SHM_OP_PRESTAGE, .keys = keys, .count = 1, .prestage = options},
        .count = count,
    };
    icms_err err;

    if (count == 0 || keys == NULL)
        return ICMS_INVALID;
    err = calls_wrong(volume, &call.order);
    if (err == ICMS_OK)
        err = client_guarded(volume->icms, prestage_inside, &call) ? call.err : ICMS_CLOSED;
    if (out_count != NULL)
        *out_count = call.matched;
    return err;
}

icms_err icms_prestage(struct icms_volume *volume, const struct icms_key *keys, size_t count,
                       const struct icms_prestage_options *options, size_t *out_taken)
{
    struct icms_prestage_options wanted;
    icms_err err = prestage_options(options, &wanted);

    return err == ICMS_OK ? prestage_run(volume, keys, count, &wanted, out_taken) : err;
}

icms_err icms_prestage_cancel(struct icms_volume *volume, const struct icms_key *keys, size_t count,
                              size_t *out_canceled)
{
    return prestage_run(volume, keys, count, NULL, out_canceled);
}

icms_err icms_prestage_start(struct icms_volume *volume, const struct icms_key *keys, size_t count,
                             const struct icms_prestage_options *options,
                             struct icms_request **out_request)
{
    struct icms_prestage_options wanted;
    struct calls_order order = {
        .op = SHM_OP_PRESTAGE, .keys = keys, .count = count, .prestage = &wanted};
    icms_err err = prestage_options(options, &wanted);

    if (err != ICMS_OK || out_request == NULL)
        return ICMS_INVALID;
    return calls_start(volume, &order, out_request);
}

/* A flush has one block of its own, so its status is the call's. */
static icms_err calls_result(const struct icms_request *request)
{
    if (request->closed)
        return ICMS_CLOSED;
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
    icms_err err = calls_wrong(volume, &order);

    if (err == ICMS_OK)
        err = calls_begin(volume, &order);
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

static void event_inside(void *arg)
{
    struct icms *icms = arg;

    client_lock(icms);
    client_event_ask(icms);
    client_unlock(icms);
}

int icms_event_fd(struct icms *icms)
{
    if (icms == NULL || client_forked(icms))
        return -1;
    (void)!client_guarded(icms, event_inside, icms); /* failed: it is what it was */
    return icms->epoll_fd;
}

struct poll_call {
    struct icms *icms;
    struct icms_request *request;
};

static void poll_inside(void *arg)
{
    struct poll_call *call = arg;

    call->request = client_async_poll(call->icms);
}

struct icms_request *icms_poll(struct icms *icms)
{
    struct poll_call call = {.icms = icms};

    if (icms == NULL || client_forked(icms))
        return NULL;
    return client_guarded(icms, poll_inside, &call) ? call.request : client_failed_poll(icms);
}

struct wait_call {
    struct icms_request *request;
    uint64_t until_ns;
    bool over;
};

static void wait_inside(void *arg)
{
    struct wait_call *call = arg;

    call->over = client_async_wait(call->request, call->until_ns);
}

static bool calls_wait(struct icms_request *request, uint64_t until_ns)
{
    struct wait_call call = {.request = request, .until_ns = until_ns};

    if (client_guarded(request->icms, wait_inside, &call))
        return call.over;
    return client_failed_wait(request, until_ns);
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
    return calls_wait(request, until_ns) ? ICMS_OK : ICMS_DEADLINE;
}

static void over_inside(void *arg)
{
    struct wait_call *call = arg;

    client_lock(call->request->icms);
    call->over = call->request->state == REQUEST_OVER && !call->request->held;
    client_unlock(call->request->icms);
}

int icms_request_over(struct icms_request *request)
{
    struct wait_call call = {.request = request};

    if (request == NULL || request->magic != CLIENT_REQUEST_MAGIC || client_forked(request->icms))
        return 0;
    if (client_guarded(request->icms, over_inside, &call))
        return call.over;
    return client_failed_over(request);
}

void *icms_request_tag(const struct icms_request *request)
{
    return request == NULL ? NULL : request->tag;
}

static void cancel_inside(void *arg)
{
    client_async_cancel(arg);
}

void icms_request_cancel(struct icms_request *request)
{
    if (request != NULL && request->magic == CLIENT_REQUEST_MAGIC && !client_forked(request->icms))
        (void)!client_guarded(request->icms, cancel_inside, request); /* failed: it is over */
}

/* It is over and icms_poll does not return it. */
static void end_inside(void *arg)
{
    struct icms_request *request = arg;

    client_lock(request->icms);
    request->state = REQUEST_FREE;
    request->magic = 0;
    list_push(&request->icms->requests_free, &request->all);
    client_unlock(request->icms);
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
    (void)calls_wait(r, UINT64_MAX);
    err = calls_result(r);
    if (!client_guarded(icms, end_inside, r))
        client_failed_end(r);
    return err;
}
