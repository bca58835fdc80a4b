/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/fake_synapse.c: fake_device.c as libSynapse.so.1: functions with the names and arguments
 * of SynapseAI's. The process has acquired device 0. Called by what is tested.
 */
#include <stdio.h>
#include <string.h>

#include "device/fake_device.h"

/* Where the memory of the device lies: nothing else of the process does. */
#define DRAM_BASE  ((uint64_t)1 << 45)
#define DRAM_BYTES ((uint64_t)64 << 30)

struct fake_info {
    uint64_t sram_base, dram_base;
    uint32_t sram_bytes;
    uint64_t dram_bytes, engines;
    uint8_t dram_is_on;
    uint32_t device, fd;
    int type;
    uint8_t index;
    uint64_t hbm_base;
};

FAKE_API int synDeviceGetInfoV2(uint32_t device, struct fake_info *info);
FAKE_API int synStatusGetBriefDescription(int status, char *out, size_t bytes);
FAKE_API int synHostMap(uint32_t device, uint64_t bytes, const void *memory);
FAKE_API int synHostUnmap(uint32_t device, const void *memory);
FAKE_API int synDeviceMalloc(uint32_t device, uint64_t bytes, uint64_t wanted, uint32_t flags,
                             uint64_t *address);
FAKE_API int synDeviceFree(uint32_t device, uint64_t address, uint32_t flags);
FAKE_API int synStreamCreateGeneric(void **stream, uint32_t device, uint32_t flags);
FAKE_API int synStreamDestroy(void *stream);
FAKE_API int synEventCreate(void **event, uint32_t device, uint32_t flags);
FAKE_API int synEventDestroy(void *event);
FAKE_API int synEventRecord(void *event, void *stream);
FAKE_API int synEventQuery(void *event);
FAKE_API int synStreamWaitEvent(void *stream, void *event, uint32_t flags);
FAKE_API int synMemCopyAsync(void *stream, uint64_t from, uint64_t bytes, uint64_t to,
                             int direction);

/* By number, what the fake's codes are here. */
static const struct {
    int code, status;
    const char *text;
} statuses[] = {
    {FAKE_OK, 0, "Success"},
    {FAKE_INVALID, 1, "Invalid argument"},
    {FAKE_NO_MEMORY, 4, "Out of device memory"},
    {FAKE_NO_DEVICE, 8, "No device found"},
    {FAKE_ALREADY_PINNED, 12, "Failed to map"},
    {FAKE_DESTROYED, 17, "Device reset"},
    {FAKE_NOT_SUPPORTED, 18, "Unsupported"},
    {FAKE_NOT_READY, 22, "Busy"},
    {FAKE_ILLEGAL, 26, "Failure"},
    {FAKE_NOT_INITIALIZED, 28, "Uninitialized"},
    {FAKE_BAD_HANDLE, 33, "Invalid event handle"},
};

static int status_of(int code)
{
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++)
        if (statuses[i].code == code)
            return statuses[i].status;
    return 26;
}

/* Makes the device current, as the other drivers' contexts are. */
static int enter(uint32_t device)
{
    return device == 0 ? fake_push(fake_device_table()->context(0)) : FAKE_NO_DEVICE;
}

static int leave(int code)
{
    void *before;

    (void)fake_pop(&before);
    return status_of(code);
}

__attribute__((constructor)) static void begin(void)
{
    fake_area(DRAM_BASE);
}

int synDeviceGetInfoV2(uint32_t device, struct fake_info *info)
{
    int code = device == 0 ? fake_init() : FAKE_NO_DEVICE;

    if (code == 0)
        *info = (struct fake_info){.dram_base = DRAM_BASE, .dram_bytes = DRAM_BYTES};
    return status_of(code);
}

int synStatusGetBriefDescription(int status, char *out, size_t bytes)
{
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++)
        if (statuses[i].status == status) {
            (void)snprintf(out, bytes, "%s", statuses[i].text);
            return 0;
        }
    return 1;
}

int synHostMap(uint32_t device, uint64_t bytes, const void *memory)
{
    int code = enter(device);

    return code != 0 ? status_of(code) : leave(fake_pin((void *)(uintptr_t)memory, bytes, false));
}

int synHostUnmap(uint32_t device, const void *memory)
{
    return status_of(device == 0 ? fake_unpin(memory) : FAKE_NO_DEVICE);
}

int synDeviceMalloc(uint32_t device, uint64_t bytes, uint64_t wanted, uint32_t flags,
                    uint64_t *address)
{
    int code = flags != 0 || wanted != 0 ? FAKE_INVALID : enter(device);

    return code != 0 ? status_of(code) : leave(fake_alloc(address, bytes));
}

int synDeviceFree(uint32_t device, uint64_t address, uint32_t flags)
{
    fake_device_table()->alloc_free(address);
    return flags != 0 || device != 0;
}

int synStreamCreateGeneric(void **stream, uint32_t device, uint32_t flags)
{
    int code = flags != 0 ? FAKE_INVALID : enter(device);

    return code != 0 ? status_of(code) : leave(fake_stream_new(stream));
}

int synStreamDestroy(void *stream)
{
    return status_of(fake_stream_free(stream));
}

int synEventCreate(void **event, uint32_t device, uint32_t flags)
{
    int code = flags != 0 ? FAKE_INVALID : enter(device);

    return code != 0 ? status_of(code) : leave(fake_event_new(event));
}

int synEventDestroy(void *event)
{
    return status_of(fake_event_free(event));
}

int synEventRecord(void *event, void *stream)
{
    return status_of(fake_event_record(event, stream));
}

int synEventQuery(void *event)
{
    return status_of(fake_event_query(event));
}

int synStreamWaitEvent(void *stream, void *event, uint32_t flags)
{
    return flags != 0 ? 1 : status_of(fake_stream_wait(stream, event));
}

int synMemCopyAsync(void *stream, uint64_t from, uint64_t bytes, uint64_t to, int direction)
{
    switch (direction) {
    case 0:
        return status_of(fake_copy(to, (void *)(uintptr_t)from, bytes, stream, true));
    case 1:
        return status_of(fake_copy(from, (void *)(uintptr_t)to, bytes, stream, false));
    default:
        return 18;
    }
}
