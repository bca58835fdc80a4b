/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of the audit log: whose it has to be, before the start and while it is written to.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ctl/audit.h"

static char path[64];

static int setup(void **state)
{
    (void)snprintf(path, sizeof(path), "/tmp/icms-audit-%d", (int)getpid());
    (void)unlink(path);
    return 0;
}

static int teardown(void **state)
{
    (void)unlink(path);
    return 0;
}

static void file_make(mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(close(fd), 0);
}

static off_t file_bytes(void)
{
    struct stat status;

    return stat(path, &status) == 0 ? status.st_size : -1;
}

static const struct ctl_audit_event event = {.event = "refusal", .result = "no volume"};

static void test_a_missing_file_is_made_for_its_owner_alone(void **state)
{
    struct ctl_audit audit;
    struct err_why why = {""};
    struct stat status;

    assert_int_equal(ctl_audit_init(&audit, "test", path, &why), ICMS_OK);
    ctl_audit_write(&audit, &event);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    assert_true(status.st_size > 0);
}

/* Who can write it could take out what it says about him. */
static void test_a_file_that_all_can_write_is_refused(void **state)
{
    struct ctl_audit audit;
    struct err_why why = {""};
    off_t bytes;

    file_make(0622);
    assert_int_equal(ctl_audit_init(&audit, "test", path, &why), ICMS_PERMISSION);
    assert_non_null(strstr(why.text, path));
    assert_non_null(strstr(why.text, "0622"));
    assert_int_equal(chmod(path, 0640), 0); /* as logrotate makes them */
    assert_int_equal(ctl_audit_init(&audit, "test", path, &why), ICMS_OK);
    ctl_audit_write(&audit, &event);
    bytes = file_bytes();
    assert_true(bytes > 0);
    assert_int_equal(chmod(path, 0646), 0); /* while it is in use */
    ctl_audit_write(&audit, &event);
    assert_int_equal(file_bytes(), bytes);
}

/* One who may write in the folder made it before the daemon could. */
static void test_a_file_of_another_user_is_refused(void **state)
{
    struct ctl_audit audit;
    struct err_why why = {""};

    if (geteuid() != 0)
        skip();
    file_make(0600);
    assert_int_equal(chown(path, 62003, 62003), 0);
    assert_int_equal(ctl_audit_init(&audit, "test", path, &why), ICMS_PERMISSION);
    assert_non_null(strstr(why.text, "62003"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ctl_audit_init(&audit, "test", path, &why), ICMS_OK);
    assert_int_equal(chown(path, 62003, 62003), 0);
    ctl_audit_write(&audit, &event);
    assert_int_equal(file_bytes(), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_missing_file_is_made_for_its_owner_alone, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_file_that_all_can_write_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_of_another_user_is_refused, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
