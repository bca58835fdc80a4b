/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_scale.c: `icms bench scale`: what an enclosure pays for each agent of a large pod.
 * The other half, what an agent pays for each enclosure, is in bench_scale_agent.c.
 *
 * A real icms-target, configured for all agents, and 8 to 1,152 initiators of ours on one loop of
 * this process, each with the four connections that an agent has (admin, load, prestage, store) and
 * queues of SCALE_ENTRIES. A row has the target's resident memory for a connection, first as they
 * were made and used a little, then for a command when every agent has SCALE_BURST of them under
 * way at once; its processor time when nobody asks; and loads of small values in turns over all
 * agents, with the processor time of the target for each.
 *
 * For each number of agents: SCALE_TARGET_UP -> SCALE_CONNECT -> fill -> quiet -> loads -> burst ->
 * row -> SCALE_DOWN. Called by bench_run.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "bench/bench_int.h"
#include "nvmf/host.h"
#include "store/store.h"

#define SCALE_AGENTS_MAX  1152
#define SCALE_COUNTS      4
#define SCALE_QUEUES      4 /* connections of an agent to an enclosure */
#define SCALE_ENTRIES     128
#define SCALE_BURST       64
#define SCALE_DEPTH       8 /* one an agent, where they are fewest */
#define SCALE_VALUES_MAX  1024
#define SCALE_SIZE        4096
#define SCALE_MEMORY      ((uint64_t)256 << 20)
#define SCALE_DRIVE_BYTES ((uint64_t)512 << 20)
#define SCALE_OPEN_NS     ((uint64_t)60 * 1000000000)
#define SCALE_OP_NS       ((uint64_t)20 * 1000000000)
#define SCALE_QUIET       5  /* slices */
#define SCALE_FILES_APART 64 /* descriptors for everything else */

/* Goals: what a connection, a command and a load may take, and how much more than with few. */
#define SCALE_CONNECTION_BYTES 16384
#define SCALE_COMMAND_BYTES    4096
#define SCALE_IDLE_PERCENT     2 /* an agent's keep-alive comes every 2.5 s or more */
#define SCALE_FLAT             1.3

#define SCALE_NQN   "nqn.2026-01.org.icms:bench"
#define SCALE_DIALS 16 /* associations that connect at a time */

static const struct uuid scale_volume = {.bytes = {0x1c, 0x35, 0xbf}};

struct scale;

/* One agent, as the enclosure sees it. */
struct scale_agent {
    struct scale *scale;                /* whose                                  */
    struct nvmf_ctrl *ctrl;             /* its association                        */
    char nqn[LIMIT_NQN_BYTES];          /* its name                               */
    struct nvmf_req burst[SCALE_BURST]; /* its commands of a burst                */
};

/* One load or store of the generator. */
struct scale_slot {
    struct scale *scale;     /* whose                */
    struct bench_slot *slot; /* the generator's      */
    uint8_t *memory;         /* of a value           */
    uint64_t n;              /* which value          */
    struct nvmf_req req;     /* the command          */
};

struct scale {
    struct bench_side side;              /* what bench_compare runs                              */
    struct bench_gen gen;                /* loads and stores                                     */
    struct proc_child target;            /* icms-target                                          */
    struct loop *loop;                   /* of all initiators                                    */
    struct loop_msg msg;                 /* begins the burst                                     */
    struct scale_agent *agents;          /* agent_count of them                                  */
    uint32_t agent_count;                /* now                                                  */
    uint32_t opened;                     /* associations that were begun                         */
    uint32_t waiting;                    /* associations that are neither up nor down yet        */
    uint32_t failed;                     /* associations that went down                          */
    char why[256];                       /* the sentence of the first that failed                */
    uint32_t burst_each;                 /* commands of a burst for each agent                   */
    uint32_t burst_left;                 /* commands of the burst that are under way             */
    uint32_t burst_errors;               /* of them: other than a hit                            */
    sem_t over;                          /* waiting or burst_left came to 0                      */
    uint32_t nsid;                       /* of the volume, the same for all                      */
    uint32_t size;                       /* of values                                            */
    uint64_t values;                     /* that are stored                                  */
    enum bench_op op;                    /* of this slice                                        */
    uint64_t cpu_ns, ops;                /* of the target, in all slices of this row             */
    uint64_t instructions;               /* the same; 0: cannot be counted                       */
    double few_instructions;             /* for a load in the first row                          */
    struct bench_instructions counters;  /* of the target                                        */
    double few_cpu_us;                   /* its processor time for a load in the first row       */
    struct scale_slot slot[SCALE_DEPTH]; /* one an operation                                */
};

/* ---- associations ---------------------------------------------------------------------------- */

static void scale_one_less(struct scale *scale)
{
    check(scale->waiting > 0);
    if (--scale->waiting == 0)
        (void)sem_post(&scale->over);
}

/* A few connect at a time, as the agents of a pod do. */
static void scale_open_next(struct scale *scale)
{
    if (scale->opened < scale->agent_count)
        nvmf_ctrl_open(scale->agents[scale->opened++].ctrl,
                       loop_env_now_ns(loop_env(scale->loop)) + SCALE_OPEN_NS);
}

static void scale_up(struct nvmf_ctrl *ctrl)
{
    struct scale_agent *agent = nvmf_ctrl_owner(ctrl);
    const struct nvmf_volume *volume = nvmf_ctrl_volume(ctrl, &scale_volume);

    if (volume != NULL)
        agent->scale->nsid = volume->nsid;
    scale_open_next(agent->scale);
    scale_one_less(agent->scale);
}

static void scale_down_one(struct nvmf_ctrl *ctrl, icms_err err, const char *why)
{
    struct scale_agent *agent = nvmf_ctrl_owner(ctrl);

    if (agent->scale->failed++ == 0)
        (void)snprintf(agent->scale->why, sizeof(agent->scale->why), "%s", why);
    if (agent->scale->waiting > 0)
        scale_one_less(agent->scale);
}

static void scale_ignored(struct nvmf_ctrl *ctrl)
{
    (void)ctrl;
}

static const struct nvmf_ctrl_ops scale_ctrl_ops = {
    .up = scale_up,
    .changed = scale_ignored,
    .down = scale_down_one,
    .closed = scale_ignored,
};

static icms_err scale_agents_new(struct scale *scale, uint16_t port, struct err_why *why)
{
    struct nvmf_ctrl_opts opts;
    icms_err err = ICMS_OK;

    nvmf_ctrl_opts_init(&opts);
    opts.addr = (struct loop_addr){.host = "127.0.0.1", .port = port};
    opts.subnqn = SCALE_NQN;
    opts.queue_entries = SCALE_ENTRIES;
    opts.silence_ns = 0;
    opts.ops = &scale_ctrl_ops;
    for (uint32_t i = 0; i < scale->agent_count && err == ICMS_OK; i++) {
        struct scale_agent *agent = &scale->agents[i];

        agent->scale = scale;
        (void)snprintf(agent->nqn, sizeof(agent->nqn), "nqn.2026-01.org.icms:agent-%u", i);
        opts.hostnqn = agent->nqn;
        opts.host_id = (struct uuid){{(uint8_t)i, (uint8_t)(i >> 8), 1}};
        opts.owner = agent;
        err = nvmf_ctrl_new(scale->loop, &opts, why, &agent->ctrl);
    }
    return err;
}

/* ---- commands of all agents at once ---------------------------------------------------------- */

static void scale_burst_done(struct nvmf_req *req)
{
    struct scale *scale = req->owner;

    if (req->err != ICMS_OK)
        scale->burst_errors++;
    check(scale->burst_left > 0);
    if (--scale->burst_left == 0)
        (void)sem_post(&scale->over);
}

/* Queue pairs in turns when there are few commands, all on the one for loads when there are many.
 */
static void scale_burst_begin(struct loop_msg *msg)
{
    struct scale *scale = container_of(msg, struct scale, msg);

    for (uint32_t i = 0; i < scale->agent_count; i++)
        for (uint32_t c = 0; c < scale->burst_each; c++) {
            struct nvmf_req *req = &scale->agents[i].burst[c];

            *req = (struct nvmf_req){
                .nsid = scale->nsid,
                .io_class = scale->burst_each == IO_CLASS_COUNT ? (enum io_class)c : IO_CLASS_LOAD,
                .key = bench_key(c % scale->values, 0),
                .deadline_ns = loop_now_ns(scale->loop) + SCALE_OP_NS,
                .done = scale_burst_done,
                .owner = scale,
            };
            req->err = nvmf_exist(scale->agents[i].ctrl, req);
            if (req->err != ICMS_OK)
                scale_burst_done(req);
        }
}

static icms_err scale_burst(struct scale *scale, uint32_t each, struct err_why *why)
{
    scale->burst_each = each;
    scale->burst_left = scale->agent_count * each;
    scale->burst_errors = 0;
    loop_send(scale->loop, &scale->msg, scale_burst_begin);
    while (sem_wait(&scale->over) != 0)
        continue;
    if (scale->burst_errors > 0)
        return err_set(why, ICMS_IO, "%u of %u commands of %u agents failed", scale->burst_errors,
                       scale->agent_count * each, scale->agent_count);
    return ICMS_OK;
}

/* ---- loads and stores, in turns over all agents -----------------------------------------------
 */

static void scale_done(struct nvmf_req *req)
{
    struct scale_slot *mine = req->owner;
    struct scale *scale = mine->scale;
    icms_err err = req->err;
    bool get = scale->op == BENCH_GET;

    if (err == ICMS_OK && get &&
        (req->value_bytes != scale->size || !bench_value_is(mine->memory, scale->size, mine->n, 0)))
        err = ICMS_CORRUPT;
    bench_gen_done(mine->slot, err, scale->size, get ? scale->size : 0);
}

static void scale_start(struct bench_slot *slot, uint64_t n)
{
    struct scale *scale = slot->gen->owner;
    struct scale_slot *mine = &scale->slot[slot->index];
    struct nvmf_ctrl *ctrl = scale->agents[n % scale->agent_count].ctrl;
    bool get = scale->op == BENCH_GET;
    icms_err err;

    mine->slot = slot;
    mine->n = n % scale->values;
    if (!get)
        bench_value_stamp(mine->memory, scale->size, mine->n, 0);
    mine->req = (struct nvmf_req){
        .nsid = scale->nsid,
        .io_class = get ? IO_CLASS_LOAD : IO_CLASS_STORE,
        .key = bench_key(mine->n, 0),
        .data = {{.iov_base = mine->memory, .iov_len = scale->size}},
        .deadline_ns = loop_now_ns(scale->loop) + SCALE_OP_NS,
        .done = scale_done,
        .owner = mine,
    };
    err = get ? nvmf_retrieve(ctrl, &mine->req) : nvmf_store(ctrl, &mine->req);
    if (err != ICMS_OK)
        bench_gen_done(slot, err, 0, 0);
}

static icms_err scale_slice(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                            struct bench_slice *slice, struct err_why *why)
{
    struct scale *scale = base->owner;
    uint64_t cpu = bench_pid_cpu_ns(scale->target.pid);
    uint64_t instructions = bench_instructions_read(&scale->counters);

    scale->op = work->op;
    bench_gen_run(&scale->gen, work, ns, slice);
    scale->cpu_ns += bench_pid_cpu_ns(scale->target.pid) - cpu;
    scale->instructions += bench_instructions_read(&scale->counters) - instructions;
    scale->ops += slice->ops;
    return ICMS_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static icms_err scale_target_up(struct scale *scale, const char *dir, const char *drive,
                                struct err_why *why)
{
    static const char *const format[] = {"--format=all", NULL};
    char text[3 * BENCH_PATH_BYTES], path[BENCH_PATH_BYTES], uuid[UUID_TEXT_BYTES];
    icms_err err;

    scale->target = (struct proc_child){.name = "icms-target"};
    (void)snprintf(text, sizeof(text),
                   "# Made by icms bench.\n"
                   "name: bench\n"
                   "nqn: %s\n"
                   "listen: 127.0.0.1:0\n"
                   "segment: 16MiB\n"
                   "memory: %llu\n"
                   "connections_max: %u\n"
                   "http:\n  listen: none\n"
                   "drives:\n  - path: \"%s\"\n    format_empty: true\n"
                   "volumes:\n  - name: kv\n    uuid: %s\n    sealed: false\n    value_max: %u\n",
                   SCALE_NQN, (unsigned long long)SCALE_MEMORY,
                   scale->agent_count * SCALE_QUEUES + SCALE_QUEUES, drive,
                   uuid_format(&scale_volume, uuid), scale->size);
    err = proc_file_write(dir, "target.yaml", text, why, path, sizeof(path));
    if (err == ICMS_OK)
        err = proc_child_start(&scale->target, dir, path, format, &bench_canceled, why);
    return err;
}

static icms_err scale_connect(struct scale *scale, struct err_why *why)
{
    struct loop_opts loop_opts;
    char text[64];
    struct loop_addr addr;
    icms_err err;

    (void)proc_ready_word(&scale->target, "nvme", text, sizeof(text));
    err = loop_addr_parse(text, why, &addr);
    loop_opts_init(&loop_opts);
    if (err == ICMS_OK)
        err = loop_new(loop_env_uring(), &loop_opts, why, &scale->loop);
    if (err == ICMS_OK)
        err = scale_agents_new(scale, addr.port, why);
    if (err != ICMS_OK)
        return err;
    scale->opened = scale->failed = 0;
    scale->waiting = scale->agent_count;
    for (int i = 0; i < SCALE_DIALS; i++)
        scale_open_next(scale);
    err = loop_start(scale->loop, why);
    if (err != ICMS_OK) {
        loop_free(&scale->loop);
        return err;
    }
    while (sem_wait(&scale->over) != 0)
        continue;
    if (scale->failed > 0)
        return err_set(why, ICMS_PEER_DOWN, "%u of %u agents could not connect: %s", scale->failed,
                       scale->agent_count, scale->why);
    bench_gen_init(&scale->gen, scale->loop, SCALE_DEPTH, scale_start, scale);
    scale->side = (struct bench_side){.name = "target",
                                      .run = scale_slice,
                                      .owner = scale,
                                      .pids = 1,
                                      .pid = {scale->target.pid}};
    return ICMS_OK;
}

static void scale_down(struct scale *scale)
{
    if (scale->loop != NULL) {
        loop_stop(scale->loop);
        loop_join(scale->loop);
    }
    loop_free(&scale->loop);
    for (uint32_t i = 0; i < scale->agent_count; i++)
        nvmf_ctrl_free(&scale->agents[i].ctrl);
    proc_child_stop(&scale->target);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Per cent of a core that the target takes while nobody asks. */
static double scale_quiet(const struct bench_opts *opts, const struct scale *scale)
{
    uint64_t ns = (uint64_t)opts->slice_ms * SCALE_QUIET * 1000000;
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000)};
    uint64_t begin = loop_env_now_ns(loop_env_uring());
    uint64_t cpu = bench_pid_cpu_ns(scale->target.pid);

    (void)nanosleep(&pause, NULL);
    return 100.0 * (double)(bench_pid_cpu_ns(scale->target.pid) - cpu) /
           (double)(loop_env_now_ns(loop_env_uring()) - begin);
}

static icms_err scale_measure(const struct bench_opts *opts, struct scale *scale,
                              const char *variant, uint64_t begin_bytes, struct err_why *why)
{
    struct bench_work work = {.op = BENCH_PUT, .size_bytes = scale->size, .depth = SCALE_DEPTH};
    struct bench_row row = {.bench = "scale", .variant = variant};
    double connections = (double)scale->agent_count * SCALE_QUEUES, quiet, cpu_us;
    double instructions;
    uint64_t connected, burst;
    icms_err err;

    scale->op = BENCH_PUT;
    err = bench_gen_count(&scale->gen, &work, scale->values, why);
    if (err == ICMS_OK)
        err = scale_burst(scale, IO_CLASS_COUNT, why);
    if (err != ICMS_OK)
        return err;
    connected = bench_pid_resident(scale->target.pid);
    quiet = scale_quiet(opts, scale);
    work.op = BENCH_GET;
    scale->cpu_ns = scale->ops = scale->instructions = 0;
    (void)bench_instructions_open(&scale->counters, scale->target.pid);
    err = bench_compare(opts, &work, NULL, &scale->side, &row, why);
    bench_instructions_close(&scale->counters);
    if (err == ICMS_OK)
        err = scale_burst(scale, SCALE_BURST, why);
    if (err != ICMS_OK)
        return err;
    burst = bench_pid_resident(scale->target.pid);
    cpu_us = (double)scale->cpu_ns / (double)scale->ops / 1e3;
    instructions = (double)scale->instructions / (double)scale->ops;
    if (scale->few_cpu_us <= 0) {
        scale->few_cpu_us = cpu_us;
        scale->few_instructions = instructions;
    }
    bench_row_extra(&row, "connections", connections);
    bench_row_extra(&row, "target_mib", (double)burst / (1 << 20));
    bench_row_goal(&row, "connection_bytes", (double)(connected - begin_bytes) / connections,
                   SCALE_CONNECTION_BYTES);
    bench_row_goal(&row, "command_bytes",
                   (double)(burst - connected) / ((double)scale->agent_count * SCALE_BURST),
                   SCALE_COMMAND_BYTES);
    bench_row_goal(&row, "idle_cpu_percent", quiet, SCALE_IDLE_PERCENT);
    bench_row_goal(&row, "load_cpu_us", cpu_us, SCALE_FLAT * scale->few_cpu_us);
    if (instructions > 0)
        bench_row_goal(&row, "load_instructions", instructions,
                       SCALE_FLAT * scale->few_instructions);
    opts->row(opts->arg, &row);
    return ICMS_OK;
}

/* Descriptors for all connections, here and in the target, which inherits the limit. */
static icms_err scale_files(uint32_t agents, struct err_why *why)
{
    rlim_t need = (rlim_t)agents * SCALE_QUEUES + SCALE_FILES_APART;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return err_set(why, err_from_errno(errno), "the limit of open files cannot be read");
    if (limit.rlim_cur >= need)
        return ICMS_OK;
    limit.rlim_cur = need;
    if (need > limit.rlim_max || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return err_set(
            why, ICMS_LIMIT,
            "%u agents need %llu open files, %llu are allowed; raise it (ulimit -Hn), or "
            "name fewer agents with --variant",
            agents, (unsigned long long)need, (unsigned long long)limit.rlim_max);
    return ICMS_OK;
}

static icms_err scale_count(const struct bench_opts *opts, struct scale *scale, uint32_t agents,
                            const char *dir, const char *drive, struct err_why *why)
{
    uint64_t begin_bytes;
    char variant[32];
    icms_err err;

    (void)snprintf(variant, sizeof(variant), "agents-%u", agents);
    if (!bench_wants_variant(opts, variant))
        return ICMS_OK;
    opts->progress(opts->arg, variant, (double)agents / SCALE_AGENTS_MAX);
    scale->agent_count = agents;
    err = scale_files(agents, why);
    if (err == ICMS_OK)
        err = scale_target_up(scale, dir, drive, why);
    begin_bytes = bench_pid_resident(scale->target.pid);
    if (err == ICMS_OK)
        err = scale_connect(scale, why);
    if (err == ICMS_OK)
        err = scale_measure(opts, scale, variant, begin_bytes, why);
    scale_down(scale);
    return err;
}

static icms_err scale_run(const struct bench_opts *opts, struct scale *scale, const char *dir,
                          struct err_why *why)
{
    static const uint32_t counts[SCALE_COUNTS] = {8, 72, 288, SCALE_AGENTS_MAX};
    char drive[BENCH_PATH_BYTES + 8];
    icms_err err;

    (void)snprintf(drive, sizeof(drive), "%s/drive", dir);
    err = bench_file_make(drive, SCALE_DRIVE_BYTES, why);
    for (int i = 0; i < SCALE_COUNTS && err == ICMS_OK; i++) {
        err = scale_count(opts, scale, counts[i], dir, drive, why);
        if (err == ICMS_OK)
            err = bench_go_on(why);
    }
    return err == ICMS_OK ? bench_scale_agent_run(opts, dir, why) : err;
}

icms_err bench_scale_run(const struct bench_opts *opts, struct err_why *why)
{
    struct scale *scale = calloc(1, sizeof(*scale));
    char dir[BENCH_PATH_BYTES];
    uint8_t *memory = NULL;
    icms_err err = ICMS_OK;

    if (scale != NULL) {
        scale->size = opts->size_bytes != 0 ? (uint32_t)opts->size_bytes : SCALE_SIZE;
        scale->values = SCALE_DRIVE_BYTES / 4 / scale->size;
        if (scale->values > SCALE_VALUES_MAX)
            scale->values = SCALE_VALUES_MAX;
        scale->agents = calloc(SCALE_AGENTS_MAX, sizeof(*scale->agents));
        memory = malloc((size_t)SCALE_DEPTH * scale->size);
    }
    if (scale == NULL || scale->agents == NULL || memory == NULL)
        err = err_set(why, ICMS_NO_MEMORY, "out of memory");
    if (err == ICMS_OK)
        err = bench_dir_make(opts, why, dir, sizeof(dir));
    if (err == ICMS_OK) {
        check(sem_init(&scale->over, 0, 0) == 0);
        for (uint32_t i = 0; i < SCALE_DEPTH; i++) {
            scale->slot[i].scale = scale;
            scale->slot[i].memory = memory + (size_t)i * scale->size;
            bench_value_noise(scale->slot[i].memory, scale->size);
        }
        err = scale_run(opts, scale, dir, why);
        bench_dir_remove(dir);
        (void)sem_destroy(&scale->over);
    }
    free(memory);
    if (scale != NULL)
        free(scale->agents);
    free(scale);
    return err;
}
