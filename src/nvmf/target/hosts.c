/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of hosts: those that may use a namespace, and those that are connected now. Called at
 * start, by a change of namespaces on its thread, and by registry.c on loop 0.
 *
 * Both are hash tables, so that a Connect does not compare its name with all others. They are sized
 * at start: a set by its names, the table by the connections there may be. The hash has no secret:
 * a host that chooses names with one hash makes its own chain long, by at most the connections
 * there may be.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/hash.h"
#include "nvmf/target/target_int.h"

static uint64_t name_hash(const char *nqn)
{
    return hash64_seed(nqn, strlen(nqn), 0);
}

/* A power of two, at least twice as many. */
static uint32_t slots_for(uint32_t count)
{
    uint32_t slots = 2;

    while (slots < 2 * count)
        slots *= 2;
    return slots;
}

/* ---- who may use a namespace ---------------------------------------------------------------- */

/* Where the name is, or would be. */
static uint32_t *set_slot(const struct nvmft_host_set *set, const char *nqn, uint64_t hash)
{
    uint32_t at = (uint32_t)hash & (set->slots - 1);

    while (set->slot[at] != 0 && strcmp(set->nqn[set->slot[at] - 1], nqn) != 0)
        at = (at + 1) & (set->slots - 1);
    return &set->slot[at];
}

icms_err nvmft_host_set_init(struct nvmft_host_set *set, const char (*nqn)[LIMIT_NQN_BYTES],
                             uint32_t count)
{
    check(count <= LIMIT_VOLUME_HOSTS);
    *set = (struct nvmft_host_set){.nqn = NULL};
    if (count == 0)
        return ICMS_OK;
    set->slots = slots_for(count);
    set->slot = calloc(set->slots, sizeof(set->slot[0]));
    set->nqn = calloc(count, sizeof(set->nqn[0]));
    if (set->slot == NULL || set->nqn == NULL)
        return ICMS_NO_MEMORY;
    memcpy(set->nqn, nqn, count * sizeof(set->nqn[0]));
    for (uint32_t i = 0; i < count; i++)
        *set_slot(set, nqn[i], name_hash(nqn[i])) = i + 1;
    return ICMS_OK;
}

void nvmft_host_set_fini(struct nvmft_host_set *set)
{
    free(set->slot);
    free(set->nqn);
    *set = (struct nvmft_host_set){.nqn = NULL};
}

void nvmft_ns_allowed(const struct nvmft_spaces *spaces, const char *hostnqn, uint8_t proven,
                      struct nvmft_ns_set *out_allowed)
{
    uint64_t words[NVMFT_NS_WORDS] = {0}, hash = name_hash(hostnqn);

    for (uint32_t i = 0; i < spaces->count; i++) {
        const struct nvmft_host_set *set = &spaces->hosts[i];
        bool found = !spaces->ns[i].is_gone && (spaces->ns[i].require & ~proven) == 0 &&
                     (set->slots == 0 || *set_slot(set, hostnqn, hash) != 0);

        words[i / 64] |= (uint64_t)found << i % 64;
    }
    for (uint32_t i = 0; i < NVMFT_NS_WORDS; i++)
        atomic_store_explicit(&out_allowed->word[i], words[i], memory_order_release);
}

bool nvmft_ns_has(const struct nvmft_ns_set *set, uint32_t ns)
{
    return ns < LIMIT_VOLUMES &&
           (atomic_load_explicit(&set->word[ns / 64], memory_order_acquire) >> ns % 64 & 1) != 0;
}

uint32_t nvmft_ns_first(const struct nvmft_ns_set *set)
{
    uint32_t ns = 0;

    while (ns < LIMIT_VOLUMES && !nvmft_ns_has(set, ns))
        ns++;
    return ns;
}

/* ---- who is connected ----------------------------------------------------------------------- */

icms_err nvmft_hosts_init(struct nvmft_hosts *hosts, uint32_t count)
{
    hosts->buckets = slots_for(count);
    hosts->bucket = calloc(hosts->buckets, sizeof(hosts->bucket[0]));
    hosts->host = calloc(count, sizeof(hosts->host[0]));
    if (hosts->bucket == NULL || hosts->host == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++)
        hosts->host[i].next = i + 2 <= count ? i + 2 : 0;
    hosts->unused = 1;
    return ICMS_OK;
}

void nvmft_hosts_fini(struct nvmft_hosts *hosts)
{
    free(hosts->bucket);
    free(hosts->host);
    *hosts = (struct nvmft_hosts){.buckets = 0};
}

/* What leads to the host: its bucket, or the host before it; 0 is there when it is not connected.
 */
static uint32_t *hosts_find(const struct nvmft_hosts *hosts, const char *nqn)
{
    uint32_t *at = &hosts->bucket[name_hash(nqn) & (hosts->buckets - 1)];

    while (*at != 0 && strcmp(hosts->host[*at - 1].nqn, nqn) != 0)
        at = &hosts->host[*at - 1].next;
    return at;
}

uint32_t nvmft_hosts_qpairs(const struct nvmft_hosts *hosts, const char *nqn)
{
    uint32_t at = *hosts_find(hosts, nqn);

    return at == 0 ? 0 : hosts->host[at - 1].qpairs;
}

uint32_t nvmft_hosts_hold(struct nvmft_hosts *hosts, const char *nqn)
{
    uint32_t *at = hosts_find(hosts, nqn);
    struct nvmft_host *host;

    if (*at == 0) { /* there are as many as controllers, and one of those was free */
        check(hosts->unused != 0);
        *at = hosts->unused;
        host = &hosts->host[*at - 1];
        hosts->unused = host->next;
        *host = (struct nvmft_host){.next = 0};
        (void)snprintf(host->nqn, sizeof(host->nqn), "%s", nqn);
    }
    hosts->host[*at - 1].ctrls++;
    return *at - 1;
}

void nvmft_hosts_rele(struct nvmft_hosts *hosts, uint32_t number)
{
    struct nvmft_host *host = &hosts->host[number];
    uint32_t *at;

    check(host->ctrls > 0);
    if (--host->ctrls > 0)
        return;
    check(host->qpairs == 0);
    at = hosts_find(hosts, host->nqn);
    check(*at == number + 1);
    *at = host->next;
    host->next = hosts->unused;
    hosts->unused = number + 1;
}
