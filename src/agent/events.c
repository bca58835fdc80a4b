/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/events.c: what happens to blocks in the agent's tiers, for a thread that tells routers.
 *
 * agent_event_put is called on the reactor's loop by slot.c (memory) and shard.c (a reset), and,
 * through the store's index, for the own drive; agent_events_take by one thread.
 *
 * A reactor has one ring, with one writer and one reader, taken at the start, and only where
 * agent_opts.events names a volume. Nobody is woken and nobody waits: an event that finds the ring
 * full is lost and counted.
 *
 * Invariants: tail <= head <= tail + AGENT_EVENTS. A key belongs to one reactor, and the own drive
 * to the loop of the only one, so events of a block are in one ring, in their order.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

icms_err agent_events_init(struct agent_reactor *reactor, const struct agent_opts *opts)
{
    if (opts->events == 0)
        return ICMS_OK;
    reactor->events = calloc(1, sizeof(*reactor->events));
    return reactor->events != NULL ? ICMS_OK : ICMS_NO_MEMORY;
}

void agent_events_fini(struct agent_reactor *reactor)
{
    free(reactor->events);
    reactor->events = NULL;
}

uint64_t agent_event_hash(const struct key *key)
{
    uint64_t hash = 0;

    for (uint32_t i = key->length > 8 ? key->length - 8u : 0; i < key->length; i++)
        hash = hash << 8 | key->bytes[i];
    return hash;
}

void agent_event_put(struct agent_shard *shard, const struct key *key, enum agent_event_kind kind,
                     enum agent_event_tier tier)
{
    struct agent_events *events = shard->events;
    uint64_t head = atomic_load_explicit(&events->head, memory_order_relaxed);

    if (head - atomic_load_explicit(&events->tail, memory_order_acquire) == AGENT_EVENTS) {
        counter_add(&events->lost[shard->number], 1);
        return;
    }
    events->of[head % AGENT_EVENTS] =
        (struct agent_event){.hash = key != NULL ? agent_event_hash(key) : 0,
                             .volume = (uint8_t)shard->number,
                             .kind = (uint8_t)kind,
                             .tier = (uint8_t)tier};
    atomic_store_explicit(&events->head, head + 1, memory_order_release);
}

void agent_events_drive(struct agent *agent, uint32_t volume, const struct key *key, bool is_there)
{
    struct agent_shard *shard = &agent->reactors[0].shards[volume];

    if (shard->events != NULL)
        agent_event_put(shard, key, is_there ? AGENT_EVENT_STORED : AGENT_EVENT_REMOVED,
                        AGENT_EVENT_LOCAL);
}

size_t agent_events_take(struct agent *agent, struct agent_event *out, size_t count)
{
    size_t taken = 0;

    for (uint32_t r = 0; r < agent->reactor_count; r++) {
        struct agent_events *events = agent->reactors[r].events;
        uint64_t tail, head;

        if (events == NULL)
            continue;
        tail = atomic_load_explicit(&events->tail, memory_order_relaxed);
        head = atomic_load_explicit(&events->head, memory_order_acquire);
        for (; tail < head && taken < count; tail++) {
            out[taken] = events->of[tail % AGENT_EVENTS];
            counter_add(&events->taken[out[taken++].volume], 1);
        }
        atomic_store_explicit(&events->tail, tail, memory_order_release);
    }
    return taken;
}

uint64_t agent_events_lost(const struct agent *agent, uint32_t volume)
{
    uint64_t lost = 0;

    for (uint32_t r = 0; r < agent->reactor_count; r++)
        if (agent->reactors[r].events != NULL)
            lost += counter_get(&agent->reactors[r].events->lost[volume]);
    return lost;
}

void agent_events_stats(const struct agent *agent, uint32_t volume,
                        struct agent_volume_stats *out_stats)
{
    out_stats->has_events = (agent->opts.events >> volume & 1) != 0;
    out_stats->events_lost = agent_events_lost(agent, volume);
    out_stats->events = 0;
    for (uint32_t r = 0; r < agent->reactor_count; r++)
        if (agent->reactors[r].events != NULL)
            out_stats->events += counter_get(&agent->reactors[r].events->taken[volume]);
}
