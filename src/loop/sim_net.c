/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners, dials and socket handles of the simulated network.
 *
 * A dial (struct sim_dial) is the kernel's work on one connect: it asks, again every second while
 * nothing answers, and gives up after two minutes. The listener's kernel agrees by itself, also
 * while its daemon stands still, as long as the backlog has room. A canceled connect leaves its
 * dial to come to its end alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loop/sim_int.h"

#define SIM_NS_PER_S     1000000000u
#define SIM_DIAL_NS      (120 * (uint64_t)SIM_NS_PER_S)
#define SIM_PORT_FIRST   32768
#define SIM_PORTS_PICKED 28000

/* ---- handles -------------------------------------------------------------------------------- */

static struct sim_sock *sock_of(const struct loop_sock *sock)
{
    return container_of((struct loop_sock *)(uintptr_t)sock, struct sim_sock, sock);
}

static struct sim_sock *sock_target(const struct loop_op *op)
{
    return container_of(op->target, struct sim_sock, sock.target);
}

static struct sim_sock *sock_new(struct sim_node *node, const char *host, uint16_t port)
{
    struct sim_sock *sock = sim_alloc(sizeof(*sock));

    sock->sock.target.env = &node->env;
    (void)snprintf(sock->addr.host, sizeof(sock->addr.host), "%s", host);
    sock->addr.port = port;
    list_init(&sock->backlog);
    list_init(&sock->accepts);
    list_push(&node->socks, &sock->link);
    return sock;
}

/* The handle of an end that a process gets. */
static struct loop_sock *sock_take(struct sim_end *end)
{
    struct sim_sock *sock = sock_new(end->node, end->node->host, end->port);

    sock->end = end;
    end->sock = sock;
    return &sock->sock;
}

void sim_sock_addr(const struct loop_sock *sock, struct loop_addr *out_addr)
{
    *out_addr = sock_of(sock)->addr;
}

void sim_sock_peer(const struct loop_sock *sock, struct loop_addr *out_addr)
{
    const struct sim_end *end = sock_of(sock)->end;
    const struct sim_end *other;

    memset(out_addr, 0, sizeof(*out_addr));
    if (end == NULL)
        return;
    other = &end->conn->end[end == &end->conn->end[0]];
    (void)snprintf(out_addr->host, sizeof(out_addr->host), "%s", other->node->host);
    out_addr->port = other->port;
}

/* ---- listeners ------------------------------------------------------------------------------ */

static bool host_is_loopback(const char *host)
{
    return strcmp(host, "127.0.0.1") == 0 || strcmp(host, "::1") == 0;
}

static bool host_is_any(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static struct sim_sock *listener_find(struct sim_node *node, uint16_t port)
{
    list_for_each (link, &node->socks) {
        struct sim_sock *sock = container_of(link, struct sim_sock, link);

        if (sock->listener && sock->addr.port == port)
            return sock;
    }
    return NULL;
}

static uint16_t port_pick(struct sim_node *node)
{
    uint16_t port;

    do {
        port = node->port_next++;
        if (node->port_next == SIM_PORT_FIRST + SIM_PORTS_PICKED)
            node->port_next = SIM_PORT_FIRST;
    } while (listener_find(node, port) != NULL);
    return port;
}

icms_err sim_listen(struct loop_env *env, const struct loop_addr *addr, struct err_why *why,
                    struct loop_sock **out_sock)
{
    struct sim_node *node = sim_node_of(env);
    struct sim_sock *sock;
    char text[64];

    (void)loop_addr_format(addr, text, sizeof(text));
    if (strcmp(addr->host, node->host) != 0 && !host_is_loopback(addr->host) &&
        !host_is_any(addr->host))
        return err_set(why, ICMS_NOT_FOUND,
                       "cannot listen on %s: choose an address of this machine", text);
    if (addr->port != 0 && listener_find(node, addr->port) != NULL)
        return err_set(why, ICMS_ADDRESS_IN_USE, "cannot listen on %s: choose another port", text);
    sock = sock_new(node, addr->host, addr->port != 0 ? addr->port : port_pick(node));
    sock->listener = true;
    node->dark = false;
    *out_sock = &sock->sock;
    return ICMS_OK;
}

/* A process ends with the end of a connection. */
static void end_give_up(struct sim_end *end, bool quiet)
{
    if (!quiet)
        sim_end_reset(end);
    sim_end_close(end, quiet);
}

static void listener_serve(struct sim_sock *listener)
{
    while (!list_empty(&listener->accepts) && !list_empty(&listener->backlog)) {
        struct loop_op *op = container_of(list_first(&listener->accepts), struct loop_op, link);
        struct sim_end *end = container_of(list_pop(&listener->backlog), struct sim_end, link);

        listener->waiting--;
        if (sim_memory_refused(end->node)) {
            end_give_up(end, false);
            sim_op_ready(op, ICMS_NO_MEMORY, 0);
            continue;
        }
        op->sock = sock_take(end);
        sim_op_ready(op, ICMS_OK, 0);
    }
}

static void listener_empty(struct sim_sock *listener, bool quiet)
{
    struct list *link;

    while ((link = list_pop(&listener->backlog)) != NULL)
        end_give_up(container_of(link, struct sim_end, link), quiet);
    listener->waiting = 0;
}

static void listener_stop(struct sim_sock *listener)
{
    struct list *link;

    listener->listener = false;
    listener_empty(listener, false);
    while ((link = list_first(&listener->accepts)) != NULL)
        sim_op_ready(container_of(link, struct loop_op, link), ICMS_RESET, 0);
}

void sim_sock_mark(struct loop_sock *sock, struct net_mark mark)
{
    (void)sock;
    (void)mark; /* its network has no queues */
}

void sim_sock_send_now(struct loop_sock *sock, const void *bytes, size_t count)
{
}

icms_err sim_sock_tls(struct loop_sock *sock, const struct loop_tls_keys *keys)
{
    return ICMS_UNSUPPORTED;
}

icms_err sim_sock_tls_recv(struct loop_sock *sock, uint8_t *out_type, void *memory, size_t bytes,
                           size_t *out_bytes)
{
    return ICMS_PROTOCOL;
}

icms_err sim_sock_tls_records(struct loop_sock *sock, bool is_send, uint64_t *out_records)
{
    return ICMS_UNSUPPORTED;
}

bool sim_sock_tls_send(struct loop_sock *sock, uint8_t type, const void *bytes, size_t count)
{
    return false;
}

void sim_sock_shutdown(struct loop_sock *sock)
{
    struct sim_sock *own = sock_of(sock);

    if (own->listener)
        listener_stop(own);
    else if (own->end != NULL)
        sim_end_shutdown(own->end);
}

void sim_sock_close(struct loop_sock *sock)
{
    struct sim_sock *own = sock_of(sock);

    if (own->listener)
        listener_stop(own);
    if (own->end != NULL)
        sim_end_close(own->end, false);
    list_remove(&own->link);
    free(own);
}

/* ---- dials ---------------------------------------------------------------------------------- */

static struct sim_node *node_find(struct sim_node *from, const char *host)
{
    if (host_is_loopback(host))
        return from;
    list_for_each (link, &from->sim->nodes) {
        struct sim_node *node = container_of(link, struct sim_node, link);

        if (strcmp(node->host, host) == 0)
            return node;
    }
    return NULL;
}

/* Ends a dial with what its connect gets. */
static void dial_end(struct sim_dial *dial, icms_err err)
{
    struct loop_op *op = dial->op;

    if (dial->conn != NULL) {
        struct sim_end *end = &dial->conn->end[0];

        if (end->reset && err == ICMS_OK)
            err = ICMS_RESET;
        if (err == ICMS_OK && op != NULL)
            op->sock = sock_take(end);
        else
            end_give_up(end, err == ICMS_PEER_DOWN);
    }
    list_remove(&dial->link);
    sim_not(dial->node->sim, &dial->event);
    free(dial);
    if (op != NULL)
        sim_op_ready(op, err, 0);
}

/* Nothing came back: ask again in a second, or give up. */
static void dial_again(struct sim_dial *dial)
{
    struct sim *sim = dial->node->sim;

    dial->state = SIM_DIAL_ASK;
    if (dial->op == NULL || sim->now_ns >= dial->end_ns)
        dial_end(dial, ICMS_PEER_DOWN);
    else
        sim_at(sim, &dial->event, sim->now_ns + SIM_NS_PER_S);
}

static void dial_asked(struct sim_dial *dial, struct sim_node *to)
{
    struct sim *sim = dial->node->sim;
    struct sim_sock *listener = listener_find(to->home, dial->to.port);

    if (listener == NULL || (host_is_loopback(listener->addr.host) && to != dial->node)) {
        dial->state = SIM_DIAL_REFUSED;
    } else if (listener->waiting >= sim->opts.net_backlog) {
        dial_again(dial);
        return;
    } else {
        dial->state = SIM_DIAL_AGREED;
        dial->conn =
            sim_conn_new(sim, dial->node, to->home, port_pick(dial->node), listener->addr.port);
        dial->conn->end[1].at = to;
        list_push(&listener->backlog, &dial->conn->end[1].link);
        listener->waiting++;
        listener_serve(listener);
    }
    sim_at(sim, &dial->event, sim->now_ns + sim_net_delay(sim));
}

static void dial_fire(struct loop_timer *event)
{
    struct sim_dial *dial = container_of(event, struct sim_dial, event);
    struct sim *sim = dial->node->sim;
    struct sim_node *to = node_find(dial->node, dial->to.host);
    bool reaches = to != NULL && sim_reaches(sim, dial->node, to) &&
                   sim_reaches(sim, to, dial->node); /* it is asked, and answers */

    if (reaches && (dial->state == SIM_DIAL_ASK || dial->state == SIM_DIAL_REFUSED))
        reaches = !sim_packet_lost(sim, dial->node, to->home);

    sim_trace(sim, SIM_TRACE_DIAL, dial->node, dial->state, reaches);
    switch (dial->state) {
    case SIM_DIAL_ASK:
        if (reaches && !to->home->dark)
            dial_asked(dial, to);
        else
            dial_again(dial);
        break;
    case SIM_DIAL_REFUSED:
        if (reaches)
            dial_end(dial, ICMS_REFUSED);
        else
            dial_again(dial);
        break;
    case SIM_DIAL_AGREED:
        if (reaches) {
            dial_end(dial, ICMS_OK);
            break;
        }
        dial->conn->stream[0].stuck = true;
        dial->conn->stream[1].stuck = true;
        dial->state = SIM_DIAL_LOST;
        sim_at(sim, &dial->event, dial->end_ns);
        break;
    case SIM_DIAL_LOST:
        dial_end(dial, ICMS_PEER_DOWN);
        break;
    }
}

static void dial_start(struct loop_op *op)
{
    struct sim_node *node = sim_node_of(op->loop->env);
    struct sim_dial *dial = sim_alloc(sizeof(*dial));

    dial->event.fire = dial_fire;
    dial->node = node;
    dial->op = op;
    dial->to = *(const struct loop_addr *)op->memory;
    dial->end_ns = node->sim->now_ns + SIM_DIAL_NS;
    op->words[0] = (uintptr_t)dial;
    list_push(&node->dials, &dial->link);
    node->dark = false; /* a machine that dials is up again */
    sim_at(node->sim, &dial->event, node->sim->now_ns + sim_net_delay(node->sim));
}

/* ---- operations ----------------------------------------------------------------------------- */

void sim_net_start(struct loop_op *op)
{
    struct sim_sock *sock = op->target != NULL ? sock_target(op) : NULL;

    if (op->kind == LOOP_CONNECT && sim_memory_refused(sim_node_of(op->loop->env))) {
        sim_op_ready(op, ICMS_NO_MEMORY, 0);
    } else if (op->kind == LOOP_CONNECT) {
        dial_start(op);
    } else if (op->kind == LOOP_ACCEPT && sock->listener) {
        list_push(&sock->accepts, &op->link);
        listener_serve(sock);
    } else if (op->kind == LOOP_ACCEPT || sock->end == NULL) {
        sim_op_ready(op, ICMS_RESET, 0);
    } else if (op->kind == LOOP_RECV) {
        sim_end_recv(sock->end, op);
    } else {
        check(op->kind == LOOP_SENDV);
        sim_end_send(sock->end, op);
    }
}

void sim_net_cancel(struct loop_op *op)
{
    if (op->kind == LOOP_CONNECT)
        ((struct sim_dial *)(uintptr_t)op->words[0])->op = NULL;
    sim_op_ready(op, ICMS_CANCELED, op->bytes);
}

static void list_drop(struct list *list, struct loop *loop)
{
    list_for_each_safe (link, list) {
        struct loop_op *op = container_of(link, struct loop_op, link);

        if (sim_op_of(op, loop))
            loop_op_release(op);
    }
}

void sim_net_drop(struct sim_node *node, struct loop *loop)
{
    list_for_each (link, &node->socks) {
        struct sim_sock *sock = container_of(link, struct sim_sock, link);

        list_drop(&sock->accepts, loop);
        if (sock->end != NULL) {
            list_drop(&sock->end->recvs, loop);
            list_drop(&sock->end->sends, loop);
        }
    }
    list_for_each (again, &node->dials) {
        struct sim_dial *dial = container_of(again, struct sim_dial, link);

        if (dial->op != NULL && sim_op_of(dial->op, loop)) {
            loop_op_release(dial->op);
            dial->op = NULL;
        }
    }
}

/* ---- crash and end -------------------------------------------------------------------------- */

void sim_net_crash(struct sim_node *node, bool silent)
{
    list_for_each (link, &node->socks) {
        struct sim_sock *sock = container_of(link, struct sim_sock, link);

        if (sock->listener)
            listener_empty(sock, silent);
        sock->listener = false;
        if (sock->end != NULL)
            end_give_up(sock->end, silent);
        sock->end = NULL;
    }
    list_for_each_safe (again, &node->dials) {
        struct sim_dial *dial = container_of(again, struct sim_dial, link);

        dial_end(dial, silent ? ICMS_PEER_DOWN : ICMS_CANCELED);
    }
}

void sim_net_fini(struct sim_node *node)
{
    struct list *link;

    while ((link = list_pop(&node->dials)) != NULL) {
        struct sim_dial *dial = container_of(link, struct sim_dial, link);

        sim_not(node->sim, &dial->event);
        free(dial);
    }
    while ((link = list_pop(&node->socks)) != NULL)
        free(container_of(link, struct sim_sock, link));
}
