/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of store.h, the same tests on every back end.
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

/* ---- writing and reading ----------------------------------------------------------------------
 */

static void a_block_comes_back_as_it_was_written(void **state)
{
    static const uint32_t sizes[] = {1, 63, 3963, 3964, 3965, 8060, 20000, RIG_VALUE_BYTES_MAX};
    struct rig *rig = *state;
    struct store_stats stats;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal(rig_put(rig, 0, i, sizes[i], i, 0), ICMS_OK);
    for (uint64_t i = 0; i < 8; i++) {
        assert_int_equal(rig_get(rig, 0, i, sizes[i], i, NULL), ICMS_OK);
        assert_true(rig_exists(rig, 0, i));
    }
    assert_false(rig_exists(rig, 0, 8));
    rig_stats(rig, &stats);
    assert_int_equal(stats.blocks, 8);
    assert_int_equal(stats.writes, 8);
    assert_int_equal(stats.reads, 8);
    assert_int_equal(stats.evictions, 0);
    assert_true(stats.index_bytes <= 32 * stats.blocks_max);
}

static void a_missing_block_is_absent(void **state)
{
    struct rig *rig = *state;
    enum icms_miss reason;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_get(rig, 0, 1, 1, 1, &reason), ICMS_MISS);
    assert_int_equal(reason, ICMS_MISS_ABSENT);
    assert_int_equal(rig_delete(rig, 0, 1), ICMS_MISS);
}

static void wrong_arguments_are_refused(void **state)
{
    struct rig *rig = *state;
    struct rig_op *op;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    op = rig_op_new(rig, RIG_WRITE, rig->opts.value_bytes_max + 4096);
    op->key = rig_key(1);
    op->value_bytes = (uint32_t)rig->opts.value_bytes_max + 1;
    rig_op_start(op);
    rig_op_wait(op);
    assert_int_equal(op->started, ICMS_VALUE_SIZE);
    op->value_bytes = 0;
    rig_op_start(op);
    rig_op_wait(op);
    assert_int_equal(op->started, ICMS_VALUE_SIZE);
    op->value_bytes = 10;
    op->key.length = 0;
    rig_op_start(op);
    rig_op_wait(op);
    assert_int_equal(op->started, ICMS_KEY_SIZE);
    op->key.length = 17;
    rig_op_start(op);
    rig_op_wait(op);
    assert_int_equal(op->started, ICMS_INVALID);
    rig_op_free(op);
}

static void conditions_are_kept(void **state)
{
    struct rig *rig = *state;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 100, 2, true), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 1, 100, 3, true), ICMS_EXISTS);
    assert_int_equal(rig_get(rig, 0, 1, 100, 2, NULL), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 1, 5000, 4, false), ICMS_OK);
    assert_int_equal(rig_get(rig, 0, 1, 5000, 4, NULL), ICMS_OK);
}

static void too_little_memory_for_a_read_is_said(void **state)
{
    struct rig *rig = *state;
    struct rig_op *op;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 9000, 1, 0), ICMS_OK);
    op = rig_op_new(rig, RIG_READ, 100);
    op->key = rig_key(1);
    rig_op_start(op);
    rig_op_wait(op);
    assert_int_equal(op->err, ICMS_VALUE_SIZE);
    rig_op_free(op);
}

/* Twenty changes of one key at once: they run in the order they came. */
static void the_later_of_two_writes_wins(void **state)
{
    enum { OPS = 20 };
    struct rig *rig = *state;
    struct rig_op *ops[OPS];

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (int round = 0; round < 5; round++) {
        bool there = round > 0;

        for (int i = 0; i < OPS; i++) {
            ops[i] = rig_op_new(rig, i % 7 == 3 ? RIG_DELETE : RIG_WRITE, 40000);
            ops[i]->key = rig_key(5);
            ops[i]->value_bytes = 40000 - 2000 * (uint32_t)i;
            ops[i]->seed = (uint64_t)(round * OPS + i);
            rig_op_start(ops[i]);
        }
        for (int i = 0; i < OPS; i++) {
            rig_op_wait(ops[i]);
            assert_int_equal(ops[i]->err, i % 7 != 3 || there ? ICMS_OK : ICMS_MISS);
            there = i % 7 != 3;
            rig_op_free(ops[i]);
        }
        assert_int_equal(rig_get(rig, 0, 5, 2000, (uint64_t)(round * OPS + OPS - 1), NULL),
                         ICMS_OK);
        rig_restart(rig);
        assert_int_equal(rig_get(rig, 0, 5, 2000, (uint64_t)(round * OPS + OPS - 1), NULL),
                         ICMS_OK);
    }
}

/* ---- capacity and quota -----------------------------------------------------------------------
 */

static void a_full_drive_evicts_its_oldest(void **state)
{
    enum { BLOCKS = 1200, BYTES = 8000 };
    struct rig *rig = *state;
    struct store_stats stats;
    uint64_t hits = 0, first = 0;
    enum icms_miss reason;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < BLOCKS; i++) {
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
        rig_stats(rig, &stats);
        assert_true(stats.used_bytes <= stats.capacity_bytes);
    }
    for (uint64_t i = 0; i < BLOCKS; i++) {
        icms_err err = rig_get(rig, 0, i, BYTES, i, &reason);

        if (err == ICMS_OK) {
            if (hits++ == 0)
                first = i;
        } else {
            assert_int_equal(err, ICMS_MISS);
            assert_int_equal(reason, ICMS_MISS_EVICTED);
            assert_int_equal(hits, 0); /* nothing older than a hit was kept */
        }
    }
    rig_stats(rig, &stats);
    assert_int_equal(hits, BLOCKS - first);
    assert_int_equal(stats.blocks, hits);
    assert_int_equal(stats.evictions, BLOCKS - hits);
    assert_true(stats.used_bytes > stats.capacity_bytes * 8 / 10);
    assert_int_equal(stats.evicted_age_ns->total, stats.evictions);
    assert_true(stats.evicted_age_ns->sum > 0);
    assert_int_equal(stats.free_low_ns, 0);
}

/* The segment whose last access is oldest is evicted: one whose blocks are read, or offered again
 * with if_absent, stays while later segments go, or at least those blocks do. */
static void what_is_read_stays(void **state)
{
    enum { BLOCKS = 400, BYTES = 5000, LATER = 60 };
    struct rig *rig = *state;
    struct store_stats stats;
    uint64_t hits = 0;

    rig_one_volume(rig);
    rig->opts.bytes = STORE_DATA_OFFSET + 16 * RIG_SEGMENT_BYTES;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < BLOCKS; i++) {
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
        assert_int_equal(rig_get(rig, 0, 0, BYTES, 0, NULL), ICMS_OK);
        if (i > LATER)
            assert_int_equal(rig_put(rig, 0, LATER, BYTES, LATER, true), ICMS_EXISTS);
    }
    for (uint64_t i = 30; i < 40; i++) /* between the two */
        assert_false(rig_exists(rig, 0, i));
    for (uint64_t i = 0; i < BLOCKS; i++)
        hits += rig_exists(rig, 0, i);
    rig_stats(rig, &stats);
    assert_int_equal(stats.evictions, BLOCKS - hits);
    assert_int_equal(stats.blocks, hits);
    assert_int_equal(stats.writes, BLOCKS);
    assert_int_equal(stats.admitted_bytes, BLOCKS * store_record_bytes(BYTES));
    rig_down(rig);
}

/* A device is told what is free; a file keeps its room. What is there stays there. */
static void what_is_free_is_discarded(void **state)
{
    enum { BLOCKS = 1500, BYTES = 5000 };
    struct rig *rig = *state;
    struct store_stats before, stats;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < BLOCKS; i++)
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
    rig_stats(rig, &before);
    assert_int_equal(before.discarded_bytes % (RIG_SEGMENT_BYTES - 4 * STORE_PAGE_BYTES), 0);
    if (rig->sim == NULL)
        assert_int_equal(before.discarded_bytes, 0);
    else /* a few each quarter of a second, and never those that are needed */
        assert_in_range(before.discarded_bytes / RIG_SEGMENT_BYTES, 1,
                        4 * (1 + sim_now_ns(rig->sim) / 250000000));
    rig_restart(rig);
    rig_stats(rig, &stats);
    assert_int_equal(stats.evictions + stats.blocks, BLOCKS);
    assert_int_equal(stats.checksum_errors, 0);
    for (uint64_t i = 0; i < BLOCKS; i++)
        if (rig_exists(rig, 0, i))
            assert_int_equal(rig_get(rig, 0, i, BYTES, i, NULL), ICMS_OK);
    rig_down(rig);
    rig->opts.discard = false;
    rig_up(rig);
    for (uint64_t i = 0; i < BLOCKS / 2; i++)
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
    rig_stats(rig, &stats);
    assert_int_equal(stats.discarded_bytes, 0);
    rig_down(rig);
}

/* Counts the pages of each write stream; fails where a segment has pages of two. */
static void streams_of_pages(struct rig *rig, uint32_t count, uint32_t *pages)
{
    for (uint64_t at = STORE_DATA_OFFSET; at < rig->opts.bytes; at += RIG_SEGMENT_BYTES) {
        uint32_t first = 0;

        for (uint64_t page = 0; page < RIG_SEGMENT_BYTES; page += STORE_PAGE_BYTES) {
            uint32_t stream = sim_file_stream(rig->node, rig->path, at + page);

            assert_in_range(stream, 0, count);
            first = first == 0 ? stream : first;
            assert_true(stream == 0 || stream == first);
            pages[stream]++;
        }
    }
}

/* Each volume is written to a write stream of the device's, headers and summaries too; what shares
 * segments shares one. With fewer streams than volumes they take turns. */
static void volumes_have_write_streams_of_the_device(void **state)
{
    enum { BLOCKS = 100, BYTES = 5000, PAGES = 2, VOLUMES = 4 };
    static const uint32_t streams[] = {0, 1, 2, 8, 255};

    (void)state;
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
        uint32_t pages[256] = {0}, used = 0;
        struct rig rig = {.sim = NULL};
        struct sim_opts opts;
        struct store_stats stats;

        sim_opts_init(&opts, 1);
        opts.disk_streams = streams[i];
        rig_sim_init(&rig, &opts);
        rig.opts.bytes = STORE_DATA_OFFSET + 96 * RIG_SEGMENT_BYTES;
        rig.volume_count = VOLUMES;
        for (uint32_t volume = 0; volume < VOLUMES; volume++)
            rig.uuid[volume] = rig_uuid(volume);
        rig.quota_bytes[2] = rig.quota_bytes[3] = 2 * RIG_SEGMENT_BYTES; /* they share segments */
        rig.opts.discard = false; /* what was used is not used again */
        rig_format(&rig);
        rig_up(&rig);
        for (uint64_t n = 0; n < BLOCKS; n++)
            for (uint32_t volume = 0; volume < VOLUMES; volume++)
                assert_int_equal(rig_put(&rig, volume, n, BYTES, n, 0), ICMS_OK);
        rig_stats(&rig, &stats);
        assert_int_equal(stats.write_streams, streams[i]);
        rig_down(&rig);
        streams_of_pages(&rig, streams[i], pages);
        for (uint32_t stream = 1; stream <= streams[i]; stream++) {
            used += pages[stream] > 0;
            assert_true(pages[stream] == 0 || pages[stream] >= BLOCKS * PAGES);
        }
        assert_int_equal(used, streams[i] < 3 ? streams[i] : 3);
        sim_free(&rig.sim);
    }
}

static void many_writes_at_once_all_end(void **state)
{
    enum { OPS = 400 };
    struct rig *rig = *state;
    static struct rig_op *ops[OPS];

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < OPS; i++) {
            ops[i] = rig_op_new(rig, RIG_WRITE, RIG_VALUE_BYTES_MAX);
            ops[i]->key = rig_key(i);
            ops[i]->seed = i;
            ops[i]->value_bytes = 1 + (uint32_t)(hash64_mix(i) % (RIG_VALUE_BYTES_MAX));
            rig_op_start(ops[i]);
        }
        for (uint64_t i = 0; i < OPS; i++) {
            rig_op_wait(ops[i]);
            assert_int_equal(ops[i]->err, ICMS_OK);
        }
        for (uint64_t i = 0; i < OPS; i++) {
            icms_err err = rig_get(rig, 0, i, ops[i]->value_bytes, i, NULL);

            assert_true(err == ICMS_OK || err == ICMS_MISS);
            rig_op_free(ops[i]);
        }
    }
}

static void a_quota_is_never_exceeded(void **state)
{
    /* rows: own stream, shared stream, shared stream with less than a segment, all of the drive */
    static const uint64_t quota[4] = {10 * RIG_SEGMENT_BYTES, 3 * RIG_SEGMENT_BYTES, 40 << 10, 0};
    struct rig *rig = *state;
    uint64_t written[4] = {0};

    for (uint32_t i = 0; i < 4; i++) {
        rig->uuid[i] = rig_uuid(i);
        rig->quota_bytes[i] = quota[i];
    }
    rig->volume_count = 4;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t n = 0; n < 600; n++) {
        uint32_t row = (uint32_t)(hash64_mix(n) % 4);
        uint32_t bytes = 1 + (uint32_t)(hash64_mix(n + 9) % 12000);
        struct store_volume_stats stats;

        assert_int_equal(rig_put(rig, row, n, bytes, n, 0), ICMS_OK);
        written[row]++;
        rig_volume_stats(rig, row, &stats);
        if (quota[row] != 0)
            assert_true(stats.bytes <= quota[row]);
        assert_int_equal(stats.blocks + stats.evictions, written[row]);
        assert_int_equal(rig_get(rig, row, n, bytes, n, NULL), ICMS_OK); /* the newest stays */
        if (n == 300) { /* what was evicted does not come back */
            struct store_stats all;

            rig_restart(rig);
            rig_stats(rig, &all);
            assert_int_equal(all.blocks + all.evictions, n + 1);
            for (uint32_t i = 0; i < 4; i++) {
                rig_volume_stats(rig, i, &stats);
                written[i] = stats.blocks + stats.evictions;
                assert_true(quota[i] == 0 || stats.bytes <= quota[i]);
            }
        }
    }
    for (uint32_t i = 0; i < 3; i++) { /* and most of it is used */
        struct store_volume_stats stats;

        rig_volume_stats(rig, i, &stats);
        assert_true(stats.bytes >= quota[i] / 2);
        assert_true(stats.evictions > 0);
    }
}

static bool quota_holds(void *arg)
{
    struct rig *rig = arg;
    struct store_volume_stats stats;

    rig_volume_stats(rig, 0, &stats);
    return stats.bytes <= stats.quota_bytes;
}

/* What is over it goes as soon as the loop runs, oldest first, and is counted. */
static void a_smaller_quota_holds_from_the_start(void **state)
{
    struct rig *rig = *state;
    struct store_volume_stats stats;
    uint64_t there;

    rig->volume_count = 2;
    rig->uuid[0] = rig_uuid(1);
    rig->uuid[1] = rig_uuid(2);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 60; i++)
        assert_int_equal(rig_put(rig, (uint32_t)(i % 2), i, 12000, i, 0), ICMS_OK);
    rig_down(rig);
    rig->quota_bytes[0] = (100 << 10) + 5;
    rig_up(rig);
    assert_true(rig_until(rig, quota_holds, rig));
    rig_volume_stats(rig, 0, &stats);
    there = rig->quota_bytes[0] / (12 << 10); /* a record takes three pages */
    assert_int_equal(stats.blocks, there);
    assert_int_equal(stats.evictions, 30 - there);
    for (uint64_t i = 0; i < 60; i++) {
        enum icms_miss reason = ICMS_MISS_NONE;
        icms_err err = rig_get(rig, (uint32_t)(i % 2), i, 12000, i, &reason);

        if (i % 2 == 1 || i >= 60 - 2 * there)
            assert_int_equal(err, ICMS_OK);
        else
            assert_int_equal(reason, ICMS_MISS_EVICTED);
    }
    assert_int_equal(rig_put(rig, 0, 100, 12000, 100, 0), ICMS_OK);
}

static void a_value_over_the_quota_is_refused(void **state)
{
    struct rig *rig = *state;

    rig_one_volume(rig);
    rig->quota_bytes[0] = 16 << 10;
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 16000, 1, 0), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 2, (16 << 10) - 63, 1, 0), ICMS_QUOTA);
    assert_int_equal(rig_get(rig, 0, 1, 16000, 1, NULL), ICMS_OK);
}

static void the_volume_most_over_its_share_gives(void **state)
{
    struct rig *rig = *state;
    struct store_volume_stats stats;

    rig->volume_count = 2;
    rig->uuid[0] = rig_uuid(1);
    rig->uuid[1] = rig_uuid(2);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 60; i++) /* 0.7 MiB */
        assert_int_equal(rig_put(rig, 1, i, 12000, i, 0), ICMS_OK);
    for (uint64_t i = 0; i < 800; i++) /* more than the drive */
        assert_int_equal(rig_put(rig, 0, i, 12000, i, 0), ICMS_OK);
    for (uint64_t i = 0; i < 60; i++)
        assert_int_equal(rig_get(rig, 1, i, 12000, i, NULL), ICMS_OK);
    rig_volume_stats(rig, 1, &stats);
    assert_int_equal(stats.evictions, 0);
    for (uint64_t i = 60; i < 400; i++)
        assert_int_equal(rig_put(rig, 1, i, 12000, i, 0), ICMS_OK);
    rig_volume_stats(rig, 0, &stats);
    assert_in_range(stats.bytes, 5 << 18, 8 << 18); /* about half each */
}

/* The number of the record that a read of the key finds. */
static uint64_t record_number(struct rig *rig, uint64_t key)
{
    struct rig_op *op = rig_op_new(rig, RIG_READ, 1000);
    uint64_t record;

    op->key = rig_key(key);
    rig_op_start(op);
    rig_op_wait(op);
    assert_int_equal(op->err, ICMS_OK);
    record = op->record;
    rig_op_free(op);
    return record;
}

static icms_err delete_record(struct rig *rig, uint64_t key, uint64_t record)
{
    struct rig_op *op = rig_op_new(rig, RIG_DELETE, 1);
    icms_err err;

    op->key = rig_key(key);
    op->record = record;
    rig_op_start(op);
    rig_op_wait(op);
    err = op->err;
    rig_op_free(op);
    return err;
}

/* A record that was read is deleted only while it is the one that counts. */
static void a_deletion_may_be_of_one_record_only(void **state)
{
    struct rig *rig = *state;
    uint64_t first, other;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 100, 1, 0), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 2, 100, 2, 0), ICMS_OK);
    first = record_number(rig, 1);
    other = record_number(rig, 2);
    assert_true(first != 0 && other != 0 && first != other);
    assert_int_equal(delete_record(rig, 1, other), ICMS_MISS);
    assert_int_equal(rig_put(rig, 0, 1, 100, 3, 0), ICMS_OK); /* it is repaired meanwhile */
    assert_int_equal(delete_record(rig, 1, first), ICMS_MISS);
    assert_int_equal(rig_get(rig, 0, 1, 100, 3, NULL), ICMS_OK);
    assert_int_equal(delete_record(rig, 1, record_number(rig, 1)), ICMS_OK);
    assert_int_equal(rig_get(rig, 0, 1, 100, 3, NULL), ICMS_MISS);
    assert_int_equal(rig_get(rig, 0, 2, 100, 2, NULL), ICMS_OK);
}

/* The index has entries for blocks of the size that was said, and says why others are gone. */
static void the_index_is_as_large_as_it_was_told(void **state)
{
    enum { BLOCKS = 800 };
    struct rig *rig = *state;
    struct store_stats stats;
    enum icms_miss reason;

    rig_one_volume(rig);
    rig->opts.bytes = 16 << 20;
    rig_format(rig);
    for (uint64_t size = 64 << 10; size >= 4 << 10; size /= 16) {
        rig->opts.bytes_per_block = size;
        rig_up(rig);
        rig_stats(rig, &stats);
        assert_int_equal(stats.blocks_max, u64_max((16 << 20) / size, 1024));
        for (uint64_t i = 0; i < 2 * BLOCKS; i++)
            assert_int_equal(rig_put(rig, 0, i, 64, i, 0), ICMS_OK);
        rig_stats(rig, &stats);
        if (size == 4 << 10) {
            assert_int_equal(stats.blocks, 2 * BLOCKS);
        } else {
            assert_int_equal(rig_get(rig, 0, 0, 64, 0, &reason), ICMS_MISS);
            assert_int_equal(reason, ICMS_MISS_EVICTED);
        }
        rig_down(rig);
    }
}

static void a_full_index_evicts_the_oldest(void **state)
{
    enum { BLOCKS = 1600 };
    struct rig *rig = *state;
    struct store_stats stats;

    rig_one_volume(rig);
    rig->opts.blocks_max = 1024; /* a quarter of the pages there are */
    rig->opts.bytes = 16 << 20;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < BLOCKS; i++)
        assert_int_equal(rig_put(rig, 0, i, 100, i, 0), ICMS_OK);
    rig_stats(rig, &stats);
    assert_in_range(stats.blocks, 900, 1024);
    assert_int_equal(stats.evictions, BLOCKS - stats.blocks);
    assert_int_equal(rig_get(rig, 0, BLOCKS - 900, 100, BLOCKS - 900, NULL), ICMS_OK);
    rig_restart(rig); /* flash holds more than the index can */
    rig_stats(rig, &stats);
    assert_in_range(stats.blocks, 700, 1024);
    assert_int_equal(stats.evictions, BLOCKS - stats.blocks);
    assert_int_equal(rig_get(rig, 0, BLOCKS - 1, 100, BLOCKS - 1, NULL), ICMS_OK);
}

/* The same when the blocks of the whole index fit in one segment: that goes as a whole, and the
 * drive goes on. */
static void a_full_index_of_one_segment_evicts_it(void **state)
{
    enum { BLOCKS = 2400 };
    struct rig *rig = *state;
    struct store_stats stats;

    rig_one_volume(rig);
    rig->opts.blocks_max = 1024;
    rig->opts.segment_bytes = 8 << 20;
    rig->opts.bytes = 48 << 20;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < BLOCKS; i++) {
        assert_int_equal(rig_put(rig, 0, i, 100, i, 0), ICMS_OK);
        assert_int_equal(rig_get(rig, 0, i, 100, i, NULL), ICMS_OK);
    }
    rig_stats(rig, &stats);
    assert_int_equal(stats.evictions, BLOCKS - stats.blocks);
    assert_true(stats.blocks <= 1024);
    rig_restart(rig);
    rig_stats(rig, &stats);
    assert_in_range(stats.blocks, 1, 1024);
    assert_int_equal(rig_get(rig, 0, BLOCKS - 1, 100, BLOCKS - 1, NULL), ICMS_OK);
}

/* Index entries are short, flash is not: the segment goes whose last access is oldest. */
static void a_full_index_keeps_what_is_read(void **state)
{
    enum { BLOCKS = 4000 };
    struct rig *rig = *state;
    struct store_stats stats;

    rig_one_volume(rig);
    rig->opts.blocks_max = 1024;
    rig->opts.bytes = 32 << 20;
    rig->opts.segment_bytes = RIG_SEGMENT_BYTES;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t n = 0; n < BLOCKS; n++) {
        assert_int_equal(rig_put(rig, 0, n, 100, n, 0), ICMS_OK);
        assert_int_equal(rig_get(rig, 0, 0, 100, 0, NULL), ICMS_OK);
    }
    rig_stats(rig, &stats);
    assert_int_equal(stats.evictions, BLOCKS - stats.blocks);
    assert_in_range(stats.blocks, 900, 1024);
}

/* After a full index made room, a volume whose blocks all lie in an open segment still has its
 * quota. */
static void a_quota_holds_beside_a_full_index(void **state)
{
    enum { BLOCKS = 1500, BYTES = 12000, QUOTA_PAGES = 40 };
    struct rig *rig = *state;
    struct store_volume_stats stats;

    rig_one_volume(rig);
    rig->volume_count = 2;
    rig->uuid[1] = rig_uuid(2);
    rig->quota_bytes[1] = QUOTA_PAGES * STORE_PAGE_BYTES;
    rig->opts.blocks_max = 1024;
    rig->opts.segment_bytes = 8 * RIG_SEGMENT_BYTES;
    rig->opts.bytes = 32 << 20;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t n = 0; n < 5; n++)
        assert_int_equal(rig_put(rig, 1, n, BYTES, n, 0), ICMS_OK);
    for (uint64_t n = 0; n < BLOCKS; n++)
        assert_int_equal(rig_put(rig, 0, n, 100, n, 0), ICMS_OK);
    for (uint64_t n = 5; n < 60; n++) {
        assert_int_equal(rig_put(rig, 1, n, BYTES, n, 0), ICMS_OK);
        rig_volume_stats(rig, 1, &stats);
        assert_true(stats.bytes <= rig->quota_bytes[1]);
        for (uint64_t i = 0; i < n; i++) /* all that is there is wanted */
            (void)rig_get(rig, 1, i, BYTES, i, NULL);
        assert_int_equal(rig_get(rig, 1, n, BYTES, n, NULL), ICMS_OK);
    }
    rig_verify(rig);
}

/* ---- restart ----------------------------------------------------------------------------------
 */

struct model {
    bool there;
    uint32_t bytes;
    uint64_t seed;
};

static void model_compare(struct rig *rig, uint32_t volume, const struct model *model,
                          uint64_t count, bool all)
{
    for (uint64_t i = 0; i < count; i++) {
        icms_err err = rig_get(rig, volume, i, model[i].bytes, model[i].seed, NULL);

        if (all || !model[i].there)
            assert_int_equal(err, model[i].there ? ICMS_OK : ICMS_MISS);
        else
            assert_true(err == ICMS_OK || err == ICMS_MISS);
    }
}

/* Deletes and overwrites of a few keys, restarts in between; nothing has to be evicted as long as
 * the dead are reclaimed first, but it may be. */
static void a_restart_brings_back_the_same(void **state)
{
    enum { KEYS = 40 };
    struct rig *rig = *state;
    struct model model[KEYS] = {{0}};
    struct store_stats before, after;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t n = 0; n < 100; n++) {
        uint64_t i = hash64_mix(n) % KEYS;

        if (hash64_mix(n + 5) % 4 == 0) {
            assert_int_equal(rig_delete(rig, 0, i), model[i].there ? ICMS_OK : ICMS_MISS);
            model[i].there = false;
        } else {
            model[i] = (struct model){
                .there = true, .bytes = 1 + (uint32_t)(hash64_mix(n + 6) % 20000), .seed = n};
            assert_int_equal(rig_put(rig, 0, i, model[i].bytes, n, 0), ICMS_OK);
        }
        if (n % 25 == 24) {
            rig_stats(rig, &before);
            rig_down(rig);
            rig_up(rig);
            rig_stats(rig, &after);
            assert_int_equal(after.blocks, before.blocks);
            assert_int_equal(after.used_bytes, before.used_bytes);
            assert_int_equal(after.recovered_blocks, before.blocks);
            assert_int_equal(after.evictions, 0);
            model_compare(rig, 0, model, KEYS, true);
            rig_verify(rig);
            rig_up(rig);
        }
    }
}

/* The same over many times the drive's size: a deleted or replaced block never comes back, however
 * segments are reclaimed. */
static void what_is_gone_never_comes_back(void **state)
{
    enum { KEYS = 150 };
    struct rig *rig = *state;
    static struct model model[2][KEYS];

    memset(model, 0, sizeof(model));
    rig->volume_count = 2;
    rig->uuid[0] = rig_uuid(1);
    rig->uuid[1] = rig_uuid(2);
    rig->quota_bytes[1] = RIG_SEGMENT_BYTES; /* shared stream */
    rig->opts.bytes = 2 << 20;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t n = 0; n < 1500; n++) {
        uint32_t volume = hash64_mix(n + 1) % 3 == 0;
        uint64_t i = hash64_mix(n) % KEYS;
        struct model *m = &model[volume][i];

        if (hash64_mix(n + 5) % 4 == 0) {
            icms_err err = rig_delete(rig, volume, i);

            assert_true(err == ICMS_MISS || (err == ICMS_OK && m->there));
            m->there = false;
        } else {
            *m = (struct model){
                .there = true, .bytes = 1 + (uint32_t)(hash64_mix(n + 6) % 40000), .seed = n};
            assert_int_equal(rig_put(rig, volume, i, m->bytes, n, 0), ICMS_OK);
        }
        if (n % 100 == 99) {
            if (n % 200 == 99) /* own streams and shared ones change places */
                rig->quota_bytes[1] = rig->quota_bytes[1] == RIG_SEGMENT_BYTES
                                          ? 8 * RIG_SEGMENT_BYTES
                                          : RIG_SEGMENT_BYTES;
            rig_restart(rig);
            model_compare(rig, 0, model[0], KEYS, false);
            model_compare(rig, 1, model[1], KEYS, false);
            rig_verify(rig);
            rig_up(rig);
        }
    }
}

static void blocks_of_unknown_volumes_stay_hidden_and_go_first(void **state)
{
    struct rig *rig = *state;
    struct store_volume_stats stats;
    struct store_stats all;

    rig->volume_count = 2;
    rig->uuid[0] = rig_uuid(1);
    rig->uuid[1] = rig_uuid(2);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 100; i++) /* 1.2 MiB each */
        assert_int_equal(rig_put(rig, (uint32_t)(i % 2), i, 24000, i, 0), ICMS_OK);
    rig_down(rig);
    rig->volume_count = 1; /* the second one is taken out of the configuration */
    rig_up(rig);
    rig_volume_stats(rig, 0, &stats);
    assert_int_equal(stats.blocks, 50);
    rig_stats(rig, &all);
    assert_int_equal(all.blocks, 50);
    rig_down(rig);
    rig->volume_count = 2; /* and comes back */
    rig_up(rig);
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(rig_get(rig, (uint32_t)(i % 2), i, 24000, i, NULL), ICMS_OK);
    rig_down(rig);
    rig->volume_count = 1;
    rig_up(rig);
    for (uint64_t i = 0; i < 60; i++)
        assert_int_equal(rig_put(rig, 0, 1000 + i, 24000, i, 0), ICMS_OK);
    for (uint64_t i = 0; i < 100; i += 2) /* what is known is all there */
        assert_int_equal(rig_get(rig, 0, i, 24000, i, NULL), ICMS_OK);
    rig_volume_stats(rig, 0, &stats);
    assert_int_equal(stats.blocks, 110);
    assert_int_equal(stats.evictions, 0);
}

/* As many volumes as a drive takes, most of which share segments; a segment has records of 240 at
 * most. */
static void a_drive_has_1024_volumes(void **state)
{
    enum { VOLUMES = 1024, BLOCKS = 2 };
    struct rig *rig = *state;
    struct store_volume_stats stats;
    struct err_why why = {""};
    struct loop_opts opts;

    rig->volume_count = VOLUMES;
    for (uint32_t i = 0; i < VOLUMES; i++)
        rig->uuid[i] = rig_uuid(i);
    rig->opts.segment_bytes = (uint64_t)4 << 20;
    rig->opts.bytes = STORE_DATA_OFFSET + 20 * rig->opts.segment_bytes;
    rig->opts.blocks_max = 4 * VOLUMES;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t n = 0; n < BLOCKS * VOLUMES; n++)
        assert_int_equal(rig_put(rig, (uint32_t)(n % VOLUMES), n, 100, n, 0), ICMS_OK);
    for (int again = 0; again < 2; again++) {
        for (uint64_t n = 0; n < BLOCKS * VOLUMES; n++) {
            assert_int_equal(rig_get(rig, (uint32_t)(n % VOLUMES), n, 100, n, NULL), ICMS_OK);
            assert_false(rig_exists(rig, (uint32_t)((n + 1) % VOLUMES), n));
        }
        rig_volume_stats(rig, VOLUMES - 1, &stats);
        assert_int_equal(stats.blocks, BLOCKS);
        rig_verify(rig);
        rig_up(rig);
    }
    rig_down(rig);
    rig->opts.volumes = rig->uuid;
    rig->opts.volume_count = VOLUMES + 1;
    loop_opts_init(&opts);
    assert_int_equal(loop_new(rig->env, &opts, &why, &rig->loop), ICMS_OK);
    assert_int_equal(store_open(rig->loop, &rig->opts, &why, &rig->store), ICMS_LIMIT);
    assert_non_null(strstr(why.text, "1024 volumes at most"));
    loop_free(&rig->loop);
}

static void more_uuids_than_volumes_are_no_obstacle(void **state)
{
    struct rig *rig = *state;
    struct err_why why;

    rig_one_volume(rig);
    rig->opts.bytes = 4 << 20;
    rig_format(rig);
    for (uint64_t n = 0; n < 70; n++) { /* a new volume each time */
        rig->uuid[0] = rig_uuid(100 + n);
        rig_up(rig);
        assert_int_equal(rig_put(rig, 0, n, 100, n, 0), ICMS_OK);
        assert_int_equal(rig_get(rig, 0, n, 100, n, NULL), ICMS_OK);
        rig_down(rig);
    }
    rig->volume_count = 0;
    rig_up(rig);
    rig_down(rig);
    rig_one_volume(rig);
    rig_up(rig);
    loop_stop(rig->loop);
    loop_join(rig->loop);
    assert_int_equal(store_verify(rig->store, &why), 0);
}

/* ---- everything at once -----------------------------------------------------------------------
 */

/* Many operations in flight on few keys, volumes of all kinds, restarts; the model knows for each
 * key which values a read may return. */
static void random_operations_agree_with_the_model(void **state)
{
    enum { KEYS = 60, OPS = 24, ROUNDS = 60, VOLUMES = 3 };
    struct rig *rig = *state;
    static struct model model[VOLUMES][KEYS];
    struct rig_op *ops[OPS];
    uint64_t seed = 1;

    memset(model, 0, sizeof(model));
    rig->volume_count = VOLUMES;
    for (uint32_t i = 0; i < VOLUMES; i++)
        rig->uuid[i] = rig_uuid(i);
    rig->quota_bytes[1] = 6 * RIG_SEGMENT_BYTES;
    rig->quota_bytes[2] = RIG_SEGMENT_BYTES;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 0; i < OPS; i++, seed++) {
            uint64_t dice = hash64_mix(seed) % 10, key = hash64_mix(seed + 3) % KEYS;
            uint32_t volume = (uint32_t)(hash64_mix(seed + 4) % VOLUMES);
            struct model *m = &model[volume][key];

            ops[i] = rig_op_new(rig,
                                dice < 6   ? RIG_WRITE
                                : dice < 8 ? RIG_READ
                                           : RIG_DELETE,
                                RIG_VALUE_BYTES_MAX);
            ops[i]->volume = volume;
            ops[i]->key = rig_key(key);
            ops[i]->seed = seed;
            ops[i]->value_bytes = 1 + (uint32_t)(hash64_mix(seed + 5) % (RIG_VALUE_BYTES_MAX));
            if (ops[i]->kind == RIG_WRITE)
                *m = (struct model){
                    .there = true, .bytes = ops[i]->value_bytes, .seed = ops[i]->seed};
            else if (ops[i]->kind == RIG_DELETE)
                m->there = false;
            rig_op_start(ops[i]);
        }
        for (uint64_t i = 0; i < OPS; i++) {
            rig_op_wait(ops[i]);
            assert_true(ops[i]->err == ICMS_OK ||
                        (ops[i]->kind != RIG_WRITE && ops[i]->err == ICMS_MISS));
            rig_op_free(ops[i]);
        }
        if (round % 10 == 9) {
            for (uint32_t v = 0; v < VOLUMES; v++)
                model_compare(rig, v, model[v], KEYS, false);
            rig_restart(rig);
            for (uint32_t v = 0; v < VOLUMES; v++)
                model_compare(rig, v, model[v], KEYS, false);
        }
    }
}

#define STORE_TESTS(backend)                                                                       \
    STORE_TEST(a_block_comes_back_as_it_was_written, backend),                                     \
        STORE_TEST(a_missing_block_is_absent, backend),                                            \
        STORE_TEST(wrong_arguments_are_refused, backend),                                          \
        STORE_TEST(conditions_are_kept, backend),                                                  \
        STORE_TEST(too_little_memory_for_a_read_is_said, backend),                                 \
        STORE_TEST(the_later_of_two_writes_wins, backend),                                         \
        STORE_TEST(what_is_read_stays, backend), STORE_TEST(what_is_free_is_discarded, backend),   \
        STORE_TEST(a_full_drive_evicts_its_oldest, backend),                                       \
        STORE_TEST(many_writes_at_once_all_end, backend),                                          \
        STORE_TEST(a_quota_is_never_exceeded, backend),                                            \
        STORE_TEST(a_smaller_quota_holds_from_the_start, backend),                                 \
        STORE_TEST(a_value_over_the_quota_is_refused, backend),                                    \
        STORE_TEST(the_volume_most_over_its_share_gives, backend),                                 \
        STORE_TEST(a_deletion_may_be_of_one_record_only, backend),                                 \
        STORE_TEST(the_index_is_as_large_as_it_was_told, backend),                                 \
        STORE_TEST(a_full_index_evicts_the_oldest, backend),                                       \
        STORE_TEST(a_full_index_of_one_segment_evicts_it, backend),                                \
        STORE_TEST(a_full_index_keeps_what_is_read, backend),                                      \
        STORE_TEST(a_quota_holds_beside_a_full_index, backend),                                    \
        STORE_TEST(a_restart_brings_back_the_same, backend),                                       \
        STORE_TEST(what_is_gone_never_comes_back, backend),                                        \
        STORE_TEST(blocks_of_unknown_volumes_stay_hidden_and_go_first, backend),                   \
        STORE_TEST(a_drive_has_1024_volumes, backend),                                             \
        STORE_TEST(more_uuids_than_volumes_are_no_obstacle, backend),                              \
        STORE_TEST(random_operations_agree_with_the_model, backend)

#define STORE_TEST(test, backend)                                                                  \
    {                                                                                              \
#backend ": " #test, test, rig_##backend##_setup, rig_##backend##_teardown, NULL           \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        STORE_TESTS(uring),
        STORE_TESTS(sim),
        cmocka_unit_test(volumes_have_write_streams_of_the_device),
    };

    rig_choose(argc, argv);
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
