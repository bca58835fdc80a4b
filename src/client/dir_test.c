/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "dir:": the directory, its lock and its volumes, with an agent of the tests in this process. What
 * the real agent keeps on flash is tested with it, in test/e2e.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/client_int.h"
#include "client/fake_agent.h"

struct fixture {
    char folder[64], where[80];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    fake_reset();
    (void)snprintf(f->folder, sizeof(f->folder), "/tmp/icms-dir-test-XXXXXX");
    if (mkdtemp(f->folder) == NULL)
        return -1;
    (void)snprintf(f->where, sizeof(f->where), "dir:%s/kv", f->folder);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"kv/icms.lock", "kv/volumes", "kv/icms.store",
                                        "kv",           "file",       ""};
    struct fixture *f = *state;
    char path[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", f->folder, names[i]);
        (void)remove(path);
    }
    free(f);
    return 0;
}

static struct icms *open_dir(const struct fixture *f)
{
    struct icms *icms = NULL;
    char why[256] = "";

    if (icms_open(f->where, NULL, why, sizeof(why), &icms) != ICMS_OK)
        fail_msg("%s", why);
    return icms;
}

static struct icms_volume *open_volume(struct icms *icms, const char *name)
{
    struct icms_volume *volume = NULL;
    char why[256] = "";

    if (icms_volume_open(icms, name, why, sizeof(why), &volume) != ICMS_OK)
        fail_msg("%s", why);
    return volume;
}

static icms_err put(struct icms_volume *volume, const char *key, const char *text)
{
    struct icms_block block = {.data = (void *)(uintptr_t)text, .bytes = strlen(text)};

    icms_key_from_name(key, strlen(key), &block.key);
    (void)!icms_put(volume, &block, 1, NULL);
    return block.status;
}

static icms_err get(struct icms_volume *volume, const char *key, const char *text)
{
    char data[64];
    struct icms_block block = {.data = data, .bytes = sizeof(data)};

    icms_key_from_name(key, strlen(key), &block.key);
    (void)!icms_get(volume, &block, 1, NULL);
    if (block.status == ICMS_OK) {
        assert_int_equal(block.bytes, strlen(text));
        assert_memory_equal(data, text, strlen(text));
    }
    return block.status;
}

static void a_missing_directory_and_volume_are_made(void **state)
{
    struct fixture *f = *state;
    struct icms *icms = open_dir(f);
    struct icms_volume *volume = open_volume(icms, "kv");
    struct icms_volume_info info;

    icms_volume_info(volume, &info);
    assert_string_equal(info.name, "kv");
    assert_int_equal(info.value_bytes_max, (uint64_t)8 << 20);
    assert_int_equal(info.sealed, 1);
    assert_int_equal(put(volume, "a", "hello"), ICMS_OK);
    assert_int_equal(get(volume, "a", "hello"), ICMS_OK);
    icms_close(&icms);
}

static void volumes_keep_their_identity_over_restarts(void **state)
{
    struct fixture *f = *state;
    struct icms_volume_info before, after;
    struct icms_options options;
    struct icms *icms = NULL;

    icms_options_init(&options);
    options.value_bytes_max = 4096;
    assert_int_equal(icms_open(f->where, &options, NULL, 0, &icms), ICMS_OK);
    icms_volume_info(open_volume(icms, "kv"), &before);
    icms_close(&icms);
    icms = open_dir(f);
    icms_volume_info(open_volume(icms, "kv"), &after);
    icms_close(&icms);
    assert_memory_equal(before.uuid, after.uuid, 16);
    assert_int_equal(after.value_bytes_max, 4096);
}

static void sizes_that_do_not_fit_are_refused_and_nothing_is_lost(void **state)
{
    struct fixture *f = *state;
    struct icms_volume *volume = NULL;
    struct icms_options options;
    struct icms *icms = NULL;
    char why[512];

    icms_options_init(&options);
    options.directory_bytes = (uint64_t)32 << 20;
    assert_int_equal(icms_open(f->where, &options, why, sizeof(why), &icms), ICMS_INVALID);
    assert_non_null(strstr(why, "directory_bytes"));
    options.value_bytes_max = 65536; /* it is enough for these */
    assert_int_equal(icms_open(f->where, &options, why, sizeof(why), &icms), ICMS_OK);
    assert_int_equal(put(open_volume(icms, "kv"), "a", "text"), ICMS_OK);
    icms_close(&icms);
    options.value_bytes_max = (uint64_t)8 << 20;
    options.directory_bytes = (uint64_t)1 << 30;
    assert_int_equal(icms_open(f->where, &options, why, sizeof(why), &icms), ICMS_OK);
    assert_int_equal(icms_volume_open(icms, "large", why, sizeof(why), &volume), ICMS_VALUE_SIZE);
    assert_non_null(strstr(why, "large"));
    assert_int_equal(put(open_volume(icms, "kv"), "a", "text"), ICMS_OK);
    icms_close(&icms);
    icms = open_dir(f); /* whatever fits, when nothing is said */
    assert_int_equal(put(open_volume(icms, "more"), "a", "text"), ICMS_OK);
    icms_close(&icms);
}

/* The agent of these tests makes no store; its file stands for one. */
static void another_size_than_the_directory_has_is_refused(void **state)
{
    struct fixture *f = *state;
    struct icms_options options;
    struct icms *icms = open_dir(f);
    char path[128], why[512];
    int fd;

    icms_close(&icms);
    (void)snprintf(path, sizeof(path), "%s/icms.store", f->where + 4);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, (off_t)256 << 20), 0);
    assert_int_equal(close(fd), 0);
    icms_options_init(&options);
    options.directory_bytes = (uint64_t)512 << 20;
    assert_int_equal(icms_open(f->where, &options, why, sizeof(why), &icms), ICMS_INVALID);
    assert_non_null(strstr(why, "directory_bytes 536870912: it was made with 268435456"));
    options.directory_bytes = ((uint64_t)256 << 20) + 5; /* whole MiB count */
    assert_int_equal(icms_open(f->where, &options, why, sizeof(why), &icms), ICMS_OK);
    icms_close(&icms);
    icms = open_dir(f);
    icms_close(&icms);
}

static void a_second_volume_leaves_the_first_one_open(void **state)
{
    struct fixture *f = *state;
    struct icms *icms = open_dir(f);
    struct icms_volume *one = open_volume(icms, "one");
    struct icms_request *request;
    struct icms_block block = {.data = (void *)(uintptr_t) "x", .bytes = 1};
    struct icms_volume *two;

    icms_key_from_name("k", 1, &block.key);
    assert_int_equal(icms_put_start(one, &block, 1, NULL, &request), ICMS_OK);
    two = open_volume(icms, "two"); /* waits for the request, replaces the agent */
    assert_ptr_equal(icms_poll(icms), request);
    assert_int_equal(icms_request_end(&request), ICMS_OK);
    assert_int_equal(put(one, "a", "first"), ICMS_OK);
    assert_int_equal(put(two, "a", "second"), ICMS_OK);
    assert_int_equal(get(one, "a", "first"), ICMS_OK);
    assert_int_equal(get(two, "a", "second"), ICMS_OK);
    icms_close(&icms);
}

static void leases_keep_a_volume_from_being_made(void **state)
{
    struct fixture *f = *state;
    struct icms *icms = open_dir(f);
    struct icms_volume *one = open_volume(icms, "one"), *two = NULL;
    struct icms_lease lease;
    struct icms_key key;
    char why[256];
    void *data;

    assert_int_equal(put(one, "a", "first"), ICMS_OK);
    icms_key_from_name("a", 1, &key);
    assert_int_equal(icms_lease_take(one, &key, NULL, NULL, &lease), ICMS_OK);
    assert_int_equal(icms_volume_open(icms, "two", why, sizeof(why), &two), ICMS_BUSY);
    assert_non_null(strstr(why, "leases"));
    icms_lease_give(&lease);
    assert_int_equal(icms_buffer_take(icms, 100, &data), ICMS_OK);
    assert_int_equal(icms_volume_open(icms, "two", why, sizeof(why), &two), ICMS_BUSY);
    icms_buffer_give(icms, data);
    assert_int_equal(icms_volume_open(icms, "two", why, sizeof(why), &two), ICMS_OK);
    icms_close(&icms);
}

static void another_holder_is_named(void **state)
{
    struct fixture *f = *state;
    struct icms *icms = open_dir(f), *second = NULL;
    char why[256], pid[32];

    (void)snprintf(pid, sizeof(pid), "process %d", (int)getpid());
    assert_int_equal(icms_open(f->where, NULL, why, sizeof(why), &second), ICMS_LOCKED);
    assert_non_null(strstr(why, pid));
    icms_close(&icms);
    icms = open_dir(f);
    icms_close(&icms);
}

static void foreign_or_damaged_directories_are_refused_and_left_alone(void **state)
{
    static const struct {
        const char *text;
        icms_err err;
        const char *why;
    } cases[] = {
        {"something else\n", ICMS_FOREIGN, "volumes"},
        {"icms-dir 1\nkv 4096 1\n", ICMS_FOREIGN, "volumes"},
        {"icms-dir 1 12345\nkv 4096 1\n", ICMS_CORRUPT, "volumes:1"},
        {"icms-dir 1 16777216\nkv 8388608\n", ICMS_CORRUPT, "volumes:2"},
        {"icms-dir 1 16777216\nkv 4096 1\nkv 4096 1\n", ICMS_CORRUPT, "volumes:3"},
        {"icms-dir 1 16777216\nkv 99999999999 1\n", ICMS_CORRUPT, "volumes:2"},
        {"icms-dir 1 16777216\n../kv 4096 1\n", ICMS_CORRUPT, "volumes:2"},
        {"icms-dir 1 16777216\nkv 4096 1 x\n", ICMS_CORRUPT, "volumes:2"},
    };
    struct fixture *f = *state;
    char path[128], why[512], text[64];
    struct icms *icms = NULL;

    assert_int_equal(mkdir(f->where + 4, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/volumes", f->where + 4);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        FILE *file = fopen(path, "we");

        assert_non_null(file);
        assert_true(fputs(cases[i].text, file) >= 0);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(icms_open(f->where, NULL, why, sizeof(why), &icms), cases[i].err);
        assert_non_null(strstr(why, cases[i].why));
        file = fopen(path, "re");
        assert_non_null(file);
        text[fread(text, 1, sizeof(text) - 1, file)] = 0;
        assert_int_equal(fclose(file), 0);
        assert_string_equal(text, cases[i].text);
    }
}

static void names_and_paths_that_cannot_be_are_said(void **state)
{
    struct fixture *f = *state;
    struct icms *icms = open_dir(f);
    struct icms_volume *volume = NULL;
    char why[512], long_name[80], where[128];

    memset(long_name, 'x', sizeof(long_name));
    long_name[79] = 0;
    assert_int_equal(icms_volume_open(icms, "", why, sizeof(why), &volume), ICMS_INVALID);
    assert_int_equal(icms_volume_open(icms, "a/b", why, sizeof(why), &volume), ICMS_INVALID);
    assert_non_null(strstr(why, "letters"));
    assert_int_equal(icms_volume_open(icms, long_name, why, sizeof(why), &volume), ICMS_INVALID);
    icms_close(&icms);
    assert_int_equal(icms_open("dir:", NULL, why, sizeof(why), &icms), ICMS_INVALID);
    (void)snprintf(where, sizeof(where), "dir:%s/no/such", f->folder);
    assert_int_equal(icms_open(where, NULL, why, sizeof(why), &icms), ICMS_NOT_FOUND);
    (void)snprintf(where, sizeof(where), "dir:%s/file", f->folder);
    assert_int_equal(close(open(where + 4, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)), 0);
    assert_int_equal(icms_open(where, NULL, why, sizeof(why), &icms), ICMS_INVALID);
    assert_non_null(strstr(why, "not a directory"));
}

static void status_needs_no_volume(void **state)
{
    struct fixture *f = *state;
    struct icms *icms = open_dir(f);
    char text[128];
    size_t bytes;

    assert_int_equal(icms_status(icms, text, sizeof(text), &bytes), ICMS_OK);
    assert_string_equal(text, "{\"enclosures\":[],\"volumes\":[]}");
    (void)open_volume(icms, "kv");
    icms_close(&icms);
    icms = open_dir(f); /* now there is one, and an agent to ask */
    assert_int_equal(icms_status(icms, text, sizeof(text), &bytes), ICMS_OK);
    assert_string_equal(text, "{\"fake\":true,\"blocks\":0}");
    icms_close(&icms);
}

static void a_child_of_fork_can_neither_use_nor_stop_it(void **state)
{
    struct fixture *f = *state;
    struct icms *icms = open_dir(f);
    struct icms_volume *volume = open_volume(icms, "kv");
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        int wrong = put(volume, "a", "child") != ICMS_FORKED;

        icms_close(&icms);
        _exit(wrong);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(put(volume, "a", "parent"), ICMS_OK);
    icms_close(&icms);
}

static void *make_volumes(void *arg)
{
    struct icms *icms = arg;

    for (int i = 0; i < 3; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "v%d", i);
        if (put(open_volume(icms, name), "a", "text") != ICMS_OK)
            return arg;
    }
    return NULL;
}

static void threads_may_make_volumes_while_others_work(void **state)
{
    struct fixture *f = *state;
    struct icms *icms = open_dir(f);
    struct icms_volume *volume = open_volume(icms, "kv");
    pthread_t threads[2];
    void *result;

    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, make_volumes, icms), 0);
    for (int i = 0; i < 200; i++)
        assert_int_equal(put(volume, "b", "more"), ICMS_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_null(result);
    }
    icms_close(&icms);
}

/* No file may grow, as on a file system that a directory has filled. */
static void a_directory_that_cannot_grow_can_be_opened(void **state)
{
    struct fixture *f = *state;
    struct icms *icms = open_dir(f), *other = NULL;
    struct rlimit limit, none;
    char why[256] = "";

    icms_close(&icms);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    none = (struct rlimit){.rlim_max = limit.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    icms = open_dir(f);
    assert_int_equal(icms_open(f->where, NULL, why, sizeof(why), &other), ICMS_LOCKED);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_non_null(strstr(why, "is in use by another process; one process"));
    (void)open_volume(icms, "kv");
    icms_close(&icms);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_missing_directory_and_volume_are_made),
        TEST(volumes_keep_their_identity_over_restarts),
        TEST(sizes_that_do_not_fit_are_refused_and_nothing_is_lost),
        TEST(another_size_than_the_directory_has_is_refused),
        TEST(a_second_volume_leaves_the_first_one_open),
        TEST(leases_keep_a_volume_from_being_made),
        TEST(another_holder_is_named),
        TEST(a_directory_that_cannot_grow_can_be_opened),
        TEST(foreign_or_damaged_directories_are_refused_and_left_alone),
        TEST(names_and_paths_that_cannot_be_are_said),
        TEST(status_needs_no_volume),
        TEST(a_child_of_fork_can_neither_use_nor_stop_it),
        TEST(threads_may_make_volumes_while_others_work),
    };

    return cmocka_run_group_tests_name("client-dir", tests, NULL, NULL);
}
