/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making room: ahead of need for segments, on demand for quotas and index entries.
 *
 *   store_reclaim_kick -> what is short, and whose oldest goes
 *     -> store_reclaim_read_done: the summary, read from flash in chunks, says which keys to look
 * up; what the index still has in this segment is evicted
 *     -> or store_reclaim_swept: there is no good summary; the index is swept in slices
 *     -> of a whole segment some blocks are carried over first (carry.c), one at a time
 *     -> the segment is FREE, or SEALED again when only some of its blocks were to go: for a
 * volume's quota, or for the index
 *
 * Loop's thread; one segment at a time. What is evicted is alive; what was deleted or replaced is
 * not counted.
 *
 * Order. Of a volume's segments the one goes that the policy chooses. A segment that hides older
 * records (tombstones, newer versions) in segments that live on never goes before those:
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

/* The segment of a stream that is to go next; NULL: none is sealed. whole: what is wanted of it can
 * be carried over. In the one that is shared it is the oldest, as volumes are evicted from there
 * block by block. */
static struct store_segment *stream_choose(struct store *store, uint32_t stream, bool whole)
{
    struct store_segment *oldest = NULL;
    struct policy_choice choice;
    bool hurry = store->free_low && store->free_reserve > 1;
    uint32_t seen = 0;

    policy_choice_begin(store->policy, stream < LIMIT_VOLUMES ? stream : 0,
                        hurry || !whole ? 0 : store->super.segment_bytes, &choice);
    choice.spares = !whole;
    list_for_each (link, &store->streams[stream].segments) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (segment->state != SEGMENT_SEALED)
            continue;
        if (oldest == NULL)
            oldest = segment;
        if (stream == STORE_SHARED)
            return oldest;
        if (seen++ == STORE_CHOICE_SEGMENTS)
            break;
        if (whole || segment->live_blocks > 0)
            policy_choice_add(&choice, &segment->wanted, segment->live_blocks, segment);
    }
    return choice.best != NULL ? policy_choice_end(store->policy, stream, &choice) : oldest;
}

/* The segment to give up; NULL: none is sealed. Of one that lives on without some of its blocks
 * (not whole) nothing is written over, so what it hides does not matter. */
static struct store_segment *reclaim_victim(struct store *store, bool whole)
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
        best = stream_choose(store, stream, whole);
    if (best == NULL || (!whole && best->live_blocks > 0))
        return best;
    return reclaim_in_order(store, best);
}

/* ---- evicting ---------------------------------------------------------------------------------
 */

/* Whether a volume has room for the write that waits, and a little more. */
static bool quota_has_room(const struct store_volume *volume)
{
    return volume->bytes + volume->flight_bytes + volume->need_bytes + volume->quota_bytes / 16 <=
           volume->quota_bytes;
}

/* What became of an entry, or of all of them. */
enum reclaim_step {
    RECLAIM_ON,   /* done                                              */
    RECLAIM_WAIT, /* a block is carried over; woken by store_reclaim_go */
    RECLAIM_BAD,  /* not an entry                                      */
};

/* Whether a block stays for now: index entries are short, and it is wanted. */
static bool reclaim_spares(struct store *store, const struct store_block *block)
{
    return store->reclaim.spares &&
           store->reclaim.segment == &store->segments[block->spot.segment] &&
           !policy_due(store->policy, block->volume,
                       *store_index_state(store->index, block->volume, &block->key));
}

/* Evicts or carries over what a summary entry names if it is alive in this segment. rows says what
 * the entry's volume row stands for; only: STORE_SHARED for all, or one slot. */
static enum reclaim_step reclaim_entry(struct store *store, struct store_segment *segment,
                                       const struct store_entry_df *df, const uint8_t *rows,
                                       uint32_t only)
{
    struct store_record record;
    struct store_block block;
    uint32_t page;
    uint8_t row;

    if (store_entry_check(df, store->segment_pages, &record, &page, &row) != ICMS_OK)
        return RECLAIM_BAD;
    block.volume = rows != NULL ? rows[row] : row;
    if (block.volume >= LIMIT_VOLUMES || record.type != STORE_RECORD_VALUE ||
        (only != STORE_SHARED && only != block.volume))
        return RECLAIM_ON;
    block.key = record.key;
    if (store_index_find(store->index, block.volume, &block.key, &block.spot) &&
        block.spot.segment == store_segment_number(store, segment) && block.spot.page == page) {
        if (reclaim_spares(store, &block))
            return RECLAIM_ON;
        if (store_carry_start(store, &block))
            return RECLAIM_WAIT;
        store_segment_evict(store, &block);
        store->reclaim.evicted = true;
    }
    return RECLAIM_ON;
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
                  volume) == RECLAIM_ON);
    }
    segment->live &= ~store_volume_bit(volume);
}

/* The segment stays: its blocks go for the sake of index entries. */
static bool reclaim_for_entries(const struct store_reclaim *reclaim)
{
    return !reclaim->whole && reclaim->volume == STORE_SHARED;
}

/* ---- one job ----------------------------------------------------------------------------------
 */

static void reclaim_end(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;
    struct store_segment *segment = reclaim->segment;

    reclaim->segment = NULL;
    reclaim->spares = false;
    reclaim->more = reclaim_for_entries(reclaim) && !store_index_has_room(store);
    if (reclaim->whole) {
        store_segment_free(store, segment);
    } else {
        segment->state = SEGMENT_SEALED;
        if (!reclaim->stopped && reclaim->volume != STORE_SHARED)
            segment->live &= ~store_volume_bit(reclaim->volume);
        if (store_segment_is_dead(segment))
            store_segment_free(store, segment);
    }
    store_pump(store);
}

/* Enough was evicted for one volume, or for the index; whole segments go to the end. */
static bool reclaim_enough(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;

    if (reclaim->whole)
        return false;
    if (reclaim_for_entries(reclaim))
        reclaim->stopped = store_index_has_room(store);
    else
        reclaim->stopped = quota_has_room(&store->volumes[reclaim->volume]);
    return reclaim->stopped;
}

static void reclaim_sweep(struct store *store);
static void reclaim_read(struct store *store);
static void store_reclaim_read_done(struct loop_op *op);

/* All that is left of the segment is wanted. If nothing went, some of it goes after all. */
static void reclaim_spare_end(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;

    reclaim->spares = false;
    if (reclaim->evicted) {
        reclaim->stopped = true;
        reclaim_end(store);
    } else if (reclaim->sweeps) {
        reclaim_sweep(store);
    } else {
        reclaim->page = 0;
        reclaim_read(store);
    }
}

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
        if (reclaim_spares(store, &block))
            continue;
        if (store_carry_start(store, &block))
            return;
        store_segment_evict(store, &block);
        reclaim->evicted = true;
    }
    if (!reclaim->stopped && reclaim->sweep_cursor < store_index_end(store->index))
        store_later_run(store, &reclaim->later, store_reclaim_swept);
    else if (!reclaim->stopped && reclaim->spares)
        reclaim_spare_end(store);
    else
        reclaim_end(store);
}

static void reclaim_sweep(struct store *store)
{
    store->reclaim.sweep_cursor = 0;
    store->reclaim.sweeps = true;
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

/* Evicts or carries over what the summary pages of the chunk name, from where it stopped on. BAD
 * when one of them is damaged. */
static enum reclaim_step reclaim_chunk(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;
    struct store_segment *segment = reclaim->segment;
    uint32_t first = store->segment_pages - 1 - segment->summary_pages;

    for (; reclaim->chunk_page < reclaim->pages &&
           reclaim->page + reclaim->chunk_page < segment->summary_pages;
         reclaim->chunk_page++, reclaim->entry = 0) {
        const struct store_summary_df *page = &reclaim->chunk[reclaim->chunk_page];
        enum reclaim_step step;
        uint32_t count;

        if (store_summary_check(segment->nonce, first + reclaim->page + reclaim->chunk_page, page,
                                &count) != ICMS_OK)
            return RECLAIM_BAD;
        while (reclaim->entry < count) {
            if (reclaim_enough(store))
                return RECLAIM_ON;
            step = reclaim_entry(store, segment, &page->entry[reclaim->entry++], reclaim->rows,
                                 reclaim->volume);
            if (step != RECLAIM_ON)
                return step;
        }
    }
    return RECLAIM_ON;
}

/* Works on the chunk in memory, then goes on to the next one or to the end. */
static void reclaim_chunk_run(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;
    enum reclaim_step step = reclaim_chunk(store);

    if (step == RECLAIM_WAIT)
        return;
    if (step == RECLAIM_BAD) {
        store_stat_add(&store->stats.checksum_errors, 1);
        reclaim_sweep(store);
        return;
    }
    reclaim->page += reclaim->pages;
    if (!reclaim->stopped && reclaim->page < reclaim->segment->summary_pages)
        reclaim_read(store);
    else if (!reclaim->stopped && reclaim->spares)
        reclaim_spare_end(store);
    else if (!reclaim->stopped && reclaim->volume == STORE_SHARED &&
             reclaim->segment->live_blocks > 0)
        reclaim_sweep(store); /* the summary did not know all of them */
    else
        reclaim_end(store);
}

void store_reclaim_go(struct store *store)
{
    check(store->reclaim.segment != NULL && !store->carry.active);
    if (store->reclaim.sweeps)
        store_later_run(store, &store->reclaim.later, store_reclaim_swept);
    else
        reclaim_chunk_run(store);
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
    reclaim->chunk_page = reclaim->entry = 0;
    reclaim_chunk_run(store);
}

/* whole: all its blocks go and it is free. Else its oldest go, as many as needed: those of one
 * volume, or with STORE_SHARED of all, and then what nobody wants before the rest. */
static void reclaim_start(struct store *store, struct store_segment *segment, uint32_t volume,
                          bool whole)
{
    struct store_reclaim *reclaim = &store->reclaim;

    check(reclaim->segment == NULL && segment->state == SEGMENT_SEALED);
    segment->state = SEGMENT_RECLAIMING;
    reclaim->segment = segment;
    reclaim->volume = volume;
    reclaim->whole = whole;
    reclaim->page = 0;
    reclaim->footer_known = false;
    reclaim->stopped = false;
    reclaim->sweeps = false;
    reclaim->spares = reclaim_for_entries(reclaim);
    reclaim->evicted = false;
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
                segment = stream_choose(store, number, true);
            segment = reclaim_in_order(store, segment);
            if (segment == NULL)
                return false; /* it is being sealed; the end of that comes here again */
            reclaim_start(store, segment, STORE_SHARED, true);
        } else {
            reclaim_start(store, segment, number, false);
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
static bool space_is_short(struct store *store)
{
    const struct store_opener *opener = &store->opener;
    uint32_t ahead = store->next_count, half = store->free_reserve / 2;

    if (opener->segment != NULL && store->streams[opener->stream].open != NULL)
        ahead++;
    store->freeing = store->free_count + (ahead < half ? ahead : half) <
                     store->free_reserve + (store->freeing ? store->free_batch : 0);
    return store->freeing;
}

/* Frees a segment or an index entry, at once or by a job. */
static void space_kick(struct store *store)
{
    bool tight = store->tight;

    store->tight = false;
    for (;;) {
        bool whole = space_is_short(store);
        struct store_segment *segment;

        if (!tight && !whole && !store->reclaim.more)
            return;
        segment = reclaim_victim(store, whole);
        store->reclaim.more = store->reclaim.more && segment != NULL;
        if (segment == NULL) {
            if (tight || store->free_count == 0)
                reclaim_seal_one(store);
            return;
        }
        if (segment->live_blocks > 0) { /* for the index a part of it is enough */
            store_policy_shares(store);
            reclaim_start(store, segment, STORE_SHARED, whole);
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
    store_carry_kick(store);
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
