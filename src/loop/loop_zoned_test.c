/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zoned block devices are refused when they are opened, with words; others are not.
 *
 * A zoned device is rarely at hand, so a file plays it: fstat says that it is a block device, a
 * folder has what Linux would say of it under /sys, and ioctl has the size of its zones.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <errno.h>
#include <linux/blkzoned.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cmocka.h>

#include "loop/loop.h"

#define SYSFS "/sys/dev/block/"

static char folder[] =
    "/var/tmp/icms-zoned-XXXXXX"; /* drive, and sysfs with what /sys would have */
static bool is_device;            /* of the file that is opened                 */
static uint32_t zone_sectors;     /* by BLKGETZONESZ                            */
static uint32_t asked;            /* BLKGETZONESZ                               */

int __real_fstat64(int fd, struct stat *stat);
int __wrap_fstat64(int fd, struct stat *stat);
FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);
int __wrap_ioctl(int fd, unsigned long request, void *argument);

int __wrap_fstat64(int fd, struct stat *stat)
{
    int result = __real_fstat64(fd, stat);

    if (result == 0 && is_device) {
        stat->st_mode = (stat->st_mode & ~(mode_t)S_IFMT) | S_IFBLK;
        stat->st_rdev = makedev(259, 7);
    }
    return result;
}

FILE *__wrap_fopen64(const char *path, const char *mode)
{
    char moved[256];

    if (strncmp(path, SYSFS, strlen(SYSFS)) != 0)
        return __real_fopen64(path, mode);
    (void)snprintf(moved, sizeof(moved), "%s/sysfs/%s", folder, path + strlen(SYSFS));
    return __real_fopen64(moved, mode);
}

int __wrap_ioctl(int fd, unsigned long request, void *argument)
{
    (void)fd;
    if (request == BLKGETZONESZ) {
        asked++;
        *(uint32_t *)argument = zone_sectors;
        return 0;
    }
    errno = ENOTTY;
    return -1;
}

/* Makes what Linux would say in the folder: of the device itself, or of the one it is a part of. */
static void sysfs_make(const char *model, bool partition)
{
    char command[512];

    (void)snprintf(command, sizeof(command),
                   "set -e; cd %s; rm -rf sysfs disk; "
                   "mkdir -p disk/queue disk/part sysfs; ln -s %s sysfs/259:7; "
                   "echo %s > disk/queue/zoned; echo 4 > disk/queue/max_write_streams",
                   folder, partition ? "../disk/part" : "../disk", model);
    assert_int_equal(system(command), 0);
}

static icms_err drive_open(struct err_why *why)
{
    char path[128];
    struct loop_file_opts opts = {.path = path, .write = true, .exclusive = true};
    struct loop_file *file = NULL;
    icms_err err;

    (void)snprintf(path, sizeof(path), "%s/drive", folder);
    *why = (struct err_why){{0}};
    asked = 0;
    err = loop_file_open(loop_env_uring(), &opts, why, &file);
    loop_file_close(&file);
    return err;
}

static void refused(const char *model)
{
    struct err_why why;
    char words[256];

    (void)snprintf(words, sizeof(words),
                   "cannot open %s/drive: it is a zoned block device (%s), which takes writes only "
                   "in order within a zone: use a device or a namespace that is not zoned",
                   folder, model);
    assert_int_equal(drive_open(&why), ICMS_UNSUPPORTED);
    assert_string_equal(why.text, words);
}

static void taken(uint32_t questions)
{
    struct err_why why;

    if (drive_open(&why) != ICMS_OK)
        fail_msg("%s", why.text);
    assert_int_equal(asked, questions);
}

static void a_zoned_device_is_refused(void **state)
{
    (void)state;
    is_device = true;
    for (int partition = 0; partition < 2; partition++) {
        sysfs_make("host-managed", partition);
        refused("host-managed");
        sysfs_make("host-aware", partition);
        refused("host-aware");
        sysfs_make("none", partition);
        taken(0);
    }
}

/* As in a container without /sys. */
static void without_sys_the_device_is_asked(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s/sysfs", folder);
    assert_int_equal(system(command), 0);
    is_device = true;
    zone_sectors = 256 << 11;
    refused("zones of 256 MiB");
    zone_sectors = 0;
    taken(1);
}

/* A file has no zones, and nobody is asked for them. */
static void a_file_is_no_device(void **state)
{
    (void)state;
    sysfs_make("host-managed", false);
    is_device = false;
    zone_sectors = 8;
    taken(0);
}

static int group_setup(void **state)
{
    char path[128];
    FILE *drive;

    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(path, sizeof(path), "%s/drive", folder);
    drive = fopen(path, "w");
    return drive == NULL ? -1 : fclose(drive);
}

static int group_teardown(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_zoned_device_is_refused),
        cmocka_unit_test(without_sys_the_device_is_asked),
        cmocka_unit_test(a_file_is_no_device),
    };

    return cmocka_run_group_tests_name("loop-zoned", tests, group_setup, group_teardown);
}
