/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wires of the host for tests: a loop of a simulated node, and a blocking socket. Test code
 * only.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "nvmf/target/test_peer.h"

#define WIRE_MS ((uint64_t)1000 * 1000)

static struct peer *peer_new(const struct peer_wire *wire, void *own)
{
    struct peer *peer = calloc(1, sizeof(*peer));

    check(peer != NULL);
    peer->wire = wire;
    peer->own = own;
    peer->timeout_ms = 20000;
    peer->capsule_max = 8192;
    peer->cid = 1;
    peer->kato_ms = 0;
    peer->entries = 32;
    memcpy(peer->host, "nqn.2026-01.io.icms:test-host", 30);
    memcpy(peer->subsys, "nqn.2026-01.io.icms:test", 25);
    return peer;
}

void peer_free(struct peer **peer)
{
    if (*peer == NULL)
        return;
    (*peer)->wire->close(*peer);
    free(*peer);
    *peer = NULL;
}

/* ---- simulation ----------------------------------------------------------------------------- */

enum wire_verb {
    WIRE_CONNECT,
    WIRE_SEND,
    WIRE_RECV,
    WIRE_CANCEL,
};

struct wire_sim {
    struct sim *sim;
    struct loop *loop;
    struct loop_sock *sock;
    struct loop_addr addr;
    struct loop_msg msg; /* carries the next verb to the loop */
    enum wire_verb verb;
    struct loop_op op;      /* connect, receive                  */
    struct loop_op send_op; /* sends                             */
    struct iovec vector;    /* of a send                         */
    void *memory;           /* of a receive                      */
    uint32_t bytes;
    bool done, send_done;
    bool acted; /* the verb's message arrived: it may be sent again */
    uint8_t recv_buffer[PEER_BUFFER_BYTES];
};

static void wire_op_done(struct loop_op *op)
{
    container_of(op, struct wire_sim, op)->done = true;
}

static void wire_send_done(struct loop_op *op)
{
    container_of(op, struct wire_sim, send_op)->send_done = true;
}

static void wire_act(struct loop_msg *msg)
{
    struct wire_sim *own = container_of(msg, struct wire_sim, msg);

    own->acted = true;
    switch (own->verb) {
    case WIRE_CONNECT:
        loop_connect(own->loop, &own->op, &own->addr, wire_op_done);
        break;
    case WIRE_SEND:
        loop_sendv(own->loop, &own->send_op, own->sock, &own->vector, 1, wire_send_done);
        break;
    case WIRE_RECV:
        loop_recv(own->loop, &own->op, own->sock, own->memory, own->bytes, false, wire_op_done);
        break;
    case WIRE_CANCEL:
        loop_op_cancel(&own->op);
        break;
    }
}

static bool wire_until(struct wire_sim *own, const bool *done, uint64_t timeout_ns)
{
    uint64_t end = sim_now_ns(own->sim) + timeout_ns;

    while (!*done && sim_now_ns(own->sim) < end && sim_step(own->sim))
        ;
    return *done;
}

static bool wire_do(struct wire_sim *own, enum wire_verb verb, uint64_t timeout_ns)
{
    own->verb = verb;
    own->done = own->acted = false;
    loop_send(own->loop, &own->msg, wire_act);
    return wire_until(own, &own->done, timeout_ns);
}

static bool wire_sim_send(struct peer *peer, const void *data, size_t bytes)
{
    struct wire_sim *own = peer->own;
    const uint8_t *from = data;

    while (bytes > 0) {
        own->vector = (struct iovec){.iov_base = (void *)(uintptr_t)from, .iov_len = bytes};
        own->verb = WIRE_SEND;
        own->send_done = false;
        loop_send(own->loop, &own->msg, wire_act);
        if (!wire_until(own, &own->send_done, 60000 * WIRE_MS)) {
            loop_sock_shutdown(own->sock);
            check(wire_until(own, &own->send_done, 60000 * WIRE_MS));
        }
        if (own->send_op.err != ICMS_OK)
            return false;
        from += own->send_op.bytes;
        bytes -= own->send_op.bytes;
    }
    return true;
}

static long wire_sim_recv(struct peer *peer, void *memory, size_t bytes, uint32_t timeout_ms)
{
    struct wire_sim *own = peer->own;

    own->memory = own->recv_buffer;
    own->bytes = (uint32_t)(bytes < sizeof(own->recv_buffer) ? bytes : sizeof(own->recv_buffer));
    if (!wire_do(own, WIRE_RECV, timeout_ms * WIRE_MS)) {
        check(wire_until(own, &own->acted, 60000 * WIRE_MS));
        own->verb = WIRE_CANCEL;
        own->acted = false;
        loop_send(own->loop, &own->msg, wire_act);
        check(wire_until(own, &own->acted, 60000 * WIRE_MS));
        check(wire_until(own, &own->done, 60000 * WIRE_MS));
    }
    memcpy(memory, own->recv_buffer, own->op.bytes);
    if (own->op.bytes > 0)
        return (long)own->op.bytes;
    return own->op.err == ICMS_CANCELED ? -1 : 0;
}

static void wire_sim_close(struct peer *peer)
{
    struct wire_sim *own = peer->own;

    loop_stop(own->loop);
    loop_join(own->loop);
    loop_free(&own->loop);
    loop_sock_close(&own->sock);
    free(own);
}

static const struct peer_wire wire_sim_ops = {
    .send = wire_sim_send, .recv = wire_sim_recv, .close = wire_sim_close};

struct peer *peer_new_sim(struct sim *sim, struct sim_node *node, const struct loop_addr *addr)
{
    struct wire_sim *own = calloc(1, sizeof(*own));
    struct peer *peer = peer_new(&wire_sim_ops, own);
    struct loop_opts opts;

    check(own != NULL);
    own->sim = sim;
    own->addr = *addr;
    loop_opts_init(&opts);
    check(loop_new(sim_node_env(node), &opts, NULL, &own->loop) == ICMS_OK);
    check(loop_start(own->loop, NULL) == ICMS_OK);
    if (wire_do(own, WIRE_CONNECT, 10000 * WIRE_MS) && own->op.err == ICMS_OK)
        own->sock = own->op.sock;
    else
        peer_free(&peer);
    return peer;
}

/* ---- socket --------------------------------------------------------------------------------- */

struct wire_socket {
    int fd;
};

static bool wire_socket_send(struct peer *peer, const void *data, size_t bytes)
{
    struct wire_socket *own = peer->own;
    const uint8_t *from = data;

    while (bytes > 0) {
        ssize_t sent = send(own->fd, from, bytes, MSG_NOSIGNAL);

        if (sent <= 0)
            return false;
        from += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

static long wire_socket_recv(struct peer *peer, void *memory, size_t bytes, uint32_t timeout_ms)
{
    struct wire_socket *own = peer->own;
    struct pollfd poll_fd = {.fd = own->fd, .events = POLLIN};
    ssize_t got;

    if (poll(&poll_fd, 1, (int)timeout_ms) <= 0)
        return -1;
    got = recv(own->fd, memory, bytes, 0);
    return got < 0 ? 0 : (long)got;
}

static void wire_socket_close(struct peer *peer)
{
    struct wire_socket *own = peer->own;

    close(own->fd);
    free(own);
}

static const struct peer_wire wire_socket_ops = {
    .send = wire_socket_send, .recv = wire_socket_recv, .close = wire_socket_close};

struct peer *peer_new_socket(const struct loop_addr *addr)
{
    struct wire_socket *own = calloc(1, sizeof(*own));
    struct peer *peer = peer_new(&wire_socket_ops, own);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(addr->port)};
    int one = 1;

    check(own != NULL);
    check(inet_pton(AF_INET, addr->host, &in.sin_addr) == 1);
    own->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(own->fd >= 0);
    (void)setsockopt(own->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(own->fd, (const struct sockaddr *)&in, sizeof(in)) != 0)
        peer_free(&peer);
    return peer;
}

void peer_sleep(struct peer *peer, uint32_t ms)
{
    if (peer->wire == &wire_sim_ops) {
        struct wire_sim *own = peer->own;

        (void)sim_run(own->sim, sim_now_ns(own->sim) + ms * WIRE_MS);
    } else {
        struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

        nanosleep(&pause, NULL);
    }
}
