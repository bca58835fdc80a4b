/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_prestage.c: icms prestage: hints that blocks will be asked for soon.
 */
#include <stdio.h>
#include <stdlib.h>

#include "icms_cli.h"

/* Gives the hints, or takes them back; *out_count: how many. */
static icms_err prestage_call(const struct cli *cli, const struct icms_key *keys, size_t count,
                              size_t *out_count)
{
    struct icms_prestage_options options;

    if (cli->cancel)
        return icms_prestage_cancel(cli->handle, keys, count, out_count);
    icms_prestage_options_init(&options);
    options.priority = cli->priority;
    options.tier = cli->tier;
    options.pin_seconds = cli->pin_s;
    options.once = cli->once;
    if (cli->deadline_ms != 0)
        options.deadline_ms = cli->deadline_ms;
    return icms_prestage(cli->handle, keys, count, &options, out_count);
}

static int prestage_keys(struct cli *cli, struct cli_blocks *blocks)
{
    bool may_once = cli->pin_s == 0 && cli->tier == ICMS_TIER_DRAM && !cli->cancel;
    struct icms_key *keys = cli->once && !may_once ? NULL : cli_blocks_keys(blocks);
    const char *what = cli->cancel ? "canceled" : cli->pin_s != 0 ? "pinned" : "taken";
    size_t count = 0;
    icms_err err;

    if (cli->once && !may_once)
        return cli_usage(cli,
                         "--once: not with --pin, --tier local or --cancel; blocks that are read "
                         "once at most are kept in the agent's memory, until they are read");
    if (keys == NULL)
        return cli_fail(cli, ICMS_NO_MEMORY, "out of memory");
    err = prestage_call(cli, keys, blocks->count, &count);
    free(keys);
    if (err == ICMS_UNSUPPORTED && cli->tier == ICMS_TIER_LOCAL)
        return cli_fail(
            cli, err,
            "volume %s: cannot prestage to tier local: this agent has no drive of its own "
            "beside the pod; use --tier dram, or give the agent one (local:)",
            cli->volume);
    if (err != ICMS_OK && err != ICMS_BUSY && err != ICMS_MISS && err != ICMS_LIMIT)
        return cli_fail(cli, err, "volume %s: %s", cli->volume, icms_err_text(err));
    if (cli->json)
        cli_json("{s:I, s:I}", what, (long long)count, "of", (long long)blocks->count);
    else if (!cli->quiet)
        (void)printf("%zu of %zu %s%s\n", count, blocks->count, what,
                     err == ICMS_BUSY    ? ": the agent has too many hints; try again later"
                     : err == ICMS_LIMIT ? ": more may not be pinned; take pins back, or raise "
                                           "pin_max of the volume"
                                         : "");
    return count == blocks->count ? CLI_DONE : CLI_MISSED;
}

static int prestage_run(int argc, char **argv)
{
    return cli_run_keys(&cli_prestage, argc, argv, true, prestage_keys);
}

const struct cli_command cli_prestage = {
    .name = "prestage",
    .summary = "say which blocks will be asked for soon",
    .takes = CLI_TAKES_TIER | CLI_TAKES_KEYS | CLI_TAKES_HINT,
    .run = prestage_run,
    .help =
        "usage: icms prestage [options] [KEY ...]\n"
        "Give the agent hints that these blocks will be asked for by a deadline. It brings them\n"
        "into its memory, or to its own drive, behind all loads, or drops the hints; see\n"
        "`icms status`. Without arguments keys are read from standard input, one a line.\n"
        "There are 4096 keys at most.\n\n"
        "KEY is 1 to 16 bytes of text, or 0x and hex.\n\n"
        "  -d, --deadline TIME  by when they will be asked for: 500ms, 2s; default 1s, 600s at\n"
        "                       most\n"
        "      --priority N     0 (the default) to 3: the larger goes first\n"
        "      --tier TIER      where to: dram (the default), the agent's memory; or local, its "
        "own\n"
        "                       drive beside the pod\n"
        "      --pin TIME       and keep them there for 90s or 30min, 1440min at most, however "
        "often\n"
        "                       they are read\n"
        "      --once           they are read once at most: evicted first when they were read; "
        "not\n"
        "                       with --pin or --tier local\n"
        "      --cancel         take hints and pins back instead\n"
        "  -o, --open WHERE     unix:SOCKET; default $ICMS_OPEN, else the agent at $ICMS_SOCKET\n"
        "                       or at the default socket\n"
        "  -v, --volume NAME    default $ICMS_VOLUME, else kv\n"
        "      --keys FILE      keys of encrypted volumes; default $ICMS_KEYS\n"
        "      --hex            keys are hex, as with 0x in front\n"
        "      --name           keys are names of any length\n"
        "      --json           answer with one JSON object\n"
        "  -q, --quiet          no answer but the exit status\n"
        "  -h, --help           print this\n\n"
        "Exit status: 0 all hints were taken, 1 fewer were, 2 usage or connection.\n",
};
