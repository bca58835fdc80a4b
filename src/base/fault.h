/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/fault.h: named places where a test may make something happen.
 *
 * A place is fault_hit("store.write"). Tests arm places with base/fault_arm.h. Unarmed, a visit
 * costs one load and a branch that is never taken. Any thread.
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True when the place has to fail; sets *out_slow_us, unless it is NULL, when it has to be slow. */
typedef bool fault_visitor_fn(const char *name, uint32_t *out_slow_us);

/* NULL unless a test armed something. Atomic. */
extern fault_visitor_fn *fault_visitor;

static inline fault_visitor_fn *fault_visitor_get(void)
{
    return __atomic_load_n(&fault_visitor, __ATOMIC_RELAXED);
}

/* Visits the place; true when it has to fail. */
static inline bool fault_hit(const char *name)
{
    fault_visitor_fn *visit = fault_visitor_get();

    return __builtin_expect(visit != NULL, 0) && visit(name, NULL);
}

/* Visits the place; how many microseconds it has to take longer. */
static inline uint32_t fault_slow_us(const char *name)
{
    fault_visitor_fn *visit = fault_visitor_get();
    uint32_t slow_us = 0;

    if (__builtin_expect(visit != NULL, 0))
        (void)visit(name, &slow_us);
    return slow_us;
}

#endif
