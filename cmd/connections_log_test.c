/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A target whose connections are all in use: one line for each time that it begins and ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "connections_log.h"
#include "stderr_rig.h"

#define S ((uint64_t)1000 * 1000 * 1000)

static struct connections_log log_of_target;
static struct nvmf_target_stats stats;

static int begin(void **state)
{
    memset(&log_of_target, 0, sizeof(log_of_target));
    memset(&stats, 0, sizeof(stats));
    stats.connections_max = 6;
    return 0;
}

/* The lines of one look. */
static char *look(uint64_t now_ns)
{
    static char text[4096];
    struct stderr_rig rig;

    stderr_begin(&rig);
    connections_log_look(&log_of_target, now_ns, &stats);
    return stderr_end(&rig, text, sizeof(text));
}

static void the_limit_is_said_once(void **state)
{
    stats.connections = 5;
    assert_string_equal(look(100 * S), "");
    stats.connections = 6;
    stats.connections_full = 1;
    assert_non_null(strstr(look(101 * S), "connections: all are in use: hosts that connect wait"));
    assert_string_equal(look(102 * S), "");
    assert_string_equal(look(1000 * S), ""); /* and goes on */
    stats.connections = 5;
    assert_string_equal(look(1060 * S), "");
    assert_non_null(strstr(look(1061 * S), "connections: some are free again; connections=5 "
                                           "full=1\n"));
    assert_string_equal(look(1062 * S), "");
    stats.connections = 6;
    stats.connections_full = 2;
    assert_non_null(strstr(look(1063 * S), "connections_max=6\n"));
}

/* All were in use between two looks alone. */
static void what_no_look_saw_is_said(void **state)
{
    stats.connections_full = 1;
    assert_non_null(strstr(look(100 * S), "connections_max=6\n"));
    assert_string_equal(look(101 * S), "");
}

/* Hosts that come and go at the limit do not fill the log. */
static void hosts_that_come_and_go_are_one_episode(void **state)
{
    stats.connections_full = 1;
    assert_string_not_equal(look(100 * S), "");
    for (uint64_t i = 1; i < 1000; i++) {
        stats.connections_full += i % 30 == 0;
        assert_string_equal(look((100 + i) * S), "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_limit_is_said_once, begin),
        cmocka_unit_test_setup(what_no_look_saw_is_said, begin),
        cmocka_unit_test_setup(hosts_that_come_and_go_are_one_episode, begin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
