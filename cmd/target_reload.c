/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_reload.c: a target that reads its file again, see target_reload.h.
 */
#include "target_reload.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "daemon.h"
#include "target_auth.h"

icms_err target_reload_init(struct target_reload *reload, const char *path, struct target *target,
                            const struct ctl_audit *audit, struct err_why *why)
{
    *reload = (struct target_reload){.path = path, .target = target, .audit = audit};
    return conf_live_read(path, why, &reload->runs);
}

void target_reload_fini(struct target_reload *reload)
{
    conf_live_free(&reload->runs);
    conf_live_free(&reload->comes);
}

/* ---- what is said --------------------------------------------------------------------------- */

static void refused(struct target_reload *reload, const char *why)
{
    const struct ctl_audit_event event = {.event = "configuration", .result = why};

    log_line(LOG_ERROR,
             "configuration refused, all volumes stay as they were: %s; correct the "
             "file, then send SIGHUP again",
             why);
    ctl_audit_write(reload->audit, &event);
    conf_live_free(&reload->comes);
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
    conf_live_diff(reload->runs, reload->comes, difference_tell, &told);
    log_line(LOG_INFO, "configuration read: %u volumes", is->volume_count);
    volumes_audit(reload);
}

/* ---- a change ------------------------------------------------------------------------------- */

/* What the enclosure refuses, with the line that it is about. */
static void enclosure_refused(struct target_reload *reload, const struct target_refused *what,
                              const struct err_why *why)
{
    char text[2 * ERR_WHY_BYTES_MAX];

    (void)snprintf(text, sizeof(text), "%s:%u: %s", reload->path,
                   conf_live_line(reload->comes, what->volume, what->key), why->text);
    refused(reload, text);
}

void target_reload_begin(struct target_reload *reload)
{
    struct target_refused what;
    struct target_opts opts;
    struct err_why why = {""};
    icms_err err;

    reload->again = reload->comes != NULL;
    if (reload->again)
        return;
    err = conf_live_read(reload->path, &why, &reload->comes);
    if (err == ICMS_OK)
        err = conf_live_check(reload->runs, reload->comes, &why);
    if (err != ICMS_OK) {
        refused(reload, why.text);
        return;
    }
    target_opts_init(&opts);
    opts.volumes = conf_live_target(reload->comes)->volumes;
    opts.volume_count = conf_live_target(reload->comes)->volume_count;
    opts.tenants = conf_live_target(reload->comes)->tenants;
    opts.tenant_count = conf_live_target(reload->comes)->tenant_count;
    err = target_volumes_change(reload->target, &opts, &what, &why);
    if (err != ICMS_OK)
        enclosure_refused(reload, &what, &why);
}

bool target_reload_look(struct target_reload *reload)
{
    struct target_refused what;
    struct err_why why = {""};
    icms_err err;

    if (!target_volumes_changed(reload->target, &err, &what, &why))
        return reload->comes != NULL;
    if (err != ICMS_OK) {
        enclosure_refused(reload, &what, &why);
    } else {
        change_tell(reload);
        conf_live_free(&reload->runs);
        reload->runs = reload->comes;
        reload->comes = NULL;
    }
    if (reload->again)
        target_reload_begin(reload);
    return reload->comes != NULL;
}
