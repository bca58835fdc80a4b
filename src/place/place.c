/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weighted rendezvous hashing into a slot table.
 *
 * Each slot draws one number u in (0, 1) for each member, from the slot and the member's uuid
 * alone, and ranks the members by -log(u) / weight, least first. So a member's cost in a slot never
 * depends on who else is there: taking a member away moves its slots only, adding one takes its
 * share only.
 *
 * Every machine must compute the same table, and logarithms of C libraries differ in the last bit.
 * So the logarithm here is integer arithmetic, and the one floating-point operation left is a
 * division, which IEEE 754 rounds in one way only.
 *
 * Called at start and by control threads (place_map_new), and by any thread (the rest).
 */
#include "place/place.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/hash.h"

#define PLACE_MEMBERS_MAX (LIMIT_ENCLOSURES > LIMIT_DRIVES ? LIMIT_ENCLOSURES : LIMIT_DRIVES)
#define PLACE_NOBODY      0xff

_Static_assert(PLACE_MEMBERS_MAX < PLACE_NOBODY, "a member fits in a byte of the table");
_Static_assert(PLACE_MEMBERS_MAX <= 64, "the set of excluded members is one 64-bit map");
_Static_assert(PLACE_SLOTS == 1 << 16, "a slot is 16 bits of the hash");

/* Logarithms are fixed point with this many bits after the point. */
#define PLACE_LOG_BITS 40
#define PLACE_LOG_ONE  ((uint64_t)1 << PLACE_LOG_BITS)

/* log2 of 1 + i / PLACE_LOG_STEPS, linear in between: off by less than 2^-24. */
#define PLACE_LOG_STEPS 2048

__extension__ typedef unsigned __int128 place_u128;

struct place_map {
    uint32_t members; /* in the caller's array, with weight or without        */
    uint32_t shift;   /* where the slot lies in a key's hash: its level       */
    uint8_t rank[PLACE_SLOTS][PLACE_RANKS]; /* members in order, or PLACE_NOBODY */
};

/* One member while a table is built. */
struct place_candidate {
    uint64_t hash;    /* of its uuid                              */
    double weight;    /* > 0                                      */
    double cost;      /* in the current slot; the least owns it   */
    uint32_t member;  /* in the caller's array           */
    struct uuid uuid; /* decides between equal costs     */
};

/* What building needs and the map does not keep. */
struct place_build {
    uint64_t log2[PLACE_LOG_STEPS + 1];                  /* log2(1 + i / steps) */
    struct place_candidate candidate[PLACE_MEMBERS_MAX]; /* members with weight */
    uint32_t candidates;                                 /* of them */
};

/* log2(mantissa / 2^63), mantissa in [2^63, 2^64), by repeated squaring; one bit a round. */
static uint64_t place_log2_exact(uint64_t mantissa)
{
    uint64_t log = 0;

    for (uint32_t bit = 0; bit < PLACE_LOG_BITS; bit++) {
        place_u128 square = (place_u128)mantissa * mantissa;

        log <<= 1;
        if (square >> 127 != 0) {
            log |= 1;
            mantissa = (uint64_t)(square >> 64);
        } else {
            mantissa = (uint64_t)(square >> 63);
        }
    }
    return log;
}

static void place_log2_init(struct place_build *build)
{
    for (uint64_t i = 0; i < PLACE_LOG_STEPS; i++)
        build->log2[i] =
            place_log2_exact(((uint64_t)1 << 63) + i * (((uint64_t)1 << 63) / PLACE_LOG_STEPS));
    build->log2[PLACE_LOG_STEPS] = PLACE_LOG_ONE;
}

/* -log2(u) for u = hash / 2^64, above 0. */
static uint64_t place_neg_log2(const struct place_build *build, uint64_t hash)
{
    uint32_t zeros, step;
    uint64_t fraction, low, high, rest;

    if (hash == 0)
        hash = 1;
    zeros = (uint32_t)__builtin_clzll(hash);
    fraction = hash << zeros << 1;       /* what follows the leading one, as 0.64 */
    step = (uint32_t)(fraction >> 53);   /* the first 11 bits of it               */
    rest = (fraction << 11 >> 11) >> 29; /* the 24 bits after them                */
    low = build->log2[step];
    high = build->log2[step + 1];
    low += (high - low) * rest >> 24;
    return ((uint64_t)(zeros + 1) << PLACE_LOG_BITS) - low;
}

static bool place_candidate_before(const struct place_candidate *a, const struct place_candidate *b)
{
    if (a->cost != b->cost)
        return a->cost < b->cost;
    return memcmp(a->uuid.bytes, b->uuid.bytes, sizeof(a->uuid.bytes)) < 0;
}

static void place_slot_rank(struct place_map *map, struct place_build *build, uint32_t slot)
{
    const struct place_candidate *best[PLACE_RANKS];
    uint64_t slot_hash = hash64_mix(slot);
    uint32_t found = 0;

    for (uint32_t i = 0; i < build->candidates; i++) {
        struct place_candidate *c = &build->candidate[i];
        uint32_t at;

        c->cost = (double)place_neg_log2(build, hash64_mix(c->hash ^ slot_hash)) / c->weight;
        if (found == PLACE_RANKS && !place_candidate_before(c, best[found - 1]))
            continue;
        at = found < PLACE_RANKS ? found++ : found - 1;
        for (; at > 0 && place_candidate_before(c, best[at - 1]); at--)
            best[at] = best[at - 1];
        best[at] = c;
    }
    for (uint32_t r = 0; r < PLACE_RANKS; r++)
        map->rank[slot][r] = r < found ? (uint8_t)best[r]->member : PLACE_NOBODY;
}

static icms_err place_members_check(const struct place_member *members, uint32_t count,
                                    struct err_why *why)
{
    char text[UUID_TEXT_BYTES];
    bool weighted = false;

    if (count == 0 || count > PLACE_MEMBERS_MAX)
        return err_set(why, ICMS_INVALID, "a map has 1 to %d members, not %u", PLACE_MEMBERS_MAX,
                       count);
    for (uint32_t i = 0; i < count; i++) {
        if (!(members[i].weight >= 0) || isinf(members[i].weight))
            return err_set(why, ICMS_INVALID, "the weight of member %s is not a number from 0 up",
                           uuid_format(&members[i].uuid, text));
        weighted = weighted || members[i].weight > 0;
        for (uint32_t j = 0; j < i; j++) {
            if (uuid_equal(&members[i].uuid, &members[j].uuid))
                return err_set(why, ICMS_INVALID, "member %s is listed twice",
                               uuid_format(&members[i].uuid, text));
        }
    }
    if (!weighted)
        return err_set(why, ICMS_INVALID, "no member has a weight above 0");
    return ICMS_OK;
}

static icms_err place_map_build(const struct place_member *members, uint32_t count, uint32_t shift,
                                struct err_why *why, struct place_map **out_map)
{
    icms_err err = place_members_check(members, count, why);
    struct place_build *build;
    struct place_map *map;

    if (err != ICMS_OK)
        return err;
    map = calloc(1, sizeof(*map));
    build = calloc(1, sizeof(*build));
    if (map == NULL || build == NULL) {
        free(map);
        free(build);
        return err_set(why, ICMS_NO_MEMORY, "no memory for a map of %zu bytes", sizeof(*map));
    }
    map->members = count;
    map->shift = shift;
    place_log2_init(build);
    for (uint32_t i = 0; i < count; i++) {
        if (members[i].weight > 0)
            build->candidate[build->candidates++] = (struct place_candidate){
                .hash = hash64(members[i].uuid.bytes, sizeof(members[i].uuid.bytes)),
                .weight = members[i].weight,
                .member = i,
                .uuid = members[i].uuid,
            };
    }
    for (uint32_t slot = 0; slot < PLACE_SLOTS; slot++)
        place_slot_rank(map, build, slot);
    free(build);
    *out_map = map;
    return ICMS_OK;
}

icms_err place_map_new(const struct place_member *members, uint32_t count, struct err_why *why,
                       struct place_map **out_map)
{
    return place_map_build(members, count, 48, why, out_map);
}

icms_err place_map_new_drives(const struct place_member *members, uint32_t count,
                              struct err_why *why, struct place_map **out_map)
{
    return place_map_build(members, count, 16, why, out_map);
}

void place_map_free(struct place_map **map)
{
    free(*map);
    *map = NULL;
}

uint32_t place_map_members(const struct place_map *map)
{
    return map->members;
}

/* A run is a part of a hash already, but its bits also choose the enclosure, so it is hashed again
 * and other bits of that choose the drive. */
uint32_t place_slot(const struct place_map *map, const struct key *key, bool runs)
{
    bool by_run = runs && key->length == LIMIT_KEY_BYTES;
    uint64_t hash;

    check(key->length >= 1 && key->length <= LIMIT_KEY_BYTES);
    hash = hash64(key->bytes, by_run ? LIMIT_RUN_BYTES : key->length);
    return (uint32_t)(hash >> map->shift) & (PLACE_SLOTS - 1);
}

uint32_t place_rank(const struct place_map *map, uint32_t slot, uint32_t rank)
{
    uint8_t member;

    check(slot < PLACE_SLOTS && rank < PLACE_RANKS);
    member = map->rank[slot][rank];
    return member == PLACE_NOBODY ? UINT32_MAX : member;
}

uint32_t place_owner(const struct place_map *map, const struct key *key, bool runs,
                     uint64_t excluded)
{
    const uint8_t *rank = map->rank[place_slot(map, key, runs)];

    for (uint32_t r = 0; r < PLACE_RANKS; r++) {
        if (rank[r] == PLACE_NOBODY)
            break;
        if ((excluded >> rank[r] & 1) == 0)
            return rank[r];
    }
    return UINT32_MAX;
}
