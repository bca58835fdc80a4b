/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays a trace through a cache and counts. Called by icms replay and its tests; one thread.
 */
#include "replay/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "place/place.h"
#include "replay/replay_int.h"

/* Requests between two calls of progress. */
#define PROGRESS_REQUESTS 32

/* Blocks of a run, as volumes have it by default. */
#define RUN_BLOCKS 8

const char *const replay_kind_names[REPLAY_KINDS] = {
    [REPLAY_FIFO] = "fifo",       [REPLAY_LRU] = "lru",       [REPLAY_S3FIFO] = "s3-fifo",
    [REPLAY_DEFAULT] = "default", [REPLAY_BELADY] = "belady", [REPLAY_STORE] = "store",
};

static const struct replay_cache *const caches[REPLAY_KINDS] = {
    [REPLAY_FIFO] = &replay_log,      [REPLAY_LRU] = &replay_lru,
    [REPLAY_S3FIFO] = &replay_s3fifo, [REPLAY_DEFAULT] = &replay_log,
    [REPLAY_BELADY] = &replay_belady, [REPLAY_STORE] = &replay_store,
};

/* How many blocks from the first on were there. */
static uint32_t replay_prefix(const struct replay *replay, const struct replay_request *request)
{
    uint32_t prefix = 0;

    while (prefix < request->count && replay->there[prefix])
        prefix++;
    return prefix;
}

/* A request through a cache in memory: what is there, then all of it offered. */
static void blocks_run(struct replay *replay, const struct replay_cache *cache, void *state,
                       const struct replay_request *request, uint32_t first)
{
    const uint32_t *refs = replay->trace->refs + request->first;

    for (uint32_t i = 0; i < request->count; i++)
        replay->there[i] = cache->has(state, first + refs[i]);
    for (uint32_t i = request->count; i-- > 0;) {
        cache->offer(state, replay, first + refs[i]);
        replay->at++;
    }
}

/* One request. first: number of the loop's block 0. */
static icms_err request_run(struct replay *replay, const struct replay_cache *cache, void *state,
                            const struct replay_request *request, uint32_t first,
                            struct err_why *why)
{
    struct replay_result *result = replay->result;
    uint32_t prefix;

    if (cache->request != NULL) {
        icms_err err = cache->request(state, replay, request, first, why);

        if (err != ICMS_OK)
            return err;
    } else {
        blocks_run(replay, cache, state, request, first);
    }
    prefix = replay_prefix(replay, request);
    for (uint32_t i = 0; i < request->count; i++)
        result->block_hits += replay->there[i];
    result->refs += request->count;
    result->tokens += request->tokens;
    result->token_hits += u64_min(request->tokens, (uint64_t)prefix * replay->trace->block_tokens);
    return ICMS_OK;
}

/* The longest request. */
static uint32_t longest(const struct replay_trace *trace)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < trace->request_count; i++)
        most = trace->requests[i].count > most ? trace->requests[i].count : most;
    return most;
}

uint32_t *replay_runs_make(const struct replay_trace *trace)
{
    uint32_t *run = calloc(trace->block_count, sizeof(run[0]));

    for (uint32_t r = 0; run != NULL && r < trace->request_count; r++) {
        const uint32_t *refs = &trace->refs[trace->requests[r].first];
        uint32_t first = 0;

        for (uint32_t i = 0; i < trace->requests[r].count; i++) {
            if (place_run_begins(i, RUN_BLOCKS))
                first = refs[i];
            run[refs[i]] = first;
        }
    }
    return run;
}

icms_err replay_run(const struct replay_trace *trace, const struct replay_setup *setup,
                    struct err_why *why, struct replay_result *out_result)
{
    const struct replay_cache *cache = caches[setup->kind];
    uint64_t span_ms = trace->requests[trace->request_count - 1].time_ms + 1000;
    uint64_t of = (uint64_t)setup->loops * trace->request_count, done = 0;
    struct replay replay = {.trace = trace,
                            .setup = setup,
                            .result = out_result,
                            .block_count = (uint64_t)setup->loops * trace->block_count};
    void *state = NULL;
    icms_err err;

    memset(out_result, 0, sizeof(*out_result));
    if (replay.block_count >= REPLAY_NONE)
        return err_set(why, ICMS_INVALID, "%u loops of %u blocks are too many; take fewer loops",
                       setup->loops, trace->block_count);
    replay.there = calloc(longest(trace), sizeof(replay.there[0]));
    replay.run = replay_runs_make(trace);
    err = replay.there == NULL || replay.run == NULL
              ? err_set(why, ICMS_NO_MEMORY, "no memory for a request and the runs of the trace")
              : cache->new (&replay, why, &state);
    for (uint32_t loop = 0; err == ICMS_OK && loop < setup->loops; loop++) {
        for (uint32_t i = 0; err == ICMS_OK && i < trace->request_count; i++) {
            replay.now_ms = loop * span_ms + trace->requests[i].time_ms;
            err = request_run(&replay, cache, state, &trace->requests[i], loop * trace->block_count,
                              why);
            if (setup->progress != NULL && ++done % PROGRESS_REQUESTS == 0)
                setup->progress(setup->progress_arg, done, of);
        }
    }
    out_result->time_ms = setup->loops * span_ms;
    cache->free(state);
    free(replay.there);
    free(replay.run);
    return err;
}

icms_err replay_file_bytes(const struct replay_setup *setup, struct err_why *why,
                           uint64_t *out_bytes)
{
    struct replay_drive drive;
    icms_err err = replay_drive_sizes(setup, why, &drive);

    if (err == ICMS_OK)
        *out_bytes = replay_drive_bytes(setup, &drive);
    return err;
}
