/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/extent.c: see extent.h. Called by volume.c, on the volume's loop.
 *
 * Invariants: extents are listed once each, in order of their addresses, and do not meet; every
 * hole is listed once, in the class of its size; hole_bytes is their sum; the hand is the sentinel
 * or a slot that has an extent.
 */
#include "agent/extent.h"

#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"

/* ---- holes ---------------------------------------------------------------------------------- */

/* The hole behind a slot, or at the beginning of the arena. */
static uint64_t hole_bytes(const struct extents *extents, uint32_t owner)
{
    const struct extent *extent = &extents->of[owner];
    uint64_t end =
        extent->next == extents->count ? extents->capacity : extents->of[extent->next].begin;

    return end - extent->begin - extent->bytes;
}

/* Classes begin at powers of two and at eighths between them. */
static uint32_t hole_class(uint64_t bytes)
{
    uint32_t log = 63 - (uint32_t)__builtin_clzll(bytes);

    return log << 3 | (uint32_t)(bytes >> (log - 3) & 7);
}

static void hole_add(struct extents *extents, uint32_t owner)
{
    uint64_t bytes = hole_bytes(extents, owner);
    struct extent *extent = &extents->of[owner];
    uint32_t class, first;

    if (bytes == 0)
        return;
    class = hole_class(bytes);
    first = extents->holes[class];
    extent->hole_prev = EXTENT_NONE;
    extent->hole_next = first;
    if (first != EXTENT_NONE)
        extents->of[first].hole_prev = owner;
    extents->holes[class] = owner;
    extents->classes[class / 64] |= (uint64_t)1 << class % 64;
    extents->hole_bytes += bytes;
}

static void hole_remove(struct extents *extents, uint32_t owner)
{
    uint64_t bytes = hole_bytes(extents, owner);
    struct extent *extent = &extents->of[owner];
    uint32_t class;

    if (bytes == 0)
        return;
    class = hole_class(bytes);
    if (extent->hole_next != EXTENT_NONE)
        extents->of[extent->hole_next].hole_prev = extent->hole_prev;
    if (extent->hole_prev != EXTENT_NONE)
        extents->of[extent->hole_prev].hole_next = extent->hole_next;
    else
        extents->holes[class] = extent->hole_next;
    if (extents->holes[class] == EXTENT_NONE)
        extents->classes[class / 64] &= ~((uint64_t)1 << class % 64);
    extents->hole_bytes -= bytes;
}

/* Owner of a hole that is large enough, or NONE. */
static uint32_t hole_find(const struct extents *extents, uint64_t bytes)
{
    uint32_t class = hole_class(bytes), at = extents->holes[class];

    for (int i = 0; i < EXTENT_TRIES && at != EXTENT_NONE; i++) {
        if (hole_bytes(extents, at) >= bytes)
            return at;
        at = extents->of[at].hole_next;
    }
    /* All holes of the classes above are. */
    for (uint32_t word = ++class / 64; word < EXTENT_CLASSES / 64; word++, class = word * 64) {
        uint64_t bits = extents->classes[word] >> class % 64;

        if (bits != 0)
            return extents->holes[class + (uint32_t)__builtin_ctzll(bits)];
    }
    return EXTENT_NONE;
}

/* ---- extents -------------------------------------------------------------------------------- */

icms_err extents_init(struct extents *extents, uint64_t capacity, uint32_t count)
{
    check(capacity > 0 && capacity % EXTENT_UNIT == 0 && count < EXTENT_NONE);
    *extents = (struct extents){.capacity = capacity, .count = count, .hand = count};
    extents->of = calloc((size_t)count + 1, sizeof(extents->of[0]));
    if (extents->of == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < EXTENT_CLASSES; i++)
        extents->holes[i] = EXTENT_NONE;
    extents->of[count].prev = extents->of[count].next = count;
    hole_add(extents, count);
    return ICMS_OK;
}

void extents_fini(struct extents *extents)
{
    free(extents->of);
    extents->of = NULL;
}

/* Whether what is at begin will be passed by the hand within half a lap. */
static bool extent_is_ahead(const struct extents *extents, uint64_t begin)
{
    uint64_t hand = extents->of[extents->hand].begin;
    uint64_t ahead = begin >= hand ? begin - hand : extents->capacity - hand + begin;

    return ahead < extents->capacity / 2;
}

bool extents_take(struct extents *extents, uint32_t slot, uint64_t bytes)
{
    struct extent *extent = &extents->of[slot], *owner;
    uint64_t wanted = bytes_align(bytes, EXTENT_UNIT);
    uint32_t at;

    check(slot < extents->count && extent->bytes == 0 && bytes > 0);
    at = hole_find(extents, wanted);
    if (at == EXTENT_NONE)
        return false;
    hole_remove(extents, at);
    owner = &extents->of[at];
    *extent = (struct extent){
        .begin = owner->begin + owner->bytes, .bytes = wanted, .prev = at, .next = owner->next};
    extents->of[owner->next].prev = slot;
    owner->next = slot;
    hole_add(extents, slot);
    if (at == extents->hand)
        extents->hand = slot;
    else
        extent->used = extent_is_ahead(extents, extent->begin);
    return true;
}

uint32_t extents_before(const struct extents *extents, uint32_t near, uint64_t address)
{
    const struct extent *of = extents->of;

    while (near != extents->count && of[near].begin >= address)
        near = of[near].prev;
    while (of[near].next != extents->count && of[of[near].next].begin < address)
        near = of[near].next;
    return near;
}

bool extents_is_hole(const struct extents *extents, uint32_t before, uint64_t begin, uint64_t bytes)
{
    uint64_t hole = extents->of[before].begin + extents->of[before].bytes;

    return begin >= hole && begin + bytes <= hole + hole_bytes(extents, before);
}

void extents_reserve(struct extents *extents, uint32_t slot, uint32_t before, uint64_t begin,
                     uint64_t bytes)
{
    struct extent *extent = &extents->of[slot], *owner = &extents->of[before];

    check(slot < extents->count && extent->bytes == 0 && bytes > 0);
    check(extents_is_hole(extents, before, begin, bytes));
    hole_remove(extents, before);
    *extent = (struct extent){.begin = begin, .bytes = bytes, .prev = before, .next = owner->next};
    extents->of[owner->next].prev = slot;
    owner->next = slot;
    hole_add(extents, before);
    hole_add(extents, slot);
    extents->reserved_bytes += bytes;
}

void extents_unreserve(struct extents *extents, uint32_t slot)
{
    extents->reserved_bytes -= extents->of[slot].bytes;
    extents_give(extents, slot);
}

bool extents_trim(struct extents *extents, uint32_t slot, uint64_t bytes)
{
    struct extent *extent = &extents->of[slot];
    uint64_t wanted = bytes_align(bytes, EXTENT_UNIT);

    check(slot < extents->count && bytes > 0 && wanted <= extent->bytes);
    if (wanted == extent->bytes)
        return false;
    hole_remove(extents, slot);
    extent->bytes = wanted;
    hole_add(extents, slot);
    return true;
}

void extents_give(struct extents *extents, uint32_t slot)
{
    struct extent *extent = &extents->of[slot];
    uint32_t prev = extent->prev;

    check(slot < extents->count && extent->bytes > 0);
    hole_remove(extents, slot);
    hole_remove(extents, prev);
    extents->of[prev].next = extent->next;
    extents->of[extent->next].prev = prev;
    extent->bytes = 0;
    hole_add(extents, prev);
    if (extents->hand == slot)
        extents->hand = prev;
}

/* ---- the hand ------------------------------------------------------------------------------- */

/* Whether the hand takes the extent into a window. */
static bool extent_goes(struct extents *extents, uint32_t slot, struct extent_sweep *sweep)
{
    struct extent *extent = &extents->of[slot];

    if (!sweep->may(sweep->arg, slot))
        return false;
    if (!extent->used || sweep->spared >= EXTENT_SPARED_MAX ||
        extents->hole_bytes > (extents->capacity - extents->reserved_bytes) / EXTENT_HOLES_MAX)
        return true;
    extent->used = false;
    sweep->spared++;
    return false;
}

bool extents_window(struct extents *extents, uint64_t bytes, struct extent_sweep *sweep,
                    uint32_t *out_first, uint32_t *out_last)
{
    uint32_t before = extents->hand, at = before, begins = 0;
    uint64_t found = hole_bytes(extents, before);

    while (at == before || found < bytes) {
        at = extents->of[at].next;
        if (at != extents->count && extent_goes(extents, at, sweep)) {
            found += extents->of[at].bytes + hole_bytes(extents, at);
            sweep->passed++;
            continue;
        }
        /* Another window begins behind it; at the end of the arena, at its beginning. */
        extents->hand = before = at;
        found = hole_bytes(extents, at);
        if (sweep->passed++ >= EXTENT_STEPS || (at == extents->count && begins++ == 2))
            return false;
    }
    *out_first = extents->of[before].next;
    *out_last = at;
    extents->hand = at;
    sweep->bytes += found;
    return true;
}
