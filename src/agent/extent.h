/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/extent.h: which bytes of an arena belong to which slot, and who goes when space is needed.
 *
 *   | a a a a | hole | b b | c c c c c c | hole       |
 *
 * A block lies in one piece, an extent of the bytes it needs, in units of EXTENT_UNIT. What is
 * between two extents is a hole. Holes need no entries of their own: a hole belongs to the extent
 * in front of it, that at the beginning of the arena to a sentinel. A hole joins its neighbours by
 * itself, since only extents are listed, in order of their addresses.
 *
 * Space is taken from a hole, found by its size in constant time: holes are listed by class, eight
 * classes a power of two; extents_take() looks at EXTENT_TRIES holes of the class of what is
 * wanted, and then at the first one of a larger class.
 *
 * Where there is no such hole, extents_window() looks for a window: extents that follow each other
 * and may go, with the holes between them as long as what is wanted. A hand goes round the arena in
 * order of addresses (CLOCK). An extent that was used since the hand passed is spared once, and
 * ends a window; so does one that may not go (leased, being written). Only whole windows are given
 * up: extents that may go beside one that may not stay, because the hole they leave would hold
 * nothing.
 *
 * What is lost. Values are rounded up to EXTENT_UNIT. Holes are left when blocks are trimmed,
 * removed, or given up with a window that is longer than what was wanted. While holes are more than
 * 1 / EXTENT_HOLES_MAX of the arena nothing is spared: then the hand writes one block behind the
 * other, and all holes that it passes join the space it makes. So holes stay about there, but for
 * what lies between extents that may not go.
 *
 * What is kept of LRU. A block that was not used goes when the hand reaches it: at least half a lap
 * after it came, for one that is placed into a hole less than half a lap before the hand counts as
 * used. A block that was used since the hand passed it has another lap, unless holes are too many
 * or EXTENT_SPARED_MAX others were spared for the same request.
 *
 * Reservations. What of the capacity is not the owner's (agent/memory.c) is reserved: extents of
 * slots that never may go. They can be put into any hole, and become a hole again.
 *
 * Not shared with anybody: clients see nothing of this but each block's address. One thread at a
 * time; nothing here takes memory but extents_init(), and nothing blocks.
 */
#ifndef AGENT_EXTENT_H
#define AGENT_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define EXTENT_UNIT       64 /* extents begin and end at multiples, and values with them       */
#define EXTENT_NONE       UINT32_MAX
#define EXTENT_CLASSES    (8 * 64)
#define EXTENT_TRIES      8     /* holes of one class that are looked at                          */
#define EXTENT_HOLES_MAX  16    /* nothing is spared while holes are more than capacity / this    */
#define EXTENT_SPARED_MAX 256   /* extents that are spared for one request                        */
#define EXTENT_STEPS      65536 /* extents that are passed for one request, but for its last window */

struct extent {
    uint64_t begin;      /* first byte                                                     */
    uint64_t bytes;      /* 0: the slot has none                                           */
    uint32_t prev, next; /* neighbours by address; of the sentinel: last and first         */
    uint32_t hole_prev, hole_next; /* the hole behind it: owners of others of its class    */
    bool used; /* since the hand passed                                          */
};

struct extents {
    uint64_t capacity;       /* bytes                                                          */
    uint64_t hole_bytes;     /* of them, in no extent                                          */
    uint64_t reserved_bytes; /* of them, reserved                                              */
    uint32_t count;          /* slots; number `count` is the sentinel                          */
    uint32_t hand;           /* the last one that was passed                                   */
    struct extent *of;       /* [count + 1], by slot                                           */
    uint32_t holes[EXTENT_CLASSES];        /* owner of the first hole of a class, or NONE   */
    uint64_t classes[EXTENT_CLASSES / 64]; /* bit i: class i has holes                     */
};

/* An empty arena of capacity bytes, a multiple of EXTENT_UNIT, for slots 0 .. count - 1. */
icms_err extents_init(struct extents *extents, uint64_t capacity, uint32_t count) ICMS_MUST_CHECK;
void extents_fini(struct extents *extents);

/* Space for a slot that has none; bytes: more than 0. False: no hole is as large, or none that was
 * looked at. */
bool extents_take(struct extents *extents, uint32_t slot, uint64_t bytes);

/* The slot needs less than it took, and more than 0. True: a hole became larger. */
bool extents_trim(struct extents *extents, uint32_t slot, uint64_t bytes);
void extents_give(struct extents *extents, uint32_t slot);

/* The last extent that begins before an address, or the sentinel; walks there from another one. */
uint32_t extents_before(const struct extents *extents, uint32_t near, uint64_t address);

/* Whether all of it is in the hole behind `before`. */
bool extents_is_hole(const struct extents *extents, uint32_t before, uint64_t begin,
                     uint64_t bytes);

/* Reserves it, for a slot that has no extent: all of it is in the hole behind `before`. */
void extents_reserve(struct extents *extents, uint32_t slot, uint32_t before, uint64_t begin,
                     uint64_t bytes);
void extents_unreserve(struct extents *extents, uint32_t slot);

/* The slot's block was used: spared once. */
static inline void extents_use(struct extents *extents, uint32_t slot)
{
    extents->of[slot].used = true;
}

/* One request's look for space. */
struct extent_sweep {
    bool (*may)(void *arg, uint32_t slot); /* whether the slot's extent may go             */
    void *arg;
    uint32_t passed, spared; /* extents, so far; 0 at first                                    */
    uint64_t bytes;          /* of the windows that were found                                 */
};

/* Looks for a window of bytes, with one extent in it at least. True: all from *out_first to
 * *out_last, by extents.of[].next, may go, and with them gone there is such a hole, unless the
 * caller keeps one of them; the hand is behind them. False: none was found within the sweep's
 * limits; another sweep goes on from there. */
bool extents_window(struct extents *extents, uint64_t bytes, struct extent_sweep *sweep,
                    uint32_t *out_first, uint32_t *out_last);

#endif
