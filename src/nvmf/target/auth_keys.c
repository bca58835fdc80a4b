/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The secrets of hosts, and of this target towards them: read at start, and again when that is
 * asked for.
 *
 * nvmft_auth_hosts_init and _fini run while the loops stand still, _read_again on a control thread;
 * the rest on any loop, and on their workers, which copy a secret before they use it.
 */
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

static int key_order(const void *a, const void *b)
{
    const struct key_plain *const *left = a, *const *right = b;

    if ((*left)->bytes != (*right)->bytes)
        return (*left)->bytes < (*right)->bytes ? -1 : 1;
    return memcmp((*left)->key, (*right)->key, (*left)->bytes);
}

/* No host's secret proves this target to another host: that one could be the host. */
static icms_err hosts_apart(const struct nvmft_auth_hosts *hosts, struct err_why *why)
{
    const struct key_plain **proofs = calloc(hosts->count + 1, sizeof(const struct key_plain *));
    size_t count = 0;
    icms_err err = ICMS_OK;

    if (proofs == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < hosts->count; i++)
        if (hosts->host[i].controller_secret != NULL)
            proofs[count++] = dhchap_key(hosts->host[i].controller_secret);
    qsort(proofs, count, sizeof(const struct key_plain *), key_order);
    for (uint32_t i = 0; i < hosts->count && count != 0; i++)
        for (uint32_t k = 0; k < hosts->host[i].secret_count && err == ICMS_OK; k++) {
            const struct key_plain *key = dhchap_key(hosts->host[i].secrets[k]);

            if (bsearch(&key, proofs, count, sizeof(const struct key_plain *), key_order) != NULL)
                err = err_set(why, ICMS_CONFIG,
                              "a secret of host %.200s is the controller_secret of another host, "
                              "which could pass for it: make another one with `icms key gen`",
                              hosts->host[i].nqn);
        }
    free(proofs);
    return err;
}

icms_err nvmft_auth_hosts_init(struct nvmft_auth_hosts *hosts, const struct nvmf_target_opts *opts,
                               struct err_why *why)
{
    icms_err err = ICMS_OK;

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
    return err == ICMS_OK ? hosts_apart(hosts, why) : err;
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

/* The files of one host again: all of them are right, or none is taken. */
static void host_read_again(const struct nvmft_auth_host *host, const struct nvmf_target_host *from,
                            nvmf_target_keys_said *said, void *arg)
{
    struct nvmft_auth_host fresh = {.secret_count = 0};
    struct err_why why = {""};
    bool is_new = false;

    check(from->secret_count == host->secret_count &&
          (from->controller_secret != NULL) == (host->controller_secret != NULL));
    if (host_read(&fresh, from, &why) != ICMS_OK) {
        said(arg, from->nqn, why.text);
    } else {
        for (uint32_t i = 0; i < host->secret_count; i++)
            is_new = secret_replace(host->secrets[i], &fresh.secrets[i]) || is_new;
        if (host->controller_secret != NULL)
            is_new = secret_replace(host->controller_secret, &fresh.controller_secret) || is_new;
        if (is_new)
            said(arg, from->nqn, NULL);
    }
    host_free(&fresh);
}

void nvmft_auth_hosts_read_again(const struct nvmft_auth_hosts *hosts,
                                 const struct nvmf_target_opts *opts, nvmf_target_keys_said *said,
                                 void *arg)
{
    check(opts->host_count == hosts->count);
    for (uint32_t i = 0; i < opts->host_count; i++) {
        const struct nvmft_auth_host *host = nvmft_auth_host(hosts, opts->hosts[i].nqn);

        check(host != NULL);
        host_read_again(host, &opts->hosts[i], said, arg);
    }
}
