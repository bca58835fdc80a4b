/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork() of a process with an agent inside, over the real machine: as long as a child lives that
 * opened nothing itself, it holds no lock, no connection and no descriptor of its parent's tiers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <icms/icms.h>

static char folder[] = "/tmp/icms-fork-XXXXXX";

static struct icms *open_tier(const char *where)
{
    struct icms_options options;
    struct icms *icms = NULL;
    char why[256] = "";

    icms_options_init(&options);
    options.directory_bytes = (uint64_t)64 << 20;
    options.value_bytes_max = 1 << 20;
    options.buffer_bytes = 8 << 20;
    if (icms_open(where, &options, why, sizeof(why), &icms) != ICMS_OK)
        fail_msg("%s", why);
    return icms;
}

static struct icms *open_dir(const char *name)
{
    char where[128], why[256] = "";
    struct icms_volume *volume;
    struct icms *icms;

    (void)snprintf(where, sizeof(where), "dir:%s/%s", folder, name);
    icms = open_tier(where);
    if (icms_volume_open(icms, "kv", why, sizeof(why), &volume) != ICMS_OK)
        fail_msg("%s", why);
    return icms;
}

static int fd_count(void)
{
    DIR *fds = opendir("/proc/self/fd");
    int count = 0;

    if (fds == NULL)
        return -1;
    while (readdir(fds) != NULL)
        count++;
    (void)closedir(fds);
    return count;
}

/* A child that has so many descriptors (else it ends with status 1), and lives until it is killed.
 */
static pid_t child_start(int fds)
{
    int ready[2], wrong = 1;
    pid_t child;

    assert_int_equal(pipe(ready), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        wrong = fd_count() != fds + 2;
        if (write(ready[1], &wrong, sizeof(wrong)) == sizeof(wrong))
            (void)pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &wrong, sizeof(wrong)), sizeof(wrong));
    assert_int_equal(wrong, 0);
    (void)close(ready[0]);
    (void)close(ready[1]);
    return child;
}

static void child_end(pid_t child)
{
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void a_directory_is_free_once_its_parent_closed_it(void **state)
{
    int fds = fd_count();
    struct icms *icms = open_dir("one");
    pid_t child = child_start(fds);

    icms_close(&icms);
    icms = open_dir("one");
    icms_close(&icms);
    child_end(child);
    assert_int_equal(fd_count(), fds);
}

static void a_child_opens_what_its_parent_closed(void **state)
{
    struct icms *icms = open_dir("two");
    int go[2], status = 1;
    char byte = 0;
    pid_t child;

    assert_int_equal(pipe(go), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (read(go[0], &byte, 1) != 1)
            _exit(1);
        icms_close(&icms);
        icms = open_dir("two");
        icms_close(&icms);
        _exit(0);
    }
    icms_close(&icms);
    assert_int_equal(write(go[1], &byte, 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    (void)close(go[0]);
    (void)close(go[1]);
}

/* What an enclosure sees of a process that dies while its child lives: the end of the connection.
 */
static void a_connection_ends_with_its_process(void **state)
{
    struct timeval patience = {.tv_sec = 20};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), sock, ready[2];
    char path[128], where[140], data[4096];
    ssize_t n;
    pid_t parent, child = 0;
    FILE *file;

    assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(listener, 64), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
    (void)snprintf(path, sizeof(path), "%s/pod.yaml", folder);
    (void)snprintf(where, sizeof(where), "pod:%s", path);
    file = fopen(path, "w");
    assert_non_null(file);
    (void)fprintf(file,
                  "connect_timeout: 60s\nhttp: {listen: none}\n"
                  "enclosures: [{name: e, address: 127.0.0.1:%u}]\n"
                  "volumes: [{name: kv, value_max: 64KiB, memory_max: 1MiB}]\n",
                  ntohs(address.sin_port));
    assert_int_equal(fclose(file), 0);
    assert_int_equal(pipe(ready), 0);
    parent = fork();
    assert_true(parent >= 0);
    if (parent == 0) {
        (void)close(listener);
        (void)open_tier(where);
        child = fork();
        if (child != 0 && write(ready[1], &child, sizeof(child)) != sizeof(child))
            _exit(1);
        (void)pause();
        _exit(0);
    }
    sock = accept(listener, NULL, NULL);
    assert_true(sock >= 0);
    assert_int_equal(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    assert_int_equal(read(ready[0], &child, sizeof(child)), sizeof(child));
    child_end(parent);
    do
        n = recv(sock, data, sizeof(data), 0);
    while (n > 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_true(n == 0 || errno == ECONNRESET);
    (void)close(sock);
    (void)close(listener);
    (void)close(ready[0]);
    (void)close(ready[1]);
}

static void *open_where(void *where)
{
    char why[256];
    struct icms *icms = NULL;

    assert_int_not_equal(icms_open(where, NULL, why, sizeof(why), &icms), ICMS_OK);
    return NULL;
}

/* The fork finds a handle that is being opened: the agent has not answered yet. */
static void a_handle_being_opened_ends_with_its_process(void **state)
{
    struct timeval patience = {.tv_sec = 20};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), sock;
    char where[140], data[4096] = "";
    pthread_t thread;
    pid_t child;

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/agent.sock", folder);
    (void)snprintf(where, sizeof(where), "unix:%s", address.sun_path);
    assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(pthread_create(&thread, NULL, open_where, where), 0);
    sock = accept(listener, NULL, NULL);
    assert_true(sock >= 0);
    assert_int_equal(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    assert_true(recv(sock, data, sizeof(data), 0) > 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)pause();
        _exit(0);
    }
    assert_int_equal(send(sock, "x", 1, MSG_NOSIGNAL), 1); /* it gives up: this is no welcome */
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(recv(sock, data, sizeof(data), 0), 0);
    child_end(child);
    (void)close(sock);
    (void)close(listener);
}

static int setup(void **state)
{
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"one/icms.lock",
                                        "one/volumes",
                                        "one/icms.store",
                                        "one",
                                        "two/icms.lock",
                                        "two/volumes",
                                        "two/icms.store",
                                        "two",
                                        "pod.yaml",
                                        "agent.sock",
                                        ""};
    char path[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        (void)remove(path);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_directory_is_free_once_its_parent_closed_it),
        cmocka_unit_test(a_child_opens_what_its_parent_closed),
        cmocka_unit_test(a_connection_ends_with_its_process),
        cmocka_unit_test(a_handle_being_opened_ends_with_its_process),
    };

    return cmocka_run_group_tests_name("client-fork", tests, setup, teardown);
}
