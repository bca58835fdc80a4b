/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_int.h: what benches are made of: slices in turns, generators of work, raw ceilings.
 * Private to bench.
 *
 * How a bench is written: make two sides, fill them with the same values, and call bench_compare
 * for each piece of work. A side runs one slice at a time on the caller's thread; it may hand the
 * work to a loop (struct bench_gen) or to processes whose ids it names.
 */
#ifndef BENCH_BENCH_INT_H
#define BENCH_BENCH_INT_H

#include <semaphore.h>
#include <signal.h>
#include <sys/types.h>

#include "bench/bench.h"
#include "base/types.h"
#include "icms/icms.h"
#include "loop/loop.h"
#include "proc/proc.h"

#define BENCH_PIDS_MAX   40
#define BENCH_SIZES_MAX  4
#define BENCH_SLOTS_MAX  256
#define BENCH_PATH_BYTES 4096

/* ---- slices (compare.c) --------------------------------------------------------------------- */

/* A bounded sample of latencies; every operation has the same chance to be in it. */
struct bench_sample {
    uint32_t *ns;   /* kept latencies, 4.2 s at most each  */
    uint32_t count; /* of them                             */
    uint32_t max;   /* room                                */
    uint64_t seen;  /* operations offered                  */
    uint64_t state; /* of the generator that chooses       */
};

/* What is to be done. */
struct bench_work {
    enum bench_op op;
    uint32_t size_bytes; /* of each value                                               */
    uint32_t depth;      /* operations in flight; 0: open loop                          */
    double ops_per_s;    /* open loop: due each second, at even distances               */
};

/* What one side did in one slice. */
struct bench_slice {
    uint64_t ops, bytes, errors, verified; /* as in struct bench_figures                  */
    icms_err error;                        /* what one of the errors was                  */
    uint64_t from_memory;                  /* as in struct bench_figures                  */
    uint64_t wall_ns;                      /* from the first start to the last end        */
    uint64_t cpu_ns;                       /* set by bench_compare                        */
    struct bench_sample sample;            /* latencies                                   */
};

/* Where a side is on its walk over the values that it loads. */
struct bench_trail {
    uint64_t next;  /* number of the next load of the walk (bench_walk)                        */
    uint64_t count; /* values that it goes over                                                */
    uint64_t kept;  /* of the latest loads at most: what memory above the drive may still hold */
};

/* One of the two that are compared. */
struct bench_side {
    const char *name; /* "raw disk" */
    /* Works for about ns and fills all of the slice but cpu_ns. When it returns nothing is in
     * flight. */
    icms_err (*run)(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                    struct bench_slice *slice, struct err_why *why);
    void *owner;               /* of the side, not touched                      */
    struct bench_trail *trail; /* of loads; NULL: it has none                   */
    uint32_t pids;             /* processes that work for it besides this one   */
    pid_t pid[BENCH_PIDS_MAX]; /* their ids                                     */
};

/* Counts one finished operation: its latency, its bytes when it went well. */
void bench_slice_add(struct bench_slice *slice, icms_err err, uint64_t bytes, uint64_t verified,
                     uint64_t latency_ns);

/* For a bench that counts outside bench_compare: room for a sample (false: out of memory), and all
 * as at the beginning. */
bool bench_slice_init(struct bench_slice *slice, uint32_t sample_max);
void bench_slice_clear(struct bench_slice *slice);
void bench_slice_fini(struct bench_slice *slice);

/* Adds what another slice counted, its latencies too; not its times. */
void bench_slice_merge(struct bench_slice *slice, const struct bench_slice *other);

/* Processor time of a process so far, of this one when pid is 0; 0 when there is none. */
uint64_t bench_pid_cpu_ns(pid_t pid);

/* Resident bytes of a process, shared ones included; 0 when it is gone. */
uint64_t bench_pid_resident(pid_t pid);

/* Monotonic nanoseconds. */
uint64_t bench_now_ns(void);

/* The quantile (0 < q <= 1) of a sample in nanoseconds; sorts it. 0 when empty. */
uint64_t bench_sample_quantile(struct bench_sample *sample, double q);

/* The median of n values and the interval that holds the true one 95 times of 100, from their order
 * alone (n < 6: the least and the greatest). Sorts them. */
double bench_median(double *values, uint32_t n, double *out_low, double *out_high);

/* Runs both sides in turns after one slice each that does not count, and fills row's figures,
 * ratio and interval. ceiling may be NULL. Loads of sides with trails begin each pair of slices at
 * one number, that of the side that came further. row's other fields are the caller's, who hands
 * the row to opts->row when it is complete. */
icms_err bench_compare(const struct bench_opts *opts, const struct bench_work *work,
                       struct bench_side *ceiling, struct bench_side *subject,
                       struct bench_row *row, struct err_why *why) ICMS_MUST_CHECK;

/* Appends a number of this bench's own; static name. */
void bench_row_extra(struct bench_row *row, const char *name, double value);

/* The same with a goal. */
void bench_row_goal(struct bench_row *row, const char *name, double value, double at_most);

/* Seconds of one core that CRC32C takes for a GB in values of this size, in cold memory. */
double bench_crc_s_per_gb(uint32_t size_bytes);

/* The sizes and depths that opts asks for; returns how many. */
uint32_t bench_sizes(const struct bench_opts *opts, uint32_t sizes[BENCH_SIZES_MAX]);
uint32_t bench_depths(const struct bench_opts *opts, uint32_t depths[2]);

/* Whether opts asks for this operation (variant). */
bool bench_wants_op(const struct bench_opts *opts, enum bench_op op);
bool bench_wants_variant(const struct bench_opts *opts, const char *variant);

/* Segments for a drive of this size: small ones where few large ones would be there to reclaim. */
uint64_t bench_segment_bytes(uint64_t drive_bytes);

/* Other than 0 when somebody asked for the end. What takes long asks bench_go_on now and then. */
extern volatile sig_atomic_t bench_canceled;
icms_err bench_go_on(struct err_why *why) ICMS_MUST_CHECK;

/* A new directory inside opts->dir, removed with everything in it by bench_dir_remove. */
icms_err bench_dir_make(const struct bench_opts *opts, struct err_why *why, char *out,
                        size_t bytes);
void bench_dir_remove(const char *path);

/* ---- values (value.c) ----------------------------------------------------------------------- */

/* Values are incompressible and differ: a common noise, with a stamp of size, number and age in
 * front and at the end. */

/* Fills size bytes of memory with noise, once; bench_value_stamp then makes it value n. */
void bench_value_noise(uint8_t *memory, uint64_t size);
void bench_value_stamp(uint8_t *memory, uint64_t size, uint64_t n, uint64_t age);

/* Bytes that bench_value_is looks at. */
#define BENCH_STAMP_BYTES 64

/* Whether memory holds value n of this age, judged by the stamps. */
bool bench_value_is(const uint8_t *memory, uint64_t size, uint64_t n, uint64_t age);

/* The n-th number of a fixed walk that meets each of 0 .. count-1 once before it begins again, in
 * no order that a read-ahead could use. */
uint64_t bench_walk(uint64_t n, uint64_t count);

/* The key of value n: 16 bytes, hashed. */
struct key bench_key(uint64_t n, uint64_t age);

/* ---- work on a loop (gen.c) ----------------------------------------------------------------- */

struct bench_gen;

/* One operation at a time. */
struct bench_slot {
    struct bench_gen *gen; /* whose                                       */
    uint32_t index;        /* 0 .. slots - 1                              */
    uint64_t due_ns;       /* when the operation under way should begin   */
    void *owner;           /* of who made the generator                   */
};

/* Keeps a number of operations in flight on a loop, or starts them when they are due. */
struct bench_gen {
    /* in: set before bench_gen_run */
    struct loop *loop; /* started                                                             */
    uint32_t slots;    /* of slot[]                                                           */
    struct bench_slot slot[BENCH_SLOTS_MAX];
    /* Starts operation number n (counted over all slices) in a slot, on the loop; ends with
     * bench_gen_done, once, inside or later. */
    void (*start)(struct bench_slot *slot, uint64_t n);
    void *owner; /* not touched */
    /* private */
    const struct bench_work *work;  /* of this slice                             */
    struct bench_slice *slice;      /* filled                                    */
    uint64_t length_ns;             /* of this slice                             */
    uint64_t left;                  /* operations that may still start in it     */
    uint64_t begin_ns, end_ns;      /* of this slice: nothing starts after end   */
    uint64_t next;                  /* number of the next operation              */
    uint64_t next_due_ns;           /* open loop                                 */
    uint32_t busy;                  /* slots under way                           */
    uint32_t free_count;            /* of free[]                                 */
    uint32_t free[BENCH_SLOTS_MAX]; /* slots that are idle                       */
    bool starting;                  /* inside gen_fill                           */
    struct loop_timer timer;        /* the next one is due; or the end           */
    struct loop_msg msg;            /* begins a slice                            */
    sem_t over;                     /* the slice has ended                       */
};

/* Before anything else; slots at most BENCH_SLOTS_MAX. */
void bench_gen_init(struct bench_gen *gen, struct loop *loop, uint32_t slots,
                    void (*start)(struct bench_slot *slot, uint64_t n), void *owner);

/* One slice, from the thread of bench_run; blocks until the last operation ended. The open loop
 * counts an operation that found no free slot from when it was due. */
void bench_gen_run(struct bench_gen *gen, const struct bench_work *work, uint64_t ns,
                   struct bench_slice *slice);

/* Exactly count operations, closed loop; an error when one of them failed. */
icms_err bench_gen_count(struct bench_gen *gen, const struct bench_work *work, uint64_t count,
                         struct err_why *why) ICMS_MUST_CHECK;

/* The operation of a slot is over. On the loop. */
void bench_gen_done(struct bench_slot *slot, icms_err err, uint64_t bytes, uint64_t verified);

/* ---- the raw disk (raw_disk.c) -------------------------------------------------------------- */

/* Reads or writes extents of files with O_DIRECT and io_uring, registered buffers and files, one
 * thread, nothing else: the ceiling of what uses disks. Its buffers are a region, as those of icms.
 */
struct bench_disk;

/* Makes count files (at most 8) in dir, each of bytes, preallocated. */
icms_err bench_disk_new(const char *dir, uint32_t count, uint64_t bytes, struct err_why *why,
                        struct bench_disk **out_disk) ICMS_MUST_CHECK;

/* A file of this size of which every byte was written, so that later writes allocate nothing. */
icms_err bench_file_make(const char *path, uint64_t bytes, struct err_why *why) ICMS_MUST_CHECK;

/* Writes values first .. first + count - 1 of this size, as many as fit; first 0 begins anew. To be
 * called in turns with the filling of the other side, so that both are equally old. */
icms_err bench_disk_fill(struct bench_disk *disk, uint32_t size, uint64_t first, uint64_t count,
                         struct err_why *why) ICMS_MUST_CHECK;
uint64_t bench_disk_extents(const struct bench_disk *disk, uint32_t size);

/* Whether a checksum is taken of every value; not at first. */
void bench_disk_check(struct bench_disk *disk, bool checks);

/* A side: owner is the disk. */
icms_err bench_disk_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                        struct bench_slice *slice, struct err_why *why);
struct bench_trail *bench_disk_trail(struct bench_disk *disk);
void bench_disk_free(struct bench_disk **disk);

/* ---- files of both sides (files.c) ---------------------------------------------------------- */

/* Drive files for icms and as many for the raw disk. */
struct bench_files {
    char dir[BENCH_PATH_BYTES]; /* the bench's own directory */
    uint64_t bytes;             /* of each file              */
    struct bench_disk *disk;    /* the raw disk's            */
};

/* Makes a directory and count files for each side, equal parts of opts->space_bytes, whole
 * segments. Unless OK nothing is left. */
icms_err bench_files_make(const struct bench_opts *opts, uint32_t count, struct err_why *why,
                          struct bench_files *files) ICMS_MUST_CHECK;

/* Where file i of icms lies. */
void bench_files_path(const struct bench_files *files, uint32_t i, char *out, size_t bytes);

/* Removes the directory and everything in it. */
void bench_files_free(struct bench_files *files);

/* Stores the next count values. */
typedef icms_err bench_files_put(void *owner, uint64_t count, struct err_why *why);

/* Fills both sides with values 0 .. count - 1 of this size, in turns. */
icms_err bench_files_fill(const struct bench_opts *opts, struct bench_files *files, uint32_t size,
                          uint64_t count, bench_files_put *put, void *owner,
                          struct err_why *why) ICMS_MUST_CHECK;

/* ---- a pod of our own (rig.c) --------------------------------------------------------------- */

/* Targets in processes of their own, and a handle of libicms that reaches them: through an agent in
 * this process, or through icms-agent in one more. Configurations, logs and socket lie in dir. */
/* How what a pod moves is protected. */
enum bench_protect {
    BENCH_PLAIN,
    BENCH_ENCRYPTED, /* values, by the client                     */
    BENCH_TLS,       /* connections to enclosures                 */
};

struct bench_rig {
    const char *dir;               /* the bench's                                        */
    const char *drive;             /* the first drive's file; others' are named after it */
    uint64_t drive_bytes;          /* of it                                              */
    uint32_t size;                 /* the largest value                                  */
    uint32_t arena_slots;          /* blocks that the agent's memory holds               */
    uint32_t enclosures;           /* targets; 0: 1                                      */
    uint32_t drives;               /* of each; 0: 1                                      */
    uint32_t loops;                /* of the agent and of each target; 0: 1              */
    enum bench_protect protect;    /* what is secret on the way                          */
    bool standard_commands;        /* the agent may not use our own, exist-many          */
    struct proc_child *targets;    /* between bench_rig_up and bench_rig_down            */
    struct proc_child agent;       /* daemon                                             */
    char config[BENCH_PATH_BYTES]; /* of the agent                                       */
    struct icms *icms;             /* open between bench_rig_open and bench_rig_close    */
    struct icms_volume *volume;    /* the only one                                       */
};

/* Blocks that one agent served, by where they came from, since it started. */
struct bench_hits {
    uint64_t dram, pod;
};

/* Formats the drives and starts the targets. The first ten fields are set, all else is zero. */
icms_err bench_rig_up(struct bench_rig *rig, struct err_why *why) ICMS_MUST_CHECK;
void bench_rig_down(struct bench_rig *rig);

/* Starts an agent with an empty arena, here or as a daemon, and opens the volume through it. */
icms_err bench_rig_open(struct bench_rig *rig, bool daemon, struct err_why *why) ICMS_MUST_CHECK;
void bench_rig_close(struct bench_rig *rig);

/* One more handle at the daemon of an open rig, and the volume through it; both are the caller's to
 * close, before the rig is closed. */
icms_err bench_rig_client(const struct bench_rig *rig, struct icms **out_icms,
                          struct icms_volume **out_volume, struct err_why *why) ICMS_MUST_CHECK;

/* Whether the kernel makes the TLS records of the first enclosure's connections. */
bool bench_rig_kernel_tls(const struct bench_rig *rig);

/* Rows of bench crypt: a pod with protection beside one without, both with an agent of their own.
 */
icms_err bench_pod_pair(const struct bench_opts *opts, const char *variant,
                        enum bench_protect protect, struct err_why *why) ICMS_MUST_CHECK;

/* Names the rig's processes in a side. */
void bench_rig_pids(const struct bench_rig *rig, struct bench_side *side);
icms_err bench_rig_hits(const struct bench_rig *rig, struct err_why *why,
                        struct bench_hits *out_hits) ICMS_MUST_CHECK;

/* The key of value n, as libicms takes it. */
struct icms_key bench_icms_key(uint64_t n, uint64_t age);

/* ---- an engine (engine.c) -------------------------------------------------------------------- */

#define BENCH_ENGINE_SLOTS 64

/* One request. */
struct bench_engine_slot {
    struct icms_block block;      /* its only one                 */
    struct icms_request *request; /* under way                    */
    uint64_t n;                   /* which value                  */
    uint64_t begin_ns;            /* when it started              */
    uint8_t *memory;              /* the engine's                 */
};

/* Loads and stores values from one thread. */
struct bench_engine {
    /* in: set before bench_engine_work */
    struct icms *icms;          /* its handle, asked by nobody else                          */
    struct icms_volume *volume; /* of that handle                                            */
    struct bench_trail trail;   /* over the values that were stored                          */
    uint64_t first;             /* number of its first value                                 */
    uint64_t next_put;          /* stores begin with this value, counted from the first      */
    bool from_dram;             /* loads come from the agent's memory: others are errors; else
                                   those are not counted                                     */
    /* private */
    uint32_t size;                                     /* of values    */
    uint8_t *memory;                                   /* of all slots */
    uint64_t memory_bytes;                             /* of it        */
    struct bench_engine_slot slot[BENCH_ENGINE_SLOTS]; /* requests     */
};

/* Memory for values of this size. The engine was zero, or ended. */
icms_err bench_engine_init(struct bench_engine *engine, uint32_t size,
                           struct err_why *why) ICMS_MUST_CHECK;
void bench_engine_fini(struct bench_engine *engine);

/* work->depth operations at a time, on this thread, until end_ns or count of them were started and
 * all have ended. */
void bench_engine_work(struct bench_engine *engine, const struct bench_work *work, uint64_t end_ns,
                       uint64_t count, struct bench_slice *slice);

/* ---- another process (process.c) ------------------------------------------------------------ */

/* A forked process that this one talks to over a socket. */
struct bench_process {
    pid_t pid;     /* 0: none                                */
    uint16_t port; /* where it listens, on 127.0.0.1         */
};

/* How the new process says where it listens. */
struct bench_listening {
    int fd; /* to the one that started it */
};

/* What it does: listens, says so once, serves until it is killed. Returns only when it failed or
 * the other end left. */
typedef icms_err bench_process_fn(void *arg, struct bench_listening *listening,
                                  struct err_why *why);
void bench_process_listens(struct bench_listening *listening, uint16_t port);

/* In the new process: listens on a port of 127.0.0.1, says so, and takes one connection. */
icms_err bench_process_accept(struct bench_listening *listening, struct err_why *why,
                              int *out_fd) ICMS_MUST_CHECK;

/* In this one: the connection to it, blocking; out_fd is to be closed also after an error, unless
 * it is -1. */
icms_err bench_process_connect(const struct bench_process *process, struct err_why *why,
                               int *out_fd) ICMS_MUST_CHECK;

/* Forks; this process may have no other threads now. Returns when it listens; what it failed with
 * otherwise. The new one has the memory of this one, and dies with it. */
icms_err bench_process_start(const char *name, bench_process_fn *body, void *arg,
                             struct err_why *why,
                             struct bench_process *out_process) ICMS_MUST_CHECK;

/* Kills it and waits for its end. Harmless when there is none. */
void bench_process_end(struct bench_process *process);

/* Values that processes forked later share, with their checksums. */
struct bench_pool {
    uint8_t *memory; /* value n at n * size; NULL: none */
    uint32_t *crc;   /* CRC32C of each                  */
    uint32_t count;  /* of values                       */
    uint32_t size;   /* of each, bytes                  */
    bool unchecked;  /* raw TCP looks at no value       */
};

/* As many values of this size as bytes hold, one at least. */
icms_err bench_pool_new(uint32_t size, uint64_t bytes, struct err_why *why,
                        struct bench_pool *out_pool) ICMS_MUST_CHECK;
void bench_pool_free(struct bench_pool *pool);

/* ---- instructions (instructions.c) ----------------------------------------------------------- */

#define BENCH_INSTRUCTIONS_THREADS 16

/* Counters of a process; all zero: none. */
struct bench_instructions {
    int fd[BENCH_INSTRUCTIONS_THREADS]; /* one for each thread */
    uint32_t count;                     /* of fd               */
};

/* Counts from now on what the process executes, user and kernel, all threads. False, and nothing to
 * close: the machine has no such counter, we may not use it, or there is no such process. */
bool bench_instructions_open(struct bench_instructions *counters, pid_t pid);
uint64_t bench_instructions_read(const struct bench_instructions *counters);
void bench_instructions_close(struct bench_instructions *counters);

/* ---- raw TCP (raw_tcp.c) -------------------------------------------------------------------- */

/* Values over one connection to another process, blocking sockets, a header of 16 bytes: the
 * ceiling of what uses the network. Both ends take the CRC32C of the values they receive. */
struct bench_tcp;

/* Forks. The pool stays until bench_tcp_free. depth_max: 64 at most. */
icms_err bench_tcp_new(const struct bench_pool *pool, uint32_t depth_max, struct err_why *why,
                       struct bench_tcp **out_tcp) ICMS_MUST_CHECK;

/* A side: owner is the bench_tcp; its other process is the server. */
icms_err bench_tcp_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                       struct bench_slice *slice, struct err_why *why);
pid_t bench_tcp_server(const struct bench_tcp *tcp);
void bench_tcp_free(struct bench_tcp **tcp);

/* ---- raw streaming (raw_stream.c) ------------------------------------------------------------ */

/* Values that a process reads from a file in parts and sends over one connection while it reads on,
 * one value at a time: how soon a value can be there that is sent while it is read. */
struct bench_stream;

/* Forks. As many values of this size, whole pieces, lie one after the other at the begin of the
 * file.
 */
#define BENCH_STREAM_PIECE ((uint32_t)256 << 10)
icms_err bench_stream_new(const char *path, uint64_t count, uint32_t size, struct err_why *why,
                          struct bench_stream **out_stream) ICMS_MUST_CHECK;

/* A side, for loads at depth 1. */
struct bench_side bench_stream_side(struct bench_stream *stream);
void bench_stream_free(struct bench_stream **stream);

/* ---- programs of others (tool.c) --------------------------------------------------------------
 */

/* fio on a file that was filled. */
struct bench_fio {
    char path[BENCH_PATH_BYTES + 16]; /* the file                             */
    uint64_t values;                  /* that lie in it, of the work's size   */
    uint64_t next_write;              /* number of the value written next     */
    uint64_t runs;                    /* so far: each takes another quarter */
};

/* iperf3 on loopback. */
struct bench_iperf {
    pid_t server;  /* 0: none        */
    uint16_t port; /* it listens on  */
};

/* Sides: owner is the struct. Slices of iperf3 take whole seconds. UNSUPPORTED when the program is
 * not installed; bench_iperf_run says so, not bench_iperf_start. */
icms_err bench_fio_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                       struct bench_slice *slice, struct err_why *why);
icms_err bench_iperf_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                         struct bench_slice *slice, struct err_why *why);
icms_err bench_iperf_start(struct bench_iperf *iperf, struct err_why *why) ICMS_MUST_CHECK;
void bench_iperf_end(struct bench_iperf *iperf);

/* ---- benches -------------------------------------------------------------------------------- */

icms_err bench_store_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_drives_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_gpu_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_cores_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_crypt_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_match_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_pod_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_arena_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_restart_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_wire_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_ceiling_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_idle_run(const struct bench_opts *opts, struct err_why *why);
icms_err bench_scale_run(const struct bench_opts *opts, struct err_why *why);

/* Its rows about an agent; files go into dir. */
icms_err bench_scale_agent_run(const struct bench_opts *opts, const char *dir, struct err_why *why);

#endif
