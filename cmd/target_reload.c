/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_reload.c: a target that reads its file again, and follows its pod map, see
 * target_reload.h.
 */
#include "target_reload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "daemon.h"
#include "drive_health.h"
#include "target_auth.h"
#include "target_page.h"

#define RELOAD_REMEDY "--config (--print-config prints an example)"

/* A map that was refused for what passes (a drive that is slow, memory) is tried again. */
#define RELOAD_AGAIN_NS ((uint64_t)5 * 1000 * 1000 * 1000)

void target_reload_drives(const struct conf_target *conf, struct target_drive_opts *out_drives)
{
    for (uint32_t i = 0; i < conf->drive_count; i++)
        out_drives[i] = (struct target_drive_opts){
            .path = conf->drives[i].path,
            .bytes = conf->drives[i].bytes,
            .bytes_per_block = conf->drives[i].bytes_per_block,
            .budget = conf->drives[i].budget,
            .format = conf->drives[i].format_empty ? TARGET_FORMAT_EMPTY : TARGET_FORMAT_NOTHING,
            .drains = conf->drives[i].state == CONF_DRIVE_DRAINING};
}

void target_reload_pod(const struct conf_live *live, struct target_opts *io_opts)
{
    const struct conf_pod *pod = conf_live_pod(live);

    io_opts->pod = pod != NULL ? pod->name : NULL;
    io_opts->pod_epoch = pod != NULL ? pod->epoch : 0;
}

/* ---- the map's file ------------------------------------------------------------------------- */

/* On the thread of the watch. A text that was not taken yet is out of date. */
static void map_put(struct target_reload *reload, char *text, size_t bytes, const char *unreadable)
{
    struct target_map *map = &reload->map;

    check(pthread_mutex_lock(&map->lock) == 0);
    free(map->text);
    map->text = text;
    map->bytes = bytes;
    (void)snprintf(map->unreadable, sizeof(map->unreadable), "%s", unreadable);
    check(pthread_mutex_unlock(&map->lock) == 0);
}

static void map_text(void *arg, bool is_asked, const char *text, size_t bytes)
{
    char *copy = malloc(bytes + 1);

    (void)is_asked;
    if (copy == NULL) {
        map_put(arg, NULL, 0, "no memory for the pod map");
        return;
    }
    memcpy(copy, text, bytes);
    map_put(arg, copy, bytes, "");
}

static void map_unreadable(void *arg, bool is_asked, const char *sentence)
{
    (void)is_asked;
    map_put(arg, NULL, 0, sentence);
}

/* Takes what there is: a text, which is the caller's then, or why there is none. False: no news. */
static bool map_take(struct target_reload *reload, char **out_text, size_t *out_bytes,
                     struct err_why *why)
{
    struct target_map *map = &reload->map;
    bool is_new;

    check(pthread_mutex_lock(&map->lock) == 0);
    is_new = map->text != NULL || map->unreadable[0] != '\0';
    *out_text = map->text;
    *out_bytes = map->bytes;
    memcpy(why->text, map->unreadable, sizeof(why->text));
    map->text = NULL;
    map->unreadable[0] = '\0';
    check(pthread_mutex_unlock(&map->lock) == 0);
    return is_new;
}

static void page_tell(const struct target_reload *reload)
{
    const struct conf_pod *pod = conf_live_pod(reload->runs);
    struct target_page_pod page = {.epoch = 0};

    if (pod != NULL) {
        memcpy(page.name, pod->name, sizeof(page.name));
        page.epoch = pod->epoch;
    }
    memcpy(page.refused, reload->map_refused, sizeof(page.refused));
    target_page_pod_set(&page);
}

/* ---- life ----------------------------------------------------------------------------------- */

icms_err target_reload_init(struct target_reload *reload, const struct daemon_opts *opts,
                            struct err_why *why)
{
    struct conf_pod_file_opts file = {
        .text = map_text, .unreadable = map_unreadable, .arg = reload};
    const char *text;
    size_t bytes;
    icms_err err;

    *reload = (struct target_reload){.path = opts->config, .opts = opts};
    check(pthread_mutex_init(&reload->map.lock, NULL) == 0);
    err = conf_live_read(reload->path, RELOAD_REMEDY, why, &reload->started);
    if (err != ICMS_OK)
        return err;
    file.path = target_reload_conf(reload)->pod;
    if (file.path[0] == '\0')
        return ICMS_OK;
    err = conf_pod_file_new(&file, why, &reload->file);
    if (err != ICMS_OK)
        return err;
    text = conf_pod_file_text(reload->file, &bytes);
    return conf_live_join(reload->started, text, bytes, file.path, why);
}

const struct conf_target *target_reload_conf(const struct target_reload *reload)
{
    return conf_live_target(reload->started);
}

/* Whether the map is as new as the one that the drives had last. */
static icms_err epoch_check(const struct target_reload *reload, const struct target_opts *opts,
                            struct err_why *why)
{
    const struct conf_pod *pod = conf_live_pod(reload->started);
    uint32_t had = target_epoch_known(opts);
    char remedy[128] = "give the pod another name in all files, as no epoch is higher";
    const char *file;
    uint32_t line = conf_live_line(reload->started, UINT32_MAX, "epoch", &file);

    if (pod->epoch >= had)
        return ICMS_OK;
    if (had < UINT32_MAX)
        (void)snprintf(remedy, sizeof(remedy),
                       "set its `epoch` to %u or more, and give it to all servers of the pod",
                       had + 1);
    return err_set(why, ICMS_CONFIG,
                   "%.200s:%u: epoch %u of pod %s is lower than %u, which the drives of this "
                   "enclosure had: what was reset, deleted or changed since then would be undone; "
                   "take the newer map from another server of the pod; if the older one is meant, "
                   "%s",
                   file, line, pod->epoch, pod->name, had, remedy);
}

/* Whether it is the map of this enclosure, or lists a volume of its drives. */
static icms_err foreign_check(const struct target_reload *reload, const struct target_opts *opts,
                              struct err_why *why)
{
    const struct conf_pod *pod = conf_live_pod(reload->started);
    uint32_t held;

    for (uint32_t i = 0; i < pod->enclosure_count; i++)
        if (uuid_equal(&pod->enclosures[i].uuid, &opts->nvmf.enclosure))
            return ICMS_OK;
    held = target_volumes_foreign(opts);
    if (held == 0)
        return ICMS_OK;
    return err_set(why, ICMS_CONFIG,
                   "%s: the map of pod %s, epoch %u, has neither this enclosure, '%s', nor any of "
                   "the %u volumes that its drives were used for: their blocks would be evicted; "
                   "if it is another pod's map, correct `pod`; if it is right, put the enclosure "
                   "there (icms pod add %s)",
                   target_reload_conf(reload)->pod, pod->name, pod->epoch, opts->name, held,
                   opts->name);
}

icms_err target_reload_check(const struct target_reload *reload, const struct target_opts *opts,
                             struct err_why *why)
{
    icms_err err;

    if (conf_live_pod(reload->started) == NULL)
        return ICMS_OK;
    err = foreign_check(reload, opts, why);
    return err == ICMS_OK ? epoch_check(reload, opts, why) : err;
}

icms_err target_reload_start(struct target_reload *reload, struct target *target,
                             const struct ctl_audit *audit, struct err_why *why)
{
    const struct conf_pod *pod = conf_live_pod(reload->started);

    reload->target = target;
    reload->audit = audit;
    reload->runs = reload->started;
    page_tell(reload);
    if (pod != NULL)
        log_line(LOG_INFO, "pod %s: epoch %u is in use; map=%s", pod->name, pod->epoch,
                 target_reload_conf(reload)->pod);
    return conf_pod_file_start(reload->file, why);
}

/* What ran is not needed any more; what the target was made with is. */
static void runs_free(struct target_reload *reload)
{
    if (reload->runs != reload->started)
        conf_live_free(&reload->runs);
    reload->runs = NULL;
}

void target_reload_stop(struct target_reload *reload)
{
    conf_pod_file_free(&reload->file);
    if (reload->step == TARGET_RELOAD_OPENS)
        (void)pthread_join(reload->opener, NULL);
    reload->step = TARGET_RELOAD_NONE;
}

void target_reload_fini(struct target_reload *reload)
{
    target_reload_stop(reload);
    runs_free(reload);
    conf_live_free(&reload->started);
    conf_live_free(&reload->comes);
    free(reload->offered);
    free(reload->map.text);
    check(pthread_mutex_destroy(&reload->map.lock) == 0);
}

/* ---- what is said --------------------------------------------------------------------------- */

static void offered_free(struct target_reload *reload)
{
    free(reload->offered);
    reload->offered = NULL;
}

/* Each sentence about a map once: one that stays wrong, is tried again, or was the answer to SIGHUP
 * a moment before the watch saw it, is no news. */
static void map_refused(struct target_reload *reload, const char *why)
{
    const struct ctl_audit_event event = {.event = "configuration", .result = why};
    char said[sizeof(reload->map_refused)];

    (void)snprintf(said, sizeof(said), "%s", why);
    if (strcmp(reload->map_refused, said) == 0)
        return;
    memcpy(reload->map_refused, said, sizeof(said));
    page_tell(reload);
    if (strcmp(reload->said, said) == 0)
        return;
    log_line(LOG_ERROR, "pod map refused, epoch %u stays in use, and all volumes as they were: %s",
             conf_live_pod(reload->runs)->epoch, reload->map_refused);
    ctl_audit_write(reload->audit, &event);
}

static void refused(struct target_reload *reload, icms_err err, const char *why)
{
    const struct ctl_audit_event event = {.event = "configuration", .result = why};

    conf_live_free(&reload->comes);
    reload->step = TARGET_RELOAD_NONE;
    if (reload->is_map) {
        map_refused(reload, why);
        if (err == ICMS_BUSY || err == ICMS_NO_MEMORY)
            reload->offer_ns = loop_env_now_ns(loop_env_uring()) + RELOAD_AGAIN_NS;
        else
            offered_free(reload);
        return;
    }
    (void)snprintf(reload->said, sizeof(reload->said), "%s", why);
    log_line(LOG_ERROR,
             "configuration refused, all volumes and drives stay as they were: %s; correct the "
             "file, then send SIGHUP again",
             why);
    ctl_audit_write(reload->audit, &event);
}

static const struct volume_spec *volume_find(const struct conf_target *conf, const char *name)
{
    for (uint32_t i = 0; i < conf->volume_count; i++)
        if (strcmp(conf->volumes[i].name, name) == 0)
            return &conf->volumes[i];
    return NULL;
}

/* The change that is told. */
struct told {
    const struct target_reload *reload;
    char volume[LIMIT_NAME_BYTES]; /* whose difference was the last one */
};

/* A line of the log for each difference; of the audit log for each volume that has some. */
static void difference_tell(void *arg, const char *key, const char *was, const char *is)
{
    struct told *told = arg;
    const struct conf_target *before = conf_live_target(told->reload->runs);
    const struct conf_target *after = conf_live_target(told->reload->comes);
    const struct volume_spec *a, *b;
    char volume[LIMIT_NAME_BYTES] = "";

    log_line(LOG_INFO, "configuration: %s: was %s, is %s", key, was, is);
    if (sscanf(key, "volumes[%63[^]]]", volume) != 1 || strcmp(volume, told->volume) == 0)
        return;
    memcpy(told->volume, volume, sizeof(volume));
    a = volume_find(before, volume);
    b = volume_find(after, volume);
    if (a != NULL && b != NULL && uuid_equal(&a->uuid, &b->uuid))
        target_auth_volume(told->reload->audit, b, "changed");
}

/* A line for each volume that came, went or began anew. */
static void volumes_audit(const struct target_reload *reload)
{
    const struct conf_target *was = conf_live_target(reload->runs);
    const struct conf_target *is = conf_live_target(reload->comes);

    for (uint32_t i = 0; i < was->volume_count; i++)
        if (volume_find(is, was->volumes[i].name) == NULL)
            target_auth_volume(reload->audit, &was->volumes[i], "deleted");
    for (uint32_t i = 0; i < is->volume_count; i++) {
        const struct volume_spec *before = volume_find(was, is->volumes[i].name);

        if (before == NULL)
            target_auth_volume(reload->audit, &is->volumes[i], "created");
        else if (!uuid_equal(&before->uuid, &is->volumes[i].uuid))
            target_auth_volume(reload->audit, &is->volumes[i], "reset");
    }
}

static void change_tell(const struct target_reload *reload)
{
    const struct conf_target *is = conf_live_target(reload->comes);
    const struct conf_pod *was = conf_live_pod(reload->runs);
    struct told told = {.reload = reload};

    daemon_warnings(&is->warnings);
    for (uint32_t i = 0; i < is->drive_count && !reload->is_map; i++)
        daemon_drive_warn(is->drives[i].path);
    conf_live_diff(reload->runs, reload->comes, difference_tell, &told);
    if (!reload->is_map)
        log_line(LOG_INFO, "configuration read: %u volumes, %u drives", is->volume_count,
                 is->drive_count);
    if (was != NULL)
        log_line(LOG_INFO, "pod %s: epoch %u -> %u", was->name, was->epoch,
                 conf_live_pod(reload->comes)->epoch);
    volumes_audit(reload);
}

/* ---- a change ------------------------------------------------------------------------------- */

/* What the enclosure refuses, with the line that it is about. */
static void line_refused(struct target_reload *reload, const char *file, uint32_t line,
                         icms_err err, const struct err_why *why)
{
    char text[2 * ERR_WHY_BYTES_MAX];

    (void)snprintf(text, sizeof(text), "%s:%u: %s", file, line, why->text);
    refused(reload, err, text);
}

static void volume_refused(struct target_reload *reload, const struct target_refused *what,
                           icms_err err, const struct err_why *why)
{
    const char *file;
    uint32_t line = conf_live_line(reload->comes, what->volume, what->key, &file);

    line_refused(reload, file, line, err, why);
}

/* Its own thread. */
static void *drives_open(void *arg)
{
    struct target_reload *reload = arg;

    reload->err =
        target_drives_change(reload->target, &reload->target_opts, &reload->drive, &reload->why);
    atomic_store_explicit(&reload->is_opened, true, memory_order_release);
    return NULL;
}

/* What came is compared with what runs, and prepared for the enclosure. *out_is_same: it is a map
 * that is in use already. */
static icms_err comes_check(struct target_reload *reload, bool *out_is_same, struct err_why *why)
{
    const struct conf_target *conf = conf_live_target(reload->comes);
    const struct conf_pod *pod = conf_live_pod(reload->comes);
    enum conf_pod_verdict verdict = CONF_POD_NEW;
    struct err_why cause = {""};
    uint64_t gone;

    *out_is_same = false;
    if (pod != NULL)
        verdict = conf_pod_compare(conf_live_pod(reload->runs), pod, conf->pod, &cause, &gone);
    *out_is_same = verdict == CONF_POD_SAME;
    if (verdict == CONF_POD_REFUSED)
        return err_set(why, ICMS_CONFIG, "%s", cause.text);
    if (verdict == CONF_POD_SHRUNKEN)
        return err_set(why, ICMS_CONFIG,
                       "%.400s; an icms-target, which asks no enclosure, waits "
                       "for that line",
                       cause.text);
    target_opts_init(&reload->target_opts);
    target_reload_pod(reload->comes, &reload->target_opts);
    target_reload_drives(conf, reload->drives);
    reload->target_opts.env = loop_env_uring();
    reload->target_opts.segment_bytes = conf->segment_bytes;
    reload->target_opts.nvmf.memory_bytes = conf->memory_bytes;
    reload->target_opts.drives = reload->drives;
    reload->target_opts.drive_count = conf->drive_count;
    reload->target_opts.volumes = conf->volumes;
    reload->target_opts.volume_count = conf->volume_count;
    reload->target_opts.tenants = conf->tenants;
    reload->target_opts.tenant_count = conf->tenant_count;
    return daemon_memory_check(reload->opts, "icms-target",
                               target_memory_bytes(&reload->target_opts),
                               "memory, and indexes of the drives by bytes_per_block", why);
}

/* The file, and its map. */
static icms_err comes_read(struct target_reload *reload, struct err_why *why)
{
    icms_err err = conf_live_read(reload->path, RELOAD_REMEDY, why, &reload->comes);
    char *text = NULL;
    size_t bytes = 0;

    if (err == ICMS_OK)
        err = conf_live_check(reload->runs, reload->comes, why);
    if (err != ICMS_OK || reload->file == NULL)
        return err;
    err = conf_pod_text(target_reload_conf(reload)->pod, why, &text, &bytes);
    if (err == ICMS_OK)
        err = conf_live_join(reload->comes, text, bytes, target_reload_conf(reload)->pod, why);
    free(text);
    return err;
}

void target_reload_begin(struct target_reload *reload)
{
    struct err_why why = {""};
    bool is_same;
    icms_err err;

    reload->again = reload->comes != NULL;
    if (reload->again)
        return;
    reload->is_map = false;
    err = comes_read(reload, &why);
    if (err == ICMS_OK)
        err = comes_check(reload, &is_same, &why);
    if (err == ICMS_OK)
        reload->step = TARGET_RELOAD_WAITS;
    else
        refused(reload, err, why.text);
}

/* The map that is offered, with the file that runs. */
static void map_begin(struct target_reload *reload)
{
    struct err_why why = {""};
    bool is_same = false;
    icms_err err;

    reload->is_map = true;
    err = conf_live_again(reload->runs, &why, &reload->comes);
    if (err == ICMS_OK)
        err = conf_live_join(reload->comes, reload->offered, reload->offered_bytes,
                             target_reload_conf(reload)->pod, &why);
    if (err == ICMS_OK)
        err = comes_check(reload, &is_same, &why);
    if (err != ICMS_OK) {
        refused(reload, err, why.text);
        return;
    }
    if (!is_same) {
        reload->step = TARGET_RELOAD_WAITS;
        return;
    }
    conf_live_free(&reload->comes);
    offered_free(reload);
    reload->said[0] = '\0';
    if (reload->map_refused[0] == '\0')
        return;
    reload->map_refused[0] = '\0'; /* what was said of another text is over */
    log_line(LOG_INFO, "pod %s: the map's file holds epoch %u again, which is in use",
             conf_live_pod(reload->runs)->name, conf_live_pod(reload->runs)->epoch);
    page_tell(reload);
}

/* Whether the watch of the map has something else, or a map is to be tried again. */
static void map_look(struct target_reload *reload)
{
    struct err_why why = {""};
    char *text;
    size_t bytes;

    if (reload->file == NULL)
        return;
    if (map_take(reload, &text, &bytes, &why)) {
        offered_free(reload);
        reload->offered = text;
        reload->offered_bytes = bytes;
        reload->offer_ns = 0;
        if (text == NULL)
            map_refused(reload, why.text);
    }
    if (reload->offered != NULL && loop_env_now_ns(loop_env_uring()) >= reload->offer_ns)
        map_begin(reload);
}

/* Nothing is in the way: drives are opened. */
static void opener_begin(struct target_reload *reload)
{
    (void)target_drives_changed(reload->target, &reload->why);
    if (target_drives_changing(reload->target))
        return;
    reload->why = (struct err_why){""};
    atomic_store(&reload->is_opened, false);
    reload->step = TARGET_RELOAD_OPENS;
    if (pthread_create(&reload->opener, NULL, drives_open, reload) != 0)
        refused(reload, ICMS_NO_MEMORY, "no thread could be made");
}

/* Drives are open: volumes change. */
static void volumes_begin(struct target_reload *reload)
{
    struct target_refused what;
    struct err_why why = {""};
    icms_err err;

    (void)pthread_join(reload->opener, NULL);
    if (reload->err != ICMS_OK) {
        line_refused(reload, reload->path, conf_live_drive_line(reload->comes, reload->drive),
                     reload->err, &reload->why);
        return;
    }
    reload->step = TARGET_RELOAD_VOLUMES;
    err = target_volumes_change(reload->target, &reload->target_opts, &what, &why);
    if (err != ICMS_OK) {
        target_drives_cancel(reload->target);
        volume_refused(reload, &what, err, &why);
    }
}

static void drives_begin(struct target_reload *reload)
{
    struct target_refused what;
    struct err_why why = {""};
    icms_err err;

    if (!target_volumes_changed(reload->target, &err, &what, &why))
        return;
    if (err != ICMS_OK) {
        target_drives_cancel(reload->target);
        volume_refused(reload, &what, err, &why);
        return;
    }
    target_drives_commit(reload->target);
    reload->step = TARGET_RELOAD_DRIVES;
}

static void reload_end(struct target_reload *reload)
{
    struct err_why why;

    if (!target_drives_changed(reload->target, &why))
        return;
    change_tell(reload);
    if (why.text[0] != '\0')
        log_line(LOG_ERROR, "%s: %s; mend the drive or the file, and reload", reload->path,
                 why.text);
    drive_health_conf(conf_live_target(reload->comes));
    runs_free(reload);
    reload->runs = reload->comes;
    reload->comes = NULL;
    reload->step = TARGET_RELOAD_NONE;
    offered_free(reload); /* this one, or what the file held before */
    reload->map_refused[0] = reload->said[0] = '\0';
    page_tell(reload);
}

bool target_reload_look(struct target_reload *reload)
{
    switch (reload->step) {
    case TARGET_RELOAD_NONE:
        (void)target_drives_changed(reload->target, &reload->why); /* drives that went */
        break;
    case TARGET_RELOAD_WAITS:
        opener_begin(reload);
        break;
    case TARGET_RELOAD_OPENS:
        if (atomic_load_explicit(&reload->is_opened, memory_order_acquire))
            volumes_begin(reload);
        break;
    case TARGET_RELOAD_VOLUMES:
        drives_begin(reload);
        break;
    case TARGET_RELOAD_DRIVES:
        reload_end(reload);
        break;
    }
    if (reload->step == TARGET_RELOAD_NONE && reload->again) {
        reload->again = false;
        target_reload_begin(reload);
    }
    if (reload->step == TARGET_RELOAD_NONE)
        map_look(reload);
    return reload->step != TARGET_RELOAD_NONE;
}
