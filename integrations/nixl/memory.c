/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of GPUs that an application registers. Called by plugin.cpp on any thread.
 *
 * libicms takes a range once. NIXL's users register one twice, or parts of it: what lies in a range
 * that is there counts as a user of it. Ranges that are registered while there is no agent yet wait
 * for it (nixl_memories_attach).
 */
#include <stdlib.h>
#include <unistd.h>

#include "base/check.h"
#include "nixl/nixl_int.h"

/* How often, and how long, a range is asked again whose copies are still with the driver. */
#define MEMORY_TRY_US 10000
#define MEMORY_TRIES  200

static void memories_lock(struct nixl_tier *tier)
{
    check(pthread_mutex_lock(&tier->memory_lock) == 0);
}

static void memories_unlock(struct nixl_tier *tier)
{
    check(pthread_mutex_unlock(&tier->memory_lock) == 0);
}

/* With libicms: CUDA, or where that is not on this machine, HIP, or Gaudi. */
static icms_err memory_add(const struct nixl_tier *tier, struct nixl_memory *memory, char *why,
                           size_t why_bytes)
{
    static const enum icms_memory_kind others[] = {ICMS_MEMORY_HIP, ICMS_MEMORY_GAUDI};
    char other[512] = "";
    icms_err err = icms_memory_register(tier->icms, ICMS_MEMORY_CUDA, memory->address,
                                        memory->bytes, why, why_bytes, &memory->registered);

    for (size_t i = 0; err == ICMS_UNSUPPORTED && i < sizeof(others) / sizeof(*others); i++)
        if (icms_memory_register(tier->icms, others[i], memory->address, memory->bytes, other,
                                 sizeof(other), &memory->registered) == ICMS_OK)
            return ICMS_OK;
    return err;
}

/* The range that has all of these bytes; NULL. Lock. */
static struct nixl_memory *memory_around(struct nixl_tier *tier, const uint8_t *address,
                                         uint64_t bytes)
{
    list_for_each (at, &tier->memories) {
        struct nixl_memory *memory = container_of(at, struct nixl_memory, link);
        const uint8_t *begin = memory->address;

        if (address >= begin && bytes <= memory->bytes &&
            (uint64_t)(address - begin) <= memory->bytes - bytes)
            return memory;
    }
    return NULL;
}

/* Forgets ranges that were busy when they were unregistered. Lock. */
static void memories_sweep(struct nixl_tier *tier)
{
    list_for_each_safe (at, &tier->memories) {
        struct nixl_memory *memory = container_of(at, struct nixl_memory, link);

        if (memory->users != 0 || icms_memory_unregister(&memory->registered) != ICMS_OK)
            continue;
        list_remove(&memory->link);
        free(memory);
    }
}

icms_err nixl_memory_register(struct nixl_tier *tier, void *address, uint64_t bytes, char *why,
                              size_t why_bytes, struct nixl_memory **out_memory)
{
    struct nixl_memory *memory;
    icms_err err = ICMS_OK;

    if (tier->owner != getpid())
        return ICMS_FORKED;
    memories_lock(tier);
    memories_sweep(tier);
    memory = memory_around(tier, address, bytes);
    if (memory != NULL && memory->users == 0) {
        memory = NULL;
        err = ICMS_BUSY;
    } else if (memory == NULL) {
        memory = calloc(1, sizeof(*memory));
        if (memory == NULL) {
            memories_unlock(tier);
            return ICMS_NO_MEMORY;
        }
        memory->address = address;
        memory->bytes = bytes;
        err = memory_add(tier, memory, why, why_bytes);
        if (err == ICMS_OK)
            list_push(&tier->memories, &memory->link);
        else
            free(memory);
    }
    if (err == ICMS_OK) {
        memory->users++;
        *out_memory = memory;
    }
    memories_unlock(tier);
    return err;
}

icms_err nixl_memory_unregister(struct nixl_tier *tier, struct nixl_memory **memory_pointer)
{
    struct nixl_memory *memory = *memory_pointer;
    icms_err err = ICMS_OK;

    *memory_pointer = NULL;
    if (memory == NULL || tier->owner != getpid())
        return ICMS_OK;
    memories_lock(tier);
    if (--memory->users == 0) {
        for (int i = 0; i < MEMORY_TRIES; i++) {
            err = icms_memory_unregister(&memory->registered);
            if (err != ICMS_BUSY)
                break;
            (void)usleep(MEMORY_TRY_US);
        }
        if (err != ICMS_BUSY) { /* else memories_sweep looks again */
            list_remove(&memory->link);
            free(memory);
        }
    }
    memories_unlock(tier);
    return err;
}

void nixl_memories_free(struct nixl_tier *tier)
{
    struct list *at;

    while ((at = list_pop(&tier->memories)) != NULL)
        free(container_of(at, struct nixl_memory, link));
}
