/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer of what a peer reaches before it has proven anything, and of the records after that. Byte
 * 0 chooses: a server's handshake gets the rest as records, cut where their headers say; or one
 * record of a connection, whose key a fuzzer does not know and whose header it does.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "crypt/tls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define HOST "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
#define SUB  "nqn.2026-01.io.icms:encl0"

static struct crypt_tls *fuzz_server(void)
{
    static const struct key_plain psk = {.hash = KEY_HASH_SHA256, .bytes = 32, .key = {1, 2, 3}};
    static const struct crypt_tls_host host = {.nqn = HOST, .psks = &psk, .psk_count = 1};
    static struct crypt_tls *tls;
    struct crypt_tls_server_opts opts = {.hosts = &host, .host_count = 1, .subnqns = {SUB, NULL}};

    if (tls == NULL)
        check(crypt_tls_server_new(&opts, NULL, &tls) == ICMS_OK);
    return tls;
}

static void fuzz_handshake(const uint8_t *data, size_t bytes)
{
    struct crypt_tls_handshake *handshake;
    uint8_t out[CRYPT_TLS_OUT_MAX];
    icms_err err = ICMS_OK;
    bool done = false;

    check(crypt_tls_handshake_new(fuzz_server(), &handshake) == ICMS_OK);
    while (bytes > 5 && err == ICMS_OK) {
        size_t count = u64_min(bytes, 5 + ((size_t)data[3] << 8 | data[4])), sent = 0;
        uint8_t *record = malloc(count);

        check(record != NULL);
        memcpy(record, data, count);
        if (count > CRYPT_TLS_RECORD_MAX)
            count = CRYPT_TLS_RECORD_MAX;
        err = crypt_tls_step(handshake, record, count, out, &sent, &done);
        check(sent <= sizeof(out) && !done); /* it does not know the key's share */
        check(crypt_tls_why(handshake) != NULL);
        free(record);
        data += count;
        bytes -= count;
    }
    crypt_tls_handshake_free(&handshake);
}

static void fuzz_record(const uint8_t *data, size_t bytes)
{
    static const uint8_t secret[CRYPT_HASH_BYTES_MAX] = {1};
    struct crypt_record record = {0};
    enum crypt_record_type type;
    enum crypt_alert alert;
    uint32_t body, n;
    uint8_t *exact, *out;

    if (bytes < CRYPT_RECORD_HEADER_BYTES || crypt_record_header(data, &body, &alert) != ICMS_OK ||
        body > bytes - CRYPT_RECORD_HEADER_BYTES)
        return;
    exact = malloc(body);
    out = malloc(body - 17 + 1);
    check(exact != NULL && out != NULL);
    memcpy(exact, data + CRYPT_RECORD_HEADER_BYTES, body);
    check(crypt_record_init(&record, false, CRYPT_SHA256, secret) == ICMS_OK);
    check(crypt_record_open(&record, data, exact, body, out, &type, &n, &alert) == ICMS_PROTOCOL);
    check(alert == CRYPT_ALERT_BAD_RECORD_MAC && record.sequence == 0);
    crypt_record_fini(&record);
    free(exact);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    if (data[0] % 2 == 0)
        fuzz_handshake(data + 1, bytes - 1);
    else
        fuzz_record(data + 1, bytes - 1);
    return 0;
}
