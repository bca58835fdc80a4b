/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many blocking reads at a time, on an io_uring of their own: for who starts up, before its loop
 * runs.
 *
 * loop_reads_start fills the ring; loop_reads_wait tells the kernel and sleeps until one ended. A
 * read that ends short goes on where it stopped.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "loop/loop_uring.h"

/* The kernel hears of new reads at the latest when there are so many, so that it works while the
 * caller looks at what came. */
#define READS_SUBMIT 8

struct uring_reads {
    struct loop_reads reads; /* common part                           */
    struct io_uring ring;    /* has room for depth                    */
    uint32_t unsubmitted;    /* filled in, the kernel does not know   */
};

static struct uring_reads *uring_reads_of(struct loop_reads *reads)
{
    return container_of(reads, struct uring_reads, reads);
}

icms_err uring_reads_new(struct loop_file *file, uint32_t depth, struct err_why *why,
                         struct loop_reads **out_reads)
{
    struct uring_reads *own = calloc(1, sizeof(*own));
    int result;

    if (own == NULL)
        return err_set(why, ICMS_NO_MEMORY, "reads at start: out of memory");
    own->reads = (struct loop_reads){.file = file, .depth = depth};
    result = io_uring_queue_init(depth, &own->ring, 0);
    if (result >= 0 && (result = uring_ring_own(&own->ring)) != 0)
        io_uring_queue_exit(&own->ring);
    if (result < 0) {
        free(own);
        return err_set(why, err_from_errno(-result),
                       "cannot make an io_uring for reads at start: %s", strerror(-result));
    }
    *out_reads = &own->reads;
    return ICMS_OK;
}

static void reads_submit(struct uring_reads *own)
{
    while (own->unsubmitted > 0) {
        int result = io_uring_submit(&own->ring);

        if (result == -EINTR || result == -EAGAIN || result == -EBUSY)
            continue;
        check(result > 0 && (uint32_t)result <= own->unsubmitted);
        own->unsubmitted -= (uint32_t)result;
    }
}

static void reads_fill(struct uring_reads *own, struct loop_read *read)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&own->ring);

    check(sqe != NULL); /* no more than depth are in flight */
    io_uring_prep_read(sqe, uring_file_of(own->reads.file)->fd,
                       (uint8_t *)read->memory + read->moved, read->bytes - read->moved,
                       read->offset + read->moved);
    io_uring_sqe_set_data(sqe, read);
    own->unsubmitted++;
}

void uring_reads_start(struct loop_reads *reads, struct loop_read *read)
{
    struct uring_reads *own = uring_reads_of(reads);

    reads_fill(own, read);
    if (own->unsubmitted >= READS_SUBMIT)
        reads_submit(own);
}

/* True when the read is over. */
static bool reads_answer(struct loop_read *read, int result)
{
    if (result == -EINTR || result == -EAGAIN)
        return false;
    if (result < 0)
        read->err = err_from_errno(-result);
    else if (result == 0)
        read->err = ICMS_IO;
    else
        read->moved += (uint32_t)result;
    return result <= 0 || read->moved == read->bytes;
}

struct loop_read *uring_reads_wait(struct loop_reads *reads)
{
    struct uring_reads *own = uring_reads_of(reads);

    for (;;) {
        struct io_uring_cqe *cqe;
        struct loop_read *read;
        int result = io_uring_peek_cqe(&own->ring, &cqe);

        if (result == -EAGAIN || result == -EINTR) {
            reads_submit(own);
            result = io_uring_wait_cqe(&own->ring, &cqe);
        }
        if (result == -EINTR || result == -EAGAIN)
            continue;
        check(result == 0);
        read = io_uring_cqe_get_data(cqe);
        result = cqe->res;
        io_uring_cqe_seen(&own->ring, cqe);
        if (reads_answer(read, result))
            return read;
        reads_fill(own, read);
    }
}

void uring_reads_free(struct loop_reads *reads)
{
    struct uring_reads *own = uring_reads_of(reads);

    uring_ring_exit(&own->ring);
    free(own);
}
