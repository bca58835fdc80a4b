/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts, feeds and ends an icms-target for tests. Test code only.
 */
#include "e2e/target_e2e.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"

bool e2e_new(struct e2e *e2e, const char *program)
{
    *e2e = (struct e2e){.program = program};
    snprintf(e2e->directory, sizeof(e2e->directory), "/var/tmp/icms-e2e-XXXXXX");
    if (mkdtemp(e2e->directory) == NULL)
        return false;
    snprintf(e2e->config, sizeof(e2e->config), "%s/target.yaml", e2e->directory);
    snprintf(e2e->log, sizeof(e2e->log), "%s/log", e2e->directory);
    return true;
}

void e2e_configure(struct e2e *e2e, const char *extra, unsigned drives, const char *drive_bytes,
                   const char *volume_extra)
{
    FILE *file = fopen(e2e->config, "w");

    check(file != NULL);
    fprintf(file, "name: e2e\nnqn: nqn.2026-01.io.icms:test\nlisten: 127.0.0.1:0\n");
    fprintf(file, "http:\n  listen: 127.0.0.1:0\n%s", extra);
    fprintf(file, "drives:\n");
    for (unsigned i = 0; i < drives; i++)
        fprintf(file, "  - path: %s/drive%u\n    size: %s\n    format_empty: true\n",
                e2e->directory, i, drive_bytes);
    fprintf(file, "volumes:\n  - name: kv\n    sealed: false\n%s", volume_extra);
    fprintf(file, "  - name: other\n    sealed: false\n%s", volume_extra);
    check(fclose(file) == 0);
}

static void e2e_exec(struct e2e *e2e, const char *option, int ready_fd)
{
    int log = open(e2e->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    char number[16];

    snprintf(number, sizeof(number), "%d", ready_fd);
    if (log < 0 || dup2(log, 2) < 0)
        _exit(120);
    execl(e2e->program, e2e->program, "--config", e2e->config, "--ready-fd", number, option,
          (char *)NULL);
    _exit(121);
}

static int e2e_wait(struct e2e *e2e)
{
    int status;

    check(waitpid(e2e->pid, &status, 0) == e2e->pid);
    e2e->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool e2e_start(struct e2e *e2e, const char *option, int *out_status)
{
    int fds[2];
    size_t have = 0;
    ssize_t got;
    unsigned port;

    check(e2e->pid == 0 && pipe(fds) == 0);
    e2e->pid = fork();
    check(e2e->pid >= 0);
    if (e2e->pid == 0) {
        close(fds[0]);
        e2e_exec(e2e, option, fds[1]);
    }
    close(fds[1]);
    while ((got = read(fds[0], e2e->ready + have, sizeof(e2e->ready) - 1 - have)) > 0)
        have += (size_t)got;
    e2e->ready[have] = '\0';
    close(fds[0]);
    if (sscanf(e2e->ready, "ready nvme=127.0.0.1:%u http=%u", &port, &e2e->http) != 2) {
        *out_status = e2e_wait(e2e);
        return false;
    }
    memcpy(e2e->addr.host, "127.0.0.1", 10);
    e2e->addr.port = (uint16_t)port;
    return true;
}

int e2e_end(struct e2e *e2e, int number)
{
    check(e2e->pid > 0 && kill(e2e->pid, number) == 0);
    return e2e_wait(e2e);
}

bool e2e_logged(const struct e2e *e2e, const char *text, FILE *copy)
{
    static char log[65536];
    FILE *file = fopen(e2e->log, "r");
    size_t bytes;

    check(file != NULL);
    bytes = fread(log, 1, sizeof(log) - 1, file);
    log[bytes] = '\0';
    fclose(file);
    if (copy != NULL)
        fputs(log, copy);
    return strstr(log, text) != NULL;
}

uint64_t e2e_resident_bytes(const struct e2e *e2e)
{
    unsigned long long pages = 0;
    char path[64];
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/statm", (int)e2e->pid);
    file = fopen(path, "r");
    check(file != NULL);
    check(fscanf(file, "%*u %llu", &pages) == 1);
    fclose(file);
    return pages * 4096;
}

int e2e_get(const struct e2e *e2e, const char *path, char *body, size_t bytes)
{
    struct loop_addr addr = {.host = "127.0.0.1", .port = (uint16_t)e2e->http};
    struct peer *peer = peer_new_socket(&addr);
    char request[256];
    size_t have = 0;
    int status = -1;
    long got;
    char *start;

    if (peer == NULL)
        return -1;
    snprintf(request, sizeof(request), "GET %s HTTP/1.0\r\n\r\n", path);
    (void)peer_send_bytes(peer, request, strlen(request));
    while ((got = peer->wire->recv(peer, body + have, bytes - 1 - have, 5000)) > 0)
        have += (size_t)got;
    body[have] = '\0';
    peer_free(&peer);
    (void)sscanf(body, "HTTP/1.%*d %d", &status);
    start = strstr(body, "\r\n\r\n");
    if (start != NULL)
        memmove(body, start + 4, strlen(start + 4) + 1);
    return status;
}

double e2e_metric(const struct e2e *e2e, const char *sample)
{
    static char body[1 << 20];
    size_t length = strlen(sample);

    if (e2e_get(e2e, "/metrics", body, sizeof(body)) != 200)
        return -1;
    for (char *line = body; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, sample, length) == 0 && line[length] == ' ')
            return strtod(line + length, NULL);
    }
    return -1;
}

void e2e_free(struct e2e *e2e)
{
    char path[128];

    if (e2e->pid > 0)
        (void)e2e_end(e2e, SIGKILL);
    for (unsigned i = 0; i < 8; i++) {
        snprintf(path, sizeof(path), "%s/drive%u", e2e->directory, i);
        (void)unlink(path);
    }
    (void)unlink(e2e->config);
    (void)unlink(e2e->log);
    (void)rmdir(e2e->directory);
}

const char *e2e_program;

int e2e_setup(void **state)
{
    struct e2e *e2e = calloc(1, sizeof(*e2e));

    *state = e2e;
    return e2e_new(e2e, e2e_program) ? 0 : -1;
}

int e2e_teardown(void **state)
{
    e2e_free(*state);
    free(*state);
    return 0;
}

void e2e_start_ok(struct e2e *e2e, const char *option)
{
    int status = 0;

    if (!e2e_start(e2e, option, &status)) {
        (void)e2e_logged(e2e, "", stderr);
        fail_msg("icms-target ended with status %d", status);
    }
}
