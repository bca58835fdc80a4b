/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/target/target_int.h: the objects of nvmf/target and who owns them. Private to this folder;
 * names begin with nvmft_.
 *
 *   nvmf_target ── registry (loop 0): controllers, which queue pair slots are free
 *        └── shard, one a loop: buffer pool, waiting commands, counters
 *               └── queue pair: one connection (nvmf/transport.h); request slots
 *                      └── request: one command
 *
 * Loops meet by message only. A queue pair has three messages: reg (opened, joining a controller,
 * leaving: between its loop and loop 0), kill (from loop 0: your controller is gone) and drain. A
 * slot is free again when the queue pair left and its kill message is not on its way.
 *
 * Portals are loop 0's: each is a listener. A queue pair knows the one that it came through, and
 * nothing else depends on it.
 */
#ifndef NVMF_TARGET_TARGET_INT_H
#define NVMF_TARGET_TARGET_INT_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/counter.h"
#include "base/fair.h"
#include "base/list.h"
#include "nvmf/target.h"
#include "nvmf/target/pool.h"
#include "nvmf/transport.h"
#include "wire/nvme_fabrics.h"
#include "wire/nvme_identify.h"
#include "wire/nvme_kv.h"
#include "wire/nvme_log.h"

#define NVMFT_REQ_MAGIC   0x71657274u /* "treq" */
#define NVMFT_QPAIR_MAGIC 0x70717274u /* "trqp" */

/* The most data that may be allowed to come with any command. */
#define NVMFT_CAPSULE_BYTES_MAX ((uint32_t)1 << 20)

/* Async event requests that a controller holds. */
#define NVMFT_AERS 4

/* I/O queues that a controller may make. */
#define NVMFT_IO_QUEUES 64

/* Lost controllers that are kept until they are taken. */
#define NVMFT_LOSSES 8

/* Largest piece of a log page that is read at once. */
#define NVMFT_LOG_BYTES ((uint32_t)64 << 10)

/* All namespaces are in one group of asymmetric access, which is optimized through every
 * controller: each portal leads to the same drives. */
#define NVMFT_ANA_GROUP 1

/* What a host may have proven: as many values. */
#define NVMFT_PROVEN (1 + (REQUIRE_CHAP | REQUIRE_TLS))

/* In nvmft_ctrl.epoch: its host told one, in the lower half. */
#define NVMFT_EPOCH_TOLD ((uint64_t)1 << 32)

/* Events that hosts may ask for, of an I/O controller. As ANA wants it, those of changed access are
 * among them; there are none. */
#define NVMFT_OAES (NVME_OAES_NS_CHANGED | NVME_OAES_ANA)

/* Entries of an admin queue; NVMe asks for at least 32. */
#define NVMFT_ADMIN_ENTRIES 32

struct nvmft_qpair;
struct nvmft_shard;

/* ---- waiting for a turn and for memory ------------------------------------------------------ */

enum nvmft_wait_class {
    NVMFT_WAIT_LOAD,     /* retrieves, and all that is small    */
    NVMFT_WAIT_PRESTAGE, /* retrieves that no engine waits for  */
    NVMFT_WAIT_SCAN,     /* List and Flush                      */
    NVMFT_WAIT_STORE,    /* stores                              */
    NVMFT_WAIT_COUNT,
};

/* Commands of a class that are in progress on a loop, and bytes of their buffers, while commands of
 * several hosts or tenants compete: enough to keep the drives busy, and few enough that what
 * comes next is decided here. One host alone has no such limit. */
#define NVMFT_WINDOW_OPS   64
#define NVMFT_WINDOW_BYTES ((uint64_t)16 << 20)

/* The same of prestaging, also of one host alone: what a drive has of it is what the next load
 * finds there. While loads are in progress on any loop, or were within NVMFT_LOADS_NEAR_NS, and
 * while a store waits for memory: one command. */
#define NVMFT_PRESTAGE_BYTES ((uint64_t)4 << 20)
#define NVMFT_LOADS_NEAR_NS  ((uint64_t)10 * 1000 * 1000)

/* List and Flush commands in progress on a loop, however many hosts there are. One of a host. */
#define NVMFT_SCANS 4

/* A command that waits for its host for so long is not in the window any more. */
#define NVMFT_STALL_NS ((uint64_t)50 * 1000 * 1000)

/* A key that is looked for takes as much of a turn as so many bytes of a value. */
#define NVMFT_KEY_COST_BYTES ((uint64_t)1024)

/* Flows of a loop; queue pairs beyond that share one a tenant. */
#define NVMFT_FLOWS 4096

/* What a host, or a tenant, has of one loop. */
struct nvmft_share {
    uint64_t bytes[NVMFT_WAIT_COUNT];      /* of buffers, by class; LOAD: with PRESTAGE */
    struct list waiting[NVMFT_WAIT_COUNT]; /* flows that wait until it gives some back */
    uint32_t flows[NVMFT_WAIT_COUNT];      /* of a host: busy ones                     */
    uint32_t owed;                         /* of a host: keys looked for without a turn */
};

struct nvmft_tenant;

/* Commands of one queue pair for one tenant. While none is parked or has a buffer, the place may go
 * to another. */
struct nvmft_flow {
    struct nvmft_tenant *tenant;
    const struct nvmft_qpair *qpair; /* NULL: those for which there was no flow                */
    struct nvmft_share *share;       /* of their host                                          */
    uint32_t commands;               /* parked, or with a buffer                               */
    uint32_t stalled;                /* of them: left the window because of their host         */
    uint32_t busy[NVMFT_WAIT_COUNT]; /* parked or in the window                                */
    uint32_t in_window[NVMFT_WAIT_COUNT];      /* commands                                     */
    struct list parked[NVMFT_WAIT_COUNT];      /* requests in WAIT_BUFFER, oldest first        */
    struct fair_member turn[NVMFT_WAIT_COUNT]; /* among the flows of its tenant                */
    struct list wait_link[NVMFT_WAIT_COUNT];   /* in the waiting list of a share               */
    struct list bucket_link;                   /* buffers.buckets                              */
    struct list idle_link;                     /* buffers.idle, while commands is 0            */
};

struct nvmft_tenant_counters {
    uint64_t ops[NVMF_TARGET_CLASSES], bytes[NVMF_TARGET_CLASSES];
    uint64_t waits[NVMF_TARGET_CLASSES], wait_ns[NVMF_TARGET_CLASSES];
    uint64_t sheds;
};

/* A tenant on one loop. */
struct nvmft_tenant {
    struct fair_member turn[NVMFT_WAIT_COUNT]; /* among the tenants                             */
    struct fair flows[NVMFT_WAIT_COUNT];       /* of it                                         */
    struct nvmft_share share;                  /* of all its hosts                              */
    struct nvmft_rates *rates;                 /* of it on all loops                            */
    struct list held_link[NVMFT_WAIT_COUNT];   /* buffers.held                                  */
    struct nvmft_flow common;                  /* of queue pairs for which there was no flow */
    uint64_t backlog_bytes;                    /* wanted by its parked stores                   */
    struct nvmft_tenant_counters counters;     /* written here, read by any thread              */
};

/* Limits of a tenant, kept by all loops together; by class as the owner knows them. */
struct nvmft_rates {
    struct fair_rate bytes[NVMF_TARGET_CLASSES], ops[NVMF_TARGET_CLASSES];
};

/* Buffers of one loop, and whose turn it is. */
struct nvmft_buffers {
    struct nvmft_pool pool;
    struct nvmft_share *shares; /* one a host (nvmft_ctrl.host); the last: no host yet          */
    uint32_t share_count;
    uint64_t store_bytes;         /* held by stores                                               */
    uint64_t store_bytes_max;     /* the rest is kept for loads                                   */
    uint64_t backlog_bytes;       /* wanted by parked stores                                      */
    uint32_t backlog_tenants;     /* whose they are                                               */
    struct nvmft_tenant *tenants; /* the last: admin commands and Connect                     */
    uint32_t tenant_count;
    struct nvmft_flow *flows;
    struct list *buckets;  /* by tenant and queue pair                                           */
    uint32_t bucket_count; /* a power of two                                                  */
    struct list idle;      /* flows without commands, the longest idle first                  */
    struct fair turn[NVMFT_WAIT_COUNT];      /* tenants with flows that may go on           */
    struct list held[NVMFT_WAIT_COUNT];      /* tenants that are over a rate                */
    uint32_t active[NVMFT_WAIT_COUNT];       /* flows that are busy                         */
    uint32_t window_ops[NVMFT_WAIT_COUNT];   /* in the window                               */
    uint64_t window_bytes[NVMFT_WAIT_COUNT]; /* of their buffers                            */
    uint64_t window_bytes_max;               /* see NVMFT_WINDOW_BYTES                      */
    uint64_t loads;                          /* counter.h: in the window, loads of values; other
                                                loops look at it                            */
    uint64_t loads_ns;                       /* likewise: when the last of them left it     */
    struct list hosted[NVMFT_WAIT_COUNT];    /* requests in the window that wait for their
                                                host, the longest first                     */
    bool load_short;                         /* a load waits for memory                     */
    bool store_short;                        /* a store does                                */
    struct loop_timer timer; /* a rate allows more, or a command waits for its host for long  */
};

/* ---- requests ------------------------------------------------------------------------------- */

enum nvmft_req_state {
    NVMFT_REQ_FREE,        /* in the queue pair's free list                                      */
    NVMFT_REQ_NEW,         /* parsed, holds a slot and perhaps a buffer with in-capsule data     */
    NVMFT_REQ_WAIT_BUFFER, /* parked; woken by nvmft_buffers_wake or its deadline                */
    NVMFT_REQ_H2C,         /* its data was asked for; woken by the transport's progress()        */
    NVMFT_REQ_EXECUTE,     /* with the owner; woken by nvmf_target_req_more or _done             */
    NVMFT_REQ_STREAM,      /* with the owner, and what is ready of its data is sent; woken by
                              nvmf_target_req_more or _done                                      */
    NVMFT_REQ_HELD,        /* an async event request, kept until something happens               */
    NVMFT_REQ_AUTH,        /* AUTH Send, with the loop's worker; woken by its job's end          */
    NVMFT_REQ_JOIN,        /* Connect, with the registry; woken by nvmft_qpair_joined            */
    NVMFT_REQ_RESPOND,     /* its end is known: data and completion go to the transport          */
    NVMFT_REQ_SENDING,     /* with the transport; woken by its responded()                       */
    NVMFT_REQ_DONE,        /* everything sent or given up; the slot becomes free                 */
};

/* A KV command, parsed and checked. Checked once: at the header when data comes with it, else with
 * the command. What other queue pairs change meanwhile (CSTS.RDY) does not change the verdict, on
 * which the choice of a buffer depends. */
struct nvmft_kv {
    uint16_t status; /* the verdict: NVME_SC_SUCCESS, or what to answer   */
    bool has_op;     /* op is valid                                       */
    enum nvmf_target_op op;
    uint32_t ns;            /* index                                   */
    struct nvme_kv_cmd cmd; /* STORE, RETRIEVE, EXIST, DELETE, LIST    */
    uint32_t key_count;     /* EXIST_MANY                              */
    struct nvme_sgl sgl;    /* where the data is                       */
};

/* What a command waits for from its host. */
enum nvmft_pace {
    NVMFT_PACE_NONE, /* nothing                                 */
    NVMFT_PACE_SEND, /* that it sends the data asked for        */
    NVMFT_PACE_TAKE, /* that it takes data and completions      */
    NVMFT_PACE_COUNT,
};

struct nvmft_req {
    struct nvmf_target_req pub; /* what the owner sees; first                                   */
    uint32_t magic;             /* NVMFT_REQ_MAGIC                                              */
    enum nvmft_req_state state;
    struct nvmft_qpair *qpair;
    struct list link; /* free list of the queue pair, or parked list of the flow                */
    struct nvmf_target_io io; /* as the transport sees it; io.tag: index in the queue pair      */
    bool is_admin;    /* admin or fabrics: never reaches the owner                              */
    bool kv_sent_due; /* the owner has to be told when the value is not touched any more        */
    enum nvmft_wait_class wait_class;
    struct nvme_sqe_wf sqe;  /* the command as it came                                          */
    struct nvme_sgl sgl;     /* where its data is                                               */
    uint8_t *buffer;         /* owned, but for io.in_own; NULL: none                            */
    uint64_t buffer_bytes;   /* its size; parked: what is wanted                                */
    struct nvmft_flow *flow; /* with a buffer of the pool, or parked: whose                    */
    uint32_t keys;           /* that it looks for without loading them; it counts for so many   */
    bool in_window;          /* counts in the window of its class                               */
    bool is_stalled;         /* left it, because of its host                                    */
    struct list hosted_link; /* in the window and waits for its host                           */
    uint64_t hosted_ns;      /* since when; parked: since when that                             */
    uint32_t data_offset;    /* where the host's data starts in the buffer                      */
    uint32_t data_ready;     /* STREAM: of io.data_bytes, what may be sent; never all           */
    bool counted;            /* a KV command: appears in the statistics                         */
    bool in_kv;              /* inside ops.kv                                                   */
    bool answered;           /* nvmf_target_req_done was called                                 */
    bool is_expedited;       /* of class PRESTAGE, and goes as LOAD: its host waits for it now   */
    uint64_t started_ns;     /* when it was parsed                                              */
    uint64_t progress_ns;    /* when the peer last moved something of it                        */
    enum nvmft_pace pace;    /* what was waited for at the last sweep                           */
    uint64_t pace_ns;        /* how long, in sweeps                                             */
    uint64_t pace_ns_max;    /* how long it may take                                            */
    icms_err end;            /* for the statistics                                              */
    uint16_t status;         /* of the completion: NVME_SC_*                                    */
    bool dnr;                /* of the completion                                               */
    uint32_t dw0, dw1;       /* of the completion                                               */
    _Alignas(16) uint8_t area[]; /* the owner's                                                */
};

/* ---- controllers ---------------------------------------------------------------------------- */

/* Namespaces of a target: bit i % 64 of word i / 64 is namespace i. */
#define NVMFT_NS_WORDS (LIMIT_VOLUMES / 64)
static_assert(LIMIT_VOLUMES % 64 == 0, "sets of namespaces are whole words");

struct nvmft_ns_set {
    _Atomic uint64_t word[NVMFT_NS_WORDS];
};

/* An association of one host. Owned by loop 0; the admin queue's loop owns the part below. Others
 * touch the atomic fields only. Stays as long as one queue pair is joined to it. */
struct nvmft_keys;

struct nvmft_ctrl {
    bool live;      /* in use                                                            */
    bool dying;     /* its queue pairs were told to close; takes no new ones             */
    bool is_served; /* nvmf_target_connected reads hostnqn, host and proven; under slow_lock      */
    uint64_t served_ns; /* since when; likewise                                              */
    bool discovery;     /* serves the discovery log only                                     */
    bool tls;           /* its host is proven by TLS; so are all its queue pairs             */
    _Atomic bool is_refusal_said; /* a command to a namespace that it may not use was told    */
    bool is_auth_wanted; /* its queue pairs serve nothing before they authenticated           */
    bool is_unproven;    /* discovery, for a host that would have to prove who it is            */
    struct list unproven_link; /* is_unproven, till it dies: nvmf_target.unproven               */
    uint64_t end_ns;           /* is_unproven: when it dies                                     */
    bool lacks_tls; /* its host has to use TLS: it authenticates, and fails              */
    const struct nvmft_auth_host *auth_host; /* whose secrets; NULL: it has none                  */
    uint16_t cntlid; /* index + 1                                                         */
    const struct nvmft_portal *portal; /* of its admin queue                              */
    _Atomic uint32_t joined; /* queue pairs; loop 0 writes it                             */
    struct list qpairs;      /* those                                                             */
    uint64_t qids;           /* bit i: I/O queue i + 1 is joined                                  */
    uint8_t proven;          /* REQUIRE_*: what its host has proven, or has to                */
    struct nvmft_ns_set allowed; /* namespaces that are visible to the host; loop 0 writes it     */
    struct nvmft_ns_set changed; /* that it has to be told of; loop 0 adds, the admin queue takes */
    _Atomic uint64_t ana_changes; /* of allowed, since it was enabled                    */
    struct nvmf_target *target; /* whose                                                          */
    struct loop_timer timer; /* registry_look, while there is a keep-alive timeout                */
    struct loop_msg kato_msg; /* the timeout changed                                              */
    _Atomic bool kato_sent; /* it is on its way                                                  */
    uint32_t host;          /* number of its host NQN among those connected now                  */
    uint8_t hostid[16];     /* who                                                               */
    struct loop_msg reset_msg;    /* CC.EN went to 0: the I/O queues end                         */
    _Atomic bool reset_sent;      /* it was sent and has not arrived                             */
    _Atomic bool resetting;       /* I/O queues of before are left: CSTS.RDY stays 1             */
    _Atomic bool io_made;         /* an I/O queue was joined since the last reset                */
    _Atomic bool shut;            /* the host disabled it or shut it down: its end is no loss    */
    bool lost_first;              /* an I/O queue's connection broke, and none was joined since  */
    struct nvmf_target_loss loss; /* lost_first: the first one that broke                        */
    char hostnqn[LIMIT_NQN_BYTES];
    _Atomic uint32_t kato_ms;  /* 0: may be silent for ever                                   */
    _Atomic uint64_t heard_ns; /* last command on any of its queues                           */
    _Atomic uint64_t epoch;    /* of the host's pod map: NVMFT_EPOCH_TOLD | it; 0: not told   */
    _Atomic bool ready;        /* CSTS.RDY: I/O queues are served                             */
    _Atomic uint64_t ednek[NVMFT_NS_WORDS]; /* as nvmft_ns_set: Delete of a missing key fails */
    /* the admin queue's loop */
    uint32_t cc;                /* controller configuration register                           */
    uint32_t csts;              /* controller status register                                  */
    uint32_t async_config;      /* feature 0Bh                                                 */
    uint8_t warned;             /* critical warnings that the host was told, and that last     */
    bool is_ns_told;            /* the host was told of changed; not again before it read them */
    struct nvmft_ns_set listed; /* taken from changed, and not read by the host             */
    uint32_t io_queues;         /* granted by feature 07h                                      */
    bool differs;               /* its host told a value that others do not have               */
    bool has_told[2];           /* its host told its enclosures; their weights                 */
    uint32_t told[2];           /* which                                                       */
    uint64_t changed_ns[2];     /* when it became another one than others have; 0: never      */
    uint32_t changed_from[2];   /* what the others had then                                    */
};

/* ---- queue pairs ---------------------------------------------------------------------------- */

enum nvmft_qpair_state {
    NVMFT_QPAIR_FREE,    /* loop 0 may hand it out                                              */
    NVMFT_QPAIR_HELLO,   /* waits for the transport; woken by its opened() or the timer         */
    NVMFT_QPAIR_CONNECT, /* waits for the Connect command; woken by it or the timer             */
    NVMFT_QPAIR_JOINING, /* Connect is with the registry; woken by nvmft_qpair_joined           */
    NVMFT_QPAIR_READY,   /* serves commands                                                     */
    NVMFT_QPAIR_CLOSING, /* waits for the connection and for commands that are with the owner   */
    NVMFT_QPAIR_LEAVING, /* the registry takes it back                                          */
};

enum nvmft_reg_verb {
    NVMFT_REG_OPEN,  /* loop 0 -> shard: here is a host                */
    NVMFT_REG_JOIN,  /* shard -> loop 0: Connect                       */
    NVMFT_REG_LEAVE, /* shard -> loop 0: all over                      */
};

/* An address that is listened on. */
struct nvmft_portal {
    struct nvmf_target *target;
    struct nvmf_listener *listener; /* owned; NULL: it does not listen                          */
    struct loop_addr addr;          /* where it does; written before the loops start            */
    _Atomic uint32_t connections;   /* now; loop 0 writes it                                    */
    _Atomic uint64_t connections_total;
};

struct nvmft_qpair {
    uint32_t magic; /* NVMFT_QPAIR_MAGIC                                                       */
    enum nvmft_qpair_state state;
    struct nvmft_shard *shard;
    struct nvmf_conn *conn;  /* owned                                                        */
    bool conn_open;          /* conn's closed() has not come                                 */
    bool close_wanted;       /* close when nothing is in flight: drain, Disconnect           */
    bool no_flow;            /* the host does not want SQ heads                              */
    uint16_t qid;            /* 0: admin                                                     */
    uint16_t entries;        /* of the submission queue                                      */
    uint16_t sqhd;           /* its head                                                     */
    struct loop_timer timer; /* HELLO, CONNECT, authentication: time is up                   */
    bool is_passed;          /* authenticated                                                */
    uint64_t secret_id;      /* is_passed: key_id() of the secret that was proven            */
    bool auth_close;         /* FAILURE1 is on its way: the connection ends behind it        */
    struct nvmft_auth *auth; /* made by the first AUTH Send; owned                           */
    struct nvmft_ctrl *ctrl; /* joined; NULL before                                          */
    /* requests */
    uint8_t *slots; /* slot_count * slot_bytes; the first is for Connect            */
    uint32_t slot_count;
    uint32_t slots_touched; /* those behind were never used                                 */
    struct list reqs_free;  /* of the touched ones                                          */
    struct key *keys;       /* NVME_KV_EXIST_MANY_KEYS a slot; NULL before Connect          */
    uint32_t reqs_used;     /* not free                                                     */
    uint32_t reqs_held;     /* of them: async event requests                                */
    /* the command whose data is being received with it */
    bool incoming;               /* there is one                                            */
    struct nvmft_kv incoming_kv; /* the KV command that it belongs to                       */
    uint8_t incoming_keys[NVME_KV_EXIST_MANY_BYTES]; /* where data of exist-many goes       */
    uint8_t *incoming_buffer; /* where the data goes; owned; NULL: nowhere, or the transport's */
    uint64_t incoming_bytes;  /* size of that buffer                                     */
    uint32_t incoming_offset; /* where the data starts in it                             */
    enum nvmft_wait_class incoming_class; /* for whom it was taken                          */
    struct nvmft_flow *incoming_flow;     /* whose it is                                        */
    /* memory */
    uint64_t buffer_bytes;   /* of the pool, held by its requests                       */
    uint32_t host;           /* nvmft_ctrl.host; before Connect the last share          */
    struct nvmft_flow *flow; /* looked up last: of its host, or given to another        */
    struct list link;        /* the shard's list of open queue pairs                    */
    struct list watch_link;  /* the shard's list of those that are swept          */
    /* between this loop and loop 0 */
    struct loop_msg reg_msg;
    enum nvmft_reg_verb reg_verb;    /* what reg_msg says                                       */
    struct nvme_connect reg_connect; /* JOIN: what the host asks                                */
    uint16_t reg_status;             /* JOIN: the answer                                        */
    uint32_t reg_dw0;                /* JOIN: the answer                                        */
    /* loop 0's */
    struct nvmft_portal *portal; /* that it came through; read by any loop while it is open  */
    bool reg_counted;            /* it counts to the limit of its host; loop 0              */
    struct loop_msg proven_msg;  /* shard -> loop 0: it has authenticated                   */
    bool is_proven_sent;         /* that was sent, once                                     */
    struct loop_msg kill_msg;
    icms_err kill_why;           /* of the close: DEADLINE, CLOSED                          */
    icms_err reg_why;            /* LEAVE: how the connection ended                         */
    bool kill_busy;              /* kill_msg is on its way there and back                   */
    struct loop_msg tell_msg;    /* admin queue: its host has to be told of namespaces      */
    bool tell_busy;              /* that is on its way there and back                       */
    bool tell_again;             /* and there are more by now                               */
    bool left;                   /* LEAVE came                                              */
    struct list free_link;       /* registry: free slots of a shard                         */
    bool reg_tls;                /* JOIN: the connection is encrypted, its host proven       */
    struct list ctrl_link;       /* registry: queue pairs of a controller                   */
    struct nvmft_ctrl *reg_ctrl; /* registry: joined to                                     */
    uint16_t reg_qid;            /* registry: as which queue                                */
};

/* ---- one loop's part ------------------------------------------------------------------------ */

struct nvmft_counters {
    uint64_t ops[NVMF_TARGET_OP_COUNT][NVMF_TARGET_ERRS];
    struct hist op_ns[NVMF_TARGET_OP_COUNT];
    uint64_t misses[NVMF_TARGET_MISSES];
    uint64_t bytes_in, bytes_out, sheds, admin_commands, protocol_errors, timeouts, digest_errors;
    uint64_t slow_hosts, settings_differ;
    uint64_t buffers_used_bytes, buffers_parked, buffers_parks, prestage_parks;
    uint64_t prestage_expedites;
    uint64_t auths_passed, auths_failed, auths_wanted;
};

struct nvmft_shard {
    struct nvmf_target *target;
    struct loop *loop;
    struct nvmft_buffers buffers;
    bool waking;                /* buffers are being handed to parked commands                */
    struct nvmft_qpair *qpairs; /* qpair_count of them                                        */
    uint32_t qpair_count;
    struct list open;          /* queue pairs that are not free                              */
    struct list watched;       /* of them: those with something that may stall               */
    struct loop_timer timer;   /* sweeps those; all while draining; else it does not run     */
    uint64_t sweep_ns;         /* when it last did                                           */
    struct loop_msg drain_msg; /* from any thread: drain                                     */
    bool draining;
    struct loop_msg keys_msg; /* from the control thread: keys were replaced                 */
    _Atomic bool keys_sent;   /* it is on its way                                            */
    struct nvmft_counters counters; /* written here, read by any thread                        */
    struct net_tls_side tls;        /* handshakes of its connections; settings NULL: none      */
    struct list auth_waiting;       /* struct nvmft_auth in OFFER that wait for the worker     */
    struct list auth_replied;       /* in VERIFY, and of I/O queues: they go first             */
    struct list auth_paused;        /* found no place, the longest ago first                   */
    uint64_t auth_turn;             /* of the one of auth_waiting that went last               */
    uint32_t auth_waiting_count;    /* of the first list                                       */
    uint32_t auth_jobs;             /* that it has                                             */
    struct loop_timer auth_timer;   /* it was full of other work: tries again; a pause is over */
    struct list free;               /* loop 0's: free queue pairs                                 */
    uint32_t used;                  /* loop 0's: queue pairs handed out                           */
};

/* Losses that wait to be taken: written by loop 0, taken by one thread. */
struct nvmft_losses {
    struct nvmf_target_loss loss[NVMFT_LOSSES];
    _Atomic uint32_t written; /* ever                                   */
    _Atomic uint32_t taken;   /* ever                                   */
    _Atomic uint64_t missed;  /* found no place since the last was taken */
};

/* Authentications and refusals that wait to be taken. */
#define NVMFT_AUTH_EVENTS 64
struct nvmft_auth_events {
    pthread_mutex_t lock; /* of the rest; any loop writes, when an authentication ended */
    struct nvmf_target_auth event[NVMFT_AUTH_EVENTS];
    uint32_t first, count;
    uint64_t missed; /* found no place since the last was taken */
};

/* A host that is known, and its secrets: struct key_plain. */
struct nvmft_auth_host {
    char nqn[LIMIT_NQN_BYTES];
    uint8_t require;                  /* REQUIRE_*                     */
    struct secret **secrets;          /* any of them passes            */
    uint32_t secret_count;            /* of them                       */
    struct secret *controller_secret; /* ours towards it; NULL: none   */
};

/* All of them, ordered by NQN. */
struct nvmft_auth_hosts {
    struct nvmft_auth_host *host;
    uint32_t count;
    uint8_t require;      /* REQUIRE_* of a host that is not among them */
    bool asks_plain;      /* one of them, or those, authenticate without TLS */
    pthread_mutex_t lock; /* while the secrets of a host are replaced, or looked for */
    bool has_lock;
};

/* Hosts that may use a namespace: a hash table of places in its list of names. */
struct nvmft_host_set {
    char (*nqn)[LIMIT_NQN_BYTES]; /* the list                                             */
    uint32_t *slot;               /* place + 1; 0: none. Open addressing                  */
    uint32_t slots;               /* a power of two; 0: any host may                      */
};

/* A host that is connected. */
struct nvmft_host {
    char nqn[LIMIT_NQN_BYTES]; /* its name                                                      */
    uint32_t ctrls;            /* live controllers                                              */
    uint32_t qpairs;           /* joined to them, and proven where that is wanted               */
    uint32_t next;             /* number + 1 of the next in its bucket, or of the next unused   */
};

/* A setting that hosts told. */
struct nvmft_setting {
    _Atomic uint64_t kept; /* value << 32 | second in which it was told last; 0: never */
};

/* All of them: a hash table with chains. */
struct nvmft_hosts {
    struct nvmft_host *host; /* by number; as many as connections                             */
    uint32_t *bucket;        /* number + 1 of the first                                       */
    uint32_t buckets;        /* a power of two                                                */
    uint32_t unused;         /* number + 1 of the first that is unused                        */
};

/* All namespaces, as they are for some time: nothing in it changes. A change puts another one in
 * its place (spaces.c); a loop reads the pointer anew in each turn. */
struct nvmft_spaces {
    uint32_t count;  /* places that were ever used          */
    uint32_t active; /* of them: not gone                   */
    struct nvmf_target_ns ns[LIMIT_VOLUMES];
    struct nvmft_host_set hosts[LIMIT_VOLUMES]; /* who may use each of them */
};

struct nvmf_target {
    struct nvmf_target_opts opts;
    struct nvmft_spaces *_Atomic spaces; /* owned                                              */
    struct nvmft_rates *rates;  /* one a tenant, the last for admin commands: without limits */
    struct loop_region *region; /* all data buffers                                       */
    uint32_t capsule_bytes_max; /* data with a command; at least what fabrics asks for    */
    uint64_t staging_bytes;     /* of the transport's own, for one queue pair             */
    uint32_t io_offset;         /* where in a request the transport's part begins         */
    uint64_t slot_bytes;        /* of one request                                         */
    uint64_t buffer_bytes_max;  /* of the largest value                                   */
    struct nvmft_shard *shards;
    /* loop 0 */
    /* portal_count of the options */
    struct nvmft_portal portals[LIMIT_PORTALS];
    struct nvmft_ctrl *ctrls;     /* connections_max of them                             */
    struct list unproven;         /* controllers of those that prove nothing, oldest first */
    uint32_t unproven_count;      /* of them                                             */
    struct nvmft_hosts hosts;     /* connected ones, by nvmft_ctrl.host                  */
    uint32_t ctrl_next;           /* where the search for a free one starts              */
    _Atomic uint32_t connections; /* now                                                 */
    _Atomic uint64_t connections_total;
    uint64_t connections_full; /* counter.h: times that the last of them was taken       */
    _Atomic uint64_t connects_refused;
    _Atomic uint64_t keepalive_timeouts;
    _Atomic uint32_t controllers; /* now                                                 */
    _Atomic bool drain_asked;
    pthread_mutex_t slow_lock; /* slow_host; taken when a slow host was cut off, and to read it */
    char slow_host[LIMIT_NQN_BYTES];
    struct nvmf_target_differs differs; /* the last one; under slow_lock                       */
    uint16_t *listed; /* of nvmf_target_connected: place + 1 of a host, by nvmft_ctrl.host *
                         NVMFT_PROVEN + proven; under slow_lock                            */
    struct nvmft_setting enclosures, weights;       /* what hosts told                         */
    struct nvmft_setting run_blocks[LIMIT_VOLUMES]; /* likewise, by namespace                  */
    _Atomic uint64_t map;    /* of nvmf_target_epoch_set: pod << 32 | epoch            */
    struct nvmft_keys *keys; /* what hosts have to prove, and with what                */
    uint64_t instance;       /* a random number, told to hosts (nvme_ctrl.icms_instance) */
    uint64_t opened_ns;      /* when nvmf_target_open was called, for the hours in service  */
    struct nvmft_losses losses;
    struct nvmft_auth_hosts auth_hosts;
    struct nvmft_auth_events auth_events;
};

/* ---- settings.c ----------------------------------------------------------------------------- */

/* A host tells a setting; nsid: of NVME_FEATURE_ICMS_RUN_BLOCKS. NVMe status; *out_kept: what
 * others have. */
uint16_t nvmft_setting_tell(struct nvmft_ctrl *ctrl, struct nvmft_shard *shard,
                            const struct nvme_feature *feature, uint32_t *out_kept);

/* A host tells the epoch of its pod map, or 0; the last one counts. *out_epoch, *out_pod: what it
 * is answered with (NVME_FEATURE_ICMS_EPOCH). */
void nvmft_epoch_tell(struct nvmft_ctrl *ctrl, uint32_t epoch, uint32_t *out_epoch,
                      uint32_t *out_pod);

/* ---- spaces.c ------------------------------------------------------------------------------- */

/* Namespaces for a target that starts, or a change. NO_MEMORY. */
icms_err nvmft_spaces_new(const struct nvmf_target_ns *namespaces, uint32_t count,
                          struct nvmft_spaces **out_spaces) ICMS_MUST_CHECK;
void nvmft_spaces_free(struct nvmft_spaces **spaces);

/* As they are in this turn of the loop. */
static inline const struct nvmft_spaces *nvmft_spaces(const struct nvmf_target *target)
{
    return atomic_load_explicit(&target->spaces, memory_order_acquire);
}

/* The namespace in a place that a command may have or had. */
static inline const struct nvmf_target_ns *nvmft_ns(const struct nvmf_target *target, uint32_t ns)
{
    return &nvmft_spaces(target)->ns[ns];
}

/* The Changed Namespace List: a piece of it; the host read it unless it wants to keep it. On the
 * admin queue's loop. */
icms_err nvmft_spaces_log(struct nvmft_ctrl *ctrl, const struct nvme_log *log, void *out);

/* Whether the host has something to read there, of which it was not told. */
bool nvmft_spaces_news(const struct nvmft_ctrl *ctrl);

/* The controller begins anew: nothing has changed. */
void nvmft_spaces_forget(struct nvmft_ctrl *ctrl);

/* ---- keys.c --------------------------------------------------------------------------------- */

/* Reads the keys of hosts. CONFIG and others with a sentence. */
icms_err nvmft_keys_new(const struct nvmf_target_opts *opts, struct err_why *why,
                        struct nvmft_keys **out_keys) ICMS_MUST_CHECK;
void nvmft_keys_free(struct nvmft_keys **keys);

/* Reads the files again; opts: hosts and nqn as before. Control thread. */
icms_err nvmft_keys_read_again(struct nvmft_keys *keys, const struct nvmf_target_opts *opts,
                               nvmf_target_keys_said *said, void *arg,
                               struct err_why *why) ICMS_MUST_CHECK;

/* REQUIRE_* of a host. */
uint8_t nvmft_keys_require(const struct nvmft_keys *keys, const char *hostnqn);

/* Whether a key of this id is one of the host's now. Any thread. */
bool nvmft_keys_accept(struct nvmft_keys *keys, const char *hostnqn, uint64_t id);

/* Settings of handshakes; NULL: no host has a key. */
struct crypt_tls *nvmft_keys_tls(const struct nvmft_keys *keys);

/* Whether a host may come without TLS. */
bool nvmft_keys_allow_plain(const struct nvmft_keys *keys);
/* ---- auth_keys.c ---------------------------------------------------------------------------- */

/* Reads the secrets of hosts. CONFIG and others with a sentence; fini also after that. */
icms_err nvmft_auth_hosts_init(struct nvmft_auth_hosts *hosts, const struct nvmf_target_opts *opts,
                               struct err_why *why) ICMS_MUST_CHECK;
void nvmft_auth_hosts_fini(struct nvmft_auth_hosts *hosts);

/* Reads the files again; opts: hosts as before. NO_MEMORY: nothing changed. Control thread. */
icms_err nvmft_auth_hosts_read_again(struct nvmft_auth_hosts *hosts,
                                     const struct nvmf_target_opts *opts,
                                     nvmf_target_keys_said *said, void *arg,
                                     struct err_why *why) ICMS_MUST_CHECK;

/* Whether a secret of this id is one of the host's now. host may be NULL. Any thread. */
bool nvmft_auth_accepts(struct nvmft_auth_hosts *hosts, const struct nvmft_auth_host *host,
                        uint64_t id);

/* NULL: it is not known. */
const struct nvmft_auth_host *nvmft_auth_host(const struct nvmft_auth_hosts *hosts,
                                              const char *nqn);

/* REQUIRE_* of a host. */
uint8_t nvmft_auth_require(const struct nvmft_auth_hosts *hosts, const char *nqn);

/* ---- auth.c --------------------------------------------------------------------------------- */

/* Whether a queue pair may be used: it is authenticated, or need not be. */
bool nvmft_auth_passed(const struct nvmft_qpair *qpair);

/* Keeps an event for who takes them. Any loop. */
void nvmft_auth_event(struct nvmf_target *target, const struct nvmf_target_auth *event);

/* The same of a queue pair: host and result, no reason. */
void nvmft_auth_say(const struct nvmft_qpair *qpair, const char *hostnqn,
                    enum nvmf_target_auth_result result);

/* The commands AUTH Send and AUTH Receive. Leave the request in RESPOND, or in AUTH. */
void nvmft_auth_send(struct nvmft_req *req);
void nvmft_auth_receive(struct nvmft_req *req);

/* The queue pair did not authenticate in time; it is closed next. */
void nvmft_auth_timeout(struct nvmft_qpair *qpair);

/* Nothing of the queue pair is in flight any more. */
void nvmft_auth_free(struct nvmft_qpair *qpair);

/* The shard's auth_timer. */
void nvmft_auth_retry(struct loop_timer *timer);

/* ---- hosts.c -------------------------------------------------------------------------------- */

/* Who may use a namespace: the names of a list, which is copied, or with none any host. NO_MEMORY.
 */
icms_err nvmft_host_set_init(struct nvmft_host_set *set, const char (*nqn)[LIMIT_NQN_BYTES],
                             uint32_t count) ICMS_MUST_CHECK;
void nvmft_host_set_fini(struct nvmft_host_set *set);

/* Namespaces that a host may use that has proven this: REQUIRE_*. */
void nvmft_ns_allowed(const struct nvmft_spaces *spaces, const char *hostnqn, uint8_t proven,
                      struct nvmft_ns_set *out_allowed);

/* Whether namespace number ns is in the set; the lowest number in it, LIMIT_VOLUMES: it is empty.
 */
bool nvmft_ns_has(const struct nvmft_ns_set *set, uint32_t ns);
uint32_t nvmft_ns_first(const struct nvmft_ns_set *set);

/* Hosts that are connected, at most count at a time. NO_MEMORY; fini also after that. */
icms_err nvmft_hosts_init(struct nvmft_hosts *hosts, uint32_t count) ICMS_MUST_CHECK;
void nvmft_hosts_fini(struct nvmft_hosts *hosts);

/* Queue pairs of a host. */
uint32_t nvmft_hosts_qpairs(const struct nvmft_hosts *hosts, const char *nqn);

/* A controller of the host begins; returns the host's number, and rele ends it. */
uint32_t nvmft_hosts_hold(struct nvmft_hosts *hosts, const char *nqn);
void nvmft_hosts_rele(struct nvmft_hosts *hosts, uint32_t number);

/* ---- buffers.c ------------------------------------------------------------------------------ */

/* All of a loop: memory of bytes, for so many hosts and the tenants of its target. NO_MEMORY; fini
 * also after that. */
icms_err nvmft_buffers_init(struct nvmft_shard *shard, void *memory,
                            uint64_t bytes) ICMS_MUST_CHECK;
void nvmft_buffers_fini(struct nvmft_buffers *buffers);

/* Commands of the queue pair are of this host from now on; nothing of it is parked. NULL: of none.
 */
void nvmft_buffers_host(struct nvmft_qpair *qpair, const struct nvmft_ctrl *ctrl);

/* Number of the tenant of admin commands. */
uint32_t nvmft_tenant_admin(const struct nvmft_shard *shard);

/* Gives req a buffer of bytes when it is the tenant's turn, or parks it (false): then nvmft_req_run
 * is called when it has one. */
bool nvmft_buffers_take(struct nvmft_req *req, uint32_t tenant, enum nvmft_wait_class class,
                        uint64_t bytes);

/* A buffer for data that comes with a command (qpair->incoming_*), without parking; NULL: none now,
 * or it is somebody else's turn. */
uint8_t *nvmft_buffers_try(struct nvmft_qpair *qpair, uint32_t tenant, enum nvmft_wait_class class,
                           uint64_t bytes);

/* The data is there, and the buffer is the command's. */
void nvmft_buffers_adopt(struct nvmft_req *req);

/* Takes a parked request out of its list. */
void nvmft_buffers_unpark(struct nvmft_req *req);

/* Gives the buffer of a request back and wakes who waits. */
void nvmft_buffers_give(struct nvmft_req *req);

/* The same for a buffer that has no request yet. */
void nvmft_buffers_give_raw(struct nvmft_qpair *qpair);

/* From here on the request waits for its host; no more. */
void nvmft_buffers_hosted(struct nvmft_req *req);
void nvmft_buffers_unhosted(struct nvmft_req *req);

/* A load of a key that is not there had no turn: its host owes one. */
void nvmft_buffers_owe(struct nvmft_qpair *qpair);

/* Whether the host of a queue pair owes a turn; then it is paid with the command that asks. */
bool nvmft_buffers_pay(struct nvmft_qpair *qpair);

/* Whether one more parked store of the tenant has to be shed. */
bool nvmft_backlog_full(const struct nvmft_shard *shard, uint32_t tenant, uint64_t bytes);

/* ---- req.c ---------------------------------------------------------------------------------- */

void nvmft_req_run(struct nvmft_req *req);

/* Ends a request with a status: the next nvmft_req_run answers it. */
void nvmft_req_fail(struct nvmft_req *req, uint16_t status);
void nvmft_req_fail_err(struct nvmft_req *req, icms_err err, enum icms_miss reason);

/* The header of a command with data is here: parses and checks the command, and says what its data
 * needs. False: the data is dropped; else bytes of buffer and where the data goes in it. 0 bytes:
 * it goes to incoming_keys. */
bool nvmft_req_capsule_room(struct nvmft_qpair *qpair, const struct nvme_sqe_wf *sqe,
                            uint32_t data_bytes, uint64_t *out_bytes, uint32_t *out_offset);

/* The connection is gone: ends what waits for it; what is with the owner ends by itself. */
void nvmft_req_abandon(struct nvmft_req *req);

/* ---- qpair.c -------------------------------------------------------------------------------- */

/* staging: memory of its transport, for the data of one command. NO_MEMORY. */
icms_err nvmft_qpair_init(struct nvmft_qpair *qpair, struct nvmft_shard *shard,
                          uint8_t *staging) ICMS_MUST_CHECK;

/* On the shard's loop: the message from loop 0. */
void nvmft_qpair_open(struct loop_msg *msg);
void nvmft_qpair_joined(struct loop_msg *msg);
void nvmft_qpair_killed(struct loop_msg *msg);
void nvmft_qpair_tell(struct loop_msg *msg);
void nvmft_qpair_close(struct nvmft_qpair *qpair, icms_err why);

/* Keys were replaced: closes it, with an event, when it proved one that is none any more. */
void nvmft_qpair_judge(struct nvmft_qpair *qpair);

/* A request is over: its slot is free, and whatever waited for that goes on. */
void nvmft_qpair_req_free(struct nvmft_req *req);

/* Answers a Connect command; takes it to the registry. */
void nvmft_qpair_connect(struct nvmft_req *req);

/* Something of it may stall, or waits for others: it is swept until nothing does any more. */
void nvmft_qpair_watch(struct nvmft_qpair *qpair);

/* Looks for stalled commands, passed deadlines, and whether it can close; false when there is
 * nothing to look after any more. step_ns: time since the last sweep, as far as it counts against
 * a host. */
bool nvmft_qpair_sweep(struct nvmft_qpair *qpair, uint64_t now_ns, uint64_t step_ns);

#define NVMFT_SWEEP_NS ((uint64_t)100 * 1000 * 1000)

/* ---- pace.c --------------------------------------------------------------------------------- */

/* Counts so much time for the commands that wait for their host; false: the host was too slow and
 * the connection is closed. out_busy: some do wait. */
bool nvmft_pace_sweep(struct nvmft_qpair *qpair, uint64_t step_ns, bool *out_busy);

/* Memory for the keys of a request of an I/O queue: they wait in it without a buffer. */
struct key *nvmft_qpair_keys(const struct nvmft_req *req);

/* The slot of a queue pair. */
struct nvmft_req *nvmft_qpair_slot(struct nvmft_qpair *qpair, uint32_t index);

/* After the loops were freed. */
void nvmft_qpair_fini(struct nvmft_qpair *qpair);

/* ---- registry.c: loop 0 --------------------------------------------------------------------- */

icms_err nvmft_registry_init(struct nvmf_target *target);
void nvmft_registry_accept(struct nvmf_listener *listener);

/* Other namespaces are there: what hosts may use is worked out anew, and they are told. was: those
 * before. */
void nvmft_registry_spaces(struct nvmf_target *target, const struct nvmft_spaces *was);
void nvmft_registry_told(struct loop_msg *msg);

/* A queue pair's message: NVMFT_REG_JOIN or NVMFT_REG_LEAVE. */
void nvmft_registry_join(struct loop_msg *msg);
void nvmft_registry_proven(struct loop_msg *msg);
void nvmft_registry_leave(struct loop_msg *msg);
void nvmft_registry_killed(struct loop_msg *msg);

/* The host changes its keep-alive timeout. On the admin queue's loop. */
void nvmft_registry_kato(struct nvmft_ctrl *ctrl, uint32_t kato_ms);

/* CC.EN went from 1 to 0: ends the I/O queues. On the admin queue's loop. */
void nvmft_registry_reset(struct nvmft_ctrl *ctrl);

/* ---- admin.c -------------------------------------------------------------------------------- */

/* Bytes of buffer that an admin or fabrics command needs for its answer; 0: none. */
uint32_t nvmft_admin_room(const struct nvmft_req *req);

/* Executes one: sets status, dw0, dw1, and data_bytes when the buffer holds data for the host. May
 * leave the request in HELD. */
void nvmft_admin_execute(struct nvmft_req *req);

/* Answers held async event requests with what the host has to be told. On the queue pair's loop. */
void nvmft_admin_tell(struct nvmft_qpair *qpair);

/* ---- identify.c ----------------------------------------------------------------------------- */

/* Data of Identify into a page; the status to answer. */
uint16_t nvmft_identify(const struct nvmft_ctrl *ctrl, struct nvmf_target *target,
                        const struct nvme_sqe_wf *sqe, uint8_t out_page[NVME_PAGE_BYTES]);

/* Critical warnings that hold now: NVME_HEALTH_*. */
uint8_t nvmft_warnings(const struct nvmf_target *target);

/* A piece of a log page for the host of an admin queue; the status to answer. */
uint16_t nvmft_log(struct nvmft_qpair *qpair, const struct nvme_log *log, void *out);

#endif
