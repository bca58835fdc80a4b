/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/tool.c: programs of others that do the same work as a ceiling of ours: fio and iperf3.
 *
 * Each slice is one run of the program, which says as JSON what it moved and in which time; what it
 * needs to start does not count, but is in its processor time. Called on the thread of bench_run,
 * while this process has no other.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench_int.h"

#define TOOL_WORD_BYTES 4352
#define FIO_STRIDE      4
#define IPERF_TRIES     5

/* ---- running a program ----------------------------------------------------------------------- */

/* In the child. */
static _Noreturn void tool_exec(const char *const argv[], int out)
{
    int nothing = open("/dev/null", O_RDWR);

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 && dup2(nothing, STDERR_FILENO) >= 0 &&
        dup2(out >= 0 ? out : nothing, STDOUT_FILENO) >= 0)
        (void)execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* Runs it to its end; what it printed, parsed. The caller gives the object back. */
static icms_err tool_json(const char *const argv[], struct err_why *why, json_t **out_json)
{
    json_error_t error;
    int fds[2], status = 0;
    FILE *output;
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) != 0)
        return err_set(why, err_from_errno(errno), "%s: no pipe", argv[0]);
    pid = fork();
    if (pid == 0)
        tool_exec(argv, fds[1]);
    (void)close(fds[1]);
    output = fdopen(fds[0], "r");
    *out_json = output == NULL || pid < 0 ? NULL : json_loadf(output, 0, &error);
    if (output != NULL)
        (void)fclose(output);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 && *out_json != NULL)
        return ICMS_OK;
    json_decref(*out_json);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return err_set(why, ICMS_UNSUPPORTED, "%s is not installed: apt-get install %s", argv[0],
                       argv[0]);
    return err_set(why, ICMS_IO, "%s failed or did not say what it measured", argv[0]);
}

/* ---- fio ------------------------------------------------------------------------------------- */

icms_err bench_fio_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                       struct bench_slice *slice, struct err_why *why)
{
    struct bench_fio *fio = side->owner;
    uint64_t bytes = fio->values * work->size_bytes, begin = 0;
    bool get = work->op == BENCH_GET;
    char name[TOOL_WORD_BYTES], size[64], offset[64], length[64], depth[32], run[32], pattern[64];
    const char *const argv[] = {"fio",
                                "--name=raw",
                                name,
                                pattern,
                                size,
                                offset,
                                length,
                                depth,
                                run,
                                "--time_based=1",
                                "--ioengine=io_uring",
                                "--direct=1",
                                "--fixedbufs=1",
                                "--registerfiles=1",
                                "--thread",
                                "--output-format=json",
                                NULL};
    json_t *json, *moved;
    icms_err err;

    /* A log goes on where it was. Loads meet every value of which the number leaves the same rest,
     * another one each time, so that like ours they come back to none soon. */
    begin = (get ? fio->runs % FIO_STRIDE : fio->next_write % fio->values) * work->size_bytes;
    if (get)
        (void)snprintf(pattern, sizeof(pattern), "--rw=read:%llu",
                       (FIO_STRIDE - 1) * (unsigned long long)work->size_bytes);
    else
        (void)snprintf(pattern, sizeof(pattern), "--rw=write");
    fio->runs++;
    (void)snprintf(name, sizeof(name), "--filename=%s", fio->path);
    (void)snprintf(size, sizeof(size), "--bs=%u", work->size_bytes);
    (void)snprintf(offset, sizeof(offset), "--offset=%llu", (unsigned long long)begin);
    (void)snprintf(length, sizeof(length), "--size=%llu", (unsigned long long)(bytes - begin));
    (void)snprintf(depth, sizeof(depth), "--iodepth=%u", work->depth);
    (void)snprintf(run, sizeof(run), "--runtime=%llums", (unsigned long long)(ns / 1000000));
    err = tool_json(argv, why, &json);
    if (err != ICMS_OK)
        return err;
    moved =
        json_object_get(json_array_get(json_object_get(json, "jobs"), 0), get ? "read" : "write");
    slice->ops = (uint64_t)json_integer_value(json_object_get(moved, "total_ios"));
    slice->bytes = (uint64_t)json_integer_value(json_object_get(moved, "io_bytes"));
    slice->wall_ns =
        (uint64_t)json_integer_value(json_object_get(moved, "runtime")) * (uint64_t)1000000;
    fio->next_write += get ? 0 : slice->ops;
    json_decref(json);
    return ICMS_OK;
}

/* ---- iperf3 ---------------------------------------------------------------------------------- */

/* A port of loopback that nobody listened on a moment ago; 0: none. */
static uint16_t iperf_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return 0;
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        address.sin_port = 0;
    (void)close(fd);
    return ntohs(address.sin_port);
}

icms_err bench_iperf_start(struct bench_iperf *iperf, struct err_why *why)
{
    struct timespec pause = {.tv_nsec = 300000000};
    char port[16];
    const char *const argv[] = {"iperf3", "-s", "-B", "127.0.0.1", "-p", port, NULL};

    iperf->port = iperf_port();
    (void)snprintf(port, sizeof(port), "%u", iperf->port);
    iperf->server = fork();
    if (iperf->server == 0)
        tool_exec(argv, -1);
    if (iperf->server < 0)
        return err_set(why, err_from_errno(errno), "cannot start iperf3");
    (void)nanosleep(&pause, NULL); /* it says nothing when it listens */
    return ICMS_OK;
}

void bench_iperf_end(struct bench_iperf *iperf)
{
    if (iperf->server <= 0)
        return;
    (void)kill(iperf->server, SIGKILL);
    while (waitpid(iperf->server, NULL, 0) < 0 && errno == EINTR)
        continue;
    iperf->server = 0;
}

icms_err bench_iperf_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                         struct bench_slice *slice, struct err_why *why)
{
    struct bench_iperf *iperf = side->owner;
    char port[16], seconds[16], size[32];
    const char *const argv[] = {"iperf3", "-J", "-c", "127.0.0.1", "-p", port, "-t", seconds, "-l",
                                size,
                                /* as ours: from the server to us */
                                work->op == BENCH_GET ? "-R" : NULL, NULL};
    struct timespec pause = {.tv_nsec = 50000000};
    json_t *json, *received;
    icms_err err;

    (void)snprintf(port, sizeof(port), "%u", iperf->port);
    (void)snprintf(seconds, sizeof(seconds), "%llu",
                   (unsigned long long)((ns + 999999999) / 1000000000));
    /* Its largest block. */
    (void)snprintf(size, sizeof(size), "%u",
                   work->size_bytes < 1u << 20 ? work->size_bytes : 1u << 20);
    /* Its server refuses while it ends the last test: then nothing was received. */
    for (int tries = 0; tries < IPERF_TRIES && slice->bytes == 0; tries++) {
        (void)nanosleep(&pause, NULL);
        err = tool_json(argv, why, &json);
        if (err != ICMS_OK)
            return err;
        received = json_object_get(json_object_get(json, "end"), "sum_received");
        slice->bytes = (uint64_t)json_integer_value(json_object_get(received, "bytes"));
        slice->wall_ns = (uint64_t)(json_number_value(json_object_get(received, "seconds")) * 1e9);
        json_decref(json);
    }
    slice->ops = slice->bytes / work->size_bytes;
    return ICMS_OK;
}
