/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/count.c: what clients count themselves: hits in the mapped arena, exists and match.
 *
 * Called with agent->control held: by status.c, and by client.c before a client's region goes, so
 * that the counts of a client outlive it.
 *
 * A client may write anything into its counters. Of each counter at most so much is taken as can
 * happen in the time that the client has been attached, and never less than was taken before. So
 * the volume's sums only grow.
 */
#include "agent/agent_int.h"

/* No client does more in a nanosecond, with all of its threads. 64 clients that count as much as
 * they may bring a sum of events to its limit in nine years. */
#define COUNT_NS_EVENTS 1
#define COUNT_NS_BYTES  1024

/* What a client may have counted before time is seen to pass. */
#define COUNT_EVENTS_MIN ((uint64_t)1 << 16)
#define COUNT_BYTES_MIN  ((uint64_t)1 << 36)

void agent_client_counts_take(struct agent_client *client)
{
    struct agent *agent = client->agent;
    uint64_t age_ns = loop_env_now_ns(agent->env) - client->attached_ns;
    uint64_t events_max = COUNT_EVENTS_MIN + age_ns * COUNT_NS_EVENTS;
    uint64_t bytes_max = COUNT_BYTES_MIN + age_ns * COUNT_NS_BYTES;

    for (uint32_t i = 0; i < agent->volume_count; i++)
        for (uint32_t j = 0; j < SHM_COUNTS && (client->volumes >> i & 1) != 0; j++) {
            uint64_t *counted = &client->counted[i][j];
            uint64_t value =
                atomic_load_explicit(&client->qpairs[0].ring.counts[i][j], memory_order_relaxed);

            value = u64_min(value, j == SHM_COUNT_HIT_BYTES ? bytes_max : events_max);
            if (value <= *counted)
                continue;
            agent->volumes[i].client_counts[j] += value - *counted;
            *counted = value;
        }
}
