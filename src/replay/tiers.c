/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay/tiers.c: see tiers.h. Called by icms replay and its tests; one thread.
 *
 * As in model.h, a request asks for its blocks up to the first that is nowhere, and then all of its
 * blocks are accessed, the last one first: those that are somewhere are loaded, the others stored.
 */
#include "replay/tiers.h"

#include <stdlib.h>
#include <string.h>

#include "agent/extent.h"
#include "base/bytes.h"
#include "base/check.h"
#include "policy/tier.h"
#include "replay/replay_int.h"

const char *const replay_tier_names[REPLAY_TIERS] = {
    [REPLAY_DRAM] = "dram", [REPLAY_LOCAL] = "local", [REPLAY_POD] = "pod"};

/* A drive under the trace: a replay of its own, with another size. */
struct tier_drive {
    struct replay_setup setup;
    struct replay_result result;
    struct replay replay;
    void *log; /* NULL: there is none */
};

struct tiers {
    const struct replay_trace *trace;
    struct replay_tiers_result *result;
    struct extents extents; /* memory                                            */
    uint64_t extent_bytes;  /* of a block there                                  */
    uint32_t *slots;        /* by block: its slot; EXTENT_NONE                   */
    uint32_t *blocks;       /* by slot: its block                                */
    bool *was_read;         /* by slot                                           */
    uint32_t *free;         /* slots without a block                             */
    uint32_t free_count;    /* of them                                           */
    double share;           /* of the runs, on the drive and not in the pod      */
    uint8_t *there;         /* of the request: where its blocks are; TIERS: nowhere */
    uint32_t *run;          /* by block of the trace                             */
    struct tier_drive drives[REPLAY_TIERS]; /* but the first                       */
};

/* ---- memory --------------------------------------------------------------------------------- */

static bool tiers_may_go(void *arg, uint32_t slot)
{
    (void)arg;
    (void)slot;
    return true;
}

static bool drive_has(const struct tier_drive *drive, uint32_t block)
{
    return drive->log != NULL && replay_log.has(drive->log, block);
}

/* Stores it, or counts an access. */
static void drive_offer(struct tier_drive *drive, uint32_t block)
{
    if (drive->log != NULL)
        replay_log.offer(drive->log, &drive->replay, block);
}

static void tiers_evict(struct tiers *tiers, uint32_t slot)
{
    uint32_t block = tiers->blocks[slot];
    struct tier_drive *local = &tiers->drives[REPLAY_LOCAL];

    if (policy_evicted_to(tiers->was_read[slot], drive_has(local, block), tiers->share > 0) !=
        POLICY_EVICTED_LEAVE)
        drive_offer(local, block);
    extents_give(&tiers->extents, slot);
    tiers->slots[block] = EXTENT_NONE;
    tiers->free[tiers->free_count++] = slot;
}

static void tiers_place(struct tiers *tiers, uint32_t block, bool was_read)
{
    uint32_t slot, last;

    while (
        tiers->free_count == 0 ||
        !extents_take(&tiers->extents, tiers->free[tiers->free_count - 1], tiers->extent_bytes)) {
        struct extent_sweep sweep = {.may = tiers_may_go};
        bool more = extents_window(&tiers->extents, tiers->extent_bytes, &sweep, &slot, &last);

        while (more) {
            uint32_t next = tiers->extents.of[slot].next;

            more = slot != last;
            tiers_evict(tiers, slot);
            slot = next;
        }
    }
    slot = tiers->free[--tiers->free_count];
    tiers->slots[block] = slot;
    tiers->blocks[slot] = block;
    tiers->was_read[slot] = was_read;
}

/* ---- one request ---------------------------------------------------------------------------- */

static enum replay_tier tiers_find(const struct tiers *tiers, uint32_t block)
{
    enum replay_tier tier = REPLAY_LOCAL;

    if (tiers->slots[block] != EXTENT_NONE)
        return REPLAY_DRAM;
    while (tier < REPLAY_TIERS && !drive_has(&tiers->drives[tier], block))
        tier++;
    return tier;
}

static void tiers_access(struct tiers *tiers, uint32_t block)
{
    enum replay_tier tier = tiers_find(tiers, block), home = REPLAY_POD;
    uint32_t number = block % tiers->trace->block_count;

    if (policy_is_own(block - number + tiers->run[number], tiers->share))
        home = REPLAY_LOCAL;
    if (tier == REPLAY_DRAM) {
        tiers->was_read[tiers->slots[block]] = true;
        extents_use(&tiers->extents, tiers->slots[block]);
        return;
    }
    drive_offer(&tiers->drives[tier == REPLAY_TIERS ? home : tier], block);
    tiers_place(tiers, block, tier != REPLAY_TIERS);
}

static void tiers_request(struct tiers *tiers, const struct replay_request *request, uint32_t first)
{
    const uint32_t *refs = tiers->trace->refs + request->first;
    struct replay_tiers_result *result = tiers->result;
    uint32_t prefix = 0;

    for (uint32_t i = 0; i < request->count; i++)
        tiers->there[i] = (uint8_t)tiers_find(tiers, first + refs[i]);
    for (; prefix < request->count && tiers->there[prefix] != REPLAY_TIERS; prefix++)
        result->tiers[tiers->there[prefix]].block_hits++;
    for (uint32_t i = request->count; i-- > 0;)
        tiers_access(tiers, first + refs[i]);
    result->refs += request->count;
    result->tokens += request->tokens;
    result->token_hits += u64_min(request->tokens, (uint64_t)prefix * tiers->trace->block_tokens);
}

/* ---- life ----------------------------------------------------------------------------------- */

static icms_err drive_new(struct tiers *tiers, enum replay_tier tier,
                          const struct replay_setup *setup, uint64_t blocks, struct err_why *why)
{
    struct tier_drive *drive = &tiers->drives[tier];

    if (blocks == 0)
        return ICMS_OK;
    drive->setup = *setup;
    drive->setup.kind = REPLAY_DEFAULT;
    drive->setup.capacity_blocks = blocks;
    if (tier == REPLAY_POD)
        drive->setup.budget_bytes_day = 0;
    drive->replay =
        (struct replay){.trace = tiers->trace,
                        .setup = &drive->setup,
                        .result = &drive->result,
                        .run = tiers->run,
                        .block_count = (uint64_t)setup->loops * tiers->trace->block_count};
    return replay_log.new(&drive->replay, why, &drive->log);
}

static icms_err tiers_new(struct tiers *tiers, const struct replay_setup *setup,
                          const uint64_t blocks[REPLAY_TIERS], struct err_why *why)
{
    uint64_t all = (uint64_t)setup->loops * tiers->trace->block_count, count = blocks[REPLAY_DRAM];
    uint32_t longest = 1;
    icms_err err = ICMS_OK;

    if (all >= REPLAY_NONE)
        return err_set(why, ICMS_INVALID, "%u loops of %u blocks are too many; take fewer loops",
                       setup->loops, tiers->trace->block_count);
    if (count < 16)
        return err_set(why, ICMS_INVALID, "memory for %llu blocks is too small for a replay",
                       (unsigned long long)count);
    for (uint32_t i = 0; i < tiers->trace->request_count; i++)
        longest =
            tiers->trace->requests[i].count > longest ? tiers->trace->requests[i].count : longest;
    tiers->extent_bytes = bytes_align(setup->block_bytes, EXTENT_UNIT);
    tiers->slots = malloc(all * sizeof(tiers->slots[0]));
    tiers->blocks = calloc(count, sizeof(tiers->blocks[0]));
    tiers->was_read = calloc(count, sizeof(tiers->was_read[0]));
    tiers->free = calloc(count, sizeof(tiers->free[0]));
    tiers->there = calloc(longest, sizeof(tiers->there[0]));
    tiers->run = replay_runs_make(tiers->trace);
    if (tiers->slots == NULL || tiers->blocks == NULL || tiers->was_read == NULL ||
        tiers->free == NULL || tiers->there == NULL || tiers->run == NULL ||
        extents_init(&tiers->extents, count * tiers->extent_bytes, (uint32_t)count) != ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a server of %llu blocks",
                       (unsigned long long)count);
    memset(tiers->slots, 0xff, all * sizeof(tiers->slots[0]));
    for (uint32_t i = (uint32_t)count; i-- > 0;)
        tiers->free[tiers->free_count++] = i;
    for (enum replay_tier tier = REPLAY_LOCAL; tier < REPLAY_TIERS && err == ICMS_OK; tier++)
        err = drive_new(tiers, tier, setup, blocks[tier], why);
    return err;
}

static void tiers_fini(struct tiers *tiers)
{
    for (enum replay_tier tier = REPLAY_LOCAL; tier < REPLAY_TIERS; tier++)
        replay_log.free(tiers->drives[tier].log);
    extents_fini(&tiers->extents);
    free(tiers->slots);
    free(tiers->blocks);
    free(tiers->was_read);
    free(tiers->free);
    free(tiers->there);
    free(tiers->run);
}

icms_err replay_tiers_run(const struct replay_trace *trace, const struct replay_setup *setup,
                          const uint64_t blocks[REPLAY_TIERS], double share, struct err_why *why,
                          struct replay_tiers_result *out_result)
{
    struct tiers tiers = {.trace = trace, .result = out_result, .share = share};
    uint64_t span_ms = trace->requests[trace->request_count - 1].time_ms + 1000;
    icms_err err;

    memset(out_result, 0, sizeof(*out_result));
    err = tiers_new(&tiers, setup, blocks, why);
    for (uint32_t loop = 0; err == ICMS_OK && loop < setup->loops; loop++)
        for (uint32_t i = 0; i < trace->request_count; i++) {
            for (enum replay_tier tier = REPLAY_LOCAL; tier < REPLAY_TIERS; tier++)
                tiers.drives[tier].replay.now_ms = loop * span_ms + trace->requests[i].time_ms;
            tiers_request(&tiers, &trace->requests[i], loop * trace->block_count);
        }
    for (enum replay_tier tier = REPLAY_LOCAL; tier < REPLAY_TIERS; tier++) {
        out_result->tiers[tier].written_bytes = tiers.drives[tier].result.written_bytes;
        out_result->tiers[tier].refused = tiers.drives[tier].result.refused;
        out_result->tiers[tier].segments = tiers.drives[tier].result.segments;
    }
    tiers_fini(&tiers);
    return err;
}
