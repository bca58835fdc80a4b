/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints: what callers are told of them, in few messages, whatever the agent does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "client/client_int.h"
#include "client/client_rig.h"
#include "client/fake_agent.h"

#define KEYS (2 * ICMS_BATCH_MAX + 100)

struct fixture {
    struct client_rig rig;  /* first  */
    struct icms_volume *kv; /* of it  */
    struct icms_key keys[KEYS];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    check(f != NULL);
    *state = f;
    for (uint64_t i = 0; i < KEYS; i++)
        f->keys[i] = rig_key(i);
    if (client_rig_open(&f->rig, NULL) != 0)
        return -1;
    f->kv = f->rig.kv;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    client_rig_close(&f->rig);
    free(f);
    return 0;
}

static void hints_of_many_keys_take_few_messages(void **state)
{
    struct fixture *f = *state;
    size_t taken = 0;

    assert_int_equal(icms_prestage(f->kv, f->keys, 1, NULL, NULL), ICMS_OK);
    assert_int_equal(atomic_load(&fake.hints), 1);
    assert_int_equal(atomic_load(&fake.prestages), fake_reactors());
    assert_int_equal(icms_prestage(f->kv, f->keys, KEYS, NULL, &taken), ICMS_OK);
    assert_int_equal(taken, KEYS);
    assert_int_equal(atomic_load(&fake.hints), 1 + KEYS);
    assert_true(atomic_load(&fake.prestages) <= fake_reactors() * (1 + KEYS / SHM_HINT_KEYS + 1));
    assert_int_equal(icms_prestage_cancel(f->kv, f->keys, KEYS, &taken), ICMS_OK);
    assert_int_equal(taken, KEYS);
    assert_int_equal(icms_prestage_cancel(f->kv, f->keys, 2, &taken), ICMS_MISS);
    assert_int_equal(taken, 1);
}

/* Behind a batch of which some were refused no more are asked for. */
static void hints_that_are_refused_are_counted(void **state)
{
    struct fixture *f = *state;
    size_t taken = 0;

    atomic_store(&fake.hints_max, 100);
    assert_int_equal(icms_prestage(f->kv, f->keys, KEYS, NULL, &taken), ICMS_BUSY);
    assert_int_equal(taken, 100);
    assert_true(atomic_load(&fake.prestages) <= fake_reactors() * (ICMS_BATCH_MAX / SHM_HINT_KEYS));
}

static void each_wrong_key_has_its_own_error(void **state)
{
    struct fixture *f = *state;
    size_t taken = 0;

    f->keys[10].length = 0;
    f->keys[KEYS - 1].length = 17;
    assert_int_equal(icms_prestage(f->kv, f->keys, KEYS, NULL, &taken), ICMS_KEY_SIZE);
    assert_int_equal(taken, KEYS - 2);
    assert_int_equal(icms_prestage(f->kv, f->keys, 0, NULL, &taken), ICMS_INVALID);
    assert_int_equal(icms_prestage(f->kv, NULL, 1, NULL, &taken), ICMS_INVALID);
    assert_int_equal(icms_prestage(NULL, f->keys, 1, NULL, &taken), ICMS_INVALID);
}

static void options_are_checked(void **state)
{
    struct fixture *f = *state;
    struct icms_prestage_options options;
    struct icms_request *request = NULL;
    size_t taken = 0;

    icms_prestage_options_init(&options);
    options.priority = ICMS_PRIORITY_MAX + 1;
    assert_int_equal(icms_prestage(f->kv, f->keys, 1, &options, &taken), ICMS_INVALID);
    icms_prestage_options_init(&options);
    options.tier = ICMS_TIER_LOCAL + 1;
    assert_int_equal(icms_prestage(f->kv, f->keys, 1, &options, &taken), ICMS_INVALID);
    assert_int_equal(icms_prestage_start(f->kv, f->keys, 1, &options, &request), ICMS_INVALID);
    icms_prestage_options_init(&options);
    options.once = 1;
    options.pin_seconds = 60;
    assert_int_equal(icms_prestage(f->kv, f->keys, 1, &options, &taken), ICMS_INVALID);
    options.pin_seconds = 0;
    options.tier = ICMS_TIER_LOCAL;
    assert_int_equal(icms_prestage(f->kv, f->keys, 1, &options, &taken), ICMS_INVALID);
    icms_prestage_options_init(&options);
    options.deadline_ms = 600001;
    assert_int_equal(icms_prestage(f->kv, f->keys, 1, &options, &taken), ICMS_INVALID);
    options.deadline_ms = 0;
    assert_int_equal(icms_prestage(f->kv, f->keys, 3, &options, &taken), ICMS_DEADLINE);
    assert_int_equal(taken, 0);
    options.struct_bytes = 1;
    assert_int_equal(icms_prestage(f->kv, f->keys, 1, &options, &taken), ICMS_INVALID);
    /* of a caller that was compiled with no more than the deadline */
    icms_prestage_options_init(&options);
    options.struct_bytes = offsetof(struct icms_prestage_options, tier);
    options.tier = 77;
    assert_int_equal(icms_prestage(f->kv, f->keys, 1, &options, &taken), ICMS_OK);
    assert_int_equal(atomic_load(&fake.hints), 1);
}

static void hints_are_requests_too(void **state)
{
    struct fixture *f = *state;
    struct icms_prestage_options options;
    struct icms_request *requests[3] = {NULL};
    int tag;

    icms_prestage_options_init(&options);
    options.tag = &tag;
    for (int i = 0; i < 2; i++)
        assert_int_equal(icms_prestage_start(f->kv, f->keys + i * 300, 300, &options, &requests[i]),
                         ICMS_OK);
    assert_int_equal(icms_request_wait(requests[0], -1), ICMS_OK);
    assert_int_equal(icms_request_end(&requests[0]), ICMS_OK);
    assert_ptr_equal(rig_poll_next(f->rig.icms), requests[1]);
    assert_ptr_equal(icms_request_tag(requests[1]), &tag);
    assert_int_equal(icms_request_end(&requests[1]), ICMS_OK);
    assert_int_equal(atomic_load(&fake.hints), 600);
    atomic_store(&fake.hints_max, 600);
    assert_int_equal(icms_prestage_start(f->kv, f->keys, 300, &options, &requests[2]), ICMS_OK);
    assert_int_equal(icms_request_end(&requests[2]), ICMS_BUSY);
    assert_int_equal(
        icms_prestage_start(f->kv, f->keys, ICMS_BATCH_MAX + 1, &options, &requests[0]),
        ICMS_INVALID);
}

/* An agent that is stopped costs the timeout of the call, and one that is gone nothing. */
static void no_call_waits_longer_than_its_timeout(void **state)
{
    struct fixture *f = *state;
    struct icms_prestage_options options;
    uint64_t began_ns = client_now_ns();
    size_t taken = 7;

    icms_prestage_options_init(&options);
    options.timeout_ms = 100;
    options.deadline_ms = 60000;
    atomic_store(&fake.swallow, true);
    assert_int_equal(icms_prestage(f->kv, f->keys, KEYS, &options, &taken), ICMS_DEADLINE);
    assert_int_equal(taken, 0);
    assert_in_range(rig_elapsed_ms(began_ns), 100, RIG_GRACE_MS);
    atomic_store(&fake.swallow, false);
    fake_socket_stop(&f->rig.socket);
    taken = 7;
    for (icms_err err = ICMS_OK; err != ICMS_PEER_DOWN;)
        err = icms_prestage(f->kv, f->keys, 1, &options, &taken);
    assert_int_equal(taken, 0);
}

/* Errors of the agent are those of the call; nonsense about a key is a hint that was not taken. */
static void whatever_the_agent_says_is_an_answer(void **state)
{
    struct fixture *f = *state;
    size_t taken = 7;

    atomic_store(&fake.status, ICMS_UNSUPPORTED);
    assert_int_equal(icms_prestage(f->kv, f->keys, KEYS, NULL, &taken), ICMS_UNSUPPORTED);
    assert_int_equal(taken, 0);
    atomic_store(&fake.status, 0);
    atomic_store(&fake.lie, true);
    assert_int_equal(icms_prestage(f->kv, f->keys, 10, NULL, &taken), ICMS_MISS);
    assert_int_equal(taken, 0);
}

/* Hints do not wait for memory that puts hold. */
static void without_memory_hints_are_refused(void **state)
{
    struct fixture *f = *state;
    void *all[64] = {NULL};
    uint64_t bytes = (uint64_t)64 << 20;
    uint64_t began_ns;
    size_t taken = 7;
    int count = 0;

    while (bytes >= 64 && count < 64) {
        if (icms_buffer_take(f->rig.icms, bytes, &all[count]) == ICMS_OK)
            count++;
        else
            bytes /= 2;
    }
    began_ns = client_now_ns();
    assert_int_equal(icms_prestage(f->kv, f->keys, 300, NULL, &taken), ICMS_BUSY);
    assert_int_equal(taken, 0);
    assert_true(rig_elapsed_ms(began_ns) < RIG_GRACE_MS);
    while (count-- > 0)
        icms_buffer_give(f->rig.icms, all[count]);
    assert_int_equal(icms_prestage(f->kv, f->keys, 300, NULL, &taken), ICMS_OK);
    assert_int_equal(taken, 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hints_of_many_keys_take_few_messages, setup, teardown),
        cmocka_unit_test_setup_teardown(hints_that_are_refused_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(each_wrong_key_has_its_own_error, setup, teardown),
        cmocka_unit_test_setup_teardown(options_are_checked, setup, teardown),
        cmocka_unit_test_setup_teardown(hints_are_requests_too, setup, teardown),
        cmocka_unit_test_setup_teardown(no_call_waits_longer_than_its_timeout, setup, teardown),
        cmocka_unit_test_setup_teardown(whatever_the_agent_says_is_an_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(without_memory_hints_are_refused, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
