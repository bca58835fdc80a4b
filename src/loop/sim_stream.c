/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of the simulated network: two streams of bytes in pieces of random size.
 *
 * The way of a byte: sendv copies it into stream->out (as much as there is room for, sometimes
 * less); stream_transmit cuts a piece while the receiver has room for it; the piece arrives after
 * bandwidth and delay, in order, in stream->in; a receive takes it from there. A daemon's memory is
 * touched only at the first and the last step, while its operation is in flight.
 *
 * A piece that meets a cut vanishes, and its stream is stuck for ever: nobody is told. A reset
 * overtakes data. Connections are freed once both ends are closed and nothing travels, when the
 * next one is made (sim_conn_new), so no function finds its connection gone.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "loop/sim_int.h"

#define SIM_PIECE_BYTES_MAX 65536
#define SIM_SEGMENT_BYTES   1448

/* When a packet is sent again by itself, the first time; and how often at most. */
#define SIM_RESEND_NS   (200 * (uint64_t)1000000)
#define SIM_RESENDS_MAX 8

/* ---- bounded queues of bytes ---------------------------------------------------------------- */

static void bytes_put(struct sim_bytes *bytes, const uint8_t *from, uint32_t count)
{
    uint32_t at = (bytes->head + bytes->count) % bytes->capacity;
    uint32_t first = (uint32_t)u64_min(count, bytes->capacity - at);

    check(count <= bytes->capacity - bytes->count);
    memcpy(bytes->data + at, from, first);
    memcpy(bytes->data, from + first, count - first);
    bytes->count += count;
}

static void bytes_take(struct sim_bytes *bytes, uint8_t *to, uint32_t count)
{
    uint32_t first = (uint32_t)u64_min(count, bytes->capacity - bytes->head);

    check(count <= bytes->count);
    memcpy(to, bytes->data + bytes->head, first);
    memcpy(to + first, bytes->data, count - first);
    bytes->head = (bytes->head + count) % bytes->capacity;
    bytes->count -= count;
}

static void bytes_init(struct sim *sim, struct sim_bytes *bytes)
{
    uint32_t max = sim->opts.net_buffer_bytes;

    bytes->capacity = (uint32_t)sim_between(sim, max / 4 + 1, max / 4 + max / 4 * 3 + 1);
    bytes->data = sim_alloc(bytes->capacity);
}

/* ---- pieces --------------------------------------------------------------------------------- */

static uint32_t end_index(const struct sim_end *end)
{
    return (uint32_t)(end - end->conn->end);
}

static struct sim_stream *end_out(struct sim_end *end)
{
    return &end->conn->stream[end_index(end)];
}

static struct sim_stream *end_in(struct sim_end *end)
{
    return &end->conn->stream[1 - end_index(end)];
}

static struct sim_end *stream_sender(struct sim_stream *stream)
{
    return &stream->conn->end[stream->from];
}

static struct sim_end *stream_receiver(struct sim_stream *stream)
{
    return &stream->conn->end[1 - stream->from];
}

static bool stream_reaches(struct sim_stream *stream)
{
    return sim_reaches(stream->conn->sim, stream->conn->end[stream->from].at,
                       stream->conn->end[1 - stream->from].at);
}

static void piece_arrive(struct loop_timer *event);

static struct sim_piece *piece_new(struct sim_stream *stream, enum sim_piece_kind kind,
                                   uint32_t bytes)
{
    struct sim_piece *piece = sim_alloc(sizeof(*piece) + bytes);

    piece->event.fire = piece_arrive;
    piece->stream = stream;
    piece->kind = kind;
    piece->bytes = bytes;
    list_push(&stream->pieces, &piece->link);
    return piece;
}

/* What its machine adds to delays, and the address of that by itself. */
static uint64_t end_far_ns(const struct sim_end *end)
{
    return end->node->far_ns + (end->at != end->node ? end->at->far_ns : 0);
}

/* How much later it is because packets of it are lost. */
static uint64_t piece_lost_ns(const struct sim_piece *piece, uint64_t far_ns)
{
    struct sim *sim = piece->stream->conn->sim;
    const struct sim_end *ends = piece->stream->conn->end;
    uint64_t most_ns = 0;

    if (ends[0].node->lossy_ppm == 0 && ends[1].node->lossy_ppm == 0)
        return 0;
    for (uint32_t packet = 0; packet <= piece->bytes / SIM_SEGMENT_BYTES; packet++) {
        uint64_t late_ns = 0;

        for (uint32_t i = 0;
             i < SIM_RESENDS_MAX && sim_packet_lost(sim, ends[0].node, ends[1].node); i++)
            late_ns += i == 0 && sim_below(sim, 2) == 0 ? 2 * (sim_net_delay(sim) + far_ns)
                                                        : SIM_RESEND_NS << i;
        most_ns = u64_max(most_ns, late_ns);
    }
    if (most_ns > 0)
        sim_trace(sim, SIM_TRACE_LOST, stream_sender(piece->stream)->node, piece->bytes, most_ns);
    return most_ns;
}

/* Sends it on its way behind all others. */
static void piece_send(struct sim_piece *piece)
{
    struct sim_stream *stream = piece->stream;
    struct sim *sim = stream->conn->sim;
    uint64_t transfer_ns = (uint64_t)piece->bytes * 1000000000u / sim->opts.net_bytes_per_s;
    uint64_t far_ns = end_far_ns(&stream->conn->end[0]) + end_far_ns(&stream->conn->end[1]);

    stream->busy_ns = u64_max(stream->busy_ns, sim->now_ns) + transfer_ns;
    stream->last_ns = u64_max(stream->last_ns, stream->busy_ns + sim_net_delay(sim) + far_ns +
                                                   piece_lost_ns(piece, far_ns));
    sim_at(sim, &piece->event, stream->last_ns);
}

static uint32_t piece_size(struct sim *sim, uint64_t most)
{
    switch (sim_below(sim, 8)) {
    case 0:
        return (uint32_t)u64_min(most, 1 + sim_below(sim, 64));
    case 1:
    case 2:
    case 3:
        return (uint32_t)u64_min(most, SIM_SEGMENT_BYTES);
    default:
        return (uint32_t)u64_min(most, 1 + sim_below(sim, SIM_PIECE_BYTES_MAX));
    }
}

/* A bit flips on the way. */
static void piece_flip(struct sim_piece *piece)
{
    struct sim *sim = piece->stream->conn->sim;
    const struct sim_end *sender = stream_sender(piece->stream);
    uint64_t bit;

    if (piece->stream->sent_bytes < SIM_FLIP_FROM || !sim_fault(sim, sim->opts.net_flip_ppm))
        return;
    bit = sim_below(sim, (uint64_t)piece->bytes * 8);
    piece->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    sim_trace(sim, SIM_TRACE_FAULT, sender->node, piece->stream->from, bit);
}

/* Whether this is more than a packet that passes: what is sent again is as large. */
static bool stream_holds(struct sim_stream *stream, uint64_t bytes)
{
    struct sim *sim = stream->conn->sim;

    if (bytes <= SIM_SEGMENT_BYTES ||
        (!stream->conn->end[0].node->small && !stream->conn->end[1].node->small))
        return false;
    if (!stream->held) {
        sim->stats.streams_held++;
        sim_trace(sim, SIM_TRACE_HELD, stream_sender(stream)->node, stream_sender(stream)->port,
                  bytes);
    }
    stream->held = true;
    return true;
}

/* Sends what there is and the receiver has room for; the end of the stream behind it. */
static void stream_transmit(struct sim_stream *stream)
{
    struct sim *sim = stream->conn->sim;

    while (!stream->stuck && !stream_sender(stream)->reset) {
        uint64_t room = stream->in.capacity - stream->in.count - stream->flying_bytes;
        uint64_t most = u64_min(stream->out.count, room);
        struct sim_piece *piece;

        if (most == 0 || stream_holds(stream, most))
            break;
        stream->held = false;
        if (sim_fault(sim, sim->opts.conn_reset_ppm)) {
            sim_trace(sim, SIM_TRACE_FAULT, stream_sender(stream)->node, stream->from, 0);
            sim_end_reset(stream_sender(stream));
            break;
        }
        piece = piece_new(stream, SIM_PIECE_DATA, piece_size(sim, most));
        bytes_take(&stream->out, piece->data, piece->bytes);
        piece_flip(piece);
        stream->sent_bytes += piece->bytes;
        stream->flying_bytes += piece->bytes;
        piece_send(piece);
    }
    if (stream->fin_wanted && !stream->fin_sent && stream->out.count == 0 && !stream->stuck &&
        !stream_sender(stream)->reset) {
        stream->fin_sent = true;
        piece_send(piece_new(stream, SIM_PIECE_FIN, 0));
    }
}

/* ---- operations ----------------------------------------------------------------------------- */

static uint64_t vectors_bytes(const struct loop_op *op)
{
    const struct iovec *vectors = op->memory;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < op->length; i++)
        bytes += vectors[i].iov_len;
    return bytes;
}

/* Of the vectors, and of so many of their bytes. A send takes at most what its stream can hold;
 * what lies behind is hashed by the sends that take it: a long value is not hashed for each. */
static uint64_t vectors_hash(const struct loop_op *op, uint64_t bytes)
{
    const struct iovec *vectors = op->memory;
    uint64_t hash = hash64(vectors, op->length * sizeof(vectors[0]));

    for (uint32_t i = 0; i < op->length && bytes > 0; i++) {
        uint64_t part = u64_min(vectors[i].iov_len, bytes);

        hash = hash64_seed(vectors[i].iov_base, part, hash);
        bytes -= part;
    }
    return hash;
}

static void vectors_put(struct sim_bytes *to, const struct loop_op *op, uint64_t bytes)
{
    const struct iovec *vectors = op->memory;

    for (uint32_t i = 0; i < op->length && bytes > 0; i++) {
        uint32_t part = (uint32_t)u64_min(vectors[i].iov_len, bytes);

        bytes_put(to, vectors[i].iov_base, part);
        bytes -= part;
    }
}

/* Lets the sends that wait have what room there is. */
static void end_serve_sends(struct sim_end *end)
{
    struct sim_stream *stream = end_out(end);
    struct sim *sim = end->conn->sim;
    struct list *link;

    while ((link = list_first(&end->sends)) != NULL) {
        struct loop_op *op = container_of(link, struct loop_op, link);
        uint64_t room = stream->out.capacity - stream->out.count;
        uint64_t bytes = u64_min(vectors_bytes(op), room);

        if (end->reset || end->shut) {
            sim_op_ready(op, ICMS_RESET, 0);
            continue;
        }
        if (room == 0)
            break;
        if (sim->opts.strict)
            check(vectors_hash(op, stream->out.capacity) == op->words[0]);
        if (bytes > 1 && sim_below(sim, 4) == 0)
            bytes = 1 + sim_below(sim, bytes);
        vectors_put(&stream->out, op, bytes);
        sim_op_ready(op, ICMS_OK, (uint32_t)bytes);
        stream_transmit(stream);
    }
}

/* Takes bytes that arrived for one receive; false when it has to wait for more. */
static bool end_serve_recv(struct sim_end *end, struct loop_op *op)
{
    struct sim_stream *stream = end_in(end);
    struct sim *sim = end->conn->sim;
    uint64_t bytes = u64_min(stream->in.count, op->length - op->bytes);

    if (end->reset || end->shut || (bytes == 0 && stream->fin_arrived)) {
        sim_op_ready(op, ICMS_RESET, op->bytes);
        return true;
    }
    if (bytes == 0)
        return false;
    if (!op->whole && bytes > 1 && sim_below(sim, 4) == 0)
        bytes = 1 + sim_below(sim, bytes);
    bytes_take(&stream->in, (uint8_t *)op->memory + op->bytes, (uint32_t)bytes);
    op->bytes += (uint32_t)bytes;
    if (!op->whole || op->bytes == op->length)
        sim_op_ready(op, ICMS_OK, op->bytes);
    return true;
}

static void end_serve_recvs(struct sim_end *end)
{
    struct list *link;

    while ((link = list_first(&end->recvs)) != NULL &&
           end_serve_recv(end, container_of(link, struct loop_op, link)))
        ;
    stream_transmit(end_in(end)); /* there is room again */
    end_serve_sends(stream_sender(end_in(end)));
}

void sim_end_recv(struct sim_end *end, struct loop_op *op)
{
    sim_scribble(end->conn->sim, op->memory, op->length);
    list_push(&end->recvs, &op->link);
    end_serve_recvs(end);
}

void sim_end_send(struct sim_end *end, struct loop_op *op)
{
    if (vectors_bytes(op) == 0) {
        sim_op_ready(op, ICMS_OK, 0);
        return;
    }
    if (end->conn->sim->opts.strict)
        op->words[0] = vectors_hash(op, end_out(end)->out.capacity);
    list_push(&end->sends, &op->link);
    end_serve_sends(end);
}

/* ---- the ends ------------------------------------------------------------------------------- */

/* Everything that waits at this end fails. */
static void end_fail(struct sim_end *end)
{
    end_in(end)->in.count = 0;
    end_out(end)->out.count = 0;
    end_serve_recvs(end);
    end_serve_sends(end);
}

void sim_end_reset(struct sim_end *end)
{
    struct sim_piece *piece;
    struct sim *sim = end->conn->sim;

    if (end->reset)
        return;
    end->reset = true;
    piece = piece_new(end_out(end), SIM_PIECE_RST, 0);
    sim_at(sim, &piece->event, sim->now_ns + sim_net_delay(sim));
    end_fail(end);
}

void sim_end_shutdown(struct sim_end *end)
{
    if (end->shut || end->reset)
        return;
    end->shut = true;
    end_out(end)->fin_wanted = true;
    end_in(end)->in.count = 0;
    end_serve_recvs(end);
    end_serve_sends(end);
    stream_transmit(end_out(end));
}

void sim_end_close(struct sim_end *end, bool quiet)
{
    check(list_empty(&end->recvs) && list_empty(&end->sends));
    end->closed = true;
    end->sock = NULL;
    list_remove(&end->link);
    if (quiet) {
        end_out(end)->stuck = true;
    } else if (end_in(end)->in.count > 0) {
        sim_end_reset(end);
    } else {
        end_out(end)->fin_wanted = true;
        stream_transmit(end_out(end));
    }
}

/* ---- commanded faults ----------------------------------------------------------------------- */

static bool conn_is_of(const struct sim_conn *conn, const struct sim_node *node)
{
    return conn->end[0].node == node || conn->end[1].node == node;
}

void sim_net_small(struct sim_node *node, bool on)
{
    check(loop_current == NULL);
    node->small = on;
    list_for_each (link, &node->sim->conns) {
        struct sim_conn *conn = container_of(link, struct sim_conn, link);

        for (int i = 0; i < 2 && !on && conn_is_of(conn, node); i++) {
            stream_transmit(&conn->stream[i]);
            end_serve_sends(stream_sender(&conn->stream[i]));
        }
    }
}

void sim_net_reset(struct sim_node *node)
{
    check(loop_current == NULL);
    list_for_each (link, &node->sim->conns) {
        struct sim_conn *conn = container_of(link, struct sim_conn, link);

        if (conn_is_of(conn, node))
            sim_end_reset(&conn->end[conn->end[1].node == node]);
    }
}

/* ---- arrivals ------------------------------------------------------------------------------- */

static void piece_deliver(struct sim_piece *piece, struct sim_end *to)
{
    struct sim_stream *stream = piece->stream;

    switch (piece->kind) {
    case SIM_PIECE_DATA:
        if (to->closed) { /* nobody reads this any more */
            sim_end_reset(to);
        } else if (!to->reset && !to->shut) {
            bytes_put(&stream->in, piece->data, piece->bytes);
            end_serve_recvs(to);
        }
        break;
    case SIM_PIECE_FIN:
        stream->fin_arrived = true;
        end_serve_recvs(to);
        break;
    case SIM_PIECE_RST:
        to->reset = true;
        end_fail(to);
        break;
    }
}

static void piece_arrive(struct loop_timer *event)
{
    struct sim_piece *piece = container_of(event, struct sim_piece, event);
    struct sim_stream *stream = piece->stream;
    struct sim_end *to = stream_receiver(stream);

    list_remove(&piece->link);
    sim_trace(stream->conn->sim, SIM_TRACE_PIECE, to->node, piece->kind, piece->bytes);
    stream->flying_bytes -= piece->bytes;
    if (!stream_reaches(stream) || to->node->dark)
        stream->stuck = true;
    else if (!stream->stuck)
        piece_deliver(piece, to);
    free(piece);
}

/* ---- life ----------------------------------------------------------------------------------- */

static void conn_free(struct sim_conn *conn)
{
    for (int i = 0; i < 2; i++) {
        struct sim_stream *stream = &conn->stream[i];
        struct list *link;

        while ((link = list_pop(&stream->pieces)) != NULL) {
            struct sim_piece *piece = container_of(link, struct sim_piece, link);

            sim_not(conn->sim, &piece->event);
            free(piece);
        }
        free(stream->out.data);
        free(stream->in.data);
    }
    list_remove(&conn->link);
    free(conn);
}

/* Both ends are closed and nothing travels or will. */
static bool conn_over(const struct sim_conn *conn)
{
    for (int i = 0; i < 2; i++) {
        const struct sim_stream *stream = &conn->stream[i];

        if (!conn->end[i].closed || !list_empty(&stream->pieces))
            return false;
        if (stream->out.count > 0 && !stream->stuck && !conn->end[i].reset)
            return false;
    }
    return true;
}

struct sim_conn *sim_conn_new(struct sim *sim, struct sim_node *from, struct sim_node *to,
                              uint16_t from_port, uint16_t to_port)
{
    struct sim_conn *conn = sim_alloc(sizeof(*conn));

    list_for_each_safe (link, &sim->conns) {
        if (conn_over(container_of(link, struct sim_conn, link)))
            conn_free(container_of(link, struct sim_conn, link));
    }
    conn->sim = sim;
    for (uint32_t i = 0; i < 2; i++) {
        conn->end[i].node = conn->end[i].at = i == 0 ? from : to;
        conn->end[i].port = i == 0 ? from_port : to_port;
        conn->end[i].conn = conn;
        list_init(&conn->end[i].recvs);
        list_init(&conn->end[i].sends);
        list_init(&conn->end[i].link);
        conn->stream[i].conn = conn;
        conn->stream[i].from = i;
        list_init(&conn->stream[i].pieces);
        bytes_init(sim, &conn->stream[i].out);
        bytes_init(sim, &conn->stream[i].in);
    }
    list_push(&sim->conns, &conn->link);
    return conn;
}

void sim_conn_fini(struct sim *sim)
{
    struct list *link;

    while ((link = list_first(&sim->conns)) != NULL)
        conn_free(container_of(link, struct sim_conn, link));
}
