/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `icms drive` makes of a target's file: the lines of the change and no others, and what it
 * refuses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "conf/conf.h"

static char path[] = "/tmp/icms-drive-XXXXXX";
static struct err_why why;
static char told[1024]; /* differences */

#define HEAD  "# mine\nname: e0\nvolumes: [{name: kv}]\ndrives:\n"
#define D0    "  - path: /d0  # the first\n    size: 1GiB # all\n"
#define D1    "  - size: 2GiB\n    path: /d1\n    state: draining\n    write_budget: 1DWPD\n"
#define TAIL  "memory: 1GiB\n"
#define BOTH  HEAD D0 D1 TAIL
#define PLAIN HEAD D0 "  - path: /d1\n" TAIL

static void told_visit(void *arg, const char *key, const char *was, const char *is)
{
    size_t used = strlen(told);

    (void)snprintf(told + used, sizeof(told) - used, "%s: %s -> %s\n", key, was, is);
}

static icms_err change(const char *text, const struct conf_drive_change *asked,
                       struct conf_edit *out_edit)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0 && fclose(file) == 0, 1);
    told[0] = why.text[0] = '\0';
    *out_edit = (struct conf_edit){0};
    return conf_drive_change(path, asked, told_visit, NULL, &why, out_edit);
}

/* The text that comes of it. */
static void becomes(const char *text, const struct conf_drive_change *asked, const char *after,
                    const char *differences)
{
    struct conf_edit edit;

    if (change(text, asked, &edit) != ICMS_OK)
        fail_msg("%s", why.text);
    assert_string_equal(edit.text, after);
    assert_string_equal(told, differences);
    conf_edit_fini(&edit);
}

static void refused(const char *text, const struct conf_drive_change *asked, icms_err err,
                    const char *words)
{
    struct conf_edit edit;

    assert_int_equal(change(text, asked, &edit), err);
    if (strstr(why.text, words) == NULL)
        fail_msg("%s", why.text);
    assert_string_equal(told, "");
    assert_null(edit.text);
}

#define CHANGE(does, drive, ...)                                                                   \
    &(struct conf_drive_change)                                                                    \
    {                                                                                              \
        .what = (does), .path = (drive), __VA_ARGS__                                               \
    }
#define VALUES(...)                                                                                \
    .values = (const char *const[]){__VA_ARGS__},                                                  \
    .value_count = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

static void only_the_lines_of_the_change(void **state)
{
    becomes(PLAIN, CHANGE(CONF_DRIVE_ADD, "/dev/disk/by-id/nvme-1", VALUES("write_budget=1DWPD")),
            HEAD D0
            "  - path: /d1\n  - path: /dev/disk/by-id/nvme-1\n    write_budget: 1DWPD\n" TAIL,
            "drives[/dev/disk/by-id/nvme-1]: not listed -> listed\n");
    becomes(PLAIN, CHANGE(CONF_DRIVE_DRAIN, "/d0"),
            HEAD "  - path: /d0  # the first\n    state: draining\n    size: 1GiB # all\n"
                 "  - path: /d1\n" TAIL,
            "drives[/d0].state: up (default) -> draining\n");
    becomes(BOTH, CHANGE(CONF_DRIVE_UNDRAIN, "/d1"),
            HEAD D0 "  - size: 2GiB\n    path: /d1\n    write_budget: 1DWPD\n" TAIL,
            "drives[/d1].state: draining -> up (default)\n");
    becomes(BOTH, CHANGE(CONF_DRIVE_REMOVE, "/d1"), HEAD D0 TAIL,
            "drives[/d1]: listed -> not listed\n");
    becomes(PLAIN, CHANGE(CONF_DRIVE_REMOVE, "/d0", .yes = true), HEAD "  - path: /d1\n" TAIL,
            "drives[/d0]: listed -> not listed\n");
    becomes(BOTH, CHANGE(CONF_DRIVE_REPLACE, "/d1", .other = "/d2"),
            HEAD D0 "  - size: 2GiB\n    path: /d2\n    write_budget: 1DWPD\n" TAIL,
            "drives[/d1]: listed -> not listed\ndrives[/d2]: not listed -> listed\n");
    becomes(HEAD D0 "  - path: /d1\n    health: /run/d1\n    size: 1GiB\n" TAIL,
            CHANGE(CONF_DRIVE_REPLACE, "/d1", .other = "/d2", .yes = true),
            HEAD D0 "  - path: /d2\n    size: 1GiB\n" TAIL,
            "drives[/d1]: listed -> not listed\ndrives[/d2]: not listed -> listed\n");
}

static void as_many_as_may_be(void **state)
{
    char text[4096] = HEAD;
    size_t used = strlen(text);

    for (int i = 0; i < LIMIT_DRIVES; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "  - path: /d%d\n", i);
    refused(text, CHANGE(CONF_DRIVE_ADD, "/new"), ICMS_LIMIT, "32 drives");
    refused(text, CHANGE(CONF_DRIVE_REPLACE, "/d1", .other = "/new", .yes = true), ICMS_LIMIT,
            "no number is free");
}

static void what_loses_blocks_asks(void **state)
{
    refused(PLAIN, CHANGE(CONF_DRIVE_REMOVE, "/d1"), ICMS_INVALID, "--yes");
    refused(PLAIN, CHANGE(CONF_DRIVE_REPLACE, "/d1", .other = "/d2"), ICMS_INVALID, "--yes");
}

static void one_that_takes_blocks_stays(void **state)
{
    refused(BOTH, CHANGE(CONF_DRIVE_DRAIN, "/d0"), ICMS_INVALID, "the last one");
    refused(BOTH, CHANGE(CONF_DRIVE_REMOVE, "/d0", .yes = true), ICMS_INVALID, "the last one");
    refused(HEAD "  - path: /d0\n    state: draining\n", CHANGE(CONF_DRIVE_UNDRAIN, "/d0"),
            ICMS_CONFIG, "all drives are draining");
}

static void what_is_so_already_or_not_there(void **state)
{
    refused(PLAIN, CHANGE(CONF_DRIVE_ADD, "/d1"), ICMS_EXISTS, "has it already");
    refused(BOTH, CHANGE(CONF_DRIVE_DRAIN, "/d1"), ICMS_EXISTS, "draining already");
    refused(PLAIN, CHANGE(CONF_DRIVE_UNDRAIN, "/d1"), ICMS_EXISTS, "up already");
    refused(PLAIN, CHANGE(CONF_DRIVE_REMOVE, "/d3"), ICMS_NOT_FOUND, "icms drive list");
    refused(BOTH, CHANGE(CONF_DRIVE_REPLACE, "/d1", .other = "/d0"), ICMS_EXISTS, "new path");
}

static void a_value_brings_no_line_of_its_own(void **state)
{
    refused(PLAIN, CHANGE(CONF_DRIVE_ADD, "/d2\n  - path: /d3"), ICMS_INVALID, "control bytes");
    refused(PLAIN, CHANGE(CONF_DRIVE_ADD, "/d2", VALUES("size=1GiB\nname: x")), ICMS_INVALID,
            "line ends");
    refused(PLAIN, CHANGE(CONF_DRIVE_ADD, "/d2", VALUES("state=draining")), ICMS_INVALID, "drain");
    refused(PLAIN, CHANGE(CONF_DRIVE_ADD, "/d2", VALUES("sise=1GiB")), ICMS_CONFIG, "sise");
    refused(PLAIN, CHANGE(CONF_DRIVE_ADD, "{path: /d2}"), ICMS_INVALID, "brackets");
    refused(PLAIN, CHANGE(CONF_DRIVE_ADD, ""), ICMS_INVALID, "path");
}

static void a_style_that_is_not_known_is_refused(void **state)
{
    refused("name: e0\nvolumes: [{name: kv}]\ndrives: [{path: /d0}, {path: /d1}]\n",
            CHANGE(CONF_DRIVE_DRAIN, "/d1"), ICMS_CONFIG, "by hand");
    refused("name: e0\nvolumes: [{name: kv}]\ndrives: [{path: /d0}, {path: /d1}]\n",
            CHANGE(CONF_DRIVE_ADD, "/d2"), ICMS_CONFIG, "by hand");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_lines_of_the_change),
        cmocka_unit_test(as_many_as_may_be),
        cmocka_unit_test(what_loses_blocks_asks),
        cmocka_unit_test(one_that_takes_blocks_stays),
        cmocka_unit_test(what_is_so_already_or_not_there),
        cmocka_unit_test(a_value_brings_no_line_of_its_own),
        cmocka_unit_test(a_style_that_is_not_known_is_refused),
    };
    int fd = mkstemp(path), failed;

    if (fd < 0)
        return 1;
    (void)close(fd);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    return failed;
}
