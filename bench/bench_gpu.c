/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_gpu.c: `icms bench gpu`: blocks between the agent's memory and memory of a GPU.
 *
 * get: icms_get of a batch of blocks that are in the agent's memory into memory of the first GPU,
 * each verified on its way. put: icms_put of a batch from there, with put_if_absent, of blocks that
 * the agent has: they are copied from the GPU, summed and handed over, and nothing is written to
 * flash. Beside both, the driver: asynchronous copies of as many bytes from or to pinned memory.
 * A batch is as large as the depth. After each get the batch is copied back, and its stamps are
 * looked at; that is not timed.
 *
 * For each size: pod up, the arena is filled, rows, pod down. Called by bench_run. Without a driver
 * for CUDA or HIP it is UNSUPPORTED.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench/bench_int.h"
#include "device/driver.h"

#define GPU_BYTES       ((uint64_t)192 << 20) /* of blocks                        */
#define GPU_DRIVE_BYTES ((uint64_t)256 << 20) /* they go to flash, too            */
#define GPU_SPARE       64                    /* slots more than blocks           */
#define GPU_DEPTH_MAX   64
#define GPU_WAIT_NS     ((uint64_t)10 * 1000 * 1000 * 1000)

/* Both sides. */
struct gpu_side {
    struct bench_side side;             /* what bench_compare runs                 */
    struct bench_side copy;             /* the ceiling                             */
    struct bench_rig rig;               /* the pod                                 */
    const struct device_driver *driver; /* that is here                            */
    enum icms_memory_kind kind;         /* of it                                   */
    struct device_place place;          /* the first GPU; entered                  */
    bool is_held;                       /* rele it                                 */
    struct device_before before;        /* for leave                               */
    uint64_t device;                    /* memory of GPU_DEPTH_MAX values there    */
    struct icms_memory *memory;         /* as libicms knows it                     */
    uint8_t *pinned;                    /* as much on the host                     */
    void *stream, *event;               /* of the ceiling                          */
    uint32_t size;                      /* of values                               */
    uint64_t count;                     /* values                                  */
    uint64_t next;                      /* number of the next operation            */
};

static uint64_t gpu_bytes(const struct gpu_side *side)
{
    return (uint64_t)side->size * GPU_DEPTH_MAX;
}

static icms_err gpu_wrong(const struct gpu_side *side, const char *what, int code,
                          struct err_why *why)
{
    char text[DEVICE_TEXT_BYTES];

    device_ops(side->driver)->text(side->driver, code, text, sizeof(text));
    return err_set(why, ICMS_DEVICE, "cannot %s on the first GPU: %s", what, text);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Copies so many values to the GPU, or back, and waits. */
static icms_err gpu_copy(const struct gpu_side *side, bool in, uint32_t count, struct err_why *why)
{
    const struct device_ops *ops = device_ops(side->driver);
    uint64_t begin = bench_now_ns();
    int code = 0;

    for (uint32_t i = 0; i < count && code == 0; i++) {
        uint64_t at = (uint64_t)i * side->size;

        code = in ? ops->copy_in(side->driver, side->device + at, side->pinned + at, side->size,
                                 side->stream)
                  : ops->copy_out(side->driver, side->pinned + at, side->device + at, side->size,
                                  side->stream);
    }
    if (code == 0)
        code = ops->event_record(side->driver, side->event, side->stream);
    if (code == 0)
        do
            code = ops->event_query(side->driver, side->event);
        while (code == DEVICE_NOT_READY && bench_now_ns() - begin < GPU_WAIT_NS);
    return code == 0 ? ICMS_OK : gpu_wrong(side, "copy", code, why);
}

static void gpu_count(struct bench_slice *slice, const struct bench_work *work, icms_err err,
                      uint64_t verified, uint64_t ns)
{
    for (uint32_t i = 0; i < work->depth; i++)
        bench_slice_add(slice, err, work->size_bytes, verified, ns);
    slice->wall_ns += ns;
}

static icms_err gpu_driver_slice(struct bench_side *base, const struct bench_work *work,
                                 uint64_t ns, struct bench_slice *slice, struct err_why *why)
{
    struct gpu_side *side = base->owner;
    uint64_t begin = bench_now_ns();
    icms_err err = ICMS_OK;

    do {
        uint64_t start = bench_now_ns();

        err = gpu_copy(side, work->op == BENCH_GET, work->depth, why);
        gpu_count(slice, work, err, 0, bench_now_ns() - start);
    } while (err == ICMS_OK && bench_now_ns() - begin < ns);
    return err;
}

/* The values of a batch, as they came to the GPU. */
static icms_err gpu_verify(const struct gpu_side *side, const uint64_t *numbers, uint32_t count,
                           struct err_why *why)
{
    icms_err err = gpu_copy(side, false, count, why);

    for (uint32_t i = 0; i < count && err == ICMS_OK; i++)
        if (!bench_value_is(side->pinned + (uint64_t)i * side->size, side->size, numbers[i], 0))
            err = ICMS_CORRUPT;
    return err;
}

static icms_err gpu_slice(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                          struct bench_slice *slice, struct err_why *why)
{
    struct gpu_side *side = base->owner;
    struct icms_block blocks[GPU_DEPTH_MAX];
    struct icms_request_options options;
    uint64_t numbers[GPU_DEPTH_MAX], begin = bench_now_ns();
    bool get = work->op == BENCH_GET;

    icms_request_options_init(&options);
    options.put_if_absent = 1;
    do {
        uint64_t start;
        icms_err err;

        for (uint32_t i = 0; i < work->depth; i++) {
            numbers[i] = bench_walk(side->next++, side->count);
            blocks[i] = (struct icms_block){
                .key = bench_icms_key(numbers[i], 0),
                .data = (void *)(uintptr_t)(side->device + (uint64_t)i * side->size),
                .bytes = side->size};
        }
        start = bench_now_ns();
        err = get ? icms_get(side->rig.volume, blocks, work->depth, &options)
                  : icms_put(side->rig.volume, blocks, work->depth, &options);
        start = bench_now_ns() - start;
        for (uint32_t i = 0; i < work->depth && !get; i++)
            err = blocks[i].status == ICMS_EXISTS ? ICMS_OK : blocks[i].status;
        if (err == ICMS_OK && get)
            err = gpu_verify(side, numbers, work->depth, why);
        gpu_count(slice, work, err, get ? side->size : 0, start);
    } while (bench_now_ns() - begin < ns);
    return ICMS_OK;
}

/* ---- the GPU --------------------------------------------------------------------------------- */

/* A driver, and the first GPU's own context. */
static icms_err gpu_find(struct gpu_side *side, struct err_why *why)
{
    struct err_why other = {{0}};
    icms_err err = device_driver_get(DEVICE_CUDA, why, &side->driver);
    int code;

    side->kind = ICMS_MEMORY_CUDA;
    if (err != ICMS_OK && device_driver_get(DEVICE_HIP, &other, &side->driver) == ICMS_OK) {
        side->kind = ICMS_MEMORY_HIP;
        err = ICMS_OK;
    }
    if (err != ICMS_OK)
        return err;
    side->is_held = device_ops(side->driver)->hold(side->driver, &side->place);
    code = device_ops(side->driver)->enter(side->driver, &side->place, &side->before);
    if (code != 0) {
        err = gpu_wrong(side, "enter the context", code, why);
        side->driver = NULL;
    }
    return err;
}

static void gpu_leave(struct gpu_side *side)
{
    const struct device_ops *ops;

    if (side->driver == NULL)
        return;
    ops = device_ops(side->driver);
    ops->leave(side->driver, &side->before);
    if (side->is_held)
        ops->rele(side->driver, &side->place);
}

static icms_err gpu_memory(struct gpu_side *side, struct err_why *why)
{
    const struct device_ops *ops = device_ops(side->driver);
    void *pinned = mmap(NULL, gpu_bytes(side), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    int code;

    if (pinned == MAP_FAILED)
        return err_set(why, ICMS_NO_MEMORY, "no memory for values");
    code = ops->pin(side->driver, pinned, gpu_bytes(side), false);
    if (code != 0) {
        (void)munmap(pinned, gpu_bytes(side));
        return gpu_wrong(side, "pin memory", code, why);
    }
    side->pinned = pinned;
    code = ops->memory_new(side->driver, gpu_bytes(side), &side->device);
    if (code == 0)
        code = ops->stream_new(side->driver, &side->stream);
    if (code == 0)
        code = ops->event_new(side->driver, &side->event);
    return code == 0 ? ICMS_OK : gpu_wrong(side, "take memory", code, why);
}

static void gpu_memory_free(struct gpu_side *side)
{
    const struct device_ops *ops = device_ops(side->driver);

    if (side->event != NULL)
        ops->event_free(side->driver, side->event);
    if (side->stream != NULL)
        ops->stream_free(side->driver, side->stream);
    if (side->device != 0)
        ops->memory_free(side->driver, side->device);
    if (side->pinned != NULL) {
        (void)ops->unpin(side->driver, side->pinned);
        (void)munmap(side->pinned, gpu_bytes(side));
    }
    side->event = side->stream = NULL;
    side->device = 0;
    side->pinned = NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Every block is put from the GPU, and got once: it is in the agent's memory, and verified. */
static icms_err gpu_fill(struct gpu_side *side, struct err_why *why)
{
    struct icms_request_options options;
    char text[ERR_WHY_BYTES_MAX] = "";
    icms_err err = icms_memory_register(side->rig.icms, side->kind, (void *)(uintptr_t)side->device,
                                        gpu_bytes(side), text, sizeof(text), &side->memory);

    if (err != ICMS_OK)
        return err_set(why, err, "%s", text);
    icms_request_options_init(&options);
    options.put_ack = ICMS_PUT_ON_FLASH;
    bench_value_noise(side->pinned, side->size);
    for (uint64_t n = 0; n < side->count && err == ICMS_OK; n++) {
        struct icms_block block = {.key = bench_icms_key(n, 0),
                                   .data = (void *)(uintptr_t)side->device,
                                   .bytes = side->size};

        bench_value_stamp(side->pinned, side->size, n, 0);
        err = gpu_copy(side, true, 1, why);
        if (err == ICMS_OK && icms_put(side->rig.volume, &block, 1, &options) != ICMS_OK)
            err = err_set(why, block.status, "a store of %u bytes: %s", side->size,
                          icms_err_text(block.status));
    }
    return err;
}

static icms_err gpu_row(const struct bench_opts *opts, struct gpu_side *side, enum bench_op op,
                        uint32_t depth, struct err_why *why)
{
    struct bench_work work = {.op = op, .size_bytes = side->size, .depth = depth};
    struct bench_row row = {.bench = "gpu", .variant = "", .ratio_goal = depth > 1 ? 0.9 : 0};
    icms_err err;

    opts->progress(opts->arg, bench_op_name(op), op == BENCH_GET ? 0.3 : 0.7);
    err = bench_compare(opts, &work, &side->copy, &side->side, &row, why);
    if (err == ICMS_OK)
        opts->row(opts->arg, &row);
    return err;
}

static icms_err gpu_size(const struct bench_opts *opts, struct gpu_side *side, struct err_why *why)
{
    uint32_t depths[2], depth_count;
    icms_err err = gpu_memory(side, why);

    if (err == ICMS_OK)
        err = bench_rig_up(&side->rig, why);
    if (err == ICMS_OK)
        err = bench_rig_open(&side->rig, true, why);
    if (err == ICMS_OK)
        err = gpu_fill(side, why);
    side->copy = (struct bench_side){.name = side->kind == ICMS_MEMORY_CUDA ? "the driver of CUDA"
                                                                            : "the driver of HIP",
                                     .run = gpu_driver_slice,
                                     .owner = side};
    side->side = (struct bench_side){.name = "gpu", .run = gpu_slice, .owner = side};
    bench_rig_pids(&side->rig, &side->side);
    depth_count = bench_depths(opts, depths);
    for (int op = BENCH_GET; op <= BENCH_PUT; op++)
        for (uint32_t i = 0; i < depth_count && err == ICMS_OK; i++)
            if (bench_wants_op(opts, (enum bench_op)op))
                err = gpu_row(opts, side, (enum bench_op)op, depths[i], why);
    (void)!icms_memory_unregister(&side->memory); /* else with the handle */
    bench_rig_down(&side->rig);
    gpu_memory_free(side);
    return err;
}

icms_err bench_gpu_run(const struct bench_opts *opts, struct err_why *why)
{
    uint32_t sizes[BENCH_SIZES_MAX], size_count = bench_sizes(opts, sizes);
    char dir[BENCH_PATH_BYTES], path[BENCH_PATH_BYTES + 8];
    struct gpu_side side = {.size = 0}, gpu = {.size = 0};
    icms_err err = gpu_find(&gpu, why);

    if (err != ICMS_OK)
        return err;
    err = bench_dir_make(opts, why, dir, sizeof(dir));
    if (err != ICMS_OK) {
        gpu_leave(&gpu);
        return err;
    }
    (void)snprintf(path, sizeof(path), "%s/drive", dir);
    opts->progress(opts->arg, "making a drive", 0);
    err = bench_file_make(path, GPU_DRIVE_BYTES, why);
    for (uint32_t i = 0; i < size_count && err == ICMS_OK; i++) {
        side = gpu;
        side.size = sizes[i];
        side.count = GPU_BYTES / sizes[i];
        side.rig = (struct bench_rig){.dir = dir,
                                      .drive = path,
                                      .drive_bytes = GPU_DRIVE_BYTES,
                                      .size = sizes[i],
                                      .arena_slots = (uint32_t)side.count + GPU_SPARE,
                                      .loops = opts->reactors};
        err = gpu_size(opts, &side, why);
    }
    bench_dir_remove(dir);
    gpu_leave(&gpu);
    return err;
}
