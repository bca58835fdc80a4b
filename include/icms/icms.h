/* SPDX-License-Identifier: Apache-2.0 */
/*
 * icms.h: the client library of icms, a pod-level cache of KV blocks on shared flash.
 *
 * A block is an immutable value under a key in a volume. Whatever was stored may be forgotten at
 * any time; what is returned is exactly what was stored under that key. A block that is not
 * available is a miss with a reason, never an error of the call, and it comes by the deadline.
 *
 * Blocks are meant to be written once: name a block by its content, so that another value has
 * another key, and put it with put_if_absent. A put without it replaces the value of a key that is
 * present, and icms_remove frees it: in this agent and in the pod, and as a best effort where an
 * enclosure cannot be reached. Neither reaches the memory of other servers: an agent that has the
 * block in DRAM may serve the old value until it evicts it. What must be gone for everybody is a
 * new generation of the volume (`generation` in icms-target.yaml(5) and icms-agent.yaml(5)).
 *
 * Threads. Every function may be called from any thread, except that one request belongs to one
 * thread at a time, and icms_close must be the last call. Handles belong to the process that opened
 * them: after fork() the child gets ICMS_FORKED, and its icms_close leaves everything as it is.
 *
 * Memory. Buffers named in a call belong to the caller and must stay until the call (synchronous)
 * or the request (asynchronous) is over; after that the library does not touch them, whatever
 * happened to deadlines, agents or enclosures.
 *
 * When a put is acknowledged. ICMS_PUT_ACCEPTED: the agent has taken a checked copy; it is written
 * to flash in the background and lost if the agent dies first. ICMS_PUT_ON_FLASH: the enclosure's
 * drive has answered for it; it survives the death of every process (power loss: after icms_flush).
 *
 * When an agent dies or stops. Blocks that are under way get ICMS_PEER_DOWN when it died; when it
 * only stopped, loads are misses with reason deadline at most 20 ms after their deadline (where
 * threads get a core at once), and further ones at once, until it goes on. A unix: handle whose
 * agent died answers ICMS_PEER_DOWN at once, and a thread of the handle attaches to the one that
 * takes its place at the same socket: it tries at once, after 100 ms, and up to a second after each
 * further attempt. An agent that is gone within a second counts as an attempt. Volumes, leases and
 * buffers stay valid, what was stored there alone is a miss. An agent that is there and cannot be
 * used gives its error to calls in the place of PEER_DOWN, until one comes that can be: VERSION
 * (another release), PERMISSION, PROTOCOL, ... `log` gets a line when an agent is gone, or another
 * reason keeps it from being used, and one when the handle is attached again.
 *
 * When there is no agent yet. With `agent_optional`, icms_open of "unix:" gives a handle also while
 * nobody answers at the socket: one whose agent died, as above, and icms_volume_open gives volumes
 * that are not known yet. The handle attaches by itself when the agent comes. Until then every
 * call answers PEER_DOWN, as does icms_volume_state, by which an engine finds out whether there is
 * anything to ask. icms_volume_info says a uuid of zeros and value_bytes_max 0 until the volume is
 * known; chains that are begun before it have keys of length 0. Memory of devices may be
 * registered. What is wrong whatever agent comes is an error at once: options, the list of keys,
 * the name of a volume; so is an agent that is there and cannot be used. When the agent comes and
 * does not have the volume, calls on it answer NO_VOLUME, and NO_KEY or CONFIG where keys and
 * volume do not agree; `log` gets the sentence that icms_volume_open would have given. That no
 * enclosure has the volume may be known to the agent only later: icms_volume_state says NO_VOLUME
 * as soon as it is, and `log` gets the sentence if it was when the handle attached.
 *
 * When icms itself fails. A unix: handle never ends its process. If libicms finds that a rule of
 * its own is broken, it closes the handle: `log` of its options gets one line, which begins with
 * the place of the handle ("unix:/run/icms/agent.sock: closed after ..."), and from then on every
 * call on the handle answers ICMS_CLOSED, without waiting; icms_match and gets are misses then.
 * Calls and requests that are under way in any thread end at once with ICMS_CLOSED, all of their
 * blocks with it; icms_poll returns every request once, as usual. After the call, or once the
 * request is over, nothing writes into the caller's memory. Leases and buffers stay readable until
 * icms_close, which frees everything and returns; what was put and not flushed may be lost. Other
 * handles go on, and the same place may be opened again. With pod: and dir: the agent and its
 * storage run in the process, in threads that write into its memory: a broken rule prints a line to
 * standard error and aborts the process.
 *
 * Encrypted volumes. libicms encrypts a value before the agent sees it and decrypts it behind the
 * agent (AES-256-GCM): memory of agents, network and drives hold ciphertext only. Keys come from a
 * list (`keys` of the options, icms-keys.yaml(5)). A value that was not encrypted with that key,
 * for that volume, key and digest, is a miss with reason checksum, and the memory of the get is
 * zeros where it was written; under a key that is not in the list it is a miss with reason no_key.
 * Sizes are those of plain values. A lease is a copy in private memory. Direct transfers into the
 * caller's memory (pod:, dir:) are not used: a value passes the agent's memory.
 *
 * Memory of devices (GPUs) is registered with icms_memory_register; then puts and gets take it as
 * they take host memory.
 *
 * Errors. `why`, where given, receives one sentence for people: what was tried, what happened, what
 * to do. It may be NULL.
 */
#ifndef ICMS_ICMS_H
#define ICMS_ICMS_H

#include <stddef.h>
#include <stdint.h>

#include "icms/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ICMS_KEY_BYTES    16
#define ICMS_DIGEST_BYTES 32
#define ICMS_RUN_BYTES    4
#define ICMS_NAME_BYTES   64
#define ICMS_BATCH_MAX    4096

struct icms;
struct icms_volume;
struct icms_request;

/* ---- opening -------------------------------------------------------------------------------- */

struct icms_options {
    size_t struct_bytes; /* sizeof(struct icms_options): set by icms_options_init            */
    uint32_t load_deadline_ms;  /* for requests without one; 0: the agent's default  */
    uint32_t store_deadline_ms; /* the same for put, remove and flush */
    uint64_t buffer_bytes; /* shared memory for this client's stores; 0: the agent's default, which
                                is also the most; pod: and dir: as much as is asked for      */
    uint64_t directory_bytes; /* dir: size of the cache, whole MiB; 0: as it is, a new one 1 GiB  */
    uint64_t value_bytes_max; /* dir: largest value of volumes made there; 0: 8 MiB               */
    void (*log)(void *log_arg, const char *line); /* gets one line when a handle is closed after
                                an internal error, when its agent is gone or not there yet, and
                                when it is attached to one that came (unix:, see above), one for
                                each context of a
                                device whose driver fails or does not pin the agent's memory, and
                                one for each pod map that the agent of pod: does not use, or not
                                all of; on the thread that found out. It may use icms, but for
                                icms_close of this handle: that does nothing there (unix:), and
                                standard error gets a line. icms_close waits until it has
                                returned: call that without a lock that it takes. NULL: standard
                                error */
    void *log_arg;    /* for log                                                             */
    const char *keys; /* path of the list of keys of encrypted volumes, icms-keys.yaml(5);
                         NULL: $ICMS_KEYS; "" or neither: no keys                          */
    uint32_t agent_optional; /* unix: 1: the agent may come later, see above; 0: icms_open fails
                                without one                                                   */
};

ICMS_API void icms_options_init(struct icms_options *options);

/* Opens a tier.
 *   "unix:/run/icms/agent.sock"  an icms-agent of this machine, over shared memory
 *   "pod:/etc/icms/agent.yaml"   the agent inside this process, speaking to the enclosures itself
 *   "dir:/var/cache/kv"          one process, one directory, no daemon; made when it is missing
 *   "unix:" alone takes $ICMS_SOCKET or the default socket.
 * options may be NULL. PEER_DOWN, REFUSED, LOCKED (why names the holder's pid), CONFIG, ... An
 * agent has 2 s to answer. */
ICMS_API icms_err icms_open(const char *where, const struct icms_options *options, char *why,
                            size_t why_bytes, struct icms **out_icms) ICMS_MUST_CHECK;

/* Waits for requests that are under way (they end by their deadlines), then frees everything that
 * was opened from it: volumes, requests that were not ended, leases, buffers. pod: and dir: also
 * wait up to 10 s for accepted stores to reach the flash. Sets *icms to NULL; *icms may be NULL. */
ICMS_API void icms_close(struct icms **icms);

/* "0.1.0" */
ICMS_API const char *icms_version(void);

/* ---- volumes -------------------------------------------------------------------------------- */

/* A volume holds blocks of one tenant, model and layout. NO_VOLUME also when this host may not use
 * it, and when no enclosure has it. NO_KEY: it is encrypted, and the list of keys does not have it;
 * CONFIG: the list has it, and it is not encrypted. dir: makes the volume when it is missing (its
 * name of letters, digits, '.', '_' and '-'); for that it waits until requests under way are over,
 * and is BUSY while leases or buffers are out. With `agent_optional` it succeeds while the agent is
 * not there. */
ICMS_API icms_err icms_volume_open(struct icms *icms, const char *name, char *why, size_t why_bytes,
                                   struct icms_volume **out_volume) ICMS_MUST_CHECK;

/* Only when no request on it is under way. Sets *volume to NULL; *volume may be NULL. */
ICMS_API void icms_volume_close(struct icms_volume **volume);

/* Of a volume that is not known yet (`agent_optional`): the name, and else zeros. */
struct icms_volume_info {
    char name[ICMS_NAME_BYTES];
    uint8_t uuid[16];
    uint64_t value_bytes_max; /* largest value that can be put                          */
    uint32_t run_blocks;      /* blocks of a chain that are placed together, at most    */
    uint32_t sealed;          /* 1: values carry a trailer that is checked at each get  */
    uint32_t encrypted;       /* 1: and are encrypted by libicms                        */
};

/* Reset. A volume of a pod map can get another generation while it is open, which is another uuid:
 * everything of before is gone at once. Requests in flight then end with what they had, with a miss
 * no_volume or with NO_VOLUME; while the agent forgets the blocks, calls answer NO_VOLUME. The next
 * call uses the new identity, and icms_volume_info tells it; nothing has to be opened again. Chains
 * that were begun before go on with keys of the old uuid: their blocks are misses, and what is put
 * under such keys is found by no other chain. Begin chains anew when the uuid is another one than
 * when they were begun. Leases stay valid until they are given back. Puts that were not flushed
 * fail the next flush, once. A volume that leaves the map answers NO_VOLUME until it comes back. */
ICMS_API void icms_volume_info(const struct icms_volume *volume, struct icms_volume_info *out_info);

/* What a call on the volume would answer now, as far as that is known without asking the agent: OK,
 * and then the volume is known; PEER_DOWN, NO_VOLUME, NO_KEY, CONFIG, VERSION, ...: no call can do
 * anything now. NO_VOLUME also while the agent knows that no enclosure has the volume: calls then
 * get what lies in the agent's memory, at most. The agent looks for it by itself, so asking for the
 * state is enough to find out when that is over. Does not wait for the agent. */
ICMS_API icms_err icms_volume_state(struct icms_volume *volume) ICMS_MUST_CHECK;

/* ---- keys ----------------------------------------------------------------------------------- */

/* Which block. A plain value of 49 bytes without padding: copy it, compare it, keep it. Make it
 * with icms_chain_next, icms_key_from_name, icms_key_from_digest or icms_key_raw.
 *
 * `bytes` is the key in NVMe commands: 4 bytes of the run, which decide where the block lies, and
 * bytes 4 .. 15 of the digest. Enclosures know a block by these 16 bytes alone. In a sealed volume
 * the digest lies in the trailer of each value and all of it is compared at each get: a get of one
 * of two keys with the same 16 bytes and different digests, where the other one is stored, is a
 * miss with reason collision. So nothing but SHA-256 stands between two contents. icms_match,
 * icms_exists, icms_remove, put_if_absent and a get without memory look at the 16 bytes: they take
 * the other block for this one, as does VALUE_SIZE of a get. Of keys of chains and names two
 * collide with a chance of 2^-96 within a run and 2^-128 else.
 *
 * In a raw volume nothing is compared but the 16 bytes, and digests are not looked at. */
struct icms_key {
    uint8_t digest[ICMS_DIGEST_BYTES]; /* SHA-256 of its chain or name; zeros: none (icms_key_raw),
                                          for raw volumes                                        */
    uint8_t bytes[ICMS_KEY_BYTES];     /* on the wire; the ones past length must be zero         */
    uint8_t length;                    /* 1 .. 16; 0: a key that could not be made: no memory for
                                          its hash, or its chain was begun before its volume was
                                          known. Blocks with it get KEY_SIZE, and so do all that
                                          follow in its chain                                    */
};

/* What makes two KV blocks interchangeable besides their tokens. Everything is hashed into every
 * key, so a difference in any field is a different block. Strings may be NULL (""). */
struct icms_layout {
    const char *tenant;  /* who may share                                            */
    const char *model;   /* "SmolLM2-135M-Instruct"                                  */
    const void *weights; /* fingerprint of the weights                               */
    size_t weights_bytes;
    const char *dtype;     /* of the cache: "f16", "fp8_e4m3"                          */
    const char *layout;    /* order of the bytes inside a block, engine and version    */
    uint32_t block_tokens; /* tokens a block                                           */
    uint32_t rank[4];      /* tensor, pipeline, context, expert rank ...               */
    uint32_t ranks[4];     /* ... of how many                                          */
};

/* The hash of a chain of blocks so far. Plain memory of the caller, 48 bytes: copy it to branch. */
struct icms_chain {
    uint8_t state[ICMS_DIGEST_BYTES]; /* SHA-256 over everything so far          */
    uint64_t blocks;                  /* blocks so far                           */
    uint32_t run_blocks;              /* from the volume                         */
    uint8_t run[ICMS_RUN_BYTES];      /* of the last block's run                 */
};

/* Begins a chain. The derivation is written down in src/client/key.c, so that others can do the
 * same. Of a volume that is not known yet all keys have length 0. */
ICMS_API void icms_chain_init(struct icms_chain *chain, const struct icms_volume *volume,
                              const struct icms_layout *layout);

/* Appends one block, given by what determines it (its token ids, image hashes, adapter ids, ... as
 * bytes), and gives its key: the digest is over the whole chain, the run that of the run's first
 * block. Equal chains give equal keys in every process and on every machine that hashes the same
 * bytes. */
ICMS_API void icms_chain_next(struct icms_chain *chain, const void *content, size_t bytes,
                              struct icms_key *out_key);

/* A key from a name of any length, which is hashed. Names that begin alike lie apart. */
ICMS_API void icms_key_from_name(const void *name, size_t bytes, struct icms_key *out_key);

/* A key from a hash of the caller's own: 32 bytes of SHA-256, or of something as good, over all
 * that makes the block what it is, and 4 bytes of hash of its run. run may be NULL: the digest's
 * first 4 bytes, and the block is placed by itself. A digest of zeros is none. */
ICMS_API void icms_key_from_digest(const uint8_t run[ICMS_RUN_BYTES],
                                   const uint8_t digest[ICMS_DIGEST_BYTES],
                                   struct icms_key *out_key);

/* A key of up to 16 bytes as they are, without a digest; KEY_SIZE otherwise. For raw volumes, whose
 * blocks other NVMe hosts read and write; all of its bytes place it. In a sealed volume its status
 * is INVALID. */
ICMS_API icms_err icms_key_raw(const void *bytes, size_t length,
                               struct icms_key *out_key) ICMS_MUST_CHECK;

/* ---- requests ------------------------------------------------------------------------------- */

enum icms_source {
    ICMS_SOURCE_NONE = 0,
    ICMS_SOURCE_DRAM = 1,  /* the agent's memory   */
    ICMS_SOURCE_LOCAL = 2, /* a drive of this host */
    ICMS_SOURCE_POD = 3,   /* an enclosure         */
};

/* One block of a batch. */
struct icms_block {
    struct icms_key key;   /* in                                                                */
    void *data;            /* put: the value, only read; get: where it goes; else NULL          */
    uint64_t bytes;        /* in: put: value, get: room. Out: get: value, also when room is small */
    icms_err status;       /* out: OK, MISS, or what is wrong with this block                   */
    enum icms_miss reason; /* out, with MISS; with other errors if there is one             */
    enum icms_source source; /* out, with OK of get                                             */
};

enum icms_class {
    ICMS_CLASS_LOAD = 0,     /* an engine waits: the default of get  */
    ICMS_CLASS_PRESTAGE = 1, /* an engine will ask soon              */
};

enum icms_put_ack {
    ICMS_PUT_ACCEPTED = 0, /* the default */
    ICMS_PUT_ON_FLASH = 1,
};

/* A part of a value's memory. */
struct icms_piece {
    void *data;
    uint64_t bytes; /* at least 1 */
};

/* Pieces of a value at most. */
#define ICMS_PIECES_MAX 256

struct icms_request_options {
    size_t struct_bytes;    /* sizeof: set by icms_request_options_init                         */
    uint32_t deadline_ms;   /* from now; 0: the default of the handle                           */
    uint32_t class_;        /* enum icms_class                                                  */
    uint32_t put_ack;       /* enum icms_put_ack                                                */
    uint32_t put_if_absent; /* 1: status EXISTS where the key is present; 0: replaces its value */
    void *tag;              /* icms_request_tag gives it back                                   */
    void *stream;           /* device memory: copies are ordered on this stream, see "device memory"
                               below; a CUstream or hipStream_t. NULL: the caller has waited for
                               whatever used the memory before                                  */
    uint32_t pieces; /* put and get: 0, or of how many pieces the memory of each block is: data is
                        an array of so many struct icms_piece then, which stays with the block, and
                        bytes is the sum of theirs, else INVALID. The value lies in them one behind
                        the other; a get fills them in this order. The pieces of a block are all in
                        host memory, or all in registered memory of one device (else INVALID). In
                        encrypted volumes host memory is one piece (UNSUPPORTED)                  */
    uint32_t once;   /* put and get: 1: the blocks are read once at most, see "read once" below; 0:
                        as others                                                                */
};

ICMS_API void icms_request_options_init(struct icms_request_options *options);

/* Read once. Whoever knows that blocks will not be read again (documents that are asked about once,
 * a scan, a prefill whose decoder is known) says so with `once`, and they take no memory from
 * others: blocks that were brought so into the agent's memory are the first to be evicted, as soon
 * as they are on flash, those that were read before those that were not; each makes space for the
 * next one. Memory takes none to the agent's own drive, and with pod: and dir: a get past the
 * memory stays one. `once` of a get says nothing about a block that is in memory already: it stays
 * what it is, and the get does not count as a use of it. A block that is read twice all the same,
 * the second time without `once`, is one as all others from then on, and so is one that a hint with
 * `once` and one without it wait for, and one whose value replaces that of another. The pod knows
 * nothing of this: what is not wanted there any more is removed (icms_remove). */

/* The synchronous forms. blocks[0 .. count-1], count 1 .. ICMS_BATCH_MAX; options may be NULL.
 * Return ICMS_OK when every block's status is ICMS_OK, ICMS_MISS when at least one is not (look at
 * each), or an error of the whole call (INVALID, CLOSED, FORKED, PEER_DOWN, ...), where all
 * statuses are set to it. A get without memory (data NULL, bytes 0) brings the block into the
 * agent's memory. The memory of a get whose status is not OK may have been written to, and what is
 * behind the value in the room of one that is OK, too. Statuses of one block: KEY_SIZE, INVALID
 * (bytes of the key past its length are not zero; sealed volume: it has no digest), VALUE_SIZE
 * (put: empty or over the volume's largest; get: more than there is room for), EXISTS, QUOTA, LIMIT
 * (put: larger than all of buffer_bytes), DEADLINE (a put, remove or flush), BUSY, IO, PEER_DOWN
 * ... */
ICMS_API icms_err icms_put(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                           const struct icms_request_options *options) ICMS_MUST_CHECK;
ICMS_API icms_err icms_get(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                           const struct icms_request_options *options) ICMS_MUST_CHECK;

/* status OK where the block is there at this moment; no bytes move. */
ICMS_API icms_err icms_exists(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                              const struct icms_request_options *options) ICMS_MUST_CHECK;

/* How many blocks from the first up to the first hole are there: the longest usable prefix. Any
 * number of keys, 1 at least. */
ICMS_API icms_err icms_match(struct icms_volume *volume, const struct icms_key *keys, size_t count,
                             const struct icms_request_options *options,
                             size_t *out_matched) ICMS_MUST_CHECK;

/* What it takes to have a block and all before it, if they are asked for now with one get. */
struct icms_estimate {
    uint64_t load_us;  /* expected, until the last of them is in the caller's memory;
                          ICMS_ESTIMATE_UNKNOWN: nothing was loaded from there lately            */
    uint64_t error_us; /* of the last loads from there nine of ten were within load_us and this,
                          either way                                                             */
    uint64_t bytes;    /* that they have together, about, as they are stored                     */
    enum icms_source source; /* where this block is                                              */
};
#define ICMS_ESTIMATE_UNKNOWN UINT64_MAX

/* icms_match, and for each block of the prefix what it takes to have the prefix up to it:
 * out_estimates[0 .. count-1], of which the first *out_matched are set. So an engine that knows how
 * long it computes finds the part of a prefix that is faster to load than to compute.
 *
 * The agent knows from loads that it completed how long the first of several takes at an enclosure,
 * or at its own drive, and at which rate others follow; what is in flight there counts as ahead of
 * these. The rest is the copy into the caller's memory, at the rate of this handle's last gets. An
 * enclosure that comes back, and one that has another number of addresses in use, is unknown until
 * a load from it is completed. Where staging memory of the handle is used up, nothing is known.
 *
 * An estimate promises nothing: others may load meanwhile, and a block may be gone when it is asked
 * for. What loads took against what was expected is told by icms_status and icms-metrics(7). Unlike
 * icms_match it always asks the agent. */
ICMS_API icms_err icms_match_estimate(struct icms_volume *volume, const struct icms_key *keys,
                                      size_t count, const struct icms_request_options *options,
                                      struct icms_estimate *out_estimates,
                                      size_t *out_matched) ICMS_MUST_CHECK;

/* Frees blocks in this agent and in the pod; status MISS where there was none. Best effort where an
 * enclosure cannot be reached, and other servers may serve a block from their DRAM until they evict
 * it: see above. */
ICMS_API icms_err icms_remove(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                              const struct icms_request_options *options) ICMS_MUST_CHECK;

/* Waits until everything this handle put into the volume is on flash and safe against power loss.
 * IO, once, when some of it did not get there: a store failed after it was accepted, or the agent
 * died. */
ICMS_API icms_err icms_flush(struct icms_volume *volume,
                             const struct icms_request_options *options) ICMS_MUST_CHECK;

/* The asynchronous forms: the same work; blocks stay the caller's and unchanged until the request
 * is over. On ICMS_OK *out_request must be ended with icms_request_end; otherwise nothing was
 * started. LIMIT when too many blocks are under way. */
ICMS_API icms_err icms_put_start(struct icms_volume *volume, struct icms_block *blocks,
                                 size_t count, const struct icms_request_options *options,
                                 struct icms_request **out_request) ICMS_MUST_CHECK;
ICMS_API icms_err icms_get_start(struct icms_volume *volume, struct icms_block *blocks,
                                 size_t count, const struct icms_request_options *options,
                                 struct icms_request **out_request) ICMS_MUST_CHECK;
ICMS_API icms_err icms_exists_start(struct icms_volume *volume, struct icms_block *blocks,
                                    size_t count, const struct icms_request_options *options,
                                    struct icms_request **out_request) ICMS_MUST_CHECK;
ICMS_API icms_err icms_remove_start(struct icms_volume *volume, struct icms_block *blocks,
                                    size_t count, const struct icms_request_options *options,
                                    struct icms_request **out_request) ICMS_MUST_CHECK;
ICMS_API icms_err icms_flush_start(struct icms_volume *volume,
                                   const struct icms_request_options *options,
                                   struct icms_request **out_request) ICMS_MUST_CHECK;

/* A descriptor that is readable when icms_poll may have something (also when a deadline passed).
 * Owned by the handle: poll it, never read it. */
ICMS_API int icms_event_fd(struct icms *icms);

/* A request that is over, or NULL. Never blocks. Each request is returned once. */
ICMS_API struct icms_request *icms_poll(struct icms *icms);

/* Waits for one request; it is then over, and icms_poll does not return it. DEADLINE when
 * timeout_ms passed first (it goes on). timeout_ms -1: as long as it takes, which the deadline
 * bounds. */
ICMS_API icms_err icms_request_wait(struct icms_request *request, int timeout_ms) ICMS_MUST_CHECK;

/* 1 when it is over. */
ICMS_API int icms_request_over(struct icms_request *request);
ICMS_API void *icms_request_tag(const struct icms_request *request);

/* Asks for an early end: blocks that are not done get status CANCELED. It is over soon, not at
 * once. */
ICMS_API void icms_request_cancel(struct icms_request *request);

/* Waits if it is not over, frees it, sets *request to NULL and returns what the synchronous form
 * would have. */
ICMS_API icms_err icms_request_end(struct icms_request **request);

/* ---- prestage ------------------------------------------------------------------------------- */

/* A hint that blocks will be asked for soon: a session resumes, a request waits behind others, a
 * tool has answered. The agent brings them into memory in time for a deadline, and keeps them there
 * until a second after it, or until they are read. A hint is a wish: nothing fails without it, no
 * load waits for it, and any of it may be dropped.
 *
 * Order. Hints of one user of a volume go by priority, then by deadline, the earliest first; users
 * take turns. Loads go first: hints use a queue of their own, and a part of what is in flight. A
 * block that is loaded already, for whom it may be, is not loaded twice; a get of a block that is
 * being prestaged waits for that load. A hint that cannot be served by its deadline is dropped.
 *
 * Limits. An agent remembers a bounded number of hints. A user may have as many as are free; what
 * is more is refused and counted. Blocks that wait to be read take half of a volume's memory at
 * most, of which users of the volume have equal parts. A hint for which there is no place takes
 * that of a user with more than its part, or of a later hint of the same user, or waits. When loads
 * or stores find no other space, such blocks are evicted. To the agent's own drive blocks go within
 * its write budget, behind those for memory.
 *
 * Pins. A hint with pin_seconds brings a block and keeps it for so long, however often it is read.
 * A pin belongs to the user, not to the handle, and is over at its time, when it is taken back, and
 * when the block is removed or the volume is another one. Pins of a volume take a part of its
 * memory, and of the own drive, at most (pin_max in icms-agent.yaml(5)), of which a user may have
 * half of what is free; what is more is refused with LIMIT. Such blocks are evicted after all
 * others, and brought again. On the own drive they are used again and again, and brought again when
 * it evicts them.
 *
 * What became of hints is counted (icms-metrics(7), icms_status): arrived before the block was
 * asked for, late and by how much, never asked for and its bytes. */

enum icms_tier {
    ICMS_TIER_DRAM = 0,  /* the agent's memory                                      */
    ICMS_TIER_LOCAL = 1, /* its own drive beside the pod: UNSUPPORTED where it has none */
};

#define ICMS_PRIORITY_MAX    3
#define ICMS_PIN_SECONDS_MAX 86400

struct icms_prestage_options {
    size_t struct_bytes;  /* sizeof: set by icms_prestage_options_init                         */
    uint32_t deadline_ms; /* from now: when the blocks will be asked for; 600,000 at most      */
    uint32_t tier;        /* enum icms_tier                                                    */
    uint32_t priority;    /* 0 (the default) .. ICMS_PRIORITY_MAX: the larger goes first       */
    uint32_t timeout_ms;  /* of the call: how long it waits for the agent; 0: the deadline of
                             loads                                                             */
    void *tag;            /* icms_request_tag gives it back                                    */
    uint32_t pin_seconds; /* how long the blocks stay from now on, ICMS_PIN_SECONDS_MAX at most;
                             0: these are hints, and no pins                                   */
    uint32_t once;        /* 1: the blocks are read once at most, see "read once" above: kept until
                             they are read, as others, and evicted first after that            */
};

/* deadline_ms is 1,000. */
ICMS_API void icms_prestage_options_init(struct icms_prestage_options *options);

/* Hints that these blocks will be asked for by options->deadline_ms. The agent is asked to remember
 * the hints, and nothing more: the call does not wait for blocks. Any number of keys, 1 at least;
 * they may be freed after the call. options may be NULL. *out_taken (may be NULL) is how many hints
 * the agent took; it is set on any error but INVALID, too. A hint for a key that is hinted already
 * joins that one, with the earlier of their deadlines, or with the later one when the block has
 * arrived; of two pins the one that is longer counts.
 *
 * OK: all were taken. Else the status of the first that was not, while others may have been: BUSY
 * (too many hints; behind such a batch of 4,096 keys no more are asked for), DEADLINE (deadline_ms
 * is 0), LIMIT (too many pins; no more are asked for, either), KEY_SIZE, UNSUPPORTED (the tier),
 * NO_VOLUME, PEER_DOWN, ... INVALID: deadline_ms, tier, priority or pin_seconds is out of range, or
 * once with pin_seconds or for a drive. */
ICMS_API icms_err icms_prestage(struct icms_volume *volume, const struct icms_key *keys,
                                size_t count, const struct icms_prestage_options *options,
                                size_t *out_taken) ICMS_MUST_CHECK;

/* The same as a request, of 1 .. ICMS_BATCH_MAX keys, which stay the caller's and unchanged until
 * it is over. icms_request_end returns what icms_prestage would have. icms_request_cancel ends the
 * waiting for the agent; hints that it has taken stay. */
ICMS_API icms_err icms_prestage_start(struct icms_volume *volume, const struct icms_key *keys,
                                      size_t count, const struct icms_prestage_options *options,
                                      struct icms_request **out_request) ICMS_MUST_CHECK;

/* Takes hints back: once for each time that the user of this process has hinted a key to a tier, a
 * pin at once.
 * What is being loaded arrives all the same, and is not kept. *out_canceled (may be NULL): how many
 * hints there were. OK: one for each key; MISS: fewer. */
ICMS_API icms_err icms_prestage_cancel(struct icms_volume *volume, const struct icms_key *keys,
                                       size_t count, size_t *out_canceled) ICMS_MUST_CHECK;

/* ---- blocks without a copy ------------------------------------------------------------------ */

/* A block in the agent's memory, readable in place. It was verified when this handle leased it
 * first, after it came there, and does not change until the lease is given back. Leases are few
 * (ICMS_LEASES_MAX a handle): give them back soon. In an encrypted volume it is decrypted into
 * private memory, of which a handle has 64 MiB; the agent's memory is free again at once. */
#define ICMS_LEASES_MAX 256

struct icms_lease {
    const void *data; /* read only                      */
    uint64_t bytes;   /* of the value                   */
    uint32_t index;   /* private                        */
    void *owner;      /* private                        */
};

/* Brings the block into memory if need be and leases it. MISS with *out_reason (may be NULL); LIMIT
 * when ICMS_LEASES_MAX are out, or the private memory is. */
ICMS_API icms_err icms_lease_take(struct icms_volume *volume, const struct icms_key *key,
                                  const struct icms_request_options *options,
                                  enum icms_miss *out_reason,
                                  struct icms_lease *out_lease) ICMS_MUST_CHECK;
ICMS_API void icms_lease_give(struct icms_lease *lease);

/* Memory shared with the agent. A put whose data is exactly such a buffer is not copied in this
 * process; a trailer of 64 bytes is written behind the value, so what the buffer holds there is
 * lost. Leave it unchanged until the put is over. Freed by icms_close at the latest. NO_MEMORY when
 * the handle's buffer_bytes are used up; stores that need copying use the same memory. In a handle
 * with keys it is private memory instead, which leases of encrypted volumes use as well, and a put
 * copies it. */
ICMS_API icms_err icms_buffer_take(struct icms *icms, uint64_t bytes,
                                   void **out_data) ICMS_MUST_CHECK;
ICMS_API void icms_buffer_give(struct icms *icms, void *data);

/* ---- device memory -------------------------------------------------------------------------- */

/* Memory of a GPU is registered first. A put and a get whose block.data points into it then copy
 * between the device and pinned memory of the handle, on streams of the handle and beside other
 * requests; blocks of one batch may be in host memory and in memory of several devices. Host memory
 * needs no registration.
 *
 * What is checked. A value is verified, and in an encrypted volume decrypted, before its copy to
 * the device is given to the driver: device memory never gets bytes that failed a check.
 *
 * Without a host copy. The agent's memory of the volumes that are open, and not encrypted, is
 * pinned when memory of a device is registered and when a volume is opened. A block that lies there
 * is verified in place, once by each handle after it came there, and copied from there; the agent
 * leaves it as it is until the device is done. Where pinning fails, and after another agent took
 * the place of one that is gone, blocks are copied to pinned memory of the handle first, as those
 * of encrypted volumes are. Pinning brings all of that memory into the machine's: see doc/gpu.md.
 *
 * Order. Without a stream, the caller has waited until nothing uses the memory, and when a block is
 * done its copy is done: any stream may use it. With `stream` of the request's options
 *   - copies begin behind everything that was on the stream when the call was made;
 *   - a get is over once its copies are with the driver, and what is put on the stream after that
 *     runs behind them: nobody waits on the CPU for a copy. A copy that fails later is an error of
 *     the context, which the driver reports for whatever follows on the stream;
 *   - a put is over when its value is stored, as ever; the memory may be written to then.
 * The stream belongs to the device of all device memory of the batch (else INVALID), and stays
 * until the request is over. It is not the per-thread default stream (CU_STREAM_PER_THREAD:
 * INVALID), and is not being captured to a graph (INVALID); the legacy default stream is
 * CU_STREAM_LEGACY, 1. After a request that ended at its deadline or was canceled the stream stays
 * until icms_memory_unregister of the request's ranges is not BUSY.
 *
 * Layers. Requests end in any order, each on its own: with a request for each layer, asked for in
 * the order in which they are computed, the first layer computes while others arrive. Copies are
 * given to the device in the order in which their values arrived and were verified.
 *
 * Deadlines. No call waits for a copy past its deadline. A call asks the driver two things on its
 * own thread, and takes as long as the driver does for them: to record an event on the stream that
 * it names, and what kind of memory an address is that is not registered, once a driver is in the
 * process. Where a copy has not ended by then the status of the block is MISS with reason deadline
 * (get) or DEADLINE (put). A copy that the driver has already cannot be taken back: the memory is
 * the caller's again when icms_memory_unregister is not BUSY, also in a handle that failed. Pinned
 * memory of such a copy is not used again before the copy has ended.
 *
 * Errors of a block. NOT_REGISTERED: data is memory of a device that this handle does not know; it
 * is noticed when the driver's library was in the process before the volume was opened or memory
 * registered. DEVICE: the driver refused the copy, the context is gone, or the memory was freed;
 * `log` of the handle's options gets the driver's words once a context. INVALID: the block is
 * partly outside of what was registered.
 *
 * After fork() the child gets FORKED, as everywhere; CUDA itself does not work in a child of a
 * process that used it. */
enum icms_memory_kind {
    ICMS_MEMORY_HOST = 0,  /* memory of this process: taken as it is, and never asked about */
    ICMS_MEMORY_CUDA = 1,  /* of an NVIDIA GPU: cuMemAlloc and what builds on it (libcuda.so.1) */
    ICMS_MEMORY_HIP = 2,   /* of an AMD GPU: hipMalloc (libamdhip64.so)                        */
    ICMS_MEMORY_GAUDI = 3, /* of an Intel Gaudi that this process has acquired: synDeviceMalloc
                              (libSynapse.so); a stream is a synStreamHandle                */
};

/* Ranges that a handle may have registered at a time, and contexts of devices that they are in. */
#define ICMS_MEMORIES_MAX 4096
#define ICMS_DEVICES_MAX  16

struct icms_memory;

/* Registers bytes from address on: a whole allocation or a part of one, not overlapping what this
 * handle has registered. The first range of a context takes pinned memory (64 MiB, or less where
 * the machine does not give it) and a thread, and pins the agent's memory; this may take as long as
 * the driver does. Any thread.
 * UNSUPPORTED: no driver of this kind, or one that is too old. INVALID: no bytes, an overlap, or
 * not memory of such a device. NO_MEMORY: no pinned memory. DEVICE: the driver fails otherwise.
 * LIMIT. `why` has the words, with those of the driver. */
ICMS_API icms_err icms_memory_register(struct icms *icms, enum icms_memory_kind kind, void *address,
                                       uint64_t bytes, char *why, size_t why_bytes,
                                       struct icms_memory **out_memory) ICMS_MUST_CHECK;

/* Forgets a range, before its memory is freed and when no request under way has blocks in it. BUSY:
 * copies of requests that ended at their deadline, were canceled or failed are still with the
 * driver, or a request that named a stream is not over; *memory stays and it may be called again.
 * A driver that fails and does not say that copies ended keeps their ranges BUSY. Otherwise sets
 * *memory to NULL; *memory may be NULL. icms_close forgets all ranges, and waits up to 2 s for such
 * copies; memory of the agent that a driver does not let go of then stays in the process, with pod:
 * and dir: the agent in it as well. */
ICMS_API icms_err icms_memory_unregister(struct icms_memory **memory) ICMS_MUST_CHECK;

/* ---- state ---------------------------------------------------------------------------------- */

/* One JSON object about the tier (enclosures and their state, volumes, hits, misses by reason,
 * bytes) into out, zero-terminated and cut at bytes; *out_bytes is what the whole needs, the zero
 * included. unix: asks over a connection of its own, so it works while requests are stuck. A handle
 * that has registered memory of GPUs adds "devices": of each "device", as "CUDA 0", how an own
 * drive is read for it ("drive_reads": "cufile", "host", or "undecided" before the first read;
 * "why"), and the records that were read past the host ("past_host", "past_host_bytes"). */
ICMS_API icms_err icms_status(struct icms *icms, char *out, size_t bytes,
                              size_t *out_bytes) ICMS_MUST_CHECK;

/* One JSON object about requests that the agent has answered lately, in volumes that this user may
 * use: with a key the last 64 of that key, the last one first, among the last 1,024 of each of the
 * agent's loops; with key NULL the slowest 32 of the last one to two minutes, the slowest first.
 * Each has "op", "volume", "key" (hex, as on the wire), "bytes", "status", "reason", "enclosure"
 * where one was asked, "age_us" since its answer, "us" until it, and "states", in order, with the
 * time in each. Gets that find the block in mapped memory ask no agent, and are not among them.
 * out, bytes and *out_bytes are as those of icms_status. */
ICMS_API icms_err icms_trace(struct icms *icms, const struct icms_key *key, char *out, size_t bytes,
                             size_t *out_bytes) ICMS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
