/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents of an arena: what is lost with values of many sizes while blocks come and go, who goes,
 * and that extents never meet.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/extent.h"
#include "shm/shm.h"
#include "base/bytes.h"
#include "base/hash.h"

#define KIB     ((uint64_t)1 << 10)
#define MIB     ((uint64_t)1 << 20)
#define TRAILER 64

/* An arena as volume.c keeps one: slots, which of them have a block, and which blocks may go. */
struct arena {
    struct extents extents;
    bool *held;     /* [count] the block may not go                */
    uint32_t *free; /* slots without a block                       */
    uint32_t free_count;
    uint64_t values;  /* bytes of values in it                       */
    uint64_t *value;  /* [count] bytes of the slot's value           */
    uint64_t put;     /* bytes of values that ever came              */
    uint64_t *since;  /* [count] put, when the slot's block came     */
    uint64_t stay;    /* least of put while a block was in it, until it was evicted */
    uint64_t evicted; /* blocks                                      */
    uint64_t passed;  /* extents, by the one request that passed most */
};

static void arena_new(struct arena *arena, uint64_t capacity, uint32_t count)
{
    *arena = (struct arena){0};
    assert_int_equal(extents_init(&arena->extents, capacity, count), ICMS_OK);
    arena->held = calloc(count, sizeof(arena->held[0]));
    arena->free = calloc(count, sizeof(arena->free[0]));
    arena->value = calloc(count, sizeof(arena->value[0]));
    arena->since = calloc(count, sizeof(arena->since[0]));
    assert_true(arena->held != NULL && arena->free != NULL && arena->value != NULL &&
                arena->since != NULL);
    arena->stay = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++)
        arena->free[arena->free_count++] = count - 1 - i;
}

static void arena_free(struct arena *arena)
{
    extents_fini(&arena->extents);
    free(arena->held);
    free(arena->free);
    free(arena->value);
    free(arena->since);
}

/* Looks at every extent and every hole: nothing meets, and all bytes are one or the other. */
static void arena_verify(const struct arena *arena)
{
    const struct extents *extents = &arena->extents;
    uint64_t at = 0, holes = 0, listed = 0;
    uint32_t slot = extents->of[extents->count].next, seen = 0;

    for (; slot != extents->count; slot = extents->of[slot].next, seen++) {
        const struct extent *extent = &extents->of[slot];

        assert_true(extent->begin >= at && extent->bytes > 0);
        assert_int_equal(extent->begin % EXTENT_UNIT, 0);
        assert_true(extent->bytes >= arena->value[slot]);
        holes += extent->begin - at;
        at = extent->begin + extent->bytes;
    }
    assert_true(at <= extents->capacity);
    holes += extents->capacity - at;
    assert_int_equal(holes, extents->hole_bytes);
    assert_int_equal(seen, extents->count - arena->free_count);
    for (uint32_t i = 0; i < EXTENT_CLASSES; i++)
        for (uint32_t owner = extents->holes[i]; owner != EXTENT_NONE;
             owner = extents->of[owner].hole_next)
            listed++;
    for (uint32_t i = 0, owner = extents->count; i <= seen; i++, owner = extents->of[owner].next) {
        const struct extent *extent = &extents->of[owner];
        uint64_t end =
            extent->next == extents->count ? extents->capacity : extents->of[extent->next].begin;

        listed -= end > extent->begin + extent->bytes;
    }
    assert_int_equal(listed, 0);
}

static void arena_remove(struct arena *arena, uint32_t slot)
{
    extents_give(&arena->extents, slot);
    arena->values -= arena->value[slot];
    arena->value[slot] = 0;
    arena->free[arena->free_count++] = slot;
}

static bool arena_may(void *arg, uint32_t slot)
{
    return !((struct arena *)arg)->held[slot];
}

static bool arena_evict(struct arena *arena, uint64_t bytes)
{
    struct extent_sweep sweep = {.may = arena_may, .arg = arena};
    uint32_t first, last, next, windows = 0;
    bool found = false;

    while (windows++ < 8 && (windows == 1 || sweep.bytes + bytes <= arena->extents.capacity / 32) &&
           extents_window(&arena->extents, bytes, &sweep, &first, &last)) {
        found = true;
        for (bool more = true; more; first = next) {
            next = arena->extents.of[first].next;
            more = first != last;
            arena->stay = u64_min(arena->stay, arena->put - arena->since[first]);
            arena_remove(arena, first);
            arena->evicted++;
        }
    }
    arena->passed = u64_max(arena->passed, sweep.passed);
    return found;
}

/* A block of so many bytes, as volume.c takes one; NONE: everything is held. */
static uint32_t arena_put(struct arena *arena, uint64_t value_bytes)
{
    uint64_t bytes = value_bytes + TRAILER;
    uint32_t slot;

    if (arena->free_count == 0 && !arena_evict(arena, 1))
        return EXTENT_NONE;
    slot = arena->free[--arena->free_count];
    if (!extents_take(&arena->extents, slot, bytes)) {
        if (!arena_evict(arena, bytes)) {
            arena->free[arena->free_count++] = slot;
            return EXTENT_NONE;
        }
        assert_true(extents_take(&arena->extents, slot, bytes)); /* one window is enough */
    }
    arena->value[slot] = value_bytes;
    arena->values += value_bytes;
    arena->put += value_bytes;
    arena->since[slot] = arena->put;
    return slot;
}

/* The block that was put there is smaller. */
static void arena_shrink(struct arena *arena, uint32_t slot, uint64_t value_bytes)
{
    uint64_t less = arena->value[slot] - value_bytes;

    arena->value[slot] = value_bytes;
    arena->values -= less;
    arena->put -= less;
    arena->since[slot] -= less;
    (void)extents_trim(&arena->extents, slot, value_bytes + TRAILER);
}

/* Every other block, wherever it lies, is used from time to time. */
static void arena_use_some(struct arena *arena, uint64_t random)
{
    for (int i = 0; i < 4; i++) {
        uint32_t slot = (uint32_t)(hash64_mix(random + (uint64_t)i) % arena->extents.count) & ~1u;

        if (arena->extents.of[slot].bytes != 0)
            extents_use(&arena->extents, slot);
    }
}

/* ---- what is lost --------------------------------------------------------------------------- */

/* Bytes of block number `step`. */
static uint64_t bytes_4k(uint64_t random, uint64_t step)
{
    return 4 * KIB;
}

static uint64_t bytes_64k(uint64_t random, uint64_t step)
{
    return 64 * KIB;
}

static uint64_t bytes_1m(uint64_t random, uint64_t step)
{
    return MIB;
}

static uint64_t bytes_two(uint64_t random, uint64_t step)
{
    return random % 2 == 0 ? 64 * KIB : MIB;
}

static uint64_t bytes_two_far(uint64_t random, uint64_t step)
{
    return random % 100 == 0 ? 8 * MIB : 4 * KIB;
}

static uint64_t bytes_uniform(uint64_t random, uint64_t step)
{
    return 4 * KIB + random % (8 * MIB - 4 * KIB + 1);
}

/* As many blocks between 4 and 8 KiB as between 4 and 8 MiB. */
static uint64_t bytes_doubled(uint64_t random, uint64_t doublings)
{
    return (4 * KIB << doublings) + (random >> 8) % (4 * KIB << doublings);
}

static uint64_t bytes_any(uint64_t random, uint64_t step)
{
    return bytes_doubled(random, random % 11);
}

/* From 4 KiB to 8 MiB and back, again and again. */
static uint64_t bytes_wave(uint64_t random, uint64_t step)
{
    uint64_t phase = step / 1500 % 22;

    return bytes_doubled(random, phase < 11 ? phase : 21 - phase);
}

struct mix {
    const char *name;
    uint64_t (*bytes)(uint64_t random, uint64_t step);
    uint64_t largest;
};

static const struct mix mixes[] = {
    {"4 KiB", bytes_4k, 4 * KIB},
    {"64 KiB", bytes_64k, 64 * KIB},
    {"1 MiB", bytes_1m, MIB},
    {"64 KiB and 1 MiB", bytes_two, MIB},
    {"4 KiB and 8 MiB", bytes_two_far, 8 * MIB},
    {"any of 4 KiB to 8 MiB", bytes_uniform, 8 * MIB},
    {"sizes from 4 KiB to 8 MiB alike", bytes_any, 8 * MIB},
    {"growing and shrinking", bytes_wave, 8 * MIB},
};

/* What happens meanwhile. */
enum use {
    USE_NONE,   /* nothing is used again                                          */
    USE_HALF,   /* every other block is used again                                */
    USE_LEASED, /* one block of 50 is leased, for a while, up to a 16th of the arena */
    USE_GUESS,  /* loads take space for the largest, and give back what is too much */
    USES,
};

#define LEASED 64

struct loss {
    double mean, worst; /* of the capacity, when it was full        */
    uint64_t stay;      /* fewest bytes put while a block stayed    */
};

/* Puts blocks until the arena was written over some times. */
static struct loss loss_of(const struct mix *mix, uint64_t capacity, enum use use)
{
    uint64_t leases_max = u64_max(u64_min(capacity / 16 / mix->largest, LEASED), 1);
    uint32_t leased[LEASED], leases = 0;
    struct loss loss = {0};
    struct arena arena;
    uint64_t put = 0, random = 1, samples = 0;

    arena_new(&arena, capacity, (uint32_t)(capacity / SHM_SLOT_BYTES));
    for (uint64_t step = 0; put < 5 * capacity || step < 40000; step++) {
        uint64_t bytes;
        uint32_t slot;

        random = hash64_mix(random);
        bytes = mix->bytes(random, step);
        slot = arena_put(&arena, use == USE_GUESS ? mix->largest : bytes);
        assert_int_not_equal(slot, EXTENT_NONE);
        arena_shrink(&arena, slot, bytes);
        put += bytes;
        if (use == USE_HALF && random >> 63 != 0)
            arena_use_some(&arena, random);
        if (use == USE_LEASED && (random >> 32) % 50 == 0) {
            if (leases >= leases_max)
                arena.held[leased[leases % leases_max]] = false;
            arena.held[slot] = true;
            leased[leases++ % leases_max] = slot;
        }
        if (put > 2 * capacity) {
            double lost = 1 - (double)arena.values / (double)capacity;

            loss.mean += lost;
            loss.worst = lost > loss.worst ? lost : loss.worst;
            samples++;
        }
    }
    arena_verify(&arena);
    loss.mean /= (double)samples;
    loss.stay = arena.stay;
    arena_free(&arena);
    return loss;
}

/* The largest block is a 32nd of the arena or less: never more than 15 % are lost, though nothing
 * but the arena's own blocks makes space. */
static void at_most_15_percent_are_lost(void **state)
{
    static const uint64_t capacities[] = {64 * MIB, 256 * MIB, 1024 * MIB};

    for (size_t i = 0; i < 3 * sizeof(mixes) / sizeof(mixes[0]); i++)
        for (int use = 0; use < USES; use++) {
            const struct mix *mix = &mixes[i / 3];
            uint64_t capacity = capacities[i % 3];
            struct loss loss;

            if (mix->largest > capacity / 32)
                continue;
            loss = loss_of(mix, capacity, (enum use)use);
            print_message("%s, %llu MiB, use %d: lost %.1f %%, at most %.1f %%\n", mix->name,
                          (unsigned long long)(capacity / MIB), use, 100 * loss.mean,
                          100 * loss.worst);
            assert_true(loss.worst <= 0.15);
        }
}

/* Larger ones leave larger holes for a moment. */
static void in_a_small_arena_15_percent_are_lost_on_average(void **state)
{
    for (size_t i = 0; i < sizeof(mixes) / sizeof(mixes[0]); i++)
        for (int use = 0; use < USE_GUESS; use++)
            assert_true(loss_of(&mixes[i], 64 * MIB, (enum use)use).mean <= 0.15);
}

/* Values under SHM_SLOT_BYTES use up the slots: as many as there are. */
static void small_values_are_as_many_as_slots(void **state)
{
    struct arena arena;

    arena_new(&arena, MIB, 256);
    for (int i = 0; i < 2000; i++)
        assert_int_not_equal(arena_put(&arena, 64), EXTENT_NONE);
    assert_true(arena.values >= (256 - 8) * 64);
    arena_verify(&arena);
    arena_free(&arena);
}

/* ---- who goes ------------------------------------------------------------------------------- */

static void what_is_not_used_goes_in_the_order_in_which_it_came(void **state)
{
    struct arena arena;

    for (size_t i = 0; i < 3; i++) { /* one size */
        struct loss loss = loss_of(&mixes[i], 256 * MIB, USE_NONE);

        assert_true(loss.stay >= 256 * MIB * 95 / 100);
    }
    arena_new(&arena, MIB, 256);
    for (int i = 0; i < 100; i++)
        assert_int_not_equal(arena_put(&arena, 9000), EXTENT_NONE);
    for (uint32_t first = EXTENT_NONE, i = 0; i < 15; i++) { /* where the first block was */
        uint32_t slot = arena_put(&arena, 9000);

        assert_int_not_equal(slot, EXTENT_NONE);
        first = i == 0 ? slot : first;
        assert_int_equal(arena.extents.of[slot].begin,
                         arena.extents.of[first].begin + (uint64_t)i * 9088);
    }
    arena_free(&arena);
}

/* Of blocks of one size those that are used before the hand comes stay as long as that is so. */
static void what_is_used_stays(void **state)
{
    enum { HOT = 40 };
    struct arena arena;
    uint32_t hot[HOT], kept = 0;

    arena_new(&arena, MIB, 256);
    for (int i = 0; i < HOT; i++)
        hot[i] = arena_put(&arena, 9000);
    for (int i = 0; i < 3000; i++) {
        for (int j = 0; j < HOT; j++)
            extents_use(&arena.extents, hot[j]);
        assert_int_not_equal(arena_put(&arena, 9000), EXTENT_NONE);
    }
    for (int i = 0; i < HOT; i++)
        kept += arena.since[hot[i]] == (uint64_t)(i + 1) * 9000;
    assert_int_equal(kept, HOT);
    assert_true(arena.evicted > 2900);
    arena_free(&arena);
}

/* Used or not: what was spared makes space when nothing else does. */
static void when_everything_is_used_the_oldest_goes(void **state)
{
    struct arena arena;

    arena_new(&arena, 8 * MIB, 2048);
    for (int i = 0; i < 4000; i++) {
        assert_int_not_equal(arena_put(&arena, 4096), EXTENT_NONE);
        for (uint32_t slot = 0; slot < 2048; slot++)
            if (arena.extents.of[slot].bytes != 0)
                extents_use(&arena.extents, slot);
    }
    assert_in_range(arena.passed, EXTENT_SPARED_MAX, EXTENT_SPARED_MAX + 20);
    arena_verify(&arena);
    arena_free(&arena);
}

static void what_may_not_go_stays_and_a_full_arena_says_so(void **state)
{
    uint64_t random = 3;
    struct arena arena;

    arena_new(&arena, MIB, 256);
    for (uint32_t slot, i = 0; i < 63; i++) { /* a sixth block of each size may not go */
        slot = arena_put(&arena, 16 * KIB - TRAILER);
        assert_int_not_equal(slot, EXTENT_NONE);
        arena.held[slot] = i % 2 == 0;
    }
    for (int i = 0; i < 500; i++) {
        random = hash64_mix(random);
        assert_int_not_equal(arena_put(&arena, 1 + random % (16 * KIB - TRAILER)), EXTENT_NONE);
        arena_verify(&arena);
    }
    for (uint32_t slot = 0, held = 0; slot < 256; slot++) {
        held += arena.held[slot];
        assert_true(!arena.held[slot] || arena.value[slot] == 16 * KIB - TRAILER);
        assert_true(slot != 255 || held == 32);
    }
    assert_int_equal(arena_put(&arena, 64 * KIB), EXTENT_NONE); /* no such space between them */
    for (uint32_t slot = 0; slot < 256; slot++)
        arena.held[slot] = false;
    assert_int_not_equal(arena_put(&arena, MIB - TRAILER), EXTENT_NONE);
    assert_int_equal(arena.free_count, 255);
    arena_free(&arena);
}

/* Nobody's look for space passes more than its limits, however many blocks there are. */
static void a_look_for_space_ends(void **state)
{
    struct arena arena;

    arena_new(&arena, 1024 * MIB, 262144);
    for (uint32_t i = 0; i < 262144; i++) {
        uint32_t slot = arena_put(&arena, 4 * KIB - TRAILER);

        assert_int_not_equal(slot, EXTENT_NONE);
        arena.held[slot] = i % 2 == 0;
    }
    for (int i = 0; i < 10; i++) { /* as long as each waits, and looks again */
        arena.passed = 0;
        assert_int_equal(arena_put(&arena, 8 * KIB), EXTENT_NONE);
        assert_in_range(arena.passed, EXTENT_STEPS, EXTENT_STEPS + 2);
    }
    arena.held[200000] = arena.held[200001] = arena.held[199999] = false;
    for (int i = 0; arena_put(&arena, 8 * KIB) == EXTENT_NONE; i++)
        assert_in_range(i, 0, 5); /* a lap */
    arena_free(&arena);
}

/* ---- anything ------------------------------------------------------------------------------- */

static void whatever_is_done_extents_do_not_meet(void **state)
{
    for (uint64_t random = 1, round = 0; round < 20; round++) {
        struct arena arena;

        arena_new(&arena, (1 + random % 64) * 64 * KIB, 1 + (uint32_t)(random >> 20) % 600);
        for (int step = 0; step < 2000; step++) {
            uint32_t slot = (uint32_t)((random = hash64_mix(random)) % arena.extents.count);
            bool has = arena.extents.of[slot].bytes != 0;
            uint64_t bytes = 1 + (random >> 32) % (uint64_t[]){100, 5000, 90000}[random % 3];

            switch (random >> 24 & 7) {
            case 0:
                if (has)
                    arena_remove(&arena, slot);
                break;
            case 1:
                if (has)
                    arena_shrink(&arena, slot, 1 + bytes % arena.value[slot]);
                break;
            case 2:
                arena.held[slot] = has && step < 1900;
                break;
            case 3:
                extents_use(&arena.extents, slot);
                break;
            default:
                slot = arena_put(&arena, bytes);
                if (slot != EXTENT_NONE)
                    arena.held[slot] = false;
            }
            if (step % 50 == 0)
                arena_verify(&arena);
        }
        arena_verify(&arena);
        arena_free(&arena);
    }
}

/* Reserves a slab at begin, or gives it back: what lies there goes, unless it is held. */
static void arena_reserve(struct arena *arena, uint32_t *reserved, uint64_t begin, uint64_t bytes,
                          uint32_t near)
{
    struct extents *extents = &arena->extents;
    uint32_t before = extents_before(extents, extents->count, begin),
             next = extents->of[before].next;

    assert_int_equal(extents_before(extents, near, begin), before);
    if (*reserved != EXTENT_NONE) {
        extents_unreserve(extents, *reserved);
        arena->held[*reserved] = false;
        arena->free[arena->free_count++] = *reserved;
        *reserved = EXTENT_NONE;
        return;
    }
    if (before != extents->count && !arena->held[before] &&
        extents->of[before].begin + extents->of[before].bytes > begin)
        arena_remove(arena, before);
    for (uint32_t at = next; at != extents->count && extents->of[at].begin < begin + bytes;
         at = next) {
        next = extents->of[at].next;
        if (!arena->held[at])
            arena_remove(arena, at);
    }
    before = extents_before(extents, extents->count, begin);
    if (arena->free_count == 0 || !extents_is_hole(extents, before, begin, bytes))
        return;
    *reserved = arena->free[--arena->free_count];
    arena->held[*reserved] = true;
    extents_reserve(extents, *reserved, before, begin, bytes);
}

/* Reservations come and go while blocks do; none lies in a reservation, and the space between them
 * is used.
 */
static void blocks_lie_between_walls(void **state)
{
    enum { SLABS = 16, STEPS = 20000, SLAB = 65536 };
    uint32_t reserved[SLABS], count = 0, put = 0;
    struct arena arena;
    uint64_t random = 1;

    arena_new(&arena, (uint64_t)SLABS * SLAB, 600);
    memset(reserved, 0xff, sizeof(reserved));
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t slab = (uint32_t)((random = hash64_mix(random)) >> 32) % SLABS, slot;

        if (step % 20 == 0) {
            slot = (uint32_t)(random >> 40) % arena.extents.count;
            if (arena.extents.of[slot].bytes == 0)
                slot = arena.extents.count;
            arena_reserve(&arena, &reserved[slab], (uint64_t)slab * SLAB, SLAB, slot);
            arena_verify(&arena);
        }
        slot = arena_put(&arena, 1 + random % (step % 3 == 0 ? 60000 : 4000));
        count = 0;
        for (uint32_t i = 0; i < SLABS; i++)
            count += reserved[i] != EXTENT_NONE;
        assert_int_equal(arena.extents.reserved_bytes, (uint64_t)count * SLAB);
        if (slot == EXTENT_NONE)
            continue;
        put++;
        for (uint32_t i = 0; i < SLABS; i++)
            if (reserved[i] != EXTENT_NONE)
                assert_true(arena.extents.of[slot].begin >= (i + 1) * (uint64_t)SLAB ||
                            arena.extents.of[slot].begin + arena.extents.of[slot].bytes <=
                                i * (uint64_t)SLAB);
    }
    assert_true(put > STEPS - STEPS / 100);
    for (uint32_t i = 0; i < SLABS; i++)
        if (reserved[i] != EXTENT_NONE)
            arena_reserve(&arena, &reserved[i], (uint64_t)i * SLAB, SLAB, arena.extents.count);
    assert_int_equal(arena.extents.reserved_bytes, 0);
    arena_verify(&arena);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_most_15_percent_are_lost),
        cmocka_unit_test(in_a_small_arena_15_percent_are_lost_on_average),
        cmocka_unit_test(small_values_are_as_many_as_slots),
        cmocka_unit_test(what_is_not_used_goes_in_the_order_in_which_it_came),
        cmocka_unit_test(what_is_used_stays),
        cmocka_unit_test(when_everything_is_used_the_oldest_goes),
        cmocka_unit_test(what_may_not_go_stays_and_a_full_arena_says_so),
        cmocka_unit_test(a_look_for_space_ends),
        cmocka_unit_test(whatever_is_done_extents_do_not_meet),
        cmocka_unit_test(blocks_lie_between_walls),
    };

    return cmocka_run_group_tests_name("agent-extent", tests, NULL, NULL);
}
