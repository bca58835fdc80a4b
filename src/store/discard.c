/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Discarding: the device is told which segments are free, a batch at a time, so that it need not
 * keep what they held until they are written over.
 *
 *   store_discard_kick (store_pump asks) -> discard_take -> discard_run, a step at a time
 *     -> store_discard_done -> discard_run ... -> discard_end: FREE again, and clean
 *
 * Loop's thread; one batch at a time, one operation at a time, STORE_DISCARD_PAUSE_NS between two
 * batches. Only what the opener can do without is taken: it never waits for a device that is slow
 * at this, except, until the headers are durable, for a segment that hides what the batch held.
 * Invariants: a segment gets a whole life with no records in it first, header and footer,
 * by the rules of segment.c, and only what lies between them is discarded. So what a discarded page
 * reads as is never looked at, an open has nothing to scan, and the evictions of what was there are
 * in the counters. Pages of the superblock are never discarded. A file has nothing to give back: it
 * keeps the room it was promised.
 */
#include "store/store_int.h"

/* Whether so many may be taken away from the opener. */
static bool discard_spare(const struct store *store, uint32_t count)
{
    return store->free_count >= store->free_low_mark + count;
}

/* Segments a batch has: what the reserve has above the mark. */
static uint32_t discard_want(const struct store *store)
{
    uint32_t spare = store->free_reserve - store->free_low_mark;

    return spare < 1 ? 1 : spare < STORE_DISCARD_BATCH ? spare : STORE_DISCARD_BATCH;
}

/* Those that can be taken, in the order they were freed, into the batch; returns how many. As in
 * the opener, one that hides others is not taken before those in front of it, nor while the opener
 * has one that still has its old life. */
static uint32_t discard_look(const struct store *store, struct store_segment **batch, uint32_t most)
{
    uint32_t count = 0;
    bool passed = store_opener_before(store);

    list_for_each (link, &store->free) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (segment->clean || segment->sequence == 0)
            continue; /* nothing there that the device keeps */
        if (count == most)
            break;
        if (segment->pins > 0 || (passed && segment->hides != 0))
            passed = true;
        else
            batch[count++] = segment;
    }
    return count;
}

bool store_discard_before(const struct store *store)
{
    return store->discard.count > 0 && store->discard.step <= DISCARD_FLUSH;
}

/* Gives back the batch: its order in front of all others is kept. */
static void discard_end(struct store *store)
{
    struct store_discard *discard = &store->discard;
    uint32_t count = discard->count;

    discard->count = 0;
    discard->next_ns = loop_now_ns(store->loop) + STORE_DISCARD_PAUSE_NS;
    for (uint32_t i = count; i > 0; i--) {
        discard->batch[i - 1]->state = SEGMENT_FREE;
        list_push_front(&store->free, &discard->batch[i - 1]->link);
    }
    store_free_count_set(store, store->free_count + count);
    store_pump(store);
}

static void store_discard_done(struct loop_op *op);

static void discard_write(struct store *store, uint32_t page)
{
    struct store_discard *discard = &store->discard;
    uint32_t number = store_segment_number(store, discard->batch[discard->at]);

    loop_file_write(store->loop, &discard->op, store->file,
                    store_segment_offset(store, number, page), discard->page, STORE_PAGE_BYTES,
                    store_discard_done);
}

/* Starts the step; those that are not needed are passed over. */
static void discard_run(struct store *store)
{
    struct store_discard *discard = &store->discard;
    struct store_segment *segment = discard->batch[discard->at];

    if (discard->step == DISCARD_FLUSH_BEFORE && segment->hides == 0 &&
        segment->moved <= store->flushed)
        discard->step++;
    switch ((enum store_discard_step)discard->step) {
    case DISCARD_FLUSH_BEFORE:
    case DISCARD_FLUSH:
        discard->flush = store_flush_begin(store);
        loop_file_flush(store->loop, &discard->op, store->file, store_discard_done);
        break;
    case DISCARD_HEADER:
        store_life_begin(store, segment, discard->page);
        discard_write(store, 0);
        break;
    case DISCARD_FOOTER:
        store_life_end(store, segment, 0, discard->page);
        discard_write(store, store->segment_pages - 1);
        break;
    case DISCARD_DEVICE:
        loop_file_discard(store->loop, &discard->op, store->file,
                          store_segment_offset(store, store_segment_number(store, segment), 1),
                          (store->segment_pages - 2) * STORE_PAGE_BYTES, store_discard_done);
        break;
    }
}

/* What comes after a step that succeeded; false: nothing. */
static bool discard_next(struct store *store)
{
    struct store_discard *discard = &store->discard;
    bool last = discard->at + 1 == discard->count;

    switch ((enum store_discard_step)discard->step) {
    case DISCARD_FLUSH_BEFORE:
    case DISCARD_FOOTER:
        discard->step++;
        break;
    case DISCARD_HEADER:
        discard->step = last ? DISCARD_FLUSH : DISCARD_FLUSH_BEFORE;
        discard->at += !last;
        break;
    case DISCARD_FLUSH:
        for (uint32_t i = 0; i < discard->count; i++)
            store_life_begun(store, discard->batch[i]);
        discard->step = DISCARD_FOOTER;
        discard->at = 0;
        store_opener_kick(store); /* for one that hides what these held */
        break;
    case DISCARD_DEVICE:
        discard->batch[discard->at]->clean = true;
        store_stat_add(&store->stats.discarded_bytes,
                       (uint64_t)(store->segment_pages - 2) * STORE_PAGE_BYTES);
        if (last)
            return false;
        discard->step = DISCARD_FOOTER;
        discard->at++;
        break;
    }
    return true;
}

/* A device that does not take discards is not asked again; that is no fault of it. */
static void store_discard_done(struct loop_op *op)
{
    struct store *store = container_of(op, struct store, discard.op);
    struct store_discard *discard = &store->discard;
    bool flush = discard->step == DISCARD_FLUSH_BEFORE || discard->step == DISCARD_FLUSH;

    check(discard->count > 0);
    if (flush)
        store_flush_end(store, discard->flush, op->err);
    else if (discard->step != DISCARD_DEVICE && op->err == ICMS_OK)
        store_overhead_written(store, STORE_PAGE_BYTES);
    if (discard->step == DISCARD_DEVICE && op->err == ICMS_UNSUPPORTED)
        discard->on = false;
    else
        store_overhead_outcome(store, op->err);
    if (op->err == ICMS_OK && !store->down && discard_next(store))
        discard_run(store);
    else
        discard_end(store);
}

void store_discard_kick(struct store *store)
{
    struct store_discard *discard = &store->discard;
    uint32_t want = discard_want(store);

    if (!discard->on || discard->count > 0 || store->down || !discard_spare(store, want) ||
        loop_now_ns(store->loop) < discard->next_ns ||
        discard_look(store, discard->batch, want) < want)
        return;
    discard->count = want;
    for (uint32_t i = 0; i < want; i++) {
        list_remove(&discard->batch[i]->link);
        discard->batch[i]->state = SEGMENT_DISCARDING;
    }
    store_free_count_set(store, store->free_count - want);
    discard->at = 0;
    discard->step = DISCARD_FLUSH_BEFORE;
    discard_run(store);
}
