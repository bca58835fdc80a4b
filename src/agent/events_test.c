/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an agent says of blocks that come into its tiers and leave them: a model that follows the
 * events has exactly the blocks that the agent has, and reactors never wait for whoever takes them.
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

#define KV    0
#define RAW   1
#define BYTES 20000u
#define KEYS  64
#define SLOTS 16
#define WAIT  (5000 * RIG_MS)

#define OF_KV  ((uint64_t)1 << KV)
#define OF_RAW ((uint64_t)1 << RAW)

/* What a router believes: how often a block was stored and not removed, by tier. */
struct model {
    int there[2][KEYS];
    uint64_t stored[2], removed[2], cleared;
    bool is_wrong; /* a block left a tier that it was not in, or came to one where it was */
};

static uint64_t hash_of(uint32_t n)
{
    struct key key;

    rig_key(n, &key);
    return agent_event_hash(&key);
}

static void model_take(struct model *model, const struct agent_event *event)
{
    if (event->kind == AGENT_EVENT_CLEARED) {
        model->cleared++;
        memset(model->there, 0, sizeof(model->there));
        return;
    }
    for (uint32_t n = 0; n < KEYS; n++)
        if (hash_of(n) == event->hash) {
            int *there = &model->there[event->tier][n];
            bool is_stored = event->kind == AGENT_EVENT_STORED;

            model->is_wrong |= is_stored ? *there != 0 : *there != 1;
            *there = is_stored;
        }
    if (event->kind == AGENT_EVENT_STORED)
        model->stored[event->tier]++;
    else
        model->removed[event->tier]++;
}

static size_t follow(struct agent_rig *rig, struct model *model)
{
    struct agent_event events[7];
    size_t count, all = 0;

    while ((count = agent_events_take(rig->agent, events, 7)) > 0) {
        all += count;
        for (size_t i = 0; i < count; i++)
            model_take(model, &events[i]);
    }
    return all;
}

static bool in_memory(struct agent_rig *rig, uint32_t n)
{
    struct key key;
    bool there = false;

    rig_key(n, &key);
    for (uint32_t r = 0; r < rig->agent->reactor_count; r++)
        there |= agent_shard_find(&rig->agent->reactors[r].shards[KV], &key) != SHM_SLOT_NONE;
    return there;
}

static void memory_is_followed(void **state)
{
    const struct rig_opts opts = {
        .enclosures = 1, .loops = 3, .slots = SLOTS / 2, .block_bytes = BYTES, .events = OF_KV};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    static struct model model;

    memset(&model, 0, sizeof(model));
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t n = 0; n < KEYS; n++) {
            (void)rig_wait(client, rig_put(client, KV, n, BYTES, 0, WAIT));
            if (n % 5 == 4)
                (void)rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, n, WAIT));
        }
    (void)rig_wait(client, rig_put(client, RAW, 1, BYTES, 0, WAIT)); /* nobody wants those of raw */
    assert_true(follow(rig, &model) > (size_t)2 * KEYS);
    assert_false(model.is_wrong);
    for (uint32_t n = 0; n < KEYS; n++)
        assert_int_equal(model.there[AGENT_EVENT_DRAM][n], in_memory(rig, n));
    assert_true(model.removed[AGENT_EVENT_DRAM] > 0);
    assert_true(model.stored[AGENT_EVENT_DRAM] > model.removed[AGENT_EVENT_DRAM]);
    assert_int_equal(model.stored[AGENT_EVENT_LOCAL], 0);
    assert_int_equal(follow(rig, &model), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* A drive beside a pod, with blocks that were read and evicted from memory. */
static struct agent_rig *rig_with_drive(void)
{
    const struct rig_opts opts = {.enclosures = 1,
                                  .slots = SLOTS,
                                  .block_bytes = BYTES,
                                  .own_drive_bytes = (uint64_t)64 << 20,
                                  .events = OF_KV};

    return rig_new(&opts);
}

static void fill_drive(struct agent_rig *rig, struct rig_client *client)
{
    for (uint32_t n = 0; n < KEYS; n++) {
        rig_flash(rig, 0, KV, n, BYTES);
        (void)rig_load(client, KV, n, BYTES);
        rig_run(rig, 20 * RIG_MS);
    }
}

/* Returns how many blocks it believes to be on the drive, which are those that are there. */
static uint32_t drive_is_followed(struct agent_rig *rig, const struct model *model)
{
    const struct agent_shard *shard = &rig->agent->reactors[0].shards[KV];
    uint32_t count = 0;
    struct key key;

    assert_false(model->is_wrong);
    for (uint32_t n = 0; n < KEYS; n++) {
        rig_key(n, &key);
        assert_int_equal(model->there[AGENT_EVENT_DRAM][n], in_memory(rig, n));
        assert_int_equal(model->there[AGENT_EVENT_LOCAL][n], agent_tier_has(shard, &key));
        count += (uint32_t)model->there[AGENT_EVENT_LOCAL][n];
    }
    return count;
}

/* A drive instead of a pod, with all keys; the model is empty. */
static struct agent_rig *rig_with_drive_alone(struct model *out_model, uint32_t flags,
                                              struct rig_client **out_client)
{
    const struct rig_opts opts = {.slots = SLOTS, .block_bytes = BYTES, .events = OF_KV};
    struct agent_rig *rig = rig_new(&opts);

    memset(out_model, 0, sizeof(*out_model));
    *out_client = rig_client_new(rig);
    for (uint32_t n = 0; n < KEYS; n++)
        (void)rig_wait(*out_client, rig_put(*out_client, KV, n, BYTES, flags, WAIT));
    return rig;
}

/* Blocks go from memory to the drive, and leave that when it is full. */
static void the_own_drive_is_followed(void **state)
{
    struct agent_rig *rig = rig_with_drive();
    struct rig_client *client = rig_client_new(rig);
    static struct model model;

    memset(&model, 0, sizeof(model));
    fill_drive(rig, client);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, 0, WAIT))->status, ICMS_OK);
    rig_run(rig, 50 * RIG_MS);
    (void)follow(rig, &model);
    (void)drive_is_followed(rig, &model);
    assert_true(model.stored[AGENT_EVENT_LOCAL] >= SLOTS);
    assert_int_equal(model.removed[AGENT_EVENT_LOCAL], 1);
    rig_client_free(client);
    rig_free(rig);
}

/* Without a pod the drive has what memory has, and all else. */
static void a_drive_instead_of_a_pod_is_followed(void **state)
{
    static struct model model;
    struct rig_client *client;
    struct agent_rig *rig = rig_with_drive_alone(&model, 0, &client);
    int there = 0;

    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_FLUSH, KV, 0, WAIT))->status, ICMS_OK);
    (void)follow(rig, &model);
    assert_false(model.is_wrong);
    for (uint32_t n = 0; n < KEYS; n++)
        there += model.there[AGENT_EVENT_LOCAL][n];
    assert_int_equal(there, KEYS);
    rig_client_free(client);
    rig_free(rig);
}

static void what_the_drive_kept_is_told(void **state)
{
    struct agent_rig *rig = rig_with_drive();
    struct rig_client *client = rig_client_new(rig);
    static struct model model;
    uint32_t kept;

    memset(&model, 0, sizeof(model));
    fill_drive(rig, client);
    (void)follow(rig, &model);
    kept = drive_is_followed(rig, &model);
    assert_true(kept > AGENT_TELL);
    rig_client_free(client);
    rig_restart(rig, true);
    memset(&model, 0, sizeof(model));
    rig_run(rig, 50 * RIG_MS);
    (void)follow(rig, &model);
    assert_int_equal(drive_is_followed(rig, &model), kept);
    client = rig_client_new(rig);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, 1, WAIT))->status, ICMS_OK);
    rig_run(rig, 50 * RIG_MS);
    (void)follow(rig, &model);
    assert_int_equal(drive_is_followed(rig, &model), kept - 1);
    rig_client_free(client);
    rig_free(rig);
}

/* What a drive had that is out of service is cleared; what is in memory is told again. */
static void a_lost_drive_is_told(void **state)
{
    struct agent_rig *rig = rig_with_drive();
    struct rig_client *client = rig_client_new(rig);
    static struct model model;
    uint32_t in_arena = 0;

    memset(&model, 0, sizeof(model));
    fill_drive(rig, client);
    (void)follow(rig, &model);
    assert_true(drive_is_followed(rig, &model) > 0);
    sim_disk_dead(rig->node, RIG_DRIVE, true);
    for (uint32_t n = 0; n < KEYS && rig_stats(rig)->tier.state != AGENT_TIER_DOWN; n++)
        (void)rig_load(client, KV, n, BYTES);
    assert_int_equal(rig_stats(rig)->tier.state, AGENT_TIER_DOWN);
    for (uint32_t n = 0; n < 3; n++) /* while it is told */
        (void)rig_load(client, KV, n, BYTES);
    rig_run(rig, 50 * RIG_MS);
    (void)follow(rig, &model);
    assert_int_equal(model.cleared, 1);
    assert_int_equal(drive_is_followed(rig, &model), 0);
    for (uint32_t n = 0; n < KEYS; n++)
        in_arena += (uint32_t)model.there[AGENT_EVENT_DRAM][n];
    assert_true(in_arena >= SLOTS / 2);
    rig_client_free(client);
    rig_free(rig);
}

/* A volume that is reset has nothing there; one that has its UUID of before has what is still
 * there.
 */
static void what_a_volume_finds_on_the_drive_is_told(void **state)
{
    struct agent_rig *rig = rig_with_drive();
    struct rig_client *client = rig_client_new(rig);
    struct agent_identity identities[RIG_VOLUMES] = {0};
    static struct model model;
    struct err_why why;
    struct key key;
    uint32_t kept;

    memset(&model, 0, sizeof(model));
    fill_drive(rig, client);
    (void)follow(rig, &model);
    kept = drive_is_followed(rig, &model);
    for (int i = 0; i < RIG_VOLUMES; i++)
        identities[i].uuid = rig->volumes[i].uuid;
    identities[KV].uuid.bytes[0] ^= 0x55;
    rig->identities = identities;
    assert_int_equal(rig_pod(rig, 1, rig->enclosures, rig->enclosure_count, &why), ICMS_OK);
    rig_run(rig, 50 * RIG_MS);
    (void)follow(rig, &model);
    assert_int_equal(drive_is_followed(rig, &model), 0);
    identities[KV].uuid = rig->volumes[KV].uuid;
    rig_key(KEYS, &key);
    for (uint32_t i = 0; i <= AGENT_EVENTS / 2; i++)
        agent_event_put(&rig->agent->reactors[0].shards[KV], &key, AGENT_EVENT_REMOVED,
                        AGENT_EVENT_DRAM);
    assert_int_equal(rig_pod(rig, 2, rig->enclosures, rig->enclosure_count, &why), ICMS_OK);
    rig_run(rig, 50 * RIG_MS);
    model.stored[AGENT_EVENT_LOCAL] = 0;
    assert_int_equal(follow(rig, &model), AGENT_EVENTS / 2 + 2);
    assert_int_equal(model.cleared, 2);
    for (int i = 0; i < 10 && model.stored[AGENT_EVENT_LOCAL] == 0; i++) {
        rig_run(rig, RIG_MS / 2);
        (void)follow(rig, &model);
    }
    assert_int_equal(model.stored[AGENT_EVENT_LOCAL], AGENT_TELL);
    rig_run(rig, 50 * RIG_MS);
    (void)follow(rig, &model);
    assert_int_equal(drive_is_followed(rig, &model), kept);
    rig_client_free(client);
    rig_free(rig);
}

/* The same of a drive without a pod. */
static void a_drive_instead_of_a_pod_is_told_again(void **state)
{
    static struct model model;
    struct rig_client *client;
    struct agent_rig *rig = rig_with_drive_alone(&model, SHM_FLAG_ON_FLASH, &client);
    int there[2] = {0, 0};

    rig_client_free(client);
    rig_restart(rig, true);
    rig_run(rig, 50 * RIG_MS);
    (void)follow(rig, &model);
    assert_false(model.is_wrong);
    assert_int_equal(model.stored[AGENT_EVENT_LOCAL], KEYS);
    client = rig_client_new(rig);
    for (uint32_t n = 0; n < 4; n++)
        (void)rig_load(client, KV, n, BYTES);
    sim_disk_dead(rig->node, RIG_DRIVE, true);
    for (uint32_t n = 4; n < 4 + SLOTS; n++)
        (void)rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, WAIT));
    rig_run(rig, 50 * RIG_MS);
    (void)follow(rig, &model);
    assert_int_equal(model.cleared, 1);
    for (uint32_t n = 0; n < KEYS; n++) {
        there[AGENT_EVENT_LOCAL] += model.there[AGENT_EVENT_LOCAL][n];
        there[AGENT_EVENT_DRAM] += model.there[AGENT_EVENT_DRAM][n];
        assert_int_equal(model.there[AGENT_EVENT_DRAM][n], in_memory(rig, n));
    }
    assert_int_equal(there[AGENT_EVENT_LOCAL], 0);
    assert_int_equal(there[AGENT_EVENT_DRAM], 4);
    rig_client_free(client);
    rig_free(rig);
}

/* A reset says so once for each reactor, and nothing of the blocks that go with it. */
static void a_reset_clears(void **state)
{
    const struct rig_opts opts = {
        .enclosures = 1, .loops = 2, .slots = SLOTS, .block_bytes = BYTES, .events = OF_KV};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    struct agent_identity identities[RIG_VOLUMES] = {0};
    static struct model model;
    struct err_why why;

    memset(&model, 0, sizeof(model));
    for (uint32_t n = 0; n < 10; n++)
        (void)rig_wait(client, rig_put(client, KV, n, BYTES, 0, WAIT));
    (void)follow(rig, &model);
    assert_int_equal(model.stored[AGENT_EVENT_DRAM], 10);
    for (int i = 0; i < RIG_VOLUMES; i++)
        identities[i].uuid = rig->volumes[i].uuid;
    identities[KV].uuid.bytes[0] ^= 0x55;
    rig->identities = identities;
    assert_int_equal(rig_pod(rig, 1, rig->enclosures, rig->enclosure_count, &why), ICMS_OK);
    rig_run(rig, 50 * RIG_MS);
    assert_int_equal(follow(rig, &model), 1); /* of both reactors */
    assert_int_equal(model.cleared, 1);
    rig_client_free(client);
    rig_free(rig);
}

/* What one reactor stored since the reset stays, though another one clears later, or its clearing
 * was lost; what is left of before is told no more. */
static void a_reset_clears_once(void **state)
{
    const struct rig_opts opts = {
        .enclosures = 1, .loops = 2, .slots = SLOTS, .block_bytes = BYTES, .events = OF_KV};
    struct agent_rig *rig = rig_new(&opts);
    struct agent_shard *first = &rig->agent->reactors[0].shards[KV];
    struct agent_shard *second = &rig->agent->reactors[1].shards[KV];
    static struct model model;
    struct key key;

    memset(&model, 0, sizeof(model));
    (void)follow(rig, &model);
    model.cleared = 0;
    rig_key(1, &key);
    agent_event_put(second, &key, AGENT_EVENT_STORED, AGENT_EVENT_DRAM); /* goes with the reset */
    first->change++;
    agent_event_put(first, NULL, AGENT_EVENT_CLEARED, AGENT_EVENT_DRAM);
    rig_key(2, &key);
    agent_event_put(first, &key, AGENT_EVENT_STORED, AGENT_EVENT_DRAM);
    assert_int_equal(follow(rig, &model), 2);
    second->change++;
    agent_event_put(second, NULL, AGENT_EVENT_CLEARED, AGENT_EVENT_DRAM);
    rig_key(3, &key);
    agent_event_put(second, &key, AGENT_EVENT_STORED, AGENT_EVENT_DRAM);
    assert_int_equal(follow(rig, &model), 1);
    assert_int_equal(model.cleared, 1);
    for (uint32_t n = 1; n <= 3; n++)
        assert_int_equal(model.there[AGENT_EVENT_DRAM][n], n != 1);

    first->change++; /* its clearing finds no space */
    rig_key(4, &key);
    agent_event_put(first, &key, AGENT_EVENT_STORED, AGENT_EVENT_DRAM);
    assert_int_equal(follow(rig, &model), 2);
    assert_int_equal(model.cleared, 2);
    for (uint32_t n = 1; n <= 4; n++)
        assert_int_equal(model.there[AGENT_EVENT_DRAM][n], n == 4);
    assert_false(model.is_wrong);
    rig_free(rig);
}

/* Fills the ring with events of a block that nobody asks of. */
static void fill_ring(struct agent_rig *rig, uint32_t reactor)
{
    struct agent_shard *shard = &rig->agent->reactors[reactor].shards[KV];
    struct key key;

    rig_key(KEYS + 1, &key);
    while (atomic_load(&shard->events->head) - atomic_load(&shard->events->tail) < AGENT_EVENTS)
        agent_event_put(shard, &key, AGENT_EVENT_STORED, AGENT_EVENT_DRAM);
}

static void change_blocks(struct rig_client *client, uint32_t first)
{
    for (uint32_t n = first; n < KEYS; n += 2)
        (void)rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, n, WAIT));
    for (uint32_t n = first + 1; n < KEYS; n += 2)
        (void)rig_wait(client, rig_put(client, KV, n, BYTES, 0, WAIT));
}

static void what_is_believed_is_so(struct agent_rig *rig, const struct model *model)
{
    uint32_t there = 0;

    for (uint32_t n = 0; n < KEYS; n++) {
        assert_int_equal(model->there[AGENT_EVENT_DRAM][n], in_memory(rig, n));
        there += in_memory(rig, n);
    }
    assert_true(there > 0);
}

/* Nobody takes them: what finds no space is counted, and the agent goes on. When they are taken
 * again all is told anew, of all reactors, once; and once more when that is lost, too. */
static void what_nobody_takes_is_lost(void **state)
{
    for (uint32_t loops = 1; loops <= 2; loops++) {
        const struct rig_opts opts = {
            .enclosures = 1, .loops = loops, .slots = SLOTS, .block_bytes = BYTES, .events = OF_KV};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *client = rig_client_new(rig);
        static struct model model;
        uint64_t lost;

        memset(&model, 0, sizeof(model));
        change_blocks(client, 0);
        (void)follow(rig, &model);
        what_is_believed_is_so(rig, &model);
        fill_ring(rig, 0);
        change_blocks(client, 1); /* other blocks go than came before */
        lost = agent_events_lost(rig->agent, KV);
        assert_true(lost > 0);
        rig_run(rig, 1000 * RIG_MS); /* nothing is told while nobody takes */
        assert_int_equal(agent_events_lost(rig->agent, KV), lost);
        (void)follow(rig, &model);
        assert_int_equal(model.cleared, 0);
        rig_run(rig, 100 * RIG_MS);
        (void)follow(rig, &model);
        assert_int_equal(model.cleared, 1);
        what_is_believed_is_so(rig, &model);
        assert_int_equal(agent_events_lost(rig->agent, KV), lost);
        rig_run(rig, 1000 * RIG_MS); /* and that was all */
        assert_int_equal(follow(rig, &model), 0);
        /* lost again, also what is told anew */
        fill_ring(rig, 0);
        change_blocks(client, 0);
        (void)follow(rig, &model);
        rig_run(rig, 3 * RIG_MS);
        fill_ring(rig, loops - 1);
        change_blocks(client, 1);
        for (int i = 0; i < 10; i++) {
            (void)follow(rig, &model);
            rig_run(rig, 100 * RIG_MS);
        }
        assert_in_range(model.cleared, 2, 4);
        what_is_believed_is_so(rig, &model);
        assert_int_equal(follow(rig, &model), 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

static void nobody_wants_them(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = SLOTS, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    struct agent_event event;

    assert_int_equal(rig_wait(client, rig_put(client, KV, 2, BYTES, 0, WAIT))->status, ICMS_OK);
    assert_null(rig->agent->reactors[0].events);
    assert_int_equal(agent_events_take(rig->agent, &event, 1), 0);
    assert_int_equal(agent_events_lost(rig->agent, KV), 0);
    rig_client_free(client);
    rig_free(rig);
}

static void a_hash_is_the_end_of_the_key(void **state)
{
    struct key key = {.bytes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0xff},
                      .length = 16};

    assert_true(agent_event_hash(&key) == 0x090a0b0c0d0e0fffu);
    key.length = 9;
    assert_true(agent_event_hash(&key) == 0x0203040506070809u);
    key.length = 2;
    assert_true(agent_event_hash(&key) == 0x0102u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_followed),
        cmocka_unit_test(the_own_drive_is_followed),
        cmocka_unit_test(a_drive_instead_of_a_pod_is_followed),
        cmocka_unit_test(what_the_drive_kept_is_told),
        cmocka_unit_test(a_lost_drive_is_told),
        cmocka_unit_test(what_a_volume_finds_on_the_drive_is_told),
        cmocka_unit_test(a_drive_instead_of_a_pod_is_told_again),
        cmocka_unit_test(a_reset_clears),
        cmocka_unit_test(a_reset_clears_once),
        cmocka_unit_test(what_nobody_takes_is_lost),
        cmocka_unit_test(nobody_wants_them),
        cmocka_unit_test(a_hash_is_the_end_of_the_key),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
