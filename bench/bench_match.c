/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_match.c: `icms bench match`: how long the longest prefix of 2,048 keys takes to find,
 * with a map of 36 enclosures, all keys there.
 *
 * The 36 are one target under as many names: what an agent does for 36, it does, and one process
 * does what 36 machines would. Variants: arena, all blocks in the agent's memory, no message; wire,
 * none of them, many keys a command; standard, the same with one KV Exist a key. Each is a new
 * agent over the same drive. There is no ceiling.
 *
 * MATCH_UP -> puts -> for each variant: MATCH_OPEN -> row -> MATCH_CLOSE. Called by bench_run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bench/bench_int.h"
#include "place/place.h"

#define MATCH_KEYS         2048
#define MATCH_ENCLOSURES   36
#define MATCH_VALUE_BYTES  4096
#define MATCH_BATCH        64                         /* values of one put */
#define MATCH_DRIVE_BYTES  ((uint64_t)36 * 128 << 20) /* of all enclosures */
#define MATCH_PLACE_ROUNDS 2000
#define MATCH_ARENA_US     50.0
#define MATCH_WIRE_US      400.0
#define MATCH_PLACE_NS     25.0

/* The pod and what is looked for. */
struct match {
    struct bench_side side;           /* what bench_compare runs     */
    struct bench_rig rig;             /* the pod                     */
    struct icms_key keys[MATCH_KEYS]; /* one chain                   */
};

/* A variant. */
struct match_way {
    const char *name;       /* of the row                                   */
    uint32_t enclosures;    /* of the pod; those with equal numbers follow each other */
    bool in_arena;          /* the agent that took the blocks still runs    */
    bool standard_commands; /* it may not use exist-many                    */
    double p50_goal_us;     /* 0: none                                      */
};

static const struct match_way match_ways[] = {
    {"arena", MATCH_ENCLOSURES, true, false, MATCH_ARENA_US},
    {"wire", MATCH_ENCLOSURES, false, false, MATCH_WIRE_US},
    {"standard", MATCH_ENCLOSURES, false, true, 0},
    {"wire-1", 1, false, false, MATCH_WIRE_US},
};

static icms_err match_slice(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                            struct bench_slice *slice, struct err_why *why)
{
    struct match *match = side->owner;
    uint64_t begin = bench_now_ns(), start = begin, now;

    (void)work;
    (void)why;
    do {
        size_t matched = 0;
        icms_err err = icms_match(match->rig.volume, match->keys, MATCH_KEYS, NULL, &matched);

        if (err == ICMS_OK && matched != MATCH_KEYS)
            err = ICMS_MISS;
        now = bench_now_ns();
        bench_slice_add(slice, err, 0, 0, now - start);
        start = now;
    } while (now - begin < ns);
    slice->wall_ns = now - begin;
    return ICMS_OK;
}

/* Nanoseconds to find the owner of one key among 36 enclosures. */
static double match_place_ns(const struct match *match)
{
    struct place_member members[MATCH_ENCLOSURES];
    struct place_map *map = NULL;
    uint64_t begin, sum = 0;

    for (uint32_t i = 0; i < MATCH_ENCLOSURES; i++)
        members[i] = (struct place_member){.uuid = {.bytes = {(uint8_t)(i + 1)}}, .weight = 1};
    if (place_map_new(members, MATCH_ENCLOSURES, NULL, &map) != ICMS_OK)
        return 0;
    begin = bench_now_ns();
    for (uint32_t n = 0; n < MATCH_PLACE_ROUNDS * MATCH_KEYS; n++) {
        struct key key = {.length = ICMS_KEY_BYTES};

        memcpy(key.bytes, match->keys[n % MATCH_KEYS].bytes, sizeof(key.bytes));
        sum += place_owner(map, &key, true, 0);
    }
    begin = bench_now_ns() - begin;
    check(sum < UINT64_MAX); /* it was computed */
    place_map_free(&map);
    return (double)begin / MATCH_PLACE_ROUNDS / MATCH_KEYS;
}

static icms_err match_fill(struct match *match, struct err_why *why)
{
    struct icms_block blocks[MATCH_BATCH];
    struct icms_request_options options;
    uint8_t *memory = malloc(MATCH_VALUE_BYTES);
    icms_err err = memory == NULL ? ICMS_NO_MEMORY : ICMS_OK;

    icms_request_options_init(&options);
    options.put_ack = ICMS_PUT_ON_FLASH;
    if (memory != NULL)
        bench_value_noise(memory, MATCH_VALUE_BYTES);
    for (uint32_t n = 0; n < MATCH_KEYS && err == ICMS_OK; n += MATCH_BATCH) {
        for (uint32_t i = 0; i < MATCH_BATCH; i++)
            blocks[i] = (struct icms_block){
                .key = match->keys[n + i], .data = memory, .bytes = MATCH_VALUE_BYTES};
        err = icms_put(match->rig.volume, blocks, MATCH_BATCH, &options);
    }
    free(memory);
    return err == ICMS_OK
               ? ICMS_OK
               : err_set(why, err, "storing %d blocks: %s", MATCH_KEYS, icms_err_text(err));
}

static icms_err match_row(const struct bench_opts *opts, struct match *match,
                          const struct match_way *way, struct err_why *why)
{
    struct bench_work work = {.op = BENCH_MATCH, .depth = 1};
    struct bench_row row = {.bench = "match", .variant = way->name};
    icms_err err;

    bench_rig_pids(&match->rig, &match->side);
    err = bench_compare(opts, &work, NULL, &match->side, &row, why);
    if (err != ICMS_OK)
        return err;
    row.p50_goal_us = way->p50_goal_us;
    bench_row_extra(&row, "keys", MATCH_KEYS);
    bench_row_goal(&row, "place_ns_per_key", match_place_ns(match), MATCH_PLACE_NS);
    opts->row(opts->arg, &row);
    return ICMS_OK;
}

/* The variants with this many enclosures. The first agent takes the blocks; later ones know nothing
 * of them. */
static icms_err match_rows(const struct bench_opts *opts, struct match *match, struct err_why *why)
{
    const uint32_t count = sizeof(match_ways) / sizeof(*match_ways);
    icms_err err = bench_rig_open(&match->rig, true, why);

    if (err == ICMS_OK)
        err = match_fill(match, why);
    for (uint32_t i = 0; i < count && err == ICMS_OK; i++) {
        const struct match_way *way = &match_ways[i];

        if (way->enclosures != match->rig.enclosures || !bench_wants_variant(opts, way->name))
            continue;
        opts->progress(opts->arg, way->name, (double)i / count);
        if (!way->in_arena) {
            bench_rig_close(&match->rig);
            match->rig.standard_commands = way->standard_commands;
            err = bench_rig_open(&match->rig, true, why);
        }
        if (err == ICMS_OK)
            err = match_row(opts, match, way, why);
    }
    return err;
}

/* One pod. */
static icms_err match_pod(const struct bench_opts *opts, struct match *match, const char *dir,
                          uint32_t enclosures, struct err_why *why)
{
    char path[BENCH_PATH_BYTES + 32];
    icms_err err;

    (void)snprintf(path, sizeof(path), "%s/drive-%u", dir, enclosures);
    match->rig = (struct bench_rig){.dir = dir,
                                    .drive = path,
                                    .drive_bytes = MATCH_DRIVE_BYTES / enclosures,
                                    .size = MATCH_VALUE_BYTES,
                                    .arena_slots = MATCH_KEYS + 64,
                                    .enclosures = enclosures,
                                    .loops = opts->reactors};
    opts->progress(opts->arg, "starting targets", 0);
    err = bench_rig_up(&match->rig, why);
    if (err == ICMS_OK)
        err = match_rows(opts, match, why);
    bench_rig_down(&match->rig);
    return err;
}

/* Whether a variant with this many enclosures is wanted. */
static bool match_wants(const struct bench_opts *opts, uint32_t enclosures)
{
    for (size_t i = 0; i < sizeof(match_ways) / sizeof(*match_ways); i++)
        if (match_ways[i].enclosures == enclosures && bench_wants_variant(opts, match_ways[i].name))
            return true;
    return false;
}

icms_err bench_match_run(const struct bench_opts *opts, struct err_why *why)
{
    static const uint32_t pods[] = {MATCH_ENCLOSURES, 1};
    char dir[BENCH_PATH_BYTES];
    struct match *match;
    icms_err err = bench_dir_make(opts, why, dir, sizeof(dir));

    if (err != ICMS_OK)
        return err;
    match = calloc(1, sizeof(*match));
    if (match == NULL)
        err = err_set(why, ICMS_NO_MEMORY, "out of memory");
    else
        match->side = (struct bench_side){.name = "match", .run = match_slice, .owner = match};
    for (uint32_t n = 0; n < MATCH_KEYS && err == ICMS_OK; n++)
        match->keys[n] = bench_icms_key(n, 0);
    for (size_t i = 0; i < sizeof(pods) / sizeof(*pods) && err == ICMS_OK; i++)
        if (match_wants(opts, pods[i]))
            err = match_pod(opts, match, dir, pods[i], why);
    bench_dir_remove(dir);
    free(match);
    return err;
}
