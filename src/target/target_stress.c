/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many hosts' worth of pipelined commands against an enclosure in the simulation, while connections
 * are reset, operations stall, reads fail, drives are passed over as slow, peers leave with
 * commands in flight and the daemon is killed. Afterwards every key has a value that a linear
 * history of its stores and deletes allows, nothing acknowledged is forgotten, and no buffer or
 * connection is left over.
 *
 *   target_stress SEEDS [FIRST] [STEPS]
 *
 * A failure prints its seed.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "nvmf/target/test_peer.h"
#include "target/target_int.h"

#define PEERS     4
#define DEPTH     8
#define KEYS      48
#define LOG       512
#define DRIVES    3
#define VALUE_MAX ((uint32_t)96 << 10)
#define MIB       ((uint64_t)1 << 20)
#define NEVER     UINT32_MAX

/* One change of a key. Times count events of the test. */
struct change {
    uint64_t seed;   /* what the value is made of; 0: deleted                       */
    uint32_t submit; /* when it was sent                                            */
    uint32_t ack;    /* when it was acknowledged; NEVER: not, or not known          */
    bool failed;     /* answered with an error: must never be seen                  */
    uint32_t undone; /* failed: but by loads that were sent before                  */
};

struct cell {
    struct change log[LOG]; /* the first one: not there at the beginning */
    uint32_t count;
};

struct flight {
    bool busy;
    uint8_t opcode;
    uint16_t cid;
    uint32_t key;
    uint32_t change; /* store, delete: which          */
    uint32_t submit; /* when                          */
    uint32_t room;   /* retrieve: of our buffer       */
    uint32_t got;    /* retrieve: bytes so far        */
    uint8_t *value;  /* VALUE_MAX: to send, or so far */
};

struct client {
    struct peer *admin, *io;
    struct flight flights[DEPTH];
};

struct world {
    uint64_t seed, random;
    uint32_t now;
    struct sim *sim;
    struct sim_node *node, *hosts[PEERS];
    struct target_opts opts;
    struct target_drive_opts drives[DRIVES];
    struct volume_spec volume;
    struct target *target;
    struct client clients[PEERS];
    struct cell cells[KEYS];
    uint32_t slow_at; /* the last time that a drive was passed over */
    uint32_t hits, misses, resets, crashes, passed_over;
};

static __attribute__((format(printf, 2, 3))) void bad(const struct world *world, const char *format,
                                                      ...)
{
    va_list args;

    va_start(args, format);
    (void)fprintf(stderr, "target_stress: seed %llu: ", (unsigned long long)world->seed);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
    abort();
}

static uint64_t dice(struct world *world, uint64_t sides)
{
    world->random = hash64_mix(world->random);
    return world->random % sides;
}

/* ---- values and histories ------------------------------------------------------------------- */

static uint32_t value_bytes(uint64_t seed)
{
    uint64_t random = hash64_mix(seed);

    return 8 + (uint32_t)(random % (random & 1 << 20 ? 6000 : VALUE_MAX - 8));
}

static void value_make(uint64_t seed, uint8_t *value)
{
    uint32_t bytes = value_bytes(seed);

    memcpy(value, &seed, 8);
    for (uint32_t i = 8; i < bytes; i++)
        value[i] = (uint8_t)(hash64_mix(seed + i / 512) >> i % 8 * 8);
}

static struct change *cell_change(struct world *world, uint32_t key, uint64_t seed)
{
    struct cell *cell = &world->cells[key];

    if (cell->count == LOG)
        bad(world, "the log of key %u is too short", key);
    cell->log[cell->count] = (struct change){.seed = seed, .submit = world->now, .ack = NEVER};
    return &cell->log[cell->count++];
}

/* May a read that was sent at a time have seen this? */
static bool cell_allows(const struct cell *cell, uint64_t seed, uint32_t sent)
{
    for (uint32_t i = 0; i < cell->count; i++) {
        const struct change *change = &cell->log[i];
        bool over = false;

        if (change->seed != seed || (change->failed && sent >= change->undone))
            continue;
        for (uint32_t j = 0; j < cell->count && !over; j++)
            over = cell->log[j].ack < sent && cell->log[j].submit > change->ack;
        if (!over)
            return true;
    }
    return false;
}

/* Was a change of the key in flight after this time? A store of a value that lies on another drive
 * moves the key, and a load may look everywhere while it is on its way. */
static bool cell_moved(const struct cell *cell, uint32_t sent)
{
    for (uint32_t i = 1; i < cell->count; i++)
        if (cell->log[i].ack >= sent)
            return true;
    return false;
}

/* ---- the enclosure and its clients ---------------------------------------------------------- */

static const char *key_text(uint32_t i)
{
    static char text[32];

    snprintf(text, sizeof(text), "%04u-block-%05u", i / 3 % 10000, i % 100000);
    return text;
}

static void world_up(struct world *world)
{
    struct err_why why = {""};

    sim_faults(world->sim, false);
    if (target_new(&world->opts, &why, &world->target) != ICMS_OK ||
        target_start(world->target, &why) != ICMS_OK)
        bad(world, "cannot start: %s", why.text);
}

static void client_leave(struct client *client)
{
    peer_free(&client->io);
    peer_free(&client->admin);
    for (int i = 0; i < DEPTH; i++)
        client->flights[i].busy = false; /* their outcome stays unknown */
}

/* Connects, as often as it takes. */
static void client_join(struct world *world, int i)
{
    struct client *client = &world->clients[i];
    uint8_t digests = i % 2 == 0 ? 0 : NVME_TCP_FLAG_HDGST | NVME_TCP_FLAG_DDGST;
    struct loop_addr addr;

    nvmf_target_addr(target_nvmf(world->target), 0, &addr);
    for (int attempt = 0; attempt < 50; attempt++) {
        client->admin = peer_new_sim(world->sim, world->hosts[i], &addr);
        client->io = peer_new_sim(world->sim, world->hosts[i], &addr);
        if (client->admin != NULL && client->io != NULL && peer_admin(client->admin, digests) &&
            peer_io(client->io, client->admin, 1, digests))
            return;
        client_leave(client);
    }
    bad(world, "client %d cannot connect", i);
}

static void world_crash(struct world *world)
{
    sim_node_crash(world->node, false, false);
    target_free(&world->target);
    for (int i = 0; i < PEERS; i++)
        client_leave(&world->clients[i]);
    world->crashes++;
    world_up(world);
    for (int i = 0; i < PEERS; i++)
        client_join(world, i);
    sim_faults(world->sim, true);
}

/* A drive is passed over from now on, takes long, or is well again; probes may say otherwise. */
static void world_slow(struct world *world)
{
    uint32_t drive = (uint32_t)dice(world, world->opts.drive_count);
    uint32_t bit = (uint32_t)1 << drive;

    sim_file_slow(world->node, world->drives[drive].path, dice(world, 3) == 0 ? 200 : 1);
    if ((atomic_fetch_xor(&world->target->slow, bit) & bit) == 0)
        world->passed_over++;
    world->slow_at = world->now;
}

/* ---- commands ------------------------------------------------------------------------------- */

static void client_submit(struct world *world, struct client *client, struct flight *flight)
{
    static const uint8_t opcodes[] = {NVME_KV_STORE,    NVME_KV_STORE,    NVME_KV_RETRIEVE,
                                      NVME_KV_RETRIEVE, NVME_KV_RETRIEVE, NVME_KV_DELETE,
                                      NVME_KV_EXIST};
    struct nvme_kv_cmd cmd = {.opcode = opcodes[dice(world, sizeof(opcodes))], .nsid = 1};
    struct nvme_sqe_wf sqe;
    union nvme_tcp_pdu pdu;
    struct nvme_sgl sgl = {0};

    flight->busy = true;
    flight->opcode = cmd.opcode;
    flight->key = (uint32_t)dice(world, KEYS);
    flight->submit = ++world->now;
    if (atomic_load(&world->target->slow) != 0)
        world->slow_at = world->now;
    flight->got = 0;
    cmd.key = peer_key(key_text(flight->key));
    if (cmd.opcode == NVME_KV_STORE) {
        uint64_t seed = hash64_mix(world->random) | 1;

        flight->change =
            (uint32_t)(cell_change(world, flight->key, seed) - world->cells[flight->key].log);
        value_make(seed, flight->value);
        cmd.bytes = value_bytes(seed);
        sgl.in_capsule = cmd.bytes <= 8192;
    } else if (cmd.opcode == NVME_KV_DELETE) {
        flight->change =
            (uint32_t)(cell_change(world, flight->key, 0) - world->cells[flight->key].log);
    } else if (cmd.opcode == NVME_KV_RETRIEVE) {
        /* Sometimes less room than the value needs. */
        cmd.bytes = flight->room = dice(world, 4) == 0 ? 4096 : VALUE_MAX;
    }
    sgl.bytes = cmd.bytes;
    nvme_kv_cmd_encode(&cmd, &sqe);
    flight->cid = client->io->cid++;
    sqe.cid = le16_of(flight->cid);
    nvme_sgl_encode(&sgl, &sqe.sgl);
    nvme_tcp_cmd_encode(&pdu, &sqe);
    (void)peer_send_pdu(client->io, &pdu, flight->value, sgl.in_capsule ? cmd.bytes : 0);
}

static struct flight *client_flight(struct world *world, struct client *client, le16 cid)
{
    for (int i = 0; i < DEPTH; i++)
        if (client->flights[i].busy && client->flights[i].cid == le16_get(cid))
            return &client->flights[i];
    bad(world, "an answer to nothing");
    return NULL;
}

static void client_r2t(struct client *client, const struct flight *flight,
                       const struct nvme_tcp_r2t_wf *r2t)
{
    uint32_t end = le32_get(r2t->offset) + le32_get(r2t->length);

    for (uint32_t at = le32_get(r2t->offset); at < end;) {
        uint32_t bytes = (uint32_t)u64_min(end - at, 16384);
        union nvme_tcp_pdu pdu;

        nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, at + bytes == end ? NVME_TCP_FLAG_LAST : 0,
                             flight->cid, le16_get(r2t->ttag), at, bytes);
        if (!peer_send_pdu(client->io, &pdu, flight->value + at, bytes))
            return;
        at += bytes;
    }
}

static void client_retrieved(struct world *world, const struct flight *flight,
                             const struct nvme_cqe *cqe)
{
    static uint8_t expected[VALUE_MAX];
    uint64_t seed = 0;

    if (cqe->status == NVME_SC_SUCCESS) {
        memcpy(&seed, flight->value, 8);
        if (cqe->dw0 != value_bytes(seed) || flight->got != u64_min(cqe->dw0, flight->room))
            bad(world, "key %u: wrong length", flight->key);
        value_make(seed, expected);
        if (memcmp(expected, flight->value, flight->got) != 0)
            bad(world, "key %u: wrong bytes", flight->key);
        world->hits++;
    } else if (cqe->status != NVME_SC_KV_NO_KEY) {
        bad(world, "retrieve answered %x", cqe->status);
    } else if (cqe->dw1 != ICMS_MISS_ABSENT) {
        return; /* a read that failed: a miss with its reason */
    } else if (world->passed_over > 0 && (world->slow_at >= flight->submit ||
                                          cell_moved(&world->cells[flight->key], flight->submit))) {
        return; /* its drive may have been passed over, or another one given the key */
    } else {
        world->misses++;
    }
    if (!cell_allows(&world->cells[flight->key], seed, flight->submit))
        bad(world, "key %u: an old value, or forgotten", flight->key);
}

static void client_done(struct world *world, struct flight *flight, const struct nvme_cqe *cqe)
{
    struct change *change = &world->cells[flight->key].log[flight->change];

    flight->busy = false;
    world->now++;
    if (atomic_load(&world->target->slow) != 0)
        world->slow_at = world->now;
    if (flight->opcode == NVME_KV_RETRIEVE)
        client_retrieved(world, flight, cqe);
    if (flight->opcode != NVME_KV_STORE && flight->opcode != NVME_KV_DELETE)
        return;
    if (cqe->status == NVME_SC_SUCCESS)
        change->ack = world->now;
    if (cqe->status == NVME_SC_SUCCESS || flight->opcode != NVME_KV_STORE)
        return;
    change->failed = true;
    if (world->passed_over > 0) /* undone: another drive was too busy to delete */
        change->undone = world->now;
}

/* Receives one PDU; false when the connection is over. */
static bool client_receive(struct world *world, struct client *client)
{
    static uint8_t data[VALUE_MAX];
    union nvme_tcp_pdu pdu;
    struct nvme_cqe cqe;
    struct flight *flight;
    uint32_t bytes;

    if (peer_recv_pdu(client->io, &pdu, data, sizeof(data), &bytes) != PEER_PDU)
        return false;
    switch (pdu.common.type) {
    case NVME_TCP_R2T:
        client_r2t(client, client_flight(world, client, pdu.r2t.cid), &pdu.r2t);
        return true;
    case NVME_TCP_C2H_DATA:
        flight = client_flight(world, client, pdu.data.cid);
        if (le32_get(pdu.data.offset) != flight->got || flight->got + bytes > VALUE_MAX)
            bad(world, "data out of place");
        memcpy(flight->value + flight->got, data, bytes);
        flight->got += bytes;
        return true;
    case NVME_TCP_CAPSULE_RESP:
        nvme_cqe_decode(&pdu.resp.cqe, &cqe);
        client_done(world, client_flight(world, client, pdu.resp.cqe.cid), &cqe);
        return true;
    default:
        bad(world, "the target sent type %u", pdu.common.type);
        return false;
    }
}

static void client_step(struct world *world, int i)
{
    struct client *client = &world->clients[i];
    struct flight *idle = NULL;
    bool busy = false;

    for (int n = 0; n < DEPTH; n++) {
        busy = busy || client->flights[n].busy;
        if (!client->flights[n].busy)
            idle = &client->flights[n];
    }
    if (idle != NULL && (!busy || dice(world, 2) == 0)) {
        client_submit(world, client, idle);
    } else if (dice(world, 300) == 0 || !client_receive(world, client)) {
        client_leave(client);
        world->resets++;
        client_join(world, i);
    }
}

/* ---- a run ---------------------------------------------------------------------------------- */

static struct world *world_new(uint64_t seed)
{
    static const char *const paths[DRIVES] = {"/drive/0", "/drive/1", "/drive/2"};
    struct world *world = calloc(1, sizeof(*world));
    struct sim_opts sim_opts;

    check(world != NULL);
    world->seed = seed;
    world->random = hash64_mix(seed);
    sim_opts_init(&sim_opts, seed);
    sim_opts.conn_reset_ppm = 300;
    sim_opts.delay_spike_ppm = 3000;
    sim_opts.disk_read_error_ppm = 3000;
    world->sim = sim_new(&sim_opts);
    world->node = sim_node_new(world->sim, "10.1.0.1");
    for (int i = 0; i < PEERS; i++) {
        char host[32];

        snprintf(host, sizeof(host), "10.1.1.%d", i + 1);
        world->hosts[i] = sim_node_new(world->sim, host);
        for (int n = 0; n < DEPTH; n++) {
            world->clients[i].flights[n].value = malloc(VALUE_MAX);
            check(world->clients[i].flights[n].value != NULL);
        }
    }
    target_opts_init(&world->opts);
    world->opts.env = sim_node_env(world->node);
    world->opts.nvmf.nqn = "nqn.2026-01.io.icms:test";
    world->opts.nvmf.enclosure = (struct uuid){{(uint8_t)seed}};
    check(loop_addr_parse("10.1.0.1:4420", NULL, &world->opts.nvmf.portals[0].listen) == ICMS_OK);
    world->opts.loops = 1 + (uint32_t)dice(world, 3);
    world->opts.segment_bytes = MIB;
    world->opts.nvmf.memory_bytes = world->opts.loops * MIB; /* few: commands wait for them */
    world->opts.nvmf.connections_max = 24;
    world->opts.drives = world->drives;
    world->opts.drive_count = 1 + (uint32_t)dice(world, DRIVES);
    for (int i = 0; i < DRIVES; i++)
        world->drives[i] = (struct target_drive_opts){.path = paths[i], .bytes = 64 * MIB};
    world->volume = (struct volume_spec){
        .uuid = {{7}}, .value_bytes_max = VALUE_MAX - LIMIT_TRAILER_BYTES, .sealed = true};
    world->opts.volumes = &world->volume;
    world->opts.volume_count = 1;
    for (int i = 0; i < KEYS; i++)
        world->cells[i] = (struct cell){.count = 1};
    return world;
}

/* Whether nobody knows of some store of the key how far it came. */
static bool cell_is_open(const struct cell *cell)
{
    for (uint32_t i = 0; i < cell->count; i++)
        if (cell->log[i].seed != 0 && (cell->log[i].failed || cell->log[i].ack == NEVER))
            return true;
    return false;
}

/* Why a key may be missed in the end: it is not there, or a store that was never acknowledged left
 * half a record, which a restart cannot tell from a damaged one. */
static bool miss_is_right(const struct cell *cell, uint32_t reason)
{
    return reason == ICMS_MISS_ABSENT || (reason == ICMS_MISS_CHECKSUM && cell_is_open(cell));
}

/* No faults any more: hits and misses are exactly what the histories allow. */
static void world_judge(struct world *world)
{
    struct target_stats *stats = calloc(1, sizeof(*stats));
    static uint8_t value[VALUE_MAX];

    sim_faults(world->sim, false);
    (void)sim_run(world->sim, sim_now_ns(world->sim) + 20000 * MIB);
    for (int i = 0; i < PEERS; i++)
        client_leave(&world->clients[i]);
    client_join(world, 0);
    atomic_store(&world->target->slow, 0);
    world->slow_at = world->passed_over = 0;
    world->now++;
    for (uint32_t i = 0; i < KEYS; i++) {
        uint32_t bytes = VALUE_MAX;
        struct nvme_cqe cqe;
        struct flight flight = {.key = i, .submit = world->now, .room = bytes, .value = value};

        if (peer_retrieve(world->clients[0].io, 1, key_text(i), value, &bytes, &cqe) == UINT16_MAX)
            bad(world, "no answer at the end");
        if (cqe.status == NVME_SC_KV_NO_KEY && !miss_is_right(&world->cells[i], cqe.dw1))
            bad(world, "key %u: missed with reason %u at the end", i, cqe.dw1);
        flight.got = bytes;
        client_retrieved(world, &flight, &cqe);
    }
    client_leave(&world->clients[0]);
    (void)sim_run(world->sim, sim_now_ns(world->sim) + 20000 * MIB);
    check(stats != NULL);
    target_stats(world->target, stats);
    if (stats->nvmf.connections != 0 || stats->nvmf.buffers_used_bytes != 0 ||
        stats->nvmf.buffers_parked != 0)
        bad(world, "left over: %llu connections, %llu bytes of buffers",
            (unsigned long long)stats->nvmf.connections,
            (unsigned long long)stats->nvmf.buffers_used_bytes);
    free(stats);
}

static void world_free(struct world *world)
{
    target_stop(world->target);
    target_free(&world->target);
    for (int i = 0; i < PEERS; i++)
        for (int n = 0; n < DEPTH; n++)
            free(world->clients[i].flights[n].value);
    sim_free(&world->sim);
    free(world);
}

int main(int argc, char **argv)
{
    uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : 3;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint32_t steps = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 3000;
    uint32_t hits = 0, misses = 0, resets = 0, crashes = 0, passed_over = 0;

    for (uint64_t seed = first; seed < first + seeds; seed++) {
        struct world *world = world_new(seed);

        world_up(world);
        for (int i = 0; i < PEERS; i++)
            client_join(world, i);
        sim_faults(world->sim, true);
        for (uint32_t step = 0; step < steps; step++) {
            client_step(world, (int)dice(world, PEERS));
            if (dice(world, 1500) == 0)
                world_crash(world);
            if (world->opts.drive_count > 1 && dice(world, 20) == 0)
                world_slow(world);
        }
        passed_over += world->passed_over;
        world_judge(world);
        hits += world->hits;
        misses += world->misses;
        resets += world->resets;
        crashes += world->crashes;
        world_free(world);
    }
    (void)printf(
        "%llu seeds: %u hits, %u misses, %u connections lost, %u crashes, %u times a drive "
        "was passed over\n",
        (unsigned long long)seeds, hits, misses, resets, crashes, passed_over);
    return hits == 0;
}
