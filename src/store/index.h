/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/index.h: where each block of a drive is. Private to the store, used on its loop only.
 *
 * A chained hash table in two arrays that are taken at start: 28 bytes an entry and 4 bytes a head,
 * with fewer heads than entries, so at full load it needs less than 32 bytes a block, this struct
 * included. It never grows. The hash of a volume's keys is seeded with its salt, which is secret,
 * so nobody can choose keys that share a chain.
 *
 * Chains are in the order of the hash: all hashes of a chain are below those of the next. So the
 * blocks of a volume can be gone through in the order of their hash, from any hash on.
 */
#ifndef STORE_INDEX_H
#define STORE_INDEX_H

#include "base/err.h"
#include "base/types.h"

struct store_index;

/* The place of a record. A damaged one is a mark: the key's value is lost, and reads say so. */
struct store_location {
    uint32_t segment; /* 20 bits used                     */
    uint32_t page;    /* in the segment; 16 bits          */
    uint32_t pages;   /* of a record: store_record_pages  */
    bool damaged;     /* its value does not hold          */
};

/* One block, as an iteration shows it. */
struct store_block {
    uint32_t volume;                /* slot */
    struct key key;                 /* its name in the volume */
    struct store_location location; /* where its record is */
};

/* Takes the memory for so many blocks, 1,024 at least; NO_MEMORY. salts: one a volume, kept by
 * the caller. */
icms_err store_index_new(uint64_t blocks_max, const uint64_t *salts,
                         struct store_index **out_index) ICMS_MUST_CHECK;
void store_index_free(struct store_index **index);

/* Promises that one later store_index_put finds room; false when all entries are used or promised.
 */
bool store_index_reserve(struct store_index *index);

/* Gives a promise back. */
void store_index_unreserve(struct store_index *index);

bool store_index_find(const struct store_index *index, uint32_t volume, const struct key *key,
                      struct store_location *out_location);

/* Lets the memory that the next call for this block touches come nearer: with 0 entries the head of
 * its chain, and each some time after the one before, with 1 the chain's first entry, with 2 its
 * second. */
void store_index_prefetch(const struct store_index *index, uint32_t volume, const struct key *key,
                          uint32_t entries);

/* Sets the place of a block; it uses up one promise. True when the block was there before:
 * out_old is then where. */
bool store_index_put(struct store_index *index, uint32_t volume, const struct key *key,
                     const struct store_location *location, struct store_location *out_old);

/* Marks the block, which is there, as damaged. */
void store_index_damage(struct store_index *index, uint32_t volume, const struct key *key);

/* Forgets a block; true when it was there: out_old is then where. */
bool store_index_remove(struct store_index *index, uint32_t volume, const struct key *key,
                        struct store_location *out_old);

/* The next block at or after *cursor (0: the first), which then points behind it; false at the end
 * or after looking at steps_max entries (*cursor < store_index_end(): there is more). Blocks may be
 * removed in between; a block that is put in between may or may not be met. */
bool store_index_next(const struct store_index *index, uint32_t *cursor, uint32_t steps_max,
                      struct store_block *out_block);
uint32_t store_index_end(const struct store_index *index);

/* The hash of a key: its place in the order of chains. */
uint64_t store_index_hash(const struct store_index *index, uint32_t volume, const struct key *key);

/* Chains: the one of a hash, and the lowest hash that one may hold. */
uint32_t store_index_chain(const struct store_index *index, uint64_t hash);
uint64_t store_index_chain_hash(const struct store_index *index, uint32_t chain);

/* Lets the first entry of a chain come nearer; a chain behind the last is ignored. */
void store_index_chain_prefetch(const struct store_index *index, uint32_t chain);

/* The next block of a chain, in no order; *entry is 0 before the first. False behind the last. The
 * index must not change meanwhile. */
bool store_index_chain_next(const struct store_index *index, uint32_t chain, uint32_t *entry,
                            struct store_block *out_block);

uint64_t store_index_blocks_max(const struct store_index *index);

/* Memory of an index for so many blocks, at most. */
uint64_t store_index_bytes_max(uint64_t blocks_max);

/* All memory it holds. */
uint64_t store_index_bytes(const struct store_index *index);

#endif
