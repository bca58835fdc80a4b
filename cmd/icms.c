/* SPDX-License-Identifier: Apache-2.0 */
/*
 * icms: use and look at a tier of KV blocks from a shell. main() finds the subcommand; each one is
 * a file icms_*.c, what they share is icms_cli.c. One thread of its own.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "icms_cli.h"

static const struct cli_command *const icms_commands[] = {
    &cli_dev, &cli_put,    &cli_get,   &cli_exists, &cli_match,
    &cli_rm,  &cli_status, &cli_bench, &cli_replay,
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
            "the default socket. Nothing is running yet? Try `icms dev`.\n\n"
            "Exit status: 0 done, 1 a key was missed or it failed, 2 usage or connection.\n"
            "See icms(1).\n");
}

static const struct cli_command *command_find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(icms_commands[i]->name, name) == 0)
            return icms_commands[i];
    return NULL;
}

static int help_run(int argc, char **argv)
{
    const struct cli_command *command;

    if (argc < 2) {
        help_print(stdout);
        return CLI_DONE;
    }
    command = command_find(argv[1]);
    if (command == NULL) {
        (void)fprintf(stderr, "icms: there is no command '%s'; see icms help\n", argv[1]);
        return CLI_USAGE;
    }
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
        (void)fprintf(stderr, "icms version: it has no argument '%s' but --json\n", argv[1]);
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
    if (command == NULL) {
        (void)fprintf(stderr, "icms: there is no command '%s'; see icms help\n", name);
        return CLI_USAGE;
    }
    return command->run(argc - 1, argv + 1);
}
