/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/dhchap.c: what DH-HMAC-CHAP computes, see dhchap.h. Called by nvmf, both sides, from jobs.
 *
 * The primes are OpenSSL's own (named groups); exponentiation is its constant-time one. They are
 * safe primes, so a value from 2 to p-2 generates at least the subgroup of order (p-1)/2. Private
 * exponents have 512 bits, above twice the strength of each group. Everything secret on the stack
 * is wiped.
 */
#include "crypt/dhchap.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/param_build.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/limits.h"

static const struct {
    const char *name;
    size_t bytes;
} groups[DHCHAP_GROUPS] = {
    [DHCHAP_NONE] = {"null", 0},        [DHCHAP_2048] = {"ffdhe2048", 256},
    [DHCHAP_3072] = {"ffdhe3072", 384}, [DHCHAP_4096] = {"ffdhe4096", 512},
    [DHCHAP_6144] = {"ffdhe6144", 768}, [DHCHAP_8192] = {"ffdhe8192", 1024},
};

static const char *const hashes[DHCHAP_HASHES] = {
    [KEY_HASH_SHA256] = "sha256",
    [KEY_HASH_SHA384] = "sha384",
    [KEY_HASH_SHA512] = "sha512",
};

size_t dhchap_group_bytes(uint8_t group)
{
    return group < DHCHAP_GROUPS ? groups[group].bytes : 0;
}

size_t dhchap_hash_bytes(uint8_t hash)
{
    return hash > KEY_HASH_NONE && hash < DHCHAP_HASHES ? key_hash_bytes((enum key_hash)hash) : 0;
}

const char *dhchap_group_name(uint8_t group)
{
    return group < DHCHAP_GROUPS ? groups[group].name : NULL;
}

const char *dhchap_hash_name(uint8_t hash)
{
    return hash < DHCHAP_HASHES ? hashes[hash] : NULL;
}

bool dhchap_equal(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    return CRYPTO_memcmp(a, b, bytes) == 0;
}

bool dhchap_key_same(const struct key_plain *a, const struct key_plain *b)
{
    return a->bytes == b->bytes && dhchap_equal(a->key, b->key, a->bytes);
}

icms_err dhchap_secret_read(const char *path, struct err_why *why, struct secret **out_secret)
{
    struct secret *text = NULL, *secret = NULL;
    struct err_why cause = {""};
    icms_err err = secret_read_line(path, why, &text);

    if (err != ICMS_OK)
        return err;
    err = secret_new(sizeof(struct key_plain), why, &secret);
    if (err == ICMS_OK) {
        err = key_text_parse(KEY_TEXT_DHCHAP, (const char *)secret_bytes(text), secret_length(text),
                             &cause, (struct key_plain *)(void *)secret_bytes(secret));
        if (err != ICMS_OK)
            (void)err_set(why, err, "cannot use secret file %.300s: %.180s", path, cause.text);
    }
    secret_free(&text);
    if (err != ICMS_OK)
        secret_free(&secret);
    else
        *out_secret = secret;
    return err;
}

/* ---- groups --------------------------------------------------------------------------------- */

/* The prime of a group; NULL: no memory. */
static BIGNUM *group_prime(enum dhchap_group group)
{
    char name[16] = "";
    OSSL_PARAM params[2];
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, "DH", NULL);
    EVP_PKEY *key = NULL;
    BIGNUM *prime = NULL;

    check(group > DHCHAP_NONE && group < DHCHAP_GROUPS);
    memcpy(name, groups[group].name, strlen(groups[group].name) + 1);
    params[0] = OSSL_PARAM_construct_utf8_string(OSSL_PKEY_PARAM_GROUP_NAME, name, 0);
    params[1] = OSSL_PARAM_construct_end();
    if (context != NULL && EVP_PKEY_fromdata_init(context) > 0 &&
        EVP_PKEY_fromdata(context, &key, EVP_PKEY_KEY_PARAMETERS, params) > 0)
        (void)EVP_PKEY_get_bn_param(key, OSSL_PKEY_PARAM_FFC_P, &prime);
    EVP_PKEY_free(key);
    EVP_PKEY_CTX_free(context);
    return prime;
}

/* base^private mod p into out; base NULL: the generator, 2. */
static icms_err group_power(enum dhchap_group group, const uint8_t private[DHCHAP_PRIVATE_BYTES],
                            const uint8_t *base, uint8_t *out)
{
    size_t bytes = dhchap_group_bytes(group);
    BIGNUM *prime = group_prime(group), *least = BN_new(), *result = BN_new();
    BIGNUM *number = BN_new(), *exponent = BN_secure_new();
    BN_CTX *context = BN_CTX_secure_new();
    icms_err err = ICMS_NO_MEMORY;

    if (prime == NULL || least == NULL || result == NULL || number == NULL || exponent == NULL ||
        context == NULL || BN_copy(least, prime) == NULL || BN_sub_word(least, 1) == 0 ||
        BN_bin2bn(private, DHCHAP_PRIVATE_BYTES, exponent) == NULL || BN_set_word(number, 2) == 0 ||
        (base != NULL && BN_bin2bn(base, (int)bytes, number) == NULL))
        goto out;
    if (BN_is_zero(number) || BN_is_one(number) || BN_cmp(number, least) >= 0) {
        err = ICMS_AUTH;
        goto out;
    }
    BN_set_flags(exponent, BN_FLG_CONSTTIME);
    if (BN_mod_exp_mont_consttime(result, number, exponent, prime, context, NULL) == 1 &&
        BN_bn2binpad(result, out, (int)bytes) == (int)bytes)
        err = ICMS_OK;
out:
    BN_clear_free(exponent);
    BN_clear_free(result);
    BN_free(number);
    BN_free(least);
    BN_free(prime);
    BN_CTX_free(context);
    return err;
}

icms_err dhchap_public(enum dhchap_group group, const uint8_t private[DHCHAP_PRIVATE_BYTES],
                       uint8_t *out_public)
{
    return group_power(group, private, NULL, out_public);
}

icms_err dhchap_shared(enum dhchap_group group, const uint8_t private[DHCHAP_PRIVATE_BYTES],
                       const uint8_t *peer, uint8_t *out_shared)
{
    return group_power(group, private, peer, out_shared);
}

/* ---- responses ------------------------------------------------------------------------------ */

static const EVP_MD *hash_md(enum key_hash hash)
{
    switch (hash) {
    case KEY_HASH_SHA256:
        return EVP_sha256();
    case KEY_HASH_SHA384:
        return EVP_sha384();
    case KEY_HASH_SHA512:
        return EVP_sha512();
    default:
        check(false);
        return NULL;
    }
}

static bool hmac(enum key_hash hash, const uint8_t *key, size_t key_bytes, const uint8_t *data,
                 size_t bytes, uint8_t *out)
{
    return HMAC(hash_md(hash), key, (int)key_bytes, data, bytes, out, NULL) != NULL;
}

static size_t put(uint8_t *out, size_t at, const void *from, size_t bytes)
{
    memcpy(out + at, from, bytes);
    return at + bytes;
}

/* K' */
static bool key_transform(const struct key_plain *key, const char *nqn, uint8_t out[KEY_BYTES_MAX])
{
    uint8_t text[LIMIT_NQN_BYTES + 32];
    size_t at = put(text, 0, nqn, strlen(nqn));

    if (key->hash == KEY_HASH_NONE) {
        memcpy(out, key->key, KEY_BYTES_MAX);
        return true;
    }
    at = put(text, at, "NVMe-over-Fabrics", 17);
    return hmac(key->hash, key->key, key->bytes, text, at, out);
}

/* C' */
static bool challenge_augment(const struct dhchap_question *question, uint8_t *out)
{
    size_t bytes = dhchap_hash_bytes(question->hash);
    uint8_t digest[DHCHAP_DIGEST_BYTES_MAX];
    bool is_done;

    if (question->shared == NULL) {
        memcpy(out, question->challenge, bytes);
        return true;
    }
    is_done = EVP_Digest(question->shared, question->shared_bytes, digest, NULL,
                         hash_md(question->hash), NULL) == 1 &&
              hmac(question->hash, digest, bytes, question->challenge, bytes, out);
    secret_wipe(digest, sizeof(digest));
    return is_done;
}

struct dhchap_question dhchap_talk_question(const struct dhchap_talk *talk, bool is_target,
                                            const uint8_t *shared, const char *hostnqn,
                                            const char *subnqn)
{
    struct dhchap_question question = {
        .hash = talk->hash,
        .is_target = is_target,
        .t_id = talk->t_id,
        .seqnum = is_target ? talk->seqnum2 : talk->seqnum,
        .challenge = is_target ? talk->challenge2 : talk->challenge,
        .shared = talk->group != DHCHAP_NONE ? shared : NULL,
        .shared_bytes = dhchap_group_bytes((uint8_t)talk->group),
        .hostnqn = hostnqn,
        .subnqn = subnqn,
    };

    return question;
}

icms_err dhchap_response(const struct key_plain *key, const struct dhchap_question *question,
                         uint8_t *out_response)
{
    const char *first = question->is_target ? question->subnqn : question->hostnqn;
    const char *second = question->is_target ? question->hostnqn : question->subnqn;
    uint8_t text[DHCHAP_DIGEST_BYTES_MAX + 32 + 2 * LIMIT_NQN_BYTES], transformed[KEY_BYTES_MAX];
    le32 seqnum = le32_of(question->seqnum);
    le16 t_id = le16_of(question->t_id);
    size_t at = dhchap_hash_bytes(question->hash);
    bool is_done;

    check(at > 0 && strlen(first) < LIMIT_NQN_BYTES && strlen(second) < LIMIT_NQN_BYTES);
    is_done = challenge_augment(question, text) && key_transform(key, first, transformed);
    at = put(text, at, &seqnum, sizeof(seqnum));
    at = put(text, at, &t_id, sizeof(t_id));
    at = put(text, at, &question->concat, 1);
    at = put(text, at, question->is_target ? "Controller" : "HostHost",
             question->is_target ? 10 : 8);
    at = put(text, at, first, strlen(first) + 1);
    at = put(text, at, second, strlen(second));
    is_done = is_done && hmac(question->hash, transformed, key->bytes, text, at, out_response);
    secret_wipe(text, sizeof(text));
    secret_wipe(transformed, sizeof(transformed));
    return is_done ? ICMS_OK : ICMS_NO_MEMORY;
}
