/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of loop.h, the same tests for every back end: sockets, events, and the end of a
 * loop.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/limits.h"
#include "loop/loop_test.h"

#define MS 1000000u

/* ---- sockets -------------------------------------------------------------------------------- */

/* Two connected sockets: [0] accepted by loop[0], [1] connected by loop[1]. */
struct pair {
    struct loop_sock *listener;
    struct loop_sock *sock[2];
    struct rig_wait wait[2];
    struct loop_addr addr;
};

static void pair_accept(struct loop *loop, void *arg)
{
    struct pair *pair = arg;

    loop_accept(loop, &pair->wait[0].op, pair->listener, rig_wait_done);
}

static void pair_connect(struct loop *loop, void *arg)
{
    struct pair *pair = arg;

    loop_connect(loop, &pair->wait[1].op, &pair->addr, rig_wait_done);
}

static void pair_listen(struct rig *rig, struct pair *pair)
{
    struct loop_addr addr = {{0}, 0};

    (void)snprintf(addr.host, sizeof(addr.host), "%s", rig->host);
    assert_int_equal(loop_listen(rig->env, &addr, NULL, &pair->listener), ICMS_OK);
    loop_sock_addr(pair->listener, &pair->addr);
    assert_string_equal(pair->addr.host, rig->host);
    assert_int_not_equal(pair->addr.port, 0);
}

/* Each side sees the other's address. */
static void pair_sees_peers(struct pair *pair)
{
    for (unsigned i = 0; i < 2; i++) {
        struct loop_addr own, peer;

        loop_sock_addr(pair->sock[i], &own);
        loop_sock_peer(pair->sock[!i], &peer);
        assert_string_equal(peer.host, own.host);
        assert_int_equal(peer.port, own.port);
    }
}

static void pair_open(struct rig *rig, struct pair *pair)
{
    pair_listen(rig, pair);
    rig_loops(rig, 2, 64);
    rig_start(rig);
    rig_call(rig, rig->loop[0], pair_accept, pair);
    rig_call(rig, rig->loop[1], pair_connect, pair);
    for (unsigned i = 0; i < 2; i++) {
        rig_wait_for(rig, &pair->wait[i]);
        assert_int_equal(pair->wait[i].err, ICMS_OK);
        pair->sock[i] = pair->wait[i].sock;
        assert_non_null(pair->sock[i]);
    }
    pair_sees_peers(pair);
}

static void pair_close(struct rig *rig, struct pair *pair)
{
    rig_end(rig);
    loop_sock_close(&pair->sock[0]);
    loop_sock_close(&pair->sock[1]);
    loop_sock_close(&pair->listener);
}

#define ECHO_BYTES ((uint32_t)6 << 20)

struct echo {
    struct loop_op recv;
    struct loop_op send;
    struct loop_sock *sock;
    struct iovec vectors[3];
    uint8_t *out;
    uint8_t *in;
    uint32_t sent;
    uint32_t received;
    bool server; /* sends what it received; the client the other way round */
    bool sending;
    bool shorts; /* a send was cut short */
    atomic_int done;
};

static void echo_send(struct loop *loop, struct echo *echo);

static void echo_sent(struct loop_op *op)
{
    struct echo *echo = container_of(op, struct echo, send);
    uint32_t asked = 0;

    check(op->err == ICMS_OK && op->bytes > 0);
    for (unsigned i = 0; i < 3; i++)
        asked += (uint32_t)echo->vectors[i].iov_len;
    if (op->bytes < asked)
        echo->shorts = true;
    echo->sent += op->bytes;
    echo->sending = false;
    if (echo->server && echo->sent == ECHO_BYTES)
        atomic_store(&echo->done, 1);
    else
        echo_send(op->loop, echo);
}

/* Sends what there is in three vectors of different lengths. */
static void echo_send(struct loop *loop, struct echo *echo)
{
    uint32_t end = echo->server ? echo->received : ECHO_BYTES;
    uint32_t bytes = end - echo->sent;
    uint32_t part = bytes / 7;

    if (echo->sending || bytes == 0)
        return;
    echo->vectors[0] = (struct iovec){echo->out + echo->sent, part};
    echo->vectors[1] = (struct iovec){echo->out + echo->sent + part, 2 * part};
    echo->vectors[2] = (struct iovec){echo->out + echo->sent + 3 * part, bytes - 3 * part};
    echo->sending = true;
    loop_sendv(loop, &echo->send, echo->sock, echo->vectors, 3, echo_sent);
}

static void echo_received(struct loop_op *op)
{
    struct echo *echo = container_of(op, struct echo, recv);

    check(op->err == ICMS_OK && op->bytes > 0);
    echo->received += op->bytes;
    if (echo->server) {
        echo_send(op->loop, echo);
        if (echo->received < ECHO_BYTES)
            loop_recv(op->loop, op, echo->sock, echo->in + echo->received, 100000, false,
                      echo_received);
        return;
    }
    check(echo->received == ECHO_BYTES);
    atomic_store(&echo->done, 1);
}

static void echo_start(struct loop *loop, void *arg)
{
    struct echo *echo = arg;

    loop_recv(loop, &echo->recv, echo->sock, echo->in, echo->server ? 100000 : ECHO_BYTES,
              !echo->server, echo_received);
    if (!echo->server)
        echo_send(loop, echo);
}

static void sockets_carry_streams_with_partial_sends_and_whole_receives(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};
    struct echo echo[2] = {{.server = true}, {.server = false}};

    pair_open(rig, &pair);
    for (unsigned i = 0; i < 2; i++) {
        echo[i].sock = pair.sock[i];
        echo[i].in = calloc(1, ECHO_BYTES + 100000);
        echo[i].out = i == 0 ? echo[i].in : malloc(ECHO_BYTES);
        assert_non_null(echo[i].in);
        assert_non_null(echo[i].out);
    }
    rig_fill(echo[1].out, ECHO_BYTES, 5);
    rig_call(rig, rig->loop[0], echo_start, &echo[0]);
    rig_call(rig, rig->loop[1], echo_start, &echo[1]);
    assert_true(rig->until(rig, rig_flag_is_up, &echo[0].done));
    assert_true(rig->until(rig, rig_flag_is_up, &echo[1].done));
    if (!rig->threads) /* on the machine it depends on the receiver's speed */
        assert_true(echo[1].shorts);
    assert_memory_equal(echo[1].in, echo[1].out, ECHO_BYTES);
    pair_close(rig, &pair);
    free(echo[0].in);
    free(echo[1].in);
    free(echo[1].out);
}

static void a_connect_without_listener_is_refused(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};

    pair_listen(rig, &pair);
    loop_sock_close(&pair.listener);
    rig_loops(rig, 2, 64);
    rig_start(rig);
    rig_call(rig, rig->loop[1], pair_connect, &pair);
    rig_wait_for(rig, &pair.wait[1]);
    assert_int_equal(pair.wait[1].err, ICMS_REFUSED);
    assert_null(pair.wait[1].sock);
    pair_close(rig, &pair);
}

struct transfer {
    struct rig_wait wait;
    struct loop_sock *sock;
    uint8_t memory[4096];
    uint32_t bytes;
    bool whole;
    struct iovec vector;
};

static void transfer_recv(struct loop *loop, void *arg)
{
    struct transfer *t = arg;

    loop_recv(loop, &t->wait.op, t->sock, t->memory, t->bytes, t->whole, rig_wait_done);
}

static void transfer_send(struct loop *loop, void *arg)
{
    struct transfer *t = arg;

    t->vector = (struct iovec){t->memory, t->bytes};
    loop_sendv(loop, &t->wait.op, t->sock, &t->vector, 1, rig_wait_done);
}

static void transfer_shutdown(struct loop *loop, void *arg)
{
    loop_sock_shutdown(((struct transfer *)arg)->sock);
    loop_sock_shutdown(((struct transfer *)arg)->sock);
}

static void op_cancel(struct loop *loop, void *arg)
{
    loop_op_cancel(arg);
    loop_op_cancel(arg);
}

static void the_end_of_a_stream_is_a_reset(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};
    struct transfer in = {.bytes = 1000, .whole = true};
    struct transfer out = {.bytes = 300};
    uint32_t sent;

    pair_open(rig, &pair);
    in.sock = pair.sock[0];
    out.sock = pair.sock[1];
    rig_call(rig, rig->loop[0], transfer_recv, &in);
    rig_call(rig, rig->loop[1], transfer_send, &out);
    rig_wait_for(rig, &out.wait);
    assert_int_equal(out.wait.err, ICMS_OK);
    sent = out.wait.bytes; /* a send may be short */
    assert_true(sent > 0 && sent <= 300);
    rig->idle(rig);
    assert_int_equal(atomic_load(&in.wait.done), 0);
    rig_call(rig, rig->loop[1], transfer_shutdown, &out);
    rig_wait_for(rig, &in.wait);
    assert_int_equal(in.wait.err, ICMS_RESET);
    assert_int_equal(in.wait.bytes, sent);
    in.whole = false;
    rig_call(rig, rig->loop[0], transfer_recv, &in);
    rig_wait_for(rig, &in.wait);
    assert_int_equal(in.wait.err, ICMS_RESET);
    assert_int_equal(in.wait.bytes, 0);
    rig_call(rig, rig->loop[1], transfer_send, &out);
    rig_wait_for(rig, &out.wait);
    assert_int_equal(out.wait.err, ICMS_RESET);
    pair_close(rig, &pair);
}

static void a_shutdown_ends_pending_receives_of_both_sides(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};
    struct transfer in[2] = {{.bytes = 10}, {.bytes = 10}};

    pair_open(rig, &pair);
    for (unsigned i = 0; i < 2; i++) {
        in[i].sock = pair.sock[i];
        rig_call(rig, rig->loop[i], transfer_recv, &in[i]);
    }
    rig_call(rig, rig->loop[0], transfer_shutdown, &in[0]);
    for (unsigned i = 0; i < 2; i++) {
        rig_wait_for(rig, &in[i].wait);
        assert_int_equal(in[i].wait.err, ICMS_RESET);
    }
    pair_close(rig, &pair);
}

static void a_canceled_receive_ends_and_writes_nothing_any_more(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};
    struct transfer in = {.bytes = 1000};
    struct transfer out = {.bytes = 300};
    static const uint8_t zeros[1000];

    for (int whole = 0; whole < 2; whole++) {
        memset(&in, 0, sizeof(in));
        pair_open(rig, &pair);
        in.bytes = 1000;
        in.whole = whole;
        in.sock = pair.sock[0];
        out.sock = pair.sock[1];
        rig_call(rig, rig->loop[0], transfer_recv, &in);
        rig->idle(rig);
        rig_call(rig, rig->loop[0], op_cancel, &in.wait.op);
        rig_wait_for(rig, &in.wait);
        assert_int_equal(in.wait.err, ICMS_CANCELED);
        assert_int_equal(in.wait.bytes, 0);
        memset(in.memory, 0, sizeof(in.memory));
        rig_fill(out.memory, out.bytes, 2);
        rig_call(rig, rig->loop[1], transfer_send, &out);
        rig_wait_for(rig, &out.wait);
        rig->idle(rig);
        assert_memory_equal(in.memory, zeros, sizeof(zeros));
        rig_call(rig, rig->loop[0], op_cancel, &in.wait.op); /* not in flight: harmless */
        in.whole = false;
        rig_call(rig, rig->loop[0], transfer_recv, &in);
        rig_wait_for(rig, &in.wait);
        assert_int_equal(in.wait.err, ICMS_OK);
        assert_true(in.wait.bytes > 0 && in.wait.bytes <= out.wait.bytes);
        assert_memory_equal(in.memory, out.memory, in.wait.bytes);
        pair_close(rig, &pair);
    }
}

static void accept_and_cancel(struct loop *loop, void *arg)
{
    pair_accept(loop, arg);
    loop_op_cancel(&((struct pair *)arg)->wait[0].op);
}

static void connect_and_cancel(struct loop *loop, void *arg)
{
    pair_connect(loop, arg);
    loop_op_cancel(&((struct pair *)arg)->wait[1].op);
}

static void accepts_and_connects_can_be_canceled(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};

    pair_listen(rig, &pair);
    rig_loops(rig, 2, 64);
    rig_start(rig);
    rig_call(rig, rig->loop[0], pair_accept, &pair);
    rig->idle(rig);
    rig_call(rig, rig->loop[0], op_cancel, &pair.wait[0].op);
    rig_wait_for(rig, &pair.wait[0]);
    assert_int_equal(pair.wait[0].err, ICMS_CANCELED);
    rig_call(rig, rig->loop[0], accept_and_cancel, &pair);
    rig_wait_for(rig, &pair.wait[0]);
    assert_int_equal(pair.wait[0].err, ICMS_CANCELED);
    rig_call(rig, rig->loop[1], connect_and_cancel, &pair);
    rig_wait_for(rig, &pair.wait[1]);
    assert_int_equal(pair.wait[1].err, ICMS_CANCELED);
    assert_null(pair.wait[1].sock);
    pair_close(rig, &pair);
}

static void a_busy_port_is_an_error_with_a_remedy(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};
    struct loop_sock *second = NULL;
    struct err_why why = {""};
    char text[64];

    pair_listen(rig, &pair);
    assert_int_equal(loop_listen(rig->env, &pair.addr, &why, &second), ICMS_ADDRESS_IN_USE);
    assert_non_null(strstr(why.text, loop_addr_format(&pair.addr, text, sizeof(text))));
    loop_sock_close(&pair.listener);
}

/* ---- events --------------------------------------------------------------------------------- */

struct bell {
    struct loop_event *event;
    struct rig_wait wait;
};

static void bell_wait(struct loop *loop, void *arg)
{
    struct bell *bell = arg;

    loop_event_wait(loop, &bell->wait.op, bell->event, rig_wait_done);
}

/* As the process does that the event was passed to. */
static void bell_raise(const struct bell *bell)
{
    const uint64_t one = 1;

    if (loop_event_fd(bell->event) < 0)
        loop_event_signal(bell->event);
    else
        assert_true(write(loop_event_fd(bell->event), &one, sizeof(one)) == sizeof(one));
}

static void events_wake_a_loop_once_for_all_signals(void **state)
{
    struct rig *rig = *state;
    struct bell bell = {0};

    assert_int_equal(loop_event_new(rig->env, LOOP_EVENT_WAIT, &bell.event), ICMS_OK);
    rig_loops(rig, 1, 64);
    rig_start(rig);
    for (int early = 0; early < 2; early++) {
        for (int i = 0; early && i < 3; i++)
            bell_raise(&bell);
        rig_call(rig, rig->loop[0], bell_wait, &bell);
        if (!early) {
            rig->idle(rig);
            assert_int_equal(atomic_load(&bell.wait.done), 0);
            bell_raise(&bell);
        }
        rig_wait_for(rig, &bell.wait);
        assert_int_equal(bell.wait.err, ICMS_OK);
    }
    rig_call(rig, rig->loop[0], bell_wait, &bell);
    rig->idle(rig);
    assert_int_equal(atomic_load(&bell.wait.done), 0);
    rig_call(rig, rig->loop[0], op_cancel, &bell.wait.op);
    rig_wait_for(rig, &bell.wait);
    assert_int_equal(bell.wait.err, ICMS_CANCELED);
    rig_end(rig);
    loop_event_free(&bell.event);
}

/* ---- the end -------------------------------------------------------------------------------- */

struct last {
    struct pair pair;
    struct transfer in[2];
    struct bell bell;
    struct rig_disk disk;
    struct rig_wait accept;
    struct rig_wait connect;
    struct loop_timer timer;
    struct loop_msg msg;
};

static void last_timer(struct loop_timer *timer)
{
    check(false);
}

static void last_msg(struct loop_msg *msg)
{
    check(false);
}

static void last_start(struct loop *loop, void *arg)
{
    struct last *last = arg;

    transfer_recv(loop, &last->in[0]);
    loop_recv(loop, &last->in[1].wait.op, last->pair.listener, last->in[1].memory, 5, true,
              rig_wait_done); /* an operation that fails at once */
    loop_op_cancel(&last->in[1].wait.op);
    bell_wait(loop, &last->bell);
    rig_disk_write(loop, &last->disk);
    loop_accept(loop, &last->accept.op, last->pair.listener, rig_wait_done);
    loop_connect(loop, &last->connect.op, &last->pair.addr, rig_wait_done);
    loop_timer_init(&last->timer, last_timer);
    loop_timer_start(loop, &last->timer, loop_now_ns(loop) + 20 * MS);
    loop_stop(loop);
    loop_send(loop, &last->msg, last_msg);
}

static void a_loop_stops_with_work_in_flight_and_calls_nothing_more(void **state)
{
    struct rig *rig = *state;
    struct last last = {.in = {{.bytes = 100}}};

    pair_open(rig, &last.pair);
    assert_int_equal(loop_event_new(rig->env, LOOP_EVENT_WAIT, &last.bell.event), ICMS_OK);
    last.disk.file = rig_file(rig, false);
    last.disk.bytes = RIG_FILE_BYTES;
    last.disk.memory = calloc(1, RIG_FILE_BYTES);
    last.in[0].sock = last.pair.sock[0];
    rig_call(rig, rig->loop[0], last_start, &last);
    loop_join(rig->loop[0]);
    assert_true(loop_is_mine(rig->loop[0]));
    rig_end(rig);
    assert_int_equal(last.in[0].wait.calls + last.in[1].wait.calls + last.accept.calls +
                         last.connect.calls + last.bell.wait.calls + last.disk.wait.calls,
                     0);
    loop_file_close(&last.disk.file);
    loop_event_free(&last.bell.event);
    free(last.disk.memory);
    pair_close(rig, &last.pair);
}

static void a_loop_that_never_ran_is_freed_with_its_operations(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};

    pair_listen(rig, &pair);
    rig_loops(rig, 1, 64);
    pair_accept(rig->loop[0], &pair);
    pair_connect(rig->loop[0], &pair);
    rig_end(rig);
    assert_int_equal(pair.wait[0].calls + pair.wait[1].calls, 0);
    loop_sock_close(&pair.listener);
}

#define ON(back_end, test)                                                                         \
    {                                                                                              \
#back_end ": " #test, test, rig_##back_end##_setup, rig_##back_end##_teardown, NULL        \
    }

#define CONTRACT(back_end)                                                                         \
    ON(back_end, sockets_carry_streams_with_partial_sends_and_whole_receives),                     \
        ON(back_end, a_connect_without_listener_is_refused),                                       \
        ON(back_end, the_end_of_a_stream_is_a_reset),                                              \
        ON(back_end, a_shutdown_ends_pending_receives_of_both_sides),                              \
        ON(back_end, a_canceled_receive_ends_and_writes_nothing_any_more),                         \
        ON(back_end, accepts_and_connects_can_be_canceled),                                        \
        ON(back_end, a_busy_port_is_an_error_with_a_remedy),                                       \
        ON(back_end, events_wake_a_loop_once_for_all_signals),                                     \
        ON(back_end, a_loop_stops_with_work_in_flight_and_calls_nothing_more),                     \
        ON(back_end, a_loop_that_never_ran_is_freed_with_its_operations)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONTRACT(uring),
        CONTRACT(sim),
    };

    return cmocka_run_group_tests_name("loop-sock", tests, NULL, NULL);
}
