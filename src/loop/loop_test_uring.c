/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig of the io_uring back end, and a file in a directory of its own.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "loop/loop_test.h"

#define UNTIL_ROUNDS 100000
#define ROUND_NS     100000

struct rig_uring {
    struct rig rig;
    char directory[64];
    char path[96];
};

static void rig_nap(uint64_t ns)
{
    struct timespec nap = {.tv_nsec = (long)ns};

    (void)nanosleep(&nap, NULL);
}

static bool rig_uring_until(struct rig *rig, bool (*condition)(void *arg), void *arg)
{
    for (int i = 0; i < UNTIL_ROUNDS; i++) {
        if (condition(arg))
            return true;
        rig_nap(ROUND_NS);
    }
    return false;
}

static void rig_uring_idle(struct rig *rig)
{
    rig_nap((uint64_t)30 * 1000 * 1000);
}

int rig_uring_setup(void **state)
{
    struct rig_uring *own = calloc(1, sizeof(*own));

    check(own != NULL);
    (void)snprintf(own->directory, sizeof(own->directory), "/var/tmp/icms-loop-XXXXXX");
    check(mkdtemp(own->directory) != NULL);
    (void)snprintf(own->path, sizeof(own->path), "%s/file", own->directory);
    own->rig = (struct rig){.env = loop_env_uring(),
                            .host = "127.0.0.1",
                            .path = own->path,
                            .threads = true,
                            .until = rig_uring_until,
                            .idle = rig_uring_idle};
    *state = &own->rig;
    return 0;
}

int rig_uring_teardown(void **state)
{
    struct rig_uring *own = *state;

    (void)unlink(own->path);
    (void)rmdir(own->directory);
    free(own);
    return 0;
}
