/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the runs of a trace lie in a pod, for several lengths of a run: how evenly, and what the
 * loss of one enclosure costs. Called by icms replay --placement and its tests; one thread.
 *
 * A run is named by its first block, as in src/client/key.c; enclosures have equal weights.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "place/place.h"
#include "replay/replay_int.h"

/* What is counted of one enclosure. */
struct enclosure {
    uint64_t stored; /* distinct blocks it holds                                 */
    uint64_t read;   /* blocks that requests ask it for                          */
    uint64_t kept;   /* blocks of prompts in front of the first that it holds    */
};

static icms_err map_make(uint32_t enclosures, struct err_why *why, struct place_map **out_map)
{
    struct place_member members[LIMIT_ENCLOSURES];

    memset(members, 0, sizeof(members));
    for (uint32_t i = 0; i < enclosures; i++) {
        le32 number = le32_of(i + 1);

        memcpy(members[i].uuid.bytes, &number, sizeof(number));
        members[i].weight = 1;
    }
    return place_map_new(members, enclosures, why, out_map);
}

/* The enclosure of the run that begins with this block. */
static uint32_t run_owner(const struct place_map *map, uint32_t block)
{
    uint64_t half[2] = {hash64_mix(block), 0};
    struct key key = {.length = sizeof(half)};

    memcpy(key.bytes, half, sizeof(half));
    return place_owner(map, &key, true, 0);
}

/* One request: what is stored for the first time, what is read, what is left without each. */
static void request_count(const struct replay_trace *trace, const struct replay_request *request,
                          const struct place_map *map, uint32_t run_blocks, uint8_t *seen,
                          struct enclosure *enclosures)
{
    const uint32_t *refs = &trace->refs[request->first];
    uint32_t count = place_map_members(map), met = 0, owner = 0;
    bool has[LIMIT_ENCLOSURES] = {false};

    for (uint32_t i = 0; i < request->count; i++) {
        if (place_run_begins(i, run_blocks))
            owner = run_owner(map, refs[i]);
        enclosures[owner].read++;
        enclosures[owner].stored += !seen[refs[i]];
        seen[refs[i]] = 1;
        if (!has[owner]) { /* without this one the prompt ends here */
            has[owner] = true;
            enclosures[owner].kept += i;
            met++;
        }
    }
    for (uint32_t i = 0; met < count && i < count; i++) {
        if (!has[i])
            enclosures[i].kept += request->count;
    }
}

icms_err replay_placement(const struct replay_trace *trace, uint32_t enclosures,
                          uint32_t run_blocks, struct err_why *why,
                          struct replay_placement *out_placement)
{
    struct enclosure counted[LIMIT_ENCLOSURES];
    uint64_t stored_max = 0, read_max = 0, kept = 0;
    struct place_map *map = NULL;
    uint8_t *seen;
    icms_err err = map_make(enclosures, why, &map);

    if (err != ICMS_OK)
        return err;
    seen = calloc(trace->block_count, sizeof(seen[0]));
    if (seen == NULL) {
        place_map_free(&map);
        return err_set(why, ICMS_NO_MEMORY, "cannot count %u blocks: no memory",
                       trace->block_count);
    }
    memset(counted, 0, sizeof(counted));
    for (uint32_t i = 0; i < trace->request_count; i++)
        request_count(trace, &trace->requests[i], map, run_blocks, seen, counted);
    for (uint32_t i = 0; i < enclosures; i++) {
        stored_max = u64_max(stored_max, counted[i].stored);
        read_max = u64_max(read_max, counted[i].read);
        kept += counted[i].kept;
    }
    *out_placement = (struct replay_placement){
        .stored_max = (double)stored_max * enclosures / trace->block_count,
        .read_max = (double)read_max * enclosures / trace->ref_count,
        .kept = (double)kept / enclosures / trace->ref_count};
    free(seen);
    place_map_free(&map);
    return ICMS_OK;
}
