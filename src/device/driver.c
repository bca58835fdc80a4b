/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/driver.c: drivers of this process: opened with dlopen, one of each kind, never closed.
 *
 * Any thread. No lock is held while a library is opened: who loses a race lets its copy go. So a
 * fork in between leaves nothing locked in the child.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device/device_int.h"

static const struct device_ops *const driver_ops[DEVICE_KINDS] = {
    [DEVICE_CUDA] = &device_cuda,
    [DEVICE_HIP] = &device_hip,
    [DEVICE_GAUDI] = &device_gaudi,
};

/* Opened, perhaps not started. */
static _Atomic(struct device_driver *) drivers[DEVICE_KINDS];

const struct device_ops *device_ops(const struct device_driver *driver)
{
    return driver->ops;
}

const char *device_bind(struct device_driver *driver, const struct device_symbol *symbols,
                        size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(driver->library, symbols[i].name);

        if (found == NULL)
            return symbols[i].name;
        memcpy((char *)driver + symbols[i].offset, &found, sizeof(found));
    }
    return NULL;
}

/* The first library of the list that the loader has; NULL: none of them. */
static void *driver_library(const char *libraries, int flags, char *out_name, size_t bytes)
{
    while (*libraries != 0) {
        size_t length = strcspn(libraries, "\n");
        void *library;

        if (length < bytes) {
            memcpy(out_name, libraries, length);
            out_name[length] = 0;
            library = dlopen(out_name, RTLD_NOW | RTLD_LOCAL | flags);
            if (library != NULL)
                return library;
        }
        libraries += length + (libraries[length] != 0);
    }
    return NULL;
}

/* Opens a driver that is not known yet. flags: RTLD_NOLOAD, or 0. */
static icms_err driver_open(enum device_kind kind, int flags, struct err_why *why)
{
    const struct device_ops *ops = driver_ops[kind];
    struct device_driver *driver = calloc(1, sizeof(*driver)), *none = NULL;
    const char *missing;
    char name[64] = "";

    if (driver == NULL)
        return err_set(why, ICMS_NO_MEMORY, "cannot open the driver of %s: out of memory",
                       ops->name);
    driver->ops = ops;
    driver->library = driver_library(ops->libraries, flags, name, sizeof(name));
    if (driver->library == NULL) {
        const char *text = dlerror();

        free(driver);
        return err_set(why, ICMS_UNSUPPORTED,
                       "cannot use %s memory: no driver on this machine (%s); %s", ops->name,
                       text == NULL ? "not found" : text, ops->remedy);
    }
    missing = ops->bind(driver);
    if (missing != NULL) {
        (void)err_set(why, ICMS_UNSUPPORTED,
                      "cannot use %s memory: the driver %s is too old: it has no %s; %s", ops->name,
                      name, missing, ops->remedy);
    } else if (atomic_compare_exchange_strong(&drivers[kind], &none, driver)) {
        return ICMS_OK;
    }
    (void)dlclose(driver->library);
    free(driver);
    return missing != NULL ? ICMS_UNSUPPORTED : ICMS_OK;
}

icms_err device_driver_get(enum device_kind kind, struct err_why *why,
                           const struct device_driver **out_driver)
{
    struct device_driver *driver = atomic_load(&drivers[kind]);
    icms_err err = driver == NULL ? driver_open(kind, 0, why) : ICMS_OK;

    if (err == ICMS_OK) {
        driver = atomic_load(&drivers[kind]);
        err = driver->ops->start(driver, why);
    }
    if (err == ICMS_OK)
        *out_driver = driver;
    return err;
}

void device_drivers_look(void)
{
    for (enum device_kind kind = 0; kind < DEVICE_KINDS; kind++)
        if (atomic_load(&drivers[kind]) == NULL)
            (void)!driver_open(kind, RTLD_NOLOAD, NULL); /* not here: nothing to ask */
}

/* Whether the CPU can read there: this call looks at the set of signals before it refuses how that
 * is to be used. */
static bool driver_address_is_readable(const void *address)
{
    const void *set = (const void *)((uintptr_t)address & ~(uintptr_t)7); /* in one page */

    return syscall(SYS_rt_sigprocmask, -1, set, NULL, sizeof(uint64_t)) == 0 || errno != EFAULT;
}

bool device_is_foreign(const void *address)
{
    for (enum device_kind kind = 0; kind < DEVICE_KINDS; kind++) {
        const struct device_driver *driver =
            atomic_load_explicit(&drivers[kind], memory_order_acquire);
        struct device_pointer pointer;

        if (driver == NULL)
            continue;
        if (driver->ops->identify(driver, (uint64_t)(uintptr_t)address, &pointer)) {
            if (pointer.on_device && !(pointer.may_be_host && driver_address_is_readable(address)))
                return true;
        } else if (pointer.is_unsaid && address != NULL && !driver_address_is_readable(address)) {
            return true;
        }
    }
    return false;
}
