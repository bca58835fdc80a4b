/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/instructions.c: instructions that a process executed, user and kernel, counted by the
 * processor. Where processes share cores and caches with others, as all daemons of a bench do on
 * one machine, processor time tells of the neighbours as well; these do not.
 *
 * bench_instructions_open -> bench_instructions_read... -> bench_instructions_close. Threads that
 * begin later are counted with the one that made them. Called on the thread of bench_run.
 */
#include <dirent.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench/bench_int.h"

/* Counts one thread; -1 when the machine has no counter, or we may not use it. */
static int counter_open(pid_t thread)
{
    struct perf_event_attr attr = {.type = PERF_TYPE_HARDWARE,
                                   .size = sizeof(attr),
                                   .config = PERF_COUNT_HW_INSTRUCTIONS,
                                   .inherit = 1};

    return (int)syscall(SYS_perf_event_open, &attr, thread, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

bool bench_instructions_open(struct bench_instructions *counters, pid_t pid)
{
    struct dirent *entry;
    char path[64];
    DIR *threads;
    bool all = true;

    *counters = (struct bench_instructions){0};
    (void)snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    threads = opendir(path);
    if (threads == NULL)
        return false;
    while (all && (entry = readdir(threads)) != NULL) {
        pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        int fd;

        if (thread <= 0) /* . and .. */
            continue;
        fd = counters->count < BENCH_INSTRUCTIONS_THREADS ? counter_open(thread) : -1;
        all = fd >= 0;
        if (all)
            counters->fd[counters->count++] = fd;
    }
    (void)closedir(threads);
    all = all && counters->count > 0;
    if (!all)
        bench_instructions_close(counters);
    return all;
}

uint64_t bench_instructions_read(const struct bench_instructions *counters)
{
    uint64_t sum = 0, one;

    for (uint32_t i = 0; i < counters->count; i++)
        if (read(counters->fd[i], &one, sizeof(one)) == (ssize_t)sizeof(one))
            sum += one;
    return sum;
}

void bench_instructions_close(struct bench_instructions *counters)
{
    while (counters->count > 0)
        (void)close(counters->fd[--counters->count]);
}
