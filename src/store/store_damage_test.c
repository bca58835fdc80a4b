/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged drives, refused drives and failing devices: the same tests on every back end.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/fault_arm.h"
#include "base/hash.h"
#include "loop/sim.h"
#include "store/layout.h"
#include "store/store_int.h"
#include "store/store_rig.h"

/* ---- damage -----------------------------------------------------------------------------------
 */

/* Where the records of the first segment begin: behind its header and its dead map. */
#define RECORDS (STORE_DATA_OFFSET + 2 * STORE_PAGE_BYTES)

/* Every 64th byte of a drive with sealed and open segments is flipped, one at a time in turn: never
 * a wrong byte, never another block lost. */
static void a_flipped_byte_is_a_miss_or_harmless(void **state)
{
    enum { BLOCKS = 30, BYTES = 5000, STEP = 64 * 61 };
    struct rig *rig = *state;
    uint64_t used, misses = 0;

    rig_one_volume(rig);
    rig->opts.bytes = STORE_DATA_OFFSET + 7 * RIG_SEGMENT_BYTES;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < BLOCKS; i++)
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
    rig_down(rig);
    used = rig->opts.bytes;
    for (uint64_t at = 0; at < used; at += STEP) {
        uint64_t missing = 0, checksum = 0;
        struct store_stats stats;

        rig_flip(rig, at / 64 * 64 + at / STEP % 64, (uint8_t)(1 << at / STEP % 8));
        rig_up(rig);
        for (uint64_t i = 0; i < BLOCKS; i++) {
            enum icms_miss reason;
            icms_err err = rig_get(rig, 0, i, BYTES, i, &reason);

            if (err == ICMS_OK)
                continue;
            assert_int_equal(err, ICMS_MISS);
            missing++;
            checksum += reason == ICMS_MISS_CHECKSUM;
        }
        rig_stats(rig, &stats);
        assert_true(missing <= 1);
        if (missing > 0) {
            assert_int_equal(checksum, missing);
            assert_true(stats.checksum_errors > 0);
        }
        misses += missing;
        rig_down(rig);
        rig_flip(rig, at / 64 * 64 + at / STEP % 64, (uint8_t)(1 << at / STEP % 8));
    }
    assert_true(misses > 10);
}

static void a_block_damaged_while_open_is_a_checksum_miss(void **state)
{
    struct rig *rig = *state;
    enum icms_miss reason;
    struct store_stats stats;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 30000, 1, 0), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 2, 10000, 2, 0), ICMS_OK);
    rig_flip(rig, RECORDS + 20000, 0x10);
    assert_int_equal(rig_get(rig, 0, 1, 30000, 1, &reason), ICMS_MISS);
    assert_int_equal(reason, ICMS_MISS_CHECKSUM);
    assert_int_equal(rig_get(rig, 0, 1, 30000, 1, &reason), ICMS_MISS);
    assert_int_equal(reason, ICMS_MISS_CHECKSUM); /* it is remembered */
    assert_false(rig_exists(rig, 0, 1));
    assert_int_equal(rig_get(rig, 0, 2, 10000, 2, NULL), ICMS_OK);
    rig_stats(rig, &stats);
    assert_int_equal(stats.checksum_errors, 1);
    assert_int_equal(stats.blocks, 1);
    assert_int_equal(rig_put(rig, 0, 1, 30000, 9, 0), ICMS_OK);
    rig_restart(rig);
    assert_int_equal(rig_get(rig, 0, 1, 30000, 9, NULL), ICMS_OK);
}

/* After damage a scan looks for records inside of the value that follows. */
static void a_scan_finds_its_way_behind_damage(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;
    enum icms_miss reason;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(rig_put(rig, 0, i, 3900, i, 0), ICMS_OK);
    rig_down(rig);
    rig_flip(rig, RECORDS + 100, 1);      /* the first one is damaged in its value */
    rig_flip(rig, RECORDS + 4096 + 3, 1); /* the second one in its header */
    rig_up(rig);
    rig_stats(rig, &stats);
    assert_int_equal(stats.blocks, 3);
    assert_int_equal(stats.checksum_errors, 2);
    assert_int_equal(rig_get(rig, 0, 0, 3900, 0, &reason), ICMS_MISS);
    assert_int_equal(reason, ICMS_MISS_CHECKSUM);
    assert_int_equal(rig_get(rig, 0, 1, 3900, 1, NULL), ICMS_OK); /* by the copy at its end */
    assert_int_equal(rig_get(rig, 0, 2, 3900, 2, NULL), ICMS_OK);
    assert_int_equal(rig_get(rig, 0, 3, 3900, 3, NULL), ICMS_OK);
}

/* Even a true copy of a record, at the start of a page of a value, is only a value: the record of a
 * deleted block does not come back when both headers of the value around it are lost. */
static void a_value_that_looks_like_a_record_stays_a_value(void **state)
{
    struct rig *rig = *state;
    struct rig_op *op;
    struct store_stats stats;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 3900, 1, 0), ICMS_OK); /* page 2 */
    assert_int_equal(rig_delete(rig, 0, 1), ICMS_OK);
    op = rig_op_new(rig, RIG_WRITE, 3 * 4096); /* pages 3 to 6 */
    for (uint64_t page = 1; page < 3; page++)
        rig_peek(rig, RECORDS, op->memory + page * 4096, 4096);
    op->key = rig_key(2);
    op->value_bytes = 3 * 4096;
    op->prefilled = true;
    rig_op_start(op);
    rig_op_wait(op);
    assert_int_equal(op->err, ICMS_OK);
    rig_op_free(op);
    assert_int_equal(rig_put(rig, 0, 3, 3900, 3, 0), ICMS_OK); /* page 7 */
    rig_down(rig);
    rig_flip(rig, STORE_DATA_OFFSET + 3 * 4096 + 20, 1);
    rig_flip(rig, STORE_DATA_OFFSET + 7 * 4096 - 20, 1);
    rig_up(rig);
    rig_stats(rig, &stats);
    assert_int_equal(stats.blocks, 1);
    assert_int_equal(rig_get(rig, 0, 1, 3900, 1, NULL), ICMS_MISS);
    assert_int_equal(rig_get(rig, 0, 3, 3900, 3, NULL), ICMS_OK);
}

/* ---- every byte -------------------------------------------------------------------------------
 */

/* What a flipped byte may do. */
enum damage {
    DAMAGE_NONE,     /* every block is there                                     */
    DAMAGE_REPAIRED, /* every block is there, and the damage is counted           */
    DAMAGE_LOST,     /* one block is a miss with reason CHECKSUM, and it is counted */
};

enum { SCENE_BLOCKS = 20, SCENE_BYTES = 5000, SCENE_SEGMENTS = 8 };

/* A drive with sealed segments and an open one, and an image of it. */
struct scene {
    struct rig *rig;
    uint8_t *image;   /* of all the drive                            */
    uint64_t bytes;   /* of it                                       */
    uint64_t flips;   /* done                                        */
    uint64_t step;    /* of so many bytes of a range one is flipped  */
    uint64_t counted; /* of those that were counted                  */
};

/* Blocks 0 .. SCENE_BLOCKS - 1; then 50 is stored twice, 51 is stored and deleted, 52 stored twice.
 */
static void scene_init(struct scene *scene, struct rig *rig, uint64_t step)
{
    *scene = (struct scene){.rig = rig, .step = step};
    rig_one_volume(rig);
    rig->opts.bytes = scene->bytes = STORE_DATA_OFFSET + SCENE_SEGMENTS * RIG_SEGMENT_BYTES;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < SCENE_BLOCKS; i++)
        assert_int_equal(rig_put(rig, 0, i, SCENE_BYTES, i, 0), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 50, 100, 1, 0), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 51, 100, 51, 0), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 50, 100, 50, 0), ICMS_OK);
    assert_int_equal(rig_delete(rig, 0, 51), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 52, 100, 1, 0), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 52, 100, 52, 0), ICMS_OK);
    rig_wait_sealed(rig, 0, 0);
    rig_wait_sealed(rig, 0, 17); /* 18 and 19 are in the one that is open */
    rig_down(rig);
    scene->image = malloc(scene->bytes);
    check(scene->image != NULL);
    rig_peek(rig, 0, scene->image, scene->bytes);
}

/* Reads all blocks: right bytes or a miss with reason CHECKSUM. Returns the misses. */
static uint64_t scene_read(struct scene *scene)
{
    uint64_t misses = 0;
    enum icms_miss reason;

    for (uint64_t i = 0; i < SCENE_BLOCKS + 3; i++) {
        uint64_t key = i < SCENE_BLOCKS ? i : 50 + i - SCENE_BLOCKS;
        icms_err err =
            rig_get(scene->rig, 0, key, i < SCENE_BLOCKS ? SCENE_BYTES : 100, key, &reason);

        if (key == 51) { /* deleted: damaged or not, it stays away */
            assert_int_equal(err, ICMS_MISS);
            continue;
        }
        if (err == ICMS_OK)
            continue;
        assert_int_equal(err, ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_CHECKSUM);
        misses++;
    }
    return misses;
}

static void scene_flip(struct scene *scene, uint64_t at, enum damage damage)
{
    struct rig *rig = scene->rig;
    struct store_stats stats;

    rig_poke(rig, 0, scene->image, scene->bytes);
    rig_flip(rig, at, (uint8_t)(1 << scene->flips++ % 8));
    rig_up(rig);
    assert_int_equal(scene_read(scene), damage == DAMAGE_LOST);
    rig_stats(rig, &stats);
    assert_true(stats.checksum_errors > 0 || damage == DAMAGE_NONE);
    scene->counted += stats.checksum_errors > 0;
    rig_restart(rig); /* from what the first open wrote */
    assert_int_equal(scene_read(scene), damage == DAMAGE_LOST);
    rig_down(rig);
}

/* Flips bytes from .. end, one at a time; of long ranges 40 at most. */
static void scene_range(struct scene *scene, uint64_t from, uint64_t end, enum damage damage)
{
    uint64_t step = end - from > 40 * scene->step ? (end - from) / 40 : scene->step;

    for (uint64_t at = from + scene->flips % step; at < end; at += step)
        scene_flip(scene, at, damage);
}

/* Both headers, the value and the padding of a record; returns where the next one is. counts: its
 * value is what reads of its key get. */
static uint64_t scene_record(struct scene *scene, uint64_t at, bool counts)
{
    const struct store_record_df *df =
        (const struct store_record_df *)(const void *)(scene->image + at);
    uint64_t value = at + sizeof(*df), bytes = le32_get(df->value_bytes);
    uint64_t end = at + store_record_bytes(bytes);

    assert_int_equal(le16_get(df->magic), STORE_RECORD_MAGIC);
    scene_range(scene, at, value, counts ? DAMAGE_REPAIRED : DAMAGE_NONE);
    scene_range(scene, end - sizeof(*df), end, DAMAGE_NONE);
    scene_flip(scene, value + bytes, DAMAGE_NONE);
    if (bytes > 0) {
        scene_flip(scene, value, counts ? DAMAGE_LOST : DAMAGE_NONE);
        scene_flip(scene, value + bytes / 2, counts ? DAMAGE_LOST : DAMAGE_NONE);
        scene_flip(scene, value + bytes - 1, counts ? DAMAGE_LOST : DAMAGE_NONE);
    }
    return end;
}

/* A dead map: its sector, the copy of that, and zeros. */
static void scene_map(struct scene *scene, uint64_t at)
{
    for (uint64_t copy = at; copy < at + 2 * STORE_DEAD_SECTOR_BYTES;
         copy += STORE_DEAD_SECTOR_BYTES) {
        scene_range(scene, copy, copy + 8, DAMAGE_REPAIRED);
        scene_flip(scene, copy + STORE_DEAD_SECTOR_BYTES - 100, DAMAGE_REPAIRED);
        scene_range(scene, copy + STORE_DEAD_SECTOR_BYTES - 8, copy + STORE_DEAD_SECTOR_BYTES,
                    DAMAGE_REPAIRED);
    }
    scene_flip(scene, at + STORE_PAGE_BYTES - 100, DAMAGE_NONE);
}

/* A page whose bytes are all hashed: fields at its begin, the hash at its end. */
static void scene_page(struct scene *scene, uint64_t at, uint64_t fields, enum damage damage)
{
    scene_range(scene, at, at + fields, damage);
    scene_flip(scene, at + STORE_PAGE_BYTES - 100, damage);
    scene_range(scene, at + STORE_PAGE_BYTES - 8, at + STORE_PAGE_BYTES, damage);
}

static void scene_sealed(struct scene *scene)
{
    uint64_t first = STORE_DATA_OFFSET + RIG_SEGMENT_BYTES;
    uint64_t footer = first + RIG_SEGMENT_BYTES - STORE_PAGE_BYTES;

    scene_page(scene, first, 80, DAMAGE_REPAIRED);
    scene_map(scene, first + STORE_PAGE_BYTES);
    (void)scene_record(scene, first + 2 * STORE_PAGE_BYTES, true);
    scene_page(scene, footer - STORE_PAGE_BYTES, 8 + sizeof(struct store_entry_df),
               DAMAGE_REPAIRED);
    scene_range(scene, footer, footer + 16, DAMAGE_REPAIRED);
    scene_range(scene, footer + 16, footer + 32, DAMAGE_NONE); /* the drive: any other's page */
    scene_page(scene, footer + 32, 48, DAMAGE_REPAIRED);
    scene_range(scene, footer + sizeof(struct store_life_df),
                footer + sizeof(struct store_life_df) + 24, DAMAGE_REPAIRED);
}

static void scene_open(struct scene *scene)
{
    uint64_t first = STORE_DATA_OFFSET + 3 * RIG_SEGMENT_BYTES;
    uint64_t copy = first + RIG_SEGMENT_BYTES - STORE_PAGE_BYTES, at = first + 2 * STORE_PAGE_BYTES;
    const struct store_life_df *life =
        (const struct store_life_df *)(const void *)(scene->image + copy);

    assert_int_equal(le32_get(life->magic), STORE_HEADER_MAGIC);
    scene_page(scene, first, 80, DAMAGE_REPAIRED);
    scene_map(scene, first + STORE_PAGE_BYTES);
    at = scene_record(scene, at, true); /* blocks 18 and 19 */
    at = scene_record(scene, at, true);
    at = scene_record(scene, at, false); /* 50, which is replaced */
    at = scene_record(scene, at, false); /* 51, which is deleted */
    at = scene_record(scene, at, true);  /* 50 */
    at = scene_record(scene, at, false); /* 52, which is replaced */
    at = scene_record(scene, at, true);  /* 52, the last mutation there was */
    scene_range(scene, at, copy, DAMAGE_NONE);
    scene_page(scene, copy, 80, DAMAGE_NONE);
}

/* A flipped byte anywhere, in segments that were sealed and in one that was still open when the
 * process ended, leaves the right bytes or a miss with reason CHECKSUM that is counted; at the next
 * open and the one after it. */
static void a_flipped_byte_is_repaired_or_a_checksum_miss(void **state)
{
    struct rig *rig = *state;
    struct scene scene;

    scene_init(&scene, rig, rig->sim != NULL ? 1 : 9); /* a real disk is slower */
    scene_sealed(&scene);
    scene_open(&scene);
    scene_range(&scene, 0, STORE_DATA_OFFSET, DAMAGE_NONE);
    assert_true(scene.flips > 100 && scene.counted > scene.flips / 3);
    free(scene.image);
}

/* Where the youngest record of a key is. */
static uint64_t record_of(struct rig *rig, uint64_t n)
{
    uint64_t found = 0, sequence = 0;
    struct store_life_df life;
    struct key key = rig_key(n);

    for (uint64_t at = STORE_DATA_OFFSET; at < 4 << 20; at += STORE_PAGE_BYTES) {
        uint64_t page = (at - STORE_DATA_OFFSET) % RIG_SEGMENT_BYTES / STORE_PAGE_BYTES;
        struct store_record record;
        struct store_record_df df;

        if (page == 0)
            rig_peek(rig, at, &life, sizeof(life));
        rig_peek(rig, at, &df, sizeof(df));
        if (le64_get(life.sequence) >= sequence &&
            store_record_check(le64_get(life.nonce), (uint32_t)page,
                               RIG_SEGMENT_BYTES / STORE_PAGE_BYTES, &df, &record) == ICMS_OK &&
            key_equal(&record.key, &key)) {
            sequence = le64_get(life.sequence);
            found = at;
        }
    }
    assert_true(found > 0);
    return found;
}

/* The value of a change that had ended is damaged: what it replaced is stale, and stays away, also
 * when the segment that was open is sealed meanwhile. */
static void damage_hides_what_was_replaced_before(void **state)
{
    struct rig *rig = *state;
    enum icms_miss reason;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 3000, 1, 0), ICMS_OK);
    rig_restart(rig); /* the next segment */
    assert_int_equal(rig_put(rig, 0, 1, 3000, 2, 0), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 2, 3000, 3, 0), ICMS_OK);
    rig_down(rig);
    rig_flip(rig, record_of(rig, 1) + 1000, 1);
    for (int i = 0; i < 3; i++) {
        rig_up(rig);
        assert_false(rig_exists(rig, 0, 1));
        assert_int_equal(rig_get(rig, 0, 1, 3000, 2, &reason), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_CHECKSUM);
        assert_int_equal(rig_get(rig, 0, 2, 3000, 3, NULL), ICMS_OK);
        rig_down(rig);
    }
}

/* The last mutation before the end was acknowledged, so what it replaced is dead. Values of one
 * page, of some, and of so many that they fill a segment. */
static void a_damaged_last_change_is_a_checksum_miss(void **state)
{
    static const uint32_t sizes[] = {100, 3964, 3965, 20000, RIG_VALUE_BYTES_MAX};
    struct rig *rig = *state;
    struct store_stats stats;
    enum icms_miss reason;

    rig_one_volume(rig);
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint32_t bytes = sizes[i], key = 1 + i; /* what an earlier format left has other keys */
        struct err_why why;

        assert_int_equal(store_format(rig->env, &rig->opts, i > 0, &why), ICMS_OK);
        rig_up(rig);
        assert_int_equal(rig_put(rig, 0, key, bytes, 1, 0), ICMS_OK);
        rig_restart(rig); /* the next segment */
        assert_int_equal(rig_put(rig, 0, key, bytes, 2, 0), ICMS_OK);
        rig_restart(rig);
        assert_int_equal(rig_get(rig, 0, key, bytes, 2, NULL), ICMS_OK);
        assert_int_equal(rig_put(rig, 0, key, bytes, 3, 0), ICMS_OK);
        rig_down(rig);
        rig_flip(rig, record_of(rig, key) + STORE_HEADER_BYTES + bytes / 2, 1);
        for (int again = 0; again < 3; again++) {
            rig_up(rig);
            rig_stats(rig, &stats);
            assert_true(stats.checksum_errors > 0 || again > 0);
            assert_int_equal(stats.blocks + stats.evictions, 0);
            assert_int_equal(rig_get(rig, 0, key, bytes, 3, &reason), ICMS_MISS);
            assert_int_equal(reason, ICMS_MISS_CHECKSUM);
            rig_down(rig);
        }
    }
}

/* A value that was evicted, and whose segment is still there, does not come back for the damaged
 * one that was stored after it; it stays counted. */
static void a_damaged_change_does_not_bring_back_what_was_evicted(void **state)
{
    enum { BYTES = 20000, PAGES = 5 };
    struct rig *rig = *state;
    struct store_stats stats;
    enum icms_miss reason;

    rig_one_volume(rig);
    rig->quota_bytes[0] = 3 * PAGES * STORE_PAGE_BYTES; /* three blocks; two fill a segment */
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i <= 3; i++) /* the last one evicts two, for the next to find room */
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
    while (rig_exists(rig, 0, 0) || rig_exists(rig, 0, 1))
        ;
    assert_int_equal(rig_put(rig, 0, 1, BYTES, 9, 0), ICMS_OK);
    rig_down(rig);
    rig_flip(rig, record_of(rig, 1) + BYTES / 2, 1);
    for (int again = 0; again < 3; again++) {
        rig_up(rig);
        rig_stats(rig, &stats);
        assert_int_equal(stats.evictions, 2);
        assert_int_equal(stats.blocks, 2);
        assert_int_equal(rig_get(rig, 0, 1, BYTES, 1, &reason), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_CHECKSUM);
        assert_int_equal(rig_get(rig, 0, 2, BYTES, 2, NULL), ICMS_OK);
        assert_int_equal(rig_get(rig, 0, 3, BYTES, 3, NULL), ICMS_OK);
        rig_down(rig);
    }
}

/* The power went when a value was being replaced: its record is dead or not, and the new one is
 * whole or torn. What is whole counts, and of two that are the younger; from then on there is one.
 */
static void a_replacement_that_was_cut_off_leaves_one_value(void **state)
{
    struct rig *rig = *state;
    uint8_t map[STORE_PAGE_BYTES];
    enum icms_miss reason;

    rig_one_volume(rig);
    for (int torn = 0; torn < 2; torn++) {
        struct err_why why;

        assert_int_equal(store_format(rig->env, &rig->opts, torn > 0, &why), ICMS_OK);
        rig_up(rig);
        assert_int_equal(rig_put(rig, 0, 1, 3000, 1, 0), ICMS_OK);
        rig_peek(rig, RECORDS - STORE_PAGE_BYTES, map, sizeof(map));
        assert_int_equal(rig_put(rig, 0, 1, 3000, 2, 0), ICMS_OK);
        rig_down(rig);
        rig_poke(rig, RECORDS - STORE_PAGE_BYTES, map, sizeof(map)); /* the kill never got there */
        if (torn)
            rig_flip(rig, RECORDS + 4096 + 1000, 1);
        for (int again = 0; again < 2; again++) {
            rig_up(rig);
            assert_int_equal(rig_get(rig, 0, 1, 3000, torn ? 1 : 2, NULL), ICMS_OK);
            rig_verify(rig);
        }
        rig_up(rig);
        assert_int_equal(rig_delete(rig, 0, 1), ICMS_OK);
        rig_restart(rig); /* and not the other one */
        assert_int_equal(rig_get(rig, 0, 1, 3000, 1, &reason), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_ABSENT);
        rig_down(rig);
    }
}

/* After a restart records are younger than all before it. */
static void a_restart_does_not_make_records_older(void **state)
{
    enum { BLOCKS = 40 };
    struct rig *rig = *state;
    uint8_t map[STORE_PAGE_BYTES];

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 1; i < BLOCKS; i++) /* all into one segment, whose life began first */
        assert_int_equal(rig_put(rig, 0, i % 8 + 2, 100, i, 0), ICMS_OK);
    rig_restart(rig);
    for (uint64_t i = 2; i < 10; i++) {
        uint64_t at = record_of(rig, i) - STORE_DATA_OFFSET;
        uint64_t map_at =
            STORE_DATA_OFFSET + at / RIG_SEGMENT_BYTES * RIG_SEGMENT_BYTES + STORE_PAGE_BYTES;

        rig_peek(rig, map_at, map, sizeof(map));
        assert_int_equal(rig_put(rig, 0, i, 100, 1000 + i, 0), ICMS_OK);
        rig_down(rig);
        rig_poke(rig, map_at, map, sizeof(map)); /* the kill never got there */
        rig_up(rig);
        assert_int_equal(rig_get(rig, 0, i, 100, 1000 + i, NULL), ICMS_OK);
    }
}

/* Nothing is known of records whose part of the dead map is lost in both copies at an open: they
 * are damaged. What was deleted stays away. */
static void a_lost_dead_map_costs_its_records(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;
    enum icms_miss reason;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(rig_put(rig, 0, i, 3000, i, 0), ICMS_OK);
    assert_int_equal(rig_delete(rig, 0, 0), ICMS_OK);
    rig_down(rig);
    rig_flip(rig, RECORDS - STORE_PAGE_BYTES + 20, 1);
    rig_flip(rig, RECORDS - STORE_PAGE_BYTES + STORE_DEAD_SECTOR_BYTES + 20, 1);
    rig_up(rig);
    for (uint64_t i = 1; i < 4; i++) {
        assert_int_equal(rig_get(rig, 0, i, 3000, i, &reason), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_CHECKSUM);
    }
    rig_stats(rig, &stats);
    assert_true(stats.checksum_errors >= 2);
    assert_int_equal(stats.blocks, 0);
    for (uint64_t i = 0; i < 4; i++) { /* the segment works as before */
        assert_int_equal(rig_put(rig, 0, i, 3000, 10 + i, 0), ICMS_OK);
        assert_int_equal(rig_delete(rig, 0, i), ICMS_OK);
    }
    rig_restart(rig);
    rig_stats(rig, &stats);
    assert_int_equal(stats.blocks + stats.checksum_errors, 0);
    rig_verify(rig);
}

/* While the store runs it knows its dead maps: what happens to them on flash costs nothing, and is
 * mended by the next kill. */
static void a_dead_map_damaged_while_running_costs_nothing(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(rig_put(rig, 0, i, 3000, i, 0), ICMS_OK);
    assert_int_equal(rig_delete(rig, 0, 0), ICMS_OK);
    rig_flip(rig, RECORDS - STORE_PAGE_BYTES + 20, 1);
    rig_flip(rig, RECORDS - STORE_PAGE_BYTES + STORE_DEAD_SECTOR_BYTES + 20, 1);
    assert_int_equal(rig_delete(rig, 0, 3), ICMS_OK);
    for (int again = 0; again < 2; again++) {
        for (uint64_t i = 0; i < 4; i++)
            assert_int_equal(rig_get(rig, 0, i, 3000, i, NULL), i % 3 == 0 ? ICMS_MISS : ICMS_OK);
        rig_restart(rig);
    }
    rig_stats(rig, &stats);
    assert_int_equal(stats.checksum_errors, 0);
    rig_verify(rig);
}

/* Conditions of a store see a marked block as absent; storing and deleting take the mark away. */
static void a_mark_of_damage_goes_when_the_block_comes_back(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;
    struct store_position keys[4], from = {0};
    enum icms_miss reason;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(rig_put(rig, 0, i, 3000, i, 0), ICMS_OK);
    rig_down(rig);
    for (uint64_t i = 0; i < 3; i++)
        rig_flip(rig, RECORDS + i * 4096 + 1000, 1);
    rig_up(rig);
    rig_stats(rig, &stats);
    assert_int_equal(stats.checksum_errors, 3);
    assert_int_equal(stats.blocks + stats.used_bytes, 0);
    assert_int_equal(rig_put(rig, 0, 0, 3000, 10, STORE_WRITE_IF_EXISTS), ICMS_MISS);
    assert_int_equal(rig_put(rig, 0, 0, 3000, 10, STORE_WRITE_IF_ABSENT), ICMS_OK);
    assert_int_equal(rig_delete(rig, 0, 1), ICMS_OK);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(rig_get(rig, 0, 0, 3000, 10, NULL), ICMS_OK);
        assert_int_equal(rig_get(rig, 0, 1, 3000, 1, &reason), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_ABSENT);
        assert_int_equal(rig_get(rig, 0, 2, 3000, 2, &reason), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_CHECKSUM);
        rig_stats(rig, &stats);
        assert_int_equal(stats.blocks, 1);
        rig_restart(rig);
    }
    loop_stop(rig->loop);
    loop_join(rig->loop);
    assert_int_equal(store_list(rig->store, 0, &from, &store_position_end, UINT32_MAX, keys, 4), 1);
}

/* ---- refusals ---------------------------------------------------------------------------------
 */

static void a_foreign_drive_is_refused_and_left_alone(void **state)
{
    static const uint64_t places[] = {0, 5000, 200000, (4 << 20) - 1};
    struct rig *rig = *state;
    struct err_why why = {""};
    struct loop *loop = NULL;
    struct store *store = NULL;
    struct loop_opts opts;

    for (int i = 0; i < 4; i++) {
        struct loop_file_opts file_opts = {
            .path = rig->path, .create = true, .write = true, .bytes = 4 << 20};
        struct loop_file *file = NULL;

        assert_int_equal(loop_file_open(rig->env, &file_opts, &why, &file), ICMS_OK);
        loop_file_close(&file);
        rig_flip(rig, places[i], 0x55);
        assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_FOREIGN);
        loop_opts_init(&opts);
        assert_int_equal(loop_new(rig->env, &opts, &why, &loop), ICMS_OK);
        assert_int_equal(store_open(loop, &rig->opts, &why, &store), ICMS_FOREIGN);
        assert_non_null(strstr(why.text, rig->path));
        loop_free(&loop);
        rig_flip(rig, places[i], 0x55); /* all zeros, if nothing else was changed */
    }
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_OK);
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_EXISTS);
    assert_int_equal(store_format(rig->env, &rig->opts, true, &why), ICMS_OK);
}

static void formatting_again_empties_the_drive(void **state)
{
    struct rig *rig = *state;
    struct err_why why;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 50; i++)
        assert_int_equal(rig_put(rig, 0, i, 10000, i, 0), ICMS_OK);
    rig_down(rig);
    assert_int_equal(store_format(rig->env, &rig->opts, true, &why), ICMS_OK);
    rig_up(rig);
    for (uint64_t i = 0; i < 50; i++)
        assert_int_equal(rig_get(rig, 0, i, 10000, i, NULL), ICMS_MISS);
}

static void either_superblock_is_enough(void **state)
{
    struct rig *rig = *state;
    struct err_why why;
    struct loop *loop;
    struct loop_opts opts;
    struct store *store;

    rig_one_volume(rig);
    rig_format(rig);
    rig_flip(rig, STORE_SUPER_OFFSET_A + 40, 1);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 10, 1, 0), ICMS_OK);
    rig_down(rig);
    rig_flip(rig, STORE_SUPER_OFFSET_A + 40, 1);
    rig_flip(rig, STORE_SUPER_OFFSET_B, 1);
    rig_up(rig);
    assert_int_equal(rig_get(rig, 0, 1, 10, 1, NULL), ICMS_OK);
    rig_down(rig);
    rig_flip(rig, STORE_SUPER_OFFSET_A + 40, 1);
    loop_opts_init(&opts);
    assert_int_equal(loop_new(rig->env, &opts, &why, &loop), ICMS_OK);
    assert_int_equal(store_open(loop, &rig->opts, &why, &store), ICMS_CORRUPT);
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_EXISTS);
    loop_free(&loop);
}

/* Writes both superblocks anew, with their hash, after a change. */
static void super_forge(struct rig *rig, void (*change)(struct store_super_df *df))
{
    struct store_super_df df;

    rig_peek(rig, STORE_SUPER_OFFSET_A, &df, sizeof(df));
    change(&df);
    df.hash = le64_of(hash64_seed(&df, sizeof(df) - sizeof(df.hash), 0));
    rig_poke(rig, STORE_SUPER_OFFSET_A, &df, sizeof(df));
    rig_poke(rig, STORE_SUPER_OFFSET_B, &df, sizeof(df));
}

static void super_same(struct store_super_df *df)
{
    (void)df;
}

static void super_version(struct store_super_df *df)
{
    df->version = le32_of(STORE_SUPER_VERSION + 1);
}

static void super_segments(struct store_super_df *df)
{
    df->segments = le32_of(le32_get(df->segments) + 1);
}

/* A superblock that is whole, and not of this version or of a drive that cannot be. */
static void a_superblock_of_another_version_is_refused(void **state)
{
    static void (*const changes[])(struct store_super_df *) = {super_same, super_version,
                                                               super_segments};
    struct rig *rig = *state;

    rig_one_volume(rig);
    for (uint32_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct err_why why = {""};
        struct loop_opts opts;

        assert_int_equal(store_format(rig->env, &rig->opts, i > 0, &why), ICMS_OK);
        super_forge(rig, changes[i]);
        loop_opts_init(&opts);
        assert_int_equal(loop_new(rig->env, &opts, &why, &rig->loop), ICMS_OK);
        assert_int_equal(store_open(rig->loop, &rig->opts, &why, &rig->store),
                         i == 0 ? ICMS_OK : ICMS_VERSION);
        loop_free(&rig->loop);
        store_close(&rig->store);
    }
}

/* Entries name one of the rows that a footer has. */
static void an_entry_of_a_row_that_is_not_there_is_refused(void **state)
{
    const struct store_record record = {.key = rig_key(1), .value_bytes = 100};
    struct store_record out;
    struct store_entry_df df;
    uint32_t page;
    uint8_t row;

    (void)state;
    store_entry_make(&record, 2, STORE_SEGMENT_VOLUMES - 1, &df);
    assert_int_equal(store_entry_check(&df, 16, &out, &page, &row), ICMS_OK);
    assert_int_equal(row, STORE_SEGMENT_VOLUMES - 1);
    df.volume++;
    assert_int_equal(store_entry_check(&df, 16, &out, &page, &row), ICMS_CORRUPT);
    store_entry_make(&record, 1, 0, &df); /* in the dead map */
    assert_int_equal(store_entry_check(&df, 16, &out, &page, &row), ICMS_CORRUPT);
    store_entry_make(&record, 14, 0, &df); /* in the summary */
    assert_int_equal(store_entry_check(&df, 16, &out, &page, &row), ICMS_CORRUPT);
}

static void a_second_opener_is_told_who_holds_the_drive(void **state)
{
    struct rig *rig = *state;
    struct err_why why = {""};
    struct store *store;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    loop_stop(rig->loop);
    loop_join(rig->loop);
    assert_int_equal(store_open(rig->loop, &rig->opts, &why, &store), ICMS_LOCKED);
    assert_non_null(strstr(why.text, rig->path));
    assert_int_equal(store_format(rig->env, &rig->opts, true, &why), ICMS_LOCKED);
}

/* Only with real files and processes. */
static void a_truncated_drive_is_refused_and_left_alone(void **state)
{
    struct rig *rig = *state;
    struct loop_opts opts;
    struct err_why why = {""};
    struct loop *loop = NULL;
    struct store *store = NULL;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 4000, 1, 0), ICMS_OK);
    rig_down(rig);
    assert_int_equal(truncate(rig->path, 3 << 20), 0);
    loop_opts_init(&opts);
    assert_int_equal(loop_new(rig->env, &opts, &why, &loop), ICMS_OK);
    assert_int_equal(store_open(loop, &rig->opts, &why, &store), ICMS_IO);
    assert_non_null(strstr(why.text, "truncated"));
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_EXISTS);
    loop_free(&loop);
    assert_int_equal(truncate(rig->path, 4 << 20), 0); /* as it was, but for zeros at its end */
    rig_up(rig);
    assert_int_equal(rig_get(rig, 0, 1, 4000, 1, NULL), ICMS_OK);
}

static void a_second_process_is_told_the_pid(void **state)
{
    struct rig *rig = *state;
    struct loop_opts opts;
    struct err_why why = {""};
    struct loop *loop = NULL;
    struct store *store = NULL;
    char pid_text[32];
    int ready[2];
    pid_t pid;

    rig_one_volume(rig);
    rig_format(rig);
    assert_int_equal(pipe(ready), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        rig_up(rig);
        (void)!write(ready[1], "r", 1);
        for (;;)
            (void)pause();
    }
    assert_int_equal(read(ready[0], pid_text, 1), 1);
    loop_opts_init(&opts);
    assert_int_equal(loop_new(rig->env, &opts, &why, &loop), ICMS_OK);
    assert_int_equal(store_open(loop, &rig->opts, &why, &store), ICMS_LOCKED);
    (void)snprintf(pid_text, sizeof(pid_text), " %d", (int)pid);
    assert_non_null(strstr(why.text, pid_text));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)close(ready[0]);
    (void)close(ready[1]);
    loop_free(&loop);
}

static void bad_sizes_are_refused(void **state)
{
    struct rig *rig = *state;
    struct err_why why;

    rig->opts.segment_bytes = 100000;
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_INVALID);
    rig->opts.segment_bytes = RIG_SEGMENT_BYTES;
    rig->opts.value_bytes_max = 60 << 10;
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_INVALID);
    rig->opts.value_bytes_max = 4096;
    rig->opts.bytes = 200000;
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_NO_SPACE);
    rig->opts.bytes = 0;
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_NOT_FOUND);
}

/* ---- failures ---------------------------------------------------------------------------------
 */

static void test_fault(const char *text)
{
    struct err_why why;

    assert_int_equal(fault_arm(text, &why), ICMS_OK);
}

static void a_failed_write_is_never_visible(void **state)
{
    static const char *const faults[] = {"store.write:1:fail", "store.write_done:1:fail"};
    struct rig *rig = *state;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 9, 100, 1, 0), ICMS_OK);
    test_fault("store.kill:1:fail"); /* is tried again */
    assert_int_equal(rig_put(rig, 0, 9, 100, 2, 0), ICMS_OK);
    test_fault(NULL);
    assert_int_equal(rig_get(rig, 0, 9, 100, 2, NULL), ICMS_OK);
    for (int i = 0; i < 2; i++) {
        uint64_t key = (uint64_t)i * 2;

        assert_int_equal(rig_put(rig, 0, key, 100, 1, 0), ICMS_OK);
        test_fault(faults[i]);
        assert_int_equal(rig_put(rig, 0, key + 1, 100, 2, 0), ICMS_IO);
        assert_int_equal(rig_get(rig, 0, key + 1, 100, 2, NULL), ICMS_MISS);
        test_fault(faults[i]);
        assert_int_equal(rig_put(rig, 0, key, 100, 3, 0), ICMS_IO);
        assert_int_equal(rig_get(rig, 0, key, 100, 1, NULL), ICMS_OK); /* as before */
        test_fault(NULL);
    }
    for (int again = 0; again < 2; again++) { /* nor after a restart: it was killed */
        for (uint64_t i = 0; i < 2; i++) {
            assert_int_equal(rig_get(rig, 0, i * 2, 100, 1, NULL), ICMS_OK);
            assert_int_equal(rig_get(rig, 0, i * 2 + 1, 100, 2, NULL), ICMS_MISS);
        }
        rig_restart(rig);
    }
    assert_int_equal(rig_put(rig, 0, 1, 100, 4, 0), ICMS_OK);
    assert_int_equal(rig_get(rig, 0, 1, 100, 4, NULL), ICMS_OK);
}

/* It is on flash, and dead. */
static void a_failed_write_is_no_difference(void **state)
{
    struct rig *rig = *state;

    rig_one_volume(rig);
    rig_format(rig);
    for (uint64_t blocks = 1; blocks < 60; blocks += 29) {
        uint64_t replaced = 1000 * blocks, fresh = replaced + 1;

        rig_up(rig);
        assert_int_equal(rig_put(rig, 0, replaced, 100, 1, 0), ICMS_OK);
        test_fault("store.write_done:1:fail");
        assert_int_equal(rig_put(rig, 0, replaced, 100, 2, 0), ICMS_IO);
        test_fault("store.write_done:1:fail");
        assert_int_equal(rig_put(rig, 0, fresh, 100, 2, 0), ICMS_IO);
        test_fault(NULL);
        for (uint64_t i = 0; i < blocks; i++)
            assert_int_equal(rig_put(rig, 0, replaced + 10 + i, 3000, i, 0), ICMS_OK);
        if (blocks > 20)
            rig_wait_sealed(rig, 0, replaced);
        rig_verify(rig);
        rig_up(rig);
        assert_int_equal(rig_get(rig, 0, replaced, 100, 1, NULL), ICMS_OK);
        assert_int_equal(rig_get(rig, 0, fresh, 100, 2, NULL), ICMS_MISS);
        rig_verify(rig);
    }
}

/* What cannot be marked as dead could come back. */
static void a_kill_that_fails_for_good_takes_the_drive_out(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 100, 1, 0), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 2, 100, 2, 0), ICMS_OK);
    test_fault("store.kill:1:fail+");
    assert_int_equal(rig_put(rig, 0, 1, 100, 3, 0), ICMS_DRIVE_DOWN);
    test_fault(NULL);
    rig_stats(rig, &stats); /* records that are written meanwhile give it no further attempts */
    assert_int_equal(stats.io_errors, 3);
    assert_int_equal(rig_delete(rig, 0, 2), ICMS_DRIVE_DOWN);
    assert_int_equal(atomic_load(&rig->down_calls), 1);
    rig_restart(rig); /* nobody was told of either */
    assert_int_equal(rig_get(rig, 0, 1, 100, 3, NULL), ICMS_OK);
    assert_int_equal(rig_get(rig, 0, 2, 100, 2, NULL), ICMS_OK);
    rig_stats(rig, &stats);
    assert_int_equal(stats.blocks, 2);
    rig_verify(rig);
}

static void a_drive_that_keeps_failing_goes_out_of_service(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;
    enum icms_miss reason;
    int writes = 0;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 100, 1, 0), ICMS_OK);
    test_fault("store.write:1:fail+");
    while (rig_put(rig, 0, 2, 100, 1, 0) == ICMS_IO)
        writes++;
    assert_in_range(writes, 2, 20);
    test_fault(NULL);
    assert_int_equal(rig_put(rig, 0, 2, 100, 1, 0), ICMS_DRIVE_DOWN);
    assert_int_equal(rig_delete(rig, 0, 1), ICMS_DRIVE_DOWN);
    assert_int_equal(rig_get(rig, 0, 1, 100, 1, &reason), ICMS_DRIVE_DOWN);
    assert_int_equal(reason, ICMS_MISS_DRIVE_DOWN);
    assert_int_equal(rig_flush(rig), ICMS_DRIVE_DOWN);
    assert_false(rig_exists(rig, 0, 1));
    assert_int_equal(atomic_load(&rig->down_calls), 1);
    rig_stats(rig, &stats);
    assert_true(stats.down);
    rig_restart(rig);
    assert_int_equal(rig_get(rig, 0, 1, 100, 1, NULL), ICMS_OK);
}

/* Failures of what the store does behind the scenes cost nothing that was acknowledged. */
static void failures_of_the_log_itself_lose_nothing(void **state)
{
    static const char *const faults[] = {"store.seal:3:fail", "store.header:2:fail",
                                         "store.reclaim:2:fail+",
                                         "store.seal:1:fail,"
                                         "store.header:3:fail,"
                                         "store.reclaim:1:fail"};
    struct rig *rig = *state;
    uint64_t key = 0, known = 0;

    rig_one_volume(rig);
    rig->opts.bytes = 2 << 20;
    rig_format(rig);
    for (int i = 0; i < 4; i++) {
        struct store_stats stats;
        uint64_t hits = 0;

        rig_up(rig);
        test_fault(faults[i]);
        for (uint64_t n = 0; n < 200; n++, key++)
            assert_int_equal(rig_put(rig, 0, key, 10000, key, 0), ICMS_OK);
        test_fault(NULL);
        for (int again = 0; again < 2; again++) {
            for (uint64_t n = key - 200, h = hits = 0; n < key; n++, hits = h)
                h += rig_get(rig, 0, n, 10000, n, NULL) == ICMS_OK;
            rig_stats(rig, &stats);
            assert_true(hits > 100);
            known = 0;
            for (uint64_t n = 0; n < key; n++)
                known += rig_get(rig, 0, n, 10000, n, NULL) == ICMS_OK;
            assert_int_equal(stats.blocks, known);
            assert_int_equal(stats.evictions + stats.blocks, key);
            if (again == 0)
                rig_restart(rig);
        }
        rig_down(rig);
    }
}

/* A write of a new life fails; nothing is written after it that would hide what it left on flash.
 */
static void a_new_life_that_fails_once_counts_once(void **state)
{
    struct rig *rig = *state;
    uint64_t key = 0;

    rig_one_volume(rig);
    rig->opts.bytes = 2 << 20;
    rig_format(rig);
    for (unsigned nth = 1; nth <= 12; nth++) {
        struct store_stats stats;
        char fault[32];

        rig_up(rig);
        for (uint64_t n = 0; n < 200; n++, key++) {
            (void)snprintf(fault, sizeof(fault), "store.header:%u:fail", nth);
            if (n == 180)
                test_fault(fault);
            assert_int_equal(rig_put(rig, 0, key, 10000, key, 0), ICMS_OK);
        }
        test_fault(NULL);
        rig_restart(rig);
        rig_stats(rig, &stats);
        assert_int_equal(stats.evictions + stats.blocks, key);
        rig_down(rig);
    }
}

static void a_life_that_fails_for_good_takes_the_drive_out(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;
    icms_err err = ICMS_OK;

    rig_one_volume(rig);
    rig->opts.bytes = 2 << 20;
    rig_format(rig);
    rig_up(rig);
    test_fault("store.header:1:fail+");
    for (uint64_t key = 0; key < 1000 && err == ICMS_OK; key++)
        err = rig_put(rig, 0, key, 10000, key, 0);
    test_fault(NULL);
    assert_int_equal(err, ICMS_DRIVE_DOWN);
    assert_int_equal(atomic_load(&rig->down_calls), 1);
    rig_stats(rig, &stats); /* records that are written meanwhile give it no further attempts */
    assert_int_equal(stats.io_errors, 3);
    rig_restart(rig);
    assert_int_equal(rig_put(rig, 0, 1, 10000, 1, 0), ICMS_OK);
}

/* Only simulated. The read that takes the drive out of service is that of a job for a quota: it
 * evicts nothing any more. */
static void a_drive_goes_out_under_a_job_for_a_quota(void **state)
{
    struct rig rig = {.sim = NULL};
    struct store_volume_stats volume;
    struct sim_opts opts;
    uint64_t key = 0;

    sim_opts_init(&opts, 3);
    opts.disk_read_error_ppm = 1000000;
    rig_sim_init(&rig, &opts);
    sim_faults(rig.sim, false);
    rig_one_volume(&rig);
    rig.quota_bytes[0] = 2 * RIG_SEGMENT_BYTES; /* it shares segments */
    rig_format(&rig);
    rig_up(&rig);
    do {
        assert_int_equal(rig_put(&rig, 0, key, 6000, key, 0), ICMS_OK);
        key++;
        store_volume_stats(rig.store, 0, &volume);
    } while (key < 100 || volume.bytes + store_record_bytes(6000) <= volume.quota_bytes);
    rig_wait_sealed(&rig, 0, key - volume.blocks);
    for (int i = 0; i < 1000; i++) /* nothing else is under way */
        (void)sim_step(rig.sim);
    sim_faults(rig.sim, true);
    for (int i = 0; i < STORE_READ_ERRORS_MAX - 1; i++)
        assert_int_equal(rig_get(&rig, 0, key - 1, 6000, key - 1, NULL), ICMS_IO);
    assert_int_equal(rig_put(&rig, 0, key, 6000, key, 0), ICMS_DRIVE_DOWN);
    assert_int_equal(atomic_load(&rig.down_calls), 1);
    for (int i = 0; i < 1000; i++)
        (void)sim_step(rig.sim);
    sim_faults(rig.sim, false);
    rig_restart(&rig);
    assert_int_equal(rig_get(&rig, 0, key - 1, 6000, key - 1, NULL), ICMS_OK);
    rig_down(&rig);
    sim_free(&rig.sim);
}

/* Only simulated. Reads that fail at open, alone or twice in a row, lose nothing. */
static void reads_that_fail_at_open_lose_nothing_for_good(void **state)
{
    struct rig rig = {.sim = NULL};
    struct sim_opts opts;
    uint64_t opened = 0, errors = 0;

    sim_opts_init(&opts, 3);
    opts.disk_read_error_ppm = 20000;
    rig_sim_init(&rig, &opts);
    sim_faults(rig.sim, false);
    rig_one_volume(&rig);
    rig_format(&rig);
    rig_up(&rig);
    for (uint64_t i = 0; i < 60; i++)
        assert_int_equal(rig_put(&rig, 0, i, 10000, i, 0), ICMS_OK);
    rig_down(&rig);
    sim_faults(rig.sim, true);
    for (int i = 0; i < 30; i++) {
        struct loop_opts loop_options;
        struct err_why why = {""};
        struct store_stats stats;

        loop_opts_init(&loop_options);
        assert_int_equal(loop_new(rig.env, &loop_options, &why, &rig.loop), ICMS_OK);
        if (store_open(rig.loop, &rig.opts, &why, &rig.store) == ICMS_OK) {
            store_stats(rig.store, &stats);
            assert_true(stats.blocks <= 60);
            errors += stats.io_errors;
            opened++;
        }
        loop_free(&rig.loop);
        store_close(&rig.store);
    }
    assert_true(opened > 10 && errors > opened);
    sim_faults(rig.sim, false);
    rig_up(&rig);
    for (uint64_t i = 0; i < 60; i++)
        assert_int_equal(rig_get(&rig, 0, i, 10000, i, NULL), ICMS_OK);
    rig_down(&rig);
    sim_free(&rig.sim);
}

/* However many mutations wait for it: it is tried again, and none of them is lost or half done. */
static void one_failed_flush_is_one_failure(void **state)
{
    enum { OPS = 40 };
    struct rig *rig = *state;
    struct rig_op *ops[OPS];
    struct store_stats stats;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < OPS; i++)
        assert_int_equal(rig_put(rig, 0, i, 100, i, 0), ICMS_OK);
    test_fault("store.kill_flush:2:fail");
    for (uint64_t i = 0; i < OPS; i++) {
        ops[i] = rig_op_new(rig, RIG_WRITE, 100);
        ops[i]->key = rig_key(i);
        ops[i]->value_bytes = 100;
        ops[i]->seed = i + OPS;
        rig_op_start(ops[i]);
    }
    for (uint64_t i = 0; i < OPS; i++) {
        rig_op_wait(ops[i]);
        assert_int_equal(ops[i]->err, ICMS_OK);
        assert_int_equal(rig_get(rig, 0, i, 100, i + OPS, NULL), ICMS_OK);
        rig_op_free(ops[i]);
    }
    test_fault(NULL);
    rig_stats(rig, &stats);
    assert_int_equal(stats.io_errors, 1);
    assert_int_equal(atomic_load(&rig->down_calls), 0);
}

static void a_failed_flush_says_so(void **state)
{
    struct rig *rig = *state;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 100, 1, 0), ICMS_OK);
    assert_int_equal(rig_flush(rig), ICMS_OK);
    test_fault("store.flush:1:fail");
    assert_int_equal(rig_flush(rig), ICMS_IO);
    assert_int_equal(rig_flush(rig), ICMS_OK);
    test_fault(NULL);
}

#define STORE_TESTS(backend)                                                                       \
    STORE_TEST(a_flipped_byte_is_a_miss_or_harmless, backend),                                     \
        STORE_TEST(a_flipped_byte_is_repaired_or_a_checksum_miss, backend),                        \
        STORE_TEST(damage_hides_what_was_replaced_before, backend),                                \
        STORE_TEST(a_damaged_last_change_is_a_checksum_miss, backend),                             \
        STORE_TEST(a_damaged_change_does_not_bring_back_what_was_evicted, backend),                \
        STORE_TEST(a_replacement_that_was_cut_off_leaves_one_value, backend),                      \
        STORE_TEST(a_restart_does_not_make_records_older, backend),                                \
        STORE_TEST(a_lost_dead_map_costs_its_records, backend),                                    \
        STORE_TEST(a_dead_map_damaged_while_running_costs_nothing, backend),                       \
        STORE_TEST(a_kill_that_fails_for_good_takes_the_drive_out, backend),                       \
        STORE_TEST(a_mark_of_damage_goes_when_the_block_comes_back, backend),                      \
        STORE_TEST(a_block_damaged_while_open_is_a_checksum_miss, backend),                        \
        STORE_TEST(a_scan_finds_its_way_behind_damage, backend),                                   \
        STORE_TEST(a_value_that_looks_like_a_record_stays_a_value, backend),                       \
        STORE_TEST(a_foreign_drive_is_refused_and_left_alone, backend),                            \
        STORE_TEST(formatting_again_empties_the_drive, backend),                                   \
        STORE_TEST(either_superblock_is_enough, backend),                                          \
        STORE_TEST(a_superblock_of_another_version_is_refused, backend),                           \
        STORE_TEST(a_second_opener_is_told_who_holds_the_drive, backend),                          \
        STORE_TEST(bad_sizes_are_refused, backend),                                                \
        STORE_TEST(a_failed_write_is_no_difference, backend),                                      \
        STORE_TEST(a_failed_write_is_never_visible, backend),                                      \
        STORE_TEST(a_drive_that_keeps_failing_goes_out_of_service, backend),                       \
        STORE_TEST(failures_of_the_log_itself_lose_nothing, backend),                              \
        STORE_TEST(a_new_life_that_fails_once_counts_once, backend),                               \
        STORE_TEST(a_life_that_fails_for_good_takes_the_drive_out, backend),                       \
        STORE_TEST(one_failed_flush_is_one_failure, backend),                                      \
        STORE_TEST(a_failed_flush_says_so, backend)

#define STORE_TEST(test, backend)                                                                  \
    {                                                                                              \
#backend ": " #test, test, rig_##backend##_setup, rig_##backend##_teardown, NULL           \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(a_truncated_drive_is_refused_and_left_alone, uring),
        STORE_TEST(a_second_process_is_told_the_pid, uring),
        cmocka_unit_test(a_drive_goes_out_under_a_job_for_a_quota),
        cmocka_unit_test(reads_that_fail_at_open_lose_nothing_for_good),
        cmocka_unit_test(an_entry_of_a_row_that_is_not_there_is_refused),
        STORE_TESTS(uring),
        STORE_TESTS(sim),
    };

    return cmocka_run_group_tests_name("store-damage", tests, NULL, NULL);
}
