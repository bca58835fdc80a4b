/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place/place.h: which enclosure a run lives on, and which of its drives. Pure; no I/O.
 *
 * Weighted rendezvous hashing (Thaler and Ravishankar 1998; weights after Schindelhauer and
 * Schomaker 2005: score = -weight / ln(hash)) into a table of slots, made once per map: a lookup is
 * one table read. Everybody with the same members and weights computes the same table. Where keys
 * have runs (volume_has_runs), a 16-byte key is placed by its run alone, the first LIMIT_RUN_BYTES;
 * all other keys are placed by all of their bytes.
 *
 * Maps are immutable once built: any thread may read one.
 */
#ifndef PLACE_PLACE_H
#define PLACE_PLACE_H

#include "base/err.h"
#include "base/types.h"

struct place_map;

/* Whether a new run begins with this block of a chain, counted from 0. Runs double from one block
 * up to run_blocks and stay at that: 1, 1, 2, 4, 8, 8, ... for 8. What conversations share is their
 * beginning, so a long first run would put all that follows it in the same place. */
static inline bool place_run_begins(uint64_t block, uint32_t run_blocks)
{
    if (block < run_blocks)
        return (block & (block - 1)) == 0; /* 0, 1, 2, 4, ... */
    return run_blocks <= 1 || block % run_blocks == 0;
}

/* Slots of a map. A share is a count of slots, so its deviation is about 1 / sqrt(slots a member):
 * 2.3 % (one sigma) for 36 equal members, 3.1 % for 64. */
#define PLACE_SLOTS 65536

/* How many members each slot ranks: the owner and who takes over, in order. */
#define PLACE_RANKS 4

struct place_member {
    struct uuid uuid; /* name: placement follows it, not the position in the list */
    double weight;    /* healthy capacity in any unit; 0: owns nothing            */
};

/* Builds a map of enclosures: 1..max(LIMIT_ENCLOSURES, LIMIT_DRIVES) members. INVALID on
 * duplicates, no member or no weight. */
icms_err place_map_new(const struct place_member *members, uint32_t count, struct err_why *why,
                       struct place_map **out_map) ICMS_MUST_CHECK;

/* The same for the drives of one enclosure. Drives are chosen by other bits of the key's hash than
 * enclosures: the keys that reach one enclosure use 1/36 of the slots of the enclosures' map, far
 * too few to divide evenly among 32 drives. */
icms_err place_map_new_drives(const struct place_member *members, uint32_t count,
                              struct err_why *why, struct place_map **out_map) ICMS_MUST_CHECK;

/* *map may be NULL; sets it to NULL. */
void place_map_free(struct place_map **map);

uint32_t place_map_members(const struct place_map *map);

/* The slot of a key in this map. runs: of its volume, volume_has_runs(). */
uint32_t place_slot(const struct place_map *map, const struct key *key, bool runs);

/* The member (index into the array given to place_map_new) of rank 0 (owner) .. PLACE_RANKS - 1 of
 * a slot; UINT32_MAX when there are fewer members with weight. */
uint32_t place_rank(const struct place_map *map, uint32_t slot, uint32_t rank);

/* The owner of a key while some members are excluded (bit i of excluded: member i): the first in
 * rendezvous order that is not; UINT32_MAX when all ranked are excluded. */
uint32_t place_owner(const struct place_map *map, const struct key *key, bool runs,
                     uint64_t excluded);

#endif
