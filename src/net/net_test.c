/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of net.h, over both back ends of the loop; those of connections without and with TLS.
 */
#include "net/net_tls_rig.h"

#include <stdlib.h>

#include "base/fault_arm.h"
#include "loop/sim.h"

#define STREAM_BYTES 600000u
#define SENDS_MAX    4096

/* Connections begin with TLS. */
static bool with_tls;

static int rig_uring_tls_setup(void **state)
{
    with_tls = true;
    return rig_uring_setup(state);
}

static int rig_uring_tls_teardown(void **state)
{
    with_tls = false;
    return rig_uring_teardown(state);
}

static int rig_sim_tls_setup(void **state)
{
    with_tls = true;
    return rig_sim_setup(state);
}

static int rig_sim_tls_teardown(void **state)
{
    with_tls = false;
    return rig_sim_teardown(state);
}

/* ---- a stream through a pair ----------------------------------------------------------------- */

/* One end that sends, one that receives. */
struct stream {
    struct rig *rig;
    struct tls_rig tls; /* with_tls                                                     */
    struct net_rig_pair pair;
    struct net_conn conn[2];          /* 0 sends, 1 receives                            */
    struct net_send sends[SENDS_MAX]; /* in order                                       */
    uint32_t send_count;              /* of them                                        */
    uint32_t sent;                    /* given back                                     */
    uint32_t send_failed;             /* given back with an error                       */
    uint8_t *out;                     /* STREAM_BYTES that are sent                     */
    uint8_t *in;                      /* STREAM_BYTES that arrive                       */
    uint32_t in_bytes;                /* of them                                        */
    uint64_t seed;                    /* of sizes                                       */
    icms_err recv_err;                /* of the last receive                            */
    icms_err why[2];                  /* of closed()                                    */
    uint64_t send_ns[2];              /* timeouts                                       */
    bool receive_on;                  /* receive again and again                        */
    atomic_int recvs;                 /* receives ended                                 */
    atomic_int whole;                 /* everything arrived                             */
    atomic_int sent_all;              /* every send was given back                      */
    atomic_int closed;                /* ends closed                                    */
};

static void stream_recv(struct stream *stream)
{
    uint32_t left = STREAM_BYTES - stream->in_bytes;
    uint32_t bytes = (uint32_t)(1 + net_rig_random(&stream->seed) % 70000);

    if (bytes > left)
        bytes = left;
    net_conn_recv(&stream->conn[1], stream->in + stream->in_bytes, bytes,
                  net_rig_random(&stream->seed) & 1);
}

static void stream_recv_done(struct net_conn *conn, icms_err err, uint32_t bytes)
{
    struct stream *stream = container_of(conn, struct stream, conn[1]);

    stream->in_bytes += bytes;
    stream->recv_err = err;
    atomic_fetch_add(&stream->recvs, 1);
    if (stream->in_bytes == STREAM_BYTES)
        atomic_store(&stream->whole, 1);
    else if (err == ICMS_OK && stream->receive_on)
        stream_recv(stream);
}

static void stream_closed_0(struct net_conn *conn, icms_err why)
{
    struct stream *stream = container_of(conn, struct stream, conn[0]);

    stream->why[0] = why;
    atomic_fetch_add(&stream->closed, 1);
}

static void stream_closed_1(struct net_conn *conn, icms_err why)
{
    struct stream *stream = container_of(conn, struct stream, conn[1]);

    stream->why[1] = why;
    atomic_fetch_add(&stream->closed, 1);
}

static void stream_recv_unused(struct net_conn *conn, icms_err err, uint32_t bytes)
{
    check(err != ICMS_OK);
}

static const struct net_conn_ops stream_ops[2] = {
    {.recv_done = stream_recv_unused, .closed = stream_closed_0},
    {.recv_done = stream_recv_done, .closed = stream_closed_1},
};

static struct stream *stream_of_send;

static void stream_sent(struct net_send *send, icms_err err)
{
    struct stream *stream = stream_of_send;

    check(send == &stream->sends[stream->sent]);
    stream->sent++;
    stream->send_failed += err != ICMS_OK;
    if (stream->sent == stream->send_count)
        atomic_store(&stream->sent_all, 1);
}

static void stream_open_run(void *arg)
{
    struct stream *stream = arg;

    for (int i = 0; i < 2; i++) {
        struct net_conn_opts opts = {.ops = &stream_ops[i],
                                     .send_timeout_ns = stream->send_ns[i],
                                     .tls = with_tls ? &stream->tls.side[i] : NULL};

        net_conn_open(&stream->conn[i], stream->rig->loop[0], stream->pair.sock[i], &opts);
    }
}

static struct stream *stream_new(struct rig *rig)
{
    struct stream *stream = calloc(1, sizeof(*stream));

    check(stream != NULL);
    stream->rig = rig;
    stream->seed = 11;
    stream->out = malloc(STREAM_BYTES);
    stream->in = calloc(1, STREAM_BYTES);
    check(stream->out != NULL && stream->in != NULL);
    for (uint32_t i = 0; i < STREAM_BYTES; i++)
        stream->out[i] = net_rig_byte(i);
    stream_of_send = stream;
    tls_rig_init(&stream->tls, KEY_HASH_SHA256);
    net_rig_start(rig);
    net_rig_pair(rig, &stream->pair);
    return stream;
}

static void stream_close_run(void *arg)
{
    struct stream *stream = arg;

    net_conn_close(&stream->conn[0], ICMS_CLOSED);
    net_conn_close(&stream->conn[1], ICMS_CLOSED);
}

/* Closes both ends and frees everything. */
static void stream_free(struct stream *stream)
{
    net_rig_call(stream->rig, stream_close_run, stream);
    net_rig_wait(stream->rig, &stream->closed, 2);
    assert_int_equal(stream->sent, stream->send_count);
    net_rig_end(stream->rig);
    tls_rig_fini(&stream->tls);
    free(stream->out);
    free(stream->in);
    free(stream);
}

/* Queues bytes [from, to) of the stream in sends of up to piece bytes. */
static void stream_send(struct stream *stream, uint32_t from, uint32_t to, uint32_t piece)
{
    while (from < to) {
        struct net_send *send = &stream->sends[stream->send_count++];

        check(stream->send_count <= SENDS_MAX);
        send->count = (uint32_t)(1 + net_rig_random(&stream->seed) % NET_SEND_VECTORS);
        send->done = stream_sent;
        for (uint32_t i = 0; i < send->count; i++) {
            uint32_t n = (uint32_t)(i > 0 ? net_rig_random(&stream->seed) % piece
                                          : 1 + net_rig_random(&stream->seed) % piece);

            if (n > to - from)
                n = to - from;
            send->vectors[i] = (struct iovec){stream->out + from, n};
            from += n;
        }
        net_conn_send(&stream->conn[0], send);
    }
}

static void stream_all_run(void *arg)
{
    struct stream *stream = arg;

    stream->receive_on = true;
    stream_send(stream, 0, STREAM_BYTES / 2, 1500);
    net_conn_cork(&stream->conn[0]);
    stream_send(stream, STREAM_BYTES / 2, STREAM_BYTES, 20000);
    net_conn_uncork(&stream->conn[0]);
    stream_recv(stream);
}

static void sends_of_any_shape_arrive_in_order(void **state)
{
    struct stream *stream = stream_new(*state);

    net_rig_call(stream->rig, stream_open_run, stream);
    net_rig_call(stream->rig, stream_all_run, stream);
    net_rig_wait(stream->rig, &stream->whole, 1);
    net_rig_wait(stream->rig, &stream->sent_all, 1);
    assert_memory_equal(stream->in, stream->out, STREAM_BYTES);
    assert_int_equal(stream->send_failed, 0);
    if (!with_tls) {
        assert_int_equal(stream->conn[1].bytes_in, STREAM_BYTES);
    } else {
        assert_true(stream->conn[1].bytes_in > STREAM_BYTES);
        assert_true(net_conn_tls(&stream->conn[0]) != NET_TLS_NONE);
        assert_string_equal(net_conn_hostnqn(&stream->conn[1]), TLS_RIG_HOST);
        assert_string_equal(net_conn_subnqn(&stream->conn[1]), TLS_RIG_SUB);
    }
    stream_free(stream);
}

/* ---- cancel --------------------------------------------------------------------------------- */

static void part_send_run(void *arg)
{
    struct stream *stream = arg;

    stream_send(stream, 0, 10000, 5000);
    net_conn_recv(&stream->conn[1], stream->in, 100000, true);
}

static void part_cancel_run(void *arg)
{
    struct stream *stream = arg;

    net_conn_recv_cancel(&stream->conn[1]);
}

static void part_rest_run(void *arg)
{
    struct stream *stream = arg;

    stream->receive_on = true;
    stream_send(stream, 10000, STREAM_BYTES, 5000);
    stream_recv(stream);
}

static void a_canceled_receive_loses_no_byte(void **state)
{
    struct stream *stream = stream_new(*state);

    net_rig_call(stream->rig, stream_open_run, stream);
    net_rig_call(stream->rig, part_send_run, stream);
    net_rig_wait(stream->rig, &stream->sent_all, 1);
    for (int i = 0; i < 10; i++) /* all of it arrives */
        stream->rig->idle(stream->rig);
    net_rig_call(stream->rig, part_cancel_run, stream);
    net_rig_wait(stream->rig, &stream->recvs, 1);
    assert_int_equal(stream->recv_err, ICMS_CANCELED);
    assert_int_equal(stream->in_bytes, 10000);
    assert_memory_equal(stream->in, stream->out, 10000);
    memset(stream->in + 10000, 0xee, STREAM_BYTES - 10000);
    net_rig_call(stream->rig, part_rest_run, stream);
    net_rig_wait(stream->rig, &stream->whole, 1);
    assert_memory_equal(stream->in, stream->out, STREAM_BYTES);
    stream_free(stream);
}

/* ---- close ---------------------------------------------------------------------------------- */

static void jam_run(void *arg)
{
    struct stream *stream = arg;

    /* Nobody receives: the kernel's buffers take some, the rest waits. */
    for (int i = 0; i < 20; i++)
        stream_send(stream, 0, STREAM_BYTES, 30000);
}

static void jam_close_run(void *arg)
{
    struct stream *stream = arg;

    net_conn_recv(&stream->conn[1], stream->in, 1, false);
    net_conn_close(&stream->conn[1], ICMS_AUTH);
    net_conn_close(&stream->conn[1], ICMS_IO);
    net_conn_close(&stream->conn[0], ICMS_CANCELED);
    check(stream->why[0] == ICMS_OK && stream->why[1] == ICMS_OK);
}

static void a_close_gives_everything_back_once(void **state)
{
    struct stream *stream = stream_new(*state);

    net_rig_call(stream->rig, stream_open_run, stream);
    net_rig_call(stream->rig, jam_run, stream);
    net_rig_call(stream->rig, jam_close_run, stream);
    net_rig_wait(stream->rig, &stream->closed, 2);
    assert_int_equal(stream->sent, stream->send_count);
    assert_true(stream->send_failed > 0);
    assert_int_equal(stream->why[0], ICMS_CANCELED);
    assert_int_equal(stream->why[1], ICMS_AUTH);
    assert_int_equal(atomic_load(&stream->recvs), 1);
    stream_free(stream);
}

static void recv_closed_run(void *arg)
{
    struct stream *stream = arg;

    net_conn_close(&stream->conn[1], ICMS_CLOSED);
    net_conn_recv(&stream->conn[1], stream->in, 1, false);
    net_conn_close(&stream->conn[0], ICMS_CLOSED);
    stream_send(stream, 0, 10, 10);
}

static void what_is_started_while_closing_ends_with_its_reason(void **state)
{
    struct stream *stream = stream_new(*state);

    net_rig_call(stream->rig, stream_open_run, stream);
    net_rig_call(stream->rig, recv_closed_run, stream);
    net_rig_wait(stream->rig, &stream->closed, 2);
    assert_int_equal(atomic_load(&stream->recvs), 1);
    assert_int_equal(stream->recv_err, ICMS_CLOSED);
    assert_int_equal(stream->send_failed, stream->send_count);
    stream_free(stream);
}

static void end_run(void *arg)
{
    struct stream *stream = arg;

    net_conn_recv(&stream->conn[1], stream->in, 1, false);
    net_conn_close(&stream->conn[0], ICMS_CLOSED);
    net_conn_mark(&stream->conn[0], (struct net_mark){0}); /* a peer may end it at any time */
}

static void the_peers_end_closes_with_reset(void **state)
{
    struct stream *stream = stream_new(*state);

    net_rig_call(stream->rig, stream_open_run, stream);
    net_rig_call(stream->rig, end_run, stream);
    net_rig_wait(stream->rig, &stream->closed, 2);
    assert_int_equal(stream->recv_err, ICMS_RESET);
    assert_int_equal(stream->why[1], ICMS_RESET);
    stream_free(stream);
}

/* ---- timeouts ------------------------------------------------------------------------------- */

static void a_peer_that_does_not_read_is_closed_after_its_time(void **state)
{
    struct stream *stream = stream_new(*state);

    stream->send_ns[0] = 20 * NET_RIG_MS;
    net_rig_call(stream->rig, stream_open_run, stream);
    net_rig_call(stream->rig, jam_run, stream);
    net_rig_wait(stream->rig, &stream->closed, 1);
    assert_int_equal(stream->why[0], ICMS_DEADLINE);
    stream_free(stream);
}

/* ---- faults --------------------------------------------------------------------------------- */

static void a_fault_in_the_middle_gives_everything_back(void **state)
{
    struct stream *stream = stream_new(*state);

    net_rig_call(stream->rig, stream_open_run, stream);
    assert_int_equal(fault_arm("net.recv:3:fail", NULL), ICMS_OK);
    net_rig_call(stream->rig, stream_all_run, stream);
    net_rig_wait(stream->rig, &stream->closed, 1);
    assert_int_equal(stream->why[1], ICMS_RESET);
    assert_int_equal(fault_arm("", NULL), ICMS_OK);
    stream_free(stream);
}

/* ---- dialers and listeners ------------------------------------------------------------------- */

#define CROWD 5

struct crowd {
    struct rig *rig;
    struct net_listener listener;
    struct net_dial dial[CROWD];
    struct loop_sock *dialed[CROWD];
    struct loop_sock *accepted[CROWD];
    icms_err err[CROWD];
    struct loop_addr addr;
    atomic_int dials;
    atomic_int accepts;
    atomic_int closed;
    atomic_int paused; /* the listener paused */
};

static void crowd_accepted(struct net_listener *listener, struct loop_sock *sock)
{
    struct crowd *crowd = listener->arg;

    crowd->accepted[atomic_load(&crowd->accepts)] = sock;
    atomic_fetch_add(&crowd->accepts, 1);
}

static struct crowd *crowd_of_dial;

static void crowd_dial_done(struct net_dial *dial, icms_err err, struct loop_sock *sock)
{
    struct crowd *crowd = crowd_of_dial;
    size_t i = (size_t)(dial - crowd->dial);

    check((err == ICMS_OK) == (sock != NULL));
    crowd->dialed[i] = sock;
    crowd->err[i] = err;
    atomic_fetch_add(&crowd->dials, 1);
}

static void crowd_listener_closed(struct net_listener *listener)
{
    struct crowd *crowd = container_of(listener, struct crowd, listener);

    atomic_fetch_add(&crowd->closed, 1);
}

static void crowd_listen_run(void *arg)
{
    struct crowd *crowd = arg;
    struct loop *loop = crowd->rig->loop[0];

    crowd_of_dial = crowd;
    (void)strncpy(crowd->addr.host, crowd->rig->host, sizeof(crowd->addr.host) - 1);
    check(net_listener_open(&crowd->listener, loop, &crowd->addr, 2, crowd_accepted, crowd, NULL) ==
          ICMS_OK);
    net_listener_addr(&crowd->listener, &crowd->addr);
}

static void crowd_dial_run(void *arg)
{
    struct crowd *crowd = arg;
    struct loop *loop = crowd->rig->loop[0];

    for (int i = 0; i < CROWD; i++)
        net_dial_start(&crowd->dial[i], loop, &crowd->addr,
                       loop_now_ns(loop) + (uint64_t)2000 * NET_RIG_MS, crowd_dial_done);
}

static void crowd_close_run(void *arg)
{
    struct crowd *crowd = arg;

    net_listener_close(&crowd->listener, crowd_listener_closed);
}

static void crowd_free(struct crowd *crowd)
{
    net_rig_end(crowd->rig);
    for (int i = 0; i < CROWD; i++) {
        loop_sock_close(&crowd->dialed[i]);
        loop_sock_close(&crowd->accepted[i]);
    }
    net_listener_fini(&crowd->listener);
    free(crowd);
}

static struct crowd *crowd_new(struct rig *rig)
{
    struct crowd *crowd = calloc(1, sizeof(*crowd));

    check(crowd != NULL);
    crowd->rig = rig;
    net_rig_start(rig);
    return crowd;
}

/* On the loop, which the listener belongs to. */
static void crowd_paused_run(void *arg)
{
    struct crowd *crowd = arg;

    atomic_store(&crowd->paused, crowd->listener.state == NET_LISTENER_PAUSE);
}

static void a_listener_hands_out_no_more_than_its_limit(void **state)
{
    struct crowd *crowd = crowd_new(*state);

    net_rig_call(crowd->rig, crowd_listen_run, crowd);
    net_rig_call(crowd->rig, crowd_dial_run, crowd);
    net_rig_wait(crowd->rig, &crowd->accepts, 2);
    crowd->rig->idle(crowd->rig);
    assert_int_equal(atomic_load(&crowd->accepts), 2);
    net_rig_call(crowd->rig, crowd_paused_run, crowd);
    net_rig_wait(crowd->rig, &crowd->paused, 1);
    for (int i = 3; i <= CROWD; i++) {
        net_listener_rele(&crowd->listener);
        net_rig_wait(crowd->rig, &crowd->accepts, i);
    }
    net_rig_wait(crowd->rig, &crowd->dials, CROWD);
    net_rig_call(crowd->rig, crowd_close_run, crowd);
    net_rig_wait(crowd->rig, &crowd->closed, 1);
    crowd_free(crowd);
}

/* Two listeners with one limit of 2, and the last place goes to the first one of them. */
struct pair_of_crowds {
    struct crowd *crowd[2];
};

static void crowds_listen_run(void *arg)
{
    struct pair_of_crowds *pair = arg;

    for (int i = 0; i < 2; i++)
        crowd_listen_run(pair->crowd[i]);
    net_listener_share(&pair->crowd[1]->listener, &pair->crowd[0]->listener);
}

/* The dials of one crowd after the other: of the second only the first one. */
static void crowd_dial_one_run(void *arg)
{
    struct crowd *crowd = arg;
    struct loop *loop = crowd->rig->loop[0];
    int i = atomic_load(&crowd->dials);

    crowd_of_dial = crowd;
    net_dial_start(&crowd->dial[i], loop, &crowd->addr,
                   loop_now_ns(loop) + (uint64_t)2000 * NET_RIG_MS, crowd_dial_done);
}

static void listeners_share_a_limit(void **state)
{
    struct pair_of_crowds pair = {{crowd_new(*state), calloc(1, sizeof(struct crowd))}};
    struct crowd *a = pair.crowd[0], *b = pair.crowd[1];

    assert_non_null(b);
    b->rig = *state;
    net_rig_call(a->rig, crowds_listen_run, &pair);
    for (int i = 0; i < 2; i++) { /* one on each */
        net_rig_call(a->rig, crowd_dial_one_run, pair.crowd[i]);
        net_rig_wait(a->rig, &pair.crowd[i]->accepts, 1);
        net_rig_wait(a->rig, &pair.crowd[i]->dials, 1);
    }
    for (int i = 0; i < 2; i++) { /* both accepts were in flight when the limit was reached */
        net_rig_call(a->rig, crowd_dial_one_run, pair.crowd[i]);
        net_rig_wait(a->rig, &pair.crowd[i]->dials, 2);
    }
    a->rig->idle(a->rig);
    assert_int_equal(atomic_load(&a->accepts) + atomic_load(&b->accepts), 2);
    net_listener_rele(&b->listener);
    net_listener_rele(&b->listener);
    net_rig_wait(a->rig, &a->accepts, 2);
    net_rig_wait(a->rig, &b->accepts, 2);
    for (int i = 0; i < 2; i++) { /* held when the listener closes */
        net_rig_call(a->rig, crowd_dial_one_run, pair.crowd[i]);
        net_rig_wait(a->rig, &pair.crowd[i]->dials, 3);
    }
    a->rig->idle(a->rig);
    assert_int_equal(atomic_load(&a->accepts) + atomic_load(&b->accepts), 4);
    net_rig_call(a->rig, crowd_close_run, b);
    net_rig_wait(a->rig, &b->closed, 1);
    for (int i = 0; i < CROWD; i++) {
        loop_sock_close(&b->dialed[i]);
        loop_sock_close(&b->accepted[i]);
    }
    crowd_free(a); /* closed, or with a connection that it holds */
    net_listener_fini(&b->listener);
    free(b);
}

static void a_listener_goes_on_after_a_failed_accept(void **state)
{
    struct crowd *crowd = crowd_new(*state);

    assert_int_equal(fault_arm("net.accept:1:fail", NULL), ICMS_OK);
    net_rig_call(crowd->rig, crowd_listen_run, crowd);
    net_rig_call(crowd->rig, crowd_dial_run, crowd);
    net_rig_wait(crowd->rig, &crowd->accepts, 2);
    assert_int_equal(fault_arm("", NULL), ICMS_OK);
    crowd_free(crowd);
}

static void crowd_cancel_run(void *arg)
{
    struct crowd *crowd = arg;

    crowd_dial_run(crowd);
    for (int i = 0; i < CROWD; i++)
        net_dial_cancel(&crowd->dial[i]);
    net_dial_cancel(&crowd->dial[0]);
}

static void canceled_dials_end_once_and_leave_nothing(void **state)
{
    struct crowd *crowd = crowd_new(*state);

    net_rig_call(crowd->rig, crowd_listen_run, crowd);
    net_rig_call(crowd->rig, crowd_cancel_run, crowd);
    net_rig_wait(crowd->rig, &crowd->dials, CROWD);
    for (int i = 0; i < CROWD; i++)
        assert_int_equal(crowd->err[i], ICMS_CANCELED);
    crowd_free(crowd);
}

static void a_dial_to_nobody_is_refused(void **state)
{
    struct crowd *crowd = crowd_new(*state);

    net_rig_call(crowd->rig, crowd_listen_run, crowd);
    net_rig_call(crowd->rig, crowd_close_run, crowd);
    net_rig_wait(crowd->rig, &crowd->closed, 1);
    net_rig_call(crowd->rig, crowd_dial_run, crowd);
    net_rig_wait(crowd->rig, &crowd->dials, CROWD);
    for (int i = 0; i < CROWD; i++)
        assert_int_equal(crowd->err[i], ICMS_REFUSED);
    crowd_free(crowd);
}

/* Two machines of their own, with a black hole between them. */
static void a_dial_into_a_black_hole_ends_by_its_deadline(void **state)
{
    struct crowd *crowd = calloc(1, sizeof(*crowd));
    struct sim_node *a, *b;
    struct sim_opts opts;
    struct loop_opts loop_opts;
    struct sim *sim;
    struct loop *loop[2];
    uint64_t from;

    check(crowd != NULL);
    sim_opts_init(&opts, 3);
    sim = sim_new(&opts);
    a = sim_node_new(sim, "10.1.0.1");
    b = sim_node_new(sim, "10.1.0.2");
    loop_opts_init(&loop_opts);
    assert_int_equal(loop_new(sim_node_env(a), &loop_opts, NULL, &loop[0]), ICMS_OK);
    assert_int_equal(loop_new(sim_node_env(b), &loop_opts, NULL, &loop[1]), ICMS_OK);
    crowd_of_dial = crowd;
    crowd->addr = (struct loop_addr){.host = "10.1.0.2", .port = 4420};
    assert_int_equal(
        net_listener_open(&crowd->listener, loop[1], &crowd->addr, 2, crowd_accepted, crowd, NULL),
        ICMS_OK);
    sim_net_cut(sim, a, b, true);
    from = loop_now_ns(loop[0]); /* machines have clocks of their own */
    net_dial_start(&crowd->dial[0], loop[0], &crowd->addr, from + 50 * NET_RIG_MS, crowd_dial_done);
    assert_int_equal(loop_start(loop[0], NULL), ICMS_OK);
    assert_int_equal(loop_start(loop[1], NULL), ICMS_OK);
    (void)sim_run(sim, 49 * NET_RIG_MS);
    assert_int_equal(atomic_load(&crowd->dials), 0);
    (void)sim_run(sim, 55 * NET_RIG_MS);
    assert_int_equal(atomic_load(&crowd->dials), 1);
    assert_int_equal(crowd->err[0], ICMS_DEADLINE);
    assert_int_equal(atomic_load(&crowd->accepts), 0);
    for (int i = 0; i < 2; i++) {
        loop_stop(loop[i]);
        loop_join(loop[i]);
        loop_free(&loop[i]);
    }
    net_listener_fini(&crowd->listener);
    sim_free(&sim);
    free(crowd);
}

#define BOTH(test)                                                                                 \
    {"uring: " #test, test, rig_uring_setup, rig_uring_teardown, NULL},                            \
    {                                                                                              \
        "sim: " #test, test, rig_sim_setup, rig_sim_teardown, NULL                                 \
    }
#define BOTH_TLS(test)                                                                             \
    {"uring, TLS: " #test, test, rig_uring_tls_setup, rig_uring_tls_teardown, NULL},               \
    {                                                                                              \
        "sim, TLS: " #test, test, rig_sim_tls_setup, rig_sim_tls_teardown, NULL                    \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(sends_of_any_shape_arrive_in_order),
        BOTH_TLS(sends_of_any_shape_arrive_in_order),
        BOTH(a_canceled_receive_loses_no_byte),
        BOTH_TLS(a_canceled_receive_loses_no_byte),
        BOTH(a_close_gives_everything_back_once),
        BOTH_TLS(a_close_gives_everything_back_once),
        BOTH(what_is_started_while_closing_ends_with_its_reason),
        BOTH_TLS(what_is_started_while_closing_ends_with_its_reason),
        BOTH(the_peers_end_closes_with_reset),
        BOTH_TLS(the_peers_end_closes_with_reset),
        BOTH(a_peer_that_does_not_read_is_closed_after_its_time),
        BOTH_TLS(a_peer_that_does_not_read_is_closed_after_its_time),
        BOTH(a_fault_in_the_middle_gives_everything_back),
        BOTH_TLS(a_fault_in_the_middle_gives_everything_back),
        BOTH(a_listener_hands_out_no_more_than_its_limit),
        BOTH(listeners_share_a_limit),
        BOTH(a_listener_goes_on_after_a_failed_accept),
        BOTH(canceled_dials_end_once_and_leave_nothing),
        BOTH(a_dial_to_nobody_is_refused),
        cmocka_unit_test(a_dial_into_a_black_hole_ends_by_its_deadline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
