/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/gds_rig.c: see gds_rig.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "client/gds_rig.h"
#include "device/fake_device_rig.h"

const struct fake_device *gpu;
const char *enclosure, *nqn;
int gds_run;
static const char *memory_bytes; /* of the agent beside a pod */

uint64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void on_log(void *arg, const char *line)
{
    struct fixture *f = arg;

    if (strstr(line, "cuFile") == NULL)
        return;
    (void)snprintf(f->line, sizeof(f->line), "%s", line);
    atomic_store(&f->slack, prctl(PR_GET_TIMERSLACK));
    atomic_fetch_add(&f->lines, 1);
}

void fill(uint8_t *data, uint64_t number)
{
    uint32_t x = (uint32_t)number * 2654435761u + 1;

    for (size_t i = 0; i < BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        data[i] = (uint8_t)(x >> 24);
    }
}

struct icms_block block_of(uint64_t number, void *data)
{
    struct icms_block block = {.data = data, .bytes = BYTES};
    char name[24];

    (void)snprintf(name, sizeof(name), "block %d %u", gds_run, (unsigned)number);
    icms_key_from_name(name, strlen(name), &block.key);
    return block;
}

void open_tier(struct fixture *f, const char *keys)
{
    struct icms_options options;
    char why[512] = "";

    icms_options_init(&options);
    options.directory_bytes = 64 * MIB;
    options.value_bytes_max = MIB;
    options.load_deadline_ms = options.store_deadline_ms = WAIT_MS;
    options.log = on_log;
    options.log_arg = f;
    options.keys = keys;
    if (icms_open(f->where, &options, why, sizeof(why), &f->icms) != ICMS_OK ||
        icms_volume_open(f->icms, "kv", why, sizeof(why), &f->volume) != ICMS_OK)
        fail_msg("%s", why);
}

void *device_at(const struct fixture *f, uint64_t number)
{
    return (void *)(uintptr_t)(f->address + number * BYTES);
}

static void pod_write(struct fixture *f)
{
    char path[80];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/pod.yaml", f->folder);
    file = fopen(path, "w");
    assert_non_null(file);
    (void)fprintf(file,
                  "http: {listen: none}\nenclosures: [{name: e, nqn: \"%s\", address: %s}]\n"
                  "local: {path: %s/drive, size: 64MiB, segment: 4MiB}\nmemory: %s\n"
                  "volumes: [{name: kv, value_max: 1MiB}]\n",
                  nqn, enclosure, f->folder, memory_bytes);
    assert_int_equal(fclose(file), 0);
    (void)snprintf(f->where, sizeof(f->where), "pod:%s", path);
}

/* The status of the handle; freed by the caller. */
static char *status(const struct fixture *f)
{
    char *text = malloc(65536);
    size_t bytes, whole;

    assert_int_equal(icms_status(f->icms, NULL, 0, &whole), ICMS_OK);
    assert_int_equal(icms_status(f->icms, text, 65536, &bytes), ICMS_OK);
    assert_int_equal(strlen(text) + 1, bytes);
    assert_true(whole < bytes + 256 && bytes < whole + 256); /* numbers go on */
    return text;
}

void status_has(const struct fixture *f, const char *words)
{
    char *text = status(f);

    if (strstr(text, words) == NULL)
        fail_msg("no %s in %s", words, text);
    free(text);
}

/* A number of it. */
uint64_t status_of(const struct fixture *f, const char *name)
{
    char *text = status(f), wanted[40];
    const char *at;
    uint64_t value = 0;

    (void)snprintf(wanted, sizeof(wanted), "\"%s\":", name);
    at = strstr(text, wanted);
    if (at != NULL)
        value = strtoull(at + strlen(wanted), NULL, 10);
    free(text);
    return value;
}

/* What was put comes to the own drive, too. */
static void bring_to_drive(struct fixture *f)
{
    struct icms_prestage_options options;
    struct icms_key keys[BLOCKS];
    uint64_t begin = now_ms();
    size_t taken = 0;

    icms_prestage_options_init(&options);
    options.tier = ICMS_TIER_LOCAL;
    options.deadline_ms = WAIT_MS;
    for (uint64_t i = 0; i < BLOCKS; i++)
        keys[i] = block_of(i, NULL).key;
    assert_int_equal(icms_prestage(f->volume, keys, BLOCKS, &options, &taken), ICMS_OK);
    assert_int_equal(taken, BLOCKS);
    for (; status_of(f, "prestaged") != BLOCKS; usleep(1000))
        assert_true(now_ms() - begin < WAIT_MS);
}

/* Blocks on the drive, and none in memory. */
static int setup_with(void **state, const char *memory)
{
    struct fixture *f = calloc(1, sizeof(*f));
    uint8_t *data = malloc(BYTES);

    *state = f;
    memory_bytes = memory;
    gds_run++;
    gpu->reset();
    (void)snprintf(f->folder, sizeof(f->folder), "%s", "icms-gds-XXXXXX");
    assert_non_null(mkdtemp(f->folder)); /* where it runs: O_DIRECT is not everywhere */
    (void)snprintf(f->where, sizeof(f->where), "dir:%s/kv", f->folder);
    if (enclosure != NULL)
        pod_write(f);
    open_tier(f, NULL);
    for (uint64_t i = 0; i < BLOCKS; i++) {
        struct icms_block block = block_of(i, data);

        fill(data, i);
        assert_int_equal(icms_put(f->volume, &block, 1, NULL), ICMS_OK);
    }
    free(data);
    assert_int_equal(icms_flush(f->volume, NULL), ICMS_OK);
    if (enclosure != NULL)
        bring_to_drive(f);
    icms_close(&f->icms);
    open_tier(f, NULL);
    f->context = gpu->context(0);
    return 0;
}

int gds_setup(void **state)
{
    return setup_with(state, "32MiB");
}

/* A block is large in such memory: it is read past that each time. */
int gds_setup_small(void **state)
{
    return setup_with(state, "1100KiB");
}

void register_memory(struct fixture *f)
{
    char why[512] = "";

    f->address = gpu->alloc(f->context, (size_t)BLOCKS * BYTES);
    if (icms_memory_register(f->icms, ICMS_MEMORY_CUDA, device_at(f, 0), (uint64_t)BLOCKS * BYTES,
                             why, sizeof(why), &f->memory) != ICMS_OK)
        fail_msg("%s", why);
}

void folder_remove(const struct fixture *f)
{
    static const char *const names[] = {
        "/kv/icms.lock", "/kv/volumes", "/kv/icms.store", "/kv", "/pod.yaml", "/drive", ""};
    char path[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", f->folder, names[i]);
        (void)remove(path);
    }
}

int gds_teardown(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < FAKE_DEVICE_SETS; i++)
        gpu->set(i, 0);
    icms_close(&f->icms);
    folder_remove(f);
    gpu->reset();
    fake_device_leaks_none(gpu);
    assert_int_equal(gpu->count(FAKE_DEVICE_FILES), 0);
    assert_int_equal(gpu->count(FAKE_DEVICE_FILE_MEMORIES), 0);
    free(f);
    return 0;
}

void device_is_value(const struct fixture *f, uint64_t number, uint64_t value)
{
    uint8_t *data = malloc(BYTES), *wanted = malloc(BYTES);

    gpu->read(f->address + number * BYTES, data, BYTES);
    fill(wanted, value);
    assert_memory_equal(data, wanted, BYTES);
    free(data);
    free(wanted);
}

void device_is(const struct fixture *f, uint64_t number, bool filled)
{
    uint8_t *data, *none;

    if (filled) {
        device_is_value(f, number, number);
        return;
    }
    data = malloc(BYTES);
    none = calloc(1, BYTES);
    gpu->read(f->address + number * BYTES, data, BYTES);
    assert_memory_equal(data, none, BYTES);
    free(data);
    free(none);
}

/* A block that was not asked for yet, into the GPU. */
icms_err get_next(struct fixture *f, uint32_t deadline_ms, enum icms_miss *out_reason)
{
    uint64_t number = f->next++;
    struct icms_block block = block_of(number, device_at(f, number));
    struct icms_request_options options;

    assert_true(number < BLOCKS);
    icms_request_options_init(&options);
    options.deadline_ms = deadline_ms;
    (void)!icms_get(f->volume, &block, 1, &options);
    if (out_reason != NULL)
        *out_reason = block.reason;
    if (block.status == ICMS_OK) {
        assert_int_equal(block.bytes, BYTES);
        f->source = block.source;
    }
    device_is(f, number, block.status == ICMS_OK);
    return block.status;
}

void wait_count(int what, int count)
{
    uint64_t begin = now_ms();

    for (; gpu->count(what) < count; usleep(1000))
        assert_true(now_ms() - begin < WAIT_MS);
}

/* The first read decides how the drive is read. */
void choose(struct fixture *f, const char *words)
{
    uint64_t begin = now_ms();

    register_memory(f);
    assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
    for (; atomic_load(&f->lines) == 0; usleep(1000))
        assert_true(now_ms() - begin < WAIT_MS);
    if (strstr(f->line, words) == NULL)
        fail_msg("%s", f->line);
    assert_int_equal(atomic_load(&f->slack), 1); /* it measures */
    gpu->set(FAKE_DEVICE_IN_DELAY_US, 0);
}

void choose_device(struct fixture *f)
{
    gpu->set(FAKE_DEVICE_IN_DELAY_US, SLOW_US);
    choose(f, "CUDA device 0: cuFile (GDS) reads the drive: of ");
}

/* Blocks from the next one on, read past the host. */
void reads_pass_the_host(struct fixture *f, int count)
{
    int reads = gpu->count(FAKE_DEVICE_FILE_READS), between = gpu->count(FAKE_DEVICE_BETWEEN);

    for (int i = 0; i < count; i++) {
        assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
        assert_int_equal(f->source, ICMS_SOURCE_LOCAL);
    }
    assert_int_equal(gpu->count(FAKE_DEVICE_FILE_READS), reads + count);
    assert_int_equal(gpu->count(FAKE_DEVICE_BETWEEN), between + count);
}

void reads_take_the_host(struct fixture *f, int count)
{
    int reads = gpu->count(FAKE_DEVICE_FILE_ASKED);

    for (int i = 0; i < count; i++) {
        assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
        assert_int_equal(f->source, ICMS_SOURCE_LOCAL);
    }
    assert_int_equal(gpu->count(FAKE_DEVICE_FILE_ASKED), reads);
}
