/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/memory.c: memory of devices that the caller registered, and the devices it lies on.
 *
 * Any thread. Ranges are a table by address; each has its entry of icms.devices, a context of a
 * device, whose copier (src/device) is made with the first range there and freed with the last.
 * A driver is asked without the handle's lock: meanwhile the entry is `changing`, and who wants it
 * waits. An entry owns its copier from the moment it exists, so that it is not lost when a check
 * fails.
 *
 * Arenas of the handle's link are pinned for each device when memory is registered there and when a
 * volume is opened (client_arenas_pin), and those of an agent that took the place of one that is
 * gone behind the call that noticed it (client_arenas_pin_again). A link goes only when no driver
 * has its arenas (client_link_rele); one that a driver does not let go of is kept for ever.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/json.h"
#include "client/client_int.h"
#include "client/local.h"

/* Allocations that one range may lie in, one behind the other (memory that cuMemMap puts together).
 */
#define MEMORY_ALLOCATIONS 65536

/* ---- the table ------------------------------------------------------------------------------ */

/* How many ranges begin at or before the address. Lock. */
static uint32_t memory_place(const struct icms *icms, uint64_t address)
{
    uint32_t low = 0, high = atomic_load_explicit(&icms->memory_count, memory_order_relaxed);

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (icms->memories[middle]->address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct icms_memory *client_memory_find(const struct icms *icms, const void *address)
{
    uint64_t at = (uint64_t)(uintptr_t)address;
    uint32_t place = memory_place(icms, at);
    struct icms_memory *memory = place == 0 ? NULL : icms->memories[place - 1];

    return memory != NULL && at - memory->address < memory->bytes ? memory : NULL;
}

/* Why a range cannot be registered; OK: it can. Lock. */
static icms_err memory_obstacle(const struct icms *icms, const struct icms_memory *memory,
                                struct err_why *why)
{
    uint32_t count = atomic_load(&icms->memory_count);
    uint32_t place = memory_place(icms, memory->address + memory->bytes - 1);
    const struct icms_memory *other = place == 0 ? NULL : icms->memories[place - 1];

    if (other != NULL && other->address + other->bytes > memory->address)
        return err_set(why, ICMS_INVALID,
                       "cannot register %" PRIu64 " bytes at 0x%" PRIx64
                       ": they overlap with the %" PRIu64 " bytes at 0x%" PRIx64
                       " that are registered; unregister those first",
                       memory->bytes, memory->address, other->bytes, other->address);
    if (count == ICMS_MEMORIES_MAX)
        return err_set(why, ICMS_LIMIT,
                       "cannot register more than %d ranges of memory; register whole allocations",
                       ICMS_MEMORIES_MAX);
    return ICMS_OK;
}

/* Lock. */
static void memory_insert(struct icms *icms, struct icms_memory *memory)
{
    uint32_t count = atomic_load(&icms->memory_count);
    uint32_t place = memory_place(icms, memory->address);

    memmove(&icms->memories[place + 1], &icms->memories[place],
            (count - place) * sizeof(icms->memories[0]));
    icms->memories[place] = memory;
    atomic_store(&icms->memory_count, count + 1);
    if (memory->device != NULL)
        memory->device->memories++;
}

/* Lock. */
static void memory_remove(struct icms *icms, const struct icms_memory *memory)
{
    uint32_t count = atomic_load(&icms->memory_count);
    uint32_t place = memory_place(icms, memory->address);

    check(place > 0 && icms->memories[place - 1] == memory);
    memmove(&icms->memories[place - 1], &icms->memories[place],
            (count - place) * sizeof(icms->memories[0]));
    atomic_store(&icms->memory_count, count - 1);
}

/* ---- what the driver says -------------------------------------------------------------------- */

/* Looks at the whole range: allocations of one context of one device, without a gap. */
static icms_err memory_look(const struct device_driver *driver, struct icms_memory *memory,
                            struct device_place *out_place, struct err_why *why)
{
    const char *name = device_ops(driver)->name;
    uint64_t at = memory->address, end = memory->address + memory->bytes;

    for (uint32_t i = 0; at < end; i++) {
        struct device_pointer pointer;

        if (i == MEMORY_ALLOCATIONS || !device_ops(driver)->look(driver, at, &pointer))
            return err_set(why, ICMS_INVALID,
                           "cannot register %" PRIu64 " bytes at 0x%" PRIx64 ": 0x%" PRIx64
                           " is not %s memory; register memory that the driver "
                           "allocated, of a context that is alive",
                           memory->bytes, memory->address, at, name);
        if (!pointer.on_device)
            return err_set(why, ICMS_INVALID,
                           "cannot register 0x%" PRIx64 " as %s memory: it is host memory, which "
                           "needs no registration",
                           at, name);
        if (i == 0) {
            *out_place =
                (struct device_place){.context = pointer.context, .ordinal = pointer.ordinal};
            memory->id = pointer.id;
        } else {
            memory->id = 0;
        }
        if (pointer.context != out_place->context || pointer.ordinal != out_place->ordinal)
            return err_set(why, ICMS_INVALID,
                           "cannot register %" PRIu64 " bytes at 0x%" PRIx64
                           ": they belong to several devices or contexts",
                           memory->bytes, memory->address);
        if (pointer.base + pointer.bytes <= at)
            break; /* the driver does not say where it ends: every address is asked at its use */
        at = pointer.base + pointer.bytes;
        if (pointer.bytes == 1)
            break;
    }
    return ICMS_OK;
}

/* Memory of no context (pools, cuMemMap) lies in the primary one, as the copier's hold says: so it
 * shares the entry of the other memory there. */
static void memory_place_name(const struct device_driver *driver, struct device_place *place)
{
    if (place->context == NULL && device_ops(driver)->hold(driver, place))
        device_ops(driver)->rele(driver, place); /* the copier holds it */
}

/* ---- devices -------------------------------------------------------------------------------- */

/* Links that were replaced go when no device has their arenas. Lock. */
static void arenas_look(struct icms *icms)
{
    list_for_each_safe (at, &icms->retired) {
        struct client_link *link = container_of(at, struct client_link, retired);

        client_link_rele(link);
    }
}

static void device_landed_inside(void *arg)
{
    struct icms *icms = arg;

    client_lock(icms);
    icms->room_epoch++;
    client_copies_landed(icms);
    arenas_look(icms);
    client_unlock(icms);
}

/* On a copier's thread. */
static void device_landed(void *arg)
{
    (void)!client_guarded(arg, device_landed_inside, arg); /* failed: nobody waits any more */
}

static void device_failed(void *arg, const char *line)
{
    client_log(arg, line);
}

/* The entry of a place, which may be changing; one whose driver failed is none. NULL. Lock. */
static struct client_device *device_find(struct icms *icms, enum icms_memory_kind kind,
                                         const struct device_place *place)
{
    for (int i = 0; i < ICMS_DEVICES_MAX; i++) {
        struct client_device *device = &icms->devices[i];

        if ((device->memories != 0 || device->changing) && device->kind == kind &&
            device->place.context == place->context && device->place.ordinal == place->ordinal &&
            (device->copier == NULL || !device_copier_is_failed(device->copier)))
            return device;
    }
    return NULL;
}

/* Lock. */
static struct client_device *device_free(struct icms *icms)
{
    for (int i = 0; i < ICMS_DEVICES_MAX; i++)
        if (icms->devices[i].memories == 0 && !icms->devices[i].changing)
            return &icms->devices[i];
    return NULL;
}

/* Makes the copier of an entry. Lock; not held meanwhile. */
static icms_err device_make(struct icms *icms, struct client_device *device,
                            const struct device_driver *driver, struct err_why *why)
{
    const struct device_copier_options options = {
        .driver = driver,
        .place = device->place,
        .landed = device_landed,
        .failed = device_failed,
        .arg = icms,
    };
    struct device_copier *copier = NULL;
    icms_err err;

    device->changing = true;
    client_unlock(icms);
    err = device_copier_new(&options, why, &copier);
    device->copier = copier; /* client_lock may not return */
    client_lock(icms);
    device->changing = false;
    check(pthread_cond_broadcast(&icms->changed) == 0);
    return err;
}

/* The entry for a range, with a copier. Lock; not held while it is made. */
static icms_err device_take(struct icms *icms, enum icms_memory_kind kind,
                            const struct device_driver *driver, const struct device_place *place,
                            struct err_why *why, struct client_device **out_device)
{
    struct client_device *device;
    icms_err err = ICMS_OK;

    while ((device = device_find(icms, kind, place)) != NULL && device->changing)
        client_wait(icms);
    if (device == NULL) {
        device = device_free(icms);
        if (device == NULL)
            return err_set(why, ICMS_LIMIT, "cannot use memory of more than %d devices",
                           ICMS_DEVICES_MAX);
        *device = (struct client_device){.kind = kind, .driver = driver, .place = *place};
        err = device_make(icms, device, driver, why);
    }
    if (err == ICMS_OK)
        *out_device = device;
    return err;
}

/* Its driver did not let go of what it has: arenas that it may read stay mapped for ever. Lock. */
static void device_left(struct icms *icms, const struct client_device *device)
{
    if (!device->pinned)
        return;
    if (icms->link != NULL)
        icms->link->kept = true;
    list_for_each (at, &icms->retired)
        container_of(at, struct client_link, retired)->kept = true;
}

/* Frees the copier of an entry that no range needs. Lock; not held meanwhile. */
static void device_drop(struct icms *icms, struct client_device *device)
{
    struct device_copier *copier = device->copier;
    bool let_go;

    if (device->memories != 0)
        return;
    device->changing = true;
    device->copier = NULL;
    client_unlock(icms);
    let_go = device_copier_free(&copier); /* false: it stays behind; no copy is ours any more */
    client_lock(icms);
    if (!let_go)
        device_left(icms, device);
    device->changing = false;
    check(pthread_cond_broadcast(&icms->changed) == 0);
    arenas_look(icms);
}

/* Nothing of an entry is copied any more. True: its driver has no copy. Lock. */
static bool device_halt(struct client_device *device)
{
    struct device_copier *copier = device->copier;

    return copier == NULL || device_copier_halt(copier);
}

bool client_devices_halt(struct icms *icms)
{
    bool quiet = true;

    for (int i = 0; i < ICMS_DEVICES_MAX; i++)
        quiet = device_halt(&icms->devices[i]) && quiet;
    return quiet;
}

/* No driver counts on ranges of a device any more. */
static void device_memories_forget(struct icms *icms, const struct client_device *device)
{
    for (uint32_t i = 0; i < atomic_load(&icms->memory_count); i++)
        if (icms->memories[i]->device == device)
            atomic_store(&icms->memories[i]->users, 0);
}

void client_memories_free(struct icms *icms)
{
    for (int i = 0; i < ICMS_DEVICES_MAX; i++) {
        struct device_copier *copier = icms->devices[i].copier;

        if (device_copier_free(&copier))
            device_memories_forget(icms, &icms->devices[i]);
        else
            device_left(icms, &icms->devices[i]);
        icms->devices[i].copier = NULL;
    }
    /* A driver that does not let go of a copy says so in the range, some day. */
    for (uint32_t i = 0; i < atomic_load(&icms->memory_count); i++)
        if (atomic_load(&icms->memories[i]->users) == 0)
            free(icms->memories[i]);
    free(icms->memories);
    icms->memories = NULL;
    atomic_store(&icms->memory_count, 0);
}

/* ---- arenas --------------------------------------------------------------------------------- */

/* It is said once for a device that values are copied once more there. */
static void arena_refused(struct icms *icms, struct client_device *device,
                          const struct client_map *map, const struct err_why *why)
{
    client_lock(icms);
    if (!device->unpinned)
        (void)snprintf(device->unsaid, sizeof(device->unsaid),
                       "device memory: cannot pin %" PRIu64 " MiB of the agent's memory for %s "
                       "device %d: %s; loads are copied to pinned memory of this process first",
                       map->bytes >> 20, device_ops(device->driver)->name, device->place.ordinal,
                       why->text);
    device->unpinned = true;
    client_unlock(icms);
}

/* Pins the arenas of a device, which is held. */
static void arenas_pin(struct icms *icms, struct client_device *device,
                       struct client_map *const *maps, uint32_t count)
{
    bool read_only = icms->local == NULL;

    for (uint32_t i = 0; i < count; i++) {
        struct err_why why = {{0}};

        if (device_copier_pin(device->copier, maps[i]->base, maps[i]->bytes, read_only, &why) !=
            ICMS_OK)
            arena_refused(icms, device, maps[i], &why);
    }
}

/* Arenas of open volumes whose values are copied as they lie. Lock. */
static uint32_t arenas_list(const struct icms *icms, struct client_map **out_maps)
{
    uint32_t count = 0;

    list_for_each (at, &icms->volumes) {
        const struct icms_volume *volume = container_of(at, struct icms_volume, link);
        struct client_map *map = client_volume_map(icms->link, client_view(volume)->info.name);

        if (map == NULL || volume->keys != NULL || count == LIMIT_AGENT_VOLUMES)
            continue;
        out_maps[count++] = map;
    }
    return count;
}

/* A volume of which it was not said yet that it is staged: its name. Lock. */
static bool staged_next(const struct icms *icms, char *out_name, size_t bytes)
{
    list_for_each (at, &icms->volumes) {
        struct icms_volume *volume = container_of(at, struct icms_volume, link);

        if (volume->keys == NULL || volume->staged)
            continue;
        volume->staged = true;
        (void)snprintf(out_name, bytes, "%s", client_view(volume)->info.name);
        return true;
    }
    return false;
}

/* Where a drive might be read past the host, for each encrypted volume once: it is not. */
static void staged_say(struct icms *icms)
{
    char name[sizeof(((struct icms_volume_info *)0)->name)], line[sizeof(name) + 160];
    bool said, applies = false;

    if (icms->local == NULL || !client_local_has_drive(icms->local))
        return;
    do {
        client_lock(icms);
        for (int i = 0; i < ICMS_DEVICES_MAX; i++)
            applies = applies ||
                      (icms->devices[i].memories != 0 && icms->devices[i].kind == ICMS_MEMORY_CUDA);
        said = applies && staged_next(icms, name, sizeof(name));
        client_unlock(icms);
        (void)snprintf(line, sizeof(line),
                       "volume %s: encrypted: its values are decrypted in pinned memory of the "
                       "host and copied to the GPU from there; cuFile (GDS) never reads them",
                       name);
        if (said)
            client_log(icms, line);
    } while (said);
}

void client_arenas_pin(struct icms *icms)
{
    struct client_map *maps[LIMIT_AGENT_VOLUMES];
    uint32_t count;

    if (atomic_load(&icms->memory_count) == 0 || client_call_begin(icms) != ICMS_OK)
        return;
    client_lock(icms);
    count = arenas_list(icms, maps);
    for (int i = 0; i < ICMS_DEVICES_MAX && count != 0; i++) {
        struct client_device *device = &icms->devices[i];

        if (device->memories == 0 || device->changing)
            continue;
        device->memories++; /* it keeps the copier */
        device->pinned = true;
        client_unlock(icms);
        arenas_pin(icms, device, maps, count);
        client_lock(icms);
        device->memories--;
        device_drop(icms, device);
    }
    client_call_leave(icms);
    client_unlock(icms);
}

void client_arenas_say(struct icms *icms)
{
    char line[CLIENT_LINE_BYTES];

    if (atomic_load(&icms->memory_count) == 0)
        return;
    for (int i = 0; i < ICMS_DEVICES_MAX; i++) {
        struct client_device *device = &icms->devices[i];

        client_lock(icms);
        memcpy(line, device->unsaid, sizeof(line));
        device->unsaid[0] = 0;
        client_unlock(icms);
        if (line[0] != 0)
            client_log(icms, line);
    }
    staged_say(icms);
}

void client_arenas_pin_again(struct icms *icms)
{
    struct client_map *maps[LIMIT_AGENT_VOLUMES];
    uint32_t count = arenas_list(icms, maps);

    for (int i = 0; i < ICMS_DEVICES_MAX && count != 0; i++) {
        struct client_device *device = &icms->devices[i];

        if (device->memories == 0 || device->changing) /* who registers there pins them */
            continue;
        device->pinned = true;
        for (uint32_t n = 0; n < count; n++)
            device_copier_pin_later(device->copier, maps[n]->base, maps[n]->bytes, true);
    }
}

bool client_arenas_unpin(struct icms *icms, const struct client_link *link)
{
    bool gone = true;

    for (int i = 0; i < ICMS_DEVICES_MAX; i++) {
        const struct client_device *device = &icms->devices[i];

        if (!device->pinned)
            continue;
        if (device->changing) /* who changes it looks again */
            gone = false;
        for (uint32_t n = 0; n < link->arena_count && device->copier != NULL; n++)
            gone = device_copier_unpin(device->copier, link->maps[n].base) && gone;
    }
    return gone;
}

/* ---- state ---------------------------------------------------------------------------------- */

struct devices_call {
    struct icms *icms;
    struct json json;
};

static void device_put(struct json *json, const struct client_device *device, bool is_inside)
{
    struct device_reads reads;
    char name[32];

    device_copier_reads(device->copier, &reads);
    if (!is_inside) {
        reads.way = "host";
        (void)snprintf(reads.why, sizeof(reads.why), "the agent is another process");
    }
    (void)snprintf(name, sizeof(name), "%s %d", device_ops(device->driver)->name,
                   device->place.ordinal);
    json_put_object(json, NULL);
    json_put_string(json, "device", name);
    json_put_string(json, "drive_reads", reads.way);
    json_put_string(json, "why", reads.why);
    json_put_uint(json, "past_host", reads.reads);
    json_put_uint(json, "past_host_bytes", reads.bytes);
    json_put_end(json);
}

static void devices_inside(void *arg)
{
    struct devices_call *call = arg;
    struct icms *icms = call->icms;

    client_lock(icms);
    json_put_array(&call->json, NULL);
    for (int i = 0; i < ICMS_DEVICES_MAX; i++)
        if (icms->devices[i].memories != 0 && !icms->devices[i].changing)
            device_put(&call->json, &icms->devices[i], icms->local != NULL);
    json_put_end(&call->json);
    client_unlock(icms);
}

size_t client_devices_text(struct icms *icms, char *out, size_t bytes)
{
    struct devices_call call = {.icms = icms};
    size_t length;

    json_init(&call.json, out, bytes);
    if (atomic_load(&icms->memory_count) == 0 || !client_guarded(icms, devices_inside, &call))
        return 0;
    length = json_finish(&call.json);
    return length < bytes ? length : 0;
}

/* ---- calls ---------------------------------------------------------------------------------- */

struct memory_call {
    struct icms *icms;
    struct icms_memory *memory;
    struct err_why *why;
    icms_err err;
};

/* Lock. */
static icms_err memory_add(struct memory_call *call, const struct device_driver *driver,
                           const struct device_place *place)
{
    struct icms *icms = call->icms;
    struct icms_memory *memory = call->memory;
    icms_err err;

    if (icms->memories == NULL)
        icms->memories = calloc(ICMS_MEMORIES_MAX, sizeof(*icms->memories));
    if (icms->memories == NULL)
        return err_set(call->why, ICMS_NO_MEMORY, "cannot register memory: out of memory");
    err = memory_obstacle(icms, memory, call->why);
    if (err != ICMS_OK || driver == NULL) {
        if (err == ICMS_OK)
            memory_insert(icms, memory);
        return err;
    }
    err = device_take(icms, memory->kind, driver, place, call->why, &memory->device);
    if (err != ICMS_OK)
        return err;
    err = memory_obstacle(icms, memory, call->why); /* the lock was not held all the time */
    if (err == ICMS_OK)
        memory_insert(icms, memory);
    else
        device_drop(icms, memory->device);
    return err;
}

/* By kind of memory; that of the host has none. */
static const enum device_kind memory_drivers[] = {
    [ICMS_MEMORY_CUDA] = DEVICE_CUDA,
    [ICMS_MEMORY_HIP] = DEVICE_HIP,
    [ICMS_MEMORY_GAUDI] = DEVICE_GAUDI,
};

static void register_inside(void *arg)
{
    struct memory_call *call = arg;
    struct icms *icms = call->icms;
    const struct device_driver *driver = NULL;
    struct device_place place = {0};

    call->err = ICMS_OK;
    if (call->memory->kind != ICMS_MEMORY_HOST) {
        call->err = device_driver_get(memory_drivers[call->memory->kind], call->why, &driver);
        if (call->err == ICMS_OK)
            call->err = memory_look(driver, call->memory, &place, call->why);
    }
    if (call->err != ICMS_OK)
        return;
    if (driver != NULL)
        memory_place_name(driver, &place);
    client_lock(icms);
    if (icms->state == ICMS_STATE_CLOSING)
        call->err = ICMS_CLOSED;
    else
        call->err = memory_add(call, driver, &place);
    client_unlock(icms);
    if (call->err == ICMS_OK && driver != NULL)
        client_arenas_pin(icms);
}

/* What is wrong with a call before anything is asked. */
static icms_err register_wrong(const struct icms *icms, enum icms_memory_kind kind,
                               const void *address, uint64_t bytes, struct err_why *why)
{
    if (client_forked(icms))
        return err_set(why, ICMS_FORKED,
                       "cannot register memory: the handle was opened by another "
                       "process; open one in this process");
    if ((unsigned)kind >= sizeof(memory_drivers) / sizeof(memory_drivers[0]))
        return err_set(why, ICMS_INVALID, "cannot register memory: no such kind of memory: %d",
                       (int)kind);
    if (address == NULL || bytes == 0 || (uint64_t)(uintptr_t)address + bytes < bytes)
        return err_set(why, ICMS_INVALID,
                       "cannot register %" PRIu64 " bytes at 0x%" PRIxPTR ": that is no range",
                       bytes, (uintptr_t)address);
    return ICMS_OK;
}

icms_err icms_memory_register(struct icms *icms, enum icms_memory_kind kind, void *address,
                              uint64_t bytes, char *why, size_t why_bytes,
                              struct icms_memory **out_memory)
{
    struct err_why sentence = {{0}};
    struct memory_call call = {.icms = icms, .why = &sentence};

    if (icms == NULL || icms->magic != CLIENT_ICMS_MAGIC || out_memory == NULL)
        return ICMS_INVALID;
    call.err = register_wrong(icms, kind, address, bytes, &sentence);
    if (call.err == ICMS_OK) {
        call.memory = calloc(1, sizeof(*call.memory));
        if (call.memory == NULL)
            call.err = ICMS_NO_MEMORY;
    }
    if (call.err == ICMS_OK) {
        *call.memory = (struct icms_memory){.magic = CLIENT_MEMORY_MAGIC,
                                            .kind = kind,
                                            .icms = icms,
                                            .address = (uint64_t)(uintptr_t)address,
                                            .bytes = bytes};
        if (!client_guarded(icms, register_inside, &call))
            call.err = ICMS_CLOSED;
    }
    if (call.err == ICMS_OK) {
        *out_memory = call.memory;
        client_arenas_say(icms);
        return ICMS_OK;
    }
    free(call.memory);
    if (sentence.text[0] == 0)
        (void)err_set(&sentence, call.err, "cannot register memory: %s", icms_err_text(call.err));
    client_why(&sentence, why, why_bytes);
    return call.err;
}

static void unregister_inside(void *arg)
{
    struct memory_call *call = arg;
    struct icms *icms = call->icms;
    struct icms_memory *memory = call->memory;
    struct client_device *device = memory->device;

    client_lock(icms);
    call->err = atomic_load(&memory->users) == 0 ? ICMS_OK : ICMS_BUSY;
    if (call->err == ICMS_OK) {
        memory_remove(icms, memory);
        if (device != NULL) {
            device->memories--;
            device_drop(icms, device);
        }
    }
    client_unlock(icms);
}

/* In a handle that failed: whether a device may still use the range. */
static bool memory_is_quiet(const struct icms_memory *memory)
{
    bool quiet;

    client_lock(memory->icms);
    quiet = memory->device == NULL || device_halt(memory->device);
    client_unlock(memory->icms);
    return quiet;
}

icms_err icms_memory_unregister(struct icms_memory **memory)
{
    struct icms_memory *m = memory == NULL ? NULL : *memory;
    struct memory_call call = {.memory = m};

    if (m == NULL)
        return ICMS_OK;
    if (m->magic != CLIENT_MEMORY_MAGIC)
        return ICMS_INVALID;
    if (client_forked(m->icms))
        return ICMS_FORKED;
    call.icms = m->icms;
    if (!client_guarded(m->icms, unregister_inside, &call)) {
        if (!memory_is_quiet(m))
            return ICMS_BUSY;
        *memory = NULL; /* icms_close frees it */
        return ICMS_OK;
    }
    if (call.err != ICMS_OK)
        return call.err;
    m->magic = 0;
    free(m);
    *memory = NULL;
    return ICMS_OK;
}
