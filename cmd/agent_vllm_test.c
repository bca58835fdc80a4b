/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hashes of blocks as vLLM makes them. The golden values are those of vLLM 0.32's own functions
 * with CPython 3.11 and cbor2 6, of three blocks of ids that token() makes:
 *
 *   from vllm.utils.hashing import sha256, sha256_cbor
 *   from vllm.v1.core import kv_cache_utils
 *   os.environ["PYTHONHASHSEED"] = seed
 *   kv_cache_utils.init_none_hash(sha256)
 *   last = None
 *   for ids in blocks:
 *       last = kv_cache_utils.hash_block_tokens(sha256, last, ids, None)
 *
 * hashlib.sha256(pickle.dumps((last, tuple(ids), None), protocol=pickle.HIGHEST_PROTOCOL)) makes
 * the same with CPython 3.8 to 3.13.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "agent_vllm.h"

#define BLOCKS 3

#define SEED_23 "aaaaaaaaaaaaaaaaaaaaaaa"
#define SEED_63 /* 31 letters of two bytes, and one */                                             \
    "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4"   \
    "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4"   \
    "\u00e4"                                                                                       \
    "b"

static const struct {
    enum conf_model_hash hash;
    const char *seed;
    uint32_t block_tokens;
    const char *last; /* the third block's, in hex */
} golden[] = {
    {CONF_MODEL_SHA256, "0", 1, "024e1e0c6c17f4ad7c69ebebcb9be7c0fee6c2f314d954a01c6ddcdd87cb7a22"},
    {CONF_MODEL_SHA256, "0", 2, "c09b1809f4ccd1a2f9df543864a21476fae6302e12ec2ddf7a85d799c7e1aa21"},
    {CONF_MODEL_SHA256, "0", 3, "055a36b5ce8e0a526cc12c13398f7a77c54ce589c049dccdd4aa916410f73c3a"},
    {CONF_MODEL_SHA256, "0", 4, "bd3ad57a7ab2aae668b693a12db53502a6785101758defd660923f0907000f3c"},
    {CONF_MODEL_SHA256, "0", 9, "e348aa656021d7c02f597dc79ef212efb7de5fa4f625fb43f6487cc91e0ae9b7"},
    {CONF_MODEL_SHA256, "0", 16,
     "fdbddc682bd0ff83d28d13b501beeedda81edd851f4f941a4d4a1e17f437608b"},
    {CONF_MODEL_SHA256, "0", 23,
     "68d66aa4729755d2ecafc21eca85fede1bec1fc6c393959a82b382a7ad20d502"},
    {CONF_MODEL_SHA256, "0", 24,
     "1e3476e9a9efa02e39a203ff81689a8c459fe83b678cda3f6c4309ef510c73ce"},
    {CONF_MODEL_SHA256, "0", 128,
     "0e106c1949e1c57a5c0dab19738895b5b06e389a389d57293f393bf19ebe9843"},
    {CONF_MODEL_SHA256, "0", 255,
     "4f4ffff2c7940a5097e811b4ca43d859ee5ed475223bc46c6c57b64e60cd1c6d"},
    {CONF_MODEL_SHA256, "0", 256,
     "38ca0ca749470a6bcbf5ae839814d5a3e7fcd5b7237dcb0985ae6d43b2904da1"},
    {CONF_MODEL_SHA256, "0", 4096,
     "b629d11b51cbc4b48e6b4e61d42dab850eccd51e69b37e3937148e45df9af74b"},
    {CONF_MODEL_SHA256, "vllm-none-hash", 16,
     "ab2babfbd5bff347b07e84377a9bb6623eeea02e97e56b253b040a35aa433d49"},
    {CONF_MODEL_SHA256, "4294967295", 16,
     "1e2af6633b9e47d3b182958f81d98d35dea9b434964173f5329f064248f50646"},
    {CONF_MODEL_SHA256, "random", 16,
     "bdc34223b4c699b446bf4586084da7e815549625d2765f5d696ef3b509fc8f49"},
    {CONF_MODEL_SHA256, SEED_23, 16,
     "33dab4f493eced046e92027cf590edbae1b13b0c879a7f1dc3c6ae89a1d86b9e"},
    {CONF_MODEL_SHA256, SEED_23 "a", 16,
     "7b8829c28977493334d4108c10bce8fcf56789cb9881d6401c4e6a34f7ddbc45"},
    {CONF_MODEL_SHA256, SEED_63, 16,
     "bcc0e302f8827e40a4b99b4a8c960dd87b463f138265d7b6d9c3f0de1593a31c"},
    {CONF_MODEL_SHA256_CBOR, "0", 1,
     "ead9879fb88a79ec9b556d6bbd99f66c107930626ceb1cc9a85857607bd4aad5"},
    {CONF_MODEL_SHA256_CBOR, "0", 2,
     "1fb3fba6b61f05613dcfd12778dc361ae7ec8082a103b41a78fc3ae1d767e022"},
    {CONF_MODEL_SHA256_CBOR, "0", 3,
     "f00150e825e0d72bf0bafa46299a7f47fe6dadb4803f45b8e86b8f823b292c39"},
    {CONF_MODEL_SHA256_CBOR, "0", 4,
     "d4f9889a2f5bcff6976f8594471e4470997529d60c97945aecbcc7e1296fa5a2"},
    {CONF_MODEL_SHA256_CBOR, "0", 9,
     "9869e2b99b146d5308a55152fad609e00b3bf31ef147f1abe088701464a6bc63"},
    {CONF_MODEL_SHA256_CBOR, "0", 16,
     "eb13e8bf3aecae0b11c1b00f9c9c8d5bdda5d302866287fc2c4a0e98feb80e22"},
    {CONF_MODEL_SHA256_CBOR, "0", 23,
     "d76cab55e28919b42ccf6f295659905cb4ff13573fc142f623447db42d2f5692"},
    {CONF_MODEL_SHA256_CBOR, "0", 24,
     "92f27a0a06aa3aece028c122b97273caba0d25e9b287ba8b9c8495b01698aaec"},
    {CONF_MODEL_SHA256_CBOR, "0", 128,
     "c266bf6807b467cd8ccd57d70009416b2b89c4dbb6a0a2ca38fecd6e5e051ed8"},
    {CONF_MODEL_SHA256_CBOR, "0", 255,
     "9d06e609005446a482f0af03bbc52779f3abe85c0ea72363066d921b50ede14c"},
    {CONF_MODEL_SHA256_CBOR, "0", 256,
     "85c6924454b9b7a9e2ed5532c6868f1a879e717b1142af865d6ab33c19c5224e"},
    {CONF_MODEL_SHA256_CBOR, "0", 4096,
     "d95c9f46840808ee6aa171de40d5f788294deeba3f55ec69d6d7197a45694a8d"},
    {CONF_MODEL_SHA256_CBOR, "vllm-none-hash", 16,
     "8cee547b046c690433cf2f85394171ddc561e321daf7c4b3685f24c76f1d2c9e"},
    {CONF_MODEL_SHA256_CBOR, "4294967295", 16,
     "6567030a25e6d543aa18d73813e99dd86d0d75a802595911f69a2bd8c9f9d97c"},
    {CONF_MODEL_SHA256_CBOR, "random", 16,
     "0312def4dade0540e3184b1d87f7c8397758e9dc6eca0f5873ca1e5ef7b877c6"},
    {CONF_MODEL_SHA256_CBOR, SEED_23, 16,
     "034307a2bf6c17ca2bd1c97af177c9c08e2257734a7a4673b086fc6432296a08"},
    {CONF_MODEL_SHA256_CBOR, SEED_23 "a", 16,
     "eed229826193adaea49340b9d2fffa178cb81d2ce460fbcdad03bbe1107d2fd8"},
    {CONF_MODEL_SHA256_CBOR, SEED_63, 16,
     "57038d29beee7e91d0414b040f0becb0ce3be5433add444718b1f24c1bbff082"},
};

/* Where a number of either format becomes a byte longer; then numbers of all lengths. */
static uint32_t token(uint32_t i)
{
    static const uint32_t first[] = {0, 1, 23, 24, 255, 256, 65535, 65536, INT32_MAX};

    return i < sizeof(first) / sizeof(first[0]) ? first[i] : i * 2654435761u >> (1 + i % 4 * 8);
}

static void they_are_those_of_vllm(void **state)
{
    static le32 ids[BLOCKS * AGENT_VLLM_TOKENS_MAX];

    for (uint32_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        ids[i] = le32_of(token(i));
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        char hex[2 * AGENT_VLLM_HASH_BYTES + 1];
        struct agent_vllm vllm;

        assert_int_equal(agent_vllm_begin(&vllm, golden[i].hash, golden[i].seed), ICMS_OK);
        for (uint32_t block = 0; block < BLOCKS; block++)
            assert_int_equal(agent_vllm_next(&vllm, ids + block * golden[i].block_tokens,
                                             golden[i].block_tokens),
                             ICMS_OK);
        for (uint32_t j = 0; j < AGENT_VLLM_HASH_BYTES; j++)
            (void)snprintf(hex + 2 * j, 3, "%02x", vllm.last[j]);
        if (strcmp(hex, golden[i].last) != 0)
            fail_msg("row %zu: %s instead of %s", i, hex, golden[i].last);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_are_those_of_vllm),
    };

    return cmocka_run_group_tests_name("agent-vllm", tests, NULL, NULL);
}
