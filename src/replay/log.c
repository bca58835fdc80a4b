/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drives of a replay: a log of segments with the store's rules and the store's policy code
 * (src/policy), but no bytes. Called by replay_run.
 *
 *   log_offer -> there: policy_read
 *             -> new: policy_admit, policy_written, log_append; log_reclaim while few are free
 *   log_reclaim -> log_relocate, log_victim
 *
 * What the store does and this model does not: several volumes, quotas, deletes, damage.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/list.h"
#include "policy/policy.h"
#include "replay/replay_int.h"
#include "store/layout.h"

/* What a life of a segment writes besides its records, dead map and summary: header, footer without
 * records, copy of the header, footer. */
#define LIFE_PAGES 4

#define SEGMENTS_MIN 32

struct log_segment {
    struct policy_segment recency; /* its last access                   */
    struct list link;              /* of the log's full ones, or of free ones */
    uint32_t count;                /* blocks in it                      */
    uint32_t last;                 /* its block that was accessed last  */
};

struct log {
    struct policy *policy;        /* decides                                      */
    struct log_segment *segments; /* by number                                    */
    uint32_t *blocks;             /* of all segments                              */
    uint32_t *where;              /* by block: place in blocks + 1; 0: not there  */
    uint64_t record_bytes;        /* of a value on flash                          */
    uint32_t segment_count;       /* of the drive                                 */
    uint32_t segment_blocks;      /* that fit into a segment                      */
    uint32_t map_pages;           /* of a segment's dead map                      */
    struct list free;             /* log_segment.link                             */
    uint32_t free_count;          /* in it                                        */
    uint32_t reserve;             /* reclaim works when fewer are free            */
    struct log_segment *open;     /* takes blocks; NULL: none                     */
    struct list full;             /* log_segment.link: oldest first               */
};

/* ---- start and end -----------------------------------------------------------------------------
 */

static void log_free(void *cache)
{
    struct log *log = cache;

    if (log == NULL)
        return;
    policy_free(&log->policy);
    free(log->segments);
    free(log->blocks);
    free(log->where);
    free(log);
}

icms_err replay_drive_sizes(const struct replay_setup *setup, struct err_why *why,
                            struct replay_drive *out_drive)
{
    uint32_t pages = (uint32_t)(setup->segment_bytes / STORE_PAGE_BYTES);
    uint32_t record = store_record_pages((uint32_t)setup->block_bytes), blocks = pages / record;
    uint64_t segments;

    while (blocks > 0 &&
           store_first_page(pages) + blocks * record + store_summary_pages(blocks) + 1 > pages)
        blocks--;
    if (blocks == 0)
        return err_set(why, ICMS_INVALID, "a block of %llu bytes does not fit into a segment",
                       (unsigned long long)setup->block_bytes);
    segments = setup->capacity_blocks / blocks;
    if (segments < SEGMENTS_MIN || segments * blocks >= REPLAY_NONE)
        return err_set(why, ICMS_INVALID,
                       "a drive for %llu blocks would have %llu segments; %d are needed, and "
                       "smaller segments (--segment) or a larger capacity give more",
                       (unsigned long long)setup->capacity_blocks, (unsigned long long)segments,
                       SEGMENTS_MIN);
    *out_drive = (struct replay_drive){.record_bytes = (uint64_t)record * STORE_PAGE_BYTES,
                                       .segment_blocks = blocks,
                                       .segment_count = (uint32_t)segments,
                                       .reserve = (uint32_t)u64_min(segments / 16, 2)};
    return ICMS_OK;
}

static icms_err log_sizes(struct log *log, const struct replay_setup *setup, struct err_why *why)
{
    struct replay_drive drive;
    icms_err err = replay_drive_sizes(setup, why, &drive);

    if (err != ICMS_OK)
        return err;
    log->record_bytes = drive.record_bytes;
    log->segment_blocks = drive.segment_blocks;
    log->map_pages = store_dead_map_pages((uint32_t)(setup->segment_bytes / STORE_PAGE_BYTES));
    log->segment_count = drive.segment_count;
    log->reserve = drive.reserve;
    return ICMS_OK;
}

static icms_err log_policy(struct log *log, const struct replay_setup *setup)
{
    struct policy_opts opts = {.ghost_keys = 2 * setup->capacity_blocks,
                               .budget_bytes_day = setup->budget_bytes_day};

    return policy_new(&opts, 0, &log->policy);
}

static icms_err log_new(const struct replay *replay, struct err_why *why, void **out_cache)
{
    struct log *log = calloc(1, sizeof(*log));
    icms_err err;

    if (log == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a drive");
    *out_cache = log;
    err = log_sizes(log, replay->setup, why);
    if (err != ICMS_OK)
        return err;
    log->segments = calloc(log->segment_count, sizeof(log->segments[0]));
    log->blocks = calloc((size_t)log->segment_count * log->segment_blocks, sizeof(uint32_t));
    log->where = calloc(replay->block_count, sizeof(log->where[0]));
    if (log->segments == NULL || log->blocks == NULL || log->where == NULL ||
        log_policy(log, replay->setup) != ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a drive of %u segments",
                       log->segment_count);
    replay->result->segments = log->segment_count;
    list_init(&log->full);
    list_init(&log->free);
    for (; log->free_count < log->segment_count; log->free_count++)
        list_push(&log->free, &log->segments[log->free_count].link);
    return ICMS_OK;
}

/* ---- writing -----------------------------------------------------------------------------------
 */

static uint32_t log_number(const struct log *log, const struct log_segment *segment)
{
    return (uint32_t)(segment - log->segments);
}

static void log_open(struct log *log, struct replay *replay)
{
    struct list *link = list_pop(&log->free);
    uint64_t bytes = (uint64_t)STORE_PAGE_BYTES *
                     (LIFE_PAGES + log->map_pages + store_summary_pages(log->segment_blocks));

    check(link != NULL);
    log->free_count--;
    log->open = container_of(link, struct log_segment, link);
    *log->open = (struct log_segment){.count = 0};
    list_init(&log->open->link);
    policy_charge(log->policy, bytes, replay->now_ms);
    replay->result->written_bytes += bytes;
}

/* Where the block is from then on. */
static struct log_segment *log_append(struct log *log, struct replay *replay, uint32_t block)
{
    uint32_t at;

    if (log->open != NULL && log->open->count == log->segment_blocks) {
        list_push(&log->full, &log->open->link);
        log->open = NULL;
    }
    if (log->open == NULL)
        log_open(log, replay);
    at = log_number(log, log->open) * log->segment_blocks + log->open->count++;
    log->blocks[at] = block;
    log->where[block] = at + 1;
    replay->result->written_bytes += log->record_bytes;
    return log->open;
}

static void log_accessed(struct log *log, struct log_segment *segment, uint32_t block)
{
    policy_access(log->policy, &segment->recency, hash64_mix(block));
    segment->last = block;
}

/* ---- reclaim -----------------------------------------------------------------------------------
 */

/* The segment that goes next. */
static struct log_segment *log_victim(struct log *log, enum replay_kind kind)
{
    struct log_segment *best = NULL;

    list_for_each (link, &log->full) {
        struct log_segment *segment = container_of(link, struct log_segment, link);

        if (best == NULL ||
            (kind != REPLAY_FIFO && policy_before(&segment->recency, &best->recency)))
            best = segment;
    }
    return best;
}

/* Of the segments that live for one block alone, if the victim does not, the last accessed one. */
static struct log_segment *log_held(struct log *log, const struct log_segment *victim)
{
    struct log_segment *best = NULL;

    list_for_each (link, &log->full) {
        struct log_segment *segment = container_of(link, struct log_segment, link);

        if (policy_is_held(&segment->recency, &victim->recency) &&
            (best == NULL || policy_before(&best->recency, &segment->recency)))
            best = segment;
    }
    return best;
}

/* Writes the one block that a segment lives for again. */
static void log_relocate(struct log *log, struct replay *replay)
{
    struct log_segment *segment = log_held(log, log_victim(log, replay->setup->kind));
    uint32_t block;

    if (segment == NULL || !policy_relocate(log->policy, log->record_bytes))
        return;
    block = segment->last;
    log_accessed(log, log_append(log, replay, block), block);
    policy_relocated(&segment->recency, hash64_mix(block));
}

static void log_reclaim(struct log *log, struct replay *replay)
{
    struct log_segment *segment;
    const uint32_t *blocks;
    uint32_t first;

    if (replay->setup->kind != REPLAY_FIFO)
        log_relocate(log, replay);
    segment = log_victim(log, replay->setup->kind);
    check(segment != NULL);
    first = log_number(log, segment) * log->segment_blocks;
    blocks = &log->blocks[first];
    list_remove(&segment->link);
    for (uint32_t i = 0; i < segment->count; i++) {
        if (log->where[blocks[i]] != first + i + 1)
            continue; /* relocated */
        log->where[blocks[i]] = 0;
        policy_evicted(log->policy, hash64_mix(blocks[i]));
    }
    list_push(&log->free, &segment->link);
    log->free_count++;
}

/* ---- a block is offered ------------------------------------------------------------------------
 */

static bool log_has(const void *cache, uint32_t block)
{
    const struct log *log = cache;

    return log->where[block] != 0;
}

static void log_offer(void *cache, struct replay *replay, uint32_t block)
{
    struct log *log = cache;
    uint64_t run = hash64_mix(replay_run_of(replay, block));

    if (log->where[block] != 0) {
        log_accessed(log, &log->segments[(log->where[block] - 1) / log->segment_blocks], block);
        policy_read(log->policy, run);
        return;
    }
    if (!policy_admit(log->policy, hash64_mix(block), run, log->record_bytes, replay->now_ms)) {
        replay->result->refused++;
        return;
    }
    log_accessed(log, log_append(log, replay, block), block);
    policy_written(log->policy, hash64_mix(block), log->record_bytes);
    replay->result->admitted_bytes += replay->setup->block_bytes;
    while (log->free_count < log->reserve)
        log_reclaim(log, replay);
}

const struct replay_cache replay_log = {
    .new = log_new, .free = log_free, .has = log_has, .offer = log_offer};
