/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/stderr_rig.h: what a call logs, for tests. One thread.
 */
#ifndef CMD_STDERR_RIG_H
#define CMD_STDERR_RIG_H

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

/* What is written to standard error from now on is kept for stderr_end(), up to what a pipe holds.
 */
struct stderr_rig {
    int kept, from;
};

static inline void stderr_begin(struct stderr_rig *rig)
{
    int pipes[2];

    rig->kept = dup(STDERR_FILENO);
    assert_int_equal(pipe(pipes), 0);
    (void)fflush(stderr);
    assert_true(dup2(pipes[1], STDERR_FILENO) >= 0);
    (void)close(pipes[1]);
    rig->from = pipes[0];
}

/* Into text, with a zero behind it; text. */
static inline char *stderr_end(struct stderr_rig *rig, char *text, size_t bytes)
{
    ssize_t n;

    (void)fflush(stderr);
    assert_true(dup2(rig->kept, STDERR_FILENO) >= 0);
    (void)close(rig->kept);
    n = read(rig->from, text, bytes - 1);
    (void)close(rig->from);
    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

#endif
