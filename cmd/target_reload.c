/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_reload.c: a target that reads its file again, see target_reload.h.
 */
#include "target_reload.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "daemon.h"
#include "drive_health.h"
#include "target_auth.h"

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

icms_err target_reload_init(struct target_reload *reload, const struct daemon_opts *opts,
                            struct target *target, const struct ctl_audit *audit,
                            struct err_why *why)
{
    *reload = (struct target_reload){
        .path = opts->config, .opts = opts, .target = target, .audit = audit};
    return conf_live_read(reload->path, why, &reload->runs);
}

void target_reload_fini(struct target_reload *reload)
{
    if (reload->step == TARGET_RELOAD_OPENS)
        (void)pthread_join(reload->opener, NULL);
    conf_live_free(&reload->runs);
    conf_live_free(&reload->comes);
}

/* ---- what is said --------------------------------------------------------------------------- */

static void refused(struct target_reload *reload, const char *why)
{
    const struct ctl_audit_event event = {.event = "configuration", .result = why};

    log_line(LOG_ERROR,
             "configuration refused, all volumes and drives stay as they were: %s; correct the "
             "file, then send SIGHUP again",
             why);
    ctl_audit_write(reload->audit, &event);
    conf_live_free(&reload->comes);
    reload->step = TARGET_RELOAD_NONE;
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
    struct told told = {.reload = reload};

    daemon_warnings(&is->warnings);
    for (uint32_t i = 0; i < is->drive_count; i++)
        daemon_drive_warn(is->drives[i].path);
    conf_live_diff(reload->runs, reload->comes, difference_tell, &told);
    log_line(LOG_INFO, "configuration read: %u volumes, %u drives", is->volume_count,
             is->drive_count);
    volumes_audit(reload);
}

/* ---- a change ------------------------------------------------------------------------------- */

/* What the enclosure refuses, with the line that it is about. */
static void enclosure_refused(struct target_reload *reload, uint32_t line,
                              const struct err_why *why)
{
    char text[2 * ERR_WHY_BYTES_MAX];

    (void)snprintf(text, sizeof(text), "%s:%u: %s", reload->path, line, why->text);
    refused(reload, text);
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

void target_reload_begin(struct target_reload *reload)
{
    struct err_why why = {""};
    icms_err err;

    reload->again = reload->comes != NULL;
    if (reload->again)
        return;
    err = conf_live_read(reload->path, &why, &reload->comes);
    if (err == ICMS_OK)
        err = conf_live_check(reload->runs, reload->comes, &why);
    if (err == ICMS_OK) {
        const struct conf_target *conf = conf_live_target(reload->comes);

        target_opts_init(&reload->target_opts);
        target_reload_drives(conf, reload->drives);
        reload->target_opts.env = loop_env_uring();
        reload->target_opts.segment_bytes = conf->segment_bytes;
        reload->target_opts.memory_bytes = conf->memory_bytes;
        reload->target_opts.drives = reload->drives;
        reload->target_opts.drive_count = conf->drive_count;
        reload->target_opts.volumes = conf->volumes;
        reload->target_opts.volume_count = conf->volume_count;
        reload->target_opts.tenants = conf->tenants;
        reload->target_opts.tenant_count = conf->tenant_count;
        err = daemon_memory_check(reload->opts, "icms-target",
                                  target_memory_bytes(&reload->target_opts),
                                  "memory, and indexes of the drives by bytes_per_block", &why);
    }
    if (err != ICMS_OK) {
        refused(reload, why.text);
        return;
    }
    reload->step = TARGET_RELOAD_WAITS;
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
        refused(reload, "no thread could be made");
}

/* Drives are open: volumes change. */
static void volumes_begin(struct target_reload *reload)
{
    struct target_refused what;
    struct err_why why = {""};
    icms_err err;

    (void)pthread_join(reload->opener, NULL);
    if (reload->err != ICMS_OK) {
        enclosure_refused(reload, conf_live_drive_line(reload->comes, reload->drive), &reload->why);
        return;
    }
    reload->step = TARGET_RELOAD_VOLUMES;
    err = target_volumes_change(reload->target, &reload->target_opts, &what, &why);
    if (err != ICMS_OK) {
        target_drives_cancel(reload->target);
        enclosure_refused(reload, conf_live_line(reload->comes, what.volume, what.key), &why);
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
        enclosure_refused(reload, conf_live_line(reload->comes, what.volume, what.key), &why);
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
    conf_live_free(&reload->runs);
    reload->runs = reload->comes;
    reload->comes = NULL;
    reload->step = TARGET_RELOAD_NONE;
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
    return reload->step != TARGET_RELOAD_NONE;
}
