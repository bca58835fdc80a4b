/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents of pages with boundary tags and segregated free lists.
 *
 * Called by the queue pairs of one loop, on that loop. Invariants: no two neighbouring extents are
 * free; the first and last page of each extent hold the same tag; a free extent of n pages is in
 * list pool_class(n); pages_free is the sum over the lists.
 */
#include "nvmf/target/pool.h"

#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"

#define POOL_NONE UINT32_MAX
#define POOL_FREE 1u

/* The list of extents of n pages: power of two and the two bits behind it. Every extent in a list
 * above pool_class_up(n) has n pages. */
static uint32_t pool_class(uint32_t n)
{
    uint32_t log2;

    check(n > 0);
    if (n < NVMFT_POOL_SUB)
        return n;
    log2 = 31 - (uint32_t)__builtin_clz(n);
    return log2 * NVMFT_POOL_SUB + (n >> (log2 - 2) & (NVMFT_POOL_SUB - 1));
}

/* The first list whose extents all have n pages or more. */
static uint32_t pool_class_up(uint32_t n)
{
    uint32_t log2;
    uint32_t step;

    if (n < NVMFT_POOL_SUB)
        return n;
    log2 = 31 - (uint32_t)__builtin_clz(n);
    step = 1u << (log2 - 2);
    return (n & (step - 1)) == 0 ? pool_class(n) : pool_class(n) + 1;
}

static uint32_t pool_pages(uint32_t tag)
{
    return tag >> 1;
}

static void pool_tag(struct nvmft_pool *pool, uint32_t first, uint32_t pages, bool is_free)
{
    uint32_t tag = pages << 1 | (is_free ? POOL_FREE : 0);

    pool->page[first].tag = tag;
    pool->page[first + pages - 1].tag = tag;
}

static void pool_list_add(struct nvmft_pool *pool, uint32_t first, uint32_t pages)
{
    uint32_t i = pool_class(pages);

    pool_tag(pool, first, pages, true);
    pool->page[first].prev = POOL_NONE;
    pool->page[first].next = pool->head[i];
    if (pool->head[i] != POOL_NONE)
        pool->page[pool->head[i]].prev = first;
    pool->head[i] = first;
    pool->used[i / 64] |= (uint64_t)1 << (i % 64);
    pool->pages_free += pages;
}

static void pool_list_remove(struct nvmft_pool *pool, uint32_t first)
{
    struct nvmft_pool_page *page = &pool->page[first];
    uint32_t i = pool_class(pool_pages(page->tag));

    check(page->tag & POOL_FREE);
    if (page->prev != POOL_NONE)
        pool->page[page->prev].next = page->next;
    else
        pool->head[i] = page->next;
    if (page->next != POOL_NONE)
        pool->page[page->next].prev = page->prev;
    if (pool->head[i] == POOL_NONE)
        pool->used[i / 64] &= ~((uint64_t)1 << (i % 64));
    pool->pages_free -= pool_pages(page->tag);
}

/* The first list at or after i that is not empty. */
static uint32_t pool_list_find(const struct nvmft_pool *pool, uint32_t i)
{
    for (uint32_t word = i / 64; word < NVMFT_POOL_CLASSES / 64; word++) {
        uint64_t bits = pool->used[word];

        if (word == i / 64)
            bits &= ~(uint64_t)0 << (i % 64);
        if (bits != 0)
            return word * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return POOL_NONE;
}

icms_err nvmft_pool_init(struct nvmft_pool *pool, void *memory, uint64_t bytes)
{
    uint64_t pages = bytes / NVMFT_POOL_PAGE;

    check((uintptr_t)memory % NVMFT_POOL_PAGE == 0);
    check(pages > 0 && pages < POOL_NONE / 2);
    *pool = (struct nvmft_pool){.base = memory, .pages = (uint32_t)pages};
    pool->page = calloc(pages, sizeof(*pool->page));
    if (pool->page == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < NVMFT_POOL_CLASSES; i++)
        pool->head[i] = POOL_NONE;
    pool_list_add(pool, 0, pool->pages);
    return ICMS_OK;
}

void nvmft_pool_fini(struct nvmft_pool *pool)
{
    free(pool->page);
    *pool = (struct nvmft_pool){0};
}

void *nvmft_pool_take(struct nvmft_pool *pool, uint64_t bytes)
{
    uint64_t want = bytes_align(bytes, NVMFT_POOL_PAGE) / NVMFT_POOL_PAGE;
    uint32_t list;
    uint32_t first;
    uint32_t have;

    check(want > 0);
    if (want > pool->pages_free)
        return NULL;
    list = pool_list_find(pool, pool_class_up((uint32_t)want));
    if (list == POOL_NONE) {
        /* The list of its own size may hold one that fits; its first is looked at, no more. */
        list = pool_class((uint32_t)want);
        first = pool->head[list];
        if (first == POOL_NONE || pool_pages(pool->page[first].tag) < want)
            return NULL;
    }
    first = pool->head[list];
    have = pool_pages(pool->page[first].tag);
    check(have >= want);
    pool_list_remove(pool, first);
    pool_tag(pool, first, (uint32_t)want, false);
    if (have > want)
        pool_list_add(pool, first + (uint32_t)want, have - (uint32_t)want);
    return pool->base + (uint64_t)first * NVMFT_POOL_PAGE;
}

uint64_t nvmft_pool_give(struct nvmft_pool *pool, void *memory)
{
    uint64_t offset = (uint64_t)((uint8_t *)memory - pool->base);
    uint32_t first = (uint32_t)(offset / NVMFT_POOL_PAGE);
    uint32_t pages;
    uint32_t given;

    check(offset % NVMFT_POOL_PAGE == 0 && offset / NVMFT_POOL_PAGE < pool->pages);
    check((pool->page[first].tag & POOL_FREE) == 0);
    given = pages = pool_pages(pool->page[first].tag);
    check(pages > 0 && first + pages <= pool->pages);
    if (first + pages < pool->pages && (pool->page[first + pages].tag & POOL_FREE) != 0) {
        uint32_t after = first + pages;

        pages += pool_pages(pool->page[after].tag);
        pool_list_remove(pool, after);
    }
    if (first > 0 && (pool->page[first - 1].tag & POOL_FREE) != 0) {
        uint32_t before = first - pool_pages(pool->page[first - 1].tag);

        pool_list_remove(pool, before);
        pages += first - before;
        first = before;
    }
    pool_list_add(pool, first, pages);
    return (uint64_t)given * NVMFT_POOL_PAGE;
}
