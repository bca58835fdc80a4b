/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives that work and are slow: one must cost its own blocks time, and nobody else.
 *
 * Called by requests on the drive's loop. What goes to a store is in drive->flying until it is
 * over.
 *
 * In use to slow: TARGET_LATES operations in a row were late (target_slow_begin, _end), past their
 * deadline and TARGET_LATE_MIN_NS under way, or without one TARGET_LATE_NS. Or TARGET_PROBE_LATES
 * probes in a row took TARGET_PROBE_LATE_NS: a drive of few operations a second keeps the deadlines
 * of one client, which then waits for each. New loads ask the next drive in order, new stores go
 * there. Not unless half of the drives are well: when all are late there is too much to do, and no
 * drive to blame.
 *
 * Slow to in use: two probes in a row (one page, each TARGET_PROBE_NS, in the background) took no
 * longer than they do on this drive when it is well (target_probe_done).
 *
 * Before it is known to be slow, and when its answers come just in time, a drive may hold many
 * buffers: target_slow_clogged bounds its share. The latency of each operation is counted here,
 * too.
 */
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "target/target_int.h"

/* Late operations in a row that make a drive slow. */
#define TARGET_LATES 8

/* Under way for so long an operation without a deadline is late. */
#define TARGET_LATE_NS ((uint64_t)2 * 1000 * 1000 * 1000)

/* One with a deadline is late when it passed, and not before it was under way for this long:
 * clients that give too little time must not take a drive away from others. */
#define TARGET_LATE_MIN_NS ((uint64_t)5 * 1000 * 1000)

/* A drive is clogged when its oldest operation is this old and it holds too large a share. */
#define TARGET_CLOG_NS ((uint64_t)100 * 1000 * 1000)

#define TARGET_PROBE_NS ((uint64_t)250 * 1000 * 1000)

/* A page takes so long on a drive that is slow, and so many in a row; beside no more operations
 * than this: where there are more, they are what the probe waits for. */
#define TARGET_PROBE_LATE_NS ((uint64_t)200 * 1000 * 1000)
#define TARGET_PROBE_LATES   3
#define TARGET_PROBE_BESIDE  4

/* A probe is good within so many times the best one, or this. */
#define TARGET_PROBE_FACTOR  8
#define TARGET_PROBE_GOOD_NS ((uint64_t)1000 * 1000)

/* A deadline that no drive could keep says nothing of this one. */
static bool slow_is_late(const struct target_req *req, uint64_t now)
{
    if (req->nvmf->deadline_ns == 0)
        return now >= req->begin_ns + TARGET_LATE_NS;
    return now >= u64_max(req->nvmf->deadline_ns, req->begin_ns + TARGET_LATE_MIN_NS);
}

/* Of the drives that take values but one, those that answer in time now. */
static uint32_t slow_well(const struct target *target, uint32_t takes, uint32_t but)
{
    uint32_t well = 0;

    for (uint32_t i = 0; i < LIMIT_DRIVES; i++)
        well += i != but && (takes >> i & 1) != 0 && target_drive_in(target, i) &&
                !target_drive_slow(target, i) &&
                atomic_load_explicit(&target->drives[i].lates, memory_order_relaxed) == 0 &&
                atomic_load_explicit(&target->drives[i].probe_lates, memory_order_relaxed) == 0;
    return well;
}

/* Takes the drive out of the way, unless the others are no better: then there is too much to do. */
static void slow_set(struct target_drive *drive)
{
    struct target *target = drive->target;
    uint32_t bit = (uint32_t)1 << drive->index;
    uint32_t takes = atomic_load(&target->listed) & ~atomic_load(&target->drains);

    if (target_drive_slow(target, drive->index) ||
        2 * slow_well(target, takes, drive->index) < (uint32_t)__builtin_popcount(takes))
        return;
    drive->probes_good = 0;
    atomic_fetch_or(&target->slow, bit);
    atomic_fetch_add_explicit(&drive->slow_total, 1, memory_order_relaxed);
}

static void slow_count(struct target_drive *drive, struct target_req *req)
{
    if (req->late)
        return;
    req->late = true;
    if (atomic_fetch_add_explicit(&drive->lates, 1, memory_order_relaxed) + 1 >= TARGET_LATES)
        slow_set(drive);
}

/* Buffers go to the drive, or (negative) come back. */
static void slow_bytes(struct target_drive *drive, const struct target_req *req, uint64_t bytes)
{
    bool store = req->nvmf->op == NVMF_TARGET_STORE;

    drive->flying_bytes[store] += bytes;
    atomic_fetch_add_explicit(&drive->target->flying_bytes[store], bytes, memory_order_relaxed);
}

void target_slow_begin(struct target_drive *drive, struct target_req *req)
{
    uint64_t now = loop_now_ns(drive->loop);

    list_for_each (link, &drive->flying) {
        struct target_req *older = container_of(link, struct target_req, link);

        if (!slow_is_late(older, now))
            break;
        slow_count(drive, older);
    }
    req->drive = drive->index;
    req->begin_ns = now;
    req->late = false;
    list_push(&drive->flying, &req->link);
    slow_bytes(drive, req, req->nvmf->memory_bytes);
}

void target_slow_end(struct target_req *req)
{
    struct target_drive *drive = &req->target->drives[req->drive];

    uint64_t now = loop_now_ns(drive->loop);

    list_remove(&req->link);
    slow_bytes(drive, req, -req->nvmf->memory_bytes);
    hist_add(req->nvmf->op == NVMF_TARGET_RETRIEVE ? &drive->read_ns : &drive->write_ns,
             now - req->begin_ns);
    if (slow_is_late(req, now))
        slow_count(drive, req);
    else
        atomic_store_explicit(&drive->lates, 0, memory_order_relaxed);
}

bool target_slow_clogged(const struct target_drive *drive, bool store)
{
    const struct target *target = drive->target;
    struct list *first = list_first(&drive->flying);
    uint64_t all = atomic_load_explicit(&target->flying_bytes[store], memory_order_relaxed);

    return target_listed(target) > 1 && first != NULL &&
           drive->flying_bytes[store] > target->opts.nvmf.memory_bytes / TARGET_SHARE &&
           drive->flying_bytes[store] > all / 4 * 3 &&
           loop_now_ns(drive->loop) >=
               container_of(first, struct target_req, link)->begin_ns + TARGET_CLOG_NS;
}

/* ---- probes --------------------------------------------------------------------------------- */

static bool slow_is_busy(const struct target_drive *drive)
{
    uint32_t count = 0;

    list_for_each (link, &drive->flying)
        if (++count > TARGET_PROBE_BESIDE)
            return true;
    return false;
}

/* For how long the last probe took, or takes. */
static void slow_probe_count(struct target_drive *drive, uint64_t took_ns)
{
    uint32_t lates = 0;

    if (took_ns >= TARGET_PROBE_LATE_NS && !slow_is_busy(drive))
        lates = 1 + atomic_load_explicit(&drive->probe_lates, memory_order_relaxed);
    atomic_store_explicit(&drive->probe_lates, lates, memory_order_relaxed);
    if (lates >= TARGET_PROBE_LATES)
        slow_set(drive);
}

static void target_probe_done(struct store_probe *probe)
{
    struct target_drive *drive = container_of(probe, struct target_drive, probe);
    uint64_t took_ns = loop_now_ns(drive->loop) - drive->probe_begin_ns;

    drive->probing = false;
    slow_probe_count(drive, took_ns);
    if (probe->err != ICMS_OK) {
        drive->probes_good = 0;
        return;
    }
    if (drive->probe_best_ns == 0 || took_ns < drive->probe_best_ns)
        drive->probe_best_ns = took_ns;
    if (took_ns > u64_max(drive->probe_best_ns * TARGET_PROBE_FACTOR, TARGET_PROBE_GOOD_NS))
        drive->probes_good = 0;
    else if (++drive->probes_good >= 2 && target_drive_slow(drive->target, drive->index)) {
        atomic_store_explicit(&drive->lates, 0, memory_order_relaxed);
        atomic_store_explicit(&drive->probe_lates, 0, memory_order_relaxed);
        atomic_fetch_and(&drive->target->slow, ~((uint32_t)1 << drive->index));
    }
}

static void target_probe(struct loop_timer *timer)
{
    struct target_drive *drive = container_of(timer, struct target_drive, probe_timer);

    if (drive->is_leaving) {
        target_drive_leave(drive);
        return;
    }
    loop_timer_start(drive->loop, timer, loop_now_ns(drive->loop) + TARGET_PROBE_NS);
    target_move_next(drive);
    store_quota_look(drive->store); /* a write may have waited too long for other drives */
    if (drive->probing) {
        uint64_t took_ns = loop_now_ns(drive->loop) - drive->probe_begin_ns;

        if (took_ns >= TARGET_PROBE_LATE_NS)
            slow_probe_count(drive, took_ns);
        return;
    }
    drive->probe_begin_ns = loop_now_ns(drive->loop);
    drive->probe.memory = drive->probe_memory;
    drive->probe.done = target_probe_done;
    drive->probing = store_probe(drive->store, &drive->probe) == ICMS_OK;
}

icms_err target_slow_init(struct target_drive *drive, struct err_why *why)
{
    list_init(&drive->flying);
    drive->probe_memory = aligned_alloc(LIMIT_DISK_ALIGN, LIMIT_DISK_ALIGN);
    if (drive->probe_memory == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: no memory for a page", drive->path);
    loop_timer_init(&drive->probe_timer, target_probe);
    return ICMS_OK;
}

void target_slow_start(struct target_drive *drive)
{
    loop_timer_start(drive->loop, &drive->probe_timer, loop_now_ns(drive->loop));
}
