/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation's way through io_uring.
 *
 * Called on the loop's thread. Life of an operation (enum loop_op_state):
 *
 *   uring_op_start     IDLE -> PARKED   (or READY when it failed at once)
 *   uring_submit       PARKED -> KERNEL (loop_uring.c; oldest first, as the ring has room)
 *   uring_op_cancel    PARKED -> READY, KERNEL -> ENDING
 *   uring_op_answer    KERNEL, ENDING -> PARKED (short transfer that goes on) or IDLE (done runs)
 *
 * While PARKED or READY or in the kernel, op->link is in the list of that name. op->bytes counts
 * what was moved so far.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/fault.h"
#include "loop/loop_uring.h"

/* BLOCK_URING_CMD_DISCARD of Linux 6.12: address and length in bytes as in the SQE below. */
#define URING_BLOCK_DISCARD 0x1200

/* "Again" answers that are taken as transient before the operation fails with BUSY. */
#define URING_RETRIES_MAX 16

/* The kernel moves less than 2 GiB at a time. */
#define URING_TRANSFER_BYTES_MAX ((uint32_t)1 << 30)

static void op_state(struct loop_op *op, enum loop_op_state state, struct list *list)
{
    list_remove(&op->link);
    op->state = (uint8_t)state;
    list_push(list, &op->link);
}

void uring_op_start(struct loop *loop, struct loop_op *op)
{
    struct uring_loop *uring = uring_of(loop);

    if (op->kind == LOOP_CONNECT)
        op->err = uring_connect_start(op);
    if (op->err != ICMS_OK)
        op_state(op, LOOP_OP_READY, &uring->ready);
    else
        op_state(op, LOOP_OP_PARKED, &uring->parked);
}

void uring_op_cancel(struct loop *loop, struct loop_op *op)
{
    struct uring_loop *uring = uring_of(loop);

    if (op->state == LOOP_OP_PARKED) {
        if (op->kind == LOOP_CONNECT)
            uring_sock_close(&uring_words(op)->connect.sock->sock);
        op->err = ICMS_CANCELED;
        op_state(op, LOOP_OP_READY, &uring->ready);
    } else if (op->state == LOOP_OP_KERNEL) {
        op_state(op, LOOP_OP_ENDING, &uring->ending);
    }
}

static void op_prepare_disk(struct uring_loop *loop, struct loop_op *op, struct io_uring_sqe *sqe)
{
    int fd = uring_file_of(op->target)->fd;
    uint8_t *memory = (uint8_t *)op->memory + op->bytes;
    uint32_t bytes = op->length - op->bytes;
    uint64_t offset = op->offset + op->bytes;
    int slot = uring_buffer_slot(loop, memory, bytes);

    if (bytes > URING_TRANSFER_BYTES_MAX)
        bytes = URING_TRANSFER_BYTES_MAX;
    if (op->kind == LOOP_READ && slot >= 0)
        io_uring_prep_read_fixed(sqe, fd, memory, bytes, offset, slot);
    else if (op->kind == LOOP_READ)
        io_uring_prep_read(sqe, fd, memory, bytes, offset);
    else if (slot >= 0)
        io_uring_prep_write_fixed(sqe, fd, memory, bytes, offset, slot);
    else
        io_uring_prep_write(sqe, fd, memory, bytes, offset);
    if (op->kind == LOOP_WRITE) /* its place since Linux 6.16; nobody looks at it before */
        memcpy(&sqe->splice_fd_in, &op->stream, sizeof(op->stream));
}

void uring_op_prepare(struct uring_loop *loop, struct loop_op *op, struct io_uring_sqe *sqe)
{
    union uring_words *words = uring_words(op);

    switch ((enum loop_kind)op->kind) {
    case LOOP_READ:
    case LOOP_WRITE:
        op_prepare_disk(loop, op, sqe);
        break;
    case LOOP_FLUSH:
        io_uring_prep_fsync(sqe, uring_file_of(op->target)->fd, IORING_FSYNC_DATASYNC);
        break;
    case LOOP_DISCARD:
        io_uring_prep_rw(IORING_OP_URING_CMD, sqe, uring_file_of(op->target)->fd,
                         (const void *)(uintptr_t)op->offset, 0, 0);
        sqe->cmd_op = URING_BLOCK_DISCARD;
        sqe->addr3 = op->length;
        break;
    case LOOP_ACCEPT:
        io_uring_prep_accept(sqe, uring_sock_of(op->target)->fd, NULL, NULL, SOCK_CLOEXEC);
        break;
    case LOOP_CONNECT:
        io_uring_prep_connect(sqe, words->connect.sock->fd,
                              (struct sockaddr *)(void *)&words->connect.addr,
                              words->connect.addr_bytes);
        break;
    case LOOP_RECV:
        io_uring_prep_recv(sqe, uring_sock_of(op->target)->fd, (uint8_t *)op->memory + op->bytes,
                           op->length - op->bytes, op->whole ? MSG_WAITALL : 0);
        break;
    case LOOP_SENDV:
        words->message = (struct msghdr){.msg_iov = op->memory, .msg_iovlen = op->length};
        io_uring_prep_sendmsg(sqe, uring_sock_of(op->target)->fd, &words->message, MSG_NOSIGNAL);
        break;
    case LOOP_EVENT:
        check(uring_event_of(op->target)->role == LOOP_EVENT_WAIT);
        io_uring_prep_poll_add(sqe, uring_event_of(op->target)->event.fd, POLLIN);
        break;
    case LOOP_KIND_COUNT:
        check(false);
    }
}

static void op_accepted(struct loop_op *op, int fd)
{
    struct uring_sock *sock = uring_sock_new(op->loop->env, fd);

    if (sock != NULL)
        op->sock = &sock->sock;
    loop_op_finish(op, sock != NULL ? ICMS_OK : ICMS_NO_MEMORY, 0);
}

static void op_connected(struct loop_op *op)
{
    op->sock = &uring_words(op)->connect.sock->sock;
    loop_op_finish(op, ICMS_OK, 0);
}

/* Reads and receives of nothing: the end of the file or of the stream. */
static void op_ended(struct loop_op *op)
{
    loop_op_finish(op, op->kind == LOOP_RECV ? ICMS_RESET : ICMS_IO, op->bytes);
}

static void op_moved(struct uring_loop *loop, struct loop_op *op, uint32_t bytes)
{
    if (bytes == 0) {
        op_ended(op);
        return;
    }
    op->bytes += bytes;
    if (!op->whole || op->bytes == op->length)
        loop_op_finish(op, ICMS_OK, op->bytes);
    else if (op->cancel)
        loop_op_finish(op, ICMS_CANCELED, op->bytes);
    else
        op_state(op, LOOP_OP_PARKED, &loop->parked);
}

static void op_failed(struct uring_loop *loop, struct loop_op *op, int error)
{
    icms_err err;

    if ((error == EINTR || error == EAGAIN) && !op->cancel && op->retries < URING_RETRIES_MAX) {
        op->retries++;
        op_state(op, LOOP_OP_PARKED, &loop->parked);
        return;
    }
    if (op->cancel && (error == EINTR || error == EAGAIN || error == EALREADY))
        error = ECANCELED;
    err = err_from_errno(error);
    if (op->kind == LOOP_ACCEPT && error == EINVAL)
        err = ICMS_RESET; /* the listener was shut down */
    if (op->kind == LOOP_DISCARD && error == EINVAL)
        err = ICMS_UNSUPPORTED; /* a kernel that does not know the command */
    if (op->kind == LOOP_CONNECT) {
        struct uring_sock *sock = uring_words(op)->connect.sock;

        if (error == ENOENT)
            err = ICMS_PEER_DOWN;
        uring_sock_close(&sock->sock);
    }
    loop_op_finish(op, err, op->bytes);
}

void uring_op_answer(struct uring_loop *loop, struct loop_op *op, int result)
{
    check(op->state == LOOP_OP_KERNEL || op->state == LOOP_OP_ENDING);
    if ((op->kind == LOOP_READ && fault_hit("loop.read_done")) ||
        (op->kind == LOOP_WRITE && fault_hit("loop.write_done")))
        result = -EIO;
    if (result < 0) {
        op_failed(loop, op, -result);
        return;
    }
    switch ((enum loop_kind)op->kind) {
    case LOOP_READ:
    case LOOP_WRITE:
    case LOOP_RECV:
    case LOOP_SENDV:
        op_moved(loop, op, (uint32_t)result);
        break;
    case LOOP_FLUSH:
    case LOOP_DISCARD:
        loop_op_finish(op, ICMS_OK, 0);
        break;
    case LOOP_ACCEPT:
        op_accepted(op, result);
        break;
    case LOOP_CONNECT:
        op_connected(op);
        break;
    case LOOP_EVENT:
        uring_event_take(op->target);
        loop_op_finish(op, ICMS_OK, 0);
        break;
    case LOOP_KIND_COUNT:
        check(false);
    }
}

void uring_op_discard(struct uring_loop *loop, struct loop_op *op, int result)
{
    if (op->kind == LOOP_ACCEPT && result >= 0)
        (void)close(result);
    if (op->kind == LOOP_CONNECT && op->state != LOOP_OP_READY)
        uring_sock_close(&uring_words(op)->connect.sock->sock);
    loop_op_release(op);
}
