/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Daemons that do everything at once under every fault, for some seeds: streams carry the right
 * bytes as far as they carry any, disks answer every operation, messages keep their order, nothing
 * touches the memory of a daemon that crashed (each is freed at once; run it under a sanitizer).
 * And: a seed has one history.
 *
 *   sim_stress_test [SEED [RUNS]]     one line a seed
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "loop/sim.h"

#define MS         1000000u
#define NODES      3
#define LOOPS      2
#define CLIENTS    3
#define SERVERS    6
#define DISKERS    4
#define BLOCKS     64
#define BLOCK      4096
#define PORT       4420
#define CHUNK      20000
#define SEND_BYTES 300000

struct daemon;

/* Byte of a stream: both sides know it from the stream's name and its place. */
static uint8_t stream_byte(uint64_t name, uint64_t at)
{
    return (uint8_t)(hash64_mix(name + at / 8) >> (8 * (at % 8)));
}

/* Connects to somebody, sends its name and bytes, and begins anew. */
struct client {
    struct daemon *daemon;
    struct loop *loop;
    struct loop_op op;
    struct loop_timer pause;
    struct loop_timer limit; /* cancels an operation that takes too long */
    struct loop_addr to;
    struct loop_sock *sock;
    uint64_t name; /* first 8 bytes of the stream                */
    uint64_t sent;
    struct iovec vectors[2];
    uint8_t memory[CHUNK];
};

/* Accepts, receives, compares, begins anew. */
struct server {
    struct daemon *daemon;
    struct loop *loop;
    struct loop_op op;
    struct loop_timer limit;
    struct loop_sock *sock;
    uint64_t name;
    uint64_t received;
    uint8_t memory[CHUNK];
};

/* Writes a block, flushes it at times, reads it. */
struct disker {
    struct daemon *daemon;
    struct loop *loop;
    struct loop_op op;
    uint64_t block;
    uint64_t version;
    uint8_t *memory; /* BLOCK */
};

/* Goes round the loops. */
struct courier {
    struct daemon *daemon;
    struct loop_msg msg;
    uint64_t hops;
};

struct daemon {
    struct world *world;
    struct sim_node *node;
    struct loop *loop[LOOPS];
    struct loop_sock *listener;
    struct loop_file *file;
    struct client client[CLIENTS];
    struct server server[SERVERS];
    struct disker disker[DISKERS];
    struct courier courier;
    struct loop_event *event;
    struct loop_op event_op;
};

struct world {
    struct sim *sim;
    struct sim_node *node[NODES];
    struct daemon *daemon[NODES];
    uint64_t bytes;   /* that arrived      */
    uint64_t resets;  /* streams that broke */
    uint64_t blocks;  /* read as written   */
    uint64_t bad;     /* read otherwise    */
    uint64_t hops;    /* of couriers       */
    uint64_t rings;   /* of events         */
    uint64_t crashes; /* of daemons        */
};

/* ---- client --------------------------------------------------------------------------------- */

static void client_connected(struct loop_op *op);
static void client_sent(struct loop_op *op);

static void client_limit(struct loop_timer *timer)
{
    loop_op_cancel(&container_of(timer, struct client, limit)->op);
}

static void client_begin(struct loop_timer *timer)
{
    struct client *client = container_of(timer, struct client, pause);
    unsigned to = (unsigned)(loop_random(client->loop) % NODES);

    (void)snprintf(client->to.host, sizeof(client->to.host), "10.1.0.%u", to + 1);
    client->to.port = PORT;
    loop_timer_start(client->loop, &client->limit, loop_now_ns(client->loop) + 200 * MS);
    loop_connect(client->loop, &client->op, &client->to, client_connected);
}

static void client_rest(struct client *client)
{
    uint64_t rest_ns = loop_random(client->loop) % (10 * MS);

    loop_sock_close(&client->sock);
    loop_timer_stop(client->loop, &client->limit);
    loop_timer_start(client->loop, &client->pause, loop_now_ns(client->loop) + rest_ns);
}

static void client_send(struct client *client)
{
    size_t bytes = 1 + loop_random(client->loop) % CHUNK;
    size_t first = loop_random(client->loop) % bytes;

    for (size_t i = 0; i < bytes; i++) {
        uint64_t at = client->sent + i;

        client->memory[i] =
            at < 8 ? (uint8_t)(client->name >> (8 * at)) : stream_byte(client->name, at);
    }
    client->vectors[0] = (struct iovec){client->memory, first};
    client->vectors[1] = (struct iovec){client->memory + first, bytes - first};
    loop_timer_start(client->loop, &client->limit, loop_now_ns(client->loop) + 50 * MS);
    loop_sendv(client->loop, &client->op, client->sock, client->vectors, 2, client_sent);
}

static void client_sent(struct loop_op *op)
{
    struct client *client = container_of(op, struct client, op);

    client->sent += op->bytes;
    if (op->err != ICMS_OK || client->sent > SEND_BYTES)
        client_rest(client);
    else
        client_send(client);
}

static void client_connected(struct loop_op *op)
{
    struct client *client = container_of(op, struct client, op);

    client->sock = op->sock;
    client->sent = 0;
    client->name = loop_random(client->loop);
    check((op->err == ICMS_OK) == (op->sock != NULL));
    if (op->err == ICMS_OK)
        client_send(client);
    else
        client_rest(client);
}

/* ---- server --------------------------------------------------------------------------------- */

static void server_received(struct loop_op *op);

static void server_limit(struct loop_timer *timer)
{
    loop_op_cancel(&container_of(timer, struct server, limit)->op);
}

static void server_accepted(struct loop_op *op);

static void server_begin(struct server *server)
{
    loop_sock_close(&server->sock);
    loop_timer_stop(server->loop, &server->limit);
    loop_accept(server->loop, &server->op, server->daemon->listener, server_accepted);
}

static void server_recv(struct server *server)
{
    uint32_t bytes = 1 + (uint32_t)(loop_random(server->loop) % CHUNK);
    bool whole = loop_random(server->loop) % 2 == 0;

    loop_timer_start(server->loop, &server->limit, loop_now_ns(server->loop) + 100 * MS);
    loop_recv(server->loop, &server->op, server->sock, server->memory, bytes, whole,
              server_received);
}

static void server_received(struct loop_op *op)
{
    struct server *server = container_of(op, struct server, op);

    for (uint32_t i = 0; i < op->bytes; i++) {
        uint64_t at = server->received + i;

        if (at < 8)
            server->name |= (uint64_t)server->memory[i] << (8 * at);
        else
            check(server->memory[i] == stream_byte(server->name, at));
    }
    server->received += op->bytes;
    server->daemon->world->bytes += op->bytes;
    if (op->err == ICMS_OK) {
        server_recv(server);
        return;
    }
    server->daemon->world->resets += op->err == ICMS_RESET;
    server_begin(server);
}

static void server_accepted(struct loop_op *op)
{
    struct server *server = container_of(op, struct server, op);

    check(op->err == ICMS_OK);
    server->sock = op->sock;
    server->name = server->received = 0;
    server_recv(server);
}

/* ---- disk, messages, events ----------------------------------------------------------------- */

static void disker_begin(struct disker *disker);

static void disker_read(struct loop_op *op)
{
    struct disker *disker = container_of(op, struct disker, op);
    bool good = op->err == ICMS_OK;

    for (uint32_t i = 0; i < BLOCK && good; i++)
        good = disker->memory[i] == stream_byte(disker->version, i);
    if (good)
        disker->daemon->world->blocks++;
    else
        disker->daemon->world->bad++;
    disker_begin(disker);
}

static void disker_flushed(struct loop_op *op)
{
    struct disker *disker = container_of(op, struct disker, op);

    memset(disker->memory, 0, BLOCK);
    loop_file_read(disker->loop, op, disker->daemon->file, disker->block * BLOCK, disker->memory,
                   BLOCK, disker_read);
}

static void disker_written(struct loop_op *op)
{
    struct disker *disker = container_of(op, struct disker, op);

    if (loop_random(disker->loop) % 4 == 0)
        loop_file_flush(disker->loop, op, disker->daemon->file, disker_flushed);
    else
        disker_flushed(op);
}

static void disker_begin(struct disker *disker)
{
    uint64_t own = (uint64_t)(disker - disker->daemon->disker);

    disker->block = loop_random(disker->loop) % (BLOCKS / DISKERS) * DISKERS + own;
    disker->version = loop_random(disker->loop);
    for (uint32_t i = 0; i < BLOCK; i++)
        disker->memory[i] = stream_byte(disker->version, i);
    loop_file_write(disker->loop, &disker->op, disker->daemon->file, 0, disker->block * BLOCK,
                    disker->memory, BLOCK, disker_written);
    if (loop_random(disker->loop) % 16 == 0)
        loop_op_cancel(&disker->op);
}

static void courier_run(struct loop_msg *msg)
{
    struct courier *courier = container_of(msg, struct courier, msg);

    courier->hops++;
    courier->daemon->world->hops++;
    if (courier->hops % 7 == 0)
        loop_event_signal(courier->daemon->event);
    loop_send(courier->daemon->loop[courier->hops % LOOPS], msg, courier_run);
}

static void event_rang(struct loop_op *op)
{
    struct daemon *daemon = container_of(op, struct daemon, event_op);

    daemon->world->rings++;
    loop_event_wait(op->loop, op, daemon->event, event_rang);
}

/* ---- daemons -------------------------------------------------------------------------------- */

static void daemon_actors(struct daemon *daemon)
{
    for (unsigned i = 0; i < CLIENTS; i++) {
        struct client *client = &daemon->client[i];

        client->daemon = daemon;
        client->loop = daemon->loop[i % LOOPS];
        loop_timer_init(&client->pause, client_begin);
        loop_timer_init(&client->limit, client_limit);
        loop_timer_start(client->loop, &client->pause, loop_now_ns(client->loop) + i * MS);
    }
    for (unsigned i = 0; i < SERVERS; i++) {
        struct server *server = &daemon->server[i];

        server->daemon = daemon;
        server->loop = daemon->loop[i % LOOPS];
        loop_timer_init(&server->limit, server_limit);
        server_begin(server);
    }
    for (unsigned i = 0; i < DISKERS; i++) {
        struct disker *disker = &daemon->disker[i];

        disker->daemon = daemon;
        disker->loop = daemon->loop[i % LOOPS];
        disker->memory = aligned_alloc(BLOCK, BLOCK);
        check(disker->memory != NULL);
        disker_begin(disker);
    }
    daemon->courier.daemon = daemon;
    loop_send(daemon->loop[0], &daemon->courier.msg, courier_run);
    loop_event_wait(daemon->loop[1], &daemon->event_op, daemon->event, event_rang);
}

static struct daemon *daemon_new(struct world *world, struct sim_node *node)
{
    struct daemon *daemon = calloc(1, sizeof(*daemon));
    struct loop_env *env = sim_node_env(node);
    struct loop_file_opts file = {.path = "/drive",
                                  .create = true,
                                  .write = true,
                                  .direct = true,
                                  .exclusive = true,
                                  .bytes = BLOCKS * BLOCK};
    struct loop_addr addr = {"0.0.0.0", PORT};
    struct loop_opts opts;

    check(daemon != NULL);
    daemon->world = world;
    daemon->node = node;
    loop_opts_init(&opts);
    for (unsigned i = 0; i < LOOPS; i++)
        check(loop_new(env, &opts, NULL, &daemon->loop[i]) == ICMS_OK);
    check(loop_file_open(env, &file, NULL, &daemon->file) == ICMS_OK);
    check(loop_listen(env, &addr, NULL, &daemon->listener) == ICMS_OK);
    check(loop_event_new(env, LOOP_EVENT_WAIT, &daemon->event) == ICMS_OK);
    daemon_actors(daemon);
    for (unsigned i = 0; i < LOOPS; i++)
        check(loop_start(daemon->loop[i], NULL) == ICMS_OK);
    return daemon;
}

static void daemon_memory_free(struct daemon *daemon)
{
    for (unsigned i = 0; i < DISKERS; i++)
        free(daemon->disker[i].memory);
    free(daemon);
}

/* Stops in order, with everything in flight. */
static void daemon_stop(struct daemon *daemon)
{
    for (unsigned i = 0; i < LOOPS; i++) {
        loop_stop(daemon->loop[i]);
        loop_join(daemon->loop[i]);
    }
    for (unsigned i = 0; i < LOOPS; i++)
        loop_free(&daemon->loop[i]);
    for (unsigned i = 0; i < CLIENTS; i++)
        loop_sock_close(&daemon->client[i].sock);
    for (unsigned i = 0; i < SERVERS; i++)
        loop_sock_close(&daemon->server[i].sock);
    loop_sock_close(&daemon->listener);
    loop_file_close(&daemon->file);
    loop_event_free(&daemon->event);
    daemon_memory_free(daemon);
}

/* ---- the world ------------------------------------------------------------------------------ */

static void world_fault(struct world *world)
{
    struct sim *sim = world->sim;
    unsigned a = (unsigned)(sim_random(sim) % NODES);
    unsigned b = (unsigned)(sim_random(sim) % NODES);
    bool on = sim_random(sim) % 2 == 0;

    switch (sim_random(sim) % 6) {
    case 0:
        sim_node_crash(world->node[a], on, sim_random(sim) % 2 == 0);
        daemon_memory_free(world->daemon[a]);
        world->daemon[a] = daemon_new(world, world->node[a]);
        world->crashes++;
        break;
    case 1:
        daemon_stop(world->daemon[a]);
        world->daemon[a] = daemon_new(world, world->node[a]);
        break;
    case 2:
        sim_node_pause(world->node[a], on);
        break;
    case 3:
        sim_disk_slow(world->node[a], on ? 50 : 1);
        break;
    default:
        if (a != b)
            sim_net_cut(sim, world->node[a], on ? world->node[b] : NULL, on);
    }
}

static void opts_faulty(struct sim_opts *opts, uint64_t seed)
{
    sim_opts_init(opts, seed);
    opts->disk_read_error_ppm = 1000;
    opts->disk_write_error_ppm = 1000;
    opts->disk_write_lost_ppm = 1000;
    opts->disk_write_torn_ppm = 1000;
    opts->disk_corrupt_ppm = 1000;
    opts->conn_reset_ppm = 2000;
    opts->delay_spike_ppm = 5000;
    opts->net_backlog = 4;
}

static uint64_t world_run(uint64_t seed, struct world *world)
{
    struct sim_opts opts;
    uint64_t hash;

    memset(world, 0, sizeof(*world));
    opts_faulty(&opts, seed);
    world->sim = sim_new(&opts);
    for (unsigned i = 0; i < NODES; i++) {
        char host[48];

        (void)snprintf(host, sizeof(host), "10.1.0.%u", i + 1);
        world->node[i] = sim_node_new(world->sim, host);
        world->daemon[i] = daemon_new(world, world->node[i]);
    }
    for (unsigned i = 0; i < 20; i++) {
        (void)sim_run(world->sim, sim_now_ns(world->sim) + 1 + sim_random(world->sim) % (5 * MS));
        world_fault(world);
    }
    for (unsigned i = 0; i < NODES; i++) { /* all heals: all goes on */
        sim_node_pause(world->node[i], false);
        sim_disk_slow(world->node[i], 1);
        for (unsigned j = 0; j < NODES; j++)
            sim_net_cut(world->sim, world->node[i], j == i ? NULL : world->node[j], false);
    }
    sim_faults(world->sim, false);
    (void)sim_run(world->sim, sim_now_ns(world->sim) + 300 * MS);
    world->bad = world->bytes = world->blocks = 0;
    (void)sim_run(world->sim, sim_now_ns(world->sim) + 20 * MS);
    check(world->bytes > 0 && world->blocks > 0);
    hash = sim_trace_hash(world->sim);
    for (unsigned i = 0; i < NODES; i++)
        daemon_stop(world->daemon[i]);
    sim_free(&world->sim);
    return hash;
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t runs = argc > 2 ? strtoull(argv[2], NULL, 0) : argc > 1 ? 1 : 2;
    uint64_t before = 0;

    for (uint64_t end = seed + runs; seed < end; seed++) {
        struct world world;
        uint64_t hash;

        (void)printf("seed %llu ", (unsigned long long)seed);
        (void)fflush(stdout);
        hash = world_run(seed, &world);
        (void)printf("hash %016llx bytes %llu resets %llu blocks %llu hops %llu rings %llu "
                     "crashes %llu\n",
                     (unsigned long long)hash, (unsigned long long)world.bytes,
                     (unsigned long long)world.resets, (unsigned long long)world.blocks,
                     (unsigned long long)world.hops, (unsigned long long)world.rings,
                     (unsigned long long)world.crashes);
        check(hash != before); /* another seed, another history */
        before = hash;
        if (argc <= 1)
            check(world_run(seed, &world) == hash); /* one seed, one history */
    }
    return 0;
}
