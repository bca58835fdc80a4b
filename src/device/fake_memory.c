/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/fake_memory.c: memory of the fake GPU, and what its driver says of addresses. Any thread.
 *
 * An allocation is two mappings of the same memory: its address, without any right, and a shadow
 * that copies use. A reservation is a range of addresses in which allocations are mapped one behind
 * the other, as cuMemAddressReserve and cuMemMap do it: its memory names no context.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/fake_int.h"

#define ALLOCS   512
#define RESERVES 8

/* CUpointer_attribute, and HIP's where that has them. */
enum attribute {
    ATTRIBUTE_CONTEXT = 1,
    ATTRIBUTE_TYPE = 2,
    ATTRIBUTE_ID = 7,
    ATTRIBUTE_MANAGED = 8,
    ATTRIBUTE_ORDINAL = 9,
    ATTRIBUTE_RANGE = 11,
    ATTRIBUTE_RANGE_BYTES = 12,
    ATTRIBUTE_MAPPED = 13,
    ATTRIBUTE_MAPPING_BYTES = 18,
    ATTRIBUTE_MAPPING = 19,
    ATTRIBUTES
};

struct reserve {
    struct context *context;
    uint64_t address;
    size_t bytes; /* 0: none */
};

struct alloc {
    struct context *context;
    const struct reserve *reserve; /* that it is mapped in; NULL */
    uint64_t address, id;
    size_t bytes;    /* 0: none */
    uint8_t *shadow; /* the same memory, for us */
    bool host;       /* memory that the CPU may touch */
    bool pool;       /* memory of a pool: it names no context */
};

static struct alloc allocs[ALLOCS];
static struct reserve reserves[RESERVES];
static uint64_t ids;

/* ---- what exists (lock) ---------------------------------------------------------------------- */

static struct alloc *alloc_find(uint64_t address)
{
    for (int i = 0; i < ALLOCS; i++)
        if (allocs[i].bytes != 0 && address >= allocs[i].address &&
            address - allocs[i].address < allocs[i].bytes)
            return &allocs[i];
    return NULL;
}

static struct reserve *reserve_find(uint64_t address)
{
    for (int i = 0; i < RESERVES; i++)
        if (reserves[i].bytes != 0 && address >= reserves[i].address &&
            address - reserves[i].address < reserves[i].bytes)
            return &reserves[i];
    return NULL;
}

bool fake_has(uint64_t address, size_t bytes)
{
    const struct alloc *alloc = alloc_find(address);
    size_t left;

    while (alloc != NULL && bytes > (left = alloc->bytes - (address - alloc->address))) {
        address += left;
        bytes -= left;
        alloc = alloc->reserve == NULL ? NULL : alloc_find(address);
    }
    return alloc != NULL;
}

uint8_t *fake_part(uint64_t address, size_t *io_bytes)
{
    const struct alloc *alloc = alloc_find(address);
    size_t left;

    if (alloc == NULL)
        return NULL;
    left = alloc->bytes - (address - alloc->address);
    if (*io_bytes > left)
        *io_bytes = left;
    return alloc->shadow + (address - alloc->address);
}

/* ---- what the driver says -------------------------------------------------------------------- */

/* Bytes of what it says of each; 0: it does not know the attribute. */
static const uint8_t widths[ATTRIBUTES] = {
    [ATTRIBUTE_CONTEXT] = 8,       [ATTRIBUTE_TYPE] = 4,        [ATTRIBUTE_ID] = 8,
    [ATTRIBUTE_MANAGED] = 4,       [ATTRIBUTE_ORDINAL] = 4,     [ATTRIBUTE_RANGE] = 8,
    [ATTRIBUTE_MAPPED] = 4,        [ATTRIBUTE_RANGE_BYTES] = 8, [ATTRIBUTE_MAPPING] = 8,
    [ATTRIBUTE_MAPPING_BYTES] = 8,
};

static uint8_t attribute_width(int attribute)
{
    return attribute < 0 || attribute >= ATTRIBUTES ? 0 : widths[attribute];
}

/* What is reserved and not mapped is memory of the device, too, and nothing else. Lock. */
static int reserve_says(const struct reserve *reserve, int attribute, uint64_t *out_value)
{
    switch (attribute) {
    case ATTRIBUTE_CONTEXT:
    case ATTRIBUTE_MANAGED:
    case ATTRIBUTE_MAPPED:
        *out_value = 0;
        return FAKE_OK;
    case ATTRIBUTE_TYPE:
        *out_value = 2;
        return FAKE_OK;
    case ATTRIBUTE_ORDINAL:
        *out_value = (uint64_t)reserve->context->ordinal;
        return FAKE_OK;
    case ATTRIBUTE_RANGE:
        *out_value = reserve->address;
        return FAKE_OK;
    case ATTRIBUTE_RANGE_BYTES:
        *out_value = reserve->bytes;
        return FAKE_OK;
    default:
        return FAKE_INVALID;
    }
}

/* Lock. */
static int alloc_says(const struct alloc *alloc, int attribute, uint64_t *out_value)
{
    switch (attribute) {
    case ATTRIBUTE_CONTEXT:
        *out_value = alloc->pool ? 0 : (uint64_t)(uintptr_t)alloc->context;
        break;
    case ATTRIBUTE_TYPE:
        *out_value = alloc->host ? 1 : 2;
        break;
    case ATTRIBUTE_ID:
        *out_value = alloc->id;
        break;
    case ATTRIBUTE_ORDINAL:
        *out_value = (uint64_t)alloc->context->ordinal;
        break;
    case ATTRIBUTE_RANGE:
        *out_value = alloc->reserve != NULL ? alloc->reserve->address : alloc->address;
        break;
    case ATTRIBUTE_RANGE_BYTES:
        *out_value = alloc->reserve != NULL ? alloc->reserve->bytes : alloc->bytes;
        break;
    case ATTRIBUTE_MAPPING:
        *out_value = alloc->address;
        break;
    case ATTRIBUTE_MAPPING_BYTES:
        *out_value = alloc->bytes;
        break;
    default:
        *out_value = attribute == ATTRIBUTE_MAPPED;
    }
    return FAKE_OK;
}

/* Lock. */
static int pointer_says(void *out, int attribute, uint64_t address, bool old)
{
    const struct alloc *alloc = alloc_find(address);
    const struct reserve *reserve = reserve_find(address);
    uint64_t value = 0;
    int code = FAKE_INVALID;

    if (attribute_width(attribute) == 0 || (old && attribute >= ATTRIBUTE_MAPPING_BYTES))
        return FAKE_INVALID;
    if (alloc != NULL && !alloc->context->destroyed)
        code = alloc_says(alloc, attribute, &value);
    else if (alloc == NULL && reserve != NULL)
        code = reserve_says(reserve, attribute, &value);
    if (code == FAKE_OK)
        memcpy(out, &value, attribute_width(attribute));
    return code;
}

int fake_pointer(void *out, int attribute, uint64_t address)
{
    bool old = fake_setting(FAKE_DEVICE_OLD) != 0;
    int code = fake_setting(FAKE_DEVICE_POINTER);

    (void)pthread_mutex_lock(&fake_lock);
    if (code == FAKE_OK)
        code = fake_start_wrong();
    if (code == FAKE_OK)
        code = pointer_says(out, attribute, address, old);
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

int fake_pointers(unsigned count, const int *attributes, void *const *out, uint64_t address)
{
    int code = fake_setting(FAKE_DEVICE_POINTER);

    (void)pthread_mutex_lock(&fake_lock);
    if (code == FAKE_OK)
        code = fake_start_wrong();
    for (unsigned i = 0; i < count && code == FAKE_OK; i++)
        if (attribute_width(attributes[i]) == 0 || attributes[i] >= ATTRIBUTE_MAPPING_BYTES)
            code = FAKE_INVALID; /* these are not documented for it */
        else if (pointer_says(out[i], attributes[i], address, false) != FAKE_OK)
            memset(out[i], 0, attribute_width(attributes[i]));
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

/* ---- allocations ----------------------------------------------------------------------------- */

static uint64_t alloc_make(void *context, size_t bytes, uint64_t at, bool host,
                           const struct reserve *reserve)
{
    int fd = memfd_create("fake device", MFD_CLOEXEC);
    int fixed = reserve != NULL ? MAP_FIXED : at != 0 ? MAP_FIXED_NOREPLACE : 0;
    void *guard, *shadow;
    uint64_t address = 0;

    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        abort();
    shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    guard = mmap((void *)(uintptr_t)at, bytes, host ? PROT_READ | PROT_WRITE : PROT_NONE,
                 MAP_SHARED | fixed, fd, 0);
    if (shadow == MAP_FAILED || guard == MAP_FAILED)
        abort();
    (void)close(fd);
    (void)pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < ALLOCS && address == 0; i++)
        if (allocs[i].bytes == 0) {
            address = (uint64_t)(uintptr_t)guard;
            allocs[i] = (struct alloc){.context = context,
                                       .reserve = reserve,
                                       .address = address,
                                       .id = ++ids,
                                       .bytes = bytes,
                                       .shadow = shadow,
                                       .host = host,
                                       .pool = reserve != NULL};
        }
    (void)pthread_mutex_unlock(&fake_lock);
    return address;
}

int fake_alloc(uint64_t *address, size_t bytes)
{
    if (fake_here() == NULL)
        return FAKE_BAD_CONTEXT;
    *address = fake_memory_new(fake_here(), bytes);
    return *address == 0 ? FAKE_NO_MEMORY : FAKE_OK;
}

void fake_free(uint64_t address)
{
    fake_sync();
    fake_memory_free(address);
}

uint64_t fake_memory_at(void *context, size_t bytes, uint64_t address)
{
    return alloc_make(context, bytes, address == 0 ? fake_area_take(bytes) : address, false, NULL);
}

uint64_t fake_memory_new(void *context, size_t bytes)
{
    return fake_memory_at(context, bytes, 0);
}

uint64_t fake_memory_pool(void *context, size_t bytes)
{
    uint64_t address = fake_memory_new(context, bytes);

    (void)pthread_mutex_lock(&fake_lock);
    alloc_find(address)->pool = true;
    (void)pthread_mutex_unlock(&fake_lock);
    return address;
}

uint64_t fake_memory_pinned(void *context, size_t bytes)
{
    return alloc_make(context, bytes, 0, true, NULL);
}

uint64_t fake_memory_reserve(void *context, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t address = 0;

    if (memory == MAP_FAILED)
        abort();
    (void)pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < RESERVES && address == 0; i++)
        if (reserves[i].bytes == 0) {
            address = (uint64_t)(uintptr_t)memory;
            reserves[i] = (struct reserve){.context = context, .address = address, .bytes = bytes};
        }
    (void)pthread_mutex_unlock(&fake_lock);
    return address;
}

void fake_memory_map(uint64_t address, size_t bytes)
{
    const struct reserve *reserve;

    (void)pthread_mutex_lock(&fake_lock);
    reserve = reserve_find(address);
    (void)pthread_mutex_unlock(&fake_lock);
    if (reserve == NULL || alloc_make(reserve->context, bytes, address, false, reserve) == 0)
        abort();
}

void fake_memory_free(uint64_t address)
{
    struct alloc *alloc;

    (void)pthread_mutex_lock(&fake_lock);
    alloc = alloc_find(address);
    if (alloc != NULL) {
        void *guard = (void *)(uintptr_t)alloc->address;

        (void)munmap(alloc->shadow, alloc->bytes);
        if (alloc->reserve == NULL)
            (void)munmap(guard, alloc->bytes);
        else if (mmap(guard, alloc->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                      0) == MAP_FAILED)
            abort();
        alloc->bytes = 0;
    }
    (void)pthread_mutex_unlock(&fake_lock);
}

void fake_memory_reset(void)
{
    for (int i = 0; i < ALLOCS; i++)
        if (allocs[i].bytes != 0)
            fake_memory_free(allocs[i].address);
    for (int i = 0; i < RESERVES; i++) {
        if (reserves[i].bytes != 0)
            (void)munmap((void *)(uintptr_t)reserves[i].address, reserves[i].bytes);
        reserves[i].bytes = 0;
    }
}

/* ---- their bytes ----------------------------------------------------------------------------- */

bool fake_memory_write_if(uint64_t address, const void *from, size_t bytes)
{
    const uint8_t *data = from;
    bool there;
    size_t n;

    (void)pthread_mutex_lock(&fake_lock);
    there = fake_has(address, bytes);
    for (size_t at = 0; there && at < bytes; at += n) {
        uint8_t *part = fake_part(address + at, (n = bytes - at, &n));

        memcpy(part, data + at, n);
    }
    (void)pthread_mutex_unlock(&fake_lock);
    return there;
}

void fake_memory_write(uint64_t address, const void *from, size_t bytes)
{
    if (!fake_memory_write_if(address, from, bytes))
        abort();
}

void fake_memory_read(uint64_t address, void *to, size_t bytes)
{
    uint8_t *data = to;
    size_t n;

    (void)pthread_mutex_lock(&fake_lock);
    if (!fake_has(address, bytes))
        abort();
    for (size_t at = 0; at < bytes; at += n) {
        const uint8_t *part = fake_part(address + at, (n = bytes - at, &n));

        memcpy(data + at, part, n);
    }
    (void)pthread_mutex_unlock(&fake_lock);
}
