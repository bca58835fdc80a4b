/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/link.c: what is known of a link, and by all of them of an enclosure: state, why it is not
 * used, volumes. What becomes of them is decided in enclosure.c.
 *
 * On its reactor's loop.
 */
#include "agent/agent_int.h"

#include <stdio.h>

/* ---- state ---------------------------------------------------------------------------------- */

void agent_enclosure_text_set(struct agent_enclosure *enclosure, struct agent_link *link,
                              const char *text)
{
    uint64_t now_ns = reactor_now_ns(enclosure->reactor);

    pthread_mutex_lock(&enclosure->text_lock);
    snprintf(enclosure->last_error, sizeof(enclosure->last_error), "%s", text);
    enclosure->last_error_ns = now_ns;
    if (link != NULL) {
        snprintf(link->last_error, sizeof(link->last_error), "%s", text);
        link->last_error_ns = now_ns;
    }
    pthread_mutex_unlock(&enclosure->text_lock);
}

void agent_link_state_set(struct agent_link *link, enum agent_enclosure_state state)
{
    atomic_store_explicit(&link->state, state, memory_order_relaxed);
}

enum agent_enclosure_state agent_link_state(const struct agent_link *link)
{
    return (enum agent_enclosure_state)atomic_load_explicit(&link->state, memory_order_relaxed);
}

bool agent_link_is_connected(const struct agent_link *link)
{
    return link->own.ctrl != NULL && nvmf_ctrl_is_up(link->own.ctrl);
}

bool agent_link_is_up(const struct agent_link *link)
{
    return agent_link_is_connected(link) && (agent_link_state(link) == AGENT_ENCLOSURE_UP ||
                                             agent_link_state(link) == AGENT_ENCLOSURE_SLOW);
}

uint32_t agent_enclosure_links_up(const struct agent_enclosure *enclosure)
{
    uint32_t up = 0;

    for (uint32_t i = 0; i < LIMIT_LINKS; i++)
        up |= (uint32_t)agent_link_is_up(&enclosure->links[i]) << i;
    return up;
}

uint32_t agent_enclosure_links_in(const struct agent_enclosure *enclosure,
                                  enum agent_enclosure_state state)
{
    uint32_t in = 0;

    for (uint32_t i = 0; i < LIMIT_LINKS; i++)
        in |= (uint32_t)(enclosure->links[i].own.ctrl != NULL &&
                         agent_link_state(&enclosure->links[i]) == state)
              << i;
    return in;
}

/* ---- volumes -------------------------------------------------------------------------------- */

/* What a volume's values are, for people. */
static const char *enclosure_kind(bool sealed, bool encrypted)
{
    return encrypted ? "encrypted" : sealed ? "sealed" : "raw";
}

/* The namespace of a volume there, or NULL. A volume that is sealed here and raw there, or
 * encrypted at one end, is not ours. */
static const struct nvmf_volume *link_volume_find(struct agent_link *link,
                                                  const struct volume_spec *spec)
{
    const struct nvmf_volume *found = NULL;
    char text[LIMIT_REASON_BYTES];

    if (!uuid_is_nil(&spec->uuid)) /* the pod has it */
        found = nvmf_ctrl_volume(link->own.ctrl, &spec->uuid);

    if (found == NULL || !found->icms ||
        (found->sealed == spec->sealed && found->encrypted == spec->encrypted))
        return found;
    snprintf(text, sizeof(text), "volume %s is %s here and %s there", spec->name,
             enclosure_kind(spec->sealed, spec->encrypted),
             enclosure_kind(found->sealed, found->encrypted));
    agent_enclosure_text_set(link->enclosure, link, text);
    return NULL;
}

/* Looks again, give or take a quarter, for volumes that may be attached later. */
static void link_look_arm(struct agent_link *link)
{
    struct agent_reactor *reactor = link->enclosure->reactor;
    uint64_t look_ns = AGENT_LOOK_PROBES * (uint64_t)reactor->agent->opts.probe_ms * 1000000;
    uint64_t jitter_ns = loop_random(reactor->loop) % (look_ns / 2 + 1);

    if (!loop_timer_armed(&link->look))
        loop_timer_start(reactor->loop, &link->look,
                         reactor_now_ns(reactor) + look_ns - look_ns / 4 + jitter_ns);
}

void agent_link_look(struct loop_timer *timer)
{
    nvmf_ctrl_look(container_of(timer, struct agent_link, look)->own.ctrl);
}

/* Whether the enclosure lacks a volume: no link that is up has it. Without one nobody knows. */
static void enclosure_missing_set(struct agent_enclosure *enclosure, struct agent_shard *shard)
{
    uint32_t up = agent_enclosure_links_up(enclosure);
    bool lacks = up != 0;

    for (uint32_t left = up; left != 0; left &= left - 1)
        lacks = lacks && enclosure->links[__builtin_ctz(left)].nsid[shard->number] == 0;
    /* Whoever stood in for it may have its blocks. */
    if (agent_shard_missing_set(shard, enclosure->number, lacks) && !lacks && up != 0)
        atomic_store_explicit(&enclosure->appeared_ns[shard->number],
                              reactor_now_ns(enclosure->reactor), memory_order_relaxed);
}

void agent_enclosure_missing_set_all(struct agent_enclosure *enclosure)
{
    for (uint32_t i = 0; i < enclosure->agent->volume_count; i++)
        enclosure_missing_set(enclosure, &enclosure->reactor->shards[i]);
}

void agent_link_volumes_read(struct agent_link *link)
{
    struct agent_enclosure *enclosure = link->enclosure;

    for (uint32_t i = 0; i < enclosure->agent->volume_count; i++) {
        const struct volume_spec *spec = &enclosure->reactor->shards[i].spec;
        const struct nvmf_volume *found = link_volume_find(link, spec);

        link->nsid[i] = found == NULL ? 0 : found->nsid;
        link->value_bytes_max[i] = found == NULL ? 0 : found->value_bytes_max;
        if (found != NULL) /* foreign targets have what they have */
            atomic_store_explicit(&enclosure->value_max_there[i],
                                  found->icms &&
                                          found->value_bytes_max != volume_stored_bytes_max(spec)
                                      ? found->value_bytes_max
                                      : 0,
                                  memory_order_relaxed);
        if (found == NULL && !uuid_is_nil(&spec->uuid))
            link_look_arm(link);
    }
    agent_enclosure_missing_set_all(enclosure);
}

void agent_link_volume_lost(struct agent_link *link, struct agent_shard *shard)
{
    link->nsid[shard->number] = 0;
    enclosure_missing_set(link->enclosure, shard);
    link_look_arm(link);
}

static void link_volume_set(struct agent_link *link, uint32_t volume, const struct uuid *uuid)
{
    link->nsid[volume] = 0;
    link->value_bytes_max[volume] = 0;
    if (link->next.ctrl != NULL)
        nvmf_ctrl_wanted_set(link->next.ctrl, volume, uuid);
    if (link->own.ctrl == NULL)
        return;
    nvmf_ctrl_wanted_set(link->own.ctrl, volume, uuid);
    nvmf_ctrl_look(link->own.ctrl);
}

void agent_enclosure_volume_set(struct agent_enclosure *enclosure, uint32_t volume)
{
    struct agent_shard *shard = &enclosure->reactor->shards[volume];

    for (int i = 0; i < 2; i++)
        if (enclosure->asked[i].volume == volume)
            enclosure->asked[i].is_known = false;
    atomic_store_explicit(&enclosure->appeared_ns[volume], 0, memory_order_relaxed);
    (void)agent_shard_missing_set(shard, enclosure->number, uuid_is_nil(&shard->spec.uuid));
    for (uint32_t i = 0; i < LIMIT_LINKS; i++)
        link_volume_set(&enclosure->links[i], volume, &shard->spec.uuid);
}

/* ---- counters ------------------------------------------------------------------------------- */

void agent_link_counters_reset(struct agent_link *link)
{
    uint64_t *const counters[] = {&link->commands, &link->exclusions, &link->slow_total,
                                  &link->load_bytes, &link->store_bytes};

    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
        counter_set(counters[i], 0);
    atomic_store_explicit(&link->tls, 0, memory_order_relaxed);
    atomic_store_explicit(&link->auth, AGENT_AUTH_NONE, memory_order_relaxed);
    atomic_store_explicit(&link->is_misdirected, false, memory_order_relaxed);
    agent_link_state_set(link, AGENT_ENCLOSURE_CONNECTING);
    pthread_mutex_lock(&link->enclosure->text_lock);
    link->last_error[0] = 0;
    pthread_mutex_unlock(&link->enclosure->text_lock);
}

void agent_enclosure_counters_reset(struct agent_enclosure *enclosure)
{
    uint64_t *const counters[] = {
        &enclosure->exclusions,  &enclosure->probes,        &enclosure->load_bytes,
        &enclosure->store_bytes, &enclosure->slow_total,    &enclosure->checksum_errors,
        &enclosure->auths,       &enclosure->auths_refused, &enclosure->failovers,
    };

    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
        counter_set(counters[i], 0);
    memset(enclosure->op_ns, 0, sizeof(enclosure->op_ns));
    memset(&enclosure->estimate_error, 0, sizeof(enclosure->estimate_error));
    estimate_forget(&enclosure->estimate);
    enclosure->was_relinked = false;
    for (uint32_t i = 0; i < LIMIT_AGENT_VOLUMES; i++) {
        atomic_store_explicit(&enclosure->appeared_ns[i], 0, memory_order_relaxed);
        atomic_store_explicit(&enclosure->run_blocks_others[i], 0, memory_order_relaxed);
        atomic_store_explicit(&enclosure->value_max_there[i], 0, memory_order_relaxed);
    }
    for (uint32_t i = 0; i < LIMIT_LINKS; i++)
        agent_link_counters_reset(&enclosure->links[i]);
    atomic_store_explicit(&enclosure->enclosures_differ, false, memory_order_relaxed);
    atomic_store_explicit(&enclosure->weights_differ, false, memory_order_relaxed);
    atomic_store_explicit(&enclosure->epoch_there, 0, memory_order_relaxed);
    atomic_store_explicit(&enclosure->included_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&enclosure->tried, false, memory_order_relaxed);
    atomic_store_explicit(&enclosure->state, AGENT_ENCLOSURE_CONNECTING, memory_order_relaxed);
    atomic_store_explicit(&enclosure->share_percent, 100, memory_order_relaxed);
    pthread_mutex_lock(&enclosure->text_lock);
    enclosure->last_error[0] = 0;
    enclosure->damaged_ns = 0;
    pthread_mutex_unlock(&enclosure->text_lock);
}
