/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scanner over the pages of a segment. Every byte it reads is hostile; what it reads twice, for
 * the value behind a damaged header, is bounded by the records being apart from each other.
 */
#include "store/scan.h"

/* The last two pages hold no record. */
static uint32_t scan_end(const struct store_scan *scan)
{
    return scan->segment_pages - 2;
}

/* Makes a page readable; it stays so until the next call. */
static icms_err scan_page(struct store_scan *scan, uint32_t page, const uint8_t **out_page)
{
    if (page < scan->first || page >= scan->first + scan->loaded) {
        uint32_t n = scan_end(scan) - page;
        icms_err err;

        if (n > scan->memory_pages)
            n = scan->memory_pages;
        scan->loaded = 0;
        err = scan->read(scan, page, n);
        if (err != ICMS_OK)
            return err;
        scan->first = page;
        scan->loaded = n;
    }
    *out_page = scan->memory + (uint64_t)(page - scan->first) * STORE_PAGE_BYTES;
    return ICMS_OK;
}

/* Checks the value of a record that is not dead, and tells of it. */
static icms_err scan_record(struct store_scan *scan, struct store_found *found)
{
    const struct store_record *record = &found->record;
    struct store_value_crc crc;
    uint32_t left = record->value_bytes, offset = sizeof(struct store_record_df);
    enum store_dead dead = store_dead_get(scan->nonce, found->page, scan->map);

    if (dead == STORE_DEAD)
        return ICMS_OK;
    store_value_crc_begin(&crc, scan->nonce, found->page);

    for (uint32_t page = found->page; left > 0; page++) {
        uint32_t n = STORE_PAGE_BYTES - offset < left ? STORE_PAGE_BYTES - offset : left;
        const uint8_t *memory;
        icms_err err = scan_page(scan, page, &memory);

        if (err != ICMS_OK)
            return err;
        store_value_crc_add(&crc, memory + offset, n, NULL);
        left -= n;
        offset = 0;
    }
    found->good = store_value_crc_end(&crc, NULL) == record->value_crc && dead == STORE_LIVE;
    scan->found(scan, found);
    return ICMS_OK;
}

icms_err store_scan_run(struct store_scan *scan)
{
    uint32_t page = store_first_page(scan->segment_pages);
    uint32_t free_from = page; /* records before are known */

    scan->first = scan->loaded = 0;
    while (page < scan_end(scan)) {
        struct store_found found = {.page = page};
        const uint8_t *memory;
        icms_err err = scan_page(scan, page, &memory);

        if (err != ICMS_OK)
            return err;
        found.whole = store_record_check(scan->nonce, page, scan->segment_pages,
                                         (const struct store_record_df *)(const void *)memory,
                                         &found.record) == ICMS_OK;
        page++;
        if (!found.whole &&
            (store_tail_check(
                 scan->nonce, page - 1, scan->segment_pages,
                 (const struct store_record_df *)(const void *)(memory + STORE_TAIL_OFFSET),
                 &found.record, &found.page) != ICMS_OK ||
             found.page < free_from))
            continue;
        err = scan_record(scan, &found);
        if (err != ICMS_OK)
            return err;
        page = free_from = found.page + store_record_pages(found.record.value_bytes);
    }
    return ICMS_OK;
}
