/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relocation (relocate.c): a segment that lives for one block alone is evicted without it, and what
 * its owner does with the block meanwhile counts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "store/store_int.h"
#include "store/store_rig.h"

#define BYTES 5000 /* six records a segment */

static void relocate_rig(struct rig *rig)
{
    rig_one_volume(rig);
    rig->opts.bytes = STORE_DATA_OFFSET + 16 * RIG_SEGMENT_BYTES;
    rig_format(rig);
    rig_up(rig);
}

struct look {
    bool busy;       /* a block is being relocated */
    uint64_t record; /* that key 0 has            */
};

static void look_call(struct rig *rig, void *arg)
{
    struct key key = rig_key(0);
    struct look *look = arg;

    look->busy = rig->store->relocate.segment != NULL;
    look->record = store_record_now(rig->store, 0, &key);
}

static struct look look(struct rig *rig)
{
    struct look look;

    rig_call(rig, look_call, &look);
    return look;
}

/* A block that is read all the time stays, its neighbours in the segment go. A restart finds it. */
static void the_block_that_is_read_stays_alone(void **state)
{
    enum { BLOCKS = 400 };
    struct rig *rig = *state;
    uint64_t hits = 0, record;
    struct store_stats stats;

    relocate_rig(rig);
    assert_int_equal(rig_put(rig, 0, 0, BYTES, 0, 0), ICMS_OK);
    record = look(rig).record;
    for (uint64_t i = 1; i < BLOCKS; i++) {
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
        assert_int_equal(rig_get(rig, 0, 0, BYTES, 0, NULL), ICMS_OK);
    }
    assert_int_not_equal(look(rig).record, record);
    for (uint64_t i = 1; i < 200; i++)
        assert_false(rig_exists(rig, 0, i));
    for (uint64_t i = 0; i < BLOCKS; i++)
        hits += rig_exists(rig, 0, i);
    rig_stats(rig, &stats);
    assert_int_equal(stats.evictions, BLOCKS - hits);
    assert_int_equal(stats.writes, BLOCKS);
    assert_int_equal(stats.reads, BLOCKS - 1);
    assert_int_equal(stats.admitted_bytes, BLOCKS * store_record_bytes(BYTES));
    assert_true(stats.device_write_bytes > stats.admitted_bytes);
    rig_restart(rig);
    assert_int_equal(rig_get(rig, 0, 0, BYTES, 0, NULL), ICMS_OK);
    rig_verify(rig);
}

/* What is stored or deleted while it is relocated stays what it was then. */
static void a_mutation_meanwhile_wins(void **state)
{
    enum { BLOCKS = 3000 };
    struct rig *rig = *state;
    uint64_t met = 0, seed = 0;

    relocate_rig(rig);
    assert_int_equal(rig_put(rig, 0, 0, BYTES, seed, 0), ICMS_OK);
    for (uint64_t i = 1; i < BLOCKS; i++) {
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
        if (!look(rig).busy) {
            assert_int_equal(rig_get(rig, 0, 0, BYTES, seed, NULL), ICMS_OK);
            continue;
        }
        met++;
        if (met % 2 == 0) {
            assert_int_equal(rig_delete(rig, 0, 0), ICMS_OK);
            for (int wait = 0; wait < 20; wait++)
                assert_int_equal(rig_get(rig, 0, 0, BYTES, seed, NULL), ICMS_MISS);
        }
        assert_int_equal(rig_put(rig, 0, 0, BYTES, ++seed, 0), ICMS_OK);
        for (int wait = 0; wait < 20; wait++)
            assert_int_equal(rig_get(rig, 0, 0, BYTES, seed, NULL), ICMS_OK);
    }
    assert_true(met > 10);
    rig_restart(rig);
    assert_int_equal(rig_get(rig, 0, 0, BYTES, seed, NULL), ICMS_OK);
    rig_verify(rig);
}

#define RELOCATE_TEST(test, backend)                                                               \
    {                                                                                              \
#backend ": " #test, test, rig_##backend##_setup, rig_##backend##_teardown, NULL           \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        RELOCATE_TEST(the_block_that_is_read_stays_alone, uring),
        RELOCATE_TEST(the_block_that_is_read_stays_alone, sim),
        RELOCATE_TEST(a_mutation_meanwhile_wins, sim),
    };

    return cmocka_run_group_tests_name("store-relocate", tests, NULL, NULL);
}
