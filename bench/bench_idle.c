/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_idle.c: `icms bench idle`: what a pod costs when nobody asks, and how fast it is when
 * somebody does again.
 *
 * icms-target, icms-agent and this client stay connected. Quiet times of two slices alternate with
 * one load of a block that is not in the agent's memory. A row has the processor time of each
 * process in the quiet times, in per cent of a core, and the latency of the loads that ended them
 * beside that of loads one after the other. There is no ceiling: nothing is the least.
 *
 * For each size: a pod with an arena for few values of that size -> stores -> busy loads -> quiet
 * times -> row. Called by bench_run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "bench/bench_int.h"

#define IDLE_SIZES       3
#define IDLE_SIZE_MAX    ((uint32_t)4 << 20)
#define IDLE_ARENA_SLOTS 4 /* values, or the least that an arena may have              */
#define IDLE_ARENA_MIN   ((uint32_t)1 << 20)
#define IDLE_TURNS                                                                                 \
    16 /* arenas' worth of values; the walk meets each once before it                              \
        * begins again, so that nothing is met in the agent's memory */
#define IDLE_DEADLINE_MS 20000
#define IDLE_DRIVE_BYTES ((uint64_t)512 << 20)
#define IDLE_QUIET       2 /* slices                                                  */
#define IDLE_CPU_PERCENT 0.5
#define IDLE_LATER_US    1000
#define IDLE_SAMPLE      65536

enum idle_process {
    IDLE_TARGET,
    IDLE_AGENT,
    IDLE_CLIENT,
    IDLE_PROCESSES,
};

/* The pod and its only client. */
struct idle {
    struct bench_rig rig;         /* the pod                                  */
    uint32_t size;                /* of the values of this row                */
    uint32_t values;              /* on flash                                 */
    uint64_t next_get;            /* of the walk                              */
    uint8_t *memory;              /* of a value                               */
    struct bench_slice busy;      /* loads one after the other                */
    struct bench_slice first;     /* loads after a quiet time                 */
    uint64_t quiet_ns;            /* all quiet times together                 */
    uint64_t cpu[IDLE_PROCESSES]; /* nanoseconds of each process in them      */
};

static icms_err idle_get(struct idle *idle, struct bench_slice *slice)
{
    uint64_t n = bench_walk(idle->next_get++, idle->values);
    struct icms_block block = {
        .key = bench_icms_key(n, idle->size), .data = idle->memory, .bytes = IDLE_SIZE_MAX};
    struct icms_request_options options;
    uint64_t begin;
    icms_err err;

    icms_request_options_init(&options);
    options.deadline_ms = IDLE_DEADLINE_MS;
    begin = loop_env_now_ns(loop_env_uring());
    err = icms_get(idle->rig.volume, &block, 1, &options);
    if (err == ICMS_OK)
        err = block.status;
    if (err == ICMS_OK && (block.source != ICMS_SOURCE_POD || block.bytes != idle->size ||
                           !bench_value_is(idle->memory, idle->size, n, idle->size)))
        err = ICMS_CORRUPT;
    bench_slice_add(slice, err, idle->size, idle->size, loop_env_now_ns(loop_env_uring()) - begin);
    return err;
}

static icms_err idle_fill(struct idle *idle, struct err_why *why)
{
    struct icms_request_options options;
    icms_err err = ICMS_OK;

    icms_request_options_init(&options);
    options.put_ack = ICMS_PUT_ON_FLASH;
    options.deadline_ms = IDLE_DEADLINE_MS;
    bench_value_noise(idle->memory, idle->size);
    for (uint64_t n = 0; n < idle->values && err == ICMS_OK; n++) {
        struct icms_block block = {
            .key = bench_icms_key(n, idle->size), .data = idle->memory, .bytes = idle->size};

        bench_value_stamp(idle->memory, idle->size, n, idle->size);
        err = icms_put(idle->rig.volume, &block, 1, &options);
        if (err == ICMS_OK)
            err = block.status;
    }
    return err == ICMS_OK ? ICMS_OK
                          : err_set(why, err, "a store of %u bytes failed: %s", idle->size,
                                    icms_err_text(err));
}

static void idle_cpu(const struct idle *idle, uint64_t cpu[IDLE_PROCESSES])
{
    cpu[IDLE_TARGET] = bench_pid_cpu_ns(idle->rig.targets[0].pid);
    cpu[IDLE_AGENT] = bench_pid_cpu_ns(idle->rig.agent.pid);
    cpu[IDLE_CLIENT] = bench_pid_cpu_ns(0);
}

/* Sleeps, and counts what the processes did meanwhile. */
static void idle_quiet(struct idle *idle, uint64_t ns)
{
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000)};
    uint64_t before[IDLE_PROCESSES], after[IDLE_PROCESSES];
    uint64_t begin = loop_env_now_ns(loop_env_uring());

    idle_cpu(idle, before);
    (void)nanosleep(&pause, NULL);
    idle_cpu(idle, after);
    idle->quiet_ns += loop_env_now_ns(loop_env_uring()) - begin;
    for (int i = 0; i < IDLE_PROCESSES; i++)
        idle->cpu[i] += after[i] - before[i];
}

static double idle_percent(const struct idle *idle, enum idle_process process)
{
    return 100.0 * (double)idle->cpu[process] / (double)idle->quiet_ns;
}

static void idle_row(const struct bench_opts *opts, struct idle *idle)
{
    double busy_us = (double)bench_sample_quantile(&idle->busy.sample, 0.5) / 1e3;
    struct bench_row row = {.bench = "idle",
                            .op = bench_op_name(BENCH_GET),
                            .variant = "",
                            .size_bytes = idle->size,
                            .depth = 1,
                            .slices = opts->slices};

    row.subject = (struct bench_figures){
        .name = "pod",
        .p50_us = (double)bench_sample_quantile(&idle->first.sample, 0.5) / 1e3,
        .p99_us = (double)bench_sample_quantile(&idle->first.sample, 0.99) / 1e3,
        .p999_us = (double)bench_sample_quantile(&idle->first.sample, 0.999) / 1e3,
        .ops = idle->first.ops,
        .bytes = idle->first.bytes,
        .errors = idle->first.errors + idle->busy.errors,
        .verified = idle->first.verified,
    };
    row.p50_goal_us = busy_us + IDLE_LATER_US;
    bench_row_extra(&row, "busy_p50_us", busy_us);
    bench_row_goal(&row, "target_cpu_percent", idle_percent(idle, IDLE_TARGET), IDLE_CPU_PERCENT);
    bench_row_goal(&row, "agent_cpu_percent", idle_percent(idle, IDLE_AGENT), IDLE_CPU_PERCENT);
    bench_row_goal(&row, "client_cpu_percent", idle_percent(idle, IDLE_CLIENT), IDLE_CPU_PERCENT);
    opts->row(opts->arg, &row);
}

static icms_err idle_measure(const struct bench_opts *opts, struct idle *idle, struct err_why *why)
{
    uint64_t slice_ns = (uint64_t)opts->slice_ms * 1000000, end;
    icms_err err = idle_fill(idle, why);

    if (err != ICMS_OK)
        return err;
    for (uint32_t i = 0; i < idle->values; i++) /* not those that were just stored */
        (void)idle_get(idle, &idle->busy);
    bench_slice_clear(&idle->busy);
    end = loop_env_now_ns(loop_env_uring()) + slice_ns;
    while (loop_env_now_ns(loop_env_uring()) < end)
        (void)idle_get(idle, &idle->busy);
    for (uint32_t i = 0; i < opts->slices; i++) {
        opts->progress(opts->arg, "quiet", (double)i / opts->slices);
        err = bench_go_on(why);
        if (err != ICMS_OK)
            return err;
        idle_quiet(idle, IDLE_QUIET * slice_ns);
        (void)idle_get(idle, &idle->first);
    }
    if (idle->first.errors == idle->first.ops)
        return err_set(why, ICMS_IO, "no load of %u bytes went well", idle->size);
    idle_row(opts, idle);
    return ICMS_OK;
}

/* All rows of one size. */
static icms_err idle_size(const struct bench_opts *opts, struct idle *idle, uint32_t size,
                          struct err_why *why)
{
    uint32_t slots = IDLE_ARENA_MIN / size + 1;
    icms_err err;

    idle->size = idle->rig.size = size;
    idle->rig.arena_slots = slots > IDLE_ARENA_SLOTS ? slots : IDLE_ARENA_SLOTS;
    idle->values = IDLE_TURNS * idle->rig.arena_slots;
    idle->next_get = idle->quiet_ns = 0;
    idle->cpu[IDLE_TARGET] = idle->cpu[IDLE_AGENT] = idle->cpu[IDLE_CLIENT] = 0;
    bench_slice_clear(&idle->busy);
    bench_slice_clear(&idle->first);
    err = bench_rig_up(&idle->rig, why);
    if (err == ICMS_OK)
        err = bench_rig_open(&idle->rig, true, why);
    if (err == ICMS_OK)
        err = idle_measure(opts, idle, why);
    bench_rig_down(&idle->rig);
    return err;
}

static icms_err idle_run(const struct bench_opts *opts, struct idle *idle, const char *dir,
                         struct err_why *why)
{
    static const uint32_t sizes[IDLE_SIZES] = {4096, 128 << 10, 1 << 20};
    char path[BENCH_PATH_BYTES + 8];
    icms_err err;

    (void)snprintf(path, sizeof(path), "%s/drive", dir);
    idle->rig = (struct bench_rig){.dir = dir, .drive = path, .drive_bytes = IDLE_DRIVE_BYTES};
    err = bench_file_make(path, IDLE_DRIVE_BYTES, why);
    if (err == ICMS_OK && opts->size_bytes != 0)
        err = idle_size(opts, idle, (uint32_t)opts->size_bytes, why);
    for (int i = 0; i < IDLE_SIZES && err == ICMS_OK && opts->size_bytes == 0; i++)
        err = idle_size(opts, idle, sizes[i], why);
    return err;
}

icms_err bench_idle_run(const struct bench_opts *opts, struct err_why *why)
{
    struct idle *idle = calloc(1, sizeof(*idle));
    char dir[BENCH_PATH_BYTES];
    icms_err err;

    if (idle == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    idle->memory = malloc(IDLE_SIZE_MAX);
    if (idle->memory == NULL || !bench_slice_init(&idle->busy, IDLE_SAMPLE) ||
        !bench_slice_init(&idle->first, IDLE_SAMPLE))
        err = err_set(why, ICMS_NO_MEMORY, "out of memory");
    else
        err = bench_dir_make(opts, why, dir, sizeof(dir));
    if (err == ICMS_OK) {
        err = idle_run(opts, idle, dir, why);
        bench_dir_remove(dir);
    }
    bench_slice_fini(&idle->busy);
    bench_slice_fini(&idle->first);
    free(idle->memory);
    free(idle);
    return err;
}
