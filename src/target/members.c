/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drives that belong together, and which of them missed something.
 *
 * Each drive has a list of the drives of its enclosure: their UUIDs, and a mark at each that missed
 * a mutation while it was out of service. It is the owner's note of the drive's store.
 *
 *   target_members_check: before the stores are opened. A drive that some other list does not have,
 *   or has with a mark, is formatted: a value that was replaced or deleted may be on it
 *   target_members_write: the drives that are open get one list, of all that is in theirs
 *   target_run_note: before a mutation is answered that a drive may have missed, the drives in
 *   service mark all that are not
 *   target_members_leave: a drive that is taken out of the enclosure marks itself
 *
 * Invariants: a drive in service is in the lists of all drives in service, without a mark. A mark
 * is on all of them before the mutation is answered, and stays until the drive is formatted, which
 * gives it another UUID. A list that is damaged is one with nobody in it. A drive that was never in
 * use has no list, no blocks and no say.
 *
 * So a drive that the configuration left out is one that was out: it stays in the lists. One whose
 * list is damaged in both copies has nobody in it: the other drives are formatted. One that joined,
 * or was formatted, while another was out is not in the list of that one when it returns: a third
 * drive, which both have, decides (members_has_witness); without one it is formatted once more. One
 * that left (drive change, LEAVE) has a mark at itself: it does not know who came later, so it has
 * no say about others, until it is in service again. Two
 * drives whose lists do not have each other are not of one enclosure: that is an
 * error, and --format decides. A list has TARGET_NOTE_ROWS rows. A start leaves MEMBERS_SPARE of
 * them free, and forgets drives that are gone for that; such a drive is formatted when it is back.
 * A drive for which the others have no row does not join: nobody could note what it misses.
 */
#include "base/check.h"
#include "target/target_int.h"

static const struct uuid nobody;

/* Rows for drives that are added before the next start. */
#define MEMBERS_SPARE LIMIT_DRIVES

/* ---- lists ---------------------------------------------------------------------------------- */

/* The row of a drive (of nobody: a free one); NULL: there is none. */
static struct target_note_row_df *note_row(struct target_note_df *note, const struct uuid *drive)
{
    for (uint32_t i = 0; i < TARGET_NOTE_ROWS; i++)
        if (uuid_equal(&note->rows[i].drive, drive))
            return &note->rows[i];
    return NULL;
}

static uint32_t note_used(const struct target_note_df *note)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < TARGET_NOTE_ROWS; i++)
        used += !uuid_equal(&note->rows[i].drive, &nobody);
    return used;
}

/* A drive for which a list has no row left is formatted when it is back. */
static void note_add(struct target_note_df *note, const struct target_note_row_df *add)
{
    struct target_note_row_df *row = note_row(note, &add->drive);

    if (row == NULL)
        row = note_row(note, &nobody);
    if (row == NULL)
        return;
    row->drive = add->drive;
    row->missed |= add->missed;
}

static bool members_is_new(struct target_drive *drive)
{
    return !drive->note_lost && note_row(&drive->note, &drive->uuid) == NULL;
}

/* ---- start ---------------------------------------------------------------------------------- */

/* Whether it was taken out of the enclosure after it was in service last. */
static bool members_has_left(struct target_drive *drive)
{
    const struct target_note_row_df *row = note_row(&drive->note, &drive->uuid);

    return row != NULL && row->missed != 0;
}

/* Whether two drives know nothing of each other, and both know something. */
static bool members_are_strangers(struct target_drive *a, struct target_drive *b)
{
    return !a->note_lost && !members_is_new(a) && !b->note_lost && !members_is_new(b) &&
           note_row(&a->note, &b->uuid) == NULL && note_row(&b->note, &a->uuid) == NULL;
}

/* Whether the list of a drive has another one, without a mark. */
static bool members_vouches(struct target_drive *drive, const struct target_drive *other)
{
    const struct target_note_row_df *row = note_row(&drive->note, &other->uuid);

    return row != NULL && row->missed == 0;
}

/* A drive joined while `other` was away, which does not have it. Some third drive that `other`
 * vouches for knows of every mutation that `other` knows of: who misses one is marked before it is
 * answered. So what that one says of the drive is enough. */
static bool members_has_witness(struct target *target, const struct target_drive *drive,
                                struct target_drive *other)
{
    for (uint32_t i = 0; i < target->opts.drive_count; i++) {
        struct target_drive *witness = &target->drives[i];

        if (target_drive_in(target, i) && witness != drive && witness != other &&
            !members_has_left(witness) && members_vouches(other, witness) &&
            members_vouches(witness, drive))
            return true;
    }
    return false;
}

/* Whether the drive missed something, as far as the list of another one tells. */
static bool members_is_behind(struct target_drive *drive, struct target_drive *other)
{
    const struct target_note_row_df *row = note_row(&other->note, &drive->uuid);

    if (members_is_new(drive) || members_is_new(other) || members_has_left(other))
        return false;
    return row == NULL ? !members_has_witness(drive->target, drive, other) : row->missed != 0;
}

/* Other drives may forget what it was called. */
static icms_err members_format(struct target_drive *drive, struct err_why *why)
{
    struct target *target = drive->target;
    struct target_note_df note = drive->note;
    struct uuid old = drive->uuid;
    icms_err err;

    if (!drive->is_behind)
        return ICMS_OK;
    target_warn(target,
                "drive %u (%s) is formatted: it may have missed what was replaced or deleted while "
                "it was out of service",
                drive->index, drive->path);
    err = target_drive_format(drive, true, why);
    if (err != ICMS_OK)
        return err;
    drive->note = note; /* it still knows the others */
    for (uint32_t i = 0; i < target->opts.drive_count; i++) {
        struct target_note_row_df *row = note_row(&target->drives[i].note, &old);

        if (row != NULL)
            *row = (struct target_note_row_df){.missed = 0};
    }
    return ICMS_OK;
}

icms_err target_members_check(struct target *target, struct err_why *why)
{
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        for (uint32_t j = 0; j < target->opts.drive_count; j++) {
            struct target_drive *drive = &target->drives[j], *other = &target->drives[i];

            if (i == j || !target_drive_in(target, i) || !target_drive_in(target, j))
                continue;
            if (members_are_strangers(drive, other))
                return err_set(why, ICMS_CONFIG,
                               "drive%u (%s) does not belong to drive%u (%s): they were never in "
                               "one enclosure; to erase it, start with `--format drive%u`",
                               j, drive->path, i, other->path, j);
            drive->is_behind = drive->is_behind || members_is_behind(drive, other);
        }
    return target_drives_each(target, members_format, why);
}

static icms_err members_write(struct target_drive *drive, struct err_why *why)
{
    return store_note_put_now(drive->store, 0, &drive->note, why);
}

icms_err target_members_write(struct target *target, struct err_why *why)
{
    struct target_note_df note = {.rows = {{.missed = 0}}};

    for (uint32_t i = 0; i < target->opts.drive_count; i++) {
        struct target_note_row_df *own = note_row(&target->drives[i].note, &target->drives[i].uuid);

        if (!target_drive_in(target, i))
            continue;
        note_add(&note, &(struct target_note_row_df){.drive = target->drives[i].uuid});
        if (own != NULL)
            own->missed = 0; /* one that had left is back */
    }
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        for (uint32_t row = 0; target_drive_in(target, i) && row < TARGET_NOTE_ROWS; row++) {
            const struct target_note_row_df *add = &target->drives[i].note.rows[row];

            if (!uuid_equal(&add->drive, &nobody) &&
                (note_row(&note, &add->drive) != NULL ||
                 note_used(&note) < TARGET_NOTE_ROWS - MEMBERS_SPARE))
                note_add(&note, add);
        }
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        target->drives[i].note = note;
    atomic_store(&target->noted, UINT64_MAX);
    return target_drives_each(target, members_write, why);
}

/* ---- mutations ------------------------------------------------------------------------------ */

/* Marks what is not in service; false: all of it was. One that is about to join holds nothing, so
 * it can miss nothing. */
static bool note_mark(struct target_drive *drive)
{
    const struct target *target = drive->target;
    bool changed = false;

    for (uint32_t i = 0; i < TARGET_NOTE_ROWS; i++) {
        struct target_note_row_df *row = &drive->note.rows[i];
        bool is_in = uuid_equal(&row->drive, &nobody) || uuid_equal(&row->drive, &drive->uuid);

        for (uint32_t d = 0; !is_in && d < LIMIT_DRIVES; d++)
            is_in = (target_drive_in(target, d) || target_drive_joins(target, d)) &&
                    uuid_equal(&row->drive, &target->drives[d].uuid);
        changed = changed || (!is_in && row->missed == 0);
        row->missed |= !is_in;
    }
    return changed;
}

/* Those that waited look again: what they need may be another mark. */
static void target_note_done(struct store_note *op)
{
    struct target_drive *drive = container_of(op, struct target_drive, note_op);

    drive->note_busy = false;
    target_members_wake(drive);
}

bool target_note_write(struct target_drive *drive, uint32_t page, const void *bytes)
{
    drive->note_op = (struct store_note){.page = page, .bytes = bytes, .done = target_note_done};
    drive->note_busy = store_note_put(drive->store, &drive->note_op) == ICMS_OK;
    return drive->note_busy;
}

/* Writes the list of a drive; false: it is out of service. */
static bool note_write(struct target_drive *drive)
{
    return target_note_write(drive, 0, &drive->note);
}

enum target_step target_run_note(struct target_req *req)
{
    struct target *target = req->target;
    struct target_drive *drive;

    if (req->index == 0)
        req->out = atomic_load_explicit(&target->out, memory_order_acquire);
    if (req->out == atomic_load_explicit(&target->noted, memory_order_acquire))
        return target_req_mutated(req);
    while (req->index < LIMIT_DRIVES && !target_drive_in(target, req->index))
        req->index++;
    if (req->index == LIMIT_DRIVES) { /* meanwhile another one may be out */
        atomic_store(&target->noted, req->out);
        req->index = 0;
        return TARGET_NEXT;
    }
    drive = &target->drives[req->index];
    if (!target_req_at(req, drive->loop))
        return TARGET_WAIT;
    if (!drive->note_busy && note_mark(drive))
        (void)note_write(drive);
    if (drive->note_busy) {
        list_push(&drive->note_waiting, &req->link);
        return TARGET_WAIT;
    }
    req->index++;
    return TARGET_NEXT;
}

/* ---- a drive that joins while the enclosure runs --------------------------------------------- */

bool target_members_know(struct target_drive *drive, const struct uuid *joins,
                         struct target_note_df *out_note, bool *out_has_row)
{
    if (drive->note_busy)
        return false;
    if (note_row(&drive->note, joins) == NULL) {
        note_add(&drive->note, &(struct target_note_row_df){.drive = *joins});
        if (note_row(&drive->note, joins) != NULL && note_write(drive))
            return false;
    }
    *out_note = drive->note;
    *out_has_row = note_row(&drive->note, joins) != NULL;
    return true;
}

bool target_members_join(struct target_drive *drive, const struct target_note_df *note)
{
    struct target_note_df was = drive->note;

    if (drive->note_busy)
        return false;
    drive->note = *note;
    note_add(&drive->note, &(struct target_note_row_df){.drive = drive->uuid});
    (void)note_mark(drive);
    return memcmp(&was, &drive->note, sizeof(was)) == 0 || !note_write(drive);
}

/* ---- a drive that leaves while the enclosure runs -------------------------------------------- */

bool target_members_leave(struct target_drive *drive)
{
    struct target_note_row_df *own = note_row(&drive->note, &drive->uuid);

    if (drive->note_busy)
        return false;
    if (own == NULL || own->missed != 0)
        return true;
    own->missed = 1;
    return !note_write(drive);
}

void target_members_wake(struct target_drive *drive)
{
    struct list waiting;
    struct list *link;

    list_init(&waiting);
    while ((link = list_pop(&drive->note_waiting)) != NULL)
        list_push(&waiting, link);
    while ((link = list_pop(&waiting)) != NULL)
        target_req_run(container_of(link, struct target_req, link));
}
