/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants of an enclosure that compete for its drives: parts by weight, limits, loads beside a
 * flood of stores or of prestaging, and hosts that take what they can get. A whole target with
 * simulated drives and network, and our own initiator; what is compared are bytes and simulated
 * times.
 *
 *   target_fair_test [ROUNDS]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "nvmf/host.h"
#include "nvmf/target/test_peer.h"
#include "target/target.h"

#define KIB       ((uint32_t)1 << 10)
#define MIB       ((uint64_t)1 << 20)
#define MS        ((uint64_t)1000 * 1000)
#define SECOND    (1000 * MS)
#define DRIVES    2
#define VOLUMES   3
#define HOSTS_MAX 40
#define JOBS_MAX  96
#define SAMPLES   100000
#define VALUE_MAX (256 * KIB)
#define KEPT      256 /* blocks of a volume that are loaded */

struct host;

/* A command that is sent again as soon as it is answered. */
struct job {
    struct nvmf_req req;     /* first */
    struct loop_timer timer; /* expedites: when */
    struct host *host;
    uint32_t bytes;                             /* of the value              */
    uint64_t sent_ns;                           /* when it was sent          */
    uint8_t *memory;                            /* room for it               */
    struct key keys[NVME_KV_EXIST_MANY_KEYS];   /* of exist-many */
    uint8_t key_data[NVME_KV_EXIST_MANY_BYTES]; /* likewise      */
};

enum job_kind {
    JOB_LOAD,
    JOB_PRESTAGE, /* a load of that class */
    JOB_STORE,
    JOB_LIST,
    JOB_FLUSH,
    JOB_EXIST,
    JOB_EXIST_MANY,
    JOB_ABSENT, /* a load of a key that is not there */
};

/* A host: one association. */
struct host {
    struct world *world;
    struct sim_node *node;
    struct loop *loop;
    struct nvmf_ctrl *ctrl;
    char nqn[64];
    enum job_kind kind;
    uint32_t volume;      /* place in world.volumes */
    uint32_t depth;       /* commands that it keeps in flight */
    uint32_t bytes;       /* of its values                    */
    uint64_t deadline_ns; /* of each of its commands     */
    uint32_t under_way;
    bool stop;        /* it sends nothing again          */
    bool expedites;   /* it waits for what it prestages, a moment after it asked */
    struct job *jobs; /* depth of them */
};

/* What a volume got. */
struct tally {
    uint64_t bytes, ops, keys, misses, sheds, lates, errors;
};

struct world {
    struct sim *sim;
    struct sim_node *node;
    struct target_drive_opts drives[DRIVES];
    struct volume_spec volumes[VOLUMES];
    struct tenant_spec tenants[VOLUMES];
    struct target_opts opts;
    struct target *target;
    bool stop;       /* nothing is sent again                */
    uint64_t random; /* dice                                 */
    uint32_t stored; /* blocks stored so far: names of new ones */
    struct tally tally[VOLUMES];
    uint64_t ns[SAMPLES]; /* of loads of volume 0 */
    uint32_t samples;
    uint32_t host_count;
    struct host hosts[HOSTS_MAX];
};

static uint8_t value[VALUE_MAX];
static uint32_t rounds = 1;

static uint64_t dice(struct world *world, uint64_t sides)
{
    world->random = hash64_mix(world->random + 1);
    return world->random % sides;
}

/* ---- a world -------------------------------------------------------------------------------- */

static struct world *world_new(uint64_t seed, uint32_t loops, uint64_t disk_bytes_per_s)
{
    static const char *const names[VOLUMES] = {"a", "b", "c"};
    struct world *world = calloc(1, sizeof(*world));
    struct sim_opts sim_opts;

    check(world != NULL);
    world->random = seed;
    sim_opts_init(&sim_opts, seed);
    sim_opts.disk_bytes_per_s = disk_bytes_per_s;
    sim_opts.strict = false; /* other tests watch buffers; here there are many bytes */
    world->sim = sim_new(&sim_opts);
    world->node = sim_node_new(world->sim, "10.1.0.1");
    target_opts_init(&world->opts);
    world->opts.env = sim_node_env(world->node);
    world->opts.nvmf.nqn = "nqn.2026-01.io.icms:test";
    world->opts.nvmf.enclosure = (struct uuid){{3}};
    check(loop_addr_parse("10.1.0.1:4420", NULL, &world->opts.nvmf.portals[0].listen) == ICMS_OK);
    world->opts.loops = loops;
    world->opts.segment_bytes = MIB;
    world->opts.nvmf.memory_bytes = loops * 32 * MIB;
    world->opts.nvmf.connections_max = 256;
    world->opts.drives = world->drives;
    world->opts.drive_count = DRIVES;
    world->opts.volumes = world->volumes;
    world->opts.volume_count = VOLUMES;
    world->opts.tenants = world->tenants;
    world->opts.tenant_count = VOLUMES;
    for (uint32_t i = 0; i < VOLUMES; i++) {
        world->volumes[i] = (struct volume_spec){
            .uuid = {{(uint8_t)(7 + i)}}, .value_bytes_max = VALUE_MAX, .run_blocks = 1};
        (void)snprintf(world->volumes[i].name, LIMIT_NAME_BYTES, "%s", names[i]);
        world->tenants[i].weight = 1;
        (void)snprintf(world->tenants[i].name, LIMIT_NAME_BYTES, "%s", names[i]);
    }
    world->drives[0] = (struct target_drive_opts){.path = "/drive/0", .bytes = 256 * MIB};
    world->drives[1] = (struct target_drive_opts){.path = "/drive/1", .bytes = 256 * MIB};
    return world;
}

static void world_start(struct world *world)
{
    struct err_why why = {""};

    if (target_new(&world->opts, &why, &world->target) != ICMS_OK ||
        target_start(world->target, &why) != ICMS_OK)
        fail_msg("%s", why.text);
}

static void world_run(struct world *world, uint64_t ns)
{
    (void)sim_run(world->sim, sim_now_ns(world->sim) + ns);
}

/* ---- hosts ---------------------------------------------------------------------------------- */

static struct key block_key(uint32_t block)
{
    struct key key = {.length = 16};
    uint64_t run = hash64_mix(block + 1);

    memcpy(key.bytes, &run, 8);
    memcpy(key.bytes + 8, &block, 4);
    return key;
}

static void job_done(struct nvmf_req *req);

static void job_expedite(struct loop_timer *timer)
{
    check(nvmf_expedite(&container_of(timer, struct job, timer)->req));
}

static bool job_reads(const struct job *job)
{
    enum job_kind kind = job->host->kind;

    return kind == JOB_LOAD || kind == JOB_PRESTAGE || kind == JOB_EXIST ||
           kind == JOB_EXIST_MANY || kind == JOB_ABSENT;
}

static void job_send(struct job *job)
{
    struct host *host = job->host;
    struct world *world = host->world;
    struct nvmf_req *req = &job->req;
    uint32_t block = job_reads(job) ? (uint32_t)dice(world, KEPT) : world->stored++;
    icms_err err;

    memset(req, 0, sizeof(*req));
    job->sent_ns = sim_now_ns(world->sim);
    job->bytes = host->bytes;
    req->nsid = host->volume + 1;
    req->io_class = host->kind == JOB_PRESTAGE ? IO_CLASS_PRESTAGE
                    : job_reads(job)           ? IO_CLASS_LOAD
                                               : IO_CLASS_STORE;
    req->done = job_done;
    req->deadline_ns = loop_now_ns(host->loop) + host->deadline_ns;
    req->key = block_key(block);
    req->data[0] = (struct iovec){.iov_base = job->memory, .iov_len = host->bytes};
    switch (host->kind) {
    case JOB_ABSENT:
        req->key = block_key(UINT32_MAX - block);
        err = nvmf_retrieve(host->ctrl, req);
        break;
    case JOB_LOAD:
    case JOB_PRESTAGE:
        err = nvmf_retrieve(host->ctrl, req);
        break;
    case JOB_STORE:
        req->data[0].iov_base = value;
        err = nvmf_store(host->ctrl, req);
        break;
    case JOB_LIST:
        req->key = (struct key){0};
        err = nvmf_list(host->ctrl, req);
        break;
    case JOB_EXIST:
        req->data[0].iov_len = 0;
        err = nvmf_exist(host->ctrl, req);
        break;
    case JOB_EXIST_MANY:
        req->data[0].iov_len = 0;
        for (uint32_t i = 0; i < NVME_KV_EXIST_MANY_KEYS; i++)
            job->keys[i] = block_key((block + i) % KEPT);
        err = nvmf_exist_many(host->ctrl, req, job->keys, NVME_KV_EXIST_MANY_KEYS, job->key_data);
        break;
    default:
        req->data[0].iov_len = 0;
        err = nvmf_flush(host->ctrl, req);
    }
    check(err == ICMS_OK);
    if (host->expedites)
        loop_timer_start(host->loop, &job->timer, loop_now_ns(host->loop) + MS);
    host->under_way++;
}

static void job_done(struct nvmf_req *req)
{
    struct job *job = (struct job *)req;
    struct world *world = job->host->world;
    struct tally *tally = &world->tally[job->host->volume];

    job->host->under_way--;
    if (job->host->expedites)
        loop_timer_stop(job->host->loop, &job->timer);
    tally->ops++;
    if (job->host->kind == JOB_EXIST_MANY)
        tally->keys += NVME_KV_EXIST_MANY_KEYS;
    else if (job->host->kind == JOB_EXIST || job->host->kind == JOB_ABSENT)
        tally->keys++;
    if (req->err == ICMS_OK)
        tally->bytes += job->bytes;
    else if (req->err == ICMS_MISS)
        tally->misses++;
    else if (req->err == ICMS_BUSY && req->reason == ICMS_MISS_SHED)
        tally->sheds++;
    else if (req->err == ICMS_DEADLINE)
        tally->lates++;
    else if (tally->errors++ == 0)
        print_message("  volume %u: %s, reason %d\n", job->host->volume, icms_err_name(req->err),
                      (int)req->reason);
    if (job->host->kind == JOB_LOAD && job->host->volume == 0 && world->samples < SAMPLES)
        world->ns[world->samples++] = sim_now_ns(world->sim) - job->sent_ns;
    if (!world->stop && !job->host->stop)
        job_send(job);
}

static void host_up(struct nvmf_ctrl *ctrl)
{
}

static void host_down(struct nvmf_ctrl *ctrl, icms_err err, const char *why)
{
    fail_msg("association lost: %s", why);
}

static void host_open(void *arg)
{
    struct host *host = arg;

    nvmf_ctrl_open(host->ctrl, loop_now_ns(host->loop) + 10 * SECOND);
}

static void host_begin(void *arg)
{
    struct host *host = arg;

    for (uint32_t i = 0; i < host->depth; i++)
        job_send(&host->jobs[i]);
}

/* A host that is connected and sends nothing yet. */
static struct host *host_new(struct world *world, enum job_kind kind, uint32_t volume,
                             uint32_t depth, uint32_t bytes)
{
    static const struct nvmf_ctrl_ops ops = {
        .up = host_up, .changed = host_up, .down = host_down, .closed = host_up};
    struct host *host = &world->hosts[world->host_count];
    struct nvmf_ctrl_opts opts;
    struct loop_opts loop_opts;
    struct err_why why;
    char address[32];

    check(world->host_count < HOSTS_MAX && depth <= JOBS_MAX);
    *host = (struct host){.world = world,
                          .kind = kind,
                          .volume = volume,
                          .depth = depth,
                          .bytes = bytes,
                          .deadline_ns = 600 * SECOND};
    (void)snprintf(address, sizeof(address), "10.1.1.%u", world->host_count + 1);
    (void)snprintf(host->nqn, sizeof(host->nqn), "nqn.2026-01.io.icms:host%u", world->host_count);
    world->host_count++;
    host->node = sim_node_new(world->sim, address);
    loop_opts_init(&loop_opts);
    check(loop_new(sim_node_env(host->node), &loop_opts, &why, &host->loop) == ICMS_OK);
    check(loop_start(host->loop, &why) == ICMS_OK);
    nvmf_ctrl_opts_init(&opts);
    opts.addr = world->opts.nvmf.portals[0].listen;
    opts.subnqn = world->opts.nvmf.nqn;
    opts.hostnqn = host->nqn;
    opts.host_id.bytes[0] = (uint8_t)world->host_count;
    opts.silence_ns = 0;
    opts.send_timeout_ns = 0;
    opts.queue_entries = 64;
    opts.ops = &ops;
    check(nvmf_ctrl_new(host->loop, &opts, &why, &host->ctrl) == ICMS_OK);
    host->jobs = calloc(depth, sizeof(*host->jobs));
    for (uint32_t i = 0; i < depth; i++) {
        host->jobs[i].host = host;
        loop_timer_init(&host->jobs[i].timer, job_expedite);
        host->jobs[i].memory = malloc(bytes);
        check(host->jobs[i].memory != NULL);
    }
    sim_call(world->sim, host->loop, host_open, host);
    for (int i = 0; i < 1000 && !nvmf_ctrl_is_up(host->ctrl); i++)
        world_run(world, MS);
    assert_true(nvmf_ctrl_is_up(host->ctrl));
    return host;
}

static void host_start(struct host *host)
{
    sim_call(host->world->sim, host->loop, host_begin, host);
}

/* The blocks of a volume that are loaded. */
static void world_keep(struct world *world, uint32_t volume, uint32_t bytes)
{
    struct host *host = host_new(world, JOB_STORE, volume, 1, bytes);
    uint32_t stored = world->stored;

    world->stored = 0;
    host_start(host);
    while (world->stored < KEPT + 1)
        world_run(world, MS);
    world->stop = true;
    while (host->under_way > 0)
        world_run(world, MS);
    world->stop = false;
    world->stored = (uint32_t)u64_max(stored, 1000000);
}

static void world_free(struct world *world)
{
    world->stop = true;
    for (int i = 0; i < 60000; i++) {
        uint32_t under_way = 0;

        for (uint32_t h = 0; h < world->host_count; h++)
            under_way += world->hosts[h].under_way;
        if (under_way == 0)
            break;
        world_run(world, MS);
    }
    for (uint32_t i = 0; i < world->host_count; i++) {
        struct host *host = &world->hosts[i];

        assert_int_equal(host->under_way, 0);
        loop_stop(host->loop);
        loop_join(host->loop);
        loop_free(&host->loop);
        nvmf_ctrl_free(&host->ctrl);
        for (uint32_t j = 0; j < host->depth; j++)
            free(host->jobs[j].memory);
        free(host->jobs);
    }
    target_stop(world->target);
    target_free(&world->target);
    sim_free(&world->sim);
    free(world);
}

/* Counts from now on, for so long. */
static void world_measure(struct world *world, uint64_t ns)
{
    memset(world->tally, 0, sizeof(world->tally));
    world->samples = 0;
    world_run(world, ns);
}

static int order_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static uint64_t world_p99(struct world *world)
{
    assert_true(world->samples > 200);
    qsort(world->ns, world->samples, sizeof(world->ns[0]), order_u64);
    return world->ns[world->samples * 99ull / 100];
}

/* What part of the bytes of two volumes the first has. */
static double world_part(const struct world *world)
{
    double a = (double)world->tally[0].bytes, b = (double)world->tally[1].bytes;

    print_message("  %.1f and %.1f MiB: %.3f\n", a / (double)MIB, b / (double)MIB, a / (a + b));
    assert_int_equal(world->tally[0].errors + world->tally[1].errors, 0);
    return a / (a + b);
}

static void expect_part(const struct world *world, double part, double within)
{
    double got = world_part(world);

    if (got < part - within || got > part + within)
        fail_msg("%.3f of the bytes where %.3f +- %.3f are fair", got, part, within);
}

/* ---- parts ---------------------------------------------------------------------------------- */

/* Two tenants that want all there is, one with more commands in each host and larger ones: 3:1
 * +- 10 %, 50 +- 5 %. Each has more commands on each loop than a window takes, so some always wait.
 */
static void parts_run(uint64_t seed, enum job_kind kind, uint32_t loops, uint32_t weight)
{
    struct world *world = world_new(seed, loops, 32 * MIB);

    world->tenants[0].weight = weight;
    world_start(world);
    if (kind == JOB_LOAD) {
        world_keep(world, 0, 32 * KIB);
        world_keep(world, 1, 256 * KIB);
    }
    for (uint32_t i = 0; i < 2 * loops; i++)
        host_start(host_new(world, kind, 0, 64, 32 * KIB));
    for (int i = 0; i < 3; i++)
        host_start(host_new(world, kind, 1, 64, 256 * KIB));
    world_measure(world, 500 * MS);
    world_measure(world, 3 * SECOND);
    expect_part(world, (double)weight / (weight + 1), weight == 1 ? 0.025 : 0.0175);
    world_free(world);
}

static void equal_tenants_get_half_of_the_loads(void **state)
{
    for (uint32_t i = 0; i < rounds; i++)
        parts_run(1 + i, JOB_LOAD, 1, 1);
}

static void equal_tenants_get_half_of_the_stores(void **state)
{
    for (uint32_t i = 0; i < rounds; i++)
        parts_run(1 + i, JOB_STORE, 1, 1);
}

static void three_times_the_weight_gets_three_times_the_bytes(void **state)
{
    for (uint32_t i = 0; i < rounds; i++) {
        parts_run(1 + i, JOB_LOAD, 1, 3);
        parts_run(1 + i, JOB_STORE, 1, 3);
    }
}

/* Hosts spread over the loops: each loop has its part of every tenant. */
static void several_loops_keep_one_sum(void **state)
{
    for (uint32_t i = 0; i < rounds; i++) {
        parts_run(1 + i, JOB_LOAD, 2, 1);
        parts_run(1 + i, JOB_STORE, 2, 3);
    }
}

/* ---- loads beside a flood of stores --------------------------------------------------------- */

static void flood_run(uint64_t seed, uint32_t bytes)
{
    struct world *world = world_new(seed, 1, 512 * MIB);
    uint64_t alone_ns, beside_ns, alone_ops;

    world->opts.nvmf.memory_bytes = 128 * MIB;
    world_start(world);
    world_keep(world, 0, bytes);
    host_start(host_new(world, JOB_LOAD, 0, 4, bytes));
    world_measure(world, 400 * MS);
    alone_ns = world_p99(world);
    alone_ops = world->tally[0].ops;
    for (int i = 0; i < 6; i++)
        host_start(host_new(world, JOB_STORE, 1, 64, 256 * KIB));
    world_measure(world, 200 * MS);
    world_measure(world, 400 * MS);
    beside_ns = world_p99(world);
    print_message("  p99 of loads: %llu us alone, %llu us beside %.0f MiB/s of stores; %llu and "
                  "%llu loads\n",
                  (unsigned long long)alone_ns / 1000, (unsigned long long)beside_ns / 1000,
                  (double)world->tally[1].bytes / (double)MIB, (unsigned long long)alone_ops,
                  (unsigned long long)world->tally[0].ops);
    assert_int_equal(world->tally[0].errors, 0);
    assert_int_equal(world->tally[0].misses, 0);
    assert_true(world->tally[1].bytes > 20 * MIB); /* they are not starved either */
    assert_true(beside_ns <= 2 * alone_ns);
    world_free(world);
}

static void loads_keep_their_pace_beside_a_flood_of_stores(void **state)
{
    for (uint32_t i = 0; i < rounds; i++) {
        flood_run(1 + i, 256 * KIB);
        flood_run(1 + i, 32 * KIB);
    }
}

/* ---- loads beside prestaging ---------------------------------------------------------------- */

/* A host loads one block after the other while three others of the same tenant, on all loops,
 * prestage as much as they can, 15 MiB each. Then it stops, and they go on with what the drives
 * give. One of them has little time for each: what waits for longer ends by its deadline. */
static void prestage_run(uint64_t seed, uint32_t loops, uint32_t bytes)
{
    struct world *world = world_new(seed, loops, 512 * MIB);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    uint64_t alone_ns, beside_ns, beside;
    struct host *loader;

    check(stats != NULL);
    (void)snprintf(world->volumes[1].tenant, LIMIT_NAME_BYTES, "a");
    world_start(world);
    world_keep(world, 0, bytes);
    world_keep(world, 1, 256 * KIB);
    loader = host_new(world, JOB_LOAD, 0, 1, bytes);
    host_start(loader);
    world_measure(world, 420 * MS);
    alone_ns = world_p99(world);
    for (int i = 0; i < 3; i++) {
        struct host *host = host_new(world, JOB_PRESTAGE, 1, 60, 256 * KIB);

        host->deadline_ns = i == 0 ? 20 * MS : host->deadline_ns;
        host_start(host);
    }
    world_measure(world, 20 * MS);
    world_measure(world, 480 * MS);
    beside_ns = world_p99(world);
    beside = world->tally[1].bytes;
    assert_true(beside > 0);
    assert_true(world->tally[1].lates > 0);
    loader->stop = true;
    world_measure(world, 30 * MS);
    world_measure(world, 100 * MS);
    target_stats(world->target, stats);
    print_message("  p99 of loads: %llu us alone, %llu us beside %.0f MiB/s of prestaging, which "
                  "then got %.0f MiB/s; %llu waited\n",
                  (unsigned long long)alone_ns / 1000, (unsigned long long)beside_ns / 1000,
                  (double)beside / (double)MIB / 0.48,
                  (double)world->tally[1].bytes / (double)MIB / 0.1,
                  (unsigned long long)stats->nvmf.prestage_parks);
    assert_int_equal(world->tally[0].errors + world->tally[1].errors, 0);
    assert_int_equal(world->tally[1].misses, 0);
    assert_true(stats->nvmf.prestage_parks > 0);
    assert_true(world->tally[1].bytes > 25 * MIB); /* of 102 that the drives give */
    assert_true(2 * beside_ns <= 3 * alone_ns);
    free(stats);
    world_free(world);
}

static void loads_keep_their_pace_beside_prestaging(void **state)
{
    for (uint32_t i = 0; i < rounds; i++) {
        prestage_run(1 + i, 1, 256 * KIB);
        prestage_run(1 + i, 2, 256 * KIB);
    }
}

/* How many blocks a host that prestages has beside a flood of loads, and prestaging of others. */
static uint64_t flooded_run(uint32_t loops, uint32_t others, bool expedites)
{
    struct world *world = world_new(loops, loops, 512 * MIB);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    struct host *host;
    uint64_t ops;

    check(stats != NULL);
    (void)snprintf(world->volumes[1].tenant, LIMIT_NAME_BYTES, "a");
    (void)snprintf(world->volumes[2].tenant, LIMIT_NAME_BYTES, "a");
    world_start(world);
    for (uint32_t i = 0; i < VOLUMES; i++)
        world_keep(world, i, 256 * KIB);
    for (int i = 0; i < 3; i++)
        host_start(host_new(world, JOB_LOAD, 0, 60, 256 * KIB));
    for (uint32_t i = 0; i < others; i++)
        host_start(host_new(world, JOB_PRESTAGE, 2, 60, 256 * KIB));
    world_measure(world, 100 * MS);
    host = host_new(world, JOB_PRESTAGE, 1, 8, 256 * KIB);
    host->expedites = expedites;
    host_start(host);
    world_measure(world, 200 * MS);
    ops = world->tally[1].ops;
    target_stats(world->target, stats);
    print_message("  %llu of prestaging%s beside %llu of others and %llu loads\n",
                  (unsigned long long)ops, expedites ? ", waited for," : "",
                  (unsigned long long)world->tally[2].ops, (unsigned long long)world->tally[0].ops);
    for (uint32_t i = 0; i < VOLUMES; i++)
        assert_int_equal(world->tally[i].errors + world->tally[i].misses + world->tally[i].lates,
                         0);
    assert_int_equal(world->tally[1].bytes, ops * 256 * KIB); /* each came once */
    assert_int_equal(stats->nvmf.prestage_expedites > 0, expedites);
    free(stats);
    world_free(world);
    return ops;
}

/* Loads that never end do not stop prestaging: an engine may wait for a block that is on its way.
 */
static void prestaging_goes_on_beside_a_flood_of_loads(void **state)
{
    for (uint32_t loops = 1; loops <= 2; loops++)
        assert_true(flooded_run(loops, 0, false) >= 10);
}

/* What an engine does wait for has the turns of loads, whatever others prestage. */
static void what_is_waited_for_stands_in_no_line_of_hints(void **state)
{
    for (uint32_t loops = 1; loops <= 2; loops++)
        assert_true(flooded_run(loops, 6, true) >= 4 * flooded_run(loops, 6, false));
}

/* ---- idle tenants and limits ---------------------------------------------------------------- */

static uint64_t alone_run(uint64_t seed, uint32_t weight, bool other)
{
    struct world *world = world_new(seed, 1, 32 * MIB);
    uint64_t bytes;

    world->tenants[1].weight = weight;
    world_start(world);
    if (other) /* one that has had its part, and is connected */
        world_keep(world, 1, 256 * KIB);
    host_start(host_new(world, JOB_STORE, 0, 64, 64 * KIB));
    world_measure(world, 200 * MS);
    world_measure(world, SECOND);
    bytes = world->tally[0].bytes;
    world_free(world);
    return bytes;
}

static void an_idle_tenant_costs_nothing(void **state)
{
    for (uint32_t i = 0; i < rounds; i++) {
        double alone = (double)alone_run(1 + i, 1, false);
        double beside = (double)alone_run(1 + i, 1000, true);

        print_message("  %.3f of what it has alone\n", beside / alone);
        assert_true(beside >= 0.97 * alone);
    }
}

static void limits_run(uint64_t seed, uint64_t bytes_per_s, uint32_t ops_per_s)
{
    struct world *world = world_new(seed, 2, 64 * MIB);
    double limit = (double)(bytes_per_s != 0 ? bytes_per_s : ops_per_s), got, other;

    world->tenants[0].store_bytes_per_s = bytes_per_s;
    world->tenants[0].store_ops_per_s = ops_per_s;
    world_start(world);
    host_start(host_new(world, JOB_STORE, 0, 48, 64 * KIB));
    host_start(host_new(world, JOB_STORE, 0, 48, 64 * KIB));
    host_start(host_new(world, JOB_STORE, 2, 16, 64 * KIB));
    world_measure(world, SECOND);
    world_measure(world, 2 * SECOND);
    got = (double)(bytes_per_s != 0 ? world->tally[0].bytes : world->tally[0].ops) / 2;
    other = (double)world->tally[2].bytes;
    print_message("  %.0f a second of %.0f, and %.1f MiB of another\n", got, limit,
                  other / (double)MIB);
    assert_true(got >= 0.95 * limit && got <= 1.05 * limit);
    assert_true(other > 20 * (double)MIB);
    world_free(world);
}

static void limits_hold_over_all_loops(void **state)
{
    for (uint32_t i = 0; i < rounds; i++) {
        limits_run(1 + i, 10 * MIB, 0);
        limits_run(1 + i, 0, 200);
    }
}

/* Keys that are looked for count one by one, in commands of one or of many. */
static void lookups_run(uint64_t seed, enum job_kind kind, uint32_t ops_per_s)
{
    struct world *world = world_new(seed, 2, 64 * MIB);
    double got, counted;
    struct target_stats *stats = calloc(2, sizeof(*stats));

    check(stats != NULL);
    world->tenants[1].load_ops_per_s = ops_per_s;
    world_start(world);
    world_keep(world, 0, 64 * KIB);
    world_keep(world, 1, 64 * KIB);
    for (int i = 0; i < 3; i++)
        host_start(host_new(world, kind, 1, 48, 1));
    host_start(host_new(world, JOB_LOAD, 0, 8, 64 * KIB));
    world_measure(world, SECOND);
    target_stats(world->target, &stats[0]);
    world_measure(world, 2 * SECOND);
    target_stats(world->target, &stats[1]);
    got = (double)world->tally[1].keys / 2;
    counted = (double)(stats[1].tenants[1].nvmf.ops[NVMF_TARGET_LOADS] -
                       stats[0].tenants[1].nvmf.ops[NVMF_TARGET_LOADS]) /
              2;
    print_message("  %.0f keys a second, %.0f counted, of %u\n", got, counted, ops_per_s);
    assert_int_equal(world->tally[1].errors, 0);
    assert_int_equal(world->tally[1].misses, kind == JOB_ABSENT ? world->tally[1].keys : 0);
    assert_true(got >= 0.95 * ops_per_s && got <= 1.05 * ops_per_s);
    assert_true(counted >= 0.99 * got && counted <= 1.01 * got);
    assert_true(world->tally[0].bytes > 20 * MIB); /* whoever loads meanwhile is not held up */
    free(stats);
    world_free(world);
}

static void limits_count_the_keys_of_lookups(void **state)
{
    for (uint32_t i = 0; i < rounds; i++) {
        lookups_run(1 + i, JOB_EXIST, 3000);
        lookups_run(1 + i, JOB_EXIST_MANY, 50000);
        lookups_run(1 + i, JOB_ABSENT, 3000);
    }
}

/* Loads of one tenant beside another one that looks for keys as fast as it can. */
static void lookups_flood_run(uint64_t seed, enum job_kind kind)
{
    struct world *world = world_new(seed, 1, 512 * MIB);
    uint64_t alone_ns, beside_ns;

    world_start(world);
    world_keep(world, 0, 64 * KIB);
    world_keep(world, 1, 64 * KIB);
    host_start(host_new(world, JOB_LOAD, 0, 8, 64 * KIB));
    world_measure(world, 200 * MS);
    alone_ns = world_p99(world);
    for (int i = 0; i < 2; i++)
        host_start(host_new(world, kind, 1, 64, 1));
    world_measure(world, 10 * MS);
    world_measure(world, 120 * MS);
    beside_ns = world_p99(world);
    print_message("  p99 of loads: %llu us alone, %llu us beside %.0f keys a second\n",
                  (unsigned long long)alone_ns / 1000, (unsigned long long)beside_ns / 1000,
                  (double)world->tally[1].keys / 0.12);
    assert_int_equal(world->tally[0].errors + world->tally[1].errors, 0);
    assert_true(world->tally[1].keys > 5000);
    assert_true(beside_ns <= 2 * alone_ns);
    world_free(world);
}

static void loads_keep_their_pace_beside_a_flood_of_lookups(void **state)
{
    for (uint32_t i = 0; i < rounds; i++) {
        lookups_flood_run(1 + i, JOB_EXIST_MANY);
        lookups_flood_run(1 + i, JOB_ABSENT);
    }
}

/* ---- hoarders ------------------------------------------------------------------------------- */

/* A host of a volume that sends commands and neither reads nor writes after that. */
static struct peer *hoarder_new(struct world *world, uint32_t number, uint32_t volume,
                                uint8_t opcode, uint32_t commands, struct peer **out_admin)
{
    struct nvme_kv_cmd cmd = {.opcode = opcode, .nsid = volume + 1, .bytes = VALUE_MAX};
    struct loop_addr addr;
    struct nvme_sqe_wf sqe;
    struct peer *io;

    nvmf_target_addr(target_nvmf(world->target), 0, &addr);
    *out_admin = peer_new_sim(world->sim, world->hosts[0].node, &addr);
    assert_non_null(*out_admin);
    (void)snprintf((*out_admin)->host, LIMIT_NQN_BYTES, "nqn.2026-01.io.icms:hoarder%u", number);
    assert_true(peer_admin(*out_admin, 0));
    io = peer_new_sim(world->sim, world->hosts[0].node, &addr);
    assert_non_null(io);
    memcpy(io->host, (*out_admin)->host, sizeof(io->host));
    io->entries = 128;
    assert_true(peer_io(io, *out_admin, 1, 0));
    for (uint32_t i = 0; i < commands; i++) {
        cmd.key = block_key((uint32_t)dice(world, KEPT));
        nvme_kv_cmd_encode(&cmd, &sqe);
        (void)peer_submit(io, &sqe, VALUE_MAX);
    }
    return io;
}

/* What a polite tenant loads or stores beside hosts that take and give nothing, Lists and flushes.
 * One of the two at a time: stores get what loads leave, and how the 32 loads in flight happen to
 * lie on the two drives alone makes that 0.7 to 1.05 times what it was a second before. */
static void hoarders_run(uint64_t seed, enum job_kind kind)
{
    enum { HOARDERS = 30 };
    struct world *world = world_new(seed, 1, 64 * MIB);
    struct peer *io[HOARDERS], *admin[HOARDERS];
    double alone, beside;

    world_start(world);
    world_keep(world, 0, 64 * KIB);
    world_keep(world, 1, 256 * KIB);
    host_start(host_new(world, kind, 0, 32, 64 * KIB));
    world_measure(world, 500 * MS);
    world_measure(world, SECOND);
    alone = (double)world->tally[0].bytes;
    for (uint32_t i = 0; i < HOARDERS; i++)
        io[i] =
            hoarder_new(world, i, 1, i % 2 == 0 ? NVME_KV_RETRIEVE : NVME_KV_STORE, 100, &admin[i]);
    for (int i = 0; i < 4; i++) {
        host_start(host_new(world, JOB_LIST, 1, 16, VALUE_MAX));
        host_start(host_new(world, JOB_FLUSH, 1, 16, 1));
    }
    world_measure(world, 500 * MS);
    world_measure(world, SECOND);
    beside = (double)world->tally[0].bytes;
    print_message("  %s %.3f of what they were alone\n", kind == JOB_LOAD ? "loads" : "stores",
                  beside / alone);
    assert_int_equal(world->tally[0].errors, 0);
    assert_true(beside >= 0.9 * alone);
    for (uint32_t i = 0; i < HOARDERS; i++) {
        peer_free(&io[i]);
        peer_free(&admin[i]);
    }
    world_free(world);
}

static void hoarders_cost_others_little(void **state)
{
    for (uint32_t i = 0; i < rounds; i++) {
        hoarders_run(1 + i, JOB_LOAD);
        hoarders_run(1 + i, JOB_STORE);
    }
}

/* Hosts that send no data hold all memory that stores may have, two buffers, and others wait for
 * it. Prestaging has the memory of loads: it goes on, and stores do when there is memory again. */
static void prestaging_goes_on_while_stores_wait_for_memory(void **state)
{
    enum { HOARDERS = 2 };
    struct world *world = world_new(1, 1, 64 * MIB);
    struct peer *io[HOARDERS], *admin[HOARDERS];

    world->opts.nvmf.memory_bytes = MIB;
    world->opts.nvmf.connections_max = 16;
    world_start(world);
    world_keep(world, 0, 256 * KIB);
    for (uint32_t i = 0; i < HOARDERS; i++)
        io[i] = hoarder_new(world, i, i, NVME_KV_STORE, 2, &admin[i]);
    world_measure(world, SECOND);
    host_start(host_new(world, JOB_PRESTAGE, 0, 60, 256 * KIB));
    host_start(host_new(world, JOB_STORE, 2, 8, 256 * KIB));
    world_measure(world, 20 * MS);
    world_measure(world, 100 * MS);
    print_message("  %llu of prestaging, %.0f MiB stored\n",
                  (unsigned long long)world->tally[0].ops,
                  (double)world->tally[2].bytes / (double)MIB);
    assert_int_equal(world->tally[2].bytes, 0); /* they wait */
    assert_true(world->tally[0].bytes >= 3 * MIB);
    for (uint32_t i = 0; i < HOARDERS; i++) {
        peer_free(&io[i]);
        peer_free(&admin[i]);
    }
    world_measure(world, 20 * MS);
    world_measure(world, 100 * MS);
    assert_int_equal(world->tally[0].errors + world->tally[2].errors, 0);
    assert_true(world->tally[2].bytes >= MIB);
    assert_true(world->tally[0].bytes >= MIB);
    world_free(world);
}

/* ---- quotas --------------------------------------------------------------------------------- */

/* Hosts fill volumes with small quotas over all loops and drives: none ever holds more, each holds
 * nearly all of it, and none stands still. */
static void quotas_run(uint64_t seed, uint32_t loops)
{
    struct world *world = world_new(seed, loops, 512 * MIB);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    uint64_t bytes[2] = {0};

    check(stats != NULL);
    world->volumes[0].quota_bytes = 20 * MIB + 12345; /* a stream of its own on each drive */
    world->volumes[1].quota_bytes = MIB + seed % 7 * 4096;
    world_start(world);
    for (uint32_t i = 0; i < 6; i++)
        host_start(host_new(world, JOB_STORE, i % 2, 32, i < 2 ? 256 * KIB : 20 * KIB));
    world_run(world, 200 * MS);
    for (int i = 0; i < 500; i++) {
        world_measure(world, MS);
        target_stats(world->target, stats);
        for (int v = 0; v < 2; v++) {
            const struct store_volume_stats *volume = &stats->volumes[v].store;

            bytes[v] += world->tally[v].bytes;
            assert_true(volume->bytes <= world->volumes[v].quota_bytes);
            if (i % 100 != 99)
                continue;
            assert_true(bytes[v] > 0);
            bytes[v] = 0;
            if (v == 0) /* what is evicted ahead, and a segment of each drive */
                assert_true(volume->bytes >= world->volumes[v].quota_bytes / 2);
        }
    }
    assert_true(stats->volumes[0].store.evictions > 0 && stats->volumes[1].store.evictions > 0);
    free(stats);
    world_free(world);
}

static void quotas_hold_while_many_store(void **state)
{
    for (uint32_t i = 0; i < rounds; i++) {
        quotas_run(1 + i, 1);
        quotas_run(1 + i, 2);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_tenants_get_half_of_the_loads),
        cmocka_unit_test(equal_tenants_get_half_of_the_stores),
        cmocka_unit_test(three_times_the_weight_gets_three_times_the_bytes),
        cmocka_unit_test(several_loops_keep_one_sum),
        cmocka_unit_test(loads_keep_their_pace_beside_a_flood_of_stores),
        cmocka_unit_test(loads_keep_their_pace_beside_prestaging),
        cmocka_unit_test(prestaging_goes_on_beside_a_flood_of_loads),
        cmocka_unit_test(what_is_waited_for_stands_in_no_line_of_hints),
        cmocka_unit_test(an_idle_tenant_costs_nothing),
        cmocka_unit_test(limits_hold_over_all_loops),
        cmocka_unit_test(limits_count_the_keys_of_lookups),
        cmocka_unit_test(loads_keep_their_pace_beside_a_flood_of_lookups),
        cmocka_unit_test(hoarders_cost_others_little),
        cmocka_unit_test(prestaging_goes_on_while_stores_wait_for_memory),
        cmocka_unit_test(quotas_hold_while_many_store),
    };

    if (argc > 1)
        rounds = (uint32_t)strtoul(argv[1], NULL, 10);
    return cmocka_run_group_tests_name("target-fair", tests, NULL, NULL);
}
