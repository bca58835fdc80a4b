/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libicms counts in the memory that it shares with the agent: hits in the mapped arena, and
 * what exists and match found.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <pthread.h>

#include "client/client_int.h"
#include "client/client_rig.h"
#include "client/fake_agent.h"

static uint64_t counted(const struct client_rig *rig, const struct icms_volume *volume,
                        uint32_t count)
{
    return atomic_load(&rig->icms->link->rings[0].counts[client_view(volume)->arena.volume][count]);
}

static void hits_in_the_arena_are_counted_without_a_message(void **state)
{
    struct client_rig *rig = *state;
    struct icms_block block;

    assert_int_equal(rig_put_one(rig->kv, 1, 100), ICMS_OK);
    assert_int_equal(rig_get_one(rig->kv, 1, 100, NULL), ICMS_OK); /* the agent brings it */
    atomic_store(&fake.mute, true); /* whoever needs it waits for ever */
    for (uint64_t i = 0; i < 1000; i++)
        assert_int_equal(rig_get_one(rig->kv, 1, 100, &block), ICMS_OK);
    assert_int_equal(block.source, ICMS_SOURCE_DRAM);
    atomic_store(&fake.mute, false);
    assert_in_range(counted(rig, rig->kv, SHM_COUNT_HITS), 1000, 1001);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_HIT_BYTES),
                     100 * counted(rig, rig->kv, SHM_COUNT_HITS));
    assert_int_equal(counted(rig, rig->raw, SHM_COUNT_HITS), 0);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_FOUND), 0);
}

static void *get_many(void *arg)
{
    struct client_rig *rig = arg;

    for (int i = 0; i < 5000; i++)
        if (rig_get_one(rig->kv, 1, 100, NULL) != ICMS_OK)
            return rig;
    return NULL;
}

static void threads_lose_no_count(void **state)
{
    struct client_rig *rig = *state;
    pthread_t threads[4];
    uint64_t before;

    assert_int_equal(rig_put_one(rig->kv, 1, 100), ICMS_OK);
    assert_int_equal(rig_get_one(rig->kv, 1, 100, NULL), ICMS_OK);
    before = counted(rig, rig->kv, SHM_COUNT_HITS);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, get_many, rig), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;

        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_HITS) - before, 20000);
}

static void a_block_that_does_not_fit_is_no_hit(void **state)
{
    struct client_rig *rig = *state;
    struct icms_block block = {.key = rig_key(1)};
    uint8_t small[10];
    uint64_t before;

    assert_int_equal(rig_put_one(rig->kv, 1, 100), ICMS_OK);
    assert_int_equal(rig_get_one(rig->kv, 1, 100, NULL), ICMS_OK);
    before = counted(rig, rig->kv, SHM_COUNT_HITS);
    block.data = small;
    block.bytes = sizeof(small);
    assert_int_not_equal(icms_get(rig->kv, &block, 1, NULL), ICMS_OK);
    assert_int_equal(block.status, ICMS_VALUE_SIZE);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_HITS), before);
}

static void exists_and_match_count_keys_and_prefixes(void **state)
{
    struct client_rig *rig = *state;
    struct icms_block blocks[8] = {0};
    struct icms_key keys[100];
    size_t matched;

    for (uint64_t i = 0; i < 100; i++)
        keys[i] = rig_key(i);
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(rig_put_one(rig->kv, i == 4 ? 6 : i, 100), ICMS_OK); /* 0..3, 6 */
    for (uint64_t i = 0; i < 8; i++)
        blocks[i].key = keys[i];
    assert_int_equal(icms_exists(rig->kv, blocks, 8, NULL), ICMS_MISS);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_FOUND), 5);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MISSED), 3);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MATCHED), 0);
    /* A match finds what is before its first hole. */
    assert_int_equal(icms_match(rig->kv, keys, 100, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 4);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_FOUND), 5 + 4);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MISSED), 3 + 96);
    assert_int_equal(icms_match(rig->kv, keys, 3, NULL, &matched), ICMS_OK);
    assert_int_equal(icms_match(rig->kv, keys + 50, 10, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 0);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MATCHED), 4 + 3);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MATCHES + 0), 1); /* none           */
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MATCHES + 2), 1); /* 2 or 3 blocks  */
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MATCHES + 3), 1); /* 4 .. 7         */
}

/* A long match is one match, of as many blocks as it found. */
static void a_long_match_is_counted_once(void **state)
{
    enum { MANY = 2 * ICMS_BATCH_MAX + 5 };
    struct client_rig *rig = *state;
    struct icms_key *keys = calloc(MANY, sizeof(*keys));
    size_t matched;

    assert_non_null(keys);
    assert_int_equal(rig_put_one(rig->kv, 1, 100), ICMS_OK);
    for (size_t i = 0; i < MANY; i++)
        keys[i] = rig_key(i == ICMS_BATCH_MAX + 3 ? 2 : 1);
    assert_int_equal(icms_match(rig->kv, keys, MANY, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, ICMS_BATCH_MAX + 3);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_FOUND), ICMS_BATCH_MAX + 3);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MISSED), MANY - (ICMS_BATCH_MAX + 3));
    assert_int_equal(icms_match(rig->kv, keys, ICMS_BATCH_MAX, NULL, &matched), ICMS_OK);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MATCHED), 2 * ICMS_BATCH_MAX + 3);
    keys[ICMS_BATCH_MAX + 3].length = 0; /* of a match that fails nothing is counted */
    assert_int_equal(icms_match(rig->kv, keys, MANY, NULL, &matched), ICMS_OK);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_FOUND), 2 * ICMS_BATCH_MAX + 3);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MATCHED), 2 * ICMS_BATCH_MAX + 3);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MATCHES + SHM_MATCH_BUCKETS - 1), 2);
    for (uint32_t i = 0; i + 1 < SHM_MATCH_BUCKETS; i++)
        assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MATCHES + i), 0);
    free(keys);
}

/* Of a call that failed some keys have no answer: none of them is counted. */
static void a_call_that_failed_counts_nothing(void **state)
{
    struct client_rig *rig = *state;
    struct icms_block blocks[3] = {{.key = rig_key(1)}, {.key = rig_key(2)}, {.key = rig_key(3)}};

    assert_int_equal(rig_put_one(rig->kv, 1, 100), ICMS_OK);
    assert_int_equal(rig_get_one(rig->kv, 1, 100, NULL), ICMS_OK); /* into the arena */
    blocks[2].key.length = 0;                                      /* no key */
    assert_int_not_equal(icms_exists(rig->kv, blocks, 3, NULL), ICMS_OK);
    assert_int_equal(blocks[0].status, ICMS_OK);
    assert_int_equal(blocks[1].status, ICMS_MISS);
    assert_int_equal(blocks[2].status, ICMS_KEY_SIZE);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_FOUND), 0);
    assert_int_equal(counted(rig, rig->kv, SHM_COUNT_MISSED), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, client_rig_setup, client_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(hits_in_the_arena_are_counted_without_a_message),
        TEST(threads_lose_no_count),
        TEST(a_block_that_does_not_fit_is_no_hit),
        TEST(exists_and_match_count_keys_and_prefixes),
        TEST(a_long_match_is_counted_once),
        TEST(a_call_that_failed_counts_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
