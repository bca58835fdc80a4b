/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop/loop.h: the reactor. One thread, one loop; time, entropy, disk, network, timers, messages.
 *
 * Two back ends behind this header: io_uring (loop_env_uring) and the simulation (loop/sim.h). What
 * runs on a data path reaches time, entropy, disk, network and shared memory only through here.
 *
 * Threads. A loop belongs to the thread that runs it. Before loop_start() and after loop_join() the
 * caller's thread owns it. Functions that may be called from any thread say so; every other one
 * must be called on the loop's own thread. Callbacks run on the loop's thread, never from inside
 * the call that started the operation.
 *
 * The contract of every operation: *done is called exactly once, later, on the same loop, even on
 * failure.* Operations are structs that their owner embeds; the owner keeps the struct and every
 * byte it names unchanged until done runs. A loop that was joined calls nothing any more.
 *
 * Life: loop_new -> (set up modules) -> loop_start -> ... -> loop_stop (any thread) -> loop_join ->
 * loop_free, which waits until neither the kernel nor a job touches any memory any more. Modules
 * free their memory after loop_free of every loop they used.
 */
#ifndef LOOP_LOOP_H
#define LOOP_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/err.h"
#include "base/list.h"
#include "base/types.h"

/* Where loops, files and sockets come from: the machine, or one simulated node. */
struct loop_env;
struct loop;
struct loop_file;
struct loop_reads;
struct loop_sock;
struct loop_event;
struct loop_region;

/* ---- the environment and the loop ---------------------------------------------------------- */

/* The real machine. Never fails; io_uring is tried by loop_new. */
struct loop_env *loop_env_uring(void);

/* The real machine but for its clock: that begins at 0 and stands until loop_replay_to moves it on.
 * For who replays recorded time. NULL: out of memory. Freed after all that came from it. */
struct loop_env *loop_env_replay_new(void) ICMS_MUST_CHECK;
void loop_env_replay_free(struct loop_env **env);

/* Moves the clock of such an environment on; a time that has passed changes nothing. Its one loop
 * sees it at once, due timers fire in its next iteration. On that loop's thread. */
void loop_replay_to(struct loop *loop, uint64_t now_ns);

struct loop_opts {
    const char *name;     /* thread name, 15 bytes at most        */
    uint32_t entries_max; /* handed to the kernel at once; more wait their turn; power of two */
    int cpu;              /* pin to this CPU; -1: anywhere        */
    bool busy_poll;       /* spin instead of sleeping: for dedicated cores only */
    uint32_t poll_us;     /* after work, spin for so long before sleeping       */
};

/* Defaults: "icms-loop", 1024 entries, any CPU, no polling. */
void loop_opts_init(struct loop_opts *opts);

/* Makes a loop. UNSUPPORTED (with the remedy in why) where io_uring is forbidden or the kernel too
 * old; LIMIT where too few locked pages are allowed for the ring itself. */
icms_err loop_new(struct loop_env *env, const struct loop_opts *opts, struct err_why *why,
                  struct loop **out_loop) ICMS_MUST_CHECK;

/* Runs the loop on a thread of its own (simulation: lets it take part). */
icms_err loop_start(struct loop *loop, struct err_why *why) ICMS_MUST_CHECK;

/* Asks the loop to end after the current callback. Any thread. Idempotent. */
void loop_stop(struct loop *loop);

/* Waits until the loop's thread ended. Not from that thread. */
void loop_join(struct loop *loop);

/* Cancels what is in flight, waits until the kernel is done with every buffer, calls no callback,
 * frees the loop, sets *loop to NULL. *loop may be NULL. */
void loop_free(struct loop **loop);

struct loop_env *loop_env(const struct loop *loop);

/* True on the loop's own thread (or before it was started). */
bool loop_is_mine(const struct loop *loop);

/* ---- time and entropy ----------------------------------------------------------------------- */

/* Monotonic nanoseconds, read once an iteration: cheap. */
uint64_t loop_now_ns(const struct loop *loop);

/* Monotonic nanoseconds of the environment, read now. Any thread. */
uint64_t loop_env_now_ns(struct loop_env *env);

/* Unpredictable bytes (simulation: seeded). */
void loop_entropy(struct loop *loop, void *out, size_t bytes);

/* A pseudo-random number for jitter and choice, not for secrets. */
uint64_t loop_random(struct loop *loop);

/* ---- timers --------------------------------------------------------------------------------- */

struct loop_timer {
    void (*fire)(struct loop_timer *timer); /* set by loop_timer_init                  */
    uint64_t at_ns;                         /* when, while armed                       */
    /* private: its place in the loop's pairing heap */
    uint64_t order;           /* which arming of the loop; decides between equals */
    struct loop_timer *child; /* first of those that come after it                */
    struct loop_timer *next;  /* its next sister                                  */
    struct loop_timer *prev;  /* the sister before it, or its parent              */
    bool armed;               /* in the heap                                      */
};

void loop_timer_init(struct loop_timer *timer, void (*fire)(struct loop_timer *timer));

/* Arms or re-arms; fires once, at or after at_ns (up to a millisecond later), in the order of
 * at_ns, then of arming. A time that has passed counts as now; it fires in a later iteration. */
void loop_timer_start(struct loop *loop, struct loop_timer *timer, uint64_t at_ns);

/* Disarms; harmless when not armed. After it fire does not run. */
void loop_timer_stop(struct loop *loop, struct loop_timer *timer);

static inline bool loop_timer_armed(const struct loop_timer *timer)
{
    return timer->armed;
}

/* ---- messages ------------------------------------------------------------------------------- */

/* The only bridge between loops. Messages of one sender to one loop arrive in order. */
struct loop_msg {
    void (*run)(struct loop_msg *msg); /* on the receiving loop        */
    struct loop_msg *next;             /* private, while on its way    */
};

/* Any thread, also one without a loop. The owner keeps msg until run; msg may be sent again from
 * inside run. Sending to the own loop runs it in a later iteration. */
void loop_send(struct loop *to, struct loop_msg *msg, void (*run)(struct loop_msg *msg));

/* ---- work off the loop ---------------------------------------------------------------------- */

/* Computation that would hold the loop up: a key exchange, for example. Zero before its first use.
 */
struct loop_job {
    void (*work)(struct loop_job *job); /* on the worker; set by loop_job_start  */
    void (*done)(struct loop_job *job); /* on the loop                           */
    struct loop *loop;                  /* where done runs                       */
    bool busy;                          /* started, done has not run             */
    struct list link;                   /* private: those that wait              */
    struct loop_msg msg;                /* private: the end of the work          */
};

/* Runs work on the loop's worker: a thread of low priority that the first job makes. The jobs of a
 * loop run one after another, in order. work may use nothing but memory that its owner keeps for
 * it, must call nothing of a loop, and must not wait for anything. (Simulation: work runs at a
 * seeded later time.) Returns ICMS_OK: done is called exactly once, later, on the same loop, even
 * on failure; returns anything else: neither is ever called. LIMIT: LIMIT_LOOP_JOBS wait already,
 * or no thread could be made. There is no early end: an owner that is to go waits for done. */
icms_err loop_job_start(struct loop *loop, struct loop_job *job, void (*work)(struct loop_job *job),
                        void (*done)(struct loop_job *job)) ICMS_MUST_CHECK;

static inline bool loop_job_busy(const struct loop_job *job)
{
    return job->busy;
}

/* ---- operations ----------------------------------------------------------------------------- */

/* Zero before its first use. */
struct loop_op {
    void (*done)(struct loop_op *op); /* set by the starting call                      */
    struct loop *loop;                /* where it runs                                 */
    icms_err err;                     /* valid in done                                 */
    uint32_t bytes;                   /* valid in done: bytes moved; may be short      */
    struct loop_sock *sock;           /* valid in done of accept: the new socket       */
    /* private to the loop */
    bool busy;          /* started, done has not run                               */
    bool cancel;        /* an early end was asked for                              */
    uint8_t kind;       /* enum loop_kind                                          */
    uint8_t state;      /* enum loop_op_state                                      */
    uint8_t retries;    /* times the kernel said "again"                           */
    uint8_t stream;     /* write stream of the device; 0: none                     */
    bool whole;         /* goes on until length is reached                         */
    uint32_t length;    /* bytes wanted, or vectors                                */
    void *target;       /* the file, socket or event                               */
    void *memory;       /* bytes, vectors or address                               */
    uint64_t offset;    /* in the file                                             */
    struct list link;   /* in one list of the back end                             */
    uint64_t words[12]; /* of the back end: message header, address                */
};

static inline bool loop_op_busy(const struct loop_op *op)
{
    return op->busy;
}

/* Asks for an early end. done still comes once, soon: with CANCELED, or with what was reached. A
 * canceled receive writes nothing any more once done has run. What a device was asked for cannot be
 * taken back: an operation on a file ends when the device is done. */
void loop_op_cancel(struct loop_op *op);

/* ---- memory --------------------------------------------------------------------------------- */

/* Page-aligned memory that can be shared with other processes: a sealed memfd (simulation: heap).
 * Zeroed. Touched at once when prefault is set, in large pages as far as the machine has some. */
icms_err loop_region_new(struct loop_env *env, const char *name, uint64_t bytes, bool prefault,
                         struct err_why *why, struct loop_region **out_region) ICMS_MUST_CHECK;
void *loop_region_base(struct loop_region *region);
uint64_t loop_region_bytes(const struct loop_region *region);

/* The descriptor to pass to another process, -1 in the simulation. Owned by the region. */
int loop_region_fd(const struct loop_region *region);

/* Takes all its memory now, in pages of the usual size: other processes map a region wherever there
 * is room, and through a mapping that is not aligned to large pages these are slower. NO_MEMORY. */
icms_err loop_region_touch(struct loop_region *region) ICMS_MUST_CHECK;

/* From now on others can map it for reading only; who mapped it before goes on writing. */
icms_err loop_region_seal(struct loop_region *region, struct err_why *why) ICMS_MUST_CHECK;

/* Also unregisters. No operation may name its memory any more. *region may be NULL. */
void loop_region_free(struct loop_region **region);

/* Pins the region for a loop's disk reads and writes, in large pages as far as the machine has
 * some, and touches it. A refusal (locked pages) is not fatal: the region works unpinned; the error
 * says so with its remedy. Call before loop_start. */
icms_err loop_region_register(struct loop *loop, struct loop_region *region, struct err_why *why);

/* ---- files ---------------------------------------------------------------------------------- */

struct loop_file_opts {
    const char *path; /* file or block device                               */
    bool create;      /* make the file when it is missing                   */
    bool write;       /* false: read only                                   */
    bool direct;      /* O_DIRECT; all I/O aligned to LIMIT_DISK_ALIGN      */
    bool exclusive;   /* lock it; LOCKED with the holder's pid when held    */
    bool sparse;      /* create: only set the length, take space as it is written */
    uint64_t bytes;   /* create: preallocate this much; 0: leave            */
};

/* Blocking; at start. The error sentence names the path and the remedy. UNSUPPORTED: also a zoned
 * block device, of which a partition is no better. PERMISSION: also one that is to be written and
 * locked, and that every user of the machine may write. */
icms_err loop_file_open(struct loop_env *env, const struct loop_file_opts *opts,
                        struct err_why *why, struct loop_file **out_file) ICMS_MUST_CHECK;
uint64_t loop_file_bytes(const struct loop_file *file);

/* Its descriptor, which stays the file's; -1 in the simulation. */
int loop_file_fd(struct loop_file *file);

/* An operation on it is in flight. */
bool loop_file_busy(const struct loop_file *file);

/* Write streams of the device, at most LIMIT_WRITE_STREAMS: data written to different ones lies in
 * different erase units of the flash, so what is overwritten together is erased together. 0: it has
 * none, or the kernel does not say (Linux 6.16 is the first that does, of whole block devices). */
uint32_t loop_file_streams(const struct loop_file *file);

/* Blocking; at start and in tools, never on a running loop. Short reads are errors. */
icms_err loop_file_read_now(struct loop_file *file, uint64_t offset, void *memory,
                            size_t bytes) ICMS_MUST_CHECK;
icms_err loop_file_write_now(struct loop_file *file, uint64_t offset, const void *memory,
                             size_t bytes) ICMS_MUST_CHECK;
icms_err loop_file_flush_now(struct loop_file *file) ICMS_MUST_CHECK;

/* One of many blocking reads. Its owner keeps it and its memory until loop_reads_wait gave it back.
 */
struct loop_read {
    uint64_t offset; /* in the file                                     */
    void *memory;    /* where to                                        */
    uint32_t bytes;  /* how many, above 0                               */
    icms_err err;    /* out: a short read is IO                         */
    /* private to the back end */
    uint32_t moved;   /* bytes that arrived                             */
    struct list link; /* those in flight                                */
};

/* Many blocking reads of one file at a time: at start and in tools, never on a running loop. depth:
 * reads in flight, 1 .. 1,024. Any one thread. LIMIT, NO_MEMORY or UNSUPPORTED with a sentence. */
icms_err loop_reads_new(struct loop_file *file, uint32_t depth, struct err_why *why,
                        struct loop_reads **out_reads) ICMS_MUST_CHECK;

/* Starts one; fewer than depth are in flight. The kernel may hear of it only in loop_reads_wait. */
void loop_reads_start(struct loop_reads *reads, struct loop_read *read);

/* Waits for one that ended, in any order; NULL: none is in flight. */
struct loop_read *loop_reads_wait(struct loop_reads *reads);

/* Waits for all that are in flight; before the file is closed. *reads may be NULL. */
void loop_reads_free(struct loop_reads **reads);

/* Whole transfers: bytes is the full length when err is ICMS_OK. */
void loop_file_read(struct loop *loop, struct loop_op *op, struct loop_file *file, uint64_t offset,
                    void *memory, uint32_t bytes, void (*done)(struct loop_op *op));

/* Likewise; stream: one of the device's write streams, 1 .. loop_file_streams, or 0. */
void loop_file_write(struct loop *loop, struct loop_op *op, struct loop_file *file, uint32_t stream,
                     uint64_t offset, const void *memory, uint32_t bytes,
                     void (*done)(struct loop_op *op));

/* Makes completed writes durable against power loss (fdatasync). */
void loop_file_flush(struct loop *loop, struct loop_op *op, struct loop_file *file,
                     void (*done)(struct loop_op *op));

/* Tells the device that nobody wants these bytes any more; what a read of them gives from now on,
 * also after a power loss, is unknown. UNSUPPORTED by files, and by devices and kernels that do not
 * offer it (Linux 6.12 is the first that does). */
void loop_file_discard(struct loop *loop, struct loop_op *op, struct loop_file *file,
                       uint64_t offset, uint32_t bytes, void (*done)(struct loop_op *op));

/* No operation may be in flight. *file may be NULL. */
void loop_file_close(struct loop_file **file);

/* ---- sockets -------------------------------------------------------------------------------- */

/* A numeric address and port; the simulation uses the same text as names of its nodes. */
#define LOOP_HOST_BYTES 48
struct loop_addr {
    char host[LOOP_HOST_BYTES]; /* "127.0.0.1", "::1" */
    uint16_t port;
};

/* "127.0.0.1:4420" or "[::1]:4420" to an address; CONFIG with a sentence when it is not one. Two
 * spellings of an address give one host: [0::1] as [::1], [::ffff:192.0.2.1] as 192.0.2.1. */
icms_err loop_addr_parse(const char *text, struct err_why *why,
                         struct loop_addr *out_addr) ICMS_MUST_CHECK;

/* The text of an address into out (64 bytes are enough); returns out. */
char *loop_addr_format(const struct loop_addr *addr, char *out, size_t bytes);

/* Whether host and port are the same. */
bool loop_addr_equal(const struct loop_addr *a, const struct loop_addr *b);

/* A listening TCP socket; port 0 picks one, loop_sock_addr tells which. Not bound to a loop. */
icms_err loop_listen(struct loop_env *env, const struct loop_addr *addr, struct err_why *why,
                     struct loop_sock **out_sock) ICMS_MUST_CHECK;

/* The same for a thread without a loop: a descriptor, the caller's, which blocks. is_dual: [::]
 * takes IPv4, too. Writes the port into addr when it was 0. */
icms_err loop_listen_fd(struct loop_addr *addr, int backlog, bool is_dual, struct err_why *why,
                        int *out_fd) ICMS_MUST_CHECK;

/* The local address of a socket. */
void loop_sock_addr(const struct loop_sock *sock, struct loop_addr *out_addr);

/* The address of the other side of a connected socket; no host when it left already. */
void loop_sock_peer(const struct loop_sock *sock, struct loop_addr *out_addr);

/* One connection; op->sock in done is the caller's. A connected socket may be used on any one loop:
 * hand it over by message. TCP_NODELAY is set. */
void loop_accept(struct loop *loop, struct loop_op *op, struct loop_sock *listener,
                 void (*done)(struct loop_op *op));
void loop_connect(struct loop *loop, struct loop_op *op, const struct loop_addr *addr,
                  void (*done)(struct loop_op *op));

/* Receives 1..bytes bytes. End of stream is RESET with 0 bytes. whole: waits for all of them (an
 * early end may report fewer with an error). */
void loop_recv(struct loop *loop, struct loop_op *op, struct loop_sock *sock, void *memory,
               uint32_t bytes, bool whole, void (*done)(struct loop_op *op));

/* Sends the vectors in order; may send less than all (op->bytes). vectors and what they name stay
 * until done. At most 16 vectors. */
void loop_sendv(struct loop *loop, struct loop_op *op, struct loop_sock *sock,
                const struct iovec *vectors, uint32_t count, void (*done)(struct loop_op *op));

/* Marks what is sent from now on, also while operations are in flight. What the kernel does not
 * take is not marked. (Simulation: does nothing.) */
void loop_sock_mark(struct loop_sock *sock, struct net_mark mark);

/* Ends both directions: pending receives and sends end with RESET. Harmless twice. */
void loop_sock_shutdown(struct loop_sock *sock);

/* Sends a few bytes now, as far as the socket takes them without waiting; nobody hears whether it
 * did: for what is said on the way out. No send is in flight. (Simulation: sends nothing.) */
void loop_sock_send_now(struct loop_sock *sock, const void *bytes, size_t count);

/* Keys of TLS 1.3 with AES-GCM for one direction of a socket. */
struct loop_tls_keys {
    bool is_send;      /* what is sent from now on; else: what arrives                 */
    bool is_256;       /* AES-256-GCM; else AES-128-GCM                                */
    uint8_t key[32];   /* 16 or 32 bytes of it                                         */
    uint8_t iv[12];    /* of record 0                                                  */
    uint64_t sequence; /* of the next record                                           */
};

/* The kernel makes (or opens) the records of a connected socket from now on (kTLS): no operation of
 * that direction is in flight. Then loop_recv ends with IO, and the bytes before it, in front of a
 * record that is no data. A second time: a new key. UNSUPPORTED: this kernel cannot, or the
 * simulation; the socket works as before. */
icms_err loop_sock_tls(struct loop_sock *sock, const struct loop_tls_keys *keys) ICMS_MUST_CHECK;

/* The record that is no data, of a direction that the kernel opens: its content type and content.
 * PROTOCOL: there is none, or it does not verify, or it is not shorter than bytes. */
icms_err loop_sock_tls_recv(struct loop_sock *sock, uint8_t *out_type, void *memory, size_t bytes,
                            size_t *out_bytes) ICMS_MUST_CHECK;

/* As loop_sock_send_now, as one record of a content type, of a direction that the kernel makes.
 * false: it was not taken. */
bool loop_sock_tls_send(struct loop_sock *sock, uint8_t type, const void *bytes, size_t count);

/* Records that the kernel made (or opened) with the key that a direction has now. UNSUPPORTED: the
 * kernel has none of its keys, or does not tell. */
icms_err loop_sock_tls_records(struct loop_sock *sock, bool is_send,
                               uint64_t *out_records) ICMS_MUST_CHECK;

/* No operation may be in flight on it. *sock may be NULL. */
void loop_sock_close(struct loop_sock **sock);

/* ---- events --------------------------------------------------------------------------------- */

/* A flag between this process and another one, one way. What is shared with the other process is
 * shared with its flags, O_NONBLOCK among them: neither side of an event depends on them, and
 * nothing that the other process does can make a call here block. (Simulation: an object.) */
enum loop_event_role {
    LOOP_EVENT_WAIT,   /* a loop of this process waits for it, others raise it: an eventfd   */
    LOOP_EVENT_SIGNAL, /* this process raises it, others wait for it: a stream of bytes whose
                          readable end is passed on, non-blocking                            */
};

icms_err loop_event_new(struct loop_env *env, enum loop_event_role role,
                        struct loop_event **out_event) ICMS_MUST_CHECK;

/* The descriptor to pass to another process, -1 in the simulation. Owned by the event. WAIT: write
 * a uint64_t of 1 to raise it. SIGNAL: readable after a signal; receive all there is before looking
 * at what it stands for. */
int loop_event_fd(const struct loop_event *event);

/* SIGNAL. Any thread. */
void loop_event_signal(struct loop_event *event);

/* WAIT: done when it was raised since the last wait ended. One wait at a time. The event may be
 * another process's (simulation: of another node of the same machine). */
void loop_event_wait(struct loop *loop, struct loop_op *op, struct loop_event *event,
                     void (*done)(struct loop_op *op));
void loop_event_free(struct loop_event **event);

/* ---- fork() --------------------------------------------------------------------------------- */

/* Notes a descriptor that was just made, or -1; returns it. It is closed with loop_fd_close. Those
 * of loops are noted; the users of loops note their own. Any thread. */
int loop_fd_own(int fd);
void loop_fd_close(int fd);

/* For pthread_atfork(): around it, in the parent, and in the child, where every noted descriptor is
 * closed. The child may make new loops; those that it inherited must not be touched. */
void loop_fork_prepare(void);
void loop_fork_parent(void);
void loop_fork_child(void);

/* ---- counters ------------------------------------------------------------------------------- */

struct loop_stats {
    uint64_t iterations; /* times round                       */
    uint64_t ops;        /* operations completed              */
    uint64_t messages;   /* messages run                      */
    uint64_t wakes;      /* times it slept and was woken      */
};

/* Any thread; numbers a moment old. */
void loop_stats(const struct loop *loop, struct loop_stats *out_stats);

#endif
