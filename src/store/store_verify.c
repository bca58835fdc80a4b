/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the index with what a full scan of the drive finds.
 *
 * It shares the scanner with recovery and nothing else. Each record that is not dead has to be in
 * the index at its place, and each block of the index on flash.
 */
#include "store/store_verify.h"

#include <stdlib.h>

#include "store/scan.h"
#include "store/store_int.h"

#define VERIFY_PAGES 256

struct verify {
    struct store *store;        /* being verified                      */
    struct err_why *why;        /* of a difference                     */
    void *map;                  /* of the segment that is scanned, from flash */
    struct store_dead_df *dead; /* the same, in one copy               */
    uint32_t segment;           /* its number                          */
    uint64_t differences;       /* found so far                        */
    uint64_t matched;           /* good blocks that are where they should be */
};

/* Blocks of it are dead on flash, or their life is over, and about to leave the index. */
static bool verify_changing(const struct store_segment *segment)
{
    return segment->state == SEGMENT_RENEWING || segment->kills != 0;
}

static void verify_found(struct store_scan *scan, const struct store_found *found)
{
    struct verify *verify = scan->arg;
    struct store *store = verify->store;
    int volume = store_volume_find(store, &found->record.volume);
    struct store_location location;
    bool present;

    if (volume < 0)
        return;
    present = store_index_find(store->index, (uint32_t)volume, &found->record.key, &location);
    if (present && location.segment == verify->segment && location.page == found->page &&
        location.pages == store_record_pages(found->record.value_bytes)) {
        verify->matched += !location.damaged;
        return;
    }
    if (verify_changing(&store->segments[verify->segment]))
        return;
    if (!found->good) /* what a failed write left, or damage that nobody met yet */
        return;
    verify->differences++;
    (void)err_set(verify->why, ICMS_CORRUPT, "segment %u page %u: a block, but the index has %s",
                  verify->segment, found->page, present ? "another place" : "nothing");
}

static icms_err verify_read(struct store_scan *scan, uint32_t page, uint32_t pages)
{
    const struct verify *verify = scan->arg;
    struct store *store = verify->store;

    return loop_file_read_now(store->file,
                              store_segment_offset(store, &store->segments[verify->segment], page),
                              scan->memory, (size_t)pages * STORE_PAGE_BYTES);
}

/* Of one that gets a new life, blocks of the life before may still be in the index. */
static bool verify_scanned(const struct store_segment *segment)
{
    return (segment->state == SEGMENT_RENEWING && segment->live_blocks > 0) ||
           segment->state == SEGMENT_OPEN || segment->state == SEGMENT_SEALING ||
           segment->state == SEGMENT_SEALED;
}

static icms_err verify_scan(struct verify *verify, uint8_t *pages)
{
    struct store *store = verify->store;

    for (uint32_t i = 0; i < store->super.segments; i++) {
        struct store_scan scan = {.nonce = store->segments[i].nonce,
                                  .segment_pages = store->segment_pages,
                                  .map = verify->dead,
                                  .memory_pages = VERIFY_PAGES,
                                  .memory = pages,
                                  .arg = verify,
                                  .read = verify_read,
                                  .found = verify_found};
        icms_err err;
        bool torn;

        if (!verify_scanned(&store->segments[i]))
            continue;
        verify->segment = i;
        err = loop_file_read_now(store->file, store_segment_offset(store, &store->segments[i], 1),
                                 verify->map, (size_t)store->map_pages * STORE_PAGE_BYTES);
        (void)store_dead_load(scan.nonce, store->segment_pages, verify->map, verify->dead, &torn);
        if (verify_changing(&store->segments[i]))
            store_dead_make(scan.nonce, store->segment_pages, verify->dead);
        if (err == ICMS_OK)
            err = store_scan_run(&scan);
        if (err != ICMS_OK)
            return err;
    }
    return ICMS_OK;
}

/* Good blocks of the index that were not found on flash. */
static uint64_t verify_index(struct verify *verify)
{
    struct store *store = verify->store;
    struct store_block block;
    uint32_t cursor = 0;
    uint64_t good = 0;

    while (store_index_next(store->index, &cursor, UINT32_MAX, &block))
        good += !block.location.damaged;
    if (good == verify->matched)
        return 0;
    (void)err_set(verify->why, ICMS_CORRUPT, "%llu blocks of the index, %llu of them on flash",
                  (unsigned long long)good, (unsigned long long)verify->matched);
    return good > verify->matched ? good - verify->matched : verify->matched - good;
}

uint64_t store_verify(struct store *store, struct err_why *why)
{
    struct verify verify = {.store = store, .why = why};
    uint8_t *pages = aligned_alloc(STORE_PAGE_BYTES, VERIFY_PAGES * STORE_PAGE_BYTES);
    icms_err err = ICMS_NO_MEMORY;

    check(store->magic == STORE_MAGIC);
    verify.map = aligned_alloc(STORE_PAGE_BYTES, STORE_DEAD_MAP_PAGES_MAX * STORE_PAGE_BYTES);
    verify.dead = calloc(store_dead_sectors(store->segment_pages), sizeof(*verify.dead));
    if (pages != NULL && verify.map != NULL && verify.dead != NULL)
        err = verify_scan(&verify, pages);
    free(pages);
    free(verify.map);
    free(verify.dead);
    if (err == ICMS_OK)
        return verify.differences + verify_index(&verify);
    (void)err_set(why, err, "cannot read the whole drive: %s", icms_err_text(err));
    return 1;
}
