/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing the keys of a volume, a slice at a time.
 *
 * The index keeps its chains in the order of the hash, so a position is found at once and the keys
 * behind it come chain by chain. A position is a place in that order and not in memory: blocks may
 * come, go and move between two slices. Runs on the store's loop, does no I/O.
 */
#include "base/check.h"
#include "store/store_int.h"

/* Chains whose first entry is on its way from memory while others are looked at. */
#define LIST_AHEAD 8

const struct store_position store_position_end = {
    .hash = UINT64_MAX,
    .key = {.bytes = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                      0xff, 0xff, 0xff},
            .length = LIMIT_KEY_BYTES},
};

int store_position_compare(const struct store_position *a, const struct store_position *b)
{
    int order;

    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    order = memcmp(a->key.bytes, b->key.bytes, sizeof(a->key.bytes));
    return order != 0 ? order : (int)a->key.length - (int)b->key.length;
}

/* Between a key and the same bytes with one less in length there is no other key. */
struct store_position store_position_before(const struct store *store, uint32_t volume,
                                            const struct key *key)
{
    struct store_position position = {.hash = store_index_hash(store->index, volume, key),
                                      .key = *key};

    position.key.length--;
    return position;
}

/* Puts a key in order among keys[0..count), of which there may be max: the last one falls out.
 * Returns how many there are. */
static uint32_t list_keep(struct store_position *keys, uint32_t count, uint32_t max,
                          const struct store_position *key)
{
    uint32_t at = count;

    while (at > 0 && store_position_compare(key, &keys[at - 1]) < 0)
        at--;
    if (at == max)
        return count;
    if (count == max)
        count--;
    memmove(&keys[at + 1], &keys[at], (count - at) * sizeof(*keys));
    keys[at] = *key;
    return count + 1;
}

/* The keys of one chain behind from, up to until, as many as there may be, in order; adds to *steps
 * what was looked at. Returns how many there are, which may be more than max. */
static uint32_t list_chain(const struct store *store, uint32_t volume, uint32_t chain,
                           const struct store_position *from, const struct store_position *until,
                           struct store_position *keys, uint32_t max, uint32_t *steps)
{
    struct store_block block;
    uint32_t entry = 0, met = 0, count = 0;

    while (store_index_chain_next(store->index, chain, &entry, &block)) {
        struct store_position key = {.key = block.key};

        ++*steps;
        if (block.volume != volume || block.location.damaged)
            continue;
        key.hash = store_index_hash(store->index, volume, &block.key);
        if (store_position_compare(&key, from) <= 0 || store_position_compare(&key, until) > 0)
            continue;
        met++;
        count = list_keep(keys, count, max, &key);
    }
    return met;
}

uint32_t store_list(struct store *store, uint32_t volume, struct store_position *from,
                    const struct store_position *until, uint32_t steps_max,
                    struct store_position *keys, uint32_t keys_max)
{
    uint32_t chain = store_index_chain(store->index, from->hash);
    uint32_t last = store_index_chain(store->index, until->hash);
    uint32_t count = 0, steps = 0;
    bool on = store_position_compare(from, until) < 0;

    check(store->magic == STORE_MAGIC && keys_max > 0);
    if (volume >= store->volume_count || store->down) {
        *from = *until;
        return 0;
    }
    while (on && steps < steps_max && count < keys_max) {
        uint32_t room = keys_max - count;
        uint32_t met;

        store_index_chain_prefetch(store->index, chain + LIST_AHEAD);
        met = list_chain(store, volume, chain, from, until, &keys[count], room, &steps);

        steps++;
        if (met > room) { /* the rest of the chain comes with the next call */
            count = keys_max;
            *from = keys[count - 1];
            break;
        }
        count += met;
        on = chain < last;
        *from = on ? (struct store_position){.hash = store_index_chain_hash(store->index, ++chain)}
                   : *until;
    }
    counter_add(&store->stats.list_steps, steps);
    return count;
}
