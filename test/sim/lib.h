/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim/lib.h: what the files share that put libicms itself into the pod.
 *
 *   lib_preempt.h  in front of libicms' sources: where a thread may stop
 *   lib_thread.c   threads of which one runs at a time, locks, and who runs next
 *   lib_sys.c      the machine of src/client/sys.h, sockets to agents: descriptors that are numbers
 *   lib_client.c   pod_client_*: a process with a handle, its threads and what they ask for
 *   lib_judge.c    what came of a call, against the model
 *
 * A thread is a coroutine: it runs from one point to another, and control takes turns with it. What
 * it does between two points happens at one moment of virtual time.
 */
#ifndef SIM_LIB_H
#define SIM_LIB_H

#include <ucontext.h>

#include "client/client_int.h"
#include "pod.h"

/* ---- threads -------------------------------------------------------------------------------- */

enum lib_state {
    LIB_FREE,  /* no thread                                              */
    LIB_READY, /* runs when chance says so                               */
    LIB_LOCK,  /* waits for a mutex; woken by who unlocks it             */
    LIB_COND,  /* waits for a condition; woken by a broadcast, or by time */
    LIB_WAIT,  /* waits for descriptors; woken by what makes one readable */
    LIB_SLEEP, /* waits for time                                         */
    LIB_OVER,  /* its function returned                                  */
};

#define LIB_CALLERS  4                 /* threads of a process that call libicms */
#define LIB_THREADS  (LIB_CALLERS + 1) /* and the one that libicms makes         */
#define LIB_WAIT_FDS 3
#define LIB_EVER     UINT64_MAX
#define LIB_STACK    ((size_t)256 << 10)

struct lib_process;

struct lib_thread {
    enum lib_state state;
    struct lib_process *process;
    void (*run)(struct lib_thread *thread);
    void *(*own)(void *arg);    /* of libicms: what `run` calls                            */
    void *arg;                  /* its argument                                            */
    uint32_t number;            /* of the process                                          */
    const void *on;             /* LOCK, COND: the mutex or the condition                  */
    int fds[LIB_WAIT_FDS];      /* WAIT: descriptors, -1: none                             */
    uint64_t wake_ns;           /* COND, WAIT, SLEEP: virtual time; LIB_EVER: never         */
    struct check_catch *catch_; /* who catches its checks, while it does not run           */
    ucontext_t context;
    void *stack;
    bool away;        /* SLEEP: at a point, not because it wants to */
    void *fake_stack; /* of AddressSanitizer */
};

/* The thread that runs; NULL: control. */
extern struct lib_thread *lib_current;

/* Makes a thread that is ready; it runs `run` and is OVER then. */
void lib_thread_start(struct lib_thread *thread, struct lib_process *process,
                      void (*run)(struct lib_thread *thread));

/* Control: it never runs again, wherever it is. */
void lib_thread_kill(struct lib_thread *thread);

/* The running thread. fds as in struct lib_thread; true: one is readable. */
void lib_sleep(uint64_t ns);
bool lib_wait_fds(const int *fds, uint64_t wake_ns);

/* It is ready, or what it sleeps for is there. */
bool lib_thread_due(const struct lib_thread *thread);

/* A number below n, of the seed. */
uint64_t lib_chance(uint64_t n);

/* The world that all of this belongs to. */
extern struct pod_world *lib_world;

/* What lib_preempt.h puts into libicms. */
void lib_point(void);
void lib_point_at(unsigned site);
int lib_mutex_lock(pthread_mutex_t *mutex);
int lib_mutex_trylock(pthread_mutex_t *mutex);
int lib_mutex_unlock(pthread_mutex_t *mutex);
int lib_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int lib_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int lib_cond_broadcast(pthread_cond_t *cond);
uint32_t lib_copy_steady(uint32_t crc, void *to, const void *from, size_t bytes);
icms_err lib_trailer_check(const struct sealed_place *place, uint32_t value_bytes,
                           uint32_t value_crc, const uint8_t *trailer);
bool lib_trailer_is(const uint8_t *trailer, const uint8_t *digest);

/* ---- descriptors and agents ----------------------------------------------------------------- */

/* True when a read of it would not wait. */
bool lib_fd_readable(int fd);

/* True when the agent's signals come through it: a moment after the hello. */
bool lib_fd_listens(int fd);

/* Control: closes what the process left open. */
void lib_fds_close(const struct lib_process *process);

/* Nothing of the process is with an agent any more. */
bool lib_conns_gone(const struct lib_process *process);

/* Control: what was closed is told to the agents, and what nobody uses is freed. */
void lib_conns_drive(void);
void lib_conns_free(void);

/* Control: the agent instance ended; frees it, now or when nobody maps its memory any more. */
void lib_agent_free(struct pod_agent *agent);

/* The clock of the machine that a process is on, and virtual time of a time on it. */
uint64_t lib_node_now_ns(const struct lib_process *process);
uint64_t lib_virtual_ns(const struct lib_process *process, uint64_t node_ns);

/* ---- processes ------------------------------------------------------------------------------ */

#define LIB_CALLS       10
#define LIB_OPS         256 /* of a handle that are looked at: those used last are used again */
#define LIB_CALL_BLOCKS 8   /* with memory of their own           */
#define LIB_CALL_MANY   300 /* more than a handle's leases; without */
#define LIB_LEASES      4

/* One call of libicms and what it is about. */
struct lib_call {
    bool used;     /* its thread, or the one that polls, has it                   */
    bool active;   /* libicms has it                                              */
    bool async;    /* by icms_*_start                                             */
    bool waited;   /* its thread ends it; else who polls                          */
    bool polled;   /* icms_poll returned it                                       */
    bool canceled; /* icms_request_cancel was called                              */
    uint8_t op;    /* enum shm_op; EXISTS_MANY: icms_match                        */
    uint8_t flags; /* enum shm_flag                                               */
    uint32_t volume;
    uint32_t count;       /* blocks                                                     */
    uint64_t deadline_ns; /* virtual time                               */
    uint64_t left_ns;     /* that libicms was told, while it may not have read the clock; else 0 */
    uint32_t number;      /* of the calls that the entry was used for                     */
    uint32_t keys[LIB_CALL_MANY];     /* of the model                               */
    uint32_t versions[LIB_CALL_MANY]; /* PUT: what is put                          */
    bool sure[LIB_CALL_MANY];         /* fair weather: on flash when it began        */
    uint64_t rooms[LIB_CALL_BLOCKS];  /* GET: bytes at data                         */
    uint32_t crcs[LIB_CALL_BLOCKS];   /* PUT: of the value                          */
    void *buffer;                     /* PUT in place: of block 0                   */
    struct icms_block blocks[LIB_CALL_MANY];
    struct icms_key match_keys[LIB_CALL_MANY];
    struct icms_estimate estimates[LIB_CALL_MANY]; /* EXISTS_MANY of an even number of keys */
    size_t matched;
    uint8_t *memory; /* [LIB_CALL_BLOCKS * POD_STAGE_BYTES] poison between calls  */
    struct icms_request *request;
    struct pod_job *report; /* where the result goes; NULL: nowhere               */
};

struct lib_lease {
    bool used;
    struct icms_lease lease;
    uint32_t crc;
    bool busy;           /* a thread takes it or gives it back */
    uint64_t release_ns; /* virtual time                       */
};

enum lib_process_state {
    LIB_PROCESS_NONE,    /* control starts it                                      */
    LIB_PROCESS_OPENING, /* its first thread opens the handle                      */
    LIB_PROCESS_RUNS,
    LIB_PROCESS_CLOSING, /* its threads end, the first one closes the handle       */
    LIB_PROCESS_GONE,    /* control waits until agents have let go of it            */
};

struct lib_process {
    struct pod_client *client;
    enum lib_process_state state;
    bool inside;    /* pod: the agent is in this process        */
    bool killed;    /* GONE: in the middle of its calls         */
    bool polls;     /* its last thread calls icms_poll; else asynchronous calls are waited for */
    uint32_t spins; /* times that the event was readable for nothing            */
    uint64_t spins_epoch; /* room_epoch of the handle at the last one */
    /* How often control saw that all threads sleep and this is not taken. */
    uint8_t ring_looks[POD_REACTORS], op_looks[LIB_OPS];
    uint32_t ring_heads[POD_REACTORS], op_generations[LIB_OPS];
    uint64_t stalled_ns; /* virtual time until which a thread stands still, or stood */
    struct lib_thread threads[LIB_THREADS];
    struct icms *icms;
    struct icms_volume *volumes[POD_VOLUMES];
    struct lib_call calls[LIB_CALLS];
    struct lib_lease leases[LIB_LEASES];
};

/* Makes the call ready for what is asked; its memory is filled. */
void lib_call_begin(struct lib_process *process, struct lib_call *call);

/* Judges the result and gives the call back. */
void lib_call_end(struct lib_process *process, struct lib_call *call, icms_err err);

/* Control: fails when it is overdue. */
void lib_call_judge(const struct lib_process *process, const struct lib_call *call);

/* Control: nobody sleeps while an answer is there. */
void lib_rings_judge(struct lib_process *process, bool ops);

/* How often it looks into the rings; and at the operations, each millisecond. */
#define LIB_LOOK_NS (50 * US)

/* A leased block of a key is what was put. */
void lib_lease_judge(uint32_t key, const struct icms_lease *lease);

#endif
