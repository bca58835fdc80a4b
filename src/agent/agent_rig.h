/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/agent_rig.h: what tests of the agent share: a simulated machine with an agent, small
 * enclosures beside it, and clients that speak the rings by hand.
 *
 * One thread. Time passes only in rig_run and in functions that wait for an answer.
 */
#ifndef AGENT_RIG_H
#define AGENT_RIG_H

#include "agent/agent.h"
#include "loop/sim.h"
#include "nvmf/host/fake_target.h"

#define RIG_MS          ((uint64_t)1000000)
#define RIG_ENCLOSURES  4
#define RIG_DRIVE       "/drive/0" /* the agent's own */
#define RIG_LINKS       3
#define RIG_ANSWERS     8192
#define RIG_REACTORS    3
#define RIG_VOLUMES     3 /* "kv" sealed, "raw" raw, "none": no enclosure has it */
#define RIG_VALUE_BYTES 65536u

struct rig_opts {
    uint64_t seed;
    uint32_t loops;      /* reactors of the agent; 0: 1                      */
    uint32_t enclosures; /* 0: none: a drive of its own                      */
    uint32_t slots;      /* blocks that each shard holds; 0: 64              */
    uint32_t memory;     /* the same for all volumes together; 0: each its own */
    uint32_t memory_min[RIG_VOLUMES], memory_max[RIG_VOLUMES]; /* likewise         */
    uint32_t block_bytes;      /* values of these blocks; 0: the largest           */
    uint32_t value_bytes;      /* the largest of each volume; 0: RIG_VALUE_BYTES   */
    uint64_t backlog_bytes;    /* 0: the default                                */
    uint32_t raw_uid;          /* volume "raw" is for this user; 0: for everybody */
    uint32_t raw_gid;          /* and for this group                           */
    uint32_t user_clients_max; /* 0: the default                             */
    uint32_t kv_weight;        /* of volume "kv"; 0: 1                        */
    bool many;                 /* enclosures offer exist-many                   */
    bool one_by_one;           /* the agent does not use it                     */
    bool no_expedite;          /* enclosures do not know what is waited for     */
    bool encrypted;            /* volume "kv"; values are what rig_flash makes  */
    bool own_process;          /* of clients too: records lie in slots          */
    bool long_names;           /* NQNs are as long as they may be               */
    bool swapped;              /* the first two enclosures are listed the other way round */
    bool heavy;                /* the first one listed has another weight       */
    uint32_t members;          /* so many of the enclosures are in the pod; 0: all */
    uint64_t epoch;            /* of them                                       */
    const char *pod_name;      /* likewise; NULL: no map                        */
    uint32_t links;            /* addresses of each enclosure; 0: 1             */
    uint64_t own_drive_bytes;  /* beside enclosures; 0: there is none           */
    uint64_t own_drive_day;    /* its write budget                              */
    double pin_percent;        /* of memory and drive, for pins                 */
    uint64_t quota_bytes;      /* of volumes on the own drive; 0: all of it     */
    double own_drive_share;    /* of the runs, on it and not in the pod         */
    uint64_t events;           /* bit i: of volume i                            */
    uint64_t net_bytes_per_s;  /* of one connection; 0: the simulation's        */
    /* Before the agent is made; NULL: nothing is to be done. */
    void (*prepare)(struct sim_node *node);
};

struct agent_rig {
    struct sim *sim;
    struct sim_node *node; /* of the agent                                     */
    struct agent *agent;
    struct agent_opts opts;
    struct volume_spec volumes[RIG_VOLUMES]; /* with the UUIDs that clients put under */
    const struct agent_identity *identities; /* of rig_pod; NULL: as they are         */
    struct agent_enclosure_opts enclosures[RIG_ENCLOSURES];
    uint32_t enclosure_count;
    struct sim_node *fake_node[RIG_ENCLOSURES];
    struct sim_node *link_node[RIG_ENCLOSURES][RIG_LINKS]; /* with opts.links: its addresses */
    struct loop *fake_loop[RIG_ENCLOSURES];
    struct fake_target *fake[RIG_ENCLOSURES];
};

struct rig_client {
    struct agent_rig *rig;
    struct agent_client_map attached;
    /* the client's view; ring and arenas are those of reactor 0 */
    union {
        struct shm_ring ring;
        struct shm_ring rings[RIG_REACTORS];
    };
    union {
        struct shm_arena arenas[RIG_VOLUMES];
        struct shm_arena shards[RIG_REACTORS][RIG_VOLUMES];
    };
    uint64_t next_tag;                        /* tags are 1, 2, ...                */
    uint32_t reactor[RIG_ANSWERS];            /* by tag: who answers               */
    uint32_t wanted[RIG_ANSWERS];             /* by tag: from how many reactors    */
    struct shm_complete answers[RIG_ANSWERS]; /* by tag                            */
    uint8_t got[RIG_ANSWERS];                 /* by tag: how many answers          */
    uint64_t got_ns[RIG_ANSWERS];             /* when                              */
    struct shm_complete parts[RIG_ANSWERS];   /* by tag: the last part             */
    uint32_t part_count[RIG_ANSWERS];         /* by tag: how many                  */
};

struct agent_rig *rig_new(const struct rig_opts *opts);
void rig_free(struct agent_rig *rig);
void rig_run(struct agent_rig *rig, uint64_t ns);

/* Ends the agent, drained or as if it were killed, and starts one with rig->opts. There are no
 * clients. */
void rig_restart(struct agent_rig *rig, bool drained);

/* Time of the agent's machine. */
uint64_t rig_now_ns(const struct agent_rig *rig);

/* Gives the agent other enclosures, and runs until all reactors have them. */
icms_err rig_pod(struct agent_rig *rig, uint64_t epoch,
                 const struct agent_enclosure_opts *enclosures, uint32_t count,
                 struct err_why *why);

/* Clients of other processes learn the identities of volumes at their next call; this one here. */
void rig_identify(struct rig_client *client);

/* Runs a function on the loop of an enclosure. */
void rig_on_fake(struct agent_rig *rig, uint32_t enclosure,
                 void (*run)(struct fake_target *target));

struct rig_client *rig_client_new(struct agent_rig *rig);

/* A client of another process; NULL with the agent's answer when it is refused. */
struct rig_client *rig_client_as(struct agent_rig *rig, const struct agent_user *user,
                                 icms_err *out_err);

/* Detaches it, and runs until that is over. */
void rig_client_free(struct rig_client *client);

/* Key number n and its digest, in static memory; value number n of these bytes into out. */
void rig_key(uint32_t n, struct key *out_key);
const uint8_t *rig_digest(uint32_t n);

/* Key number n as entry i of a list of keys in staging memory. */
void rig_put_key(uint8_t *keys, uint32_t i, uint32_t n);

void rig_value(uint32_t n, uint32_t bytes, uint8_t *out);

/* Which reactor key n belongs to, and its shard. */
uint32_t rig_reactor(const struct rig_client *client, uint32_t volume, uint32_t n);
const struct shm_arena *rig_shard(const struct rig_client *client, uint32_t volume, uint32_t n);

/* Publishes what was queued and wakes the reactors that sleep. */
void rig_publish(struct rig_client *client);

/* Queues an entry for its reactor, or all, and wakes the agent; returns its tag. What all answer is
 * one answer, with the first status that is not OK. */
uint64_t rig_submit(struct rig_client *client, struct shm_submit *entry);

/* Queues the cancel of a request; rig_publish sends it. */
void rig_cancel(struct rig_client *client, uint64_t tag);

uint64_t rig_get(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t lease,
                 uint64_t timeout_ns);
/* Into the agent's memory, of volume 0. */
uint64_t rig_prestage(struct rig_client *client, uint32_t n, uint64_t timeout_ns);
/* A hint of block n of volume 0, which will be asked for then (from now). hint: shm_hint(). Whether
 * the agent took it, or, with SHM_FLAG_FORGET, took it back. */
bool rig_hint(struct rig_client *client, uint32_t n, uint64_t need_ns, uint32_t hint,
              uint8_t flags);
/* What became of the hints of volume 0; the next call of rig_stats writes over it. */
const struct agent_prestage_stats *rig_hints(struct agent_rig *rig);

/* Of these each is somewhere, or has ended once; returns how many have not. */
uint64_t rig_hints_left(struct agent_rig *rig);

uint64_t rig_put(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t bytes,
                 uint8_t flags, uint64_t timeout_ns);
uint64_t rig_op(struct rig_client *client, uint8_t op, uint32_t volume, uint32_t n,
                uint64_t timeout_ns);

/* Takes completions. */
void rig_take(struct rig_client *client);

/* Runs until the answer is there; NULL when it did not come within a minute. */
const struct shm_complete *rig_wait(struct rig_client *client, uint64_t tag);

/* The value of a get that was answered OK, as the client sees it; the lease must be held. */
const uint8_t *rig_leased(struct rig_client *client, uint32_t volume,
                          const struct shm_complete *answer);
void rig_lease_give(struct rig_client *client, uint32_t lease);

/* Whether the answer is a hit whose leased bytes are value n. */
bool rig_value_is(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t bytes,
                  const struct shm_complete *answer);

/* Loads block n of these bytes, with lease 9 of the client; true: from the agent's memory. */
bool rig_load(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t bytes);

/* The agent's counters now; the next call writes over them. */
const struct agent_stats *rig_stats(struct agent_rig *rig);

/* Puts value n into an enclosure, as the volume stores it. */
void rig_flash(struct agent_rig *rig, uint32_t enclosure, uint32_t volume, uint32_t n,
               uint32_t bytes);

/* The enclosure that key n belongs to while none is excluded. */
uint32_t rig_owner(struct agent_rig *rig, uint32_t volume, uint32_t n);

/* Whether a client finds the key in the arena without a message. */
static inline bool rig_arena_has(const struct shm_arena *arena, const struct key *key)
{
    return shm_arena_has_first(arena, key, 1) == 1;
}

/* Whether a client finds key n of a volume there. */
static inline bool rig_in_arena(const struct rig_client *client, uint32_t volume, uint32_t n)
{
    struct key key;

    rig_key(n, &key);
    return rig_arena_has(rig_shard(client, volume, n), &key);
}

/* How many of the keys first, first + 1, ... it finds there. */
static inline uint32_t rig_in_arena_of(const struct rig_client *client, uint32_t volume,
                                       uint32_t first, uint32_t count)
{
    uint32_t there = 0;

    for (uint32_t n = first; n < first + count; n++)
        there += rig_in_arena(client, volume, n);
    return there;
}

#endif
