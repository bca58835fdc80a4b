/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake of TLS 1.3 with a pre-shared key, by OpenSSL over memory BIOs.
 *
 * Called by net_tls.c: new and free on a connection's loop, steps on its worker. Life:
 *
 *   crypt_tls_handshake_new -> crypt_tls_step ... -> crypt_tls_result -> crypt_tls_handshake_free
 *
 * The traffic secrets come from OpenSSL's key log callback: so the record layer is ours or the
 * kernel's whatever OpenSSL's version can hand over. Invariants: a peer that did not prove a PSK is
 * never done: a server has no certificate, and a client trusts none; an identity that nobody has
 * ends like a wrong PSK does. Keys are replaced as a whole, and go with the last handshake that
 * began with them.
 */
#include "crypt/tls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>

#include "base/check.h"
#include "crypt/secret.h"

#define TLS_SUITE_128 "TLS_AES_128_GCM_SHA256"
#define TLS_SUITE_256 "TLS_AES_256_GCM_SHA384"
#define TLS_GROUPS    "X25519:P-256:P-384"

/* What handshakes share: written once, then read by all threads. */
struct tls_keys {
    _Atomic uint32_t holders; /* the settings that have it, and handshakes             */
    SSL_CTX *ctx;
    bool is_server;
    struct crypt_tls_server_opts opts; /* server: hosts is owned                       */
    struct secret *psks;               /* server: struct key_plain, which opts names   */
    struct secret *psk;                /* client: struct crypt_tls_psk                 */
};

struct crypt_tls {
    pthread_mutex_t lock; /* of keys, for as long as it takes to hold them */
    struct tls_keys *keys;
};

struct crypt_tls_handshake {
    struct secret *memory;          /* in which this struct lies                           */
    struct tls_keys *keys;          /* held                                                */
    SSL *ssl;                       /* from the first step on                         */
    BIO *in, *out;                  /* memory; the SSL's                              */
    uint32_t records;               /* of the peer so far                             */
    bool has_client, has_server;    /* secrets that came                              */
    struct crypt_tls_result result; /* as far as it is known                          */
    const char *why;                /* static                                         */
};

static const struct crypt_tls_psk *keys_psk(const struct tls_keys *keys)
{
    return (const struct crypt_tls_psk *)(const void *)secret_bytes(keys->psk);
}

/* ---- callbacks of OpenSSL -------------------------------------------------------------------- */

static struct crypt_tls_handshake *handshake_of(const SSL *ssl)
{
    return SSL_get_app_data(ssl);
}

static int tls_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "LABEL CLIENT_RANDOM SECRET". */
static bool tls_secret(const char *line, const char *label, uint8_t out[CRYPT_HASH_BYTES_MAX])
{
    size_t bytes = 0;

    if (strncmp(line, label, strlen(label)) != 0)
        return false;
    line = strrchr(line, ' ');
    for (line++; bytes < CRYPT_HASH_BYTES_MAX && tls_hex(line[0]) >= 0; line += 2)
        out[bytes++] = (uint8_t)(tls_hex(line[0]) << 4 | tls_hex(line[1]));
    return true;
}

static void tls_keylog(const SSL *ssl, const char *line)
{
    struct crypt_tls_handshake *handshake = handshake_of(ssl);
    bool is_server = handshake->keys->is_server;

    if (tls_secret(line, "CLIENT_TRAFFIC_SECRET_0 ",
                   is_server ? handshake->result.receive : handshake->result.send))
        handshake->has_client = true;
    if (tls_secret(line, "SERVER_TRAFFIC_SECRET_0 ",
                   is_server ? handshake->result.send : handshake->result.receive))
        handshake->has_server = true;
}

/* A session that stands for a PSK, for OpenSSL to own. */
static SSL_SESSION *tls_session(SSL *ssl, const struct crypt_tls_psk *psk)
{
    static const unsigned char suite[3][2] = {{0}, {0x13, 0x01}, {0x13, 0x02}};
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite[psk->hash]);
    SSL_SESSION *session = SSL_SESSION_new();

    if (session != NULL && cipher != NULL &&
        SSL_SESSION_set1_master_key(session, psk->key, psk->bytes) == 1 &&
        SSL_SESSION_set_cipher(session, cipher) == 1 &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int tls_client_psk(SSL *ssl, const EVP_MD *md, const unsigned char **out_identity,
                          size_t *out_bytes, SSL_SESSION **out_session)
{
    const struct crypt_tls_psk *psk = keys_psk(handshake_of(ssl)->keys);

    *out_identity = NULL;
    *out_bytes = 0;
    *out_session = NULL;
    if (md != NULL && (size_t)EVP_MD_get_size(md) != psk->bytes)
        return 1;
    *out_session = tls_session(ssl, psk);
    if (*out_session == NULL)
        return 0;
    *out_identity = (const unsigned char *)psk->identity;
    *out_bytes = strlen(psk->identity);
    return 1;
}

/* ---- identities ------------------------------------------------------------------------------ */

/* One word of an identity. */
static bool identity_word(const char **at, const char *end, char out[LIMIT_NQN_BYTES])
{
    const char *from = *at;
    const char *to = memchr(from, ' ', (size_t)(end - from));

    if (to == NULL)
        to = end;
    if (to == from || to - from >= LIMIT_NQN_BYTES)
        return false;
    for (const char *c = from; c < to; c++)
        if (*c <= ' ' || *c > '~') /* it comes into logs */
            return false;
    memcpy(out, from, (size_t)(to - from));
    out[to - from] = '\0';
    *at = to < end ? to + 1 : end;
    return true;
}

/* "NVMe1R01 HOSTNQN SUBNQN DIGEST" and "NVMe0R01 HOSTNQN SUBNQN"; also the hash that it names. */
static bool identity_parse(const char *identity, size_t bytes, enum crypt_hash *out_hash,
                           char out_host[LIMIT_NQN_BYTES], char out_sub[LIMIT_NQN_BYTES])
{
    const char *at = identity + 9, *end = identity + bytes;

    if (bytes < 12 || bytes >= CRYPT_PSK_IDENTITY_BYTES || memcmp(identity, "NVMe", 4) != 0 ||
        (identity[4] != '0' && identity[4] != '1') || identity[5] != 'R' || identity[6] != '0' ||
        (identity[7] != '1' && identity[7] != '2') || identity[8] != ' ')
        return false;
    *out_hash = identity[7] == '2' ? CRYPT_SHA384 : CRYPT_SHA256;
    return identity_word(&at, end, out_host) && identity_word(&at, end, out_sub);
}

static int host_compare(const void *name, const void *host)
{
    return strcmp(name, ((const struct crypt_tls_host *)host)->nqn);
}

/* The PSK of a host whose identity this is. It computes as much for every host, whatever it finds:
 * how long an answer takes must not say who is known. */
static bool host_psk(const struct crypt_tls_host *host, const char *subnqn, const char *identity,
                     size_t bytes, struct crypt_tls_psk *out_psk, uint64_t *out_id)
{
    static const enum crypt_psk_kind kinds[] = {CRYPT_PSK_V1, CRYPT_PSK_LIBNVME, CRYPT_PSK_V0};

    struct crypt_tls_psk psk;
    bool found = false;

    for (uint32_t i = 0; host->psk_count > 0 && i < LIMIT_HOST_KEYS; i++) {
        for (int k = 0; k < 3; k++) {
            if (crypt_psk_derive(&host->psks[i % host->psk_count], kinds[k], host->nqn, subnqn,
                                 &psk) != ICMS_OK ||
                strlen(psk.identity) != bytes ||
                CRYPTO_memcmp(psk.identity, identity, bytes) != 0 || found)
                continue;
            *out_psk = psk;
            *out_id = key_id(&host->psks[i % host->psk_count]);
            found = true;
        }
    }
    crypt_tls_psk_wipe(&psk);
    return found;
}

/* The PSK of an identity that a peer named. Of one that nobody has: random, so that what the peer
 * sees is what it sees with a wrong PSK. false: it is no identity of NVMe/TCP. */
static bool server_find(struct crypt_tls_handshake *handshake, const char *identity, size_t bytes,
                        struct crypt_tls_psk *out_psk)
{
    const struct crypt_tls_server_opts *opts = &handshake->keys->opts;
    struct crypt_tls_result *result = &handshake->result;
    const struct crypt_tls_host *host = NULL;
    bool is_ours = false, found = false;
    enum crypt_hash hash;

    if (!identity_parse(identity, bytes, &hash, result->hostnqn, result->subnqn))
        return false;
    if (opts->host_count > 0)
        host = bsearch(result->hostnqn, opts->hosts, opts->host_count, sizeof(*opts->hosts),
                       host_compare);
    for (int i = 0; i < 2; i++)
        is_ours =
            is_ours || (opts->subnqns[i] != NULL && strcmp(opts->subnqns[i], result->subnqn) == 0);
    if (opts->host_count > 0) /* with an unknown host another one's names never match */
        found = host_psk(host != NULL ? host : &opts->hosts[0], result->subnqn, identity, bytes,
                         out_psk, &result->key_id);
    handshake->why = "wrong key";
    if (found && host != NULL && is_ours)
        return true;
    handshake->why = host != NULL ? "no key of this host has that identity" : "unknown host";
    *out_psk = (struct crypt_tls_psk){.hash = hash, .bytes = (uint8_t)crypt_hash_bytes(hash)};
    return RAND_bytes(out_psk->key, out_psk->bytes) == 1;
}

static int tls_server_psk(SSL *ssl, const unsigned char *identity, size_t bytes,
                          SSL_SESSION **out_session)
{
    struct crypt_tls_psk psk = {.bytes = 0};

    *out_session = NULL;
    if (server_find(handshake_of(ssl), (const char *)identity, bytes, &psk))
        *out_session = tls_session(ssl, &psk);
    crypt_tls_psk_wipe(&psk);
    return 1;
}

/* The suite follows from the identity that a client offers first, since the hash of both has to be
 * the same; OpenSSL would choose the suite first. */
static int tls_client_hello(SSL *ssl, int *out_alert, void *arg)
{
    struct crypt_tls_handshake *handshake = handshake_of(ssl);
    char host[LIMIT_NQN_BYTES], sub[LIMIT_NQN_BYTES];
    const unsigned char *psk;
    enum crypt_hash hash;
    size_t bytes, identity;

    handshake->why = "it offers no pre-shared key";
    *out_alert = SSL_AD_HANDSHAKE_FAILURE;
    if (SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_psk, &psk, &bytes) != 1 || bytes < 4)
        return SSL_CLIENT_HELLO_ERROR;
    identity = (size_t)psk[2] << 8 | psk[3];
    if (identity > bytes - 4 || !identity_parse((const char *)psk + 4, identity, &hash, host, sub))
        return SSL_CLIENT_HELLO_ERROR;
    handshake->result.hash = hash;
    if (SSL_set_ciphersuites(ssl, hash == CRYPT_SHA384 ? TLS_SUITE_256 : TLS_SUITE_128) != 1)
        return SSL_CLIENT_HELLO_ERROR;
    handshake->why = "the offer does not fit";
    return SSL_CLIENT_HELLO_SUCCESS;
}

/* ---- settings -------------------------------------------------------------------------------- */

static void keys_rele(struct tls_keys *keys)
{
    if (keys == NULL || atomic_fetch_sub(&keys->holders, 1) > 1)
        return;
    SSL_CTX_free(keys->ctx);
    free((void *)(uintptr_t)keys->opts.hosts);
    secret_free(&keys->psks);
    secret_free(&keys->psk);
    free(keys);
}

static struct tls_keys *keys_hold(struct crypt_tls *tls)
{
    struct tls_keys *keys;

    check(pthread_mutex_lock(&tls->lock) == 0);
    keys = tls->keys;
    atomic_fetch_add(&keys->holders, 1);
    check(pthread_mutex_unlock(&tls->lock) == 0);
    return keys;
}

/* How both sides use OpenSSL. */
static icms_err keys_context(struct tls_keys *keys, struct err_why *why)
{
    char groups[] = TLS_GROUPS; /* OpenSSL's macro takes the const away */

    keys->ctx = SSL_CTX_new(keys->is_server ? TLS_server_method() : TLS_client_method());
    if (keys->ctx == NULL || SSL_CTX_set_min_proto_version(keys->ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(keys->ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(keys->ctx, TLS_SUITE_256 ":" TLS_SUITE_128) != 1 ||
        SSL_CTX_set1_groups_list(keys->ctx, groups) != 1 ||
        SSL_CTX_set_num_tickets(keys->ctx, 0) != 1) {
        ERR_clear_error();
        return err_set(
            why, ICMS_UNSUPPORTED,
            "cannot set up TLS 1.3 with AES-GCM: OpenSSL refuses; check the crypto policy "
            "of this machine");
    }
    (void)SSL_CTX_set_session_cache_mode(keys->ctx, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_max_early_data(keys->ctx, 0);
    (void)SSL_CTX_set_recv_max_early_data(keys->ctx, 0);
    SSL_CTX_set_options(keys->ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_clear_options(keys->ctx, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_set_verify(keys->ctx, keys->is_server ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_keylog_callback(keys->ctx, tls_keylog);
    return ICMS_OK;
}

static icms_err tls_new(bool is_server, struct err_why *why, struct crypt_tls **out_tls)
{
    struct crypt_tls *tls = calloc(1, sizeof(*tls));
    struct tls_keys *keys = calloc(1, sizeof(*keys));
    icms_err err;

    if (tls == NULL || keys == NULL) {
        free(tls);
        free(keys);
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    }
    check(pthread_mutex_init(&tls->lock, NULL) == 0);
    tls->keys = keys;
    keys->is_server = is_server;
    atomic_init(&keys->holders, 1);
    err = keys_context(keys, why);
    if (err != ICMS_OK)
        crypt_tls_free(&tls);
    else
        *out_tls = tls;
    return err;
}

/* Hosts and their PSKs, as they are now. */
static icms_err keys_copy(struct tls_keys *keys, const struct crypt_tls_server_opts *opts,
                          struct err_why *why)
{
    struct crypt_tls_host *hosts = calloc(opts->host_count + 1, sizeof(*hosts));
    struct key_plain *at;
    uint32_t count = 0;
    icms_err err;

    keys->opts = *opts;
    keys->opts.hosts = hosts;
    if (hosts == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < opts->host_count; i++)
        count += opts->hosts[i].psk_count;
    err = secret_new(count * sizeof(*at), why, &keys->psks);
    if (err != ICMS_OK)
        return err;
    at = (struct key_plain *)(void *)secret_bytes(keys->psks);
    for (uint32_t i = 0; i < opts->host_count; i++) {
        hosts[i] = opts->hosts[i];
        hosts[i].psks = at;
        for (uint32_t k = 0; k < hosts[i].psk_count; k++)
            memcpy(at++, &opts->hosts[i].psks[k], sizeof(*at));
    }
    return ICMS_OK;
}

icms_err crypt_tls_server_new(const struct crypt_tls_server_opts *opts, struct err_why *why,
                              struct crypt_tls **out_tls)
{
    struct crypt_tls *tls = NULL;
    icms_err err = tls_new(true, why, &tls);

    if (err == ICMS_OK)
        err = keys_copy(tls->keys, opts, why);
    if (err != ICMS_OK) {
        crypt_tls_free(&tls);
        return err;
    }
    SSL_CTX_set_psk_find_session_callback(tls->keys->ctx, tls_server_psk);
    SSL_CTX_set_client_hello_cb(tls->keys->ctx, tls_client_hello, NULL);
    *out_tls = tls;
    return ICMS_OK;
}

icms_err crypt_tls_client_new(const struct crypt_tls_psk *psk, struct err_why *why,
                              struct crypt_tls **out_tls)
{
    struct crypt_tls *tls = NULL;
    struct crypt_tls_psk *copy;
    icms_err err = tls_new(false, why, &tls);

    if (err == ICMS_OK)
        err = secret_new(sizeof(*psk), why, &tls->keys->psk);
    if (err != ICMS_OK) {
        crypt_tls_free(&tls);
        return err;
    }
    copy = (struct crypt_tls_psk *)(void *)secret_bytes(tls->keys->psk);
    copy->hash = psk->hash;
    copy->bytes = psk->bytes;
    memcpy(copy->key, psk->key, psk->bytes);
    (void)snprintf(copy->identity, sizeof(copy->identity), "%s", psk->identity);
    SSL_CTX_set_psk_use_session_callback(tls->keys->ctx, tls_client_psk);
    if (SSL_CTX_set_ciphersuites(tls->keys->ctx,
                                 psk->hash == CRYPT_SHA384 ? TLS_SUITE_256 : TLS_SUITE_128) == 1) {
        *out_tls = tls;
        return ICMS_OK;
    }
    crypt_tls_free(&tls);
    return err_set(why, ICMS_UNSUPPORTED, "cannot set up TLS 1.3: OpenSSL refuses its suite");
}

static bool secret_same(const struct secret *a, struct secret *b)
{
    return a == NULL ? b == NULL : b != NULL && secret_equal(a, secret_bytes(b), secret_length(b));
}

bool crypt_tls_replace(struct crypt_tls *tls, struct crypt_tls **from)
{
    struct tls_keys *old = tls->keys, *keys = (*from)->keys;
    bool is_new = !secret_same(old->psks, keys->psks) || !secret_same(old->psk, keys->psk);

    check(old->is_server == keys->is_server);
    if (is_new) {
        check(pthread_mutex_lock(&tls->lock) == 0);
        tls->keys = keys;
        check(pthread_mutex_unlock(&tls->lock) == 0);
        (*from)->keys = old;
    }
    crypt_tls_free(from);
    return is_new;
}

void crypt_tls_free(struct crypt_tls **tls)
{
    if (*tls == NULL)
        return;
    keys_rele((*tls)->keys);
    check(pthread_mutex_destroy(&(*tls)->lock) == 0);
    free(*tls);
    *tls = NULL;
}

/* ---- one handshake --------------------------------------------------------------------------- */

icms_err crypt_tls_handshake_new(struct crypt_tls *tls, struct crypt_tls_handshake **out_handshake)
{
    struct crypt_tls_handshake *handshake;
    struct secret *memory;
    icms_err err = secret_new(sizeof(*handshake), NULL, &memory);

    if (err != ICMS_OK)
        return err;
    handshake = (struct crypt_tls_handshake *)(void *)secret_bytes(memory);
    handshake->memory = memory;
    handshake->keys = keys_hold(tls);
    handshake->why = "it ended early";
    if (!handshake->keys->is_server)
        handshake->result.hash = keys_psk(handshake->keys)->hash;
    *out_handshake = handshake;
    return ICMS_OK;
}

static icms_err handshake_begin(struct crypt_tls_handshake *handshake)
{
    handshake->ssl = SSL_new(handshake->keys->ctx);
    handshake->in = BIO_new(BIO_s_mem());
    handshake->out = BIO_new(BIO_s_mem());
    if (handshake->ssl == NULL || handshake->in == NULL || handshake->out == NULL) {
        BIO_free(handshake->in);
        BIO_free(handshake->out);
        SSL_free(handshake->ssl);
        handshake->ssl = NULL;
        return ICMS_NO_MEMORY;
    }
    SSL_set_bio(handshake->ssl, handshake->in, handshake->out);
    SSL_set_app_data(handshake->ssl, handshake);
    if (handshake->keys->is_server)
        SSL_set_accept_state(handshake->ssl);
    else
        SSL_set_connect_state(handshake->ssl);
    return ICMS_OK;
}

/* OpenSSL is content: is it really the peer that has the key? */
static icms_err handshake_done(struct crypt_tls_handshake *handshake)
{
    if (SSL_session_reused(handshake->ssl) != 1 || SSL_version(handshake->ssl) != TLS1_3_VERSION ||
        !handshake->has_client || !handshake->has_server) {
        handshake->why = "it did not use the pre-shared key";
        return ICMS_AUTH;
    }
    if (BIO_ctrl_pending(handshake->in) > 0) {
        handshake->why = "it sent more than a handshake in one record";
        return ICMS_PROTOCOL;
    }
    return ICMS_OK;
}

static icms_err handshake_run(struct crypt_tls_handshake *handshake, bool *out_done)
{
    int result = SSL_do_handshake(handshake->ssl);
    const char *reason;

    if (result == 1) {
        *out_done = true;
        return handshake_done(handshake);
    }
    if (SSL_get_error(handshake->ssl, result) == SSL_ERROR_WANT_READ)
        return ICMS_OK;
    reason = ERR_reason_error_string(ERR_peek_last_error());
    if (reason != NULL && !handshake->keys->is_server)
        handshake->why = reason; /* static */
    return ICMS_AUTH;
}

icms_err crypt_tls_step(struct crypt_tls_handshake *handshake, const uint8_t *record,
                        size_t record_bytes, uint8_t out[CRYPT_TLS_OUT_MAX], size_t *out_bytes,
                        bool *out_done)
{
    icms_err err = ICMS_OK;
    int n;

    *out_bytes = 0;
    *out_done = false;
    if (record_bytes > 0 && ++handshake->records > CRYPT_TLS_RECORDS_MAX) {
        handshake->why = "it sends too many records";
        return ICMS_PROTOCOL;
    }
    ERR_clear_error();
    if (handshake->ssl == NULL)
        err = handshake_begin(handshake);
    if (err == ICMS_OK && record_bytes > 0 &&
        BIO_write(handshake->in, record, (int)record_bytes) != (int)record_bytes)
        err = ICMS_NO_MEMORY;
    if (err == ICMS_OK)
        err = handshake_run(handshake, out_done);
    if (err != ICMS_OK)
        *out_done = false;
    ERR_clear_error();
    if (handshake->ssl == NULL)
        return err;
    n = BIO_read(handshake->out, out, CRYPT_TLS_OUT_MAX);
    if (BIO_ctrl_pending(handshake->out) > 0)
        return ICMS_PROTOCOL;
    *out_bytes = n > 0 ? (size_t)n : 0;
    return err;
}

const char *crypt_tls_why(const struct crypt_tls_handshake *handshake)
{
    return handshake->why;
}

void crypt_tls_result(const struct crypt_tls_handshake *handshake,
                      struct crypt_tls_result *out_result)
{
    *out_result = handshake->result;
}

void crypt_tls_result_wipe(struct crypt_tls_result *result)
{
    secret_wipe(result, sizeof(*result));
}

void crypt_tls_handshake_free(struct crypt_tls_handshake **handshake)
{
    struct secret *memory;

    if (*handshake == NULL)
        return;
    memory = (*handshake)->memory;
    SSL_free((*handshake)->ssl);
    keys_rele((*handshake)->keys);
    secret_free(&memory);
    *handshake = NULL;
}
