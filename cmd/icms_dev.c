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
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "icms_cli.h"
#include "proc/proc.h"

#define DEV_DRIVE_MIN ((uint64_t)128 << 20)

struct dev {
    struct cli cli;
    char folder[PATH_MAX - 64]; /* configurations, drive, logs, socket          */
    bool temporary;             /* removed at the end                           */
    bool made;                  /* the folder was made by us                    */
    struct proc_child target, agent;
};

static volatile sig_atomic_t dev_signal;

static void dev_on_signal(int number)
{
    dev_signal = number;
}

/* ---- the folder ----------------------------------------------------------------------------- */

static int dev_folder(struct dev *dev)
{
    const char *temporary = secure_getenv("TMPDIR");
    int n;

    if (dev->cli.dir != NULL) {
        if (mkdir(dev->cli.dir, 0700) == 0)
            dev->made = true;
        else if (errno != EEXIST)
            return cli_fail(&dev->cli, ICMS_IO, "cannot create directory %s: %s", dev->cli.dir,
                            strerror(errno));
        if (realpath(dev->cli.dir, dev->folder) == NULL)
            return cli_fail(&dev->cli, ICMS_IO, "%s: %s", dev->cli.dir, strerror(errno));
    } else {
        n = snprintf(dev->folder, sizeof(dev->folder), "%s/icms-dev-XXXXXX",
                     temporary != NULL && temporary[0] == '/' ? temporary : "/tmp");
        if (n < 0 || (size_t)n >= sizeof(dev->folder) || mkdtemp(dev->folder) == NULL)
            return cli_fail(&dev->cli, ICMS_IO, "cannot create directory %s: %s; set $TMPDIR",
                            dev->folder, strerror(errno));
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

/* Writes a daemon's configuration and starts it. */
static int dev_child_start(struct dev *dev, struct proc_child *child, const char *file,
                           const char *text)
{
    struct err_why why = {{0}};
    char path[PATH_MAX];
    icms_err err = proc_file_write(dev->folder, file, text, &why, path, sizeof(path));

    if (err == ICMS_OK) {
        err = proc_child_start(child, dev->folder, path, NULL, &dev_signal, &why);
        if (err == ICMS_CANCELED)
            return CLI_DONE;
    }
    return err == ICMS_OK ? -1 : cli_fail(&dev->cli, err, "%s", why.text);
}

/* ---- start and stop ------------------------------------------------------------------------- */

static int dev_target_start(struct dev *dev)
{
    char text[2 * PATH_MAX];

    (void)snprintf(text, sizeof(text),
                   "# Made by icms dev.\n"
                   "name: dev\n"
                   "listen: 127.0.0.1:%u\n"
                   "segment: %s\n"
                   "memory: 64MiB\n"
                   "http:\n  listen: 127.0.0.1:0\n"
                   "drives:\n  - path: \"%s/drive\"\n    size: %llu\n    format_empty: true\n"
                   "volumes:\n  - name: %s\n",
                   dev->cli.port, dev->cli.size < (uint64_t)4 << 30 ? "16MiB" : "64MiB",
                   dev->folder, (unsigned long long)dev->cli.size, dev->cli.volume);
    return dev_child_start(dev, &dev->target, "target.yaml", text);
}

static int dev_agent_start(struct dev *dev)
{
    char text[2 * PATH_MAX], address[64];

    (void)snprintf(text, sizeof(text),
                   "# Made by icms dev.\n"
                   "name: dev-agent\n"
                   "socket: \"%s/agent.sock\"\n"
                   "http:\n  listen: 127.0.0.1:0\n"
                   "enclosures:\n  - name: dev\n    address: %s\n"
                   "memory: 256MiB\n"
                   "volumes:\n  - name: %s\n",
                   dev->folder, proc_ready_word(&dev->target, "nvme", address, sizeof(address)),
                   dev->cli.volume);
    return dev_child_start(dev, &dev->agent, "agent.yaml", text);
}

static void dev_say(struct dev *dev)
{
    char nvme[64], target_http[64], agent_http[64];

    (void)proc_ready_word(&dev->target, "nvme", nvme, sizeof(nvme));
    (void)proc_ready_word(&dev->target, "http", target_http, sizeof(target_http));
    (void)proc_ready_word(&dev->agent, "http", agent_http, sizeof(agent_http));
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
                 "  icms exists greeting nothing\n"
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
        struct proc_child *ended = proc_child_ended(&dev->agent)    ? &dev->agent
                                   : proc_child_ended(&dev->target) ? &dev->target
                                                                    : NULL;

        if (ended != NULL) {
            proc_log_tail(ended);
            return cli_fail(&dev->cli, ICMS_IO, "%s ended by itself; the end of its log is above",
                            ended->name);
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
        return cli_usage(&dev.cli, "unexpected argument '%s'", dev.cli.argv[0]);
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
    proc_child_stop(&dev.agent);
    proc_child_stop(&dev.target);
    dev_folder_remove(&dev);
    return status;
}

const struct cli_command cli_dev = {
    .name = "dev",
    .summary = "run a target and an agent on this machine, for trials",
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
