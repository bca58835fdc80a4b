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
 * ends like a wrong PSK does.
 */
#include "crypt/tls.h"

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

struct crypt_tls {
    SSL_CTX *ctx;
    bool is_server;
    struct crypt_tls_server_opts opts; /* server */
    struct crypt_tls_psk psk;          /* client */
};

struct crypt_tls_handshake {
    const struct crypt_tls *tls;
    SSL *ssl;                       /* from the first step on                         */
    BIO *in, *out;                  /* memory; the SSL's                              */
    uint32_t records;               /* of the peer so far                             */
    bool has_client, has_server;    /* secrets that came                              */
    struct crypt_tls_result result; /* as far as it is known                          */
    const char *why;                /* static                                         */
};

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
    bool is_server = handshake->tls->is_server;

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
    const struct crypt_tls_psk *psk = &handshake_of(ssl)->tls->psk;

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
                     size_t bytes, struct crypt_tls_psk *out_psk)
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
    const struct crypt_tls_server_opts *opts = &handshake->tls->opts;
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
                         out_psk);
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

static icms_err tls_new(bool is_server, struct err_why *why, struct crypt_tls **out_tls)
{
    struct crypt_tls *tls = calloc(1, sizeof(*tls));
    char groups[] = TLS_GROUPS; /* OpenSSL's macro takes the const away */

    if (tls == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    tls->is_server = is_server;
    tls->ctx = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());
    if (tls->ctx == NULL || SSL_CTX_set_min_proto_version(tls->ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(tls->ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(tls->ctx, TLS_SUITE_256 ":" TLS_SUITE_128) != 1 ||
        SSL_CTX_set1_groups_list(tls->ctx, groups) != 1 ||
        SSL_CTX_set_num_tickets(tls->ctx, 0) != 1) {
        ERR_clear_error();
        crypt_tls_free(&tls);
        return err_set(
            why, ICMS_UNSUPPORTED,
            "cannot set up TLS 1.3 with AES-GCM: OpenSSL refuses; check the crypto policy "
            "of this machine");
    }
    (void)SSL_CTX_set_session_cache_mode(tls->ctx, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_max_early_data(tls->ctx, 0);
    (void)SSL_CTX_set_recv_max_early_data(tls->ctx, 0);
    SSL_CTX_set_options(tls->ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_clear_options(tls->ctx, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_set_verify(tls->ctx, is_server ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_keylog_callback(tls->ctx, tls_keylog);
    *out_tls = tls;
    return ICMS_OK;
}

icms_err crypt_tls_server_new(const struct crypt_tls_server_opts *opts, struct err_why *why,
                              struct crypt_tls **out_tls)
{
    icms_err err = tls_new(true, why, out_tls);

    if (err != ICMS_OK)
        return err;
    (*out_tls)->opts = *opts;
    SSL_CTX_set_psk_find_session_callback((*out_tls)->ctx, tls_server_psk);
    SSL_CTX_set_client_hello_cb((*out_tls)->ctx, tls_client_hello, NULL);
    return ICMS_OK;
}

icms_err crypt_tls_client_new(const struct crypt_tls_psk *psk, struct err_why *why,
                              struct crypt_tls **out_tls)
{
    icms_err err = tls_new(false, why, out_tls);

    if (err != ICMS_OK)
        return err;
    (*out_tls)->psk = *psk;
    SSL_CTX_set_psk_use_session_callback((*out_tls)->ctx, tls_client_psk);
    if (SSL_CTX_set_ciphersuites((*out_tls)->ctx,
                                 psk->hash == CRYPT_SHA384 ? TLS_SUITE_256 : TLS_SUITE_128) == 1)
        return ICMS_OK;
    crypt_tls_free(out_tls);
    return err_set(why, ICMS_UNSUPPORTED, "cannot set up TLS 1.3: OpenSSL refuses its suite");
}

void crypt_tls_free(struct crypt_tls **tls)
{
    if (*tls == NULL)
        return;
    SSL_CTX_free((*tls)->ctx);
    crypt_tls_psk_wipe(&(*tls)->psk);
    free(*tls);
    *tls = NULL;
}

/* ---- one handshake --------------------------------------------------------------------------- */

icms_err crypt_tls_handshake_new(const struct crypt_tls *tls,
                                 struct crypt_tls_handshake **out_handshake)
{
    struct crypt_tls_handshake *handshake = calloc(1, sizeof(*handshake));

    if (handshake == NULL)
        return ICMS_NO_MEMORY;
    handshake->tls = tls;
    handshake->why = "it ended early";
    handshake->result.hash = tls->psk.hash;
    *out_handshake = handshake;
    return ICMS_OK;
}

static icms_err handshake_begin(struct crypt_tls_handshake *handshake)
{
    handshake->ssl = SSL_new(handshake->tls->ctx);
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
    if (handshake->tls->is_server)
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
    if (reason != NULL && !handshake->tls->is_server)
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
    if (*handshake == NULL)
        return;
    SSL_free((*handshake)->ssl);
    secret_wipe(*handshake, sizeof(**handshake));
    free(*handshake);
    *handshake = NULL;
}
