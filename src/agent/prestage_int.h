/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/prestage_int.h: hints of a reactor, for prestage.c and those beside it.
 */
#ifndef AGENT_PRESTAGE_INT_H
#define AGENT_PRESTAGE_INT_H

#include "agent/agent_int.h"
#include "base/due.h"

/* Lists of hints by key, of a reactor. */
#define HINT_KEY_LISTS 4096

/* The rank of hints of who gives no proof: behind all others of their user. */
#define HINT_RANK_GUEST (ICMS_PRIORITY_MAX + 1)

/* Tiers that blocks are brought to: enum icms_tier. */
#define HINT_TIERS (ICMS_TIER_LOCAL + 1)

enum hint_state {
    HINT_FREE,    /* holds nothing                                                                */
    HINT_QUEUED,  /* in its share's heap; woken by prestage_run                                   */
    HINT_LOADING, /* waits for a load; woken by op_done                                           */
    HINT_WRITING, /* LOCAL: is copied to the drive; woken by hint_written, its timer              */
    HINT_READY,   /* its block is in a slot, or on the drive; woken by hint_read, hint_gone,
                   * hint_drive_read, its timer                                                   */
};

/* A user of a volume, with a tier. */
struct hint_share {
    uint32_t tier;         /* enum icms_tier                                                     */
    struct list link;      /* in the line, while something is QUEUED                            */
    struct list held_link; /* in prestage->held, while it cannot go on                          */
    struct due queue;      /* of its hints that are QUEUED: the first goes next                  */
    struct due kept;       /* of those that are READY and keep bytes: the first gives its place  */
    uint32_t number;       /* of the share in the line                                          */
    uint32_t count;        /* hints, in any state                                               */
    uint64_t kept_bytes;   /* of the arena                                                      */
    uint64_t pinned_bytes; /* of the arena, or of the drive                                      */
    struct list pins;      /* of its hints that are pins: the latest first                       */
};

static inline void hint_share_init(struct hint_share *share, uint32_t tier, uint32_t number)
{
    list_init(&share->link);
    list_init(&share->held_link);
    list_init(&share->pins);
    share->tier = tier;
    share->number = number;
}

/* Where blocks come from: an enclosure, by its number, or the own drive. */
#define HINT_PACE_DRIVE LIMIT_ENCLOSURES
#define HINT_PACES      (HINT_PACE_DRIVE + 1)

/* What loads of hints lately took there, and those in flight: prestage_pace.c. */
struct hint_pace {
    uint64_t load_ns;       /* about; 0: not known                                                */
    uint64_t at_ns;         /* when one was begun or ended last                                   */
    uint64_t load_bytes;    /* in flight                                                          */
    uint64_t overdue_bytes; /* of them                                                            */
};

/* Whether a load may begin for a hint. */
enum hint_credit {
    HINT_CREDIT,         /* it may                                                                */
    HINT_CREDIT_OVERDUE, /* its server has not answered what it was asked long ago                */
    HINT_CREDIT_OTHERS,  /* its server or its shard has enough to do: for a hint of others it may */
    HINT_CREDIT_NONE,    /* for none                                                              */
};

struct agent_hint {
    enum hint_state state;
    bool is_own;     /* LOADING: its load was begun for it                                */
    bool is_overdue; /* LOADING, is_own: it takes long, and is not in the window          */
    bool once;       /* the block will be read once at most, as all of its user say who want it   */
    struct agent_shard *shard;
    struct agent_user_share *user;
    uint32_t user_number; /* user->number: it belongs to nobody who has the place later         */
    struct hint_share *share;
    struct key key;
    uint32_t identity; /* the shard's, when it was taken                                    */
    uint32_t wanted;   /* how often it was taken and not canceled                           */
    uint32_t rank;     /* the smallest goes first; GUEST: nobody else wants it                */
    uint32_t slot;     /* WRITING, READY; NONE: on the drive alone                          */
    uint64_t brought_bytes;  /* READY: of the block, if it was brought for it; else 0             */
    uint64_t need_ns;        /* the deadline: the latest of all who want it */
    uint64_t first_ns;       /* the earliest of theirs, by which it has its turn */
    uint64_t asked_ns;       /* when a get came before the block; 0: none did                     */
    uint64_t begun_ns;       /* LOADING, is_own: when                                             */
    struct hint_pace *pace;  /* LOADING, is_own: of where its block is to come from               */
    uint64_t late_ns;        /* READY: it arrived so long after its deadline                      */
    uint64_t space;          /* bytes that the stored block needs; 0: nobody said                 */
    uint64_t load_bytes;     /* LOADING, is_own: that it counts                                   */
    uint64_t memory_bytes;   /* LOADING, is_own: of the shard                                     */
    uint64_t kept_bytes;     /* of the arena: reserved, LOADING; or kept, READY                   */
    uint64_t pin_ns;         /* until when it is pinned; 0: it is no pin                          */
    uint64_t pinned_bytes;   /* of the tier, that it counts                                       */
    struct list pin_link;    /* a pin: in share->pins                                             */
    bool was_read;           /* a pin: its block was asked for                                    */
    struct agent_hint *also; /* with a slot: the next one with it                                 */
    struct due_member due;   /* QUEUED: in share->queue; READY, with kept bytes: in share->kept   */
    struct list link;        /* in a list of prestage->keys, or prestage->free                    */
    struct agent_waiter waiter; /* LOADING: in op->waiters                                        */
    struct agent_tier_copy copy; /* WRITING                                                       */
    struct loop_timer timer; /* QUEUED: deadline; WRITING, READY: until when it is kept           */
};

/* When it is over: a pin waits as long as it lasts. */
static inline uint64_t hint_until_ns(const struct agent_hint *hint)
{
    return u64_max(hint->need_ns, hint->pin_ns);
}

struct agent_prestage {
    struct agent_reactor *reactor;
    struct agent_hint *hints; /* [AGENT_HINTS]                                                   */
    uint32_t made;            /* hints from this one on were never used, and are not in free     */
    uint32_t used;            /* not FREE                                                        */
    uint32_t user_counts[AGENT_MEMBERS]; /* of them, by user: of all volumes                    */
    uint64_t pins[AGENT_MEMBERS], pins_all; /* by user: of all volumes                          */
    uint64_t pinned_drive[AGENT_MEMBERS], pinned_drive_all; /* bytes, likewise                  */
    struct list free;
    struct list keys[HINT_KEY_LISTS];
    struct hint_share *shares; /* [HINT_TIERS * share_count]                                      */
    uint32_t share_count;      /* volumes * AGENT_MEMBERS                                         */
    struct line lines[HINT_TIERS]; /* shares of a tier that have something QUEUED                 */
    void *line_memory[HINT_TIERS];
    struct list held;      /* shares that cannot go on                                        */
    uint64_t window_bytes; /* of loads in flight that are not overdue                         */
    struct hint_pace paces[HINT_PACES];
    uint32_t drive_loads;   /* of them, for the drive                                          */
    uint32_t drive_writes;  /* hints that are WRITING                                          */
    uint64_t copied_bytes;  /* for them, in this turn                                          */
    bool drive_refused;     /* the write budget refused the last one                           */
    uint64_t drive_from_ns; /* and nothing is begun before that                               */
    struct loop_msg run;
    bool run_sent; /* it is in flight                                                 */
    struct loop_timer retry;
};

/* About how long a load of the hint takes if it is begun now; 0: nobody knows. */
uint64_t agent_hint_load_ns(const struct agent_hint *hint);

/* Whether a load of so many bytes may begin for it. */
enum hint_credit agent_hint_credit(const struct agent_hint *hint, uint64_t bytes);

/* It is LOADING: its own load of so many bytes begins, and may last until then, which is returned;
 * hint->timer ends before that: it is overdue; it is over. */
uint64_t agent_hint_load_begun(struct agent_hint *hint, uint64_t until_ns, uint64_t bytes);
void agent_hint_load_overdue(struct agent_hint *hint);
void agent_hint_load_ended(struct agent_hint *hint, const struct agent_op *op);

/* Whether a hint may keep so many bytes. What gives its place to it stays until it is evicted as
 * any other block, and is loaded again when there is a place. */
bool agent_hint_may_keep(const struct agent_hint *hint, uint64_t bytes);

/* It keeps so many bytes, and none before. */
void agent_hint_keep(struct agent_hint *hint, uint64_t bytes);

/* READY, and keeps bytes: the latest one is the first of its share to give its place. */
void agent_hint_kept_push(struct agent_hint *hint);

/* Harmless when it keeps none. */
void agent_hint_keep_no_more(struct agent_hint *hint);

/* Whether so many bytes more may be pinned for a share. */
bool agent_pin_fits(struct agent_shard *shard, const struct hint_share *share, uint64_t bytes);

/* What a block takes of the tier; what blocks usually take where that is not known yet. */
uint64_t agent_pin_bytes(const struct agent_shard *shard, const struct hint_share *share,
                         const struct key *key, uint32_t slot);

/* The hint is a pin, with so many bytes that fit; it is none any more (harmless for one that is
 * none). */
void agent_pin_take(struct agent_hint *hint, uint64_t until_ns, uint64_t bytes);
void agent_pin_give(struct agent_hint *hint);

/* It is known what the block takes: a pin for which that is too much is a hint from now on. */
void agent_pin_settle(struct agent_hint *hint, uint64_t bytes);

/* Of a shard's hints. It has less memory than before: pins that have more than their part of it are
 * hints from now on, the latest of the user that has the most first. */
void agent_pins_fit(struct agent_shard *shard);

bool agent_pin_is_over(const struct agent_hint *hint, uint64_t now_ns);

/* The slot's block is kept while one of the hints that wait for it keeps bytes. */
void agent_hint_slot_set(struct agent_shard *shard, uint32_t slot);

#endif
