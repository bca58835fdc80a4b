/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/agent.c: the life of an agent: memory, loops, start, drain, stop.
 *
 * Called by the thread that owns the agent; agent_wait_tried and agent_locate by any thread.
 *
 * Life: agent_new (takes everything) -> agent_start (loops run; core_start is the first thing on
 * each) -> agent_drain -> agent_stop (loops are joined) -> agent_free.
 *
 * Invariant: nothing is taken or made after agent_new but guests' regions (agent_client_attach).
 */
#include "agent/agent_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- one loop ------------------------------------------------------------------------------- */

static void core_beat(struct loop_timer *timer)
{
    struct agent_core *core = container_of(timer, struct agent_core, beat);
    struct agent *agent = core->agent;
    uint64_t next_ns = AGENT_BEAT_NS;

    for (uint32_t i = core->index; i < LIMIT_CLIENTS; i += agent->core_count) {
        agent_guest_beat(&agent->guests[i]);
        if (agent_guest_is_full(&agent->guests[i]))
            next_ns = AGENT_RETRY_NS;
    }
    loop_timer_start(core->loop, &core->beat, core_now_ns(core) + next_ns);
}

static void core_start(struct loop_msg *msg)
{
    struct agent_core *core = container_of(msg, struct agent_core, start);
    struct agent *agent = core->agent;

    loop_timer_start(core->loop, &core->beat, core_now_ns(core) + AGENT_BEAT_NS);
    for (uint32_t i = core->index; i < agent->path_count; i += agent->core_count)
        agent_path_begin(&agent->paths[i]);
}

static icms_err core_init(struct agent_core *core, struct agent *agent, uint32_t index,
                          struct err_why *why)
{
    struct loop_opts opts;
    char name[16];

    core->agent = agent;
    core->index = index;
    loop_timer_init(&core->beat, core_beat);
    loop_opts_init(&opts);
    snprintf(name, sizeof(name), "icms-agent-%u", index % 1000);
    opts.name = name;
    opts.busy_poll = agent->opts.busy_poll;
    opts.poll_us = agent->opts.poll_us;
    core->ops = calloc(AGENT_OPS, sizeof(core->ops[0]));
    if (core->ops == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the agent's operations");
    agent_core_ops_init(core);
    if (agent_core_matches_init(core) != ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the agent's batches of keys");
    return loop_new(agent->env, &opts, why, &core->loop);
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
    if (opts->enclosure_count > LIMIT_ENCLOSURES)
        return err_set(why, ICMS_CONFIG, "%u enclosures: %d are possible", opts->enclosure_count,
                       LIMIT_ENCLOSURES);
    if (opts->loops == 0 || opts->loops > LIMIT_LOOPS)
        return err_set(why, ICMS_CONFIG, "%u loops: 1 to %d are possible", opts->loops,
                       LIMIT_LOOPS);
    if (opts->probe_ms == 0 || opts->connect_timeout_ms == 0 || opts->load_deadline_ms == 0 ||
        opts->store_deadline_ms == 0)
        return err_set(why, ICMS_CONFIG, "a time of the agent is 0: it must be at least 1 ms");
    for (uint32_t i = 0; i < opts->volume_count; i++) {
        const struct volume_spec *spec = &opts->volumes[i];

        if (spec->value_bytes_max == 0 || spec->value_bytes_max > LIMIT_VALUE_BYTES)
            return err_set(why, ICMS_CONFIG,
                           "volume %s: values of %llu bytes: 1 to %llu are "
                           "possible",
                           spec->name, (unsigned long long)spec->value_bytes_max,
                           (unsigned long long)LIMIT_VALUE_BYTES);
        if (spec->run_blocks == 0)
            return err_set(why, ICMS_CONFIG, "volume %s: runs of 0 blocks", spec->name);
        for (uint32_t j = 0; j < i; j++)
            if (uuid_equal(&spec->uuid, &opts->volumes[j].uuid) ||
                strcmp(spec->name, opts->volumes[j].name) == 0)
                return err_set(why, ICMS_CONFIG, "volumes %s and %s have the same name or UUID",
                               opts->volumes[j].name, spec->name);
    }
    return ICMS_OK;
}

static icms_err agent_volumes_init(struct agent *agent, const struct agent_opts *opts,
                                   struct err_why *why)
{
    agent->volumes = calloc(opts->volume_count, sizeof(agent->volumes[0]));
    if (agent->volumes == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for %u volumes", opts->volume_count);
    agent->volume_count = opts->volume_count;
    for (uint32_t i = 0; i < opts->volume_count; i++) {
        icms_err err = agent_volume_init(&agent->volumes[i], agent, i, &opts->volumes[i], why);

        if (err != ICMS_OK)
            return err;
    }
    return ICMS_OK;
}

/* The enclosures and the map of who owns what. */
static icms_err agent_paths_init(struct agent *agent, const struct agent_opts *opts,
                                 struct err_why *why)
{
    struct place_member members[LIMIT_ENCLOSURES];
    icms_err err;

    if (opts->enclosure_count == 0)
        return ICMS_OK;
    agent->paths = calloc(opts->enclosure_count, sizeof(agent->paths[0]));
    if (agent->paths == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for %u enclosures", opts->enclosure_count);
    for (uint32_t i = 0; i < opts->enclosure_count; i++) {
        members[i] = (struct place_member){opts->enclosures[i].uuid, opts->enclosures[i].weight};
        agent->path_count = i + 1;
        err = agent_path_init(&agent->paths[i], agent, i, &opts->enclosures[i], why);
        if (err != ICMS_OK)
            return err;
    }
    return place_map_new(members, opts->enclosure_count, 1, why, &agent->map);
}

static icms_err agent_make(struct agent *agent, const struct agent_opts *opts, struct err_why *why)
{
    icms_err err;

    /* A drive of its own belongs to one loop, and there is nothing else to divide. */
    agent->core_count = opts->local_path != NULL ? 1 : opts->loops;
    for (uint32_t i = 0; i < agent->core_count; i++) {
        err = core_init(&agent->cores[i], agent, i, why);
        if (err != ICMS_OK)
            return err;
    }
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++)
        agent_guest_init(&agent->guests[i], agent, i);
    err = agent_volumes_init(agent, opts, why);
    if (err != ICMS_OK)
        return err;
    if (opts->local_path != NULL)
        return agent_local_new(agent, why);
    return agent_paths_init(agent, opts, why);
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
    for (uint32_t i = 0; i < agent->core_count; i++) {
        struct agent_core *core = &agent->cores[i];
        icms_err err;

        loop_send(core->loop, &core->start, core_start);
        err = loop_start(core->loop, why);
        if (err != ICMS_OK) {
            agent_stop(agent);
            return err;
        }
        core->started = true;
    }
    return ICMS_OK;
}

struct loop *agent_loop(struct agent *agent, uint32_t index)
{
    return index < agent->core_count ? agent->cores[index].loop : NULL;
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
    for (uint32_t i = 0; i < agent->path_count; i++)
        if (!atomic_load_explicit(&agent->paths[i].tried, memory_order_acquire))
            return false;
    return true;
}

void agent_wait_tried(struct agent *agent, uint32_t timeout_ms)
{
    (void)agent_wait(agent, timeout_ms, agent_is_tried);
}

static bool agent_is_quiet(struct agent *agent)
{
    return atomic_load_explicit(&agent->under_way, memory_order_acquire) == 0 &&
           atomic_load_explicit(&agent->backlog_bytes, memory_order_acquire) == 0;
}

bool agent_drain(struct agent *agent, uint32_t timeout_ms)
{
    atomic_store_explicit(&agent->draining, true, memory_order_relaxed);
    return agent_wait(agent, timeout_ms, agent_is_quiet);
}

/* ---- the end -------------------------------------------------------------------------------- */

void agent_stop(struct agent *agent)
{
    for (uint32_t i = 0; i < agent->core_count; i++)
        if (agent->cores[i].started)
            loop_stop(agent->cores[i].loop);
    for (uint32_t i = 0; i < agent->core_count; i++) {
        if (agent->cores[i].started)
            loop_join(agent->cores[i].loop);
        agent->cores[i].started = false;
    }
}

void agent_free(struct agent **agent_)
{
    struct agent *agent = *agent_;

    if (agent == NULL)
        return;
    for (uint32_t i = 0; i < agent->core_count; i++)
        loop_free(&agent->cores[i].loop);
    /* Nothing runs and nothing is in flight any more. */
    for (uint32_t i = 0; i < agent->path_count; i++)
        agent_path_fini(&agent->paths[i]);
    agent_local_free(&agent->local);
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++)
        agent_guest_fini(&agent->guests[i]);
    for (uint32_t i = 0; i < agent->volume_count; i++)
        agent_volume_fini(&agent->volumes[i]);
    for (uint32_t i = 0; i < agent->core_count; i++) {
        free(agent->cores[i].ops);
        agent_core_matches_fini(&agent->cores[i]);
    }
    place_map_free(&agent->map);
    free(agent->paths);
    free(agent->volumes);
    pthread_mutex_destroy(&agent->control);
    free(agent);
    *agent_ = NULL;
}

/* ---- looking -------------------------------------------------------------------------------- */

void agent_locate(struct agent *agent, uint32_t volume, const struct key *key, uint32_t *out_now,
                  uint32_t *out_owner)
{
    bool runs = volume_has_runs(&agent->volumes[volume].spec);
    uint64_t excluded = atomic_load_explicit(&agent->excluded, memory_order_relaxed);

    *out_now = agent->map == NULL ? UINT32_MAX : place_owner(agent->map, key, runs, excluded);
    *out_owner = agent->map == NULL ? UINT32_MAX : place_owner(agent->map, key, runs, 0);
}
