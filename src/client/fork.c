/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/fork.c: handles belong to the process that opened them.
 *
 * A child of fork() sees a new generation and gets FORKED from every call. Its copies of all
 * descriptors are closed at once, in the fork itself: an agent takes the end of a socket for the
 * end of its client, an enclosure that of a connection for the end of a host, and who opens a
 * directory needs its locks; a child that lives longer must not hide it.
 */
#include <unistd.h>

#include "base/check.h"
#include "client/client_int.h"

_Atomic uint32_t client_fork_generation = 1;

static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct list fork_handles = {&fork_handles, &fork_handles}; /* icms.handles; fork_lock */

static void fork_prepare(void)
{
    (void)pthread_mutex_lock(&fork_lock);
    loop_fork_prepare();
}

static void fork_parent(void)
{
    loop_fork_parent();
    (void)pthread_mutex_unlock(&fork_lock);
}

static void fork_close(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static void fork_child(void)
{
    atomic_fetch_add_explicit(&client_fork_generation, 1, memory_order_relaxed);
    list_for_each (link, &fork_handles) {
        struct icms *icms = container_of(link, struct icms, handles);

        if (icms->link != NULL && icms->link->events_owned) {
            fork_close(&icms->link->sock);
            fork_close(&icms->link->agent_event);
            fork_close(&icms->link->client_event);
        }
        fork_close(&icms->epoll_fd);
        fork_close(&icms->notify_fd);
        fork_close(&icms->timer_fd);
        fork_close(&icms->wake_fd);
        if (icms->local != NULL)
            client_local_forked(icms->local);
    }
    list_init(&fork_handles);
    loop_fork_child();
    (void)pthread_mutex_unlock(&fork_lock);
}

static void fork_register(void)
{
    (void)pthread_atfork(fork_prepare, fork_parent, fork_child);
}

void client_fork_watch(struct icms *icms)
{
    (void)pthread_once(&fork_once, fork_register);
    (void)pthread_mutex_lock(&fork_lock);
    icms->fork_generation = atomic_load_explicit(&client_fork_generation, memory_order_relaxed);
    list_push(&fork_handles, &icms->handles);
    (void)pthread_mutex_unlock(&fork_lock);
}

void client_fork_forget(struct icms *icms)
{
    (void)pthread_mutex_lock(&fork_lock);
    list_remove(&icms->handles);
    (void)pthread_mutex_unlock(&fork_lock);
}
