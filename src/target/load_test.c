/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An enclosure of four simulated drives under more than it can take.
 *
 *   target_load_test [ROUNDS]
 *
 * A drive that becomes 100 times slower: its own runs are late, then misses, then the next drive in
 * order has them; the p99 of everything else stays within 20 percent; when it is well again, it is
 * used again. Stores at more than ten times what the drives take: they are shed and counted, loads
 * come by their deadline, memory stays within its limit, and every acknowledged block is there or
 * was evicted, to the block.
 *
 * One host on one thread: flights of timed commands on a queue pair, each replaced when it ends.
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
#include "nvmf/target/test_peer.h"
#include "target/target_int.h"

#define DRIVES     4
#define DEPTH      60
#define BLOCKS_MAX 40000
#define VALUE      ((uint32_t)32 << 10)
#define MIB        ((uint64_t)1 << 20)
#define MS         ((uint64_t)1000 * 1000)
#define SAMPLES    20000

/* A command under way. */
struct flight {
    bool busy;      /* or free                             */
    bool store;     /* else a load                         */
    uint16_t cid;   /* of the command                      */
    uint32_t block; /* which one                           */
    uint64_t at_ns; /* when it was sent                    */
    uint32_t bytes; /* that came so far                    */
    uint64_t first; /* load: the first eight bytes         */
};

/* A queue pair with its commands. */
struct line {
    struct peer *admin, *io;
    struct flight flights[DEPTH];
    uint32_t under_way; /* of the flights */
};

/* How long operations took, and how they ended. */
struct tally {
    uint64_t ns[SAMPLES]; /* of those that are counted            */
    uint32_t count;       /* of ns                                */
    uint32_t hits, misses, late, sheds, acked;
};

struct world {
    struct sim *sim;
    struct sim_node *node, *host;
    struct target_drive_opts drives[DRIVES];
    char paths[DRIVES][32];
    struct volume_spec volume;
    struct target_opts opts;
    struct target *target;
    uint64_t deadline_ns;      /* of loads; stores have five times as much      */
    uint64_t random;           /* dice                                             */
    uint8_t home[BLOCKS_MAX];  /* drive of each block when it was stored           */
    bool acked[BLOCKS_MAX];    /* its store was answered with success              */
    uint32_t recent[256];      /* blocks acknowledged last: a ring                 */
    struct tally other, own;   /* loads of other drives' blocks, of the slow one's */
    struct tally stores;       /* all of them                                      */
    struct target_stats stats; /* scratch                                          */
};

static uint32_t rounds = 1;

static uint64_t dice(struct world *world, uint64_t sides)
{
    world->random = hash64_mix(world->random);
    return world->random % sides;
}

/* A run of its own for each block: all drives get some. */
static struct key block_key(uint32_t block)
{
    struct key key = {.length = 16};
    uint64_t run = hash64_mix(block + 1);

    memcpy(key.bytes, &run, 8);
    memcpy(key.bytes + 8, &block, 4);
    return key;
}

static void line_open(struct world *world, struct line *line)
{
    struct loop_addr addr;

    memset(line, 0, sizeof(*line));
    nvmf_target_addr(target_nvmf(world->target), 0, &addr);
    line->admin = peer_new_sim(world->sim, world->host, &addr);
    assert_true(line->admin != NULL && peer_admin(line->admin, 0));
    line->io = peer_new_sim(world->sim, world->host, &addr);
    assert_non_null(line->io);
    line->io->entries = 64;
    assert_true(peer_io(line->io, line->admin, 1, 0));
}

static void line_close(struct line *line)
{
    peer_free(&line->io);
    peer_free(&line->admin);
}

static void line_send(struct world *world, struct line *line, uint32_t block, bool store)
{
    struct nvme_kv_cmd cmd = {
        .opcode = store ? NVME_ICMS_STORE : NVME_ICMS_RETRIEVE,
        .nsid = 1,
        .key = block_key(block),
        .bytes = VALUE,
        .io_class = store ? IO_CLASS_STORE : IO_CLASS_LOAD,
        .time_left_us = (uint32_t)(world->deadline_ns / 1000) * (store ? 5 : 1),
    };
    struct nvme_sqe_wf sqe;
    uint32_t i = 0;

    while (line->flights[i].busy)
        i++;
    check(i < DEPTH);
    nvme_kv_cmd_encode(&cmd, &sqe);
    line->flights[i] = (struct flight){
        .busy = true, .store = store, .block = block, .at_ns = sim_now_ns(world->sim)};
    line->flights[i].cid = peer_submit(line->io, &sqe, VALUE);
    line->under_way++;
}

static void value_make(uint32_t block, uint8_t *value)
{
    for (uint32_t i = 0; i < VALUE; i += 8) {
        uint64_t word = hash64_mix(block * 4099ull + i);

        memcpy(value + i, &word, 8);
    }
}

static void tally_load(struct world *world, struct tally *tally, const struct flight *flight,
                       const struct nvme_cqe *cqe)
{
    uint64_t took_ns = sim_now_ns(world->sim) - flight->at_ns;

    if (tally->count < SAMPLES)
        tally->ns[tally->count++] = took_ns;
    tally->late += took_ns > world->deadline_ns;
    if (cqe->status == NVME_SC_SUCCESS) {
        if (flight->bytes != VALUE || flight->first != hash64_mix(flight->block * 4099ull))
            fail_msg("block %u: wrong bytes", flight->block);
        tally->hits++;
    } else {
        tally->misses++;
        tally->sheds += cqe->dw1 == ICMS_MISS_SHED;
    }
}

static void line_done(struct world *world, struct flight *flight, const struct nvme_cqe *cqe)
{
    flight->busy = false;
    if (!flight->store) {
        tally_load(world, world->home[flight->block] == 0 ? &world->own : &world->other, flight,
                   cqe);
        return;
    }
    if (cqe->status == NVME_SC_SUCCESS) {
        world->acked[flight->block] = true;
        world->recent[world->stores.acked++ % 256] = flight->block;
    } else {
        world->stores.misses++;
        world->stores.sheds += cqe->dw1 == ICMS_MISS_SHED;
    }
}

static struct flight *line_flight(struct line *line, le16 cid)
{
    for (uint32_t i = 0; i < DEPTH; i++)
        if (line->flights[i].busy && line->flights[i].cid == le16_get(cid))
            return &line->flights[i];
    fail_msg("an answer to nothing");
    return NULL;
}

static void line_r2t(struct line *line, const struct nvme_tcp_r2t_wf *r2t)
{
    static uint8_t value[VALUE];
    uint32_t end = le32_get(r2t->offset) + le32_get(r2t->length);

    value_make(line_flight(line, r2t->cid)->block, value);
    for (uint32_t at = le32_get(r2t->offset); at < end;) {
        uint32_t bytes = (uint32_t)u64_min(end - at, 16384);
        union nvme_tcp_pdu pdu;

        nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, at + bytes == end ? NVME_TCP_FLAG_LAST : 0,
                             le16_get(r2t->cid), le16_get(r2t->ttag), at, bytes);
        assert_true(peer_send_pdu(line->io, &pdu, value + at, bytes));
        at += bytes;
    }
}

/* Receives one PDU; false: none came in so many milliseconds. */
static bool line_receive(struct world *world, struct line *line, uint32_t timeout_ms)
{
    static uint8_t data[VALUE];
    union nvme_tcp_pdu pdu;
    struct nvme_cqe cqe;
    struct flight *flight;
    uint32_t bytes;
    enum peer_got got;

    line->io->timeout_ms = timeout_ms;
    got = peer_recv_pdu(line->io, &pdu, data, sizeof(data), &bytes);
    if (got == PEER_SILENCE)
        return false;
    assert_int_equal(got, PEER_PDU);
    switch (pdu.common.type) {
    case NVME_TCP_R2T:
        line_r2t(line, &pdu.r2t);
        break;
    case NVME_TCP_C2H_DATA:
        flight = line_flight(line, pdu.data.cid);
        if (le32_get(pdu.data.offset) == 0 && bytes >= 8)
            memcpy(&flight->first, data, 8);
        flight->bytes += bytes;
        break;
    default:
        assert_int_equal(pdu.common.type, NVME_TCP_CAPSULE_RESP);
        nvme_cqe_decode(&pdu.resp.cqe, &cqe);
        line_done(world, line_flight(line, pdu.resp.cqe.cid), &cqe);
        line->under_way--;
    }
    return true;
}

static void line_drain(struct world *world, struct line *line)
{
    while (line->under_way > 0)
        assert_true(line_receive(world, line, 60000));
}

/* ---- a world -------------------------------------------------------------------------------- */

static struct world *world_new(uint64_t seed, uint64_t disk_bytes_per_s, uint64_t drive_bytes)
{
    struct world *world = calloc(1, sizeof(*world));
    struct err_why why = {""};
    struct sim_opts sim_opts;

    check(world != NULL);
    world->random = seed;
    sim_opts_init(&sim_opts, seed);
    sim_opts.disk_bytes_per_s = disk_bytes_per_s;
    world->sim = sim_new(&sim_opts);
    world->node = sim_node_new(world->sim, "10.1.0.1");
    world->host = sim_node_new(world->sim, "10.1.0.2");
    target_opts_init(&world->opts);
    world->opts.env = sim_node_env(world->node);
    world->opts.nvmf.nqn = "nqn.2026-01.io.icms:test";
    world->opts.nvmf.enclosure = (struct uuid){{3}};
    check(loop_addr_parse("10.1.0.1:4420", NULL, &world->opts.nvmf.portals[0].listen) == ICMS_OK);
    world->opts.loops = 2;
    world->opts.segment_bytes = MIB;
    world->opts.nvmf.memory_bytes = 8 * MIB;
    world->opts.nvmf.store_backlog_bytes = MIB / 8;
    world->opts.nvmf.connections_max = 8;
    world->opts.drives = world->drives;
    world->opts.drive_count = DRIVES;
    world->volume = (struct volume_spec){.uuid = {{7}}, .value_bytes_max = VALUE};
    world->opts.volumes = &world->volume;
    world->opts.volume_count = 1;
    for (uint32_t i = 0; i < DRIVES; i++) {
        snprintf(world->paths[i], sizeof(world->paths[i]), "/drive/%u", i);
        world->drives[i] =
            (struct target_drive_opts){.path = world->paths[i], .bytes = drive_bytes};
    }
    world->deadline_ns = 60000 * MS;
    if (target_new(&world->opts, &why, &world->target) != ICMS_OK ||
        target_start(world->target, &why) != ICMS_OK)
        fail_msg("%s", why.text);
    return world;
}

static void world_free(struct world *world)
{
    target_stop(world->target);
    target_free(&world->target);
    sim_free(&world->sim);
    free(world);
}

/* The drive whose index has the block; DRIVES: none. */
static uint32_t world_home(struct world *world, uint32_t block)
{
    struct key key = block_key(block);

    for (uint32_t i = 0; i < DRIVES; i++)
        if (store_exists(world->target->drives[i].store, 0, &key, NULL))
            return i;
    return DRIVES;
}

static void world_store(struct world *world, struct line *line, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        while (line->under_way == DEPTH / 4)
            assert_true(line_receive(world, line, 60000));
        line_send(world, line, i, true);
    }
    line_drain(world, line);
    for (uint32_t i = first; i < first + count; i++)
        world->home[i] = (uint8_t)world_home(world, i);
}

/* ---- a slow drive --------------------------------------------------------------------------- */

static int order_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static uint64_t tally_p99(struct tally *tally)
{
    assert_true(tally->count > 1000);
    qsort(tally->ns, tally->count, sizeof(tally->ns[0]), order_u64);
    return tally->ns[tally->count * 99ull / 100];
}

/* So many loads of stored blocks, any drive. */
static void world_load(struct world *world, struct line *line, uint32_t blocks, uint32_t loads)
{
    memset(&world->own, 0, sizeof(world->own));
    memset(&world->other, 0, sizeof(world->other));
    for (uint32_t i = 0; i < loads; i++) {
        while (line->under_way == DEPTH / 3)
            assert_true(line_receive(world, line, 60000));
        line_send(world, line, (uint32_t)dice(world, blocks), false);
    }
    line_drain(world, line);
}

static void slow_run(uint64_t seed)
{
    enum { BLOCKS = 600, LOADS = 6000 };
    struct world *world = world_new(seed, (uint64_t)2 << 30, 64 * MIB);
    struct target_drive_stats *slow = &world->stats.drives[0];
    struct line line;
    uint64_t before_ns, during_ns;
    uint32_t moved = 0;

    line_open(world, &line);
    world_store(world, &line, 0, BLOCKS);
    assert_int_equal(world->stores.acked, BLOCKS);
    world->deadline_ns = 20 * MS;
    world_load(world, &line, BLOCKS, LOADS);
    assert_int_equal(world->other.hits, world->other.count);
    assert_true(world->own.hits > LOADS / 8);
    before_ns = tally_p99(&world->other);

    sim_file_slow(world->node, world->paths[0], 100);
    world_load(world, &line, BLOCKS, LOADS);
    during_ns = tally_p99(&world->other);
    target_stats(world->target, &world->stats);
    print_message("p99 of others %llu us, then %llu us; its own: %u hits, %u misses, %u late\n",
                  (unsigned long long)before_ns / 1000, (unsigned long long)during_ns / 1000,
                  world->own.hits, world->own.misses, world->own.late);
    assert_true(during_ns * 100 < before_ns * 120);
    assert_int_equal(world->other.hits, world->other.count);
    assert_true(slow->slow && slow->slow_total >= 1 && !slow->out);
    assert_true(world->own.late < LOADS / 100); /* the rest are quick misses */

    /* The next drive takes over. */
    world_store(world, &line, BLOCKS, BLOCKS);
    assert_int_equal(world->stores.acked, 2 * BLOCKS);
    for (uint32_t i = BLOCKS; i < 2 * BLOCKS; i++)
        assert_true(world->home[i] != 0 && world->home[i] != DRIVES);
    world_load(world, &line, 2 * BLOCKS, LOADS);
    assert_int_equal(world->other.hits, world->other.count);

    /* Well again. */
    sim_file_slow(world->node, world->paths[0], 1);
    (void)sim_run(world->sim, sim_now_ns(world->sim) + 2000 * MS);
    target_stats(world->target, &world->stats);
    assert_false(slow->slow);
    world_load(world, &line, 2 * BLOCKS, LOADS);
    assert_int_equal(world->other.hits, world->other.count);
    assert_int_equal(world->own.hits, world->own.count);
    world_store(world, &line, 2 * BLOCKS, BLOCKS);
    for (uint32_t i = 2 * BLOCKS; i < 3 * BLOCKS; i++)
        moved += world->home[i] == 0;
    assert_true(moved > BLOCKS / 8);
    line_close(&line);
    world_free(world);
}

static void a_slow_drive_costs_its_own_runs_only(void **state)
{
    for (uint32_t i = 0; i < rounds; i++)
        slow_run(1 + i);
}

/* Who gives an operation less time than a drive can keep does not make the drive slow. */
static void haste_does_not_make_a_drive_slow(void **state)
{
    enum { BLOCKS = 600 };
    struct world *world = world_new(1, (uint64_t)2 << 30, 64 * MIB);
    struct line line;

    line_open(world, &line);
    world_store(world, &line, 0, BLOCKS);
    world->deadline_ns = 20000;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (world->home[i] != 0)
            continue;
        while (line.under_way == DEPTH / 3)
            assert_true(line_receive(world, &line, 60000));
        line_send(world, &line, i, false);
    }
    line_drain(world, &line);
    assert_true(world->own.late > 50);
    target_stats(world->target, &world->stats);
    assert_int_equal(world->stats.drives[0].slow_total, 0);
    line_close(&line);
    world_free(world);
}

/* ---- overload ------------------------------------------------------------------------------- */

static void overload_judge(struct world *world, uint32_t stored)
{
    uint64_t there = 0, evictions = 0, acked = 0;

    for (uint32_t i = 0; i < stored; i++) {
        acked += world->acked[i];
        there += world->acked[i] && world_home(world, i) != DRIVES;
    }
    target_stats(world->target, &world->stats);
    for (uint32_t i = 0; i < DRIVES; i++)
        evictions += world->stats.drives[i].store.evictions;
    print_message(
        "%u stores: %llu acknowledged, %u shed; %llu there, %llu evicted; loads: %u hits, "
        "%u misses, %u late\n",
        stored, (unsigned long long)acked, world->stores.sheds, (unsigned long long)there,
        (unsigned long long)evictions, world->other.hits + world->own.hits,
        world->other.misses + world->own.misses, world->other.late + world->own.late);
    assert_int_equal(acked, world->stores.acked);
    assert_true(acked > 100 && stored >= 5 * acked); /* more than the drives take, by far */
    assert_int_equal(stored - acked, world->stores.sheds);
    assert_true(world->stats.nvmf.sheds >
                0); /* by the backlog; a drive that is clogged sheds, too */
    assert_true(world->stats.nvmf.sheds <= world->stores.sheds);
    assert_true(evictions > 0);
    assert_int_equal(acked - there, evictions);
    assert_int_equal(world->other.late + world->own.late, 0);
    assert_true(world->other.hits + world->own.hits > 200);
    assert_int_equal(world->other.misses + world->own.misses, 0);
}

/* The drives take 4 x 1 MiB a second and hold 4 x 12 MiB. */
static void overload_run(uint64_t seed)
{
    enum { KEPT = 256, STORES = 24000 };
    struct world *world = world_new(seed, MIB, 12 * MIB);
    uint32_t stored = KEPT;
    struct line loads, stores;

    line_open(world, &stores);
    line_open(world, &loads);
    world_store(world, &stores, 0, KEPT);
    world->deadline_ns = 2000 * MS;
    while (stored < STORES) {
        while (stores.under_way < DEPTH && stored < STORES)
            line_send(world, &stores, stored++, true);
        while (loads.under_way < 4)
            line_send(world, &loads, world->recent[dice(world, 256)], false);
        while (line_receive(world, &stores, 1))
            ;
        while (line_receive(world, &loads, 1))
            ;
        target_stats(world->target, &world->stats);
        assert_true(world->stats.nvmf.buffers_used_bytes <= world->opts.nvmf.memory_bytes);
    }
    line_drain(world, &stores);
    line_drain(world, &loads);
    overload_judge(world, stored);
    line_close(&stores);
    line_close(&loads);
    world_free(world);
}

static void overload_sheds_stores_and_loads_come_in_time(void **state)
{
    for (uint32_t i = 0; i < rounds; i++)
        overload_run(1 + i);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_drive_costs_its_own_runs_only),
        cmocka_unit_test(haste_does_not_make_a_drive_slow),
        cmocka_unit_test(overload_sheds_stores_and_loads_come_in_time),
    };

    if (argc > 1)
        rounds = (uint32_t)strtoul(argv[1], NULL, 10);
    return cmocka_run_group_tests_name("target-load", tests, NULL, NULL);
}
