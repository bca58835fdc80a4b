/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/raw_stream.c: how soon a value can be there that is sent while it is read: a process that
 * reads it from a file in parts and sends each over TCP on loopback while the device reads the
 * next, one value at a time.
 *
 * The client sends a number, the server answers with the pieces of that value, a checksum in front
 * of each. The device has two parts at a time, each an eighth of the value in whole pieces, as of a
 * load of icms (src/store/read.c): of what was tried on a virtual drive nothing was sooner there.
 * Both ends take the CRC32C of each piece; nothing else is looked at. O_DIRECT, a registered
 * buffer of the kind that icms has, sockets that block, one thread each.
 *
 * The client runs on the thread of bench_run, the server in a process of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/crc.h"
#include "bench/bench_int.h"

#define STREAM_PARTS     8                  /* of a value                          */
#define STREAM_AT_A_TIME 2                  /* of those are with the device        */
#define STREAM_PARTS_MAX (2 * STREAM_PARTS) /* a value of 15 pieces has 15 */

struct bench_stream {
    char path[BENCH_PATH_BYTES + 32]; /* the file                                          */
    uint32_t size;                    /* of values                                         */
    struct bench_trail trail;         /* over the file                                     */
    struct bench_process server;      /* the other end                                     */
    int fd;                           /* the connection; -1: none                          */
    struct loop_region *region;       /* for a value at this end */
};

/* Of the server: a value that is read and sent. */
struct stream_server {
    struct io_uring ring;        /* of its one thread                          */
    int file;                    /* what it reads from                         */
    bool pinned;                 /* memory is registered                       */
    uint8_t *memory;             /* for the value                              */
    uint32_t size;               /* of it                                      */
    uint32_t part_bytes;         /* of its parts but the last                  */
    bool here[STREAM_PARTS_MAX]; /* parts in memory                          */
};

/* ---- the server ------------------------------------------------------------------------------ */

static uint32_t part_size(const struct stream_server *server, uint32_t part)
{
    uint32_t at = part * server->part_bytes;

    return server->size - at < server->part_bytes ? server->size - at : server->part_bytes;
}

static void part_read(struct stream_server *server, uint64_t n, uint32_t part)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&server->ring);
    uint32_t at = part * server->part_bytes;

    check(sqe != NULL);
    io_uring_prep_read(sqe, server->file, server->memory + at, part_size(server, part),
                       n * server->size + at);
    if (server->pinned)
        sqe->opcode = IORING_OP_READ_FIXED;
    io_uring_sqe_set_data64(sqe, part);
}

/* A piece and its checksum in front, in one call unless it is interrupted. */
static bool piece_send(int fd, const uint8_t *piece)
{
    uint32_t crc = crc32c(piece, BENCH_STREAM_PIECE);
    struct iovec vectors[2] = {{&crc, sizeof(crc)}, {(void *)(uintptr_t)piece, BENCH_STREAM_PIECE}};
    struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 2};
    ssize_t done;

    do
        done = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (done < 0 && errno == EINTR);
    return done == (ssize_t)(sizeof(crc) + BENCH_STREAM_PIECE);
}

static bool part_send(const struct stream_server *server, int fd, uint32_t part)
{
    const uint8_t *memory = server->memory + (uint64_t)part * server->part_bytes;
    uint32_t bytes = part_size(server, part);

    for (uint32_t at = 0; at < bytes; at += BENCH_STREAM_PIECE) {
        if (!piece_send(fd, memory + at))
            return false;
    }
    return true;
}

/* Takes what the device has done. False: it refused something. */
static bool parts_done(struct stream_server *server, uint32_t *busy)
{
    struct io_uring_cqe *cqe;
    unsigned head, seen = 0;
    bool fine = true;

    io_uring_for_each_cqe(&server->ring, head, cqe)
    {
        uint32_t part = (uint32_t)io_uring_cqe_get_data64(cqe);

        fine = fine && cqe->res == (int)part_size(server, part);
        server->here[part] = true;
        seen++;
    }
    io_uring_cq_advance(&server->ring, seen);
    *busy -= seen;
    return fine;
}

static bool value_stream(struct stream_server *server, int fd, uint64_t n)
{
    uint32_t parts = (server->size + server->part_bytes - 1) / server->part_bytes;
    uint32_t asked = 0, sent = 0, busy = 0;

    check(parts <= STREAM_PARTS_MAX);
    memset(server->here, 0, sizeof(server->here));
    while (sent < parts) {
        int done;

        for (; asked < parts && busy < STREAM_AT_A_TIME; busy++)
            part_read(server, n, asked++);
        done = io_uring_submit_and_wait(&server->ring, server->here[sent] ? 0 : 1);
        if ((done < 0 && done != -EINTR) || !parts_done(server, &busy))
            return false;
        if (busy < STREAM_AT_A_TIME && asked < parts)
            continue; /* the device goes on while this thread sends */
        if (server->here[sent] && !part_send(server, fd, sent++))
            return false;
    }
    return true;
}

static icms_err server_body(void *arg, struct bench_listening *listening, struct err_why *why)
{
    struct bench_stream *stream = arg;
    struct stream_server server = {.size = stream->size};
    struct iovec memory = {.iov_len = stream->size};
    struct loop_region *region;
    uint64_t n;
    int fd, ring = io_uring_queue_init(STREAM_PARTS_MAX, &server.ring, IORING_SETUP_SINGLE_ISSUER);
    icms_err err;

    if (ring < 0)
        return err_set(why, ICMS_UNSUPPORTED, "raw stream: no io_uring: %s", strerror(-ring));
    err = loop_region_new(loop_env_uring(), "raw-stream", stream->size, true, why, &region);
    if (err != ICMS_OK)
        return err;
    server.memory = memory.iov_base = loop_region_base(region);
    server.part_bytes = stream->size / STREAM_PARTS / BENCH_STREAM_PIECE * BENCH_STREAM_PIECE;
    if (server.part_bytes == 0)
        server.part_bytes = BENCH_STREAM_PIECE;
    server.pinned = io_uring_register_buffers(&server.ring, &memory, 1) == 0;
    server.file = open(stream->path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (server.file < 0)
        return err_set(why, err_from_errno(errno), "%s: cannot be opened: %s", stream->path,
                       strerror(errno));
    err = bench_process_accept(listening, why, &fd);
    while (err == ICMS_OK && recv(fd, &n, sizeof(n), MSG_WAITALL) == sizeof(n))
        if (!value_stream(&server, fd, n))
            break;
    return err;
}

/* ---- the client ------------------------------------------------------------------------------ */

/* Whether a value came as it was sent; false in *out_there: the connection broke. */
static bool value_receive(struct bench_stream *stream, bool *out_there)
{
    bool right = true;

    *out_there = false;
    for (uint32_t at = 0; at < stream->size; at += BENCH_STREAM_PIECE) {
        uint8_t *piece = (uint8_t *)loop_region_base(stream->region) + at;
        uint32_t crc;
        struct iovec vectors[2] = {{&crc, sizeof(crc)}, {piece, BENCH_STREAM_PIECE}};
        struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 2};

        if (recvmsg(stream->fd, &message, MSG_WAITALL) !=
            (ssize_t)(sizeof(crc) + BENCH_STREAM_PIECE))
            return false;
        right = crc32c(piece, BENCH_STREAM_PIECE) == crc && right;
    }
    *out_there = true;
    return right;
}

static icms_err stream_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                           struct bench_slice *slice, struct err_why *why)
{
    struct bench_stream *stream = side->owner;
    uint64_t begin = bench_now_ns(), now = begin;

    check(work->op == BENCH_GET && work->depth == 1 && work->size_bytes == stream->size);
    while (now - begin < ns) {
        uint64_t n = bench_walk(stream->trail.next++, stream->trail.count), start = now;
        bool there = send(stream->fd, &n, sizeof(n), MSG_NOSIGNAL) == sizeof(n), right = false;

        if (there)
            right = value_receive(stream, &there);
        if (!there)
            return err_set(why, ICMS_RESET, "raw stream: the connection broke");
        now = bench_now_ns();
        bench_slice_add(slice, right ? ICMS_OK : ICMS_CORRUPT, stream->size, stream->size,
                        now - start);
    }
    slice->wall_ns = now - begin;
    return ICMS_OK;
}

icms_err bench_stream_new(const char *path, uint64_t count, uint32_t size, struct err_why *why,
                          struct bench_stream **out_stream)
{
    struct bench_stream *stream = calloc(1, sizeof(*stream));
    icms_err err;

    check(size % BENCH_STREAM_PIECE == 0 && count > 0);
    if (stream == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    (void)strncpy(stream->path, path, sizeof(stream->path) - 1);
    stream->fd = -1;
    stream->size = size;
    stream->trail.count = count;
    err = loop_region_new(loop_env_uring(), "raw-stream", size, true, why, &stream->region);
    if (err == ICMS_OK)
        err = bench_process_start("raw-stream", server_body, stream, why, &stream->server);
    if (err == ICMS_OK)
        err = bench_process_connect(&stream->server, why, &stream->fd);
    if (err != ICMS_OK) {
        bench_stream_free(&stream);
        return err;
    }
    *out_stream = stream;
    return ICMS_OK;
}

struct bench_side bench_stream_side(struct bench_stream *stream)
{
    return (struct bench_side){.name = "raw stream",
                               .run = stream_run,
                               .owner = stream,
                               .trail = &stream->trail,
                               .pids = 1,
                               .pid = {stream->server.pid}};
}

void bench_stream_free(struct bench_stream **stream)
{
    struct bench_stream *mine = *stream;

    if (mine == NULL)
        return;
    bench_process_end(&mine->server);
    if (mine->fd >= 0)
        (void)close(mine->fd);
    loop_region_free(&mine->region);
    free(mine);
    *stream = NULL;
}
