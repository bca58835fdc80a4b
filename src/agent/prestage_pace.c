/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/prestage_pace.c: how long the load of a hint takes, for prestage.c: whether a block can
 * still arrive, and how long its load may wait.
 *
 * Called on the reactor's loop.
 *
 * By server: an enclosure, or the own drive. What is expected of it is the larger of the average of
 * hints' loads and of what base/estimate.h says for so many bytes behind what is in flight. A load
 * that ended at its deadline took longer than that, and counts where less was expected.
 *
 * A server that nothing is loaded from says nothing new. So what is expected is halved with each
 * HINT_HALVE_NS since the last load of a hint was begun or ended there: a slow server gets a hint
 * now and then, and no burst of them.
 */
#include "agent/agent_int.h"
#include "agent/prestage_int.h"

/* The time that a load takes is an average of so many. */
#define HINT_AVERAGE 8

#define HINT_HALVE_NS ((uint64_t)1000 * 1000 * 1000)

/* A load may take so long where nothing is known, and so many times what is expected. A command
 * that is never answered has its block for so long. */
#define HINT_LOAD_NS    ((uint64_t)30 * 1000 * 1000 * 1000)
#define HINT_LOAD_TIMES 4

/* Where the block of a hint would come from; *out_estimate NULL: nobody knows. */
static struct hint_pace *hint_pace(const struct agent_hint *hint,
                                   const struct estimate **out_estimate, uint64_t *out_bytes)
{
    struct agent_shard *shard = hint->shard;
    const struct agent *agent = shard->agent;
    struct hint_pace *paces = shard->reactor->prestage->paces;
    struct agent_search search = {0};
    const struct agent_enclosure *enclosure;

    *out_bytes = agent_shard_expected_bytes(shard);
    *out_estimate = agent->local != NULL ? &agent->local->estimate : NULL;
    if (agent->local != NULL)
        return &paces[HINT_PACE_DRIVE];
    if (agent->tier != NULL && agent_tier_has(shard, &hint->key)) {
        *out_bytes = u64_max(agent_tier_bytes(shard, &hint->key), 1);
        *out_estimate = &agent->tier->estimate;
        return &paces[HINT_PACE_DRIVE];
    }
    enclosure = agent_op_pick(shard, &hint->key, &search);
    if (enclosure == NULL)
        return &paces[HINT_PACE_DRIVE];
    *out_estimate = &enclosure->estimate;
    return &paces[enclosure->number];
}

static uint64_t pace_ns(const struct hint_pace *pace, const struct estimate *estimate,
                        uint64_t bytes, uint64_t now_ns)
{
    uint64_t ns = estimate == NULL ? ESTIMATE_UNKNOWN : estimate_ns(estimate, bytes, now_ns);

    return ns == ESTIMATE_UNKNOWN ? pace->load_ns : u64_max(pace->load_ns, ns);
}

uint64_t agent_hint_load_ns(const struct agent_hint *hint)
{
    uint64_t now_ns = reactor_now_ns(hint->shard->reactor), bytes;
    const struct estimate *estimate;
    const struct hint_pace *pace = hint_pace(hint, &estimate, &bytes);

    return pace_ns(pace, estimate, bytes, now_ns) >>
           u64_min((now_ns - pace->at_ns) / HINT_HALVE_NS, 63);
}

uint64_t agent_hint_load_begun(struct agent_hint *hint, uint64_t until_ns)
{
    uint64_t now_ns = reactor_now_ns(hint->shard->reactor), bytes, most_ns;
    const struct estimate *estimate;
    struct hint_pace *pace = hint_pace(hint, &estimate, &bytes);

    most_ns = u64_max(HINT_LOAD_NS, HINT_LOAD_TIMES * pace_ns(pace, estimate, bytes, now_ns));
    hint->begun_ns = pace->at_ns = now_ns;
    hint->pace = pace;
    return u64_max(now_ns + (uint64_t)hint->shard->agent->opts.load_deadline_ms * 1000000,
                   u64_min(until_ns, now_ns + most_ns));
}

void agent_hint_load_ended(struct agent_hint *hint, const struct agent_op *op)
{
    struct hint_pace *pace = hint->pace;
    uint64_t now_ns = reactor_now_ns(hint->shard->reactor), took_ns = now_ns - hint->begun_ns;
    bool is_late = op->err != ICMS_OK && op->reason == ICMS_MISS_DEADLINE;

    pace->at_ns = now_ns;
    if (is_late)
        pace->load_ns = u64_max(pace->load_ns, took_ns);
    else if (op->err == ICMS_OK && (pace->load_ns == 0 || took_ns < pace->load_ns / 2))
        pace->load_ns = took_ns; /* it is not what it was */
    else if (op->err == ICMS_OK)
        pace->load_ns += took_ns / HINT_AVERAGE - pace->load_ns / HINT_AVERAGE;
}
