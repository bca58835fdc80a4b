/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_store.c: `icms bench store`: the flash engine on one drive beside the raw disk.
 *
 * The drive is a file that was written all over before it is formatted; a second file of the same
 * size is the raw disk's. Both are filled in turns, so their extents are of one age, and neither
 * ever reads the other's. Loads walk over all values; stores go on until the log comes round and
 * reclaims, which is what it does all its life.
 *
 * For each size: STORE_NEW -> STORE_FILL -> rows -> STORE_FREE. Called by bench_run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bench/bench_int.h"
#include "store/store.h"

#define STORE_SLOTS     64
#define STORE_OPEN_LOAD 0.7

struct store_side;

/* One operation of the generator. */
struct store_slot {
    struct store_side *side; /* whose                               */
    struct bench_slot *slot; /* the generator's                     */
    uint8_t *memory;         /* room for a record                   */
    uint64_t n;              /* which value                         */
    union {
        struct store_read read;
        struct store_write write;
    } u; /* the operation */
};

/* The engine on its loop. */
struct store_side {
    struct bench_side side;     /* what bench_compare runs               */
    struct bench_gen gen;       /* keeps operations in flight            */
    struct loop *loop;          /* of the store                          */
    struct loop_region *region; /* memory of all slots                   */
    struct store *store;        /* the drive                             */
    uint32_t volume;            /* its only one                          */
    struct bench_trail trail;   /* over the values that are there        */
    uint64_t next_put;          /* number of the next new value          */
    enum bench_op op;           /* of this slice                         */
    uint32_t size;              /* of values                             */
    struct store_slot slot[STORE_SLOTS];
};

/* ---- operations, on the loop ----------------------------------------------------------------- */

static void bench_read_done(struct store_read *read)
{
    struct store_slot *mine = container_of(read, struct store_slot, u.read);
    icms_err err = read->err;

    if (err == ICMS_OK && (read->value_bytes != mine->side->size ||
                           !bench_value_is(read->value, read->value_bytes, mine->n, 0)))
        err = ICMS_CORRUPT;
    bench_gen_done(mine->slot, err, mine->side->size, mine->side->size);
}

static void bench_write_done(struct store_write *write)
{
    struct store_slot *mine = container_of(write, struct store_slot, u.write);

    bench_gen_done(mine->slot, write->err, mine->side->size, 0);
}

static void store_start(struct bench_slot *slot, uint64_t n)
{
    struct store_side *side = slot->gen->owner;
    struct store_slot *mine = &side->slot[slot->index];
    icms_err err;

    mine->slot = slot;
    if (side->op == BENCH_GET) {
        mine->n = bench_walk(side->trail.next++, side->trail.count);
        mine->u.read = (struct store_read){.volume = 0,
                                           .key = bench_key(mine->n, 0),
                                           .memory = mine->memory,
                                           .memory_bytes = store_record_bytes(side->size),
                                           .done = bench_read_done};
        err = store_read(side->store, &mine->u.read);
    } else {
        mine->n = side->next_put++;
        bench_value_stamp(mine->memory + STORE_HEADER_BYTES, side->size, mine->n, 0);
        mine->u.write = (struct store_write){.volume = 0,
                                             .key = bench_key(mine->n, 0),
                                             .memory = mine->memory,
                                             .value_bytes = side->size,
                                             .done = bench_write_done};
        err = store_write(side->store, &mine->u.write);
    }
    if (err != ICMS_OK)
        bench_gen_done(slot, err, 0, 0);
}

static icms_err store_slice(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                            struct bench_slice *slice, struct err_why *why)
{
    struct store_side *side = base->owner;

    side->op = work->op;
    bench_gen_run(&side->gen, work, ns, slice);
    return ICMS_OK;
}

/* ---- the drive ------------------------------------------------------------------------------- */

static void store_side_down(struct store_side *side)
{
    if (side->loop != NULL) {
        loop_stop(side->loop);
        loop_join(side->loop);
    }
    loop_free(&side->loop);
    store_close(&side->store);
    loop_region_free(&side->region);
}

/* A new drive in the file of bytes for values of this size. */
static icms_err store_side_up(struct store_side *side, const char *path, uint64_t bytes,
                              uint32_t size, struct err_why *why)
{
    struct uuid uuid = {.bytes = {1}};
    struct err_why ignored = {""};
    struct store_opts opts;
    struct loop_opts loop_opts;
    icms_err err;

    store_opts_init(&opts);
    opts.path = path;
    opts.segment_bytes = bench_segment_bytes(bytes);
    loop_opts_init(&loop_opts);
    *side = (struct store_side){.size = size};
    err = store_format(loop_env_uring(), &opts, true, why);
    if (err == ICMS_OK)
        err = loop_new(loop_env_uring(), &loop_opts, why, &side->loop);
    if (err == ICMS_OK)
        err = loop_region_new(loop_env_uring(), "bench", STORE_SLOTS * store_record_bytes(size),
                              true, why, &side->region);
    if (err != ICMS_OK)
        return err;
    (void)loop_region_register(side->loop, side->region, &ignored); /* works unpinned, too */
    opts.volumes = &uuid;
    opts.volume_count = 1;
    for (uint32_t i = 0; i < STORE_SLOTS; i++) {
        side->slot[i].side = side;
        side->slot[i].memory =
            (uint8_t *)loop_region_base(side->region) + i * store_record_bytes(size);
        bench_value_noise(side->slot[i].memory + STORE_HEADER_BYTES, size);
    }
    err = store_open(side->loop, &opts, why, &side->store);
    if (err == ICMS_OK)
        err = store_volume_limit(side->store, 0, 0, NULL, why);
    if (err == ICMS_OK)
        err = loop_start(side->loop, why);
    bench_gen_init(&side->gen, side->loop, STORE_SLOTS, store_start, side);
    side->side = (struct bench_side){
        .name = "store", .run = store_slice, .owner = side, .trail = &side->trail};
    return err;
}

/* Stores new values. */
static icms_err store_put(void *owner, uint64_t count, struct err_why *why)
{
    struct store_side *side = owner;
    struct bench_work work = {.op = BENCH_PUT, .size_bytes = side->size, .depth = 16};

    side->op = BENCH_PUT;
    return bench_gen_count(&side->gen, &work, count, why);
}

/* Fills both sides up to a part of the drive that evicts nothing. */
static icms_err store_fill(const struct bench_opts *opts, struct store_side *side,
                           struct bench_files *files, struct err_why *why)
{
    side->trail.count = bench_disk_extents(files->disk, side->size) * 8 / 10;
    return bench_files_fill(opts, files, side->size, side->trail.count, store_put, side, why);
}

/* One row. Loads before stores: these evict what loads want. */
static icms_err store_row(const struct bench_opts *opts, struct store_side *side,
                          struct bench_disk *disk, const struct bench_work *work, double *out_rate,
                          struct err_why *why)
{
    struct bench_side raw = {
        .name = "raw disk", .run = bench_disk_run, .owner = disk, .trail = bench_disk_trail(disk)};
    struct bench_row row = {.bench = "store", .variant = ""};
    double crc = bench_crc_s_per_gb(side->size);
    icms_err err = bench_compare(opts, work, work->depth > 0 ? &raw : NULL, &side->side, &row, why);

    if (err != ICMS_OK)
        return err;
    if (work->depth > 0) {
        row.ratio_goal = work->op == BENCH_PUT ? 0.90 : work->depth == 1 ? 0.92 : 0.95;
        row.cpu_goal = 1.3 * (row.ceiling.cpu_s_per_gb + crc);
    }
    bench_row_extra(&row, "crc_cpu_s_per_gb", crc);
    *out_rate = row.subject.gb_per_s * 1e9 / side->size;
    opts->row(opts->arg, &row);
    return ICMS_OK;
}

static icms_err store_rows(const struct bench_opts *opts, struct store_side *side,
                           struct bench_disk *disk, struct err_why *why)
{
    uint32_t depths[2], depth_count = bench_depths(opts, depths);
    icms_err err = ICMS_OK;

    for (int op = BENCH_GET; op <= BENCH_PUT; op++) {
        struct bench_work work = {.op = (enum bench_op)op, .size_bytes = side->size};
        double rate = 0;

        if (!bench_wants_op(opts, work.op))
            continue;
        for (uint32_t i = 0; i < depth_count && err == ICMS_OK; i++) {
            work.depth = depths[i];
            opts->progress(opts->arg, op == BENCH_GET ? "loads" : "stores",
                           (op * depth_count + i) / (2.0 * depth_count));
            err = store_row(opts, side, disk, &work, &rate, why);
        }
        if (err == ICMS_OK && work.op == BENCH_GET && opts->depth == 0) {
            work = (struct bench_work){
                .op = BENCH_GET, .size_bytes = side->size, .ops_per_s = STORE_OPEN_LOAD * rate};
            opts->progress(opts->arg, "loads, open loop", 0.5);
            err = store_row(opts, side, disk, &work, &rate, why);
        }
    }
    return err;
}

icms_err bench_store_run(const struct bench_opts *opts, struct err_why *why)
{
    uint32_t sizes[BENCH_SIZES_MAX], size_count = bench_sizes(opts, sizes);
    struct store_side *side = calloc(1, sizeof(*side));
    char path[BENCH_PATH_BYTES + 32];
    struct bench_files files;
    icms_err err;

    if (side == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    err = bench_files_make(opts, 1, why, &files);
    if (err != ICMS_OK) {
        free(side);
        return err;
    }
    bench_files_path(&files, 0, path, sizeof(path));
    for (uint32_t i = 0; i < size_count && err == ICMS_OK; i++) {
        err = store_side_up(side, path, files.bytes, sizes[i], why);
        if (err == ICMS_OK)
            err = store_fill(opts, side, &files, why);
        if (err == ICMS_OK)
            err = store_rows(opts, side, files.disk, why);
        store_side_down(side);
    }
    bench_files_free(&files);
    free(side);
    return err;
}
