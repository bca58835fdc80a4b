/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive of the agent's own with more to do than it has buffers: what only it has is waited for,
 * an answer is that of its own operation, and loads go before hints.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"

#define VALUE   60000u
#define SLOTS   128
#define LOADS   100 /* more than there are buffers */
#define TIMEOUT (2000 * RIG_MS)

static_assert(LOADS > AGENT_TIER_IOS && LOADS < SLOTS, "loads have memory, and wait for buffers");

struct world {
    struct agent_rig *rig;
    struct rig_client *client;
    uint64_t tags[LOADS];
};

static icms_err put(struct world *world, uint32_t n)
{
    return rig_wait(world->client, rig_put(world->client, 0, n, VALUE, SHM_FLAG_ON_FLASH, TIMEOUT))
        ->status;
}

/* Blocks 1 .. LOADS are on the drive alone, and not in memory. */
static struct world world_new(void)
{
    struct world world = {0};

    world.rig = rig_new(&(struct rig_opts){.seed = 11,
                                           .enclosures = 1,
                                           .slots = SLOTS,
                                           .own_drive_bytes = (uint64_t)64 << 20,
                                           .own_drive_share = 1});
    world.client = rig_client_new(world.rig);
    for (uint32_t n = 1; n <= LOADS + SLOTS; n++)
        assert_int_equal(put(&world, n), ICMS_OK);
    assert_int_equal(rig_stats(world.rig)->tier.stored, LOADS + SLOTS);
    return world;
}

static void world_free(struct world *world)
{
    rig_client_free(world->client);
    rig_free(world->rig);
}

static void loads_begin(struct world *world)
{
    for (uint32_t i = 0; i < LOADS; i++)
        world->tags[i] = rig_get(world->client, 0, 1 + i, SHM_SLOT_NONE, TIMEOUT);
}

static void loads_come(struct world *world)
{
    for (uint32_t i = 0; i < LOADS; i++)
        assert_int_equal(rig_wait(world->client, world->tags[i])->status, ICMS_OK);
    assert_int_equal(rig_stats(world->rig)->tier.passed, 0);
}

static void what_only_the_drive_has_waits_for_a_buffer(void **state)
{
    struct world world = world_new();

    (void)state;
    sim_file_slow(world.rig->node, RIG_DRIVE, 20);
    loads_begin(&world);
    loads_come(&world);
    world_free(&world);
}

/* It is no reason to say that it is not there. */
static void what_only_a_slow_drive_has_is_late_and_not_absent(void **state)
{
    struct world world = world_new();
    const struct shm_complete *answer;

    (void)state;
    sim_file_slow(world.rig->node, RIG_DRIVE, 1000000);
    for (uint32_t n = 1; n <= 6; n++) {
        answer = rig_wait(world.client, rig_get(world.client, 0, n, SHM_SLOT_NONE, 500 * RIG_MS));
        assert_int_equal(answer->status, ICMS_MISS);
        assert_int_equal(answer->reason, ICMS_MISS_DEADLINE);
    }
    assert_int_equal(rig_stats(world.rig)->tier.state, AGENT_TIER_SLOW);
    world_free(&world);
}

static void a_store_that_fails_while_loads_wait_goes_to_the_pod(void **state)
{
    struct world world = world_new();
    const struct agent_tier *tier = world.rig->agent->tier;
    const uint32_t n = 1000;
    struct key key;
    uint64_t tag;

    (void)state;
    sim_file_slow(world.rig->node, RIG_DRIVE, 20);
    tag = rig_put(world.client, 0, n, VALUE, SHM_FLAG_ON_FLASH, TIMEOUT);
    while (tier->writes == 0)
        assert_true(sim_step(world.rig->sim));
    loads_begin(&world);
    while (line_first(&tier->waiting) == NULL)
        assert_true(sim_step(world.rig->sim));
    assert_int_equal(tier->writes, 1);
    sim_disk_dead(world.rig->node, RIG_DRIVE, true);
    assert_int_equal(rig_wait(world.client, tag)->status, ICMS_OK);
    rig_key(n, &key);
    assert_non_null(fake_target_find(world.rig->fake[0], 1, &key)); /* the pod took it */
    world_free(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_only_the_drive_has_waits_for_a_buffer),
        cmocka_unit_test(what_only_a_slow_drive_has_is_late_and_not_absent),
        cmocka_unit_test(a_store_that_fails_while_loads_wait_goes_to_the_pod),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
