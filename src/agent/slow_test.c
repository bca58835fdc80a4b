/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Enclosures that answer, and much later than the others: passed over, probed, used again. What is
 * no fault of an enclosure does not count: overload, a reactor that stands still, a pod that is far
 * away. base/slow_test.c has the rule by itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "icms/icms.h"
#include "wire/nvme.h"

#define MS    RIG_MS
#define KV    0
#define BYTES 20000u

static const struct rig_opts three = {.enclosures = 3};

/* Keys that were never asked for, so that the arena has none of them, and of another run each. */
static uint32_t next_key = 1000;

/* A key that the enclosure owns. */
static uint32_t key_at(struct agent_rig *rig, uint32_t enclosure)
{
    while (rig_owner(rig, KV, ++next_key) != enclosure)
        ;
    return next_key;
}

/* One client that waits for each answer; returns how many gets it had. */
static uint32_t gets(struct agent_rig *rig, struct rig_client *client, uint64_t ns,
                     uint64_t timeout_ns)
{
    uint64_t end_ns = rig_now_ns(rig) + ns;
    uint32_t count = 0;

    for (; rig_now_ns(rig) < end_ns && client->next_tag < RIG_ANSWERS; count++) {
        (void)rig_wait(client, rig_get(client, KV, next_key += 37, UINT32_MAX, timeout_ns));
        rig_run(rig, 5 * MS);
    }
    return count;
}

static uint64_t slow_total(struct agent_rig *rig)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < rig->enclosure_count; i++)
        total += rig_stats(rig)->enclosures[i].slow_total;
    return total;
}

static enum agent_enclosure_state state_of(struct agent_rig *rig, uint32_t enclosure)
{
    return rig_stats(rig)->enclosures[enclosure].state;
}

static void a_slow_enclosure_is_passed_over_and_comes_back(void **state)
{
    struct agent_rig *rig = rig_new(&three);
    struct rig_client *client = rig_client_new(rig);
    const struct shm_complete *answer;
    uint32_t mine, kept;
    struct key key;

    kept = key_at(rig, 0);
    rig_flash(rig, 0, KV, kept, BYTES);
    gets(rig, client, 500 * MS, 1000 * MS);
    rig->fake[0]->delay_ns = 300 * MS;
    gets(rig, client, 3000 * MS, 1000 * MS);
    assert_int_equal(state_of(rig, 0), AGENT_ENCLOSURE_SLOW);
    assert_non_null(strstr(rig_stats(rig)->enclosures[0].last_error, "300 ms"));
    assert_int_equal(slow_total(rig), 1);
    assert_int_equal(rig_stats(rig)->enclosures[0].excluded_count, 0);
    /* nobody waits for it any more */
    assert_true(gets(rig, client, 3000 * MS, 1000 * MS) > 300);
    mine = key_at(rig, 0);
    answer = rig_wait(client, rig_get(client, KV, mine, UINT32_MAX, 0));
    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, ICMS_MISS_ENCLOSURE_DOWN);
    /* the next one takes its stores */
    answer = rig_wait(client, rig_put(client, KV, mine, BYTES, SHM_FLAG_ON_FLASH, 0));
    assert_int_equal(answer->status, ICMS_OK);
    rig_key(mine, &key);
    assert_null(fake_target_find(rig->fake[0], KV + 1, &key));
    /* what it alone has is deleted there, and flushed */
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, kept, 0))->status, ICMS_OK);
    rig_key(kept, &key);
    assert_null(fake_target_find(rig->fake[0], KV + 1, &key));
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_FLUSH, KV, 0, 0))->status, ICMS_OK);
    /* its probes are late */
    rig_run(rig, 20000 * MS);
    assert_int_equal(state_of(rig, 0), AGENT_ENCLOSURE_SLOW);
    rig->fake[0]->delay_ns = 0;
    rig_run(rig, 2000 * MS);
    assert_int_equal(state_of(rig, 0), AGENT_ENCLOSURE_UP);
    assert_int_equal(slow_total(rig), 1);
    /* found, where it was stored meanwhile */
    for (uint32_t i = 1; i < 300; i++)
        assert_int_equal(rig_wait(client, rig_put(client, KV, i, BYTES, 0, 0))->status, ICMS_OK);
    answer = rig_wait(client, rig_get(client, KV, mine, 7, 0));
    assert_true(rig_value_is(client, KV, mine, BYTES, answer));
    assert_int_equal(answer->source, ICMS_SOURCE_POD);
    rig_client_free(client);
    rig_free(rig);
}

/* Batches, one after the other, that need all enclosures: the second is not waited for. */
static void half_a_second_is_seen_within_one(void **state)
{
    struct agent_rig *rig = rig_new(&three);
    struct rig_client *client = rig_client_new(rig);
    uint64_t began_ns;

    gets(rig, client, 500 * MS, 2000 * MS);
    rig->fake[0]->delay_ns = 500 * MS;
    began_ns = rig_now_ns(rig);
    for (int batch = 0; batch < 2; batch++) {
        uint64_t tags[6];

        for (uint32_t i = 0; i < 6; i++)
            tags[i] = rig_get(client, KV, key_at(rig, i % 3), UINT32_MAX, 2000 * MS);
        if (batch == 1)
            rig_run(rig, began_ns + 960 * MS - rig_now_ns(rig));
        else
            for (uint32_t i = 0; i < 6; i++)
                (void)rig_wait(client, tags[i]);
    }
    assert_int_equal(state_of(rig, 0), AGENT_ENCLOSURE_SLOW);
    assert_int_equal(slow_total(rig), 1);
    rig_run(rig, 2000 * MS);
    rig_client_free(client);
    rig_free(rig);
}

/* Nothing comes from it before the deadline of whoever asks. */
static void missed_deadlines_count(void **state)
{
    struct agent_rig *rig = rig_new(&three);
    struct rig_client *client = rig_client_new(rig);

    rig->fake[2]->delay_ns = 300 * MS;
    gets(rig, client, 3000 * MS, 100 * MS);
    assert_int_equal(state_of(rig, 2), AGENT_ENCLOSURE_SLOW);
    assert_int_equal(slow_total(rig), 1);
    rig_client_free(client);
    rig_free(rig);
}

/* What comes right after it does not count as if it had come in time. */
static void answers_after_the_deadline_are_late(void **state)
{
    struct agent_rig *rig = rig_new(&three);
    struct rig_client *client = rig_client_new(rig);

    rig->fake[2]->delay_ns = 30 * MS;
    gets(rig, client, 3000 * MS, 20 * MS);
    assert_true(slow_total(rig) > 0);
    rig_client_free(client);
    rig_free(rig);
}

/* A probe asks for what was there, and not for what made it slow. */
static void what_is_late_is_not_what_probes_ask_for(void **state)
{
    struct agent_rig *rig = rig_new(&three);
    struct rig_client *client = rig_client_new(rig);
    const struct agent_enclosure *enclosure = &rig->agent->reactors[0].enclosures[0];
    uint32_t n = key_at(rig, 0);
    struct key key;

    rig_flash(rig, 0, KV, n, BYTES);
    (void)rig_wait(client, rig_get(client, KV, n, UINT32_MAX, 1000 * MS));
    rig->fake[0]->delay_ns = 300 * MS;
    (void)rig_wait(client, rig_get(client, KV, key_at(rig, 0), UINT32_MAX, 20 * MS));
    rig_run(rig, 50 * MS);
    assert_int_equal(enclosure->reactor->shards[KV].late_bytes != 0, true);
    rig_key(n, &key);
    assert_true(enclosure->asked[true].is_known && key_equal(&enclosure->asked[true].key, &key));
    rig_run(rig, 500 * MS);
    rig_client_free(client);
    rig_free(rig);
}

/* Lookups beside loads that hit the arena, or of clients that only ask what there is. */
static void late_lookups_count(void **state)
{
    for (int many = 0; many < 2; many++) {
        struct rig_opts opts = {.enclosures = 3, .many = many == 1};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *client = rig_client_new(rig);
        uint64_t end_ns = rig_now_ns(rig) + 3000 * MS;

        rig->fake[1]->delay_ns = 300 * MS;
        while (rig_now_ns(rig) < end_ns) {
            (void)rig_wait(client, rig_op(client, SHM_OP_EXISTS, KV, next_key += 37, 0));
            rig_run(rig, 5 * MS);
        }
        assert_int_equal(state_of(rig, 1), AGENT_ENCLOSURE_SLOW);
        rig->fake[1]->delay_ns = 0;
        rig_run(rig, 2000 * MS);
        assert_int_equal(state_of(rig, 1), AGENT_ENCLOSURE_UP);
        rig_client_free(client);
        rig_free(rig);
    }
}

static void a_pod_that_is_far_away_is_not_slow(void **state)
{
    struct agent_rig *rig = rig_new(&three);
    struct rig_client *client = rig_client_new(rig);

    gets(rig, client, 500 * MS, 1000 * MS);
    for (uint32_t i = 0; i < 3; i++)
        rig->fake[i]->delay_ns = 300 * MS;
    gets(rig, client, 30000 * MS, 1000 * MS);
    gets(rig, client, 30000 * MS, 200 * MS); /* deadlines that none of them keeps */
    assert_int_equal(slow_total(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

static void an_enclosure_that_sheds_is_busy(void **state)
{
    struct agent_rig *rig = rig_new(&three);
    struct rig_client *client = rig_client_new(rig);

    rig->fake[0]->delay_ns = 300 * MS;
    rig->fake[0]->status = 0x021; /* Command Interrupted */
    gets(rig, client, 10000 * MS, 1000 * MS);
    assert_int_equal(slow_total(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* The agent's machine is starved: what comes late was looked at late. */
static void an_agent_that_stands_still_blames_nobody(void **state)
{
    struct agent_rig *rig = rig_new(&three);
    struct rig_client *client = rig_client_new(rig);

    rig->fake[0]->delay_ns = 20 * MS;
    for (int i = 0; i < 40; i++) {
        uint64_t slow_one = rig_get(client, KV, key_at(rig, 0), UINT32_MAX, 5000 * MS);

        rig_run(rig, 10 * MS); /* it is in flight */
        sim_node_pause(rig->node, true);
        rig_run(rig, 300 * MS);
        sim_node_pause(rig->node, false);
        (void)rig_wait(client, slow_one);
        (void)rig_wait(client, rig_get(client, KV, key_at(rig, 1), UINT32_MAX, 5000 * MS));
        (void)rig_wait(client, rig_get(client, KV, key_at(rig, 2), UINT32_MAX, 5000 * MS));
    }
    assert_int_equal(slow_total(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

static void without_the_others_a_slow_enclosure_is_used(void **state)
{
    struct agent_rig *rig = rig_new(&three);
    struct rig_client *client = rig_client_new(rig);

    rig->fake[0]->delay_ns = 300 * MS;
    gets(rig, client, 3000 * MS, 1000 * MS);
    assert_int_equal(state_of(rig, 0), AGENT_ENCLOSURE_SLOW);
    sim_net_cut(rig->sim, rig->node, rig->fake_node[1], true);
    sim_net_cut(rig->sim, rig->node, rig->fake_node[2], true);
    gets(rig, client, 8000 * MS, 1000 * MS);
    assert_int_equal(state_of(rig, 1), AGENT_ENCLOSURE_EXCLUDED);
    assert_int_equal(state_of(rig, 2), AGENT_ENCLOSURE_EXCLUDED);
    assert_int_equal(state_of(rig, 0), AGENT_ENCLOSURE_UP);
    rig_flash(rig, 0, KV, 5, BYTES);
    assert_true(rig_value_is(client, KV, 5, BYTES, rig_wait(client, rig_get(client, KV, 5, 5, 0))));
    rig_client_free(client);
    rig_free(rig);
}

/* The others are well, and do not have the volume. */
static void where_the_others_lack_the_volume_a_slow_enclosure_is_used(void **state)
{
    struct agent_rig *rig = rig_new(&three);
    struct rig_client *client = rig_client_new(rig);
    uint32_t n;

    rig->fake[0]->delay_ns = 300 * MS;
    gets(rig, client, 3000 * MS, 1000 * MS);
    assert_int_equal(state_of(rig, 0), AGENT_ENCLOSURE_SLOW);
    for (uint32_t r = 0; r < rig->agent->opts.loops; r++)
        atomic_store(&rig->agent->reactors[r].shards[KV].missing, 0x6);
    n = key_at(rig, 0);
    rig_flash(rig, 0, KV, n, BYTES);
    assert_true(rig_value_is(client, KV, n, BYTES,
                             rig_wait(client, rig_get(client, KV, n, UINT32_MAX, 2000 * MS))));
    rig_client_free(client);
    rig_free(rig);
}

/* It dies while it is slow, with a probe in flight. */
static void a_slow_enclosure_that_dies_is_excluded(void **state)
{
    struct agent_rig *rig = rig_new(&three);
    struct rig_client *client = rig_client_new(rig);

    rig->fake[0]->delay_ns = 300 * MS;
    gets(rig, client, 3000 * MS, 1000 * MS);
    assert_int_equal(state_of(rig, 0), AGENT_ENCLOSURE_SLOW);
    rig->fake[0]->silent = true;
    rig_run(rig, 3000 * MS);
    assert_int_equal(state_of(rig, 0), AGENT_ENCLOSURE_EXCLUDED);
    rig->fake[0]->silent = false;
    rig->fake[0]->delay_ns = 0;
    rig_run(rig, 6000 * MS);
    assert_int_equal(state_of(rig, 0), AGENT_ENCLOSURE_UP);
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_enclosure_is_passed_over_and_comes_back),
        cmocka_unit_test(missed_deadlines_count),
        cmocka_unit_test(answers_after_the_deadline_are_late),
        cmocka_unit_test(what_is_late_is_not_what_probes_ask_for),
        cmocka_unit_test(late_lookups_count),
        cmocka_unit_test(a_pod_that_is_far_away_is_not_slow),
        cmocka_unit_test(an_enclosure_that_sheds_is_busy),
        cmocka_unit_test(an_agent_that_stands_still_blames_nobody),
        cmocka_unit_test(without_the_others_a_slow_enclosure_is_used),
        cmocka_unit_test(where_the_others_lack_the_volume_a_slow_enclosure_is_used),
        cmocka_unit_test(a_slow_enclosure_that_dies_is_excluded),
        cmocka_unit_test(half_a_second_is_seen_within_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
