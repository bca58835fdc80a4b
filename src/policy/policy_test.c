/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What policy.h promises, decision by decision; whole traces are src/replay/replay_test.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "policy/policy.h"

#define BLOCK ((uint64_t)1 << 20)
/* The run of what is read. */
#define RUN 9

#define DAY_MS ((uint64_t)86400 * 1000)

static struct policy *policy_make(uint64_t budget_bytes_day)
{
    struct policy_opts opts = {.ghost_keys = 4096, .budget_bytes_day = budget_bytes_day};
    struct policy *policy;

    assert_int_equal(policy_new(&opts, 0, &policy), ICMS_OK);
    return policy;
}

/* The segment whose last access is oldest goes, whatever its age. */
static void test_access(void **state)
{
    struct policy *policy = policy_make(0);
    struct policy_segment a = {0}, b = {0}, never = {0};

    (void)state;
    policy_access(policy, &a, 1); /* written */
    policy_access(policy, &b, 2);
    assert_true(policy_before(&a, &b));
    assert_false(policy_before(&b, &a));
    policy_access(policy, &a, 1); /* read */
    assert_true(policy_before(&b, &a));
    assert_true(policy_before(&never, &b));
    assert_false(policy_before(&a, &a));
    policy_free(&policy);
}

/* A segment is held by its last accessed block when the others are no younger than the victim. */
static void test_held(void **state)
{
    struct policy *policy = policy_make(0);
    struct policy_segment held = {0}, victim = {0}, one = {0}, two = {0}, old = {0};

    (void)state;
    policy_access_all(policy, &old);
    policy_access(policy, &held, 1);
    policy_access(policy, &held, 2);
    policy_access(policy, &two, 3);
    policy_access(policy, &victim, 4);
    policy_access(policy, &victim, 5);
    assert_false(policy_is_held(&held, &victim)); /* older as a whole */
    policy_access(policy, &one, 6);
    policy_access(policy, &two, 7);
    policy_access(policy, &two, 8);
    policy_access(policy, &held, 1);
    policy_access(policy, &held, 1);
    assert_true(policy_is_held(&held, &victim));
    assert_false(policy_is_held(&victim, &victim));
    assert_false(policy_is_held(&one, &victim)); /* it has no others */
    assert_false(policy_is_held(&two, &victim)); /* one of them is younger */
    assert_true(policy_before(&victim, &held));
    policy_relocated(&held, 2); /* another one */
    assert_true(policy_before(&victim, &held));
    policy_relocated(&held, 1);
    assert_true(policy_before(&held, &victim));
    assert_false(policy_is_held(&held, &victim));
    policy_access_all(policy, &old); /* of an open: which block it was is not known */
    assert_false(policy_is_held(&old, &victim));
    policy_access(policy, &old, 9);
    assert_false(policy_is_held(&old, &victim));
    policy_free(&policy);
}

/* Of what is written a part may be relocated, and little of it is saved up; with a budget nothing.
 */
static void test_relocate(void **state)
{
    struct policy *policy = policy_make(0);
    uint64_t moved = 0, saved = 0;

    (void)state;
    assert_false(policy_relocate(policy, 1));
    for (uint64_t n = 0; n < 1000 * POLICY_RELOCATE_PART; n++) {
        policy_written(policy, n, BLOCK);
        moved += policy_relocate(policy, BLOCK);
    }
    assert_in_range(moved, 999, 1000);
    for (uint64_t n = 0; n < 1000 * POLICY_RELOCATE_PART; n++)
        policy_written(policy, n, BLOCK);
    while (policy_relocate(policy, BLOCK))
        saved++;
    assert_int_equal(saved, 2 * LIMIT_VALUE_BYTES / BLOCK);
    policy_free(&policy);
    policy = policy_make(480 * 100 * BLOCK);
    for (uint64_t n = 0; n < 100 * POLICY_RELOCATE_PART; n++)
        policy_written(policy, n, BLOCK);
    assert_false(policy_relocate(policy, BLOCK));
    policy_free(&policy);
}

/* What was evicted is admitted when the budget is short for new blocks, until it is written. */
static void test_ghost(void **state)
{
    struct policy *policy = policy_make(480 * 100 * BLOCK);
    uint64_t name = 1000;

    (void)state;
    while (policy_admit(policy, name, 0, BLOCK, 0))
        name++;
    assert_false(policy_admit(policy, 5, 0, BLOCK, 0));
    policy_evicted(policy, 6);
    assert_true(policy_admit(policy, 6, 0, BLOCK, 0));
    policy_written(policy, 6, BLOCK);
    assert_false(policy_admit(policy, 6, 0, BLOCK, 0)); /* as a new one */
    policy_free(&policy);
}

/* What was evicted lately is known, without a budget, too; what was refused was not evicted. */
static void test_evicted(void **state)
{
    enum { GHOSTS = 4096 };
    struct policy *policy = policy_make(0);
    uint32_t known = 0, mistakes = 0;
    uint64_t name = 0;

    (void)state;
    for (uint64_t n = 0; n < 5 * GHOSTS; n++)
        policy_evicted(policy, n);
    for (uint64_t n = 0; n < GHOSTS / 2; n++)
        known += policy_was_evicted(policy, 5 * GHOSTS - 1 - n);
    for (uint64_t n = 0; n < 100 * GHOSTS; n++)
        mistakes += policy_was_evicted(policy, 5 * GHOSTS + n);
    assert_in_range(known, GHOSTS / 2 * 95 / 100, GHOSTS / 2);
    assert_true(mistakes < 10);
    policy_written(policy, 5 * GHOSTS - 1, BLOCK);
    assert_false(policy_was_evicted(policy, 5 * GHOSTS - 1));
    policy_free(&policy);
    policy = policy_make(480 * 100 * BLOCK);
    while (policy_admit(policy, name, 0, BLOCK, 0))
        name++;
    assert_false(policy_was_evicted(policy, name));
    policy_evicted(policy, name);
    assert_true(policy_was_evicted(policy, name));
    policy_free(&policy);
}

/* Without a budget all is admitted; with one, so much a day as it says, to the byte. */
static void test_budget(void **state)
{
    uint64_t a_day = 1000003 * (uint64_t)4096, written = 0, n = 0;
    struct policy *policy = policy_make(0);

    (void)state;
    assert_true(policy_admit(policy, 1, 0, UINT64_MAX / 4, 0));
    assert_true(policy_budget_left(policy, 0) == INT64_MAX);
    policy_free(&policy);
    policy = policy_make(a_day);
    for (uint64_t now_ms = 0; now_ms < DAY_MS; now_ms += 997) {
        while (policy_admit(policy, ++n, 0, 4096, now_ms))
            written += 4096;
    }
    written += (uint64_t)policy_budget_left(policy, DAY_MS);
    assert_true(written <= a_day + a_day / 96 && written >= a_day - 4096);
    assert_true(policy_budget_left(policy, 10 * DAY_MS) ==
                (int64_t)a_day); /* a day at most is saved */
    policy_free(&policy);
}

/* When it runs short, what was refused or evicted is taken when it comes again. */
static void test_admit_known(void **state)
{
    struct policy *policy = policy_make(480 * 100 * BLOCK);
    uint64_t name = 1000, known = 0;

    (void)state;
    while (policy_admit(policy, name, 0, BLOCK, 0)) /* begins with 500 blocks */
        name++;
    assert_in_range(name, 1049, 1052);                    /* a tenth of them for anything */
    assert_true(policy_admit(policy, name, 0, BLOCK, 0)); /* for the second time */
    assert_false(policy_admit(policy, 5, 0, BLOCK, 0));
    policy_evicted(policy, 6);
    assert_true(policy_admit(policy, 6, 0, BLOCK, 0));
    assert_false(policy_admit(policy, 7, 0, BLOCK, 60000));     /* a minute: not enough yet */
    assert_true(policy_admit(policy, 8, 0, BLOCK, 10 * 60000)); /* recovered */
    for (name = 2000; name < 3000; name++) {
        policy_evicted(policy, name);
        known += policy_admit(policy, name, 0, BLOCK, 10 * 60000);
    }
    assert_in_range(known, 777, 783); /* all there is: of 500, less 53, and 333 more */
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
    policy_read(policy, RUN);
    while (policy_admit(policy, ++name, RUN, BLOCK, 0))
        taken++;
    assert_true(taken > 20 && taken < 30); /* a twentieth of what there was */
    assert_false(policy_admit(policy, ++name, RUN, BLOCK, 30000));
    assert_true(policy_admit(policy, ++name, RUN, BLOCK, 60000)); /* nine tenths are there again */
    assert_false(policy_admit(policy, ++name, RUN + 1, BLOCK, 60000));
    assert_true(policy_admit(policy, name, RUN + 1, BLOCK, 60000)); /* for the second time */
    policy_free(&policy);
}

/* What is charged may be owed; until it is paid nothing is admitted. */
static void test_charge(void **state)
{
    struct policy *policy = policy_make(480 * 100 * BLOCK);
    int64_t left = policy_budget_left(policy, 0), block = BLOCK;

    (void)state;
    policy_charge(policy, BLOCK, 0);
    assert_true(policy_budget_left(policy, 0) == left - block);
    assert_true(policy_admit(policy, 1, 0, BLOCK, 0));
    assert_true(policy_budget_left(policy, 0) == left - 2 * block);
    policy_admit_undo(policy, BLOCK);
    assert_true(policy_budget_left(policy, 0) == left - block);
    policy_charge(policy, (uint64_t)left + 99 * BLOCK, 0); /* 100 blocks too many: three minutes */
    assert_true(policy_budget_left(policy, 0) == -100 * block);
    policy_evicted(policy, 1);
    assert_false(policy_admit(policy, 1, 0, BLOCK, 178000));
    assert_true(policy_admit(policy, 1, 0, BLOCK, 183000));
    policy_free(&policy);
}

/* No more than the burst is saved up. */
static void test_burst(void **state)
{
    struct policy_opts opts = {.budget_bytes_day = 480 * 100 * BLOCK, .burst_bytes = 30 * BLOCK};
    struct policy *policy;

    (void)state;
    assert_int_equal(policy_new(&opts, 0, &policy), ICMS_OK);
    assert_true(policy_budget_left(policy, 0) == 30 * (int64_t)BLOCK);
    assert_true(policy_budget_left(policy, 5 * DAY_MS) == 30 * (int64_t)BLOCK);
    for (uint64_t i = 0; i < 4; i++)
        assert_true(policy_admit(policy, i, 0, BLOCK, 5 * DAY_MS));
    assert_false(policy_admit(policy, 99, 0, BLOCK, 5 * DAY_MS)); /* under nine tenths of it */
    policy_admit_undo(policy, 100 * BLOCK);
    assert_true(policy_budget_left(policy, 5 * DAY_MS) == 30 * (int64_t)BLOCK);
    policy_free(&policy);
}

/* Far more comes back than may be written: the budget is spent on that, and nothing locks up. */
static void test_admit_known_first(void **state)
{
    struct policy *policy = policy_make((uint64_t)10 * 86400 * BLOCK);
    uint64_t known = 0, fresh = 0, late = 0;

    (void)state;
    for (uint64_t name = 0; name < 60000; name++) { /* 100 a second, and again after three */
        uint64_t now_ms = 10 * name;

        if (name >= 300)
            known += policy_admit(policy, hash64_mix(name - 300), 0, BLOCK, now_ms);
        fresh += policy_admit(policy, hash64_mix(name), name, BLOCK, now_ms);
        if (name == 30000)
            late = fresh;
    }
    assert_in_range(known + fresh, 14900, 15100); /* ten a second, and the reserve */
    assert_in_range(fresh, 500, 900);             /* a tenth of the reserve, with the known ones */
    assert_int_equal(fresh, late);
    policy_free(&policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_access),
        cmocka_unit_test(test_held),
        cmocka_unit_test(test_relocate),
        cmocka_unit_test(test_ghost),
        cmocka_unit_test(test_evicted),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_admit_known),
        cmocka_unit_test(test_charge),
        cmocka_unit_test(test_burst),
        cmocka_unit_test(test_admit_run),
        cmocka_unit_test(test_admit_known_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
