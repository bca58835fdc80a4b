/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/driver.h: what libicms asks of the driver of a GPU, as a table of functions.
 *
 * A driver is a shared library of the machine that is opened while the process runs: libcuda.so.1
 * (cuda.c), libamdhip64.so (hip.c) or libSynapse.so (gaudi.c). No header of theirs is used; each
 * file declares the few functions that it calls. Another kind of device is another table.
 *
 * Functions that return int return the driver's own code: 0 is success, DEVICE_NOT_READY an event
 * that has not happened; device_text() names the others. Any thread, unless a line says otherwise.
 */
#ifndef DEVICE_DRIVER_H
#define DEVICE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* The same numbers in CUDA and HIP; others are translated. */
#define DEVICE_BAD_CONTEXT   201 /* there is no such context */
#define DEVICE_NOT_READY     600
#define DEVICE_DESTROYED     709 /* the context is gone, and all that it ran */
#define DEVICE_NOT_PINNED    713 /* the driver has no pin there */
#define DEVICE_NOT_SUPPORTED 801 /* the driver or the device has no such thing */

/* Whether a place that cannot be entered, for this code, is gone for good, with all that it ran and
 * pinned. */
static inline bool device_is_gone(int entered)
{
    return entered == DEVICE_DESTROYED || entered == DEVICE_BAD_CONTEXT;
}

/* Some stream is being captured to a graph, and the driver refuses a call for it: nothing has
 * happened to what the call asked for. The same numbers in CUDA and HIP. */
#define DEVICE_CAPTURE_FIRST 900
#define DEVICE_CAPTURE_LAST  907

static inline bool device_is_capture(int code)
{
    return code >= DEVICE_CAPTURE_FIRST && code <= DEVICE_CAPTURE_LAST;
}

/* Room for the name of a code and its sentence. */
#define DEVICE_TEXT_BYTES 160

enum device_kind {
    DEVICE_CUDA,
    DEVICE_HIP,
    DEVICE_GAUDI,
    DEVICE_KINDS,
};

/* What a driver says of an address. */
struct device_pointer {
    bool is_unsaid;   /* with look's false: what is there, if something is. The driver is not
                         started in this process, or ended with it: a child of fork() has the
                         addresses of its parent, too. Or the address is only reserved          */
    bool on_device;   /* the CPU cannot touch it; else it is host memory that the driver knows   */
    bool may_be_host; /* on_device says what the device has: the CPU may have other memory there */
    void *context; /* that the memory belongs to; NULL: to the device alone                       */
    int ordinal;   /* of the device                                                          */
    uint64_t base; /* the allocation around the address                                      */
    uint64_t bytes; /* of the allocation                                                      */
    uint64_t id;    /* of the allocation, never given to another one; 0: the driver has none, or
                       base and bytes may be those of several                                    */
};

/* Where streams, events and copies of a thread go: one context of one device. */
struct device_place {
    void *context; /* CUDA; else NULL */
    int ordinal;
};

/* What a thread had before it entered a place. */
struct device_before {
    int ordinal; /* HIP: its device                              */
    int capture; /* what it may do while a stream is captured    */
};

struct device_driver;

struct device_ops {
    const char *name;      /* "CUDA"                                             */
    const char *remedy;    /* what to do where the library is missing or too old */
    const char *libraries; /* names that the loader is asked for, a line each    */

    /* Finds the functions in the library that was opened; the name of what is missing, or NULL. */
    const char *(*bind)(struct device_driver *driver);

    /* Starts the driver in this process. */
    icms_err (*start)(const struct device_driver *driver, struct err_why *why);

    /* What an address is. False: the driver does not know it, or nothing (is_unsaid). Never waits
     * for a device. */
    bool (*look)(const struct device_driver *driver, uint64_t address,
                 struct device_pointer *out_pointer);

    /* The same without base and bytes, for each copy: it costs one call of a driver that can. */
    bool (*identify)(const struct device_driver *driver, uint64_t address,
                     struct device_pointer *out_pointer);

    /* Keeps the context of a place alive where the driver counts who uses it, and names one where
     * the place has none. True: rele has to follow. */
    bool (*hold)(const struct device_driver *driver, struct device_place *place);
    void (*rele)(const struct device_driver *driver, const struct device_place *place);

    /* What this thread asks for goes to the place, until leave, and neither fails nor breaks a
     * capture because another stream is captured (graphs). */
    int (*enter)(const struct device_driver *driver, const struct device_place *place,
                 struct device_before *out_before);
    void (*leave)(const struct device_driver *driver, const struct device_before *before);

    /* All below: in a place. Pins host memory for copies; read_only: also a mapping that may not be
     * written to. */
    int (*pin)(const struct device_driver *driver, void *memory, size_t bytes, bool read_only);
    int (*unpin)(const struct device_driver *driver, void *memory);
    int (*memory_new)(const struct device_driver *driver, size_t bytes, uint64_t *out_address);
    void (*memory_free)(const struct device_driver *driver, uint64_t address);
    int (*stream_new)(const struct device_driver *driver, void **out_stream);
    void (*stream_free)(const struct device_driver *driver, void *stream);
    /* Whether the stream is captured: events and waits would become part of the graph. */
    bool (*stream_captures)(const struct device_driver *driver, void *stream);
    int (*event_new)(const struct device_driver *driver, void **out_event);
    void (*event_free)(const struct device_driver *driver, void *event);
    int (*event_record)(const struct device_driver *driver, void *event, void *stream);
    int (*event_query)(const struct device_driver *driver, void *event);
    int (*stream_wait)(const struct device_driver *driver, void *stream, void *event);
    int (*copy_in)(const struct device_driver *driver, uint64_t device, const void *host,
                   size_t bytes, void *stream);
    int (*copy_out)(const struct device_driver *driver, void *host, uint64_t device, size_t bytes,
                    void *stream);

    /* Between two places of the device; NULL: this driver has no reads past the host either. */
    int (*copy_between)(const struct device_driver *driver, uint64_t to, uint64_t from,
                        size_t bytes, void *stream);

    /* The name of a code and what it means, as the driver says it. */
    void (*text)(const struct device_driver *driver, int code, char *out, size_t bytes);
};

/* The per-thread default stream, in CUDA and HIP: it belongs to the thread that names it. */
#define DEVICE_STREAM_PER_THREAD ((uintptr_t)2)

/* The driver of a kind, opened and started once a process, and never closed. UNSUPPORTED: there is
 * none here, it is too old, or it does not start; the sentence says why, and a later call tries
 * again. */
icms_err device_driver_get(enum device_kind kind, struct err_why *why,
                           const struct device_driver **out_driver) ICMS_MUST_CHECK;

/* Looks whether drivers are in this process already, so that device_is_foreign() can ask them.
 * Starts nothing. */
void device_drivers_look(void);

/* Whether a driver that is in this process says that the CPU cannot touch the address, or cannot
 * say what it is, as in a child of fork(), and the kernel says so. Without one it is two loads. */
bool device_is_foreign(const void *address);

const struct device_ops *device_ops(const struct device_driver *driver);

#endif
