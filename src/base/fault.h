/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/fault.h: named places where a test may make something happen.
 *
 * A place is fault_hit("store.write"). The environment variable ICMS_FAULT arms places, comma
 * separated: NAME:N:ACTION, where N is which visit (1 is the first) and ACTION is one of
 *   kill        SIGKILL to this process        kill=PID   SIGKILL to another
 *   stop        SIGSTOP to this process        stop=PID   SIGSTOP to another
 *   fail        fault_hit returns true, once   fail+      from that visit on
 *   slow=US     from that visit on it takes so many microseconds, where fault_slow_us is asked
 * Unarmed, a visit costs one load and a branch that is never taken. Any thread.
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdbool.h>

#include "base/err.h"

extern bool fault_armed;

/* Reads ICMS_FAULT; one thread at a time. A bad text is an error that says where. */
icms_err fault_init(struct err_why *why) ICMS_MUST_CHECK;

/* The same with the text given; NULL or "" disarms. */
icms_err fault_arm(const char *text, struct err_why *why) ICMS_MUST_CHECK;

bool fault_visit(const char *name, uint32_t *out_slow_us);

/* Visits the place; true when it has to fail. */
static inline bool fault_hit(const char *name)
{
    return __builtin_expect(__atomic_load_n(&fault_armed, __ATOMIC_RELAXED), 0) &&
           fault_visit(name, NULL);
}

/* Visits the place; how many microseconds it has to take longer. */
static inline uint32_t fault_slow_us(const char *name)
{
    uint32_t slow_us = 0;

    if (__builtin_expect(__atomic_load_n(&fault_armed, __ATOMIC_RELAXED), 0))
        (void)fault_visit(name, &slow_us);
    return slow_us;
}

#endif
