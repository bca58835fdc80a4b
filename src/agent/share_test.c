/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Enclosures that are late now and then: their share of new blocks is lowered, they stay in use,
 * and no block is missed for it. base/slow_test.c has the rule by itself, slow_test.c what is
 * passed over as a whole.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "icms/icms.h"

#define MS    RIG_MS
#define KV    0
#define BYTES 20000u
#define KEYS  300u
#define AT    (3u << 20) /* of staging memory, for matches */

static const struct rig_opts ways[] = {
    {.enclosures = 3, .slots = 32, .many = true},
    {.enclosures = 3, .slots = 32},
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

/* Keys that were never asked for, and of another run each. */
static uint32_t next_key = 100000;

/* A key that the enclosure owns. */
static uint32_t key_at(struct agent_rig *rig, uint32_t enclosure)
{
    while (rig_owner(rig, KV, ++next_key) != enclosure)
        ;
    return next_key;
}

static uint32_t share_of(struct agent_rig *rig, uint32_t enclosure)
{
    return rig_stats(rig)->enclosures[enclosure].share_percent;
}

/* Whether the key is above the share of the enclosure, which owns it. */
static bool is_above(struct agent_rig *rig, uint32_t n)
{
    struct agent_reactor *reactor = &rig->agent->reactors[0];
    struct key key;

    rig_key(n, &key);
    return !agent_enclosure_takes(
        &reactor->enclosures[rig_owner(rig, KV, n)],
        place_slot(reactor->view->owners, &key, volume_has_runs(&rig->volumes[KV])));
}

/* One that is above the share of enclosure 0. */
static uint32_t key_above(struct agent_rig *rig)
{
    uint32_t n;

    do
        n = key_at(rig, 0);
    while (!is_above(rig, n));
    return n;
}

static bool has(struct agent_rig *rig, uint32_t enclosure, uint32_t n)
{
    struct key key;

    rig_key(n, &key);
    return fake_target_find(rig->fake[enclosure], KV + 1, &key) != NULL;
}

/* How many enclosures have it. */
static uint32_t copies(struct agent_rig *rig, uint32_t n)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < rig->enclosure_count; i++)
        count += has(rig, i, n);
    return count;
}

/* An absent block is asked of each enclosure; enclosure 0 is late or not. */
static void gets(struct agent_rig *rig, struct rig_client *client, bool late)
{
    rig->fake[0]->delay_ns = late ? 100 * MS : 0;
    for (uint32_t i = 0; i < 3; i++)
        (void)rig_wait(client, rig_get(client, KV, key_at(rig, i), UINT32_MAX, 1000 * MS));
    rig->fake[0]->delay_ns = 0;
}

/* So many late answers of enclosure 0, and a heartbeat. */
static void lower(struct agent_rig *rig, struct rig_client *client, uint32_t lates)
{
    for (uint32_t i = 0; i < lates; i++)
        gets(rig, client, true);
    rig_run(rig, 2 * AGENT_HEARTBEAT_NS);
}

static void put(struct rig_client *client, uint32_t n)
{
    assert_int_equal(rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 0))->status,
                     ICMS_OK);
}

/* The arena has none of what was put before. */
static void evict(struct rig_client *client)
{
    for (uint32_t i = 0; i < 150; i++)
        put(client, ++next_key);
}

static void assert_hit(struct rig_client *client, uint32_t n)
{
    const struct shm_complete *answer = rig_wait(client, rig_get(client, KV, n, 7, 1000 * MS));

    assert_true(rig_value_is(client, KV, n, BYTES, answer));
    rig_lease_give(client, 7);
}

/* Asks for keys with one request; how many are there. reason: why the first is not. */
static uint32_t matched(struct rig_client *client, uint32_t first, uint32_t count,
                        uint64_t timeout_ns, enum icms_miss *out_reason)
{
    struct shm_submit entry = {
        .op = SHM_OP_EXISTS_MANY,
        .offset = AT,
        .bytes = count,
        .deadline_ns = rig_now_ns(client->rig) + timeout_ns,
    };
    uint8_t *memory = client->ring.staging + AT;
    const uint8_t *answers = memory + count * sizeof(struct shm_key);
    uint32_t found = 0;

    for (uint32_t i = 0; i < count; i++) {
        rig_put_key(memory, i, first + i);
    }
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_OK);
    for (uint32_t i = 0; i < count; i++)
        found += answers[i] == ICMS_MISS_NONE;
    *out_reason = (enum icms_miss)answers[0];
    return found;
}

static void fewer_stores_and_no_hit_is_lost(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        uint32_t before = 1, during = 1 + KEYS, owned = 0, kept = 0;
        enum icms_miss reason;

        for (uint32_t i = 0; i < KEYS; i++)
            put(client, before + i);
        lower(rig, client, 1);
        assert_int_equal(share_of(rig, 0), 100); /* one is none */
        lower(rig, client, 1);
        assert_int_equal(share_of(rig, 0), 60);
        for (uint32_t n = during; n < during + KEYS; n++) {
            bool above = rig_owner(rig, KV, n) == 0 && is_above(rig, n);

            put(client, n);
            owned += rig_owner(rig, KV, n) == 0;
            kept += has(rig, 0, n);
            assert_int_equal(copies(rig, n), 1);
            assert_int_equal(has(rig, rig_owner(rig, KV, n), n), !above);
        }
        assert_in_range(kept, owned * 45 / 100, owned * 75 / 100);
        evict(client);
        /* a match agrees with what was stored before, and now */
        assert_int_equal(matched(client, before, KEYS, 1000 * MS, &reason), KEYS);
        assert_int_equal(matched(client, during, KEYS, 1000 * MS, &reason), KEYS);
        assert_int_equal(share_of(rig, 0), 60); /* stores and matches say nothing of loads */
        for (uint32_t n = before; n < during + KEYS; n += 7)
            assert_hit(client, n);
        rig_run(rig, 2 * AGENT_HEARTBEAT_NS);
        assert_int_equal(share_of(rig, 0), 100); /* loads were in time, too */
        evict(client);
        for (uint32_t n = before; n < during + KEYS; n++)
            assert_hit(client, n);
        assert_int_equal(matched(client, during, KEYS, 1000 * MS, &reason), KEYS);
        assert_int_equal(rig_stats(rig)->enclosures[0].slow_total, 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* What the owner has from before is there for a put if absent, too. */
static void if_absent_asks_the_owner_too(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        uint32_t before[40], above = 0, n;

        for (uint32_t i = 0; i < 40; i++)
            put(client, before[i] = key_at(rig, 0));
        evict(client);
        lower(rig, client, 2);
        for (uint32_t i = 0; i < 40; i++) {
            uint64_t tag = rig_put(client, KV, before[i], BYTES, SHM_FLAG_IF_ABSENT, 0);

            above += is_above(rig, before[i]);
            assert_int_equal(rig_wait(client, tag)->status, ICMS_EXISTS);
            assert_int_equal(copies(rig, before[i]), 1);
        }
        assert_true(above > 0);
        n = key_above(rig);
        assert_int_equal(
            rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_IF_ABSENT, 0))->status,
            ICMS_OK);
        assert_int_equal(copies(rig, n), 1);
        assert_false(has(rig, 0, n));
        assert_int_equal(share_of(rig, 0), 60);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* Two of six are late, for a minute. */
static void late_for_a_third_stays_in_use(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct rig_client *client = rig_client_new(rig);
    uint32_t lowered = 0;

    for (uint32_t i = 0; i < 400; i++) {
        gets(rig, client, i % 6 < 2);
        rig_run(rig, 30 * MS);
        assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_UP);
        lowered += share_of(rig, 0) < 100;
        assert_int_equal(share_of(rig, 1), 100);
        assert_int_equal(share_of(rig, 2), 100);
    }
    assert_in_range(lowered, 100, 300);
    assert_int_equal(rig_stats(rig)->enclosures[0].slow_total, 0);
    /* it is well: at once, or, when nobody asks it for anything, soon */
    lower(rig, client, 1);
    assert_int_equal(share_of(rig, 0), 60);
    rig_run(rig, SLOW_STALE_NS + 2 * AGENT_HEARTBEAT_NS);
    assert_int_equal(share_of(rig, 0), 100);
    rig_client_free(client);
    rig_free(rig);
}

static void a_pod_that_is_late_lowers_nobody(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct rig_client *client = rig_client_new(rig);

    for (uint32_t i = 0; i < 3; i++)
        rig->fake[i]->delay_ns = 100 * MS;
    for (uint32_t i = 0; i < 100; i++) {
        (void)rig_wait(client, rig_get(client, KV, key_at(rig, i % 3), UINT32_MAX, 1000 * MS));
        (void)rig_wait(client,
                       rig_put(client, KV, key_at(rig, i % 3), BYTES, SHM_FLAG_ON_FLASH, 0));
        for (uint32_t j = 0; j < 3; j++)
            assert_int_equal(share_of(rig, j), 100);
    }
    rig_client_free(client);
    rig_free(rig);
}

static void a_delete_reaches_both(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct rig_client *client = rig_client_new(rig);
    uint32_t n;

    lower(rig, client, 2);
    n = key_above(rig);
    put(client, n);
    assert_false(has(rig, 0, n));
    rig_flash(rig, 0, KV, n, BYTES); /* from before */
    assert_int_equal(copies(rig, n), 2);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, n, 0))->status, ICMS_OK);
    assert_int_equal(copies(rig, n), 0);
    /* the next one cannot be asked: it may have the block, while the share is low and after that */
    n = key_above(rig);
    put(client, n);
    for (uint32_t i = 1; i < 3; i++)
        sim_net_cut(rig->sim, rig->node, rig->fake_node[i], has(rig, i, n));
    rig_run(rig, SLOW_STALE_NS);
    assert_int_equal(share_of(rig, 0), 100);
    assert_int_not_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, n, 0))->status,
                         ICMS_OK);
    rig_client_free(client);
    rig_free(rig);
}

/* The owner, which may have it, is asked behind the next one: what it does not say is not absent.
 */
static void a_miss_says_what_the_owner_said(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        const struct shm_complete *answer;
        enum icms_miss reason;
        uint32_t n;

        lower(rig, client, 2);
        answer = rig_wait(client, rig_get(client, KV, key_above(rig), UINT32_MAX, 1000 * MS));
        assert_int_equal(answer->reason, ICMS_MISS_ABSENT);
        rig_run(rig, 2 * AGENT_HEARTBEAT_NS);
        assert_int_equal(share_of(rig, 0), 80);
        n = key_above(rig);
        rig->fake[0]->status = 0x021; /* Command Interrupted: it sheds */
        answer = rig_wait(client, rig_get(client, KV, n, UINT32_MAX, 1000 * MS));
        assert_int_equal(answer->reason, ICMS_MISS_SHED);
        assert_int_equal(matched(client, n, 1, 1000 * MS, &reason), 0);
        assert_int_equal(reason, ICMS_MISS_SHED);
        /* the next one answers many keys at once, and the owner does not */
        atomic_store(&rig->agent->reactors[0].enclosures[0].exist_many, false);
        assert_int_equal(matched(client, n, 1, 1000 * MS, &reason), 0);
        assert_int_equal(reason, ICMS_MISS_SHED);
        rig->fake[0]->status = 0;
        assert_int_equal(matched(client, n, 1, 1000 * MS, &reason), 0);
        assert_int_equal(reason, ICMS_MISS_ABSENT);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* The next one dies under a load: the owner has it. */
static void the_owner_is_asked_when_the_next_is_lost(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct rig_client *client = rig_client_new(rig);
    uint64_t tag;
    uint32_t n;

    lower(rig, client, 2);
    n = key_above(rig);
    rig_flash(rig, 0, KV, n, BYTES);
    for (uint32_t i = 1; i < 3; i++)
        rig->fake[i]->hold = true;
    tag = rig_get(client, KV, n, 7, 5000 * MS);
    rig_run(rig, 10 * MS);
    for (uint32_t i = 1; i < 3; i++)
        rig_on_fake(rig, i, fake_target_drop);
    assert_true(rig_value_is(client, KV, n, BYTES, rig_wait(client, tag)));
    rig_client_free(client);
    rig_free(rig);
}

/* Where the next one is down the owner is asked alone. */
static void what_is_down_is_not_asked(void **state)
{
    struct rig_opts opts = {.enclosures = 4, .many = true};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    const struct shm_complete *answer;
    uint32_t above[40];

    sim_net_cut(rig->sim, rig->node, rig->fake_node[1], true);
    rig_run(rig, 3000 * MS);
    assert_int_equal(rig_stats(rig)->enclosures[1].state, AGENT_ENCLOSURE_EXCLUDED);
    for (int i = 0; i < 2; i++) {
        rig->fake[0]->delay_ns = 100 * MS;
        (void)rig_wait(client, rig_get(client, KV, key_at(rig, 0), UINT32_MAX, 1000 * MS));
        rig->fake[0]->delay_ns = 0;
        for (uint32_t j = 2; j < 4; j++)
            (void)rig_wait(client, rig_get(client, KV, key_at(rig, j), UINT32_MAX, 1000 * MS));
    }
    rig_run(rig, 2 * AGENT_HEARTBEAT_NS);
    assert_int_equal(share_of(rig, 0), 60);
    for (uint32_t i = 0; i < 40; i++)
        above[i] = key_above(rig);
    for (uint32_t i = 0; i < 40; i++) {
        answer = rig_wait(client, rig_get(client, KV, above[i], UINT32_MAX, 1000 * MS));
        assert_int_equal(answer->reason, ICMS_MISS_ABSENT);
    }
    rig_client_free(client);
    rig_free(rig);
}

/* Nobody loads: what is stored, and not answered, lowers the share, and no more than that. */
static void stores_that_are_never_answered_lower_the_share(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct rig_client *client = rig_client_new(rig);
    uint32_t failed = 0;

    for (uint32_t i = 0; i < 30; i++)
        put(client, ++next_key);
    rig->fake[0]->hold_stores = true;
    for (uint32_t i = 0; i < 8; i++)
        (void)rig_put(client, KV, key_at(rig, 0), BYTES, SHM_FLAG_ON_FLASH, 20000 * MS);
    rig_run(rig, 100 * MS);
    for (uint32_t i = 1; i < 3; i++)
        put(client, key_at(rig, i)); /* the others are well */
    rig_run(rig, 2 * AGENT_HEARTBEAT_NS);
    assert_int_equal(share_of(rig, 0), 20); /* they still wait */
    for (uint32_t i = 0; i < 150; i++)
        failed += rig_wait(client, rig_put(client, KV, key_at(rig, i % 3), BYTES, SHM_FLAG_ON_FLASH,
                                           300 * MS))
                      ->status != ICMS_OK;
    assert_in_range(failed, 1, 25); /* of 50 */
    assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_UP);
    rig_on_fake(rig, 0, fake_target_release);
    for (uint32_t i = 0; i < 60; i++)
        put(client, key_at(rig, 0));
    rig_run(rig, 2 * AGENT_HEARTBEAT_NS);
    assert_int_equal(share_of(rig, 0), 100);
    assert_int_equal(rig->agent->reactors[0].enclosures[0].storing_bytes, 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Loads are late at one, and stores at another: what the one would take for the other one, which
 * has a share of its own, stays where it belongs. */
static void the_next_takes_no_more_than_its_share(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct rig_client *client = rig_client_new(rig);
    uint32_t at[3] = {0};

    rig->fake[1]->hold_stores = true;
    for (uint32_t i = 0; i < 2; i++)
        (void)rig_put(client, KV, key_at(rig, 1), BYTES, SHM_FLAG_ON_FLASH, 20000 * MS);
    rig_run(rig, 100 * MS);
    for (uint32_t i = 0; i < 3; i += 2)
        put(client, key_at(rig, i));
    lower(rig, client, 2);
    assert_int_equal(share_of(rig, 0), 60);
    assert_int_equal(share_of(rig, 1), 60);
    rig_on_fake(rig, 1, fake_target_release);
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t n = key_above(rig);

        put(client, n);
        assert_int_equal(copies(rig, n), 1);
        for (uint32_t j = 0; j < 3; j++)
            at[j] += has(rig, j, n);
        assert_hit(client, n);
    }
    assert_int_equal(at[1], 0);
    assert_in_range(at[0], 20, 80);
    rig_client_free(client);
    rig_free(rig);
}

/* Passed over for all, or gone: it has no share. */
static void the_verdict_ends_the_share(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct rig_client *client = rig_client_new(rig);
    char text[8192];

    lower(rig, client, 2);
    assert_int_equal(share_of(rig, 0), 60);
    assert_true(agent_status(rig->agent, text, sizeof(text)) < sizeof(text));
    assert_non_null(strstr(text, "\"share_percent\":60,"));
    assert_non_null(strstr(text, "\"share_percent\":100,"));
    sim_net_cut(rig->sim, rig->node, rig->fake_node[0], true);
    rig_run(rig, 8000 * MS);
    assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_EXCLUDED);
    assert_int_equal(share_of(rig, 0), 100);
    assert_int_equal(rig->agent->reactors[0].lowered, 0);
    sim_net_cut(rig->sim, rig->node, rig->fake_node[0], false);
    rig_run(rig, 8000 * MS);
    assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_UP);
    assert_int_equal(share_of(rig, 0), 100);
    lower(rig, client, 2);
    assert_int_equal(share_of(rig, 0), 60);
    rig_run(rig, 500 * MS);
    lower(rig, client, 2);
    assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_SLOW);
    assert_int_equal(share_of(rig, 0), 100);
    assert_int_equal(rig->agent->reactors[0].lowered, 0);
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fewer_stores_and_no_hit_is_lost),
        cmocka_unit_test(late_for_a_third_stays_in_use),
        cmocka_unit_test(a_pod_that_is_late_lowers_nobody),
        cmocka_unit_test(a_delete_reaches_both),
        cmocka_unit_test(a_miss_says_what_the_owner_said),
        cmocka_unit_test(the_owner_is_asked_when_the_next_is_lost),
        cmocka_unit_test(what_is_down_is_not_asked),
        cmocka_unit_test(stores_that_are_never_answered_lower_the_share),
        cmocka_unit_test(the_next_takes_no_more_than_its_share),
        cmocka_unit_test(the_verdict_ends_the_share),
        cmocka_unit_test(if_absent_asks_the_owner_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
