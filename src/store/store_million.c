/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive with very many blocks, made of its headers, summaries and footers alone. Blocking; any
 * thread; nothing here is on the way of a store's own data.
 */
#include "store/store_million.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/hash.h"
#include "store/format.h"
#include "store/layout.h"

/* Pages of a segment in memory: its summary, its footer and the header of the next. */
struct million_pages {
    uint32_t records;       /* of each segment but the last */
    uint32_t summary_pages; /* for them                     */
    uint32_t segments;      /* with records                 */
};

static struct million_pages million_pages(const struct store_million *million)
{
    uint32_t segment_pages = (uint32_t)(million->segment_bytes / STORE_PAGE_BYTES);
    uint32_t pages = store_record_pages(million->value_bytes);
    struct million_pages sizes = {.records = segment_pages / pages};

    /* header, dead map, records, summary, footer: as store_segment_fits has it */
    while (sizes.records > 0 && store_first_page(segment_pages) + sizes.records * pages +
                                        store_summary_pages(sizes.records) + 1 >
                                    segment_pages)
        sizes.records--;
    if (sizes.records == 0)
        return sizes;
    sizes.summary_pages = store_summary_pages(sizes.records);
    sizes.segments = (uint32_t)((million->blocks + sizes.records - 1) / sizes.records);
    return sizes;
}

void store_million_init(struct store_million *million)
{
    *million = (struct store_million){.blocks = 1000000,
                                      .value_bytes = (512 << 10) + LIMIT_TRAILER_BYTES,
                                      .segment_bytes = (uint64_t)64 << 20,
                                      .volume = {.bytes = {0x10, 0x6d}}};
}

uint64_t store_million_bytes(const struct store_million *million)
{
    uint64_t segments = million_pages(million).segments;

    /* one in sixteen, and a few, stay free: the store works ahead */
    return STORE_DATA_OFFSET + (segments + segments / 16 + 4) * million->segment_bytes;
}

struct key store_million_key(uint64_t n)
{
    struct key key = {.length = LIMIT_KEY_BYTES};
    uint64_t half[2] = {hash64_mix(n + 1), hash64_mix(~n)};

    memcpy(key.bytes, half, sizeof(half));
    return key;
}

static struct store_life million_life(uint32_t segment)
{
    return (struct store_life){
        .segment = segment, .nonce = hash64_mix(segment + 1), .sequence = 1 + segment};
}

static uint32_t million_segment_pages(const struct store_million *million)
{
    return (uint32_t)(million->segment_bytes / STORE_PAGE_BYTES);
}

/* Header and dead map; returns their pages. */
static uint32_t million_front(const struct store_million *million, const struct store_super *super,
                              uint32_t segment, uint8_t *memory)
{
    struct store_dead_df
        dead[STORE_DEAD_MAP_PAGES_MAX * STORE_PAGE_BYTES / STORE_DEAD_SECTOR_BYTES];
    struct store_life life = million_life(segment);
    uint32_t segment_pages = million_segment_pages(million);

    store_header_make(&super->drive, &life, (struct store_header_df *)(void *)memory);
    store_dead_make(life.nonce, segment_pages, dead);
    store_dead_save(segment_pages, dead, memory + STORE_PAGE_BYTES);
    return store_first_page(segment_pages);
}

/* Summary and footer of a segment with so many records; returns their pages. */
static uint32_t million_tail(const struct store_million *million, const struct store_super *super,
                             uint32_t segment, uint32_t records, uint8_t *memory)
{
    struct store_summary_df *pages = (struct store_summary_df *)(void *)memory;
    struct store_life life = million_life(segment);
    uint32_t summary_pages = store_summary_pages(records);
    uint32_t last = (uint32_t)(million->segment_bytes / STORE_PAGE_BYTES) - 1;
    uint32_t first = store_first_page(million_segment_pages(million));
    uint64_t n = (uint64_t)segment * million_pages(million).records;

    for (uint32_t i = 0; i < records; i++, n++) {
        struct store_record record = {.key = store_million_key(n),
                                      .volume = million->volume,
                                      .value_bytes = million->value_bytes};

        store_entry_make(&record, first + i * store_record_pages(million->value_bytes), 0,
                         &pages[i / STORE_SUMMARY_ENTRIES].entry[i % STORE_SUMMARY_ENTRIES]);
    }
    for (uint32_t i = 0; i < summary_pages; i++) {
        uint32_t left = records - i * STORE_SUMMARY_ENTRIES;

        store_summary_finish(life.nonce, last - summary_pages + i,
                             left < STORE_SUMMARY_ENTRIES ? left : STORE_SUMMARY_ENTRIES,
                             &pages[i]);
    }
    store_footer_make(&super->drive, &life, records, &million->volume, 1,
                      (struct store_footer_df *)(void *)&pages[summary_pages]);
    return summary_pages + 1;
}

/* The front of the first segment; then of each the summary and footer, and the next front. */
static icms_err million_fill(const struct store_million *million, const struct store_super *super,
                             struct loop_file *file, uint8_t *memory)
{
    struct million_pages sizes = million_pages(million);
    icms_err err;

    err =
        loop_file_write_now(file, STORE_DATA_OFFSET, memory,
                            (uint64_t)million_front(million, super, 0, memory) * STORE_PAGE_BYTES);
    for (uint32_t i = 0; i < sizes.segments && err == ICMS_OK; i++) {
        uint64_t left = million->blocks - (uint64_t)i * sizes.records;
        uint32_t pages = million_tail(
            million, super, i, left < sizes.records ? (uint32_t)left : sizes.records, memory);
        uint64_t offset = STORE_DATA_OFFSET + (i + (uint64_t)1) * million->segment_bytes -
                          (uint64_t)pages * STORE_PAGE_BYTES;

        if (i + 1 < sizes.segments)
            pages +=
                million_front(million, super, i + 1, memory + (uint64_t)pages * STORE_PAGE_BYTES);
        err = loop_file_write_now(file, offset, memory, (uint64_t)pages * STORE_PAGE_BYTES);
    }
    return err != ICMS_OK ? err : loop_file_flush_now(file);
}

static icms_err million_open(struct loop_env *env, const struct store_million *million, bool write,
                             struct err_why *why, struct loop_file **out_file)
{
    struct loop_file_opts opts = {.path = million->path, .write = write, .direct = true};

    return loop_file_open(env, &opts, why, out_file);
}

icms_err store_million_make(struct loop_env *env, const struct store_million *million,
                            struct err_why *why)
{
    struct store_opts opts;
    struct store_super super;
    struct loop_file *file = NULL;
    uint8_t *memory;
    icms_err err;

    store_opts_init(&opts);
    opts.path = million->path;
    opts.segment_bytes = million->segment_bytes;
    opts.value_bytes_max = million->value_bytes;
    if (million->blocks == 0 ||
        store_million_bytes(million) / million->segment_bytes > STORE_SEGMENTS_MAX)
        return err_set(why, ICMS_LIMIT, "%s: %llu blocks need too many segments: make them larger",
                       million->path, (unsigned long long)million->blocks);
    err = store_format(env, &opts, false, why);
    if (err == ICMS_OK)
        err = million_open(env, million, true, why, &file);
    if (err != ICMS_OK)
        return err;
    memory = aligned_alloc(STORE_PAGE_BYTES, (million_pages(million).summary_pages + (uint64_t)2 +
                                              STORE_DEAD_MAP_PAGES_MAX) *
                                                 STORE_PAGE_BYTES);
    if (memory == NULL)
        err = err_set(why, ICMS_NO_MEMORY, "%s: no memory", million->path);
    if (err == ICMS_OK)
        err = store_super_read(file, million->path, why, &super);
    if (err == ICMS_OK) {
        err = million_fill(million, &super, file, memory);
        if (err != ICMS_OK)
            err = err_set(why, err, "cannot write to %s: %s", million->path, icms_err_text(err));
    }
    free(memory);
    loop_file_close(&file);
    return err;
}

/* ---- the floor --------------------------------------------------------------------------------
 */

/* Reads in flight, as many as store_open has. */
#define MILLION_READS 64

/* What lies together: the end of a segment, and the header and the dead map of the next. */
static void raw_start(const struct store_million *million, struct loop_reads *reads,
                      struct loop_read *read, uint32_t segment)
{
    uint32_t end = million_pages(million).summary_pages + 1;
    uint32_t pages = end + store_first_page(million_segment_pages(million));

    read->offset = STORE_DATA_OFFSET + (segment + (uint64_t)1) * million->segment_bytes -
                   (uint64_t)end * STORE_PAGE_BYTES;
    read->bytes = pages * STORE_PAGE_BYTES;
    loop_reads_start(reads, read);
}

static icms_err raw_read(const struct store_million *million, struct loop_reads *reads,
                         uint8_t *memory, uint64_t *out_bytes)
{
    uint32_t segments = million_pages(million).segments, started = 0;
    uint64_t room =
        (million_pages(million).summary_pages + (uint64_t)2 + STORE_DEAD_MAP_PAGES_MAX) *
        STORE_PAGE_BYTES;
    struct loop_read read[MILLION_READS], *one;
    icms_err err = ICMS_OK;
    uint64_t bytes = 0;

    for (; started < MILLION_READS && started < segments; started++) {
        read[started] = (struct loop_read){.memory = memory + started * room};
        raw_start(million, reads, &read[started], started);
    }
    while ((one = loop_reads_wait(reads)) != NULL) {
        err = err != ICMS_OK ? err : one->err;
        bytes += one->bytes;
        if (started < segments)
            raw_start(million, reads, one, started++);
    }
    *out_bytes = bytes;
    return err;
}

icms_err store_million_raw(struct loop_env *env, const struct store_million *million,
                           struct err_why *why, uint64_t *out_bytes, uint64_t *out_ns)
{
    uint64_t room =
        (million_pages(million).summary_pages + (uint64_t)2 + STORE_DEAD_MAP_PAGES_MAX) *
        STORE_PAGE_BYTES;
    uint8_t *memory = aligned_alloc(STORE_PAGE_BYTES, MILLION_READS * room);
    struct loop_file *file = NULL;
    struct loop_reads *reads = NULL;
    uint64_t begin_ns;
    icms_err err;

    if (memory == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: no memory", million->path);
    err = million_open(env, million, false, why, &file);
    begin_ns = loop_env_now_ns(env);
    if (err == ICMS_OK)
        err = loop_reads_new(file, MILLION_READS, why, &reads);
    if (err == ICMS_OK) {
        err = raw_read(million, reads, memory, out_bytes);
        *out_ns = loop_env_now_ns(env) - begin_ns;
        if (err != ICMS_OK)
            err = err_set(why, err, "cannot read %s: %s", million->path, icms_err_text(err));
    }
    loop_reads_free(&reads);
    loop_file_close(&file);
    free(memory);
    return err;
}
