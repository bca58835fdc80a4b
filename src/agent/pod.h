/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/pod.h: the set of enclosures that an agent uses, and how another one takes its place
 * (pod.c; agent_pod_apply in agent.h is the way in).
 *
 * A slot (a number below LIMIT_ENCLOSURES, a bit of masks) belongs to one enclosure, by its UUID,
 * for as long as it is in the pod. What reactors use for placement is a view: immutable, made by
 * control, taken by each reactor in a turn of its loop, used inside one turn only.
 *
 * An epoch. agent_pod_apply() gives the agent another set of enclosures. All of it is checked, keys
 * are read and memory is taken before anything changes; then each reactor takes the new view
 * (struct agent_view) in one turn of its loop, and the old one is freed after the last has. Nothing
 * on the data path locks.
 *
 *   epoch n  owners = UP + JOINING (new blocks)     former = UP + DRAINING (NULL: the same)
 *            with the weights of now                with former weights, where they are another
 *   load     owner -- misses --> former owner -- has it --> answered, stored at the owner
 *   match    the same in batches: a command an enclosure for the owners, one for the former
 *   store    owner only           delete  owner and next in order of both
 *   flush    where stores are dirty
 *
 * - An enclosure has a slot, by its UUID, while it is in the pod. One that stays keeps it, with
 *   associations and health. One whose NQN or keys changed is closed and opened anew
 *   (agent_enclosure_relink()), in its slot. So is the link to an address that changed, while the
 *   other links of the enclosure go on.
 * - One that leaves is closed: what is in flight there comes back as lost and goes on with the
 *   next. Stores there that were not flushed fail the client's next flush, once. Its slot is
 *   used again when all reactors have closed it.
 * - A block is moved when a load finds it at the former owner: stored if absent, in the class of
 *   stores, if its trailer is right, and while stores leave half of backlog, operations and
 *   memory (op_move_fits()); else it is counted and read there again the next time. Loads into
 *   the memory of a caller go through the arena for keys whose owner changed: nothing may read
 *   that memory after the answer.
 * - `former` has one step of history: an enclosure that joins while another one is joining takes
 *   blocks that only that one has, and one that joins while another one is draining takes blocks
 *   that were written since then. Let one be up, or leave, before the next joins. A weight that
 *   changes without a former weight moves runs without a former owner.
 * - Two agents have another epoch for a moment. Each finds what the other stored: owners of one
 *   are owners or former owners of the other. Targets and agents tell of different enclosures
 *   when that lasts (AGENT_SETTLE_NS).
 * - An agent that loads a block from its former owner while another one deletes it may store it
 *   again.
 * - A volume whose UUID is another one in the view is reset (agent_shard_identity_set()):
 *   requests in flight end by themselves, and each association looks for the namespace of the
 *   new UUID at once.
 */
#ifndef AGENT_POD_H
#define AGENT_POD_H

#include <pthread.h>
#include <stdatomic.h>

#include "agent/agent.h"
#include "nvmf/host.h"
#include "place/place.h"

struct agent_enclosure;
struct agent_keys;
struct agent_link;
struct agent_op;
struct agent_reactor;
struct agent_shard;

/* Agents have another epoch for a while, and targets remember for NVMF_TARGET_SETTING_NS (60 s)
 * what others told them, which they do every NVMF_TELL_NS (20 s): so long after an epoch it says
 * nothing that others have other enclosures. */
#define AGENT_SETTLE_NS ((uint64_t)120 * 1000 * 1000 * 1000)

/* ---- the view ------------------------------------------------------------------------------- */

struct agent_view {
    uint64_t epoch;
    uint64_t members;         /* bit j: enclosure j is in the pod                          */
    struct place_map *owners; /* who has blocks: UP and JOINING; NULL: there is none       */
    struct place_map *former; /* who had them: UP and DRAINING, by former weights; NULL: the same,
                                 or nobody                                                 */
    uint8_t numbers[LIMIT_ENCLOSURES]; /* of the enclosure, by member of both maps         */
    struct nvmf_settings settings;     /* what all agents have to agree about              */
    struct agent_identity volumes[LIMIT_AGENT_VOLUMES]; /* by the agent's number           */
};

/* The enclosure of a rank of a slot (place_slot(), the same in both maps); UINT32_MAX: none. */
static inline uint32_t agent_view_rank(const struct agent_view *view, const struct place_map *map,
                                       uint32_t slot, uint32_t rank)
{
    uint32_t member = place_rank(map, slot, rank);

    return member == UINT32_MAX ? UINT32_MAX : view->numbers[member];
}

/* ---- who is asked for a key ----------------------------------------------------------------- */

struct agent_search {
    uint64_t tried;   /* bit j: enclosure j was asked                                      */
    uint64_t epoch;   /* of the view by which the first one was asked                      */
    bool owner_down;  /* one before the one that is asked is excluded, or was lost         */
    bool owner_lacks; /* one before the one that is asked lacks the volume                 */
    bool is_missed;   /* one that was asked does not have it                               */
    bool may_be_next; /* it may be with the next in order                                  */
    bool at_former;   /* the one that is asked owned it before                             */
    uint8_t passed;   /* from 1: the owner, who is asked behind the next one; 0: it is first  */
};

/* Who is asked next; NULL: nobody. First the first in the key's order that is not excluded and has
 * the volume; where the owner's share is lowered, for a part of the slots the next in order, and
 * then the owner. When one misses it, the former owner, and the next in order where the one that
 * misses it was away lately. */
struct agent_enclosure *agent_op_pick(struct agent_shard *shard, const struct key *key,
                                      struct agent_search *search);

/* This one is asked now. */
void agent_search_asked(struct agent_search *search, const struct agent_enclosure *enclosure);

/* It does not have the key; true: another one may have it. */
bool agent_search_missed(const struct agent_shard *shard, struct agent_search *search,
                         const struct agent_enclosure *enclosure);

/* It was lost, or (lacks) has no such volume: the next in order is asked. */
void agent_search_lost(struct agent_search *search, bool lacks);

/* Counts whether the former owner had a key that it was asked for. */
void agent_search_count(struct agent_shard *shard, const struct agent_search *search,
                        bool is_found);

/* Whether a load of the key may find it at its former owner. */
bool agent_op_may_move(const struct agent_shard *shard, const struct key *key);

/* ---- associations --------------------------------------------------------------------------- */

/* Of one reactor with one address of an enclosure. */
struct agent_association {
    struct nvmf_ctrl *ctrl;  /* NULL: none                           */
    struct agent_keys *keys; /* what it uses, held                   */
    struct loop_addr addr;
    uint64_t identity;              /* of the enclosure: a hash of its UUID and NQN  */
    char serial[UUID_SERIAL_BYTES]; /* that it has if it is an icms-target           */
};

/* One that is not opened yet, for a link of an enclosure, which is at this address. Any thread. */
icms_err agent_association_new(struct agent_link *link, const struct agent_enclosure_opts *opts,
                               const struct loop_addr *addr, struct agent_keys *keys,
                               const struct agent_view *view, struct err_why *why,
                               struct agent_association *out_association) ICMS_MUST_CHECK;

/* It is closed, or was never opened, or is empty. It is empty then. */
void agent_association_free(struct agent_association *association);

/* ---- the pod -------------------------------------------------------------------------------- */

/* A slot. */
struct agent_member {
    bool is_member;                      /* an enclosure of the view has it                      */
    struct agent_enclosure_opts opts;    /* of the last one that had it; without names of files   */
    struct loop_addr addrs[LIMIT_LINKS]; /* where its links lead to, by place; no host: none  */
    struct agent_keys *keys;             /* NULL: no enclosure has it                         */
    _Atomic uint32_t reactors;           /* that use it, or still close what they had of it      */
};

/* What one reactor has to do for a view. */
struct agent_plan_part {
    struct loop_msg msg;
    struct agent_plan *plan;
    struct agent_reactor *reactor;
    /* by slot and link: new ones, for those in plan->relinks */
    struct agent_association associations[LIMIT_ENCLOSURES][LIMIT_LINKS];
};

/* A view on its way to all reactors. */
struct agent_plan {
    struct agent *agent;
    const struct agent_view *view;
    struct agent_view *old; /* freed when all have the new one                                 */
    uint64_t leaves;        /* bit j: enclosure j leaves                                       */
    uint8_t relinks[LIMIT_ENCLOSURES]; /* bit i: link i has a new association, or none any more  */
    _Atomic uint32_t left; /* reactors that have not taken it                                 */
    void (*done)(void *arg);
    void *arg;
    uint32_t part_count;
    struct agent_plan_part parts[]; /* by reactor */
};

/* What is known of the enclosure of a slot since one of its links was up, for all reactors. */
struct agent_known {
    uint64_t identity;              /* agent_association.identity; 0: nothing is known */
    char serial[NVMF_SERIAL_BYTES]; /* of its NVM subsystem                          */
};

struct agent_pod {
    char name[LIMIT_NAME_BYTES]; /* of the map; "": there is none; never changes          */
    pthread_mutex_t known_lock;  /* of known; held for a few instructions, on reactors */
    struct agent_known known[LIMIT_ENCLOSURES];
    pthread_mutex_t lock;            /* of members and volumes: control threads               */
    char refused[ERR_WHY_BYTES_MAX]; /* why the map of the source is not in use; lock        */
    struct agent_member members[LIMIT_ENCLOSURES];
    struct agent_identity volumes[LIMIT_AGENT_VOLUMES]; /* of the newest view        */
    struct agent_view *view;  /* the newest; changed by the one call that is not over   */
    struct agent_plan *plan;  /* of the last call; NULL: none yet; likewise             */
    _Atomic bool is_applying; /* a call is not over                                     */
    _Atomic uint64_t epoch;   /* that all reactors have                                 */
    _Atomic uint64_t mask;    /* bit j: enclosure j is in the newest view               */
};

/* Whether the enclosures can be those of an agent. No I/O. */
icms_err agent_pod_check(const struct agent_enclosure_opts *enclosures, uint32_t count,
                         struct err_why *why) ICMS_MUST_CHECK;

/* The first view, before reactors run; they have shards. */
icms_err agent_pod_init(struct agent *agent, const struct agent_opts *opts,
                        struct err_why *why) ICMS_MUST_CHECK;

/* After reactors ended, and what they have of enclosures. */
void agent_pod_fini(struct agent *agent);

#endif
