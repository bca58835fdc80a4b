/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/seal.h: a value of an encrypted volume, sealed and opened.
 *
 * A value is cut into pieces of LIMIT_PIECE_BYTES; the last one may be shorter. Each piece is
 * AES-256-GCM ciphertext with its tag of LIMIT_TAG_BYTES behind it, and the pieces follow each
 * other, behind a head with the salt, the id of the volume's key and the length of the value: these
 * are the sealed bytes (wire/sealed.h). So who has the first pieces can open them.
 *
 *   block key, nonce  XAES-256-GCM (C2SP) from the volume's key and the salt of 192 random bits, so
 *                     that any number of writers share a key. A value of one piece is exactly
 *                     XAES-256-GCM.
 *   nonce of piece i  the nonce of XAES-256-GCM with its last four bytes xor i, big endian
 *   associated data   struct sealed_aad_wf: volume, key, digest, plain length, position, count, id
 *
 * So nothing of another block, volume, generation or key passes, and no piece passes in another
 * place, or beside pieces of another value: pieces that pass under one head are of the value that
 * was sealed under it, whenever and wherever they were read. XAES-256-GCM does not commit to its
 * key; nothing here relies on it.
 *
 * Each byte is moved once, in chunks that stay in the cache: encrypted, copied, and summed for the
 * trailer's CRC32C; or copied and decrypted. Opening sums nothing: the tags authenticate every
 * byte. Ciphertext is read from and written to memory that others may write only once, by way of
 * memory of the context: what is authenticated is what was decrypted, and what was encrypted. Where
 * nobody else writes there is no such detour.
 *
 * After each value the contexts hold no key any more. One thread at a time uses a struct seal; it
 * takes its memory when it is made and none later.
 */
#ifndef CRYPT_SEAL_H
#define CRYPT_SEAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/types.h"
#include "wire/sealed.h"

#define SEAL_KEY_BYTES 32 /* of a volume's key */

/* The contexts of one thread. */
struct seal;

/* NO_MEMORY, or UNSUPPORTED: this libcrypto has no AES-256-GCM. */
icms_err seal_new(struct seal **out_seal) ICMS_MUST_CHECK;
void seal_free(struct seal **seal);

/* What a value is bound to. */
struct seal_block {
    const struct uuid *volume;
    const struct key *key;
    const uint8_t *digest;                 /* [LIMIT_DIGEST_BYTES] of the block               */
    uint32_t key_id;                       /* of the volume's key; not 0                      */
    uint8_t salt[LIMIT_SEALED_SALT_BYTES]; /* sealing: random, new for each value    */
};

/* Who may write the memory that has the sealed bytes, while a call works on it. */
enum seal_memory {
    SEAL_SHARED, /* others too: another process that has it mapped                     */
    SEAL_OWN,    /* nobody: it is this process's alone, and not in use elsewhere in it */
};

/* Seals plain_bytes, 1 or more, into to[sealed_bytes(plain_bytes)], head and all, and returns their
 * CRC32C. The plain bytes do not change meanwhile. */
uint32_t seal_value(struct seal *seal, const uint8_t volume_key[SEAL_KEY_BYTES],
                    const struct seal_block *block, const void *plain, uint32_t plain_bytes,
                    enum seal_memory memory, void *to);

/* Sealed bytes, of which some pieces are to be opened. */
struct seal_sealed {
    const void *from;     /* sealed_bytes(plain_bytes); read are those pieces and nothing else   */
    uint32_t plain_bytes; /* of the value                                                        */
    uint32_t first, end;  /* pieces [first, end): any of sealed_pieces(plain_bytes), or none     */
    enum seal_memory memory;
};

/* Opens pieces of a value into their places of to[plain_bytes]. What its head says is the caller's
 * to read: salt and key_id of the block, plain_bytes. False: a tag did not pass; all of `to` is
 * zeros then. Sealed bytes of SEAL_SHARED may change meanwhile: what passes is what was sealed. */
bool seal_open_pieces(struct seal *seal, const uint8_t volume_key[SEAL_KEY_BYTES],
                      const struct seal_block *block, const struct seal_sealed *sealed,
                      void *to) ICMS_MUST_CHECK;

#endif
