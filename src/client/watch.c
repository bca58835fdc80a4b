/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/watch.c: the thread of a unix: handle that notices the end of its agent, and attaches to
 * the next one; to the first one, where `agent_optional` let the handle be opened before that came.
 *
 * client_watch_start -> turns of the thread -> client_watch_stop, by icms_close.
 *
 * A turn looks whether the agent ended and, where there is none, tries to attach. No call waits for
 * that: until links are exchanged (client_link_replace), calls answer what is absent. Between two
 * turns the thread sleeps outside of client_guarded, on the socket of the agent or until the next
 * attempt: a handle that failed does not wait for it. It alone replaces the link of a unix: handle,
 * so the socket is not closed while it sleeps on it. Lines for people are given to the program
 * between turns.
 */
#include <errno.h>
#include <stdio.h>

#include "base/bytes.h"
#include "base/check.h"
#include "client/client_int.h"

/* A line for people. */
struct watch_line {
    char text[CLIENT_LINE_BYTES];
};

/* The thread's. */
struct watch {
    struct icms *icms;
    int sock;               /* of the link; -1: there is none that is up                     */
    bool is_ended;          /* its end was seen there: answers are left to who waits for them */
    uint64_t next_ns;       /* no attempt before                                             */
    uint64_t wait_ns;       /* from the next attempt to the one after                        */
    uint64_t attached_ns;   /* when the handle attached; 0: in icms_open                     */
    bool attached;          /* this turn did                                                 */
    icms_err said;          /* why there is no agent, as far as it was said; OK: there is one */
    struct watch_line line; /* to be said; "": nothing                                   */
};

bool client_agent_may_come(icms_err err)
{
    return err == ICMS_NOT_FOUND || err == ICMS_CLOSED || icms_err_retry(err) != 0;
}

static void watch_absent_line(const struct icms *icms, const struct err_why *why,
                              struct watch_line *out_line)
{
    (void)snprintf(out_line->text, sizeof(out_line->text),
                   "unix:%s: no agent: %s; requests miss until there is one, which is then used",
                   icms->socket, why->text);
}

static void watch_attached(struct watch *w)
{
    struct icms *icms = w->icms;

    client_link_replace(icms);
    client_lock(icms);
    w->sock = icms->link->down ? -1 : icms->link->sock;
    client_unlock(icms);
    if (w->sock < 0)
        return; /* it is gone already, or cannot be watched */
    w->attached = true;
    w->attached_ns = client_now_ns();
    w->said = ICMS_OK;
    (void)snprintf(w->line.text, sizeof(w->line.text), "unix:%s: attached to the agent",
                   icms->socket);
}

/* There is no agent, as far as is known. */
static void watch_attach(struct watch *w)
{
    struct icms *icms = w->icms;
    struct err_why why = {{0}};
    icms_err err;

    w->next_ns = client_now_ns() + w->wait_ns;
    w->wait_ns = u64_min(2 * w->wait_ns, CLIENT_RETRY_NS_MAX);
    err = client_attach_unix(icms->socket, icms->options.buffer_bytes, CLIENT_REATTACH_MS, &why,
                             &icms->attaching);
    if (err == ICMS_OK) {
        watch_attached(w);
        return;
    }
    if (client_agent_may_come(err))
        err = ICMS_PEER_DOWN;
    client_lock(icms);
    icms->absent = err;
    client_unlock(icms);
    if (err != w->said) /* what calls answer has changed */
        watch_absent_line(icms, &why, &w->line);
    w->said = err;
}

static void watch_turn(void *arg)
{
    struct watch *w = arg;
    struct icms *icms = w->icms;
    bool absent;

    check(sys_event_drain(icms->watch_fd));
    client_lock(icms);
    if (icms->link != NULL && w->is_ended)
        client_reap(icms);
    absent = icms->link == NULL || icms->link->down;
    /* One that attaches clients and hangs up is not attached to faster than one that refuses. */
    if (absent && w->sock >= 0 && client_now_ns() - w->attached_ns >= CLIENT_RETRY_NS_MAX)
        w->wait_ns = CLIENT_RETRY_NS;
    w->sock = absent ? -1 : icms->link->sock;
    client_unlock(icms);
    if (absent && client_now_ns() >= w->next_ns && !atomic_load(&icms->watch_over))
        watch_attach(w);
}

/* What the agent that came does not have. */
static void watch_volume(void *arg)
{
    struct watch *w = arg;
    struct err_why why;

    client_lock(w->icms);
    if (client_volumes_unsaid(w->icms, &why))
        (void)snprintf(w->line.text, sizeof(w->line.text), "unix:%s: %s", w->icms->socket,
                       why.text);
    client_unlock(w->icms);
}

/* False: the handle failed. */
static bool watch_say(struct watch *w)
{
    while (w->line.text[0] != 0) {
        client_log(w->icms, w->line.text);
        w->line.text[0] = 0;
        if (w->attached && !client_guarded(w->icms, watch_volume, w))
            return false;
    }
    w->attached = false;
    return true;
}

static void *watch_run(void *arg)
{
    struct icms *icms = arg;
    struct watch w = {.icms = icms, .sock = -1, .wait_ns = CLIENT_RETRY_NS};

    if (icms->link == NULL)
        w.said = ICMS_PEER_DOWN; /* by client_watch_start */
    while (client_guarded(icms, watch_turn, &w) && watch_say(&w) && !atomic_load(&icms->watch_over))
        w.is_ended = (sys_wait(-1, w.sock, icms->watch_fd, w.sock >= 0 ? UINT64_MAX : w.next_ns) &
                      SYS_ENDED) != 0;
    return NULL;
}

icms_err client_watch_start(struct icms *icms, const struct err_why *why)
{
    struct watch_line line;

    if (icms->link == NULL) {
        watch_absent_line(icms, why, &line);
        client_log(icms, line.text);
    }
    icms->watch_fd = sys_event_new();
    if (icms->watch_fd < 0)
        return err_from_errno(errno);
    if (sys_thread_new(&icms->watcher, watch_run, icms))
        return ICMS_OK;
    sys_close(icms->watch_fd);
    icms->watch_fd = -1;
    return ICMS_NO_MEMORY;
}

void client_watch_stop(struct icms *icms)
{
    int fd = icms->watch_fd;

    if (fd < 0)
        return;
    atomic_store(&icms->watch_over, true);
    sys_event_raise(fd);
    sys_thread_join(icms->watcher);
    client_lock(icms); /* calls that are under way may be in client_watch_wake */
    icms->watch_fd = -1;
    client_unlock(icms);
    sys_close(fd);
}

void client_watch_wake(struct icms *icms)
{
    if (icms->watch_fd >= 0)
        sys_event_raise(icms->watch_fd);
}
