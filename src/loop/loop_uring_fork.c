/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of all loops of this process and of their users, and what becomes of them in a child
 * of fork().
 *
 * A child has none of the threads and can use none of them, but as long as it lives it holds what
 * they stand for: the lock of a drive, a connection that its peer takes for alive, memory. So each
 * descriptor is noted from when it is made until it is closed, and the child closes what is noted.
 *
 * Any thread. fork() happens while no descriptor is between its note and its close; one that the
 * kernel has just made for an accept may be missed.
 */
#include <pthread.h>
#include <unistd.h>

#include "base/check.h"
#include "loop/loop_uring.h"

/* Descriptors that can be noted; fork leaves those above to the child. */
#define FORK_FDS_MAX (1u << 20)

static pthread_mutex_t fork_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t fork_fds[FORK_FDS_MAX / 64]; /* a bit for each that is open; fork_mutex */

static void fork_note(int fd, bool open)
{
    uint64_t bit = (uint64_t)1 << (unsigned)fd % 64;

    if (fd < 0 || (unsigned)fd >= FORK_FDS_MAX)
        return;
    if (open)
        fork_fds[fd / 64] |= bit;
    else
        fork_fds[fd / 64] &= ~bit;
}

int loop_fd_own(int fd)
{
    check(pthread_mutex_lock(&fork_mutex) == 0);
    fork_note(fd, true);
    check(pthread_mutex_unlock(&fork_mutex) == 0);
    return fd;
}

void loop_fd_close(int fd)
{
    check(pthread_mutex_lock(&fork_mutex) == 0);
    fork_note(fd, false);
    (void)close(fd);
    check(pthread_mutex_unlock(&fork_mutex) == 0);
}

int uring_ring_own(struct io_uring *ring)
{
    int result = io_uring_ring_dontfork(ring);

    if (result == 0)
        (void)loop_fd_own(ring->ring_fd);
    return result;
}

void uring_ring_exit(struct io_uring *ring)
{
    check(pthread_mutex_lock(&fork_mutex) == 0);
    fork_note(ring->ring_fd, false);
    io_uring_queue_exit(ring);
    check(pthread_mutex_unlock(&fork_mutex) == 0);
}

void loop_fork_prepare(void)
{
    uring_files_hold();
    check(pthread_mutex_lock(&fork_mutex) == 0);
}

void loop_fork_parent(void)
{
    check(pthread_mutex_unlock(&fork_mutex) == 0);
    uring_files_rele();
}

void loop_fork_child(void)
{
    for (unsigned i = 0; i < FORK_FDS_MAX / 64; i++)
        for (; fork_fds[i] != 0; fork_fds[i] &= fork_fds[i] - 1)
            (void)close((int)(i * 64) + __builtin_ctzll(fork_fds[i]));
    uring_files_forget();
    check(pthread_mutex_unlock(&fork_mutex) == 0);
    uring_files_rele();
}
