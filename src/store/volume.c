/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes of a drive: 64 slots, taken by what recovery finds on flash and by store_volume_add.
 *
 * A slot that was found and not added is a volume nobody may see; its segments are reclaimed first.
 * Slot numbers are the volume numbers of the interface and change from one open to the next; on
 * flash a volume is its uuid. Before the loop starts.
 */
#include <stdlib.h>

#include "base/hash.h"
#include "store/store_int.h"

int store_volume_slot_find(const struct store *store, const struct uuid *uuid)
{
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        if (store->volumes[i].used && uuid_equal(&store->volumes[i].uuid, uuid))
            return (int)i;
    }
    return -1;
}

int store_volume_slot(struct store *store, const struct uuid *uuid)
{
    int slot = store_volume_slot_find(store, uuid);

    for (uint32_t i = 0; slot < 0 && i < LIMIT_VOLUMES; i++) {
        if (!store->volumes[i].used) {
            store->volumes[i].used = true;
            store->volumes[i].uuid = *uuid;
            store->salts[i] = hash64_seed(uuid->bytes, sizeof(uuid->bytes), store->hash_seed);
            slot = (int)i;
        }
    }
    return slot;
}

/* Puts a segment where it belongs by age. */
static void volume_segment_insert(struct store *store, struct store_segment *segment)
{
    struct store_stream *stream = &store->streams[segment->stream];
    struct list *before = stream->segments.prev;

    while (before != &stream->segments &&
           container_of(before, struct store_segment, link)->sequence > segment->sequence)
        before = before->prev;
    list_insert(before, &segment->link);
    stream->segment_count++;
}

/* Forgets a volume that was found and that nobody asked for, so that its slot can be used. */
static void volume_slot_drop(struct store *store, uint32_t slot)
{
    struct store_stream *from = &store->streams[slot];
    struct store_block block;
    struct store_spot old;
    uint32_t cursor = 0;

    while (!list_empty(&from->segments)) {
        struct store_segment *segment =
            container_of(list_pop(&from->segments), struct store_segment, link);

        from->segment_count--;
        segment->stream = STORE_SHARED;
        volume_segment_insert(store, segment);
    }
    while (store_index_next(store->index, &cursor, UINT32_MAX, &block)) {
        if (block.volume == slot) {
            check(store_index_remove(store->index, slot, &block.key, &old));
            store_segment_live_sub(store, slot, &old);
            store->dropped = true;
        }
    }
    for (uint32_t i = 0; i < store->super.segments; i++) {
        store->segments[i].present &= ~store_volume_bit(slot);
        store->segments[i].live &= ~store_volume_bit(slot);
        store->segments[i].hides &= ~store_volume_bit(slot);
        store->segments[i].covers &= ~store_volume_bit(slot);
        store_segment_partial_end(store, &store->segments[i], store_volume_bit(slot));
        for (uint32_t n = store->segments[i].evicted; n != 0; n = store->evicted[n].next) {
            if (store->evicted[n].volume == slot)
                store->evicted[n].volume = LIMIT_VOLUMES;
        }
    }
    store->volumes[slot].used = false;
    store->volumes[slot].evictions_final = 0;
    store_stat_set(&store->volumes[slot].evictions, 0);
}

/* A slot nobody asked for: the one with the fewest blocks; -1: all are added. */
static int volume_slot_unasked(const struct store *store)
{
    int best = -1;

    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        if (!store->volumes[i].added &&
            (best < 0 || store->volumes[i].blocks < store->volumes[best].blocks))
            best = (int)i;
    }
    return best;
}

/* ---- a quota that is exceeded from the start --------------------------------------------------
 */

/* How far a volume has to be cut: everything in segments older than sequence goes, and in that one
 * what lies up to page. */
struct volume_cut {
    uint64_t sequence; /* of the segment       */
    uint32_t page;     /* in it: the last to go */
};

/* The smallest sequence so that segments up to it hold at least over bytes; *out_rest: how many of
 * those bytes that one has to give. */
static uint64_t volume_cut_sequence(const struct store *store, const uint64_t *held, uint64_t over,
                                    uint64_t *out_rest)
{
    uint64_t low = 0, high = 0, below;

    for (uint32_t i = 0; i < store->super.segments; i++)
        high = u64_max(high, store->segments[i].sequence);
    while (low < high) {
        uint64_t middle = low + (high - low) / 2, sum = 0;

        for (uint32_t i = 0; i < store->super.segments; i++)
            sum += store->segments[i].sequence <= middle ? held[i] : 0;
        if (sum >= over)
            high = middle;
        else
            low = middle + 1;
    }
    below = 0;
    for (uint32_t i = 0; i < store->super.segments; i++)
        below += store->segments[i].sequence < low ? held[i] : 0;
    check(below < over);
    *out_rest = over - below;
    return low;
}

/* held: zeros, by segment; pages: zeros, by page of a segment. */
static struct volume_cut volume_cut_find(const struct store *store, uint32_t slot, uint64_t over,
                                         uint64_t *held, uint64_t *pages)
{
    struct volume_cut cut = {.page = 0};
    struct store_block block;
    uint32_t cursor = 0;
    uint64_t rest;

    while (store_index_next(store->index, &cursor, UINT32_MAX, &block)) {
        if (block.volume == slot && !block.spot.damaged)
            held[block.spot.segment] += (uint64_t)block.spot.pages * STORE_PAGE_BYTES;
    }
    cut.sequence = volume_cut_sequence(store, held, over, &rest);
    cursor = 0;
    /* on a damaged drive two segments may be of one age, and two blocks in one page */
    while (store_index_next(store->index, &cursor, UINT32_MAX, &block)) {
        if (block.volume == slot && !block.spot.damaged &&
            store->segments[block.spot.segment].sequence == cut.sequence)
            pages[block.spot.page] += (uint64_t)block.spot.pages * STORE_PAGE_BYTES;
    }
    for (; pages[cut.page] < rest; cut.page++)
        rest -= pages[cut.page];
    return cut;
}

/* Evicts the oldest blocks of a volume that holds more than its quota: that was larger before, or
 * what had been evicted from segments that others still need came back with a crash. */
static icms_err volume_trim(struct store *store, uint32_t slot)
{
    struct store_volume *volume = &store->volumes[slot];
    struct volume_cut cut;
    struct store_block block;
    uint64_t *held, *pages;
    uint32_t cursor = 0;

    if (volume->quota_bytes == 0 || volume->bytes <= volume->quota_bytes)
        return ICMS_OK;
    held = calloc(store->super.segments, sizeof(*held));
    pages = calloc(store->segment_pages, sizeof(*pages));
    if (held == NULL || pages == NULL) {
        free(held);
        free(pages);
        return ICMS_NO_MEMORY;
    }
    cut = volume_cut_find(store, slot, volume->bytes - volume->quota_bytes, held, pages);
    free(held);
    free(pages);
    while (store_index_next(store->index, &cursor, UINT32_MAX, &block)) {
        uint64_t sequence = store->segments[block.spot.segment].sequence;

        if (block.volume == slot &&
            (sequence < cut.sequence || (sequence == cut.sequence && block.spot.page <= cut.page)))
            store_segment_evict(store, &block);
    }
    check(volume->bytes <= volume->quota_bytes);
    return ICMS_OK;
}

/* ---- the call ---------------------------------------------------------------------------------
 */

/* Whether a volume of this quota gets a stream of its own. */
static bool volume_may_own(const struct store *store, uint64_t quota_bytes)
{
    uint32_t own = 0;

    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++)
        own += store->volumes[i].own;
    return own < store->super.segments / STORE_SEGMENTS_A_STREAM &&
           (quota_bytes == 0 || quota_bytes >= STORE_OWN_SEGMENTS_MIN * store->super.segment_bytes);
}

/* Each stream of segments has a write stream of the device, as far as there are so many; they take
 * turns where there are fewer. */
static void volume_hints(struct store *store)
{
    uint32_t count = loop_file_streams(store->file), next = 1;

    if (count == 0)
        return;
    store->streams[STORE_SHARED].hint = 1;
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        if (store->volumes[i].own)
            store->streams[i].hint = 1 + next++ % count;
    }
}

icms_err store_volume_add(struct store *store, const struct uuid *uuid, uint64_t quota_bytes,
                          struct err_why *why, uint32_t *out_volume)
{
    char text[UUID_TEXT_BYTES];
    int slot = store_volume_slot_find(store, uuid);
    struct store_volume *volume;

    check(store->magic == STORE_MAGIC);
    if (slot >= 0 && store->volumes[slot].added)
        return err_set(why, ICMS_EXISTS, "volume %s was added already", uuid_format(uuid, text));
    if (slot < 0) {
        slot = store_volume_slot(store, uuid);
        if (slot < 0) {
            slot = volume_slot_unasked(store);
            if (slot < 0)
                return err_set(why, ICMS_LIMIT, "a drive holds %d volumes at most: volume %s",
                               LIMIT_VOLUMES, uuid_format(uuid, text));
            volume_slot_drop(store, (uint32_t)slot);
            slot = store_volume_slot(store, uuid);
            check(slot >= 0);
        }
    }
    volume = &store->volumes[slot];
    volume->own = volume_may_own(store, quota_bytes);
    if (volume->own && !(store_summary_pool_add(store) && store_summary_pool_add(store))) {
        volume->own = false;
        return err_set(why, ICMS_NO_MEMORY, "no memory for volume %s", uuid_format(uuid, text));
    }
    volume->added = true;
    volume->quota_bytes = quota_bytes;
    if (volume_trim(store, (uint32_t)slot) != ICMS_OK) {
        volume->added = false;
        return err_set(why, ICMS_NO_MEMORY, "no memory for volume %s", uuid_format(uuid, text));
    }
    store->volumes_added++;
    volume_hints(store);
    *out_volume = (uint32_t)slot;
    return ICMS_OK;
}
