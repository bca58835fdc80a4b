/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reactor that is stuck is named, and only while it is stuck.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "ctl/heartbeat.h"

#define LOOPS   2
#define LATE_NS ((uint64_t)20 * 1000 * 1000)

/* Stops a loop until go is posted. */
struct block {
    struct loop_msg msg;
    sem_t stopped, go;
};

static void block_run(struct loop_msg *msg)
{
    struct block *block = container_of(msg, struct block, msg);

    (void)sem_post(&block->stopped);
    while (sem_wait(&block->go) != 0)
        ;
}

static void nap(uint64_t ns)
{
    struct timespec time = {.tv_nsec = (long)ns};

    (void)nanosleep(&time, NULL);
}

/* Waits for the answers of the first reactors; they have ten seconds. */
static bool answered(struct ctl_heartbeat *heartbeat, uint32_t count)
{
    for (int i = 0; i < 10000; i++) {
        uint32_t owed = 0;

        for (uint32_t j = 0; j < count; j++)
            owed += atomic_load(&heartbeat->reactors[j].asked_ns) != 0;
        if (owed == 0)
            return true;
        nap(1000000);
    }
    return false;
}

static void test_a_stuck_reactor_is_named(void **state)
{
    static struct ctl_heartbeat heartbeat;
    struct loop *loops[LOOPS] = {NULL};
    struct block block = {.msg = {0}};
    struct err_why why = {""};
    struct loop_opts opts;

    loop_opts_init(&opts);
    ctl_heartbeat_init(&heartbeat, loop_env_uring(), LATE_NS);
    for (int i = 0; i < LOOPS; i++) {
        if (loop_new(loop_env_uring(), &opts, &why, &loops[i]) != ICMS_OK) {
            print_message("%s\n", why.text);
            for (int j = 0; j < LOOPS; j++)
                loop_free(&loops[j]);
            skip();
        }
        ctl_heartbeat_add(&heartbeat, loops[i]);
    }
    assert_true(ctl_heartbeat_alive(&heartbeat, &why)); /* nobody asked yet */
    for (int i = 0; i < LOOPS; i++)
        assert_int_equal(loop_start(loops[i], &why), ICMS_OK);
    ctl_heartbeat_ask(&heartbeat);
    assert_true(answered(&heartbeat, LOOPS));
    assert_true(ctl_heartbeat_alive(&heartbeat, &why));

    assert_int_equal(sem_init(&block.stopped, 0, 0) + sem_init(&block.go, 0, 0), 0);
    loop_send(loops[1], &block.msg, block_run);
    while (sem_wait(&block.stopped) != 0)
        ;
    ctl_heartbeat_ask(&heartbeat);
    nap(LATE_NS + 1000000);
    assert_true(answered(&heartbeat, 1));
    ctl_heartbeat_ask(&heartbeat); /* asks the other one again, and this one no second time */
    assert_true(answered(&heartbeat, 1));
    assert_false(ctl_heartbeat_alive(&heartbeat, &why));
    assert_non_null(strstr(why.text, "reactor 1 is stuck"));

    assert_int_equal(sem_post(&block.go), 0);
    assert_true(answered(&heartbeat, LOOPS));
    ctl_heartbeat_ask(&heartbeat);
    assert_true(answered(&heartbeat, LOOPS));
    assert_true(ctl_heartbeat_alive(&heartbeat, &why));
    for (int i = 0; i < LOOPS; i++)
        loop_stop(loops[i]);
    for (int i = 0; i < LOOPS; i++)
        loop_join(loops[i]);
    for (int i = 0; i < LOOPS; i++)
        loop_free(&loops[i]);
}

/* Nobody asks: whoever should is stuck. The clock of this environment stands until it is moved. */
static void test_who_stops_asking_is_named(void **state)
{
    static struct ctl_heartbeat heartbeat;
    struct loop_env *env = loop_env_replay_new();
    struct err_why why = {""};
    struct loop *loop = NULL;
    struct loop_opts opts;

    assert_non_null(env);
    loop_opts_init(&opts);
    if (loop_new(env, &opts, &why, &loop) != ICMS_OK) {
        loop_env_replay_free(&env);
        skip();
    }
    ctl_heartbeat_init(&heartbeat, env, LATE_NS);
    ctl_heartbeat_ask(&heartbeat);
    loop_replay_to(loop, CTL_HEARTBEAT_ASK_NS + LATE_NS);
    assert_true(ctl_heartbeat_alive(&heartbeat, &why));
    loop_replay_to(loop, CTL_HEARTBEAT_ASK_NS + LATE_NS + 2);
    assert_false(ctl_heartbeat_alive(&heartbeat, &why));
    assert_non_null(strstr(why.text, "main thread is stuck"));
    ctl_heartbeat_ask(&heartbeat);
    assert_true(ctl_heartbeat_alive(&heartbeat, &why));
    loop_replay_to(loop, 10 * CTL_HEARTBEAT_LATE_NS);
    assert_false(ctl_heartbeat_alive(&heartbeat, &why));
    ctl_heartbeat_end(&heartbeat); /* it drains now */
    assert_true(ctl_heartbeat_alive(&heartbeat, &why));
    loop_free(&loop);
    loop_env_replay_free(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stuck_reactor_is_named),
        cmocka_unit_test(test_who_stops_asking_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
