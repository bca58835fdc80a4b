/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_pod_ask.c: icms pod status: what targets say of their drives and of the agents that are
 * connected to them, and agents of themselves.
 *
 * The map says where targets show their status (http), and the operator may name more (WHERE). All
 * are asked at the same time. What comes is not believed: it is bounded, what is missing or of
 * another type is "-" or 0, and who answers for an enclosure has to have its NQN.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "icms_status.h"
#include "nvmf/target.h"
#include "status_place.h"

/* By which part of it the capacity of the map may differ from that of the drives. */
#define CAPACITY_PART 0.05

/* Enclosures that a sentence names. */
#define NAMED_MAX 4

/* A target says which drives it has, an agent which epoch. */
static bool is_target(const json_t *status)
{
    return json_is_array(json_object_get(status, "drives"));
}

/* ---- asking --------------------------------------------------------------------------------- */

static void keep(json_t *out, const json_t *status, const char *key, size_t count_max)
{
    json_t *value = json_object_get(status, key);

    while (json_array_size(value) > count_max)
        (void)json_array_remove(value, json_array_size(value) - 1);
    if (value != NULL)
        (void)json_object_set(out, key, value);
}

/* What is shown of a status. */
static json_t *status_trim(json_t *status)
{
    static const char *const keys[] = {"name",
                                       "nqn",
                                       "uuid",
                                       "host_nqn",
                                       "ready",
                                       "why",
                                       "pod",
                                       "epoch",
                                       "map_refused",
                                       "used_bytes",
                                       "capacity_bytes",
                                       "controllers_more",
                                       "uptime_seconds",
                                       "last_load_age_seconds"};
    json_t *out = json_object();

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        keep(out, status, keys[i], 0);
    keep(out, status, "drives", LIMIT_DRIVES);
    keep(out, status, "hosts", NVMF_TARGET_CONNECTED);
    keep(out, status, "enclosures", LIMIT_ENCLOSURES);
    json_decref(status);
    return out;
}

/* Why an answer is not that of the enclosure; NULL: it is. */
static const char *not_the_enclosure(const struct conf_enclosure *enclosure, const json_t *status,
                                     struct err_why *why)
{
    if (!is_target(status))
        (void)err_set(why, ICMS_PROTOCOL,
                      "%s: http %s leads to no target: write the http port of its icms-target",
                      enclosure->name, enclosure->http);
    else if (strcmp(status_text(status, "nqn"), enclosure->nqn) != 0)
        (void)err_set(why, ICMS_PROTOCOL,
                      "%s: http %s leads to another target, with the NQN %.223s; the map has %s",
                      enclosure->name, enclosure->http, status_text(status, "nqn"), enclosure->nqn);
    else
        return NULL;
    return why->text;
}

/* Of a text that may have any bytes. */
static json_t *text_json(const char *text)
{
    json_t *json = json_string(text);

    return json != NULL ? json : json_string("(it is not UTF-8)");
}

/* What one of them answered, as an entry. */
static json_t *entry_of(struct status_answer *answer, const struct conf_enclosure *enclosure)
{
    json_t *entry = json_pack("{s:o}", "where", text_json(answer->where));
    const char *error = answer->status == NULL ? answer->why.text : NULL;
    char text[ERR_WHY_BYTES_MAX + LIMIT_NAME_BYTES];

    if (enclosure != NULL) {
        (void)json_object_set_new(entry, "enclosure", json_string(enclosure->name));
        if (error != NULL) {
            (void)snprintf(text, sizeof(text), "%s: %s", enclosure->name, error);
            error = text;
        } else {
            error = not_the_enclosure(enclosure, answer->status, &answer->why);
        }
    }
    if (error != NULL)
        (void)json_object_set_new(entry, "error", text_json(error));
    else
        (void)json_object_set(entry, "status", answer->status);
    json_decref(answer->status);
    return entry;
}

/* A target that the operator names may be an enclosure of the map, which answered already or did
 * not. */
static void entry_match(const struct conf_pod *map, const json_t *asked, json_t *entry)
{
    const json_t *status = json_object_get(entry, "status");

    for (uint32_t i = 0; i < map->enclosure_count && is_target(status); i++) {
        const char *name = map->enclosures[i].name;

        if (strcmp(status_text(status, "nqn"), map->enclosures[i].nqn) != 0)
            continue;
        if (json_object_get(pod_asked_of(asked, name), "status") != NULL)
            (void)json_object_set_new(entry, "again", json_true());
        (void)json_object_set_new(entry, "enclosure", json_string(name));
    }
}

bool pod_is_asked(const struct conf_enclosure *enclosure)
{
    return enclosure->http[0] != '\0' && enclosure->state != CONF_ENCLOSURE_OUT;
}

json_t *pod_ask(const struct conf_pod *map, char **where, size_t count,
                const struct status_proof *proof, uint32_t timeout_ms)
{
    struct status_answer *answers = calloc(LIMIT_ENCLOSURES + count, sizeof(answers[0]));
    const struct conf_enclosure *of[LIMIT_ENCLOSURES];
    size_t of_count = 0, all;
    json_t *asked = json_array();

    for (uint32_t i = 0; i < map->enclosure_count && answers != NULL; i++)
        if (pod_is_asked(&map->enclosures[i])) {
            answers[of_count].where = map->enclosures[i].http;
            of[of_count++] = &map->enclosures[i];
        }
    all = answers != NULL ? of_count + count : 0;
    for (size_t i = of_count; i < all; i++)
        answers[i].where = where[i - of_count];
    status_ask_all(answers, all, proof, timeout_ms, status_trim);
    for (size_t i = 0; i < all; i++) {
        json_t *entry = entry_of(&answers[i], i < of_count ? of[i] : NULL);

        if (i >= of_count)
            entry_match(map, asked, entry);
        (void)json_array_append_new(asked, entry);
    }
    free(answers);
    return asked;
}

void pod_ask_read(const struct conf_enclosure *enclosure, const struct status_proof *proof,
                  uint32_t timeout_ms, struct pod_read *out_read)
{
    struct status_answer answer = {.where = enclosure->http};
    char text[STATUS_READ_TEXT];
    const char *error;
    double last_s;

    *out_read = (struct pod_read){.is_unread = false};
    if (enclosure->http[0] == '\0') {
        (void)snprintf(out_read->text, sizeof(out_read->text),
                       "when it was read is not known: the map has no http of it");
        return;
    }
    status_ask_all(&answer, 1, proof, timeout_ms, status_trim);
    error = answer.status == NULL ? answer.why.text
                                  : not_the_enclosure(enclosure, answer.status, &answer.why);
    last_s = status_read(answer.status, text);
    if (error != NULL) {
        (void)snprintf(out_read->text, sizeof(out_read->text),
                       "when it was read is not known: %.400s", error);
    } else if (last_s < 0) {
        (void)snprintf(out_read->text, sizeof(out_read->text),
                       "when it was read is not known: its icms-target does not tell, as an older "
                       "version");
    } else {
        (void)snprintf(out_read->text, sizeof(out_read->text), "last read: %s", text);
        out_read->is_unread = last_s >= POD_UNREAD_S;
    }
    json_decref(answer.status);
}

icms_err pod_ask_same(const struct conf_enclosure *enclosure, const struct status_proof *proof,
                      uint32_t timeout_ms, struct err_why *why)
{
    struct status_answer answer = {.where = enclosure->http};
    char uuid[UUID_TEXT_BYTES];
    struct err_why cause;
    icms_err err = ICMS_OK;

    status_ask_all(&answer, 1, proof, timeout_ms, status_trim);
    (void)uuid_format(&enclosure->uuid, uuid);
    if (answer.status == NULL)
        err = err_set(why, ICMS_PEER_DOWN, "%.400s", answer.why.text);
    else if (not_the_enclosure(enclosure, answer.status, &cause) != NULL)
        err = err_set(why, ICMS_FOREIGN, "%.400s", cause.text);
    else if (strcmp(status_text(answer.status, "name"), enclosure->name) != 0)
        err = err_set(why, ICMS_FOREIGN, "%s: http %.200s leads to the enclosure %.100s",
                      enclosure->name, enclosure->http, status_text(answer.status, "name"));
    else if (json_object_get(answer.status, "uuid") != NULL && /* older versions do not tell it */
             strcmp(status_text(answer.status, "uuid"), uuid) != 0)
        err = err_set(why, ICMS_FOREIGN,
                      "%s: http %.200s leads to a target with the UUID %.40s; the map has %s",
                      enclosure->name, enclosure->http, status_text(answer.status, "uuid"), uuid);
    json_decref(answer.status);
    return err;
}

const json_t *pod_asked_of(const json_t *asked, const char *enclosure)
{
    const json_t *entry, *found = NULL;
    size_t i;

    json_array_foreach(asked, i, entry)
    {
        if (strcmp(status_text(entry, "enclosure"), enclosure) == 0 &&
            (found == NULL || json_object_get(found, "status") == NULL))
            found = entry;
    }
    return found;
}

/* The status of a target, as long as it is not one that was there before; NULL: none. */
static const json_t *target_of(const json_t *entry)
{
    const json_t *status = json_object_get(entry, "status");

    return is_target(status) && json_object_get(entry, "again") == NULL ? status : NULL;
}

/* By which name a target is shown. */
static const char *target_name(const json_t *entry)
{
    return json_object_get(entry, "enclosure") != NULL
               ? status_text(entry, "enclosure")
               : status_text(json_object_get(entry, "status"), "name");
}

/* ---- agents --------------------------------------------------------------------------------- */

/* How many enclosures of an agent are up. */
static size_t enclosures_up(const json_t *status)
{
    const json_t *enclosures = json_object_get(status, "enclosures"), *e;
    size_t i, up = 0;

    json_array_foreach(enclosures, i, e)
    {
        up += strcmp(status_text(e, "state"), "up") == 0;
    }
    return up;
}

/* A link that is not up, or an enclosure that is not. */
static void link_add(json_t *links, const json_t *enclosure, const json_t *link)
{
    static const char *const keys[] = {"address", "state", "last_error", "last_error_age_seconds"};
    json_t *one;

    if (!json_is_object(link) || strcmp(status_text(link, "state"), "up") == 0)
        return;
    one = json_pack("{s:s}", "enclosure", status_text(enclosure, "name"));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        keep(one, link, keys[i], 0);
    (void)json_array_append_new(links, one);
}

/* The links of an agent that are not up; of an enclosure that is not up and tells none, itself. */
static json_t *links_not_up(const json_t *status)
{
    json_t *links = json_array();
    const json_t *enclosure, *link;
    size_t i, k;

    json_array_foreach(json_object_get(status, "enclosures"), i, enclosure)
    {
        size_t before = json_array_size(links);

        json_array_foreach(json_object_get(enclosure, "links"), k, link)
        {
            if (k < LIMIT_LINKS)
                link_add(links, enclosure, link);
        }
        if (json_array_size(links) == before)
            link_add(links, enclosure, enclosure);
    }
    return links;
}

/* The agent of this NQN, which is new or was named before. */
static json_t *agent_named(json_t *agents, json_t *by_nqn, const char *nqn)
{
    json_t *agent = json_object_get(by_nqn, nqn);

    if (agent != NULL)
        return agent;
    agent = json_pack("{s:s, s:[]}", "nqn", nqn, "told");
    (void)json_array_append_new(agents, agent);
    (void)json_object_set(by_nqn, nqn, agent);
    return agent;
}

/* What every daemon says of itself. */
static void keep_daemon(json_t *out, const json_t *status)
{
    static const char *const keys[] = {"pod", "epoch", "map_refused", "ready", "why"};

    (void)json_object_set_new(out, "name", json_string(status_text(status, "name")));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        keep(out, status, keys[i], 0);
}

/* What an agent says of itself. */
static void agent_itself(json_t *agents, json_t *by_nqn, const json_t *status)
{
    json_t *agent = agent_named(agents, by_nqn, status_text(status, "host_nqn"));

    keep_daemon(agent, status);
    (void)json_object_set_new(agent, "enclosures_up",
                              json_integer((json_int_t)enclosures_up(status)));
    (void)json_object_set_new(
        agent, "enclosures",
        json_integer((json_int_t)json_array_size(json_object_get(status, "enclosures"))));
    (void)json_object_set_new(agent, "links", links_not_up(status));
}

/* The hosts that are connected to a target. */
static void agents_of_target(json_t *agents, json_t *by_nqn, const json_t *entry)
{
    static const char *const keys[] = {"epoch",       "epoch_max",   "proven",
                                       "controllers", "connections", "connected_seconds"};
    const json_t *host;
    size_t i;

    json_array_foreach(json_object_get(target_of(entry), "hosts"), i, host)
    {
        json_t *agent = agent_named(agents, by_nqn, status_text(host, "nqn"));
        json_t *told = json_pack("{s:s}", "enclosure", target_name(entry));

        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
            keep(told, host, keys[k], 0);
        (void)json_array_append_new(json_object_get(agent, "told"), told);
    }
}

/* What epochs are to that of the file. */
struct epochs {
    bool is_known, is_none, is_older, is_newer;
};

static void epoch_see(struct epochs *epochs, const json_t *number, uint32_t epoch)
{
    json_int_t value = json_integer_value(number);

    if (!json_is_integer(number))
        return;
    epochs->is_known = true;
    epochs->is_none = epochs->is_none || value == 0;
    epochs->is_older = epochs->is_older || (value != 0 && value < (json_int_t)epoch);
    epochs->is_newer = epochs->is_newer || value > (json_int_t)epoch;
}

static struct epochs epochs_of(const json_t *told, uint32_t epoch)
{
    struct epochs epochs = {.is_known = false};

    epoch_see(&epochs, json_object_get(told, "epoch"), epoch);
    epoch_see(&epochs, json_object_get(told, "epoch_max"), epoch);
    return epochs;
}

static bool are_others(const struct epochs *epochs)
{
    return epochs->is_none || epochs->is_older || epochs->is_newer;
}

/* Whether a daemon follows the map of another pod, whose epochs say nothing of this one. */
static bool is_of_other_pod(const json_t *status, const struct conf_pod *map)
{
    const char *pod = json_string_value(json_object_get(status, "pod"));

    return pod != NULL && pod[0] != '\0' && strcmp(pod, map->name) != 0;
}

uint32_t pod_asked_later(const json_t *asked, const struct conf_pod *map, const char **out_name)
{
    uint32_t later = 0;
    const json_t *entry;
    size_t i;

    json_array_foreach(asked, i, entry)
    {
        const json_t *status = json_object_get(entry, "status");
        json_int_t epoch = json_integer_value(json_object_get(status, "epoch"));

        if (epoch > map->epoch && epoch > later && epoch <= UINT32_MAX &&
            !is_of_other_pod(status, map)) {
            later = (uint32_t)epoch;
            *out_name = status_text(entry, "enclosure");
        }
    }
    return later;
}

/* Whether a daemon says that the map of its file is not in use. */
static bool is_map_refused(const json_t *status)
{
    return json_string_length(json_object_get(status, "map_refused")) > 0;
}

/* Which map an agent has, by what it says itself and by what it told. */
static const char *map_word(const json_t *agent, uint32_t epoch)
{
    struct epochs epochs = epochs_of(agent, epoch);
    const json_t *told;
    size_t i;

    json_array_foreach(json_object_get(agent, "told"), i, told)
    {
        struct epochs one = epochs_of(told, epoch);

        epochs.is_known = epochs.is_known || one.is_known;
        epochs.is_none = epochs.is_none || one.is_none;
        epochs.is_older = epochs.is_older || one.is_older;
        epochs.is_newer = epochs.is_newer || one.is_newer;
    }
    return epochs.is_none    ? "none"
           : epochs.is_older ? "older"
           : epochs.is_newer ? "newer"
           : epochs.is_known ? "current"
                             : "unknown";
}

json_t *pod_agents(const json_t *asked, const json_t *own, const struct conf_pod *map)
{
    json_t *agents = json_array(), *by_nqn = json_object(), *agent;
    const json_t *entry;
    size_t i;

    if (own != NULL)
        agent_itself(agents, by_nqn, own);
    json_array_foreach(asked, i, entry)
    {
        const json_t *status = json_object_get(entry, "status");

        if (status != NULL && !is_target(status))
            agent_itself(agents, by_nqn, status);
    }
    json_array_foreach(asked, i, entry)
    {
        agents_of_target(agents, by_nqn, entry);
    }
    json_array_foreach(agents, i, agent)
    {
        (void)json_object_set_new(
            agent, "map",
            json_string(is_of_other_pod(agent, map) ? "other" : map_word(agent, map->epoch)));
    }
    json_decref(by_nqn);
    return agents;
}

/* ---- tables --------------------------------------------------------------------------------- */

static void drives_text(const json_t *asked)
{
    char used[STATUS_BYTES_TEXT], whole[STATUS_BYTES_TEXT], part[STATUS_WHOLE_TEXT];
    bool is_first = true;
    const json_t *one, *d;
    size_t i, k;

    json_array_foreach(asked, i, one)
    {
        json_array_foreach(json_object_get(target_of(one), "drives"), k, d)
        {
            if (is_first)
                (void)printf("\n%-20s %-28s %-21s %5s %10s %10s %10s %s\n", "ENCLOSURE", "DRIVE",
                             "STATE", "PART", "USED", "OF", "BLOCKS", "WHY");
            is_first = false;
            (void)printf("%-20s %-28s %-21s %5s %10s %10s %10.0f %s\n", target_name(one),
                         status_text(d, "path"), status_text(d, "state"),
                         status_whole(d, "part_percent", part),
                         status_bytes(status_number(d, "used_bytes"), used),
                         status_bytes(status_number(d, "capacity_bytes"), whole),
                         status_number(d, "blocks"),
                         status_text(d, "why")[0] == '\0' ? "-" : status_text(d, "why"));
        }
    }
}

static size_t targets_count(const json_t *asked)
{
    const json_t *entry;
    size_t i, count = 0;

    json_array_foreach(asked, i, entry)
    {
        count += target_of(entry) != NULL;
    }
    return count;
}

/* All epochs of an agent. */
static void agent_epochs(const json_t *agent, char text[STATUS_EPOCH_TEXT])
{
    const json_t *told, *own = json_object_get(agent, "epoch");
    json_int_t low = json_integer_value(own), high = low;
    bool is_known = json_is_integer(own);
    json_t *all;
    size_t i;

    json_array_foreach(json_object_get(agent, "told"), i, told)
    {
        const json_t *min = json_object_get(told, "epoch"),
                     *max = json_object_get(told, "epoch_max");
        json_int_t from = json_integer_value(min);
        json_int_t to = json_is_integer(max) ? json_integer_value(max) : from;

        if (!json_is_integer(min))
            continue;
        low = !is_known || from < low ? from : low;
        high = !is_known || to > high ? to : high;
        is_known = true;
    }
    all = json_object();
    if (is_known)
        (void)json_object_set_new(all, "epoch", json_integer(low));
    if (is_known && high != low)
        (void)json_object_set_new(all, "epoch_max", json_integer(high));
    (void)status_epoch(all, text);
    json_decref(all);
}

static void agent_line(const json_t *agent, size_t targets)
{
    const json_t *list = json_object_get(agent, "told"), *told, *ready, *before = NULL;
    char epoch[STATUS_EPOCH_TEXT], up[32] = "-", connected[48];
    const char *proven = "-", *name = json_string_value(json_object_get(agent, "name"));
    size_t i, count = 0;

    json_array_foreach(list, i, told)
    {
        count += before == NULL ||
                 strcmp(status_text(before, "enclosure"), status_text(told, "enclosure")) != 0;
        if (before == NULL)
            proven = status_text(told, "proven");
        else if (strcmp(proven, status_text(told, "proven")) != 0)
            proven = "differs";
        before = told;
    }
    agent_epochs(agent, epoch);
    ready = json_object_get(agent, "ready");
    if (name != NULL)
        (void)snprintf(up, sizeof(up), "%.0f of %.0f", status_number(agent, "enclosures_up"),
                       status_number(agent, "enclosures"));
    (void)snprintf(connected, sizeof(connected), "%zu of %zu", count, targets);
    (void)printf("%10s %-8s %-6s %-10s %-10s %-9s %s%s%.223s%s\n", epoch, status_text(agent, "map"),
                 ready == NULL         ? "-"
                 : json_is_true(ready) ? "yes"
                                       : "no",
                 up, connected, proven, name != NULL ? name : "", name != NULL ? " (" : "",
                 status_text(agent, "nqn"), name != NULL ? ")" : "");
}

/* Its links that are not up, below it. */
static void agent_links(const json_t *agent)
{
    char error[STATUS_ERROR_BYTES];
    const json_t *link;
    size_t i;

    json_array_foreach(json_object_get(agent, "links"), i, link)
    {
        (void)printf("%10s %.63s: link %.63s is %.31s; last error: %.*s\n", "",
                     status_text(link, "enclosure"), status_text(link, "address"),
                     status_text(link, "state"), STATUS_ERROR_BYTES, status_error(link, error));
    }
}

/* What a daemon says of its map. */
static void map_notes(const json_t *status, const char *name, const struct conf_pod *map)
{
    if (is_of_other_pod(status, map))
        (void)printf(
            "\n%.223s: it uses the map of pod %.63s, the file is that of pod %s: see `pod` of "
            "its configuration\n",
            name, status_text(status, "pod"), map->name);
    if (is_map_refused(status))
        (void)printf("\n%.223s: it does not use the map of its file: %s\n", name,
                     status_text(status, "map_refused"));
}

/* What is to be done about an agent. */
static void agent_notes(const json_t *agent, const struct conf_pod *map)
{
    uint32_t epoch = map->epoch;
    const char *name = json_string_value(json_object_get(agent, "name"));
    struct epochs own = epochs_of(agent, epoch);
    char text[STATUS_EPOCH_TEXT];
    const json_t *told;
    size_t i, count = 0;

    if (name == NULL)
        name = status_text(agent, "nqn");
    if (json_is_false(json_object_get(agent, "ready")))
        (void)printf("\n%.223s: not ready: %s\n", name, status_text(agent, "why"));
    map_notes(agent, name, map);
    if (are_others(&own))
        (void)printf("\n%.223s: it uses epoch %s, the file has %u\n", name,
                     status_epoch(agent, text), epoch);
    json_array_foreach(json_object_get(agent, "told"), i, told)
    {
        struct epochs epochs = epochs_of(told, epoch);

        if (!are_others(&epochs) || count++ >= NAMED_MAX)
            continue;
        if (count == 1)
            (void)printf("\n%.223s: the file has epoch %u, and it told ", name, epoch);
        (void)printf("%sepoch %s to %s", count == 1 ? "" : ", ", status_epoch(told, text),
                     status_text(told, "enclosure"));
    }
    if (count > NAMED_MAX)
        (void)printf(" and to %zu more", count - NAMED_MAX);
    if (count > 0)
        (void)printf(": see whether its server has the file, and the log of its icms-agent\n");
}

/* The enclosure of a map; NULL: it has none of this name. */
static const struct conf_enclosure *enclosure_of(const struct conf_pod *map, const char *name)
{
    for (uint32_t i = 0; i < map->enclosure_count; i++)
        if (strcmp(map->enclosures[i].name, name) == 0)
            return &map->enclosures[i];
    return NULL;
}

/* The drives in service hold something else than the map says, by more than stores need for
 * themselves and for the rest of a segment. */
static void capacity_note(const struct conf_enclosure *enclosure, const json_t *status)
{
    double said = (double)enclosure->capacity_bytes, has = status_number(status, "capacity_bytes");
    char map_text[STATUS_BYTES_TEXT], has_text[STATUS_BYTES_TEXT];
    const json_t *drives = json_object_get(status, "drives"), *d;
    size_t i, out = 0;

    if (said <= 0 || (has >= said * (1 - CAPACITY_PART) && has <= said * (1 + CAPACITY_PART)))
        return;
    json_array_foreach(drives, i, d)
    {
        out += strcmp(status_text(d, "state"), "out of service") == 0;
    }
    (void)printf("\n%s: capacity %s in the map, and %s on its drives in service", enclosure->name,
                 status_bytes(said, map_text), status_bytes(has, has_text));
    if (out > 0)
        (void)printf("; %zu of %zu drives are out of service\n", out, json_array_size(drives));
    else
        (void)printf(": correct capacity in the map, or the drives of its icms-target\n");
}

/* What the map says of an enclosure beside what its target does. */
static void enclosure_notes(const struct conf_enclosure *enclosure, const json_t *status)
{
    char read[STATUS_READ_TEXT];

    if (enclosure == NULL)
        return;
    (void)status_read(status, read);
    if (enclosure->state == CONF_ENCLOSURE_DRAINING)
        (void)printf("\n%s: draining, last read: %s\n", enclosure->name, read);
    capacity_note(enclosure, status);
}

static void target_notes(const json_t *entry, const struct conf_pod *map)
{
    uint32_t epoch = map->epoch;
    const json_t *status = target_of(entry);
    struct epochs epochs = epochs_of(status, epoch);
    char text[STATUS_EPOCH_TEXT];

    if (json_object_get(entry, "error") != NULL)
        (void)printf("\n%s\n", status_text(entry, "error"));
    if (status == NULL)
        return;
    if (!json_is_true(json_object_get(status, "ready")))
        (void)printf("\n%s: not ready: %s\n", target_name(entry), status_text(status, "why"));
    if (are_others(&epochs))
        (void)printf("\n%s: its target has epoch %s of the map, the file has %u\n",
                     target_name(entry), status_epoch(status, text), epoch);
    map_notes(status, target_name(entry), map);
    enclosure_notes(enclosure_of(map, target_name(entry)), status);
    if (status_number(status, "controllers_more") > 0)
        (void)printf("\n%s: and %.0f controllers of other hosts\n", target_name(entry),
                     status_number(status, "controllers_more"));
}

void pod_asked_text(const json_t *asked, const json_t *agents, const struct conf_pod *map)
{
    size_t i, targets = targets_count(asked);
    const json_t *one;

    if (json_array_size(asked) == 0)
        return;
    drives_text(asked);
    if (json_array_size(agents) > 0)
        (void)printf("\n%10s %-8s %-6s %-10s %-10s %-9s %s\n", "EPOCH", "MAP", "READY", "UP",
                     "CONNECTED", "PROVEN", "AGENT");
    json_array_foreach(agents, i, one)
    {
        agent_line(one, targets);
        agent_links(one);
    }
    json_array_foreach(agents, i, one)
    {
        agent_notes(one, map);
    }
    json_array_foreach(asked, i, one)
    {
        target_notes(one, map);
    }
}

json_t *pod_asked_json(const json_t *asked, size_t from)
{
    json_t *list = json_array();

    for (size_t i = from; i < json_array_size(asked); i++) {
        const json_t *one = json_array_get(asked, i), *status = json_object_get(one, "status");
        json_t *answer = json_pack("{s:O}", "where", json_object_get(one, "where"));

        (void)json_array_append_new(list, answer);
        if (json_object_get(one, "enclosure") != NULL)
            (void)json_object_set(answer, "enclosure", json_object_get(one, "enclosure"));
        if (status == NULL) {
            (void)json_object_set(answer, "error", json_object_get(one, "error"));
            continue;
        }
        keep_daemon(answer, status);
        keep(answer, status, "controllers_more", 0);
        keep(answer, status, "uptime_seconds", 0);
        keep(answer, status, "last_load_age_seconds", 0);
        keep(answer, status, "drives", LIMIT_DRIVES);
        if (!is_target(status))
            keep(answer, status, "enclosures", LIMIT_ENCLOSURES);
    }
    return list;
}

bool pod_asked_is_well(const json_t *asked, const json_t *agents, const struct conf_pod *map)
{
    const json_t *one, *d;
    bool is_well = true;
    size_t i, k;

    json_array_foreach(asked, i, one)
    {
        const json_t *status = json_object_get(one, "status");
        struct epochs epochs = epochs_of(status, map->epoch);

        is_well = is_well && json_is_true(json_object_get(status, "ready")) &&
                  !are_others(&epochs) && !is_of_other_pod(status, map) && !is_map_refused(status);
        json_array_foreach(json_object_get(status, "drives"), k, d)
        {
            is_well = is_well && strcmp(status_text(d, "state"), "out of service") != 0;
        }
    }
    json_array_foreach(agents, i, one)
    {
        const char *word = status_text(one, "map");

        is_well = is_well && (strcmp(word, "current") == 0 || strcmp(word, "unknown") == 0);
    }
    return is_well;
}
