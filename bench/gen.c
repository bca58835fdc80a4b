/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/gen.c: keeps operations in flight on a loop for the length of a slice.
 *
 * bench_gen_run posts gen_begin to the loop and sleeps; gen_fill starts operations, each ends with
 * bench_gen_done, which starts the next; past the end of the slice the last one wakes the caller.
 * Closed loop: as many as the depth. Open loop: when they are due, whatever is still in flight, so
 * a stall is felt by all that were due in it.
 */
#include <string.h>

#include "base/check.h"
#include "bench/bench_int.h"

/* A counted slice that takes longer than this has failed. */
#define GEN_COUNT_NS ((uint64_t)600 * 1000000000)

static uint64_t gen_now(const struct bench_gen *gen)
{
    return loop_env_now_ns(loop_env(gen->loop));
}

static bool gen_is_open(const struct bench_gen *gen)
{
    return gen->work->depth == 0;
}

static uint32_t gen_slots(const struct bench_gen *gen)
{
    return gen_is_open(gen) ? gen->slots : gen->work->depth;
}

/* Starts what may begin now. */
static void gen_fill(struct bench_gen *gen)
{
    uint64_t now = gen_now(gen);

    gen->starting = true;
    while (gen->busy < gen_slots(gen) && now < gen->end_ns && gen->left > 0) {
        struct bench_slot *slot;

        if (gen_is_open(gen) && gen->next_due_ns > now)
            break;
        slot = &gen->slot[gen->free[--gen->free_count]];
        slot->due_ns = now;
        if (gen_is_open(gen)) {
            slot->due_ns = gen->next_due_ns;
            gen->next_due_ns += (uint64_t)(1e9 / gen->work->ops_per_s);
        }
        gen->busy++;
        gen->left--;
        gen->start(slot, gen->next++);
        now = gen_now(gen);
    }
    gen->starting = false;
    if (gen_is_open(gen) && now < gen->end_ns)
        loop_timer_start(gen->loop, &gen->timer,
                         gen->next_due_ns < gen->end_ns ? gen->next_due_ns : gen->end_ns);
    if (gen->busy == 0 && (now >= gen->end_ns || gen->left == 0)) {
        gen->slice->wall_ns = now - gen->begin_ns;
        loop_timer_stop(gen->loop, &gen->timer);
        (void)sem_post(&gen->over);
    }
}

void bench_gen_done(struct bench_slot *slot, icms_err err, uint64_t bytes, uint64_t verified)
{
    struct bench_gen *gen = slot->gen;
    uint64_t now = gen_now(gen);

    check(gen->busy > 0);
    bench_slice_add(gen->slice, err, bytes, verified, now - slot->due_ns);
    gen->free[gen->free_count++] = slot->index;
    gen->busy--;
    if (!gen->starting)
        gen_fill(gen);
}

static void gen_due(struct loop_timer *timer)
{
    struct bench_gen *gen = container_of(timer, struct bench_gen, timer);

    gen_fill(gen);
}

static void gen_begin(struct loop_msg *msg)
{
    struct bench_gen *gen = container_of(msg, struct bench_gen, msg);
    gen->begin_ns = gen_now(gen);
    gen->end_ns = gen->begin_ns + gen->length_ns;
    gen->next_due_ns = gen->begin_ns;
    gen_fill(gen);
}

void bench_gen_init(struct bench_gen *gen, struct loop *loop, uint32_t slots,
                    void (*start)(struct bench_slot *slot, uint64_t n), void *owner)
{
    check(slots > 0 && slots <= BENCH_SLOTS_MAX);
    memset(gen, 0, sizeof(*gen));
    gen->loop = loop;
    gen->slots = slots;
    gen->start = start;
    gen->owner = owner;
    for (uint32_t i = 0; i < slots; i++) {
        gen->slot[i] = (struct bench_slot){.gen = gen, .index = i};
        gen->free[gen->free_count++] = slots - 1 - i;
    }
    loop_timer_init(&gen->timer, gen_due);
    check(sem_init(&gen->over, 0, 0) == 0);
}

static void gen_post(struct bench_gen *gen, const struct bench_work *work,
                     struct bench_slice *slice)
{
    check(work->depth <= gen->slots && (work->depth > 0 || work->ops_per_s > 0));
    gen->work = work;
    gen->slice = slice;
    loop_send(gen->loop, &gen->msg, gen_begin);
    while (sem_wait(&gen->over) != 0)
        continue;
}

void bench_gen_run(struct bench_gen *gen, const struct bench_work *work, uint64_t ns,
                   struct bench_slice *slice)
{
    gen->length_ns = ns;
    gen->left = UINT64_MAX;
    gen_post(gen, work, slice);
}

icms_err bench_gen_count(struct bench_gen *gen, const struct bench_work *work, uint64_t count,
                         struct err_why *why)
{
    struct bench_slice slice = {0};

    check(work->depth > 0);
    gen->length_ns = GEN_COUNT_NS;
    gen->left = count;
    gen_post(gen, work, &slice);
    if (slice.errors > 0 || slice.ops < count)
        return err_set(why, ICMS_IO, "%llu of %llu %ss of %u bytes failed",
                       (unsigned long long)(count - slice.ops + slice.errors),
                       (unsigned long long)count, bench_op_name(work->op), work->size_bytes);
    return ICMS_OK;
}
