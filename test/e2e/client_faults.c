/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client sees when its agent is stopped, goes on, dies and comes back.
 *
 * usage: client_faults WHERE PID     PID: of the agent behind WHERE
 *
 * It prints "stopped ok", "resumed ok", "killed ok", and then waits for a line on standard input,
 * with which the caller says that another agent serves; then "back ok".
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "icms/icms.h"

/* What a loaded machine may take for a call that does not wait, or after its deadline. */
#define GRACE_S 20

static struct icms *icms;
static struct icms_volume *volume;

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what, icms_err err, double passed)
{
    (void)fprintf(stderr, "client_faults: %s: %s after %.3f s\n", what, icms_err_name(err), passed);
    exit(1);
}

static struct icms_block block_of(const char *name, uint8_t *data, size_t bytes)
{
    struct icms_block block = {.data = data, .bytes = bytes};

    icms_key_from_name(name, strlen(name), &block.key);
    return block;
}

/* One get with a deadline; the status and how long it took. */
static icms_err get_within(uint32_t deadline_ms, const char *name, struct icms_block *out_block,
                           double *out_passed)
{
    static uint8_t data[4096];
    struct icms_request_options options;
    double begin = now();

    icms_request_options_init(&options);
    options.deadline_ms = deadline_ms;
    *out_block = block_of(name, data, sizeof(data));
    (void)!icms_get(volume, out_block, 1, &options);
    *out_passed = now() - begin;
    if (out_block->status == ICMS_OK)
        for (size_t i = 0; i < sizeof(data); i++)
            if (out_block->bytes != sizeof(data) || data[i] != (uint8_t)name[0])
                die("wrong bytes", ICMS_CORRUPT, *out_passed);
    return out_block->status;
}

static icms_err get(const char *name, struct icms_block *out_block, double *out_passed)
{
    return get_within(300, name, out_block, out_passed);
}

static icms_err put(const char *name, uint32_t ack)
{
    static uint8_t data[4096];
    struct icms_request_options options;
    struct icms_block block = block_of(name, data, sizeof(data));

    icms_request_options_init(&options);
    options.put_ack = ack;
    memset(data, name[0], sizeof(data));
    (void)!icms_put(volume, &block, 1, &options);
    return block.status;
}

static void stopped(pid_t agent)
{
    struct icms_block block;
    double passed, begin;

    (void)kill(agent, SIGSTOP);
    (void)usleep(50000); /* it stops a moment later */
    if (get("nobody", &block, &passed) != ICMS_MISS || block.reason != ICMS_MISS_DEADLINE ||
        passed < 0.29 || passed > GRACE_S)
        die("get of a stopped agent", block.status, passed);
    begin = now(); /* it is known to be stopped: nobody waits for a deadline that is far away */
    for (int i = 0; i < 10; i++)
        if (get_within(10000 * GRACE_S, "nobody", &block, &passed) != ICMS_MISS)
            die("get of an agent known to be stopped", block.status, passed);
    if (now() - begin > GRACE_S)
        die("ten gets of an agent known to be stopped", block.status, now() - begin);
    if (put("x", ICMS_PUT_ACCEPTED) != ICMS_DEADLINE)
        die("put of a stopped agent", ICMS_OK, 0);
    (void)puts("stopped ok");
    (void)kill(agent, SIGCONT);
    for (begin = now(); get("a", &block, &passed) != ICMS_OK && now() - begin < GRACE_S;)
        (void)usleep(20000);
    if (block.status != ICMS_OK)
        die("get of an agent that goes on", block.status, passed);
    (void)puts("resumed ok");
}

static void killed(pid_t agent)
{
    struct icms_block block;
    double passed;

    (void)kill(agent, SIGKILL);
    (void)usleep(50000);
    /* What lies in the arena may still be a hit; anything else says so at once. */
    if (get("nobody", &block, &passed) != ICMS_PEER_DOWN || passed > GRACE_S)
        die("get of a dead agent", block.status, passed);
    if (put("y", ICMS_PUT_ACCEPTED) != ICMS_PEER_DOWN)
        die("put of a dead agent", ICMS_OK, 0);
    (void)puts("killed ok");
}

static void back(void)
{
    struct icms_block block;
    double passed = 0, begin;
    char line[16];

    (void)fflush(stdout);
    if (fgets(line, sizeof(line), stdin) == NULL)
        die("nobody said that the agent is back", ICMS_CANCELED, 0);
    for (begin = now(); get("a", &block, &passed) != ICMS_OK && now() - begin < GRACE_S;)
        (void)usleep(50000);
    if (block.status != ICMS_OK)
        die("get after the agent came back", block.status, passed);
    if (put("b", ICMS_PUT_ON_FLASH) != ICMS_OK || get("b", &block, &passed) != ICMS_OK)
        die("put after the agent came back", block.status, passed);
    (void)puts("back ok");
}

int main(int argc, char **argv)
{
    char why[512];
    pid_t agent;

    if (argc != 3) {
        (void)fprintf(stderr, "usage: client_faults WHERE PID\n");
        return 2;
    }
    agent = (pid_t)strtol(argv[2], NULL, 10);
    if (icms_open(argv[1], NULL, why, sizeof(why), &icms) != ICMS_OK ||
        icms_volume_open(icms, "kv", why, sizeof(why), &volume) != ICMS_OK) {
        (void)fprintf(stderr, "client_faults: %s\n", why);
        return 2;
    }
    if (put("a", ICMS_PUT_ON_FLASH) != ICMS_OK)
        die("put", ICMS_IO, 0);
    stopped(agent);
    killed(agent);
    back();
    icms_close(&icms);
    return 0;
}
