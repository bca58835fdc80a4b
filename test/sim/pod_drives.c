/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives of targets that come, go and drain while the pod is used. Control.
 *
 * Each target has a file in which its drives are listed (pod_target.drives, .drains). What goes
 * wrong changes the file (pod_drives_strike); the target is told some time later, as by SIGHUP
 * (pod_drives_drive), or starts with it when it crashed before. So crashes and power cuts meet
 * changes at any step. A drive that was in use is not taken while the target runs: it is erased
 * first, or left to the next start, which has to see what the drive missed.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "pod.h"
#include "target/target_int.h"

static const char *const drive_paths[POD_DRIVES_MAX] = {"/drive0", "/drive1", "/drive2", "/drive3"};

#define DRIVES_END_NS (3000 * MS)

const char *pod_drive_path(uint32_t drive)
{
    check(drive < POD_DRIVES_MAX);
    return drive_paths[drive];
}

uint32_t pod_drives_list(const struct pod_target *target,
                         struct target_drive_opts out_drives[POD_DRIVES_MAX])
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < POD_DRIVES_MAX; i++)
        if ((target->drives >> i & 1) != 0)
            out_drives[count++] = (struct target_drive_opts){
                .path = drive_paths[i],
                .bytes = POD_DRIVE_BYTES,
                .format = target->format ? TARGET_FORMAT_ANY : TARGET_FORMAT_EMPTY,
                .drains = (target->drains >> i & 1) != 0};
    return count;
}

static icms_err drive_open(struct pod_target *target, const char *path, struct loop_file **out_file)
{
    struct loop_file_opts opts = {.path = path, .bytes = POD_DRIVE_BYTES, .write = true};

    return loop_file_open(sim_node_env(target->node), &opts, NULL, out_file);
}

void pod_drive_erase(struct pod_target *target, const char *path)
{
    static const uint8_t zeros[64 << 10];
    struct loop_file *file = NULL;
    uint64_t bytes;
    icms_err err;

    err = drive_open(target, path, &file);
    if (err == ICMS_NOT_FOUND)
        return; /* it was never made */
    bytes = err == ICMS_OK ? loop_file_bytes(file) : 0;
    for (uint64_t at = 0; at < bytes && err == ICMS_OK; at += sizeof(zeros))
        err = loop_file_write_now(file, at, zeros, u64_min(sizeof(zeros), bytes - at));
    if (err == ICMS_OK)
        err = loop_file_flush_now(file);
    loop_file_close(&file);
    if (err != ICMS_OK && !target->world->faults) /* else it is dead just now */
        pod_fail(target->world, POD_FAULT_HEAL, "no drive to replace");
    target->world->counts.replaced++;
    pod_tell(target->world, "target %u: %s replaced", target->number, path);
}

void pod_drives_swap(struct pod_target *a, uint32_t drive_a, struct pod_target *b, uint32_t drive_b,
                     bool copies)
{
    static uint8_t pages[2][64 << 10];
    struct loop_file *files[2] = {NULL, NULL};
    icms_err err = drive_open(a, pod_drive_path(drive_a), &files[0]);

    if (err == ICMS_OK)
        err = drive_open(b, pod_drive_path(drive_b), &files[1]);
    for (uint64_t at = 0; at < POD_DRIVE_BYTES && err == ICMS_OK; at += sizeof(pages[0])) {
        for (int i = 0; i < 2 && err == ICMS_OK; i++)
            err = loop_file_read_now(files[i], at, pages[i], sizeof(pages[i]));
        for (int i = copies; i < 2 && err == ICMS_OK; i++)
            err = loop_file_write_now(files[i], at, pages[1 - i], sizeof(pages[i]));
    }
    for (int i = 0; i < 2; i++) {
        if (files[i] != NULL && err == ICMS_OK)
            err = loop_file_flush_now(files[i]);
        loop_file_close(&files[i]);
    }
    if (err != ICMS_OK)
        return; /* one was never made, or fails just now: half of it is in the wrong place */
    if (copies)
        b->copy = drive_b + 1;
    a->world->counts.swapped++;
    pod_tell(a->world, "target %u: %s is %s %s of target %u", b->number, pod_drive_path(drive_b),
             copies ? "a copy of" : "swapped with", pod_drive_path(drive_a), a->number);
}

/* What the target has of a drive; NULL: nothing, not even one that is leaving. */
static struct target_drive *drive_of(struct pod_target *target, uint32_t drive)
{
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++)
        if (strcmp(target->target->drives[i].path, drive_paths[drive]) == 0 &&
            ((atomic_load(&target->target->listed) >> i & 1) != 0 ||
             atomic_load(&target->target->drives[i].is_leaving)))
            return &target->target->drives[i];
    return NULL;
}

/* Nothing is on it that somebody could miss, and nothing was evicted from it. */
static bool drive_is_done_with(struct pod_target *target, uint32_t drive)
{
    const struct target_drive *is = drive_of(target, drive);
    struct store_stats stats;

    if (is == NULL || is->store == NULL)
        return true;
    store_stats(is->store, &stats);
    return stats.blocks == 0 && stats.evictions == 0;
}

void pod_drives_strike(struct pod_target *target)
{
    struct pod_world *world = target->world;
    uint32_t drives = target->drives, drains = target->drains;
    uint32_t at = (uint32_t)pod_chance(world, POD_DRIVES_MAX), bit = (uint32_t)1 << at;

    if ((drives & bit) == 0)
        drives |= bit;
    else if (pod_chance(world, 2) == 0)
        drains ^= bit;
    else if (!world->weather.fair || (target->state == POD_MACHINE_UP && !target->drives_changing &&
                                      (drains & bit) != 0 && drive_is_done_with(target, at)))
        drives &= ~bit;
    drains &= drives;
    if ((drives & ~drains) == 0 || (drives == target->drives && drains == target->drains))
        return;
    pod_tell(world, "target %u: drives %x, of which %x drain", target->number, drives, drains);
    target->drives = drives;
    target->drains = drains;
}

/* Whether all drives that would take blocks went out of service: the target may refuse that. */
static bool drives_are_out(struct pod_target *target)
{
    for (uint32_t i = 0; i < POD_DRIVES_MAX; i++) {
        const struct target_drive *drive = drive_of(target, i);

        if (((target->drives & ~target->drains) >> i & 1) != 0 &&
            (drive == NULL || target_drive_in(target->target, drive->index)))
            return false;
    }
    return true;
}

/* Some drive of the file is there that the target refuses: it is erased when the target has let go
 * of it, or it leaves the file again. */
static void drives_refused(struct pod_target *target, icms_err err, const char *why)
{
    struct pod_world *world = target->world;
    uint32_t comes = target->drives & ~target->drives_told;
    bool is_unusable = err == ICMS_FOREIGN || (err == ICMS_CORRUPT && world->weather.disk_faults);

    pod_tell(world, "target %u: drives refused: %s", target->number, why);
    if (err == ICMS_BUSY || err == ICMS_NO_MEMORY)
        return; /* it has not let go of a drive yet, or is asked again */
    if (is_unusable && pod_chance(world, 2) == 0) {
        for (uint32_t i = 0; i < POD_DRIVES_MAX; i++)
            if ((comes >> i & 1) != 0 && drive_of(target, i) == NULL)
                pod_drive_erase(target, drive_paths[i]);
        return;
    }
    if (!world->faults && !is_unusable && !(err == ICMS_CONFIG && drives_are_out(target)))
        pod_fail(world, POD_FAULT_HEAL, "target %u refuses drives: %s", target->number, why);
    if (pod_chance(world, 4) == 0)
        return; /* it stays in the file, for the next start */
    target->drives = target->drives_told;
    target->drains = target->drains_told;
}

void pod_drives_drive(struct pod_target *target)
{
    struct pod_world *world = target->world;
    struct target_drive_opts drives[POD_DRIVES_MAX];
    struct err_why why = {""};
    struct target_opts opts;
    uint32_t at;
    icms_err err;

    if (target->state != POD_MACHINE_UP)
        return;
    if (target_drives_changed(target->target, &why))
        target->drives_changing = false;
    if (target->drives_changing || target->changing || pod_chance(world, 16) != 0 ||
        (target->drives == target->drives_told && target->drains == target->drains_told))
        return;
    target_opts_init(&opts);
    opts.drives = drives;
    opts.drive_count = pod_drives_list(target, drives);
    sim_node_as(target->node);
    err = target_drives_change(target->target, &opts, &at, &why);
    sim_node_as(NULL);
    if (err != ICMS_OK) {
        drives_refused(target, err, why.text);
        return;
    }
    world->counts.drives++;
    if (pod_chance(world, 8) == 0) { /* something else of the file is refused */
        target_drives_cancel(target->target);
        return;
    }
    target_drives_commit(target->target);
    target->drives_changing = true;
    target->drives_told = target->drives;
    target->drains_told = target->drains;
}

/* Whether a target has just these drives, and has let go of all others. */
static bool drives_are_told(struct pod_target *target)
{
    if (target->state != POD_MACHINE_UP || target->drives_changing ||
        target->drives != target->drives_told || target->drains != target->drains_told)
        return false;
    for (uint32_t i = 0; i < POD_DRIVES_MAX; i++)
        if ((target->drives >> i & 1) == 0 && drive_of(target, i) != NULL)
            return false;
    return true;
}

static void drives_wait(struct pod_world *world, bool empty)
{
    uint64_t until_ns = sim_now_ns(world->sim) + DRIVES_END_NS;
    bool is_over = false;

    while (!is_over && sim_now_ns(world->sim) < until_ns) {
        pod_world_run(world, sim_now_ns(world->sim) + 5 * MS);
        is_over = true;
        for (uint32_t i = 0; i < world->target_count; i++) {
            struct pod_target *target = &world->targets[i];

            is_over = is_over && drives_are_told(target);
            for (uint32_t d = 0; d < POD_DRIVES_MAX && is_over && empty; d++)
                is_over = (target->drains >> d & 1) == 0 || drive_is_done_with(target, d);
        }
    }
    for (uint32_t i = 0; i < world->target_count && !empty; i++)
        if (!is_over && !drives_are_told(&world->targets[i]))
            pod_fail(world, POD_FAULT_HEAL, "target %u does not take drives %x, of which %x drain",
                     i, world->targets[i].drives, world->targets[i].drains);
}

void pod_drives_end(struct pod_world *world)
{
    for (uint32_t i = 0; i < world->target_count; i++) {
        struct pod_target *target = &world->targets[i];
        uint32_t keep = 0;

        /* those that take blocks first */
        for (uint32_t turn = 0; turn < 2; turn++)
            for (uint32_t d = 0; d < POD_DRIVES_MAX; d++)
                if (__builtin_popcount(keep) < POD_DRIVES &&
                    (target->drives & (turn == 0 ? ~target->drains : UINT32_MAX)) >> d & 1)
                    keep |= (uint32_t)1 << d;
        for (uint32_t d = 0; __builtin_popcount(keep) < POD_DRIVES; d++)
            keep |= (uint32_t)1 << d;
        target->drives |= keep;
        target->drains = target->drives & ~keep;
    }
    drives_wait(world, true);
    for (uint32_t i = 0; i < world->target_count; i++) {
        struct pod_target *target = &world->targets[i];

        for (uint32_t d = 0; d < POD_DRIVES_MAX && world->weather.fair; d++)
            if ((target->drains >> d & 1) != 0 && !drive_is_done_with(target, d) &&
                pod_world_evictions(world) == 0)
                pod_fail(world, POD_FAULT_HEAL, "target %u: %s does not become empty", i,
                         drive_paths[d]);
        for (uint32_t d = 0; d < POD_DRIVES_MAX; d++) {
            const struct target_drive *is = drive_of(target, d);

            if ((target->drains >> d & 1) != 0 && is != NULL && is->store != NULL) {
                struct store_stats stats;

                store_stats(is->store, &stats);
                world->evictions_gone += stats.evictions;
            }
        }
        target->drives &= ~target->drains;
        target->drains = 0;
    }
    drives_wait(world, false);
}
