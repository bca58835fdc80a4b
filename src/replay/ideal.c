/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ideal caches of a replay: lru, s3-fifo and belady. They hold single blocks, so they write
 * each admitted block once and nothing else. Called by replay_run.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "replay/replay_int.h"

/* ---- what they share ---------------------------------------------------------------------------
 */

struct queue {
    uint32_t newest, oldest; /* ends; REPLAY_NONE: empty */
    uint64_t count;          /* blocks                   */
};

struct ideal {
    struct replay_link *links; /* by block                                               */
    uint8_t *where;            /* by block: 0 not there, else which queue                */
    uint8_t *reads;            /* s3-fifo: by block, 0..3                                */
    uint64_t *ghost;           /* s3-fifo: by block: its number among those evicted      */
    uint64_t ghosts;           /* s3-fifo: evicted from the small queue so far           */
    uint64_t *next;            /* belady: by place in one loop: when it is wanted again  */
    uint64_t *wanted;          /* belady: by block                                       */
    struct want *heap;         /* belady: the block wanted last is the first             */
    uint64_t heap_count;       /* in heap                                                */
    uint64_t capacity;         /* blocks                                                 */
    uint64_t count;            /* blocks that are there                                  */
    struct queue queue[3];     /* [1] small or only, [2] main                            */
};

/* A block and when it is wanted again. */
struct want {
    uint64_t at;    /* place; UINT64_MAX: never */
    uint32_t block; /* which                    */
};

static void ideal_free(void *cache)
{
    struct ideal *ideal = cache;

    if (ideal == NULL)
        return;
    free(ideal->links);
    free(ideal->where);
    free(ideal->reads);
    free(ideal->ghost);
    free(ideal->next);
    free(ideal->wanted);
    free(ideal->heap);
    free(ideal);
}

static icms_err ideal_new(const struct replay *replay, struct err_why *why, void **out_cache)
{
    struct ideal *ideal = calloc(1, sizeof(*ideal));

    if (ideal == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a cache");
    *out_cache = ideal;
    ideal->capacity = replay->setup->capacity_blocks;
    ideal->where = calloc(replay->block_count, sizeof(ideal->where[0]));
    ideal->links = calloc(replay->block_count, sizeof(ideal->links[0]));
    ideal->reads = calloc(replay->block_count, sizeof(ideal->reads[0]));
    ideal->ghost = calloc(replay->block_count, sizeof(ideal->ghost[0]));
    for (int i = 0; i < 3; i++)
        ideal->queue[i] = (struct queue){.newest = REPLAY_NONE, .oldest = REPLAY_NONE};
    if (ideal->where == NULL || ideal->links == NULL || ideal->reads == NULL ||
        ideal->ghost == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a cache of %llu blocks",
                       (unsigned long long)ideal->capacity);
    if (ideal->capacity < 16)
        return err_set(why, ICMS_INVALID, "a capacity of %llu blocks is too small for a replay",
                       (unsigned long long)ideal->capacity);
    return ICMS_OK;
}

static bool ideal_has(const void *cache, uint32_t block)
{
    const struct ideal *ideal = cache;

    return ideal->where[block] != 0;
}

static void ideal_admitted(struct replay *replay)
{
    replay->result->admitted_bytes += replay->setup->block_bytes;
    replay->result->written_bytes += replay->setup->block_bytes;
}

static void queue_push(struct ideal *ideal, uint8_t which, uint32_t block)
{
    struct queue *queue = &ideal->queue[which];

    ideal->where[block] = which;
    ideal->links[block] = (struct replay_link){.newer = REPLAY_NONE, .older = queue->newest};
    if (queue->newest != REPLAY_NONE)
        ideal->links[queue->newest].newer = block;
    else
        queue->oldest = block;
    queue->newest = block;
    queue->count++;
    ideal->count++;
}

static void queue_remove(struct ideal *ideal, uint32_t block)
{
    struct queue *queue = &ideal->queue[ideal->where[block]];
    struct replay_link *link = &ideal->links[block];

    if (link->newer != REPLAY_NONE)
        ideal->links[link->newer].older = link->older;
    else
        queue->newest = link->older;
    if (link->older != REPLAY_NONE)
        ideal->links[link->older].newer = link->newer;
    else
        queue->oldest = link->newer;
    ideal->where[block] = 0;
    queue->count--;
    ideal->count--;
}

/* ---- lru ---------------------------------------------------------------------------------------
 */

static void lru_offer(void *cache, struct replay *replay, uint32_t block)
{
    struct ideal *ideal = cache;

    if (ideal->where[block] != 0) {
        queue_remove(ideal, block);
    } else {
        ideal_admitted(replay);
        if (ideal->count == ideal->capacity)
            queue_remove(ideal, ideal->queue[1].oldest);
    }
    queue_push(ideal, 1, block);
}

const struct replay_cache replay_lru = {
    .new = ideal_new, .free = ideal_free, .has = ideal_has, .offer = lru_offer};

/* ---- s3-fifo -----------------------------------------------------------------------------------
 * Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction (SOSP 2023): a
 * small queue of a tenth, a main queue in which read blocks go round again, and a memory of what
 * left the small queue, as long as the main queue.
 */

static void s3_evict_small(struct ideal *ideal)
{
    uint32_t block = ideal->queue[1].oldest;

    queue_remove(ideal, block);
    if (ideal->reads[block] > 1) {
        ideal->reads[block] = 0;
        queue_push(ideal, 2, block);
        return;
    }
    ideal->ghost[block] = ++ideal->ghosts;
}

static void s3_evict_main(struct ideal *ideal)
{
    for (;;) {
        uint32_t block = ideal->queue[2].oldest;

        queue_remove(ideal, block);
        if (ideal->reads[block] == 0)
            return;
        ideal->reads[block]--;
        queue_push(ideal, 2, block);
    }
}

static void s3_offer(void *cache, struct replay *replay, uint32_t block)
{
    struct ideal *ideal = cache;
    bool remembered;

    if (ideal->where[block] != 0) {
        if (ideal->reads[block] < 3)
            ideal->reads[block]++;
        return;
    }
    while (ideal->count >= ideal->capacity) {
        if (ideal->queue[1].count > ideal->capacity / 10 || ideal->queue[2].count == 0)
            s3_evict_small(ideal);
        else
            s3_evict_main(ideal);
    }
    remembered = ideal->ghost[block] != 0 &&
                 ideal->ghosts - ideal->ghost[block] < ideal->capacity - ideal->capacity / 10;
    ideal->ghost[block] = 0;
    ideal->reads[block] = 0;
    ideal_admitted(replay);
    queue_push(ideal, remembered ? 2 : 1, block);
}

const struct replay_cache replay_s3fifo = {
    .new = ideal_new, .free = ideal_free, .has = ideal_has, .offer = s3_offer};

/* ---- belady ------------------------------------------------------------------------------------
 * The block that is wanted last goes, be it the one that is offered: no cache has more block hits.
 */

/* For each place in one loop of the trace: the place where its block is offered again. */
static bool belady_look_ahead(struct ideal *ideal, const struct replay_trace *trace)
{
    uint64_t *last = malloc(trace->block_count * sizeof(last[0]));
    uint64_t at = trace->ref_count;

    ideal->next = malloc(trace->ref_count * sizeof(ideal->next[0]));
    if (last == NULL || ideal->next == NULL) {
        free(last);
        return false;
    }
    memset(last, 0xff, trace->block_count * sizeof(last[0]));
    for (uint32_t r = trace->request_count; r-- > 0;) {
        const struct replay_request *request = &trace->requests[r];

        for (uint32_t i = 0; i < request->count; i++) { /* offered last first */
            uint32_t block = trace->refs[request->first + i];

            ideal->next[--at] = last[block];
            last[block] = at;
        }
    }
    check(at == 0);
    free(last);
    return true;
}

static icms_err belady_new(const struct replay *replay, struct err_why *why, void **out_cache)
{
    icms_err err = ideal_new(replay, why, out_cache);
    struct ideal *ideal = *out_cache;

    if (err != ICMS_OK)
        return err;
    ideal->wanted = calloc(replay->block_count, sizeof(ideal->wanted[0]));
    ideal->heap =
        malloc((uint64_t)replay->setup->loops * replay->trace->ref_count * sizeof(ideal->heap[0]));
    if (ideal->wanted == NULL || ideal->heap == NULL || !belady_look_ahead(ideal, replay->trace))
        return err_set(why, ICMS_NO_MEMORY, "no memory to look ahead in the trace");
    return ICMS_OK;
}

static void heap_push(struct ideal *ideal, struct want want)
{
    uint64_t at = ideal->heap_count++;

    while (at > 0 && ideal->heap[(at - 1) / 2].at < want.at) {
        ideal->heap[at] = ideal->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    ideal->heap[at] = want;
}

static struct want heap_pop(struct ideal *ideal)
{
    struct want first = ideal->heap[0], last = ideal->heap[--ideal->heap_count];
    uint64_t at = 0, child;

    while ((child = 2 * at + 1) < ideal->heap_count) {
        if (child + 1 < ideal->heap_count && ideal->heap[child + 1].at > ideal->heap[child].at)
            child++;
        if (ideal->heap[child].at <= last.at)
            break;
        ideal->heap[at] = ideal->heap[child];
        at = child;
    }
    ideal->heap[at] = last;
    return first;
}

static void belady_offer(void *cache, struct replay *replay, uint32_t block)
{
    struct ideal *ideal = cache;
    uint64_t loop_at = replay->at - replay->at % replay->trace->ref_count;
    uint64_t next = ideal->next[replay->at - loop_at];
    bool there = ideal->where[block] != 0;

    ideal->wanted[block] = next == UINT64_MAX ? next : loop_at + next;
    ideal->count += !there;
    ideal->where[block] = 1;
    heap_push(ideal, (struct want){.at = ideal->wanted[block], .block = block});
    while (ideal->count > ideal->capacity) {
        struct want want = heap_pop(ideal);

        if (ideal->where[want.block] == 0 || ideal->wanted[want.block] != want.at)
            continue; /* of an earlier time */
        ideal->where[want.block] = 0;
        ideal->count--;
    }
    if (!there && ideal->where[block] != 0)
        ideal_admitted(replay);
}

const struct replay_cache replay_belady = {
    .new = belady_new, .free = ideal_free, .has = ideal_has, .offer = belady_offer};
