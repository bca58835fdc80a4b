/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/pod_watch.c: see pod_watch.h.
 *
 * The file is watched by conf/pod_file.h, on a thread; everything but starting and ending is done
 * there.
 */
#include "inprocess/pod_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conf/pod_file.h"

/* The agent is not asked more often which enclosures are down: the answer is about all of them. */
#define WATCH_STATS_NS ((uint64_t)200 * 1000 * 1000)

/* How long the start waits for names. */
#define WATCH_FIRST_MS 2000

struct pod_watch {
    struct conf_pod_file *file;
    struct agent *agent;
    struct pod_map *map;
    struct agent_stats *stats; /* of watch_enclosure      */
    uint64_t stats_ns;         /* when they were taken    */
    const struct conf_agent *conf;
    const struct pod_watch_told *told;
};

/* ---- what the map asks for ------------------------------------------------------------------ */

static icms_err watch_apply(void *arg, uint64_t epoch,
                            const struct agent_enclosure_opts *enclosures, uint32_t count,
                            const struct agent_identity *volumes, struct err_why *why)
{
    struct pod_watch *watch = arg;

    return agent_pod_apply(watch->agent, epoch, enclosures, count, volumes, why);
}

static bool link_is_down(const struct agent_enclosure_stats *enclosure,
                         const struct loop_addr *addr)
{
    for (uint32_t i = 0; addr != NULL && i < enclosure->link_count; i++)
        if (loop_addr_equal(&enclosure->links[i].addr, addr))
            return enclosure->links[i].state == AGENT_ENCLOSURE_EXCLUDED;
    return enclosure->state == AGENT_ENCLOSURE_EXCLUDED;
}

/* What the agent knows of an enclosure; NULL: it does not use it. */
static const struct agent_enclosure_stats *watch_enclosure(struct pod_watch *watch,
                                                           const struct uuid *uuid)
{
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());

    if (watch->agent == NULL)
        return NULL;
    if (now_ns >= watch->stats_ns + WATCH_STATS_NS) {
        agent_stats(watch->agent, watch->stats);
        watch->stats_ns = now_ns;
    }
    for (uint32_t i = 0; i < watch->stats->enclosure_count; i++)
        if (uuid_equal(&watch->stats->enclosures[i].uuid, uuid))
            return &watch->stats->enclosures[i];
    return NULL;
}

static bool watch_is_down(void *arg, const struct uuid *uuid, const struct loop_addr *addr)
{
    const struct agent_enclosure_stats *enclosure = watch_enclosure(arg, uuid);

    return enclosure != NULL && link_is_down(enclosure, addr);
}

static bool watch_answers(void *arg, const struct uuid *uuid)
{
    const struct agent_enclosure_stats *enclosure = watch_enclosure(arg, uuid);

    return enclosure != NULL &&
           (enclosure->state == AGENT_ENCLOSURE_UP || enclosure->state == AGENT_ENCLOSURE_SLOW);
}

static void watch_say(void *arg, enum pod_map_say how, const char *sentence)
{
    struct pod_watch *watch = arg;

    if (watch->told != NULL)
        watch->told->say(watch->told->arg, how, sentence);
}

/* ---- the file ------------------------------------------------------------------------------- */

static void watch_text(void *arg, bool is_asked, const char *text, size_t bytes)
{
    struct pod_watch *watch = arg;

    if (is_asked)
        pod_map_again(watch->map);
    pod_map_offer(watch->map, text, bytes, watch->conf->pod);
}

static void watch_unreadable(void *arg, bool is_asked, const char *sentence)
{
    struct pod_watch *watch = arg;

    if (is_asked)
        pod_map_again(watch->map);
    pod_map_unreadable(watch->map, sentence);
}

static void watch_told(struct pod_watch *watch)
{
    const struct conf_pod *used = pod_map_used(watch->map);
    char sentence[LIMIT_NAME_BYTES + 64];

    (void)snprintf(sentence, sizeof(sentence), "pod %s: the map was read again: epoch %u is in use",
                   used->name, used->epoch);
    watch_say(watch, POD_MAP_TAKEN, sentence);
}

/* Reads the keys of the map that is in use. */
static void watch_keys(struct pod_watch *watch)
{
    struct agent_opts opts;

    if (watch->told == NULL || watch->told->keys == NULL)
        return;
    agent_opts_init(&opts);
    memcpy(opts.host_nqn, watch->conf->host_nqn, sizeof(opts.host_nqn));
    (void)pod_map_first(watch->map, &opts.enclosures, &opts.enclosure_count);
    agent_keys_read_again(watch->agent, &opts, watch->told->keys, watch->told->arg);
}

static bool watch_turn(void *arg, bool is_asked)
{
    struct pod_watch *watch = arg;
    bool is_soon = pod_map_turn(watch->map, loop_env_now_ns(loop_env_uring()));

    agent_map_refused_set(watch->agent, pod_map_refused(watch->map));
    if (is_asked) {
        watch_told(watch);
        watch_keys(watch);
    }
    return is_soon;
}

/* ---- life ----------------------------------------------------------------------------------- */

/* The map of the start: it is there, and right. */
static icms_err watch_first(struct pod_watch *watch, const struct conf_agent *conf,
                            struct err_why *why)
{
    const struct pod_map_opts opts = {.conf = conf,
                                      .apply = watch_apply,
                                      .is_down = watch_is_down,
                                      .answers = watch_answers,
                                      .say = watch_say,
                                      .arg = watch};
    const struct conf_pod_file_opts file = {.path = conf->pod,
                                            .text = watch_text,
                                            .unreadable = watch_unreadable,
                                            .turn = watch_turn,
                                            .arg = watch};
    struct conf_pod *pod = calloc(1, sizeof(*pod));
    const char *text;
    size_t bytes;
    icms_err err = conf_pod_file_new(&file, why, &watch->file);

    watch->stats = malloc(sizeof(*watch->stats));
    if (err == ICMS_OK && (pod == NULL || watch->stats == NULL))
        err = err_set(why, ICMS_NO_MEMORY, "no memory for the pod map");
    if (err == ICMS_OK) {
        text = conf_pod_file_text(watch->file, &bytes);
        err = conf_pod_parse(text, bytes, conf->pod, why, pod);
    }
    if (err == ICMS_OK)
        err = pod_map_new(&opts, pod, why, &watch->map);
    conf_pod_free(&pod);
    return err;
}

icms_err pod_watch_new(const struct conf_agent *conf, const struct pod_watch_told *told,
                       struct err_why *why, struct pod_watch **out_watch)
{
    struct pod_watch *watch;
    icms_err err;

    *out_watch = NULL;
    if (conf->pod[0] == '\0')
        return ICMS_OK;
    watch = calloc(1, sizeof(*watch));
    if (watch == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the pod map");
    watch->conf = conf;
    watch->told = told;
    err = watch_first(watch, conf, why);
    if (err == ICMS_OK)
        *out_watch = watch;
    else
        pod_watch_free(&watch);
    return err;
}

void pod_watch_opts(struct pod_watch *watch, struct agent_opts *io_opts)
{
    struct timespec pause = {.tv_nsec = CONF_POD_FILE_SOON_MS * 1000000L};
    uint32_t waited_ms = 0;

    if (watch == NULL)
        return;
    while (!pod_map_first(watch->map, &io_opts->enclosures, &io_opts->enclosure_count) &&
           waited_ms < WATCH_FIRST_MS) {
        (void)nanosleep(&pause, NULL);
        waited_ms += CONF_POD_FILE_SOON_MS;
    }
    io_opts->volumes = pod_map_volumes(watch->map);
    io_opts->epoch = pod_map_used(watch->map)->epoch;
    io_opts->pod_name = pod_map_used(watch->map)->name;
}

icms_err pod_watch_start(struct pod_watch *watch, struct agent *agent, struct err_why *why)
{
    if (watch == NULL)
        return ICMS_OK;
    watch->agent = agent;
    return conf_pod_file_start(watch->file, why);
}

void pod_watch_look(struct pod_watch *watch)
{
    if (watch != NULL)
        conf_pod_file_look(watch->file);
}

void pod_watch_free(struct pod_watch **watch_)
{
    struct pod_watch *watch = *watch_;

    *watch_ = NULL;
    if (watch == NULL)
        return;
    conf_pod_file_free(&watch->file);
    pod_map_free(&watch->map);
    free(watch->stats);
    free(watch);
}
