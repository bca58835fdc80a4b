/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/keys.h: TLS key and secrets of an enclosure, held by all who use them. What they have may
 * be replaced (agent_keys_read_again), what there is of them not.
 */
#ifndef AGENT_KEYS_H
#define AGENT_KEYS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"

struct agent_enclosure_opts;
struct agent_opts;
struct crypt_tls;
struct secret;

struct agent_keys {
    _Atomic uint32_t holders;
    struct crypt_tls *tls;            /* settings of connections to it; NULL: without TLS    */
    struct secret *secret;            /* this host's towards it; NULL: none                  */
    struct secret *controller_secret; /* that it has to prove; NULL: none                    */
    _Atomic uint64_t hash;            /* of what the files have: another one, other keys     */
    bool is_unread;                   /* they cannot be read: nothing is connected with them */
};

/* Those of an enclosure, held once. CONFIG, NOT_FOUND, PERMISSION, ... with a sentence. Blocking.
 */
icms_err agent_keys_load(const char *hostnqn, const struct agent_enclosure_opts *enclosure,
                         struct err_why *why, struct agent_keys **out_keys) ICMS_MUST_CHECK;

/* Stands for files that cannot be read, held once. NO_MEMORY. */
icms_err agent_keys_unread(struct err_why *why, struct agent_keys **out_keys) ICMS_MUST_CHECK;

/* Whether the keys are of the kinds that the enclosure has files for. */
bool agent_keys_fit(const struct agent_keys *keys, const struct agent_enclosure_opts *enclosure);

/* Whether the keys of all enclosures can be used. */
icms_err agent_keys_check(const struct agent_opts *opts, struct err_why *why) ICMS_MUST_CHECK;

/* Any thread. */
void agent_keys_hold(struct agent_keys *keys);

/* The last one frees them; *keys may be NULL, and is then. */
void agent_keys_rele(struct agent_keys **keys);

#endif
