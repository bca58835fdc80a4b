/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/agent_int.h: what the files of the agent share. README.md has a table of them, from the
 * lowest to the highest; the functions below are in that order, but for those of agent.c.
 *
 * Who owns what. A key belongs to one reactor (shm_reactor()). Each reactor has a loop, a shard of
 * every volume, an association with every enclosure, and a queue pair with every client; all of
 * them are touched on its loop only, except fields marked atomic. Nothing crosses reactors but
 * control: attach, detach, status.
 */
#ifndef AGENT_INT_H
#define AGENT_INT_H

#include "agent/access.h"
#include "agent/agent.h"
#include "agent/direct.h"
#include "agent/events.h"
#include "agent/enclosure.h"
#include "agent/extent.h"
#include "agent/keys.h"
#include "agent/pod.h"
#include "agent/prestage.h"
#include "agent/tier.h"
#include "agent/wait.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/counter.h"
#include "base/estimate.h"
#include "base/hash.h"
#include "base/list.h"
#include "icms/icms.h"
#include "store/store.h"
#include "wire/sealed.h"

/* ---- limits --------------------------------------------------------------------------------- */

#define AGENT_CLIENT_REQS 1024 /* requests of one client in flight; more wait in its ring */
#define AGENT_OPS         2048 /* operations of one loop in flight; more requests wait             */
#define AGENT_OPS_OTHERS  (AGENT_OPS / 4) /* of them, of each class but loads */

/* The value of a load may come so much later than its deadline, for who asks for it again, while
 * there are so few loads, and within a part of the memory. */
#define AGENT_LATE_NS    ((uint64_t)1000 * 1000 * 1000)
#define AGENT_LATE_OPS   (AGENT_OPS / 8)
#define AGENT_LATE_SHARE 8

#define AGENT_TAKE_MAX   32 /* entries taken from a ring at a time                              */
#define AGENT_TAKE_ROUND 8  /* such takes before others have their turn                         */
#define AGENT_TAKE_BYTES                                                                           \
    ((uint64_t)16 << 20)      /* bytes to copy or to verify, likewise              */
#define AGENT_EVICT_MAX    8  /* windows evicted at a time: one look at the leases serves all     */
#define AGENT_EVICT_SHARE  32 /* of an arena that is evicted ahead: a part                      */
#define AGENT_SIZES_COUNT  256 /* blocks of which the largest tells what loads ask for           */
#define AGENT_PASSED_MAX   ((uint32_t)1 << 20) /* blocks remembered that went past an arena */
#define AGENT_MATCHES      16  /* batches of exists of one loop in flight; more requests wait     */
#define AGENT_MATCH_SLICE  512 /* keys of a batch that are asked for at a time */
#define AGENT_MATCH_CMDS   256 /* commands exist-many of one loop in flight; more keys wait */
#define AGENT_LARGE_SHARE  4   /* of a shard: a block that takes more than a part is large */
#define AGENT_ONCE_TRIES   64  /* blocks read once at most that are looked at for one request */
#define AGENT_WAKE_PAST    4   /* requests that are passed over when they still find no space */
#define AGENT_PASSED_BYTES ((uint64_t)64 << 10) /* of one at least: smaller ones do not go past */
#define AGENT_SLABS        256 /* of memory that volumes share, of a reactor: at most */
#define AGENT_SLAB_TRIES   4   /* slabs that are asked for, for one request */
#define AGENT_SLAB_BLOCKS                                                                          \
    1024 /* blocks that are evicted at a time, of a slab that changes hands                        \
          */
#define AGENT_IDENTITY_SLICE 1024 /* slots of a volume that is reset, before others have a turn */
#define AGENT_KEY_LISTS      256 /* lists of operations by key, of a volume                          */
#define AGENT_MANY           8 /* orders of other threads, of many keys each, in flight */
#define AGENT_WAKE_MAX       32 /* requests that get an operation before others have their turn     */

/* How often a ring is looked at without being asked, and its heartbeat. */
#define AGENT_HEARTBEAT_NS ((uint64_t)50 * 1000 * 1000)

/* How soon a full completion ring, or slots that wait for leases, are looked at again. */
#define AGENT_RETRY_NS ((uint64_t)2 * 1000 * 1000)

/* A deadline further away counts as this far: no request stays for ever. */
#define AGENT_DEADLINE_MAX_NS ((uint64_t)600 * 1000 * 1000 * 1000)

/* The heartbeat is so late: the reactor stood still, and knows nothing of how long others took. */
#define AGENT_STALL_NS ((uint64_t)50 * 1000 * 1000)

/* A slab changes hands when it was not accessed for so much longer than any of who wants it. */
#define AGENT_SLAB_OLDER_NS ((uint64_t)1000 * 1000 * 1000)

/* Buffers of a local drive. */
#define AGENT_LOCAL_BUFFERS 16

/* Of the arenas beside an own drive so much is pinned, in large pages, whole volumes. */
#define AGENT_LOCAL_PINNED_BYTES ((uint64_t)256 << 20)

/* ---- requests ------------------------------------------------------------------------------- */

enum agent_req_state {
    AGENT_REQ_FREE,        /* in its queue pair's pool; holds nothing                             */
    AGENT_REQ_NEW,         /* holds nothing yet                                                   */
    AGENT_REQ_WAIT_KEY,    /* its key is being stored or removed, or another flush of its client is
                              in flight; woken by op_done                                         */
    AGENT_REQ_WAIT_SLOT,   /* there is no space that is not leased or in use, or stores hold their
                              share; woken by shard_wake, shard_sweep                             */
    AGENT_REQ_WAIT_OP,     /* all operations of its class, or all batches, are in use; woken by
                              reactor_wake                                                        */
    AGENT_REQ_WAIT_STORES, /* flush: waits for its client's stores; woken by op_done_store */
    AGENT_REQ_LOCAL,       /* waits for the own drive; woken by op_done                 */
    AGENT_REQ_POD,         /* waits for an enclosure; woken by op_done                  */
    AGENT_REQ_ANSWER,      /* over                                                                */
    AGENT_REQ_WAIT_RING,   /* the ring of completions is full; woken by the reactor's timer       */
    AGENT_REQ_STATES,
};

struct agent_op;
struct agent_match;
struct agent_slabs;
struct agent_volume;
struct agent_shard;
struct agent_client;
struct agent_qpair;
struct agent_reactor;

struct agent_req {
    enum agent_req_state state; /* set by agent_req_state_set                                   */
    struct trace trace;         /* when it was set to what                                      */
    struct agent_qpair *qpair;  /* whence                                                       */
    struct agent_shard *shard;  /* whose block                                                  */
    /* the entry, copied and checked */
    struct key key;
    uint64_t tag;         /* the client's                                                  */
    uint64_t offset;      /* PUT: of the value in staging. EXISTS_MANY, PRESTAGE: of the keys.
                             DIRECT: address of memory                                    */
    uint64_t aside;       /* DIRECT: address. GET: of space for the trailer; PUT: of the digest.
                             PRESTAGE: absolute time                                      */
    uint64_t deadline_ns; /* absolute                                                     */
    uint64_t taken_ns;    /* when it was taken from the ring                              */
    uint32_t bytes;       /* PUT: plain value. EXISTS_MANY, PRESTAGE: number of keys. GET, DIRECT:
                             space                                                        */
    uint32_t lease;       /* GET: entry of the lease table; SHM_SLOT_NONE: wants no lease.
                             PRESTAGE: shm_hint()                                         */
    uint8_t op;           /* enum shm_op                                                  */
    uint8_t flags;        /* enum shm_flag                                                */
    uint8_t identity;     /* low bits of the shard's, as the client knows it              */
    /* work */
    uint64_t space;             /* GET: bytes that the stored block needs; 0: nobody said         */
    struct agent_op *waits;     /* LOCAL, POD, WAIT_KEY: the operation                          */
    struct agent_match *match;  /* EXISTS_MANY in LOCAL or POD: the batch                     */
    uint64_t wait_since_ns;     /* WAIT_OP, WAIT_SLOT: since when; 0: it does not wait for that */
    uint64_t wait_ns;           /* that it did so before                                       */
    bool direct;                /* GET: its memory is being written: only the operation ends it */
    bool flushed;               /* FLUSH: the stores before it are over                         */
    bool was_cached;            /* REMOVE: the arena had it                                     */
    uint32_t asked;             /* the enclosure that was asked last; TRACE_NOWHERE             */
    uint64_t flush_seq;         /* FLUSH: stores with a smaller number are waited for           */
    struct agent_waiter waiter; /* in the list of what it waits for */
    struct loop_timer timer;    /* deadline                                                 */
    /* answer; what the queue pair does with it, and with a part of the value before it */
    struct shm_complete answer;
    void (*done)(struct agent_req *req);
    void (*part)(struct agent_req *req, const struct shm_complete *part);
    struct list qpair_link; /* in qpair->free or qpair->active                                */
};

/* ---- operations ----------------------------------------------------------------------------- */

enum agent_op_kind {
    AGENT_OP_LOAD,   /* a block into a slot                                                       */
    AGENT_OP_STORE,  /* a slot to flash                                                           */
    AGENT_OP_EXIST,  /* is it there                                                               */
    AGENT_OP_DELETE, /* at both places where it may be                                            */
    AGENT_OP_FLUSH,  /* at each enclosure that has the volume                                     */
};

/* One piece of work for the pod or the own drive. It may outlive the requests that wait for it: its
 * slot is pinned until nothing can touch it. */
struct agent_op {
    enum agent_op_kind kind;
    bool busy;                 /* started, not over                                           */
    bool drop;                 /* LOAD: the key was written meanwhile: publish nothing        */
    bool published;            /* STORE: the slot is visible (accepted puts)                  */
    bool if_absent;            /* STORE                                                       */
    bool suspect;              /* LOAD: the block is checked, and deleted if it is bad        */
    bool is_late;              /* LOAD: the deadline passed, and the value may come still     */
    bool is_unknown;           /* LOAD, direct, own drive: of another version, not checked    */
    bool bad;                  /* LOAD: what came was not sealed for this volume and key      */
    bool counted;              /* LOAD, suspect: as a checksum error                          */
    bool found;                /* DELETE: some place had it                                   */
    bool is_reload;            /* LOAD: `space` is not a guess                                 */
    bool is_expedited;         /* LOAD, class PRESTAGE: a get waits for it; goes as LOAD       */
    bool once;                 /* LOAD, STORE: the block is read once at most                  */
    bool too_small;            /* LOAD: the block is larger than the space, by value_bytes     */
    bool moves;                /* STORE: of what the former owner had; no client knows of it   */
    bool lost;                 /* FLUSH: an enclosure with stores of the client left meanwhile */
    bool at_tier;              /* asked of the own drive beside the pod, now                  */
    bool left_tier;            /* STORE: the drive was late, and may have it later            */
    bool looks;                /* STORE: enclosures are asked whether they have the key       */
    bool from_tier;            /* LOAD: that had it. STORE: that has it, and no enclosure      */
    bool own_dirty;            /* FLUSH: the client has stores there that were not flushed     */
    struct agent_match *match; /* EXIST: of this batch; NULL: of no batch                   */
    uint32_t match_key;        /* which key of it                                           */
    struct agent_shard *shard;
    struct agent_user_share *user; /* for whom it was begun; NULL: for the agent itself      */
    uint32_t identity;             /* the shard's when it was made: agent_op_is_stale             */
    struct key key;                /* all but FLUSH                                               */
    enum io_class io_class;        /* counted against it; whose queue pair                        */
    uint32_t slot;                 /* LOAD, STORE; SHM_SLOT_NONE else                             */
    uint64_t space;                /* LOAD: bytes there for the stored block                      */
    uint32_t arrived_bytes;        /* LOAD, sealed: of the value, as who waits was told           */
    struct agent_req *direct;      /* LOAD into the memory of this request, its only one: no slot */
    uint64_t arrival;              /* LOAD, direct: of all that an enclosure was asked for, which
                                      one this is; 0: it was not asked                            */
    uint32_t value_bytes;          /* STORE: plain value. LOAD, in over: likewise                 */
    uint32_t stored_bytes;         /* STORE: with the trailer                                     */
    uint64_t deadline_ns;          /* absolute                                                    */
    uint64_t seq;                  /* STORE: its number in the shard                              */
    uint32_t client; /* STORE, FLUSH: number of the client                           */
    uint64_t epoch;  /* STORE, FLUSH: of its share                                  */
    uint64_t record; /* LOAD, suspect: what was read. DELETE: only this one, of enclosure;
                        0: whatever is there                                        */
    struct agent_search search; /* who was asked                                             */
    uint64_t wanted;            /* FLUSH: bit j: enclosure j has to be asked                   */
    struct agent_enclosure *enclosure; /* asked now; NULL: the own drive */
    struct agent_link *by_link;        /* of it: which one has the command             */
    uint32_t links_tried;              /* bit i: link i of it had the command           */
    struct slow_op asked;      /* when, and behind how many bytes of loads; of an enclosure   */
    struct estimate_load load; /* LOAD: what was expected of an enclosure, or of the own drive
                                  instead of a pod                                    */
    /* answer of the one that was asked; in over: of all */
    icms_err err;
    enum icms_miss reason;
    enum icms_miss first_reason; /* what the owner said before another one was asked; NONE      */
    struct list waiters;         /* struct agent_waiter: requests in LOCAL or POD */
    struct list blocked;         /* struct agent_waiter: requests in WAIT_KEY */
    /* Called by whom it was asked of, once, on the loop, never inside the asking (err, reason set).
     */
    void (*answered)(struct agent_op *op);
    void (*done)(struct agent_op *op); /* it is over, before its waiters are told; NULL: none */
    struct list key_link;         /* in shard->keys: LOAD, STORE, DELETE                         */
    struct list client_link;      /* STORE: in shard->shares[client].stores                       */
    struct list link;             /* free list, or the own drive's list of those that wait       */
    struct loop_msg msg;          /* goes on after what runs now                                 */
    uint8_t *buffer;              /* local: of the pool                                          */
    struct agent_reading reading; /* local: of its record by another way                        */
    bool is_asked;                /* local: no request waits yet, as it is being asked          */
    union {
        struct nvmf_req nvmf;
        struct store_read read;
        struct store_write write;
        struct store_delete delete;
        struct store_flush flush;
    } u;
    struct loop_timer timer;   /* own drive: deadline of a read                               */
    struct agent_tier_io *own; /* at_tier, LOAD, STORE: its read, write; NULL: waits for a buffer */
    struct agent_tier_forget *forget; /* at_tier, DELETE, FLUSH */
};

/* ---- batches of exists ---------------------------------------------------------------------- */

/* Keys of a batch that one enclosure is asked for with one command. Its key k is key index[k] of
 * the batch. */
struct agent_match_cmd {
    void (*answered)(struct agent_match_cmd *cmd); /* as in struct agent_op: err, reason, map set */
    struct agent_match *match; /* whose                                                     */
    struct agent_enclosure *enclosure; /* who is asked */
    struct agent_link *by_link; /* as in struct agent_op                                     */
    uint32_t links_tried;
    uint32_t count; /* keys                                                      */
    uint16_t index[NVME_KV_EXIST_MANY_KEYS];
    struct key keys[NVME_KV_EXIST_MANY_KEYS];
    uint8_t data[NVME_KV_EXIST_MANY_BYTES]; /* what goes over the wire                      */
    /* the answer */
    icms_err err;
    enum icms_miss reason;
    uint64_t map;         /* bit k: key k is there                                     */
    struct slow_op asked; /* as in struct agent_op                                     */
    struct nvmf_req nvmf; /* the command                                               */
    struct loop_msg msg;  /* goes on after what runs now                               */
    struct list link;     /* free list                                                 */
};

enum agent_match_key {
    MATCH_ASK,   /* somebody has to be asked; asked by match_run                                  */
    MATCH_OUT,   /* in a command or an operation; answered by match_cmd_answered or
                    match_op_done                                                           */
    MATCH_KNOWN, /* its reason is final                                                           */
};

/* Where a key is, besides numbers of enclosures. */
#define MATCH_FROM_DRAM  (LIMIT_ENCLOSURES + 0)
#define MATCH_FROM_LOCAL (LIMIT_ENCLOSURES + 1)
#define MATCH_FROMS      (LIMIT_ENCLOSURES + 2)
_Static_assert(MATCH_FROMS <= UINT8_MAX, "a byte");

/* Keys of one request. It may outlive the request: commands are in flight with its number. */
struct agent_match {
    struct agent_shard *shard;
    struct agent_req *req;         /* who waits; NULL: nobody any more                          */
    struct agent_user_share *user; /* of who waited                                     */
    uint32_t identity;             /* the shard's when it began                                 */
    uint32_t count;                /* keys, of this reactor                                     */
    uint32_t left;                 /* of them, not KNOWN                                        */
    uint32_t out;    /* commands, operations and `more` in flight                    */
    uint32_t next;   /* no key before it is in ASK                                */
    uint32_t looked; /* keys before it were looked for in the arena               */
    struct agent_match_cmd
        *open[LIMIT_ENCLOSURES]; /* commands that are not full yet, by enclosure */
    struct loop_msg more;        /* goes on with match_run after others had their turn        */
    bool more_sent;              /* it is in flight                                          */
    uint64_t took_bytes;         /* of commands and operations that match_run took           */
    uint64_t deadline_ns;        /* absolute                                                  */
    struct agent_waiter waiter;  /* in a free list, reactor->wait_cmd or wait_alone */
    void (*done)(struct agent_match *match); /* the request's: all keys are known */
    /* by key */
    struct key keys[SHM_MATCH_KEYS];
    uint16_t at[SHM_MATCH_KEYS];    /* which key of the request it is                 */
    uint8_t state[SHM_MATCH_KEYS];  /* enum agent_match_key                           */
    uint8_t reason[SHM_MATCH_KEYS]; /* KNOWN: enum icms_miss; NONE: it is there       */
    uint8_t from[SHM_MATCH_KEYS];   /* and where: an enclosure, or MATCH_FROM_...     */
    struct agent_search searches[SHM_MATCH_KEYS]; /* who was asked                          */
};

/* ---- one reactor ---------------------------------------------------------------------------- */

struct agent_reactor {
    struct agent *agent;
    uint32_t index;
    struct loop *loop;
    uint32_t shard_count;               /* made                                         */
    struct agent_shard *shards;         /* one a volume                                 */
    struct agent_slabs *slabs;          /* [agent->arena_count]                         */
    const struct agent_view *view;      /* what of the pod is used: pod.h               */
    uint64_t view_ns;                   /* since when                                   */
    struct agent_enclosure *enclosures; /* [LIMIT_ENCLOSURES]                           */
    _Atomic uint64_t excluded;          /* bit j: enclosure j takes nothing now, or is none */
    uint64_t slow;                      /* bit j: and is connected: it is SLOW          */
    uint64_t lowered;                   /* bit j: it is UP, with a share below 100 %    */
    struct slow slow_loads, slow_exists, slow_stores; /* what enclosures take for them     */
    struct agent_op *ops;                  /* [AGENT_OPS]                                  */
    struct list free_ops;                  /* struct agent_op                              */
    uint32_t ops_used[IO_CLASS_COUNT];     /* by class                                     */
    struct line wait_op[IO_CLASS_COUNT];   /* struct agent_waiter: requests                */
    struct agent_match *matches;           /* [AGENT_MATCHES]                              */
    struct agent_match_cmd *match_cmds;    /* [AGENT_MATCH_CMDS]                                */
    struct list free_matches;              /* struct agent_match                           */
    struct list free_match_cmds;           /* struct agent_match_cmd                            */
    struct line wait_match;                /* struct agent_waiter: requests that wait for a batch */
    struct line wait_cmd;                  /* batches whose next key needs a command       */
    struct line wait_alone;                /* the same, an operation of its own            */
    void *lines_memory;                    /* of all of them                               */
    struct agent_prestage *prestage;       /* hints: prestage.c                            */
    struct agent_events *events;           /* events.c; NULL: of no volume                 */
    struct loop_msg wake;                  /* wakes all that wait                          */
    bool wake_sent;                        /* it is in flight                             */
    bool waking;                           /* who takes something now is next in line      */
    struct loop_timer heartbeat;           /* rings of clients                              */
    uint64_t heartbeat_due_ns;             /* when it should fire                           */
    uint64_t stalled_ns;                   /* when it was late last; 0: never               */
    struct loop_msg start;                 /* first thing on the loop                      */
    bool started;                          /* its thread runs; the owner's                 */
    struct hist get_ns, put_ns, exists_ns; /* from taken to answered                       */
    uint64_t requests, answered;           /* taken; of these, over                        */
    uint64_t arrivals;                     /* loads into a client's memory, each time that an
                                              enclosure was asked                          */
    uint64_t pod_load_bytes, pod_store_bytes; /* of all enclosures there ever were         */
    struct trace_book book;                   /* of requests that are over                    */
    uint64_t answers[AGENT_STATS_OPS][AGENT_STATS_ERRS]; /* by enum shm_op and status */
    uint64_t hostile; /* clients dropped for what they wrote           */
};

/* ---- shards --------------------------------------------------------------------------------- */

enum agent_slot_state {
    AGENT_SLOT_FREE,    /* in shard->free                                                         */
    AGENT_SLOT_FILLING, /* has an extent; the network, the drive or a copy writes it              */
    AGENT_SLOT_LIVE,    /* in the index; readers may lease it                                     */
    AGENT_SLOT_LIMBO,   /* out of the index; leased or pinned still; freed by shard_sweep         */
};

struct agent_slot {
    struct list
        link; /* in shard->free, shard->limbo; LIVE: in shard->once, or, large, shard->large */
    enum agent_slot_state state;
    uint16_t pins;        /* operations that read or write it                              */
    bool was_read;        /* LIVE: since it was published                                  */
    bool once;            /* LIVE: who brought it said that it is read once at most        */
    uint8_t kept;         /* LIVE: enum agent_kept                                         */
    uint32_t hint;        /* LIVE: number of a hint that waits for it to be read, from 1; 0: none */
    uint32_t value_bytes; /* LIVE: plain value                                             */
    uint32_t head;        /* LIVE: its chain                                               */
    uint64_t since_ns;    /* LIVE: when it was published                                   */
    struct key key;       /* LIVE                                                          */
};

/* A client's stores into a shard. */
struct agent_share {
    struct list stores;  /* struct agent_op, oldest first                                         */
    struct list flushes; /* struct agent_req in WAIT_STORES                                      */
    uint64_t failed;     /* accepted stores that failed since the last flush                      */
    uint64_t dirty;      /* bit j: enclosure j has stores that were not flushed                   */
    uint64_t epoch; /* which client of this number: another one's are nobody's                */
    struct agent_op *flush; /* in flight; one at a time                                           */
    bool own_dirty;         /* the own drive has stores that were not flushed, and the pod not    */
};

/* A block that was loaded past the arena. */
struct agent_passed {
    uint32_t tag;  /* what of its key's hash tells it; 0: none  */
    uint32_t when; /* shard->passed_now at that time            */
};

/* Memory of one volume, or of several that share it. */
struct agent_arena {
    const char *name;           /* of one of its volumes                                          */
    struct loop_region *region; /* a part for each reactor, one behind the other: shm.h */
    uint64_t part_bytes;        /* of the region                                                  */
    uint64_t shards_bytes;      /* of a part, in front of the data                                */
    uint64_t data_bytes;        /* of a part, for blocks                                          */
    uint32_t slab_count;        /* of a part's data; 0: one volume has all of it                  */
    uint64_t slab_bytes; /* of one: space for the largest block                             */
};

/* What of a volume is the same for all reactors. */
struct agent_volume {
    struct volume_spec spec;
    uint64_t stored_bytes_max; /* value and trailer                                              */
    uint64_t extent_bytes_max; /* what the largest block takes, in whole pages                   */
    uint64_t memory_bytes_min; /* for its blocks, of all reactors: one block each at least       */
    uint64_t memory_bytes_max; /* not less                                                       */
    uint32_t arena;            /* number of agent->arenas                                        */
    uint64_t offset;           /* of its shard in a part                                         */
    uint64_t shard_bytes_max;  /* for blocks of one shard                                        */
    uint32_t margin;           /* bytes of an extent in front of the value                       */
    _Atomic uint32_t backlog_users; /* that have stores of it in flight                          */
    uint64_t client_counts[SHM_COUNTS]; /* of all clients, also detached ones; agent->control     */
};

/* A reactor's part of memory that volumes share. */
struct agent_slabs {
    struct agent_arena *arena;
    uint64_t shards; /* bit i: of these volumes                            */
    struct agent_shard *owners[AGENT_SLABS]; /* by slab; NULL: nobody's */
    uint64_t last_ns[AGENT_SLABS]; /* when a block that lies there was last accessed     */
};

/* What a user did with a volume at a reactor. */
struct agent_user_count {
    uint64_t requests, load_bytes, store_bytes, waits, wait_us, sheds; /* counters */
    uint64_t load_local_bytes, load_pod_bytes;                         /* counters, of load_bytes */
    uint64_t pinned[ICMS_TIER_LOCAL + 1]; /* bytes of its pins now, by enum icms_tier           */
};

/* A reactor's shard of a volume. */
struct agent_shard {
    struct agent *agent;
    struct agent_reactor *reactor;
    struct agent_events *events;   /* where its events go; NULL: nobody wants them               */
    struct agent_slabs *slabs;     /* NULL: it has all of its arena                              */
    uint32_t slab_count;           /* it has now                                                 */
    uint32_t slabs_min, slabs_max; /* its floor and its ceiling                                  */
    uint32_t slab_first[AGENT_SLABS]; /* a slot whose extent begins there; NONE: there is none    */
    uint32_t number;                  /* of the volume                                            */
    struct volume_spec spec;          /* the volume's, with its newest UUID                       */
    uint32_t identity;            /* header->identity; odd: blocks of another UUID are going     */
    uint32_t change;              /* how often its UUID changed: agent_event.change              */
    uint32_t identity_at;         /* slots before it have gone                                    */
    struct loop_msg identity_msg; /* goes on with that after others had their turn            */
    uint64_t stored_bytes_max;    /* likewise                                                 */
    uint64_t bytes_max;           /* memory that its blocks have at most                      */
    uint64_t bytes;               /* that they have now                                       */
    bool in_place;                /* an own drive reads and writes records in slots           */
    struct shm_arena arena;       /* our view of its part of the region                       */
    struct shm_arena_header *header; /* writable                                             */
    _Atomic uint32_t *heads;         /* writable                                                 */
    struct shm_slot *slots;          /* writable                                                 */
    uint8_t *data;                   /* writable                                                 */
    struct agent_slot *meta;         /* [slot_count]                                             */
    uint32_t meta_used;          /* slots from this one on were never used, and are not in free */
    struct extents extents;      /* who has which bytes of the data                          */
    uint32_t margin;             /* bytes of an extent in front of the value                 */
    uint64_t sizes_max[2];       /* largest stored block of the last, and of these, blocks   */
    uint32_t sizes_count;        /* of these                                                 */
    uint64_t size_average;       /* of stored blocks, a moving one; 0: none was seen         */
    uint64_t *leased;            /* bit i: slot i is leased; of the last look                */
    struct agent_passed *passed; /* [passed_count]                                          */
    uint32_t passed_count;       /* power of two                                             */
    uint32_t passed_now;         /* blocks that were loaded past the arena so far            */
    struct list free;            /* struct agent_slot                                        */
    struct list limbo;           /* struct agent_slot                                        */
    struct list once;            /* struct agent_slot: go before all others                  */
    struct list large;           /* struct agent_slot: go next; AGENT_LARGE_SHARE - 1 at most */
    uint64_t secret;             /* seeds the hashes of what is not shared                  */
    struct list keys[AGENT_KEY_LISTS]; /* struct agent_op by key                                 */
    struct line wait_slot;    /* struct agent_waiter: requests                            */
    struct line wait_share;   /* puts while stores hold their share                       */
    void *lines_memory;       /* of both                                                  */
    bool waking;              /* who takes space now is next in line                      */
    uint64_t store_bytes;     /* of the arena, held by stores in flight                   */
    uint64_t late_bytes;      /* by loads after their deadline                            */
    uint64_t store_bytes_max; /* their share; the others are for loads                    */
    struct loop_timer sweep;  /* looks at limbo again                                     */
    struct loop_msg wake;     /* wakes wait_slot and wait_share                 */
    bool wake_sent;           /* it is in flight                               */
    uint64_t store_seq;       /* number of the next store                                 */
    struct agent_share shares[LIMIT_CLIENTS];
    _Atomic uint64_t missing; /* bit j: enclosure j is up and has no such volume for us        */
    /* hints: prestage.c; of slots that have one: */
    void (*hint_read)(struct agent_shard *shard, uint32_t slot); /* it was read                */
    void (*hint_gone)(struct agent_shard *shard, uint32_t slot); /* it is not LIVE any more    */
    void (*pins_fit)(struct agent_shard *shard);                 /* it has less memory          */
    uint32_t hint_users;    /* that have hints                                                 */
    enum agent_kept evicts; /* slots that are kept by no more than that may be evicted now    */
    bool yields;            /* and pinned ones: their slab goes to another volume              */
    struct agent_prestage_stats prestage; /* counters */
    uint64_t hint_bytes;                  /* of its memory, that loads of hints in flight have    */
    /* counters */
    uint64_t slots_used, used_bytes, evicted[AGENT_EVICTED_COUNT];
    uint64_t hits_dram, hits_local, hits_pod;
    uint64_t misses[AGENT_STATS_MISSES];
    uint64_t puts, put_bytes, get_bytes;
    uint64_t sheds, deadline_misses, checksum_errors, store_failures;
    struct hist evicted_age_ns; /* since they were published, of evicted blocks          */
    struct agent_user_count users[AGENT_USERS]; /* by place in agent->users               */
    uint64_t former_found, former_missed, moved, moved_bytes, moves_shed;
};

/* ---- the own drive -------------------------------------------------------------------------- */

struct agent_local {
    struct agent_reactor *reactor; /* the only one                                             */
    struct store *store;
    struct loop_region *region; /* buffers                                                  */
    uint64_t buffer_bytes;      /* of one                                                   */
    uint8_t *buffers[AGENT_LOCAL_BUFFERS]; /* free ones                                          */
    uint32_t free_count;
    struct line waiting; /* struct agent_op that need a buffer                       */
    void *line_memory;   /* its                                                      */
    uint64_t load_bytes, store_bytes;
    struct estimate estimate;   /* of loads                                                 */
    struct hist estimate_error; /* thousandths                                              */
};

/* ---- clients -------------------------------------------------------------------------------- */

enum agent_qpair_state {
    AGENT_QPAIR_FREE,   /* nobody                                                                */
    AGENT_QPAIR_LIVE,   /* is served; woken by its event                                         */
    AGENT_QPAIR_BROKEN, /* the client wrote what makes no sense: not served until it is detached  */
    AGENT_QPAIR_LEAVING, /* waits for its requests; woken by the last one                         */
    AGENT_QPAIR_GONE, /* waits until no reactor looks at the client's leases                    */
};

/* A client's rings at one reactor. */
struct agent_qpair {
    struct agent_client *client;
    void (*left)(struct agent_qpair *qpair); /* LEAVING: nothing of it is in flight any more */
    struct agent_reactor *reactor;
    enum agent_qpair_state state;
    struct loop_event *event;  /* wakes us                                           */
    struct shm_ring ring;      /* ours of the client's region                         */
    struct agent_req *reqs;    /* [AGENT_CLIENT_REQS]                                 */
    struct list free;          /* struct agent_req                                   */
    struct list active;        /* struct agent_req: taken and not answered           */
    struct list wait_ring;     /* struct agent_req in WAIT_RING                      */
    struct loop_op event_op;   /* waits for event                                    */
    struct loop_msg start_msg; /* from attach                                        */
    struct loop_msg run_msg;   /* goes on with the ring after others had their turn  */
    bool run_sent;             /* it is in flight                                   */
};

struct agent_client {
    struct agent *agent;
    uint32_t number;
    bool taken;                    /* under agent->control: the number is in use               */
    bool leaving;                  /* under agent->control: detach was asked for               */
    bool owner;                    /* under agent->control: counts for no user                 */
    uint32_t uid;                  /* under agent->control: whose it is                        */
    struct agent_user_share *user; /* of all clients with this owner and uid          */
    uint64_t volumes;              /* bit i: it may use volume i; set before it is visible     */
    struct loop_region *region;
    struct loop_event *client_event; /* wakes it                                                 */
    struct agent_qpair *qpairs;      /* [reactor_count]                                          */
    _Atomic bool visible;            /* its leases count; any reactor reads it                   */
    _Atomic bool trusted;            /* it is this process: agent_client_trust                   */
    uint64_t attached_ns;            /* when it was attached                                     */
    uint64_t (*counted)[SHM_COUNTS]; /* [volume_count] of its counters, added to the volumes';
                                        under agent->control                                     */
    struct loop_msg leave_msg;       /* from detach; through all reactors, twice                 */
    uint32_t leave_at;               /* which reactor                                            */
    void (*detached)(void *arg);     /* whom to tell                                             */
    void *detached_arg;
};

/* ---- the agent ------------------------------------------------------------------------------ */

struct agent {
    struct loop_env *env;
    struct agent_opts opts; /* pointers in it are not used after agent_new              */
    uint32_t reactor_count;
    struct agent_reactor reactors[LIMIT_LOOPS];
    uint32_t volume_count;
    struct agent_volume *volumes; /* [volume_count]                                           */
    uint32_t weights[LIMIT_AGENT_VOLUMES]; /* of volumes, where they share                    */
    uint32_t arena_count;
    struct agent_arena arenas[LIMIT_AGENT_VOLUMES];
    struct agent_pod pod;            /* the enclosures                                           */
    struct agent_local *local;       /* NULL: a pod                                              */
    struct agent_tier *tier;         /* the own drive beside a pod; NULL: none                   */
    _Atomic uint64_t backlog_bytes;  /* stores in flight                                         */
    _Atomic uint32_t backlog_weight; /* of the volumes whose they are                           */
    _Atomic bool draining;           /* no new requests                                          */
    pthread_mutex_t control;         /* of client numbers and regions; control threads, and the
                                        last step of a client's end                               */
    struct agent_client clients[LIMIT_CLIENTS];
    struct agent_user_share users[AGENT_USERS]; /* the first: the owner                      */
    uint64_t clients_refused; /* by agent_access_client; control                                */
    uint32_t refused_user;    /* the last of those; likewise                                    */
    uint32_t events_change[LIMIT_AGENT_VOLUMES]; /* that were passed on; of agent_events_take */
    _Atomic(void *) many[AGENT_MANY]; /* struct agent_many in flight; or NULL               */
};

/* ---- agent.c -------------------------------------------------------------------------------- */

static inline uint64_t reactor_now_ns(const struct agent_reactor *reactor)
{
    return loop_now_ns(reactor->loop);
}

/* Enclosures (bits) that cannot be asked: not reached yet, or excluded. On the loop. */
static inline uint64_t agent_reactor_down(const struct agent_reactor *reactor)
{
    return atomic_load_explicit(&reactor->excluded, memory_order_relaxed) & ~reactor->slow;
}

/* True when the loop stood still at some time since then: what others took in that time is not
 * known. On the loop. */
static inline bool agent_reactor_stalled(struct agent_reactor *reactor, uint64_t since_ns)
{
    uint64_t now_ns = reactor_now_ns(reactor);

    if (now_ns > reactor->heartbeat_due_ns + AGENT_STALL_NS)
        reactor->stalled_ns = now_ns;
    return reactor->stalled_ns != 0 && reactor->stalled_ns >= since_ns;
}

/* A drive of its own belongs to one loop, and there is nothing else to divide. */
static inline uint32_t agent_reactor_count(const struct agent_opts *opts)
{
    return opts->local_path != NULL ? 1 : opts->loops;
}

/* Requests that were taken and not answered. Any thread. */
uint64_t agent_in_flight(const struct agent *agent);

/* Whether no request and no store is under way. Any thread. */
bool agent_is_quiet(struct agent *agent);

/* ---- count.c -------------------------------------------------------------------------------- */

/* A request of a user is answered. */
void agent_user_count(const struct agent_req *req);

/* What users at a place did with a volume so far, of all that had it; clients' counters aside. */
void agent_user_count_sum(struct agent *agent, uint32_t place, uint32_t volume,
                          struct agent_user_stats *out_stats);

/* Adds what a client has counted since the last call to its volumes. agent->control is held, and
 * the client's region is mapped. */
void agent_client_counts_take(struct agent_client *client);

/* ---- memory.c ------------------------------------------------------------------------------- */

/* Volumes and the memory of all their shards. */
icms_err agent_memory_init(struct agent *agent, const struct agent_opts *opts,
                           struct err_why *why) ICMS_MUST_CHECK;
void agent_memory_fini(struct agent *agent);

/* The same without taking it: whether it can be divided, and how much that is with its tables. */
icms_err agent_memory_check(const struct agent_opts *opts, struct err_why *why,
                            uint64_t *out_bytes) ICMS_MUST_CHECK;

/* Slabs that a shard of the volume always has, where volumes share. */
uint32_t agent_memory_floor_slabs(const struct agent *agent, const struct agent_volume *volume);

/* Memory for blocks, of all volumes. Any thread. */
uint64_t agent_memory_bytes(const struct agent *agent);

/* ---- local.c -------------------------------------------------------------------------------- */

/* Whether the options of the drive go together. No I/O. */
icms_err agent_local_check(const struct agent_opts *opts, struct err_why *why) ICMS_MUST_CHECK;
/* Of the store on the drive, all but the volumes. */
void agent_local_store_opts(const struct agent_opts *opts, struct store_opts *out_opts);
icms_err agent_local_new(struct agent *agent, struct err_why *why) ICMS_MUST_CHECK;
void agent_local_stop(struct agent_local *local);
void agent_local_free(struct agent_local **local);
void agent_local_ask(struct agent_local *local, struct agent_op *op);
/* Bytes that the stored block of a key has at most; 0: the drive does not have it. */
uint64_t agent_local_bytes(struct agent_local *local, const struct agent_shard *shard,
                           const struct key *key);

/* NONE: the drive has the key; else why not. */
enum icms_miss agent_local_exists(struct agent_local *local, const struct agent_shard *shard,
                                  const struct key *key);

/* ---- slot.c --------------------------------------------------------------------------------- */

void agent_shard_slots_init(struct agent_shard *shard);

/* Whether not every slot has a block; only very small blocks use them up. */
bool agent_shard_has_slot(const struct agent_shard *shard);

/* A slot (FILLING) with such an extent; SHM_SLOT_NONE: there is none at this moment. replace: with
 * blocks evicted for it; replace_once: with such as are read once at most. */
uint32_t agent_shard_place(struct agent_shard *shard, uint64_t extent_bytes);
uint32_t agent_shard_replace_once(struct agent_shard *shard, uint64_t extent_bytes);
uint32_t agent_shard_replace(struct agent_shard *shard, uint64_t extent_bytes);

/* Looks at limbo again soon: leases are given back without a word. */
void agent_shard_sweep_arm(struct agent_shard *shard);

/* The slot of a key in the index, or SHM_SLOT_NONE. */
uint32_t agent_shard_find(struct agent_shard *shard, const struct key *key);

/* Which of 1..SHM_PROBE_KEYS keys are in the index: bit i for key i. */
uint32_t agent_shard_find_many(struct agent_shard *shard, const struct key *keys, uint32_t count);

/* Gives a FILLING slot back. */
void agent_shard_slot_give(struct agent_shard *shard, uint32_t slot);

/* Whether no block that lies in part of the arena is in use, of the first AGENT_SLAB_BLOCKS;
 * before: the last extent that begins before it. */
bool agent_shard_is_clear(struct agent_shard *shard, uint32_t before, uint64_t begin, uint64_t end);

/* Evicts these blocks; right after agent_shard_is_clear. True: all are gone, but for those that a
 * client leased at this moment. */
bool agent_shard_clear(struct agent_shard *shard, uint32_t before, uint64_t begin, uint64_t end);

/* FILLING -> LIVE; what the key had before goes, and space that the value does not need. once: it
 * is read once at most, unless what the key had before is not. */
void agent_shard_publish(struct agent_shard *shard, uint32_t slot, const struct key *key,
                         uint32_t value_bytes, bool once);

/* LIVE -> LIMBO or FREE. */
void agent_shard_unpublish(struct agent_shard *shard, uint32_t slot);

void agent_shard_pin(struct agent_shard *shard, uint32_t slot);
void agent_shard_unpin(struct agent_shard *shard, uint32_t slot);

/* Was used: stays longer, unless who reads it reads it once at most. A block that was brought to be
 * read once is one as the others when it is read a second time, by somebody who does not say so. */
void agent_shard_touch(struct agent_shard *shard, uint32_t slot, bool once);

/* A LIVE block is one as the others from now on; harmless if it is. */
void agent_shard_once_end(struct agent_shard *shard, uint32_t slot);

/* Holds a LIVE slot in the lease table of a client. */
void agent_shard_lease(struct agent_shard *shard, uint32_t slot, const struct shm_ring *ring,
                       uint32_t lease);

/* ---- slab.c --------------------------------------------------------------------------------- */

/* The shared memory of a reactor, before its shards; each shard then gets its floor. */
icms_err agent_slabs_init(struct agent_reactor *reactor) ICMS_MUST_CHECK;
void agent_slabs_join(struct agent_shard *shard);

/* The shard has one slab more: nobody's, or one of another volume, which evicts what lies there.
 * False: it has no right to one, or there is none now. */
bool agent_slabs_take(struct agent_shard *shard);

/* ---- shard.c -------------------------------------------------------------------------------- */

icms_err agent_shard_init(struct agent_shard *shard, struct agent_reactor *reactor, uint32_t number,
                          struct err_why *why) ICMS_MUST_CHECK;
void agent_shard_fini(struct agent_shard *shard);

/* Whether the key belongs to the shard's reactor. */
static inline bool agent_shard_owns(const struct agent_shard *shard, const struct key *key)
{
    return shm_reactor(key, volume_has_runs(&shard->spec), shard->agent->reactor_count) ==
           shard->reactor->index;
}

/* Reserves a slot (FILLING) with space for a stored block of so many bytes, evicting if need be;
 * SHM_SLOT_NONE when too much is leased or pinned. */
uint32_t agent_shard_slot_take(struct agent_shard *shard, uint64_t stored_bytes);

/* The same for a hint: blocks that others keep stay. */
uint32_t agent_shard_slot_take_hint(struct agent_shard *shard, uint64_t stored_bytes);

/* Whether stores in flight leave the shard's memory to one more; takes memory for it, if need be.
 */
bool agent_shard_stores_more(struct agent_shard *shard, uint64_t stored_bytes);

/* Bytes of the arena that a slot holds. */
static inline uint64_t agent_shard_slot_bytes(const struct agent_shard *shard, uint32_t slot)
{
    return shard->extents.of[slot].bytes;
}

/* What a stored block of so many bytes takes, with such a margin. */
static inline uint64_t agent_extent_bytes(uint32_t margin, uint64_t stored_bytes)
{
    return margin != 0 ? store_record_bytes(stored_bytes) : bytes_align(stored_bytes, EXTENT_UNIT);
}

/* What of the arena a stored block of so many bytes takes. */
static inline uint64_t agent_shard_extent_bytes(const struct agent_shard *shard,
                                                uint64_t stored_bytes)
{
    return agent_extent_bytes(shard->margin, stored_bytes);
}

/* Whether a block that takes so much would drive out much of what is there: it goes past the arena
 * where that is possible, and else it is the first to go. */
static inline bool agent_shard_is_large(const struct agent_shard *shard, uint64_t extent_bytes)
{
    return extent_bytes > shard->bytes_max / AGENT_LARGE_SHARE;
}

/* Space for a load of the key, in bytes of the stored block: what blocks of the volume had lately.
 */
uint64_t agent_shard_load_bytes(const struct agent_shard *shard, const struct key *key);

/* What a block has on average, as it is stored; the most that it can have while none was seen. */
uint64_t agent_shard_expected_bytes(const struct agent_shard *shard);

/* A stored block had so many bytes. */
void agent_shard_size_seen(struct agent_shard *shard, uint64_t stored_bytes);

static inline uint8_t *agent_shard_memory(struct agent_shard *shard, uint32_t slot)
{
    return shard->data + shard->extents.of[slot].begin + shard->margin;
}

/* True when a block that is loaded now shall be kept in the arena: it was loaded past it before,
 * and no more blocks since than the arena holds, so that it would have been there still; and it is
 * not large. False: it is noted for the next time.
 */
bool agent_shard_admits(struct agent_shard *shard, const struct key *key);

/* A client is gone: its stores go on for nobody, the next client of this number begins anew. */
void agent_shard_client_gone(struct agent_shard *shard, uint32_t number);

/* An enclosure lacks the volume, or does not (any more), or nobody knows. True when that is news.
 */
bool agent_shard_missing_set(struct agent_shard *shard, uint32_t enclosure, bool lacks);

/* True when every enclosure was asked and none has the volume for this host. */
bool agent_shard_volume_is_missing(const struct agent_shard *shard);

/* Recomputes the checksum of a LIVE sealed slot; false: it was bad (CORRUPT), and is gone. */
bool agent_shard_verify(struct agent_shard *shard, uint32_t slot);

/* What values of a sealed volume are held against; for as long as shard and key stay. */
static inline struct sealed_place agent_shard_sealed_place(const struct agent_shard *shard,
                                                           const struct key *key)
{
    return (struct sealed_place){
        .volume = &shard->spec.uuid, .key = key, .encrypted = shard->spec.encrypted};
}

/* sealed_trailer_check() of a value in a slot of a sealed volume. */
icms_err agent_shard_check(struct agent_shard *shard, uint32_t slot, const struct key *key,
                           uint32_t value_bytes) ICMS_MUST_CHECK;

/* The volume has this UUID now. True: it is another one; its blocks go, which takes turns. */
bool agent_shard_identity_set(struct agent_shard *shard, const struct uuid *uuid);

/* The shard has blocks, and the pod has the volume. */
static inline bool agent_shard_is_there(const struct agent_shard *shard)
{
    return shard->identity % 2 == 0 && !uuid_is_nil(&shard->spec.uuid);
}

/* The reactor has another view, in which these enclosures (bits) are not any more: what was stored
 * there and not flushed is lost, which the client's next flush says. */
void agent_shard_view_changed(struct agent_shard *shard, uint64_t left);

/* ---- op.c ----------------------------------------------------------------------------------- */

void agent_reactor_ops_init(struct agent_reactor *reactor);

/* A free operation for a user, or NULL; NULL when its class has used its part. */
struct agent_op *agent_op_new(struct agent_shard *shard, struct agent_user_share *user,
                              enum agent_op_kind kind, const struct key *key,
                              enum io_class io_class);

/* It was made for another UUID of its volume: it asks nobody and publishes nothing any more. */
static inline bool agent_op_is_stale(const struct agent_op *op)
{
    return op->identity != op->shard->identity;
}

/* Gives back one that was not started. */
void agent_op_free(struct agent_op *op);

/* Starts it; ends with op->done and its waiters, never inside this call. */
void agent_op_start(struct agent_op *op);

/* A block may be bad where it is stored: loads it again, into the arena if it is good; if not, that
 * record is deleted, so that a put that does not replace can repair it. user: who found it, whose
 * share it is. counted: the error that was seen. space: bytes of the stored block; 0: nobody knows.
 * deadline_ns: of the load, which has that of loads if this is later. NULL: the key is being
 * written, or looked at like this already, or there is too much to do; the next one who finds it
 * bad tries again. */
struct agent_op *agent_op_suspect(struct agent_shard *shard, struct agent_user_share *user,
                                  const struct key *key, bool counted, uint64_t space,
                                  uint64_t deadline_ns);

/* The operation that writes the key now, or may delete it; NULL: none. */
struct agent_op *agent_op_writer(struct agent_shard *shard, const struct key *key);

/* The operation of this kind that is in flight for the key; NULL: none. */
struct agent_op *agent_op_find(struct agent_shard *shard, const struct key *key,
                               enum agent_op_kind kind);

/* A get waits for a load now: one of class PRESTAGE goes on as one of class LOAD. */
void agent_op_expedite(struct agent_op *op);

/* The key is written: loads in flight for it publish nothing, who waits for them looks again. */
void agent_op_drop_loads(struct agent_shard *shard, const struct key *key);

/* The one that was asked could not be reached, or was lost. */
bool agent_err_is_lost(icms_err err);

/* An answer of an enclosure in the words of a cache: what is not there is a miss with a reason. */
void agent_answer_read(icms_err *io_err, enum icms_miss *io_reason);

/* Whether some enclosure takes a store of this key now: OK, PEER_DOWN, NO_VOLUME. */
icms_err agent_op_target(struct agent_shard *shard, const struct key *key) ICMS_MUST_CHECK;

/* ---- match.c -------------------------------------------------------------------------------- */

icms_err agent_reactor_matches_init(struct agent_reactor *reactor) ICMS_MUST_CHECK;
void agent_reactor_matches_fini(struct agent_reactor *reactor);

/* A batch for a user, whose req, done, keys and count the caller sets before agent_match_start;
 * NULL: none is free.
 */
struct agent_match *agent_match_new(struct agent_shard *shard, struct agent_user_share *user);

/* Looks for all keys; ends with match->done, perhaps inside this call. */
void agent_match_start(struct agent_match *match, uint64_t deadline_ns);

/* What it takes to have the keys that are known to be there, in order, up to the first that is not:
 * estimate k of out for key k of the request (match->at). When the request is answered. */
void agent_match_estimate(const struct agent_match *match, uint8_t *out);

/* Its request is answered: what is in flight goes on for nobody. */
void agent_match_leave(struct agent_match *match);

/* ---- req.c ---------------------------------------------------------------------------------- */

/* Every state but FREE is noted with its time (`icms trace`). */
static inline void agent_req_state_set(struct agent_req *req, enum agent_req_state state)
{
    req->state = state;
    if (state != AGENT_REQ_FREE)
        trace_state(&req->trace, (uint8_t)state, reactor_now_ns(req->qpair->reactor));
}

/* Takes a checked request. */
void agent_req_begin(struct agent_req *req);

/* Ends it early, when it did not end already. */
void agent_req_cancel(struct agent_req *req, icms_err err);

/* ---- qpair.c -------------------------------------------------------------------------------- */

/* Memory and event of a queue pair; taken back by agent_qpair_fini, also after an error. */
icms_err agent_qpair_init(struct agent_qpair *qpair) ICMS_MUST_CHECK;
void agent_qpair_fini(struct agent_qpair *qpair);

/* Its rings are served from now on. Any thread. */
void agent_qpair_start(struct agent_qpair *qpair);

/* Cancels its requests and takes no more; ends with left, perhaps inside this call. On its reactor.
 */
void agent_qpair_leave(struct agent_qpair *qpair, void (*left)(struct agent_qpair *qpair));

/* The reactor's timer: heartbeats, full rings. */
void agent_qpair_heartbeat(struct agent_qpair *qpair);

/* True when completions wait for space in its ring. */
bool agent_qpair_is_full(const struct agent_qpair *qpair);

/* ---- client.c ------------------------------------------------------------------------------- */

icms_err agent_client_init(struct agent_client *client, struct agent *agent,
                           uint32_t number) ICMS_MUST_CHECK;

/* Frees what it holds; after the loops were freed. */
void agent_client_fini(struct agent_client *client);

#endif
