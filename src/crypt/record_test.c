/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of the record layer. The golden records were made with Python's hmac and another
 * AES-GCM binding from the text of RFC 8446: secrets are the bytes 0, 1, 2, ...
 */
#include "wire/test_bytes.h"

#include "base/check.h"
#include "crypt/record.h"

struct pair {
    struct crypt_record seal, open;
};

static void pair_init(struct pair *pair, enum crypt_hash hash)
{
    uint8_t secret[CRYPT_HASH_BYTES_MAX];

    for (size_t i = 0; i < sizeof(secret); i++)
        secret[i] = (uint8_t)i;
    memset(pair, 0, sizeof(*pair));
    assert_int_equal(crypt_record_init(&pair->seal, true, hash, secret), ICMS_OK);
    assert_int_equal(crypt_record_init(&pair->open, false, hash, secret), ICMS_OK);
}

static void pair_fini(struct pair *pair)
{
    crypt_record_fini(&pair->seal);
    crypt_record_fini(&pair->open);
}

/* Opens a whole record, into memory of exactly the room that it needs. */
static icms_err open_record(struct crypt_record *record, const uint8_t *bytes, size_t count,
                            enum crypt_record_type *out_type, uint8_t *out, uint32_t *out_bytes,
                            enum crypt_alert *out_alert)
{
    uint32_t body;
    icms_err err = crypt_record_header(bytes, &body, out_alert);
    uint8_t *exact, *room;

    if (err != ICMS_OK)
        return err;
    assert_int_equal(body, count - CRYPT_RECORD_HEADER_BYTES);
    exact = test_exact(bytes + CRYPT_RECORD_HEADER_BYTES, body);
    room = test_exact(exact, body - 17);
    err = crypt_record_open(record, bytes, exact, body, room, out_type, out_bytes, out_alert);
    if (err == ICMS_OK)
        memcpy(out, room, *out_bytes);
    free(room);
    free(exact);
    return err;
}

static void opens_to(struct crypt_record *record, const char *hex, enum crypt_record_type type,
                     const char *content, uint32_t content_bytes)
{
    uint8_t bytes[256], out[256];
    size_t count = test_hex(hex, bytes, sizeof(bytes));
    enum crypt_record_type got;
    enum crypt_alert alert;
    uint32_t n = 0;

    assert_int_equal(open_record(record, bytes, count, &got, out, &n, &alert), ICMS_OK);
    assert_int_equal(got, type);
    assert_int_equal(n, content_bytes);
    assert_memory_equal(out, content, n);
}

static void seals_to(struct crypt_record *record, enum crypt_record_type type, const char *content,
                     size_t content_bytes, const char *hex)
{
    struct iovec data = {.iov_base = (void *)(uintptr_t)content, .iov_len = content_bytes};
    uint8_t out[256];

    assert_int_equal(crypt_record_seal(record, type, &data, 1, out), strlen(hex) / 2);
    test_bytes_are(out, hex);
}

static void has_its_golden_bytes(void **state)
{
    static const char *const golden[3][3] = {
        {0},
        {"170303001e4d6d8b52c41a4fef835e97afa03fd8c863ec7487c2faf46327a76b7b1c93",
         "170303001354fd2b2bcfaa3736d7a18e45b20fc827988914",
         "1703030011cdc11f1166144d57be2464b96ee0e277c1"},
        {"170303001e205213507a2196f7f4a73a949b4d9a1866a150312b54a9a275155a449c65",
         "17030300139c116c3e91351ee98b035914032125eeb7a7b5",
         "17030300113b9ddb44464218d069be388002e7223fa9"},
    };

    for (enum crypt_hash hash = CRYPT_SHA256; hash <= CRYPT_SHA384; hash++) {
        struct pair pair;

        pair_init(&pair, hash);
        seals_to(&pair.seal, CRYPT_RECORD_DATA, "hello, record", 13, golden[hash][0]);
        opens_to(&pair.open, golden[hash][0], CRYPT_RECORD_DATA, "hello, record", 13);
        seals_to(&pair.seal, CRYPT_RECORD_ALERT, "\1\0", 2, golden[hash][1]);
        opens_to(&pair.open, golden[hash][1], CRYPT_RECORD_ALERT, "\1\0", 2);
        assert_int_equal(crypt_record_update(&pair.seal), ICMS_OK);
        assert_int_equal(crypt_record_update(&pair.open), ICMS_OK);
        seals_to(&pair.seal, CRYPT_RECORD_DATA, "", 0, golden[hash][2]);
        opens_to(&pair.open, golden[hash][2], CRYPT_RECORD_DATA, "", 0);
        pair_fini(&pair);
    }
}

static void takes_padding_and_refuses_what_is_only_padding(void **state)
{
    static const char padded[] = "170303002b5569835ace52789de63df8ddc4284d95b299a936e75f8b3b8acc1eb"
                                 "e7f3f25485f2588f2d31b8c9c2646b9";
    static const char zeros[] =
        "17030300252508e73eab366f9de63df8ddc4284d95b299a936e7d73caae14779a1b"
        "c169223727bcec417";
    enum crypt_record_type type;
    enum crypt_alert alert = 0;
    uint8_t bytes[64], out[64];
    struct pair pair;
    uint32_t n;

    pair_init(&pair, CRYPT_SHA256);
    opens_to(&pair.open, padded, CRYPT_RECORD_DATA, "padded", 6);
    pair_fini(&pair);
    pair_init(&pair, CRYPT_SHA256);
    (void)test_hex(zeros, bytes, sizeof(bytes));
    assert_int_equal(open_record(&pair.open, bytes, 42, &type, out, &n, &alert), ICMS_PROTOCOL);
    assert_int_equal(alert, CRYPT_ALERT_UNEXPECTED_MESSAGE);
    pair_fini(&pair);
}

static void gives_back_what_it_took(void **state)
{
    static uint8_t content[CRYPT_RECORD_DATA_MAX], out[CRYPT_RECORD_DATA_MAX];
    static uint8_t sealed[CRYPT_RECORD_DATA_MAX + CRYPT_RECORD_SEALED_EXTRA];
    static const uint32_t sizes[] = {0, 1, 15, 16, 17, 4096, 16383, 16384};
    uint64_t seed = 7;

    for (enum crypt_hash hash = CRYPT_SHA256; hash <= CRYPT_SHA384; hash++) {
        struct pair pair;

        pair_init(&pair, hash);
        for (size_t i = 0; i < 64; i++) {
            uint32_t bytes = sizes[i % 8], body;
            uint32_t cut = bytes == 0 ? 0 : (uint32_t)(test_random(&seed) % bytes);
            struct iovec data[3] = {{content, cut}, {NULL, 0}, {content + cut, bytes - cut}};
            enum crypt_record_type type;
            enum crypt_alert alert;
            uint32_t n;

            test_random_bytes(&seed, content, bytes);
            assert_int_equal(crypt_record_seal(&pair.seal, CRYPT_RECORD_DATA, data, 3, sealed),
                             bytes + CRYPT_RECORD_SEALED_EXTRA);
            assert_int_equal(crypt_record_header(sealed, &body, &alert), ICMS_OK);
            if (i % 2 == 0) { /* where it lies */
                assert_int_equal(crypt_record_open(&pair.open, sealed, sealed + 5, body, sealed + 5,
                                                   &type, &n, &alert),
                                 ICMS_OK);
                assert_memory_equal(sealed + 5, content, bytes);
            } else {
                assert_int_equal(open_record(&pair.open, sealed, body + 5, &type, out, &n, &alert),
                                 ICMS_OK);
                assert_memory_equal(out, content, bytes);
            }
            assert_int_equal(n, bytes);
            assert_int_equal(type, CRYPT_RECORD_DATA);
        }
        pair_fini(&pair);
    }
}

static void every_flipped_bit_and_every_other_order_is_found(void **state)
{
    struct iovec data = {.iov_base = (void *)(uintptr_t) "abcdef", .iov_len = 6};
    enum crypt_record_type type;
    enum crypt_alert alert;
    uint8_t one[64], two[64], out[64];
    struct pair pair;
    size_t bytes;
    uint32_t n;

    pair_init(&pair, CRYPT_SHA384);
    bytes = crypt_record_seal(&pair.seal, CRYPT_RECORD_DATA, &data, 1, one);
    assert_int_equal(crypt_record_seal(&pair.seal, CRYPT_RECORD_DATA, &data, 1, two), bytes);
    assert_memory_not_equal(one, two, bytes);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        one[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (bit < 8 || bit >= 40) /* version and length: authenticated, or another length */
            assert_int_equal(open_record(&pair.open, one, bytes, &type, out, &n, &alert),
                             ICMS_PROTOCOL);
        one[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    one[1] ^= 1;
    assert_int_equal(open_record(&pair.open, one, bytes, &type, out, &n, &alert), ICMS_PROTOCOL);
    assert_int_equal(alert, CRYPT_ALERT_BAD_RECORD_MAC);
    one[1] ^= 1;
    assert_int_equal(open_record(&pair.open, two, bytes, &type, out, &n, &alert), ICMS_PROTOCOL);
    assert_int_equal(open_record(&pair.open, one, bytes, &type, out, &n, &alert), ICMS_OK);
    assert_int_equal(open_record(&pair.open, one, bytes, &type, out, &n, &alert), ICMS_PROTOCOL);
    assert_int_equal(open_record(&pair.open, two, bytes, &type, out, &n, &alert), ICMS_OK);
    pair_fini(&pair);
}

static void wrong_headers_are_refused(void **state)
{
    static const struct {
        uint8_t header[5];
        enum crypt_alert alert;
    } wrong[] = {
        {{22, 3, 3, 0, 40}, CRYPT_ALERT_UNEXPECTED_MESSAGE},
        {{20, 3, 3, 0, 1}, 10},
        {{21, 3, 3, 0, 2}, 10},
        {{0, 0, 128, 0, 128}, 10},
        {{23, 3, 3, 0x41, 1}, CRYPT_ALERT_RECORD_OVERFLOW},
        {{23, 3, 3, 255, 255}, 22},
        {{23, 3, 3, 0, 16}, CRYPT_ALERT_DECODE_ERROR},
        {{23, 3, 3, 0, 0}, 50},
    };
    enum crypt_alert alert;
    uint32_t bytes = 0;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(crypt_record_header(wrong[i].header, &bytes, &alert), ICMS_PROTOCOL);
        assert_int_equal(alert, wrong[i].alert);
    }
    assert_int_equal(crypt_record_header((uint8_t[]){23, 3, 3, 0x41, 0}, &bytes, &alert), ICMS_OK);
    assert_int_equal(bytes, CRYPT_RECORD_BODY_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_its_golden_bytes),
        cmocka_unit_test(takes_padding_and_refuses_what_is_only_padding),
        cmocka_unit_test(gives_back_what_it_took),
        cmocka_unit_test(every_flipped_bit_and_every_other_order_is_found),
        cmocka_unit_test(wrong_headers_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
