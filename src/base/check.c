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

void check_dump(void (*dump)(void *arg), void *arg)
{
    check_dump_fn = dump;
    check_dump_arg = arg;
}

_Noreturn void check_failed(const char *file, int line, const char *function, const char *text)
{
    void (*dump)(void *arg) = check_dump_fn;

    (void)fprintf(stderr, "check failed: %s:%d: %s: %s\n", file, line, function, text);
    check_dump_fn = NULL;
    if (dump != NULL)
        dump(check_dump_arg);
    (void)fflush(stderr);
    abort();
}
