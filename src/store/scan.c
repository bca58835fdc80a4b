/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scanner over the pages of a segment. Pure; every byte it is fed is hostile.
 */
#include "store/scan.h"

#include "base/check.h"
#include "base/crc.h"

void store_scan_init(struct store_scan *scan, uint64_t nonce, uint32_t segment_pages)
{
    memset(scan, 0, sizeof(*scan));
    scan->nonce = nonce;
    scan->segment_pages = segment_pages;
    scan->page = 1;
}

/* Takes one page of the current record: bytes of its value from offset on. */
static void store_scan_value(struct store_scan *scan, const uint8_t *page, uint32_t offset)
{
    uint32_t n = STORE_PAGE_BYTES - offset;

    if (n > scan->value_left)
        n = scan->value_left;
    scan->crc = crc32c_add(scan->crc, page + offset, n);
    scan->value_left -= n;
    if (--scan->pages_left > 0)
        return;
    check(scan->value_left == 0);
    scan->found(scan, &scan->record, scan->record_page,
                scan->record.type == STORE_RECORD_TOMBSTONE || scan->crc == scan->record.value_crc);
}

void store_scan_feed(struct store_scan *scan, const uint8_t *memory, uint32_t pages)
{
    for (uint32_t i = 0; i < pages; i++, scan->page++) {
        const uint8_t *page = memory + (uint64_t)i * STORE_PAGE_BYTES;

        if (scan->page >= scan->segment_pages - 2)
            return;
        if (scan->pages_left > 0) {
            store_scan_value(scan, page, 0);
            continue;
        }
        if (store_record_check(scan->nonce, scan->page, scan->segment_pages,
                               (const struct store_record_df *)(const void *)page,
                               &scan->record) != ICMS_OK)
            continue;
        scan->record_page = scan->page;
        scan->pages_left = store_record_pages(scan->record.value_bytes);
        scan->value_left = scan->record.value_bytes;
        scan->crc = store_value_crc_seed(scan->nonce, scan->page);
        store_scan_value(scan, page, sizeof(struct store_record_df));
    }
}
