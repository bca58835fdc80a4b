/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/link.c: the attachment to one agent: memory, events, lease entries.
 *
 * Made by attach.c (unix:) and src/inprocess (pod:, dir:), freed by icms_close or when the agent of
 * a dir: is replaced. Everything that came from the agent was viewed, that is bounded, before use.
 */
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "client/client_int.h"

icms_err client_link_new(struct client_link **out_link)
{
    struct client_link *link = calloc(1, sizeof(*link));

    if (link == NULL)
        return ICMS_NO_MEMORY;
    list_init(&link->retired);
    link->sock = -1;
    for (uint32_t i = 0; i < LIMIT_LOOPS; i++)
        link->agent_events[i] = -1;
    link->client_event = -1;
    *out_link = link;
    return ICMS_OK;
}

/* Whether two shards are of one volume. */
static bool link_is_alike(const struct shm_arena *a, const struct shm_arena *b)
{
    return a->slot_count == b->slot_count && a->volume == b->volume && a->sealed == b->sealed &&
           a->encrypted == b->encrypted && a->value_bytes_max == b->value_bytes_max &&
           a->run_blocks == b->run_blocks && strcmp(a->name, b->name) == 0;
}

/* Of each arena the shards of all reactors. */
static icms_err link_view_arenas(struct client_link *link, struct err_why *why)
{
    link->shards =
        calloc((size_t)link->arena_count * link->reactor_count + 1, sizeof(link->shards[0]));
    if (link->shards == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < link->arena_count; i++) {
        uint64_t offset = *(const volatile uint64_t *)&link->rings[0].header->arena_offsets[i];

        for (uint32_t r = 0; r < link->reactor_count; r++) {
            struct shm_arena *shard = &link->shards[i * link->reactor_count + r];
            icms_err err = shm_arena_view(link->maps[i].base, link->maps[i].bytes, r,
                                          link->reactor_count, offset, shard);

            /* One table has room for all of them, and what holds for one holds for all. */
            if (err == ICMS_OK && !link_is_alike(shard, shard - r))
                err = ICMS_PROTOCOL;
            if (err != ICMS_OK)
                return err_set(why, err,
                               "the agent's arena %u makes no sense; do the versions of "
                               "icms-agent and this program agree?",
                               i);
        }
    }
    return ICMS_OK;
}

icms_err client_link_view(struct client_link *link, struct err_why *why)
{
    icms_err err = ICMS_OK;

    if (shm_reactor_count(link->region.base, link->region.bytes) != link->reactor_count)
        err = ICMS_PROTOCOL;
    for (uint32_t r = 0; r < link->reactor_count && err == ICMS_OK; r++)
        err = shm_ring_view(link->region.base, link->region.bytes, r, &link->rings[r]);
    if (err != ICMS_OK)
        return err_set(why, err,
                       "the agent's client region makes no sense; do the versions of "
                       "icms-agent and this program agree?");
    err = link_view_arenas(link, why);
    if (err != ICMS_OK)
        return err;
    link->load_deadline_ms =
        (uint32_t)u64_min(link->rings[0].header->load_deadline_ms, LIMIT_DEADLINE_MS);
    link->store_deadline_ms =
        (uint32_t)u64_min(link->rings[0].header->store_deadline_ms, LIMIT_DEADLINE_MS);
    err = staging_init(&link->staging, link->rings[0].staging_bytes);
    if (err != ICMS_OK)
        return err_set(why, err, "the agent gives %llu bytes for stores, which is too little",
                       (unsigned long long)link->rings[0].staging_bytes);
    return ICMS_OK;
}

/* Links that a driver keeps, whose handles may be closed: for who looks at this process. */
static struct client_link *_Atomic links_kept;

static void link_unmap(struct client_map *map)
{
    if (map->base != NULL && map->bytes != 0)
        sys_unmap(map->base, map->bytes);
    map->base = NULL;
}

void client_link_free(struct client_link **link)
{
    struct client_link *l = *link;

    *link = NULL;
    if (l == NULL)
        return;
    if (l->kept) {
        l->kept_next = atomic_load(&links_kept);
        while (!atomic_compare_exchange_weak(&links_kept, &l->kept_next, l)) {
        }
        return;
    }
    if (l->inside != NULL) {
        client_inside_free(&l->inside);
    } else {
        link_unmap(&l->region);
        for (uint32_t i = 0; i < l->arena_count; i++)
            link_unmap(&l->maps[i]);
    }
    for (uint32_t i = 0; i < LIMIT_LOOPS && l->events_owned; i++)
        if (l->agent_events[i] >= 0)
            sys_close(l->agent_events[i]);
    if (l->events_owned && l->client_event >= 0)
        sys_close(l->client_event);
    for (uint32_t i = 0; i < l->fd_count; i++)
        if (l->fds[i] >= 0)
            sys_close(l->fds[i]);
    if (l->sock >= 0)
        sys_close(l->sock);
    staging_fini(&l->staging);
    free(l->shards);
    free(l);
}

bool client_link_used(const struct client_link *link)
{
    for (uint32_t i = 0; i < CLIENT_BUFFERS; i++)
        if (link->buffers[i].used)
            return true;
    return link->leases != 0;
}

/* Takes a link off the handle; it is freed when its leases and buffers are back. Lock. */
static void client_link_retire(struct icms *icms)
{
    struct client_link *link = icms->link;

    icms->link = NULL;
    sys_set_remove(icms->epoll_fd, link->client_event);
    if (link->sock >= 0)
        sys_close(link->sock);
    link->sock = -1;
    list_push(&icms->retired, &link->retired);
    client_link_rele(link);
}

void client_link_rele(struct client_link *link)
{
    if (list_empty(&link->retired) || client_link_used(link) ||
        !client_arenas_unpin(link->icms, link))
        return;
    list_remove(&link->retired);
    client_link_free(&link);
}

void client_link_replace(struct icms *icms)
{
    client_quiesce(icms); /* there is no link that is up: nothing begins */
    client_lock(icms);
    client_ops_reset(icms);
    if (icms->link != NULL)
        client_link_retire(icms);
    client_accounts_lose(icms);
    icms->link = icms->attaching;
    icms->attaching = NULL;
    if (client_link_watch(icms) != ICMS_OK) { /* tried again later */
        icms->link->down = true;
        icms->absent = ICMS_PEER_DOWN;
    }
    client_volumes_refresh(icms);
    client_arenas_pin_again(icms);
    client_unlock(icms);
}

/* ---- leases --------------------------------------------------------------------------------- */

uint32_t client_lease_take(struct client_link *link, bool user)
{
    uint32_t first = user ? 0 : CLIENT_LEASES_USER / 64;
    uint32_t end = user ? CLIENT_LEASES_USER / 64 : SHM_LEASES / 64;

    for (uint32_t i = first; i < end; i++) {
        uint64_t taken = atomic_load_explicit(&link->leases_taken[i], memory_order_relaxed);

        while (taken != UINT64_MAX) {
            uint32_t bit = (uint32_t)__builtin_ctzll(~taken);

            if (atomic_compare_exchange_weak_explicit(&link->leases_taken[i], &taken,
                                                      taken | (uint64_t)1 << bit,
                                                      memory_order_acquire, memory_order_relaxed))
                return i * 64 + bit;
        }
    }
    return CLIENT_LEASE_NONE;
}

void client_lease_let_go(struct client_link *link, uint32_t lease)
{
    atomic_store_explicit(&link->rings[0].leases[lease], 0, memory_order_release);
    (void)atomic_fetch_and_explicit(&link->leases_taken[lease / 64], ~((uint64_t)1 << lease % 64),
                                    memory_order_release);
}

void client_lease_give(struct client_link *link, uint32_t lease)
{
    check(lease < SHM_LEASES);
    client_lease_let_go(link, lease);
}

bool client_lease_back(struct client_link *link, uint32_t lease)
{
    if (lease >= CLIENT_LEASES_USER || link->leases == 0 ||
        (atomic_load_explicit(&link->leases_taken[lease / 64], memory_order_relaxed) >> lease % 64 &
         1) == 0)
        return false;
    client_lease_give(link, lease);
    if (link->privates[lease].bytes != 0)
        staging_give(&link->icms->crypt->staging, link->privates[lease].offset,
                     link->privates[lease].bytes);
    link->privates[lease].bytes = 0;
    link->leases--;
    return link->leases == 0;
}
