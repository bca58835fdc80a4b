/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of an agent: from its configuration to the publisher, and the publisher's counters as
 * metrics. Called by the main thread, and by ctl's HTTP thread.
 */
#include "agent_events.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

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

/* ---- the log ------------------------------------------------------------------------------- */

/* So long without one, and the next flood is another episode. */
#define FLOOD_NS ((uint64_t)60 * 1000 * 1000 * 1000)

static void look_floods(uint32_t i, const char *volume, const struct events_stats *stats,
                        uint64_t now_ns, struct agent_events_seen *io_seen)
{
    bool goes_on = io_seen->flood_ns[i] != 0 && now_ns < io_seen->flood_ns[i] + FLOOD_NS;

    if (stats->floods == io_seen->floods[i])
        return;
    io_seen->floods[i] = stats->floods;
    io_seen->flood_ns[i] = now_ns;
    if (!goes_on)
        log_line(LOG_WARN,
                 "events of volume %s: all connections to an endpoint were ended, as %d "
                 "connections or %d subscriptions were reached; subscribers connect again and "
                 "miss batches meanwhile: have fewer of them, or a proxy that passes events on; "
                 "floods=%llu",
                 volume, EVENTS_PEERS_MAX, EVENTS_HEARD_MAX, (unsigned long long)stats->floods);
}

static void look_bound(uint32_t i, const char *volume, const struct events_stats *stats,
                       struct agent_events_seen *io_seen)
{
    uint64_t bit = (uint64_t)1 << i;

    if ((stats->bound == 0) == ((io_seen->unbound & bit) != 0))
        return;
    io_seen->unbound ^= bit;
    if (stats->bound == 0)
        log_line(LOG_WARN,
                 "events of volume %s: an endpoint cannot be bound again after its connections "
                 "were ended: %s; nobody can connect to it; will retry",
                 volume, icms_err_text(stats->unbound));
    else
        log_line(LOG_INFO, "events of volume %s: its endpoints are bound again", volume);
}

void agent_events_look(const struct events *events, uint64_t now_ns,
                       struct agent_events_seen *io_seen)
{
    struct events_stats stats;
    const char *volume;

    for (uint32_t i = 0; events != NULL && (volume = events_volume(events, i)) != NULL; i++) {
        events_stats(events, i, &stats);
        look_floods(i, volume, &stats, now_ns, io_seen);
        look_bound(i, volume, &stats, io_seen);
    }
}

/* ---- metrics -------------------------------------------------------------------------------- */

/* One family: what it is called, and where its value is. */
struct events_family {
    const char *name, *kind, *help;
    size_t offset; /* of a uint64_t in struct events_stats */
};

static const struct events_family families[] = {
    {"icms_agent_events_total", "counter",
     "Events published: a block came into memory or the own drive, or left it.",
     offsetof(struct events_stats, hashes)},
    {"icms_agent_event_batches_total", "counter", "Batches in which they were.",
     offsetof(struct events_stats, batches)},
    {"icms_agent_events_lost_total", "counter",
     "Events that found no space and were not published.", offsetof(struct events_stats, lost)},
    {"icms_agent_event_replays_total", "counter", "Replays that were sent to their end.",
     offsetof(struct events_stats, replays)},
    {"icms_agent_event_replays_refused_total", "counter",
     "Messages to a replay endpoint that ask for nothing, and replays that were not read.",
     offsetof(struct events_stats, replays_refused)},
    {"icms_agent_event_floods_total", "counter",
     "Times that all connections to an endpoint were ended: too many of them, or of subscriptions.",
     offsetof(struct events_stats, floods)},
    {"icms_agent_events_bound", "gauge",
     "1; 0: after a flood an endpoint could not be bound again yet.",
     offsetof(struct events_stats, bound)},
    {"icms_agent_event_subscribers", "gauge", "Connections to an endpoint now.",
     offsetof(struct events_stats, subscribers)},
};

static void family_write(const struct events *events, const struct events_family *family,
                         struct ctl_page *page)
{
    char name[2 * LIMIT_NAME_BYTES], labels[2 * LIMIT_NAME_BYTES + 32];
    struct events_stats stats;
    const char *volume;
    uint64_t value;

    ctl_family(page, family->name, family->kind, family->help);
    for (uint32_t i = 0; (volume = events_volume(events, i)) != NULL; i++) {
        events_stats(events, i, &stats);
        memcpy(&value, (const char *)&stats + family->offset, sizeof(value));
        (void)snprintf(labels, sizeof(labels), "volume=\"%s\"",
                       ctl_label(volume, name, sizeof(name)));
        ctl_sample(page, family->name, labels, (double)value);
    }
}

void agent_events_metrics(const struct events *events, struct ctl_page *page)
{
    for (size_t i = 0; events != NULL && i < sizeof(families) / sizeof(families[0]); i++)
        family_write(events, &families[i], page);
}
