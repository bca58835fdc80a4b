/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/tier.h: a drive of the server's own under its memory, beside the pod.
 *
 *   DRAM (the arena)  --evicted, and read since it was stored-->  own drive
 *        ^   ^                                                        |
 *        |   +------------------------- loads look here first --------+
 *        +----------------------------- and else in the pod
 *
 * What it is. A cache of what the arena evicts, with the store of src/store on a file or device.
 * Every store goes to the pod as without it, so nothing is lost with the drive, and no other server
 * sees it; but for exclusive runs, below. Blocks are as they were stored: sealed values stay
 * sealed. An agent that has a drive and no pod (local.c) is something else: there the drive has the
 * only copy.
 *
 * Trust. A deletion that the drive did not hear of, or that a power cut took back, would return
 * what was replaced. So the drive is trusted after a clean end only. Its note (struct
 * agent_tier_note_df) says "in use" from agent_start on, durably. agent_drain, when no request is
 * left, waits for deletions, flushes the drive and writes "clean", unless the drive was ever DOWN.
 * At the start a drive that is not clean, or whose pod has none of the enclosures that it was last
 * used with, is formatted. What is no drive of an agent with a pod is left alone.
 *
 * Loads. A key that the drive's index has is read there, into a buffer, verified (record, and
 * trailer of sealed volumes) and copied into its slot. The pod is asked instead when the read
 * fails, is damaged, or is not over after a quarter of the time that is left, at most
 * AGENT_TIER_WAIT_NS; a read that is late then ends for nobody, in its buffer. Without a buffer the
 * pod is asked at once. When the owner in the pod cannot be asked, or the key is of an exclusive
 * run, the drive is waited for until the deadline. Exists and match know what the index has. Hints
 * have a part of the buffers (AGENT_TIER_HINTS), and none while a load waits for one.
 *
 * GPUs. A block that a client in this process wants in memory of a GPU goes past the arena where
 * another way can read it there now (agent->opts.reader, direct.h). A read by that way which is
 * late is no fault of the drive: the loop reads, with a time of its own. Clients of other processes
 * have the block from the arena: memory of a GPU belongs to their process, and the drive, with what
 * other users stored there, to this one.
 *
 * Evictions. A block is offered when it was read since it came (a load is a read, a put is none),
 * and is not there already; if it is, that counts as an access there. It is copied into a buffer
 * and written behind the eviction. Reads come first: writes have half of the buffers, and none
 * while a load waits. The store's write budget decides which blocks are written when it is short.
 * What is not written is counted by its reason, and lost to this tier alone.
 *
 * Hints. A hint for the drive (prestage.h) copies a block that is in memory there: a write like
 * that of an eviction, within the same half of the buffers and the same write budget.
 *
 * Exclusive. With a share (local_share) the blocks of such a part of the runs are stored here and
 * not in the pod, and evictions write nothing: a block takes space in one of the two. A store is
 * taken when the pod says that it does not have the key: what the pod has it goes on to have, so
 * that nothing older comes back when the drive evicts. It needs the pod as any other store. One
 * that the drive refuses, fails or does not answer in half of its time goes to the pod. A flush is
 * one of the drive, too: it keeps what it promises when the power fails at the pod, not when this
 * agent ends without agent_drain (Trust).
 *
 * Writers. Who puts or removes a key makes the drive forget it: a put goes on meanwhile, and loads
 * pass the drive over for the key until its record is dead; a remove waits, and fails if the drive
 * does not answer in half of its time. Volumes follow the pod: a UUID is a volume of the store, so
 * what was reset never comes back. Each store, remove or flush needs one entry of forgets at most,
 * at its begin or at its end, so none begins that could find none left (agent_tier_may_begin): it
 * waits in line for an operation. A drive that has so many deletions in flight that one may have to
 * wait, and answers none for AGENT_TIER_FORGET_NS, is DOWN.
 *
 * Health. AGENT_TIER_LATE_MAX reads in a row that were given up make the drive SLOW: it is passed
 * over for keys that the pod can be asked for (agent_tier_is_spare), and probed. A drive that
 * fails, or could not be opened at the start, is DOWN until the next start; the agent goes on with
 * the pod.
 *
 * On reactor 0, the only one of an agent with a drive; statistics from any thread.
 */
#ifndef AGENT_TIER_H
#define AGENT_TIER_H

#include <pthread.h>

#include "agent/agent.h"
#include "agent/direct.h"
#include "base/estimate.h"
#include "base/limits.h"
#include "base/line.h"
#include "store/store.h"

/* The number of a volume that the drive does not have. */
#define AGENT_TIER_NO_NUMBER UINT32_MAX

#define AGENT_TIER_IOS       64 /* reads and writes in flight at most, each with a buffer        */
#define AGENT_TIER_IOS_MIN   16 /* and at least; else as many buffers as this has space for:     */
#define AGENT_TIER_IOS_BYTES ((uint64_t)32 << 20)
#define AGENT_TIER_FORGETS                                                                         \
    1024                   /* deletions and flushes in flight; more stores and removes wait   */
#define AGENT_TIER_HINTS 4 /* reads for hints have so small a part of the buffers at most       */
#define AGENT_TIER_SHARE 4 /* of the time that a load has left: the part that the drive has     */
#define AGENT_TIER_WAIT_NS                                                                         \
    ((uint64_t)100 * 1000 * 1000) /* and at most                            */
#define AGENT_TIER_FORGET_NS                                                                       \
    ((uint64_t)2 * 1000 * 1000 * 1000) /* few are left, and none comes back: then it is DOWN */
#define AGENT_TIER_LATE_MAX                                                                        \
    4 /* reads in a row                                                    */
#define AGENT_TIER_VOLUMES                                                                         \
    1024 /* UUIDs that volumes of the store have had, of one start          */

/* A drive that is SLOW again within this time after it recovered is passed over twice as long. */
#define AGENT_TIER_AGAIN_NS ((uint64_t)60 * 1000 * 1000 * 1000)
#define AGENT_TIER_HOLD_MAX                                                                        \
    64 /* probe intervals                                                  */

struct agent;
struct agent_op;
struct agent_reactor;
struct agent_shard;
struct agent_tier;

/* A read or a write at the store, and its buffer. */
struct agent_tier_io {
    struct agent_tier *tier;
    struct agent_op *op; /* who waits; NULL: gave up, or it is a write of what was evicted      */
    struct agent_shard *shard; /* of its volume                                                 */
    struct key key;
    struct agent_tier_copy *copy; /* of a hint; NULL: it left, or it is none                    */
    bool is_write;
    bool is_copy;      /* a write for a hint                                                  */
    uint32_t volume;   /* its number in the store                                             */
    uint8_t *buffer;   /* a record                                                            */
    uint64_t begun_ns; /* read: when                                                          */
    struct agent_reading reading; /* read: by another way                                     */
    struct estimate_load load;    /* read: what was expected of it                               */
    uint32_t bytes;   /* write: stored value                                                 */
    struct list link; /* in tier->free or tier->busy                                         */
    union {
        struct store_read read;
        struct store_write write;
    } u;
};

/* A block in memory that is written to the drive for a hint. Embedded by its owner. */
struct agent_tier_copy {
    struct agent_tier_io *io; /* NULL: not in flight                                            */
    void (*done)(struct agent_tier_copy *copy, icms_err err);
};

#define AGENT_TIER_NOTE_KIND   "icmstier"
#define AGENT_TIER_NOTE_IN_USE 1 /* and anything else that is not CLEAN */
#define AGENT_TIER_NOTE_CLEAN  2

/* The owner's note of its store. */
struct agent_tier_note_df {
    le64 state;                               /* AGENT_TIER_NOTE_...                            */
    struct uuid enclosures[LIMIT_ENCLOSURES]; /* of the pod, when the agent began; zeros: none  */
    uint8_t reserved[STORE_NOTE_BYTES - 8 - 16 * LIMIT_ENCLOSURES - 8]; /* zeros                */
    uint8_t kind[8]; /* AGENT_TIER_NOTE_KIND                           */
};
static_assert(sizeof(struct agent_tier_note_df) == STORE_NOTE_BYTES, "no padding");

static inline bool agent_tier_note_is(const struct agent_tier_note_df *note)
{
    return memcmp(note->kind, AGENT_TIER_NOTE_KIND, sizeof(note->kind)) == 0;
}

/* A record that is being deleted, or a flush. */
struct agent_tier_forget {
    struct agent_tier *tier;
    struct agent_op *op; /* a remove or flush that waits; NULL: nobody does                     */
    struct list link;    /* in tier->forgets_free or tier->forgets_busy                         */
    struct store_delete delete;
    struct store_flush flush;
};

struct agent_tier {
    struct agent *agent;
    struct agent_reactor *reactor;
    _Atomic int state;   /* enum agent_tier_state                                               */
    struct store *store; /* NULL: it could not be opened                                        */
    struct loop_region *region; /* buffers, and a page for probes                               */
    uint64_t buffer_bytes;      /* of one                                                       */
    struct agent_tier_io ios[AGENT_TIER_IOS];
    uint32_t io_count;      /* of them, with a buffer                                           */
    struct list free, busy; /* struct agent_tier_io                                             */
    uint32_t writes;        /* of busy; half of io_count at most        */
    struct line waiting;    /* struct agent_op: loads that the pod cannot be asked for           */
    void *line_memory;      /* its                                                              */
    struct agent_tier_forget forgets[AGENT_TIER_FORGETS];
    struct list forgets_free, forgets_busy; /* struct agent_tier_forget                         */
    uint32_t forgets_left;                  /* of forgets_free                                  */
    struct loop_timer forgets_timer;        /* few are left: until one comes back               */
    _Atomic uint32_t numbers[LIMIT_AGENT_VOLUMES]; /* of volumes in the store; NONE           */
    struct uuid uuids[AGENT_TIER_VOLUMES]; /* by number in the store                           */
    uint32_t uuid_count;
    double share;             /* of the runs, that are stored here and not in the pod           */
    uint32_t late;            /* reads in a row that were given up                              */
    uint32_t hold;            /* SLOW: probe intervals until the next probe                     */
    uint64_t recovered_ns;    /* when it was SLOW last; 0: never                                */
    struct loop_timer timer;  /* SLOW: the next probe                                           */
    struct store_probe probe; /* in flight with is_probing                                      */
    bool is_probing;
    uint64_t probe_ns; /* when it was sent                                                      */
    struct agent_tier_note_df note;
    const char *emptied;   /* why it was formatted at the start, though it was a cache; NULL:
                              it was not                                                 */
    struct loop_msg end;   /* agent_drain's                                              */
    _Atomic bool end_sent; /* it is in flight, or the end began                          */
    _Atomic bool ended;    /* nothing of the end is under way any more                   */
    bool missed;           /* what was replaced may be there, of a volume without a number */
    bool ending;           /* it waits for forgets_busy, or is past them                 */
    struct store_flush end_flush;
    struct store_note end_note;
    pthread_mutex_t text_lock;
    char text[LIMIT_REASON_BYTES]; /* why it is not UP, or was not lately; text_lock            */
    struct estimate estimate;      /* of reads                                                   */
    struct hist estimate_error;    /* of them, in thousandths of what was expected               */
    /* counters */
    uint64_t promoted, promoted_bytes;   /* loads that it answered                                */
    uint64_t given_up;                   /* loads that went on with the pod: late                 */
    uint64_t passed;                     /* and: no buffer                                        */
    uint64_t failed_reads;               /* and: it was not what the index said                   */
    uint64_t stored, stored_bytes;       /* stores that it has instead of the pod                 */
    uint64_t demoted, demoted_bytes;     /* evicted blocks that were written                      */
    uint64_t prestaged, prestaged_bytes; /* blocks that were written for hints                  */
    uint64_t kept;                       /* that were there already                               */
    uint64_t unread;                     /* that nobody had read                                  */
    uint64_t refused;                    /* that the write budget refused                         */
    uint64_t shed;                       /* for which there was no buffer                         */
    uint64_t failed_writes;
    uint64_t forgotten; /* records deleted for puts and removes                                 */
    uint64_t slow_total;
};

/* Opens the drive, or says why not (agent_tier_stats): that is no error. NO_MEMORY. */
icms_err agent_tier_new(struct agent *agent, const struct agent_opts *opts,
                        struct err_why *why) ICMS_MUST_CHECK;

/* Notes that the drive is in use; before the reactor runs. A start that fails before it leaves the
 * drive to the next one. */
void agent_tier_begin(struct agent_tier *tier);

/* After the loops ended: no reader comes back to it. */
void agent_tier_stop(struct agent_tier *tier);
void agent_tier_free(struct agent_tier **tier);

/* tier_open.c: opens the store: one that is new, one of this agent, or a formatted one; down is of
 * its store_ops. Its own errors (a drive of others, none), each with a sentence. */
icms_err agent_tier_open(struct agent_tier *tier, const struct agent_opts *opts,
                         void (*down)(void *tier), struct err_why *why) ICMS_MUST_CHECK;

/* Any thread, again and again once nothing is asked of the agent any more: ends the use of the
 * drive, cleanly if it can. True: that is over. */
bool agent_tier_end(struct agent_tier *tier);

static inline enum agent_tier_state agent_tier_health(const struct agent_tier *tier)
{
    return (enum agent_tier_state)atomic_load_explicit(&tier->state, memory_order_relaxed);
}

/* ---- tier_look.c ---- */

/* A shard's volume in its store; AGENT_TIER_NO_NUMBER. */
uint32_t agent_tier_number(const struct agent_tier *tier, const struct agent_shard *shard);

/* Whether a load would look there now: it has the key, and may be asked. False without a drive. */
bool agent_tier_has(const struct agent_shard *shard, const struct key *key);

/* Bytes of the key's stored block at most; 0: it has none. */
uint64_t agent_tier_bytes(const struct agent_shard *shard, const struct key *key);

/* Whether a load need not wait for what the drive has of the key: the owner in the pod can be
 * asked, and the key is none that the drive may have alone. */
bool agent_tier_is_spare(const struct agent_shard *shard, const struct key *key);

/* Whether a store of the key would go there now, and not to the pod. */
bool agent_tier_takes(const struct agent_shard *shard, const struct key *key);

/* Whether one more read for a hint leaves buffers to loads. */
bool agent_tier_reads_hint(const struct agent_tier *tier);

/* ---- tier.c ---- */

/* Asks it for what a LOAD, STORE, DELETE or FLUSH wants. True: ends with op->answered, never inside
 * this call. False: it has nothing to do with it. */
bool agent_tier_ask(struct agent_op *op);

/* Whether a store, remove or flush that begins now is sure of an entry, beside so many that are
 * under way. */
static inline bool agent_tier_may_begin(const struct agent_tier *tier, uint32_t under_way)
{
    return tier->forgets_left > under_way || agent_tier_health(tier) == AGENT_TIER_DOWN;
}

/* The key is being written: what the drive has of it must not be found any more. */
void agent_tier_forget(struct agent_shard *shard, const struct key *key);

/* The arena evicts this slot, which is LIVE. */
void agent_tier_evicted(struct agent_shard *shard, uint32_t slot);

/* Whether blocks can be brought there for hints: it is UP, and has the volume. */
bool agent_tier_is_up(const struct agent_shard *shard);

/* Of its capacity; it was opened, or 0. */
uint64_t agent_tier_bytes_max(const struct agent_tier *tier);

/* How many more copies it takes now. */
uint32_t agent_tier_copies_left(const struct agent_tier *tier);

/* Copies the block of a LIVE slot. OK: done is called exactly once, later, on the same loop, even
 * on failure, unless the owner leaves: with OK, EXISTS (the drive has it), BUSY (its write budget),
 * or what the store says. Anything else: done is never called; BUSY: there is no buffer now. */
icms_err agent_tier_copy(struct agent_shard *shard, uint32_t slot,
                         struct agent_tier_copy *copy) ICMS_MUST_CHECK;

/* The copy, if it is in flight, goes on for nobody. */
void agent_tier_copy_leave(struct agent_tier_copy *copy);

/* An access to a block that agent_tier_has. */
void agent_tier_touch(const struct agent_shard *shard, const struct key *key);

/* The volume has another UUID. */
void agent_tier_volume_set(struct agent_shard *shard);

/* Any thread. What a volume has on the own drive, beside a pod or instead of one. */
void agent_volume_drive_stats(const struct agent *agent, uint32_t volume,
                              struct agent_volume_stats *out_stats);

/* Any thread. The agent's number of a volume of the store; STORE_ERROR_NO_BLOCK: it has none. */
uint32_t agent_tier_volume(const struct agent_tier *tier, uint32_t number);
void agent_tier_stats(struct agent_tier *tier, struct agent_tier_stats *out_stats);

#endif
