/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shm/shm.h: every byte that an agent and its clients share, and the rules for touching it.
 *
 * Two kinds of regions, each a sealed memfd (in the simulation: heap):
 *
 *   arena region, one a volume: made by the agent, mapped read-only by clients
 *     [ parts: one a reactor, each: shard | data: values with their trailers ]
 *       shard: header | hash heads | slots: a descriptor a block
 *     Volumes that share memory are in one region, and for each of them a part has a shard in
 *     front of the data. They have the same users.
 *   client region, one a client: made by the agent, mapped read-write by both
 *     [ header | queue pairs: one a reactor | lease table | counters | staging memory ]
 *
 * Reactors. A key belongs to one reactor of the agent (shm_reactor()): its block lies in that
 * reactor's shards, and its entries go into that reactor's queue pair. FLUSH and EXISTS_MANY go
 * into all of them: a reactor flushes its own shard, and answers for its own keys.
 *
 * Trust. The agent treats everything in a client region as hostile: it copies an entry out before
 * it checks it, keeps its own copy of its ring positions, and bounds every offset. A client trusts
 * its agent about liveness only: values are checked against their trailers.
 *
 * A block lies in one piece in the data, where its slot says. Where blocks lie is decided by the
 * agent alone (agent/extent.h). A slot serves blocks of any size, one after the other.
 *
 * Keys are the 16 bytes that enclosures know. In a sealed volume a client that finds a key's slot
 * has found its block only if the digest in the trailer is that of the key (wire/sealed.h).
 *
 * Leases (hazard pointers). A client reads slot descriptor version v (even: stable), stores slot +
 * 1 in a free lease entry, and re-reads the version after a full fence: equal means that neither
 * the slot nor the memory it names is reused until the entry is zero again. An agent that wants a
 * slot or its memory makes the version odd, and after a full fence looks through the lease tables
 * of all clients; a leased slot is left in limbo until its entries are gone. A get names the lease
 * entry in which the agent shall hold the slot for it, so a client that dies loses its leases with
 * its region.
 *
 * Identity. The UUID says which content a volume has. When it changes (the volume was reset), the
 * agent makes the shard's identity odd, takes every block out of the index, writes the UUID and
 * makes the identity even. A client compares the identity with the one that it knows after each
 * lease of its own, and names it in each entry: with another one nothing is found. It learns the
 * new one at its next call (shm_arena_identify); leases that it holds stay what they are.
 *
 * The order of the two sides' stores and loads is carried by sequentially consistent operations on
 * the version and on the lease entry, not by fences, so that ThreadSanitizer understands it.
 *
 * Times are absolute nanoseconds of CLOCK_MONOTONIC (simulation: of the node).
 */
#ifndef SHM_SHM_H
#define SHM_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/types.h"

#define SHM_VERSION      14
#define SHM_ARENA_MAGIC  0x616e657261736d63u
#define SHM_CLIENT_MAGIC 0x746e65696c636d63u
#define SHM_RING_ENTRIES 4096 /* of each ring; power of two                     */
#define SHM_LEASES       512  /* entries of a lease table: 256 for users, the rest for gets */
#define SHM_MATCH_KEYS   2048 /* keys of one EXISTS_MANY                        */
#define SHM_HINT_KEYS    512  /* keys of one PRESTAGE                           */
#define SHM_SLOT_NONE    UINT32_MAX
#define SHM_SLOT_BYTES   4096 /* of the data, for each slot: smaller blocks may use up the slots */
#define SHM_VALUE_ALIGN  64   /* where values begin in the data                         */
#define SHM_CHAIN_STEPS_MAX                                                                        \
    16 /* slots of a hash chain: the agent lets none grow longer; chains of                        \
          hashes that nobody chose do not come near it */

/* ---- the arena ------------------------------------------------------------------------------ */

struct shm_arena_header {
    uint64_t magic;   /* SHM_ARENA_MAGIC                                  */
    uint32_t version; /* SHM_VERSION                                      */
    uint32_t volume;  /* the agent's number of the volume                 */
    uint32_t reactor; /* whose shard it is, of reactor_count              */
    uint32_t reactor_count;
    uint64_t value_bytes_max; /* without the trailer; encrypted: pieces and tags  */
    uint32_t sealed;          /* 1: a trailer follows each value                  */
    uint32_t run_blocks;      /* for key derivation                               */
    uint32_t head_count;      /* hash heads; power of two                         */
    uint32_t slot_count;      /* slots                                            */
    uint64_t data_bytes;      /* memory of all blocks                             */
    uint64_t heads_offset;    /* _Atomic uint32_t [head_count]: slot or NONE      */
    uint64_t slots_offset;    /* struct shm_slot [slot_count]                     */
    uint64_t data_offset;     /* from this header, page-aligned; slots' offsets count from here */
    uint64_t hash_seed;       /* of the heads                                     */
    uint32_t encrypted;       /* 1: sealed, by clients with keys                  */
    char name[LIMIT_NAME_BYTES];
    /* All above stays as it was formatted; what follows changes while the agent runs. */
    _Atomic uint32_t volume_missing; /* 1: no enclosure has the volume for this host         */
    _Atomic uint32_t identity;       /* raised when the UUID changes; odd: it is changing, and what
                                        the shard holds counts for nobody                        */
    _Atomic uint64_t volume_uuid[2]; /* bound into every trailer; zeros: the pod has no such volume
                                      */
};

struct shm_slot {
    _Atomic uint64_t version;     /* even: stable, odd: changing or free              */
    _Atomic uint32_t next;        /* next slot of the hash chain                      */
    _Atomic uint32_t value_bytes; /* value, as value_bytes_max; the trailer is behind */
    uint8_t key[LIMIT_KEY_BYTES]; /* valid while version is even                      */
    uint8_t key_length;
    uint8_t pad[7];
    _Atomic uint64_t offset; /* of the value, in the data; stays while the slot is leased, and from
                                before the first part of a value on until it is free          */
};

/* ---- the rings ------------------------------------------------------------------------------ */

enum shm_op {
    SHM_OP_GET = 1, /* lease the block's slot in lease entry `lease`            */
    SHM_OP_PUT,     /* value and trailer lie in staging at offset               */
    SHM_OP_EXISTS,
    SHM_OP_REMOVE,
    SHM_OP_FLUSH,       /* everything this client put into the reactor's shard      */
    SHM_OP_CANCEL,      /* the request with this tag; answered by that request only */
    SHM_OP_TOUCH,       /* a DRAM hit happened without the agent; no answer         */
    SHM_OP_SUSPECT,     /* the block of this key failed its check: the agent checks it, and deletes
                           the record if it is bad; no answer                      */
    SHM_OP_EXISTS_MANY, /* `bytes` keys (struct shm_key) lie in staging at offset, and behind them
                           a byte for each: a reactor writes enum icms_miss there for its own keys,
                           NONE for a block that is there, before it answers. Another status than
                           OK is the answer for all of its keys                  */
    SHM_OP_PRESTAGE,    /* keys in staging memory, as of EXISTS_MANY, that will be asked for by the
                           time `aside`. A reactor answers at once, with enum icms_miss for each of
                           its own keys: NONE: the hint was taken; SHED: refused; DEADLINE: it is
                           too late for it; QUOTA: it is a pin, and there are too many. With FORGET:
                           NONE: taken back; ABSENT: there was none */
};

enum shm_flag {
    SHM_FLAG_ON_FLASH = 1,  /* PUT: answer when the drive has it */
    SHM_FLAG_IF_ABSENT = 2, /* PUT                               */
    SHM_FLAG_PRESTAGE = 4,  /* GET: class prestage               */
    SHM_FLAG_DIRECT = 8,  /* of a client in the agent's own process. GET: the block may be received
                             in its memory; answered with slot SHM_SLOT_NONE when it was. PUT: the
                             value lies in its memory, not in staging, until the answer        */
    SHM_FLAG_FORGET = 16, /* PRESTAGE: the hints are taken back */
    SHM_FLAG_ESTIMATE = 32, /* EXISTS_MANY: behind the bytes there is struct shm_estimate for each
                               key, which a reactor writes for its own keys up to the first that is
                               not there */
    SHM_FLAG_PARTS = 64,    /* GET, sealed: while the block arrives, `part` completions may come in
                               front of the answer, each with more pieces than before; of a block that
                               is not encrypted while the reactor has no other request of the client */
    SHM_FLAG_ONCE = 128,    /* GET, PUT, PRESTAGE: the block is read once at most, so it goes before
                               others. TOUCH: the hit was of such a GET */
};

struct shm_submit {
    uint64_t tag;         /* the client's; comes back                              */
    uint64_t deadline_ns; /* absolute                                              */
    uint64_t offset;      /* PUT: of the value in staging memory; EXISTS_MANY,
                             PRESTAGE: of the keys; DIRECT: address of the client's memory  */
    uint32_t bytes;  /* PUT: value; EXISTS_MANY, PRESTAGE: number of keys; GET, DIRECT: space */
    uint32_t volume; /* the agent's number                                    */
    uint32_t lease;  /* GET: entry of the lease table. PRESTAGE: shm_hint()   */
    uint8_t op;      /* enum shm_op                                           */
    uint8_t flags;   /* enum shm_flag                                         */
    uint8_t key_length;
    uint8_t identity; /* low bits of the shard's, by which the client knows the volume */
    uint8_t key[LIMIT_KEY_BYTES];
    uint64_t aside; /* DIRECT: address. GET: of LIMIT_TRAILER_BYTES for what is behind `bytes`; PUT:
                       of the block's digest. PRESTAGE: absolute time                            */
};
_Static_assert(sizeof(struct shm_submit) == 64, "one cache line");

/* What a PRESTAGE says, in one number: seconds that the blocks stay pinned (0: they do not), tier,
 * priority. */
#define SHM_HINT_BITS 4
static inline uint32_t shm_hint(uint32_t tier, uint32_t priority, uint32_t pin_s)
{
    return (pin_s << SHM_HINT_BITS | tier) << SHM_HINT_BITS | priority;
}
static inline uint32_t shm_hint_priority(uint32_t hint)
{
    return hint & ((1u << SHM_HINT_BITS) - 1);
}
static inline uint32_t shm_hint_tier(uint32_t hint)
{
    return hint >> SHM_HINT_BITS & ((1u << SHM_HINT_BITS) - 1);
}
static inline uint64_t shm_hint_pin_s(uint32_t hint)
{
    return hint >> 2 * SHM_HINT_BITS;
}

/* A key of EXISTS_MANY and PRESTAGE. */
struct shm_key {
    uint8_t bytes[LIMIT_KEY_BYTES]; /* zeros behind the key */
    uint8_t length;                 /* 1..16                */
    uint8_t pad[3];
};
_Static_assert(sizeof(struct shm_key) == 20, "as on the wire");

/* Staging memory that count keys and their answers need. */
#define SHM_MATCH_BYTES(count) ((uint64_t)(count) * (sizeof(struct shm_key) + 1))

/* What it takes to have a key, with all of its reactor that are before it in its entry. */
struct shm_estimate {
    uint32_t us;    /* from the answer on; SHM_ESTIMATE_UNKNOWN              */
    uint32_t error; /* thousandths of that                                   */
    uint32_t bytes; /* of the stored block, about                            */
    uint8_t source; /* enum icms_source of icms.h; NONE: it is not there     */
    uint8_t pad[3];
};
_Static_assert(sizeof(struct shm_estimate) == 16, "it lies anywhere in staging memory: copy it");
#define SHM_ESTIMATE_UNKNOWN UINT32_MAX

/* Staging memory that count keys, their answers and estimates need. */
#define SHM_ESTIMATE_BYTES(count)                                                                  \
    (SHM_MATCH_BYTES(count) + (uint64_t)(count) * sizeof(struct shm_estimate))

struct shm_complete {
    uint64_t tag;
    uint64_t version;     /* GET: of the slot when leased. DIRECT, and its parts: which arrival in
                             the client's memory this is of; each time that it begins anew it is
                             another one, never 0                      */
    uint32_t slot;        /* GET: where the block lies                   */
    uint32_t value_bytes; /* GET, EXISTS (upper bound): value            */
    uint32_t status;      /* icms_err                                    */
    uint8_t reason;       /* enum icms_miss                              */
    uint8_t source;       /* enum icms_source of icms.h                  */
    uint8_t checked;      /* GET, DIRECT: 1: value and trailer passed when they were copied into the
                             client's memory; the digest was not looked at */
    uint8_t part;         /* GET with PARTS: 1: not the answer. The first value_bytes of the value
                             are in the slot, of which there is no lease: they count only as far as
                             their tags pass, or with the checksum of the whole value. Encrypted:
                             whole pieces. Fewer than before: it arrives anew. With slot
                             SHM_SLOT_NONE they are in the client's memory (DIRECT)              */
};
_Static_assert(sizeof(struct shm_complete) == 32, "half a cache line");

/* A submission and a completion ring, of one reactor. */
struct shm_qpair {
    _Alignas(64) _Atomic uint32_t submit_tail;   /* written by the client                 */
    _Alignas(64) _Atomic uint32_t submit_head;   /* written by the agent                  */
    _Alignas(64) _Atomic uint32_t complete_tail; /* written by the agent                  */
    _Alignas(64) _Atomic uint32_t complete_head; /* written by the client                 */
    _Alignas(64) _Atomic uint32_t agent_sleeps;  /* 1: signal its event after a submission */
    _Alignas(64) _Atomic uint32_t
        client_sleeps; /* 1: signal the client's event after a completion */
    _Alignas(64) _Atomic uint64_t
        agent_heartbeat_ns; /* the agent's time when it last looked at these rings */
    _Alignas(64) struct shm_submit submits[SHM_RING_ENTRIES];
    struct shm_complete completes[SHM_RING_ENTRIES];
};

struct shm_client_header {
    uint64_t magic;               /* SHM_CLIENT_MAGIC                                          */
    uint32_t version;             /* SHM_VERSION                                               */
    uint32_t client;              /* the agent's number of this client                         */
    uint64_t qpairs_offset;       /* struct shm_qpair [reactor_count]                          */
    uint64_t leases_offset;       /* _Atomic uint32_t [SHM_LEASES]: slot + 1 | 0; the shard is in
                                     lease_shards                                              */
    uint64_t lease_shards_offset; /* _Atomic uint32_t [SHM_LEASES]: shm_arena.shard, written before
                                     the lease                                                 */
    uint64_t counts_offset;       /* _Atomic uint64_t [LIMIT_AGENT_VOLUMES][SHM_COUNTS]        */
    uint64_t staging_offset;
    uint64_t staging_bytes;
    uint32_t load_deadline_ms, store_deadline_ms; /* the agent's defaults                  */
    uint32_t volume_count;                        /* arena regions that follow in the hello */
    uint32_t reactor_count;
    uint64_t arena_offsets[LIMIT_AGENT_VOLUMES]; /* [volume_count], in their order: of the volume's
                                                    shard in each part of its region */
};

/* ---- counters of a client ------------------------------------------------------------------- */

/* Matches are counted by the bit length of the number of blocks that matched: 0, 1, 2..3, 4..7, and
 * so on; the last bucket holds LIMIT_BATCH_KEYS and more. */
#define SHM_MATCH_BUCKETS 14
_Static_assert(LIMIT_BATCH_KEYS < 1 << (SHM_MATCH_BUCKETS - 1),
               "the last bucket begins no earlier");

/* What a client counts of each volume: that which happens without the agent, or which only the
 * client knows. The client adds to them; the agent reads them for its own counters, within what is
 * possible in the time that the client has been attached. */
enum shm_count {
    SHM_COUNT_HITS,       /* blocks of gets that were read from the mapped arena                */
    SHM_COUNT_COLLISIONS, /* blocks of gets that were not the one asked for                    */
    SHM_COUNT_TAG_ERRORS, /* encrypted: that were whole, and whose tag did not pass             */
    SHM_COUNT_NO_KEYS,    /* encrypted: that were sealed under a key that the client lacks      */
    SHM_COUNT_VERSIONS,   /* of a format version that the client does not know                  */
    SHM_COUNT_HIT_BYTES,  /* values of hits                                                      */
    SHM_COUNT_FOUND,      /* keys of exists that were present; of match: before the first hole  */
    SHM_COUNT_MISSED,     /* keys of exists that were not; of match: from the first hole on     */
    SHM_COUNT_MATCHED,    /* blocks that matched, of all matches                                */
    SHM_COUNT_MATCHES,    /* [SHM_MATCH_BUCKETS] matches by length                              */
    SHM_COUNTS = SHM_COUNT_MATCHES + SHM_MATCH_BUCKETS,
};

/* ---- making regions (agent) ----------------------------------------------------------------- */

/* What a shard is besides its volume. */
struct shm_shard {
    uint32_t number;                 /* the agent's, of the volume                        */
    uint32_t reactor, reactor_count; /* whose it is, and how many there are               */
    uint64_t bytes_max;              /* that its blocks take at most; of data_bytes       */
    uint64_t data_offset;            /* from its header                                   */
    uint64_t data_bytes;             /* of all volumes that are in it                     */
    uint64_t hash_seed;
};

/* Bytes of a shard whose blocks take at most so much; shards and data follow each other in a part.
 */
uint64_t shm_shard_bytes(uint64_t bytes_max);

/* Bytes of a part with so many of shards, and so many of data, a multiple of LIMIT_DISK_ALIGN. */
uint64_t shm_part_bytes(uint64_t shards_bytes, uint64_t data_bytes);

/* Lays out zeroed memory of shm_shard_bytes(). */
void shm_shard_format(void *base, const struct volume_spec *volume, const struct shm_shard *shard);
uint64_t shm_client_region_bytes(uint32_t reactor_count, uint64_t staging_bytes);
void shm_client_format(void *base, uint32_t client, uint32_t reactor_count, uint64_t staging_bytes);

/* ---- reading an arena (client) -------------------------------------------------------------- */

/* A checked view of a shard; every offset was bounded by it. */
struct shm_arena {
    const struct shm_arena_header *header;
    const _Atomic uint32_t *heads;
    const struct shm_slot *slots;
    const uint8_t *data;
    /* copies, so that nothing is read twice from shared memory */
    uint32_t head_count, slot_count;
    uint64_t data_bytes, hash_seed, value_bytes_max;
    uint32_t volume, run_blocks;
    uint32_t shard; /* its number: volume * reactors + reactor */
    bool sealed, encrypted;
    uint32_t identity; /* when uuid was read */
    struct uuid uuid;
    char name[LIMIT_NAME_BYTES];
};

/* The shard at an offset of a reactor's part of an arena region. PROTOCOL when its header does not
 * fit. */
icms_err shm_arena_view(const void *base, uint64_t bytes, uint32_t reactor, uint32_t reactor_count,
                        uint64_t offset, struct shm_arena *out_arena) ICMS_MUST_CHECK;

/* Whether the volume has the identity still by which it is known here. Any thread. */
static inline bool shm_arena_is_current(const struct shm_arena *arena)
{
    return arena->identity % 2 == 0 &&
           atomic_load_explicit(&arena->header->identity, memory_order_seq_cst) == arena->identity;
}

/* Takes the identity and the UUID that the shard has now. False: they are changing. */
bool shm_arena_identify(struct shm_arena *io_arena) ICMS_MUST_CHECK;

/* Agent: another identity. Between the two nothing of the shard counts for clients. */
void shm_arena_identity_begin(struct shm_arena_header *header);
void shm_arena_identity_end(struct shm_arena_header *header, const struct uuid *uuid);

/* Looks a key up and leases its slot through *lease (an own, free entry). True: leased, with the
 * slot, its version and the value's bytes; shm_arena_value() gives it. False: not there, or no
 * luck; ask the agent. Any thread.
 */
bool shm_arena_lease(const struct shm_arena *arena, const struct key *key, _Atomic uint32_t *lease,
                     uint32_t *out_slot, uint64_t *out_version, uint32_t *out_value_bytes);

/* How many of the keys (1..SHM_PROBE_KEYS), from the first one on, are there at this moment. */
#define SHM_PROBE_KEYS 16
size_t shm_arena_has_first(const struct shm_arena *arena, const struct key *keys, size_t count);

/* The memory of a leased slot that holds a value of value_bytes: value, then the trailer when the
 * volume is sealed. NULL when that is not inside the arena: what the slot says makes no sense. */
const uint8_t *shm_arena_value(const struct shm_arena *arena, uint32_t slot, uint32_t value_bytes);

/* Key of a slot, word by word with atomic operations: readers look at it while it may change, and
 * decide by the version whether what they saw counts. The agent writes it while version is odd. */
void shm_slot_key_set(struct shm_slot *slot, const struct key *key);
bool shm_slot_key_equal(const struct shm_slot *slot, const struct key *key);

uint32_t shm_arena_head(uint64_t hash_seed, uint32_t head_count, const struct key *key);

/* ---- rings ---------------------------------------------------------------------------------- */

/* Which of the agent's reactors a key belongs to. Keys of one run belong to one; runs: the volume
 * has them (volume_has_runs). */
uint32_t shm_reactor(const struct key *key, bool runs, uint32_t reactor_count);

/* One side's private view of a queue pair of a client region, and of what all of them share. The
 * sides use the same functions; own positions are private and begin at 0, the other side's are read
 * once a call and bounded. A queue pair is viewed once by each side. */
struct shm_ring {
    struct shm_client_header *header;
    struct shm_qpair *qpair;
    _Atomic uint32_t *leases;
    _Atomic uint32_t *lease_shards;
    _Atomic uint64_t (*counts)[SHM_COUNTS]; /* [LIMIT_AGENT_VOLUMES] */
    uint8_t *staging;
    uint64_t staging_bytes;
    uint32_t submit_tail, submit_head, complete_tail, complete_head; /* own positions */
    uint32_t submit_rung; /* client: entries before it were published, or are hints */
};

/* Queue pairs of a client region, 1 to LIMIT_LOOPS; 0: its header makes no sense. */
uint32_t shm_reactor_count(const void *base, uint64_t bytes);

/* PROTOCOL when the header does not fit the region, or there is no such reactor. */
icms_err shm_ring_view(void *base, uint64_t bytes, uint32_t reactor,
                       struct shm_ring *out_ring) ICMS_MUST_CHECK;

/* Client: true and an entry was queued; false when the ring is full. publish makes queued entries
 * visible; true when the agent sleeps and its event has to be signalled. One thread at a time. */
bool shm_submit_push(struct shm_ring *ring, const struct shm_submit *entry);
bool shm_submit_publish(struct shm_ring *ring);

/* Client: the same for an entry that nobody waits for: visible, unless others wait to be published,
 * without waking the agent, which finds it when it looks next. True when it was queued. */
bool shm_submit_hint(struct shm_ring *ring, const struct shm_submit *entry);

/* Client: hints lie there in heaps: true when the agent sleeps and its event has to be signalled.
 */
bool shm_submit_wake(struct shm_ring *ring);

/* Agent: copies up to max entries out. A tail that makes no sense gives PROTOCOL: drop the client.
 */
icms_err shm_submit_take(struct shm_ring *ring, struct shm_submit *out_entries, uint32_t max,
                         uint32_t *out_count) ICMS_MUST_CHECK;

/* Agent: false when the client does not take its completions and the ring is full. publish: true
 * when the client sleeps and its event has to be signalled. */
bool shm_complete_push(struct shm_ring *ring, const struct shm_complete *entry);
bool shm_complete_publish(struct shm_ring *ring);

/* Agent: the same for one that is no answer: it takes no space that answers need. */
bool shm_complete_part(struct shm_ring *ring, const struct shm_complete *entry);

/* Client: copies up to max completions out. */
icms_err shm_complete_take(struct shm_ring *ring, struct shm_complete *out_entries, uint32_t max,
                           uint32_t *out_count) ICMS_MUST_CHECK;

/* Client: adds to a counter of a volume. Any thread. */
static inline void shm_count_add(struct shm_ring *ring, uint32_t volume, uint32_t count, uint64_t n)
{
    if (n != 0)
        atomic_fetch_add_explicit(&ring->counts[volume][count], n, memory_order_relaxed);
}

/* Before sleeping: announces it and looks again; false when there is something to take. */
bool shm_agent_sleep(struct shm_ring *ring);
bool shm_client_sleep(struct shm_ring *ring);

/* ---- the hello on the unix socket ----------------------------------------------------------- */

/* A client connects to the agent's SOCK_SEQPACKET socket and sends a hello; the agent answers with
 * a welcome and passes descriptors by SCM_RIGHTS: the client region, the client's
 * event (a stream: receive what is there), the event of each reactor (an eventfd: write 1), then
 * the arena region of each volume the client may use (some have the same one), in messages of up to
 * 32 descriptors: the welcome carries the first ones, each further message is 8 bytes
 * (SHM_HELLO_MAGIC) and carries more. A welcome with an error carries none. The socket stays open:
 * its end is the end of the client. Status and trace are answered with a text in messages of at
 * most 32 KiB, then the end of the stream.
 */
#define SHM_HELLO_ATTACH 1
#define SHM_HELLO_STATUS 2
#define SHM_HELLO_TRACE  3
#define SHM_HELLO_FDS    32
#define SHM_HELLO_MAGIC  0x6f6c6c65686d6369u

struct shm_hello {
    uint64_t magic;
    uint32_t version;
    uint32_t op;            /* SHM_HELLO_ATTACH, _STATUS, _TRACE                           */
    uint64_t staging_bytes; /* wanted; 0: the agent's default                              */
    struct shm_key key;     /* TRACE: of whose requests; length 0: of the slowest          */
    uint32_t pad;
};
_Static_assert(sizeof(struct shm_hello) == 48, "as on the socket");

struct shm_welcome {
    uint64_t magic;
    uint32_t version;
    uint32_t error; /* icms_err; on failure a sentence is in why                   */
    uint32_t volume_count;
    uint32_t reactor_count;
    char why[256];
};

#endif
