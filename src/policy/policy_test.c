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

/* Where blocks lie whose segment does not matter. */
static struct policy_segment elsewhere;

/* Writes a new block. */
static policy_state block_write(struct policy *policy, struct policy_segment *segment,
                                uint64_t now_ms)
{
    static uint64_t name;

    return policy_written(policy, 0, segment, hash64_mix(++name), BLOCK, now_ms);
}

/* Writes so many new blocks, one a second, and gives the time. */
static uint64_t policy_fill(struct policy *policy, uint64_t blocks, uint64_t now_ms)
{
    for (uint64_t i = 0; i < blocks; i++) {
        now_ms += 1000;
        (void)block_write(policy, &elsewhere, now_ms);
    }
    return now_ms;
}

static policy_state block_read(struct policy *policy, policy_state state, uint64_t now_ms)
{
    return policy_read(policy, 0, &elsewhere, 0, RUN, state, now_ms);
}

/* A segment of a test and its blocks. */
#define BLOCKS 8

struct held {
    struct policy_segment segment;
    policy_state state[BLOCKS];
};

static void held_write(struct policy *policy, struct held *held, uint64_t now_ms)
{
    *held = (struct held){0};
    for (uint32_t i = 0; i < BLOCKS; i++)
        held->state[i] = block_write(policy, &held->segment, now_ms);
}

/* Reads the first of its blocks. */
static void held_read(struct policy *policy, struct held *held, uint32_t blocks, uint64_t now_ms)
{
    for (uint32_t i = 0; i < blocks; i++)
        held->state[i] = policy_read(policy, 0, &held->segment, 0, RUN, held->state[i], now_ms);
}

/* Which of so many segments, the oldest first, is to go. */
static struct held *held_choose(struct policy *policy, struct held *held, uint32_t count)
{
    struct policy_choice choice;

    policy_choice_begin(policy, 0, BLOCKS * BLOCK, &choice);
    for (uint32_t i = 0; i < count; i++)
        policy_choice_add(&choice, &held[i].segment, BLOCKS, &held[i]);
    return policy_choice_end(policy, 0, &choice);
}

/* How many of its blocks are due. */
static uint32_t held_due(struct policy *policy, const struct held *held)
{
    uint32_t due = 0;

    for (uint32_t i = 0; i < BLOCKS; i++)
        due += policy_due(policy, 0, held->state[i]);
    return due;
}

/* The segment goes whose blocks were not wanted for the longest time, whatever its age. */
static void test_choice(void **state)
{
    struct policy *policy = policy_make(0);
    struct held held[4];
    uint64_t now_ms = policy_fill(policy, 300, 0);

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        now_ms = policy_fill(policy, 60, now_ms);
        held_write(policy, &held[i], now_ms);
    }
    assert_ptr_equal(held_choose(policy, held, 4), &held[0]); /* never read: the oldest */
    assert_int_equal(held_due(policy, &held[0]), BLOCKS);
    assert_int_equal(held_due(policy, &held[1]), 0);
    now_ms = policy_fill(policy, 60, now_ms);
    held_read(policy, &held[0], BLOCKS, now_ms);
    assert_ptr_equal(held_choose(policy, held, 4), &held[1]);
    assert_int_equal(held_due(policy, &held[0]), 0);
    assert_int_equal(held_due(policy, &held[1]), BLOCKS);
    /* half of it was read: what is due as a whole goes first, and costs nothing */
    held_read(policy, &held[1], BLOCKS / 2, now_ms);
    assert_ptr_equal(held_choose(policy, held, 4), &held[2]);
    assert_int_equal(held_due(policy, &held[2]), BLOCKS);
    /* then the half that has been due for a while, and the other half is carried over */
    assert_ptr_equal(held_choose(policy, held, 2), &held[1]);
    assert_int_equal(held_due(policy, &held[1]), BLOCKS / 2);
    assert_true(policy_carry(policy, 0, held[1].state[0], BLOCK, now_ms));
    assert_false(policy_carry(policy, 0, held[1].state[BLOCKS - 1], BLOCK, now_ms));
    /* but not when there is nothing left to carry over */
    while (policy_carry(policy, 0, held[1].state[0], BLOCK, now_ms))
        ;
    assert_ptr_equal(held_choose(policy, held + 1, 3), &held[2]);
    assert_int_equal(held_due(policy, &held[3]), 0);
    policy_free(&policy);
}

/* With a budget a part of a segment is carried over on a drive that turns over fast, in 600 s here;
 * on a slow one only segments go of which all is due. */
static void test_choice_budget(void **state)
{
    (void)state;
    for (uint64_t slow = 0; slow < 2; slow++) {
        struct policy *policy = policy_make(480 * 5000 * BLOCK);
        struct held held[3];
        uint64_t now_ms = policy_fill(policy, 1200, 0);

        held_write(policy, &held[0], now_ms);
        now_ms = policy_fill(policy, 100, now_ms);
        held_write(policy, &held[1], now_ms);
        for (uint64_t i = 0; i < 160; i++)
            now_ms = policy_fill(policy, 1, now_ms + 2000 * slow);
        held_write(policy, &held[2], now_ms);
        for (uint64_t i = 0; i < 60; i++)
            now_ms = policy_fill(policy, 1, now_ms + 2000 * slow);
        held_read(policy, &held[0], 1, now_ms);
        assert_ptr_equal(held_choose(policy, held, 2), &held[1]); /* due moves on */
        held[1] = held[2];
        assert_ptr_equal(held_choose(policy, held, 2), slow ? &held[1] : &held[0]);
        policy_free(&policy);
    }
}

#define MANY 32

static void *many_choose(struct policy *policy, struct policy_segment *segment, uint32_t count)
{
    struct policy_choice choice;

    policy_choice_begin(policy, 0, MANY * BLOCK, &choice);
    for (uint32_t i = 0; i < count; i++)
        policy_choice_add(&choice, &segment[i], MANY, &segment[i]);
    return policy_choice_end(policy, 0, &choice);
}

/* Of segments of many blocks the one goes that was wanted least lately in the mean. */
static void test_choice_many(void **state)
{
    struct policy *policy = policy_make(0);
    struct policy_segment segment[3] = {{{0}}};
    policy_state early[MANY], first;
    struct policy_choice choice;
    struct held few;
    uint64_t now_ms = policy_fill(policy, 900, 0);

    (void)state;
    for (uint32_t i = 0; i < MANY; i++)
        early[i] = block_write(policy, &segment[0], now_ms);
    first = early[MANY - 1];
    now_ms = policy_fill(policy, 300, now_ms);
    for (uint32_t i = 0; i < MANY; i++)
        (void)block_write(policy, &segment[1], now_ms);
    now_ms = policy_fill(policy, 100, now_ms);
    assert_ptr_equal(many_choose(policy, segment, 2), &segment[0]);
    for (uint32_t i = 0; i < MANY - 1; i++) /* the older one is read, all but one block */
        early[i] = policy_read(policy, 0, &segment[0], 0, RUN, early[i], now_ms);
    assert_ptr_equal(many_choose(policy, segment, 2), &segment[1]);
    assert_true(policy_due(policy, 0, first));
    assert_false(policy_due(policy, 0, early[0]));
    assert_true(policy_carry(policy, 0, early[0], BLOCK, now_ms));
    assert_ptr_equal(many_choose(policy, segment, 3), &segment[2]); /* nothing is known of it */
    held_write(policy, &few, now_ms);
    policy_choice_begin(policy, 0, MANY * BLOCK,
                        &choice); /* one with few left is not the best yet */
    policy_choice_add(&choice, &few.segment, BLOCKS, &few);
    policy_choice_add(&choice, &segment[1], MANY, &segment[1]);
    assert_ptr_equal(policy_choice_end(policy, 0, &choice), &segment[1]);
    policy_free(&policy);
}

/* What is taken out of a segment does not count any more; blocks of which nothing is known are due;
 * a segment without blocks goes before all others. */
static void test_choice_counts(void **state)
{
    struct policy *policy = policy_make(0);
    struct policy_segment unknown = {{0}};
    struct held held;
    struct policy_choice choice;
    uint64_t now_ms = policy_fill(policy, 1000, 0);

    (void)state;
    held_write(policy, &held, now_ms);
    policy_choice_begin(policy, 0, BLOCKS * BLOCK, &choice);
    policy_choice_add(&choice, &held.segment, BLOCKS, &held);
    policy_choice_add(&choice, &unknown, BLOCKS, &unknown);
    assert_ptr_equal(policy_choice_end(policy, 0, &choice), &unknown);
    policy_choice_begin(policy, 0, BLOCKS * BLOCK, &choice);
    assert_null(policy_choice_end(policy, 0, &choice));
    for (uint32_t i = 0; i < BLOCKS; i++)
        policy_segment_sub(&held.segment, held.state[i]);
    assert_memory_equal(&held.segment, &unknown, sizeof(unknown));
    policy_segment_sub(&held.segment, held.state[0]); /* not below 0 */
    assert_memory_equal(&held.segment, &unknown, sizeof(unknown));
    policy_choice_add(&choice, &held.segment, 0, &held);
    assert_ptr_equal(policy_choice_end(policy, 0, &choice), &held);
    policy_free(&policy);
}

/* A block that was read counts as wanted later than one that was written at the time; how much is a
 * time, not a part of the drive. */
static void test_reads(void **state)
{
    struct policy *policy = policy_make(0);
    struct held held[3];
    uint64_t now_ms = policy_fill(policy, 1000, 0);

    (void)state;
    held_write(policy, &held[0], now_ms);
    held_write(policy, &held[1], now_ms);
    held_read(policy, &held[0], BLOCKS, now_ms);
    now_ms = policy_fill(policy, 10, now_ms); /* 10 s later */
    held_write(policy, &held[2], now_ms);
    assert_ptr_equal(held_choose(policy, held, 3), &held[1]);
    held_read(policy, &held[1], BLOCKS, now_ms);
    assert_ptr_equal(held_choose(policy, held, 3), &held[2]);
    policy_free(&policy);
}

/* Where nobody chooses segments, blocks that were wanted lately are carried over. */
static void test_carry(void **state)
{
    struct policy *policy = policy_make(0);
    uint64_t now_ms = policy_fill(policy, 100, 0);
    policy_state early = block_write(policy, &elsewhere, now_ms), lately;

    (void)state;
    now_ms = policy_fill(policy, 500, now_ms);
    lately = block_read(policy, early, now_ms);
    assert_false(policy_carry(policy, 0, 0, BLOCK, now_ms)); /* nothing is known */
    assert_false(policy_carry(policy, 0, early, BLOCK, now_ms));
    assert_true(policy_carry(policy, 0, lately, BLOCK, now_ms));
    policy_free(&policy);
}

/* No more is carried over than the part of what was admitted; what is undone counts again. */
static void test_carry_bound(void **state)
{
    struct policy *policy = policy_make(0);
    uint64_t now_ms = policy_fill(policy, 1000, 0), carried = 0;

    (void)state;
    policy_carry_undo(policy, BLOCK); /* one more than there would be */
    while (policy_carry(policy, 0, block_read(policy, 0, now_ms), BLOCK, now_ms))
        carried++;
    assert_true(carried >= 100 && carried <= 147);
    policy_free(&policy);
}

/* What was evicted comes back with its reads, once. */
static void test_ghost(void **state)
{
    struct policy *policy = policy_make(0);
    policy_state read = block_read(policy, 0, 1), back, fresh;

    (void)state;
    policy_evicted(policy, 77, read);
    back = policy_written(policy, 0, &elsewhere, 77, BLOCK, 1);
    assert_int_equal(back, block_read(policy, read, 1)); /* read once more */
    fresh = policy_written(policy, 0, &elsewhere, 77, BLOCK, 1);
    assert_int_equal(fresh, policy_written(policy, 0, &elsewhere, 78, BLOCK, 1));
    assert_int_not_equal(fresh, back);
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
    policy_evicted(policy, 6, 0);
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
    (void)block_read(policy, 0, 0);
    while (policy_admit(policy, ++name, RUN, 0, BLOCK, 0))
        taken++;
    assert_true(taken > 20 && taken < 30); /* a quarter of what there was */
    assert_false(policy_admit(policy, ++name, RUN, 0, BLOCK, 30000));
    assert_true(policy_admit(policy, ++name, RUN, 0, BLOCK, 60000)); /* half of it again */
    assert_false(policy_admit(policy, ++name, RUN + 1, 0, BLOCK, 60000));
    assert_true(policy_admit(policy, name, RUN + 1, 0, BLOCK, 60000)); /* for the second time */
    policy_free(&policy);
}

/* What is charged may be owed; until it is paid nothing is admitted or carried over. */
static void test_charge(void **state)
{
    struct policy *policy = policy_make(480 * 100 * BLOCK);
    uint64_t now_ms = policy_fill(policy, 1000, 0);
    policy_state read = block_read(policy, 0, now_ms);
    uint64_t left = policy_budget_left(policy, now_ms);

    (void)state;
    policy_charge(policy, BLOCK, now_ms);
    assert_true(policy_budget_left(policy, now_ms) == left - BLOCK);
    assert_true(policy_carry(policy, 0, read, BLOCK, now_ms));
    assert_true(policy_budget_left(policy, now_ms) == left - 2 * BLOCK);
    policy_carry_undo(policy, BLOCK);
    assert_true(policy_admit(policy, 1, 0, 0, BLOCK, now_ms));
    policy_admit_undo(policy, BLOCK);
    assert_true(policy_budget_left(policy, now_ms) == left - BLOCK);
    policy_charge(policy, left + 99 * BLOCK, now_ms); /* 100 blocks too many: three minutes */
    assert_true(policy_budget_left(policy, now_ms) == 0);
    policy_evicted(policy, 1, 0);
    assert_false(policy_admit(policy, 1, 0, 0, BLOCK, now_ms + 178000));
    assert_false(policy_carry(policy, 0, read, BLOCK, now_ms + 178000));
    assert_true(policy_carry(policy, 0, read, BLOCK, now_ms + 183000));
    assert_true(policy_admit(policy, 1, 0, 0, BLOCK, now_ms + 186000));
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
            (void)policy_read(stream->policy, 0, &elsewhere, hash64_mix(old), 0, 0, now_ms);
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
    opts.capacity_bytes = CAPACITY;
    opts.ghost_keys = 4096;
    opts.budget_bytes_day = (uint64_t)30 * 86400 * BLOCK;
    opts.burst_bytes = burst_bytes;
    assert_int_equal(policy_new(&opts, 0, &stream->policy), ICMS_OK);
    policy_volume_share(stream->policy, 0, CAPACITY);
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
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_choice_budget),
        cmocka_unit_test(test_choice_many),
        cmocka_unit_test(test_choice_counts),
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_carry),
        cmocka_unit_test(test_carry_bound),
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
