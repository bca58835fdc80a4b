/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_wire.c: `icms bench wire`: Retrieve and Store over NVMe/TCP, our initiator against
 * our target in another process, beside raw TCP (raw_tcp.c).
 *
 * Behind the target is memory, not a drive: a file in RAM would be read by a copy of the processor,
 * which no flash needs, and would be charged to the wire. The target takes a buffer for every
 * command, as it does in front of a store; values to be sent lie in the pool that raw TCP sends
 * from, values that come stay in their buffer. Both ends take the CRC32C of what they receive, as
 * raw TCP does. One connection carries the loads, another the stores. In the variant poll, at depth
 * 1, the loops of both ends spin for a while before they sleep.
 *
 * For each size: wire_target_body in its process; wire_side_up -> rows -> wire_side_down here.
 * Called by bench_run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/crc.h"
#include "bench/bench_int.h"
#include "nvmf/host.h"
#include "nvmf/target.h"
#include "store/store.h"

#define WIRE_POOL_BYTES  ((uint64_t)256 << 20)
#define WIRE_DEPTH_MAX   64
#define WIRE_NQN         "nqn.2026-01.org.icms:bench"
#define WIRE_CPU_BYTES   ((uint32_t)1 << 20) /* from this size on there is a goal for the CPU */
#define WIRE_OPEN_NS     ((uint64_t)10 * 1000000000)
#define WIRE_DEADLINE_NS ((uint64_t)5 * 1000000000)
#define WIRE_POLL_US     200 /* variant poll: longer than an operation */

static const struct uuid wire_volume = {.bytes = {0x1c, 0x35, 0xbe}};

struct wire_side;

/* One operation of the generator. */
struct wire_slot {
    struct wire_side *side;  /* whose                 */
    struct bench_slot *slot; /* the generator's       */
    uint8_t *memory;         /* for a value           */
    uint32_t n;              /* which value           */
    struct nvmf_req req;     /* the command           */
};

/* The initiator on its loop. */
struct wire_side {
    struct bench_side side;                /* what bench_compare runs         */
    struct bench_process target;           /* the other end                   */
    struct bench_pool *pool;               /* what is moved                   */
    uint32_t depth_max;                    /* operations in flight at most    */
    uint32_t poll_us;                      /* of the loops of both ends       */
    struct bench_gen gen;                  /* keeps operations in flight      */
    struct loop *loop;                     /* of the initiator                */
    struct loop_region *region;            /* memory of all slots             */
    struct nvmf_ctrl *ctrl;                /* the association                 */
    uint32_t nsid;                         /* the volume                      */
    enum bench_op op;                      /* of this slice                   */
    sem_t opened;                          /* up or down was called           */
    icms_err err;                          /* why it is down                  */
    char why[256];                         /* the sentence                    */
    struct wire_slot slot[WIRE_DEPTH_MAX]; /* one an operation */
};

/* ---- the target, in a process of its own ----------------------------------------------------- */

/* Keys are the numbers of values. */
static struct key wire_key(uint32_t n)
{
    struct key key = {.length = sizeof(n)};

    memcpy(key.bytes, &n, sizeof(n));
    return key;
}

static void wire_kv(void *owner, struct nvmf_target_req *req)
{
    const struct bench_pool *pool = owner;
    uint32_t n;

    memcpy(&n, req->key.bytes, sizeof(n));
    if (req->key.length != sizeof(n) || n >= pool->count) {
        req->err = ICMS_MISS;
        req->reason = ICMS_MISS_ABSENT;
    } else if (req->op == NVMF_TARGET_RETRIEVE) {
        req->value = pool->memory + (uint64_t)n * pool->size;
        req->done_bytes = pool->size;
    } else if (req->op == NVMF_TARGET_STORE) {
        if (req->value_bytes != pool->size ||
            crc32c(req->memory + STORE_HEADER_BYTES, pool->size) != pool->crc[n])
            req->err = ICMS_CORRUPT;
    } else {
        req->err = ICMS_UNSUPPORTED;
    }
    nvmf_target_req_done(req);
}

static uint64_t wire_used_bytes(void *owner, uint32_t ns)
{
    return 0;
}

static const struct nvmf_target_ops wire_target_ops = {
    .kv = wire_kv,
    .used_bytes = wire_used_bytes,
    .buffer_bytes = store_record_bytes,
};

static icms_err wire_target_body(void *arg, struct bench_listening *listening, struct err_why *why)
{
    const struct wire_side *side = arg;
    const struct bench_pool *pool = side->pool;
    struct nvmf_target_ns ns = {
        .volume = wire_volume, .size_bytes = WIRE_POOL_BYTES, .value_bytes_max = pool->size};
    struct nvmf_target_opts opts;
    struct nvmf_target *target;
    struct loop_opts loop_opts;
    struct loop_addr addr;
    struct loop *loop;
    icms_err err;

    loop_opts_init(&loop_opts);
    loop_opts.poll_us = side->poll_us;
    nvmf_target_opts_init(&opts);
    err = loop_new(loop_env_uring(), &loop_opts, why, &loop);
    if (err != ICMS_OK)
        return err;
    opts.loops = &loop;
    opts.loop_count = 1;
    opts.portals[0].listen = (struct loop_addr){.host = "127.0.0.1"};
    opts.nqn = WIRE_NQN;
    opts.namespaces = &ns;
    opts.namespace_count = 1;
    opts.connections_max = 16;
    /* A queue pair may hold a quarter of it. */
    opts.memory_bytes = (4 * side->depth_max + 1) * store_record_bytes(pool->size) + (1 << 20);
    opts.headroom_bytes = STORE_HEADER_BYTES;
    opts.ops = &wire_target_ops;
    opts.owner = side->pool;
    err = nvmf_target_new(&opts, why, &target);
    if (err == ICMS_OK)
        err = nvmf_target_open(target, why);
    if (err == ICMS_OK)
        err = loop_start(loop, why);
    if (err != ICMS_OK)
        return err;
    nvmf_target_addr(target, 0, &addr);
    bench_process_listens(listening, addr.port);
    for (;;)
        (void)pause();
}

/* ---- the initiator --------------------------------------------------------------------------- */

static void wire_up(struct nvmf_ctrl *ctrl)
{
    struct wire_side *side = nvmf_ctrl_owner(ctrl);
    const struct nvmf_volume *volume = nvmf_ctrl_volume(ctrl, &wire_volume);

    side->err = volume != NULL ? ICMS_OK : ICMS_NOT_FOUND;
    side->nsid = volume != NULL ? volume->nsid : 0;
    (void)sem_post(&side->opened);
}

static void wire_changed(struct nvmf_ctrl *ctrl)
{
}

static void wire_down(struct nvmf_ctrl *ctrl, icms_err err, const char *why)
{
    struct wire_side *side = nvmf_ctrl_owner(ctrl);

    side->err = err;
    (void)snprintf(side->why, sizeof(side->why), "%s", why);
    (void)sem_post(&side->opened);
}

static void wire_closed(struct nvmf_ctrl *ctrl)
{
}

static const struct nvmf_ctrl_ops wire_ctrl_ops = {
    .up = wire_up,
    .changed = wire_changed,
    .down = wire_down,
    .closed = wire_closed,
};

static void wire_done(struct nvmf_req *req)
{
    struct wire_slot *mine = req->owner;
    const struct bench_pool *pool = mine->side->pool;
    icms_err err = req->err;

    if (err == ICMS_OK && mine->side->op == BENCH_GET &&
        (req->value_bytes != pool->size || crc32c(mine->memory, pool->size) != pool->crc[mine->n]))
        err = ICMS_CORRUPT;
    bench_gen_done(mine->slot, err, pool->size, pool->size);
}

static void wire_start(struct bench_slot *slot, uint64_t n)
{
    struct wire_side *side = slot->gen->owner;
    struct wire_slot *mine = &side->slot[slot->index];
    const struct bench_pool *pool = side->pool;
    bool get = side->op == BENCH_GET;
    icms_err err;

    mine->slot = slot;
    mine->n = (uint32_t)bench_walk(n, pool->count);
    mine->req.nsid = side->nsid;
    mine->req.io_class = get ? IO_CLASS_LOAD : IO_CLASS_STORE;
    mine->req.key = wire_key(mine->n);
    mine->req.data[0].iov_base = get ? mine->memory : pool->memory + (uint64_t)mine->n * pool->size;
    mine->req.data[0].iov_len = pool->size;
    mine->req.deadline_ns = loop_now_ns(side->loop) + WIRE_DEADLINE_NS;
    mine->req.done = wire_done;
    mine->req.owner = mine;
    err = get ? nvmf_retrieve(side->ctrl, &mine->req) : nvmf_store(side->ctrl, &mine->req);
    if (err != ICMS_OK)
        bench_gen_done(slot, err, 0, 0);
}

static icms_err wire_slice(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                           struct bench_slice *slice, struct err_why *why)
{
    struct wire_side *side = base->owner;

    side->op = work->op;
    bench_gen_run(&side->gen, work, ns, slice);
    return ICMS_OK;
}

/* ---- both up and down ------------------------------------------------------------------------ */

static void wire_side_down(struct wire_side *side)
{
    if (side->loop != NULL) {
        loop_stop(side->loop);
        loop_join(side->loop);
    }
    loop_free(&side->loop);
    nvmf_ctrl_free(&side->ctrl);
    loop_region_free(&side->region);
    bench_process_end(&side->target);
    (void)sem_destroy(&side->opened);
}

static icms_err wire_connect(struct wire_side *side, struct err_why *why)
{
    struct nvmf_ctrl_opts opts;
    struct loop_opts loop_opts;
    icms_err err;

    loop_opts_init(&loop_opts);
    loop_opts.poll_us = side->poll_us;
    nvmf_ctrl_opts_init(&opts);
    opts.addr = (struct loop_addr){.host = "127.0.0.1", .port = side->target.port};
    opts.subnqn = WIRE_NQN;
    opts.hostnqn = WIRE_NQN ":host";
    opts.host_id = wire_volume;
    opts.ops = &wire_ctrl_ops;
    opts.owner = side;
    err = loop_new(loop_env_uring(), &loop_opts, why, &side->loop);
    if (err == ICMS_OK)
        err = nvmf_ctrl_new(side->loop, &opts, why, &side->ctrl);
    if (err != ICMS_OK)
        return err;
    nvmf_ctrl_open(side->ctrl, loop_env_now_ns(loop_env(side->loop)) + WIRE_OPEN_NS);
    err = loop_start(side->loop, why);
    if (err != ICMS_OK) {
        loop_free(&side->loop);
        return err;
    }
    while (sem_wait(&side->opened) != 0)
        continue;
    if (side->err != ICMS_OK)
        return err_set(why, side->err, "no association with the target: %s", side->why);
    return ICMS_OK;
}

static icms_err wire_side_up(struct wire_side *side, struct bench_pool *pool, uint32_t depth_max,
                             uint32_t poll_us, struct err_why *why)
{
    icms_err err;

    *side = (struct wire_side){.pool = pool, .depth_max = depth_max, .poll_us = poll_us};
    check(sem_init(&side->opened, 0, 0) == 0);
    err = bench_process_start("icms-target", wire_target_body, side, why, &side->target);
    if (err == ICMS_OK)
        err = loop_region_new(loop_env_uring(), "bench", (uint64_t)depth_max * pool->size, true,
                              why, &side->region);
    if (err == ICMS_OK)
        err = wire_connect(side, why);
    if (err != ICMS_OK)
        return err;
    for (uint32_t i = 0; i < depth_max; i++) {
        side->slot[i].side = side;
        side->slot[i].memory = (uint8_t *)loop_region_base(side->region) + (uint64_t)i * pool->size;
    }
    bench_gen_init(&side->gen, side->loop, depth_max, wire_start, side);
    side->side = (struct bench_side){
        .name = "wire", .run = wire_slice, .owner = side, .pids = 1, .pid = {side->target.pid}};
    return ICMS_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static icms_err wire_rows(const struct bench_opts *opts, struct wire_side *side,
                          struct bench_tcp *tcp, struct err_why *why)
{
    struct bench_side raw = {.name = "raw TCP",
                             .run = bench_tcp_run,
                             .owner = tcp,
                             .pids = 1,
                             .pid = {bench_tcp_server(tcp)}};
    uint32_t depths[2], depth_count = bench_depths(opts, depths);
    icms_err err = ICMS_OK;

    for (uint32_t i = 0; i < 2 * depth_count && err == ICMS_OK; i++) {
        struct bench_work work = {.op = i < depth_count ? BENCH_GET : BENCH_PUT,
                                  .size_bytes = side->pool->size,
                                  .depth = depths[i % depth_count]};
        struct bench_row row = {.bench = "wire", .variant = side->poll_us != 0 ? "poll" : ""};

        if (!bench_wants_op(opts, work.op) || (side->poll_us != 0 && work.depth != 1))
            continue;
        opts->progress(opts->arg, work.op == BENCH_GET ? "loads" : "stores",
                       i / (2.0 * depth_count));
        err = bench_compare(opts, &work, &raw, &side->side, &row, why);
        if (err != ICMS_OK)
            break;
        row.ratio_goal = work.op == BENCH_GET ? 0.90 : 0.85;
        if (work.size_bytes >= WIRE_CPU_BYTES)
            row.cpu_goal = 1.25 * row.ceiling.cpu_s_per_gb;
        opts->row(opts->arg, &row);
    }
    return err;
}

static icms_err wire_size(const struct bench_opts *opts, struct wire_side *side, uint32_t size,
                          struct err_why *why)
{
    uint32_t depths[2], depth_count = bench_depths(opts, depths);
    uint32_t depth_max = depths[depth_count - 1];
    struct bench_pool pool = {0};
    struct bench_tcp *tcp = NULL;
    icms_err err = bench_pool_new(size, WIRE_POOL_BYTES, why, &pool);

    if (err != ICMS_OK)
        return err;
    err = bench_tcp_new(&pool, depth_max, why, &tcp);
    if (err == ICMS_OK) {
        for (int poll = 0; poll < 2 && err == ICMS_OK; poll++) {
            if ((poll != 0 && depths[0] != 1) ||
                !bench_wants_variant(opts, poll != 0 ? "poll" : ""))
                continue;
            err = wire_side_up(side, &pool, depth_max, poll != 0 ? WIRE_POLL_US : 0, why);
            if (err == ICMS_OK)
                err = wire_rows(opts, side, tcp, why);
            wire_side_down(side);
        }
    }
    bench_tcp_free(&tcp);
    bench_pool_free(&pool);
    return err;
}

icms_err bench_wire_run(const struct bench_opts *opts, struct err_why *why)
{
    uint32_t sizes[BENCH_SIZES_MAX], size_count = bench_sizes(opts, sizes);
    struct wire_side *side = calloc(1, sizeof(*side));
    icms_err err = ICMS_OK;

    if (side == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < size_count && err == ICMS_OK; i++)
        err = wire_size(opts, side, sizes[i], why);
    free(side);
    return err;
}
