/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nixl/nixl.h: the plugin without NIXL: its settings, its keys, an open tier and transfers on it.
 *
 * Called by plugin.cpp, which speaks NIXL's binary interface, and by tests. Nothing here logs.
 *
 * Threads. A tier has one thread of its own, which alone starts transfers, copies bytes and ends
 * them: nixl_xfer_post only hands over and nixl_xfer_over only looks, so a caller is never held up
 * by the size of a transfer or by the network. All functions may be called from any thread; one
 * transfer belongs to one thread at a time. After fork() the child gets ICMS_FORKED.
 */
#ifndef NIXL_NIXL_H
#define NIXL_NIXL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "icms/icms.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the core that loads the plugin (core.c) ------------------------------------------------ */

/* OK when the NIXL that holds this address has the layout of abi.hpp, as far as can be seen;
 * VERSION with a sentence when a call of one into the other would crash. */
icms_err nixl_core_check(const void *address, char *why, size_t why_bytes) ICMS_MUST_CHECK;

/* ---- settings (settings.c) ------------------------------------------------------------------ */

/* The names under which the plugin is loaded. They differ in parameters and in defaults. */
enum nixl_backend {
    NIXL_ICMS,       /* "ICMS": its own parameters                                        */
    NIXL_DOCA_MEMOS, /* "DOCA_MEMOS": those of NVIDIA's plugin for CMX                     */
};

/* A parameter as NIXL hands it over, or one with its default. The texts are the owner's. */
struct nixl_param {
    const char *name;
    const char *value;
};

/* What of the name of an object is hashed to its key. */
enum nixl_key_form {
    NIXL_KEY_NAME, /* the name                                                              */
    NIXL_KEY_HEX,  /* of up to 32 lower-case hex digits the bytes that they write, two a byte */
};

struct nixl_settings {
    char connection[1024];        /* for icms_open                                            */
    char keys[1024];              /* list of keys of encrypted volumes; "": that of ICMS_KEYS */
    char volume[ICMS_NAME_BYTES]; /* for icms_volume_open                                     */
    uint8_t uuid[16];             /* that the volume must have; all zero: any                 */
    uint32_t load_deadline_ms;    /* of a READ and a query                                    */
    uint32_t store_deadline_ms;   /* of a WRITE                                               */
    uint32_t blocks_max;          /* with the tier at a time; further ones wait               */
    enum nixl_key_form key_form;  /* how names of objects become keys                         */
    enum icms_put_ack put_ack;    /* what a WRITE waits for                                   */
    bool query_assume;            /* a query answers yes without asking                       */
    bool absent_is_zeros;         /* a READ of what is not there fills zeros and is no error  */
};

/* Parameters to settings. CONFIG and a sentence for an unknown parameter or a wrong value, and for
 * DOCA_MEMOS what reading its table says (conf/conf.h, "ICMS_NIXL_CONFIG" or the default file).
 * out_settings is set on OK alone. */
icms_err nixl_settings_read(enum nixl_backend backend, const struct nixl_param *params,
                            size_t count, char *why, size_t why_bytes,
                            struct nixl_settings *out_settings) ICMS_MUST_CHECK;

/* Parameter number index of a backend with its default; false when there are no more. */
bool nixl_settings_default(enum nixl_backend backend, size_t index, struct nixl_param *out_param);

/* The key of an object: of its name, or, when that is empty, a hash of its device number. Distinct
 * names have distinct keys, in either form: a name that is not hex is never taken for one. KEY_SIZE
 * when the name has no key in this form: it is not up to 32 hex digits, nor up to 16 bytes. */
icms_err nixl_key_make(enum nixl_key_form form, const char *name, size_t bytes, uint64_t device,
                       struct icms_key *out_key) ICMS_MUST_CHECK;

/* ---- the tier (tier.c) ---------------------------------------------------------------------- */

struct nixl_tier;

/* Takes a line for people, on any thread: what libicms says (`log` of its options), or that the
 * volume has another UUID. */
typedef void (*nixl_log)(void *arg, const char *line);

/* Opens the connection and the volume and starts the thread. What icms_open and icms_volume_open
 * say; CONFIG when the volume has another UUID. OK as well when an agent (unix:) is not there: it
 * is used when it comes, and until then transfers and queries end at once with PEER_DOWN; with
 * CONFIG when its volume has another UUID. */
icms_err nixl_tier_open(const struct nixl_settings *settings, nixl_log log, char *why,
                        size_t why_bytes, struct nixl_tier **out_tier) ICMS_MUST_CHECK;

/* Cancels what is under way and waits for it, then ends the thread and closes the connection. Sets
 * *tier to NULL; *tier may be NULL. Transfers that were not freed can only be freed. In the child
 * of a fork: does nothing. */
void nixl_tier_close(struct nixl_tier **tier);

const struct nixl_settings *nixl_tier_settings(const struct nixl_tier *tier);

/* Largest value that can be stored; UINT64_MAX as long as nobody can tell. */
uint64_t nixl_tier_value_bytes_max(struct nixl_tier *tier);

/* out_found[i] is 1 when keys[i] is there at this moment. Waits, at most until the load deadline
 * and 100 ms. An error of the whole call leaves out_found as it was. */
icms_err nixl_tier_query(struct nixl_tier *tier, const struct icms_key *keys, size_t count,
                         uint8_t *out_found) ICMS_MUST_CHECK;

/* ---- memory of GPUs (memory.c) -----------------------------------------------------------------
 */

/* Memory whose blocks may be in transfers. */
struct nixl_memory;

/* What icms_memory_register says, CUDA, HIP or Gaudi. Ranges that lie in one that is registered are
 * fine. */
icms_err nixl_memory_register(struct nixl_tier *tier, void *address, uint64_t bytes, char *why,
                              size_t why_bytes, struct nixl_memory **out_memory) ICMS_MUST_CHECK;

/* Waits up to two seconds for copies of transfers that ended at their deadline; BUSY: there are
 * some after that. Sets *memory to NULL in any case. */
icms_err nixl_memory_unregister(struct nixl_tier *tier,
                                struct nixl_memory **memory) ICMS_MUST_CHECK;

/* ---- transfers (xfer.c) --------------------------------------------------------------------- */

/* Blocks stored or loaded together. It can be posted again when it is over.
 *
 *   nixl_xfer_new -> nixl_xfer_set ... -> nixl_xfer_post -> nixl_xfer_over ... -> nixl_xfer_free
 */
struct nixl_xfer;

/* How a transfer ended. */
struct nixl_outcome {
    icms_err err;          /* OK, or the gravest of its blocks' errors; VALUE_SIZE of a load: the
                              value has another size than was asked for                        */
    enum icms_miss reason; /* with MISS                                                        */
    size_t failed;         /* blocks that are not OK; what was not found counts unless it may  */
    size_t block;          /* the one that err is of                                           */
    uint64_t bytes;        /* of that block: what the value has                                */
};

/* NULL when there is no memory. count: at least 1. */
struct nixl_xfer *nixl_xfer_new(struct nixl_tier *tier, bool store, size_t count);

/* Sets one block: not while it is under way. data stays the caller's; it is read (store) or written
 * from the post until the transfer is over. */
void nixl_xfer_set(struct nixl_xfer *xfer, size_t index, const struct icms_key *key, void *data,
                   uint64_t bytes);

/* Hands it to the tier's thread; its deadline counts from now. BUSY: it is under way. */
icms_err nixl_xfer_post(struct nixl_xfer *xfer) ICMS_MUST_CHECK;

/* True from its post until it is over. */
bool nixl_xfer_under_way(const struct nixl_xfer *xfer);

/* True when it is over, and then how; at the latest 100 ms after its deadline. Never waits. False
 * also before the first post. */
bool nixl_xfer_over(const struct nixl_xfer *xfer, struct nixl_outcome *out_outcome);

/* Cancels it if it is under way and waits until nothing touches its memory any more, which is soon,
 * and 100 ms after its deadline at the latest. Sets *xfer to NULL; *xfer may be NULL. */
void nixl_xfer_free(struct nixl_xfer **xfer);

#ifdef __cplusplus
}
#endif

#endif
