/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/layout.h: every byte on flash, and the pure functions that make and check them.
 *
 *   0        superblock                  4 KiB   (again at 32 KiB)
 *   64 KiB   segment 0                   segment_bytes
 *   ...      segment n - 1
 *
 *   segment:  header page | records ... | unused | summary pages | footer page
 *   record:   header 64 B | value | zeros | the header again, at the end of the last page
 *   witness:  the first page of the record in front of it, again
 *
 * Numbers are little-endian. Names of structs on flash end in _df.
 *
 * What protects what. A segment draws a nonce of 64 bits each time it is opened; nobody outside of
 * the store ever sees it. The hashes of record headers and summary pages and the CRC of values are
 * seeded with it and with the page they lie in. So bytes of an earlier life of the segment, bytes
 * that were written to a wrong place, and values whose bytes imitate records never pass for a
 * record. Superblock, segment header and footer are hashed with the drive's uuid and the segment's
 * number: what an earlier format left behind does not pass either.
 *
 * What is there twice. The superblock; the life of a segment (its header, and in its last page the
 * footer, or while the segment is open a copy of the header); the header of each record. So a byte
 * that flips anywhere leaves either the bytes that were stored, or a record that says whose value
 * is damaged. A record that replaces a value has a witness, written when all of the record was
 * durable and before anybody was told: with it, a damaged value was whole once, without it perhaps
 * never.
 *
 * Pure: no I/O, no clock, no allocation; any thread. Everything read is hostile until checked.
 */
#ifndef STORE_LAYOUT_H
#define STORE_LAYOUT_H

#include <assert.h>

#include "base/bytes.h"
#include "base/err.h"
#include "base/types.h"

#define STORE_PAGE_BYTES     LIMIT_DISK_ALIGN
#define STORE_SUPER_OFFSET_A 0
#define STORE_SUPER_OFFSET_B 32768
#define STORE_DATA_OFFSET    65536

#define STORE_SEGMENT_BYTES_MIN ((uint64_t)64 << 10)
#define STORE_SEGMENT_BYTES_MAX ((uint64_t)256 << 20)

/* The index packs a segment number into 20 bits, a page into 16, a record's pages into 12. */
#define STORE_SEGMENTS_MIN     4
#define STORE_SEGMENTS_MAX     (1u << 20)
#define STORE_RECORD_PAGES_MAX 4095

#define STORE_SUPER_MAGIC   UINT64_C(0x45524f54534d4349)
#define STORE_SUPER_VERSION 3

struct store_super_df {
    le64 magic;             /* STORE_SUPER_MAGIC                                       */
    le32 version;           /* of the whole format: STORE_SUPER_VERSION                */
    le32 page_bytes;        /* STORE_PAGE_BYTES                                        */
    uint8_t drive[16];      /* uuid of this format of the drive                        */
    le64 bytes;             /* of the drive when it was formatted; it may not shrink   */
    le64 segment_bytes;     /* power of two                                            */
    le32 segments;          /* how many                                                */
    le32 data_offset;       /* STORE_DATA_OFFSET                                       */
    uint8_t reserved[4032]; /* zeros                                                   */
    le64 hash;              /* of all bytes before                                     */
};
static_assert(sizeof(struct store_super_df) == STORE_PAGE_BYTES, "superblock is one page");

/* Blocks of one volume that were evicted since the drive was formatted. */
struct store_eviction_df {
    uint8_t volume[16]; /* uuid            */
    le64 evictions;     /* blocks for ever */
};
static_assert(sizeof(struct store_eviction_df) == 24, "no padding");

/* One life of a segment; in its header, and again in its footer. While the segment is open its last
 * page is a copy of the header page. */
struct store_life_df {
    le32 magic;        /* STORE_HEADER_MAGIC or STORE_FOOTER_MAGIC                   */
    le16 version;      /* STORE_LIFE_VERSION                                         */
    le16 volume_count; /* rows of volume[] in use, at most 64                        */
    le32 segment;      /* its number: a page written to the wrong place does not pass */
    le32 generation;   /* how often the segment was opened                           */
    uint8_t drive[16]; /* as in the superblock                                       */
    le64 nonce;        /* seeds the checks of records and summary pages              */
    le64 sequence;     /* store-wide, of its opening: the age of the segment         */
    le64 evictions;    /* blocks whose segment was written over, since the format    */
    struct store_eviction_df volume[LIMIT_VOLUMES]; /* the same by volume            */
};
static_assert(sizeof(struct store_life_df) == 56 + 64 * 24, "no padding");

#define STORE_HEADER_MAGIC 0x68676573u
#define STORE_FOOTER_MAGIC 0x66676573u
#define STORE_LIFE_VERSION 1

struct store_header_df {
    struct store_life_df life; /* magic STORE_HEADER_MAGIC */
    uint8_t reserved[STORE_PAGE_BYTES - 8 - sizeof(struct store_life_df)]; /* zeros */
    le64 hash; /* of all bytes before, seeded with drive and segment */
};
static_assert(sizeof(struct store_header_df) == STORE_PAGE_BYTES, "header is one page");

struct store_footer_df {
    struct store_life_df life;         /* the same nonce as in the header                  */
    le32 records;                      /* entries in the summary pages                     */
    le32 summary_pages;                /* they lie right before the footer                 */
    uint8_t volume[LIMIT_VOLUMES][16]; /* what the volume numbers in the entries stand for */
    uint8_t reserved[STORE_PAGE_BYTES - 16 - 1024 - sizeof(struct store_life_df)]; /* zeros */
    le64 hash; /* as in the header                                 */
};
static_assert(sizeof(struct store_footer_df) == STORE_PAGE_BYTES, "footer is one page");

enum store_record_type {
    STORE_RECORD_VALUE = 1,     /* a block                                    */
    STORE_RECORD_TOMBSTONE = 2, /* the key was deleted; no value, one page    */
};

struct store_record_df {
    le16 magic;          /* STORE_RECORD_MAGIC                                       */
    uint8_t version;     /* STORE_RECORD_VERSION                                     */
    uint8_t type;        /* enum store_record_type                                   */
    uint8_t key_length;  /* 1..16                                                    */
    uint8_t flags;       /* STORE_RECORD_FRESH                                       */
    uint8_t reserved[2]; /* zeros                                                   */
    le32 value_bytes;    /* tombstone: 0                                             */
    le32 value_crc;      /* CRC32C of the value, seeded with nonce and page          */
    le64 sequence;       /* store-wide; of two records of a key the higher one counts */
    uint8_t key[16];     /* zeros past key_length                                    */
    uint8_t volume[16];  /* uuid                                                     */
    le64 hash;           /* of all bytes before, seeded with nonce and page          */
};
static_assert(sizeof(struct store_record_df) == 64, "a record header is 64 bytes");

#define STORE_RECORD_MAGIC   0x7269u
#define STORE_RECORD_VERSION 3
#define STORE_RECORD_FRESH   0x02u /* nothing was there: what an older record holds was evicted */

static_assert(STORE_SEGMENT_BYTES_MAX / STORE_PAGE_BYTES <= 1u << 16, "the index has 16 bits");

struct store_entry_df {
    uint8_t key[16];     /* zeros past key_length                    */
    le64 sequence;       /* of the record                            */
    le32 value_bytes;    /* of the record                            */
    le32 page;           /* where its header is, in the segment      */
    uint8_t volume;      /* row of store_footer_df.volume            */
    uint8_t key_length;  /* 1..16                                    */
    uint8_t type;        /* enum store_record_type                   */
    uint8_t damaged;     /* 1: the value was found damaged by a scan */
    uint8_t fresh;       /* 1: STORE_RECORD_FRESH of the record      */
    uint8_t reserved[3]; /* zeros                                    */
};
static_assert(sizeof(struct store_entry_df) == 40, "no padding");

#define STORE_SUMMARY_MAGIC   0x6d757369u
#define STORE_SUMMARY_ENTRIES 102

struct store_summary_df {
    le32 magic; /* STORE_SUMMARY_MAGIC                                  */
    le32 count; /* entries in use                                       */
    struct store_entry_df entry[STORE_SUMMARY_ENTRIES]; /* zeros past count */
    le64 hash; /* of all bytes before, seeded with nonce and page      */
};
static_assert(sizeof(struct store_summary_df) == STORE_PAGE_BYTES, "summary page is one page");

/* ---- what the bytes mean ----------------------------------------------------------------------
 */

struct store_super {
    struct uuid drive;      /* of this format of the drive */
    uint64_t bytes;         /* of the drive */
    uint64_t segment_bytes; /* power of two */
    uint32_t segments;      /* how many */
};

struct store_life {
    uint32_t segment;                         /* its number */
    uint32_t generation;                      /* how often it was opened */
    uint64_t nonce;                           /* secret of this life */
    uint64_t sequence;                        /* age: larger is younger */
    uint64_t evictions;                       /* final ones of the drive */
    uint32_t volume_count;                    /* rows in use below */
    struct uuid volume[LIMIT_VOLUMES];        /* with evictions */
    uint64_t volume_evictions[LIMIT_VOLUMES]; /* of each, final */
};

struct store_record {
    enum store_record_type type; /* value or tombstone */
    struct key key;              /* 1..16 bytes */
    struct uuid volume;          /* whose key */
    uint64_t sequence;           /* of the change, store-wide */
    uint32_t value_bytes;        /* 0 in a tombstone */
    uint32_t value_crc;          /* from store_value_crc_seed on */
    bool fresh;                  /* nothing was there: an older record's value was evicted */
    bool damaged;                /* in summaries: its value is known to be damaged */
};

/* Pages of a record with a value of so many bytes: header, value, header again. */
static inline uint32_t store_record_pages(uint32_t value_bytes)
{
    return (uint32_t)((2 * sizeof(struct store_record_df) + (uint64_t)value_bytes +
                       STORE_PAGE_BYTES - 1) /
                      STORE_PAGE_BYTES);
}

/* Summary pages for so many records. */
static inline uint32_t store_summary_pages(uint32_t records)
{
    return (records + STORE_SUMMARY_ENTRIES - 1) / STORE_SUMMARY_ENTRIES;
}

/* The most pages that records may take in a segment: header, a summary page and the footer stay. Of
 * one record and its witness together. */
static inline uint32_t store_segment_record_pages(uint32_t segment_pages)
{
    return segment_pages - 3;
}

void store_super_make(const struct store_super *super, struct store_super_df *out_df);

/* FOREIGN: not ours. CORRUPT: ours, damaged. VERSION: ours, unknown version or sizes. */
icms_err store_super_check(const struct store_super_df *df,
                           struct store_super *out_super) ICMS_MUST_CHECK;

/* Fills a header page; life->segment belongs to the drive. */
void store_header_make(const struct uuid *drive, const struct store_life *life,
                       struct store_header_df *out_df);

/* CORRUPT when it is not the header of this segment of this drive. */
icms_err store_header_check(const struct uuid *drive, uint32_t segment,
                            const struct store_header_df *df,
                            struct store_life *out_life) ICMS_MUST_CHECK;

/* True when a page that failed store_header_check had been one: it counts as damage. */
bool store_header_seems(const struct uuid *drive, const struct store_header_df *df);

void store_footer_make(const struct uuid *drive, const struct store_life *life, uint32_t records,
                       const struct uuid volume[LIMIT_VOLUMES], struct store_footer_df *out_df);
icms_err store_footer_check(const struct uuid *drive, uint32_t segment, uint32_t segment_pages,
                            const struct store_footer_df *df,
                            struct store_life *out_life) ICMS_MUST_CHECK;

/* The CRC of a value that lies in a record at this page; feed pieces in order, from the seed on. */
uint32_t store_value_crc_seed(uint64_t nonce, uint32_t page);

void store_record_make(uint64_t nonce, uint32_t page, const struct store_record *record,
                       struct store_record_df *out_df);

/* Checks the header only. CORRUPT when there is no record of this life at this page, or one that
 * would not end inside the segment. */
icms_err store_record_check(uint64_t nonce, uint32_t page, uint32_t segment_pages,
                            const struct store_record_df *df,
                            struct store_record *out_record) ICMS_MUST_CHECK;

/* Where the copy of the header lies in the last page of a record. */
#define STORE_TAIL_OFFSET (STORE_PAGE_BYTES - sizeof(struct store_record_df))

/* Checks the copy of a record's header that ends in this page; *out_page is then where the record
 * begins. CORRUPT as store_record_check. */
icms_err store_tail_check(uint64_t nonce, uint32_t page, uint32_t segment_pages,
                          const struct store_record_df *df, struct store_record *out_record,
                          uint32_t *out_page) ICMS_MUST_CHECK;

/* Whether a page begins like the record at `page`, whose header said what is in record: the witness
 * of it. */
bool store_witness_check(uint64_t nonce, uint32_t page, uint32_t segment_pages,
                         const struct store_record_df *df, const struct store_record *record);

/* Sets magic, count and hash of a page whose entries are in place. */
void store_summary_finish(uint64_t nonce, uint32_t page, uint32_t count,
                          struct store_summary_df *df);

/* CORRUPT, or the number of entries. */
icms_err store_summary_check(uint64_t nonce, uint32_t page, const struct store_summary_df *df,
                             uint32_t *out_count) ICMS_MUST_CHECK;

void store_entry_make(const struct store_record *record, uint32_t page, uint8_t volume,
                      struct store_entry_df *out_df);

/* out_record->volume is left alone: it is row *out_volume of the footer's table. CORRUPT when the
 * entry cannot be: key length, type, a place outside of the segment. */
icms_err store_entry_check(const struct store_entry_df *df, uint32_t segment_pages,
                           struct store_record *out_record, uint32_t *out_page,
                           uint8_t *out_volume) ICMS_MUST_CHECK;

#endif
