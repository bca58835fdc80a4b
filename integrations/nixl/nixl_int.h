/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nixl/nixl_int.h: private to the module: what tier.c and xfer.c share.
 *
 * A transfer is cut into pieces, one request of libicms each: a piece has at most ICMS_BATCH_MAX
 * blocks, and not more than may be with the tier at a time. So a transfer of usual size is one
 * piece, and its blocks are one batch.
 */
#ifndef NIXL_NIXL_INT_H
#define NIXL_NIXL_INT_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/list.h"
#include "nixl/nixl.h"

#define NIXL_TIER_MAGIC 0x6e74696du
#define NIXL_XFER_MAGIC 0x6e786672u

struct nixl_tier {
    uint32_t magic;
    pid_t owner;                   /* the process that opened it                               */
    struct nixl_settings settings; /* does not change                                          */
    struct icms *icms;             /* the connection                                           */
    struct icms_volume *volume;    /* on it                                                    */
    atomic_bool is_checked;        /* the volume was known once, and had the UUID of settings  */
    atomic_bool is_told;           /* it had another one                                       */
    nixl_log log;                  /* takes lines for people                                   */
    pthread_t thread;              /* starts, polls and ends requests                          */
    int wake_fd;                   /* eventfd: readable when the thread has to look at lists   */
    pthread_mutex_t lock;          /* of what says lock here and in transfers                  */
    pthread_cond_t changed;        /* a transfer is over; with the lock                        */
    bool stop;                     /* the thread ends when nothing is under way; lock          */
    struct list loads, stores;     /* transfers with blocks to start, in order; lock           */
    struct list under_way;         /* all that are with the thread; lock                       */
    pthread_mutex_t memory_lock;   /* of memories                                              */
    struct list memories;          /* of GPUs, that were registered; memory_lock               */
    size_t blocks;                 /* of requests that were started and are not over; thread   */
};

/* Memory of a GPU. */
struct nixl_memory {
    void *address;
    uint64_t bytes;
    struct icms_memory *registered;
    size_t users;     /* registrations of NIXL that lie in it                  */
    struct list link; /* in tier.memories                                      */
};

/* Forgets all of it; the connection is closed. */
void nixl_memories_free(struct nixl_tier *tier);

/* A part of a transfer that is one request. */
struct nixl_piece {
    struct nixl_xfer *xfer;       /* whose it is                     */
    struct icms_request *request; /* while it is under way, or NULL  */
    size_t count;                 /* blocks                          */
};

enum nixl_xfer_state {
    NIXL_XFER_IDLE,      /* the caller's; was never posted                                     */
    NIXL_XFER_UNDER_WAY, /* the thread's; it sets OVER when the last piece is                  */
    NIXL_XFER_OVER,      /* the caller's                                                       */
};

struct nixl_xfer {
    uint32_t magic;
    struct nixl_tier *tier;
    bool store; /* else it loads                                             */
    _Atomic enum nixl_xfer_state state; /* the thread gives it back with OVER                 */
    bool cancel;                 /* asked for by the caller; lock                             */
    bool canceled;               /* the thread has acted on it                                */
    size_t count;                /* blocks                                                    */
    size_t next;                 /* the first that was not started; thread                    */
    size_t pieces_started;       /* thread                                                    */
    size_t pieces_over;          /* thread                                                    */
    uint64_t deadline_ns;        /* of this post                                              */
    struct icms_block *blocks;   /* [count]                                                   */
    uint64_t *bytes;             /* [count] that were asked for; a block's change             */
    struct nixl_piece *pieces;   /* [as many as there can be]                                 */
    struct nixl_outcome outcome; /* valid with OVER                                           */
    struct list queue;           /* in tier.loads or tier.stores; lock                        */
    struct list all;             /* in tier.under_way; lock                                   */
};

/* What icms_volume_state says; CONFIG: the volume has another UUID than the settings, which is told
 * once. */
icms_err nixl_tier_state(struct nixl_tier *tier) ICMS_MUST_CHECK;

/* The most blocks of a piece. */
size_t nixl_piece_blocks_max(const struct nixl_tier *tier);

uint64_t nixl_now_ns(void);

/* Makes the thread look at its lists. */
void nixl_tier_wake(struct nixl_tier *tier);

/* The thread: starts as many pieces as there is room for, and gives up what is late or canceled.
 * Returns when it has to look again, in nanoseconds of the monotonic clock; UINT64_MAX: when
 * something is over. */
uint64_t nixl_xfers_run(struct nixl_tier *tier);

/* The thread: a piece's request is over. */
void nixl_piece_over(struct nixl_piece *piece);

#endif
