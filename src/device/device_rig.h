/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/device_rig.h: a copier of one driver over the fake GPU, for tests. DEVICE_TEST_KIND is
 * which driver.
 */
#ifndef DEVICE_DEVICE_RIG_H
#define DEVICE_DEVICE_RIG_H

#include "device/copier.h"
#include "device/fake_device.h"

#define IS_CUDA   (DEVICE_TEST_KIND == DEVICE_CUDA)
#define IS_GAUDI  (DEVICE_TEST_KIND == DEVICE_GAUDI)
#define LIBRARY   (IS_CUDA ? "libcuda.so.1" : IS_GAUDI ? "libSynapse.so.1" : "libamdhip64.so.6")
#define WAIT_MS   20000
#define BYTES     ((size_t)1 << 20)
#define MEBIBYTES 8

extern const struct fake_device *gpu; /* set by main */

struct fixture {
    const struct device_driver *driver;
    void *context;
    struct device_copier *copier;
    _Atomic uint32_t users;
    _Atomic int landed, failed, let_go;
    _Atomic int slack; /* timer slack of the thread that said so, in nanoseconds */
    char line[512];
};

uint64_t now_ms(void);
icms_err copier_open(struct fixture *f, void *context, struct err_why *why);

/* Fixtures of cmocka; the last one looks for leaks. Bare: without a copier. */
int device_setup(void **state);
int device_setup_bare(void **state);
int device_teardown(void **state);

#define CASE(test) cmocka_unit_test_setup_teardown(test, device_setup, device_teardown)
#define BARE(test) cmocka_unit_test_setup_teardown(test, device_setup_bare, device_teardown)

void fill(uint8_t *data, size_t bytes, unsigned seed);
struct device_copy *start(struct fixture *f, enum device_direction direction, uint64_t address,
                          uint64_t bytes, unsigned seed);

/* Starts a copy of BYTES to the device behind the mark; what follows on the stream is behind it. */
struct device_copy *start_in_order(struct fixture *f, uint64_t address, unsigned seed,
                                   struct device_mark *mark, void *stream);
enum device_copy_over wait_over(const struct device_copy *copy);
void wait_users(struct fixture *f, uint32_t users);

/* Runs the program again, in a process and with a driver of its own, which may stay behind: main
 * is given what as its argument, and has to return 0. libraries: where that driver is, as in
 * LD_LIBRARY_PATH; "" is nowhere, NULL where this one is. */
void child_run(const char *what, const char *libraries);

#endif
