/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relocation (relocate.c): a segment that lives for one block alone is evicted without it, and what
 * its owner does with the block meanwhile counts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "store/store_int.h"
#include "store/store_rig.h"

#define BYTES 5000 /* six records a segment */

static void relocate_rig(struct rig *rig)
{
    rig_one_volume(rig);
    rig->opts.bytes = STORE_DATA_OFFSET + 16 * RIG_SEGMENT_BYTES;
    rig_format(rig);
    rig_up(rig);
}

struct look {
    bool busy;       /* a block is being relocated */
    uint64_t record; /* that key 0 has            */
};

static void look_call(struct rig *rig, void *arg)
{
    struct key key = rig_key(0);
    struct look *look = arg;

    look->busy = rig->store->relocate.segment != NULL;
    look->record = store_record_now(rig->store, 0, &key);
}

static struct look look(struct rig *rig)
{
    struct look look;

    rig_call(rig, look_call, &look);
    return look;
}

/* A block that is read all the time stays, its neighbours in the segment go. A restart finds it. */
static void the_block_that_is_read_stays_alone(void **state)
{
    enum { BLOCKS = 400 };
    struct rig *rig = *state;
    uint64_t hits = 0, record;
    struct store_stats stats;

    relocate_rig(rig);
    assert_int_equal(rig_put(rig, 0, 0, BYTES, 0, 0), ICMS_OK);
    record = look(rig).record;
    for (uint64_t i = 1; i < BLOCKS; i++) {
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
        assert_int_equal(rig_get(rig, 0, 0, BYTES, 0, NULL), ICMS_OK);
    }
    assert_int_not_equal(look(rig).record, record);
    for (uint64_t i = 1; i < 200; i++)
        assert_false(rig_exists(rig, 0, i));
    for (uint64_t i = 0; i < BLOCKS; i++)
        hits += rig_exists(rig, 0, i);
    rig_stats(rig, &stats);
    assert_int_equal(stats.evictions, BLOCKS - hits);
    assert_int_equal(stats.writes, BLOCKS);
    assert_int_equal(stats.reads, BLOCKS - 1);
    assert_int_equal(stats.admitted_bytes, BLOCKS * store_record_bytes(BYTES));
    assert_true(stats.device_write_bytes > stats.admitted_bytes);
    rig_restart(rig);
    assert_int_equal(rig_get(rig, 0, 0, BYTES, 0, NULL), ICMS_OK);
    rig_verify(rig);
}

/* What is stored or deleted while it is relocated stays what it was then. */
static void a_mutation_meanwhile_wins(void **state)
{
    enum { BLOCKS = 3000 };
    struct rig *rig = *state;
    uint64_t met = 0, seed = 0;

    relocate_rig(rig);
    assert_int_equal(rig_put(rig, 0, 0, BYTES, seed, 0), ICMS_OK);
    for (uint64_t i = 1; i < BLOCKS; i++) {
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
        if (!look(rig).busy) {
            assert_int_equal(rig_get(rig, 0, 0, BYTES, seed, NULL), ICMS_OK);
            continue;
        }
        met++;
        if (met % 2 == 0) {
            assert_int_equal(rig_delete(rig, 0, 0), ICMS_OK);
            for (int wait = 0; wait < 20; wait++)
                assert_int_equal(rig_get(rig, 0, 0, BYTES, seed, NULL), ICMS_MISS);
        }
        assert_int_equal(rig_put(rig, 0, 0, BYTES, ++seed, 0), ICMS_OK);
        for (int wait = 0; wait < 20; wait++)
            assert_int_equal(rig_get(rig, 0, 0, BYTES, seed, NULL), ICMS_OK);
    }
    assert_true(met > 10);
    rig_restart(rig);
    assert_int_equal(rig_get(rig, 0, 0, BYTES, seed, NULL), ICMS_OK);
    rig_verify(rig);
}

/* Block 0, which is stored again while its segment is evicted. */
struct evicted {
    struct store_write write;
    uint8_t *memory;
    atomic_bool done;
};

static void evicted_done(struct store_write *write)
{
    struct evicted *evicted = container_of(write, struct evicted, write);

    atomic_store(&evicted->done, true);
}

static void evicted_write(struct rig *rig, void *arg)
{
    struct evicted *evicted = arg;
    struct key key = rig_key(0);

    evicted->write = (struct store_write){.volume = 0,
                                          .key = key,
                                          .memory = evicted->memory,
                                          .value_bytes = BYTES,
                                          .only_record = store_record_now(rig->store, 0, &key),
                                          .done = evicted_done};
    assert_int_equal(store_write(rig->store, &evicted->write), ICMS_OK);
    assert_int_equal(rig->store->writes, 1); /* with the device */
}

/* As reclaim does it. */
static void evicted_evict(struct rig *rig, void *arg)
{
    struct store_block block = {.volume = 0, .key = rig_key(0)};

    (void)arg;
    assert_true(store_index_find(rig->store->index, 0, &block.key, &block.location));
    store_segment_evict(rig->store, &block);
}

static void evicted_write_and_evict(struct rig *rig, void *arg)
{
    evicted_write(rig, arg);
    evicted_evict(rig, NULL);
}

static bool evicted_ended(void *arg)
{
    struct evicted *evicted = arg;

    return atomic_load(&evicted->done);
}

/* The segment of block 0 gets a new life, which kills of its records wait for. */
static void evicted_renew(struct rig *rig, void *arg)
{
    struct store_location location;
    struct key key = rig_key(0);

    assert_true(store_index_find(rig->store->index, 0, &key, &location));
    rig->store->segments[location.segment].state = SEGMENT_RENEWING;
    evicted_write(rig, arg);
}

static void evicted_renewed(struct rig *rig, void *arg)
{
    bool *waits = arg;
    struct store_location location;
    struct key key = rig_key(0);

    *waits = !list_empty(&rig->store->kill.waiting);
    if (!*waits)
        return;
    assert_true(store_index_find(rig->store->index, 0, &key, &location));
    evicted_evict(rig, NULL);
    rig->store->segments[location.segment].state = SEGMENT_SEALED;
    rig->store->run(rig->store);
}

static void evicted_check(struct rig *rig, struct evicted *evicted)
{
    struct store_stats stats;

    assert_true(rig_until(rig, evicted_ended, evicted));
    assert_int_equal(evicted->write.err, ICMS_MISS);
    assert_false(rig_exists(rig, 0, 0));
    rig_stats(rig, &stats);
    assert_int_equal(stats.evictions, 1);
    rig_down(rig); /* not compared with flash, where the segment was not evicted */
    free(evicted->memory);
}

/* A block that counts as evicted is not there: what would have kept it comes too late. */
static void an_eviction_during_the_write_counts(void **state)
{
    struct rig *rig = *state;
    struct evicted evicted = {.memory = aligned_alloc(STORE_PAGE_BYTES, store_record_bytes(BYTES))};

    assert_non_null(evicted.memory);
    relocate_rig(rig);
    assert_int_equal(rig_put(rig, 0, 0, BYTES, 0, 0), ICMS_OK);
    rig_call(rig, evicted_write_and_evict, &evicted);
    evicted_check(rig, &evicted);
}

static void an_eviction_during_the_kill_counts(void **state)
{
    struct rig *rig = *state;
    struct evicted evicted = {.memory = aligned_alloc(STORE_PAGE_BYTES, store_record_bytes(BYTES))};
    bool waits = false;

    assert_non_null(evicted.memory);
    relocate_rig(rig);
    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
    rig_wait_sealed(rig, 0, 0);
    rig_call(rig, evicted_renew, &evicted);
    while (!waits)
        rig_call(rig, evicted_renewed, &waits);
    evicted_check(rig, &evicted);
}

#define RELOCATE_TEST(test, backend)                                                               \
    {                                                                                              \
#backend ": " #test, test, rig_##backend##_setup, rig_##backend##_teardown, NULL           \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        RELOCATE_TEST(the_block_that_is_read_stays_alone, uring),
        RELOCATE_TEST(the_block_that_is_read_stays_alone, sim),
        RELOCATE_TEST(a_mutation_meanwhile_wins, sim),
        RELOCATE_TEST(an_eviction_during_the_write_counts, sim),
        RELOCATE_TEST(an_eviction_during_the_kill_counts, sim),
    };

    return cmocka_run_group_tests_name("store-relocate", tests, NULL, NULL);
}
