/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who gets a data buffer, and in which order, when there are too few.
 *
 * Called by the requests of one loop. Rules: loads before stores; stores together hold at most
 * store_bytes_max, so loads always find room; within a class queue pairs take turns and a queue
 * pair's commands go in order; the one whose turn it is waits until it fits, so nobody starves; one
 * queue pair holds at most qpair_bytes_max, or one buffer. A command holds one buffer and waits
 * for none while it holds one, so there is no deadlock.
 *
 * A host, which has several queue pairs, holds no more of a class than stays free for the others,
 * or one buffer: alone it gets half, n hosts get 1/(n + 1) each, and the last part is left for the
 * host that comes next. That is the dynamic threshold of shared-memory switches (Choudhury and
 * Hahne, 1998) with alpha = 1. A queue pair whose host has its share waits for that host alone,
 * outside the line of the others. A host is an NQN; those are not authenticated, so hosts with many
 * names are bounded by pace.c only.
 */
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "nvmf/target/target_int.h"

icms_err nvmft_buffers_init(struct nvmft_buffers *buffers, void *memory, uint64_t bytes,
                            uint64_t buffer_bytes_max, uint32_t hosts)
{
    *buffers = (struct nvmft_buffers){
        .store_bytes_max = u64_max(bytes - bytes / 4, buffer_bytes_max),
        .qpair_bytes_max = u64_max(bytes / 4, buffer_bytes_max),
    };
    for (int i = 0; i < NVMFT_WAIT_COUNT; i++)
        list_init(&buffers->hungry[i]);
    check(bytes >= buffer_bytes_max);
    buffers->share_count = hosts + 1;
    buffers->shares = calloc(buffers->share_count, sizeof(*buffers->shares));
    if (buffers->shares == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < buffers->share_count; i++)
        for (int class = 0; class < NVMFT_WAIT_COUNT; class ++)
            list_init(&buffers->shares[i].waiting[class]);
    return nvmft_pool_init(&buffers->pool, memory, bytes);
}

void nvmft_buffers_fini(struct nvmft_buffers *buffers)
{
    nvmft_pool_fini(&buffers->pool);
    free(buffers->shares);
    buffers->shares = NULL;
}

void nvmft_buffers_host(struct nvmft_qpair *qpair, const struct nvmft_ctrl *ctrl)
{
    struct nvmft_buffers *buffers = &qpair->shard->buffers;
    uint32_t host = ctrl == NULL ? buffers->share_count - 1 : ctrl->host;

    check(host < buffers->share_count);
    for (int class = 0; class < NVMFT_WAIT_COUNT; class ++)
        check(list_empty(&qpair->parked[class]));
    if (qpair->share != NULL) { /* all it has is the data of its Connect */
        check(qpair->share->bytes[NVMFT_WAIT_LOAD] >= qpair->buffer_bytes);
        qpair->share->bytes[NVMFT_WAIT_LOAD] -= qpair->buffer_bytes;
    }
    qpair->share = &buffers->shares[host];
    qpair->share->bytes[NVMFT_WAIT_LOAD] += qpair->buffer_bytes;
}

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

    if (class == NVMFT_WAIT_LOAD)
        return left;
    return buffers->store_bytes >= buffers->store_bytes_max
               ? 0
               : u64_min(left, buffers->store_bytes_max - buffers->store_bytes);
}

/* True when the queue pair or its host has its share already and has to wait for its own commands.
 */
static bool buffers_full(const struct nvmft_qpair *qpair, enum nvmft_wait_class class,
                         uint64_t bytes)
{
    const struct nvmft_buffers *buffers = &qpair->shard->buffers;
    uint64_t whole = bytes_align(bytes, NVMFT_POOL_PAGE);
    uint64_t held = qpair->share->bytes[class];

    if (qpair->buffer_bytes > 0 && qpair->buffer_bytes + bytes > buffers->qpair_bytes_max)
        return true;
    return held > 0 && held + 2 * whole > buffers_left(buffers, class);
}

static uint8_t *buffers_get(struct nvmft_qpair *qpair, enum nvmft_wait_class class, uint64_t bytes)
{
    struct nvmft_buffers *buffers = &qpair->shard->buffers;
    uint64_t whole = bytes_align(bytes, NVMFT_POOL_PAGE);
    uint8_t *memory;

    if (class == NVMFT_WAIT_STORE && buffers->store_bytes > 0 &&
        buffers->store_bytes + whole > buffers->store_bytes_max)
        return NULL;
    memory = nvmft_pool_take(&buffers->pool, bytes);
    if (memory == NULL)
        return NULL;
    qpair->buffer_bytes += whole;
    qpair->share->bytes[class] += whole;
    if (class == NVMFT_WAIT_STORE)
        buffers->store_bytes += whole;
    buffers_gauge(qpair->shard);
    return memory;
}

/* True when somebody of this class, or of one before it, waits already. */
static bool buffers_queue(const struct nvmft_buffers *buffers, enum nvmft_wait_class class)
{
    return !list_empty(&buffers->hungry[NVMFT_WAIT_LOAD]) ||
           (class == NVMFT_WAIT_STORE && !list_empty(&buffers->hungry[NVMFT_WAIT_STORE]));
}

uint8_t *nvmft_buffers_try(struct nvmft_qpair *qpair, enum nvmft_wait_class class, uint64_t bytes)
{
    if (buffers_queue(&qpair->shard->buffers, class) || buffers_full(qpair, class, bytes))
        return NULL;
    return buffers_get(qpair, class, bytes);
}

static void buffers_grant(struct nvmft_req *req, uint8_t *memory)
{
    check(req->buffer == NULL && memory != NULL);
    req->buffer = memory;
    req->buffer_bytes = bytes_align(req->buffer_bytes, NVMFT_POOL_PAGE);
}

bool nvmft_buffers_take(struct nvmft_req *req, enum nvmft_wait_class class, uint64_t bytes)
{
    struct nvmft_qpair *qpair = req->qpair;
    struct nvmft_shard *shard = qpair->shard;
    uint8_t *memory = NULL;

    check(bytes > 0 && bytes <= (uint64_t)shard->buffers.pool.pages * NVMFT_POOL_PAGE);
    req->wait_class = class;
    req->buffer_bytes = bytes;
    if (list_empty(&qpair->parked[class]))
        memory = nvmft_buffers_try(qpair, class, bytes);
    if (memory != NULL) {
        buffers_grant(req, memory);
        return true;
    }
    list_push(&qpair->parked[class], &req->link);
    if (list_empty(&qpair->hungry_link[class]))
        list_push(buffers_full(qpair, class, bytes) ? &qpair->share->waiting[class]
                                                    : &shard->buffers.hungry[class],
                  &qpair->hungry_link[class]);
    if (class == NVMFT_WAIT_STORE)
        shard->buffers.backlog_bytes += bytes;
    counter_add(&shard->counters.buffers_parks, 1);
    counter_add(&shard->counters.buffers_parked, 1);
    return false;
}

static void buffers_leave(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;
    struct nvmft_shard *shard = qpair->shard;

    check(req->buffer == NULL && !list_empty(&req->link));
    list_remove(&req->link);
    if (req->wait_class == NVMFT_WAIT_STORE) {
        check(shard->buffers.backlog_bytes >= req->buffer_bytes);
        shard->buffers.backlog_bytes -= req->buffer_bytes;
    }
    if (list_empty(&qpair->parked[req->wait_class]))
        list_remove(&qpair->hungry_link[req->wait_class]);
    counter_add(&shard->counters.buffers_parked, (uint64_t)-1);
}

/* Serves the first in turn of a class; false when it has to wait, or nobody is there. */
static bool buffers_serve(struct nvmft_buffers *buffers, enum nvmft_wait_class class)
{
    struct list *link = list_first(&buffers->hungry[class]);
    struct nvmft_qpair *qpair;
    struct nvmft_req *req;
    uint8_t *memory;

    if (link == NULL)
        return false;
    qpair = container_of(link, struct nvmft_qpair, hungry_link[class]);
    check(!list_empty(&qpair->parked[class]));
    req = container_of(list_first(&qpair->parked[class]), struct nvmft_req, link);
    if (buffers_full(qpair, class, req->buffer_bytes)) {
        list_remove(link); /* commands of its host bring it back */
        list_push(&qpair->share->waiting[class], link);
        return true;
    }
    memory = buffers_get(qpair, class, req->buffer_bytes);
    if (memory == NULL)
        return false;
    buffers_leave(req);
    if (!list_empty(&qpair->parked[class])) {
        list_remove(link);
        list_push(&buffers->hungry[class], link);
    }
    buffers_grant(req, memory);
    nvmft_req_run(req);
    return true;
}

/* The queue pairs of a host that waited for it stand in line again, as far as they may now. */
static void buffers_wake_host(struct nvmft_buffers *buffers, struct nvmft_share *share,
                              enum nvmft_wait_class class)
{
    list_for_each_safe (link, &share->waiting[class]) {
        struct nvmft_qpair *qpair = container_of(link, struct nvmft_qpair, hungry_link[class]);
        struct list *first = list_first(&qpair->parked[class]);

        check(first != NULL);
        if (buffers_full(qpair, class, container_of(first, struct nvmft_req, link)->buffer_bytes))
            continue;
        list_remove(link);
        list_push(&buffers->hungry[class], link);
    }
}

/* Memory came back to the pool from a queue pair. */
static void buffers_wake(struct nvmft_qpair *qpair)
{
    struct nvmft_buffers *buffers = &qpair->shard->buffers;

    for (int class = 0; class < NVMFT_WAIT_COUNT; class ++)
        buffers_wake_host(buffers, qpair->share, class);
    if (qpair->shard->waking)
        return; /* the loop below is running further up and sees it */
    qpair->shard->waking = true;
    for (;;) {
        if (buffers_serve(buffers, NVMFT_WAIT_LOAD))
            continue;
        if (!list_empty(&buffers->hungry[NVMFT_WAIT_LOAD]))
            break; /* a load waits for memory: stores must not take it away */
        if (!buffers_serve(buffers, NVMFT_WAIT_STORE))
            break;
    }
    qpair->shard->waking = false;
}

void nvmft_buffers_unpark(struct nvmft_req *req)
{
    buffers_leave(req);
    buffers_wake(req->qpair); /* it may have been the one that others waited behind */
}

void nvmft_buffers_give_raw(struct nvmft_qpair *qpair, enum nvmft_wait_class class, void *memory)
{
    struct nvmft_buffers *buffers = &qpair->shard->buffers;
    uint64_t bytes = nvmft_pool_give(&buffers->pool, memory);

    check(qpair->buffer_bytes >= bytes && qpair->share->bytes[class] >= bytes);
    qpair->buffer_bytes -= bytes;
    qpair->share->bytes[class] -= bytes;
    if (class == NVMFT_WAIT_STORE) {
        check(buffers->store_bytes >= bytes);
        buffers->store_bytes -= bytes;
    }
    buffers_gauge(qpair->shard);
    buffers_wake(qpair);
}

void nvmft_buffers_give(struct nvmft_req *req)
{
    uint8_t *memory = req->buffer;

    if (memory == NULL)
        return;
    req->buffer = NULL;
    if (!req->io.in_own) /* else the transport knows */
        nvmft_buffers_give_raw(req->qpair, req->wait_class, memory);
}
