/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/replay_int.h: what the caches of a replay share. Private to cmd/replay_*.c.
 */
#ifndef CMD_REPLAY_INT_H
#define CMD_REPLAY_INT_H

#include "replay_model.h"

/* A replay under way, and what a cache may know about it. */
struct replay {
    const struct replay_trace *trace; /* what is replayed                                      */
    const struct replay_setup *setup; /* how                                                   */
    struct replay_result *result;     /* so far                                                */
    uint64_t block_count;             /* of all loops: blocks are numbered below               */
    uint64_t now_ms;                  /* time of the request                                   */
    uint64_t at;                      /* blocks offered so far: the place of this one          */
};

/* A cache: one of these a kind. */
struct replay_cache {
    icms_err (*new)(const struct replay *replay, struct err_why *why, void **out_cache);
    void (*free)(void *cache);
    bool (*has)(const void *cache, uint32_t block); /* no side effect             */
    void (*offer)(void *cache, struct replay *replay, uint32_t block); /* there or not */
};

extern const struct replay_cache replay_lru, replay_s3fifo, replay_belady, replay_log;

/* A list of blocks, each in one list at most. */
struct replay_link {
    uint32_t newer, older; /* neighbours; REPLAY_NONE at the ends */
};
#define REPLAY_NONE UINT32_MAX

#endif
