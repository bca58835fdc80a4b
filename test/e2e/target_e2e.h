/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test/e2e/target_e2e.h: an icms-target of its own, in a directory of its own. Test code only.
 */
#ifndef TEST_E2E_TARGET_E2E_H
#define TEST_E2E_TARGET_E2E_H

#include <stdio.h>
#include <sys/types.h>

#include "nvmf/target/test_peer.h"

struct e2e {
    const char *program;   /* the icms-target to run                                 */
    char directory[64];    /* configuration, drives, log                             */
    char config[96];       /* the configuration's path                               */
    char log[96];          /* standard error of the last run                         */
    char ready[256];       /* its ready line                                         */
    pid_t pid;             /* 0: not running                                         */
    struct loop_addr addr; /* where it listens                                       */
    unsigned http;         /* port of metrics and health                             */
};

/* Makes the directory; returns false when that fails. */
bool e2e_new(struct e2e *e2e, const char *program);

/* Writes the configuration: extra lines, then drives of so many bytes, then volumes "kv" and
 * "other" of raw values. */
void e2e_configure(struct e2e *e2e, const char *extra, unsigned drives, const char *drive_bytes,
                   const char *volume_extra);

/* Starts it with the option (NULL: none) and waits for its ready line; false when it ended instead:
 * *out_status is its exit status. */
bool e2e_start(struct e2e *e2e, const char *option, int *out_status);

/* The same; a test fails, with the log, when it ends instead. */
void e2e_start_ok(struct e2e *e2e, const char *option);

/* cmocka's setup and teardown for a test whose state is a struct e2e of e2e_program. */
extern const char *e2e_program;
int e2e_setup(void **state);
int e2e_teardown(void **state);

/* Sends a signal; waits for its end; returns its exit status, or 128 + the signal that ended it. */
int e2e_end(struct e2e *e2e, int number);

/* Its log has this text. copy (may be NULL) gets all of it. */
bool e2e_logged(const struct e2e *e2e, const char *text, FILE *copy);

/* Its resident memory now. */
uint64_t e2e_resident_bytes(const struct e2e *e2e);

/* GET over HTTP; returns the status, fills body. */
int e2e_get(const struct e2e *e2e, const char *path, char *body, size_t bytes);

/* The value of a metric, labels included; -1: not there. */
double e2e_metric(const struct e2e *e2e, const char *sample);

/* Kills it if it runs, removes the directory. */
void e2e_free(struct e2e *e2e);

#endif
