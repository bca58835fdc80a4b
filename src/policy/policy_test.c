/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What policy.h promises, decision by decision; whole traces are cmd/replay_test.c.
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
    struct policy_opts opts;
    struct policy *policy;

    policy_opts_init(&opts);
    opts.ghost_keys = 4096;
    opts.budget_bytes_day = budget_bytes_day;
    assert_int_equal(policy_new(&opts, 0, &policy), ICMS_OK);
    return policy;
}

/* The segment whose last access is oldest goes, whatever its age. */
static void test_access(void **state)
{
    struct policy *policy = policy_make(0);
    struct policy_segment a = {0}, b = {0}, never = {0};

    (void)state;
    policy_access(policy, &a); /* written */
    policy_access(policy, &b);
    assert_true(policy_before(&a, &b));
    assert_false(policy_before(&b, &a));
    policy_access(policy, &a); /* read */
    assert_true(policy_before(&b, &a));
    assert_true(policy_before(&never, &b));
    assert_false(policy_before(&a, &a));
    policy_free(&policy);
}

/* What was evicted is admitted when the budget is short for new blocks, until it is written. */
static void test_ghost(void **state)
{
    struct policy *policy = policy_make(480 * 100 * BLOCK);
    uint64_t name = 1000;

    (void)state;
    while (policy_admit(policy, name, 0, 0, BLOCK, 0))
        name++;
    assert_false(policy_admit(policy, 5, 0, 0, BLOCK, 0));
    policy_evicted(policy, 6);
    assert_true(policy_admit(policy, 6, 0, 0, BLOCK, 0));
    policy_written(policy, 6);
    assert_false(policy_admit(policy, 6, 0, 0, BLOCK, 0)); /* as a new one */
    policy_free(&policy);
}

/* Without a budget all is admitted; with one, so much a day as it says, to the byte. */
static void test_budget(void **state)
{
    uint64_t a_day = 1000003 * (uint64_t)4096, written = 0, n = 0;
    struct policy *policy = policy_make(0);

    (void)state;
    assert_true(policy_admit(policy, 1, 0, 0, UINT64_MAX / 4, 0));
    assert_true(policy_budget_left(policy, 0) == UINT64_MAX);
    policy_free(&policy);
    policy = policy_make(a_day);
    for (uint64_t now_ms = 0; now_ms < DAY_MS; now_ms += 997) {
        while (policy_admit(policy, ++n, 0, 0, 4096, now_ms))
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
    while (policy_admit(policy, name, 0, 0, BLOCK, 0)) /* begins with 100 blocks */
        name++;
    assert_true(name > 1040 && name < 1060);                 /* half of them for anything */
    assert_true(policy_admit(policy, name, 0, 0, BLOCK, 0)); /* for the second time */
    assert_false(policy_admit(policy, 5, 0, 0, BLOCK, 0));
    policy_evicted(policy, 6);
    assert_true(policy_admit(policy, 6, 0, 0, BLOCK, 0));
    assert_false(policy_admit(policy, 7, 0, 0, BLOCK, 60000));     /* a minute: not enough yet */
    assert_true(policy_admit(policy, 8, 0, 0, BLOCK, 10 * 60000)); /* recovered */
    policy_free(&policy);
}

/* Between the two, what is new is taken when its run was read. */
static void test_admit_run(void **state)
{
    struct policy *policy = policy_make(480 * 100 * BLOCK);
    uint64_t name = 1000, taken = 0;

    (void)state;
    while (policy_admit(policy, name, 0, 0, BLOCK, 0))
        name++;
    assert_false(policy_admit(policy, ++name, RUN, 0, BLOCK, 0)); /* nobody read in it */
    policy_read(policy, 0, RUN);
    while (policy_admit(policy, ++name, RUN, 0, BLOCK, 0))
        taken++;
    assert_true(taken > 20 && taken < 30); /* a quarter of what there was */
    assert_false(policy_admit(policy, ++name, RUN, 0, BLOCK, 30000));
    assert_true(policy_admit(policy, ++name, RUN, 0, BLOCK, 60000)); /* half of it again */
    assert_false(policy_admit(policy, ++name, RUN + 1, 0, BLOCK, 60000));
    assert_true(policy_admit(policy, name, RUN + 1, 0, BLOCK, 60000)); /* for the second time */
    policy_free(&policy);
}

/* What is charged may be owed; until it is paid nothing is admitted. */
static void test_charge(void **state)
{
    struct policy *policy = policy_make(480 * 100 * BLOCK);
    uint64_t left = policy_budget_left(policy, 0);

    (void)state;
    policy_charge(policy, BLOCK, 0);
    assert_true(policy_budget_left(policy, 0) == left - BLOCK);
    assert_true(policy_admit(policy, 1, 0, 0, BLOCK, 0));
    assert_true(policy_budget_left(policy, 0) == left - 2 * BLOCK);
    policy_admit_undo(policy, BLOCK);
    assert_true(policy_budget_left(policy, 0) == left - BLOCK);
    policy_charge(policy, left + 99 * BLOCK, 0); /* 100 blocks too many: three minutes */
    assert_true(policy_budget_left(policy, 0) == 0);
    policy_evicted(policy, 1);
    assert_false(policy_admit(policy, 1, 0, 0, BLOCK, 178000));
    assert_true(policy_admit(policy, 1, 0, 0, BLOCK, 183000));
    policy_free(&policy);
}

/* No more than the burst is saved up. */
static void test_burst(void **state)
{
    struct policy_opts opts;
    struct policy *policy;

    (void)state;
    policy_opts_init(&opts);
    opts.budget_bytes_day = 480 * 100 * BLOCK;
    opts.burst_bytes = 30 * BLOCK;
    assert_int_equal(policy_new(&opts, 0, &policy), ICMS_OK);
    assert_true(policy_budget_left(policy, 0) == 30 * BLOCK);
    assert_true(policy_budget_left(policy, 5 * DAY_MS) == 30 * BLOCK);
    for (uint64_t i = 0; i < 16; i++)
        assert_true(policy_admit(policy, i, 0, 0, BLOCK, 5 * DAY_MS));
    assert_false(policy_admit(policy, 99, 0, 0, BLOCK, 5 * DAY_MS)); /* under half of it */
    policy_admit_undo(policy, 100 * BLOCK);
    assert_true(policy_budget_left(policy, 5 * DAY_MS) == 30 * BLOCK);
    policy_free(&policy);
}

/* New blocks of a stream, some of which come back. */
struct stream {
    struct policy *policy;
    prompt_hint often;        /* a fifth of the blocks: these come back ...     */
    prompt_hint seldom;       /* ... and of the others one in fifty             */
    uint64_t name;            /* of the next block                              */
    uint64_t idle_ms;         /* for so long there was none                     */
    uint64_t taken[2], of[2]; /* new ones with the hint seldom, often           */
    bool there[1 << 19];      /* by name                                        */
};

#define STREAM_BACK 300

/* So many blocks, one in ten milliseconds; each that comes back does after 300 others. */
static void stream_run(struct stream *stream, uint64_t count)
{
    memset(stream->taken, 0, sizeof(stream->taken));
    memset(stream->of, 0, sizeof(stream->of));
    for (uint64_t end = stream->name + count; stream->name < end; stream->name++) {
        uint64_t name = stream->name, old = name - STREAM_BACK;
        uint64_t now_ms = 10 * name + stream->idle_ms;
        bool often = name % 5 == 0;

        assert_true(name < sizeof(stream->there));
        stream->there[name] = policy_admit(stream->policy, hash64_mix(name), hash64_mix(name / 8),
                                           often ? stream->often : stream->seldom, BLOCK, now_ms);
        stream->of[often]++;
        stream->taken[often] += stream->there[name];
        if (name < STREAM_BACK || (old % 5 != 0 && old % 50 != 1))
            continue;
        if (stream->there[old])
            policy_read(stream->policy, hash64_mix(old), 0);
        else
            stream->there[old] = policy_admit(stream->policy, hash64_mix(old), hash64_mix(old / 8),
                                              stream->seldom, BLOCK, now_ms);
    }
}

static struct stream *stream_new(uint64_t burst_bytes)
{
    struct stream *stream = calloc(1, sizeof(*stream));
    struct policy_opts opts;

    assert_non_null(stream);
    policy_opts_init(&opts);
    opts.ghost_keys = 4096;
    opts.budget_bytes_day = (uint64_t)30 * 86400 * BLOCK;
    opts.burst_bytes = burst_bytes;
    assert_int_equal(policy_new(&opts, 0, &stream->policy), ICMS_OK);
    stream->often = prompt_hint_make(&(struct prompt_place){.blocks = 9, .hits = 2, .at = 3});
    stream->seldom = prompt_hint_make(&(struct prompt_place){.blocks = 9, .hits = 0, .at = 8});
    assert_true(stream->often != 0 && stream->seldom != 0 && stream->often != stream->seldom);
    return stream;
}

/* What a budget could not save while nobody stored is not given away afterwards. */
static void test_admit_after_idle(void **state)
{
    struct stream *stream = stream_new(300 * BLOCK);

    (void)state;
    stream_run(stream, 30000);
    stream->idle_ms = 2 * DAY_MS;
    stream_run(stream, 600); /* what was saved */
    stream_run(stream, 10000);
    assert_true(stream->taken[true] * 100 >= stream->of[true] * 97);
    policy_free(&stream->policy);
    free(stream);
}

/* A drive that may write 30 of 100 blocks a second learns which hints come back, and when that
 * changes it learns again. What is left it gives to the others, and it keeps to its budget. */
static void test_admit_learns(void **state)
{
    struct stream *stream = stream_new(0);
    prompt_hint often = stream->often, seldom = stream->seldom;

    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        stream_run(stream, turn == 0 ? 20000 : 300000); /* it forgets slowly */
        stream_run(stream, 10000);
        assert_true(stream->taken[true] * 100 >= stream->of[true] * 97);
        assert_in_range(stream->taken[true] + stream->taken[false], 2500, 3600);
        stream->often = seldom;
        stream->seldom = often;
    }
    policy_free(&stream->policy);
    free(stream);
}

/* Far more comes back than may be written: the budget is spent on that, and nothing locks up. */
static void test_admit_known_first(void **state)
{
    struct policy *policy = policy_make((uint64_t)10 * 86400 * BLOCK);
    prompt_hint hint = prompt_hint_make(&(struct prompt_place){.blocks = 1, .at = 0});
    uint64_t known = 0, fresh = 0, late = 0;

    (void)state;
    for (uint64_t name = 0; name < 60000; name++) { /* 100 a second, and again after three */
        uint64_t now_ms = 10 * name;

        if (name >= 300)
            known += policy_admit(policy, hash64_mix(name - 300), 0, hint, BLOCK, now_ms);
        fresh += policy_admit(policy, hash64_mix(name), name, hint, BLOCK, now_ms);
        if (name == 30000)
            late = fresh;
    }
    assert_in_range(known + fresh, 7700, 7900); /* ten a second, and three minutes' worth */
    assert_in_range(fresh - late, 0, 300);
    policy_free(&policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_access),
        cmocka_unit_test(test_ghost),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_admit_known),
        cmocka_unit_test(test_charge),
        cmocka_unit_test(test_burst),
        cmocka_unit_test(test_admit_run),
        cmocka_unit_test(test_admit_learns),
        cmocka_unit_test(test_admit_known_first),
        cmocka_unit_test(test_admit_after_idle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
