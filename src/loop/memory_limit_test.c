/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that a process may use: of machines and control groups that are files in a folder.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "loop/memory_limit.h"

static char root[] = "/tmp/icms-memory-limit-XXXXXX";

/* Makes a file and its folders under root. */
static void write_file(const char *path, const char *text)
{
    char whole[512];
    FILE *file;

    (void)snprintf(whole, sizeof(whole), "%s%s", root, path);
    for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(whole, 0700);
        *slash = '/';
    }
    file = fopen(whole, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void limit_is(uint64_t mib, const char *what)
{
    struct loop_memory_limit limit;

    loop_memory_limit(root, &limit);
    assert_int_equal(limit.bytes, mib << 20);
    assert_string_equal(limit.what, what);
}

static int folder_new(void **state)
{
    (void)snprintf(root, sizeof(root), "/tmp/icms-memory-limit-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int folder_remove(void **state)
{
    char command[64];

    (void)snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

static void where_nothing_is_known_nothing_is_refused(void **state)
{
    struct loop_memory_limit limit;
    struct err_why why = {""};

    loop_memory_limit(root, &limit);
    assert_true(limit.bytes == UINT64_MAX);
    assert_int_equal(loop_memory_check(&limit, "p", (uint64_t)1 << 60, "memory", &why), ICMS_OK);
}

static void a_machine_has_its_memory(void **state)
{
    write_file("/proc/meminfo", "MemFree: 1 kB\nMemTotal:       1048576 kB\n");
    limit_is(1024, "this machine");
    write_file("/proc/self/cgroup", "0::/\n");
    limit_is(1024, "this machine");
    write_file("/sys/fs/cgroup/memory.max", "max\n");
    limit_is(1024, "this machine");
}

static void the_least_of_all_groups_above_counts(void **state)
{
    write_file("/proc/meminfo", "MemTotal: 1048576 kB\n");
    write_file("/proc/self/cgroup", "0::/pods/icms/agent\n");
    write_file("/sys/fs/cgroup/pods/icms/agent/memory.max", "max\n");
    limit_is(1024, "this machine");
    write_file("/sys/fs/cgroup/pods/memory.max", "50331648\n");
    limit_is(48, "control group /pods");
    write_file("/sys/fs/cgroup/pods/icms/memory.max", "104857600\n");
    limit_is(48, "control group /pods");
    write_file("/sys/fs/cgroup/pods/icms/agent/memory.max", "33554432\n");
    limit_is(32, "control group /pods/icms/agent");
    write_file("/sys/fs/cgroup/pods/icms/agent/memory.max", "2147483648\n");
    write_file("/sys/fs/cgroup/pods/memory.max", "what\n");
    limit_is(100, "control group /pods/icms");
}

/* The path is the host's; the container sees its own group as the top. */
static void a_container_has_its_limit_at_the_top(void **state)
{
    write_file("/proc/meminfo", "MemTotal: 1048576 kB\n");
    write_file("/proc/self/cgroup", "0::/kubepods/pod12/abc\n");
    write_file("/sys/fs/cgroup/memory.max", "67108864\n");
    limit_is(64, "control group /");
}

static void version_1_has_limits_too(void **state)
{
    write_file("/proc/meminfo", "MemTotal: 1048576 kB\n");
    write_file("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/\n");
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "52428800\n");
    write_file("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    limit_is(50, "control group /a");
}

static void more_than_the_limit_is_refused_with_a_sentence(void **state)
{
    struct loop_memory_limit limit = {.bytes = 48 << 20, .what = "control group /a"};
    struct err_why why = {""};

    assert_int_equal(loop_memory_check(&limit, "icms-agent", 48 << 20, "memory", &why), ICMS_OK);
    assert_int_equal(loop_memory_check(&limit, "icms-agent", 64 << 20, "memory", &why), ICMS_LIMIT);
    assert_string_equal(why.text,
                        "cannot run icms-agent with 64 MiB of memory (memory): control group /a "
                        "has 48 MiB; configure less, or give it more memory");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_new, folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(where_nothing_is_known_nothing_is_refused),
        TEST(a_machine_has_its_memory),
        TEST(the_least_of_all_groups_above_counts),
        TEST(a_container_has_its_limit_at_the_top),
        TEST(version_1_has_limits_too),
        TEST(more_than_the_limit_is_refused_with_a_sentence),
    };

    return cmocka_run_group_tests_name("loop-memory-limit", tests, NULL, NULL);
}
