/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/guard.c: a failed check() in a unix: handle ends the handle and not the process.
 *
 * Any thread. client_guarded() runs what a call does. A check that fails meanwhile on this thread
 * ends in guard_caught(): it marks the handle as failed, wakes every thread that sleeps in it, and
 * jumps back to client_guarded(), which returns false. Other threads in calls of the handle jump as
 * well, when they take its lock or wake up next: client_lock(), client_wait().
 *
 * Why the jump is sound:
 * - It leaves frames of libicms only: nothing in there calls back into the program.
 * - setjmp() stands in guard_run() alone, which has no variable of its own that changes.
 * - The handle's lock is the only lock that is held across a check, and its holder is known
 *   (client_guard.locked). Threads that libicms makes for a unix: handle, that of watch.c and those
 *   that copy to devices (src/device), come here as any thread does.
 * - What the frames held lies in the handle: a link that is being made (icms.attaching), the socket
 *   of a status. What they left half changed is not looked at again: who finds the handle failed
 *   uses none of its lists, operations, rings or staging memory.
 *
 * OPEN -> FAILED, and nothing leads back. A failed handle has its lock, its pool of requests, its
 * event and its memory, which stays mapped. A request is ended by the thread that asks for it, once
 * no thread is inside any more (icms.inside): until then one may still copy into the memory of the
 * request that it runs. What is inside leaves without waiting, but for an attempt to attach and a
 * status, which have deadlines. icms_close() frees everything.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <time.h>

#include "base/check.h"
#include "client/client_int.h"

/* In icms.inside, beside the number of threads. */
#define GUARD_FAILED ((uint32_t)1 << 31)

/* How often somebody looks who waits until no thread is inside. */
#define GUARD_IDLE_NS 1000000

/* One call of a unix: handle; on its thread's stack. */
struct client_guard {
    struct check_catch catch_; /* of this thread                                    */
    jmp_buf out;               /* back to guard_run                                 */
    struct icms *icms;
    bool locked;    /* this thread holds the handle's lock                          */
    bool first;     /* its check was the first one to fail: it logs                 */
    char line[512]; /* what it logs                                                 */
};

/* The guard of this thread's call; NULL: handles that are not guarded. */
static struct client_guard *guard_of(const struct icms *icms)
{
    struct check_catch *catch_ = icms->guarded ? check_catch_get() : NULL;

    return catch_ == NULL ? NULL : container_of(catch_, struct client_guard, catch_);
}

/* A check failed in it. */
static bool client_failed(const struct icms *icms)
{
    return (atomic_load(&icms->inside) & GUARD_FAILED) != 0;
}

/* The agent may forget this client, unless the program reads blocks in place: then it goes on
 * keeping them. Lock. */
static void guard_cut(struct icms *icms)
{
    struct client_link *link = icms->link;

    if (link != NULL && link->sock >= 0 && link->leases == 0)
        sys_hangup(link->sock);
}

/* OPEN -> FAILED. Lock. */
static void guard_fail(struct icms *icms)
{
    struct client_link *link = icms->link;

    (void)pthread_cond_broadcast(&icms->changed);
    sys_event_raise(icms->wake_fd);
    /* The event is readable for as long as icms_poll has something, and for no other reason. */
    sys_event_raise(icms->notify_fd);
    sys_set_remove(icms->epoll_fd, icms->timer_fd);
    if (link != NULL) {
        sys_set_remove(icms->epoll_fd, link->client_event);
        sys_set_remove(icms->epoll_fd, link->sock);
    }
    guard_cut(icms);
}

static _Noreturn void guard_out(struct client_guard *guard)
{
    if (guard->locked)
        (void)pthread_mutex_unlock(&guard->icms->lock);
    guard->locked = false;
    longjmp(guard->out, 1);
}

/* A check failed. Nothing in here is one. */
__attribute__((noreturn)) static void guard_caught(struct check_catch *self, const char *file,
                                                   int line, const char *function, const char *text)
{
    struct client_guard *guard = container_of(self, struct client_guard, catch_);
    struct icms *icms = guard->icms;

    if (!guard->locked)
        guard->locked = pthread_mutex_lock(&icms->lock) == 0;
    if ((atomic_fetch_or(&icms->inside, GUARD_FAILED) & GUARD_FAILED) == 0) {
        guard->first = true;
        (void)snprintf(guard->line, sizeof(guard->line),
                       "unix:%s: closed after an internal error of libicms; requests miss until it "
                       "is opened again; please report it: version=%s at=%s:%d function=%s "
                       "check=\"%s\"",
                       icms->socket, icms_version(), file, line, function, text);
        guard_fail(icms);
    }
    guard_out(guard);
}

static bool guard_run(struct client_guard *guard, void (*inside)(void *arg), void *arg)
{
    if (setjmp(guard->out) != 0)
        return false;
    inside(arg);
    return true;
}

bool client_guarded(struct icms *icms, void (*inside)(void *arg), void *arg)
{
    void (*log)(void *arg, const char *line) = icms->options.log;
    void *log_arg = icms->options.log_arg;
    struct client_guard guard;
    bool whole;

    if (!icms->guarded) {
        inside(arg);
        return true;
    }
    if ((atomic_fetch_add(&icms->inside, 1) & GUARD_FAILED) != 0) {
        (void)atomic_fetch_sub(&icms->inside, 1);
        return false;
    }
    guard.catch_.caught = guard_caught;
    guard.icms = icms;
    guard.locked = guard.first = false;
    check_catch_set(&guard.catch_);
    whole = guard_run(&guard, inside, arg);
    check_catch_set(NULL);
    (void)atomic_fetch_sub(&icms->inside, 1); /* the handle may be freed from here on */
    if (guard.first)
        client_log_to(icms, log, log_arg, guard.line);
    return whole;
}

/* ---- the lock ------------------------------------------------------------------------------- */

/* Who has the lock of a failed handle gives it back and leaves. */
static void guard_look(struct icms *icms, struct client_guard *guard)
{
    if (guard != NULL && client_failed(icms))
        guard_out(guard);
}

void client_lock(struct icms *icms)
{
    struct client_guard *guard = guard_of(icms);
    int error = pthread_mutex_lock(&icms->lock);

    if (guard != NULL)
        guard->locked = error == 0;
    check(error == 0);
    guard_look(icms, guard);
}

bool client_trylock(struct icms *icms)
{
    struct client_guard *guard = guard_of(icms);

    if (pthread_mutex_trylock(&icms->lock) != 0)
        return false;
    if (guard != NULL)
        guard->locked = true;
    guard_look(icms, guard);
    return true;
}

void client_unlock(struct icms *icms)
{
    struct client_guard *guard = guard_of(icms);

    if (guard != NULL)
        guard->locked = false;
    (void)pthread_mutex_unlock(&icms->lock);
}

void client_wait(struct icms *icms)
{
    int error = pthread_cond_wait(&icms->changed, &icms->lock);

    check(error == 0);
    guard_look(icms, guard_of(icms));
}

void client_wait_until(struct icms *icms, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                             .tv_nsec = (long)(until_ns % 1000000000u)};
    int error = pthread_cond_timedwait(&icms->changed, &icms->lock, &until);

    check(error == 0 || error == ETIMEDOUT);
    guard_look(icms, guard_of(icms));
}

/* ---- handles that failed -------------------------------------------------------------------- */

static bool guard_idle(const struct icms *icms)
{
    return (atomic_load(&icms->inside) & ~GUARD_FAILED) == 0;
}

bool client_idle_wait(const struct icms *icms, uint64_t until_ns)
{
    while (!guard_idle(icms)) {
        if (client_now_ns() >= until_ns)
            return false;
        sys_sleep(GUARD_IDLE_NS);
    }
    return true;
}

/* RUN -> OVER. Its memory is the caller's again: no thread is inside. Lock. */
static void failed_request_over(struct icms_request *request)
{
    if (request->state == REQUEST_OVER)
        return;
    request->state = REQUEST_OVER;
    request->closed = true;
    for (size_t i = 0; i < request->count && request->blocks != NULL; i++) {
        request->blocks[i].status = ICMS_CLOSED;
        request->blocks[i].reason = ICMS_MISS_NONE;
        request->blocks[i].source = ICMS_SOURCE_NONE;
    }
}

/* Whether no device uses the memory of a request any more, or its deadline has passed, as in any
 * handle. Lock. */
static bool failed_request_is_quiet(const struct icms_request *request)
{
    return client_devices_halt(request->icms) || atomic_load(&request->copy_count) == 0 ||
           client_now_ns() >= request->deadline_ns;
}

struct icms_request *client_failed_poll(struct icms *icms)
{
    struct icms_request *found = NULL;
    bool busy = false;

    if (!guard_idle(icms))
        return NULL; /* the event stays readable */
    client_lock(icms);
    for (uint32_t i = 0; i < CLIENT_REQUESTS && found == NULL; i++) {
        struct icms_request *request = &icms->requests[i];

        if (request->magic != CLIENT_REQUEST_MAGIC || !request->started || request->returned ||
            request->waited)
            continue;
        if (failed_request_is_quiet(request))
            found = request;
        else
            busy = true;
    }
    if (found != NULL) {
        failed_request_over(found);
        found->returned = true;
    } else if (!busy) {
        (void)!sys_event_drain(icms->notify_fd);
    }
    client_unlock(icms);
    if (found == NULL && busy)
        sys_sleep(GUARD_IDLE_NS); /* the event stays readable: who polls for it does not spin */
    return found;
}

/* Ends a request that no thread and no device uses any more. True when it is over: also one that
 * was before the handle failed, whoever is still inside. Lock. */
static bool failed_request_ends(struct icms_request *request)
{
    if (request->state != REQUEST_OVER && guard_idle(request->icms) &&
        failed_request_is_quiet(request))
        failed_request_over(request);
    return request->state == REQUEST_OVER;
}

bool client_failed_wait(struct icms_request *request, uint64_t until_ns)
{
    struct icms *icms = request->icms;
    bool over;

    client_lock(icms);
    request->waited = true; /* icms_poll keeps off */
    client_unlock(icms);
    for (;;) {
        client_lock(icms);
        over = failed_request_ends(request);
        if (over || client_now_ns() >= until_ns)
            break;
        client_unlock(icms);
        sys_sleep(GUARD_IDLE_NS);
    }
    request->waited = false;
    if (over) {
        request->returned = true;
    } else {
        sys_event_raise(icms->notify_fd); /* it is icms_poll's again */
    }
    client_unlock(icms);
    return over;
}

void client_failed_sync(struct icms_request *request)
{
    struct icms *icms = request->icms;
    bool quiet;

    for (;;) {
        client_lock(icms);
        quiet = failed_request_is_quiet(request);
        client_unlock(icms);
        if (quiet)
            return;
        sys_sleep(GUARD_IDLE_NS);
    }
}

bool client_failed_over(struct icms_request *request)
{
    struct icms *icms = request->icms;
    bool over;

    client_lock(icms);
    over = failed_request_ends(request);
    client_unlock(icms);
    return over;
}

void client_failed_end(struct icms_request *request)
{
    struct icms *icms = request->icms;

    client_lock(icms);
    request->magic = 0;
    client_unlock(icms);
}

void client_failed_lease_give(struct client_link *link, uint32_t lease)
{
    struct icms *icms = link->icms;

    client_lock(icms);
    if (client_lease_back(link, lease) && link == icms->link)
        guard_cut(icms);
    client_unlock(icms);
}
