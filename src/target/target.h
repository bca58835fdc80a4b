/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target/target.h: an enclosure: volumes, drives and quotas behind one NVMe/TCP subsystem. It joins
 * nvmf/target, which knows no storage, and store, which knows no protocol.
 *
 * Drives. Drive i and its store belong to loop i modulo the number of loops. Each run of blocks has
 * an order of drives (weighted rendezvous over the drives' UUIDs and sizes, place.h). Stores go to
 * the first in that order that is in service. Loads ask every drive of the order that is in service
 * until one has the block, because stores went further down while a drive was out. So a drive that
 * fails costs its own blocks once, and nothing else. A store also deletes the key on all others of
 * the enclosure, so a key has one value. A drive that was out comes back only with a restart; it is
 * formatted then if anything was replaced or deleted meanwhile. A drive of another enclosure is an
 * error until it is formatted.
 *
 * Threads: target_new, _start, _stop and _free on one control thread; what says "any thread" on
 * any. No threads, files, sockets or clocks but through loop, so it runs under simulation.
 */
#ifndef TARGET_TARGET_H
#define TARGET_TARGET_H

#include "nvmf/target.h"
#include "store/store.h"
#include "trace/trace.h"

struct target;

/* Which drives are formatted at the start. */
enum target_format {
    TARGET_FORMAT_EMPTY,   /* a missing file, and what holds zeros */
    TARGET_FORMAT_ANY,     /* whatever it holds                    */
    TARGET_FORMAT_NOTHING, /* none: an empty one is out of service */
};

struct target_drive_opts {
    const char *path;           /* file or block device                  */
    uint64_t bytes;             /* file: made with this size; 0: as it is */
    uint64_t bytes_per_block;   /* of the drive, for an entry of its index; 0: 64 KiB */
    struct write_budget budget; /* what may be written to it a day */
    enum target_format format;
    bool drains; /* takes no values any more; what it has is read, and moved to the others */
};

struct target_opts {
    struct loop_env *env; /* where loops, drives and sockets come from            */
    const char *name;     /* for people: loops are called after it                */
    /* Its subsystem and data ports: nqn, enclosure, portals, hosts, require, auth_*, marks and
     * limits; store_backlog_bytes of 0 is twice memory_bytes. The rest of it is target's. */
    struct nvmf_target_opts nvmf;
    uint32_t loops;                 /* cores                                                */
    bool busy_poll;                 /* loops spin                                           */
    uint32_t poll_us;               /* loops spin for so long before they sleep             */
    uint64_t segment_bytes;         /* used when a drive is formatted                       */
    bool discard;                   /* drives are told what is free, where they take that   */
    double ready_quota_percent_max; /* readiness limit on quota use; 0: off                 */
    double ready_out_percent_max;   /* readiness limit on the share of drives out of service    */
    void (*warned)(const char *sentence);   /* what is not as it should be, for the log; or NULL */
    const struct target_drive_opts *drives; /* 1..LIMIT_DRIVES                                   */
    uint32_t drive_count;
    const struct tenant_spec *tenants; /* 0..LIMIT_TENANTS; copied. Volumes may name others, which
                                          have weight 1 and no limit                           */
    uint32_t tenant_count;
    const struct volume_spec *volumes; /* 0..LIMIT_VOLUMES; copied                               */
    uint32_t volume_count;
    const char
        *pod; /* whose map the volumes are of; NULL: there is none; until target_new returns */
    uint32_t pod_epoch; /* of that map                                      */
};

/* Defaults for everything but env, nqn, enclosure, the address of the one portal, drives and
 * volumes. */
void target_opts_init(struct target_opts *opts);

/* Whether these options go together, as target_new asks first. CONFIG with a sentence. No I/O. */
icms_err target_check(const struct target_opts *opts, struct err_why *why) ICMS_MUST_CHECK;

/* Says what target_new would refuse or not do as it is written because of the drives that are here:
 * one sentence each. Changes nothing, and works beside a target that serves them. Blocking. */
void target_check_here(const struct target_opts *opts, void (*say)(void *arg, const char *sentence),
                       void *arg);

/* How many volumes the drives that are here have been used for, if none of them is among
 * opts.volumes: target_new would evict what they hold. 0: some are, or the drives have been used
 * for none, or will be erased. Changes nothing, and works beside a target that serves them.
 * Blocking. */
uint32_t target_volumes_foreign(const struct target_opts *opts);

/* The highest epoch of a map of opts.pod that the drives which are here have had; of those that
 * will be erased it does not count. 0: none, or no pod. Who starts with a lower one takes back what
 * a later map changed: target_new allows that and keeps the highest. Changes nothing, and works
 * beside a target that serves the drives. Blocking. */
uint32_t target_epoch_known(const struct target_opts *opts);

/* Memory that target_new takes: buffers, and the indexes of the drives that are here or will be
 * made. Blocking. */
uint64_t target_memory_bytes(const struct target_opts *opts);

/* Takes the memory, opens the drives. A drive that is empty (missing file with a size, or zeros) is
 * formatted, or left out, and one with any content formatted, as its opts say (format). A drive
 * that is missing, damaged, holds something else or does not work is left out as it is, and the
 * rest serves; if none is left it is an error, with the sentence of the first. One that is in use
 * by another process, or has a store of another version, is an error. What was formatted or left
 * out, and why, is told (opts->warned). Blocking. */
icms_err target_new(const struct target_opts *opts, struct err_why *why,
                    struct target **out_target) ICMS_MUST_CHECK;

/* Listens and lets the loops run. */
icms_err target_start(struct target *target, struct err_why *why) ICMS_MUST_CHECK;

/* ---- volumes that change ---------------------------------------------------------------------
 *
 * The life of a volume in an enclosure. It is known by its UUID, and has a number: its NSID is one
 * more, and its number on every drive is the same (store.h).
 *
 *   unknown -> live     target_new, or a change that lists a UUID that it does not know
 *   live -> live        a change: other hosts, quota, tenant, requirements
 *   live -> retired     a change that does not list it. Commands that began are answered as before;
 *                       its NSID is gone for all others; its segments are evicted first
 *   retired -> live     a change that lists it again: its NSID is back, with what was not evicted
 *
 * A volume that is reset has another generation, so another UUID: the one of before is retired, and
 * the other one begins, empty, under another NSID. As records carry their UUID, nothing of before
 * is found again on any drive, whenever that comes back. Numbers are not used again: after
 * LIMIT_VOLUMES of them only a restart helps. */

/* What of a change is refused. */
struct target_refused {
    uint32_t volume; /* its place in opts.volumes; UINT32_MAX: none of them */
    const char *key; /* of the configuration: "quota"; ""                  */
};

/* Begins a change: opts.volumes and opts.tenants as they shall be, of the map of opts.pod with
 * opts.pod_epoch, which drives keep from then on; the rest of opts is not read. What it needs is
 * copied. Refused as a whole, with a sentence: CONFIG: a generation that goes back, a flag that
 * records depend on without another generation, and without a pod also another UUID of a name (of a
 * map, who changed it was asked: conf_pod_compare()), a value or quota that is too large; LIMIT: no
 * number is left; BUSY: the change before is not over; NO_MEMORY. One control thread. */
icms_err target_volumes_change(struct target *target, const struct target_opts *opts,
                               struct target_refused *out_refused,
                               struct err_why *why) ICMS_MUST_CHECK;

/* Whether the change that was begun is over; *out_err: OK, or why it was refused after all: BUSY, a
 * drive has blocks of a volume that was not configured at the start; NO_MEMORY. Nothing has changed
 * then, and *out_refused says which volume it is. True once for each change. The same thread. */
bool target_volumes_changed(struct target *target, icms_err *out_err,
                            struct target_refused *out_refused, struct err_why *why);

/* ---- drives that change ----------------------------------------------------------------------
 *
 * A drive is known by its path. One that the target does not have yet comes, one that is not listed
 * any more goes, and one that drains takes no values from now on: it is read, and what it has moves
 * to the others, until a change says otherwise. Nothing in flight ends for it: drives_change.c.
 *
 *   target_drives_change   compares, and opens what comes: refused as a whole, or a change that
 *                          nobody sees yet
 *   target_drives_commit   it begins, and cannot be refused any more; or target_drives_cancel
 *   target_drives_changed  it is over
 *
 * A drive that comes has to be empty, or a store that was never in use: what another enclosure, or
 * this one, left on it is not taken for the enclosure's own while it runs. A missing file is made
 * where opts allow it (TARGET_FORMAT_EMPTY), and zeros are formatted. Should it fail on the way, it
 * is out of service, and those that should go stay, with all they have. */

/* opts.drives as they shall be, and of opts.volumes the quotas, which have to fit on them; the rest
 * is not read. A change of volumes between this and the commit is compared with the drives
 * afterwards. Refused with a sentence, and the place of the
 * drive in opts (out_drive; UINT32_MAX: none of them). FOREIGN: it is not empty; LIMIT: no number
 * is free; BUSY: the change before is not over, or the drive just left; CONFIG: none would take
 * values, or a quota would be larger than the drives; what opening answers. Blocking, for as long
 * as opening and formatting take; one control thread at a time, which may be another one than that
 * of the other calls. */
icms_err target_drives_change(struct target *target, const struct target_opts *opts,
                              uint32_t *out_drive, struct err_why *why) ICMS_MUST_CHECK;

/* The control thread. */
void target_drives_commit(struct target *target);
void target_drives_cancel(struct target *target);

/* Now and then, on the control thread: true once for each change that was begun. Also frees the
 * drives that went, as soon as nothing is in flight there. why says which drive failed on the way,
 * and what became of it; "": none did. */
bool target_drives_changed(struct target *target, struct err_why *why);

/* What part of its share of new values each drive gets, by number, in percent: 100 at the start,
 * and of one that comes. What is on a drive stays where it is, and is found. When all are at 0 the
 * parts do not count. The control thread, as often as it likes: what differs is applied when no
 * change is in the way. */
void target_drives_weigh(struct target *target, const uint8_t percent[LIMIT_DRIVES]);

/* One was made that is not over. */
bool target_drives_changing(const struct target *target);

/* The name of the volume with a number, also of one that is retired; "": none. Any thread. */
void target_volume_name(const struct target *target, uint32_t number, char out[LIMIT_NAME_BYTES]);

/* Its NVMe side, for all that nvmf/target.h answers about ports, hosts and connections. Stays the
 * target's. */
struct nvmf_target *target_nvmf(const struct target *target);

/* Not ready any more; no new connections; what is in flight is answered, then each connection is
 * closed: nvmf_target_idle. Any thread. */
void target_drain(struct target *target);

/* Ends the loops. */
void target_stop(struct target *target);

/* Frees everything; the loops were stopped, or their machine crashed (simulation). *target may be
 * NULL. */
void target_free(struct target **target);

/* A command from inside this process: it takes the way through the drives that one from the network
 * takes (benches, and whoever embeds an enclosure). The owner keeps it until done. */
struct target_call {
    struct nvmf_target_req req; /* as nvmf/target.h has it: op, ns, key, memory, memory_bytes,
                                   value_bytes (at memory + STORE_HEADER_BYTES), deadline_ns; then
                                   err, reason, value, done_bytes, map. loop is set by us        */
    void (*done)(struct target_call *call); /* called once, on the loop it was called on        */
    uint64_t private_words[224];            /* of the target                                    */
};

/* Starts a call, on one of the target's loops. done is called exactly once, on the same loop, from
 * inside or later, even on failure (req.err). */
void target_call(struct target *target, struct loop *loop, struct target_call *call);

/* Loop 0 .. opts.loops - 1, where drive i lives on loop i modulo their number. Stays the target's.
 */
struct loop *target_loop(struct target *target, uint32_t index);

/* False until target_start is through, while draining, without a drive, when free segments stayed
 * under their low-water mark for TARGET_LOW_NS, or a volume is over ready_quota_percent_max, or
 * more drives are out of service than ready_out_percent_max; why says which. True with a sentence
 * in why when a drive is out of service, slow or without space. Any thread. */
bool target_ready(const struct target *target, struct err_why *why);

#define TARGET_LOW_NS ((uint64_t)5 * 1000 * 1000 * 1000)

struct target_drive_stats {
    uint32_t number; /* for target_error_take; that of a drive which went is used again */
    char path[LIMIT_PATH_BYTES];
    bool drains;          /* takes no values any more                        */
    bool is_stuck;        /* drains, and the others are full: only what is loaded moves        */
    uint8_t part_percent; /* of its share of new values (target_drives_weigh) */
    uint64_t moved;       /* values that went from it to others as it drained */
    bool out;             /* out of service: nothing is asked of it          */
    bool slow;            /* passed over by new loads and stores, for now    */
    uint64_t slow_total;  /* how often that began                            */
    char why[256];        /* since start: why it could not be used; else ""  */
    struct store_stats store;      /* zeros when it could not be opened; without histogram */
    struct hist read_ns, write_ns; /* latency of the store's operations               */
    struct hist evicted_age_ns;    /* as in store_stats                               */
};

struct target_volume_stats {
    uint32_t number; /* its NSID is one more                        */
    struct uuid uuid;
    char name[LIMIT_NAME_BYTES];
    uint32_t generation;
    bool encrypted;
    uint8_t require;                 /* REQUIRE_*: of each host             */
    struct store_volume_stats store; /* all drives together         */
    uint64_t hits;                   /* loads that found the block  */
    uint64_t loaded_age_ns;          /* as of target_stats, of this volume */
};

/* Tenants that are listed, and one for each volume that names none. */
#define TARGET_TENANTS (LIMIT_TENANTS + LIMIT_VOLUMES)

struct target_tenant_stats {
    struct tenant_spec spec;
    struct nvmf_target_tenant_stats nvmf;
};

#define TARGET_STATS_STATES 32 /* room for every state of a command */

struct target_stats {
    const char *name, *nqn;                         /* the target's, while it lives */
    struct uuid uuid;                               /* of the enclosure             */
    struct trace_stats states[TARGET_STATS_STATES]; /* of requests that are over */
    struct nvmf_target_stats nvmf;
    uint64_t capacity_bytes; /* of all drives in service                                 */
    uint64_t used_bytes;     /* live records on them                                     */
    uint64_t quota_errors;   /* stores refused: larger than the quota, or no space       */
    uint64_t up_ns;          /* since target_new                                         */
    uint64_t loaded_age_ns;  /* since the end of the last load of a whole value by a host, of any
                                volume, also one that is gone; UINT64_MAX: none since target_new */
    uint32_t drive_count;
    struct target_drive_stats drives[LIMIT_DRIVES];
    uint32_t volume_count;
    struct target_volume_stats volumes[LIMIT_VOLUMES]; /* live ones, by number */
    uint32_t tenant_count;
    struct target_tenant_stats tenants[TARGET_TENANTS];
};

/* Any thread; numbers a moment old. The struct is large: heap or static. */
void target_stats(const struct target *target, struct target_stats *out_stats);

/* As nvmf_target_connected. Any thread. */
uint32_t target_connected(const struct target *target,
                          struct nvmf_target_connected out[NVMF_TARGET_CONNECTED],
                          uint32_t *out_more);

/* As agent_trace of agent/agent.h, of commands. Of keys that the reader does not name it shows 4
 * bytes: whoever reads it may use no volume. Any thread. */
char *target_trace(struct target *target, const struct key *key);

/* As store_error_take: the oldest error of the drive of this number that was not taken yet; false
 * also for a drive that could not be opened. */
bool target_error_take(struct target *target, uint32_t drive, struct store_error *out_error,
                       uint64_t *out_missed);

#endif
