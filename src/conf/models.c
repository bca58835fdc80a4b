/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of an agent's models: names that nobody else has, volumes that there are, states in hex,
 * and hashes of tokens only where keys are made of hashes. Called by rules.c on the caller's
 * thread.
 */
#include "conf/conf_int.h"

#include <string.h>

#include "base/bytes.h"

const struct volume_spec *conf_agent_volume(const struct conf_agent *agent, const char *name)
{
    for (uint32_t i = 0; i < agent->volume_count; i++)
        if (strcmp(agent->volumes[i].name, name) == 0)
            return &agent->volumes[i];
    return NULL;
}

const struct conf_model *conf_agent_model(const struct conf_agent *agent, const char *name)
{
    for (uint32_t i = 0; i < agent->model_count; i++)
        if (strcmp(agent->models[i].name, name) == 0)
            return &agent->models[i];
    return NULL;
}

/* How many digits of hex there are, and nothing else; SIZE_MAX: there is something else. */
static size_t hex_digits(const char *text)
{
    size_t digits = 0;

    while (hex_digit(text[digits]) >= 0)
        digits++;
    return text[digits] == '\0' ? digits : SIZE_MAX;
}

static icms_err model_hash_rules(const struct conf_source *source, const struct conf_node *entry,
                                 struct conf_model *model)
{
    static const char *const with_hash[] = {"hash_seed", "hash_tokens"};

    for (size_t i = 0; i < sizeof(with_hash) / sizeof(with_hash[0]); i++)
        if (model->hash == CONF_MODEL_HASH_NONE && conf_node_get(entry, with_hash[i]) != NULL)
            return conf_fail(source, conf_node_line(entry, with_hash[i]),
                             "models: %s is for models with hash: write hash, too, or remove it",
                             with_hash[i]);
    if (model->hash != CONF_MODEL_HASH_NONE && model->of != CONF_MODEL_HASHES)
        return conf_fail(source, conf_node_line(entry, "hash"),
                         "models: hash is for models of hashes");
    if (model->hash_tokens == 0)
        model->hash_tokens = model->block_tokens;
    if (model->hash != CONF_MODEL_HASH_NONE && model->hash_tokens > CONF_HASH_TOKENS_MAX)
        return conf_fail(
            source, conf_node_line(entry, "block_tokens"),
            "models: block_tokens is more than the %d that are hashed at a time: write "
            "hash_tokens, too",
            CONF_HASH_TOKENS_MAX);
    if (model->block_tokens % model->hash_tokens != 0)
        return conf_fail(source, conf_node_line(entry, "hash_tokens"),
                         "models: block_tokens is no multiple of hash_tokens");
    if (model->hash != CONF_MODEL_HASH_NONE && model->hash_seed[0] == '\0')
        memcpy(model->hash_seed, CONF_HASH_SEED, sizeof(CONF_HASH_SEED));
    return ICMS_OK;
}

icms_err conf_models_rules(const struct conf_source *source, const struct conf_node *map,
                           struct conf_agent *agent)
{
    for (uint32_t i = 0; i < agent->model_count; i++) {
        struct conf_model *model = &agent->models[i];
        const struct conf_node *entry = conf_entry(map, "models", i);
        icms_err err;

        if (conf_agent_model(agent, model->name) != model)
            return conf_fail(source, conf_node_line(entry, "name"),
                             "models: two entries have this name");
        if (conf_agent_volume(agent, model->volume) == NULL)
            return conf_fail(source, conf_node_line(entry, "volume"),
                             "models: there is no volume %s in volumes", model->volume);
        if (hex_digits(model->state) != sizeof(model->state) - 1)
            return conf_fail(
                source, conf_node_line(entry, "state"),
                "models: state has 64 digits of hex, as the engine's adapter tells it");
        if (hex_digits(model->suffix) % 2 != 0)
            return conf_fail(source, conf_node_line(entry, "suffix"),
                             "models: suffix has digits of hex, two a byte");
        if (model->suffix[0] != '\0' && model->of != CONF_MODEL_HASHES)
            return conf_fail(source, conf_node_line(entry, "suffix"),
                             "models: suffix is for models of hashes");
        err = model_hash_rules(source, entry, model);
        if (err != ICMS_OK)
            return err;
    }
    return ICMS_OK;
}
