/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/daemon.h: what the daemons' main() functions share: the command line, signals, readiness,
 * exit statuses, and what of the machine stands in the way.
 *
 *     status = daemon_options(&program, argc, argv, &opts);      --help and the like end here
 *     if (status >= 0) return status;
 *     read the configuration; daemon_failed() on errors; daemon_warnings()
 *     if (opts.check_config) return daemon_config_right(&opts);
 *     if (daemon_begin(&opts, locked_bytes, &why) != ICMS_OK) return daemon_failed(...);
 *     build and start everything                                 threads from here on
 *     daemon_ready(&opts, "nvme=%s http=%s", ...);
 *     while ((number = daemon_wait(500, &heartbeat)) != DAEMON_END) ...;
 *     drain and stop                                             a second signal ends at once
 *     return DAEMON_DONE;
 *
 * All of it on the main thread.
 */
#ifndef CMD_DAEMON_H
#define CMD_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/limits.h"
#include "conf/conf.h"
#include "ctl/audit.h"
#include "ctl/ctl.h"
#include "ctl/heartbeat.h"

/* Exit statuses. */
enum daemon_exit {
    DAEMON_DONE = 0,   /* ended as asked                                 */
    DAEMON_FAILED = 1, /* could not start, or had to give up             */
    DAEMON_USAGE = 2,  /* the command line or the configuration is wrong */
};

/* After the first signal: a drain that takes longer is ended. Under systemd's default of 90. */
#define DAEMON_DRAIN_SECONDS 30

struct daemon_program {
    const char *name;             /* "icms-target"                                          */
    const char *summary;          /* one sentence for --help                                */
    const char *config_default;   /* "/etc/icms/target.yaml"                                */
    const char *(*example)(void); /* conf_target_example: for --print-config                */
    bool format;                  /* --format is an option of it                            */
};

struct daemon_opts {
    const char *config;               /* file to read: --config or the default                  */
    bool check_config;                /* read it, say whether it is right, end                  */
    const char *format[LIMIT_DRIVES]; /* --format: drives that may be overwritten, as written */
    uint32_t format_count;            /* of those                                         */
    int ready_fd;                     /* gets one line when serving; -1: none                   */
};

/* Reads the command line; sets up logging. Returns an exit status when the program ends here (what
 * there is to say is printed), -1 to go on. */
int daemon_options(const struct daemon_program *program, int argc, char **argv,
                   struct daemon_opts *out_opts);

/* Logs the sentence of an error and returns the exit status for it. what: "icms-target cannot
 * start"; used when why is empty. */
int daemon_failed(icms_err err, const struct err_why *why, const char *what);

/* Says that the configuration is right; returns DAEMON_DONE. */
int daemon_config_right(const struct daemon_opts *opts);

/* A sentence of a check of this machine, as a warning: where the configuration is for another one
 * it means nothing. arg: unused. */
void daemon_here_warn(void *arg, const char *sentence);

/* Whether the machine, and the control groups around this process, have so much memory: LIMIT with
 * a sentence; daemon_here_warn says it instead with opts->check_config. where: the configuration
 * keys that say so. */
icms_err daemon_memory_check(const struct daemon_opts *opts, const char *program,
                             uint64_t need_bytes, const char *where,
                             struct err_why *why) ICMS_MUST_CHECK;

/* Where HTTP is served and who may read it, into opts; texts stay those of conf. */
void daemon_http(const struct conf_http *conf, struct ctl_http_opts *opts);

/* What ctl_http_check says of it; ICMS_OK without an HTTP port. */
icms_err daemon_http_check(const struct conf_http *conf, struct err_why *why) ICMS_MUST_CHECK;

/* Logs the warnings of a configuration. */
void daemon_warnings(const struct conf_warnings *warnings);

/* What is at the path of an own drive, for --check-config; bytes: the size of a missing file.
 * CONFIG: no drive could be there. NOT_FOUND: there is none on this machine. */
icms_err daemon_drive_check(const char *config, const char *path, uint64_t bytes,
                            struct err_why *why) ICMS_MUST_CHECK;

/* Says when every user of the machine can read a drive; a missing one is made for its owner alone.
 */
void daemon_drive_warn(const char *path);

/* Reads token and certificates of the HTTP port again, and says what came of it. http: NULL: there
 * is no port. */
void daemon_http_read_again(struct ctl_http *http, const char *listen,
                            const struct ctl_audit *audit);

/* Before any thread starts: holds back SIGTERM, SIGINT and SIGHUP for daemon_wait, ignores SIGPIPE
 * and SIGXFSZ, raises the limits on files and locked memory as far as they go, and looks for what
 * would fail later: UNSUPPORTED with the remedy where io_uring is forbidden. Fewer locked pages
 * than locked_bytes (what is to be registered) or an old kernel is a warning. */
icms_err daemon_begin(const struct daemon_opts *opts, uint64_t locked_bytes,
                      struct err_why *why) ICMS_MUST_CHECK;

/* Everything serves. Writes "ready " and the text as a line to --ready-fd and closes it, tells the
 * service manager ($NOTIFY_SOCKET), and logs it. The text is KEY=VALUE words: nvme=127.0.0.1:4420
 */
void daemon_ready(const struct daemon_opts *opts, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* What daemon_wait saw. */
enum daemon_signal {
    DAEMON_NONE,       /* the time was over                                   */
    DAEMON_END,        /* SIGTERM, SIGINT                                     */
    DAEMON_READ_AGAIN, /* SIGHUP: what may change is to be read again         */
};

/* Waits for a signal, at most timeout_ms. From DAEMON_END on the program drains: a second signal,
 * or DAEMON_DRAIN_SECONDS, end it at once with DAEMON_FAILED. Asks the reactors of heartbeat (NULL:
 * none), so it is called at least every CTL_HEARTBEAT_ASK_NS; while all answer, the service
 * manager's watchdog is told. */
enum daemon_signal daemon_wait(uint32_t timeout_ms, struct ctl_heartbeat *heartbeat);

/* Keys of who were read again (kind: "host", "enclosure" or "http"): logged and audited.
 * why NULL: others are used from now on, and former says what becomes of connections that there
 * are; else they stay, and why says what to do. */
void daemon_keys_said(const struct ctl_audit *audit, const char *kind, const char *who,
                      const char *former, const char *why);

#endif
