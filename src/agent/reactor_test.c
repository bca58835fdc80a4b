/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A key has one owner among the agent's reactors: its shard, its connections, its rings. What all
 * reactors do together is as much as one would do. On simulated machines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_rig.h"
#include "base/check.h"
#include "icms/icms.h"

#define BYTES 9000u
#define KEYS  120u
#define WAIT  (1000 * RIG_MS)

enum { KV, RAW };

static const struct rig_opts three = {
    .enclosures = 1, .loops = RIG_REACTORS, .slots = KEYS, .block_bytes = BYTES, .many = true};

static struct agent_rig *rig_up(struct rig_client **out_client)
{
    struct agent_rig *rig = rig_new(&three);

    *out_client = rig_client_new(rig);
    rig_run(rig, 100 * RIG_MS);
    return rig;
}

static void rig_down(struct agent_rig *rig, struct rig_client *client)
{
    rig_client_free(client);
    assert_int_equal(rig_stats(rig)->in_flight, 0);
    rig_free(rig);
}

static void put_all(struct rig_client *client, uint32_t volume)
{
    for (uint32_t n = 0; n < KEYS; n++)
        assert_int_equal(
            rig_wait(client, rig_put(client, volume, n, BYTES, SHM_FLAG_ON_FLASH, WAIT))->status,
            ICMS_OK);
}

/* Keys of the other reactors than this. */
static uint32_t key_not_of(const struct rig_client *client, uint32_t reactor)
{
    uint32_t n = 0;

    while (rig_reactor(client, KV, n) == reactor)
        n++;
    return n;
}

/* Four keys share a run in this rig. */
static void blocks_lie_in_the_shard_of_their_key_and_nowhere_else(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(&client);

    for (uint32_t volume = KV; volume <= RAW; volume++) {
        uint32_t count[RIG_REACTORS] = {0};

        put_all(client, volume);
        for (uint32_t n = 0; n < KEYS; n++) {
            uint32_t reactor = rig_reactor(client, volume, n);
            struct key key;

            rig_key(n, &key);
            count[reactor]++;
            for (uint32_t r = 0; r < RIG_REACTORS; r++)
                assert_int_equal(rig_arena_has(&client->shards[r][volume], &key), r == reactor);
            assert_true(rig_value_is(client, volume, n, BYTES,
                                     rig_wait(client, rig_get(client, volume, n, 0, WAIT))));
            rig_lease_give(client, 0);
            if (volume == KV)
                assert_int_equal(reactor, rig_reactor(client, volume, n / 4 * 4));
        }
        for (uint32_t r = 0; r < RIG_REACTORS; r++)
            assert_in_range(count[r], KEYS / 6, KEYS / 2);
        assert_int_equal(rig_stats(rig)->volumes[volume].slots_used, KEYS);
        assert_int_equal(rig_stats(rig)->volumes[volume].hits_dram, KEYS);
        assert_int_equal(rig_stats(rig)->volumes[volume].puts, KEYS);
    }
    assert_int_equal(rig->fake[0]->connects, RIG_REACTORS);
    rig_down(rig, client);
}

/* Else a block would be in two shards, and one of them would never be looked into. */
static void an_entry_in_the_rings_of_another_reactor_is_refused(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(&client);
    static const uint8_t ops[] = {SHM_OP_GET, SHM_OP_EXISTS, SHM_OP_REMOVE};
    uint32_t n = key_not_of(client, 0);
    struct key key;

    rig_key(n, &key);
    for (size_t i = 0; i < sizeof(ops); i++) {
        struct shm_submit entry = {
            .op = ops[i], .lease = SHM_SLOT_NONE, .key_length = key.length, .tag = 1 + i};

        memcpy(entry.key, key.bytes, sizeof(entry.key));
        client->next_tag = 2 + i;
        client->wanted[entry.tag] = 1;
        assert_true(shm_submit_push(&client->rings[0], &entry));
        rig_publish(client);
        assert_int_equal(rig_wait(client, entry.tag)->status, ICMS_INVALID);
    }
    rig_down(rig, client);
}

/* A flush has to wait for the stores of every shard. */
static void a_flush_waits_for_the_stores_of_all_reactors(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(&client);

    for (uint32_t r = 0; r < RIG_REACTORS; r++) {
        uint32_t n = 0;
        uint64_t flush;

        while (rig_reactor(client, KV, n) != r)
            n++;
        rig->fake[0]->hold = true;
        assert_int_equal(rig_wait(client, rig_put(client, KV, n, BYTES, 0, WAIT))->status, ICMS_OK);
        flush = rig_op(client, SHM_OP_FLUSH, KV, 0, WAIT);
        rig_run(rig, 100 * RIG_MS);
        rig_take(client);
        assert_int_equal(client->got[flush], 0);
        rig->fake[0]->hold = false;
        rig_on_fake(rig, 0, fake_target_release);
        assert_int_equal(rig_wait(client, flush)->status, ICMS_OK);
    }
    rig_down(rig, client);
}

/* Each answers for its own keys, and writes no byte for others'. */
static void a_batch_is_answered_by_the_owners_of_its_keys(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(&client);
    struct shm_submit entry = {.op = SHM_OP_EXISTS_MANY, .bytes = KEYS, .offset = 4096};
    uint8_t *memory = client->ring.staging + entry.offset;
    uint8_t *reasons = memory + KEYS * sizeof(struct shm_key);
    uint32_t commands;

    for (uint32_t n = 0; n < KEYS; n += 2)
        rig_flash(rig, 0, KV, n, BYTES);
    for (uint32_t n = 0; n < KEYS; n++)
        rig_put_key(memory, n, n);
    memset(reasons, 0xee, KEYS);
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_OK);
    for (uint32_t n = 0; n < KEYS; n++)
        assert_int_equal(reasons[n], n % 2 == 0 ? ICMS_MISS_NONE : ICMS_MISS_ABSENT);
    commands = rig->fake[0]->exist_manys;
    assert_int_equal(commands, RIG_REACTORS); /* none asks for others' keys */
    /* of one reactor alone: the other bytes stay */
    memset(reasons, 0xee, KEYS);
    entry.tag = client->next_tag++;
    client->wanted[entry.tag] = 1;
    assert_true(shm_submit_push(&client->rings[1], &entry));
    rig_publish(client);
    assert_int_equal(rig_wait(client, entry.tag)->status, ICMS_OK);
    for (uint32_t n = 0; n < KEYS; n++)
        assert_int_equal(reasons[n] == 0xee, rig_reactor(client, KV, n) != 1);
    rig_down(rig, client);
}

/* Its requests end and its leases go, at every reactor; another client takes its place. */
static void the_end_of_a_client_is_its_end_at_every_reactor(void **state)
{
    struct rig_client *client, *next;
    struct agent_rig *rig = rig_up(&client);

    for (uint32_t first = 0; first < 3 * KEYS; first += KEYS) {
        next = rig_client_new(rig);
        rig->fake[0]->hold = true;
        for (uint32_t n = 0; n < KEYS; n++)
            (void)rig_get(next, KV, first + n, n, 10 * WAIT);
        rig_run(rig, 50 * RIG_MS);
        assert_int_equal(rig_stats(rig)->in_flight, KEYS);
        rig_client_free(next);
        assert_int_equal(rig_stats(rig)->in_flight, 0);
        assert_int_equal(rig_stats(rig)->clients, 1);
        rig->fake[0]->hold = false;
        rig_on_fake(rig, 0, fake_target_release);
        rig_run(rig, 50 * RIG_MS);
        for (uint32_t n = 0; n < KEYS; n++)
            rig_flash(rig, 0, KV, first + n, BYTES);
        next = rig_client_new(rig);
        for (uint32_t n = 0; n < KEYS; n++)
            assert_int_equal(rig_wait(next, rig_get(next, KV, first + n, n, WAIT))->status,
                             ICMS_OK);
        assert_int_equal(rig_stats(rig)->volumes[KV].slots_leased, KEYS);
        rig_client_free(next);
        assert_int_equal(rig_stats(rig)->volumes[KV].slots_leased, 0);
    }
    rig_down(rig, client);
}

/* Associations are separate, and so are the verdicts; the status tells the worst of them. */
static void an_enclosure_is_excluded_by_each_reactor_for_itself(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(&client);
    struct err_why why = {""};

    assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_UP);
    assert_true(agent_ready(rig->agent, 0, &why));
    rig->fake[0]->silent = true;
    for (uint32_t r = 0; r < RIG_REACTORS; r++) {
        uint32_t n = 0;

        while (rig_reactor(client, KV, n) != r)
            n++;
        assert_int_equal(rig_wait(client, rig_get(client, KV, n, 0, WAIT))->status, ICMS_MISS);
        assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_EXCLUDED);
        if (r == 0) /* the others have not asked it yet */
            assert_int_equal(rig_stats(rig)->enclosures[0].excluded_count, 1);
        assert_false(agent_ready(rig->agent, 0, &why)); /* keys of this one all miss */
    }
    assert_int_equal(rig_stats(rig)->enclosures[0].excluded_count, RIG_REACTORS);
    rig->fake[0]->silent = false;
    rig_run(rig, 10000 * RIG_MS);
    assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_UP);
    rig_down(rig, client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_lie_in_the_shard_of_their_key_and_nowhere_else),
        cmocka_unit_test(an_entry_in_the_rings_of_another_reactor_is_refused),
        cmocka_unit_test(a_flush_waits_for_the_stores_of_all_reactors),
        cmocka_unit_test(a_batch_is_answered_by_the_owners_of_its_keys),
        cmocka_unit_test(the_end_of_a_client_is_its_end_at_every_reactor),
        cmocka_unit_test(an_enclosure_is_excluded_by_each_reactor_for_itself),
    };

    return cmocka_run_group_tests_name("agent-reactor", tests, NULL, NULL);
}
