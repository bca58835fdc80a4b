/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/fork.c: handles belong to the process that opened them.
 *
 * A child of fork() sees a new generation and gets FORKED from every call. Its copies of all
 * descriptors are closed at once, in the fork itself: an agent takes the end of a socket for the
 * end of its client, an enclosure that of a connection for the end of a host, and who opens a
 * directory needs its locks; a child that lives longer must not hide it. So each descriptor is made
 * with loop_fd_own, which counts while a handle is being opened or closed, too.
 */
#include <pthread.h>

#include "client/client_int.h"

_Atomic uint32_t client_fork_generation = 1;

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void fork_child(void)
{
    atomic_fetch_add_explicit(&client_fork_generation, 1, memory_order_relaxed);
    loop_fork_child();
}

static void fork_register(void)
{
    (void)pthread_atfork(loop_fork_prepare, loop_fork_parent, fork_child);
}

void client_fork_watch(struct icms *icms)
{
    (void)pthread_once(&fork_once, fork_register);
    icms->fork_generation = atomic_load_explicit(&client_fork_generation, memory_order_relaxed);
}
