/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The secrets of hosts, and of this target towards them: read at start, and again when that is
 * asked for.
 *
 * nvmft_auth_hosts_init and _fini run while the loops stand still, _read_again on a control thread;
 * the rest on any loop, and on their workers, which copy a secret before they use it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "crypt/dhchap.h"
#include "nvmf/target/target_int.h"

static int host_order(const void *a, const void *b)
{
    const struct nvmft_auth_host *left = a, *right = b;

    return strcmp(left->nqn, right->nqn);
}

static icms_err host_read(struct nvmft_auth_host *host, const struct nvmf_target_host *from,
                          struct err_why *why)
{
    icms_err err = ICMS_OK;

    (void)snprintf(host->nqn, sizeof(host->nqn), "%s", from->nqn);
    host->require = from->require;
    if ((from->require & REQUIRE_CHAP) != 0 && from->secret_count == 0)
        return err_set(why, ICMS_CONFIG,
                       "host %.200s has to authenticate and has no secret: make one with `icms key "
                       "gen` and list its file under secrets",
                       from->nqn);
    host->secrets = calloc(from->secret_count + 1, sizeof(*host->secrets));
    if (host->secrets == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < from->secret_count && err == ICMS_OK; i++) {
        err = dhchap_secret_read(from->secrets[i], why, &host->secrets[i]);
        host->secret_count += err == ICMS_OK;
    }
    if (err == ICMS_OK && from->controller_secret != NULL)
        err = dhchap_secret_read(from->controller_secret, why, &host->controller_secret);
    for (uint32_t i = 0; i < host->secret_count && err == ICMS_OK; i++)
        if (host->controller_secret != NULL &&
            dhchap_key_same(dhchap_key(host->secrets[i]), dhchap_key(host->controller_secret)))
            err = err_set(why, ICMS_CONFIG,
                          "the controller_secret of host %.120s is its secret %.200s, too: make "
                          "another one with `icms key gen`",
                          from->nqn, from->secrets[i]);
    return err;
}

/* A controller_secret, and whose it is. */
struct proof {
    const struct key_plain *key;
    uint32_t host;
};

static int proof_order(const void *a, const void *b)
{
    const struct key_plain *left = ((const struct proof *)a)->key;
    const struct key_plain *right = ((const struct proof *)b)->key;

    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    return memcmp(left->key, right->key, left->bytes);
}

/* No host's secret proves this target to another host: that one could be the host. CONFIG: those of
 * out_pair, the one with the secret first. */
static icms_err hosts_apart(const struct nvmft_auth_host *host, uint32_t count,
                            uint32_t out_pair[2], struct err_why *why)
{
    struct proof *proofs = calloc(count + 1, sizeof(*proofs));
    size_t proof_count = 0;
    icms_err err = ICMS_OK;

    if (proofs == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < count; i++)
        if (host[i].controller_secret != NULL)
            proofs[proof_count++] = (struct proof){dhchap_key(host[i].controller_secret), i};
    qsort(proofs, proof_count, sizeof(*proofs), proof_order);
    for (uint32_t i = 0; i < count && proof_count != 0 && err == ICMS_OK; i++)
        for (uint32_t k = 0; k < host[i].secret_count && err == ICMS_OK; k++) {
            const struct proof one = {.key = dhchap_key(host[i].secrets[k])};
            const struct proof *same =
                bsearch(&one, proofs, proof_count, sizeof(*proofs), proof_order);

            if (same == NULL)
                continue;
            out_pair[0] = i;
            out_pair[1] = same->host;
            err = err_set(why, ICMS_CONFIG,
                          "a secret of host %.200s is the controller_secret of another host, "
                          "which could pass for it: make another one with `icms key gen`",
                          host[i].nqn);
        }
    free(proofs);
    return err;
}

icms_err nvmft_auth_hosts_init(struct nvmft_auth_hosts *hosts, const struct nvmf_target_opts *opts,
                               struct err_why *why)
{
    icms_err err = ICMS_OK;
    uint32_t pair[2];

    check(pthread_mutex_init(&hosts->lock, NULL) == 0);
    hosts->has_lock = true;
    hosts->require = opts->require;
    hosts->asks_plain = opts->require == REQUIRE_CHAP;
    for (uint32_t i = 0; i < opts->host_count; i++)
        hosts->asks_plain = hosts->asks_plain || opts->hosts[i].require == REQUIRE_CHAP;
    hosts->host = calloc(opts->host_count + 1, sizeof(*hosts->host));
    if (hosts->host == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    for (; hosts->count < opts->host_count && err == ICMS_OK; hosts->count++)
        err = host_read(&hosts->host[hosts->count], &opts->hosts[hosts->count], why);
    if (err == ICMS_OK)
        qsort(hosts->host, hosts->count, sizeof(*hosts->host), host_order);
    return err == ICMS_OK ? hosts_apart(hosts->host, hosts->count, pair, why) : err;
}

static void host_free(struct nvmft_auth_host *host)
{
    for (uint32_t k = 0; k < host->secret_count; k++)
        secret_free(&host->secrets[k]);
    secret_free(&host->controller_secret);
    free(host->secrets);
}

void nvmft_auth_hosts_fini(struct nvmft_auth_hosts *hosts)
{
    for (uint32_t i = 0; i < hosts->count; i++)
        host_free(&hosts->host[i]);
    free(hosts->host);
    if (hosts->has_lock)
        check(pthread_mutex_destroy(&hosts->lock) == 0);
    *hosts = (struct nvmft_auth_hosts){.count = 0};
}

static int name_order(const void *name, const void *host)
{
    return strcmp(name, ((const struct nvmft_auth_host *)host)->nqn);
}

const struct nvmft_auth_host *nvmft_auth_host(const struct nvmft_auth_hosts *hosts, const char *nqn)
{
    return hosts->count == 0
               ? NULL
               : bsearch(nqn, hosts->host, hosts->count, sizeof(*hosts->host), name_order);
}

uint8_t nvmft_auth_require(const struct nvmft_auth_hosts *hosts, const char *nqn)
{
    const struct nvmft_auth_host *host = nvmft_auth_host(hosts, nqn);

    return host == NULL ? hosts->require : host->require;
}

bool nvmft_auth_accepts(struct nvmft_auth_hosts *hosts, const struct nvmft_auth_host *host,
                        uint64_t id)
{
    struct key_plain key = {.bytes = 0};
    bool is_found = false;

    if (host == NULL)
        return false;
    check(pthread_mutex_lock(&hosts->lock) == 0);
    for (uint32_t i = 0; i < host->secret_count && !is_found; i++) {
        dhchap_key_copy(host->secrets[i], &key);
        is_found = key_id(&key) == id;
    }
    check(pthread_mutex_unlock(&hosts->lock) == 0);
    secret_wipe(&key, sizeof(key));
    return is_found;
}

/* ---- read again ----------------------------------------------------------------------------- */

/* Hosts as they are, and as their files say; in the order of hosts. */
struct hosts_again {
    struct nvmft_auth_host *fresh; /* what was read and is new; secrets NULL: what there is stays */
    struct nvmft_auth_host *view;  /* what there would be: pointers of one or the other       */
};

static bool key_is_same(struct secret *a, struct secret *b)
{
    return dhchap_key(a)->hash == dhchap_key(b)->hash &&
           dhchap_key_same(dhchap_key(a), dhchap_key(b));
}

static bool host_is_same(const struct nvmft_auth_host *a, const struct nvmft_auth_host *b)
{
    for (uint32_t i = 0; i < a->secret_count; i++)
        if (!key_is_same(a->secrets[i], b->secrets[i]))
            return false;
    return a->controller_secret == NULL || key_is_same(a->controller_secret, b->controller_secret);
}

/* The files of one host: all of them are right, or none is taken; nor when they are as before. */
static void host_read_again(const struct nvmft_auth_host *host, const struct nvmf_target_host *from,
                            struct nvmft_auth_host *fresh, nvmf_target_keys_said *said, void *arg)
{
    struct err_why why = {""};

    check(from->secret_count == host->secret_count &&
          (from->controller_secret != NULL) == (host->controller_secret != NULL));
    if (host_read(fresh, from, &why) != ICMS_OK)
        said(arg, from->nqn, why.text);
    else if (!host_is_same(host, fresh))
        return;
    host_free(fresh);
    *fresh = (struct nvmft_auth_host){.secret_count = 0};
}

/* Those that would make a secret of one host prove this target to another stay as they are. */
static icms_err hosts_keep_apart(const struct nvmft_auth_hosts *hosts, struct hosts_again *again,
                                 nvmf_target_keys_said *said, void *arg, struct err_why *why)
{
    struct err_why reason = {""};
    uint32_t pair[2];
    icms_err err;

    for (uint32_t i = 0; i < hosts->count; i++)
        again->view[i] = again->fresh[i].secrets != NULL ? again->fresh[i] : hosts->host[i];
    while ((err = hosts_apart(again->view, hosts->count, pair, &reason)) == ICMS_CONFIG) {
        uint32_t i = again->fresh[pair[0]].secrets != NULL ? pair[0] : pair[1];

        check(again->fresh[i].secrets != NULL); /* as they are they are apart */
        said(arg, hosts->host[i].nqn, reason.text);
        host_free(&again->fresh[i]);
        again->fresh[i] = (struct nvmft_auth_host){.secret_count = 0};
        again->view[i] = hosts->host[i];
    }
    return err == ICMS_OK ? ICMS_OK : err_set(why, err, "%s", reason.text);
}

static void host_replace(struct nvmft_auth_hosts *hosts, uint32_t i, struct nvmft_auth_host *fresh,
                         nvmf_target_keys_said *said, void *arg)
{
    const struct nvmft_auth_host *host = &hosts->host[i];

    check(pthread_mutex_lock(&hosts->lock) == 0);
    for (uint32_t k = 0; k < host->secret_count; k++)
        (void)secret_replace(host->secrets[k], &fresh->secrets[k]);
    if (host->controller_secret != NULL)
        (void)secret_replace(host->controller_secret, &fresh->controller_secret);
    check(pthread_mutex_unlock(&hosts->lock) == 0);
    said(arg, host->nqn, NULL);
}

icms_err nvmft_auth_hosts_read_again(struct nvmft_auth_hosts *hosts,
                                     const struct nvmf_target_opts *opts,
                                     nvmf_target_keys_said *said, void *arg, struct err_why *why)
{
    struct hosts_again again = {.fresh = calloc(hosts->count + 1, sizeof(*again.fresh)),
                                .view = calloc(hosts->count + 1, sizeof(*again.view))};
    icms_err err = ICMS_OK;

    check(opts->host_count == hosts->count);
    if (again.fresh == NULL || again.view == NULL)
        err = err_set(why, ICMS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < hosts->count && err == ICMS_OK; i++) {
        const struct nvmft_auth_host *host = nvmft_auth_host(hosts, opts->hosts[i].nqn);

        check(host != NULL);
        host_read_again(host, &opts->hosts[i], &again.fresh[host - hosts->host], said, arg);
    }
    if (err == ICMS_OK)
        err = hosts_keep_apart(hosts, &again, said, arg, why);
    for (uint32_t i = 0; i < hosts->count && again.fresh != NULL; i++) {
        if (err == ICMS_OK && again.fresh[i].secrets != NULL)
            host_replace(hosts, i, &again.fresh[i], said, arg);
        host_free(&again.fresh[i]);
    }
    free(again.fresh);
    free(again.view);
    return err;
}
