/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_pod.c: `icms bench pod`: client, agent, icms-target and drive, beside the raw disk.
 *
 * What an engine does: one thread, values from and to ordinary memory. One at a time it calls
 * icms_get and icms_put; with more in flight each value is an asynchronous request of its own, the
 * thread sleeps in poll(2) on icms_event_fd and asks icms_poll, and what ended is followed by the
 * next. Stores are acknowledged by the flash.
 *
 * The agent's memory holds POD_ARENA_SLOTS values and the walk goes over all that were stored, so
 * nothing is met twice before it is forgotten, unless there are few values. That it came from the
 * enclosure is checked: by the source of each block, and by the agent's counters after each slice.
 * A load that the agent's memory answered is not counted, and the row says how many there were.
 *
 * What the way may cost in processor time is the disk's, two checksums', and that of raw TCP with
 * the same work, which is measured before the agents start.
 *
 * For each size: target up, filled in turns with the raw disk; for each operation and variant: the
 * agent is started, warmed up, measured, ended. Called by bench_run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bench/bench_int.h"

#define POD_ARENA_SLOTS 64
#define POD_TCP_BYTES   ((uint64_t)256 << 20) /* of values that raw TCP moves round */
#define POD_P50_BYTES   ((uint32_t)1 << 20)   /* values that are sent while they are read: */
#define POD_P50_PART    0.8                   /* their latency, of disk and TCP one by one */
#define POD_P50_STREAM  1.1                   /* and of a bare program that streams them   */

/* A pod and what uses it. */
struct pod_side {
    struct bench_side side;                 /* what bench_compare runs                      */
    struct bench_rig rig;                   /* the pod                                      */
    const char *variant;                    /* "inprocess"                                  */
    uint32_t size;                          /* of values                                    */
    struct bench_engine engine;             /* what loads and stores                        */
    struct bench_pool pool;                 /* what raw TCP moves                           */
    struct bench_tcp *tcp;                  /* the other part of what is possible           */
    struct bench_figures tcp_figures[2][2]; /* by operation and place of the depth          */
    struct bench_stream *stream;            /* what streaming can gain; NULL: small values  */
};

static icms_err pod_slice(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                          struct bench_slice *slice, struct err_why *why)
{
    struct pod_side *side = base->owner;
    struct bench_hits before, after;
    uint64_t begin, come;
    icms_err err = bench_rig_hits(&side->rig, why, &before);

    if (err != ICMS_OK)
        return err;
    begin = bench_now_ns();
    bench_engine_work(&side->engine, work, begin + ns, UINT64_MAX, slice);
    slice->wall_ns = bench_now_ns() - begin;
    err = bench_rig_hits(&side->rig, why, &after);
    come = after.pod - before.pod;
    if (err == ICMS_OK && work->op == BENCH_GET && come < slice->ops - slice->errors) {
        slice->errors = slice->ops - come; /* the agent knows of fewer than we were given */
        slice->error = slice->error != ICMS_OK ? slice->error : ICMS_MISS;
    }
    return err;
}

/* ---- life ------------------------------------------------------------------------------------ */

static icms_err pod_open(struct pod_side *side, const char *variant, struct err_why *why)
{
    icms_err err = bench_rig_open(&side->rig, strcmp(variant, "daemon") == 0, why);

    side->variant = variant;
    side->side = (struct bench_side){
        .name = "pod", .run = pod_slice, .owner = side, .trail = &side->engine.trail};
    side->engine.icms = side->rig.icms;
    side->engine.volume = side->rig.volume;
    bench_rig_pids(&side->rig, &side->side);
    return err;
}

/* Stores new values. */
static icms_err pod_put(void *owner, uint64_t count, struct err_why *why)
{
    struct pod_side *side = owner;
    const struct bench_work work = {.op = BENCH_PUT, .size_bytes = side->size, .depth = 16};
    struct bench_slice slice = {0};

    bench_engine_work(&side->engine, &work, UINT64_MAX, count, &slice);
    if (slice.errors > 0)
        return err_set(why, ICMS_IO, "%llu of %llu stores of %u bytes failed",
                       (unsigned long long)slice.errors, (unsigned long long)slice.ops, side->size);
    return ICMS_OK;
}

/* Values that both sides are filled with. */
static uint64_t pod_values(const struct pod_side *side, const struct bench_files *files)
{
    uint64_t extents = bench_disk_extents(files->disk, side->size);

    return files->bytes < (uint64_t)1 << 30 ? extents / 2 : extents * 7 / 10;
}

/* Fills both sides with the same values, in turns. */
static icms_err pod_fill(const struct bench_opts *opts, struct pod_side *side,
                         struct bench_files *files, struct err_why *why)
{
    side->engine.trail =
        (struct bench_trail){.count = pod_values(side, files), .kept = 2 * POD_ARENA_SLOTS};
    return bench_files_fill(opts, files, side->size, side->engine.trail.count, pod_put, side, why);
}

/* Loads what the walk meets last from here on, so that nothing that was just stored is in the
 * agent's memory. */
static void pod_warm(struct pod_side *side)
{
    const struct bench_work work = {.op = BENCH_GET, .size_bytes = side->size, .depth = 16};
    struct bench_trail *trail = &side->engine.trail;
    uint64_t count = trail->count < 2 * POD_ARENA_SLOTS ? trail->count : 2 * POD_ARENA_SLOTS;
    struct bench_slice slice = {0};

    trail->next += trail->count - count;
    bench_engine_work(&side->engine, &work, UINT64_MAX, count, &slice);
}

/* Raw TCP in the same run, before there are agents: half as many slices, all for one row. */
static icms_err pod_tcp_measure(const struct bench_opts *opts, struct pod_side *side,
                                struct err_why *why)
{
    struct bench_side raw = {.name = "raw TCP",
                             .run = bench_tcp_run,
                             .owner = side->tcp,
                             .pids = 1,
                             .pid = {bench_tcp_server(side->tcp)}};
    uint32_t depths[2], depth_count = bench_depths(opts, depths);
    struct bench_opts less = *opts;
    icms_err err = ICMS_OK;

    less.slices = (opts->slices + 1) / 2;
    for (uint32_t i = 0; i < 2 * depth_count && err == ICMS_OK; i++) {
        struct bench_work work = {.op = i < depth_count ? BENCH_GET : BENCH_PUT,
                                  .size_bytes = side->size,
                                  .depth = depths[i % depth_count]};
        struct bench_row row = {.bench = "pod", .variant = ""};

        if (!bench_wants_op(opts, work.op))
            continue;
        opts->progress(opts->arg, "raw TCP", i / (2.0 * depth_count));
        err = bench_compare(&less, &work, NULL, &raw, &row, why);
        side->tcp_figures[work.op][i % depth_count] = row.subject;
    }
    return err;
}

/* Whether this load is judged by its latency: a large one, alone. */
static bool pod_is_streamed(const struct pod_side *side, const struct bench_work *work)
{
    return work->op == BENCH_GET && work->depth == 1 && side->stream != NULL;
}

/* What the whole way may cost: disk, TCP and two checksums, of which raw TCP has one. */
static void pod_goals(const struct pod_side *side, const struct bench_work *work,
                      const struct bench_figures *tcp, struct bench_row *row)
{
    double crc = bench_crc_s_per_gb(side->size);
    double factor = side->rig.agent.pid != 0 ? 1.5 : 1.25;

    if (work->op == BENCH_GET && work->depth > 1)
        row->ratio_goal = 0.92;
    row->cpu_goal = factor * (row->ceiling.cpu_s_per_gb + tcp->cpu_s_per_gb + crc);
    if (pod_is_streamed(side, work))
        row->p50_goal_us = POD_P50_PART * (row->ceiling.p50_us + tcp->p50_us);
    bench_row_extra(row, "crc_cpu_s_per_gb", crc);
    bench_row_extra(row, "tcp_cpu_s_per_gb", tcp->cpu_s_per_gb);
    bench_row_extra(row, "tcp_p50_us", tcp->p50_us);
}

/* The same loads by a bare program that streams them from the raw disk's file. It goes on where the
 * raw disk was, and that where it ended: what one of them just read the host may have in memory. */
static icms_err pod_stream_measure(const struct bench_opts *opts, struct pod_side *side,
                                   struct bench_side *raw, const struct bench_work *work,
                                   struct bench_row *row, struct err_why *why)
{
    struct bench_side stream = bench_stream_side(side->stream);
    struct bench_row bare = {.bench = "pod", .variant = ""};
    struct bench_opts less = *opts;
    icms_err err;

    less.slices = (opts->slices + 1) / 2;
    stream.trail->next = raw->trail->next;
    err = bench_compare(&less, work, NULL, &stream, &bare, why);
    raw->trail->next = stream.trail->next;
    if (err == ICMS_OK && bare.subject.errors > 0)
        return err_set(why, ICMS_IO, "raw stream: %llu of %llu loads failed",
                       (unsigned long long)bare.subject.errors,
                       (unsigned long long)bare.subject.ops);
    if (err != ICMS_OK || bare.subject.p50_us <= 0)
        return err;
    bench_row_extra(row, "stream_p50_us", bare.subject.p50_us);
    bench_row_goal(row, "p50_of_stream", row->subject.p50_us / bare.subject.p50_us, POD_P50_STREAM);
    return ICMS_OK;
}

static icms_err pod_row(const struct bench_opts *opts, struct pod_side *side,
                        struct bench_disk *disk, const struct bench_work *work,
                        const struct bench_figures *tcp, struct err_why *why)
{
    struct bench_side raw = {
        .name = "raw disk", .run = bench_disk_run, .owner = disk, .trail = bench_disk_trail(disk)};
    struct bench_row row = {.bench = "pod", .variant = side->variant};
    icms_err err = bench_compare(opts, work, &raw, &side->side, &row, why);

    if (err != ICMS_OK)
        return err;
    pod_goals(side, work, tcp, &row);
    if (pod_is_streamed(side, work))
        err = pod_stream_measure(opts, side, &raw, work, &row, why);
    if (err == ICMS_OK)
        opts->row(opts->arg, &row);
    return err;
}

/* All depths of one operation through one variant. */
static icms_err pod_rows(const struct bench_opts *opts, struct pod_side *side,
                         struct bench_disk *disk, enum bench_op op, struct err_why *why)
{
    uint32_t depths[2], depth_count = bench_depths(opts, depths);
    icms_err err = ICMS_OK;

    if (op == BENCH_GET)
        pod_warm(side);
    for (uint32_t i = 0; i < depth_count && err == ICMS_OK; i++) {
        struct bench_work work = {.op = op, .size_bytes = side->size, .depth = depths[i]};

        opts->progress(opts->arg, op == BENCH_GET ? "loads" : "stores",
                       (double)i / (double)depth_count);
        err = pod_row(opts, side, disk, &work, &side->tcp_figures[op][i], why);
    }
    return err;
}

/* Everything with values of one size. */
static icms_err pod_size(const struct bench_opts *opts, struct pod_side *side,
                         struct bench_files *files, struct err_why *why)
{
    static const char *const variants[] = {"inprocess", "daemon"};
    uint32_t depths[2], depth_count = bench_depths(opts, depths);
    char raw_path[BENCH_PATH_BYTES + 8];
    icms_err err = bench_pool_new(side->size, POD_TCP_BYTES, why, &side->pool);

    if (err == ICMS_OK)
        err = bench_tcp_new(&side->pool, depths[depth_count - 1], why, &side->tcp);
    if (err == ICMS_OK)
        err = pod_tcp_measure(opts, side, why);
    bench_tcp_free(&side->tcp);
    bench_pool_free(&side->pool);
    (void)snprintf(raw_path, sizeof(raw_path), "%s/raw-0", files->dir);
    if (err == ICMS_OK && side->size >= POD_P50_BYTES && side->size % BENCH_STREAM_PIECE == 0 &&
        bench_wants_op(opts, BENCH_GET))
        err = bench_stream_new(raw_path, pod_values(side, files), side->size, why, &side->stream);
    if (err == ICMS_OK)
        err = bench_engine_init(&side->engine, side->size, why);
    if (err == ICMS_OK)
        err = bench_rig_up(&side->rig, why);
    if (err == ICMS_OK)
        err = pod_open(side, variants[0], why);
    if (err == ICMS_OK)
        err = pod_fill(opts, side, files, why);
    bench_rig_close(&side->rig);
    for (int op = BENCH_GET; op <= BENCH_PUT; op++)
        for (int v = 0; v < 2; v++) {
            if (err != ICMS_OK || !bench_wants_op(opts, (enum bench_op)op) ||
                !bench_wants_variant(opts, variants[v]))
                continue;
            err = pod_open(side, variants[v], why);
            if (err == ICMS_OK)
                err = pod_rows(opts, side, files->disk, (enum bench_op)op, why);
            bench_rig_close(&side->rig);
        }
    bench_rig_down(&side->rig);
    bench_engine_fini(&side->engine);
    bench_stream_free(&side->stream);
    return err;
}

/* ---- what protection costs ------------------------------------------------------------------- */

#define PAIR_DRIVE_BYTES ((uint64_t)1 << 30)
#define PAIR_ENCRYPTED   0.8 /* goal for loads of 1 MiB */

/* Two pods in directories of their own, the same but for the protection. */
struct pod_pair {
    struct pod_side side[2]; /* plain, protected */
    char dir[2][BENCH_PATH_BYTES], drive[2][BENCH_PATH_BYTES + 8];
};

static icms_err pair_side_up(const struct bench_opts *opts, struct pod_pair *pair, int i,
                             enum bench_protect protect, uint32_t size, struct err_why *why)
{
    struct pod_side *side = &pair->side[i];
    icms_err err = bench_dir_make(opts, why, pair->dir[i], sizeof(pair->dir[i]));

    if (err != ICMS_OK) {
        pair->dir[i][0] = 0;
        return err;
    }
    (void)snprintf(pair->drive[i], sizeof(pair->drive[i]), "%s/drive", pair->dir[i]);
    *side = (struct pod_side){
        .size = size,
        .rig = {.dir = pair->dir[i],
                .drive = pair->drive[i],
                .drive_bytes = opts->space_bytes / 2 < PAIR_DRIVE_BYTES
                                   ? opts->space_bytes / 2 & ~((uint64_t)(1 << 20) - 1)
                                   : PAIR_DRIVE_BYTES,
                .size = size,
                .arena_slots = POD_ARENA_SLOTS,
                .loops = opts->reactors,
                .protect = protect}};
    side->engine.trail = (struct bench_trail){.count = side->rig.drive_bytes / 2 / size,
                                              .kept = 2 * POD_ARENA_SLOTS};
    err = bench_engine_init(&side->engine, side->size, why);
    if (err == ICMS_OK)
        err = bench_rig_up(&side->rig, why);
    if (err == ICMS_OK)
        err = pod_open(side, "daemon", why);
    if (err == ICMS_OK)
        err = pod_put(side, side->engine.trail.count, why);
    side->side.name = protect == BENCH_ENCRYPTED ? "encrypted pod"
                      : protect == BENCH_TLS     ? "TLS pod"
                                                 : "plain pod";
    return err;
}

static icms_err pair_rows(const struct bench_opts *opts, struct pod_pair *pair, const char *variant,
                          enum bench_op op, struct err_why *why)
{
    uint32_t depths[2], depth_count = bench_depths(opts, depths);
    icms_err err = ICMS_OK;

    for (int i = 0; i < 2 && op == BENCH_GET; i++)
        pod_warm(&pair->side[i]);
    for (uint32_t i = 0; i < depth_count && err == ICMS_OK; i++) {
        struct bench_work work = {.op = op, .size_bytes = pair->side[0].size, .depth = depths[i]};
        struct bench_row row = {.bench = "crypt", .variant = variant};

        opts->progress(opts->arg, op == BENCH_GET ? "loads" : "stores", (double)i / depth_count);
        err = bench_compare(opts, &work, &pair->side[0].side, &pair->side[1].side, &row, why);
        if (err != ICMS_OK)
            break;
        if (pair->side[1].rig.protect == BENCH_ENCRYPTED && op == BENCH_GET &&
            work.size_bytes == (uint32_t)1 << 20)
            row.ratio_goal = PAIR_ENCRYPTED;
        if (pair->side[1].rig.protect == BENCH_TLS)
            bench_row_extra(&row, "tls_kernel", bench_rig_kernel_tls(&pair->side[1].rig));
        opts->row(opts->arg, &row);
    }
    return err;
}

icms_err bench_pod_pair(const struct bench_opts *opts, const char *variant,
                        enum bench_protect protect, struct err_why *why)
{
    uint32_t size = opts->size_bytes != 0 ? (uint32_t)opts->size_bytes : (uint32_t)1 << 20;
    struct pod_pair *pair = calloc(1, sizeof(*pair));
    icms_err err = pair == NULL ? err_set(why, ICMS_NO_MEMORY, "out of memory") : ICMS_OK;

    opts->progress(opts->arg, "two pods", 0);
    for (int i = 0; i < 2 && err == ICMS_OK; i++)
        err = pair_side_up(opts, pair, i, i == 0 ? BENCH_PLAIN : protect, size, why);
    for (int op = BENCH_GET; op <= BENCH_PUT && err == ICMS_OK; op++)
        if (bench_wants_op(opts, (enum bench_op)op))
            err = pair_rows(opts, pair, variant, (enum bench_op)op, why);
    for (int i = 0; i < 2 && pair != NULL; i++) {
        bench_rig_down(&pair->side[i].rig);
        bench_engine_fini(&pair->side[i].engine);
        if (pair->dir[i][0] != 0)
            bench_dir_remove(pair->dir[i]);
    }
    free(pair);
    return err;
}

icms_err bench_pod_run(const struct bench_opts *opts, struct err_why *why)
{
    uint32_t sizes[BENCH_SIZES_MAX], size_count = bench_sizes(opts, sizes);
    struct pod_side *side = calloc(1, sizeof(*side));
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
        *side = (struct pod_side){.size = sizes[i],
                                  .rig = {.dir = files.dir,
                                          .drive = path,
                                          .drive_bytes = files.bytes,
                                          .size = sizes[i],
                                          .arena_slots = POD_ARENA_SLOTS,
                                          .loops = opts->reactors}};
        err = pod_size(opts, side, &files, why);
    }
    bench_files_free(&files);
    free(side);
    return err;
}
