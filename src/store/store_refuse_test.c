/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives and sizes that are refused, and left as they are: the same tests on every back end.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "store/layout.h"
#include "store/store_rig.h"

static void a_foreign_drive_is_refused_and_left_alone(void **state)
{
    static const uint64_t places[] = {0, 5000, 200000, (4 << 20) - 1};
    struct rig *rig = *state;
    struct err_why why = {""};
    struct loop *loop = NULL;
    struct store *store = NULL;
    struct loop_opts opts;

    for (int i = 0; i < 4; i++) {
        struct loop_file_opts file_opts = {
            .path = rig->path, .create = true, .write = true, .bytes = 4 << 20};
        struct loop_file *file = NULL;

        assert_int_equal(loop_file_open(rig->env, &file_opts, &why, &file), ICMS_OK);
        loop_file_close(&file);
        rig_flip(rig, places[i], 0x55);
        assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_FOREIGN);
        loop_opts_init(&opts);
        assert_int_equal(loop_new(rig->env, &opts, &why, &loop), ICMS_OK);
        assert_int_equal(store_open(loop, &rig->opts, &why, &store), ICMS_FOREIGN);
        assert_non_null(strstr(why.text, rig->path));
        loop_free(&loop);
        rig_flip(rig, places[i], 0x55); /* all zeros, if nothing else was changed */
    }
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_OK);
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_EXISTS);
    assert_int_equal(store_format(rig->env, &rig->opts, true, &why), ICMS_OK);
}

static void formatting_again_empties_the_drive(void **state)
{
    struct rig *rig = *state;
    struct err_why why;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 50; i++)
        assert_int_equal(rig_put(rig, 0, i, 10000, i, 0), ICMS_OK);
    rig_down(rig);
    assert_int_equal(store_format(rig->env, &rig->opts, true, &why), ICMS_OK);
    rig_up(rig);
    for (uint64_t i = 0; i < 50; i++)
        assert_int_equal(rig_get(rig, 0, i, 10000, i, NULL), ICMS_MISS);
}

static void either_superblock_is_enough(void **state)
{
    struct rig *rig = *state;
    struct err_why why;
    struct loop *loop;
    struct loop_opts opts;
    struct store *store;

    rig_one_volume(rig);
    rig_format(rig);
    rig_flip(rig, STORE_SUPER_OFFSET_A + 40, 1);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 10, 1, 0), ICMS_OK);
    rig_down(rig);
    rig_flip(rig, STORE_SUPER_OFFSET_A + 40, 1);
    rig_flip(rig, STORE_SUPER_OFFSET_B, 1);
    rig_up(rig);
    assert_int_equal(rig_get(rig, 0, 1, 10, 1, NULL), ICMS_OK);
    rig_down(rig);
    rig_flip(rig, STORE_SUPER_OFFSET_A + 40, 1);
    loop_opts_init(&opts);
    assert_int_equal(loop_new(rig->env, &opts, &why, &loop), ICMS_OK);
    assert_int_equal(store_open(loop, &rig->opts, &why, &store), ICMS_CORRUPT);
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_EXISTS);
    loop_free(&loop);
}

/* Writes both superblocks anew, with their hash, after a change. */
static void super_forge(struct rig *rig, void (*change)(struct store_super_df *df))
{
    struct store_super_df df;

    rig_peek(rig, STORE_SUPER_OFFSET_A, &df, sizeof(df));
    change(&df);
    df.hash = le64_of(hash64_seed(&df, sizeof(df) - sizeof(df.hash), 0));
    rig_poke(rig, STORE_SUPER_OFFSET_A, &df, sizeof(df));
    rig_poke(rig, STORE_SUPER_OFFSET_B, &df, sizeof(df));
}

static void super_same(struct store_super_df *df)
{
    (void)df;
}

static void super_version(struct store_super_df *df)
{
    df->version = le32_of(STORE_SUPER_VERSION + 1);
}

static void super_segments(struct store_super_df *df)
{
    df->segments = le32_of(le32_get(df->segments) + 1);
}

/* A superblock that is whole, and not of this version or of a drive that cannot be. */
static void a_superblock_of_another_version_is_refused(void **state)
{
    static void (*const changes[])(struct store_super_df *) = {super_same, super_version,
                                                               super_segments};
    struct rig *rig = *state;

    rig_one_volume(rig);
    for (uint32_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct err_why why = {""};
        struct loop_opts opts;

        assert_int_equal(store_format(rig->env, &rig->opts, i > 0, &why), ICMS_OK);
        super_forge(rig, changes[i]);
        loop_opts_init(&opts);
        assert_int_equal(loop_new(rig->env, &opts, &why, &rig->loop), ICMS_OK);
        assert_int_equal(store_open(rig->loop, &rig->opts, &why, &rig->store),
                         i == 0 ? ICMS_OK : ICMS_VERSION);
        loop_free(&rig->loop);
        store_close(&rig->store);
    }
}

/* Entries name one of the rows that a footer has. */
static void an_entry_of_a_row_that_is_not_there_is_refused(void **state)
{
    const struct store_record record = {.key = rig_key(1), .value_bytes = 100};
    struct store_record out;
    struct store_entry_df df;
    uint32_t page;
    uint8_t row;

    (void)state;
    store_entry_make(&record, 2, STORE_SEGMENT_VOLUMES - 1, &df);
    assert_int_equal(store_entry_check(&df, 16, &out, &page, &row), ICMS_OK);
    assert_int_equal(row, STORE_SEGMENT_VOLUMES - 1);
    df.volume++;
    assert_int_equal(store_entry_check(&df, 16, &out, &page, &row), ICMS_CORRUPT);
    store_entry_make(&record, 1, 0, &df); /* in the dead map */
    assert_int_equal(store_entry_check(&df, 16, &out, &page, &row), ICMS_CORRUPT);
    store_entry_make(&record, 14, 0, &df); /* in the summary */
    assert_int_equal(store_entry_check(&df, 16, &out, &page, &row), ICMS_CORRUPT);
}

static void a_second_opener_is_told_who_holds_the_drive(void **state)
{
    struct rig *rig = *state;
    struct err_why why = {""};
    struct store *store;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    loop_stop(rig->loop);
    loop_join(rig->loop);
    assert_int_equal(store_open(rig->loop, &rig->opts, &why, &store), ICMS_LOCKED);
    assert_non_null(strstr(why.text, rig->path));
    assert_int_equal(store_format(rig->env, &rig->opts, true, &why), ICMS_LOCKED);
}

/* Only with real files and processes. */
static void a_truncated_drive_is_refused_and_left_alone(void **state)
{
    struct rig *rig = *state;
    struct loop_opts opts;
    struct err_why why = {""};
    struct loop *loop = NULL;
    struct store *store = NULL;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 4000, 1, 0), ICMS_OK);
    rig_down(rig);
    assert_int_equal(truncate(rig->path, 3 << 20), 0);
    loop_opts_init(&opts);
    assert_int_equal(loop_new(rig->env, &opts, &why, &loop), ICMS_OK);
    assert_int_equal(store_open(loop, &rig->opts, &why, &store), ICMS_IO);
    assert_non_null(strstr(why.text, "truncated"));
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_EXISTS);
    loop_free(&loop);
    assert_int_equal(truncate(rig->path, 4 << 20), 0); /* as it was, but for zeros at its end */
    rig_up(rig);
    assert_int_equal(rig_get(rig, 0, 1, 4000, 1, NULL), ICMS_OK);
}

static void a_second_process_is_told_the_pid(void **state)
{
    struct rig *rig = *state;
    struct loop_opts opts;
    struct err_why why = {""};
    struct loop *loop = NULL;
    struct store *store = NULL;
    char pid_text[32];
    int ready[2];
    pid_t pid;

    rig_one_volume(rig);
    rig_format(rig);
    assert_int_equal(pipe(ready), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        rig_up(rig);
        (void)!write(ready[1], "r", 1);
        for (;;)
            (void)pause();
    }
    assert_int_equal(read(ready[0], pid_text, 1), 1);
    loop_opts_init(&opts);
    assert_int_equal(loop_new(rig->env, &opts, &why, &loop), ICMS_OK);
    assert_int_equal(store_open(loop, &rig->opts, &why, &store), ICMS_LOCKED);
    (void)snprintf(pid_text, sizeof(pid_text), " %d", (int)pid);
    assert_non_null(strstr(why.text, pid_text));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)close(ready[0]);
    (void)close(ready[1]);
    loop_free(&loop);
}

static void bad_sizes_are_refused(void **state)
{
    struct rig *rig = *state;
    struct err_why why;

    rig->opts.segment_bytes = 100000;
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_INVALID);
    rig->opts.segment_bytes = RIG_SEGMENT_BYTES;
    rig->opts.value_bytes_max = 60 << 10;
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_INVALID);
    rig->opts.value_bytes_max = 4096;
    rig->opts.bytes = 200000;
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_NO_SPACE);
    rig->opts.bytes = 0;
    assert_int_equal(store_format(rig->env, &rig->opts, false, &why), ICMS_NOT_FOUND);
}

#define STORE_TESTS(backend)                                                                       \
    STORE_TEST(a_foreign_drive_is_refused_and_left_alone, backend),                                \
        STORE_TEST(formatting_again_empties_the_drive, backend),                                   \
        STORE_TEST(either_superblock_is_enough, backend),                                          \
        STORE_TEST(a_superblock_of_another_version_is_refused, backend),                           \
        STORE_TEST(a_second_opener_is_told_who_holds_the_drive, backend),                          \
        STORE_TEST(bad_sizes_are_refused, backend)

#define STORE_TEST(test, backend)                                                                  \
    {                                                                                              \
#backend ": " #test, test, rig_##backend##_setup, rig_##backend##_teardown, NULL           \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(a_truncated_drive_is_refused_and_left_alone, uring),
        STORE_TEST(a_second_process_is_told_the_pid, uring),
        cmocka_unit_test(an_entry_of_a_row_that_is_not_there_is_refused),
        STORE_TESTS(uring),
        STORE_TESTS(sim),
    };

    return cmocka_run_group_tests_name("store-refuse", tests, NULL, NULL);
}
