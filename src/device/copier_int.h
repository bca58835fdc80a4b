/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/copier_int.h: what copier.c and pin.c share. "Lock" is that of the copier, a leaf.
 */
#ifndef DEVICE_COPIER_INT_H
#define DEVICE_COPIER_INT_H

#include <pthread.h>

#include "device/copier.h"

#define PINNED_GRANULES_MAX (DEVICE_PINNED_BYTES / DEVICE_PINNED_GRANULE)

/* Reads of a copier past the host at a time (cufile.c). */
#define DEVICE_LANES 4

struct device_cufile;

struct device_mark {
    struct device_copier *copier;
    void *event;             /* NULL: not made yet                                       */
    uint32_t holders;        /* who took it, and copies that the driver does not have yet */
    _Atomic uint32_t *users; /* counts it while it has holders                            */
};

struct device_pin {
    uint8_t *memory; /* NULL: free                                        */
    uint64_t bytes;
    uint32_t copies; /* that read there                                   */
    bool read_only;  /* mapped without the right to write                 */
    bool wanted;     /* the pinner will pin it                            */
    bool asked;      /* the driver is pinning or unpinning it, or will be */
    bool leaving;    /* no copy begins there; the thread unpins it        */
    bool kept;       /* the driver refused to                             */
};

struct device_copier {
    struct device_copier_options options;
    bool is_held;     /* the place: rele when it is freed                           */
    void *streams[2]; /* by direction                                               */
    uint8_t *memory;  /* pinned                                                     */
    uint64_t bytes;   /* of it                                                      */
    pthread_t thread;
    pthread_mutex_t lock;         /* all below                                                  */
    pthread_cond_t changed;       /* something to do, or nothing left, or ended                 */
    bool halted;                  /* no copy starts                                             */
    bool closed;                  /* the thread ends, and calls nobody                          */
    bool ended;                   /* the thread has left the driver for good                    */
    bool left;                    /* nobody waits for that any more: all stays as it is         */
    bool let_go;                  /* with ended: the driver has no memory of the caller's       */
    uint32_t calling;             /* threads in landed() or failed()                            */
    bool refused;                 /* failed() was called for a copy                             */
    bool unpinned;                /* and for a range                                            */
    bool pinning;                 /* the pinner runs                                            */
    bool has_pinner;              /* it was started, and not joined: of who set pinning, or frees */
    struct device_cufile *cufile; /* reads of a drive past the host; NULL: the driver has none */
    pthread_t pinner;             /* pins what device_copier_pin_later named                    */
    _Atomic bool failed;          /* the driver does not say any more what ended                */
    uint32_t busy;                /* copies in states ORDERED and LOST                          */
    uint64_t since_ns;            /* when the oldest of them was ordered, about                 */
    uint64_t awake_until_ns;      /* its thread does not sleep; 0: it has not looked yet         */
    struct list free_;            /* copies                                                     */
    struct list queue;            /* QUEUED                                                     */
    struct list ordered[2];       /* ORDERED and LOST, by direction, oldest first               */
    uint8_t taken[PINNED_GRANULES_MAX]; /* of the memory                                   */
    struct device_pin pins[DEVICE_PINS];
    struct device_copy copies[DEVICE_COPIES];
    struct device_mark marks[DEVICE_MARKS];
};

static inline void copier_lock(struct device_copier *copier)
{
    (void)pthread_mutex_lock(&copier->lock); /* it does not fail: no owner takes it twice */
}

static inline void copier_unlock(struct device_copier *copier)
{
    (void)pthread_mutex_unlock(&copier->lock);
}

/* Starts a thread of the copier; signals of the process are for its own threads. */
bool copier_thread(pthread_t *thread, void *(*run)(void *arg), void *arg);

/* This thread sleeps as long as it says, and not 50 us more: what ends meanwhile is small. */
void copier_sleep_exactly(void);

/* Calls landed(), or failed() with the line. Lock; not held meanwhile. */
void copier_call(struct device_copier *copier, const char *line);

/* Memory of the copier, first fit. Lock. */
uint8_t *copier_memory_take(struct device_copier *copier, uint64_t bytes);
void copier_memory_give(struct device_copier *copier, const uint8_t *memory, uint64_t bytes);

/* A range to be unpinned now; NULL. Lock. */
struct device_pin *copier_pin_leaving(struct device_copier *copier);

/* Unpins what is to go. Copier's thread; lock, not held while the driver is asked. True: some is
 * gone. */
bool copier_pins_leave(struct device_copier *copier);

/* The end of a copier whose place was entered with this code. False: the driver does not let go of
 * the caller's memory. */
bool copier_pins_drop(struct device_copier *copier, int code);

/* ---- cufile.c -------------------------------------------------------------------------------- */

/* A copier begins, and before it ends: nobody asks for reads there any more. */
void copier_cufile_new(struct device_copier *copier);
void copier_cufile_leave(struct device_copier *copier);

/* Whether a read, or a thread, has not ended. Lock. */
bool copier_cufile_is_busy(const struct device_copier *copier);

/* The end of a copier that is left behind. */
void copier_cufile_detach(struct device_copier *copier);

/* The end of one that is freed: the driver and the library get back what they made, on the copier's
 * thread; inside: in the place. Then the rest. */
void copier_cufile_unmake(struct device_copier *copier, bool inside);
void copier_cufile_free(struct device_copier *copier);

/* What was read for a copy is not used. Lock. */
void copier_lane_part(struct device_copy *copy);

/* Whether a value that was verified lies on the device for a copy. Lock. And where: also without
 * the lock, while the copy is with the copier. */
bool copier_lane_has(const struct device_copy *copy);
uint64_t copier_lane_address(const struct device_copy *copy);

#endif
