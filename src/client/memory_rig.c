/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/memory_rig.c: see memory_rig.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "client/memory_rig.h"
#include "device/fake_device_rig.h"

const struct fake_device *gpu;
bool in_process;

static void on_log(void *arg, const char *line)
{
    struct fixture *f = arg;
    struct icms *icms = atomic_load(&f->watched);

    if (icms != NULL) {
        client_lock(icms);
        check(icms->calls == 0 && check_catch_get() == NULL);
        client_unlock(icms);
    }
    if (strncmp(line, "unix:", 5) == 0)
        return; /* its agent is gone, or there is another one */
    (void)snprintf(f->line, sizeof(f->line), "%s", line);
    f->lines++;
}

static int open_dir(struct fixture *f, struct icms_options *options)
{
    char where[96], why[256] = "";

    fake_reset();
    (void)snprintf(f->folder, sizeof(f->folder), "/tmp/icms-memory-XXXXXX");
    if (mkdtemp(f->folder) == NULL)
        return -1;
    (void)snprintf(where, sizeof(where), "dir:%s/kv", f->folder);
    if (icms_open(where, options, why, sizeof(why), &f->icms) == ICMS_OK &&
        icms_volume_open(f->icms, "kv", why, sizeof(why), &f->kv) == ICMS_OK) {
        f->big = f->kv;
        return 0;
    }
    (void)fprintf(stderr, "%s\n", why);
    return -1;
}

int memory_rig_open(void **state, const char *keys)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct icms_options options;

    *state = f;
    gpu->reset();
    f->context = gpu->context(0);
    icms_options_init(&options);
    options.load_deadline_ms = options.store_deadline_ms = RIG_GRACE_MS;
    options.buffer_bytes = 16 * MIB;
    options.keys = keys;
    options.log = on_log;
    options.log_arg = f;
    if (in_process)
        return open_dir(f, &options);
    if (client_rig_open(&f->rig, &options) != 0)
        return -1;
    f->icms = f->rig.icms;
    f->kv = f->rig.kv;
    f->big = f->rig.big;
    return 0;
}

int memory_rig_setup(void **state)
{
    return memory_rig_open(state, "");
}

int memory_rig_teardown(void **state)
{
    static const char *const names[] = {"/kv/icms.lock", "/kv/volumes", "/kv/icms.store", "/kv",
                                        ""};
    struct fixture *f = *state;
    char path[128];

    gpu->set(FAKE_DEVICE_STUCK, 0);
    gpu->set(FAKE_DEVICE_HANG, 0);
    gpu->set(FAKE_DEVICE_PIN_HANG, 0);
    if (in_process) {
        icms_close(&f->icms);
        for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
            (void)snprintf(path, sizeof(path), "%s%s", f->folder, names[i]);
            (void)remove(path);
        }
    } else {
        client_rig_close(&f->rig);
    }
    gpu->reset();
    fake_device_leaks_none(gpu);
    free(f);
    return 0;
}

void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

struct icms_memory *reg(struct fixture *f, uint64_t address, uint64_t bytes)
{
    struct icms_memory *memory = NULL;
    char why[512] = "";

    if (icms_memory_register(f->icms, ICMS_MEMORY_CUDA, pointer(address), bytes, why, sizeof(why),
                             &memory) != ICMS_OK)
        fail_msg("%s", why);
    return memory;
}

void unreg(struct icms_memory **memory)
{
    uint64_t begin = client_now_ns();
    icms_err err;

    while ((err = icms_memory_unregister(memory)) == ICMS_BUSY) {
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
        usleep(1000);
    }
    assert_int_equal(err, ICMS_OK);
    assert_null(*memory);
}

uint64_t memory_new(struct fixture *f, uint64_t bytes, struct icms_memory **out_memory)
{
    uint64_t address = gpu->alloc(f->context, bytes);

    *out_memory = reg(f, address, bytes);
    return address;
}

void device_fill(uint64_t address, uint64_t bytes, uint64_t seed)
{
    uint8_t *data = malloc(bytes);

    rig_fill(data, bytes, seed);
    gpu->write(address, data, bytes);
    free(data);
}

void device_is(uint64_t address, uint64_t bytes, uint64_t seed)
{
    uint8_t *data = malloc(bytes), *wanted = malloc(bytes);

    rig_fill(wanted, bytes, seed);
    gpu->read(address, data, bytes);
    assert_memory_equal(data, wanted, bytes);
    free(data);
    free(wanted);
}

struct icms_block block_of(uint64_t number, uint64_t address, uint64_t bytes)
{
    return (struct icms_block){.key = rig_key(number), .data = pointer(address), .bytes = bytes};
}

icms_err put_one(struct icms_volume *volume, uint64_t number, uint64_t address, uint64_t bytes)
{
    struct icms_block block = block_of(number, address, bytes);

    (void)!icms_put(volume, &block, 1, NULL);
    return block.status;
}

icms_err get_one(struct icms_volume *volume, uint64_t number, uint64_t address, uint64_t bytes)
{
    struct icms_block block = block_of(number, address, bytes);

    (void)!icms_get(volume, &block, 1, NULL);
    return block.status;
}

int memory_rig_begin(int argc, char **argv)
{
    in_process = argc == 2 && strcmp(argv[1], "dir") == 0;
    gpu = fake_device_load("libcuda.so.1");
    if (gpu != NULL)
        return 0;
    (void)fprintf(stderr, "no fake libcuda.so.1 in LD_LIBRARY_PATH\n");
    return 1;
}
