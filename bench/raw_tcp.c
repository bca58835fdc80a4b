/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/raw_tcp.c: the ceiling of what uses the network: values over one TCP connection between two
 * processes on loopback, blocking sockets, one thread each, a header of 16 bytes in front.
 *
 * A get: the client sends a header, the server answers with a header and the value in one call. A
 * put: the client sends a header and the value in one call, the server answers with a header. As
 * many as the depth are outstanding; answers come in order. Values lie in memory that both
 * processes share and go to buffers of their own, one an outstanding operation; who receives a
 * value takes its CRC32C, nothing else is looked at.
 *
 * The client runs on the thread of bench_run, the server in a process of its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/crc.h"
#include "bench/bench_int.h"

#define TCP_DEPTH_MAX 64

/* In front of each request and each answer. */
struct tcp_header {
    uint32_t op; /* enum bench_op                              */
    uint32_t n;  /* which value of the pool                    */
    uint32_t ok; /* answer to a put: its checksum was right    */
    uint32_t zero;
};

struct bench_tcp {
    const struct bench_pool *pool; /* what is moved                          */
    struct bench_process server;   /* the other end                          */
    int fd;                        /* the connection; -1: none               */
    uint32_t depth_max;            /* buffers                                */
    uint8_t *memory;               /* of the buffers                         */
    uint64_t next;                 /* number of the next operation           */
    uint64_t begin[TCP_DEPTH_MAX]; /* when the outstanding ones started      */
};

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Goes on behind bytes; false: that was all. */
static bool vectors_skip(struct msghdr *message, size_t bytes)
{
    while (message->msg_iovlen > 0 && bytes >= message->msg_iov->iov_len) {
        bytes -= message->msg_iov->iov_len;
        message->msg_iov++;
        message->msg_iovlen--;
    }
    if (message->msg_iovlen == 0)
        return false;
    message->msg_iov->iov_base = (uint8_t *)message->msg_iov->iov_base + bytes;
    message->msg_iov->iov_len -= bytes;
    return true;
}

/* A header and, unless bytes is 0, what follows it. */
static bool tcp_send(int fd, const struct tcp_header *header, const void *memory, uint32_t bytes)
{
    struct iovec vectors[2] = {
        {(void *)(uintptr_t)header, sizeof(*header)},
        {(void *)(uintptr_t)memory, bytes},
    };
    struct msghdr message = {.msg_iov = vectors, .msg_iovlen = bytes > 0 ? 2 : 1};
    ssize_t done;

    do
        done = sendmsg(fd, &message, MSG_NOSIGNAL);
    while ((done < 0 && errno == EINTR) || (done > 0 && vectors_skip(&message, (size_t)done)));
    return done > 0;
}

static bool tcp_receive(int fd, struct tcp_header *header, void *memory, uint32_t bytes)
{
    struct iovec vectors[2] = {{header, sizeof(*header)}, {memory, bytes}};
    struct msghdr message = {.msg_iov = header != NULL ? vectors : vectors + 1,
                             .msg_iovlen = (header != NULL) + (bytes > 0)};
    ssize_t done;

    do
        done = recvmsg(fd, &message, MSG_WAITALL);
    while ((done < 0 && errno == EINTR) || (done > 0 && vectors_skip(&message, (size_t)done)));
    return done > 0;
}

/* ---- the server ------------------------------------------------------------------------------ */

static void server_run(struct bench_tcp *tcp, int fd)
{
    const struct bench_pool *pool = tcp->pool;
    struct tcp_header header;

    for (uint64_t i = 0; tcp_receive(fd, &header, NULL, 0); i++) {
        uint8_t *buffer = tcp->memory + i % tcp->depth_max * pool->size;
        bool sent;

        check(header.n < pool->count);
        if (header.op == BENCH_GET) {
            sent =
                tcp_send(fd, &header, pool->memory + (uint64_t)header.n * pool->size, pool->size);
        } else {
            if (!tcp_receive(fd, NULL, buffer, pool->size))
                return;
            header.ok = pool->unchecked || crc32c(buffer, pool->size) == pool->crc[header.n];
            sent = tcp_send(fd, &header, NULL, 0);
        }
        if (!sent)
            return;
    }
}

static icms_err server_body(void *arg, struct bench_listening *listening, struct err_why *why)
{
    int fd;
    icms_err err = bench_process_accept(listening, why, &fd);

    if (err == ICMS_OK)
        server_run(arg, fd);
    return err;
}

/* ---- the client ------------------------------------------------------------------------------ */

/* One more request; gets go out by themselves, puts with their value. */
static bool client_start(struct bench_tcp *tcp, enum bench_op op)
{
    const struct bench_pool *pool = tcp->pool;
    uint64_t place = tcp->next++;
    struct tcp_header header = {.op = op, .n = (uint32_t)bench_walk(place, pool->count)};

    tcp->begin[place % TCP_DEPTH_MAX] = bench_now_ns();
    return tcp_send(tcp->fd, &header, pool->memory + (uint64_t)header.n * pool->size,
                    op == BENCH_PUT ? pool->size : 0);
}

/* The oldest outstanding request ends. */
static bool client_end(struct bench_tcp *tcp, enum bench_op op, uint64_t place,
                       struct bench_slice *slice)
{
    const struct bench_pool *pool = tcp->pool;
    uint8_t *buffer = tcp->memory + place % tcp->depth_max * pool->size;
    struct tcp_header header;
    bool right;

    if (!tcp_receive(tcp->fd, &header, buffer, op == BENCH_GET ? pool->size : 0))
        return false;
    check(header.n < pool->count);
    right = op == BENCH_PUT ? header.ok != 0
                            : pool->unchecked || crc32c(buffer, pool->size) == pool->crc[header.n];
    bench_slice_add(slice, right ? ICMS_OK : ICMS_CORRUPT, pool->size, pool->size,
                    bench_now_ns() - tcp->begin[place % TCP_DEPTH_MAX]);
    return true;
}

icms_err bench_tcp_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                       struct bench_slice *slice, struct err_why *why)
{
    struct bench_tcp *tcp = side->owner;
    uint64_t begin = bench_now_ns(), end = begin + ns, oldest = tcp->next;
    bool fine = true;

    check(work->depth > 0 && work->depth <= tcp->depth_max && work->size_bytes == tcp->pool->size);
    while (fine) {
        while (fine && tcp->next - oldest < work->depth && bench_now_ns() < end)
            fine = client_start(tcp, work->op);
        if (oldest == tcp->next)
            break;
        fine = fine && client_end(tcp, work->op, oldest++, slice);
    }
    slice->wall_ns = bench_now_ns() - begin;
    return fine ? ICMS_OK : err_set(why, ICMS_RESET, "raw TCP: the connection broke");
}

icms_err bench_tcp_new(const struct bench_pool *pool, uint32_t depth_max, struct err_why *why,
                       struct bench_tcp **out_tcp)
{
    struct bench_tcp *tcp = calloc(1, sizeof(*tcp));
    icms_err err = ICMS_OK;

    check(depth_max > 0 && depth_max <= TCP_DEPTH_MAX);
    if (tcp == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    tcp->pool = pool;
    tcp->fd = -1;
    tcp->depth_max = depth_max;
    tcp->memory = mmap(NULL, (size_t)depth_max * pool->size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (tcp->memory == MAP_FAILED) {
        tcp->memory = NULL;
        err = err_set(why, ICMS_NO_MEMORY, "raw TCP: no memory for buffers");
    }
    if (err == ICMS_OK)
        err = bench_process_start("raw-tcp", server_body, tcp, why, &tcp->server);
    if (err == ICMS_OK)
        err = bench_process_connect(&tcp->server, why, &tcp->fd);
    if (err != ICMS_OK) {
        bench_tcp_free(&tcp);
        return err;
    }
    *out_tcp = tcp;
    return ICMS_OK;
}

pid_t bench_tcp_server(const struct bench_tcp *tcp)
{
    return tcp->server.pid;
}

void bench_tcp_free(struct bench_tcp **tcp)
{
    struct bench_tcp *mine = *tcp;

    if (mine == NULL)
        return;
    bench_process_end(&mine->server);
    if (mine->fd >= 0)
        (void)close(mine->fd);
    if (mine->memory != NULL)
        (void)munmap(mine->memory, (size_t)mine->depth_max * mine->pool->size);
    free(mine);
    *tcp = NULL;
}
