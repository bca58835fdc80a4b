/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /v1/prestage of icms-agent: hints from routers and gateways.
 *
 * Called by ctl's HTTP thread.
 */
#include "agent_prestage.h"

#include <stdlib.h>
#include <string.h>

#include "agent_body.h"
#include "agent_page.h"
#include "icms/icms.h"

#define PRESTAGE_DEADLINE_MS     1000
#define PRESTAGE_DEADLINE_MS_MAX 600000

#define STATUS_ACCEPTED 202 /* of HTTP */

static const char *const prestage_members[] = {
    "volume", "keys",   "names", "deadline_ms", "priority", "tier",   "pin_seconds",
    "once",   "cancel", "model", "chain",       "tokens",   "hashes", NULL};

/* What is said of hints that are given. */
static const char *const hint_members[] = {"deadline_ms", "priority", "tier",
                                           "pin_seconds", "once",     NULL};

static icms_err order_read(struct agent_body *body, struct err_why *why,
                           char out_volume[LIMIT_NAME_BYTES], struct agent_hints *out_hints)
{
    const json_t *root = body->root;
    const json_t *tier = json_object_get(root, "tier");
    const json_t *once = json_object_get(root, "once");
    const json_t *cancel = json_object_get(root, "cancel");
    icms_err err = agent_body_volume(root, why, out_volume);
    struct key *keys = NULL;
    bool is_local = false;

    if (err != ICMS_OK)
        return err;
    if (tier != NULL) {
        is_local = json_is_string(tier) && strcmp(json_string_value(tier), "local") == 0;
        if (!is_local && (!json_is_string(tier) || strcmp(json_string_value(tier), "dram") != 0))
            return err_set(why, ICMS_INVALID, "tier: \"dram\" or \"local\"");
    }
    if (once != NULL && !json_is_boolean(once))
        return err_set(why, ICMS_INVALID, "once: true or false");
    if (cancel != NULL && !json_is_boolean(cancel))
        return err_set(why, ICMS_INVALID, "cancel: true or false");
    for (size_t i = 0; json_is_true(cancel) && hint_members[i] != NULL; i++)
        if (json_object_get(root, hint_members[i]) != NULL)
            return err_set(why, ICMS_INVALID, "%s: not with cancel, which takes hints back",
                           hint_members[i]);
    *out_hints = (struct agent_hints){.volume = out_volume,
                                      .deadline_ms = PRESTAGE_DEADLINE_MS,
                                      .tier = is_local ? ICMS_TIER_LOCAL : ICMS_TIER_DRAM,
                                      .once = json_is_true(once),
                                      .cancel = json_is_true(cancel)};
    err = agent_body_number(root, "deadline_ms", 1, PRESTAGE_DEADLINE_MS_MAX, why,
                            &out_hints->deadline_ms);
    if (err == ICMS_OK)
        err = agent_body_number(root, "priority", 0, ICMS_PRIORITY_MAX, why, &out_hints->priority);
    if (err == ICMS_OK)
        err =
            agent_body_number(root, "pin_seconds", 0, ICMS_PIN_SECONDS_MAX, why, &out_hints->pin_s);
    if (err == ICMS_OK)
        err = agent_body_keys(body, why, &keys, &out_hints->count);
    if (err == ICMS_OK)
        out_hints->keys = keys;
    return err;
}

icms_err agent_prestage_read(const char *body, size_t bytes, const struct conf_agent *conf,
                             uint64_t volumes, struct err_why *why,
                             char out_volume[LIMIT_NAME_BYTES], struct agent_hints *out_hints)
{
    struct agent_body read;
    icms_err err = agent_body_read(body, bytes, conf, volumes, prestage_members, why, &read);

    if (err == ICMS_OK)
        err = order_read(&read, why, out_volume, out_hints);
    agent_body_end(&read);
    return err;
}

static void answer_write(void *arg, struct json *json)
{
    const struct agent_hints *hints = arg;

    json_put_object(json, NULL);
    json_put_uint(json, "hints", hints->count);
    json_put_end(json);
}

unsigned agent_prestage_post(void *arg, const char *body, size_t bytes, struct ctl_page *page)
{
    const struct agent_page *own = arg;
    struct agent_hints hints = {0};
    struct err_why why = {""};
    char volume[LIMIT_NAME_BYTES];
    icms_err err =
        agent_prestage_read(body, bytes, own->conf, agent_body_volumes(own), &why, volume, &hints);

    if (err == ICMS_OK) {
        hints.user = agent_body_user(own);
        err = agent_prestage(own->agent, &hints, &why);
        free((void *)(uintptr_t)hints.keys);
    }
    if (err != ICMS_OK)
        return agent_body_refuse(page, err, &why);
    ctl_json(page, answer_write, &hints);
    return STATUS_ACCEPTED;
}
