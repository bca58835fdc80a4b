/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/reading_test.c: reads of an own drive by another way (direct.h) when their agent ends, over
 * a reader of the test: it comes back to nobody. client-gds and e2e-client-gds have the rest.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/agent_int.h"

static struct reader_ask asked;
static bool is_late; /* what late says: nobody is called any more */
static int lates, ends;
static uint64_t ended_at;
static _Atomic bool calling_over;

static bool fake_would_read(const void *to)
{
    return to != NULL;
}

static void *fake_read(const void *to, const struct reader_ask *ask)
{
    asked = *ask;
    return (void *)(uintptr_t)to;
}

static bool fake_late(void *reading)
{
    assert_non_null(reading);
    lates++;
    return is_late;
}

static void fake_end(void *reading, uint64_t at)
{
    assert_non_null(reading);
    assert_true(calling_over || is_late);
    ends++;
    ended_at = at;
}

static const struct block_reader reader = {
    .would_read = fake_would_read, .read = fake_read, .late = fake_late, .end = fake_end};

static struct agent *agent_with_loop(void)
{
    struct loop_opts opts;
    struct agent *agent = calloc(1, sizeof(*agent));
    struct err_why why = {{0}};

    assert_non_null(agent);
    loop_opts_init(&opts);
    agent->opts.reader = &reader;
    if (loop_new(loop_env_uring(), &opts, &why, &agent->reactors[0].loop) != ICMS_OK)
        fail_msg("%s", why.text);
    return agent;
}

static void begin(struct agent *agent, struct agent_reading *reading, struct store_read *read)
{
    static uint8_t memory[4096];
    struct agent_shard shard = {.agent = agent};
    const struct agent_req req = {.shard = &shard, .offset = (uintptr_t)memory};

    read->memory = memory;
    calling_over = false;
    lates = ends = 0;
    ended_at = 7;
    assert_true(agent_reading_begin(reading, &req, read, 0, 8192, 4096));
    assert_int_equal(asked.offset, 8192);
    assert_ptr_equal(asked.memory, memory);
}

static void *call_slowly(void *arg)
{
    (void)usleep(100000);
    calling_over = true; /* the loop is there until done has returned */
    asked.done(asked.arg, true);
    return arg;
}

/* Its record is being copied when the loops have ended: that is waited for, and it is told that
 * nobody has it. */
static void the_end_waits_for_a_reader_that_calls(void **state)
{
    struct agent *agent = agent_with_loop();
    struct agent_reading reading = {0};
    struct store_read read = {0};
    pthread_t thread;

    (void)state;
    is_late = false;
    begin(agent, &reading, &read);
    assert_int_equal(pthread_create(&thread, NULL, call_slowly, NULL), 0);
    agent_reading_stop(&reading);
    assert_true(calling_over);
    assert_int_equal(lates, 1);
    assert_int_equal(ends, 1);
    assert_int_equal(ended_at, 0);
    assert_null(reading.reader);
    agent_reading_stop(&reading); /* again, and of what was never begun */
    assert_int_equal(lates, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    loop_free(&agent->reactors[0].loop);
    free(agent);
}

/* One that hangs is not waited for: it calls nobody. */
static void the_end_leaves_a_reader_that_hangs(void **state)
{
    struct agent *agent = agent_with_loop();
    struct agent_reading reading = {0};
    struct store_read read = {0};

    (void)state;
    is_late = true;
    begin(agent, &reading, &read);
    agent_reading_stop(&reading);
    assert_int_equal(lates, 1);
    assert_int_equal(ends, 0); /* after late it is not the agent's */
    assert_null(reading.reader);
    loop_free(&agent->reactors[0].loop);
    free(agent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_waits_for_a_reader_that_calls),
        cmocka_unit_test(the_end_leaves_a_reader_that_hangs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
