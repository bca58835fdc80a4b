/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was deleted, replaced or evicted, or whose write failed, stays away: whatever is discarded,
 * evicted or cannot be written meanwhile, and whenever the process or the power ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/fault_arm.h"
#include "base/hash.h"
#include "loop/sim.h"
#include "store/layout.h"
#include "store/store_int.h"
#include "store/store_rig.h"

#define BYTES 20000
#define SEEDS 100

struct dead_case {
    bool power;        /* the power goes, else the process is killed */
    bool discard;      /* segments are discarded                     */
    const char *fault; /* armed near the end; NULL: none             */
};

/* A simulated drive of so many segments with one volume, not formatted yet. */
static void dead_rig(struct rig *rig, uint64_t seed, uint64_t segments)
{
    struct sim_opts opts;

    sim_opts_init(&opts, seed);
    rig_sim_init(rig, &opts);
    rig_one_volume(rig);
    rig->opts.bytes = STORE_DATA_OFFSET + segments * RIG_SEGMENT_BYTES;
}

/* Each segment holds a block and one more, and the block before it is deleted; near the end the
 * disk is slow, and somewhere in it the process ends. Returns how many deleted blocks are back. */
static uint64_t dead_run(const struct dead_case *what, uint64_t seed)
{
    enum { SLOW = 60 };
    uint64_t count = 70 + seed % 20, back = 0, steps = hash64_mix(seed * 77) % 60;
    struct rig rig = {.sim = NULL};
    struct err_why why;
    struct rig_op *op;

    dead_rig(&rig, seed, 64);
    rig.opts.discard = what->discard;
    rig_format(&rig);
    rig_up(&rig);
    for (uint64_t i = 1; i < count; i++) {
        if (i == SLOW)
            sim_disk_slow(rig.node, 100);
        if (i == SLOW + 4 + seed % 8 && what->fault != NULL)
            assert_int_equal(fault_arm(what->fault, &why), ICMS_OK);
        assert_int_equal(rig_put(&rig, 0, i, BYTES, i, 0), ICMS_OK);
        assert_int_equal(rig_delete(&rig, 0, i - 1), i > 1 ? ICMS_OK : ICMS_MISS);
        assert_int_equal(rig_put(&rig, 0, 5000 + i, BYTES, i, 0), ICMS_OK);
    }
    op = rig_op_new(&rig, RIG_WRITE, BYTES);
    op->key = rig_key(9999);
    op->value_bytes = BYTES;
    rig_op_start(op);
    while (steps-- > 0 && sim_step(rig.sim))
        ;
    sim_node_crash(rig.node, what->power, false);
    assert_int_equal(fault_arm(NULL, &why), ICMS_OK);
    loop_free(&rig.loop);
    store_close(&rig.store);
    rig_op_free(op);
    rig_up(&rig);
    for (uint64_t i = 1; i + 1 < count; i++)
        back += rig_get(&rig, 0, i, BYTES, i, NULL) == ICMS_OK;
    rig_down(&rig);
    sim_free(&rig.sim);
    return back;
}

static void dead_runs(const struct dead_case *what)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        uint64_t back = dead_run(what, seed);

        if (back != 0)
            fail_msg("seed %llu: %llu deleted blocks are back", (unsigned long long)seed,
                     (unsigned long long)back);
    }
}

static void nothing_deleted_is_back_after_a_kill(void **state)
{
    (void)state;
    dead_runs(&(struct dead_case){.discard = false});
    dead_runs(&(struct dead_case){.discard = true});
}

static void nothing_deleted_is_back_after_a_power_cut(void **state)
{
    (void)state;
    dead_runs(&(struct dead_case){.power = true, .discard = true});
}

/* The header of a segment that could not be written may be the old one. */
static void nothing_deleted_is_back_after_failed_headers(void **state)
{
    (void)state;
    dead_runs(&(struct dead_case){.discard = false, .fault = "store.header:1:fail"});
    dead_runs(&(struct dead_case){.discard = true, .fault = "store.header:2:fail"});
}

/* A volume is at its quota, and its oldest segment waits for a slow write: the others give, and the
 * loop does other things meanwhile. */
static void a_quota_waits_for_a_seal(void **state)
{
    enum { FIRST_BYTES = 36000, QUOTA_BLOCKS = 12, PAGES = 5 };
    struct rig rig = {.sim = NULL};
    struct sim_opts opts;
    struct rig_op *slow;

    (void)state;
    sim_opts_init(&opts, 1);
    opts.disk_delay_min_ns = opts.disk_delay_max_ns = 1000 * 1000;
    opts.disk_bytes_per_s = (uint64_t)1 << 40; /* a slow write is in nobody's way */
    rig_sim_init(&rig, &opts);
    rig_one_volume(&rig);
    rig.quota_bytes[0] = QUOTA_BLOCKS * PAGES * STORE_PAGE_BYTES + 4 * STORE_PAGE_BYTES;
    rig_format(&rig);
    rig_up(&rig);
    assert_int_equal(rig_put(&rig, 0, 1, FIRST_BYTES, 1, 0), ICMS_OK);
    for (int i = 0; i < 4; i++) /* meanwhile the next segment is opened */
        assert_int_equal(rig_flush(&rig), ICMS_OK);
    slow = rig_op_new(&rig, RIG_WRITE, 8000);
    slow->key = rig_key(1000);
    slow->value_bytes = 8000;
    sim_disk_slow(rig.node, 100000);
    rig_op_start(slow);
    while (rig.store->writes == 0)
        assert_true(sim_step(rig.sim));
    sim_disk_slow(rig.node, 1);
    for (uint64_t key = 1; key <= 2 * QUOTA_BLOCKS; key++) {
        assert_int_equal(rig_put(&rig, 0, key, BYTES, key + 1, 0), ICMS_OK);
        assert_int_equal(rig_put(&rig, 0, key, BYTES, key + 2, 0), ICMS_OK);
        if (key == QUOTA_BLOCKS / 2)
            assert_int_equal(atomic_load(&slow->done), 0);
    }
    rig_op_wait(slow);
    assert_int_equal(slow->err, ICMS_OK);
    rig_op_free(slow);
    rig_down(&rig);
    sim_free(&rig.sim);
}

/* A record whose write failed may be on flash all the same, in a segment that lives long because
 * its other blocks are read. */
static void a_failed_write_never_comes_back(void **state)
{
    enum { HOT = 13, SMALL = 3000 };

    (void)state;
    for (uint64_t more = 40; more < 80; more += 4) {
        struct rig rig = {.sim = NULL};
        struct err_why why;

        dead_rig(&rig, 1, 24);
        rig_format(&rig);
        rig_up(&rig);
        assert_int_equal(fault_arm("store.write:1:fail", &why), ICMS_OK);
        assert_int_equal(rig_put(&rig, 0, 0, SMALL, 1, 0), ICMS_IO);
        assert_int_equal(fault_arm(NULL, &why), ICMS_OK);
        for (uint64_t i = 1; i < HOT; i++)
            assert_int_equal(rig_put(&rig, 0, i, SMALL, i, 0), ICMS_OK);
        assert_int_equal(fault_arm("store.seal:1:fail", &why), ICMS_OK);
        assert_int_equal(rig_put(&rig, 0, 100, BYTES, 100, 0), ICMS_OK);
        assert_int_equal(rig_put(&rig, 0, 0, BYTES, 2, 0), ICMS_OK);
        assert_int_equal(fault_arm(NULL, &why), ICMS_OK);
        for (uint64_t i = 0; i < more; i++) {
            for (uint64_t hot = 1; hot < HOT; hot++)
                (void)rig_get(&rig, 0, hot, SMALL, hot, NULL);
            assert_int_equal(rig_put(&rig, 0, 1000 + i, BYTES, i, 0), ICMS_OK);
        }
        assert_int_equal(rig_flush(&rig), ICMS_OK);
        rig_restart(&rig);
        if (rig_get(&rig, 0, 0, SMALL, 1, NULL) == ICMS_OK)
            fail_msg("%llu writes later it is back", (unsigned long long)more);
        rig_down(&rig);
        sim_free(&rig.sim);
    }
}

/* Puts blocks on a small drive, the first one of which may fail, deletes those that are not there
 * any more, restarts, and counts those that are back. */
static uint64_t forgotten_run(uint64_t count, uint32_t bytes, bool fails)
{
    struct rig rig = {.sim = NULL};
    struct err_why why;
    uint64_t gone = 0, back = 0;

    dead_rig(&rig, 1, 24);
    rig_format(&rig);
    rig_up(&rig);
    if (fails)
        assert_int_equal(fault_arm("store.write:1:fail", &why), ICMS_OK);
    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(rig_put(&rig, 0, i, bytes, i, 0), fails && i == 0 ? ICMS_IO : ICMS_OK);
        if (fails && i == 0) /* its segment has no summary, which would not name it */
            assert_int_equal(fault_arm("store.seal:1:fail", &why), ICMS_OK);
    }
    assert_int_equal(fault_arm(NULL, &why), ICMS_OK);
    while (gone < count && !rig_exists(&rig, 0, gone))
        assert_int_equal(rig_delete(&rig, 0, gone++), ICMS_MISS);
    rig_restart(&rig);
    for (uint64_t i = 0; i < gone; i++)
        back += rig_get(&rig, 0, i, bytes, i, NULL) == ICMS_OK;
    rig_down(&rig);
    sim_free(&rig.sim);
    return back;
}

/* What was evicted lies in segments that were not written over yet. */
static void what_was_evicted_can_be_deleted(void **state)
{
    (void)state;
    for (uint64_t count = 100; count < 400; count += 3)
        assert_int_equal(forgotten_run(count, 3000, false), 0);
}

/* So may a record whose write failed. */
static void a_failed_write_can_be_deleted(void **state)
{
    (void)state;
    for (uint64_t count = 20; count < 120; count++)
        assert_int_equal(forgotten_run(count, BYTES, true), 0);
}

/* An index that is smaller than what is on flash: an open has no room for the old value of a block,
 * which lies in a segment that lives long, and forgets that it was there before the new one comes.
 */
static void an_open_without_room_brings_nothing_back(void **state)
{
    enum { ROOM = 64, HOT = 13, SMALL = 3000, EVICTED = 4 };

    (void)state;
    for (uint64_t more = 20; more < 40; more++) {
        for (uint64_t key = 0; key < EVICTED; key++) {
            struct rig rig = {.sim = NULL};

            dead_rig(&rig, 1, 16);
            rig_format(&rig);
            rig_up(&rig);
            for (uint64_t i = 0; i < ROOM + 2; i++)
                assert_int_equal(rig_put(&rig, 0, i, SMALL, i, 0), ICMS_OK);
            assert_int_equal(rig_put(&rig, 0, key, SMALL, 1000, 0), ICMS_OK);
            rig_down(&rig);
            rig.opts.blocks_max = ROOM;
            rig_up(&rig);
            for (uint64_t i = 0; i < more; i++) {
                for (uint64_t hot = EVICTED; hot < HOT; hot++)
                    (void)rig_get(&rig, 0, hot, SMALL, hot, NULL);
                assert_int_equal(rig_put(&rig, 0, 2000 + i, BYTES, i, 0), ICMS_OK);
            }
            rig_restart(&rig);
            if (rig_get(&rig, 0, key, SMALL, key, NULL) == ICMS_OK)
                fail_msg("%llu writes later %llu is back", (unsigned long long)more,
                         (unsigned long long)key);
            rig_down(&rig);
            sim_free(&rig.sim);
        }
    }
}

/* ---- states that a crash leaves ---------------------------------------------------------------
 */

/* The process, or the power, ends so many events after an operation began; NULL: none. */
static void dead_crash(struct rig *rig, struct rig_op *op, uint64_t steps, bool power)
{
    if (op != NULL)
        rig_op_start(op);
    while (steps-- > 0 && sim_step(rig->sim))
        ;
    sim_node_crash(rig->node, power, false);
    loop_free(&rig->loop);
    store_close(&rig->store);
    if (op != NULL)
        rig_op_free(op);
}

/* A killed process leaves what it wrote in the cache of the device. What is not there at the next
 * open was answered so, and a power cut after it does not change that. */
static void what_an_open_did_not_find_stays_away(void **state)
{
    uint64_t killed = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct rig rig = {.sim = NULL};
        struct rig_op *op;

        dead_rig(&rig, seed, 24);
        rig_format(&rig);
        rig_up(&rig);
        assert_int_equal(rig_put(&rig, 0, 1, BYTES, 1, 0), ICMS_OK);
        assert_int_equal(rig_flush(&rig), ICMS_OK);
        op = rig_op_new(&rig, RIG_DELETE, 0);
        op->key = rig_key(1);
        dead_crash(&rig, op, seed % 8, false);
        rig_up(&rig);
        if (!rig_exists(&rig, 0, 1)) {
            killed++;
            assert_int_equal(rig_delete(&rig, 0, 1), ICMS_MISS);
            dead_crash(&rig, NULL, 0, true);
            rig_up(&rig);
            if (rig_exists(&rig, 0, 1))
                fail_msg("seed %llu: it is back", (unsigned long long)seed);
        }
        rig_down(&rig);
        sim_free(&rig.sim);
    }
    assert_true(killed > 20);
}

/* Flips a byte in the first page of each segment, one of the two copies of its header. */
static void flip_headers(struct rig *rig)
{
    uint64_t segments = (rig->opts.bytes - STORE_DATA_OFFSET) / RIG_SEGMENT_BYTES;

    for (uint64_t i = 0; i < segments; i++)
        rig_flip(rig, STORE_DATA_OFFSET + i * RIG_SEGMENT_BYTES + 20, 1);
}

/* The writes of a new life fail, one after the other, and the process ends. Blocks that left the
 * index before are gone, also when the new header is damaged after that, and the old footer is
 * still there.
 */
static void a_life_that_failed_to_begin_needs_no_header(void **state)
{
    enum { KEYS = 90 };

    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct rig rig = {.sim = NULL};
        bool gone[KEYS];
        char fault[32];
        struct err_why why;

        dead_rig(&rig, seed + 1, 64);
        rig.quota_bytes[0] = 8 * RIG_SEGMENT_BYTES;
        rig_format(&rig);
        rig_up(&rig);
        (void)snprintf(fault, sizeof(fault), "store.header:%u:fail", (unsigned)(seed % 8 + 1));
        for (uint64_t i = 0; i < KEYS; i++) {
            if (i == KEYS - 10 + seed / 8)
                assert_int_equal(fault_arm(fault, &why), ICMS_OK);
            assert_int_equal(rig_put(&rig, 0, i, BYTES, i, 0), ICMS_OK);
        }
        assert_int_equal(fault_arm(NULL, &why), ICMS_OK);
        for (uint64_t i = 0; i < KEYS; i++)
            gone[i] = !rig_exists(&rig, 0, i);
        assert_true(gone[0]);
        dead_crash(&rig, NULL, 0, false);
        flip_headers(&rig);
        rig_up(&rig);
        for (uint64_t i = 0; i < KEYS; i++)
            if (gone[i] && rig_exists(&rig, 0, i))
                fail_msg("%s: block %llu is back", fault, (unsigned long long)i);
        rig_down(&rig);
        sim_free(&rig.sim);
    }
}

/* A crash left a segment with the header of a new life and all else of the old one. It stays so for
 * long, as other segments are free, too; meanwhile its header is damaged. */
static void a_life_that_had_begun_needs_no_header_after_an_open(void **state)
{
    enum { SEGMENT = 8, KEY = 2 * SEGMENT };
    const uint64_t at = STORE_DATA_OFFSET + SEGMENT * RIG_SEGMENT_BYTES;
    static uint8_t page[STORE_PAGE_BYTES], zeros[RIG_SEGMENT_BYTES];
    struct store_header_df *header = (struct store_header_df *)(void *)page;
    struct rig rig = {.sim = NULL};
    struct store_super super;
    struct store_life life;
    uint64_t nonce;

    (void)state;
    dead_rig(&rig, 1, 24);
    rig.opts.discard = false;
    rig_format(&rig);
    rig_up(&rig);
    for (uint64_t i = 0; i < KEY + 6; i++)
        assert_int_equal(rig_put(&rig, 0, i, BYTES, i, 0), ICMS_OK);
    rig_wait_sealed(&rig, 0, KEY);
    rig_down(&rig);
    rig_peek(&rig, 0, page, sizeof(page));
    assert_int_equal(store_super_check((struct store_super_df *)(void *)page, &super), ICMS_OK);
    rig_peek(&rig, at, page, sizeof(page));
    assert_int_equal(store_header_check(&super.drive, SEGMENT, header, &life), ICMS_OK);
    life.nonce++;
    nonce = life.nonce;
    store_header_make(&super.drive, &life, header);
    rig_poke(&rig, at, page, sizeof(page));
    for (uint64_t i = 0; i < SEGMENT; i++) /* these get new lives first */
        rig_poke(&rig, STORE_DATA_OFFSET + i * RIG_SEGMENT_BYTES, zeros, sizeof(zeros));
    rig_up(&rig);
    assert_int_equal(rig_put(&rig, 0, KEY, BYTES, 2, 0), ICMS_OK);
    assert_int_equal(rig_delete(&rig, 0, KEY), ICMS_OK);
    rig_down(&rig);
    rig_peek(&rig, at, page, sizeof(page)); /* no other life began */
    assert_int_equal(store_header_check(&super.drive, SEGMENT, header, &life), ICMS_OK);
    assert_int_equal(life.nonce, nonce);
    rig_flip(&rig, at + 20, 1);
    rig_up(&rig);
    assert_false(rig_exists(&rig, 0, KEY));
    assert_false(rig_exists(&rig, 0, KEY + 1));
    rig_down(&rig);
    sim_free(&rig.sim);
}

/* Of the two copies of a dead map a power cut tore the write of one. Then the other is damaged. */
static void a_torn_dead_map_holds_when_one_copy_is_damaged(void **state)
{
    const uint64_t map = STORE_DATA_OFFSET + STORE_PAGE_BYTES;
    uint8_t before[STORE_PAGE_BYTES];
    struct rig rig = {.sim = NULL};

    (void)state;
    for (uint64_t torn = 0; torn < 2; torn++) {
        uint64_t copy = map + torn * STORE_DEAD_SECTOR_BYTES;

        dead_rig(&rig, 1, 24);
        rig_format(&rig);
        rig_up(&rig);
        assert_int_equal(rig_put(&rig, 0, 1, BYTES, 1, 0), ICMS_OK);
        assert_int_equal(rig_put(&rig, 0, 3, BYTES, 3, 0), ICMS_OK); /* so that the segment lives */
        assert_int_equal(rig_put(&rig, 0, 4, BYTES, 4, 0), ICMS_OK);
        rig_wait_sealed(&rig, 0, 1);
        rig_peek(&rig, map, before, sizeof(before));
        assert_int_equal(rig_delete(&rig, 0, 1), ICMS_OK);
        rig_down(&rig);
        rig_poke(&rig, copy, before, STORE_DEAD_SECTOR_BYTES);
        rig_up(&rig);
        assert_int_equal(rig_put(&rig, 0, 1, BYTES, 2, 0), ICMS_OK);
        assert_int_equal(rig_delete(&rig, 0, 1), ICMS_OK);
        rig_down(&rig);
        rig_flip(&rig, map + (1 - torn) * STORE_DEAD_SECTOR_BYTES + 20, 1);
        rig_up(&rig);
        assert_false(rig_exists(&rig, 0, 1));
        rig_down(&rig);
        sim_free(&rig.sim);
    }
}

/* Each copy of a dead map has a kill that the other lacks. An open takes both kills, and writes
 * both copies with both. */
static void an_open_merges_the_copies_of_a_dead_map(void **state)
{
    enum { KEYS = 4, SMALL = 3000 }; /* a page each */
    const uint64_t map = STORE_DATA_OFFSET + STORE_PAGE_BYTES;
    const uint32_t pages = RIG_SEGMENT_BYTES / STORE_PAGE_BYTES, first = store_first_page(pages);
    struct rig rig = {.sim = NULL};

    (void)state;
    for (uint32_t swapped = 0; swapped < 2; swapped++) {
        struct store_dead_df copy[2];
        struct store_life_df life;
        struct store_stats stats;
        uint64_t nonce;

        dead_rig(&rig, 1, 24);
        rig_format(&rig);
        rig_up(&rig);
        for (uint64_t i = 0; i < KEYS; i++)
            assert_int_equal(rig_put(&rig, 0, i, SMALL, i, 0), ICMS_OK);
        rig_down(&rig);
        rig_peek(&rig, STORE_DATA_OFFSET, &life, sizeof(life));
        nonce = le64_get(life.nonce);
        for (uint32_t i = 0; i < 2; i++) { /* of block 0 as evicted, of block 1 as deleted */
            store_dead_make(nonce, pages, &copy[i ^ swapped]);
            store_dead_set(nonce, first + i, i == 0, &copy[i ^ swapped]);
        }
        rig_poke(&rig, map, copy, sizeof(copy));
        rig_up(&rig);
        for (uint64_t i = 0; i < KEYS; i++)
            assert_int_equal(rig_get(&rig, 0, i, SMALL, i, NULL), i < 2 ? ICMS_MISS : ICMS_OK);
        rig_stats(&rig, &stats);
        assert_int_equal(stats.blocks, KEYS - 2);
        assert_int_equal(stats.evictions, 1);
        assert_int_equal(stats.checksum_errors, 0);
        rig_down(&rig);
        rig_peek(&rig, map, copy, sizeof(copy));
        assert_memory_equal(&copy[0], &copy[1], sizeof(copy[0]));
        for (uint32_t i = 0; i < KEYS; i++)
            assert_int_equal(store_dead_get(nonce, first + i, copy),
                             i < 2 ? STORE_DEAD : STORE_LIVE);
        sim_free(&rig.sim);
    }
}

/* What cannot be read at an open, and was deleted while it was hidden, stays away when it can be
 * read again. */
static void what_an_open_could_not_read_stays_away(void **state)
{
    enum { KEYS = 60, SMALL = 3000 };
    uint64_t hidden = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct rig rig = {.sim = NULL};
        struct err_why why = {""};
        struct loop_opts loop_opts;
        struct sim_opts opts;

        sim_opts_init(&opts, seed);
        opts.disk_read_error_ppm = seed % 2 ? 300000 : 700000; /* also both ends of a segment */
        rig_sim_init(&rig, &opts);
        sim_faults(rig.sim, false);
        rig_one_volume(&rig);
        rig_format(&rig);
        rig_up(&rig);
        for (uint64_t i = 0; i < KEYS; i++)
            assert_int_equal(rig_put(&rig, 0, i, SMALL, i, 0), ICMS_OK);
        rig_down(&rig);
        sim_faults(rig.sim, true);
        loop_opts_init(&loop_opts);
        do {
            loop_free(&rig.loop);
            assert_int_equal(loop_new(rig.env, &loop_opts, &why, &rig.loop), ICMS_OK);
        } while (rig_open(&rig, &why) != ICMS_OK);
        sim_faults(rig.sim, false);
        assert_int_equal(loop_start(rig.loop, &why), ICMS_OK);
        for (uint64_t i = 0; i < KEYS; i++)
            hidden += rig_delete(&rig, 0, i) == ICMS_MISS;
        rig_restart(&rig);
        for (uint64_t i = 0; i < KEYS; i++)
            if (rig_exists(&rig, 0, i))
                fail_msg("seed %llu: block %llu is back", (unsigned long long)seed,
                         (unsigned long long)i);
        rig_down(&rig);
        sim_free(&rig.sim);
    }
    assert_true(hidden > 0);
}

/* A segment is evicted while its blocks are deleted: each is deleted or evicted, and what counts
 * evictions on flash agrees with what was counted while they happened. */
static void a_deleted_block_is_not_evicted(void **state)
{
    enum { FLYING = 32, OPS = 1000, AGE = 130 };

    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct store_stats before, after;
        struct rig_op *ops[FLYING] = {NULL};
        struct rig rig = {.sim = NULL};
        uint64_t key = 0;

        dead_rig(&rig, seed, 24);
        rig_format(&rig);
        rig_up(&rig);
        for (uint32_t n = 0; n < OPS + FLYING; n++) {
            struct rig_op **op = &ops[n % FLYING];
            bool delete = key > 2 * AGE && hash64_mix(seed << 32 | n) % 3 == 0;

            if (*op != NULL) {
                rig_op_wait(*op);
                assert_true((*op)->err == ICMS_OK || (*op)->kind == RIG_DELETE);
                rig_op_free(*op);
            }
            *op = NULL;
            if (n >= OPS)
                continue;
            *op = rig_op_new(&rig, delete ? RIG_DELETE : RIG_WRITE, 6000);
            (*op)->value_bytes = 6000;
            (*op)->key = rig_key(delete ? key - AGE - hash64_mix(n) % 40 : key++);
            rig_op_start(*op);
        }
        for (int i = 0; i < 1000; i++) /* new lives end */
            (void)sim_step(rig.sim);
        rig_stats(&rig, &before);
        rig_restart(&rig);
        rig_stats(&rig, &after);
        assert_true(before.evictions > 100);
        assert_int_equal(before.evictions, after.evictions);
        assert_int_equal(before.blocks, after.blocks);
        rig_down(&rig);
        sim_free(&rig.sim);
    }
}

/* A drive goes out of service since the older record of a key cannot be killed, when the segment of
 * the new one is full. The summary of that segment would not name the new one, which is whole: it
 * would be back when the summary is damaged. */
static void what_a_drive_that_went_out_did_not_publish_stays_away(void **state)
{
    enum { FILL = 12, SMALL = 6000 };
    struct rig rig = {.sim = NULL};
    struct rig_op *ops[1 + FILL];
    uint64_t summary;

    dead_rig(&rig, 1, 16);
    rig_format(&rig);
    rig_up(&rig);
    summary = (uint64_t)(rig.store->segment_pages - 2) * STORE_PAGE_BYTES;
    assert_int_equal(rig_put(&rig, 0, 0, SMALL, 1, 0), ICMS_OK);
    assert_int_equal(fault_arm("store.kill:1:fail+", NULL), ICMS_OK);
    for (uint64_t i = 0; i <= FILL; i++) {
        ops[i] = rig_op_new(&rig, RIG_WRITE, SMALL);
        ops[i]->key = rig_key(i);
        ops[i]->seed = 100 + i;
        ops[i]->value_bytes = SMALL;
        rig_op_start(ops[i]);
    }
    for (uint64_t i = 0; i <= FILL; i++)
        rig_op_wait(ops[i]);
    assert_int_equal(ops[0]->err, ICMS_DRIVE_DOWN);
    for (uint64_t i = 0; i <= FILL; i++)
        rig_op_free(ops[i]);
    for (int i = 0; i < 1000; i++) /* what is written in the end */
        (void)sim_step(rig.sim);
    assert_int_equal(fault_arm(NULL, NULL), ICMS_OK);
    rig_restart(&rig);
    assert_int_equal(rig_delete(&rig, 0, 0), ICMS_OK);
    assert_false(rig_exists(&rig, 0, 0));
    rig_down(&rig);
    for (uint64_t i = 0; i < 16; i++)
        rig_flip(&rig, STORE_DATA_OFFSET + i * RIG_SEGMENT_BYTES + summary + 20, 1);
    rig_up(&rig);
    assert_false(rig_exists(&rig, 0, 0));
    rig_down(&rig);
    sim_free(&rig.sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_drive_that_went_out_did_not_publish_stays_away),
        cmocka_unit_test(a_deleted_block_is_not_evicted),
        cmocka_unit_test(nothing_deleted_is_back_after_a_kill),
        cmocka_unit_test(nothing_deleted_is_back_after_a_power_cut),
        cmocka_unit_test(nothing_deleted_is_back_after_failed_headers),
        cmocka_unit_test(a_quota_waits_for_a_seal),
        cmocka_unit_test(a_failed_write_never_comes_back),
        cmocka_unit_test(an_open_without_room_brings_nothing_back),
        cmocka_unit_test(what_was_evicted_can_be_deleted),
        cmocka_unit_test(a_failed_write_can_be_deleted),
        cmocka_unit_test(what_an_open_did_not_find_stays_away),
        cmocka_unit_test(a_life_that_failed_to_begin_needs_no_header),
        cmocka_unit_test(a_life_that_had_begun_needs_no_header_after_an_open),
        cmocka_unit_test(a_torn_dead_map_holds_when_one_copy_is_damaged),
        cmocka_unit_test(an_open_merges_the_copies_of_a_dead_map),
        cmocka_unit_test(what_an_open_could_not_read_stays_away),
    };

    return cmocka_run_group_tests_name("store-dead", tests, NULL, NULL);
}
