/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line, one write. Any thread.
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

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
    if (write(STDERR_FILENO, line, used) < 0)
        return; /* nobody to tell */
}
