/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events: what processes wake each other with.
 *
 * Made and freed by control threads, signalled by any, taken by the loop that waits.
 *
 * The other process may be hostile, and what it was given is the same open file that we have: it
 * can clear O_NONBLOCK, fill what we write to and empty what we read. So each call here says for
 * itself that it does not block. For a read of an eventfd that is RWF_NOWAIT; a write to one has
 * nothing of the kind, so signals go through a socket, with MSG_DONTWAIT. We never receive from a
 * socket of theirs: a message may carry descriptors, and to drop the last reference to one may
 * block.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "loop/loop_uring.h"

/* The bytes that may lie in a socket: the kernel's least, which is a handful of signals. */
#define EVENT_SOCKET_BYTES 1

/* Nothing can be sent to our end: whoever closes it cannot be made to wait for the descriptors of
 * others that would lie in it. */
static icms_err event_socket(struct uring_event *event)
{
    int bytes = EVENT_SOCKET_BYTES, ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return err_from_errno(errno);
    event->own = loop_fd_own(ends[0]);
    event->event.fd = loop_fd_own(ends[1]);
    if (setsockopt(event->own, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) != 0 ||
        shutdown(event->own, SHUT_RD) != 0)
        return err_from_errno(errno);
    return ICMS_OK;
}

icms_err uring_event_new(struct loop_env *env, enum loop_event_role role,
                         struct loop_event **out_event)
{
    struct uring_event *event = calloc(1, sizeof(*event));
    icms_err err = ICMS_OK;

    if (event == NULL)
        return ICMS_NO_MEMORY;
    event->event.target.env = env;
    event->role = role;
    event->own = event->event.fd = -1;
    if (role == LOOP_EVENT_SIGNAL) {
        err = event_socket(event);
    } else {
        event->event.fd = loop_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (event->event.fd < 0)
            err = err_from_errno(errno);
    }
    if (err != ICMS_OK) {
        uring_event_free(&event->event);
        return err;
    }
    *out_event = &event->event;
    return ICMS_OK;
}

/* Where the other process leaves no space its event is up already. */
void uring_event_signal(struct loop_event *event)
{
    const char one = 1;

    check(uring_event_of(&event->target)->role == LOOP_EVENT_SIGNAL);
    (void)!send(uring_event_of(&event->target)->own, &one, sizeof(one),
                MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* RWF_NOWAIT counts for this call, whatever the flags of the descriptor have become. It may be
 * empty: other processes can read it, too. */
void uring_event_take(struct loop_event *event)
{
    uint64_t count;
    struct iovec vector = {&count, sizeof(count)};

    (void)!preadv2(event->fd, &vector, 1, -1, RWF_NOWAIT);
}

void uring_event_free(struct loop_event *event)
{
    struct uring_event *gone = uring_event_of(&event->target);

    if (gone->own >= 0)
        loop_fd_close(gone->own);
    if (event->fd >= 0)
        loop_fd_close(event->fd);
    free(gone);
}
