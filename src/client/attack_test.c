/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that changes under libicms: memory of devices that is freed and allocated anew,
 * contexts that are destroyed, requests that are canceled or late, drivers that fail for a moment,
 * children, all at random from a seed. What is OK has the right bytes, nothing ends the process or
 * hangs, and in the end nothing is left in the driver. Over the fake GPU; the agent is fake, behind
 * a socket, or with the argument "dir" in this process.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "client/memory_rig.h"

#define ROUNDS  120
#define THREADS 3
#define SLOTS   6 /* of memory a thread has */
#define PIECES  4
#define BYTES   (64 * KIB)

struct room {
    uint64_t address; /* 0: none */
    struct icms_memory *memory;
};

struct engine {
    struct fixture *f;
    uint64_t number, random;
    void *context; /* its own */
    struct room rooms[SLOTS];
};

/* On threads of ours; what fails is told at once. */
#define must(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                          \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t pick(struct engine *e, uint64_t count)
{
    e->random = hash64_mix(e->random + 1);
    return e->random % count;
}

/* The context goes, with all memory that is in it; what is registered there may still be, and is
 * nobody's any more. */
static void context_lose(struct engine *e)
{
    gpu->context_destroy(e->context);
    for (int i = 0; i < SLOTS; i++) {
        if (e->rooms[i].address != 0)
            gpu->alloc_free(e->rooms[i].address);
        e->rooms[i].address = 0;
        if (e->rooms[i].memory != NULL)
            unreg(&e->rooms[i].memory);
    }
    e->context = gpu->context_new(0);
}

/* Forgets a range. A copy that met memory which was freed has broken its context, and the driver
 * does not say what has ended: the range is BUSY until the engine destroys the context. */
static void room_forget(struct engine *e, struct room *room)
{
    icms_err err = ICMS_BUSY;

    for (int i = 0; i < 100 && err == ICMS_BUSY; i++) {
        err = icms_memory_unregister(&room->memory);
        if (err == ICMS_BUSY)
            usleep(1000);
    }
    if (err == ICMS_BUSY)
        context_lose(e);
    else
        must(err == ICMS_OK);
}

/* Memory for a slot; freed now and then while it is registered, and registered anew. */
static bool room_take(struct engine *e, struct room *room)
{
    char why[512] = "";

    if (room->address == 0) {
        if (room->memory != NULL)
            room_forget(e, room);
        room->address = gpu->alloc(e->context, BYTES);
    }
    if (room->memory == NULL &&
        icms_memory_register(e->f->icms, ICMS_MEMORY_CUDA, pointer(room->address), BYTES, why,
                             sizeof(why), &room->memory) != ICMS_OK) {
        must(why[0] != 0);
        return false;
    }
    return true;
}

/* The value's bytes where they were asked for. */
static void value_is(const struct icms_piece *pieces, uint32_t count, uint64_t bytes, uint64_t seed)
{
    uint8_t *wanted = malloc(bytes), *got = malloc(bytes);
    uint64_t at = 0;

    rig_fill(wanted, bytes, seed);
    for (uint32_t i = 0; i < count; i++, at += pieces[i - 1].bytes)
        gpu->read((uint64_t)(uintptr_t)pieces[i].data, got + at, pieces[i].bytes);
    must(memcmp(got, wanted, bytes) == 0);
    free(wanted);
    free(got);
}

static bool status_is_known(icms_err status)
{
    return status == ICMS_OK || status == ICMS_MISS || status == ICMS_DEVICE ||
           status == ICMS_CANCELED || status == ICMS_DEADLINE || status == ICMS_NOT_REGISTERED ||
           status == ICMS_INVALID;
}

/* One request over some of the engine's memory, and what may happen to that meanwhile. */
static void engine_request(struct engine *e)
{
    struct icms_piece pieces[PIECES];
    struct icms_request *request = NULL;
    struct icms_request_options options;
    uint32_t count = 1 + (uint32_t)pick(e, PIECES), first = (uint32_t)pick(e, SLOTS);
    uint64_t key = e->number * 100 + pick(e, 4), bytes = 0;
    bool store = pick(e, 3) == 0, gone = false;
    struct icms_block block;

    for (uint32_t i = 0; i < count; i++) {
        struct room *room = &e->rooms[(first + i) % SLOTS];

        if (!room_take(e, room))
            return;
        pieces[i] = (struct icms_piece){.data = pointer(room->address + pick(e, 512)),
                                        .bytes = 1 + pick(e, 14000)};
        bytes += pieces[i].bytes;
    }
    for (uint32_t i = 0; i < count; i++)
        if (e->rooms[(first + i) % SLOTS].address == 0)
            return;     /* its context went meanwhile */
    key += bytes << 20; /* another size is another block */
    if (store || pick(e, 2) == 0)
        must(status_is_known(rig_put_one(e->f->kv, key, bytes)));
    if (store) { /* it is put again, with what is there: the same */
        uint8_t *value = malloc(bytes);
        uint64_t at = 0;

        rig_fill(value, bytes, key);
        for (uint32_t i = 0; i < count; at += pieces[i++].bytes)
            gpu->write((uint64_t)(uintptr_t)pieces[i].data, value + at, pieces[i].bytes);
        free(value);
    }
    icms_request_options_init(&options);
    options.deadline_ms = pick(e, 8) == 0 ? 1 : RIG_GRACE_MS;
    options.pieces = count;
    block = (struct icms_block){.key = rig_key(key), .data = pieces, .bytes = bytes};
    if ((store ? icms_put_start(e->f->kv, &block, 1, &options, &request)
               : icms_get_start(e->f->kv, &block, 1, &options, &request)) != ICMS_OK)
        return;
    switch (pick(e, 6)) {
    case 0: /* freed during the transfer */
        gpu->alloc_free(e->rooms[first].address);
        e->rooms[first].address = 0;
        gone = true;
        break;
    case 1: /* freed, and perhaps somebody else's at once */
        gpu->alloc_free(e->rooms[first].address);
        e->rooms[first].address = gpu->alloc(e->context, BYTES);
        gone = true;
        break;
    case 2:
        icms_request_cancel(request);
        break;
    default:
        break;
    }
    (void)icms_request_end(&request);
    must(status_is_known(block.status));
    if (block.status == ICMS_OK && !store && !gone)
        value_is(pieces, count, bytes, key);
    if (gone && e->rooms[first].address != 0) /* it is another allocation now */
        room_forget(e, &e->rooms[first]);
}

static void *engine_run(void *arg)
{
    struct engine *e = arg;

    e->context = gpu->context_new(0);
    for (int round = 0; round < ROUNDS; round++) {
        engine_request(e);
        if (pick(e, 15) == 0)
            context_lose(e);
        if (pick(e, 10) == 0) {
            struct room *room = &e->rooms[pick(e, SLOTS)];

            if (room->memory != NULL)
                room_forget(e, room);
        }
    }
    context_lose(e);
    gpu->context_destroy(e->context);
    return NULL;
}

/* A child that only lives, and asks. */
static void child_runs(struct fixture *f)
{
    struct icms_block block = block_of(1, 4096, 100);
    int status = 0;
    pid_t child = fork();

    if (child == 0)
        _exit(icms_get(f->kv, &block, 1, NULL) == ICMS_FORKED ? 0 : 1);
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void an_engine_that_changes_under_it(void **state)
{
    struct fixture *f = *state;
    struct engine engines[THREADS];
    pthread_t threads[THREADS];
    const char *seed = getenv("ATTACK_SEED");
    uint64_t from = seed == NULL ? 1 : strtoull(seed, NULL, 10);

    for (unsigned i = 0; i < THREADS; i++) {
        engines[i] = (struct engine){.f = f, .number = i, .random = from * 1000 + i};
        assert_int_equal(pthread_create(&threads[i], NULL, engine_run, &engines[i]), 0);
    }
    for (int i = 0; i < 5; i++) {
        child_runs(f);
        usleep(20000);
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(atomic_load(&f->icms->link->device_leases), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(an_engine_that_changes_under_it),
    };

    if (memory_rig_begin(argc, argv) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
