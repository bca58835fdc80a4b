/* SPDX-License-Identifier: Apache-2.0 */
/*
 * etcd/etcd.h: keys of etcd 3, over its JSON gateway (/v3/kv, /v3/lease, /v3/auth).
 *
 *     etcd_new(&opts, &why, &etcd);
 *     etcd_get(etcd, "/icms/pod0/map", &value, &why);
 *     etcd_put(etcd, "/icms/pod0/map", text, bytes, value.revision, 0, &revision, &why);
 *
 * Calls wait, opts.timeout_ms for each endpoint at most. One thread. Errors of all calls:
 * PEER_DOWN, no endpoint answered, or its certificate does not fit; PERMISSION, etcd refuses the
 * user; PROTOCOL, the answer is not one of etcd; NO_MEMORY.
 *
 * Source: etcd's API reference, "gRPC gateway", versions 3.4 to 3.6.
 */
#ifndef ETCD_ETCD_H
#define ETCD_ETCD_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define ETCD_ENDPOINTS_MAX 8
#define ETCD_KEY_BYTES     512
#define ETCD_VALUE_MAX     ((size_t)1 << 20) /* as the servers have it */
#define ETCD_ANSWER_MAX    ((size_t)4 << 20)

struct etcd;

struct etcd_opts {
    const char *endpoints; /* "https://a:2379,https://b:2379"                                   */
    const char *user;      /* NULL: none                                                         */
    const char *password;  /* with user                                                          */
    const char *cacert;    /* files, as etcdctl has them; NULL: the system's authorities         */
    const char *cert;      /* of this client; NULL: none                                         */
    const char *key;
    uint32_t timeout_ms; /* of a question to one endpoint                                       */
};

/* Nothing is sent. INVALID: the endpoints are not some of http:// or https://, or a password goes
 * over http:// to another machine. What opts points to stays as long as the client. */
icms_err etcd_new(const struct etcd_opts *opts, struct err_why *why,
                  struct etcd **out_etcd) ICMS_MUST_CHECK;
void etcd_free(struct etcd **etcd);

/* The endpoint that answered last, for sentences. */
const char *etcd_endpoint(const struct etcd *etcd);

struct etcd_value {
    char *text; /* a zero byte follows; freed by the caller. NULL: there is no such key        */
    size_t bytes;
    uint64_t revision; /* of its last change; 0: there is no such key                          */
    uint64_t lease;    /* that it goes with; 0: none                                           */
};

icms_err etcd_get(struct etcd *etcd, const char *key, struct etcd_value *out_value,
                  struct err_why *why) ICMS_MUST_CHECK;

/* Each key that begins with the prefix, in their order, 1,000 at most. The texts are the caller's
 * during the visit. */
icms_err etcd_list(struct etcd *etcd, const char *prefix,
                   void (*visit)(void *arg, const char *key, const char *text, size_t bytes),
                   void *arg, struct err_why *why) ICMS_MUST_CHECK;

/* Puts the key if its last change is still this one (0: if there is no such key). EXISTS: it is
 * not. lease: the key goes with it; 0: it stays. */
icms_err etcd_put(struct etcd *etcd, const char *key, const char *text, size_t bytes,
                  uint64_t was_revision, uint64_t lease, uint64_t *out_revision,
                  struct err_why *why) ICMS_MUST_CHECK;

/* A lease of so many seconds. */
icms_err etcd_lease(struct etcd *etcd, uint32_t seconds, uint64_t *out_lease,
                    struct err_why *why) ICMS_MUST_CHECK;

/* It begins anew. NOT_FOUND: it is over. */
icms_err etcd_lease_keep(struct etcd *etcd, uint64_t lease, struct err_why *why) ICMS_MUST_CHECK;

/* Its keys go now. */
icms_err etcd_lease_end(struct etcd *etcd, uint64_t lease, struct err_why *why) ICMS_MUST_CHECK;

#endif
