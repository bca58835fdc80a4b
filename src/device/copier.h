/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/copier.h: copies between pinned host memory and one context of a device.
 *
 * A copier has pinned memory, two streams (to the device, from it) and a thread, which alone calls
 * the driver for copies: whoever wants one never waits for the driver.
 *
 *   device_copier_new -> device_copy_take -> [fill its memory] -> device_copy_start
 *     -> device_copy_is_over -> [read its memory] -> device_copy_give -> device_copier_free
 *
 * Memory of the caller can be pinned as well (device_copier_pin): a copy to the device then reads a
 * value where it lies (device_copy_from), and holds what keeps it there until it has ended.
 *
 * The driver is believed in nothing that time can tell: a copy that it does not end keeps its
 * memory and stays counted (quarantine), also when the driver fails, and a copier whose thread does
 * not come back from the driver is left behind with its memory when it is freed.
 *
 * Any thread, but a copy belongs to one thread at a time. The copier's lock is a leaf: nothing that
 * takes a lock or waits is called with it held.
 */
#ifndef DEVICE_COPIER_H
#define DEVICE_COPIER_H

#include <stdatomic.h>

#include "base/list.h"
#include "base/reader.h"
#include "device/driver.h"

/* Pinned memory of a copier, and the least it starts with where the machine does not give it. */
#define DEVICE_PINNED_BYTES     ((uint64_t)64 << 20)
#define DEVICE_PINNED_BYTES_MIN ((uint64_t)1 << 20)
#define DEVICE_PINNED_GRANULE   ((uint64_t)64 << 10)

/* Copies of a copier at a time, and requests that wait for a stream of their own. */
#define DEVICE_COPIES 256
#define DEVICE_MARKS  1024

/* Pieces of device memory that one copy goes to or comes from at most. */
#define DEVICE_PIECES 256

/* Ranges of the caller's memory that a copier has pinned at a time. */
#define DEVICE_PINS 128

/* device_copier_free waits so long for copies that are with the driver. */
#define DEVICE_DRAIN_MS 2000

struct device_copier;
struct device_lane;
struct device_mark;
struct device_pin;

enum device_copy_state {
    COPY_FREE,    /* in the free list                                                        */
    COPY_HELD,    /* its owner fills or reads its memory                                     */
    COPY_QUEUED,  /* the thread will give it to the driver; woken by device_copy_start       */
    COPY_ORDERED, /* with the driver; ended by the thread, which asks for its event          */
    COPY_LOST,    /* with the driver, and given back by its owner: FREE when it has ended    */
};

enum device_direction {
    DEVICE_IN,  /* to the device   */
    DEVICE_OUT, /* from the device */
};

/* A part of device memory. */
struct device_piece {
    uint64_t address;
    uint64_t bytes;
    uint64_t id; /* of the allocation when it was registered: another one is an error; 0 */
    _Atomic uint32_t *users; /* counts the piece like the copy; NULL                            */
};

/* What is copied. */
struct device_order {
    enum device_direction direction;
    uint64_t address; /* on the device, where device_copy_pieces was not called                */
    uint64_t bytes;   /* at most those taken                                                   */
    uint64_t id;      /* of the allocation when it was registered: another one is an error; 0   */
    struct device_mark *mark; /* the copy begins behind it, and holds it until then; NULL       */
    void *stream; /* in: what is put there once the copy is over runs behind it; NULL: it is over
                     when it has ended. Used until *users does not count the copy any more      */
};

/* One copy and its piece of pinned memory. Owned by who took it; fields marked "owner" are only
 * theirs. */
struct device_copy {
    struct list link; /* owner                                                     */
    size_t index;     /* owner                                                     */
    bool started;     /* owner: device_copy_start was called                       */
    uint8_t *memory;  /* pinned, of `bytes`; with pin: the caller's, only read     */
    uint64_t bytes;
    struct device_pin *pin; /* the range that memory lies in; NULL: it is the copier's   */
    void (*let_go)(void *arg, uint32_t number); /* with pin: memory is not read any more   */
    void *let_go_arg;
    uint32_t let_go_number;
    struct device_copier *copier;
    enum device_copy_state state; /* copier's lock                                             */
    struct device_order order;    /* set by device_copy_start                                  */
    _Atomic int over;             /* enum device_copy_over                                     */
    struct device_mark *mark;     /* that it holds                                             */
    void *event;                  /* recorded behind it                                        */
    bool followed;                /* it is; copier's thread                                    */
    _Atomic uint32_t *users;      /* counts this copy until it has ended                       */
    struct list queue;            /* free, queued or ordered; copier's lock                    */
    struct device_lane *lane; /* that reads, or has, its value on the device; NULL; copier's lock */
    uint32_t piece_count;
    struct device_piece pieces[DEVICE_PIECES]; /* what the copy's memory is copied to or from, in
                                                  order; bytes beyond order.bytes are left alone */
};

/* Takes pinned memory, streams and events in a place, and starts the thread. landed(arg) is called
 * on a thread of the copier, without a lock, when copies are over; failed(arg, line) likewise, once
 * when the driver fails, once when it does not pin what device_copier_pin_later named, and once or
 * twice of how a drive is read. */
struct device_copier_options {
    const struct device_driver *driver;
    struct device_place place;
    void (*landed)(void *arg);
    void (*failed)(void *arg, const char *line);
    void *arg;
};
icms_err device_copier_new(const struct device_copier_options *options, struct err_why *why,
                           struct device_copier **out_copier) ICMS_MUST_CHECK;

/* From now on no copy starts, and what the driver does not have yet is over with an error. Does not
 * wait. True: nothing is with the driver. */
bool device_copier_halt(struct device_copier *copier);

/* Halts it, waits DEVICE_DRAIN_MS at most for what the driver has, and frees everything. False: the
 * driver does not let go; everything that it may still use stays where it is for ever, and landed
 * and failed are not called any more. NULL is freed. */
bool device_copier_free(struct device_copier **copier);

/* The driver failed: no copy is taken any more. */
bool device_copier_is_failed(const struct device_copier *copier);

/* Bytes of pinned memory: no copy is larger. */
uint64_t device_copier_bytes(const struct device_copier *copier);

/* A copy in state HELD; *users counts it until the device does not use its memory any more. NULL:
 * there is no room at this moment; landed() tells when there may be. */
struct device_copy *device_copy_take(struct device_copier *copier, uint64_t bytes,
                                     _Atomic uint32_t *users);

/* HELD: the copy is between its memory and these pieces, 1 to DEVICE_PIECES, one behind the other.
 * Each piece's *users counts it as long as the copy's does. */
void device_copy_pieces(struct device_copy *copy, const struct device_piece *pieces,
                        uint32_t count);

/* Pins a range of the caller's memory, so that copies read there; read_only: it is mapped without
 * the right to write. Takes as long as the driver does. OK too when it is pinned already. After OK
 * the memory stays mapped until device_copier_unpin or device_copier_free returned true. DEVICE,
 * LIMIT: with the driver's words. */
icms_err device_copier_pin(struct device_copier *copier, void *memory, uint64_t bytes,
                           bool read_only, struct err_why *why) ICMS_MUST_CHECK;

/* The same on a thread of the copier's own: returns at once, and copies go on meanwhile. The memory
 * stays mapped from now on until device_copier_unpin or device_copier_free returned true. What
 * cannot be pinned is not read by copies. */
void device_copier_pin_later(struct device_copier *copier, void *memory, uint64_t bytes,
                             bool read_only);

/* From now on no copy reads the range. True: it is not pinned. False: the copier's thread will let
 * go of it, after the copies that read it; landed() tells when to ask again. Never waits. */
bool device_copier_unpin(struct device_copier *copier, const void *memory);

/* HELD, to the device: the copy will read `bytes` at `from` instead of its own memory, which goes
 * back, and copy.memory is `from`. let_go(arg, number) is called once when nothing reads there any
 * more, on any thread, with the copier's lock held: it takes no lock. False: that is not pinned,
 * and nothing has changed. */
bool device_copy_from(struct device_copy *copy, const void *from, uint64_t bytes,
                      void (*let_go)(void *arg, uint32_t number), void *arg, uint32_t number);

/* HELD: its owner fills its memory, or it will read elsewhere. What was read past the host for it
 * before is not what it copies. */
void device_copy_fill(struct device_copy *copy);

/* Reads records of a drive past the host, into memory of icms on the device, for a copy to it that
 * is HELD: `to` is the copy's memory. A copy whose value was verified (reader.end) takes it from
 * there when it is started, unless its memory was filled since (device_copy_fill). Which way is
 * faster is measured when it is first asked, and said by failed(). */
extern const struct block_reader device_cufile_reader;

/* How device_cufile_reader reads for a copier. */
struct device_reads {
    const char *way;       /* "cufile", "host", or "undecided": nothing was read yet           */
    char why[240];         /* what was said of that; "" */
    uint64_t reads, bytes; /* of records past the host whose values were used             */
};
void device_copier_reads(struct device_copier *copier, struct device_reads *out_reads);

/* HELD -> QUEUED. */
void device_copy_start(struct device_copy *copy, const struct device_order *order);

enum device_copy_over {
    COPY_NOT_OVER,
    COPY_DONE,   /* the bytes are there; with order.stream: will be, before what follows on it */
    COPY_FAILED, /* the driver refused or failed                                               */
};

static inline enum device_copy_over device_copy_is_over(const struct device_copy *copy)
{
    return (enum device_copy_over)atomic_load_explicit(&copy->over, memory_order_acquire);
}

/* Gives the copy back, in any state: what the driver does not have is taken back, what it has is
 * LOST. */
void device_copy_give(struct device_copy *copy);

/* Remembers what is on a stream of the caller's at this moment; *out_mark is for device_order.mark
 * and goes back with device_mark_give. *users counts it while it is held, by its owner or by a copy
 * that waits for its turn. False: the driver refuses the stream (*out_code; device_is_capture: it
 * is being captured to a graph), or all are taken (*out_code 0). */
bool device_mark_take(struct device_copier *copier, void *stream, _Atomic uint32_t *users,
                      struct device_mark **out_mark, int *out_code);
void device_mark_give(struct device_mark *mark);

#endif
