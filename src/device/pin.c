/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/pin.c: pinned memory that copies use: pieces of the copier's own, and ranges of the
 * caller's.
 *
 * Any thread; the copier's thread unpins while the copier lives, and a thread that exists as long
 * as it takes (the pinner) pins what its owner does not wait for: that can take the driver seconds,
 * and copies go on. A range of the caller's counts the copies that read it; one that is to go
 * (leaving) is unpinned when no copy is left. What the driver does not unpin stays in the table for
 * ever, so that its owner never unmaps it: a driver that goes on believing in a pin would copy from
 * the old pages whatever is mapped there later.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "device/copier_int.h"

/* ---- memory of the copier -------------------------------------------------------------------- */

static uint32_t pinned_granules(uint64_t bytes)
{
    uint64_t granules = (bytes + DEVICE_PINNED_GRANULE - 1) / DEVICE_PINNED_GRANULE;

    return granules == 0 ? 1 : (uint32_t)granules;
}

uint8_t *copier_memory_take(struct device_copier *copier, uint64_t bytes)
{
    uint32_t total = (uint32_t)(copier->bytes / DEVICE_PINNED_GRANULE), run = 0;
    uint32_t wanted = pinned_granules(bytes);

    for (uint32_t i = 0; i < total; i++) {
        run = copier->taken[i] != 0 ? 0 : run + 1;
        if (run < wanted)
            continue;
        memset(&copier->taken[i + 1 - wanted], 1, wanted);
        return copier->memory + (i + 1 - wanted) * DEVICE_PINNED_GRANULE;
    }
    return NULL;
}

void copier_memory_give(struct device_copier *copier, const uint8_t *memory, uint64_t bytes)
{
    size_t first = (size_t)(memory - copier->memory) / DEVICE_PINNED_GRANULE;

    memset(&copier->taken[first], 0, pinned_granules(bytes));
}

/* ---- memory of the caller -------------------------------------------------------------------- */

/* The range that has all of this; NULL. Lock. */
static struct device_pin *pin_find(struct device_copier *copier, const void *memory, uint64_t bytes)
{
    const uint8_t *at = memory;

    for (int i = 0; i < DEVICE_PINS; i++) {
        struct device_pin *pin = &copier->pins[i];

        if (pin->memory != NULL && at >= pin->memory && (uint64_t)(at - pin->memory) < pin->bytes &&
            bytes <= pin->bytes - (uint64_t)(at - pin->memory))
            return pin;
    }
    return NULL;
}

/* A free entry for a range, ASKED. OK with NULL: it is pinned, or will be. Lock. */
static icms_err pin_begin(struct device_copier *copier, const struct device_pin *wanted,
                          struct device_pin **out_pin)
{
    const struct device_pin *pin = pin_find(copier, wanted->memory, wanted->bytes);

    *out_pin = NULL;
    if (pin != NULL)
        return pin->leaving ? ICMS_BUSY : ICMS_OK;
    if (copier->halted || atomic_load(&copier->failed))
        return ICMS_DEVICE;
    for (int i = 0; i < DEVICE_PINS; i++)
        if (copier->pins[i].memory == NULL) {
            *out_pin = &copier->pins[i];
            **out_pin = *wanted;
            return ICMS_OK;
        }
    return ICMS_LIMIT;
}

/* What the driver says to a range. No lock. */
static int pin_ask(const struct device_copier *copier, const struct device_pin *pin)
{
    const struct device_driver *driver = copier->options.driver;
    const struct device_ops *ops = device_ops(driver);
    struct device_before before;
    int code = ops->enter(driver, &copier->options.place, &before);

    if (code == 0) {
        code = ops->pin(driver, pin->memory, pin->bytes, pin->read_only);
        ops->leave(driver, &before);
    }
    return code;
}

/* It has said so. Lock. */
static void pin_asked(struct device_copier *copier, struct device_pin *pin, bool pinned)
{
    pin->asked = false;
    if (!pinned)
        pin->memory = NULL;
    (void)pthread_cond_broadcast(&copier->changed);
}

icms_err device_copier_pin(struct device_copier *copier, void *memory, uint64_t bytes,
                           bool read_only, struct err_why *why)
{
    const struct device_driver *driver = copier->options.driver;
    const struct device_pin wanted = {
        .memory = memory, .bytes = bytes, .read_only = read_only, .asked = true};
    char text[DEVICE_TEXT_BYTES];
    struct device_pin *pin;
    icms_err err;
    int code;

    copier_lock(copier);
    while ((pin = pin_find(copier, memory, bytes)) != NULL && pin->asked)
        (void)pthread_cond_wait(&copier->changed, &copier->lock);
    err = pin_begin(copier, &wanted, &pin);
    copier_unlock(copier);
    if (pin == NULL)
        return err == ICMS_OK ? ICMS_OK : err_set(why, err, "%s", icms_err_text(err));
    code = pin_ask(copier, pin);
    copier_lock(copier);
    pin_asked(copier, pin, code == 0);
    copier_unlock(copier);
    if (code == 0)
        return ICMS_OK;
    device_ops(driver)->text(driver, code, text, sizeof(text));
    return err_set(why, ICMS_DEVICE, "%s", text);
}

/* Says once that a range is not pinned. Lock; not held meanwhile. */
static void pin_say(struct device_copier *copier, uint64_t bytes, int code)
{
    const struct device_driver *driver = copier->options.driver;
    char text[DEVICE_TEXT_BYTES], line[DEVICE_TEXT_BYTES + 160];

    if (copier->unpinned)
        return;
    copier->unpinned = true;
    device_ops(driver)->text(driver, code, text, sizeof(text));
    (void)snprintf(line, sizeof(line),
                   "device memory: cannot pin %" PRIu64
                   " MiB again for %s device %d: %s; loads are "
                   "copied to pinned memory of this process first",
                   bytes >> 20, device_ops(driver)->name, copier->options.place.ordinal, text);
    copier_call(copier, line);
}

/* Lock. */
static struct device_pin *pin_wanted(struct device_copier *copier)
{
    for (int i = 0; i < DEVICE_PINS; i++)
        if (copier->pins[i].memory != NULL && copier->pins[i].wanted)
            return &copier->pins[i];
    return NULL;
}

/* The pinner: as long as there are ranges that are wanted. */
static void *pinner_run(void *arg)
{
    struct device_copier *copier = arg;
    struct device_pin *pin;

    copier_lock(copier);
    while ((pin = pin_wanted(copier)) != NULL) {
        bool stays = !pin->leaving && !copier->halted && !copier->closed;
        uint64_t bytes = pin->bytes;
        int code = 0;

        pin->wanted = false;
        if (stays) {
            copier_unlock(copier);
            code = pin_ask(copier, pin);
            copier_lock(copier);
        }
        pin_asked(copier, pin, stays && code == 0);
        if (code != 0)
            pin_say(copier, bytes, code);
        if (!stays || code != 0)
            copier_call(copier, NULL); /* its owner may wait for it to be gone */
    }
    copier->pinning = false;
    (void)pthread_cond_broadcast(&copier->changed);
    copier_unlock(copier);
    return NULL;
}

/* There is no thread for them. */
static void pins_give_up(struct device_copier *copier)
{
    struct device_pin *pin;

    copier_lock(copier);
    while ((pin = pin_wanted(copier)) != NULL)
        pin_asked(copier, pin, false);
    copier->pinning = false;
    copier_unlock(copier);
}

void device_copier_pin_later(struct device_copier *copier, void *memory, uint64_t bytes,
                             bool read_only)
{
    const struct device_pin wanted = {
        .memory = memory, .bytes = bytes, .read_only = read_only, .wanted = true, .asked = true};
    struct device_pin *pin;
    bool start;

    copier_lock(copier);
    (void)!pin_begin(copier, &wanted, &pin); /* there, or no room: values are copied once more */
    start = pin != NULL && !copier->pinning;
    copier->pinning = copier->pinning || start;
    copier_unlock(copier);
    if (!start)
        return;
    if (copier->has_pinner)
        (void)pthread_join(copier->pinner, NULL); /* it ended: pinning was false */
    copier->has_pinner = copier_thread(&copier->pinner, pinner_run, copier);
    if (!copier->has_pinner)
        pins_give_up(copier);
}

bool device_copier_unpin(struct device_copier *copier, const void *memory)
{
    bool gone = true;

    copier_lock(copier);
    for (int i = 0; i < DEVICE_PINS; i++)
        if (copier->pins[i].memory != NULL && copier->pins[i].memory == memory) {
            copier->pins[i].leaving = true;
            gone = false;
            (void)pthread_cond_broadcast(&copier->changed);
        }
    copier_unlock(copier);
    return gone;
}

struct device_pin *copier_pin_leaving(struct device_copier *copier)
{
    for (int i = 0; i < DEVICE_PINS; i++) {
        struct device_pin *pin = &copier->pins[i];

        if (pin->memory != NULL && pin->leaving && pin->copies == 0 && !pin->asked && !pin->kept)
            return pin;
    }
    return NULL;
}

/* In the place, if that can be entered. True: the driver has let go of it. */
static bool pin_drop(const struct device_copier *copier, const struct device_pin *pin)
{
    const struct device_driver *driver = copier->options.driver;
    struct device_before before;
    int code = device_ops(driver)->unpin(driver, pin->memory);

    if (code == 0 || code == DEVICE_DESTROYED || code == DEVICE_NOT_PINNED)
        return true;
    /* A context that is destroyed takes its pins along. */
    code = device_ops(driver)->enter(driver, &copier->options.place, &before);
    if (code == 0)
        device_ops(driver)->leave(driver, &before);
    return device_is_gone(code);
}

bool copier_pins_leave(struct device_copier *copier)
{
    struct device_pin *pin;
    bool some = false, gone;

    while ((pin = copier_pin_leaving(copier)) != NULL) {
        pin->asked = true;
        copier_unlock(copier);
        gone = pin_drop(copier, pin);
        copier_lock(copier);
        pin->asked = false;
        pin->kept = !gone;
        if (gone)
            pin->memory = NULL;
        (void)pthread_cond_broadcast(&copier->changed); /* who wants to pin it again */
        some = some || gone;
    }
    return some;
}

bool device_copy_from(struct device_copy *copy, const void *from, uint64_t bytes,
                      void (*let_go)(void *arg, uint32_t number), void *arg, uint32_t number)
{
    struct device_copier *copier = copy->copier;
    struct device_pin *pin;

    check(!copy->started && copy->pin == NULL && bytes <= copy->bytes);
    copier_lock(copier);
    pin = pin_find(copier, from, bytes);
    if (pin != NULL && (pin->asked || pin->leaving))
        pin = NULL;
    if (pin != NULL) {
        copier_memory_give(copier, copy->memory, copy->bytes);
        copy->pin = pin;
        pin->copies++;
        copy->memory = (uint8_t *)(uintptr_t)from; /* only read: see device_order.direction */
        copy->let_go = let_go;
        copy->let_go_arg = arg;
        copy->let_go_number = number;
    }
    copier_unlock(copier);
    return pin != NULL;
}

bool copier_pins_drop(struct device_copier *copier, int code)
{
    bool all = true;

    for (int i = 0; i < DEVICE_PINS; i++) {
        struct device_pin *pin = &copier->pins[i];

        if (pin->memory != NULL && code == 0)
            all = pin_drop(copier, pin) && all;
        else if (pin->memory != NULL)
            all = device_is_gone(code) && all;
    }
    return all;
}
