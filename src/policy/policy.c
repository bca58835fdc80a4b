/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decisions of policy.h. Called by the store on its loop and by icms replay.
 *
 * Invariants. A state is 0..3, the reads of a block's earlier lives and places, or 4 + (reads - 1)
 * * STEPS + step: it was read where it lies, last in this step of the volume's clock. The clock
 * makes a step whenever a sixth of the volume's share was written, so STEPS steps are one turn-over
 * and a half, and steps seldom repeat while a block lies in one place; where they do, the block
 * seems to be read lately and is carried over once too often.
 */
#include "policy/policy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"

#define POLICY_READS_MAX   3
#define POLICY_STEPS       9
#define POLICY_STEPS_SHARE 6 /* steps while a volume's share is written once */
#define POLICY_STATES      (POLICY_READS_MAX + 1 + POLICY_READS_MAX * POLICY_STEPS)
static_assert(POLICY_STATES <= 1 << POLICY_STATE_BITS, "a state fits");

/* A block is carried over when it was wanted in the last so many percent of the time since its
 * segment was due. */
#define POLICY_WINDOW_PERCENT 60

/* Each read but the first makes a block count as wanted so much later. */
#define POLICY_READ_MS 45000

/* Carrying over may save up as much as the drive holds. With less than one part in so many the
 * window shrinks in proportion, so that what runs short is refused to the blocks that were wanted
 * least lately, not to those that come last. */
#define POLICY_CARRY_EASY 5

/* The budget runs short for blocks of which nothing is known when less than half of this part of a
 * day's bytes is left, or half of the burst where that is less, until there is all of it again. So
 * whole prompts are admitted or refused, not blocks here and there. */
#define POLICY_EASY_PART 480 /* three minutes */

#define POLICY_GHOST_WAYS     8
#define POLICY_GHOST_KEYS_MIN 1024
#define POLICY_GHOST_KEYS_MAX ((uint64_t)4 << 20)
#define POLICY_DAY_MS         ((uint64_t)86400 * 1000)

/* The same for new blocks of runs in which something was read lately: half of it. */
#define POLICY_EASY_RUN_PART (2 * POLICY_EASY_PART)

/* Of the runs that were read one is remembered for so many ghosts. */
#define POLICY_GHOSTS_A_RUN 4

/* With a budget the window for carrying over is so much of itself: what that saves admits more. */
#define POLICY_BUDGET_WINDOW_PERCENT 50

/* A larger budget is none. */
#define POLICY_BUDGET_MAX ((uint64_t)1 << 60)

struct policy_volume {
    uint64_t share_bytes;            /* 0: the clock stands                        */
    uint64_t written_bytes;          /* in this step                               */
    uint64_t begin_ms[POLICY_STEPS]; /* of each step; the oldest is behind step    */
    uint32_t step;                   /* of now                                     */
};

struct policy {
    struct policy_volume volume[LIMIT_VOLUMES]; /* by slot                                    */
    struct policy_opts opts;                    /* as given                                   */
    uint32_t *ghost;      /* sets of POLICY_GHOST_WAYS: tag << 2 | reads; 0: none            */
    uint64_t ghost_sets;  /* a power of two                                                  */
    uint64_t budget_ms;   /* when budget_left was brought up to date                         */
    int64_t budget_bytes; /* that may be written now; below 0: owed                          */
    uint64_t budget_part; /* of a byte, in 1 / POLICY_DAY_MS                                 */
    uint64_t carry_bytes; /* that may be carried over, in thousandths                         */
    uint32_t *runs;       /* tags of runs that were read, by hash; NULL without a budget     */
    uint64_t run_slots;   /* of runs; a power of two                                         */
    bool short_new;       /* the budget ran short for what is new, and has not recovered     */
    bool short_run;       /* the same for what is new in a run that was read                 */
};

void policy_opts_init(struct policy_opts *opts)
{
    *opts = (struct policy_opts){.ghost_keys = POLICY_GHOST_KEYS_MIN, .carry_permille = 146};
}

/* What makes the budget run short: see POLICY_EASY_PART. */
static int64_t budget_easy(const struct policy *policy, uint64_t part)
{
    return (int64_t)u64_min(policy->opts.budget_bytes_day / part, policy->opts.burst_bytes);
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
    policy->ghost_sets = 1;
    while (policy->ghost_sets * POLICY_GHOST_WAYS < keys)
        policy->ghost_sets *= 2;
    policy->ghost = calloc(policy->ghost_sets * POLICY_GHOST_WAYS, sizeof(policy->ghost[0]));
    if (policy->opts.budget_bytes_day != 0) {
        policy->run_slots = policy->ghost_sets * POLICY_GHOST_WAYS / POLICY_GHOSTS_A_RUN;
        policy->runs = calloc(policy->run_slots, sizeof(policy->runs[0]));
    }
    if (policy->ghost == NULL || (policy->run_slots != 0 && policy->runs == NULL)) {
        policy_free(&policy);
        return ICMS_NO_MEMORY;
    }
    policy->budget_ms = now_ms;
    policy->budget_bytes = budget_easy(policy, POLICY_EASY_PART);
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        for (uint32_t step = 0; step < POLICY_STEPS; step++)
            policy->volume[i].begin_ms[step] = now_ms;
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

uint64_t policy_bytes(const struct policy *policy)
{
    return sizeof(*policy) + policy->ghost_sets * POLICY_GHOST_WAYS * sizeof(policy->ghost[0]) +
           policy->run_slots * sizeof(policy->runs[0]);
}

/* ---- the clock of a volume ---------------------------------------------------------------------
 */

void policy_volume_share(struct policy *policy, uint32_t volume, uint64_t bytes)
{
    check(volume < LIMIT_VOLUMES);
    policy->volume[volume].share_bytes = bytes;
}

static void volume_written(struct policy_volume *volume, uint64_t bytes, uint64_t now_ms)
{
    volume->written_bytes += bytes;
    if (volume->share_bytes == 0 ||
        volume->written_bytes < volume->share_bytes / POLICY_STEPS_SHARE)
        return;
    volume->written_bytes = 0;
    volume->step = (volume->step + 1) % POLICY_STEPS;
    volume->begin_ms[volume->step] = now_ms;
}

static uint32_t state_reads(policy_state state)
{
    return state <= POLICY_READS_MAX ? state : (state - POLICY_READS_MAX - 1u) / POLICY_STEPS + 1;
}

/* The end of the step in which the block was read: it may not look older than a block that was
 * written behind it at the time. */
static uint64_t state_read_ms(const struct policy_volume *volume, policy_state state,
                              uint64_t now_ms)
{
    uint32_t step = (state - POLICY_READS_MAX - 1u) % POLICY_STEPS;
    uint64_t begin = volume->begin_ms[step];
    uint64_t end = step == volume->step ? now_ms : volume->begin_ms[(step + 1) % POLICY_STEPS];

    return begin + (end > begin ? (end - begin) : 0);
}

static policy_state state_make(const struct policy_volume *volume, uint32_t reads)
{
    if (reads == 0)
        return 0;
    if (reads > POLICY_READS_MAX)
        reads = POLICY_READS_MAX;
    return (policy_state)(POLICY_READS_MAX + 1 + (reads - 1) * POLICY_STEPS + volume->step);
}

/* Where a run is remembered. */
static uint32_t *run_slot(const struct policy *policy, uint64_t run, uint32_t *out_tag)
{
    uint64_t mixed = hash64_mix(run ^ ~policy->opts.seed);

    *out_tag = (uint32_t)(mixed >> 32) | 1u; /* not 0 */
    return &policy->runs[mixed & (policy->run_slots - 1)];
}

static bool run_was_read(const struct policy *policy, uint64_t run)
{
    uint32_t tag;

    return *run_slot(policy, run, &tag) == tag;
}

policy_state policy_read(struct policy *policy, uint32_t volume, uint64_t run, policy_state state)
{
    uint32_t tag, *slot;

    check(volume < LIMIT_VOLUMES && state < POLICY_STATES);
    if (policy->runs != NULL) {
        slot = run_slot(policy, run, &tag);
        *slot = tag;
    }
    return state_make(&policy->volume[volume], state_reads(state) + 1);
}

/* ---- blocks that are gone ----------------------------------------------------------------------
 */

static uint32_t *ghost_set(const struct policy *policy, uint64_t hash, uint32_t *out_tag)
{
    uint64_t mixed = hash64_mix(hash ^ policy->opts.seed);

    *out_tag = (uint32_t)(mixed >> 34) | 1u; /* 30 bits, not 0 */
    return &policy->ghost[(mixed & (policy->ghost_sets - 1)) * POLICY_GHOST_WAYS];
}

static uint32_t *ghost_find(const struct policy *policy, uint64_t hash)
{
    uint32_t tag, *set = ghost_set(policy, hash, &tag);

    for (uint32_t i = 0; i < POLICY_GHOST_WAYS; i++) {
        if (set[i] >> 2 == tag)
            return &set[i];
    }
    return NULL;
}

static void ghost_put(struct policy *policy, uint64_t hash, uint32_t reads)
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
    *at = tag << 2 | reads;
}

void policy_evicted(struct policy *policy, uint64_t hash, policy_state state)
{
    ghost_put(policy, hash, state_reads(state));
}

policy_state policy_written(struct policy *policy, uint32_t volume, uint64_t hash, uint64_t bytes,
                            uint64_t now_ms)
{
    uint32_t *ghost = ghost_find(policy, hash);
    uint32_t reads = 0;

    check(volume < LIMIT_VOLUMES);
    if (ghost != NULL) {
        reads = (*ghost & 3) + 1;
        *ghost = 0;
    }
    volume_written(&policy->volume[volume], bytes, now_ms);
    policy->carry_bytes = u64_min(policy->carry_bytes + bytes * policy->opts.carry_permille,
                                  1000 * u64_max(policy->opts.capacity_bytes, bytes));
    return state_make(&policy->volume[volume], reads);
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
    policy->budget_bytes += (int64_t)gained;
    if (policy->budget_bytes > (int64_t)policy->opts.burst_bytes)
        policy->budget_bytes = (int64_t)policy->opts.burst_bytes;
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

uint64_t policy_budget_left(struct policy *policy, uint64_t now_ms)
{
    if (policy->opts.budget_bytes_day == 0)
        return UINT64_MAX;
    budget_fill(policy, now_ms);
    return policy->budget_bytes > 0 ? (uint64_t)policy->budget_bytes : 0;
}

/* Whether the budget is short: from less than half of what is easy on, until there is all. */
static bool budget_short(const struct policy *policy, uint64_t part, bool was)
{
    int64_t easy = budget_easy(policy, part);

    return policy->budget_bytes < (was ? easy : easy / 2);
}

bool policy_admit(struct policy *policy, uint64_t hash, uint64_t run, uint64_t bytes,
                  uint64_t now_ms)
{
    bool known, wanted;

    if (policy->opts.budget_bytes_day == 0)
        return true;
    budget_fill(policy, now_ms);
    policy->short_new = budget_short(policy, POLICY_EASY_PART, policy->short_new);
    policy->short_run = budget_short(policy, POLICY_EASY_RUN_PART, policy->short_run);
    known = ghost_find(policy, hash) != NULL;
    wanted = known || !policy->short_new || (!policy->short_run && run_was_read(policy, run));
    if (!budget_has(policy, bytes) || !wanted) {
        if (!known)
            ghost_put(policy, hash, 0);
        return false;
    }
    policy->budget_bytes -= (int64_t)bytes;
    return true;
}

struct policy_verdict policy_carry(struct policy *policy, uint32_t volume, policy_state state,
                                   uint64_t bytes, uint64_t due_ms, uint64_t now_ms)
{
    struct policy_verdict verdict = {.carry = false};
    uint64_t life_ms = now_ms > due_ms ? now_ms - due_ms : 0;
    uint64_t easy = 1000 * policy->opts.capacity_bytes / POLICY_CARRY_EASY + 1;
    uint64_t window_ms = life_ms * POLICY_WINDOW_PERCENT / 100;
    uint64_t age_ms;

    check(volume < LIMIT_VOLUMES && state < POLICY_STATES);
    budget_fill(policy, now_ms);
    if (state <= POLICY_READS_MAX)
        return verdict;
    verdict.wanted_ms = state_read_ms(&policy->volume[volume], state, now_ms) +
                        (uint64_t)(state_reads(state) - 1) * POLICY_READ_MS;
    if (policy->opts.budget_bytes_day != 0)
        window_ms = window_ms * POLICY_BUDGET_WINDOW_PERCENT / 100;
    if (policy->carry_bytes < easy)
        window_ms = (uint64_t)((double)window_ms * (double)policy->carry_bytes / (double)easy);
    age_ms = now_ms > verdict.wanted_ms ? now_ms - verdict.wanted_ms : 0;
    if (age_ms > window_ms || policy->carry_bytes < 1000 * bytes ||
        (policy->opts.budget_bytes_day != 0 && !budget_has(policy, bytes)))
        return verdict;
    verdict.carry = true;
    verdict.state = (policy_state)state_reads(state);
    policy->carry_bytes -= 1000 * bytes;
    policy_charge(policy, bytes, now_ms);
    volume_written(&policy->volume[volume], bytes, now_ms);
    return verdict;
}

void policy_carry_undo(struct policy *policy, uint64_t bytes)
{
    policy->carry_bytes += 1000 * bytes;
    policy_admit_undo(policy, bytes);
}
