/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and checking the bytes on flash. Pure; any thread. Nothing here trusts what it reads.
 */
#include "store/layout.h"
#include "store/store.h"

#include "base/check.h"
#include "base/crc.h"
#include "base/hash.h"

/* Hashes everything in front of the hash field that ends a struct. */
static uint64_t store_hash(const void *df, size_t bytes, uint64_t seed)
{
    return hash64_seed(df, bytes - sizeof(le64), seed);
}

static uint64_t store_drive_seed(const struct uuid *drive, uint32_t segment)
{
    return hash64(drive->bytes, sizeof(drive->bytes)) ^ hash64_mix(segment);
}

/* Seed of what lies at a page of one life of a segment. */
static uint64_t store_page_seed(uint64_t nonce, uint32_t page)
{
    return hash64_mix(nonce ^ hash64_mix(page));
}

static bool store_key_check(const uint8_t bytes[LIMIT_KEY_BYTES], uint8_t length)
{
    if (length < 1 || length > LIMIT_KEY_BYTES)
        return false;
    for (uint32_t i = length; i < LIMIT_KEY_BYTES; i++) {
        if (bytes[i] != 0)
            return false;
    }
    return true;
}

/* ---- superblock -------------------------------------------------------------------------------
 */

void store_super_make(const struct store_super *super, struct store_super_df *out_df)
{
    memset(out_df, 0, sizeof(*out_df));
    out_df->magic = le64_of(STORE_SUPER_MAGIC);
    out_df->version = le32_of(STORE_SUPER_VERSION);
    out_df->page_bytes = le32_of(STORE_PAGE_BYTES);
    memcpy(out_df->drive, super->drive.bytes, sizeof(out_df->drive));
    out_df->bytes = le64_of(super->bytes);
    out_df->segment_bytes = le64_of(super->segment_bytes);
    out_df->segments = le32_of(super->segments);
    out_df->data_offset = le32_of(STORE_DATA_OFFSET);
    out_df->hash = le64_of(store_hash(out_df, sizeof(*out_df), 0));
}

icms_err store_super_check(const struct store_super_df *df, struct store_super *out_super)
{
    struct store_super super = {.bytes = le64_get(df->bytes),
                                .segment_bytes = le64_get(df->segment_bytes),
                                .segments = le32_get(df->segments)};

    if (le64_get(df->magic) != STORE_SUPER_MAGIC)
        return ICMS_FOREIGN;
    if (le64_get(df->hash) != store_hash(df, sizeof(*df), 0))
        return ICMS_CORRUPT;
    if (le32_get(df->version) != STORE_SUPER_VERSION ||
        le32_get(df->page_bytes) != STORE_PAGE_BYTES ||
        le32_get(df->data_offset) != STORE_DATA_OFFSET)
        return ICMS_VERSION;
    if (!bytes_power_of_two(super.segment_bytes) || super.segment_bytes < STORE_SEGMENT_BYTES_MIN ||
        super.segment_bytes > STORE_SEGMENT_BYTES_MAX || super.segments < STORE_SEGMENTS_MIN ||
        super.segments > STORE_SEGMENTS_MAX ||
        super.bytes < STORE_DATA_OFFSET + super.segments * super.segment_bytes)
        return ICMS_VERSION;
    memcpy(super.drive.bytes, df->drive, sizeof(super.drive.bytes));
    *out_super = super;
    return ICMS_OK;
}

/* ---- the owner's note -------------------------------------------------------------------------
 */

static uint64_t store_note_hash(const struct uuid *drive, const struct store_note_df *df)
{
    return store_hash(df, sizeof(*df), hash64_seed(drive->bytes, sizeof(drive->bytes), 0));
}

void store_note_make(const struct uuid *drive, uint32_t page, uint64_t sequence,
                     struct store_note_df *df)
{
    df->magic = le64_of(STORE_NOTE_MAGIC + page);
    df->sequence = le64_of(sequence);
    df->hash = le64_of(store_note_hash(drive, df));
}

bool store_note_check(const struct uuid *drive, uint32_t page, const struct store_note_df *df)
{
    return le64_get(df->magic) == STORE_NOTE_MAGIC + page &&
           le64_get(df->hash) == store_note_hash(drive, df);
}

/* ---- a life of a segment ----------------------------------------------------------------------
 */

static void store_life_make(const struct uuid *drive, const struct store_life *life, uint32_t magic,
                            struct store_life_df *out_df)
{
    memset(out_df, 0, sizeof(*out_df));
    out_df->magic = le32_of(magic);
    out_df->version = le16_of(STORE_LIFE_VERSION);
    out_df->segment = le32_of(life->segment);
    memcpy(out_df->drive, drive->bytes, sizeof(out_df->drive));
    out_df->nonce = le64_of(life->nonce);
    out_df->sequence = le64_of(life->sequence);
    out_df->evictions = le64_of(life->evictions);
}

static icms_err store_life_check(const struct uuid *drive, uint32_t segment, uint32_t magic,
                                 const struct store_life_df *df, struct store_life *out_life)
{
    if (le32_get(df->magic) != magic || le16_get(df->version) != STORE_LIFE_VERSION ||
        le32_get(df->segment) != segment || memcmp(df->drive, drive->bytes, sizeof(df->drive)) != 0)
        return ICMS_CORRUPT;
    *out_life = (struct store_life){.segment = segment,
                                    .nonce = le64_get(df->nonce),
                                    .sequence = le64_get(df->sequence),
                                    .evictions = le64_get(df->evictions)};
    return ICMS_OK;
}

void store_header_make(const struct uuid *drive, const struct store_life *life,
                       struct store_header_df *out_df)
{
    memset(out_df, 0, sizeof(*out_df));
    store_life_make(drive, life, STORE_HEADER_MAGIC, &out_df->life);
    out_df->hash =
        le64_of(store_hash(out_df, sizeof(*out_df), store_drive_seed(drive, life->segment)));
}

icms_err store_header_check(const struct uuid *drive, uint32_t segment,
                            const struct store_header_df *df, struct store_life *out_life)
{
    if (le64_get(df->hash) != store_hash(df, sizeof(*df), store_drive_seed(drive, segment)))
        return ICMS_CORRUPT;
    return store_life_check(drive, segment, STORE_HEADER_MAGIC, &df->life, out_life);
}

bool store_header_seems(const struct uuid *drive, const struct store_header_df *df)
{
    return memcmp(df->life.drive, drive->bytes, sizeof(df->life.drive)) == 0;
}

void store_footer_make(const struct uuid *drive, const struct store_life *life, uint32_t records,
                       const struct uuid *volume, uint32_t volumes, struct store_footer_df *out_df)
{
    check(volumes <= STORE_SEGMENT_VOLUMES);
    memset(out_df, 0, sizeof(*out_df));
    store_life_make(drive, life, STORE_FOOTER_MAGIC, &out_df->life);
    out_df->records = le32_of(records);
    out_df->summary_pages = le32_of(store_summary_pages(records));
    out_df->volumes = le32_of(volumes);
    for (uint32_t i = 0; i < volumes; i++)
        memcpy(out_df->volume[i], volume[i].bytes, sizeof(out_df->volume[i]));
    out_df->hash =
        le64_of(store_hash(out_df, sizeof(*out_df), store_drive_seed(drive, life->segment)));
}

icms_err store_footer_check(const struct uuid *drive, uint32_t segment, uint32_t segment_pages,
                            const struct store_footer_df *df, struct store_life *out_life)
{
    uint32_t records = le32_get(df->records);

    if (le64_get(df->hash) != store_hash(df, sizeof(*df), store_drive_seed(drive, segment)))
        return ICMS_CORRUPT;
    if (records > segment_pages || le32_get(df->summary_pages) != store_summary_pages(records) ||
        le32_get(df->summary_pages) > segment_pages - store_first_page(segment_pages) - 1 ||
        le32_get(df->volumes) > STORE_SEGMENT_VOLUMES)
        return ICMS_CORRUPT;
    return store_life_check(drive, segment, STORE_FOOTER_MAGIC, &df->life, out_life);
}

/* ---- dead maps --------------------------------------------------------------------------------
 */

static le64 store_dead_hash(uint64_t nonce, uint32_t sector, const struct store_dead_df *df)
{
    return le64_of(store_hash(df, sizeof(*df), store_page_seed(nonce, UINT32_MAX - sector)));
}

void store_dead_make(uint64_t nonce, uint32_t segment_pages, struct store_dead_df *out_sectors)
{
    uint32_t sectors = store_dead_sectors(segment_pages);

    memset(out_sectors, 0, sectors * sizeof(*out_sectors));
    for (uint32_t i = 0; i < sectors; i++)
        out_sectors[i].hash = store_dead_hash(nonce, i, &out_sectors[i]);
}

bool store_dead_check(uint64_t nonce, uint32_t sector, const struct store_dead_df *sectors)
{
    return le64_get(sectors[sector].hash) ==
           le64_get(store_dead_hash(nonce, sector, &sectors[sector]));
}

uint32_t store_dead_load(uint64_t nonce, uint32_t segment_pages, const void *pages,
                         struct store_dead_df *out_sectors, bool *out_torn)
{
    uint32_t sectors = store_dead_sectors(segment_pages), damaged = 0;
    const struct store_dead_df *a = pages, *b = a + sectors;

    *out_torn = false;
    for (uint32_t i = 0; i < sectors; i++) {
        struct store_dead_df *df = &out_sectors[i];
        bool a_holds = store_dead_check(nonce, i, a), b_holds = store_dead_check(nonce, i, b);

        damaged += !a_holds + !b_holds;
        *df = a_holds ? a[i] : b[i];
        if (!a_holds || !b_holds)
            continue;
        *out_torn = *out_torn || memcmp(&a[i], &b[i], sizeof(*df)) != 0;
        if (le32_get(b[i].evicted) > le32_get(df->evicted))
            df->evicted = b[i].evicted;
        for (uint32_t n = 0; n < sizeof(df->bits); n++)
            df->bits[n] |= b[i].bits[n];
        df->hash = store_dead_hash(nonce, i, df);
    }
    return damaged;
}

void store_dead_save(uint32_t segment_pages, const struct store_dead_df *sectors, void *out_pages)
{
    struct store_dead_df *map = out_pages;
    uint32_t count = store_dead_sectors(segment_pages);

    memset(out_pages, 0, (size_t)store_dead_map_pages(segment_pages) * STORE_PAGE_BYTES);
    memcpy(map, sectors, count * sizeof(*sectors));
    memcpy(map + count, sectors, count * sizeof(*sectors));
}

enum store_dead store_dead_get(uint64_t nonce, uint32_t page, const struct store_dead_df *sectors)
{
    uint32_t sector = page / STORE_DEAD_PAGES, bit = page % STORE_DEAD_PAGES;

    if (!store_dead_check(nonce, sector, sectors))
        return STORE_DEAD_UNKNOWN;
    return (sectors[sector].bits[bit / 8] >> bit % 8 & 1) != 0 ? STORE_DEAD : STORE_LIVE;
}

void store_dead_set(uint64_t nonce, uint32_t page, bool evicted, struct store_dead_df *sectors)
{
    uint32_t sector = page / STORE_DEAD_PAGES, bit = page % STORE_DEAD_PAGES;
    struct store_dead_df *df = &sectors[sector];
    uint8_t mask = (uint8_t)(1u << bit % 8);

    if (!store_dead_check(nonce, sector, sectors)) {
        df->evicted = le32_of(0);
        memset(df->bits, 0xff, sizeof(df->bits));
    }
    if (evicted && (df->bits[bit / 8] & mask) == 0)
        df->evicted = le32_of(le32_get(df->evicted) + 1);
    df->bits[bit / 8] |= mask;
    df->hash = store_dead_hash(nonce, sector, df);
}

uint32_t store_dead_evicted(uint64_t nonce, uint32_t segment_pages,
                            const struct store_dead_df *sectors)
{
    uint32_t evicted = 0;

    for (uint32_t i = 0; i < store_dead_sectors(segment_pages); i++)
        evicted += store_dead_check(nonce, i, sectors) ? le32_get(sectors[i].evicted) : 0;
    return evicted;
}

/* ---- records ----------------------------------------------------------------------------------
 */

static uint32_t store_piece_seed(uint64_t nonce, uint32_t page, uint32_t piece)
{
    return (uint32_t)(store_page_seed(nonce, page) >> 32) ^ (uint32_t)hash64_mix(piece + 1);
}

void store_value_crc_begin(struct store_value_crc *crc, uint64_t nonce, uint32_t page)
{
    *crc = (struct store_value_crc){.nonce = nonce,
                                    .page = page,
                                    .piece = store_piece_seed(nonce, page, 0),
                                    .all = (uint32_t)store_page_seed(nonce, page)};
}

/* The piece before crc->done is whole. */
static void value_piece_end(struct store_value_crc *crc, uint8_t *pieces)
{
    uint32_t number = (crc->done - 1) / STORE_PIECE_BYTES;
    le32 df = le32_of(crc->piece);

    crc->all = crc32c_add(crc->all, &df, sizeof(df));
    if (pieces != NULL)
        memcpy(pieces + number * sizeof(df), &df, sizeof(df));
    crc->piece = store_piece_seed(crc->nonce, crc->page, number + 1);
}

void store_value_crc_add(struct store_value_crc *crc, const void *value, uint32_t bytes,
                         uint8_t *pieces)
{
    const uint8_t *at = value;

    while (bytes > 0) {
        uint32_t left = STORE_PIECE_BYTES - crc->done % STORE_PIECE_BYTES;
        uint32_t n = bytes < left ? bytes : left;

        crc->piece = crc32c_add(crc->piece, at, n);
        crc->done += n;
        at += n;
        bytes -= n;
        if (n == left)
            value_piece_end(crc, pieces);
    }
}

uint32_t store_value_crc_end(struct store_value_crc *crc, uint8_t *pieces)
{
    if (crc->done % STORE_PIECE_BYTES != 0)
        value_piece_end(crc, pieces);
    return crc->all;
}

void store_record_make(uint64_t nonce, uint32_t page, const struct store_record *record,
                       struct store_record_df *out_df)
{
    check(record->key.length >= 1 && record->key.length <= LIMIT_KEY_BYTES);
    check(page <= UINT16_MAX);
    memset(out_df, 0, sizeof(*out_df));
    out_df->magic = le16_of(STORE_RECORD_MAGIC);
    out_df->version = STORE_RECORD_VERSION;
    out_df->key_length = record->key.length;
    out_df->value_bytes = le32_of(record->value_bytes);
    out_df->value_crc = le32_of(record->value_crc);
    memcpy(out_df->key, record->key.bytes, record->key.length);
    memcpy(out_df->volume, record->volume.bytes, sizeof(out_df->volume));
    out_df->hash = le64_of(store_hash(out_df, sizeof(*out_df), store_page_seed(nonce, page)));
}

/* Whether a record of this size can lie at this page, its summary and footer included. */
static bool store_record_fits(uint32_t value_bytes, uint32_t page, uint32_t segment_pages)
{
    uint64_t end = (uint64_t)page + store_record_pages(value_bytes);

    return value_bytes != 0 && page >= store_first_page(segment_pages) &&
           end <= segment_pages - 2 && store_record_pages(value_bytes) <= STORE_RECORD_PAGES_MAX;
}

icms_err store_record_check(uint64_t nonce, uint32_t page, uint32_t segment_pages,
                            const struct store_record_df *df, struct store_record *out_record)
{
    uint32_t value_bytes = le32_get(df->value_bytes);

    if (le16_get(df->magic) != STORE_RECORD_MAGIC || df->version != STORE_RECORD_VERSION)
        return ICMS_CORRUPT;
    if (le64_get(df->hash) != store_hash(df, sizeof(*df), store_page_seed(nonce, page)))
        return ICMS_CORRUPT;
    if (!store_key_check(df->key, df->key_length) ||
        !store_record_fits(value_bytes, page, segment_pages))
        return ICMS_CORRUPT;
    memset(out_record, 0, sizeof(*out_record));
    out_record->key.length = df->key_length;
    memcpy(out_record->key.bytes, df->key, sizeof(df->key));
    memcpy(out_record->volume.bytes, df->volume, sizeof(df->volume));
    out_record->value_bytes = value_bytes;
    out_record->value_crc = le32_get(df->value_crc);
    return ICMS_OK;
}

icms_err store_tail_check(uint64_t nonce, uint32_t page, uint32_t segment_pages,
                          const struct store_record_df *df, struct store_record *out_record,
                          uint32_t *out_page)
{
    uint32_t pages = store_record_pages(le32_get(df->value_bytes));

    if (pages > page ||
        store_record_check(nonce, page + 1 - pages, segment_pages, df, out_record) != ICMS_OK)
        return ICMS_CORRUPT;
    *out_page = page + 1 - pages;
    return ICMS_OK;
}

/* ---- summaries --------------------------------------------------------------------------------
 */

void store_summary_finish(uint64_t nonce, uint32_t page, uint32_t count,
                          struct store_summary_df *df)
{
    check(count <= STORE_SUMMARY_ENTRIES);
    df->magic = le32_of(STORE_SUMMARY_MAGIC);
    df->count = le32_of(count);
    memset(&df->entry[count], 0, (STORE_SUMMARY_ENTRIES - count) * sizeof(df->entry[0]));
    memset(df->reserved, 0, sizeof(df->reserved));
    df->hash = le64_of(store_hash(df, sizeof(*df), store_page_seed(nonce, page)));
}

icms_err store_summary_check(uint64_t nonce, uint32_t page, const struct store_summary_df *df,
                             uint32_t *out_count)
{
    if (le32_get(df->magic) != STORE_SUMMARY_MAGIC ||
        le64_get(df->hash) != store_hash(df, sizeof(*df), store_page_seed(nonce, page)) ||
        le32_get(df->count) > STORE_SUMMARY_ENTRIES)
        return ICMS_CORRUPT;
    *out_count = le32_get(df->count);
    return ICMS_OK;
}

void store_entry_make(const struct store_record *record, uint32_t page, uint8_t volume,
                      struct store_entry_df *out_df)
{
    memset(out_df, 0, sizeof(*out_df));
    memcpy(out_df->key, record->key.bytes, record->key.length);
    out_df->value_bytes = le32_of(record->value_bytes);
    out_df->page = le32_of(page);
    out_df->volume = volume;
    out_df->key_length = record->key.length;
    out_df->damaged = record->damaged;
}

icms_err store_entry_check(const struct store_entry_df *df, uint32_t segment_pages,
                           struct store_record *out_record, uint32_t *out_page, uint8_t *out_volume)
{
    uint32_t value_bytes = le32_get(df->value_bytes);
    uint32_t page = le32_get(df->page);

    if (!store_key_check(df->key, df->key_length) || df->volume >= STORE_SEGMENT_VOLUMES ||
        !store_record_fits(value_bytes, page, segment_pages) || df->damaged > 1)
        return ICMS_CORRUPT;
    out_record->key.length = df->key_length;
    memcpy(out_record->key.bytes, df->key, sizeof(df->key));
    out_record->value_bytes = value_bytes;
    out_record->value_crc = 0;
    out_record->damaged = df->damaged != 0;
    *out_page = page;
    *out_volume = df->volume;
    return ICMS_OK;
}

uint64_t store_record_bytes(uint64_t value_bytes)
{
    return (uint64_t)store_record_pages((uint32_t)value_bytes) * STORE_PAGE_BYTES;
}
