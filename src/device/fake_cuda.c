/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/fake_cuda.c: fake_device.c as libcuda.so.1: functions with the names and arguments of the
 * driver's. Called by what is tested.
 */
#include "device/fake_device.h"

FAKE_API int cuInit(unsigned flags);
FAKE_API int cuDriverGetVersion(int *version);
FAKE_API int cuGetErrorName(int code, const char **name);
FAKE_API int cuGetErrorString(int code, const char **text);
FAKE_API int cuPointerGetAttribute(void *out, int attribute, uint64_t address);
FAKE_API int cuPointerGetAttributes(unsigned count, int *attributes, void **out, uint64_t address);
FAKE_API int cuDeviceGet(int *device, int ordinal);
FAKE_API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
FAKE_API int cuDevicePrimaryCtxRetain(void **context, int device);
FAKE_API int cuDevicePrimaryCtxRelease_v2(int device);
FAKE_API int cuCtxPushCurrent_v2(void *context);
FAKE_API int cuCtxPopCurrent_v2(void **context);
FAKE_API int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags);
FAKE_API int cuMemHostUnregister(void *memory);
FAKE_API int cuMemAlloc_v2(uint64_t *address, size_t bytes);
FAKE_API int cuMemFree_v2(uint64_t address);
FAKE_API int cuStreamCreate(void **stream, unsigned flags);
FAKE_API int cuStreamDestroy_v2(void *stream);
FAKE_API int cuStreamIsCapturing(void *stream, int *status);
FAKE_API int cuThreadExchangeStreamCaptureMode(int *mode);
FAKE_API int cuEventCreate(void **event, unsigned flags);
FAKE_API int cuEventDestroy_v2(void *event);
FAKE_API int cuEventRecord(void *event, void *stream);
FAKE_API int cuEventQuery(void *event);
FAKE_API int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
FAKE_API int cuMemcpyHtoDAsync_v2(uint64_t device, const void *host, size_t bytes, void *stream);
FAKE_API int cuMemcpyDtoHAsync_v2(void *host, uint64_t device, size_t bytes, void *stream);
FAKE_API int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream);

int cuInit(unsigned flags)
{
    return fake_init();
}

int cuDriverGetVersion(int *version)
{
    int set = fake_setting(FAKE_DEVICE_VERSION);

    *version = set != 0 ? set : 12040;
    return FAKE_OK;
}

int cuGetErrorName(int code, const char **name)
{
    *name = fake_code_name(code);
    return *name == NULL ? FAKE_INVALID : FAKE_OK;
}

int cuGetErrorString(int code, const char **text)
{
    *text = "as the fake says";
    return FAKE_OK;
}

int cuPointerGetAttribute(void *out, int attribute, uint64_t address)
{
    fake_device_table()->add(FAKE_DEVICE_LOOKS, 1);
    return fake_pointer(out, attribute, address);
}

int cuPointerGetAttributes(unsigned count, int *attributes, void **out, uint64_t address)
{
    fake_device_table()->add(FAKE_DEVICE_LOOKS, 1);
    return fake_pointers(count, attributes, out, address);
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal < 0 ? FAKE_NO_DEVICE : FAKE_OK;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    *flags = 0;
    return fake_is_active(device, active);
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    return fake_retain(context, device);
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    return fake_release(device);
}

int cuCtxPushCurrent_v2(void *context)
{
    return fake_push(context);
}

int cuCtxPopCurrent_v2(void **context)
{
    return fake_pop(context);
}

int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    return fake_pin(memory, bytes, (flags & 8) != 0);
}

int cuMemHostUnregister(void *memory)
{
    return fake_unpin(memory);
}

int cuStreamCreate(void **stream, unsigned flags)
{
    return fake_stream_new(stream);
}

int cuStreamDestroy_v2(void *stream)
{
    return fake_stream_free(stream);
}

int cuStreamIsCapturing(void *stream, int *status)
{
    return fake_stream_captures(stream, status);
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    return fake_capture_mode(mode);
}

int cuEventCreate(void **event, unsigned flags)
{
    return fake_event_new(event);
}

int cuEventDestroy_v2(void *event)
{
    return fake_event_free(event);
}

int cuEventRecord(void *event, void *stream)
{
    return fake_event_record(event, stream);
}

int cuEventQuery(void *event)
{
    return fake_event_query(event);
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    return fake_stream_wait(stream, event);
}

int cuMemcpyHtoDAsync_v2(uint64_t device, const void *host, size_t bytes, void *stream)
{
    return fake_copy(device, (void *)(uintptr_t)host, bytes, stream, true);
}

int cuMemcpyDtoHAsync_v2(void *host, uint64_t device, size_t bytes, void *stream)
{
    return fake_copy(device, host, bytes, stream, false);
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    return fake_copy_between(to, from, bytes, stream);
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    return fake_alloc(address, bytes);
}

int cuMemFree_v2(uint64_t address)
{
    fake_free(address);
    return FAKE_OK;
}
