/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_int.h: what the files of src/device share: a driver with the functions of its library.
 */
#ifndef DEVICE_INT_H
#define DEVICE_INT_H

#include "device/driver.h"

/* Error codes that are the same in CUDA and HIP. */
#define DEVICE_OUT_OF_MEMORY   2
#define DEVICE_NOT_INITIALIZED 3
#define DEVICE_DEINITIALIZED   4 /* the process ends */

/* A driver that says so of an address does not know what is there, also where something is. */
static inline bool device_is_unsaid(int code)
{
    return code == DEVICE_NOT_INITIALIZED || code == DEVICE_DEINITIALIZED;
}

/* Of a symbol of the library, in the driver's own struct. */
struct device_symbol {
    const char *name;
    size_t offset; /* of the pointer to it */
};

/* Numbers of graphs that are the same in CUDA and HIP: CUstreamCaptureMode, CUstreamCaptureStatus.
 */
#define DEVICE_CAPTURE_RELAXED 2
#define DEVICE_CAPTURE_NONE    0

struct cuda_calls {
    int (*init)(unsigned flags);
    int (*driver_version)(int *version);
    int (*error_name)(int code, const char **name);
    int (*error_string)(int code, const char **text);
    int (*pointer)(void *out, int attribute, uint64_t address);
    int (*pointers)(unsigned count, int *attributes, void **out, uint64_t address);
    int (*device)(int *device, int ordinal);
    int (*primary_state)(int device, unsigned *flags, int *active);
    int (*primary_retain)(void **context, int device);
    int (*primary_release)(int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*pin)(void *memory, size_t bytes, unsigned flags);
    int (*unpin)(void *memory);
    int (*memory_new)(uint64_t *address, size_t bytes);
    int (*memory_free)(uint64_t address);
    int (*stream_new)(void **stream, unsigned flags);
    int (*stream_free)(void *stream);
    int (*stream_captures)(void *stream, int *status);
    int (*capture_mode)(int *mode); /* exchanges it: this thread's */
    int (*event_new)(void **event, unsigned flags);
    int (*event_free)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*stream_wait)(void *stream, void *event, unsigned flags);
    int (*copy_in)(uint64_t device, const void *host, size_t bytes, void *stream);
    int (*copy_out)(void *host, uint64_t device, size_t bytes, void *stream);
    int (*copy_between)(uint64_t to, uint64_t from, size_t bytes, void *stream);
};

struct hip_calls {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    const char *(*error_name)(int code);
    const char *(*error_string)(int code);
    int (*pointer)(void *out, int attribute, uint64_t address);
    int (*device_get)(int *ordinal);
    int (*device_set)(int ordinal);
    int (*pin)(void *memory, size_t bytes, unsigned flags);
    int (*unpin)(void *memory);
    int (*memory_new)(uint64_t *address, size_t bytes);
    int (*memory_free)(uint64_t address);
    int (*stream_new)(void **stream, unsigned flags);
    int (*stream_free)(void *stream);
    int (*stream_captures)(void *stream, int *status);
    int (*capture_mode)(int *mode); /* exchanges it: this thread's */
    int (*event_new)(void **event, unsigned flags);
    int (*event_free)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*stream_wait)(void *stream, void *event, unsigned flags);
    int (*copy_in)(uint64_t device, void *host, size_t bytes, void *stream);
    int (*copy_out)(void *host, uint64_t device, size_t bytes, void *stream);
};

struct gaudi_calls {
    int (*info)(uint32_t device, void *out);
    int (*status_text)(int status, char *out, size_t bytes);
    int (*pin)(uint32_t device, uint64_t bytes, const void *memory);
    int (*unpin)(uint32_t device, const void *memory);
    int (*memory_new)(uint32_t device, uint64_t bytes, uint64_t wanted, uint32_t flags,
                      uint64_t *address);
    int (*memory_free)(uint32_t device, uint64_t address, uint32_t flags);
    int (*stream_new)(void **stream, uint32_t device, uint32_t flags);
    int (*stream_free)(void *stream);
    int (*event_new)(void **event, uint32_t device, uint32_t flags);
    int (*event_free)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*stream_wait)(void *stream, void *event, uint32_t flags);
    int (*copy)(void *stream, uint64_t from, uint64_t bytes, uint64_t to, int direction);
};

struct device_driver {
    const struct device_ops *ops;
    void *library; /* of dlopen */
    union {
        struct cuda_calls cuda;
        struct hip_calls hip;
        struct gaudi_calls gaudi;
    };
};

/* Fills in the functions; the name of the first that the library lacks, or NULL. */
const char *device_bind(struct device_driver *driver, const struct device_symbol *symbols,
                        size_t count);

extern const struct device_ops device_cuda;
extern const struct device_ops device_hip;
extern const struct device_ops device_gaudi;

#endif
