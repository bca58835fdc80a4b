/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/target.h: the NVMe-oF side of an enclosure: one subsystem with Key-Value namespaces, and
 * discovery on the same ports. It knows NVMe and no storage: commands go to an owner.
 *
 * Portals. It listens on one address or several. All of them lead to the same subsystem, with the
 * same namespaces and controller ids; discovery lists them all, and all of them are optimized
 * (ANA). A portal that fails costs the connections through it, and nothing else.
 *
 * Threads. The target runs on loops that the owner made. A connection belongs to one of them; its
 * commands reach the owner on that loop and are given back on it. Controllers are kept on loop 0.
 * nvmf_target_new, _open and _free run while the loops stand still; functions that say "any thread"
 * are what they say.
 *
 * Memory. Everything is bounded by the options: queue pairs, request slots, and one region of data
 * buffers, split among the loops. When it is used up commands are parked, never failed and never
 * grown; stores beyond a backlog are shed (NVMe "command interrupted", DW1 = ICMS_MISS_SHED).
 */
#ifndef NVMF_TARGET_H
#define NVMF_TARGET_H

#include "base/hist.h"
#include "base/types.h"
#include "loop/loop.h"

struct nvmf_target;

/* ---- commands, as the owner sees them ------------------------------------------------------- */

enum nvmf_target_op {
    NVMF_TARGET_STORE,      /* take value_bytes at memory + headroom_bytes                       */
    NVMF_TARGET_RETRIEVE,   /* find the value and say where it is                                */
    NVMF_TARGET_EXIST,      /* OK or MISS                                                        */
    NVMF_TARGET_EXIST_MANY, /* keys[key_count]; bit i of map: key i is there                     */
    NVMF_TARGET_DELETE,     /* OK, or MISS when it, or its record, was not there                 */
    NVMF_TARGET_LIST,       /* write list data (wire/nvme_kv.h) at memory, host_bytes at most    */
    NVMF_TARGET_FLUSH,      /* make what was stored before durable                               */
    NVMF_TARGET_OP_COUNT,
};

/* "store", "retrieve", ...: as in metrics; never NULL. */
const char *nvmf_target_op_name(enum nvmf_target_op op);

#define NVMF_TARGET_IF_EXISTS 0x01u /* STORE: MISS when the key is not there */
#define NVMF_TARGET_IF_ABSENT 0x02u /* STORE: EXISTS when it is              */

/* One command. The owner gets it from ops.kv and gives it back once with nvmf_target_req_done, on
 * the same loop, from inside kv or later. In between it is the owner's, on any loop. */
struct nvmf_target_req {
    /* in */
    enum nvmf_target_op op;
    uint32_t ns;            /* which of opts.namespaces                                          */
    struct key key;         /* LIST: the first key wanted; length 0: from the beginning          */
    uint32_t options;       /* NVMF_TARGET_IF_*                                                  */
    enum io_class io_class; /* who waits                                                         */
    uint64_t deadline_ns;   /* loop_now_ns time after which nobody wants it; 0: none             */
    uint8_t *memory;        /* the buffer, page aligned; NULL: EXIST, EXIST_MANY, FLUSH, and
                               RETRIEVE until the owner said how much it takes                   */
    uint64_t memory_bytes;  /* its size: STORE ops.buffer_bytes(value_bytes), DELETE one page    */
    uint32_t value_bytes;   /* STORE: bytes of the value                                         */
    uint32_t host_bytes;    /* RETRIEVE, LIST: room at the host                                  */
    const struct key *keys; /* EXIST_MANY                                                        */
    uint32_t key_count;     /* EXIST_MANY: 1..64                                                 */
    uint32_t only_record;   /* DELETE: delete only this one (record); 0: whatever is there       */
    struct loop *loop;      /* where it came from and has to be given back                       */
    bool unwanted;          /* its host is gone: a long command may end now. Read it on loop only */
    /* out: set before nvmf_target_req_done; value, done_bytes, record: before the first
     * nvmf_target_req_more */
    icms_err err;          /* as the table maps it to NVMe                                       */
    enum icms_miss reason; /* why, with MISS, BUSY, DRIVE_DOWN, ...: travels in DW1              */
    const uint8_t *value;  /* RETRIEVE: where it is, LIST: memory; stays until ops.sent or, when
                              it lies in memory, until the buffer goes back by itself            */
    uint64_t done_bytes;   /* RETRIEVE: bytes of the whole value; LIST: bytes of list data.
                              RETRIEVE with VALUE_SIZE: bytes of memory that it takes; it comes
                              again with that much. Not from an owner that has the value         */
    uint64_t map;          /* EXIST_MANY: bit i: key i exists                                    */
    uint32_t record;       /* RETRIEVE: names the record that was read; 0: it has no name        */
};

/* RETRIEVE: the first bytes of the value may be sent, before the command is given back; then value,
 * done_bytes and record stay as they are. Any number of times, bytes never fewer than before, not
 * from inside kv; on req->loop. What ends the data is sent when the command is given back: with an
 * error the host gets neither the rest nor a word of success. */
void nvmf_target_req_more(struct nvmf_target_req *req, uint32_t bytes);

/* Gives a command back. */
void nvmf_target_req_done(struct nvmf_target_req *req);

/* The owner's own part of a command (opts.owner_req_bytes): zeroed when the queue pair is made, not
 * for each command. Aligned to 16. */
void *nvmf_target_req_area(struct nvmf_target_req *req);

/* What the owner knows of its media, for the SMART / health log. */
struct nvmf_target_health {
    uint8_t spare_percent; /* of the media, in service: 0..100         */
    bool degraded;         /* some of the media is out of service      */
    uint64_t media_errors; /* checksums that did not match             */
};

struct nvmf_target_ops {
    /* A command. On its loop. */
    void (*kv)(void *owner, struct nvmf_target_req *req);

    /* The transport does not touch req->value any more, sent or not. NULL: not of interest. Once
     * after each nvmf_target_req_done. On its loop. */
    void (*sent)(void *owner, struct nvmf_target_req *req);

    /* Bytes in use of a namespace, for Identify. Any thread. */
    uint64_t (*used_bytes)(void *owner, uint32_t ns);

    /* State of the media. NULL: nothing is known, all is well. Any thread. */
    void (*health)(void *owner, struct nvmf_target_health *out_health);

    /* Bytes of the buffer that a value needs, headroom included. Pure. */
    uint64_t (*buffer_bytes)(uint64_t value_bytes);
};

/* ---- the target ----------------------------------------------------------------------------- */

/* A KV namespace: one volume's part in this enclosure. Its NSID is its place in the list, from 1.
 */
struct nvmf_target_ns {
    bool is_gone;             /* there is none any more, or was none yet; tenant counts, for
                                 commands that began before                                      */
    struct uuid volume;       /* its name                                                        */
    uint64_t size_bytes;      /* quota, as Identify tells it                                     */
    uint32_t value_bytes_max; /* largest value, trailer included                                 */
    bool sealed;              /* values end in a trailer; only told to hosts                     */
    bool encrypted;           /* clients encrypt them; only told to hosts                        */
    uint32_t tenant;          /* whose it is: its place in opts.tenants                          */
    uint32_t host_count;      /* 0: any host may use it                                          */
    const char (*host_nqn)[LIMIT_NQN_BYTES]; /* hosts that may; copied                           */
    uint8_t require; /* REQUIRE_*: without it the namespace does not exist for a host       */
};

/* A host that is known. */
struct nvmf_target_host {
    char nqn[LIMIT_NQN_BYTES];
    uint8_t require;                      /* REQUIRE_*                                      */
    const char (*psks)[LIMIT_PATH_BYTES]; /* files of its TLS keys; any of them passes; read by
                                             nvmf_target_new                                     */
    uint32_t psk_count;
    const char (*secrets)[LIMIT_PATH_BYTES]; /* files of its DHHC-1 secrets; any of them passes;
                                                read by nvmf_target_new                          */
    uint32_t secret_count;
    const char *controller_secret; /* file of ours towards it; NULL: it cannot ask for one       */
};

/* What a tenant's commands are counted and limited by. */
enum nvmf_target_class {
    NVMF_TARGET_LOADS, /* all but stores */
    NVMF_TARGET_STORES,
    NVMF_TARGET_CLASSES,
};

/* A tenant: namespaces that have one part together. When commands of several tenants wait, each
 * gets a part of the bytes by its weight. */
struct nvmf_target_tenant {
    uint32_t weight;                           /* 1..FAIR_WEIGHT_MAX                             */
    uint64_t bytes_per_s[NVMF_TARGET_CLASSES]; /* limit, in whole pages of a command; 0: none    */
    uint64_t ops_per_s[NVMF_TARGET_CLASSES];   /* limit of commands with data; 0: none           */
};

struct nvmf_target_transport;

/* An address of the subsystem. Its port id is its place in the list, from 1. */
struct nvmf_target_portal {
    struct loop_addr listen;    /* data port                                                   */
    struct loop_addr advertise; /* what discovery tells. No host, or a wildcard: as listen, and if
                                   that is a wildcard, the address that the host connected to; port
                                   0: as listen                                                */
};

struct nvmf_target_opts {
    const struct nvmf_target_transport *transport; /* of connections                             */
    struct loop **loops; /* where connections live; loop 0 listens                               */
    uint32_t loop_count;
    /* 1 or more addresses. */
    struct nvmf_target_portal portals[LIMIT_PORTALS];
    uint32_t portal_count;
    const char *nqn;                          /* of the subsystem                                 */
    const char *serial;                       /* 20 characters at most                            */
    const char *model;                        /* 40 characters at most                            */
    const char *firmware;                     /* 8 characters at most                             */
    struct uuid enclosure;                    /* goes into each NGUID                             */
    const struct nvmf_target_ns *namespaces;  /* copied                                           */
    uint32_t namespace_count;                 /* LIMIT_VOLUMES at most                            */
    const struct nvmf_target_tenant *tenants; /* read by nvmf_target_new                         */
    uint32_t tenant_count; /* 0: one, of weight 1                                        */
    const struct nvmf_target_host *hosts; /* read by nvmf_target_new                         */
    uint32_t host_count;
    uint8_t require;        /* REQUIRE_*: of hosts that are not listed                 */
    uint8_t auth_hashes[3]; /* of DH-HMAC-CHAP, best first: 1 SHA-256 .. 3 SHA-512     */
    uint32_t auth_hash_count;
    uint8_t auth_groups[6]; /* best first: 0 none, 1 ffdhe2048 .. 5 ffdhe8192          */
    uint32_t auth_group_count;
    uint32_t connections_max;      /* queue pairs, all hosts together                            */
    uint32_t host_connections_max; /* queue pairs of one host                                    */
    uint32_t queue_entries_max;    /* commands a queue pair                                      */
    uint32_t in_capsule_bytes;     /* data that may come with a command; multiple of 16          */
    uint64_t memory_bytes;         /* region of data buffers                                     */
    uint64_t store_backlog_bytes;  /* stores parked on one loop before the next are shed         */
    struct net_marks marks;     /* of connections, by the priority that their Connect names     */
    uint32_t header_timeout_ms; /* a started command and Connect have to be whole by then     */
    uint32_t stall_timeout_ms;  /* a peer that neither takes nor sends what it has to: closed */
    uint32_t headroom_bytes;    /* in front of a stored value                                 */
    uint32_t owner_req_bytes;   /* of nvmf_target_req_area                                    */
    const struct nvmf_target_ops *ops;
    void *owner; /* of the ops                                                                   */
};

/* Defaults: TCP, one portal, limits and names; loops, its address, nqn, namespaces and ops are the
 * caller's. */
void nvmf_target_opts_init(struct nvmf_target_opts *opts);

/* Whether the keys of hosts can be used, as nvmf_target_new asks. CONFIG, NOT_FOUND, PERMISSION,
 * ... with a sentence. Blocking: reads files. */
icms_err nvmf_target_keys_check(const struct nvmf_target_opts *opts,
                                struct err_why *why) ICMS_MUST_CHECK;

/* Keys of a host were read again: why NULL: others are used from now on; else its keys stay as they
 * were, and why says what to do. */
typedef void nvmf_target_keys_said(void *arg, const char *hostnqn, const char *why);

/* Reads the files of the hosts again, of nvmf_target_new's options. New connections and proofs need
 * the keys that are there now, and connections that proved another one end, each with an event; the
 * others stay. Of a host of which one file is not right, or a secret is what another host knows of
 * this target, all keys of that kind stay as they were. Fails only when nothing could be read. One
 * control thread, once the loops run; blocking. */
icms_err nvmf_target_keys_read_again(struct nvmf_target *target,
                                     const struct nvmf_target_opts *opts,
                                     nvmf_target_keys_said *said, void *arg,
                                     struct err_why *why) ICMS_MUST_CHECK;

/* Takes all memory. Before the loops start. CONFIG when the memory is too small for the largest
 * value, with the number that would do. */
icms_err nvmf_target_new(const struct nvmf_target_opts *opts, struct err_why *why,
                         struct nvmf_target **out_target) ICMS_MUST_CHECK;

/* The region that all buffers lie in: for loop_region_register and store_opts. */
struct loop_region *nvmf_target_region(struct nvmf_target *target);

/* Listens, on every portal or on none. Before the loops start; connections are served from then on.
 * ADDRESS_IN_USE and the like with a sentence. */
icms_err nvmf_target_open(struct nvmf_target *target, struct err_why *why) ICMS_MUST_CHECK;

/* Where a portal listens (the port, when 0 was asked for), by its place in the list. After
 * nvmf_target_open. */
void nvmf_target_addr(const struct nvmf_target *target, uint32_t portal,
                      struct loop_addr *out_addr);

/* No new connections; each one that is there is closed as soon as nothing of it is in flight, and
 * commands that come meanwhile are answered. Any thread, once the loops run. */
void nvmf_target_drain(struct nvmf_target *target);

/* True when there is no connection. Any thread. */
bool nvmf_target_idle(const struct nvmf_target *target);

/* After loop_free of every loop. *target may be NULL. */
void nvmf_target_free(struct nvmf_target **target);

/* ---- namespaces that change ------------------------------------------------------------------ */

/* The life of a namespace. Its NSID is its place in the list, for good:
 *
 *   unused -> active    nvmf_target_new, or a change in whose list it is not gone any more
 *   active -> active    a change: other hosts may use it, another size, ...
 *   active -> gone      a change in which it is gone: new commands get Invalid Namespace or Format;
 *                       those that began before are the owner's until it gives them back
 *   gone -> active      a change: the same volume is back, for the owner as it was
 *
 * A host is told when a namespace that it may use, or might, came, went or changed: by the event
 * Namespace Attribute Changed, if it asked for that, and the log page Changed Namespace List.
 * Others learn nothing. */
struct nvmf_target_change;

/* Prepares one: all namespaces as they shall be, and all tenants, as many as at the start; both are
 * copied. The volume of a place never changes, and no value may be larger than the largest of
 * nvmf_target_new. NO_MEMORY. Control thread. */
icms_err nvmf_target_change_new(const struct nvmf_target *target,
                                const struct nvmf_target_ns *namespaces, uint32_t namespace_count,
                                const struct nvmf_target_tenant *tenants, struct err_why *why,
                                struct nvmf_target_change **out_change) ICMS_MUST_CHECK;

/* Applies it, one at a time, on loop 0. done is called exactly once, there, when every loop takes
 * new commands as it says; then the caller frees it. */
void nvmf_target_change_start(struct nvmf_target *target, struct nvmf_target_change *change,
                              void (*done)(void *arg), void *arg);

/* Before the start or after done; *change may be NULL. Any thread. */
void nvmf_target_change_free(struct nvmf_target_change **change);

/* ---- lost controllers ----------------------------------------------------------------------- */

/* An I/O controller that ended without a shutdown by its host. */
struct nvmf_target_loss {
    char hostnqn[LIMIT_NQN_BYTES]; /* whose: printable, without spaces                            */
    struct loop_addr portal;       /* where that connection came in, as it is listened on         */
    uint16_t cntlid;               /* controller                                                  */
    uint16_t qid;                  /* of the connection that ended first; 0: admin queue          */
    bool keep_alive;               /* no command came within the keep-alive timeout               */
    icms_err why;                  /* else: how that connection ended: RESET, PROTOCOL, DEADLINE  */
};

/* The oldest loss that was not taken yet; false: none. A few are kept; *out_missed is how many
 * found no place since the last one was taken. One thread at a time, any one. */
bool nvmf_target_loss_take(struct nvmf_target *target, struct nvmf_target_loss *out_loss,
                           uint64_t *out_missed);

/* ---- settings that hosts share -------------------------------------------------------------- */

/* Agents find a block at the same place only while they have the same enclosures, weights and
 * run_blocks. Each tells its values when it connects, and again and again while it is connected.
 * Life of a value: the first host that tells one has it kept; as long as some host tells the same
 * again within NVMF_TARGET_SETTING_NS, whoever tells another one is answered with the kept one, and
 * differs. After that time the next one that is told is kept. So there is no state for each host,
 * hosts that tell nothing are of no account, and a change that reaches one host after the other is
 * over when the last one has it: a host whose enclosures or weights change while it is connected
 * counts as differing only if they still do after twice that time, whatever else it tells
 * meanwhile. Told values are compared and nothing else: a lie costs a line in a log. */
#define NVMF_TARGET_SETTING_NS ((uint64_t)60 * 1000 * 1000 * 1000)

/* A host that told another value than others. */
struct nvmf_target_differs {
    char hostnqn[LIMIT_NQN_BYTES]; /* who: printable, without spaces                              */
    uint8_t feature;               /* NVME_FEATURE_ICMS_*; 0: none did                            */
    uint32_t ns;                   /* RUN_BLOCKS: which of opts.namespaces                        */
    uint32_t value, kept;          /* what it told, what others have                              */
};

/* The pod map that the target follows, which hosts are answered with when they tell the epoch of
 * theirs: pod_name_hash() of its pod; 0: there is none. Any thread. */
void nvmf_target_epoch_set(struct nvmf_target *target, uint32_t pod, uint32_t epoch);

/* The last one that stats.settings_differ counted. Any thread. */
void nvmf_target_differs(struct nvmf_target *target, struct nvmf_target_differs *out_differs);

/* ---- authentication ------------------------------------------------------------------------- */

enum nvmf_target_auth_result {
    NVMF_TARGET_AUTH_PASSED,         /* the host proved itself                                    */
    NVMF_TARGET_AUTH_MUTUAL,         /* and so did we                                             */
    NVMF_TARGET_AUTH_UNKNOWN,        /* no secret to compare with                                 */
    NVMF_TARGET_AUTH_WRONG,          /* none of its secrets                                       */
    NVMF_TARGET_AUTH_NO_ANSWER,      /* right, but we have no secret to answer it with            */
    NVMF_TARGET_AUTH_PROTOCOL,       /* what it sent made no sense                                */
    NVMF_TARGET_AUTH_NOTHING_COMMON, /* no hash or group in common                                */
    NVMF_TARGET_AUTH_REFUSED,        /* it did not take our answer                                */
    NVMF_TARGET_AUTH_BUSY,           /* too many wait for computations: it may try again          */
    NVMF_TARGET_AUTH_TIMEOUT,        /* it did not come to an end in time                         */
    NVMF_TARGET_AUTH_REPLACED,       /* a connection ended: its secret is none any more           */
    NVMF_TARGET_AUTH_TLS,            /* a controller of the host whose TLS key was proven         */
    NVMF_TARGET_AUTH_TLS_FAILED,     /* a handshake failed                                        */
    NVMF_TARGET_AUTH_TLS_OTHER,      /* Connect names another host or subsystem than the TLS key  */
    NVMF_TARGET_AUTH_TLS_REPLACED,   /* a connection ended: its key is none any more              */
    NVMF_TARGET_AUTH_NO_TLS,         /* Connect without TLS, which is required of the host        */
    NVMF_TARGET_AUTH_NO_VOLUME,      /* Connect of a host that may use no volume, or elsewhere    */
    NVMF_TARGET_AUTH_NAMESPACE,      /* a command to a namespace that the host may not use; once a
                                        controller                                                */
};

/* Whether it let the host in. */
bool nvmf_target_auth_is_pass(enum nvmf_target_auth_result result);

/* How it was to be proven: "chap" or "tls"; NULL: it is about what the host may use. */
const char *nvmf_target_auth_method(enum nvmf_target_auth_result result);

/* For people; never NULL. */
const char *nvmf_target_auth_text(enum nvmf_target_auth_result result);

/* An authentication that ended, or a refusal. */
struct nvmf_target_auth {
    char hostnqn[LIMIT_NQN_BYTES]; /* who it says it is: printable, without spaces; "": nobody  */
    char why[96];                  /* of a handshake that failed; ""                            */
    struct loop_addr peer;         /* from where; no host: not known                            */
    uint16_t cntlid;               /* controller                                                */
    uint16_t qid;                  /* queue pair; 0: admin                                      */
    enum nvmf_target_auth_result result;
};

/* The oldest that was not taken yet; false: none. Some are kept; *out_missed is how many found no
 * place since the last one was taken. Any thread. */
bool nvmf_target_auth_take(struct nvmf_target *target, struct nvmf_target_auth *out_auth,
                           uint64_t *out_missed);

/* ---- counters ------------------------------------------------------------------------------- */

#define NVMF_TARGET_ERRS   64 /* room for every row of ICMS_ERR_MAP  */
#define NVMF_TARGET_MISSES 16 /* room for every row of ICMS_MISS_MAP */

/* Of one portal. */
struct nvmf_target_portal_stats {
    struct loop_addr addr;      /* where it listens; no host before nvmf_target_open */
    uint64_t connections;       /* now                                               */
    uint64_t connections_total; /* ever accepted                                     */
};

struct nvmf_target_stats {
    uint64_t ops[NVMF_TARGET_OP_COUNT][NVMF_TARGET_ERRS]; /* finished commands by their end      */
    struct hist op_ns[NVMF_TARGET_OP_COUNT]; /* from parsed to answered                          */
    uint64_t misses[NVMF_TARGET_MISSES];     /* by reason: retrieves and exists                  */
    uint64_t bytes_in;                       /* values received                                  */
    uint64_t bytes_out;                      /* values sent                                      */
    uint64_t sheds;                          /* stores refused because of the backlog            */
    uint64_t admin_commands;                 /* admin and fabrics commands                       */
    uint64_t connections;                    /* now                                              */
    uint64_t connections_total;              /* ever accepted                                    */
    uint64_t connections_max;                /* of the options                                   */
    uint64_t connections_full;               /* times that the last of them was taken            */
    uint64_t controllers;                    /* now                                              */
    uint64_t connects_refused;               /* Connect commands refused                         */
    uint64_t auths_passed;                   /* authentications of queue pairs that passed       */
    uint64_t auths_failed;                   /* that failed, or did not end in time              */
    uint64_t auths_wanted;                   /* commands refused: not authenticated              */
    uint64_t keepalive_timeouts;             /* controllers that went silent                     */
    uint64_t protocol_errors;                /* connections ended because the peer broke it      */
    uint64_t timeouts;                       /* connections ended because the peer stalled       */
    uint64_t digest_errors;                  /* data digests that did not match                  */
    uint64_t slow_hosts;                     /* connections ended because data moved too slowly  */
    uint64_t settings_differ;    /* controllers whose host shares a setting with no other */
    uint64_t tls_succeeded;      /* handshakes                                       */
    uint64_t tls_refused;        /* handshakes that failed: key, version, garbage    */
    uint64_t tls_plain;          /* of them those that did not begin with TLS        */
    uint64_t tls_timeouts;       /* handshakes that took too long                    */
    uint64_t tls_evicted;        /* handshakes that were ended for newer ones        */
    uint64_t tls_kernel;         /* connections now whose records the kernel makes   */
    uint64_t tls_mixed;          /* and opens; that it only makes;                   */
    uint64_t tls_user;           /* that OpenSSL makes and opens                     */
    uint64_t buffers_bytes;      /* size of the pools                                */
    uint64_t buffers_used_bytes; /* handed out now                                   */
    uint64_t buffers_parked;     /* commands waiting for a buffer now                */
    uint64_t buffers_parks;      /* commands that ever waited                        */
    uint64_t prestage_parks;     /* of them: loads of class PRESTAGE                 */
    uint64_t prestage_expedites; /* of these: that became loads, as a host asked     */
    uint32_t portal_count;
    struct nvmf_target_portal_stats portals[LIMIT_PORTALS]; /* by port id */
};

/* Adds up all loops. Any thread; numbers a moment old. */
void nvmf_target_stats(const struct nvmf_target *target, struct nvmf_target_stats *out_stats);

/* Of one tenant, by class. */
struct nvmf_target_tenant_stats {
    uint64_t ops[NVMF_TARGET_CLASSES]; /* commands that succeeded: loads and stores of values    */
    uint64_t bytes[NVMF_TARGET_CLASSES];   /* values sent, received   */
    uint64_t waits[NVMF_TARGET_CLASSES];   /* commands that waited for their turn or for memory;
                                              not those of class PRESTAGE, which is to wait */
    uint64_t wait_ns[NVMF_TARGET_CLASSES]; /* how long, together */
    uint64_t sheds; /* stores refused because too many waited                 */
};

/* Adds up all loops. Any thread; numbers a moment old. */
void nvmf_target_tenant_stats(const struct nvmf_target *target, uint32_t tenant,
                              struct nvmf_target_tenant_stats *out_stats);

/* A host that is served: its I/O controllers that have proven the same. Who has to authenticate and
 * has not is not among them. */
struct nvmf_target_connected {
    char hostnqn[LIMIT_NQN_BYTES]; /* printable, without spaces                                   */
    uint8_t proven;                /* REQUIRE_*: how it has proven its name                       */
    uint32_t controllers;
    uint32_t connections; /* of those                                                             */
    uint64_t age_ns;      /* of the first of those that are there now                             */
    bool has_epoch;       /* one of them told the epoch of its pod map, or (0) that it has none   */
    uint32_t epoch_min, epoch_max; /* of those: two while another one is told, or where hosts share
                                      a name                                                      */
};

#define NVMF_TARGET_CONNECTED 1024

/* The hosts that are served now, in no order; returns how many of them are in out. *out_more:
 * controllers of hosts that have no place there. now_ns: by the clock of the loops. Any thread. */
uint32_t nvmf_target_connected(struct nvmf_target *target, uint64_t now_ns,
                               struct nvmf_target_connected out[NVMF_TARGET_CONNECTED],
                               uint32_t *out_more);

/* The host whose connection was the last that slow_hosts counted; "": none yet. Any thread. */
void nvmf_target_slow_host(struct nvmf_target *target, char out_hostnqn[LIMIT_NQN_BYTES]);

#endif
