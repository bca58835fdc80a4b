/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A get of a block that is being prestaged: an enclosure may keep the hint's load waiting behind
 * the loads of all hosts, so the get begins one of its own in time, and has what comes first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"

#define MS    RIG_MS
#define KV    0
#define BYTES 20000u
#define AT    (3u << 20) /* in staging memory, behind what puts use */
#define KNOWN 1000       /* a key that is loaded to know how long that takes */

static const struct rig_opts one = {.enclosures = 1, .slots = 64, .block_bytes = BYTES};

static void hint(struct rig_client *client, uint32_t first, uint32_t count)
{
    struct shm_submit entry = {.op = SHM_OP_PRESTAGE,
                               .offset = AT,
                               .bytes = count,
                               .aside = rig_now_ns(client->rig) + 60000 * MS,
                               .deadline_ns = rig_now_ns(client->rig) + 2000 * MS};

    for (uint32_t i = 0; i < count; i++) {
        rig_put_key(client->ring.staging + AT, i, first + i);
    }
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_OK);
}

static const struct agent_prestage_stats *stats_of(struct agent_rig *rig)
{
    return &rig_stats(rig)->volumes[KV].prestage;
}

static struct rig_client *client_new(const struct rig_opts *opts, uint32_t blocks)
{
    struct rig_client *client = rig_client_new(rig_new(opts));
    struct agent_rig *rig = client->rig;

    for (uint32_t n = 0; n < blocks; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    rig_flash(rig, 0, KV, KNOWN, BYTES);
    rig->fake[0]->delay_ns = 10 * MS;
    assert_false(rig_load(client, KV, KNOWN, BYTES));
    rig->fake[0]->delay_ns = 0;
    return client;
}

/* How long it takes until the value of a get is there. */
static uint64_t get(struct rig_client *client, uint32_t n)
{
    uint64_t begin_ns = rig_now_ns(client->rig), tag = rig_get(client, KV, n, 5, 2000 * MS);

    assert_true(rig_value_is(client, KV, n, BYTES, rig_wait(client, tag)));
    rig_lease_give(client, 5);
    return client->got_ns[tag] - begin_ns;
}

static void end(struct rig_client *client)
{
    struct agent_rig *rig = client->rig;

    rig_run(rig, 5000 * MS);
    assert_int_equal(stats_of(rig)->queued + stats_of(rig)->loading + stats_of(rig)->waiting, 0);
    rig_client_free(client);
    rig_free(rig);
}

/* All hints wait for seconds; each block is there in about twice the time of a load. What the
 * hints' loads bring in the end is there already. */
static void a_get_waits_behind_no_hint_for_long(void **state)
{
    enum { BLOCKS = 8 };
    struct rig_client *client = client_new(&one, BLOCKS);
    struct agent_rig *rig = client->rig;

    rig->fake[0]->hold = true;
    hint(client, 0, BLOCKS);
    rig_run(rig, 10 * MS);
    rig->fake[0]->hold = false;
    rig->fake[0]->delay_ns = 10 * MS;
    for (uint32_t n = 0; n < BLOCKS; n++)
        assert_in_range(get(client, n), 15 * MS, 40 * MS);
    assert_int_equal(rig->fake[0]->retrieves, 1 + 2 * BLOCKS);
    rig->fake[0]->delay_ns = 0;
    rig_run(rig, 3000 * MS);
    assert_int_equal(stats_of(rig)->loading, BLOCKS);
    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 100 * MS);
    assert_int_equal(stats_of(rig)->ended[AGENT_HINT_LATE], BLOCKS);
    assert_true(stats_of(rig)->late_ns.sum <= BLOCKS * 40 * MS); /* until a get had it */
    assert_int_equal(rig->fake[0]->retrieves, 1 + 2 * BLOCKS);
    for (uint32_t n = 0; n < BLOCKS; n++)
        assert_true(rig_load(client, KV, n, BYTES));
    end(client);
}

/* The hint's load comes, late, before that of the get, which has the block then; a second get
 * joins. */
static void what_comes_first_counts(void **state)
{
    struct rig_client *client = client_new(&one, 1);
    struct agent_rig *rig = client->rig;
    uint64_t tags[2];

    rig->fake[0]->delay_ns = 100 * MS;
    hint(client, 0, 1);
    rig_run(rig, 5 * MS);
    rig->fake[0]->delay_ns = 1000 * MS;
    for (int i = 0; i < 2; i++) {
        tags[i] = rig_get(client, KV, 0, 5 + (uint32_t)i, 2000 * MS);
        rig_run(rig, 30 * MS);
    }
    assert_int_equal(rig->fake[0]->retrieves, 3);
    for (int i = 0; i < 2; i++) {
        assert_true(rig_value_is(client, KV, 0, BYTES, rig_wait(client, tags[i])));
        rig_lease_give(client, 5 + (uint32_t)i);
    }
    assert_true(client->got_ns[tags[1]] - client->got_ns[tags[0]] < MS);
    assert_int_equal(stats_of(rig)->ended[AGENT_HINT_LATE], 1);
    assert_in_range(stats_of(rig)->late_ns.sum, 80 * MS, 110 * MS);
    assert_int_equal(rig->agent->reactors[0].ops_used[IO_CLASS_LOAD], 1); /* goes on for nobody */
    rig_run(rig, 2000 * MS);
    assert_int_equal(rig->agent->reactors[0].ops_used[IO_CLASS_LOAD], 0);
    assert_true(rig_load(client, KV, 0, BYTES));
    end(client);
}

/* While there is nothing to begin a load with, the get goes on waiting for the hint's. */
static void without_memory_the_hint_is_waited_for(void **state)
{
    enum { SLOTS = 8 };
    const struct rig_opts opts = {.enclosures = 1, .slots = SLOTS, .block_bytes = BYTES};
    struct rig_client *client = client_new(&opts, 100);
    struct agent_rig *rig = client->rig;
    uint64_t tag;

    rig->fake[0]->delay_ns = 300 * MS;
    hint(client, 0, 1);
    rig_run(rig, 5 * MS);
    rig->fake[0]->delay_ns = 0;
    for (uint32_t n = 1; n < 100; n++) /* all memory is leased */
        (void)rig_get(client, KV, n, 10 + n, 100 * MS);
    tag = rig_get(client, KV, 0, 5, 2000 * MS);
    assert_true(rig_value_is(client, KV, 0, BYTES, rig_wait(client, tag)));
    end(client);
}

/* A write in the middle: neither of the two loads brings back what was there before. */
static void a_write_overtakes_both(void **state)
{
    struct rig_client *client = client_new(&one, 1);
    struct agent_rig *rig = client->rig;
    uint64_t tag;

    rig->fake[0]->hold = true;
    hint(client, 0, 1);
    rig_run(rig, 5 * MS);
    tag = rig_get(client, KV, 0, 5, 2000 * MS);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig->fake[0]->by_class[IO_CLASS_LOAD], 2);
    (void)rig_op(client, SHM_OP_REMOVE, KV, 0, 2000 * MS);
    rig_run(rig, MS);
    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 500 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_MISS);
    assert_false(rig_in_arena(client, KV, 0));
    end(client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_get_waits_behind_no_hint_for_long),
        cmocka_unit_test(what_comes_first_counts),
        cmocka_unit_test(without_memory_the_hint_is_waited_for),
        cmocka_unit_test(a_write_overtakes_both),
    };

    return cmocka_run_group_tests_name("agent-overtake", tests, NULL, NULL);
}
