/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_int.h: what the files of libicms share.
 *
 * Who owns what. `struct icms` is a handle; it has one `struct client_link`, the attachment to an
 * agent (rings, arenas, events). A request belongs to one thread at a time (the caller of a
 * synchronous function, icms_poll, icms_request_wait): only that thread reads and writes its
 * private fields, moves its bytes and ends it. An operation (struct client_op) is one entry that
 * the agent will answer; whichever thread waits or polls reaps answers and hangs them on their
 * request.
 *
 * Lock order: handle lock alone. Fields say "lock" when the handle's lock guards them; bytes are
 * never copied and nothing sleeps while it is held.
 */
#ifndef CLIENT_INT_H
#define CLIENT_INT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/list.h"
#include "base/types.h"
#include "client/link.h"
#include "client/local.h"
#include "crypt/seal.h"
#include "crypt/secret.h"
#include "device/copier.h"
#include "client/sys.h"
#include "icms/icms.h"
#include "loop/loop.h"

/* Operations with the agent at a time. Entries without an answer (touches, cancels) are pushed only
 * while the ring has more room than this, so an operation always finds room in both rings. */
#define CLIENT_OPS ((uint32_t)SHM_RING_ENTRIES / 2)

/* Requests of the asynchronous calls at a time. */
#define CLIENT_REQUESTS 1024

/* After its deadline an operation is given this long before its block is answered without the
 * agent, which normally answers by the deadline itself. With the time to wake up, icms.h promises
 * 20 ms. */
#define CLIENT_GRACE_NS ((uint64_t)10 * 1000 * 1000)

/* A reactor that has not looked at the rings for so long, twice what it takes at most, has stopped.
 */
#define CLIENT_SILENT_NS ((uint64_t)100 * 1000 * 1000)

/* Entries of the lease table: the first ones for icms_lease_take, the others for gets. */
#define CLIENT_LEASES_USER ICMS_LEASES_MAX
#define CLIENT_LEASE_NONE  UINT32_MAX

/* Of the gets' entries, those that copies to devices hold at most: a device that is stuck leaves
 * the other loads theirs. */
#define CLIENT_LEASES_DEVICE ((SHM_LEASES - CLIENT_LEASES_USER) / 2)

/* Deadlines when neither the options nor the agent say one. */
#define CLIENT_LOAD_DEADLINE_MS  2000
#define CLIENT_STORE_DEADLINE_MS 10000

/* A deadline of hints; agents take none that is further away. */
#define CLIENT_PRESTAGE_MS_MAX 600000

/* icms_open gives an agent this long to answer; the thread that looks for another one gives it
 * less, since icms_close waits for that. Between two of its attempts are CLIENT_RETRY_NS, and with
 * each that fails twice as long, up to the most. */
#define CLIENT_ATTACH_MS    2000
#define CLIENT_REATTACH_MS  500
#define CLIENT_RETRY_NS     ((uint64_t)100 * 1000 * 1000)
#define CLIENT_RETRY_NS_MAX ((uint64_t)1000 * 1000 * 1000)

/* Touches lie in the ring until the agent looks; so many wake it: half of the room they may take.
 */
#define CLIENT_TOUCHES_WAKE ((SHM_RING_ENTRIES - CLIENT_OPS) / 2)

/* Loads into this much room at least go past the arena of an agent in this process. */
#ifndef CLIENT_DIRECT_BYTES /* the simulation has smaller values */
#define CLIENT_DIRECT_BYTES ((uint64_t)64 << 10)
#endif

/* How many blocks a request sends before others that wait for room have their turn. */
#define CLIENT_TURN_BLOCKS 16

/* Of a handle with keys: values that are encrypted or decrypted at a time; and memory for leases of
 * encrypted volumes, and for buffers, which the agent must not see. The largest value fits. */
#define CLIENT_SEALS         64
#define CLIENT_PRIVATE_BYTES LIMIT_VALUE_BYTES

/* Blocks of a put whose values come from a device ahead of the one that is sent. */
#define CLIENT_AHEAD 16

/* Gets remember how long so many bytes of copies took, and half of them. */
#define CLIENT_COPY_BYTES ((uint64_t)64 << 20)

#define CLIENT_MEMORY_MAGIC  0x6d656d6fu
#define CLIENT_ICMS_MAGIC    0x69636d73u
#define CLIENT_VOLUME_MAGIC  0x766f6c75u
#define CLIENT_REQUEST_MAGIC 0x72657175u

/* ---- the link to an agent: client/link.h ----------------------------------------------------- */

/* A free entry of the users' or the gets' part of the lease table, or CLIENT_LEASE_NONE. No lock.
 */
uint32_t client_lease_take(struct client_link *link, bool user);

/* Zeroes the entry, so the agent may reuse the slot, and frees it. No lock. */
void client_lease_give(struct client_link *link, uint32_t lease);

/* The same, of a lease that was taken, where nothing may fail. */
void client_lease_let_go(struct client_link *link, uint32_t lease);

/* The same for a lease of icms_lease_take; true when it was the last one of the link. What is no
 * such lease is left alone. Lock. */
bool client_lease_back(struct client_link *link, uint32_t lease);

/* attach.c: says hello on the socket and maps what comes back; PEER_DOWN after about timeout_ms.
 * *out_link is set from the beginning on, so that it is not lost when a check fails; NULL after
 * errors. */
icms_err client_attach_unix(const char *path, uint64_t staging_bytes, uint32_t timeout_ms,
                            struct err_why *why, struct client_link **out_link) ICMS_MUST_CHECK;

/* link.c: the handle has icms.attaching from now on, in the place of the link it had, if any, which
 * is down: calls answer icms.absent until then. Waits for those under way. No lock held. */
void client_link_replace(struct icms *icms);

/* ---- watch.c: the thread of a unix: handle that finds the next agent ---------------------------
 */

/* Whether an agent may come where this error was the answer to a hello; else one is there, or can
 * never be. CLOSED: the one that is there shuts down. */
bool client_agent_may_come(icms_err err);

/* Where the handle has no link, that is said first, with the reason. NO_MEMORY. */
icms_err client_watch_start(struct icms *icms, const struct err_why *why) ICMS_MUST_CHECK;

/* Ends the thread, if there is one, and waits for it: for CLIENT_REATTACH_MS and what requests take
 * that it ends. No lock held. */
void client_watch_stop(struct icms *icms);

/* Lock: the link is down. */
void client_watch_wake(struct icms *icms);

/* What an agent is asked for a text about. */
struct client_question {
    bool trace;                 /* icms_trace; else icms_status   */
    const struct icms_key *key; /* trace: of whose; NULL: slowest */
};

/* attach.c: asks an agent for a text over a connection of its own. `link` is new; the socket is its
 * own, and it is freed by the caller. */
icms_err client_text_unix(const char *path, struct client_link *link,
                          const struct client_question *question, char *out, size_t bytes,
                          size_t *out_bytes) ICMS_MUST_CHECK;

/* ---- keys.c: encrypted volumes --------------------------------------------------------------- */

struct client_key {
    uint32_t id;
    struct secret *secret; /* SEAL_KEY_BYTES */
};

/* The keys of one volume; the first one seals. Not changed once they are loaded. */
struct client_keys {
    uint32_t count;
    struct client_key keys[LIMIT_VOLUME_KEYS];
};

/* What a handle with keys has. */
struct client_crypt {
    struct seal *seals[CLIENT_SEALS];
    _Atomic uint64_t taken; /* bit i: seals[i] is in use                                     */
    uint8_t *base;          /* CLIENT_PRIVATE_BYTES                                          */
    struct staging staging; /* of them; lock                                                 */
};

/* Reads the list of keys and loads those of a volume; *out_keys stays NULL when it is not listed.
 * volume NULL: only reads the list. Without a lock, outside of client_guarded. */
icms_err client_keys_load(const char *path, const char *volume, struct err_why *why,
                          struct client_keys **out_keys) ICMS_MUST_CHECK;

/* Wipes them. */
void client_keys_free(struct client_keys **keys);

/* NULL: there is none of that id. */
const struct client_key *client_keys_find(const struct client_keys *keys, uint32_t id);

icms_err client_crypt_new(struct client_crypt **out_crypt) ICMS_MUST_CHECK;
void client_crypt_free(struct client_crypt **crypt);

/* Contexts for one value; given back by their number. Any thread. */
struct seal *client_seal_take(struct client_crypt *crypt, uint32_t *out_number);
void client_seal_give(struct client_crypt *crypt, uint32_t number);

/* Who may write staging memory and leased blocks: the agent's process is another one, or this. */
enum seal_memory client_seal_memory(const struct icms_request *request);

/* ---- operations and requests ---------------------------------------------------------------- */

enum op_state {
    OP_FREE,     /* in the free list                                                        */
    OP_FILL,     /* its request's thread makes it ready and sends it                         */
    OP_SENT,     /* with the agent; woken by client_reap, client_link_lost or the deadline   */
    OP_ANSWERED, /* answered; its request's thread takes it                                  */
    OP_LOST,     /* its block was answered without the agent; lease and staging wait for the
                    late answer (client_reap) or the end of the link                         */
};

/* What the caller's memory has of a value before all of it is there. */
struct client_begun {
    uint32_t pieces;                       /* encrypted: the first ones, never all; 0: none   */
    bool is_over;                          /* the answer has to tell what else there is       */
    uint8_t head[LIMIT_SEALED_HEAD_BYTES]; /* of the value that they are of                   */
    uint64_t bytes;                        /* plain: the first ones; 0: none                  */
    uint32_t crc;                          /* CRC32C of them, as they were copied, or lie in the
                                              caller's memory                                 */
    uint64_t arrival;                      /* direct: of which arrival; 0: they were copied   */
};

struct client_op {
    enum op_state state;            /* lock                                                   */
    uint32_t generation;            /* half of the tag, so a late answer hits nothing new      */
    struct icms_request *request;   /* NULL when lost                                          */
    size_t block;                   /* of the request; the first of them                       */
    uint32_t blocks;                /* how many                                                */
    bool many;                      /* EXISTS_MANY, PRESTAGE: their keys are in staging memory */
    bool all;                       /* all reactors are asked, each for its part               */
    uint32_t reactor;               /* who is asked; all: the first                            */
    uint32_t left;                  /* answers that have to come: one from each that was asked */
    struct client_account *account; /* FLUSH: of the volume; NULL                            */
    uint32_t lease;                 /* entry held for a get, or CLIENT_LEASE_NONE              */
    uint64_t staging_offset;        /* of a put's value, or of keys                            */
    uint64_t staging_bytes;         /* 0: none taken                                           */
    struct client_buffer *buffer;   /* put in place; NULL                                      */
    bool direct;                    /* the agent receives it in, or takes it from, the caller's
                                       memory                                                  */
    uint64_t room;                  /* direct: bytes of that memory                            */
    uint8_t trailer[LIMIT_TRAILER_BYTES]; /* direct: what is behind room                     */
    bool parts;                 /* it is copied, or opened, while the rest arrives         */
    struct shm_complete part;   /* parts: the last of them; lock                           */
    struct client_begun begun;  /* parts: what was made of them; its request's thread      */
    struct shm_complete answer; /* valid when answered: what reap_merge makes of all       */
    bool link_lost;             /* answered because the agent is gone                      */
    struct list link;           /* free list, or the request's sent or answered            */
    struct list part_link;      /* the request's parted; lock                              */
};

enum request_state {
    REQUEST_FREE, /* in the pool                                                            */
    REQUEST_RUN,  /* has blocks to send or operations with the agent; woken by an answer,
                     room, its deadline or a cancel                                          */
    REQUEST_OVER, /* every block has its status; waits for its owner                        */
};

/* What a request waits for room of; each has a queue, served in turns. */
enum client_room {
    ROOM_OPS,     /* exists, remove, flush, prestage: an operation    */
    ROOM_LEASES,  /* get: an operation and a lease entry              */
    ROOM_STAGING, /* put: an operation and staging memory             */
    ROOM_COPIES,  /* device memory: a copy with its pinned memory     */
    ROOM_COUNT,
};

struct icms_request {
    uint32_t magic;
    enum request_state state; /* set by its thread with the lock held                   */
    struct icms *icms;
    struct icms_volume *volume;
    const struct volume_view *view; /* of the volume, when it began                          */
    struct client_link *link_used;  /* the handle's link when it began                        */
    enum shm_op op;
    uint8_t flags;               /* enum shm_flag                                          */
    bool async;                  /* from the pool, reported by icms_poll                   */
    bool held;                   /* a thread runs it; lock                                 */
    bool waited;                 /* icms_request_wait owns it, icms_poll keeps off; lock   */
    bool started;                /* async: its caller has it; lock                         */
    bool returned;               /* async: icms_poll or icms_request_wait said it is over; lock */
    bool closed;                 /* the handle failed before it was over                   */
    bool canceled;               /* lock                                                   */
    bool lease_wanted;           /* icms_lease_take: the lease is kept in lease_index      */
    bool parts;                  /* some of its operations have parts; its thread's        */
    uint32_t lease_index;        /* the kept entry, or CLIENT_LEASE_NONE                   */
    const uint8_t *lease_data;   /* where the leased block lies                            */
    uint64_t private_bytes;      /* lease of an encrypted volume: memory that it takes; 0  */
    uint64_t private_offset;     /* and where: in icms.crypt                               */
    struct icms_block *blocks;   /* the caller's; NULL for match and prestage              */
    const struct icms_key *keys; /* match, prestage: the caller's                          */
    struct icms_estimate *estimates; /* match: the caller's, as client_estimate_* say; NULL */
    size_t count;                    /* blocks or keys                                         */
    size_t next;                     /* first block that was neither sent nor answered         */
    size_t done;                     /* blocks that have their status                          */
    size_t hole;                     /* the first block whose status is not OK                 */
    icms_err hole_status;            /* its status                                             */
    uint64_t need_ns;                /* prestage: by when blocks will be asked for; absolute   */
    uint32_t hint;                   /* prestage: shm_hint()                                   */
    size_t before;                   /* match: keys of it in requests before this one, all there */
    size_t behind;                   /* match: keys of it in requests after this one           */
    size_t not_ok;                   /* blocks whose status is not OK                          */
    size_t missed;                   /* of them, misses                                        */
    size_t hits;                     /* gets: blocks that were read from the mapped arena      */
    uint64_t hit_bytes;              /* their values                                           */
    size_t collisions;               /* gets: blocks that were not the one asked for           */
    size_t tag_errors;               /* gets: blocks that were whole, and did not open          */
    size_t no_keys;                  /* gets: blocks under a key that this handle lacks         */
    size_t versions;                 /* gets: blocks of a version that this build does not know */
    size_t peer_down;                /* blocks given up because the agent is gone              */
    size_t direct;        /* operations whose memory the agent or the network may touch */
    uint32_t turn;        /* blocks it may send before it queues again              */
    uint64_t deadline_ns; /* absolute                                               */
    uint64_t expiry_ns;   /* when icms_poll has to look at it; lock                 */
    uint64_t flush_puts;  /* flush: puts of the account when it began               */
    uint64_t room_epoch;  /* icms.room_epoch when it last found no room; lock       */
    void *tag;            /* the caller's                                           */
    void *stream;         /* of a device, the caller's; NULL                        */
    uint32_t pieces;      /* put, get: of a value's memory, block.data is an array; 0: it is one */
    struct device_mark *mark;     /* what was on it when the call was made; NULL            */
    struct device_copier *marked; /* whose mark it is                                      */
    struct list copies;           /* device_copy.link: blocks in device memory; its thread's */
    _Atomic uint32_t copy_count;  /* of them                                                */
    bool copying;                 /* put: the next block is on its way from the device      */
    bool copy_wanted;             /* it waits in ROOM_COPIES                                */
    bool copies_given;            /* some were given back: others may wait for them         */
    uint64_t looked_ns;           /* how long it waited for copies without sleeping         */
    struct icms_block own;        /* of flush and lease: no caller's block                  */
    struct list sent, answered;   /* its operations; lock                                   */
    struct list parted;           /* client_op.part_link: of those sent, with a new part; lock */
    struct list queue;            /* in icms.rooms; lock                                    */
    struct list all;              /* in icms.under_way, or icms.requests_free; lock         */
    struct list ready;            /* in icms.ready or icms.over; lock                       */
};

/* What a handle put into a volume and has not flushed: lost, perhaps, when its agent dies, and the
 * one that takes its place knows nothing of it. */
struct client_account {
    char name[ICMS_NAME_BYTES]; /* of the volume; "": the entry is free; lock */
    _Atomic uint64_t puts;      /* acknowledged                               */
    _Atomic uint64_t flushed;   /* of them, before a flush that succeeded     */
    _Atomic bool lost;          /* the next flush says so, once               */
};

/* What a volume is known by. Immutable: a volume that is reset, or whose agent is replaced, gets
 * another one; requests keep the one that they began with. */
struct volume_view {
    struct icms_volume_info info; /* gone: as it was before                                    */
    icms_err gone;                /* OK; NO_VOLUME: the agent, or the pod, does not have it; else
                                     why it cannot be used                                      */
    struct shm_arena arena;       /* the first shard                                            */
    struct volume_view *before;   /* the one before: all live as long as the volume             */
    uint32_t shard_count;         /* reactors of the agent; 0: it does not have the volume      */
    struct shm_arena shards[];    /* [shard_count] views of the link                            */
};

/* Views of one volume at most that are of one link; one more reset, and it is gone until the agent
 * is replaced. */
#define CLIENT_VIEWS_MAX 4096

struct icms_volume {
    uint32_t magic;
    struct icms *icms;
    struct client_account *account; /* of the handle                                             */
    struct client_keys *keys;       /* it is encrypted, whatever an agent says; NULL: it is not  */
    _Atomic(struct volume_view *) view; /* the newest; written with the lock                     */
    uint32_t view_count;                /* that were made of this link; lock                     */
    _Atomic uint64_t *checked; /* [reactor_count * arena.slot_count]: version whose value passed its
                                  check here, 0: none; NULL: no memory for it, all are checked.
                                  Changes only while no call is under way                        */
    bool staged;               /* it was said that its values are not read past the host; lock   */
    bool unsaid;      /* why it cannot be used at the agent that came is to be said; lock */
    struct list link; /* in icms.volumes; lock                                          */
};

static inline const struct volume_view *client_view(const struct icms_volume *volume)
{
    return atomic_load_explicit(&volume->view, memory_order_acquire);
}

enum icms_state {
    ICMS_STATE_OPEN,    /* takes calls                                                       */
    ICMS_STATE_RESTART, /* dir: the agent is replaced; calls wait; woken by who replaces it   */
    ICMS_STATE_CLOSING, /* icms_close waits for requests; calls answer CLOSED                 */
};

/* A line for people: what an err_why says, and about what. */
#define CLIENT_LINE_BYTES (sizeof(((struct err_why *)0)->text) + 256)

/* Memory that the caller registered. */
struct icms_memory {
    uint32_t magic;
    enum icms_memory_kind kind;
    struct icms *icms;
    uint64_t address, bytes;
    uint64_t id;                  /* of its allocation; 0: several, or the driver has none  */
    struct client_device *device; /* NULL: host memory                                      */
    _Atomic uint32_t users;       /* copies to and from it that have not ended, and marks   */
};

/* A context of a device in which memory is registered. */
struct client_device {
    enum icms_memory_kind kind;
    const struct device_driver *driver;
    struct device_place place;            /* as the driver named it                        */
    uint32_t memories;                    /* 0: the entry is free; lock                    */
    bool changing;                        /* a thread makes or frees the copier; lock      */
    bool pinned;                          /* arenas were, some time; lock                  */
    bool unpinned;                        /* an arena could not be; lock                   */
    char unsaid[CLIENT_LINE_BYTES];       /* that is still to be said; "": nothing; lock   */
    struct device_copier *_Atomic copier; /* NULL while it is made                         */
};

struct icms {
    uint32_t magic;
    uint32_t fork_generation; /* of the process that opened it                          */
    enum icms_state state;    /* lock                                                   */
    bool guarded;             /* unix:; a failed check ends the handle: guard.c         */
    _Atomic uint32_t inside;  /* guarded: threads in calls, and whether it failed       */
    pthread_mutex_t lock;
    pthread_cond_t changed;   /* something a waiting thread may want; with the lock     */
    struct client_link *link; /* NULL until the agent of a dir: starts, or an optional one came */
    struct client_link
        *attaching;             /* by the thread of watch.c, or while it replaces link; else NULL */
    icms_err absent;            /* what calls answer while there is no link, or it is down; lock */
    pthread_t watcher;          /* the thread of watch.c, where watch_fd >= 0              */
    int watch_fd;               /* wakes it; who did not make it reads it with the lock   */
    _Atomic bool watch_over;    /* it ends                                                */
    struct client_local *local; /* pod:, dir:; NULL for unix:                             */
    char socket[108];           /* unix:                                                  */
    struct icms_options options;
    char keys_path[LIMIT_PATH_BYTES]; /* the list of keys; "": none                          */
    struct client_crypt *crypt;       /* with keys; NULL                                     */
    uint32_t calls;                   /* calls and requests that use the link; lock             */
    uint32_t touches;                 /* pushed so far; lock                                    */
    bool reaping;                     /* a thread sleeps in sys_wait for the others; lock        */
    bool event_asked;                 /* icms_event_fd was called: the timer counts; lock       */
    bool notify_raised;               /* notify_fd is readable; lock                            */
    uint32_t polling;                 /* threads inside icms_poll: they say what is left; lock  */
    uint64_t expiry_ns;               /* no request of under_way expires before; lock           */
    uint64_t room_epoch;              /* how often room was given back; lock                    */
    int epoll_fd, notify_fd, timer_fd;
    int wake_fd;                   /* wakes the thread that sleeps in sys_wait          */
    struct client_op *ops;         /* [CLIENT_OPS]                                           */
    struct icms_request *requests; /* [CLIENT_REQUESTS]                                      */
    struct list ops_free;          /* lock, as all lists                                     */
    struct list requests_free;
    struct list under_way;         /* asynchronous requests that are not over                */
    struct list ready;             /* asynchronous requests with something to do             */
    struct list over;              /* asynchronous requests to be returned by icms_poll      */
    struct list rooms[ROOM_COUNT]; /* requests that wait for room, in order                  */
    struct list volumes;
    struct client_account accounts[LIMIT_AGENT_VOLUMES]; /* one a volume that was opened */
    struct list retired; /* links of agents that are gone, with leases or buffers  */
    struct client_device devices[ICMS_DEVICES_MAX]; /* lock                        */
    struct icms_memory *
        *memories; /* [ICMS_MEMORIES_MAX] by address; NULL: there never was one; lock */
    _Atomic uint32_t memory_count;        /* changes with the lock                        */
    _Atomic uint64_t copy_bytes, copy_ns; /* what gets copied lately, and how long that took */
};

/* ---- fork.c: handles belong to the process that opened them --------------------------------- */

extern _Atomic uint32_t client_fork_generation;

/* For a handle that has no descriptor yet. */
void client_fork_watch(struct icms *icms);

static inline bool client_forked(const struct icms *icms)
{
    return icms->fork_generation !=
           atomic_load_explicit(&client_fork_generation, memory_order_relaxed);
}

/* ---- guard.c: a failed check ends a unix: handle -------------------------------------------- */

/* Runs inside(arg), which is what a call of this handle does. False when a check failed in it, or
 * in the handle before; nothing of the call goes on then. */
bool client_guarded(struct icms *icms, void (*inside)(void *arg), void *arg) ICMS_MUST_CHECK;

/* The handle's lock, and waiting for icms.changed with it. Inside client_guarded they do not return
 * when the handle has failed; client_unlock cannot fail. */
void client_lock(struct icms *icms);
bool client_trylock(struct icms *icms);
void client_unlock(struct icms *icms);
void client_wait(struct icms *icms);
void client_wait_until(struct icms *icms, uint64_t until_ns);

/* Waits until no thread is in a guarded call. False: until_ns passed. */
bool client_idle_wait(const struct icms *icms, uint64_t until_ns);

/* What icms_poll, icms_request_wait, synchronous calls, icms_request_over, icms_request_end (after
 * the wait) and icms_lease_give do in a handle that failed. Outside of client_guarded. A request
 * with copies that a driver has is over when they have ended, or at its deadline. */
struct icms_request *client_failed_poll(struct icms *icms);
bool client_failed_wait(struct icms_request *request, uint64_t until_ns);
void client_failed_sync(struct icms_request *request);
bool client_failed_over(struct icms_request *request);
void client_failed_end(struct icms_request *request);
void client_failed_lease_give(struct client_link *link, uint32_t lease);

/* ---- request.c ------------------------------------------------------------------------------ */

/* Begins a call: CLOSED, FORKED, PEER_DOWN. On OK client_call_end must follow. */
icms_err client_call_begin(struct icms *icms) ICMS_MUST_CHECK;
void client_call_end(struct icms *icms);

/* In a call that asks the agent for nothing: notices its end, as waiting for answers would, so that
 * a later call looks for another agent. */
void client_call_look(struct icms *icms);
void client_call_leave(struct icms *icms); /* the same with the lock held */

/* Runs a request as far as it goes without waiting. Its thread; no lock held. */
void client_request_run(struct icms_request *request);

/* It does not wait for room any more, if it did; the queue's next may look. Lock. */
void client_queue_leave(struct icms_request *request);

/* Runs it until it is over or until_ns passed. Its thread; no lock held. True when it is over. */
bool client_request_finish(struct icms_request *request, uint64_t until_ns);

/* What the synchronous form returns. */
icms_err client_request_result(const struct icms_request *request);

/* Drains the client's event, takes answers, notices the agent's end. Never waits. Lock. */
void client_reap(struct icms *icms);

/* Wakes threads that wait in client_request_finish. Lock. */
void client_wake(struct icms *icms);

/* The same, and requests that wait for copies, since some are over. Lock. */
void client_copies_landed(struct icms *icms);

/* From now on deadlines make the event readable, too. Lock. */
void client_event_ask(struct icms *icms);

/* The asynchronous life: begin runs it once and hands it to icms_poll; wait takes it from there and
 * is true when it is over, and then icms_poll does not return it. */
void client_async_begin(struct icms_request *request);
bool client_async_wait(struct icms_request *request, uint64_t until_ns);
void client_async_cancel(struct icms_request *request);
struct icms_request *client_async_poll(struct icms *icms);

/* Waits until no request and no call uses the link; the handle's state keeps new ones out, or that
 * no link is up. */
void client_quiesce(struct icms *icms);

/* calls.c: loads one block and keeps its lease in out_request. When out_request->magic was set the
 * call has begun and client_call_end must follow. Returns the block's status. */
icms_err client_lease_load(struct icms_volume *volume, struct icms_block *block,
                           const struct icms_request_options *options,
                           struct icms_request *out_request) ICMS_MUST_CHECK;

/* ---- send.c: one block of a request on its way out ------------------------------------------ */

enum client_step {
    STEP_NEXT, /* the block was answered or sent                 */
    STEP_WAIT, /* no room; the request stands in a queue         */
};

enum client_step client_send_next(struct icms_request *request);

/* Pushes an entry that has no answer, if there is plenty of room. Lock. */
bool client_push_hint(struct icms *icms, uint32_t reactor, const struct shm_submit *entry);

/* The reactor that a key of the request's volume belongs to. */
uint32_t client_reactor(const struct icms_request *request, const struct icms_key *key);

/* Publishes what was pushed and wakes the agent if it sleeps. Lock. */
void client_publish(struct icms *icms);

/* ---- memory.c: what is registered; copy.c: values to and from devices --------------------------
 */

/* The registered range that has this address; NULL: none. Lock. */
struct icms_memory *client_memory_find(const struct icms *icms, const void *address);

/* From now on nothing is copied. True: no driver has a copy. Lock. */
bool client_devices_halt(struct icms *icms);

/* Frees all that was registered; the last thing of a handle but its links and its own memory. */
void client_memories_free(struct icms *icms);

/* A JSON array: how an own drive is read for each device in use. Its length; 0: there is none. */
size_t client_devices_text(struct icms *icms, char *out, size_t bytes);

/* Pins the arenas of open volumes for every device in use, so that blocks are copied from where
 * they lie; where it cannot, they are copied through the copier's memory. Takes as long as the
 * drivers do. No lock. */
void client_arenas_pin(struct icms *icms);

/* Says what the calls before it found out for `log`. No lock, outside of client_guarded. */
void client_arenas_say(struct icms *icms);

/* The same for a link that took the place of another one, as far as devices are in use: behind the
 * caller, who does not wait. Lock. */
void client_arenas_pin_again(struct icms *icms);

/* Lets go of what is pinned of a link; from now on nothing is copied from there. True: no driver
 * has any of it, and it may be unmapped. False: client_link_rele is called when it is so. Lock. */
bool client_arenas_unpin(struct icms *icms, const struct client_link *link);

/* Remembers what is on the stream of the request's options. OK, INVALID, DEVICE, LIMIT. */
icms_err client_copy_mark(struct icms_request *request) ICMS_MUST_CHECK;

/* The copy of a block that is in device memory; NULL: it is in host memory, or none was taken. */
struct device_copy *client_copy_find(const struct icms_request *request, size_t index);

/* ---- pieces.c: values in several pieces of memory -------------------------------------------- */

/* The pieces of a block's memory; NULL: it is one. */
static inline const struct icms_piece *client_pieces(const struct icms_request *request,
                                                     size_t index)
{
    return request->pieces == 0 ? NULL : request->blocks[index].data;
}

/* Where a block's memory begins. */
static inline void *client_block_begin(const struct icms_request *request, size_t index)
{
    const struct icms_piece *pieces = client_pieces(request, index);

    return pieces == NULL ? request->blocks[index].data : pieces[0].data;
}

/* INVALID: a block whose pieces make no sense, or are not its bytes. */
icms_err client_pieces_check(const struct icms_request *request, size_t index) ICMS_MUST_CHECK;

/* Of a block that begins in host memory: NOT_REGISTERED, UNSUPPORTED, INVALID (it goes on in device
 * memory). Lock. */
icms_err client_pieces_host(const struct icms_request *request, size_t index) ICMS_MUST_CHECK;

/* The pieces of a block in device memory, that of `memory`; how many. INVALID: not all are. Lock.
 */
icms_err client_pieces_device(const struct icms_request *request, size_t index,
                              const struct icms_memory *memory,
                              struct device_piece *out_pieces) ICMS_MUST_CHECK;

/* A value between pieces of host memory and one place; returns its CRC32C. Scatter: bytes [at, end)
 * of the value at `from`, which may change meanwhile; crc is that of the bytes before them. */
uint32_t client_pieces_gather(const struct icms_request *request, size_t index, uint8_t *to);
uint32_t client_pieces_scatter(const struct icms_request *request, size_t index, uint32_t crc,
                               const uint8_t *from, uint64_t at, uint64_t end);

/* Whether the CPU moves a block's value in pieces: they are in host memory. */
static inline bool client_is_scattered(const struct icms_request *request, size_t index)
{
    return request->pieces != 0 && client_copy_find(request, index) == NULL;
}

/* Where a block's value is read or written by the CPU: the caller's memory, or the copy's. Not of
 * one that is scattered. */
static inline uint8_t *client_block_memory(const struct icms_request *request, size_t index)
{
    struct device_copy *copy =
        list_empty(&request->copies) ? NULL : client_copy_find(request, index);

    return copy != NULL ? copy->memory : request->blocks[index].data;
}

/* Bytes that may be written there by a get, of those that the caller gave. */
static inline uint64_t client_block_room(const struct icms_request *request, size_t index)
{
    const struct device_copy *copy =
        list_empty(&request->copies) ? NULL : client_copy_find(request, index);
    uint64_t room = request->blocks[index].bytes;

    return copy != NULL && copy->bytes < room ? copy->bytes : room;
}

/* Takes a copy for a block in registered memory. OK with *out_copy NULL: there is no room. Lock. */
icms_err client_copy_take(struct icms_request *request, size_t index, struct icms_memory *memory,
                          struct device_copy **out_copy) ICMS_MUST_CHECK;

/* The copy will read the value where it lies in the arena; *lease, which holds it there, is the
 * copy's then. False: it cannot, and nothing has changed. Its thread. */
bool client_copy_from_arena(const struct icms_request *request, struct device_copy *copy,
                            const uint8_t *value, uint32_t value_bytes, uint32_t *lease);

/* Begins to copy a value of so many bytes. Its thread. */
void client_copy_start(struct icms_request *request, struct device_copy *copy, uint64_t bytes);

/* A block is to have this status. True: it has to wait for its copy to the device. Its thread. */
bool client_copy_hold(struct icms_request *request, size_t index, icms_err status);

/* Whether copies that the request waits for are over. Its thread. */
bool client_copies_are_over(const struct icms_request *request);

/* Whether copies of a get are with a device. Its thread. */
bool client_copies_are_started(const struct icms_request *request);

/* Waits for copies a moment without sleeping, until then at most: one that is over soon costs no
 * wake-up of this thread. Its thread; no lock. */
void client_copies_look(struct icms_request *request, uint64_t until_ns);

/* Ends the blocks of a get whose copies are over; gives those up that are not. Its thread. */
void client_copies_take(struct icms_request *request);
void client_copies_lose(struct icms_request *request, icms_err why);

/* The request is over: its mark goes back, and room that it gave back is told. Its thread; lock. */
void client_copies_end(struct icms_request *request);

/* ---- take.c: one answer on its way in ------------------------------------------------------- */

/* Beside the source of an estimate, until it is settled: its entry begins here. */
#define ESTIMATE_BEGINS 0x100

/* Estimates of a match: unknown, before it; for the caller, after it, from what the agent says of
 * each entry. */
void client_estimates_init(struct icms_estimate *estimates, size_t count);
void client_estimates_settle(const struct icms *icms, struct icms_estimate *estimates,
                             size_t count);

/* A volume's values as callers know them: the largest one, and what one takes at the agent, the
 * trailer not counted. */
static inline uint64_t client_value_bytes_max(const struct icms_volume *volume)
{
    uint64_t carried = client_view(volume)->arena.value_bytes_max;

    return volume->keys == NULL ? carried : sealed_plain_bytes(carried);
}

static inline uint64_t client_carried_bytes(const struct icms_volume *volume, uint64_t bytes)
{
    return volume->keys == NULL ? bytes : sealed_bytes(bytes);
}

/* The status of a block, counted in its request. Its thread. */
void client_block_done(struct icms_request *request, size_t index, icms_err status,
                       enum icms_miss reason);

/* A block's value in an arena. */
struct client_place {
    uint32_t slot;
    uint32_t value_bytes; /* without the trailer                                        */
    uint32_t lease; /* in the table: holds the slot; CLIENT_LEASE_NONE: a copy has taken it over */
    const struct client_begun *begun; /* what was made of it before; NULL: nothing       */
    uint64_t kept; /* out: bytes of that, where it was of this value: not made now  */
};

/* The value in the arena's slot, under a lease: verified and copied to the block. Its thread. */
void client_block_load(struct icms_request *request, size_t index, struct client_place *place,
                       enum icms_source source);

/* Adds what a request that is over did to the client's counters. Its thread. */
void client_count(struct icms_request *request);

/* Takes the answer of an operation that was taken off the answered list. Its thread. */
void client_op_take(struct icms_request *request, struct client_op *op);

/* Opens what has arrived of an encrypted value, as far as it passes; of a plain one, copies and
 * sums it. Its thread. */
void client_op_take_part(struct icms_request *request, struct client_op *op,
                         const struct shm_complete *part);

/* The statuses of an operation's blocks, when it is given up. */
void client_op_give_up(struct icms_request *request, const struct client_op *op, icms_err why);

/* The status of a block whose operation was given up or never sent. */
void client_block_give_up(struct icms_request *request, size_t index, icms_err why);

static inline struct key client_key(const struct icms_key *from)
{
    struct key key;

    memcpy(key.bytes, from->bytes, sizeof(key.bytes));
    key.length = from->length;
    return key;
}

static inline const struct icms_key *client_request_key(const struct icms_request *request,
                                                        size_t index)
{
    return request->keys != NULL ? &request->keys[index] : &request->blocks[index].key;
}

/* ---- open.c --------------------------------------------------------------------------------- */

/* Joins the link's events to the handle's, and lets the agent signal. Lock, or not open yet. */
icms_err client_link_watch(struct icms *icms) ICMS_MUST_CHECK;

/* Makes every operation free without giving anything back: the link goes with them. */
void client_ops_reset(struct icms *icms);

/* The arena of a volume in a link; NULL: there is none. */
struct client_map *client_volume_map(struct client_link *link, const char *name);

/* True while a lease or a buffer of this link is out. Lock. */
bool client_link_used(const struct client_link *link);

/* Frees a retired link that is not used any more, by nobody and no device. Lock. */
void client_link_rele(struct client_link *link);

/* The agent died: what was put and not flushed may be lost. Lock. */
void client_accounts_lose(struct icms *icms);

/* Volumes move to the link that replaced theirs. Lock. */
void client_volumes_refresh(struct icms *icms);

/* A volume that cannot be used at the agent that came, and of which that was not said: the
 * sentence. False: there is none. Lock. */
bool client_volumes_unsaid(struct icms *icms, struct err_why *why);

/* Takes the identity that the volume has now, if it has another one than is known here. NO_VOLUME:
 * the agent or the pod does not have the volume now; NO_KEY, CONFIG, PROTOCOL: it cannot be used.
 * In a call. */
icms_err client_volume_look(struct icms_volume *volume) ICMS_MUST_CHECK;

/* volume.c: frees a volume that is in no list. */
void client_volume_free(struct icms_volume *volume);

/* Gives a line to the program, or to standard error. No lock held, outside of client_guarded. */
void client_log(const struct icms *icms, const char *line);

/* The same where the handle, which is not looked into, may be freed: to these of its options. */
void client_log_to(const struct icms *icms, void (*log)(void *arg, const char *line), void *arg,
                   const char *line);

/* Copies a sentence into the caller's memory. */
void client_why(const struct err_why *from, char *why, size_t why_bytes);

#endif
