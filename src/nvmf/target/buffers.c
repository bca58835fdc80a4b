/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose command goes on next, and who gets a data buffer.
 *
 * Called by the requests of one loop. A command takes its turn when it takes its buffer: the one
 * place where commands of all connections of a loop wait for each other.
 *
 * Turns. Commands of one queue pair for one tenant are a flow, served in order. Tenants share by
 * their weights, the hosts of a tenant alike, the flows of a host alike (base/fair.h), in each
 * class. While more than one flow is busy, at most a window of commands is in progress; so what
 * waits does so here, where it is put in order, and not at a drive or in a socket, where the one
 * who sends more gets more. A command that waits for its host for NVMFT_STALL_NS leaves the window,
 * and until its host is done its flow has one command in the window at a time: slow hosts hold
 * memory and not the turns of others. A tenant over a rate is held until the rate allows more; its
 * turn is lent to others.
 *
 * Prestaging (enum io_class) is a class of its own, beside loads: while loads wait, are in progress
 * on any loop, or were a moment ago, one command a loop is in progress; at other times,
 * NVMFT_PRESTAGE_BYTES. One, and not none: an engine may wait for it by now. So it needs no timer:
 * while its window is closed one of its commands is in it, and the end of that opens the window.
 * What waits holds no memory.
 *
 * Lookups take turns and are paid by their keys. A load takes its turn when it knows how large its
 * value is, so one that finds no key has had none: its host owes a turn, and the next load of the
 * host takes one as a lookup does, before its key is looked for. So a host owes as many as it has
 * commands in flight at most, and one that asks for keys that are not there has its share of turns.
 *
 * Memory. Loads before stores: while a load waits for memory no store takes any, and stores
 * together hold at most store_bytes_max. While a store waits for memory one command of prestaging
 * is in progress: at its end the store is served first, and finds what it would find without it. A
 * host, and a tenant, hold no more of a class than stays
 * free, or one buffer: alone half, n of them 1/(n + 1) each, and the last part is left for who
 * comes next; prestaging counts with loads. That is the dynamic threshold of shared-memory switches
 * (Choudhury and Hahne, 1998) with alpha = 1. A flow over its share waits for that share alone,
 * outside the line of others. The one whose turn it is waits until it fits, so nobody starves.
 *
 * Invariants: a command holds at most one buffer and waits for none while it holds one. A flow with
 * parked commands is in the queue of its tenant or in the waiting list of one share. A tenant with
 * such flows is in the queue of tenants or in the list of those that are held. No lock, and no
 * memory taken after the start.
 */
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "nvmf/target/target_int.h"

/* Rates are looked at no more often. */
#define BUFFERS_TICK_NS ((uint64_t)1000 * 1000)

/* One, and that of admin commands: there is nobody to leave memory to but hosts. */
#define TENANTS_MIN 2

/* What a command of a class may do now. */
enum buffers_verdict {
    BUFFERS_GO,
    BUFFERS_NONE,   /* there is no command                                   */
    BUFFERS_WINDOW, /* waits until one in the window is over                 */
    BUFFERS_MEMORY, /* waits until memory comes back                         */
    BUFFERS_ASIDE,  /* waits for its share or for a rate, and not in line    */
};

/* ---- start and end -------------------------------------------------------------------------- */

static void share_init(struct nvmft_share *share)
{
    *share = (struct nvmft_share){0};
    for (int class = 0; class < NVMFT_WAIT_COUNT; class ++)
        list_init(&share->waiting[class]);
}

static void flow_init(struct nvmft_flow *flow, struct nvmft_tenant *tenant,
                      const struct nvmft_qpair *qpair, struct nvmft_share *share)
{
    *flow = (struct nvmft_flow){.tenant = tenant, .qpair = qpair, .share = share};
    for (int class = 0; class < NVMFT_WAIT_COUNT; class ++) {
        list_init(&flow->parked[class]);
        list_init(&flow->wait_link[class]);
        fair_member_init(&flow->turn[class], 1);
    }
    list_init(&flow->bucket_link);
    list_init(&flow->idle_link);
}

static void tenant_init(struct nvmft_tenant *tenant, uint32_t weight, struct nvmft_rates *rates)
{
    share_init(&tenant->share);
    tenant->rates = rates;
    for (int class = 0; class < NVMFT_WAIT_COUNT; class ++) {
        fair_member_init(&tenant->turn[class], weight);
        fair_init(&tenant->flows[class]);
        list_init(&tenant->held_link[class]);
    }
    flow_init(&tenant->common, tenant, NULL, &tenant->share);
}

/* The timer of a loop's turns. */
static void nvmft_buffers_timer(struct loop_timer *timer);

icms_err nvmft_buffers_init(struct nvmft_shard *shard, void *memory, uint64_t bytes)
{
    const struct nvmf_target *target = shard->target;
    const struct nvmf_target_opts *opts = &target->opts;
    struct nvmft_buffers *buffers = &shard->buffers;
    uint32_t flows =
        (uint32_t)u64_min(NVMFT_FLOWS, (uint64_t)opts->connections_max * (opts->tenant_count + 1));

    check(bytes >= target->buffer_bytes_max);
    *buffers = (struct nvmft_buffers){
        .store_bytes_max = u64_max(bytes - bytes / 4, target->buffer_bytes_max),
        .window_bytes_max = u64_min(bytes / 4, NVMFT_WINDOW_BYTES),
        .share_count = opts->connections_max + 1,
        .tenant_count = opts->tenant_count + 1,
        .bucket_count = 1,
    };
    while (buffers->bucket_count < flows)
        buffers->bucket_count *= 2;
    list_init(&buffers->idle);
    for (int class = 0; class < NVMFT_WAIT_COUNT; class ++) {
        fair_init(&buffers->turn[class]);
        list_init(&buffers->held[class]);
        list_init(&buffers->hosted[class]);
    }
    loop_timer_init(&buffers->timer, nvmft_buffers_timer);
    buffers->shares = calloc(buffers->share_count, sizeof(*buffers->shares));
    buffers->tenants = calloc(buffers->tenant_count, sizeof(*buffers->tenants));
    buffers->flows = calloc(flows, sizeof(*buffers->flows));
    buffers->buckets = calloc(buffers->bucket_count, sizeof(*buffers->buckets));
    if (buffers->shares == NULL || buffers->tenants == NULL || buffers->flows == NULL ||
        buffers->buckets == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < buffers->share_count; i++)
        share_init(&buffers->shares[i]);
    for (uint32_t i = 0; i < buffers->tenant_count; i++)
        tenant_init(&buffers->tenants[i],
                    i < opts->tenant_count ? opts->tenants[i].weight : FAIR_WEIGHT_MAX,
                    &target->rates[i]);
    for (uint32_t i = 0; i < buffers->bucket_count; i++)
        list_init(&buffers->buckets[i]);
    for (uint32_t i = 0; i < flows; i++) {
        flow_init(&buffers->flows[i], NULL, NULL, NULL);
        list_push(&buffers->idle, &buffers->flows[i].idle_link);
    }
    return nvmft_pool_init(&buffers->pool, memory, bytes);
}

void nvmft_buffers_fini(struct nvmft_buffers *buffers)
{
    nvmft_pool_fini(&buffers->pool);
    free(buffers->shares);
    free(buffers->tenants);
    free(buffers->flows);
    free(buffers->buckets);
    *buffers = (struct nvmft_buffers){0};
}

void nvmft_buffers_host(struct nvmft_qpair *qpair, const struct nvmft_ctrl *ctrl)
{
    const struct nvmft_buffers *buffers = &qpair->shard->buffers;

    qpair->host = ctrl == NULL ? buffers->share_count - 1 : ctrl->host;
    qpair->flow = NULL;
    check(qpair->host < buffers->share_count);
}

uint32_t nvmft_tenant_admin(const struct nvmft_shard *shard)
{
    return shard->buffers.tenant_count - 1;
}

/* ---- flows ---------------------------------------------------------------------------------- */

/* Whether it is the flow of the queue pair, with the host that it has now, and a tenant. */
static bool flow_is(const struct nvmft_flow *flow, const struct nvmft_qpair *qpair,
                    const struct nvmft_tenant *tenant)
{
    return flow->qpair == qpair && flow->tenant == tenant &&
           flow->share == &qpair->shard->buffers.shares[qpair->host];
}

/* The flow of the queue pair and a tenant. It stays that until it has had commands and has none any
 * more. */
static struct nvmft_flow *flow_find(struct nvmft_qpair *qpair, uint32_t number)
{
    struct nvmft_buffers *buffers = &qpair->shard->buffers;
    struct nvmft_tenant *tenant = &buffers->tenants[number];
    struct nvmft_flow *flow = qpair->flow;
    uint64_t pair = (uint64_t)(qpair - qpair->shard->qpairs);
    struct list *bucket, *link;

    check(number < buffers->tenant_count);
    if (flow != NULL && flow_is(flow, qpair, tenant))
        return flow;
    bucket = &buffers->buckets[hash64_mix(pair << 32 | number) & (buffers->bucket_count - 1)];
    list_for_each (at, bucket) {
        flow = container_of(at, struct nvmft_flow, bucket_link);
        if (flow_is(flow, qpair, tenant))
            return qpair->flow = flow;
    }
    link = list_first(&buffers->idle);
    if (link == NULL)
        return &tenant->common;
    flow = container_of(link, struct nvmft_flow, idle_link);
    check(flow->commands == 0);
    list_remove(&flow->bucket_link);
    list_remove(link);
    flow_init(flow, tenant, qpair, &buffers->shares[qpair->host]);
    list_push(bucket, &flow->bucket_link);
    list_push(&buffers->idle, link);
    return qpair->flow = flow;
}

static void flow_hold(struct nvmft_flow *flow)
{
    if (flow->commands++ == 0)
        list_remove(&flow->idle_link);
}

static void flow_rele(struct nvmft_buffers *buffers, struct nvmft_flow *flow)
{
    check(flow->commands > 0);
    if (--flow->commands == 0 && flow->qpair != NULL)
        list_push(&buffers->idle, &flow->idle_link);
}

static void flow_busy(struct nvmft_buffers *buffers, struct nvmft_flow *flow,
                      enum nvmft_wait_class class)
{
    if (flow->busy[class]++ > 0)
        return;
    buffers->active[class]++;
    flow->share->flows[class]++;
}

static void flow_idle(struct nvmft_buffers *buffers, struct nvmft_flow *flow,
                      enum nvmft_wait_class class)
{
    check(flow->busy[class] > 0);
    if (--flow->busy[class] > 0)
        return;
    buffers->active[class]--;
    flow->share->flows[class]--;
}

static struct nvmft_req *flow_first(const struct nvmft_flow *flow, enum nvmft_wait_class class)
{
    struct list *link = list_first(&flow->parked[class]);

    return link == NULL ? NULL : container_of(link, struct nvmft_req, link);
}

/* ---- what a command may do now -------------------------------------------------------------- */

static void buffers_gauge(struct nvmft_shard *shard)
{
    const struct nvmft_pool *pool = &shard->buffers.pool;
    uint64_t used = (uint64_t)(pool->pages - pool->pages_free) * NVMFT_POOL_PAGE;

    counter_set(&shard->counters.buffers_used_bytes, used);
}

/* Bytes that a class may still take. */
static uint64_t buffers_left(const struct nvmft_buffers *buffers, enum nvmft_wait_class class)
{
    uint64_t left = (uint64_t)buffers->pool.pages_free * NVMFT_POOL_PAGE;

    if (class != NVMFT_WAIT_STORE)
        return left;
    return buffers->store_bytes >= buffers->store_bytes_max
               ? 0
               : u64_min(left, buffers->store_bytes_max - buffers->store_bytes);
}

/* As what the memory of a class counts. */
static enum nvmft_wait_class memory_class(enum nvmft_wait_class class)
{
    return class == NVMFT_WAIT_PRESTAGE ? NVMFT_WAIT_LOAD : class;
}

static bool share_full(const struct nvmft_share *share, enum nvmft_wait_class class, uint64_t bytes,
                       uint64_t left)
{
    uint64_t held = share->bytes[memory_class(class)];

    return held > 0 && held + 2 * bytes > left;
}

/* The share that a flow has to wait for before a command of it may go; NULL: none. What waits so is
 * woken when something of that share ends, and there is something. */
static struct nvmft_share *flow_full(const struct nvmft_buffers *buffers, struct nvmft_flow *flow,
                                     enum nvmft_wait_class class, uint64_t bytes)
{
    uint64_t whole = bytes_align(bytes, NVMFT_POOL_PAGE);
    uint64_t left = buffers_left(buffers, class);

    if (share_full(flow->share, class, whole, left))
        return flow->share;
    if (buffers->tenant_count > TENANTS_MIN && share_full(&flow->tenant->share, class, whole, left))
        return &flow->tenant->share;
    if (flow->in_window[class] > 0 && (flow->stalled > 0 || class == NVMFT_WAIT_SCAN))
        return flow->share;
    return NULL;
}

static enum nvmf_target_class rate_class(enum nvmft_wait_class class)
{
    return class == NVMFT_WAIT_STORE ? NVMF_TARGET_STORES : NVMF_TARGET_LOADS;
}

/* When a tenant may go on, as far as rates are concerned. */
static uint64_t tenant_ready_ns(const struct nvmft_tenant *tenant, enum nvmft_wait_class class)
{
    const struct nvmft_rates *rates = tenant->rates;

    return u64_max(fair_rate_ready_ns(&rates->bytes[rate_class(class)]),
                   fair_rate_ready_ns(&rates->ops[rate_class(class)]));
}

/* Whether loads of values are in progress on any loop, or were a moment ago. */
static bool loads_near(const struct nvmft_shard *shard)
{
    const struct nvmf_target *target = shard->target;
    uint64_t now = loop_now_ns(shard->loop);

    for (uint32_t i = 0; i < target->opts.loop_count; i++) {
        const struct nvmft_buffers *buffers = &target->shards[i].buffers;
        uint64_t end_ns = counter_get(&buffers->loads_ns);

        if (counter_get(&buffers->loads) > 0 || (end_ns != 0 && now < end_ns + NVMFT_LOADS_NEAR_NS))
            return true;
    }
    return false;
}

static bool window_open(const struct nvmft_shard *shard, enum nvmft_wait_class class,
                        uint64_t bytes)
{
    const struct nvmft_buffers *buffers = &shard->buffers;
    uint32_t ops = buffers->window_ops[class];

    if (class == NVMFT_WAIT_SCAN)
        return ops < NVMFT_SCANS;
    if (class == NVMFT_WAIT_PRESTAGE)
        return ops == 0 ||
               (ops < NVMFT_WINDOW_OPS && !buffers->store_short &&
                buffers->window_bytes[class] + bytes <= NVMFT_PRESTAGE_BYTES && !loads_near(shard));
    return buffers->active[class] <= 1 || ops == 0 ||
           (ops < NVMFT_WINDOW_OPS &&
            buffers->window_bytes[class] + bytes <= buffers->window_bytes_max);
}

static void buffers_timer_at(struct nvmft_shard *shard, uint64_t at_ns)
{
    struct loop_timer *timer = &shard->buffers.timer;

    at_ns = u64_max(at_ns, loop_now_ns(shard->loop) + BUFFERS_TICK_NS);
    if (!loop_timer_armed(timer) || timer->at_ns > at_ns)
        loop_timer_start(shard->loop, timer, at_ns);
}

/* ---- the window ----------------------------------------------------------------------------- */

/* A load of a value that somebody waits for. */
static bool req_is_load(const struct nvmft_req *req)
{
    return req->wait_class == NVMFT_WAIT_LOAD && req->keys == 0;
}

static void window_enter(struct nvmft_req *req)
{
    struct nvmft_buffers *buffers = &req->qpair->shard->buffers;

    check(!req->in_window && !req->is_stalled);
    req->in_window = true;
    req->flow->in_window[req->wait_class]++;
    buffers->window_ops[req->wait_class]++;
    buffers->window_bytes[req->wait_class] += req->buffer_bytes;
    if (req_is_load(req))
        counter_add(&buffers->loads, 1);
    flow_busy(buffers, req->flow, req->wait_class);
}

static void window_leave(struct nvmft_req *req)
{
    struct nvmft_buffers *buffers = &req->qpair->shard->buffers;

    list_remove(&req->hosted_link);
    if (!req->in_window)
        return;
    req->in_window = false;
    req->flow->in_window[req->wait_class]--;
    buffers->window_ops[req->wait_class]--;
    buffers->window_bytes[req->wait_class] -= req->buffer_bytes;
    if (req_is_load(req)) {
        counter_add(&buffers->loads, (uint64_t)-1);
        counter_set(&buffers->loads_ns, loop_now_ns(req->qpair->shard->loop));
    }
    flow_idle(buffers, req->flow, req->wait_class);
}

/* Whether a command of bytes has room in the window; those that wait for their host for too long
 * leave it for that. */
static bool window_make(struct nvmft_shard *shard, enum nvmft_wait_class class, uint64_t bytes)
{
    struct nvmft_buffers *buffers = &shard->buffers;

    while (!window_open(shard, class, bytes)) {
        struct list *link = list_first(&buffers->hosted[class]);
        struct nvmft_req *req;

        if (link == NULL)
            return false;
        req = container_of(link, struct nvmft_req, hosted_link);
        if (loop_now_ns(shard->loop) < req->hosted_ns + NVMFT_STALL_NS) {
            buffers_timer_at(shard, req->hosted_ns + NVMFT_STALL_NS);
            return false;
        }
        window_leave(req);
        req->is_stalled = true;
        req->flow->stalled++;
    }
    return true;
}

void nvmft_buffers_hosted(struct nvmft_req *req)
{
    struct nvmft_shard *shard = req->qpair->shard;
    struct nvmft_buffers *buffers = &shard->buffers;

    if (!req->in_window)
        return;
    req->hosted_ns = loop_now_ns(shard->loop);
    list_push(&buffers->hosted[req->wait_class], &req->hosted_link);
    if (fair_first(&buffers->turn[req->wait_class]) != NULL)
        buffers_timer_at(shard, req->hosted_ns + NVMFT_STALL_NS);
}

void nvmft_buffers_unhosted(struct nvmft_req *req)
{
    list_remove(&req->hosted_link);
    if (!req->is_stalled)
        return;
    req->is_stalled = false;
    req->flow->stalled--;
    window_enter(req); /* it goes to a drive, whether there is room or not */
}

/* ---- standing in line ----------------------------------------------------------------------- */

/* A tenant has flows that may go on. */
static void tenant_stand(struct nvmft_buffers *buffers, struct nvmft_tenant *tenant,
                         enum nvmft_wait_class class)
{
    if (fair_first(&tenant->flows[class]) != NULL && !tenant->turn[class].link.queued &&
        list_empty(&tenant->held_link[class]))
        fair_push(&buffers->turn[class], &tenant->turn[class]);
}

/* A tenant is over a rate: it waits for the timer. */
static void tenant_hold(struct nvmft_shard *shard, struct nvmft_tenant *tenant,
                        enum nvmft_wait_class class)
{
    fair_remove(&shard->buffers.turn[class], &tenant->turn[class]);
    list_push(&shard->buffers.held[class], &tenant->held_link[class]);
    buffers_timer_at(shard, tenant_ready_ns(tenant, class));
}

/* A flow leaves the place where it stands, if any. */
static void flow_step_out(struct nvmft_buffers *buffers, struct nvmft_flow *flow,
                          enum nvmft_wait_class class)
{
    struct nvmft_tenant *tenant = flow->tenant;

    list_remove(&flow->wait_link[class]);
    fair_remove(&tenant->flows[class], &flow->turn[class]);
    if (fair_first(&tenant->flows[class]) == NULL)
        fair_remove(&buffers->turn[class], &tenant->turn[class]);
}

/* A flow with parked commands stands in line, or waits for the share that it has used up. */
static void flow_stand(struct nvmft_buffers *buffers, struct nvmft_flow *flow,
                       enum nvmft_wait_class class)
{
    const struct nvmft_req *req = flow_first(flow, class);
    struct nvmft_share *share = flow_full(buffers, flow, class, req->buffer_bytes);

    if (share != NULL) {
        list_push(&share->waiting[class], &flow->wait_link[class]);
        return;
    }
    fair_push(&flow->tenant->flows[class], &flow->turn[class]);
    tenant_stand(buffers, flow->tenant, class);
}

/* Something of a share ended: flows that waited for it stand in line again, as far as they may. */
static void share_wake(struct nvmft_buffers *buffers, struct nvmft_share *share,
                       enum nvmft_wait_class class)
{
    struct list *link;

    while ((link = list_first(&share->waiting[class])) != NULL) {
        struct nvmft_flow *flow = container_of(link, struct nvmft_flow, wait_link[class]);

        if (flow_full(buffers, flow, class, flow_first(flow, class)->buffer_bytes) == share)
            break;
        list_remove(link);
        flow_stand(buffers, flow, class);
    }
}

/* ---- taking --------------------------------------------------------------------------------- */

static enum buffers_verdict buffers_get(struct nvmft_qpair *qpair, struct nvmft_flow *flow,
                                        enum nvmft_wait_class class, uint64_t bytes,
                                        uint8_t **out_memory)
{
    struct nvmft_buffers *buffers = &qpair->shard->buffers;
    uint64_t whole = bytes_align(bytes, NVMFT_POOL_PAGE);

    if (class == NVMFT_WAIT_STORE && buffers->store_bytes > 0 &&
        buffers->store_bytes + whole > buffers->store_bytes_max)
        return BUFFERS_MEMORY;
    *out_memory = nvmft_pool_take(&buffers->pool, bytes);
    if (*out_memory == NULL)
        return BUFFERS_MEMORY;
    qpair->buffer_bytes += whole;
    flow->share->bytes[memory_class(class)] += whole;
    if (flow->share != &flow->tenant->share)
        flow->tenant->share.bytes[memory_class(class)] += whole;
    if (class == NVMFT_WAIT_STORE)
        buffers->store_bytes += whole;
    buffers_gauge(qpair->shard);
    return BUFFERS_GO;
}

/* A command goes now: it is paid for. The flows of a host have the weight of one. */
static void flow_charge(const struct nvmft_req *req)
{
    struct nvmft_shard *shard = req->qpair->shard;
    struct nvmft_flow *flow = req->flow;
    struct nvmft_tenant *tenant = flow->tenant;
    enum nvmft_wait_class class = req->wait_class;
    enum nvmf_target_class rate = rate_class(class);
    uint64_t now = loop_now_ns(shard->loop);
    uint64_t bytes = req->buffer_bytes;

    if (req->keys > 0)
        bytes = req->keys * NVMFT_KEY_COST_BYTES;
    else if (bytes > NVMFT_POOL_PAGE)
        bytes -= NVMFT_POOL_PAGE; /* of the owner's headers; the value is in the others */

    flow->turn[class].weight =
        (uint32_t)u64_max(FAIR_WEIGHT_MAX / u64_max(flow->share->flows[class], 1), 1);
    fair_charge(&tenant->flows[class], &flow->turn[class], bytes);
    fair_charge(&shard->buffers.turn[class], &tenant->turn[class], bytes);
    fair_rate_charge(&tenant->rates->bytes[rate], req->keys > 0 ? 0 : bytes, now);
    fair_rate_charge(&tenant->rates->ops[rate], u64_max(req->keys, 1), now);
}

/* Whether a command that has not stood in line may go. */
static enum buffers_verdict buffers_now(struct nvmft_qpair *qpair, struct nvmft_flow *flow,
                                        enum nvmft_wait_class class, uint64_t bytes,
                                        uint8_t **out_memory)
{
    struct nvmft_shard *shard = qpair->shard;
    struct nvmft_buffers *buffers = &shard->buffers;

    if (fair_first(&buffers->turn[class]) != NULL)
        return BUFFERS_WINDOW;
    if (class != NVMFT_WAIT_LOAD && buffers->load_short)
        return BUFFERS_MEMORY;
    if (flow_full(buffers, flow, class, bytes) != NULL ||
        tenant_ready_ns(flow->tenant, class) > loop_now_ns(shard->loop))
        return BUFFERS_ASIDE;
    if (!window_make(shard, class, bytes))
        return BUFFERS_WINDOW;
    return buffers_get(qpair, flow, class, bytes, out_memory);
}

uint8_t *nvmft_buffers_try(struct nvmft_qpair *qpair, uint32_t tenant, enum nvmft_wait_class class,
                           uint64_t bytes)
{
    struct nvmft_flow *flow = flow_find(qpair, tenant);
    uint8_t *memory;

    if (!list_empty(&flow->parked[class]) ||
        buffers_now(qpair, flow, class, bytes, &memory) != BUFFERS_GO)
        return NULL;
    flow_hold(flow);
    qpair->incoming_flow = flow;
    return memory;
}

/* The request has memory of its flow, and its turn. */
static void buffers_grant(struct nvmft_req *req, uint8_t *memory)
{
    check(req->buffer == NULL && memory != NULL);
    req->buffer = memory;
    req->buffer_bytes = bytes_align(req->buffer_bytes, NVMFT_POOL_PAGE);
    flow_charge(req);
    window_enter(req);
}

void nvmft_buffers_adopt(struct nvmft_req *req)
{
    check(req->flow != NULL && req->buffer != NULL && !req->io.in_own);
    flow_charge(req);
    window_enter(req);
}

bool nvmft_buffers_take(struct nvmft_req *req, uint32_t tenant, enum nvmft_wait_class class,
                        uint64_t bytes)
{
    struct nvmft_qpair *qpair = req->qpair;
    struct nvmft_shard *shard = qpair->shard;
    struct nvmft_buffers *buffers = &shard->buffers;
    struct nvmft_flow *flow = flow_find(qpair, tenant);
    enum buffers_verdict verdict = BUFFERS_WINDOW;
    uint8_t *memory;

    check(bytes > 0 && bytes <= (uint64_t)buffers->pool.pages * NVMFT_POOL_PAGE);
    check(req->buffer == NULL);
    req->wait_class = class;
    req->buffer_bytes = bytes;
    req->flow = flow;
    flow_hold(flow);
    if (list_empty(&flow->parked[class]))
        verdict = buffers_now(qpair, flow, class, bytes, &memory);
    if (verdict == BUFFERS_GO) {
        buffers_grant(req, memory);
        return true;
    }
    if (class == NVMFT_WAIT_LOAD && verdict == BUFFERS_MEMORY)
        buffers->load_short = true;
    if (class == NVMFT_WAIT_STORE && verdict == BUFFERS_MEMORY)
        buffers->store_short = true;
    req->hosted_ns = loop_now_ns(shard->loop);
    flow_busy(buffers, flow, class);
    list_push(&flow->parked[class], &req->link);
    if (&req->link == list_first(&flow->parked[class]))
        flow_stand(buffers, flow, class);
    if (class == NVMFT_WAIT_STORE) {
        buffers->backlog_tenants += flow->tenant->backlog_bytes == 0;
        flow->tenant->backlog_bytes += bytes;
        buffers->backlog_bytes += bytes;
    }
    counter_add(&shard->counters.buffers_parks, 1);
    counter_add(&shard->counters.buffers_parked, 1);
    counter_add(&shard->counters.prestage_parks, class == NVMFT_WAIT_PRESTAGE);
    if (flow->tenant->turn[class].link.queued &&
        tenant_ready_ns(flow->tenant, class) > loop_now_ns(shard->loop))
        tenant_hold(shard, flow->tenant, class);
    return false;
}

void nvmft_buffers_owe(struct nvmft_qpair *qpair)
{
    qpair->shard->buffers.shares[qpair->host].owed++;
}

bool nvmft_buffers_pay(struct nvmft_qpair *qpair)
{
    struct nvmft_share *share = &qpair->shard->buffers.shares[qpair->host];

    if (share->owed == 0)
        return false;
    share->owed--;
    return true;
}

bool nvmft_backlog_full(const struct nvmft_shard *shard, uint32_t tenant, uint64_t bytes)
{
    const struct nvmft_buffers *buffers = &shard->buffers;
    uint64_t own = buffers->tenants[tenant].backlog_bytes;
    uint64_t max = shard->target->opts.store_backlog_bytes;
    uint64_t tenants = buffers->backlog_tenants + (own == 0);

    return buffers->backlog_bytes + bytes > max && own + bytes > max / tenants;
}

/* ---- waiting and going on ------------------------------------------------------------------- */

static void buffers_leave(struct nvmft_req *req)
{
    struct nvmft_flow *flow = req->flow;
    enum nvmft_wait_class class = req->wait_class;
    struct nvmft_shard *shard = req->qpair->shard;
    struct nvmft_buffers *buffers = &shard->buffers;
    struct nvmft_tenant_counters *counters = &flow->tenant->counters;

    check(req->buffer == NULL && !list_empty(&req->link));
    if (class != NVMFT_WAIT_PRESTAGE) {
        counter_add(&counters->waits[rate_class(class)], 1);
        counter_add(&counters->wait_ns[rate_class(class)],
                    loop_now_ns(shard->loop) - req->hosted_ns);
    }
    list_remove(&req->link);
    flow_idle(buffers, flow, class);
    if (class == NVMFT_WAIT_STORE) {
        check(flow->tenant->backlog_bytes >= req->buffer_bytes);
        buffers->backlog_bytes -= req->buffer_bytes;
        flow->tenant->backlog_bytes -= req->buffer_bytes;
        buffers->backlog_tenants -= flow->tenant->backlog_bytes == 0;
    }
    if (list_empty(&flow->parked[class]))
        flow_step_out(buffers, flow, class);
    counter_add(&shard->counters.buffers_parked, (uint64_t)-1);
}

/* Serves whose turn it is in a class. */
static enum buffers_verdict buffers_serve(struct nvmft_shard *shard, enum nvmft_wait_class class)
{
    struct nvmft_buffers *buffers = &shard->buffers;
    struct fair_member *first = fair_first(&buffers->turn[class]);
    enum buffers_verdict verdict;
    struct nvmft_tenant *tenant;
    struct nvmft_flow *flow;
    struct nvmft_req *req;
    uint8_t *memory;

    if (first == NULL)
        return BUFFERS_NONE;
    tenant = container_of(first, struct nvmft_tenant, turn[class]);
    if (tenant_ready_ns(tenant, class) > loop_now_ns(shard->loop)) {
        tenant_hold(shard, tenant, class);
        return BUFFERS_ASIDE;
    }
    flow = container_of(fair_first(&tenant->flows[class]), struct nvmft_flow, turn[class]);
    req = flow_first(flow, class);
    if (flow_full(buffers, flow, class, req->buffer_bytes) != NULL) {
        flow_step_out(buffers, flow, class);
        flow_stand(buffers, flow, class);
        return BUFFERS_ASIDE;
    }
    if (!window_make(shard, class, req->buffer_bytes))
        return BUFFERS_WINDOW;
    verdict = buffers_get(req->qpair, flow, class, req->buffer_bytes, &memory);
    if (verdict != BUFFERS_GO)
        return verdict;
    buffers_leave(req);
    buffers_grant(req, memory);
    nvmft_req_run(req);
    return BUFFERS_GO;
}

/* Whether others may go on: nothing of this class does, and not because there is no memory. */
static bool buffers_is_idle(enum buffers_verdict verdict)
{
    return verdict == BUFFERS_WINDOW || verdict == BUFFERS_NONE;
}

/* Serves whose turn it is in the first class that goes on. */
static enum buffers_verdict buffers_serve_next(struct nvmft_shard *shard)
{
    struct nvmft_buffers *buffers = &shard->buffers;
    enum buffers_verdict verdict = buffers_serve(shard, NVMFT_WAIT_LOAD);

    buffers->load_short = verdict == BUFFERS_MEMORY;
    if (buffers_is_idle(verdict))
        verdict = buffers_serve(shard, NVMFT_WAIT_SCAN);
    if (!buffers_is_idle(verdict))
        return verdict;
    verdict = buffers_serve(shard, NVMFT_WAIT_STORE);
    buffers->store_short = verdict == BUFFERS_MEMORY;
    if (buffers_is_idle(verdict) || buffers->store_short)
        verdict = buffers_serve(shard, NVMFT_WAIT_PRESTAGE);
    return verdict;
}

/* Serves whose turn it is, as far as there is room. */
static void nvmft_buffers_wake(struct nvmft_shard *shard)
{
    enum buffers_verdict verdict;

    if (shard->waking)
        return; /* the loop below is running further up and sees it */
    shard->waking = true;
    do
        verdict = buffers_serve_next(shard);
    while (verdict == BUFFERS_GO || verdict == BUFFERS_ASIDE);
    shard->waking = false;
}

static void nvmft_buffers_timer(struct loop_timer *timer)
{
    struct nvmft_shard *shard = container_of(timer, struct nvmft_shard, buffers.timer);
    struct nvmft_buffers *buffers = &shard->buffers;

    for (enum nvmft_wait_class class = 0; class < NVMFT_WAIT_COUNT; class ++)
        list_for_each_safe (link, &buffers->held[class]) {
            struct nvmft_tenant *tenant = container_of(link, struct nvmft_tenant, held_link[class]);

            if (tenant_ready_ns(tenant, class) <= loop_now_ns(shard->loop)) {
                list_remove(link);
                tenant_stand(buffers, tenant, class);
            } else {
                buffers_timer_at(shard, tenant_ready_ns(tenant, class));
            }
        }
    nvmft_buffers_wake(shard);
}

void nvmft_buffers_unpark(struct nvmft_req *req)
{
    struct nvmft_shard *shard = req->qpair->shard;

    buffers_leave(req);
    flow_rele(&shard->buffers, req->flow);
    req->flow = NULL;
    nvmft_buffers_wake(shard); /* it may have been the one that others waited behind */
}

/* Memory of a flow comes back. */
static void buffers_back(struct nvmft_qpair *qpair, struct nvmft_flow *flow,
                         enum nvmft_wait_class class, uint8_t *memory)
{
    struct nvmft_buffers *buffers = &qpair->shard->buffers;
    uint64_t bytes = nvmft_pool_give(&buffers->pool, memory);

    check(qpair->buffer_bytes >= bytes && flow->share->bytes[memory_class(class)] >= bytes);
    qpair->buffer_bytes -= bytes;
    flow->share->bytes[memory_class(class)] -= bytes;
    if (flow->share != &flow->tenant->share)
        flow->tenant->share.bytes[memory_class(class)] -= bytes;
    if (class == NVMFT_WAIT_STORE) {
        check(buffers->store_bytes >= bytes);
        buffers->store_bytes -= bytes;
    }
    buffers_gauge(qpair->shard);
    for (enum nvmft_wait_class other = 0; other < NVMFT_WAIT_COUNT; other++) {
        share_wake(buffers, flow->share, other);
        share_wake(buffers, &flow->tenant->share, other);
    }
    flow_rele(buffers, flow);
    nvmft_buffers_wake(qpair->shard);
}

void nvmft_buffers_give_raw(struct nvmft_qpair *qpair)
{
    struct nvmft_flow *flow = qpair->incoming_flow;
    uint8_t *memory = qpair->incoming_buffer;

    qpair->incoming_flow = NULL;
    qpair->incoming_buffer = NULL;
    buffers_back(qpair, flow, qpair->incoming_class, memory);
}

void nvmft_buffers_give(struct nvmft_req *req)
{
    struct nvmft_flow *flow = req->flow;
    uint8_t *memory = req->buffer;

    if (memory == NULL)
        return;
    req->buffer = NULL;
    if (req->io.in_own)
        return; /* the transport knows */
    window_leave(req);
    flow->stalled -= req->is_stalled;
    req->is_stalled = false;
    req->flow = NULL;
    buffers_back(req->qpair, flow, req->wait_class, memory);
}
