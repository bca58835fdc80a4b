/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a segment: FREE -> OPENING -> OPEN -> SEALING -> SEALED -> (RECLAIMING ->) FREE.
 *
 * Loop's thread. Invariants:
 * - A stream's next segment is opened while the one before fills up, if another stays free; so
 *   nobody waits for the flush. It is empty, and younger than everything in its stream.
 * - A segment is written over only when it is FREE, nothing in the index points to it and no read
 *   of it is in flight.
 * - Its header, with a new nonce, and a copy of it in place of the footer are on flash before its
 *   first record; so a footer on flash always belongs to the header's life or does not pass, and
 *   one damaged page never hides an open segment.
 * - FREE segments are opened in the order they were reclaimed, so a record that hides an older one
 *   is never written over before that one. Before a segment with hiding records is written over,
 *   the device is flushed: power loss may not undo the order either. What discard.c took and what
 *   could not be written over count as in front until a new header is durable.
 * - Power loss leaves each segment one whole life. The device is flushed between the records and
 *   their summary, so that a summary names nothing that is not there, and between the header and
 *   whatever follows, so that what is left of the old life is not taken for all of it.
 * - An eviction is final, and in the counters that headers carry, when the header of the block's
 *   segment is written over.
 */
#include <stdlib.h>

#include "base/fault.h"
#include "base/hash.h"
#include "store/store_int.h"

/* ---- what is alive ----------------------------------------------------------------------------
 */

void store_free_count_set(struct store *store, uint32_t count)
{
    store->free_count = count;
    store_stat_set(&store->stats.segments_free, count);
    __atomic_store_n(&store->free_low, count < store->free_low_mark, __ATOMIC_RELAXED);
}

bool store_segment_is_dead(const struct store_segment *segment)
{
    return segment->state == SEGMENT_SEALED && segment->live_blocks == 0 && segment->hides == 0;
}

/* Older records of these volumes that nothing hides are not in it any more. */
void store_segment_partial_end(struct store *store, struct store_segment *segment, uint64_t volumes)
{
    for (uint32_t i = 0; i < LIMIT_VOLUMES && (segment->partial & volumes) != 0; i++) {
        if ((segment->partial & volumes & store_volume_bit(i)) != 0) {
            segment->partial &= ~store_volume_bit(i);
            store->volumes[i].partial--;
        }
    }
}

void store_segment_partial_begin(struct store *store, struct store_segment *segment,
                                 uint32_t volume)
{
    bool goes = store->reclaim.segment == segment && store->reclaim.whole;

    if (goes || (segment->partial & store_volume_bit(volume)) != 0)
        return;
    segment->partial |= store_volume_bit(volume);
    store->volumes[volume].partial++;
}

void store_segment_free(struct store *store, struct store_segment *segment)
{
    check(segment->state == SEGMENT_SEALED || segment->state == SEGMENT_RECLAIMING);
    check(segment->live_blocks == 0 && segment->live_pages == 0 && segment->writes == 0);
    list_remove(&segment->link);
    store->streams[segment->stream].segment_count--;
    store_segment_partial_end(store, segment, segment->partial);
    segment->state = SEGMENT_FREE;
    segment->live = 0;
    list_push(&store->free, &segment->link);
    store_free_count_set(store, store->free_count + 1);
}

void store_segment_live_add(struct store *store, uint32_t volume, const struct store_spot *spot)
{
    struct store_segment *segment = &store->segments[spot->segment];
    uint64_t bytes = (uint64_t)spot->pages * STORE_PAGE_BYTES;

    segment->live_blocks++;
    if (spot->damaged)
        return; /* only a mark */
    segment->live_pages += spot->pages;
    segment->live |= store_volume_bit(volume);
    store_stat_add(&store->volumes[volume].blocks, 1);
    store_stat_add(&store->volumes[volume].bytes, bytes);
    store_stat_add(&store->stats.blocks, 1);
    store_stat_add(&store->stats.used_bytes, bytes);
}

void store_segment_live_sub(struct store *store, uint32_t volume, const struct store_spot *spot)
{
    struct store_segment *segment = &store->segments[spot->segment];
    uint64_t bytes = (uint64_t)spot->pages * STORE_PAGE_BYTES;

    check(segment->live_blocks > 0);
    segment->live_blocks--;
    if (!spot->damaged) {
        check(segment->live_pages >= spot->pages && store->volumes[volume].bytes >= bytes);
        segment->live_pages -= spot->pages;
        store_stat_add(&store->volumes[volume].blocks, (uint64_t)-1);
        store_stat_add(&store->volumes[volume].bytes, -bytes);
        store_stat_add(&store->stats.blocks, (uint64_t)-1);
        store_stat_add(&store->stats.used_bytes, -bytes);
    }
    if (store_segment_is_dead(segment))
        store_segment_free(store, segment);
}

/* Notes evictions that become final with the segment. The pool has an entry for each segment and
 * some more for shared ones; were it ever empty, they would count as final too early. */
static void segment_evicted_add(struct store *store, struct store_segment *segment, uint32_t volume)
{
    uint32_t n = segment->evicted;

    while (n != 0 && store->evicted[n].volume != volume)
        n = store->evicted[n].next;
    if (n != 0) {
        store->evicted[n].count++;
        return;
    }
    n = store->evicted_unused;
    if (n == 0) {
        store->volumes[volume].evictions_final++;
        store->evictions_final++;
        return;
    }
    store->evicted_unused = store->evicted[n].next;
    store->evicted[n] =
        (struct store_evicted){.next = segment->evicted, .count = 1, .volume = volume};
    segment->evicted = n;
}

static void segment_evicted_finish(struct store *store, struct store_segment *segment)
{
    while (segment->evicted != 0) {
        uint32_t n = segment->evicted;
        struct store_evicted *evicted = &store->evicted[n];

        if (evicted->volume < LIMIT_VOLUMES)
            store->volumes[evicted->volume].evictions_final += evicted->count;
        store->evictions_final += evicted->count;
        segment->evicted = evicted->next;
        evicted->next = store->evicted_unused;
        store->evicted_unused = n;
    }
}

static bool segment_forgotten(const struct store *store, const struct store_segment *segment)
{
    return segment->evicted_turn != 0 &&
           store_ghost_turns(store->ghost) > segment->evicted_turn; /* turn + 1 */
}

void store_segment_forget(struct store *store, struct store_segment *segment)
{
    store->forgotten += !segment->forgotten;
    segment->forgotten = true;
}

/* Makes ghosts remember a block; what they forget by that is noted for the segments it lies in. */
static void segment_ghost_add(struct store *store, struct store_segment *segment,
                              const struct store_block *block)
{
    uint64_t turns = store_ghost_turns(store->ghost);

    store_ghost_add(store->ghost, block->volume, &block->key);
    if (segment->evicted_turn == 0)
        segment->evicted_turn = store_ghost_turns(store->ghost) + 1;
    if (store_ghost_turns(store->ghost) == turns)
        return;
    for (uint32_t i = 0; i < store->super.segments; i++) {
        if (segment_forgotten(store, &store->segments[i]))
            store_segment_forget(store, &store->segments[i]);
    }
}

bool store_segment_trace(const struct store *store, uint32_t volume, const struct key *key)
{
    return store->volumes[volume].partial > 0 || store->forgotten > 0 ||
           store_ghost_has(store->ghost, volume, key);
}

/* What recovery evicts has no age. */
static void segment_age_count(struct store *store, const struct store_segment *segment)
{
    uint64_t since_ns = segment->since_ns != 0 ? segment->since_ns : store->since_ns;
    uint64_t now_ns = loop_now_ns(store->loop); /* of a loop that was not started: the past */

    if (store->since_ns != 0)
        hist_add(&store->evicted_age_ns, now_ns > since_ns ? now_ns - since_ns : 0);
}

void store_segment_evict(struct store *store, const struct store_block *block)
{
    struct store_spot old;

    policy_evicted(store->policy, store_policy_hash(block->volume, &block->key));
    store_segment_partial_begin(store, &store->segments[block->spot.segment], block->volume);
    check(store_index_remove(store->index, block->volume, &block->key, &old));
    check(old.segment == block->spot.segment && old.page == block->spot.page);
    store->dropped = true;
    if (!old.damaged) { /* a mark stood for nothing that could be read */
        segment_evicted_add(store, &store->segments[old.segment], block->volume);
        segment_ghost_add(store, &store->segments[old.segment], block);
        store_stat_add(&store->volumes[block->volume].evictions, 1);
        store_stat_add(&store->stats.evictions, 1);
        segment_age_count(store, &store->segments[old.segment]);
    }
    store_segment_live_sub(store, block->volume, &old);
}

void store_segment_unpin(struct store *store, struct store_segment *segment)
{
    check(segment->pins > 0);
    segment->pins--;
    if (segment->pins == 0 && segment->state == SEGMENT_FREE)
        store_opener_kick(store);
}

/* ---- opening ----------------------------------------------------------------------------------
 */

/* The first free segment that no read pins and whose header, if again is not set, did not fail to
 * be written. One that hides others is not taken before those in front of it, nor while discard.c
 * has some that were in front of it and still have their old life. */
static struct store_segment *opener_look(struct store *store, bool again)
{
    bool passed = store_discard_before(store);

    list_for_each (link, &store->free) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (segment->pins == 0 && (!segment->refused || again) && (!passed || segment->hides == 0))
            return segment;
        passed = true;
    }
    return NULL;
}

static struct store_segment *opener_segment(struct store *store)
{
    struct store_segment *segment = opener_look(store, false);

    return segment != NULL ? segment : opener_look(store, true);
}

bool store_opener_before(const struct store *store)
{
    return store->opener.segment != NULL && store->opener.step <= OPENER_FLUSH_AFTER;
}

/* True when the stream will soon want its next segment, and there is one that nobody else has to
 * have: a flush takes long, so it is opened while the one before fills up. */
static bool opener_ahead(const struct store *store, const struct store_stream *stream)
{
    return stream->open != NULL && stream->next == NULL && store->free_count > 1 &&
           stream->open->next_page > store->segment_pages / 2;
}

/* The stream that waits and whose turn it is, else one that will; STORE_STREAMS: none. */
static uint32_t opener_stream(const struct store *store)
{
    uint32_t ahead = STORE_STREAMS;

    for (uint32_t i = 0; i < STORE_STREAMS; i++) {
        uint32_t stream = (store->opener.cursor + i) % STORE_STREAMS;

        if (store->streams[stream].wants)
            return stream;
        if (ahead == STORE_STREAMS && opener_ahead(store, &store->streams[stream]))
            ahead = stream;
    }
    return ahead;
}

static void opener_life(const struct store *store, const struct store_segment *segment,
                        struct store_life *life)
{
    memset(life, 0, sizeof(*life));
    life->segment = store_segment_number(store, segment);
    life->generation = segment->generation;
    life->nonce = segment->nonce;
    life->sequence = segment->sequence;
    life->evictions = store->evictions_final;
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        if (store->volumes[i].used && store->volumes[i].evictions_final > 0) {
            life->volume[life->volume_count] = store->volumes[i].uuid;
            life->volume_evictions[life->volume_count++] = store->volumes[i].evictions_final;
        }
    }
}

/* The segment waits in the free list again: first while it may have its old life, else last. */
static void opener_failed(struct store *store, icms_err err)
{
    struct store_opener *opener = &store->opener;
    struct store_segment *segment = opener->segment;

    opener->segment = NULL;
    list_push(&store->summaries, &segment->summary->link);
    segment->summary = NULL;
    segment->state = SEGMENT_FREE;
    segment->refused = opener->step == OPENER_HEADER;
    if (opener->step <= OPENER_FLUSH_AFTER)
        list_push_front(&store->free, &segment->link);
    else
        list_push(&store->free, &segment->link);
    store_free_count_set(store, store->free_count + 1);
    store->streams[opener->stream].wants = store->streams[opener->stream].open == NULL;
    store_overhead_outcome(store, err);
    store_pump(store);
}

static void opener_next_set(struct store *store, struct store_stream *stream,
                            struct store_segment *segment)
{
    check((stream->next == NULL) != (segment == NULL));
    store->next_count = segment != NULL ? store->next_count + 1 : store->next_count - 1;
    stream->next = segment;
}

static void opener_finished(struct store *store)
{
    struct store_opener *opener = &store->opener;
    struct store_segment *segment = opener->segment;
    struct store_stream *stream = &store->streams[opener->stream];

    opener->segment = NULL;
    store_overhead_written(store, 2 * STORE_PAGE_BYTES);
    segment->state = SEGMENT_OPEN;
    segment->since_ns = loop_now_ns(store->loop);
    segment->next_page = 1;
    check(stream->open == NULL || stream->next == NULL);
    if (stream->open == NULL)
        stream->open = segment;
    else
        opener_next_set(store, stream, segment);
    store_stat_add(&store->stats.segments_open, 1);
    store_pump(store);
}

void store_life_begin(struct store *store, struct store_segment *segment,
                      struct store_header_df *out_header)
{
    struct store_life life;

    segment_evicted_finish(store, segment);
    loop_entropy(store->loop, &segment->nonce, sizeof(segment->nonce));
    segment->sequence = ++store->sequence;
    segment->generation++;
    segment->live = 0;
    segment->clean = false;
    segment->recency = (struct policy_segment){0};
    opener_life(store, segment, &life);
    store_header_make(&store->super.drive, &life, out_header);
}

void store_life_begun(struct store *store, struct store_segment *segment)
{
    store->forgotten -= segment->forgotten;
    segment->forgotten = false;
    segment->evicted_turn = 0;
    segment->present = segment->hides = segment->covers = segment->moved = 0;
    segment->refused = false;
}

static void opener_run(struct store *store);

static void opener_step_done(struct store *store, icms_err err)
{
    struct store_opener *opener = &store->opener;

    check(opener->segment != NULL && opener->segment->state == SEGMENT_OPENING);
    if (err != ICMS_OK) {
        opener_failed(store, err);
        return;
    }
    if (opener->step == OPENER_FLUSH_AFTER)
        store_life_begun(store, opener->segment);
    opener->step++;
    opener_run(store);
}

static void store_opener_done(struct loop_op *op)
{
    struct store *store = container_of(op, struct store, opener.op);
    struct store_opener *opener = &store->opener;

    if (opener->step == OPENER_FLUSH_BEFORE || opener->step == OPENER_FLUSH_AFTER)
        store_flush_end(store, opener->flush, op->err);
    opener_step_done(store, op->err);
}

static void store_opener_fault(struct store_later *later)
{
    opener_step_done(container_of(later, struct store, opener.later), ICMS_IO);
}

static void opener_write(struct store *store, uint32_t page, const void *memory)
{
    struct store_opener *opener = &store->opener;
    uint32_t number = store_segment_number(store, opener->segment);

    if (fault_hit("store.header"))
        store_later_run(store, &opener->later, store_opener_fault);
    else
        loop_file_write_stream(
            store->loop, &opener->op, store->file, store_segment_hint(store, opener->segment),
            store_segment_offset(store, number, page), memory, STORE_PAGE_BYTES, store_opener_done);
}

/* Starts the step; those that are not needed are passed over. */
static void opener_run(struct store *store)
{
    struct store_opener *opener = &store->opener;

    if (opener->step == OPENER_FLUSH_BEFORE && !opener->flush_before)
        opener->step++;
    switch ((enum store_opener_step)opener->step) {
    case OPENER_FLUSH_BEFORE:
    case OPENER_FLUSH_AFTER:
        opener->flush = store_flush_begin(store);
        loop_file_flush(store->loop, &opener->op, store->file, store_opener_done);
        break;
    case OPENER_HEADER:
        store_life_begin(store, opener->segment, opener->header);
        opener_write(store, 0, opener->header);
        break;
    case OPENER_FOOTER:
        opener_write(store, store->segment_pages - 1, opener->header);
        break;
    case OPENER_FINISHED:
        opener_finished(store);
        break;
    }
}

void store_opener_kick(struct store *store)
{
    struct store_opener *opener = &store->opener;
    struct store_segment *segment;
    uint32_t stream;

    if (opener->segment != NULL || store->down || list_empty(&store->summaries))
        return;
    stream = opener_stream(store);
    if (stream == STORE_STREAMS)
        return;
    segment = opener_segment(store);
    if (segment == NULL)
        return;
    list_remove(&segment->link);
    store_free_count_set(store, store->free_count - 1);
    check(segment->state == SEGMENT_FREE && segment->pins == 0 && segment->live_blocks == 0);
    segment->state = SEGMENT_OPENING;
    segment->stream = (uint8_t)stream;
    segment->summary = container_of(list_pop(&store->summaries), struct store_summary, link);
    segment->summary->segment = segment;
    segment->summary->count = segment->summary->placed = 0;
    opener->segment = segment;
    opener->stream = stream;
    opener->cursor = stream + 1;
    store->streams[stream].wants = false;
    opener->flush_before = segment->hides != 0 || segment->moved > store->flushed;
    opener->step = OPENER_FLUSH_BEFORE;
    opener_run(store);
}

/* ---- summaries and sealing --------------------------------------------------------------------
 */

bool store_summary_pool_add(struct store *store)
{
    struct store_summary *summary = calloc(1, sizeof(*summary));

    if (summary == NULL)
        return false;
    summary->pages = store_pages_new(store, store_summary_pages(store->segment_pages) + 1);
    if (summary->pages == NULL) {
        free(summary);
        return false;
    }
    summary->store = store;
    list_push(&store->summaries, &summary->link);
    return true;
}

void store_summary_add(struct store_summary *summary, const struct store_record *record,
                       uint32_t page, uint32_t volume)
{
    uint32_t at = summary->count++;

    check(at < summary->store->segment_pages);
    store_entry_make(record, page, (uint8_t)volume,
                     &summary->pages[at / STORE_SUMMARY_ENTRIES].entry[at % STORE_SUMMARY_ENTRIES]);
}

bool store_segment_fits(const struct store *store, const struct store_segment *segment,
                        uint32_t pages)
{
    return segment->next_page + pages + store_summary_pages(segment->summary->placed + 1) + 1 <=
           store->segment_pages;
}

void store_life_end(struct store *store, const struct store_segment *segment, uint32_t records,
                    struct store_footer_df *out_footer)
{
    struct uuid volume[LIMIT_VOLUMES];
    struct store_life life;

    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++)
        volume[i] = store->volumes[i].uuid;
    opener_life(store, segment, &life);
    store_footer_make(&store->super.drive, &life, records, volume, out_footer);
}

uint32_t store_summary_make(struct store *store, struct store_summary *summary)
{
    struct store_segment *segment = summary->segment;
    uint32_t pages = store_summary_pages(summary->count);
    uint32_t first = store->segment_pages - 1 - pages;

    for (uint32_t i = 0; i < pages; i++) {
        uint32_t left = summary->count - i * STORE_SUMMARY_ENTRIES;

        store_summary_finish(segment->nonce, first + i,
                             left < STORE_SUMMARY_ENTRIES ? left : STORE_SUMMARY_ENTRIES,
                             &summary->pages[i]);
    }
    store_life_end(store, segment, summary->count,
                   (struct store_footer_df *)(void *)&summary->pages[pages]);
    return pages;
}

static void seal_finished(struct store_summary *summary, icms_err err)
{
    struct store_segment *segment = summary->segment;
    struct store *store = summary->store;

    check(segment->state == SEGMENT_SEALING && segment->summary == summary);
    if (err == ICMS_OK)
        store_overhead_written(store, (summary->flash_pages + 1) * (uint64_t)STORE_PAGE_BYTES);
    segment->summary_pages = err == ICMS_OK ? summary->flash_pages : STORE_NO_SUMMARY;
    segment->summary = NULL;
    segment->state = SEGMENT_SEALED;
    list_push(&store->summaries, &summary->link);
    if (store_segment_is_dead(segment))
        store_segment_free(store, segment);
    store_overhead_outcome(store, err);
    store_pump(store);
}

static void store_seal_done(struct loop_op *op)
{
    seal_finished(container_of(op, struct store_summary, op), op->err);
}

static void store_seal_fault(struct store_later *later)
{
    seal_finished(container_of(later, struct store_summary, later), ICMS_IO);
}

/* The records are durable: writes the summary and the footer in one go. */
static void store_seal_flushed(struct loop_op *op)
{
    struct store_summary *summary = container_of(op, struct store_summary, op);
    struct store_segment *segment = summary->segment;
    struct store *store = summary->store;
    uint32_t pages;

    store_flush_end(store, summary->flush, op->err);
    if (op->err != ICMS_OK) {
        seal_finished(summary, op->err);
        return;
    }
    pages = store_summary_make(store, summary);
    summary->flash_pages = pages;
    loop_file_write_stream(store->loop, &summary->op, store->file,
                           store_segment_hint(store, segment),
                           store_segment_offset(store, store_segment_number(store, segment),
                                                store->segment_pages - 1 - pages),
                           summary->pages, (pages + 1) * STORE_PAGE_BYTES, store_seal_done);
}

/* Its records were written (or failed): flushes, and goes on in store_seal_flushed. */
static void seal_start(struct store *store, struct store_segment *segment)
{
    struct store_summary *summary = segment->summary;

    if (fault_hit("store.seal")) {
        store_later_run(store, &summary->later, store_seal_fault);
        return;
    }
    summary->flush = store_flush_begin(store);
    loop_file_flush(store->loop, &summary->op, store->file, store_seal_flushed);
}

void store_segment_seal(struct store *store, struct store_segment *segment)
{
    struct store_stream *stream = &store->streams[segment->stream];

    check(segment->state == SEGMENT_OPEN && stream->open == segment);
    stream->open = stream->next;
    if (stream->next != NULL)
        opener_next_set(store, stream, NULL);
    stream->segment_count++;
    list_push(&stream->segments, &segment->link);
    segment->state = SEGMENT_SEALING;
    store_stat_add(&store->stats.segments_open, (uint64_t)-1);
    if (segment->writes == 0)
        seal_start(store, segment);
}

void store_segment_written(struct store *store, struct store_segment *segment)
{
    check(segment->writes > 0);
    segment->writes--;
    if (segment->state == SEGMENT_SEALING && segment->writes == 0)
        seal_start(store, segment);
}
