/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's TLS keys and secrets: files of each enclosure (often the same), read when the agent
 * starts, whenever it is given a set of enclosures, and again when that is asked for.
 *
 * Loaded by control threads, released by whoever used them last; reactors use what is replaced as a
 * whole (crypt_tls_replace, secret_replace). The key that is used with an enclosure is derived from
 * the file's, this host's NQN and the enclosure's; the file's is wiped.
 */
#include "base/check.h"
#include "crypt/dhchap.h"
#include "crypt/tls.h"
#include "agent/agent_int.h"

#include <stdlib.h>

static icms_err key_read(const char *path, struct err_why *why, uint64_t *io_hash,
                         struct key_plain *out_key)
{
    struct secret *secret = NULL;
    icms_err err = secret_read_line(path, why, &secret);

    if (err == ICMS_OK) {
        *io_hash = hash64_seed(secret_bytes(secret), secret_length(secret), *io_hash);
        err = key_text_parse(KEY_TEXT_TLS, (const char *)secret_bytes(secret),
                             secret_length(secret), why, out_key);
    }
    secret_free(&secret);
    return err;
}

static icms_err keys_tls_load(const char *hostnqn, const struct agent_enclosure_opts *enclosure,
                              struct err_why *why, uint64_t *io_hash, struct agent_keys *keys)
{
    struct err_why reason = {""};
    struct crypt_tls_psk psk;
    struct key_plain key;
    icms_err err;

    if (enclosure->psk == NULL)
        return ICMS_OK;
    err = key_read(enclosure->psk, &reason, io_hash, &key);
    if (err == ICMS_OK) {
        err = crypt_psk_derive(&key, CRYPT_PSK_V1, hostnqn, enclosure->nqn, &psk);
        if (err == ICMS_OK)
            err = crypt_tls_client_new(&psk, &reason, &keys->tls);
        else
            (void)err_set(&reason, err, "%s", icms_err_text(err));
        crypt_tls_psk_wipe(&psk);
        secret_wipe(&key, sizeof(key));
    }
    if (err != ICMS_OK)
        return err_set(why, err, "cannot use the TLS key %.200s for enclosure %s: %.200s",
                       enclosure->psk, enclosure->name, reason.text);
    return ICMS_OK;
}

/* A secret of the enclosure, if it has one; what they hash to depends on their order. */
static icms_err keys_secret_load(const char *path, struct err_why *why, uint64_t *io_hash,
                                 struct secret **out_secret)
{
    icms_err err;

    *io_hash = hash64_mix(*io_hash + 1);
    if (path == NULL)
        return ICMS_OK;
    err = dhchap_secret_read(path, why, out_secret);
    if (err == ICMS_OK)
        *io_hash = hash64_seed(secret_bytes(*out_secret), secret_length(*out_secret), *io_hash);
    return err;
}

static icms_err keys_secrets_load(const struct agent_enclosure_opts *enclosure, struct err_why *why,
                                  uint64_t *io_hash, struct agent_keys *keys)
{
    icms_err err = keys_secret_load(enclosure->secret, why, io_hash, &keys->secret);

    if (err == ICMS_OK)
        err =
            keys_secret_load(enclosure->controller_secret, why, io_hash, &keys->controller_secret);
    if (err == ICMS_OK && keys->secret != NULL && keys->controller_secret != NULL &&
        dhchap_key_same(dhchap_key(keys->secret), dhchap_key(keys->controller_secret)))
        err = err_set(why, ICMS_CONFIG,
                      "the secret and the controller_secret for enclosure %s are the same: make "
                      "another one with `icms key gen`",
                      enclosure->name);
    return err;
}

icms_err agent_keys_load(const char *hostnqn, const struct agent_enclosure_opts *enclosure,
                         struct err_why *why, struct agent_keys **out_keys)
{
    struct agent_keys *keys = calloc(1, sizeof(*keys));
    uint64_t hash = 0;
    icms_err err;

    if (keys == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the keys of enclosure %s",
                       enclosure->name);
    atomic_store_explicit(&keys->holders, 1, memory_order_relaxed);
    err = keys_tls_load(hostnqn, enclosure, why, &hash, keys);
    if (err == ICMS_OK)
        err = keys_secrets_load(enclosure, why, &hash, keys);
    atomic_store_explicit(&keys->hash, hash, memory_order_relaxed);
    if (err != ICMS_OK) {
        agent_keys_rele(&keys);
        return err;
    }
    *out_keys = keys;
    return ICMS_OK;
}

icms_err agent_keys_unread(struct err_why *why, struct agent_keys **out_keys)
{
    struct agent_keys *keys = calloc(1, sizeof(*keys));

    if (keys == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the keys of an enclosure");
    atomic_store_explicit(&keys->holders, 1, memory_order_relaxed);
    atomic_store_explicit(&keys->hash, hash64_mix(1), memory_order_relaxed);
    keys->is_unread = true;
    *out_keys = keys;
    return ICMS_OK;
}

bool agent_keys_fit(const struct agent_keys *keys, const struct agent_enclosure_opts *enclosure)
{
    return (keys->tls != NULL) == (enclosure->psk != NULL) &&
           (keys->secret != NULL) == (enclosure->secret != NULL) &&
           (keys->controller_secret != NULL) == (enclosure->controller_secret != NULL);
}

icms_err agent_keys_check(const struct agent_opts *opts, struct err_why *why)
{
    for (uint32_t i = 0; i < opts->enclosure_count; i++) {
        struct agent_keys *keys;
        icms_err err = agent_keys_load(opts->host_nqn, &opts->enclosures[i], why, &keys);

        if (err != ICMS_OK)
            return err;
        agent_keys_rele(&keys);
    }
    return ICMS_OK;
}

void agent_keys_hold(struct agent_keys *keys)
{
    atomic_fetch_add_explicit(&keys->holders, 1, memory_order_relaxed);
}

void agent_keys_rele(struct agent_keys **keys_)
{
    struct agent_keys *keys = *keys_;

    *keys_ = NULL;
    if (keys == NULL || atomic_fetch_sub_explicit(&keys->holders, 1, memory_order_acq_rel) > 1)
        return;
    crypt_tls_free(&keys->tls);
    secret_free(&keys->secret);
    secret_free(&keys->controller_secret);
    free(keys);
}

/* The files of one enclosure: all of them are right, or none is taken. */
static icms_err keys_read_again(struct agent_keys *keys, const char *hostnqn,
                                const struct agent_enclosure_opts *enclosure, struct err_why *why,
                                bool *out_new)
{
    struct agent_keys *from;
    icms_err err = agent_keys_load(hostnqn, enclosure, why, &from);

    if (err != ICMS_OK)
        return err;
    *out_new = keys->tls != NULL && from->tls != NULL && crypt_tls_replace(keys->tls, &from->tls);
    if (keys->secret != NULL && from->secret != NULL)
        *out_new = secret_replace(keys->secret, &from->secret) || *out_new;
    if (keys->controller_secret != NULL && from->controller_secret != NULL)
        *out_new = secret_replace(keys->controller_secret, &from->controller_secret) || *out_new;
    atomic_store_explicit(&keys->hash, atomic_load_explicit(&from->hash, memory_order_relaxed),
                          memory_order_relaxed);
    agent_keys_rele(&from);
    return ICMS_OK;
}

/* Those of the member with this UUID, held; NULL: it is none. */
static struct agent_keys *keys_of(struct agent *agent, const struct uuid *uuid)
{
    struct agent_keys *keys = NULL;

    pthread_mutex_lock(&agent->pod.lock);
    for (uint32_t i = 0; i < LIMIT_ENCLOSURES && keys == NULL; i++)
        if (agent->pod.members[i].is_member && uuid_equal(&agent->pod.members[i].opts.uuid, uuid))
            keys = agent->pod.members[i].keys;
    if (keys != NULL)
        agent_keys_hold(keys);
    pthread_mutex_unlock(&agent->pod.lock);
    return keys;
}

void agent_keys_read_again(struct agent *agent, const struct agent_opts *opts,
                           void (*said)(void *arg, const char *enclosure, const char *why),
                           void *arg)
{
    for (uint32_t i = 0; i < opts->enclosure_count; i++) {
        const struct agent_enclosure_opts *enclosure = &opts->enclosures[i];
        struct agent_keys *keys = keys_of(agent, &enclosure->uuid);
        struct err_why why = {""};
        bool is_new = false;

        if (keys == NULL)
            continue;
        if (keys->is_unread) { /* the next agent_pod_apply has others */
            agent_keys_rele(&keys);
            continue;
        }
        if (keys_read_again(keys, opts->host_nqn, enclosure, &why, &is_new) != ICMS_OK)
            said(arg, enclosure->name, why.text);
        else if (is_new)
            said(arg, enclosure->name, NULL);
        agent_keys_rele(&keys);
    }
}
