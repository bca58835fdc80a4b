/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/guest.c: attached processes: their rings, their requests, their end.
 *
 * agent_client_attach and _detach are called by control threads; all else runs on the guest's loop.
 *
 * Life of a guest: agent_client_attach -> LIVE -> (BROKEN) -> agent_client_detach -> LEAVING, until
 * its last request is back -> GONE, until its message went through every loop, so that none looks
 * at its lease table -> FREE.
 *
 * What a guest writes is hostile: entries are copied out before they are looked at, own positions
 * are kept outside of its memory, numbers are bounded. A guest that stops leaves at most
 * AGENT_GUEST_REQS requests, which end by their deadlines, and its leases.
 *
 * Invariants: the region stays mapped while a request of the guest is anywhere, and while a loop
 * may look at its leases; a request is in `free` or in `active`.
 */
#include "agent/agent_int.h"

#include <semaphore.h>
#include <stdlib.h>

static void guest_run(struct agent_guest *guest);
static void guest_leave_check(struct agent_guest *guest);

/* ---- completions ---------------------------------------------------------------------------- */

static void guest_signal(struct agent_guest *guest)
{
    if (shm_complete_publish(&guest->ring))
        loop_event_signal(guest->client_event);
}

/* Takes entries later: not inside what runs now. */
static void guest_run_msg(struct loop_msg *msg)
{
    struct agent_guest *guest = container_of(msg, struct agent_guest, run_msg);

    guest->run_sent = false;
    if (guest->state == AGENT_GUEST_LEAVING)
        guest_leave_check(guest);
    else
        guest_run(guest);
}

static void guest_run_later(struct agent_guest *guest)
{
    if (guest->run_sent)
        return;
    guest->run_sent = true;
    loop_send(guest->core->loop, &guest->run_msg, guest_run_msg);
}

static void guest_req_free(struct agent_req *req)
{
    struct agent_guest *guest = req->guest;
    bool was_full = list_empty(&guest->free);

    req->state = AGENT_REQ_FREE;
    list_remove(&req->guest_link);
    list_push(&guest->free, &req->guest_link);
    atomic_fetch_sub_explicit(&guest->agent->under_way, 1, memory_order_relaxed);
    if (guest->state == AGENT_GUEST_LEAVING)
        guest_leave_check(guest);
    else if (was_full)
        guest_run_later(guest);
}

/* Entries that nobody waits for. */
static bool guest_is_hint(uint8_t op)
{
    return op == SHM_OP_TOUCH || op == SHM_OP_SUSPECT;
}

/* Counts an answer. */
static void guest_count(const struct agent_req *req)
{
    struct agent_core *core = req->guest->core;
    uint64_t ns = core_now_ns(core) - req->taken_ns;

    counter_add(&core->answers[req->op % AGENT_STATS_OPS][req->answer.status % AGENT_STATS_ERRS],
                1);
    if (req->op == SHM_OP_GET)
        hist_add(&core->get_ns, ns);
    else if (req->op == SHM_OP_PUT)
        hist_add(&core->put_ns, ns);
    else if (req->op == SHM_OP_EXISTS || req->op == SHM_OP_EXISTS_MANY)
        hist_add(&core->exists_ns, ns);
}

void agent_guest_answer(struct agent_req *req)
{
    struct agent_guest *guest = req->guest;

    check(req->state == AGENT_REQ_ANSWER);
    if (!guest_is_hint(req->op))
        guest_count(req);
    if (guest->state == AGENT_GUEST_LIVE && !guest_is_hint(req->op)) {
        if (!list_empty(&guest->wait_ring) || !shm_complete_push(&guest->ring, &req->answer)) {
            req->state = AGENT_REQ_WAIT_RING;
            req->ring_full = true;
            list_push(&guest->wait_ring, &req->link);
            return;
        }
        guest_signal(guest);
    }
    if (req->cancel_out)
        req->over = true; /* guest_cancel_back frees it */
    else
        guest_req_free(req);
}

/* The guest took completions, perhaps. */
static void guest_ring_retry(struct agent_guest *guest)
{
    struct list *link;
    bool pushed = false;

    while ((link = list_first(&guest->wait_ring)) != NULL) {
        struct agent_req *req = container_of(link, struct agent_req, link);

        if (guest->state == AGENT_GUEST_LIVE && !shm_complete_push(&guest->ring, &req->answer))
            break;
        pushed = true;
        list_remove(&req->link);
        if (req->cancel_out)
            req->over = true;
        else
            guest_req_free(req);
    }
    if (pushed && guest->state == AGENT_GUEST_LIVE)
        guest_signal(guest);
}

/* ---- entries -------------------------------------------------------------------------------- */

static void guest_req_begin(struct loop_msg *msg)
{
    agent_req_begin(container_of(msg, struct agent_req, msg));
}

static void guest_cancel_back(struct loop_msg *msg)
{
    struct agent_req *req = container_of(msg, struct agent_req, cancel_msg);

    req->cancel_out = false;
    if (req->over)
        guest_req_free(req);
}

/* On the volume's loop, behind the request itself. */
static void guest_cancel_there(struct loop_msg *msg)
{
    struct agent_req *req = container_of(msg, struct agent_req, cancel_msg);

    if (req->there)
        agent_req_cancel(req, ICMS_CANCELED);
    loop_send(req->guest->core->loop, &req->cancel_msg, guest_cancel_back);
}

static void guest_req_cancel(struct agent_req *req)
{
    struct agent_core *core = req->guest->core;

    if (req->cancel_out || req->ring_full)
        return;
    if (req->volume->core == core) {
        agent_req_cancel(req, ICMS_CANCELED);
        return;
    }
    req->cancel_out = true;
    loop_send(req->volume->core->loop, &req->cancel_msg, guest_cancel_there);
}

/* The request of this tag ends early, if there is one. */
static void guest_cancel(struct agent_guest *guest, uint64_t tag)
{
    list_for_each (link, &guest->active) {
        struct agent_req *req = container_of(link, struct agent_req, guest_link);

        if (req->tag == tag) {
            guest_req_cancel(req);
            return;
        }
    }
}

/* The others name a volume, or have their keys in staging memory. */
static bool guest_has_key(uint8_t op)
{
    return op != SHM_OP_FLUSH && op != SHM_OP_EXISTS_MANY;
}

/* An entry that needs a request: checks what does not depend on the volume. */
static icms_err guest_entry_check(struct agent_guest *guest, const struct shm_submit *entry)
{
    if (entry->op < SHM_OP_GET || entry->op > SHM_OP_EXISTS_MANY)
        return ICMS_INVALID;
    if (entry->volume >= guest->agent->volume_count || (guest->volumes >> entry->volume & 1) == 0)
        return ICMS_NO_VOLUME;
    if (entry->op == SHM_OP_EXISTS_MANY &&
        (entry->bytes == 0 || entry->bytes > SHM_MATCH_KEYS ||
         entry->offset > guest->ring.staging_bytes ||
         SHM_MATCH_BYTES(entry->bytes) > guest->ring.staging_bytes - entry->offset))
        return ICMS_INVALID;
    if (guest_has_key(entry->op) && (entry->key_length < 1 || entry->key_length > LIMIT_KEY_BYTES))
        return ICMS_KEY_SIZE;
    if (entry->op == SHM_OP_GET && entry->lease >= SHM_LEASES && entry->lease != SHM_SLOT_NONE)
        return ICMS_INVALID;
    if ((entry->flags & SHM_FLAG_DIRECT) != 0 &&
        !atomic_load_explicit(&guest->trusted, memory_order_relaxed))
        return ICMS_INVALID;
    if (atomic_load_explicit(&guest->agent->draining, memory_order_relaxed))
        return ICMS_CLOSED;
    return ICMS_OK;
}

static uint64_t guest_deadline_ns(struct agent_guest *guest, const struct shm_submit *entry)
{
    const struct agent_opts *opts = &guest->agent->opts;
    uint64_t now_ns = core_now_ns(guest->core);
    bool loads =
        entry->op == SHM_OP_GET || entry->op == SHM_OP_EXISTS || entry->op == SHM_OP_EXISTS_MANY;
    uint64_t default_ms = loads ? opts->load_deadline_ms : opts->store_deadline_ms;

    if (entry->deadline_ns == 0)
        return now_ns + default_ms * 1000000;
    return u64_min(entry->deadline_ns, now_ns + AGENT_DEADLINE_MAX_NS);
}

/* Starts the request of an entry. */
static void guest_entry_begin(struct agent_guest *guest, const struct shm_submit *entry)
{
    struct agent_req *req = container_of(list_pop(&guest->free), struct agent_req, guest_link);
    icms_err err = guest_entry_check(guest, entry);

    list_push(&guest->active, &req->guest_link);
    atomic_fetch_add_explicit(&guest->agent->under_way, 1, memory_order_relaxed);
    counter_add(&guest->core->requests, 1);
    req->tag = entry->tag;
    req->op = entry->op;
    req->flags = entry->flags;
    req->offset = entry->offset;
    req->aside = entry->aside;
    req->bytes = entry->bytes;
    req->lease = entry->lease;
    req->taken_ns = core_now_ns(guest->core);
    req->deadline_ns = guest_deadline_ns(guest, entry);
    req->key = (struct key){.length = entry->key_length};
    req->over = req->cancel_out = req->there = req->ring_full = false;
    req->answer = (struct shm_complete){.tag = entry->tag};
    list_init(&req->link);
    if (err != ICMS_OK) {
        req->volume = NULL;
        req->answer.status = err;
        req->state = AGENT_REQ_ANSWER;
        agent_guest_answer(req);
        return;
    }
    if (guest_has_key(entry->op))
        memcpy(req->key.bytes, entry->key, entry->key_length);
    req->volume = &guest->agent->volumes[entry->volume];
    req->state = AGENT_REQ_NEW;
    if (req->volume->core == guest->core)
        agent_req_begin(req);
    else
        loop_send(req->volume->core->loop, &req->msg, guest_req_begin);
}

/* Bytes that an entry may make us copy or verify; looking for a key costs about what a KiB does. */
static uint64_t guest_entry_bytes(const struct agent_guest *guest, const struct shm_submit *entry)
{
    const struct agent *agent = guest->agent;

    if (entry->op == SHM_OP_EXISTS_MANY)
        return u64_min(entry->bytes, SHM_MATCH_KEYS) * 1024;
    if (entry->volume >= agent->volume_count ||
        (entry->op != SHM_OP_PUT && entry->op != SHM_OP_SUSPECT))
        return 0;
    return agent->volumes[entry->volume].stored_bytes_max;
}

static void guest_entry(struct agent_guest *guest, const struct shm_submit *entry)
{
    if (entry->op == SHM_OP_CANCEL)
        guest_cancel(guest, entry->tag);
    else
        guest_entry_begin(guest, entry);
}

/* What it wrote makes no sense: nothing of it is looked at any more. */
static void guest_break(struct agent_guest *guest)
{
    guest->state = AGENT_GUEST_BROKEN;
    counter_add(&guest->core->hostile, 1);
    guest_ring_retry(guest);
}

static void guest_beat_set(struct agent_guest *guest)
{
    atomic_store_explicit(&guest->ring.header->agent_beat_ns, core_now_ns(guest->core),
                          memory_order_relaxed);
}

/* Takes entries while there are requests for them. */
static void guest_run(struct agent_guest *guest)
{
    struct shm_submit entries[AGENT_TAKE_MAX];
    uint64_t bytes = 0;

    for (int round = 0; guest->state == AGENT_GUEST_LIVE; round++) {
        uint32_t room = 0, count;

        list_for_each (link, &guest->free)
            if (++room == AGENT_TAKE_MAX)
                break;
        guest_beat_set(guest);
        if (room == 0)
            return; /* guest_req_free goes on */
        if (round == AGENT_TAKE_ROUND || bytes >= AGENT_TAKE_BYTES) {
            guest_run_later(guest);
            return;
        }
        if (shm_submit_take(&guest->ring, entries, room, &count) != ICMS_OK) {
            guest_break(guest);
            return;
        }
        for (uint32_t i = 0; i < count; i++) {
            bytes += guest_entry_bytes(guest, &entries[i]);
            guest_entry(guest, &entries[i]);
        }
        if (count == 0 && shm_agent_sleep(&guest->ring))
            return; /* the event wakes us */
    }
}

static void guest_event(struct loop_op *op)
{
    struct agent_guest *guest = container_of(op, struct agent_guest, event_op);

    if (guest->state == AGENT_GUEST_LEAVING) {
        guest_leave_check(guest);
        return;
    }
    if (op->err != ICMS_OK || guest->state != AGENT_GUEST_LIVE)
        return;
    loop_event_wait(guest->core->loop, &guest->event_op, guest->agent_event, guest_event);
    guest_ring_retry(guest);
    guest_run(guest);
}

void agent_guest_beat(struct agent_guest *guest)
{
    if (guest->state != AGENT_GUEST_LIVE)
        return;
    guest_ring_retry(guest);
    guest_run(guest); /* hints come without a wake */
}

bool agent_guest_is_full(const struct agent_guest *guest)
{
    return guest->state == AGENT_GUEST_LIVE && !list_empty(&guest->wait_ring);
}

/* ---- attach --------------------------------------------------------------------------------- */

static void guest_start(struct loop_msg *msg)
{
    struct agent_guest *guest = container_of(msg, struct agent_guest, start_msg);

    guest->state = AGENT_GUEST_LIVE;
    loop_event_wait(guest->core->loop, &guest->event_op, guest->agent_event, guest_event);
    guest_run(guest);
}

/* Everything that the guest needs; gives back what it took when that fails. */
static icms_err guest_memory(struct agent_guest *guest, uint64_t staging_bytes, struct err_why *why)
{
    struct loop_env *env = guest->agent->env;
    struct shm_client_header *header;
    icms_err err;

    err = loop_region_new(env, "icms-client", shm_client_region_bytes(staging_bytes), false, why,
                          &guest->region);
    if (err == ICMS_OK)
        err = loop_event_new(env, LOOP_EVENT_WAIT, &guest->agent_event);
    if (err == ICMS_OK)
        err = loop_event_new(env, LOOP_EVENT_SIGNAL, &guest->client_event);
    if (err == ICMS_OK) {
        guest->reqs = calloc(AGENT_GUEST_REQS, sizeof(guest->reqs[0]));
        guest->counted = calloc(guest->agent->volume_count + 1, sizeof(guest->counted[0]));
        if (guest->reqs == NULL || guest->counted == NULL)
            err = ICMS_NO_MEMORY;
    }
    if (err != ICMS_OK)
        return err_set(why, err, "no memory for another client: %s", icms_err_text(err));
    header = loop_region_base(guest->region);
    shm_client_format(header, guest->number, staging_bytes);
    header->load_deadline_ms = guest->agent->opts.load_deadline_ms;
    header->store_deadline_ms = guest->agent->opts.store_deadline_ms;
    header->volume_count = (uint32_t)__builtin_popcountll(guest->volumes);
    atomic_store_explicit(&header->agent_sleeps, 1, memory_order_relaxed);
    atomic_store_explicit(&header->agent_beat_ns, loop_env_now_ns(env), memory_order_relaxed);
    return shm_ring_view(header, loop_region_bytes(guest->region), &guest->ring);
}

static void guest_memory_free(struct agent_guest *guest)
{
    loop_region_free(&guest->region);
    loop_event_free(&guest->agent_event);
    loop_event_free(&guest->client_event);
    free(guest->reqs);
    guest->reqs = NULL;
    free(guest->counted);
    guest->counted = NULL;
}

static icms_err guest_attach(struct agent_guest *guest, uint64_t staging_bytes, struct err_why *why)
{
    icms_err err = guest_memory(guest, staging_bytes, why);

    if (err != ICMS_OK) {
        guest_memory_free(guest);
        return err;
    }
    list_init(&guest->free);
    list_init(&guest->active);
    list_init(&guest->wait_ring);
    for (int i = 0; i < AGENT_GUEST_REQS; i++) {
        guest->reqs[i].guest = guest;
        list_push(&guest->free, &guest->reqs[i].guest_link);
    }
    guest->attached_ns = loop_env_now_ns(guest->agent->env);
    guest->taken = true;
    guest->leaving = false;
    atomic_store_explicit(&guest->trusted, false, memory_order_relaxed);
    /* From here on every look at leases sees this table: before the guest can write to it. */
    atomic_store_explicit(&guest->visible, true, memory_order_seq_cst);
    loop_send(guest->core->loop, &guest->start_msg, guest_start);
    return ICMS_OK;
}

/* What the guest maps. */
static void guest_client(const struct agent_guest *guest, struct agent_client *out_client)
{
    struct agent *agent = guest->agent;

    *out_client = (struct agent_client){
        .client = guest->number,
        .region = guest->region,
        .agent_event = guest->agent_event,
        .client_event = guest->client_event,
    };
    for (uint32_t i = 0; i < agent->volume_count; i++)
        if ((guest->volumes >> i & 1) != 0)
            out_client->arenas[out_client->volume_count++] = agent->volumes[i].region;
}

icms_err agent_client_attach_as(struct agent *agent, const struct agent_user *user,
                                uint64_t staging_bytes, struct err_why *why,
                                struct agent_client *out_client)
{
    struct agent_guest *guest = NULL;
    icms_err err;

    if (staging_bytes == 0)
        staging_bytes = agent->opts.client_bytes;
    if (staging_bytes > agent->opts.client_bytes)
        return err_set(why, ICMS_LIMIT,
                       "a client of this agent may have %llu bytes of memory, not %llu: ask for "
                       "less, or raise client_memory in the agent's configuration",
                       (unsigned long long)agent->opts.client_bytes,
                       (unsigned long long)staging_bytes);
    pthread_mutex_lock(&agent->control);
    if (atomic_load_explicit(&agent->draining, memory_order_relaxed))
        err = err_set(why, ICMS_CLOSED, "the agent is shutting down");
    else
        err = agent_access_guest(agent, user, why, &guest);
    if (err == ICMS_OK)
        err = guest_attach(guest, staging_bytes, why);
    if (err == ICMS_OK)
        guest_client(guest, out_client);
    pthread_mutex_unlock(&agent->control);
    return err;
}

icms_err agent_client_attach(struct agent *agent, uint64_t staging_bytes, struct err_why *why,
                             struct agent_client *out_client)
{
    return agent_client_attach_as(agent, NULL, staging_bytes, why, out_client);
}

void agent_client_trust(struct agent *agent, uint32_t client)
{
    check(client < LIMIT_CLIENTS);
    atomic_store_explicit(&agent->guests[client].trusted, true, memory_order_relaxed);
}

/* ---- detach --------------------------------------------------------------------------------- */

/* Back on its loop: nobody knows it any more. */
static void guest_freed(struct loop_msg *msg)
{
    struct agent_guest *guest = container_of(msg, struct agent_guest, leave_msg);
    struct agent *agent = guest->agent;
    void (*detached)(void *arg) = guest->detached;
    void *arg = guest->detached_arg;

    pthread_mutex_lock(&agent->control);
    agent_guest_counts_take(guest);
    guest_memory_free(guest);
    guest->state = AGENT_GUEST_FREE;
    guest->taken = false;
    pthread_mutex_unlock(&agent->control);
    if (detached != NULL)
        detached(arg);
}

/* On each loop in turn: whoever looked at the lease table here is done with it. */
static void guest_gone(struct loop_msg *msg)
{
    struct agent_guest *guest = container_of(msg, struct agent_guest, leave_msg);
    struct agent *agent = guest->agent;
    struct agent_core *core = &agent->cores[guest->leave_at];

    for (uint32_t i = 0; i < agent->volume_count; i++)
        if (agent->volumes[i].core == core)
            agent_volume_guest_gone(&agent->volumes[i], guest->number);
    if (++guest->leave_at < agent->core_count)
        loop_send(agent->cores[guest->leave_at].loop, &guest->leave_msg, guest_gone);
    else
        loop_send(guest->core->loop, &guest->leave_msg, guest_freed);
}

/* Goes on with its end when nothing of it is under way. */
static void guest_leave_check(struct agent_guest *guest)
{
    if (!list_empty(&guest->active) || loop_op_busy(&guest->event_op) || guest->run_sent)
        return;
    guest->state = AGENT_GUEST_GONE;
    atomic_store_explicit(&guest->visible, false, memory_order_seq_cst);
    guest->leave_at = 0;
    loop_send(guest->agent->cores[0].loop, &guest->leave_msg, guest_gone);
}

static void guest_leave(struct loop_msg *msg)
{
    struct agent_guest *guest = container_of(msg, struct agent_guest, leave_msg);

    guest->state = AGENT_GUEST_LEAVING;
    guest_ring_retry(guest);
    list_for_each_safe (link, &guest->active)
        guest_req_cancel(container_of(link, struct agent_req, guest_link));
    if (loop_op_busy(&guest->event_op))
        loop_op_cancel(&guest->event_op);
    if (guest->state == AGENT_GUEST_LEAVING)
        guest_leave_check(guest);
}

void agent_client_detach(struct agent *agent, uint32_t client, void (*done)(void *arg), void *arg)
{
    struct agent_guest *guest = &agent->guests[client];

    check(client < LIMIT_CLIENTS);
    pthread_mutex_lock(&agent->control);
    check(guest->taken && !guest->leaving);
    guest->leaving = true;
    guest->detached = done;
    guest->detached_arg = arg;
    loop_send(guest->core->loop, &guest->leave_msg, guest_leave);
    pthread_mutex_unlock(&agent->control);
}

static void guest_detached(void *arg)
{
    sem_post(arg);
}

void agent_client_detach_wait(struct agent *agent, uint32_t client)
{
    sem_t over;

    check(sem_init(&over, 0, 0) == 0);
    agent_client_detach(agent, client, guest_detached, &over);
    while (sem_wait(&over) != 0)
        ;
    sem_destroy(&over);
}

/* ---- life ----------------------------------------------------------------------------------- */

void agent_guest_init(struct agent_guest *guest, struct agent *agent, uint32_t number)
{
    guest->agent = agent;
    guest->number = number;
    guest->core = &agent->cores[number % agent->core_count];
    guest->state = AGENT_GUEST_FREE;
}

void agent_guest_fini(struct agent_guest *guest)
{
    guest_memory_free(guest);
}
