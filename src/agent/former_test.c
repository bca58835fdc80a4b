/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block that only its former owner has: while that one is late, and while stores have what its
 * move needs. pod_test.c has the rest of a pod that changes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "icms/icms.h"

#define MS    RIG_MS
#define KV    0
#define BYTES 5000u

/* An agent for which a fourth enclosure joined three. */
struct joined {
    struct agent_rig *rig;
    struct rig_client *client;
    uint32_t key;    /* of the fourth, stored where it was before */
    uint32_t former; /* there */
};

static struct joined joined_new(struct rig_opts opts)
{
    struct joined j = {0};
    struct err_why why = {""};
    uint32_t owners[64];

    opts.enclosures = 4;
    opts.members = 3;
    opts.epoch = 1;
    j.rig = rig_new(&opts);
    j.client = rig_client_new(j.rig);
    for (uint32_t n = 0; n < 64; n++) {
        owners[n] = rig_owner(j.rig, KV, n);
        rig_flash(j.rig, owners[n], KV, n, BYTES);
    }
    j.rig->enclosures[3].state = AGENT_POD_JOINING;
    assert_int_equal(rig_pod(j.rig, 2, j.rig->enclosures, 4, &why), ICMS_OK);
    rig_run(j.rig, 500 * MS);
    while (rig_owner(j.rig, KV, j.key) != 3)
        assert_true(++j.key < 64);
    j.former = owners[j.key];
    return j;
}

static void joined_free(struct joined *j)
{
    rig_client_free(j->client);
    rig_free(j->rig);
}

/* It is late for one and not for the other, who asks again. */
static void who_has_more_time_waits_for_it(void **state)
{
    struct joined j = joined_new((struct rig_opts){0});
    uint64_t hasty, patient;

    j.rig->fake[j.former]->hold = true;
    hasty = rig_get(j.client, KV, j.key, 5, 50 * MS);
    patient = rig_get(j.client, KV, j.key, 6, 5000 * MS);
    assert_int_equal(rig_wait(j.client, hasty)->reason, ICMS_MISS_DEADLINE);
    rig_run(j.rig, 1200 * MS); /* the load is over */
    j.rig->fake[j.former]->hold = false;
    rig_on_fake(j.rig, j.former, fake_target_release);
    assert_true(rig_value_is(j.client, KV, j.key, BYTES, rig_wait(j.client, patient)));
    joined_free(&j);
}

/* A pin as well: the block is not gone because it is late. */
static void a_pin_waits_for_it(void **state)
{
    struct joined j = joined_new((struct rig_opts){.pin_percent = 50});
    struct key key;

    j.rig->fake[j.former]->hold = true;
    assert_true(rig_hint(j.client, j.key, 500 * MS, shm_hint(ICMS_TIER_DRAM, 0, 600), 0));
    (void)rig_wait(j.client, rig_get(j.client, KV, j.key, 5, 50 * MS));
    rig_run(j.rig, 60000 * MS);
    assert_int_equal(rig_hints(j.rig)->ended[AGENT_HINT_ABSENT], 0);
    assert_int_equal(rig_hints(j.rig)->pins, 1);
    j.rig->fake[j.former]->hold = false;
    rig_on_fake(j.rig, j.former, fake_target_release);
    rig_run(j.rig, 60000 * MS);
    rig_key(j.key, &key);
    assert_true(rig_in_arena(j.client, KV, j.key));
    joined_free(&j);
}

/* The own drive has to forget so much that no store may begin: the block is a hit, and stays where
 * it is. */
static void it_is_not_moved_while_the_drive_forgets(void **state)
{
    struct joined j = joined_new((struct rig_opts){.own_drive_bytes = (uint64_t)64 << 20});
    struct agent_tier *tier = j.rig->agent->tier;
    uint32_t left = tier->forgets_left;

    tier->forgets_left = 0;
    assert_true(rig_value_is(j.client, KV, j.key, BYTES,
                             rig_wait(j.client, rig_get(j.client, KV, j.key, 5, 1000 * MS))));
    rig_lease_give(j.client, 5);
    rig_run(j.rig, 100 * MS);
    assert_int_equal(rig_stats(j.rig)->volumes[KV].moves_shed, 1);
    assert_int_equal(rig_stats(j.rig)->volumes[KV].moved, 0);
    tier->forgets_left = left;
    joined_free(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_has_more_time_waits_for_it),
        cmocka_unit_test(a_pin_waits_for_it),
        cmocka_unit_test(it_is_not_moved_while_the_drive_forgets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
