/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/gaudi.c: the table of device/driver.h over SynapseAI, of Intel Gaudi.
 *
 * Names, arguments and numbers are those of SynapseAI's public interface. Tested with a fake
 * library only. It differs from CUDA and HIP:
 *
 *   - A process has one device, which who uses it acquires: the engine does, before memory is
 *     registered here. Its number is in each call: that of the thread's place (enter).
 *   - Nobody says what an address is: it is one of the device where it lies in the range of its
 *     memory. So memory that was freed is not noticed, and an address can be one of the process,
 *     too (may_be_host).
 *   - Streams are not captured, and pinned memory is memory that was mapped for the device, which
 *     may always write there.
 *   - Statuses have numbers of their own: those that others have to know become those of driver.h,
 *     all others are GAUDI_CODE and the status.
 */
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device/device_int.h"

/* synStatus */
#define GAUDI_NO_HOST_MEMORY   3
#define GAUDI_NO_DEVICE_MEMORY 4
#define GAUDI_NO_DEVICE        8
#define GAUDI_RESET            17
#define GAUDI_UNSUPPORTED      18
#define GAUDI_BUSY             22
#define GAUDI_UNINITIALIZED    28
#define GAUDI_TERMINATED       31

/* What a status is that no number of driver.h stands for. */
#define GAUDI_CODE 10000

/* synDmaDir */
#define GAUDI_TO_DEVICE   0
#define GAUDI_FROM_DEVICE 1

/* The only device of a process. */
#define GAUDI_DEVICE 0

/* synDeviceInfoV2 */
struct gaudi_info {
    uint64_t sram_base;
    uint64_t dram_base;
    uint32_t sram_bytes;
    uint64_t dram_bytes;
    uint64_t engines;
    uint8_t dram_is_on;
    uint32_t device;
    uint32_t fd;
    int type;
    uint8_t index;
    uint64_t hbm_base;
    uint64_t spare[8]; /* a later library may have more to say */
};
static_assert(offsetof(struct gaudi_info, hbm_base) == 64, "as the library lays it out");

#define GAUDI_SYMBOL(member, symbol)                                                               \
    {                                                                                              \
        symbol, offsetof(struct device_driver, gaudi.member)                                       \
    }

static const struct device_symbol gaudi_symbols[] = {
    GAUDI_SYMBOL(info, "synDeviceGetInfoV2"),
    GAUDI_SYMBOL(status_text, "synStatusGetBriefDescription"),
    GAUDI_SYMBOL(pin, "synHostMap"),
    GAUDI_SYMBOL(unpin, "synHostUnmap"),
    GAUDI_SYMBOL(memory_new, "synDeviceMalloc"),
    GAUDI_SYMBOL(memory_free, "synDeviceFree"),
    GAUDI_SYMBOL(stream_new, "synStreamCreateGeneric"),
    GAUDI_SYMBOL(stream_free, "synStreamDestroy"),
    GAUDI_SYMBOL(event_new, "synEventCreate"),
    GAUDI_SYMBOL(event_free, "synEventDestroy"),
    GAUDI_SYMBOL(event_record, "synEventRecord"),
    GAUDI_SYMBOL(event_query, "synEventQuery"),
    GAUDI_SYMBOL(stream_wait, "synStreamWaitEvent"),
    GAUDI_SYMBOL(copy, "synMemCopyAsync"),
};

static _Thread_local uint32_t gaudi_device; /* of the thread's place */
static _Atomic pid_t gaudi_owner;           /* the process that used it first; 0: none */

static const char *gaudi_bind(struct device_driver *driver)
{
    return device_bind(driver, gaudi_symbols, sizeof(gaudi_symbols) / sizeof(gaudi_symbols[0]));
}

static int gaudi_code(int status)
{
    switch (status) {
    case 0:
        return 0;
    case GAUDI_NO_HOST_MEMORY:
    case GAUDI_NO_DEVICE_MEMORY:
        return DEVICE_OUT_OF_MEMORY;
    case GAUDI_NO_DEVICE: /* it was released, or lost */
    case GAUDI_RESET:
    case GAUDI_UNINITIALIZED:
    case GAUDI_TERMINATED:
        return DEVICE_DESTROYED;
    case GAUDI_UNSUPPORTED:
        return DEVICE_NOT_SUPPORTED;
    default:
        return GAUDI_CODE + status;
    }
}

/* A status that a code was made of. */
static int gaudi_status(int code)
{
    switch (code) {
    case DEVICE_OUT_OF_MEMORY:
        return GAUDI_NO_DEVICE_MEMORY;
    case DEVICE_DESTROYED:
        return GAUDI_NO_DEVICE;
    case DEVICE_NOT_SUPPORTED:
        return GAUDI_UNSUPPORTED;
    case DEVICE_NOT_READY:
        return GAUDI_BUSY;
    default:
        return code > GAUDI_CODE ? code - GAUDI_CODE : code;
    }
}

static void gaudi_text(const struct device_driver *driver, int code, char *out, size_t bytes)
{
    char text[DEVICE_TEXT_BYTES] = "";
    int status = gaudi_status(code);

    if (driver->gaudi.status_text(status, text, sizeof(text)) != 0)
        text[0] = 0;
    (void)snprintf(out, bytes, "SynapseAI status %d: %.100s", status, text);
}

static icms_err gaudi_start(const struct device_driver *driver, struct err_why *why)
{
    struct gaudi_info info = {0};
    pid_t owner = atomic_load(&gaudi_owner);
    char text[DEVICE_TEXT_BYTES];
    int status;

    if (owner != 0 && owner != getpid())
        return err_set(why, ICMS_UNSUPPORTED,
                       "cannot use Gaudi memory: this process was forked from one that uses "
                       "Gaudi: start it with exec (spawn)");
    status = driver->gaudi.info(GAUDI_DEVICE, &info);
    if (status != 0) {
        gaudi_text(driver, GAUDI_CODE + status, text, sizeof(text));
        return err_set(why, ICMS_UNSUPPORTED,
                       "cannot use Gaudi memory: this process has no Gaudi (%s); register memory "
                       "once the engine has acquired the device, and look at what hl-smi says",
                       text);
    }
    atomic_store(&gaudi_owner, getpid());
    return ICMS_OK;
}

/* Whether the address lies in this range of the device's memory. */
static bool gaudi_is_in(uint64_t address, uint64_t base, uint64_t bytes,
                        struct device_pointer *io_pointer)
{
    io_pointer->base = base;
    io_pointer->bytes = bytes;
    return base != 0 && address >= base && address - base < bytes;
}

static bool gaudi_look(const struct device_driver *driver, uint64_t address,
                       struct device_pointer *out_pointer)
{
    struct device_pointer pointer = {
        .on_device = true, .may_be_host = true, .ordinal = GAUDI_DEVICE};
    struct gaudi_info info = {0};

    out_pointer->is_unsaid = false;
    if (driver->gaudi.info(GAUDI_DEVICE, &info) != 0 ||
        (!gaudi_is_in(address, info.dram_base, info.dram_bytes, &pointer) &&
         !gaudi_is_in(address, info.hbm_base, info.dram_bytes, &pointer)))
        return false;
    *out_pointer = pointer;
    return true;
}

static bool gaudi_hold(const struct device_driver *driver, struct device_place *place)
{
    return false; /* who acquired it keeps it */
}

static void gaudi_rele(const struct device_driver *driver, const struct device_place *place)
{
}

static int gaudi_enter(const struct device_driver *driver, const struct device_place *place,
                       struct device_before *out_before)
{
    struct gaudi_info info = {0};
    int code = gaudi_code(driver->gaudi.info((uint32_t)place->ordinal, &info));

    out_before->ordinal = (int)gaudi_device;
    if (code == 0)
        gaudi_device = (uint32_t)place->ordinal;
    return code;
}

static void gaudi_leave(const struct device_driver *driver, const struct device_before *before)
{
    gaudi_device = (uint32_t)before->ordinal;
}

static int gaudi_pin(const struct device_driver *driver, void *memory, size_t bytes, bool read_only)
{
    if (read_only)
        return DEVICE_NOT_SUPPORTED;
    return gaudi_code(driver->gaudi.pin(gaudi_device, bytes, memory));
}

static int gaudi_unpin(const struct device_driver *driver, void *memory)
{
    return gaudi_code(driver->gaudi.unpin(gaudi_device, memory));
}

static int gaudi_memory_new(const struct device_driver *driver, size_t bytes, uint64_t *out_address)
{
    return gaudi_code(driver->gaudi.memory_new(gaudi_device, bytes, 0, 0, out_address));
}

static void gaudi_memory_free(const struct device_driver *driver, uint64_t address)
{
    (void)driver->gaudi.memory_free(gaudi_device, address, 0);
}

static int gaudi_stream_new(const struct device_driver *driver, void **out_stream)
{
    return gaudi_code(driver->gaudi.stream_new(out_stream, gaudi_device, 0));
}

static void gaudi_stream_free(const struct device_driver *driver, void *stream)
{
    (void)driver->gaudi.stream_free(stream);
}

static bool gaudi_stream_captures(const struct device_driver *driver, void *stream)
{
    return false;
}

static int gaudi_event_new(const struct device_driver *driver, void **out_event)
{
    return gaudi_code(driver->gaudi.event_new(out_event, gaudi_device, 0));
}

static void gaudi_event_free(const struct device_driver *driver, void *event)
{
    (void)driver->gaudi.event_free(event);
}

static int gaudi_event_record(const struct device_driver *driver, void *event, void *stream)
{
    return gaudi_code(driver->gaudi.event_record(event, stream));
}

static int gaudi_event_query(const struct device_driver *driver, void *event)
{
    int status = driver->gaudi.event_query(event);

    return status == GAUDI_BUSY ? DEVICE_NOT_READY : gaudi_code(status);
}

static int gaudi_stream_wait(const struct device_driver *driver, void *stream, void *event)
{
    return gaudi_code(driver->gaudi.stream_wait(stream, event, 0));
}

static int gaudi_copy_in(const struct device_driver *driver, uint64_t device, const void *host,
                         size_t bytes, void *stream)
{
    return gaudi_code(
        driver->gaudi.copy(stream, (uint64_t)(uintptr_t)host, bytes, device, GAUDI_TO_DEVICE));
}

static int gaudi_copy_out(const struct device_driver *driver, void *host, uint64_t device,
                          size_t bytes, void *stream)
{
    return gaudi_code(
        driver->gaudi.copy(stream, device, bytes, (uint64_t)(uintptr_t)host, GAUDI_FROM_DEVICE));
}

const struct device_ops device_gaudi = {
    .name = "Gaudi",
    .remedy = "install Intel Gaudi's software (SynapseAI)",
    .libraries = "libSynapse.so.1\nlibSynapse.so",
    .bind = gaudi_bind,
    .start = gaudi_start,
    .look = gaudi_look,
    .identify = gaudi_look,
    .hold = gaudi_hold,
    .rele = gaudi_rele,
    .enter = gaudi_enter,
    .leave = gaudi_leave,
    .pin = gaudi_pin,
    .unpin = gaudi_unpin,
    .memory_new = gaudi_memory_new,
    .memory_free = gaudi_memory_free,
    .stream_new = gaudi_stream_new,
    .stream_free = gaudi_stream_free,
    .stream_captures = gaudi_stream_captures,
    .event_new = gaudi_event_new,
    .event_free = gaudi_event_free,
    .event_record = gaudi_event_record,
    .event_query = gaudi_event_query,
    .stream_wait = gaudi_stream_wait,
    .copy_in = gaudi_copy_in,
    .copy_out = gaudi_copy_out,
    .text = gaudi_text,
};
