/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_pod_ask.c: icms pod status WHERE ...: the drives of enclosures, and other agents.
 *
 * Nobody in a pod knows where all its daemons show their status, so the operator says whom to ask.
 * What comes is not believed: what is missing or of another type is "-" or 0.
 */
#include <stdio.h>
#include <string.h>

#include "icms_status.h"
#include "status_place.h"

/* A target says which drives it has, an agent which epoch. */
static bool is_target(const json_t *status)
{
    return json_is_array(json_object_get(status, "drives"));
}

/* One without a map has volumes of its own file, and no epoch. */
static bool target_has_map(const json_t *status)
{
    return status_number(status, "epoch") > 0;
}

json_t *pod_ask(char **where, int count)
{
    json_t *asked = json_array();

    for (int i = 0; i < count; i++) {
        struct err_why why = {""};
        json_t *status = status_ask(where[i], &why);

        if (status != NULL)
            (void)json_array_append_new(
                asked, json_pack("{s:s, s:o}", "where", where[i], "status", status));
        else
            (void)json_array_append_new(
                asked, json_pack("{s:s, s:s}", "where", where[i], "error", why.text));
    }
    return asked;
}

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

static void drives_text(const json_t *asked)
{
    char used[STATUS_BYTES_TEXT], whole[STATUS_BYTES_TEXT], part[STATUS_WHOLE_TEXT];
    char epoch[STATUS_WHOLE_TEXT];
    bool is_first = true;
    const json_t *one, *d;
    size_t i, k;

    json_array_foreach(asked, i, one)
    {
        const json_t *status = json_object_get(one, "status");

        json_array_foreach(json_object_get(status, "drives"), k, d)
        {
            if (is_first)
                (void)printf("\n%-20s %10s %-28s %-21s %5s %10s %10s %10s %s\n", "ENCLOSURE",
                             "EPOCH", "DRIVE", "STATE", "PART", "USED", "OF", "BLOCKS", "WHY");
            is_first = false;
            (void)printf(
                "%-20s %10s %-28s %-21s %5s %10s %10s %10.0f %s\n", status_text(status, "name"),
                target_has_map(status) ? status_whole(status, "epoch", epoch) : "-",
                status_text(d, "path"), status_text(d, "state"),
                status_whole(d, "part_percent", part),
                status_bytes(status_number(d, "used_bytes"), used),
                status_bytes(status_number(d, "capacity_bytes"), whole), status_number(d, "blocks"),
                status_text(d, "why")[0] == '\0' ? "-" : status_text(d, "why"));
        }
    }
}

static void agent_line(const json_t *status)
{
    char up[32], epoch[STATUS_WHOLE_TEXT];

    (void)snprintf(up, sizeof(up), "%zu of %zu", enclosures_up(status),
                   json_array_size(json_object_get(status, "enclosures")));
    (void)printf("%-20s %10s %-6s %-10s %s\n", status_text(status, "name"),
                 status_whole(status, "epoch", epoch),
                 json_is_true(json_object_get(status, "ready")) ? "yes" : "no", up,
                 status_text(status, "why")[0] == '\0' ? "-" : status_text(status, "why"));
}

void pod_asked_text(const json_t *asked, const json_t *agent)
{
    const json_t *one;
    size_t i;

    if (json_array_size(asked) == 0)
        return;
    drives_text(asked);
    (void)printf("\n%-20s %10s %-6s %-10s %s\n", "AGENT", "EPOCH", "READY", "UP", "WHY");
    agent_line(agent);
    json_array_foreach(asked, i, one)
    {
        const json_t *status = json_object_get(one, "status");

        if (status != NULL && !is_target(status))
            agent_line(status);
    }
    json_array_foreach(asked, i, one)
    {
        if (json_object_get(one, "error") != NULL)
            (void)printf("\n%s\n", status_text(one, "error"));
    }
}

json_t *pod_asked_json(const json_t *asked)
{
    json_t *list = json_array();
    const json_t *one;
    size_t i;

    json_array_foreach(asked, i, one)
    {
        const json_t *status = json_object_get(one, "status");
        json_t *answer = json_pack("{s:s}", "where", status_text(one, "where"));

        (void)json_array_append_new(list, answer);
        if (status == NULL) {
            (void)json_object_set(answer, "error", json_object_get(one, "error"));
            continue;
        }
        (void)json_object_set_new(answer, "name", json_string(status_text(status, "name")));
        (void)json_object_set(answer, "ready", json_object_get(status, "ready"));
        (void)json_object_set(answer, "why", json_object_get(status, "why"));
        if (is_target(status)) {
            (void)json_object_set(answer, "epoch", json_object_get(status, "epoch"));
            (void)json_object_set(answer, "map_refused", json_object_get(status, "map_refused"));
            (void)json_object_set(answer, "drives", json_object_get(status, "drives"));
            continue;
        }
        (void)json_object_set(answer, "epoch", json_object_get(status, "epoch"));
        (void)json_object_set(answer, "enclosures", json_object_get(status, "enclosures"));
    }
    return list;
}

bool pod_asked_is_well(const json_t *asked, uint32_t epoch)
{
    const json_t *one, *d;
    bool is_well = true;
    size_t i, k;

    json_array_foreach(asked, i, one)
    {
        const json_t *status = json_object_get(one, "status");

        is_well = is_well && json_is_true(json_object_get(status, "ready"));
        if (status != NULL && (!is_target(status) || target_has_map(status)))
            is_well = is_well && (uint32_t)status_number(status, "epoch") == epoch;
        json_array_foreach(json_object_get(status, "drives"), k, d)
        {
            is_well = is_well && strcmp(status_text(d, "state"), "out of service") != 0;
        }
    }
    return is_well;
}
