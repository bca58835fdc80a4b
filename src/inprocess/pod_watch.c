/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/pod_watch.c: see pod_watch.h.
 *
 * The file is read, not asked for notifications: half a second is soon enough, and a rename, a
 * symbolic link that is swapped, a file system of another machine or of FUSE all look the same. A
 * text counts when two looks in a row have found it, so that a file that is being written is not
 * taken halfway; after pod_watch_look() at once. Everything but starting and ending is done on the
 * thread of the watch.
 */
#include "inprocess/pod_watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"

/* How often the file is looked at; and while names are resolved. */
#define WATCH_LOOK_MS 500
#define WATCH_SOON_MS 20

/* The agent is not asked more often which enclosures are down: the answer is about all of them. */
#define WATCH_STATS_NS ((uint64_t)200 * 1000 * 1000)

/* How long the start waits for names. */
#define WATCH_FIRST_MS 2000

/* What the file said. */
struct watch_text {
    char *text; /* NULL: it cannot be read; why says the reason */
    size_t bytes;
    struct err_why why;
};

struct pod_watch {
    const char *path;
    struct agent *agent;
    struct pod_map *map;
    struct watch_text seen;    /* by the last look                                            */
    bool is_offered;           /* seen counts, and was offered                                */
    struct agent_stats *stats; /* of watch_is_down                                            */
    uint64_t stats_ns;         /* when they were taken                                        */
    const struct conf_agent *conf;
    const struct pod_watch_told *told;
    bool is_started;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows                                             */
    pthread_cond_t wake;  /* something of it changed                                     */
    bool is_ending, is_asked;
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
        if (enclosure->links[i].addr.port == addr->port &&
            strcmp(enclosure->links[i].addr.host, addr->host) == 0)
            return enclosure->links[i].state == AGENT_ENCLOSURE_EXCLUDED;
    return enclosure->state == AGENT_ENCLOSURE_EXCLUDED;
}

static bool watch_is_down(void *arg, const struct uuid *uuid, const struct loop_addr *addr)
{
    struct pod_watch *watch = arg;
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());

    if (watch->agent == NULL)
        return false;
    if (now_ns >= watch->stats_ns + WATCH_STATS_NS) {
        agent_stats(watch->agent, watch->stats);
        watch->stats_ns = now_ns;
    }
    for (uint32_t i = 0; i < watch->stats->enclosure_count; i++)
        if (uuid_equal(&watch->stats->enclosures[i].uuid, uuid))
            return link_is_down(&watch->stats->enclosures[i], addr);
    return false;
}

static void watch_say(void *arg, enum pod_map_say how, const char *sentence)
{
    struct pod_watch *watch = arg;

    if (watch->told != NULL)
        watch->told->say(watch->told->arg, how, sentence);
}

/* ---- looking -------------------------------------------------------------------------------- */

static bool text_equal(const struct watch_text *a, const struct watch_text *b)
{
    if (a->text == NULL || b->text == NULL)
        return a->text == b->text && strcmp(a->why.text, b->why.text) == 0;
    return a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0;
}

/* Reads the file. What is new counts when it is found once more, or now. */
static void watch_look(struct pod_watch *watch, bool is_asked)
{
    struct watch_text text = {.text = NULL};
    bool is_same;

    if (conf_pod_text(watch->path, &text.why, &text.text, &text.bytes) != ICMS_OK)
        text.text = NULL;
    is_same = text_equal(&text, &watch->seen);
    if (is_same) {
        free(text.text);
    } else {
        free(watch->seen.text);
        watch->seen = text;
        watch->is_offered = false;
    }
    if (is_asked)
        pod_map_again(watch->map);
    if (is_asked || (is_same && !watch->is_offered)) {
        watch->is_offered = true;
        if (watch->seen.text != NULL)
            pod_map_offer(watch->map, watch->seen.text, watch->seen.bytes, watch->path);
        else
            pod_map_unreadable(watch->map, watch->seen.why.text);
    }
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

/* Waits for the time, or for being asked; true: to end. */
static bool watch_wait(struct pod_watch *watch, uint32_t ms, bool *out_is_asked)
{
    struct timespec until;
    bool is_ending;

    check(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    check(pthread_mutex_lock(&watch->lock) == 0);
    while (!watch->is_ending && !watch->is_asked &&
           pthread_cond_timedwait(&watch->wake, &watch->lock, &until) == 0) {
    }
    is_ending = watch->is_ending;
    *out_is_asked = watch->is_asked;
    watch->is_asked = false;
    check(pthread_mutex_unlock(&watch->lock) == 0);
    return is_ending;
}

static void *watch_run(void *arg)
{
    struct pod_watch *watch = arg;
    bool is_asked = false, is_soon = false;
    uint32_t since_ms = 0;

    while (!watch_wait(watch, is_soon ? WATCH_SOON_MS : WATCH_LOOK_MS, &is_asked)) {
        since_ms += is_soon ? WATCH_SOON_MS : WATCH_LOOK_MS;
        if (is_asked || since_ms >= WATCH_LOOK_MS) {
            watch_look(watch, is_asked);
            since_ms = 0;
        }
        is_soon = pod_map_turn(watch->map, loop_env_now_ns(loop_env_uring()));
        if (is_asked) {
            watch_told(watch);
            watch_keys(watch);
        }
    }
    return NULL;
}

/* ---- life ----------------------------------------------------------------------------------- */

static void watch_init(struct pod_watch *watch)
{
    pthread_condattr_t attributes;

    check(pthread_mutex_init(&watch->lock, NULL) == 0);
    check(pthread_condattr_init(&attributes) == 0);
    check(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    check(pthread_cond_init(&watch->wake, &attributes) == 0);
    (void)pthread_condattr_destroy(&attributes);
}

/* The map of the start: it is there, and right. */
static icms_err watch_first(struct pod_watch *watch, const struct conf_agent *conf,
                            struct err_why *why)
{
    const struct pod_map_opts opts = {.conf = conf,
                                      .apply = watch_apply,
                                      .is_down = watch_is_down,
                                      .say = watch_say,
                                      .arg = watch};
    struct conf_pod *pod = malloc(sizeof(*pod));
    icms_err err = conf_pod_text(watch->path, why, &watch->seen.text, &watch->seen.bytes);

    if (err != ICMS_OK)
        watch->seen.text = NULL;
    watch->stats = malloc(sizeof(*watch->stats));
    if (err == ICMS_OK && (pod == NULL || watch->stats == NULL))
        err = err_set(why, ICMS_NO_MEMORY, "no memory for the pod map");
    if (err == ICMS_OK)
        err = conf_pod_parse(watch->seen.text, watch->seen.bytes, watch->path, why, pod);
    watch->is_offered = true;
    if (err == ICMS_OK)
        err = pod_map_new(&opts, pod, why, &watch->map);
    free(pod);
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
    watch_init(watch);
    watch->path = conf->pod;
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
    struct timespec pause = {.tv_nsec = WATCH_SOON_MS * 1000000L};
    uint32_t waited_ms = 0;

    if (watch == NULL)
        return;
    while (!pod_map_first(watch->map, &io_opts->enclosures, &io_opts->enclosure_count) &&
           waited_ms < WATCH_FIRST_MS) {
        (void)nanosleep(&pause, NULL);
        waited_ms += WATCH_SOON_MS;
    }
    io_opts->volumes = pod_map_volumes(watch->map);
    io_opts->epoch = pod_map_used(watch->map)->epoch;
    io_opts->pod_name = pod_map_used(watch->map)->name;
}

icms_err pod_watch_start(struct pod_watch *watch, struct agent *agent, struct err_why *why)
{
    sigset_t all, before;
    int error;

    if (watch == NULL)
        return ICMS_OK;
    watch->agent = agent;
    (void)sigfillset(&all); /* signals are for threads of the program */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&watch->thread, NULL, watch_run, watch);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return err_set(why, err_from_errno(error), "no thread to watch %s: %s", watch->path,
                       strerror(error));
    watch->is_started = true;
    return ICMS_OK;
}

static void watch_tell(struct pod_watch *watch, bool *flag)
{
    check(pthread_mutex_lock(&watch->lock) == 0);
    *flag = true;
    check(pthread_cond_signal(&watch->wake) == 0);
    check(pthread_mutex_unlock(&watch->lock) == 0);
}

void pod_watch_look(struct pod_watch *watch)
{
    if (watch != NULL)
        watch_tell(watch, &watch->is_asked);
}

void pod_watch_free(struct pod_watch **watch_)
{
    struct pod_watch *watch = *watch_;

    *watch_ = NULL;
    if (watch == NULL)
        return;
    if (watch->is_started) {
        watch_tell(watch, &watch->is_ending);
        check(pthread_join(watch->thread, NULL) == 0);
    }
    pod_map_free(&watch->map);
    free(watch->seen.text);
    free(watch->stats);
    check(pthread_cond_destroy(&watch->wake) == 0);
    check(pthread_mutex_destroy(&watch->lock) == 0);
    free(watch);
}
