/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/warn.c: what is right, and worth a line of the log all the same. Called by the rules of the
 * daemons' configurations, on the caller's thread.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/conf_int.h"

void conf_warn(struct conf_warnings *warnings, const char *format, ...)
{
    va_list args;

    if (warnings->count == CONF_WARNINGS)
        return;
    va_start(args, format);
    (void)vsnprintf(warnings->text[warnings->count++], sizeof(warnings->text[0]), format, args);
    va_end(args);
}

void conf_warn_wide(struct conf_warnings *warnings, const char *key, const char *address,
                    const char *consequence)
{
    if (conf_address_is_wide(address))
        conf_warn(warnings, "%s: %s can be reached from other machines: %s", key, address,
                  consequence);
}

void conf_warn_http(struct conf_warnings *warnings, const struct conf_http *http)
{
    if (strcmp(http->open, "all") == 0)
        conf_warn_wide(warnings, "http.listen", http->listen,
                       "anybody there can read metrics and status");
    else if (http->certificate[0] == '\0')
        conf_warn_wide(warnings, "http.listen", http->listen,
                       "the token travels in clear text: write certificate and key");
}

/* Models that nobody can ask for: who reaches an open port is on no list of users. */
void conf_warn_models(struct conf_agent *agent)
{
    const struct conf_http *http = &agent->http;

    if (http->listen[0] == '\0' || http->token[0] != '\0' || http->client_ca[0] != '\0')
        return;
    for (uint32_t i = 0; i < agent->model_count; i++) {
        const struct conf_model *model = &agent->models[i];
        const struct volume_spec *volume = conf_agent_volume(agent, model->volume);

        if (volume->user_count + volume->group_count > 0)
            conf_warn(&agent->warnings,
                      "models: requests for '%.60s' get status 400: its volume %s lists users or "
                      "groups, and http has no token: write http.token (icms key gen --type token)",
                      model->name, volume->name);
    }
}

/* Seeds with which no engine begins, as what a file has for none. */
void conf_warn_seeds(struct conf_agent *agent)
{
    for (uint32_t i = 0; i < agent->model_count; i++) {
        const struct conf_model *model = &agent->models[i];
        const char *seed = model->hash_seed;

        if (model->hash != CONF_MODEL_HASH_NONE && strcmp(seed, CONF_HASH_SEED) != 0 &&
            strcmp(seed, "random") != 0 && strspn(seed, "0123456789") != strlen(seed))
            conf_warn(
                &agent->warnings,
                "models: hash_seed of '%.60s' is '%.63s', and PYTHONHASHSEED has digits, or is "
                "random: write what the engines have, or remove it if they have none",
                model->name, seed);
    }
}

/* Volumes that require what no host has. */
void conf_warn_volumes(struct conf_target *target)
{
    bool keys = false, secrets = false;

    for (uint32_t i = 0; i < target->host_count; i++) {
        keys = keys || target->hosts[i].psk_count > 0;
        secrets = secrets || target->hosts[i].secret_count > 0;
    }
    for (uint32_t i = 0; i < target->volume_count; i++) {
        const struct volume_spec *volume = &target->volumes[i];
        bool chap = (volume->require & REQUIRE_CHAP) != 0 && !secrets;

        if (chap || ((volume->require & REQUIRE_TLS) != 0 && !keys))
            conf_warn(&target->warnings,
                      "volumes: '%s' requires %s, and no host has a %s: list %s of hosts, else "
                      "nobody can use it",
                      volume->name, chap ? "chap" : "tls", chap ? "secret" : "key",
                      chap ? "secrets" : "psks");
    }
}

/* A file of a key, and whose it is. */
struct key_file {
    const char *path;
    const struct conf_host *host;
};

static int key_file_order(const void *a, const void *b)
{
    const struct key_file *left = a, *right = b;
    int order = strcmp(left->path, right->path);

    return order != 0 ? order : strcmp(left->host->nqn, right->host->nqn);
}

void conf_warn_shared_keys(struct conf_target *target)
{
    struct key_file *files =
        calloc((size_t)target->host_count * 2 * LIMIT_HOST_KEYS + 1, sizeof(*files));
    size_t count = 0;

    for (uint32_t i = 0; files != NULL && i < target->host_count; i++) {
        const struct conf_host *host = &target->hosts[i];

        for (uint32_t k = 0; k < host->secret_count; k++)
            files[count++] = (struct key_file){host->secrets[k], host};
        for (uint32_t k = 0; k < host->psk_count; k++)
            files[count++] = (struct key_file){host->psks[k], host};
    }
    if (count > 0)
        qsort(files, count, sizeof(*files), key_file_order);
    for (size_t i = 1; i < count; i++)
        if (files[i].host != files[i - 1].host && strcmp(files[i].path, files[i - 1].path) == 0) {
            conf_warn(&target->warnings,
                      "hosts: %.60s and %.60s have the same key %.60s, so each can pass for the "
                      "other: make one for each",
                      files[i - 1].host->nqn, files[i].host->nqn, files[i].path);
            break; /* once for all */
        }
    free(files);
}

/* Says which enclosure of another machine is neither asked for a proof nor reached with TLS, though
 * nobody wrote that it need not be. */
void conf_warn_plain(struct conf_agent *agent)
{
    for (uint32_t i = 0; i < agent->enclosure_count; i++) {
        const struct conf_enclosure *enclosure = &agent->enclosures[i];
        const char *remote = conf_enclosure_remote(enclosure);

        if (enclosure->is_require_written || enclosure->psk[0] != '\0' ||
            enclosure->controller_secret[0] != '\0' || remote == NULL)
            continue;
        conf_warn(&agent->warnings,
                  "enclosures: whoever asks for a proof at %s is taken for the enclosure '%s', and "
                  "nothing is encrypted on the way: write psk or controller_secret; or `require: "
                  "chap` if that is meant",
                  remote, enclosure->name);
        return; /* once for all */
    }
}
