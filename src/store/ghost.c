/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ghost filter: two Bloom filters of 8 bits a key and 5 probes. Loop's thread only.
 */
#include "store/ghost.h"

#include <stdlib.h>

#include "base/bytes.h"
#include "base/hash.h"

#define GHOST_BITS_A_KEY 8
#define GHOST_PROBES     5

struct store_ghost {
    uint64_t *bits[2]; /* [0] takes new keys, [1] is the old one          */
    uint64_t bit_mask; /* bits of one filter less one; a power of two     */
    uint64_t keys_max; /* that one filter takes before it becomes the old */
    uint64_t keys;     /* that bits[0] took                               */
    uint64_t seed;     /* of the hash */
};

static uint64_t ghost_filter_bytes(const struct store_ghost *ghost)
{
    return (ghost->bit_mask + 1) / 8;
}

static uint64_t ghost_hash(const struct store_ghost *ghost, uint32_t volume, const struct key *key)
{
    return hash64_seed(key->bytes, sizeof(key->bytes),
                       ghost->seed ^ hash64_mix((uint64_t)volume << 8 | key->length));
}

/* Probe i of a key: double hashing; the step is odd. */
static uint64_t ghost_probe(const struct store_ghost *ghost, uint64_t hash, uint32_t i)
{
    return (hash + i * (hash64_mix(hash) | 1)) & ghost->bit_mask;
}

icms_err store_ghost_new(uint64_t keys, uint64_t seed, struct store_ghost **out_ghost)
{
    struct store_ghost *ghost = calloc(1, sizeof(*ghost));
    uint64_t bits = 1;

    if (ghost == NULL)
        return ICMS_NO_MEMORY;
    ghost->keys_max = u64_max(keys, 1);
    while (bits < 64 || bits < ghost->keys_max * GHOST_BITS_A_KEY)
        bits *= 2;
    ghost->bit_mask = bits - 1;
    ghost->seed = seed;
    for (int i = 0; i < 2; i++) {
        ghost->bits[i] = calloc(1, ghost_filter_bytes(ghost));
        if (ghost->bits[i] == NULL) {
            store_ghost_free(&ghost);
            return ICMS_NO_MEMORY;
        }
    }
    *out_ghost = ghost;
    return ICMS_OK;
}

void store_ghost_free(struct store_ghost **ghost)
{
    if (*ghost == NULL)
        return;
    free((*ghost)->bits[0]);
    free((*ghost)->bits[1]);
    free(*ghost);
    *ghost = NULL;
}

void store_ghost_add(struct store_ghost *ghost, uint32_t volume, const struct key *key)
{
    uint64_t hash = ghost_hash(ghost, volume, key);

    if (ghost->keys == ghost->keys_max) {
        uint64_t *old = ghost->bits[1];

        ghost->bits[1] = ghost->bits[0];
        ghost->bits[0] = old;
        memset(old, 0, ghost_filter_bytes(ghost));
        ghost->keys = 0;
    }
    for (uint32_t i = 0; i < GHOST_PROBES; i++) {
        uint64_t bit = ghost_probe(ghost, hash, i);

        ghost->bits[0][bit / 64] |= (uint64_t)1 << bit % 64;
    }
    ghost->keys++;
}

bool store_ghost_has(const struct store_ghost *ghost, uint32_t volume, const struct key *key)
{
    uint64_t hash = ghost_hash(ghost, volume, key);
    bool in_new = true, in_old = true;

    for (uint32_t i = 0; i < GHOST_PROBES; i++) {
        uint64_t bit = ghost_probe(ghost, hash, i);

        in_new = in_new && (ghost->bits[0][bit / 64] >> bit % 64 & 1) != 0;
        in_old = in_old && (ghost->bits[1][bit / 64] >> bit % 64 & 1) != 0;
    }
    return in_new || in_old;
}
