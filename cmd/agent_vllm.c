/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_vllm.c: see agent_vllm.h.
 */
#include "agent_vllm.h"

#include <string.h>

#include "base/check.h"
#include "crypt/hkdf.h"

#define ID_BYTES_MAX   5  /* in both formats                                             */
#define REST_BYTES_MAX 64 /* pickle: 11 in front, 35 of a hash, 7 around ids and behind  */
#define TEXT_BYTES_MAX (CONF_HASH_SEED_BYTES + 16)

_Static_assert(AGENT_VLLM_TOKENS_MAX *ID_BYTES_MAX + REST_BYTES_MAX < 65536,
               "a frame of pickle ends at 64 KiB");
_Static_assert(CONF_HASH_SEED_BYTES <= 256, "a length of one byte");

/* Opcodes of pickle. */
enum {
    PICKLE_MARK = '(',
    PICKLE_STOP = '.',
    PICKLE_SHORT_BINBYTES = 'C',
    PICKLE_BININT = 'J',
    PICKLE_BININT1 = 'K',
    PICKLE_BININT2 = 'M',
    PICKLE_NONE = 'N',
    PICKLE_TUPLE = 't',
    PICKLE_PROTO = 0x80,
    PICKLE_TUPLE1 = 0x85, /* 2 and 3 follow */
    PICKLE_SHORT_BINUNICODE = 0x8c,
    PICKLE_MEMOIZE = 0x94,
    PICKLE_FRAME = 0x95,
};

#define PICKLE_PROTOCOL    5
#define PICKLE_FRAME_BYTES 8 /* of its length */

/* Major types of CBOR, in the upper three bits. */
enum {
    CBOR_UINT = 0x00,
    CBOR_BYTES = 0x40,
    CBOR_TEXT = 0x60,
    CBOR_ARRAY = 0x80,
    CBOR_NULL = 0xf6,
};

/* A serialized object. */
struct object {
    uint8_t *bytes; /* room for the largest one */
    size_t count;
};

static void put(struct object *object, unsigned byte)
{
    object->bytes[object->count++] = (uint8_t)byte;
}

static void put_bytes(struct object *object, const void *bytes, size_t count)
{
    memcpy(object->bytes + object->count, bytes, count);
    object->count += count;
}

static void put_le(struct object *object, uint64_t number, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        put(object, number >> 8 * i & 255);
}

static void put_be(struct object *object, uint64_t number, unsigned bytes)
{
    for (unsigned i = bytes; i > 0; i--)
        put(object, number >> 8 * (i - 1) & 255);
}

/* ---- pickle --------------------------------------------------------------------------------- */

static void pickle_begin(struct object *object)
{
    put(object, PICKLE_PROTO);
    put(object, PICKLE_PROTOCOL);
    put(object, PICKLE_FRAME);
    put_le(object, 0, PICKLE_FRAME_BYTES); /* pickle_end writes it */
}

static void pickle_end(struct object *object)
{
    struct object length = {object->bytes + 3, 0};

    put(object, PICKLE_STOP);
    put_le(&length, object->count - 3 - PICKLE_FRAME_BYTES, PICKLE_FRAME_BYTES);
}

static void pickle_text(struct object *object, const char *text)
{
    pickle_begin(object);
    put(object, PICKLE_SHORT_BINUNICODE);
    put(object, (unsigned)strlen(text));
    put_bytes(object, text, strlen(text));
    put(object, PICKLE_MEMOIZE);
    pickle_end(object);
}

static void pickle_id(struct object *object, uint32_t id)
{
    unsigned bytes = id < 1 << 8 ? 1 : id < 1 << 16 ? 2 : 4;

    put(object, bytes == 1 ? PICKLE_BININT1 : bytes == 2 ? PICKLE_BININT2 : PICKLE_BININT);
    put_le(object, id, bytes);
}

static void pickle_block(struct object *object, const uint8_t parent[AGENT_VLLM_HASH_BYTES],
                         const le32 *ids, uint32_t count)
{
    pickle_begin(object);
    put(object, PICKLE_SHORT_BINBYTES);
    put(object, AGENT_VLLM_HASH_BYTES);
    put_bytes(object, parent, AGENT_VLLM_HASH_BYTES);
    put(object, PICKLE_MEMOIZE);
    if (count > 3)
        put(object, PICKLE_MARK);
    for (uint32_t i = 0; i < count; i++)
        pickle_id(object, le32_get(ids[i]));
    put(object, count > 3 ? PICKLE_TUPLE : PICKLE_TUPLE1 + count - 1);
    put(object, PICKLE_MEMOIZE);
    put(object, PICKLE_NONE);
    put(object, PICKLE_TUPLE1 + 2);
    put(object, PICKLE_MEMOIZE);
    pickle_end(object);
}

/* ---- CBOR ----------------------------------------------------------------------------------- */

/* A major type and a number in the fewest bytes. */
static void cbor_head(struct object *object, unsigned type, uint32_t number)
{
    if (number < 24) {
        put(object, type | number);
    } else if (number < 1 << 8) {
        put(object, type | 24);
        put(object, number);
    } else if (number < 1 << 16) {
        put(object, type | 25);
        put_be(object, number, 2);
    } else {
        put(object, type | 26);
        put_be(object, number, 4);
    }
}

static void cbor_text(struct object *object, const char *text)
{
    cbor_head(object, CBOR_TEXT, (uint32_t)strlen(text));
    put_bytes(object, text, strlen(text));
}

static void cbor_block(struct object *object, const uint8_t parent[AGENT_VLLM_HASH_BYTES],
                       const le32 *ids, uint32_t count)
{
    cbor_head(object, CBOR_ARRAY, 3);
    cbor_head(object, CBOR_BYTES, AGENT_VLLM_HASH_BYTES);
    put_bytes(object, parent, AGENT_VLLM_HASH_BYTES);
    cbor_head(object, CBOR_ARRAY, count);
    for (uint32_t i = 0; i < count; i++)
        cbor_head(object, CBOR_UINT, le32_get(ids[i]));
    put(object, CBOR_NULL);
}

/* ---- hashes --------------------------------------------------------------------------------- */

icms_err agent_vllm_begin(struct agent_vllm *vllm, enum conf_model_hash hash, const char *seed)
{
    uint8_t bytes[TEXT_BYTES_MAX];
    struct object object = {bytes, 0};

    check(hash == CONF_MODEL_SHA256 || hash == CONF_MODEL_SHA256_CBOR);
    check(strlen(seed) < CONF_HASH_SEED_BYTES);
    vllm->hash = hash;
    if (hash == CONF_MODEL_SHA256)
        pickle_text(&object, seed);
    else
        cbor_text(&object, seed);
    return crypt_sha256(object.bytes, object.count, vllm->last);
}

icms_err agent_vllm_next(struct agent_vllm *vllm, const le32 *ids, uint32_t count)
{
    uint8_t bytes[AGENT_VLLM_TOKENS_MAX * ID_BYTES_MAX + REST_BYTES_MAX];
    struct object object = {bytes, 0};

    check(count >= 1 && count <= AGENT_VLLM_TOKENS_MAX);
    if (vllm->hash == CONF_MODEL_SHA256)
        pickle_block(&object, vllm->last, ids, count);
    else
        cbor_block(&object, vllm->last, ids, count);
    return crypt_sha256(object.bytes, object.count, vllm->last);
}
