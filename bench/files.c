/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/files.c: the drive files of a bench that stands beside the raw disk: as many for icms as
 * for the raw disk, made alike and filled in turns, so that their extents are of one age.
 *
 * bench_files_make -> for each size: bench_files_fill, rows -> bench_files_free. Called by benches
 * on the thread of bench_run.
 */
#include <stdio.h>

#include "bench/bench_int.h"

/* Values that one side writes before the other does. */
#define FILES_FILL_PART 32

void bench_files_path(const struct bench_files *files, uint32_t i, char *out, size_t bytes)
{
    (void)snprintf(out, bytes, "%s/drive-%u", files->dir, i);
}

icms_err bench_files_make(const struct bench_opts *opts, uint32_t count, struct err_why *why,
                          struct bench_files *files)
{
    char path[BENCH_PATH_BYTES + 32];
    icms_err err;

    *files = (struct bench_files){.bytes = opts->space_bytes / (2 * count) >> 26 << 26};
    err = bench_dir_make(opts, why, files->dir, sizeof(files->dir));
    if (err != ICMS_OK)
        return err;
    opts->progress(opts->arg, "making drives", 0);
    err = bench_disk_new(files->dir, count, files->bytes, why, &files->disk);
    for (uint32_t i = 0; i < count && err == ICMS_OK; i++) {
        bench_files_path(files, i, path, sizeof(path));
        err = bench_file_make(path, files->bytes, why);
    }
    if (err != ICMS_OK)
        bench_files_free(files);
    return err;
}

void bench_files_free(struct bench_files *files)
{
    bench_disk_free(&files->disk);
    bench_dir_remove(files->dir);
}

icms_err bench_files_fill(const struct bench_opts *opts, struct bench_files *files, uint32_t size,
                          uint64_t count, bench_files_put *put, void *owner, struct err_why *why)
{
    icms_err err = ICMS_OK;

    for (uint64_t n = 0; err == ICMS_OK && n < count; n += FILES_FILL_PART) {
        uint64_t part = n + FILES_FILL_PART <= count ? FILES_FILL_PART : count - n;

        opts->progress(opts->arg, "filling all drives", (double)n / (double)count);
        err = bench_go_on(why);
        if (err == ICMS_OK)
            err = bench_disk_fill(files->disk, size, n, part, why);
        if (err == ICMS_OK)
            err = put(owner, part, why);
    }
    return err;
}
