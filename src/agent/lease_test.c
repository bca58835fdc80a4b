/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots that are in use are not reused: leased by the agent or by the client itself, by one client
 * or several, and while their block is being stored. On simulated machines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_rig.h"
#include "icms/icms.h"

#define VALUE 9000u
#define SLOTS 8u
#define WAIT  (1000 * RIG_MS)

/* An agent with few slots, before one enclosure that has blocks 1 to 99 of both volumes. */
static struct agent_rig *machine_new(struct rig_client **out_client)
{
    struct agent_rig *rig =
        rig_new(&(struct rig_opts){.enclosures = 1, .slots = SLOTS, .block_bytes = VALUE});

    *out_client = rig_client_new(rig);
    for (uint32_t n = 1; n < 100; n++) {
        rig_flash(rig, 0, 0, n, VALUE);
        rig_flash(rig, 0, 1, n, VALUE);
    }
    return rig;
}

static void machine_free(struct agent_rig *rig, struct rig_client *client)
{
    rig_client_free(client);
    rig_free(rig);
}

/* Loads a block into the arena and leases it with this entry; its bytes. */
static const uint8_t *load(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t lease)
{
    const struct shm_complete *answer = rig_wait(client, rig_get(client, volume, n, lease, WAIT));

    assert_true(rig_value_is(client, volume, n, VALUE, answer));
    return rig_leased(client, volume, answer);
}

/* Loads blocks from first on, one at a time; how often one came into memory of this block. */
static uint32_t load_many(struct rig_client *client, uint32_t first, uint32_t count,
                          const uint8_t *block)
{
    uint32_t seen = 0;

    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *at = load(client, 0, first + i, 500);

        seen += at < block + VALUE && block < at + VALUE;
        rig_lease_give(client, 500);
    }
    return seen;
}

static bool block_is(const uint8_t *block, uint32_t n)
{
    static uint8_t value[VALUE];

    rig_value(n, VALUE, value);
    return memcmp(block, value, VALUE) == 0;
}

static void a_leased_slot_is_not_reused(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = machine_new(&client);
    const uint8_t *block = load(client, 0, 1, 7);

    assert_int_equal(load_many(client, 2, 40, block), 0);
    assert_true(block_is(block, 1));
    rig_lease_give(client, 7);
    assert_true(load_many(client, 50, 40, block) > 0); /* nothing else kept it */
    machine_free(rig, client);
}

/* A hit in the mapped arena: the agent learns of the lease only by its look at the table. */
static void a_slot_that_the_client_leased_is_not_reused(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = machine_new(&client);
    const uint8_t *block;
    uint32_t slot, bytes;
    uint64_t version;
    struct key key;

    block = load(client, 0, 1, 7);
    rig_lease_give(client, 7);
    rig_key(1, &key);
    atomic_store(&client->ring.lease_shards[31], 0);
    assert_true(shm_arena_lease(&client->arenas[0], &key, &client->ring.leases[31], &slot, &version,
                                &bytes));
    assert_ptr_equal(shm_arena_value(&client->arenas[0], slot, bytes), block);
    assert_int_equal(load_many(client, 2, 40, block), 0);
    assert_true(block_is(block, 1));
    rig_lease_give(client, 31);
    assert_true(load_many(client, 50, 40, block) > 0);
    machine_free(rig, client);
}

static void a_slot_is_in_use_until_the_last_client_gave_it_back(void **state)
{
    struct rig_client *client, *other;
    struct agent_rig *rig = machine_new(&client);
    const uint8_t *block;

    other = rig_client_new(rig);
    block = load(client, 0, 1, 7);
    assert_ptr_equal(load(other, 0, 1, 8), block);
    rig_lease_give(client, 7);
    assert_int_equal(load_many(client, 2, 30, block), 0);
    assert_true(block_is(block, 1));
    rig_client_free(other); /* it never gave its lease back */
    assert_true(load_many(client, 50, 40, block) > 0);
    machine_free(rig, client);
}

/* The block was removed, or written again, while somebody reads it: its slot stays until the lease
 * is given back. */
static void a_leased_slot_outlives_its_block(void **state)
{
    for (int again = 0; again < 2; again++) {
        struct rig_client *client;
        struct agent_rig *rig = machine_new(&client);
        const uint8_t *block = load(client, 0, 1, 7);
        uint64_t tag = again ? rig_put(client, 0, 1, VALUE / 2, 0, WAIT)
                             : rig_op(client, SHM_OP_REMOVE, 0, 1, WAIT);

        assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
        assert_int_equal(load_many(client, 2, 40, block), 0);
        assert_true(block_is(block, 1));
        rig_lease_give(client, 7);
        assert_true(load_many(client, 50, 40, block) > 0);
        machine_free(rig, client);
    }
}

static void a_lease_holds_nothing_in_another_volume(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = machine_new(&client);

    for (uint32_t i = 0; i < SLOTS; i++)
        (void)load(client, 0, 1 + i, i);
    assert_int_equal(rig_wait(client, rig_get(client, 0, 60, 20, WAIT / 10))->reason,
                     ICMS_MISS_SHED); /* they hold all of it */
    for (uint32_t i = 0; i < 5 * SLOTS; i++) {
        (void)load(client, 1, 1 + i, 100);
        rig_lease_give(client, 100);
    }
    machine_free(rig, client);
}

static void stores_release(struct fake_target *target)
{
    target->hold_stores = false;
    fake_target_release(target);
}

/* The network reads from its slot. */
static void a_slot_whose_block_is_being_stored_is_not_reused(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = machine_new(&client);
    const struct shm_complete *answer;
    const struct fake_block *block;
    static uint8_t value[VALUE];
    const uint8_t *memory;
    struct key key;

    rig->fake[0]->hold_stores = true;
    assert_int_equal(rig_wait(client, rig_put(client, 0, 1000, VALUE, 0, WAIT))->status, ICMS_OK);
    answer = rig_wait(client, rig_get(client, 0, 1000, 7, WAIT));
    assert_true(rig_value_is(client, 0, 1000, VALUE, answer));
    memory = rig_leased(client, 0, answer);
    rig_lease_give(client, 7);
    assert_int_equal(load_many(client, 1, 40, memory), 0);
    assert_true(block_is(memory, 1000));
    answer = rig_wait(client, rig_get(client, 0, 1000, 7, WAIT)); /* nor is it evicted */
    assert_true(rig_value_is(client, 0, 1000, VALUE, answer));
    assert_int_equal(answer->source, ICMS_SOURCE_DRAM);
    rig_lease_give(client, 7);
    rig_on_fake(rig, 0, stores_release);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_FLUSH, 0, 0, WAIT))->status, ICMS_OK);
    rig_key(1000, &key);
    block = fake_target_find(rig->fake[0], 1, &key);
    assert_non_null(block);
    rig_value(1000, VALUE, value);
    assert_memory_equal(block->data, value, VALUE);
    assert_true(load_many(client, 50, 40, memory) > 0);
    machine_free(rig, client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_leased_slot_is_not_reused),
        cmocka_unit_test(a_slot_that_the_client_leased_is_not_reused),
        cmocka_unit_test(a_slot_is_in_use_until_the_last_client_gave_it_back),
        cmocka_unit_test(a_leased_slot_outlives_its_block),
        cmocka_unit_test(a_lease_holds_nothing_in_another_volume),
        cmocka_unit_test(a_slot_whose_block_is_being_stored_is_not_reused),
    };

    return cmocka_run_group_tests_name("agent-lease", tests, NULL, NULL);
}
