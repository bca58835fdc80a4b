/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/hip.c: the table of device/driver.h over HIP, of ROCm 6.0 and later.
 *
 * Names and numbers are those of HIP's documented interface. A device has one context, which is
 * named by the device's number. Tested with a fake library only.
 */
#include <stdio.h>
#include <string.h>

#include "device/device_int.h"

/* ROCm 6.0 gave the kinds of memory other numbers. */
#define HIP_VERSION_MIN 60000000

/* hipPointer_attribute, hipMemoryType. */
#define HIP_POINTER_MEMORY_TYPE 2
#define HIP_POINTER_BUFFER_ID   7
#define HIP_POINTER_IS_MANAGED  8
#define HIP_POINTER_ORDINAL     9
#define HIP_POINTER_RANGE_START 11
#define HIP_POINTER_RANGE_SIZE  12
#define HIP_MEMORY_DEVICE       2

#define HIP_STREAM_LEGACY        ((void *)1)
#define HIP_STREAM_NON_BLOCKING  1
#define HIP_EVENT_DISABLE_TIMING 2
#define HIP_HOST_PORTABLE        1

#define HIP_SYMBOL(member, symbol)                                                                 \
    {                                                                                              \
        symbol, offsetof(struct device_driver, hip.member)                                         \
    }

static const struct device_symbol hip_symbols[] = {
    HIP_SYMBOL(init, "hipInit"),
    HIP_SYMBOL(version, "hipRuntimeGetVersion"),
    HIP_SYMBOL(error_name, "hipGetErrorName"),
    HIP_SYMBOL(error_string, "hipGetErrorString"),
    HIP_SYMBOL(pointer, "hipPointerGetAttribute"),
    HIP_SYMBOL(device_get, "hipGetDevice"),
    HIP_SYMBOL(device_set, "hipSetDevice"),
    HIP_SYMBOL(pin, "hipHostRegister"),
    HIP_SYMBOL(unpin, "hipHostUnregister"),
    HIP_SYMBOL(memory_new, "hipMalloc"),
    HIP_SYMBOL(memory_free, "hipFree"),
    HIP_SYMBOL(stream_new, "hipStreamCreateWithFlags"),
    HIP_SYMBOL(stream_free, "hipStreamDestroy"),
    HIP_SYMBOL(stream_captures, "hipStreamIsCapturing"),
    HIP_SYMBOL(capture_mode, "hipThreadExchangeStreamCaptureMode"),
    HIP_SYMBOL(event_new, "hipEventCreateWithFlags"),
    HIP_SYMBOL(event_free, "hipEventDestroy"),
    HIP_SYMBOL(event_record, "hipEventRecord"),
    HIP_SYMBOL(event_query, "hipEventQuery"),
    HIP_SYMBOL(stream_wait, "hipStreamWaitEvent"),
    HIP_SYMBOL(copy_in, "hipMemcpyHtoDAsync"),
    HIP_SYMBOL(copy_out, "hipMemcpyDtoHAsync"),
};

static const char *hip_bind(struct device_driver *driver)
{
    return device_bind(driver, hip_symbols, sizeof(hip_symbols) / sizeof(hip_symbols[0]));
}

static void hip_text(const struct device_driver *driver, int code, char *out, size_t bytes)
{
    const char *name = driver->hip.error_name(code), *text = driver->hip.error_string(code);

    (void)snprintf(out, bytes, "%s: %s", name == NULL ? "HIP error" : name,
                   text == NULL ? "" : text);
}

static icms_err hip_start(const struct device_driver *driver, struct err_why *why)
{
    int code = driver->hip.init(0), version = 0;
    char text[DEVICE_TEXT_BYTES];

    if (code != 0) {
        hip_text(driver, code, text, sizeof(text));
        return err_set(why, ICMS_UNSUPPORTED, "cannot use HIP memory: hipInit failed (%s); %s",
                       text,
                       code == DEVICE_NOT_INITIALIZED
                           ? "this process was forked from one that uses HIP: start it with exec "
                             "(spawn)"
                           : "look at what rocminfo says");
    }
    code = driver->hip.version(&version);
    if (code != 0 || version < HIP_VERSION_MIN)
        return err_set(why, ICMS_UNSUPPORTED,
                       "cannot use HIP memory: HIP %d.%d is too old; install ROCm 6.0 or later",
                       version / 10000000, version / 100000 % 100);
    return ICMS_OK;
}

/* False: the driver does not know the address, or not this about it. */
static bool hip_ask(const struct device_driver *driver, int attribute, uint64_t address, void *out)
{
    return driver->hip.pointer(out, attribute, address) == 0;
}

static bool hip_identify(const struct device_driver *driver, uint64_t address,
                         struct device_pointer *out_pointer)
{
    struct device_pointer pointer = {.ordinal = -1};
    unsigned type = 0, managed = 0;
    unsigned long long id = 0;
    int code;

    code = driver->hip.pointer(&type, HIP_POINTER_MEMORY_TYPE, address);
    out_pointer->is_unsaid = device_is_unsaid(code);
    if (code != 0)
        return false;
    if (!hip_ask(driver, HIP_POINTER_IS_MANAGED, address, &managed))
        managed = 0;
    pointer.on_device = type == HIP_MEMORY_DEVICE && managed == 0;
    if (!hip_ask(driver, HIP_POINTER_ORDINAL, address, &pointer.ordinal))
        pointer.ordinal = -1;
    if (hip_ask(driver, HIP_POINTER_BUFFER_ID, address, &id))
        pointer.id = id;
    *out_pointer = pointer;
    return true;
}

static bool hip_look(const struct device_driver *driver, uint64_t address,
                     struct device_pointer *out_pointer)
{
    size_t bytes = 0;

    if (!hip_identify(driver, address, out_pointer))
        return false;
    if (!hip_ask(driver, HIP_POINTER_RANGE_START, address, &out_pointer->base) ||
        !hip_ask(driver, HIP_POINTER_RANGE_SIZE, address, &bytes) || bytes == 0) {
        out_pointer->base = address;
        bytes = 1;
    }
    out_pointer->bytes = bytes;
    return true;
}

static bool hip_hold(const struct device_driver *driver, struct device_place *place)
{
    return false; /* the library keeps it */
}

static void hip_rele(const struct device_driver *driver, const struct device_place *place)
{
}

static int hip_enter(const struct device_driver *driver, const struct device_place *place,
                     struct device_before *out_before)
{
    int code = driver->hip.device_get(&out_before->ordinal);

    if (code == 0)
        code = driver->hip.device_set(place->ordinal);
    if (code != 0)
        return code;
    out_before->capture = DEVICE_CAPTURE_RELAXED;
    code = driver->hip.capture_mode(&out_before->capture);
    if (code != 0)
        (void)driver->hip.device_set(out_before->ordinal);
    return code;
}

static void hip_leave(const struct device_driver *driver, const struct device_before *before)
{
    int mode = before->capture;

    (void)driver->hip.capture_mode(&mode);
    (void)driver->hip.device_set(before->ordinal);
}

static int hip_pin(const struct device_driver *driver, void *memory, size_t bytes, bool read_only)
{
    if (read_only) /* ROCm 6 has the flag's name, and gives the same number another meaning */
        return DEVICE_NOT_SUPPORTED;
    return driver->hip.pin(memory, bytes, HIP_HOST_PORTABLE);
}

static int hip_unpin(const struct device_driver *driver, void *memory)
{
    return driver->hip.unpin(memory);
}

static int hip_memory_new(const struct device_driver *driver, size_t bytes, uint64_t *out_address)
{
    return driver->hip.memory_new(out_address, bytes);
}

static void hip_memory_free(const struct device_driver *driver, uint64_t address)
{
    (void)driver->hip.memory_free(address);
}

static int hip_stream_new(const struct device_driver *driver, void **out_stream)
{
    return driver->hip.stream_new(out_stream, HIP_STREAM_NON_BLOCKING);
}

static void hip_stream_free(const struct device_driver *driver, void *stream)
{
    (void)driver->hip.stream_free(stream);
}

/* 1 is how CUDA names the default stream, and our callers. To HIP, before it had that name, it is
 * an address. */
static void *hip_stream(void *stream)
{
    return stream == HIP_STREAM_LEGACY ? NULL : stream;
}

static bool hip_stream_captures(const struct device_driver *driver, void *stream)
{
    int status = DEVICE_CAPTURE_NONE;
    int code = driver->hip.stream_captures(hip_stream(stream), &status);

    return code == 0 ? status != DEVICE_CAPTURE_NONE : device_is_capture(code);
}

static int hip_event_new(const struct device_driver *driver, void **out_event)
{
    return driver->hip.event_new(out_event, HIP_EVENT_DISABLE_TIMING);
}

static void hip_event_free(const struct device_driver *driver, void *event)
{
    (void)driver->hip.event_free(event);
}

static int hip_event_record(const struct device_driver *driver, void *event, void *stream)
{
    return driver->hip.event_record(event, hip_stream(stream));
}

static int hip_event_query(const struct device_driver *driver, void *event)
{
    return driver->hip.event_query(event);
}

static int hip_stream_wait(const struct device_driver *driver, void *stream, void *event)
{
    return driver->hip.stream_wait(hip_stream(stream), event, 0);
}

static int hip_copy_in(const struct device_driver *driver, uint64_t device, const void *host,
                       size_t bytes, void *stream)
{
    /* It only reads there; its prototype has no const. */
    return driver->hip.copy_in(device, (void *)(uintptr_t)host, bytes, stream);
}

static int hip_copy_out(const struct device_driver *driver, void *host, uint64_t device,
                        size_t bytes, void *stream)
{
    return driver->hip.copy_out(host, device, bytes, stream);
}

const struct device_ops device_hip = {
    .name = "HIP",
    .remedy = "install ROCm 6.0 or later",
    .libraries = "libamdhip64.so.7\nlibamdhip64.so.6\nlibamdhip64.so",
    .bind = hip_bind,
    .start = hip_start,
    .look = hip_look,
    .identify = hip_identify,
    .hold = hip_hold,
    .rele = hip_rele,
    .enter = hip_enter,
    .leave = hip_leave,
    .pin = hip_pin,
    .unpin = hip_unpin,
    .memory_new = hip_memory_new,
    .memory_free = hip_memory_free,
    .stream_new = hip_stream_new,
    .stream_free = hip_stream_free,
    .stream_captures = hip_stream_captures,
    .event_new = hip_event_new,
    .event_free = hip_event_free,
    .event_record = hip_event_record,
    .event_query = hip_event_query,
    .stream_wait = hip_stream_wait,
    .copy_in = hip_copy_in,
    .copy_out = hip_copy_out,
    .text = hip_text,
};
