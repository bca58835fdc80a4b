/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of an agent: from its configuration to the publisher, and the publisher's counters as
 * metrics. Called by the main thread, and by ctl's HTTP thread.
 */
#include "agent_events.h"

#include <stdio.h>
#include <string.h>

static uint32_t events_volume_number(const struct conf_agent *conf, const char *name)
{
    uint32_t i = 0;

    while (i < conf->volume_count && strcmp(conf->volumes[i].name, name) != 0)
        i++;
    return i; /* there is one: conf_events_rules */
}

uint64_t agent_events_volumes(const struct conf_agent *conf)
{
    uint64_t volumes = 0;

    for (uint32_t i = 0; i < conf->events_count; i++)
        volumes |= (uint64_t)1 << events_volume_number(conf, conf->events[i].volume);
    return volumes;
}

static size_t events_from_agent(void *arg, struct agent_event *out, size_t count)
{
    return agent_events_take(arg, out, count);
}

static uint64_t events_lost_by_agent(void *arg, uint32_t volume)
{
    return agent_events_lost(arg, volume);
}

icms_err agent_events_start(const struct conf_agent *conf, struct agent *agent, struct err_why *why,
                            struct events **out_events)
{
    struct events_stream_opts streams[LIMIT_AGENT_VOLUMES];
    const struct events_opts opts = {.agent = conf->name,
                                     .stream_count = conf->events_count,
                                     .streams = streams,
                                     .take = events_from_agent,
                                     .lost = events_lost_by_agent,
                                     .arg = agent};

    *out_events = NULL;
    for (uint32_t i = 0; i < conf->events_count; i++) {
        const struct conf_events *from = &conf->events[i];

        streams[i] = (struct events_stream_opts){.volume = events_volume_number(conf, from->volume),
                                                 .name = from->volume,
                                                 .endpoint = from->endpoint,
                                                 .replay = from->replay,
                                                 .window_bytes = from->window_bytes,
                                                 .mode = from->mode};
    }
    return conf->events_count == 0 ? ICMS_OK : events_start(&opts, why, out_events);
}

/* ---- metrics -------------------------------------------------------------------------------- */

enum events_value {
    EVENTS_HASHES,
    EVENTS_BATCHES,
    EVENTS_LOST,
    EVENTS_REPLAYS,
    EVENTS_REPLAYS_REFUSED,
    EVENTS_FLOODS,
    EVENTS_SUBSCRIBERS,
    EVENTS_VALUES
};

static void events_family(const struct events *events, struct ctl_page *page, const char *family,
                          enum events_value value)
{
    char name[2 * LIMIT_NAME_BYTES], labels[2 * LIMIT_NAME_BYTES + 32];
    struct events_stats stats;
    const char *volume;

    for (uint32_t i = 0; (volume = events_volume(events, i)) != NULL; i++) {
        events_stats(events, i, &stats);
        const uint64_t values[EVENTS_VALUES] = {
            [EVENTS_HASHES] = stats.hashes,
            [EVENTS_BATCHES] = stats.batches,
            [EVENTS_LOST] = stats.lost,
            [EVENTS_REPLAYS] = stats.replays,
            [EVENTS_REPLAYS_REFUSED] = stats.replays_refused,
            [EVENTS_FLOODS] = stats.floods,
            [EVENTS_SUBSCRIBERS] = stats.subscribers,
        };

        (void)snprintf(labels, sizeof(labels), "volume=\"%s\"",
                       ctl_label(volume, name, sizeof(name)));
        ctl_sample(page, family, labels, (double)values[value]);
    }
}

void agent_events_metrics(const struct events *events, struct ctl_page *page)
{
    if (events == NULL)
        return;
    ctl_family(page, "icms_agent_events_total", "counter",
               "Events published: a block came into memory or the own drive, or left it.");
    events_family(events, page, "icms_agent_events_total", EVENTS_HASHES);
    ctl_family(page, "icms_agent_event_batches_total", "counter", "Batches in which they were.");
    events_family(events, page, "icms_agent_event_batches_total", EVENTS_BATCHES);
    ctl_family(page, "icms_agent_events_lost_total", "counter",
               "Events that found no space and were not published.");
    events_family(events, page, "icms_agent_events_lost_total", EVENTS_LOST);
    ctl_family(page, "icms_agent_event_replays_total", "counter",
               "Replays that were sent to their end.");
    events_family(events, page, "icms_agent_event_replays_total", EVENTS_REPLAYS);
    ctl_family(page, "icms_agent_event_replays_refused_total", "counter",
               "Messages to a replay endpoint that ask for nothing, and replays that nobody read.");
    events_family(events, page, "icms_agent_event_replays_refused_total", EVENTS_REPLAYS_REFUSED);
    ctl_family(page, "icms_agent_event_floods_total", "counter",
               "Times that all connections to an endpoint were ended, as there were too many.");
    events_family(events, page, "icms_agent_event_floods_total", EVENTS_FLOODS);
    ctl_family(page, "icms_agent_event_subscribers", "gauge", "Connections to an endpoint now.");
    events_family(events, page, "icms_agent_event_subscribers", EVENTS_SUBSCRIBERS);
}
