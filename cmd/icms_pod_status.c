/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_pod_status.c: icms pod status and reload: what the agent of this machine, and the
 * others, make of the file of the map.
 */
#include <curl/curl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conf/pod_file.h"
#include "icms_pod.h"
#include "icms_status.h"
#include "loop/loop.h"
#include "status_place.h"

/* How long reload waits for the agent without --deadline, and how often it asks. */
#define POD_RELOAD_MS 10000
#define POD_ASK_MS    100

/* How long an agent may take to see a file that changed: two looks, and some. */
#define POD_SEEN_MS (3 * CONF_POD_FILE_LOOK_MS)

/* ---- the agent ------------------------------------------------------------------------------ */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}

static uint32_t agent_epoch_of(const json_t *root)
{
    return (uint32_t)json_integer_value(json_object_get(root, "epoch"));
}

/* What the agent says of an enclosure; NULL: nothing. */
static const json_t *agent_enclosure(const json_t *root, const char *name)
{
    return status_entry(root, "enclosures", "name", name);
}

static void difference_add(json_t *list, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void difference_add(json_t *list, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)json_array_append_new(list, json_string(text));
}

/* What a text of the file is at the agent, where that tells it. */
static void text_compare(json_t *list, const char *name, const char *what, const char *used,
                         const char *is)
{
    if (used[0] != '\0' && strcmp(used, is) != 0)
        difference_add(list, "%s: its %s is %s for the agent, %s in the file", name, what, used,
                       is);
}

/* A DNS name says nothing of the address that is in use. */
static void addresses_compare(json_t *list, const struct conf_enclosure *is, const json_t *known)
{
    size_t used = json_array_size(json_object_get(known, "links"));
    char address[LIMIT_ADDRESS_BYTES];
    struct err_why why;
    struct loop_addr addr;

    if (used == 0)
        return;
    if (used != is->address_count)
        difference_add(list, "%s: it has %zu addresses for the agent, %u in the file", is->name,
                       used, is->address_count);
    for (uint32_t k = 0; k < is->address_count; k++)
        if (loop_addr_parse(is->address[k], &why, &addr) == ICMS_OK &&
            status_entry(known, "links", "address",
                         loop_addr_format(&addr, address, sizeof(address))) == NULL)
            difference_add(list, "%s: its address %s is not one that the agent uses", is->name,
                           address);
}

static void weight_compare(json_t *list, const char *name, const char *what, const char *used,
                           double is)
{
    double value = strtod(used, NULL);

    if (value < is || value > is)
        difference_add(list, "%s: its %s is %.8g for the agent, %.8g in the file", name, what,
                       value, is);
}

/* The values of an enclosure. */
static void values_compare(json_t *list, const struct conf_enclosure *is, const json_t *known)
{
    const char *weight = text_of(known, "weight");
    char uuid[UUID_TEXT_BYTES];

    text_compare(list, is->name, "state", text_of(known, "pod_state"),
                 conf_enclosure_state_name((enum conf_enclosure_state)is->state));
    if (weight[0] != '\0') {
        weight_compare(list, is->name, "weight", weight, is->weight);
        weight_compare(list, is->name, "former weight", text_of(known, "former_weight"),
                       is->former_weight);
    }
    text_compare(list, is->name, "uuid", text_of(known, "uuid"), uuid_format(&is->uuid, uuid));
    text_compare(list, is->name, "nqn", text_of(known, "nqn"), is->nqn);
    addresses_compare(list, is, known);
}

/* An enclosure whose target has a later map than the agent. */
static void epochs_there_compare(json_t *list, const json_t *root)
{
    const json_t *enclosure;
    size_t at;

    json_array_foreach(json_object_get(root, "enclosures"), at, enclosure)
    {
        json_int_t there = json_integer_value(json_object_get(enclosure, "epoch_there"));

        if (there > (json_int_t)agent_epoch_of(root))
            difference_add(list,
                           "the agent uses epoch %u, the target of %s epoch %lld: the map of "
                           "this machine is old",
                           agent_epoch_of(root), text_of(enclosure, "name"), (long long)there);
    }
}

static void epoch_compare(json_t *list, const struct conf_pod *map, uint32_t epoch)
{
    if (epoch == 0)
        difference_add(list, "the agent has no pod map: it lists its enclosures itself");
    else if (epoch != map->epoch)
        difference_add(list, "the agent uses epoch %u, the file has %u%s", epoch, map->epoch,
                       epoch > map->epoch ? ": the file is too old"
                                          : ": see the log of icms-agent when that stays so");
}

/* Volumes that the agent serves. What its own file does not list it does not know. */
static void volumes_compare(json_t *list, const struct conf_pod *map, const json_t *root)
{
    char uuid[UUID_TEXT_BYTES];

    for (uint32_t i = 0; i < map->volume_count; i++) {
        const struct conf_pod_volume *is = &map->volumes[i];
        const json_t *known = status_entry(root, "volumes", "name", is->name);
        const char *used = text_of(known, "uuid");

        if (used[0] != '\0' && strcmp(used, uuid_format(&is->uuid, uuid)) != 0)
            difference_add(list, "volume %s: generation %lld at the agent, %u in the file",
                           is->name,
                           (long long)json_integer_value(json_object_get(known, "generation")),
                           is->generation);
    }
}

/* Where the agent does not have what the file says. */
static json_t *differences(const struct conf_pod *map, const json_t *root)
{
    json_t *list = json_array();
    const json_t *enclosure;
    size_t at;

    if (text_of(root, "pod")[0] != '\0' && strcmp(text_of(root, "pod"), map->name) != 0)
        difference_add(list, "the agent uses the map of pod %s, the file is that of pod %s",
                       text_of(root, "pod"), map->name);
    epoch_compare(list, map, agent_epoch_of(root));
    epochs_there_compare(list, root);
    for (uint32_t i = 0; i < map->enclosure_count; i++) {
        const struct conf_enclosure *is = &map->enclosures[i];
        const json_t *known = agent_enclosure(root, is->name);

        if (is->state == CONF_ENCLOSURE_OUT && known != NULL)
            difference_add(list, "%s: it is out in the file, and the agent uses it", is->name);
        else if (is->state == CONF_ENCLOSURE_OUT)
            continue;
        else if (known == NULL)
            difference_add(list, "%s: the agent does not know it", is->name);
        else
            values_compare(list, is, known);
    }
    volumes_compare(list, map, root);
    json_array_foreach(json_object_get(root, "enclosures"), at, enclosure)
    {
        uint32_t i = 0;

        while (i < map->enclosure_count &&
               strcmp(map->enclosures[i].name, text_of(enclosure, "name")) != 0)
            i++;
        if (i == map->enclosure_count)
            difference_add(list, "%s: the agent has it, the file does not",
                           text_of(enclosure, "name"));
    }
    return list;
}

/* ---- status --------------------------------------------------------------------------------- */

/* "-": the agent's own file does not list it. */
static void volumes_text(const struct conf_pod *map, const json_t *root)
{
    if (map->volume_count > 0)
        (void)printf("\n%-20s %11s %9s %10s %-9s %s\n", "VOLUME", "GENERATION", "AT AGENT",
                     "RUN BLOCKS", "ENCRYPTED", "UUID");
    for (uint32_t i = 0; i < map->volume_count; i++) {
        const struct conf_pod_volume *is = &map->volumes[i];
        const json_t *known = root == NULL ? NULL : status_entry(root, "volumes", "name", is->name);
        char uuid[UUID_TEXT_BYTES], used[24] = "-";

        if (known != NULL && text_of(known, "uuid")[0] != '\0')
            (void)snprintf(used, sizeof(used), "%lld",
                           (long long)json_integer_value(json_object_get(known, "generation")));
        (void)printf("%-20s %11u %9s %10u %-9s %s\n", is->name, is->generation, used,
                     is->run_blocks, is->encrypted ? "yes" : "no", uuid_format(&is->uuid, uuid));
    }
}

/* The links of enclosures that have several, as the agent of this machine sees them. */
static void links_text(const struct conf_pod *map, const json_t *root)
{
    char error[STATUS_ERROR_BYTES];
    bool is_first = true;
    const json_t *link;
    size_t at;

    for (uint32_t i = 0; i < map->enclosure_count; i++) {
        const char *name = map->enclosures[i].name;
        const json_t *links = json_object_get(agent_enclosure(root, name), "links");

        if (json_array_size(links) < 2)
            continue;
        if (is_first)
            (void)printf("\n%-20s %-28s %-11s %9s %12s %s\n", "ENCLOSURE", "LINK", "HEALTH",
                         "IN FLIGHT", "COMMANDS", "LAST ERROR");
        is_first = false;
        json_array_foreach(links, at, link)
        {
            (void)printf("%-20s %-28s %-11s %9lld %12lld %s\n", name, text_of(link, "address"),
                         text_of(link, "state"),
                         (long long)json_integer_value(json_object_get(link, "in_flight")),
                         (long long)json_integer_value(json_object_get(link, "commands")),
                         status_error(link, error));
        }
    }
}

/* What status found. */
struct found {
    const json_t *root; /* of the agent; NULL: it does not answer */
    json_t *differ, *asked, *agents;
};

/* "none": not since its start. */
static const char *last_read(const json_t *target, char age[STATUS_AGE_TEXT])
{
    const json_t *since = json_object_get(target, "last_load_age_seconds");

    return json_is_null(since) ? "none" : status_age(since, age);
}

static void pod_text(const struct pod *pod, const struct found *found)
{
    const struct conf_pod *map = pod->before;
    const json_t *root = found->root;
    char error[STATUS_ERROR_BYTES], epoch[STATUS_EPOCH_TEXT], age[STATUS_AGE_TEXT];
    const json_t *line;
    size_t at;

    (void)printf("pod %s: epoch %u in %s", map->name, map->epoch, pod->path);
    if (root != NULL)
        (void)printf(", epoch %u at %s", agent_epoch_of(root), text_of(root, "name"));
    (void)printf("\n\n%-20s %-28s %-9s %8s %7s %-11s %10s %9s  %s\n", "ENCLOSURE", "ADDRESS",
                 "STATE", "WEIGHT", "SHARE", "HEALTH", "EPOCH", "LAST READ", "LAST ERROR");
    for (uint32_t i = 0; i < map->enclosure_count; i++) {
        const struct conf_enclosure *is = &map->enclosures[i];
        const json_t *known = agent_enclosure(root, is->name);
        const json_t *target = json_object_get(pod_asked_of(found->asked, is->name), "status");

        (void)printf(
            "%-20s %-28s %-9s %8.8g %6.1f%% %-11s %10s %9s  %s\n", is->name, is->address[0],
            conf_enclosure_state_name((enum conf_enclosure_state)is->state), is->weight,
            100 * conf_pod_share(map, i), status_text(known, "state"), status_epoch(target, epoch),
            last_read(target, age), status_error(known, error));
        for (uint32_t k = 1; k < is->address_count; k++)
            (void)printf("%-20s %s\n", "", is->address[k]);
    }
    for (uint32_t i = 0; i < map->enclosure_count; i++)
        if (map->enclosures[i].former_weight > 0)
            (void)printf("\n%s: its weight changes from %.8g to %.8g: settle it when "
                         "icms_agent_former_found_total of the agents does not rise any more\n",
                         map->enclosures[i].name, map->enclosures[i].former_weight,
                         map->enclosures[i].weight);
    for (uint32_t i = 0; i < map->enclosure_count; i++)
        if (map->enclosures[i].state == CONF_ENCLOSURE_JOINING)
            (void)printf("\n%s: it is joining: settle it when icms_agent_former_found_total of the "
                         "agents does not rise any more\n",
                         map->enclosures[i].name);
    links_text(map, root);
    pod_asked_text(found->asked, found->agents, map);
    volumes_text(map, root);
    json_array_foreach(found->differ, at, line)(void)
        printf("%s%s\n", at == 0 ? "\n" : "", json_string_value(line));
}

/* What the target of an enclosure says, by its http or where the operator named it, and why its
 * http says nothing; neither: it was not asked. */
static void target_json(const json_t *asked, json_t *enclosure)
{
    const char *name = text_of(enclosure, "name");
    json_t *target = json_copy(json_object_get(pod_asked_of(asked, name), "status"));
    const json_t *entry;
    size_t i;

    (void)json_object_del(target, "hosts");
    if (target != NULL)
        (void)json_object_set_new(enclosure, "target", target);
    json_array_foreach(asked, i, entry)
    {
        if (strcmp(text_of(entry, "enclosure"), name) == 0 &&
            json_object_get(entry, "error") != NULL)
            (void)json_object_set(enclosure, "error", json_object_get(entry, "error"));
    }
}

static void pod_json(const struct pod *pod, const struct found *found)
{
    const json_t *root = found->root;
    json_t *agent = root == NULL ? json_null()
                                 : json_pack("{s:s, s:I}", "name", text_of(root, "name"), "epoch",
                                             (json_int_t)agent_epoch_of(root));
    size_t at, named = (size_t)pod->cli->argc - 1;
    json_t *list = pod_enclosures_json(pod->before), *enclosure;

    json_array_foreach(list, at, enclosure)
    {
        const json_t *known = agent_enclosure(root, text_of(enclosure, "name"));

        (void)json_object_set_new(enclosure, "health", json_string(text_of(known, "state")));
        (void)json_object_set_new(enclosure, "last_error",
                                  json_string(text_of(known, "last_error")));
        if (json_object_get(known, "links") != NULL)
            (void)json_object_set(enclosure, "links", json_object_get(known, "links"));
        if (json_object_get(known, "last_error_age_seconds") != NULL)
            (void)json_object_set(enclosure, "last_error_age_seconds",
                                  json_object_get(known, "last_error_age_seconds"));
        target_json(found->asked, enclosure);
    }
    cli_json("{s:s, s:s, s:I, s:o, s:o, s:o, s:O, s:O, s:o}", "file", pod->path, "pod",
             pod->before->name, "epoch", (json_int_t)pod->before->epoch, "agent", agent,
             "enclosures", list, "volumes", pod_volumes_json(pod->before), "differences",
             found->differ, "agents", found->agents, "asked",
             pod_asked_json(found->asked, json_array_size(found->asked) - named));
}

static bool is_all_up(const struct conf_pod *map, const json_t *root)
{
    for (uint32_t i = 0; i < map->enclosure_count; i++)
        if (map->enclosures[i].state != CONF_ENCLOSURE_OUT &&
            strcmp(text_of(agent_enclosure(root, map->enclosures[i].name), "state"), "up") != 0)
            return false;
    return true;
}

/* Whether there is anybody to ask but the agent of this machine. */
static bool are_others_asked(const struct pod *pod)
{
    bool are_any = pod->cli->argc > 1;

    for (uint32_t i = 0; i < pod->before->enclosure_count; i++)
        are_any = are_any || pod_is_asked(&pod->before->enclosures[i]);
    return are_any;
}

/* status: the exit status where the agent did not answer, which was said. */
static int pod_show(struct pod *pod, const struct status_proof *proof, const json_t *root,
                    int status)
{
    const struct cli *cli = pod->cli;
    const struct conf_pod *map = pod->before;
    uint32_t timeout_ms = cli->deadline_ms != 0 ? cli->deadline_ms : POD_STATUS_MS;
    struct found found = {.root = root};

    found.asked = pod_ask(map, cli->argv + 1, (size_t)cli->argc - 1, proof, timeout_ms);
    found.agents = pod_agents(found.asked, root, map);
    found.differ = root != NULL ? differences(map, root) : json_array();
    if (root == NULL)
        difference_add(found.differ, "the agent of this machine does not answer");
    if (text_of(root, "map_refused")[0] != '\0')
        difference_add(found.differ, "the agent does not use the map of its file: %s",
                       text_of(root, "map_refused"));
    if (cli->json)
        pod_json(pod, &found);
    else if (!cli->quiet)
        pod_text(pod, &found);
    if (root != NULL)
        status = json_array_size(found.differ) == 0 && is_all_up(map, root) &&
                         pod_asked_is_well(found.asked, found.agents, map)
                     ? CLI_DONE
                     : CLI_MISSED;
    json_decref(found.differ);
    json_decref(found.agents);
    json_decref(found.asked);
    return status;
}

int pod_status(struct pod *pod)
{
    struct cli *cli = pod->cli;
    struct status_proof proof = {.token = NULL};
    struct err_why why = {""};
    icms_err err = conf_pod_read(pod->path, &why, pod->before);
    json_t *root = NULL;
    int status;

    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s", why.text);
    if (status_proof_read(&proof, cli->token, cli->ca, cli->cert, cli->cert_key, &why) != ICMS_OK) {
        (void)cli_fail(cli, ICMS_CONFIG, "%s", why.text);
        return CLI_USAGE;
    }
    status = cli_open_tier(cli);
    if (status < 0)
        root = cli_ask(cli, false, NULL, &status);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        status = cli_fail(cli, ICMS_NO_MEMORY, "libcurl does not start");
    else if (root != NULL || are_others_asked(pod))
        status = pod_show(pod, &proof, root, status);
    curl_global_cleanup();
    json_decref(root);
    cli_close(cli);
    status_proof_fini(&proof);
    return status;
}

/* ---- reload --------------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* What the agent answered, that uses this epoch, is what the file says, or it fails. */
static int reload_answer(const struct pod *pod, const char *name, const json_t *differ)
{
    const struct cli *cli = pod->cli;
    const struct conf_pod *map = pod->after;
    size_t count = json_array_size(differ);

    if (count > 0)
        return cli_fail(cli, ICMS_CONFIG,
                        "agent %s uses epoch %u with other contents than %s (%s%s): raise the "
                        "epoch of the file",
                        name, map->epoch, pod->path, json_string_value(json_array_get(differ, 0)),
                        count > 1 ? ", and more" : "");
    if (cli->json)
        cli_json("{s:s, s:s, s:I}", "file", pod->path, "agent", name, "epoch",
                 (json_int_t)map->epoch);
    else if (!cli->quiet)
        (void)printf("agent %s: epoch %u is in use\n", name, map->epoch);
    return CLI_DONE;
}

/* It uses another epoch. */
static int reload_failed(const struct pod *pod, const json_t *root)
{
    uint32_t used = agent_epoch_of(root), epoch = pod->after->epoch;
    const char *refused = text_of(root, "map_refused");

    return cli_fail(pod->cli, ICMS_CONFIG, "agent %s uses epoch %u, not epoch %u of %s: %s",
                    text_of(root, "name"), used, epoch, pod->path,
                    used == 0            ? "it has no pod map"
                    : used > epoch       ? "the file is too old"
                    : refused[0] != '\0' ? refused
                                         : "its log says why");
}

/* Whether the last answer was given; *out_status: which. is_seen: the agent had the time to see the
 * file as it is now; is_late: nothing more is waited for. */
static bool reload_over(const struct pod *pod, const json_t *root, bool is_seen, bool is_late,
                        int *out_status)
{
    uint32_t used = agent_epoch_of(root), epoch = pod->after->epoch;
    bool is_refused = text_of(root, "map_refused")[0] != '\0';
    json_t *differ;

    if (used != epoch) {
        if (used < epoch && used != 0 && !is_late)
            return false;
        *out_status = reload_failed(pod, root);
        return true;
    }
    differ = differences(pod->after, root);
    if (json_array_size(differ) == 0 && (is_refused || !is_seen) && !is_late) {
        json_decref(differ); /* what it refuses may be the file of before, or is not seen yet */
        return false;
    }
    if (json_array_size(differ) == 0 && is_refused)
        *out_status = cli_fail(pod->cli, ICMS_CONFIG,
                               "agent %s uses epoch %u, and not the map of its file: %s",
                               text_of(root, "name"), used, text_of(root, "map_refused"));
    else
        *out_status = reload_answer(pod, text_of(root, "name"), differ);
    json_decref(differ);
    return true;
}

/* Asks the agent until it uses the epoch, or the time is over. An epoch that it takes while it is
 * asked it has from the file; one that it had before, the file may have with other contents. */
static int reload_wait(const struct pod *pod)
{
    const struct cli *cli = pod->cli;
    uint64_t began_ms = now_ms();
    uint64_t until_ms = began_ms + (cli->deadline_ms != 0 ? cli->deadline_ms : POD_RELOAD_MS);
    struct timespec pause = {.tv_nsec = POD_ASK_MS * 1000000L};
    bool is_seen = false, is_over;
    int status = CLI_MISSED;

    do {
        uint64_t asked_ms = now_ms();
        json_t *root = cli_ask(cli, false, NULL, &status);

        if (root == NULL)
            return status;
        is_seen = is_seen || agent_epoch_of(root) < pod->after->epoch ||
                  asked_ms >= began_ms + POD_SEEN_MS;
        is_over = reload_over(pod, root, is_seen, asked_ms >= until_ms, &status);
        json_decref(root);
        if (!is_over)
            (void)nanosleep(&pause, NULL);
    } while (!is_over);
    return status;
}

int pod_reload(struct pod *pod)
{
    const struct conf_pod_change shrink = {.what = CONF_POD_SHRINK};
    struct cli *cli = pod->cli;
    struct err_why why = {""};
    icms_err err = conf_pod_read(pod->path, &why, pod->after);
    int status = err == ICMS_OK ? CLI_DONE : cli_fail(cli, err, "%s", why.text);

    if (err == ICMS_OK && cli->yes) {
        conf_pod_fini(pod->after);
        status = pod_change(pod, &shrink);
    }
    if (status != CLI_DONE || cli->dry_run)
        return status;
    status = cli_open_tier(cli);
    if (status >= 0)
        return status;
    status = reload_wait(pod);
    cli_close(cli);
    return status;
}
