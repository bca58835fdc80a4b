/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_config.c: icms config: whether configuration files are right, and where two differ.
 *
 * What the file itself tells is checked here. For the files of icms-target and icms-agent the
 * daemon then looks as well, with --check-config, so that what would stop its start is found
 * before. What is right in the file, and would stop a start on this machine as it is now (memory,
 * drives), it warns of: that is said, too.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conf/conf.h"
#include "conf/pod.h"
#include "icms_cli.h"
#include "inprocess/names.h"
#include "proc/proc.h"

/* What a daemon may say: a line for each drive and more. */
#define CONFIG_SAID_BYTES ((size_t)256 << 10)

/* ---- check ---------------------------------------------------------------------------------- */

/* In the child: becomes the daemon, which says everything into the pipe. */
static _Noreturn void daemon_exec(const char *name, const char *path, int pipe_fd)
{
    char program[PATH_MAX];

    proc_program(name, program, sizeof(program));
    (void)dup2(pipe_fd, STDOUT_FILENO);
    (void)dup2(pipe_fd, STDERR_FILENO);
    (void)execlp(program, name, "--check-config", "--config", path, (char *)NULL);
    (void)dprintf(STDERR_FILENO, "cannot run %s: %s", name, strerror(errno));
    _exit(127);
}

/* The daemon's exit status, and what it said, [CONFIG_SAID_BYTES]; -1: it could not be started. */
static int daemon_ask(const char *name, const char *path, char *said)
{
    int fds[2], status = -1;
    size_t used = 0;
    ssize_t n;
    pid_t pid;

    said[0] = '\0';
    if (pipe(fds) != 0)
        return -1;
    pid = fork();
    if (pid == 0)
        daemon_exec(name, path, fds[1]);
    (void)close(fds[1]);
    while (pid > 0 && used < CONFIG_SAID_BYTES - 1 &&
           ((n = read(fds[0], said + used, CONFIG_SAID_BYTES - 1 - used)) > 0 ||
            (n < 0 && errno == EINTR)))
        used += n > 0 ? (size_t)n : 0;
    said[used] = '\0';
    (void)close(fds[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The last line, without time, program and level. */
static const char *sentence_of(char *said)
{
    size_t bytes = strlen(said);
    char *line, *end;

    while (bytes > 0 && said[bytes - 1] == '\n')
        said[--bytes] = '\0';
    line = strrchr(said, '\n');
    line = line != NULL ? line + 1 : said;
    end = strstr(line, ": ");
    return end != NULL && strstr(line, " error: ") != NULL ? end + 2 : line;
}

/* The sentences of the lines with which a daemon warned; the caller's. */
static json_t *warnings_of(char *said)
{
    json_t *list = json_array();
    char *next = said;

    while (next != NULL && *next != '\0') {
        char *line = next, *level;
        json_t *sentence;

        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        level = strstr(line, " warning: ");
        if (level == NULL)
            continue;
        sentence = json_string(level + strlen(" warning: "));
        (void)json_array_append_new(
            list, sentence != NULL
                      ? sentence
                      : json_string("a sentence with bytes that are not UTF-8: run the daemon with "
                                    "--check-config to see it"));
    }
    return list;
}

static void right_text(const char *path, const char *name, const json_t *warnings)
{
    json_t *warning;
    size_t at;

    (void)printf("%s: right (%s)%s\n", path, name, json_array_size(warnings) > 0 ? ", but:" : "");
    json_array_foreach(warnings, at, warning)(void) printf("  %s\n", json_string_value(warning));
}

/* A pod map that is right in itself. */
static icms_err names_check(const char *path, struct err_why *why)
{
    struct conf_pod *pod = calloc(1, sizeof(*pod));
    icms_err err =
        pod == NULL ? err_set(why, ICMS_NO_MEMORY, "out of memory") : conf_pod_read(path, why, pod);

    if (err == ICMS_OK && names_meet(pod, why))
        err = ICMS_CONFIG;
    conf_pod_free(&pod);
    return err;
}

/* One file. True: it is right. */
static bool check_one(const struct cli *cli, const char *path)
{
    static char said[CONFIG_SAID_BYTES];
    struct err_why why = {""};
    enum conf_file_kind kind = CONF_FILE_AGENT;
    icms_err err = conf_check(path, &why, &kind);
    const char *sentence = why.text, *name = conf_file_kind_name(kind);
    bool is_daemon = kind == CONF_FILE_TARGET || kind == CONF_FILE_AGENT;
    json_t *warnings;

    said[0] = '\0';
    if (err == ICMS_OK && kind == CONF_FILE_POD)
        err = names_check(path, &why);
    if (err == ICMS_OK && is_daemon && daemon_ask(name, path, said) != 0) {
        err = ICMS_CONFIG;
        sentence = sentence_of(said);
    }
    warnings = warnings_of(said);
    if (cli->json && err == ICMS_OK)
        cli_json("{s:s, s:s, s:b, s:O}", "file", path, "kind", name, "right", true, "warnings",
                 warnings);
    else if (cli->json)
        cli_json("{s:s, s:b, s:s, s:s}", "file", path, "right", false, "error", icms_err_name(err),
                 "why", sentence);
    else if (err != ICMS_OK)
        (void)fprintf(stderr, "icms config: %s%s%s\n", strstr(sentence, path) == NULL ? path : "",
                      strstr(sentence, path) == NULL ? ": " : "", sentence);
    else if (!cli->quiet)
        right_text(path, name, warnings);
    json_decref(warnings);
    return err == ICMS_OK;
}

/* ---- diff ----------------------------------------------------------------------------------- */

struct differ {
    const struct cli *cli;
    uint32_t count;
};

static void differ_visit(void *arg, const char *key, const char *was, const char *is)
{
    struct differ *differ = arg;

    differ->count++;
    if (differ->cli->json)
        cli_json("{s:s, s:s, s:s}", "key", key, "was", was, "is", is);
    else if (!differ->cli->quiet)
        (void)printf("%s: %s -> %s\n", key, was, is);
}

static int config_diff(struct cli *cli)
{
    struct differ differ = {.cli = cli};
    struct err_why why = {""};
    icms_err err = conf_diff(cli->argv[1], cli->argv[2], differ_visit, &differ, &why);

    if (err != ICMS_OK) {
        (void)cli_fail(cli, err, "%s", why.text);
        return CLI_USAGE;
    }
    return differ.count == 0 ? CLI_DONE : CLI_MISSED;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int config_run(int argc, char **argv)
{
    struct cli cli;
    int status = cli_parse(&cli_config, argc, argv, &cli);

    if (status >= 0)
        return status;
    if (cli.argc >= 1 && strcmp(cli.argv[0], "check") == 0) {
        if (cli.argc < 2)
            return cli_usage(&cli, "check takes the names of files");
        status = CLI_DONE;
        for (int i = 1; i < cli.argc; i++)
            status = check_one(&cli, cli.argv[i]) ? status : CLI_MISSED;
        return status;
    }
    if (cli.argc >= 1 && strcmp(cli.argv[0], "diff") == 0)
        return cli.argc == 3 ? config_diff(&cli) : cli_usage(&cli, "diff takes two files");
    return cli_usage(&cli, "it takes 'check' or 'diff'");
}

const struct cli_command cli_config = {
    .name = "config",
    .summary = "check and compare configuration files",
    .takes = CLI_TAKES_JSON,
    .run = config_run,
    .help =
        "usage: icms config check FILE...\n"
        "       icms config diff FILE FILE\n"
        "check: say whether files are right: of icms-target and icms-agent, which look at them,\n"
        "too; pod maps; lists of keys; the NIXL plugin's. What a file is follows from its keys.\n"
        "What a daemon warns of, as too little memory or a missing drive of this machine, is said\n"
        "behind 'right'; its start here may be refused.\n"
        "diff: list where two files of one kind differ in meaning: order, comments, units and\n"
        "defaults that are written are none.\n\n"
        "      --json           answer with JSON, an object a file or difference\n"
        "  -q, --quiet          no answer but the exit status\n"
        "  -h, --help           print this\n"
        "\nExit status: 0 right, or nothing differs; 1 a file is wrong, or they differ; 2 usage,\n"
        "or a file of diff that cannot be read.\n",
};
