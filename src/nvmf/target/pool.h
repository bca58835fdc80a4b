/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/target/pool.h: data buffers of one loop: extents of whole pages out of one piece of memory.
 *
 * Values have any size from a byte to megabytes, and a buffer of the next power of two would waste
 * half of it. So the pool hands out extents of exactly as many pages as are asked for; free
 * extents are kept in lists by size (four to a power of two) and joined with their neighbours when
 * they come back. Allocation and release take constant time, and the bookkeeping is made at start:
 * 12 bytes a page.
 *
 * Belongs to one loop. No locks, no growth: an empty pool says so and the caller parks.
 */
#ifndef NVMF_TARGET_POOL_H
#define NVMF_TARGET_POOL_H

#include "base/err.h"
#include "base/types.h"

#define NVMFT_POOL_PAGE    LIMIT_DISK_ALIGN
#define NVMFT_POOL_SUB     4                     /* lists a power of two             */
#define NVMFT_POOL_CLASSES (32 * NVMFT_POOL_SUB) /* enough for 2^32 pages            */

/* One page of the pool. Only the first and last page of an extent are looked at. */
struct nvmft_pool_page {
    uint32_t tag;  /* pages of the extent << 1 | free; set in its first and last page */
    uint32_t next; /* first page of a free extent: next in its list, else unused      */
    uint32_t prev; /* the same, backwards                                             */
};

struct nvmft_pool {
    uint8_t *base;                          /* page aligned; not owned                      */
    uint32_t pages;                         /* of the whole pool                            */
    uint32_t pages_free;                    /* not handed out                               */
    struct nvmft_pool_page *page;           /* one for each page                            */
    uint64_t used[NVMFT_POOL_CLASSES / 64]; /* bit i: free list i is not empty          */
    uint32_t head[NVMFT_POOL_CLASSES];      /* first extent of each list, or UINT32_MAX     */
};

/* Makes a pool over memory (kept by the caller, page aligned, at least one page). */
icms_err nvmft_pool_init(struct nvmft_pool *pool, void *memory, uint64_t bytes) ICMS_MUST_CHECK;

/* Frees the bookkeeping. */
void nvmft_pool_fini(struct nvmft_pool *pool);

/* A buffer of at least bytes (rounded up to whole pages); NULL when none is free. */
void *nvmft_pool_take(struct nvmft_pool *pool, uint64_t bytes);

/* Gives a buffer back; returns the bytes it had. */
uint64_t nvmft_pool_give(struct nvmft_pool *pool, void *memory);

#endif
