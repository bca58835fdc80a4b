/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/events.h: private to the module: what happens to blocks, on its way to agent_events_take.
 */
#ifndef AGENT_EVENTS_H
#define AGENT_EVENTS_H

#include "agent/agent.h"

struct agent_reactor;
struct agent_shard;

/* Events of a reactor's shards that were not taken yet: events.c. */
#define AGENT_EVENTS (1u << 15)

struct agent_events {
    _Atomic uint64_t head;               /* the next one's number; the reactor's      */
    _Atomic uint64_t tail;               /* the oldest one's; whoever takes           */
    uint64_t lost[LIMIT_AGENT_VOLUMES];  /* counters; the reactor's      */
    uint64_t taken[LIMIT_AGENT_VOLUMES]; /* counters; whoever takes      */
    struct agent_event of[AGENT_EVENTS]; /* by number, modulo           */
};

icms_err agent_events_init(struct agent_reactor *reactor, const struct agent_opts *opts);
void agent_events_fini(struct agent_reactor *reactor);

/* What of a volume's statistics is about events. Any thread. */
void agent_events_stats(const struct agent *agent, uint32_t volume,
                        struct agent_volume_stats *out_stats);

/* On the reactor's loop, of a shard that has events. */
void agent_event_put(struct agent_shard *shard, const struct key *key, enum agent_event_kind kind,
                     enum agent_event_tier tier);

/* A block of an own drive; volume: the agent's number. On the only reactor's loop. */
void agent_events_drive(struct agent *agent, uint32_t volume, const struct key *key, bool is_there);

#endif
