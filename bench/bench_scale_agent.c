/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_scale_agent.c: the rows enclosures-1 to enclosures-36 of `icms bench scale`: what an
 * agent pays for each enclosure of a large pod.
 *
 * A real icms-agent with a map of 1, 9 and 36 enclosures, each an icms-target of this machine with
 * a small drive, and one client. Small values lie on all of them; loads meet each in turn and none
 * in the agent's memory. A row has the agent's resident memory for a connection, over what it has
 * with one enclosure; its processor time when nobody asks; and that for a load, which may not grow
 * with the pod. All enclosures run on this machine and push each other and the agent out of its
 * caches, which the time has in it; so the agent's instructions for a load, user and kernel, stand
 * beside the time where they can be counted. Nothing stands beside the row.
 *
 * For each number of enclosures: bench_rig_up -> bench_rig_open -> fill -> agent opened anew ->
 * quiet -> loads -> row -> bench_rig_down. Called by bench_scale_run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "bench/bench_int.h"

#define SCALE_QUEUES      4 /* connections of an agent to an enclosure */
#define SCALE_SIZE        4096
#define SCALE_VALUES      1024 /* more than the agent keeps */
#define SCALE_ARENA_SLOTS 256
#define SCALE_DRIVE_BYTES ((uint64_t)64 << 20)
#define SCALE_QUIET       5 /* slices */
#define SCALE_DEADLINE_MS 20000

/* Goals: a connection's memory, an agent at rest with all enclosures, and how much more a load may
 * take than with one. */
#define SCALE_CONNECTION_BYTES 65536
#define SCALE_IDLE_PERCENT     2
#define SCALE_FLAT             1.3

/* The pod and what is loaded from it. */
struct scale_pod {
    struct bench_side side;             /* what bench_compare runs             */
    struct bench_rig rig;               /* the pod                             */
    uint32_t size;                      /* of values                           */
    uint64_t next;                      /* of the walk                         */
    uint64_t cpu_ns, ops;               /* of the agent, in all slices         */
    uint64_t instructions;              /* the same; 0: cannot be counted      */
    uint64_t few_bytes;                 /* its memory in the first row         */
    double few_cpu_us;                  /* its time for a load in the first row */
    double few_instructions;            /* and its instructions               */
    struct bench_instructions counters; /* of the agent            */
    uint8_t *memory;                    /* of a value                          */
};

static icms_err pod_fill(const struct scale_pod *pod, struct err_why *why)
{
    struct icms_request_options options;
    icms_err err = ICMS_OK;

    icms_request_options_init(&options);
    options.put_ack = ICMS_PUT_ON_FLASH;
    options.deadline_ms = SCALE_DEADLINE_MS;
    bench_value_noise(pod->memory, pod->size);
    for (uint64_t n = 0; n < SCALE_VALUES && err == ICMS_OK; n++) {
        struct icms_block block = {
            .key = bench_icms_key(n, pod->size), .data = pod->memory, .bytes = pod->size};

        bench_value_stamp(pod->memory, pod->size, n, pod->size);
        err = icms_put(pod->rig.volume, &block, 1, &options);
    }
    return err == ICMS_OK
               ? ICMS_OK
               : err_set(why, err, "storing %d values: %s", SCALE_VALUES, icms_err_text(err));
}

static void pod_get(struct scale_pod *pod, struct bench_slice *slice)
{
    uint64_t n = bench_walk(pod->next++, SCALE_VALUES), begin;
    struct icms_block block = {
        .key = bench_icms_key(n, pod->size), .data = pod->memory, .bytes = pod->size};
    struct icms_request_options options;
    icms_err err;

    icms_request_options_init(&options);
    options.deadline_ms = SCALE_DEADLINE_MS;
    begin = bench_now_ns();
    err = icms_get(pod->rig.volume, &block, 1, &options);
    begin = bench_now_ns() - begin;
    if (err == ICMS_OK && (block.source != ICMS_SOURCE_POD || block.bytes != pod->size ||
                           !bench_value_is(pod->memory, pod->size, n, pod->size)))
        err = ICMS_CORRUPT;
    bench_slice_add(slice, err, pod->size, pod->size, begin);
}

static icms_err pod_slice(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                          struct bench_slice *slice, struct err_why *why)
{
    struct scale_pod *pod = base->owner;
    uint64_t cpu = bench_pid_cpu_ns(pod->rig.agent.pid), begin = bench_now_ns();
    uint64_t instructions = bench_instructions_read(&pod->counters);

    (void)work;
    (void)why;
    do
        pod_get(pod, slice);
    while (bench_now_ns() - begin < ns);
    slice->wall_ns = bench_now_ns() - begin;
    pod->cpu_ns += bench_pid_cpu_ns(pod->rig.agent.pid) - cpu;
    pod->instructions += bench_instructions_read(&pod->counters) - instructions;
    pod->ops += slice->ops;
    return ICMS_OK;
}

/* Per cent of a core that the agent takes while nobody asks. */
static double pod_quiet(const struct bench_opts *opts, const struct scale_pod *pod)
{
    uint64_t ns = (uint64_t)opts->slice_ms * SCALE_QUIET * 1000000, begin = bench_now_ns();
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000)};
    uint64_t cpu = bench_pid_cpu_ns(pod->rig.agent.pid);

    (void)nanosleep(&pause, NULL);
    return 100.0 * (double)(bench_pid_cpu_ns(pod->rig.agent.pid) - cpu) /
           (double)(bench_now_ns() - begin);
}

static icms_err pod_row(const struct bench_opts *opts, struct scale_pod *pod, const char *variant,
                        struct err_why *why)
{
    struct bench_work work = {.op = BENCH_GET, .size_bytes = pod->size, .depth = 1};
    struct bench_row row = {.bench = "scale", .variant = variant};
    uint32_t connections = pod->rig.enclosures * SCALE_QUEUES;
    double quiet, cpu_us, instructions;
    uint64_t bytes;
    icms_err err;

    quiet = pod_quiet(opts, pod);
    pod->cpu_ns = pod->ops = pod->next = pod->instructions = 0;
    bench_rig_pids(&pod->rig, &pod->side);
    (void)bench_instructions_open(&pod->counters, pod->rig.agent.pid);
    err = bench_compare(opts, &work, NULL, &pod->side, &row, why);
    bench_instructions_close(&pod->counters);
    if (err != ICMS_OK)
        return err;
    bytes = bench_pid_resident(pod->rig.agent.pid);
    cpu_us = (double)pod->cpu_ns / (double)pod->ops / 1e3;
    instructions = (double)pod->instructions / (double)pod->ops;
    bench_row_extra(&row, "connections", connections);
    bench_row_extra(&row, "agent_mib", (double)bytes / (1 << 20));
    if (pod->few_bytes == 0) {
        pod->few_bytes = bytes;
        pod->few_cpu_us = cpu_us;
        pod->few_instructions = instructions;
    } else {
        bench_row_goal(&row, "connection_bytes",
                       ((double)bytes - (double)pod->few_bytes) / (connections - SCALE_QUEUES),
                       SCALE_CONNECTION_BYTES);
    }
    bench_row_goal(&row, "idle_cpu_percent", quiet, SCALE_IDLE_PERCENT);
    bench_row_goal(&row, "load_cpu_us", cpu_us, SCALE_FLAT * pod->few_cpu_us);
    if (instructions > 0)
        bench_row_goal(&row, "load_instructions", instructions, SCALE_FLAT * pod->few_instructions);
    opts->row(opts->arg, &row);
    return ICMS_OK;
}

/* One pod. The agent that loads is not the one that stored: its memory is empty. */
static icms_err pod_run(const struct bench_opts *opts, struct scale_pod *pod, const char *dir,
                        uint32_t enclosures, struct err_why *why)
{
    char path[BENCH_PATH_BYTES + 32], variant[32];
    icms_err err;

    (void)snprintf(variant, sizeof(variant), "enclosures-%u", enclosures);
    if (!bench_wants_variant(opts, variant))
        return ICMS_OK;
    opts->progress(opts->arg, variant, 0);
    (void)snprintf(path, sizeof(path), "%s/drive-%u", dir, enclosures);
    pod->rig = (struct bench_rig){.dir = dir,
                                  .drive = path,
                                  .drive_bytes = SCALE_DRIVE_BYTES,
                                  .size = pod->size,
                                  .arena_slots = SCALE_ARENA_SLOTS,
                                  .enclosures = enclosures};
    err = bench_rig_up(&pod->rig, why);
    if (err == ICMS_OK)
        err = bench_rig_open(&pod->rig, true, why);
    if (err == ICMS_OK)
        err = pod_fill(pod, why);
    if (err == ICMS_OK) {
        bench_rig_close(&pod->rig);
        err = bench_rig_open(&pod->rig, true, why);
    }
    if (err == ICMS_OK)
        err = pod_row(opts, pod, variant, why);
    bench_rig_down(&pod->rig);
    return err;
}

icms_err bench_scale_agent_run(const struct bench_opts *opts, const char *dir, struct err_why *why)
{
    static const uint32_t counts[] = {1, 9, 36};
    struct scale_pod *pod = calloc(1, sizeof(*pod));
    icms_err err = ICMS_OK;

    if (pod != NULL)
        pod->memory = malloc(SCALE_SIZE);
    if (pod == NULL || pod->memory == NULL) {
        free(pod);
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    }
    pod->size = SCALE_SIZE;
    pod->side = (struct bench_side){.name = "agent", .run = pod_slice, .owner = pod};
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts) && err == ICMS_OK; i++) {
        err = pod_run(opts, pod, dir, counts[i], why);
        if (err == ICMS_OK)
            err = bench_go_on(why);
    }
    free(pod->memory);
    free(pod);
    return err;
}
