/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills: records that were deleted, replaced, evicted for a quota, or whose write failed are marked
 * in the dead maps of their segments.
 *
 *   store_kill_add -> kill.waiting
 *   store_kill_run -> a batch: the dead map of each segment gets its bits and is written,
 *   store_kill_map_done -> when all are written: one flush of the device,
 *   store_kill_flushed  -> mutation->killed for each.
 *
 * Loop's thread. Invariants: a mutation is told that its record is dead when that is durable. The
 * life of a segment does not change while a kill of it is in a batch and not answered; a kill waits
 * while its segment gets a new life, which ends it. A drive whose map or flush fails again and
 * again goes out of service, because what was deleted could come back.
 */
#include "base/fault.h"
#include "store/store_int.h"

/* Whether the record is still the one that the index has, or had to get. */
static bool kill_needed(struct store_mutation *mutation)
{
    struct store *store = mutation->store;
    struct store_location location;

    if (mutation->placed && mutation->err != ICMS_OK)
        return true; /* its own record; its segment waits for it */
    return store_index_find(store->index, mutation->volume, &mutation->key, &location) &&
           location.segment == mutation->target.segment && location.page == mutation->target.page;
}

static void kill_done(struct list *link, icms_err err)
{
    struct store_mutation *mutation = container_of(link, struct store_mutation, link);

    mutation->killed(mutation, err);
}

static void kill_answer(struct store_kill_map *map, icms_err err)
{
    struct list *link;

    while ((link = list_pop(&map->mutations)) != NULL) {
        map->segment->kills--;
        kill_done(link, err);
    }
}

/* Puts the mutations of a map back into the queue: first, in their order. */
static void kill_retry(struct store *store, struct store_kill_map *map)
{
    while (!list_empty(&map->mutations)) {
        struct list *last = map->mutations.prev;

        list_remove(last);
        list_push_front(&store->kill.waiting, last);
        map->segment->kills--;
    }
}

static void kill_go_on(struct store *store)
{
    store->kill.busy = false;
    store->run(store);
}

/* The batch ended: answers what succeeded; what did not is tried again. */
static void kill_batch_end(struct store *store, icms_err err)
{
    struct store_kill *kill = &store->kill;
    uint32_t count = kill->count;
    bool no_space = err == ICMS_NO_SPACE, failed = err != ICMS_OK && !no_space;

    for (uint32_t i = 0; i < count; i++) {
        no_space = no_space || kill->map[i].err == ICMS_NO_SPACE;
        failed = failed || (kill->map[i].err != ICMS_OK && kill->map[i].err != ICMS_NO_SPACE);
    }
    if (failed || !no_space)
        kill->attempts = failed ? kill->attempts + 1 : 0;
    for (uint32_t i = count; i > 0; i--) {
        if (err != ICMS_OK || kill->map[i - 1].err != ICMS_OK)
            kill_retry(store, &kill->map[i - 1]);
    }
    if (kill->attempts >= STORE_ATTEMPTS)
        store_down(store);
    for (uint32_t i = 0; i < count; i++)
        kill_answer(&kill->map[i], ICMS_OK);
    if (no_space && !store->down)
        store_retry_later(store, &kill->retry, kill_go_on);
    else
        kill_go_on(store);
}

static void kill_flush_end(struct store *store, icms_err err)
{
    store_overhead_outcome(store, err, "flush of dead maps", STORE_ERROR_NOWHERE);
    kill_batch_end(store, err);
}

static void store_kill_flushed(struct loop_op *op)
{
    kill_flush_end(container_of(op, struct store, kill.op), op->err);
}

static void store_kill_flush_fault(struct store_deferred *deferred)
{
    kill_flush_end(container_of(deferred, struct store, kill.deferred), ICMS_IO);
}

static void kill_map_end(struct store_kill_map *map, icms_err err)
{
    struct store *store = map->store;
    struct store_kill *kill = &store->kill;

    map->err = err;
    if (--kill->in_flight > 0)
        return;
    if (fault_hit("store.kill_flush"))
        store_defer(store, &kill->deferred, store_kill_flush_fault);
    else
        loop_file_flush(store->loop, &kill->op, store->file, store_kill_flushed);
}

static void kill_map_written(struct store_kill_map *map, icms_err err)
{
    struct store *store = map->store;

    if (err == ICMS_OK)
        store_overhead_written(store, (uint64_t)store->map_pages * STORE_PAGE_BYTES);
    store_overhead_outcome(
        store, err, "write of a dead map",
        store_segment_offset(store, store_segment_number(store, map->segment), 1));
    kill_map_end(map, err);
}

static void store_kill_map_done(struct loop_op *op)
{
    kill_map_written(container_of(op, struct store_kill_map, op), op->err);
}

static void store_kill_map_fault(struct store_deferred *deferred)
{
    kill_map_written(container_of(deferred, struct store_kill_map, deferred), ICMS_IO);
}

static void kill_map_write(struct store_kill_map *map)
{
    struct store *store = map->store;
    struct store_dead_df *dead = store_segment_dead(store, map->segment);

    list_for_each (link, &map->mutations) {
        struct store_mutation *mutation = container_of(link, struct store_mutation, link);

        store_dead_set(map->segment->nonce, mutation->target.page,
                       mutation->kind == MUTATION_EVICT && !mutation->target.damaged, dead);
    }
    store_dead_save(store->segment_pages, dead, map->pages);
    if (fault_hit("store.kill"))
        store_defer(store, &map->deferred, store_kill_map_fault);
    else
        loop_file_write_stream(
            store->loop, &map->op, store->file, store_segment_hint(store, map->segment),
            store_segment_offset(store, store_segment_number(store, map->segment), 1), map->pages,
            store->map_pages * STORE_PAGE_BYTES, store_kill_map_done);
}

/* The map of the mutation's segment in the batch that is being made; NULL: the batch is full. */
static struct store_kill_map *kill_map(struct store *store, struct store_segment *segment)
{
    struct store_kill *kill = &store->kill;

    for (uint32_t i = 0; i < kill->count; i++) {
        if (kill->map[i].segment == segment)
            return &kill->map[i];
    }
    if (kill->count == STORE_KILL_SEGMENTS)
        return NULL;
    kill->map[kill->count].segment = segment;
    kill->map[kill->count].err = ICMS_OK;
    return &kill->map[kill->count++];
}

/* Sorts what waits into maps; what has to wait longer stays. */
static void kill_batch_make(struct store *store, struct list *moot)
{
    struct list all;
    struct list *link;

    list_init(&all);
    while ((link = list_pop(&store->kill.waiting)) != NULL)
        list_push(&all, link);
    while ((link = list_pop(&all)) != NULL) {
        struct store_mutation *mutation = container_of(link, struct store_mutation, link);
        struct store_segment *segment = &store->segments[mutation->target.segment];
        struct store_kill_map *map;

        if (!kill_needed(mutation)) {
            list_push(moot, link);
            continue;
        }
        map = segment->state != SEGMENT_RENEWING ? kill_map(store, segment) : NULL;
        segment->kills += map != NULL;
        list_push(map != NULL ? &map->mutations : &store->kill.waiting, link);
    }
}

void store_kill_run(struct store *store)
{
    struct store_kill *kill = &store->kill;
    struct list moot;
    struct list *link;

    if (kill->busy || list_empty(&kill->waiting))
        return;
    list_init(&moot);
    kill->busy = true;
    kill->count = 0;
    if (store->down) {
        while ((link = list_pop(&kill->waiting)) != NULL)
            list_push(&moot, link);
    } else {
        kill_batch_make(store, &moot);
    }
    kill->in_flight = kill->count;
    kill->busy = kill->count > 0;
    for (uint32_t i = 0; i < kill->in_flight; i++)
        kill_map_write(&kill->map[i]);
    while ((link = list_pop(&moot)) != NULL)
        kill_done(link, store->down ? ICMS_DRIVE_DOWN : ICMS_OK);
}

void store_kill_add(struct store_mutation *mutation)
{
    list_push(&mutation->store->kill.waiting, &mutation->link);
    mutation->store->run(mutation->store);
}

icms_err store_kill_write_now(struct store *store, const struct store_segment *segment)
{
    size_t bytes = (size_t)store->map_pages * STORE_PAGE_BYTES;
    void *pages = store->kill.map[0].pages;

    store_dead_save(store->segment_pages, store_segment_dead(store, segment), pages);
    store_overhead_written(store, bytes);
    return loop_file_write_now(store->file,
                               store_segment_offset(store, store_segment_number(store, segment), 1),
                               pages, bytes);
}
