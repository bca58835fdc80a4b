/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When nothing goes wrong any more: exact accounts.
 *
 * Everything is repaired: troubles end, enclosures restart, agents find them again. Then nothing
 * may be under way or leased any more, and what is stored from now on is accounted for block by
 * block:
 *   - blocks that fit are hits from the agent that did not store them, also after kill -9 and,
 *     flushed, after a power loss; removed ones are misses
 *   - more blocks than fit: what misses is what the enclosures say they evicted, to the block
 *
 * Control.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "pod.h"
#include "target/target_int.h"

#define SETTLE_HEAL_NS  (5000 * MS) /* all has to work again within this                   */
#define SETTLE_CALM_NS  (700 * MS)  /* longer than keep-alive and silence: nothing is hidden */
#define SETTLE_HELD_NS  (3000 * MS) /* longer than a peer that went away silently is waited for */
#define SETTLE_JOBS_NS  (30000 * MS)
#define SETTLE_JOBS_MAX 4096

/* Fresh blocks of each volume: their sum fits on one drive, whatever goes where. */
static const uint32_t settle_fresh[POD_VOLUMES] = {14, 12, 10};

/* Then more than all drives of the small pod hold. */
static const uint32_t settle_more[POD_VOLUMES] = {520, 200, 520};

struct settle {
    struct pod_world *world;
    struct pod_job *jobs;   /* [SETTLE_JOBS_MAX] */
    uint32_t first;         /* first fresh key   */
    uint32_t count;         /* fresh keys        */
    bool *removed;          /* [SETTLE_JOBS_MAX] by fresh key */
    uint64_t old_blocks;    /* blocks on flash that are not fresh, at the beginning */
    uint64_t old_evictions; /* at the beginning                                     */
    uint64_t removals;
};

/* ---- waiting -------------------------------------------------------------------------------- */

/* All of its links are up. */
static bool enclosure_is_found(const struct agent_enclosure_stats *enclosure)
{
    for (uint32_t k = 0; k < enclosure->link_count; k++)
        if (enclosure->links[k].state != AGENT_ENCLOSURE_UP)
            return false;
    return enclosure->link_count == POD_LINKS && enclosure->state == AGENT_ENCLOSURE_UP;
}

static bool settle_is_up(struct pod_world *world)
{
    for (uint32_t i = 0; i < world->target_count; i++)
        if (world->targets[i].state != POD_MACHINE_UP || world->targets[i].resets != world->resets)
            return false;
    for (uint32_t i = 0; i < world->agent_count; i++) {
        struct pod_agent *agent = &world->agents[i];

        if (agent->state != POD_MACHINE_UP || agent_epoch(agent->agent) != world->epoch)
            return false;
        agent_stats(agent->agent, agent->stats);
        for (uint32_t j = 0; j < world->target_count; j++)
            if (!enclosure_is_found(&agent->stats->enclosures[j]))
                return false;
    }
    for (uint32_t i = 0; i < world->client_count; i++)
        if (!pod_client_idle(&world->clients[i]))
            return false;
    world->counts.slow = world->counts.moved = world->counts.failovers = 0;
    for (uint32_t i = 0; i < world->agent_count; i++)
        for (uint32_t v = 0; v < POD_VOLUMES; v++)
            world->counts.moved += world->agents[i].stats->volumes[v].moved;
    for (uint32_t i = 0; i < world->agent_count; i++)
        for (uint32_t j = 0; j < world->target_count; j++) {
            world->counts.slow += world->agents[i].stats->enclosures[j].slow_total;
            world->counts.failovers += world->agents[i].stats->enclosures[j].failovers;
        }
    return true;
}

static void settle_complain(struct pod_world *world)
{
    for (uint32_t i = 0; i < world->target_count; i++)
        (void)printf("target %u is in state %d, and knows %u of %u resets\n", i,
                     (int)world->targets[i].state, world->targets[i].resets, world->resets);
    for (uint32_t i = 0; i < world->agent_count; i++)
        if (world->agents[i].state == POD_MACHINE_UP)
            (void)printf("agent %u has epoch %llu of %llu\n", i,
                         (unsigned long long)agent_epoch(world->agents[i].agent),
                         (unsigned long long)world->epoch);
    for (uint32_t i = 0; i < world->agent_count; i++)
        for (uint32_t j = 0; j < world->target_count; j++)
            (void)printf("agent %u, state %d: enclosure %u in state %d: %s\n", i,
                         (int)world->agents[i].state, j,
                         (int)world->agents[i].stats->enclosures[j].state,
                         world->agents[i].stats->enclosures[j].last_error);
    for (uint32_t i = 0; i < world->agent_count; i++)
        for (uint32_t j = 0; j < world->target_count; j++)
            for (uint32_t k = 0; k < POD_LINKS; k++)
                (void)printf("agent %u: link %u of enclosure %u in state %d: %s\n", i, k, j,
                             (int)world->agents[i].stats->enclosures[j].links[k].state,
                             world->agents[i].stats->enclosures[j].links[k].last_error);
    for (uint32_t i = 0; i < world->client_count; i++)
        if (!pod_client_idle(&world->clients[i]))
            (void)printf("client %u is busy in state %d\n", i, (int)world->clients[i].state);
}

/* Runs until everybody works and found everybody, and it stays so. */
static void settle_heal(struct pod_world *world)
{
    uint64_t until_ns = sim_now_ns(world->sim) + SETTLE_HEAL_NS;

    for (;;) {
        while (!settle_is_up(world)) {
            if (sim_now_ns(world->sim) > until_ns) {
                settle_complain(world);
                pod_fail(world, POD_FAULT_HEAL, "everything was repaired, and it does not work");
            }
            pod_world_run(world, sim_now_ns(world->sim) + 5 * MS);
        }
        pod_world_run(world, sim_now_ns(world->sim) + SETTLE_CALM_NS);
        if (settle_is_up(world))
            return;
    }
}

/* The first thing that somebody still holds though nothing is under way; NULL: nothing. */
static const char *settle_held(struct pod_world *world, uint64_t *out_how_much)
{
    for (uint32_t i = 0; i < world->agent_count; i++) {
        struct agent_stats *stats = world->agents[i].stats;
        uint64_t leased = 0;

        agent_stats(world->agents[i].agent, stats);
        for (uint32_t v = 0; v < POD_VOLUMES; v++)
            leased += stats->volumes[v].slots_leased;
        *out_how_much = stats->in_flight;
        if (stats->in_flight > 0)
            return "requests of an agent";
        *out_how_much = stats->backlog_bytes;
        if (stats->backlog_bytes > 0)
            return "bytes of stores of an agent";
        *out_how_much = leased;
        if (leased > 0)
            return "leases";
        *out_how_much = 0;
        for (uint32_t v = 0; v < POD_VOLUMES; v++)
            *out_how_much += stats->volumes[v].prestage.loading;
        if (*out_how_much > 0)
            return "loads of hints";
        for (uint32_t v = 0; v < POD_VOLUMES; v++)
            *out_how_much += stats->volumes[v].prestage.pins;
        if (*out_how_much > 0)
            return "pins whose time is over";
    }
    for (uint32_t i = 0; i < world->target_count; i++) {
        struct target_stats *stats = world->targets[i].stats;

        target_stats(world->targets[i].target, stats);
        *out_how_much = stats->nvmf.buffers_used_bytes;
        if (stats->nvmf.buffers_used_bytes > 0)
            return "bytes of a target's buffers";
        *out_how_much = stats->nvmf.buffers_parked;
        if (stats->nvmf.buffers_parked > 0)
            return "commands that wait for a target's buffer";
    }
    return NULL;
}

/* Nobody does anything: everything is given back, within the time that a peer who went away
 * silently is waited for. */
static void settle_nothing_held(struct pod_world *world)
{
    uint64_t until_ns = sim_now_ns(world->sim) + SETTLE_HELD_NS;
    const char *what;
    uint64_t how_much;

    while ((what = settle_held(world, &how_much)) != NULL) {
        pod_tell(world, "held: %llu %s", (unsigned long long)how_much, what);
        if (sim_now_ns(world->sim) > until_ns)
            pod_fail(world, POD_FAULT_LIMIT, "nothing is under way, but %llu %s are held",
                     (unsigned long long)how_much, what);
        pod_world_run(world, sim_now_ns(world->sim) + 100 * MS);
    }
}

/* ---- lists of operations -------------------------------------------------------------------- */

/* The agent's clients work off the list. */
static void settle_run(struct settle *settle, uint32_t agent, uint32_t count)
{
    struct pod_world *world = settle->world;
    uint64_t until_ns = sim_now_ns(world->sim) + SETTLE_JOBS_NS;
    uint32_t first = 0;

    for (uint32_t i = 0; i < POD_CLIENTS; i++) {
        uint32_t end = count * (i + 1) / POD_CLIENTS;

        pod_client_jobs(&world->clients[agent * POD_CLIENTS + i], settle->jobs + first, end - first,
                        4);
        first = end;
    }
    for (uint32_t done = 0; done < count;) {
        if (sim_now_ns(world->sim) > until_ns)
            pod_fail(world, POD_FAULT_HEAL, "%u of %u operations are over, and it takes too long",
                     done, count);
        pod_world_run(world, sim_now_ns(world->sim) + 2 * MS);
        for (done = 0; done < count && settle->jobs[done].done; done++) {
        }
    }
    for (uint32_t i = 0; i < POD_CLIENTS; i++)
        pod_client_jobs(&world->clients[agent * POD_CLIENTS + i], NULL, 0, 0);
}

static void settle_forgot(struct settle *settle, const struct pod_job *job, const char *what)
{
    const struct pod_key *key = &settle->world->model.keys[job->key];

    pod_fail(settle->world, POD_FAULT_FORGOT, "%s: key %u of volume %u, version %u: %s, %s", what,
             job->key, key->volume, job->version, icms_err_name(job->status),
             icms_miss_name(job->reason));
}

/* Stores new blocks of each volume, its count so many times; all of them have to be stored. */
static void settle_put(struct settle *settle, uint32_t agent, const uint32_t *counts,
                       uint32_t times, bool with_flush)
{
    struct pod_world *world = settle->world;
    uint32_t count = 0;

    for (uint32_t volume = 0; volume < POD_VOLUMES; volume++) {
        for (uint32_t i = 0; i < counts[volume] * times; i++) {
            uint32_t key = pod_model_key_new(
                world, volume, (uint64_t)(volume + 1) << 40 | (settle->count + i) / 8);
            bool wait = !with_flush || pod_chance(world, 2) == 0;

            check(count < SETTLE_JOBS_MAX);
            settle->jobs[count++] = (struct pod_job){
                .op = SHM_OP_PUT,
                .flags = wait ? SHM_FLAG_ON_FLASH : 0,
                .key = key,
                .version = pod_model_put(world, key, world->volumes[volume].generation),
                .deadline_ns = 2000 * MS,
            };
        }
    }
    settle_run(settle, agent, count);
    for (uint32_t i = 0; i < count; i++)
        if (settle->jobs[i].status != ICMS_OK)
            settle_forgot(settle, &settle->jobs[i], "a store failed though all is well");
    settle->count += count;
}

/* Each client has stored: each one flushes each volume. The first flush after the storm may tell of
 * stores that failed meanwhile. */
static void settle_flush(struct settle *settle, uint32_t agent, bool must)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < POD_CLIENTS; i++)
        for (uint32_t volume = 0; volume < POD_VOLUMES; volume++)
            settle->jobs[count++] =
                (struct pod_job){.op = SHM_OP_FLUSH, .key = volume, .deadline_ns = 2000 * MS};
    settle_run(settle, agent, count);
    for (uint32_t i = 0; i < count; i++)
        if (must && settle->jobs[i].status != ICMS_OK)
            pod_fail(settle->world, POD_FAULT_HEAL, "a flush failed though all is well: %s",
                     icms_err_name(settle->jobs[i].status));
}

static void settle_remove(struct settle *settle, uint32_t agent)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < settle->count; i++) {
        if (pod_chance(settle->world, 5) != 0)
            continue;
        settle->removed[i] = true;
        settle->removals++;
        settle->jobs[count++] = (struct pod_job){
            .op = SHM_OP_REMOVE, .key = settle->first + i, .deadline_ns = 2000 * MS};
    }
    settle_run(settle, agent, count);
    for (uint32_t i = 0; i < count; i++)
        if (settle->jobs[i].status != ICMS_OK)
            settle_forgot(settle, &settle->jobs[i], "a block to remove is not there");
}

/* Asks an agent for all fresh blocks; how many there are. Those removed must not be there. */
static uint32_t settle_read(struct settle *settle, uint32_t agent, uint8_t op, bool all)
{
    struct pod_world *world = settle->world;
    uint32_t hits = 0;

    for (uint32_t i = 0; i < settle->count; i++)
        settle->jobs[i] =
            (struct pod_job){.op = op, .key = settle->first + i, .deadline_ns = 2000 * MS};
    settle_run(settle, agent, settle->count);
    for (uint32_t i = 0; i < settle->count; i++) {
        const struct pod_job *job = &settle->jobs[i];
        bool gone = job->status == ICMS_MISS &&
                    (job->reason == ICMS_MISS_ABSENT || job->reason == ICMS_MISS_EVICTED);

        hits += job->status == ICMS_OK;
        if (job->status == ICMS_OK && settle->removed[i])
            pod_fail(world, POD_FAULT_GHOST, "key %u was removed and is there", job->key);
        if (job->status != ICMS_OK && (!gone || (all && !settle->removed[i])))
            settle_forgot(settle, job, "a block on flash is not there");
    }
    return hits;
}

/* ---- accounts ------------------------------------------------------------------------------- */

/* Blocks on all drives that are not fresh. */
static uint64_t settle_old_blocks(struct settle *settle)
{
    static struct store_position keys[POD_KEYS_MAX];
    struct pod_world *world = settle->world;
    uint64_t old = 0;

    for (uint32_t i = 0; i < world->target_count * LIMIT_DRIVES; i++) {
        struct store *store =
            world->targets[i / LIMIT_DRIVES].target->drives[i % LIMIT_DRIVES].store;

        if (store == NULL)
            continue;

        for (uint32_t volume = 0; volume < LIMIT_VOLUMES; volume++) {
            struct store_position from = {0};
            uint32_t count = store_list(store, volume, &from, &store_position_end, UINT32_MAX, keys,
                                        POD_KEYS_MAX);

            for (uint32_t k = 0; k < count; k++) {
                bool fresh = false;

                for (uint32_t f = 0; f < settle->count && !fresh; f++)
                    fresh = key_equal(&keys[k].key, &world->model.keys[settle->first + f].key);
                old += !fresh;
            }
        }
    }
    return old;
}

/* Every block that was stored and is not there was evicted or removed, and nothing else was. */
static void settle_account(struct settle *settle)
{
    struct pod_world *world = settle->world;
    uint64_t evictions = pod_world_evictions(world) - settle->old_evictions;
    uint64_t blocks = pod_world_blocks(world);

    pod_tell(world, "%llu blocks and %u stored; %llu blocks, %llu evicted and %llu removed",
             (unsigned long long)settle->old_blocks, settle->count, (unsigned long long)blocks,
             (unsigned long long)evictions, (unsigned long long)settle->removals);
    for (uint32_t i = 0; i < world->target_count; i++) {
        const struct target_stats *stats = world->targets[i].stats;

        for (uint32_t d = 0; d < stats->drive_count; d++)
            pod_tell(world, "target %u drive %u: %llu blocks, %llu evicted, %llu damaged", i, d,
                     (unsigned long long)stats->drives[d].store.blocks,
                     (unsigned long long)stats->drives[d].store.evictions,
                     (unsigned long long)stats->drives[d].store.checksum_errors);
    }

    if (settle->old_blocks + settle->count != blocks + evictions + settle->removals)
        pod_fail(world, POD_FAULT_FORGOT,
                 "%llu blocks and %u stored are not %llu blocks, %llu evicted and %llu removed",
                 (unsigned long long)settle->old_blocks, settle->count, (unsigned long long)blocks,
                 (unsigned long long)evictions, (unsigned long long)settle->removals);
}

/* ---- restarts ------------------------------------------------------------------------------- */

static void settle_restart_targets(struct pod_world *world, bool power)
{
    for (uint32_t i = 0; i < world->target_count; i++) {
        if (power || pod_chance(world, 2) == 0)
            pod_target_crash(&world->targets[i], power, pod_chance(world, 3) == 0);
        else
            pod_target_leave(&world->targets[i]);
    }
}

/* The power went: what was flushed is there, also every fresh block; older blocks that nobody
 * flushed may be gone, and the counters of evictions with them. Accounts begin anew. */
static void settle_recount(struct settle *settle)
{
    struct pod_world *world = settle->world;
    uint64_t blocks = pod_world_blocks(world);
    uint64_t old = settle_old_blocks(settle);

    if (blocks != old + settle->count)
        pod_fail(world, POD_FAULT_FORGOT, "of %u flushed blocks %llu are there", settle->count,
                 (unsigned long long)(blocks - old));
    settle->old_blocks = old;
    settle->old_evictions = pod_world_evictions(world);
}

/* Fresh blocks are on flash: something happens that they must survive. */
static void settle_disturb(struct settle *settle, bool flushed)
{
    struct pod_world *world = settle->world;
    uint64_t kind = pod_chance(world, 4);

    if (kind < 2)
        settle_restart_targets(world, kind == 1 && flushed);
    else if (kind == 2)
        pod_agent_crash(&world->agents[1], false);
    if (world->options.canary == POD_CANARY_FORGET) {
        struct pod_target *target = &world->targets[pod_chance(world, world->target_count)];

        pod_target_crash(target, false, false);
        target->format = true;
    }
    settle_heal(world);
    if (kind == 1 && flushed)
        settle_recount(settle);
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* What fits is there. */
static void settle_what_fits(struct settle *settle)
{
    struct pod_world *world = settle->world;
    bool with_flush = pod_chance(world, 2) == 0;
    uint32_t hits;

    settle->old_blocks = pod_world_blocks(world);
    settle->old_evictions = pod_world_evictions(world);
    settle_put(settle, 0, settle_fresh, 1, with_flush);
    if (with_flush)
        settle_flush(settle, 0, true);
    settle_account(settle);
    settle_disturb(settle, with_flush);
    settle_remove(settle, 0);
    settle_account(settle);
    (void)settle_read(settle, 1, SHM_OP_EXISTS, true);
    hits = settle_read(settle, 1, SHM_OP_GET, true);
    if (hits != settle->count - settle->removals)
        pod_fail(world, POD_FAULT_FORGOT, "%u hits", hits);
    (void)settle_read(settle, 0, SHM_OP_GET, true);
    settle_account(settle);
    pod_tell(world, "%u blocks that fit are there", hits);
}

/* Of more than fits, what is missing was evicted. */
static void settle_what_does_not(struct settle *settle)
{
    struct pod_world *world = settle->world;
    uint64_t old_blocks = settle->old_blocks;
    uint64_t used = 0, capacity = 0, evictions, missing;
    uint32_t hits;

    settle_put(settle, 0, settle_more, (world->target_count + POD_TARGETS - 1) / POD_TARGETS,
               false);
    settle_account(settle);
    pod_agent_crash(&world->agents[1], false); /* its memory is cold again */
    settle_heal(world);
    hits = settle_read(settle, 1, SHM_OP_GET, false);
    evictions = pod_world_evictions(world) - settle->old_evictions;
    missing = settle->count - settle->removals - hits;
    if (missing + old_blocks != evictions + settle_old_blocks(settle))
        pod_fail(world, POD_FAULT_FORGOT,
                 "%llu blocks are missing, %llu were evicted, of others %llu of %llu are left",
                 (unsigned long long)missing, (unsigned long long)evictions,
                 (unsigned long long)settle_old_blocks(settle), (unsigned long long)old_blocks);
    for (uint32_t i = 0; i < world->target_count; i++) {
        used += world->targets[i].stats->used_bytes;
        capacity += world->targets[i].stats->capacity_bytes;
    }
    if (missing == 0 || used < capacity / 2)
        pod_fail(world, POD_FAULT_FORGOT, "%llu missing, %llu of %llu bytes of flash in use",
                 (unsigned long long)missing, (unsigned long long)used,
                 (unsigned long long)capacity);
    pod_tell(world, "%u of %u blocks are there, %llu evicted, %llu of %llu bytes in use", hits,
             settle->count, (unsigned long long)evictions, (unsigned long long)used,
             (unsigned long long)capacity);
}

void pod_settle_brief(struct pod_world *world)
{
    pod_storm_end(world);
    settle_heal(world);
    settle_nothing_held(world);
}

void pod_settle(struct pod_world *world)
{
    struct settle settle = {.world = world, .first = world->model.count};

    settle.jobs = calloc(SETTLE_JOBS_MAX, sizeof(settle.jobs[0]));
    settle.removed = calloc(SETTLE_JOBS_MAX, sizeof(settle.removed[0]));
    check(settle.jobs != NULL && settle.removed != NULL);
    pod_storm_end(world);
    settle_heal(world);
    settle_nothing_held(world);
    settle_flush(&settle, 0, false);
    /* Drives that went out of service come back. And what was evicted from segments that are not
     * written over yet is back as well, or hidden by a newer version: the counters are exact. */
    settle_restart_targets(world, false);
    settle_heal(world);
    settle_what_fits(&settle);
    settle_nothing_held(world);
    /* A server with a drive of its own hits there what the pod has evicted. */
    if (pod_chance(world, 3) == 0 && !world->weather.own_drives)
        settle_what_does_not(&settle);
    settle_nothing_held(world);
    free(settle.jobs);
    free(settle.removed);
}
