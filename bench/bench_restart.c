/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_restart.c: `icms bench restart`: opening a drive of one million blocks, beside
 * reading the same summaries and doing nothing with them.
 *
 * The drive is a file with holes for the values: an open reads what it would of a full drive. A
 * slice is one open, whatever it takes; its bytes are those of the index that it filled from flash,
 * and they count as verified when every block is there. Called by bench_run.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "bench/bench_int.h"
#include "store/store.h"
#include "store/store_million.h"

#define RESTART_SECONDS     1.0  /* goal: ready after this      */
#define RESTART_INDEX_BYTES 32.0 /* goal: of memory, for a block */

/* Both sides. */
struct restart {
    struct bench_side open, raw; /* what bench_compare runs             */
    struct store_million million;
    uint64_t read_bytes; /* of the drive, that an open reads    */
    double index_bytes;  /* of memory for one block that may be */
};

static icms_err restart_raw(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                            struct bench_slice *slice, struct err_why *why)
{
    struct restart *restart = side->owner;
    icms_err err = store_million_raw(loop_env_uring(), &restart->million, why, &restart->read_bytes,
                                     &slice->wall_ns);

    (void)work;
    (void)ns;
    if (err == ICMS_OK)
        bench_slice_add(slice, ICMS_OK, restart->read_bytes, 0, slice->wall_ns);
    return err;
}

/* Counts what the opened store knows. */
static void restart_look(struct restart *restart, const struct store *store,
                         struct bench_slice *slice, uint64_t ns)
{
    struct store_stats stats;

    store_stats(store, &stats);
    restart->index_bytes = (double)stats.index_bytes / (double)stats.blocks_max;
    slice->wall_ns = ns;
    bench_slice_add(slice,
                    stats.recovered_blocks == restart->million.blocks && stats.checksum_errors == 0
                        ? ICMS_OK
                        : ICMS_CORRUPT,
                    restart->read_bytes, restart->read_bytes, ns);
}

static icms_err restart_open(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                             struct bench_slice *slice, struct err_why *why)
{
    struct restart *restart = side->owner;
    struct store *store = NULL;
    struct loop *loop = NULL;
    struct loop_opts loop_opts;
    struct store_opts opts;
    icms_err err;

    (void)work;
    (void)ns;
    loop_opts_init(&loop_opts);
    store_opts_init(&opts);
    opts.path = restart->million.path;
    opts.blocks_max = restart->million.blocks;
    opts.volumes = &restart->million.volume;
    opts.volume_count = 1;
    err = loop_new(loop_env_uring(), &loop_opts, why, &loop);
    if (err == ICMS_OK) {
        uint64_t begin_ns = loop_env_now_ns(loop_env_uring());

        err = store_open(loop, &opts, why, &store);
        if (err == ICMS_OK)
            restart_look(restart, store, slice, loop_env_now_ns(loop_env_uring()) - begin_ns);
    }
    loop_free(&loop);
    store_close(&store);
    return err;
}

/* The drive: a file that is as large as a million blocks and has holes where they would be. */
static icms_err restart_make(const struct restart *restart, struct err_why *why)
{
    const char *path = restart->million.path;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    bool sized = fd >= 0 && ftruncate(fd, (off_t)store_million_bytes(&restart->million)) == 0;

    if (fd >= 0)
        (void)close(fd);
    if (!sized)
        return err_set(why, ICMS_IO,
                       "%s: a file of %llu GiB with holes cannot be made; name another directory "
                       "with --dir",
                       path, (unsigned long long)(store_million_bytes(&restart->million) >> 30));
    return store_million_make(loop_env_uring(), &restart->million, why);
}

static icms_err restart_row(const struct bench_opts *opts, struct restart *restart,
                            struct err_why *why)
{
    struct bench_work work = {
        .op = BENCH_OPEN, .size_bytes = restart->million.value_bytes, .depth = 1};
    struct bench_row row = {.bench = "restart", .variant = ""};
    icms_err err = restart_raw(&restart->raw, &work, 0, &(struct bench_slice){0}, why);

    if (err == ICMS_OK)
        err = bench_compare(opts, &work, &restart->raw, &restart->open, &row, why);
    if (err != ICMS_OK)
        return err;
    row.p50_goal_us = RESTART_SECONDS * 1e6;
    bench_row_goal(&row, "index_bytes_per_block", restart->index_bytes, RESTART_INDEX_BYTES);
    bench_row_extra(&row, "blocks", (double)restart->million.blocks);
    opts->row(opts->arg, &row);
    return ICMS_OK;
}

icms_err bench_restart_run(const struct bench_opts *opts, struct err_why *why)
{
    struct restart restart = {
        .open = {.name = "store_open", .run = restart_open},
        .raw = {.name = "raw reads", .run = restart_raw},
    };
    char dir[BENCH_PATH_BYTES], path[BENCH_PATH_BYTES + 8];
    icms_err err;

    restart.open.owner = restart.raw.owner = &restart;
    store_million_init(&restart.million);
    err = bench_dir_make(opts, why, dir, sizeof(dir));
    if (err != ICMS_OK)
        return err;
    (void)snprintf(path, sizeof(path), "%s/drive", dir);
    restart.million.path = path;
    restart.million.volume = (struct uuid){.bytes = {1}};
    opts->progress(opts->arg, "making a drive of a million blocks", 0);
    err = restart_make(&restart, why);
    if (err == ICMS_OK)
        err = restart_row(opts, &restart, why);
    bench_dir_remove(dir);
    return err;
}
