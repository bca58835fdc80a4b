/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas with blocks of any size: bytes are right, little is lost, loads find out how large a block
 * is, and who finds no space is told in time. On simulated machines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_rig.h"
#include "base/hash.h"
#include "icms/icms.h"

#define KV    0
#define RAW   1
#define MS    RIG_MS
#define WAIT  (1000 * MS)
#define SMALL 100u
#define LARGE 60000u

/* An agent before one enclosure, with arenas of so many of the largest blocks. */
static struct agent_rig *machine_new(uint32_t slots, struct rig_client **out_client)
{
    struct agent_rig *rig = rig_new(&(struct rig_opts){.enclosures = 1, .slots = slots});

    *out_client = rig_client_new(rig);
    return rig;
}

static void machine_free(struct agent_rig *rig, struct rig_client *client)
{
    rig_client_free(client);
    rig_free(rig);
}

static const struct shm_complete *load(struct rig_client *client, uint32_t n, uint32_t lease)
{
    return rig_wait(client, rig_get(client, KV, n, lease, WAIT));
}

/* After these the agent takes it that blocks are small. */
static void load_small_ones(struct agent_rig *rig, struct rig_client *client, uint32_t first)
{
    for (uint32_t n = first; n < first + 520; n++) {
        rig_flash(rig, 0, KV, n, SMALL);
        assert_int_equal(load(client, n, 9)->status, ICMS_OK);
        rig_lease_give(client, 9);
    }
}

static void every_size_comes_back(void **state)
{
    static const uint32_t sizes[] = {
        1, 2, 63, 64, 65, 127, 128, 4032, 4095, 4096, 12288, 32767, 32769, 65535, RIG_VALUE_BYTES};
    static const struct rig_opts ways[] = {{.enclosures = 1, .slots = 2}, /* a pod */
                                           {.slots = 2},                  /* a drive of its own */
                                           {.slots = 2, .own_process = true}};

    for (size_t way = 0; way < 3; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        const uint32_t count = sizeof(sizes) / sizeof(sizes[0]);

        for (uint32_t volume = KV; volume <= RAW; volume++) {
            uint64_t none = rig_put(client, volume, 99, 0, 0, WAIT);
            uint64_t more = rig_put(client, volume, 98, RIG_VALUE_BYTES + 1, 0, WAIT);

            assert_int_equal(rig_wait(client, none)->status, ICMS_VALUE_SIZE);
            assert_int_equal(rig_wait(client, more)->status, ICMS_VALUE_SIZE);
            for (uint32_t i = 0; i < count; i++) {
                uint64_t tag = rig_put(client, volume, i, sizes[i], SHM_FLAG_ON_FLASH, WAIT);

                assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
            }
            /* Two rounds in opposite orders: small ones first, and large ones first. */
            for (uint32_t i = 0; i < 2 * count; i++) {
                uint32_t n = i < count ? i : 2 * count - 1 - i;
                uint64_t tag = rig_get(client, volume, n, 0, WAIT);

                assert_true(rig_value_is(client, volume, n, sizes[n], rig_wait(client, tag)));
                rig_lease_give(client, 0);
            }
        }
        machine_free(rig, client);
    }
}

/* Loads and stores of blocks of many sizes, some leased for a while. */
static void an_arena_is_full_of_blocks_whatever_their_sizes(void **state)
{
    enum { ARENA = 64, ROUNDS = 3000, LEASES = 16 };
    struct rig_client *client;
    struct agent_rig *rig = machine_new(ARENA, &client);
    double worst = 1;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t dice = hash64_mix(i);
        uint32_t bytes = 4096 + (uint32_t)(dice >> 8) % (RIG_VALUE_BYTES - 4096 + 1);
        const struct agent_volume_stats *stats;

        rig_lease_give(client, i % LEASES);
        if (dice % 2 == 0) {
            rig_flash(rig, 0, KV, i, bytes);
        } else {
            uint64_t tag = rig_put(client, KV, i, bytes, 0, WAIT);

            assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
        }
        assert_true(rig_value_is(client, KV, i, bytes, load(client, i, i % LEASES)));
        stats = &rig_stats(rig)->volumes[KV];
        if (i > ROUNDS / 4) {
            double full = (double)stats->arena_used_bytes / (double)stats->arena_bytes;

            worst = full < worst ? full : worst;
        }
    }
    assert_true(rig_stats(rig)->volumes[KV].arena_evictions > ROUNDS / 2);
    print_message("at most %.1f %% lost\n", 100 * (1 - worst));
    assert_true(worst >= 0.85);
    machine_free(rig, client);
}

/* ---- how large a block is ------------------------------------------------------------------- */

static void a_block_that_is_larger_than_expected_is_loaded_again(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = machine_new(64, &client);
    uint32_t before;
    uint64_t tags[3], bytes;

    load_small_ones(rig, client, 1000);
    before = rig->fake[0]->retrieves;
    bytes = rig_stats(rig)->enclosures[0].load_bytes;
    for (uint32_t n = 1; n <= 3; n++)
        rig_flash(rig, 0, KV, n, LARGE + n);
    rig_flash(rig, 0, KV, 4, LARGE);
    assert_true(rig_value_is(client, KV, 1, LARGE + 1, load(client, 1, 1)));
    assert_int_equal(rig->fake[0]->retrieves, before + 2);
    bytes = rig_stats(rig)->enclosures[0].load_bytes - bytes;
    assert_in_range(bytes, LARGE, LARGE + LARGE / 2); /* the first time only what fits came */
    assert_true(rig_value_is(client, KV, 2, LARGE + 2, load(client, 2, 2)));
    assert_int_equal(rig->fake[0]->retrieves, before + 4); /* by two bytes more */
    assert_true(rig_value_is(client, KV, 4, LARGE, load(client, 4, 4)));
    assert_int_equal(rig->fake[0]->retrieves, before + 5); /* not more than the one before */
    load_small_ones(rig, client, 2000);
    before = rig->fake[0]->retrieves;
    for (int i = 0; i < 3; i++) /* who joins waits for the second answer, too */
        tags[i] = rig_get(client, KV, 3, 10 + (uint32_t)i, WAIT);
    for (int i = 0; i < 3; i++)
        assert_true(rig_value_is(client, KV, 3, LARGE + 3, rig_wait(client, tags[i])));
    assert_int_equal(rig->fake[0]->retrieves, before + 2);
    assert_int_equal(rig_stats(rig)->in_flight, 0);
    machine_free(rig, client);
}

/* It was replaced by a larger one between two loads: the third one takes whatever may come. */
static void a_block_that_grows_meanwhile_is_loaded_a_third_time(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = machine_new(64, &client);
    uint32_t before;
    uint64_t tag;

    load_small_ones(rig, client, 1000);
    rig_flash(rig, 0, KV, 1, 20000);
    rig->fake[0]->delay_ns = 20 * MS;
    before = rig->fake[0]->retrieves;
    tag = rig_get(client, KV, 1, 0, WAIT);
    while (rig->fake[0]->retrieves < before + 2)
        assert_true(sim_step(rig->sim));
    rig_flash(rig, 0, KV, 1, LARGE);
    assert_true(rig_value_is(client, KV, 1, LARGE, rig_wait(client, tag)));
    assert_int_equal(rig->fake[0]->retrieves, before + 3);
    machine_free(rig, client);
}

/* A bad record of a block that is larger than blocks usually are: found, and deleted. */
static void a_suspect_block_is_loaded_again_when_it_is_larger(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = machine_new(64, &client);
    uint8_t *data = calloc(1, LARGE + LIMIT_TRAILER_BYTES);
    struct key key;

    assert_non_null(data);
    load_small_ones(rig, client, 1000);
    rig_key(1, &key);
    fake_target_put(rig->fake[0], 1, &key, data, LARGE + LIMIT_TRAILER_BYTES);
    (void)rig_op(client, SHM_OP_SUSPECT, KV, 1, WAIT);
    rig_run(rig, 200 * MS);
    assert_null(fake_target_find(rig->fake[0], 1, &key));
    assert_int_equal(rig_stats(rig)->checksum_errors, 1);
    assert_int_equal(rig_stats(rig)->in_flight, 0);
    free(data);
    machine_free(rig, client);
}

/* ---- large blocks --------------------------------------------------------------------------- */

#define TINY  4000u
#define TINYS 20u

/* An arena of 192 KiB, half of it full of small blocks. LARGE is more than a quarter of it. */
static struct agent_rig *half_full_new(struct rig_client **out_client)
{
    struct agent_rig *rig = machine_new(3, out_client);

    for (uint32_t n = 0; n < TINYS; n++) {
        uint64_t tag = rig_put(*out_client, KV, n, TINY, SHM_FLAG_ON_FLASH, WAIT);

        assert_int_equal(rig_wait(*out_client, tag)->status, ICMS_OK);
    }
    return rig;
}

static uint32_t tinys_kept(struct rig_client *client)
{
    uint32_t kept = 0;

    for (uint32_t n = 0; n < TINYS; n++) {
        kept += load(client, n, 9)->source == ICMS_SOURCE_DRAM;
        rig_lease_give(client, 9);
    }
    return kept;
}

/* Of loads, of stores. */
static void a_stream_of_large_blocks_leaves_the_others_where_they_are(void **state)
{
    for (int stores = 0; stores < 2; stores++) {
        struct rig_client *client;
        struct agent_rig *rig = half_full_new(&client);
        uint64_t evictions;

        for (uint32_t n = 100; n < 150; n++) {
            if (stores) {
                uint64_t tag = rig_put(client, KV, n, LARGE, SHM_FLAG_ON_FLASH, WAIT);

                assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
            } else {
                rig_flash(rig, 0, KV, n, LARGE);
            }
            assert_true(rig_value_is(client, KV, n, LARGE, load(client, n, 1)));
            rig_lease_give(client, 1);
            assert_int_equal(load(client, n, 1)->source, ICMS_SOURCE_DRAM); /* until the next */
            rig_lease_give(client, 1);
        }
        evictions = rig_stats(rig)->volumes[KV].arena_evictions;
        assert_int_equal(evictions, 49); /* each by the one behind it */
        evictions = rig_stats(rig)->volumes[KV].arena_evicted[AGENT_EVICTED_LARGE];
        assert_int_equal(evictions, 49);
        assert_int_equal(tinys_kept(client), TINYS);
        machine_free(rig, client);
    }
}

/* It stays for who reads it, others go instead; of several as few go as have to. */
static void a_large_block_stays_while_it_is_leased(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = half_full_new(&client);

    for (uint32_t n = 100; n < 104; n++)
        rig_flash(rig, 0, KV, n, LARGE);
    assert_true(rig_value_is(client, KV, 100, LARGE, load(client, 100, 1)));
    assert_true(rig_value_is(client, KV, 101, LARGE, load(client, 101, 2)));
    assert_in_range(tinys_kept(client), 1, TINYS - 1);
    assert_true(rig_value_is(client, KV, 100, LARGE, load(client, 100, 3)));
    rig_lease_give(client, 2);
    assert_true(rig_value_is(client, KV, 102, LARGE, load(client, 102, 2)));
    assert_int_equal(load(client, 100, 3)->source, ICMS_SOURCE_DRAM);
    rig_lease_give(client, 1);
    rig_lease_give(client, 2);
    rig_lease_give(client, 3);
    assert_true(rig_value_is(client, KV, 103, LARGE, load(client, 103, 1)));
    assert_int_equal(load(client, 102, 2)->source, ICMS_SOURCE_DRAM); /* 100 has gone */
    machine_free(rig, client);
}

/* ---- no space ------------------------------------------------------------------------------- */

static uint32_t waiting_of(struct rig_client *client, const uint64_t *tags, uint32_t count)
{
    uint32_t waiting = 0;

    rig_take(client);
    for (uint32_t i = 0; i < count; i++)
        waiting += client->got[tags[i]] == 0;
    return waiting;
}

/* Small blocks that are leased lie all over the arena: there is space, but nowhere enough of it. */
static void who_finds_no_space_between_leased_blocks_is_shed_in_time(void **state)
{
    enum { BLOCKS = 64, BYTES = 8000 };
    struct rig_client *client;
    struct agent_rig *rig =
        rig_new(&(struct rig_opts){.enclosures = 1, .slots = BLOCKS, .block_bytes = BYTES});
    const struct shm_complete *answer;
    uint64_t tag, begin_ns, more[BLOCKS];

    client = rig_client_new(rig);
    for (uint32_t n = 0; n < BLOCKS; n++) {
        tag = rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, WAIT);
        assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    }
    for (uint32_t n = 0; n < BLOCKS; n += 4) {
        answer = load(client, n, n);
        assert_true(rig_value_is(client, KV, n, BYTES, answer));
    }
    rig_flash(rig, 0, KV, 100, LARGE);
    begin_ns = rig_now_ns(rig);
    tag = rig_get(client, KV, 100, 100, 100 * MS);
    answer = rig_wait(client, tag);
    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, ICMS_MISS_SHED);
    assert_in_range(client->got_ns[tag] - begin_ns, 100 * MS, 110 * MS);
    /* What fits is served meanwhile, and leased blocks are what they were. */
    for (uint32_t n = 200; n < 240; n++) {
        tag = rig_put(client, KV, n, BYTES + n, SHM_FLAG_ON_FLASH, WAIT);
        assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    }
    for (uint32_t n = 0; n < BLOCKS; n += 4)
        assert_int_equal(load(client, n, 101)->source, ICMS_SOURCE_DRAM);
    tag = rig_get(client, KV, 100, 100, WAIT);
    rig_run(rig, 50 * MS);
    assert_int_equal(client->got[tag], 0);
    /* Nor does it keep back who waits behind it and needs less. */
    for (uint32_t n = 200; n < 200 + BLOCKS; n++) {
        more[n - 200] = rig_get(client, KV, n, 200 + n, WAIT);
        if (n >= 240)
            rig_flash(rig, 0, KV, n, BYTES);
    }
    rig_run(rig, 100 * MS);
    assert_true(waiting_of(client, more, BLOCKS) > 0);
    for (int round = 0; round < 4; round++) {
        for (uint32_t n = 200; n < 200 + BLOCKS; n++)
            rig_lease_give(client, 200 + n);
        rig_run(rig, 100 * MS);
    }
    assert_int_equal(waiting_of(client, more, BLOCKS), 0);
    assert_int_equal(client->got[tag], 0);
    for (uint32_t n = 0; n < BLOCKS; n += 4)
        rig_lease_give(client, n);
    assert_true(rig_value_is(client, KV, 100, LARGE, rig_wait(client, tag)));
    assert_int_equal(rig_stats(rig)->in_flight, 0);
    machine_free(rig, client);
}

/* Three quarters of the bytes, and one store always. */
static void stores_of_any_size_leave_a_quarter_to_loads(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = machine_new(8, &client);
    uint64_t tags[20];

    rig->fake[0]->hold_stores = true;
    for (uint32_t i = 0; i < 20; i++)
        tags[i] = rig_put(client, KV, i, i % 2 == 0 ? 20000 : LARGE, SHM_FLAG_ON_FLASH, 5 * WAIT);
    rig_flash(rig, 0, KV, 50, LARGE);
    assert_true(rig_value_is(client, KV, 50, LARGE, load(client, 50, 0)));
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(client->got[tags[i]], 0);
    rig_on_fake(rig, 0, fake_target_release);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(rig_wait(client, tags[i])->status, ICMS_OK);
    assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
    machine_free(rig, client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_comes_back),
        cmocka_unit_test(an_arena_is_full_of_blocks_whatever_their_sizes),
        cmocka_unit_test(a_block_that_is_larger_than_expected_is_loaded_again),
        cmocka_unit_test(a_block_that_grows_meanwhile_is_loaded_a_third_time),
        cmocka_unit_test(a_suspect_block_is_loaded_again_when_it_is_larger),
        cmocka_unit_test(a_stream_of_large_blocks_leaves_the_others_where_they_are),
        cmocka_unit_test(a_large_block_stays_while_it_is_leased),
        cmocka_unit_test(who_finds_no_space_between_leased_blocks_is_shed_in_time),
        cmocka_unit_test(stores_of_any_size_leave_a_quarter_to_loads),
    };

    return cmocka_run_group_tests_name("agent-arena", tests, NULL, NULL);
}
