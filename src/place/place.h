/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place/place.h: which enclosure a run lives on, and which of its drives. Pure; no I/O.
 *
 * Weighted rendezvous hashing (Thaler and Ravishankar 1998; weights after Schindelhauer and
 * Schomaker 2005: score = -weight / ln(hash)) into a table of slots, made once per map: a lookup is
 * one table read. Everybody with the same members and weights computes the same table. Looks at the
 * first 8 bytes of a 16-byte key only (the run); shorter keys are hashed whole.
 *
 * Maps are immutable once built: any thread may read one.
 */
#ifndef PLACE_PLACE_H
#define PLACE_PLACE_H

#include "base/err.h"
#include "base/types.h"

struct place_map;

/* Slots of a map; enough for 64 members within 4 % of their share. */
#define PLACE_SLOTS 8192

/* How many members each slot ranks: the owner and who takes over, in order. */
#define PLACE_RANKS 4

struct place_member {
    struct uuid uuid; /* name: placement follows it, not the position in the list */
    double weight;    /* healthy capacity in any unit; 0: owns nothing            */
};

/* Builds a map of 1..max(LIMIT_ENCLOSURES, LIMIT_DRIVES) members. INVALID on duplicates, no member
 * or no weight. */
icms_err place_map_new(const struct place_member *members, uint32_t count, uint64_t epoch,
                       struct err_why *why, struct place_map **out_map) ICMS_MUST_CHECK;
void place_map_free(struct place_map **map);

uint64_t place_map_epoch(const struct place_map *map);
uint32_t place_map_members(const struct place_map *map);

/* The slot of a key. */
uint32_t place_slot(const struct key *key);

/* The member (index into the array given to place_map_new) of rank 0 (owner) .. PLACE_RANKS - 1 of
 * a slot; UINT32_MAX when there are fewer members with weight. */
uint32_t place_rank(const struct place_map *map, uint32_t slot, uint32_t rank);

/* The owner of a key while some members are excluded (bit i of excluded: member i): the first in
 * rendezvous order that is not; UINT32_MAX when all ranked are excluded. */
uint32_t place_owner(const struct place_map *map, const struct key *key, uint64_t excluded);

#endif
