/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/compare.c: two sides in turns, and what their slices say.
 *
 * Called by the benches on the thread of bench_run. One pair of slices gives one ratio; which side
 * goes first alternates, so that a machine that drifts favours neither.
 */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/crc.h"
#include "bench/bench_int.h"

#define SAMPLE_SLICE_MAX 65536
#define SAMPLE_ALL_MAX   (1 << 20)
#define PAIRS_MAX        1000

/* One side's slices so far. */
struct tally {
    struct bench_figures *figures; /* of the row                */
    struct bench_sample all;       /* latencies of all slices   */
    struct bench_slice slice;      /* the one under way         */
    double gb_per_s[PAIRS_MAX];    /* of each slice             */
    uint64_t cpu_ns;               /* of all slices             */
};

/* ---- samples --------------------------------------------------------------------------------- */

static uint64_t sample_random(struct bench_sample *sample)
{
    sample->state ^= sample->state << 13;
    sample->state ^= sample->state >> 7;
    sample->state ^= sample->state << 17;
    return sample->state;
}

static void sample_add(struct bench_sample *sample, uint64_t ns)
{
    uint32_t kept = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
    uint64_t place = sample->seen++;

    if (sample->max == 0)
        return;
    if (place >= sample->max)
        place = sample_random(sample) % sample->seen;
    if (place >= sample->max)
        return;
    sample->ns[place] = kept;
    if (place == sample->count)
        sample->count++;
}

static bool sample_init(struct bench_sample *sample, uint32_t max)
{
    *sample = (struct bench_sample){.max = max, .state = 0x9e3779b97f4a7c15};
    sample->ns = malloc((size_t)max * sizeof(*sample->ns));
    return sample->ns != NULL;
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

uint64_t bench_sample_quantile(struct bench_sample *sample, double q)
{
    uint32_t place;

    if (sample->count == 0)
        return 0;
    qsort(sample->ns, sample->count, sizeof(*sample->ns), compare_u32);
    place = (uint32_t)(q * sample->count);
    return sample->ns[place < sample->count ? place : sample->count - 1];
}

/* ---- slices ---------------------------------------------------------------------------------- */

bool bench_slice_init(struct bench_slice *slice, uint32_t sample_max)
{
    *slice = (struct bench_slice){0};
    return sample_init(&slice->sample, sample_max);
}

void bench_slice_fini(struct bench_slice *slice)
{
    free(slice->sample.ns);
    slice->sample.ns = NULL;
}

void bench_slice_clear(struct bench_slice *slice)
{
    struct bench_sample sample = slice->sample;

    sample.count = 0;
    sample.seen = 0;
    *slice = (struct bench_slice){.sample = sample};
}

void bench_slice_add(struct bench_slice *slice, icms_err err, uint64_t bytes, uint64_t verified,
                     uint64_t latency_ns)
{
    slice->ops++;
    if (err != ICMS_OK) {
        slice->errors++;
        slice->error = err;
        return;
    }
    slice->bytes += bytes;
    slice->verified += verified;
    sample_add(&slice->sample, latency_ns);
}

void bench_slice_merge(struct bench_slice *slice, const struct bench_slice *other)
{
    slice->ops += other->ops;
    slice->bytes += other->bytes;
    slice->verified += other->verified;
    slice->errors += other->errors;
    slice->error = other->errors > 0 ? other->error : slice->error;
    slice->from_memory += other->from_memory;
    for (uint32_t i = 0; i < other->sample.count; i++)
        sample_add(&slice->sample, other->sample.ns[i]);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    if (clock_gettime(clock, &t) != 0)
        return 0;
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t time_ns(const struct timeval *t)
{
    return (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_usec * 1000;
}

uint64_t bench_pid_cpu_ns(pid_t pid)
{
    clockid_t clock;

    return clock_getcpuclockid(pid, &clock) == 0 ? clock_ns(clock) : 0;
}

uint64_t bench_pid_resident(pid_t pid)
{
    unsigned long long all = 0, resident = 0;
    char path[64];
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%llu %llu", &all, &resident) != 2)
        resident = 0;
    (void)fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t bench_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* Processor time of this process, of children that ended, and of the side's others so far. */
static uint64_t bench_cpu_ns(const struct bench_side *side)
{
    uint64_t ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    struct rusage gone;

    if (getrusage(RUSAGE_CHILDREN, &gone) == 0)
        ns += time_ns(&gone.ru_utime) + time_ns(&gone.ru_stime);

    for (uint32_t i = 0; i < side->pids; i++)
        ns += bench_pid_cpu_ns(side->pid[i]);
    return ns;
}

static icms_err slice_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                          struct bench_slice *slice, struct err_why *why)
{
    uint64_t cpu = bench_cpu_ns(side);
    icms_err err;

    bench_slice_clear(slice);
    err = side->run(side, work, ns, slice, why);
    slice->cpu_ns = bench_cpu_ns(side) - cpu;
    if (err == ICMS_OK && slice->ops == 0 && slice->from_memory > 0)
        return err_set(why, ICMS_INVALID,
                       "%s: cannot measure loads of %u bytes: all of them came from memory; give "
                       "more --space",
                       side->name, work->size_bytes);
    if (err == ICMS_OK && slice->ops == slice->errors)
        err = err_set(why, ICMS_IO, "%s: none of %llu operations of %u bytes went well", side->name,
                      (unsigned long long)slice->ops, work->size_bytes);
    return err;
}

/* ---- medians --------------------------------------------------------------------------------- */

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* How many of the least (and of the greatest) values lie outside the 95 % interval of the median:
 * the largest k with P(X <= k - 1) <= 2.5 %, X binomial with n tries of one half. */
static uint32_t median_outside(uint32_t n)
{
    double p = 1, sum = 0;
    uint32_t k;

    for (uint32_t i = 0; i < n; i++)
        p /= 2;
    for (k = 0; k < n / 2; k++) {
        sum += p;
        if (sum > 0.025)
            break;
        p = p * (n - k) / (k + 1);
    }
    return k;
}

double bench_median(double *values, uint32_t n, double *out_low, double *out_high)
{
    uint32_t outside = median_outside(n);

    check(n > 0);
    qsort(values, n, sizeof(*values), compare_double);
    *out_low = values[outside > 0 ? outside - 1 : 0];
    *out_high = values[outside > 0 ? n - outside : n - 1];
    return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool tally_init(struct tally *tally, struct bench_figures *figures, const char *name)
{
    tally->figures = figures;
    *figures = (struct bench_figures){.name = name};
    return sample_init(&tally->all, SAMPLE_ALL_MAX) &&
           bench_slice_init(&tally->slice, SAMPLE_SLICE_MAX);
}

static void tally_fini(struct tally *tally)
{
    free(tally->all.ns);
    bench_slice_fini(&tally->slice);
}

static void tally_add(struct tally *tally, uint32_t pair)
{
    const struct bench_slice *slice = &tally->slice;
    struct bench_figures *figures = tally->figures;

    tally->gb_per_s[pair] = slice->wall_ns > 0 ? (double)slice->bytes / (double)slice->wall_ns : 0;
    tally->cpu_ns += slice->cpu_ns;
    figures->ops += slice->ops;
    figures->bytes += slice->bytes;
    figures->errors += slice->errors;
    if (slice->errors > 0)
        figures->error = slice->error;
    figures->from_memory += slice->from_memory;
    figures->verified += slice->verified;
    for (uint32_t i = 0; i < slice->sample.count; i++)
        sample_add(&tally->all, slice->sample.ns[i]);
}

static void tally_end(struct tally *tally, uint32_t pairs)
{
    struct bench_figures *figures = tally->figures;
    double low, high;

    figures->gb_per_s = bench_median(tally->gb_per_s, pairs, &low, &high);
    figures->cpu_s_per_gb = figures->bytes > 0 ? (double)tally->cpu_ns / (double)figures->bytes : 0;
    figures->cpu_us_per_op =
        figures->ops > 0 ? (double)tally->cpu_ns / (double)figures->ops / 1e3 : 0;
    figures->p50_us = (double)bench_sample_quantile(&tally->all, 0.5) / 1e3;
    figures->p99_us = (double)bench_sample_quantile(&tally->all, 0.99) / 1e3;
    figures->p999_us = (double)bench_sample_quantile(&tally->all, 0.999) / 1e3;
}

/* The next number from to on at which a walk meets nothing that may be in memory still. */
static uint64_t trail_clear(const struct bench_trail *trail, uint64_t to)
{
    while (trail->count > 2 * trail->kept &&
           (to - trail->next) % trail->count > trail->count - trail->kept)
        to += trail->kept;
    return to;
}

/* Both go on where the one is that came further: no part of a drive was read a shorter time ago on
 * one side than on the other. */
static void trails_meet(struct bench_side *side[2])
{
    struct bench_trail *a, *b;
    uint64_t to;

    if (side[0] == NULL || side[0]->trail == NULL || side[1]->trail == NULL)
        return;
    a = side[0]->trail;
    b = side[1]->trail;
    to = a->next > b->next ? a->next : b->next;
    to = trail_clear(a, trail_clear(b, to));
    a->next = b->next = to;
}

/* One slice of each side that does not count, then pairs of them. */
static icms_err compare_run(const struct bench_opts *opts, const struct bench_work *work,
                            struct bench_side *side[2], struct tally *tally[2], double *ratio,
                            struct err_why *why)
{
    uint64_t ns = (uint64_t)opts->slice_ms * 1000000;

    for (uint32_t turn = 0; turn < (opts->slices + 1) * 2; turn++) {
        uint32_t pair = turn / 2;
        uint32_t which = (turn + pair) % 2;
        icms_err err;

        if (turn % 2 == 0 && work->op == BENCH_GET)
            trails_meet(side);
        if (side[which] == NULL)
            continue;
        err = bench_go_on(why);
        if (err != ICMS_OK)
            return err;
        err = slice_run(side[which], work, pair == 0 ? ns / 4 : ns, &tally[which]->slice, why);
        if (err != ICMS_OK)
            return err;
        if (pair == 0)
            continue;
        tally_add(tally[which], pair - 1);
        if (turn % 2 != 0 && side[0] != NULL)
            ratio[pair - 1] = tally[1]->gb_per_s[pair - 1] / tally[0]->gb_per_s[pair - 1];
    }
    return ICMS_OK;
}

icms_err bench_compare(const struct bench_opts *opts, const struct bench_work *work,
                       struct bench_side *ceiling, struct bench_side *subject,
                       struct bench_row *row, struct err_why *why)
{
    struct tally *tally = calloc(2, sizeof(*tally));
    struct tally *tallies[2] = {&tally[0], &tally[1]};
    struct bench_side *sides[2] = {ceiling, subject};
    double ratio[PAIRS_MAX];
    icms_err err;

    check(opts->slices > 0 && opts->slices <= PAIRS_MAX);
    if (tally == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    row->op = bench_op_name(work->op);
    row->size_bytes = work->size_bytes;
    row->depth = work->depth;
    row->ops_per_s = work->ops_per_s;
    row->slices = opts->slices;
    if (!tally_init(tallies[0], &row->ceiling, ceiling != NULL ? ceiling->name : NULL) ||
        !tally_init(tallies[1], &row->subject, subject->name))
        err = err_set(why, ICMS_NO_MEMORY, "out of memory");
    else
        err = compare_run(opts, work, sides, tallies, ratio, why);
    if (err == ICMS_OK) {
        tally_end(tallies[1], opts->slices);
        if (ceiling != NULL) {
            row->ratio = bench_median(ratio, opts->slices, &row->ratio_low, &row->ratio_high);
            tally_end(tallies[0], opts->slices);
        }
    }
    tally_fini(tallies[0]);
    tally_fini(tallies[1]);
    free(tally);
    return err;
}

void bench_row_goal(struct bench_row *row, const char *name, double value, double at_most)
{
    check(row->extra_count < BENCH_EXTRA_MAX);
    row->extra[row->extra_count++] =
        (struct bench_extra){.name = name, .value = value, .at_most = at_most};
}

void bench_row_extra(struct bench_row *row, const char *name, double value)
{
    bench_row_goal(row, name, value, 0);
}

/* ---- the checksum ---------------------------------------------------------------------------- */

#define CRC_MEMORY ((size_t)256 << 20)

double bench_crc_s_per_gb(uint32_t size_bytes)
{
    uint8_t *memory = mmap(NULL, CRC_MEMORY, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    double seconds[5], low, high;

    if (memory == MAP_FAILED)
        return 0;
    memset(memory, 0x5a, CRC_MEMORY);
    for (uint32_t round = 0; round < 5; round++) {
        uint64_t begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        volatile uint32_t crc = 0;

        for (size_t at = 0; at + size_bytes <= CRC_MEMORY; at += size_bytes)
            crc = crc ^ crc32c(memory + at, size_bytes);
        seconds[round] = (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin) / (double)CRC_MEMORY;
    }
    (void)munmap(memory, CRC_MEMORY);
    return bench_median(seconds, 5, &low, &high);
}

/* ---- what is wanted, and where --------------------------------------------------------------- */

uint32_t bench_sizes(const struct bench_opts *opts, uint32_t sizes[BENCH_SIZES_MAX])
{
    static const uint32_t all[BENCH_SIZES_MAX] = {128 << 10, 256 << 10, 1 << 20, 4 << 20};

    if (opts->size_bytes != 0) {
        sizes[0] = (uint32_t)opts->size_bytes;
        return 1;
    }
    memcpy(sizes, all, sizeof(all));
    return BENCH_SIZES_MAX;
}

uint32_t bench_depths(const struct bench_opts *opts, uint32_t depths[2])
{
    depths[0] = opts->depth != 0 ? opts->depth : 1;
    depths[1] = 16;
    return opts->depth != 0 ? 1 : 2;
}

bool bench_wants_op(const struct bench_opts *opts, enum bench_op op)
{
    return opts->op == NULL || strcmp(opts->op, bench_op_name(op)) == 0;
}

bool bench_wants_variant(const struct bench_opts *opts, const char *variant)
{
    return opts->variant == NULL || strcmp(opts->variant, variant) == 0;
}

uint64_t bench_segment_bytes(uint64_t drive_bytes)
{
    uint64_t mib = drive_bytes >> 20;

    return (uint64_t)(mib >= 1024 ? 64 : mib >= 256 ? 16 : 8) << 20;
}

/* From the root on: configurations of daemons want it so. */
static icms_err dir_whole_path(char *path, size_t bytes, struct err_why *why)
{
    char *whole = realpath(path, NULL);
    icms_err err = ICMS_OK;

    if (whole == NULL || strlen(whole) >= bytes) {
        err = err_set(why, whole == NULL ? err_from_errno(errno) : ICMS_INVALID,
                      "%s: cannot tell its whole path", path);
        (void)rmdir(path);
    } else {
        (void)snprintf(path, bytes, "%s", whole);
    }
    free(whole);
    return err;
}

icms_err bench_dir_make(const struct bench_opts *opts, struct err_why *why, char *out, size_t bytes)
{
    if ((size_t)snprintf(out, bytes, "%s/icms-bench-XXXXXX", opts->dir) >= bytes)
        return err_set(why, ICMS_INVALID, "%s: the path is too long", opts->dir);
    if (mkdtemp(out) == NULL) {
        icms_err err = err_from_errno(errno);

        return err_set(why, err, "%s: cannot make a directory in it: %s; name another with --dir",
                       opts->dir, icms_err_text(err));
    }
    return dir_whole_path(out, bytes, why);
}

static int dir_remove_one(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info;
    (void)kind;
    (void)ftw;
    return remove(path) != 0 && errno != ENOENT ? -1 : 0;
}

void bench_dir_remove(const char *path)
{
    (void)nftw(path, dir_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
