/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl/audit.c: the audit log, see audit.h. Called on control threads.
 */
#include "ctl/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

#define AUDIT_LINE_BYTES 1024

/* Who can write the file, or owns it, could take out what it says about him; one who may write in
 * its folder could have made it before the daemon did. */
static icms_err audit_check(int fd, const char *path, struct err_why *why)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return err_set(why, err_from_errno(errno), "cannot write the audit log %.300s: %s", path,
                       strerror(errno));
    if (status.st_uid != geteuid() && status.st_uid != 0)
        return err_set(why, ICMS_PERMISSION,
                       "cannot use the audit log %.300s: its owner is user %u; it must be user %u, "
                       "who runs this, or root: see chown(1), and who may write in its folder",
                       path, (unsigned)status.st_uid, (unsigned)geteuid());
    return S_ISREG(status.st_mode) ? file_mode_check(&status, "the audit log ", path, why)
                                   : ICMS_OK;
}

static icms_err audit_open(const char *path, struct err_why *why, int *out_fd)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    icms_err err;

    if (fd < 0)
        return err_set(why, err_from_errno(errno),
                       "cannot write the audit log %.300s: %s; its folder must be there, and "
                       "belong to the user of this process",
                       path, strerror(errno));
    err = audit_check(fd, path, why);
    if (err == ICMS_OK)
        *out_fd = fd;
    else
        (void)close(fd);
    return err;
}

icms_err ctl_audit_init(struct ctl_audit *audit, const char *program, const char *where,
                        struct err_why *why)
{
    icms_err err;
    int fd;

    *audit = (struct ctl_audit){.program = NULL};
    if (where[0] == '\0' || strcmp(where, "none") == 0)
        return ICMS_OK;
    if (strcmp(where, "journal") != 0) {
        err = audit_open(where, why, &fd);
        if (err != ICMS_OK)
            return err;
        (void)close(fd);
        audit->path = where;
    }
    audit->program = program;
    return ICMS_OK;
}

static void audit_text(struct json *json, const char *name, const char *text)
{
    if (text != NULL)
        json_put_string(json, name, text);
}

void ctl_audit_write(const struct ctl_audit *audit, const struct ctl_audit_event *event)
{
    char line[AUDIT_LINE_BYTES], stamp[32];
    struct err_why why = {""};
    time_t now = time(NULL);
    struct json json;
    struct tm utc;
    size_t length;
    int fd;

    if (audit->program == NULL)
        return;
    (void)strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_init(&json, line, sizeof(line) - 1);
    json_put_object(&json, NULL);
    json_put_string(&json, "time", stamp);
    json_put_string(&json, "program", audit->program);
    audit_text(&json, "event", event->event);
    audit_text(&json, "host", event->host);
    audit_text(&json, "method", event->method);
    audit_text(&json, "peer", event->peer);
    audit_text(&json, "volume", event->volume);
    audit_text(&json, "user", event->user);
    audit_text(&json, "result", event->result);
    json_put_uint(&json, "queue", event->queue);
    json_put_uint(&json, "missed", event->missed);
    json_put_end(&json);
    length = json_finish(&json);
    if (length >= sizeof(line) - 1) /* texts are far shorter */
        return;
    if (audit->path == NULL) {
        log_line(LOG_INFO, "audit: %s", line);
        return;
    }
    line[length++] = '\n';
    if (audit_open(audit->path, &why, &fd) != ICMS_OK) {
        log_line(LOG_ERROR, "%s", why.text);
        return;
    }
    if (write(fd, line, length) != (ssize_t)length)
        log_line(LOG_ERROR, "audit log %.300s: cannot write: %s; free space, or mend its folder",
                 audit->path, strerror(errno));
    (void)close(fd);
}
