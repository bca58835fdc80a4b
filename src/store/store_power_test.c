/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power cuts: a store loses power again and again, each time in the middle of its work, and every
 * block it ever took is compared with a model afterwards.
 *
 *   store_power_test [SEED [CUTS]]      cuts of seed SEED, SEED + 1, ...; CUTS_A_SEED each
 *
 * The simulated disk keeps, loses or tears each write that was not flushed, by sectors, in any
 * order, so old content shows through; what was discarded is old, zeros or garbage. Each block has
 * a key of its own and is never overwritten (store_sim_test.c does that); in every other seed
 * blocks are deleted, too. After each cut:
 *
 * - A block reads as it was written, or is a miss; *checksum* only when it was torn before it was
 *   flushed. What the index says is there can be read.
 * - Acknowledged and flushed: a hit, unless it was evicted, which is counted. Deleted: a miss for
 *   good.
 * - The counters of evictions are the numbers of blocks that are gone: before the cut for each
 *   volume and to the block; after it for the drive, at least the flushed ones and at most all; to
 *   the block when all was flushed before the cut (half of the cuts) and nothing is deleted in this
 *   seed.
 * - Blocks and bytes in use are those of the model, volume by volume; no quota is exceeded;
 *   store_verify reads the whole drive and finds exactly the index.
 *
 * A failure prints the seed and the cut.
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
#include "store/layout.h"
#include "store/store_rig.h"
#include "store/store_verify.h"

#define CUTS_A_SEED 10
#define VOLUMES     3
#define FLIGHT      12
#define OPS_A_LIFE  160
#define BLOCKS_MAX  ((CUTS_A_SEED + 1) * 2 * OPS_A_LIFE)

/* One block; its number is its key and the seed of its value. */
struct block {
    uint32_t volume;      /* row of the rig                                                  */
    uint32_t bytes;       /* of its value                                                    */
    bool acked;           /* its store was answered, or it was found after a cut             */
    bool flushed;         /* and a flush that began later was answered, too                  */
    bool deleted;         /* its delete was answered                                         */
    bool delete_flushed;  /* and a flush that began later was answered, too                  */
    bool unsure;          /* its store was under way when the power went                     */
    bool delete_unsure;   /* its delete was                                                  */
    bool flying;          /* an operation is under way                                       */
    bool alive;           /* found at the open or stored since, and not deleted              */
    bool there;           /* in the index when that was looked at last                       */
    bool gone;            /* acknowledged, and not there after the last cut                  */
    bool flush_sees;      /* acknowledged before the flush under way began                   */
    bool flush_sees_gone; /* deleted before it began                                         */
};

struct run {
    uint64_t seed, next;             /* dice                                            */
    uint32_t cut;                    /* number of the cut, for messages                 */
    bool deletes;                    /* blocks are deleted in this seed                 */
    bool calm;                       /* everything was flushed before this cut          */
    struct rig rig;                  /* the drive                                       */
    struct block blocks[BLOCKS_MAX]; /* all there ever were                             */
    uint32_t count;                  /* of blocks                                       */
    struct rig_op *flying[FLIGHT];   /* operations under way                            */
    struct rig_op *flush;            /* a flush under way                               */
    uint64_t evictions[VOLUMES];     /* counters of volumes after the open              */
    uint64_t evictions_all;          /* that of the drive                               */
    uint64_t loose[VOLUMES];         /* evictions nobody can be sure of: of stores that
                                        were cut off, and, with deletes, of deleted ones */
};

static uint64_t first = 1;      /* seed                                       */
static uint32_t cuts_all = 100; /* to make; other cases have as many seeds, or twice */
static uint64_t hits;           /* after cuts                                 */
static uint64_t counted;        /* that the counters said after cuts          */
static uint64_t discarded;      /* bytes                                      */

static uint64_t dice(struct run *run, uint64_t below)
{
    return hash64_mix(run->seed * 0x9e3779b97f4a7c15u + ++run->next) % below;
}

static __attribute__((format(printf, 2, 3))) void run_fail(const struct run *run,
                                                           const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    print_message("store_power_test %llu %u: cut %u: %s\n", (unsigned long long)run->seed,
                  run->cut + 1, run->cut, text);
    fail();
}

static void block_fail(const struct run *run, uint32_t n, const char *what)
{
    run_fail(run, "block %u of volume %u %s", n, run->blocks[n].volume, what);
}

/* ---- operations -------------------------------------------------------------------------------
 */

static void op_harvest(struct run *run, struct rig_op **slot)
{
    struct rig_op *op = *slot;
    struct block *block = &run->blocks[op->seed];

    *slot = NULL;
    block->flying = false;
    if (op->kind == RIG_WRITE) {
        if (op->err != ICMS_OK)
            block_fail(run, (uint32_t)op->seed, icms_err_name(op->err));
        block->acked = block->alive = true;
    } else if (op->kind == RIG_DELETE) {
        if (op->err != ICMS_OK && op->err != ICMS_MISS)
            block_fail(run, (uint32_t)op->seed, icms_err_name(op->err));
        block->deleted = block->delete_flushed = true;
        block->alive = false;
        run->loose[block->volume]++;
    } else if (op->err == ICMS_OK) {
        if (op->value_bytes != block->bytes || !rig_check(op->u.read.value, block->bytes, op->seed))
            block_fail(run, (uint32_t)op->seed, "reads wrong");
    } else if (op->err != ICMS_MISS ||
               (op->reason == ICMS_MISS_CHECKSUM && (block->alive || block->flushed))) {
        /* what was torn before a flush covered it may be told as damaged */
        block_fail(run, (uint32_t)op->seed, "is in the index and cannot be read");
    }
    rig_op_free(op);
}

static void flush_harvest(struct run *run)
{
    if (run->flush->err != ICMS_OK)
        run_fail(run, "flush: %s", icms_err_name(run->flush->err));
    for (uint32_t i = 0; i < run->count; i++) {
        run->blocks[i].flushed |= run->blocks[i].flush_sees;
        run->blocks[i].delete_flushed |= run->blocks[i].flush_sees_gone;
    }
    rig_op_free(run->flush);
    run->flush = NULL;
}

static void run_harvest(struct run *run)
{
    for (uint32_t i = 0; i < FLIGHT; i++) {
        if (run->flying[i] != NULL && atomic_load(&run->flying[i]->done) != 0)
            op_harvest(run, &run->flying[i]);
    }
    if (run->flush != NULL && atomic_load(&run->flush->done) != 0)
        flush_harvest(run);
}

static void flush_start(struct run *run)
{
    for (uint32_t i = 0; i < run->count; i++) {
        run->blocks[i].flush_sees = run->blocks[i].acked && !run->blocks[i].gone;
        run->blocks[i].flush_sees_gone = run->blocks[i].deleted;
    }
    run->flush = rig_op_new(&run->rig, RIG_FLUSH, 1);
    rig_op_start(run->flush);
}

static void op_start(struct run *run, uint32_t slot)
{
    uint64_t what = dice(run, 100);
    enum rig_kind kind = what < 62 || run->count == 0 ? RIG_WRITE
                         : run->deletes && what < 75  ? RIG_DELETE
                                                      : RIG_READ;
    uint32_t back = (uint32_t)dice(run, 64) + 1;
    uint32_t n = kind == RIG_WRITE ? run->count : run->count > back ? run->count - back : 0;
    struct block *block = &run->blocks[n];
    struct rig_op *op;

    if (block->flying || (kind == RIG_WRITE && n == BLOCKS_MAX) ||
        (kind == RIG_DELETE && (block->deleted || !block->acked)))
        return;
    if (kind == RIG_WRITE) {
        run->count++;
        block->volume = (uint32_t)dice(run, VOLUMES);
        block->bytes =
            1 + (uint32_t)dice(run, dice(run, 2) == 0 ? 6000 : run->rig.opts.value_bytes_max - 1);
    }
    op = rig_op_new(&run->rig, kind, run->rig.opts.value_bytes_max);
    op->volume = block->volume;
    op->key = rig_key(n);
    op->seed = n;
    op->value_bytes = block->bytes;
    block->flying = true;
    run->flying[slot] = op;
    rig_op_start(op);
}

static void run_steps(struct run *run, uint64_t steps)
{
    while (steps-- > 0 && sim_step(run->rig.sim))
        run_harvest(run);
}

/* Everything asked for was answered and flushed; the store itself may still be at work. */
static void run_calm(struct run *run)
{
    for (uint32_t i = 0; i < FLIGHT; i++) {
        if (run->flying[i] != NULL) {
            rig_op_wait(run->flying[i]);
            op_harvest(run, &run->flying[i]);
        }
    }
    for (int again = run->flush != NULL ? 0 : 1; again < 2; again++) {
        if (run->flush == NULL)
            flush_start(run);
        rig_op_wait(run->flush);
        flush_harvest(run);
    }
}

static void run_life(struct run *run)
{
    uint64_t ops = OPS_A_LIFE / 2 + dice(run, OPS_A_LIFE);

    for (uint64_t n = 0; n < ops; n++) {
        uint32_t slot = (uint32_t)dice(run, FLIGHT);

        run_steps(run, dice(run, 30));
        if (run->flush == NULL && dice(run, 40) == 0)
            flush_start(run);
        else if (run->flying[slot] == NULL)
            op_start(run, slot);
    }
    run->calm = dice(run, 2) == 0;
    if (run->calm)
        run_calm(run);
}

/* ---- looking ----------------------------------------------------------------------------------
 */

static uint64_t block_flash(const struct block *block)
{
    return store_record_bytes(block->bytes);
}

/* Asks the index for every block while no event runs, and compares what is in use with it. */
static void run_look(struct run *run)
{
    struct rig *rig = &run->rig;
    uint64_t blocks[VOLUMES] = {0}, bytes[VOLUMES] = {0}, all = 0;
    struct store_stats stats;

    for (uint32_t i = 0; i < run->count; i++) {
        struct block *block = &run->blocks[i];
        struct key key = rig_key(i);

        block->there = store_exists(rig->store, block->volume, &key, NULL);
        if (block->there) {
            blocks[block->volume]++;
            bytes[block->volume] += block_flash(block);
            all += block_flash(block);
        }
    }
    for (uint32_t v = 0; v < VOLUMES; v++) {
        struct store_volume_stats volume;

        store_volume_stats(rig->store, v, &volume);
        if (volume.blocks != blocks[v] || volume.bytes != bytes[v])
            run_fail(run, "volume %u holds %llu blocks, %llu bytes, and says %llu, %llu", v,
                     (unsigned long long)blocks[v], (unsigned long long)bytes[v],
                     (unsigned long long)volume.blocks, (unsigned long long)volume.bytes);
        if (volume.quota_bytes != 0 && volume.bytes > volume.quota_bytes)
            run_fail(run, "volume %u is over its quota", v);
    }
    store_stats(rig->store, &stats);
    if (stats.used_bytes != all || stats.blocks != blocks[0] + blocks[1] + blocks[2])
        run_fail(run, "%llu bytes are in use, and it says %llu", (unsigned long long)all,
                 (unsigned long long)stats.used_bytes);
}

static uint64_t run_evictions(const struct run *run, uint32_t volume)
{
    struct store_volume_stats stats;

    store_volume_stats(run->rig.store, volume, &stats);
    return stats.evictions;
}

/* Whether a counter that went up by so many fits; loose ones may or may not be among them. */
static void run_counted(const struct run *run, const char *what, int64_t said, uint64_t least,
                        uint64_t most, uint64_t loose_ones)
{
    int64_t loose = (int64_t)loose_ones;

    if (said < (int64_t)least - loose || said > (int64_t)most + loose)
        run_fail(run, "%s lost %llu to %llu blocks and counted %lld evictions; %lld loose", what,
                 (unsigned long long)least, (unsigned long long)most, (long long)said,
                 (long long)loose);
}

/* Before the cut: what is alive and not there was evicted. */
static void run_look_before(struct run *run)
{
    run_look(run);
    for (uint32_t v = 0; v < VOLUMES; v++) {
        uint64_t gone = 0;

        for (uint32_t i = 0; i < run->count; i++)
            gone += run->blocks[i].volume == v && run->blocks[i].alive && !run->blocks[i].there;
        run_counted(run, "a volume", (int64_t)(run_evictions(run, v) - run->evictions[v]), gone,
                    gone, run->loose[v]);
    }
}

/* After the cut: may the block be there, or not? */
static void block_judge(struct run *run, uint32_t n)
{
    struct block *block = &run->blocks[n];

    if (block->there && (block->delete_flushed || (!block->acked && !block->unsure)))
        block_fail(run, n, block->acked ? "was deleted and came back" : "was never stored");
    if (block->unsure && !block->there && run->rig.quota_bytes[block->volume] != 0)
        run->loose[block->volume]++;
    if (block->delete_unsure)
        run->loose[block->volume]++;
}

/* From here on everything that is there is durable. */
static void block_settle(struct block *block)
{
    block->acked |= block->there;
    block->flushed |= block->there;
    block->gone = block->acked && !block->there;
    block->alive = block->there;
    block->deleted = !block->there && (block->deleted || block->delete_unsure);
    block->unsure = block->delete_unsure = false;
}

static void run_look_after(struct run *run)
{
    bool exact = run->calm && !run->deletes;
    uint64_t least = 0, most = 0, back = 0, loose = 0;
    struct store_stats stats;

    for (uint32_t i = 0; i < run->count; i++)
        run->blocks[i].alive = run->blocks[i].there;
    run_look(run);
    store_stats(run->rig.store, &stats);
    for (uint32_t v = 0; v < VOLUMES; v++) {
        run->evictions[v] = run_evictions(run, v);
        for (uint32_t i = 0; i < run->count; i++) {
            struct block *block = &run->blocks[i];

            if (block->volume != v)
                continue;
            block_judge(run, i);
            back += block->gone && block->there;
            if (block->acked && !block->there && !block->gone) {
                most++;
                least += (exact || block->flushed) && !block->deleted && !block->delete_unsure;
            }
        }
        loose += run->loose[v];
    }
    run_counted(run, "the drive", (int64_t)(stats.evictions + back - run->evictions_all), least,
                most, loose);
    run->evictions_all = stats.evictions;
    for (uint32_t i = 0; i < run->count; i++)
        block_settle(&run->blocks[i]);
}

/* ---- cuts -------------------------------------------------------------------------------------
 */

/* The power goes now. */
static void run_cut(struct run *run)
{
    struct rig *rig = &run->rig;
    struct store_stats stats;

    run_harvest(run); /* what was answered was answered */
    run_look_before(run);
    store_stats(rig->store, &stats);
    discarded += stats.discarded_bytes;
    sim_node_crash(rig->node, true, false);
    loop_free(&rig->loop);
    store_close(&rig->store);
    for (uint32_t i = 0; i < FLIGHT; i++) {
        struct rig_op *op = run->flying[i];

        if (op == NULL)
            continue;
        run->blocks[op->seed].flying = false;
        run->blocks[op->seed].unsure |= op->kind == RIG_WRITE;
        run->blocks[op->seed].delete_unsure |= op->kind == RIG_DELETE;
        rig_op_free(op);
        run->flying[i] = NULL;
    }
    if (run->flush != NULL)
        rig_op_free(run->flush);
    run->flush = NULL;
}

/* Reads whatever the index has; op_harvest judges. */
static void run_read_all(struct run *run)
{
    for (uint32_t i = 0; i < run->count; i++) {
        struct rig_op *op;

        if (!run->blocks[i].there)
            continue;
        op = rig_op_new(&run->rig, RIG_READ, run->rig.opts.value_bytes_max);
        op->volume = run->blocks[i].volume;
        op->key = rig_key(i);
        op->seed = i;
        rig_op_start(op);
        rig_op_wait(op);
        hits += op->err == ICMS_OK;
        op_harvest(run, &op);
    }
}

static struct run *run_new(uint64_t seed)
{
    struct run *run = calloc(1, sizeof(*run));
    struct sim_opts opts;

    check(run != NULL);
    run->seed = seed;
    run->deletes = seed % 2 == 0;
    sim_opts_init(&opts, seed);
    rig_sim_init(&run->rig, &opts);
    for (uint32_t v = 0; v < VOLUMES; v++)
        run->rig.uuid[v] = rig_uuid(v);
    run->rig.volume_count = VOLUMES;
    run->rig.quota_bytes[1] = (4 + dice(run, 6)) * RIG_SEGMENT_BYTES;
    run->rig.quota_bytes[2] = (1 + dice(run, 3)) * RIG_SEGMENT_BYTES;
    run->rig.opts.bytes = ((uint64_t)1 << 20) + dice(run, 40) * RIG_SEGMENT_BYTES;
    run->rig.opts.writes_max = 1 + (uint32_t)dice(run, 10);
    rig_format(&run->rig);
    rig_up(&run->rig);
    return run;
}

static void run_seed(uint64_t seed, uint32_t cuts)
{
    struct run *run = run_new(seed);
    struct err_why why = {""};

    for (run->cut = 0; run->cut < cuts; run->cut++) {
        run_life(run);
        run_steps(run, dice(run, 40));
        run_cut(run);
        rig_up(&run->rig);
        run_look_after(run);
        if (store_verify(run->rig.store, &why) != 0)
            run_fail(run, "%s", why.text);
        run_read_all(run);
        counted += run->evictions_all;
    }
    rig_down(&run->rig);
    sim_free(&run->rig.sim);
    free(run);
}

static void nothing_is_lost_and_nothing_is_wrong(void **state)
{
    for (uint32_t done = 0; done < cuts_all; done += CUTS_A_SEED)
        run_seed(first++, cuts_all - done < CUTS_A_SEED ? cuts_all - done : CUTS_A_SEED);
    print_message("%u cuts: %llu hits after them, %llu evictions, %llu KiB discarded\n", cuts_all,
                  (unsigned long long)hits, (unsigned long long)counted,
                  (unsigned long long)discarded >> 10);
    assert_true(hits > 20 * (uint64_t)cuts_all); /* forgetting everything would fail */
    assert_true(cuts_all < 10 * CUTS_A_SEED || counted > cuts_all);
    assert_true(cuts_all < 6 * CUTS_A_SEED || discarded > 0);
}

/* A process ends and comes back, and then the power goes: the summaries that the open wrote are not
 * worth more than the records they name. */
static void what_an_open_sealed_is_there(void **state)
{
    enum { SEEDS = 40, BLOCKS = 20, BYTES = 10000 };
    uint64_t all = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct rig rig = {.sim = NULL};
        struct sim_opts opts;
        struct store_stats stats;
        uint64_t there = 0;

        sim_opts_init(&opts, seed);
        rig_sim_init(&rig, &opts);
        rig_one_volume(&rig);
        rig_format(&rig);
        rig_up(&rig);
        for (uint64_t i = 0; i < BLOCKS; i++)
            assert_int_equal(rig_put(&rig, 0, i, BYTES, i, 0), ICMS_OK);
        rig_restart(&rig);
        sim_node_crash(rig.node, true, false);
        loop_free(&rig.loop);
        store_close(&rig.store);
        rig_up(&rig);
        for (uint64_t i = 0; i < BLOCKS; i++) {
            if (!rig_exists(&rig, 0, i))
                continue;
            assert_int_equal(rig_get(&rig, 0, i, BYTES, i, NULL), ICMS_OK);
            there++;
        }
        rig_stats(&rig, &stats);
        assert_int_equal(stats.blocks, there);
        all += there;
        rig_down(&rig);
        sim_free(&rig.sim);
    }
    assert_true(all > SEEDS * BLOCKS / 2);
}

/* A value takes a segment. Those of keys 0 to 3 are flushed, and one more segment is free. Key 3 is
 * written again there; reclaim has to look whether key 0, which was read, has another place, and is
 * later than that. So the next segment that is written over is the one with the older value of key
 * 3, right away, and while that begins the power goes. False: key 3 is not there. */
static bool overwritten_is_there(uint64_t seed)
{
    const uint32_t bytes = RIG_VALUE_BYTES_MAX;
    struct rig rig = {.sim = NULL};
    struct rig_op *write;
    struct sim_opts opts;
    bool there;

    sim_opts_init(&opts, seed);
    rig_sim_init(&rig, &opts);
    rig_one_volume(&rig);
    rig.opts.bytes = STORE_DATA_OFFSET + 5 * RIG_SEGMENT_BYTES;
    rig_format(&rig);
    rig_up(&rig);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(rig_put(&rig, 0, i, bytes, i, 0), ICMS_OK);
    assert_int_equal(rig_flush(&rig), ICMS_OK);
    assert_int_equal(rig_get(&rig, 0, 0, bytes, 0, NULL), ICMS_OK);
    assert_int_equal(rig_put(&rig, 0, 3, bytes, 30, 0), ICMS_OK);
    write = rig_op_new(&rig, RIG_WRITE, bytes);
    write->key = rig_key(2);
    write->value_bytes = bytes;
    rig_op_start(write);
    for (uint64_t steps = 2 + seed % 8; steps > 0; steps--)
        (void)sim_step(rig.sim);
    sim_node_crash(rig.node, true, false);
    loop_free(&rig.loop);
    store_close(&rig.store);
    rig_op_free(write);
    rig_up(&rig);
    there = rig_get(&rig, 0, 3, bytes, 30, NULL) == ICMS_OK ||
            rig_get(&rig, 0, 3, bytes, 3, NULL) == ICMS_OK;
    rig_down(&rig);
    sim_free(&rig.sim);
    return there;
}

static void an_overwritten_block_is_there_in_one_version(void **state)
{
    for (uint64_t seed = 1; seed <= cuts_all; seed++)
        if (!overwritten_is_there(seed))
            fail_msg("seed %llu", (unsigned long long)seed);
}

/* A value is replaced, and the power goes meanwhile. False: neither of the two is there. The device
 * keeps what it likes of all that was not flushed: the mark that the old record is dead, and the
 * new record in part. */
static bool replaced_is_there(uint64_t seed)
{
    const uint32_t bytes = RIG_VALUE_BYTES_MAX;
    struct rig rig = {.sim = NULL};
    struct rig_op *write;
    struct sim_opts opts;
    bool there;

    sim_opts_init(&opts, seed);
    rig_sim_init(&rig, &opts);
    rig_one_volume(&rig);
    rig_format(&rig);
    rig_up(&rig);
    assert_int_equal(rig_put(&rig, 0, 1, bytes, 1, 0), ICMS_OK);
    assert_int_equal(rig_flush(&rig), ICMS_OK);
    write = rig_op_new(&rig, RIG_WRITE, bytes);
    write->key = rig_key(1);
    write->seed = 2;
    write->value_bytes = bytes;
    rig_op_start(write);
    for (uint64_t steps = 1 + seed % 16; steps > 0 && atomic_load(&write->done) == 0; steps--)
        (void)sim_step(rig.sim);
    sim_node_crash(rig.node, true, false);
    loop_free(&rig.loop);
    store_close(&rig.store);
    rig_op_free(write);
    rig_up(&rig);
    there = rig_get(&rig, 0, 1, bytes, 1, NULL) == ICMS_OK ||
            rig_get(&rig, 0, 1, bytes, 2, NULL) == ICMS_OK;
    rig_down(&rig);
    sim_free(&rig.sim);
    return there;
}

static void a_value_that_is_replaced_is_there_in_one_version(void **state)
{
    for (uint64_t seed = 1; seed <= 2 * cuts_all; seed++)
        if (!replaced_is_there(seed))
            fail_msg("seed %llu", (unsigned long long)seed);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_and_nothing_is_wrong),
        cmocka_unit_test(what_an_open_sealed_is_there),
        cmocka_unit_test(an_overwritten_block_is_there_in_one_version),
        cmocka_unit_test(a_value_that_is_replaced_is_there_in_one_version),
    };

    if (argc > 1)
        first = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        cuts_all = (uint32_t)strtoul(argv[2], NULL, 10);
    return cmocka_run_group_tests_name("store-power-cuts", tests, NULL, NULL);
}
