/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/memory_rig.h: a handle and the fake GPU, for tests of device memory. The agent is fake,
 * behind a socket, or with rig_in_process the one of a dir:.
 */
#ifndef CLIENT_MEMORY_RIG_H
#define CLIENT_MEMORY_RIG_H

#include "client/client_int.h"
#include "client/client_rig.h"
#include "device/fake_device.h"

#define KIB ((uint64_t)1024)
#define MIB (1024 * KIB)

extern const struct fake_device *gpu;
extern bool in_process;

struct fixture {
    struct client_rig rig;
    void *context;
    struct icms *icms; /* of the rig, or its own */
    struct icms_volume *kv, *big;
    char folder[64];
    _Atomic int lines;              /* that were logged */
    _Atomic(struct icms *) watched; /* what is said in a call of it is wrong; NULL: none */
    char line[512];
};

/* Finds the fake driver; in_process as the program's argument "dir" says. 0, or the exit code. */
int memory_rig_begin(int argc, char **argv);

/* Opens everything, with the path of a list of keys; "": without. */
int memory_rig_open(void **state, const char *keys);

/* The same as fixtures of cmocka; the second one looks for leaks in the driver. */
int memory_rig_setup(void **state);
int memory_rig_teardown(void **state);

#define CASE(test) cmocka_unit_test_setup_teardown(test, memory_rig_setup, memory_rig_teardown)

void *pointer(uint64_t address);

/* Registers, and unregisters as soon as that is not BUSY. */
struct icms_memory *reg(struct fixture *f, uint64_t address, uint64_t bytes);
void unreg(struct icms_memory **memory);

/* Device memory that is registered. */
uint64_t memory_new(struct fixture *f, uint64_t bytes, struct icms_memory **out_memory);

/* Its bytes, from a seed. */
void device_fill(uint64_t address, uint64_t bytes, uint64_t seed);
void device_is(uint64_t address, uint64_t bytes, uint64_t seed);

struct icms_block block_of(uint64_t number, uint64_t address, uint64_t bytes);

/* One block; its status. */
icms_err put_one(struct icms_volume *volume, uint64_t number, uint64_t address, uint64_t bytes);
icms_err get_one(struct icms_volume *volume, uint64_t number, uint64_t address, uint64_t bytes);

#endif
