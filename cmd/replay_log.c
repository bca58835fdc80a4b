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
    uint64_t opened;              /* orders segments by age                       */
    uint32_t next;                /* list of its stream, or of free ones          */
    uint32_t count;               /* blocks in it                                 */
};

struct log_stream {
    uint32_t open;           /* takes blocks; REPLAY_NONE: none              */
    uint32_t oldest, newest; /* full ones                                   */
};

struct log {
    struct policy *policy;              /* decides                                      */
    struct log_segment *segments;       /* by number                                    */
    uint32_t *blocks;                   /* of all segments                              */
    uint32_t *where;                    /* by block: place in blocks + 1; 0: not there  */
    policy_state *states;               /* by block                                     */
    uint64_t record_bytes;              /* of a value on flash                          */
    uint64_t opened;                    /* segments opened so far                       */
    uint32_t segment_count;             /* of the drive                                 */
    uint32_t segment_blocks;            /* that fit into a segment                      */
    uint32_t free;                      /* list                                         */
    uint32_t free_count;                /* in it                                        */
    uint32_t reserve;                   /* reclaim works while fewer are free           */
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
                                       .reserve = (uint32_t)u64_min(segments / 16, 8)};
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
        log->streams[i] =
            (struct log_stream){.open = REPLAY_NONE, .oldest = REPLAY_NONE, .newest = REPLAY_NONE};
    log->free = REPLAY_NONE;
    for (uint32_t i = log->segment_count; i-- > 0; log->free_count++) {
        log->segments[i].next = log->free;
        log->free = i;
    }
    return ICMS_OK;
}

/* ---- writing -----------------------------------------------------------------------------------
 */

static void log_seal(struct log *log, struct log_stream *stream)
{
    uint32_t number = stream->open;

    log->segments[number].next = REPLAY_NONE;
    if (stream->newest != REPLAY_NONE)
        log->segments[stream->newest].next = number;
    else
        stream->oldest = number;
    stream->newest = number;
    stream->open = REPLAY_NONE;
}

static void log_open(struct log *log, struct log_stream *stream, struct replay *replay)
{
    uint32_t number = log->free;
    uint64_t bytes =
        (uint64_t)PAGE_BYTES * (3 + (log->segment_blocks + SUMMARY_ENTRIES - 1) / SUMMARY_ENTRIES);

    check(number != REPLAY_NONE);
    log->free = log->segments[number].next;
    log->free_count--;
    log->segments[number] = (struct log_segment){.opened = ++log->opened, .next = REPLAY_NONE};
    stream->open = number;
    policy_charge(log->policy, bytes, replay->now_ms);
    replay->result->written_bytes += bytes;
}

/* Whether a record fits into a stream without a segment that is not there. */
static bool log_has_room(const struct log *log, const struct log_stream *stream)
{
    return log->free_count > 0 ||
           (stream->open != REPLAY_NONE && log->segments[stream->open].count < log->segment_blocks);
}

static void log_append(struct log *log, struct replay *replay, uint32_t which, uint32_t block,
                       uint64_t wanted_ms)
{
    struct log_stream *stream = &log->streams[which];
    struct log_segment *segment;
    uint32_t at;

    if (stream->open != REPLAY_NONE && log->segments[stream->open].count == log->segment_blocks)
        log_seal(log, stream);
    if (stream->open == REPLAY_NONE)
        log_open(log, stream, replay);
    segment = &log->segments[stream->open];
    at = stream->open * log->segment_blocks + segment->count++;
    log->blocks[at] = block;
    log->where[block] = at + 1;
    policy_segment_add(&segment->wanted, wanted_ms);
    replay->result->written_bytes += log->record_bytes;
}

/* ---- reclaim -----------------------------------------------------------------------------------
 */

/* The stream whose oldest segment goes next; STREAMS: none is full. */
static uint32_t log_victim(const struct log *log, enum replay_kind kind)
{
    uint64_t best = UINT64_MAX;
    uint32_t found = STREAMS;

    for (uint32_t i = 0; i < STREAMS; i++) {
        const struct log_segment *segment;
        uint64_t due;

        if (log->streams[i].oldest == REPLAY_NONE)
            continue;
        segment = &log->segments[log->streams[i].oldest];
        due = kind == REPLAY_DEFAULT || kind == REPLAY_FIFO ? segment->opened
                                                            : policy_segment_due(&segment->wanted);
        if (due < best || found == STREAMS) {
            best = due;
            found = i;
        }
    }
    return found;
}

/* run-wise: the state of the block that was wanted last in its run, of those in the segment. */
static policy_state log_run_state(const struct log *log, const struct replay *replay,
                                  uint32_t number, uint32_t block)
{
    const uint32_t *blocks = &log->blocks[(size_t)number * log->segment_blocks];
    policy_state best = log->states[block];

    for (uint32_t i = 0; i < log->segments[number].count; i++) {
        if (replay_run_of(replay, blocks[i]) == replay_run_of(replay, block) &&
            log->states[blocks[i]] > best)
            best = log->states[blocks[i]];
    }
    return best;
}

/* One block of a segment under reclaim that is still there. */
static void log_reclaim_block(struct log *log, struct replay *replay, uint32_t number,
                              uint32_t block)
{
    uint32_t to = replay->setup->kind == REPLAY_DEFAULT ? 0 : 1;
    policy_state state = replay->setup->kind == REPLAY_RUN_WISE
                             ? log_run_state(log, replay, number, block)
                             : log->states[block];
    struct policy_verdict verdict =
        policy_carry(log->policy, 0, state, log->record_bytes,
                     policy_segment_due(&log->segments[number].wanted), replay->now_ms);

    log->where[block] = 0;
    if (verdict.carry && log_has_room(log, &log->streams[to])) {
        log_append(log, replay, to, block, verdict.wanted_ms);
        log->states[block] = verdict.state;
        replay->result->carried_bytes += replay->setup->block_bytes;
        return;
    }
    if (verdict.carry)
        policy_carry_undo(log->policy, log->record_bytes);
    policy_evicted(log->policy, hash64_mix(block), log->states[block]);
    log->states[block] = 0;
}

static void log_reclaim(struct log *log, struct replay *replay)
{
    uint32_t from = log_victim(log, replay->setup->kind);
    struct log_stream *stream = &log->streams[from];
    uint32_t number;

    check(from < STREAMS);
    number = stream->oldest;
    stream->oldest = log->segments[number].next;
    if (stream->oldest == REPLAY_NONE)
        stream->newest = REPLAY_NONE;
    for (uint32_t i = 0; i < log->segments[number].count; i++) {
        uint32_t at = number * log->segment_blocks + i;
        uint32_t block = log->blocks[at];

        if (log->where[block] == at + 1)
            log_reclaim_block(log, replay, number, block);
    }
    log->segments[number].next = log->free;
    log->free = number;
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
        log->states[block] = policy_read(log->policy, 0, run, log->states[block]);
        return;
    }
    if (!policy_admit(log->policy, hash64_mix(block), run, log->record_bytes, replay->now_ms)) {
        replay->result->refused++;
        return;
    }
    log->states[block] =
        policy_written(log->policy, 0, hash64_mix(block), log->record_bytes, replay->now_ms);
    log_append(log, replay, 0, block, replay->now_ms);
    replay->result->admitted_bytes += replay->setup->block_bytes;
    while (log->free_count < log->reserve)
        log_reclaim(log, replay);
}

const struct replay_cache replay_log = {
    .new = log_new, .free = log_free, .has = log_has, .offer = log_offer};
