/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proc/proc.h: a daemon of ours as a child process: started, waited for until it serves, ended.
 *
 * For programs that bring their own pod: `icms dev` and `icms bench`. A child runs in a process
 * group of its own, so that Ctrl-C reaches its parent alone, and dies with its parent, whatever
 * ends that one. Everything here blocks; to be called by one thread, which must live as long as the
 * child does.
 */
#ifndef PROC_PROC_H
#define PROC_PROC_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

/* A daemon that takes --config and --ready-fd. Zeroed but for its name before the start. */
struct proc_child {
    const char *name;   /* "icms-target": looked for beside this program, then in $PATH     */
    pid_t pid;          /* 0: it does not run                                               */
    char ready[256];    /* its ready line: KEY=VALUE words                                  */
    char log[PATH_MAX]; /* where its output goes                                            */
};

/* Where the program of this name is: beside this one, else as it is, for $PATH. */
void proc_program(const char *name, char *out, size_t bytes);

/* Starts the daemon with a configuration and waits until it is ready. options: further arguments,
 * ended by NULL, or NULL. Its output is appended to DIR/NAME.log. stop: given up, with CANCELED,
 * when it becomes other than 0; NULL: never. IO: it ended or said nothing in time; why has its last
 * words. Unless OK, nothing runs. */
icms_err proc_child_start(struct proc_child *child, const char *dir, const char *config,
                          const char *const *options, const volatile sig_atomic_t *stop,
                          struct err_why *why) ICMS_MUST_CHECK;

/* SIGTERM, and waits until it is gone; SIGKILL after 10 s. Harmless when it does not run. */
void proc_child_stop(struct proc_child *child);

/* True, once, when it ended by itself. */
bool proc_child_ended(struct proc_child *child);

/* The value of a word KEY=VALUE of the ready line in out, "" when it is not there; returns out. */
const char *proc_ready_word(const struct proc_child *child, const char *key, char *out,
                            size_t bytes);

/* The last lines of its log, to standard error. */
void proc_log_tail(const struct proc_child *child);

/* Writes a file of text at DIR/NAME; its path goes to out_path. */
icms_err proc_file_write(const char *dir, const char *name, const char *text, struct err_why *why,
                         char *out_path, size_t bytes) ICMS_MUST_CHECK;

#endif
