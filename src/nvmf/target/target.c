/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The target as a whole: memory taken at start, portals, drain, counters.
 *
 * nvmf_target_new, _open and _free run while the loops stand still; the rest says where it runs.
 * The region of data buffers is cut into one part a loop; each part holds memory for the transport
 * of every queue pair of the loop and, behind it, the pool.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "nvmf/target/target_int.h"

/* In-capsule data that every controller takes on fabrics and admin commands. */
#define TARGET_CAPSULE_BYTES 8192

const char *nvmf_target_op_name(enum nvmf_target_op op)
{
    static const char *const names[] = {
        [NVMF_TARGET_STORE] = "store",   [NVMF_TARGET_RETRIEVE] = "retrieve",
        [NVMF_TARGET_EXIST] = "exist",   [NVMF_TARGET_EXIST_MANY] = "exist_many",
        [NVMF_TARGET_DELETE] = "delete", [NVMF_TARGET_LIST] = "list",
        [NVMF_TARGET_FLUSH] = "flush",
    };

    return (unsigned)op < NVMF_TARGET_OP_COUNT ? names[op] : "unknown";
}

void nvmf_target_opts_init(struct nvmf_target_opts *opts)
{
    *opts = (struct nvmf_target_opts){
        .transport = &nvmf_target_tcp,
        .portal_count = 1,
        .serial = "ICMS0001",
        .model = "icms flash enclosure",
        .firmware = "0.1",
        .connections_max = 1024,
        .host_connections_max = 128,
        .queue_entries_max = 128,
        .in_capsule_bytes = TARGET_CAPSULE_BYTES,
        .memory_bytes = (uint64_t)256 << 20,
        .store_backlog_bytes = (uint64_t)1 << 30,
        .header_timeout_ms = 5000,
        .stall_timeout_ms = 10000,
        .auth_hashes = {3, 2, 1},
        .auth_hash_count = 3,
        .auth_groups = {2, 1, 3, 0}, /* 4 and 5 take 3 and 7 ms a computation */
        .auth_group_count = 4,
    };
}

/* Only queue pairs that have something to look after: most of a large pod's stand still. */
static void target_sweep_watched(struct nvmft_shard *shard, uint64_t now_ns, uint64_t step_ns)
{
    struct list todo, *link;

    list_init(&todo);
    while ((link = list_pop(&shard->watched)) != NULL)
        list_push(&todo, link);
    while ((link = list_pop(&todo)) != NULL)
        if (nvmft_qpair_sweep(container_of(link, struct nvmft_qpair, watch_link), now_ns,
                              step_ns) &&
            list_empty(link))
            list_push(&shard->watched, link);
}

static void target_sweep(struct loop_timer *timer)
{
    struct nvmft_shard *shard = container_of(timer, struct nvmft_shard, timer);
    uint64_t now = loop_now_ns(shard->loop);
    /* A loop that stood still, or did not sweep, does not count that against its hosts. */
    uint64_t step = u64_min(now - shard->sweep_ns, 2 * NVMFT_SWEEP_NS);

    shard->sweep_ns = now;
    target_sweep_watched(shard, now, step);
    if (shard->draining)
        list_for_each_safe (link, &shard->open)
            (void)nvmft_qpair_sweep(container_of(link, struct nvmft_qpair, link), now, 0);
    if (shard->draining || !list_empty(&shard->watched))
        loop_timer_start(shard->loop, timer, now + NVMFT_SWEEP_NS);
}

static void target_tls_failed(struct net_tls_side *side, const char *hostnqn,
                              const struct loop_addr *peer, const char *why)
{
    struct nvmf_target_auth event = {.result = NVMF_TARGET_AUTH_TLS_FAILED, .peer = *peer};

    snprintf(event.hostnqn, sizeof(event.hostnqn), "%s", hostnqn);
    snprintf(event.why, sizeof(event.why), "%s", why);
    nvmft_auth_event(side->arg, &event);
}

/* Half of a loop's connections may be handshakes: the others stay for hosts that are through. */
static void target_shard_tls(struct nvmft_shard *shard)
{
    struct nvmf_target *target = shard->target;

    shard->tls = (struct net_tls_side){
        .settings = nvmft_keys_tls(target->keys),
        .is_server = true,
        .allows_plain = nvmft_keys_allow_plain(target->keys),
        .timeout_ns = (uint64_t)target->opts.header_timeout_ms * 1000000,
        .pending_max = (uint32_t)u64_max(shard->qpair_count / 2, 1),
        .arg = target,
        .failed = target_tls_failed,
    };
}

static icms_err target_shard_init(struct nvmf_target *target, uint32_t index, uint8_t *memory,
                                  uint64_t bytes)
{
    struct nvmft_shard *shard = &target->shards[index];
    uint64_t staging;

    shard->target = target;
    shard->loop = target->opts.loops[index];
    shard->qpair_count =
        (target->opts.connections_max + target->opts.loop_count - 1) / target->opts.loop_count;
    list_init(&shard->open);
    list_init(&shard->watched);
    list_init(&shard->free);
    list_init(&shard->auth_waiting);
    list_init(&shard->auth_replied);
    list_init(&shard->auth_paused);
    loop_timer_init(&shard->auth_timer, nvmft_auth_retry);
    loop_timer_init(&shard->timer, target_sweep);
    target_shard_tls(shard);
    shard->qpairs = calloc(shard->qpair_count, sizeof(*shard->qpairs));
    if (shard->qpairs == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < shard->qpair_count; i++) {
        if (nvmft_qpair_init(&shard->qpairs[i], shard, memory + i * target->staging_bytes) !=
            ICMS_OK)
            return ICMS_NO_MEMORY;
        list_push(&shard->free, &shard->qpairs[i].free_link);
    }
    staging = shard->qpair_count * target->staging_bytes;
    return nvmft_buffers_init(shard, memory + staging, bytes - staging);
}

/* Sizes that follow from the options; is there memory enough? */
static icms_err target_sizes(struct nvmf_target *target, struct err_why *why,
                             uint64_t *out_part_bytes)
{
    const struct nvmf_target_opts *opts = &target->opts;
    uint32_t qpairs = (opts->connections_max + opts->loop_count - 1) / opts->loop_count;
    uint64_t part = opts->memory_bytes / opts->loop_count / NVMFT_POOL_PAGE * NVMFT_POOL_PAGE;
    uint64_t need;

    target->capsule_bytes_max = (uint32_t)u64_max(opts->in_capsule_bytes, TARGET_CAPSULE_BYTES);
    target->staging_bytes =
        bytes_align(opts->ops->buffer_bytes(target->capsule_bytes_max), NVMFT_POOL_PAGE);
    target->io_offset = (uint32_t)bytes_align(sizeof(struct nvmft_req) + opts->owner_req_bytes, 16);
    target->slot_bytes = bytes_align(target->io_offset + opts->transport->io_bytes, 64);
    target->buffer_bytes_max = NVMFT_LOG_BYTES;
    for (uint32_t i = 0; i < opts->namespace_count; i++)
        target->buffer_bytes_max =
            u64_max(target->buffer_bytes_max,
                    bytes_align(opts->ops->buffer_bytes(opts->namespaces[i].value_bytes_max),
                                NVMFT_POOL_PAGE));
    /* Two of the largest: a store must not keep a load waiting. */
    need = qpairs * target->staging_bytes + 2 * target->buffer_bytes_max;
    if (part < need)
        return err_set(why, ICMS_CONFIG,
                       "%llu bytes of buffer memory are too few for %u loops, %u connections and "
                       "values of up to %llu bytes: give at least %llu bytes",
                       (unsigned long long)opts->memory_bytes, opts->loop_count,
                       opts->connections_max, (unsigned long long)target->buffer_bytes_max,
                       (unsigned long long)(need * opts->loop_count));
    *out_part_bytes = part;
    return ICMS_OK;
}

static icms_err target_opts_check(const struct nvmf_target_opts *opts, struct err_why *why)
{
    check(opts->loop_count >= 1 && opts->loop_count <= LIMIT_LOOPS);
    check(opts->ops != NULL && opts->ops->kv != NULL && opts->ops->buffer_bytes != NULL);
    check(opts->namespace_count <= LIMIT_VOLUMES);
    check(opts->portal_count >= 1 && opts->portal_count <= LIMIT_PORTALS);
    if (!nvme_nqn_valid(opts->nqn, strlen(opts->nqn) + 1))
        return err_set(why, ICMS_CONFIG, "\"%s\" is not an NQN: it has to begin with \"nqn.\"",
                       opts->nqn);
    if (opts->queue_entries_max < NVMFT_ADMIN_ENTRIES || opts->queue_entries_max > 4096)
        return err_set(why, ICMS_CONFIG, "%u entries a queue: 32 to 4096 are possible",
                       opts->queue_entries_max);
    if (opts->connections_max < 2 || opts->connections_max > 65534)
        return err_set(why, ICMS_CONFIG, "%u connections: 2 to 65534 are possible",
                       opts->connections_max);
    if (opts->in_capsule_bytes % 16 != 0 || opts->in_capsule_bytes > NVMFT_CAPSULE_BYTES_MAX)
        return err_set(why, ICMS_CONFIG,
                       "%u bytes in a capsule: a multiple of 16, up to 1 MiB, is possible",
                       opts->in_capsule_bytes);
    return ICMS_OK;
}

/* The rates of all tenants, those of admin commands last. */
static icms_err target_tenants_init(struct nvmf_target *target)
{
    static const struct nvmf_target_tenant alone = {.weight = 1};
    struct nvmf_target_opts *opts = &target->opts;

    if (opts->tenant_count == 0) {
        opts->tenants = &alone;
        opts->tenant_count = 1;
    }
    for (uint32_t i = 0; i < opts->namespace_count; i++)
        check(opts->namespaces[i].tenant < opts->tenant_count);
    target->rates = calloc(opts->tenant_count + 1, sizeof(*target->rates));
    if (target->rates == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < opts->tenant_count; i++)
        for (int class = 0; class < NVMF_TARGET_CLASSES; class ++) {
            target->rates[i].bytes[class].per_s = opts->tenants[i].bytes_per_s[class];
            target->rates[i].ops[class].per_s = opts->tenants[i].ops_per_s[class];
        }
    return ICMS_OK;
}

icms_err nvmf_target_new(const struct nvmf_target_opts *opts, struct err_why *why,
                         struct nvmf_target **out_target)
{
    icms_err err = target_opts_check(opts, why);
    struct nvmf_target *target;
    uint64_t part_bytes = 0;
    uint8_t *memory;

    if (err != ICMS_OK)
        return err;
    target = calloc(1, sizeof(*target));
    if (target == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    target->opts = *opts;
    loop_entropy(opts->loops[0], &target->instance, sizeof(target->instance));
    target->instance |= 1; /* 0 is none */
    check(pthread_mutex_init(&target->slow_lock, NULL) == 0);
    check(pthread_mutex_init(&target->auth_events.lock, NULL) == 0);
    err = nvmft_auth_hosts_init(&target->auth_hosts, opts, why);
    if (err == ICMS_OK)
        err = target_tenants_init(target);
    if (err == ICMS_OK)
        err = nvmft_keys_new(opts, why, &target->keys);
    target->opts.hosts = NULL; /* they were read */
    if (err == ICMS_OK)
        err = target_sizes(target, why, &part_bytes);
    if (err == ICMS_OK) {
        struct nvmft_spaces *spaces = NULL;

        err = nvmft_spaces_new(opts->namespaces, opts->namespace_count, &spaces);
        atomic_store(&target->spaces, spaces);
    }
    if (err == ICMS_OK)
        err = loop_region_new(loop_env(opts->loops[0]), "icms-buffers",
                              part_bytes * opts->loop_count, true, why, &target->region);
    if (err == ICMS_OK) {
        target->shards = calloc(opts->loop_count, sizeof(*target->shards));
        err = target->shards == NULL ? ICMS_NO_MEMORY : nvmft_registry_init(target);
    }
    for (uint32_t i = 0; i < opts->loop_count && err == ICMS_OK; i++) {
        memory = (uint8_t *)loop_region_base(target->region) + i * part_bytes;
        err = target_shard_init(target, i, memory, part_bytes);
    }
    target->opts.tenants = NULL; /* the caller's */
    target->opts.namespaces = NULL;
    if (err != ICMS_OK) {
        if (err == ICMS_NO_MEMORY)
            err_set(why, err, "out of memory for %u connections", opts->connections_max);
        nvmf_target_free(&target);
        return err;
    }
    *out_target = target;
    return ICMS_OK;
}

icms_err nvmf_target_keys_check(const struct nvmf_target_opts *opts, struct err_why *why)
{
    struct nvmft_keys *keys = NULL;
    struct nvmft_auth_hosts hosts = {.count = 0};
    icms_err err = nvmft_keys_new(opts, why, &keys);

    if (err == ICMS_OK)
        err = nvmft_auth_hosts_init(&hosts, opts, why);
    nvmft_auth_hosts_fini(&hosts);
    nvmft_keys_free(&keys);
    return err;
}

/* Keys were replaced: what was proven with one that is none any more ends. */
static void target_shard_keys(struct loop_msg *msg)
{
    struct nvmft_shard *shard = container_of(msg, struct nvmft_shard, keys_msg);

    atomic_store(&shard->keys_sent, false);
    list_for_each_safe (link, &shard->open)
        nvmft_qpair_judge(container_of(link, struct nvmft_qpair, link));
}

icms_err nvmf_target_keys_read_again(struct nvmf_target *target,
                                     const struct nvmf_target_opts *opts,
                                     nvmf_target_keys_said *said, void *arg, struct err_why *why)
{
    icms_err err = nvmft_auth_hosts_read_again(&target->auth_hosts, opts, said, arg, why);

    if (err == ICMS_OK)
        err = nvmft_keys_read_again(target->keys, opts, said, arg, why);
    for (uint32_t i = 0; i < target->opts.loop_count; i++)
        if (!atomic_exchange(&target->shards[i].keys_sent, true))
            loop_send(target->shards[i].loop, &target->shards[i].keys_msg, target_shard_keys);
    return err;
}

struct loop_region *nvmf_target_region(struct nvmf_target *target)
{
    return target->region;
}

/* All portals together have connections_max connections. Those that listen when one of them cannot
 * are nvmf_target_free's. */
icms_err nvmf_target_open(struct nvmf_target *target, struct err_why *why)
{
    for (uint32_t i = 0; i < target->opts.portal_count; i++) {
        struct nvmft_portal *portal = &target->portals[i];
        icms_err err;

        check(portal->listener == NULL);
        portal->target = target;
        err = target->opts.transport->listen(
            target->opts.loops[0], &target->opts.portals[i].listen, target->opts.connections_max,
            i > 0 ? target->portals[0].listener : NULL, nvmft_registry_accept, portal, why,
            &portal->listener, &portal->addr);
        if (err != ICMS_OK)
            return err;
    }
    target->opened_ns = loop_env_now_ns(loop_env(target->opts.loops[0]));
    return ICMS_OK;
}

void nvmf_target_addr(const struct nvmf_target *target, uint32_t portal, struct loop_addr *out_addr)
{
    check(portal < target->opts.portal_count && target->portals[portal].listener != NULL);
    *out_addr = target->portals[portal].addr;
}

/* ---- drain ---------------------------------------------------------------------------------- */

static void target_shard_drain(struct loop_msg *msg)
{
    struct nvmft_shard *shard = container_of(msg, struct nvmft_shard, drain_msg);

    struct nvmf_target *target = shard->target;

    shard->draining = true;
    for (uint32_t i = 0; shard == &target->shards[0] && i < target->opts.portal_count; i++)
        target->opts.transport->listen_close(target->portals[i].listener);
    target_sweep(&shard->timer);
}

void nvmf_target_drain(struct nvmf_target *target)
{
    if (atomic_exchange(&target->drain_asked, true))
        return;
    for (uint32_t i = 0; i < target->opts.loop_count; i++)
        loop_send(target->shards[i].loop, &target->shards[i].drain_msg, target_shard_drain);
}

bool nvmf_target_idle(const struct nvmf_target *target)
{
    return atomic_load_explicit(&target->connections, memory_order_relaxed) == 0;
}

void nvmf_target_free(struct nvmf_target **target_ref)
{
    struct nvmf_target *target = *target_ref;
    struct nvmft_spaces *spaces;

    *target_ref = NULL;
    if (target == NULL)
        return;
    for (uint32_t i = LIMIT_PORTALS; i-- > 0;)
        if (target->portals[i].listener != NULL)
            target->opts.transport->listen_free(&target->portals[i].listener);
    for (uint32_t i = 0; target->shards != NULL && i < target->opts.loop_count; i++) {
        struct nvmft_shard *shard = &target->shards[i];

        for (uint32_t q = 0; shard->qpairs != NULL && q < shard->qpair_count; q++)
            nvmft_qpair_fini(&shard->qpairs[q]);
        free(shard->qpairs);
        nvmft_buffers_fini(&shard->buffers);
    }
    free(target->shards);
    free(target->rates);
    free(target->ctrls);
    nvmft_hosts_fini(&target->hosts);
    free(target->listed);
    spaces = atomic_load(&target->spaces);
    nvmft_spaces_free(&spaces);
    nvmft_keys_free(&target->keys);
    nvmft_auth_hosts_fini(&target->auth_hosts);
    pthread_mutex_destroy(&target->auth_events.lock);
    pthread_mutex_destroy(&target->slow_lock);
    loop_region_free(&target->region);
    free(target);
}

/* ---- counters ------------------------------------------------------------------------------- */

static void target_stats_tls(const struct net_tls_side *from, struct nvmf_target_stats *stats)
{
    stats->tls_succeeded += atomic_load_explicit(&from->succeeded, memory_order_relaxed);
    stats->tls_refused += atomic_load_explicit(&from->refused, memory_order_relaxed);
    stats->tls_plain += atomic_load_explicit(&from->plain, memory_order_relaxed);
    stats->tls_timeouts += atomic_load_explicit(&from->timeouts, memory_order_relaxed);
    stats->tls_evicted += atomic_load_explicit(&from->evicted, memory_order_relaxed);
    stats->tls_kernel += atomic_load_explicit(&from->open_kernel, memory_order_relaxed);
    stats->tls_mixed += atomic_load_explicit(&from->open_mixed, memory_order_relaxed);
    stats->tls_user += atomic_load_explicit(&from->open_user, memory_order_relaxed);
}

static void target_stats_add(const struct nvmft_shard *shard, struct nvmf_target_stats *stats)
{
    const struct nvmft_counters *from = &shard->counters;

    for (int op = 0; op < NVMF_TARGET_OP_COUNT; op++) {
        for (int err = 0; err < NVMF_TARGET_ERRS; err++)
            stats->ops[op][err] += counter_get(&from->ops[op][err]);
        hist_merge(&stats->op_ns[op], &from->op_ns[op]);
    }
    for (int i = 0; i < NVMF_TARGET_MISSES; i++)
        stats->misses[i] += counter_get(&from->misses[i]);
    stats->bytes_in += counter_get(&from->bytes_in);
    stats->bytes_out += counter_get(&from->bytes_out);
    stats->sheds += counter_get(&from->sheds);
    stats->admin_commands += counter_get(&from->admin_commands);
    stats->protocol_errors += counter_get(&from->protocol_errors);
    stats->timeouts += counter_get(&from->timeouts);
    stats->digest_errors += counter_get(&from->digest_errors);
    stats->slow_hosts += counter_get(&from->slow_hosts);
    stats->settings_differ += counter_get(&from->settings_differ);
    target_stats_tls(&shard->tls, stats);
    stats->auths_passed += counter_get(&from->auths_passed);
    stats->auths_failed += counter_get(&from->auths_failed);
    stats->auths_wanted += counter_get(&from->auths_wanted);
    stats->buffers_bytes += (uint64_t)shard->buffers.pool.pages * NVMFT_POOL_PAGE;
    stats->buffers_used_bytes += counter_get(&from->buffers_used_bytes);
    stats->buffers_parked += counter_get(&from->buffers_parked);
    stats->buffers_parks += counter_get(&from->buffers_parks);
    stats->prestage_parks += counter_get(&from->prestage_parks);
    stats->prestage_expedites += counter_get(&from->prestage_expedites);
}

void nvmf_target_stats(const struct nvmf_target *target, struct nvmf_target_stats *out_stats)
{
    *out_stats = (struct nvmf_target_stats){
        .connections = atomic_load_explicit(&target->connections, memory_order_relaxed),
        .connections_total = atomic_load_explicit(&target->connections_total, memory_order_relaxed),
        .connections_max = target->opts.connections_max,
        .connections_full = counter_get(&target->connections_full),
        .controllers = atomic_load_explicit(&target->controllers, memory_order_relaxed),
        .connects_refused = atomic_load_explicit(&target->connects_refused, memory_order_relaxed),
        .keepalive_timeouts =
            atomic_load_explicit(&target->keepalive_timeouts, memory_order_relaxed),
    };
    for (uint32_t i = 0; i < target->opts.loop_count; i++)
        target_stats_add(&target->shards[i], out_stats);
    out_stats->portal_count = target->opts.portal_count;
    for (uint32_t i = 0; i < target->opts.portal_count; i++) {
        const struct nvmft_portal *portal = &target->portals[i];

        out_stats->portals[i] = (struct nvmf_target_portal_stats){
            .addr = portal->addr,
            .connections = atomic_load_explicit(&portal->connections, memory_order_relaxed),
            .connections_total =
                atomic_load_explicit(&portal->connections_total, memory_order_relaxed),
        };
    }
}

void nvmf_target_tenant_stats(const struct nvmf_target *target, uint32_t tenant,
                              struct nvmf_target_tenant_stats *out_stats)
{
    check(tenant < target->opts.tenant_count);
    *out_stats = (struct nvmf_target_tenant_stats){0};
    for (uint32_t i = 0; i < target->opts.loop_count; i++) {
        const struct nvmft_tenant_counters *from =
            &target->shards[i].buffers.tenants[tenant].counters;

        for (int class = 0; class < NVMF_TARGET_CLASSES; class ++) {
            out_stats->ops[class] += counter_get(&from->ops[class]);
            out_stats->bytes[class] += counter_get(&from->bytes[class]);
            out_stats->waits[class] += counter_get(&from->waits[class]);
            out_stats->wait_ns[class] += counter_get(&from->wait_ns[class]);
        }
        out_stats->sheds += counter_get(&from->sheds);
    }
}

void nvmf_target_slow_host(struct nvmf_target *target, char out_hostnqn[LIMIT_NQN_BYTES])
{
    pthread_mutex_lock(&target->slow_lock);
    memcpy(out_hostnqn, target->slow_host, LIMIT_NQN_BYTES);
    pthread_mutex_unlock(&target->slow_lock);
}
