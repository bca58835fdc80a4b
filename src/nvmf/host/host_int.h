/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/host/host_int.h: what the files of the initiator share.
 *
 *   ctrl.c   the association: its state machine, namespaces, keep-alive, silence
 *   queue.c  one queue pair: Connect, commands, their CIDs
 *   tcp.c    its connection over TCP: a table of nvmf/transport.h
 *   auth.c   authentication of a queue pair
 *   req.c    requests: start, deadline, end
 *
 * All on the association's loop.
 */
#ifndef NVMF_HOST_INT_H
#define NVMF_HOST_INT_H

#include "base/line.h"
#include "base/list.h"
#include "nvmf/host.h"
#include "wire/nvme_fabrics.h"
#include "wire/nvme_identify.h"
#include "wire/nvme_log.h"

/* A command identifier: the place in the queue's table and a generation, so that an answer to a
 * command that ended is not taken for its successor's. FFFFh is never made: the last index is not
 * used. */
#define NVMF_CID_INDEX_BITS 10
#define NVMF_CID_INDEX_MASK ((1u << NVMF_CID_INDEX_BITS) - 1)
#define NVMF_ENTRIES_MAX    1023
#define NVMF_ENTRIES_MIN    2

#define NVMF_ADMIN_ENTRIES 32
#define NVMF_QUEUES        (1 + IO_CLASS_COUNT) /* admin, then one a class */

/* Silence is counted in ticks of an eighth of it: a loop that stood still itself sees one. A queue
 * pair that is silent while others are not may be busy. An icms target is asked on that connection
 * at half time, with a command that needs no drive and no memory; without an answer it is dead
 * after so many ticks, which is within a second with the default. Where that cannot be asked a
 * queue pair may be silent for longer. */
#define NVMF_SILENCE_TICKS       8
#define NVMF_SILENCE_TICKS_ASKED 14
#define NVMF_SILENCE_TICKS_QUEUE (16 * NVMF_SILENCE_TICKS)

/* One place in a queue's table of commands. */
struct nvmf_cmd {
    struct list link;       /* in queue->free while not used, in queue->unanswered after detach */
    struct nvmf_host_io io; /* as the transport sees it                                    */
    uint16_t generation;    /* of the CID                                                  */
    bool used;              /* its CID is out: sent and not completed                      */
    bool eager;             /* it takes data along that the target may drop: it may be sent again */
    bool quiet;             /* nobody waits for it: async event request                    */
    bool expedite;          /* the target is to be told that somebody waits for it now     */
    struct nvmf_req *req;   /* whose; NULL: ended early, only the CID is kept              */
    uint64_t detached_ns;   /* when it ended early                                         */
};

enum nvmf_queue_state {
    NVMF_QUEUE_CLOSED,  /* holds nothing                                                    */
    NVMF_QUEUE_OPENING, /* waits for the connection; woken by the transport's opened()      */
    NVMF_QUEUE_CONNECT, /* waits for the answer to Connect, then authenticates if it has to;
                           woken by queue_connect_done and auth.c                            */
    NVMF_QUEUE_LIVE,    /* sends commands                                                   */
    NVMF_QUEUE_CLOSING, /* waits for the transport's closed()                               */
};

struct nvmf_queue {
    enum nvmf_queue_state state;
    struct nvmf_ctrl *ctrl;   /* whose                                                   */
    uint16_t qid;             /* 0: admin                                                */
    const char *name;         /* "admin", "load", ...: in sentences                      */
    uint32_t entries_max;     /* size of cmds                                            */
    uint32_t depth;           /* commands at a time: agreed entries - 1                  */
    uint32_t used;            /* commands whose CID is out                               */
    uint32_t waiting;         /* of them, those that somebody should answer              */
    uint32_t in_capsule_max;  /* data that may go with a command                         */
    uint32_t ask_first;       /* so many stores that could bring more ask instead        */
    uint32_t silent_ticks;    /* ticks without a byte while commands wait                */
    uint64_t heard_bytes;     /* nvmf_queue_heard at the last tick                       */
    struct nvmf_cmd *cmds;    /* [entries_max]                                           */
    struct list free;         /* struct nvmf_cmd                                         */
    struct list unanswered;   /* struct nvmf_cmd whose requests ended early, oldest first */
    struct line line;         /* struct nvmf_req that are parked                         */
    void *line_memory;        /* its                                                     */
    struct nvmf_conn *conn;   /* open from OPENING to CLOSING                            */
    struct nvmf_req connect;  /* the Connect command                                     */
    struct nvmf_req ask;      /* asks for a sign of life                                 */
    struct nvmf_req expedite; /* says which commands are waited for                     */
    uint8_t connect_data[NVME_CONNECT_DATA_BYTES];
};

struct nvmf_ctrl {
    enum nvmf_ctrl_state state;
    struct loop *loop; /* where everything runs                                 */
    const struct nvmf_ctrl_ops *ops;
    void *owner;                         /* the owner's                                           */
    char addr_text[LIMIT_ADDRESS_BYTES]; /* the same for sentences                                */
    char subnqn[LIMIT_NQN_BYTES];
    char hostnqn[LIMIT_NQN_BYTES];
    struct uuid host_id;
    const struct nvmf_host_transport *transport; /* of all its connections                */
    struct nvmf_connect_opts connect; /* of all of them, but for deadline and mark        */
    struct net_marks marks;           /* of each                                          */
    uint64_t keep_alive_ns, silence_ns;
    uint8_t require;                    /* REQUIRE_*                                      */
    struct secret *auth_key;            /* as in the options                                      */
    struct secret *auth_controller_key; /* likewise                                               */
    struct nvmf_auth *auth;             /* NULL: no secret                                        */
    uint64_t deadline_ns;               /* of the opening                                        */
    bool up;                            /* up() was called, down() and close were not            */

    icms_err err;                 /* why it ended                                          */
    char why[LIMIT_REASON_BYTES]; /* the sentence                                          */
    uint16_t cntlid;              /* from Connect                                          */
    uint64_t cap;                 /* CAP register                                          */
    struct nvme_ctrl info;        /* Identify Controller                                   */
    uint64_t transfer_max;        /* bytes of one command                                  */
    uint32_t queue_at;            /* QUEUES: which one connects                            */
    struct nvmf_queue queues[NVMF_QUEUES];
    struct loop_timer open_timer;  /* deadline of the opening                               */
    struct loop_timer ready_timer; /* next look at CSTS                                     */
    struct loop_timer auth_timer;  /* NEGOTIATE goes again                                  */
    struct loop_timer keep_timer;  /* next keep-alive                                       */
    struct loop_timer tick_timer;  /* silence                                               */
    uint32_t silent_ticks;         /* ticks without a byte while commands wait              */
    uint64_t heard_bytes;          /* all queues, at the last tick                          */
    struct loop_msg msg;           /* brings what may not happen inside a call              */
    bool msg_sent;                 /* it is on its way                                      */
    struct list ended;             /* struct nvmf_req in state ENDED                        */
    /* admin commands of ours */
    struct nvmf_req admin;        /* of the state machine, one at a time                   */
    struct nvmf_req keep;         /* Keep Alive                                            */
    struct nvmf_req event;        /* Async Event Request                                   */
    struct nvmf_req tell;         /* Set Features of a setting                             */
    struct loop_timer tell_timer; /* tells all of them again                               */
    uint32_t tell_at;             /* which one is told: as tell_make() has them              */
    bool has_settings;            /* `settings` are told                                   */
    bool tell_again;              /* they changed while they were told                     */
    struct nvmf_settings settings;
    bool ns_dirty;                    /* namespaces changed while we were looking              */
    uint8_t page[NVME_PAGE_BYTES];    /* data of admin                                         */
    uint32_t nsids[NVME_NS_LIST_MAX]; /* a piece of the list                                 */
    uint32_t nsid_count, nsid_at;     /* of it, and where we are                               */
    struct uuid wanted[LIMIT_AGENT_VOLUMES]; /* volumes that are looked for                    */
    uint32_t wanted_count;                   /* 0: any                                         */
    struct nvmf_volume volumes[LIMIT_AGENT_VOLUMES]; /* what requests use                      */
    uint32_t volume_count;
    struct nvmf_volume found[LIMIT_AGENT_VOLUMES]; /* being gathered                           */
    uint32_t found_count;
    struct nvmf_ctrl_stats stats;
};

/* ---- ctrl.c --------------------------------------------------------------------------------- */

/* It cannot go on: tells the owner, then closes. Only from callbacks of the loop. */
void nvmf_ctrl_fail(struct nvmf_ctrl *ctrl, icms_err err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The controller's message will run: ended requests get their done, the end is looked at. */
void nvmf_ctrl_poke(struct nvmf_ctrl *ctrl);

/* A queue took part in Connect and is live, or is closed. */
void nvmf_ctrl_queue_live(struct nvmf_ctrl *ctrl, struct nvmf_queue *queue);

/* A command was sent: silence is watched from now on. */
void nvmf_ctrl_watch(struct nvmf_ctrl *ctrl);

/* ---- auth.c --------------------------------------------------------------------------------- */

/* Memory for one conversation at a time. NO_MEMORY. */
icms_err nvmf_auth_new(struct nvmf_ctrl *ctrl) ICMS_MUST_CHECK;
void nvmf_auth_free(struct nvmf_ctrl *ctrl);

/* Authenticates a queue pair that is connected; nvmf_queue_live when it passed. ctrl->auth_key is
 * there. */
void nvmf_auth_start(struct nvmf_queue *queue);

/* The association's auth_timer: the target had too many hosts. */
void nvmf_auth_again(struct loop_timer *timer);

/* A job of it runs: the association is not closed before its end. */
bool nvmf_auth_busy(const struct nvmf_ctrl *ctrl);

/* ---- queue.c -------------------------------------------------------------------------------- */

icms_err nvmf_queue_init(struct nvmf_queue *queue, struct nvmf_ctrl *ctrl, uint16_t qid,
                         uint32_t entries, const struct nvmf_share_opts *shares) ICMS_MUST_CHECK;
void nvmf_queue_fini(struct nvmf_queue *queue);

/* Connects with at most entries commands. */
void nvmf_queue_open(struct nvmf_queue *queue, uint32_t entries, uint64_t deadline_ns);
void nvmf_queue_close(struct nvmf_queue *queue, icms_err why);

/* Connect, and authentication if there was any, are over: it sends commands from now on. */
void nvmf_queue_live(struct nvmf_queue *queue);

/* Asks for a sign of life on an I/O queue, where the target is icms: Exist without a namespace,
 * which its connection refuses at once. A command is kept free for it. */
void nvmf_queue_ask(struct nvmf_queue *queue);

/* Tells the target that a command is waited for now; a command is kept free for that, too. False:
 * it does not know that. */
bool nvmf_queue_expedite(struct nvmf_queue *queue, struct nvmf_cmd *cmd);

/* Parks a request, perhaps in front of those of its share. */
void nvmf_queue_park(struct nvmf_queue *queue, struct nvmf_req *req, bool front);

/* Sends parked requests while there are free commands. */
void nvmf_queue_run(struct nvmf_queue *queue);

/* Bytes that came on its connection. */
uint64_t nvmf_queue_heard(const struct nvmf_queue *queue);

/* The request of a command ends early: its CID stays reserved. */
void nvmf_cmd_detach(struct nvmf_cmd *cmd);

/* ---- req.c ---------------------------------------------------------------------------------- */

void nvmf_req_init(struct nvmf_req *req, struct nvmf_ctrl *ctrl, struct nvmf_queue *queue);

/* Queues it; it is sent at once when there is a free command. */
void nvmf_req_start(struct nvmf_req *req);

/* Ends it: done runs now. Only from callbacks of the loop. */
void nvmf_req_end(struct nvmf_req *req, icms_err err);

/* Fills what the answer of its command says: err, reason, status, value_bytes. */
void nvmf_req_result(struct nvmf_req *req, const struct nvmf_cmd *cmd, const struct nvme_cqe *cqe);

#endif
