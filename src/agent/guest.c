/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/guest.c: attached processes: what they map, and their end.
 *
 * agent_client_attach and _detach are called by control threads.
 *
 * Life of a guest: agent_client_attach -> agent_client_detach -> one reactor after the other: its
 * queue pair leaves (agent_qpair_leave), which waits for its last request -> its leases count no
 * more -> through all reactors once more: none looks at its lease table any longer, its stores are
 * nobody's -> its memory is freed.
 *
 * Invariant: the region stays mapped while a request of the guest is anywhere, and while a reactor
 * may look at its leases.
 */
#include "agent/agent_int.h"

#include <semaphore.h>
#include <stdlib.h>

/* ---- attach --------------------------------------------------------------------------------- */

/* Everything that the guest needs; gives back what it took when that fails. */
static icms_err guest_memory(struct agent_guest *guest, uint64_t staging_bytes, struct err_why *why)
{
    struct agent *agent = guest->agent;
    struct shm_client_header *header;
    icms_err err;

    err = loop_region_new(agent->env, "icms-client",
                          shm_client_region_bytes(agent->reactor_count, staging_bytes), false, why,
                          &guest->region);
    if (err == ICMS_OK)
        err = loop_event_new(agent->env, LOOP_EVENT_SIGNAL, &guest->client_event);
    for (uint32_t i = 0; i < agent->reactor_count && err == ICMS_OK; i++)
        err = agent_qpair_init(&guest->qpairs[i]);
    if (err == ICMS_OK) {
        guest->counted = calloc(agent->volume_count + 1, sizeof(guest->counted[0]));
        if (guest->counted == NULL)
            err = ICMS_NO_MEMORY;
    }
    if (err != ICMS_OK)
        return err_set(why, err, "no memory for another client: %s", icms_err_text(err));
    header = loop_region_base(guest->region);
    shm_client_format(header, guest->number, agent->reactor_count, staging_bytes);
    header->load_deadline_ms = agent->opts.load_deadline_ms;
    header->store_deadline_ms = agent->opts.store_deadline_ms;
    for (uint32_t i = 0; i < agent->volume_count; i++)
        if ((guest->volumes >> i & 1) != 0)
            header->arena_offsets[header->volume_count++] = agent->volumes[i].offset;
    for (uint32_t i = 0; i < agent->reactor_count && err == ICMS_OK; i++) {
        struct shm_ring *ring = &guest->qpairs[i].ring;

        err = shm_ring_view(header, loop_region_bytes(guest->region), i, ring);
        if (err != ICMS_OK)
            break;
        atomic_store_explicit(&ring->qpair->agent_sleeps, 1, memory_order_relaxed);
        atomic_store_explicit(&ring->qpair->agent_beat_ns, loop_env_now_ns(agent->env),
                              memory_order_relaxed);
    }
    return err;
}

static void guest_memory_free(struct agent_guest *guest)
{
    loop_region_free(&guest->region);
    loop_event_free(&guest->client_event);
    for (uint32_t i = 0; guest->qpairs != NULL && i < guest->agent->reactor_count; i++)
        agent_qpair_fini(&guest->qpairs[i]);
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
    guest->attached_ns = loop_env_now_ns(guest->agent->env);
    guest->taken = true;
    guest->leaving = false;
    atomic_store_explicit(&guest->trusted, false, memory_order_relaxed);
    /* From here on every look at leases sees this table: before the guest can write to it. */
    atomic_store_explicit(&guest->visible, true, memory_order_seq_cst);
    for (uint32_t i = 0; i < guest->agent->reactor_count; i++)
        agent_qpair_start(&guest->qpairs[i]);
    return ICMS_OK;
}

/* What the guest maps. */
static void guest_client(const struct agent_guest *guest, struct agent_client *out_client)
{
    struct agent *agent = guest->agent;

    *out_client = (struct agent_client){
        .client = guest->number,
        .region = guest->region,
        .client_event = guest->client_event,
        .reactor_count = agent->reactor_count,
    };
    for (uint32_t i = 0; i < agent->reactor_count; i++)
        out_client->agent_events[i] = guest->qpairs[i].event;
    for (uint32_t i = 0; i < agent->volume_count; i++)
        if ((guest->volumes >> i & 1) != 0)
            out_client->arenas[out_client->volume_count++] =
                agent->arenas[agent->volumes[i].arena].region;
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

/* Nobody knows it any more. */
static void guest_free(struct agent_guest *guest)
{
    struct agent *agent = guest->agent;
    void (*detached)(void *arg) = guest->detached;
    void *arg = guest->detached_arg;

    pthread_mutex_lock(&agent->control);
    agent_guest_counts_take(guest);
    guest_memory_free(guest);
    guest->taken = false;
    pthread_mutex_unlock(&agent->control);
    if (detached != NULL)
        detached(arg);
}

/* On each reactor in turn: whoever looked at the lease table here is done with it. */
static void guest_gone(struct loop_msg *msg)
{
    struct agent_guest *guest = container_of(msg, struct agent_guest, leave_msg);
    struct agent *agent = guest->agent;
    struct agent_reactor *reactor = &agent->reactors[guest->leave_at];

    for (uint32_t i = 0; i < agent->volume_count; i++)
        agent_shard_guest_gone(&reactor->shards[i], guest->number);
    guest->qpairs[guest->leave_at].state = AGENT_QPAIR_FREE;
    if (++guest->leave_at < agent->reactor_count)
        loop_send(agent->reactors[guest->leave_at].loop, &guest->leave_msg, guest_gone);
    else
        guest_free(guest);
}

/* On each reactor in turn. */
static void guest_leave(struct loop_msg *msg)
{
    struct agent_guest *guest = container_of(msg, struct agent_guest, leave_msg);

    agent_qpair_leave(&guest->qpairs[guest->leave_at]);
}

void agent_guest_left(struct agent_qpair *qpair)
{
    struct agent_guest *guest = qpair->guest;
    struct agent *agent = guest->agent;

    if (++guest->leave_at < agent->reactor_count) {
        loop_send(agent->reactors[guest->leave_at].loop, &guest->leave_msg, guest_leave);
        return;
    }
    atomic_store_explicit(&guest->visible, false, memory_order_seq_cst);
    guest->leave_at = 0;
    loop_send(agent->reactors[0].loop, &guest->leave_msg, guest_gone);
}

void agent_client_detach(struct agent *agent, uint32_t client, void (*done)(void *arg), void *arg)
{
    struct agent_guest *guest = &agent->guests[client];

    check(client < LIMIT_CLIENTS);
    pthread_mutex_lock(&agent->control);
    check(guest->taken && !guest->leaving);
    guest->leaving = true;
    guest->leave_at = 0;
    guest->detached = done;
    guest->detached_arg = arg;
    loop_send(agent->reactors[0].loop, &guest->leave_msg, guest_leave);
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

icms_err agent_guest_init(struct agent_guest *guest, struct agent *agent, uint32_t number)
{
    guest->agent = agent;
    guest->number = number;
    guest->qpairs = calloc(agent->reactor_count, sizeof(guest->qpairs[0]));
    if (guest->qpairs == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < agent->reactor_count; i++) {
        guest->qpairs[i].guest = guest;
        guest->qpairs[i].reactor = &agent->reactors[i];
        guest->qpairs[i].state = AGENT_QPAIR_FREE;
    }
    return ICMS_OK;
}

void agent_guest_fini(struct agent_guest *guest)
{
    guest_memory_free(guest);
    free(guest->qpairs);
    guest->qpairs = NULL;
}
