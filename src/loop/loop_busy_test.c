/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block device that a killed process still has is waited for; one that is mounted is not.
 *
 * A file plays the device: stat says that it is one, opening it for this process alone says that it
 * is busy for a while, and another file says what is mounted.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cmocka.h>

#include "loop/loop.h"

static char folder[] = "/var/tmp/icms-busy-XXXXXX";
static char drive[64], mounts[64];
static uint32_t busy; /* how often opening fails */
static uint32_t opens;

int __real_stat64(const char *path, struct stat *stat);
int __wrap_stat64(const char *path, struct stat *stat);
int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);

int __wrap_stat64(const char *path, struct stat *stat)
{
    int result = __real_stat64(path, stat);

    if (result == 0 && strcmp(path, drive) == 0) {
        stat->st_mode = (stat->st_mode & ~(mode_t)S_IFMT) | S_IFBLK;
        stat->st_rdev = makedev(259, 7);
    }
    return result;
}

int __wrap_open64(const char *path, int flags, ...)
{
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (strcmp(path, drive) == 0 && (flags & O_EXCL) != 0) {
        opens++;
        if (busy > 0) {
            busy--;
            errno = EBUSY;
            return -1;
        }
    }
    return __real_open64(path, flags, mode);
}

FILE *__wrap_fopen64(const char *path, const char *mode)
{
    return __real_fopen64(strcmp(path, "/proc/self/mountinfo") == 0 ? mounts : path, mode);
}

static void mounts_are(const char *text)
{
    FILE *file = __real_fopen64(mounts, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static icms_err drive_open(uint32_t busy_times, struct err_why *why)
{
    struct loop_file_opts opts = {.path = drive, .write = true, .exclusive = true};
    struct loop_file *file = NULL;
    icms_err err;

    busy = busy_times;
    opens = 0;
    err = loop_file_open(loop_env_uring(), &opts, why, &file);
    loop_file_close(&file);
    return err;
}

static int folder_new(void **state)
{
    FILE *file;

    assert_non_null(mkdtemp(folder));
    (void)snprintf(drive, sizeof(drive), "%s/drive", folder);
    (void)snprintf(mounts, sizeof(mounts), "%s/mountinfo", folder);
    file = __real_fopen64(drive, "w");
    assert_non_null(file);
    return fclose(file);
}

static int folder_remove(void **state)
{
    (void)unlink(drive);
    (void)unlink(mounts);
    return rmdir(folder);
}

static void a_device_that_is_busy_for_a_moment_is_waited_for(void **state)
{
    struct err_why why = {""};

    mounts_are("36 35 259:8 / /data rw - ext4 /dev/nvme1n1 rw\n");
    assert_int_equal(drive_open(20, &why), ICMS_OK);
    assert_int_equal(opens, 21);
}

static void the_wait_ends(void **state)
{
    struct err_why why = {""};

    mounts_are("");
    assert_int_equal(drive_open(UINT32_MAX, &why), ICMS_LOCKED);
    assert_in_range(opens, 2, 501);
    assert_non_null(strstr(why.text, "Device or resource busy: a file system, swap, LVM, RAID or "
                                     "another process has it: unmount it or stop that first"));
}

static void a_mounted_device_is_not_waited_for(void **state)
{
    struct err_why why = {""};

    mounts_are("25 1 8:1 / / rw - ext4 /dev/sda1 rw\n36 35 259:7 / /data rw - ext4 /dev/x rw\n");
    assert_int_equal(drive_open(UINT32_MAX, &why), ICMS_LOCKED);
    assert_int_equal(opens, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_is_busy_for_a_moment_is_waited_for),
        cmocka_unit_test(the_wait_ends),
        cmocka_unit_test(a_mounted_device_is_not_waited_for),
    };

    return cmocka_run_group_tests_name("loop-busy", tests, folder_new, folder_remove);
}
