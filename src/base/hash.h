/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/hash.h: 64-bit hashes (XXH3, stable across versions and machines). Pure; any thread.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash64(const void *data, size_t bytes);
uint64_t hash64_seed(const void *data, size_t bytes, uint64_t seed);

/* Mixes one number; a bijection (the finalizer of SplitMix64). */
static inline uint64_t hash64_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

#endif
