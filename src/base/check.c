/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of the road for impossible states. Any thread.
 */
#include "base/check.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static _Thread_local void (*check_dump_fn)(void *arg);
static _Thread_local void *check_dump_arg;
static _Thread_local struct check_catch *check_catch;

void check_dump(void (*dump)(void *arg), void *arg)
{
    check_dump_fn = dump;
    check_dump_arg = arg;
}

void check_catch_set(struct check_catch *catch_)
{
    check_catch = catch_;
}

struct check_catch *check_catch_get(void)
{
    return check_catch;
}

_Noreturn void check_failed(const char *file, int line, const char *function, const char *text)
{
    void (*dump)(void *arg) = check_dump_fn;

    if (check_catch != NULL)
        check_catch->caught(check_catch, file, line, function, text);
    (void)fprintf(stderr, "check failed: %s:%d: %s: %s\n", file, line, function, text);
    check_dump_fn = NULL;
    if (dump != NULL)
        dump(check_dump_arg);
    (void)fflush(stderr);
    abort();
}
