/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decisions of policy.h. Called by the store on its loop and by icms replay.
 */
#include "policy/policy.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"

/* The reserve: this part of a day's bytes, or the burst where that is less. */
#define POLICY_RESERVE_PART 96 /* a quarter of an hour */

/* New blocks are refused from where less than `low` of the reserve is left, in percent, to where
 * `high` is there again: so whole prompts are admitted or refused, not blocks here and there. What
 * is below is for blocks that come again. */
struct policy_marks {
    uint8_t low, high;
};
static const struct policy_marks policy_marks_new = {90, 100};
static const struct policy_marks policy_marks_run = {85, 90}; /* of a run that was read */

#define POLICY_GHOST_WAYS     8
#define POLICY_GHOST_KEYS_MIN 1024
#define POLICY_GHOST_KEYS_MAX ((uint64_t)4 << 20)

/* Of a tag: the block was evicted, not only refused. */
#define POLICY_GHOST_EVICTED 1u

/* Always in a tag, so that none is 0. */
#define POLICY_GHOST_USED 2u
#define POLICY_DAY_MS     ((uint64_t)86400 * 1000)

/* Of the runs that were read one is remembered for so many ghosts. */
#define POLICY_GHOSTS_A_RUN 4

/* A larger budget is none. */
#define POLICY_BUDGET_MAX ((uint64_t)1 << 60)

/* What relocation saves up: the largest block, and a little. */
#define POLICY_RELOCATE_MAX ((uint64_t)2 * LIMIT_VALUE_BYTES)

struct policy {
    uint64_t accesses;       /* the last one given to a segment                                 */
    uint64_t relocate_bytes; /* that may be relocated                                           */
    struct policy_opts opts; /* as given                                                        */
    uint32_t *ghost;         /* sets of POLICY_GHOST_WAYS tags; 0: none                         */
    uint64_t ghost_sets;     /* a power of two                                                  */
    uint64_t budget_ms;      /* when budget_left was brought up to date                         */
    int64_t budget_bytes;    /* that may be written now; below 0: owed                          */
    uint64_t budget_part;    /* of a byte, in 1 / POLICY_DAY_MS                                 */
    uint32_t *runs;          /* tags of runs that were read, by hash; NULL without a budget     */
    uint64_t run_slots;      /* of runs; a power of two                                         */
    bool short_new;          /* new blocks are refused: see struct policy_marks                 */
    bool short_run;          /* those of runs that were read, too                               */
};

/* Bytes of a full reserve. */
static int64_t budget_reserve(const struct policy *policy)
{
    return (int64_t)u64_min(policy->opts.budget_bytes_day / POLICY_RESERVE_PART,
                            policy->opts.burst_bytes);
}

/* Takes the memory for so many ghosts, and for what goes with them; false: there is none. */
static bool policy_remember(struct policy *policy, uint64_t keys)
{
    uint64_t ghosts = POLICY_GHOST_WAYS;

    while (ghosts < keys)
        ghosts *= 2;
    policy->ghost_sets = ghosts / POLICY_GHOST_WAYS;
    policy->run_slots = ghosts / POLICY_GHOSTS_A_RUN;
    policy->ghost = calloc(ghosts, sizeof(policy->ghost[0]));
    if (policy->opts.budget_bytes_day != 0)
        policy->runs = calloc(policy->run_slots, sizeof(policy->runs[0]));
    return policy->ghost != NULL && (policy->runs != NULL || policy->opts.budget_bytes_day == 0);
}

icms_err policy_new(const struct policy_opts *opts, uint64_t now_ms, struct policy **out_policy)
{
    struct policy *policy = calloc(1, sizeof(*policy));
    uint64_t keys =
        u64_min(u64_max(opts->ghost_keys, POLICY_GHOST_KEYS_MIN), POLICY_GHOST_KEYS_MAX);

    if (policy == NULL)
        return ICMS_NO_MEMORY;
    policy->opts = *opts;
    policy->opts.budget_bytes_day = u64_min(opts->budget_bytes_day, POLICY_BUDGET_MAX);
    policy->opts.burst_bytes = u64_min(
        opts->burst_bytes != 0 ? opts->burst_bytes : opts->budget_bytes_day, POLICY_BUDGET_MAX);
    policy->budget_ms = now_ms;
    policy->budget_bytes = budget_reserve(policy);
    if (!policy_remember(policy, keys)) {
        policy_free(&policy);
        return ICMS_NO_MEMORY;
    }
    *out_policy = policy;
    return ICMS_OK;
}

void policy_free(struct policy **policy)
{
    if (*policy == NULL)
        return;
    free((*policy)->ghost);
    free((*policy)->runs);
    free(*policy);
    *policy = NULL;
}

/* ---- eviction ----------------------------------------------------------------------------------
 */

void policy_access(struct policy *policy, struct policy_segment *segment, uint64_t hash)
{
    if (segment->last != hash)
        segment->others = segment->access;
    segment->access = ++policy->accesses;
    segment->last = hash;
}

void policy_access_all(struct policy *policy, struct policy_segment *segment)
{
    segment->access = segment->others = ++policy->accesses;
    segment->last = 0;
}

bool policy_relocate(struct policy *policy, uint64_t bytes)
{
    if (policy->opts.budget_bytes_day != 0 || policy->relocate_bytes < bytes)
        return false;
    policy->relocate_bytes -= bytes;
    return true;
}

void policy_relocated(struct policy_segment *segment, uint64_t hash)
{
    if (segment->last != hash)
        return;
    segment->access = segment->others;
    segment->last = 0;
}

/* ---- runs that were read -----------------------------------------------------------------------
 */

/* Where a run is remembered. */
static uint32_t *run_slot(const struct policy *policy, uint64_t run, uint32_t *out_tag)
{
    uint64_t mixed = hash64_mix(~run);

    *out_tag = (uint32_t)(mixed >> 32) | 1u; /* not 0 */
    return &policy->runs[mixed & (policy->run_slots - 1)];
}

static bool run_was_read(const struct policy *policy, uint64_t run)
{
    uint32_t tag;

    return *run_slot(policy, run, &tag) == tag;
}

void policy_read(struct policy *policy, uint64_t run)
{
    uint32_t tag, *slot;

    if (policy->opts.budget_bytes_day == 0)
        return;
    slot = run_slot(policy, run, &tag);
    *slot = tag;
}

/* ---- blocks that are gone ----------------------------------------------------------------------
 */

static uint32_t *ghost_set(const struct policy *policy, uint64_t hash, uint32_t *out_tag)
{
    uint64_t mixed = hash64_mix(hash);

    *out_tag = ((uint32_t)(mixed >> 32) | POLICY_GHOST_USED) & ~POLICY_GHOST_EVICTED;
    return &policy->ghost[(mixed & (policy->ghost_sets - 1)) * POLICY_GHOST_WAYS];
}

static uint32_t *ghost_find(const struct policy *policy, uint64_t hash)
{
    uint32_t tag, *set = ghost_set(policy, hash, &tag);

    for (uint32_t i = 0; i < POLICY_GHOST_WAYS; i++) {
        if ((set[i] & ~POLICY_GHOST_EVICTED) == tag)
            return &set[i];
    }
    return NULL;
}

/* evicted: POLICY_GHOST_EVICTED, or 0. */
static void ghost_put(struct policy *policy, uint64_t hash, uint32_t evicted)
{
    uint32_t tag, *set = ghost_set(policy, hash, &tag);
    uint32_t *at = ghost_find(policy, hash);

    for (uint32_t i = 0; at == NULL && i < POLICY_GHOST_WAYS; i++) {
        if (set[i] == 0)
            at = &set[i];
    }
    if (at == NULL) { /* the oldest of the set goes; the others move up */
        memmove(set, set + 1, (POLICY_GHOST_WAYS - 1) * sizeof(set[0]));
        at = &set[POLICY_GHOST_WAYS - 1];
    }
    *at = tag | evicted;
}

void policy_evicted(struct policy *policy, uint64_t hash)
{
    ghost_put(policy, hash, POLICY_GHOST_EVICTED);
}

bool policy_was_evicted(const struct policy *policy, uint64_t hash)
{
    const uint32_t *ghost = ghost_find(policy, hash);

    return ghost != NULL && (*ghost & POLICY_GHOST_EVICTED) != 0;
}

void policy_written(struct policy *policy, uint64_t hash, uint64_t bytes)
{
    uint32_t *ghost = ghost_find(policy, hash);

    policy->relocate_bytes =
        u64_min(policy->relocate_bytes + bytes / POLICY_RELOCATE_PART, POLICY_RELOCATE_MAX);
    if (ghost != NULL)
        *ghost = 0;
}

/* ---- budgets -----------------------------------------------------------------------------------
 */

static void budget_fill(struct policy *policy, uint64_t now_ms)
{
    uint64_t day = policy->opts.budget_bytes_day;
    uint64_t passed = now_ms > policy->budget_ms ? now_ms - policy->budget_ms : 0;
    uint64_t part = day % POLICY_DAY_MS * u64_min(passed, POLICY_DAY_MS) + policy->budget_part;
    uint64_t gained = day / POLICY_DAY_MS * u64_min(passed, POLICY_DAY_MS) + part / POLICY_DAY_MS;

    policy->budget_ms = u64_max(now_ms, policy->budget_ms);
    policy->budget_part = part % POLICY_DAY_MS;
    gained = u64_min(gained, (uint64_t)((int64_t)policy->opts.burst_bytes - policy->budget_bytes));
    policy->budget_bytes += (int64_t)gained;
}

static bool budget_has(const struct policy *policy, uint64_t bytes)
{
    return policy->budget_bytes >= 0 && (uint64_t)policy->budget_bytes >= bytes;
}

void policy_charge(struct policy *policy, uint64_t bytes, uint64_t now_ms)
{
    if (policy->opts.budget_bytes_day == 0)
        return;
    budget_fill(policy, now_ms);
    policy->budget_bytes -= (int64_t)bytes;
}

void policy_admit_undo(struct policy *policy, uint64_t bytes)
{
    if (policy->opts.budget_bytes_day == 0)
        return;
    policy->budget_bytes += (int64_t)bytes;
    if (policy->budget_bytes > (int64_t)policy->opts.burst_bytes)
        policy->budget_bytes = (int64_t)policy->opts.burst_bytes;
}

int64_t policy_budget_left(struct policy *policy, uint64_t now_ms)
{
    if (policy->opts.budget_bytes_day == 0)
        return INT64_MAX;
    budget_fill(policy, now_ms);
    return policy->budget_bytes;
}

/* Whether new blocks are refused: see struct policy_marks. */
static bool budget_short(const struct policy *policy, const struct policy_marks *marks, bool was)
{
    return policy->budget_bytes < budget_reserve(policy) * (was ? marks->high : marks->low) / 100;
}

/* Whether a new block may be written. */
static bool admit_new(struct policy *policy, uint64_t run)
{
    policy->short_new = budget_short(policy, &policy_marks_new, policy->short_new);
    policy->short_run = budget_short(policy, &policy_marks_run, policy->short_run);
    return !policy->short_new || (!policy->short_run && run_was_read(policy, run));
}

bool policy_admit(struct policy *policy, uint64_t hash, uint64_t run, uint64_t bytes,
                  uint64_t now_ms)
{
    bool known;

    if (policy->opts.budget_bytes_day == 0)
        return true;
    budget_fill(policy, now_ms);
    known = ghost_find(policy, hash) != NULL;
    if ((!known && !admit_new(policy, run)) || !budget_has(policy, bytes)) {
        if (!known)
            ghost_put(policy, hash, 0);
        return false;
    }
    policy->budget_bytes -= (int64_t)bytes;
    return true;
}
