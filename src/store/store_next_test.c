/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments that are opened ahead, in simulated time where everything the drive does takes the same:
 * who writes one value after the other never waits for a header or a flush, on an empty drive and
 * on a full one, and a drive of few segments does not keep one from those who need it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "loop/sim.h"
#include "store/layout.h"
#include "store/store_rig.h"

#define BYTES         8000
#define SEGMENT_BYTES ((uint64_t)256 << 10)
#define MS            ((uint64_t)1000 * 1000)
#define MESSAGE_NS    ((uint64_t)1000)

static void next_rig(struct rig *rig, uint64_t segments)
{
    struct sim_opts opts;

    *rig = (struct rig){0};
    sim_opts_init(&opts, 1);
    opts.disk_delay_min_ns = opts.disk_delay_max_ns = MS;
    opts.disk_bytes_per_s = (uint64_t)1 << 40;
    opts.message_delay_max_ns = MESSAGE_NS;
    rig_sim_init(rig, &opts);
    rig_one_volume(rig);
    rig->opts.segment_bytes = SEGMENT_BYTES;
    rig->opts.bytes = STORE_DATA_OFFSET + segments * SEGMENT_BYTES;
    rig->opts.value_bytes_max = BYTES;
    rig->opts.blocks_max = 10000;
    rig_format(rig);
    rig_up(rig);
}

/* Writes so many values one after the other, 2 of 31 again later on; how many took longer than one
 * write of the drive does, or where they replace a value, than the write, the read and the write of
 * a dead map, and a flush. */
static uint64_t next_write(struct rig *rig, uint64_t first, uint64_t count)
{
    uint64_t late = 0;

    for (uint64_t i = first; i < first + count; i++) {
        uint64_t key = i % 31 < 2 ? i % 100 : i;
        uint64_t steps = rig_exists(rig, 0, key) ? 4 : 1, begin_ns = loop_env_now_ns(rig->env);

        assert_int_equal(rig_put(rig, 0, key, BYTES, i, 0), ICMS_OK);
        late += loop_env_now_ns(rig->env) - begin_ns > steps * MS + 10 * MESSAGE_NS;
    }
    return late;
}

static void only_the_first_write_waits_for_a_segment(void **state)
{
    struct store_stats stats;
    struct rig rig;

    next_rig(&rig, 64);
    assert_int_equal(next_write(&rig, 0, 1), 1);
    /* at most one replaces a value whose segment is being evicted, and waits for that */
    assert_in_range(next_write(&rig, 1, 3 * 64 * 31), 0, 1);
    rig_stats(&rig, &stats);
    assert_true(stats.evictions > 64 * 31);
    rig_down(&rig);
    sim_free(&rig.sim);
}

/* What was opened ahead and never written is free again after a crash. */
static void an_empty_one_is_free_after_a_crash(void **state)
{
    struct store_stats before, after;
    struct rig rig;

    next_rig(&rig, 64);
    (void)next_write(&rig, 0, 20);
    rig_stats(&rig, &before);
    assert_int_equal(before.segments_open, 2);
    rig_restart(&rig);
    rig_stats(&rig, &after);
    assert_int_equal(after.segments_open, 0);
    assert_int_equal(after.segments_free, 63);
    assert_int_equal(after.blocks, before.blocks);
    rig_down(&rig);
    sim_free(&rig.sim);
}

/* The last free segment is for who has to have it. */
static void the_last_free_segment_is_not_taken_ahead(void **state)
{
    struct store_stats stats;
    struct rig rig;

    next_rig(&rig, 4);
    for (uint64_t i = 0; i < 200; i++) {
        (void)next_write(&rig, i, 1);
        rig_stats(&rig, &stats);
        assert_true(stats.segments_open < 2 || stats.segments_free > 0);
    }
    assert_true(stats.evictions > 0);
    rig_down(&rig);
    sim_free(&rig.sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_first_write_waits_for_a_segment),
        cmocka_unit_test(an_empty_one_is_free_after_a_crash),
        cmocka_unit_test(the_last_free_segment_is_not_taken_ahead),
    };

    return cmocka_run_group_tests_name("store_next", tests, NULL, NULL);
}
