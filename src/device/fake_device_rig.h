/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/fake_device_rig.h: what tests over the fake GPU assert at their end. Behind cmocka.h.
 */
#ifndef DEVICE_FAKE_DEVICE_RIG_H
#define DEVICE_FAKE_DEVICE_RIG_H

#include "device/fake_device.h"

/* After reset(): the driver has nothing left of what was tested. */
static inline void fake_device_leaks_none(const struct fake_device *driver)
{
    assert_int_equal(driver->count(FAKE_DEVICE_STREAMS), 0);
    assert_int_equal(driver->count(FAKE_DEVICE_EVENTS), 0);
    assert_int_equal(driver->count(FAKE_DEVICE_PINS), 0);
    assert_int_equal(driver->count(FAKE_DEVICE_RETAINED), 0);
    assert_int_equal(driver->count(FAKE_DEVICE_UNPINNED), 0);
}

#endif
