/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints of blocks on enclosures that are alive and do not answer: they hold up hints of others for
 * a second each, hold little of what the agent has, and go on when their enclosure does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "agent/prestage_int.h"

#define MS    RIG_MS
#define KV    0
#define BYTES 20000u

/* Loads in flight to one enclosure at most: each counts as 64 KiB or a little more. */
#define SERVER_LOADS 64

static const uint32_t to_memory = ICMS_TIER_DRAM;

static struct agent_rig *rig_of(struct rig_opts opts)
{
    opts.seed = 17;
    opts.slots = 2048;
    opts.block_bytes = BYTES;
    opts.pin_percent = 50;
    return rig_new(&opts);
}

/* Enclosures first .. last answer nothing that is prestaged, or what they were asked and will be.
 */
static void silent(struct agent_rig *rig, uint32_t first, uint32_t last, bool is_silent)
{
    for (uint32_t i = first; i <= last; i++) {
        rig->fake[i]->hold_prestage = is_silent;
        if (!is_silent)
            rig_on_fake(rig, i, fake_target_release);
    }
}

/* The first `count` keys from `first` on that belong to an enclosure; stored there. */
static void keys_of(struct agent_rig *rig, uint32_t enclosure, uint32_t first, uint32_t count,
                    uint32_t *out_keys)
{
    for (uint32_t n = first, found = 0; found < count; n++)
        if (rig_owner(rig, KV, n) == enclosure) {
            rig_flash(rig, enclosure, KV, n, BYTES);
            out_keys[found++] = n;
        }
}

static void hints(struct rig_client *client, const uint32_t *keys, uint32_t count, uint64_t need_ns,
                  uint32_t hint)
{
    for (uint32_t i = 0; i < count; i++)
        assert_true(rig_hint(client, keys[i], need_ns, hint, 0));
}

/* A client of an agent with two enclosures, of which the first is silent, and its hints for so many
 * keys there. */
static struct rig_client *client_of_silent(uint32_t *out_keys, uint32_t count, uint64_t need_ns,
                                           uint32_t hint)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.enclosures = 2});
    struct rig_client *client = rig_client_new(rig);

    keys_of(rig, 0, 0, count, out_keys);
    silent(rig, 0, 0, true);
    hints(client, out_keys, count, need_ns, hint);
    return client;
}

static uint32_t in_arena(const struct rig_client *client, const uint32_t *keys, uint32_t count)
{
    uint32_t there = 0;

    for (uint32_t i = 0; i < count; i++)
        there += rig_in_arena(client, KV, keys[i]);
    return there;
}

/* Nothing is in flight, and nothing is counted as if it were. */
static void assert_idle(const struct agent_rig *rig)
{
    const struct agent_prestage *prestage = rig->agent->reactors[0].prestage;

    assert_int_equal(prestage->window_bytes, 0);
    assert_int_equal(prestage->drive_loads, 0);
    for (uint32_t i = 0; i < RIG_VOLUMES; i++)
        assert_int_equal(rig->agent->reactors[0].shards[i].hint_bytes, 0);
    for (int i = 0; i < HINT_PACES; i++) {
        assert_int_equal(prestage->paces[i].load_bytes, 0);
        assert_int_equal(prestage->paces[i].overdue_bytes, 0);
    }
}

static void it_holds_others_up_for_a_second(void **state)
{
    enum { COUNT = 200 };
    struct agent_rig *rig = rig_of((struct rig_opts){.enclosures = 2});
    struct rig_client *client = rig_client_new(rig);
    uint32_t silents[COUNT], others[COUNT];

    keys_of(rig, 0, 0, COUNT, silents);
    keys_of(rig, 1, 10000, COUNT, others);
    silent(rig, 0, 0, true);
    hints(client, silents, COUNT, 20000 * MS, to_memory);
    hints(client, others, COUNT, 20000 * MS, to_memory);
    rig_run(rig, 1200 * MS);
    assert_int_equal(in_arena(client, others, COUNT), COUNT);
    assert_in_range(rig->fake[0]->by_class[IO_CLASS_PRESTAGE], SERVER_LOADS / 2, SERVER_LOADS);
    assert_int_equal(rig_hints_left(rig), 2 * COUNT);
    rig_run(rig, 21000 * MS); /* and nothing was held for ever */
    assert_int_equal(rig_hints_left(rig), 0);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_DROPPED], COUNT);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_UNUSED], COUNT);
    assert_int_equal(rig_hints(rig)->kept_bytes, 0);
    assert_idle(rig);
    rig_client_free(client);
    rig_free(rig);
}

static void several_hold_others_up_for_a_second_each(void **state)
{
    enum { COUNT = 200, SILENT = 3 };
    struct agent_rig *rig = rig_of((struct rig_opts){.enclosures = SILENT + 1});
    struct rig_client *client = rig_client_new(rig);
    uint32_t silents[COUNT], others[COUNT];

    silent(rig, 0, SILENT - 1, true);
    for (uint32_t i = 0; i < SILENT; i++) {
        keys_of(rig, i, 10000 * i, COUNT, silents);
        hints(client, silents, COUNT, 60000 * MS, to_memory);
    }
    keys_of(rig, SILENT, 90000, COUNT, others);
    hints(client, others, COUNT, 60000 * MS, to_memory);
    rig_run(rig, (SILENT * 1000 + 200) * MS);
    assert_int_equal(in_arena(client, others, COUNT), COUNT);
    rig_run(rig, 10000 * MS);
    for (uint32_t i = 0; i < SILENT; i++)
        assert_in_range(rig->fake[i]->by_class[IO_CLASS_PRESTAGE], SERVER_LOADS / 2, SERVER_LOADS);
    rig_client_free(client);
    rig_free(rig);
}

/* Users have turns of their own: who asks nothing of it is not held up at all. */
static void it_holds_up_no_other_volume(void **state)
{
    enum { COUNT = 100 };
    const struct agent_user user = {.uid = 1001, .gid = 1001};
    struct agent_rig *rig = rig_of((struct rig_opts){.enclosures = 2});
    icms_err err;
    struct rig_client *client = rig_client_new(rig), *other = rig_client_as(rig, &user, &err);
    uint32_t silents[COUNT], others[COUNT];

    assert_non_null(other);
    keys_of(rig, 0, 0, COUNT, silents);
    keys_of(rig, 1, 10000, COUNT, others);
    silent(rig, 0, 0, true);
    hints(client, silents, COUNT, 20000 * MS, to_memory);
    hints(other, others, COUNT, 20000 * MS, to_memory);
    rig_run(rig, 50 * MS);
    assert_int_equal(in_arena(client, others, COUNT), COUNT);
    rig_client_free(other);
    rig_client_free(client);
    rig_free(rig);
}

static void its_hints_go_on_when_it_does(void **state)
{
    enum { COUNT = 200 };
    uint32_t keys[COUNT];
    struct rig_client *client = client_of_silent(keys, COUNT, 20000 * MS, to_memory);
    struct agent_rig *rig = client->rig;

    rig_run(rig, 3000 * MS);
    assert_int_equal(in_arena(client, keys, COUNT), 0);
    silent(rig, 0, 0, false);
    rig_run(rig, 600 * MS);
    assert_int_equal(in_arena(client, keys, COUNT), COUNT);
    assert_idle(rig);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_true(rig_load(client, KV, keys[i], BYTES));
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_IN_TIME], COUNT);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* One small load that never ends is not enough to rest, and holds nothing up, however large. */
static void one_load_that_is_lost_holds_no_large_one_up(void **state)
{
    enum { LOST_BYTES = 64 << 10 };
    struct agent_rig *rig = rig_of((struct rig_opts){.enclosures = 2, .value_bytes = 8 << 20});
    struct rig_client *client = rig_client_new(rig);
    struct agent_reactor *reactor = &rig->agent->reactors[0];
    struct hint_pace *pace = &reactor->prestage->paces[reactor->enclosures[0].number];
    uint32_t key;

    keys_of(rig, 0, 0, 1, &key);
    pace->load_bytes = pace->overdue_bytes = LOST_BYTES;
    hints(client, &key, 1, 5000 * MS, to_memory); /* counts as the largest block */
    rig_run(rig, 50 * MS);
    assert_true(rig_in_arena(client, KV, key));
    pace->load_bytes -= LOST_BYTES;
    pace->overdue_bytes -= LOST_BYTES;
    assert_idle(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* As one that answers after a while, and each time. */
static void a_slow_one_is_asked_on(void **state)
{
    enum { COUNT = 200 };
    struct agent_rig *rig = rig_of((struct rig_opts){.enclosures = 2});
    struct rig_client *client = rig_client_new(rig);
    uint32_t keys[COUNT];

    keys_of(rig, 0, 0, COUNT, keys);
    rig->fake[0]->delay_ns = 1500 * MS;
    hints(client, keys, COUNT, 60000 * MS, to_memory);
    rig_run(rig, 4 * 2100 * MS); /* four times as many as may be in flight */
    assert_int_equal(in_arena(client, keys, COUNT), COUNT);
    assert_idle(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* Those that rest are asked for, taken back, and over in time. */
static void what_rests_is_a_hint_as_any_other(void **state)
{
    enum { COUNT = 200 };
    uint32_t keys[COUNT];
    struct rig_client *client = client_of_silent(keys, COUNT, 5000 * MS, to_memory);
    struct agent_rig *rig = client->rig;

    rig_run(rig, 2000 * MS);
    assert_in_range(rig_hints(rig)->loading, SERVER_LOADS / 2, SERVER_LOADS);
    assert_int_equal(rig_hints(rig)->queued, COUNT - rig_hints(rig)->loading);
    assert_false(rig_load(client, KV, keys[COUNT - 1], BYTES));
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_LATE], 1);
    assert_true(rig_hint(client, keys[COUNT - 2], 0, to_memory, SHM_FLAG_FORGET));
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_CANCELED], 1);
    assert_true(
        rig_hint(client, keys[COUNT - 3], 9000 * MS, to_memory, 0)); /* it may wait longer */
    rig_run(rig, 4000 * MS);
    assert_int_equal(rig_hints_left(rig), 1);
    silent(rig, 0, 0, false);
    rig_run(rig, 600 * MS);
    assert_true(rig_in_arena(client, KV, keys[COUNT - 3]));
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_DROPPED], COUNT - 3);
    rig_client_free(client);
    rig_free(rig);
}

static void a_pin_rests_until_it_answers(void **state)
{
    enum { COUNT = 100 };
    uint32_t keys[COUNT];
    struct rig_client *client =
        client_of_silent(keys, COUNT, 1000 * MS, shm_hint(to_memory, 0, 60));
    struct agent_rig *rig = client->rig;

    rig_run(rig, 5000 * MS);
    assert_in_range(rig_hints(rig)->queued, COUNT - SERVER_LOADS, COUNT - SERVER_LOADS / 2);
    silent(rig, 0, 0, false);
    rig_run(rig, 600 * MS);
    assert_int_equal(in_arena(client, keys, COUNT), COUNT);
    assert_int_equal(rig_hints(rig)->pins, COUNT);
    rig_client_free(client);
    rig_free(rig);
}

/* The drive has buffers for a few: those of others have them after a second. */
static void it_holds_no_buffer_of_the_drive(void **state)
{
    enum { COUNT = 100 };
    struct agent_rig *rig =
        rig_of((struct rig_opts){.enclosures = 2, .own_drive_bytes = (uint64_t)64 << 20});
    struct rig_client *client = rig_client_new(rig);
    uint32_t silents[COUNT], others[COUNT];

    keys_of(rig, 0, 0, COUNT, silents);
    keys_of(rig, 1, 10000, COUNT, others);
    silent(rig, 0, 0, true);
    hints(client, silents, COUNT, 60000 * MS, shm_hint(ICMS_TIER_LOCAL, 0, 0));
    hints(client, others, COUNT, 60000 * MS, shm_hint(ICMS_TIER_LOCAL, 0, 0));
    rig_run(rig, 4000 * MS);
    assert_int_equal(rig_stats(rig)->tier.prestaged, COUNT);
    silent(rig, 0, 0, false);
    rig_run(rig, 2000 * MS);
    assert_int_equal(rig_stats(rig)->tier.prestaged, 2 * COUNT);
    assert_idle(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* Four of them, each with a load of a quarter of the memory: gets have half of it. */
static void they_leave_memory_to_loads(void **state)
{
    const uint32_t pin = shm_hint(to_memory, 0, 60);
    struct agent_rig *rig = rig_new(&(struct rig_opts){
        .enclosures = 4, .slots = 4, .value_bytes = 8 << 20, .pin_percent = 100});
    struct rig_client *client = rig_client_new(rig);
    uint32_t key;

    silent(rig, 0, 3, true);
    for (uint32_t i = 0; i < 4; i++) {
        keys_of(rig, i, 1000 * i, 1, &key);
        hints(client, &key, 1, 40000 * MS, pin);
    }
    rig_run(rig, 5000 * MS);
    assert_int_equal(rig_hints(rig)->loading, 2);
    keys_of(rig, 0, 10000, 1, &key);
    assert_true(rig_value_is(client, KV, key, BYTES,
                             rig_wait(client, rig_get(client, KV, key, 9, 1000 * MS))));
    rig_lease_give(client, 9);
    silent(rig, 0, 3, false);
    rig_run(rig, 3000 * MS);
    assert_int_equal(rig_hints(rig)->waiting, 4);
    assert_idle(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* Once half of the operations are theirs, those who are silent have no more. */
static void they_leave_operations_to_others(void **state)
{
    enum { COUNT = SERVER_LOADS };
    struct agent_rig *rig = rig_of((struct rig_opts){.enclosures = 1});
    struct rig_client *client = rig_client_new(rig);
    struct agent_reactor *reactor = &rig->agent->reactors[0];
    uint32_t keys[COUNT];

    keys_of(rig, 0, 0, COUNT, keys);
    silent(rig, 0, 0, true);
    hints(client, keys, 1, 20000 * MS, to_memory);
    rig_run(rig, 1200 * MS);
    reactor->ops_used[IO_CLASS_PRESTAGE] += AGENT_OPS_OTHERS / 2;
    hints(client, keys + 1, COUNT - 1, 20000 * MS, to_memory);
    rig_run(rig, 2000 * MS);
    assert_int_equal(rig_hints(rig)->loading, 1);
    reactor->ops_used[IO_CLASS_PRESTAGE] -= AGENT_OPS_OTHERS / 2;
    silent(rig, 0, 0, false);
    rig_run(rig, 1000 * MS);
    assert_int_equal(in_arena(client, keys, COUNT), COUNT);
    assert_idle(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* What came after its time leaves nothing behind, as what never comes. */
static void its_end_ends_its_loads(void **state)
{
    enum { COUNT = 100 };
    uint32_t keys[COUNT];
    struct rig_client *client = client_of_silent(keys, COUNT, 20000 * MS, to_memory);
    struct agent_rig *rig = client->rig;

    rig_run(rig, 2000 * MS);
    rig_on_fake(rig, 0, fake_target_drop);
    rig_run(rig, 500 * MS);
    assert_int_equal(rig_hints(rig)->loading, 0);
    assert_idle(rig);
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_holds_others_up_for_a_second),
        cmocka_unit_test(several_hold_others_up_for_a_second_each),
        cmocka_unit_test(it_holds_up_no_other_volume),
        cmocka_unit_test(its_hints_go_on_when_it_does),
        cmocka_unit_test(one_load_that_is_lost_holds_no_large_one_up),
        cmocka_unit_test(a_slow_one_is_asked_on),
        cmocka_unit_test(what_rests_is_a_hint_as_any_other),
        cmocka_unit_test(a_pin_rests_until_it_answers),
        cmocka_unit_test(it_holds_no_buffer_of_the_drive),
        cmocka_unit_test(they_leave_memory_to_loads),
        cmocka_unit_test(they_leave_operations_to_others),
        cmocka_unit_test(its_end_ends_its_loads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
