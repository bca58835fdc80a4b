/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the index with what a full scan of the drive finds. Blocking; for tests and the doctor,
 * while the loop does not run.
 *
 * It shares the scanner with recovery and nothing else. Summaries are asked only about records that
 * the index does not know: the write of one that its summary does not name has failed.
 */
#include <stdlib.h>

#include "store/scan.h"
#include "store/store_int.h"

#define VERIFY_PAGES 256

/* A record that was found. */
struct verify_record {
    struct store_block block; /* whose and where                      */
    uint64_t sequence;        /* of two of a key the higher one counts */
    bool tombstone;           /* else a value                         */
};

struct verify {
    struct store *store;           /* being verified                */
    struct verify_record *records; /* all that were found           */
    uint64_t count, room;          /* in records; it grows          */
    uint32_t segment;              /* that is being scanned         */
    bool no_memory;                /* records could not grow        */
};

/* Whether the index marks the block at this place as damaged. */
static bool verify_marked(const struct verify *verify, const struct store_block *block)
{
    struct store_spot spot;

    return store_index_find(verify->store->index, block->volume, &block->key, &spot) &&
           spot.damaged && spot.segment == block->spot.segment && spot.page == block->spot.page;
}

static void verify_found(struct store_scan *scan, const struct store_found *found)
{
    struct verify *verify = scan->arg;
    const struct store_record *record = &found->record;
    int slot = store_volume_slot_find(verify->store, &record->volume);
    struct store_block block = {.volume = (uint32_t)slot,
                                .key = record->key,
                                .spot = {.segment = verify->segment,
                                         .page = found->page,
                                         .pages = store_record_pages(record->value_bytes)}};

    if (slot < 0 || (!found->good && !verify_marked(verify, &block)))
        return;
    if (verify->count == verify->room) {
        uint64_t room = verify->room * 2 + 1024;
        struct verify_record *records = realloc(verify->records, room * sizeof(verify->records[0]));

        if (records == NULL) {
            verify->no_memory = true;
            return;
        }
        verify->records = records;
        verify->room = room;
    }
    verify->records[verify->count++] =
        (struct verify_record){.block = block,
                               .sequence = record->sequence,
                               .tombstone = record->type == STORE_RECORD_TOMBSTONE};
}

static int verify_order(const struct verify_record *a, const struct verify_record *b)
{
    int order;

    if (a->block.volume != b->block.volume)
        return a->block.volume < b->block.volume ? -1 : 1;
    order = memcmp(a->block.key.bytes, b->block.key.bytes, sizeof(a->block.key.bytes));
    return order != 0 ? order : (int)a->block.key.length - (int)b->block.key.length;
}

static int verify_sort(const void *a, const void *b)
{
    const struct verify_record *x = a, *y = b;
    int order = verify_order(x, y);

    return order != 0 ? order : x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

static icms_err verify_read(struct store_scan *scan, uint32_t page, uint32_t pages)
{
    const struct verify *verify = scan->arg;
    struct store *store = verify->store;

    return loop_file_read_now(store->file, store_segment_offset(store, verify->segment, page),
                              scan->memory, (size_t)pages * STORE_PAGE_BYTES);
}

static icms_err verify_scan(struct verify *verify, uint8_t *pages)
{
    struct store *store = verify->store;

    for (uint32_t i = 0; i < store->super.segments; i++) {
        struct store_scan scan = {.nonce = store->segments[i].nonce,
                                  .segment_pages = store->segment_pages,
                                  .memory_pages = VERIFY_PAGES,
                                  .memory = pages,
                                  .arg = verify,
                                  .read = verify_read,
                                  .found = verify_found};
        icms_err err;

        if (store->segments[i].state == SEGMENT_FREE ||
            store->segments[i].state == SEGMENT_DISCARDING)
            continue;
        verify->segment = i;
        err = store_scan_run(&scan);
        if (err != ICMS_OK)
            return err;
    }
    return ICMS_OK;
}

static bool verify_entry(const struct store *store, const struct store_entry_df *df, uint32_t page)
{
    struct store_record record;
    uint32_t at;
    uint8_t row;

    return store_entry_check(df, store->segment_pages, &record, &at, &row) == ICMS_OK && at == page;
}

/* Whether the summary of its segment names a record; true without one. */
static bool verify_named(const struct store *store, const struct store_spot *spot, uint8_t *memory)
{
    const struct store_segment *segment = &store->segments[spot->segment];
    const struct store_summary_df *df = (const struct store_summary_df *)(const void *)memory;
    const struct store_summary *open = segment->summary;

    for (uint32_t i = 0; open != NULL && i < open->count; i++) {
        if (verify_entry(store,
                         &open->pages[i / STORE_SUMMARY_ENTRIES].entry[i % STORE_SUMMARY_ENTRIES],
                         spot->page))
            return true;
    }
    for (uint32_t i = 0; open == NULL && i < segment->summary_pages; i++) {
        uint32_t page = store->segment_pages - 1 - segment->summary_pages + i, count;

        if (segment->summary_pages == STORE_NO_SUMMARY ||
            loop_file_read_now(store->file, store_segment_offset(store, spot->segment, page),
                               memory, STORE_PAGE_BYTES) != ICMS_OK ||
            store_summary_check(segment->nonce, page, df, &count) != ICMS_OK)
            return true;
        for (uint32_t n = 0; n < count; n++) {
            if (verify_entry(store, &df->entry[n], spot->page))
                return true;
        }
    }
    return false;
}

/* Whether the index says of a key what its youngest record does. A block that left the index since
 * the open (evicted, damaged) may still be on flash. */
static bool verify_same(const struct store *store, const struct verify_record *record, bool there,
                        const struct store_spot *spot)
{
    if (!there)
        return record->tombstone || store->dropped;
    return !record->tombstone && spot->segment == record->block.spot.segment &&
           spot->page == record->block.spot.page && spot->pages == record->block.spot.pages;
}

/* The youngest record of each key, but for those whose write failed, has to be what the index says.
 */
static uint64_t verify_compare(struct verify *verify, uint8_t *memory, struct err_why *why)
{
    struct store *store = verify->store;
    uint64_t differences = 0, matched = 0;

    for (uint64_t first = 0, end; first < verify->count; first = end) {
        const struct verify_record *record;
        struct store_spot spot;
        bool there, same;

        for (end = first + 1; end < verify->count; end++) {
            if (verify_order(&verify->records[first], &verify->records[end]) != 0)
                break;
        }
        record = &verify->records[end - 1];
        there = store_index_find(store->index, record->block.volume, &record->block.key, &spot);
        same = verify_same(store, record, there, &spot);
        while (!same && record > &verify->records[first] &&
               !verify_named(store, &record->block.spot, memory))
            same = verify_same(store, --record, there, &spot);
        matched += same && there;
        if (same || (!there && !verify_named(store, &record->block.spot, memory)))
            continue;
        differences++;
        (void)err_set(why, ICMS_CORRUPT, "segment %u page %u: %s, but the index has %s",
                      record->block.spot.segment, record->block.spot.page,
                      record->tombstone ? "deleted" : "a block",
                      there ? "another place" : "nothing");
    }
    if (matched < store_index_blocks(store->index))
        (void)err_set(why, ICMS_CORRUPT, "%llu blocks of the index are not on flash",
                      (unsigned long long)(store_index_blocks(store->index) - matched));
    return differences + store_index_blocks(store->index) - matched;
}

uint64_t store_verify(struct store *store, struct err_why *why)
{
    struct verify verify = {.store = store};
    uint8_t *pages = aligned_alloc(STORE_PAGE_BYTES, VERIFY_PAGES * STORE_PAGE_BYTES);
    uint64_t differences;
    icms_err err;

    check(store->magic == STORE_MAGIC);
    err = pages != NULL ? verify_scan(&verify, pages) : ICMS_NO_MEMORY;
    if (err == ICMS_OK && verify.no_memory)
        err = ICMS_NO_MEMORY;
    if (err == ICMS_OK) {
        if (verify.count > 0)
            qsort(verify.records, verify.count, sizeof(verify.records[0]), verify_sort);
        differences = verify_compare(&verify, pages, why);
    } else {
        differences = 1;
        (void)err_set(why, err, "cannot read the whole drive: %s", icms_err_text(err));
    }
    free(verify.records);
    free(pages);
    return differences;
}
