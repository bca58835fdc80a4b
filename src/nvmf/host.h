/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/host.h: the initiator. One struct nvmf_ctrl is one association with one subsystem: an admin
 * queue pair and one I/O queue pair a class (enum io_class), each a connection of its own, all
 * on one loop. It finds the Key-Value namespaces and the volumes they belong to, keeps the
 * association alive, tells a busy peer from a dead one, and moves values.
 *
 * Threads. Everything runs on the loop given to nvmf_ctrl_new. Callbacks never run inside the call
 * that caused them.
 *
 * Life of an association: nvmf_ctrl_open -> [up] -> [down] -> closed, which comes exactly once for
 * each open, last, when nothing is in flight. After closed it may be opened again.
 *
 * Contract of requests: *returns ICMS_OK: done is called exactly once, later, on the same loop,
 * even on failure; returns anything else: done is never called.* The owner embeds struct nvmf_req
 * and keeps it, and the memory it names, unchanged until done: when done runs nothing reads or
 * writes that memory any more, whatever timed out.
 */
#ifndef NVMF_HOST_H
#define NVMF_HOST_H

#include "nvmf/transport.h"
#include "wire/nvme_kv.h"

struct secret;
struct nvmf_ctrl;

/* ---- requests ------------------------------------------------------------------------------- */

enum nvmf_req_state {
    NVMF_REQ_IDLE,   /* the owner's; not started, or done ran                                     */
    NVMF_REQ_PARKED, /* waits for a free command; woken by an ended command of its queue          */
    NVMF_REQ_SENT,   /* waits for the target; woken by its answer, the timer or the queue's end   */
    NVMF_REQ_DRAIN,  /* its end is known; waits until nothing touches its memory; woken by the end
                        of a transfer or the queue                                                */
    NVMF_REQ_ENDED,  /* waits for its done to be called; woken by the controller's message        */
};

/* One command. */
struct nvmf_req {
    /* in: set by the owner before each call */
    uint32_t nsid;          /* from nvmf_ctrl_volume                                              */
    uint32_t share;         /* for whom it is, where requests have to wait: group * members and
                               the member (nvmf_ctrl_opts.shares)                                 */
    enum io_class io_class; /* whose queue pair; Exist, Delete, List and Flush may choose, too    */
    struct key key; /* List: first key wanted, length 0: from the beginning; Flush: unused */
    struct iovec data[NVMF_DATA_VECTORS]; /* Store: the value, only read. Retrieve, List: room */
    uint32_t options;     /* NVME_KV_STORE_*                                       */
    bool want_record;     /* Retrieve: record is wanted; the target is not told how
                             much time is left                                     */
    uint32_t only_record; /* Delete: only this one (record); 0: whatever is there  */
    uint64_t deadline_ns; /* absolute, loop_now_ns                                 */
    /* Retrieve: it was sent, and the deadline, of which the target was told, has passed: for how
     * long the value may still come; 0 or NULL: it ends. Called once at most. */
    uint64_t (*overdue)(struct nvmf_req *req);
    void (*done)(struct nvmf_req *req); /* called once                                           */
    void (*came)(struct nvmf_req *req); /* Retrieve: more of the value is in memory, came_bytes of
                                           it; any number of times before done. NULL: not of
                                           interest                                              */
    void *owner;                        /* the owner's, not touched                              */
    /* out, valid in done */
    icms_err err;          /* OK, MISS, EXISTS, VALUE_SIZE, ..., DEADLINE, CANCELED, CORRUPT (data
                              digest), or why the association ended                               */
    enum icms_miss reason; /* what the target said beside a failure; NONE: nothing                */
    uint16_t status;       /* NVMe status (SCT << 8 | SC) when the target answered, else 0        */
    uint32_t value_bytes;  /* Retrieve: the whole stored value. List: bytes of list data          */
    uint32_t came_bytes;   /* Retrieve, valid in came: of the value, from its begin              */
    uint32_t record;       /* Retrieve with want_record: names what was read; 0: nobody knows     */
    uint32_t result;       /* DW0 of the answer                                                   */
    uint32_t result1;      /* DW1 of it                                                           */
    /* private */
    enum nvmf_req_state state; /* where it is                                               */
    struct nvmf_ctrl *ctrl;    /* whose                                                     */
    struct nvmf_queue *queue;  /* of its class                                              */
    struct nvmf_cmd *cmd;      /* while SENT or DRAIN: its command                          */
    struct nvme_sqe_wf sqe;    /* opcode 0: the entry, made when it was started             */
    uint32_t data_bytes;       /* sum of data                                               */
    uint8_t opcode;            /* of KV commands, whose entry is made when they go out; or 0 */
    uint8_t direction;         /* NVME_DIRECTION_*                                          */
    bool late;                 /* deadline passed, but the target may still ask             */
    struct loop_timer timer;   /* the deadline                                              */
    struct list link;          /* parked, or ended                                          */
};

/* Requests on an association that is up. PEER_DOWN when it is not; KEY_SIZE, VALUE_SIZE, INVALID
 * for what the target could not take. More requests than the queue pair has entries are parked, in
 * order for each share; shares that have some take turns, by bytes (base/line.h). The owner bounds
 * how many it starts.
 *
 * At the deadline a request that is still parked, or that only waits for an answer, ends with
 * DEADLINE; its command stays reserved until the target answers. A retrieve whose data is arriving
 * ends when the rest is received elsewhere, or after as long as overdue said. A store that went out
 * cannot be taken back: the target may still ask for its data, so it ends when the target has
 * answered (with what it answered) or, at the latest NVMF_STORE_LATE_NS after its deadline, with
 * the association. */
icms_err nvmf_store(struct nvmf_ctrl *ctrl, struct nvmf_req *req) ICMS_MUST_CHECK;
icms_err nvmf_retrieve(struct nvmf_ctrl *ctrl, struct nvmf_req *req) ICMS_MUST_CHECK;
icms_err nvmf_exist(struct nvmf_ctrl *ctrl, struct nvmf_req *req) ICMS_MUST_CHECK;

/* Which of 1..NVME_KV_EXIST_MANY_KEYS keys are there, in one command: bit i of nvmf_exist_map is
 * key i. Encoded into memory, which has room for NVME_KV_EXIST_MANY_BYTES and is kept until done;
 * keys are not needed any longer after the call. UNSUPPORTED unless nvmf_ctrl_has_exist_many. */
icms_err nvmf_exist_many(struct nvmf_ctrl *ctrl, struct nvmf_req *req, const struct key *keys,
                         uint32_t count, void *memory) ICMS_MUST_CHECK;

/* Its answer, in done, when err is OK. */
static inline uint64_t nvmf_exist_map(const struct nvmf_req *req)
{
    return (uint64_t)req->result1 << 32 | req->result;
}

/* MISS when there was no such key (where the target can tell), or it has another record than
 * only_record. UNSUPPORTED with only_record when the target does not name records. */
icms_err nvmf_delete(struct nvmf_ctrl *ctrl, struct nvmf_req *req) ICMS_MUST_CHECK;

/* List data as in wire/nvme_kv.h, checked by nvme_kv_list_read_begin of the owner. */
icms_err nvmf_list(struct nvmf_ctrl *ctrl, struct nvmf_req *req) ICMS_MUST_CHECK;

/* Makes what was stored in the namespace safe against power loss. */
icms_err nvmf_flush(struct nvmf_ctrl *ctrl, struct nvmf_req *req) ICMS_MUST_CHECK;

/* Somebody waits for a retrieve of class PRESTAGE that was started and is not done: it goes on as
 * class LOAD, here and at the target, which sends what it would have sent. False: it is with a
 * target that does not know that, and stays what it is. */
bool nvmf_expedite(struct nvmf_req *req);

/* Called from overdue or came: none of the value has come, and it will come to this memory, of as
 * many bytes as req->data, which becomes it. What it named before is the owner's. False: some of it
 * is there, or the transport cannot, and all goes on as before. */
bool nvmf_redirect(struct nvmf_req *req, const struct iovec data[NVMF_DATA_VECTORS]);

/* A target that says so gets up to NVME_ICMS_STORE_DATA_BYTES with a store, which saves a round
 * trip. When it had no room for them the store goes again, and so many of its queue ask first. */
#define NVMF_ASK_FIRST 32

#define NVMF_STORE_LATE_NS ((uint64_t)10 * 1000 * 1000 * 1000)

/* A target that lives, and has not answered a command so long after its deadline, has lost it: the
 * association ends, else such commands would use up the queue. What Linux hosts wait. */
#define NVMF_ANSWER_NS ((uint64_t)30 * 1000 * 1000 * 1000)

/* ---- the association ------------------------------------------------------------------------ */

struct nvmf_ctrl_ops {
    /* Ready for requests; volumes are known. At most once an open. */
    void (*up)(struct nvmf_ctrl *ctrl);

    /* The namespaces changed; look volumes up again. */
    void (*changed)(struct nvmf_ctrl *ctrl);

    /* The target says which value other hosts have (NVME_FEATURE_ICMS_*), while it is up; of the
     * epoch, which one it uses itself of the same pod's map, or 0. volume: which of opts.volumes,
     * of run_blocks. After up(), and again now and then. NULL: not of interest. */
    void (*told)(struct nvmf_ctrl *ctrl, uint8_t feature, uint32_t volume, uint32_t others);

    /* Commands wait, and nothing came for half of silence_ns. NULL: not of interest. */
    void (*silent)(struct nvmf_ctrl *ctrl);

    /* It failed, or could not be opened: no request is accepted any more, and those under way will
     * end with err. Not called after nvmf_ctrl_close. why: a sentence, valid inside the call. */
    void (*down)(struct nvmf_ctrl *ctrl, icms_err err, const char *why);

    /* Nothing is in flight, every request was done; may be opened again, or freed. */
    void (*closed)(struct nvmf_ctrl *ctrl);
};

/* What all hosts that share blocks have to agree about; compared by the target, which does not know
 * what it means. The epoch is only shown there, and answered with the target's: it reaches one
 * after the other. */
struct nvmf_settings {
    uint32_t enclosures;                      /* a hash of the UUIDs of all enclosures */
    uint32_t weights;                         /* a hash of them with their weights     */
    uint32_t epoch;                           /* of the pod map; 0: there is none      */
    uint32_t pod;                             /* pod_name_hash() of its pod; likewise  */
    uint32_t run_blocks[LIMIT_AGENT_VOLUMES]; /* of each of opts.volumes               */
};

/* How often they are told. Less than NVMF_TARGET_SETTING_NS (nvmf/target.h). */
#define NVMF_TELL_NS ((uint64_t)20 * 1000 * 1000 * 1000)

/* Who shares an association: groups by their weights, the members of a group alike. */
struct nvmf_share_opts {
    uint32_t groups, members; /* 1 of each at least                                              */
    const uint32_t *weights;  /* of the groups; NULL: all have 1                                 */
};

struct nvmf_ctrl_opts {
    const struct nvmf_host_transport *transport; /* of its connections                            */
    struct loop_addr addr;
    const char *subnqn;     /* whom; copied                                                   */
    const char *hostnqn;    /* who; copied                                                    */
    struct uuid host_id;    /* goes with hostnqn                                              */
    bool header_digest;     /* asked for; a target may decline                                */
    bool data_digest;       /* asked for; a target may decline                                */
    uint32_t queue_entries; /* of an I/O queue pair; the target may allow fewer               */
    struct nvmf_share_opts shares; /* for which requests are: nvmf_req.share                    */
    uint64_t keep_alive_ns;   /* KATO; 0: none                                                  */
    uint64_t silence_ns;      /* commands wait and no byte came for this long: dead; 0: never   */
    uint64_t send_timeout_ns; /* a send without progress for this long: dead; 0: never          */
    struct crypt_tls *tls;    /* connections begin with TLS, and never fall back; NULL: plain.
                                 Kept by the caller                                             */
    struct net_marks marks;   /* of its connections                                            */
    uint8_t require;          /* REQUIRE_*: what the target has to ask for, or to give           */
    struct secret *auth_key;  /* secret of hostnqn for DH-HMAC-CHAP, a struct key_plain; NULL: none;
                                 kept by the owner, who may replace it, as the next one          */
    struct secret *auth_controller_key; /* that the target has to prove; NULL: it need not       */
    const struct uuid *volumes; /* those that are looked for, among all that it may use; copied */
    uint32_t volume_count;      /* LIMIT_AGENT_VOLUMES at most; 0: the first ones of any name   */
    const struct nvmf_settings *settings; /* told to targets that are icms; NULL: none; copied */
    const struct nvmf_ctrl_ops *ops;
    void *owner; /* nvmf_ctrl_owner gives it back                                              */
};

/* Defaults: TCP, no digests, 128 entries, KATO 5 s, silence 500 ms, send timeout 10 s. */
void nvmf_ctrl_opts_init(struct nvmf_ctrl_opts *opts);

/* Takes all memory. */
icms_err nvmf_ctrl_new(struct loop *loop, const struct nvmf_ctrl_opts *opts, struct err_why *why,
                       struct nvmf_ctrl **out_ctrl) ICMS_MUST_CHECK;

/* After closed(), or after the loop was freed. *ctrl may be NULL. */
void nvmf_ctrl_free(struct nvmf_ctrl **ctrl);

/* Connects; up by deadline_ns or down with DEADLINE. The association must be closed. */
void nvmf_ctrl_open(struct nvmf_ctrl *ctrl, uint64_t deadline_ns);

/* Ends it; requests under way end with why. Idempotent; harmless on a closed one. */
void nvmf_ctrl_close(struct nvmf_ctrl *ctrl, icms_err why);

enum nvmf_ctrl_state {
    NVMF_CTRL_CLOSED, /* holds nothing; woken by nvmf_ctrl_open                                  */
    NVMF_CTRL_ADMIN,  /* the admin queue connects; woken by its opened() and Connect answer      */
    NVMF_CTRL_AUTH_NEGOTIATE, /* a queue pair authenticates after its Connect, if it has to: waits
                                 for NEGOTIATE to be taken; woken by the end of AUTH Send or
                                 Receive, as all up to AUTH_FAILURE2 but AUTH_COMPUTE */
    NVMF_CTRL_AUTH_CHALLENGE, /* waits for CHALLENGE                                             */
    NVMF_CTRL_AUTH_COMPUTE,   /* waits for the response; woken by a job of the loop              */
    NVMF_CTRL_AUTH_REPLY,     /* waits for REPLY to be taken                                     */
    NVMF_CTRL_AUTH_SUCCESS1,  /* waits for SUCCESS1, or FAILURE1                                 */
    NVMF_CTRL_AUTH_SUCCESS2,  /* the target proved itself; waits for SUCCESS2 to be taken        */
    NVMF_CTRL_AUTH_FAILURE2,  /* it did not; waits for FAILURE2 to be taken                      */
    NVMF_CTRL_CAP,    /* waits for the capabilities; woken by an admin command's end, as all up
                         to NVMF_CTRL_QUEUES                                                     */
    NVMF_CTRL_ENABLE, /* waits for CC.EN to be written                                           */
    NVMF_CTRL_READY,  /* waits for CSTS.RDY; asks again from a timer                             */
    NVMF_CTRL_IDENTIFY,  /* waits for Identify Controller                                         */
    NVMF_CTRL_COUNT,     /* waits for the number of queues (Set Features)                         */
    NVMF_CTRL_EVENTS,    /* waits for the async event configuration (Set Features)                */
    NVMF_CTRL_NS_LIST,   /* waits for a piece of the list of active namespaces                    */
    NVMF_CTRL_NS_IDS,    /* waits for the names of one; skipped where the target is icms          */
    NVMF_CTRL_NS_KV,     /* waits for its Key-Value format                                        */
    NVMF_CTRL_NS_DELETE, /* waits for "delete of a missing key fails" to be set for it            */
    NVMF_CTRL_QUEUES,    /* the I/O queues connect one after the other; woken by their answers    */
    NVMF_CTRL_UP,        /* takes requests                                                        */
    NVMF_CTRL_LOG,       /* up; waits for the log of changed namespaces, then walks NS_* again    */
    NVMF_CTRL_CLOSING,   /* waits for dials and queues to end; woken by their done and closed     */
};

/* True between up() and down() or nvmf_ctrl_close. */
bool nvmf_ctrl_is_up(const struct nvmf_ctrl *ctrl);
void *nvmf_ctrl_owner(const struct nvmf_ctrl *ctrl);

/* How its admin queue is encrypted; NONE also when it is not up. On the loop. */
enum net_tls_how nvmf_ctrl_tls(const struct nvmf_ctrl *ctrl);

/* The serial number of its NVM subsystem: alike for all controllers of one; known once it is up. */
#define NVMF_SERIAL_BYTES 21
const char *nvmf_ctrl_serial(const struct nvmf_ctrl *ctrl);

/* A random number of the process that serves it, alike for all controllers of one; 0: the target
 * tells none. Known once it is up. */
uint64_t nvmf_ctrl_instance(const struct nvmf_ctrl *ctrl);

/* Bytes that came from it since it was opened: another number is a sign of life. */
uint64_t nvmf_ctrl_heard(const struct nvmf_ctrl *ctrl);

/* True when the target offers exist-many and takes its keys in the capsule; known once it is up. */
bool nvmf_ctrl_has_exist_many(const struct nvmf_ctrl *ctrl);

/* Other settings, of an association that has some: told at once if it is up. */
void nvmf_ctrl_settings_set(struct nvmf_ctrl *ctrl, const struct nvmf_settings *settings);

/* A volume's part in this subsystem. */
struct nvmf_volume {
    uint32_t nsid;
    uint32_t value_bytes_max; /* as stored, trailer included                                     */
    bool icms;                /* the target says it is icms: sealed and encrypted are valid       */
    bool sealed;              /* values end in a trailer                                         */
    bool encrypted;           /* clients encrypt them                                            */
    struct uuid uuid;         /* of the volume; foreign targets: the namespace's UUID or NGUID   */
};

/* Looks at the namespaces again, as when the target had said that they changed: changed() follows.
 * For targets that say nothing. Harmless when it is not up. */
void nvmf_ctrl_look(struct nvmf_ctrl *ctrl);

/* Asks for a sign of life, if it is up: without one it is down after silence_ns. */
void nvmf_ctrl_ask(struct nvmf_ctrl *ctrl);

/* Another volume is looked for instead of volume `index` of opts.volumes, from the next look on;
 * zeros: none. On the loop. */
void nvmf_ctrl_wanted_set(struct nvmf_ctrl *ctrl, uint32_t index, const struct uuid *uuid);

/* The volume of this name among those that were found, LIMIT_AGENT_VOLUMES at most, while it is up;
 * NULL: it is not. */
const struct nvmf_volume *nvmf_ctrl_volume(const struct nvmf_ctrl *ctrl, const struct uuid *uuid);

struct nvmf_ctrl_stats {
    uint64_t commands;      /* I/O commands sent                                               */
    uint64_t answers;       /* answers to them                                                 */
    uint64_t redirects;     /* receives moved away from a buffer                               */
    uint64_t digest_errors; /* data digests that did not match                                 */
    uint64_t violations;    /* connections dropped because the target broke the protocol       */
    uint64_t auths;         /* queue pairs that authenticated                                  */
    uint64_t auths_refused; /* that did not: the target refused our secret, or lacked its own  */
};

/* On the loop. */
const struct nvmf_ctrl_stats *nvmf_ctrl_stats(const struct nvmf_ctrl *ctrl);

#endif
