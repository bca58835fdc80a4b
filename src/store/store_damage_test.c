/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged drives: the same tests on every back end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
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
    assert_int_equal(rig_put(rig, 0, 0, 3000, 10, true), ICMS_OK);
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
        STORE_TEST(a_mark_of_damage_goes_when_the_block_comes_back, backend),                      \
        STORE_TEST(a_block_damaged_while_open_is_a_checksum_miss, backend),                        \
        STORE_TEST(a_scan_finds_its_way_behind_damage, backend),                                   \
        STORE_TEST(a_value_that_looks_like_a_record_stays_a_value, backend)

#define STORE_TEST(test, backend)                                                                  \
    {                                                                                              \
#backend ": " #test, test, rig_##backend##_setup, rig_##backend##_teardown, NULL           \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        STORE_TESTS(uring),
        STORE_TESTS(sim),
    };

    rig_choose(argc, argv);
    return cmocka_run_group_tests_name("store-damage", tests, NULL, NULL);
}
