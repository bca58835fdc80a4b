/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_dev.c: icms dev: one icms-target and one icms-agent on loopback, with a directory for a
 * drive, until Ctrl-C.
 *
 * The daemons are child processes in a process group of their own, so that Ctrl-C reaches us alone
 * and they are ended in order: the agent first, which still stores what it accepted. They die with
 * us, whatever ends us.
 *
 * DEV_TARGET -> DEV_AGENT -> DEV_RUN -> end: each start waits for the line on --ready-fd.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "icms_cli.h"

#define DEV_READY_MS  15000
#define DEV_DRIVE_MIN ((uint64_t)128 << 20)

/* A daemon of ours. */
struct dev_child {
    const char *name; /* "icms-target"                         */
    pid_t pid;        /* 0: not running                        */
    char ready[256];  /* the words of its ready line           */
    char log[PATH_MAX];
};

struct dev {
    struct cli cli;
    char folder[PATH_MAX - 64]; /* configurations, drive, logs, socket          */
    bool temporary;             /* removed at the end                           */
    bool made;                  /* the folder was made by us                    */
    struct dev_child target, agent;
};

static volatile sig_atomic_t dev_signal;

static void dev_on_signal(int number)
{
    dev_signal = number;
}

/* ---- children ------------------------------------------------------------------------------- */

/* PROGRAM beside this program, else in $PATH. */
static void dev_program(const char *name, char *out, size_t bytes)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    if (n > 0) {
        self[n] = 0;
        slash = strrchr(self, '/');
        if (slash != NULL &&
            (size_t)snprintf(out, bytes, "%.*s/%s", (int)(slash - self), self, name) < bytes &&
            access(out, X_OK) == 0)
            return;
    }
    (void)snprintf(out, bytes, "%s", name);
}

/* In the child: becomes the daemon. */
static _Noreturn void dev_exec(const struct dev_child *child, const char *program,
                               const char *config, int ready_fd)
{
    int log = open(child->log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    int nothing = open("/dev/null", O_RDONLY);
    char number[16];

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)setpgid(0, 0);
    (void)snprintf(number, sizeof(number), "%d", ready_fd);
    if (log >= 0 && nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 &&
        dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0)
        (void)execlp(program, child->name, "--config", config, "--ready-fd", number, (char *)NULL);
    (void)dprintf(STDERR_FILENO, "cannot run %s: %s\n", program, strerror(errno));
    _exit(127);
}

/* The last lines of a daemon's log, to standard error. */
static void dev_log_tail(const struct dev_child *child)
{
    char text[2048];
    int fd = open(child->log, O_RDONLY | O_CLOEXEC);
    off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n;

    if (fd < 0)
        return;
    n = pread(fd, text, sizeof(text) - 1, size > (off_t)sizeof(text) ? size - 2047 : 0);
    (void)close(fd);
    if (n > 0) {
        text[n] = 0;
        (void)fprintf(stderr, "%s", text);
    }
}

/* Waits for the ready line; false when the child ended or said nothing in time. */
static bool dev_wait_ready(struct dev_child *child, int fd)
{
    struct pollfd event = {.fd = fd, .events = POLLIN};
    size_t bytes = 0;

    for (int ms = 0; ms < DEV_READY_MS && dev_signal == 0; ms += 100) {
        ssize_t n;

        if (poll(&event, 1, 100) <= 0)
            continue;
        n = read(fd, child->ready + bytes, sizeof(child->ready) - 1 - bytes);
        if (n <= 0)
            return false;
        bytes += (size_t)n;
        child->ready[bytes] = 0;
        if (strchr(child->ready, '\n') != NULL)
            return true;
    }
    return false;
}

static int dev_child_start(struct dev *dev, struct dev_child *child, const char *config)
{
    char program[PATH_MAX];
    int fds[2], wait_status;

    dev_program(child->name, program, sizeof(program));
    if (pipe2(fds, O_CLOEXEC) != 0)
        return cli_fail(&dev->cli, ICMS_IO, "cannot make a pipe: %s", strerror(errno));
    (void)snprintf(child->log, sizeof(child->log), "%s/%s.log", dev->folder, child->name);
    child->pid = fork();
    if (child->pid == 0) {
        (void)fcntl(fds[1], F_SETFD, 0);
        dev_exec(child, program, config, fds[1]);
    }
    (void)close(fds[1]);
    if (child->pid < 0) {
        child->pid = 0;
        (void)close(fds[0]);
        return cli_fail(&dev->cli, ICMS_IO, "cannot start %s: %s", program, strerror(errno));
    }
    if (dev_wait_ready(child, fds[0])) {
        (void)close(fds[0]);
        return -1;
    }
    (void)close(fds[0]);
    if (dev_signal != 0)
        return CLI_DONE;
    dev_log_tail(child);
    if (waitpid(child->pid, &wait_status, WNOHANG) == child->pid)
        child->pid = 0;
    return cli_fail(&dev->cli, ICMS_IO, "%s did not start; what it said is above", child->name);
}

/* SIGTERM, and waits; SIGKILL after a while. */
static void dev_child_stop(struct dev_child *child)
{
    int status;

    if (child->pid == 0)
        return;
    (void)kill(child->pid, SIGTERM);
    for (int ms = 0; ms < 10000; ms += 20) {
        struct timespec pause = {.tv_nsec = 20000000};

        if (waitpid(child->pid, &status, WNOHANG) != 0) {
            child->pid = 0;
            return;
        }
        (void)nanosleep(&pause, NULL);
    }
    (void)kill(child->pid, SIGKILL);
    (void)waitpid(child->pid, &status, 0);
    child->pid = 0;
}

/* The value of a word KEY=VALUE of a ready line; "" when it is not there. */
static const char *dev_ready_word(const struct dev_child *child, const char *key, char *out,
                                  size_t bytes)
{
    const char *at = child->ready;
    size_t length = strlen(key);

    out[0] = 0;
    while ((at = strstr(at, key)) != NULL) {
        if ((at == child->ready || at[-1] == ' ') && at[length] == '=') {
            size_t n = strcspn(at + length + 1, " \n");

            (void)snprintf(out, bytes, "%.*s", (int)n, at + length + 1);
            break;
        }
        at += length;
    }
    return out;
}

/* ---- the folder ----------------------------------------------------------------------------- */

static int dev_folder(struct dev *dev)
{
    const char *temporary = getenv("TMPDIR");
    int n;

    if (dev->cli.dir != NULL) {
        if (mkdir(dev->cli.dir, 0700) == 0)
            dev->made = true;
        else if (errno != EEXIST)
            return cli_fail(&dev->cli, ICMS_IO, "cannot make %s: %s", dev->cli.dir,
                            strerror(errno));
        if (realpath(dev->cli.dir, dev->folder) == NULL)
            return cli_fail(&dev->cli, ICMS_IO, "%s: %s", dev->cli.dir, strerror(errno));
    } else {
        n = snprintf(dev->folder, sizeof(dev->folder), "%s/icms-dev-XXXXXX",
                     temporary != NULL && temporary[0] == '/' ? temporary : "/tmp");
        if (n < 0 || (size_t)n >= sizeof(dev->folder) || mkdtemp(dev->folder) == NULL)
            return cli_fail(&dev->cli, ICMS_IO, "cannot make a temporary directory: %s",
                            strerror(errno));
        dev->temporary = true;
    }
    /* sun_path has 108 bytes. */
    if (strlen(dev->folder) + sizeof("/agent.sock") > 104)
        return cli_fail(&dev->cli, ICMS_INVALID,
                        "%s is too long for a socket in it; take a shorter --dir", dev->folder);
    return -1;
}

/* What was made in a temporary folder; it holds files alone. */
static void dev_folder_remove(struct dev *dev)
{
    DIR *folder;
    const struct dirent *entry;

    if (!dev->temporary || dev->folder[0] == 0)
        return;
    folder = opendir(dev->folder);
    while (folder != NULL && (entry = readdir(folder)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder != NULL)
        (void)closedir(folder);
    (void)rmdir(dev->folder);
}

static int dev_write(struct dev *dev, const char *name, char *out_path, size_t bytes,
                     const char *text)
{
    bool whole;
    FILE *file;

    (void)snprintf(out_path, bytes, "%s/%s", dev->folder, name);
    file = fopen(out_path, "we");
    if (file == NULL)
        return cli_fail(&dev->cli, ICMS_IO, "cannot write %s: %s", out_path, strerror(errno));
    whole = fputs(text, file) >= 0;
    if (fclose(file) != 0 || !whole)
        return cli_fail(&dev->cli, ICMS_IO, "cannot write %s: %s", out_path, strerror(errno));
    return -1;
}

/* ---- start and stop ------------------------------------------------------------------------- */

static int dev_target_start(struct dev *dev)
{
    char text[2 * PATH_MAX], path[PATH_MAX];
    int status;

    (void)snprintf(text, sizeof(text),
                   "# Made by icms dev.\n"
                   "name: dev\n"
                   "listen: 127.0.0.1:%u\n"
                   "segment: %s\n"
                   "memory: 64MiB\n"
                   "http:\n  listen: 127.0.0.1:0\n"
                   "drives:\n  - path: \"%s/drive\"\n    size: %llu\n"
                   "volumes:\n  - name: %s\n",
                   dev->cli.port, dev->cli.size < (uint64_t)4 << 30 ? "16MiB" : "64MiB",
                   dev->folder, (unsigned long long)dev->cli.size, dev->cli.volume);
    status = dev_write(dev, "target.yaml", path, sizeof(path), text);
    return status >= 0 ? status : dev_child_start(dev, &dev->target, path);
}

static int dev_agent_start(struct dev *dev)
{
    char text[2 * PATH_MAX], path[PATH_MAX], address[64];
    int status;

    (void)snprintf(text, sizeof(text),
                   "# Made by icms dev.\n"
                   "name: dev-agent\n"
                   "socket: \"%s/agent.sock\"\n"
                   "http:\n  listen: 127.0.0.1:0\n"
                   "enclosures:\n  - name: dev\n    address: %s\n"
                   "volumes:\n  - name: %s\n    arena: 256MiB\n",
                   dev->folder, dev_ready_word(&dev->target, "nvme", address, sizeof(address)),
                   dev->cli.volume);
    status = dev_write(dev, "agent.yaml", path, sizeof(path), text);
    return status >= 0 ? status : dev_child_start(dev, &dev->agent, path);
}

static void dev_say(struct dev *dev)
{
    char nvme[64], target_http[64], agent_http[64];

    (void)dev_ready_word(&dev->target, "nvme", nvme, sizeof(nvme));
    (void)dev_ready_word(&dev->target, "http", target_http, sizeof(target_http));
    (void)dev_ready_word(&dev->agent, "http", agent_http, sizeof(agent_http));
    if (dev->cli.json) {
        char socket[PATH_MAX];

        (void)snprintf(socket, sizeof(socket), "%s/agent.sock", dev->folder);
        cli_json("{s:s, s:s, s:s, s:s, s:s, s:s}", "socket", socket, "nvme", nvme, "target_http",
                 target_http, "agent_http", agent_http, "volume", dev->cli.volume, "folder",
                 dev->folder);
        (void)fflush(stdout);
        return;
    }
    (void)printf("A target (%s, its drive and logs in %s)\n"
                 "and an agent are running. In another shell:\n\n"
                 "  export ICMS_SOCKET=%s/agent.sock\n",
                 nvme, dev->folder, dev->folder);
    if (strcmp(dev->cli.volume, "kv") != 0)
        (void)printf("  export ICMS_VOLUME=%s\n", dev->cli.volume);
    (void)printf("  echo hello | icms put greeting\n"
                 "  icms get greeting\n"
                 "  icms exists greeting nobody\n"
                 "  icms status\n");
    if (target_http[0] != 0)
        (void)printf("  curl http://127.0.0.1:%s/metrics     # of the target\n", target_http);
    if (agent_http[0] != 0)
        (void)printf("  curl http://127.0.0.1:%s/metrics     # of the agent\n", agent_http);
    (void)printf("\nCtrl-C ends both%s.\n",
                 dev->temporary ? " and removes the directory; --dir keeps one" : "");
    (void)fflush(stdout);
}

/* Sleeps until a signal, or until a daemon ended by itself. */
static int dev_watch(struct dev *dev)
{
    while (dev_signal == 0) {
        struct timespec pause = {.tv_nsec = 200000000};
        int wait_status;
        pid_t pid = waitpid(-1, &wait_status, WNOHANG);
        struct dev_child *child = pid == dev->agent.pid ? &dev->agent : &dev->target;

        if (pid > 0 && (pid == dev->agent.pid || pid == dev->target.pid)) {
            child->pid = 0;
            dev_log_tail(child);
            return cli_fail(&dev->cli, ICMS_IO, "%s ended by itself; the end of its log is above",
                            child->name);
        }
        (void)nanosleep(&pause, NULL);
    }
    return CLI_DONE;
}

static void dev_signals(void)
{
    struct sigaction action = {.sa_handler = dev_on_signal};

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
}

static int dev_run(int argc, char **argv)
{
    static struct dev dev = {.target = {.name = "icms-target"}, .agent = {.name = "icms-agent"}};
    int status = cli_parse(&cli_dev, argc, argv, &dev.cli);

    if (status >= 0)
        return status;
    if (dev.cli.argc != 0)
        return cli_usage(&dev.cli, "it has no argument '%s'", dev.cli.argv[0]);
    if (dev.cli.size < DEV_DRIVE_MIN)
        return cli_usage(&dev.cli, "--size: a drive has at least 128MiB");
    dev_signals();
    status = dev_folder(&dev);
    if (status < 0)
        status = dev_target_start(&dev);
    if (status < 0)
        status = dev_agent_start(&dev);
    if (status < 0) {
        dev_say(&dev);
        status = dev_watch(&dev);
    }
    dev_child_stop(&dev.agent);
    dev_child_stop(&dev.target);
    dev_folder_remove(&dev);
    return status;
}

const struct cli_command cli_dev = {
    .name = "dev",
    .summary = "run a target and an agent here, to try things out",
    .takes = CLI_TAKES_DEV,
    .run = dev_run,
    .help = "usage: icms dev [options]\n"
            "Run one icms-target and one icms-agent on loopback, with a directory for a drive, "
            "until\nCtrl-C, and print the lines to paste to use them.\n\n"
            "      --dir DIR        keep drive, logs and configuration there, for the next time "
            "too;\n"
            "                       default: a temporary directory, removed at the end\n"
            "      --size SIZE      of the drive when it is made; default 1GiB\n"
            "      --port PORT      NVMe/TCP port of the target; default: a free one\n"
            "  -v, --volume NAME    the volume; default $ICMS_VOLUME, else kv\n"
            "      --json           print where everything is as one JSON object\n"
            "  -h, --help           print this\n\n"
            "Exit status: 0 ended by a signal, 1 a daemon did not start or ended, 2 usage.\n",
};
