/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drives that belong together, and what they know of each other.
 *
 * Each drive keeps a note: the UUIDs of the enclosure's drives, and of which volumes which of them
 * missed a mutation while they were out of service. A drive that comes back drops these volumes
 * before it serves: a value that was replaced or deleted meanwhile may be on it.
 *
 *   target_members_open: notes of all drives are merged; drives drop what they missed; the merged
 *   note is written to each of them
 *   target_run_note: before a mutation is answered that a drive may have missed, all drives in
 *   service note it, once for each volume and drive
 *
 * Invariants: member i of a note that was written since the start is drive i; a drive that is out
 * keeps its place in the note; a row is erased when its drive has dropped the volume durably. Each
 * start raises the version of the note: a drive that is not in a note that is at least as new as
 * its own was left out of the configuration, and nobody kept what it missed. A drive whose note is
 * lost drops all that it holds of the volumes that are configured, and so does one of which no
 * other note knows what it missed. What was out meanwhile and is in no note is refused when it is
 * back.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "target/target_int.h"

static const struct uuid nobody;

/* More starts than an enclosure ever has. */
#define MEMBERS_VERSION_LOST ((uint64_t)1 << 32)

/* ---- notes ---------------------------------------------------------------------------------- */

static int note_member(const struct target_note_df *note, const struct uuid *drive)
{
    for (int i = 0; i < LIMIT_DRIVES; i++)
        if (uuid_equal(&note->members[i], drive))
            return i;
    return -1;
}

/* The drives (bits) that missed a mutation of the volume. */
static uint32_t note_missed(const struct target_note_df *note, const struct uuid *volume)
{
    uint32_t missed = le32_get(note->missed_all);

    for (uint32_t i = 0; i < TARGET_NOTE_ROWS; i++)
        if (uuid_equal(&note->rows[i].volume, volume))
            missed |= le32_get(note->rows[i].missed);
    return missed;
}

/* Without a row left the drives have to drop all that they hold, whenever they are opened. */
static void note_add(struct target_note_df *note, const struct uuid *volume, uint32_t missed)
{
    struct target_note_row_df *row = NULL;

    if (missed == 0)
        return;
    for (uint32_t i = 0; i < TARGET_NOTE_ROWS; i++) {
        bool is_free = le32_get(note->rows[i].missed) == 0;

        if (is_free ? row == NULL : uuid_equal(&note->rows[i].volume, volume))
            row = &note->rows[i];
        if (!is_free && row == &note->rows[i])
            break;
    }
    if (row == NULL) {
        note->missed_all = le32_of(le32_get(note->missed_all) | missed);
        return;
    }
    row->volume = *volume;
    row->missed = le32_of(le32_get(row->missed) | missed);
}

/* A drive dropped the volume. */
static void note_clear(struct target_note_df *note, const struct uuid *volume, uint32_t drive)
{
    for (uint32_t i = 0; i < TARGET_NOTE_ROWS; i++) {
        struct target_note_row_df *row = &note->rows[i];

        if (uuid_equal(&row->volume, volume))
            row->missed = le32_of(le32_get(row->missed) & ~((uint32_t)1 << drive));
    }
}

/* The drives of one note, by their places in another; those that are not in it are left out. */
static uint32_t note_translate(const struct target_note_df *from, const struct target_note_df *to,
                               uint32_t drives)
{
    uint32_t out = 0;

    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        int member = -1;

        if ((drives >> i & 1) != 0 && !uuid_equal(&from->members[i], &nobody))
            member = note_member(to, &from->members[i]);
        if (member >= 0)
            out |= (uint32_t)1 << member;
    }
    return out;
}

/* Adds what another note says. */
static void note_merge(struct target_note_df *note, const struct target_note_df *other)
{
    uint32_t all = note_translate(other, note, le32_get(other->missed_all));

    note->missed_all = le32_of(le32_get(note->missed_all) | all);
    for (uint32_t i = 0; i < TARGET_NOTE_ROWS; i++)
        note_add(note, &other->rows[i].volume,
                 note_translate(other, note, le32_get(other->rows[i].missed)));
}

/* ---- start ---------------------------------------------------------------------------------- */

/* Was the drive in service without this one since they knew each other? */
static icms_err members_check(const struct target_drive *drive, const struct target_drive *other,
                              struct err_why *why)
{
    struct uuid uuid = store_uuid(drive->store);

    if (le64_get(drive->note.version) == 0 || note_member(&other->note, &uuid) >= 0 ||
        le64_get(other->note.version) < le64_get(drive->note.version))
        return ICMS_OK;
    return err_set(why, ICMS_CONFIG,
                   "drive%u (%s) does not belong to drive%u (%s), or was left out of the "
                   "configuration: its blocks may be older; to erase it, start with `--format "
                   "drive%u`",
                   drive->index, drive->path, other->index, other->path, drive->index);
}

/* Whether a drive that is open, but for this one, has a note; knows: one that this one is in. */
static bool members_noted(const struct target_drive *drive, bool knows)
{
    const struct target *target = drive->target;
    struct uuid uuid = store_uuid(drive->store);

    for (uint32_t i = 0; i < target->opts.drive_count; i++) {
        const struct target_drive *other = &target->drives[i];

        if (i != drive->index && other->store != NULL && le64_get(other->note.version) != 0 &&
            (!knows || note_member(&other->note, &uuid) >= 0))
            return true;
    }
    return false;
}

/* Whether a drive with blocks has no note: it is damaged. One without blocks is new. */
static bool members_lost(const struct target_drive *drive)
{
    struct store_stats stats;

    store_stats(drive->store, &stats);
    return le64_get(drive->note.version) == 0 && stats.blocks > 0;
}

/* Whether nobody knows what the drive missed: its own note is lost, or one that may have been the
 * only one that said so. */
static bool members_unknown(const struct target_drive *drive)
{
    const struct target *target = drive->target;

    if (members_lost(drive))
        return members_noted(drive, false);
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        if (i != drive->index && target->drives[i].store != NULL &&
            members_lost(&target->drives[i]))
            return le64_get(drive->note.version) != 0 && !members_noted(drive, true);
    return false;
}

/* Fills the places of drives that are out with members that a note knows and nobody opened. */
static void members_keep(const struct target *target, struct target_note_df *note,
                         const struct target_note_df *known)
{
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        for (uint32_t m = 0; target->drives[i].store == NULL &&
                             uuid_equal(&note->members[i], &nobody) && m < LIMIT_DRIVES;
             m++)
            if (note_member(note, &known->members[m]) < 0)
                note->members[i] = known->members[m];
}

static icms_err members_merge(struct target *target, struct target_note_df *note,
                              struct err_why *why)
{
    uint64_t version = 0;

    for (uint32_t i = 0; i < target->opts.drive_count; i++) {
        struct target_drive *drive = &target->drives[i];

        if (drive->store == NULL)
            continue;
        store_note_get(drive->store, &drive->note);
        note->members[i] = store_uuid(drive->store);
        version = u64_max(version, le64_get(drive->note.version));
    }
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        if (target->drives[i].store != NULL && members_lost(&target->drives[i]))
            version += MEMBERS_VERSION_LOST; /* newer than what is out and only that note knew */
    note->version = le64_of(version + 1);
    for (uint32_t i = 0; i < target->opts.drive_count; i++) {
        const struct target_drive *drive = &target->drives[i];

        for (uint32_t j = 0; drive->store != NULL && j < target->opts.drive_count; j++) {
            const struct target_drive *other = &target->drives[j];
            icms_err err =
                other->store != NULL && j != i ? members_check(drive, other, why) : ICMS_OK;

            if (err != ICMS_OK)
                return err;
        }
    }
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        if (target->drives[i].store != NULL)
            members_keep(target, note, &target->drives[i].note);
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        if (target->drives[i].store != NULL)
            note_merge(note, &target->drives[i].note);
    return ICMS_OK;
}

/* The drive drops what it missed; the note forgets what it is done with. */
static icms_err members_drop(struct target_drive *drive, struct target_note_df *note,
                             struct err_why *why)
{
    const struct target *target = drive->target;
    uint32_t bit = (uint32_t)1 << drive->index;
    icms_err err = ICMS_OK;

    if (drive->missed_unknown)
        target_warn(drive->target,
                    "drive %u (%s) drops its blocks: %s note of what drives missed is damaged",
                    drive->index, drive->path, members_lost(drive) ? "its" : "another drive's");
    for (uint32_t v = 0; v < target->opts.volume_count && err == ICMS_OK; v++) {
        const struct uuid *volume = &target->opts.volumes[v].uuid;
        bool all = false;

        if ((note_missed(note, volume) & bit) == 0 && !drive->missed_unknown)
            continue;
        err = store_volume_drop(drive->store, v, &all, why);
        if (all)
            note_clear(note, volume, drive->index);
        else
            note_add(note, volume, bit);
    }
    return err;
}

/* Does one step with each drive that is open; those that do not work are left out. */
static icms_err members_each(struct target *target, struct target_note_df *note,
                             icms_err (*step)(struct target_drive *drive,
                                              struct target_note_df *note, struct err_why *why),
                             struct err_why *why)
{
    for (uint32_t i = 0; i < target->opts.drive_count; i++) {
        struct target_drive *drive = &target->drives[i];
        icms_err err = target_drive_in(target, i) ? step(drive, note, why) : ICMS_OK;

        if (err != ICMS_OK && !target_drive_leave(drive, err, why))
            return err;
    }
    return ICMS_OK;
}

static icms_err members_write(struct target_drive *drive, struct target_note_df *note,
                              struct err_why *why)
{
    drive->note = *note;
    return store_note_put_now(drive->store, &drive->note, why);
}

icms_err target_members_open(struct target *target, struct err_why *why)
{
    struct target_note_df note = {.members = {nobody}};
    icms_err err = members_merge(target, &note, why);

    for (uint32_t i = 0; err == ICMS_OK && i < target->opts.drive_count; i++)
        if (target->drives[i].store != NULL)
            target->drives[i].missed_unknown = members_unknown(&target->drives[i]);
    if (err == ICMS_OK)
        err = members_each(target, &note, members_drop, why);
    if (err == ICMS_OK)
        err = members_each(target, &note, members_write, why);
    for (uint32_t v = 0; v < target->opts.volume_count; v++)
        atomic_store(&target->noted[v], note_missed(&note, &target->opts.volumes[v].uuid));
    return err;
}

/* ---- mutations ------------------------------------------------------------------------------ */

/* Those that waited look again: what they need may be another row. */
static void target_note_done(struct store_note *op)
{
    struct target_drive *drive = container_of(op, struct target_drive, note_op);
    struct list waiting;
    struct list *link;

    drive->note_busy = false;
    list_init(&waiting);
    while ((link = list_pop(&drive->note_waiting)) != NULL)
        list_push(&waiting, link);
    while ((link = list_pop(&waiting)) != NULL)
        target_req_run(container_of(link, struct target_req, link));
}

static enum target_step note_wait(struct target_drive *drive, struct target_req *req)
{
    list_push(&drive->note_waiting, &req->link);
    return TARGET_WAIT;
}

enum target_step target_run_note(struct target_req *req)
{
    struct target *target = req->target;
    const struct uuid *volume = &target->opts.volumes[req->nvmf->ns].uuid;
    _Atomic uint32_t *noted = &target->noted[req->nvmf->ns];
    struct target_drive *drive;

    if (req->index == 0)
        req->missed = atomic_load_explicit(&target->out, memory_order_acquire) &
                      ~atomic_load_explicit(noted, memory_order_acquire);
    while (req->missed != 0 && req->index < target->opts.drive_count &&
           !target_drive_in(target, req->index))
        req->index++;
    if (req->missed == 0)
        return target_req_mutated(req);
    if (req->index == target->opts.drive_count) { /* meanwhile another one may be out */
        atomic_fetch_or(noted, req->missed);
        req->index = 0;
        return TARGET_NEXT;
    }
    drive = &target->drives[req->index];
    if (!target_req_at(req, drive->loop))
        return TARGET_WAIT;
    if (drive->note_busy)
        return note_wait(drive, req);
    if ((req->missed & ~note_missed(&drive->note, volume)) != 0) {
        note_add(&drive->note, volume, req->missed);
        drive->note_op = (struct store_note){.bytes = &drive->note, .done = target_note_done};
        drive->note_busy = store_note_put(drive->store, &drive->note_op) == ICMS_OK;
        if (drive->note_busy)
            return note_wait(drive, req);
    }
    req->index++;
    return TARGET_NEXT;
}
