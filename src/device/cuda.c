/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/cuda.c: the table of device/driver.h over the CUDA driver API.
 *
 * Names and numbers are those of the driver's documented interface, version 11.0 and later. A
 * context is that of the memory; the primary context of a device, which the CUDA runtime and
 * PyTorch use, is retained while it is used here.
 */
#include <stdio.h>
#include <string.h>

#include "device/device_int.h"

#define CUDA_VERSION_MIN 11000

/* CUpointer_attribute, CUmemorytype. */
#define CUDA_POINTER_CONTEXT      1
#define CUDA_POINTER_MEMORY_TYPE  2
#define CUDA_POINTER_BUFFER_ID    7
#define CUDA_POINTER_IS_MANAGED   8
#define CUDA_POINTER_ORDINAL      9
#define CUDA_POINTER_RANGE_START  11
#define CUDA_POINTER_RANGE_SIZE   12
#define CUDA_POINTER_MAPPED       13
#define CUDA_POINTER_MAPPING_SIZE 18 /* CUDA 12; before, the driver does not know these two */
#define CUDA_POINTER_MAPPING_BASE 19
#define CUDA_MEMORY_DEVICE        2

#define CUDA_STREAM_NON_BLOCKING  1
#define CUDA_EVENT_DISABLE_TIMING 2
#define CUDA_HOST_PORTABLE        1
#define CUDA_HOST_READ_ONLY       8 /* CUDA 11.1; an error where the device lacks it */

#define CUDA_SYMBOL(member, symbol)                                                                \
    {                                                                                              \
        symbol, offsetof(struct device_driver, cuda.member)                                        \
    }

static const struct device_symbol cuda_symbols[] = {
    CUDA_SYMBOL(init, "cuInit"),
    CUDA_SYMBOL(driver_version, "cuDriverGetVersion"),
    CUDA_SYMBOL(error_name, "cuGetErrorName"),
    CUDA_SYMBOL(error_string, "cuGetErrorString"),
    CUDA_SYMBOL(pointer, "cuPointerGetAttribute"),
    CUDA_SYMBOL(pointers, "cuPointerGetAttributes"),
    CUDA_SYMBOL(device, "cuDeviceGet"),
    CUDA_SYMBOL(primary_state, "cuDevicePrimaryCtxGetState"),
    CUDA_SYMBOL(primary_retain, "cuDevicePrimaryCtxRetain"),
    CUDA_SYMBOL(primary_release, "cuDevicePrimaryCtxRelease_v2"),
    CUDA_SYMBOL(push, "cuCtxPushCurrent_v2"),
    CUDA_SYMBOL(pop, "cuCtxPopCurrent_v2"),
    CUDA_SYMBOL(pin, "cuMemHostRegister_v2"),
    CUDA_SYMBOL(unpin, "cuMemHostUnregister"),
    CUDA_SYMBOL(memory_new, "cuMemAlloc_v2"),
    CUDA_SYMBOL(memory_free, "cuMemFree_v2"),
    CUDA_SYMBOL(stream_new, "cuStreamCreate"),
    CUDA_SYMBOL(stream_free, "cuStreamDestroy_v2"),
    CUDA_SYMBOL(stream_captures, "cuStreamIsCapturing"),
    CUDA_SYMBOL(capture_mode, "cuThreadExchangeStreamCaptureMode"),
    CUDA_SYMBOL(event_new, "cuEventCreate"),
    CUDA_SYMBOL(event_free, "cuEventDestroy_v2"),
    CUDA_SYMBOL(event_record, "cuEventRecord"),
    CUDA_SYMBOL(event_query, "cuEventQuery"),
    CUDA_SYMBOL(stream_wait, "cuStreamWaitEvent"),
    CUDA_SYMBOL(copy_in, "cuMemcpyHtoDAsync_v2"),
    CUDA_SYMBOL(copy_out, "cuMemcpyDtoHAsync_v2"),
    CUDA_SYMBOL(copy_between, "cuMemcpyDtoDAsync_v2"),
};

static const char *cuda_bind(struct device_driver *driver)
{
    return device_bind(driver, cuda_symbols, sizeof(cuda_symbols) / sizeof(cuda_symbols[0]));
}

static void cuda_text(const struct device_driver *driver, int code, char *out, size_t bytes)
{
    const char *name = NULL, *text = NULL;

    (void)driver->cuda.error_name(code, &name);
    (void)driver->cuda.error_string(code, &text);
    if (name == NULL)
        (void)snprintf(out, bytes, "CUDA error %d", code);
    else
        (void)snprintf(out, bytes, "%s: %s", name, text == NULL ? "" : text);
}

static icms_err cuda_start(const struct device_driver *driver, struct err_why *why)
{
    int code = driver->cuda.init(0), version = 0;
    char text[DEVICE_TEXT_BYTES];

    if (code != 0) {
        cuda_text(driver, code, text, sizeof(text));
        return err_set(why, ICMS_UNSUPPORTED, "cannot use CUDA memory: cuInit failed (%s); %s",
                       text,
                       code == DEVICE_NOT_INITIALIZED
                           ? "this process was forked from one that uses CUDA: start it with exec "
                             "(spawn)"
                           : "look at what nvidia-smi says");
    }
    code = driver->cuda.driver_version(&version);
    if (code != 0 || version < CUDA_VERSION_MIN)
        return err_set(why, ICMS_UNSUPPORTED,
                       "cannot use CUDA memory: the driver is for CUDA %d.%d, which is too old; "
                       "install one for CUDA 11.0 or later",
                       version / 1000, version % 1000 / 10);
    return ICMS_OK;
}

/* False: the driver does not know the address, or not this about it. */
static bool cuda_ask(const struct device_driver *driver, int attribute, uint64_t address, void *out)
{
    return driver->cuda.pointer(out, attribute, address) == 0;
}

/* Narrows a range around an address to what it has in common with another one that the driver
 * says. False: it does not say it. */
static bool cuda_range_meet(const struct device_driver *driver, uint64_t address,
                            int base_attribute, int bytes_attribute,
                            struct device_pointer *io_pointer)
{
    uint64_t base = 0, end = io_pointer->base + io_pointer->bytes;
    size_t bytes = 0;

    if (!cuda_ask(driver, base_attribute, address, &base) ||
        !cuda_ask(driver, bytes_attribute, address, &bytes) || address < base ||
        address - base >= bytes)
        return false;
    if (io_pointer->base < base)
        io_pointer->base = base;
    if (end > base + bytes)
        end = base + bytes;
    io_pointer->bytes = end - io_pointer->base;
    return true;
}

/* The allocation around an address. Memory that cuMemMap puts together is many of them, one behind
 * the other in a range of addresses: the driver's "range" is all that was reserved, mapped or not,
 * its "mapping" the one allocation. */
static void cuda_range(const struct device_driver *driver, uint64_t address,
                       struct device_pointer *io_pointer)
{
    bool ranged, mapping;

    io_pointer->base = 0;
    io_pointer->bytes = UINT64_MAX;
    ranged = cuda_range_meet(driver, address, CUDA_POINTER_RANGE_START, CUDA_POINTER_RANGE_SIZE,
                             io_pointer);
    mapping = cuda_range_meet(driver, address, CUDA_POINTER_MAPPING_BASE, CUDA_POINTER_MAPPING_SIZE,
                              io_pointer);
    if (!ranged && !mapping) {
        io_pointer->base = address;
        io_pointer->bytes = 1;
    }
    if (!mapping && io_pointer->context == NULL)
        io_pointer->id = 0; /* of one allocation, where there may be many */
}

static bool cuda_identify(const struct device_driver *driver, uint64_t address,
                          struct device_pointer *out_pointer)
{
    int attributes[] = {CUDA_POINTER_MEMORY_TYPE, CUDA_POINTER_IS_MANAGED, CUDA_POINTER_CONTEXT,
                        CUDA_POINTER_ORDINAL,     CUDA_POINTER_BUFFER_ID,  CUDA_POINTER_MAPPED};
    uint64_t type = 0, managed = 0, mapped = 0, id = 0; /* wide enough for what the driver says */
    struct device_pointer pointer = {.ordinal = -1};
    void *said[] = {&type, &managed, &pointer.context, &pointer.ordinal, &id, &mapped};
    int code = driver->cuda.pointers(sizeof(attributes) / sizeof(attributes[0]), attributes, said,
                                     address);

    out_pointer->is_unsaid = device_is_unsaid(code);
    if (code != 0 || type == 0)
        return false;
    pointer.on_device = type == CUDA_MEMORY_DEVICE && managed == 0;
    pointer.id = id;
    if (pointer.on_device && pointer.context == NULL && mapped == 0) {
        out_pointer->is_unsaid = true; /* reserved, and nothing is there */
        return false;
    }
    *out_pointer = pointer;
    return true;
}

static bool cuda_look(const struct device_driver *driver, uint64_t address,
                      struct device_pointer *out_pointer)
{
    if (!cuda_identify(driver, address, out_pointer))
        return false;
    cuda_range(driver, address, out_pointer);
    return true;
}

static bool cuda_hold(const struct device_driver *driver, struct device_place *place)
{
    void *primary = NULL;
    unsigned flags = 0;
    int device, active = 0;

    if (driver->cuda.device(&device, place->ordinal) != 0)
        return false;
    /* To retain one that nobody has makes it, for nothing where memory has a context. */
    if (place->context != NULL &&
        (driver->cuda.primary_state(device, &flags, &active) != 0 || active == 0))
        return false;
    if (driver->cuda.primary_retain(&primary, device) != 0)
        return false;
    if (place->context == NULL) /* memory of the device, of no context: pools, cuMemMap */
        place->context = primary;
    if (primary == place->context)
        return true;
    (void)driver->cuda.primary_release(device);
    return false; /* it is its maker's */
}

static void cuda_rele(const struct device_driver *driver, const struct device_place *place)
{
    int device;

    if (driver->cuda.device(&device, place->ordinal) == 0)
        (void)driver->cuda.primary_release(device);
}

static int cuda_enter(const struct device_driver *driver, const struct device_place *place,
                      struct device_before *out_before)
{
    void *context;
    int code = driver->cuda.push(place->context);

    if (code != 0)
        return code;
    *out_before = (struct device_before){.capture = DEVICE_CAPTURE_RELAXED};
    code = driver->cuda.capture_mode(&out_before->capture);
    if (code != 0)
        (void)driver->cuda.pop(&context);
    return code;
}

static void cuda_leave(const struct device_driver *driver, const struct device_before *before)
{
    int mode = before->capture;
    void *context;

    (void)driver->cuda.capture_mode(&mode);
    (void)driver->cuda.pop(&context);
}

static int cuda_pin(const struct device_driver *driver, void *memory, size_t bytes, bool read_only)
{
    return driver->cuda.pin(memory, bytes,
                            CUDA_HOST_PORTABLE | (read_only ? CUDA_HOST_READ_ONLY : 0));
}

static int cuda_unpin(const struct device_driver *driver, void *memory)
{
    return driver->cuda.unpin(memory);
}

static int cuda_memory_new(const struct device_driver *driver, size_t bytes, uint64_t *out_address)
{
    return driver->cuda.memory_new(out_address, bytes);
}

static void cuda_memory_free(const struct device_driver *driver, uint64_t address)
{
    (void)driver->cuda.memory_free(address);
}

static int cuda_stream_new(const struct device_driver *driver, void **out_stream)
{
    return driver->cuda.stream_new(out_stream, CUDA_STREAM_NON_BLOCKING);
}

static void cuda_stream_free(const struct device_driver *driver, void *stream)
{
    (void)driver->cuda.stream_free(stream);
}

static bool cuda_stream_captures(const struct device_driver *driver, void *stream)
{
    int status = DEVICE_CAPTURE_NONE, code = driver->cuda.stream_captures(stream, &status);

    return code == 0 ? status != DEVICE_CAPTURE_NONE : device_is_capture(code);
}

static int cuda_event_new(const struct device_driver *driver, void **out_event)
{
    return driver->cuda.event_new(out_event, CUDA_EVENT_DISABLE_TIMING);
}

static void cuda_event_free(const struct device_driver *driver, void *event)
{
    (void)driver->cuda.event_free(event);
}

static int cuda_event_record(const struct device_driver *driver, void *event, void *stream)
{
    return driver->cuda.event_record(event, stream);
}

static int cuda_event_query(const struct device_driver *driver, void *event)
{
    return driver->cuda.event_query(event);
}

static int cuda_stream_wait(const struct device_driver *driver, void *stream, void *event)
{
    return driver->cuda.stream_wait(stream, event, 0);
}

static int cuda_copy_in(const struct device_driver *driver, uint64_t device, const void *host,
                        size_t bytes, void *stream)
{
    return driver->cuda.copy_in(device, host, bytes, stream);
}

static int cuda_copy_out(const struct device_driver *driver, void *host, uint64_t device,
                         size_t bytes, void *stream)
{
    return driver->cuda.copy_out(host, device, bytes, stream);
}

static int cuda_copy_between(const struct device_driver *driver, uint64_t to, uint64_t from,
                             size_t bytes, void *stream)
{
    return driver->cuda.copy_between(to, from, bytes, stream);
}

const struct device_ops device_cuda = {
    .name = "CUDA",
    .remedy = "install NVIDIA's driver for CUDA 11.0 or later",
    .libraries = "libcuda.so.1",
    .bind = cuda_bind,
    .start = cuda_start,
    .look = cuda_look,
    .identify = cuda_identify,
    .hold = cuda_hold,
    .rele = cuda_rele,
    .enter = cuda_enter,
    .leave = cuda_leave,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .memory_new = cuda_memory_new,
    .memory_free = cuda_memory_free,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .stream_captures = cuda_stream_captures,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_query = cuda_event_query,
    .stream_wait = cuda_stream_wait,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .copy_between = cuda_copy_between,
    .text = cuda_text,
};
