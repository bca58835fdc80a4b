/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/events.h: private to the module: what happens to blocks, on its way to agent_events_take.
 */
#ifndef AGENT_EVENTS_H
#define AGENT_EVENTS_H

#include "agent/agent.h"
#include "store/store.h"

struct agent_reactor;
struct agent_shard;

/* Events of a reactor's shards that were not taken yet: events.c. */
#define AGENT_EVENTS (1u << 15)

/* What is told of blocks that are there already: so many at a time, so long after each other, while
 * no more than half of the ring is in use. */
#define AGENT_TELL    32
#define AGENT_TELL_NS ((uint64_t)2000000)
#define AGENT_TELL_LOOKS                                                                           \
    1024 /* slots, or places of the drive's index, that are looked at for them */

/* Of a volume: where telling got. */
struct agent_told {
    bool memory, drive;       /* it goes on                                        */
    uint32_t slot;            /* memory: the next one                              */
    uint64_t begun_ns;        /* memory: what was published since then was told    */
    struct store_position at; /* drive                                             */
};

struct agent_events {
    struct agent_reactor *reactor;
    struct loop_timer timer; /* goes on telling                               */
    struct agent_told told[LIMIT_AGENT_VOLUMES];
    uint64_t is_lossy; /* bit i: events of volume i were lost since it was told anew      */
    /* How often a volume was told anew for lost events: of all reactors (reactor 0 has them), and
     * by this one. */
    _Atomic uint32_t anew[LIMIT_AGENT_VOLUMES];
    uint32_t anew_seen[LIMIT_AGENT_VOLUMES];
    struct loop_msg msg; /* another one lost some                          */
    atomic_bool msg_sent;
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

/* The reactor's loop begins: what the own drive kept of all volumes is told, bit by bit. */
void agent_events_begin(struct agent_reactor *reactor);

/* All blocks of the volume left; what the own drive has of its UUID by now is told. */
void agent_events_reset(struct agent_shard *shard);

/* The own drive is out of service: all blocks left, and what is in memory is told again. */
void agent_events_drive_lost(struct agent *agent);

#endif
