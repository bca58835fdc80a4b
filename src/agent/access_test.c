/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Users of one machine and one agent, in the simulation: each sees its volumes and nothing of the
 * others', has its share of the clients, and cannot make lookups slow by the keys it chooses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "base/check.h"

#define MS     RIG_MS
#define KV     0
#define RAW    1
#define ABSENT 9 /* no volume of the agent */
#define BYTES  20000u

#define USER   1001
#define GROUP  2002
#define OTHERS 1003

static const struct rig_opts shared = {
    .enclosures = 1, .slots = 8, .block_bytes = BYTES, .raw_uid = USER, .raw_gid = GROUP};

static struct rig_client *client_of(struct agent_rig *rig, uint32_t uid, uint32_t gid)
{
    const struct agent_user user = {.uid = uid, .gid = gid};
    icms_err err;
    struct rig_client *client = rig_client_as(rig, &user, &err);

    assert_non_null(client);
    return client;
}

static icms_err refusal_of(struct agent_rig *rig, uint32_t uid)
{
    const struct agent_user user = {.uid = uid, .gid = uid};
    icms_err err;

    assert_null(rig_client_as(rig, &user, &err));
    return err;
}

static bool has_volume(const struct rig_client *client, const char *name)
{
    for (uint32_t i = 0; i < RIG_VOLUMES; i++)
        if (strcmp(client->arenas[i].name, name) == 0)
            return true;
    return false;
}

static void users_and_members_of_groups_get_a_volume_and_others_do_not(void **state)
{
    struct agent_rig *rig = rig_new(&shared);
    const uint32_t groups[] = {7, GROUP, 8};
    const struct agent_user member = {
        .uid = OTHERS, .gid = OTHERS, .groups = groups, .group_count = 3};
    const struct agent_user owner = {.uid = 0, .gid = 0, .owner = true};
    struct rig_client *clients[] = {
        client_of(rig, USER, USER), client_of(rig, OTHERS, GROUP),  NULL, NULL,
        rig_client_new(rig),        client_of(rig, OTHERS, OTHERS),
    };
    icms_err err;

    clients[2] = rig_client_as(rig, &member, &err);
    assert_int_equal(err, ICMS_OK);
    clients[3] = rig_client_as(rig, &owner, &err);
    assert_int_equal(err, ICMS_OK);
    for (int i = 0; i < 6; i++) {
        assert_true(has_volume(clients[i], "kv"));
        assert_int_equal(has_volume(clients[i], "raw"), i < 5);
        assert_int_equal(clients[i]->attached.volume_count, i < 5 ? RIG_VOLUMES : RIG_VOLUMES - 1);
        assert_int_equal(clients[i]->ring.header->volume_count, clients[i]->attached.volume_count);
    }
    for (int i = 0; i < 6; i++)
        rig_client_free(clients[i]);
    rig_free(rig);
}

static void a_forbidden_volume_is_as_if_it_did_not_exist(void **state)
{
    struct agent_rig *rig = rig_new(&shared);
    struct rig_client *owner = rig_client_new(rig), *client = client_of(rig, OTHERS, OTHERS);
    const struct agent_user user = {.uid = OTHERS, .gid = OTHERS};
    static const uint8_t ops[] = {SHM_OP_GET, SHM_OP_EXISTS, SHM_OP_REMOVE, SHM_OP_FLUSH,
                                  SHM_OP_PUT};
    static char text[65536];

    assert_int_equal(rig_wait(owner, rig_put(owner, RAW, 1, BYTES, 0, 0))->status, ICMS_OK);
    for (size_t i = 0; i < sizeof(ops); i++) {
        struct shm_complete answers[2];

        answers[0] = *rig_wait(client, rig_op(client, ops[i], RAW, 1, 100 * MS));
        answers[1] = *rig_wait(client, rig_op(client, ops[i], ABSENT, 1, 100 * MS));
        assert_int_equal(answers[0].status, ICMS_NO_VOLUME);
        answers[1].tag = answers[0].tag;
        assert_memory_equal(&answers[0], &answers[1], sizeof(answers[0]));
    }
    assert_int_equal(rig_wait(owner, rig_get(owner, RAW, 1, 0, 0))->status, ICMS_OK);
    assert_true(agent_status(rig->agent, text, sizeof(text)) < sizeof(text));
    assert_non_null(strstr(text, "\"raw\""));
    assert_non_null(strstr(text, "\"map_refused\":\"\""));
    agent_map_refused_set(rig->agent, "the volume raw is not right");
    assert_true(agent_status(rig->agent, text, sizeof(text)) < sizeof(text));
    assert_non_null(strstr(text, "\"map_refused\":\"the volume raw is not right\""));
    assert_true(agent_status_as(rig->agent, &user, text, sizeof(text)) < sizeof(text));
    assert_non_null(strstr(text, "\"map_refused\":\"the map of the file is not in use"));
    assert_non_null(strstr(text, "\"kv\""));
    assert_null(strstr(text, "raw"));
    rig_client_free(client);
    rig_client_free(owner);
    rig_free(rig);
}

/* Nor does the status tell when others store or load there, and how much. */
static void what_others_do_there_is_not_seen(void **state)
{
    struct agent_rig *rig = rig_new(&shared);
    struct rig_client *owner = rig_client_new(rig);
    const struct agent_user user = {.uid = OTHERS, .gid = OTHERS};
    static char before[65536], after[65536];

    assert_true(agent_status_as(rig->agent, &user, before, sizeof(before)) < sizeof(before));
    for (uint32_t n = 1; n < 4; n++)
        assert_int_equal(
            rig_wait(owner, rig_put(owner, RAW, n, BYTES, SHM_FLAG_ON_FLASH, 0))->status, ICMS_OK);
    (void)rig_wait(owner, rig_get(owner, RAW, 100, 0, 0));
    assert_true(agent_status_as(rig->agent, &user, after, sizeof(after)) < sizeof(after));
    assert_string_equal(before, after);
    rig_client_free(owner);
    rig_free(rig);
}

/* Whoever writes slots of such a volume into its lease table holds none of them. */
static void what_is_written_of_a_forbidden_volume_counts_for_nothing(void **state)
{
    struct agent_rig *rig = rig_new(&shared);
    struct rig_client *owner = rig_client_new(rig), *client = client_of(rig, OTHERS, OTHERS);

    for (uint32_t i = 0; i < SHM_LEASES; i++) {
        atomic_store(&client->ring.lease_shards[i], RAW);
        atomic_store(&client->ring.leases[i], 1 + i % shared.slots);
    }
    for (int i = 0; i < SHM_COUNTS; i++)
        atomic_store(&client->ring.counts[RAW][i], 1000);
    assert_int_equal(rig_stats(rig)->volumes[RAW].slots_leased, 0);
    assert_int_equal(rig_stats(rig)->volumes[RAW].hits_dram, 0);
    for (uint32_t n = 0; n < 4 * shared.slots; n++)
        assert_int_equal(
            rig_wait(owner, rig_put(owner, RAW, n, BYTES, SHM_FLAG_ON_FLASH, 500 * MS))->status,
            ICMS_OK);
    rig_client_free(client);
    rig_client_free(owner);
    rig_free(rig);
}

static void a_user_has_its_share_of_the_clients(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .user_clients_max = 2};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *first = client_of(rig, USER, USER), *second = client_of(rig, USER, USER);
    struct rig_client *others = client_of(rig, OTHERS, OTHERS), *own[3];

    assert_int_equal(refusal_of(rig, USER), ICMS_LIMIT);
    for (int i = 0; i < 3; i++)
        own[i] = rig_client_new(rig);
    rig_client_free(first);
    first = client_of(rig, USER, USER);
    assert_int_equal(refusal_of(rig, USER), ICMS_LIMIT);
    for (int i = 0; i < 3; i++)
        rig_client_free(own[i]);
    rig_client_free(first);
    rig_client_free(second);
    rig_client_free(others);
    rig_free(rig);
}

/* ---- chosen keys ---------------------------------------------------------------------------- */

static uint32_t chain_length(const struct shm_arena *arena, uint32_t head)
{
    uint32_t length = 0;

    for (uint32_t at = atomic_load(&arena->heads[head]); at != SHM_SLOT_NONE;
         at = atomic_load(&arena->slots[at].next))
        length++;
    return length;
}

/* Puts blocks of a client from n on, and returns how many were taken; the others were shed. */
static uint32_t put_some(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t count)
{
    uint32_t taken = 0;

    for (uint32_t i = n; i < n + count; i++) {
        const struct shm_complete *answer =
            rig_wait(client, rig_put(client, volume, i, BYTES, 0, 10000 * MS));

        assert_true(answer->status == ICMS_OK ||
                    (answer->status == ICMS_BUSY && answer->reason == ICMS_MISS_SHED));
        taken += answer->status == ICMS_OK;
    }
    return taken;
}

/* One user fills the backlog; another one has its part all the same, and when the stores are over
 * all is as before. Two clients of one user have the part of one. */
static void a_flood_of_stores_leaves_another_user_its_part(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 64, .backlog_bytes = 12 * 21000};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *flood[] = {client_of(rig, USER, USER), client_of(rig, USER, USER)};
    struct rig_client *other = client_of(rig, OTHERS, OTHERS);

    for (int again = 0; again < 2; again++) {
        uint32_t n = 100 * (uint32_t)again;

        rig->fake[0]->hold_stores = true;
        assert_int_equal(put_some(flood[0], KV, n, 16), 12);
        assert_int_equal(put_some(flood[1], KV, n + 16, 4), 0);
        assert_int_equal(put_some(other, KV, n + 20, 10), 6);
        assert_int_equal(put_some(flood[1], KV, n + 30, 4), 0);
        rig_on_fake(rig, 0, fake_target_release);
        rig_run(rig, 100 * MS);
        assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
        assert_int_equal(put_some(other, KV, n + 40, 1), 1);
        rig_run(rig, 100 * MS);
    }
    rig_client_free(flood[0]); /* its place stays with the other client of the user */
    rig->fake[0]->hold_stores = true;
    assert_int_equal(put_some(flood[1], KV, 300, 13), 12);
    assert_int_equal(put_some(other, KV, 320, 7), 6);
    rig_client_free(flood[1]); /* its stores go on, and are its user's */
    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
    rig->fake[0]->hold_stores = true;
    assert_int_equal(put_some(other, KV, 340, 13), 12);
    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 100 * MS);
    rig_client_free(other);
    rig_free(rig);
}

/* Bytes of users and their number are words of their own: reactors see one before the other. And
 * one value of a user with nothing in flight is let in, however many others there are. */
static void a_number_of_users_that_is_behind_is_no_harm(void **state)
{
    struct agent *agent = calloc(1, sizeof(*agent));
    struct agent_user_share user = {0}, other = {0};

    check(agent != NULL);
    agent->volumes = calloc(1, sizeof(agent->volumes[0]));
    check(agent->volumes != NULL);
    agent->weights[0] = 1;
    agent->opts.store_backlog_bytes = 1000;
    atomic_store(&agent->backlog_bytes, 950);
    atomic_store(&user.backlog_bytes[0], 500);
    assert_false(agent_backlog_full(agent, &user, 0, 100));
    assert_true(agent_backlog_take(agent, &user, 0, 100));
    assert_true(agent_backlog_full(agent, &user, 0, 500));
    assert_false(agent_backlog_take(agent, &user, 0, 500));
    atomic_store(&agent->volumes[0].backlog_users, 32);
    assert_false(agent_backlog_full(agent, &other, 0, 1000));
    assert_true(agent_backlog_take(agent, &other, 0, 1000));
    assert_true(agent_backlog_full(agent, &other, 0, 1));
    agent_backlog_give(agent, &other, 0, 1000);
    assert_true(agent_backlog_full(agent, &other, 0, 1001)); /* more than all there is */
    free(agent->volumes);
    free(agent);
}

/* One user has many more loads in flight than the queue pair to the enclosure holds. Those of
 * another user, which come later, take turns with them: they wait for what is with the enclosure
 * already, and not for what is not. */
static void a_flood_of_loads_does_not_hold_up_another_user(void **state)
{
    enum { FLOOD = 900, FEW = 5, QUEUE = 128 };
    const struct rig_opts opts = {.enclosures = 1, .slots = 4000, .value_bytes = 1000};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *flood = client_of(rig, USER, USER), *other = client_of(rig, OTHERS, OTHERS);
    uint64_t tags[FLOOD], few[FEW];
    uint32_t before = 0;

    rig->fake[0]->hold = true;
    for (uint32_t i = 0; i < FLOOD; i++)
        tags[i] = rig_get(flood, KV, i, SHM_SLOT_NONE, 10000 * MS);
    rig_run(rig, 50 * MS);
    for (uint32_t i = 0; i < FEW; i++)
        few[i] = rig_get(other, KV, 2000 + i, SHM_SLOT_NONE, 10000 * MS);
    rig_run(rig, 50 * MS);
    assert_in_range(rig->fake[0]->retrieves, 1, QUEUE);
    rig_on_fake(rig, 0, fake_target_release);
    for (uint32_t i = 0; i < FEW; i++)
        assert_int_equal(rig_wait(other, few[i])->reason, ICMS_MISS_ABSENT);
    rig_take(flood);
    for (uint32_t i = 0; i < FLOOD; i++)
        before += flood->got[tags[i]];
    for (uint32_t i = 0; i < FLOOD; i++)
        assert_int_equal(rig_wait(flood, tags[i])->reason, ICMS_MISS_ABSENT);
    print_message("  %u of %d loads of the flood were answered before\n", before, FLOOD);
    assert_true(before <= 2 * QUEUE);
    rig_client_free(flood);
    rig_client_free(other);
    rig_free(rig);
}

/* The volumes of two users share the backlog by their weights, 3:1, whoever comes first. */
static void volumes_share_the_backlog_by_weight(void **state)
{
    const struct rig_opts opts = {
        .enclosures = 1, .slots = 64, .backlog_bytes = 12 * 21000, .kv_weight = 3};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *heavy = client_of(rig, USER, USER), *light = client_of(rig, OTHERS, OTHERS);

    rig->fake[0]->hold_stores = true;
    assert_int_equal(put_some(heavy, KV, 0, 16), 12);
    assert_int_equal(put_some(light, RAW, 20, 10), 3);
    assert_int_equal(put_some(heavy, KV, 40, 1), 0);
    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
    rig->fake[0]->hold_stores = true;
    assert_int_equal(put_some(light, RAW, 100, 16), 12);
    assert_int_equal(put_some(heavy, KV, 120, 16), 9);
    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
    rig_client_free(heavy);
    rig_client_free(light);
    rig_free(rig);
}

static uint32_t answered(struct rig_client *client, const uint64_t *tags, uint32_t count)
{
    uint32_t got = 0;

    rig_take(client);
    for (uint32_t i = 0; i < count; i++)
        got += client->got[tags[i]];
    return got;
}

/* What a flood of gets leaves to a few of another user that come when all is in use: these are
 * answered before more than so many of the flood. */
static void expect_turns(struct agent_rig *rig, bool is_prestage, uint32_t flood_count,
                         uint32_t before_max)
{
    enum { FEW = 5 };
    struct rig_client *flood = client_of(rig, USER, USER), *other = client_of(rig, OTHERS, OTHERS);
    uint64_t *tags = calloc(flood_count, sizeof(*tags)), few[FEW];
    uint32_t before;

    check(tags != NULL);
    rig->fake[0]->hold = true;
    for (uint32_t i = 0; i < flood_count; i++)
        tags[i] = is_prestage ? rig_prestage(flood, i, 10000 * MS)
                              : rig_get(flood, KV, i, SHM_SLOT_NONE, 10000 * MS);
    rig_run(rig, 50 * MS);
    for (uint32_t i = 0; i < FEW; i++)
        few[i] = is_prestage ? rig_prestage(other, 2000 + i, 10000 * MS)
                             : rig_get(other, KV, 2000 + i, SHM_SLOT_NONE, 10000 * MS);
    rig_run(rig, 50 * MS);
    rig_on_fake(rig, 0, fake_target_release);
    for (uint32_t i = 0; i < FEW; i++)
        assert_int_equal(rig_wait(other, few[i])->reason, ICMS_MISS_ABSENT);
    before = answered(flood, tags, flood_count);
    for (uint32_t i = 0; i < flood_count; i++)
        assert_int_equal(rig_wait(flood, tags[i])->reason, ICMS_MISS_ABSENT);
    print_message("  %u of %u of the flood were answered before\n", before, flood_count);
    assert_true(before <= before_max);
    assert_int_equal(rig_stats(rig)->in_flight, 0);
    free(tags);
    rig_client_free(flood);
    rig_client_free(other);
}

/* 512 prestages are operations, of which 127 are with the enclosure; the others wait for one. */
static void users_take_turns_for_operations(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 4000, .value_bytes = 1000};
    struct agent_rig *rig = rig_new(&opts);

    expect_turns(rig, true, 1000, 2 * 128);
    rig_free(rig);
}

/* Eight loads fill the arena; the others wait for space there. */
static void users_take_turns_for_space(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 8, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&opts);

    expect_turns(rig, false, 200, 40);
    rig_free(rig);
}

/* An own drive has 16 blocks of a user in work. Those of another one that come then go between
 * those that wait. */
static void users_take_turns_for_an_own_drive(void **state)
{
    enum { CLIENTS = 3, EACH = 30, FEW = 3 }; /* 32 values fit into a client's staging memory */
    const struct rig_opts opts = {.slots = 4000, .value_bytes = 20000};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *flood[CLIENTS], *other = client_of(rig, OTHERS, OTHERS);
    uint64_t tags[CLIENTS][EACH], few[FEW];
    uint32_t before = 0;

    for (uint32_t c = 0; c < CLIENTS; c++) {
        flood[c] = client_of(rig, USER, USER);
        for (uint32_t i = 0; i < EACH; i++)
            tags[c][i] = rig_put(flood[c], KV, c * EACH + i, BYTES, SHM_FLAG_ON_FLASH, 10000 * MS);
    }
    rig_run(rig, MS / 10); /* the agent has them all, and the drive a few */
    for (uint32_t i = 0; i < FEW; i++)
        few[i] = rig_put(other, KV, 1000 + i, BYTES, SHM_FLAG_ON_FLASH, 10000 * MS);
    for (uint32_t i = 0; i < FEW; i++)
        assert_int_equal(rig_wait(other, few[i])->status, ICMS_OK);
    for (uint32_t c = 0; c < CLIENTS; c++)
        before += answered(flood[c], tags[c], EACH);
    for (uint32_t c = 0; c < CLIENTS; c++) {
        for (uint32_t i = 0; i < EACH; i++)
            assert_int_equal(rig_wait(flood[c], tags[c][i])->status, ICMS_OK);
        rig_client_free(flood[c]);
    }
    print_message("  %u of %d of the flood were answered before\n", before, CLIENTS * EACH);
    assert_true(before <= 40);
    rig_client_free(other);
    rig_free(rig);
}

/* Two volumes want more than the enclosure takes: what goes there has their weights, 3:1, though
 * the light one has two users. */
static void volumes_share_queue_pairs_by_weight(void **state)
{
    enum { EACH = 900, LIGHT = 450 };
    const struct rig_opts opts = {
        .enclosures = 1, .slots = 4000, .value_bytes = 1000, .kv_weight = 3};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *heavy = client_of(rig, USER, USER);
    struct rig_client *light[] = {client_of(rig, OTHERS, OTHERS), client_of(rig, 77, 77)};
    uint64_t tags[EACH], others[2][LIGHT];
    uint32_t got, got_light[2];

    rig->fake[0]->hold = true;
    for (uint32_t i = 0; i < EACH; i++)
        tags[i] = rig_get(heavy, KV, i, SHM_SLOT_NONE, 20000 * MS);
    rig_run(rig, 50 * MS);
    for (uint32_t i = 0; i < LIGHT; i++)
        for (int user = 0; user < 2; user++)
            others[user][i] = rig_get(light[user], RAW, 1000 * (1 + (uint32_t)user) + i,
                                      SHM_SLOT_NONE, 20000 * MS);
    rig_run(rig, 50 * MS);
    rig_on_fake(rig, 0, fake_target_release);
    do {
        rig_run(rig, MS / 100);
        got = answered(heavy, tags, EACH);
    } while (got < 600);
    for (int user = 0; user < 2; user++)
        got_light[user] = answered(light[user], others[user], LIGHT);
    print_message("  %u and %u + %u\n", got, got_light[0], got_light[1]);
    /* 127 of the heavy one had gone before */
    assert_in_range(got_light[0] + got_light[1], (got - 127) / 3 - 45, (got - 127) / 3 + 45);
    assert_in_range(got_light[0], got_light[1] - 5, got_light[1] + 5);
    for (uint32_t i = 0; i < EACH; i++)
        assert_int_equal(rig_wait(heavy, tags[i])->reason, ICMS_MISS_ABSENT);
    for (int user = 0; user < 2; user++) {
        for (uint32_t i = 0; i < LIGHT; i++)
            assert_int_equal(rig_wait(light[user], others[user][i])->reason, ICMS_MISS_ABSENT);
        rig_client_free(light[user]);
    }
    rig_client_free(heavy);
    rig_free(rig);
}

static void report(struct rig_client *client, uint32_t n)
{
    (void)rig_op(client, SHM_OP_SUSPECT, KV, n, 10000 * MS);
}

/* What a user reports as damaged is loaded in its own share of the queue pair, not in one besides:
 * two users, of which one reports as much as it loads, have as much of it each. */
static void reports_of_damage_are_of_the_share_of_who_reports(void **state)
{
    enum { EACH = 120, QUEUE = 127 };
    const struct rig_opts opts = {.enclosures = 1, .slots = 4000, .value_bytes = 1000};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *reporter = client_of(rig, USER, USER);
    struct rig_client *other = client_of(rig, OTHERS, OTHERS);
    uint64_t tags[EACH];
    uint32_t got, reporters;

    rig->fake[0]->hold = true;
    for (uint32_t i = 0; i < QUEUE; i++)
        (void)rig_prestage(reporter, 5000 + i, 10000 * MS);
    rig_run(rig, 50 * MS);
    for (uint32_t i = 0; i < EACH; i++) {
        (void)rig_prestage(reporter, i, 10000 * MS);
        report(reporter, 1000 + i);
        tags[i] = rig_prestage(other, 2000 + i, 10000 * MS);
    }
    rig_run(rig, 50 * MS);
    rig_on_fake(rig, 0, fake_target_release);
    do {
        rig_run(rig, MS / 100);
        got = answered(other, tags, EACH);
    } while (got < EACH / 2);
    reporters = rig->fake[0]->retrieves - QUEUE - got;
    print_message("  %u, and %u of who reports\n", got, reporters);
    assert_in_range(reporters, got / 2, got * 3 / 2);
    rig_client_free(reporter);
    rig_client_free(other);
    rig_free(rig);
}

/* A report is over with the deadline of a load, however late who reports wants it to be. */
static void a_report_of_damage_has_the_deadline_of_a_load(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 4000, .value_bytes = 1000};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = client_of(rig, USER, USER);
    const uint32_t *used = &rig->agent->reactors[0].ops_used[IO_CLASS_PRESTAGE];

    rig->fake[0]->hold = true;
    report(client, 1);                              /* a long one of its own */
    (void)rig_op(client, SHM_OP_SUSPECT, KV, 2, 0); /* that of the agent     */
    (void)rig_op(client, SHM_OP_SUSPECT, KV, 3, 5 * MS);
    rig_run(rig, MS);
    assert_int_equal(*used, 3);
    rig_run(rig, 100 * MS);
    assert_int_equal(*used, 2);
    rig_run(rig, (uint64_t)rig->opts.load_deadline_ms * MS);
    assert_int_equal(*used, 0);
    rig_client_free(client);
    rig_free(rig);
}

/* The user's line for a volume in what agent_user_stats tells; false: there is none. */
static bool user_stats(struct agent_rig *rig, uint32_t uid, uint32_t volume,
                       struct agent_user_stats *out_stats)
{
    for (uint32_t i = 0; i < AGENT_USERS; i++)
        if (agent_user_stats(rig->agent, i, volume, out_stats) && !out_stats->owner &&
            out_stats->uid == uid)
            return true;
    return false;
}

/* What users did is told by user and volume, to each user its own; a place that goes to another
 * user begins with nothing. */
static void what_users_do_is_counted_and_told_to_them(void **state)
{
    const struct rig_opts opts = {
        .enclosures = 1, .slots = 8, .block_bytes = BYTES, .backlog_bytes = 4 * 21000};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *first = client_of(rig, USER, USER), *second = client_of(rig, USER, USER);
    struct rig_client *other = client_of(rig, OTHERS, OTHERS);
    const struct agent_user user = {.uid = USER, .gid = USER};
    struct agent_user_stats stats;
    static char text[65536];

    rig->fake[0]->hold_stores = true;
    assert_int_equal(put_some(first, KV, 0, 3) + put_some(second, KV, 3, 3), 4);
    assert_true(user_stats(rig, USER, KV, &stats));
    assert_int_equal(stats.requests, 6);
    assert_int_equal(stats.store_bytes, 4 * BYTES);
    assert_int_equal(stats.sheds, 2);
    assert_int_equal(stats.clients, 2);
    assert_true(stats.backlog_bytes >= 4 * BYTES);
    assert_false(user_stats(rig, OTHERS, KV, &stats));
    assert_false(user_stats(rig, USER, RAW, &stats));
    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_wait(other, rig_get(other, KV, 1, SHM_SLOT_NONE, 0))->status, ICMS_OK);
    assert_true(user_stats(rig, OTHERS, KV, &stats));
    assert_int_equal(stats.load_bytes, BYTES);
    assert_int_equal(stats.load_pod_bytes + stats.load_local_bytes, 0); /* it was in memory */
    assert_true(agent_status_as(rig->agent, &user, text, sizeof(text)) < sizeof(text));
    assert_non_null(strstr(text, "\"user\":\"1001\""));
    assert_null(strstr(text, "\"user\":\"1003\""));
    assert_true(agent_status(rig->agent, text, sizeof(text)) < sizeof(text));
    assert_non_null(strstr(text, "\"user\":\"1003\""));
    rig_client_free(first);
    rig_client_free(second);
    for (uint32_t uid = 5000; uid < 5000 + LIMIT_CLIENTS; uid++) /* more than there are places */
        rig_client_free(client_of(rig, uid, uid));
    assert_false(user_stats(rig, USER, KV, &stats));
    first = client_of(rig, USER, USER);
    assert_int_equal(put_some(first, KV, 50, 1), 1);
    rig_run(rig, 100 * MS);
    assert_true(user_stats(rig, USER, KV, &stats));
    assert_int_equal(stats.requests, 1);
    assert_int_equal(stats.store_bytes, BYTES);
    rig_client_free(first);
    rig_client_free(other);
    rig_free(rig);
}

/* Requests that waited are counted, with the time. */
static void waits_of_users_are_counted(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 8, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = client_of(rig, USER, USER);
    struct agent_user_stats stats;
    uint64_t tags[20];

    rig->fake[0]->hold = true;
    for (uint32_t i = 0; i < 20; i++)
        tags[i] = rig_get(client, KV, i, SHM_SLOT_NONE, 10000 * MS);
    rig_run(rig, 50 * MS);
    rig_on_fake(rig, 0, fake_target_release);
    for (uint32_t i = 0; i < 20; i++)
        (void)rig_wait(client, tags[i]);
    rig_run(rig, MS);
    assert_true(user_stats(rig, USER, KV, &stats));
    assert_in_range(stats.waits, 12, 19); /* the others had space at once */
    assert_in_range(stats.wait_us, stats.waits * 49000, stats.waits * 60000);
    rig_client_free(client);
    rig_free(rig);
}

static void keys_chosen_for_one_chain_do_not_make_it_long(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 64};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    const struct shm_arena *arena = &client->arenas[KV];
    uint32_t head = 0, longest = 0, found = 0;

    for (uint32_t n = 0; found < 3 * SHM_CHAIN_STEPS_MAX; n++) {
        struct key key;

        rig_key(n, &key);
        if (shm_arena_head(arena->hash_seed, arena->head_count, &key) != head)
            continue;
        found++;
        assert_int_equal(rig_wait(client, rig_put(client, KV, n, 100, 0, 0))->status, ICMS_OK);
        assert_true(rig_arena_has(arena, &key)); /* the newest is found */
        if (chain_length(arena, head) > longest)
            longest = chain_length(arena, head);
    }
    assert_int_equal(longest, SHM_CHAIN_STEPS_MAX);
    rig_client_free(client);
    assert_int_equal(rig_stats(rig)->in_flight, 0);
    rig_free(rig);
}

/* Two agents do not hash alike, nor one and the same after a restart. */
static void seeds_are_not_guessed(void **state)
{
    uint64_t seeds[2];

    for (uint64_t i = 0; i < 2; i++) {
        const struct rig_opts opts = {.enclosures = 1, .seed = 1 + i};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *client = rig_client_new(rig);

        assert_true(client->arenas[KV].hash_seed != client->arenas[RAW].hash_seed);
        seeds[i] = client->arenas[KV].hash_seed;
        rig_client_free(client);
        rig_free(rig);
    }
    assert_true(seeds[0] != seeds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(users_and_members_of_groups_get_a_volume_and_others_do_not),
        cmocka_unit_test(a_forbidden_volume_is_as_if_it_did_not_exist),
        cmocka_unit_test(what_others_do_there_is_not_seen),
        cmocka_unit_test(what_is_written_of_a_forbidden_volume_counts_for_nothing),
        cmocka_unit_test(a_user_has_its_share_of_the_clients),
        cmocka_unit_test(a_flood_of_stores_leaves_another_user_its_part),
        cmocka_unit_test(a_number_of_users_that_is_behind_is_no_harm),
        cmocka_unit_test(a_flood_of_loads_does_not_hold_up_another_user),
        cmocka_unit_test(volumes_share_the_backlog_by_weight),
        cmocka_unit_test(users_take_turns_for_operations),
        cmocka_unit_test(users_take_turns_for_space),
        cmocka_unit_test(users_take_turns_for_an_own_drive),
        cmocka_unit_test(volumes_share_queue_pairs_by_weight),
        cmocka_unit_test(reports_of_damage_are_of_the_share_of_who_reports),
        cmocka_unit_test(a_report_of_damage_has_the_deadline_of_a_load),
        cmocka_unit_test(what_users_do_is_counted_and_told_to_them),
        cmocka_unit_test(waits_of_users_are_counted),
        cmocka_unit_test(keys_chosen_for_one_chain_do_not_make_it_long),
        cmocka_unit_test(seeds_are_not_guessed),
    };

    return cmocka_run_group_tests_name("agent-access", tests, NULL, NULL);
}
