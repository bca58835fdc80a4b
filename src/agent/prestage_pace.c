/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/prestage_pace.c: how long the load of a hint takes, for prestage.c: whether a block can
 * still arrive, how long its load may wait, and how many are in flight.
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
 *
 * Loads in flight are few, so that hints slow no load down and leave operations and memory to
 * others: of all servers together (the window), and of each. One that takes HINT_OVERDUE_NS is as
 * good as lost, and slows nothing down: it leaves the window. So a server that does not answer, or
 * hardly, holds the hints for others up for that long and not until its loads end; and while it has
 * HINT_OVERDUE_BYTES of such loads, its hints rest. What it can hold is bounded by what is in
 * flight to one server. Of the buffers of the own drive they have a part.
 */
#include "agent/agent_int.h"
#include "agent/prestage_int.h"

/* The time that a load takes is an average of so many. */
#define HINT_AVERAGE 8

#define HINT_HALVE_NS ((uint64_t)1000 * 1000 * 1000)

/* Loads of hints in flight, in bytes of the arena: in the window while there are other loads, and
 * while there are none; from one server; one of any size goes. A load counts as HINT_LOAD_BYTES at
 * least, so that hints of blocks that do not exist are few, too. */
#define HINT_BUSY_BYTES   ((uint64_t)2 << 20)
#define HINT_IDLE_BYTES   ((uint64_t)16 << 20)
#define HINT_SERVER_BYTES ((uint64_t)4 << 20)
#define HINT_LOAD_BYTES   ((uint64_t)64 << 10)

/* How long a load is in the window at most, and how much of a server may be out of it before its
 * hints rest. */
#define HINT_OVERDUE_NS    ((uint64_t)1000 * 1000 * 1000)
#define HINT_OVERDUE_BYTES ((uint64_t)1 << 20)

/* Of its shard's memory what is being loaded has at most a part, as nobody else can have it; and
 * once they have so many operations, one such load is enough. */
#define HINT_MEMORY_SHARE 2
#define HINT_OVERDUE_OPS  (AGENT_OPS_OTHERS / 2)

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

enum hint_credit agent_hint_credit(const struct agent_hint *hint, uint64_t bytes)
{
    const struct agent_shard *shard = hint->shard;
    const struct agent_reactor *reactor = shard->reactor;
    const struct agent_prestage *prestage = reactor->prestage;
    uint64_t bytes_max = reactor->ops_used[IO_CLASS_LOAD] > 0 ? HINT_BUSY_BYTES : HINT_IDLE_BYTES;
    const struct estimate *estimate;
    uint64_t expected_bytes;
    const struct hint_pace *pace = hint_pace(hint, &estimate, &expected_bytes);

    if (pace->overdue_bytes >= HINT_OVERDUE_BYTES ||
        (pace->overdue_bytes != 0 && reactor->ops_used[IO_CLASS_PRESTAGE] >= HINT_OVERDUE_OPS))
        return HINT_CREDIT_OVERDUE;
    if (shard->hint_bytes + bytes > shard->bytes_max / HINT_MEMORY_SHARE)
        return HINT_CREDIT_OTHERS;
    bytes = u64_max(bytes, HINT_LOAD_BYTES);
    if (line_first(&reactor->wait_op[IO_CLASS_LOAD]) != NULL ||
        line_first(&reactor->wait_op[IO_CLASS_PRESTAGE]) != NULL)
        return HINT_CREDIT_NONE;
    if (prestage->window_bytes != 0 && prestage->window_bytes + bytes > bytes_max)
        return HINT_CREDIT_NONE;
    if (shard->agent->tier != NULL && pace == &prestage->paces[HINT_PACE_DRIVE] &&
        !agent_tier_reads_hint(shard->agent->tier))
        return HINT_CREDIT_OTHERS;
    if (pace->load_bytes != pace->overdue_bytes && pace->load_bytes + bytes > HINT_SERVER_BYTES)
        return HINT_CREDIT_OTHERS;
    return HINT_CREDIT;
}

uint64_t agent_hint_load_begun(struct agent_hint *hint, uint64_t until_ns, uint64_t bytes)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    uint64_t now_ns = reactor_now_ns(hint->shard->reactor), expected_bytes, most_ns;
    const struct estimate *estimate;
    struct hint_pace *pace = hint_pace(hint, &estimate, &expected_bytes);

    most_ns =
        u64_max(HINT_LOAD_NS, HINT_LOAD_TIMES * pace_ns(pace, estimate, expected_bytes, now_ns));
    hint->begun_ns = pace->at_ns = now_ns;
    hint->is_overdue = false;
    hint->pace = pace;
    hint->load_bytes = u64_max(bytes, HINT_LOAD_BYTES);
    hint->memory_bytes = bytes;
    hint->shard->hint_bytes += bytes;
    pace->load_bytes += hint->load_bytes;
    prestage->window_bytes += hint->load_bytes;
    loop_timer_start(prestage->reactor->loop, &hint->timer, now_ns + HINT_OVERDUE_NS);
    prestage->drive_loads += hint->share->tier == ICMS_TIER_LOCAL;
    return u64_max(now_ns + (uint64_t)hint->shard->agent->opts.load_deadline_ms * 1000000,
                   u64_min(until_ns, now_ns + most_ns));
}

static void hint_leave_window(const struct agent_hint *hint)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;

    check(prestage->window_bytes >= hint->load_bytes);
    prestage->window_bytes -= hint->load_bytes;
    prestage->drive_loads -= hint->share->tier == ICMS_TIER_LOCAL;
}

void agent_hint_load_overdue(struct agent_hint *hint)
{
    check(hint->is_own && !hint->is_overdue);
    hint_leave_window(hint);
    hint->is_overdue = true;
    hint->pace->overdue_bytes += hint->load_bytes;
}

void agent_hint_load_ended(struct agent_hint *hint, const struct agent_op *op)
{
    struct hint_pace *pace = hint->pace;
    uint64_t now_ns = reactor_now_ns(hint->shard->reactor), took_ns = now_ns - hint->begun_ns;
    bool is_late = op->err != ICMS_OK && op->reason == ICMS_MISS_DEADLINE;

    loop_timer_stop(hint->shard->reactor->loop, &hint->timer);
    check(hint->shard->hint_bytes >= hint->memory_bytes);
    hint->shard->hint_bytes -= hint->memory_bytes;
    if (hint->is_overdue)
        pace->overdue_bytes -= hint->load_bytes;
    else
        hint_leave_window(hint);
    pace->load_bytes -= hint->load_bytes;
    pace->at_ns = now_ns;
    if (is_late)
        pace->load_ns = u64_max(pace->load_ns, took_ns);
    else if (op->err == ICMS_OK && (pace->load_ns == 0 || took_ns < pace->load_ns / 2))
        pace->load_ns = took_ns; /* it is not what it was */
    else if (op->err == ICMS_OK)
        pace->load_ns += took_ns / HINT_AVERAGE - pace->load_ns / HINT_AVERAGE;
}
