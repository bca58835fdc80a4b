/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/fake_int.h: what the files of the fake GPU share. "Lock" is fake_lock.
 */
#ifndef DEVICE_FAKE_INT_H
#define DEVICE_FAKE_INT_H

#include <pthread.h>

#include "device/fake_device.h"

struct context {
    int ordinal;
    bool used, destroyed;
    int error; /* sticks */
    int retained;
};

extern pthread_mutex_t fake_lock; /* all of the fake GPU */

/* Why the driver says nothing in this process; 0: it does. Lock. */
int fake_start_wrong(void);

/* The context of this thread; NULL. */
struct context *fake_here(void);

/* Waits as a driver may that frees: for all that was asked of the device. */
void fake_sync(void);

/* ---- fake_memory.c --------------------------------------------------------------------------- */

/* Whether all of a range is there: in one allocation, or in mappings of one reservation. Lock. */
bool fake_has(uint64_t address, size_t bytes);

/* Where we reach a part of it; *io_bytes: how much of it lies in one allocation. Lock. */
uint8_t *fake_part(uint64_t address, size_t *io_bytes);

/* See struct fake_device. */
uint64_t fake_memory_new(void *context, size_t bytes);
uint64_t fake_memory_pool(void *context, size_t bytes);
uint64_t fake_memory_at(void *context, size_t bytes, uint64_t address);
uint64_t fake_memory_pinned(void *context, size_t bytes);
uint64_t fake_memory_reserve(void *context, size_t bytes);
void fake_memory_map(uint64_t address, size_t bytes);
void fake_memory_free(uint64_t address);
void fake_memory_write(uint64_t address, const void *from, size_t bytes);
bool fake_memory_write_if(uint64_t address, const void *from, size_t bytes);
void fake_memory_read(uint64_t address, void *to, size_t bytes);
void fake_memory_reset(void);

#endif
