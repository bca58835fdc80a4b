/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_drives.c: `icms bench drives`: an enclosure of four drives beside the four raw disks.
 *
 * The enclosure is the real one (src/target) in this process; commands come from inside, so what is
 * measured is its way through drives: placement, loops, index, engine, checksums; no network. With
 * the variant loops-2 half of the drives live on another loop than the one that asks.
 *
 * For each size: DRIVES_UP -> DRIVES_FILL -> rows -> DRIVES_DOWN. Called by bench_run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bench/bench_int.h"
#include "target/target.h"

#define DRIVES           4
#define DRIVES_SLOTS     64
#define DRIVES_LOOPS_MAX 2

/* Of the values that fit: shares are not quite even. */
#define DRIVES_FILL_PERCENT 75

/* Segments of a drive that the engine keeps free or writes. */
#define DRIVES_SEGMENTS_APART 4

struct drives_side;

/* One operation of the generator. */
struct drives_slot {
    struct drives_side *side; /* whose                */
    struct bench_slot *slot;  /* the generator's      */
    uint8_t *memory;          /* room for a record    */
    uint64_t n;               /* which value          */
    struct target_call call;  /* the operation        */
};

/* The enclosure. */
struct drives_side {
    struct bench_side side;     /* what bench_compare runs               */
    struct bench_gen gen;       /* keeps operations in flight            */
    struct target *target;      /* started                               */
    struct loop_region *region; /* memory of all slots                   */
    struct bench_trail trail;   /* over the values that are there        */
    uint64_t next_put;          /* number of the next new value          */
    enum bench_op op;           /* of this slice                         */
    uint32_t size;              /* of values                             */
    char path[DRIVES][4200];    /* of the drives                         */
    struct volume_spec volume;  /* the only one                          */
    struct drives_slot slot[DRIVES_SLOTS];
};

/* ---- operations, on loop 0 ------------------------------------------------------------------- */

static void drives_done(struct target_call *call)
{
    struct drives_slot *mine = container_of(call, struct drives_slot, call);
    const struct nvmf_target_req *req = &call->req;
    uint32_t size = mine->side->size;
    icms_err err = req->err;

    if (err == ICMS_OK && req->op == NVMF_TARGET_RETRIEVE &&
        (req->done_bytes != size || !bench_value_is(req->value, size, mine->n, 0)))
        err = ICMS_CORRUPT;
    bench_gen_done(mine->slot, err, size, req->op == NVMF_TARGET_RETRIEVE ? size : 0);
}

static void drives_start(struct bench_slot *slot, uint64_t n)
{
    struct drives_side *side = slot->gen->owner;
    struct drives_slot *mine = &side->slot[slot->index];

    mine->slot = slot;
    mine->n = side->op == BENCH_GET ? bench_walk(side->trail.next++, side->trail.count)
                                    : side->next_put++;
    if (side->op == BENCH_PUT)
        bench_value_stamp(mine->memory + STORE_HEADER_BYTES, side->size, mine->n, 0);
    mine->call.done = drives_done;
    mine->call.req = (struct nvmf_target_req){
        .op = side->op == BENCH_GET ? NVMF_TARGET_RETRIEVE : NVMF_TARGET_STORE,
        .key = bench_key(mine->n, 0),
        .memory = mine->memory,
        .memory_bytes = store_record_bytes(side->size),
        .value_bytes = side->size,
    };
    target_call(side->target, target_loop(side->target, 0), &mine->call);
}

static icms_err drives_slice(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                             struct bench_slice *slice, struct err_why *why)
{
    struct drives_side *side = base->owner;

    side->op = work->op;
    bench_gen_run(&side->gen, work, ns, slice);
    return ICMS_OK;
}

/* ---- the enclosure --------------------------------------------------------------------------- */

static void drives_down(struct drives_side *side)
{
    if (side->target != NULL)
        target_stop(side->target);
    target_free(&side->target);
    loop_region_free(&side->region);
}

static icms_err drives_memory(struct drives_side *side, uint32_t loops, struct err_why *why)
{
    uint64_t room = store_record_bytes(side->size);
    struct err_why ignored = {""};
    icms_err err =
        loop_region_new(loop_env_uring(), "bench", DRIVES_SLOTS * room, true, why, &side->region);

    if (err != ICMS_OK)
        return err;
    for (uint32_t i = 0; i < loops; i++) /* works unpinned, too */
        (void)loop_region_register(target_loop(side->target, i), side->region, &ignored);
    for (uint32_t i = 0; i < DRIVES_SLOTS; i++) {
        side->slot[i].side = side;
        side->slot[i].memory = (uint8_t *)loop_region_base(side->region) + i * room;
        bench_value_noise(side->slot[i].memory + STORE_HEADER_BYTES, side->size);
    }
    return ICMS_OK;
}

/* A new enclosure on the four files for values of this size. */
static icms_err drives_up(struct drives_side *side, const struct bench_files *files, uint32_t size,
                          uint32_t loops, struct err_why *why)
{
    struct target_drive_opts drives[DRIVES] = {{0}};
    struct target_opts opts;
    icms_err err;

    *side = (struct drives_side){.size = size};
    side->volume =
        (struct volume_spec){.uuid = {.bytes = {1}}, .name = "bench", .value_bytes_max = size};
    for (uint32_t i = 0; i < DRIVES; i++) {
        bench_files_path(files, i, side->path[i], sizeof(side->path[i]));
        drives[i].path = side->path[i];
        drives[i].format = true;
    }
    target_opts_init(&opts);
    opts.env = loop_env_uring();
    opts.nvmf.nqn = "nqn.2026-01.io.icms:bench";
    opts.nvmf.enclosure = (struct uuid){.bytes = {1}};
    opts.nvmf.portals[0].listen = (struct loop_addr){.host = "127.0.0.1"};
    opts.loops = loops;
    opts.segment_bytes = bench_segment_bytes(files->bytes);
    opts.nvmf.connections_max = 2;
    opts.nvmf.memory_bytes = (uint64_t)512
                             << 20; /* an eighth may be in flight at a drive that stalls */
    opts.drives = drives;
    opts.drive_count = DRIVES;
    opts.volumes = &side->volume;
    opts.volume_count = 1;
    err = target_new(&opts, why, &side->target);
    if (err == ICMS_OK)
        err = drives_memory(side, loops, why);
    if (err == ICMS_OK)
        err = target_start(side->target, why);
    if (err != ICMS_OK)
        return err;
    bench_gen_init(&side->gen, target_loop(side->target, 0), DRIVES_SLOTS, drives_start, side);
    side->side = (struct bench_side){
        .name = "enclosure", .run = drives_slice, .owner = side, .trail = &side->trail};
    return ICMS_OK;
}

/* Values of this size that all drives of bytes hold without evicting any. */
static uint64_t drives_values(uint64_t bytes, uint32_t size)
{
    uint64_t segment = bench_segment_bytes(bytes);
    uint64_t segments = bytes / segment - DRIVES_SEGMENTS_APART;

    return segments * (segment / store_record_bytes(size)) * DRIVES * DRIVES_FILL_PERCENT / 100;
}

/* Stores new values. */
static icms_err drives_put(void *owner, uint64_t count, struct err_why *why)
{
    struct drives_side *side = owner;
    struct bench_work work = {.op = BENCH_PUT, .size_bytes = side->size, .depth = 16};

    side->op = BENCH_PUT;
    return bench_gen_count(&side->gen, &work, count, why);
}

static icms_err drives_fill(const struct bench_opts *opts, struct drives_side *side,
                            struct bench_files *files, struct err_why *why)
{
    side->trail.count = drives_values(files->bytes, side->size);
    return bench_files_fill(opts, files, side->size, side->trail.count, drives_put, side, why);
}

static icms_err drives_rows(const struct bench_opts *opts, struct drives_side *side,
                            const char *variant, struct bench_disk *disk, struct err_why *why)
{
    struct bench_side raw = {.name = "raw disks", .run = bench_disk_run, .owner = disk};
    uint32_t depths[2] = {opts->depth != 0 ? opts->depth : 16, DRIVES_SLOTS};
    uint32_t depth_count = opts->depth != 0 ? 1 : 2;

    for (int op = BENCH_GET; op <= BENCH_PUT; op++) /* stores evict what loads want */
        for (uint32_t i = 0; i < depth_count && bench_wants_op(opts, (enum bench_op)op); i++) {
            struct bench_work work = {
                .op = (enum bench_op)op, .size_bytes = side->size, .depth = depths[i]};
            struct bench_row row = {
                .bench = "drives", .variant = variant, .ratio_goal = op == BENCH_GET ? 0.95 : 0.9};
            icms_err err;

            opts->progress(opts->arg, op == BENCH_GET ? "loads" : "stores",
                           (op * depth_count + i) / (2.0 * depth_count));
            err = bench_compare(opts, &work, &raw, &side->side, &row, why);
            if (err != ICMS_OK)
                return err;
            bench_row_extra(&row, "crc_cpu_s_per_gb", bench_crc_s_per_gb(side->size));
            opts->row(opts->arg, &row);
        }
    return ICMS_OK;
}

/* All sizes with this many loops. */
static icms_err drives_variant(const struct bench_opts *opts, struct drives_side *side,
                               uint32_t loops, struct bench_files *files, struct err_why *why)
{
    uint32_t sizes[BENCH_SIZES_MAX], size_count = bench_sizes(opts, sizes);
    char variant[16];
    icms_err err = ICMS_OK;

    (void)snprintf(variant, sizeof(variant), "loops-%u", loops);
    if (!bench_wants_variant(opts, variant))
        return ICMS_OK;
    for (uint32_t i = 0; i < size_count && err == ICMS_OK; i++) {
        err = drives_up(side, files, sizes[i], loops, why);
        if (err == ICMS_OK)
            err = drives_fill(opts, side, files, why);
        if (err == ICMS_OK)
            err = drives_rows(opts, side, variant, files->disk, why);
        drives_down(side);
    }
    return err;
}

icms_err bench_drives_run(const struct bench_opts *opts, struct err_why *why)
{
    struct drives_side *side;
    struct bench_files files;
    icms_err err;

    if (opts->space_bytes < (uint64_t)1 << 30)
        return err_set(why, ICMS_INVALID, "bench drives needs 1 GiB of space at least");
    side = calloc(1, sizeof(*side));
    if (side == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    err = bench_files_make(opts, DRIVES, why, &files);
    if (err != ICMS_OK) {
        free(side);
        return err;
    }
    for (uint32_t loops = 1; loops <= DRIVES_LOOPS_MAX && err == ICMS_OK; loops++)
        err = drives_variant(opts, side, loops, &files, why);
    bench_files_free(&files);
    free(side);
    return err;
}
