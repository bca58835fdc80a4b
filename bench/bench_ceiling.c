/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_ceiling.c: `icms bench ceiling`: are the ceilings of the other benches as good as
 * what everybody measures with? The raw disk beside fio, raw TCP beside iperf3, in turns.
 *
 * Disk: two files of one size and age; fio with io_uring, O_DIRECT, registered buffers and file,
 * the same block size and depth, walks that come back to no value soon. Its buffers lie in small
 * pages. Twins: the raw disk beside itself, each on a file of its own, which says whether what
 * stands beside the raw disk elsewhere is treated alike: the ratio has to be 1 within its interval.
 * Checked: the twin takes a checksum of every value: what the drive has for one who looks at what
 * comes, which costs more than the time that the checksum takes: bytes that a core has read are
 * slower to write over, for a drive that is a part of this machine or of its host. TCP: our two
 * processes, without looking at what came, against a stream of iperf3 in blocks of the same size;
 * both send one block again and again. Ours asks for each value, iperf3 for none.
 *
 * It is no test of `make check`: a host that keeps one of the two files in its memory moves the
 * ratio by more than what is looked for. Called by bench_run.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "bench/bench_int.h"

#define CEILING_GOAL      0.9
#define CEILING_APART     0.02 /* of twins: that far from 1 may their interval end */
#define CEILING_DEPTH     4    /* of TCP: few buffers, as iperf3 has one */
#define CEILING_FILL_PART 32

static const uint32_t ceiling_sizes[] = {128 << 10, 1 << 20};

static icms_err ceiling_row(const struct bench_opts *opts, const struct bench_work *work,
                            const char *variant, struct bench_side *tool, struct bench_side *ours,
                            struct err_why *why)
{
    struct bench_row row = {.bench = "ceiling", .variant = variant};
    icms_err err = bench_compare(opts, work, tool, ours, &row, why);

    if (err != ICMS_OK)
        return err;
    if (strcmp(variant, "twins") == 0)
        bench_row_goal(&row, "interval_apart_from_1",
                       row.ratio_low > 1    ? row.ratio_low - 1
                       : row.ratio_high < 1 ? 1 - row.ratio_high
                                            : 0,
                       CEILING_APART);
    else if (strcmp(variant, "checked") != 0)
        row.ratio_goal = CEILING_GOAL;
    opts->row(opts->arg, &row);
    return ICMS_OK;
}

/* ---- the disk -------------------------------------------------------------------------------- */

/* Two files in directories of their own. */
struct ceiling_disks {
    struct bench_disk *ours; /* what we measure with                        */
    struct bench_disk *twin; /* makes and fills the other file, and is a twin */
    struct bench_fio run;    /* that works on it otherwise                  */
};

static icms_err ceiling_disk_new(const char *dir, const char *name, uint64_t bytes,
                                 struct err_why *why, char *path, size_t room,
                                 struct bench_disk **out_disk)
{
    (void)snprintf(path, room, "%s/%s", dir, name);
    if (mkdir(path, 0700) != 0)
        return err_set(why, err_from_errno(errno), "cannot make %s", path);
    return bench_disk_new(path, 1, bytes, why, out_disk);
}

static icms_err ceiling_fill(const struct bench_opts *opts, struct ceiling_disks *disks,
                             uint32_t size, struct err_why *why)
{
    uint64_t count = bench_disk_extents(disks->ours, size);
    icms_err err = ICMS_OK;

    for (uint64_t n = 0; n < count && err == ICMS_OK; n += CEILING_FILL_PART) {
        opts->progress(opts->arg, "filling both files", (double)n / (double)count);
        err = bench_disk_fill(disks->ours, size, n, CEILING_FILL_PART, why);
        if (err == ICMS_OK)
            err = bench_disk_fill(disks->twin, size, n, CEILING_FILL_PART, why);
    }
    disks->run.values = count;
    disks->run.next_write = 0;
    return err;
}

static icms_err ceiling_disk_rows(const struct bench_opts *opts, struct ceiling_disks *disks,
                                  uint32_t size, struct err_why *why)
{
    struct bench_side ours = {.name = "raw disk",
                              .run = bench_disk_run,
                              .owner = disks->ours,
                              .trail = bench_disk_trail(disks->ours)};
    struct bench_side fio = {.name = "fio", .run = bench_fio_run, .owner = &disks->run};
    struct bench_side twin = {.name = "raw disk",
                              .run = bench_disk_run,
                              .owner = disks->twin,
                              .trail = bench_disk_trail(disks->twin)};
    uint32_t depths[2], depth_count = bench_depths(opts, depths);
    icms_err err = ceiling_fill(opts, disks, size, why);

    for (uint32_t i = 0; i < 2 * depth_count && err == ICMS_OK; i++) {
        struct bench_work work = {.op = i < depth_count ? BENCH_GET : BENCH_PUT,
                                  .size_bytes = size,
                                  .depth = depths[i % depth_count]};

        opts->progress(opts->arg, "disk", i / (2.0 * depth_count));
        if (!bench_wants_op(opts, work.op))
            continue;
        if (bench_wants_variant(opts, "disk"))
            err = ceiling_row(opts, &work, "disk", &fio, &ours, why);
        if (err == ICMS_OK && bench_wants_variant(opts, "twins"))
            err = ceiling_row(opts, &work, "twins", &twin, &ours, why);
        if (err != ICMS_OK || !bench_wants_variant(opts, "checked"))
            continue;
        bench_disk_check(disks->twin, true);
        err = ceiling_row(opts, &work, "checked", &ours, &twin, why);
        bench_disk_check(disks->twin, false);
    }
    return err;
}

static icms_err ceiling_disk(const struct bench_opts *opts, const uint32_t *sizes, uint32_t count,
                             struct err_why *why)
{
    uint64_t bytes = opts->space_bytes / 2 >> 26 << 26;
    char dir[BENCH_PATH_BYTES], path[BENCH_PATH_BYTES + 8];
    struct ceiling_disks disks = {0};
    icms_err err = bench_dir_make(opts, why, dir, sizeof(dir));

    if (err != ICMS_OK)
        return err;
    err = ceiling_disk_new(dir, "ours", bytes, why, path, sizeof(path), &disks.ours);
    if (err == ICMS_OK)
        err = ceiling_disk_new(dir, "other", bytes, why, path, sizeof(path), &disks.twin);
    (void)snprintf(disks.run.path, sizeof(disks.run.path), "%s/raw-0", path);
    for (uint32_t i = 0; i < count && err == ICMS_OK; i++)
        err = ceiling_disk_rows(opts, &disks, sizes[i], why);
    bench_disk_free(&disks.ours);
    bench_disk_free(&disks.twin);
    bench_dir_remove(dir);
    return err;
}

/* ---- TCP ------------------------------------------------------------------------------------- */

static icms_err ceiling_tcp_rows(const struct bench_opts *opts, struct bench_iperf *iperf,
                                 uint32_t size, struct err_why *why)
{
    struct bench_work work = {.size_bytes = size,
                              .depth = opts->depth != 0 ? opts->depth : CEILING_DEPTH};
    struct bench_side tool = {.name = "iperf3",
                              .run = bench_iperf_run,
                              .owner = iperf,
                              .pids = 1,
                              .pid = {iperf->server}};
    struct bench_side ours = {.name = "raw TCP", .run = bench_tcp_run, .pids = 1};
    struct bench_pool pool = {0};
    struct bench_tcp *tcp = NULL;
    icms_err err = bench_pool_new(size, size, why, &pool);

    pool.unchecked = true;
    if (err == ICMS_OK)
        err = bench_tcp_new(&pool, work.depth, why, &tcp);
    if (err == ICMS_OK) {
        ours.owner = tcp;
        ours.pid[0] = bench_tcp_server(tcp);
    }
    for (int op = BENCH_GET; op <= BENCH_PUT && err == ICMS_OK; op++) {
        work.op = (enum bench_op)op;
        opts->progress(opts->arg, "TCP", op / 2.0);
        if (bench_wants_op(opts, work.op))
            err = ceiling_row(opts, &work, "tcp", &tool, &ours, why);
    }
    bench_tcp_free(&tcp);
    bench_pool_free(&pool);
    return err;
}

static icms_err ceiling_tcp(const struct bench_opts *opts, const uint32_t *sizes, uint32_t count,
                            struct err_why *why)
{
    struct bench_iperf iperf = {0};
    icms_err err = bench_iperf_start(&iperf, why);

    for (uint32_t i = 0; i < count && err == ICMS_OK; i++)
        err = ceiling_tcp_rows(opts, &iperf, sizes[i], why);
    bench_iperf_end(&iperf);
    return err;
}

icms_err bench_ceiling_run(const struct bench_opts *opts, struct err_why *why)
{
    uint32_t one = (uint32_t)opts->size_bytes;
    const uint32_t *sizes = one != 0 ? &one : ceiling_sizes;
    uint32_t count = one != 0 ? 1 : sizeof(ceiling_sizes) / sizeof(*ceiling_sizes);
    icms_err err = ICMS_OK;

    if (bench_wants_variant(opts, "disk") || bench_wants_variant(opts, "twins") ||
        bench_wants_variant(opts, "checked"))
        err = ceiling_disk(opts, sizes, count, why);
    if (err == ICMS_OK && bench_wants_variant(opts, "tcp"))
        err = ceiling_tcp(opts, sizes, count, why);
    return err;
}
