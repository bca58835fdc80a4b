/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings that all agents of a pod have to share: told to enclosures that compare them, and what
 * they answer is in counters and status. src/nvmf/target/target_conform_test.c has the other side.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "agent/agent_rig.h"

#define MS    RIG_MS
#define KV    0
#define RAW   1
#define EVERY ((uint64_t)20000 * MS)

static const struct rig_opts two = {.enclosures = 2};

/* Enclosure 0 compares from now on. */
static void settings_on(struct fake_target *target)
{
    target->settings = true;
    fake_target_drop(target);
}

static bool status_has(struct agent_rig *rig, const char *text)
{
    static char status[65536];

    assert_true(agent_status(rig->agent, status, sizeof(status)) < sizeof(status));
    return strstr(status, text) != NULL;
}

static void settings_that_differ_are_named(void **state)
{
    struct agent_rig *rig = rig_new(&two);
    const struct agent_enclosure_stats *seen;

    rig_run(rig, 1000 * MS);
    assert_int_equal(rig->fake[0]->told[0], 0); /* an older one is not bothered */
    rig_on_fake(rig, 0, settings_on);
    rig_run(rig, 3000 * MS);
    assert_int_equal(rig->fake[0]->told[0], 1);
    assert_int_equal(rig->fake[0]->told[1], 1);
    assert_int_equal(rig->fake[0]->told[2], 2); /* "kv" and "raw"; it does not have "none" */
    assert_int_equal(rig->fake[0]->told_nsid, 2);
    assert_int_equal(rig->fake[0]->told[3], 1); /* that there is no pod map */
    assert_int_equal(rig->fake[0]->told_value[3], 0);
    assert_int_equal(rig->fake[1]->told[0], 0);
    seen = &rig_stats(rig)->enclosures[0];
    assert_false(seen->enclosures_differ || seen->weights_differ);
    assert_int_equal(seen->run_blocks_differ, 0);
    assert_true(status_has(rig, "\"settings_differ\":[]"));
    rig->fake[0]->others[2] = 8;
    rig_run(rig, EVERY + MS);
    seen = &rig_stats(rig)->enclosures[0];
    assert_false(seen->enclosures_differ || seen->weights_differ);
    assert_int_equal(seen->run_blocks_differ, 3);
    assert_int_equal(seen->run_blocks_others[RAW], 8);
    assert_true(status_has(rig, "run_blocks of kv: 32 here, 8 there"));
    rig->fake[0]->others[0] = 1;
    rig->fake[0]->others[1] = 1;
    rig->fake[0]->others[2] = 0;
    rig_run(rig, EVERY + MS);
    seen = &rig_stats(rig)->enclosures[0];
    assert_true(seen->enclosures_differ && seen->weights_differ);
    assert_int_equal(seen->run_blocks_differ, 0);
    assert_true(status_has(rig, "\"settings_differ\":[\"enclosures\",\"weights\"]"));
    rig_free(rig);
}

static void settings_of_before(struct fake_target *target)
{
    target->no_epoch = true;
    settings_on(target);
}

/* One that compares settings and does not know the epoch refuses it: it is told the others as
 * before, again and again, and nothing differs. */
static void a_target_that_does_not_know_the_epoch_is_told_the_rest(void **state)
{
    struct agent_rig *rig = rig_new(&two);
    const struct agent_enclosure_stats *seen;

    rig_on_fake(rig, 0, settings_of_before);
    rig_run(rig, 3000 * MS);
    for (uint32_t n = 1; n <= 3; n++) {
        assert_int_equal(rig->fake[0]->told[0], n);
        assert_int_equal(rig->fake[0]->told[1], n);
        assert_int_equal(rig->fake[0]->told[2], 2 * n);
        assert_int_equal(rig->fake[0]->told[3], 0);
        rig_run(rig, EVERY + MS);
    }
    seen = &rig_stats(rig)->enclosures[0];
    assert_false(seen->enclosures_differ || seen->weights_differ);
    assert_int_equal(seen->run_blocks_differ, 0);
    assert_true(status_has(rig, "\"settings_differ\":[]"));
    rig_free(rig);
}

static void of_pod_a(struct fake_target *target)
{
    target->pod = pod_name_hash("a");
    target->others[3] = 7;
    settings_on(target);
}

static void of_pod_b(struct fake_target *target)
{
    of_pod_a(target);
    target->pod = pod_name_hash("b");
    target->others[3] = UINT32_MAX;
}

/* A target that uses a later epoch of the same pod's map: what this agent has is old. It is said,
 * and the agent works on, as it is one peer's word; until it has that epoch, or the target has not.
 */
static void a_later_epoch_at_a_target_is_named(void **state)
{
    static const struct rig_opts mapped = {.enclosures = 2, .epoch = 5, .pod_name = "a"};
    struct agent_rig *rig = rig_new(&mapped);
    struct err_why why = {""};

    rig_on_fake(rig, 0, of_pod_a);
    rig_on_fake(rig, 1, of_pod_b); /* none of ours */
    rig_run(rig, 3000 * MS);
    assert_int_equal(rig->fake[0]->told_value[3], 5);
    assert_int_equal(rig_stats(rig)->enclosures[0].epoch_there, 7);
    assert_int_equal(rig_stats(rig)->enclosures[1].epoch_there, 0);
    assert_true(status_has(rig, "\"settings_differ\":[\"epoch of the pod map: 5 here, 7 there\"]"));
    assert_true(status_has(rig, "\"epoch_there\":7,"));
    assert_true(agent_ready(rig->agent, 0, &why));
    assert_int_equal(rig_pod(rig, 6, rig->enclosures, 2, &why), ICMS_OK);
    assert_int_equal(rig_stats(rig)->enclosures[0].epoch_there, 0); /* not told yet */
    rig_run(rig, 100 * MS);
    assert_true(status_has(rig, "\"settings_differ\":[\"epoch of the pod map: 6 here, 7 there\"]"));
    assert_int_equal(rig_pod(rig, 7, rig->enclosures, 2, &why), ICMS_OK);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig->fake[0]->told_value[3], 7);
    assert_int_equal(rig_stats(rig)->enclosures[0].epoch_there, 0);
    rig->fake[0]->others[3] = 9;
    rig_run(rig, EVERY + MS); /* it is told now and then */
    assert_int_equal(rig_stats(rig)->enclosures[0].epoch_there, 9);
    rig->fake[0]->pod = 0; /* it has no map any more, or is an older version */
    rig_run(rig, EVERY + MS);
    assert_int_equal(rig_stats(rig)->enclosures[0].epoch_there, 0);
    rig_free(rig);
}

/* Without a map there is none to be older. */
static void without_a_map_no_epoch_is_later(void **state)
{
    struct agent_rig *rig = rig_new(&two);

    rig_on_fake(rig, 0, of_pod_a);
    rig_run(rig, 3000 * MS);
    assert_int_equal(rig_stats(rig)->enclosures[0].epoch_there, 0);
    assert_true(status_has(rig, "\"settings_differ\":[]"));
    rig_free(rig);
}

static void smaller(struct fake_target *target)
{
    target->volumes[KV].value_bytes_max -= 4096;
    target->volumes[RAW].value_bytes_max += 4096;
    fake_target_drop(target);
}

/* What an enclosure of ours takes is compared without being told, by whatever link. */
static void a_value_max_that_differs_is_named(void **state)
{
    struct agent_rig *rig = rig_new(&two);
    const struct agent_stats *stats;
    char text[96];

    rig_run(rig, 1000 * MS);
    assert_int_equal(rig_stats(rig)->enclosures[0].value_max_differ, 0);
    rig_on_fake(rig, 0, smaller);
    rig_run(rig, 3000 * MS);
    stats = rig_stats(rig);
    assert_int_equal(stats->enclosures[0].value_max_differ, 3);
    assert_int_equal(stats->enclosures[1].value_max_differ, 0);
    assert_int_equal(stats->enclosures[0].value_max_there[KV], stats->volumes[KV].value_max - 4096);
    assert_int_equal(stats->enclosures[0].value_max_there[RAW],
                     stats->volumes[RAW].value_max + 4096);
    (void)snprintf(text, sizeof(text), "value_max of kv: %llu bytes here, %llu there",
                   (unsigned long long)stats->volumes[KV].value_max,
                   (unsigned long long)stats->volumes[KV].value_max - 4096);
    assert_true(status_has(rig, text));
    rig_free(rig);
}

/* One of them: what another order of the same list, or another weight, tells. */
static uint32_t told_by(const struct agent_rig *rig, uint8_t what)
{
    return rig->fake[0]->told_value[what];
}

static void order_does_not_matter_and_weights_do(void **state)
{
    uint32_t enclosures[3], weights[3];

    for (int i = 0; i < 3; i++) {
        struct rig_opts opts = {.enclosures = 2, .swapped = i == 1, .heavy = i == 2};
        struct agent_rig *rig = rig_new(&opts);

        rig_on_fake(rig, 0, settings_on);
        rig_run(rig, 3000 * MS);
        enclosures[i] = told_by(rig, 0);
        weights[i] = told_by(rig, 1);
        rig_free(rig);
    }
    assert_int_equal(enclosures[0], enclosures[1]);
    assert_int_equal(weights[0], weights[1]);
    assert_int_equal(enclosures[0], enclosures[2]);
    assert_int_not_equal(weights[0], weights[2]);
    assert_int_not_equal(weights[0], enclosures[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_that_differ_are_named),
        cmocka_unit_test(a_target_that_does_not_know_the_epoch_is_told_the_rest),
        cmocka_unit_test(a_later_epoch_at_a_target_is_named),
        cmocka_unit_test(without_a_map_no_epoch_is_later),
        cmocka_unit_test(a_value_max_that_differs_is_named),
        cmocka_unit_test(order_does_not_matter_and_weights_do),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
