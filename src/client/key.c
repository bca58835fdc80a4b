/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/key.c: keys from chains of blocks and from names. Pure; any thread.
 *
 * The derivation, so that others can do the same. H is SHA-256; L(x) is the length of x as 8 bytes,
 * little-endian, followed by x; numbers are 4 bytes, little-endian.
 *
 *   state[0] = H( L("icms chain v2") L(volume uuid, 16 bytes) L(tenant) L(model) L(weights)
 *                 L(dtype) L(layout) L(block_tokens) L(rank[0..3]) L(ranks[0..3]) L(run_blocks) )
 *   state[n] = H( L("icms block v1") L(state[n - 1]) L(content of block n) )          n = 1, 2, ...
 *   run(n)   = state[m][0 .. 3]     m: the last block up to n with which a run begins: 1, 2, 3, 5,
 *              9, ... while it is not above run_blocks, then each multiple of run_blocks plus 1
 *   digest(n) = state[n]                                                                32 bytes
 *   key(n)   = run(n) || digest(n)[4 .. 15]                                             16 bytes
 *
 *   name:  digest = H( L("icms name v1") L(name) )    key = digest[0 .. 15]
 *
 * The life of a key. The 16 bytes go into rings, NVMe commands, indices and records; the run places
 * them (place/place.h). The digest stays with who puts and gets: a put writes it into the value's
 * trailer (wire/sealed.h), which travels with the value wherever that goes, and a get compares it
 * with the trailer of what came (take.c). Nobody in between needs it.
 *
 * Bytes 0..3 of a digest go into a run and bytes 4..15 into the block's part, so that the key of a
 * run's first block, and of a name, has 128 bits of its digest. The 4 bytes of a run need not tell
 * runs apart: they are a place, one of 65,536 slots of a map.
 */
#include <openssl/evp.h>

#include "base/bytes.h"
#include "client/client_int.h"
#include "place/place.h"

_Static_assert(ICMS_KEY_BYTES == LIMIT_KEY_BYTES && ICMS_DIGEST_BYTES == LIMIT_DIGEST_BYTES &&
                   ICMS_RUN_BYTES == LIMIT_RUN_BYTES,
               "icms.h says what limits.h says");
_Static_assert(sizeof(struct icms_key) == 49 && sizeof(struct icms_chain) == 48,
               "sizes that icms.h tells");

#define KEY_TAG_CHAIN "icms chain v2"
#define KEY_TAG_BLOCK "icms block v1"
#define KEY_TAG_NAME  "icms name v1"

/* One hash under way. It cannot always be had: no memory for 400 bytes, no SHA-256 in the library.
 * Its key has no length then. */
struct key_hash {
    EVP_MD_CTX *context; /* may be NULL                   */
    bool whole;          /* everything was added until now */
};

static void key_hash_add(struct key_hash *hash, const void *data, size_t bytes)
{
    le64 length = le64_of(bytes);

    hash->whole = hash->whole && EVP_DigestUpdate(hash->context, &length, sizeof(length)) == 1 &&
                  (bytes == 0 || EVP_DigestUpdate(hash->context, data, bytes) == 1);
}

static void key_hash_add_text(struct key_hash *hash, const char *text)
{
    key_hash_add(hash, text, text == NULL ? 0 : strlen(text));
}

static void key_hash_add_u32(struct key_hash *hash, uint32_t number)
{
    le32 bytes = le32_of(number);

    key_hash_add(hash, &bytes, sizeof(bytes));
}

static void key_hash_begin(struct key_hash *hash, const char *tag)
{
    hash->context = EVP_MD_CTX_new();
    hash->whole =
        hash->context != NULL && EVP_DigestInit_ex(hash->context, EVP_sha256(), NULL) == 1;
    key_hash_add_text(hash, tag);
}

/* False: there is no hash. */
static bool key_hash_end(struct key_hash *hash, uint8_t out_hash[32])
{
    unsigned bytes = 0;
    bool whole =
        hash->whole && EVP_DigestFinal_ex(hash->context, out_hash, &bytes) == 1 && bytes == 32;

    EVP_MD_CTX_free(hash->context);
    return whole;
}

void icms_chain_init(struct icms_chain *chain, const struct icms_volume *volume,
                     const struct icms_layout *layout)
{
    struct icms_volume_info info;
    struct key_hash hash;

    icms_volume_info(volume, &info);
    key_hash_begin(&hash, KEY_TAG_CHAIN);
    key_hash_add(&hash, info.uuid, sizeof(info.uuid));
    key_hash_add_text(&hash, layout->tenant);
    key_hash_add_text(&hash, layout->model);
    key_hash_add(&hash, layout->weights, layout->weights == NULL ? 0 : layout->weights_bytes);
    key_hash_add_text(&hash, layout->dtype);
    key_hash_add_text(&hash, layout->layout);
    key_hash_add_u32(&hash, layout->block_tokens);
    for (int i = 0; i < 4; i++)
        key_hash_add_u32(&hash, layout->rank[i]);
    for (int i = 0; i < 4; i++)
        key_hash_add_u32(&hash, layout->ranks[i]);
    key_hash_add_u32(&hash, info.run_blocks);
    *chain = (struct icms_chain){.run_blocks = info.run_blocks};
    if (!key_hash_end(&hash, chain->state))
        chain->run_blocks = 0; /* a chain of nothing */
}

void icms_chain_next(struct icms_chain *chain, const void *content, size_t bytes,
                     struct icms_key *out_key)
{
    struct key_hash hash;

    key_hash_begin(&hash, KEY_TAG_BLOCK);
    key_hash_add(&hash, chain->state, sizeof(chain->state));
    key_hash_add(&hash, content, bytes);
    if (!key_hash_end(&hash, chain->state) || chain->run_blocks == 0) {
        chain->run_blocks = 0;
        *out_key = (struct icms_key){.length = 0};
        return;
    }
    if (place_run_begins(chain->blocks, chain->run_blocks))
        memcpy(chain->run, chain->state, sizeof(chain->run));
    chain->blocks++;
    icms_key_from_digest(chain->run, chain->state, out_key);
}

void icms_key_from_digest(const uint8_t run[ICMS_RUN_BYTES],
                          const uint8_t digest[ICMS_DIGEST_BYTES], struct icms_key *out_key)
{
    struct icms_key key = {.length = ICMS_KEY_BYTES};

    memcpy(key.digest, digest, sizeof(key.digest));
    memcpy(key.bytes, digest, sizeof(key.bytes));
    if (run != NULL)
        memcpy(key.bytes, run, ICMS_RUN_BYTES);
    *out_key = key; /* run and digest may lie in it */
}

icms_err icms_key_raw(const void *bytes, size_t length, struct icms_key *out_key)
{
    if (length == 0 || length > ICMS_KEY_BYTES)
        return ICMS_KEY_SIZE;
    *out_key = (struct icms_key){.length = (uint8_t)length};
    memcpy(out_key->bytes, bytes, length);
    return ICMS_OK;
}

void icms_key_from_name(const void *name, size_t bytes, struct icms_key *out_key)
{
    uint8_t digest[ICMS_DIGEST_BYTES];
    struct key_hash hash;

    key_hash_begin(&hash, KEY_TAG_NAME);
    key_hash_add(&hash, name, bytes);
    if (key_hash_end(&hash, digest))
        icms_key_from_digest(NULL, digest, out_key);
    else
        *out_key = (struct icms_key){.length = 0};
}
