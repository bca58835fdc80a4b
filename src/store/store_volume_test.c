/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes that change while the loop runs: one that begins, goes and comes back, one that the drive
 * has old records of, and quotas that change under writes that wait for them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "loop/sim.h"
#include "store/store_rig.h"

#define BYTES 8000
#define PAGES ((uint64_t)8192) /* of flash that one takes */

/* What is asked on the loop, and its answer. */
struct ask {
    uint32_t number;
    struct uuid uuid;
    uint64_t quota_bytes;
    icms_err err;
    struct err_why why;
};

static void begin_on_loop(struct rig *rig, void *arg)
{
    struct ask *ask = arg;

    ask->err = store_volume_begin(rig->store, ask->number, &ask->uuid, &ask->why);
    if (ask->err == ICMS_OK)
        ask->err = store_volume_limit(rig->store, ask->number, ask->quota_bytes, NULL, &ask->why);
}

static void retire_on_loop(struct rig *rig, void *arg)
{
    store_volume_retire(rig->store, *(const uint32_t *)arg);
}

static void limit_on_loop(struct rig *rig, void *arg)
{
    struct ask *ask = arg;

    ask->err = store_volume_limit(rig->store, ask->number, ask->quota_bytes, NULL, &ask->why);
    store_quota_look(rig->store);
}

static icms_err begin(struct rig *rig, uint32_t number, uint64_t uuid, uint64_t quota_bytes)
{
    struct ask ask = {.number = number, .uuid = rig_uuid(uuid), .quota_bytes = quota_bytes};

    rig_call(rig, begin_on_loop, &ask);
    return ask.err;
}

static void retire(struct rig *rig, uint32_t number)
{
    rig_call(rig, retire_on_loop, &number);
}

static void limit(struct rig *rig, uint32_t number, uint64_t quota_bytes)
{
    struct ask ask = {.number = number, .quota_bytes = quota_bytes};

    rig_call(rig, limit_on_loop, &ask);
    assert_int_equal(ask.err, ICMS_OK);
}

static void up(struct rig *rig)
{
    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
}

static uint32_t found(struct rig *rig, uint32_t volume, uint64_t first, uint64_t count)
{
    uint32_t n = 0;

    for (uint64_t key = first; key < first + count; key++) {
        icms_err err = rig_get(rig, volume, key, BYTES, key, NULL);

        assert_true(err == ICMS_OK || err == ICMS_MISS); /* never another value */
        n += err == ICMS_OK;
    }
    return n;
}

static void store_all(struct rig *rig, uint32_t volume, uint64_t first, uint64_t count)
{
    for (uint64_t key = first; key < first + count; key++)
        assert_int_equal(rig_put(rig, volume, key, BYTES, key, 0), ICMS_OK);
}

/* It has its own keys, and its blocks are found after a restart that knows it. */
static void a_volume_begins(void **state)
{
    struct rig *rig = *state;

    up(rig);
    store_all(rig, 0, 0, 10);
    assert_int_equal(begin(rig, 1, 2, 0), ICMS_OK);
    assert_int_equal(found(rig, 1, 0, 10), 0);
    store_all(rig, 1, 5, 10);
    assert_int_equal(found(rig, 1, 0, 20), 10);
    assert_int_equal(found(rig, 0, 0, 20), 10);
    assert_int_equal(begin(rig, 1, 3, 0), ICMS_EXISTS);
    assert_int_equal(begin(rig, 2, 2, 0), ICMS_EXISTS);
    rig->uuid[1] = rig_uuid(2);
    rig->volume_count = 2;
    rig_restart(rig);
    assert_int_equal(found(rig, 1, 0, 20), 10);
    rig_verify(rig);
}

/* A number that was left free is not a volume of zeros. */
static void numbers_may_be_left_free(void **state)
{
    struct rig *rig = *state;
    struct uuid zeros = {{0}};
    struct ask ask = {.number = 3, .uuid = zeros};

    up(rig);
    assert_int_equal(begin(rig, 5, 9, 0), ICMS_OK);
    store_all(rig, 5, 0, 10);
    rig_call(rig, begin_on_loop, &ask);
    assert_int_equal(ask.err, ICMS_OK);
    assert_int_equal(found(rig, 3, 0, 10), 0);
    assert_int_equal(found(rig, 5, 0, 10), 10);
    rig_verify(rig);
}

/* What a retired volume has goes before anything of another one, and comes back until then. */
static void a_retired_volume_goes_first(void **state)
{
    struct rig *rig = *state;
    struct store_volume_stats stats;

    up(rig);
    assert_int_equal(begin(rig, 1, 2, 0), ICMS_OK);
    store_all(rig, 0, 0, 100);
    store_all(rig, 1, 1000, 100);
    retire(rig, 1);
    assert_int_equal(found(rig, 1, 1000, 100), 100); /* commands in flight are answered */
    assert_int_equal(begin(rig, 1, 2, 0), ICMS_OK);
    assert_int_equal(found(rig, 1, 1000, 100), 100);
    retire(rig, 1);
    store_all(rig, 0, 100, 250); /* some 420 fit */
    assert_int_equal(found(rig, 0, 0, 350), 350);
    rig_volume_stats(rig, 1, &stats);
    assert_true(stats.evictions >= 30);
    rig_volume_stats(rig, 0, &stats);
    assert_int_equal(stats.evictions, 0);
    rig_verify(rig);
}

/* Records that the open did not take into the index would come back beside newer ones, or after
 * their key was deleted: their volume cannot begin before they are gone. */
static void old_records_keep_a_volume_from_beginning(void **state)
{
    struct rig *rig = *state;

    up(rig);
    assert_int_equal(begin(rig, 1, 2, 0), ICMS_OK);
    store_all(rig, 1, 0, 20);
    rig_restart(rig); /* with volume 1 alone */
    assert_int_equal(begin(rig, 1, 2, 0), ICMS_BUSY);
    assert_int_equal(begin(rig, 1, 3, 0), ICMS_OK);
    store_all(rig, 0, 0, 500); /* the whole drive, once */
    assert_int_equal(begin(rig, 2, 2, 0), ICMS_OK);
    assert_int_equal(found(rig, 2, 0, 20), 0);
    rig_verify(rig);
}

/* Of more than are kept by their UUIDs, every volume may have old records, until there are none. */
static void old_records_of_many_volumes(void **state)
{
    enum { VOLUMES = 300 };
    struct rig *rig = *state;

    rig->volume_count = VOLUMES;
    for (uint32_t i = 0; i < VOLUMES; i++)
        rig->uuid[i] = rig_uuid(i);
    rig_format(rig);
    rig_up(rig);
    for (uint32_t i = 0; i < VOLUMES; i++)
        assert_int_equal(rig_put(rig, i, i, 100, i, 0), ICMS_OK);
    rig_down(rig);
    rig->volume_count = 1;
    rig_up(rig);
    assert_int_equal(begin(rig, 1, VOLUMES - 1, 0), ICMS_BUSY);
    assert_int_equal(begin(rig, 1, 1000, 0), ICMS_BUSY); /* which none is of */
    store_all(rig, 0, 1000, 500);                        /* the whole drive, once */
    assert_int_equal(begin(rig, 1, VOLUMES - 1, 0), ICMS_OK);
    assert_int_equal(found(rig, 1, VOLUMES - 1, 1), 0);
    rig_verify(rig);
}

/* Until a volume holds no more than that. */
struct bound {
    struct rig *rig;
    uint32_t volume;
    uint64_t bytes;
};

static bool is_within(void *arg)
{
    const struct bound *bound = arg;
    struct store_volume_stats stats;

    store_volume_stats(bound->rig->store, bound->volume, &stats); /* any thread */
    return stats.bytes <= bound->bytes;
}

static void within(struct rig *rig, uint32_t volume, uint64_t bytes)
{
    struct bound bound = {rig, volume, bytes};

    assert_true(rig_until(rig, is_within, &bound));
}

/* However often volumes begin anew, each keeps what is its share from the other. */
static void resets_use_no_streams_up(void **state)
{
    struct rig *rig = *state;
    uint32_t a = 0, b = 1;

    up(rig);
    assert_int_equal(begin(rig, b, 2, 0), ICMS_OK);
    for (uint32_t i = 0; i < 200; i++) {
        store_all(rig, a, 0, i % 4);
        store_all(rig, b, 0, i % 10);
        assert_int_equal(begin(rig, b + 1, b + 2, 0), ICMS_OK);
        assert_int_equal(begin(rig, b + 2, b + 3, 0), ICMS_OK);
        retire(rig, a);
        retire(rig, b);
        a = b + 1;
        b = a + 1;
    }
    store_all(rig, b, 0, 100);
    store_all(rig, a, 1000, 900); /* some 420 fit */
    assert_int_equal(found(rig, b, 0, 100), 100);
    assert_true(found(rig, a, 1000, 900) > 200);
    rig_verify(rig);
}

/* One that is back after its stream went to another: its blocks are its own again; and where it
 * shares now, its quota takes of them. */
static void a_volume_is_back_without_its_stream(void **state)
{
    struct rig *rig = *state;
    struct store_volume_stats stats;

    up(rig);
    assert_int_equal(begin(rig, 1, 2, 0), ICMS_OK);
    store_all(rig, 1, 0, 100);
    retire(rig, 1);
    assert_int_equal(begin(rig, 2, 3, 0), ICMS_OK);
    store_all(rig, 2, 0, 10);
    assert_int_equal(found(rig, 1, 0, 100), 100);
    assert_int_equal(begin(rig, 1, 2, 0), ICMS_OK);
    store_all(rig, 0, 0, 600);
    assert_int_equal(found(rig, 1, 0, 100), 100);
    assert_int_equal(found(rig, 2, 0, 10), 10);
    retire(rig, 1);
    assert_int_equal(begin(rig, 3, 4, 0), ICMS_OK);
    assert_int_equal(begin(rig, 4, 5, 0), ICMS_OK); /* the last stream */
    assert_int_equal(begin(rig, 1, 2, 60 * PAGES), ICMS_OK);
    limit(rig, 1, 60 * PAGES);
    within(rig, 1, 60 * PAGES);
    store_all(rig, 1, 200, 100);
    assert_true(found(rig, 1, 200, 100) > 30);
    rig_volume_stats(rig, 1, &stats);
    assert_true(stats.bytes <= 60 * PAGES);
    rig_verify(rig);
}

/* Less than is held: evicted without another write. More, or none: there is place again. */
static void a_quota_changes(void **state)
{
    struct rig *rig = *state;
    struct store_volume_stats stats;

    up(rig);
    assert_int_equal(begin(rig, 1, 2, 50 * PAGES), ICMS_OK);
    store_all(rig, 1, 0, 80);
    rig_volume_stats(rig, 1, &stats);
    assert_true(stats.bytes <= 50 * PAGES && stats.blocks > 20);
    limit(rig, 1, 25 * PAGES);
    within(rig, 1, 25 * PAGES);
    assert_true(found(rig, 1, 0, 80) > 10);
    limit(rig, 1, 0);
    store_all(rig, 1, 100, 80);
    assert_int_equal(found(rig, 1, 100, 80), 80);
    limit(rig, 1, 40 * PAGES);
    store_all(rig, 1, 200, 80);
    rig_volume_stats(rig, 1, &stats);
    assert_true(stats.bytes <= 40 * PAGES && stats.blocks > 0);
    limit(rig, 1, 100 * PAGES);
    store_all(rig, 1, 300, 80);
    assert_int_equal(found(rig, 1, 300, 80), 80);
    rig_verify(rig);
}

/* A volume with a stream of its own whose quota is less than a segment by now: its open segment is
 * sealed and evicted, and no write waits for ever. */
static void a_quota_below_a_segment(void **state)
{
    struct rig *rig = *state;
    struct store_volume_stats stats;

    up(rig);
    assert_int_equal(begin(rig, 1, 2, 0), ICMS_OK);
    store_all(rig, 1, 0, 3);
    limit(rig, 1, 2 * PAGES);
    store_all(rig, 1, 10, 30);
    rig_volume_stats(rig, 1, &stats);
    assert_true(stats.bytes <= 2 * PAGES);
    assert_int_equal(found(rig, 1, 39, 1), 1);
    rig_verify(rig);
}

/* A write that waits for a quota which cannot hold it any more ends. */
static void a_write_that_waits_is_too_large_by_now(void **state)
{
    struct rig *rig = *state;
    struct rig_op *ops[24];
    uint32_t refused = 0;

    up(rig);
    assert_int_equal(begin(rig, 1, 2, 5 * PAGES), ICMS_OK);
    for (uint32_t i = 0; i < 24; i++) {
        ops[i] = rig_op_new(rig, RIG_WRITE, BYTES);
        ops[i]->volume = 1;
        ops[i]->key = rig_key(i);
        ops[i]->seed = i;
        ops[i]->value_bytes = BYTES;
        rig_op_start(ops[i]);
    }
    limit(rig, 1, PAGES / 2);
    for (uint32_t i = 0; i < 24; i++) {
        rig_op_wait(ops[i]);
        assert_true(ops[i]->err == ICMS_OK || ops[i]->err == ICMS_QUOTA);
        refused += ops[i]->err == ICMS_QUOTA;
        rig_op_free(ops[i]);
    }
    assert_true(refused > 0);
    within(rig, 1, 0);
    rig_verify(rig);
}

#define VOLUME_TEST(test, backend)                                                                 \
    {                                                                                              \
#backend ": " #test, test, rig_##backend##_setup, rig_##backend##_teardown, NULL           \
    }
#define BOTH(test) VOLUME_TEST(test, sim), VOLUME_TEST(test, uring)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        BOTH(a_volume_begins),
        BOTH(numbers_may_be_left_free),
        BOTH(a_retired_volume_goes_first),
        BOTH(resets_use_no_streams_up),
        BOTH(a_volume_is_back_without_its_stream),
        BOTH(old_records_keep_a_volume_from_beginning),
        BOTH(old_records_of_many_volumes),
        BOTH(a_quota_changes),
        BOTH(a_quota_below_a_segment),
        BOTH(a_write_that_waits_is_too_large_by_now),
    };

    rig_choose(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
