/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that volumes share: it goes to who uses it, within floors and ceilings, and there is never
 * more of it. On simulated machines.
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
#include "base/hash.h"
#include "icms/icms.h"

#define KV    0
#define RAW   1
#define NONE  2
#define MS    RIG_MS
#define S     (1000 * MS)
#define WAIT  S
#define BYTES 20000u                /* of a block: 3.4 are as much as a slab      */
#define SLAB  ((uint64_t)17 * 4096) /* space for the largest block of the volumes */

static struct rig_client *machine_new(const struct rig_opts *opts)
{
    return rig_client_new(rig_new(opts));
}

static void machine_free(struct rig_client *client)
{
    struct agent_rig *rig = client->rig;

    rig_client_free(client);
    rig_free(rig);
}

/* Slabs of a volume, of all reactors; with all that volumes have it never is more than there is. */
static uint64_t slabs(struct rig_client *client, uint32_t volume)
{
    const struct agent_stats *stats = rig_stats(client->rig);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < RIG_VOLUMES; i++) {
        assert_true(stats->volumes[i].arena_used_bytes <= stats->volumes[i].arena_bytes);
        bytes += stats->volumes[i].arena_bytes;
    }
    assert_true(bytes <= client->rig->opts.memory_bytes);
    return stats->volumes[volume].arena_bytes / SLAB;
}

static uint32_t load_all(struct rig_client *client, uint32_t volume, uint32_t first, uint32_t count)
{
    uint32_t hits = 0;

    for (uint32_t n = first; n < first + count; n++) {
        hits += rig_load(client, volume, n, BYTES);
        (void)slabs(client, volume);
    }
    return hits;
}

static void flash_all(struct rig_client *client, uint32_t volume, uint32_t first, uint32_t count)
{
    for (uint32_t n = first; n < first + count; n++)
        rig_flash(client->rig, 0, volume, n, BYTES);
}

/* ---- who has it ----------------------------------------------------------------------------- */

static void memory_goes_to_the_volume_that_is_used(void **state)
{
    for (uint32_t loops = 1; loops <= 3; loops += 2) {
        struct rig_opts opts = {.enclosures = 1, .loops = loops, .memory = 40};
        struct rig_client *client = machine_new(&opts);

        flash_all(client, KV, 0, 150 * loops);
        flash_all(client, RAW, 0, 150 * loops);
        assert_int_equal(slabs(client, KV), loops); /* space for a block */
        for (int round = 0; round < 2; round++) {
            uint32_t other = round == 0 ? RAW : KV;

            (void)load_all(client, round == 0 ? KV : RAW, 0, 150 * loops);
            assert_int_equal(slabs(client, round == 0 ? KV : RAW), 38 * loops);
            assert_int_equal(slabs(client, other), loops);
            rig_run(client->rig, 3 * S);
        }
        assert_int_equal(slabs(client, NONE), loops);
        machine_free(client);
    }
}

/* Also while the others have it, and although they are idle. */
static void a_volume_keeps_its_floor_and_stays_under_its_ceiling(void **state)
{
    struct rig_opts opts = {
        .enclosures = 1, .memory = 40, .memory_min = {10}, .memory_max = {0, 20, 0}};
    struct rig_client *client = machine_new(&opts);

    flash_all(client, KV, 0, 150);
    flash_all(client, RAW, 0, 150);
    assert_int_equal(slabs(client, KV), 10);
    (void)load_all(client, RAW, 0, 150);
    assert_int_equal(slabs(client, RAW), 20);
    (void)load_all(client, KV, 0, 150);
    assert_int_equal(slabs(client, KV), 19);
    rig_run(client->rig, 3 * S);
    (void)load_all(client, KV, 0, 150);
    assert_int_equal(slabs(client, KV), 38);
    machine_free(client);

    opts.memory_max[RAW] = 0;
    client = machine_new(&opts);
    flash_all(client, KV, 0, 150);
    flash_all(client, RAW, 0, 150);
    (void)load_all(client, KV, 0, 150);
    rig_run(client->rig, 3 * S);
    (void)load_all(client, RAW, 0, 150);
    assert_int_equal(slabs(client, KV), 10);
    assert_int_equal(slabs(client, RAW), 29);
    assert_true(load_all(client, KV, 120, 30) >= 15); /* what it had there stayed */
    machine_free(client);
}

/* A stream of blocks that nobody asks for again takes nothing from who is read all the time. */
static void a_volume_in_use_keeps_what_it_has(void **state)
{
    struct rig_opts opts = {.enclosures = 1, .memory = 40};
    struct rig_client *client = machine_new(&opts);

    flash_all(client, KV, 0, 30);
    flash_all(client, RAW, 0, 600);
    (void)load_all(client, KV, 0, 30);
    for (uint32_t round = 0; round < 60; round++) {
        assert_int_equal(load_all(client, KV, 0, 30), 30);
        (void)load_all(client, RAW, 10 * round, 10);
        rig_run(client->rig, 100 * MS);
    }
    assert_in_range(slabs(client, KV), 9, 10);
    machine_free(client);
}

/* ---- what is in use ------------------------------------------------------------------------- */

static void what_is_leased_is_not_taken(void **state)
{
    struct rig_opts opts = {.enclosures = 1, .memory = 40};
    struct rig_client *client = machine_new(&opts);
    const struct shm_complete *answers[30];

    flash_all(client, KV, 0, 120);
    flash_all(client, RAW, 0, 150);
    (void)load_all(client, KV, 0, 114);
    for (uint32_t i = 0; i < 30; i++) {
        answers[i] = rig_wait(client, rig_get(client, KV, 3 * i + 1, 100 + i, WAIT));
        assert_int_equal(answers[i]->source, ICMS_SOURCE_DRAM);
    }
    rig_run(client->rig, 3 * S);
    (void)load_all(client, RAW, 0, 150);
    assert_in_range(slabs(client, KV), 26, 27); /* those in which they lie */
    for (uint32_t i = 0; i < 30; i++) {
        assert_true(rig_value_is(client, KV, 3 * i + 1, BYTES, answers[i]));
        rig_lease_give(client, 100 + i);
    }
    rig_run(client->rig, 3 * S);
    (void)load_all(client, RAW, 0, 150);
    assert_int_equal(slabs(client, KV), 1);
    machine_free(client);
}

static void what_is_being_stored_is_not_taken(void **state)
{
    struct rig_opts opts = {.enclosures = 1, .memory = 12, .backlog_bytes = 64 << 20};
    struct rig_client *client = machine_new(&opts);
    struct agent_rig *rig = client->rig;
    uint64_t tags[20];

    flash_all(client, RAW, 0, 60);
    flash_all(client, KV, 0, 30);
    (void)load_all(client, KV, 0, 30); /* it has space for stores */
    rig->fake[0]->hold_stores = true;
    for (uint32_t i = 0; i < 20; i++)
        tags[i] = rig_put(client, KV, 100 + i, BYTES, SHM_FLAG_ON_FLASH, 60 * S);
    rig_run(rig, 3 * S);
    (void)load_all(client, RAW, 0, 60);
    assert_true(slabs(client, KV) >= 6); /* as much as they are */
    rig_on_fake(rig, 0, fake_target_release);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(rig_wait(client, tags[i])->status, ICMS_OK);
    for (uint32_t i = 0; i < 20; i++)
        (void)rig_load(client, KV, 100 + i, BYTES);
    machine_free(client);
}

/* Not only one after the other, in the first slab. */
static void stores_find_memory_that_nobody_has(void **state)
{
    struct rig_opts opts = {.enclosures = 1, .memory = 40};
    struct rig_client *client = machine_new(&opts);
    struct agent_rig *rig = client->rig;
    uint64_t tags[20];

    rig->fake[0]->hold_stores = true;
    for (uint32_t i = 0; i < 20; i++)
        tags[i] = rig_put(client, KV, i, 60000, SHM_FLAG_ON_FLASH, 60 * S);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_stats(rig)->backlog_bytes, 20 * (60000 + LIMIT_TRAILER_BYTES));
    assert_in_range(slabs(client, KV), 20, 27);
    rig_on_fake(rig, 0, fake_target_release);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(rig_wait(client, tags[i])->status, ICMS_OK);
    machine_free(client);
}

/* Loads and stores of all sizes by turns of both volumes, some of them leased for a while: all
 * bytes are right. */
static void volumes_take_from_each_other_all_the_time(void **state)
{
    enum { ROUNDS = 3000, LEASES = 16 };

    static const struct rig_opts ways[] = {
        {.enclosures = 1, .memory = 24},
        {.enclosures = 1, .loops = 3, .memory = 24},
        {.own_process = true, .memory = 24}, /* a drive of its own reads and writes slots */
    };

    for (uint32_t way = 0; way < 3; way++) {
        struct rig_client *client = machine_new(&ways[way]);
        uint64_t changes = 0, before = 0;

        for (uint32_t i = 0; i < ROUNDS; i++) {
            uint64_t dice = hash64_mix(i + way);
            uint32_t volume = i / 300 % 2 == 0 ? KV : RAW, lease = i % LEASES, n = i;
            uint32_t bytes = 1 + (uint32_t)(dice >> 8) % (dice % 3 == 0 ? RIG_VALUE_BYTES : 9000);
            uint64_t tag;

            rig_lease_give(client, lease);
            if (dice % 2 == 0 && way < 2) {
                rig_flash(client->rig, 0, volume, n, bytes);
            } else {
                tag = rig_put(client, volume, n, bytes, 0, 5 * S);
                assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
            }
            tag = rig_get(client, volume, n, lease, 5 * S);
            assert_true(rig_value_is(client, volume, n, bytes, rig_wait(client, tag)));
            if (i % 300 == 299)
                rig_run(client->rig, 2 * S);
            changes += slabs(client, KV) != before;
            before = slabs(client, KV);
        }
        assert_true(changes > 100);
        assert_int_equal(rig_stats(client->rig)->in_flight, 0);
        machine_free(client);
    }
}

/* ---- who shares ----------------------------------------------------------------------------- */

/* What one user can map, another one's blocks must never come into. */
static void volumes_of_different_users_share_nothing(void **state)
{
    struct rig_opts opts = {
        .enclosures = 1, .memory = 39, .memory_min = {0, 10, 0}, .raw_uid = 1000, .raw_gid = 1000};
    struct rig_client *client = machine_new(&opts);
    struct loop_region **arenas = client->attached.arenas;

    assert_true(arenas[KV] == arenas[NONE] && arenas[KV] != arenas[RAW]);
    flash_all(client, KV, 0, 150);
    flash_all(client, RAW, 0, 150);
    /* Of 27 slabs that no floor has, 9 a volume. */
    assert_int_equal(slabs(client, RAW), 19);
    (void)load_all(client, KV, 0, 150);
    assert_int_equal(slabs(client, KV), 19);
    assert_int_equal(slabs(client, NONE), 1);
    machine_free(client);
}

/* There is enough for all of them at once. */
static void ceilings_that_all_fit_are_arenas_of_their_own(void **state)
{
    struct rig_opts opts = {.enclosures = 1, .memory = 40, .memory_max = {20, 10, 10}};
    struct rig_client *client = machine_new(&opts);
    struct loop_region **arenas = client->attached.arenas;

    assert_true(arenas[KV] != arenas[NONE] && arenas[KV] != arenas[RAW]);
    assert_int_equal(slabs(client, KV), 20);
    assert_int_equal(slabs(client, RAW), 10);
    machine_free(client);
}

static void memory_that_is_too_little_is_refused(void **state)
{
    struct rig_opts opts = {.enclosures = 1, .loops = 2, .memory = 3};
    struct rig_client *client = machine_new(&opts);
    struct agent_rig *rig = client->rig;
    struct agent *agent = NULL;
    struct err_why why = {""};

    rig->opts.memory_bytes -= 2 * SLAB;
    assert_int_equal(agent_new(sim_node_env(rig->node), &rig->opts, &why, &agent), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "memory: "));
    rig->opts.memory_bytes += 2 * SLAB;
    /* Enough for their own blocks, and not for slabs that hold the largest one. */
    rig->volumes[RAW].value_bytes_max = rig->volumes[NONE].value_bytes_max = 4096;
    rig->opts.memory_bytes = 4 * SLAB;
    assert_int_equal(agent_new(sim_node_env(rig->node), &rig->opts, &why, &agent), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "hold their largest block"));
    machine_free(client);
}

/* Whatever the sizes are: what is checked is what the start does. */
static void a_check_agrees_with_the_start(void **state)
{
    struct rig_opts opts = {.enclosures = 1, .loops = 2, .memory = 40};
    struct rig_client *client = machine_new(&opts);
    struct agent_rig *rig = client->rig;
    uint32_t starts = 0;

    for (uint64_t seed = 0; seed < 300; seed++) {
        uint64_t random = hash64_mix(seed), bytes = 0, has = 0;
        struct agent *agent = NULL;
        icms_err err;

        rig->opts.memory_bytes = (4 + random % 40) * SLAB;
        rig->opts.loops = 1 + (uint32_t)(random >> 8) % 3;
        for (uint32_t i = 0; i < RIG_VOLUMES; i++) {
            random = hash64_mix(random);
            rig->volumes[i].value_bytes_max = 4096 + random % 80000;
            rig->volumes[i].memory_bytes_min = random >> 20 & 1 ? (random >> 24) % 10 * SLAB : 0;
            rig->volumes[i].memory_bytes_max =
                random >> 21 & 1 ? (10 + (random >> 32) % 10) * SLAB : 0;
            rig->volumes[i].user_count = (uint32_t)(random >> 22 & 1);
        }
        err = agent_check(&rig->opts, NULL, &bytes);
        assert_int_equal(agent_new(sim_node_env(rig->node), &rig->opts, NULL, &agent), err);
        if (err != ICMS_OK)
            continue;
        for (uint32_t i = 0; i < agent->arena_count; i++)
            has += loop_region_bytes(agent->arenas[i].region);
        assert_true(bytes <= has && has < bytes + agent->arena_count * 4096);
        agent_free(&agent);
        starts++;
    }
    assert_true(starts > 30 && starts < 270);
    machine_free(client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_goes_to_the_volume_that_is_used),
        cmocka_unit_test(a_volume_keeps_its_floor_and_stays_under_its_ceiling),
        cmocka_unit_test(a_volume_in_use_keeps_what_it_has),
        cmocka_unit_test(what_is_leased_is_not_taken),
        cmocka_unit_test(what_is_being_stored_is_not_taken),
        cmocka_unit_test(stores_find_memory_that_nobody_has),
        cmocka_unit_test(volumes_take_from_each_other_all_the_time),
        cmocka_unit_test(volumes_of_different_users_share_nothing),
        cmocka_unit_test(ceilings_that_all_fit_are_arenas_of_their_own),
        cmocka_unit_test(memory_that_is_too_little_is_refused),
        cmocka_unit_test(a_check_agrees_with_the_start),
    };

    return cmocka_run_group_tests_name("agent-memory", tests, NULL, NULL);
}
