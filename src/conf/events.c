/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of an agent's events: endpoints that can be listened on, and that nobody else has. Called
 * by rules.c on the caller's thread.
 */
#include "conf/conf_int.h"

#include <stdio.h>
#include <string.h>

#define IPC "ipc://"
#define TCP "tcp://"

/* A unix socket's path, with the zero at its end. */
#define PATH_BYTES 108

static bool endpoint_is(const char *text, const char *scheme)
{
    return strncmp(text, scheme, strlen(scheme)) == 0;
}

static icms_err endpoint_check(const struct conf_source *source, uint32_t line, const char *key,
                               const struct conf_agent *agent, const struct conf_events *events,
                               const char *endpoint)
{
    struct conf_http address = {.listen = ""};
    const struct conf_key numeric = {
        .name = key, .kind = CONF_ADDRESS, .min = 1, .size = sizeof(address.listen)};
    char shown[CONF_SHOW_BYTES];
    struct err_why why = {""};

    if (endpoint_is(endpoint, TCP)) {
        if (!events->open)
            return conf_fail(source, line,
                             "%s: every process that reaches %s reads it, as nothing proves who it "
                             "is: write ipc:// and a path, or `open: true`",
                             key, conf_show(endpoint, shown));
        if (conf_value_set(&numeric, endpoint + strlen(TCP), &why, &address) != ICMS_OK)
            return conf_fail(source, line, "%s: %s", key, why.text);
        return ICMS_OK;
    }
    if (!endpoint_is(endpoint, IPC) || endpoint[strlen(IPC)] != '/')
        return conf_fail(source, line,
                         "%s: '%s' is neither ipc:// with an absolute path nor tcp:// with an "
                         "address and port",
                         key, conf_show(endpoint, shown));
    if (strlen(endpoint) - strlen(IPC) >= PATH_BYTES)
        return conf_fail(source, line, "%s: the path is longer than %d bytes", key, PATH_BYTES - 1);
    if (strcmp(endpoint + strlen(IPC), agent->socket) == 0)
        return conf_fail(source, line, "%s: clients connect there: it is socket", key);
    return ICMS_OK;
}

/* Whether one of the entries before listens there. */
static bool endpoint_is_taken(const struct conf_agent *agent, uint32_t before, const char *endpoint)
{
    for (uint32_t i = 0; i < before; i++)
        if (strcmp(agent->events[i].endpoint, endpoint) == 0 ||
            strcmp(agent->events[i].replay, endpoint) == 0)
            return true;
    return false;
}

/* As of socket_mode. */
static void events_warn(struct conf_agent *agent, const struct conf_events *events)
{
    if ((events->mode & 07) != 0 &&
        (endpoint_is(events->endpoint, IPC) || endpoint_is(events->replay, IPC)))
        conf_warn(&agent->warnings,
                  "events: mode %04o lets every user of this machine read which blocks of volume "
                  "%s come and go",
                  events->mode, events->volume);
}

icms_err conf_events_rules(const struct conf_source *source, const struct conf_node *map,
                           struct conf_agent *agent)
{
    for (uint32_t i = 0; i < agent->events_count; i++) {
        const struct conf_events *events = &agent->events[i];
        const struct conf_node *entry = conf_entry(map, "events", i);
        uint32_t line = conf_node_line(entry, "endpoint");
        icms_err err;

        if (conf_agent_volume(agent, events->volume) == NULL)
            return conf_fail(source, conf_node_line(entry, "volume"),
                             "events: there is no volume %s in volumes", events->volume);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(agent->events[j].volume, events->volume) == 0)
                return conf_fail(source, entry->line, "events: volume %s has two entries",
                                 events->volume);
        err = endpoint_check(source, line, "endpoint", agent, events, events->endpoint);
        if (err == ICMS_OK && endpoint_is_taken(agent, i, events->endpoint))
            return conf_fail(source, line, "endpoint: %s is that of another entry, too",
                             events->endpoint);
        line = conf_node_line(entry, "replay");
        if (err == ICMS_OK && events->replay[0] != '\0')
            err = endpoint_check(source, line, "replay", agent, events, events->replay);
        if (err != ICMS_OK)
            return err;
        if (strcmp(events->replay, events->endpoint) == 0 ||
            (events->replay[0] != '\0' && endpoint_is_taken(agent, i, events->replay)))
            return conf_fail(source, line, "replay: %s is an endpoint already", events->replay);
        events_warn(agent, events);
    }
    return ICMS_OK;
}
