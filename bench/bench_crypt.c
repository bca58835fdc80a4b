/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_crypt.c: `icms bench crypt`: what encryption of values costs one core.
 *
 * put: a value sealed from one memory into another, as a client does: encrypted, copied and summed
 * (CRC32C) in one pass, with a key derived for each value. get: copied and opened again. The
 * ceiling is what `openssl speed -evp aes-256-gcm` does: libcrypto's AES-256-GCM over one buffer of
 * the value's size, in place, with a nonce and a tag each, and no derivation, copy or checksum. get
 * is compared with decryption.
 *
 * The variant own is the same in memory that nobody else writes, as with the agent in the same
 * process: then there is no copy. pod and tls compare two pods with agents of their own: with
 * encrypted values, and with TLS between agent and target, beside neither (bench_pod.c).
 *
 * Both sides of the others run on the thread of bench_run, in turns. What was opened is compared
 * with what was sealed at the end of each slice.
 */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/types.h"
#include "bench/bench_int.h"
#include "crypt/seal.h"
#include "crypt/secret.h"

#define CRYPT_RATIO 0.85 /* goal */

struct crypt_side {
    struct bench_side side, raw; /* icms, libcrypto                      */
    struct seal *seal;
    EVP_CIPHER_CTX *context; /* of the ceiling, with its key         */
    uint8_t key[SEAL_KEY_BYTES];
    struct uuid volume;
    struct key name;
    uint8_t digest[LIMIT_DIGEST_BYTES];
    struct seal_block block;
    enum seal_memory memory; /* of sealed                            */
    uint32_t size;
    uint8_t *plain, *sealed, *opened; /* size, sealed_bytes(size), size */
};

/* ---- operations ------------------------------------------------------------------------------ */

static icms_err crypt_raw_slice(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                                struct bench_slice *slice, struct err_why *why)
{
    struct crypt_side *side = base->owner;
    uint8_t nonce[12] = {0}, tag[LIMIT_TAG_BYTES];
    uint64_t begin = bench_now_ns(), now = begin;
    bool encrypt = work->op == BENCH_PUT;
    int bytes = 0;

    (void)why;
    while (now - begin < ns) {
        uint64_t start = now;
        bool right;

        nonce[0]++;
        right = EVP_CipherInit_ex2(side->context, NULL, NULL, nonce, encrypt, NULL) == 1 &&
                EVP_CipherUpdate(side->context, side->opened, &bytes, side->opened,
                                 (int)side->size) == 1;
        if (encrypt) /* the tag of what was decrypted is not known: it is computed, and does not
                        pass */
            right =
                right && EVP_CipherFinal_ex(side->context, tag, &bytes) == 1 &&
                EVP_CIPHER_CTX_ctrl(side->context, EVP_CTRL_AEAD_GET_TAG, sizeof(tag), tag) == 1;
        else
            right =
                right &&
                EVP_CIPHER_CTX_ctrl(side->context, EVP_CTRL_AEAD_SET_TAG, sizeof(tag), tag) == 1 &&
                EVP_CipherFinal_ex(side->context, tag, &bytes) != 1;
        now = bench_now_ns();
        bench_slice_add(slice, right ? ICMS_OK : ICMS_IO, side->size, 0, now - start);
    }
    slice->wall_ns = now - begin;
    return ICMS_OK;
}

/* With a new salt, as each put has. */
static void crypt_seal(struct crypt_side *side)
{
    secret_random(side->block.salt, sizeof(side->block.salt));
    (void)seal_value(side->seal, side->key, &side->block, side->plain, side->size, side->memory,
                     side->sealed);
}

static bool crypt_open(struct crypt_side *side)
{
    const struct seal_sealed sealed = {.from = side->sealed,
                                       .plain_bytes = side->size,
                                       .end = sealed_pieces(side->size),
                                       .memory = side->memory};

    return seal_open_pieces(side->seal, side->key, &side->block, &sealed, side->opened);
}

static icms_err crypt_slice(struct bench_side *base, const struct bench_work *work, uint64_t ns,
                            struct bench_slice *slice, struct err_why *why)
{
    struct crypt_side *side = base->owner;
    uint64_t begin, now;

    (void)why;
    crypt_seal(side);
    begin = now = bench_now_ns();
    while (now - begin < ns) {
        uint64_t start = now;
        icms_err err = ICMS_OK;

        if (work->op == BENCH_PUT)
            crypt_seal(side);
        else if (!crypt_open(side))
            err = ICMS_CORRUPT;
        now = bench_now_ns();
        bench_slice_add(slice, err, side->size, work->op == BENCH_PUT ? 0 : side->size,
                        now - start);
    }
    slice->wall_ns = now - begin;
    if (!crypt_open(side) || memcmp(side->opened, side->plain, side->size) != 0) {
        slice->errors++;
        slice->error = ICMS_CORRUPT;
    }
    return ICMS_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void crypt_free(struct crypt_side *side)
{
    seal_free(&side->seal);
    EVP_CIPHER_CTX_free(side->context);
    free(side->plain);
    free(side->sealed);
    free(side->opened);
}

static icms_err crypt_make(struct crypt_side *side, uint32_t size, struct err_why *why)
{
    icms_err err = seal_new(&side->seal);

    side->size = size;
    side->name = (struct key){.bytes = "a block", .length = LIMIT_KEY_BYTES};
    side->block = (struct seal_block){
        .volume = &side->volume, .key = &side->name, .digest = side->digest, .key_id = 1};
    side->context = EVP_CIPHER_CTX_new();
    side->plain = malloc(size);
    side->sealed = malloc(sealed_bytes(size));
    side->opened = calloc(1, size);
    if (err != ICMS_OK || side->context == NULL || side->plain == NULL || side->sealed == NULL ||
        side->opened == NULL ||
        EVP_EncryptInit_ex2(side->context, EVP_aes_256_gcm(), side->key, NULL, NULL) != 1) {
        crypt_free(side);
        return err_set(why, err != ICMS_OK ? err : ICMS_NO_MEMORY,
                       "cannot make a cipher of libcrypto, or no memory");
    }
    bench_value_noise(side->plain, size);
    side->raw = (struct bench_side){.name = "AES-256-GCM", .run = crypt_raw_slice, .owner = side};
    side->side = (struct bench_side){.name = "crypt", .run = crypt_slice, .owner = side};
    return ICMS_OK;
}

static icms_err crypt_row(const struct bench_opts *opts, struct crypt_side *side, enum bench_op op,
                          struct err_why *why)
{
    struct bench_work work = {.op = op, .size_bytes = side->size, .depth = 1};
    struct bench_row row = {.bench = "crypt", .variant = side->memory == SEAL_OWN ? "own" : ""};
    icms_err err = bench_compare(opts, &work, &side->raw, &side->side, &row, why);

    if (err != ICMS_OK)
        return err;
    if (side->size == (uint32_t)1 << 20)
        row.ratio_goal = CRYPT_RATIO;
    opts->row(opts->arg, &row);
    return ICMS_OK;
}

static icms_err crypt_rows(const struct bench_opts *opts, struct crypt_side *side, double part,
                           struct err_why *why)
{
    icms_err err = ICMS_OK;

    for (int op = BENCH_GET; op <= BENCH_PUT && err == ICMS_OK; op++)
        if (bench_wants_op(opts, (enum bench_op)op)) {
            opts->progress(opts->arg, bench_op_name((enum bench_op)op), part);
            err = crypt_row(opts, side, (enum bench_op)op, why);
        }
    return err;
}

icms_err bench_crypt_run(const struct bench_opts *opts, struct err_why *why)
{
    uint32_t sizes[BENCH_SIZES_MAX], size_count = bench_sizes(opts, sizes);
    icms_err err = ICMS_OK;

    for (uint32_t i = 0; i < size_count && err == ICMS_OK; i++) {
        struct crypt_side side = {.key = "a key that protects nothing"};

        err = crypt_make(&side, sizes[i], why);
        if (err != ICMS_OK)
            break;
        for (int memory = SEAL_SHARED; memory <= SEAL_OWN && err == ICMS_OK; memory++) {
            side.memory = (enum seal_memory)memory;
            if (bench_wants_variant(opts, memory == SEAL_OWN ? "own" : ""))
                err = crypt_rows(opts, &side, (double)i / size_count, why);
        }
        crypt_free(&side);
    }
    if (err == ICMS_OK && bench_wants_variant(opts, "pod"))
        err = bench_pod_pair(opts, "pod", BENCH_ENCRYPTED, why);
    if (err == ICMS_OK && bench_wants_variant(opts, "tls"))
        err = bench_pod_pair(opts, "tls", BENCH_TLS, why);
    return err;
}
