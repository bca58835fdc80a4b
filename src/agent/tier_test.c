/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/tier_test.c: a drive of the agent's own under its memory, beside one enclosure, on
 * simulated machines: what it takes, what it answers, and what its faults cost.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_rig.h"
#include "agent/tier.h"
#include "base/crc.h"
#include "base/fault_arm.h"
#include "icms/icms.h"
#include "store/store.h"

#define VALUE   60000u
#define SLOTS   16
#define DRIVE   ((uint64_t)32 << 20)
#define TIMEOUT (2000 * RIG_MS)

struct world {
    struct agent_rig *rig;
    struct rig_client *client;
};

static struct world world_with(struct rig_opts opts)
{
    struct world world;

    opts.seed = 11;
    opts.enclosures = 1;
    opts.slots = SLOTS;
    if (opts.own_drive_bytes == 0)
        opts.own_drive_bytes = DRIVE;
    world.rig = rig_new(&opts);
    world.client = rig_client_new(world.rig);
    for (uint32_t n = 1; n <= 4 * SLOTS; n++)
        rig_flash(world.rig, 0, 0, n, VALUE);
    return world;
}

static struct world world_new(void)
{
    return world_with((struct rig_opts){0});
}

static void world_free(struct world *world)
{
    rig_client_free(world->client);
    rig_free(world->rig);
}

static const struct agent_tier_stats *tier(struct world *world)
{
    const struct agent_stats *stats = rig_stats(world->rig);

    assert_true(stats->has_tier);
    return &stats->tier;
}

/* Loads a block; returns where it came from, or -1 for a miss. The bytes are right. */
static int load_bytes(struct world *world, uint32_t n, uint32_t bytes)
{
    const struct shm_complete *answer =
        rig_wait(world->client, rig_get(world->client, 0, n, 9, TIMEOUT));
    int source;

    assert_non_null(answer);
    if (answer->status != ICMS_OK) {
        /* the enclosure does not know a UUID that a volume has after a reset */
        assert_true(answer->status == ICMS_MISS || answer->status == ICMS_NO_VOLUME);
        return -1;
    }
    source = answer->source;
    assert_true(rig_value_is(world->client, 0, n, bytes, answer));
    rig_lease_give(world->client, 9);
    return source;
}

static int load(struct world *world, uint32_t n)
{
    return load_bytes(world, n, VALUE);
}

/* Loads blocks, one after the other, with time for what is written behind them. */
static void load_all(struct world *world, uint32_t first, uint32_t last)
{
    for (uint32_t n = first; n <= last; n++) {
        assert_true(load(world, n) >= 0);
        rig_run(world->rig, 20 * RIG_MS);
    }
}

/* The first blocks are on the drive, and not in memory. */
static void fill(struct world *world)
{
    load_all(world, 1, 3 * SLOTS);
    assert_true(tier(world)->demoted >= SLOTS);
}

static uint64_t pod_loads(struct world *world)
{
    return rig_stats(world->rig)->enclosures[0].op_ns[AGENT_LATENCY_LOAD].total;
}

static void evicted_blocks_that_were_read_come_from_the_drive(void **state)
{
    struct world world = world_new();
    struct agent_user_stats before, user;
    uint64_t pod;

    fill(&world);
    pod = pod_loads(&world);
    assert_true(agent_user_stats(world.rig->agent, 0, 0, &before));
    assert_true(before.load_pod_bytes > 0);
    for (uint32_t n = 1; n <= 8; n++)
        assert_int_equal(load(&world, n), ICMS_SOURCE_LOCAL);
    assert_int_equal(pod_loads(&world), pod);
    assert_int_equal(tier(&world)->promoted, 8);
    assert_int_equal(rig_stats(world.rig)->volumes[0].hits_local, 8);
    assert_int_equal(load(&world, 8), ICMS_SOURCE_DRAM);
    assert_true(agent_user_stats(world.rig->agent, 0, 0, &user));
    assert_int_equal(user.load_pod_bytes, before.load_pod_bytes);
    assert_int_equal(user.load_local_bytes, before.load_local_bytes + (uint64_t)8 * VALUE);
    assert_int_equal(user.load_bytes, before.load_bytes + (uint64_t)9 * VALUE);
    world_free(&world);
}

static void a_block_on_the_drive_is_not_written_again(void **state)
{
    struct world world = world_new();
    uint64_t demoted;

    fill(&world);
    load_all(&world, 3 * SLOTS + 1, 4 * SLOTS); /* all before are on the drive */
    load_all(&world, 1, SLOTS);
    load_all(&world, SLOTS + 1, 2 * SLOTS);
    demoted = tier(&world)->demoted;
    load_all(&world, 1, SLOTS);
    assert_int_equal(tier(&world)->demoted, demoted);
    assert_true(tier(&world)->kept >= SLOTS);
    world_free(&world);
}

static void what_nobody_read_is_not_written(void **state)
{
    struct world world = world_new();

    for (uint32_t n = 100; n < 100 + 3 * SLOTS; n++) {
        assert_int_equal(
            rig_wait(world.client, rig_put(world.client, 0, n, VALUE, 0, TIMEOUT))->status,
            ICMS_OK);
        rig_run(world.rig, 20 * RIG_MS);
    }
    assert_int_equal(tier(&world)->demoted, 0);
    assert_true(tier(&world)->unread >= SLOTS);
    world_free(&world);
}

static void exists_knows_what_the_drive_has(void **state)
{
    struct world world = world_new();
    const struct shm_complete *answer;

    fill(&world);
    sim_net_cut(world.rig->sim, world.rig->node, world.rig->fake_node[0], true);
    rig_run(world.rig, 3000 * RIG_MS);
    answer = rig_wait(world.client, rig_op(world.client, SHM_OP_EXISTS, 0, 1, TIMEOUT));
    assert_int_equal(answer->status, ICMS_OK);
    assert_int_equal(answer->source, ICMS_SOURCE_LOCAL);
    answer = rig_wait(world.client, rig_op(world.client, SHM_OP_EXISTS, 0, 4 * SLOTS, TIMEOUT));
    assert_int_equal(answer->status, ICMS_MISS);
    world_free(&world);
}

static void without_the_pod_the_drive_answers(void **state)
{
    struct world world = world_new();

    fill(&world);
    sim_net_cut(world.rig->sim, world.rig->node, world.rig->fake_node[0], true);
    rig_run(world.rig, 3000 * RIG_MS);
    for (uint32_t n = 1; n <= 8; n++)
        assert_int_equal(load(&world, n), ICMS_SOURCE_LOCAL);
    assert_int_equal(load(&world, 4 * SLOTS), -1);
    world_free(&world);
}

/* More loads at a time than there are buffers: without the pod they wait for one. */
static void without_the_pod_loads_wait_for_the_drive(void **state)
{
    struct world world = world_new();
    uint64_t tags[SLOTS + 8];

    load_all(&world, 1, 4 * SLOTS);
    sim_net_cut(world.rig->sim, world.rig->node, world.rig->fake_node[0], true);
    rig_run(world.rig, 3000 * RIG_MS);
    sim_file_slow(world.rig->node, RIG_DRIVE, 100);
    for (uint32_t i = 0; i < 12; i++)
        tags[i] = rig_get(world.client, 0, 1 + i, SHM_SLOT_NONE, TIMEOUT);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(rig_wait(world.client, tags[i])->status, ICMS_OK);
    world_free(&world);
}

static void a_late_drive_does_not_eat_the_deadline(void **state)
{
    struct world world = world_new();
    uint64_t begun_ns;

    fill(&world);
    sim_file_slow(world.rig->node, RIG_DRIVE, 1000000);
    begun_ns = rig_now_ns(world.rig);
    assert_int_equal(load(&world, 1), ICMS_SOURCE_POD);
    assert_true(rig_now_ns(world.rig) - begun_ns < 150 * RIG_MS);
    assert_int_equal(tier(&world)->given_up, 1);
    for (uint32_t n = 2; n <= 4; n++)
        assert_int_equal(load(&world, n), ICMS_SOURCE_POD);
    assert_int_equal(tier(&world)->state, AGENT_TIER_SLOW);
    assert_string_not_equal(tier(&world)->why, "");
    begun_ns = rig_now_ns(world.rig); /* it is not waited for any more */
    for (uint32_t n = 5; n <= 8; n++)
        assert_int_equal(load(&world, n), ICMS_SOURCE_POD);
    assert_true(rig_now_ns(world.rig) - begun_ns < 50 * RIG_MS);
    assert_int_equal(tier(&world)->given_up, 4);
    world_free(&world);
}

/* The pod has evicted it, and the drive still has it. */
static void what_the_drive_is_late_with_is_not_absent(void **state)
{
    struct world world = world_new();
    const struct shm_complete *answer;
    struct key key;

    fill(&world);
    sim_file_slow(world.rig->node, RIG_DRIVE, 1000000);
    rig_key(1, &key);
    assert_true(fake_target_remove(world.rig->fake[0], 1, &key));
    answer = rig_wait(world.client, rig_get(world.client, 0, 1, 9, TIMEOUT));
    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, ICMS_MISS_DEADLINE);
    world_free(&world);
}

static void a_slow_drive_is_used_again(void **state)
{
    struct world world = world_new();

    fill(&world);
    sim_file_slow(world.rig->node, RIG_DRIVE, 3000);
    for (uint32_t n = 1; n <= 4; n++)
        assert_int_equal(load(&world, n), ICMS_SOURCE_POD);
    assert_int_equal(tier(&world)->state, AGENT_TIER_SLOW);
    sim_file_slow(world.rig->node, RIG_DRIVE, 1);
    rig_run(world.rig, 5000 * RIG_MS);
    assert_int_equal(tier(&world)->state, AGENT_TIER_UP);
    assert_int_equal(load(&world, 5), ICMS_SOURCE_LOCAL);
    world_free(&world);
}

static void a_dead_drive_costs_no_block(void **state)
{
    struct world world = world_new();

    fill(&world);
    sim_disk_dead(world.rig->node, RIG_DRIVE, true);
    for (int round = 0; round < 3; round++)
        load_all(&world, 1, 4 * SLOTS);
    assert_int_equal(tier(&world)->state, AGENT_TIER_DOWN);
    assert_int_equal(tier(&world)->promoted, 0);
    assert_int_equal(load(&world, 1), ICMS_SOURCE_POD);
    world_free(&world);
}

static void a_full_drive_costs_no_block(void **state)
{
    struct world world = world_new();

    sim_disk_full(world.rig->node, RIG_DRIVE, true);
    load_all(&world, 1, 4 * SLOTS);
    assert_int_equal(tier(&world)->demoted, 0);
    assert_true(tier(&world)->failed_writes + tier(&world)->shed > 0);
    sim_disk_full(world.rig->node, RIG_DRIVE, false);
    rig_run(world.rig, 10000 * RIG_MS);
    load_all(&world, 1, 4 * SLOTS);
    assert_true(tier(&world)->demoted > 0);
    world_free(&world);
}

/* Something that is no store lies where the drive should be. */
static void foreign_prepare(struct sim_node *node)
{
    struct loop_file_opts opts = {.path = RIG_DRIVE, .create = true, .write = true, .bytes = DRIVE};
    struct loop_file *file;
    static uint8_t page[4096] = {'x'};

    assert_int_equal(loop_file_open(sim_node_env(node), &opts, NULL, &file), ICMS_OK);
    assert_int_equal(loop_file_write_now(file, 0, page, sizeof(page)), ICMS_OK);
    loop_file_close(&file);
}

static void a_foreign_drive_is_left_alone(void **state)
{
    struct world world = world_with((struct rig_opts){.prepare = foreign_prepare});
    uint64_t bytes;

    load_all(&world, 1, 2 * SLOTS);
    assert_int_equal(load(&world, 1), ICMS_SOURCE_POD);
    assert_int_equal(tier(&world)->state, AGENT_TIER_DOWN);
    assert_non_null(strstr(tier(&world)->why, RIG_DRIVE));
    assert_int_equal(sim_file_medium(world.rig->node, RIG_DRIVE, &bytes)[0], 'x');
    world_free(&world);
}

/* ---- restarts ------------------------------------------------------------------------------- */

static void restart(struct world *world, bool drained)
{
    rig_client_free(world->client);
    rig_restart(world->rig, drained);
    world->client = rig_client_new(world->rig);
}

static void a_drive_that_was_closed_is_trusted(void **state)
{
    struct world world = world_new();

    fill(&world);
    for (int i = 0; i < 2; i++) {
        restart(&world, true);
        assert_int_equal(tier(&world)->state, AGENT_TIER_UP);
        assert_null(tier(&world)->emptied);
        for (uint32_t n = 1; n <= 8; n++)
            assert_int_equal(load(&world, n), ICMS_SOURCE_LOCAL);
    }
    world_free(&world);
}

static void a_drive_that_was_not_closed_is_formatted(void **state)
{
    struct world world = world_new();

    fill(&world);
    restart(&world, false);
    assert_int_equal(tier(&world)->state, AGENT_TIER_UP);
    assert_non_null(tier(&world)->emptied);
    assert_int_equal(tier(&world)->blocks, 0);
    for (uint32_t n = 1; n <= 8; n++)
        assert_int_equal(load(&world, n), ICMS_SOURCE_POD);
    restart(&world, false); /* it was clean in between, for nobody */
    assert_non_null(tier(&world)->emptied);
    fill(&world);
    restart(&world, true); /* and is used again */
    assert_null(tier(&world)->emptied);
    assert_int_equal(load(&world, 1), ICMS_SOURCE_LOCAL);
    world_free(&world);
}

/* Neither a start that fails afterwards does, nor an agent without a pod, which would leave other
 * values there. */
static void only_an_agent_that_starts_beside_a_pod_uses_it(void **state)
{
    struct world world = world_new();
    struct agent_rig *rig = world.rig;
    struct agent_opts alone = rig->opts;
    struct err_why why = {""};

    fill(&world);
    rig_client_free(world.client);
    while (!agent_drain(rig->agent, 0))
        rig_run(rig, RIG_MS);
    agent_stop(rig->agent);
    agent_free(&rig->agent);
    assert_int_equal(agent_new(sim_node_env(rig->node), &rig->opts, &why, &rig->agent), ICMS_OK);
    agent_free(&rig->agent);
    alone.enclosure_count = 0;
    assert_int_equal(agent_new(sim_node_env(rig->node), &alone, &why, &rig->agent), ICMS_FOREIGN);
    assert_non_null(strstr(why.text, "of an agent beside a pod; use another path"));
    assert_int_equal(agent_new(sim_node_env(rig->node), &rig->opts, &why, &rig->agent), ICMS_OK);
    assert_int_equal(agent_start(rig->agent, &why), ICMS_OK);
    rig_run(rig, 500 * RIG_MS);
    world.client = rig_client_new(rig);
    assert_null(tier(&world)->emptied);
    for (uint32_t n = 1; n <= 8; n++)
        assert_int_equal(load(&world, n), ICMS_SOURCE_LOCAL);
    restart(&world, false);
    assert_non_null(tier(&world)->emptied);
    world_free(&world);
}

/* What it misses while it is down it would return after the next start. */
static void a_drive_that_was_down_is_formatted(void **state)
{
    struct world world = world_new();

    fill(&world);
    sim_disk_dead(world.rig->node, RIG_DRIVE, true);
    for (int round = 0; round < 3 && tier(&world)->state != AGENT_TIER_DOWN; round++)
        load_all(&world, 1, 4 * SLOTS);
    assert_int_equal(tier(&world)->state, AGENT_TIER_DOWN);
    assert_int_equal(
        rig_wait(world.client, rig_put(world.client, 0, 1, VALUE - 100, SHM_FLAG_ON_FLASH, TIMEOUT))
            ->status,
        ICMS_OK);
    assert_int_equal(
        rig_wait(world.client, rig_op(world.client, SHM_OP_REMOVE, 0, 2, TIMEOUT))->status,
        ICMS_OK);
    sim_disk_dead(world.rig->node, RIG_DRIVE, false);
    restart(&world, true);
    assert_int_equal(tier(&world)->state, AGENT_TIER_UP);
    assert_int_equal(load_bytes(&world, 1, VALUE - 100), ICMS_SOURCE_POD);
    assert_int_equal(load(&world, 2), -1);
    assert_non_null(tier(&world)->emptied);
    world_free(&world);
}

/* Deletions that are answered are on flash before the drive is clean. */
static void a_clean_drive_has_what_was_deleted_on_flash(void **state)
{
    struct world world = world_new();

    fill(&world);
    for (uint32_t n = 1; n <= 8; n++)
        assert_int_equal(
            rig_wait(world.client, rig_op(world.client, SHM_OP_REMOVE, 0, n, TIMEOUT))->status,
            ICMS_OK);
    restart(&world, true);
    assert_null(tier(&world)->emptied);
    for (uint32_t n = 1; n <= 8; n++)
        assert_int_equal(load(&world, n), -1);
    world_free(&world);
}

static void a_drive_of_another_pod_is_formatted(void **state)
{
    struct world world = world_new();

    fill(&world);
    world.rig->enclosures[0].uuid.bytes[5] ^= 0x55;
    restart(&world, true);
    assert_non_null(tier(&world)->emptied);
    assert_int_equal(load(&world, 1), ICMS_SOURCE_POD);
    world_free(&world);
}

/* Of an agent without a pod, which has the only copy there, or of an enclosure. */
static void others_prepare(struct sim_node *node)
{
    struct store_opts store;

    store_opts_init(&store);
    store.path = RIG_DRIVE;
    store.bytes = DRIVE;
    store.segment_bytes = 256 << 10;
    store.value_bytes_max = 65536;
    assert_int_equal(store_format(sim_node_env(node), &store, false, NULL), ICMS_OK);
}

static void a_drive_that_is_not_of_an_agent_with_a_pod_is_left_alone(void **state)
{
    struct world world = world_with((struct rig_opts){.prepare = others_prepare});

    load_all(&world, 1, 2 * SLOTS);
    assert_int_equal(tier(&world)->state, AGENT_TIER_DOWN);
    assert_null(tier(&world)->emptied);
    assert_non_null(strstr(tier(&world)->why, "erase it"));
    world_free(&world);
}

/* ---- writers -------------------------------------------------------------------------------- */

static void a_removed_block_does_not_come_back(void **state)
{
    struct world world = world_new();

    fill(&world);
    assert_int_equal(
        rig_wait(world.client, rig_op(world.client, SHM_OP_REMOVE, 0, 1, TIMEOUT))->status,
        ICMS_OK);
    assert_int_equal(load(&world, 1), -1);
    assert_int_equal(tier(&world)->forgotten, 1);
    world_free(&world);
}

static void a_remove_that_the_drive_does_not_answer_fails_in_time(void **state)
{
    struct world world = world_new();
    uint64_t begun_ns;

    fill(&world);
    sim_file_slow(world.rig->node, RIG_DRIVE, 1000000);
    begun_ns = rig_now_ns(world.rig);
    assert_int_equal(
        rig_wait(world.client, rig_op(world.client, SHM_OP_REMOVE, 0, 1, 1000 * RIG_MS))->status,
        ICMS_PEER_DOWN);
    assert_true(rig_now_ns(world.rig) - begun_ns < 1000 * RIG_MS);
    assert_int_equal(load(&world, 1), -1); /* it is being forgotten, and the pod has */
    world_free(&world);
}

/* As many as clients like: they wait for each other, and the drive is none the worse. */
static void many_removes_at_a_time_are_done(void **state)
{
    struct world world = world_new();
    uint64_t tags[100];

    for (uint32_t n = 4 * SLOTS + 1; n <= 100; n++)
        rig_flash(world.rig, 0, 0, n, VALUE);
    load_all(&world, 1, 100);
    load_all(&world, 1, SLOTS + 1); /* all are on the drive */
    sim_file_slow(world.rig->node, RIG_DRIVE, 100);
    for (uint32_t i = 0; i < 100; i++)
        tags[i] = rig_op(world.client, SHM_OP_REMOVE, 0, 1 + i, TIMEOUT);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(rig_wait(world.client, tags[i])->status, ICMS_OK);
    assert_int_equal(tier(&world)->state, AGENT_TIER_UP);
    assert_true(tier(&world)->forgotten > 64);
    world_free(&world);
}

/* It answers no deletion: puts go on, and it is not used any more. */
static void a_drive_that_deletes_nothing_is_down(void **state)
{
    struct world world = world_new();

    fill(&world);
    sim_file_slow(world.rig->node, RIG_DRIVE, 1000000);
    for (uint32_t i = 0; i < AGENT_TIER_FORGETS + 10; i++)
        assert_int_equal(
            rig_wait(world.client, rig_put(world.client, 0, 1, VALUE, 0, 5000 * RIG_MS))->status,
            ICMS_OK);
    assert_int_equal(tier(&world)->state, AGENT_TIER_DOWN);
    assert_non_null(strstr(tier(&world)->why, "deletions"));
    world_free(&world);
}

static void a_replaced_block_is_the_new_one(void **state)
{
    static const uint8_t flags[] = {0, SHM_FLAG_ON_FLASH};

    for (int i = 0; i < 2; i++) {
        struct world world = world_new();

        fill(&world);
        assert_int_equal(
            rig_wait(world.client, rig_put(world.client, 0, 1, VALUE - 100, flags[i], TIMEOUT))
                ->status,
            ICMS_OK);
        rig_run(world.rig, 100 * RIG_MS);
        load_all(&world, 2, 2 * SLOTS); /* out of memory */
        assert_int_not_equal(load_bytes(&world, 1, VALUE - 100), ICMS_SOURCE_DRAM);
        world_free(&world);
    }
}

static void a_reset_volume_has_nothing_there(void **state)
{
    struct world world = world_new();
    struct agent_identity identities[RIG_VOLUMES] = {0};
    struct err_why why = {""};

    fill(&world);
    for (int i = 0; i < RIG_VOLUMES; i++)
        identities[i] = (struct agent_identity){world.rig->volumes[i].uuid, 0};
    identities[0].uuid.bytes[3] ^= 0x55;
    world.rig->identities = identities;
    assert_int_equal(rig_pod(world.rig, 1, world.rig->enclosures, 1, &why), ICMS_OK);
    rig_run(world.rig, 100 * RIG_MS);
    rig_identify(world.client);
    for (uint32_t n = 1; n <= SLOTS; n++)
        assert_int_equal(load(&world, n), -1);
    assert_int_equal(tier(&world)->promoted, 0);
    identities[0].uuid = world.rig->volumes[0].uuid; /* what it was: known again */
    assert_int_equal(rig_pod(world.rig, 2, world.rig->enclosures, 1, &why), ICMS_OK);
    rig_run(world.rig, 100 * RIG_MS);
    rig_identify(world.client);
    assert_int_equal(load(&world, 1), ICMS_SOURCE_LOCAL);
    world_free(&world);
}

/* Without the pod loads of two volumes wait for the drive; the pod has one of them no more. */
static void loads_of_a_volume_that_is_gone_hold_no_others(void **state)
{
    enum { BLOCK = 4000, GONE = 3 * AGENT_TIER_IOS, LEFT = 2 * AGENT_TIER_IOS };
    const struct rig_opts opts = {
        .enclosures = 1, .slots = GONE, .own_drive_bytes = DRIVE, .own_drive_share = 1};
    struct world world = {.rig = rig_new(&opts)};
    struct agent_identity identities[RIG_VOLUMES] = {0};
    uint64_t tags[2][GONE], begun_ns;
    struct err_why why = {""};

    world.client = rig_client_new(world.rig);
    for (uint32_t n = 0; n < GONE + LEFT; n++)
        assert_int_equal(rig_wait(world.client, rig_put(world.client, n >= GONE, n, BLOCK,
                                                        SHM_FLAG_ON_FLASH, TIMEOUT))
                             ->status,
                         ICMS_OK);
    assert_int_equal(tier(&world)->stored, GONE + LEFT);
    restart(&world, true); /* they are not in memory */
    sim_net_cut(world.rig->sim, world.rig->node, world.rig->fake_node[0], true);
    rig_run(world.rig, 3000 * RIG_MS);
    sim_file_slow(world.rig->node, RIG_DRIVE, 1000);
    begun_ns = rig_now_ns(world.rig);
    for (uint32_t n = 0; n < GONE; n++)
        tags[0][n] = rig_get(world.client, 0, n, SHM_SLOT_NONE, 20000 * RIG_MS);
    for (uint32_t n = 0; n < LEFT; n++)
        tags[1][n] = rig_get(world.client, 1, GONE + n, SHM_SLOT_NONE, 20000 * RIG_MS);
    rig_run(world.rig, RIG_MS);
    for (int i = 1; i < RIG_VOLUMES; i++)
        identities[i].uuid = world.rig->volumes[i].uuid;
    world.rig->identities = identities;
    assert_int_equal(rig_pod(world.rig, 1, world.rig->enclosures, 1, &why), ICMS_OK);
    for (uint32_t n = 0; n < LEFT; n++)
        assert_int_equal(rig_wait(world.client, tags[1][n])->status, ICMS_OK);
    for (uint32_t n = 0; n < GONE; n++)
        assert_int_equal(rig_wait(world.client, tags[0][n])->status, ICMS_MISS);
    assert_true(rig_now_ns(world.rig) - begun_ns < 10000 * RIG_MS);
    assert_int_equal(tier(&world)->promoted, LEFT);
    world_free(&world);
}

/* By volume, in numbers and in what users read; in all what the drive has. */
static void a_volume_has_a_part_of_the_drive(void **state)
{
    static char text[1 << 16];
    struct world world = world_new();
    const struct agent_stats *stats;
    char has[96];

    fill(&world);
    stats = rig_stats(world.rig);
    assert_true(stats->volumes[0].drive_blocks >= SLOTS / 2);
    assert_true(stats->volumes[0].drive_bytes >= stats->volumes[0].drive_blocks * VALUE);
    assert_int_equal(stats->volumes[0].drive_blocks, stats->tier.blocks);
    assert_int_equal(stats->volumes[0].drive_bytes, stats->tier.bytes);
    assert_int_equal(stats->volumes[1].drive_blocks + stats->volumes[1].drive_bytes, 0);
    assert_true(agent_status(world.rig->agent, text, sizeof(text)) < sizeof(text));
    (void)snprintf(has, sizeof(has), "\"local_blocks\":%llu,\"local_bytes\":%llu",
                   (unsigned long long)stats->volumes[0].drive_blocks,
                   (unsigned long long)stats->volumes[0].drive_bytes);
    assert_non_null(strstr(text, has));
    (void)snprintf(has, sizeof(has), "\"evicted\":%llu,\"evicted_for\":{\"space\":%llu,",
                   (unsigned long long)stats->volumes[0].arena_evictions,
                   (unsigned long long)stats->volumes[0].arena_evicted[AGENT_EVICTED_SPACE]);
    assert_non_null(strstr(text, has));
    assert_true(stats->volumes[0].arena_evicted[AGENT_EVICTED_SPACE] >= SLOTS / 2);
    world_free(&world);
}

static void a_write_budget_is_kept(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_day = 1 << 20});

    load_all(&world, 1, 4 * SLOTS);
    load_all(&world, 1, 4 * SLOTS);
    assert_true(tier(&world)->demoted_bytes <= 1 << 20);
    assert_true(tier(&world)->refused > 0);
    world_free(&world);
}

static void a_damaged_block_comes_from_the_pod(void **state)
{
    struct world world = world_new();
    uint64_t bytes;
    uint8_t *medium;

    fill(&world);
    medium = sim_file_medium(world.rig->node, RIG_DRIVE, &bytes);
    for (uint64_t at = 65536; at + 4096 <= bytes; at += 4096) /* no value is whole */
        medium[at + 1000] ^= 1;
    assert_int_equal(load(&world, 1), ICMS_SOURCE_POD);
    assert_int_equal(tier(&world)->failed_reads, 1);
    world_free(&world);
}

static void a_block_with_a_bad_trailer_is_forgotten(void **state)
{
    struct world world = world_new();

    fill(&world);
    assert_int_equal(fault_arm("agent.tier:1:fail", NULL), ICMS_OK);
    assert_int_equal(load(&world, 1), ICMS_SOURCE_POD);
    rig_run(world.rig, 100 * RIG_MS);
    assert_int_equal(tier(&world)->forgotten, 1);
    assert_int_equal(rig_stats(world.rig)->checksum_errors, 1);
    world_free(&world);
}

/* Who asks for it judges it. */
static void a_block_of_another_version_stays(void **state)
{
    struct world world = world_new();
    struct key key;
    uint8_t *trailer;
    le32 crc;

    rig_key(1, &key);
    trailer = fake_target_find(world.rig->fake[0], 1, &key)->data + VALUE;
    trailer[4]++;
    crc = le32_of(crc32c(trailer, LIMIT_TRAILER_BYTES - sizeof(crc)));
    memcpy(trailer + LIMIT_TRAILER_BYTES - sizeof(crc), &crc, sizeof(crc));
    fill(&world);
    assert_int_equal(load(&world, 1), ICMS_SOURCE_LOCAL);
    rig_run(world.rig, 100 * RIG_MS);
    assert_int_equal(tier(&world)->forgotten, 0);
    assert_int_equal(tier(&world)->failed_reads, 0);
    assert_int_equal(rig_stats(world.rig)->checksum_errors, 0);
    world_free(&world);
}

/* ---- exclusive ------------------------------------------------------------------------------ */

static icms_err put(struct world *world, uint32_t n, uint8_t flags)
{
    return rig_wait(world->client, rig_put(world->client, 0, n, VALUE, flags, TIMEOUT))->status;
}

static icms_err flush(struct world *world)
{
    return rig_wait(world->client, rig_op(world->client, SHM_OP_FLUSH, 0, 0, TIMEOUT))->status;
}

static bool pod_has(struct world *world, uint32_t n)
{
    struct key key;

    rig_key(n, &key);
    return fake_target_find(world->rig->fake[0], 1, &key) != NULL;
}

static void an_exclusive_block_is_on_the_drive_alone(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_share = 1});

    for (uint32_t n = 100; n < 100 + 2 * SLOTS; n++)
        assert_int_equal(put(&world, n, n % 2 == 0 ? SHM_FLAG_ON_FLASH : 0), ICMS_OK);
    assert_int_equal(flush(&world), ICMS_OK);
    assert_int_equal(tier(&world)->stored, 2 * SLOTS);
    for (uint32_t n = 100; n < 100 + 2 * SLOTS; n++)
        assert_false(pod_has(&world, n));
    assert_int_equal(load(&world, 100), ICMS_SOURCE_LOCAL);
    load_all(&world, 1, 2 * SLOTS); /* the pod's: evictions write nothing */
    assert_int_equal(tier(&world)->demoted, 0);
    assert_int_equal(load(&world, 101), ICMS_SOURCE_LOCAL);
    assert_int_equal(put(&world, 101, SHM_FLAG_IF_ABSENT), ICMS_EXISTS);
    load_all(&world, 1, 2 * SLOTS);
    assert_int_equal(put(&world, 101, SHM_FLAG_IF_ABSENT), ICMS_EXISTS);
    world_free(&world);
}

static void a_share_of_the_runs_is_exclusive(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_share = 0.5});
    uint32_t pod = 0;

    for (uint32_t n = 100; n < 300; n++)
        assert_int_equal(put(&world, n, SHM_FLAG_ON_FLASH), ICMS_OK);
    for (uint32_t n = 100; n < 300; n++)
        pod += pod_has(&world, n);
    assert_int_equal(pod + tier(&world)->stored, 200);
    assert_true(pod > 60 && pod < 140);
    world_free(&world);
}

static void exclusive_stores_need_the_pod(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_share = 1});

    assert_int_equal(put(&world, 100, SHM_FLAG_ON_FLASH), ICMS_OK);
    sim_net_cut(world.rig->sim, world.rig->node, world.rig->fake_node[0], true);
    rig_run(world.rig, 3000 * RIG_MS);
    assert_int_equal(put(&world, 101, SHM_FLAG_ON_FLASH), ICMS_PEER_DOWN);
    assert_int_equal(put(&world, 100, SHM_FLAG_IF_ABSENT), ICMS_EXISTS);
    assert_int_equal(tier(&world)->stored, 1);
    world_free(&world);
}

static icms_err put_bytes(struct world *world, uint32_t n, uint32_t bytes, uint8_t flags)
{
    return rig_wait(world->client, rig_put(world->client, 0, n, bytes, flags, TIMEOUT))->status;
}

/* When the drive evicts, or is formatted, what the pod has comes: that must not be older. */
static void an_exclusive_store_leaves_no_older_value_in_the_pod(void **state)
{
    static const uint8_t flags[] = {0, SHM_FLAG_ON_FLASH};

    for (int i = 0; i < 2; i++) {
        struct world world = world_with((struct rig_opts){.own_drive_share = 1});

        assert_int_equal(put_bytes(&world, 1, 500, flags[i]), ICMS_OK);
        assert_int_equal(flush(&world), ICMS_OK);
        load_all(&world, 2, 2 * SLOTS);
        assert_true(load_bytes(&world, 1, 500) >= 0);
        restart(&world, false);
        assert_true(load_bytes(&world, 1, 500) >= 0);
        world_free(&world);
    }
}

static void what_the_pod_has_is_not_absent(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_share = 1});

    assert_int_equal(put_bytes(&world, 1, 500, SHM_FLAG_IF_ABSENT), ICMS_EXISTS);
    assert_int_equal(load(&world, 1), ICMS_SOURCE_POD);
    assert_int_equal(put(&world, 100, SHM_FLAG_IF_ABSENT), ICMS_OK);
    assert_int_equal(tier(&world)->stored, 1);
    world_free(&world);
}

/* The drive is late with it, and meanwhile another server stores the key. */
static void what_was_not_stored_does_not_come_later(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_share = 1});
    uint64_t tag;

    sim_file_slow(world.rig->node, RIG_DRIVE, 20000);
    tag = rig_put(world.client, 0, 100, 500, SHM_FLAG_IF_ABSENT, TIMEOUT);
    rig_run(world.rig, 100 * RIG_MS);
    rig_flash(world.rig, 0, 0, 100, VALUE);
    assert_int_equal(rig_wait(world.client, tag)->status, ICMS_EXISTS);
    sim_file_slow(world.rig->node, RIG_DRIVE, 1);
    rig_run(world.rig, 30000 * RIG_MS);
    assert_int_equal(load(&world, 100), ICMS_SOURCE_POD);
    world_free(&world);
}

/* ---- suspects ------------------------------------------------------------------------------- */

/* It is not answered. */
static void suspect(struct world *world, uint32_t n)
{
    (void)rig_op(world->client, SHM_OP_SUSPECT, 0, n, TIMEOUT);
    rig_run(world->rig, 200 * RIG_MS);
}

/* The only copy is read before it is called bad, whoever says that it is. */
static void a_good_block_that_is_suspected_stays(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_share = 1});

    assert_int_equal(put(&world, 100, SHM_FLAG_ON_FLASH), ICMS_OK);
    load_all(&world, 1, 2 * SLOTS);
    suspect(&world, 100);
    assert_int_equal(tier(&world)->forgotten, 0);
    load_all(&world, 1, 2 * SLOTS);
    assert_int_equal(load(&world, 100), ICMS_SOURCE_LOCAL);
    world_free(&world);
}

static void a_bad_block_that_is_suspected_goes(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_share = 1});

    assert_int_equal(put(&world, 100, SHM_FLAG_ON_FLASH), ICMS_OK);
    load_all(&world, 1, 2 * SLOTS);
    assert_int_equal(fault_arm("agent.tier:1:fail", NULL), ICMS_OK);
    suspect(&world, 100);
    rig_run(world.rig, 100 * RIG_MS);
    assert_int_equal(tier(&world)->forgotten, 1);
    assert_int_equal(load(&world, 100), -1);
    world_free(&world);
}

/* A block is replaced while its record is read and found bad. */
static void what_replaced_a_bad_block_stays(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_share = 1});
    uint64_t get, store;

    assert_int_equal(put(&world, 100, SHM_FLAG_ON_FLASH), ICMS_OK);
    load_all(&world, 1, 2 * SLOTS);
    assert_int_equal(fault_arm("agent.tier:1:fail", NULL), ICMS_OK);
    sim_file_slow(world.rig->node, RIG_DRIVE, 100);
    get = rig_get(world.client, 0, 100, SHM_SLOT_NONE, TIMEOUT);
    store = rig_put(world.client, 0, 100, VALUE - 100, SHM_FLAG_ON_FLASH, TIMEOUT);
    assert_int_equal(rig_wait(world.client, store)->status, ICMS_OK);
    assert_non_null(rig_wait(world.client, get));
    rig_run(world.rig, 5000 * RIG_MS);
    sim_file_slow(world.rig->node, RIG_DRIVE, 1);
    load_all(&world, 1, 4 * SLOTS);
    assert_int_equal(load_bytes(&world, 100, VALUE - 100), ICMS_SOURCE_LOCAL);
    world_free(&world);
}

static void what_the_drive_does_not_take_goes_to_the_pod(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_share = 1});

    assert_int_equal(put(&world, 100, SHM_FLAG_ON_FLASH), ICMS_OK);
    sim_file_slow(world.rig->node, RIG_DRIVE, 1000000);
    assert_int_equal(put(&world, 101, SHM_FLAG_ON_FLASH), ICMS_OK); /* late */
    assert_true(pod_has(&world, 101));
    assert_int_not_equal(flush(&world), ICMS_OK); /* 100 is not safe, and that is said */
    world_free(&world);
}

static void a_flush_says_once_that_the_drive_failed(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_share = 1});

    assert_int_equal(put(&world, 100, SHM_FLAG_ON_FLASH), ICMS_OK);
    sim_disk_dead(world.rig->node, RIG_DRIVE, true);
    for (uint32_t n = 102; n < 102 + 2 * SLOTS; n++) {
        assert_int_equal(put(&world, n, SHM_FLAG_ON_FLASH), ICMS_OK);
        assert_true(pod_has(&world, n));
    }
    assert_int_equal(tier(&world)->state, AGENT_TIER_DOWN);
    assert_int_not_equal(flush(&world), ICMS_OK); /* and it is lost: told once */
    assert_int_equal(flush(&world), ICMS_OK);
    world_free(&world);
}

static void a_replaced_exclusive_block_is_the_new_one(void **state)
{
    struct world world = world_with((struct rig_opts){.own_drive_share = 1});

    assert_int_equal(put(&world, 100, SHM_FLAG_ON_FLASH), ICMS_OK);
    assert_int_equal(
        rig_wait(world.client, rig_put(world.client, 0, 100, 500, SHM_FLAG_ON_FLASH, TIMEOUT))
            ->status,
        ICMS_OK);
    load_all(&world, 1, 2 * SLOTS);
    assert_int_equal(load_bytes(&world, 100, 500), ICMS_SOURCE_LOCAL);
    assert_int_equal(
        rig_wait(world.client, rig_op(world.client, SHM_OP_REMOVE, 0, 100, TIMEOUT))->status,
        ICMS_OK);
    assert_int_equal(load(&world, 100), -1);
    world_free(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evicted_blocks_that_were_read_come_from_the_drive),
        cmocka_unit_test(a_block_on_the_drive_is_not_written_again),
        cmocka_unit_test(what_nobody_read_is_not_written),
        cmocka_unit_test(exists_knows_what_the_drive_has),
        cmocka_unit_test(without_the_pod_the_drive_answers),
        cmocka_unit_test(without_the_pod_loads_wait_for_the_drive),
        cmocka_unit_test(a_late_drive_does_not_eat_the_deadline),
        cmocka_unit_test(what_the_drive_is_late_with_is_not_absent),
        cmocka_unit_test(a_slow_drive_is_used_again),
        cmocka_unit_test(a_dead_drive_costs_no_block),
        cmocka_unit_test(a_full_drive_costs_no_block),
        cmocka_unit_test(a_foreign_drive_is_left_alone),
        cmocka_unit_test(a_drive_that_was_closed_is_trusted),
        cmocka_unit_test(a_drive_that_was_not_closed_is_formatted),
        cmocka_unit_test(only_an_agent_that_starts_beside_a_pod_uses_it),
        cmocka_unit_test(a_drive_that_was_down_is_formatted),
        cmocka_unit_test(a_clean_drive_has_what_was_deleted_on_flash),
        cmocka_unit_test(a_drive_of_another_pod_is_formatted),
        cmocka_unit_test(a_drive_that_is_not_of_an_agent_with_a_pod_is_left_alone),
        cmocka_unit_test(a_removed_block_does_not_come_back),
        cmocka_unit_test(a_remove_that_the_drive_does_not_answer_fails_in_time),
        cmocka_unit_test(many_removes_at_a_time_are_done),
        cmocka_unit_test(a_drive_that_deletes_nothing_is_down),
        cmocka_unit_test(a_replaced_block_is_the_new_one),
        cmocka_unit_test(a_reset_volume_has_nothing_there),
        cmocka_unit_test(loads_of_a_volume_that_is_gone_hold_no_others),
        cmocka_unit_test(a_volume_has_a_part_of_the_drive),
        cmocka_unit_test(a_write_budget_is_kept),
        cmocka_unit_test(a_damaged_block_comes_from_the_pod),
        cmocka_unit_test(a_block_with_a_bad_trailer_is_forgotten),
        cmocka_unit_test(a_block_of_another_version_stays),
        cmocka_unit_test(an_exclusive_block_is_on_the_drive_alone),
        cmocka_unit_test(a_share_of_the_runs_is_exclusive),
        cmocka_unit_test(exclusive_stores_need_the_pod),
        cmocka_unit_test(an_exclusive_store_leaves_no_older_value_in_the_pod),
        cmocka_unit_test(what_the_pod_has_is_not_absent),
        cmocka_unit_test(what_was_not_stored_does_not_come_later),
        cmocka_unit_test(a_good_block_that_is_suspected_stays),
        cmocka_unit_test(a_bad_block_that_is_suspected_goes),
        cmocka_unit_test(what_replaced_a_bad_block_stays),
        cmocka_unit_test(what_the_drive_does_not_take_goes_to_the_pod),
        cmocka_unit_test(a_flush_says_once_that_the_drive_failed),
        cmocka_unit_test(a_replaced_exclusive_block_is_the_new_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
