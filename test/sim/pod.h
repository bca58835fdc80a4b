/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim/pod.h: what the files of the pod simulation share.
 *
 *   pod_model.c   what was stored: keys, versions, contents; judges every answer
 *   pod_client.c  a process beside an agent: its rings, leases and staging memory
 *   lib_client.c  instead of it: a process with libicms (lib.h)
 *   pod_world.c   the machines: targets, agents, clients; boot, crash, heal; limits
 *   pod_drives.c  drives that come and go
 *   pod_storm.c   what goes wrong, and when
 *   pod_host.c    memory and clocks of the machines, for what programs call past loop.h
 *   pod_flood.c   instead of that: loads beside a neighbour that stores without end
 *   pod_settle.c  when nothing goes wrong any more: exact accounts
 *   pod_test.c    seeds, canaries, the command line
 *
 * Everything runs in one thread in virtual time. "Control" is code between two events of the
 * simulation; everything else runs on a loop of some node.
 */
#ifndef SIM_POD_H
#define SIM_POD_H

#include "agent/agent.h"
#include "base/hash.h"
#include "icms/icms.h"
#include "loop/sim.h"
#include "target/target.h"

#define US ((uint64_t)1000)
#define MS (1000 * US)

#define POD_REACTORS    2      /* of an agent without a drive of its own; with one it has one */
#define POD_OWN         "/own" /* that drive */
#define POD_TARGETS     3      /* of the small pod */
#define POD_LINKS       2      /* addresses of each target              */
#define POD_DRIVES      2      /* of each target, at the start and at the end */
#define POD_DRIVES_MAX  4      /* that come and go meanwhile            */
#define POD_AGENTS      2
#define POD_TARGETS_MAX 8 /* of the large one */
#define POD_AGENTS_MAX  16
#define POD_CLIENTS     3 /* of each agent                         */
#define POD_VOLUMES     3
#define POD_CLIENT_OPS  24 /* under way or leased, of one client    */

#define POD_SEGMENT_BYTES ((uint64_t)64 << 10)
#define POD_DRIVE_BYTES   ((uint64_t)2112 << 10) /* 32 segments of 64 KiB, and the superblocks */

/* An answer may come this long after its deadline: a timer's tolerance, a few messages and turns,
 * each of which a spike makes up to 100 times longer (100 * 20 us a message). */
#define POD_GRACE_NS (20 * MS)

/* Room of one operation in staging memory: the largest value, its trailer, whole pages. */
#define POD_STAGE_BYTES ((uint64_t)24 << 10)

#define POD_POISON 0xa5

/* Keys of one EXISTS_MANY at most. */
#define POD_BATCH_KEYS 200

/* Stores that an agent may have under way. */
#define POD_BACKLOG_BYTES ((uint64_t)512 << 10)

/* Flash of the volume with a quota: of one enclosure. */
#define POD_QUOTA_BYTES ((uint64_t)480 << 10)

/* ---- failing -------------------------------------------------------------------------------- */

/* What a run can prove wrong; the exit status of a run that failed. */
enum pod_fault {
    POD_FAULT_NONE = 0,
    POD_FAULT_ANSWER = 10, /* an answer twice, to nothing, or one that makes no sense          */
    POD_FAULT_LATE = 11,   /* no answer by the deadline and the grace                          */
    POD_FAULT_BYTES = 12,  /* bytes that were never stored under that key                      */
    POD_FAULT_BUFFER = 13, /* a buffer was written by somebody who had no right to             */
    POD_FAULT_LIMIT = 14,  /* more than a limit allows, or something was never given back      */
    POD_FAULT_FORGOT = 15, /* a block is gone that should be there, or evictions do not add up */
    POD_FAULT_GHOST = 16,  /* a block is there that should be gone                             */
    POD_FAULT_HEAL = 17,   /* everything was repaired and it does not work                     */
    POD_FAULT_TRACE = 18,  /* one seed, two histories                                          */
};

enum pod_canary {
    POD_CANARY_NONE,
    POD_CANARY_FORGET,  /* an enclosure loses what it acknowledged               */
    POD_CANARY_CORRUPT, /* a bit of a block in an agent's memory flips           */
    POD_CANARY_LATE,    /* an agent stands still and nobody tells the clock      */
    POD_CANARY_TWICE,   /* an answer comes twice                                 */
    POD_CANARY_WRITE,   /* a leased block is written to                          */
    POD_CANARY_COUNT,
};

struct pod_world;

/* Prints the sentence and how to run the seed again, and ends the process with the fault. */
_Noreturn void pod_fail(struct pod_world *world, enum pod_fault fault, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- the model ------------------------------------------------------------------------------ */

#define POD_KEYS_MAX 12288 /* of all volumes, storm and settling together */

struct pod_key {
    struct key key;
    uint8_t digest[LIMIT_DIGEST_BYTES];
    uint8_t volume;
    uint32_t versions; /* so many were put at some time, by somebody       */
    bool hot;          /* asked for more often                             */
    bool flash;        /* a put of it was answered by a drive              */
    bool removed;      /* somebody asked to remove it                      */
};

struct pod_model {
    uint32_t count;
    uint32_t storm_count; /* the first ones: used while things go wrong */
    struct pod_key keys[POD_KEYS_MAX];
};

/* Makes the keys of the storm. */
void pod_model_init(struct pod_world *world);

/* A key that nobody used before; its number. */
uint32_t pod_model_key_new(struct pod_world *world, uint32_t volume, uint64_t run);

/* The next version of a key, of a generation of its volume: from now on it may be read. */
uint32_t pod_model_put(struct pod_world *world, uint32_t key, uint32_t generation);

/* The generation that a version belongs to. */
uint32_t pod_model_generation(uint32_t version);

uint32_t pod_model_bytes(const struct pod_world *world, uint32_t key, uint32_t version);
void pod_model_fill(const struct pod_world *world, uint32_t key, uint32_t version, uint8_t *out);

/* The version that these bytes are; 0: none that was ever put. */
uint32_t pod_model_version(const struct pod_world *world, uint32_t key, const uint8_t *value,
                           uint32_t bytes);

/* ---- clients -------------------------------------------------------------------------------- */

/* One operation: what is asked, and what came of it. */
struct pod_job {
    uint8_t op;           /* enum shm_op                                        */
    uint8_t flags;        /* enum shm_flag                                      */
    uint32_t key;         /* number in the model; FLUSH: the volume             */
    uint32_t version;     /* PUT: what is put. GET, after: what was read        */
    uint64_t deadline_ns; /* from when it is sent                               */
    uint64_t lease_ns;    /* GET: how long the block is held                    */
    /* out */
    bool done;
    icms_err status;
    enum icms_miss reason;
    enum icms_source source;
    uint64_t took_ns;
};

enum pod_op_state {
    POD_OP_FREE, /* its staging memory is poisoned                            */
    POD_OP_SENT, /* waits for its answer                                      */
    POD_OP_HELD, /* GET: answered, the block is leased; its bytes stay        */
};

struct pod_op {
    enum pod_op_state state;
    uint32_t generation;    /* of the tag: which use of this entry            */
    struct pod_job job;     /* what is asked                                  */
    struct pod_job *report; /* where the result goes; NULL: nowhere           */
    bool canceled;          /* a cancel was sent                              */
    bool sure;              /* GET in fair weather: it is on flash            */
    uint64_t sent_ns;       /* virtual time                                   */
    uint64_t deadline_ns;   /* virtual time                                   */
    uint64_t hash;          /* SENT: of the staging memory; HELD: of the slot */
    struct uuid uuid;       /* of the volume, as the client knew it           */
    const uint8_t *value;   /* HELD: where the block lies                     */
    uint32_t bytes;         /* HELD                                           */
    uint32_t batch;         /* EXISTS: keys that are asked for at once; 0: job.key alone */
    uint32_t reactor;       /* the first that is asked                        */
    uint32_t reactors;      /* how many are                                   */
    uint32_t answers_left;  /* of them, that did not answer                   */
    uint32_t batch_keys[POD_BATCH_KEYS]; /* of them, job.key first                        */
    bool batch_sure[POD_BATCH_KEYS];     /* in fair weather: it is on flash               */
    uint64_t release_ns;                 /* HELD: when the lease is given back             */
};

enum pod_client_state {
    POD_CLIENT_OUT,     /* not attached; control attaches it                        */
    POD_CLIENT_IN,      /* works                                                    */
    POD_CLIENT_LEAVING, /* was told to let go; on its loop, waits for its event     */
    POD_CLIENT_LEFT,    /* touches nothing any more; control detaches it            */
    POD_CLIENT_DETACH,  /* waits for the agent                                      */
};

struct pod_client {
    struct pod_world *world;
    struct pod_agent *agent;
    uint32_t number; /* 0 .. of all clients                                     */
    enum pod_client_state state;
    struct sim_node *node; /* a machine of its own as far as crashes go               */
    struct loop *loop;
    struct agent_client_map attached;
    union { /* one a reactor; the first one also stands for what they share */
        struct shm_ring ring;
        struct shm_ring rings[POD_REACTORS];
    };
    struct shm_arena shards[POD_REACTORS][POD_VOLUMES];
    struct pod_op ops[POD_CLIENT_OPS];
    struct loop_op event_op;
    struct loop_timer timer;
    struct loop_msg msg;         /* from control: begin, or let go                          */
    bool msg_out;                /* it is on its way                                        */
    struct pod_job *jobs;        /* a list to work off; NULL: what chance says              */
    uint32_t job_count;          /* of jobs                                                 */
    uint32_t job_next;           /* first that was not sent                                 */
    uint32_t job_parallel;       /* how many of the list at a time                          */
    uint64_t pace_ns;            /* between two operations of chance, on average; 0: none   */
    bool rang;                   /* the event, since answers were looked at                 */
    uint64_t lazy_until_ns;      /* does not look at its answers until then                 */
    uint64_t answer_tag_last;    /* of the canary that answers twice                        */
    struct lib_process *process; /* lib_client.c: with libicms; else NULL                */
};

void pod_client_init(struct pod_client *client, struct pod_world *world, uint32_t number);

/* Ends it, from wherever it is. Its agent is freed after all of them. */
void pod_client_fini(struct pod_client *client);

/* Runs the pod until virtual time; clients that are no loops have their turns. */
void pod_client_run(struct pod_world *world, uint64_t until_ns);

/* Control: an agent ended. Frees it, or sees to it that it is when no client maps its memory. */
void pod_client_agent_free(struct pod_agent *agent);

/* Leases of one client at most; how long an agent may stand still. */
extern const uint32_t pod_client_leases;
extern const uint64_t pod_agent_pause_ns;

/* Control: attaches, or tells it to let go, as it should be; called again and again. */
void pod_client_attach(struct pod_client *client);
void pod_client_leave(struct pod_client *client);
void pod_client_drive(struct pod_client *client);

/* Control: fails when an answer is overdue. */
void pod_client_judge(struct pod_client *client);

/* Control: gives it a list; what it does by chance ends. */
void pod_client_jobs(struct pod_client *client, struct pod_job *jobs, uint32_t count,
                     uint32_t parallel);

/* Nothing is under way and nothing is leased. */
bool pod_client_idle(const struct pod_client *client);

/* Canaries; true when there was something to break. */
bool pod_client_break_lease(struct pod_client *client);

/* ---- machines ------------------------------------------------------------------------------- */

enum pod_machine_state {
    POD_MACHINE_UP,
    POD_MACHINE_DOWN,    /* crashed; starts again at restart_ns              */
    POD_MACHINE_LEAVING, /* an orderly stop is under way                     */
    POD_MACHINE_DEAD,    /* an agent that crashed: clients still map its memory */
};

struct pod_target {
    struct pod_world *world;
    uint32_t number;
    struct sim_node *node;
    struct sim_node *links[POD_LINKS]; /* its addresses */
    enum pod_machine_state state;
    struct target *target;
    uint64_t restart_ns;               /* DOWN                                               */
    bool paused;                       /* stands still                                       */
    bool format;                       /* the next start formats: the canary                 */
    uint32_t resets;                   /* of volumes that it knows                           */
    uint32_t resets_next;              /* resets, when the change under way is over          */
    bool changing;                     /* a change of its volumes is under way               */
    uint32_t drives, drains;           /* of its file (bits): pod_drives.c       */
    uint32_t drives_told, drains_told; /* that it has, when the change is over   */
    bool drives_changing;              /* a change of its drives is under way    */
    uint32_t copy;                     /* drive that is a copy, from 1; 0: none  */
    struct target_stats *stats;
};

struct pod_agent {
    struct pod_world *world;
    uint32_t number;
    struct sim_node *node;
    enum pod_machine_state state;
    struct agent *agent;
    uint64_t restart_ns;
    bool paused;
    uint64_t resumed_ns; /* when it went on, or started, the last time: overdue answers are
                            late from then on                                  */
    struct agent_stats *stats;
};

struct pod_options {
    uint64_t seed;
    enum pod_canary canary;
    bool verbose; /* of the simulation */
    bool chatty;  /* what goes wrong, as it goes wrong */
    bool brief;   /* a short storm, and no exact accounts */
    bool flood;   /* no storm, and a flood instead        */
    bool large;   /* 8 enclosures and 16 agents           */
};

/* What goes wrong in this run: each kind is on or off, as the seed has it. */
enum pod_trouble_kind {
    POD_TROUBLE_CRASH_TARGET, /* kill -9, or the power goes                    */
    POD_TROUBLE_CRASH_AGENT,
    POD_TROUBLE_LEAVE_TARGET, /* an orderly restart                            */
    POD_TROUBLE_LEAVE_AGENT,
    POD_TROUBLE_KILL_CLIENT,
    POD_TROUBLE_PAUSE_TARGET, /* SIGSTOP, and later SIGCONT                    */
    POD_TROUBLE_PAUSE_AGENT,
    POD_TROUBLE_CUT,    /* a black hole between two, or around one       */
    POD_TROUBLE_SLOW,   /* the drives of a target                        */
    POD_TROUBLE_DEAD,   /* one drive, until somebody repairs it          */
    POD_TROUBLE_FAR,    /* the network of a target delays                */
    POD_TROUBLE_EPOCH,  /* a target joins, drains, leaves or comes back */
    POD_TROUBLE_LINK,   /* one address of a target is cut, or delays    */
    POD_TROUBLE_RESET,  /* a volume is reset                            */
    POD_TROUBLE_DRIVES, /* a drive comes, drains or goes                */
    POD_TROUBLE_FULL,   /* the file system under a drive of a target    */
    POD_TROUBLE_RACK,   /* half of the targets, or all, crash or stop   */
    POD_TROUBLE_SWAP,   /* two drives change places, or one is a copy   */
    POD_TROUBLE_FILES,  /* targets have no descriptor for a connection  */
    POD_TROUBLE_LOSS,   /* a machine loses packets                      */
    POD_TROUBLE_SMALL,  /* only small packets of a machine arrive       */
    POD_TROUBLE_MEMORY, /* the program of a machine gets none           */
    POD_TROUBLE_LOCKED, /* the program of a machine may lock none       */
    POD_TROUBLE_CLOCK,  /* wall clocks are set an hour ahead, and back  */
    POD_TROUBLE_KINDS,
};

struct pod_weather {
    bool fair; /* nothing goes wrong at all                    */
    bool on[POD_TROUBLE_KINDS];
    bool power;        /* crashes of targets may lose the power         */
    bool silent;       /* crashes may reset nothing                     */
    bool disk_faults;  /* the drives lie                                */
    bool memory_flips; /* bits of values flip in memory of targets      */
    bool wire_flips;   /* bits flip between agents and targets, who ask for digests */
    bool own_drives;   /* agents have one each, beside the pod          */
    double own_share;  /* of the runs, on it and not in the pod         */
    uint64_t tick_ns;  /* between two troubles, on average              */
    uint64_t storm_ns; /* how long it lasts                             */
    uint64_t pace_ns;  /* between two operations of a client            */
    /* of the threads of lib_thread.c */
    uint64_t point_period; /* one point of so many gives the turn away */
    uint32_t point_site;   /* at these it does more often          */
    uint64_t stall_period; /* one of so many stands still; 0: none     */
};

/* Of memory and drive, for pins: of two volumes; the third has none. */
#define POD_PIN_PERCENT 40

/* One that ends by itself. */
struct pod_trouble {
    bool on;
    enum pod_trouble_kind kind;
    uint32_t a; /* agent or target; CUT: agent, or agent_count + target */
    uint32_t b; /* CUT: target, POD_TARGETS_MAX: everybody. LINK: its number, or POD_LINKS + that to
                   delay */
    uint32_t way; /* CUT: 0: both; 1: what a sends; 2: what a gets. CLOCK: 0: of all machines; 1: of
                     targets; 2: of agent a */
    uint64_t until_ns;
};

#define POD_TROUBLES 16

struct pod_counts {
    uint64_t sent[8];   /* by op                     */
    uint64_t ok[8];     /* by op                     */
    uint64_t source[4]; /* hits, by enum icms_source */
    uint64_t flips;     /* bits that flipped in memory of targets */
    uint64_t miss[16];  /* by enum icms_miss         */
    uint64_t error[64]; /* other answers, by icms_err */
    uint64_t dropped;   /* the agent died before it answered */
    uint64_t trouble[POD_TROUBLE_KINDS];
    uint64_t moved;          /* blocks that agents moved which did not crash since */
    uint64_t replaced;       /* drives that were erased */
    uint64_t swapped;        /* drives that changed places, or became copies */
    uint64_t unaccepted;     /* connections for which there was no descriptor */
    struct sim_stats sim;    /* what troubles of the simulation did */
    uint64_t drives;         /* changes of drives that targets took */
    uint64_t pinned_evicted; /* blocks that were pinned, for loads and puts of their volume */
    uint64_t slow;      /* verdicts on enclosures, by reactors of agents that did not crash since */
    uint64_t failovers; /* commands that another link took over, likewise                       */
};

struct pod_world {
    struct pod_options options;
    struct sim *sim;
    struct pod_weather weather;
    uint32_t reactors; /* of each agent */
    uint32_t target_count, agent_count, client_count;
    struct pod_target targets[POD_TARGETS_MAX];
    struct pod_agent agents[POD_AGENTS_MAX];
    struct pod_client clients[POD_AGENTS_MAX * POD_CLIENTS];
    char hosts[POD_AGENTS_MAX][LIMIT_NQN_BYTES]; /* that may use the raw volume */
    struct volume_spec volumes[POD_VOLUMES];
    struct agent_enclosure_opts enclosures[POD_TARGETS_MAX];
    bool out[POD_TARGETS_MAX]; /* it runs, and is not in the pod    */
    uint64_t epoch;            /* of these and volumes; agents take it one after the other */
    uint32_t resets;           /* of volumes; targets take them one after the other */
    struct pod_model model;
    struct pod_counts counts;
    uint64_t history;        /* hash of every answer */
    uint64_t evictions_gone; /* of drives that left when the storm was over */
    bool was_lowered;        /* the share of an enclosure, at some agent */
    uint64_t judge_ns;       /* when limits are looked at next */
    bool faults;             /* of the simulation: on          */
    bool power_lost;         /* some target's, at some time    */
    bool no_descriptors;     /* targets accept no connection   */
    struct pod_trouble troubles[POD_TROUBLES];
    char name[128]; /* how to run this seed again */
    uint8_t scratch[POD_STAGE_BYTES];
};

/* Whether clients know what to do with a block that is damaged: lib_client.c's do. */
extern const bool pod_clients_verify;

struct pod_world *pod_world_new(const struct pod_options *options);
void pod_world_free(struct pod_world **world);

/* Runs until virtual time; control has its turns. */
void pod_world_run(struct pod_world *world, uint64_t until_ns);

/* A line of what happens, when it was asked for. */
void pod_tell(struct pod_world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

uint64_t pod_chance(struct pod_world *world, uint64_t n);

/* Control. */
void pod_target_start(struct pod_target *target);
void pod_target_crash(struct pod_target *target, bool power, bool silent);
void pod_target_leave(struct pod_target *target);
void pod_agent_start(struct pod_agent *agent);
void pod_agent_crash(struct pod_agent *agent, bool silent);
void pod_agent_leave(struct pod_agent *agent);
void pod_agent_pause(struct pod_agent *agent, bool paused);
void pod_target_pause(struct pod_target *target, bool paused);

/* Control: the pod has other enclosures. */
void pod_world_epoch(struct pod_world *world);

/* Control: a volume has another generation. */
void pod_world_reset(struct pod_world *world, uint32_t volume);

/* The generation that a volume's UUID was made of. */
uint32_t pod_world_generation(uint32_t volume, const struct uuid *uuid);

/* Drives that come and go. Where one is; those of a target's file, for a target; another file; what
 * is on a drive goes; the target may be told. */
const char *pod_drive_path(uint32_t drive);
uint32_t pod_drives_list(const struct pod_target *target,
                         struct target_drive_opts out_drives[POD_DRIVES_MAX]);
void pod_drives_strike(struct pod_target *target);
void pod_drive_erase(struct pod_target *target, const char *path);

/* Two drives change places, or (copies) the second becomes a copy of the first. Both targets are
 * down. */
void pod_drives_swap(struct pod_target *a, uint32_t drive_a, struct pod_target *b, uint32_t drive_b,
                     bool copies);
void pod_drives_drive(struct pod_target *target);

/* POD_DRIVES of each target stay; the others are drained, and go. */
void pod_drives_end(struct pod_world *world);

/* Judges what agents evict from memory: of one world a process. */
void pod_evict_init(struct pod_world *world);

/* Numbers of all targets together. */
uint64_t pod_world_blocks(struct pod_world *world);
uint64_t pod_world_evictions(struct pod_world *world);

/* What a trouble is called. */
const char *pod_trouble_name(enum pod_trouble_kind kind);

/* Draws the weather: before pod_world_new makes the simulation. */
void pod_weather_init(struct pod_world *world, struct sim_opts *opts);
void pod_storm(struct pod_world *world);

/* Judges loads beside a flood of stores, where nothing goes wrong. */
void pod_flood(struct pod_world *world);

/* Ends every trouble. */
void pod_storm_end(struct pod_world *world);
void pod_settle(struct pod_world *world);

/* Only that everybody works again and nothing is held any more. */
void pod_settle_brief(struct pod_world *world);

#endif
