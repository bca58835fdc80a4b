/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/access.c: which user of this machine may use which volume, how many clients it may have,
 * and how much of the backlog its stores may hold.
 *
 * Called by control threads, for the backlog by reactors. Root and the agent's own user are not
 * asked: they can read the agent's memory anyway. A volume that lists neither users nor groups is
 * for everybody who can connect, which the permission bits of the socket decide.
 */
#include <assert.h>

#include "agent/agent_int.h"

static bool access_lists(const struct local_id *ids, uint32_t count, uint32_t id)
{
    for (uint32_t i = 0; i < count; i++)
        if (ids[i].id == id)
            return true;
    return false;
}

static bool access_has(const struct volume_spec *volume, const struct agent_user *user)
{
    if (user->owner || (volume->user_count == 0 && volume->group_count == 0))
        return true;
    if (access_lists(volume->users, volume->user_count, user->uid) ||
        access_lists(volume->groups, volume->group_count, user->gid))
        return true;
    for (uint32_t i = 0; volume->group_count != 0 && i < user->group_count; i++)
        if (access_lists(volume->groups, volume->group_count, user->groups[i]))
            return true;
    return false;
}

static_assert(LIMIT_AGENT_VOLUMES <= 64, "a bit for each volume of an agent");

uint64_t agent_access(const struct agent *agent, const struct agent_user *user)
{
    uint64_t volumes = 0;

    for (uint32_t i = 0; i < agent->volume_count; i++)
        if (user == NULL || access_has(&agent->volumes[i].spec, user))
            volumes |= (uint64_t)1 << i;
    return volumes;
}

/* Another user had the place: what it did counts no more. */
static void access_share_renew(struct agent *agent, struct agent_user_share *share)
{
    uint32_t place = (uint32_t)(share - agent->users);

    for (uint32_t i = 0; i < agent->volume_count && share->is_known; i++) {
        agent_user_count_sum(agent, place, i, &share->before[i]);
        share->hit_bytes[i] = 0;
    }
}

/* Whose requests those of a client are: the place that its user has, the first one for the owner,
 * else one without clients; one that no user had, if there is one. */
static struct agent_user_share *access_share(struct agent *agent, const struct agent_client *client)
{
    struct agent_user_share *free = NULL;

    for (uint32_t i = 0; i < AGENT_USERS; i++) {
        struct agent_user_share *share = &agent->users[i];

        if (share->is_known && share->owner == client->owner && share->uid == client->uid)
            return share;
        if (share->clients == 0 && !share->owner &&
            (free == NULL || (free->is_known && !share->is_known)))
            free = share;
    }
    check(free != NULL);
    access_share_renew(agent, free);
    atomic_fetch_add(&free->number, 1);
    free->is_known = true;
    free->owner = client->owner;
    free->uid = client->uid;
    return free;
}

icms_err agent_access_client(struct agent *agent, const struct agent_user *user,
                             struct err_why *why, struct agent_client **out_client)
{
    bool owner = user == NULL || user->owner;
    struct agent_client *client = NULL;
    uint64_t volumes = agent_access(agent, user);
    uint32_t has = 0;

    if (volumes == 0)
        return err_set(why, ICMS_PERMISSION,
                       "user %u may use no volume here: see users and groups of the volumes in the "
                       "agent's configuration",
                       user->uid);
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++) {
        if (!agent->clients[i].taken)
            client = client == NULL ? &agent->clients[i] : client;
        else if (!owner && !agent->clients[i].owner && agent->clients[i].uid == user->uid)
            has++;
    }
    if (!owner && has >= agent->opts.user_clients_max)
        return err_set(why, ICMS_LIMIT,
                       "user %u has %u clients attached, which is its limit: end some, or raise "
                       "user_clients_max in the agent's configuration",
                       user->uid, has);
    if (client == NULL)
        return err_set(why, ICMS_LIMIT, "%d clients are attached, which is the limit",
                       LIMIT_CLIENTS);
    client->owner = owner;
    client->uid = owner ? 0 : user->uid;
    client->user = access_share(agent, client);
    client->volumes = volumes;
    *out_client = client;
    return ICMS_OK;
}

/* ---- the backlog ---------------------------------------------------------------------------- */

/* Whether the backlog has no room for so many bytes of a user of a volume, who holds own of all.
 * These are words of their own: users and weights may be behind. One value is always let in. */
static bool backlog_refuses(const struct agent *agent, uint64_t all, uint64_t own, uint32_t volume,
                            uint64_t bytes)
{
    uint64_t max = agent->opts.store_backlog_bytes, weight = agent->weights[volume], weights, users;

    if (all + bytes <= max || (own == 0 && bytes <= max))
        return false;
    weights = atomic_load_explicit(&agent->backlog_weight, memory_order_relaxed);
    users = atomic_load_explicit(&agent->volumes[volume].backlog_users, memory_order_relaxed);
    return own + bytes > max / u64_max(weights, weight) * weight / u64_max(users, 1);
}

bool agent_backlog_full(const struct agent *agent, const struct agent_user_share *user,
                        uint32_t volume, uint64_t bytes)
{
    uint64_t all = atomic_load_explicit(&agent->backlog_bytes, memory_order_relaxed);
    uint64_t own = atomic_load_explicit(&user->backlog_bytes[volume], memory_order_relaxed);

    return backlog_refuses(agent, all, own, volume, bytes);
}

bool agent_backlog_take(struct agent *agent, struct agent_user_share *user, uint32_t volume,
                        uint64_t bytes)
{
    uint64_t all = atomic_fetch_add_explicit(&agent->backlog_bytes, bytes, memory_order_relaxed);
    uint64_t own =
        atomic_fetch_add_explicit(&user->backlog_bytes[volume], bytes, memory_order_relaxed);

    if (own == 0 && atomic_fetch_add_explicit(&agent->volumes[volume].backlog_users, 1,
                                              memory_order_relaxed) == 0)
        atomic_fetch_add_explicit(&agent->backlog_weight, agent->weights[volume],
                                  memory_order_relaxed);
    if (!backlog_refuses(agent, all, own, volume, bytes))
        return true;
    agent_backlog_give(agent, user, volume, bytes);
    return false;
}

void agent_backlog_give(struct agent *agent, struct agent_user_share *user, uint32_t volume,
                        uint64_t bytes)
{
    uint64_t own =
        atomic_fetch_sub_explicit(&user->backlog_bytes[volume], bytes, memory_order_relaxed);

    atomic_fetch_sub_explicit(&agent->backlog_bytes, bytes, memory_order_relaxed);
    if (own == bytes && atomic_fetch_sub_explicit(&agent->volumes[volume].backlog_users, 1,
                                                  memory_order_relaxed) == 1)
        atomic_fetch_sub_explicit(&agent->backlog_weight, agent->weights[volume],
                                  memory_order_relaxed);
}
