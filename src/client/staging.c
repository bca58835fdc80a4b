/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/staging.c: room in the staging memory, in granules of 4 KiB, next fit.
 *
 * Called with the handle's lock held. A search looks at each word of the map at most twice: 64 MiB
 * are 256 words. The agent only reads staging memory; which part is in use is known here alone.
 */
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "client/client_int.h"

icms_err staging_init(struct staging *staging, uint64_t bytes)
{
    uint64_t granules = bytes / STAGING_GRANULE;

    if (granules == 0 || granules > UINT32_MAX / 2)
        return ICMS_INVALID;
    staging->taken = calloc((granules + 63) / 64, sizeof(uint64_t));
    if (staging->taken == NULL)
        return ICMS_NO_MEMORY;
    staging->granules = (uint32_t)granules;
    staging->free_count = (uint32_t)granules;
    staging->search_begin = 0;
    return ICMS_OK;
}

void staging_fini(struct staging *staging)
{
    free(staging->taken);
    staging->taken = NULL;
}

static uint32_t staging_granules(uint64_t bytes)
{
    return (uint32_t)((bytes + STAGING_GRANULE - 1) / STAGING_GRANULE);
}

/* First granule at or after i whose bit is (or is not) set; `end` when there is none. */
static uint32_t staging_scan(const struct staging *staging, uint32_t i, uint32_t end, bool set)
{
    while (i < end) {
        uint64_t word = staging->taken[i / 64];

        word = (set ? word : ~word) >> i % 64;
        if (word != 0) {
            i += (uint32_t)__builtin_ctzll(word);
            return i < end ? i : end;
        }
        i = (i / 64 + 1) * 64;
    }
    return end;
}

/* A free run of count granules that begins in [begin, end); it may reach behind end. */
static bool staging_search(const struct staging *staging, uint32_t begin, uint32_t end,
                           uint32_t count, uint32_t *out_first)
{
    uint32_t first = begin;

    while ((first = staging_scan(staging, first, end, false)) < end) {
        uint32_t limit, last;

        if (count > staging->granules - first)
            return false;
        limit = first + count;
        last = staging_scan(staging, first, limit, true);
        if (last == limit) {
            *out_first = first;
            return true;
        }
        first = last;
    }
    return false;
}

bool staging_take(struct staging *staging, uint64_t bytes, uint64_t *out_offset)
{
    uint32_t count, first;

    if (bytes == 0 || bytes > (uint64_t)staging->granules * STAGING_GRANULE)
        return false;
    count = staging_granules(bytes);
    if (count > staging->free_count)
        return false;
    if (!staging_search(staging, staging->search_begin, staging->granules, count, &first) &&
        !staging_search(staging, 0, staging->search_begin, count, &first))
        return false;
    for (uint32_t i = first; i < first + count; i++)
        staging->taken[i / 64] |= (uint64_t)1 << i % 64;
    staging->free_count -= count;
    staging->search_begin = first + count < staging->granules ? first + count : 0;
    *out_offset = (uint64_t)first * STAGING_GRANULE;
    return true;
}

void staging_give(struct staging *staging, uint64_t offset, uint64_t bytes)
{
    uint32_t first = (uint32_t)(offset / STAGING_GRANULE);
    uint32_t count = staging_granules(bytes);

    check(offset % STAGING_GRANULE == 0 && first + count <= staging->granules);
    for (uint32_t i = first; i < first + count; i++) {
        check((staging->taken[i / 64] >> i % 64 & 1) != 0);
        staging->taken[i / 64] &= ~((uint64_t)1 << i % 64);
    }
    staging->free_count += count;
}
