/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory and wall clocks of the simulated machines: what programs ask the C library for, which the
 * linker wraps. A program of a machine without memory gets none, and one that reads a wall clock
 * reads that of its machine.
 *
 * What the simulation and these tests allocate is not meant: sim_memory_fails says so. What the C
 * library allocates itself, and what other libraries do, is not seen.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#include "pod.h"

#define NS_PER_S ((uint64_t)1000 * MS)

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __real_clock_gettime(clockid_t clock, struct timespec *out_now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out_now);
time_t __real_time(time_t *out_now);
time_t __wrap_time(time_t *out_now);
int __real_gettimeofday(struct timeval *out_now, void *zone);
int __wrap_gettimeofday(struct timeval *out_now, void *zone);

/* ---- memory --------------------------------------------------------------------------------- */

static bool memory_fails(void)
{
    bool fails = sim_memory_fails();

    if (fails)
        errno = ENOMEM;
    return fails;
}

void *__wrap_malloc(size_t bytes)
{
    return memory_fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return memory_fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return memory_fails() ? NULL : __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return memory_fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

/* ---- clocks --------------------------------------------------------------------------------- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out_now)
{
    uint64_t wall_ns;

    if ((clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) || !sim_wall_ns(&wall_ns))
        return __real_clock_gettime(clock, out_now);
    out_now->tv_sec = (time_t)(wall_ns / NS_PER_S);
    out_now->tv_nsec = (long)(wall_ns % NS_PER_S);
    return 0;
}

time_t __wrap_time(time_t *out_now)
{
    uint64_t wall_ns;
    time_t now;

    if (!sim_wall_ns(&wall_ns))
        return __real_time(out_now);
    now = (time_t)(wall_ns / NS_PER_S);
    if (out_now != NULL)
        *out_now = now;
    return now;
}

int __wrap_gettimeofday(struct timeval *out_now, void *zone)
{
    uint64_t wall_ns;

    if (!sim_wall_ns(&wall_ns))
        return __real_gettimeofday(out_now, zone);
    out_now->tv_sec = (time_t)(wall_ns / NS_PER_S);
    out_now->tv_usec = (suseconds_t)(wall_ns % NS_PER_S / US);
    return 0;
}
