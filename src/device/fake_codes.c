/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/fake_codes.c: the names of the fake GPU's errors, as the drivers have them.
 */
#include <stddef.h>

#include "device/fake_device.h"

const char *fake_code_name(int code)
{
    switch (code) {
    case FAKE_OK:
        return "SUCCESS";
    case FAKE_INVALID:
        return "ERROR_INVALID_VALUE";
    case FAKE_NO_MEMORY:
        return "ERROR_OUT_OF_MEMORY";
    case FAKE_NOT_INITIALIZED:
        return "ERROR_NOT_INITIALIZED";
    case FAKE_DEINITIALIZED:
        return "ERROR_DEINITIALIZED";
    case FAKE_NO_DEVICE:
        return "ERROR_NO_DEVICE";
    case FAKE_BAD_CONTEXT:
        return "ERROR_INVALID_CONTEXT";
    case FAKE_BAD_HANDLE:
        return "ERROR_INVALID_HANDLE";
    case FAKE_ILLEGAL:
        return "ERROR_ILLEGAL_ADDRESS";
    case FAKE_ALREADY_PINNED:
        return "ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    case FAKE_NOT_PINNED:
        return "ERROR_HOST_MEMORY_NOT_REGISTERED";
    case FAKE_NOT_SUPPORTED:
        return "ERROR_NOT_SUPPORTED";
    case FAKE_UNCAPTURED:
        return "ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case FAKE_DESTROYED:
        return "ERROR_CONTEXT_IS_DESTROYED";
    default:
        return NULL;
    }
}
