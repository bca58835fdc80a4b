/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decisions of policy.h. Called by the store on its loop and by icms replay.
 *
 * Invariants. A state is 0, or 1 + reads * STEPS + step: how often the block was read, and the step
 * of its volume's clock at which it counts as wanted, modulo STEPS. The clock makes a step whenever
 * one part in 30 of the volume's share was written. A block that is not wanted is due before the
 * share was written once, and one that is read often counts as wanted at most STEP_AHEAD steps
 * later than it was, so STEPS steps tell early from late; where they do not, the block stays once
 * too long.
 */
#include "policy/policy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "policy/learn.h"

#define POLICY_READS_MAX   3
#define POLICY_STEPS_SHARE 30 /* steps while a volume's share is written once      */
#define POLICY_STEP_AHEAD  20 /* a block counts as wanted at most so many later    */
#define POLICY_STEPS_LATE  1  /* a block is due for a while when it is for so many */
#define POLICY_STEPS_DUE   18 /* where nobody chooses, blocks are due behind so many */
static_assert((POLICY_READS_MAX + 1) * POLICY_STEPS <= UINT8_MAX, "a state fits");

/* A block that was read counts as wanted so much later, and each further read adds to it: what was
 * read comes back more often than what is new. */
#define POLICY_READ_MS      45000
#define POLICY_READ_MORE_MS 10000

/* A segment of so many blocks holds those of many prompts and is hardly ever due as a whole. Of
 * such segments the one goes whose blocks were wanted least lately in the mean. Those are due that
 * were not wanted in the last part of the time since then; the part gets smaller when less may be
 * carried over than this part of the drive, and is half of it with a budget. */
#define POLICY_BLOCKS_MANY 16
#define POLICY_MANY_PART   0.7
#define POLICY_CARRY_EASY  5
#define POLICY_MEAN        64

/* Parts of a segment's blocks are told in these. */
#define POLICY_WHOLE 65536

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

/* Blocks that were offered and are remembered with where they lie, for one ghost. */
#define POLICY_LEARNT_A_GHOST 2

/* Under this part of what is easy nothing new is written: the rest is for what comes back. */
#define POLICY_KNOWN_PART 0.1

/* With a budget blocks are carried over while a volume's share is written in less than this. What
 * comes back comes back within minutes: a slower drive has it anyway, and its bytes admit more. */
#define POLICY_BUDGET_CARRY_MS ((uint64_t)900 * 1000)

/* A larger budget is none. */
#define POLICY_BUDGET_MAX ((uint64_t)1 << 60)

struct policy_volume {
    uint64_t share_bytes;            /* 0: the clock stands                                */
    uint64_t written_bytes;          /* in this step                                       */
    uint64_t begin_ms[POLICY_STEPS]; /* of each step; the oldest is behind step            */
    int32_t step;                    /* of now                                             */
    int32_t due;                     /* what counts as wanted at this step or before is; 0:
                                        nobody chose yet                                   */
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
    struct learn *learn;  /* which new blocks come back; NULL without a budget               */
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
    icms_err err = ICMS_OK;

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
        err = learn_new(POLICY_LEARNT_A_GHOST * policy->ghost_sets * POLICY_GHOST_WAYS,
                        &policy->learn);
    }
    if (err != ICMS_OK || policy->ghost == NULL ||
        (policy->run_slots != 0 && policy->runs == NULL)) {
        policy_free(&policy);
        return ICMS_NO_MEMORY;
    }
    policy->budget_ms = now_ms;
    policy->budget_bytes = budget_easy(policy, POLICY_EASY_PART);
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        policy->volume[i].step = POLICY_STEPS; /* steps that blocks are compared with are above 0 */
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
    learn_free(&(*policy)->learn);
    free(*policy);
    *policy = NULL;
}

uint64_t policy_bytes(const struct policy *policy)
{
    return sizeof(*policy) + policy->ghost_sets * POLICY_GHOST_WAYS * sizeof(policy->ghost[0]) +
           policy->run_slots * sizeof(policy->runs[0]) +
           (policy->learn != NULL ? learn_bytes(policy->learn) : 0);
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
    volume->step++;
    volume->begin_ms[volume->step % POLICY_STEPS] = now_ms;
}

static uint32_t state_reads(policy_state state)
{
    return state != 0 ? (state - 1u) / POLICY_STEPS : 0;
}

/* The step before which blocks are due: none that a remainder can mean is later than all. */
static int32_t volume_due(const struct policy_volume *volume)
{
    int32_t first = volume->step + POLICY_STEP_AHEAD - POLICY_STEPS + 1 + POLICY_STEPS_LATE;
    int32_t last = volume->step + POLICY_STEP_AHEAD;

    return volume->due < first ? first : volume->due > last ? last : volume->due;
}

/* How many steps from now on a remainder means: above 0 in the future. */
static int32_t step_ahead(const struct policy_volume *volume, uint32_t remainder)
{
    int32_t ahead = (int32_t)((remainder + POLICY_STEPS - (uint32_t)volume->step % POLICY_STEPS) %
                              POLICY_STEPS);

    return ahead > POLICY_STEP_AHEAD ? ahead - POLICY_STEPS : ahead;
}

/* The state of a block that was wanted now. */
static policy_state state_make(const struct policy_volume *volume, uint32_t reads, uint64_t now_ms)
{
    uint64_t back_ms = volume->begin_ms[(volume->step + POLICY_STEPS - 8) % POLICY_STEPS];
    uint64_t step_ms = now_ms > back_ms ? (now_ms - back_ms) / 8 + 1 : 1, ahead = 0;

    if (reads > POLICY_READS_MAX)
        reads = POLICY_READS_MAX;
    if (reads > 0)
        ahead =
            u64_min((POLICY_READ_MS + (reads - 1) * POLICY_READ_MORE_MS + step_ms / 2) / step_ms,
                    POLICY_STEP_AHEAD);
    return (policy_state)(1 + reads * POLICY_STEPS +
                          ((uint32_t)volume->step + ahead) % POLICY_STEPS);
}

void policy_segment_add(struct policy_segment *segment, policy_state state)
{
    if (state != 0 && segment->wanted[(state - 1u) % POLICY_STEPS] < UINT16_MAX)
        segment->wanted[(state - 1u) % POLICY_STEPS]++;
}

void policy_segment_sub(struct policy_segment *segment, policy_state state)
{
    if (state != 0 && segment->wanted[(state - 1u) % POLICY_STEPS] > 0)
        segment->wanted[(state - 1u) % POLICY_STEPS]--;
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

policy_state policy_read(struct policy *policy, uint32_t volume, struct policy_segment *segment,
                         uint64_t hash, uint64_t run, policy_state state, uint64_t now_ms)
{
    policy_state next;
    uint32_t tag, *slot;

    check(volume < LIMIT_VOLUMES);
    if (policy->opts.budget_bytes_day != 0) {
        slot = run_slot(policy, run, &tag);
        *slot = tag;
        learn_back(policy->learn, hash);
    }
    next = state_make(&policy->volume[volume], state_reads(state) + 1, now_ms);
    policy_segment_sub(segment, state);
    policy_segment_add(segment, next);
    return next;
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

policy_state policy_written(struct policy *policy, uint32_t volume, struct policy_segment *segment,
                            uint64_t hash, uint64_t bytes, uint64_t now_ms)
{
    uint32_t *ghost = ghost_find(policy, hash);
    uint32_t reads = 0;
    policy_state state;

    check(volume < LIMIT_VOLUMES);
    if (ghost != NULL) {
        reads = (*ghost & 3) + 1;
        *ghost = 0;
    }
    volume_written(&policy->volume[volume], bytes, now_ms);
    policy->carry_bytes = u64_min(policy->carry_bytes + bytes * policy->opts.carry_permille,
                                  1000 * u64_max(policy->opts.capacity_bytes, bytes));
    state = state_make(&policy->volume[volume], reads, now_ms);
    policy_segment_add(segment, state);
    return state;
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
    if (policy->learn != NULL)
        learn_gained(policy->learn, (double)gained);
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
    learn_spent(policy->learn, (double)bytes);
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

/* How much is there of what is easy; from time to time new blocks are judged anew by it. */
static double admit_level(struct policy *policy)
{
    double easy = (double)budget_easy(policy, POLICY_EASY_PART);
    double level = easy > 0 && policy->budget_bytes > 0 ? (double)policy->budget_bytes / easy : 0;

    learn_level(policy->learn, level);
    return level;
}

/* Whether a new block is worth what is left. Where it lies says most; without that, its run. */
static bool admit_new(struct policy *policy, uint64_t hash, uint64_t run, prompt_hint hint,
                      uint64_t bytes, double level)
{
    policy->short_new = budget_short(policy, POLICY_EASY_PART, policy->short_new);
    policy->short_run = budget_short(policy, POLICY_EASY_RUN_PART, policy->short_run);
    if (hint == 0)
        return !policy->short_new || (!policy->short_run && run_was_read(policy, run));
    learn_offered(policy->learn, hash, hint, bytes);
    return level >= POLICY_KNOWN_PART && learn_wants(policy->learn, hint, run);
}

bool policy_admit(struct policy *policy, uint64_t hash, uint64_t run, prompt_hint hint,
                  uint64_t bytes, uint64_t now_ms)
{
    bool known, wanted;
    double level;

    if (policy->opts.budget_bytes_day == 0)
        return true;
    budget_fill(policy, now_ms);
    level = admit_level(policy);
    known = ghost_find(policy, hash) != NULL;
    learn_back(policy->learn, hash);
    wanted = known || admit_new(policy, hash, run, hint, bytes, level);
    if (known || (wanted && hint == 0))
        learn_spent(policy->learn, (double)bytes);
    if (!budget_has(policy, bytes) || !wanted) {
        if (!known)
            ghost_put(policy, hash, 0);
        return false;
    }
    policy->budget_bytes -= (int64_t)bytes;
    return true;
}

/* ---- reclaim -----------------------------------------------------------------------------------
 */

/* With a budget, carrying over pays on a drive that turns over fast only: see BUDGET_CARRY_MS. */
static bool budget_carries(const struct policy *policy, const struct policy_volume *volume)
{
    uint64_t now_ms = volume->begin_ms[volume->step % POLICY_STEPS];
    uint64_t back_ms = volume->begin_ms[(volume->step - 8) % POLICY_STEPS];

    return policy->opts.budget_bytes_day == 0 ||
           (now_ms - back_ms) * POLICY_STEPS_SHARE / 8 < POLICY_BUDGET_CARRY_MS;
}

void policy_choice_begin(const struct policy *policy, uint32_t volume, uint64_t carry_bytes,
                         struct policy_choice *out_choice)
{
    const struct policy_volume *clock;

    check(volume < LIMIT_VOLUMES);
    clock = &policy->volume[volume];
    *out_choice = (struct policy_choice){.end = clock->step + POLICY_STEP_AHEAD,
                                         .due = volume_due(clock),
                                         .rich = budget_carries(policy, clock) && carry_bytes > 0 &&
                                                 policy->carry_bytes >= 1000 * carry_bytes,
                                         .best_step = INT32_MAX};
}

/* How many blocks count as wanted at a step behind this one, up to where the clock ends. */
static uint32_t segment_behind(const struct policy_segment *segment, int32_t step, int32_t end)
{
    uint32_t first = (uint32_t)(step + 1) % POLICY_STEPS, last = (uint32_t)end % POLICY_STEPS;
    uint32_t sum = 0;

    if (first > last) {
        for (uint32_t i = first; i < POLICY_STEPS; i++)
            sum += segment->wanted[i];
        first = 0;
    }
    for (uint32_t i = first; i <= last; i++)
        sum += segment->wanted[i];
    return sum;
}

/* The mean of the steps at which blocks count as wanted, times POLICY_MEAN. Those of which nothing
 * is known count as wanted at the first step there can be; without any block it is lower. */
static int32_t segment_mean(const struct policy_segment *segment, int32_t end, uint32_t blocks)
{
    int64_t sum = 0;
    uint32_t known = 0;

    for (int32_t step = end; step > end - POLICY_STEPS; step--) {
        sum += (int64_t)step * segment->wanted[step % POLICY_STEPS];
        known += segment->wanted[step % POLICY_STEPS];
    }
    if (blocks > known)
        sum += (int64_t)(end - POLICY_STEPS + 1) * (blocks - known);
    else
        blocks = known;
    return blocks != 0 ? (int32_t)(sum * POLICY_MEAN / blocks) : INT32_MIN;
}

/* All of the blocks have to be due. While there is enough for carrying over, it will also do when
 * some have been for a while: that frees the room that they take in a segment that is wanted. When
 * there is no such segment, the step before which blocks are due moves on to where there is one. */
void policy_choice_add(struct policy_choice *choice, const struct policy_segment *segment,
                       uint32_t blocks, void *owner)
{
    uint32_t kept, due = POLICY_WHOLE;
    int32_t last;

    if (choice->best_due == POLICY_WHOLE)
        return;
    if (blocks >= POLICY_BLOCKS_MANY && !choice->many) {
        choice->many = true; /* what was offered before has few left: it goes when all is due */
        choice->best = NULL;
        choice->best_due = 0;
        choice->best_step = INT32_MAX;
    }
    if (choice->many) {
        int32_t mean = segment_mean(segment, choice->end, blocks);

        if (mean < choice->best_step) {
            choice->best_step = mean;
            choice->best = owner;
        }
        return;
    }
    kept = choice->due < choice->end ? segment_behind(segment, choice->due, choice->end) : 0;
    if (kept > 0)
        due = blocks > kept ? (uint32_t)((uint64_t)(blocks - kept) * POLICY_WHOLE / blocks) : 0;
    if (due == POLICY_WHOLE ||
        (choice->rich && due > choice->best_due &&
         segment_behind(segment, choice->due - POLICY_STEPS_LATE, choice->end) < blocks)) {
        choice->best_due = due;
        choice->best = owner;
    } else if (choice->best_due == 0) {
        for (last = choice->end; segment->wanted[last % POLICY_STEPS] == 0;)
            last--;
        if (last < choice->best_step) {
            choice->best_step = last;
            choice->best = owner;
        }
    }
}

/* In how many of the last steps a block has to have been wanted. */
static int32_t many_window(const struct policy *policy, int32_t steps, bool spares)
{
    double easy = 1000 * (double)policy->opts.capacity_bytes / POLICY_CARRY_EASY + 1;
    double part = policy->opts.budget_bytes_day == 0 ? POLICY_MANY_PART : POLICY_MANY_PART / 2;

    if ((double)policy->carry_bytes < easy && !spares)
        part *= (double)policy->carry_bytes / easy;
    return steps <= 0 ? 0 : (int32_t)(part * (steps < POLICY_STEPS ? steps : POLICY_STEPS) + 0.5);
}

void *policy_choice_end(struct policy *policy, uint32_t volume, const struct policy_choice *choice)
{
    struct policy_volume *clock = &policy->volume[volume];

    if (choice->many && choice->best != NULL)
        clock->due =
            clock->step -
            many_window(policy, clock->step - choice->best_step / POLICY_MEAN, choice->spares);
    else if (choice->best != NULL && choice->best_due == 0)
        clock->due = choice->best_step;
    return choice->best;
}

bool policy_due(const struct policy *policy, uint32_t volume, policy_state state)
{
    const struct policy_volume *clock = &policy->volume[volume];
    int32_t due = clock->due != 0 ? volume_due(clock) : clock->step - POLICY_STEPS_DUE;

    check(volume < LIMIT_VOLUMES);
    return state == 0 || clock->step + step_ahead(clock, (state - 1u) % POLICY_STEPS) <= due;
}

bool policy_carry(struct policy *policy, uint32_t volume, policy_state state, uint64_t bytes,
                  uint64_t now_ms)
{
    check(volume < LIMIT_VOLUMES);
    budget_fill(policy, now_ms);
    if (policy_due(policy, volume, state) || policy->carry_bytes < 1000 * bytes ||
        (policy->opts.budget_bytes_day != 0 && !budget_has(policy, bytes)))
        return false;
    policy->carry_bytes -= 1000 * bytes;
    policy_charge(policy, bytes, now_ms);
    volume_written(&policy->volume[volume], bytes, now_ms);
    return true;
}

void policy_carry_undo(struct policy *policy, uint64_t bytes)
{
    policy->carry_bytes += 1000 * bytes;
    policy_admit_undo(policy, bytes);
    if (policy->learn != NULL)
        learn_spent(policy->learn, -(double)bytes);
}
