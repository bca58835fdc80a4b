/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hashes over xxHash. Pure; any thread.
 */
#include "base/hash.h"

#include <xxhash.h>

uint64_t hash64(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

uint64_t hash64_seed(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}
