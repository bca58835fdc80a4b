/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/request.c: requests: run, wait, reap, give up.
 *
 * A request is run by one thread at a time: client_request_run moves it as far as it goes. Threads
 * that have to wait elect one of them (icms.reaping) that sleeps in sys_wait on the agent's event
 * and socket; the others sleep on icms.changed. Any thread that holds the lock may reap.
 *
 *   client_request_init -> client_request_run -> [client_request_finish | icms_poll] -> over
 *
 * Every block gets its status by the request's deadline: from the arena, from the agent, or, when
 * the agent lets the deadline and the grace pass, from here. Then its operation becomes LOST: lease
 * and staging memory stay taken until the agent's late answer, since it may still use them.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "client/client_int.h"

#define REAP_ENTRIES 64

/* More answers than this of one reactor while the lock is held, when nothing can be sent, are none:
 * an operation has one of each, and parts take half of the ring. Twice as many are left alone. */
#define REAP_ANSWERS (2 * (CLIENT_OPS + SHM_RING_ENTRIES / 2))

/* A silent agent is woken at most this often, to see whether it looks at the ring again. */
#define NUDGE_NS ((uint64_t)10 * 1000 * 1000)

/* Who waits for room looks at least this often: leases are given back without a wake. */
#define WAIT_ROOM_NS ((uint64_t)10 * 1000 * 1000)

/* ---- waking --------------------------------------------------------------------------------- */

/* Asynchronous requests that have to act now or are over make the event readable. Lock. */
static void client_notify(struct icms *icms)
{
    if (icms->notify_raised || icms->polling != 0)
        return; /* who polls says what is left */
    icms->notify_raised = true;
    sys_event_raise(icms->notify_fd);
}

/* Puts an asynchronous request where icms_poll finds it. Lock. */
static void client_request_ready(struct icms_request *request)
{
    if (!request->async || request->waited || request->state != REQUEST_RUN)
        return;
    if (list_empty(&request->ready))
        list_push(&request->icms->ready, &request->ready);
    client_notify(request->icms);
}

void client_wake(struct icms *icms)
{
    check(pthread_cond_broadcast(&icms->changed) == 0);
    if (icms->reaping)
        sys_event_raise(icms->wake_fd);
    for (int i = 0; i < ROOM_COUNT; i++) {
        struct list *first = list_first(&icms->rooms[i]);

        if (first != NULL)
            client_request_ready(container_of(first, struct icms_request, queue));
    }
}

void client_copies_landed(struct icms *icms)
{
    list_for_each (at, &icms->under_way) {
        struct icms_request *request = container_of(at, struct icms_request, all);

        if (atomic_load_explicit(&request->copy_count, memory_order_relaxed) != 0)
            client_request_ready(request);
    }
    client_wake(icms);
}

/* Sets timer_fd to icms.expiry_ns when somebody polls. */
static void request_timer_set(struct icms *icms)
{
    if (icms->event_asked)
        check(sys_timer_set(icms->timer_fd, icms->expiry_ns));
}

void client_event_ask(struct icms *icms)
{
    icms->event_asked = true;
    request_timer_set(icms);
}

/* True when all that can be given up was: the caller's memory is not, before the agent says so. */
static bool request_waits_on(const struct icms_request *request, uint64_t now)
{
    return request->direct != 0 && request->direct == request->count - request->done &&
           now >= request->deadline_ns + CLIENT_GRACE_NS;
}

/* When a request has to be looked at again although nobody answers. Its thread. */
static uint64_t request_expiry_ns(const struct icms_request *request, uint64_t now)
{
    if (request->next < request->count && now < request->deadline_ns)
        return request->deadline_ns;
    if (request_waits_on(request, now))
        return now + CLIENT_GRACE_NS;
    return request->deadline_ns + CLIENT_GRACE_NS;
}

/* ---- operations ----------------------------------------------------------------------------- */

/* Gives an operation and what it holds back. Lock. */
static void client_op_free(struct icms *icms, struct client_op *op)
{
    struct client_link *link = icms->link;

    check(op->state != OP_FREE);
    if (op->lease != CLIENT_LEASE_NONE)
        client_lease_give(link, op->lease);
    if (op->staging_bytes != 0)
        staging_give(&link->staging, op->staging_offset, op->staging_bytes);
    if (op->buffer != NULL) {
        op->buffer->busy = false;
        if (op->buffer->given) {
            staging_give(&link->staging, op->buffer->offset, op->buffer->bytes);
            op->buffer->used = false;
        }
    }
    op->lease = CLIENT_LEASE_NONE;
    op->staging_bytes = 0;
    op->buffer = NULL;
    op->request = NULL;
    op->state = OP_FREE;
    list_remove(&op->part_link);
    list_remove(&op->link);
    list_push_front(&icms->ops_free, &op->link);
    icms->room_epoch++;
    for (int i = 0; i < ROOM_COUNT; i++)
        if (!list_empty(&icms->rooms[i])) {
            client_wake(icms);
            return;
        }
}

/* Takes one of the answers that an operation waits for. A flush tells of what was lost, whatever
 * else happened. A volume that one reactor does not find and another one does is there: the answers
 * of EXISTS_MANY lie behind its keys. Otherwise the first that is not OK counts. */
static void reap_merge(struct client_op *op, const struct shm_complete *answer)
{
    uint32_t status = op->answer.status;
    bool first = op->answer.tag == 0;

    if (op->account != NULL && answer->status == ICMS_IO)
        op->answer = *answer;
    else if (op->many && !first && (status == ICMS_OK || status == ICMS_NO_VOLUME) &&
             (answer->status == ICMS_OK || answer->status == ICMS_NO_VOLUME))
        op->answer.status = status == answer->status ? status : ICMS_OK;
    else if (status == ICMS_OK)
        op->answer = *answer;
}

/* More of a value has arrived. Only the last part counts: the request's thread takes all that is
 * new. */
static void reap_part(struct client_op *op, const struct shm_complete *part)
{
    if (op->state != OP_SENT || !op->parts)
        return;
    op->part = *part;
    if (list_empty(&op->part_link))
        list_push(&op->request->parted, &op->part_link);
    client_request_ready(op->request);
}

/* SENT -> ANSWERED, or LOST -> FREE, with the last answer. reactor: whose; UINT32_MAX: of none. */
static void reap_answer(struct icms *icms, uint32_t reactor, const struct shm_complete *answer)
{
    uint64_t index = answer->tag & UINT32_MAX;
    struct client_op *op;

    if (index >= CLIENT_OPS)
        return;
    op = &icms->ops[index];
    if (op->generation != answer->tag >> 32)
        return;
    if (reactor == icms->link->silent_reactor)
        icms->link->silent = false;
    if (answer->part != 0) {
        reap_part(op, answer);
        return;
    }
    if (op->state != OP_LOST && op->state != OP_SENT)
        return;
    reap_merge(op, answer);
    if (--op->left > 0)
        return;
    if (op->state == OP_LOST) {
        if (op->account != NULL && op->answer.status == ICMS_IO) /* the next flush says so */
            atomic_store(&op->account->lost, true);
        client_op_free(icms, op);
    } else {
        op->state = OP_ANSWERED;
        list_remove(&op->part_link);
        list_remove(&op->link);
        list_push(&op->request->answered, &op->link);
        client_request_ready(op->request);
    }
}

/* SENT -> ANSWERED without the agent. */
static void reap_lost(struct icms *icms, struct client_op *op)
{
    op->link_lost = true;
    op->left = 1;
    reap_answer(
        icms, UINT32_MAX,
        &(struct shm_complete){.tag = (uint64_t)op->generation << 32 | (uint64_t)(op - icms->ops)});
}

/* The agent is gone: everything it had is answered, nothing of it is used any more. */
static void reap_link_lost(struct icms *icms)
{
    icms->link->down = true;
    /* Their ends stay readable: who polls our event must not see them again and again. */
    sys_set_remove(icms->epoll_fd, icms->link->client_event);
    if (icms->link->sock >= 0)
        sys_set_remove(icms->epoll_fd, icms->link->sock);
    for (uint32_t i = 0; i < CLIENT_OPS; i++) {
        struct client_op *op = &icms->ops[i];

        if (op->state == OP_LOST)
            client_op_free(icms, op);
        else if (op->state == OP_SENT)
            reap_lost(icms, op);
    }
    list_for_each (link, &icms->under_way)
        client_request_ready(container_of(link, struct icms_request, all));
    client_wake(icms);
    icms->absent = ICMS_PEER_DOWN;
    client_watch_wake(icms);
}

/* Takes what a reactor's ring holds; how many answers came. sleep: until there is nothing left and
 * the reactor knows that it has to signal; else it goes on believing what it does about that. Lock.
 */
static uint32_t reap_ring(struct icms *icms, uint32_t reactor, bool sleep)
{
    struct client_link *link = icms->link;
    struct shm_ring *ring = &link->rings[reactor];
    struct shm_complete answers[REAP_ENTRIES];
    uint32_t came = 0, count = 0;

    do {
        if (link->down)
            break;
        if (came > REAP_ANSWERS ||
            shm_complete_take(ring, answers, REAP_ENTRIES, &count) != ICMS_OK) {
            reap_link_lost(icms);
            break;
        }
        for (uint32_t i = 0; i < count; i++)
            reap_answer(icms, reactor, &answers[i]);
        came += count;
    } while (count != 0 || (sleep && !shm_client_sleep(ring)));
    return came;
}

/* Takes what the rings hold, without a system call but for waking who waits for it. Lock. */
static void reap_rings(struct icms *icms, bool sleep)
{
    uint32_t came = 0;

    for (uint32_t r = 0; r < icms->link->reactor_count; r++)
        came += reap_ring(icms, r, sleep);
    if (came != 0)
        client_wake(icms);
}

/* What sys_wait saw of the agent's event and socket. Lock. */
static void reap_polled(struct icms *icms, uint32_t ready)
{
    struct client_link *link = icms->link;
    bool ended = (ready & SYS_ENDED) != 0;

    if (link->down)
        return;
    if ((ready & SYS_SIGNAL) != 0 && !sys_signal_take(link->client_event))
        ended = true; /* else it would be readable for ever */
    reap_rings(icms, true);
    if (ended && !link->down)
        reap_link_lost(icms);
}

void client_reap(struct icms *icms)
{
    uint32_t ready;

    if (icms->link->down)
        return;
    ready = sys_wait(icms->link->client_event, icms->link->sock, -1, 0);
    if (icms->reaping)
        ready &=
            ~(uint32_t)SYS_SIGNAL; /* left for who sleeps on it: it may not have woken up yet */
    reap_polled(icms, ready);
}

/* ---- running -------------------------------------------------------------------------------- */

/* When a reactor last looked at our rings. */
static uint64_t run_beat_ns(const struct client_link *link, uint32_t reactor)
{
    return atomic_load_explicit(&link->rings[reactor].qpair->agent_heartbeat_ns,
                                memory_order_relaxed);
}

/* The reactor whose last look is the longest ago. */
static uint32_t run_stalest(const struct client_link *link)
{
    uint32_t stalest = 0;

    for (uint32_t r = 1; r < link->reactor_count; r++)
        if (run_beat_ns(link, r) < run_beat_ns(link, stalest))
            stalest = r;
    return stalest;
}

/* Gives up what the agent has not answered: SENT -> LOST. Lock. */
static void run_lose_sent(struct icms_request *request, uint64_t now)
{
    struct client_link *link = request->link_used;
    uint32_t reactor = run_stalest(link);
    uint64_t beat = run_beat_ns(link, reactor);

    list_for_each_safe (at, &request->sent) {
        struct client_op *op = container_of(at, struct client_op, link);

        if (op->direct)
            continue; /* an agent in this process, which answers when nothing writes there */
        list_remove(&op->part_link);
        list_remove(&op->link);
        if (beat + CLIENT_SILENT_NS <= now && !link->silent) {
            link->silent = true;
            link->silent_reactor = reactor;
            link->silent_beat_ns = beat;
            link->nudge_ns = now;
        }
        op->state = OP_LOST;
        op->request = NULL;
        client_op_give_up(request, op, ICMS_DEADLINE);
    }
}

/* Gives up the blocks that were not sent. Its thread. */
static void run_cut(struct icms_request *request, icms_err why)
{
    while (request->next < request->count)
        client_block_give_up(request, request->next++, why);
}

void client_queue_leave(struct icms_request *request)
{
    if (list_empty(&request->queue))
        return;
    list_remove(&request->queue);
    client_wake(request->icms);
}

static void run_take_answers(struct icms_request *request)
{
    struct icms *icms = request->icms;
    struct list *at;

    client_lock(icms);
    while ((at = list_pop(&request->answered)) != NULL) {
        struct client_op *op = container_of(at, struct client_op, link);

        client_unlock(icms);
        client_op_take(request, op);
        client_lock(icms);
        client_op_free(icms, op);
    }
    client_unlock(icms);
}

/* Takes what has arrived of values; the answers that came meanwhile go before the next one. The
 * operation stays: its answer is taken by this thread. What arrives for a request that was
 * canceled, or is late, is dropped: while parts are left the request is not waited for. */
static void run_take_parts(struct icms_request *request)
{
    struct icms *icms = request->icms;
    uint32_t left = 0; /* what an agent adds meanwhile waits for the next turn */
    struct list *at;

    if (!request->parts)
        return;
    client_lock(icms);
    list_for_each (link, &request->parted)
        left++;
    for (; left > 0 && list_empty(&request->answered) && (at = list_pop(&request->parted)) != NULL;
         left--) {
        struct client_op *op = container_of(at, struct client_op, part_link);
        struct shm_complete part = op->part;
        bool is_wanted = !request->canceled;

        client_unlock(icms);
        if (is_wanted && client_now_ns() < request->deadline_ns)
            client_op_take_part(request, op, &part);
        client_lock(icms);
    }
    client_unlock(icms);
}

/* Why no further block may be sent; OK when they may. Lock. */
static icms_err run_obstacle(const struct icms_request *request, uint64_t now)
{
    if (request->canceled)
        return ICMS_CANCELED;
    if (request->link_used->down)
        return ICMS_PEER_DOWN;
    if (request->link_used->silent || now >= request->deadline_ns)
        return ICMS_DEADLINE;
    return ICMS_OK;
}

void client_request_run(struct icms_request *request)
{
    struct icms *icms = request->icms;
    enum client_step step = STEP_NEXT;
    icms_err obstacle;
    uint64_t now;

    check(request->magic == CLIENT_REQUEST_MAGIC && request->state == REQUEST_RUN);
    run_take_answers(request);
    client_copies_take(request);
    do {
        now = client_now_ns();
        client_lock(icms);
        obstacle = run_obstacle(request, now);
        if (now >= request->deadline_ns + CLIENT_GRACE_NS) {
            client_reap(icms);
            run_lose_sent(request, now);
            client_copies_lose(request, ICMS_DEADLINE);
        }
        if (request->canceled)
            client_copies_lose(request, ICMS_CANCELED);
        client_unlock(icms);
        if (obstacle != ICMS_OK)
            run_cut(request, obstacle);
        for (int i = 0; i < CLIENT_TURN_BLOCKS && request->next < request->count; i++) {
            step = client_send_next(request);
            if (step == STEP_WAIT)
                break;
        }
        run_take_answers(request);
        client_copies_take(request);
    } while (request->next < request->count && step == STEP_NEXT);

    run_take_parts(request);
    if (request->done == request->count)
        client_count(request);
    client_lock(icms);
    if (request->next == request->count)
        client_queue_leave(request);
    client_publish(icms);
    client_copies_end(request);
    if (request->done == request->count) {
        check(list_empty(&request->sent) && list_empty(&request->answered));
        check(list_empty(&request->copies) && list_empty(&request->parted));
        request->state = REQUEST_OVER;
        list_remove(&request->ready);
    }
    client_unlock(icms);
}

static void async_run_ready(struct icms *icms, bool until_over);

/* ---- waiting -------------------------------------------------------------------------------- */

/* True when the request's thread has something to do. Lock. */
static bool wait_is_over(const struct icms_request *request, uint64_t now)
{
    if (!list_empty(&request->answered) || !list_empty(&request->parted) ||
        client_copies_are_over(request))
        return true;
    if (now >= request->deadline_ns + CLIENT_GRACE_NS)
        return !request_waits_on(request, now);
    if (request->canceled && client_copies_are_started(request))
        return true;
    if (request->next == request->count)
        return false;
    if (request->copying)
        return run_obstacle(request, now) != ICMS_OK;
    return list_empty(&request->queue) || request->room_epoch != request->icms->room_epoch ||
           run_obstacle(request, now) != ICMS_OK;
}

/* Sleeps in sys_wait for everybody. Lock held on entry and return. */
static void wait_reap(struct icms *icms, uint64_t until_ns)
{
    int signal = icms->link->client_event, sock = icms->link->sock;
    uint32_t ready;

    icms->reaping = true;
    client_unlock(icms);
    ready = sys_wait(signal, sock, icms->wake_fd, until_ns);
    client_lock(icms);
    icms->reaping = false;
    if ((ready & SYS_WOKEN) != 0)
        check(sys_event_drain(icms->wake_fd));
    reap_polled(icms, ready);
    /* Whoever has nothing left to do leaves; another one has to sleep in poll now. */
    check(pthread_cond_broadcast(&icms->changed) == 0);
}

bool client_request_finish(struct icms_request *request, uint64_t until_ns)
{
    struct icms *icms = request->icms;

    while (request->state != REQUEST_OVER) {
        uint64_t now = client_now_ns();
        uint64_t wake_ns = u64_min(request_expiry_ns(request, now), until_ns);

        client_copies_look(request, wake_ns);
        client_lock(icms);
        reap_rings(icms, true); /* the end of the agent is seen by who sleeps in poll */
        if (!list_empty(&request->queue)) {
            /* Answers that nobody polls for hold the room that is waited for. */
            async_run_ready(icms, false);
            wake_ns = u64_min(wake_ns, now + WAIT_ROOM_NS);
        }
        while (!wait_is_over(request, now) && now < wake_ns) {
            if (icms->reaping || icms->link->down)
                client_wait_until(icms, wake_ns);
            else
                wait_reap(icms, wake_ns);
            now = client_now_ns();
        }
        if (!list_empty(&request->queue))
            request->room_epoch = icms->room_epoch;
        client_unlock(icms);
        client_request_run(request);
        if (now >= until_ns)
            break;
    }
    return request->state == REQUEST_OVER;
}

icms_err client_request_result(const struct icms_request *request)
{
    check(request->state == REQUEST_OVER);
    if (request->not_ok == 0)
        return ICMS_OK;
    if (request->op == SHM_OP_PRESTAGE)
        return request->hole_status;
    return request->peer_down == request->count ? ICMS_PEER_DOWN : ICMS_MISS;
}

/* ---- asynchronous requests ------------------------------------------------------------------ */

/* Room that is given back without a wake is for who is first in its queue. Lock. */
static bool async_is_first(const struct icms_request *request)
{
    for (int i = 0; i < ROOM_COUNT; i++)
        if (list_first(&request->icms->rooms[i]) == &request->queue)
            return true;
    return false;
}

/* Its thread lets go of a request: over, or where icms_poll finds it in time. Lock. */
static void async_release(struct icms_request *request)
{
    struct icms *icms = request->icms;

    check(request->async && request->held);
    request->held = false;
    if (request->state == REQUEST_OVER) {
        list_remove(&request->all);
        list_remove(&request->ready);
        if (!request->waited) { /* else who waits for it has it */
            list_push(&icms->over, &request->ready);
            client_notify(icms);
        }
        client_call_leave(icms);
    } else {
        uint64_t now = client_now_ns();

        request->expiry_ns = request_expiry_ns(request, now);
        if (async_is_first(request))
            request->expiry_ns = u64_min(request->expiry_ns, now + WAIT_ROOM_NS);
        if (request->expiry_ns < icms->expiry_ns) {
            icms->expiry_ns = request->expiry_ns;
            request_timer_set(icms);
        }
        if (wait_is_over(request, now))
            client_request_ready(request);
    }
    check(pthread_cond_broadcast(&icms->changed) == 0); /* who waits for it to be let go */
}

void client_async_begin(struct icms_request *request)
{
    struct icms *icms = request->icms;

    client_lock(icms);
    request->async = true;
    request->held = true;
    list_push(&icms->under_way, &request->all);
    client_unlock(icms);
    client_request_run(request);
    client_lock(icms);
    async_release(request);
    request->started = true; /* nothing fails from here on */
    client_unlock(icms);
}

bool client_async_wait(struct icms_request *request, uint64_t until_ns)
{
    struct icms *icms = request->icms;
    bool over;

    client_lock(icms);
    request->waited = true;
    while (request->held)
        client_wait(icms);
    over = request->state == REQUEST_OVER;
    if (!over) {
        request->held = true;
        request->waited = true;
        list_remove(&request->ready);
        client_unlock(icms);
        over = client_request_finish(request, until_ns);
        client_lock(icms);
        request->waited = over;
        async_release(request);
    }
    if (over)
        list_remove(&request->ready); /* icms_poll does not return it any more */
    request->returned = over;
    client_unlock(icms);
    return over;
}

void client_async_cancel(struct icms_request *request)
{
    struct icms *icms = request->icms;

    client_lock(icms);
    if (request->state == REQUEST_RUN && !request->canceled) {
        request->canceled = true;
        list_for_each (at, &request->sent) {
            struct client_op *op = container_of(at, struct client_op, link);
            struct shm_submit entry = {.tag = (uint64_t)op->generation << 32 |
                                              (uint64_t)(op - icms->ops),
                                       .op = SHM_OP_CANCEL};

            for (uint32_t r = 0; r < icms->link->reactor_count; r++)
                if (r == op->reactor || op->all)
                    (void)client_push_hint(icms, r, &entry);
        }
        client_publish(icms);
        client_request_ready(request);
        client_wake(icms); /* who waits for it */
    }
    client_unlock(icms);
}

/* Deadlines: what expired has something to do; the timer goes to the next one. Lock. */
static void poll_expire(struct icms *icms)
{
    uint64_t now = client_now_ns();

    if (now < icms->expiry_ns)
        return;
    if (icms->event_asked)
        check(sys_event_drain(icms->timer_fd));
    icms->expiry_ns = UINT64_MAX;
    list_for_each (at, &icms->under_way) {
        struct icms_request *request = container_of(at, struct icms_request, all);

        if (request->expiry_ns <= now)
            client_request_ready(request);
        else
            icms->expiry_ns = u64_min(icms->expiry_ns, request->expiry_ns);
    }
    request_timer_set(icms);
}

/* Runs what has something to do; until something is over when only that is wanted. Lock; not held
 * while a request runs. */
static void async_run_ready(struct icms *icms, bool until_over)
{
    struct list *at;

    while (!(until_over && !list_empty(&icms->over)) && (at = list_pop(&icms->ready)) != NULL) {
        struct icms_request *request = container_of(at, struct icms_request, ready);

        if (request->held || request->state != REQUEST_RUN)
            continue;
        request->held = true;
        client_unlock(icms);
        client_request_run(request);
        client_lock(icms);
        async_release(request);
    }
}

/* Looks into the rings first: only who finds nothing asks the kernel, which has to be quiet then.
 * Lock; not held while a request runs. */
static void poll_run(struct icms *icms)
{
    reap_rings(icms, false);
    poll_expire(icms);
    async_run_ready(icms, true);
    if (!list_empty(&icms->over) || icms->link == NULL)
        return;
    client_reap(icms);
    async_run_ready(icms, true);
}

/* There is no link, or its agent is being replaced: it is not touched here. What is ready or
 * expired must not keep the event readable until that is done. Lock; not held while a request runs.
 */
static void poll_restart(struct icms *icms)
{
    poll_expire(icms);
    async_run_ready(icms, true);
}

struct icms_request *client_async_poll(struct icms *icms)
{
    struct list *at = NULL;

    client_lock(icms);
    icms->polling++;
    if (icms->link != NULL && icms->state == ICMS_STATE_OPEN)
        poll_run(icms);
    else
        poll_restart(icms);
    at = list_pop(&icms->over);
    icms->polling--;
    if (!list_empty(&icms->over) || !list_empty(&icms->ready)) {
        client_notify(icms);
    } else if (at == NULL && icms->notify_raised) {
        check(sys_event_drain(icms->notify_fd));
        icms->notify_raised = false;
    }
    if (at != NULL)
        container_of(at, struct icms_request, ready)->returned = true;
    client_unlock(icms);
    return at == NULL ? NULL : container_of(at, struct icms_request, ready);
}

void client_quiesce(struct icms *icms)
{
    struct list *first;

    client_lock(icms);
    while ((first = list_first(&icms->under_way)) != NULL) {
        struct icms_request *request = container_of(first, struct icms_request, all);

        if (request->held) {
            client_wait(icms);
            continue;
        }
        request->held = true;
        client_unlock(icms);
        (void)client_request_finish(request, UINT64_MAX);
        client_lock(icms);
        async_release(request);
    }
    while (icms->calls != 0)
        client_wait(icms);
    client_unlock(icms);
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* A silent agent is woken and watched: once it looks at the ring again it gets requests again. */
static void call_listen(struct icms *icms)
{
    struct client_link *link = icms->link;
    uint64_t now = client_now_ns();

    client_reap(icms);
    if (!link->silent)
        return;
    if (run_beat_ns(link, link->silent_reactor) != link->silent_beat_ns) {
        link->silent = false;
        return;
    }
    if (now - link->nudge_ns >= NUDGE_NS) {
        link->nudge_ns = now;
        sys_event_raise(link->agent_events[link->silent_reactor]);
    }
}

icms_err client_call_begin(struct icms *icms)
{
    icms_err err = ICMS_OK;

    if (client_forked(icms))
        return ICMS_FORKED;
    client_lock(icms);
    while (icms->state == ICMS_STATE_RESTART)
        client_wait(icms);
    if (icms->link != NULL && icms->link->silent)
        call_listen(icms);
    if (icms->state == ICMS_STATE_CLOSING)
        err = ICMS_CLOSED;
    else if (icms->link == NULL || icms->link->down)
        err = icms->absent;
    else
        icms->calls++;
    client_unlock(icms);
    return err;
}

void client_call_look(struct icms *icms)
{
    client_lock(icms);
    client_reap(icms);
    client_unlock(icms);
}

void client_call_leave(struct icms *icms)
{
    check(icms->calls > 0);
    icms->calls--;
    if (icms->calls == 0 && (icms->state != ICMS_STATE_OPEN || icms->link->down))
        check(pthread_cond_broadcast(&icms->changed) == 0);
}

void client_call_end(struct icms *icms)
{
    client_lock(icms);
    client_call_leave(icms);
    client_unlock(icms);
}
