/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/log.h: lines for the operator, on standard error.
 *
 * Programs (cmd, ctl) log at any level; libraries below them only at LOG_DEBUG. Thread-safe: one
 * write(2) a line. Never blocks: lines are dropped, and counted, while nothing reads them.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

enum log_level {
    LOG_ERROR, /* something the operator has to mend        */
    LOG_WARN,  /* something that got worse, and goes on      */
    LOG_INFO,  /* life of the daemon: started, drained, ...  */
    LOG_DEBUG, /* for who changes the code                   */
};

/* Lines above this level are dropped. Default LOG_INFO. Set it before threads start. */
void log_level_set(enum log_level level);

/* The program's name that begins each line. The string must stay. */
void log_name_set(const char *name);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
