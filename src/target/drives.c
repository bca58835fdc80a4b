/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drives of an enclosure: opened at start, put in order for placement, taken out when they
 * fail.
 *
 * target_drives_open runs before the loops start; drive_down on the loop of its drive. A drive goes
 * out of service once and for all: only a restart looks at it again. Drives that come and go while
 * the loops run: drives_change.c.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "target/target_int.h"

void target_warn(struct target *target, const char *format, ...)
{
    char sentence[ERR_WHY_BYTES_MAX];
    va_list args;

    if (target->opts.warned == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    target->opts.warned(sentence);
}

static void drive_down(void *arg)
{
    struct target_drive *drive = arg;

    atomic_fetch_or_explicit(&drive->target->out, (uint32_t)1 << drive->index,
                             memory_order_acq_rel);
}

static void drive_opts(const struct target_drive *drive, struct store_opts *opts)
{
    target_store_opts(&drive->target->opts, &drive->given, opts);
    opts->value_bytes_max = drive->target->value_bytes_max;
    opts->hash_seed = drive->target->hash_seed;
}

icms_err target_drive_format(struct target_drive *drive, bool overwrite, struct err_why *why)
{
    struct loop_env *env = drive->target->opts.env;
    struct store_opts opts;
    icms_err err;

    drive_opts(drive, &opts);
    err = store_format(env, &opts, overwrite, why);
    if (err == ICMS_OK || err == ICMS_EXISTS)
        err = store_note_read(env, drive->path, why, &drive->uuid, &drive->note, &drive->note_lost);
    return target_drive_unformatted(drive->index, err, why);
}

/* Formatting is never silent. */
static void drive_formatted(const struct target_drive *drive, bool any,
                            const struct store_contents *before)
{
    const char *cause = "it held nothing";

    if (any)
        cause = "--format names it";
    else if (before->holds == STORE_HOLDS_NO_FILE)
        cause = "the file was missing, and is made";
    target_warn(drive->target, "drive %u (%.200s): formatted: %s; it holds no blocks now",
                drive->index, drive->path, cause);
}

/* An empty drive is formatted, and any with TARGET_FORMAT_ANY. */
static icms_err drive_prepare(struct target_drive *drive, struct err_why *why)
{
    const struct target_opts *opts = &drive->target->opts;
    bool any = drive->given.format == TARGET_FORMAT_ANY;
    struct err_why note = {""};
    struct store_contents found = {.holds = STORE_HOLDS_STORE};
    icms_err err =
        any ? ICMS_OK : target_drive_look(opts, &drive->given, drive->index, why, &found, &note);

    if (note.text[0] != '\0')
        target_warn(drive->target, "%s", note.text);
    if (err == ICMS_OK && (any || found.holds != STORE_HOLDS_STORE)) {
        err = target_drive_format(drive, any, why);
        if (err == ICMS_OK)
            drive_formatted(drive, any, &found);
        return err;
    }
    return err == ICMS_OK ? target_drive_format(drive, false, why) : err;
}

static void drive_quota_look(struct loop_msg *msg)
{
    struct target_drive *drive = container_of(msg, struct target_drive, quota_msg);

    atomic_store(&drive->quota_sent,
                 false); /* first: what is told from now on is looked at again */
    if (drive->store != NULL)
        store_quota_look(drive->store);
}

/* The other drives look at the quotas. On the loop of the drive that says so. */
static void drive_quota(void *arg)
{
    struct target_drive *drive = arg;
    struct target *target = drive->target;

    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        struct target_drive *other = &target->drives[i];

        if (other != drive && other->store != NULL && !atomic_exchange(&other->quota_sent, true))
            loop_send(other->loop, &other->quota_msg, drive_quota_look);
    }
}

void target_drive_init(struct target *target, uint32_t index, const struct target_drive_opts *given)
{
    struct target_drive *drive = &target->drives[index];

    drive->target = target;
    drive->index = index;
    drive->given = *given;
    (void)snprintf(drive->path, sizeof(drive->path), "%s", given->path);
    drive->given.path = drive->path;
    drive->loop = target->loops[index % target->opts.loops];
    list_init(&drive->note_waiting);
    drive->move.volume = UINT32_MAX;
    drive->part_percent = 100;
}

void target_drive_fini(struct target_drive *drive)
{
    free(drive->probe_memory);
    free(drive->move.memory);
    memset(drive, 0, sizeof(*drive));
}

icms_err target_drive_open(struct target_drive *drive, struct err_why *why,
                           struct store **out_store)
{
    struct target *target = drive->target;
    struct uuid *volumes = calloc(u64_max(target->volume_count, 1), sizeof(*volumes));
    struct store_stats stats;
    struct store_opts opts;
    icms_err err;

    if (volumes == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    for (uint32_t v = 0; v < target->volume_count; v++)
        volumes[v] = target->volumes[v].spec.uuid;
    drive_opts(drive, &opts);
    opts.volumes = volumes;
    opts.volume_count = target->volume_count;
    opts.ops = (struct store_ops){.down = drive_down, .quota = drive_quota};
    opts.owner = drive;
    err = target_slow_init(drive, why);
    if (err == ICMS_OK && drive->given.drains)
        err = target_move_init(drive, why);
    if (err == ICMS_OK)
        err = store_open(drive->loop, &opts, why, out_store);
    free(volumes);
    if (err == ICMS_OK) {
        store_stats(*out_store, &stats);
        drive->weight = (double)stats.capacity_bytes;
        drive->drive_bytes = stats.drive_bytes;
    }
    return target_drive_unformatted(drive->index, err, why);
}

static icms_err drive_open(struct target_drive *drive, struct err_why *why)
{
    struct store *store;
    icms_err err = target_drive_open(drive, why, &store);

    if (err == ICMS_OK)
        drive->store = store;
    return err;
}

/* Placement follows the UUIDs of the drives, so neither their paths nor their order matter. A drive
 * that cannot be opened is not known by its UUID: it has no weight, and its keys go to the next
 * ones in their order, as they do when a drive fails later. Nor has one that drains, or does not
 * belong to the order. */
icms_err target_drives_map(const struct target *target, uint32_t drives, struct err_why *why,
                           struct place_map **out_map)
{
    struct place_member members[LIMIT_DRIVES];
    uint32_t count = LIMIT_DRIVES - (uint32_t)__builtin_clz(drives | 1);
    double sum = 0;

    for (uint32_t i = 0; i < count; i++)
        if ((drives >> i & 1) != 0)
            sum += target->drives[i].weight * target->drives[i].part_percent;
    for (uint32_t i = 0; i < count; i++) {
        const struct target_drive *drive = &target->drives[i];
        uint8_t percent = sum > 0 ? drive->part_percent : 100;
        le32 number = le32_of(i);

        if ((drives >> i & 1) != 0 && drive->weight > 0) {
            members[i] =
                (struct place_member){.uuid = drive->uuid, .weight = drive->weight * percent / 100};
            continue;
        }
        members[i] = (struct place_member){.uuid = {{0}}};
        memcpy(members[i].uuid.bytes, &number, sizeof(number));
    }
    return place_map_new_drives(members, count, why, out_map);
}

/* The first map, and with it where mutations of a key wait for each other. */
static icms_err drives_map_first(struct target *target, struct err_why *why)
{
    uint32_t listed = atomic_load(&target->listed), drains = atomic_load(&target->drains);
    struct place_map *map = NULL;
    icms_err err;

    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        if (target->drives[i].store == NULL)
            drains |= (uint32_t)1 << i;
    /* when all that is here drains, it takes values all the same */
    if ((listed & ~drains) == 0) {
        atomic_store(&target->drains, 0);
        drains = 0;
    }
    err = target_drives_map(target, listed & ~drains, why, &map);
    if (err != ICMS_OK)
        return err;
    for (uint32_t slot = 0; slot < PLACE_SLOTS; slot++)
        target->home[slot] = (uint8_t)(place_rank(map, slot, 0) % target->opts.loops);
    atomic_store(&target->map, map);
    return ICMS_OK;
}

/* A drive that was copied byte by byte has the UUID of the other one. */
static icms_err drives_copy_check(const struct target *target, struct err_why *why)
{
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        for (uint32_t j = i + 1; j < target->opts.drive_count; j++) {
            const struct target_drive *a = &target->drives[i], *b = &target->drives[j];

            if (target_drive_in(target, i) && target_drive_in(target, j) &&
                uuid_equal(&a->uuid, &b->uuid))
                return err_set(why, ICMS_CONFIG,
                               "drive%u (%s) and drive%u (%s) have the same UUID: one is a copy of "
                               "the other; to erase the copy, start with `--format drive%u`",
                               i, a->path, j, b->path, j);
        }
    return ICMS_OK;
}

/* A quota that can never be reached limits nothing: it is a mistake. Of a drive that is out of
 * service the configuration knows the size, or nobody. */
icms_err target_drives_quota_check(const struct target *target, uint32_t drives,
                                   const struct volume_spec *volume, struct err_why *why)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        const struct target_drive *drive = &target->drives[i];
        uint64_t has = drive->drive_bytes != 0 ? drive->drive_bytes : drive->given.bytes;

        if ((drives >> i & 1) == 0)
            continue;
        if (has == 0)
            return ICMS_OK;
        bytes += has;
    }
    return target_quota_check(volume, bytes, why);
}

/* The part of a drive of a volume's quota, by weight; the drives in service share it. */
static uint64_t drive_quota_part(const struct target_drive *drive, uint64_t quota_bytes)
{
    const struct target *target = drive->target;
    double sum = 0;

    if (quota_bytes == 0)
        return 0;
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++)
        if (i == drive->index || target_drive_in(target, i))
            sum += target->drives[i].weight;
    return u64_max((uint64_t)((double)quota_bytes * (drive->weight / sum)), 1);
}

/* More than a drive has: of a volume without a quota, while drives still count in it. */
#define QUOTA_NONE ((uint64_t)1 << 62)

void target_volume_quota(struct target *target, uint32_t volume, uint64_t quota_bytes)
{
    struct store_quota *quota = &target->quotas[volume];
    uint64_t bytes_max = quota_bytes > 0 ? quota_bytes : QUOTA_NONE, share_min = bytes_max;

    for (uint32_t i = 0; i < LIMIT_DRIVES && quota_bytes > 0; i++)
        if (target_drive_in(target, i))
            share_min = u64_min(share_min, drive_quota_part(&target->drives[i], quota_bytes));
    atomic_store(&quota->bytes_max, bytes_max);
    atomic_store(&quota->share_min, share_min);
}

icms_err target_drive_limit(struct target_drive *drive, uint32_t volume, uint64_t quota_bytes,
                            struct err_why *why)
{
    if (!target_drive_in(drive->target, drive->index))
        return ICMS_OK;
    return store_volume_limit(drive->store, volume, drive_quota_part(drive, quota_bytes),
                              &drive->target->quotas[volume], why);
}

icms_err target_drive_limits(struct target_drive *drive, struct err_why *why)
{
    struct target *target = drive->target;
    icms_err err = ICMS_OK;

    for (uint32_t v = 0; v < target->volume_count && err == ICMS_OK; v++)
        err = store_volume_limit(drive->store, v,
                                 drive_quota_part(drive, target->volumes[v].spec.quota_bytes),
                                 &target->quotas[v], why);
    return err;
}

/* Is it the operator who has to decide for the whole enclosure? A drive that broke, or whose
 * beginning is damaged, is not a reason to stay away; one that is in use may be another one's. */
static bool drive_refused(icms_err err)
{
    switch (err) {
    case ICMS_LOCKED:
    case ICMS_VERSION:
    case ICMS_PERMISSION:
    case ICMS_CONFIG:
    case ICMS_INVALID:
    case ICMS_NO_MEMORY:
        return true;
    default:
        return false;
    }
}

/* A drive that does not work at the start is left out; why is kept. False: the operator has to
 * decide. */
static bool drive_leave(struct target_drive *drive, icms_err err, const struct err_why *why)
{
    if (drive_refused(err))
        return false;
    drive->err = err;
    snprintf(drive->why, sizeof(drive->why), "%.255s", why->text);
    target_warn(drive->target, "drive %u is out of service: %.400s", drive->index, why->text);
    drive_down(drive);
    return true;
}

icms_err target_drives_each(struct target *target,
                            icms_err (*step)(struct target_drive *drive, struct err_why *why),
                            struct err_why *why)
{
    for (uint32_t i = 0; i < target->opts.drive_count; i++) {
        struct target_drive *drive = &target->drives[i];
        icms_err err = target_drive_in(target, i) ? step(drive, why) : ICMS_OK;

        if (err != ICMS_OK && !drive_leave(drive, err, why))
            return err;
    }
    return ICMS_OK;
}

/* The first quotas. */
static icms_err drives_limit(struct target *target, struct err_why *why)
{
    icms_err err = ICMS_OK;

    for (uint32_t v = 0; v < target->volume_count && err == ICMS_OK; v++) {
        const struct volume_spec *volume = &target->volumes[v].spec;

        err = target_drives_quota_check(target, atomic_load(&target->listed), volume, why);
        target_volume_quota(target, v, volume->quota_bytes);
    }
    return err == ICMS_OK ? target_drives_each(target, target_drive_limits, why) : err;
}

/* Is any drive in service? Else the error is that of the first. */
static icms_err drives_left(const struct target *target, struct err_why *why)
{
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        if (target_drive_in(target, i))
            return ICMS_OK;
    return err_set(why, target->drives[0].err, "%s", target->drives[0].why);
}

icms_err target_drives_open(struct target *target, struct err_why *why)
{
    uint32_t listed = 0, drains = 0;
    icms_err err;

    loop_entropy(target->loops[0], &target->hash_seed, sizeof(target->hash_seed));
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++)
        target->loop_drives[i % target->opts.loops] |= (uint32_t)1 << i;
    for (uint32_t i = 0; i < target->opts.drive_count; i++) {
        target_drive_init(target, i, &target->opts.drives[i]);
        listed |= (uint32_t)1 << i;
        drains |= (uint32_t)target->opts.drives[i].drains << i;
    }
    atomic_store(&target->listed, listed);
    atomic_store(&target->drains, drains);
    atomic_store(&target->out, (uint32_t)~listed);
    err = target_drives_each(target, drive_prepare, why);
    if (err == ICMS_OK)
        err = drives_copy_check(target, why);
    if (err == ICMS_OK)
        err = target_members_check(target, why);
    if (err == ICMS_OK)
        err = target_drives_each(target, drive_open, why);
    if (err == ICMS_OK)
        err = target_members_write(target, why);
    if (err == ICMS_OK)
        err = target_generations_start(target, why);
    if (err == ICMS_OK)
        err = drives_left(target, why);
    if (err == ICMS_OK)
        err = drives_map_first(target, why);
    return err == ICMS_OK ? drives_limit(target, why) : err;
}

void target_drives_close(struct target *target)
{
    struct place_map *map = atomic_exchange(&target->map, NULL);

    target_drives_change_fini(target);
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        struct store *store = atomic_exchange(&target->drives[i].store, NULL);

        store_close(&store);
        store_close(&target->drives[i].closing);
        target_drive_fini(&target->drives[i]);
    }
    place_map_free(&map);
}
