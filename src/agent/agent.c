/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/agent.c: the life of an agent: memory, reactors, start, drain, stop.
 *
 * Called by the thread that owns the agent; agent_wait_tried by any thread.
 *
 * Life: agent_new (takes everything) -> agent_start (loops run; reactor_start is the first thing on
 * each) -> agent_drain -> agent_stop (loops are joined) -> agent_free.
 *
 * Invariant: nothing is taken or made after agent_new but clients' regions (agent_client_attach)
 * and what another set of enclosures needs (agent_pod_apply).
 */
#include "agent/agent_int.h"
#include "agent/many.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- one reactor ---------------------------------------------------------------------------- */

static void reactor_heartbeat_arm(struct agent_reactor *reactor, uint64_t next_ns)
{
    reactor->heartbeat_due_ns = reactor_now_ns(reactor) + next_ns;
    loop_timer_start(reactor->loop, &reactor->heartbeat, reactor->heartbeat_due_ns);
}

static void reactor_heartbeat(struct loop_timer *timer)
{
    struct agent_reactor *reactor = container_of(timer, struct agent_reactor, heartbeat);
    uint64_t next_ns = AGENT_HEARTBEAT_NS;

    (void)agent_reactor_stalled(reactor, 0);
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++) {
        struct agent_qpair *qpair = &reactor->agent->clients[i].qpairs[reactor->index];

        agent_qpair_heartbeat(qpair);
        if (agent_qpair_is_full(qpair))
            next_ns = AGENT_RETRY_NS;
    }
    for (uint64_t left = reactor->view->members; left != 0; left &= left - 1)
        agent_enclosure_share_look(&reactor->enclosures[__builtin_ctzll(left)]);
    reactor_heartbeat_arm(reactor, next_ns);
}

static void reactor_start(struct loop_msg *msg)
{
    struct agent_reactor *reactor = container_of(msg, struct agent_reactor, start);

    reactor_heartbeat_arm(reactor, AGENT_HEARTBEAT_NS);
    for (uint64_t left = reactor->view->members; left != 0; left &= left - 1)
        agent_enclosure_begin(&reactor->enclosures[__builtin_ctzll(left)]);
    agent_events_begin(reactor);
}

static icms_err reactor_init(struct agent_reactor *reactor, struct agent *agent, uint32_t index,
                             struct err_why *why)
{
    struct loop_opts opts;
    char name[16];

    reactor->agent = agent;
    reactor->index = index;
    loop_timer_init(&reactor->heartbeat, reactor_heartbeat);
    loop_opts_init(&opts);
    snprintf(name, sizeof(name), "icms-agent-%u", index % 1000);
    opts.name = name;
    opts.busy_poll = agent->opts.busy_poll;
    opts.poll_us = agent->opts.poll_us;
    reactor->ops = calloc(AGENT_OPS, sizeof(reactor->ops[0]));
    if (reactor->ops == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the agent's operations");
    agent_reactor_ops_init(reactor);
    if (agent_reactor_matches_init(reactor) != ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the agent's batches of keys");
    if (trace_book_init(&reactor->book) != ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY, "no memory for traces of requests");
    return loop_new(agent->env, &opts, why, &reactor->loop);
}

/* ---- making --------------------------------------------------------------------------------- */

void agent_opts_init(struct agent_opts *opts)
{
    *opts = (struct agent_opts){
        .name = "agent",
        .loops = 1,
        .exist_many = true,
        .queue_entries = 128,
        .connect_timeout_ms = 1000,
        .keep_alive_ms = 5000,
        .silence_ms = 500,
        .probe_ms = 1000,
        .load_deadline_ms = 2000,
        .store_deadline_ms = 10000,
        .store_backlog_bytes = (uint64_t)256 << 20,
        .client_bytes = (uint64_t)64 << 20,
        .local_segment_bytes = (uint64_t)16 << 20,
        .user_clients_max = LIMIT_CLIENTS / 2,
    };
}

static icms_err agent_opts_check(const struct agent_opts *opts, struct err_why *why)
{
    if (opts->volume_count == 0 || opts->volume_count > LIMIT_AGENT_VOLUMES)
        return err_set(why, ICMS_CONFIG, "%u volumes: an agent has 1 to %d", opts->volume_count,
                       LIMIT_AGENT_VOLUMES);
    if (opts->loops == 0 || opts->loops > LIMIT_LOOPS)
        return err_set(why, ICMS_CONFIG, "%u loops: 1 to %d are possible", opts->loops,
                       LIMIT_LOOPS);
    if (opts->probe_ms == 0 || opts->connect_timeout_ms == 0 || opts->load_deadline_ms == 0 ||
        opts->store_deadline_ms == 0)
        return err_set(why, ICMS_CONFIG, "a time of the agent is 0: it must be at least 1 ms");
    for (uint32_t i = 0; i < opts->volume_count; i++) {
        const struct volume_spec *spec = &opts->volumes[i];

        if (spec->value_bytes_max == 0 || spec->value_bytes_max > LIMIT_VALUE_BYTES ||
            volume_carried_bytes_max(spec) > LIMIT_VALUE_BYTES)
            return err_set(why, ICMS_CONFIG,
                           "volume %s: values of %llu bytes: 1 to %llu are "
                           "possible",
                           spec->name, (unsigned long long)spec->value_bytes_max,
                           (unsigned long long)LIMIT_VALUE_BYTES);
        if (spec->encrypted && !spec->sealed)
            return err_set(why, ICMS_CONFIG, "volume %s: encrypted, and not sealed", spec->name);
        if (spec->run_blocks == 0)
            return err_set(why, ICMS_CONFIG, "volume %s: runs of 0 blocks", spec->name);
        for (uint32_t j = 0; j < i; j++)
            if ((uuid_equal(&spec->uuid, &opts->volumes[j].uuid) && !uuid_is_nil(&spec->uuid)) ||
                strcmp(spec->name, opts->volumes[j].name) == 0)
                return err_set(why, ICMS_CONFIG, "volumes %s and %s have the same name or UUID",
                               opts->volumes[j].name, spec->name);
    }
    return agent_pod_check(opts->enclosures, opts->enclosure_count, why);
}

icms_err agent_check(const struct agent_opts *opts, struct err_why *why, uint64_t *out_memory_bytes)
{
    icms_err err = agent_opts_check(opts, why);

    if (err == ICMS_OK && opts->local_path != NULL)
        err = agent_local_check(opts, why);
    if (err == ICMS_OK)
        err = agent_keys_check(opts, why);
    return err == ICMS_OK ? agent_memory_check(opts, why, out_memory_bytes) : err;
}

/* Of every volume a shard, and a place for each enclosure that there may be. */
static icms_err reactor_parts_init(struct agent_reactor *reactor, const struct agent_opts *opts,
                                   struct err_why *why)
{
    icms_err err = ICMS_OK;

    reactor->shards = calloc(opts->volume_count, sizeof(reactor->shards[0]));
    slow_init(&reactor->slow_loads, LIMIT_ENCLOSURES);
    slow_init(&reactor->slow_exists, LIMIT_ENCLOSURES);
    slow_init(&reactor->slow_stores, LIMIT_ENCLOSURES);
    atomic_store_explicit(&reactor->excluded, UINT64_MAX, memory_order_relaxed);
    reactor->enclosures = calloc(LIMIT_ENCLOSURES, sizeof(reactor->enclosures[0]));
    if (reactor->shards == NULL || reactor->enclosures == NULL ||
        agent_slabs_init(reactor) != ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY, "no memory for %u volumes and %u enclosures",
                       opts->volume_count, opts->enclosure_count);
    if (agent_reactor_lines_init(reactor) != ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY, "no memory for those who wait for operations");
    if (agent_events_init(reactor, opts) != ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY, "no memory for events of volumes");
    for (uint32_t i = 0; i < opts->volume_count && err == ICMS_OK; i++) {
        reactor->shard_count++;
        err = agent_shard_init(&reactor->shards[i], reactor, i, why);
    }
    if (err == ICMS_OK && agent_prestage_init(reactor) != ICMS_OK)
        err = err_set(why, ICMS_NO_MEMORY, "no memory for the agent's hints");
    return err;
}

static icms_err agent_make(struct agent *agent, const struct agent_opts *opts, struct err_why *why)
{
    icms_err err = ICMS_OK;

    agent->reactor_count = agent_reactor_count(opts);
    for (uint32_t i = 0; i < agent->reactor_count && err == ICMS_OK; i++)
        err = reactor_init(&agent->reactors[i], agent, i, why);
    for (uint32_t i = 0; i < LIMIT_CLIENTS && err == ICMS_OK; i++)
        if (agent_client_init(&agent->clients[i], agent, i) != ICMS_OK)
            err = err_set(why, ICMS_NO_MEMORY, "no memory for the agent's clients");
    agent->users[0].is_known = agent->users[0].owner = true;
    if (err == ICMS_OK)
        err = agent_memory_init(agent, opts, why);
    for (uint32_t i = 0; i < agent->reactor_count && err == ICMS_OK; i++)
        err = reactor_parts_init(&agent->reactors[i], opts, why);
    if (err == ICMS_OK)
        err = agent_pod_init(agent, opts, why);
    for (uint32_t i = 0; i < agent->arena_count && err == ICMS_OK; i++)
        err = loop_region_seal(agent->arenas[i].region, why);
    if (err == ICMS_OK && opts->local_path != NULL)
        err = opts->enclosure_count == 0 ? agent_local_new(agent, why)
                                         : agent_tier_new(agent, opts, why);
    return err;
}

icms_err agent_new(struct loop_env *env, const struct agent_opts *opts, struct err_why *why,
                   struct agent **out_agent)
{
    struct agent *agent;
    icms_err err = agent_opts_check(opts, why);

    if (err != ICMS_OK)
        return err;
    agent = calloc(1, sizeof(*agent));
    if (agent == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the agent");
    agent->env = env;
    agent->opts = *opts;
    check(pthread_mutex_init(&agent->control, NULL) == 0);
    check(pthread_mutex_init(&agent->pod.lock, NULL) == 0);
    check(pthread_mutex_init(&agent->pod.known_lock, NULL) == 0);
    err = agent_make(agent, opts, why);
    agent->opts.local_path = NULL;
    agent->opts.enclosures = NULL;
    agent->opts.volumes = NULL;
    if (err != ICMS_OK) {
        agent_free(&agent);
        return err;
    }
    *out_agent = agent;
    return ICMS_OK;
}

icms_err agent_start(struct agent *agent, struct err_why *why)
{
    if (agent->tier != NULL)
        agent_tier_begin(agent->tier);
    for (uint32_t i = 0; i < agent->reactor_count; i++) {
        struct agent_reactor *reactor = &agent->reactors[i];
        icms_err err;

        loop_send(reactor->loop, &reactor->start, reactor_start);
        err = loop_start(reactor->loop, why);
        if (err != ICMS_OK) {
            agent_stop(agent);
            return err;
        }
        reactor->started = true;
    }
    return ICMS_OK;
}

struct loop *agent_loop(struct agent *agent, uint32_t index)
{
    return index < agent->reactor_count ? agent->reactors[index].loop : NULL;
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* Asks once a millisecond. */
static bool agent_wait(struct agent *agent, uint32_t timeout_ms, bool (*over)(struct agent *agent))
{
    struct timespec ms = {.tv_nsec = 1000000};

    for (uint32_t i = 0; i < timeout_ms && !over(agent); i++)
        nanosleep(&ms, NULL);
    return over(agent);
}

static bool agent_is_tried(struct agent *agent)
{
    uint64_t all = atomic_load_explicit(&agent->pod.mask, memory_order_acquire);

    for (uint32_t r = 0; r < agent->reactor_count; r++)
        for (uint64_t left = all; left != 0; left &= left - 1)
            if (!atomic_load_explicit(&agent->reactors[r].enclosures[__builtin_ctzll(left)].tried,
                                      memory_order_acquire))
                return false;
    return true;
}

void agent_wait_tried(struct agent *agent, uint32_t timeout_ms)
{
    (void)agent_wait(agent, timeout_ms, agent_is_tried);
}

static bool agent_is_drained(struct agent *agent)
{
    return agent_is_quiet(agent) && agent_tier_end(agent->tier);
}

bool agent_drain(struct agent *agent, uint32_t timeout_ms)
{
    atomic_store_explicit(&agent->draining, true, memory_order_relaxed);
    return agent_wait(agent, timeout_ms, agent_is_drained);
}

/* ---- the end -------------------------------------------------------------------------------- */

void agent_stop(struct agent *agent)
{
    for (uint32_t i = 0; i < agent->reactor_count; i++)
        if (agent->reactors[i].started)
            loop_stop(agent->reactors[i].loop);
    for (uint32_t i = 0; i < agent->reactor_count; i++) {
        if (agent->reactors[i].started)
            loop_join(agent->reactors[i].loop);
        agent->reactors[i].started = false;
    }
    if (agent->local != NULL)
        agent_local_stop(agent->local);
    if (agent->tier != NULL)
        agent_tier_stop(agent->tier);
}

static void reactor_parts_fini(struct agent_reactor *reactor)
{
    for (uint32_t i = 0; reactor->enclosures != NULL && i < LIMIT_ENCLOSURES; i++)
        agent_enclosure_fini(&reactor->enclosures[i]);
    for (uint32_t i = 0; i < reactor->shard_count; i++)
        agent_shard_fini(&reactor->shards[i]);
    free(reactor->enclosures);
    free(reactor->shards);
    free(reactor->slabs);
    free(reactor->ops);
    agent_reactor_matches_fini(reactor);
    agent_prestage_fini(reactor);
    agent_events_fini(reactor);
    free(reactor->lines_memory);
    trace_book_fini(&reactor->book);
}

void agent_free(struct agent **agent_)
{
    struct agent *agent = *agent_;

    if (agent == NULL)
        return;
    for (uint32_t i = 0; i < agent->reactor_count; i++)
        loop_free(&agent->reactors[i].loop);
    /* Nothing runs and nothing is in flight any more. */
    for (uint32_t i = 0; i < agent->reactor_count; i++)
        reactor_parts_fini(&agent->reactors[i]);
    agent_many_forget(agent);
    agent_local_free(&agent->local);
    agent_tier_free(&agent->tier);
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++)
        agent_client_fini(&agent->clients[i]);
    agent_memory_fini(agent);
    agent_pod_fini(agent);
    pthread_mutex_destroy(&agent->pod.known_lock);
    pthread_mutex_destroy(&agent->pod.lock);
    pthread_mutex_destroy(&agent->control);
    free(agent);
    *agent_ = NULL;
}
