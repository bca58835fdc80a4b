/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/client.c: attached processes: what they map, and their end.
 *
 * agent_client_attach and _detach are called by control threads.
 *
 * Life of a client: agent_client_attach -> agent_client_detach -> one reactor after the other: its
 * queue pair leaves (agent_qpair_leave), which waits for its last request -> its leases count no
 * more -> through all reactors once more: none looks at its lease table any longer, its stores are
 * nobody's -> its memory is freed.
 *
 * Invariant: the region stays mapped while a request of the client is anywhere, and while a reactor
 * may look at its leases.
 */
#include "agent/agent_int.h"

#include <semaphore.h>
#include <stdlib.h>

/* ---- attach --------------------------------------------------------------------------------- */

/* Everything that the client needs; gives back what it took when that fails. */
static icms_err client_memory(struct agent_client *client, uint64_t staging_bytes,
                              struct err_why *why)
{
    struct agent *agent = client->agent;
    struct shm_client_header *header;
    icms_err err;

    err = loop_region_new(agent->env, "icms-client",
                          shm_client_region_bytes(agent->reactor_count, staging_bytes), false, why,
                          &client->region);
    if (err == ICMS_OK)
        err = loop_event_new(agent->env, LOOP_EVENT_SIGNAL, &client->client_event);
    for (uint32_t i = 0; i < agent->reactor_count && err == ICMS_OK; i++)
        err = agent_qpair_init(&client->qpairs[i]);
    if (err == ICMS_OK) {
        client->counted = calloc(agent->volume_count + 1, sizeof(client->counted[0]));
        if (client->counted == NULL)
            err = ICMS_NO_MEMORY;
    }
    if (err == ICMS_LIMIT)
        return err_set(why, err,
                       "the agent has no file descriptor left for another client; raise their "
                       "number with 'ulimit -n' or LimitNOFILE= in its unit");
    if (err != ICMS_OK)
        return err_set(why, err, "no memory for another client: %s", icms_err_text(err));
    header = loop_region_base(client->region);
    shm_client_format(header, client->number, agent->reactor_count, staging_bytes);
    header->load_deadline_ms = agent->opts.load_deadline_ms;
    header->store_deadline_ms = agent->opts.store_deadline_ms;
    for (uint32_t i = 0; i < agent->volume_count; i++)
        if ((client->volumes >> i & 1) != 0)
            header->arena_offsets[header->volume_count++] = agent->volumes[i].offset;
    for (uint32_t i = 0; i < agent->reactor_count && err == ICMS_OK; i++) {
        struct shm_ring *ring = &client->qpairs[i].ring;

        err = shm_ring_view(header, loop_region_bytes(client->region), i, ring);
        if (err != ICMS_OK)
            break;
        atomic_store_explicit(&ring->qpair->agent_sleeps, 1, memory_order_relaxed);
        atomic_store_explicit(&ring->qpair->agent_heartbeat_ns, loop_env_now_ns(agent->env),
                              memory_order_relaxed);
    }
    return err;
}

static void client_memory_free(struct agent_client *client)
{
    loop_region_free(&client->region);
    loop_event_free(&client->client_event);
    for (uint32_t i = 0; client->qpairs != NULL && i < client->agent->reactor_count; i++)
        agent_qpair_fini(&client->qpairs[i]);
    free(client->counted);
    client->counted = NULL;
}

static icms_err client_attach(struct agent_client *client, uint64_t staging_bytes,
                              struct err_why *why)
{
    icms_err err = client_memory(client, staging_bytes, why);

    if (err != ICMS_OK) {
        client_memory_free(client);
        return err;
    }
    client->attached_ns = loop_env_now_ns(client->agent->env);
    client->taken = true;
    client->user->clients++;
    client->leaving = false;
    atomic_store_explicit(&client->trusted, false, memory_order_relaxed);
    /* From here on every look at leases sees this table: before the client can write to it. */
    atomic_store_explicit(&client->visible, true, memory_order_seq_cst);
    for (uint32_t i = 0; i < client->agent->reactor_count; i++)
        agent_qpair_start(&client->qpairs[i]);
    return ICMS_OK;
}

/* What the client maps. */
static void client_map(const struct agent_client *client, struct agent_client_map *out_client)
{
    struct agent *agent = client->agent;

    *out_client = (struct agent_client_map){
        .client = client->number,
        .region = client->region,
        .client_event = client->client_event,
        .reactor_count = agent->reactor_count,
    };
    for (uint32_t i = 0; i < agent->reactor_count; i++)
        out_client->agent_events[i] = client->qpairs[i].event;
    for (uint32_t i = 0; i < agent->volume_count; i++)
        if ((client->volumes >> i & 1) != 0)
            out_client->arenas[out_client->volume_count++] =
                agent->arenas[agent->volumes[i].arena].region;
}

icms_err agent_client_attach_as(struct agent *agent, const struct agent_user *user,
                                uint64_t staging_bytes, struct err_why *why,
                                struct agent_client_map *out_client)
{
    struct agent_client *client = NULL;
    icms_err err;

    if (staging_bytes == 0)
        staging_bytes = agent->opts.client_bytes;
    if (staging_bytes > agent->opts.client_bytes)
        return err_set(why, ICMS_INVALID, /* LIMIT passes; this does not */
                       "a client of this agent may have %llu bytes of memory, not %llu: ask for "
                       "less, or raise client_memory in the agent's configuration",
                       (unsigned long long)agent->opts.client_bytes,
                       (unsigned long long)staging_bytes);
    pthread_mutex_lock(&agent->control);
    if (atomic_load_explicit(&agent->draining, memory_order_relaxed))
        err = err_set(why, ICMS_CLOSED, "the agent is shutting down");
    else
        err = agent_access_client(agent, user, why, &client);
    if (client == NULL && user != NULL && (err == ICMS_PERMISSION || err == ICMS_LIMIT)) {
        agent->clients_refused++;
        agent->refused_user = user->uid;
    }
    if (err == ICMS_OK)
        err = client_attach(client, staging_bytes, why);
    if (err == ICMS_OK)
        client_map(client, out_client);
    pthread_mutex_unlock(&agent->control);
    return err;
}

icms_err agent_client_attach(struct agent *agent, uint64_t staging_bytes, struct err_why *why,
                             struct agent_client_map *out_client)
{
    return agent_client_attach_as(agent, NULL, staging_bytes, why, out_client);
}

void agent_client_trust(struct agent *agent, uint32_t client)
{
    check(client < LIMIT_CLIENTS);
    atomic_store_explicit(&agent->clients[client].trusted, true, memory_order_relaxed);
}

/* ---- detach --------------------------------------------------------------------------------- */

/* Nobody knows it any more. */
static void client_free(struct agent_client *client)
{
    struct agent *agent = client->agent;
    void (*detached)(void *arg) = client->detached;
    void *arg = client->detached_arg;

    pthread_mutex_lock(&agent->control);
    agent_client_counts_take(client);
    client_memory_free(client);
    client->taken = false;
    client->user->clients--;
    pthread_mutex_unlock(&agent->control);
    if (detached != NULL)
        detached(arg);
}

/* On each reactor in turn: whoever looked at the lease table here is done with it. */
static void client_gone(struct loop_msg *msg)
{
    struct agent_client *client = container_of(msg, struct agent_client, leave_msg);
    struct agent *agent = client->agent;
    struct agent_reactor *reactor = &agent->reactors[client->leave_at];

    for (uint32_t i = 0; i < agent->volume_count; i++)
        agent_shard_client_gone(&reactor->shards[i], client->number);
    client->qpairs[client->leave_at].state = AGENT_QPAIR_FREE;
    if (++client->leave_at < agent->reactor_count)
        loop_send(agent->reactors[client->leave_at].loop, &client->leave_msg, client_gone);
    else
        client_free(client);
}

static void client_left(struct agent_qpair *qpair);

/* On each reactor in turn. */
static void client_leave(struct loop_msg *msg)
{
    struct agent_client *client = container_of(msg, struct agent_client, leave_msg);

    agent_qpair_leave(&client->qpairs[client->leave_at], client_left);
}

/* Nothing of a queue pair that leaves is in flight any more. */
static void client_left(struct agent_qpair *qpair)
{
    struct agent_client *client = qpair->client;
    struct agent *agent = client->agent;

    if (++client->leave_at < agent->reactor_count) {
        loop_send(agent->reactors[client->leave_at].loop, &client->leave_msg, client_leave);
        return;
    }
    atomic_store_explicit(&client->visible, false, memory_order_seq_cst);
    client->leave_at = 0;
    loop_send(agent->reactors[0].loop, &client->leave_msg, client_gone);
}

void agent_client_detach(struct agent *agent, uint32_t number, void (*done)(void *arg), void *arg)
{
    struct agent_client *client = &agent->clients[number];

    check(number < LIMIT_CLIENTS);
    pthread_mutex_lock(&agent->control);
    check(client->taken && !client->leaving);
    client->leaving = true;
    client->leave_at = 0;
    client->detached = done;
    client->detached_arg = arg;
    loop_send(agent->reactors[0].loop, &client->leave_msg, client_leave);
    pthread_mutex_unlock(&agent->control);
}

static void client_detached(void *arg)
{
    sem_post(arg);
}

void agent_client_detach_wait(struct agent *agent, uint32_t client)
{
    sem_t over;

    check(sem_init(&over, 0, 0) == 0);
    agent_client_detach(agent, client, client_detached, &over);
    while (sem_wait(&over) != 0)
        ;
    sem_destroy(&over);
}

/* ---- life ----------------------------------------------------------------------------------- */

icms_err agent_client_init(struct agent_client *client, struct agent *agent, uint32_t number)
{
    client->agent = agent;
    client->number = number;
    client->qpairs = calloc(agent->reactor_count, sizeof(client->qpairs[0]));
    if (client->qpairs == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < agent->reactor_count; i++) {
        client->qpairs[i].client = client;
        client->qpairs[i].reactor = &agent->reactors[i];
        client->qpairs[i].state = AGENT_QPAIR_FREE;
    }
    return ICMS_OK;
}

void agent_client_fini(struct agent_client *client)
{
    client_memory_free(client);
    free(client->qpairs);
    client->qpairs = NULL;
}
