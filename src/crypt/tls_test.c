/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of the handshake: whom it lets in, whom it does not, and that both sides end with the
 * same secrets. Strangers are OpenSSL with other settings.
 */
#include "wire/test_bytes.h"

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "crypt/tls.h"

#define HOST  "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
#define OTHER "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-4333-8444-555555555555"
#define SUB   "nqn.2026-01.io.icms:encl0"

static struct key_plain psk_a = {.hash = KEY_HASH_SHA256, .bytes = 32, .key = {1, 2, 3}};
static struct key_plain psk_b = {.hash = KEY_HASH_SHA384, .bytes = 48, .key = {4, 5, 6}};

/* A server that knows HOST with two keys. */
static struct crypt_tls *server_new(void)
{
    static struct key_plain psks[2];
    static struct crypt_tls_host hosts[2];
    struct crypt_tls_server_opts opts = {.hosts = hosts, .host_count = 2, .subnqns = {SUB, NULL}};
    struct crypt_tls *tls;

    psks[0] = psk_a;
    psks[1] = psk_b;
    memset(hosts, 0, sizeof(hosts));
    strcpy(hosts[0].nqn, HOST);
    strcpy(hosts[1].nqn, OTHER);
    hosts[0].psks = psks;
    hosts[0].psk_count = 2;
    assert_int_equal(crypt_tls_server_new(&opts, NULL, &tls), ICMS_OK);
    return tls;
}

static struct crypt_tls *client_new(const struct key_plain *psk, enum crypt_psk_kind kind,
                                    const char *host, const char *sub)
{
    struct crypt_tls_psk derived;
    struct crypt_tls *tls;

    assert_int_equal(crypt_psk_derive(psk, kind, host, sub, &derived), ICMS_OK);
    assert_int_equal(crypt_tls_client_new(&derived, NULL, &tls), ICMS_OK);
    return tls;
}

/* Bytes on their way to one side. */
struct wire {
    uint8_t bytes[3 * CRYPT_TLS_OUT_MAX];
    size_t count;
};

/* Takes the first record; 0: there is none. */
static size_t wire_record(struct wire *wire, uint8_t out[CRYPT_TLS_RECORD_MAX])
{
    size_t bytes = wire->count < 5 ? 0 : 5 + ((size_t)wire->bytes[3] << 8 | wire->bytes[4]);

    if (bytes == 0 || bytes > wire->count)
        return 0;
    memcpy(out, wire->bytes, bytes);
    wire->count -= bytes;
    memmove(wire->bytes, wire->bytes + bytes, wire->count);
    return bytes;
}

/* One side's turn: every record that is there. */
static icms_err side_run(struct crypt_tls_handshake *side, struct wire *in, struct wire *out,
                         bool begin, bool *done)
{
    uint8_t record[CRYPT_TLS_RECORD_MAX];
    size_t bytes = 0, sent;
    icms_err err = ICMS_OK;

    while (!*done && err == ICMS_OK && (begin || (bytes = wire_record(in, record)) > 0)) {
        uint8_t *exact = test_exact(record, begin ? 0 : bytes);

        err = crypt_tls_step(side, exact, begin ? 0 : bytes, out->bytes + out->count, &sent, done);
        out->count += sent;
        free(exact);
        begin = false;
    }
    return err;
}

/* Both sides until one fails or both are done. Returns the server's error, else the client's. */
static icms_err handshake(struct crypt_tls *client_tls, struct crypt_tls *server_tls,
                          struct crypt_tls_result *client_result,
                          struct crypt_tls_result *server_result, char why[80])
{
    struct crypt_tls_handshake *client, *server;
    struct wire to_client = {.count = 0}, to_server = {.count = 0};
    bool client_done = false, server_done = false;
    icms_err client_err, server_err = ICMS_OK;

    assert_int_equal(crypt_tls_handshake_new(client_tls, &client), ICMS_OK);
    assert_int_equal(crypt_tls_handshake_new(server_tls, &server), ICMS_OK);
    client_err = side_run(client, &to_client, &to_server, true, &client_done);
    for (int i = 0; i < 4 && client_err == ICMS_OK && server_err == ICMS_OK; i++) {
        server_err = side_run(server, &to_server, &to_client, false, &server_done);
        client_err = side_run(client, &to_client, &to_server, false, &client_done);
    }
    if (client_err == ICMS_OK && server_err == ICMS_OK) {
        assert_true(client_done && server_done);
        crypt_tls_result(client, client_result);
        crypt_tls_result(server, server_result);
    } else {
        assert_false(server_done);
    }
    snprintf(why, 80, "%s", crypt_tls_why(server));
    crypt_tls_handshake_free(&client);
    crypt_tls_handshake_free(&server);
    assert_null(client);
    return server_err != ICMS_OK ? server_err : client_err;
}

static void both_sides_end_with_the_same_secrets(void **state)
{
    struct crypt_tls *server = server_new();
    struct crypt_tls_result a, b;
    char why[80];

    for (int i = 0; i < 6; i++) {
        const struct key_plain *psk = i % 2 == 0 ? &psk_a : &psk_b;
        static const enum crypt_psk_kind kinds[] = {CRYPT_PSK_V1, CRYPT_PSK_V0, CRYPT_PSK_LIBNVME};
        struct crypt_tls *client = client_new(psk, kinds[i / 2], HOST, SUB);
        size_t bytes = crypt_hash_bytes(i % 2 == 0 ? CRYPT_SHA256 : CRYPT_SHA384);

        memset(&a, 0, sizeof(a));
        memset(&b, 0, sizeof(b));
        assert_int_equal(handshake(client, server, &a, &b, why), ICMS_OK);
        assert_int_equal(a.hash, i % 2 == 0 ? CRYPT_SHA256 : CRYPT_SHA384);
        assert_int_equal(b.hash, a.hash);
        assert_memory_equal(a.send, b.receive, bytes);
        assert_memory_equal(a.receive, b.send, bytes);
        assert_memory_not_equal(a.send, a.receive, bytes);
        assert_memory_not_equal(a.send, b.hostnqn, bytes);
        assert_string_equal(b.hostnqn, HOST);
        assert_string_equal(b.subnqn, SUB);
        crypt_tls_free(&client);
    }
    crypt_tls_free(&server);
}

/* A server whose only key of HOST is this. */
static struct crypt_tls *server_with(const struct key_plain *psk)
{
    struct crypt_tls_host host = {.nqn = HOST, .psks = psk, .psk_count = 1};
    const struct crypt_tls_server_opts opts = {
        .hosts = &host, .host_count = 1, .subnqns = {SUB, NULL}};
    struct crypt_tls *tls;

    assert_int_equal(crypt_tls_server_new(&opts, NULL, &tls), ICMS_OK);
    return tls;
}

/* Keys are replaced on both sides; a handshake that began before ends with the keys of before. */
static void handshakes_use_the_keys_of_their_beginning(void **state)
{
    struct key_plain next = {.hash = KEY_HASH_SHA256, .bytes = 32, .key = {7}};
    struct crypt_tls *server = server_with(&psk_a), *more;
    struct crypt_tls *client = client_new(&psk_a, CRYPT_PSK_V1, HOST, SUB);
    struct crypt_tls_handshake *c, *s;
    struct wire to_client = {.count = 0}, to_server = {.count = 0};
    bool client_done = false, server_done = false;
    struct crypt_tls_result a, b;
    char why[80];

    assert_int_equal(crypt_tls_handshake_new(client, &c), ICMS_OK);
    assert_int_equal(crypt_tls_handshake_new(server, &s), ICMS_OK);
    more = server_with(&psk_a);
    assert_false(crypt_tls_replace(server, &more));
    assert_null(more);
    more = server_with(&next);
    assert_true(crypt_tls_replace(server, &more));
    assert_null(more);
    assert_int_equal(handshake(client, server, &a, &b, why), ICMS_AUTH);
    more = client_new(&next, CRYPT_PSK_V1, HOST, SUB);
    assert_true(crypt_tls_replace(client, &more));
    assert_int_equal(handshake(client, server, &a, &b, why), ICMS_OK);
    more = client_new(&next, CRYPT_PSK_V1, HOST, SUB);
    assert_false(crypt_tls_replace(client, &more));
    crypt_tls_free(&client);
    crypt_tls_free(&server);
    assert_int_equal(side_run(c, &to_client, &to_server, true, &client_done), ICMS_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(side_run(s, &to_server, &to_client, false, &server_done), ICMS_OK);
        assert_int_equal(side_run(c, &to_client, &to_server, false, &client_done), ICMS_OK);
    }
    assert_true(client_done && server_done);
    crypt_tls_handshake_free(&c);
    crypt_tls_handshake_free(&s);
}

static void refused(const struct key_plain *psk, enum crypt_psk_kind kind, const char *host,
                    const char *sub, const char *words)
{
    struct crypt_tls *server = server_new(), *client = client_new(psk, kind, host, sub);
    struct crypt_tls_result a, b;
    char why[80];

    assert_int_equal(handshake(client, server, &a, &b, why), ICMS_AUTH);
    assert_string_equal(why, words);
    crypt_tls_free(&client);
    crypt_tls_free(&server);
}

static void strangers_are_refused(void **state)
{
    struct key_plain wrong = {.hash = KEY_HASH_SHA256, .bytes = 32, .key = {9}};
    struct key_plain wrong48 = {.hash = KEY_HASH_SHA384, .bytes = 48, .key = {9}};

    refused(&wrong, CRYPT_PSK_V1, HOST, SUB, "no key of this host has that identity");
    refused(&wrong48, CRYPT_PSK_V1, HOST, SUB, "no key of this host has that identity");
    refused(&wrong, CRYPT_PSK_V0, HOST, SUB, "wrong key"); /* the identity does not show it */
    refused(&psk_a, CRYPT_PSK_V1, OTHER, SUB, "no key of this host has that identity");
    refused(&psk_a, CRYPT_PSK_V1, "nqn.2026-01.io.icms:nobody", SUB, "unknown host");
    refused(&psk_a, CRYPT_PSK_V1, HOST, "nqn.2026-01.io.icms:encl1",
            "no key of this host has that identity");
}

/* What a stranger sees of a host that is known and of one that is not. */
static void an_unknown_host_sees_what_a_wrong_key_sees(void **state)
{
    struct key_plain wrong = {.hash = KEY_HASH_SHA256, .bytes = 32, .key = {9}};
    uint8_t alerts[2][CRYPT_TLS_OUT_MAX], hello[CRYPT_TLS_OUT_MAX];
    struct crypt_tls *server = server_new();
    size_t bytes[2], n;
    bool done;

    for (int i = 0; i < 2; i++) {
        struct crypt_tls *client = client_new(&wrong, CRYPT_PSK_V0, i == 0 ? HOST : HOST "1", SUB);
        struct crypt_tls_handshake *c, *s;

        assert_int_equal(crypt_tls_handshake_new(client, &c), ICMS_OK);
        assert_int_equal(crypt_tls_handshake_new(server, &s), ICMS_OK);
        assert_int_equal(crypt_tls_step(c, NULL, 0, hello, &n, &done), ICMS_OK);
        assert_int_equal(crypt_tls_step(s, hello, n, alerts[i], &bytes[i], &done), ICMS_AUTH);
        crypt_tls_handshake_free(&c);
        crypt_tls_handshake_free(&s);
        crypt_tls_free(&client);
    }
    assert_int_equal(bytes[0], 7);
    assert_int_equal(bytes[1], 7);
    assert_memory_equal(alerts[0], alerts[1], 7);
    crypt_tls_free(&server);
}

/* ---- others' OpenSSL ------------------------------------------------------------------------- */

/* A client of OpenSSL without PSK, with these versions, against our server. */
static void stranger_is_refused(int version, const char *words)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl;
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    struct crypt_tls *server = server_new();
    struct crypt_tls_handshake *handshake;
    uint8_t hello[4096], answer[CRYPT_TLS_OUT_MAX];
    size_t n;
    bool done;
    int bytes;

    assert_int_equal(SSL_CTX_set_max_proto_version(ctx, version), 1);
    ssl = SSL_new(ctx);
    SSL_set_bio(ssl, in, out);
    SSL_set_connect_state(ssl);
    assert_int_equal(SSL_do_handshake(ssl), -1);
    bytes = BIO_read(out, hello, sizeof(hello));
    assert_true(bytes > 0);
    assert_int_equal(crypt_tls_handshake_new(server, &handshake), ICMS_OK);
    assert_int_equal(crypt_tls_step(handshake, hello, (size_t)bytes, answer, &n, &done), ICMS_AUTH);
    assert_string_equal(crypt_tls_why(handshake), words);
    assert_int_equal(n, 7); /* an alert */
    assert_int_equal(answer[0], CRYPT_RECORD_ALERT);
    crypt_tls_handshake_free(&handshake);
    crypt_tls_free(&server);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
}

static void clients_without_a_key_or_with_tls_1_2_are_refused(void **state)
{
    stranger_is_refused(TLS1_3_VERSION, "it offers no pre-shared key");
    stranger_is_refused(TLS1_2_VERSION, "it offers no pre-shared key");
}

/* A man in the middle has no key, and a certificate. */
static void a_server_that_shows_a_certificate_instead_is_refused(void **state)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    SSL *ssl;
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    struct crypt_tls *client = client_new(&psk_b, CRYPT_PSK_V1, HOST, SUB);
    struct crypt_tls_handshake *handshake;
    struct wire to_client = {.count = 0}, to_server = {.count = 0};
    bool done = false;

    assert_non_null(X509_gmtime_adj(X509_getm_notBefore(cert), -60));
    assert_non_null(X509_gmtime_adj(X509_getm_notAfter(cert), 3600));
    assert_int_equal(X509_set_pubkey(cert, key), 1);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    assert_int_equal(SSL_CTX_use_certificate(ctx, cert), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(ctx, key), 1);
    ssl = SSL_new(ctx);
    SSL_set_bio(ssl, in, out);
    SSL_set_accept_state(ssl);
    assert_int_equal(crypt_tls_handshake_new(client, &handshake), ICMS_OK);
    assert_int_equal(side_run(handshake, &to_client, &to_server, true, &done), ICMS_OK);
    assert_int_equal(BIO_write(in, to_server.bytes, (int)to_server.count), to_server.count);
    assert_int_equal(SSL_do_handshake(ssl), -1);
    to_client.count = (size_t)BIO_read(out, to_client.bytes, sizeof(to_client.bytes));
    assert_true(to_client.count > 200);
    assert_int_equal(side_run(handshake, &to_client, &to_server, false, &done), ICMS_AUTH);
    assert_false(done);
    crypt_tls_handshake_free(&handshake);
    crypt_tls_free(&client);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static void bytes_that_are_no_handshake_are_refused(void **state)
{
    static const char *const wrong[] = {
        "0001800000 00000000",
        "1703030011 0000000000000000000000000000000000",
        "1603010000",
        "1503030002 0100",
        "1403030001 01",
        "1603010004 01ffffff",
        "1603010005 0100000000",
    };
    struct crypt_tls *server = server_new();

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct crypt_tls_handshake *handshake;
        uint8_t bytes[64], out[CRYPT_TLS_OUT_MAX];
        size_t count = test_hex(wrong[i], bytes, sizeof(bytes)), n;
        icms_err err = ICMS_OK;
        bool done = false;

        assert_int_equal(crypt_tls_handshake_new(server, &handshake), ICMS_OK);
        for (int again = 0; again < 40 && err == ICMS_OK; again++)
            err = crypt_tls_step(handshake, bytes, count, out, &n, &done);
        assert_true(err != ICMS_OK && !done); /* at the latest: too many records */
        crypt_tls_handshake_free(&handshake);
    }
    crypt_tls_free(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_end_with_the_same_secrets),
        cmocka_unit_test(handshakes_use_the_keys_of_their_beginning),
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(an_unknown_host_sees_what_a_wrong_key_sees),
        cmocka_unit_test(clients_without_a_key_or_with_tls_1_2_are_refused),
        cmocka_unit_test(a_server_that_shows_a_certificate_instead_is_refused),
        cmocka_unit_test(bytes_that_are_no_handshake_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
