/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/ghost.h: remembers, roughly, which blocks were evicted. Private to the store.
 *
 * Two Bloom filters of fixed size: one takes new keys; when it has taken its share, it becomes the
 * old one and the old one is emptied. So the last `keys` evictions are always remembered, up to
 * twice as many, and about one in forty other blocks is taken for one of them.
 */
#ifndef STORE_GHOST_H
#define STORE_GHOST_H

#include "base/err.h"
#include "base/types.h"

struct store_ghost;

icms_err store_ghost_new(uint64_t keys, uint64_t seed,
                         struct store_ghost **out_ghost) ICMS_MUST_CHECK;
void store_ghost_free(struct store_ghost **ghost);
void store_ghost_add(struct store_ghost *ghost, uint32_t volume, const struct key *key);
bool store_ghost_has(const struct store_ghost *ghost, uint32_t volume, const struct key *key);

#endif
