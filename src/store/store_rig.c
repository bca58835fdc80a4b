/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the rig that is the same on both back ends, and the io_uring one.
 */
#include "store/store_rig.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "loop/sim.h"
#include "store/store_int.h"
#include "store/store_verify.h"

#define RIG_DRIVE_BYTES ((uint64_t)4 << 20)
#define RIG_WAIT_MS     60000

/* ---- fixtures ---------------------------------------------------------------------------------
 */

static void rig_opts(struct rig *rig)
{
    store_opts_init(&rig->opts);
    rig->opts.path = rig->path;
    rig->opts.bytes = RIG_DRIVE_BYTES;
    rig->opts.segment_bytes = RIG_SEGMENT_BYTES;
    rig->opts.value_bytes_max = RIG_VALUE_BYTES_MAX;
    rig->opts.writes_max = 16;
}

int rig_uring_setup(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));

    check(rig != NULL);
    (void)snprintf(rig->directory, sizeof(rig->directory), "/var/tmp/icms-store-XXXXXX");
    check(mkdtemp(rig->directory) != NULL);
    (void)snprintf(rig->path, sizeof(rig->path), "%s/drive", rig->directory);
    rig->env = loop_env_uring();
    rig_opts(rig);
    *state = rig;
    return 0;
}

int rig_uring_teardown(void **state)
{
    struct rig *rig = *state;

    rig_down(rig);
    (void)unlink(rig->path);
    (void)rmdir(rig->directory);
    free(rig);
    return 0;
}

void rig_choose(int argc, char **argv)
{
    if (argc <= 1)
        return;
    if (strcmp(argv[1], "uring") == 0) {
        cmocka_set_test_filter("uring: *");
    } else {
        check(strcmp(argv[1], "sim") == 0);
        cmocka_set_skip_filter("uring: *");
    }
}

void rig_sim_init(struct rig *rig, const struct sim_opts *opts)
{
    rig->sim = sim_new(opts);
    rig->node = sim_node_new(rig->sim, "10.1.0.1");
    rig->env = sim_node_env(rig->node);
    (void)snprintf(rig->path, sizeof(rig->path), "/drive");
    rig_opts(rig);
}

int rig_sim_setup(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    struct sim_opts opts;

    check(rig != NULL);
    sim_opts_init(&opts, 1);
    rig_sim_init(rig, &opts);
    *state = rig;
    return 0;
}

int rig_sim_teardown(void **state)
{
    struct rig *rig = *state;

    rig_down(rig);
    sim_free(&rig->sim);
    free(rig);
    return 0;
}

/* ---- up and down ------------------------------------------------------------------------------
 */

struct uuid rig_uuid(uint64_t n)
{
    struct uuid uuid;
    uint64_t half[2] = {hash64_mix(n), hash64_mix(~n)};

    memcpy(uuid.bytes, half, sizeof(uuid.bytes));
    return uuid;
}

/* Lengths vary; all bytes of a key depend on n. */
struct key rig_key(uint64_t n)
{
    struct key key = {.length = (uint8_t)(8 + n % 9)};
    uint64_t half[2] = {hash64_mix(n + 77), n};

    memcpy(key.bytes, &half[1], 8);
    memcpy(key.bytes + 8, &half[0], 8);
    memset(key.bytes + key.length, 0, LIMIT_KEY_BYTES - key.length);
    return key;
}

void rig_format(struct rig *rig)
{
    struct err_why why = {""};
    icms_err err = store_format(rig->env, &rig->opts, false, &why);

    if (err != ICMS_OK)
        print_message("%s\n", why.text);
    assert_int_equal(err, ICMS_OK);
}

void rig_one_volume(struct rig *rig)
{
    rig->volume_count = 1;
    rig->uuid[0] = rig_uuid(1);
}

static void rig_on_down(void *arg)
{
    struct rig *rig = arg;

    atomic_fetch_add(&rig->down_calls, 1);
    atomic_store(&rig->is_down, true);
}

static void rig_on_index(void *arg, uint32_t volume, const struct key *key, bool is_there)
{
    struct rig *rig = arg;

    check(!atomic_load(&rig->is_down));
}

icms_err rig_open(struct rig *rig, struct err_why *why)
{
    icms_err err;

    rig->opts.volumes = rig->uuid;
    rig->opts.volume_count = rig->volume_count;
    rig->opts.ops = (struct store_ops){.down = rig_on_down, .index = rig_on_index};
    atomic_store(&rig->is_down, false);
    rig->opts.owner = rig;
    err = store_open(rig->loop, &rig->opts, why, &rig->store);
    for (uint32_t i = 0; i < rig->volume_count && err == ICMS_OK; i++)
        err = store_volume_limit(rig->store, i, rig->quota_bytes[i], NULL, why);
    return err;
}

void rig_up(struct rig *rig)
{
    struct loop_opts opts;
    struct err_why why = {""};
    icms_err err;

    loop_opts_init(&opts);
    opts.entries_max = 128;
    assert_int_equal(loop_new(rig->env, &opts, &why, &rig->loop), ICMS_OK);
    err = rig_open(rig, &why);
    if (err != ICMS_OK)
        print_message("%s\n", why.text);
    assert_int_equal(err, ICMS_OK);
    assert_int_equal(loop_start(rig->loop, &why), ICMS_OK);
}

void rig_down(struct rig *rig)
{
    if (rig->loop == NULL)
        return;
    loop_stop(rig->loop);
    loop_join(rig->loop);
    loop_free(&rig->loop);
    store_close(&rig->store);
}

void rig_restart(struct rig *rig)
{
    rig_down(rig);
    rig_up(rig);
}

void rig_verify(struct rig *rig)
{
    struct err_why why = {""};

    loop_stop(rig->loop);
    loop_join(rig->loop);
    if (store_verify(rig->store, &why) != 0)
        fail_msg("%s", why.text);
    rig_down(rig);
}

bool rig_until(struct rig *rig, bool (*condition)(void *arg), void *arg)
{
    const struct timespec nap = {.tv_nsec = 20000};
    uint64_t end_ns = loop_env_now_ns(loop_env_uring()) + RIG_WAIT_MS * UINT64_C(1000000);

    while (!condition(arg)) {
        if (loop_env_now_ns(loop_env_uring()) > end_ns)
            return false;
        if (rig->sim != NULL) {
            if (!sim_step(rig->sim))
                return condition(arg);
            continue;
        }
        (void)nanosleep(&nap, NULL);
    }
    return true;
}

/* ---- operations -------------------------------------------------------------------------------
 */

static uint64_t rig_word(uint64_t seed, uint64_t at)
{
    return hash64_mix(seed * 0x9e3779b97f4a7c15u + at);
}

void rig_fill(uint8_t *memory, uint64_t bytes, uint64_t seed)
{
    uint64_t i = 0;

    for (; bytes - i >= 8; i += 8) { /* of a constant length: no call, it is what takes the time */
        uint64_t word = rig_word(seed, i);

        memcpy(memory + i, &word, 8);
    }
    memcpy(memory + i, &(uint64_t){rig_word(seed, i)}, bytes - i);
}

bool rig_check(const uint8_t *memory, uint64_t bytes, uint64_t seed)
{
    uint64_t i = 0;

    for (; bytes - i >= 8; i += 8) {
        uint64_t word = rig_word(seed, i);

        if (memcmp(memory + i, &word, 8) != 0)
            return false;
    }
    return memcmp(memory + i, &(uint64_t){rig_word(seed, i)}, bytes - i) == 0;
}

struct rig_op *rig_op_new(struct rig *rig, enum rig_kind kind, uint64_t bytes)
{
    struct rig_op *op = calloc(1, sizeof(*op));

    check(op != NULL);
    op->kind = kind;
    op->rig = rig;
    op->memory_bytes = store_record_bytes(bytes);
    op->memory = aligned_alloc(STORE_PAGE_BYTES, op->memory_bytes);
    check(op->memory != NULL);
    return op;
}

void rig_op_free(struct rig_op *op)
{
    free(op->memory);
    free(op);
}

static void rig_write_done(struct store_write *write)
{
    struct rig_op *op = container_of(write, struct rig_op, u.write);

    op->err = write->err;
    atomic_store(&op->done, 1);
}

static void rig_read_more(struct store_read *read)
{
    struct rig_op *op = container_of(read, struct rig_op, u.read);

    op->more(op);
}

static void rig_read_done(struct store_read *read)
{
    struct rig_op *op = container_of(read, struct rig_op, u.read);

    op->err = read->err;
    op->reason = read->reason;
    op->value_bytes = read->value_bytes;
    op->record = read->record;
    atomic_store(&op->done, 1);
}

static void rig_delete_done(struct store_delete *delete)
{
    struct rig_op *op = container_of(delete, struct rig_op, u.delete);

    op->err = delete->err;
    atomic_store(&op->done, 1);
}

static void rig_flush_done(struct store_flush *flush)
{
    struct rig_op *op = container_of(flush, struct rig_op, u.flush);

    op->err = flush->err;
    atomic_store(&op->done, 1);
}

static void rig_op_run(struct loop_msg *msg)
{
    struct rig_op *op = container_of(msg, struct rig_op, msg);
    struct rig *rig = op->rig;

    switch (op->kind) {
    case RIG_WRITE:
        if (!op->prefilled)
            rig_fill(op->memory + STORE_HEADER_BYTES, op->value_bytes, op->seed);
        op->u.write = (struct store_write){.volume = op->volume,
                                           .key = op->key,
                                           .memory = op->memory,
                                           .value_bytes = op->value_bytes,
                                           .if_absent = op->if_absent,
                                           .done = rig_write_done};
        op->started = store_write(rig->store, &op->u.write);
        break;
    case RIG_READ:
        op->u.read = (struct store_read){.volume = op->volume,
                                         .key = op->key,
                                         .memory = op->memory,
                                         .memory_bytes = op->memory_bytes,
                                         .more = op->more != NULL ? rig_read_more : NULL,
                                         .done = rig_read_done};
        op->started = store_read(rig->store, &op->u.read);
        break;
    case RIG_DELETE:
        op->u.delete = (struct store_delete){.volume = op->volume,
                                             .key = op->key,
                                             .only_record = op->record,
                                             .done = rig_delete_done};
        op->started = store_delete(rig->store, &op->u.delete);
        break;
    case RIG_FLUSH:
        op->u.flush = (struct store_flush){.done = rig_flush_done};
        op->started = store_flush(rig->store, &op->u.flush);
        break;
    }
    if (op->started != ICMS_OK) {
        op->err = op->started;
        atomic_store(&op->done, 1);
    }
}

void rig_op_start(struct rig_op *op)
{
    atomic_store(&op->done, 0);
    loop_send(op->rig->loop, &op->msg, rig_op_run);
}

static bool rig_op_is_done(void *arg)
{
    struct rig_op *op = arg;

    return atomic_load(&op->done) != 0;
}

void rig_op_wait(struct rig_op *op)
{
    if (!rig_until(op->rig, rig_op_is_done, op))
        fail_msg("operation %d never ended", (int)op->kind);
}

static icms_err rig_op_finish(struct rig_op *op)
{
    icms_err err;

    rig_op_start(op);
    rig_op_wait(op);
    err = op->err;
    rig_op_free(op);
    return err;
}

icms_err rig_put(struct rig *rig, uint32_t volume, uint64_t key, uint32_t bytes, uint64_t seed,
                 bool if_absent)
{
    struct rig_op *op = rig_op_new(rig, RIG_WRITE, bytes);

    op->volume = volume;
    op->key = rig_key(key);
    op->seed = seed;
    op->value_bytes = bytes;
    op->if_absent = if_absent;
    return rig_op_finish(op);
}

icms_err rig_delete(struct rig *rig, uint32_t volume, uint64_t key)
{
    struct rig_op *op = rig_op_new(rig, RIG_DELETE, 1);

    op->volume = volume;
    op->key = rig_key(key);
    return rig_op_finish(op);
}

icms_err rig_flush(struct rig *rig)
{
    return rig_op_finish(rig_op_new(rig, RIG_FLUSH, 1));
}

icms_err rig_get(struct rig *rig, uint32_t volume, uint64_t key, uint32_t bytes, uint64_t seed,
                 enum icms_miss *out_reason)
{
    struct rig_op *op = rig_op_new(rig, RIG_READ, rig->opts.value_bytes_max);
    icms_err err;

    op->volume = volume;
    op->key = rig_key(key);
    rig_op_start(op);
    rig_op_wait(op);
    err = op->err;
    if (out_reason != NULL)
        *out_reason = op->reason;
    if (err == ICMS_OK &&
        (op->value_bytes != bytes || !rig_check(op->u.read.value, op->value_bytes, seed)))
        err = ICMS_CORRUPT;
    rig_op_free(op);
    return err;
}

struct rig_called {
    struct loop_msg msg;
    struct rig *rig;
    void (*call)(struct rig *rig, void *arg);
    void *arg;
    atomic_int ran;
};

static void rig_call_run(struct loop_msg *msg)
{
    struct rig_called *called = container_of(msg, struct rig_called, msg);

    called->call(called->rig, called->arg);
    atomic_store(&called->ran, 1);
}

static bool rig_call_ran(void *arg)
{
    struct rig_called *called = arg;

    return atomic_load(&called->ran) != 0;
}

void rig_call(struct rig *rig, void (*call)(struct rig *rig, void *arg), void *arg)
{
    struct rig_called called = {.rig = rig, .call = call, .arg = arg};

    loop_send(rig->loop, &called.msg, rig_call_run);
    assert_true(rig_until(rig, rig_call_ran, &called));
}

struct rig_question {
    uint32_t volume;
    struct key key;
    bool exists;
};

static void rig_exists_run(struct rig *rig, void *arg)
{
    struct rig_question *question = arg;

    question->exists = store_exists(rig->store, question->volume, &question->key, NULL);
}

bool rig_exists(struct rig *rig, uint32_t volume, uint64_t key)
{
    struct rig_question question = {.volume = volume, .key = rig_key(key)};

    rig_call(rig, rig_exists_run, &question);
    return question.exists;
}

struct rig_sealed {
    struct rig_question question;
    bool sealed;
};

static void rig_sealed_run(struct rig *rig, void *arg)
{
    struct rig_sealed *sealed = arg;
    const struct rig_question *question = &sealed->question;
    struct store_location location;

    check(store_index_find(rig->store->index, question->volume, &question->key, &location));
    sealed->sealed = rig->store->segments[location.segment].state == SEGMENT_SEALED;
}

void rig_wait_sealed(struct rig *rig, uint32_t volume, uint64_t key)
{
    struct rig_sealed sealed = {.question = {.volume = volume, .key = rig_key(key)}};
    uint64_t end_ns = loop_env_now_ns(loop_env_uring()) + RIG_WAIT_MS * UINT64_C(1000000);

    do {
        rig_call(rig, rig_sealed_run, &sealed);
        if (loop_env_now_ns(loop_env_uring()) > end_ns)
            fail_msg("the segment of block %llu was never sealed", (unsigned long long)key);
    } while (!sealed.sealed);
}

struct rig_stats_call {
    uint32_t volume;
    struct store_stats *out_stats;
    struct store_volume_stats *out_volume;
};

static void rig_stats_run(struct rig *rig, void *arg)
{
    struct rig_stats_call *call = arg;

    if (call->out_stats != NULL)
        store_stats(rig->store, call->out_stats);
    else
        store_volume_stats(rig->store, call->volume, call->out_volume);
}

static void rig_stats_take(struct rig *rig, struct rig_stats_call *call)
{
    if (rig->sim != NULL) /* nothing runs meanwhile */
        rig_stats_run(rig, call);
    else
        rig_call(rig, rig_stats_run, call);
}

void rig_stats(struct rig *rig, struct store_stats *out_stats)
{
    struct rig_stats_call call = {.out_stats = out_stats};

    rig_stats_take(rig, &call);
}

void rig_volume_stats(struct rig *rig, uint32_t volume, struct store_volume_stats *out_stats)
{
    struct rig_stats_call call = {.volume = volume, .out_volume = out_stats};

    rig_stats_take(rig, &call);
}

void rig_flip(struct rig *rig, uint64_t offset, uint8_t mask)
{
    uint8_t byte;
    int fd;

    if (rig->sim != NULL) {
        uint64_t bytes;
        uint8_t *medium = sim_file_medium(rig->node, rig->path, &bytes);

        check(medium != NULL && offset < bytes);
        medium[offset] ^= mask;
        return;
    }
    fd = open(rig->path, O_RDWR | O_CLOEXEC);
    check(fd >= 0 && pread(fd, &byte, 1, (off_t)offset) == 1);
    byte ^= mask;
    check(pwrite(fd, &byte, 1, (off_t)offset) == 1);
    check(fdatasync(fd) == 0);
    (void)close(fd);
}

void rig_peek(struct rig *rig, uint64_t offset, void *memory, uint64_t bytes)
{
    uint64_t all;
    int fd;

    if (rig->sim != NULL) {
        memcpy(memory, sim_file_medium(rig->node, rig->path, &all) + offset, bytes);
        return;
    }
    fd = open(rig->path, O_RDONLY | O_CLOEXEC);
    check(fd >= 0 && pread(fd, memory, bytes, (off_t)offset) == (ssize_t)bytes);
    (void)close(fd);
}

void rig_poke(struct rig *rig, uint64_t offset, const void *memory, uint64_t bytes)
{
    uint64_t all;
    int fd;

    if (rig->sim != NULL) {
        memcpy(sim_file_medium(rig->node, rig->path, &all) + offset, memory, bytes);
        return;
    }
    fd = open(rig->path, O_WRONLY | O_CLOEXEC);
    check(fd >= 0 && pwrite(fd, memory, bytes, (off_t)offset) == (ssize_t)bytes);
    check(fdatasync(fd) == 0);
    (void)close(fd);
}
