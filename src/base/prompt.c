/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places in prompts, coarsened: by powers of two, and of four for the distance.
 */
#include "base/prompt.h"

#define PROMPT_STEPS 8

/* 0 for 0, else how many bits a number has. */
static uint32_t prompt_bits(uint32_t number)
{
    return number == 0 ? 0 : 32 - (uint32_t)__builtin_clz(number);
}

static uint32_t prompt_least(uint32_t step)
{
    return step < PROMPT_STEPS ? step : PROMPT_STEPS - 1;
}

prompt_hint prompt_hint_make(const struct prompt_place *place)
{
    uint32_t hits, behind = 0, fresh;

    if (place->at >= place->blocks || place->hits > place->blocks)
        return 0;
    hits = prompt_least(prompt_bits(place->hits));
    fresh = prompt_least(prompt_bits(place->blocks - place->hits));
    if (place->at >= place->hits) /* 1, 4, 16, ... blocks behind the last hit */
        behind = prompt_least((prompt_bits(place->at - place->hits + 1) + 1) / 2);
    return (prompt_hint)(PROMPT_SAID | hits << 7 | behind << 4 | (uint32_t)place->partial << 3 |
                         fresh);
}
