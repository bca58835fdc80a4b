/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pre-shared keys of NVMe/TCP: retained PSK, TLS PSK, identity.
 *
 * Called at start by whoever reads key files. Pure but for OpenSSL.
 */
#include "crypt/psk.h"

#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>

#include "base/check.h"
#include "crypt/secret.h"

void crypt_tls_psk_wipe(struct crypt_tls_psk *psk)
{
    secret_wipe(psk, sizeof(*psk));
}

/* ---- derivation ------------------------------------------------------------------------------ */

/* HKDF-Expand-Label of the specification, or what libnvme before 1.16 made of it: the length in
 * little endian, and no lengths in front of label and context. */
static icms_err psk_expand(enum crypt_hash hash, enum crypt_psk_kind kind, const uint8_t *prk,
                           const char *label, const char *context, size_t out_bytes, uint8_t *out)
{
    char info[2 + 256 + 256];
    int n;

    if (kind != CRYPT_PSK_LIBNVME)
        return crypt_hkdf_expand_label(hash, prk, label, context, strlen(context), out, out_bytes);
    n = snprintf(info + 2, sizeof(info) - 2, "tls13 %s%s", label, context);
    if (n < 0 || (size_t)n >= sizeof(info) - 2)
        return ICMS_INVALID;
    info[0] = (char)out_bytes;
    info[1] = 0;
    return crypt_hkdf_expand(hash, prk, info, (size_t)n + 2, out, out_bytes);
}

static icms_err psk_retained(const struct key_plain *psk, enum crypt_psk_kind kind,
                             const char *hostnqn, uint8_t out[CRYPT_HASH_BYTES_MAX])
{
    uint8_t prk[CRYPT_HASH_BYTES_MAX];
    icms_err err;

    if (psk->hash == KEY_HASH_NONE) {
        memcpy(out, psk->key, psk->bytes);
        return ICMS_OK;
    }
    err = crypt_hkdf_extract((enum crypt_hash)psk->hash, psk->key, psk->bytes, prk);
    if (err == ICMS_OK)
        err =
            psk_expand((enum crypt_hash)psk->hash, kind, prk, "HostNQN", hostnqn, psk->bytes, out);
    secret_wipe(prk, sizeof(prk));
    return err;
}

/* What the identity ends in: base64 of an HMAC that only a holder of the retained PSK can make. */
static icms_err psk_digest(enum crypt_hash hash, const uint8_t *retained, size_t bytes,
                           const char *hostnqn, const char *subnqn, char out[80])
{
    char text[2 * LIMIT_NQN_BYTES + 32];
    uint8_t digest[CRYPT_HASH_BYTES_MAX];
    int n = snprintf(text, sizeof(text), "%s %s NVMe-over-Fabrics", hostnqn, subnqn);
    icms_err err;

    check(n > 0 && (size_t)n < sizeof(text));
    err = crypt_hmac(hash, retained, bytes, text, (size_t)n, digest);
    if (err == ICMS_OK)
        (void)EVP_EncodeBlock((unsigned char *)out, digest, (int)crypt_hash_bytes(hash));
    return err;
}

icms_err crypt_psk_derive(const struct key_plain *psk, enum crypt_psk_kind kind,
                          const char *hostnqn, const char *subnqn, struct crypt_tls_psk *out_psk)
{
    enum crypt_hash hash = psk->bytes == 48 ? CRYPT_SHA384 : CRYPT_SHA256;
    uint8_t retained[CRYPT_HASH_BYTES_MAX], prk[CRYPT_HASH_BYTES_MAX];
    struct crypt_tls_psk made = {.hash = hash, .bytes = (uint8_t)crypt_hash_bytes(hash)};
    char digest[80] = "", context[CRYPT_PSK_IDENTITY_BYTES];
    icms_err err;

    check(psk->bytes == 32 || psk->bytes == 48);
    check(strlen(hostnqn) < LIMIT_NQN_BYTES && strlen(subnqn) < LIMIT_NQN_BYTES);
    err = psk_retained(psk, kind, hostnqn, retained);
    if (err == ICMS_OK && kind != CRYPT_PSK_V0)
        err = psk_digest(hash, retained, psk->bytes, hostnqn, subnqn, digest);
    if (err == ICMS_OK) {
        (void)snprintf(made.identity, sizeof(made.identity), "NVMe%dR%02d %s %s%s%s",
                       kind != CRYPT_PSK_V0, (int)hash, hostnqn, subnqn,
                       kind != CRYPT_PSK_V0 ? " " : "", digest);
        if (kind == CRYPT_PSK_V0)
            memcpy(context, made.identity, sizeof(context));
        else
            (void)snprintf(context, sizeof(context), "%02d %s", (int)hash, digest);
        err = crypt_hkdf_extract(hash, retained, psk->bytes, prk);
    }
    if (err == ICMS_OK)
        err = psk_expand(hash, kind, prk, "nvme-tls-psk", context, made.bytes, made.key);
    if (err == ICMS_OK)
        *out_psk = made;
    secret_wipe(retained, sizeof(retained));
    secret_wipe(prk, sizeof(prk));
    crypt_tls_psk_wipe(&made);
    return err;
}
