/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefix_cache.h: the KV cache of a llama.cpp program, shared block by block through icms.
 *
 * A prompt is cut into blocks of so many tokens. Before it is computed, prefix_cache_begin puts the
 * blocks that the tier has into the context and computes the ones between them; what the program
 * computes after that, prefix_cache_store gives to the tier for all servers. Whatever the tier
 * does, the context ends up as if everything had been computed: a block that does not come, comes
 * late or is not taken by llama.cpp is computed. So is one that is faster to compute than to load:
 * the tier says how long loads take (icms_match_estimate), and prefix_cache_computed how long the
 * program computes.
 *
 *   prefix_cache_open -> for each prompt: prefix_cache_begin -> llama_decode of the rest, the
 * answer
 *   -> prefix_cache_store -> ... -> prefix_cache_close, before the context is freed
 *
 * The context. llama.cpp has one opaque state for each sequence, which cannot be addressed by
 * block; so one sequence is lent to the cache, in which a block stands alone while it is copied in
 * or out. It needs n_seq_max of one more than the program uses, kv_unified = true, and n_batch of
 * at least a block. Models whose memory is recurrent or has windows cannot be cut and are refused.
 *
 * Bits. The same tokens computed in other chunks differ in the last bits. Where answers shall be
 * identical with and without the tier, compute in chunks of one block, counted from the first
 * token, and set n_ubatch to that.
 *
 * Threads: a cache is used by one thread at a time, the one that uses its context. Calls wait for
 * the tier no longer than deadline_ms for each block under way, and for what they compute.
 */
#ifndef PREFIX_CACHE_H
#define PREFIX_CACHE_H

#include <icms/icms.h>
#include <llama.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREFIX_CACHE_DIGEST_BYTES 32

struct prefix_cache;

struct prefix_cache_options {
    const char *where;  /* of the tier: "unix:", "dir:/var/cache/kv", see icms_open             */
    const char *volume; /* whose largest value holds a block's state                            */
    const char *keys;   /* list of keys of encrypted volumes, see icms_open; NULL: $ICMS_KEYS    */
    const char *tenant; /* who may share; NULL: ""                                              */
    const char *model;  /* its name                                                             */
    const uint8_t *digest; /* PREFIX_CACHE_DIGEST_BYTES of its weights, see
                              prefix_cache_digest; copied */
    const char *dtype; /* of the context's KV cache: "f16"                                     */
    uint32_t block_tokens; /* a multiple of what the program computes at a time */
    uint32_t
        deadline_ms;     /* of a load: less than computing a block takes is no use; 0: the tier's */
    bool store_on_flash; /* prefix_cache_store waits until drives have answered                  */
    llama_seq_id spare;  /* the sequence lent to the cache; empty between calls                  */
};

/* What became of a block in the last call. */
enum prefix_cache_fate {
    PREFIX_CACHE_KEPT,   /* was in the sequence, or in the tier, before: nothing to do           */
    PREFIX_CACHE_LOADED, /* came from the tier                                                   */
    PREFIX_CACHE_COMPUTED, /* did not come, and was computed by the cache */
    PREFIX_CACHE_LEFT,     /* did not come, or (status OK) is faster to compute; the program's to
                              compute                                                              */
    PREFIX_CACHE_STORED,  /* given to the tier                                                    */
    PREFIX_CACHE_REFUSED, /* not taken by the tier                                                */
};

struct prefix_cache_block {
    struct icms_key key;
    enum prefix_cache_fate fate;
    icms_err status;       /* of the tier: of COMPUTED, LEFT and REFUSED why                     */
    enum icms_miss reason; /* with MISS                                                          */
    enum icms_source source; /* of LOADED */
    uint64_t bytes; /* that moved                                                         */
};

struct prefix_cache_report {
    const struct prefix_cache_block *blocks; /* of the prompt; until the next call on the cache */
    uint32_t block_count;
    uint32_t loaded, computed, stored; /* of them */
    uint64_t bytes;      /* that moved between tier and context                      */
    double tier_seconds; /* of the call, without what was computed in it             */
};

/* The SHA-256 of a model file: KV is good for exactly these weights. False: it cannot be read. */
bool prefix_cache_digest(const char *path, uint8_t out_digest[PREFIX_CACHE_DIGEST_BYTES]);

/* Opens the tier. NULL when that is not possible, or not with this context; why, of why_bytes, then
 * says what to do. The context stays the program's. */
struct prefix_cache *prefix_cache_open(struct llama_context *context,
                                       const struct prefix_cache_options *options, char *why,
                                       size_t why_bytes);

/* Closes the tier; accepted stores go on in the agent. cache may be NULL. */
void prefix_cache_close(struct prefix_cache *cache);

/* Puts what the tier has of tokens[0 .. count-1] into the sequence, whose first `have` tokens are
 * these already; what it has behind them is removed. Holes are filled by computing them, in order
 * of position, as far as the tier has blocks behind them that are not late. *out_done: this many
 * first tokens are in place, at least the whole blocks of `have`; the program decodes the rest, at
 * least the last token, whose logits it wants. False: llama.cpp failed, and the sequence is in no
 * state to be used. */
bool prefix_cache_begin(struct prefix_cache *cache, llama_seq_id sequence,
                        const llama_token *tokens, uint32_t count, uint32_t have,
                        uint32_t *out_done);

/* The program has computed tokens of a prompt, at least a block of them, in so many seconds. What
 * the cache computes itself it knows. Until one of them was computed, all that is there is loaded.
 */
void prefix_cache_computed(struct prefix_cache *cache, uint32_t tokens, double seconds);

/* Gives the tier the whole blocks of tokens[0 .. count-1], which are in the sequence, as far as it
 * does not have them. False: llama.cpp failed to save a block; the sequence is as before. */
bool prefix_cache_store(struct prefix_cache *cache, llama_seq_id sequence,
                        const llama_token *tokens, uint32_t count);

/* Says that this prompt will begin within need_ms: its user types, a tool runs, it waits for its
 * turn. The tier brings the blocks that it has into the memory of this machine meanwhile; nothing
 * waits for that, and nothing depends on it. Returns of how many blocks it took the hint. */
uint32_t prefix_cache_prestage(struct prefix_cache *cache, const llama_token *tokens,
                               uint32_t count, uint32_t need_ms);

/* What the last begin or store did. */
void prefix_cache_report(const struct prefix_cache *cache, struct prefix_cache_report *out_report);

#endif
