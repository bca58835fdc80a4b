/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_look.c: icms exists, match and rm: several keys a call, no values.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "icms_cli.h"

#define HELP_KEY "KEY is 1 to 16 bytes of text, or 0x and hex.\n\n"
#define HELP_OPTIONS                                                                               \
    "  -o, --open WHERE     unix:SOCKET, pod:FILE or dir:DIRECTORY; default $ICMS_OPEN, else\n"    \
    "                       the agent at $ICMS_SOCKET or at the default socket\n"                  \
    "  -v, --volume NAME    default $ICMS_VOLUME, else kv\n"                                       \
    "      --keys FILE      keys of encrypted volumes; default $ICMS_KEYS\n"                       \
    "  -d, --deadline TIME  500ms, 2s; default: the agent's\n"                                     \
    "      --hex            keys are hex, as with 0x in front\n"                                   \
    "      --name           keys are names of any length\n"                                        \
    "      --json           answer with one JSON object a line\n"                                  \
    "  -q, --quiet          no answer but the exit status\n"                                       \
    "  -h, --help           print this\n"
#define HELP_COMMON HELP_KEY HELP_OPTIONS

/* Starts the subcommand's request on all keys. */
typedef icms_err look_start(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                            const struct icms_request_options *options,
                            struct icms_request **out_request);

static int look_keys(struct cli *cli, struct cli_blocks *keys, look_start *start, const char *going,
                     const char *done)
{
    struct icms_request_options options = cli_options(cli);
    struct icms_request *request;
    icms_err err = start(cli->handle, keys->blocks, keys->count, &options, &request);

    if (err == ICMS_OK)
        err = cli_wait(cli, request, going);
    if (err != ICMS_OK && err != ICMS_MISS)
        return cli_fail(cli, err, "volume %s: %s", cli->volume, icms_err_text(err));
    for (size_t i = 0; i < keys->count; i++)
        cli_answer(cli, keys->texts[i], &keys->blocks[i], done);
    return err == ICMS_OK ? CLI_DONE : CLI_MISSED;
}

static int exists_keys(struct cli *cli, struct cli_blocks *keys)
{
    return look_keys(cli, keys, icms_exists_start, "looking", "found");
}

static int exists_run(int argc, char **argv)
{
    return cli_run_keys(&cli_exists, argc, argv, false, exists_keys);
}

const struct cli_command cli_exists = {
    .name = "exists",
    .summary = "tell which blocks are found",
    .takes = CLI_TAKES_TIER | CLI_TAKES_KEYS,
    .run = exists_run,
    .help = "usage: icms exists [options] KEY ...\n"
            "Say for each KEY, 4096 at most, whether its block is found at this moment. No\n"
            "value is moved.\n\n" HELP_COMMON
            "\nExit status: 0 all are found, 1 one is missing, 2 usage or connection.\n",
};

static int rm_keys(struct cli *cli, struct cli_blocks *keys)
{
    return look_keys(cli, keys, icms_remove_start, "removing", "removed");
}

static int rm_run(int argc, char **argv)
{
    return cli_run_keys(&cli_rm, argc, argv, false, rm_keys);
}

const struct cli_command cli_rm = {
    .name = "rm",
    .summary = "remove blocks",
    .takes = CLI_TAKES_TIER | CLI_TAKES_KEYS,
    .run = rm_run,
    .help = "usage: icms rm [options] KEY ...\n"
            "Remove the blocks under these keys from the agent and the pod; another server\n"
            "may have them in its memory until it evicts them. There are 4096 keys at "
            "most.\n\n" HELP_COMMON
            "\nExit status: 0 all were found and removed, 1 one was missing, 2 usage or "
            "connection.\n",
};

/* How many of the first blocks this server has itself, as POST /v1/match of icms-agent says it. */
static size_t match_leading(const struct icms_estimate *estimates, size_t matched,
                            enum icms_source source_max)
{
    size_t count = 0;

    while (count < matched && (enum icms_source)estimates[count].source <= source_max)
        count++;
    return count;
}

/* What it takes to have the prefix, and where its blocks are. */
static void match_estimate_say(const struct cli *cli, const struct icms_estimate *estimates,
                               size_t matched, size_t count)
{
    const struct icms_estimate none = {0};
    const struct icms_estimate *all = matched == 0 ? &none : &estimates[matched - 1];
    bool is_known = all->load_us != ICMS_ESTIMATE_UNKNOWN;
    long long at[ICMS_SOURCE_POD + 1] = {0};
    size_t dram = match_leading(estimates, matched, ICMS_SOURCE_DRAM);
    size_t local = match_leading(estimates, matched, ICMS_SOURCE_LOCAL);

    for (size_t i = 0; i < matched; i++)
        at[estimates[i].source]++;
    if (cli->json) {
        cli_json("{s:I, s:I, s:I, s:o, s:o, s:{s:I, s:I, s:I}, s:{s:I, s:I}}", "matched",
                 (long long)matched, "of", (long long)count, "bytes", (long long)all->bytes,
                 "load_seconds", is_known ? json_real((double)all->load_us / 1e6) : json_null(),
                 "error_seconds", is_known ? json_real((double)all->error_us / 1e6) : json_null(),
                 "blocks", "dram", at[ICMS_SOURCE_DRAM], "local", at[ICMS_SOURCE_LOCAL], "pod",
                 at[ICMS_SOURCE_POD], "first", "dram", (long long)dram, "local", (long long)local);
        return;
    }
    (void)printf("%zu of %zu: ", matched, count);
    if (is_known)
        (void)printf("%" PRIu64 " bytes in about %.3f ms, give or take %.3f ms", all->bytes,
                     (double)all->load_us / 1e3, (double)all->error_us / 1e3);
    else
        (void)printf("about %" PRIu64 " bytes; nothing was loaded from there lately", all->bytes);
    (void)printf("; dram %lld, local %lld, pod %lld; the first %zu in dram, %zu on this server\n",
                 at[ICMS_SOURCE_DRAM], at[ICMS_SOURCE_LOCAL], at[ICMS_SOURCE_POD], dram, local);
}

static void match_say(const struct cli *cli, const struct icms_estimate *estimates, size_t matched,
                      size_t count)
{
    if (cli->quiet)
        return;
    if (cli->estimate)
        match_estimate_say(cli, estimates, matched, count);
    else if (cli->json)
        cli_json("{s:I, s:I}", "matched", (long long)matched, "of", (long long)count);
    else
        (void)printf("%zu of %zu\n", matched, count);
}

static int match_keys(struct cli *cli, struct cli_blocks *blocks)
{
    struct icms_request_options options = cli_options(cli);
    struct icms_key *keys = cli_blocks_keys(blocks);
    struct icms_estimate *estimates = calloc(blocks->count, sizeof(*estimates));
    struct cli_progress progress;
    size_t matched = 0;
    icms_err err = ICMS_NO_MEMORY;

    if (keys != NULL && estimates != NULL) {
        cli_progress_begin(&progress, cli, "matching");
        if (cli->estimate)
            err = icms_match_estimate(cli->handle, keys, blocks->count, &options, estimates,
                                      &matched);
        else
            err = icms_match(cli->handle, keys, blocks->count, &options, &matched);
        cli_progress_end(&progress);
    }
    if (err == ICMS_OK)
        match_say(cli, estimates, matched, blocks->count);
    free(keys);
    free(estimates);
    if (err != ICMS_OK)
        return cli_fail(cli, err, "volume %s: %s", cli->volume, icms_err_text(err));
    return matched == blocks->count ? CLI_DONE : CLI_MISSED;
}

static int match_run(int argc, char **argv)
{
    return cli_run_keys(&cli_match, argc, argv, true, match_keys);
}

const struct cli_command cli_match = {
    .name = "match",
    .summary = "count the leading blocks that are found",
    .takes = CLI_TAKES_TIER | CLI_TAKES_KEYS | CLI_TAKES_ESTIMATE,
    .run = match_run,
    .help = "usage: icms match [options] [KEY ...]\n"
            "Count the blocks from the first KEY up to the first that is missing: the longest\n"
            "usable prefix. Without arguments keys are read from standard input, one a "
            "line.\n"
            "With --estimate say also how long it takes to load them, where they are, and how\n"
            "many of the first ones this server has itself.\n\n" HELP_KEY
            "      --estimate       say also how long it takes to load the prefix\n" HELP_OPTIONS
            "\nExit status: 0 all are found, 1 fewer are, 2 usage or connection.\n",
};
