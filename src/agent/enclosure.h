/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/enclosure.h: an enclosure as one reactor sees it: its links, their associations, health
 * (enclosure.c); and how it is asked for something (ask.c). Private to the agent.
 *
 * An enclosure has a link to each of its addresses. An association has all its connections to one
 * address, so each link has one of its own.
 *
 *   operation -> agent_enclosure_ask() -> the link with the least in flight -> nvmf_retrieve(), ...
 *      ^                                        | it is lost: PEER_DOWN
 *      |                                        v
 *      +---- answered ---- none is left <- the next link of the same enclosure
 *
 * - The enclosure is UP while one of its links is, and EXCLUDED when all are lost: only then the
 *   next enclosure in the key's order is asked. So a link that is lost costs no miss, while the
 *   deadline leaves time: it is noticed at once, or after silence_ms.
 * - Each link is connected to again by itself (probe_ms), and used when it has answered a load of
 *   what was there last: what takes connections and loses data would take operations with it.
 * - A link that is much later than the others of the enclosure (base/slow.h) has less and less
 *   of the commands, as it keeps what it has for longer; then it is SLOW, passed over and probed.
 *   All links late are an enclosure that is late, which is compared with the other enclosures.
 * - A command may have been executed when its link is lost, and goes out again. A load, an exist
 *   and a flush do not mind. A store has the same value again; with if_absent it may find its own
 *   and answers EXISTS, which is true. A deletion may find nothing any more and answers MISS.
 * Nobody was told that the command was over, so whoever deletes or stores the key meanwhile comes
 * before or after it, as with any two commands at a time. A store that the target still has in hand
 * when its repetition is acknowledged can bring a block back that was deleted after that.
 * - All addresses have to lead to one NVM subsystem: its NQN is asked for, and its serial number is
 *   compared with the one that is known of the enclosure. Known is the one that an icms-target of
 *   its UUID has, from the moment when a link has it; before that, and for other targets, that of
 *   the link that was up first. It stays known while the process lives and the enclosure keeps UUID
 *   and NQN, whatever links fail. A link that leads elsewhere is misdirected: closed, told, and
 *   tried again as one that is down.
 * - Two processes may have one UUID and NQN: a copied configuration, a machine that was cloned.
 * Each target tells a random number of its process. A link that comes up, while another one of the
 * same enclosure is up with another number, waits: the target was restarted, or there are two. The
 * other link is asked for a sign of life. It is lost within silence_ms, and the one that waits is
 * used; or it answers, and the one that waits is misdirected. Each reactor decides for itself.
 * Targets that tell no number are not told apart.
 * - Which of its own NICs a server uses for an address is what its routes say.
 */
#ifndef AGENT_ENCLOSURE_H
#define AGENT_ENCLOSURE_H

#include "agent/pod.h"
#include "base/estimate.h"
#include "base/slow.h"

struct agent_match_cmd;

/* ---- limits --------------------------------------------------------------------------------- */

/* After an enclosure came back, blocks that it misses may be with the one that took over: asked for
 * this long. */
#define AGENT_HEAL_NS ((uint64_t)600 * 1000 * 1000 * 1000)

/* An enclosure that lacks a volume is asked for its namespaces again after so many probe_ms: a look
 * is a few commands a namespace, and enclosures that send events are not waited for. */
#define AGENT_LOOK_PROBES 5

/* Of the block that a slow enclosure is probed with, at most. 1 MB/s needs longer for it than
 * SLOW_FLOOR_NS. */
#define AGENT_PROBE_BYTES ((uint64_t)64 << 10)

/* A probe that is not answered within this time has failed. */
#define AGENT_PROBE_DEADLINE_NS ((uint64_t)1000 * 1000 * 1000)

_Static_assert(LIMIT_ENCLOSURES <= SLOW_PEERS_MAX, "a peer for each enclosure");

/* ---- enclosures ----------------------------------------------------------------------------- */

/* The association of a reactor with one address of an enclosure. Which address: agent_member. */
struct agent_link {
    struct agent_enclosure *enclosure;
    uint32_t at;                   /* its place in enclosure->links                           */
    _Atomic uint32_t state;        /* enum agent_enclosure_state                              */
    _Atomic uint32_t tls;          /* enum net_tls_how of its connections when it came up last */
    _Atomic uint32_t auth;         /* enum agent_auth; likewise                               */
    struct agent_association own;  /* empty: the place is free                                */
    struct agent_association next; /* relinking: the one after it; empty: none                */
    _Atomic bool is_misdirected;   /* EXCLUDED: it leads to another enclosure                 */
    struct agent_link *other; /* connected, it waits: another process is up there; NULL: not so */
    uint64_t other_heard;     /* nvmf_ctrl_heard() of that, when it was asked            */
    bool is_relinking;        /* `own` ends, `next` comes                                */
    bool is_open;             /* `own` was opened, and is not closed                     */
    uint32_t nsid[LIMIT_AGENT_VOLUMES]; /* by the agent's number; 0: it has no such volume    */
    uint32_t value_bytes_max[LIMIT_AGENT_VOLUMES]; /* as stored                               */
    struct loop_timer retry;         /* next try while EXCLUDED, next probe while SLOW        */
    struct loop_timer look;          /* next look for volumes that it lacks                   */
    struct nvmf_req probe_req;       /* a probe: of the link, or of the enclosure by it       */
    bool probing;                    /* it is in flight                                       */
    uint64_t probe_sent_ns;          /* since when                                            */
    uint64_t auths, auths_refused;   /* of `own` when it came up or went down last            */
    uint64_t commands;               /* sent                                                  */
    uint64_t in_flight;              /* of them, not answered                                 */
    uint64_t in_flight_bytes;        /* what they weigh: values, and AGENT_KEY_COST_BYTES each */
    uint64_t exclusions, slow_total; /* times it was lost, became SLOW                        */
    uint64_t load_bytes, store_bytes;
    char last_error[LIMIT_REASON_BYTES]; /* enclosure->text_lock                              */
    uint64_t last_error_ns;              /* when; likewise                                    */
};

/* An enclosure as one reactor sees it. */
struct agent_enclosure {
    struct agent *agent;
    struct agent_reactor *reactor;
    uint32_t number;
    bool is_made; /* the fields of this reactor's slot are set: it was in use at some time */
    _Atomic uint32_t state; /* enum agent_enclosure_state                               */
    struct agent_link links[LIMIT_LINKS];
    uint32_t link_last;     /* the one that took the last command                       */
    struct slow links_slow; /* what each takes for loads and exists                     */
    bool is_leaving;        /* the slot is given back when nothing of it is open any more */
    bool was_relinked;      /* since it was up last: who took over may have blocks of it    */
    _Atomic uint64_t
        appeared_ns[LIMIT_AGENT_VOLUMES]; /* when a volume that it lacked came; 0: never   */
    struct loop_timer probe;        /* next probe while SLOW                                    */
    struct loop_timer late;         /* next look at what is not answered while something was late */
    struct slow *slow_in;           /* SLOW: reactor->slow_loads or slow_exists                 */
    _Atomic uint32_t share_percent; /* of the slots that it owns: what it takes while UP     */
    uint64_t loading_bytes;         /* space of loads in flight                                 */
    uint64_t storing_bytes;         /* of stores in flight                                      */
    struct estimate estimate;       /* of loads, by all links                                   */
    struct { /* for exists, for loads: the last key that was there while UP, else the last */
        struct key key;
        uint32_t volume;
        bool is_known; /* false: none yet */
    } asked[2];
    uint8_t *probe_memory;   /* [AGENT_PROBE_BYTES], of all probes: never looked at      */
    _Atomic bool exist_many; /* it offers exist-many, and that may be used          */
    _Atomic bool enclosures_differ, weights_differ; /* from what other hosts have         */
    _Atomic uint32_t epoch_there; /* of the pod map at its target, later than ours; 0: it is not */
    _Atomic uint32_t run_blocks_others[LIMIT_AGENT_VOLUMES]; /* theirs; 0: the same       */
    _Atomic uint32_t value_max_there[LIMIT_AGENT_VOLUMES];   /* its own, as stored; 0: the same */
    uint64_t began_ns;            /* when CONNECTING began                                    */
    _Atomic uint64_t included_ns; /* last time it came back, or that a store went to the next
                                     one for its share; 0: never                              */
    _Atomic bool tried;           /* once up or excluded                                      */
    uint64_t exclusions, probes, load_bytes, store_bytes;
    uint64_t failovers;            /* commands that another link took over                    */
    uint64_t slow_total;           /* times it became SLOW                                    */
    uint64_t checksum_errors;      /* blocks that it had, and that are damaged                  */
    uint64_t auths, auths_refused; /* of all its associations                               */
    struct hist op_ns[AGENT_LATENCY_COUNT]; /* from sent to answered                        */
    struct hist estimate_error; /* of loads, in thousandths of what was expected            */
    pthread_mutex_t text_lock;  /* of last_error: written on failures, read by status       */
    char last_error[LIMIT_REASON_BYTES];
    uint64_t last_error_ns;  /* when; text_lock                                         */
    uint32_t damaged_volume; /* of the last damaged block; text_lock                    */
    struct key damaged_key;  /* its key; text_lock                                      */
    uint64_t damaged_ns;     /* when; 0: there was none; text_lock                      */
};

/* ---- link.c --------------------------------------------------------------------------------- */

void agent_link_state_set(struct agent_link *link, enum agent_enclosure_state state);
enum agent_enclosure_state agent_link_state(const struct agent_link *link);

/* Its association is up, and it may not have answered its first probe yet. */
bool agent_link_is_connected(const struct agent_link *link);

/* True while it takes commands: from the answer to its first probe to down, or the end. */
bool agent_link_is_up(const struct agent_link *link);

/* Links (bits) that take commands; that have an association, and are in this state. */
uint32_t agent_enclosure_links_up(const struct agent_enclosure *enclosure);
uint32_t agent_enclosure_links_in(const struct agent_enclosure *enclosure,
                                  enum agent_enclosure_state state);

/* Why it is, or a link of it (NULL: none), is not used. */
void agent_enclosure_text_set(struct agent_enclosure *enclosure, struct agent_link *link,
                              const char *text);

/* Volumes by name: which namespace, how large. */
void agent_link_volumes_read(struct agent_link *link);

/* A timer of the link: volumes that it lacks may be there. */
void agent_link_look(struct loop_timer *timer);

/* Which volumes the enclosure lacks: none of its links that are up has them. */
void agent_enclosure_missing_set_all(struct agent_enclosure *enclosure);

/* A volume has another UUID: its namespace is looked for. On its reactor. */
void agent_enclosure_volume_set(struct agent_enclosure *enclosure, uint32_t volume);

/* It answered that it has no such namespace: detached since the last look. */
void agent_link_volume_lost(struct agent_link *link, struct agent_shard *shard);

/* Counters of the address that it had before. What is in flight counts itself. */
void agent_link_counters_reset(struct agent_link *link);

/* Counters of whom had the slot before. Field by field: an operation that comes to its end may
 * still look at `number`. */
void agent_enclosure_counters_reset(struct agent_enclosure *enclosure);

/* ---- enclosure.c ---------------------------------------------------------------------------- */

/* A slot that is free begins anew, with counters at 0. Before its reactor runs, or while nothing of
 * it is in use there. */
icms_err agent_enclosure_make(struct agent_enclosure *enclosure, struct agent_reactor *reactor,
                              uint32_t number, struct err_why *why) ICMS_MUST_CHECK;
void agent_enclosure_fini(struct agent_enclosure *enclosure);

/* Links (bits) take associations instead of those that they have, which are closed first; an empty
 * one: the place is free then. is_leaving: all of them, and the reactor gives the slot back once
 * nothing of it is in use any more. On its reactor. */
void agent_enclosure_relink(struct agent_enclosure *enclosure, uint32_t links,
                            struct agent_association take[LIMIT_LINKS], bool is_leaving);

/* There are other enclosures, which is told to it. On its reactor. */
void agent_enclosure_settings_set(struct agent_enclosure *enclosure,
                                  const struct nvmf_settings *settings);

/* Slow ones are used again where too few others are left. On the loop. */
void agent_enclosures_slow_release(struct agent_reactor *reactor);

/* First connections. On its reactor. */
void agent_enclosure_begin(struct agent_enclosure *enclosure);

/* The link that takes the next command for a volume: of those that are up, have the volume and are
 * not in `but` (bits), the one with the least in flight; a slow one only if there is no other.
 * PEER_DOWN: none is up; NO_VOLUME. */
icms_err agent_enclosure_link(struct agent_enclosure *enclosure, uint32_t volume, uint32_t but,
                              struct agent_link **out_link) ICMS_MUST_CHECK;

/* Looks at what is late there: its share of the slots that it owns. On the loop, now and then. */
void agent_enclosure_share_look(struct agent_enclosure *enclosure);

/* Whether it takes what it owns of a slot: the same slots for the same share. */
static inline bool agent_enclosure_takes(const struct agent_enclosure *enclosure, uint32_t slot)
{
    return slot % 100 < atomic_load_explicit(&enclosure->share_percent, memory_order_relaxed);
}

/* A store went to the next one in order for its share: that one may have blocks of it. */
void agent_enclosure_passed(struct agent_enclosure *enclosure);

/* A load or exist that somebody waits for was sent to an enclosure, and has ended at a link of it,
 * when asked is in no list any more. asked: when it was sent, and the bytes of loads that were in
 * flight there then, with its own. */
void agent_enclosure_sent(struct agent_enclosure *enclosure, bool is_load, struct slow_op *asked);
void agent_link_ended(struct agent_link *link, const struct agent_shard *shard, bool is_load,
                      const struct nvmf_req *req, const struct slow_op *asked);

/* It goes on after its deadline, and nothing is said when it ends. */
void agent_link_missed(struct agent_link *link, const struct agent_shard *shard, bool is_load,
                       const struct nvmf_req *req, const struct slow_op *asked);

/* The same of a store; asked.bytes: of the stores that were in flight. */
void agent_enclosure_store_sent(struct agent_enclosure *enclosure, struct slow_op *asked);
void agent_enclosure_store_ended(struct agent_enclosure *enclosure, const struct nvmf_req *req,
                                 const struct slow_op *asked);

/* ---- ask.c ---------------------------------------------------------------------------------- */

/* Sends op to the enclosure, by one of its links, and by another one when that is lost; ends with
 * op->answered, never inside this call. */
void agent_enclosure_ask(struct agent_enclosure *enclosure, struct agent_op *op);

/* The same for a command of a batch; ends with cmd->answered. */
void agent_enclosure_ask_match(struct agent_enclosure *enclosure, struct agent_match_cmd *cmd);

/* A block that it has is damaged, there or on its way. */
void agent_enclosure_damaged(struct agent_enclosure *enclosure, uint32_t volume,
                             const struct key *key);

/* True when this enclosure, or the volume there, was away lately, so that another one may have its
 * blocks. */
bool agent_enclosure_was_away(const struct agent_enclosure *enclosure,
                              const struct agent_shard *shard);

#endif
