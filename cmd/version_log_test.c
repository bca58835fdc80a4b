/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Misses of blocks of another version as lines: of which volume, how many, and not too many lines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "version_log.h"
#include "stderr_rig.h"

#define S ((uint64_t)1000 * 1000 * 1000)

static struct version_log seen;
static struct agent_stats stats;

/* The lines of one look. */
static char *look(uint64_t now_ns)
{
    static char text[4096];
    struct stderr_rig rig;

    stderr_begin(&rig);
    version_log_look(&seen, now_ns, &stats);
    return stderr_end(&rig, text, sizeof(text));
}

static void misses(uint32_t volume, uint64_t count)
{
    stats.volumes[volume].misses[ICMS_MISS_VERSION] = count;
}

static int setup(void **state)
{
    memset(&seen, 0, sizeof(seen));
    memset(&stats, 0, sizeof(stats));
    stats.volume_count = 3;
    for (uint32_t i = 0; i < 3; i++)
        (void)snprintf(stats.volumes[i].name, sizeof(stats.volumes[i].name), "v%u", i);
    return 0;
}

static void a_minute_has_one_line(void **state)
{
    const char *text;

    assert_string_equal(look(1 * S), "");
    misses(1, 3);
    text = look(2 * S);
    assert_non_null(strstr(text, "volume v1: blocks are misses"));
    assert_non_null(strstr(text, "new=3 version_misses=3\n"));
    for (uint64_t i = 3; i < 62; i++) {
        misses(1, i * 1000);
        assert_string_equal(look(i * S), "");
    }
    text = look(62 * S);
    assert_non_null(strstr(text, "new=60997 version_misses=61000\n"));
    assert_null(strstr(strchr(text, '\n') + 1, "volume"));
    assert_string_equal(look(200 * S), ""); /* nothing new */
}

/* Not that which has most of all times. */
static void the_volume_with_new_ones_is_named(void **state)
{
    misses(2, 1000);
    assert_non_null(strstr(look(1 * S), "volume v2: "));
    misses(2, 1001);
    misses(1, 2);
    assert_string_equal(look(2 * S), "");
    assert_non_null(strstr(look(61 * S), "volume v1: "));
    assert_non_null(strstr(look(121 * S), "new=1 version_misses=1001\n")); /* late, and not lost */
    assert_string_equal(look(300 * S), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_minute_has_one_line, setup),
        cmocka_unit_test_setup(the_volume_with_new_ones_is_named, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
