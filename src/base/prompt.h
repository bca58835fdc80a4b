/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/prompt.h: where in its prompt a block lies, in the 11 bits that travel with a store.
 *
 * A drive that may not write all it is offered learns from it which blocks come back. Clients make
 * a hint, everybody else hands it on, src/policy counts by it.
 */
#ifndef BASE_PROMPT_H
#define BASE_PROMPT_H

#include <stdbool.h>
#include <stdint.h>

/* PROMPT_SAID, and below it, from the lowest bit on: 3 bits how many blocks of the prompt are new,
 * 1 bit whether the block is filled in part, 3 bits how far behind the first new one it lies, 3
 * bits how many of the prompt were hits. 0: nothing is known. */
typedef uint16_t prompt_hint;

#define PROMPT_SAID  1024u
#define PROMPT_CELLS 1024u

struct prompt_place {
    uint32_t blocks; /* of the whole prompt; 0: not said                          */
    uint32_t hits;   /* of them, from the first on, that were there when it began */
    uint32_t at;     /* which of them the block is, from 0                        */
    bool partial;    /* the block is filled in part                               */
};

/* 0 where the numbers contradict each other. */
prompt_hint prompt_hint_make(const struct prompt_place *place);

/* What came over a wire: a hint, or 0 for what is none. */
static inline prompt_hint prompt_hint_of(uint32_t bits)
{
    return (prompt_hint)(bits >= PROMPT_SAID && bits < PROMPT_SAID + PROMPT_CELLS ? bits : 0);
}

#endif
