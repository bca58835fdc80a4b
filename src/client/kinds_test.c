/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each kind of device memory through the library, with the agent of a dir: inside: blocks go from a
 * device and into one, and the state says which it is. client-memory has the rest, for CUDA.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <icms/icms.h>

#include "device/fake_device.h"

#define BYTES  200000
#define BLOCKS 16

struct kind {
    enum icms_memory_kind kind;
    const char *library, *device, *drive;
};

static const struct kind kinds[] = {
    {ICMS_MEMORY_CUDA, "libcuda.so.1", "CUDA 0", "undecided\",\"why\":\"\""},
    {ICMS_MEMORY_HIP, "libamdhip64.so.6", "HIP 0",
     "host\",\"why\":\"HIP has no reads past the host\""},
    {ICMS_MEMORY_GAUDI, "libSynapse.so.1", "Gaudi 0",
     "host\",\"why\":\"Gaudi has no reads past the host\""},
};

static void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static void fill(uint8_t *data, unsigned seed)
{
    for (size_t i = 0; i < (size_t)BLOCKS * BYTES; i++)
        data[i] = (uint8_t)(i * 7 + i / 251 + seed);
}

static void blocks_of(struct icms_block *blocks, uint64_t address, unsigned seed)
{
    for (int i = 0; i < BLOCKS; i++) {
        char name[24];

        blocks[i] =
            (struct icms_block){.data = pointer(address + (uint64_t)i * BYTES), .bytes = BYTES};
        (void)snprintf(name, sizeof(name), "%u block %d", seed, i);
        icms_key_from_name(name, strlen(name), &blocks[i].key);
    }
}

static void kind_works(struct icms *icms, struct icms_volume *volume, const struct kind *kind)
{
    const struct fake_device *gpu = fake_device_load(kind->library);
    uint8_t *data = malloc((size_t)BLOCKS * BYTES), *got = malloc((size_t)BLOCKS * BYTES);
    struct icms_block blocks[BLOCKS];
    struct icms_memory *memory = NULL;
    char why[512] = "", text[65536], wanted[128];
    uint64_t address;
    size_t bytes;

    assert_non_null(gpu);
    address = gpu->alloc(gpu->context(0), (size_t)2 * BLOCKS * BYTES);
    if (icms_memory_register(icms, kind->kind, pointer(address), (uint64_t)2 * BLOCKS * BYTES, why,
                             sizeof(why), &memory) != ICMS_OK)
        fail_msg("%s", why);
    (void)snprintf(wanted, sizeof(wanted), "\"device\":\"%s\",\"drive_reads\":\"%s", kind->device,
                   kind->drive);
    assert_int_equal(icms_status(icms, text, sizeof(text), &bytes), ICMS_OK);
    if (strstr(text, wanted) == NULL)
        fail_msg("no %s in %s", wanted, text);
    fill(data, kind->kind);
    gpu->write(address, data, (size_t)BLOCKS * BYTES);
    blocks_of(blocks, address, kind->kind);
    assert_int_equal(icms_put(volume, blocks, BLOCKS, NULL), ICMS_OK);
    blocks_of(blocks, address + (uint64_t)BLOCKS * BYTES, kind->kind);
    assert_int_equal(icms_get(volume, blocks, BLOCKS, NULL), ICMS_OK);
    gpu->read(address + (uint64_t)BLOCKS * BYTES, got, (size_t)BLOCKS * BYTES);
    assert_memory_equal(got, data, (size_t)BLOCKS * BYTES);
    while (icms_memory_unregister(&memory) == ICMS_BUSY)
        (void)usleep(1000);
    assert_int_equal(gpu->count(FAKE_DEVICE_STREAMS), 0);
    assert_int_equal(gpu->count(FAKE_DEVICE_EVENTS), 0);
    assert_int_equal(gpu->count(FAKE_DEVICE_PINS), 0);
    assert_int_equal(gpu->count(FAKE_DEVICE_UNPINNED), 0);
    /* memory of the host is none of it */
    assert_int_equal(icms_memory_register(icms, kind->kind, data, BYTES, why, sizeof(why), &memory),
                     ICMS_INVALID);
    assert_non_null(strstr(why, " memory"));
    gpu->alloc_free(address);
    free(data);
    free(got);
}

static void blocks_go_from_each_kind_of_device_and_back(void **state)
{
    static const char *const names[] = {"/kv/icms.lock", "/kv/volumes", "/kv/icms.store", "/kv",
                                        ""};
    char folder[] = "/tmp/icms-kinds-XXXXXX", where[64], why[512] = "";
    struct icms_memory *memory = NULL;
    struct icms_volume *volume = NULL;
    struct icms *icms = NULL;
    struct icms_options options;

    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(where, sizeof(where), "dir:%s/kv", folder);
    icms_options_init(&options);
    options.load_deadline_ms = options.store_deadline_ms = 20000;
    if (icms_open(where, &options, why, sizeof(why), &icms) != ICMS_OK ||
        icms_volume_open(icms, "kv", why, sizeof(why), &volume) != ICMS_OK)
        fail_msg("%s", why);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        kind_works(icms, volume, &kinds[i]);
    for (int kind = -1; kind <= 4; kind += 5) { /* there are 0 to 3 */
        assert_int_equal(icms_memory_register(icms, (enum icms_memory_kind)kind, pointer(4096), 1,
                                              why, sizeof(why), &memory),
                         ICMS_INVALID);
        assert_non_null(strstr(why, "no such kind of memory"));
    }
    icms_close(&icms);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        (void)snprintf(where, sizeof(where), "%s%s", folder, names[i]);
        (void)remove(where);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_go_from_each_kind_of_device_and_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
