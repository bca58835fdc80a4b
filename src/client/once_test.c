/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `once` of puts, gets and hints: it reaches the agent with each entry of the request, and of no
 * other one. What the agent makes of it: agent/once_test.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "client/client_int.h"
#include "client/client_rig.h"
#include "client/fake_agent.h"
#include "shm/shm.h"

#define BYTES 100
#define COUNT 10

/* Keys 0 .. COUNT - 1, with memory for each. */
struct blocks {
    struct icms_block of[COUNT];
    struct icms_key keys[COUNT];
    uint8_t memory[COUNT][BYTES];
};

static void blocks_init(struct blocks *blocks)
{
    memset(blocks, 0, sizeof(*blocks));
    for (uint32_t i = 0; i < COUNT; i++) {
        blocks->keys[i] = rig_key(i);
        rig_fill(blocks->memory[i], BYTES, i);
        blocks->of[i] =
            (struct icms_block){.key = blocks->keys[i], .data = blocks->memory[i], .bytes = BYTES};
    }
}

static struct icms_request_options once(uint32_t is_once)
{
    struct icms_request_options options;

    icms_request_options_init(&options);
    assert_int_equal(options.once, 0);
    options.once = is_once;
    return options;
}

static unsigned onces(enum shm_op op)
{
    return atomic_load(&fake.onces[op]);
}

static void each_block_of_a_put_says_so(void **state)
{
    struct client_rig *rig = *state;
    struct icms_request_options options = once(1);
    struct icms_request *request = NULL;
    struct blocks blocks;

    blocks_init(&blocks);
    assert_int_equal(icms_put(rig->kv, blocks.of, COUNT, NULL), ICMS_OK);
    assert_int_equal(onces(SHM_OP_PUT), 0);
    assert_int_equal(icms_put(rig->kv, blocks.of, COUNT, &options), ICMS_OK);
    assert_int_equal(onces(SHM_OP_PUT), COUNT);
    options.put_if_absent = 1; /* beside other flags */
    assert_int_equal(icms_put(rig->kv, blocks.of, COUNT, &options), ICMS_MISS);
    assert_int_equal(blocks.of[0].status, ICMS_EXISTS);
    assert_int_equal(onces(SHM_OP_PUT), 2 * COUNT);
    options = once(1);
    assert_int_equal(icms_put_start(rig->kv, blocks.of, COUNT, &options, &request), ICMS_OK);
    assert_int_equal(icms_request_wait(request, RIG_GRACE_MS), ICMS_OK);
    assert_int_equal(icms_request_end(&request), ICMS_OK);
    assert_int_equal(onces(SHM_OP_PUT), 3 * COUNT);
}

/* By the ring, and in mapped memory, where the agent is told of the hit. */
static void gets_say_so_wherever_the_block_is(void **state)
{
    struct client_rig *rig = *state;
    struct icms_request_options options = once(1);
    struct icms_lease lease;
    enum icms_miss reason;
    struct blocks blocks;

    blocks_init(&blocks);
    assert_int_equal(icms_put(rig->kv, blocks.of, 1, NULL), ICMS_OK);
    assert_int_equal(icms_get(rig->kv, blocks.of, 1, &options), ICMS_OK);
    assert_int_equal(atomic_load(&fake.gets), 1);
    assert_int_equal(onces(SHM_OP_GET), 1);
    assert_int_equal(icms_get(rig->kv, blocks.of, 1, &options), ICMS_OK); /* in mapped memory */
    assert_int_equal(icms_get(rig->kv, blocks.of, 1, NULL), ICMS_OK);
    assert_int_equal(icms_lease_take(rig->kv, &blocks.keys[0], &options, &reason, &lease), ICMS_OK);
    icms_lease_give(&lease);
    assert_int_equal(icms_flush(rig->kv, NULL), ICMS_OK); /* behind what it is told */
    assert_int_equal(atomic_load(&fake.gets), 1);
    assert_int_equal(atomic_load(&fake.touches), 3);
    assert_int_equal(onces(SHM_OP_TOUCH), 2);
    assert_int_equal(onces(SHM_OP_FLUSH), 0);
}

static void hints_say_so(void **state)
{
    struct client_rig *rig = *state;
    struct icms_prestage_options options;
    struct blocks blocks;
    unsigned entries;

    blocks_init(&blocks);
    icms_prestage_options_init(&options);
    assert_int_equal(options.once, 0);
    assert_int_equal(icms_prestage(rig->kv, blocks.keys, COUNT, &options, NULL), ICMS_OK);
    assert_int_equal(onces(SHM_OP_PRESTAGE), 0);
    entries = atomic_load(&fake.prestages);
    options.once = 1;
    assert_int_equal(icms_prestage(rig->kv, blocks.keys, COUNT, &options, NULL), ICMS_OK);
    assert_true(onces(SHM_OP_PRESTAGE) > 0);
    assert_int_equal(onces(SHM_OP_PRESTAGE), atomic_load(&fake.prestages) - entries);
    entries = onces(SHM_OP_PRESTAGE);
    assert_int_equal(icms_prestage_cancel(rig->kv, blocks.keys, COUNT, NULL), ICMS_OK);
    assert_int_equal(onces(SHM_OP_PRESTAGE), entries);
}

/* Requests of one handle in flight together, and another handle: each says its own. */
static void nobody_speaks_for_others(void **state)
{
    struct client_rig *rig = *state;
    struct icms_request_options say = once(1), say_not = once(0);
    struct icms_request *requests[4];
    struct icms_volume *volume;
    struct icms *other = NULL;
    struct blocks blocks[4];
    char why[256];

    assert_int_equal(icms_open(rig->where, NULL, why, sizeof(why), &other), ICMS_OK);
    assert_int_equal(icms_volume_open(other, "kv", why, sizeof(why), &volume), ICMS_OK);
    atomic_store(&fake.mute, true);
    for (int i = 0; i < 4; i++) {
        blocks_init(&blocks[i]);
        assert_int_equal(icms_put_start(i < 2 ? rig->kv : volume, blocks[i].of, COUNT,
                                        i % 2 == 0 ? &say : &say_not, &requests[i]),
                         ICMS_OK);
    }
    atomic_store(&fake.mute, false);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(icms_request_wait(requests[i], RIG_GRACE_MS), ICMS_OK);
        assert_int_equal(icms_request_end(&requests[i]), ICMS_OK);
    }
    assert_int_equal(atomic_load(&fake.puts), 4 * COUNT);
    assert_int_equal(onces(SHM_OP_PUT), 2 * COUNT);
    icms_close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_block_of_a_put_says_so, client_rig_setup,
                                        client_rig_teardown),
        cmocka_unit_test_setup_teardown(gets_say_so_wherever_the_block_is, client_rig_setup,
                                        client_rig_teardown),
        cmocka_unit_test_setup_teardown(hints_say_so, client_rig_setup, client_rig_teardown),
        cmocka_unit_test_setup_teardown(nobody_speaks_for_others, client_rig_setup,
                                        client_rig_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
