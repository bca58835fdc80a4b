/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/agent.h: the node agent. Tiers, placement, health and deadlines; the same code in the
 * daemon icms-agent and inside a process that opens "pod:" or "dir:".
 *
 * Threads. agent_new, agent_start, agent_stop and agent_free are called by the thread that owns the
 * agent. attach, detach, status, stats and ready may be called from any thread. All work runs on
 * the agent's reactors, a loop each: a key belongs to one of them (shm_reactor()), which has a
 * shard of every arena, connections of its own to every enclosure, and rings of its own with every
 * client.
 *
 * Life of a request: see ARCHITECTURE.md and agent/req.c.
 */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include "shm/shm.h"
#include "trace/trace.h"
#include "base/hist.h"
#include "base/reader.h"
#include "loop/loop.h"

struct agent;

/* What an enclosure is in the pod. */
enum agent_pod_state {
    AGENT_POD_UP,       /* has blocks, and takes new ones                                       */
    AGENT_POD_JOINING,  /* takes new ones; what it misses is asked of who had its share before  */
    AGENT_POD_DRAINING, /* takes none; what the others miss of its share is asked of it         */
};

struct agent_enclosure_opts {
    char name[LIMIT_NAME_BYTES];
    struct uuid uuid; /* placement follows it */
    char nqn[LIMIT_NQN_BYTES];
    uint32_t addr_count;                 /* 1..LIMIT_LINKS                                      */
    struct loop_addr addrs[LIMIT_LINKS]; /* all lead to the same NVM subsystem                  */
    double weight;
    double former_weight; /* UP: before it changed; what others had by it is asked of them; 0: as it
                             is                                                               */
    enum agent_pod_state state;
    const char *psk;    /* file of the TLS key, read at once; NULL: connections without TLS     */
    const char *secret; /* file of this host's DHHC-1 secret, read at once; NULL: none          */
    const char *controller_secret; /* file of the one that it has to prove; NULL: it need not   */
    uint8_t require;               /* REQUIRE_*: it is not used with less                       */
};

/* Everything an agent needs; made from conf_agent by cmd or client. All zeros plus agent_opts_init.
 */
struct agent_opts {
    char name[LIMIT_NAME_BYTES];
    char host_nqn[LIMIT_NQN_BYTES];
    struct uuid host_id;
    uint32_t loops;
    bool busy_poll;   /* loops spin                                    */
    bool prefault;    /* memory of arenas is taken by agent_new        */
    uint32_t poll_us; /* loops spin for so long before they sleep      */
    bool header_digest, data_digest;
    struct net_marks marks; /* of connections to enclosures */
    bool exist_many;        /* ask for many keys with one command where the enclosure offers it   */
    uint32_t queue_entries;
    uint32_t connect_timeout_ms;
    uint32_t keep_alive_ms;
    uint32_t silence_ms; /* commands waiting and no byte for this long: excluded          */
    uint32_t probe_ms;   /* how often an excluded enclosure is tried                      */
    uint32_t load_deadline_ms;
    uint32_t store_deadline_ms;
    uint64_t store_backlog_bytes;
    uint64_t memory_bytes; /* for blocks of all volumes; 0: each has its memory_bytes_max */
    uint64_t
        client_bytes; /* staging memory of a client that names none, and the most it may have */
    const char *local_path; /* a drive of its own: beside enclosures under the arena
                               (agent/tier.h), without them instead of a pod; NULL: none    */
    bool local_sparse;      /* a new file takes space as it is written */
    uint64_t local_bytes;
    uint64_t local_segment_bytes;
    struct write_budget local_budget;  /* of that drive */
    double local_share;                /* of the runs, 0 .. 1: stored there and not in the pod */
    const struct block_reader *reader; /* of blocks of that drive that this process
                                    wants in memory of a device; NULL: none */
    bool own_process; /* no other process maps the arenas: they may hold a drive's records   */
    uint32_t enclosure_count;
    const struct agent_enclosure_opts *enclosures;
    uint64_t epoch;       /* of these enclosures; 0: a list that no one counts    */
    const char *pod_name; /* whose map has them, for the status; copied; NULL: no map   */
    uint32_t volume_count;
    const struct volume_spec *volumes;
    uint32_t user_clients_max; /* clients of one user that is not an owner          */
    uint64_t events;           /* bit i: events of volume i are kept (agent_events_take) */
};

void agent_opts_init(struct agent_opts *opts);

/* Whether agent_new would take these options, without taking, opening or connecting anything, and
 * the memory that the agent takes for blocks and their tables. CONFIG, INVALID, NO_SPACE with a
 * sentence. */
icms_err agent_check(const struct agent_opts *opts, struct err_why *why,
                     uint64_t *out_memory_bytes) ICMS_MUST_CHECK;

/* Reads the files of keys and secrets of all enclosures again, of agent_new's options. Connections
 * that are made from now on use what is there now; the others stay. said, for an enclosure with
 * other keys: why NULL; of one of which a file is not right all keys stay as they were, and why
 * says what to do. One control thread; blocking. */
void agent_keys_read_again(struct agent *agent, const struct agent_opts *opts,
                           void (*said)(void *arg, const char *enclosure, const char *why),
                           void *arg);

/* Takes all memory, opens the local drive, builds the map. Copies what it needs from opts. Connects
 * in the background: an agent without a reachable enclosure works and misses. */
icms_err agent_new(struct loop_env *env, const struct agent_opts *opts, struct err_why *why,
                   struct agent **out_agent) ICMS_MUST_CHECK;
icms_err agent_start(struct agent *agent, struct err_why *why) ICMS_MUST_CHECK;

/* The agent's loops, from 0; NULL behind the last one. They stay the agent's. */
struct loop *agent_loop(struct agent *agent, uint32_t index);

/* No new requests; returns when all have ended and accepted stores are on flash (true), or when
 * timeout_ms passed. */
bool agent_drain(struct agent *agent, uint32_t timeout_ms);

/* Stops and joins the loops. Nobody may be waiting in agent_client_detach_wait. */
void agent_stop(struct agent *agent);
void agent_free(struct agent **agent);

/* Waits until every enclosure was tried once (up or excluded), or timeout_ms passed. Any thread. */
void agent_wait_tried(struct agent *agent, uint32_t timeout_ms);

/* ---- the pod -------------------------------------------------------------------------------- */

/* Which content a volume of agent_opts.volumes has. */
struct agent_identity {
    struct uuid uuid;    /* zeros: the pod has no such volume       */
    uint32_t generation; /* that the UUID was made of; for people   */
};

/* Uses these enclosures from now on, instead of those that it has. They are known by their UUIDs:
 * one that stays keeps its connections, unless its NQN, keys or `require` changed; then they are
 * closed and opened anew. So are those to an address that is not in the list any more: what is in
 * flight there goes on with another address of the enclosure. What is in flight at an enclosure
 * that leaves goes on with the next one; stores there that were not flushed are an error of their
 * client's next flush.
 *
 * All or nothing: CONFIG (the list is not possible, or nothing in it would take blocks), INVALID
 * (an epoch that is older than the one in use, or the same with other volumes or enclosures, of
 * which only addresses may differ; an agent with a drive of its own), LIMIT (too many enclosures),
 * BUSY (another call is not over), each with a sentence.
 *
 * Keys. Files that cannot be read hold nothing up, and are a sentence in why of a call that returns
 * OK. An enclosure that stays keeps the keys that it has; one that is new, or has to prove another
 * thing now, is not connected to. Call again with the same epoch: what can be read then is used.
 *
 * Blocks. Whom a load, exist or match misses at their owner is asked of the enclosure that owned
 * them before JOINING ones came and DRAINING ones went. What a load found there is stored at its
 * owner.
 *
 * Volumes. volumes[i] is the identity of opts.volumes[i]; NULL: all keep theirs. One whose UUID
 * changes is reset: what the agent has of it is found by nobody any more, what is in flight ends as
 * it can, at the latest with a miss no_volume, and enclosures are asked for the namespace of the
 * new UUID. Clients' leases stay valid until they are given back. What was stored and not flushed
 * fails the client's next flush, once.
 *
 * Control threads, between agent_start and agent_stop; blocks until all reactors use it. */
icms_err agent_pod_apply(struct agent *agent, uint64_t epoch,
                         const struct agent_enclosure_opts *enclosures, uint32_t count,
                         const struct agent_identity *volumes, struct err_why *why) ICMS_MUST_CHECK;

/* The same without waiting. Returns ICMS_OK: done is called exactly once, later, on a loop of the
 * agent; returns anything else: done is never called. done may be NULL. */
icms_err agent_pod_apply_start(struct agent *agent, uint64_t epoch,
                               const struct agent_enclosure_opts *enclosures, uint32_t count,
                               const struct agent_identity *volumes, struct err_why *why,
                               void (*done)(void *arg), void *arg) ICMS_MUST_CHECK;

/* Why the map of the source is not in use, for the status; copied, and cut; "": it is. Control
 * threads. */
void agent_map_refused_set(struct agent *agent, const char *sentence);

/* The epoch that all reactors use. Any thread. */
uint64_t agent_epoch(const struct agent *agent);

/* "up", "joining", "draining"; static. */
const char *agent_pod_state_name(enum agent_pod_state state);

/* ---- clients -------------------------------------------------------------------------------- */

/* What a client maps. Owned by the agent until detach. */
struct agent_client_map {
    uint32_t client;                 /* number                                             */
    struct loop_region *region;      /* client region                                      */
    struct loop_event *client_event; /* wakes the client                                   */
    uint32_t reactor_count;          /* queue pairs                                        */
    struct loop_event *agent_events[LIMIT_LOOPS]; /* each wakes a reactor                  */
    uint32_t volume_count;                        /* arenas                                */
    struct loop_region *arenas[LIMIT_AGENT_VOLUMES];
};

/* Who another process is on this machine. */
struct agent_user {
    uint32_t uid, gid;
    bool owner;             /* root, or the agent's own user: may use everything */
    uint32_t group_count;   /* supplementary groups                              */
    const uint32_t *groups; /* [group_count]                                     */
};

/* Makes a client's region and binds it to a loop. It gets the arenas of the volumes that the user
 * may use; of others it learns nothing. PERMISSION: it may use none; INVALID: more memory than a
 * client may have; CLOSED: the agent drains; LIMIT, NO_MEMORY; each with a sentence. */
icms_err agent_client_attach_as(struct agent *agent, const struct agent_user *user,
                                uint64_t staging_bytes, struct err_why *why,
                                struct agent_client_map *out_client) ICMS_MUST_CHECK;

/* The same for this process, which may use every volume. */
icms_err agent_client_attach(struct agent *agent, uint64_t staging_bytes, struct err_why *why,
                             struct agent_client_map *out_client) ICMS_MUST_CHECK;

/* The client is this process: its requests may name its memory (SHM_FLAG_DIRECT), and what it puts
 * is not checked once more. Such a request is answered when nothing writes into that memory any
 * more: cancelling it does not hurry it, and its deadline only as far as the network obeys. Before
 * its first request. */
void agent_client_trust(struct agent *agent, uint32_t client);

/* Cancels its requests, gives its leases back and frees its region; done is called, on a loop of
 * the agent, when nothing of the client is left. done may be NULL. */
void agent_client_detach(struct agent *agent, uint32_t number, void (*done)(void *arg), void *arg);

/* The same, waiting for it. Not on a loop. */
void agent_client_detach_wait(struct agent *agent, uint32_t client);

/* ---- hints ---------------------------------------------------------------------------------- */

/* Hints that blocks of a volume will be asked for within deadline_ms (agent/prestage.h), for which
 * the agent's owner stands, or the end of such hints. Returns at once: what becomes of them is in
 * agent_stats. No keys are no hints, and no error. INVALID, NO_VOLUME (also one that the user may
 * not use), UNSUPPORTED (the tier), BUSY (calls before are not over), NO_MEMORY, CLOSED, each with
 * a sentence. Any thread. */
struct agent_hints {
    const struct agent_user *user; /* who gives them; NULL: the owner        */
    const char *volume;
    const struct key *keys; /* [count]; copied                         */
    size_t count;
    uint32_t deadline_ms;
    uint32_t tier;     /* enum icms_tier: LOCAL with a drive beside the pod */
    uint32_t priority; /* up to ICMS_PRIORITY_MAX                       */
    uint32_t pin_s;    /* seconds that they stay pinned, ICMS_PIN_SECONDS_MAX at most; 0: none */
    bool once;         /* they are read once at most; to DRAM, and no pins                     */
    bool cancel;       /* hints and pins of these keys are taken back; all but user, volume and keys
                          is left as it is initialized                                         */
};
icms_err agent_prestage(struct agent *agent, const struct agent_hints *hints,
                        struct err_why *why) ICMS_MUST_CHECK;

/* ---- what it has ---------------------------------------------------------------------------- */

/* Of keys in the order of a prefix, those up to the first one that is missing. */
struct agent_looked {
    size_t dram;  /* in the agent's memory                                          */
    size_t local; /* in its memory or on its own drive: not less                    */
};

/* Which blocks of a volume the agent has itself, for a user (NULL: the owner); enclosures are not
 * asked, so this takes a turn of each reactor, and counts as no access. Returns ICMS_OK: done is
 * called exactly once, on a loop of the agent, or by agent_free with looked NULL; anything else:
 * never. Of no keys it has none. Errors as of agent_prestage. Any thread. */
icms_err agent_look_start(struct agent *agent, const struct agent_user *user, const char *volume,
                          const struct key *keys, size_t count, struct err_why *why,
                          void (*done)(void *arg, const struct agent_looked *looked),
                          void *arg) ICMS_MUST_CHECK;

/* ---- events --------------------------------------------------------------------------------- */

enum agent_event_kind {
    AGENT_EVENT_STORED,  /* the block can be read there from now on        */
    AGENT_EVENT_REMOVED, /* it cannot any more                             */
    AGENT_EVENT_CLEARED, /* no block of the volume that came before is had */
};

enum agent_event_tier {
    AGENT_EVENT_DRAM,
    AGENT_EVENT_LOCAL, /* the own drive */
};

/* What happened to a block in a tier of the agent. */
struct agent_event {
    uint64_t hash;   /* of the block: agent_event_hash                     */
    uint32_t change; /* how often the volume had become another one by then */
    uint8_t volume;  /* its number                                         */
    uint8_t kind;    /* enum agent_event_kind                              */
    uint8_t tier;    /* enum agent_event_tier; CLEARED: of both tiers      */
};

/* By which events name a block: the last eight bytes of its key, or all of a shorter one, as a
 * big-endian number. Keys of libicms have bytes of a SHA-256 there. */
uint64_t agent_event_hash(const struct key *key);

/* Takes the oldest events of the volumes of agent_opts.events, at most count, and returns how many
 * it took: those of one block in the order in which they happened. Reactors never wait: an event
 * that finds no space, as nobody takes them, is lost. One thread at a time, any, until agent_free.
 */
size_t agent_events_take(struct agent *agent, struct agent_event *out, size_t count);

/* Events of a volume that were lost. Any thread. */
uint64_t agent_events_lost(const struct agent *agent, uint32_t volume);

/* ---- state ---------------------------------------------------------------------------------- */

/* Of an enclosure, and of each of its links. */
enum agent_enclosure_state {
    AGENT_ENCLOSURE_CONNECTING, /* never tried to the end yet                            */
    AGENT_ENCLOSURE_UP,         /* takes loads and stores                                */
    AGENT_ENCLOSURE_SLOW,       /* answers much later than the others: its runs are with the next,
                                   its commands with the other links; probed */
    AGENT_ENCLOSURE_EXCLUDED,   /* dead or silent; likewise; probed                      */
};

/* Commands whose latency is counted for each enclosure. */
enum agent_latency {
    AGENT_LATENCY_LOAD,
    AGENT_LATENCY_STORE,
    AGENT_LATENCY_EXIST, /* exist and exist-many */
    AGENT_LATENCY_COUNT,
};

/* What was proven when an enclosure came up last. */
enum agent_auth {
    AGENT_AUTH_NONE,
    AGENT_AUTH_CHAP,   /* this host, with DH-HMAC-CHAP */
    AGENT_AUTH_MUTUAL, /* and the enclosure            */
};

/* A link: the associations of all reactors with one address of an enclosure. */
struct agent_link_stats {
    struct loop_addr addr;
    uint32_t number; /* below LIMIT_LINKS: the same for as long as the enclosure has the address */
    enum agent_enclosure_state state; /* the worst of all reactors'                           */
    bool is_misdirected;              /* EXCLUDED: it leads to another enclosure              */
    const char *tls, *auth;           /* as of an enclosure                                   */
    uint64_t excluded_count;          /* times it was lost                                    */
    uint64_t slow_total;              /* times it became slow                                 */
    uint64_t commands;                /* sent                                                 */
    uint64_t in_flight;               /* of them, not answered                                */
    uint64_t in_flight_bytes;         /* of their values                                      */
    uint64_t load_bytes, store_bytes;
    char last_error[LIMIT_REASON_BYTES]; /* sentence                                          */
    uint64_t last_error_age_ns;          /* how long ago                                      */
};

/* How long loads take at an enclosure or an own drive, and how well that was known. */
struct agent_estimate_stats {
    uint64_t bytes_per_s; /* 0: nothing is known now                                        */
    uint64_t first_ns;    /* what a load took that found nothing in flight; 0: none did     */
    uint64_t error;       /* of the last groups of loads (base/estimate.h) nine of ten were within:
                             thousandths of what was expected                               */
    struct hist errors;   /* of all groups, thousandths                                     */
};

struct agent_enclosure_stats {
    char name[LIMIT_NAME_BYTES];
    uint32_t number; /* below LIMIT_ENCLOSURES: the same for as long as it is in the pod */
    struct uuid uuid;
    char nqn[LIMIT_NQN_BYTES];
    uint32_t link_count;
    struct agent_link_stats links[LIMIT_LINKS];
    uint64_t failovers; /* commands that another link took over from one that was lost          */
    double weight, former_weight; /* as of agent_enclosure_opts                      */
    enum agent_pod_state pod_state;
    bool has_psk, has_secret; /* connections to it use them */
    enum agent_enclosure_state state;
    const char *tls;  /* where records of its connections are made: "none", "kernel", "mixed",
                         "openssl"; static; of when it came up last */
    const char *auth; /* "none", "chap" or "chap-mutual"; likewise */
    uint64_t excluded_count; /* times it was excluded   */
    uint64_t slow_total;     /* times it became slow    */
    uint32_t share_percent;  /* of its blocks that it takes now, at the worst reactor: below 100
                                while it is UP and late now and then */
    uint64_t probes;
    uint64_t auths, auths_refused; /* connections that authenticated; that did not */
    uint64_t load_bytes, store_bytes;
    uint64_t checksum_errors;   /* blocks that it had, and that are damaged                 */
    uint32_t damaged_volume;    /* of the last of them                                      */
    struct key damaged_key;     /* its key                                                  */
    uint64_t damaged_ns;        /* when, by loop_env_now_ns; 0: there was none              */
    uint64_t missing;           /* bit i: lacks volume i, or hides it from this host */
    bool enclosures_differ;     /* other hosts have other enclosures, by their UUIDs        */
    bool weights_differ;        /* or other weights                                         */
    uint32_t epoch_there;       /* of the pod map at its target, later than ours; 0: it is not */
    uint64_t run_blocks_differ; /* bit i: of volume i                                     */
    uint32_t run_blocks_others[LIMIT_AGENT_VOLUMES]; /* what other hosts have; 0: the same */
    uint64_t value_max_differ; /* bit i: of volume i; ours is agent_volume_stats.value_max */
    uint64_t value_max_there[LIMIT_AGENT_VOLUMES]; /* bytes of a value, there; 0: the same */
    char last_error[LIMIT_REASON_BYTES]; /* sentence                                            */
    uint64_t last_error_age_ns;          /* how long ago                                       */
    struct hist op_ns[AGENT_LATENCY_COUNT]; /* from sent to answered                            */
    struct agent_estimate_stats estimate;
};

#define AGENT_STATS_OPS    16 /* space for every enum shm_op           */
#define AGENT_STATS_ERRS   64 /* space for every row of ICMS_ERR_MAP   */
#define AGENT_STATS_MISSES 16 /* space for every row of ICMS_MISS_MAP  */
#define AGENT_STATS_STATES 16 /* space for every state of a request    */

/* What became of a hint (icms_prestage). AGENT_HINT_JOINED: it was one for a key that the same user
 * has a hint for. */
#define AGENT_HINT_END_MAP(XX)                                                                     \
    XX(IN_TIME, "in_time") /* read, after it had arrived                                      */   \
    XX(LATE, "late")       /* asked for before it had arrived, or arrived after its deadline  */   \
    XX(DROPPED, "dropped") /* it could not arrive by its deadline                             */   \
    XX(UNUSED, "unused")   /* evicted unread, or not asked for until after its deadline       */   \
    XX(ABSENT, "absent")   /* there is no such block                                          */   \
    XX(FAILED, "failed")   /* a miss for another reason                                       */   \
    XX(OVER_BUDGET, "over_budget") /* the write budget of the own drive refused it              */ \
    XX(CANCELED, "canceled") /* taken back                                                      */ \
    XX(JOINED, "joined")

enum agent_hint_end {
#define AGENT_HINT_END_XX(name, text) AGENT_HINT_##name,
    AGENT_HINT_END_MAP(AGENT_HINT_END_XX)
#undef AGENT_HINT_END_XX
        AGENT_HINT_ENDS,
};

/* "in_time", ...; static. */
const char *agent_hint_end_name(enum agent_hint_end end);

struct agent_prestage_stats {
    uint64_t taken;                  /* hints                                                */
    uint64_t full;                   /* that were refused, because there were too many       */
    uint64_t passed;                 /* that were refused, because their deadline had passed */
    uint64_t ended[AGENT_HINT_ENDS]; /* of those taken, by enum agent_hint_end               */
    uint64_t load_bytes;             /* loaded for hints alone                               */
    uint64_t unused_bytes;           /* of blocks that were brought for hints, and unused, canceled
                                        or loaded twice                                       */
    uint64_t queued, loading, waiting; /* now: that are not begun, are being loaded, wait to be
                                         read                                                 */
    uint64_t kept_bytes;               /* of memory, for these                                 */
    uint64_t pins, pinned_bytes, pinned_drive_bytes; /* now                                    */
    uint64_t pins_refused; /* or not kept, because of a limit                      */
    uint64_t pins_again;   /* blocks that went, and were brought again             */
    struct hist late_ns;   /* of late ones: how much                               */
};

/* What memory evicts a block for. */
#define AGENT_EVICTED_MAP(XX)                                                                      \
    XX(SPACE, "space")   /* others need the space, and these were not accessed for longest  */     \
    XX(ONCE, "once")     /* likewise, and it is read once at most                           */     \
    XX(LARGE, "large")   /* likewise, and it has more than a quarter of the memory          */     \
    XX(VOLUME, "volume") /* another volume took the memory                                  */

enum agent_evicted {
#define AGENT_EVICTED_XX(name, text) AGENT_EVICTED_##name,
    AGENT_EVICTED_MAP(AGENT_EVICTED_XX)
#undef AGENT_EVICTED_XX
        AGENT_EVICTED_COUNT,
};

/* "space", ...; static. */
const char *agent_evicted_name(enum agent_evicted what);

struct agent_volume_stats {
    char name[LIMIT_NAME_BYTES];
    struct agent_identity identity; /* that all reactors use */
    uint32_t run_blocks;
    uint64_t value_max; /* bytes */
    bool encrypted;
    uint64_t slots, slots_used, slots_leased;
    uint64_t arena_bytes; /* what the volume has of the memory now                      */
    uint64_t arena_used_bytes;
    uint64_t arena_evictions, arena_evicted[AGENT_EVICTED_COUNT]; /* all; by enum agent_evicted  */
    uint64_t drive_blocks, drive_bytes; /* of it on the agent's own drive; 0 without one       */
    uint64_t hits_dram;                 /* with those that clients counted */
    uint64_t hits_local, hits_pod;
    uint64_t misses[AGENT_STATS_MISSES]; /* of gets, by enum icms_miss */
    uint64_t puts, put_bytes, get_bytes;
    uint64_t store_failures;              /* accepted puts that did not reach flash */
    uint64_t keys_found, keys_missed;     /* of exists and match, by clients' counters        */
    uint64_t matches[SHM_MATCH_BUCKETS];  /* by the bit length of the number that matched     */
    uint64_t matched;                     /* blocks of all matches                            */
    struct hist evicted_age_ns;           /* from published to evicted                        */
    uint64_t former_found, former_missed; /* keys that the owner missed and the one that owned them
                                             before was asked for */
    uint64_t moved, moved_bytes;          /* blocks found there that were stored at their owner   */
    uint64_t moves_shed;                  /* that were not: too much to do, or no success         */
    struct agent_prestage_stats prestage;
    bool has_events;              /* they are kept for agent_events_take */
    uint64_t events, events_lost; /* taken; that found no space          */
};

/* Users that an agent knows: its own, and others. */
#define AGENT_USERS (1 + LIMIT_CLIENTS)

/* What a user did with a volume. */
struct agent_user_stats {
    uint64_t requests;                         /* answered                                       */
    uint64_t load_bytes, store_bytes;          /* of values                                      */
    uint64_t load_local_bytes, load_pod_bytes; /* of load_bytes: the rest was in memory          */
    uint64_t waits, wait_us;                   /* requests that waited for an operation or space */
    uint64_t sheds;                            /* requests refused because too much was waiting  */
    uint64_t backlog_bytes;                    /* of stores in flight now                        */
    uint64_t pinned_bytes, pinned_drive_bytes; /* of its pins now                       */
    uint32_t weight;                           /* of the volume                                  */
    uint32_t clients;                          /* of the user, now                               */
    bool owner;                                /* the agent's own user, or root                  */
    uint32_t uid;                              /* else                                           */
};

/* User `place` of AGENT_USERS, and volume; false: there is no such user, or it did nothing with
 * the volume; the owner is always there. A place goes to another user when the first one has no
 * clients and no place is unused; counters then begin anew. Any thread. */
bool agent_user_stats(struct agent *agent, uint32_t place, uint32_t volume,
                      struct agent_user_stats *out_stats);

/* What the own drive beside a pod is good for. */
enum agent_tier_state {
    AGENT_TIER_UP,   /* loads look there, evicted blocks go there                              */
    AGENT_TIER_SLOW, /* reads are late: used only where no enclosure can be asked; probed      */
    AGENT_TIER_DOWN, /* it failed, or could not be opened; until the next start                */
};

struct agent_tier_stats {
    enum agent_tier_state state;
    char why[LIMIT_REASON_BYTES]; /* it is not UP, or was not lately; a sentence               */
    const char *emptied; /* why it was formatted at the start, static; NULL: it was not        */
    uint64_t blocks, bytes, bytes_max;
    uint64_t promoted, promoted_bytes;   /* loads that it answered                               */
    uint64_t given_up;                   /* loads that went on with the pod: late                */
    uint64_t passed;                     /* and: it had too much to do                           */
    uint64_t failed_reads;               /* and: what it had was damaged, or gone                */
    uint64_t stored, stored_bytes;       /* stores that it has instead of the pod                */
    uint64_t demoted, demoted_bytes;     /* evicted blocks that were written                     */
    uint64_t prestaged, prestaged_bytes; /* blocks that were written for hints                 */
    uint64_t kept;                       /* that it had already                                  */
    uint64_t unread;                     /* that nobody had read, or will read again             */
    uint64_t refused;                    /* that the write budget refused                        */
    uint64_t shed;                       /* when it had too much to do                           */
    uint64_t failed_writes;
    uint64_t evicted;    /* blocks that it evicted since it was formatted                      */
    uint64_t forgotten;  /* deleted for puts and removes                                       */
    uint64_t slow_total; /* times that it became SLOW                                          */
    uint64_t budget_bytes_day;  /* 0: no write budget                                             */
    uint64_t budget_left_bytes; /* that may be written at once                                    */
    struct agent_estimate_stats estimate;
};

struct agent_stats {
    uint32_t clients;
    uint64_t epoch;      /* of the enclosures                                            */
    bool is_map_refused; /* the map of its source is not in use (agent_map_refused_set)  */
    uint32_t enclosure_count, volume_count;
    uint64_t requests, sheds, deadline_misses, checksum_errors;
    uint64_t memory_bytes;                        /* for blocks of all volumes         */
    uint64_t backlog_bytes;                       /* stores in flight                  */
    uint64_t in_flight;                           /* requests taken and not answered   */
    uint64_t clients_dropped;                     /* for what they wrote in their ring */
    uint64_t clients_refused;                     /* users that may use no volume, or have
                                                     too many clients                  */
    uint32_t refused_user;                        /* the last of those                 */
    uint64_t local_load_bytes, local_store_bytes; /* of the own drive                  */
    uint64_t pod_load_bytes, pod_store_bytes;     /* also of enclosures that left      */
    bool has_tier;                /* there is an own drive beside the pod                  */
    struct agent_tier_stats tier; /* of it; of one instead of a pod what is there         */
    uint64_t ops[AGENT_STATS_OPS][AGENT_STATS_ERRS]; /* answered, by shm_op and icms_err  */
    struct agent_enclosure_stats enclosures[LIMIT_ENCLOSURES];
    struct agent_volume_stats volumes[LIMIT_AGENT_VOLUMES];
    struct hist get_ns, put_ns, exists_ns;         /* from taken to answered */
    struct trace_stats states[AGENT_STATS_STATES]; /* of requests that are over */
};

void agent_stats(struct agent *agent, struct agent_stats *out_stats);

/* The oldest error of the agent's own drive that was not taken yet, as store_error_take; false
 * without one. One thread at a time, any. */
struct store_error;
struct store_stats;
bool agent_drive_error_take(struct agent *agent, struct store_error *out_error,
                            uint64_t *out_missed);

/* Counters of the agent's own drive; false: it has none. Any thread. */
bool agent_drive_stats(struct agent *agent, struct store_stats *out_stats);

/* One JSON object (for `icms status`); zero-terminated, cut at bytes; returns what the whole needs.
 */
size_t agent_status(struct agent *agent, char *out, size_t bytes);

/* The same without the volumes that the user may not use. */
size_t agent_status_as(struct agent *agent, const struct agent_user *user, char *out, size_t bytes);

/* One JSON object about requests that were answered lately, of volumes that the user may use (NULL:
 * of all), for who has to free() it: those of a key, the last one first; key NULL: the slowest ones
 * of the last one to two minutes. NULL: out of memory. trace/trace.h says what is remembered. */
char *agent_trace(struct agent *agent, const struct agent_user *user, const struct key *key);

/* False with the reason: draining, no enclosure and no local drive, or values take more of the
 * memory than the given limit; 0: none. */
bool agent_ready(struct agent *agent, double memory_percent_max, struct err_why *why);

#endif
