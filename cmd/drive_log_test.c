/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors of a drive as lines: which, with what, and not too many.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "drive_log.h"
#include "stderr_rig.h"

#define S ((uint64_t)1000 * 1000 * 1000)

static struct drive_log log_of_drive;
static struct store_stats stats;
static struct store_error next;
static uint32_t left;   /* how often next is there */
static uint64_t missed; /* with the first          */

static bool take(void *arg, struct store_error *out_error, uint64_t *out_missed)
{
    if (left == 0)
        return false;
    left--;
    *out_error = next;
    *out_missed = missed;
    missed = 0;
    return true;
}

static const char *volume(void *arg, uint32_t number)
{
    return number == 3 ? "kv" : "?";
}

/* The lines of one look. */
static char *look(uint64_t now_ns)
{
    static char text[16384];
    const struct drive_log_source source = {"drive 0 (/d)", take, volume, NULL};
    struct stderr_rig rig;

    stderr_begin(&rig);
    drive_log_look(&log_of_drive, now_ns, &source, &stats);
    return stderr_end(&rig, text, sizeof(text));
}

static uint32_t lines(const char *text)
{
    uint32_t count = 0;

    for (; (text = strchr(text, '\n')) != NULL; text++)
        count++;
    return count;
}

static int begin(void **state)
{
    memset(&log_of_drive, 0, sizeof(log_of_drive));
    memset(&stats, 0, sizeof(stats));
    missed = left = 0;
    return 0;
}

static void damage_names_block_and_place(void **state)
{
    next = (struct store_error){.what = "value",
                                .err = ICMS_CORRUPT,
                                .offset = 12288,
                                .volume = 3,
                                .key = {.length = 3, .bytes = {0xab, 0, 0x12}}};
    stats.checksum_errors = left = 1;
    assert_non_null(strstr(
        look(100 * S), "drive 0 (/d): damaged value: its bytes are not those that were "
                       "written; a block that is lost is a miss; replace the drive if this goes "
                       "on; volume=kv key=ab0012 offset=12288 checksum_errors=1 unlogged=0\n"));
    assert_int_equal(lines(look(101 * S)), 0);
}

static void a_failed_flush_names_neither(void **state)
{
    next = (struct store_error){.what = "flush",
                                .err = ICMS_IO,
                                .offset = STORE_ERROR_NOWHERE,
                                .volume = STORE_ERROR_NO_BLOCK};
    stats.io_errors = left = 1;
    assert_non_null(strstr(look(100 * S),
                           "drive 0 (/d): flush failed: the device reported an error; look for it "
                           "in the kernel's log, and replace the drive if this goes on; "
                           "io_errors=1 unlogged=0\n"));
}

static void many_errors_are_a_few_lines(void **state)
{
    char *text;

    next = (struct store_error){.what = "value", .err = ICMS_CORRUPT, .offset = 0, .volume = 3};
    left = 1000;
    missed = 82;
    assert_int_equal(lines(look(100 * S)), 10);
    left = 5;
    assert_int_equal(lines(look(105 * S)), 0);
    left = 1;
    text = look(111 * S);
    assert_int_equal(lines(text), 1);
    assert_non_null(strstr(text, "unlogged=995\n")); /* 1000 - 10 + 5; the 82 went with the first */
    left = 1;
    assert_int_equal(lines(look(112 * S)), 0);
}

static void no_space_is_said_when_it_ends_and_comes_back(void **state)
{
    next = (struct store_error){.what = "write of a value", .err = ICMS_NO_SPACE, .volume = 3};
    stats.no_space_errors = left = 40;
    stats.full = true;
    assert_non_null(strstr(look(100 * S), "drive 0 (/d): no space in the file system or the pool "
                                          "below it: its stores fail, loads go on, and it stays in "
                                          "service; free space there; no_space_errors=40\n"));
    assert_int_equal(lines(look(101 * S)), 0);
    assert_int_equal(lines(look(110 * S)), 0); /* nobody stores, nobody knows */
    stats.no_space_errors = 41;
    stats.full = false; /* now and then one succeeds */
    assert_int_equal(lines(look(111 * S)), 0);
    assert_int_equal(lines(look(112 * S)), 0);
    assert_non_null(strstr(look(114 * S), "drive 0 (/d): there is space again; "));
    assert_int_equal(lines(look(115 * S)), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, begin)
    const struct CMUnitTest tests[] = {
        TEST(damage_names_block_and_place),
        TEST(a_failed_flush_names_neither),
        TEST(many_errors_are_a_few_lines),
        TEST(no_space_is_said_when_it_ends_and_comes_back),
    };

    return cmocka_run_group_tests_name("drive-log", tests, NULL, NULL);
}
