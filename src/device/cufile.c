/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/cufile.c: reads of a drive into memory of a CUDA device, past the host (GPUDirect
 * Storage), by libcufile.so.0, which is opened while the process runs. base/reader.h over it.
 *
 * A copier has up to DEVICE_LANES lanes: each is a thread, memory on the device and pinned memory
 * of the host, both of LANE_BYTES. A lane reads a record into its device memory (cuFileRead) and
 * copies it from there to the host, where who asked verifies it; when that went well, the copy that
 * waits for the value takes it from the lane's device memory and not from its own pinned memory. So
 * the caller's memory gets no byte that was not verified, and what was verified is what is copied:
 * nobody writes to a lane's memory between.
 *
 *   FREE -> READING -> DONE -> LANDED -> FREE      read, done, end(at), the copy is free
 *                      DONE -> FREE                end(0), wrong bytes, or the copy is gone
 *           READING -> LOST -> FREE                late; the thread came back
 *
 * A read that is with the library cannot be taken back: a lane whose asker is late is LOST, with
 * its memory, until the library returns. When no lane is free, cufile_read says NULL.
 *
 * Whether lanes are used is decided once a copier, on a thread of its own, when it is first asked:
 * the same place of the drive is read both ways some times, and the faster one wins. Meanwhile, and
 * when it cannot be done, reads are the asker's. The file is known by its device and inode, which a
 * descriptor of our own keeps from being used again.
 *
 * The registry (cufile_lock) is taken before a copier's lock, and by nothing else.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "device/copier_int.h"

/* The largest record of a store, and a little. */
#define LANE_BYTES (((uint64_t)16 << 20) + ((uint64_t)64 << 10))

/* Reads of each way by which it is chosen; the fastest of them counts. */
#define MEASURE_TIMES 5

/* Reads in a row that fail, or bring other bytes, before no more are tried. */
#define FAILURES_MAX 3

/* Between two looks at an event, and once the driver has failed. */
#define LANE_LOOK_NS        20000
#define LANE_LOOK_NS_FAILED 10000000

/* ---- the library ----------------------------------------------------------------------------- */

#define CUFILE_LIBRARY   "libcufile.so.0"
#define CUFILE_OPAQUE_FD 1    /* CUfileFileHandleType */
#define CUFILE_IS_OPEN   5026 /* CU_FILE_DRIVER_ALREADY_OPEN: the engine uses it as well */

/* CUfileError_t */
struct cufile_error {
    int error; /* CUfileOpError; 0: none */
    int cuda;
};

/* CUfileDescr_t */
struct cufile_file {
    int type;
    union {
        int fd;
        void *handle;
    };
    const void *ops;
};

struct cufile {
    struct cufile_error (*open)(void);
    struct cufile_error (*register_)(void **handle, struct cufile_file *file);
    void (*deregister)(void *handle);
    ssize_t (*read)(void *handle, void *device, size_t bytes, off_t offset, off_t device_offset);
    struct cufile_error (*memory_register)(const void *device, size_t bytes, int flags);
    struct cufile_error (*memory_deregister)(const void *device);
};

static const struct {
    const char *name;
    size_t offset;
} cufile_symbols[] = {
    {"cuFileDriverOpen", offsetof(struct cufile, open)},
    {"cuFileHandleRegister", offsetof(struct cufile, register_)},
    {"cuFileHandleDeregister", offsetof(struct cufile, deregister)},
    {"cuFileRead", offsetof(struct cufile, read)},
    {"cuFileBufRegister", offsetof(struct cufile, memory_register)},
    {"cuFileBufDeregister", offsetof(struct cufile, memory_deregister)},
};

/* Opens it, for ever: each copier anew. False: *out_why, of bytes, says why not. In the place: its
 * driver wants a context. */
static bool cufile_open(struct cufile *out, char *out_why, size_t bytes)
{
    void *library = dlopen(CUFILE_LIBRARY, RTLD_NOW | RTLD_LOCAL), *found;
    struct cufile_error error;

    if (library == NULL) {
        (void)snprintf(out_why, bytes, "there is no %s", CUFILE_LIBRARY);
        return false;
    }
    for (size_t i = 0; i < sizeof(cufile_symbols) / sizeof(cufile_symbols[0]); i++) {
        found = dlsym(library, cufile_symbols[i].name);
        if (found == NULL) {
            (void)snprintf(out_why, bytes, "%s is too old: it has no %s", CUFILE_LIBRARY,
                           cufile_symbols[i].name);
            (void)dlclose(library);
            return false;
        }
        memcpy((char *)out + cufile_symbols[i].offset, &found, sizeof(found));
    }
    error = out->open();
    if (error.error == CUFILE_IS_OPEN)
        return true;
    if (error.error != 0)
        (void)snprintf(out_why, bytes, "cuFileDriverOpen failed: error %d, CUDA error %d",
                       error.error, error.cuda);
    return error.error == 0; /* a driver that was opened is not closed: others may use it */
}

/* ---- the state of a copier ------------------------------------------------------------------- */

enum lane_state {
    LANE_FREE,    /* taken by cufile_read                                                    */
    LANE_READING, /* its thread reads; ended by it, or LOST by cufile_late                   */
    LANE_DONE,    /* who asked verifies; ended by cufile_end                                 */
    LANE_LANDED,  /* its copy may read there; ended with that                                */
    LANE_LOST,    /* its thread reads for nobody, and ends that                              */
};

struct device_lane {
    struct device_copier *copier;
    enum lane_state state;    /* copier's lock                                               */
    struct device_copy *copy; /* that the value is for; NULL: none any more; copier's lock   */
    struct reader_ask ask;    /* READING, DONE                                               */
    uint64_t value;           /* LANDED: where the value begins on the device                */
    uint64_t address;         /* of its memory on the device; 0: none                        */
    uint8_t *host;            /* its pinned memory                                           */
    bool pinned;
    bool registered; /* its memory on the device, with the library                          */
    void *stream, *event;
    pthread_t thread;
    bool started;
};

enum cufile_state {
    CUFILE_UNKNOWN, /* nobody asked                                      */
    CUFILE_BEGINS,  /* measured, by the thread `beginner`                */
    CUFILE_ON,
    CUFILE_OFF, /* not possible, or slower: said once                */
};

/* All that a copier has of it. */
struct device_cufile {
    struct device_copier *copier;
    struct device_cufile *next; /* in the registry                              */
    enum cufile_state state;    /* copier's lock                                */
    struct cufile library;
    struct stat file;     /* device and inode                                   */
    int fd;               /* of our own; -1                                     */
    int error;            /* why there is none                                  */
    void *handle;         /* of the library; NULL                               */
    struct reader_ask at; /* the place that is measured                         */
    uint32_t lane_count;
    struct device_lane lanes[DEVICE_LANES];
    pthread_t beginner;
    bool begun;        /* it was started                                        */
    uint32_t threads;  /* that have not ended; copier's lock                    */
    uint32_t failures; /* in a row, or wrong bytes; copier's lock                               */
    char said[240];    /* how it was decided; copier's lock                           */
    uint64_t reads, bytes; /* whose values were used; copier's lock                       */
};

static pthread_mutex_t cufile_lock = PTHREAD_MUTEX_INITIALIZER;
static struct device_cufile *cufile_first;
static _Atomic pid_t cufile_owner; /* the process that has them; 0: nobody */

/* Lock; not held meanwhile. */
static void cufile_say(struct device_cufile *own, const char *what)
{
    char line[320];

    (void)snprintf(own->said, sizeof(own->said), "%s", what);
    (void)snprintf(line, sizeof(line), "device memory: %s device %d: %s",
                   device_ops(own->copier->options.driver)->name,
                   own->copier->options.place.ordinal, what);
    copier_call(own->copier, line);
}

/* ---- what a lane does ------------------------------------------------------------------------ */

static uint64_t lane_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What the driver says of the lane's event, which it records where it has not. In the place. */
static int lane_ask(const struct device_lane *lane, bool *io_recorded)
{
    const struct device_driver *driver = lane->copier->options.driver;
    const struct device_ops *ops = device_ops(driver);
    int code = *io_recorded ? 0 : ops->event_record(driver, lane->event, lane->stream);
    struct device_before before;
    int entered;

    *io_recorded = code == 0;
    if (code == 0)
        code = ops->event_query(driver, lane->event);
    if (code == 0 || code == DEVICE_NOT_READY || code == DEVICE_DESTROYED)
        return code;
    /* As in copier_ask(): it may not know an event of a context that is gone. */
    entered = ops->enter(driver, &lane->copier->options.place, &before);
    if (entered == 0)
        ops->leave(driver, &before);
    return device_is_gone(entered) ? DEVICE_DESTROYED : code;
}

/* Waits for what is on the lane's stream: whatever the driver says, until it has ended, as it may
 * use the lane's memory. False: something was wrong. In the place. */
static bool lane_wait(const struct device_lane *lane)
{
    struct timespec pause = {.tv_nsec = LANE_LOOK_NS};
    bool recorded = false, right = true;
    int code;

    while ((code = lane_ask(lane, &recorded)) != 0 && code != DEVICE_DESTROYED) {
        if (code != DEVICE_NOT_READY) {
            right = false;
            pause.tv_nsec = LANE_LOOK_NS_FAILED;
        }
        (void)nanosleep(&pause, NULL);
    }
    return right && code == 0;
}

static void *lane_memory(const struct device_lane *lane)
{
    return (void *)(uintptr_t)lane->address; /* an address of the device */
}

/* Reads into the lane's device memory, and from there to its host memory. In the place. */
static bool lane_read(const struct device_cufile *own, const struct device_lane *lane,
                      uint64_t offset, uint32_t bytes)
{
    const struct device_driver *driver = own->copier->options.driver;

    return own->library.read(own->handle, lane_memory(lane), bytes, (off_t)offset, 0) ==
               (ssize_t)bytes &&
           device_ops(driver)->copy_out(driver, lane->host, lane->address, bytes, lane->stream) ==
               0 &&
           lane_wait(lane);
}

static bool lane_read_inside(const struct device_cufile *own, const struct device_lane *lane)
{
    const struct device_driver *driver = own->copier->options.driver;
    struct device_before before;
    bool came;

    if (device_ops(driver)->enter(driver, &own->copier->options.place, &before) != 0)
        return false;
    came = lane_read(own, lane, lane->ask.offset, lane->ask.bytes);
    device_ops(driver)->leave(driver, &before);
    return came;
}

/* Its value is for nobody any more. Lock. */
static void lane_part(struct device_lane *lane)
{
    if (lane->copy != NULL)
        lane->copy->lane = NULL;
    lane->copy = NULL;
    if (lane->state == LANE_LANDED)
        lane->state = LANE_FREE;
}

void copier_lane_part(struct device_copy *copy)
{
    if (copy->lane != NULL)
        lane_part(copy->lane);
}

bool copier_lane_has(const struct device_copy *copy)
{
    return copy->lane != NULL && copy->lane->state == LANE_LANDED;
}

uint64_t copier_lane_address(const struct device_copy *copy)
{
    return copy->lane->value;
}

/* Too many reads failed, or brought other bytes than the file has. Lock. */
static bool cufile_is_bad(const struct device_cufile *own)
{
    return own->failures >= FAILURES_MAX;
}

/* READING -> DONE, or LOST -> FREE. Lock; not held while the library has it. */
static void lane_work(struct device_cufile *own, struct device_lane *lane)
{
    bool came;

    copier_unlock(own->copier);
    came = lane_read_inside(own, lane);
    copier_lock(own->copier);
    if (!came)
        own->failures++;
    if (lane->state == LANE_LOST) {
        lane->state = LANE_FREE;
    } else {
        lane->state = LANE_DONE;
        copier_unlock(own->copier);
        if (came)
            memcpy(lane->ask.memory, lane->host, lane->ask.bytes);
        lane->ask.done(lane->ask.arg, came); /* from here on cufile_end may free the lane */
        copier_lock(own->copier);
    }
    (void)pthread_cond_broadcast(&own->copier->changed);
}

static void *lane_run(void *arg)
{
    struct device_lane *lane = arg;
    struct device_copier *copier = lane->copier;
    struct device_cufile *own = copier->cufile;

    copier_sleep_exactly();
    copier_lock(copier);
    while (!copier->closed || lane->state == LANE_READING) {
        if (lane->state == LANE_READING) {
            lane_work(own, lane);
        } else if (own->state == CUFILE_ON && cufile_is_bad(own)) {
            own->state = CUFILE_OFF;
            cufile_say(own,
                       "reads of the drive by cuFile (GDS) failed: the host reads it from now on");
        } else {
            (void)pthread_cond_wait(&copier->changed, &copier->lock);
        }
    }
    own->threads--;
    (void)pthread_cond_broadcast(&copier->changed);
    copier_unlock(copier);
    return NULL;
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* Memory, stream and event of a lane. In the place. */
static bool lane_make(struct device_copier *copier, struct device_lane *lane)
{
    const struct device_driver *driver = copier->options.driver;
    const struct device_ops *ops = device_ops(driver);
    struct cufile_error error;
    void *host;

    lane->copier = copier;
    host = mmap(NULL, LANE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED)
        return false;
    lane->host = host;
    (void)madvise(host, LANE_BYTES, MADV_DONTFORK);
    (void)madvise(host, LANE_BYTES, MADV_DONTDUMP);
    lane->pinned = ops->pin(driver, host, LANE_BYTES, false) == 0;
    if (!lane->pinned || ops->stream_new(driver, &lane->stream) != 0 ||
        ops->event_new(driver, &lane->event) != 0 ||
        ops->memory_new(driver, LANE_BYTES, &lane->address) != 0)
        return false;
    /* Without it the library reads to memory of its own first, and copies. */
    error = copier->cufile->library.memory_register(lane_memory(lane), LANE_BYTES, 0);
    lane->registered = error.error == 0;
    return true;
}

/* In the place, if that can be entered. Its thread has ended, and is not joined yet. */
static void lane_unmake(const struct device_copier *copier, struct device_lane *lane, bool inside)
{
    const struct device_driver *driver = copier->options.driver;
    const struct device_ops *ops = device_ops(driver);

    if (inside && lane->registered)
        (void)copier->cufile->library.memory_deregister(lane_memory(lane));
    if (inside && lane->address != 0)
        ops->memory_free(driver, lane->address);
    if (inside && lane->event != NULL)
        ops->event_free(driver, lane->event);
    if (inside && lane->stream != NULL)
        ops->stream_free(driver, lane->stream);
    if (inside && lane->pinned)
        (void)ops->unpin(driver, lane->host);
    if (lane->host != NULL)
        (void)munmap(lane->host, LANE_BYTES);
    lane->registered = lane->pinned = false;
    lane->address = 0;
    lane->host = NULL;
    lane->event = lane->stream = NULL;
}

/* The host's way once: the drive to pinned memory, and that to the device. In the place. */
static bool lane_read_host(const struct device_cufile *own, const struct device_lane *lane)
{
    const struct device_driver *driver = own->copier->options.driver;

    return pread(own->fd, lane->host, own->at.bytes, (off_t)own->at.offset) ==
               (ssize_t)own->at.bytes &&
           device_ops(driver)->copy_in(driver, lane->address, lane->host, own->at.bytes,
                                       lane->stream) == 0 &&
           lane_wait(lane);
}

/* This way once, to the end: where the caller's memory is, is the lane's other end. In the place.
 */
static bool lane_read_device(const struct device_cufile *own, const struct device_lane *lane)
{
    const struct device_driver *driver = own->copier->options.driver;

    return lane_read(own, lane, own->at.offset, own->at.bytes) &&
           device_ops(driver)->copy_between(driver, lane->address + own->at.bytes, lane->address,
                                            own->at.bytes, lane->stream) == 0 &&
           lane_wait(lane);
}

/* Nanoseconds of the fastest of some reads; 0: one failed. In the place. */
static uint64_t cufile_measure(const struct device_cufile *own,
                               bool (*once)(const struct device_cufile *own,
                                            const struct device_lane *lane))
{
    uint64_t best = UINT64_MAX;

    for (int i = 0; i < MEASURE_TIMES; i++) {
        uint64_t begin = lane_now_ns();

        if (!once(own, &own->lanes[0]))
            return 0;
        best = u64_min(best, lane_now_ns() - begin);
    }
    return best;
}

/* True: this is the faster way. What is said of it. In the place. */
static bool cufile_choose(struct device_cufile *own, char *out_said, size_t bytes)
{
    uint64_t host_ns, device_ns;
    struct cufile_file file = {.type = CUFILE_OPAQUE_FD, .fd = own->fd};
    struct cufile_error error = own->library.register_(&own->handle, &file);

    if (error.error != 0) {
        own->handle = NULL;
        (void)snprintf(out_said, bytes,
                       "the host reads the drive: cuFile (GDS) does not take its file: error %d",
                       error.error);
        return false;
    }
    while (own->lane_count < DEVICE_LANES && lane_make(own->copier, &own->lanes[own->lane_count]))
        own->lane_count++;
    if (own->lane_count < DEVICE_LANES)
        lane_unmake(own->copier, &own->lanes[own->lane_count], true);
    device_ns = own->lane_count == 0 ? 0 : cufile_measure(own, lane_read_device);
    host_ns = own->lane_count == 0 ? 0 : cufile_measure(own, lane_read_host);
    if (device_ns == 0 || host_ns == 0) {
        (void)snprintf(out_said, bytes, "the host reads the drive: %s",
                       own->lane_count == 0 ? "there is no memory for reads by cuFile (GDS)"
                                            : "a read by cuFile (GDS) failed");
        return false;
    }
    (void)snprintf(out_said, bytes,
                   "%s: of %" PRIu32 " KiB it takes %" PRIu64 " us by cuFile (GDS), %" PRIu64
                   " us by the host",
                   device_ns < host_ns ? "cuFile (GDS) reads the drive"
                                       : "the host reads the drive",
                   own->at.bytes >> 10, device_ns / 1000, host_ns / 1000);
    return device_ns < host_ns;
}

/* Starts the lanes; how many. */
static uint32_t lanes_start(struct device_cufile *own)
{
    uint32_t started = 0;

    for (; started < own->lane_count; started++) {
        struct device_lane *lane = &own->lanes[started];

        copier_lock(own->copier);
        own->threads++;
        copier_unlock(own->copier);
        lane->started = copier_thread(&lane->thread, lane_run, lane);
        if (lane->started)
            continue;
        copier_lock(own->copier);
        own->threads--;
        copier_unlock(own->copier);
        break;
    }
    return started;
}

static void *cufile_begin(void *arg)
{
    struct device_cufile *own = arg;
    const struct device_driver *driver = own->copier->options.driver;
    struct device_before before;
    char why[160] = "", said[240] = "the host reads the drive: its context cannot be entered";
    cpu_set_t cpus;
    bool on = false;

    copier_sleep_exactly();
    /* Not the processor of the loop that asked; lanes have what this thread has. */
    if (sched_getaffinity(getpid(), sizeof(cpus), &cpus) == 0)
        (void)pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);
    if (own->fd < 0) {
        (void)snprintf(said, sizeof(said),
                       "the host reads the drive, not cuFile (GDS): it cannot be opened with "
                       "O_DIRECT: %s",
                       strerror(own->error));
    } else if (device_ops(driver)->enter(driver, &own->copier->options.place, &before) == 0) {
        if (cufile_open(&own->library, why, sizeof(why)))
            on = cufile_choose(own, said, sizeof(said));
        else
            (void)snprintf(said, sizeof(said), "the host reads the drive, not cuFile (GDS): %s",
                           why);
        for (; !on && own->lane_count != 0; own->lane_count--)
            lane_unmake(own->copier, &own->lanes[own->lane_count - 1], true);
        device_ops(driver)->leave(driver, &before);
    }
    if (on)
        own->lane_count = lanes_start(own);
    copier_lock(own->copier);
    own->state = on && own->lane_count != 0 ? CUFILE_ON : CUFILE_OFF;
    cufile_say(own, said);
    own->threads--;
    (void)pthread_cond_broadcast(&own->copier->changed);
    copier_unlock(own->copier);
    return NULL;
}

/* The first read of a copier is the place that is measured. Lock. */
static void cufile_ask(struct device_cufile *own, const struct reader_ask *ask)
{
    char path[40];

    own->state = CUFILE_OFF;
    if (fstat(ask->fd, &own->file) != 0)
        return;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", ask->fd);
    own->fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    own->error = errno;
    own->at = *ask;
    own->at.bytes = (uint32_t)u64_min(ask->bytes, LANE_BYTES / 2);
    own->state = CUFILE_BEGINS;
    own->threads++;
    own->begun = copier_thread(&own->beginner, cufile_begin, own);
    if (own->begun)
        return;
    own->threads--;
    own->state = CUFILE_OFF;
}

/* ---- the reader ------------------------------------------------------------------------------ */

/* The copier whose pinned memory has this. Registry's lock. */
static struct device_cufile *cufile_find(const uint8_t *to)
{
    struct device_cufile *own = cufile_first;

    while (own != NULL && !(to >= own->copier->memory &&
                            (uint64_t)(to - own->copier->memory) < own->copier->bytes))
        own = own->next;
    return own;
}

/* The copy that fills this memory. Lock. */
static struct device_copy *cufile_copy(struct device_copier *copier, const uint8_t *to)
{
    for (uint32_t i = 0; i < DEVICE_COPIES; i++) {
        struct device_copy *copy = &copier->copies[i];

        if (copy->state == COPY_HELD && copy->memory == to && !copy->started)
            return copy;
    }
    return NULL;
}

static struct device_lane *lane_free(struct device_cufile *own)
{
    for (uint32_t i = 0; i < own->lane_count; i++)
        if (own->lanes[i].state == LANE_FREE)
            return &own->lanes[i];
    return NULL;
}

/* Whether reads are this way's. Lock. */
static bool cufile_is_on(const struct device_cufile *own)
{
    return own->state == CUFILE_ON && !cufile_is_bad(own);
}

/* FREE -> READING. Lock. */
static struct device_lane *lane_take(struct device_cufile *own, const void *to,
                                     const struct reader_ask *ask)
{
    struct device_copier *copier = own->copier;
    struct device_copy *copy = cufile_copy(copier, to);
    struct device_lane *lane;
    struct stat file;

    if (copy == NULL || copier->halted || atomic_load(&copier->failed))
        return NULL;
    copier_lane_part(copy); /* an earlier read: it is filled again */
    if (own->state == CUFILE_UNKNOWN)
        cufile_ask(own, ask);
    if (!cufile_is_on(own) || ask->bytes > LANE_BYTES || fstat(ask->fd, &file) != 0 ||
        file.st_dev != own->file.st_dev || file.st_ino != own->file.st_ino)
        return NULL;
    lane = lane_free(own);
    if (lane == NULL)
        return NULL;
    lane->state = LANE_READING;
    lane->ask = *ask;
    lane->copy = copy;
    copy->lane = lane;
    (void)pthread_cond_broadcast(&copier->changed);
    return lane;
}

/* The memory of a parent of fork() is not ours, nor is its lock. */
static bool cufile_is_ours(void)
{
    pid_t owner = atomic_load_explicit(&cufile_owner, memory_order_relaxed);

    return owner != 0 && owner == getpid();
}

static bool cufile_would_read(const void *to)
{
    struct device_cufile *own;
    bool would = false;

    if (!cufile_is_ours())
        return false;
    (void)pthread_mutex_lock(&cufile_lock);
    own = cufile_find(to);
    if (own != NULL) {
        copier_lock(own->copier);
        would = own->state == CUFILE_UNKNOWN || (cufile_is_on(own) && lane_free(own) != NULL);
        copier_unlock(own->copier);
    }
    (void)pthread_mutex_unlock(&cufile_lock);
    return would;
}

static void *cufile_read(const void *to, const struct reader_ask *ask)
{
    struct device_cufile *own;
    void *lane = NULL;

    if (!cufile_is_ours())
        return NULL;
    (void)pthread_mutex_lock(&cufile_lock);
    own = cufile_find(to);
    if (own != NULL) {
        copier_lock(own->copier);
        lane = lane_take(own, to, ask);
        copier_unlock(own->copier);
    }
    (void)pthread_mutex_unlock(&cufile_lock);
    return lane;
}

static bool cufile_late(void *reading)
{
    struct device_lane *lane = reading;
    bool late;

    copier_lock(lane->copier);
    late = lane->state == LANE_READING;
    if (late) {
        lane_part(lane);
        lane->state = LANE_LOST;
    }
    copier_unlock(lane->copier);
    return late;
}

static void cufile_end(void *reading, uint64_t at)
{
    struct device_lane *lane = reading;
    struct device_copier *copier = lane->copier;
    struct device_cufile *own = copier->cufile;
    enum lane_state was;

    copier_lock(copier);
    was = lane->state;
    if (at == READER_WRONG)
        own->failures++;
    else if (at != 0) {
        own->failures = 0;
        own->reads++;
        own->bytes += lane->ask.bytes;
    }
    if (at == 0 || at == READER_WRONG)
        lane_part(lane);
    lane->value = lane->address + at;
    lane->state = lane->copy == NULL ? LANE_FREE : LANE_LANDED;
    (void)pthread_cond_broadcast(&copier->changed);
    copier_unlock(copier);
    check(was == LANE_DONE); /* never with the lock held */
}

const struct block_reader device_cufile_reader = {
    .would_read = cufile_would_read, .read = cufile_read, .late = cufile_late, .end = cufile_end};

void device_copier_reads(struct device_copier *copier, struct device_reads *out)
{
    const struct device_cufile *own = copier->cufile;

    *out = (struct device_reads){.way = "host"};
    if (own == NULL) {
        (void)snprintf(out->why, sizeof(out->why), "%s has no reads past the host",
                       device_ops(copier->options.driver)->name);
        return;
    }
    copier_lock(copier);
    if (cufile_is_on(own))
        out->way = "cufile";
    else if (own->state == CUFILE_UNKNOWN || own->state == CUFILE_BEGINS)
        out->way = "undecided";
    memcpy(out->why, own->said, sizeof(out->why));
    out->reads = own->reads;
    out->bytes = own->bytes;
    copier_unlock(copier);
}

/* ---- with its copier ------------------------------------------------------------------------- */

void copier_cufile_new(struct device_copier *copier)
{
    struct device_cufile *own = NULL;

    if (device_ops(copier->options.driver)->copy_between != NULL)
        own = calloc(1, sizeof(*own));
    if (own == NULL)
        return;
    own->copier = copier;
    own->fd = -1;
    copier->cufile = own;
    (void)pthread_mutex_lock(&cufile_lock);
    own->next = cufile_first;
    cufile_first = own;
    atomic_store(&cufile_owner, getpid());
    (void)pthread_mutex_unlock(&cufile_lock);
}

void copier_cufile_leave(struct device_copier *copier)
{
    struct device_cufile **at = &cufile_first;

    if (copier->cufile == NULL)
        return;
    (void)pthread_mutex_lock(&cufile_lock);
    while (*at != NULL && *at != copier->cufile)
        at = &(*at)->next;
    if (*at != NULL)
        *at = (*at)->next;
    (void)pthread_mutex_unlock(&cufile_lock);
}

bool copier_cufile_is_busy(const struct device_copier *copier)
{
    const struct device_cufile *own = copier->cufile;

    if (own == NULL || own->threads != 0)
        return own != NULL;
    for (uint32_t i = 0; i < DEVICE_LANES; i++)
        if (own->lanes[i].state != LANE_FREE)
            return true;
    return false;
}

void copier_cufile_detach(struct device_copier *copier)
{
    struct device_cufile *own = copier->cufile;

    if (own == NULL)
        return;
    if (own->begun)
        (void)pthread_detach(own->beginner);
    for (uint32_t i = 0; i < DEVICE_LANES; i++)
        if (own->lanes[i].started)
            (void)pthread_detach(own->lanes[i].thread);
}

void copier_cufile_unmake(struct device_copier *copier, bool inside)
{
    struct device_cufile *own = copier->cufile;

    if (own == NULL)
        return;
    for (uint32_t i = 0; i < DEVICE_LANES; i++)
        lane_unmake(copier, &own->lanes[i], inside);
    if (own->handle != NULL)
        own->library.deregister(own->handle);
    own->handle = NULL;
}

void copier_cufile_free(struct device_copier *copier)
{
    struct device_cufile *own = copier->cufile;

    if (own == NULL)
        return;
    if (own->begun)
        (void)pthread_join(own->beginner, NULL);
    for (uint32_t i = 0; i < DEVICE_LANES; i++)
        if (own->lanes[i].started)
            (void)pthread_join(own->lanes[i].thread, NULL);
    if (own->fd >= 0)
        (void)close(own->fd);
    free(own);
    copier->cufile = NULL;
}
