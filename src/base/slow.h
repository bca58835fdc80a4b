/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/slow.h: which of several peers is slow. Peers are what does the same work side by side:
 * the enclosures of a pod. No peer is slow by itself: it is slower than the others are at the same
 * time.
 *
 * Life of a verdict. Each operation is told by slow_sent, and by slow_ended when it is over. It is
 * late when it took, or waits for, longer than slow_limit_ns: SLOW_FACTOR times what is typical of
 * the others, SLOW_FLOOR_NS at least. A peer becomes slow when all of this holds:
 *   - SLOW_LATES operations were late, none of them SLOW_STALE_NS behind another one, where two in
 *     time make up for one, so that a peer which is late now and then stays in use, and one that is
 *     late for half does not;
 *   - the first of them ended SLOW_STREAK_NS ago, and one is late since: one pause, however many
 *     waited for it, is no verdict. While there is such a first one the owner looks at what is not
 *     answered (slow_look, when slow_look_ns says), so that a peer that takes half a second for an
 *     answer is not waited for twice;
 *   - half of all peers are in use and well: their last operation was in time, and was sent after
 *     that first late one ended. Where all are slow there is too much to do, or a fault of one's
 *     own, and no peer to blame.
 * The owner then passes the peer over, and probes it. It is in use again after SLOW_PROBES probes
 * in a row within the limit; when it was slow within SLOW_CALM_NS before, not earlier than
 * SLOW_HOLD_NS after the verdict, and twice as long each time, so that a peer that comes and goes
 * is left alone for longer and longer.
 *
 * Before that, the peer has less of the work that others can do as well (slow_share). What is late
 * counts there as above, and what waits for longer than the limit as if it had ended. One late
 * operation lowers nothing; each half of one more takes SLOW_SHARE_STEP percent of the share, and
 * each operation in time gives as much back, so that a peer which is late now and then keeps a part
 * by which it is seen in time again. Nothing is lowered where the others are not well. A kind of
 * work that no probe can stand for has a share and no verdict (slow_seen).
 *
 * An operation that ended at its deadline without an answer took at least as long as it was under
 * way: it is late when that is over the limit, with SLOW_MISSED_FLOOR_NS instead of SLOW_FLOOR_NS,
 * and says nothing when it is not (who asked gave too little time). An answer that refuses work
 * ("shed") came in time: the peer is busy. The caller does not report operations that were
 * canceled, ended with the connection, or were under way while its own thread stood still: it ends
 * them by list_remove.
 *
 * One thread. Takes no memory, knows no clock.
 */
#ifndef BASE_SLOW_H
#define BASE_SLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

#define SLOW_PEERS_MAX 64

#define SLOW_LATES     3
#define SLOW_STREAK_NS ((uint64_t)400 * 1000 * 1000)

/* When nothing was late for so long, what was late before is forgotten. */
#define SLOW_STALE_NS ((uint64_t)10 * 1000 * 1000 * 1000)

#define SLOW_FACTOR          8
#define SLOW_FLOOR_NS        ((uint64_t)50 * 1000 * 1000)
#define SLOW_MISSED_FLOOR_NS ((uint64_t)5 * 1000 * 1000)

/* For each half of a late operation behind the first. */
#define SLOW_SHARE_STEP 20

/* The limit is so much higher for each byte: 64 MiB may take half a second. */
#define SLOW_BYTES_PER_MS ((uint64_t)128 * 1000)

#define SLOW_PROBES      2
#define SLOW_HOLD_NS     ((uint64_t)1000 * 1000 * 1000)
#define SLOW_HOLD_NS_MAX ((uint64_t)32 * 1000 * 1000 * 1000)
#define SLOW_CALM_NS     ((uint64_t)60 * 1000 * 1000 * 1000)

/* An operation, in its owner's memory. */
struct slow_op {
    struct list link; /* of what the peer has not answered                             */
    uint64_t sent_ns;
    uint64_t bytes; /* how much the peer has to send until it is over                  */
};

/* One peer. */
struct slow_peer {
    struct list waiting;  /* struct slow_op: not answered, the oldest first                     */
    uint64_t typical_ns;  /* moving average of what operations took; 0: none yet                  */
    uint64_t in_time_ns;  /* when the last operation in time was sent; 0: none yet                */
    uint64_t streak_ns;   /* when the first late one of the streak ended                        */
    uint64_t late_end_ns; /* when the last one did                                              */
    uint32_t late_halves; /* two for each late operation, less one for each in time; 0: no streak */
    uint64_t late_ns;     /* what the longest of them took                                        */
    uint32_t probes_good; /* in a row, while it is slow                                           */
    uint64_t hold_ns;     /* how long it stays slow at least; 0: it was well for long             */
    uint64_t slow_ns;     /* when it became slow last                                             */
    uint64_t back_ns;     /* when it was in use again; 0: it was never slow                       */
};

struct slow {
    uint32_t count; /* numbers of peers: below it                                             */
    uint32_t all;   /* peers that there are                                                   */
    struct slow_peer peers[SLOW_PEERS_MAX];
};

/* How an operation ended. */
enum slow_end {
    SLOW_ANSWERED, /* with data, or with what the peer knows of it  */
    SLOW_SHED,     /* the peer refused it, for it has too much to do */
    SLOW_MISSED,   /* its deadline passed without an answer         */
};

/* count: 1..SLOW_PEERS_MAX. */
void slow_init(struct slow *slow, uint32_t count);

/* Of the peers with numbers below count there are so many: the others are never in use. */
void slow_all_set(struct slow *slow, uint32_t all);

/* The peer was away: what was seen of it before says nothing of it now. It is not slow. */
void slow_forget(struct slow *slow, uint32_t peer);

/* What an operation of so many bytes may take at a peer. in_use: bit i: peer i is connected, and
 * not slow. */
uint64_t slow_limit_ns(const struct slow *slow, uint32_t peer, uint64_t in_use, uint64_t bytes);

/* The peer has to answer it; sent_ns and bytes are set. Until list_remove. */
void slow_sent(struct slow *slow, uint32_t peer, struct slow_op *op);

/* An operation, which is in no list any more, ended at a peer that is in use. True: it was late. */
bool slow_seen(struct slow *slow, uint32_t peer, uint64_t in_use, enum slow_end end,
               const struct slow_op *op, uint64_t now_ns);

/* The same with a verdict. True: the peer is slow now, and the caller takes it out of use. */
bool slow_ended(struct slow *slow, uint32_t peer, uint64_t in_use, enum slow_end end,
                const struct slow_op *op, uint64_t now_ns);

/* When to look at what the peer has not answered; 0: nothing was late, or there is nothing. */
uint64_t slow_look_ns(const struct slow *slow, uint32_t peer, uint64_t now_ns);

/* The same verdict as slow_ended, for a peer that is in use, by what it has not answered; what was
 * sent up to blind_ns says nothing. */
bool slow_look(struct slow *slow, uint32_t peer, uint64_t in_use, uint64_t blind_ns,
               uint64_t now_ns);

/* Of the work that others can do as well, a peer that is in use takes so many percent: 100, or,
 * while it is late, less, and never 0. What was sent up to blind_ns and waits says nothing. */
uint32_t slow_share(struct slow *slow, uint32_t peer, uint64_t in_use, uint64_t blind_ns,
                    uint64_t now_ns);

/* How long the longest of its last streak took, or had waited at the verdict. */
uint64_t slow_late_ns(const struct slow *slow, uint32_t peer);

/* A probe of a slow peer was answered, or (answered false) failed. True: the peer is not slow any
 * more. */
bool slow_probed(struct slow *slow, uint32_t peer, uint64_t in_use, bool answered, uint64_t bytes,
                 uint64_t sent_ns, uint64_t now_ns);

#endif
