/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relocation: the one block for which a segment lives is written again elsewhere, so that the
 * segment can be evicted.
 *
 *   store_relocate_for (reclaim is about to evict a victim) -> policy_is_held, policy_relocate
 *   -> store_read -> store_relocate_read -> store_write with only_record -> store_relocate_written
 *   -> policy_relocated: the segment is the next victim.
 *
 * Loop's thread. It is a client of the store that reads a block and replaces it by itself, one at a
 * time, and it may fail at any step: then the block is where it was, and is evicted with its
 * segment. So it adds no rule to what records mean. Reclaim does not wait for it: a write that
 * waits for capacity, which reclaim makes, waits here as any other.
 */
#include "store/store_int.h"

static void relocate_end(struct store *store)
{
    store->relocate.segment = NULL;
}

static void store_relocate_written(struct store_write *write)
{
    struct store *store = container_of(write, struct store, relocate.write);
    struct store_segment *segment = store->relocate.segment;

    relocate_end(store);
    if (write->err == ICMS_OK) {
        policy_relocated(&segment->recency, store_policy_hash(write->volume, &write->key));
        store->run(store);
    }
}

static void store_relocate_read(struct store_read *read)
{
    struct store *store = container_of(read, struct store, relocate.read);
    struct store_relocate *relocate = &store->relocate;

    relocate->write = (struct store_write){.volume = read->volume,
                                           .key = read->key,
                                           .memory = read->memory,
                                           .value_bytes = read->value_bytes,
                                           .only_record = read->record,
                                           .done = store_relocate_written};
    counter_add(&store->stats.reads, (uint64_t)-1); /* of the owner's */
    counter_add(&store->stats.read_bytes,
                -(uint64_t)(read->err == ICMS_OK ? read->value_bytes : 0));
    if (read->err != ICMS_OK || store_write(store, &relocate->write) != ICMS_OK)
        relocate_end(store); /* damaged, gone, or larger than values may be by now */
}

/* Of the segments of a stream that live for one block alone, if the victim does not, the one that
 * was accessed last; NULL: there is none. */
static struct store_segment *relocate_held(struct store *store, const struct store_segment *victim)
{
    struct store_segment *best = NULL;

    list_for_each (link, &store->streams[victim->stream].segments) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (segment->state == SEGMENT_SEALED &&
            policy_is_held(&segment->recency, &victim->recency) &&
            (best == NULL || policy_before(&best->recency, &segment->recency)))
            best = segment;
    }
    return best;
}

void store_relocate_for(struct store *store, const struct store_segment *victim)
{
    struct store_relocate *relocate = &store->relocate;
    struct store_segment *segment;
    struct store_location location;
    uint64_t read_ns = store->read_ns;

    if (relocate->segment != NULL || victim->stream == STORE_STRANGERS)
        return;
    segment = relocate_held(store, victim);
    if (segment == NULL ||
        !store_index_find(store->index, segment->last_volume, &segment->last_key, &location) ||
        location.damaged || location.segment != store_segment_number(store, segment) ||
        !policy_relocate(store->policy, (uint64_t)location.pages * STORE_PAGE_BYTES))
        return;
    relocate->segment = segment;
    relocate->read = (struct store_read){.volume = segment->last_volume,
                                         .key = segment->last_key,
                                         .memory = relocate->memory,
                                         .memory_bytes = store_record_bytes(store->value_bytes_max),
                                         .done = store_relocate_read};
    check(store_read(store, &relocate->read) == ICMS_OK);
    store->read_ns = read_ns; /* nobody waits for it: writes need not make way */
}
