/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/attach_peer.c: see attach_peer.h.
 */
#include "agent/attach_peer.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

#define CLOSING_STACK_BYTES ((size_t)64 << 10)

/* ---- who it is ------------------------------------------------------------------------------ */

_Static_assert(sizeof(gid_t) == sizeof(uint32_t), "groups are read in place");

icms_err attach_peer_user(int sock, uint32_t *groups, struct agent_user *out_user)
{
    struct ucred who;
    socklen_t bytes = sizeof(who);

    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0)
        return err_from_errno(errno);
    *out_user = (struct agent_user){
        .uid = who.uid,
        .gid = who.gid,
        .owner = who.uid == 0 || who.uid == geteuid(),
        .groups = groups,
    };
    bytes = ATTACH_GROUPS_MAX * sizeof(groups[0]);
    if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) != 0)
        return err_from_errno(errno);
    out_user->group_count = (uint32_t)(bytes / sizeof(groups[0]));
    return ICMS_OK;
}

/* ---- what it says --------------------------------------------------------------------------- */

/* Looks at the first message: its bytes, or as recvmsg does. MSG_PEEK holds references of its own
 * to what the message carries, so that none it drops is the last one. */
static ssize_t peer_look(int sock, void *message, size_t bytes, int *out_flags)
{
    struct iovec vector = {message, bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    ssize_t n = recvmsg(sock, &header, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC);

    *out_flags = header.msg_flags;
    return n;
}

icms_err attach_peer_take(int sock, void *out_message, size_t bytes)
{
    int flags;
    ssize_t n = peer_look(sock, out_message, bytes, &flags);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return ICMS_BUSY;
    /* There was no memory for descriptors: MSG_CTRUNC says that some came. */
    if (n < 0 || (flags & MSG_CTRUNC) != 0)
        return ICMS_PROTOCOL;
    n = recv(sock, out_message, bytes, MSG_DONTWAIT | MSG_TRUNC);
    return n == (ssize_t)bytes ? ICMS_OK : ICMS_PROTOCOL;
}

/* ---- its end -------------------------------------------------------------------------------- */

enum closing_state {
    CLOSING_RUNS, /* the thread closes                 */
    CLOSING_DONE, /* it is closed; who asks frees it   */
    CLOSING_LEFT, /* nobody asks; the thread frees it  */
};

struct attach_closing {
    int sock;
    bool started;      /* a thread has it    */
    _Atomic int state; /* enum closing_state */
};

/* True when something lies in the socket, which nothing can be sent to any more. An empty message
 * cannot be told from the end by its length, but asking for credentials marks every message. */
static bool peer_left_some(int sock)
{
    int on = 1, flags = 0;
    char byte;

    if (setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0)
        return true;
    return peer_look(sock, &byte, sizeof(byte), &flags) > 0 || (flags & MSG_CTRUNC) != 0;
}

static void *closing_run(void *arg)
{
    struct attach_closing *closing = arg;

    (void)close(closing->sock);
    if (atomic_exchange(&closing->state, CLOSING_DONE) == CLOSING_LEFT)
        free(closing);
    return NULL;
}

static void closing_start(struct attach_closing *closing)
{
    pthread_attr_t attributes;
    pthread_t thread;

    check(pthread_attr_init(&attributes) == 0);
    (void)pthread_attr_setstacksize(&attributes, CLOSING_STACK_BYTES);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    closing->started = pthread_create(&thread, &attributes, closing_run, closing) == 0;
    (void)pthread_attr_destroy(&attributes);
}

struct attach_closing *attach_peer_close(int sock)
{
    struct attach_closing *closing;

    (void)shutdown(sock, SHUT_RDWR);
    if (!peer_left_some(sock) || (closing = calloc(1, sizeof(*closing))) == NULL) {
        (void)close(sock);
        return NULL;
    }
    closing->sock = sock;
    closing_start(closing);
    return closing;
}

bool attach_peer_closed(struct attach_closing **closing)
{
    struct attach_closing *own = *closing;

    if (!own->started)
        closing_start(own); /* there was no thread for it */
    if (atomic_load(&own->state) != CLOSING_DONE)
        return false;
    free(own);
    *closing = NULL;
    return true;
}

void attach_peer_leave(struct attach_closing **closing)
{
    struct attach_closing *own = *closing;

    *closing = NULL;
    if (own == NULL)
        return;
    if (!own->started)
        (void)close(own->sock);
    if (!own->started || atomic_exchange(&own->state, CLOSING_LEFT) == CLOSING_DONE)
        free(own);
}
