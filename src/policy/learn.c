/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which new blocks come back. Called by policy.c; same thread.
 *
 * The threshold. While as much was offered as is remembered, the budget gained so many bytes, and
 * was asked for so many for blocks that are known, whether there were any left or not: counting
 * what was written instead would let one shortage feed the next. What remains, by the bytes of new
 * blocks, is the share of them to write; a full budget makes it larger, an empty one smaller. Cells
 * by how often their blocks came back, the best first, are wanted until they make up that share; of
 * the last of them so much as is missing, run by run, because a prompt with holes is worth its
 * first blocks only.
 */
#include "policy/learn.h"

#include <assert.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/hash.h"

/* Counters fade by this factor each LEARN_FADE_OFFERS blocks: exp(-1 / 16), so that what is as many
 * blocks ago as 16 times that counts about a third. Twice as many changed nothing that could be
 * measured, a third cost 0.3 % of the hits. */
#define LEARN_FADE        0.93941306
#define LEARN_FADE_OFFERS 12500

/* The threshold is made again after so many offers. */
#define LEARN_OFFERS 512

/* A cell with less than so many offers comes back about as often as all of them together. */
#define LEARN_PRIOR 30

/* A cell with less counts for nothing. */
#define LEARN_OFFERED_MIN 0.5

/* A budget that holds all that it should adds so much to the share, an empty one takes it away. */
#define LEARN_LEVEL 0.06

/* A remembered block is its tag, and below it the cell. */
static_assert((PROMPT_CELLS & (PROMPT_CELLS - 1)) == 0, "a cell is some bits");

struct learn_cell {
    double offered; /* new blocks                       */
    double back;    /* of them, offered or read again   */
    double rate;    /* when the threshold was made last */
    double wanted;  /* which part of its runs           */
};

struct learn {
    struct learn_cell cell[PROMPT_CELLS]; /* by hint, without PROMPT_SAID              */
    uint16_t order[PROMPT_CELLS];         /* those with offers, the best first         */
    double offered, back;                 /* all cells together                        */
    double gained_bytes;                  /* by the budget; fades like the counters    */
    double new_bytes;                     /* offered, of which nothing was known       */
    double other_bytes;                   /* that the budget was asked for besides     */
    uint64_t turn;                        /* thresholds so far                         */
    uint32_t since_fade, since_threshold; /* offers                                    */
    uint32_t *key;                        /* remembered blocks; 0: none                */
    uint64_t slots;                       /* of key; a power of two                    */
};

icms_err learn_new(uint64_t keys, struct learn **out_learn)
{
    struct learn *learn = calloc(1, sizeof(*learn));

    if (learn == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < PROMPT_CELLS; i++)
        learn->cell[i].wanted = 1;
    learn->slots = 1;
    while (learn->slots < keys)
        learn->slots *= 2;
    learn->key = calloc(learn->slots, sizeof(learn->key[0]));
    if (learn->key == NULL) {
        learn_free(&learn);
        return ICMS_NO_MEMORY;
    }
    *out_learn = learn;
    return ICMS_OK;
}

void learn_free(struct learn **learn)
{
    if (*learn == NULL)
        return;
    free((*learn)->key);
    free(*learn);
    *learn = NULL;
}

uint64_t learn_bytes(const struct learn *learn)
{
    return sizeof(*learn) + learn->slots * sizeof(learn->key[0]);
}

/* ---- counting --------------------------------------------------------------------------------
 */

/* Where a block is remembered, and as what but for its cell. */
static uint32_t *learn_slot(const struct learn *learn, uint64_t hash, uint32_t *out_tag)
{
    uint64_t mixed = hash64_mix(~hash);

    *out_tag = (uint32_t)(mixed >> 32 | 1u << 31) & ~(PROMPT_CELLS - 1);
    return &learn->key[mixed & (learn->slots - 1)];
}

void learn_back(struct learn *learn, uint64_t hash)
{
    uint32_t tag, *slot = learn_slot(learn, hash, &tag);

    if ((*slot & ~(PROMPT_CELLS - 1)) != tag)
        return;
    learn->cell[*slot & (PROMPT_CELLS - 1)].back++;
    learn->back++;
    *slot = 0;
}

static void learn_fade(struct learn *learn)
{
    learn->since_fade = 0;
    for (uint32_t i = 0; i < PROMPT_CELLS; i++) {
        learn->cell[i].offered *= LEARN_FADE;
        learn->cell[i].back *= LEARN_FADE;
    }
    learn->offered *= LEARN_FADE;
    learn->back *= LEARN_FADE;
    learn->gained_bytes *= LEARN_FADE;
    learn->new_bytes *= LEARN_FADE;
    learn->other_bytes *= LEARN_FADE;
}

void learn_offered(struct learn *learn, uint64_t hash, prompt_hint hint, uint64_t bytes)
{
    uint32_t tag, *slot = learn_slot(learn, hash, &tag), cell = hint & (PROMPT_CELLS - 1);

    check(hint >= PROMPT_SAID && hint < PROMPT_SAID + PROMPT_CELLS);
    *slot = tag | cell;
    learn->cell[cell].offered++;
    learn->offered++;
    learn->new_bytes += (double)bytes;
    learn->since_threshold++;
    if (++learn->since_fade >= LEARN_FADE_OFFERS)
        learn_fade(learn);
}

void learn_gained(struct learn *learn, double bytes)
{
    learn->gained_bytes += bytes;
}

void learn_spent(struct learn *learn, double bytes)
{
    learn->other_bytes += bytes;
}

/* ---- the threshold ---------------------------------------------------------------------------
 */

/* How often blocks of a cell come back, of one offered. */
static double learn_rate(const struct learn *learn, const struct learn_cell *cell)
{
    double mean = learn->offered > 0 ? learn->back / learn->offered : 0;

    return (cell->back + LEARN_PRIOR * mean) / (cell->offered + LEARN_PRIOR);
}

static int learn_compare(const void *a, const void *b, void *arg)
{
    const struct learn *learn = arg;
    double one = learn->cell[*(const uint16_t *)a].rate;
    double other = learn->cell[*(const uint16_t *)b].rate;

    return one > other ? -1 : one < other;
}

static void learn_threshold(struct learn *learn, double level)
{
    double share = (learn->gained_bytes - learn->other_bytes) / learn->new_bytes;
    double left = (share + LEARN_LEVEL * (2 * level - 1)) * learn->offered, last = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < PROMPT_CELLS; i++) {
        learn->cell[i].rate = learn_rate(learn, &learn->cell[i]);
        if (learn->cell[i].offered >= LEARN_OFFERED_MIN)
            learn->order[count++] = (uint16_t)i;
    }
    qsort_r(learn->order, count, sizeof(learn->order[0]), learn_compare, learn);
    for (uint32_t i = 0; i < count; i++) {
        struct learn_cell *cell = &learn->cell[learn->order[i]];

        cell->wanted = left <= 0 ? 0 : left < cell->offered ? left / cell->offered : 1;
        left -= cell->offered;
        last = cell->wanted > 0 ? cell->rate : last;
    }
    for (uint32_t i = 0; i < PROMPT_CELLS; i++) { /* of which nobody knows anything */
        if (learn->cell[i].offered < LEARN_OFFERED_MIN)
            learn->cell[i].wanted = left > 0 || (last > 0 && learn->cell[i].rate > last);
    }
}

void learn_level(struct learn *learn, double level)
{
    if (learn->since_threshold < LEARN_OFFERS)
        return;
    learn->since_threshold = 0;
    learn->turn++;
    learn_threshold(learn, level);
}

bool learn_wants(const struct learn *learn, prompt_hint hint, uint64_t run)
{
    double part = (double)(hash64_mix(run ^ learn->turn) >> 32) / 4294967296.0;

    return part < learn->cell[hint & (PROMPT_CELLS - 1)].wanted;
}
