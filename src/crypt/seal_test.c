/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of values of encrypted volumes: the vectors of C2SP, every size around a chunk and a
 * piece, and what does not open: anything else than what was sealed, where it was sealed for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <openssl/evp.h>

#include "base/crc.h"
#include "base/hash.h"
#include "crypt/seal.h"
#include "wire/test_bytes.h"

#define KIB   ((uint32_t)1024)
#define PIECE ((uint32_t)LIMIT_PIECE_BYTES)
#define HEAD  LIMIT_SEALED_HEAD_BYTES

static const uint8_t volume_key[SEAL_KEY_BYTES] = "the key of a volume, thirty-two";
static const struct uuid volume = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};
static const struct key key = {{'k', 'e', 'y'}, 16};
static const uint8_t digest[LIMIT_DIGEST_BYTES] = "the hash of a block, thirty-two";

static struct seal *seal;

static int setup(void **state)
{
    return seal_new(&seal) == ICMS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    seal_free(&seal);
    return 0;
}

static struct seal_block block_of(void)
{
    return (struct seal_block){.volume = &volume,
                               .key = &key,
                               .digest = digest,
                               .key_id = 7,
                               .salt = "ABCDEFGHIJKLMNOPQRSTUVW"};
}

static uint8_t *filled(uint32_t bytes)
{
    uint8_t *data = malloc(bytes + 1);

    assert_non_null(data);
    for (uint32_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(hash64_mix(i / 8) >> (8 * (i % 8)));
    return data;
}

/* AES-256-GCM of one message, by libcrypto, another way than the code under test: one call. */
static void gcm(const uint8_t gcm_key[32], const uint8_t nonce[12], const void *aad, int aad_bytes,
                const void *plain, int bytes, uint8_t *out)
{
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int n;

    assert_int_equal(EVP_EncryptInit_ex(context, EVP_aes_256_gcm(), NULL, gcm_key, nonce), 1);
    if (aad_bytes > 0)
        assert_int_equal(EVP_EncryptUpdate(context, NULL, &n, aad, aad_bytes), 1);
    assert_int_equal(EVP_EncryptUpdate(context, out, &n, plain, bytes), 1);
    assert_int_equal(EVP_EncryptFinal_ex(context, out + n, &n), 1);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, 16, out + bytes), 1);
    EVP_CIPHER_CTX_free(context);
}

/* The derived keys that the specification of XAES-256-GCM gives for its two keys, with L of either
 * first bit, and its salt: what we make of a value of one piece is GCM under them. The ciphertext
 * without a tag is that of the specification. */
static void a_value_of_one_piece_is_xaes_256_gcm(void **state)
{
    static const struct {
        uint8_t byte;
        const char *derived, *cipher;
    } vectors[] = {
        {1, "c8612c9ed53fe43e8e005b828a1631a0bbcb6ab2f46514ec4f439fcfd0fa969b",
         "ce546ef63c9cc60765923609"},
        {3, "e9c621d4cdd9b11b00a6427ad7e559aeedd66b3857646677748f8ca796cb3fd8",
         "986ec1832593df5443a17943"},
    };
    struct seal_block block = block_of();
    struct sealed_aad_wf aad;
    uint8_t out[HEAD + 12 + 16], wanted[HEAD + 12 + 16], derived[32], master[32];

    memcpy(block.salt, "ABCDEFGHIJKLMNOPQRSTUVWX", 24);
    sealed_aad_make(&(struct sealed_aad){&volume, &key, digest, 7, 12, 0, 1}, &aad);
    for (size_t i = 0; i < 2; i++) {
        memset(master, vectors[i].byte, sizeof(master));
        (void)test_hex(vectors[i].derived, derived, sizeof(derived));
        (void)test_hex("4142434445464748494a4b4c4d4e4f505152535455565758 07000000 0c000000", wanted,
                       HEAD);
        gcm(derived, (const uint8_t *)"MNOPQRSTUVWX", &aad, sizeof(aad), "XAES-256-GCM", 12,
            wanted + HEAD);
        assert_int_equal(seal_value(seal, master, &block, "XAES-256-GCM", 12, SEAL_SHARED, out),
                         crc32c(wanted, sizeof(wanted)));
        assert_memory_equal(out, wanted, sizeof(wanted));
        test_bytes_are(out + HEAD, vectors[i].cipher);
    }
}

/* Piece i: the nonce's last four bytes xor i; position and count in the associated data. */
static void pieces_have_their_own_nonce_and_place(void **state)
{
    const uint32_t bytes = 2 * PIECE + 5;
    uint8_t *plain = filled(bytes), *out = malloc(sealed_bytes(bytes)),
            *wanted = malloc(PIECE + 16);
    struct seal_block block = block_of();
    uint8_t derived[32], nonce[12], master[32];
    struct sealed_aad_wf aad;

    memset(master, 1, sizeof(master));
    memcpy(block.salt, "ABCDEFGHIJKLMNOPQRSTUVWX", 24);
    (void)test_hex("c8612c9ed53fe43e8e005b828a1631a0bbcb6ab2f46514ec4f439fcfd0fa969b", derived,
                   sizeof(derived));
    (void)seal_value(seal, master, &block, plain, bytes, SEAL_SHARED, out);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t n = i < 2 ? PIECE : 5;

        memcpy(nonce, "MNOPQRSTUVWX", 12);
        nonce[11] ^= (uint8_t)i;
        sealed_aad_make(&(struct sealed_aad){&volume, &key, digest, 7, bytes, i, 3}, &aad);
        gcm(derived, nonce, &aad, sizeof(aad), plain + (size_t)i * PIECE, (int)n, wanted);
        assert_memory_equal(out + sealed_pieces_end(i), wanted, n + 16);
    }
    free(plain);
    free(out);
    free(wanted);
}

/* All pieces of a value. */
static bool opens(const struct seal_block *block, const uint8_t *master, const uint8_t *out,
                  uint32_t plain_bytes, enum seal_memory memory, void *back)
{
    const struct seal_sealed sealed = {.from = out,
                                       .plain_bytes = plain_bytes,
                                       .end = sealed_pieces(plain_bytes),
                                       .memory = memory};

    return seal_open_pieces(seal, master, block, &sealed, back);
}

static const uint32_t sizes[] = {
    1,         15,    16,        17,        12 * KIB - 1,  12 * KIB,   12 * KIB + 1,
    PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1, 1024 * KIB, 1024 * KIB + 77};

/* The same bytes in either memory. */
static void every_size_comes_back(void **state)
{
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        uint64_t bytes = sealed_bytes(sizes[i]);
        uint8_t *plain = filled(sizes[i]), *out = malloc(bytes + 1), *back = malloc(sizes[i] + 1);
        struct seal_block block = block_of();
        uint32_t crc;

        assert_int_equal(sealed_plain_bytes(bytes), sizes[i]);
        out[bytes] = 0x5a;
        back[sizes[i]] = 0x5a;
        crc = seal_value(seal, volume_key, &block, plain, sizes[i], SEAL_SHARED, out);
        assert_int_equal(crc, crc32c(out, bytes));
        assert_true(opens(&block, volume_key, out, sizes[i], SEAL_SHARED, back));
        assert_memory_equal(back, plain, sizes[i]);
        memset(out, 0, bytes);
        memset(back, 0, sizes[i]);
        assert_int_equal(seal_value(seal, volume_key, &block, plain, sizes[i], SEAL_OWN, out), crc);
        assert_int_equal(crc, crc32c(out, bytes));
        assert_true(opens(&block, volume_key, out, sizes[i], SEAL_OWN, back));
        assert_memory_equal(back, plain, sizes[i]);
        assert_int_equal(out[bytes], 0x5a);
        assert_int_equal(back[sizes[i]], 0x5a);
        free(plain);
        free(out);
        free(back);
    }
}

/* Sizes that no value has: a tag, and nothing that it could be of. */
static void other_lengths_are_of_no_value(void **state)
{
    const uint64_t pieces = LIMIT_VALUE_BYTES / LIMIT_PIECE_BYTES;

    for (uint64_t bytes = 0; bytes <= HEAD + 16; bytes++)
        assert_int_equal(sealed_plain_bytes(bytes), 0);
    for (uint64_t bytes = 1; bytes <= 16; bytes++)
        assert_int_equal(sealed_plain_bytes(HEAD + LIMIT_PIECE_BYTES + 16 + bytes), 0);
    assert_int_equal(sealed_plain_bytes(HEAD + 17), 1);
    assert_int_equal(sealed_plain_bytes(LIMIT_VALUE_BYTES), LIMIT_VALUE_BYTES - HEAD - pieces * 16);
    for (uint64_t plain = 1; plain < 3 * LIMIT_PIECE_BYTES; plain += 1021)
        assert_int_equal(sealed_plain_bytes(sealed_bytes(plain)), plain);
}

/* Not opened, and nothing of it shown. */
static void does_not_open(const struct seal_block *block, const uint8_t *master, const uint8_t *out,
                          uint32_t plain_bytes)
{
    for (int memory = SEAL_SHARED; memory <= SEAL_OWN; memory++) {
        uint8_t *back = filled(plain_bytes);

        assert_false(opens(block, master, out, plain_bytes, (enum seal_memory)memory, back));
        for (uint32_t i = 0; i < plain_bytes; i++)
            assert_int_equal(back[i], 0);
        free(back);
    }
}

static void every_flipped_bit_is_found(void **state)
{
    uint8_t plain[100], out[HEAD + 116];
    struct seal_block block = block_of();

    memset(plain, 0x77, sizeof(plain));
    (void)seal_value(seal, volume_key, &block, plain, sizeof(plain), SEAL_SHARED, out);
    for (int bit = 8 * HEAD; bit < 8 * (int)sizeof(out); bit++) {
        out[bit / 8] ^= (uint8_t)(1 << bit % 8);
        does_not_open(&block, volume_key, out, sizeof(plain));
        out[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void a_large_value_with_a_flipped_bit_shows_no_piece(void **state)
{
    const uint32_t bytes = 3 * PIECE + 100;
    uint64_t stored = sealed_bytes(bytes);
    uint8_t *plain = filled(bytes), *out = malloc(stored);
    struct seal_block block = block_of();

    (void)seal_value(seal, volume_key, &block, plain, bytes, SEAL_SHARED, out);
    for (uint64_t i = 0; i < 40; i++) {
        uint64_t at =
            i < 2 ? HEAD + i * (stored - HEAD - 1) : HEAD + hash64_mix(i) % (stored - HEAD);

        out[at] ^= 0x10;
        does_not_open(&block, volume_key, out, bytes);
        out[at] ^= 0x10;
    }
    free(plain);
    free(out);
}

static void another_key_block_or_volume_does_not_open(void **state)
{
    const uint32_t bytes = PIECE + 100;
    uint8_t *plain = filled(bytes), *out = malloc(sealed_bytes(bytes)), other_key[SEAL_KEY_BYTES];
    struct uuid other_volume = volume;
    struct key wire = key;
    uint8_t other_digest[LIMIT_DIGEST_BYTES];
    struct seal_block block = block_of(), other;

    (void)seal_value(seal, volume_key, &block, plain, bytes, SEAL_SHARED, out);
    memcpy(other_key, volume_key, sizeof(other_key));
    other_key[31] ^= 1;
    does_not_open(&block, other_key, out, bytes);
    other = block;
    other_volume.bytes[15] ^= 1;
    other.volume = &other_volume;
    does_not_open(&other, volume_key, out, bytes);
    other = block;
    wire.bytes[15] ^= 1;
    other.key = &wire;
    does_not_open(&other, volume_key, out, bytes);
    wire = key;
    wire.length = 15;
    does_not_open(&other, volume_key, out, bytes);
    other = block;
    other.digest = other_digest;
    for (int i = 0; i < LIMIT_DIGEST_BYTES; i++) {
        memcpy(other_digest, digest, sizeof(other_digest));
        other_digest[i] ^= 0x80;
        does_not_open(&other, volume_key, out, bytes);
    }
    other = block;
    other.key_id++;
    does_not_open(&other, volume_key, out, bytes);
    for (int i = 0; i < LIMIT_SEALED_SALT_BYTES; i++) {
        other = block;
        other.salt[i] ^= 1;
        does_not_open(&other, volume_key, out, bytes);
    }
    free(plain);
    free(out);
}

static void swapped_and_cut_pieces_do_not_open(void **state)
{
    const uint32_t sealed_piece = PIECE + 16, bytes = 3 * PIECE;
    uint8_t *plain = filled(bytes), *out = malloc(sealed_bytes(bytes)), *moved;
    struct seal_block block = block_of();

    (void)seal_value(seal, volume_key, &block, plain, bytes, SEAL_SHARED, out);
    does_not_open(&block, volume_key, out, 2 * PIECE);                /* the last one is gone  */
    does_not_open(&block, volume_key, out + sealed_piece, 2 * PIECE); /* the first one is gone */
    moved = malloc(sealed_bytes(bytes));
    for (uint32_t first = 0; first < 3; first++)
        for (uint32_t second = first + 1; second < 3; second++) {
            memcpy(moved, out, sealed_bytes(bytes));
            memcpy(moved + sealed_pieces_end(first), out + sealed_pieces_end(second), sealed_piece);
            memcpy(moved + sealed_pieces_end(second), out + sealed_pieces_end(first), sealed_piece);
            does_not_open(&block, volume_key, moved, bytes);
        }
    memcpy(moved, out, sealed_bytes(bytes));
    memcpy(moved + sealed_pieces_end(1), out + sealed_pieces_end(0), sealed_piece); /* one twice */
    does_not_open(&block, volume_key, moved, bytes);
    free(moved);
    free(plain);
    free(out);
}

/* The end of one value after the beginning of another one of the same block, key and salt's owner.
 */
static void pieces_of_two_values_do_not_mix(void **state)
{
    const uint32_t bytes = 2 * PIECE;
    uint8_t *plain = filled(bytes), *one = malloc(sealed_bytes(bytes)),
            *two = malloc(sealed_bytes(bytes));
    struct seal_block block = block_of(), other = block_of();

    other.salt[0] ^= 1;
    (void)seal_value(seal, volume_key, &block, plain, bytes, SEAL_SHARED, one);
    (void)seal_value(seal, volume_key, &other, plain, bytes, SEAL_SHARED, two);
    memcpy(one + sealed_pieces_end(1), two + sealed_pieces_end(1), PIECE + 16);
    does_not_open(&block, volume_key, one, bytes);
    does_not_open(&other, volume_key, one, bytes);
    free(plain);
    free(one);
    free(two);
}

/* Pieces that are opened one by one, in any order and from copies of their own, make the value; one
 * that does not pass leaves nothing of what was opened before. */
static void pieces_open_one_by_one(void **state)
{
    const uint32_t bytes = 3 * PIECE + 100, order[] = {1, 0, 3, 2};
    uint8_t *plain = filled(bytes), *out = malloc(sealed_bytes(bytes)), *back = malloc(bytes);
    struct seal_block block = block_of();

    (void)seal_value(seal, volume_key, &block, plain, bytes, SEAL_SHARED, out);
    memset(back, 0x5a, bytes);
    for (int i = 0; i < 4; i++) {
        struct seal_sealed part = {
            .from = out, .plain_bytes = bytes, .first = order[i], .end = order[i] + 1};

        assert_true(seal_open_pieces(seal, volume_key, &block, &part, back));
        part.end = part.first; /* none */
        assert_true(seal_open_pieces(seal, volume_key, &block, &part, back));
        memset(out + sealed_pieces_end(order[i]), 0, 100); /* it is not looked at again */
    }
    assert_memory_equal(back, plain, bytes);
    assert_false(seal_open_pieces(
        seal, volume_key, &block,
        &(struct seal_sealed){.from = out, .plain_bytes = bytes, .first = 3, .end = 4}, back));
    for (uint32_t i = 0; i < bytes; i++)
        assert_int_equal(back[i], 0);
    free(plain);
    free(out);
    free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_of_one_piece_is_xaes_256_gcm),
        cmocka_unit_test(pieces_have_their_own_nonce_and_place),
        cmocka_unit_test(every_size_comes_back),
        cmocka_unit_test(other_lengths_are_of_no_value),
        cmocka_unit_test(every_flipped_bit_is_found),
        cmocka_unit_test(a_large_value_with_a_flipped_bit_shows_no_piece),
        cmocka_unit_test(another_key_block_or_volume_does_not_open),
        cmocka_unit_test(swapped_and_cut_pieces_do_not_open),
        cmocka_unit_test(pieces_of_two_values_do_not_mix),
        cmocka_unit_test(pieces_open_one_by_one),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
