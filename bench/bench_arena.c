/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_arena.c: `icms bench arena`: a block that is in the agent's memory already.
 *
 * lease: icms_lease_take and icms_lease_give, the block stays in place. copy: icms_get into
 * ordinary memory, copied and checked, beside memcpy from as much memory, walked in the same order,
 * into the same kind of memory. The blocks together are larger than the caches of a processor. What
 * does not come from the agent's memory counts as an error.
 *
 * For each size: pod up, the arena is filled, rows, pod down. The agent is icms-agent: another
 * process. Called by bench_run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "bench/bench_int.h"

#define ARENA_BYTES       ((uint64_t)192 << 20) /* of blocks                                 */
#define ARENA_DRIVE_BYTES ((uint64_t)256 << 20) /* they go to flash, too                     */
#define ARENA_SPARE       64                    /* slots more than blocks: nothing is evicted */
#define ARENA_LEASE_US    5.0                   /* goal                                      */

/* Both sides. */
struct arena_side {
    struct bench_side side; /* what bench_compare runs                  */
    struct bench_side copy; /* the ceiling                              */
    struct bench_rig rig;   /* the pod                                  */
    uint8_t *from;          /* the ceiling's blocks                     */
    uint8_t *to;            /* the engine's memory: one value           */
    uint32_t size;          /* of values                                */
    uint64_t count;         /* values                                   */
    uint64_t next[2];       /* number of the next operation of a side   */
};

/* ---- operations ------------------------------------------------------------------------------ */

static icms_err arena_memcpy(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                             struct bench_slice *slice, struct err_why *why)
{
    struct arena_side *side = base->owner;
    uint64_t begin = bench_now_ns(), now = begin;

    (void)work;
    (void)why;
    while (now - begin < ns) {
        uint64_t start = now, n = bench_walk(side->next[0]++, side->count);

        memcpy(side->to, side->from + n * side->size, side->size);
        now = bench_now_ns();
        bench_slice_add(slice, ICMS_OK, side->size, 0, now - start);
    }
    slice->wall_ns = now - begin;
    return ICMS_OK;
}

static icms_err arena_copy(struct arena_side *side, const struct icms_key *key, uint64_t n,
                           uint64_t *out_ns)
{
    struct icms_block block = {.key = *key, .data = side->to, .bytes = side->size};
    uint64_t start = bench_now_ns();
    icms_err err = icms_get(side->rig.volume, &block, 1, NULL);

    *out_ns = bench_now_ns() - start;
    if (err == ICMS_OK && (block.source != ICMS_SOURCE_DRAM || block.bytes != side->size ||
                           !bench_value_is(side->to, side->size, n, 0)))
        err = ICMS_CORRUPT;
    return err;
}

/* Timed until the block can be read; what the engine then reads of it is not ours. */
static icms_err arena_lease(struct arena_side *side, const struct icms_key *key, uint64_t n,
                            uint64_t *out_ns)
{
    struct icms_lease lease;
    uint64_t start = bench_now_ns();
    icms_err err = icms_lease_take(side->rig.volume, key, NULL, NULL, &lease);

    *out_ns = bench_now_ns() - start;
    if (err != ICMS_OK)
        return err;
    if (lease.bytes != side->size || !bench_value_is(lease.data, side->size, n, 0))
        err = ICMS_CORRUPT;
    icms_lease_give(&lease);
    return err;
}

static icms_err arena_slice(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                            struct bench_slice *slice, struct err_why *why)
{
    struct arena_side *side = base->owner;
    bool lease = work->op == BENCH_LEASE;
    struct bench_hits before, after;
    uint64_t begin;
    icms_err err = bench_rig_hits(&side->rig, why, &before);

    if (err != ICMS_OK)
        return err;
    begin = bench_now_ns();
    do {
        uint64_t n = bench_walk(side->next[1]++, side->count), taken;
        struct icms_key key = bench_icms_key(n, 0);
        icms_err one =
            lease ? arena_lease(side, &key, n, &taken) : arena_copy(side, &key, n, &taken);

        bench_slice_add(slice, one, side->size, lease ? BENCH_STAMP_BYTES : side->size, taken);
        slice->wall_ns = bench_now_ns() - begin;
    } while (slice->wall_ns < ns);
    err = bench_rig_hits(&side->rig, why, &after);
    if (err == ICMS_OK && after.pod != before.pod) { /* something was evicted */
        slice->errors += after.pod - before.pod;
        slice->error = slice->error != ICMS_OK ? slice->error : ICMS_MISS;
    }
    return err;
}

/* ---- life ------------------------------------------------------------------------------------ */

static icms_err arena_memory(struct arena_side *side, struct err_why *why)
{
    side->from = mmap(NULL, side->count * side->size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    side->to = mmap(NULL, side->size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (side->from == MAP_FAILED || side->to == MAP_FAILED)
        return err_set(why, ICMS_NO_MEMORY, "no memory for values");
    for (uint64_t n = 0; n < side->count; n++)
        bench_value_noise(side->from + n * side->size, side->size);
    return ICMS_OK;
}

static void arena_memory_free(struct arena_side *side)
{
    if (side->from != MAP_FAILED)
        (void)munmap(side->from, side->count * side->size);
    if (side->to != MAP_FAILED)
        (void)munmap(side->to, side->size);
}

/* Every block is put, and its check is over before anything is timed. */
static icms_err arena_fill(struct arena_side *side, struct err_why *why)
{
    struct icms_request_options options;
    icms_err err = ICMS_OK;
    uint64_t ns;

    icms_request_options_init(&options);
    options.put_ack = ICMS_PUT_ON_FLASH; /* accepted ones are shed when the flash is slower */
    for (uint64_t n = 0; n < side->count && err == ICMS_OK; n++) {
        struct icms_block block = {
            .key = bench_icms_key(n, 0), .data = side->to, .bytes = side->size};

        if (n == 0)
            bench_value_noise(side->to, side->size);
        bench_value_stamp(side->to, side->size, n, 0);
        if (icms_put(side->rig.volume, &block, 1, &options) != ICMS_OK)
            err = err_set(why, block.status, "a store of %u bytes: %s", side->size,
                          icms_err_text(block.status));
    }
    for (uint64_t n = 0; n < side->count && err == ICMS_OK; n++) {
        struct icms_key key = bench_icms_key(n, 0);

        err = arena_lease(side, &key, n, &ns);
        if (err != ICMS_OK)
            err = err_set(why, err, "a lease of %u bytes: %s", side->size, icms_err_text(err));
    }
    return err;
}

static icms_err arena_row(const struct bench_opts *opts, struct arena_side *side, enum bench_op op,
                          struct err_why *why)
{
    struct bench_work work = {.op = op, .size_bytes = side->size, .depth = 1};
    struct bench_row row = {.bench = "arena", .variant = ""};
    bool lease = op == BENCH_LEASE;
    icms_err err;

    opts->progress(opts->arg, bench_op_name(op), lease ? 0.2 : 0.6);
    err = bench_compare(opts, &work, lease ? NULL : &side->copy, &side->side, &row, why);
    if (err != ICMS_OK)
        return err;
    if (lease)
        row.p50_goal_us = ARENA_LEASE_US;
    else
        row.ratio_goal = 0.75;
    opts->row(opts->arg, &row);
    return ICMS_OK;
}

static icms_err arena_size(const struct bench_opts *opts, struct arena_side *side,
                           struct err_why *why)
{
    icms_err err = arena_memory(side, why);

    if (err == ICMS_OK)
        err = bench_rig_up(&side->rig, why);
    if (err == ICMS_OK)
        err = bench_rig_open(&side->rig, true, why);
    if (err == ICMS_OK)
        err = arena_fill(side, why);
    side->copy = (struct bench_side){.name = "memcpy", .run = arena_memcpy, .owner = side};
    side->side = (struct bench_side){.name = "arena", .run = arena_slice, .owner = side};
    bench_rig_pids(&side->rig, &side->side);
    for (int op = BENCH_LEASE; op <= BENCH_COPY && err == ICMS_OK; op++)
        if (bench_wants_op(opts, (enum bench_op)op))
            err = arena_row(opts, side, (enum bench_op)op, why);
    bench_rig_down(&side->rig);
    arena_memory_free(side);
    return err;
}

icms_err bench_arena_run(const struct bench_opts *opts, struct err_why *why)
{
    uint32_t sizes[BENCH_SIZES_MAX], size_count = bench_sizes(opts, sizes);
    char dir[BENCH_PATH_BYTES], path[BENCH_PATH_BYTES + 8];
    struct arena_side side;
    icms_err err = bench_dir_make(opts, why, dir, sizeof(dir));

    if (err != ICMS_OK)
        return err;
    (void)snprintf(path, sizeof(path), "%s/drive", dir);
    opts->progress(opts->arg, "making a drive", 0);
    err = bench_file_make(path, ARENA_DRIVE_BYTES, why);
    for (uint32_t i = 0; i < size_count && err == ICMS_OK; i++) {
        side = (struct arena_side){.size = sizes[i], .count = ARENA_BYTES / sizes[i]};
        side.rig = (struct bench_rig){.dir = dir,
                                      .drive = path,
                                      .drive_bytes = ARENA_DRIVE_BYTES,
                                      .size = sizes[i],
                                      .arena_slots = (uint32_t)side.count + ARENA_SPARE,
                                      .loops = opts->reactors};
        err = arena_size(opts, &side, why);
    }
    bench_dir_remove(dir);
    return err;
}
