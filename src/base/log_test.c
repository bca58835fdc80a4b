/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines while nothing reads them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

static void lines_are_dropped_while_nothing_reads_them(void **state)
{
    static char text[1 << 20];
    int ends[2], error = dup(STDERR_FILENO);
    char *dropped;
    ssize_t bytes;

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    (void)alarm(20); /* a line that waits never returns */
    for (int i = 0; i < 10000; i++)
        log_line(LOG_INFO, "line %d of 10000", i);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    bytes = read(ends[0], text, sizeof(text) - 1);
    assert_true(bytes > 0);
    text[bytes] = 0;
    assert_non_null(strstr(text, "line 0 of"));
    assert_null(strstr(text, "line 9999 of"));
    log_line(LOG_INFO, "last");
    log_line(LOG_INFO, "more");
    (void)alarm(0);
    (void)dup2(error, STDERR_FILENO);
    bytes = read(ends[0], text, sizeof(text) - 1);
    assert_true(bytes > 0);
    text[bytes] = 0;
    dropped = strstr(text, "lines were dropped");
    assert_non_null(dropped);
    assert_null(strstr(dropped + 1, "lines were dropped"));
    assert_non_null(strstr(dropped, "last\n"));
    assert_non_null(strstr(dropped, "more\n"));
    (void)close(ends[0]);
    (void)close(ends[1]);
    (void)close(error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_dropped_while_nothing_reads_them),
    };

    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
