/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/count.c: what is counted of users, and what clients count themselves: hits in the mapped
 * arena, exists and match.
 *
 * agent_user_count is called by reactors, for requests that are over; agent_in_flight and
 * agent_is_quiet by any thread. All else is called with
 * agent->control held: by status.c and access.c, and by client.c before a client's region goes, so
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

uint64_t agent_in_flight(const struct agent *agent)
{
    uint64_t in_flight = 0;

    for (uint32_t i = 0; i < agent->reactor_count; i++) {
        uint64_t answered = counter_get_acquire(&agent->reactors[i].answered);

        /* of what was answered all was taken */
        in_flight += counter_get(&agent->reactors[i].requests) - answered;
    }
    return in_flight;
}

bool agent_is_quiet(struct agent *agent)
{
    return agent_in_flight(agent) == 0 &&
           atomic_load_explicit(&agent->backlog_bytes, memory_order_acquire) == 0;
}

void agent_user_count(const struct agent_req *req)
{
    const struct agent_user_share *user = req->qpair->client->user;
    struct agent_user_count *count = &req->shard->users[user - req->shard->agent->users];

    counter_add(&count->requests, 1);
    counter_add(&count->waits, req->wait_ns > 0);
    counter_add(&count->wait_us, req->wait_ns / 1000);
    counter_add(&count->sheds, req->answer.reason == ICMS_MISS_SHED);
    if (req->answer.status == ICMS_OK && req->op == SHM_OP_GET) {
        uint64_t bytes = req->answer.value_bytes;

        counter_add(&count->load_bytes, bytes);
        counter_add(&count->load_local_bytes, req->answer.source == ICMS_SOURCE_LOCAL ? bytes : 0);
        counter_add(&count->load_pod_bytes, req->answer.source == ICMS_SOURCE_POD ? bytes : 0);
    }
    if (req->answer.status == ICMS_OK && req->op == SHM_OP_PUT)
        counter_add(&count->store_bytes, req->bytes);
}

void agent_user_count_sum(struct agent *agent, uint32_t place, uint32_t volume,
                          struct agent_user_stats *out_stats)
{
    *out_stats = (struct agent_user_stats){0};
    for (uint32_t r = 0; r < agent->reactor_count; r++) {
        const struct agent_user_count *count = &agent->reactors[r].shards[volume].users[place];

        out_stats->requests += counter_get(&count->requests);
        out_stats->load_bytes += counter_get(&count->load_bytes);
        out_stats->load_local_bytes += counter_get(&count->load_local_bytes);
        out_stats->load_pod_bytes += counter_get(&count->load_pod_bytes);
        out_stats->store_bytes += counter_get(&count->store_bytes);
        out_stats->pinned_bytes += counter_get(&count->pinned[ICMS_TIER_DRAM]);
        out_stats->pinned_drive_bytes += counter_get(&count->pinned[ICMS_TIER_LOCAL]);
        out_stats->waits += counter_get(&count->waits);
        out_stats->wait_us += counter_get(&count->wait_us);
        out_stats->sheds += counter_get(&count->sheds);
    }
}

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
            if (j == SHM_COUNT_HIT_BYTES)
                client->user->hit_bytes[i] += value - *counted;
            *counted = value;
        }
}
