/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_cores.c: `icms bench cores`: what more reactors give, and what keeps them from giving
 * more.
 *
 * Two pods at a time, each an icms-agent and an icms-target with as many drives as there are
 * reactors: one daemon of the first has one reactor, one of the second has N. N engines (engine.c),
 * each a thread with a handle of its own, use both in turns, so a ratio is what N reactors move
 * beside one, with the same work. Variant memory: loads of blocks that the agent's memory has.
 * Variant pod: loads and stores that go to the drives.
 *
 * Beside each row stands the machine's own limit, measured before with N threads or N files: copies
 * in memory, raw disks; and how many cores clients, agent and target kept busy. A row far from N
 * whose cores are all busy is limited by the machine; one with idle cores by us, or by the drives.
 *
 * Called by bench_run. cores_side_up twice -> rows -> cores_side_down twice.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "bench/bench_int.h"

#define CORES_DEPTH        16                    /* of each engine, where none is told      */
#define CORES_MEMORY_BYTES ((uint64_t)512 << 20) /* of values that all engines share        */
#define CORES_DRIVES_BYTES ((uint64_t)8 << 30)   /* of all drives of a pod, at most         */
#define CORES_DISKS_MAX    8                     /* files that raw disks have at a time     */
#define CORES_GOAL         0.8                   /* of linear                               */

enum cores_part { CORES_CLIENT, CORES_AGENT, CORES_TARGET, CORES_PARTS };

struct cores_side;

/* One engine and its thread. */
struct cores_engine {
    struct cores_side *side;       /* whose                                         */
    struct bench_engine engine;    /* it                                            */
    struct bench_slice slice;      /* of its own                                    */
    const struct bench_work *work; /* of the slice under way                        */
    uint64_t end_ns, count;        /* as bench_engine_work takes them               */
    pthread_t thread;              /* while a slice is under way                    */
    struct icms *icms;             /* handles of the others than the first, whose   */
    struct icms_volume *volume;    /*   are the rig's                               */
};

/* A pod and the engines that use it. */
struct cores_side {
    struct bench_side side;           /* what bench_compare runs               */
    struct bench_rig rig;             /* the pod                               */
    char dir[BENCH_PATH_BYTES];       /* of its own; empty: not made           */
    char drive[BENCH_PATH_BYTES + 8]; /* its first drive                       */
    struct cores_engine *engines;     /* count of them                         */
    uint32_t count;                   /* of engines                            */
    uint64_t busy_ns[CORES_PARTS];    /* processor time in slices              */
    uint64_t wall_ns;                 /* of those slices                       */
};

/* What is compared. */
struct cores {
    struct cores_side side[2]; /* one reactor, many       */
    uint32_t reactors;         /* of the second           */
    uint32_t size;             /* of values               */
    uint32_t depth;            /* of each engine          */
    bool dram;                 /* variant memory          */
};

/* ---- slices ---------------------------------------------------------------------------------- */

static void *cores_thread(void *arg)
{
    struct cores_engine *one = arg;

    bench_engine_work(&one->engine, one->work, one->end_ns, one->count, &one->slice);
    return NULL;
}

/* All engines at once, each until end_ns or count operations. */
static void cores_work(struct cores_side *side, const struct bench_work *work, uint64_t end_ns,
                       uint64_t count, struct bench_slice *slice)
{
    for (uint32_t i = 0; i < side->count; i++) {
        struct cores_engine *one = &side->engines[i];

        bench_slice_clear(&one->slice);
        one->work = work;
        one->end_ns = end_ns;
        one->count = count;
        check(pthread_create(&one->thread, NULL, cores_thread, one) == 0);
    }
    for (uint32_t i = 0; i < side->count; i++) {
        check(pthread_join(side->engines[i].thread, NULL) == 0);
        bench_slice_merge(slice, &side->engines[i].slice);
    }
}

/* Processor time of the parts so far. */
static void cores_busy(const struct cores_side *side, uint64_t out[CORES_PARTS])
{
    out[CORES_CLIENT] = bench_pid_cpu_ns(0);
    out[CORES_AGENT] = bench_pid_cpu_ns(side->rig.agent.pid);
    out[CORES_TARGET] = bench_pid_cpu_ns(side->rig.targets[0].pid);
}

static icms_err cores_slice(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                            struct bench_slice *slice, struct err_why *why)
{
    struct cores_side *side = base->owner;
    uint64_t before[CORES_PARTS], after[CORES_PARTS], begin = bench_now_ns();

    (void)why;
    cores_busy(side, before);
    cores_work(side, work, begin + ns, UINT64_MAX, slice);
    cores_busy(side, after);
    slice->wall_ns = bench_now_ns() - begin;
    side->wall_ns += slice->wall_ns;
    for (int i = 0; i < CORES_PARTS; i++)
        side->busy_ns[i] += after[i] - before[i];
    return ICMS_OK;
}

/* ---- limits of the machine ------------------------------------------------------------------- */

/* A thread that copies. */
struct cores_copy {
    uint8_t *from, *to; /* bytes each          */
    uint64_t bytes;     /* of each             */
    uint64_t end_ns;    /* when to end         */
    uint64_t copied;    /* bytes               */
    uint32_t size;      /* of one copy         */
    pthread_t thread;   /* it                  */
};

static void *copy_thread(void *arg)
{
    struct cores_copy *copy = arg;

    for (uint64_t at = 0; bench_now_ns() < copy->end_ns; at += copy->size) {
        memcpy(copy->to + at % copy->bytes, copy->from + at % copy->bytes, copy->size);
        copy->copied += copy->size;
    }
    return NULL;
}

/* GB/s that so many threads copy, from and to memory that no cache holds. */
static icms_err cores_copies(const struct bench_opts *opts, const struct cores *cores,
                             struct err_why *why, double *out_gb_per_s)
{
    uint64_t bytes = CORES_MEMORY_BYTES / cores->reactors / cores->size * cores->size, copied = 0;
    size_t all = (size_t)cores->reactors * 2 * bytes;
    struct cores_copy copy[LIMIT_LOOPS];
    uint8_t *memory =
        mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    uint64_t begin;

    if (memory == MAP_FAILED)
        return err_set(why, ICMS_NO_MEMORY, "no memory to copy in");
    memset(memory, 0x5a, all);
    begin = bench_now_ns();
    for (uint32_t i = 0; i < cores->reactors; i++) {
        copy[i] = (struct cores_copy){.from = memory + 2 * i * bytes,
                                      .to = memory + (2 * i + 1) * bytes,
                                      .bytes = bytes,
                                      .size = cores->size,
                                      .end_ns = begin + (uint64_t)opts->slice_ms * 1000000};
        check(pthread_create(&copy[i].thread, NULL, copy_thread, &copy[i]) == 0);
    }
    for (uint32_t i = 0; i < cores->reactors; i++) {
        check(pthread_join(copy[i].thread, NULL) == 0);
        copied += copy[i].copied;
    }
    *out_gb_per_s = (double)copied / (double)(bench_now_ns() - begin);
    (void)munmap(memory, all);
    return ICMS_OK;
}

/* GB/s of raw disks with as many files as drives, as many operations in flight as the engines
 * have. */
static icms_err cores_disks(const struct bench_opts *opts, const struct cores *cores,
                            enum bench_op op, struct err_why *why, double *out_gb_per_s)
{
    uint32_t files = cores->reactors < CORES_DISKS_MAX ? cores->reactors : CORES_DISKS_MAX;
    struct bench_work work = {.op = op,
                              .size_bytes = cores->size,
                              .depth = (uint32_t)u64_min((uint64_t)cores->depth * files, 64)};
    struct bench_row row = {.bench = "cores", .variant = ""};
    struct bench_disk *disk = NULL;
    struct bench_side raw = {.name = "raw disk", .run = bench_disk_run};
    struct bench_opts less = *opts;
    char dir[BENCH_PATH_BYTES];
    icms_err err = bench_dir_make(opts, why, dir, sizeof(dir));

    if (err != ICMS_OK)
        return err;
    less.slices = (opts->slices + 1) / 2;
    err = bench_disk_new(dir, files, cores->side[0].rig.drive_bytes, why, &disk);
    if (err == ICMS_OK)
        err = bench_disk_fill(disk, cores->size, 0, bench_disk_extents(disk, cores->size), why);
    if (err == ICMS_OK) {
        raw.owner = disk;
        raw.trail = bench_disk_trail(disk);
        err = bench_compare(&less, &work, NULL, &raw, &row, why);
    }
    *out_gb_per_s = row.subject.gb_per_s;
    bench_disk_free(&disk);
    bench_dir_remove(dir);
    return err;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Values of one engine. */
static uint64_t cores_values(const struct cores *cores, const struct cores_side *side)
{
    uint64_t bytes =
        cores->dram ? CORES_MEMORY_BYTES / 2 : side->rig.drive_bytes * cores->reactors / 2;

    return bytes / cores->size / side->count;
}

static icms_err cores_fill(const struct cores *cores, struct cores_side *side, struct err_why *why)
{
    const struct bench_work put = {
        .op = BENCH_PUT, .size_bytes = cores->size, .depth = CORES_DEPTH};
    struct bench_slice slice = {0};

    cores_work(side, &put, UINT64_MAX, cores_values(cores, side), &slice);
    if (slice.errors > 0)
        return err_set(why, ICMS_IO, "%llu of %llu stores of %u bytes failed: %s",
                       (unsigned long long)slice.errors, (unsigned long long)slice.ops, cores->size,
                       icms_err_text(slice.error));
    return ICMS_OK;
}

/* Blocks of the variant pod that were just stored leave the agent's memory: as many others are
 * loaded. */
static void cores_warm(const struct cores *cores, struct cores_side *side)
{
    const struct bench_work get = {
        .op = BENCH_GET, .size_bytes = cores->size, .depth = CORES_DEPTH};
    struct bench_slice slice = {0};
    uint64_t values = cores_values(cores, side);

    cores_work(side, &get, UINT64_MAX,
               cores->dram || values < 2 * BENCH_ENGINE_SLOTS ? values : 2 * BENCH_ENGINE_SLOTS,
               &slice);
}

static icms_err cores_engines(const struct cores *cores, struct cores_side *side,
                              struct err_why *why)
{
    icms_err err = ICMS_OK;

    side->engines = calloc(cores->reactors, sizeof(*side->engines));
    if (side->engines == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    side->count = cores->reactors;
    for (uint32_t i = 0; i < side->count && err == ICMS_OK; i++) {
        struct cores_engine *one = &side->engines[i];

        one->side = side;
        if (!bench_slice_init(&one->slice, 65536))
            err = err_set(why, ICMS_NO_MEMORY, "out of memory");
        if (err == ICMS_OK)
            err = bench_engine_init(&one->engine, cores->size, why);
        if (err == ICMS_OK && i > 0)
            err = bench_rig_client(&side->rig, &one->icms, &one->volume, why);
        one->engine.icms = i > 0 ? one->icms : side->rig.icms;
        one->engine.volume = i > 0 ? one->volume : side->rig.volume;
        one->engine.first = (uint64_t)i << 32;
        one->engine.trail = (struct bench_trail){.count = cores_values(cores, side)};
        one->engine.from_dram = cores->dram;
    }
    return err;
}

static void cores_side_down(struct cores_side *side)
{
    for (uint32_t i = 0; i < side->count; i++) {
        icms_volume_close(&side->engines[i].volume);
        icms_close(&side->engines[i].icms);
        bench_engine_fini(&side->engines[i].engine);
        bench_slice_fini(&side->engines[i].slice);
    }
    if (side->rig.dir != NULL)
        bench_rig_down(&side->rig);
    free(side->engines);
    if (side->dir[0] != 0)
        bench_dir_remove(side->dir);
}

static icms_err cores_side_up(const struct bench_opts *opts, struct cores *cores,
                              struct cores_side *side, uint32_t reactors, struct err_why *why)
{
    uint64_t room = opts->space_bytes / 3;
    icms_err err = bench_dir_make(opts, why, side->dir, sizeof(side->dir));

    if (err != ICMS_OK) {
        side->dir[0] = 0;
        return err;
    }
    (void)snprintf(side->drive, sizeof(side->drive), "%s/drive", side->dir);
    room = (room < CORES_DRIVES_BYTES ? room : CORES_DRIVES_BYTES) / cores->reactors;
    side->rig = (struct bench_rig){
        .dir = side->dir,
        .drive = side->drive,
        .drive_bytes = room & ~(((uint64_t)1 << 20) - 1),
        .size = cores->size,
        .arena_slots = cores->dram ? (uint32_t)(CORES_MEMORY_BYTES / cores->size)
                                   : BENCH_ENGINE_SLOTS * cores->reactors,
        .drives = cores->reactors,
        .loops = reactors,
    };
    side->side = (struct bench_side){
        .name = reactors == 1 ? "one reactor" : "reactors", .run = cores_slice, .owner = side};
    err = bench_rig_up(&side->rig, why);
    if (err == ICMS_OK)
        err = bench_rig_open(&side->rig, true, why);
    if (err == ICMS_OK)
        err = cores_engines(cores, side, why);
    if (err == ICMS_OK)
        err = cores_fill(cores, side, why);
    if (err == ICMS_OK)
        cores_warm(cores, side);
    bench_rig_pids(&side->rig, &side->side);
    return err;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static icms_err cores_row(const struct bench_opts *opts, struct cores *cores, enum bench_op op,
                          struct err_why *why)
{
    static const char *const names[CORES_PARTS] = {"client_cores", "agent_cores", "target_cores"};
    struct bench_work work = {.op = op, .size_bytes = cores->size, .depth = cores->depth};
    struct bench_row row = {.bench = "cores", .variant = cores->dram ? "memory" : "pod"};
    struct cores_side *many = &cores->side[1];
    double limit = 0;
    icms_err err = cores->dram ? cores_copies(opts, cores, why, &limit)
                               : cores_disks(opts, cores, op, why, &limit);

    memset(many->busy_ns, 0, sizeof(many->busy_ns));
    many->wall_ns = 0;
    if (err == ICMS_OK)
        err = bench_compare(opts, &work, &cores->side[0].side, &many->side, &row, why);
    if (err != ICMS_OK)
        return err;
    row.ratio_goal = cores->reactors > 1 ? CORES_GOAL * cores->reactors : 0;
    bench_row_extra(&row, "reactors", cores->reactors);
    bench_row_extra(&row, "cores", (double)sysconf(_SC_NPROCESSORS_ONLN));
    bench_row_extra(&row, cores->dram ? "memcpy_gb_per_s" : "disk_gb_per_s", limit);
    for (int i = 0; i < CORES_PARTS; i++)
        bench_row_extra(&row, names[i], (double)many->busy_ns[i] / (double)many->wall_ns);
    opts->row(opts->arg, &row);
    return ICMS_OK;
}

static icms_err cores_rows(const struct bench_opts *opts, uint32_t reactors, uint32_t size,
                           bool dram, struct err_why *why)
{
    struct cores *cores = calloc(1, sizeof(*cores));
    icms_err err = ICMS_OK;

    if (cores == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    *cores = (struct cores){.reactors = reactors,
                            .size = size,
                            .dram = dram,
                            .depth = opts->depth != 0 ? opts->depth : CORES_DEPTH};
    opts->progress(opts->arg, "two pods", 0);
    for (int i = 0; i < 2 && err == ICMS_OK; i++)
        err = cores_side_up(opts, cores, &cores->side[i], i == 0 ? 1 : reactors, why);
    for (int op = BENCH_GET; op <= BENCH_PUT && err == ICMS_OK; op++) {
        if ((dram && op == BENCH_PUT) || !bench_wants_op(opts, (enum bench_op)op))
            continue;
        opts->progress(opts->arg, op == BENCH_GET ? "loads" : "stores", 0.5);
        err = cores_row(opts, cores, (enum bench_op)op, why);
    }
    for (int i = 0; i < 2; i++)
        cores_side_down(&cores->side[i]);
    free(cores);
    return err;
}

icms_err bench_cores_run(const struct bench_opts *opts, struct err_why *why)
{
    static const uint32_t steps[] = {1, 2, 4, 8};
    uint32_t size = opts->size_bytes != 0 ? (uint32_t)opts->size_bytes : (uint32_t)1 << 20;
    icms_err err = ICMS_OK;

    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps) && err == ICMS_OK; i++) {
        uint32_t reactors = opts->reactors != 0 ? opts->reactors : steps[i];

        if (opts->reactors != 0 && i > 0)
            break;
        if (bench_wants_variant(opts, "memory") &&
            (opts->op == NULL || strcmp(opts->op, "get") == 0))
            err = cores_rows(opts, reactors, size, true, why);
        if (err == ICMS_OK && bench_wants_variant(opts, "pod"))
            err = cores_rows(opts, reactors, size, false, why);
    }
    return err;
}
