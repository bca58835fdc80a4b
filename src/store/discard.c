/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Discards: the device is told which segments are empty, one at a time, so that it need not keep
 * what they held until they are written over.
 *
 *   store_discard_run (store_run asks) -> READY -> DISCARDING -> store_discard_done -> READY, clean
 *
 * Loop's thread. A segment that is READY has an empty life, header and footer: nothing in between
 * is looked at again, so what a discarded page reads as does not matter. Only what the opener can
 * do without is taken, and only what nobody reads. A file has nothing to give back: it keeps the
 * space it was promised.
 */
#include "store/store_int.h"

/* A device that does not take discards is not asked again; that is no fault of it. */
static void store_discard_done(struct loop_op *op)
{
    struct store *store = container_of(op, struct store, discard.op);
    struct store_discard *discard = &store->discard;
    struct store_segment *segment = discard->segment;

    check(segment != NULL && segment->state == SEGMENT_DISCARDING);
    discard->segment = NULL;
    discard->next_ns = loop_now_ns(store->loop) + STORE_DISCARD_PAUSE_NS;
    segment->state = SEGMENT_READY;
    segment->clean = true;
    if (op->err == ICMS_OK)
        counter_add(&store->stats.discarded_bytes,
                    (uint64_t)store_segment_record_pages(store->segment_pages) * STORE_PAGE_BYTES);
    if (op->err == ICMS_UNSUPPORTED)
        discard->on = false;
    else
        store_overhead_outcome(store, op->err, "discard of a segment",
                               store_segment_offset(store, segment, 0));
    store->run(store);
}

void store_discard_run(struct store *store)
{
    struct store_discard *discard = &store->discard;
    uint32_t first = store_first_page(store->segment_pages);

    if (!discard->on || discard->segment != NULL || store->down ||
        store->ready_count <= store->free_low_mark || loop_now_ns(store->loop) < discard->next_ns)
        return;
    list_for_each (link, &store->ready) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (segment->clean || segment->pins > 0)
            continue;
        check(segment->state == SEGMENT_READY);
        discard->segment = segment;
        segment->state = SEGMENT_DISCARDING;
        loop_file_discard(
            store->loop, &discard->op, store->file, store_segment_offset(store, segment, first),
            (uint64_t)store_segment_record_pages(store->segment_pages) * STORE_PAGE_BYTES,
            store_discard_done);
        return;
    }
}
