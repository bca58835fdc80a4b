/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay/replay_int.h: what the caches of a replay share. Private to src/replay.
 */
#ifndef REPLAY_REPLAY_INT_H
#define REPLAY_REPLAY_INT_H

#include "replay/model.h"

/* A replay under way, and what a cache may know about it. */
struct replay {
    const struct replay_trace *trace; /* what is replayed                                      */
    const struct replay_setup *setup; /* how                                                   */
    struct replay_result *result;     /* so far                                                */
    uint64_t block_count;             /* of all loops: blocks are numbered below               */
    uint64_t now_ms;                  /* time of the request                                   */
    uint64_t at;                      /* blocks offered so far: the place of this one          */
    bool *there;                      /* of the request: whether its blocks were there         */
    uint32_t *run;                    /* by block of the trace: the first block of its run     */
};

/* The name of a block's run: its first block, in the same loop. */
static inline uint32_t replay_run_of(const struct replay *replay, uint32_t block)
{
    uint32_t number = block % replay->trace->block_count;

    return block - number + replay->run[number];
}

/* By block: the first block of its run, for who has to free() it; NULL: no memory. */
uint32_t *replay_runs_make(const struct replay_trace *trace);

/* A cache: one of these a kind. What new has set *out_cache to is freed, after an error too. */
struct replay_cache {
    icms_err (*new)(const struct replay *replay, struct err_why *why, void **out_cache);
    void (*free)(void *cache);

    /* Caches in memory: block by block. */
    bool (*has)(const void *cache, uint32_t block);                    /* no side effect */
    void (*offer)(void *cache, struct replay *replay, uint32_t block); /* there or not   */

    /* Others: a request at once. Fills replay->there, then offers all blocks, the last one first.
     * first: number of the loop's block 0. */
    icms_err (*request)(void *cache, struct replay *replay, const struct replay_request *request,
                        uint32_t first, struct err_why *why);
};

extern const struct replay_cache replay_lru, replay_s3fifo, replay_belady, replay_log, replay_store;

/* How a drive for so many blocks is made up. */
struct replay_drive {
    uint64_t record_bytes;   /* of a value on flash     */
    uint32_t segment_blocks; /* that fit into a segment */
    uint32_t segment_count;  /* of the drive            */
    uint32_t reserve;        /* reclaim works when fewer are free */
};

/* INVALID with a sentence: blocks do not fit into segments, or there would be too few segments. */
icms_err replay_drive_sizes(const struct replay_setup *setup, struct err_why *why,
                            struct replay_drive *out_drive) ICMS_MUST_CHECK;

/* Of its file: its segments and, in front, less than one. */
static inline uint64_t replay_drive_bytes(const struct replay_setup *setup,
                                          const struct replay_drive *drive)
{
    return (drive->segment_count + (uint64_t)1) * setup->segment_bytes;
}

/* A list of blocks, each in one list at most. */
struct replay_link {
    uint32_t newer, older; /* neighbours; REPLAY_NONE at the ends */
};
#define REPLAY_NONE UINT32_MAX

#endif
