/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes that share memory, in uses that leave little of it: large blocks, blocks that somebody
 * keeps, floors and ceilings that are no multiple of a slab, slabs full of tiny blocks. On
 * simulated machines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "icms/icms.h"

#define KV   0
#define RAW  1
#define S    (1000 * RIG_MS)
#define WAIT S
#define SLAB ((uint64_t)17 * 4096)

static uint64_t slabs(struct agent_rig *rig, uint32_t volume)
{
    return rig_stats(rig)->volumes[volume].arena_bytes / SLAB;
}

/* Blocks of more than a quarter of the ceiling: three of them fit, and nobody else wants memory. */
static void large_blocks_reach_the_ceiling(void **state)
{
    struct rig_opts opts = {.enclosures = 1, .memory = 40, .memory_max = {3, 0, 0}};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t hits = 0;

    for (uint32_t n = 0; n < 3; n++)
        rig_flash(rig, 0, KV, n, 60000);
    for (uint32_t round = 0; round < 5; round++)
        for (uint32_t n = 0; n < 3; n++)
            hits += rig_load(client, KV, n, 60000);
    assert_int_equal(slabs(rig, KV), 3);
    rig_client_free(client);
    rig_free(rig);
    assert_int_equal(hits, 12);
}

/* A volume all of whose memory is leased gets some of one that is idle for a minute. */
static void an_idle_volume_gives_to_one_whose_memory_is_leased(void **state)
{
    struct rig_opts opts = {.enclosures = 1, .memory = 40};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    const struct shm_complete *answer;

    for (uint32_t n = 0; n < 10; n++)
        rig_flash(rig, 0, KV, n, 60000);
    for (uint32_t n = 0; n < 60; n++)
        rig_flash(rig, 0, RAW, n, 60000);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 0, 1, WAIT))->status,
                     ICMS_OK); /* leased */
    for (uint32_t n = 0; n < 60; n++)
        (void)rig_load(client, RAW, n, 60000);
    rig_run(rig, 60 * S);
    answer = rig_wait(client, rig_get(client, KV, 1, 2, WAIT));
    assert_int_equal(answer->status, ICMS_OK);
    rig_lease_give(client, 1);
    rig_lease_give(client, 2);
    rig_client_free(client);
    rig_free(rig);
}

/* A block that somebody holds for long does not keep its volume from growing while another one is
 * idle. */
static void one_old_lease_does_not_stop_a_volume(void **state)
{
    struct rig_opts opts = {.enclosures = 1, .memory = 40};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);

    for (uint32_t n = 0; n < 60; n++) {
        rig_flash(rig, 0, KV, n, 60000);
        rig_flash(rig, 0, RAW, n, 60000);
    }
    for (uint32_t n = 0; n < 5; n++)
        (void)rig_load(client, KV, n, 60000);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 0, 1, WAIT))->status, ICMS_OK);
    for (uint32_t n = 0; n < 60; n++)
        (void)rig_load(client, RAW, n, 60000);
    for (uint32_t round = 0; round < 4; round++) {
        rig_run(rig, 20 * S);
        for (uint32_t n = 1; n < 60; n++)
            (void)rig_load(client, KV, n, 60000);
    }
    assert_true(slabs(rig, KV) >= 30);
    rig_lease_give(client, 1);
    rig_client_free(client);
    rig_free(rig);
}

static uint64_t volume_bytes(struct agent_rig *rig, uint32_t volume)
{
    struct err_why why = {""};
    struct agent *agent = NULL;
    struct agent_stats *stats = calloc(1, sizeof(*stats));
    uint64_t bytes;

    assert_non_null(stats);
    if (agent_new(sim_node_env(rig->node), &rig->opts, &why, &agent) != ICMS_OK)
        fail_msg("%s", why.text);
    agent_stats(agent, stats);
    bytes = stats->volumes[volume].arena_bytes;
    agent_free(&agent);
    free(stats);
    return bytes;
}

/* One that is no multiple of a slab. */
static void a_floor_is_kept_to_the_byte(void **state)
{
    struct agent_rig *rig = rig_new(&(struct rig_opts){.enclosures = 1, .memory = 40});

    rig->volumes[KV].memory_bytes_min = 2 * SLAB - 4096;
    assert_true(volume_bytes(rig, KV) >= 2 * SLAB - 4096);
    rig_free(rig);
}

/* One that is less than a slab, which has space for the largest block of another volume. */
static void a_ceiling_is_kept_beside_larger_blocks(void **state)
{
    struct agent_rig *rig = rig_new(&(struct rig_opts){.enclosures = 1, .memory = 40});

    rig->volumes[KV].value_bytes_max = 4000;
    rig->volumes[KV].memory_bytes_max = 16384;
    assert_int_equal(volume_bytes(rig, KV), 16384);
    rig_free(rig);
}

static uint32_t tiny;

static void fill(void *arg)
{
    struct agent_shard *shard = arg;
    uint32_t count = shard->arena.slot_count - 8, slot;

    for (tiny = 0; tiny < count; tiny++) {
        struct key key = {.length = 16};

        memcpy(key.bytes, &tiny, sizeof(tiny));
        slot = agent_shard_slot_take(shard, 1);
        assert_true(slot != SHM_SLOT_NONE);
        agent_shard_publish(shard, slot, &key, 1, false);
    }
    slot = agent_shard_slot_take(shard, shard->stored_bytes_max);
    assert_true(slot != SHM_SLOT_NONE);
    agent_shard_publish(shard, slot, &(struct key){.length = 9}, 1, false);
}

static void take(void *arg)
{
    struct agent_shard *shard = arg;
    struct agent_shard *other = &shard->reactor->shards[RAW];
    const uint64_t *evicted = &other->evicted[AGENT_EVICTED_VOLUME];
    uint32_t slot = agent_shard_slot_take(shard, 100);

    agent_shard_publish(shard, slot, &(struct key){.length = 9}, 1, false);
    for (uint32_t i = 0; shard->slab_count < 30 && i < 1000; i++) {
        uint64_t before = counter_get(evicted);

        (void)agent_slabs_take(shard);
        assert_true(counter_get(evicted) - before <= AGENT_SLAB_BLOCKS);
    }
    assert_int_equal(shard->slab_count, 30); /* all but the floors of the others */
    assert_true(counter_get(evicted) > 10 * AGENT_SLAB_BLOCKS);
}

/* One request does not hold the loop while a slab full of tiny blocks changes hands. */
static void a_slab_of_tiny_blocks_changes_hands_in_pieces(void **state)
{
    struct rig_opts opts = {.enclosures = 1, .memory = 32, .value_bytes = 8 << 20};
    struct agent_rig *rig = rig_new(&opts);
    struct agent_reactor *reactor = &rig->agent->reactors[0];

    sim_call(rig->sim, reactor->loop, fill, &reactor->shards[RAW]);
    assert_true(tiny > 10 * AGENT_SLAB_BLOCKS);
    rig_run(rig, 3 * S);
    sim_call(rig->sim, reactor->loop, take, &reactor->shards[KV]);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_blocks_reach_the_ceiling),
        cmocka_unit_test(an_idle_volume_gives_to_one_whose_memory_is_leased),
        cmocka_unit_test(one_old_lease_does_not_stop_a_volume),
        cmocka_unit_test(a_floor_is_kept_to_the_byte),
        cmocka_unit_test(a_ceiling_is_kept_beside_larger_blocks),
        cmocka_unit_test(a_slab_of_tiny_blocks_changes_hands_in_pieces),
    };

    return cmocka_run_group_tests_name("agent-memory-use", tests, NULL, NULL);
}
