/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proc/proc_test.c: children that serve, that fail, that end by themselves. The daemon is this
 * program itself, started by its own name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "proc/proc.h"

static char folder[] = "/tmp/icms-proc-XXXXXX";

static void child_start(struct proc_child *child, const char *mode)
{
    const char *options[] = {mode, NULL};
    struct err_why why = {""};

    *child = (struct proc_child){.name = "proc_test"};
    assert_int_equal(proc_child_start(child, folder, "some.yaml", options, NULL, &why), ICMS_OK);
}

static void test_child_serves(void **state)
{
    struct proc_child child;
    char word[32];

    child_start(&child, "serve");
    assert_true(child.pid > 0);
    assert_string_equal(proc_ready_word(&child, "nvme", word, sizeof(word)), "127.0.0.1:7");
    assert_string_equal(proc_ready_word(&child, "http", word, sizeof(word)), "9");
    assert_string_equal(proc_ready_word(&child, "vme", word, sizeof(word)), "");
    assert_false(proc_child_ended(&child));
    proc_child_stop(&child);
    assert_int_equal(child.pid, 0);
    proc_child_stop(&child);
}

static void test_child_that_fails(void **state)
{
    struct proc_child child = {.name = "proc_test"};
    const char *options[] = {"fail", NULL};
    struct err_why why = {""};

    assert_int_equal(proc_child_start(&child, folder, "some.yaml", options, NULL, &why), ICMS_IO);
    assert_non_null(strstr(why.text, "proc_test did not start"));
    assert_int_equal(child.pid, 0);
    child = (struct proc_child){.name = "no-such-daemon-of-icms"};
    assert_int_equal(proc_child_start(&child, folder, "some.yaml", NULL, NULL, &why), ICMS_IO);
}

static void test_child_that_ends(void **state)
{
    struct timespec pause = {.tv_nsec = 10000000};
    struct proc_child child;
    bool ended = false;

    child_start(&child, "end");
    for (int i = 0; i < 1000 && !ended; i++) {
        ended = proc_child_ended(&child);
        (void)nanosleep(&pause, NULL);
    }
    assert_true(ended);
    assert_int_equal(child.pid, 0);
    assert_false(proc_child_ended(&child));
}

static void test_start_is_given_up(void **state)
{
    volatile sig_atomic_t stop = 1;
    struct proc_child child = {.name = "proc_test"};
    const char *options[] = {"silent", NULL};
    struct err_why why = {""};

    assert_int_equal(proc_child_start(&child, folder, "some.yaml", options, &stop, &why),
                     ICMS_CANCELED);
    assert_int_equal(child.pid, 0);
}

static void test_files(void **state)
{
    struct err_why why = {""};
    char path[64], text[16] = "";
    FILE *file;

    assert_int_equal(proc_file_write(folder, "a.yaml", "a: b\n", &why, path, sizeof(path)),
                     ICMS_OK);
    file = fopen(path, "re");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof(text), file));
    (void)fclose(file);
    assert_string_equal(text, "a: b\n");
    (void)unlink(path);
    assert_int_equal(proc_file_write("/no/such", "a", "", &why, path, sizeof(path)), ICMS_IO);
}

/* What the tests start: proc_test --config FILE --ready-fd N MODE. */
static int child_main(char **argv)
{
    int ready_fd = atoi(argv[4]);
    const char *mode = argv[5];

    if (strcmp(mode, "fail") == 0)
        return 1;
    if (strcmp(mode, "silent") != 0)
        (void)dprintf(ready_fd, "ready nvme=127.0.0.1:7 http=9\n");
    if (strcmp(mode, "end") != 0)
        (void)sleep(60);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_child_serves),    cmocka_unit_test(test_child_that_fails),
        cmocka_unit_test(test_child_that_ends), cmocka_unit_test(test_start_is_given_up),
        cmocka_unit_test(test_files),
    };
    char log[64];
    int failed;

    if (argc == 6)
        return child_main(argv);
    if (mkdtemp(folder) == NULL)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(log, sizeof(log), "%s/%s.log", folder,
                       i == 0 ? "proc_test" : "no-such-daemon-of-icms");
        (void)unlink(log);
    }
    (void)rmdir(folder);
    return failed;
}
