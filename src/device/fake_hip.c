/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/fake_hip.c: fake_device.c as libamdhip64.so.6: functions with the names and arguments of
 * the driver's. Called by what is tested.
 */
#include <stdlib.h>

#include "device/fake_device.h"

FAKE_API int hipInit(unsigned flags);
FAKE_API int hipRuntimeGetVersion(int *version);
FAKE_API const char *hipGetErrorName(int code);
FAKE_API const char *hipGetErrorString(int code);
FAKE_API int hipPointerGetAttribute(void *out, int attribute, uint64_t address);
FAKE_API int hipGetDevice(int *ordinal);
FAKE_API int hipSetDevice(int ordinal);
FAKE_API int hipHostRegister(void *memory, size_t bytes, unsigned flags);
FAKE_API int hipHostUnregister(void *memory);
FAKE_API int hipMalloc(uint64_t *address, size_t bytes);
FAKE_API int hipFree(uint64_t address);
FAKE_API int hipStreamCreateWithFlags(void **stream, unsigned flags);
FAKE_API int hipStreamDestroy(void *stream);
FAKE_API int hipStreamIsCapturing(void *stream, int *status);
FAKE_API int hipThreadExchangeStreamCaptureMode(int *mode);
FAKE_API int hipEventCreateWithFlags(void **event, unsigned flags);
FAKE_API int hipEventDestroy(void *event);
FAKE_API int hipEventRecord(void *event, void *stream);
FAKE_API int hipEventQuery(void *event);
FAKE_API int hipStreamWaitEvent(void *stream, void *event, unsigned flags);
FAKE_API int hipMemcpyHtoDAsync(uint64_t device, void *host, size_t bytes, void *stream);
FAKE_API int hipMemcpyDtoHAsync(void *host, uint64_t device, size_t bytes, void *stream);

/* A handle is an address to HIP; NULL is the default stream. */
static void *stream_of(void *stream)
{
    if (stream == (void *)1)
        abort();
    return stream;
}

int hipInit(unsigned flags)
{
    return fake_init();
}

int hipRuntimeGetVersion(int *version)
{
    int set = fake_setting(FAKE_DEVICE_VERSION);

    *version = set != 0 ? set : 60200000;
    return FAKE_OK;
}

const char *hipGetErrorName(int code)
{
    return fake_code_name(code);
}

const char *hipGetErrorString(int code)
{
    return "as the fake says";
}

int hipPointerGetAttribute(void *out, int attribute, uint64_t address)
{
    fake_device_table()->add(FAKE_DEVICE_LOOKS, 1);
    return attribute == 1 ? FAKE_INVALID : fake_pointer(out, attribute, address);
}

int hipGetDevice(int *ordinal)
{
    *ordinal = fake_ordinal();
    return FAKE_OK;
}

int hipSetDevice(int ordinal)
{
    const struct fake_device *table = fake_device_table();
    void *before;

    (void)fake_pop(&before);
    return fake_push(table->context(ordinal));
}

int hipHostRegister(void *memory, size_t bytes, unsigned flags)
{
    return fake_pin(memory, bytes, false);
}

int hipHostUnregister(void *memory)
{
    return fake_unpin(memory);
}

int hipStreamCreateWithFlags(void **stream, unsigned flags)
{
    return fake_stream_new(stream);
}

int hipStreamDestroy(void *stream)
{
    return fake_stream_free(stream);
}

int hipStreamIsCapturing(void *stream, int *status)
{
    return fake_stream_captures(stream_of(stream), status);
}

int hipThreadExchangeStreamCaptureMode(int *mode)
{
    return fake_capture_mode(mode);
}

int hipEventCreateWithFlags(void **event, unsigned flags)
{
    return fake_event_new(event);
}

int hipEventDestroy(void *event)
{
    return fake_event_free(event);
}

int hipEventRecord(void *event, void *stream)
{
    return fake_event_record(event, stream_of(stream));
}

int hipEventQuery(void *event)
{
    return fake_event_query(event);
}

int hipStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    return fake_stream_wait(stream_of(stream), event);
}

int hipMemcpyHtoDAsync(uint64_t device, void *host, size_t bytes, void *stream)
{
    return fake_copy(device, host, bytes, stream, true);
}

int hipMemcpyDtoHAsync(void *host, uint64_t device, size_t bytes, void *stream)
{
    return fake_copy(device, host, bytes, stream, false);
}

int hipMalloc(uint64_t *address, size_t bytes)
{
    return fake_alloc(address, bytes);
}

int hipFree(uint64_t address)
{
    fake_free(address);
    return FAKE_OK;
}
