/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Gaudi's driver has apart from the others (gaudi.c), over the fake GPU: addresses that the
 * process may have, too, a device that is acquired and released, statuses with other numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "device/device_rig.h"

static void *pointer_of(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static enum device_copy_over copy_in(struct fixture *f, uint64_t address)
{
    struct device_copy *copy = start(f, DEVICE_IN, address, BYTES, 1);
    enum device_copy_over over = wait_over(copy);

    device_copy_give(copy);
    return over;
}

/* The driver says which addresses the device has, and nothing of allocations. */
static void an_address_is_the_devices_or_not(void **state)
{
    const struct fixture *f = *state;
    const struct device_driver *driver = f->driver;
    const struct device_ops *ops = device_ops(driver);
    uint64_t address = gpu->alloc(f->context, BYTES);
    struct device_pointer pointer, other;

    assert_true(ops->look(driver, address, &pointer));
    assert_true(pointer.on_device && pointer.may_be_host);
    assert_true(pointer.base <= address && address - pointer.base < pointer.bytes);
    assert_int_equal(pointer.id, 0);
    assert_true(ops->look(driver, pointer.base, &other));
    assert_true(ops->look(driver, pointer.base + pointer.bytes - 1, &other));
    assert_false(ops->look(driver, pointer.base - 1, &other));
    assert_false(ops->look(driver, pointer.base + pointer.bytes, &other));
}

/* What the CPU can read is host memory where it is not registered. */
static void an_address_may_be_the_hosts_too(void **state)
{
    const struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    void *memory = pointer_of(address + 16 * BYTES);

    assert_true(device_is_foreign(memory)); /* nothing is there */
    assert_true(mmap(memory, BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == memory);
    assert_false(device_is_foreign(memory));
    assert_true(device_is_foreign(pointer_of(address)));
    (void)munmap(memory, BYTES);
}

/* Who acquired it gives it back: nothing is copied any more, and no memory is registered. */
static void a_device_that_was_released_is_an_error(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    const struct device_driver *again;
    struct err_why why = {{0}};

    assert_int_equal(copy_in(f, address), COPY_DONE);
    gpu->set(FAKE_DEVICE_INIT, FAKE_NO_DEVICE);
    assert_int_equal(copy_in(f, address), COPY_FAILED);
    assert_non_null(strstr(f->line, "Gaudi device 0"));
    assert_int_equal(device_driver_get(DEVICE_GAUDI, &why, &again), ICMS_UNSUPPORTED);
    assert_string_equal(
        why.text, "cannot use Gaudi memory: this process has no Gaudi (SynapseAI status 8: No "
                  "device found); register memory once the engine has acquired the device, "
                  "and look at what hl-smi says");
    gpu->set(FAKE_DEVICE_INIT, 0);
}

static void statuses_are_told_as_they_are(void **state)
{
    static const struct {
        int set, code;
        const char *words;
    } cases[] = {
        {FAKE_NO_MEMORY, 2, "SynapseAI status 4: Out of device memory"},
        {FAKE_NOT_SUPPORTED, DEVICE_NOT_SUPPORTED, "SynapseAI status 18: Unsupported"},
        {FAKE_INVALID, 10001, "SynapseAI status 1: Invalid argument"},
        {FAKE_ILLEGAL, 10026, "SynapseAI status 26: Failure"},
        {FAKE_NOT_READY, 10022, "SynapseAI status 22: Busy"}, /* of what is no event */
    };
    const struct fixture *f = *state;
    const struct device_driver *driver = f->driver;
    const struct device_place place = {0};
    struct device_before before;
    char text[DEVICE_TEXT_BYTES];
    void *stream = NULL;

    assert_int_equal(device_ops(driver)->enter(driver, &place, &before), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        gpu->set(FAKE_DEVICE_STREAM, cases[i].set);
        assert_int_equal(device_ops(driver)->stream_new(driver, &stream), cases[i].code);
        device_ops(driver)->text(driver, cases[i].code, text, sizeof(text));
        assert_string_equal(text, cases[i].words);
    }
    device_ops(driver)->leave(driver, &before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(an_address_is_the_devices_or_not),
        CASE(an_address_may_be_the_hosts_too),
        CASE(a_device_that_was_released_is_an_error),
        CASE(statuses_are_told_as_they_are),
    };

    gpu = fake_device_load("libSynapse.so.1");
    if (gpu == NULL) {
        (void)fprintf(stderr, "no fake libSynapse.so.1 in LD_LIBRARY_PATH\n");
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
