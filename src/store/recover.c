/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filling the memory from the drive, at open.
 *
 *   recover_headers  both ends of every segment: its life, whether records of it were killed, and
 *                    where its summary is
 *   recover_segment  of each, the youngest first: its summary, or a scan of all its pages, which is
 *                    then sealed with a new summary, or evicted if it cannot be read as a whole;
 *                    dead records are left out
 *   recover_lists    segments into the lists of their streams
 *
 * Blocking; before the loop starts; headers and summaries are read ahead (ahead.h). Everything that
 * is read is hostile. Of two records of a key, which a crash between a write and its kill leaves,
 * the one in the younger segment stays, or further back in the same, and a damaged one never before
 * a good one; the other is killed. Which one it is does not matter: the mutation was not answered.
 * The youngest segments come first also because the index may be full before all are loaded: then
 * the rest is evicted.
 */
#include <stdlib.h>

#include "store/ahead.h"
#include "store/scan.h"
#include "store/store_int.h"

/* Bytes of a scan's reads. */
#define RECOVER_SCAN_PAGES 256

/* segment->volume while no record of it was seen. */
#define RECOVER_NO_RECORD STORE_ALL_VOLUMES

/* An entry of a summary page. */
struct recover_entry {
    struct store_record record; /* what it says of its record          */
    uint32_t page;              /* where that is                       */
    int volume;                 /* number; -1: not configured          */
};

struct recover {
    struct store *store;       /* being opened */
    struct err_why *why;       /* of err */
    icms_err err;              /* what keeps the drive from being opened                       */
    uint32_t *order;           /* numbers of segments whose records may count, youngest first  */
    uint32_t order_count;      /* of them                                                      */
    struct store_ahead *ahead; /* reads headers, then summaries                               */
    uint32_t asked;            /* of ahead: the segment whose piece comes next, by number, then by
                                  its place in order                                           */
    struct store_life life;    /* of the segment that is being looked at                       */
    struct store_life other;   /* what its last page says                                      */
    bool header_good;          /* life is from its header                                      */
    bool header_seems;         /* its header had been one                                      */
    bool life_known;           /* one of them holds                                            */
    bool front_unread;         /* its header and dead map could not be read, or a part of them */
    bool begun;                /* life is from its header, and its last page says another      */
    uint32_t map_damaged;      /* copies of its sectors that are                               */
    bool map_torn;             /* copies of a sector differ                                    */
    int rows[STORE_SEGMENT_VOLUMES];                   /* volumes of the footer's rows         */
    struct recover_entry entry[STORE_SUMMARY_ENTRIES]; /* of the summary page that is loaded   */
    uint8_t *pages;                /* RECOVER_SCAN_PAGES aligned pages                         */
    uint8_t *page;                 /* one aligned page: for records and new lives              */
    void *map;                     /* dead map of the segment, as it is or will be on flash    */
    struct store_segment *segment; /* that is being loaded                                     */
    uint32_t scan_end;             /* pages behind the last record that a scan found           */
    bool scan_lost;                /* a record was left out: the summary would not be whole    */
    bool scan_unread;              /* a page could not be read: the segment is evicted         */
    bool wrote;                    /* a dead map or a life: the device has to be flushed       */
    bool full;                     /* the index is: this segment and all that follow are evicted */
    uint64_t evictions;            /* of the segment that is being loaded                      */
};

/* Writes pages of a segment. What cannot be written keeps the drive from being opened. */
static void recover_write(struct recover *recover, const struct store_segment *segment,
                          uint32_t page, const void *memory, uint32_t pages)
{
    struct store *store = recover->store;
    size_t bytes = (size_t)pages * STORE_PAGE_BYTES;
    icms_err err;

    if (recover->err != ICMS_OK)
        return;
    recover->wrote = true;
    store_overhead_written(store, bytes);
    err =
        loop_file_write_now(store->file, store_segment_offset(store, segment, page), memory, bytes);
    if (err != ICMS_OK)
        recover->err = err_set(recover->why, err,
                               "cannot write to segment %u: %s; what was deleted could come back",
                               store_segment_number(store, segment), icms_err_text(err));
}

static void recover_flush(struct recover *recover)
{
    if (recover->err == ICMS_OK && loop_file_flush_now(recover->store->file) != ICMS_OK)
        recover->err = err_set(recover->why, ICMS_IO, "cannot flush the drive");
}

/* ---- dead maps --------------------------------------------------------------------------------
 */

/* Whether a map has no bits. */
static bool recover_map_is_empty(const struct recover *recover, const struct store_dead_df *dead)
{
    static const uint8_t zeros[sizeof(dead->bits)];

    for (uint32_t i = 0; i < store_dead_sectors(recover->store->segment_pages); i++) {
        if (memcmp(dead[i].bits, zeros, sizeof(zeros)) != 0)
            return false;
    }
    return true;
}

/* Takes the map of the segment's life from flash; false: it was not written in this life. */
static bool recover_map(struct recover *recover, struct store_segment *segment)
{
    const struct store *store = recover->store;
    struct store_dead_df *dead = store_segment_dead(store, segment);
    uint64_t nonce = recover->life.nonce;

    recover->map_damaged =
        store_dead_load(nonce, store->segment_pages, recover->map, dead, &recover->map_torn);
    segment->killed = recover->map_damaged > 0 || !recover_map_is_empty(recover, dead);
    segment->evicted = store_dead_evicted(nonce, store->segment_pages, dead);
    return recover->map_damaged < 2 * store_dead_sectors(store->segment_pages);
}

static void recover_map_write(struct recover *recover, const struct store_segment *segment)
{
    const struct store *store = recover->store;

    store_dead_save(store->segment_pages, store_segment_dead(store, segment), recover->map);
    recover_write(recover, segment, 1, recover->map, store->map_pages);
}

static void recover_kill(struct recover *recover, const struct store_segment *segment,
                         uint32_t page)
{
    struct store_dead_df *dead = store_segment_dead(recover->store, segment);

    if (!store_dead_check(segment->nonce, page / STORE_DEAD_PAGES, dead))
        return; /* all of its range die, or nobody knows them */
    store_dead_set(segment->nonce, page, false, dead);
    recover_map_write(recover, segment);
}

/* ---- blocks -----------------------------------------------------------------------------------
 */

static void recover_count_evicted(struct recover *recover, uint32_t volume, const struct key *key)
{
    struct store *store = recover->store;

    recover->evictions++;
    policy_evicted(store->policy, store_policy_hash(volume, key));
    store->volumes[volume].evictions++;
}

/* Takes the blocks of this segment out of the index: it will be evicted. */
static void recover_drop(struct recover *recover)
{
    struct store *store = recover->store;
    uint32_t number = store_segment_number(store, recover->segment), cursor = 0;
    struct store_block block;
    struct store_location old;

    while (store_index_next(store->index, &cursor, UINT32_MAX, &block)) {
        if (block.location.segment != number)
            continue;
        check(store_index_remove(store->index, block.volume, &block.key, &old));
        store_segment_live_sub(store, block.volume, &old);
        if (!old.damaged)
            recover_count_evicted(recover, block.volume, &block.key);
    }
}

/* Whether the record at this place counts, and not the one of its key that is in the index, whose
 * segment is younger or the same. */
static bool recover_wins(const struct store_location *location, const struct store_location *old)
{
    if (location->damaged != old->damaged)
        return old->damaged;
    return location->segment == old->segment && location->page > old->page;
}

static void recover_block(struct recover *recover, const struct store_record *record, uint32_t page,
                          uint32_t volume)
{
    struct store *store = recover->store;
    struct store_segment *segment = recover->segment;
    struct store_location old, location = {.segment = store_segment_number(store, segment),
                                           .page = page,
                                           .pages = store_record_pages(record->value_bytes),
                                           .damaged = record->damaged};

    if (store_index_find(store->index, volume, &record->key, &old)) {
        if (!recover_wins(&location, &old)) {
            recover_kill(recover, segment, page);
            return;
        }
        recover_kill(recover, &store->segments[old.segment], old.page);
        check(store_index_remove(store->index, volume, &record->key, &old));
        store_segment_live_sub(store, volume, &old);
    }
    if (!recover->full && !store_index_reserve(store->index)) {
        recover->full = true;
        recover_drop(recover);
    }
    if (recover->full) {
        if (!record->damaged)
            recover_count_evicted(recover, volume, &record->key);
        return;
    }
    check(!store_index_put(store->index, volume, &record->key, &location, &old));
    store_segment_live_add(store, volume, &location);
}

/* A record of the segment that is not dead. */
static void recover_record(struct recover *recover, const struct store_record *record,
                           uint32_t page, int volume)
{
    struct store_segment *segment = recover->segment;

    if (volume < 0) {
        recover->store->stranger_segments += !segment->strangers;
        segment->strangers = true;
        return;
    }
    if (segment->volume == RECOVER_NO_RECORD)
        segment->volume = (uint32_t)volume;
    else if (segment->volume != (uint32_t)volume)
        segment->volume = STORE_NO_VOLUME;
    recover_block(recover, record, page, (uint32_t)volume);
}

/* ---- a sealed segment -------------------------------------------------------------------------
 */

/* All entries of one summary page. The index is asked for all of them before any is looked up, so
 * that memory is not waited for one by one. */
static void recover_summary_page(struct recover *recover, const struct store_summary_df *df)
{
    struct store *store = recover->store;
    struct store_segment *segment = recover->segment;
    struct recover_entry *entry = recover->entry;
    const struct store_dead_df *dead_map = store_segment_dead(store, segment);
    uint32_t live = 0;

    for (uint32_t i = 0; i < le32_get(df->count); i++) {
        struct recover_entry *one = &entry[live];
        enum store_dead dead;
        uint8_t row;

        check(store_entry_check(&df->entry[i], store->segment_pages, &one->record, &one->page,
                                &row) == ICMS_OK);
        dead = segment->killed ? store_dead_get(segment->nonce, one->page, dead_map) : STORE_LIVE;
        if (dead == STORE_DEAD)
            continue;
        one->record.damaged |= dead == STORE_DEAD_UNKNOWN;
        one->volume = recover->rows[row];
        if (one->volume >= 0)
            store_index_prefetch(store->index, (uint32_t)one->volume, &one->record.key, 0);
        live++;
    }
    for (uint32_t entries = 1; entries <= 2; entries++) {
        for (uint32_t i = 0; i < live; i++)
            if (entry[i].volume >= 0)
                store_index_prefetch(store->index, (uint32_t)entry[i].volume, &entry[i].record.key,
                                     entries);
    }
    for (uint32_t i = 0; i < live; i++)
        recover_record(recover, &entry[i].record, entry[i].page, entry[i].volume);
}

/* Where the next summary is, with its footer. */
static bool recover_next_summary(void *arg, struct store_piece *out_piece)
{
    struct recover *recover = arg;
    const struct store *store = recover->store;

    while (recover->asked < recover->order_count) {
        uint32_t number = recover->order[recover->asked++];
        uint32_t pages = store->segments[number].summary_pages;

        if (pages == STORE_NO_SUMMARY)
            continue;
        out_piece->pages = pages + 1;
        out_piece->offset =
            store_segment_offset(store, &store->segments[number], store->segment_pages - 1 - pages);
        return true;
    }
    return false;
}

/* What the device did not do for the segment. */
static void recover_unread(struct recover *recover, const char *what)
{
    struct store *store = recover->store;
    struct store_error error =
        store_error_at(what, ICMS_IO, store_segment_offset(store, recover->segment, 0));

    store_error_add(store, &error, 1);
}

/* Page i of those at an offset; false: it cannot be read, and is zeros, which hold nothing. */
static bool recover_page_read(struct recover *recover, uint64_t offset, uint32_t i, uint8_t *pages)
{
    uint8_t *page = pages + (size_t)i * STORE_PAGE_BYTES;

    if (loop_file_read_now(recover->store->file, offset + (uint64_t)i * STORE_PAGE_BYTES, page,
                           STORE_PAGE_BYTES) == ICMS_OK)
        return true;
    memset(page, 0, STORE_PAGE_BYTES);
    return false;
}

static bool recover_take(struct recover *recover, const uint8_t **out_pages)
{
    if (store_ahead_take(recover->ahead, out_pages) == ICMS_OK)
        return true;
    recover_unread(recover, "read of a summary");
    return false;
}

/* Loads a segment from its summary; false when it has none, or a damaged one. */
static bool recover_summary(struct recover *recover)
{
    struct store *store = recover->store;
    struct store_summary *summary = store->reclaim.summary; /* which nobody else has yet */
    uint32_t count = recover->segment->summary_pages;
    const uint8_t *pages;

    if (count == STORE_NO_SUMMARY || !recover_take(recover, &pages))
        return false;
    memcpy(summary->pages, pages, (count + (size_t)1) * STORE_PAGE_BYTES);
    if (!store_summary_load(store, recover->segment, summary)) {
        store_damage_add(store, "summary", store_segment_offset(store, recover->segment, 0), 1);
        return false;
    }
    for (uint32_t i = 0; i < summary->volume_count; i++)
        if ((recover->rows[i] = store_volume_find(store, &summary->volume[i])) < 0)
            store_stranger_add(store, &summary->volume[i]);
    for (uint32_t i = 0; i < count; i++)
        recover_summary_page(recover, &summary->pages[i]);
    return true;
}

/* ---- an open segment, or one whose summary is damaged -----------------------------------------
 */

/* Loads one record of a segment that is scanned. */
static void recover_scanned(struct store_scan *scan, const struct store_found *found)
{
    struct recover *recover = scan->arg;
    struct store *store = recover->store;
    struct store_record record = found->record;

    recover->scan_end = found->page + store_record_pages(record.value_bytes);
    if (!found->good || !found->whole)
        store_damage_add(store, "value", store_segment_offset(store, recover->segment, found->page),
                         1);
    record.damaged = !found->good;
    if (!store_summary_add(recover->segment->summary, &record, found->page))
        recover->scan_lost = true;
    if (store_volume_find(store, &record.volume) < 0)
        store_stranger_add(store, &record.volume);
    recover_record(recover, &record, found->page, store_volume_find(store, &record.volume));
}

/* Writes the summary and the footer that a crash did not let happen. */
static void recover_seal(struct recover *recover)
{
    struct store *store = recover->store;
    struct store_segment *segment = recover->segment;
    uint32_t pages = store_summary_make(store, segment->summary);
    uint32_t first = store->segment_pages - 1 - pages;
    uint64_t bytes = (uint64_t)(pages + 1) * STORE_PAGE_BYTES;

    if (recover->scan_lost || first < recover->scan_end || segment->summary->count == 0)
        return;
    if (loop_file_write_now(store->file, store_segment_offset(store, segment, first),
                            segment->summary->pages, bytes) != ICMS_OK) {
        recover_unread(recover, "write of a summary");
        return;
    }
    store_overhead_written(store, bytes);
    segment->summary_pages = pages;
}

static icms_err recover_scan_read(struct store_scan *scan, uint32_t page, uint32_t pages)
{
    struct recover *recover = scan->arg;
    struct store *store = recover->store;
    uint64_t offset = store_segment_offset(store, recover->segment, page);

    if (loop_file_read_now(store->file, offset, scan->memory, (size_t)pages * STORE_PAGE_BYTES) ==
        ICMS_OK)
        return ICMS_OK;
    recover_unread(recover, "read of a segment");
    for (uint32_t i = 0; i < pages; i++)
        if (!recover_page_read(recover, offset, i, scan->memory))
            recover->scan_lost = recover->scan_unread = true;
    return ICMS_OK;
}

static void recover_scan(struct recover *recover)
{
    struct store *store = recover->store;
    struct store_segment *segment = recover->segment;
    struct store_scan scan = {.nonce = segment->nonce,
                              .segment_pages = store->segment_pages,
                              .map = store_segment_dead(store, segment),
                              .memory_pages = RECOVER_SCAN_PAGES,
                              .memory = recover->pages,
                              .arg = recover,
                              .read = recover_scan_read,
                              .found = recover_scanned};

    recover->scan_end = store_first_page(store->segment_pages);
    recover->scan_lost = false;
    (void)store_summary_take(store, segment);
    check(store_scan_run(&scan) == ICMS_OK);
    if (recover->scan_unread)
        recover_drop(recover);
    segment->summary_pages = STORE_NO_SUMMARY;
    if (!recover->full)
        recover_seal(recover);
    list_push(&store->summaries, &segment->summary->link);
    segment->summary = NULL;
}

/* ---- an empty life ----------------------------------------------------------------------------
 */

/* A footer without records. */
static void recover_footer_write(struct recover *recover, const struct store_segment *segment)
{
    const struct store *store = recover->store;
    struct store_life life = store_segment_life(store, segment);

    store_footer_make(&store->super.drive, &life, 0, NULL, 0,
                      (struct store_footer_df *)(void *)recover->page);
    recover_write(recover, segment, store->segment_pages - 1, recover->page, 1);
}

/* No life at all. */
static void recover_life_erase(struct recover *recover, const struct store_segment *segment)
{
    memset(recover->page, 0, STORE_PAGE_BYTES);
    recover_write(recover, segment, 0, recover->page, 1);
    recover_write(recover, segment, recover->store->segment_pages - 1, recover->page, 1);
}

/* ---- a segment that is not kept ---------------------------------------------------------------
 */

/* Evicts the segment, whose blocks were counted: by a new life, as reclaim.c does. */
static void recover_evict(struct recover *recover)
{
    struct store *store = recover->store;
    struct store_segment *segment = recover->segment;
    struct store_life life;

    store->stats.evictions += recover->evictions;
    store->evictions_ended += recover->evictions + segment->evicted;
    loop_entropy(store->loop, &segment->nonce, sizeof(segment->nonce));
    segment->sequence = ++store->sequence;
    segment->evicted = 0;
    segment->killed = segment->strangers = false;
    segment->volume = RECOVER_NO_RECORD;
    life = store_segment_life(store, segment);
    store_header_make(&store->super.drive, &life, (struct store_header_df *)(void *)recover->page);
    recover_write(recover, segment, 0, recover->page, 1);
    recover_flush(recover);
    recover_footer_write(recover, segment);
}

static void recover_segment(struct recover *recover)
{
    recover->evictions = 0;
    recover->scan_unread = false;
    recover->store->stats.evictions += recover->segment->evicted;
    if (!recover_summary(recover))
        recover_scan(recover);
    if (recover->full || recover->scan_unread) {
        check(recover->segment->live_blocks == 0);
        recover_evict(recover);
    }
}

/* ---- both ends of all segments ----------------------------------------------------------------
 */

/* The life of a segment from its header or, when that is damaged, from its last page: the footer,
 * or while it was open a copy of the header. False: it has none, or an empty one. Sets where its
 * summary is. */
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
    bool damaged = !known && store_header_seems(drive, copy), map_begun;

    if (!recover->header_good) {
        damaged = recover->header_seems || known;
        if (known)
            recover->life = *other;
    }
    if (damaged)
        store_damage_add(store, "header of a segment", store_segment_offset(store, segment, 0), 1);
    segment->summary_pages = STORE_NO_SUMMARY;
    recover->begun = known && other->nonce != recover->life.nonce;
    recover->life_known = recover->header_good || known;
    if (!recover->life_known)
        return false;
    /* the new life had only begun: what it writes next is not there */
    map_begun = recover_map(recover, segment);
    if (recover->begun || (!known && !map_begun))
        return false;
    if (sealed)
        segment->summary_pages = le32_get(footer->summary_pages);
    return recover->life.sequence != 0 && segment->summary_pages != 0;
}

/* A segment of which both ends were seen. */
static void recover_ends(struct recover *recover, uint32_t number, const uint8_t *last_page,
                         bool last_unread)
{
    struct store *store = recover->store;
    struct store_segment *segment = &store->segments[number];
    bool counts = recover_life(recover, number, last_page);
    bool unread = recover->front_unread || last_unread;
    const struct store_life *life = &recover->life;

    list_init(&segment->link);
    if (recover->header_good || counts) {
        segment->nonce = life->nonce;
        segment->sequence = life->sequence;
        if (life->sequence > store->sequence)
            store->sequence = life->sequence;
        if (life->evictions > store->evictions_ended)
            store->evictions_ended = life->evictions;
    }
    segment->state = SEGMENT_SEALING; /* until recover_lists */
    segment->volume = RECOVER_NO_RECORD;
    if (!counts) {
        /* or it would be back when it can be read, or when the header is damaged */
        if (!recover->life_known && unread)
            recover_life_erase(recover, segment);
        else if (recover->begun || (recover->header_good && unread))
            recover_footer_write(recover, segment);
        store_segment_free(store, segment);
        return;
    }
    recover->order[recover->order_count++] = number;
    store_damage_add(store, "dead map", store_segment_offset(store, segment, 1),
                     recover->map_damaged);
    if (recover->map_torn) /* or it would say less when the other copy is damaged */
        recover_map_write(recover, segment);
}

/* The last page of a segment, and the header and the dead map of the next, meet: one piece each. */
static struct store_piece recover_border(const struct store *store, uint32_t number)
{
    uint32_t last = number > 0, front = number < store->super.segments ? 1 + store->map_pages : 0;

    return (struct store_piece){.offset = store_segment_offset(store, &store->segments[number], 0) -
                                          (uint64_t)last * STORE_PAGE_BYTES,
                                .pages = last + front};
}

static bool recover_next_border(void *arg, struct store_piece *out_piece)
{
    struct recover *recover = arg;

    if (recover->asked > recover->store->super.segments)
        return false;
    *out_piece = recover_border(recover->store, recover->asked++);
    return true;
}

/* The pages of a border, each on its own: one that cannot be read does not take others along. */
static const uint8_t *recover_border_again(struct recover *recover, uint32_t number,
                                           bool *out_last_unread, bool *out_front_unread)
{
    struct store_piece piece = recover_border(recover->store, number);

    for (uint32_t i = 0; i < piece.pages; i++)
        if (!recover_page_read(recover, piece.offset, i, recover->pages))
            *(i == 0 && number > 0 ? out_last_unread : out_front_unread) = true;
    return recover->pages;
}

/* The header and the dead map that begin a segment. */
static void recover_front(struct recover *recover, uint32_t number, const uint8_t *pages)
{
    struct store *store = recover->store;
    const struct store_header_df *header = (const struct store_header_df *)(const void *)pages;

    recover->life = (struct store_life){.segment = number};
    recover->header_good =
        store_header_check(&store->super.drive, number, header, &recover->life) == ICMS_OK;
    recover->header_seems = store_header_seems(&store->super.drive, header);
    memcpy(recover->map, pages + STORE_PAGE_BYTES, (size_t)store->map_pages * STORE_PAGE_BYTES);
}

static void recover_headers(struct recover *recover)
{
    struct store *store = recover->store;

    recover->asked = 0;
    store_ahead_begin(recover->ahead, recover_next_border, recover);
    for (uint32_t i = 0; i <= store->super.segments; i++) {
        bool last_unread = false, front_unread = false;
        const uint8_t *page;

        if (!recover_take(recover, &page))
            page = recover_border_again(recover, i, &last_unread, &front_unread);
        if (i > 0) {
            recover_ends(recover, i - 1, page, last_unread);
            page += STORE_PAGE_BYTES;
        }
        recover->front_unread = front_unread;
        if (i < store->super.segments)
            recover_front(recover, i, page);
    }
    store->stats.evictions = store->evictions_ended;
}

static int recover_age(const void *a, const void *b, void *arg)
{
    const struct store *store = arg;
    uint64_t x = store->segments[*(const uint32_t *)a].sequence;
    uint64_t y = store->segments[*(const uint32_t *)b].sequence;

    return x > y ? -1 : x < y;
}

/* The oldest first, as if that had been the order of the last accesses. */
static void recover_lists(struct recover *recover)
{
    struct store *store = recover->store;

    for (uint32_t i = recover->order_count; i > 0; i--) {
        struct store_segment *segment = &store->segments[recover->order[i - 1]];

        if (segment->live_blocks == 0 && !segment->strangers) {
            store_segment_free(store, segment);
            continue;
        }
        segment->state = SEGMENT_SEALED;
        store_stream_add(store, segment->live_blocks == 0 ? STORE_STRANGERS : STORE_SHARED,
                         segment);
        policy_access_all(store->policy, &segment->recency);
    }
}

static void recover_free(struct recover *recover)
{
    if (recover == NULL)
        return;
    free(recover->order);
    free(recover->pages);
    free(recover->page);
    free(recover->map);
    store_ahead_free(&recover->ahead);
    free(recover);
}

static struct recover *recover_new(struct store *store, struct err_why *why)
{
    struct recover *recover = calloc(1, sizeof(*recover));

    if (recover == NULL)
        return NULL;
    recover->store = store;
    recover->why = why;
    recover->order = calloc(store->super.segments, sizeof(recover->order[0]));
    recover->pages = aligned_alloc(STORE_PAGE_BYTES, RECOVER_SCAN_PAGES * STORE_PAGE_BYTES);
    recover->page = aligned_alloc(STORE_PAGE_BYTES, STORE_PAGE_BYTES);
    recover->map = aligned_alloc(STORE_PAGE_BYTES, STORE_DEAD_MAP_PAGES_MAX * STORE_PAGE_BYTES);
    if (recover->order != NULL && recover->pages != NULL && recover->page != NULL &&
        recover->map != NULL)
        return recover;
    recover_free(recover);
    return NULL;
}

static void recover_segments(struct recover *recover)
{
    struct store *store = recover->store;

    recover_headers(recover);
    qsort_r(recover->order, recover->order_count, sizeof(recover->order[0]), recover_age, store);
    recover->asked = 0;
    store_ahead_begin(recover->ahead, recover_next_summary, recover);
    for (uint32_t i = 0; i < recover->order_count; i++) {
        recover->segment = &store->segments[recover->order[i]];
        recover_segment(recover);
    }
    recover_lists(recover);
    if (recover->wrote)
        recover_flush(recover);
}

icms_err store_recover(struct store *store, struct err_why *why)
{
    struct recover *recover = recover_new(store, why);
    icms_err err;

    if (recover == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory to recover the store");
    recover->err = store_ahead_new(store->file,
                                   (uint32_t)u64_max(store_summary_pages(store->segment_pages) + 1,
                                                     2 + STORE_DEAD_MAP_PAGES_MAX),
                                   why, &recover->ahead);
    /* what a process that was killed left in the cache of the device counts from now on */
    recover_flush(recover);
    if (recover->err == ICMS_OK)
        recover_segments(recover);
    err = recover->err;
    recover_free(recover);
    return err;
}
