/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays a trace through a cache and counts. Called by icms replay and its tests; one thread.
 */
#include "replay_model.h"

#include <string.h>

#include "base/bytes.h"
#include "replay_int.h"

/* Requests between two calls of progress. */
#define PROGRESS_REQUESTS 256

const char *const replay_kind_names[REPLAY_KINDS] = {
    [REPLAY_FIFO] = "fifo",       [REPLAY_LRU] = "lru", [REPLAY_S3FIFO] = "s3-fifo",
    [REPLAY_DEFAULT] = "default", [REPLAY_DUE] = "due", [REPLAY_RUN_WISE] = "run-wise",
    [REPLAY_BELADY] = "belady",
};

static const struct replay_cache *const caches[REPLAY_KINDS] = {
    [REPLAY_FIFO] = &replay_log,      [REPLAY_LRU] = &replay_lru, [REPLAY_S3FIFO] = &replay_s3fifo,
    [REPLAY_DEFAULT] = &replay_log,   [REPLAY_DUE] = &replay_log, [REPLAY_RUN_WISE] = &replay_log,
    [REPLAY_BELADY] = &replay_belady,
};

/* One request: what is there, then all of it offered. first: number of the loop's block 0. */
static void request_run(struct replay *replay, const struct replay_cache *cache, void *state,
                        const struct replay_request *request, uint32_t first)
{
    const uint32_t *refs = replay->trace->refs + request->first;
    struct replay_result *result = replay->result;
    uint32_t prefix = 0;

    while (prefix < request->count && cache->has(state, first + refs[prefix]))
        prefix++;
    result->block_hits += prefix;
    for (uint32_t i = prefix; i < request->count; i++)
        result->block_hits += cache->has(state, first + refs[i]);
    result->refs += request->count;
    result->tokens += request->tokens;
    result->prefix_hits += prefix;
    result->token_hits += u64_min(request->tokens, (uint64_t)prefix * replay->trace->block_tokens);
    for (uint32_t i = request->count; i-- > 0;) {
        cache->offer(state, replay, first + refs[i]);
        replay->at++;
    }
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
    err = cache->new (&replay, why, &state);
    for (uint32_t loop = 0; err == ICMS_OK && loop < setup->loops; loop++) {
        for (uint32_t i = 0; i < trace->request_count; i++) {
            replay.now_ms = loop * span_ms + trace->requests[i].time_ms;
            request_run(&replay, cache, state, &trace->requests[i], loop * trace->block_count);
            if (setup->progress != NULL && ++done % PROGRESS_REQUESTS == 0)
                setup->progress(setup->progress_arg, done, of);
        }
    }
    out_result->time_ms = setup->loops * span_ms;
    cache->free(state);
    return err;
}
