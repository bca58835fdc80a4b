/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/tier_open.c: whose drive it is that an agent has beside a pod, and whether what it holds is
 * to be trusted: see tier.h.
 *
 * Called by tier.c before the reactor runs.
 */
#include "agent/agent_int.h"

static bool note_has(const struct agent_tier_note_df *note, const struct uuid *enclosure)
{
    for (uint32_t i = 0; i < LIMIT_ENCLOSURES && !uuid_is_nil(&note->enclosures[i]); i++)
        if (uuid_equal(&note->enclosures[i], enclosure))
            return true;
    return false;
}

/* Why what it holds is not to be used; NULL: it is. */
static const char *note_doubt(const struct agent_tier_note_df *found, const struct agent_opts *opts)
{
    if (le64_get(found->state) != AGENT_TIER_NOTE_CLEAN)
        return "it was not closed by the agent that used it, so it may hold blocks that were "
               "replaced";
    for (uint32_t i = 0; i < opts->enclosure_count; i++)
        if (note_has(found, &opts->enclosures[i].uuid))
            return NULL;
    return "it holds blocks of another pod";
}

/* What is a drive of an agent beside a pod is used, or formatted; all else is not ours. */
static icms_err tier_owner(struct agent_tier *tier, const struct agent_opts *opts,
                           const struct store_opts *store, struct err_why *why)
{
    struct agent_tier_note_df found;
    struct uuid drive;
    bool lost = false;
    icms_err err = store_note_read(tier->agent->env, store->path, why, &drive, &found, &lost);

    if (err != ICMS_OK)
        return err;
    if (!agent_tier_note_is(&found))
        return err_set(why, ICMS_FOREIGN,
                       "%s is a drive of an enclosure, or of an agent without a pod, or its "
                       "beginning is damaged; give the agent another one, or erase it if what it "
                       "holds is not needed",
                       store->path);
    tier->emptied = note_doubt(&found, opts);
    return tier->emptied == NULL ? ICMS_OK : store_format(tier->agent->env, store, true, why);
}

static void tier_note_make(struct agent_tier *tier, const struct agent_opts *opts)
{
    memcpy(tier->note.kind, AGENT_TIER_NOTE_KIND, sizeof(tier->note.kind));
    tier->note.state = le64_of(AGENT_TIER_NOTE_CLEAN); /* until it is begun */
    for (uint32_t i = 0; i < opts->enclosure_count; i++)
        tier->note.enclosures[i] = opts->enclosures[i].uuid;
}

/* For store_ops. A volume that was reset has no number here any more; what a drive that is not
 * asked any more does is of no interest. */
static void tier_told(void *arg, uint32_t number, const struct key *key, bool is_there)
{
    const struct agent_tier *tier = arg;

    if (atomic_load_explicit(&tier->state, memory_order_relaxed) == AGENT_TIER_DOWN)
        return;
    for (uint32_t i = 0; i < tier->agent->volume_count; i++)
        if (atomic_load_explicit(&tier->numbers[i], memory_order_relaxed) == number)
            agent_events_drive(tier->agent, i, key, is_there);
}

icms_err agent_tier_open(struct agent_tier *tier, const struct agent_opts *opts,
                         void (*down)(void *tier), struct err_why *why)
{
    struct store_opts store;
    icms_err err;

    agent_local_store_opts(opts, &store);
    store.writes_max = AGENT_TIER_IOS / 2;
    store.volumes = tier->uuids;
    store.volume_count = tier->uuid_count;
    tier_note_make(tier, opts);
    store.note = &tier->note;
    store.ops = (struct store_ops){.down = down, .index = opts->events != 0 ? tier_told : NULL};
    store.owner = tier;
    err = store_format(tier->agent->env, &store, false, why);
    if (err == ICMS_EXISTS)
        err = tier_owner(tier, opts, &store, why);
    if (err == ICMS_OK)
        err = store_open(tier->reactor->loop, &store, why, &tier->store);
    for (uint32_t i = 0; i < opts->volume_count && err == ICMS_OK; i++)
        if (!uuid_is_nil(&opts->volumes[i].uuid))
            err = store_volume_limit(tier->store,
                                     atomic_load_explicit(&tier->numbers[i], memory_order_relaxed),
                                     opts->volumes[i].quota_bytes, NULL, why);
    return err;
}
