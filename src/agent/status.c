/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/status.c: what the agent tells of itself: counters, readiness, status text.
 *
 * Any thread. Counters are read while their loops write them: each is right, a moment old, and they
 * need not fit together.
 */
#include "agent/agent_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- counters ------------------------------------------------------------------------------- */

static uint32_t agent_clients(struct agent *agent)
{
    uint32_t clients = 0;

    pthread_mutex_lock(&agent->control);
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++)
        clients += agent->guests[i].taken;
    pthread_mutex_unlock(&agent->control);
    return clients;
}

/* Slots of a volume that some lease entry names. A guest's region stays while control is held. */
static uint64_t volume_leases_count(struct agent *agent, uint32_t volume)
{
    uint64_t leases = 0;

    pthread_mutex_lock(&agent->control);
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++) {
        const struct agent_guest *guest = &agent->guests[i];
        const struct shm_ring *ring = &guest->qpairs[0].ring;

        if (!guest->taken || (guest->volumes >> volume & 1) == 0)
            continue;
        for (uint32_t j = 0; j < SHM_LEASES; j++)
            leases += atomic_load_explicit(&ring->leases[j], memory_order_relaxed) != 0 &&
                      atomic_load_explicit(&ring->lease_shards[j], memory_order_relaxed) /
                              agent->reactor_count ==
                          volume;
    }
    pthread_mutex_unlock(&agent->control);
    return leases;
}

/* Brings the counters of volumes up to what clients have counted. */
static void agent_clients_count(struct agent *agent)
{
    pthread_mutex_lock(&agent->control);
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++)
        if (agent->guests[i].taken)
            agent_guest_counts_take(&agent->guests[i]);
    pthread_mutex_unlock(&agent->control);
}

/* What clients have counted of a volume. */
static void volume_client_stats(struct agent *agent, uint32_t volume,
                                struct agent_volume_stats *out)
{
    const uint64_t *counts = agent->volumes[volume].client_counts;

    pthread_mutex_lock(&agent->control);
    out->hits_dram += counts[SHM_COUNT_HITS];
    out->get_bytes += counts[SHM_COUNT_HIT_BYTES];
    out->misses[ICMS_MISS_COLLISION] += counts[SHM_COUNT_COLLISIONS];
    out->keys_found = counts[SHM_COUNT_FOUND];
    out->keys_missed = counts[SHM_COUNT_MISSED];
    out->matched = counts[SHM_COUNT_MATCHED];
    memcpy(out->matches, counts + SHM_COUNT_MATCHES, sizeof(out->matches));
    pthread_mutex_unlock(&agent->control);
}

static void shard_stats(const struct agent_shard *shard, struct agent_volume_stats *out,
                        struct agent_stats *all)
{
    out->slots += shard->arena.slot_count;
    out->slots_used += counter_get(&shard->slots_used);
    out->arena_bytes += counter_get(&shard->bytes);
    out->arena_used_bytes += counter_get(&shard->used_bytes);
    out->arena_evictions += counter_get(&shard->evictions);
    out->hits_dram += counter_get(&shard->hits_dram);
    out->hits_local += counter_get(&shard->hits_local);
    out->hits_pod += counter_get(&shard->hits_pod);
    for (int i = 0; i < AGENT_STATS_MISSES; i++)
        out->misses[i] += counter_get(&shard->misses[i]);
    out->puts += counter_get(&shard->puts);
    out->put_bytes += counter_get(&shard->put_bytes);
    out->get_bytes += counter_get(&shard->get_bytes);
    out->store_failures += counter_get(&shard->store_failures);
    hist_merge(&out->evicted_age_ns, &shard->evicted_age_ns);
    all->sheds += counter_get(&shard->sheds);
    all->deadline_misses += counter_get(&shard->deadline_misses);
    all->checksum_errors += counter_get(&shard->checksum_errors);
}

static void volume_stats(struct agent *agent, uint32_t volume, struct agent_stats *all)
{
    struct agent_volume_stats *out = &all->volumes[volume];

    memcpy(out->name, agent->volumes[volume].spec.name, sizeof(out->name));
    out->slots_leased = volume_leases_count(agent, volume);
    for (uint32_t r = 0; r < agent->reactor_count; r++)
        shard_stats(&agent->reactors[r].shards[volume], out, all);
    volume_client_stats(agent, volume, out);
}

/* Times of loops may be a moment ahead of ours. */
static uint64_t age_ns(struct agent *agent, uint64_t since_ns)
{
    uint64_t now_ns = loop_env_now_ns(agent->env);

    return now_ns > since_ns ? now_ns - since_ns : 0;
}

/* The worse of two verdicts: excluded, connecting, up. */
static enum agent_enclosure_state path_state_worse(enum agent_enclosure_state a,
                                                   enum agent_enclosure_state b)
{
    if (a == AGENT_ENCLOSURE_EXCLUDED || b == AGENT_ENCLOSURE_EXCLUDED)
        return AGENT_ENCLOSURE_EXCLUDED;
    return a == AGENT_ENCLOSURE_CONNECTING ? a : b;
}

/* Adds how one reactor sees it. */
static void path_stats(struct agent_path *path, struct agent_enclosure_stats *out)
{
    uint64_t age;

    out->state = path_state_worse(out->state, (enum agent_enclosure_state)atomic_load_explicit(
                                                  &path->state, memory_order_relaxed));
    out->excluded_count += counter_get(&path->exclusions);
    out->probes += counter_get(&path->probes);
    out->load_bytes += counter_get(&path->load_bytes);
    out->store_bytes += counter_get(&path->store_bytes);
    for (int i = 0; i < AGENT_LATENCY_COUNT; i++)
        hist_merge(&out->op_ns[i], &path->op_ns[i]);
    for (uint32_t i = 0; i < path->agent->volume_count; i++)
        out->lacking |=
            (atomic_load_explicit(&path->reactor->shards[i].lacking, memory_order_relaxed) >>
                 path->number &
             1)
            << i;
    pthread_mutex_lock(&path->text_lock);
    age = age_ns(path->agent, path->last_error_ns);
    if (path->last_error[0] != 0 && (out->last_error[0] == 0 || age < out->last_error_age_ns)) {
        memcpy(out->last_error, path->last_error, sizeof(out->last_error));
        out->last_error_age_ns = age;
    }
    pthread_mutex_unlock(&path->text_lock);
}

static void enclosure_stats(struct agent *agent, uint32_t enclosure,
                            struct agent_enclosure_stats *out)
{
    memcpy(out->name, agent->reactors[0].paths[enclosure].name, sizeof(out->name));
    out->state = AGENT_ENCLOSURE_UP;
    for (uint32_t r = 0; r < agent->reactor_count; r++)
        path_stats(&agent->reactors[r].paths[enclosure], out);
}

static const char *const state_names[AGENT_REQ_STATES] = {
    [AGENT_REQ_NEW] = "new",
    [AGENT_REQ_WAIT_KEY] = "wait_key",
    [AGENT_REQ_WAIT_SLOT] = "wait_slot",
    [AGENT_REQ_WAIT_OP] = "wait_op",
    [AGENT_REQ_WAIT_STORES] = "wait_stores",
    [AGENT_REQ_LOCAL] = "local",
    [AGENT_REQ_POD] = "pod",
    [AGENT_REQ_ANSWER] = "answer",
    [AGENT_REQ_WAIT_RING] = "wait_ring",
};
_Static_assert(AGENT_REQ_STATES <= AGENT_STATS_STATES && AGENT_REQ_STATES <= TRACE_STATES,
               "room for every state");

void agent_stats(struct agent *agent, struct agent_stats *out_stats)
{
    memset(out_stats, 0, sizeof(*out_stats));
    out_stats->clients = agent_clients(agent);
    out_stats->enclosure_count = agent->path_count;
    out_stats->volume_count = agent->volume_count;
    out_stats->memory_bytes = agent_memory_bytes(agent);
    out_stats->backlog_bytes = atomic_load_explicit(&agent->backlog_bytes, memory_order_relaxed);
    out_stats->under_way = agent_under_way(agent);
    for (uint32_t i = 0; i < agent->reactor_count; i++) {
        struct agent_reactor *reactor = &agent->reactors[i];

        out_stats->requests += counter_get(&reactor->requests);
        out_stats->clients_dropped += counter_get(&reactor->hostile);
        for (int op = 0; op < AGENT_STATS_OPS; op++)
            for (int err = 0; err < AGENT_STATS_ERRS; err++)
                out_stats->ops[op][err] += counter_get(&reactor->answers[op][err]);
        hist_merge(&out_stats->get_ns, &reactor->get_ns);
        hist_merge(&out_stats->put_ns, &reactor->put_ns);
        hist_merge(&out_stats->exists_ns, &reactor->exists_ns);
        trace_stats_add(&reactor->book, state_names, AGENT_REQ_STATES, out_stats->states);
    }
    agent_clients_count(agent);
    for (uint32_t i = 0; i < agent->volume_count; i++)
        volume_stats(agent, i, out_stats);
    for (uint32_t i = 0; i < agent->path_count; i++)
        enclosure_stats(agent, i, &out_stats->enclosures[i]);
    if (agent->local != NULL) {
        out_stats->local_load_bytes = counter_get(&agent->local->load_bytes);
        out_stats->local_store_bytes = counter_get(&agent->local->store_bytes);
    }
}

/* ---- traces --------------------------------------------------------------------------------- */

/* Whose question it is. */
struct trace_reader {
    struct agent *agent;
    uint64_t volumes; /* bit i: may see volume i */
};

static const char *trace_volume(void *arg, uint32_t volume)
{
    const struct trace_reader *reader = arg;

    return (reader->volumes >> volume & 1) != 0 ? reader->agent->volumes[volume].spec.name : NULL;
}

static const char *trace_enclosure(void *arg, uint32_t enclosure)
{
    const struct trace_reader *reader = arg;

    return reader->agent->reactors[0].paths[enclosure].name;
}

char *agent_trace(struct agent *agent, const struct agent_user *user, const struct key *key)
{
    static const char *const ops[] = {
        [SHM_OP_GET] = "get",       [SHM_OP_PUT] = "put",     [SHM_OP_EXISTS] = "exists",
        [SHM_OP_REMOVE] = "remove", [SHM_OP_FLUSH] = "flush", [SHM_OP_EXISTS_MANY] = "exists_many",
    };
    struct trace_reader reader = {.agent = agent, .volumes = agent_access(agent, user)};
    const struct trace_names names = {.ops = ops,
                                      .op_count = sizeof(ops) / sizeof(ops[0]),
                                      .states = state_names,
                                      .state_count = AGENT_REQ_STATES,
                                      .volume = trace_volume,
                                      .place = trace_enclosure,
                                      .place_is = "enclosure",
                                      .key_bytes = LIMIT_KEY_BYTES,
                                      .arg = &reader};
    struct trace_book *books[LIMIT_LOOPS];

    for (uint32_t i = 0; i < agent->reactor_count; i++)
        books[i] = &agent->reactors[i].book;
    return trace_text(books, agent->reactor_count, key, &names, loop_env_now_ns(agent->env));
}

/* ---- readiness ------------------------------------------------------------------------------ */

/* Whether there is a reactor that reaches no enclosure: all of its keys miss. */
static bool agent_is_cut_off(const struct agent *agent)
{
    uint64_t all = agent_paths_mask(agent);

    for (uint32_t r = 0; r < agent->reactor_count; r++)
        if ((atomic_load_explicit(&agent->reactors[r].excluded, memory_order_relaxed) & all) == all)
            return true;
    return false;
}

bool agent_ready(struct agent *agent, double memory_percent_max, struct err_why *why)
{
    uint64_t used = 0;
    double percent;

    if (atomic_load_explicit(&agent->draining, memory_order_relaxed)) {
        (void)err_set(why, ICMS_CLOSED, "draining");
        return false;
    }
    if (agent->local == NULL && agent_is_cut_off(agent)) {
        (void)err_set(why, ICMS_PEER_DOWN, "none of %u enclosures can be reached",
                      agent->path_count);
        return false;
    }
    for (uint32_t r = 0; r < agent->reactor_count; r++)
        for (uint32_t i = 0; i < agent->volume_count; i++)
            used += counter_get(&agent->reactors[r].shards[i].used_bytes);
    percent = 100.0 * (double)used / (double)agent_memory_bytes(agent);
    if (memory_percent_max > 0 && percent > memory_percent_max) {
        (void)err_set(why, ICMS_LIMIT, "the memory for blocks is %.1f %% full, over %.1f %%",
                      percent, memory_percent_max);
        return false;
    }
    return true;
}

/* ---- status text ---------------------------------------------------------------------------- */

struct text {
    char *out;     /* the caller's; may be short    */
    size_t bytes;  /* room                          */
    size_t length; /* of the whole                  */
};

static void __attribute__((format(printf, 2, 3)))
text_add(struct text *text, const char *format, ...)
{
    size_t room = text->length < text->bytes ? text->bytes - text->length : 0;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(room > 0 ? text->out + text->length : NULL, room, format, args);
    va_end(args);
    check(n >= 0);
    text->length += (size_t)n;
}

/* A JSON string: names and sentences are ours or were checked, but may hold quotes. */
static void text_string(struct text *text, const char *string)
{
    text_add(text, "\"");
    for (const char *c = string; *c != 0; c++) {
        if (*c == '"' || *c == '\\')
            text_add(text, "\\%c", *c);
        else if ((unsigned char)*c < 0x20)
            text_add(text, "\\u%04x", (unsigned)*c);
        else
            text_add(text, "%c", *c);
    }
    text_add(text, "\"");
}

static void text_enclosures(struct text *text, const struct agent_stats *stats, uint64_t volumes,
                            bool all)
{
    static const char *const states[] = {"connecting", "up", "excluded"};

    text_add(text, "\"enclosures\":[");
    for (uint32_t i = 0; i < stats->enclosure_count; i++) {
        const struct agent_enclosure_stats *enclosure = &stats->enclosures[i];

        text_add(text, "%s{\"name\":", i == 0 ? "" : ",");
        text_string(text, enclosure->name);
        text_add(text,
                 ",\"state\":\"%s\",\"exclusions\":%llu,\"probes\":%llu,\"load_bytes\":%llu,"
                 "\"store_bytes\":%llu,\"last_error\":",
                 states[enclosure->state], (unsigned long long)enclosure->excluded_count,
                 (unsigned long long)enclosure->probes, (unsigned long long)enclosure->load_bytes,
                 (unsigned long long)enclosure->store_bytes);
        text_string(text, all ? enclosure->last_error : ""); /* it may name a volume */
        if (enclosure->last_error[0] != 0)
            text_add(text, ",\"last_error_age_seconds\":%llu",
                     (unsigned long long)(enclosure->last_error_age_ns / 1000000000));
        text_add(text, ",\"lacks\":[");
        for (uint32_t j = 0, shown = 0; j < stats->volume_count; j++) {
            if ((enclosure->lacking & volumes & (uint64_t)1 << j) == 0)
                continue;
            text_add(text, shown++ == 0 ? "" : ",");
            text_string(text, stats->volumes[j].name);
        }
        text_add(text, "]}");
    }
    text_add(text, "]");
}

static void text_volume(struct text *text, const struct agent_volume_stats *volume)
{
    text_add(text, "{\"name\":");
    text_string(text, volume->name);
    text_add(text,
             ",\"slots\":%llu,\"slots_used\":%llu,\"slots_leased\":%llu,\"arena_bytes\":%llu,"
             "\"arena_used_bytes\":%llu,\"arena_evictions\":%llu,\"hits\":{\"dram\":%llu,"
             "\"local\":%llu,\"pod\":%llu},\"misses\":{",
             (unsigned long long)volume->slots, (unsigned long long)volume->slots_used,
             (unsigned long long)volume->slots_leased, (unsigned long long)volume->arena_bytes,
             (unsigned long long)volume->arena_used_bytes,
             (unsigned long long)volume->arena_evictions, (unsigned long long)volume->hits_dram,
             (unsigned long long)volume->hits_local, (unsigned long long)volume->hits_pod);
    for (int i = ICMS_MISS_ABSENT; i < ICMS_MISS_COUNT; i++)
        text_add(text, "%s\"%s\":%llu", i == ICMS_MISS_ABSENT ? "" : ",",
                 icms_miss_name((enum icms_miss)i), (unsigned long long)volume->misses[i]);
    text_add(text, "},\"keys_found\":%llu,\"keys_missed\":%llu",
             (unsigned long long)volume->keys_found, (unsigned long long)volume->keys_missed);
    text_add(text, ",\"puts\":%llu,\"put_bytes\":%llu,\"get_bytes\":%llu,\"store_failures\":%llu}",
             (unsigned long long)volume->puts, (unsigned long long)volume->put_bytes,
             (unsigned long long)volume->get_bytes, (unsigned long long)volume->store_failures);
}

size_t agent_status(struct agent *agent, char *out, size_t bytes)
{
    return agent_status_as(agent, NULL, out, bytes);
}

size_t agent_status_as(struct agent *agent, const struct agent_user *user, char *out, size_t bytes)
{
    struct agent_stats *stats = malloc(sizeof(*stats));
    uint64_t volumes = agent_access(agent, user);
    struct text text = {.out = out, .bytes = bytes};
    struct err_why why = {""};

    if (stats == NULL) {
        text_add(&text, "{}");
        return text.length;
    }
    agent_stats(agent, stats);
    text_add(&text, "{\"name\":");
    text_string(&text, agent->opts.name);
    text_add(&text, ",\"host_nqn\":");
    text_string(&text, agent->opts.host_nqn);
    text_add(&text, ",\"ready\":%s,\"why\":", agent_ready(agent, 0, &why) ? "true" : "false");
    text_string(&text, why.text);
    text_add(&text,
             ",\"clients\":%u,\"requests\":%llu,\"under_way\":%llu,\"memory_bytes\":%llu,"
             "\"backlog_bytes\":%llu,"
             "\"sheds\":%llu,\"deadline_misses\":%llu,\"checksum_errors\":%llu,"
             "\"clients_dropped\":%llu,",
             stats->clients, (unsigned long long)stats->requests,
             (unsigned long long)stats->under_way, (unsigned long long)stats->memory_bytes,
             (unsigned long long)stats->backlog_bytes, (unsigned long long)stats->sheds,
             (unsigned long long)stats->deadline_misses, (unsigned long long)stats->checksum_errors,
             (unsigned long long)stats->clients_dropped);
    text_enclosures(&text, stats, volumes, volumes == agent_access(agent, NULL));
    text_add(&text, ",\"volumes\":[");
    for (uint32_t i = 0, shown = 0; i < stats->volume_count; i++) {
        if ((volumes >> i & 1) == 0)
            continue;
        text_add(&text, shown++ == 0 ? "" : ",");
        text_volume(&text, &stats->volumes[i]);
    }
    text_add(&text, "]}");
    free(stats);
    return text.length;
}
