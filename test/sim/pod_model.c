/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was stored. A value follows from volume, key and version alone, so nothing has to be kept to
 * judge what is read: the first bytes name the version, the rest follows.
 *
 * Values are larger than a page and smaller, and never the same size for long. Keys are of every
 * length; most have 16 bytes and belong to runs, as those of engines do.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "pod.h"

#define MODEL_RUN_BLOCKS 8

/* A version: below its number, above the generation of the volume. */
#define MODEL_VERSION_BITS 20

/* Keys of the storm, by volume: more than fits on flash, most of them seldom asked for. */
static const uint32_t model_storm_keys[POD_VOLUMES] = {800, 400, 700};

static uint64_t model_seed(const struct pod_world *world, uint32_t key, uint32_t version)
{
    return hash64_mix(hash64_mix(world->options.seed ^ (uint64_t)key << 32) ^ version);
}

uint32_t pod_model_key_new(struct pod_world *world, uint32_t volume, uint64_t run)
{
    struct pod_model *model = &world->model;
    uint32_t number = model->count++;
    struct pod_key *key;
    uint64_t half;

    check(number < POD_KEYS_MAX);
    key = &model->keys[number];
    *key = (struct pod_key){.volume = (uint8_t)volume};
    half = hash64_mix(run + 1);
    memcpy(key->key.bytes, &half, sizeof(half));
    half = hash64_mix(number + 1);
    memcpy(key->key.bytes + 8, &half, sizeof(half));
    key->key.length = LIMIT_KEY_BYTES;
    memcpy(key->digest, key->key.bytes, sizeof(key->key.bytes));
    memcpy(key->digest + sizeof(key->key.bytes), &number, sizeof(number));
    return number;
}

void pod_model_init(struct pod_world *world)
{
    struct pod_model *model = &world->model;

    for (uint32_t volume = 0; volume < POD_VOLUMES; volume++) {
        uint32_t keys = model_storm_keys[volume] * world->target_count / POD_TARGETS;

        for (uint32_t i = 0; i < keys; i++) {
            uint64_t run = (uint64_t)volume << 32 | i / MODEL_RUN_BLOCKS;
            uint32_t number = pod_model_key_new(world, volume, run);
            struct pod_key *key = &model->keys[number];

            key->hot = i % 20 == 0;
            if (i % 16 == 15) { /* one of a foreign host: short, and unique by its first bytes */
                uint8_t length = (uint8_t)(2 + number % 14);

                memset(&key->key, 0, sizeof(key->key));
                for (uint8_t b = 0; b < length; b++)
                    key->key.bytes[b] = (uint8_t)(number >> (8 * (b % 2)));
                key->key.length = length;
            }
        }
    }
    model->storm_count = model->count;
}

uint32_t pod_model_put(struct pod_world *world, uint32_t key, uint32_t generation)
{
    check(key < world->model.count);
    check(world->model.keys[key].versions < (1u << MODEL_VERSION_BITS) - 1);
    return generation << MODEL_VERSION_BITS | ++world->model.keys[key].versions;
}

uint32_t pod_model_generation(uint32_t version)
{
    return version >> MODEL_VERSION_BITS;
}

uint32_t pod_model_bytes(const struct pod_world *world, uint32_t key, uint32_t version)
{
    uint64_t most = world->volumes[world->model.keys[key].volume].value_bytes_max;
    uint64_t seed = model_seed(world, key, version);

    switch (seed % 8) {
    case 0:
        return (uint32_t)most;
    case 1:
        return (uint32_t)(16 + (seed >> 8) % 64);
    default:
        return (uint32_t)(most / 4 + (seed >> 8) % (most * 3 / 4));
    }
}

void pod_model_fill(const struct pod_world *world, uint32_t key, uint32_t version, uint8_t *out)
{
    uint32_t bytes = pod_model_bytes(world, key, version);
    uint64_t seed = model_seed(world, key, version);
    le32 words[4] = {le32_of(version), le32_of(key), le32_of(bytes), le32_of((uint32_t)seed)};

    memcpy(out, words, sizeof(words));
    for (uint32_t at = sizeof(words); at < bytes; at += 8) {
        uint64_t word = hash64_mix(seed + at);

        memcpy(out + at, &word, u64_min(sizeof(word), bytes - at));
    }
}

uint32_t pod_model_version(const struct pod_world *world, uint32_t key, const uint8_t *value,
                           uint32_t bytes)
{
    static uint8_t should[POD_STAGE_BYTES];
    le32 first;
    uint32_t version;

    if (bytes < 16)
        return 0;
    memcpy(&first, value, sizeof(first));
    version = le32_get(first);
    if (version == 0 ||
        (version & ((1u << MODEL_VERSION_BITS) - 1)) > world->model.keys[key].versions ||
        bytes != pod_model_bytes(world, key, version))
        return 0;
    pod_model_fill(world, key, version, should);
    return memcmp(should, value, bytes) == 0 ? version : 0;
}
