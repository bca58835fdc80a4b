/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target/target_int.h: what the files of target share. Private.
 */
#ifndef TARGET_TARGET_INT_H
#define TARGET_TARGET_INT_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/counter.h"
#include "place/place.h"
#include "target/target.h"

#define TARGET_REQ_MAGIC 0x71657274u /* "treq" */

/* List. Keys that one pass over the drives collects; places of an index that are looked at before
 * others have their turn on the loop, some 20 us; and such slices of one drive in a pass. */
#define TARGET_LIST_KEYS   4096
#define TARGET_LIST_STEPS  512
#define TARGET_LIST_SLICES 4

/* A drive that does not keep up gets one part in so many of the buffers; so do mutations that wait
 * for others of their keys. */
#define TARGET_SHARE 8

/* Chains of a loop's table of keys that are being mutated. */
#define TARGET_KEY_CHAINS 1024

/* Counters of values that moved. A search that found nothing begins anew when that of its key
 * changed meanwhile, at most so often. */
#define TARGET_MOVES        256
#define TARGET_SEARCHES_MAX 8

struct target_req;

/* ---- members -------------------------------------------------------------------------------- */

/* Drives that a list names, with those that are gone. */
#define TARGET_NOTE_ROWS 239

struct target_note_row_df {
    struct uuid drive; /* zeros: the row is free                                 */
    uint8_t missed;    /* 1: it missed a mutation while it was out of service; of the drive that
                          has the list: it left the enclosure                    */
};

/* The drives of the enclosure, as one of them knows them: the owner's note of its store. */
struct target_note_df {
    struct target_note_row_df rows[TARGET_NOTE_ROWS]; /* in no order, its own among them */
    uint8_t reserved[STORE_NOTE_BYTES - TARGET_NOTE_ROWS * 17]; /* zeros */
};
static_assert(sizeof(struct target_note_df) == STORE_NOTE_BYTES, "no padding");

/* ---- generations ---------------------------------------------------------------------------- */

/* What the enclosure knows of a volume of a name, of which its drives may have blocks. */
struct target_generation_df {
    le64 name;         /* a hash of it; 0: the entry is free                    */
    le32 generation;   /* the highest that it had                               */
    uint8_t is_sealed; /* of that generation                                    */
    uint8_t uuid[3];   /* of a hash of its UUID                                 */
};
static_assert(sizeof(struct target_generation_df) == 16, "no padding");

/* The pod map that the enclosure applied last. */
struct target_epoch_df {
    le32 pod;   /* pod_name_hash() of its pod; 0: it had none */
    le32 epoch; /* the highest of that pod                    */
};

#define TARGET_PAGE_GENERATIONS (STORE_NOTE_BYTES / sizeof(struct target_generation_df))
#define TARGET_GENERATIONS      ((STORE_NOTES - 1) * TARGET_PAGE_GENERATIONS)
static_assert(TARGET_GENERATIONS >= LIMIT_VOLUMES, "each volume has an entry");

struct target_generations_df {
    struct target_generation_df entry[TARGET_PAGE_GENERATIONS];
    struct target_epoch_df map; /* zeros behind the first page */
};
static_assert(sizeof(struct target_generations_df) == STORE_NOTE_BYTES, "no padding");

/* Entries by no order; pages 1 and on of the owner's notes of each drive. */
struct target_generations {
    struct target_generations_df page[STORE_NOTES - 1];
};

/* ---- volumes -------------------------------------------------------------------------------- */

/* Tenants of volumes that begin later and name none that is known: one for each number. Those of
 * volumes that are gone keep their places, as their counters do. */
#define TARGET_TENANTS_SPARE LIMIT_VOLUMES

/* What goes by the number of a volume. */
struct target_volume {
    bool is_known;   /* the number has a volume                                    */
    bool is_live;    /* it is not retired                                          */
    bool was_served; /* commands may have reached it: not when its change was refused */
    uint32_t tenant;
    struct volume_spec spec; /* its hosts are nvmf/target's                      */
};

/* Tenants, by number. */
struct target_tenants {
    uint32_t count;
    bool is_listed[TARGET_TENANTS]; /* else a volume named it */
    struct tenant_spec spec[TARGET_TENANTS];
};

struct target_change;        /* volumes.c       */
struct target_drives_change; /* drives_change.c */

/* ---- drives --------------------------------------------------------------------------------- */

/* Keys of a draining drive that were loaded, or that the walk found next. */
#define TARGET_MOVE_KEYS 64

/* After a move that failed nothing moves for so long. */
#define TARGET_MOVE_PAUSE_NS ((uint64_t)1000 * 1000 * 1000)

struct target_move_key {
    uint32_t volume;
    struct key key;
};

/* What moves from a drive that drains (move.c); its loop's. */
struct target_move {
    uint8_t *memory;            /* for one value; NULL: the drive never drained          */
    uint64_t memory_bytes;      /* of it                                                 */
    bool is_busy;               /* call is on its way                                    */
    struct target_call call;    /* the move of one value                                 */
    uint64_t pause_ns;          /* nothing moves before                                  */
    uint64_t again_ns;          /* no walk begins before                                 */
    uint32_t volume;            /* where the walk is; UINT32_MAX: before the first       */
    struct store_position at;   /* behind the last key of keys                           */
    uint32_t key_volume;        /* of keys                                               */
    uint32_t key_at, key_count; /* of keys: the next one, and how many                  */
    struct store_position keys[TARGET_MOVE_KEYS];  /* that the walk found                */
    uint32_t used_count;                           /* of used                            */
    struct target_move_key used[TARGET_MOVE_KEYS]; /* that were loaded                  */
    uint64_t moved;       /* values; others read it                                */
    _Atomic bool is_full; /* the walk stopped: the others have no space            */
};

struct target_drive {
    struct target *target;
    uint32_t index;
    struct target_drive_opts given; /* its path is the next                                    */
    char path[LIMIT_PATH_BYTES];
    struct loop *loop; /* its store's                                                  */
    _Atomic(struct store *) store; /* NULL: could not be opened                                */
    struct uuid uuid; /* for placement: of its superblock; out since the start: unknown  */
    double weight;    /* bytes                                                        */
    _Atomic uint8_t part_percent; /* of its weight, for new values; the control thread's       */
    uint64_t drive_bytes;         /* all of it; 0: could not be opened                            */
    icms_err err;                 /* since the start: why it could not be used ...                */
    char why[256];                /* ... in words                                                 */
    _Atomic bool quota_sent;      /* quota_msg was sent and has not arrived                       */
    struct loop_msg quota_msg;    /* to the drive's loop: its store looks at the quotas         */
    /* members.c, on the drive's loop */
    struct target_note_df note; /* on flash, or being written                                 */
    bool note_lost;             /* at the start: it was damaged                               */
    bool is_behind;             /* at the start: it may have missed a mutation                */
    bool note_busy;             /* being written                                              */
    struct list note_waiting;   /* target_req.link: mutations that wait for its end           */
    struct store_note note_op;  /* the write                                                  */
    /* slow.c, on the drive's loop */
    struct list flying;            /* target_req.link: what is at the store, oldest first     */
    uint64_t flying_bytes[2];      /* of their buffers: loads, stores                         */
    _Atomic uint32_t lates;        /* operations in a row that were late; others look at it   */
    _Atomic uint32_t probe_lates;  /* the same of probes                                      */
    uint32_t probes_good;          /* probes in a row that were not                           */
    bool probing;                  /* a probe is under way                                    */
    uint64_t probe_begin_ns;       /* since when                                              */
    uint64_t probe_best_ns;        /* the shortest one; 0: none yet                           */
    uint8_t *probe_memory;         /* a page                                                  */
    struct store_probe probe;      /* the one under way                                       */
    struct loop_timer probe_timer; /* starts the next one                                     */
    _Atomic uint64_t slow_total;   /* how often it became slow                                */
    uint64_t hits[LIMIT_VOLUMES];  /* counter.h: loads that found the block                   */
    struct hist read_ns;           /* from the store's read to its end                        */
    struct hist write_ns;          /* the same of writes                                      */
    struct target_move move;
    /* drives_change.c: the end */
    _Atomic uint32_t values;  /* mutations in flight whose value is here                  */
    _Atomic bool is_leaving;  /* its loop waits until nothing is in flight here           */
    struct store *closing;    /* at rest; freed when no loop knows it any more            */
    struct loop_msg left_msg; /* goes round all loops                                     */
    uint32_t left_at;         /* on which it is                                           */
    _Atomic bool is_left;     /* the control thread may free it                           */
};

/* ---- List ----------------------------------------------------------------------------------- */

/* One pass at a time on each loop: it needs memory for keys of all drives. */
struct target_list {
    struct target_req *owner;    /* who has it; NULL: free                              */
    struct list parked;          /* requests in LIST_WAIT, oldest first                 */
    struct store_position until; /* this pass gives keys up to here                     */
    bool open;                   /* no drive set until yet: the first one does          */
    struct store_position at;    /* where the drive that is asked got                   */
    uint32_t slices;             /* of that drive                                       */
    uint32_t drains;             /* drives (bits) that drained when the pass began      */
    uint32_t found_count;        /* of that drive                                       */
    uint32_t key_count;          /* merged so far in this pass                          */
    struct store_position keys[TARGET_LIST_KEYS];   /* of the drives before, in order   */
    struct store_position found[TARGET_LIST_KEYS];  /* of one drive                     */
    struct store_position merged[TARGET_LIST_KEYS]; /* scratch                          */
};

/* ---- requests ------------------------------------------------------------------------------- */

enum target_req_state {
    TARGET_REQ_FREE,     /* not in use                                                           */
    TARGET_REQ_NEW,      /* just came from nvmf, on the queue pair's loop                        */
    TARGET_REQ_LOOK,     /* load, exist: asks the index of the next drive in order; woken by
                            target_req_arrived on that drive's loop                              */
    TARGET_REQ_READ,     /* waits for flash; woken by store_read's done. Meanwhile
                            target_read_more tells the queue pair's loop what may be sent        */
    TARGET_REQ_KEY,      /* store, delete: goes to the home of its key; woken by
                            target_req_arrived                                                   */
    TARGET_REQ_KEY_WAIT, /* waits there for an earlier mutation of the key; woken by
                            target_run_key_end of that one                                       */
    TARGET_REQ_FETCH,    /* a move: goes to the drive that drains, to read the value there; woken by
                            target_req_arrived                                                   */
    TARGET_REQ_FETCH_END, /* waits for flash; woken by store_read's done                          */
    TARGET_REQ_PROBE,     /* store with a condition: asks the next drive in order; woken by
                             target_req_arrived                                                   */
    TARGET_REQ_APPEND,    /* goes to the first drive in service; woken by target_req_arrived      */
    TARGET_REQ_WRITE,     /* waits for flash; woken by store_write's done                         */
    TARGET_REQ_KILL,      /* store, delete: the next drive that must not have the key deletes it;
                             woken by target_req_arrived                                          */
    TARGET_REQ_VALUE_SYNC,  /* store, before the first older value is deleted: goes to the drive
                               that has the new one, to flush it; woken by target_req_arrived     */
    TARGET_REQ_VALUE_FLUSH, /* waits until the new value is durable; woken by store_flush's done */
    TARGET_REQ_KILL_END,  /* waits for flash; woken by store_delete's done                        */
    TARGET_REQ_UNDO,      /* store whose older value could not be deleted: goes to the drive that
                             has the new one, to delete that; woken by target_req_arrived         */
    TARGET_REQ_NOTE,      /* visits every drive when one is out that may have missed the mutation;
                             woken by target_req_arrived, target_note_done                        */
    TARGET_REQ_SCAN,      /* exist-many: visits every loop; woken by target_req_arrived           */
    TARGET_REQ_LIST_WAIT, /* waits for the loop's list memory; woken by the pass that ends        */
    TARGET_REQ_LIST,      /* visits every drive; woken by target_req_arrived                      */
    TARGET_REQ_SYNC,      /* flush: goes to the next drive; woken by target_req_arrived           */
    TARGET_REQ_FLUSH,     /* waits for flash; woken by store_flush's done                         */
    TARGET_REQ_KEY_END,   /* store, delete: goes home and releases its key; woken by
                             target_req_arrived                                                   */
    TARGET_REQ_REPLY,     /* goes back to the queue pair's loop; woken by target_req_arrived      */
    TARGET_REQ_STATES,
};

enum target_step {
    TARGET_NEXT, /* run the new state                              */
    TARGET_WAIT, /* something wakes it                             */
    TARGET_END,  /* answered: the slot is nvmf's again             */
};

struct target_req {
    uint32_t magic;              /* TARGET_REQ_MAGIC                                           */
    enum target_req_state state; /* set by target_req_state_set                                 */
    struct trace trace;          /* when it was set to what                                     */
    struct target *target;
    struct nvmf_target_req *nvmf; /* the command; ours until it is answered                     */
    struct target_call *call;     /* who gets the answer; NULL: nvmf/target                     */
    struct loop *at;              /* where it is now, or goes                                   */
    struct loop_msg msg;          /* carries it between loops                                   */
    struct list link;             /* LIST_WAIT: list.parked; READ, WRITE, KILL_END: drive.flying;
                                     NOTE: drive.note_waiting                              */
    struct list key_link;         /* KEY to KEY_END: in the table of its key's home, whose loop
                                     alone touches it                                            */
    bool has_key;                 /* it is in that table                                         */
    bool streamed;                /* READ: value, done_bytes and record of nvmf are set, and some of
                                     the value may have been sent                                */
    _Atomic uint32_t good_bytes;  /* READ: of it, what may be sent                               */
    _Atomic bool more_sent;       /* READ: more_msg was sent and has not arrived                 */
    struct loop_msg more_msg;  /* READ: takes good_bytes to the queue pair's loop, ahead of msg */
    uint64_t begin_ns;         /* READ, WRITE, KILL_END: when it went to the store          */
    bool late;                 /* READ, WRITE, KILL_END: and was counted as late            */
    uint32_t slot;             /* of its key in the map of drives                            */
    uint32_t asked;            /* drives (bits) that had their turn                          */
    uint32_t moves;            /* LOOK, SCAN: target_moves when the search began             */
    uint32_t searches;         /* LOOK, SCAN: that found nothing                             */
    uint32_t index;            /* SCAN: loop; LIST: turn of a drive; SYNC, NOTE: drive          */
    uint32_t home;             /* LIST: whose list memory; index of the queue pair's loop    */
    uint32_t drive;            /* READ, WRITE, KILL_END: where; before: TRACE_NOWHERE       */
    uint32_t value_drive;      /* STORE: where the value went; UINT32_MAX: nowhere           */
    uint64_t out;              /* NOTE: drives (bits, with the era) that are being noted     */
    struct target_drive *from; /* a move: the drive that drains; else NULL                   */
    bool found;                /* DELETE: somewhere                                          */
    bool is_durable;           /* STORE: the value was flushed since it was written           */
    bool is_left;              /* STORE: a drive that is out may have its value              */
    enum icms_miss reason;     /* the best reason for a miss so far                          */
    icms_err err; /* SYNC, KILL, UNDO: first error; NOTE: the answer of a store           */
    struct store_position list_from; /* LIST: the next pass gives keys behind this              */
    bool list_placed; /* LIST: list_from is set                                     */
    uint32_t list_bytes, list_count; /* LIST: written into the buffer                            */
    union {
        struct store_read read;
        struct store_write write;
        struct store_delete delete;
        struct store_flush flush;
    } op; /* one at a time */
};

struct target {
    struct target_opts opts;
    struct loop *loops[LIMIT_LOOPS];
    struct nvmf_target *nvmf;
    struct target_drive drives[LIMIT_DRIVES];
    struct store_quota quotas[LIMIT_VOLUMES]; /* of volumes that have one                  */
    bool sealed[LIMIT_VOLUMES];               /* of each volume; never changes              */
    pthread_mutex_t lock; /* of the next four, to read them elsewhere, and of drives: stores that
                             others than loops read are not freed meanwhile */
    struct target_volume volumes[LIMIT_VOLUMES]; /* by number; the control thread writes     */
    uint32_t volume_count;                       /* numbers below it were used; likewise     */
    struct target_tenants tenants;               /* likewise                                 */
    uint32_t tenants_max;     /* that nvmf/target knows                                    */
    uint64_t value_bytes_max; /* largest stored value that drives and buffers are made for */
    struct target_generations generations; /* likewise; on all drives in service           */
    struct target_change *change; /* the control thread's: not over                        */
    struct target_drives_change *drives_change; /* likewise                                */
    _Atomic(struct place_map *) map; /* order of drives; each is immutable                  */
    uint8_t home[PLACE_SLOTS]; /* the loop at which mutations of a slot's keys wait for each other:
                                  that of the drive which was first at the start. Never changes */
    _Atomic uint64_t out;      /* bit i: drive i is not in service, or there is none; above them the
                                  era, which changes with what is in service (drives.c)          */
    uint32_t loop_drives[LIMIT_LOOPS]; /* drives (bits) that live on each loop                  */
    _Atomic uint32_t listed; /* bit i: drive i is configured                                  */
    _Atomic uint32_t drains; /* bit i: drive i takes no values any more                       */
    _Atomic uint32_t joins;  /* bit i: drive i is about to be in service, and holds nothing   */
    _Atomic uint32_t slow;   /* bit i: drive i is passed over for now                       */
    _Atomic uint64_t noted;  /* target.out when all in service noted who is not; UINT64_MAX: not
                                since the start                                             */
    _Atomic uint32_t moves[TARGET_MOVES]; /* values that went from one drive to another, by slot */
    _Atomic uint64_t flying_bytes[2]; /* of buffers at stores: loads, stores                   */
    struct list *keys; /* key.c: TARGET_KEY_CHAINS chains (target_req.key_link) a loop  */
    _Atomic uint64_t key_wait_bytes; /* of buffers that wait for keys                         */
    _Atomic bool is_serving;         /* target_start is through */
    _Atomic bool draining;
    uint64_t hash_seed; /* of the stores                                        */
    _Atomic uint64_t quota_errors;
    uint64_t started_ns; /* target_new ended                                             */
    /* When the last load that counts ended (target_load_count); 0: none. By place of the drive,
     * whose loop writes, and by volume; it stays when the drive goes */
    _Atomic uint64_t loaded_ns[LIMIT_DRIVES][LIMIT_VOLUMES];
    struct target_list *lists;      /* one a loop                                           */
    struct trace_book *books;       /* one a loop, of requests that came from it and are over */
    uint32_t started;               /* loops that run                                       */
    char serial[UUID_SERIAL_BYTES]; /* of the subsystem                                */
    struct target_drive_opts drive_opts[LIMIT_DRIVES]; /* copy of opts.drives, at the start      */
};

static_assert(LIMIT_DRIVES <= 32, "target.out has 32 bits for drives");

/* Which of the target's loops it is. */
static inline uint32_t target_loop_index(const struct target *target, const struct loop *loop)
{
    uint32_t i = 0;

    while (i < target->opts.loops && target->loops[i] != loop)
        i++;
    check(i < target->opts.loops);
    return i;
}

/* To read volumes, tenants and the drives' stores, paths and numbers on another thread than the one
 * that changes them, or their loop. */
static inline void target_lock(const struct target *target)
{
    pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&target->lock);
}

static inline void target_unlock(const struct target *target)
{
    pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&target->lock);
}

/* Every state but FREE is noted with its time (/trace). */
static inline void target_req_state_set(struct target_req *req, enum target_req_state state)
{
    req->state = state;
    trace_state(&req->trace, (uint8_t)state, loop_now_ns(req->at));
}

/* ---- check.c -------------------------------------------------------------------------------- */

/* What the store of a drive is opened with: all but volumes and seed. */
void target_store_opts(const struct target_opts *opts, const struct target_drive_opts *given,
                       struct store_opts *out);

/* CONFIG when a quota is larger than the drives together: it limits nothing, so it is a mistake. */
icms_err target_quota_check(const struct volume_spec *volume, uint64_t drives_bytes,
                            struct err_why *why) ICMS_MUST_CHECK;

/* The same sentence with the drive's name and what to do about it. */
icms_err target_drive_unformatted(uint32_t drive, icms_err err, struct err_why *why);

/* What is on a drive that shall not be overwritten, and whether it can be opened or formatted;
 * drive: its number, for sentences; *out_note: what is not as the options say, and yet goes;
 * untouched when there is nothing. */
icms_err target_drive_look(const struct target_opts *opts, const struct target_drive_opts *given,
                           uint32_t drive, struct err_why *why, struct store_contents *out_found,
                           struct err_why *out_note) ICMS_MUST_CHECK;

/* ---- tenant.c ------------------------------------------------------------------------------- */

/* Those of a configuration, with the numbers that they have among was: the others are of weight 1.
 */
void target_tenants_list(const struct tenant_spec *listed, uint32_t count,
                         const struct target_tenants *was, struct target_tenants *out);

/* Number of the tenant that a volume belongs to; makes the one that is not listed. TARGET_TENANTS:
 * there is no place. */
uint32_t target_tenant_of(struct target_tenants *tenants, const struct volume_spec *volume);

/* All of them, as nvmf/target takes them: TARGET_TENANTS places, which the caller frees; NULL: no
 * memory. */
struct nvmf_target_tenant *target_tenants_nvmf(const struct target_tenants *tenants);
void target_tenants_stats(const struct target *target, struct target_stats *out_stats);

/* ---- volumes.c ------------------------------------------------------------------------------ */

/* Before the drives are opened: the volumes of the options get their numbers, and their tenants. */
void target_volumes_init(struct target *target);

/* A volume as nvmf/target takes it. */
void target_volume_nvmf(const struct target *target, const struct volume_spec *spec,
                        uint32_t tenant, struct nvmf_target_ns *out_ns);

/* After the loops were freed. */
void target_volumes_fini(struct target *target);

/* ---- drives.c ------------------------------------------------------------------------------- */

/* Opens all drives and adds the volumes; builds the map. What opts.drives names is read. */
icms_err target_drives_open(struct target *target, struct err_why *why);
void target_drives_close(struct target *target);

/* The drives in service (bits). */
static inline uint32_t target_in(const struct target *target)
{
    return ~(uint32_t)atomic_load_explicit(&target->out, memory_order_acquire);
}

/* In service? */
static inline bool target_drive_in(const struct target *target, uint32_t drive)
{
    return (target_in(target) >> drive & 1) != 0;
}

static inline bool target_drive_joins(const struct target *target, uint32_t drive)
{
    return (atomic_load_explicit(&target->joins, memory_order_acquire) >> drive & 1) != 0;
}

/* How many drives are configured, in service or not. */
static inline uint32_t target_listed(const struct target *target)
{
    return (uint32_t)__builtin_popcount(
        atomic_load_explicit(&target->listed, memory_order_acquire));
}

/* The drives (bits) that live on a loop, in service or not: i, i + loops, ... */
static inline uint32_t target_loop_drives(const struct target *target, uint32_t loop)
{
    return target->loop_drives[loop];
}

/* Passed over for new loads and stores? */
static inline bool target_drive_slow(const struct target *target, uint32_t drive)
{
    return (atomic_load_explicit(&target->slow, memory_order_acquire) >> drive & 1) != 0;
}

/* The quota of a volume is this from now on, for drives that count in it. */
void target_volume_quota(struct target *target, uint32_t volume, uint64_t quota_bytes);

/* The part that a drive in service has of it: on the drive's loop, or before it runs. */
icms_err target_drive_limit(struct target_drive *drive, uint32_t volume, uint64_t quota_bytes,
                            struct err_why *why) ICMS_MUST_CHECK;

/* Does one step with each drive in service; those that do not work are left out. */
icms_err target_drives_each(struct target *target,
                            icms_err (*step)(struct target_drive *drive, struct err_why *why),
                            struct err_why *why);

/* What a drive is from now on: nobody uses it. */
void target_drive_init(struct target *target, uint32_t index,
                       const struct target_drive_opts *given);

void target_drive_fini(struct target_drive *drive); /* its store is closed */

/* Opens its store, with the volumes that there are. Blocking; any thread, as nobody knows the store
 * yet. */
icms_err target_drive_open(struct target_drive *drive, struct err_why *why,
                           struct store **out_store) ICMS_MUST_CHECK;

/* The parts of a drive, which need not be in service yet, of the quotas of all volumes: on its
 * loop, or before that runs. */
icms_err target_drive_limits(struct target_drive *drive, struct err_why *why) ICMS_MUST_CHECK;

/* The order of these drives (bits), by number, each with its part of its weight. */
icms_err target_drives_map(const struct target *target, uint32_t drives, struct err_why *why,
                           struct place_map **out_map) ICMS_MUST_CHECK;

/* Whether volumes would have a quota larger than these drives (bits) together. CONFIG. */
icms_err target_drives_quota_check(const struct target *target, uint32_t drives,
                                   const struct volume_spec *volume,
                                   struct err_why *why) ICMS_MUST_CHECK;

/* Formats a drive, one that holds a store only when overwrite is set; learns its UUID and note. */
icms_err target_drive_format(struct target_drive *drive, bool overwrite, struct err_why *why);

void target_warn(struct target *target, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- slow.c --------------------------------------------------------------------------------- */

/* Before and after the loops run. */
icms_err target_slow_init(struct target_drive *drive, struct err_why *why);
void target_slow_start(struct target_drive *drive);

/* A load or store goes to the drive's store; it is over. On the drive's loop. */
void target_slow_begin(struct target_drive *drive, struct target_req *req);
void target_slow_end(struct target_req *req);

/* The drive holds more than its share of the buffers, for too long. On the drive's loop. */
bool target_slow_clogged(const struct target_drive *drive, bool store);

/* ---- request.c ------------------------------------------------------------------------------ */

extern const struct nvmf_target_ops target_nvmf_ops;

/* What a state is called in /trace, and what it does. */
struct target_state {
    const char *name;
    enum target_step (*run)(struct target_req *req);
};
extern const struct target_state target_states[TARGET_REQ_STATES];
void target_req_run(struct target_req *req);

/* True on that loop; else the request is on its way there, and target_req_run is called on it. */
bool target_req_at(struct target_req *req, struct loop *loop);

/* target_req_run is called where the request is, in a later turn of that loop. */
void target_req_defer(struct target_req *req);

/* The request has its answer; the next state. */
enum target_step target_req_answer(struct target_req *req, icms_err err, enum icms_miss reason);

/* Its deadline passed. */
bool target_req_late(const struct target_req *req);

/* A store or delete holds its key; its next state. */
enum target_step target_req_mutate(struct target_req *req);

/* A store or delete did what it had to on the drives in service, and they noted who was out. */
enum target_step target_req_mutated(struct target_req *req);

/* ---- members.c ------------------------------------------------------------------------------ */

/* Before the stores are opened: formats the drives that may have missed a mutation. CONFIG: two
 * drives do not belong together. Blocking. */
icms_err target_members_check(struct target *target, struct err_why *why) ICMS_MUST_CHECK;

/* The drives that are open learn of each other. Blocking. */
icms_err target_members_write(struct target *target, struct err_why *why) ICMS_MUST_CHECK;

enum target_step target_run_note(struct target_req *req);

/* Writes a page of the owner's notes of a drive, on its loop, while none is written
 * (drive->note_busy, until it is over); false: the drive is out of service. */
bool target_note_write(struct target_drive *drive, uint32_t page, const void *bytes);

/* ---- generations.c -------------------------------------------------------------------------- */

/* Whether a volume may begin: not with a generation that is older than one of before, whose blocks
 * would be there again, nor with the same one in another format. CONFIG. */
icms_err target_generation_check(const struct target_generations *known,
                                 const struct volume_spec *volume, const char **out_key,
                                 struct err_why *why) ICMS_MUST_CHECK;

/* It has begun. */
void target_generation_add(struct target_generations *known, const struct volume_spec *volume);

/* The map of opts.pod and its epoch are applied; without a pod nothing. */
void target_epoch_add(struct target_generations *known, const struct target_opts *opts);

/* Hosts are answered with the map that is known, which is applied. */
void target_epoch_tell(struct target *target);

/* At the start, when drives are open: what all of them know is checked, and written to those that
 * lack some of it. CONFIG. Blocking. */
icms_err target_generations_start(struct target *target, struct err_why *why) ICMS_MUST_CHECK;

/* What the drives know that are here and will not be erased; the caller frees it. NULL: no memory.
 * Nothing is changed or locked; a drive that cannot be read knows nothing. Blocking. */
struct target_generations *target_generations_here(const struct target_opts *opts);

/* On the loop of a drive: whether it has them, on flash; else what it lacks is being written, and
 * the answer is for later. */
bool target_generations_know(struct target_drive *drive, const struct target_generations *known);

/* On the loop of a drive in service: whether its list, on flash, has the drive of this UUID, or no
 * row for it (out_has_row: false); else it is being written, and the answer is for later. out_note:
 * the list. */
bool target_members_know(struct target_drive *drive, const struct uuid *joins,
                         struct target_note_df *out_note, bool *out_has_row);

/* On the loop of a drive that is not in service yet: its list, with marks at all that are not in
 * service now. False: it is being written, or cannot be. */
bool target_members_join(struct target_drive *drive, const struct target_note_df *note);

/* On the loop of a drive that is out of service because it leaves, and at which nothing is in
 * flight: whether it has a mark at itself, on flash (or cannot have one); else that is being
 * written. */
bool target_members_leave(struct target_drive *drive);

/* On the drive's loop: mutations that wait for its list look again. */
void target_members_wake(struct target_drive *drive);

/* ---- move.c --------------------------------------------------------------------------------- */

/* Memory for the moves of a drive, if it has none. */
icms_err target_move_init(struct target_drive *drive, struct err_why *why) ICMS_MUST_CHECK;

/* On the drive's loop: the next value moves, if the drive drains and nothing does. */
void target_move_next(struct target_drive *drive);

/* On the drive's loop: a value was loaded; if the drive drains it moves before others. */
void target_move_used(struct target_drive *drive, uint32_t volume, const struct key *key);

/* Moves the value of a key from a drive to another one, on that drive's loop, as target_call. MISS:
 * there is none. */
void target_call_move(struct target_drive *from, struct target_call *call);

/* ---- drives_change.c ------------------------------------------------------------------------ */

/* On the loop of a drive that is leaving, now and then. */
void target_drive_leave(struct target_drive *drive);

/* After the loops were freed. */
void target_drives_change_fini(struct target *target);

/* The drives (bits) that are configured when a change that did not begin yet is over; without one,
 * those that are. The control thread. */
uint32_t target_drives_after(const struct target *target);

/* ---- key.c ---------------------------------------------------------------------------------- */

enum target_step target_run_key(struct target_req *req);
enum target_step target_run_key_wait(struct target_req *req);
enum target_step target_run_key_end(struct target_req *req);

/* ---- list.c --------------------------------------------------------------------------------- */

enum target_step target_list_begin(struct target_req *req);
enum target_step target_list_wait(struct target_req *req);
enum target_step target_list_run(struct target_req *req);

#endif
