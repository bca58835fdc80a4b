/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What policy.h promises, decision by decision; whole traces are cmd/replay_test.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/hash.h"
#include "policy/policy.h"

#define BLOCK    ((uint64_t)1 << 20)
#define CAPACITY (600 * BLOCK)
/* The run of what is read. */
#define RUN 9

#define DAY_MS ((uint64_t)86400 * 1000)

static struct policy *policy_make(uint64_t budget_bytes_day)
{
    struct policy_opts opts;
    struct policy *policy;

    policy_opts_init(&opts);
    opts.capacity_bytes = CAPACITY;
    opts.ghost_keys = 4096;
    opts.budget_bytes_day = budget_bytes_day;
    assert_int_equal(policy_new(&opts, 0, &policy), ICMS_OK);
    policy_volume_share(policy, 0, CAPACITY);
    return policy;
}

/* Writes so many new blocks, one a second, and gives the time. */
static uint64_t policy_fill(struct policy *policy, uint64_t blocks, uint64_t now_ms)
{
    static uint64_t name;

    for (uint64_t i = 0; i < blocks; i++) {
        now_ms += 1000;
        assert_int_equal(policy_written(policy, 0, hash64_mix(++name), BLOCK, now_ms), 0);
    }
    return now_ms;
}

/* A block that was read lately is carried over, one that was read long ago or never is not. */
static void test_carry(void **state)
{
    struct policy *policy = policy_make(0);
    uint64_t now_ms = policy_fill(policy, 100, 0);
    policy_state never = policy_written(policy, 0, 1, BLOCK, now_ms);
    policy_state early = policy_read(policy, 0, RUN, never), lately;
    struct policy_verdict verdict;

    (void)state;
    now_ms = policy_fill(policy, 500, now_ms);
    lately = policy_read(policy, 0, RUN, early);
    assert_false(policy_carry(policy, 0, never, BLOCK, 100000, now_ms).carry);
    assert_false(policy_carry(policy, 0, early, BLOCK, 100000, now_ms).carry);
    verdict = policy_carry(policy, 0, lately, BLOCK, 100000, now_ms);
    assert_true(verdict.carry);
    assert_true(verdict.wanted_ms >= now_ms); /* the second read counts for more */
    /* where it lies now it was not read yet */
    assert_false(policy_carry(policy, 0, verdict.state, BLOCK, 100000, now_ms).carry);
    verdict.state = policy_read(policy, 0, RUN, verdict.state);
    assert_true(policy_carry(policy, 0, verdict.state, BLOCK, 100000, now_ms).carry);
    policy_free(&policy);
}

/* No more is carried over than the part of what was admitted; what is undone counts again. */
static void test_carry_bound(void **state)
{
    struct policy *policy = policy_make(0);
    uint64_t now_ms = policy_fill(policy, 1000, 0), carried = 0;
    policy_state read = policy_read(policy, 0, RUN, 0);

    (void)state;
    policy_carry_undo(policy, BLOCK); /* one more than there would be */
    while (policy_carry(policy, 0, policy_read(policy, 0, RUN, read), BLOCK, 0, now_ms).carry)
        carried++;
    assert_true(carried >= 100 && carried <= 147);
    policy_free(&policy);
}

/* What was evicted comes back with its reads, once. */
static void test_ghost(void **state)
{
    struct policy *policy = policy_make(0);
    policy_state read = policy_read(policy, 0, RUN, 0), back;

    (void)state;
    policy_evicted(policy, 77, read);
    back = policy_written(policy, 0, 77, BLOCK, 1);
    assert_int_equal(back, policy_read(policy, 0, RUN, read)); /* read once more */
    assert_int_equal(policy_written(policy, 0, 77, BLOCK, 1), 0);
    assert_int_equal(policy_written(policy, 0, 78, BLOCK, 1), 0);
    policy_free(&policy);
}

/* Without a budget all is admitted; with one, so much a day as it says, to the byte. */
static void test_budget(void **state)
{
    uint64_t a_day = 1000003 * (uint64_t)4096, written = 0, n = 0;
    struct policy *policy = policy_make(0);

    (void)state;
    assert_true(policy_admit(policy, 1, 0, UINT64_MAX / 4, 0));
    assert_true(policy_budget_left(policy, 0) == UINT64_MAX);
    policy_free(&policy);
    policy = policy_make(a_day);
    for (uint64_t now_ms = 0; now_ms < DAY_MS; now_ms += 997) {
        while (policy_admit(policy, ++n, 0, 4096, now_ms))
            written += 4096;
    }
    written += policy_budget_left(policy, DAY_MS);
    assert_true(written <= a_day + a_day / 480 && written >= a_day - a_day / 480 - 4096);
    assert_true(policy_budget_left(policy, 10 * DAY_MS) == a_day); /* a day at most is saved */
    policy_free(&policy);
}

/* When it runs short, what was refused or evicted is taken when it comes again. */
static void test_admit_known(void **state)
{
    struct policy *policy = policy_make(480 * 100 * BLOCK);
    uint64_t name = 1000;

    (void)state;
    while (policy_admit(policy, name, 0, BLOCK, 0)) /* begins with 100 blocks */
        name++;
    assert_true(name > 1040 && name < 1060);              /* half of them for anything */
    assert_true(policy_admit(policy, name, 0, BLOCK, 0)); /* for the second time */
    assert_false(policy_admit(policy, 5, 0, BLOCK, 0));
    policy_evicted(policy, 6, 0);
    assert_true(policy_admit(policy, 6, 0, BLOCK, 0));
    assert_false(policy_admit(policy, 7, 0, BLOCK, 60000));     /* a minute: not enough yet */
    assert_true(policy_admit(policy, 8, 0, BLOCK, 10 * 60000)); /* recovered */
    policy_free(&policy);
}

/* Between the two, what is new is taken when its run was read. */
static void test_admit_run(void **state)
{
    struct policy *policy = policy_make(480 * 100 * BLOCK);
    uint64_t name = 1000, taken = 0;

    (void)state;
    while (policy_admit(policy, name, 0, BLOCK, 0))
        name++;
    assert_false(policy_admit(policy, ++name, RUN, BLOCK, 0)); /* nobody read in it */
    (void)policy_read(policy, 0, RUN, 0);
    while (policy_admit(policy, ++name, RUN, BLOCK, 0))
        taken++;
    assert_true(taken > 20 && taken < 30); /* a quarter of what there was */
    assert_false(policy_admit(policy, ++name, RUN, BLOCK, 30000));
    assert_true(policy_admit(policy, ++name, RUN, BLOCK, 60000)); /* half of it again */
    assert_false(policy_admit(policy, ++name, RUN + 1, BLOCK, 60000));
    assert_true(policy_admit(policy, name, RUN + 1, BLOCK, 60000)); /* for the second time */
    policy_free(&policy);
}

/* With a budget less is carried over: what was read in the second half of the window is not. */
static void test_carry_budget(void **state)
{
    (void)state;
    for (int budget = 0; budget < 2; budget++) {
        struct policy *policy = policy_make(budget != 0 ? 480 * 5000 * BLOCK : 0);
        uint64_t now_ms = policy_fill(policy, 1200, 0);
        policy_state read = policy_read(policy, 0, RUN, 0);

        now_ms = policy_fill(policy, 300, now_ms); /* life 1,000 s: 600 s, or 300 s */
        assert_true(policy_carry(policy, 0, read, BLOCK, now_ms - 1000000, now_ms).carry);
        now_ms = policy_fill(policy, 200, now_ms);
        assert_int_equal(policy_carry(policy, 0, read, BLOCK, now_ms - 1000000, now_ms).carry,
                         budget == 0);
        policy_free(&policy);
    }
}

/* What is charged may be owed; until it is paid nothing is admitted or carried over. */
static void test_charge(void **state)
{
    struct policy *policy = policy_make(480 * 100 * BLOCK);
    uint64_t now_ms = policy_fill(policy, 1000, 0);
    policy_state read = policy_read(policy, 0, RUN, 0);
    uint64_t left = policy_budget_left(policy, now_ms);

    (void)state;
    policy_charge(policy, BLOCK, now_ms);
    assert_true(policy_budget_left(policy, now_ms) == left - BLOCK);
    assert_true(policy_carry(policy, 0, read, BLOCK, 0, now_ms).carry);
    assert_true(policy_budget_left(policy, now_ms) == left - 2 * BLOCK);
    policy_carry_undo(policy, BLOCK);
    assert_true(policy_admit(policy, 1, 0, BLOCK, now_ms));
    policy_admit_undo(policy, BLOCK);
    assert_true(policy_budget_left(policy, now_ms) == left - BLOCK);
    policy_charge(policy, left + 99 * BLOCK, now_ms); /* 100 blocks too many: three minutes */
    assert_true(policy_budget_left(policy, now_ms) == 0);
    policy_evicted(policy, 1, 0);
    assert_false(policy_admit(policy, 1, 0, BLOCK, now_ms + 178000));
    assert_false(policy_carry(policy, 0, read, BLOCK, 0, now_ms + 178000).carry);
    assert_true(policy_carry(policy, 0, read, BLOCK, 0, now_ms + 183000).carry);
    assert_true(policy_admit(policy, 1, 0, BLOCK, now_ms + 186000));
    policy_free(&policy);
}

/* No more than the burst is saved up. */
static void test_burst(void **state)
{
    struct policy_opts opts;
    struct policy *policy;

    (void)state;
    policy_opts_init(&opts);
    opts.capacity_bytes = CAPACITY;
    opts.budget_bytes_day = 480 * 100 * BLOCK;
    opts.burst_bytes = 30 * BLOCK;
    assert_int_equal(policy_new(&opts, 0, &policy), ICMS_OK);
    assert_true(policy_budget_left(policy, 0) == 30 * BLOCK);
    assert_true(policy_budget_left(policy, 5 * DAY_MS) == 30 * BLOCK);
    for (uint64_t i = 0; i < 16; i++)
        assert_true(policy_admit(policy, i, 0, BLOCK, 5 * DAY_MS));
    assert_false(policy_admit(policy, 99, 0, BLOCK, 5 * DAY_MS)); /* under half of it */
    policy_admit_undo(policy, 100 * BLOCK);
    assert_true(policy_budget_left(policy, 5 * DAY_MS) == 30 * BLOCK);
    policy_free(&policy);
}

/* The mean, and 0 for a segment of which nothing is known. */
static void test_due(void **state)
{
    struct policy_segment segment = {0};

    (void)state;
    assert_int_equal(policy_segment_due(&segment), 0);
    policy_segment_add(&segment, 100);
    policy_segment_add(&segment, 300);
    assert_int_equal(policy_segment_due(&segment), 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_carry),     cmocka_unit_test(test_carry_bound),
        cmocka_unit_test(test_ghost),     cmocka_unit_test(test_budget),
        cmocka_unit_test(test_due),       cmocka_unit_test(test_admit_known),
        cmocka_unit_test(test_charge),    cmocka_unit_test(test_burst),
        cmocka_unit_test(test_admit_run), cmocka_unit_test(test_carry_budget),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
