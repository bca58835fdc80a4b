/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading ahead: a ring of slots. Piece n of a sequence lies in slot n modulo the number of slots;
 * reads end in any order, pieces are taken in theirs.
 */
#include "store/ahead.h"

#include <stdlib.h>

#include "base/check.h"

#define AHEAD_SLOTS 64

struct ahead_slot {
    struct loop_read read; /* of the piece; memory is the slot's          */
    bool ended;            /* it is not in flight any more                */
};

struct store_ahead {
    struct loop_reads *reads;                               /* those in flight           */
    struct ahead_slot slot[AHEAD_SLOTS];                    /* by number of the piece    */
    uint8_t *memory;                                        /* of all slots              */
    bool (*next)(void *arg, struct store_piece *out_piece); /* names pieces              */
    void *arg;                                              /* for next                  */
    uint64_t asked, taken;                                  /* pieces of the sequence    */
    bool whole;                                             /* next had no more          */
};

icms_err store_ahead_new(struct loop_file *file, struct err_why *why,
                         struct store_ahead **out_ahead)
{
    const uint64_t slot_bytes = STORE_AHEAD_PAGES * STORE_PAGE_BYTES;
    struct store_ahead *ahead = calloc(1, sizeof(*ahead));
    icms_err err = ICMS_NO_MEMORY;

    if (ahead != NULL)
        ahead->memory = aligned_alloc(STORE_PAGE_BYTES, AHEAD_SLOTS * slot_bytes);
    if (ahead == NULL || ahead->memory == NULL)
        err = err_set(why, err, "no memory to recover the store");
    else
        err = loop_reads_new(file, AHEAD_SLOTS, why, &ahead->reads);
    if (err != ICMS_OK) {
        store_ahead_free(&ahead);
        return err;
    }
    for (uint32_t i = 0; i < AHEAD_SLOTS; i++)
        ahead->slot[i].read.memory = ahead->memory + i * slot_bytes;
    *out_ahead = ahead;
    return ICMS_OK;
}

void store_ahead_free(struct store_ahead **ahead)
{
    struct store_ahead *own = *ahead;

    if (own == NULL)
        return;
    loop_reads_free(&own->reads);
    free(own->memory);
    free(own);
    *ahead = NULL;
}

/* Asks for pieces while slots are unused; the one that was taken last is. */
static void ahead_fill(struct store_ahead *ahead)
{
    struct store_piece piece;

    while (!ahead->whole && ahead->asked < ahead->taken + AHEAD_SLOTS) {
        struct ahead_slot *slot = &ahead->slot[ahead->asked % AHEAD_SLOTS];

        if (!ahead->next(ahead->arg, &piece)) {
            ahead->whole = true;
            return;
        }
        check(piece.pages >= 1 && piece.pages <= STORE_AHEAD_PAGES);
        slot->read.offset = piece.offset;
        slot->read.bytes = piece.pages * STORE_PAGE_BYTES;
        slot->ended = false;
        loop_reads_start(ahead->reads, &slot->read);
        ahead->asked++;
    }
}

void store_ahead_begin(struct store_ahead *ahead,
                       bool (*next)(void *arg, struct store_piece *out_piece), void *arg)
{
    check(ahead->taken == ahead->asked);
    ahead->next = next;
    ahead->arg = arg;
    ahead->asked = ahead->taken = 0;
    ahead->whole = false;
    ahead_fill(ahead);
}

icms_err store_ahead_take(struct store_ahead *ahead, const uint8_t **out_pages)
{
    struct ahead_slot *slot = &ahead->slot[ahead->taken % AHEAD_SLOTS];

    ahead_fill(ahead);
    check(ahead->taken < ahead->asked);
    while (!slot->ended) {
        struct loop_read *read = loop_reads_wait(ahead->reads);

        check(read != NULL);
        container_of(read, struct ahead_slot, read)->ended = true;
    }
    ahead->taken++;
    if (slot->read.err != ICMS_OK)
        memset(slot->read.memory, 0, slot->read.bytes);
    *out_pages = slot->read.memory;
    return slot->read.err;
}
