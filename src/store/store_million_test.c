/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a drive with very many blocks: they are all there, whatever the sizes, on every back end.
 *
 *   store_million_test [BLOCKS [VALUE_BYTES [PATH]]]
 *
 * With arguments it measures instead, on a file with holes at PATH (default: in /var/tmp), and
 * prints how long reading alone took, how long the open took, and the bytes of index a block.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "loop/sim.h"
#include "store/store_million.h"
#include "store/store_rig.h"

/* The file of the rig, as long as it has to be. */
static void test_make(struct rig *rig, struct store_million *million)
{
    struct err_why why = {""};
    struct loop_file_opts opts = {.path = rig->path, .create = true, .write = true};
    struct loop_file *file;

    million->path = rig->path;
    million->volume = rig->uuid[0];
    opts.bytes = store_million_bytes(million);
    assert_int_equal(loop_file_open(rig->env, &opts, &why, &file), ICMS_OK);
    loop_file_close(&file);
    if (store_million_make(rig->env, million, &why) != ICMS_OK)
        fail_msg("%s", why.text);
    rig->opts.bytes = 0;
    rig->opts.value_bytes_max = million->value_bytes;
    rig->opts.blocks_max = million->blocks + 1000;
}

static void test_sizes(struct rig *rig, uint64_t blocks, uint32_t value_bytes, uint64_t segment)
{
    struct store_million million = {
        .blocks = blocks, .value_bytes = value_bytes, .segment_bytes = segment};
    struct store_stats stats;

    rig_one_volume(rig);
    test_make(rig, &million);
    rig_up(rig);
    rig_stats(rig, &stats);
    assert_int_equal(stats.blocks, blocks);
    assert_int_equal(stats.recovered_blocks, blocks);
    assert_int_equal(stats.checksum_errors, 0);
    assert_true(stats.index_bytes <= 32 * stats.blocks_max);
    loop_stop(rig->loop);
    loop_join(rig->loop);
    for (uint64_t n = 0; n < blocks; n++) {
        struct key key = store_million_key(n);

        assert_true(store_exists(rig->store, 0, &key, NULL));
    }
    rig_down(rig);
}

/* Many small segments, more than are read at a time. */
static void many_segments_are_found(void **state)
{
    test_sizes(*state, 3000, 4000, (uint64_t)64 << 10);
}

/* A few segments whose summaries are longer than one read of an open. */
static void long_summaries_are_found(void **state)
{
    test_sizes(*state, 12000, 100, (uint64_t)16 << 20);
}

static void one_block_is_found(void **state)
{
    test_sizes(*state, 1, 100, (uint64_t)64 << 10);
}

/* ---- measuring --------------------------------------------------------------------------------
 */

static double test_ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

static int measure(struct store_million *million)
{
    struct loop_env *env = loop_env_uring();
    struct loop_opts loop_options;
    struct store_opts opts;
    struct err_why why = {""};
    struct loop *loop = NULL;
    struct store *store = NULL;
    uint64_t begin = loop_env_now_ns(env);
    int fd = open(million->path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);

    if (fd < 0 || ftruncate(fd, (off_t)store_million_bytes(million)) != 0) {
        perror(million->path);
        return 1;
    }
    (void)close(fd);
    if (store_million_make(env, million, &why) != ICMS_OK)
        goto failed;
    (void)printf("made in %.0f ms\n", test_ms(loop_env_now_ns(env) - begin));
    store_opts_init(&opts);
    opts.path = million->path;
    opts.value_bytes_max = million->value_bytes;
    opts.blocks_max = million->blocks;
    opts.volumes = &million->volume;
    opts.volume_count = 1;
    loop_opts_init(&loop_options);
    for (int turn = 0; turn < 5; turn++) {
        struct store_stats stats;
        uint64_t bytes = 0, ns = 0;

        if (store_million_raw(env, million, &why, &bytes, &ns) != ICMS_OK ||
            loop_new(env, &loop_options, &why, &loop) != ICMS_OK ||
            store_open(loop, &opts, &why, &store) != ICMS_OK)
            goto failed;
        store_stats(store, &stats);
        (void)printf("reading %.1f MB %.0f ms, open of %llu blocks %.0f ms, %.2f bytes a block\n",
                     (double)bytes / 1e6, test_ms(ns), (unsigned long long)stats.blocks,
                     test_ms(stats.recovery_ns),
                     (double)stats.index_bytes / (double)stats.blocks_max);
        loop_free(&loop);
        store_close(&store);
    }
    (void)unlink(million->path);
    return 0;
failed:
    (void)fprintf(stderr, "%s\n", why.text);
    loop_free(&loop);
    store_close(&store);
    (void)unlink(million->path);
    return 1;
}

#define STORE_TEST(test, backend)                                                                  \
    {                                                                                              \
#backend ": " #test, test, rig_##backend##_setup, rig_##backend##_teardown, NULL           \
    }
#define STORE_TESTS(backend)                                                                       \
    STORE_TEST(many_segments_are_found, backend), STORE_TEST(long_summaries_are_found, backend),   \
        STORE_TEST(one_block_is_found, backend)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {STORE_TESTS(uring), STORE_TESTS(sim)};
    struct store_million million;

    store_million_init(&million);
    million.path = argc > 3 ? argv[3] : "/var/tmp/icms-store-million";
    if (argc > 2)
        million.value_bytes = (uint32_t)strtoul(argv[2], NULL, 10);
    if (argc > 1) {
        million.blocks = strtoull(argv[1], NULL, 10);
        return measure(&million);
    }
    return cmocka_run_group_tests_name("store-million", tests, NULL, NULL);
}
