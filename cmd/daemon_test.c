/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemons' common part: options, exit statuses, readiness, and signals, each in a child.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon.h"

static const char *example(void)
{
    return "name: x\n";
}

static const struct daemon_program program = {
    .name = "icms-test",
    .summary = "For tests.",
    .config_default = "/etc/icms/test.yaml",
    .example = example,
    .format = true,
};

static struct daemon_opts opts;

/* Runs daemon_options over a line of words. */
static int options(const char *line)
{
    static char text[256];
    static char name[] = "icms-test";
    char *argv[16] = {name};
    int argc = 1;

    (void)snprintf(text, sizeof(text), "%s", line);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    return daemon_options(&program, argc, argv, &opts);
}

static void test_options_are_taken(void **state)
{
    assert_int_equal(options(""), -1);
    assert_string_equal(opts.config, "/etc/icms/test.yaml");
    assert_int_equal(opts.ready_fd, -1);
    assert_false(opts.check_config || opts.format);
    assert_int_equal(options("--config /a --check-config --format --ready-fd 2"), -1);
    assert_string_equal(opts.config, "/a");
    assert_true(opts.check_config && opts.format);
    assert_int_equal(opts.ready_fd, 2);
    assert_int_equal(options("-c /b"), -1);
    assert_string_equal(opts.config, "/b");
}

static void test_what_only_prints_ends_with_0(void **state)
{
    assert_int_equal(options("--help"), DAEMON_DONE);
    assert_int_equal(options("--version"), DAEMON_DONE);
    assert_int_equal(options("--print-config"), DAEMON_DONE);
}

static void test_wrong_usage_ends_with_2(void **state)
{
    assert_int_equal(options("--nothing"), DAEMON_USAGE);
    assert_int_equal(options("--config"), DAEMON_USAGE);
    assert_int_equal(options("word"), DAEMON_USAGE);
    assert_int_equal(options("--ready-fd x"), DAEMON_USAGE);
    assert_int_equal(options("--ready-fd 987"), DAEMON_USAGE);
}

static void test_configuration_errors_end_with_2_and_others_with_1(void **state)
{
    struct err_why why = {"t.yaml:1: wrong"};

    assert_int_equal(daemon_failed(ICMS_CONFIG, &why, "start"), DAEMON_USAGE);
    assert_int_equal(daemon_failed(ICMS_ADDRESS_IN_USE, NULL, "start"), DAEMON_FAILED);
}

/* A child that serves until it is told to end; drains for ever when it shall hang. Its --ready-fd
 * is the write end. */
static _Noreturn void child_serve(int ready_fd, bool hang)
{
    struct daemon_opts child = {.config = "", .ready_fd = ready_fd};
    struct err_why why;

    if (daemon_begin(&child, 0, &why) != ICMS_OK)
        _exit(daemon_failed(ICMS_UNSUPPORTED, &why, "start"));
    daemon_ready(&child, "nvme=%s", "127.0.0.1:1");
    while (!daemon_wait(10))
        ;
    while (hang)
        (void)pause();
    _exit(DAEMON_DONE);
}

static pid_t child_start(bool hang)
{
    int pipe_fd[2];
    char line[64] = "";
    pid_t pid;
    ssize_t n;

    assert_int_equal(pipe(pipe_fd), 0);
    pid = fork();
    if (pid == 0) {
        (void)close(pipe_fd[0]);
        child_serve(pipe_fd[1], hang);
    }
    (void)close(pipe_fd[1]);
    n = read(pipe_fd[0], line, sizeof(line) - 1);
    (void)close(pipe_fd[0]);
    if (n <= 0) { /* io_uring is forbidden here; the child said so */
        (void)waitpid(pid, NULL, 0);
        return 0;
    }
    assert_string_equal(line, "ready nvme=127.0.0.1:1\n");
    return pid;
}

static void test_a_signal_drains_and_ends_with_0(void **state)
{
    int status;
    pid_t pid = child_start(false);

    if (pid == 0)
        skip();
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), DAEMON_DONE);
}

static void test_a_second_signal_ends_at_once(void **state)
{
    int status;
    pid_t pid = child_start(true);

    if (pid == 0)
        skip();
    /* The first may still be pending when the second is sent: they are different signals. */
    assert_int_equal(kill(pid, SIGTERM), 0);
    (void)usleep(50000);
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    assert_int_equal(kill(pid, SIGINT), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), DAEMON_FAILED);
}

static void test_the_service_manager_is_told(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct daemon_opts none = {.ready_fd = -1};
    char text[128] = "";
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/daemon_test.%d", getpid());
    (void)unlink(address.sun_path);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(setenv("NOTIFY_SOCKET", address.sun_path, 1), 0);
    daemon_ready(&none, "http=%d", 9);
    assert_true(recv(fd, text, sizeof(text) - 1, 0) > 0);
    assert_string_equal(text, "READY=1\nSTATUS=ready http=9\n");
    (void)unsetenv("NOTIFY_SOCKET");
    (void)unlink(address.sun_path);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_are_taken),
        cmocka_unit_test(test_what_only_prints_ends_with_0),
        cmocka_unit_test(test_wrong_usage_ends_with_2),
        cmocka_unit_test(test_configuration_errors_end_with_2_and_others_with_1),
        cmocka_unit_test(test_a_signal_drains_and_ends_with_0),
        cmocka_unit_test(test_a_second_signal_ends_at_once),
        cmocka_unit_test(test_the_service_manager_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
