/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine.c: what an engine does: one thread, values from and to ordinary memory, through
 * libicms.
 *
 * One at a time it calls icms_get and icms_put; with more in flight each value is an asynchronous
 * request of its own, the thread sleeps in poll(2) on icms_event_fd and asks icms_poll, and what
 * ended is followed by the next. Stores are acknowledged by the flash.
 */
#include <poll.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "bench/bench_int.h"

#define ENGINE_DEADLINE_MS 20000

icms_err bench_engine_init(struct bench_engine *engine, uint32_t size, struct err_why *why)
{
    engine->size = size;
    engine->memory_bytes = (uint64_t)BENCH_ENGINE_SLOTS * size;
    engine->memory = mmap(NULL, engine->memory_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (engine->memory == MAP_FAILED) {
        engine->memory = NULL;
        return err_set(why, ICMS_NO_MEMORY, "no memory for values");
    }
    for (uint32_t i = 0; i < BENCH_ENGINE_SLOTS; i++) {
        engine->slot[i].memory = engine->memory + (uint64_t)i * size;
        bench_value_noise(engine->slot[i].memory, size);
    }
    return ICMS_OK;
}

void bench_engine_fini(struct bench_engine *engine)
{
    if (engine->memory != NULL)
        (void)munmap(engine->memory, engine->memory_bytes);
    engine->memory = NULL;
}

static void engine_prepare(struct bench_engine *engine, enum bench_op op,
                           struct bench_engine_slot *slot)
{
    slot->n =
        engine->first + (op == BENCH_GET ? bench_walk(engine->trail.next++, engine->trail.count)
                                         : engine->next_put++);
    slot->block = (struct icms_block){
        .key = bench_icms_key(slot->n, 0), .data = slot->memory, .bytes = engine->size};
    if (op == BENCH_PUT)
        bench_value_stamp(slot->memory, engine->size, slot->n, 0);
    else /* what was there before must not pass for what comes */
        memset(slot->memory, 0, BENCH_STAMP_BYTES / 2);
    slot->begin_ns = bench_now_ns();
}

static struct icms_request_options engine_options(void)
{
    struct icms_request_options options;

    icms_request_options_init(&options);
    options.put_ack = ICMS_PUT_ON_FLASH;
    options.deadline_ms = ENGINE_DEADLINE_MS;
    return options;
}

/* Counts what ended. */
static void engine_count(const struct bench_engine *engine, enum bench_op op,
                         const struct bench_engine_slot *slot, struct bench_slice *slice)
{
    uint64_t ns = bench_now_ns() - slot->begin_ns;
    icms_err err = slot->block.status;
    bool dram = op == BENCH_GET && slot->block.source == ICMS_SOURCE_DRAM;

    if (err == ICMS_OK && op == BENCH_GET &&
        (slot->block.bytes != engine->size ||
         !bench_value_is(slot->memory, engine->size, slot->n, 0)))
        err = ICMS_CORRUPT;
    if (err == ICMS_OK && dram && !engine->from_dram) {
        slice->from_memory++;
        return;
    }
    if (err == ICMS_OK && op == BENCH_GET && !dram && engine->from_dram)
        err = ICMS_MISS;
    bench_slice_add(slice, err, engine->size, op == BENCH_GET ? engine->size : 0, ns);
}

static void engine_run_sync(struct bench_engine *engine, enum bench_op op, uint64_t end_ns,
                            uint64_t count, struct bench_slice *slice)
{
    const struct icms_request_options options = engine_options();
    struct bench_engine_slot *slot = &engine->slot[0];

    for (; count > 0 && bench_now_ns() < end_ns; count--) {
        icms_err err;

        engine_prepare(engine, op, slot);
        if (op == BENCH_GET)
            err = icms_get(engine->volume, &slot->block, 1, &options);
        else
            err = icms_put(engine->volume, &slot->block, 1, &options);
        check(err != ICMS_OK || slot->block.status == ICMS_OK);
        engine_count(engine, op, slot, slice);
    }
}

static bool engine_start(struct bench_engine *engine, enum bench_op op,
                         struct bench_engine_slot *slot, struct bench_slice *slice)
{
    struct icms_request_options options = engine_options();
    icms_err err;

    engine_prepare(engine, op, slot);
    options.tag = slot;
    if (op == BENCH_GET)
        err = icms_get_start(engine->volume, &slot->block, 1, &options, &slot->request);
    else
        err = icms_put_start(engine->volume, &slot->block, 1, &options, &slot->request);
    if (err != ICMS_OK) {
        slot->block.status = err;
        engine_count(engine, op, slot, slice);
    }
    return err == ICMS_OK;
}

static void engine_run_async(struct bench_engine *engine, const struct bench_work *work,
                             uint64_t end_ns, uint64_t count, struct bench_slice *slice)
{
    struct pollfd event = {.fd = icms_event_fd(engine->icms), .events = POLLIN};
    uint32_t busy = 0;

    for (uint32_t i = 0; i < work->depth && count > 0; i++, count--)
        if (engine_start(engine, work->op, &engine->slot[i], slice))
            busy++;
    while (busy > 0) {
        struct icms_request *request = icms_poll(engine->icms);
        struct bench_engine_slot *slot;

        if (request == NULL) {
            (void)poll(&event, 1, -1);
            continue;
        }
        slot = icms_request_tag(request);
        check(slot->request == request);
        (void)icms_request_end(&slot->request); /* the block has its status */
        engine_count(engine, work->op, slot, slice);
        busy--;
        if (count > 0 && bench_now_ns() < end_ns) {
            count--;
            if (engine_start(engine, work->op, slot, slice))
                busy++;
        }
    }
}

void bench_engine_work(struct bench_engine *engine, const struct bench_work *work, uint64_t end_ns,
                       uint64_t count, struct bench_slice *slice)
{
    check(work->depth <= BENCH_ENGINE_SLOTS);
    if (work->depth == 1)
        engine_run_sync(engine, work->op, end_ns, count, slice);
    else
        engine_run_async(engine, work, end_ns, count, slice);
}
