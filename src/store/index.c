/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: chains of packed entries.
 *
 *   heads   [ entry number + 1, or 0 ]                      fewer than entries
 *   entries [ key 16 B | segment, page, pages, volume, key length in 64 bits | next 4 B ]
 *
 * Entries that were never used are taken in order, so memory is touched as it is needed; given-back
 * ones form a chain through next. Loop's thread only.
 */
#include "store/index.h"

#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "store/layout.h"

#define INDEX_BLOCKS_MIN 64

/* Bits of store_index_entry.place, from the lowest. */
#define INDEX_SEGMENT_BITS 20
#define INDEX_PAGE_BITS    16
#define INDEX_PAGES_BITS   12
#define INDEX_VOLUME_BITS  10
#define INDEX_LENGTH_BITS  4

#define INDEX_PAGE_SHIFT   INDEX_SEGMENT_BITS
#define INDEX_PAGES_SHIFT  (INDEX_PAGE_SHIFT + INDEX_PAGE_BITS)
#define INDEX_VOLUME_SHIFT (INDEX_PAGES_SHIFT + INDEX_PAGES_BITS)
#define INDEX_LENGTH_SHIFT (INDEX_VOLUME_SHIFT + INDEX_VOLUME_BITS)
#define INDEX_DAMAGED      ((uint64_t)1 << 62)
#define INDEX_USED         ((uint64_t)1 << 63)

static_assert(INDEX_LENGTH_SHIFT + INDEX_LENGTH_BITS <= 62, "the place fits beside the two bits");
static_assert(STORE_SEGMENTS_MAX <= 1u << INDEX_SEGMENT_BITS, "segment numbers fit");
static_assert(STORE_SEGMENT_BYTES_MAX / STORE_PAGE_BYTES <= 1u << INDEX_PAGE_BITS, "pages fit");
static_assert(STORE_PAGES_BITS + 3 == INDEX_PAGES_BITS, "record sizes fit");
static_assert(STORE_RECORD_PAGES_MAX == ((1u << STORE_PAGES_BITS) - 1) << 7, "the largest");
static_assert(STORE_VOLUMES_MAX <= 1u << INDEX_VOLUME_BITS, "volumes fit");
static_assert(LIMIT_KEY_BYTES <= 1u << INDEX_LENGTH_BITS, "key lengths fit, less one");

struct store_index_entry {
    uint8_t key[LIMIT_KEY_BYTES]; /* zeros past its length                                   */
    uint32_t place[2];            /* low and high half of the packed place                   */
    uint32_t next;                /* entry number + 1 of the next in the chain; 0: the last  */
};
static_assert(sizeof(struct store_index_entry) == 28, "28 bytes an entry");

struct store_index {
    struct store_index_entry *entries; /* entry_count of them */
    uint32_t *heads;                   /* entry number + 1, or 0 */
    const uint64_t *salts;             /* of the hash, by volume; the caller's */
    uint32_t entry_count;              /* blocks_max                                  */
    uint32_t head_count;               /* fewer than entries */
    uint32_t touched;                  /* entries used at least once                  */
    uint32_t given;                    /* chain of entries given back: number + 1     */
    uint32_t used;                     /* blocks                                      */
    uint32_t reserved;                 /* promises                                    */
};

static uint64_t index_place_get(const struct store_index_entry *entry)
{
    return (uint64_t)entry->place[1] << 32 | entry->place[0];
}

static void index_place_set(struct store_index_entry *entry, uint64_t place)
{
    entry->place[0] = (uint32_t)place;
    entry->place[1] = (uint32_t)(place >> 32);
}

static uint64_t index_bits(uint64_t place, uint32_t shift, uint32_t bits)
{
    return place >> shift & (((uint64_t)1 << bits) - 1);
}

/* The part of a place that belongs to the identity of a block. */
static uint64_t index_identity(uint32_t volume, const struct key *key)
{
    check(volume < STORE_VOLUMES_MAX && key->length >= 1 && key->length <= LIMIT_KEY_BYTES);
    return (uint64_t)volume << INDEX_VOLUME_SHIFT | (uint64_t)(key->length - 1)
                                                        << INDEX_LENGTH_SHIFT;
}

static uint64_t index_pack(uint64_t identity, const struct store_location *location)
{
    uint32_t shift = store_pages_shift(location->pages);

    check(location->segment < STORE_SEGMENTS_MAX && location->page < 1u << INDEX_PAGE_BITS);
    check(location->pages >= 1 && location->pages <= STORE_RECORD_PAGES_MAX);
    check(location->pages >> shift << shift == location->pages);
    return INDEX_USED | (location->damaged ? INDEX_DAMAGED : 0) | identity | location->segment |
           (uint64_t)location->page << INDEX_PAGE_SHIFT |
           (uint64_t)(location->pages >> shift | shift << STORE_PAGES_BITS) << INDEX_PAGES_SHIFT;
}

static void index_unpack(uint64_t place, struct store_location *out_location)
{
    uint32_t pages;

    out_location->segment = (uint32_t)index_bits(place, 0, INDEX_SEGMENT_BITS);
    out_location->page = (uint32_t)index_bits(place, INDEX_PAGE_SHIFT, INDEX_PAGE_BITS);
    pages = (uint32_t)index_bits(place, INDEX_PAGES_SHIFT, INDEX_PAGES_BITS);
    out_location->pages = (pages & ((1u << STORE_PAGES_BITS) - 1)) << (pages >> STORE_PAGES_BITS);
    out_location->damaged = (place & INDEX_DAMAGED) != 0;
}

static uint64_t index_hash(const struct store_index *index, uint64_t identity,
                           const struct key *key)
{
    uint64_t volume = index_bits(identity, INDEX_VOLUME_SHIFT, INDEX_VOLUME_BITS);
    uint64_t length = index_bits(identity, INDEX_LENGTH_SHIFT, INDEX_LENGTH_BITS);

    return hash64_seed(key->bytes, sizeof(key->bytes), index->salts[volume] ^ length);
}

static uint32_t *index_head(const struct store_index *index, uint64_t identity,
                            const struct key *key)
{
    return &index->heads[store_index_chain(index, index_hash(index, identity, key))];
}

/* The link that names the block's entry: a head or the next of the entry before; it holds 0 when
 * the block is not there. */
static uint32_t *index_link(const struct store_index *index, uint64_t identity,
                            const struct key *key)
{
    const uint64_t mask = ~(uint64_t)0 << INDEX_VOLUME_SHIFT & ~(INDEX_USED | INDEX_DAMAGED);
    uint32_t *link = index_head(index, identity, key);

    while (*link != 0) {
        struct store_index_entry *entry = &index->entries[*link - 1];

        if ((index_place_get(entry) & mask) == identity &&
            memcmp(entry->key, key->bytes, sizeof(entry->key)) == 0)
            break;
        link = &entry->next;
    }
    return link;
}

icms_err store_index_new(uint64_t blocks_max, const uint64_t *salts, struct store_index **out_index)
{
    struct store_index *index;

    if (blocks_max < INDEX_BLOCKS_MIN)
        blocks_max = INDEX_BLOCKS_MIN;
    if (blocks_max > UINT32_MAX - 1)
        blocks_max = UINT32_MAX - 1;
    index = calloc(1, sizeof(*index));
    if (index == NULL)
        return ICMS_NO_MEMORY;
    index->salts = salts;
    index->entry_count = (uint32_t)blocks_max;
    index->head_count = index->entry_count / 16 * 11; /* under 32 bytes a block with this struct */
    index->entries = calloc(index->entry_count, sizeof(index->entries[0]));
    index->heads = calloc(index->head_count, sizeof(index->heads[0]));
    if (index->entries == NULL || index->heads == NULL) {
        store_index_free(&index);
        return ICMS_NO_MEMORY;
    }
    *out_index = index;
    return ICMS_OK;
}

void store_index_free(struct store_index **index)
{
    if (*index == NULL)
        return;
    free((*index)->entries);
    free((*index)->heads);
    free(*index);
    *index = NULL;
}

bool store_index_reserve(struct store_index *index)
{
    if (index->used + index->reserved >= index->entry_count)
        return false;
    index->reserved++;
    return true;
}

void store_index_unreserve(struct store_index *index)
{
    check(index->reserved > 0);
    index->reserved--;
}

bool store_index_find(const struct store_index *index, uint32_t volume, const struct key *key,
                      struct store_location *out_location)
{
    uint32_t number = *index_link(index, index_identity(volume, key), key);

    if (number == 0)
        return false;
    index_unpack(index_place_get(&index->entries[number - 1]), out_location);
    return true;
}

void store_index_prefetch(const struct store_index *index, uint32_t volume, const struct key *key,
                          uint32_t entries)
{
    const uint32_t *link = index_head(index, index_identity(volume, key), key);
    const struct store_index_entry *entry;

    if (entries == 0) {
        __builtin_prefetch(link, 1);
        return;
    }
    for (uint32_t i = 1; i < entries && *link != 0; i++)
        link = &index->entries[*link - 1].next;
    if (*link == 0)
        return;
    entry = &index->entries[*link - 1];
    __builtin_prefetch(entry, 1);
    __builtin_prefetch(&entry->next, 1); /* which may lie in another line */
}

bool store_index_put(struct store_index *index, uint32_t volume, const struct key *key,
                     const struct store_location *location, struct store_location *out_old)
{
    uint64_t identity = index_identity(volume, key);
    uint32_t *link = index_link(index, identity, key);
    struct store_index_entry *entry;

    store_index_unreserve(index);
    if (*link != 0) {
        entry = &index->entries[*link - 1];
        index_unpack(index_place_get(entry), out_old);
        index_place_set(entry, index_pack(identity, location));
        return true;
    }
    if (index->given != 0) {
        *link = index->given;
        entry = &index->entries[*link - 1];
        index->given = entry->next;
    } else {
        check(index->touched < index->entry_count);
        *link = ++index->touched;
        entry = &index->entries[*link - 1];
    }
    memcpy(entry->key, key->bytes, sizeof(entry->key));
    index_place_set(entry, index_pack(identity, location));
    entry->next = 0;
    index->used++;
    return false;
}

void store_index_damage(struct store_index *index, uint32_t volume, const struct key *key)
{
    uint32_t number = *index_link(index, index_identity(volume, key), key);
    struct store_index_entry *entry;

    check(number != 0);
    entry = &index->entries[number - 1];
    index_place_set(entry, index_place_get(entry) | INDEX_DAMAGED);
}

bool store_index_remove(struct store_index *index, uint32_t volume, const struct key *key,
                        struct store_location *out_old)
{
    uint32_t *link = index_link(index, index_identity(volume, key), key);
    uint32_t number = *link;
    struct store_index_entry *entry;

    if (number == 0)
        return false;
    entry = &index->entries[number - 1];
    index_unpack(index_place_get(entry), out_old);
    *link = entry->next;
    index_place_set(entry, 0);
    entry->next = index->given;
    index->given = number;
    index->used--;
    return true;
}

static void index_block(const struct store_index_entry *entry, struct store_block *out_block)
{
    uint64_t place = index_place_get(entry);

    out_block->volume = (uint32_t)index_bits(place, INDEX_VOLUME_SHIFT, INDEX_VOLUME_BITS);
    out_block->key.length = (uint8_t)(index_bits(place, INDEX_LENGTH_SHIFT, INDEX_LENGTH_BITS) + 1);
    memcpy(out_block->key.bytes, entry->key, sizeof(entry->key));
    index_unpack(place, &out_block->location);
}

bool store_index_next(const struct store_index *index, uint32_t *cursor, uint32_t steps_max,
                      struct store_block *out_block)
{
    for (; *cursor < index->touched && steps_max > 0; steps_max--) {
        const struct store_index_entry *entry = &index->entries[(*cursor)++];

        if ((index_place_get(entry) & INDEX_USED) == 0)
            continue;
        index_block(entry, out_block);
        return true;
    }
    return false;
}

uint32_t store_index_end(const struct store_index *index)
{
    return index->touched;
}

uint64_t store_index_hash(const struct store_index *index, uint32_t volume, const struct key *key)
{
    return index_hash(index, index_identity(volume, key), key);
}

uint32_t store_index_chain(const struct store_index *index, uint64_t hash)
{
    return (uint32_t)((hash >> 32) * index->head_count >> 32);
}

/* The least h whose h * head_count >> 32 is the chain. */
uint64_t store_index_chain_hash(const struct store_index *index, uint32_t chain)
{
    check(chain < index->head_count);
    return (((uint64_t)chain << 32) + index->head_count - 1) / index->head_count << 32;
}

void store_index_chain_prefetch(const struct store_index *index, uint32_t chain)
{
    if (chain < index->head_count && index->heads[chain] != 0)
        __builtin_prefetch(&index->entries[index->heads[chain] - 1]);
}

bool store_index_chain_next(const struct store_index *index, uint32_t chain, uint32_t *entry,
                            struct store_block *out_block)
{
    check(chain < index->head_count);
    *entry = *entry == 0 ? index->heads[chain] : index->entries[*entry - 1].next;
    if (*entry == 0)
        return false;
    index_block(&index->entries[*entry - 1], out_block);
    return true;
}

uint64_t store_index_blocks_max(const struct store_index *index)
{
    return index->entry_count;
}

uint64_t store_index_bytes(const struct store_index *index)
{
    return sizeof(*index) + (uint64_t)index->entry_count * sizeof(index->entries[0]) +
           (uint64_t)index->head_count * sizeof(index->heads[0]);
}

uint64_t store_index_bytes_max(uint64_t blocks_max)
{
    return u64_min(blocks_max, UINT32_MAX - 1) * 32;
}
