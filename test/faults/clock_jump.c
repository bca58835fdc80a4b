/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clocks that can be set, an hour ahead while the file $ICMS_CLOCK_JUMP is there, or that file with
 * "." and the program's name behind it, for this program alone: LD_PRELOAD for faults.py. Other
 * clocks are as they are.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define JUMP_S 3600

static time_t jump_s(void)
{
    const char *file = getenv("ICMS_CLOCK_JUMP");
    char own[4096];

    if (file == NULL)
        return 0;
    (void)snprintf(own, sizeof(own), "%s.%s", file, program_invocation_short_name);
    return access(file, F_OK) == 0 || access(own, F_OK) == 0 ? JUMP_S : 0;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
    int status = (int)syscall(SYS_clock_gettime, clock, now);

    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += jump_s();
    return status;
}

__attribute__((visibility("default"))) int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec time;
    int status = clock_gettime(CLOCK_REALTIME, &time);

    (void)zone;
    if (status == 0)
        *now = (struct timeval){time.tv_sec, time.tv_nsec / 1000};
    return status;
}

__attribute__((visibility("default"))) time_t time(time_t *out_now)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (out_now != NULL)
        *out_now = now.tv_sec;
    return now.tv_sec;
}
