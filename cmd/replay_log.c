/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drives of a replay: a log of segments with the store's rules and the store's policy code
 * (src/policy), but no bytes. Called by replay_run.
 *
 *   log_offer -> there: policy_read
 *             -> new: policy_admit, policy_written, log_append; log_reclaim while few are free
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
#include "replay_int.h"

/* Sizes on flash, as in src/store/layout.h: pages, record headers (one in front, one behind), what
 * a segment's life costs besides its records: header, empty footer, one summary page a hundred
 * records, footer. */
#define PAGE_BYTES      4096
#define HEADER_BYTES    64
#define SUMMARY_ENTRIES 102

#define SEGMENTS_MIN 32
#define STREAMS      2

struct log_segment {
    struct policy_segment wanted; /* when its blocks were                         */
    struct list link;             /* of its stream's full ones, or of free ones   */
    uint32_t count;               /* blocks in it                                 */
};

struct log_stream {
    struct log_segment *open; /* takes blocks; NULL: none       */
    struct list full;         /* log_segment.link: oldest first */
};

struct log {
    struct policy *policy;              /* decides                                      */
    struct log_segment *segments;       /* by number                                    */
    uint32_t *blocks;                   /* of all segments                              */
    uint32_t *where;                    /* by block: place in blocks + 1; 0: not there  */
    policy_state *states;               /* by block                                     */
    uint64_t record_bytes;              /* of a value on flash                          */
    uint32_t segment_count;             /* of the drive                                 */
    uint32_t segment_blocks;            /* that fit into a segment                      */
    struct list free;                   /* log_segment.link                             */
    uint32_t free_count;                /* in it                                        */
    uint32_t reserve;                   /* reclaim works when fewer are free            */
    uint32_t batch;                     /* until there are so many more                 */
    bool full;                          /* reclaim is at work                           */
    struct log_stream streams[STREAMS]; /* new blocks; carried ones, but default's */
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
    free(log->states);
    free(log);
}

icms_err replay_drive_sizes(const struct replay_setup *setup, struct err_why *why,
                            struct replay_drive *out_drive)
{
    uint64_t pages = setup->segment_bytes / PAGE_BYTES, record_bytes, record, blocks, segments;

    record_bytes = bytes_align(setup->block_bytes + 2 * (uint64_t)HEADER_BYTES, PAGE_BYTES);
    record = record_bytes / PAGE_BYTES;
    blocks = pages / record;
    while (blocks > 0 &&
           1 + blocks * record + (blocks + SUMMARY_ENTRIES - 1) / SUMMARY_ENTRIES + 1 > pages)
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
    *out_drive = (struct replay_drive){.record_bytes = record_bytes,
                                       .segment_blocks = (uint32_t)blocks,
                                       .segment_count = (uint32_t)segments,
                                       .reserve = (uint32_t)u64_min(segments / 16, 8),
                                       .batch = (uint32_t)(segments / POLICY_BATCH_PART)};
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
    log->segment_count = drive.segment_count;
    log->reserve = drive.reserve;
    log->batch = drive.batch;
    return ICMS_OK;
}

static icms_err log_policy(struct log *log, const struct replay_setup *setup)
{
    struct policy_opts opts;
    icms_err err;

    policy_opts_init(&opts);
    opts.capacity_bytes = (uint64_t)log->segment_count * log->segment_blocks * log->record_bytes;
    opts.ghost_keys = 2 * setup->capacity_blocks;
    opts.budget_bytes_day = setup->budget_bytes_day;
    if (setup->kind == REPLAY_FIFO)
        opts.carry_permille = 0;
    err = policy_new(&opts, 0, &log->policy);
    if (err == ICMS_OK)
        policy_volume_share(log->policy, 0, opts.capacity_bytes);
    return err;
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
    log->states = calloc(replay->block_count, sizeof(log->states[0]));
    if (log->segments == NULL || log->blocks == NULL || log->where == NULL || log->states == NULL ||
        log_policy(log, replay->setup) != ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a drive of %u segments",
                       log->segment_count);
    replay->result->segments = log->segment_count;
    for (int i = 0; i < STREAMS; i++)
        list_init(&log->streams[i].full);
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

static void log_open(struct log *log, struct log_stream *stream, struct replay *replay)
{
    struct list *link = list_pop(&log->free);
    uint64_t bytes =
        (uint64_t)PAGE_BYTES * (3 + (log->segment_blocks + SUMMARY_ENTRIES - 1) / SUMMARY_ENTRIES);

    check(link != NULL);
    log->free_count--;
    stream->open = container_of(link, struct log_segment, link);
    *stream->open = (struct log_segment){.count = 0};
    list_init(&stream->open->link);
    policy_charge(log->policy, bytes, replay->now_ms);
    replay->result->written_bytes += bytes;
}

/* Whether a record fits into a stream without a segment that is not there. */
static bool log_has_room(const struct log *log, const struct log_stream *stream)
{
    return log->free_count > 0 ||
           (stream->open != NULL && stream->open->count < log->segment_blocks);
}

/* Where the block is from then on. */
static struct log_segment *log_append(struct log *log, struct replay *replay, uint32_t which,
                                      uint32_t block)
{
    struct log_stream *stream = &log->streams[which];
    uint32_t at;

    if (stream->open != NULL && stream->open->count == log->segment_blocks) {
        list_push(&stream->full, &stream->open->link);
        stream->open = NULL;
    }
    if (stream->open == NULL)
        log_open(log, stream, replay);
    at = log_number(log, stream->open) * log->segment_blocks + stream->open->count++;
    log->blocks[at] = block;
    log->where[block] = at + 1;
    replay->result->written_bytes += log->record_bytes;
    return stream->open;
}

/* ---- reclaim -----------------------------------------------------------------------------------
 */

/* The segment that goes next. */
static struct log_segment *log_victim(struct log *log, enum replay_kind kind)
{
    struct policy_choice choice;
    struct log_segment *segment;

    if (kind == REPLAY_FIFO)
        return container_of(list_first(&log->streams[0].full), struct log_segment, link);
    policy_choice_begin(log->policy, 0, log->segment_blocks * log->record_bytes, &choice);
    for (uint32_t i = 0; i < STREAMS; i++) {
        list_for_each (link, &log->streams[i].full) {
            segment = container_of(link, struct log_segment, link);
            policy_choice_add(&choice, &segment->wanted, segment->count, segment);
        }
    }
    return policy_choice_end(log->policy, 0, &choice);
}

/* run-wise: the state of a block that is not due in its run, of those in the segment. */
static policy_state log_run_state(const struct log *log, const struct replay *replay,
                                  const struct log_segment *segment, uint32_t block)
{
    const uint32_t *blocks = &log->blocks[(size_t)log_number(log, segment) * log->segment_blocks];

    for (uint32_t i = 0; i < segment->count; i++) {
        if (replay_run_of(replay, blocks[i]) == replay_run_of(replay, block) &&
            !policy_due(log->policy, 0, log->states[blocks[i]]))
            return log->states[blocks[i]];
    }
    return log->states[block];
}

/* One block of a segment under reclaim. */
static void log_reclaim_block(struct log *log, struct replay *replay,
                              const struct log_segment *segment, uint32_t block)
{
    enum replay_kind kind = replay->setup->kind;
    uint32_t to = kind == REPLAY_DEFAULT ? 0 : 1;
    policy_state state =
        kind == REPLAY_RUN_WISE ? log_run_state(log, replay, segment, block) : log->states[block];

    log->where[block] = 0;
    if (log_has_room(log, &log->streams[to]) &&
        policy_carry(log->policy, 0, state, log->record_bytes, replay->now_ms)) {
        policy_segment_add(&log_append(log, replay, to, block)->wanted, log->states[block]);
        replay->result->carried_bytes += replay->setup->block_bytes;
        return;
    }
    policy_evicted(log->policy, hash64_mix(block), log->states[block]);
    log->states[block] = 0;
}

static void log_reclaim(struct log *log, struct replay *replay)
{
    struct log_segment *segment = log_victim(log, replay->setup->kind);
    const uint32_t *blocks = &log->blocks[(size_t)log_number(log, segment) * log->segment_blocks];

    check(segment != NULL);
    list_remove(&segment->link);
    for (uint32_t i = 0; i < segment->count; i++)
        log_reclaim_block(log, replay, segment, blocks[i]);
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
    struct log_segment *segment;
    uint64_t run = hash64_mix(replay_run_of(replay, block));

    if (log->where[block] != 0) {
        segment = &log->segments[(log->where[block] - 1) / log->segment_blocks];
        log->states[block] = policy_read(log->policy, 0, &segment->wanted, hash64_mix(block), run,
                                         log->states[block], replay->now_ms);
        return;
    }
    if (!policy_admit(log->policy, hash64_mix(block), run, replay->hint, log->record_bytes,
                      replay->now_ms)) {
        replay->result->refused++;
        return;
    }
    segment = log_append(log, replay, 0, block);
    log->states[block] = policy_written(log->policy, 0, &segment->wanted, hash64_mix(block),
                                        log->record_bytes, replay->now_ms);
    replay->result->admitted_bytes += replay->setup->block_bytes;
    while (log->free_count < log->reserve + (log->full ? log->batch : 0)) {
        log->full = true;
        log_reclaim(log, replay);
    }
    log->full = false;
}

const struct replay_cache replay_log = {
    .new = log_new, .free = log_free, .has = log_has, .offer = log_offer};
