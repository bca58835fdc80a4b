/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filling the memory from the drive, at open.
 *
 *   recover_headers  both ends of every segment: nonce and age, and where its summary is
 *   recover_counters evictions, from the youngest header
 *   recover_summary  oldest segment first: its summary, or
 *   recover_scan     a scan of all its pages, which is then sealed with a new summary
 *   recover_lists    segments into the lists of their streams
 *
 * Blocking; before the loop starts; headers and summaries are read ahead (ahead.h). Everything that
 * is read is hostile. Because a volume's records lie in one stream, and a stream's segments follow
 * each other, taking segments by age and entries in their order makes the newest record of a key
 * come last.
 */
#include <stdlib.h>

#include "store/ahead.h"
#include "store/scan.h"
#include "store/store_int.h"

/* Bytes of a scan's reads. */
#define RECOVER_SCAN_PAGES 256

/* An entry of a summary page. */
struct recover_entry {
    struct store_record record; /* what it says of its record */
    uint32_t page;              /* where that is              */
    uint32_t volume;            /* slot                       */
};

struct recover {
    struct store *store;       /* being opened */
    uint32_t *order;           /* numbers of segments with a life, by age                      */
    uint32_t order_count;      /* of them                                                      */
    uint32_t position;         /* the one that is being loaded                                 */
    struct store_ahead *ahead; /* reads headers, then summaries                              */
    uint32_t asked;            /* of ahead: the segment whose pieces come next, by number, then by
                                  its place in order                                           */
    uint32_t asked_pages;      /* of its summary and footer                                    */
    struct store_life life;    /* of the segment that is being looked at                       */
    struct store_life other;   /* what its last page says                                      */
    bool header_good;          /* life is from its header                                      */
    bool header_seems;         /* its header had been one                                      */
    int slots[LIMIT_VOLUMES];  /* volumes of the footer's rows; -1: none                       */
    struct recover_entry entry[STORE_SUMMARY_ENTRIES]; /* of the summary page that is loaded   */
    struct store_life last;    /* the youngest                                                 */
    uint8_t *pages;            /* RECOVER_SCAN_PAGES aligned pages                             */
    struct store_found *found; /* records of the segment that was scanned, a segment's worth    */
    uint32_t found_count;      /* of them                                                      */
    struct store_segment *segment; /* that is being loaded                                  */
    uint32_t scan_end; /* pages behind the last record that a scan found               */
    bool scan_lost;    /* a record was left out: the summary would not be whole        */
    bool flushed;      /* all records there are, are durable                           */
};

/* ---- blocks -----------------------------------------------------------------------------------
 */

/* Evicts the oldest blocks of a segment: those in the first quarter of the pages in use. */
static void recover_trim(struct recover *recover, uint32_t number)
{
    struct store *store = recover->store;
    uint32_t cursor = 0, first = UINT32_MAX, last = 0;
    struct store_block block;

    while (store_index_next(store->index, &cursor, UINT32_MAX, &block)) {
        if (block.spot.segment != number)
            continue;
        first = block.spot.page < first ? block.spot.page : first;
        last = block.spot.page > last ? block.spot.page : last;
    }
    cursor = 0;
    while (store_index_next(store->index, &cursor, UINT32_MAX, &block)) {
        if (block.spot.segment == number && block.spot.page <= first + (last - first) / 4)
            store_segment_evict(store, &block);
    }
}

/* The index is smaller than what is on flash: evicts what is in the oldest segments loaded so far,
 * a part of the index. */
static void recover_make_room(struct recover *recover)
{
    struct store *store = recover->store;
    uint64_t part = store_index_blocks_max(store->index) / STORE_INDEX_PART, found = 0, oldest = 0;
    struct store_block block;
    uint32_t cursor = 0;

    for (uint32_t i = 0; i <= recover->position && found < part; i++) {
        const struct store_segment *segment = &store->segments[recover->order[i]];

        if (segment->live_blocks > 2 * part && found == 0) {
            recover_trim(recover, recover->order[i]);
            return;
        }
        found += segment->live_blocks;
        oldest = segment->sequence;
    }
    while (store_index_next(store->index, &cursor, UINT32_MAX, &block)) {
        if (store->segments[block.spot.segment].sequence <= oldest)
            store_segment_evict(store, &block);
    }
}

/* What is older than a damaged record that replaced nothing was evicted, and as its segment was not
 * written over, that is in no header yet. (Or its write had failed, or its deletion did not survive
 * a power cut: counted all the same.) */
static void recover_evicted(struct recover *recover, const struct store_record *record,
                            uint32_t volume)
{
    struct store *store = recover->store;
    struct store_block block = {.volume = volume, .key = record->key};

    if (!store_index_find(store->index, volume, &record->key, &block.spot) || block.spot.damaged)
        return;
    if (block.spot.segment != store_segment_number(store, recover->segment))
        recover->segment->hides |= store_volume_bit(volume);
    store_segment_evict(store, &block);
}

/* Whether a block may have left the index in this very open, for want of room. */
static bool recover_dropped(const struct store *store, uint32_t volume, const struct key *key)
{
    return store_ghost_turns(store->ghost) > 1 || store_ghost_has(store->ghost, volume, key);
}

static void recover_block(struct recover *recover, const struct store_record *record, uint32_t page,
                          uint32_t volume)
{
    struct store *store = recover->store;
    struct store_segment *segment = recover->segment;
    struct store_spot old, spot = {.segment = store_segment_number(store, segment),
                                   .page = page,
                                   .pages = store_record_pages(record->value_bytes),
                                   .damaged = record->damaged};

    if (record->sequence > store->sequence)
        store->sequence = record->sequence;
    segment->present |= store_volume_bit(volume);
    if (record->type == STORE_RECORD_TOMBSTONE) {
        segment->hides |= store_volume_bit(volume);
        if (store_index_remove(store->index, volume, &record->key, &old))
            store_segment_live_sub(store, volume, &old);
        return;
    }
    if (record->damaged && record->fresh)
        recover_evicted(recover, record, volume);
    if (!store_index_reserve(store->index)) {
        recover_make_room(recover);
        check(store_index_reserve(store->index));
    }
    if (store_index_put(store->index, volume, &record->key, &spot, &old)) {
        store_segment_live_sub(store, volume, &old);
        store_segment_moved(store, old.segment);
        if (old.segment != spot.segment)
            segment->hides |= store_volume_bit(volume);
    } else if (recover_dropped(store, volume, &record->key)) {
        segment->hides |= store_volume_bit(volume);
    }
    store_segment_live_add(store, volume, &spot);
}

/* ---- a sealed segment -------------------------------------------------------------------------
 */

/* What the rows of a footer's table stand for. */
static void recover_rows(struct recover *recover, const struct store_footer_df *footer)
{
    static const struct uuid none;
    struct store *store = recover->store;

    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        struct uuid uuid;

        memcpy(uuid.bytes, footer->volume[i], sizeof(uuid.bytes));
        recover->slots[i] = uuid_equal(&uuid, &none) ? -1 : store_volume_slot(store, &uuid);
    }
}

/* All entries of one summary page; false when it is damaged. The index is asked for all of them
 * before any is looked up, so that memory is not waited for one by one. */
static bool recover_summary_page(struct recover *recover, uint32_t page,
                                 const struct store_summary_df *df)
{
    struct store *store = recover->store;
    struct recover_entry *entry = recover->entry;
    uint32_t count, known = 0;

    if (store_summary_check(recover->segment->nonce, page, df, &count) != ICMS_OK)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t row;

        if (store_entry_check(&df->entry[i], store->segment_pages, &entry[known].record,
                              &entry[known].page, &row) != ICMS_OK)
            return false;
        if (recover->slots[row] < 0)
            continue;
        entry[known].volume = (uint32_t)recover->slots[row];
        store_index_prefetch(store->index, entry[known].volume, &entry[known].record.key, false);
        known++;
    }
    for (uint32_t i = 0; i < known; i++)
        store_index_prefetch(store->index, entry[i].volume, &entry[i].record.key, true);
    for (uint32_t i = 0; i < known; i++)
        recover_block(recover, &entry[i].record, entry[i].page, entry[i].volume);
    return true;
}

/* Summary pages from this one on; false when one is damaged. */
static bool recover_summary_pages(struct recover *recover, uint32_t first, uint32_t pages,
                                  const uint8_t *memory)
{
    for (uint32_t i = 0; i < pages; i++) {
        const uint8_t *page = memory + (size_t)i * STORE_PAGE_BYTES;

        if (!recover_summary_page(recover, first + i,
                                  (const struct store_summary_df *)(const void *)page)) {
            store_stat_add(&recover->store->stats.checksum_errors, 1);
            return false;
        }
    }
    return true;
}

/* Whether a page is the footer of the segment's life. */
static bool recover_footer(struct recover *recover, const uint8_t *page)
{
    struct store *store = recover->store;
    const struct store_footer_df *footer = (const struct store_footer_df *)(const void *)page;

    if (store_footer_check(&store->super.drive, store_segment_number(store, recover->segment),
                           store->segment_pages, footer, &recover->life) != ICMS_OK ||
        recover->life.nonce != recover->segment->nonce)
        return false;
    recover_rows(recover, footer);
    return true;
}

/* Where the next piece of a summary is: of a short one all of it and the footer, of a long one the
 * footer, which says whose the entries are, then the summary in order. */
static bool recover_next_summary(void *arg, struct store_piece *out_piece)
{
    struct recover *recover = arg;
    struct store *store = recover->store;

    for (; recover->asked < recover->order_count; recover->asked++, recover->asked_pages = 0) {
        uint32_t number = recover->order[recover->asked];
        uint32_t all = store->segments[number].summary_pages, done = recover->asked_pages;
        uint32_t first = store->segment_pages - 1 - all;

        if (all == STORE_NO_SUMMARY || done == all + 1)
            continue;
        if (all < STORE_AHEAD_PAGES) {
            out_piece->pages = all + 1;
        } else if (done == 0) {
            first = store->segment_pages - 1;
            out_piece->pages = 1;
        } else {
            first += done - 1;
            out_piece->pages =
                all + 1 - done < STORE_AHEAD_PAGES ? all + 1 - done : STORE_AHEAD_PAGES;
        }
        out_piece->offset = store_segment_offset(store, number, first);
        recover->asked_pages += out_piece->pages;
        return true;
    }
    return false;
}

static bool recover_take(struct recover *recover, const uint8_t **out_pages)
{
    if (store_ahead_take(recover->ahead, out_pages) == ICMS_OK)
        return true;
    store_stat_add(&recover->store->stats.io_errors, 1);
    return false;
}

/* Loads a segment from its summary; false when it has none, or a damaged one. */
static bool recover_summary(struct recover *recover)
{
    struct store *store = recover->store;
    uint32_t all = recover->segment->summary_pages, first = store->segment_pages - 1 - all;
    const uint8_t *pages;
    bool good;

    if (all == STORE_NO_SUMMARY)
        return false;
    good = recover_take(recover, &pages);
    if (all < STORE_AHEAD_PAGES)
        return good && recover_footer(recover, pages + (size_t)all * STORE_PAGE_BYTES) &&
               recover_summary_pages(recover, first, all, pages);
    good = good && recover_footer(recover, pages);
    for (uint32_t done = 0, n; done < all; done += n) {
        n = all - done < STORE_AHEAD_PAGES ? all - done : STORE_AHEAD_PAGES;
        good = recover_take(recover, &pages) && good &&
               recover_summary_pages(recover, first + done, n, pages);
    }
    return good;
}

/* ---- an open segment, or one whose summary is damaged -----------------------------------------
 */

static void recover_found(struct store_scan *scan, const struct store_found *found)
{
    struct recover *recover = scan->arg;

    recover->found[recover->found_count++] = *found;
}

/* A record whose value is damaged counts like any other, hides what is older and makes reads say
 * CHECKSUM, when it replaced nothing or has its witness. Else it may be the torn rest of a write
 * that nobody was told of, and what it would have replaced stays, if that is there. */
static bool recover_counts(const struct recover *recover, const struct store_found *found,
                           uint32_t volume)
{
    struct store_spot spot;

    if (found->good || found->witness || found->record.fresh)
        return true;
    return !store_index_find(recover->store->index, volume, &found->record.key, &spot) ||
           spot.damaged;
}

/* Loads one record of a scanned segment. */
static void recover_record(struct recover *recover, struct store_found *found)
{
    struct store *store = recover->store;
    struct store_record *record = &found->record;
    int slot = store_volume_slot(store, &record->volume);

    if (record->sequence > store->sequence)
        store->sequence = record->sequence;
    recover->scan_end = found->page + store_record_pages(record->value_bytes);
    if (!found->good || !found->whole)
        store_stat_add(&store->stats.checksum_errors, 1);
    if (slot < 0) {
        recover->scan_lost = true;
        return;
    }
    if (!recover_counts(recover, found, (uint32_t)slot))
        return;
    record->damaged = !found->good;
    recover_block(recover, record, found->page, (uint32_t)slot);
    store_summary_add(recover->segment->summary, record, found->page, (uint32_t)slot);
}

/* Records that a scan found may still be in the cache of the device: makes them durable, once. */
static bool recover_flush(struct recover *recover)
{
    if (!recover->flushed)
        recover->flushed = loop_file_flush_now(recover->store->file) == ICMS_OK;
    return recover->flushed;
}

/* Writes the summary and the footer that a crash did not let happen. */
static bool recover_seal(struct recover *recover)
{
    struct store *store = recover->store;
    struct store_segment *segment = recover->segment;
    uint32_t pages = store_summary_make(store, segment->summary);
    uint32_t first = store->segment_pages - 1 - pages;
    uint64_t bytes = (uint64_t)(pages + 1) * STORE_PAGE_BYTES;

    if (recover->scan_lost || first < recover->scan_end)
        return false;
    if (!recover_flush(recover) ||
        loop_file_write_now(
            store->file, store_segment_offset(store, store_segment_number(store, segment), first),
            segment->summary->pages, bytes) != ICMS_OK) {
        store_stat_add(&store->stats.io_errors, 1);
        return false;
    }
    store_overhead_written(store, bytes);
    segment->summary_pages = pages;
    return true;
}

/* A page that cannot be read is zeros, which hold no record; perhaps it can be read the next time.
 */
static icms_err recover_scan_read(struct store_scan *scan, uint32_t page, uint32_t pages)
{
    struct recover *recover = scan->arg;
    struct store *store = recover->store;
    uint64_t offset =
        store_segment_offset(store, store_segment_number(store, recover->segment), page);

    if (loop_file_read_now(store->file, offset, scan->memory, (size_t)pages * STORE_PAGE_BYTES) ==
        ICMS_OK)
        return ICMS_OK;
    store_stat_add(&store->stats.io_errors, 1);
    for (uint32_t i = 0; i < pages; i++) {
        uint8_t *memory = scan->memory + (size_t)i * STORE_PAGE_BYTES;

        if (loop_file_read_now(store->file, offset + (uint64_t)i * STORE_PAGE_BYTES, memory,
                               STORE_PAGE_BYTES) == ICMS_OK)
            continue;
        memset(memory, 0, STORE_PAGE_BYTES);
        recover->scan_lost = true;
    }
    return ICMS_OK;
}

static void recover_scan(struct recover *recover)
{
    struct store *store = recover->store;
    struct store_segment *segment = recover->segment;
    struct store_scan scan = {.nonce = segment->nonce,
                              .segment_pages = store->segment_pages,
                              .memory_pages = RECOVER_SCAN_PAGES,
                              .memory = recover->pages,
                              .arg = recover,
                              .read = recover_scan_read,
                              .found = recover_found};

    recover->found_count = 0;
    recover->scan_end = 1;
    recover->scan_lost = false;
    segment->summary = container_of(list_pop(&store->summaries), struct store_summary, link);
    segment->summary->segment = segment;
    segment->summary->count = segment->summary->placed = 0;
    check(store_scan_run(&scan) == ICMS_OK);
    for (uint32_t i = 0; i < recover->found_count; i++)
        recover_record(recover, &recover->found[i]);
    segment->summary_pages = STORE_NO_SUMMARY;
    (void)recover_seal(recover);
    list_push(&store->summaries, &segment->summary->link);
    segment->summary = NULL;
}

/* ---- all segments -----------------------------------------------------------------------------
 */

/* The life of a segment from its header or, when that is damaged, from its last page: the footer,
 * or while it was open a copy of the header. False: it has none. Sets where its summary is. */
static bool recover_life(struct recover *recover, uint32_t number, const uint8_t *last_page)
{
    struct store *store = recover->store;
    struct store_segment *segment = &store->segments[number];
    const struct uuid *drive = &store->super.drive;
    const struct store_footer_df *footer = (const struct store_footer_df *)(const void *)last_page;
    const struct store_header_df *copy = (const struct store_header_df *)(const void *)last_page;
    struct store_life *other = &recover->other;
    bool sealed = store_footer_check(drive, number, store->segment_pages, footer, other) == ICMS_OK;
    bool known = sealed || store_header_check(drive, number, copy, other) == ICMS_OK;
    bool damaged = !known && store_header_seems(drive, copy);

    if (!recover->header_good) {
        damaged = recover->header_seems || known;
        if (known)
            recover->life = *other;
    }
    if (damaged)
        store_stat_add(&store->stats.checksum_errors, 1);
    segment->summary_pages = STORE_NO_SUMMARY;
    if (sealed && other->nonce == recover->life.nonce)
        segment->summary_pages = le32_get(footer->summary_pages);
    return (recover->header_good || known) && recover->life.sequence != 0;
}

/* A segment of which both ends were seen. */
static void recover_segment(struct recover *recover, uint32_t number, const uint8_t *last_page)
{
    struct store *store = recover->store;
    struct store_segment *segment = &store->segments[number];

    list_init(&segment->link);
    if (!recover_life(recover, number, last_page)) {
        segment->state = SEGMENT_FREE;
        list_push(&store->free, &segment->link);
        store_free_count_set(store, store->free_count + 1);
        return;
    }
    segment->state = SEGMENT_SEALING; /* until recover_lists */
    segment->nonce = recover->life.nonce;
    segment->sequence = recover->life.sequence;
    segment->generation = recover->life.generation;
    recover->order[recover->order_count++] = number;
    if (segment->sequence > store->sequence)
        store->sequence = segment->sequence;
    if (segment->sequence > recover->last.sequence)
        recover->last = recover->life;
}

/* Where the last page of a segment and the header of the next meet: one piece each. */
static bool recover_next_border(void *arg, struct store_piece *out_piece)
{
    struct recover *recover = arg;
    struct store *store = recover->store;
    uint32_t number = recover->asked++;

    if (number > store->super.segments)
        return false;
    out_piece->offset = store_segment_offset(store, number, 0);
    out_piece->pages = 1;
    if (number > 0)
        out_piece->offset -= STORE_PAGE_BYTES;
    if (number > 0 && number < store->super.segments)
        out_piece->pages = 2;
    return true;
}

/* The two pages of a border, each on its own: one that cannot be read does not take the other
 * along. */
static const uint8_t *recover_border_again(struct recover *recover, uint32_t number)
{
    struct store *store = recover->store;
    uint64_t offset = store_segment_offset(store, number, 0);
    uint32_t first = number > 0 ? 0 : 1, end = number < store->super.segments ? 2 : 1;

    memset(recover->pages, 0, (size_t)2 * STORE_PAGE_BYTES);
    for (uint32_t i = first; i < end; i++) {
        uint8_t *page = recover->pages + (size_t)(i - first) * STORE_PAGE_BYTES;

        if (loop_file_read_now(store->file, offset - STORE_PAGE_BYTES + i * STORE_PAGE_BYTES, page,
                               STORE_PAGE_BYTES) != ICMS_OK)
            memset(page, 0, STORE_PAGE_BYTES);
    }
    return recover->pages;
}

static void recover_headers(struct recover *recover)
{
    struct store *store = recover->store;

    recover->asked = 0;
    store_ahead_begin(recover->ahead, recover_next_border, recover);
    for (uint32_t i = 0; i <= store->super.segments; i++) {
        const uint8_t *page;
        const struct store_header_df *header;

        if (!recover_take(recover, &page))
            page = recover_border_again(recover, i);
        if (i > 0) {
            recover_segment(recover, i - 1, page);
            page += STORE_PAGE_BYTES;
        }
        if (i == store->super.segments)
            break;
        header = (const struct store_header_df *)(const void *)page;
        recover->header_good =
            store_header_check(&store->super.drive, i, header, &recover->life) == ICMS_OK;
        recover->header_seems = store_header_seems(&store->super.drive, header);
    }
}

static void recover_counters(struct recover *recover)
{
    struct store *store = recover->store;

    store->evictions_final = recover->last.evictions;
    store_stat_set(&store->stats.evictions, store->evictions_final);
    for (uint32_t i = 0; i < recover->last.volume_count; i++) {
        int slot = store_volume_slot(store, &recover->last.volume[i]);

        if (slot < 0)
            continue;
        store->volumes[slot].evictions_final = recover->last.volume_evictions[i];
        store_stat_set(&store->volumes[slot].evictions, recover->last.volume_evictions[i]);
    }
}

static int recover_age(const void *a, const void *b, void *arg)
{
    const struct store *store = arg;
    uint64_t x = store->segments[*(const uint32_t *)a].sequence;
    uint64_t y = store->segments[*(const uint32_t *)b].sequence;

    return x < y ? -1 : x > y;
}

/* A segment with one volume goes to that volume's list, even if it will not have a stream. */
static void recover_lists(struct recover *recover)
{
    struct store *store = recover->store;

    for (uint32_t i = 0; i < recover->order_count; i++) {
        struct store_segment *segment = &store->segments[recover->order[i]];
        bool one = segment->present != 0 && (segment->present & (segment->present - 1)) == 0;

        segment->stream = one ? (uint8_t)__builtin_ctzll(segment->present) : STORE_SHARED;
        segment->state = SEGMENT_SEALED;
        segment->covers = segment->hides;
        list_push(&store->streams[segment->stream].segments, &segment->link);
        policy_access(store->policy, &segment->recency);
        store->streams[segment->stream].segment_count++;
        if (store_segment_is_dead(segment))
            store_segment_free(store, segment);
    }
}

static void recover_free(struct recover *recover)
{
    if (recover == NULL)
        return;
    free(recover->order);
    free(recover->pages);
    free(recover->found);
    store_ahead_free(&recover->ahead);
    free(recover);
}

icms_err store_recover(struct store *store, struct err_why *why)
{
    struct recover *recover = calloc(1, sizeof(*recover));
    icms_err err;

    if (recover != NULL) {
        recover->store = store;
        recover->order = calloc(store->super.segments, sizeof(recover->order[0]));
        recover->pages = aligned_alloc(STORE_PAGE_BYTES, RECOVER_SCAN_PAGES * STORE_PAGE_BYTES);
        recover->found = calloc(store->segment_pages, sizeof(recover->found[0]));
    }
    if (recover == NULL || recover->order == NULL || recover->pages == NULL ||
        recover->found == NULL) {
        recover_free(recover);
        return err_set(why, ICMS_NO_MEMORY, "no memory to recover the store");
    }
    err = store_ahead_new(store->file, why, &recover->ahead);
    if (err != ICMS_OK) {
        recover_free(recover);
        return err;
    }
    recover_headers(recover);
    recover_counters(recover);
    qsort_r(recover->order, recover->order_count, sizeof(recover->order[0]), recover_age, store);
    recover->asked = recover->asked_pages = 0;
    store_ahead_begin(recover->ahead, recover_next_summary, recover);
    for (; recover->position < recover->order_count; recover->position++) {
        recover->segment = &store->segments[recover->order[recover->position]];
        if (!recover_summary(recover))
            recover_scan(recover);
    }
    recover_lists(recover);
    recover_free(recover);
    return ICMS_OK;
}
