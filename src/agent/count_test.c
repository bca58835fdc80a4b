/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What clients count themselves: it reaches the agent's counters of the volume without a message,
 * outlives the client, and is bounded whatever a client writes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/agent_rig.h"
#include "base/test_hist.h"

#define MS    RIG_MS
#define KV    0
#define RAW   1
#define BYTES 20000u

static const struct rig_opts one = {.enclosures = 1};

static void counter_set(struct rig_client *client, uint32_t volume, uint32_t count, uint64_t value)
{
    atomic_store_explicit(&client->ring.counts[volume][count], value, memory_order_relaxed);
}

static void counts_of_clients_are_summed_and_outlive_them(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *first = rig_client_new(rig), *second = rig_client_new(rig);
    const struct agent_volume_stats *kv, *raw;

    shm_count_add(&first->ring, KV, SHM_COUNT_HITS, 1000);
    shm_count_add(&first->ring, KV, SHM_COUNT_HIT_BYTES, 5000);
    shm_count_add(&second->ring, KV, SHM_COUNT_HITS, 1);
    shm_count_add(&second->ring, RAW, SHM_COUNT_FOUND, 7);
    shm_count_add(&second->ring, RAW, SHM_COUNT_MISSED, 3);
    shm_count_add(&second->ring, RAW, SHM_COUNT_MATCHED, 7);
    shm_count_add(&second->ring, RAW, SHM_COUNT_MATCHES + 3, 1);
    kv = &rig_stats(rig)->volumes[KV];
    raw = &rig_stats(rig)->volumes[RAW];
    assert_int_equal(kv->hits_dram, 1001);
    assert_int_equal(kv->get_bytes, 5000);
    assert_int_equal(raw->hits_dram, 0);
    assert_int_equal(raw->keys_found, 7);
    assert_int_equal(raw->keys_missed, 3);
    assert_int_equal(raw->matched, 7);
    assert_int_equal(raw->matches[3], 1);
    (void)rig_stats(rig); /* looking counts nothing */
    assert_int_equal(kv->hits_dram, 1001);
    shm_count_add(&first->ring, KV, SHM_COUNT_HITS, 9); /* the last look is at the end */
    rig_client_free(first);
    rig_client_free(second);
    (void)rig_stats(rig);
    assert_int_equal(kv->hits_dram, 1010);
    assert_int_equal(raw->matched, 7);
    first = rig_client_new(rig); /* its number was used before */
    shm_count_add(&first->ring, KV, SHM_COUNT_HITS, 5);
    (void)rig_stats(rig);
    assert_int_equal(kv->hits_dram, 1015);
    rig_client_free(first);
    rig_free(rig);
}

static void a_client_that_lies_moves_nothing_far_and_nothing_back(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *liar = rig_client_new(rig), *honest = rig_client_new(rig);
    const struct agent_volume_stats *kv = &rig_stats(rig)->volumes[KV];
    uint64_t hits, bytes;

    shm_count_add(&honest->ring, KV, SHM_COUNT_HITS, 10);
    for (uint32_t i = 0; i < SHM_COUNTS; i++)
        counter_set(liar, KV, i, UINT64_MAX);
    (void)rig_stats(rig);
    hits = kv->hits_dram;
    bytes = kv->get_bytes;
    assert_true(hits >= 10 && hits < (uint64_t)1 << 40);
    assert_true(bytes < (uint64_t)1 << 60);
    for (uint32_t i = 0; i < SHM_MATCH_BUCKETS; i++)
        assert_true(kv->matches[i] < (uint64_t)1 << 40);
    /* What was counted stays counted, and is not counted again. */
    for (uint32_t i = 0; i < SHM_COUNTS; i++)
        counter_set(liar, KV, i, 0);
    (void)rig_stats(rig);
    assert_true(kv->hits_dram == hits && kv->get_bytes == bytes);
    for (int i = 0; i < 100; i++) {
        counter_set(liar, KV, SHM_COUNT_HITS, i % 2 == 0 ? 20 : 0);
        assert_int_equal(rig_stats(rig)->volumes[KV].hits_dram, hits);
    }
    shm_count_add(&honest->ring, KV, SHM_COUNT_HITS, 10); /* others are not held up */
    (void)rig_stats(rig);
    assert_int_equal(kv->hits_dram, hits + 10);
    /* With time it may count more. */
    counter_set(liar, KV, SHM_COUNT_HITS, UINT64_MAX);
    rig_run(rig, 160 * MS);
    (void)rig_stats(rig);
    assert_true(kv->hits_dram > hits + 10 && kv->hits_dram <= hits + 10 + 160 * MS + 1000000);
    rig_client_free(liar);
    rig_client_free(honest);
    rig_free(rig);
}

/* A touch tells the agent that the block is in use; the client has counted the hit. */
static void a_touch_is_no_second_hit(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);

    assert_int_equal(rig_wait(client, rig_put(client, KV, 3, BYTES, 0, 0))->status, ICMS_OK);
    (void)rig_op(client, SHM_OP_TOUCH, KV, 3, 0);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_stats(rig)->volumes[KV].hits_dram, 0);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 3, 0, 0))->status, ICMS_OK);
    assert_int_equal(rig_stats(rig)->volumes[KV].hits_dram, 1);
    assert_int_equal(rig_stats(rig)->volumes[KV].get_bytes, BYTES);
    rig_client_free(client);
    rig_free(rig);
}

static void latencies_and_ages_are_counted(void **state)
{
    const struct rig_opts few = {.enclosures = 1, .slots = 4, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&few);
    struct rig_client *client = rig_client_new(rig);
    const struct agent_stats *stats;

    for (uint32_t n = 0; n < 4; n++)
        assert_int_equal(
            rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 0))->status, ICMS_OK);
    rig_flash(rig, 0, KV, 100, BYTES);
    rig_run(rig, 3000 * MS);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 100, 0, 0))->status, ICMS_OK);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_EXISTS, KV, 200, 0))->status,
                     ICMS_MISS);
    stats = rig_stats(rig);
    assert_int_equal(stats->enclosures[0].op_ns[AGENT_LATENCY_STORE].total, 4);
    assert_int_equal(stats->enclosures[0].op_ns[AGENT_LATENCY_LOAD].total, 1);
    assert_int_equal(stats->enclosures[0].op_ns[AGENT_LATENCY_EXIST].total, 1);
    assert_true(stats->enclosures[0].op_ns[AGENT_LATENCY_LOAD].sum > 0);
    assert_int_equal(stats->volumes[KV].evicted_age_ns.total, stats->volumes[KV].arena_evictions);
    assert_true(stats->volumes[KV].evicted_age_ns.total > 0);
    assert_true(hist_quantile(&stats->volumes[KV].evicted_age_ns, 0.01) >= 2900 * MS);
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_of_clients_are_summed_and_outlive_them),
        cmocka_unit_test(a_client_that_lies_moves_nothing_far_and_nothing_back),
        cmocka_unit_test(a_touch_is_no_second_hit),
        cmocka_unit_test(latencies_and_ages_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
