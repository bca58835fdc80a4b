/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/qpair.c: a client's rings at one reactor: entries become requests, answers go back.
 *
 * agent_qpair_init, _fini and _start are called by control threads; all else runs on the reactor's
 * loop.
 *
 * Life: FREE -> agent_qpair_start -> LIVE -> (BROKEN) -> agent_qpair_leave -> LEAVING, until its
 * last request is answered -> GONE (client.c) -> FREE.
 *
 * What a client writes is hostile: entries are copied out before they are looked at, own positions
 * are kept outside of its memory, numbers are bounded. A client that stops leaves at most
 * AGENT_CLIENT_REQS requests a reactor, which end by their deadlines, and its leases.
 *
 * Invariant: a request is in `free` or in `active`.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

static void qpair_run(struct agent_qpair *qpair);
static void qpair_leave_check(struct agent_qpair *qpair);

/* ---- completions ---------------------------------------------------------------------------- */

static void qpair_signal(struct agent_qpair *qpair)
{
    if (shm_complete_publish(&qpair->ring))
        loop_event_signal(qpair->client->client_event);
}

/* Takes entries later: not inside what runs now. */
static void qpair_run_msg(struct loop_msg *msg)
{
    struct agent_qpair *qpair = container_of(msg, struct agent_qpair, run_msg);

    qpair->run_sent = false;
    if (qpair->state == AGENT_QPAIR_LEAVING)
        qpair_leave_check(qpair);
    else
        qpair_run(qpair);
}

static void qpair_run_later(struct agent_qpair *qpair)
{
    if (qpair->run_sent)
        return;
    qpair->run_sent = true;
    loop_send(qpair->reactor->loop, &qpair->run_msg, qpair_run_msg);
}

/* Entries that nobody waits for. */
static bool qpair_is_hint(uint8_t op)
{
    return op == SHM_OP_TOUCH || op == SHM_OP_SUSPECT;
}

/* The others name a volume, or have their keys in staging memory. */
static bool qpair_has_key(uint8_t op)
{
    return op != SHM_OP_FLUSH && op != SHM_OP_EXISTS_MANY && op != SHM_OP_PRESTAGE;
}

/* Keys that an entry may have in staging memory; 0: it has none there. */
static uint32_t qpair_keys_max(uint8_t op)
{
    return op == SHM_OP_EXISTS_MANY ? SHM_MATCH_KEYS : op == SHM_OP_PRESTAGE ? SHM_HINT_KEYS : 0;
}

/* For `icms trace`. */
static void qpair_remember(const struct agent_req *req)
{
    struct agent_reactor *reactor = req->qpair->reactor;
    struct trace_entry entry = {.trace = req->trace,
                                .end_ns = reactor_now_ns(reactor),
                                .volume = req->shard->number,
                                .place = req->asked,
                                .bytes = req->op == SHM_OP_PUT ? req->bytes : 0,
                                .err = (icms_err)req->answer.status,
                                .reason = (enum icms_miss)req->answer.reason,
                                .op = req->op};

    if (qpair_has_key(req->op))
        entry.key = req->key;
    if (req->op == SHM_OP_GET && req->answer.status == ICMS_OK)
        entry.bytes = req->answer.value_bytes;
    trace_add(&reactor->book, &entry);
}

static void qpair_req_free(struct agent_req *req)
{
    struct agent_qpair *qpair = req->qpair;
    bool was_full = list_empty(&qpair->free);

    if (req->shard != NULL && !qpair_is_hint(req->op)) {
        qpair_remember(req);
        agent_user_count(req);
    }
    agent_req_state_set(req, AGENT_REQ_FREE);
    list_remove(&req->qpair_link);
    list_push(&qpair->free, &req->qpair_link);
    counter_add_release(&qpair->reactor->answered, 1);
    if (qpair->state == AGENT_QPAIR_LEAVING)
        qpair_leave_check(qpair);
    else if (was_full)
        qpair_run_later(qpair);
}

/* Counts an answer. */
static void qpair_count(const struct agent_req *req)
{
    struct agent_reactor *reactor = req->qpair->reactor;
    uint64_t ns = reactor_now_ns(reactor) - req->taken_ns;

    counter_add(&reactor->answers[req->op % AGENT_STATS_OPS][req->answer.status % AGENT_STATS_ERRS],
                1);
    if (req->op == SHM_OP_GET)
        hist_add(&reactor->get_ns, ns);
    else if (req->op == SHM_OP_PUT)
        hist_add(&reactor->put_ns, ns);
    else if (req->op == SHM_OP_EXISTS || req->op == SHM_OP_EXISTS_MANY)
        hist_add(&reactor->exists_ns, ns);
}

static void qpair_answer(struct agent_req *req)
{
    struct agent_qpair *qpair = req->qpair;

    check(req->state == AGENT_REQ_ANSWER);
    if (!qpair_is_hint(req->op))
        qpair_count(req);
    if (qpair->state == AGENT_QPAIR_LIVE && !qpair_is_hint(req->op)) {
        if (!list_empty(&qpair->wait_ring) || !shm_complete_push(&qpair->ring, &req->answer)) {
            agent_req_state_set(req, AGENT_REQ_WAIT_RING);
            list_push(&qpair->wait_ring, &req->waiter.link);
            return;
        }
        qpair_signal(qpair);
    }
    qpair_req_free(req);
}

/* Whether it gets there or not, the answer comes. To copy a plain value takes less than a wake for
 * each piece: its client is woken for parts while it waits for nothing else here, so that it has
 * nothing else to do meanwhile. */
static void qpair_part(struct agent_req *req, const struct shm_complete *part)
{
    struct agent_qpair *qpair = req->qpair;
    bool is_alone = qpair->active.next == qpair->active.prev;

    if ((is_alone || req->shard->spec.encrypted) && qpair->state == AGENT_QPAIR_LIVE &&
        list_empty(&qpair->wait_ring) && shm_complete_part(&qpair->ring, part))
        qpair_signal(qpair);
}

/* The client took completions, perhaps. */
static void qpair_ring_retry(struct agent_qpair *qpair)
{
    struct list *link;
    bool pushed = false;

    while ((link = list_first(&qpair->wait_ring)) != NULL) {
        struct agent_req *req = container_of(link, struct agent_req, waiter.link);

        if (qpair->state == AGENT_QPAIR_LIVE && !shm_complete_push(&qpair->ring, &req->answer))
            break;
        pushed = true;
        list_remove(&req->waiter.link);
        qpair_req_free(req);
    }
    if (pushed && qpair->state == AGENT_QPAIR_LIVE)
        qpair_signal(qpair);
}

/* ---- entries -------------------------------------------------------------------------------- */

/* The request of this tag ends early, if there is one. */
static void qpair_cancel(struct agent_qpair *qpair, uint64_t tag)
{
    list_for_each (link, &qpair->active) {
        struct agent_req *req = container_of(link, struct agent_req, qpair_link);

        if (req->tag == tag) {
            agent_req_cancel(req, ICMS_CANCELED);
            return;
        }
    }
}

/* Whether the key of an entry belongs to this reactor. */
static bool qpair_owns(const struct agent_qpair *qpair, const struct shm_submit *entry)
{
    struct key key = {.length = entry->key_length};

    memcpy(key.bytes, entry->key, entry->key_length);
    return agent_shard_owns(&qpair->reactor->shards[entry->volume], &key);
}

/* An entry that needs a request: checks what does not depend on the operation. */
static icms_err qpair_entry_check(const struct agent_qpair *qpair, const struct shm_submit *entry)
{
    const struct agent *agent = qpair->reactor->agent;
    uint32_t keys_max = qpair_keys_max(entry->op);
    uint64_t keys_bytes = entry->op == SHM_OP_EXISTS_MANY && (entry->flags & SHM_FLAG_ESTIMATE) != 0
                              ? SHM_ESTIMATE_BYTES(entry->bytes)
                              : SHM_MATCH_BYTES(entry->bytes);

    if (entry->op < SHM_OP_GET || entry->op > SHM_OP_PRESTAGE)
        return ICMS_INVALID;
    if (entry->volume >= agent->volume_count || (qpair->client->volumes >> entry->volume & 1) == 0)
        return ICMS_NO_VOLUME;
    if (keys_max != 0 && (entry->bytes == 0 || entry->bytes > keys_max ||
                          entry->offset > qpair->ring.staging_bytes ||
                          keys_bytes > qpair->ring.staging_bytes - entry->offset))
        return ICMS_INVALID;
    if (qpair_has_key(entry->op) && (entry->key_length < 1 || entry->key_length > LIMIT_KEY_BYTES))
        return ICMS_KEY_SIZE;
    if (qpair_has_key(entry->op) && !qpair_owns(qpair, entry))
        return ICMS_INVALID;
    if (entry->op == SHM_OP_GET && entry->lease >= SHM_LEASES && entry->lease != SHM_SLOT_NONE)
        return ICMS_INVALID;
    if ((entry->flags & SHM_FLAG_DIRECT) != 0 &&
        !atomic_load_explicit(&qpair->client->trusted, memory_order_relaxed))
        return ICMS_INVALID;
    if (atomic_load_explicit(&agent->draining, memory_order_relaxed))
        return ICMS_CLOSED;
    return ICMS_OK;
}

static uint64_t qpair_deadline_ns(struct agent_qpair *qpair, const struct shm_submit *entry)
{
    const struct agent_opts *opts = &qpair->reactor->agent->opts;
    uint64_t now_ns = reactor_now_ns(qpair->reactor);
    bool loads = entry->op == SHM_OP_GET || entry->op == SHM_OP_EXISTS ||
                 entry->op == SHM_OP_EXISTS_MANY || entry->op == SHM_OP_SUSPECT ||
                 entry->op == SHM_OP_PRESTAGE;
    uint64_t default_ms = loads ? opts->load_deadline_ms : opts->store_deadline_ms;

    if (entry->deadline_ns == 0)
        return now_ns + default_ms * 1000000;
    return u64_min(entry->deadline_ns, now_ns + AGENT_DEADLINE_MAX_NS);
}

/* Starts the request of an entry. */
static void qpair_entry_begin(struct agent_qpair *qpair, const struct shm_submit *entry)
{
    struct agent_req *req = container_of(list_pop(&qpair->free), struct agent_req, qpair_link);
    icms_err err = qpair_entry_check(qpair, entry);

    list_push(&qpair->active, &req->qpair_link);
    counter_add(&qpair->reactor->requests, 1);
    req->tag = entry->tag;
    req->op = entry->op;
    req->flags = entry->flags;
    req->identity = entry->identity;
    req->offset = entry->offset;
    req->aside = entry->aside;
    req->bytes = entry->bytes;
    req->lease = entry->lease;
    req->taken_ns = reactor_now_ns(qpair->reactor);
    req->deadline_ns = qpair_deadline_ns(qpair, entry);
    req->key = (struct key){.length = entry->key_length};
    req->answer = (struct shm_complete){.tag = entry->tag};
    list_init(&req->waiter.link);
    req->asked = TRACE_NOWHERE;
    trace_begin(&req->trace, AGENT_REQ_NEW, req->taken_ns);
    if (err != ICMS_OK) {
        req->shard = NULL;
        req->answer.status = err;
        agent_req_state_set(req, AGENT_REQ_ANSWER);
        qpair_answer(req);
        return;
    }
    if (qpair_has_key(entry->op))
        memcpy(req->key.bytes, entry->key, entry->key_length);
    req->shard = &qpair->reactor->shards[entry->volume];
    agent_req_state_set(req, AGENT_REQ_NEW);
    agent_req_begin(req);
}

/* Bytes that an entry may make us copy or verify; looking for a key costs about what a KiB does,
 * and for the request of a tag what all of them do. */
static uint64_t qpair_entry_bytes(const struct agent_qpair *qpair, const struct shm_submit *entry)
{
    const struct agent *agent = qpair->reactor->agent;

    if (entry->op == SHM_OP_CANCEL)
        return AGENT_CLIENT_REQS * AGENT_KEY_COST_BYTES;
    if (qpair_keys_max(entry->op) != 0)
        return u64_min(entry->bytes, qpair_keys_max(entry->op)) * AGENT_KEY_COST_BYTES;
    if (entry->volume >= agent->volume_count ||
        (entry->op != SHM_OP_PUT && entry->op != SHM_OP_SUSPECT))
        return 0;
    return agent->volumes[entry->volume].stored_bytes_max;
}

static void qpair_entry(struct agent_qpair *qpair, const struct shm_submit *entry)
{
    if (entry->op == SHM_OP_CANCEL)
        qpair_cancel(qpair, entry->tag);
    else
        qpair_entry_begin(qpair, entry);
}

/* What it wrote makes no sense: nothing of it is looked at any more. */
static void qpair_break(struct agent_qpair *qpair)
{
    qpair->state = AGENT_QPAIR_BROKEN;
    counter_add(&qpair->reactor->hostile, 1);
    qpair_ring_retry(qpair);
}

static void qpair_heartbeat_set(struct agent_qpair *qpair)
{
    atomic_store_explicit(&qpair->ring.qpair->agent_heartbeat_ns, reactor_now_ns(qpair->reactor),
                          memory_order_relaxed);
}

/* Takes entries while there are requests for them. */
static void qpair_run(struct agent_qpair *qpair)
{
    struct shm_submit entries[AGENT_TAKE_MAX];
    uint64_t bytes = 0;

    for (int round = 0; qpair->state == AGENT_QPAIR_LIVE; round++) {
        uint32_t space = 0, count;

        list_for_each (link, &qpair->free)
            if (++space == AGENT_TAKE_MAX)
                break;
        qpair_heartbeat_set(qpair);
        if (space == 0)
            return; /* qpair_req_free goes on */
        if (round == AGENT_TAKE_ROUND || bytes >= AGENT_TAKE_BYTES) {
            qpair_run_later(qpair);
            return;
        }
        if (shm_submit_take(&qpair->ring, entries, space, &count) != ICMS_OK) {
            qpair_break(qpair);
            return;
        }
        for (uint32_t i = 0; i < count; i++) {
            bytes += qpair_entry_bytes(qpair, &entries[i]);
            qpair_entry(qpair, &entries[i]);
        }
        if (count == 0 && shm_agent_sleep(&qpair->ring))
            return; /* the event wakes us */
    }
}

static void qpair_event(struct loop_op *op)
{
    struct agent_qpair *qpair = container_of(op, struct agent_qpair, event_op);

    if (qpair->state == AGENT_QPAIR_LEAVING) {
        qpair_leave_check(qpair);
        return;
    }
    if (op->err != ICMS_OK || qpair->state != AGENT_QPAIR_LIVE)
        return;
    loop_event_wait(qpair->reactor->loop, &qpair->event_op, qpair->event, qpair_event);
    qpair_ring_retry(qpair);
    qpair_run(qpair);
}

void agent_qpair_heartbeat(struct agent_qpair *qpair)
{
    if (qpair->state != AGENT_QPAIR_LIVE)
        return;
    qpair_ring_retry(qpair);
    qpair_run(qpair); /* hints come without a wake */
}

bool agent_qpair_is_full(const struct agent_qpair *qpair)
{
    return qpair->state == AGENT_QPAIR_LIVE && !list_empty(&qpair->wait_ring);
}

/* ---- life ----------------------------------------------------------------------------------- */

static void qpair_start(struct loop_msg *msg)
{
    struct agent_qpair *qpair = container_of(msg, struct agent_qpair, start_msg);

    qpair->state = AGENT_QPAIR_LIVE;
    loop_event_wait(qpair->reactor->loop, &qpair->event_op, qpair->event, qpair_event);
    qpair_run(qpair);
}

void agent_qpair_start(struct agent_qpair *qpair)
{
    loop_send(qpair->reactor->loop, &qpair->start_msg, qpair_start);
}

/* Goes on with its end when nothing of it is in flight. */
static void qpair_leave_check(struct agent_qpair *qpair)
{
    if (!list_empty(&qpair->active) || loop_op_busy(&qpair->event_op) || qpair->run_sent)
        return;
    qpair->state = AGENT_QPAIR_GONE;
    qpair->left(qpair);
}

/* What a client said right before its end still counts, as far as it costs no more than a turn:
 * what it used, and what it found damaged. */
static void qpair_take_hints(struct agent_qpair *qpair)
{
    struct shm_submit entries[AGENT_TAKE_MAX];
    uint32_t count = AGENT_TAKE_MAX;
    uint64_t bytes = 0;

    for (int i = 0; i < SHM_RING_ENTRIES / AGENT_TAKE_MAX && count == AGENT_TAKE_MAX; i++) {
        if (shm_submit_take(&qpair->ring, entries, AGENT_TAKE_MAX, &count) != ICMS_OK)
            return;
        for (uint32_t k = 0; k < count && !list_empty(&qpair->free); k++) {
            if (!qpair_is_hint(entries[k].op) || bytes >= AGENT_TAKE_BYTES)
                continue;
            bytes += qpair_entry_bytes(qpair, &entries[k]);
            qpair_entry_begin(qpair, &entries[k]);
        }
    }
}

void agent_qpair_leave(struct agent_qpair *qpair, void (*left)(struct agent_qpair *qpair))
{
    if (qpair->state == AGENT_QPAIR_LIVE)
        qpair_take_hints(qpair);
    qpair->left = left;
    qpair->state = AGENT_QPAIR_LEAVING;
    qpair_ring_retry(qpair);
    list_for_each_safe (link, &qpair->active)
        agent_req_cancel(container_of(link, struct agent_req, qpair_link), ICMS_CANCELED);
    if (loop_op_busy(&qpair->event_op))
        loop_op_cancel(&qpair->event_op);
    if (qpair->state == AGENT_QPAIR_LEAVING)
        qpair_leave_check(qpair);
}

icms_err agent_qpair_init(struct agent_qpair *qpair)
{
    icms_err err = loop_event_new(qpair->reactor->agent->env, LOOP_EVENT_WAIT, &qpair->event);

    if (err != ICMS_OK)
        return err;
    qpair->reqs = calloc(AGENT_CLIENT_REQS, sizeof(qpair->reqs[0]));
    if (qpair->reqs == NULL)
        return ICMS_NO_MEMORY;
    list_init(&qpair->free);
    list_init(&qpair->active);
    list_init(&qpair->wait_ring);
    for (int i = 0; i < AGENT_CLIENT_REQS; i++) {
        qpair->reqs[i].qpair = qpair;
        qpair->reqs[i].done = qpair_answer;
        qpair->reqs[i].part = qpair_part;
        list_push(&qpair->free, &qpair->reqs[i].qpair_link);
    }
    return ICMS_OK;
}

void agent_qpair_fini(struct agent_qpair *qpair)
{
    loop_event_free(&qpair->event);
    free(qpair->reqs);
    qpair->reqs = NULL;
}
