/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/scan.h: finds the records of a segment that has no summary. Private to the store; pure.
 *
 * Pages go in, in order; records come out. A page that does not begin with a record of this life of
 * the segment is passed over, so the scan finds its way again behind a hole; a record whose header
 * holds and whose value does not is reported as bad and passed over by its length.
 */
#ifndef STORE_SCAN_H
#define STORE_SCAN_H

#include "store/layout.h"

struct store_scan {
    uint64_t nonce;             /* of the life that is looked for                 */
    uint32_t segment_pages;     /* of the whole segment                           */
    uint32_t page;              /* the next one to feed                           */
    uint32_t pages_left;        /* of the record that is being read; 0: none      */
    uint32_t value_left;        /* bytes of its value still to come               */
    uint32_t crc;               /* of its value so far                            */
    uint32_t record_page;       /* where it began                                 */
    struct store_record record; /* its header                                     */
    /* called for each record; good: the value has the right CRC */
    void (*found)(struct store_scan *scan, const struct store_record *record, uint32_t page,
                  bool good);
    void *arg; /* the caller's */
};

/* The first page to feed is page 1; found and arg are set by the caller afterwards. */
void store_scan_init(struct store_scan *scan, uint64_t nonce, uint32_t segment_pages);

/* Feeds so many whole pages. Pages in which no record can lie (the last two) are ignored. */
void store_scan_feed(struct store_scan *scan, const uint8_t *memory, uint32_t pages);

#endif
