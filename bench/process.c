/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/process.c: the other end of a bench that goes over a socket: a forked process, and the
 * values that both of them know.
 *
 * Called on the thread of bench_run, before the bench starts loops: a fork takes no other threads
 * along. A process dies with the one that forked it, or when bench_process_end kills it; it holds
 * nothing that has to be given back.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/crc.h"
#include "bench/bench_int.h"

/* What the new process says about itself. */
struct report {
    icms_err err;       /* OK: it listens             */
    uint16_t port;      /* where                      */
    struct err_why why; /* else: what went wrong      */
};

/* ---- processes ------------------------------------------------------------------------------- */

static void process_body(const char *name, pid_t parent, int fd, bench_process_fn *body, void *arg)
{
    struct report report = {.err = ICMS_OK};
    struct bench_listening listening = {.fd = fd};

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NAME, name);
    if (getppid() != parent)
        _exit(1);
    report.err = body(arg, &listening, &report.why);
    if (report.err != ICMS_OK)
        (void)!write(fd, &report, sizeof(report));
    _exit(1);
}

void bench_process_listens(struct bench_listening *listening, uint16_t port)
{
    struct report report = {.err = ICMS_OK, .port = port};

    (void)!write(listening->fd, &report, sizeof(report));
    (void)close(listening->fd);
}

icms_err bench_process_accept(struct bench_listening *listening, struct err_why *why, int *out_fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)(void *)&address, bytes) != 0 || listen(fd, 1) != 0 ||
        getsockname(fd, (struct sockaddr *)(void *)&address, &bytes) != 0)
        return err_set(why, err_from_errno(errno), "cannot listen on 127.0.0.1: %s",
                       strerror(errno));
    bench_process_listens(listening, ntohs(address.sin_port));
    *out_fd = accept(fd, NULL, NULL);
    if (*out_fd < 0)
        return err_set(why, err_from_errno(errno), "no connection: %s", strerror(errno));
    (void)setsockopt(*out_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return ICMS_OK;
}

icms_err bench_process_connect(const struct bench_process *process, struct err_why *why,
                               int *out_fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons(process->port)};
    int on = 1;

    *out_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*out_fd < 0 || connect(*out_fd, (struct sockaddr *)(void *)&address, sizeof(address)) != 0)
        return err_set(why, err_from_errno(errno), "cannot connect to 127.0.0.1:%u: %s",
                       process->port, strerror(errno));
    (void)setsockopt(*out_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return ICMS_OK;
}

icms_err bench_process_start(const char *name, bench_process_fn *body, void *arg,
                             struct err_why *why, struct bench_process *out_process)
{
    struct report report;
    pid_t pid, parent = getpid();
    ssize_t bytes;
    int fds[2];

    if (pipe(fds) != 0)
        return err_set(why, err_from_errno(errno), "%s: no pipe: %s", name, strerror(errno));
    pid = fork();
    if (pid == 0) {
        (void)close(fds[0]);
        process_body(name, parent, fds[1], body, arg);
    }
    (void)close(fds[1]);
    if (pid < 0) {
        (void)close(fds[0]);
        return err_set(why, ICMS_LIMIT, "%s: no process: %s", name, strerror(errno));
    }
    do
        bytes = read(fds[0], &report, sizeof(report));
    while (bytes < 0 && errno == EINTR);
    (void)close(fds[0]);
    *out_process = (struct bench_process){.pid = pid, .port = report.port};
    if (bytes == sizeof(report) && report.err == ICMS_OK)
        return ICMS_OK;
    bench_process_end(out_process);
    if (bytes != sizeof(report))
        return err_set(why, ICMS_PEER_DOWN, "%s: the process ended before it listened", name);
    *why = report.why;
    return report.err;
}

void bench_process_end(struct bench_process *process)
{
    if (process->pid == 0)
        return;
    (void)kill(process->pid, SIGKILL);
    while (waitpid(process->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    process->pid = 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

icms_err bench_pool_new(uint32_t size, uint64_t bytes, struct err_why *why,
                        struct bench_pool *out_pool)
{
    uint32_t count = bytes > size ? (uint32_t)(bytes / size) : 1;
    uint64_t values = (uint64_t)count * size;
    uint8_t *memory = mmap(NULL, values + count * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (memory == MAP_FAILED)
        return err_set(why, ICMS_NO_MEMORY, "no memory for %llu MiB of values",
                       (unsigned long long)(values >> 20));
    *out_pool = (struct bench_pool){
        .memory = memory, .crc = (uint32_t *)(memory + values), .count = count, .size = size};
    for (uint32_t n = 0; n < count; n++) {
        uint8_t *value = memory + (uint64_t)n * size;

        bench_value_noise(value, size);
        bench_value_stamp(value, size, n, 0);
        out_pool->crc[n] = crc32c(value, size);
    }
    return ICMS_OK;
}

void bench_pool_free(struct bench_pool *pool)
{
    if (pool->memory != NULL)
        (void)munmap(pool->memory,
                     (uint64_t)pool->count * pool->size + pool->count * sizeof(uint32_t));
    pool->memory = NULL;
}
