/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The enclosure as a whole: loops, buffers, drives and the NVMe side joined, started and ended.
 *
 * Life: target_new -> target_start -> (target_drain) -> target_stop -> target_free, all on one
 * control thread; readiness and counters from any thread.
 */
#include "target/target.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "target/target_int.h"

void target_opts_init(struct target_opts *opts)
{
    *opts = (struct target_opts){
        .name = "icms-target",
        .loops = 1,
        .segment_bytes = (uint64_t)64 << 20,
        .discard = true,
        .ready_out_percent_max = 100,
    };
    nvmf_target_opts_init(&opts->nvmf);
    opts->nvmf.store_backlog_bytes = 0;
}

/* ---- making --------------------------------------------------------------------------------- */

static icms_err target_loops_new(struct target *target, struct err_why *why)
{
    for (uint32_t i = 0; i < target->opts.loops; i++) {
        struct loop_opts opts;
        char name[24];
        icms_err err;

        loop_opts_init(&opts);
        snprintf(name, sizeof(name), "icms-%u", i);
        opts.name = name;
        opts.busy_poll = target->opts.busy_poll;
        opts.poll_us = target->opts.poll_us;
        err = loop_new(target->opts.env, &opts, why, &target->loops[i]);
        if (err != ICMS_OK)
            return err;
    }
    return ICMS_OK;
}

static icms_err target_nvmf_new(struct target *target, struct err_why *why)
{
    const struct target_opts *opts = &target->opts;
    struct nvmf_target_ns *namespaces = calloc(u64_max(opts->volume_count, 1), sizeof(*namespaces));
    struct nvmf_target_opts nvmf = opts->nvmf;
    struct nvmf_target_tenant *tenants;
    icms_err err;

    target_volumes_init(target);
    tenants = target_tenants_nvmf(&target->tenants);
    if (namespaces == NULL || tenants == NULL) {
        free(namespaces);
        free(tenants);
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < opts->volume_count; i++)
        target_volume_nvmf(target, &opts->volumes[i], target->volumes[i].tenant, &namespaces[i]);
    nvmf.serial = uuid_serial(&nvmf.enclosure, target->serial);
    nvmf.loops = target->loops;
    nvmf.loop_count = opts->loops;
    nvmf.namespaces = namespaces;
    nvmf.namespace_count = opts->volume_count;
    nvmf.tenants = tenants;
    nvmf.tenant_count = target->tenants_max;
    nvmf.host_connections_max = (uint32_t)u64_max(nvmf.connections_max / 2, 2);
    if (nvmf.store_backlog_bytes == 0)
        nvmf.store_backlog_bytes = 2 * nvmf.memory_bytes;
    nvmf.headroom_bytes = STORE_HEADER_BYTES;
    nvmf.owner_req_bytes = sizeof(struct target_req);
    nvmf.ops = &target_nvmf_ops;
    nvmf.owner = target;
    err = nvmf_target_new(&nvmf, why, &target->nvmf);
    free(namespaces);
    free(tenants);
    return err;
}

/* Disk reads and writes are cheaper from pinned memory; without, they work as well. */
static void target_pin(struct target *target)
{
    for (uint32_t i = 0; i < target->opts.loops; i++) {
        struct err_why why = {""};

        if (loop_region_register(target->loops[i], nvmf_target_region(target->nvmf), &why) !=
            ICMS_OK) {
            target_warn(target, "data buffers are not pinned: %.400s", why.text);
            return;
        }
    }
}

static icms_err target_make(struct target *target, struct err_why *why)
{
    icms_err err = target_loops_new(target, why);

    if (err == ICMS_OK)
        err = target_nvmf_new(target, why);
    if (err != ICMS_OK)
        return err;
    target_pin(target);
    target->lists = calloc(target->opts.loops, sizeof(*target->lists));
    target->books = calloc(target->opts.loops, sizeof(*target->books));
    target->keys = calloc(target->opts.loops, TARGET_KEY_CHAINS * sizeof(*target->keys));
    if (target->lists == NULL || target->books == NULL || target->keys == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < target->opts.loops; i++) {
        list_init(&target->lists[i].parked);
        if (trace_book_init(&target->books[i]) != ICMS_OK)
            return err_set(why, ICMS_NO_MEMORY, "no memory for traces of commands");
    }
    for (uint32_t i = 0; i < target->opts.loops * TARGET_KEY_CHAINS; i++)
        list_init(&target->keys[i]);
    return target_drives_open(target, why);
}

icms_err target_new(const struct target_opts *opts, struct err_why *why, struct target **out_target)
{
    struct target *target;
    icms_err err;

    check(opts->env != NULL && opts->nvmf.nqn != NULL);
    err = target_check(opts, why);
    if (err != ICMS_OK)
        return err;
    target = calloc(1, sizeof(*target));
    if (target == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    target->opts = *opts;
    for (uint32_t i = 0; i < opts->drive_count; i++)
        target->drive_opts[i] = opts->drives[i];
    target->opts.drives = target->drive_opts;
    check(opts->tenant_count <= LIMIT_TENANTS);
    check(pthread_mutex_init(&target->lock, NULL) == 0);
    err = target_make(target, why);
    target->opts.volumes = NULL; /* they were copied */
    target->opts.volume_count = 0;
    target->opts.tenants = NULL;
    target->opts.pod = NULL;
    if (err != ICMS_OK) {
        target_free(&target);
        return err;
    }
    target->started_ns = loop_env_now_ns(opts->env);
    *out_target = target;
    return ICMS_OK;
}

/* ---- running -------------------------------------------------------------------------------- */

icms_err target_start(struct target *target, struct err_why *why)
{
    icms_err err = nvmf_target_open(target->nvmf, why);

    if (err != ICMS_OK)
        return err;
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        if (target->drives[i].store != NULL)
            target_slow_start(&target->drives[i]);
    for (uint32_t i = 0; i < target->opts.loops; i++) {
        err = loop_start(target->loops[i], why);
        if (err != ICMS_OK) {
            target->started = i;
            target_stop(target);
            return err;
        }
    }
    target->started = target->opts.loops;
    atomic_store(&target->is_serving, true);
    return ICMS_OK;
}

struct nvmf_target *target_nvmf(const struct target *target)
{
    return target->nvmf;
}

void target_drain(struct target *target)
{
    atomic_store(&target->draining, true);
    nvmf_target_drain(target->nvmf);
}

void target_stop(struct target *target)
{
    for (uint32_t i = 0; i < target->started; i++)
        loop_stop(target->loops[i]);
    for (uint32_t i = 0; i < target->started; i++)
        loop_join(target->loops[i]);
    target->started = 0;
}

void target_free(struct target **target_ref)
{
    struct target *target = *target_ref;

    *target_ref = NULL;
    if (target == NULL)
        return;
    for (uint32_t i = 0; i < target->opts.loops; i++)
        loop_free(&target->loops[i]);
    nvmf_target_free(&target->nvmf);
    target_drives_close(target);
    for (uint32_t i = 0; i < target->opts.loops && target->books != NULL; i++)
        trace_book_fini(&target->books[i]);
    free(target->books);
    free(target->keys);
    free(target->lists);
    target_volumes_fini(target);
    pthread_mutex_destroy(&target->lock);
    free(target);
}

/* ---- asked from outside --------------------------------------------------------------------- */

static bool target_quota_fine(const struct target *target, struct err_why *why)
{
    double limit = target->opts.ready_quota_percent_max;
    bool fine = true;

    for (uint32_t v = 0; v < target->volume_count && fine; v++) {
        const struct volume_spec *volume = &target->volumes[v].spec;
        double used;

        if (!target->volumes[v].is_live || limit <= 0 || volume->quota_bytes == 0)
            continue;
        used = (double)target_nvmf_ops.used_bytes((void *)(uintptr_t)target, v);
        fine = used * 100 <= limit * (double)volume->quota_bytes;
        if (!fine)
            err_set(why, ICMS_LIMIT, "volume %s uses %.1f %% of its quota, the limit is %.1f %%",
                    volume->name, used * 100 / (double)volume->quota_bytes, limit);
    }
    return fine;
}

/* Appends the names of drives; a long list is cut. */
static void ready_names(const struct target *target, const char *what, uint32_t drives,
                        struct err_why *why)
{
    size_t used = strlen(why->text);

    if (drives == 0 || used >= sizeof(why->text) - 1)
        return;
    used += (size_t)snprintf(why->text + used, sizeof(why->text) - used,
                             "%s%u of %u drives %s:", used > 0 ? "; " : "",
                             (unsigned)__builtin_popcount(drives), target_listed(target), what);
    for (uint32_t i = 0; i < LIMIT_DRIVES && used < sizeof(why->text); i++)
        if ((drives >> i & 1) != 0)
            used += (size_t)snprintf(why->text + used, sizeof(why->text) - used, " drive%u (%s)", i,
                                     target->drives[i].path);
}

/* Statistics of a drive that is in service; false: it is not. */
static bool ready_stats(const struct target *target, uint32_t i, struct store_stats *out_stats)
{
    const struct store *store = target->drives[i].store; /* it may leave meanwhile */

    if (store == NULL || !target_drive_in(target, i))
        return false;
    store_stats(store, out_stats);
    return true;
}

/* Whether a drive has had few free segments for long. */
static bool ready_is_low(const struct target *target)
{
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        struct store_stats stats;

        if (ready_stats(target, i, &stats) && stats.free_low_ns != 0 &&
            loop_env_now_ns(target->opts.env) >=
                u64_max(stats.free_low_ns, target->started_ns) + TARGET_LOW_NS)
            return true;
    }
    return false;
}

/* What is not as it should be with the drives. */
static void ready_drives(const struct target *target, uint32_t out, struct err_why *why)
{
    uint32_t slow = 0, full = 0;

    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        struct store_stats stats;

        if (!ready_stats(target, i, &stats))
            continue;
        slow |= (uint32_t)target_drive_slow(target, i) << i;
        full |= (uint32_t)stats.full << i;
    }
    why->text[0] = '\0';
    ready_names(target, "out of service", out, why);
    ready_names(target, "slow", slow, why);
    ready_names(target, "without space", full, why);
}

static bool ready_look(const struct target *target, struct err_why *why)
{
    uint32_t listed = atomic_load(&target->listed), out = listed & ~target_in(target);
    uint32_t out_count = (uint32_t)__builtin_popcount(out);

    if (!atomic_load(&target->is_serving)) {
        err_set(why, ICMS_CLOSED, "starting");
        return false;
    }
    if (atomic_load(&target->draining)) {
        err_set(why, ICMS_CLOSED, "draining");
        return false;
    }
    if (out == listed) {
        err_set(why, ICMS_DRIVE_DOWN, "no drive is in service");
        return false;
    }
    if (ready_is_low(target)) {
        err_set(why, ICMS_NO_SPACE, "free segments are under the low-water mark");
        return false;
    }
    if (!target_quota_fine(target, why))
        return false;
    ready_drives(target, out, why);
    return out_count * 100.0 <= target->opts.ready_out_percent_max * target_listed(target);
}

bool target_ready(const struct target *target, struct err_why *why)
{
    bool ready;

    target_lock(target);
    ready = ready_look(target, why);
    target_unlock(target);
    return ready;
}

/* Of a volume's last load that counts; UINT64_MAX: there was none. */
static uint64_t loaded_age_ns(const struct target *target, uint32_t v)
{
    uint64_t last_ns = 0, now_ns;

    for (uint32_t i = 0; i < LIMIT_DRIVES; i++)
        last_ns =
            u64_max(last_ns, atomic_load_explicit(&target->loaded_ns[i][v], memory_order_relaxed));
    now_ns = loop_env_now_ns(target->opts.env); /* behind the loads that were seen */
    if (last_ns == 0)
        return UINT64_MAX;
    return now_ns > last_ns ? now_ns - last_ns : 0;
}

static void target_stats_volume(const struct target *target, uint32_t v,
                                struct target_volume_stats *out)
{
    const struct volume_spec *spec = &target->volumes[v].spec;

    out->number = v;
    out->uuid = spec->uuid;
    memcpy(out->name, spec->name, sizeof(out->name));
    out->generation = spec->generation;
    out->encrypted = spec->encrypted;
    out->require = spec->require;
    out->store.quota_bytes = spec->quota_bytes;
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        const struct target_drive *drive = &target->drives[i];
        const struct store *store = drive->store; /* it may leave meanwhile */
        struct store_volume_stats stats;

        if (store == NULL || drive->is_leaving)
            continue;
        store_volume_stats(store, v, &stats);
        out->hits += counter_get(&drive->hits[v]);
        out->store.blocks += stats.blocks;
        out->store.bytes += stats.bytes;
        out->store.evictions += stats.evictions;
    }
}

static void state_names(const char *out_names[TARGET_REQ_STATES])
{
    for (uint32_t i = 0; i < TARGET_REQ_STATES; i++)
        out_names[i] = target_states[i].name;
}

_Static_assert(TARGET_REQ_STATES <= TARGET_STATS_STATES && TARGET_REQ_STATES <= TRACE_STATES,
               "room for every state");

void target_stats(const struct target *target, struct target_stats *out_stats)
{
    const char *names[TARGET_REQ_STATES];

    memset(out_stats, 0, sizeof(*out_stats));
    state_names(names);
    out_stats->name = target->opts.name;
    out_stats->nqn = target->opts.nvmf.nqn;
    out_stats->uuid = target->opts.nvmf.enclosure;
    for (uint32_t i = 0; i < target->opts.loops; i++)
        trace_stats_add(&target->books[i], names, TARGET_REQ_STATES, out_stats->states);
    nvmf_target_stats(target->nvmf, &out_stats->nvmf);
    out_stats->quota_errors = atomic_load_explicit(&target->quota_errors, memory_order_relaxed);
    target_lock(target);
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        const struct target_drive *drive = &target->drives[i];
        const struct store *store = drive->store; /* it may leave meanwhile; freed with the lock */
        struct target_drive_stats *out = &out_stats->drives[out_stats->drive_count];

        if ((atomic_load(&target->listed) >> i & 1) == 0)
            continue;
        out_stats->drive_count++;
        out->number = i;
        memcpy(out->path, drive->path, sizeof(out->path));
        out->part_percent = drive->part_percent;
        out->moved = counter_get(&drive->move.moved);
        out->drains = (atomic_load(&target->drains) >> i & 1) != 0;
        out->is_stuck =
            out->drains && atomic_load_explicit(&drive->move.is_full, memory_order_relaxed);
        out->out = !target_drive_in(target, i);
        out->slow = target_drive_slow(target, i);
        out->slow_total = atomic_load_explicit(&drive->slow_total, memory_order_relaxed);
        memcpy(out->why, drive->why, sizeof(out->why));
        hist_merge(&out->read_ns, &drive->read_ns);
        hist_merge(&out->write_ns, &drive->write_ns);
        if (store == NULL)
            continue;
        store_stats(store, &out->store);
        out->is_stuck = out->is_stuck && out->store.blocks > 0;
        hist_merge(&out->evicted_age_ns, out->store.evicted_age_ns);
        out->store.evicted_age_ns = NULL;
        if (out->out)
            continue;
        out_stats->capacity_bytes += out->store.capacity_bytes;
        out_stats->used_bytes += out->store.used_bytes;
    }
    out_stats->up_ns = loop_env_now_ns(target->opts.env) - target->started_ns;
    out_stats->loaded_age_ns = UINT64_MAX;
    target_tenants_stats(target, out_stats);
    for (uint32_t v = 0; v < target->volume_count; v++) {
        uint64_t age_ns = loaded_age_ns(target, v);

        out_stats->loaded_age_ns = u64_min(out_stats->loaded_age_ns, age_ns);
        if (!target->volumes[v].is_live)
            continue;
        target_stats_volume(target, v, &out_stats->volumes[out_stats->volume_count]);
        out_stats->volumes[out_stats->volume_count++].loaded_age_ns = age_ns;
    }
    target_unlock(target);
}

uint32_t target_connected(const struct target *target,
                          struct nvmf_target_connected out[NVMF_TARGET_CONNECTED],
                          uint32_t *out_more)
{
    return nvmf_target_connected(target->nvmf, loop_env_now_ns(target->opts.env), out, out_more);
}

/* Called for one trace after the other, which copies the name. */
static const char *target_trace_volume(void *arg, uint32_t volume)
{
    static _Thread_local char name[LIMIT_NAME_BYTES];

    target_volume_name(arg, volume, name);
    return name;
}

static const char *target_trace_drive(void *arg, uint32_t drive)
{
    static _Thread_local char path[LIMIT_PATH_BYTES];
    const struct target *target = arg;

    target_lock(target);
    memcpy(path, target->drives[drive].path, sizeof(path));
    target_unlock(target);
    return path;
}

char *target_trace(struct target *target, const struct key *key)
{
    const char *ops[NVMF_TARGET_OP_COUNT], *states[TARGET_REQ_STATES];
    const struct trace_names names = {.ops = ops,
                                      .op_count = NVMF_TARGET_OP_COUNT,
                                      .states = states,
                                      .state_count = TARGET_REQ_STATES,
                                      .volume = target_trace_volume,
                                      .place = target_trace_drive,
                                      .place_is = "drive",
                                      .key_bytes = LIMIT_RUN_BYTES,
                                      .arg = target};
    struct trace_book *books[LIMIT_LOOPS];

    state_names(states);
    for (int i = 0; i < NVMF_TARGET_OP_COUNT; i++)
        ops[i] = nvmf_target_op_name((enum nvmf_target_op)i);
    for (uint32_t i = 0; i < target->opts.loops; i++)
        books[i] = &target->books[i];
    return trace_text(books, target->opts.loops, key, &names, loop_env_now_ns(target->opts.env));
}

bool target_error_take(struct target *target, uint32_t drive, struct store_error *out_error,
                       uint64_t *out_missed)
{
    struct store *store;
    bool is_taken;

    check(drive < LIMIT_DRIVES);
    target_lock(target);
    store = target->drives[drive].store;
    is_taken = store != NULL && store_error_take(store, out_error, out_missed);
    target_unlock(target);
    return is_taken;
}

struct loop *target_loop(struct target *target, uint32_t index)
{
    check(index < target->opts.loops);
    return target->loops[index];
}
