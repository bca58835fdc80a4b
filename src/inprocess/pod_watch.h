/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/pod_watch.h: the pod map's file of an agent (`pod` in its configuration), read at the
 * start and watched while the agent runs, in icms-agent and inside a process.
 *
 *     pod_watch_new(&conf, &told, &why, &watch);     reads the map; NULL without `pod`
 *     pod_watch_opts(watch, &opts);                  what to start the agent with
 *     agent_new(env, &opts, ...); agent_start(...);
 *     pod_watch_start(watch, agent, &why);           a thread from here on
 *     pod_watch_look(watch);                         on SIGHUP
 *     pod_watch_free(&watch);                        before agent_stop
 *
 * The owner's thread. Each function does nothing where watch is NULL.
 */
#ifndef INPROCESS_POD_WATCH_H
#define INPROCESS_POD_WATCH_H

#include "inprocess/pod_map.h"

struct pod_watch;

/* Who is told; on the owner's thread and on that of the watch, one at a time. */
struct pod_watch_told {
    /* A sentence for the log; NULL: nobody is told. */
    void (*say)(void *arg, enum pod_map_say how, const char *sentence);
    /* As `said` of agent_keys_read_again; NULL: keys are never read again. */
    void (*keys)(void *arg, const char *enclosure, const char *why);
    void *arg;
};

/* conf and told stay, as long as the watch; told may be NULL. Errors of the file, with its line. */
icms_err pod_watch_new(const struct conf_agent *conf, const struct pod_watch_told *told,
                       struct err_why *why, struct pod_watch **out_watch) ICMS_MUST_CHECK;

/* Enclosures, volumes and epoch of the map. Waits for names to be resolved, 2 s at most. What the
 * options point to stays until pod_watch_start. */
void pod_watch_opts(struct pod_watch *watch, struct agent_opts *io_opts);

icms_err pod_watch_start(struct pod_watch *watch, struct agent *agent,
                         struct err_why *why) ICMS_MUST_CHECK;

/* Reads the file now, and says what it holds even when it is as before; then the keys of the
 * enclosures of the map that is in use. */
void pod_watch_look(struct pod_watch *watch);

void pod_watch_free(struct pod_watch **watch);

#endif
