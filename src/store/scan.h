/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/scan.h: finds the records of a segment that has no summary. Private to the store; used
 * where the store blocks (recover.c, verify.c).
 *
 * The scan goes through the pages in order. A page that begins with a record of this life of the
 * segment tells how far it reaches; one that ends with the copy of a header tells of a record whose
 * first page is damaged, and the scan goes back for its value. All other pages are passed over, so
 * the scan finds its way again behind a hole. Dead records are stepped over; the value of each
 * other one is checked.
 */
#ifndef STORE_SCAN_H
#define STORE_SCAN_H

#include "store/layout.h"

/* A record of the life that is not dead, one of whose headers holds. */
struct store_found {
    struct store_record record; /* what the header says      */
    uint32_t page;              /* where it begins           */
    bool good;                  /* the value has its CRC, and the dead map holds */
    bool whole;                 /* the header in front holds */
};

struct store_scan {
    /* in: set by the caller */
    uint64_t nonce;                  /* of the life that is looked for                      */
    uint32_t segment_pages;          /* of the whole segment                                */
    const struct store_dead_df *map; /* its dead map                               */
    uint32_t memory_pages;           /* pages that memory has room for, 1 at least          */
    uint8_t *memory;                 /* the caller's, aligned; window of the scan           */
    void *arg;                       /* the caller's                                        */
    /* reads so many pages from this one on into memory; an error ends the scan */
    icms_err (*read)(struct store_scan *scan, uint32_t page, uint32_t pages);
    /* called for each record, in the order of their pages */
    void (*found)(struct store_scan *scan, const struct store_found *found);
    /* private */
    uint32_t first;  /* page that memory begins with */
    uint32_t loaded; /* pages in memory              */
};

/* Goes through the segment; the error of read, or OK. */
icms_err store_scan_run(struct store_scan *scan) ICMS_MUST_CHECK;

#endif
