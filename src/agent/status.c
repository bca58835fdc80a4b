/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/status.c: what the agent tells of itself: counters, readiness, status text.
 *
 * Any thread. Counters are read while their loops write them: each is right, a moment old, and they
 * need not fit together.
 */
#include "agent/agent_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* ---- counters ------------------------------------------------------------------------------- */

static uint32_t agent_clients(struct agent *agent)
{
    uint32_t clients = 0;

    pthread_mutex_lock(&agent->control);
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++)
        clients += agent->clients[i].taken;
    pthread_mutex_unlock(&agent->control);
    return clients;
}

/* Slots of a volume that some lease entry names. A client's region stays while control is held. */
static uint64_t volume_leases_count(struct agent *agent, uint32_t volume)
{
    uint64_t leases = 0;

    pthread_mutex_lock(&agent->control);
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++) {
        const struct agent_client *client = &agent->clients[i];
        const struct shm_ring *ring = &client->qpairs[0].ring;

        if (!client->taken || (client->volumes >> volume & 1) == 0)
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
        if (agent->clients[i].taken)
            agent_client_counts_take(&agent->clients[i]);
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
    out->misses[ICMS_MISS_CHECKSUM] += counts[SHM_COUNT_TAG_ERRORS];
    out->misses[ICMS_MISS_NO_KEY] += counts[SHM_COUNT_NO_KEYS];
    out->misses[ICMS_MISS_VERSION] += counts[SHM_COUNT_VERSIONS];
    out->keys_found = counts[SHM_COUNT_FOUND];
    out->keys_missed = counts[SHM_COUNT_MISSED];
    out->matched = counts[SHM_COUNT_MATCHED];
    memcpy(out->matches, counts + SHM_COUNT_MATCHES, sizeof(out->matches));
    pthread_mutex_unlock(&agent->control);
}

/* Adds what became of a shard's hints. */
static void shard_prestage_stats(const struct agent_prestage_stats *from,
                                 struct agent_prestage_stats *out)
{
    out->taken += counter_get(&from->taken);
    out->full += counter_get(&from->full);
    out->passed += counter_get(&from->passed);
    for (int i = 0; i < AGENT_HINT_ENDS; i++)
        out->ended[i] += counter_get(&from->ended[i]);
    out->load_bytes += counter_get(&from->load_bytes);
    out->unused_bytes += counter_get(&from->unused_bytes);
    out->queued += counter_get(&from->queued);
    out->loading += counter_get(&from->loading);
    out->waiting += counter_get(&from->waiting);
    out->kept_bytes += counter_get(&from->kept_bytes);
    out->pins += counter_get(&from->pins);
    out->pinned_bytes += counter_get(&from->pinned_bytes);
    out->pinned_drive_bytes += counter_get(&from->pinned_drive_bytes);
    out->pins_refused += counter_get(&from->pins_refused);
    out->pins_again += counter_get(&from->pins_again);
    hist_merge(&out->late_ns, &from->late_ns);
}

static void shard_stats(const struct agent_shard *shard, struct agent_volume_stats *out,
                        struct agent_stats *all)
{
    out->slots += shard->arena.slot_count;
    out->slots_used += counter_get(&shard->slots_used);
    out->arena_bytes += counter_get(&shard->bytes);
    out->arena_used_bytes += counter_get(&shard->used_bytes);
    for (int i = 0; i < AGENT_EVICTED_COUNT; i++) {
        out->arena_evicted[i] += counter_get(&shard->evicted[i]);
        out->arena_evictions += counter_get(&shard->evicted[i]);
    }
    out->hits_dram += counter_get(&shard->hits_dram);
    out->hits_local += counter_get(&shard->hits_local);
    out->hits_pod += counter_get(&shard->hits_pod);
    for (int i = 0; i < AGENT_STATS_MISSES; i++)
        out->misses[i] += counter_get(&shard->misses[i]);
    out->puts += counter_get(&shard->puts);
    out->put_bytes += counter_get(&shard->put_bytes);
    out->get_bytes += counter_get(&shard->get_bytes);
    out->store_failures += counter_get(&shard->store_failures);
    out->former_found += counter_get(&shard->former_found);
    out->former_missed += counter_get(&shard->former_missed);
    out->moved += counter_get(&shard->moved);
    out->moved_bytes += counter_get(&shard->moved_bytes);
    out->moves_shed += counter_get(&shard->moves_shed);
    hist_merge(&out->evicted_age_ns, &shard->evicted_age_ns);
    shard_prestage_stats(&shard->prestage, &out->prestage);
    all->sheds += counter_get(&shard->sheds);
    all->deadline_misses += counter_get(&shard->deadline_misses);
    all->checksum_errors += counter_get(&shard->checksum_errors);
}

static void volume_stats(struct agent *agent, uint32_t volume, struct agent_stats *all)
{
    struct agent_volume_stats *out = &all->volumes[volume];

    memcpy(out->name, agent->volumes[volume].spec.name, sizeof(out->name));
    pthread_mutex_lock(&agent->pod.lock);
    out->identity = agent->pod.volumes[volume];
    pthread_mutex_unlock(&agent->pod.lock);
    out->run_blocks = agent->volumes[volume].spec.run_blocks;
    out->value_max = agent->volumes[volume].spec.value_bytes_max;
    out->encrypted = agent->volumes[volume].spec.encrypted;
    agent_events_stats(agent, volume, out);
    agent_volume_drive_stats(agent, volume, out);
    out->slots_leased = volume_leases_count(agent, volume);
    for (uint32_t r = 0; r < agent->reactor_count; r++)
        shard_stats(&agent->reactors[r].shards[volume], out, all);
    volume_client_stats(agent, volume, out);
}

bool agent_user_stats(struct agent *agent, uint32_t place, uint32_t volume,
                      struct agent_user_stats *out_stats)
{
    const struct agent_user_share *share = &agent->users[place];
    const struct agent_user_stats *before = &share->before[volume];
    struct agent_user_stats stats;
    bool is_known;

    pthread_mutex_lock(&agent->control);
    agent_user_count_sum(agent, place, volume, &stats);
    is_known = share->is_known;
    stats.requests -= before->requests;
    stats.load_bytes += share->hit_bytes[volume] - before->load_bytes;
    stats.load_local_bytes -= before->load_local_bytes;
    stats.load_pod_bytes -= before->load_pod_bytes;
    stats.store_bytes -= before->store_bytes;
    stats.waits -= before->waits;
    stats.wait_us -= before->wait_us;
    stats.sheds -= before->sheds;
    stats.clients = share->clients;
    stats.owner = share->owner;
    stats.uid = share->uid;
    pthread_mutex_unlock(&agent->control);
    if (!is_known || (!stats.owner && stats.requests == 0 && stats.load_bytes == 0 &&
                      stats.pinned_bytes + stats.pinned_drive_bytes == 0))
        return false;
    stats.backlog_bytes = atomic_load_explicit(&share->backlog_bytes[volume], memory_order_relaxed);
    stats.weight = agent->weights[volume];
    *out_stats = stats;
    return true;
}

/* Times of loops may be a moment ahead of ours. */
static uint64_t age_ns(struct agent *agent, uint64_t since_ns)
{
    uint64_t now_ns = loop_env_now_ns(agent->env);

    return now_ns > since_ns ? now_ns - since_ns : 0;
}

/* The worse of two verdicts: excluded, slow, connecting, up. */
static enum agent_enclosure_state enclosure_state_worse(enum agent_enclosure_state a,
                                                        enum agent_enclosure_state b)
{
    if (a == AGENT_ENCLOSURE_EXCLUDED || b == AGENT_ENCLOSURE_EXCLUDED)
        return AGENT_ENCLOSURE_EXCLUDED;
    if (a == AGENT_ENCLOSURE_SLOW || b == AGENT_ENCLOSURE_SLOW)
        return AGENT_ENCLOSURE_SLOW;
    return a == AGENT_ENCLOSURE_CONNECTING ? a : b;
}

/* Adds how one reactor sees it. */
static void link_stats_add(struct agent_link *link, struct agent_link_stats *out)
{
    static const char *const tls[] = {
        [NET_TLS_NONE] = "none",
        [NET_TLS_KERNEL] = "kernel",
        [NET_TLS_MIXED] = "mixed",
        [NET_TLS_USER] = "openssl",
    };
    static const char *const auth[] = {
        [AGENT_AUTH_NONE] = "none",
        [AGENT_AUTH_CHAP] = "chap",
        [AGENT_AUTH_MUTUAL] = "chap-mutual",
    };
    uint64_t age;

    out->state = enclosure_state_worse(out->state, (enum agent_enclosure_state)atomic_load_explicit(
                                                       &link->state, memory_order_relaxed));
    out->is_misdirected |= atomic_load_explicit(&link->is_misdirected, memory_order_relaxed);
    out->tls = tls[atomic_load_explicit(&link->tls, memory_order_relaxed)];
    out->auth = auth[atomic_load_explicit(&link->auth, memory_order_relaxed)];
    out->excluded_count += counter_get(&link->exclusions);
    out->slow_total += counter_get(&link->slow_total);
    out->commands += counter_get(&link->commands);
    out->in_flight += counter_get(&link->in_flight);
    out->in_flight_bytes += counter_get(&link->in_flight_bytes);
    out->load_bytes += counter_get(&link->load_bytes);
    out->store_bytes += counter_get(&link->store_bytes);
    pthread_mutex_lock(&link->enclosure->text_lock);
    age = age_ns(link->enclosure->agent, link->last_error_ns);
    if (link->last_error[0] != 0 && (out->last_error[0] == 0 || age < out->last_error_age_ns)) {
        memcpy(out->last_error, link->last_error, sizeof(out->last_error));
        out->last_error_age_ns = age;
    }
    pthread_mutex_unlock(&link->enclosure->text_lock);
}

/* Of several reactors: what they have together. */
static void estimate_stats_add(const struct estimate *estimate, const struct hist *errors,
                               struct agent_estimate_stats *out)
{
    struct estimate_told told;

    hist_merge(&out->errors, errors);
    if (!estimate_tell(estimate, &told))
        return;
    out->bytes_per_s += told.bytes_per_s;
    out->first_ns = u64_max(out->first_ns, told.first_ns);
    out->error = u64_max(out->error, told.error);
}

static void enclosure_stats_add(struct agent_enclosure *enclosure,
                                struct agent_enclosure_stats *out)
{
    uint64_t age;

    for (uint32_t i = 0; i < LIMIT_LINKS; i++)
        link_stats_add(&enclosure->links[i], &out->links[i]);
    out->failovers += counter_get(&enclosure->failovers);
    out->state = enclosure_state_worse(out->state, (enum agent_enclosure_state)atomic_load_explicit(
                                                       &enclosure->state, memory_order_relaxed));
    out->excluded_count += counter_get(&enclosure->exclusions);
    out->slow_total += counter_get(&enclosure->slow_total);
    out->share_percent = (uint32_t)u64_min(
        out->share_percent, atomic_load_explicit(&enclosure->share_percent, memory_order_relaxed));
    out->probes += counter_get(&enclosure->probes);
    out->auths += counter_get(&enclosure->auths);
    out->auths_refused += counter_get(&enclosure->auths_refused);
    out->load_bytes += counter_get(&enclosure->load_bytes);
    out->store_bytes += counter_get(&enclosure->store_bytes);
    out->checksum_errors += counter_get(&enclosure->checksum_errors);
    for (int i = 0; i < AGENT_LATENCY_COUNT; i++)
        hist_merge(&out->op_ns[i], &enclosure->op_ns[i]);
    estimate_stats_add(&enclosure->estimate, &enclosure->estimate_error, &out->estimate);
    for (uint32_t i = 0; i < enclosure->agent->volume_count; i++)
        out->missing |=
            (atomic_load_explicit(&enclosure->reactor->shards[i].missing, memory_order_relaxed) >>
                 enclosure->number &
             1)
            << i;
    out->enclosures_differ |=
        atomic_load_explicit(&enclosure->enclosures_differ, memory_order_relaxed);
    out->weights_differ |= atomic_load_explicit(&enclosure->weights_differ, memory_order_relaxed);
    out->epoch_there = (uint32_t)u64_max(
        out->epoch_there, atomic_load_explicit(&enclosure->epoch_there, memory_order_relaxed));
    for (uint32_t i = 0; i < enclosure->agent->volume_count; i++) {
        uint32_t others =
            atomic_load_explicit(&enclosure->run_blocks_others[i], memory_order_relaxed);
        uint32_t there = atomic_load_explicit(&enclosure->value_max_there[i], memory_order_relaxed);
        uint32_t trailer = enclosure->agent->volumes[i].spec.sealed ? LIMIT_TRAILER_BYTES : 0;

        if (others != 0) {
            out->run_blocks_differ |= (uint64_t)1 << i;
            out->run_blocks_others[i] = others;
        }
        if (there > trailer) {
            out->value_max_differ |= (uint64_t)1 << i;
            out->value_max_there[i] = there - trailer;
        }
    }
    pthread_mutex_lock(&enclosure->text_lock);
    if (enclosure->damaged_ns > out->damaged_ns) {
        out->damaged_volume = enclosure->damaged_volume;
        out->damaged_key = enclosure->damaged_key;
        out->damaged_ns = enclosure->damaged_ns;
    }
    age = age_ns(enclosure->agent, enclosure->last_error_ns);
    if (enclosure->last_error[0] != 0 &&
        (out->last_error[0] == 0 || age < out->last_error_age_ns)) {
        memcpy(out->last_error, enclosure->last_error, sizeof(out->last_error));
        out->last_error_age_ns = age;
    }
    pthread_mutex_unlock(&enclosure->text_lock);
}

/* What holds for all links that are up; without one for the first. */
static void links_proof(struct agent_enclosure_stats *out)
{
    bool is_any = false;

    out->tls = out->links[0].tls;
    out->auth = out->links[0].auth;
    for (uint32_t i = 0; i < out->link_count; i++) {
        const struct agent_link_stats *link = &out->links[i];

        if (link->state != AGENT_ENCLOSURE_UP && link->state != AGENT_ENCLOSURE_SLOW)
            continue;
        if (!is_any || strcmp(link->tls, "none") == 0)
            out->tls = link->tls;
        if (!is_any || strcmp(link->auth, "none") == 0 || strcmp(out->auth, "chap-mutual") == 0)
            out->auth = link->auth;
        is_any = true;
    }
}

static void enclosure_stats(struct agent *agent, uint32_t number, struct agent_enclosure_stats *out)
{
    const struct agent_member *member = &agent->pod.members[number];

    memcpy(out->name, member->opts.name, sizeof(out->name));
    out->number = number;
    out->uuid = member->opts.uuid;
    out->weight = member->opts.weight;
    out->former_weight = member->opts.former_weight;
    out->pod_state = member->opts.state;
    memcpy(out->nqn, member->opts.nqn, sizeof(out->nqn));
    out->has_psk = member->keys->tls != NULL;
    out->has_secret = member->keys->secret != NULL;
    out->state = AGENT_ENCLOSURE_UP;
    out->share_percent = 100;
    for (uint32_t i = 0; i < LIMIT_LINKS; i++)
        out->links[i].state = AGENT_ENCLOSURE_UP;
    for (uint32_t r = 0; r < agent->reactor_count; r++)
        enclosure_stats_add(&agent->reactors[r].enclosures[number], out);
    for (uint32_t i = 0; i < LIMIT_LINKS; i++) {
        if (member->addrs[i].host[0] == 0)
            continue;
        out->links[out->link_count] = out->links[i];
        out->links[out->link_count].number = i;
        out->links[out->link_count++].addr = member->addrs[i];
    }
    links_proof(out);
}

/* Those of the pod, in the order of their numbers. */
static void enclosures_stats(struct agent *agent, struct agent_stats *out_stats)
{
    pthread_mutex_lock(&agent->pod.lock);
    for (uint32_t i = 0; i < LIMIT_ENCLOSURES; i++)
        if (agent->pod.members[i].is_member)
            enclosure_stats(agent, i, &out_stats->enclosures[out_stats->enclosure_count++]);
    pthread_mutex_unlock(&agent->pod.lock);
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
               "space for every state");

/* ---- the own drive -------------------------------------------------------------------------- */

/* The store of the own drive, whatever it is for; NULL: there is none, or it is not open. */
static struct store *agent_drive(const struct agent *agent)
{
    if (agent->local != NULL)
        return agent->local->store;
    return agent->tier != NULL ? agent->tier->store : NULL;
}

bool agent_drive_error_take(struct agent *agent, struct store_error *out_error,
                            uint64_t *out_missed)
{
    struct store *store = agent_drive(agent);

    if (store == NULL || !store_error_take(store, out_error, out_missed))
        return false;
    if (agent->tier != NULL)
        out_error->volume = agent_tier_volume(agent->tier, out_error->volume);
    return true;
}

bool agent_drive_stats(struct agent *agent, struct store_stats *out_stats)
{
    struct store *store = agent_drive(agent);

    if (store == NULL)
        return false;
    store_stats(store, out_stats);
    return true;
}

/* Of a drive that stands for a pod: what is there. */
static void agent_local_stats(struct agent *agent, struct agent_tier_stats *out)
{
    struct store_stats store;

    if (!agent_drive_stats(agent, &store))
        return;
    out->state = store.down ? AGENT_TIER_DOWN : AGENT_TIER_UP;
    out->blocks = store.blocks;
    out->bytes = store.used_bytes;
    out->bytes_max = store.capacity_bytes;
    out->evicted = store.evictions;
}

void agent_stats(struct agent *agent, struct agent_stats *out_stats)
{
    memset(out_stats, 0, sizeof(*out_stats));
    out_stats->clients = agent_clients(agent);
    pthread_mutex_lock(&agent->control);
    out_stats->clients_refused = agent->clients_refused;
    out_stats->refused_user = agent->refused_user;
    pthread_mutex_unlock(&agent->control);
    out_stats->epoch = agent_epoch(agent);
    pthread_mutex_lock(&agent->pod.lock);
    out_stats->is_map_refused = agent->pod.refused[0] != '\0';
    pthread_mutex_unlock(&agent->pod.lock);
    out_stats->volume_count = agent->volume_count;
    out_stats->memory_bytes = agent_memory_bytes(agent);
    out_stats->backlog_bytes = atomic_load_explicit(&agent->backlog_bytes, memory_order_relaxed);
    out_stats->in_flight = agent_in_flight(agent);
    for (uint32_t i = 0; i < agent->reactor_count; i++) {
        struct agent_reactor *reactor = &agent->reactors[i];

        out_stats->requests += counter_get(&reactor->requests);
        out_stats->pod_load_bytes += counter_get(&reactor->pod_load_bytes);
        out_stats->pod_store_bytes += counter_get(&reactor->pod_store_bytes);
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
    enclosures_stats(agent, out_stats);
    if (agent->local != NULL) {
        out_stats->local_load_bytes = counter_get(&agent->local->load_bytes);
        out_stats->local_store_bytes = counter_get(&agent->local->store_bytes);
        agent_local_stats(agent, &out_stats->tier);
        estimate_stats_add(&agent->local->estimate, &agent->local->estimate_error,
                           &out_stats->tier.estimate);
    }
    out_stats->has_tier = agent->tier != NULL;
    if (out_stats->has_tier) {
        agent_tier_stats(agent->tier, &out_stats->tier);
        estimate_stats_add(&agent->tier->estimate, &agent->tier->estimate_error,
                           &out_stats->tier.estimate);
        out_stats->local_load_bytes = out_stats->tier.promoted_bytes;
        out_stats->local_store_bytes = out_stats->tier.demoted_bytes +
                                       out_stats->tier.stored_bytes +
                                       out_stats->tier.prestaged_bytes;
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

    return reader->agent->pod.members[enclosure].opts.name;
}

char *agent_trace(struct agent *agent, const struct agent_user *user, const struct key *key)
{
    static const char *const ops[] = {
        [SHM_OP_GET] = "get",           [SHM_OP_PUT] = "put",
        [SHM_OP_EXISTS] = "exists",     [SHM_OP_REMOVE] = "remove",
        [SHM_OP_FLUSH] = "flush",       [SHM_OP_EXISTS_MANY] = "exists_many",
        [SHM_OP_PRESTAGE] = "prestage",
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
    char *text;

    for (uint32_t i = 0; i < agent->reactor_count; i++)
        books[i] = &agent->reactors[i].book;
    pthread_mutex_lock(&agent->pod.lock); /* of names */
    text = trace_text(books, agent->reactor_count, key, &names, loop_env_now_ns(agent->env));
    pthread_mutex_unlock(&agent->pod.lock);
    return text;
}

/* ---- readiness ------------------------------------------------------------------------------ */

/* Whether there is a reactor that reaches no enclosure: all of its keys miss. */
static bool agent_is_cut_off(const struct agent *agent)
{
    uint64_t all = atomic_load_explicit(&agent->pod.mask, memory_order_acquire);

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
        (void)err_set(
            why, ICMS_PEER_DOWN, "none of %d enclosures can be reached",
            __builtin_popcountll(atomic_load_explicit(&agent->pod.mask, memory_order_relaxed)));
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

static const char *const tier_states[] = {
    [AGENT_TIER_UP] = "up",
    [AGENT_TIER_SLOW] = "slow",
    [AGENT_TIER_DOWN] = "down",
};

/* ---- status text ---------------------------------------------------------------------------- */

static const char *const enclosure_states[] = {
    [AGENT_ENCLOSURE_CONNECTING] = "connecting",
    [AGENT_ENCLOSURE_UP] = "up",
    [AGENT_ENCLOSURE_SLOW] = "slow",
    [AGENT_ENCLOSURE_EXCLUDED] = "excluded",
};

static void status_link(struct json *json, const struct agent_link_stats *link, bool all)
{
    char addr[LIMIT_ADDRESS_BYTES];

    json_put_object(json, NULL);
    json_put_string(json, "address", loop_addr_format(&link->addr, addr, sizeof(addr)));
    json_put_string(json, "state",
                    link->is_misdirected ? "misdirected" : enclosure_states[link->state]);
    json_put_string(json, "auth", link->auth);
    json_put_string(json, "tls", link->tls);
    if (all) { /* they tell when others store and load, and how much */
        json_put_uint(json, "commands", link->commands);
        json_put_uint(json, "in_flight", link->in_flight);
        json_put_uint(json, "in_flight_bytes", link->in_flight_bytes);
        json_put_uint(json, "load_bytes", link->load_bytes);
        json_put_uint(json, "store_bytes", link->store_bytes);
    }
    json_put_uint(json, "exclusions", link->excluded_count);
    json_put_uint(json, "slow_total", link->slow_total);
    json_put_string(json, "last_error", all ? link->last_error : "");
    if (link->last_error[0] != 0)
        json_put_uint(json, "last_error_age_seconds", link->last_error_age_ns / 1000000000);
    json_put_end(json);
}

/* What nine of ten were within, as a ratio. */
static double estimate_p90(const struct hist *errors)
{
    uint64_t total = 0, seen = 0;

    for (unsigned i = 0; i < HIST_BUCKETS; i++)
        total += errors->count[i];
    for (unsigned i = 0; i < HIST_BUCKETS && total != 0; i++) {
        seen += errors->count[i];
        if (seen * 10 >= total * 9)
            return (double)hist_bucket_max(i) / 1000;
    }
    return 0;
}

static void status_estimate(struct json *json, const struct agent_estimate_stats *estimate)
{
    json_put_object(json, "estimate");
    json_put_uint(json, "bytes_per_second", estimate->bytes_per_s);
    json_put_real(json, "first_seconds", (double)estimate->first_ns / 1e9);
    json_put_real(json, "error", (double)estimate->error / 1000);
    json_put_uint(json, "judged", estimate->errors.total);
    json_put_real(json, "error_p90", estimate_p90(&estimate->errors));
    json_put_end(json);
}

static void status_enclosure(struct json *json, const struct agent_stats *stats,
                             const struct agent_enclosure_stats *enclosure, uint64_t volumes,
                             bool all)
{
    char uuid[UUID_TEXT_BYTES], addr[64], weight[32];

    json_put_object(json, NULL);
    json_put_string(json, "name", enclosure->name);
    json_put_string(json, "state", enclosure_states[enclosure->state]);
    json_put_string(json, "pod_state", agent_pod_state_name(enclosure->pod_state));
    json_put_string(json, "nqn", enclosure->nqn);
    json_put_string(json, "uuid", uuid_format(&enclosure->uuid, uuid));
    json_put_string(json, "address",
                    loop_addr_format(&enclosure->links[0].addr, addr, sizeof(addr)));
    json_put_array(json, "links");
    for (uint32_t i = 0; i < enclosure->link_count; i++)
        status_link(json, &enclosure->links[i], all);
    json_put_end(json);
    json_put_uint(json, "failovers", enclosure->failovers);
    (void)snprintf(weight, sizeof(weight), "%.17g", enclosure->weight);
    json_put_string(json, "weight", weight); /* exactly: it is compared */
    (void)snprintf(weight, sizeof(weight), "%.17g", enclosure->former_weight);
    if (enclosure->former_weight > 0)
        json_put_string(json, "former_weight", weight);
    json_put_string(json, "auth", enclosure->auth);
    json_put_string(json, "tls", enclosure->tls);
    json_put_uint(json, "exclusions", enclosure->excluded_count);
    json_put_uint(json, "slow_total", enclosure->slow_total);
    json_put_uint(json, "share_percent", enclosure->share_percent);
    json_put_uint(json, "probes", enclosure->probes);
    json_put_uint(json, "auths", enclosure->auths);
    json_put_uint(json, "auths_refused", enclosure->auths_refused);
    if (all) {
        json_put_uint(json, "load_bytes", enclosure->load_bytes);
        json_put_uint(json, "store_bytes", enclosure->store_bytes);
        status_estimate(json, &enclosure->estimate);
    }
    json_put_string(json, "last_error",
                    all ? enclosure->last_error : ""); /* it may name a volume */
    if (enclosure->last_error[0] != 0)
        json_put_uint(json, "last_error_age_seconds", enclosure->last_error_age_ns / 1000000000);
    json_put_array(json, "lacks");
    for (uint32_t i = 0; i < stats->volume_count; i++)
        if ((enclosure->missing & volumes & (uint64_t)1 << i) != 0)
            json_put_string(json, NULL, stats->volumes[i].name);
    json_put_end(json);
    json_put_uint(json, "epoch_there", enclosure->epoch_there);
    json_put_array(json, "settings_differ");
    if (enclosure->enclosures_differ)
        json_put_string(json, NULL, "enclosures");
    if (enclosure->weights_differ)
        json_put_string(json, NULL, "weights");
    if (enclosure->epoch_there != 0) {
        char text[96];

        (void)snprintf(text, sizeof(text), "epoch of the pod map: %llu here, %u there",
                       (unsigned long long)stats->epoch, enclosure->epoch_there);
        json_put_string(json, NULL, text);
    }
    for (uint32_t i = 0; i < stats->volume_count; i++) {
        char text[LIMIT_NAME_BYTES + 32];

        if ((enclosure->run_blocks_differ & volumes & (uint64_t)1 << i) == 0)
            continue;
        (void)snprintf(text, sizeof(text), "run_blocks of %s: %u here, %u there",
                       stats->volumes[i].name, stats->volumes[i].run_blocks,
                       enclosure->run_blocks_others[i]);
        json_put_string(json, NULL, text);
    }
    for (uint32_t i = 0; i < stats->volume_count; i++) {
        char text[LIMIT_NAME_BYTES + 80];

        if ((enclosure->value_max_differ & volumes & (uint64_t)1 << i) == 0)
            continue;
        (void)snprintf(text, sizeof(text), "value_max of %s: %llu bytes here, %llu there",
                       stats->volumes[i].name, (unsigned long long)stats->volumes[i].value_max,
                       (unsigned long long)enclosure->value_max_there[i]);
        json_put_string(json, NULL, text);
    }
    json_put_end(json);
    json_put_end(json);
}

static void status_prestage(struct json *json, const struct agent_prestage_stats *prestage)
{
    json_put_object(json, "prestage");
    json_put_uint(json, "taken", prestage->taken);
    json_put_uint(json, "refused_full", prestage->full);
    json_put_uint(json, "refused_passed", prestage->passed);
    for (int i = 0; i < AGENT_HINT_ENDS; i++)
        json_put_uint(json, agent_hint_end_name((enum agent_hint_end)i), prestage->ended[i]);
    json_put_uint(json, "load_bytes", prestage->load_bytes);
    json_put_uint(json, "unused_bytes", prestage->unused_bytes);
    json_put_uint(json, "queued", prestage->queued);
    json_put_uint(json, "loading", prestage->loading);
    json_put_uint(json, "waiting", prestage->waiting);
    json_put_uint(json, "kept_bytes", prestage->kept_bytes);
    json_put_uint(json, "pins", prestage->pins);
    json_put_uint(json, "pinned_bytes", prestage->pinned_bytes);
    json_put_uint(json, "pinned_local_bytes", prestage->pinned_drive_bytes);
    json_put_uint(json, "pins_refused", prestage->pins_refused);
    json_put_uint(json, "pins_again", prestage->pins_again);
    json_put_end(json);
}

static void status_volume(struct json *json, const struct agent_volume_stats *volume)
{
    char uuid[UUID_TEXT_BYTES];

    json_put_object(json, NULL);
    json_put_string(json, "name", volume->name);
    json_put_string(json, "uuid", uuid_format(&volume->identity.uuid, uuid));
    json_put_uint(json, "generation", volume->identity.generation);
    json_put_bool(json, "in_pod", !uuid_is_nil(&volume->identity.uuid));
    json_put_bool(json, "encrypted", volume->encrypted);
    json_put_uint(json, "slots", volume->slots);
    json_put_uint(json, "slots_used", volume->slots_used);
    json_put_uint(json, "slots_leased", volume->slots_leased);
    json_put_uint(json, "arena_bytes", volume->arena_bytes);
    json_put_uint(json, "arena_used_bytes", volume->arena_used_bytes);
    json_put_uint(json, "arena_evictions", volume->arena_evictions);
    json_put_uint(json, "local_blocks", volume->drive_blocks);
    json_put_uint(json, "local_bytes", volume->drive_bytes);
    json_put_object(json, "hits");
    json_put_uint(json, "dram", volume->hits_dram);
    json_put_uint(json, "local", volume->hits_local);
    json_put_uint(json, "pod", volume->hits_pod);
    json_put_end(json);
    json_put_object(json, "misses");
    for (int i = ICMS_MISS_ABSENT; i < ICMS_MISS_COUNT; i++)
        json_put_uint(json, icms_miss_name((enum icms_miss)i), volume->misses[i]);
    json_put_end(json);
    json_put_uint(json, "keys_found", volume->keys_found);
    json_put_uint(json, "keys_missed", volume->keys_missed);
    json_put_uint(json, "puts", volume->puts);
    json_put_uint(json, "put_bytes", volume->put_bytes);
    json_put_uint(json, "get_bytes", volume->get_bytes);
    json_put_uint(json, "store_failures", volume->store_failures);
    json_put_uint(json, "former_found", volume->former_found);
    json_put_uint(json, "former_missed", volume->former_missed);
    json_put_uint(json, "moved", volume->moved);
    json_put_uint(json, "moved_bytes", volume->moved_bytes);
    json_put_uint(json, "moves_shed", volume->moves_shed);
    status_prestage(json, &volume->prestage);
    if (volume->has_events) {
        json_put_object(json, "events");
        json_put_uint(json, "published", volume->events);
        json_put_uint(json, "lost", volume->events_lost);
        json_put_end(json);
    }
    json_put_end(json);
}

/* What users did with volumes: all of that for who may know it, else what is of the user. */
static void status_users(struct json *json, struct agent *agent, const struct agent_user *user)
{
    struct agent_user_stats stats;
    char name[16];

    json_put_array(json, "users");
    for (uint32_t i = 0; i < AGENT_USERS; i++)
        for (uint32_t v = 0; v < agent->volume_count; v++) {
            if (!agent_user_stats(agent, i, v, &stats) ||
                (stats.requests == 0 && stats.load_bytes == 0 &&
                 stats.pinned_bytes + stats.pinned_drive_bytes == 0) ||
                (user != NULL && !user->owner && (stats.owner || stats.uid != user->uid)))
                continue;
            (void)snprintf(name, sizeof(name), "%u", stats.uid);
            json_put_object(json, NULL);
            json_put_string(json, "user", stats.owner ? "owner" : name);
            json_put_string(json, "volume", agent->volumes[v].spec.name);
            json_put_uint(json, "weight", stats.weight);
            json_put_uint(json, "clients", stats.clients);
            json_put_uint(json, "requests", stats.requests);
            json_put_uint(json, "load_bytes", stats.load_bytes);
            json_put_uint(json, "load_local_bytes", stats.load_local_bytes);
            json_put_uint(json, "load_pod_bytes", stats.load_pod_bytes);
            json_put_uint(json, "store_bytes", stats.store_bytes);
            json_put_uint(json, "backlog_bytes", stats.backlog_bytes);
            json_put_uint(json, "pinned_bytes", stats.pinned_bytes);
            json_put_uint(json, "pinned_local_bytes", stats.pinned_drive_bytes);
            json_put_uint(json, "waits", stats.waits);
            json_put_real(json, "wait_seconds", (double)stats.wait_us / 1e6);
            json_put_uint(json, "sheds", stats.sheds);
            json_put_end(json);
        }
    json_put_end(json);
}

static void status_tier(struct json *json, const struct agent_tier_stats *tier)
{
    json_put_uint(json, "blocks", tier->blocks);
    json_put_uint(json, "bytes", tier->bytes);
    json_put_uint(json, "bytes_max", tier->bytes_max);
    json_put_uint(json, "promoted", tier->promoted);
    json_put_uint(json, "promoted_bytes", tier->promoted_bytes);
    json_put_uint(json, "given_up", tier->given_up);
    json_put_uint(json, "passed", tier->passed);
    json_put_uint(json, "failed_reads", tier->failed_reads);
    json_put_uint(json, "stored", tier->stored);
    json_put_uint(json, "stored_bytes", tier->stored_bytes);
    json_put_uint(json, "demoted", tier->demoted);
    json_put_uint(json, "demoted_bytes", tier->demoted_bytes);
    json_put_uint(json, "prestaged", tier->prestaged);
    json_put_uint(json, "prestaged_bytes", tier->prestaged_bytes);
    json_put_uint(json, "kept", tier->kept);
    json_put_uint(json, "unread", tier->unread);
    json_put_uint(json, "refused", tier->refused);
    json_put_uint(json, "shed", tier->shed);
    json_put_uint(json, "failed_writes", tier->failed_writes);
    json_put_uint(json, "evicted", tier->evicted);
    json_put_uint(json, "forgotten", tier->forgotten);
    json_put_uint(json, "slow_total", tier->slow_total);
    json_put_uint(json, "budget_bytes_day", tier->budget_bytes_day);
    json_put_uint(json, "budget_left_bytes", tier->budget_left_bytes);
    status_estimate(json, &tier->estimate);
}

/* Where blocks are, what came from there, and what moved why; what is not of single volumes only
 * for who may know all of them. */
static void status_tiers(struct json *json, const struct agent_stats *stats, uint64_t volumes,
                         bool all)
{
    uint64_t hits[3] = {0}, blocks = 0, bytes = 0, evicted = 0, in = 0, out = 0;
    uint64_t evicted_for[AGENT_EVICTED_COUNT] = {0};

    for (uint32_t i = 0; i < stats->volume_count; i++) {
        const struct agent_volume_stats *volume = &stats->volumes[i];

        if ((volumes >> i & 1) == 0)
            continue;
        hits[0] += volume->hits_dram;
        hits[1] += volume->hits_local;
        hits[2] += volume->hits_pod;
        blocks += volume->slots_used;
        bytes += volume->arena_used_bytes;
        evicted += volume->arena_evictions;
        for (int k = 0; k < AGENT_EVICTED_COUNT; k++)
            evicted_for[k] += volume->arena_evicted[k];
    }
    for (uint32_t i = 0; i < stats->enclosure_count; i++) {
        in += stats->enclosures[i].load_bytes;
        out += stats->enclosures[i].store_bytes;
    }
    json_put_object(json, "tiers");
    json_put_object(json, "dram");
    json_put_uint(json, "hits", hits[0]);
    json_put_uint(json, "blocks", blocks);
    json_put_uint(json, "bytes", bytes);
    json_put_uint(json, "bytes_max", stats->memory_bytes);
    json_put_uint(json, "evicted", evicted);
    json_put_object(json, "evicted_for");
    for (int i = 0; i < AGENT_EVICTED_COUNT; i++)
        json_put_uint(json, agent_evicted_name((enum agent_evicted)i), evicted_for[i]);
    json_put_end(json);
    json_put_end(json);
    if (stats->has_tier || stats->enclosure_count == 0) {
        json_put_object(json, "local");
        json_put_string(json, "state", tier_states[stats->tier.state]);
        json_put_string(json, "why", all ? stats->tier.why : "");
        json_put_uint(json, "hits", hits[1]);
        if (all)
            status_tier(json, &stats->tier);
        json_put_end(json);
    }
    if (stats->enclosure_count > 0) {
        json_put_object(json, "pod");
        json_put_uint(json, "hits", hits[2]);
        if (all) {
            json_put_uint(json, "load_bytes", in);
            json_put_uint(json, "store_bytes", out);
        }
        json_put_end(json);
    }
    json_put_end(json);
}

/* The sentence may name volumes that the user may not use. */
static void status_map(struct json *json, struct agent *agent, bool all)
{
    char refused[sizeof(agent->pod.refused)];

    pthread_mutex_lock(&agent->pod.lock);
    memcpy(refused, agent->pod.refused, sizeof(refused));
    pthread_mutex_unlock(&agent->pod.lock);
    json_put_string(json, "map_refused",
                    all || refused[0] == '\0' ? refused
                                              : "the map of the file is not in use; the log of "
                                                "icms-agent says why");
}

static void status_write(struct json *json, struct agent *agent, const struct agent_user *user,
                         const struct agent_stats *stats)
{
    uint64_t volumes = agent_access(agent, user);
    bool all = volumes == agent_access(agent, NULL);
    struct err_why why = {""};

    json_put_string(json, "name", agent->opts.name);
    json_put_string(json, "host_nqn", agent->opts.host_nqn);
    json_put_bool(json, "ready", agent_ready(agent, 0, &why));
    json_put_string(json, "why", why.text);
    json_put_string(json, "pod", agent->pod.name);
    json_put_uint(json, "epoch", stats->epoch);
    status_map(json, agent, all);
    json_put_uint(json, "memory_bytes", stats->memory_bytes);
    if (all) {
        json_put_uint(json, "clients", stats->clients);
        json_put_uint(json, "requests", stats->requests);
        json_put_uint(json, "under_way", stats->in_flight);
        json_put_uint(json, "backlog_bytes", stats->backlog_bytes);
        json_put_uint(json, "sheds", stats->sheds);
        json_put_uint(json, "deadline_misses", stats->deadline_misses);
        json_put_uint(json, "checksum_errors", stats->checksum_errors);
        json_put_uint(json, "clients_dropped", stats->clients_dropped);
    }
    json_put_array(json, "enclosures");
    for (uint32_t i = 0; i < stats->enclosure_count; i++)
        status_enclosure(json, stats, &stats->enclosures[i], volumes, all);
    json_put_end(json);
    status_tiers(json, stats, volumes, all);
    json_put_array(json, "volumes");
    for (uint32_t i = 0; i < stats->volume_count; i++)
        if ((volumes >> i & 1) != 0)
            status_volume(json, &stats->volumes[i]);
    json_put_end(json);
    status_users(json, agent, user);
}

size_t agent_status(struct agent *agent, char *out, size_t bytes)
{
    return agent_status_as(agent, NULL, out, bytes);
}

size_t agent_status_as(struct agent *agent, const struct agent_user *user, char *out, size_t bytes)
{
    struct agent_stats *stats = malloc(sizeof(*stats));
    struct json json;

    json_init(&json, out, bytes);
    json_put_object(&json, NULL);
    if (stats != NULL) {
        agent_stats(agent, stats);
        status_write(&json, agent, user, stats);
    }
    json_put_end(&json);
    free(stats);
    return json_finish(&json);
}
