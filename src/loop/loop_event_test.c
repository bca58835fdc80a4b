/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events shared with a hostile process: whatever it does between any two system calls of ours, no
 * call blocks.
 *
 * The linker puts the functions below in front of libc's (--wrap). Between any two of our calls the
 * hostile process acts in the way that is worst for the next one: so no race has to be won. A call
 * that blocks ends the test by SIGALRM.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/check.h"
#include "loop/loop.h"

#define SIGNALS    1000
#define WAITS      100
#define HANGS_SECS 10

/* What the hostile process holds; -1: it does nothing. */
static _Atomic int hostile_fd = -1;

int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
ssize_t __real_read(int fd, void *memory, size_t bytes);
ssize_t __real_write(int fd, const void *memory, size_t bytes);
ssize_t __real_preadv64v2(int fd, const struct iovec *vectors, int count, off_t offset, int flags);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
ssize_t __wrap_read(int fd, void *memory, size_t bytes);
ssize_t __wrap_write(int fd, const void *memory, size_t bytes);
ssize_t __wrap_preadv64v2(int fd, const struct iovec *vectors, int count, off_t offset, int flags);

/* ---- the hostile process -------------------------------------------------------------------- */

/* Takes O_NONBLOCK off what both processes share, and what is in it. */
static void hostile_empty(int fd)
{
    struct pollfd event = {.fd = fd, .events = POLLIN};
    char bytes[4096];

    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    while (ppoll(&event, 1, &(struct timespec){0}, NULL) == 1 && (event.revents & POLLIN) != 0)
        (void)!__real_read(fd, bytes, sizeof(bytes));
}

/* Fills it; a socket is filled by us, where its owner reads nothing. */
static void hostile_fill(int fd)
{
    uint64_t most = UINT64_MAX - 1;
    int type;
    socklen_t bytes = sizeof(type);

    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0)
        return;
    hostile_empty(fd);
    (void)!__real_write(fd, &most, sizeof(most));
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    int result = __real_poll(fds, count, timeout_ms);

    if (hostile_fd >= 0)
        hostile_empty(hostile_fd);
    return result;
}

ssize_t __wrap_write(int fd, const void *memory, size_t bytes)
{
    if (hostile_fd >= 0 && fd == hostile_fd)
        hostile_fill(hostile_fd);
    return __real_write(fd, memory, bytes);
}

ssize_t __wrap_read(int fd, void *memory, size_t bytes)
{
    if (hostile_fd >= 0 && fd == hostile_fd)
        hostile_empty(hostile_fd);
    return __real_read(fd, memory, bytes);
}

ssize_t __wrap_preadv64v2(int fd, const struct iovec *vectors, int count, off_t offset, int flags)
{
    if (hostile_fd >= 0 && fd == hostile_fd)
        hostile_empty(hostile_fd);
    return __real_preadv64v2(fd, vectors, count, offset, flags);
}

/* ---- signals -------------------------------------------------------------------------------- */

static void a_signal_never_blocks(void **state)
{
    struct loop_event *event = NULL;

    assert_int_equal(loop_event_new(loop_env_uring(), LOOP_EVENT_SIGNAL, &event), ICMS_OK);
    (void)alarm(HANGS_SECS);
    hostile_fd = loop_event_fd(event);
    assert_int_equal(fcntl(hostile_fd, F_SETFL, fcntl(hostile_fd, F_GETFL) & ~O_NONBLOCK), 0);
    for (int i = 0; i < SIGNALS; i++)
        loop_event_signal(event);
    hostile_fd = -1;
    (void)alarm(0);
    loop_event_free(&event);
}

static bool is_up(const struct loop_event *event)
{
    struct pollfd up = {.fd = loop_event_fd(event), .events = POLLIN};

    return poll(&up, 1, 0) == 1;
}

static void a_signal_is_seen_until_it_is_received(void **state)
{
    struct loop_event *event = NULL;
    char bytes[SIGNALS];

    assert_int_equal(loop_event_new(loop_env_uring(), LOOP_EVENT_SIGNAL, &event), ICMS_OK);
    assert_false(is_up(event));
    for (int signals = 1; signals <= SIGNALS; signals *= 10) {
        for (int i = 0; i < signals; i++)
            loop_event_signal(event);
        assert_true(is_up(event));
        assert_true(recv(loop_event_fd(event), bytes, sizeof(bytes), MSG_DONTWAIT) > 0);
        assert_false(is_up(event));
    }
    loop_event_free(&event);
}

/* Descriptors that lie in a socket are closed by who closes the socket, and that may block. */
static void nothing_can_be_sent_back(void **state)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    char byte = 0;
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    struct loop_event *event = NULL;
    int fd = 0;

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    assert_int_equal(loop_event_new(loop_env_uring(), LOOP_EVENT_SIGNAL, &event), ICMS_OK);
    assert_int_equal(sendmsg(loop_event_fd(event), &message, MSG_NOSIGNAL | MSG_DONTWAIT), -1);
    assert_int_equal(errno, EPIPE);
    loop_event_free(&event);
}

/* A process that ends its side does not end this one: that would be SIGPIPE. */
static void a_signal_to_a_side_that_ended_is_harmless(void **state)
{
    struct loop_event *event = NULL;

    assert_int_equal(loop_event_new(loop_env_uring(), LOOP_EVENT_SIGNAL, &event), ICMS_OK);
    assert_int_equal(shutdown(loop_event_fd(event), SHUT_RDWR), 0);
    for (int i = 0; i < 3; i++)
        loop_event_signal(event);
    loop_event_free(&event);
}

/* ---- waits ---------------------------------------------------------------------------------- */

struct waiter {
    struct loop *loop;
    struct loop_msg msg;
    struct loop_op op;
    struct loop_event *event;
    sem_t done; /* a wait began, a wait ended */
};

static void waiter_done(struct loop_op *op)
{
    struct waiter *waiter = container_of(op, struct waiter, op);

    check(op->err == ICMS_OK);
    check(sem_post(&waiter->done) == 0);
}

static void waiter_begin(struct loop_msg *msg)
{
    struct waiter *waiter = container_of(msg, struct waiter, msg);

    check(sem_post(&waiter->done) == 0);
    loop_event_wait(waiter->loop, &waiter->op, waiter->event, waiter_done);
}

static void a_wait_never_blocks_its_loop(void **state)
{
    struct waiter waiter = {.event = NULL};
    struct loop_opts opts;
    uint64_t one = 1;

    loop_opts_init(&opts);
    assert_int_equal(sem_init(&waiter.done, 0, 0), 0);
    assert_int_equal(loop_new(loop_env_uring(), &opts, NULL, &waiter.loop), ICMS_OK);
    assert_int_equal(loop_start(waiter.loop, NULL), ICMS_OK);
    assert_int_equal(loop_event_new(loop_env_uring(), LOOP_EVENT_WAIT, &waiter.event), ICMS_OK);
    (void)alarm(HANGS_SECS);
    hostile_fd = loop_event_fd(waiter.event);
    for (int i = 0; i < WAITS; i++) {
        loop_send(waiter.loop, &waiter.msg, waiter_begin);
        assert_int_equal(sem_wait(&waiter.done), 0);
        assert_true(__real_write(hostile_fd, &one, sizeof(one)) == sizeof(one));
        assert_int_equal(sem_wait(&waiter.done), 0);
    }
    loop_stop(waiter.loop);
    loop_join(waiter.loop);
    hostile_fd = -1;
    (void)alarm(0);
    loop_free(&waiter.loop);
    loop_event_free(&waiter.event);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_never_blocks),
        cmocka_unit_test(a_signal_is_seen_until_it_is_received),
        cmocka_unit_test(nothing_can_be_sent_back),
        cmocka_unit_test(a_signal_to_a_side_that_ended_is_harmless),
        cmocka_unit_test(a_wait_never_blocks_its_loop),
    };

    return cmocka_run_group_tests_name("loop-event", tests, NULL, NULL);
}
