/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making room: ahead of need for segments, on demand for quotas and index entries.
 *
 *   store_reclaim_kick -> what is short, and whose oldest goes
 *     -> store_reclaim_read_done: the summary, read from flash in chunks, says which keys to look
 * up; what the index still has in this segment is evicted
 *     -> or store_reclaim_swept: there is no good summary; the index is swept in slices
 *     -> the segment is FREE, or SEALED again when only blocks of one volume were to go, for its
 * quota
 *
 * Loop's thread; one segment at a time. What is evicted is alive; what was deleted or replaced is
 * not counted.
 *
 * Order. Of a volume's segments the one goes whose last access is oldest. A segment that hides
 * older records (tombstones, newer versions) in segments that live on never goes before those:
 * reclaim_hidden finds them. What hides records in segments that were reclaimed before it needs no
 * more than the order of the free list.
 */
#include <math.h>

#include "base/fault.h"
#include "store/store_int.h"

static struct store_segment *stream_first(const struct store_stream *stream)
{
    struct list *link = list_first(&stream->segments);

    return link != NULL ? container_of(link, struct store_segment, link) : NULL;
}

/* ---- whose turn it is -------------------------------------------------------------------------
 */

double store_volume_share(const struct store *store, uint32_t volume)
{
    double capacity = (double)store->super.segments * (double)store->super.segment_bytes;

    if (store->volumes[volume].quota_bytes != 0)
        return (double)store->volumes[volume].quota_bytes;
    return capacity / store->volumes_added;
}

/* How far over its share a stream is; segments of volumes that nobody added go first. */
static double stream_excess(const struct store *store, uint32_t stream)
{
    double held = store->streams[stream].segment_count * (double)store->super.segment_bytes;
    double share = 0;

    if (stream != STORE_SHARED)
        return store->volumes[stream].added ? held / store_volume_share(store, stream) : INFINITY;
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        if (store->volumes[i].added && !store->volumes[i].own)
            share += store_volume_share(store, i);
    }
    return share > 0 ? held / share : INFINITY;
}

/* The oldest segment that may hold records which this one hides; NULL: none is older. */
static struct store_segment *reclaim_hidden(const struct store *store,
                                            const struct store_segment *segment)
{
    struct store_segment *best = NULL;

    for (uint32_t i = 0; i < LIMIT_VOLUMES && segment->covers != 0; i++) {
        struct store_segment *first = stream_first(&store->streams[i]);

        if ((segment->covers & store_volume_bit(i)) != 0 && first != NULL &&
            (best == NULL || first->sequence < best->sequence))
            best = first;
    }
    if (segment->covers != 0) {
        list_for_each (link, &store->streams[STORE_SHARED].segments) {
            struct store_segment *shared = container_of(link, struct store_segment, link);

            if (best != NULL && shared->sequence > best->sequence)
                break;
            if ((shared->present & segment->covers) != 0) {
                best = shared;
                break;
            }
        }
    }
    return best != NULL && best->sequence < segment->sequence ? best : NULL;
}

/* The segment that has to go before or instead of this one; NULL while it is being sealed. */
static struct store_segment *reclaim_in_order(const struct store *store,
                                              struct store_segment *segment)
{
    for (;;) {
        struct store_segment *older = reclaim_hidden(store, segment);

        if (older == NULL)
            return segment->state == SEGMENT_SEALED ? segment : NULL;
        segment = older;
    }
}

/* The sealed segment of a stream whose last access is oldest; NULL: none is sealed. */
static struct store_segment *stream_choose(struct store *store, uint32_t stream)
{
    struct store_segment *best = NULL;

    list_for_each (link, &store->streams[stream].segments) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (segment->state == SEGMENT_SEALED &&
            (best == NULL || policy_before(&segment->recency, &best->recency)))
            best = segment;
    }
    return best;
}

/* The segment to evict: of the stream that is most over its share. NULL: none is sealed. */
static struct store_segment *reclaim_victim(struct store *store)
{
    struct store_segment *best = NULL;
    uint32_t stream = STORE_STREAMS;
    double best_excess = -1;

    for (uint32_t i = 0; i < STORE_STREAMS; i++) {
        struct store_segment *first = stream_first(&store->streams[i]);
        double excess;

        if (first == NULL || first->state != SEGMENT_SEALED)
            continue;
        excess = stream_excess(store, i);
        if (excess > best_excess ||
            (excess == best_excess && best != NULL && first->sequence < best->sequence)) {
            best = first;
            best_excess = excess;
            stream = i;
        }
    }
    if (best != NULL)
        best = stream_choose(store, stream);
    return best != NULL ? reclaim_in_order(store, best) : NULL;
}

/* ---- evicting ---------------------------------------------------------------------------------
 */

/* Whether a volume has room for the write that waits, and a little more. */
static bool quota_has_room(const struct store_volume *volume)
{
    return volume->bytes + volume->flight_bytes + volume->need_bytes + volume->quota_bytes / 16 <=
           volume->quota_bytes;
}

/* Evicts what a summary entry names if it is alive in this segment; false: it is no entry. rows
 * says what the entry's volume row stands for; only: STORE_SHARED for all, or one slot. */
static bool reclaim_entry(struct store *store, struct store_segment *segment,
                          const struct store_entry_df *df, const uint8_t *rows, uint32_t only)
{
    struct store_record record;
    struct store_block block;
    uint32_t page;
    uint8_t row;

    if (store_entry_check(df, store->segment_pages, &record, &page, &row) != ICMS_OK)
        return false;
    block.volume = rows != NULL ? rows[row] : row;
    if (block.volume >= LIMIT_VOLUMES || record.type != STORE_RECORD_VALUE ||
        (only != STORE_SHARED && only != block.volume))
        return true;
    block.key = record.key;
    if (store_index_find(store->index, block.volume, &block.key, &block.spot) &&
        block.spot.segment == store_segment_number(store, segment) && block.spot.page == page)
        store_segment_evict(store, &block);
    return true;
}

/* Evicts a volume's oldest blocks from a segment whose entries are still in memory. */
static void reclaim_in_memory(struct store *store, struct store_segment *segment, uint32_t volume)
{
    struct store_summary *summary = segment->summary;

    for (uint32_t i = 0; i < summary->count; i++) {
        if (quota_has_room(&store->volumes[volume]))
            return;
        check(reclaim_entry(
            store, segment,
            &summary->pages[i / STORE_SUMMARY_ENTRIES].entry[i % STORE_SUMMARY_ENTRIES], NULL,
            volume));
    }
    segment->live &= ~store_volume_bit(volume);
}

/* ---- one job ----------------------------------------------------------------------------------
 */

static void reclaim_end(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;
    struct store_segment *segment = reclaim->segment;

    reclaim->segment = NULL;
    if (reclaim->whole) {
        store_segment_free(store, segment);
    } else {
        segment->state = SEGMENT_SEALED;
        if (!reclaim->stopped)
            segment->live &= ~store_volume_bit(reclaim->volume);
        if (store_segment_is_dead(segment))
            store_segment_free(store, segment);
    }
    store_pump(store);
}

/* Enough was evicted for one volume; whole segments go to the end. */
static bool reclaim_enough(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;

    reclaim->stopped = !reclaim->whole && quota_has_room(&store->volumes[reclaim->volume]);
    return reclaim->stopped;
}

static void store_reclaim_read_done(struct loop_op *op);

static void store_reclaim_swept(struct store_later *later)
{
    struct store *store = container_of(later, struct store, reclaim.later);
    struct store_reclaim *reclaim = &store->reclaim;
    uint32_t number = store_segment_number(store, reclaim->segment);
    uint32_t end = reclaim->sweep_cursor + STORE_SWEEP_STEPS;
    struct store_block block;

    while (reclaim->sweep_cursor < end && store_index_next(store->index, &reclaim->sweep_cursor,
                                                           end - reclaim->sweep_cursor, &block)) {
        if (block.spot.segment != number ||
            (reclaim->volume != STORE_SHARED && reclaim->volume != block.volume))
            continue;
        if (reclaim_enough(store))
            break;
        store_segment_evict(store, &block);
    }
    if (!reclaim->stopped && reclaim->sweep_cursor < store_index_end(store->index))
        store_later_run(store, &reclaim->later, store_reclaim_swept);
    else
        reclaim_end(store);
}

static void reclaim_sweep(struct store *store)
{
    store->reclaim.sweep_cursor = 0;
    store_later_run(store, &store->reclaim.later, store_reclaim_swept);
}

/* Reads the next chunk: the first time the end of the segment, so that the footer is in it. */
static void reclaim_read(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;
    uint32_t summary_pages = reclaim->segment->summary_pages;
    uint32_t first = store->segment_pages - 1 - summary_pages;
    uint32_t all = summary_pages + 1;

    if (!reclaim->footer_known)
        reclaim->page = all > STORE_RECLAIM_PAGES ? all - STORE_RECLAIM_PAGES : 0;
    reclaim->pages = all - reclaim->page;
    if (reclaim->pages > STORE_RECLAIM_PAGES)
        reclaim->pages = STORE_RECLAIM_PAGES;
    loop_file_read(store->loop, &reclaim->op, store->file,
                   store_segment_offset(store, store_segment_number(store, reclaim->segment),
                                        first + reclaim->page),
                   reclaim->chunk, reclaim->pages * STORE_PAGE_BYTES, store_reclaim_read_done);
}

/* Learns from the footer, the last page of the chunk, which volumes the entries mean. */
static bool reclaim_footer(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;
    const struct store_footer_df *footer =
        (const struct store_footer_df *)(const void *)&reclaim->chunk[reclaim->pages - 1];
    struct store_life life;

    if (store_footer_check(&store->super.drive, store_segment_number(store, reclaim->segment),
                           store->segment_pages, footer, &life) != ICMS_OK ||
        life.nonce != reclaim->segment->nonce ||
        le32_get(footer->summary_pages) != reclaim->segment->summary_pages)
        return false;
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        struct uuid uuid;
        int slot;

        memcpy(uuid.bytes, footer->volume[i], sizeof(uuid.bytes));
        slot = store_volume_slot_find(store, &uuid);
        reclaim->rows[i] = slot < 0 ? LIMIT_VOLUMES : (uint8_t)slot;
    }
    reclaim->footer_known = true;
    return true;
}

/* Evicts what the summary pages of the chunk name; false when one of them is damaged. */
static bool reclaim_chunk(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;
    struct store_segment *segment = reclaim->segment;
    uint32_t first = store->segment_pages - 1 - segment->summary_pages;

    for (uint32_t i = 0; i < reclaim->pages && reclaim->page + i < segment->summary_pages; i++) {
        const struct store_summary_df *page = &reclaim->chunk[i];
        uint32_t count;

        if (store_summary_check(segment->nonce, first + reclaim->page + i, page, &count) != ICMS_OK)
            return false;
        for (uint32_t entry = 0; entry < count; entry++) {
            if (reclaim_enough(store))
                return true;
            if (!reclaim_entry(store, segment, &page->entry[entry], reclaim->rows, reclaim->volume))
                return false;
        }
    }
    return true;
}

/* Works on the chunk in memory, then goes on to the next one or to the end. */
static void reclaim_chunk_run(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;

    if (!reclaim_chunk(store)) {
        store_stat_add(&store->stats.checksum_errors, 1);
        reclaim_sweep(store);
        return;
    }
    reclaim->page += reclaim->pages;
    if (!reclaim->stopped && reclaim->page < reclaim->segment->summary_pages)
        reclaim_read(store);
    else if (!reclaim->stopped && reclaim->volume == STORE_SHARED &&
             reclaim->segment->live_blocks > 0)
        reclaim_sweep(store); /* the summary did not know all of them */
    else
        reclaim_end(store);
}

static void store_reclaim_read_done(struct loop_op *op)
{
    struct store *store = container_of(op, struct store, reclaim.op);
    struct store_reclaim *reclaim = &store->reclaim;
    bool first = !reclaim->footer_known;

    store_read_outcome(store, op->err);
    if (op->err != ICMS_OK || (first && !reclaim_footer(store))) {
        reclaim_sweep(store);
        return;
    }
    if (first && reclaim->page > 0) { /* only the footer was wanted; begin with the oldest */
        reclaim->page = 0;
        reclaim_read(store);
        return;
    }
    reclaim_chunk_run(store);
}

/* volume STORE_SHARED: all its blocks go and it is free. Else the oldest of one volume go, as many
 * as needed. */
static void reclaim_start(struct store *store, struct store_segment *segment, uint32_t volume)
{
    struct store_reclaim *reclaim = &store->reclaim;

    check(reclaim->segment == NULL && segment->state == SEGMENT_SEALED);
    segment->state = SEGMENT_RECLAIMING;
    reclaim->segment = segment;
    reclaim->volume = volume;
    reclaim->whole = volume == STORE_SHARED;
    reclaim->page = 0;
    reclaim->footer_known = false;
    reclaim->stopped = false;
    if (segment->summary_pages == STORE_NO_SUMMARY || fault_hit("store.reclaim"))
        reclaim_sweep(store);
    else
        reclaim_read(store);
}

/* ---- what is short ----------------------------------------------------------------------------
 */

/* The oldest segment that may hold live blocks of a volume. */
static struct store_segment *quota_oldest(const struct store *store, uint32_t volume)
{
    uint64_t bit = store_volume_bit(volume);
    const uint32_t streams[2] = {volume, STORE_SHARED};
    struct store_segment *best = NULL;

    for (int i = 0; i < 2; i++) {
        const struct store_stream *stream = &store->streams[streams[i]];
        struct store_segment *found = NULL;

        list_for_each (link, &stream->segments) {
            found = container_of(link, struct store_segment, link);
            if ((found->live & bit) != 0)
                break;
            found = NULL;
        }
        if (found == NULL && stream->open != NULL && (stream->open->live & bit) != 0)
            found = stream->open;
        if (found != NULL && (best == NULL || found->sequence < best->sequence))
            best = found;
    }
    return best;
}

/* Makes room in one volume's quota; true when a job was started. */
static bool quota_kick(struct store *store, uint32_t number)
{
    struct store_volume *volume = &store->volumes[number];
    struct store_segment *segment;

    volume->over = false; /* its first change says so again if need be */
    while (!quota_has_room(volume)) {
        segment = quota_oldest(store, number);
        if (segment == NULL)
            return false; /* all of it is being written; ends of writes come here again */
        if (segment->summary != NULL) {
            reclaim_in_memory(store, segment, number);
            store->pump_more = true;
            continue;
        }
        if (volume->own && segment->stream == number) {
            if (segment->state == SEGMENT_SEALED)
                segment = stream_choose(store, number);
            segment = reclaim_in_order(store, segment);
            if (segment == NULL)
                return false; /* it is being sealed; the end of that comes here again */
            reclaim_start(store, segment, STORE_SHARED);
        } else {
            reclaim_start(store, segment, number);
        }
        store->pump_more = true;
        return true;
    }
    store->pump_more = true;
    return false;
}

/* Nothing sealed is left to give up: the fullest open segment is sealed early. */
static void reclaim_seal_one(struct store *store)
{
    struct store_segment *best = NULL;

    for (uint32_t i = 0; i < STORE_STREAMS; i++) {
        struct store_segment *open = store->streams[i].open;

        if (!list_empty(&store->streams[i].segments))
            return; /* one is being sealed already */
        if (open != NULL && open->summary->placed > 0 &&
            (best == NULL || open->summary->placed > best->summary->placed))
            best = open;
    }
    if (best != NULL)
        store_segment_seal(store, best);
}

/* Segments that were or are being opened ahead are a part of the reserve, half of it at most. */
static bool space_is_short(const struct store *store)
{
    const struct store_opener *opener = &store->opener;
    uint32_t ahead = store->next_count, half = store->free_reserve / 2;

    if (opener->segment != NULL && store->streams[opener->stream].open != NULL)
        ahead++;
    return store->free_count + (ahead < half ? ahead : half) < store->free_reserve;
}

/* Frees a segment, at once or by a job; its index entries with it. */
static void space_kick(struct store *store)
{
    bool tight = store->tight;

    store->tight = false;
    while (tight || space_is_short(store)) {
        struct store_segment *segment = reclaim_victim(store);

        if (segment == NULL) {
            if (tight || store->free_count == 0)
                reclaim_seal_one(store);
            return;
        }
        if (segment->live_blocks > 0) {
            reclaim_start(store, segment, STORE_SHARED);
            return;
        }
        store_segment_free(store, segment);
        store->pump_more = true;
    }
}

void store_reclaim_kick(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;

    check(store->pumping);
    if (store->down)
        return;
    if (reclaim->segment != NULL)
        return;
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        uint32_t number = (reclaim->quota_cursor + i) % LIMIT_VOLUMES;

        if (store->volumes[number].over && quota_kick(store, number)) {
            reclaim->quota_cursor = number + 1;
            return;
        }
    }
    space_kick(store);
}
