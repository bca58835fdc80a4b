/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent with small enclosures, in the simulation: clients that die, stop or lie, fault points,
 * and everything at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_rig.h"
#include "base/check.h"
#include "base/fault_arm.h"

#define MS    RIG_MS
#define KV    0
#define BYTES 20000u

static const struct rig_opts one = {.enclosures = 1};
static const struct rig_opts two = {.enclosures = 2};

/* ---- clients that die, stop or lie ---------------------------------------------------------- */

static void a_client_that_dies_gives_everything_back(void **state)
{
    for (uint32_t loops = 1; loops <= 3; loops += 2) {
        struct rig_opts opts = {.enclosures = 2, .slots = 4, .block_bytes = BYTES, .loops = loops};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *other = rig_client_new(rig);

        for (uint32_t n = 0; n < 100; n++)
            for (uint32_t e = 0; e < 2; e++)
                rig_flash(rig, e, n % 2, n, BYTES);
        for (int round = 0; round < 3; round++) {
            struct rig_client *client = rig_client_new(rig);

            for (uint32_t n = 0; n < 4; n++)
                assert_int_equal(rig_wait(client, rig_get(client, n % 2, n, n, 0))->status,
                                 ICMS_OK);
            rig->fake[0]->hold = rig->fake[1]->hold = true;
            rig->fake[0]->hold_stores = rig->fake[1]->hold_stores = true;
            for (uint32_t n = 10; n < 40; n++) {
                (void)rig_get(client, n % 2, n, n, 20000 * MS);
                (void)rig_put(client, n % 2, n + 100, BYTES, SHM_FLAG_ON_FLASH, 20000 * MS);
                (void)rig_op(client, SHM_OP_FLUSH, KV, 0, 20000 * MS);
            }
            rig_run(rig, (uint64_t)(20 * round) * MS);
            rig_client_free(client);
            assert_int_equal(rig_stats(rig)->in_flight, 0);
            assert_int_equal(rig_stats(rig)->clients, 1);
            rig_on_fake(rig, 0, fake_target_release);
            rig_on_fake(rig, 1, fake_target_release);
            for (uint32_t n = 50; n < 60; n++) {
                assert_int_equal(rig_wait(other, rig_get(other, n % 2, n, 0, 0))->status, ICMS_OK);
                rig_lease_give(other, 0);
            }
        }
        rig_client_free(other);
        rig_free(rig);
    }
}

static void a_client_that_takes_no_answers_harms_nobody(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *lazy = rig_client_new(rig), *other = rig_client_new(rig);
    struct shm_submit entry = {.op = SHM_OP_EXISTS, .key_length = 1};
    uint32_t pushed = 0;

    for (int round = 0; round < 50; round++) {
        while (pushed < 3 * SHM_RING_ENTRIES && shm_submit_push(&lazy->ring, &entry))
            pushed++;
        rig_publish(lazy);
        rig_run(rig, 20 * MS);
    }
    assert_true(pushed > SHM_RING_ENTRIES + 1024 && pushed < 3 * SHM_RING_ENTRIES);
    assert_int_equal(rig_wait(other, rig_put(other, KV, 1, BYTES, 0, 100 * MS))->status, ICMS_OK);
    assert_int_equal(rig_wait(other, rig_get(other, KV, 1, 0, 100 * MS))->status, ICMS_OK);
    rig_client_free(lazy);
    assert_int_equal(rig_stats(rig)->in_flight, 0);
    rig_client_free(other);
    rig_free(rig);
}

/* For each cancel all requests of the client are looked at: a turn of the loop takes few. */
static void a_flood_of_cancels_is_taken_a_few_in_a_turn(void **state)
{
    enum { FLOOD = 1024, GETS = 500, FEW = 32 };
    const struct rig_opts opts = {.enclosures = 1, .slots = 2 * GETS, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig), *other = rig_client_new(rig);
    uint32_t taken, left = FLOOD;

    rig->fake[0]->hold = true;
    for (uint32_t n = 0; n < GETS; n++)
        (void)rig_get(client, KV, n, SHM_SLOT_NONE, 20000 * MS);
    rig_run(rig, 20 * MS);
    for (uint32_t i = 0; i < FLOOD; i++)
        rig_cancel(client, RIG_ANSWERS - 1); /* of no request */
    rig_publish(client);
    for (; left > 0; left -= taken) {
        taken = atomic_load(&client->ring.qpair->submit_head);
        assert_true(sim_step(rig->sim)); /* a turn at most */
        taken = atomic_load(&client->ring.qpair->submit_head) - taken;
        assert_in_range(taken, 0, FEW);
    }
    assert_int_equal(rig_stats(rig)->in_flight, GETS);
    assert_int_equal(rig_wait(other, rig_put(other, KV, GETS, BYTES, 0, 100 * MS))->status,
                     ICMS_OK);
    rig_client_free(client);
    assert_int_equal(rig_stats(rig)->in_flight, 0);
    rig_client_free(other);
    rig_free(rig);
}

static void random_bytes_in_rings_and_lease_tables_harm_nobody(void **state)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct rig_opts opts = {.enclosures = 2, .slots = 8, .loops = 1 + seed % 3, .seed = seed};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *liar = rig_client_new(rig), *other = rig_client_new(rig);

        for (int round = 0; round < 40; round++) {
            for (int i = 0; i < 100; i++) {
                uint64_t words[8];
                struct shm_submit entry;

                for (int w = 0; w < 8; w++)
                    words[w] = sim_random(rig->sim);
                memcpy(&entry, words, sizeof(entry));
                if (i % 4 != 0) { /* nearly right */
                    entry.op = (uint8_t)(1 + entry.op % 9);
                    entry.volume %= RIG_VOLUMES;
                    entry.key_length = (uint8_t)(1 + entry.key_length % 16);
                    entry.lease %= SHM_LEASES;
                    entry.deadline_ns = rig_now_ns(rig) + entry.deadline_ns % (300 * MS);
                    if (i % 2 == 0)
                        entry.bytes %= RIG_VALUE_BYTES;
                    if (i % 3 == 0)
                        entry.offset %= liar->ring.staging_bytes;
                }
                (void)shm_submit_push(
                    &liar->rings[sim_random(rig->sim) % liar->attached.reactor_count], &entry);
            }
            for (int i = 0; i < 20; i++) {
                uint64_t random = sim_random(rig->sim);

                atomic_store(&liar->ring.leases[random % SHM_LEASES], (uint32_t)(random >> 50));
                atomic_store(&liar->ring.lease_shards[random % SHM_LEASES],
                             (uint32_t)(random >> 20) % (4 * RIG_REACTORS));
            }
            for (uint32_t r = 0; r < liar->attached.reactor_count; r++) {
                (void)shm_submit_publish(&liar->rings[r]);
                loop_event_signal(liar->attached.agent_events[r]);
            }
            rig_run(rig, 10 * MS);
            for (uint32_t r = 0; r < liar->attached.reactor_count; r++)
                atomic_store(&liar->rings[r].qpair->complete_head, (uint32_t)sim_random(rig->sim));
        }
        for (uint32_t i = 0; i < SHM_LEASES; i++)
            atomic_store(&liar->ring.leases[i], 0);
        for (uint32_t n = 0; n < 20; n++) {
            assert_int_equal(rig_wait(other, rig_put(other, KV, n, BYTES, 0, 0))->status, ICMS_OK);
            assert_true(
                rig_value_is(other, KV, n, BYTES, rig_wait(other, rig_get(other, KV, n, 0, 0))));
            rig_lease_give(other, 0);
        }
        /* a tail that makes no sense is its end */
        for (int i = 0; i < 50; i++) {
            for (uint32_t r = 0; r < liar->attached.reactor_count; r++)
                atomic_store(&liar->rings[r].qpair->complete_head,
                             atomic_load(&liar->rings[r].qpair->complete_tail));
            rig_run(rig, 20 * MS);
        }
        atomic_store(&liar->ring.qpair->submit_tail, 0x80000000u);
        loop_event_signal(liar->attached.agent_events[0]);
        rig_run(rig, 50 * MS);
        assert_int_equal(rig_stats(rig)->clients_dropped, 1);
        rig_client_free(liar);
        assert_int_equal(rig_wait(other, rig_get(other, KV, 19, 0, 0))->status, ICMS_OK);
        rig_client_free(other);
        assert_int_equal(rig_stats(rig)->in_flight, 0);
        rig_free(rig);
    }
}

/* ---- fault points --------------------------------------------------------------------------- */

static void faults_are_answers_and_leave_nothing_behind(void **state)
{
    static const char *const faults[] = {"agent.slot:1:fail+", "agent.answer:1:fail+",
                                         "agent.put:1:fail+", "nvmf.host.start:1:fail+"};
    struct agent_rig *rig = rig_new(&two);
    struct rig_client *client = rig_client_new(rig);

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        assert_int_equal(fault_arm(faults[i], NULL), ICMS_OK);
        (void)rig_wait(client, rig_put(client, KV, 1, BYTES, SHM_FLAG_ON_FLASH, 100 * MS));
        (void)rig_wait(client, rig_get(client, KV, 2, 0, 100 * MS));
        (void)rig_wait(client, rig_op(client, SHM_OP_EXISTS, KV, 3, 100 * MS));
        (void)rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, 4, 100 * MS));
        assert_int_equal(fault_arm(NULL, NULL), ICMS_OK);
        rig_run(rig, 200 * MS);
        assert_int_equal(rig_stats(rig)->in_flight, 0);
        assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
        assert_int_equal(
            rig_wait(client, rig_put(client, KV, 1, BYTES, SHM_FLAG_ON_FLASH, 0))->status, ICMS_OK);
        assert_int_equal(rig_wait(client, rig_get(client, KV, 1, 0, 0))->status, ICMS_OK);
        rig_lease_give(client, 0);
    }
    rig_client_free(client);
    rig_free(rig);
}

/* ---- everything at once --------------------------------------------------------------------- */

/* Random work of three clients on agents with one to three loops while enclosures come and go:
 * every answer comes once and by its deadline, every hit is what was stored. */
static void hits_are_right_and_answers_on_time_while_enclosures_come_and_go(void **state)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct rig_opts opts = {
            .enclosures = 3, .slots = 12, .loops = 1 + seed % 3, .seed = 100 + seed};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *clients[3];
        uint64_t hits = 0, asked = 0;

        for (int i = 0; i < 3; i++)
            clients[i] = rig_client_new(rig);
        for (int round = 0; round < 150; round++) {
            struct rig_client *client = clients[round % 3];
            uint64_t tags[12], began_ns = rig_now_ns(rig);
            uint32_t keys[12], kinds[12];

            for (uint32_t i = 0; i < 12; i++) {
                uint64_t random = sim_random(rig->sim);
                uint32_t volume = random & 1;

                keys[i] = (uint32_t)(random >> 8) % 60 * 2 + volume;
                kinds[i] = (uint32_t)(random >> 32) % 10;
                if (kinds[i] < 5)
                    tags[i] = rig_get(client, volume, keys[i], i, 400 * MS);
                else if (kinds[i] < 8)
                    tags[i] = rig_put(client, volume, keys[i], 1000 + keys[i],
                                      kinds[i] == 5 ? SHM_FLAG_ON_FLASH : 0, 400 * MS);
                else
                    tags[i] = rig_op(client, kinds[i] == 8 ? SHM_OP_EXISTS : SHM_OP_REMOVE, volume,
                                     keys[i], 400 * MS);
            }
            for (uint32_t i = 0; i < 12; i++) {
                const struct shm_complete *answer = rig_wait(client, tags[i]);

                assert_non_null(answer);
                assert_true(client->got_ns[tags[i]] - began_ns < 410 * MS);
                asked += kinds[i] < 5;
                if (kinds[i] < 5 && answer->status == ICMS_OK) {
                    assert_true(rig_value_is(client, keys[i] % 2, keys[i], 1000 + keys[i], answer));
                    hits++;
                }
                rig_lease_give(client, i);
            }
            if (round % 10 == 3) {
                uint32_t e = (uint32_t)sim_random(rig->sim) % 3;

                if (sim_random(rig->sim) % 2 == 0)
                    rig_on_fake(rig, e, fake_target_drop);
                else
                    sim_net_cut(rig->sim, rig->node, rig->fake_node[e], true);
            }
            if (round % 10 == 7)
                for (uint32_t e = 0; e < 3; e++)
                    sim_net_cut(rig->sim, rig->node, rig->fake_node[e], false);
            rig_run(rig, 100 * MS);
        }
        assert_true(hits * 2 > asked); /* forgetting everything is wrong too */
        for (int i = 0; i < 3; i++)
            rig_client_free(clients[i]);
        rig_run(rig, 30000 * MS);
        assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
        assert_int_equal(rig_stats(rig)->in_flight, 0);
        rig_free(rig);
    }
}

/* An enclosure says that a value is longer than any of the volume: nothing of it is published. */
static void a_value_longer_than_its_slot_is_refused(void **state)
{
    struct agent_rig *rig =
        rig_new(&(struct rig_opts){.enclosures = 1, .slots = 4, .block_bytes = BYTES});
    struct rig_client *client = rig_client_new(rig);
    uint8_t *data = calloc(1, 4 * RIG_VALUE_BYTES);

    assert_non_null(data);
    for (uint32_t volume = 0; volume < 2; volume++) {
        uint32_t most = (uint32_t)volume_stored_bytes_max(&rig->volumes[volume]);

        for (uint32_t n = 1; n <= 3; n++) {
            struct key key;

            rig_key(n, &key);
            fake_target_put(rig->fake[0], volume + 1, &key, data, n == 1 ? most + 1 : n * most);
            assert_int_equal(rig_wait(client, rig_get(client, volume, n, 0, 0))->status,
                             ICMS_VALUE_SIZE);
            assert_false(rig_arena_has(&client->arenas[volume], &key));
        }
        assert_int_equal(rig_stats(rig)->volumes[volume].slots_used, 0);
    }
    free(data);
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_longer_than_its_slot_is_refused),
        cmocka_unit_test(a_client_that_dies_gives_everything_back),
        cmocka_unit_test(a_client_that_takes_no_answers_harms_nobody),
        cmocka_unit_test(a_flood_of_cancels_is_taken_a_few_in_a_turn),
        cmocka_unit_test(random_bytes_in_rings_and_lease_tables_harm_nobody),
        cmocka_unit_test(faults_are_answers_and_leave_nothing_behind),
        cmocka_unit_test(hits_are_right_and_answers_on_time_while_enclosures_come_and_go),
    };

    return cmocka_run_group_tests_name("agent-hostile", tests, NULL, NULL);
}
