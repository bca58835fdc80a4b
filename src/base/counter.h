/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/counter.h: counters that one thread writes and any thread reads.
 *
 * A counter is a uint64_t of which nothing but these functions is used while its writer runs, so a
 * struct of counters can be zeroed, and summed by a field at a time. A reader sees a value that is
 * a moment old; two counters need not fit together.
 */
#ifndef BASE_COUNTER_H
#define BASE_COUNTER_H

#include <stdint.h>

/* By its writer. */
static inline void counter_set(uint64_t *counter, uint64_t value)
{
    __atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

/* By its writer. */
static inline void counter_add(uint64_t *counter, uint64_t n)
{
    counter_set(counter, *counter + n);
}

/* By any thread. */
static inline uint64_t counter_get(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

/* By its writer, and by any thread: who sees this count with acquire sees what the writer counted
 * elsewhere before. */
static inline void counter_add_release(uint64_t *counter, uint64_t n)
{
    __atomic_store_n(counter, *counter + n, __ATOMIC_RELEASE);
}

static inline uint64_t counter_get_acquire(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

#endif
