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
 * Lost events. Who follows them believes a block to be where it is not any more, and no replay says
 * otherwise. So when half of the ring is free again (events_tell) the volume is cleared, and what
 * memory and the own drive have is told anew; by all reactors, for what is cleared is the volume of
 * all. That is once for all that was lost until then. Telling goes on in half of the ring, so only
 * other events can fill it again, and nothing is begun before half of it was taken.
 *
 * What an own drive kept over a restart is told at the start; when the drive goes out of service
 * there is no event for its blocks alone, so all are cleared and those in memory told again. Both
 * go on bit by bit (events_tell), behind what happens meanwhile: a block that comes to the drive
 * before its place is reached is told twice, one that leaves is not told as there after that.
 *
 * A volume that becomes another one is cleared by each reactor when its blocks have gone, and not
 * all at the same time. So events say which change they follow (agent_shard.change, the same for
 * all reactors), and who takes them passes on one CLEARED a change, before all that follows it, and
 * nothing that went before: blocks that one reactor stored since are not cleared by another.
 *
 * Invariants: tail <= head <= tail + AGENT_EVENTS. A key belongs to one reactor, and the own drive
 * to the loop of the only one, so events of a block are in one ring, in their order.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

static void events_tell(struct loop_timer *timer);
static void events_tell_arm(struct agent_events *events);

icms_err agent_events_init(struct agent_reactor *reactor, const struct agent_opts *opts)
{
    if (opts->events == 0)
        return ICMS_OK;
    reactor->events = calloc(1, sizeof(*reactor->events));
    if (reactor->events == NULL)
        return ICMS_NO_MEMORY;
    reactor->events->reactor = reactor;
    loop_timer_init(&reactor->events->timer, events_tell);
    return ICMS_OK;
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
        events->is_lossy |= (uint64_t)1 << shard->number;
        events_tell_arm(events);
        return;
    }
    events->of[head % AGENT_EVENTS] =
        (struct agent_event){.hash = key != NULL ? agent_event_hash(key) : 0,
                             .change = shard->change,
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

/* ---- what is there already ------------------------------------------------------------------ */

/* The own drive's store, if it is in service, and the number that the volume has there. */
static struct store *events_store(const struct agent_shard *shard, uint32_t *out_number)
{
    struct agent_tier *tier = shard->agent->tier;

    *out_number = shard->number;
    if (tier == NULL)
        return shard->agent->local != NULL ? shard->agent->local->store : NULL;
    *out_number = atomic_load_explicit(&tier->numbers[shard->number], memory_order_relaxed);
    return atomic_load_explicit(&tier->state, memory_order_relaxed) != AGENT_TIER_DOWN ? tier->store
                                                                                       : NULL;
}

static void events_tell_arm(struct agent_events *events)
{
    struct agent_reactor *reactor = events->reactor;

    if (!loop_timer_armed(&events->timer))
        loop_timer_start(reactor->loop, &events->timer, reactor_now_ns(reactor) + AGENT_TELL_NS);
}

/* Returns how many it told. */
static uint32_t events_tell_drive(struct agent_shard *shard, struct agent_told *told,
                                  uint32_t count_max)
{
    struct store_position keys[AGENT_TELL];
    uint32_t count = 0, number;
    struct store *store = events_store(shard, &number);

    if (store != NULL)
        count = store_list(store, number, &told->at, &store_position_end, AGENT_TELL_LOOKS, keys,
                           count_max);
    for (uint32_t i = 0; i < count; i++)
        agent_event_put(shard, &keys[i].key, AGENT_EVENT_STORED, AGENT_EVENT_LOCAL);
    told->drive = store != NULL && store_position_compare(&told->at, &store_position_end) < 0;
    return count;
}

static uint32_t events_tell_memory(struct agent_shard *shard, struct agent_told *told,
                                   uint32_t count_max)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < AGENT_TELL_LOOKS && count < count_max; i++) {
        const struct agent_slot *meta;

        told->memory = told->slot < shard->meta_used;
        if (!told->memory)
            break;
        meta = &shard->meta[told->slot++];
        if (meta->state != AGENT_SLOT_LIVE || meta->since_ns > told->begun_ns)
            continue;
        agent_event_put(shard, &meta->key, AGENT_EVENT_STORED, AGENT_EVENT_DRAM);
        count++;
    }
    return count;
}

/* ---- lost events ---------------------------------------------------------------------------- */

static void events_tell_anew(struct agent_shard *shard)
{
    struct agent_events *events = shard->events;
    uint32_t number;

    agent_event_put(shard, NULL, AGENT_EVENT_CLEARED, AGENT_EVENT_DRAM);
    events->told[shard->number] = (struct agent_told){.memory = true,
                                                      .drive = events_store(shard, &number) != NULL,
                                                      .begun_ns = reactor_now_ns(events->reactor)};
    events_tell_arm(events);
}

/* On each reactor: it clears, and tells, what one of them lost events of. */
static void events_anew(struct loop_msg *msg)
{
    struct agent_events *events = container_of(msg, struct agent_events, msg);
    struct agent_reactor *reactor = events->reactor;
    struct agent_events *first = reactor->agent->reactors[0].events;

    atomic_store(&events->msg_sent, false);
    for (uint32_t i = 0; i < reactor->shard_count; i++) {
        uint32_t anew = atomic_load(&first->anew[i]);

        if (anew == events->anew_seen[i])
            continue;
        reactor->shards[i].change += anew - events->anew_seen[i];
        events->anew_seen[i] = anew;
        events_tell_anew(&reactor->shards[i]);
    }
}

static void events_lost_begin(struct agent_events *events)
{
    struct agent *agent = events->reactor->agent;

    for (uint32_t i = 0; i < events->reactor->shard_count; i++)
        if ((events->is_lossy >> i & 1) != 0)
            atomic_fetch_add(&agent->reactors[0].events->anew[i], 1);
    events->is_lossy = 0;
    for (uint32_t r = 0; r < agent->reactor_count; r++) {
        struct agent_events *each = agent->reactors[r].events;

        if (!atomic_exchange(&each->msg_sent, true))
            loop_send(agent->reactors[r].loop, &each->msg, events_anew);
    }
}

/* The next blocks. A volume whose blocks of another UUID are going is told when they have gone. */
static void events_tell(struct loop_timer *timer)
{
    struct agent_events *events = container_of(timer, struct agent_events, timer);
    struct agent_reactor *reactor = events->reactor;
    uint64_t used = atomic_load_explicit(&events->head, memory_order_relaxed) -
                    atomic_load_explicit(&events->tail, memory_order_acquire);
    uint32_t left = used > AGENT_EVENTS / 2 ? 0 : AGENT_TELL;
    bool more = false;

    if (events->is_lossy != 0 && left > 0)
        events_lost_begin(events);
    for (uint32_t i = 0; i < reactor->shard_count; i++) {
        struct agent_shard *shard = &reactor->shards[i];
        struct agent_told *told = &events->told[i];

        if (shard->identity % 2 != 0)
            told->memory = told->drive = false;
        if (told->memory && left > 0)
            left -= events_tell_memory(shard, told, left);
        if (told->drive && left > 0)
            left -= events_tell_drive(shard, told, left);
        more |= told->memory || told->drive;
    }
    if (more || events->is_lossy != 0)
        events_tell_arm(events);
}

static void events_drive_begin(struct agent_shard *shard)
{
    struct agent_events *events = shard->events;
    uint32_t number;

    if (events == NULL || events_store(shard, &number) == NULL)
        return;
    events->told[shard->number] = (struct agent_told){.drive = true};
    events_tell_arm(events);
}

void agent_events_begin(struct agent_reactor *reactor)
{
    for (uint32_t i = 0; i < reactor->shard_count; i++)
        events_drive_begin(&reactor->shards[i]);
}

void agent_events_reset(struct agent_shard *shard)
{
    if (shard->events == NULL)
        return;
    agent_event_put(shard, NULL, AGENT_EVENT_CLEARED, AGENT_EVENT_DRAM);
    events_drive_begin(shard);
}

void agent_events_drive_lost(struct agent *agent)
{
    struct agent_reactor *reactor = &agent->reactors[0];

    for (uint32_t i = 0; i < reactor->shard_count; i++) {
        struct agent_shard *shard = &reactor->shards[i];

        if (shard->events == NULL)
            continue;
        shard->change++; /* there is one reactor */
        agent_event_put(shard, NULL, AGENT_EVENT_CLEARED, AGENT_EVENT_DRAM);
        shard->events->told[i] =
            (struct agent_told){.memory = true, .begun_ns = reactor_now_ns(reactor)};
        events_tell_arm(shard->events);
    }
}

/* ---- who takes them ------------------------------------------------------------------------- */

/* The next event to pass on of a ring whose oldest one this is; false: it is of no use any more.
 * *out_stays: it follows a change, which is told first. */
static bool events_pass(struct agent *agent, const struct agent_event *event,
                        struct agent_event *out, bool *out_stays)
{
    uint32_t *change = &agent->events_change[event->volume];
    bool is_cleared = event->kind == AGENT_EVENT_CLEARED;

    *out_stays = false;
    if (event->change < *change || (is_cleared && event->change == *change))
        return false;
    *out = *event;
    if (event->change == *change)
        return true;
    *change = event->change;
    out->hash = 0;
    out->kind = AGENT_EVENT_CLEARED;
    *out_stays = !is_cleared;
    return true;
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
        for (bool stays; tail < head && taken < count; tail += !stays) {
            const struct agent_event *event = &events->of[tail % AGENT_EVENTS];

            if (events_pass(agent, event, &out[taken], &stays)) {
                counter_add(&events->taken[event->volume], 1);
                taken++;
            }
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
