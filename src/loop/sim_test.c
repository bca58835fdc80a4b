/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only the simulation can do: one seed one history, crashes, power loss, cuts, lies.
 *
 * Each test builds its own machine room. Bodies run between events; they act on loops by message.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "loop/sim_int.h"

#define MS         1000000u
#define S          (1000 * (uint64_t)MS)
#define FILE_BYTES (1 << 20)
#define BLOCK      4096
#define PORT       4420
#define SENDS      12

/* ---- helpers -------------------------------------------------------------------------------- */

/* One daemon with a loop, a file and what it does. */
struct box {
    struct sim *sim;
    struct sim_node *node;
    struct loop *loop;
    struct loop_file *file;
    struct loop_sock *listener;
    struct loop_sock *sock;
    struct loop_event *event; /* of whom it likes */
    struct loop_addr peer;
    struct loop_msg msg;
    struct loop_op op;
    struct loop_op more[SENDS];
    struct iovec vector;
    void (*act)(struct box *box);
    uint8_t *memory; /* FILE_BYTES */
    uint32_t bytes;
    icms_err err;
    unsigned done;
};

static struct sim *room(uint64_t seed, void (*change)(struct sim_opts *opts))
{
    struct sim_opts opts;

    sim_opts_init(&opts, seed);
    if (change != NULL)
        change(&opts);
    return sim_new(&opts);
}

static void box_boot(struct box *box)
{
    struct loop_file_opts file = {.path = "/drive",
                                  .create = true,
                                  .write = true,
                                  .direct = true,
                                  .exclusive = true,
                                  .bytes = FILE_BYTES};
    struct loop_opts opts;

    loop_opts_init(&opts);
    assert_int_equal(loop_file_open(sim_node_env(box->node), &file, NULL, &box->file), ICMS_OK);
    assert_int_equal(loop_new(sim_node_env(box->node), &opts, NULL, &box->loop), ICMS_OK);
    assert_int_equal(loop_start(box->loop, NULL), ICMS_OK);
    box->memory = aligned_alloc(BLOCK, FILE_BYTES);
    assert_non_null(box->memory);
}

static void box_new(struct box *box, struct sim *sim, const char *host)
{
    memset(box, 0, sizeof(*box));
    box->sim = sim;
    box->node = sim_node_new(sim, host);
    box_boot(box);
}

/* The daemon dies; all its memory goes at once, nothing is closed. */
static void box_kill(struct box *box, bool power, bool silent)
{
    sim_node_crash(box->node, power, silent);
    free(box->memory);
    *box = (struct box){.sim = box->sim, .node = box->node};
}

static void box_end(struct box *box)
{
    loop_stop(box->loop);
    loop_join(box->loop);
    loop_free(&box->loop);
    loop_sock_close(&box->sock);
    loop_sock_close(&box->listener);
    loop_file_close(&box->file);
    free(box->memory);
}

static void box_act(struct loop_msg *msg)
{
    struct box *box = container_of(msg, struct box, msg);

    box->act(box);
}

static void box_done(struct loop_op *op)
{
    struct box *box = container_of(op, struct box, op);

    box->err = op->err;
    box->bytes = op->bytes;
    if (op->sock != NULL)
        box->sock = op->sock;
    box->done++;
}

static void more_done(struct loop_op *op)
{
}

static void box_do(struct box *box, void (*act)(struct box *box))
{
    box->act = act;
    box->done = 0;
    loop_send(box->loop, &box->msg, box_act);
}

/* Lets time pass until the act of the box is done; false after so much time. */
static bool box_wait(struct box *box, uint64_t limit_ns)
{
    uint64_t end_ns = sim_now_ns(box->sim) + limit_ns;

    while (box->done == 0 && sim_now_ns(box->sim) < end_ns && sim_step(box->sim))
        ;
    return box->done > 0;
}

static void act_write(struct box *box)
{
    loop_file_write(box->loop, &box->op, box->file, 0, 0, box->memory, FILE_BYTES, box_done);
}

static void act_read(struct box *box)
{
    loop_file_read(box->loop, &box->op, box->file, 0, box->memory, FILE_BYTES, box_done);
}

static void act_flush(struct box *box)
{
    loop_file_flush(box->loop, &box->op, box->file, box_done);
}

static void act_accept(struct box *box)
{
    loop_accept(box->loop, &box->op, box->listener, box_done);
}

static void act_connect(struct box *box)
{
    loop_connect(box->loop, &box->op, &box->peer, box_done);
}

static void act_recv(struct box *box)
{
    loop_recv(box->loop, &box->op, box->sock, box->memory, 100, false, box_done);
}

static void act_send(struct box *box)
{
    box->vector = (struct iovec){box->memory, 100};
    loop_sendv(box->loop, &box->op, box->sock, &box->vector, 1, box_done);
}

static void box_listen(struct box *box)
{
    struct loop_addr addr = {"0.0.0.0", PORT};

    assert_int_equal(loop_listen(sim_node_env(box->node), &addr, NULL, &box->listener), ICMS_OK);
}

/* Connects [1] to [0]. */
static void box_join(struct box *box)
{
    if (box[0].listener == NULL)
        box_listen(&box[0]);
    box[1].peer = (struct loop_addr){"10.1.0.1", PORT};
    box_do(&box[0], act_accept);
    box_do(&box[1], act_connect);
    assert_true(box_wait(&box[1], S));
    assert_true(box_wait(&box[0], S));
    assert_int_equal(box[1].err, ICMS_OK);
    assert_int_equal(box[0].err, ICMS_OK);
}

static void two_boxes(struct box *box, struct sim *sim)
{
    box_new(&box[0], sim, "10.1.0.1");
    box_new(&box[1], sim, "10.1.0.2");
}

static void fill_blocks(uint8_t *memory, uint64_t version)
{
    for (uint64_t i = 0; i < FILE_BYTES / 8; i++) {
        uint64_t word = hash64_mix(version << 32 ^ i);

        memcpy(memory + i * 8, &word, 8);
    }
}

/* How many sectors of the file hold this version; the others have to hold the other one. */
static unsigned sectors_of(const uint8_t *memory, uint64_t version, uint64_t other)
{
    static uint8_t want[FILE_BYTES], else_want[FILE_BYTES];
    unsigned count = 0;

    fill_blocks(want, version);
    if (other == 0)
        memset(else_want, 0, sizeof(else_want));
    else
        fill_blocks(else_want, other);
    for (size_t at = 0; at < FILE_BYTES; at += 512) {
        if (memcmp(memory + at, want + at, 512) == 0)
            count++;
        else
            assert_memory_equal(memory + at, else_want + at, 512);
    }
    return count;
}

/* ---- disks ---------------------------------------------------------------------------------- */

/* Writes version 1, flushed if so asked, then version 2 up to the given point; crashes; counts the
 * sectors that hold version 2 then. */
static unsigned crash_during_second_write(uint64_t seed, bool flush_first, bool complete,
                                          bool flush_second, bool power)
{
    struct sim *sim = room(seed, NULL);
    struct box box;
    uint64_t bytes;
    unsigned count;

    box_new(&box, sim, "10.1.0.1");
    fill_blocks(box.memory, 1);
    box_do(&box, act_write);
    assert_true(box_wait(&box, S));
    if (flush_first) {
        box_do(&box, act_flush);
        assert_true(box_wait(&box, S));
    }
    fill_blocks(box.memory, 2);
    box_do(&box, act_write);
    if (complete)
        assert_true(box_wait(&box, S));
    else
        (void)sim_run(sim, sim_now_ns(sim) + MS / 10);
    if (flush_second) {
        box_do(&box, act_flush);
        assert_true(box_wait(&box, S));
    }
    box_kill(&box, power, false);
    (void)sim_run(sim, sim_now_ns(sim) + S);
    box_boot(&box); /* its lock is free again */
    box_do(&box, act_read);
    assert_true(box_wait(&box, S));
    assert_int_equal(box.err, ICMS_OK);
    assert_memory_equal(box.memory, sim_file_medium(box.node, "/drive", &bytes), FILE_BYTES);
    assert_int_equal(bytes, FILE_BYTES);
    count = sectors_of(box.memory, 2, 1);
    box_end(&box);
    sim_free(&sim);
    return count;
}

/* Whether all three fates of a write turn up over the seeds. */
static void every_fate_turns_up(bool complete, bool power)
{
    unsigned fates = 0;

    for (uint64_t seed = 1; seed <= 20; seed++) {
        unsigned count = crash_during_second_write(seed, true, complete, false, power);

        fates |= count == 0 ? 1u : count == FILE_BYTES / 512 ? 2u : 4u;
    }
    assert_int_equal(fates, 7);
}

static void a_crash_keeps_completed_writes(void **state)
{
    for (uint64_t seed = 1; seed <= 5; seed++)
        assert_int_equal(crash_during_second_write(seed, false, true, false, false),
                         FILE_BYTES / 512);
}

static void a_crash_tears_writes_in_flight(void **state)
{
    every_fate_turns_up(false, false);
}

static void a_power_loss_tears_what_was_not_flushed(void **state)
{
    every_fate_turns_up(true, true);
}

static void a_power_loss_keeps_what_was_flushed(void **state)
{
    for (uint64_t seed = 1; seed <= 5; seed++)
        assert_int_equal(crash_during_second_write(seed, false, true, true, true),
                         FILE_BYTES / 512);
}

static void opts_lost(struct sim_opts *opts)
{
    opts->disk_write_lost_ppm = 1000000;
}

static void opts_torn(struct sim_opts *opts)
{
    opts->disk_write_torn_ppm = 1000000;
}

static void opts_corrupt(struct sim_opts *opts)
{
    opts->disk_corrupt_ppm = 1000000;
}

static void opts_write_error(struct sim_opts *opts)
{
    opts->disk_write_error_ppm = 1000000;
}

static void opts_read_error(struct sim_opts *opts)
{
    opts->disk_read_error_ppm = 1000000;
}

/* Writes version 1 with a fault and reads it; the number of its sectors that are there, or -1 when
 * a byte is wrong. */
static int write_and_read(void (*change)(struct sim_opts *opts), icms_err *out_write,
                          icms_err *out_read)
{
    struct sim *sim = room(7, change);
    static uint8_t want[FILE_BYTES];
    struct box box;
    int count = 0;

    box_new(&box, sim, "10.1.0.1");
    fill_blocks(want, 1);
    memcpy(box.memory, want, FILE_BYTES);
    box_do(&box, act_write);
    assert_true(box_wait(&box, S));
    *out_write = box.err;
    box_do(&box, act_read);
    assert_true(box_wait(&box, S));
    *out_read = box.err;
    for (size_t at = 0; at < FILE_BYTES; at += 512)
        count += memcmp(box.memory + at, want + at, 512) == 0;
    box_end(&box);
    sim_free(&sim);
    return count;
}

static void disks_lie_as_told(void **state)
{
    icms_err write, read;
    int all = FILE_BYTES / 512;
    int count;

    assert_int_equal(write_and_read(NULL, &write, &read), all);
    assert_int_equal(write_and_read(opts_lost, &write, &read), 0);
    assert_true(write == ICMS_OK && read == ICMS_OK);
    count = write_and_read(opts_torn, &write, &read);
    assert_true(count > 0 && count < all && write == ICMS_OK);
    assert_int_equal(write_and_read(opts_corrupt, &write, &read), all - 1);
    assert_true(write == ICMS_OK && read == ICMS_OK);
    (void)write_and_read(opts_write_error, &write, &read);
    assert_true(write == ICMS_IO && read == ICMS_OK);
    (void)write_and_read(opts_read_error, &write, &read);
    assert_true(write == ICMS_OK && read == ICMS_IO);
}

static void a_slow_disk_is_slower(void **state)
{
    struct sim *sim = room(3, NULL);
    struct box box;

    box_new(&box, sim, "10.1.0.1");
    box_do(&box, act_read);
    assert_true(box_wait(&box, 10 * MS));
    sim_disk_slow(box.node, 100);
    box_do(&box, act_read);
    assert_false(box_wait(&box, 40 * MS));
    assert_true(box_wait(&box, S));
    box_end(&box);
    sim_free(&sim);
}

static void a_dead_drive_fails_everything(void **state)
{
    static void (*const acts[])(struct box * box) = {act_read, act_write, act_flush};
    struct sim *sim = room(4, NULL);
    struct box box;

    box_new(&box, sim, "10.1.0.1");
    sim_disk_dead(box.node, "/drive", true);
    for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
        box_do(&box, acts[i]);
        assert_true(box_wait(&box, S));
        assert_int_equal(box.err, ICMS_IO);
    }
    box_end(&box);
    sim_free(&sim);
}

/* ---- events --------------------------------------------------------------------------------- */

static void act_ring_wait(struct box *box)
{
    loop_event_wait(box->loop, &box->op, box->event, box_done);
}

/* As an agent and its client share eventfds: who waits is woken from another node, and goes on
 * waiting when the other one crashed, until it gives up by itself. */
static void an_event_of_another_process_outlives_it_for_who_waits(void **state)
{
    struct sim *sim = room(16, NULL);
    struct loop_event *event;
    struct box box[2];

    two_boxes(box, sim);
    assert_int_equal(loop_event_new(sim_node_env(box[0].node), LOOP_EVENT_WAIT, &event), ICMS_OK);
    box[1].event = event;
    box_do(&box[1], act_ring_wait);
    assert_false(box_wait(&box[1], 10 * MS));
    loop_event_signal(event);
    assert_true(box_wait(&box[1], 10 * MS));
    assert_int_equal(box[1].err, ICMS_OK);
    box_do(&box[1], act_ring_wait);
    assert_false(box_wait(&box[1], 10 * MS));
    box_kill(&box[0], false, false);
    assert_false(box_wait(&box[1], 10 * MS));
    assert_true(loop_op_busy(&box[1].op));
    box_end(&box[1]); /* its loop takes the wait along */
    loop_event_free(&event);
    sim_free(&sim);
}

/* ---- the network ---------------------------------------------------------------------------- */

static void a_crash_resets_connections_unless_it_is_silent(void **state)
{
    for (int silent = 0; silent < 2; silent++) {
        struct sim *sim = room(5, NULL);
        struct box box[2];

        two_boxes(box, sim);
        box_join(box);
        box_do(&box[1], act_recv);
        (void)sim_run(sim, sim_now_ns(sim) + 10 * MS);
        assert_int_equal(box[1].done, 0);
        box_kill(&box[0], false, silent);
        if (silent) {
            assert_false(box_wait(&box[1], 1000 * S));
        } else {
            assert_true(box_wait(&box[1], 10 * MS));
            assert_int_equal(box[1].err, ICMS_RESET);
            loop_sock_close(&box[1].sock);
        }
        if (!silent) {
            box_do(&box[1], act_connect);
            assert_true(box_wait(&box[1], 10 * MS));
            assert_int_equal(box[1].err, ICMS_REFUSED);
            box_boot(&box[0]);
            box_join(box); /* the next daemon of the node is reached as before */
        }
        box_kill(&box[1], false, false);
        box_kill(&box[0], false, false);
        sim_free(&sim);
    }
}

/* A client machine listens to nothing: its next daemon is reached as soon as it connects. */
static void a_machine_that_went_silently_can_connect_again(void **state)
{
    struct sim *sim = room(15, NULL);
    struct box box[2];

    two_boxes(box, sim);
    box_join(box);
    box_kill(&box[1], false, true);
    loop_sock_close(&box[0].sock);
    box_boot(&box[1]);
    box_join(box);
    box_do(&box[1], act_recv);
    box_do(&box[0], act_send);
    assert_true(box_wait(&box[1], S));
    assert_int_equal(box[1].err, ICMS_OK);
    box_end(&box[1]);
    box_end(&box[0]);
    sim_free(&sim);
}

static void a_cut_swallows_and_what_it_swallowed_stays_lost(void **state)
{
    struct sim *sim = room(6, NULL);
    struct box box[2];

    two_boxes(box, sim);
    box_join(box);
    box_do(&box[0], act_recv);
    (void)sim_run(sim, sim_now_ns(sim) + MS);
    sim_net_cut(sim, box[0].node, box[1].node, true);
    box_do(&box[1], act_send);
    assert_true(box_wait(&box[1], S)); /* the own kernel took it */
    assert_int_equal(box[1].err, ICMS_OK);
    assert_false(box_wait(&box[0], S));
    sim_net_cut(sim, box[0].node, box[1].node, false);
    assert_false(box_wait(&box[0], 1000 * S));
    box_kill(&box[0], false, false);
    box_kill(&box[1], false, false);
    sim_free(&sim);
}

/* A machine with two addresses: each has cuts and delays of its own, and those of the machine. */
static void an_address_is_cut_alone(void **state)
{
    struct sim *sim = room(6, NULL);
    struct box box[2];
    struct sim_node *second;

    two_boxes(box, sim);
    second = sim_node_address(box[0].node, "10.1.9.1");
    box_listen(&box[0]);
    sim_net_cut(sim, box[1].node, second, true);
    box[1].peer = (struct loop_addr){"10.1.9.1", PORT};
    box_do(&box[1], act_connect);
    assert_false(box_wait(&box[1], 10 * S));
    sim_net_cut(sim, box[1].node, second, false);
    assert_true(box_wait(&box[1], 10 * S));
    assert_int_equal(box[1].err, ICMS_OK);
    loop_sock_close(&box[1].sock);
    sim_net_cut(sim, box[1].node, box[0].node, true);
    box_do(&box[1], act_connect);
    assert_false(box_wait(&box[1], 10 * S));
    sim_net_cut(sim, box[1].node, box[0].node, false);
    assert_true(box_wait(&box[1], 10 * S));
    assert_int_equal(box[1].err, ICMS_OK);
    loop_sock_close(&box[1].sock);
    sim_net_cut(sim, box[1].node, second, true);
    (void)snprintf(box[1].peer.host, sizeof(box[1].peer.host), "10.1.0.1");
    box_do(&box[1], act_connect);
    assert_true(box_wait(&box[1], S));
    assert_int_equal(box[1].err, ICMS_OK);
    box_end(&box[0]);
    box_end(&box[1]);
    sim_free(&sim);
}

/* One way: a connection begins when both ways are free; later only the other way goes on. */
static void a_cut_has_a_way(void **state)
{
    for (int way = 0; way < 2; way++) {
        struct sim *sim = room(6, NULL);
        struct box box[2];

        two_boxes(box, sim);
        box_listen(&box[0]);
        box[1].peer = (struct loop_addr){"10.1.0.1", PORT};
        sim_net_cut_way(sim, box[way].node, box[1 - way].node, true);
        assert_true(sim_reaches(sim, box[1 - way].node, box[way].node));
        assert_false(sim_reaches(sim, box[way].node, box[1 - way].node));
        box_do(&box[1], act_connect);
        assert_false(box_wait(&box[1], 10 * S));
        sim_net_cut_way(sim, box[way].node, box[1 - way].node, false);
        assert_true(box_wait(&box[1], 10 * S));
        assert_int_equal(box[1].err, ICMS_OK);
        sim_net_cut_way(sim, way == 0 ? NULL : box[0].node, way == 0 ? box[0].node : NULL, true);
        assert_true(sim_reaches(sim, box[way].node, box[1 - way].node));
        assert_false(sim_reaches(sim, box[1 - way].node, box[way].node));
        box_end(&box[0]);
        box_end(&box[1]);
        sim_free(&sim);
    }
}

static void a_connect_into_a_cut_waits_and_heals_or_gives_up(void **state)
{
    for (int heal = 0; heal < 2; heal++) {
        struct sim *sim = room(6, NULL);
        struct box box[2];

        two_boxes(box, sim);
        box_listen(&box[0]);
        sim_net_cut(sim, box[0].node, NULL, true);
        box[1].peer = (struct loop_addr){"10.1.0.1", PORT};
        box_do(&box[1], act_connect);
        assert_false(box_wait(&box[1], 10 * S));
        sim_net_cut(sim, box[0].node, NULL, !heal);
        assert_true(box_wait(&box[1], 200 * S));
        assert_int_equal(box[1].err, heal ? ICMS_OK : ICMS_PEER_DOWN);
        box_end(&box[0]);
        box_end(&box[1]);
        sim_free(&sim);
    }
}

static void a_paused_node_accepts_and_buffers_in_its_kernel(void **state)
{
    struct sim *sim = room(8, NULL);
    struct box box[2];

    two_boxes(box, sim);
    box_listen(&box[0]);
    sim_node_pause(box[0].node, true);
    box_do(&box[0], act_accept);
    box[1].peer = (struct loop_addr){"10.1.0.1", PORT};
    box_do(&box[1], act_connect);
    assert_true(box_wait(&box[1], S));
    assert_int_equal(box[1].err, ICMS_OK);
    box_do(&box[1], act_send);
    assert_true(box_wait(&box[1], S));
    assert_int_equal(box[0].done, 0);
    sim_node_pause(box[0].node, false);
    assert_true(box_wait(&box[0], S));
    box_do(&box[0], act_recv);
    assert_true(box_wait(&box[0], S));
    assert_int_equal(box[0].err, ICMS_OK);
    box_end(&box[0]);
    box_end(&box[1]);
    sim_free(&sim);
}

static void opts_backlog(struct sim_opts *opts)
{
    opts->net_backlog = 1;
}

static void a_full_backlog_makes_connects_wait(void **state)
{
    struct sim *sim = room(9, opts_backlog);
    struct box box[2];

    two_boxes(box, sim);
    box_listen(&box[0]);
    box[1].peer = (struct loop_addr){"10.1.0.1", PORT};
    box_do(&box[1], act_connect);
    assert_true(box_wait(&box[1], S));
    loop_sock_close(&box[1].sock);
    box_do(&box[1], act_connect);
    assert_false(box_wait(&box[1], 5 * S));
    box_do(&box[0], act_accept);
    assert_true(box_wait(&box[1], 5 * S));
    assert_int_equal(box[1].err, ICMS_OK);
    box_end(&box[0]);
    box_end(&box[1]);
    sim_free(&sim);
}

/* ---- networks that lose, and machines that lack ---------------------------------------------- */

static void act_recv_all(struct box *box)
{
    loop_recv(box->loop, &box->op, box->sock, box->memory, box->bytes, true, box_done);
}

static void act_send_some(struct box *box)
{
    loop_sendv(box->loop, &box->op, box->sock, &box->vector, 1, box_done);
}

static void opts_whole(struct sim_opts *opts)
{
    opts->strict = false; /* so that what is received can be compared */
}

/* [1] sends so much, [0] waits for it. */
static void box_send(struct box *box, uint32_t bytes)
{
    uint32_t sent = 0;

    box[0].bytes = bytes;
    box_do(&box[0], act_recv_all);
    while (sent < bytes) {
        box[1].vector = (struct iovec){box[1].memory + sent, bytes - sent};
        box_do(&box[1], act_send_some);
        assert_true(box_wait(&box[1], S));
        assert_int_equal(box[1].err, ICMS_OK);
        sent += box[1].bytes;
    }
}

static void large_packets_wait_and_small_ones_pass(void **state)
{
    struct sim *sim = room(21, opts_whole);
    struct sim_stats stats;
    struct box box[2];

    two_boxes(box, sim);
    box_join(box);
    sim_net_small(box[0].node, true);
    box_send(box, 1000);
    assert_true(box_wait(&box[0], S));
    assert_int_equal(box[0].err, ICMS_OK);
    sim_stats(sim, &stats);
    assert_int_equal(stats.streams_held, 0);
    do
        box_send(box, 20000); /* until one send had more than a packet */
    while (box_wait(&box[0], 100 * S));
    sim_stats(sim, &stats);
    assert_int_equal(stats.streams_held, 1);
    sim_net_small(box[0].node, false);
    assert_true(box_wait(&box[0], S));
    assert_int_equal(box[0].err, ICMS_OK);
    assert_int_equal(box[0].bytes, 20000);
    box_end(&box[1]);
    box_end(&box[0]);
    sim_free(&sim);
}

/* All arrives, in order; some of it 200 ms later or more. */
static void lost_packets_are_sent_again(void **state)
{
    struct sim *sim = room(22, opts_whole);
    struct sim_stats stats;
    struct box box[2];
    uint64_t begin_ns;

    two_boxes(box, sim);
    box_join(box);
    sim_net_lossy(box[1].node, 100000);
    begin_ns = sim_now_ns(sim);
    for (int i = 0; i < 20; i++) {
        fill_blocks(box[1].memory, (uint64_t)i);
        box_send(box, 10000);
        assert_true(box_wait(&box[0], 100 * S));
        assert_int_equal(box[0].err, ICMS_OK);
        assert_memory_equal(box[0].memory, box[1].memory, 10000);
    }
    assert_true(sim_now_ns(sim) - begin_ns >= 200 * MS);
    sim_stats(sim, &stats);
    assert_true(stats.packets_lost > 0);
    sim_net_lossy(box[1].node, 1000000);
    loop_sock_close(&box[1].sock);
    box_do(&box[1], act_connect); /* none arrives */
    assert_false(box_wait(&box[1], 10 * S));
    sim_net_lossy(box[1].node, 0);
    assert_true(box_wait(&box[1], 2 * S));
    assert_int_equal(box[1].err, ICMS_OK);
    box_end(&box[1]);
    box_end(&box[0]);
    sim_free(&sim);
}

/* The kernel agrees, and the program cannot take it. */
static void a_machine_without_memory_takes_no_connection(void **state)
{
    struct sim *sim = room(23, NULL);
    struct box box[2];

    two_boxes(box, sim);
    box_join(box);
    loop_sock_close(&box[0].sock);
    loop_sock_close(&box[1].sock);
    sim_memory_short(box[0].node, 1);
    box_do(&box[0], act_accept);
    box_do(&box[1], act_connect);
    assert_true(box_wait(&box[0], S));
    assert_int_equal(box[0].err, ICMS_NO_MEMORY);
    assert_true(box_wait(&box[1], S));
    loop_sock_close(&box[1].sock);
    sim_memory_short(box[1].node, 1);
    box_do(&box[1], act_connect);
    assert_true(box_wait(&box[1], S));
    assert_int_equal(box[1].err, ICMS_NO_MEMORY);
    sim_memory_short(box[0].node, 0);
    sim_memory_short(box[1].node, 0);
    box_join(box);
    box_end(&box[1]);
    box_end(&box[0]);
    sim_free(&sim);
}

static void a_machine_loses_all_its_connections(void **state)
{
    struct sim *sim = room(26, NULL);
    struct box box[2];

    two_boxes(box, sim);
    box_join(box);
    box_do(&box[0], act_recv);
    box_do(&box[1], act_recv);
    (void)sim_run(sim, sim_now_ns(sim) + MS);
    sim_net_reset(box[0].node);
    assert_true(box_wait(&box[0], S));
    assert_true(box_wait(&box[1], S));
    assert_int_equal(box[0].err, ICMS_RESET);
    assert_int_equal(box[1].err, ICMS_RESET);
    box_end(&box[1]);
    box_end(&box[0]);
    sim_free(&sim);
}

/* ---- strictness ----------------------------------------------------------------------------- */

static void act_write_and_change(struct box *box)
{
    memset(box->memory, 1, FILE_BYTES);
    act_write(box);
    box->memory[77] = 2;
}

static void act_send_and_change(struct box *box)
{
    memset(box->memory, 1, FILE_BYTES);
    box->vector = (struct iovec){box->memory, FILE_BYTES};
    for (int i = 0; i < SENDS; i++) /* the last ones find no room */
        loop_sendv(box->loop, &box->more[i], box->sock, &box->vector, 1, more_done);
    box->memory[77] = 2;
}

/* Whether a child that does this dies of a check. */
static bool dies(void (*act)(struct box *box))
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        struct sim *sim = room(11, NULL);
        struct box box[2];

        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(1);
        two_boxes(box, sim);
        box_join(box);
        box_do(&box[0], act);
        box_do(&box[1], act_recv);
        for (int i = 0; i < 100; i++) {
            if (box_wait(&box[1], S))
                box_do(&box[1], act_recv);
        }
        _exit(0);
    }
    assert_true(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void a_buffer_that_changes_in_flight_is_caught(void **state)
{
    assert_false(dies(act_write));
    assert_true(dies(act_write_and_change));
    assert_true(dies(act_send_and_change));
}

static void a_buffer_that_is_to_be_read_into_is_scribbled_on(void **state)
{
    struct sim *sim = room(12, NULL);
    static const uint8_t zeros[FILE_BYTES];
    struct box box;

    box_new(&box, sim, "10.1.0.1");
    memset(box.memory, 0, FILE_BYTES);
    box_do(&box, act_read);
    while (memcmp(box.memory, zeros, FILE_BYTES) == 0)
        assert_true(sim_step(sim));
    assert_int_equal(box.done, 0);
    assert_true(box_wait(&box, S));
    assert_memory_equal(box.memory, zeros, FILE_BYTES);
    box_end(&box);
    sim_free(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crash_keeps_completed_writes),
        cmocka_unit_test(a_crash_tears_writes_in_flight),
        cmocka_unit_test(a_power_loss_tears_what_was_not_flushed),
        cmocka_unit_test(a_power_loss_keeps_what_was_flushed),
        cmocka_unit_test(disks_lie_as_told),
        cmocka_unit_test(a_slow_disk_is_slower),
        cmocka_unit_test(a_dead_drive_fails_everything),
        cmocka_unit_test(a_crash_resets_connections_unless_it_is_silent),
        cmocka_unit_test(a_machine_that_went_silently_can_connect_again),
        cmocka_unit_test(an_event_of_another_process_outlives_it_for_who_waits),
        cmocka_unit_test(a_cut_swallows_and_what_it_swallowed_stays_lost),
        cmocka_unit_test(an_address_is_cut_alone),
        cmocka_unit_test(a_cut_has_a_way),
        cmocka_unit_test(a_connect_into_a_cut_waits_and_heals_or_gives_up),
        cmocka_unit_test(a_paused_node_accepts_and_buffers_in_its_kernel),
        cmocka_unit_test(a_full_backlog_makes_connects_wait),
        cmocka_unit_test(large_packets_wait_and_small_ones_pass),
        cmocka_unit_test(lost_packets_are_sent_again),
        cmocka_unit_test(a_machine_without_memory_takes_no_connection),
        cmocka_unit_test(a_machine_loses_all_its_connections),
        cmocka_unit_test(a_buffer_that_changes_in_flight_is_caught),
        cmocka_unit_test(a_buffer_that_is_to_be_read_into_is_scribbled_on),
    };

    return cmocka_run_group_tests_name("sim", tests, NULL, NULL);
}
