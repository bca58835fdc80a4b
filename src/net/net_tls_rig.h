/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net/net_tls_rig.h: what tests of connections with TLS share: one host, one subsystem, one key.
 */
#ifndef NET_NET_TLS_RIG_H
#define NET_NET_TLS_RIG_H

#include "crypt/tls.h"
#include "net/net_rig.h"

#define TLS_RIG_HOST "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
#define TLS_RIG_SUB  "nqn.2026-01.io.icms:encl0"

/* Both ends' settings. */
struct tls_rig {
    struct key_plain psk;          /* of the host                     */
    struct crypt_tls_host host;    /* the one that the server knows   */
    struct crypt_tls *settings[2]; /* client, server                 */
    struct net_tls_side side[2];   /* client, server                  */
};

/* Settings of a server that knows the host with the key that is there now. */
static inline struct crypt_tls *tls_rig_server(struct tls_rig *rig)
{
    struct crypt_tls_server_opts opts = {
        .hosts = &rig->host, .host_count = 1, .subnqns = {TLS_RIG_SUB, NULL}};
    struct crypt_tls *tls;

    check(crypt_tls_server_new(&opts, NULL, &tls) == ICMS_OK);
    return tls;
}

static inline void tls_rig_init(struct tls_rig *rig, enum key_hash hash)
{
    struct crypt_tls_psk psk;

    memset(rig, 0, sizeof(*rig));
    rig->psk = (struct key_plain){.hash = hash, .bytes = key_hash_bytes(hash), .key = {1, 2, 3}};
    (void)strcpy(rig->host.nqn, TLS_RIG_HOST);
    rig->host.psks = &rig->psk;
    rig->host.psk_count = 1;
    check(crypt_psk_derive(&rig->psk, CRYPT_PSK_V1, TLS_RIG_HOST, TLS_RIG_SUB, &psk) == ICMS_OK);
    check(crypt_tls_client_new(&psk, NULL, &rig->settings[0]) == ICMS_OK);
    rig->settings[1] = tls_rig_server(rig);
    for (int i = 0; i < 2; i++)
        rig->side[i] = (struct net_tls_side){.settings = rig->settings[i],
                                             .is_server = i == 1,
                                             .timeout_ns = 5000u * (uint64_t)NET_RIG_MS,
                                             .pending_max = 16};
}

static inline void tls_rig_fini(struct tls_rig *rig)
{
    crypt_tls_free(&rig->settings[0]);
    crypt_tls_free(&rig->settings[1]);
}

#endif
