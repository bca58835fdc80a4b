/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives that come, go and drain while the enclosure runs (target.h).
 *
 *   control thread    target_drives_change: what shall be is compared with what is, what comes is
 *                     opened, and the order of all drives afterwards is made. Nobody sees it yet
 *                     target_drives_commit
 *   for each drive that comes, one after the other:
 *     ROWS            on the loop of each drive in service: its list has the new drive, durably
 *     JOIN            on the new drive's loop: volumes, quotas, its own list, durably; in service
 *   MAP               loop 0: the new order; drives that drain take no values
 *   LIMITS            each drive's loop: its parts of the quotas
 *   LEAVE             the loop of each drive that goes: out of service
 *   ROUND             every loop in turn: none has the order of before in its hands any more
 *   control thread    target_drives_changed: the order of before is freed
 *
 * No request waits for a change, and none has to: each asks every drive in service once, whatever
 * the order is (target_req_asked). So a value is found wherever an order of before put it, and a
 * deletion or a replacement leaves no older value on any drive. Mutations of a key wait for each
 * other at a loop that never changes (target.home). A request looks at its drive once more when it
 * arrives on that drive's loop, and LEAVE runs there: behind it nothing new goes to the store.
 *
 * A drive that goes is out of service at once, as one that failed: what is replaced or deleted from
 * then on, it misses, and the others mark it (members.c). What is in flight there ends as it would
 * have: target_drive_leave waits until no operation is at its store, and no mutation whose value is
 * there may have to take it back (target_drive.values). Then it marks itself, the store is put to
 * rest, a message goes round all loops, and the control thread frees it. Only then its number is
 * free. The change waits for none of that, so a drive that hangs can be replaced.
 *
 * A drive that comes is in the lists of all before it is in service, and has all in its own. In
 * that it marks who is not in service: those may miss what was deleted before, which it was not
 * told. Should one go out of service in between, the era differs (target.out), and it marks once
 * more.
 */
#include <stdio.h>
#include <stdlib.h>

#include "target/target_int.h"

/* A step that waits for a list to be written, or a drive that leaves for what is in flight, looks
 * again after so long. */
#define CHANGE_LOOK_NS ((uint64_t)2 * 1000 * 1000)

/* A drive that goes, and does not answer for so long, is not told who comes. */
#define CHANGE_GOES_NS ((uint64_t)1000 * 1000 * 1000)

/* Behind the bits of drives in target.out. */
#define TARGET_ERA ((uint64_t)1 << 32)

enum change_step {
    CHANGE_ROWS,
    CHANGE_JOIN,
    CHANGE_MAP,
    CHANGE_LIMITS,
    CHANGE_LEAVE,
    CHANGE_ROUND,
    CHANGE_OVER,
};

struct target_drives_change {
    struct target *target;
    uint32_t comes, goes, drains;       /* drives (bits); drains: afterwards       */
    struct store *stores[LIMIT_DRIVES]; /* of those that come, until they join     */
    struct place_map *map;              /* afterwards; then the one of before      */
    bool is_weight;                     /* of target_drives_weigh: nobody waits for its end */
    enum change_step step;
    uint32_t at;                /* drive or loop that is visited           */
    uint64_t waits_ns;          /* ROWS: it has waited there since; 0: it has not */
    uint32_t joins;             /* ROWS, JOIN: which one                   */
    bool is_opened;             /* JOIN: it has its volumes                */
    bool is_unknown;            /* ROWS, JOIN: a drive in service has no row for it */
    struct target_note_df note; /* ROWS, JOIN: the list of a drive in service */
    uint64_t out;               /* JOIN: target.out when it marked the others */
    struct err_why failed;      /* JOIN: which drive did, and why; "": none did */
    bool keeps;                 /* one failed: none goes, and the map stays     */
    struct loop_msg msg;        /* carries it to the loop of its step      */
    struct loop_timer timer;    /* looks again there                       */
    _Atomic bool is_begun;      /* committed                               */
    _Atomic bool is_over;       /* the control thread may take it          */
};

static bool has(uint32_t drives, uint32_t drive)
{
    return (drives >> drive & 1) != 0;
}

/* ---- what shall be, against what is --------------------------------------------------------- */

/* The number of a listed drive; LIMIT_DRIVES: none has this path. */
static uint32_t drive_find(const struct target *target, const char *path)
{
    uint32_t listed = atomic_load(&target->listed);
    uint32_t i = 0;

    while (i < LIMIT_DRIVES && !(has(listed, i) && strcmp(target->drives[i].path, path) == 0))
        i++;
    return i;
}

/* A number that nobody has; LIMIT_DRIVES: none. */
static uint32_t drive_free(const struct target *target, uint32_t taken)
{
    uint32_t i = 0;

    taken |= atomic_load(&target->listed);
    while (i < LIMIT_DRIVES && (has(taken, i) || target->drives[i].is_leaving))
        i++;
    return i;
}

/* What is there is nobody's: zeros, or a store that was never in use. */
static icms_err drive_is_new(struct target_drive *drive, const struct target_opts *opts, uint32_t i,
                             struct err_why *why)
{
    struct err_why note = {""};
    struct store_contents found;
    struct target_drive_opts one = opts->drives[i];
    icms_err err;

    /* a file that is missing is another matter: its file system may not be mounted */
    err = store_look(drive->target->opts.env, one.path, why, &found);
    if (err == ICMS_OK && found.holds == STORE_HOLDS_ZEROS && one.format == TARGET_FORMAT_NOTHING)
        one.format = TARGET_FORMAT_EMPTY;
    if (err == ICMS_OK)
        err = target_drive_look(&drive->target->opts, &one, 0, why, &found, &note);
    if (err == ICMS_OK)
        err = target_drive_format(drive, false, why);
    if (err != ICMS_OK)
        return err;
    if (found.holds != STORE_HOLDS_STORE) {
        target_warn(drive->target,
                    "drive %u (%.200s): formatted: it held nothing; it holds no blocks now",
                    drive->index, drive->path);
        return ICMS_OK;
    }
    for (uint32_t row = 0; row < TARGET_NOTE_ROWS; row++)
        if (drive->note_lost || !uuid_is_nil(&drive->note.rows[row].drive))
            return err_set(why, ICMS_FOREIGN,
                           "cannot add %.200s: it holds blocks of an enclosure; take it out of the "
                           "file before icms-target is started again, because drives that it does "
                           "not know may be erased then, or erase it: `icms drive add --format`",
                           drive->path);
    return ICMS_OK;
}

/* Opens one that comes, under a number that is free. */
static icms_err drive_come(struct target_drives_change *change, const struct target_opts *opts,
                           uint32_t i, struct err_why *why)
{
    struct target *target = change->target;
    uint32_t number = drive_free(target, change->comes);
    struct target_drive *drive;
    icms_err err;

    for (uint32_t other = 0; other < LIMIT_DRIVES; other++)
        if (atomic_load(&target->drives[other].is_leaving) &&
            !atomic_load(&target->drives[other].is_left) &&
            strcmp(target->drives[other].path, opts->drives[i].path) == 0)
            return err_set(why, ICMS_BUSY,
                           "cannot add %.200s: it was removed a moment ago, and what was under way "
                           "there has not ended; reload again in a moment",
                           opts->drives[i].path);
    if (number == LIMIT_DRIVES)
        return err_set(why, ICMS_LIMIT,
                       "cannot add %.200s: %u drives are in use, or on their way out; add it when "
                       "those are gone",
                       opts->drives[i].path, LIMIT_DRIVES);
    drive = &target->drives[number];
    target_drive_init(target, number, &opts->drives[i]);
    change->comes |= (uint32_t)1 << number;
    change->drains |= (uint32_t)opts->drives[i].drains << number;
    err = drive_is_new(drive, opts, i, why);
    for (uint32_t other = 0; other < LIMIT_DRIVES && err == ICMS_OK; other++)
        if (other != number && has(change->comes | atomic_load(&target->listed), other) &&
            uuid_equal(&target->drives[other].uuid, &drive->uuid))
            err = err_set(why, ICMS_CONFIG,
                          "cannot add %.200s: it has the same UUID as %.200s: one is a copy of the "
                          "other; erase it: `icms drive add --format`",
                          drive->path, target->drives[other].path);
    return err == ICMS_OK ? target_drive_open(drive, why, &change->stores[number]) : err;
}

/* All but what comes is compared; nothing is changed. */
static icms_err change_plan(struct target_drives_change *change, const struct target_opts *opts,
                            struct err_why *why)
{
    const struct target *target = change->target;
    uint32_t takes = 0;

    change->goes = atomic_load(&target->listed);
    for (uint32_t i = 0; i < opts->drive_count; i++) {
        uint32_t number = drive_find(target, opts->drives[i].path);

        takes += !opts->drives[i].drains;
        if (number == LIMIT_DRIVES)
            continue;
        change->goes &= ~((uint32_t)1 << number);
        change->drains |= (uint32_t)opts->drives[i].drains << number;
    }
    if (opts->drive_count == 0 || takes == 0)
        return err_set(why, ICMS_CONFIG,
                       "drives: all of them would be draining, and none would take blocks; leave "
                       "one up");
    return ICMS_OK;
}

uint32_t target_drives_after(const struct target *target)
{
    const struct target_drives_change *change = target->drives_change;
    uint32_t listed = atomic_load(&target->listed);

    if (change == NULL || atomic_load(&change->is_begun))
        return listed;
    return (listed | change->comes) & ~change->goes;
}

/* What a live volume is with these options: a change of volumes may follow. NULL: it is not listed.
 */
static const struct volume_spec *volume_afterwards(const struct target_opts *opts,
                                                   const struct volume_spec *volume)
{
    for (uint32_t i = 0; i < opts->volume_count; i++)
        if (uuid_equal(&opts->volumes[i].uuid, &volume->uuid))
            return &opts->volumes[i];
    return NULL;
}

/* The order and the quotas afterwards. */
static icms_err change_check(struct target_drives_change *change, const struct target_opts *opts,
                             struct err_why *why)
{
    struct target *target = change->target;
    uint32_t all = (atomic_load(&target->listed) | change->comes) & ~change->goes;
    uint32_t in = 0;
    icms_err err = ICMS_OK;

    for (uint32_t i = 0; i < LIMIT_DRIVES; i++)
        if (has(all & ~change->drains, i) && target->drives[i].weight > 0 &&
            (has(change->comes, i) || target_drive_in(target, i)))
            in |= (uint32_t)1 << i;
    if (in == 0)
        return err_set(why, ICMS_CONFIG,
                       "drives: no drive in service would take blocks; leave one up, or add one");
    for (uint32_t v = 0; v < target->volume_count && err == ICMS_OK; v++) {
        const struct volume_spec *volume = volume_afterwards(opts, &target->volumes[v].spec);

        if (target->volumes[v].is_live && volume != NULL)
            err = target_drives_quota_check(target, all, volume, why);
    }
    /* one that is out keeps its place, so that its runs go to the next and come back to it */
    return err == ICMS_OK ? target_drives_map(target, all & ~change->drains, why, &change->map)
                          : err;
}

/* The stores of those that came and did not join are closed: after the loops were freed. */
static void change_free(struct target_drives_change **change)
{
    struct target_drives_change *gone = *change;

    *change = NULL;
    if (gone == NULL)
        return;
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++)
        store_close(&gone->stores[i]);
    place_map_free(&gone->map);
    free(gone);
}

/* On the loop of a drive that came in vain: its store began to run when it was opened. */
static void vain_leave(struct loop_msg *msg)
{
    target_drive_leave(container_of(msg, struct target_drive, left_msg));
}

/* Those that came, and shall not: nobody saw them. */
static void change_undo(struct target *target, struct target_drives_change **change)
{
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        struct target_drive *drive = &target->drives[i];

        if (!has((*change)->comes, i))
            continue;
        atomic_store(&drive->is_leaving, true);
        if ((*change)->stores[i] == NULL) {
            atomic_store(&drive->is_left, true);
            continue;
        }
        drive->store = (*change)->stores[i];
        (*change)->stores[i] = NULL;
        loop_send(drive->loop, &drive->left_msg, vain_leave);
    }
    change_free(change);
}

static void change_arrived(struct loop_msg *msg);
static void change_fire(struct loop_timer *timer);

icms_err target_drives_change(struct target *target, const struct target_opts *opts,
                              uint32_t *out_drive, struct err_why *why)
{
    struct target_drives_change *change;
    icms_err err;

    *out_drive = UINT32_MAX;
    if (target->drives_change != NULL || target->change != NULL)
        return err_set(why, ICMS_BUSY, "the change before is not over");
    change = calloc(1, sizeof(*change));
    if (change == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    change->target = target;
    loop_timer_init(&change->timer, change_fire);
    err = change_plan(change, opts, why);
    for (uint32_t i = 0; i < opts->drive_count && err == ICMS_OK; i++) {
        if (drive_find(target, opts->drives[i].path) < LIMIT_DRIVES)
            continue;
        err = drive_come(change, opts, i, why);
        if (err != ICMS_OK)
            *out_drive = i;
    }
    for (uint32_t i = 0; i < LIMIT_DRIVES && err == ICMS_OK; i++)
        if (has(change->drains & ~change->comes, i))
            err = target_move_init(&target->drives[i], why);
    if (err == ICMS_OK)
        err = change_check(change, opts, why);
    if (err != ICMS_OK) {
        change_undo(target, &change);
        return err;
    }
    target->drives_change = change;
    return ICMS_OK;
}

/* ---- from loop to loop ---------------------------------------------------------------------- */

/* The next of these drives that has not had its turn; NULL: all had. */
static struct target_drive *visit_drive(struct target_drives_change *change, uint32_t drives)
{
    while (change->at < LIMIT_DRIVES && !has(drives, change->at))
        change->at++;
    return change->at < LIMIT_DRIVES ? &change->target->drives[change->at] : NULL;
}

static void change_step_set(struct target_drives_change *change, enum change_step step)
{
    change->step = step;
    change->at = 0;
    change->waits_ns = 0;
}

/* The next drive joins, or all did. */
static void join_next(struct target_drives_change *change, uint32_t from)
{
    change->joins = from;
    while (change->joins < LIMIT_DRIVES && !has(change->comes, change->joins))
        change->joins++;
    change->is_opened = change->is_unknown = false;
    change->note = (struct target_note_df){.rows = {{.missed = 0}}};
    atomic_store(&change->target->joins,
                 change->joins < LIMIT_DRIVES ? (uint32_t)1 << change->joins : 0);
    change_step_set(change, change->joins < LIMIT_DRIVES ? CHANGE_ROWS : CHANGE_MAP);
}

/* Where the step goes on; a step that is done on all of its drives or loops is followed by the
 * next. NULL: there is no step left. */
static struct loop *change_place(struct target_drives_change *change)
{
    struct target *target = change->target;
    struct target_drive *drive = NULL;

    for (;;) {
        switch (change->step) {
        case CHANGE_ROWS:
        case CHANGE_LIMITS:
            drive = visit_drive(change, target_in(target));
            break;
        case CHANGE_JOIN:
            drive = &target->drives[change->joins];
            break;
        case CHANGE_LEAVE:
            drive = visit_drive(change, change->goes);
            break;
        case CHANGE_MAP:
            if (!change->keeps)
                return target->loops[0];
            break;
        case CHANGE_ROUND:
            if (change->at < target->opts.loops)
                return target->loops[change->at];
            break;
        case CHANGE_OVER:
            return NULL;
        }
        if (drive != NULL)
            return drive->loop;
        change_step_set(change, change->step + 1);
    }
}

/* Which numbers have volumes is known since the volumes of before, and those do not change
 * meanwhile. */
static icms_err join_volumes(struct target_drive *drive, struct err_why *why)
{
    struct target *target = drive->target;
    icms_err err = ICMS_OK;

    for (uint32_t v = 0; v < target->volume_count && err == ICMS_OK; v++) {
        err = store_volume_begin(drive->store, v, &target->volumes[v].spec.uuid, why);
        if (err == ICMS_OK && !target->volumes[v].is_live)
            store_volume_retire(drive->store, v);
    }
    return err == ICMS_OK ? target_drive_limits(drive, why) : err;
}

/* It cannot join: it is listed, and out of service. */
static void join_failed(struct target_drives_change *change, struct target_drive *drive,
                        const char *why)
{
    target_lock(drive->target);
    (void)snprintf(drive->why, sizeof(drive->why), "%.255s", why);
    target_unlock(drive->target);
    err_set(&change->failed, ICMS_DRIVE_DOWN, "drive %.200s could not join: %.200s; %s",
            drive->path, why,
            change->goes != 0 || change->keeps
                ? "it is out of service, and what should leave stays in service"
                : "it is out of service");
    change->keeps = change->keeps || change->goes != 0;
    change->goes = 0;
    join_next(change, change->joins + 1);
}

/* On the loop of the drive that joins. False: it waits. */
static bool step_join(struct target_drives_change *change)
{
    struct target *target = change->target;
    struct target_drive *drive = &target->drives[change->joins];
    struct store_stats stats;

    if (!change->is_opened) {
        struct err_why why = {""};

        drive->store = change->stores[drive->index];
        change->stores[drive->index] = NULL;
        atomic_fetch_or(&target->listed, (uint32_t)1 << drive->index);
        target_slow_start(drive);
        change->is_opened = true;
        if (join_volumes(drive, &why) != ICMS_OK) {
            join_failed(change, drive, why.text);
            return true;
        }
    }
    if (change->is_unknown) {
        join_failed(change, drive,
                    "the other drives have no row for it in their lists of drives; restart "
                    "icms-target, which forgets drives that are gone");
        return true;
    }
    if (!target_generations_know(drive, &target->generations))
        return false;
    change->out = atomic_load(&target->out);
    if (!target_members_join(drive, &change->note))
        return false;
    store_stats(drive->store, &stats);
    if (stats.down)
        join_failed(change, drive, "it failed while it was added");
    else if (atomic_compare_exchange_strong(&target->out, &change->out,
                                            (change->out & ~((uint64_t)1 << drive->index)) +
                                                TARGET_ERA))
        join_next(change, change->joins + 1);
    return true;
}

/* Whoever reads the order from now on reads this one. */
static void step_map(struct target_drives_change *change)
{
    struct target *target = change->target;

    change->map = atomic_exchange(&target->map, change->map);
    atomic_store(&target->drains, change->drains);
    for (uint32_t v = 0; v < target->volume_count; v++)
        if (target->volumes[v].spec.quota_bytes > 0)
            target_volume_quota(target, v, target->volumes[v].spec.quota_bytes);
}

static void step_limits(struct target_drive *drive)
{
    struct err_why why = {""};

    /* it was limited before, so nothing is taken that could be missing */
    check(target_drive_limits(drive, &why) == ICMS_OK);
    store_quota_look(drive->store);
}

/* On the loop of the drive that goes. */
static void step_leave(struct target_drive *drive)
{
    struct target *target = drive->target;
    uint64_t bit = (uint64_t)1 << drive->index, out = atomic_load(&target->out);

    while (!atomic_compare_exchange_weak(&target->out, &out, (out | bit) + TARGET_ERA))
        ;
    atomic_store(&drive->is_leaving, true);
    atomic_fetch_and(&target->listed, ~(uint32_t)bit);
    atomic_fetch_and(&target->slow, ~(uint32_t)bit);
    if (drive->store == NULL) {
        atomic_store(&drive->is_left, true);
        return;
    }
    target_members_wake(drive); /* its list does not count any more */
    target_drive_leave(drive);
}

/* On the loop of a drive in service. False: it waits. One that goes may be broken, and is replaced
 * for that: it has a mark at itself soon, or is not heard of again. */
static bool step_rows(struct target_drives_change *change)
{
    struct target *target = change->target;
    struct target_drive *drive = &target->drives[change->at];
    uint64_t now_ns = loop_now_ns(drive->loop);
    bool has_row;

    if (target_members_know(drive, &target->drives[change->joins].uuid, &change->note, &has_row)) {
        change->is_unknown = change->is_unknown || !has_row;
        return true;
    }
    if (change->waits_ns == 0)
        change->waits_ns = now_ns;
    return has(change->goes, change->at) && now_ns - change->waits_ns >= CHANGE_GOES_NS;
}

/* A step in its place. False: it waits. */
static bool change_do(struct target_drives_change *change)
{
    struct target *target = change->target;

    switch (change->step) {
    case CHANGE_ROWS:
        if (!step_rows(change))
            return false;
        break;
    case CHANGE_JOIN:
        return step_join(change);
    case CHANGE_MAP:
        step_map(change);
        change_step_set(change, CHANGE_LIMITS);
        return true;
    case CHANGE_LIMITS:
        step_limits(&target->drives[change->at]);
        break;
    case CHANGE_LEAVE:
        step_leave(&target->drives[change->at]);
        break;
    case CHANGE_ROUND:
    case CHANGE_OVER:
        break;
    }
    change->at++;
    change->waits_ns = 0;
    return true;
}

/* On any of the target's loops. */
static void change_run(struct target_drives_change *change)
{
    struct loop *loop;

    while ((loop = change_place(change)) != NULL) {
        if (!loop_is_mine(loop)) {
            loop_send(loop, &change->msg, change_arrived);
            return;
        }
        if (!change_do(change)) {
            loop_timer_start(loop, &change->timer, loop_now_ns(loop) + CHANGE_LOOK_NS);
            return;
        }
    }
    atomic_store_explicit(&change->is_over, true, memory_order_release);
}

static void change_arrived(struct loop_msg *msg)
{
    change_run(container_of(msg, struct target_drives_change, msg));
}

static void change_fire(struct loop_timer *timer)
{
    change_run(container_of(timer, struct target_drives_change, timer));
}

/* ---- a drive that went ---------------------------------------------------------------------- */

/* On its loop. What others sent it before they knew may still be on its way. */
static void left_last(struct loop_msg *msg)
{
    struct target_drive *drive = container_of(msg, struct target_drive, left_msg);

    if (atomic_load(&drive->quota_sent))
        loop_send(drive->loop, &drive->left_msg, left_last);
    else
        atomic_store_explicit(&drive->is_left, true, memory_order_release);
}

static void left_round(struct loop_msg *msg)
{
    struct target_drive *drive = container_of(msg, struct target_drive, left_msg);
    struct target *target = drive->target;

    if (++drive->left_at < target->opts.loops)
        loop_send(target->loops[drive->left_at], &drive->left_msg, left_round);
    else
        loop_send(drive->loop, &drive->left_msg, left_last);
}

void target_drive_leave(struct target_drive *drive)
{
    struct target *target = drive->target;

    if (drive->store == NULL)
        return;
    if (!list_empty(&drive->flying) || drive->probing || drive->move.is_busy || drive->note_busy ||
        atomic_load(&drive->values) > 0 || atomic_load(&drive->quota_sent) ||
        !target_members_leave(drive) || !store_rest(drive->store)) {
        loop_timer_start(drive->loop, &drive->probe_timer,
                         loop_now_ns(drive->loop) + CHANGE_LOOK_NS);
        return;
    }
    loop_timer_stop(drive->loop, &drive->probe_timer);
    drive->closing = drive->store;
    drive->store = NULL;
    drive->left_at = 0;
    loop_send(target->loops[0], &drive->left_msg, left_round);
}

/* The control thread: frees those that went. */
static void drives_reap(struct target *target)
{
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        struct target_drive *drive = &target->drives[i];

        if (!atomic_load_explicit(&drive->is_left, memory_order_acquire))
            continue;
        target_lock(target);
        store_close(&drive->closing);
        target_drive_fini(drive);
        target_unlock(target);
    }
}

/* ---- the control thread --------------------------------------------------------------------- */

void target_drives_commit(struct target *target)
{
    struct target_drives_change *change = target->drives_change;

    check(change != NULL && !atomic_load(&change->is_begun));
    atomic_store(&change->is_begun, true);
    join_next(change, 0);
    loop_send(target->loops[0], &change->msg, change_arrived);
}

void target_drives_cancel(struct target *target)
{
    check(target->drives_change != NULL && !atomic_load(&target->drives_change->is_begun));
    change_undo(target, &target->drives_change);
}

void target_drives_weigh(struct target *target, const uint8_t percent[LIMIT_DRIVES])
{
    struct target_drives_change *change;
    uint32_t listed = atomic_load(&target->listed), drains = atomic_load(&target->drains);
    struct err_why why = {""};
    bool differs = false;

    if (target->drives_change != NULL)
        return;
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        if (!has(listed, i) || target->drives[i].part_percent == percent[i])
            continue;
        target->drives[i].part_percent = percent[i];
        differs = true;
    }
    if (!differs)
        return;
    change = calloc(1, sizeof(*change));
    if (change == NULL)
        return;
    change->target = target;
    change->drains = drains;
    change->is_weight = true;
    loop_timer_init(&change->timer, change_fire);
    if (target_drives_map(target, listed & ~drains, &why, &change->map) != ICMS_OK) {
        change_free(&change); /* the next reading that differs makes it */
        return;
    }
    target->drives_change = change;
    target_drives_commit(target);
}

bool target_drives_changing(const struct target *target)
{
    return target->drives_change != NULL && atomic_load(&target->drives_change->is_begun);
}

bool target_drives_changed(struct target *target, struct err_why *why)
{
    struct target_drives_change *change = target->drives_change;
    bool is_asked;

    why->text[0] = '\0';

    drives_reap(target);
    if (change == NULL || !atomic_load_explicit(&change->is_over, memory_order_acquire))
        return false;
    is_asked = !change->is_weight;
    *why = change->failed;
    change_free(&target->drives_change);
    return is_asked;
}

void target_drives_change_fini(struct target *target)
{
    change_free(&target->drives_change);
}
