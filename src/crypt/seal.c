/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/seal.c: AES-256-GCM of values over libcrypto's EVP.
 *
 * Called by libicms on the threads of its callers. Contexts are made by seal_new() and initialized
 * again for each value and piece; with the same cipher that takes no memory, and cannot fail, so it
 * is checked. seal_begin() derives a value's key, seal_end() overwrites every schedule with that of
 * a key of zeros: between values no memory of a context holds a key.
 */
#include "crypt/seal.h"

#include <openssl/evp.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"
#include "crypt/secret.h"

/* Plain bytes, ciphertext and its copy nearly stay in 32 KiB of first-level cache: with 16 KiB a
 * value of 1 MiB took 1 % longer, with 8 KiB too, of which each call of libcrypto takes a part. A
 * multiple of 96, because libcrypto encrypts and authenticates six blocks at a time. */
#define SEAL_CHUNK_BYTES ((uint32_t)12 << 10)

#define SEAL_NONCE_BYTES 12
#define AES_BLOCK_BYTES  16

struct seal {
    EVP_CIPHER_CTX *derive;                       /* AES-256-ECB: the key of a value      */
    EVP_CIPHER_CTX *gcm;                          /* AES-256-GCM: its pieces              */
    _Alignas(64) uint8_t chunk[SEAL_CHUNK_BYTES]; /* ciphertext that nobody else writes */
};

static const uint8_t no_key[SEAL_KEY_BYTES];
static const uint8_t no_nonce[SEAL_NONCE_BYTES];

static EVP_CIPHER_CTX *context_new(const char *name)
{
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, name, NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    bool ready = cipher != NULL && context != NULL &&
                 EVP_EncryptInit_ex2(context, cipher, no_key, NULL, NULL) == 1 &&
                 EVP_CIPHER_CTX_set_padding(context, 0) == 1;

    EVP_CIPHER_free(cipher); /* the context holds it */
    if (ready)
        return context;
    EVP_CIPHER_CTX_free(context);
    return NULL;
}

icms_err seal_new(struct seal **out_seal)
{
    struct seal *seal = aligned_alloc(64, bytes_align(sizeof(*seal), 64));

    if (seal == NULL)
        return ICMS_NO_MEMORY;
    seal->derive = context_new("AES-256-ECB");
    seal->gcm = context_new("AES-256-GCM");
    if (seal->derive == NULL || seal->gcm == NULL) {
        seal_free(&seal);
        return ICMS_UNSUPPORTED;
    }
    *out_seal = seal;
    return ICMS_OK;
}

void seal_free(struct seal **seal)
{
    if (*seal == NULL)
        return;
    EVP_CIPHER_CTX_free((*seal)->derive);
    EVP_CIPHER_CTX_free((*seal)->gcm);
    free(*seal);
    *seal = NULL;
}

/* ---- the key of a value --------------------------------------------------------------------- */

static void derive_blocks(struct seal *seal, uint8_t *blocks, int bytes)
{
    int done = 0;

    check(EVP_EncryptUpdate(seal->derive, blocks, &done, blocks, bytes) == 1 && done == bytes);
}

/* XAES-256-GCM: the key is made by CMAC of a counter, the letter X and the first half of the salt,
 * one block of CMAC for each half of the key; the second half of the salt is the nonce. */
static void derive_key(struct seal *seal, const uint8_t volume_key[SEAL_KEY_BYTES],
                       const uint8_t salt[LIMIT_SEALED_SALT_BYTES], uint8_t out_key[SEAL_KEY_BYTES])
{
    uint8_t mask[AES_BLOCK_BYTES] = {0};
    uint8_t first;

    static_assert(SEAL_KEY_BYTES == 2 * AES_BLOCK_BYTES, "two blocks of CMAC");
    check(EVP_EncryptInit_ex2(seal->derive, NULL, volume_key, NULL, NULL) == 1);
    derive_blocks(seal, mask, sizeof(mask));
    first = mask[0];
    for (size_t i = 0; i < sizeof(mask); i++) /* doubled in GF(2^128) */
        mask[i] = (uint8_t)(mask[i] << 1 | (i + 1 < sizeof(mask) ? mask[i + 1] >> 7 : 0));
    mask[sizeof(mask) - 1] ^= (uint8_t)((first >> 7) * 0x87);
    for (size_t half = 0; half < 2; half++) {
        uint8_t *block = out_key + half * AES_BLOCK_BYTES;

        block[0] = 0;
        block[1] = (uint8_t)(half + 1);
        block[2] = 'X';
        block[3] = 0;
        memcpy(block + 4, salt, SEAL_NONCE_BYTES);
        for (size_t i = 0; i < AES_BLOCK_BYTES; i++)
            block[i] ^= mask[i];
    }
    derive_blocks(seal, out_key, SEAL_KEY_BYTES);
    secret_wipe(mask, sizeof(mask));
    check(EVP_EncryptInit_ex2(seal->derive, NULL, no_key, NULL, NULL) == 1);
}

static void seal_begin(struct seal *seal, const uint8_t volume_key[SEAL_KEY_BYTES],
                       const struct seal_block *block, bool encrypt)
{
    uint8_t key[SEAL_KEY_BYTES];

    check(block->key_id != 0);
    derive_key(seal, volume_key, block->salt, key);
    check(EVP_CipherInit_ex2(seal->gcm, NULL, key, NULL, encrypt, NULL) == 1);
    secret_wipe(key, sizeof(key));
}

static void seal_end(struct seal *seal)
{
    check(EVP_EncryptInit_ex2(seal->gcm, NULL, no_key, no_nonce, NULL) == 1);
}

/* ---- pieces --------------------------------------------------------------------------------- */

/* One piece on its way. */
struct piece {
    uint32_t position, count; /* of the value's pieces          */
    uint32_t plain_bytes;     /* of the piece                   */
    enum seal_memory memory;  /* that has its sealed bytes      */
    const uint8_t *from;
    uint8_t *to;
};

static struct piece piece_at(const void *from, void *to, uint32_t plain_bytes, uint32_t position,
                             bool encrypt)
{
    struct piece piece = {.position = position, .count = sealed_pieces(plain_bytes)};

    piece.plain_bytes =
        (uint32_t)u64_min(LIMIT_PIECE_BYTES, plain_bytes - (uint64_t)position * LIMIT_PIECE_BYTES);
    piece.from = (const uint8_t *)from +
                 (encrypt ? position * LIMIT_PIECE_BYTES : sealed_pieces_end(position));
    piece.to =
        (uint8_t *)to + (encrypt ? sealed_pieces_end(position) : position * LIMIT_PIECE_BYTES);
    return piece;
}

/* Nonce and associated data of a piece. */
static void piece_begin(struct seal *seal, const struct seal_block *block,
                        const struct piece *piece, uint32_t value_bytes, bool encrypt)
{
    uint8_t nonce[SEAL_NONCE_BYTES];
    struct sealed_aad_wf aad;
    int bytes = 0;

    memcpy(nonce, block->salt + SEAL_NONCE_BYTES, sizeof(nonce));
    for (int i = 0; i < 4; i++)
        nonce[SEAL_NONCE_BYTES - 1 - i] ^= (uint8_t)(piece->position >> 8 * i);
    check(EVP_CipherInit_ex2(seal->gcm, NULL, NULL, nonce, encrypt, NULL) == 1);
    sealed_aad_make(&(struct sealed_aad){.volume = block->volume,
                                         .key = block->key,
                                         .digest = block->digest,
                                         .key_id = block->key_id,
                                         .length = value_bytes,
                                         .position = piece->position,
                                         .count = piece->count},
                    &aad);
    check(EVP_CipherUpdate(seal->gcm, NULL, &bytes, (const uint8_t *)&aad, sizeof(aad)) == 1);
}

/* Libcrypto may read again what it wrote, to authenticate it: shared memory gets a copy. */
static uint32_t piece_seal(struct seal *seal, const struct piece *piece, uint32_t crc)
{
    uint8_t tag[LIMIT_TAG_BYTES];
    int bytes = 0;

    for (uint32_t at = 0; at < piece->plain_bytes; at += (uint32_t)bytes) {
        int n = (int)u64_min(SEAL_CHUNK_BYTES, piece->plain_bytes - at);
        uint8_t *to = piece->memory == SEAL_OWN ? piece->to + at : seal->chunk;

        check(EVP_EncryptUpdate(seal->gcm, to, &bytes, piece->from + at, n) == 1 && bytes == n);
        if (piece->memory == SEAL_OWN)
            crc = crc32c_add(crc, to, (size_t)n);
        else
            crc = crc32c_copy_steady(crc, piece->to + at, to, (size_t)n);
    }
    check(EVP_EncryptFinal_ex(seal->gcm, seal->chunk, &bytes) == 1 && bytes == 0);
    check(EVP_CIPHER_CTX_ctrl(seal->gcm, EVP_CTRL_AEAD_GET_TAG, sizeof(tag), tag) == 1);
    return crc32c_copy_steady(crc, piece->to + piece->plain_bytes, tag, sizeof(tag));
}

/* False: the tag did not pass. */
static bool piece_open(struct seal *seal, const struct piece *piece)
{
    uint8_t tag[LIMIT_TAG_BYTES];
    int bytes = 0;

    for (uint32_t at = 0; at < piece->plain_bytes; at += (uint32_t)bytes) {
        int n = (int)u64_min(SEAL_CHUNK_BYTES, piece->plain_bytes - at);
        const uint8_t *from = piece->from + at;

        if (piece->memory == SEAL_SHARED)
            from = memcpy(seal->chunk, from, (size_t)n);
        check(EVP_DecryptUpdate(seal->gcm, piece->to + at, &bytes, from, n) == 1 && bytes == n);
    }
    memcpy(tag, piece->from + piece->plain_bytes, sizeof(tag));
    check(EVP_CIPHER_CTX_ctrl(seal->gcm, EVP_CTRL_AEAD_SET_TAG, sizeof(tag), tag) == 1);
    return EVP_DecryptFinal_ex(seal->gcm, seal->chunk, &bytes) == 1;
}

uint32_t seal_value(struct seal *seal, const uint8_t volume_key[SEAL_KEY_BYTES],
                    const struct seal_block *block, const void *plain, uint32_t plain_bytes,
                    enum seal_memory memory, void *to)
{
    struct sealed_head head = {.key_id = block->key_id, .length = plain_bytes};
    uint8_t head_bytes[LIMIT_SEALED_HEAD_BYTES];
    uint32_t crc, count = sealed_pieces(plain_bytes);

    check(plain_bytes > 0);
    memcpy(head.salt, block->salt, sizeof(head.salt));
    sealed_head_make(&head, head_bytes);
    crc = crc32c_copy_steady(0, to, head_bytes, sizeof(head_bytes));
    seal_begin(seal, volume_key, block, true);
    for (uint32_t i = 0; i < count; i++) {
        struct piece piece = piece_at(plain, to, plain_bytes, i, true);

        piece.memory = memory;
        piece_begin(seal, block, &piece, plain_bytes, true);
        crc = piece_seal(seal, &piece, crc);
    }
    seal_end(seal);
    return crc;
}

bool seal_open_pieces(struct seal *seal, const uint8_t volume_key[SEAL_KEY_BYTES],
                      const struct seal_block *block, const struct seal_sealed *sealed, void *to)
{
    uint32_t plain_bytes = sealed->plain_bytes;
    bool passed = true;

    check(plain_bytes > 0 && sealed->end <= sealed_pieces(plain_bytes));
    seal_begin(seal, volume_key, block, false);
    for (uint32_t i = sealed->first; i < sealed->end && passed; i++) {
        struct piece piece = piece_at(sealed->from, to, plain_bytes, i, false);

        piece.memory = sealed->memory;
        piece_begin(seal, block, &piece, plain_bytes, false);
        passed = piece_open(seal, &piece);
    }
    seal_end(seal);
    if (!passed)
        secret_wipe(to, plain_bytes);
    return passed;
}
