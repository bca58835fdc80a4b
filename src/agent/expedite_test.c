/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A get of a block that a hint has asked for: an enclosure may keep that waiting behind the loads
 * of all hosts, and does not any more when it is told that somebody waits. The block comes once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"

#define MS     RIG_MS
#define KV     0
#define BYTES  20000u
#define BLOCKS 24u
#define AT     (3u << 20) /* in staging memory, behind what puts use */

/* An enclosure that keeps all that it is asked for hints, and hints for blocks 0 to BLOCKS - 1. */
static struct rig_client *client_new(const struct rig_opts *opts)
{
    struct rig_client *client = rig_client_new(rig_new(opts));
    struct agent_rig *rig = client->rig;
    struct shm_submit entry = {.op = SHM_OP_PRESTAGE,
                               .offset = AT,
                               .bytes = BLOCKS,
                               .aside = rig_now_ns(rig) + 60000 * MS,
                               .deadline_ns = rig_now_ns(rig) + 2000 * MS};

    for (uint32_t n = 0; n < BLOCKS; n++) {
        rig_flash(rig, 0, KV, n, BYTES);
        rig_put_key(client->ring.staging + AT, n, n);
    }
    rig->fake[0]->hold_prestage = true;
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_OK);
    rig_run(rig, 50 * MS);
    assert_int_equal(rig_hints(rig)->loading, BLOCKS);
    return client;
}

static void end(struct rig_client *client)
{
    struct agent_rig *rig = client->rig;

    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_hints(rig)->loading, 0);
    assert_int_equal(rig->fake[0]->retrieves, BLOCKS); /* none was asked for twice */
    rig_client_free(client);
    rig_free(rig);
}

static void get_all(struct rig_client *client, uint32_t first, uint32_t count)
{
    uint64_t tags[BLOCKS];

    for (uint32_t i = 0; i < count; i++)
        tags[i] = rig_get(client, KV, first + i, 5 + i, 200 * MS);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(rig_value_is(client, KV, first + i, BYTES, rig_wait(client, tags[i])));
        rig_lease_give(client, 5 + i);
    }
}

static void a_get_does_not_wait_for_the_turn_of_a_hint(void **state)
{
    static const struct rig_opts opts = {.enclosures = 1, .slots = 512, .block_bytes = BYTES};
    struct rig_client *client = client_new(&opts);
    struct agent_rig *rig = client->rig;

    get_all(client, 3, 1);
    assert_int_equal(rig->fake[0]->expedited, 1);
    get_all(client, 3, 1); /* it is there */
    get_all(client, 4, 12);
    assert_int_equal(rig->fake[0]->expedited, 13);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_LATE], 13);
    assert_int_equal(rig_hints(rig)->loading, BLOCKS - 13);
    end(client);
}

/* Two clients wait for one block: its enclosure is told once. A hint that comes later, or another
 * request of class prestage, tells nothing. */
static void it_is_said_once(void **state)
{
    static const struct rig_opts opts = {.enclosures = 1, .slots = 512, .block_bytes = BYTES};
    struct rig_client *client = client_new(&opts);
    struct agent_rig *rig = client->rig;
    uint64_t tags[2];

    (void)rig_prestage(client, 7, 1000 * MS);
    rig_run(rig, 10 * MS);
    assert_int_equal(rig->fake[0]->expedited, 0);
    rig->fake[0]->hold = true;
    for (uint32_t i = 0; i < 2; i++)
        tags[i] = rig_get(client, KV, 7, 5 + i, 1000 * MS);
    rig_run(rig, 10 * MS);
    assert_int_equal(rig->fake[0]->expedited, 1);
    rig_on_fake(rig, 0, fake_target_release);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(rig_value_is(client, KV, 7, BYTES, rig_wait(client, tags[i])));
        rig_lease_give(client, 5 + i);
    }
    end(client);
}

/* An enclosure of an older version: the get ends by its deadline, the hint goes on. */
static void where_nobody_knows_it_the_get_ends_in_time(void **state)
{
    static const struct rig_opts opts = {
        .enclosures = 1, .slots = 512, .block_bytes = BYTES, .no_expedite = true};
    struct rig_client *client = client_new(&opts);
    const struct shm_complete *answer = rig_wait(client, rig_get(client, KV, 3, 5, 100 * MS));

    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, ICMS_MISS_DEADLINE);
    end(client);
}

/* The link is lost after it was said: the load begins anew at the other one, as of class LOAD. */
static void it_is_a_load_at_the_next_link_too(void **state)
{
    static const struct rig_opts opts = {
        .enclosures = 1, .slots = 512, .block_bytes = BYTES, .links = 2};
    struct rig_client *client = client_new(&opts);
    struct agent_rig *rig = client->rig;
    uint64_t tags[BLOCKS];

    rig->fake[0]->hold = true; /* of the loads, each link has some */
    for (uint32_t n = 0; n < BLOCKS; n++)
        tags[n] = rig_get(client, KV, n, 5 + n, 5000 * MS);
    rig_run(rig, 10 * MS);
    assert_int_equal(rig->fake[0]->expedited, BLOCKS);
    assert_int_equal(rig->fake[0]->by_class[IO_CLASS_LOAD], 0);
    rig->fake[0]->hold = false;
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], true);
    rig_run(rig, 2000 * MS);
    assert_in_range(rig->fake[0]->by_class[IO_CLASS_LOAD], 1, BLOCKS - 1);
    rig_on_fake(rig, 0, fake_target_release);
    for (uint32_t n = 0; n < BLOCKS; n++) {
        assert_true(rig_value_is(client, KV, n, BYTES, rig_wait(client, tags[n])));
        rig_lease_give(client, 5 + n);
    }
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], false);
    rig_on_fake(rig, 0, fake_target_drop); /* what was under way there ends */
    rig_run(rig, 100 * MS);
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_get_does_not_wait_for_the_turn_of_a_hint),
        cmocka_unit_test(it_is_said_once),
        cmocka_unit_test(where_nobody_knows_it_the_get_ends_in_time),
        cmocka_unit_test(it_is_a_load_at_the_next_link_too),
    };

    return cmocka_run_group_tests_name("agent-expedite", tests, NULL, NULL);
}
