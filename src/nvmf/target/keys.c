/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What hosts have to prove, and with which keys: read at start, and the keys again when that is
 * asked for.
 *
 * nvmft_keys_new and _free run while the loops stand still, _read_again on a control thread; the
 * rest on any loop, which looks at keys in nvmft_keys_accept() alone: handshakes use what crypt_tls
 * has copied.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "crypt/secret.h"
#include "crypt/tls.h"
#include "nvmf/target/target_int.h"

struct nvmft_keys {
    struct crypt_tls *tls;        /* NULL: no host has a key                           */
    struct secret *secret;        /* the keys: struct key_plain; of the control thread */
    struct crypt_tls_host *hosts; /* ordered by NQN                                    */
    uint8_t *require;             /* of each of them                                   */
    uint32_t count;
    uint8_t fallback;     /* of a host that is not listed                                  */
    pthread_mutex_t lock; /* of psks of hosts, while they are replaced or looked for  */
};

static int host_order(const void *a, const void *b)
{
    const struct nvmf_target_host *const *left = a, *const *right = b;

    return strcmp((*left)->nqn, (*right)->nqn);
}

static icms_err key_read(const char *path, const char *nqn, struct err_why *why,
                         struct key_plain *out_key)
{
    struct secret *secret = NULL;
    struct err_why reason = {""};
    icms_err err = secret_read_line(path, &reason, &secret);

    if (err == ICMS_OK)
        err = key_text_parse(KEY_TEXT_TLS, (const char *)secret_bytes(secret),
                             secret_length(secret), &reason, out_key);
    secret_free(&secret);
    if (err != ICMS_OK)
        return err_set(why, err, "cannot use the TLS key %.200s of host %.120s: %.160s", path, nqn,
                       reason.text);
    return ICMS_OK;
}

/* Reads the keys of a host. */
static icms_err host_read(const struct nvmf_target_host *host, struct err_why *why,
                          struct key_plain *out_keys)
{
    icms_err err = ICMS_OK;

    for (uint32_t k = 0; k < host->psk_count && err == ICMS_OK; k++)
        err = key_read(host->psks[k], host->nqn, why, &out_keys[k]);
    return err;
}

/* Reads the keys of hosts, in order, into memory for all of them. */
static icms_err keys_read(struct nvmft_keys *keys, const struct nvmf_target_host *const *order,
                          uint32_t key_count, struct err_why *why)
{
    icms_err err = secret_new(key_count * sizeof(struct key_plain), why, &keys->secret);
    struct key_plain *at;

    if (err != ICMS_OK)
        return err;
    at = (struct key_plain *)(void *)secret_bytes(keys->secret);
    for (uint32_t i = 0; i < keys->count && err == ICMS_OK; i++) {
        keys->hosts[i].psks = at;
        keys->hosts[i].psk_count = order[i]->psk_count;
        err = host_read(order[i], why, at);
        at += order[i]->psk_count;
    }
    return err;
}

static void hosts_order(const struct nvmf_target_opts *opts, const struct nvmf_target_host **order)
{
    for (uint32_t i = 0; i < opts->host_count; i++)
        order[i] = &opts->hosts[i];
    qsort(order, opts->host_count, sizeof(*order), host_order);
}

static icms_err keys_fill(struct nvmft_keys *keys, const struct nvmf_target_opts *opts,
                          const struct nvmf_target_host **order, struct err_why *why)
{
    struct crypt_tls_server_opts tls = {
        .hosts = keys->hosts, .host_count = keys->count, .subnqns = {opts->nqn, NVME_DISCOVERY}};
    uint32_t key_count = 0;
    icms_err err;

    hosts_order(opts, order);
    for (uint32_t i = 0; i < keys->count; i++) {
        const struct nvmf_target_host *host = order[i];

        if ((host->require & REQUIRE_TLS) != 0 && host->psk_count == 0)
            return err_set(why, ICMS_CONFIG,
                           "host %.200s has to use TLS and has no key: list its key under psks",
                           host->nqn);
        snprintf(keys->hosts[i].nqn, sizeof(keys->hosts[i].nqn), "%s", host->nqn);
        keys->require[i] = host->require;
        key_count += host->psk_count;
    }
    if (key_count == 0)
        return ICMS_OK;
    err = keys_read(keys, order, key_count, why);
    return err == ICMS_OK ? crypt_tls_server_new(&tls, why, &keys->tls) : err;
}

icms_err nvmft_keys_new(const struct nvmf_target_opts *opts, struct err_why *why,
                        struct nvmft_keys **out_keys)
{
    struct nvmft_keys *keys = calloc(1, sizeof(*keys));
    const struct nvmf_target_host **order = calloc(opts->host_count + 1, sizeof(*order));
    icms_err err;

    if (keys != NULL) {
        check(pthread_mutex_init(&keys->lock, NULL) == 0);
        keys->count = opts->host_count;
        keys->fallback = opts->require;
        keys->hosts = calloc(opts->host_count + 1, sizeof(*keys->hosts));
        keys->require = calloc(opts->host_count + 1, sizeof(*keys->require));
    }
    if (keys == NULL || order == NULL || keys->hosts == NULL || keys->require == NULL)
        err = err_set(why, ICMS_NO_MEMORY, "out of memory");
    else
        err = keys_fill(keys, opts, order, why);
    free(order);
    if (err == ICMS_OK)
        *out_keys = keys;
    else
        nvmft_keys_free(&keys);
    return err;
}

void nvmft_keys_free(struct nvmft_keys **keys)
{
    if (*keys == NULL)
        return;
    crypt_tls_free(&(*keys)->tls);
    secret_free(&(*keys)->secret);
    free((*keys)->hosts);
    free((*keys)->require);
    check(pthread_mutex_destroy(&(*keys)->lock) == 0);
    free(*keys);
    *keys = NULL;
}

/* Files of all hosts again, to fresh; of a host of which one is not right, the keys that are used.
 * False: they are those that are used. */
static bool keys_compare(const struct nvmft_keys *keys, const struct nvmf_target_host *const *order,
                         struct secret *fresh, nvmf_target_keys_said *said, void *arg)
{
    struct key_plain *at = (struct key_plain *)(void *)secret_bytes(fresh);
    bool is_new = false;

    for (uint32_t i = 0; i < keys->count; i++) {
        const struct crypt_tls_host *host = &keys->hosts[i];
        size_t bytes = host->psk_count * sizeof(*at);
        struct err_why why = {""};

        check(strcmp(host->nqn, order[i]->nqn) == 0 && host->psk_count == order[i]->psk_count);
        if (host_read(order[i], &why, at) != ICMS_OK) {
            memcpy(at, host->psks, bytes);
            said(arg, host->nqn, why.text);
        } else if (memcmp(at, host->psks, bytes) != 0) {
            is_new = true;
        }
        at += host->psk_count;
    }
    return is_new;
}

/* Which hosts have other keys than in old. */
static void keys_say(const struct nvmft_keys *keys, struct secret *old, nvmf_target_keys_said *said,
                     void *arg)
{
    const struct key_plain *at = (const struct key_plain *)(void *)secret_bytes(old);

    for (uint32_t i = 0; i < keys->count; at += keys->hosts[i].psk_count, i++)
        if (memcmp(at, keys->hosts[i].psks, keys->hosts[i].psk_count * sizeof(*at)) != 0)
            said(arg, keys->hosts[i].nqn, NULL);
}

/* From now on those of fresh, which gets the old ones. */
static icms_err keys_use(struct nvmft_keys *keys, const struct nvmf_target_opts *opts,
                         struct secret **fresh, struct err_why *why)
{
    struct crypt_tls_server_opts tls_opts = {
        .hosts = keys->hosts, .host_count = keys->count, .subnqns = {opts->nqn, NVME_DISCOVERY}};
    const struct key_plain *at = (const struct key_plain *)(void *)secret_bytes(*fresh);
    struct secret *old = keys->secret;
    struct crypt_tls *tls = NULL;
    icms_err err;

    check(pthread_mutex_lock(&keys->lock) == 0);
    for (uint32_t i = 0; i < keys->count; at += keys->hosts[i].psk_count, i++)
        keys->hosts[i].psks = at;
    err = crypt_tls_server_new(&tls_opts, why, &tls);
    if (err == ICMS_OK) {
        keys->secret = *fresh;
        *fresh = old;
        (void)crypt_tls_replace(keys->tls, &tls);
    } else {
        at = (const struct key_plain *)(void *)secret_bytes(old);
        for (uint32_t i = 0; i < keys->count; at += keys->hosts[i].psk_count, i++)
            keys->hosts[i].psks = at;
    }
    check(pthread_mutex_unlock(&keys->lock) == 0);
    return err;
}

icms_err nvmft_keys_read_again(struct nvmft_keys *keys, const struct nvmf_target_opts *opts,
                               nvmf_target_keys_said *said, void *arg, struct err_why *why)
{
    const struct nvmf_target_host **order;
    struct secret *fresh = NULL;
    icms_err err;

    check(opts->host_count == keys->count);
    if (keys->tls == NULL)
        return ICMS_OK;
    order = calloc(opts->host_count + 1, sizeof(*order));
    if (order == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    hosts_order(opts, order);
    err = secret_new(secret_length(keys->secret), why, &fresh);
    if (err == ICMS_OK && keys_compare(keys, order, fresh, said, arg)) {
        err = keys_use(keys, opts, &fresh, why);
        if (err == ICMS_OK)
            keys_say(keys, fresh, said, arg);
    }
    secret_free(&fresh);
    free(order);
    return err;
}

static int name_compare(const void *name, const void *host)
{
    return strcmp(name, ((const struct crypt_tls_host *)host)->nqn);
}

static const struct crypt_tls_host *host_find(const struct nvmft_keys *keys, const char *hostnqn)
{
    return keys->count == 0
               ? NULL
               : bsearch(hostnqn, keys->hosts, keys->count, sizeof(*keys->hosts), name_compare);
}

uint8_t nvmft_keys_require(const struct nvmft_keys *keys, const char *hostnqn)
{
    const struct crypt_tls_host *host = host_find(keys, hostnqn);

    return host == NULL ? keys->fallback : keys->require[host - keys->hosts];
}

bool nvmft_keys_accept(struct nvmft_keys *keys, const char *hostnqn, uint64_t id)
{
    const struct crypt_tls_host *host = host_find(keys, hostnqn);
    bool is_found = false;

    check(pthread_mutex_lock(&keys->lock) == 0);
    for (uint32_t i = 0; host != NULL && i < host->psk_count && !is_found; i++)
        is_found = key_id(&host->psks[i]) == id;
    check(pthread_mutex_unlock(&keys->lock) == 0);
    return is_found;
}

struct crypt_tls *nvmft_keys_tls(const struct nvmft_keys *keys)
{
    return keys->tls;
}

bool nvmft_keys_allow_plain(const struct nvmft_keys *keys)
{
    if ((keys->fallback & REQUIRE_TLS) == 0)
        return true;
    for (uint32_t i = 0; i < keys->count; i++)
        if ((keys->require[i] & REQUIRE_TLS) == 0)
            return true;
    return false;
}
