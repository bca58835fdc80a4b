/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes that change while the enclosure runs (target.h has the life of one).
 *
 *   control thread        target_volumes_change: what shall be is compared with what is; refused,
 * or a struct target_change with all its memory each drive's loop     CHANGE_BEGIN: volumes begin
 * on it. One that cannot: CHANGE_RETIRE on all, and nothing has changed CHANGE_KNOWN: it keeps
 * their generations (generations.c) CHANGE_LIMIT: quotas loop 0 CHANGE_NAMES: nvmf/target changes
 * namespaces, on every loop; from then on no command begins that the change forbids each drive's
 * loop     CHANGE_RETIRE: volumes that are gone control thread target_volumes_changed: what others
 * read of volumes and tenants
 *
 * A command keeps the number that it began with; a number is one volume's for ever. So no command
 * in flight has to be waited for, and none can meet another volume.
 */
#include <stdio.h>
#include <stdlib.h>

#include "target/target_int.h"

/* A drive that writes what it has to know is looked at again after so long. */
#define CHANGE_LOOK_NS ((uint64_t)2 * 1000 * 1000)

enum change_step {
    CHANGE_BEGIN,
    CHANGE_KNOWN,
    CHANGE_LIMIT,
    CHANGE_NAMES,
    CHANGE_RETIRE,
};

/* What happens to the volume of a number. */
struct change_volume {
    bool is_listed;          /* it is live afterwards                        */
    bool begins;             /* and was not                                  */
    bool limits;             /* it was, with another quota                   */
    uint32_t tenant;         /* is_listed                                    */
    uint32_t place;          /* is_listed; in the configuration              */
    struct volume_spec spec; /* is_listed; its hosts are the caller's, and not kept */
};

struct target_change {
    struct target *target;
    struct change_volume volumes[LIMIT_VOLUMES]; /* by number */
    uint32_t count;                              /* numbers used afterwards */
    struct target_tenants tenants;               /* afterwards */
    struct target_generations generations;       /* afterwards */
    bool is_map;                                 /* the volumes are of a pod map */
    struct nvmf_target_change *nvmf;
    enum change_step step;
    uint32_t drive;          /* that is visited */
    struct loop_msg msg;     /* carries it to loop 0, and from loop to loop */
    struct loop_timer timer; /* CHANGE_KNOWN: looks again */
    icms_err err;            /* of CHANGE_BEGIN */
    struct err_why why;
    struct target_refused refused; /* what it is about */
    _Atomic bool is_over;          /* the control thread may take it */
};

/* ---- at the start --------------------------------------------------------------------------- */

void target_volumes_init(struct target *target)
{
    static const struct target_tenants none;
    const struct target_opts *opts = &target->opts;

    target_tenants_list(opts->tenants, opts->tenant_count, &none, &target->tenants);
    target->value_bytes_max = 1;
    for (uint32_t i = 0; i < opts->volume_count; i++) {
        struct target_volume *volume = &target->volumes[i];

        *volume =
            (struct target_volume){.is_known = true,
                                   .is_live = true,
                                   .was_served = true,
                                   .tenant = target_tenant_of(&target->tenants, &opts->volumes[i]),
                                   .spec = opts->volumes[i]};
        check(volume->tenant < TARGET_TENANTS);
        volume->spec.host_nqn = NULL;
        target->sealed[i] = volume_has_runs(&opts->volumes[i]);
        target->value_bytes_max =
            u64_max(target->value_bytes_max, volume_stored_bytes_max(&opts->volumes[i]));
    }
    target->volume_count = opts->volume_count;
    target->tenants_max =
        (uint32_t)u64_min(target->tenants.count + TARGET_TENANTS_SPARE, TARGET_TENANTS);
}

void target_volume_nvmf(const struct target *target, const struct volume_spec *spec,
                        uint32_t tenant, struct nvmf_target_ns *out_ns)
{
    uint64_t capacity = 0;

    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        capacity += target->opts.drives[i].bytes;
    *out_ns = (struct nvmf_target_ns){
        .volume = spec->uuid,
        .size_bytes =
            spec->quota_bytes > 0 ? spec->quota_bytes : u64_max(capacity, (uint64_t)1 << 30),
        .value_bytes_max = (uint32_t)volume_stored_bytes_max(spec),
        .sealed = spec->sealed,
        .encrypted = spec->encrypted,
        .tenant = tenant,
        .host_count = spec->host_count,
        .host_nqn = (const char(*)[LIMIT_NQN_BYTES])spec->host_nqn,
        .require = spec->require,
    };
}

/* ---- what shall be, against what is --------------------------------------------------------- */

static icms_err refuse(struct target_refused *out, uint32_t volume, const char *key, icms_err err)
{
    out->volume = volume;
    out->key = key;
    return err;
}

/* The number that a volume has, or gets; LIMIT_VOLUMES: none is left. */
static uint32_t change_number(const struct target *target, struct target_change *change,
                              const struct volume_spec *spec)
{
    uint32_t n = 0;

    while (n < target->volume_count &&
           !(target->volumes[n].is_known && uuid_equal(&target->volumes[n].spec.uuid, &spec->uuid)))
        n++;
    if (n < target->volume_count)
        return n;
    return change->count < LIMIT_VOLUMES ? change->count++ : LIMIT_VOLUMES;
}

/* The live volume that this one takes the place of, with its name and generation: the same one, or
 * one of another UUID, as with another `encrypted`, which it is made from; NULL: none. */
static const struct volume_spec *change_place(const struct target *target,
                                              const struct volume_spec *spec)
{
    for (uint32_t n = 0; n < target->volume_count; n++) {
        const struct target_volume *volume = &target->volumes[n];

        if (volume->is_live && volume->spec.generation == spec->generation &&
            strcmp(volume->spec.name, spec->name) == 0)
            return &volume->spec;
    }
    return NULL;
}

static icms_err change_format(const struct volume_spec *was, const struct volume_spec *spec,
                              uint32_t i, struct target_refused *out, struct err_why *why)
{
    if (was == NULL || (was->sealed == spec->sealed && was->encrypted == spec->encrypted))
        return ICMS_OK;
    return refuse(out, i, was->sealed != spec->sealed ? "sealed" : "encrypted",
                  err_set(why, ICMS_CONFIG,
                          "volume %s: its blocks are %s; raise `generation` to begin anew with "
                          "this",
                          spec->name,
                          was->sealed != spec->sealed ? was->sealed ? "sealed" : "not sealed"
                          : was->encrypted            ? "encrypted"
                                                      : "not encrypted"));
}

/* Blocks are not read the other way, and none are lost that no generation gives up; of a map that
 * was asked before (conf_pod_compare()). was: the volume of this UUID; NULL: none was served. */
static icms_err change_identity(const struct target *target, const struct target_opts *opts,
                                uint32_t i, const struct volume_spec *was,
                                struct target_refused *out, struct err_why *why)
{
    const struct volume_spec *spec = &opts->volumes[i];
    const struct volume_spec *place = opts->pod != NULL ? NULL : change_place(target, spec);
    icms_err err = change_format(place, spec, i, out, why);

    if (err == ICMS_OK)
        err = change_format(was, spec, i, out, why);
    if (err != ICMS_OK || place == NULL || uuid_equal(&place->uuid, &spec->uuid))
        return err;
    return refuse(out, i, "uuid",
                  err_set(why, ICMS_CONFIG,
                          "volume %s: it has another `uuid`, and its blocks would be evicted; put "
                          "the one of before back, or raise `generation` to begin anew",
                          spec->name));
}

static icms_err change_check(const struct target *target, const struct target_opts *opts,
                             uint32_t i, const struct volume_spec *was, struct target_refused *out,
                             struct err_why *why)
{
    const struct volume_spec *spec = &opts->volumes[i];
    const char *key;
    icms_err err = target_generation_check(&target->generations, spec, &key, why);

    if (err != ICMS_OK)
        return refuse(out, i, key, err);
    err = change_identity(target, opts, i, was, out, why);
    if (err != ICMS_OK)
        return err;
    if (volume_stored_bytes_max(spec) > target->value_bytes_max)
        return refuse(out, i, "value_max",
                      err_set(why, ICMS_CONFIG,
                              "volume %s: its values may have %llu bytes with their trailers, and "
                              "buffers were made for %llu; restart icms-target, or lower it",
                              spec->name, (unsigned long long)volume_stored_bytes_max(spec),
                              (unsigned long long)target->value_bytes_max));
    err = target_drives_quota_check(target, target_drives_after(target), spec, why);
    return err == ICMS_OK ? ICMS_OK : refuse(out, i, "quota", err);
}

/* Compares; nothing is changed. */
static icms_err change_plan(const struct target *target, const struct target_opts *opts,
                            struct target_change *change, struct target_refused *out,
                            struct err_why *why)
{
    target_tenants_list(opts->tenants, opts->tenant_count, &target->tenants, &change->tenants);
    if (change->tenants.count > target->tenants_max)
        return refuse(out, UINT32_MAX, "tenants",
                      err_set(why, ICMS_LIMIT,
                              "tenants: more than %u that were new began since the start; restart "
                              "icms-target",
                              TARGET_TENANTS_SPARE));
    change->count = target->volume_count;
    change->generations = target->generations;
    target_epoch_add(&change->generations, opts);
    change->is_map = opts->pod != NULL;
    for (uint32_t i = 0; i < opts->volume_count; i++) {
        const struct volume_spec *spec = &opts->volumes[i];
        uint32_t n = change_number(target, change, spec);
        const struct target_volume *was = n < target->volume_count ? &target->volumes[n] : NULL;
        uint32_t tenant = target_tenant_of(&change->tenants, spec);
        struct change_volume *volume;
        icms_err err;

        if (n == LIMIT_VOLUMES)
            return refuse(out, i, "",
                          err_set(why, ICMS_LIMIT,
                                  "volume %s: %u volumes began since the start, as many as may; "
                                  "restart icms-target",
                                  spec->name, LIMIT_VOLUMES));
        err = change_check(target, opts, i, was != NULL && was->was_served ? &was->spec : NULL, out,
                           why);
        if (err != ICMS_OK)
            return err;
        if (tenant >= target->tenants_max)
            return refuse(out, i, "tenant",
                          err_set(why, ICMS_LIMIT,
                                  "volume %s: %u tenants that were new began since the start, as "
                                  "many as may; name one of before as its `tenant`, or restart "
                                  "icms-target",
                                  spec->name, TARGET_TENANTS_SPARE));
        volume = &change->volumes[n];
        *volume = (struct change_volume){.is_listed = true,
                                         .begins = was == NULL || !was->is_live,
                                         .limits = was != NULL && was->is_live &&
                                                   was->spec.quota_bytes != spec->quota_bytes,
                                         .tenant = tenant,
                                         .place = i,
                                         .spec = *spec};
        target_generation_add(&change->generations, spec);
    }
    return ICMS_OK;
}

/* All namespaces, for nvmf/target. */
static icms_err change_nvmf(struct target_change *change, struct err_why *why)
{
    const struct target *target = change->target;
    struct nvmf_target_ns *namespaces = calloc(change->count + 1, sizeof(*namespaces));
    struct nvmf_target_tenant *tenants = target_tenants_nvmf(&change->tenants);
    icms_err err;

    if (namespaces == NULL || tenants == NULL) {
        free(namespaces);
        free(tenants);
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    }
    for (uint32_t n = 0; n < change->count; n++) {
        const struct change_volume *volume = &change->volumes[n];

        if (volume->is_listed) {
            target_volume_nvmf(target, &volume->spec, volume->tenant, &namespaces[n]);
        } else {
            target_volume_nvmf(target, &target->volumes[n].spec, target->volumes[n].tenant,
                               &namespaces[n]);
            namespaces[n].is_gone = true;
            namespaces[n].host_count = 0;
        }
    }
    err = nvmf_target_change_new(target->nvmf, namespaces, change->count, tenants, why,
                                 &change->nvmf);
    free(namespaces);
    free(tenants);
    return err;
}

/* ---- from loop to loop ---------------------------------------------------------------------- */

static void change_run(struct loop_msg *msg);

static void change_named(void *arg)
{
    struct target_change *change = arg;

    change->step = CHANGE_RETIRE;
    change->drive = 0;
    change_run(&change->msg);
}

/* Volumes that begin; the first that cannot is why the change is refused. */
static void drive_begin(struct target_change *change, struct target_drive *drive)
{
    for (uint32_t n = 0; n < change->count && change->err == ICMS_OK; n++) {
        const struct change_volume *volume = &change->volumes[n];
        struct err_why why = {""};

        if (!volume->begins)
            continue;
        change->err = store_volume_begin(drive->store, n, &volume->spec.uuid, &why);
        if (change->err == ICMS_OK)
            change->err = target_drive_limit(drive, n, volume->spec.quota_bytes, &why);
        if (change->err != ICMS_OK)
            change->refused = (struct target_refused){.volume = volume->place, .key = ""};
        if (change->err == ICMS_BUSY)
            err_set(&change->why, ICMS_BUSY,
                    "volume %s: drive%u has blocks of it from before the start; restart "
                    "icms-target to have them back, or raise `generation` to begin without",
                    volume->spec.name, drive->index);
        else if (change->err != ICMS_OK)
            err_set(&change->why, change->err, "drive%u: %.400s", drive->index, why.text);
    }
}

static void change_fire(struct loop_timer *timer)
{
    change_run(&container_of(timer, struct target_change, timer)->msg);
}

/* False: the drive writes them, and is looked at again. */
static bool drive_known(struct target_change *change, struct target_drive *drive)
{
    if (!target_drive_in(change->target, drive->index) ||
        target_generations_know(drive, &change->generations))
        return true;
    loop_timer_start(drive->loop, &change->timer, loop_now_ns(drive->loop) + CHANGE_LOOK_NS);
    return false;
}

static void drive_limit(const struct target_change *change, struct target_drive *drive)
{
    for (uint32_t n = 0; n < change->count; n++) {
        struct err_why why = {""};

        /* it was limited before, so nothing is taken that could be missing */
        if (change->volumes[n].limits)
            check(target_drive_limit(drive, n, change->volumes[n].spec.quota_bytes, &why) ==
                  ICMS_OK);
    }
    store_quota_look(drive->store);
}

/* Those that are gone, or of a change that is refused those that began, or may have. */
static void drive_retire(const struct target_change *change, const struct target_drive *drive)
{
    for (uint32_t n = 0; n < change->count; n++)
        if (change->err != ICMS_OK
                ? change->volumes[n].begins
                : change->target->volumes[n].is_live && !change->volumes[n].is_listed)
            store_volume_retire(drive->store, n);
}

/* The step is done on all drives; false: it is over. On loop 0. */
static bool change_next(struct target_change *change)
{
    struct target *target = change->target;

    change->drive = 0;
    switch (change->step) {
    case CHANGE_BEGIN:
        change->step = change->err == ICMS_OK ? CHANGE_KNOWN : CHANGE_RETIRE;
        return true;
    case CHANGE_KNOWN:
        change->step = CHANGE_LIMIT;
        for (uint32_t n = 0; n < change->count; n++)
            if (change->volumes[n].limits)
                target_volume_quota(target, n, change->volumes[n].spec.quota_bytes);
        return true;
    case CHANGE_LIMIT:
        change->step = CHANGE_NAMES;
        nvmf_target_change_start(target->nvmf, change->nvmf, change_named, change);
        return true;
    case CHANGE_NAMES:
    case CHANGE_RETIRE:
        break;
    }
    atomic_store_explicit(&change->is_over, true, memory_order_release);
    return false;
}

/* The next drive that has a store; NULL: all had their turn. */
static struct target_drive *change_drive(struct target_change *change)
{
    struct target *target = change->target;

    while (change->drive < LIMIT_DRIVES && target->drives[change->drive].store == NULL)
        change->drive++;
    return change->drive < LIMIT_DRIVES ? &target->drives[change->drive] : NULL;
}

/* On the loop where the change is: its step there, or on to where that is. */
static void change_run(struct loop_msg *msg)
{
    struct target_change *change = container_of(msg, struct target_change, msg);
    struct target_drive *drive;

    while (change->step != CHANGE_NAMES) {
        struct loop *loop;

        drive = change_drive(change);
        loop = drive != NULL ? drive->loop : change->target->loops[0];
        if (!loop_is_mine(loop)) {
            loop_send(loop, &change->msg, change_run);
            return;
        }
        if (drive == NULL) {
            if (!change_next(change))
                return;
            continue;
        }
        if (change->step == CHANGE_KNOWN) {
            if (!drive_known(change, drive))
                return;
        } else if (change->step == CHANGE_BEGIN) {
            drive_begin(change, drive);
        } else if (change->step == CHANGE_LIMIT) {
            drive_limit(change, drive);
        } else {
            drive_retire(change, drive);
        }
        change->drive++;
    }
}

/* ---- the control thread --------------------------------------------------------------------- */

static void change_free(struct target_change **change)
{
    if (*change == NULL)
        return;
    nvmf_target_change_free(&(*change)->nvmf);
    free(*change);
    *change = NULL;
}

/* New numbers, and those that a refused change left, have their volumes at once, retired: drives
 * may speak of them before it is over. */
static void change_numbers(struct target *target, const struct target_change *change)
{
    target_lock(target);
    for (uint32_t n = 0; n < change->count; n++) {
        if (!change->volumes[n].begins || target->volumes[n].was_served)
            continue;
        target->volumes[n] = (struct target_volume){
            .is_known = true, .tenant = change->volumes[n].tenant, .spec = change->volumes[n].spec};
        target->volumes[n].spec.host_nqn = NULL;
        target->sealed[n] = volume_has_runs(&change->volumes[n].spec);
    }
    target_unlock(target);
    for (uint32_t n = 0; n < change->count; n++)
        if (change->volumes[n].begins)
            target_volume_quota(target, n, change->volumes[n].spec.quota_bytes);
}

icms_err target_volumes_change(struct target *target, const struct target_opts *opts,
                               struct target_refused *out_refused, struct err_why *why)
{
    struct target_change *change;
    icms_err err;

    check(opts->volume_count <= LIMIT_VOLUMES && opts->tenant_count <= LIMIT_TENANTS);
    *out_refused = (struct target_refused){.volume = UINT32_MAX, .key = ""};
    if (target->change != NULL || target_drives_changing(target))
        return err_set(why, ICMS_BUSY, "the change before is not over");
    change = calloc(1, sizeof(*change));
    if (change == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    change->target = target;
    loop_timer_init(&change->timer, change_fire);
    err = change_plan(target, opts, change, out_refused, why);
    if (err == ICMS_OK)
        err = change_nvmf(change, why);
    if (err != ICMS_OK) {
        change_free(&change);
        return err;
    }
    change_numbers(target, change);
    target->change = change;
    loop_send(target->loops[0], &change->msg, change_run);
    return ICMS_OK;
}

/* What others read. A volume that could not begin keeps its number, retired: drives may know it. */
static void change_publish(struct target *target, struct target_change *change)
{
    if (change->err == ICMS_OK)
        target->generations = change->generations;
    if (change->is_map)
        target_epoch_tell(target);
    target_lock(target);
    target->volume_count = change->count;
    for (uint32_t n = 0; n < change->count && change->err == ICMS_OK; n++) {
        struct target_volume *volume = &target->volumes[n];

        volume->is_live = change->volumes[n].is_listed;
        if (!volume->is_live)
            continue;
        volume->was_served = true;
        volume->tenant = change->volumes[n].tenant;
        volume->spec = change->volumes[n].spec;
        volume->spec.host_nqn = NULL;
    }
    if (change->err == ICMS_OK)
        target->tenants = change->tenants;
    target_unlock(target);
}

bool target_volumes_changed(struct target *target, icms_err *out_err,
                            struct target_refused *out_refused, struct err_why *why)
{
    struct target_change *change = target->change;

    if (change == NULL || !atomic_load_explicit(&change->is_over, memory_order_acquire))
        return false;
    change_publish(target, change);
    *out_err = change->err;
    *out_refused = change->refused;
    *why = change->why;
    change_free(&target->change);
    return true;
}

void target_volume_name(const struct target *target, uint32_t number, char out[LIMIT_NAME_BYTES])
{
    out[0] = '\0';
    if (number >= LIMIT_VOLUMES)
        return;
    target_lock(target);
    memcpy(out, target->volumes[number].spec.name, LIMIT_NAME_BYTES);
    target_unlock(target);
}

void target_volumes_fini(struct target *target)
{
    change_free(&target->change);
}
