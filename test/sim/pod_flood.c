/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A neighbour that stores as fast as it can: what one volume's loads lose by it.
 *
 * Nothing goes wrong. A client loads blocks of one volume, most of them from the pod, first alone
 * and then while five clients of both agents store into another volume, more than the pod holds.
 * The loads have to be the hits that they were, as who is most over its share is evicted, and their
 * p99 at most twice what it was.
 *
 * Control.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "pod.h"

#define FLOOD_BLOCKS  40   /* that are loaded; the arena holds 14                   */
#define FLOOD_KEYS    2000 /* that are stored: more than all drives hold             */
#define FLOOD_LOADS   4000 /* of which p99 is taken                                 */
#define FLOOD_STORES  6000 /* of each client: more than it can do meanwhile         */
#define FLOOD_LIMIT   (60000 * MS)
#define FLOOD_CLIENTS ((uint32_t)6) /* of the small pod */

struct flood {
    struct pod_world *world;
    uint32_t blocks, keys; /* first ones, in the model */
    struct pod_job loads[FLOOD_LOADS];
    struct pod_job stores[FLOOD_CLIENTS][FLOOD_STORES];
    uint64_t ns[FLOOD_LOADS];
};

static int order_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Client 0 works off the first so many of its list. */
static void flood_run(struct flood *flood, uint32_t count, uint32_t parallel)
{
    struct pod_world *world = flood->world;
    uint64_t until_ns = sim_now_ns(world->sim) + FLOOD_LIMIT;

    pod_client_jobs(&world->clients[0], flood->loads, count, parallel);
    for (uint32_t done = 0; done < count;) {
        if (sim_now_ns(world->sim) > until_ns)
            pod_fail(world, POD_FAULT_HEAL, "%u of %u loads are over, and it takes too long", done,
                     count);
        pod_world_run(world, sim_now_ns(world->sim) + MS);
        while (done < count && flood->loads[done].done)
            done++;
    }
    pod_client_jobs(&world->clients[0], NULL, 0, 0);
}

/* The blocks that are loaded, on flash. */
static void flood_keep(struct flood *flood)
{
    struct pod_world *world = flood->world;

    for (uint32_t i = 0; i < FLOOD_BLOCKS; i++) {
        uint32_t key = pod_model_key_new(world, 0, (uint64_t)1 << 40 | i / 8);

        flood->blocks = i == 0 ? key : flood->blocks;
        flood->loads[i] = (struct pod_job){.op = SHM_OP_PUT,
                                           .flags = SHM_FLAG_ON_FLASH,
                                           .key = key,
                                           .version = pod_model_put(world, key, 0),
                                           .deadline_ns = 2000 * MS};
    }
    flood_run(flood, FLOOD_BLOCKS, 4);
    for (uint32_t i = 0; i < FLOOD_BLOCKS; i++)
        if (flood->loads[i].status != ICMS_OK)
            pod_fail(world, POD_FAULT_HEAL, "a store failed though all is well: %s",
                     icms_err_name(flood->loads[i].status));
}

/* Loads blocks at random; the p99, and how many were hits. */
static uint64_t flood_load(struct flood *flood, uint32_t *out_hits)
{
    struct pod_world *world = flood->world;

    for (uint32_t i = 0; i < FLOOD_LOADS; i++)
        flood->loads[i] =
            (struct pod_job){.op = SHM_OP_GET,
                             .key = flood->blocks + (uint32_t)pod_chance(world, FLOOD_BLOCKS),
                             .deadline_ns = 1000 * MS};
    flood_run(flood, FLOOD_LOADS, 4);
    *out_hits = 0;
    for (uint32_t i = 0; i < FLOOD_LOADS; i++) {
        flood->ns[i] = flood->loads[i].took_ns;
        *out_hits += flood->loads[i].status == ICMS_OK;
    }
    qsort(flood->ns, FLOOD_LOADS, sizeof(flood->ns[0]), order_u64);
    return flood->ns[FLOOD_LOADS * 99 / 100];
}

/* All other clients store. */
static void flood_begin(struct flood *flood)
{
    struct pod_world *world = flood->world;

    for (uint32_t i = 0; i < FLOOD_KEYS; i++) {
        uint32_t key = pod_model_key_new(world, 2, (uint64_t)2 << 40 | i / 8);

        flood->keys = i == 0 ? key : flood->keys;
    }
    for (uint32_t c = 1; c < FLOOD_CLIENTS; c++) {
        for (uint32_t i = 0; i < FLOOD_STORES; i++) {
            uint32_t key = flood->keys + (uint32_t)pod_chance(world, FLOOD_KEYS);

            flood->stores[c][i] = (struct pod_job){.op = SHM_OP_PUT,
                                                   .flags = SHM_FLAG_ON_FLASH,
                                                   .key = key,
                                                   .version = pod_model_put(world, key, 0),
                                                   .deadline_ns = 1000 * MS};
        }
        pod_client_jobs(&world->clients[c], flood->stores[c], FLOOD_STORES, POD_CLIENT_OPS);
    }
}

/* How many of the stores succeeded; ends them. */
static uint32_t flood_end(struct flood *flood)
{
    struct pod_world *world = flood->world;
    uint32_t stored = 0, sent = 0;

    for (uint32_t c = 1; c < FLOOD_CLIENTS; c++) {
        sent = world->clients[c].job_next;
        if (sent == FLOOD_STORES)
            pod_fail(world, POD_FAULT_HEAL, "client %u had nothing more to store", c);
        pod_client_jobs(&world->clients[c], NULL, 0, 0);
        for (uint32_t i = 0; i < sent; i++)
            stored += flood->stores[c][i].done && flood->stores[c][i].status == ICMS_OK;
    }
    pod_world_run(world, sim_now_ns(world->sim) + 2000 * MS); /* what is under way ends */
    return stored;
}

void pod_flood(struct pod_world *world)
{
    struct flood *flood = calloc(1, sizeof(*flood));
    uint64_t alone_ns, beside_ns;
    uint32_t alone_hits, beside_hits, stored;

    check(flood != NULL);
    flood->world = world;
    pod_world_run(world, sim_now_ns(world->sim) + 200 * MS); /* clients attach */
    flood_keep(flood);
    alone_ns = flood_load(flood, &alone_hits);
    flood_begin(flood);
    beside_ns = flood_load(flood, &beside_hits);
    stored = flood_end(flood);
    (void)printf("p99 of loads: %llu us alone, %llu us beside %u stores; %u and %u hits of %d\n",
                 (unsigned long long)(alone_ns / US), (unsigned long long)(beside_ns / US), stored,
                 alone_hits, beside_hits, FLOOD_LOADS);
    if (alone_hits != FLOOD_LOADS || beside_hits != FLOOD_LOADS)
        pod_fail(world, POD_FAULT_FORGOT, "loads missed beside a flood of stores");
    if (stored < 1000)
        pod_fail(world, POD_FAULT_HEAL, "the flood was none: %u stores", stored);
    if (pod_world_evictions(world) == 0)
        pod_fail(world, POD_FAULT_HEAL, "the flood did not fill the drives");
    if (beside_ns > 2 * alone_ns)
        pod_fail(world, POD_FAULT_LATE, "loads take more than twice as long beside the flood");
    free(flood);
}
