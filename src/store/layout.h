/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/layout.h: every byte on flash, and the pure functions that make and check them.
 *
 *   0        superblock                  4 KiB   (again at 32 KiB)
 *   4 KiB    the owner's notes           24 KiB  (again at 36 KiB)
 *   64 KiB   segment 0                   segment_bytes
 *   ...      segment n - 1
 *
 *   segment:  header page | dead map | records ... | unused | summary pages | footer page
 *   record:   header 64 B | value | CRC of each piece of the value | zeros | the header again, at
 * the end of the last page
 *
 * Numbers are little-endian. Names of structs on flash end in _df.
 *
 * Lives. A segment gets a new life each time it is evicted: a new header with a nonce of 64 bits
 * that is never seen outside of the store. The hashes of record headers, summary pages and dead
 * maps and the CRC of values are seeded with it and with the page they lie in. So bytes of an
 * earlier life, bytes that were written to a wrong place, and values whose bytes imitate records
 * never pass for a record. Superblock, segment header and footer are hashed with the drive's uuid
 * and the segment's number: what an earlier format left behind does not pass either.
 *
 * Dead records. The dead map of a segment has one bit for each page. A record is dead when the bit
 * of its first page is set; within a life bits are only ever set. The map is made of sectors of 512
 * bytes, the unit that a drive writes whole; each checks itself and is there twice. What one copy
 * of a sector says is dead is dead, so a torn write of the map sets some of the new bits and clears
 * none. Records in the range of a sector of which both copies are damaged are damaged.
 *
 * Copies. The superblock; the life of a segment (its header, and in its last page the footer, or
 * while the segment is open a copy of the header); the header of each record. So a byte that flips
 * anywhere leaves either the bytes that were stored, or a record that says whose value is damaged.
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
#define STORE_NOTE_OFFSET_A  4096
#define STORE_NOTE_OFFSET_B  36864
#define STORE_DATA_OFFSET    65536
#define STORE_NOTE_PAGES     6

#define STORE_SEGMENT_BYTES_MIN ((uint64_t)64 << 10)
#define STORE_SEGMENT_BYTES_MAX ((uint64_t)256 << 20)

/* The index packs a segment number into 20 bits, a page into 16, a record's pages into 12: a number
 * of 9 bits shifted by 0 to 7, so large records have a multiple of 2, 4, ... 128 pages. */
#define STORE_SEGMENTS_MIN     4
#define STORE_SEGMENTS_MAX     (1u << 20)
#define STORE_PAGES_BITS       9
#define STORE_RECORD_PAGES_MAX 65408

/* Volumes of a drive. */
#define STORE_VOLUMES_MAX 1024

/* A value has a CRC for each so many bytes of it. */
#define STORE_PIECE_BYTES ((uint32_t)256 << 10)

#define STORE_SUPER_MAGIC   UINT64_C(0x45524f54534d4349)
#define STORE_SUPER_VERSION 6

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

#define STORE_NOTE_MAGIC UINT64_C(0x45544f4e534d4349)

/* What the owner of the store keeps here: a page of it. Both copies are the same but while one is
 * written. A new format has the first page; the others are there once they were written. */
struct store_note_df {
    le64 magic;    /* STORE_NOTE_MAGIC, and the number of the page           */
    le64 sequence; /* the copy that has the higher one counts                */
    uint8_t bytes[STORE_PAGE_BYTES - 24]; /* of the owner; a new format has zeros */
    le64 hash; /* of all bytes before, seeded with the drive's uuid      */
};
static_assert(sizeof(struct store_note_df) == STORE_PAGE_BYTES, "a note is one page");
static_assert(STORE_NOTE_OFFSET_A + STORE_NOTE_PAGES * STORE_PAGE_BYTES <= STORE_SUPER_OFFSET_B &&
                  STORE_NOTE_OFFSET_B + STORE_NOTE_PAGES * STORE_PAGE_BYTES <= STORE_DATA_OFFSET,
              "notes have their place");

/* One life of a segment; in its header, and again in its footer. While the segment is open its last
 * page is a copy of the header page. */
struct store_life_df {
    le32 magic;            /* STORE_HEADER_MAGIC or STORE_FOOTER_MAGIC                   */
    le16 version;          /* STORE_LIFE_VERSION                                         */
    uint8_t reserved_a[2]; /* zeros                                                    */
    le32 segment;          /* its number: a page written to the wrong place does not pass */
    uint8_t reserved_b[4]; /* zeros                                                    */
    uint8_t drive[16];     /* as in the superblock                                       */
    le64 nonce;            /* seeds the checks of dead map, records and summary pages    */
    le64 sequence;         /* of its begin; larger is younger                                   */
    le64 evictions;        /* blocks evicted since the format, with the life before      */
};
static_assert(sizeof(struct store_life_df) == 56, "no padding");

#define STORE_HEADER_MAGIC 0x68676573u
#define STORE_FOOTER_MAGIC 0x66676573u
#define STORE_LIFE_VERSION 3

struct store_header_df {
    struct store_life_df life; /* magic STORE_HEADER_MAGIC */
    uint8_t reserved[STORE_PAGE_BYTES - 8 - sizeof(struct store_life_df)]; /* zeros */
    le64 hash; /* of all bytes before, seeded with drive and segment */
};
static_assert(sizeof(struct store_header_df) == STORE_PAGE_BYTES, "header is one page");

/* Volumes that the records of one segment may belong to. */
#define STORE_SEGMENT_VOLUMES 240

struct store_footer_df {
    struct store_life_df life; /* the same nonce as in the header                  */
    le32 records;              /* entries in the summary pages                     */
    le32 summary_pages;        /* they lie right before the footer                 */
    le32 volumes;              /* rows of volume[] in use                          */
    uint8_t reserved_a[4];     /* zeros                                            */
    uint8_t volume[STORE_SEGMENT_VOLUMES][16]; /* uuids; entries name a row        */
    uint8_t reserved_b[STORE_PAGE_BYTES - 24 - STORE_SEGMENT_VOLUMES * 16 -
                       sizeof(struct store_life_df)]; /* zeros */
    le64 hash; /* as in the header                                 */
};
static_assert(sizeof(struct store_footer_df) == STORE_PAGE_BYTES, "footer is one page");

#define STORE_DEAD_SECTOR_BYTES 512
#define STORE_DEAD_PAGES        4000 /* pages of the segment that one sector tells of */

/* A sector of a dead map; both copies are the same. Bit n stands for page sector * STORE_DEAD_PAGES
 * + n of the segment. */
struct store_dead_df {
    le32 evicted;                       /* of the dead records: evicted, not deleted or replaced */
    uint8_t bits[STORE_DEAD_PAGES / 8]; /* 1: the record that begins in this page is dead        */
    le64 hash;                          /* of all bytes before, seeded with nonce and sector     */
};
static_assert(sizeof(struct store_dead_df) == STORE_DEAD_SECTOR_BYTES, "a sector");

struct store_record_df {
    le16 magic;           /* STORE_RECORD_MAGIC                                       */
    uint8_t version;      /* STORE_RECORD_VERSION                                     */
    uint8_t key_length;   /* 1..16                                                    */
    le32 value_bytes;     /* 1 or more                                                */
    le32 value_crc;       /* CRC32C of the CRCs of the pieces, seeded with nonce and page */
    uint8_t reserved[12]; /* zeros                                                   */
    uint8_t key[16];      /* zeros past key_length                                    */
    uint8_t volume[16];   /* uuid                                                     */
    le64 hash;            /* of all bytes before, seeded with nonce and page          */
};
static_assert(sizeof(struct store_record_df) == 64, "a record header is 64 bytes");

#define STORE_RECORD_MAGIC   0x7269u
#define STORE_RECORD_VERSION 5

static_assert(STORE_SEGMENT_BYTES_MAX / STORE_PAGE_BYTES <= 1u << 16, "the index has 16 bits");

struct store_entry_df {
    uint8_t key[16];     /* zeros past key_length                    */
    le32 value_bytes;    /* of the record                            */
    le32 page;           /* where its header is, in the segment      */
    uint8_t volume;      /* row of store_footer_df.volume            */
    uint8_t key_length;  /* 1..16                                    */
    uint8_t damaged;     /* 1: the value was found damaged by a scan */
    uint8_t reserved[5]; /* zeros                                    */
};
static_assert(sizeof(struct store_entry_df) == 32, "no padding");

#define STORE_SUMMARY_MAGIC   0x6d757369u
#define STORE_SUMMARY_ENTRIES 127

struct store_summary_df {
    le32 magic; /* STORE_SUMMARY_MAGIC                                  */
    le32 count; /* entries in use                                       */
    struct store_entry_df entry[STORE_SUMMARY_ENTRIES]; /* zeros past count */
    uint8_t reserved[16]; /* zeros                                      */
    le64 hash;            /* of all bytes before, seeded with nonce and page      */
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
    uint32_t segment;   /* its number */
    uint64_t nonce;     /* secret of this life */
    uint64_t sequence;  /* larger is younger */
    uint64_t evictions; /* of the drive, with the life before */
};

struct store_record {
    struct key key;       /* 1..16 bytes */
    struct uuid volume;   /* whose key */
    uint32_t value_bytes; /* 1 or more */
    uint32_t value_crc;   /* see store_value_crc */
    bool damaged;         /* in summaries: its value is known to be damaged */
};

/* Pieces of a value of so many bytes. */
static inline uint32_t store_pieces(uint32_t value_bytes)
{
    return (uint32_t)(((uint64_t)value_bytes + STORE_PIECE_BYTES - 1) / STORE_PIECE_BYTES);
}

/* By how many bits a number of pages is shifted in the index. */
static inline uint32_t store_pages_shift(uint32_t pages)
{
    uint32_t shift = 0;

    while (pages >> shift >= 1u << STORE_PAGES_BITS)
        shift++;
    return shift;
}

/* Pages of a record with a value of so many bytes: header, value, CRCs of its pieces, header again,
 * rounded up to what the index can say. */
static inline uint32_t store_record_pages(uint32_t value_bytes)
{
    uint64_t bytes = 2 * sizeof(struct store_record_df) + (uint64_t)value_bytes +
                     sizeof(le32) * store_pieces(value_bytes);
    uint32_t pages = (uint32_t)((bytes + STORE_PAGE_BYTES - 1) / STORE_PAGE_BYTES);
    uint32_t unit = 1u << store_pages_shift(pages);

    return (pages + unit - 1) & ~(unit - 1);
}

/* Summary pages for so many records. */
static inline uint32_t store_summary_pages(uint32_t records)
{
    return (records + STORE_SUMMARY_ENTRIES - 1) / STORE_SUMMARY_ENTRIES;
}

/* Sectors of a segment's dead map; behind them lie as many again, their copies. */
static inline uint32_t store_dead_sectors(uint32_t segment_pages)
{
    return (segment_pages + STORE_DEAD_PAGES - 1) / STORE_DEAD_PAGES;
}

/* Pages of a segment's dead map. */
static inline uint32_t store_dead_map_pages(uint32_t segment_pages)
{
    return (2 * store_dead_sectors(segment_pages) * STORE_DEAD_SECTOR_BYTES + STORE_PAGE_BYTES -
            1) /
           STORE_PAGE_BYTES;
}

/* The most pages that a dead map has. */
#define STORE_DEAD_MAP_PAGES_MAX 5

/* The page that the first record of a segment begins in. */
static inline uint32_t store_first_page(uint32_t segment_pages)
{
    return 1 + store_dead_map_pages(segment_pages);
}

/* The most pages that records may take in a segment: header, dead map, a summary page and the
 * footer stay. */
static inline uint32_t store_segment_record_pages(uint32_t segment_pages)
{
    return segment_pages - store_first_page(segment_pages) - 2;
}

void store_super_make(const struct store_super *super, struct store_super_df *out_df);

/* FOREIGN: not ours. CORRUPT: ours, damaged. VERSION: ours, unknown version or sizes. */
icms_err store_super_check(const struct store_super_df *df,
                           struct store_super *out_super) ICMS_MUST_CHECK;

/* Sets magic, sequence and hash of a note whose bytes are in place. */
void store_note_make(const struct uuid *drive, uint32_t page, uint64_t sequence,
                     struct store_note_df *df);

/* Whether it is that page of the notes of this drive. */
bool store_note_check(const struct uuid *drive, uint32_t page, const struct store_note_df *df);

/* Fills a header page; life->segment belongs to the drive. */
void store_header_make(const struct uuid *drive, const struct store_life *life,
                       struct store_header_df *out_df);

/* CORRUPT when it is not the header of this segment of this drive. */
icms_err store_header_check(const struct uuid *drive, uint32_t segment,
                            const struct store_header_df *df,
                            struct store_life *out_life) ICMS_MUST_CHECK;

/* True when a page that failed store_header_check had been one: it counts as damage. */
bool store_header_seems(const struct uuid *drive, const struct store_header_df *df);

/* volume: uuids of the rows that entries name, at most STORE_SEGMENT_VOLUMES. */
void store_footer_make(const struct uuid *drive, const struct store_life *life, uint32_t records,
                       const struct uuid *volume, uint32_t volumes, struct store_footer_df *out_df);
icms_err store_footer_check(const struct uuid *drive, uint32_t segment, uint32_t segment_pages,
                            const struct store_footer_df *df,
                            struct store_life *out_life) ICMS_MUST_CHECK;

/* The check of a value that lies in a record at this page of a life. */
struct store_value_crc {
    uint64_t nonce; /* of the life               */
    uint32_t page;  /* of the record             */
    uint32_t done;  /* bytes of the value so far */
    uint32_t piece; /* of the piece they end in  */
    uint32_t all;   /* of the pieces before      */
};

/* Feed the value in order, in parts of any size; pieces gets the CRC of each piece that ends, 4
 * bytes each, in order (NULL: not wanted). store_value_crc_end: what record.value_crc has to be. */
void store_value_crc_begin(struct store_value_crc *crc, uint64_t nonce, uint32_t page);
void store_value_crc_add(struct store_value_crc *crc, const void *value, uint32_t bytes,
                         uint8_t *pieces);
uint32_t store_value_crc_end(struct store_value_crc *crc, uint8_t *pieces);

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

/* Dead maps in memory: store_dead_sectors sectors, each once. */

/* Makes an empty map. */
void store_dead_make(uint64_t nonce, uint32_t segment_pages, struct store_dead_df *out_sectors);

/* Takes a map from its pages on flash: of each sector what both copies say together. Returns how
 * many copies were damaged. A sector of which none holds does not hold in memory either. *out_torn:
 * the copies of a sector hold, and differ. */
uint32_t store_dead_load(uint64_t nonce, uint32_t segment_pages, const void *pages,
                         struct store_dead_df *out_sectors, bool *out_torn);

/* Fills the pages that the map has on flash. */
void store_dead_save(uint32_t segment_pages, const struct store_dead_df *sectors, void *out_pages);

/* Whether a sector holds. */
bool store_dead_check(uint64_t nonce, uint32_t sector, const struct store_dead_df *sectors);

/* Sets the bit of a page, and all of a sector that does not hold; evicted: counts the record as
 * evicted, unless the bit was set before. */
void store_dead_set(uint64_t nonce, uint32_t page, bool evicted, struct store_dead_df *sectors);

/* Records of the segment that are dead because they were evicted; of sectors that hold. */
uint32_t store_dead_evicted(uint64_t nonce, uint32_t segment_pages,
                            const struct store_dead_df *sectors);

enum store_dead {
    STORE_LIVE,         /* the bit is not set    */
    STORE_DEAD,         /* it is                 */
    STORE_DEAD_UNKNOWN, /* its sector is damaged */
};

/* What the map says of the record that begins in this page. */
enum store_dead store_dead_get(uint64_t nonce, uint32_t page, const struct store_dead_df *sectors);

/* Sets magic, count and hash of a page whose entries are in place. */
void store_summary_finish(uint64_t nonce, uint32_t page, uint32_t count,
                          struct store_summary_df *df);

/* CORRUPT, or the number of entries. */
icms_err store_summary_check(uint64_t nonce, uint32_t page, const struct store_summary_df *df,
                             uint32_t *out_count) ICMS_MUST_CHECK;

void store_entry_make(const struct store_record *record, uint32_t page, uint8_t volume,
                      struct store_entry_df *out_df);

/* out_record->volume is left alone: it is row *out_volume of the footer's table. CORRUPT when the
 * entry cannot be: key length, a location outside of the segment. */
icms_err store_entry_check(const struct store_entry_df *df, uint32_t segment_pages,
                           struct store_record *out_record, uint32_t *out_page,
                           uint8_t *out_volume) ICMS_MUST_CHECK;

#endif
