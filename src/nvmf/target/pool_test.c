/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of data buffers: exact sizes, joined neighbours, nothing lost, nothing handed out twice.
 * And the backlog of stores that wait for it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "nvmf/target/pool.h"
#include "nvmf/target/target_int.h"

#define POOL_TEST_PAGES 1000

/* Compares lists, tags and counts. */
static void pool_verify(const struct nvmft_pool *pool)
{
    uint32_t pages_free = 0;
    uint32_t listed = 0;
    bool was_free = false;

    for (uint32_t at = 0; at < pool->pages;) {
        uint32_t tag = pool->page[at].tag;
        uint32_t pages = tag >> 1;

        assert_true(pages > 0 && at + pages <= pool->pages);
        assert_true(pool->page[at + pages - 1].tag == tag);
        assert_true(!(was_free && (tag & 1)));
        was_free = (tag & 1) != 0;
        pages_free += was_free ? pages : 0;
        at += pages;
    }
    for (uint32_t i = 0; i < NVMFT_POOL_CLASSES; i++)
        for (uint32_t at = pool->head[i]; at != UINT32_MAX; at = pool->page[at].next)
            listed += pool->page[at].tag >> 1;
    assert_true(pages_free == pool->pages_free && listed == pages_free);
}

static void pool_hands_out_exactly_what_it_has(void **state)
{
    struct nvmft_pool pool;
    void *memory = aligned_alloc(NVMFT_POOL_PAGE, 16 * NVMFT_POOL_PAGE);
    void *buffer[16];

    assert_non_null(memory);
    assert_int_equal(nvmft_pool_init(&pool, memory, 16 * NVMFT_POOL_PAGE), ICMS_OK);
    for (int i = 0; i < 16; i++) {
        buffer[i] = nvmft_pool_take(&pool, 1);
        assert_non_null(buffer[i]);
    }
    assert_null(nvmft_pool_take(&pool, 1));
    for (int i = 0; i < 16; i += 2)
        assert_int_equal(nvmft_pool_give(&pool, buffer[i]), NVMFT_POOL_PAGE);
    assert_null(nvmft_pool_take(&pool, NVMFT_POOL_PAGE + 1));
    pool_verify(&pool);
    for (int i = 1; i < 16; i += 2)
        nvmft_pool_give(&pool, buffer[i]);
    pool_verify(&pool);
    buffer[0] = nvmft_pool_take(&pool, 16 * NVMFT_POOL_PAGE);
    assert_ptr_equal(buffer[0], memory);
    assert_null(nvmft_pool_take(&pool, 1));
    nvmft_pool_fini(&pool);
    free(memory);
}

static void pool_refuses_more_than_all(void **state)
{
    struct nvmft_pool pool;
    void *memory = aligned_alloc(NVMFT_POOL_PAGE, NVMFT_POOL_PAGE);

    assert_int_equal(nvmft_pool_init(&pool, memory, NVMFT_POOL_PAGE), ICMS_OK);
    assert_null(nvmft_pool_take(&pool, (uint64_t)1 << 50));
    assert_non_null(nvmft_pool_take(&pool, NVMFT_POOL_PAGE));
    nvmft_pool_fini(&pool);
    free(memory);
}

static void pool_survives_a_random_life(void **state)
{
    struct nvmft_pool pool;
    uint8_t *memory = aligned_alloc(NVMFT_POOL_PAGE, POOL_TEST_PAGES * NVMFT_POOL_PAGE);
    uint8_t *held[64] = {0};
    uint64_t bytes[64] = {0};
    uint64_t random = 7;

    assert_int_equal(nvmft_pool_init(&pool, memory, POOL_TEST_PAGES * NVMFT_POOL_PAGE), ICMS_OK);
    for (int round = 0; round < 20000; round++) {
        unsigned i = (unsigned)((random = hash64_mix(random)) % 64);

        if (held[i] != NULL) {
            /* Nobody else wrote into it. */
            assert_int_equal(held[i][0], i);
            assert_int_equal(held[i][bytes[i] - 1], i);
            assert_true(nvmft_pool_give(&pool, held[i]) >= bytes[i]);
            held[i] = NULL;
        } else {
            bytes[i] = 2 + (random >> 32) % (40 * NVMFT_POOL_PAGE);
            held[i] = nvmft_pool_take(&pool, bytes[i]);
            if (held[i] != NULL)
                held[i][0] = held[i][bytes[i] - 1] = (uint8_t)i;
        }
        if (round % 64 == 0)
            pool_verify(&pool);
    }
    for (int i = 0; i < 64; i++)
        if (held[i] != NULL)
            nvmft_pool_give(&pool, held[i]);
    pool_verify(&pool);
    assert_int_equal(pool.pages_free, POOL_TEST_PAGES);
    assert_non_null(nvmft_pool_take(&pool, POOL_TEST_PAGES * NVMFT_POOL_PAGE));
    nvmft_pool_fini(&pool);
    free(memory);
}

/* A tenant has its part of a full backlog, which those that wait and itself share alike; alone it
 * has all. */
static void a_tenant_has_its_share_of_the_backlog(void **state)
{
    static struct nvmf_target target;
    static struct nvmft_shard shard;
    struct nvmft_tenant tenants[3] = {{.backlog_bytes = 0}};
    struct nvmft_buffers *buffers = &shard.buffers;

    target.opts.store_backlog_bytes = 1200;
    shard.target = &target;
    buffers->tenants = tenants;
    assert_false(nvmft_backlog_full(&shard, 0, 1200));
    assert_true(nvmft_backlog_full(&shard, 0, 1201));
    tenants[0].backlog_bytes = buffers->backlog_bytes = 1200; /* one waits, with all */
    buffers->backlog_tenants = 1;
    assert_true(nvmft_backlog_full(&shard, 0, 1));
    assert_false(nvmft_backlog_full(&shard, 1, 600)); /* one of two from now on */
    assert_true(nvmft_backlog_full(&shard, 1, 601));
    tenants[1].backlog_bytes = 300;
    buffers->backlog_bytes = 1500;
    buffers->backlog_tenants = 2;
    assert_false(nvmft_backlog_full(&shard, 1, 300)); /* still one of two */
    assert_true(nvmft_backlog_full(&shard, 1, 301));
    assert_false(nvmft_backlog_full(&shard, 2, 400)); /* one of three */
    assert_true(nvmft_backlog_full(&shard, 2, 401));
    buffers->backlog_bytes = 900; /* while the backlog is not full, no share counts */
    tenants[0].backlog_bytes = 600;
    assert_false(nvmft_backlog_full(&shard, 0, 300));
    assert_true(nvmft_backlog_full(&shard, 0, 301));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pool_hands_out_exactly_what_it_has),
        cmocka_unit_test(pool_refuses_more_than_all),
        cmocka_unit_test(pool_survives_a_random_life),
        cmocka_unit_test(a_tenant_has_its_share_of_the_backlog),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
