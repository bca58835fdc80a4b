/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/sys.c: sys.h with Linux.
 *
 * Any thread. Nothing here is a check: guard.c calls some of it after one failed. Descriptors that
 * are shared with the agent never block, whatever flags it gave them: what could is asked first, or
 * asked not to.
 */
#include "client/sys.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "crypt/secret.h"
#include "loop/loop.h"

static struct timespec sys_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
}

uint64_t client_now_ns(void)
{
    struct timespec now;

    check(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sys_sleep(uint64_t ns)
{
    const struct timespec pause = sys_timespec(ns);

    (void)nanosleep(&pause, NULL);
}

void sys_random(void *out, size_t bytes)
{
    secret_random(out, bytes);
}

bool sys_thread_new(pthread_t *out_thread, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(out_thread, NULL, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

void sys_thread_join(pthread_t thread)
{
    (void)pthread_join(thread, NULL);
}

/* ---- events of the handle ------------------------------------------------------------------- */

int sys_event_new(void)
{
    return loop_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

int sys_timer_new(void)
{
    return loop_fd_own(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
}

void sys_event_raise(int event)
{
    uint64_t one = 1;

    while (write(event, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

bool sys_event_drain(int event)
{
    struct pollfd readable = {.fd = event, .events = POLLIN};
    uint64_t count;

    if (poll(&readable, 1, 0) != 1 || (readable.revents & POLLIN) == 0)
        return true;
    return read(event, &count, sizeof(count)) >= 0 || errno == EAGAIN || errno == EINTR;
}

bool sys_timer_set(int timer, uint64_t at_ns)
{
    struct itimerspec when = {.it_value = sys_timespec(at_ns == UINT64_MAX ? 0 : at_ns)};

    return timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL) == 0;
}

int sys_set_new(void)
{
    return loop_fd_own(epoll_create1(EPOLL_CLOEXEC));
}

icms_err sys_set_add(int set, int event)
{
    struct epoll_event interest = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = event};

    if (epoll_ctl(set, EPOLL_CTL_ADD, event, &interest) != 0)
        return err_from_errno(errno);
    return ICMS_OK;
}

void sys_set_remove(int set, int event)
{
    (void)epoll_ctl(set, EPOLL_CTL_DEL, event, NULL);
}

/* ---- the agent ------------------------------------------------------------------------------ */

uint32_t sys_wait(int signal, int sock, int wake, uint64_t until_ns)
{
    struct pollfd fds[3] = {{.fd = signal, .events = POLLIN},
                            {.fd = sock, .events = POLLIN | POLLRDHUP},
                            {.fd = wake, .events = POLLIN}};
    uint64_t now = until_ns == 0 ? 0 : client_now_ns();
    struct timespec timeout = sys_timespec(now < until_ns ? until_ns - now : 0);

    if (ppoll(fds, 3, &timeout, NULL) <= 0)
        return 0;
    return (fds[0].revents != 0 ? SYS_SIGNAL : 0) | (fds[1].revents != 0 ? SYS_ENDED : 0) |
           (fds[2].revents != 0 ? SYS_WOKEN : 0);
}

bool sys_signal_take(int signal)
{
    char signals[64];
    ssize_t n = recv(signal, signals, sizeof(signals), MSG_DONTWAIT);

    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

void sys_hangup(int sock)
{
    (void)shutdown(sock, SHUT_RDWR);
}

void sys_unmap(void *base, uint64_t bytes)
{
    (void)munmap(base, bytes); /* fails when there are too many mappings */
}

void sys_close(int fd)
{
    loop_fd_close(fd);
}
