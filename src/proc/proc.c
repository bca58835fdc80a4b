/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proc/proc.c: daemons as child processes.
 *
 * Called by `icms dev` and the benches on one thread. A child: proc_child_start (fork, exec, wait
 * for the line on --ready-fd) -> it serves -> proc_child_stop.
 */
#include "proc/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROC_READY_MS    15000
#define PROC_STOP_MS     10000
#define PROC_OPTIONS_MAX 4

void proc_program(const char *name, char *out, size_t bytes)
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
static _Noreturn void proc_exec(const struct proc_child *child, const char *program,
                                const char *config, const char *const *options, int ready_fd,
                                pid_t parent)
{
    int log = open(child->log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    int nothing = open("/dev/null", O_RDONLY);
    const char *argv[6 + PROC_OPTIONS_MAX] = {child->name, "--config", config, "--ready-fd"};
    char number[16];
    size_t argc = 4;

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* it died before we asked to be told */
        _exit(127);
    (void)setpgid(0, 0);
    (void)snprintf(number, sizeof(number), "%d", ready_fd);
    argv[argc++] = number;
    for (int i = 0; options != NULL && options[i] != NULL && i < PROC_OPTIONS_MAX; i++)
        argv[argc++] = options[i];
    if (log >= 0 && nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 &&
        dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0)
        (void)execvp(program, (char *const *)(uintptr_t)argv);
    (void)dprintf(STDERR_FILENO, "cannot run %s: %s\n", program, strerror(errno));
    _exit(127);
}

static bool proc_stopped(const volatile sig_atomic_t *stop)
{
    return stop != NULL && *stop != 0;
}

/* Waits for the ready line; false when the child ended or said nothing in time. */
static bool proc_wait_ready(struct proc_child *child, int fd, const volatile sig_atomic_t *stop)
{
    struct pollfd event = {.fd = fd, .events = POLLIN};
    size_t bytes = 0;

    for (int ms = 0; ms < PROC_READY_MS && !proc_stopped(stop); ms += 100) {
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

/* The end of its log, zero-terminated; returns how much there is. */
static size_t proc_log_read(const struct proc_child *child, char *text, size_t bytes)
{
    int fd = open(child->log, O_RDONLY | O_CLOEXEC);
    off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    off_t at = size >= (off_t)bytes ? size - (off_t)bytes + 1 : 0;
    ssize_t n = fd < 0 ? 0 : pread(fd, text, bytes - 1, at);

    if (fd >= 0)
        (void)close(fd);
    n = n < 0 ? 0 : n;
    text[n] = 0;
    return (size_t)n;
}

void proc_log_tail(const struct proc_child *child)
{
    char text[2048];

    if (proc_log_read(child, text, sizeof(text)) > 0)
        (void)fprintf(stderr, "%s", text);
}

/* It did not start: says so with its last words. */
static icms_err proc_start_failed(const struct proc_child *child, struct err_why *why)
{
    char text[512], *line;
    size_t bytes = proc_log_read(child, text, sizeof(text));

    while (bytes > 0 && text[bytes - 1] == '\n')
        text[--bytes] = 0;
    line = strrchr(text, '\n');
    line = line == NULL ? text : line + 1;
    return err_set(why, ICMS_IO, "%s did not start: %s", child->name,
                   line[0] != 0 ? line : "it said nothing");
}

icms_err proc_child_start(struct proc_child *child, const char *dir, const char *config,
                          const char *const *options, const volatile sig_atomic_t *stop,
                          struct err_why *why)
{
    char program[PATH_MAX];
    pid_t parent = getpid();
    bool ready;
    int fds[2];

    proc_program(child->name, program, sizeof(program));
    child->ready[0] = 0;
    if ((size_t)snprintf(child->log, sizeof(child->log), "%s/%s.log", dir, child->name) >=
        sizeof(child->log))
        return err_set(why, ICMS_INVALID, "%s: the path is too long", dir);
    if (pipe2(fds, O_CLOEXEC) != 0)
        return err_set(why, ICMS_IO, "cannot make a pipe: %s", strerror(errno));
    child->pid = fork();
    if (child->pid == 0) {
        (void)fcntl(fds[1], F_SETFD, 0);
        proc_exec(child, program, config, options, fds[1], parent);
    }
    (void)close(fds[1]);
    if (child->pid < 0) {
        child->pid = 0;
        (void)close(fds[0]);
        return err_set(why, ICMS_IO, "cannot start %s: %s", program, strerror(errno));
    }
    ready = proc_wait_ready(child, fds[0], stop);
    (void)close(fds[0]);
    if (ready)
        return ICMS_OK;
    proc_child_stop(child);
    if (proc_stopped(stop))
        return err_set(why, ICMS_CANCELED, "ended by a signal");
    return proc_start_failed(child, why);
}

void proc_child_stop(struct proc_child *child)
{
    int status;

    if (child->pid == 0)
        return;
    (void)kill(child->pid, SIGTERM);
    for (int ms = 0; ms < PROC_STOP_MS; ms += 20) {
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

bool proc_child_ended(struct proc_child *child)
{
    int status;

    if (child->pid == 0 || waitpid(child->pid, &status, WNOHANG) != child->pid)
        return false;
    child->pid = 0;
    return true;
}

const char *proc_ready_word(const struct proc_child *child, const char *key, char *out,
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

icms_err proc_file_write(const char *dir, const char *name, const char *text, struct err_why *why,
                         char *out_path, size_t bytes)
{
    bool whole;
    FILE *file;

    if ((size_t)snprintf(out_path, bytes, "%s/%s", dir, name) >= bytes)
        return err_set(why, ICMS_INVALID, "%s: the path is too long", dir);
    file = fopen(out_path, "we");
    if (file == NULL)
        return err_set(why, ICMS_IO, "cannot write %s: %s", out_path, strerror(errno));
    whole = fputs(text, file) >= 0;
    if (fclose(file) != 0 || !whole)
        return err_set(why, ICMS_IO, "cannot write %s: %s", out_path, strerror(errno));
    return ICMS_OK;
}
