/* SPDX-License-Identifier: Apache-2.0 */
/*
 * icms: use and look at a tier of KV blocks from a shell. main() finds the subcommand; each one is
 * a file icms_*.c, what they share is icms_cli.c. One thread of its own.
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "icms_cli.h"

static const struct cli_command *const icms_commands[] = {
    &cli_dev,    &cli_put,   &cli_get,      &cli_exists, &cli_match,  &cli_rm,
    &cli_status, &cli_trace, &cli_prestage, &cli_bench,  &cli_replay, &cli_key,
    &cli_volume, &cli_drive, &cli_pod,      &cli_config,
};

#define COMMANDS (sizeof(icms_commands) / sizeof(*icms_commands))

static void help_print(FILE *to)
{
    (void)fprintf(to, "usage: icms COMMAND [options] [arguments]\n\n");
    for (size_t i = 0; i < COMMANDS; i++)
        (void)fprintf(to, "  %-9s%s\n", icms_commands[i]->name, icms_commands[i]->summary);
    (void)fprintf(to, "  %-9s%s\n  %-9s%s\n", "version", "print the version", "help",
                  "print this, or the help of a command");
    (void)fprintf(
        to, "\n`icms COMMAND --help` lists the options of a command. Without --open or\n"
            "$ICMS_OPEN commands talk to the icms-agent at $ICMS_SOCKET or, without that, at\n"
            "the default socket. `icms dev` starts a target and an agent for trials.\n\n"
            "Exit status: 0 done, 1 a key is missing or it failed, 2 usage or connection.\n"
            "See icms(1).\n");
}

static const struct cli_command *command_find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(icms_commands[i]->name, name) == 0)
            return icms_commands[i];
    return NULL;
}

/* How many letters have to be changed, left out or put in to make one word of another. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[64];
    size_t length = strlen(b);

    if (length >= sizeof(row) / sizeof(*row))
        return UINT_MAX;
    for (size_t j = 0; j <= length; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; a[i - 1] != 0; i++) {
        unsigned diagonal = row[0];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= length; j++) {
            unsigned changed = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            row[j] = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = changed < row[j] ? changed : row[j];
        }
    }
    return row[length];
}

/* Says that there is no such command, and which one may be meant. */
static int command_unknown(const char *name)
{
    const char *nearest = NULL;
    unsigned best = 3;

    for (size_t i = 0; i < COMMANDS; i++) {
        unsigned changes = distance(icms_commands[i]->name, name);

        if (changes < best && changes < strlen(icms_commands[i]->name)) {
            best = changes;
            nearest = icms_commands[i]->name;
        }
    }
    if (nearest != NULL)
        (void)fprintf(stderr, "icms: unknown command '%s'; did you mean '%s'? See icms help\n",
                      name, nearest);
    else
        (void)fprintf(stderr, "icms: unknown command '%s'; see icms help\n", name);
    return CLI_USAGE;
}

static int help_run(int argc, char **argv)
{
    const struct cli_command *command;

    if (argc < 2) {
        help_print(stdout);
        return CLI_DONE;
    }
    command = command_find(argv[1]);
    if (command == NULL)
        return command_unknown(argv[1]);
    (void)fputs(command->help, stdout);
    return CLI_DONE;
}

static int version_run(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--json") == 0) {
        cli_json("{s:s}", "version", icms_version());
        return CLI_DONE;
    }
    if (argc > 1) {
        (void)fprintf(stderr, "icms version: unexpected argument '%s'; it takes --json\n", argv[1]);
        return CLI_USAGE;
    }
    (void)printf("icms %s\n", icms_version());
    return CLI_DONE;
}

int main(int argc, char **argv)
{
    const struct cli_command *command;
    const char *name = argc > 1 ? argv[1] : "";

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        help_print(stderr);
        return CLI_USAGE;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0 || strcmp(name, "version") == 0)
        return version_run(argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return help_run(argc - 1, argv + 1);
    command = command_find(name);
    if (command == NULL)
        return command_unknown(name);
    return command->run(argc - 1, argv + 1);
}
