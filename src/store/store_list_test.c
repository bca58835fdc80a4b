/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing keys in slices: each key once, in one order, with bounded work a call, whatever changes
 * between the calls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "store/store_rig.h"

#define KEYS 600

/* Entries of a chain that a call may look at beyond what it was told: one chain. */
#define CHAIN_MAX 40

struct slice {
    uint32_t volume; /* row of the rig                */
    struct store_position from, until;
    uint32_t steps_max, keys_max;
    struct store_position keys[KEYS + 1];
    uint32_t count;
    uint64_t steps; /* that the call took             */
};

static void slice_call(struct rig *rig, void *arg)
{
    struct slice *slice = arg;
    struct store_stats before, after;

    store_stats(rig->store, &before);
    slice->count = store_list(rig->store, slice->volume, &slice->from, &slice->until,
                              slice->steps_max, slice->keys, slice->keys_max);
    store_stats(rig->store, &after);
    slice->steps = after.list_steps - before.list_steps;
}

/* Lists up to until in slices; returns how many keys, which are then in out. */
static uint32_t list_all(struct rig *rig, struct slice *slice, struct store_position *out,
                         void (*between)(struct rig *rig))
{
    uint32_t count = 0;

    while (store_position_compare(&slice->from, &slice->until) < 0) {
        rig_call(rig, slice_call, slice);
        assert_true(slice->count <= slice->keys_max);
        assert_true(slice->steps <= (uint64_t)slice->steps_max + CHAIN_MAX);
        assert_true(count + slice->count <= KEYS);
        for (uint32_t i = 0; i < slice->count; i++) {
            out[count] = slice->keys[i];
            if (count > 0)
                assert_true(store_position_compare(&out[count - 1], &out[count]) < 0);
            count++;
        }
        if (between != NULL)
            between(rig);
    }
    return count;
}

static struct slice slice_of(uint32_t volume, uint32_t steps_max, uint32_t keys_max)
{
    return (struct slice){.volume = volume,
                          .until = store_position_end,
                          .steps_max = steps_max,
                          .keys_max = keys_max};
}

static void rig_fill_two_volumes(struct rig *rig)
{
    rig_one_volume(rig);
    rig->opts.bytes = (uint64_t)64 << 20; /* nothing is evicted */
    rig->opts.blocks_max = 1200;
    rig->volume_count = 2;
    rig->uuid[1] = rig_uuid(2);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < KEYS; i++)
        assert_int_equal(rig_put(rig, i % 3 == 0, i, 10, i, 0), ICMS_OK);
}

static bool listed(const struct store_position *keys, uint32_t count, uint64_t n)
{
    struct key key = rig_key(n);
    uint32_t found = 0;

    for (uint32_t i = 0; i < count; i++)
        found += key_equal(&keys[i].key, &key);
    assert_in_range(found, 0, 1);
    return found == 1;
}

static void slices_of_any_size_give_each_key_once_in_one_order(void **state)
{
    static const struct {
        uint32_t steps, keys;
    } sizes[] = {{1, KEYS}, {7, KEYS}, {UINT32_MAX, 1}, {UINT32_MAX, 7}, {50, 3}};
    static struct store_position all[KEYS], some[KEYS];
    struct rig *rig = *state;
    struct slice slice = slice_of(0, UINT32_MAX, KEYS + 1);
    uint32_t count;

    rig_fill_two_volumes(rig);
    count = list_all(rig, &slice, all, NULL);
    assert_int_equal(count, KEYS * 2 / 3);
    for (uint64_t i = 0; i < KEYS; i++)
        assert_int_equal(listed(all, count, i), i % 3 != 0);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        slice = slice_of(0, sizes[i].steps, sizes[i].keys);
        assert_int_equal(list_all(rig, &slice, some, NULL), count);
        for (uint32_t k = 0; k < count; k++)
            assert_int_equal(store_position_compare(&some[k], &all[k]), 0);
    }
}

static struct key before_key;
static struct store_position before_position;

static void before_call(struct rig *rig, void *arg)
{
    before_position = store_position_before(rig->store, 0, &before_key);
}

/* Found at once, without going through what comes before it, and also when the key is gone. */
static void a_list_goes_on_at_a_key(void **state)
{
    static struct store_position all[KEYS], rest[KEYS];
    struct rig *rig = *state;
    struct slice slice = slice_of(0, UINT32_MAX, KEYS + 1);
    uint32_t count, at;

    rig_fill_two_volumes(rig);
    count = list_all(rig, &slice, all, NULL);
    at = count * 3 / 4;
    for (int gone = 0; gone < 2; gone++) {
        before_key = all[at].key;
        rig_call(rig, before_call, NULL);
        slice = slice_of(0, UINT32_MAX, 1);
        slice.from = before_position;
        rig_call(rig, slice_call, &slice);
        assert_int_equal(store_position_compare(&slice.keys[0], &all[at + (uint32_t)gone]), 0);
        assert_true(slice.steps < CHAIN_MAX * (uint64_t)2);
        slice = slice_of(0, 20, 20);
        slice.from = before_position;
        assert_int_equal(list_all(rig, &slice, rest, NULL), count - at - (uint32_t)gone);
        for (uint64_t n = 0; n < KEYS && gone == 0; n++) {
            struct key key = rig_key(n);

            if (key_equal(&key, &all[at].key))
                assert_int_equal(rig_delete(rig, 0, n), ICMS_OK);
        }
    }
}

static uint64_t change_next;

/* Keys from KEYS / 2 on come, go and are stored again. */
static void change(struct rig *rig)
{
    uint64_t n = KEYS / 2 + change_next * 31 % (KEYS / 2);

    change_next++;
    if (n % 2 == 0)
        (void)rig_delete(rig, 0, n);
    else
        assert_int_equal(rig_put(rig, 0, n, 10, n, 0), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, KEYS + change_next % 200, 10, n, 0), ICMS_OK);
    if (change_next % 3 == 0)
        (void)rig_delete(rig, 0, KEYS + (change_next + 100) % 200);
}

static void keys_that_stay_are_given_once_while_others_come_and_go(void **state)
{
    static struct store_position keys[KEYS];
    struct rig *rig = *state;

    rig_fill_two_volumes(rig);
    change_next = 0;
    for (int round = 0; round < 3; round++) {
        struct slice slice = slice_of(0, 16, 5);
        uint32_t count = list_all(rig, &slice, keys, change);

        for (uint64_t n = 0; n < KEYS / 2; n++)
            assert_int_equal(listed(keys, count, n), n % 3 != 0);
    }
    assert_true(change_next > 100);
}

/* What the drives of an enclosure rely on: sizes differ, the seed is one. */
static void stores_with_one_seed_have_one_order(void **state)
{
    static struct store_position keys[2][KEYS];
    struct rig *rig = *state;

    for (int i = 0; i < 2; i++) {
        struct slice slice = slice_of(0, 10, 10);

        rig->opts.hash_seed = 77;
        if (i == 0) {
            rig_fill_two_volumes(rig);
        } else {
            rig->opts.blocks_max = 7000;
            rig_up(rig);
        }
        assert_int_equal(list_all(rig, &slice, keys[i], NULL), KEYS * 2 / 3);
        rig_down(rig);
    }
    for (uint32_t k = 0; k < KEYS * 2 / 3; k++)
        assert_int_equal(store_position_compare(&keys[0][k], &keys[1][k]), 0);
}

#define LIST_TEST(test) cmocka_unit_test_setup_teardown(test, rig_sim_setup, rig_sim_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LIST_TEST(slices_of_any_size_give_each_key_once_in_one_order),
        LIST_TEST(a_list_goes_on_at_a_key),
        LIST_TEST(keys_that_stay_are_given_once_while_others_come_and_go),
        LIST_TEST(stores_with_one_seed_have_one_order),
    };

    return cmocka_run_group_tests_name("store-list", tests, NULL, NULL);
}
