/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes too late has no effect: entries whose deadline has passed, and loads that began before
 * their block was removed. And a remove reaches each enclosure that may have the block. On
 * simulated machines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_rig.h"
#include "icms/icms.h"

#define VALUE 5000u
#define WAIT  (1000 * RIG_MS)

static const struct fake_block *fake_find(struct agent_rig *rig, uint32_t enclosure, uint32_t n)
{
    struct key key;

    rig_key(n, &key);
    return fake_target_find(rig->fake[enclosure], 1, &key);
}

/* An entry of which only the deadline is wrong: it passed long ago. */
static uint64_t submit_late(struct rig_client *client, uint8_t op, uint32_t n)
{
    struct shm_submit entry = {
        .op = op, .key_length = LIMIT_KEY_BYTES, .deadline_ns = 1, .bytes = VALUE, .lease = 5};
    struct key key;

    if (op == SHM_OP_PUT)
        entry.bytes = 100; /* zeros without a trailer: nobody gets to look at them */
    rig_key(n, &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    return rig_submit(client, &entry);
}

static void an_entry_whose_deadline_has_passed_does_nothing(void **state)
{
    struct agent_rig *rig = rig_new(&(struct rig_opts){.enclosures = 1});
    struct rig_client *client = rig_client_new(rig);
    const struct shm_complete *answer;

    rig_flash(rig, 0, 0, 1, VALUE);
    rig_flash(rig, 0, 0, 2, VALUE);
    assert_true(
        rig_value_is(client, 0, 1, VALUE, rig_wait(client, rig_get(client, 0, 1, 7, WAIT))));
    for (uint32_t n = 1; n <= 2; n++) { /* in the arena, and not */
        answer = rig_wait(client, submit_late(client, SHM_OP_GET, n));
        assert_int_equal(answer->status, ICMS_MISS);
        assert_int_equal(answer->reason, ICMS_MISS_DEADLINE);
        answer = rig_wait(client, submit_late(client, SHM_OP_EXISTS, n));
        assert_int_equal(answer->status, ICMS_MISS);
        assert_int_equal(answer->reason, ICMS_MISS_DEADLINE);
        answer = rig_wait(client, submit_late(client, SHM_OP_REMOVE, n));
        assert_int_equal(answer->status, ICMS_DEADLINE);
    }
    answer = rig_wait(client, submit_late(client, SHM_OP_PUT, 3));
    assert_int_equal(answer->status, ICMS_DEADLINE);
    rig_run(rig, WAIT);
    assert_int_equal(rig->fake[0]->retrieves, 1);
    assert_int_equal(rig->fake[0]->exists, 0);
    assert_int_equal(rig->fake[0]->deletes, 0);
    assert_int_equal(rig->fake[0]->stores, 0);
    rig_client_free(client);
    rig_free(rig);
}

static void fake_release(struct fake_target *target)
{
    target->hold = false;
    fake_target_release(target);
}

static void a_load_that_began_before_a_remove_is_not_published(void **state)
{
    struct agent_rig *rig = rig_new(&(struct rig_opts){.enclosures = 1});
    struct rig_client *client = rig_client_new(rig);
    const struct shm_complete *answer;
    uint64_t tag;

    rig_flash(rig, 0, 0, 1, VALUE);
    rig->fake[0]->hold = true;
    tag = rig_get(client, 0, 1, 7, WAIT);
    rig_run(rig, 50 * RIG_MS);
    assert_int_equal(rig->fake[0]->retrieves, 1);
    rig->fake[0]->hold = false; /* the remove overtakes the load */
    answer = rig_wait(client, rig_op(client, SHM_OP_REMOVE, 0, 1, WAIT));
    assert_int_equal(answer->status, ICMS_OK);
    assert_null(fake_find(rig, 0, 1));
    assert_int_equal(client->got[tag], 0);
    /* What the load brings may be from before the remove, so the enclosure is asked again. */
    rig_flash(rig, 0, 0, 1, VALUE);
    rig_on_fake(rig, 0, fake_release);
    assert_true(rig_value_is(client, 0, 1, VALUE, rig_wait(client, tag)));
    assert_int_equal(rig->fake[0]->retrieves, 2);
    rig_client_free(client);
    rig_free(rig);
}

static void a_remove_reaches_the_owner_and_the_next(void **state)
{
    struct agent_rig *rig = rig_new(&(struct rig_opts){.enclosures = 2});
    struct rig_client *client = rig_client_new(rig);

    for (uint32_t n = 1; n <= 8; n++) {
        rig_flash(rig, 0, 0, n, VALUE);
        rig_flash(rig, 1, 0, n, VALUE);
    }
    for (uint32_t n = 1; n <= 8; n++) {
        const struct shm_complete *answer =
            rig_wait(client, rig_op(client, SHM_OP_REMOVE, 0, n, WAIT));

        assert_int_equal(answer->status, ICMS_OK);
        assert_null(fake_find(rig, 0, n));
        assert_null(fake_find(rig, 1, n));
        answer = rig_wait(client, rig_op(client, SHM_OP_REMOVE, 0, n, WAIT));
        assert_int_equal(answer->status, ICMS_MISS);
    }
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_entry_whose_deadline_has_passed_does_nothing),
        cmocka_unit_test(a_load_that_began_before_a_remove_is_not_published),
        cmocka_unit_test(a_remove_reaches_the_owner_and_the_next),
    };

    return cmocka_run_group_tests_name("agent-order", tests, NULL, NULL);
}
