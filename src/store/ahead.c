/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading ahead: a ring of slots. Piece n of a sequence lies in slot n modulo the number of slots;
 * reads end in any order, pieces are taken in theirs.
 */
#include "store/ahead.h"

#include <stdlib.h>

#include "base/check.h"

/* Slots, and the memory of all of them: large pieces have fewer, which keep a drive as busy. */
#define AHEAD_SLOTS_MIN 4
#define AHEAD_SLOTS_MAX 64
#define AHEAD_BYTES     ((uint64_t)32 << 20)

struct ahead_slot {
    struct loop_read read; /* of the piece; memory is the slot's          */
    bool ended;            /* it is not in flight any more                */
};

struct store_ahead {
    struct loop_reads *reads;                               /* those in flight           */
    struct ahead_slot slot[AHEAD_SLOTS_MAX];                /* by number of the piece    */
    uint32_t slots;                                         /* of them, used             */
    uint32_t piece_pages;                                   /* of a slot                 */
    uint8_t *memory;                                        /* of all slots              */
    bool (*next)(void *arg, struct store_piece *out_piece); /* names pieces              */
    void *arg;                                              /* for next                  */
    uint64_t asked, taken;                                  /* pieces of the sequence    */
    bool whole;                                             /* next had no more          */
};

icms_err store_ahead_new(struct loop_file *file, uint32_t piece_pages, struct err_why *why,
                         struct store_ahead **out_ahead)
{
    const uint64_t slot_bytes = (uint64_t)piece_pages * STORE_PAGE_BYTES;
    uint32_t slots =
        (uint32_t)u64_max(u64_min(AHEAD_BYTES / slot_bytes, AHEAD_SLOTS_MAX), AHEAD_SLOTS_MIN);
    struct store_ahead *ahead = calloc(1, sizeof(*ahead));
    icms_err err = ICMS_NO_MEMORY;

    if (ahead != NULL)
        ahead->memory = aligned_alloc(STORE_PAGE_BYTES, slots * slot_bytes);
    if (ahead == NULL || ahead->memory == NULL)
        err = err_set(why, err, "no memory to recover the store");
    else
        err = loop_reads_new(file, slots, why, &ahead->reads);
    if (err != ICMS_OK) {
        store_ahead_free(&ahead);
        return err;
    }
    ahead->slots = slots;
    ahead->piece_pages = piece_pages;
    for (uint32_t i = 0; i < slots; i++)
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

    while (!ahead->whole && ahead->asked < ahead->taken + ahead->slots) {
        struct ahead_slot *slot = &ahead->slot[ahead->asked % ahead->slots];

        if (!ahead->next(ahead->arg, &piece)) {
            ahead->whole = true;
            return;
        }
        check(piece.pages >= 1 && piece.pages <= ahead->piece_pages);
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
    struct ahead_slot *slot = &ahead->slot[ahead->taken % ahead->slots];

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
