/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/fake_device.h: a GPU for tests, behind libraries with the names of the drivers'.
 *
 * libcuda.so.1 and libamdhip64.so.6 of the build folder are this GPU with two faces (fake_cuda.c,
 * fake_hip.c). Device memory is host memory behind a guard: its address is mapped without any
 * right, so the CPU that touches it gets SIGSEGV, and copies open it through a second mapping of
 * the same memory. Streams run on a thread, later, and in any order among each other; host memory
 * that was not pinned is refused. Tests reach what is below with fake_device_load().
 *
 * There are two devices, each with a primary context; a context that is destroyed takes its
 * streams, events and pins along.
 */
#ifndef DEVICE_FAKE_DEVICE_H
#define DEVICE_FAKE_DEVICE_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a test may set; all are 0 at first. */
enum fake_device_set {
    FAKE_DEVICE_INIT,        /* code that starting the driver returns                           */
    FAKE_DEVICE_VERSION,     /* that it says it has; 0: a supported one                          */
    FAKE_DEVICE_COPY,        /* code that a copy returns when it is asked for                    */
    FAKE_DEVICE_COPY_AFTER,  /* that copy is the first which does; 0, 1: the next one        */
    FAKE_DEVICE_PIN_MAX,     /* bytes that are pinned at a time at most; 0: any                  */
    FAKE_DEVICE_PIN_READ,    /* code that pinning a read-only mapping returns                    */
    FAKE_DEVICE_UNPIN,       /* code that letting go of pinned memory returns                    */
    FAKE_DEVICE_STREAM,      /* code that a new stream returns                                  */
    FAKE_DEVICE_RECORD,      /* code that recording an event returns                            */
    FAKE_DEVICE_QUERY,       /* code that asking for an event returns                           */
    FAKE_DEVICE_STUCK,       /* 1: streams do not run                                           */
    FAKE_DEVICE_HANG,        /* 1: a copy that is asked for does not return                      */
    FAKE_DEVICE_PIN_HANG,    /* 1: pinning a read-only mapping does not return                  */
    FAKE_DEVICE_DELAY_US,    /* before each thing that a stream runs                            */
    FAKE_DEVICE_IN_DELAY_US, /* before a copy from the host is taken                             */
    FAKE_DEVICE_FILE_OPEN,   /* code that opening cuFile returns                             */
    FAKE_DEVICE_FILE_TAKE,   /* code that registering a file there returns                   */
    FAKE_DEVICE_FILE_READ,   /* what a read of a file returns: an error, or how much of it   */
    FAKE_DEVICE_FILE_FLIP,   /* a byte of what is read that is another one; 0: none          */
    FAKE_DEVICE_FILE_HANG,   /* 1: a read of a file does not return                          */
    FAKE_DEVICE_FILE_DELAY_US, /* before a read of a file                                      */
    FAKE_DEVICE_CAPTURE,       /* 1: a stream is captured in the mode that concerns all threads   */
    FAKE_DEVICE_POINTER,       /* code that asking what an address is returns                   */
    FAKE_DEVICE_OLD,           /* 1: the driver does not know what is mapped in a reservation   */
    FAKE_DEVICE_FILE_MEMORY,   /* code that registering memory with cuFile returns              */
    FAKE_DEVICE_SYNC,          /* 1: unpinning and freeing wait for all streams                 */
    FAKE_DEVICE_INACTIVE,      /* 1: the engine has no primary context                          */
    FAKE_DEVICE_GONE,          /* code of a context that is destroyed; 0: the documented one    */
    FAKE_DEVICE_SETS,
};

/* What a test may look at. */
enum fake_device_count {
    FAKE_DEVICE_COPIES,  /* that ran                                                     */
    FAKE_DEVICE_BAD,     /* that met memory which was freed                              */
    FAKE_DEVICE_STREAMS, /* that exist; these four are leaks in the end                   */
    FAKE_DEVICE_EVENTS,
    FAKE_DEVICE_PINS,
    FAKE_DEVICE_RETAINED,   /* primary contexts, each time                                  */
    FAKE_DEVICE_UNPINNED,   /* copies that named host memory which was not pinned: refused    */
    FAKE_DEVICE_ASKED,      /* copies that were asked for, and not refused                     */
    FAKE_DEVICE_BETWEEN,    /* copies between two places of a device that were asked for        */
    FAKE_DEVICE_FILES,      /* that are registered with cuFile: leaks in the end           */
    FAKE_DEVICE_FILE_ASKED, /* reads of files that were asked for                          */
    FAKE_DEVICE_FILE_READS, /* and that came                                               */
    FAKE_DEVICE_BROKEN,     /* captures that a call broke                                      */
    FAKE_DEVICE_QUERIES,    /* times that an event was asked for                           */
    FAKE_DEVICE_LOOKS,      /* and what an address is                                      */
    FAKE_DEVICE_FILE_MEMORIES, /* that are registered with cuFile: leaks in the end        */
    FAKE_DEVICE_MADE,          /* primary contexts that were made for who retained them    */
    FAKE_DEVICE_COUNTS,
};

struct fake_device {
    void (*reset)(void); /* nothing set, no allocation; counts stay */
    void (*set)(int what, int value);
    int (*count)(int what);
    void *(*context)(int ordinal);     /* the primary one */
    void *(*context_new)(int ordinal); /* CUDA            */
    void (*context_destroy)(void *context);
    uint64_t (*alloc)(void *context, size_t bytes);
    uint64_t (*alloc_pool)(void *context, size_t bytes); /* of a pool: it names no context */
    void (*alloc_free)(uint64_t address);                /* at once, whatever runs */
    uint64_t (*alloc_at)(void *context, size_t bytes, uint64_t address);
    uint64_t (*pinned)(void *context, size_t bytes); /* host memory of the driver */
    void (*write)(uint64_t address, const void *from, size_t bytes);
    void (*read)(uint64_t address, void *to, size_t bytes);
    void *(*stream_new)(void *context);
    void (*stream_free)(void *stream);
    void (*stream_capture)(void *stream, bool capture);
    void (*stream_hold)(void *stream, bool hold); /* it does not run     */
    void (*stream_write)(void *stream, uint64_t address, int byte, size_t bytes); /* a kernel */
    bool (*stream_idle)(void *stream);
    void (*unpin_all)(void);
    int (*get)(int what);             /* for fake_cufile.c: what was set */
    void (*add)(int what, int count); /* and what is counted             */
    bool (*write_if)(uint64_t address, const void *from, size_t bytes); /* false: it is gone */
    uint64_t (*reserve)(void *context, size_t bytes); /* addresses; CUDA                     */
    void (*map)(uint64_t address, size_t bytes);      /* memory there, until alloc_free      */
    bool (*is_inside)(void);                          /* this thread has a context           */
};

__attribute__((visibility("default"))) const struct fake_device *fake_device_table(void);

/* The fake that the loader finds; NULL: the library is another one. */
static inline const struct fake_device *fake_device_load(const char *library)
{
    const struct fake_device *(*table)(void) = NULL;
    void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL), *found;

    if (opened == NULL || (found = dlsym(opened, "fake_device_table")) == NULL)
        return NULL;
    *(void **)(&table) = found;
    return table();
}

/* ---- for its faces --------------------------------------------------------------------------- */

#define FAKE_API __attribute__((visibility("default")))

#define FAKE_OK              0
#define FAKE_INVALID         1
#define FAKE_NO_MEMORY       2
#define FAKE_NOT_INITIALIZED 3
#define FAKE_DEINITIALIZED   4
#define FAKE_NO_DEVICE       100
#define FAKE_BAD_CONTEXT     201
#define FAKE_BAD_HANDLE      400
#define FAKE_NOT_READY       600
#define FAKE_ILLEGAL         700
#define FAKE_DESTROYED       709
#define FAKE_ALREADY_PINNED  712
#define FAKE_NOT_PINNED      713
#define FAKE_NOT_SUPPORTED   801
#define FAKE_UNCAPTURED      900

const char *fake_code_name(int code);
void fake_area(uint64_t base); /* memory of the device lies from there on */
uint64_t fake_area_take(uint64_t bytes);
int fake_setting(int what);
int fake_init(void);
int fake_pointer(void *out, int attribute, uint64_t address);
int fake_pointers(unsigned count, const int *attributes, void *const *out, uint64_t address);
int fake_is_active(int ordinal, int *active);
int fake_retain(void **context, int ordinal);
int fake_release(int ordinal);
int fake_push(void *context);
int fake_pop(void **context);
int fake_ordinal(void); /* of the thread's context */
int fake_pin(void *memory, size_t bytes, bool read_only);
int fake_unpin(const void *memory);
int fake_alloc(uint64_t *address, size_t bytes);
void fake_free(uint64_t address);
int fake_stream_new(void **stream);
int fake_stream_free(void *stream);
int fake_stream_captures(void *stream, int *status);
int fake_capture_mode(int *mode);
int fake_event_new(void **event);
int fake_event_free(void *event);
int fake_event_record(void *event, void *stream);
int fake_event_query(void *event);
int fake_stream_wait(void *stream, void *event);
int fake_copy_between(uint64_t to, uint64_t from, size_t bytes, void *stream);
int fake_copy(uint64_t device, void *host, size_t bytes, void *stream, bool to_device);

#endif
