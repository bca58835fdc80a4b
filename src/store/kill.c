/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills: records that were deleted, replaced, evicted for a quota, or whose write failed are marked
 * in the dead maps of their segments.
 *
 *   store_kill_add -> kill.waiting
 *   store_kill_run -> a batch: the dead map of each segment gets its bits and is written, and the
 *                     device is flushed once (meta.c), and once before if a record was replaced,
 *   store_kill_done -> mutation->killed for each.
 *
 * Loop's thread. Invariants: a mutation is told that its record is dead when that is durable. A
 * record that was replaced is not marked before the one that replaces it is durable: else a power
 * cut could leave neither. The life of a segment does not change while a kill of it is in a batch
 * and not answered; a kill waits while its segment gets a new life, which ends it. A drive whose
 * maps cannot be written goes out of service, because what was deleted could come back.
 */
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

static void kill_answer(struct list *link, icms_err err)
{
    struct store_mutation *mutation = container_of(link, struct store_mutation, link);

    mutation->killed(mutation, err);
}

/* The batch is durable, or the drive is out of service. */
static void store_kill_done(struct store_meta *meta, icms_err err)
{
    struct store_kill *kill = container_of(meta, struct store_kill, meta);
    struct store *store = meta->store;

    for (uint32_t i = 0; i < kill->count; i++) {
        struct store_kill_map *map = &kill->map[i];
        struct list *link;

        while ((link = list_pop(&map->mutations)) != NULL) {
            map->segment->kills--;
            kill_answer(link, err);
        }
    }
    kill->busy = false;
    store->run(store);
}

/* Sets the bits of a map, and makes its write. */
static void kill_map_make(struct store *store, uint32_t i)
{
    const struct store_kill_map *map = &store->kill.map[i];
    struct store_dead_df *dead = store_segment_dead(store, map->segment);

    list_for_each (link, &map->mutations) {
        struct store_mutation *mutation = container_of(link, struct store_mutation, link);

        store_dead_set(map->segment->nonce, mutation->target.page,
                       mutation->kind == MUTATION_EVICT && !mutation->target.damaged, dead);
    }
    store_dead_save(store->segment_pages, dead, map->pages);
    store->kill.write[i] =
        (struct store_meta_write){.offset = store_segment_offset(store, map->segment, 1),
                                  .memory = map->pages,
                                  .bytes = store->map_pages * STORE_PAGE_BYTES,
                                  .hint = store_segment_hint(store, map->segment)};
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
    return &kill->map[kill->count++];
}

/* Sorts what waits into maps; what has to wait longer stays. */
static void kill_batch_make(struct store *store, struct list *moot)
{
    struct store_kill *kill = &store->kill;
    struct list all;
    struct list *link;

    list_init(&all);
    while ((link = list_pop(&store->kill.waiting)) != NULL)
        list_push(&all, link);
    while ((link = list_pop(&all)) != NULL) {
        struct store_mutation *mutation = container_of(link, struct store_mutation, link);
        struct store_segment *segment = &store->segments[mutation->target.segment];
        struct store_kill_map *map;

        if (store->down || !kill_needed(mutation)) {
            list_push(moot, link);
            continue;
        }
        map = segment->state != SEGMENT_RENEWING ? kill_map(store, segment) : NULL;
        segment->kills += map != NULL;
        kill->replaces |= map != NULL && mutation->placed && mutation->err == ICMS_OK;
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
    kill->replaces = false;
    kill->count = 0;
    kill_batch_make(store, &moot);
    kill->busy = kill->count > 0;
    for (uint32_t i = 0; i < kill->count; i++)
        kill_map_make(store, i);
    if (kill->busy) {
        kill->meta = (struct store_meta){.what = "write of a dead map",
                                         .flush_first = kill->replaces,
                                         .fault = "store.kill",
                                         .flush_fault = "store.kill_flush",
                                         .writes = kill->write,
                                         .count = kill->count,
                                         .flush = true,
                                         .done = store_kill_done};
        store_meta_start(store, &kill->meta);
    }
    while ((link = list_pop(&moot)) != NULL)
        kill_answer(link, store->down ? ICMS_DRIVE_DOWN : ICMS_OK);
}

void store_kill_add(struct store_mutation *mutation)
{
    list_push(&mutation->store->kill.waiting, &mutation->link);
    mutation->store->run(mutation->store);
}
