/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store under simulation: crashes, power cuts, torn and lost writes, failing and lying devices,
 * over many seeds, against a model.
 *
 *   store_sim_test [SEEDS [FIRST]]
 *
 * Honest devices, crashes and power cuts (honest_run). The model knows for each key which states it
 * may be in: all states since the last flush that covered it. After a crash of the process a block
 * that was acknowledged and not evicted is a hit with its last bytes; after a power cut one that
 * was also flushed and not changed since. Whatever is read is a state the model allows: what was
 * replaced or deleted before a flush never comes back.
 *
 * Devices that lie (lying_run): reads fail, writes fail, are lost or torn though answered, bits
 * flip. Then a hit is only held to be some value that was once stored under that key. When the
 * faults end, everything stored from then on is there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "loop/sim.h"
#include "store/store_rig.h"
#include "store/store_verify.h"

#define KEYS       48
#define VOLUMES    3
#define FLIGHT     12
#define STATES_MAX 512
#define LIVES      7
#define OPS_A_LIFE 160

/* A state of a key; version 0: not there. A version is the seed of its value. */
struct state {
    uint64_t version;
    uint32_t bytes;
};

struct cell {
    struct state states[STATES_MAX]; /* possible ones; [0] is the last flushed one */
    uint32_t count;
    uint32_t latest;       /* the last acknowledged one                         */
    bool unsure;           /* a change failed or was cut off: latest or any after */
    struct rig_op *flying; /* one operation a key at a time                      */
    bool existed;          /* in the index right before the crash               */
    bool recovered;        /* in the index right after the open                 */
};

struct run {
    uint64_t seed, next; /* dice                                          */
    bool lying;
    uint64_t evictions; /* counted before the crash                                       */
    uint64_t evicted;   /* the crash cut these off: counted on flash, and not before      */
    bool full[VOLUMES]; /* at its quota, or the index full, after the open: the oldest blocks may
                           have had to go */
    uint64_t version;
    struct rig rig;
    struct cell cells[VOLUMES][KEYS];
    struct rig_op *flying[FLIGHT];
    struct rig_op *flush;
    uint32_t flush_latest[VOLUMES][KEYS]; /* latest when the flush began */
    uint64_t hits, misses, must;          /* that were seen; of the hits: that had to be */
    uint64_t refused;                     /* writes, by the budget */
};

static uint64_t dice(struct run *run, uint64_t below)
{
    return hash64_mix(run->seed * 0x9e3779b97f4a7c15u + ++run->next) % below;
}

static void run_fail(struct run *run, uint32_t volume, uint64_t key, const char *what)
{
    const struct cell *cell = &run->cells[volume][key];

    print_message("seed %llu: volume %u key %llu: %s; latest %u of %u (version %llu)\n",
                  (unsigned long long)run->seed, volume, (unsigned long long)key, what,
                  cell->latest, cell->count,
                  (unsigned long long)cell->states[cell->latest].version);
    fail();
}

/* ---- the model --------------------------------------------------------------------------------
 */

static uint32_t cell_push(struct cell *cell, uint64_t version, uint32_t bytes)
{
    check(cell->count < STATES_MAX);
    cell->states[cell->count] = (struct state){.version = version, .bytes = bytes};
    return cell->count++;
}

/* The states before the one a flush made durable are over. */
static void cell_flushed(struct cell *cell, uint32_t from)
{
    if (from == 0)
        return;
    memmove(cell->states, cell->states + from, (cell->count - from) * sizeof(cell->states[0]));
    cell->count -= from;
    cell->latest -= from;
}

/* ---- operations -------------------------------------------------------------------------------
 */

/* An answered change: its state is the last one of the cell. */
static void op_changed(struct run *run, struct rig_op *op, struct cell *cell)
{
    bool done = op->err == ICMS_OK || (op->kind == RIG_DELETE && op->err == ICMS_MISS);

    if (op->kind == RIG_WRITE && op->err == ICMS_BUSY && run->rig.opts.budget.bytes_day != 0) {
        check(cell->count > 1); /* refused: it never was */
        cell->count--;
        run->refused++;
        return;
    }
    if (!run->lying && !done)
        run_fail(run, op->volume, op->seed, icms_err_name(op->err));
    if (op->err == ICMS_OK || op->err == ICMS_MISS)
        cell->latest = cell->count - 1;
}

static void op_was_read(struct run *run, struct rig_op *op, uint64_t key, struct cell *cell)
{
    const struct state *latest = &cell->states[cell->latest];

    if (op->err == ICMS_OK) {
        bool good = false;

        run->hits++;
        for (uint32_t i = run->lying ? 0 : cell->latest; i < cell->count && !good; i++)
            good = cell->states[i].version != 0 && cell->states[i].bytes == op->value_bytes &&
                   rig_check(op->u.read.value, op->value_bytes, cell->states[i].version);
        if (!good)
            run_fail(run, op->volume, key, "wrong bytes");
        return;
    }
    run->misses++;
    if (run->lying)
        return;
    if (op->err != ICMS_MISS)
        run_fail(run, op->volume, key, icms_err_name(op->err));
    if (latest->version != 0 && op->reason == ICMS_MISS_CHECKSUM)
        run_fail(run, op->volume, key, "damaged");
}

static void op_harvest(struct run *run, struct rig_op **slot)
{
    struct rig_op *op = *slot;

    *slot = NULL;
    if (op->kind == RIG_FLUSH) {
        if (op->err == ICMS_OK && !run->lying) {
            for (uint32_t v = 0; v < VOLUMES; v++) {
                for (uint32_t k = 0; k < KEYS; k++)
                    cell_flushed(&run->cells[v][k], run->flush_latest[v][k]);
            }
        }
    } else {
        uint64_t key = op->seed;
        struct cell *cell = &run->cells[op->volume][key];

        check(cell->flying == op);
        cell->flying = NULL;
        if (op->kind == RIG_READ)
            op_was_read(run, op, key, cell);
        else
            op_changed(run, op, cell);
    }
    rig_op_free(op);
}

static void run_harvest(struct run *run)
{
    for (uint32_t i = 0; i < FLIGHT; i++) {
        if (run->flying[i] != NULL && atomic_load(&run->flying[i]->done) != 0)
            op_harvest(run, &run->flying[i]);
    }
    if (run->flush != NULL && atomic_load(&run->flush->done) != 0)
        op_harvest(run, &run->flush);
}

/* The seed field of an operation is the number of its key here; versions make the values. */
static void op_value(struct rig_op *op, uint64_t version)
{
    rig_fill(op->memory + STORE_HEADER_BYTES, op->value_bytes, version);
}

static void run_start(struct run *run, uint32_t slot)
{
    uint32_t volume = (uint32_t)dice(run, VOLUMES);
    uint64_t key = dice(run, KEYS), what = dice(run, 100);
    struct cell *cell = &run->cells[volume][key];
    struct rig_op *op;

    if (what < 4 && run->flush == NULL) {
        run->flush = rig_op_new(&run->rig, RIG_FLUSH, 1);
        for (uint32_t v = 0; v < VOLUMES; v++) {
            for (uint32_t k = 0; k < KEYS; k++)
                run->flush_latest[v][k] = run->cells[v][k].latest;
        }
        rig_op_start(run->flush);
        return;
    }
    if (cell->flying != NULL || (!run->lying && cell->count > STATES_MAX - 8))
        return;
    op = rig_op_new(&run->rig,
                    what < 60   ? RIG_WRITE
                    : what < 85 ? RIG_READ
                                : RIG_DELETE,
                    run->rig.opts.value_bytes_max);
    op->volume = volume;
    op->key = rig_key(key);
    op->seed = key;
    if (op->kind == RIG_WRITE) {
        op->value_bytes =
            1 + (uint32_t)dice(run, dice(run, 2) == 0 ? 6000 : run->rig.opts.value_bytes_max - 1);
        op_value(op, ++run->version);
        (void)cell_push(cell, run->version, op->value_bytes);
        op->prefilled = true;
    } else if (op->kind == RIG_DELETE) {
        (void)cell_push(cell, 0, 0);
    }
    cell->flying = op;
    run->flying[slot] = op;
    rig_op_start(op);
}

/* ---- lives ------------------------------------------------------------------------------------
 */

static void run_steps(struct run *run, uint64_t steps)
{
    while (steps-- > 0 && sim_step(run->rig.sim))
        run_harvest(run);
}

/* Everything in flight ends. */
static void run_quiet(struct run *run)
{
    for (uint32_t i = 0; i < FLIGHT; i++) {
        if (run->flying[i] != NULL) {
            rig_op_wait(run->flying[i]);
            op_harvest(run, &run->flying[i]);
        }
    }
    if (run->flush != NULL) {
        rig_op_wait(run->flush);
        op_harvest(run, &run->flush);
    }
}

static void run_life(struct run *run)
{
    uint64_t ops = OPS_A_LIFE / 2 + dice(run, OPS_A_LIFE);

    for (uint64_t n = 0; n < ops; n++) {
        uint32_t slot = (uint32_t)dice(run, FLIGHT);

        run_steps(run, dice(run, 30));
        if (run->flying[slot] == NULL)
            run_start(run, slot);
    }
}

/* Asks the index while no event runs. */
static void run_look(struct run *run, bool after)
{
    struct rig *rig = &run->rig;

    for (uint32_t v = 0; v < VOLUMES; v++) {
        for (uint64_t k = 0; k < KEYS; k++) {
            struct key key = rig_key(k);
            bool there = store_exists(rig->store, v, &key, NULL);

            if (after)
                run->cells[v][k].recovered = there;
            else
                run->cells[v][k].existed = there;
        }
    }
}

/* The machine or the process dies now. */
static void run_crash(struct run *run, bool power)
{
    struct rig *rig = &run->rig;
    struct store_stats stats;

    run_harvest(run); /* what was answered was answered */
    run_look(run, false);
    rig_stats(rig, &stats);
    run->evictions = stats.evictions;
    sim_node_crash(rig->node, power, false);
    loop_free(&rig->loop);
    store_close(&rig->store);
    for (uint32_t i = 0; i < FLIGHT; i++) {
        if (run->flying[i] == NULL)
            continue;
        if (run->flying[i]->kind != RIG_READ)
            run->cells[run->flying[i]->volume][run->flying[i]->seed].unsure = true;
        run->cells[run->flying[i]->volume][run->flying[i]->seed].flying = NULL;
        rig_op_free(run->flying[i]);
        run->flying[i] = NULL;
    }
    if (run->flush != NULL)
        rig_op_free(run->flush);
    run->flush = NULL;
}

/* Reads a key and returns the state it is in: its place in the cell, or UINT32_MAX for a miss. */
static uint32_t run_observe(struct run *run, uint32_t volume, uint64_t key,
                            enum icms_miss *out_reason)
{
    struct cell *cell = &run->cells[volume][key];
    struct rig_op *op = rig_op_new(&run->rig, RIG_READ, run->rig.opts.value_bytes_max);
    uint32_t found = UINT32_MAX;

    op->volume = volume;
    op->key = rig_key(key);
    rig_op_start(op);
    rig_op_wait(op);
    if (op->err == ICMS_OK) {
        for (uint32_t i = cell->count; i-- > 0 && found == UINT32_MAX;) {
            if (cell->states[i].version != 0 && cell->states[i].bytes == op->value_bytes &&
                rig_check(op->u.read.value, op->value_bytes, cell->states[i].version))
                found = i;
        }
        if (found == UINT32_MAX)
            run_fail(run, volume, key, "holds what it must not hold");
    } else if (op->err != ICMS_MISS && !run->lying) {
        run_fail(run, volume, key, icms_err_name(op->err));
    }
    *out_reason = op->reason;
    rig_op_free(op);
    return found;
}

/* After a crash: is the state of a key one it may be in? Then it is the one it is in. */
static void run_judge(struct run *run, uint32_t volume, uint64_t key, bool power)
{
    struct cell *cell = &run->cells[volume][key];
    enum icms_miss reason;
    uint32_t found = run_observe(run, volume, key, &reason);
    bool value = cell->states[cell->latest].version != 0;
    bool forgotten = false; /* evicted by the second open */
    bool must = value && cell->existed && !cell->unsure && (!power || cell->latest == 0);
    struct state state = {0};

    if (found == UINT32_MAX)
        forgotten = reason == ICMS_MISS_EVICTED;
    if (must && !cell->recovered && !run->full[volume]) {
        if (run->evicted == 0)
            run_fail(run, volume, key, "lost");
        run->evicted--;
    }
    if (must && reason == ICMS_MISS_CHECKSUM)
        run_fail(run, volume, key, "damaged");
    if (must && cell->recovered && found != cell->latest && (found != UINT32_MAX || !forgotten))
        run_fail(run, volume, key, found == UINT32_MAX ? "damaged" : "not the latest");
    if (found != UINT32_MAX) {
        state = cell->states[found];
        run->hits++;
        run->must += must;
        if (!power && found < cell->latest)
            run_fail(run, volume, key, "an older value came back");
    }
    cell->unsure = false;
    if (found == UINT32_MAX && run->full[volume] && reason != ICMS_MISS_CHECKSUM) {
        if (power) /* the latest change may be lost, and no flush makes it durable any more */
            cell->latest = 0;
        return; /* perhaps evicted just now: the next crash may bring it back */
    }
    if (power)
        cell->count = 0; /* all there is on the medium is durable */
    if (power || found != cell->latest || found == UINT32_MAX)
        cell->latest = cell_push(cell, state.version, state.bytes);
}

/* Blocks that nobody was told of, and evicted ones in shared segments, come back with a crash; a
 * volume that is over its quota with them gives up its oldest, and ends less than a record below.
 */
static void run_look_full(struct run *run)
{
    struct store_volume_stats stats;
    struct store_stats all;

    rig_stats(&run->rig, &all);
    for (uint32_t v = 0; v < VOLUMES; v++) {
        store_volume_stats(run->rig.store, v, &stats);
        run->full[v] = run->rig.opts.blocks_max != 0 && all.evictions > 0;
        run->full[v] |=
            stats.quota_bytes != 0 &&
            stats.bytes + store_record_bytes(run->rig.opts.value_bytes_max) > stats.quota_bytes;
    }
}

static void run_recover(struct run *run, bool power)
{
    struct err_why why = {""};
    struct store_stats stats;

    rig_up(&run->rig);
    run_look(run, true);
    run_look_full(run);
    loop_stop(run->rig.loop);
    loop_join(run->rig.loop);
    if (store_verify(run->rig.store, &why) != 0) {
        print_message("seed %llu: %s\n", (unsigned long long)run->seed, why.text);
        fail();
    }
    rig_down(&run->rig);
    rig_up(&run->rig);
    rig_stats(&run->rig, &stats);
    run->evicted = stats.evictions - run->evictions;
    for (uint32_t v = 0; v < VOLUMES; v++) {
        for (uint64_t k = 0; k < KEYS; k++)
            run_judge(run, v, k, power);
    }
}

/* ---- runs -------------------------------------------------------------------------------------
 */

static struct run *run_new(uint64_t seed, bool lying)
{
    struct run *run = calloc(1, sizeof(*run));
    struct sim_opts opts;

    check(run != NULL);
    run->seed = seed;
    run->lying = lying;
    sim_opts_init(&opts, seed);
    if (lying) {
        opts.disk_read_error_ppm = 2000;
        opts.disk_write_error_ppm = 2000;
        opts.disk_write_lost_ppm = 4000;
        opts.disk_write_torn_ppm = 4000;
        opts.disk_corrupt_ppm = 4000;
    }
    rig_sim_init(&run->rig, &opts);
    for (uint32_t v = 0; v < VOLUMES; v++) {
        run->rig.uuid[v] = rig_uuid(v);
        for (uint32_t k = 0; k < KEYS; k++)
            run->cells[v][k].latest = cell_push(&run->cells[v][k], 0, 0);
    }
    run->rig.volume_count = VOLUMES;
    run->rig.quota_bytes[1] = (4 + dice(run, 6)) * RIG_SEGMENT_BYTES;
    run->rig.quota_bytes[2] = (1 + dice(run, 3)) * RIG_SEGMENT_BYTES;
    run->rig.opts.bytes = ((uint64_t)1 << 20) + dice(run, 40) * RIG_SEGMENT_BYTES;
    run->rig.opts.writes_max = 1 + (uint32_t)dice(run, 10);
    if (seed % 4 == 2) /* an index too small for all keys */
        run->rig.opts.blocks_max = dice(run, 2) == 0 ? 0 : 64 + dice(run, 64);
    if (!lying && seed % 4 == 3) /* a life begins with a part of it, hours do not pass */
        run->rig.opts.budget.bytes_day = 96 * (64 + dice(run, 1024)) * 1024;
    return run;
}

static void run_free(struct run *run)
{
    rig_down(&run->rig);
    sim_free(&run->rig.sim);
    free(run);
}

struct totals {
    uint64_t hits, must, refused;
};

static void honest_run(uint64_t seed, struct totals *totals)
{
    struct run *run = run_new(seed, false);
    struct store_stats stats;

    rig_format(&run->rig);
    rig_up(&run->rig);
    for (uint32_t life = 0; life < LIVES; life++) {
        bool power = dice(run, 2) == 0;

        run_life(run);
        run_crash(run, power);
        run_recover(run, power);
    }
    run_life(run);
    run_quiet(run);
    rig_stats(&run->rig, &stats);
    totals->hits += run->hits;
    totals->must += run->must;
    totals->refused += run->refused;
    run_free(run);
}

/* Opens a drive that may fail to be read. */
static void lying_up(struct run *run)
{
    sim_faults(run->rig.sim, false);
    rig_up(&run->rig);
    sim_faults(run->rig.sim, true);
}

static void lying_run(uint64_t seed, uint64_t *hits, uint64_t *must)
{
    struct run *run = run_new(seed, true);
    uint64_t after = 0;

    sim_faults(run->rig.sim, false);
    rig_format(&run->rig);
    lying_up(run);
    for (uint32_t life = 0; life < LIVES; life++) {
        run_life(run);
        run_crash(run, dice(run, 2) == 0);
        lying_up(run);
        for (uint32_t v = 0; v < VOLUMES; v++) {
            enum icms_miss reason;

            for (uint64_t k = 0; k < KEYS; k++)
                run->hits += run_observe(run, v, k, &reason) != UINT32_MAX;
        }
        if (atomic_exchange(&run->rig.down_calls, 0) != 0)
            rig_restart(&run->rig);
    }
    sim_faults(run->rig.sim, false);
    rig_restart(&run->rig);
    for (uint64_t k = 0; k < KEYS; k++) {
        assert_int_equal(rig_put(&run->rig, 0, 1000 + k, 3000, 7000000 + k, 0), ICMS_OK);
        after++;
    }
    for (int again = 0; again < 2; again++) {
        for (uint64_t k = KEYS - 30; k < KEYS; k++) /* 30 blocks are 120 KiB: not evicted */
            assert_int_equal(rig_get(&run->rig, 0, 1000 + k, 3000, 7000000 + k, NULL), ICMS_OK);
        rig_restart(&run->rig);
    }
    *hits += run->hits;
    *must += after;
    run_free(run);
}

static uint64_t seeds = 25, first = 1;

static void crashes_and_power_cuts_agree_with_the_model(void **state)
{
    struct totals totals = {0};

    for (uint64_t seed = first; seed < first + seeds; seed++)
        honest_run(seed, &totals);
    print_message("%llu hits, %llu of them after a crash and certain; %llu writes refused\n",
                  (unsigned long long)totals.hits, (unsigned long long)totals.must,
                  (unsigned long long)totals.refused);
    assert_true(totals.must > 20 * seeds); /* forgetting everything would fail */
    if (seeds >= 4)
        assert_true(totals.refused > 0);
}

static void lying_devices_never_make_wrong_bytes(void **state)
{
    uint64_t hits = 0, must = 0;

    for (uint64_t seed = first; seed < first + seeds; seed++)
        lying_run(seed, &hits, &must);
    assert_true(hits > 50 * seeds);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crashes_and_power_cuts_agree_with_the_model),
        cmocka_unit_test(lying_devices_never_make_wrong_bytes),
    };

    if (argc > 1)
        seeds = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        first = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests_name("store-sim", tests, NULL, NULL);
}
