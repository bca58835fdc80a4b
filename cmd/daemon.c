/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of a daemon that is the same in all. Called by main() of icms-target and icms-agent, on
 * the main thread.
 *
 * Signals are blocked in every thread and taken by daemon_wait() with sigtimedwait(2), so there is
 * no handler while the daemon serves. Once it drains, a handler that only writes and exits stands.
 */
#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/io_uring.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifdef DAEMON_FAULTS
#include "base/fault_arm.h"
#endif
#include "base/log.h"
#include "loop/memory_limit.h"

#define DAEMON_LINE_BYTES 768

/* The kernel that is tested; older ones may work. */
#define KERNEL_MAJOR 6
#define KERNEL_MINOR 1

/* ---- the command line ----------------------------------------------------------------------- */

static void usage_print(const struct daemon_program *program, FILE *to)
{
    (void)fprintf(to,
                  "usage: %s [--config FILE] [options]\n"
                  "%s\n\n"
                  "  -c, --config FILE   configuration; default %s\n"
                  "      --check-config  say whether the configuration is right, and end\n"
                  "      --print-config  print a configuration with every key and its default\n",
                  program->name, program->summary, program->config_default);
    if (program->format)
        (void)fprintf(
            to, "      --format DRIVE  erase this drive, whatever it holds: drive0 (the first of\n"
                "                      the configuration), its path, or all; may be repeated\n");
    (void)fprintf(to,
                  "      --ready-fd N    write a line to descriptor N when serving\n"
                  "  -v, --verbose       log more\n"
                  "  -V, --version       print the version\n"
                  "  -h, --help          print this\n\n"
                  "Exit status: 0 ended as asked, 1 failed, 2 usage or configuration.\n"
                  "See %s(8), %s.yaml(5).\n",
                  program->name, program->name);
}

static int usage_wrong(const struct daemon_program *program, const char *format, const char *text)
{
    (void)fprintf(stderr, "%s: ", program->name);
    (void)fprintf(stderr, format, text);
    (void)fprintf(stderr, "; see %s --help\n", program->name);
    return DAEMON_USAGE;
}

enum option_code {
    OPTION_CHECK = 256,
    OPTION_PRINT,
    OPTION_FORMAT,
    OPTION_READY_FD,
};

static const struct option option_table[] = {
    {"config", required_argument, NULL, 'c'},
    {"check-config", no_argument, NULL, OPTION_CHECK},
    {"print-config", no_argument, NULL, OPTION_PRINT},
    {"format", required_argument, NULL, OPTION_FORMAT},
    {"ready-fd", required_argument, NULL, OPTION_READY_FD},
    {"verbose", no_argument, NULL, 'v'},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* The number of an open descriptor; -1 when text is anything else. */
static int ready_fd_parse(const char *text)
{
    char *end;
    long fd = strtol(text, &end, 10);

    if (end == text || *end != '\0' || fd < 0 || fd > 1 << 20 || fcntl((int)fd, F_GETFD) < 0)
        return -1;
    return (int)fd;
}

/* One option; returns an exit status to end with, or -1. */
static int option_take(const struct daemon_program *program, int code, char **argv,
                       struct daemon_opts *opts)
{
    switch (code) {
    case 'c':
        opts->config = optarg;
        return -1;
    case OPTION_CHECK:
        opts->check_config = true;
        return -1;
    case OPTION_PRINT:
        (void)fputs(program->example(), stdout);
        return DAEMON_DONE;
    case OPTION_FORMAT:
        if (!program->format)
            return usage_wrong(program, "unknown option '%s'", "--format");
        if (opts->format_count == LIMIT_DRIVES)
            return usage_wrong(program, "too many drives to format: '%s'", optarg);
        opts->format[opts->format_count++] = optarg;
        return -1;
    case OPTION_READY_FD:
        opts->ready_fd = ready_fd_parse(optarg);
        if (opts->ready_fd < 0)
            return usage_wrong(program, "--ready-fd: '%s' is not an open descriptor", optarg);
        return -1;
    case 'v':
        log_level_set(LOG_DEBUG);
        return -1;
    case 'V':
        (void)printf("%s %s\n", program->name, DAEMON_VERSION);
        return DAEMON_DONE;
    case 'h':
        usage_print(program, stdout);
        return DAEMON_DONE;
    case ':':
        return usage_wrong(program, "'%s' needs a value", argv[optind - 1]);
    default:
        return usage_wrong(program, "unknown option '%s'", argv[optind - 1]);
    }
}

int daemon_options(const struct daemon_program *program, int argc, char **argv,
                   struct daemon_opts *out_opts)
{
    struct daemon_opts opts = {.config = program->config_default, .ready_fd = -1};
    sigset_t hangup;
    int code;

    /* Not the end of a daemon that starts: it is looked at when it serves. */
    (void)sigemptyset(&hangup);
    (void)sigaddset(&hangup, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &hangup, NULL);
    log_name_set(program->name);
    optind = 0;
    while ((code = getopt_long(argc, argv, ":c:vVh", option_table, NULL)) != -1) {
        int status = option_take(program, code, argv, &opts);

        if (status >= 0)
            return status;
    }
    if (optind < argc)
        return usage_wrong(program, "'%s' is not an option", argv[optind]);
    *out_opts = opts;
    return -1;
}

/* ---- errors and warnings -------------------------------------------------------------------- */

int daemon_failed(icms_err err, const struct err_why *why, const char *what)
{
    if (why != NULL && why->text[0] != '\0')
        log_line(LOG_ERROR, "%s", why->text);
    else
        log_line(LOG_ERROR, "%s: %s", what, icms_err_text(err));
    return err == ICMS_CONFIG ? DAEMON_USAGE : DAEMON_FAILED;
}

int daemon_config_right(const struct daemon_opts *opts)
{
    (void)printf("%s: the configuration is right\n", opts->config);
    return DAEMON_DONE;
}

void daemon_here_warn(void *arg, const char *sentence)
{
    (void)arg;
    log_line(LOG_WARN, "on this machine: %s", sentence);
}

icms_err daemon_memory_check(const struct daemon_opts *opts, const char *program,
                             uint64_t need_bytes, const char *where, struct err_why *why)
{
    struct loop_memory_limit limit;
    icms_err err;

    loop_memory_limit("", &limit);
    err = loop_memory_check(&limit, program, need_bytes, where, why);
    if (err == ICMS_OK || !opts->check_config)
        return err;
    daemon_here_warn(NULL, why->text);
    return ICMS_OK;
}

void daemon_http(const struct conf_http *conf, struct ctl_http_opts *opts)
{
    opts->listen = conf->listen;
    opts->token = conf->token;
    opts->certificate = conf->certificate;
    opts->key = conf->key;
    opts->client_ca = conf->client_ca;
    opts->open = strcmp(conf->open, "none") == 0      ? CTL_HTTP_OPEN_NONE
                 : strcmp(conf->open, "metrics") == 0 ? CTL_HTTP_OPEN_METRICS
                                                      : CTL_HTTP_OPEN_ALL;
}

icms_err daemon_http_check(const struct conf_http *conf, struct err_why *why)
{
    struct ctl_http_opts opts = {.listen = NULL};

    daemon_http(conf, &opts);
    return conf->listen[0] == '\0' ? ICMS_OK : ctl_http_check(&opts, why);
}

void daemon_warnings(const struct conf_warnings *warnings)
{
    for (uint32_t i = 0; i < warnings->count; i++)
        log_line(LOG_WARN, "%s", warnings->text[i]);
}

icms_err daemon_drive_check(const char *config, const char *path, uint64_t bytes,
                            struct err_why *why)
{
    const char *slash = strrchr(path, '/');
    char folder[LIMIT_PATH_BYTES] = ".";
    struct stat status;
    int error = stat(path, &status) == 0 ? 0 : errno;

    if (error == 0 && (S_ISREG(status.st_mode) || S_ISBLK(status.st_mode)))
        return ICMS_OK;
    if (error == 0)
        return err_set(why, ICMS_CONFIG,
                       "%s: local.path: %s is %s; write a block device, or a file", config, path,
                       S_ISDIR(status.st_mode)   ? "a directory"
                       : S_ISCHR(status.st_mode) ? "a character device"
                                                 : "neither a block device nor a regular file");
    if (slash != NULL)
        (void)snprintf(folder, sizeof(folder), "%.*s", slash == path ? 1 : (int)(slash - path),
                       path);
    if (error == ENOENT && stat(folder, &status) == 0)
        return bytes != 0 ? ICMS_OK
                          : err_set(why, ICMS_NOT_FOUND,
                                    "local.path: %s is missing, and no local.size says how large "
                                    "to make it",
                                    path);
    return err_set(why, ICMS_NOT_FOUND,
                   "local.path: cannot find %s: %s; make its directory, or write another path",
                   path, strerror(error));
}

void daemon_drive_warn(const char *path)
{
    struct stat status;

    if (stat(path, &status) == 0 && (S_ISREG(status.st_mode) || S_ISBLK(status.st_mode)) &&
        (status.st_mode & S_IROTH) != 0)
        log_line(LOG_WARN,
                 "drive %s: its mode is 0%03o, so every user of this machine can read what is "
                 "stored there, but for encrypted volumes: `chmod o-r` it",
                 path, (unsigned)status.st_mode & 07777);
}

/* ---- the machine ---------------------------------------------------------------------------- */

/* Raises the soft limit to the hard one; returns what holds then. */
static rlim_t limit_raise(int resource)
{
    struct rlimit limit;

    if (getrlimit(resource, &limit) != 0)
        return 0;
    if (limit.rlim_cur != limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(resource, &limit);
        (void)getrlimit(resource, &limit);
    }
    return limit.rlim_cur;
}

static void locked_memory_check(uint64_t locked_bytes)
{
    rlim_t limit = limit_raise(RLIMIT_MEMLOCK);

    if (geteuid() == 0 || limit == RLIM_INFINITY || limit >= locked_bytes)
        return;
    log_line(LOG_WARN,
             "locked memory is limited to %llu KiB and %llu KiB are wanted: buffers that do not "
             "fit stay unregistered, which costs CPU; raise it with 'ulimit -l unlimited' or "
             "LimitMEMLOCK=infinity in the unit",
             (unsigned long long)limit / 1024, (unsigned long long)locked_bytes / 1024);
}

static icms_err io_uring_check(struct err_why *why)
{
    struct io_uring_params params = {0};
    long fd = syscall(__NR_io_uring_setup, 2, &params);

    if (fd >= 0) {
        (void)close((int)fd);
        return ICMS_OK;
    }
    if (errno == ENOMEM)
        return err_set(why, ICMS_LIMIT,
                       "io_uring: not enough locked memory for a ring; raise it with 'ulimit -l "
                       "unlimited' or LimitMEMLOCK=infinity in the unit");
    return err_set(why, ICMS_UNSUPPORTED,
                   "io_uring cannot be used (%s): on the host set sysctl kernel.io_uring_disabled="
                   "0; in a container allow io_uring_setup, io_uring_enter and io_uring_register "
                   "in its seccomp profile",
                   strerror(errno));
}

static void kernel_check(void)
{
    struct utsname name;
    int major = 0, minor = 0;

    if (uname(&name) != 0 || sscanf(name.release, "%d.%d", &major, &minor) != 2)
        return;
    if (major < KERNEL_MAJOR || (major == KERNEL_MAJOR && minor < KERNEL_MINOR))
        log_line(LOG_WARN, "Linux %s is older than %d.%d, with which this was tested", name.release,
                 KERNEL_MAJOR, KERNEL_MINOR);
}

/* ---- signals -------------------------------------------------------------------------------- */

static sigset_t daemon_signals(void)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGHUP);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    return set;
}

icms_err daemon_begin(const struct daemon_opts *opts, uint64_t locked_bytes, struct err_why *why)
{
    sigset_t set = daemon_signals();

    (void)opts;
#ifdef DAEMON_FAULTS
    icms_err err = fault_arm_environment(why);

    if (err != ICMS_OK)
        return err;
#endif
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* the write says so */
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    (void)limit_raise(RLIMIT_NOFILE);
    locked_memory_check(locked_bytes);
    kernel_check();
    return io_uring_check(why);
}

/* Signal handler while draining: write(2) and _exit(2) only. */
static void end_at_once(int number)
{
    static const char second[] = "ended at once by a second signal\n";
    static const char late[] = "draining took too long, ended at once\n";
    const char *text = number == SIGALRM ? late : second;
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));

    (void)ignored;
    _exit(DAEMON_FAILED);
}

/* ---- readiness ------------------------------------------------------------------------------ */

/* Sends one datagram to the service manager; nothing where there is none. */
static void manager_tell(const char *text)
{
    const char *path = secure_getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = path != NULL ? strlen(path) : 0;
    int fd;

    if (bytes < 2 || bytes >= sizeof(address.sun_path) || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(address.sun_path, path, bytes);
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT,
               (const struct sockaddr *)&address,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes)) < 0)
        log_line(LOG_WARN, "the service manager at %s does not listen: %s", path, strerror(errno));
    (void)close(fd);
}

void daemon_ready(const struct daemon_opts *opts, const char *format, ...)
{
    char line[DAEMON_LINE_BYTES] = "ready ";
    char notice[DAEMON_LINE_BYTES + 32];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line + 6, sizeof(line) - 8, format, args);
    va_end(args);
    log_line(LOG_INFO, "%s", line);
    (void)snprintf(notice, sizeof(notice), "READY=1\nSTATUS=%s\n", line);
    manager_tell(notice);
    if (opts->ready_fd >= 0) {
        strcat(line, "\n");
        if (write(opts->ready_fd, line, strlen(line)) < 0)
            log_line(LOG_WARN, "--ready-fd %d: %s", opts->ready_fd, strerror(errno));
        (void)close(opts->ready_fd);
    }
}

/* ---- health --------------------------------------------------------------------------------- */

/* How often the service manager wants to be told that all is well: four times in its limit. 0: it
 * does not. */
static uint64_t watchdog_interval_ns(void)
{
    const char *usec = secure_getenv("WATCHDOG_USEC"), *pid = secure_getenv("WATCHDOG_PID");
    char *end;
    unsigned long long limit;

    if (usec == NULL || (pid != NULL && strtoll(pid, NULL, 10) != getpid()))
        return 0;
    errno = 0;
    limit = strtoull(usec, &end, 10);
    if (errno != 0 || end == usec || *end != '\0' || limit > UINT32_MAX * 1000000ull)
        return 0;
    return limit * 1000 / 4;
}

/* Asks the reactors, logs when one is stuck or runs again, tells the watchdog while all answer. */
static void health_look(struct ctl_heartbeat *heartbeat)
{
    static uint64_t told_ns;
    static bool was_stuck;
    uint64_t interval_ns = watchdog_interval_ns();
    uint64_t now_ns = loop_env_now_ns(heartbeat->env);
    struct err_why why = {""};
    bool alive;

    ctl_heartbeat_ask(heartbeat);
    alive = ctl_heartbeat_alive(heartbeat, &why);
    if (!alive && !was_stuck)
        log_line(LOG_ERROR, "%s", why.text);
    if (alive && was_stuck)
        log_line(LOG_INFO, "all reactors answer again");
    was_stuck = !alive;
    if (!alive || interval_ns == 0 || (told_ns != 0 && now_ns < told_ns + interval_ns))
        return;
    manager_tell("WATCHDOG=1\n");
    told_ns = now_ns;
}

/* From here on a second signal ends the program at once. */
static void drain_begin(int number)
{
    struct sigaction action = {.sa_handler = end_at_once};
    sigset_t set = daemon_signals();

    log_line(LOG_INFO, "%s: draining", number == SIGINT ? "SIGINT" : "SIGTERM");
    manager_tell("STOPPING=1\n");
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGALRM, &action, NULL);
    (void)signal(SIGHUP, SIG_IGN);
    (void)alarm(DAEMON_DRAIN_SECONDS);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
}

void daemon_keys_said(const struct ctl_audit *audit, const char *kind, const char *who,
                      const char *former, const char *why)
{
    const struct ctl_audit_event event = {
        .event = "keys", .host = who, .result = why == NULL ? "replaced" : why};

    ctl_audit_write(audit, &event);
    if (why == NULL)
        log_line(LOG_INFO, "%s %s: keys replaced: new connections use them; %s", kind, who, former);
    else
        log_line(LOG_ERROR, "%s %s: keys stay as they were: %s; then send SIGHUP again", kind, who,
                 why);
}

void daemon_http_read_again(struct ctl_http *http, const char *listen,
                            const struct ctl_audit *audit)
{
    struct err_why why = {""};
    bool is_new = false;

    if (http == NULL)
        return;
    if (ctl_http_read_again(http, &why, &is_new) != ICMS_OK)
        daemon_keys_said(audit, "http", listen, "", why.text);
    else if (is_new)
        daemon_keys_said(audit, "http", listen, "answers in progress end within a second", NULL);
}

enum daemon_signal daemon_wait(uint32_t timeout_ms, struct ctl_heartbeat *heartbeat)
{
    sigset_t set = daemon_signals();
    struct timespec timeout = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
    int number;

    if (heartbeat != NULL)
        health_look(heartbeat);
    do
        number = sigtimedwait(&set, NULL, &timeout);
    while (number < 0 && errno == EINTR);
    if (number < 0)
        return DAEMON_NONE;
    if (number == SIGHUP) {
        log_line(LOG_INFO, "SIGHUP: reading again what may change while this runs");
        return DAEMON_READ_AGAIN;
    }
    if (heartbeat != NULL)
        ctl_heartbeat_end(heartbeat);
    drain_begin(number);
    return DAEMON_END;
}
