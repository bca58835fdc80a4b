/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/fake_area.c: where the fake GPU's memory lies, for drivers whose devices have a range of
 * addresses. No address is given twice.
 */
#include <stdatomic.h>

#include "device/fake_device.h"

#define PAGE 65536u

static _Atomic uint64_t next; /* 0: wherever the kernel likes */

void fake_area(uint64_t base)
{
    atomic_store(&next, base);
}

uint64_t fake_area_take(uint64_t bytes)
{
    if (atomic_load(&next) == 0)
        return 0;
    return atomic_fetch_add(&next, (bytes + PAGE - 1) / PAGE * PAGE + PAGE);
}
