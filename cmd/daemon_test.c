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
    assert_false(opts.check_config || opts.format_count > 0);
    assert_int_equal(options("--config /a --check-config --format drive1 --format=/b --ready-fd 2"),
                     -1);
    assert_string_equal(opts.config, "/a");
    assert_true(opts.check_config && opts.format_count == 2);
    assert_string_equal(opts.format[0], "drive1");
    assert_string_equal(opts.format[1], "/b");
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
    assert_int_equal(options("--format"), DAEMON_USAGE);
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

/* What has to be changed in the file is an error of the configuration; what is missing here may be
 * there on the machine that the file is for. */
static void test_an_own_drive_is_a_file_or_a_block_device(void **state)
{
    char path[] = "/tmp/daemon_drive.XXXXXX";
    struct err_why why = {""};
    char line[64];
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(daemon_drive_check("a.yaml", path, 0, &why), ICMS_OK);
    assert_int_equal(daemon_drive_check("a.yaml", "/tmp", 1 << 20, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "a.yaml: local.path: /tmp is a directory; write a"));
    assert_int_equal(daemon_drive_check("a.yaml", "/dev/null", 1 << 20, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "/dev/null is a character device"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(daemon_drive_check("a.yaml", path, 1 << 20, &why), ICMS_OK);
    assert_int_equal(daemon_drive_check("a.yaml", "daemon_drive_none", 1, &why), ICMS_OK);
    assert_int_equal(daemon_drive_check("a.yaml", "/daemon_drive_none", 1, &why), ICMS_OK);
    assert_int_equal(daemon_drive_check("a.yaml", path, 0, &why), ICMS_NOT_FOUND);
    assert_non_null(strstr(why.text, "no local.size"));
    (void)strcat(strcpy(line, path), "/drive");
    assert_int_equal(daemon_drive_check("a.yaml", line, 1 << 20, &why), ICMS_NOT_FOUND);
    assert_non_null(strstr(why.text, "make its directory"));
    (void)close(fd);
}

/* A child that serves until it is told to end; drains without an end when it shall hang. Its
 * --ready-fd is the write end. */
static _Noreturn void child_serve(int ready_fd, bool hang)
{
    struct daemon_opts child = {.config = "", .ready_fd = ready_fd};
    struct err_why why;

    if (daemon_begin(&child, 0, &why) != ICMS_OK)
        _exit(daemon_failed(ICMS_UNSUPPORTED, &why, "start"));
    daemon_ready(&child, "nvme=%s", "127.0.0.1:1");
    while (daemon_wait(10, NULL) != DAEMON_END)
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

/* A reload is not supported: said in the log, and nothing else happens. */
static void test_a_hangup_is_logged_and_ends_nothing(void **state)
{
    char line[256] = "";
    int pipe_fd[2], status, log_fd = dup(STDERR_FILENO);
    ssize_t n = 0;
    pid_t pid;

    assert_int_equal(pipe(pipe_fd), 0);
    (void)dup2(pipe_fd[1], STDERR_FILENO);
    pid = child_start(false);
    (void)dup2(log_fd, STDERR_FILENO);
    (void)close(log_fd);
    (void)close(pipe_fd[1]);
    if (pid == 0)
        skip();
    assert_int_equal(kill(pid, SIGHUP), 0);
    for (size_t used = 0; strstr(line, "SIGHUP") == NULL; used += (size_t)n) {
        n = read(pipe_fd[0], line + used, sizeof(line) - 1 - used);
        assert_true(n > 0);
    }
    assert_non_null(strstr(line, "reading again what may change"));
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == DAEMON_DONE);
    (void)close(pipe_fd[0]);
}

/* ---- the service manager ------------------------------------------------------------------- */

static int manager_fd;
static char manager_path[64];

static int manager_start(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    manager_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    (void)snprintf(manager_path, sizeof(manager_path), "/tmp/daemon_test.%d", getpid());
    (void)unlink(manager_path);
    strcpy(address.sun_path, manager_path);
    if (bind(manager_fd, (const struct sockaddr *)&address, sizeof(address)) != 0)
        return -1;
    return setenv("NOTIFY_SOCKET", manager_path, 1);
}

static int manager_stop(void **state)
{
    (void)unsetenv("NOTIFY_SOCKET");
    (void)unsetenv("WATCHDOG_USEC");
    (void)unsetenv("WATCHDOG_PID");
    (void)unlink(manager_path);
    return close(manager_fd);
}

/* What it was told; "" when it was told nothing. */
static const char *manager_told(void)
{
    static char text[128];
    ssize_t n = recv(manager_fd, text, sizeof(text) - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void test_the_service_manager_is_told(void **state)
{
    struct daemon_opts none = {.ready_fd = -1};

    daemon_ready(&none, "http=%d", 9);
    assert_string_equal(manager_told(), "READY=1\nSTATUS=ready http=9\n");
}

/* A reactor owes an answer; the clock is the test's. */
static void test_the_watchdog_is_told_only_while_reactors_answer(void **state)
{
    static struct ctl_heartbeat heartbeat;
    struct loop_env *env = loop_env_replay_new();
    struct err_why why = {""};
    struct loop *loop = NULL;
    struct loop_opts loop_opts;
    sigset_t set, before;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    loop_opts_init(&loop_opts);
    if (env == NULL || loop_new(env, &loop_opts, &why, &loop) != ICMS_OK) {
        loop_env_replay_free(&env);
        skip();
    }
    ctl_heartbeat_init(&heartbeat, env, 100);
    ctl_heartbeat_add(&heartbeat, loop); /* it was not started: it never answers */
    loop_replay_to(loop, 1000);
    assert_int_equal(daemon_wait(0, &heartbeat), DAEMON_NONE);
    assert_string_equal(manager_told(), ""); /* it did not ask for a watchdog */
    assert_int_equal(setenv("WATCHDOG_USEC", "4", 1), 0);
    assert_int_equal(setenv("WATCHDOG_PID", "1", 1), 0);
    assert_int_equal(daemon_wait(0, &heartbeat), DAEMON_NONE);
    assert_string_equal(manager_told(), ""); /* of another process */
    (void)unsetenv("WATCHDOG_PID");
    assert_int_equal(daemon_wait(0, &heartbeat), DAEMON_NONE);
    assert_string_equal(manager_told(), "WATCHDOG=1\n");
    assert_int_equal(daemon_wait(0, &heartbeat), DAEMON_NONE);
    assert_string_equal(manager_told(), ""); /* a quarter of the time has not passed */
    loop_replay_to(loop, 5000);
    assert_int_equal(daemon_wait(0, &heartbeat), DAEMON_NONE);
    assert_string_equal(manager_told(), ""); /* stuck */
    atomic_store(&heartbeat.reactors[0].asked_ns, 0);
    atomic_store(&heartbeat.reactors[0].asked_ns, 4999); /* it answered, and was asked again */
    assert_int_equal(daemon_wait(0, &heartbeat), DAEMON_NONE);
    assert_string_equal(manager_told(), "WATCHDOG=1\n");
    loop_free(&loop);
    loop_env_replay_free(&env);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_are_taken),
        cmocka_unit_test(test_what_only_prints_ends_with_0),
        cmocka_unit_test(test_wrong_usage_ends_with_2),
        cmocka_unit_test(test_configuration_errors_end_with_2_and_others_with_1),
        cmocka_unit_test(test_an_own_drive_is_a_file_or_a_block_device),
        cmocka_unit_test(test_a_signal_drains_and_ends_with_0),
        cmocka_unit_test(test_a_second_signal_ends_at_once),
        cmocka_unit_test(test_a_hangup_is_logged_and_ends_nothing),
        cmocka_unit_test_setup_teardown(test_the_service_manager_is_told, manager_start,
                                        manager_stop),
        cmocka_unit_test_setup_teardown(test_the_watchdog_is_told_only_while_reactors_answer,
                                        manager_start, manager_stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
