/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line, one write. Any thread.
 *
 * Who reads the log may have stopped (a pager, a log collector). A daemon that waited for it would
 * answer no signal and tell no service manager that it runs, so a line that would wait is dropped,
 * and the next one that does not is preceded by how many were.
 */
#include "base/log.h"

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"

#define LOG_LINE_BYTES 1024

static enum log_level log_level_max = LOG_INFO;
static const char *log_name = "icms";

void log_level_set(enum log_level level)
{
    log_level_max = level;
}

void log_name_set(const char *name)
{
    log_name = name;
}

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t log_dropped; /* log_lock */

/* A pipe that has room has room for a line. */
static bool log_has_room(void)
{
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};

    return poll(&room, 1, 0) != 0; /* what is wrong with it is write()'s to find */
}

static void log_write(const char *line, size_t bytes)
{
    char text[128];
    int n;

    (void)pthread_mutex_lock(&log_lock);
    if (log_dropped != 0 && log_has_room()) {
        n = snprintf(text, sizeof(text), "%s: %llu lines were dropped: nothing read the log\n",
                     log_name, (unsigned long long)log_dropped);
        log_dropped = 0;
        (void)!write(STDERR_FILENO, text, u64_min((uint64_t)n, sizeof(text) - 1));
    }
    if (!log_has_room())
        log_dropped++;
    else
        (void)!write(STDERR_FILENO, line, bytes); /* there is nowhere to report an error */
    (void)pthread_mutex_unlock(&log_lock);
}

void log_line(enum log_level level, const char *format, ...)
{
    static const char *const words[] = {"error", "warning", "info", "debug"};
    char line[LOG_LINE_BYTES];
    struct timespec now;
    struct tm tm;
    va_list args;
    size_t used;
    int n;

    if (level > log_level_max)
        return;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &tm);
    used = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
    n = snprintf(line + used, sizeof(line) - used, ".%03ldZ %s %s: ", now.tv_nsec / 1000000,
                 log_name, words[level]);
    used += n > 0 ? (size_t)n : 0;
    va_start(args, format);
    n = vsnprintf(line + used, sizeof(line) - used - 1, format, args);
    va_end(args);
    used += n > 0 ? (size_t)n : 0;
    if (used > sizeof(line) - 2)
        used = sizeof(line) - 2;
    line[used++] = '\n';
    log_write(line, used);
}
