/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotas of volumes over all drives of an enclosure: all of it may be used, whichever drives the
 * keys go to, and never more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "target/target_test_rig.h"

#define QUOTA (12 * MIB)
#define KEYS  600
#define BYTES 100000

/* What a volume holds, of which no more than its quota. */
static struct target_volume_stats held(struct rig *rig, uint32_t volume)
{
    struct target_stats *stats = calloc(1, sizeof(*stats));
    struct target_volume_stats out;

    check(stats != NULL);
    target_stats(rig->target, stats);
    out = stats->volumes[volume];
    assert_true(out.store.quota_bytes == 0 || out.store.bytes <= out.store.quota_bytes);
    free(stats);
    return out;
}

static uint64_t held_by(struct rig *rig, uint32_t drive)
{
    struct store_volume_stats stats;

    store_volume_stats(rig->target->drives[drive].store, 0, &stats);
    return stats.bytes;
}

/* Numbers of runs whose home is a drive, so many. */
static void runs_of(struct rig *rig, uint32_t drive, uint32_t *out_runs, uint32_t count)
{
    for (uint32_t run = 0; count > 0; run++) {
        uint64_t before = rig->target->drives[drive].store == NULL ? 0 : held_by(rig, drive);
        struct nvme_cqe cqe;

        assert_int_equal(peer_store(rig->io, 1, key_text(run, 0), rig->value, BYTES, 0, &cqe),
                         NVME_SC_SUCCESS);
        if (held_by(rig, drive) > before) {
            *out_runs++ = run;
            count--;
        }
        assert_int_equal(peer_delete(rig->io, 1, key_text(run, 0), &cqe), NVME_SC_SUCCESS);
    }
}

static void store_block(struct rig *rig, uint32_t run, uint32_t block, uint32_t bytes)
{
    struct nvme_cqe cqe;

    assert_int_equal(peer_store(rig->io, 1, key_text(run, block), rig->value, bytes, 0, &cqe),
                     NVME_SC_SUCCESS);
    (void)held(rig, 0);
}

/* All keys go to one drive: it holds the whole quota. Then all go to another: it gets its part of
 * what the first has, which holds no less than its own. */
static void a_volume_uses_all_of_its_quota_whatever_its_keys(void **state)
{
    for (uint32_t loops = 1; loops <= 3; loops++) {
        struct rig *rig = rig_new(loops, 3);
        uint32_t runs[2];

        rig->volumes[0].quota_bytes = QUOTA;
        rig_up(rig);
        runs_of(rig, 0, &runs[0], 1);
        runs_of(rig, 1, &runs[1], 1);
        fill(rig, 2, 20);
        for (uint32_t i = 0; i < 300; i++)
            store_block(rig, runs[0], i, BYTES);
        print_message("  %u loops: one drive holds %llu of %llu KiB\n", loops,
                      (unsigned long long)held_by(rig, 0) >> 10, (unsigned long long)QUOTA >> 10);
        assert_true(held_by(rig, 0) >= QUOTA - QUOTA / 16 - 2 * MIB);
        for (uint32_t i = 0; i < 300; i++)
            store_block(rig, runs[1], i, BYTES);
        print_message("  then the drives hold %llu, %llu and %llu\n",
                      (unsigned long long)held_by(rig, 0) >> 10,
                      (unsigned long long)held_by(rig, 1) >> 10,
                      (unsigned long long)held_by(rig, 2) >> 10);
        assert_true(held_by(rig, 1) >= QUOTA / 3 - 2 * MIB);
        assert_true(held_by(rig, 0) >= QUOTA / 3 - 2 * MIB);
        assert_true(held_by(rig, 0) + held_by(rig, 1) >= QUOTA - QUOTA / 16 - 3 * MIB);
        assert_int_equal(hits(rig, 2, 20), 20); /* another volume has lost nothing */
        rig_free(&rig);
    }
}

/* A value that is larger than the part of a drive, and nearly the whole quota. */
static void a_value_may_be_larger_than_the_part_of_a_drive(void **state)
{
    struct rig *rig = rig_new(2, 4);
    struct nvme_cqe cqe;

    rig->volumes[0].quota_bytes = (uint64_t)240 << 10;
    rig_up(rig);
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t bytes = i % 3 == 0 ? 230000 : 20000 * (1 + i % 4);

        store_block(rig, i, i, bytes);
        assert_int_equal(peer_exist(rig->io, 1, key_text(i, i), &cqe), NVME_SC_SUCCESS);
    }
    rig_free(&rig);
}

/* The drive that holds more than its part does not answer: who writes to another one gives what
 * that has, and does not wait. */
static void a_drive_that_hangs_stops_no_writes_of_others(void **state)
{
    struct rig *rig = rig_new(2, 2);
    uint64_t begin_ns;
    uint32_t runs[2];

    rig->volumes[0].quota_bytes = QUOTA;
    rig_up(rig);
    runs_of(rig, 0, &runs[0], 1);
    runs_of(rig, 1, &runs[1], 1);
    for (uint32_t i = 0; i < 30; i++)
        store_block(rig, runs[1], i, BYTES);
    for (uint32_t i = 0; i < 300; i++)
        store_block(rig, runs[0], i, BYTES);
    assert_true(held_by(rig, 1) > MIB && held_by(rig, 0) > QUOTA / 2);
    sim_file_slow(rig->node, rig->paths[0], 100000);
    begin_ns = sim_now_ns(rig->sim);
    for (uint32_t i = 30; i < 60; i++)
        store_block(rig, runs[1], i, BYTES);
    print_message("  30 writes took %llu ms\n",
                  (unsigned long long)(sim_now_ns(rig->sim) - begin_ns) / 1000000);
    assert_true(sim_now_ns(rig->sim) - begin_ns < 30 * (uint64_t)500000000);
    rig_free(&rig);
}

/* What a drive held that went out of service is not counted any more. */
static void what_a_lost_drive_held_is_free(void **state)
{
    struct rig *rig = rig_new(2, 2);
    uint32_t runs[2];

    rig->volumes[0].quota_bytes = QUOTA;
    rig_up(rig);
    runs_of(rig, 0, &runs[0], 1);
    runs_of(rig, 1, &runs[1], 1);
    for (uint32_t i = 0; i < 100; i++)
        store_block(rig, runs[0], i, BYTES);
    sim_disk_dead(rig->node, rig->paths[0], true);
    for (uint32_t i = 0; i < 300; i++) {
        struct nvme_cqe cqe;

        (void)peer_store(rig->io, 1, key_text(runs[1], i), rig->value, BYTES, 0, &cqe);
        (void)peer_store(rig->io, 1, key_text(runs[0], i), rig->value, BYTES, 0, &cqe);
    }
    assert_true(held_by(rig, 1) >= QUOTA - QUOTA / 16 - 2 * MIB);
    assert_true(held_by(rig, 1) <= QUOTA);
    rig_free(&rig);
}

/* Random blocks of random sizes, replaced, deleted, over restarts: never more than the quota; and
 * while all that was stored fits nothing is evicted. */
static void model_run(uint32_t loops, uint32_t drives, uint64_t seed)
{
    struct rig *rig = rig_new(loops, drives);
    uint64_t random = seed, bytes_of[KEYS] = {0}, sum = 0;
    bool is_full = false, evicts = false; /* the quota was, and something went for it */
    struct nvme_cqe cqe;

    rig->volumes[0].quota_bytes = (2 + seed % 7) * MIB + 4096 * (seed % 5);
    for (uint32_t i = 1; i < drives; i++)
        rig->drives[i].bytes = (20 + 10 * i) * MIB;
    rig_up(rig);
    for (uint32_t step = 0; step < KEYS; step++) {
        uint32_t i = (uint32_t)((random = hash64_mix(random)) % KEYS);
        uint32_t bytes = (uint32_t)(random >> 16) % 60000 + 1;
        struct target_volume_stats stats;

        if (random >> 60 == 0) {
            (void)peer_delete(rig->io, 1, key_text(i / 50, i), &cqe);
            sum -= bytes_of[i];
            bytes_of[i] = 0;
        } else {
            store_block(rig, i / 50, i, bytes);
            /* while it is replaced a block is there twice */
            sum += store_record_bytes(bytes);
            is_full = is_full || sum > rig->volumes[0].quota_bytes;
            sum -= bytes_of[i];
            bytes_of[i] = store_record_bytes(bytes);
            assert_int_equal(peer_exist(rig->io, 1, key_text(i / 50, i), &cqe), NVME_SC_SUCCESS);
        }
        stats = held(rig, 0);
        evicts = evicts || stats.store.evictions > 0; /* since the start */
        assert_true(is_full || !evicts);
        if (!evicts)
            assert_int_equal(stats.store.bytes, sum);
        if (step == KEYS / 2) {
            (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 1000000000); /* what is evicted is */
            stats = held(rig, 0);
            rig_down(rig);
            rig_up(rig);
            assert_int_equal(held(rig, 0).store.bytes, stats.store.bytes);
        }
    }
    assert_true(evicts);
    rig_free(&rig);
}

static void a_quota_against_a_model(void **state)
{
    for (uint32_t i = 0; i < 6; i++)
        model_run(1 + i % 3, 1 + i % 4, 100 + i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_volume_uses_all_of_its_quota_whatever_its_keys),
        cmocka_unit_test(a_value_may_be_larger_than_the_part_of_a_drive),
        cmocka_unit_test(a_drive_that_hangs_stops_no_writes_of_others),
        cmocka_unit_test(what_a_lost_drive_held_is_free),
        cmocka_unit_test(a_quota_against_a_model),
    };

    return cmocka_run_group_tests_name("target-quota", tests, NULL, NULL);
}
