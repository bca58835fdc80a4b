/* SPDX-License-Identifier: Apache-2.0 */
/*
 * icms replay: what a drive of some size would have kept of a trace, and what it would have
 * written for that. One thread; nothing is opened but the trace.
 */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "conf/conf.h"
#include "icms_cli.h"
#include "replay_model.h"

#define CAPACITIES_MAX 32
#define LOOPS_MAX      1000

/* What the command line says. */
struct options {
    struct cli cli;                       /* for complaints                            */
    enum replay_format format;            /* of the trace                              */
    const char *path;                     /* of the trace; "-": standard input         */
    double capacity[CAPACITIES_MAX];      /* parts of the footprint                    */
    uint32_t capacities;                  /* in capacity                               */
    enum replay_kind kinds[REPLAY_KINDS]; /* in the order they were named              */
    uint32_t kind_count;                  /* in kinds                                  */
    uint32_t loops;                       /* how often                                 */
    uint64_t block_bytes, segment_bytes;  /* of the drives                             */
    double budget_part;                   /* of what `default` writes; 0: none         */
    uint64_t budget_bytes_day;            /* or so many; 0: none                       */
};

enum {
    OPTION_FORMAT = 256,
    OPTION_CAPACITY,
    OPTION_POLICY,
    OPTION_LOOPS,
    OPTION_BUDGET,
    OPTION_BLOCK,
    OPTION_SEGMENT,
    OPTION_JSON
};

static const struct option replay_options[] = {
    {"format", required_argument, NULL, OPTION_FORMAT},
    {"capacity", required_argument, NULL, OPTION_CAPACITY},
    {"policy", required_argument, NULL, OPTION_POLICY},
    {"loops", required_argument, NULL, OPTION_LOOPS},
    {"budget", required_argument, NULL, OPTION_BUDGET},
    {"block", required_argument, NULL, OPTION_BLOCK},
    {"segment", required_argument, NULL, OPTION_SEGMENT},
    {"json", no_argument, NULL, OPTION_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* ---- the command line --------------------------------------------------------------------------
 */

static bool percent_parse(const char *text, size_t length, double *out_part)
{
    char copy[32], *end;
    double percent;

    if (length < 2 || length >= sizeof(copy) || text[length - 1] != '%')
        return false;
    memcpy(copy, text, length - 1);
    copy[length - 1] = 0;
    percent = strtod(copy, &end);
    if (*end != 0 || !(percent > 0 && percent <= 100))
        return false;
    *out_part = percent / 100;
    return true;
}

static int capacity_take(struct options *options, const char *text)
{
    options->capacities = 0;
    for (;;) {
        size_t length = strcspn(text, ",");

        if (options->capacities == CAPACITIES_MAX ||
            !percent_parse(text, length, &options->capacity[options->capacities]))
            return cli_usage(&options->cli,
                             "--capacity %s: parts of the footprint are written 2%%,5%%,50%%",
                             optarg);
        options->capacities++;
        if (text[length] == 0)
            return -1;
        text += length + 1;
    }
}

static int policy_take(struct options *options, const char *text)
{
    options->kind_count = 0;
    for (;;) {
        size_t length = strcspn(text, ",");
        enum replay_kind kind = 0;

        while (kind < REPLAY_KINDS && (strlen(replay_kind_names[kind]) != length ||
                                       strncmp(replay_kind_names[kind], text, length) != 0))
            kind++;
        if (kind == REPLAY_KINDS || options->kind_count == REPLAY_KINDS)
            return cli_usage(&options->cli,
                             "--policy %s: there are fifo, lru, s3-fifo, default, due, run-wise "
                             "and belady",
                             optarg);
        options->kinds[options->kind_count++] = kind;
        if (text[length] == 0)
            return -1;
        text += length + 1;
    }
}

static int size_take(struct options *options, const char *name, uint64_t least, uint64_t most,
                     uint64_t *out_bytes)
{
    struct err_why why = {{0}};
    uint64_t bytes;

    if (conf_bytes_parse(optarg, &why, &bytes) != ICMS_OK || bytes < least || bytes > most)
        return cli_usage(&options->cli, "--%s %s: a size from %llu bytes to %llu MiB", name, optarg,
                         (unsigned long long)least, (unsigned long long)(most >> 20));
    *out_bytes = bytes;
    return -1;
}

static int option_take(struct options *options, int code)
{
    char *end;
    unsigned long loops;

    switch (code) {
    case OPTION_FORMAT:
        options->format = strcmp(optarg, "qwen") == 0 ? REPLAY_QWEN : REPLAY_MOONCAKE;
        if (options->format == REPLAY_MOONCAKE && strcmp(optarg, "mooncake") != 0)
            return cli_usage(&options->cli, "--format %s: there are mooncake and qwen", optarg);
        return -1;
    case OPTION_CAPACITY:
        return capacity_take(options, optarg);
    case OPTION_POLICY:
        return policy_take(options, optarg);
    case OPTION_LOOPS:
        loops = strtoul(optarg, &end, 10);
        if (*end != 0 || end == optarg || loops < 1 || loops > LOOPS_MAX)
            return cli_usage(&options->cli, "--loops %s: a number from 1 to %d", optarg, LOOPS_MAX);
        options->loops = (uint32_t)loops;
        return -1;
    case OPTION_BUDGET:
        if (percent_parse(optarg, strlen(optarg), &options->budget_part))
            return -1;
        return size_take(options, "budget", 1, UINT64_MAX / 2, &options->budget_bytes_day);
    case OPTION_BLOCK:
        return size_take(options, "block", 1, (uint64_t)8 << 20, &options->block_bytes);
    case OPTION_SEGMENT:
        return size_take(options, "segment", (uint64_t)64 << 10, (uint64_t)256 << 20,
                         &options->segment_bytes);
    case OPTION_JSON:
        return -1;
    default:
        return cli_usage(&options->cli, "it has no option '%s'", "");
    }
}

static int options_parse(struct options *options, int argc, char **argv)
{
    int code, status;

    *options = (struct options){
        .cli = {.command = &cli_replay},
        .capacity = {0.02, 0.05, 0.1, 0.2, 0.5},
        .capacities = 5,
        .kinds = {REPLAY_FIFO, REPLAY_LRU, REPLAY_S3FIFO, REPLAY_DEFAULT, REPLAY_BELADY},
        .kind_count = 5,
        .loops = 3,
        .block_bytes = (uint64_t)2 << 20,
        .segment_bytes = (uint64_t)16 << 20};
    for (int i = 1; i < argc; i++)
        options->cli.json = options->cli.json || strcmp(argv[i], "--json") == 0;
    optind = 0;
    while ((code = getopt_long(argc, argv, ":h", replay_options, NULL)) != -1) {
        if (code == 'h') {
            (void)fputs(cli_replay.help, stdout);
            return CLI_DONE;
        }
        if (code == ':')
            return cli_usage(&options->cli, "'%s' needs a value", argv[optind - 1]);
        if (code == '?')
            return cli_usage(&options->cli, "it has no option '%s'", argv[optind - 1]);
        status = option_take(options, code);
        if (status >= 0)
            return status;
    }
    if (argc - optind != 1)
        return cli_usage(&options->cli, "it takes one file with a trace, or - for standard input");
    options->path = argv[optind];
    return -1;
}

/* ---- the replays -------------------------------------------------------------------------------
 */

/* A line that moves while one replay takes longer than a second. */
struct progress {
    const char *what;      /* which replay      */
    struct timespec begin; /* when it began     */
    bool shown;            /* there is a line   */
};

static void progress_show(void *arg, uint64_t requests, uint64_t of)
{
    struct progress *progress = arg;
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec - progress->begin.tv_sec < 2)
        return;
    (void)fprintf(stderr, "\r%s: %llu of %llu requests ", progress->what,
                  (unsigned long long)requests, (unsigned long long)of);
    progress->shown = true;
}

static icms_err replay_one(const struct replay_trace *trace, struct replay_setup *setup,
                           struct err_why *why, struct replay_result *out_result)
{
    struct progress progress = {.what = replay_kind_names[setup->kind]};
    icms_err err;

    (void)clock_gettime(CLOCK_MONOTONIC, &progress.begin);
    setup->progress = isatty(STDERR_FILENO) ? progress_show : NULL;
    setup->progress_arg = &progress;
    err = replay_run(trace, setup, why, out_result);
    if (progress.shown)
        (void)fprintf(stderr, "\r\033[K");
    return err;
}

static double ratio(uint64_t part, uint64_t all)
{
    return all != 0 ? (double)part / (double)all : 0;
}

static void result_print(const struct options *options, const struct replay_setup *setup,
                         double capacity, const struct replay_result *result)
{
    const char *name = replay_kind_names[setup->kind];
    double amplification = ratio(result->written_bytes, result->admitted_bytes);

    if (!options->cli.json) {
        (void)printf(
            "%7.4g%% %9llu %8llu %-8s %8.4f %8.4f %12.1f %8.1f %6.3f %9llu\n", capacity * 100,
            (unsigned long long)setup->capacity_blocks, (unsigned long long)result->segments, name,
            ratio(result->block_hits, result->refs), ratio(result->token_hits, result->tokens),
            (double)result->written_bytes / (1 << 30), (double)result->carried_bytes / (1 << 30),
            amplification, (unsigned long long)result->refused);
        return;
    }
    cli_json("{s:f, s:I, s:I, s:s, s:f, s:f, s:I, s:I, s:I, s:f, s:I, s:I}", "capacity", capacity,
             "capacity_blocks", (json_int_t)setup->capacity_blocks, "segments",
             (json_int_t)result->segments, "policy", name, "block_hit_ratio",
             ratio(result->block_hits, result->refs), "token_hit_ratio",
             ratio(result->token_hits, result->tokens), "written_bytes",
             (json_int_t)result->written_bytes, "admitted_bytes",
             (json_int_t)result->admitted_bytes, "carried_bytes", (json_int_t)result->carried_bytes,
             "write_amplification", amplification, "refused", (json_int_t)result->refused,
             "budget_bytes_day", (json_int_t)setup->budget_bytes_day);
}

/* The budget as bytes a day: a part of what default writes on such a drive without one. */
static icms_err budget_make(const struct options *options, const struct replay_trace *trace,
                            struct replay_setup *setup, struct err_why *why)
{
    struct replay_result result;
    icms_err err;

    setup->budget_bytes_day = 0;
    if (options->budget_part == 0) {
        setup->budget_bytes_day = options->budget_bytes_day;
        return ICMS_OK;
    }
    setup->kind = REPLAY_DEFAULT;
    err = replay_one(trace, setup, why, &result);
    if (err == ICMS_OK)
        setup->budget_bytes_day = (uint64_t)(options->budget_part * (double)result.written_bytes *
                                             86400e3 / (double)result.time_ms);
    return err;
}

static int replays_run(const struct options *options, const struct replay_trace *trace)
{
    struct replay_setup setup = {.block_bytes = options->block_bytes,
                                 .segment_bytes = options->segment_bytes,
                                 .loops = options->loops};
    struct replay_result result;
    struct err_why why = {{0}};
    icms_err err;

    if (!options->cli.json)
        (void)printf("%u requests, %u blocks of which %u are distinct, %u loops\n"
                     "capacity    blocks segments policy     blocks   tokens  written GiB  carried"
                     "  ampl.   refused\n",
                     trace->request_count, trace->ref_count, trace->block_count, options->loops);
    for (uint32_t c = 0; c < options->capacities; c++) {
        setup.capacity_blocks = (uint64_t)(options->capacity[c] * trace->block_count);
        err = budget_make(options, trace, &setup, &why);
        for (uint32_t k = 0; err == ICMS_OK && k < options->kind_count; k++) {
            setup.kind = options->kinds[k];
            err = replay_one(trace, &setup, &why, &result);
            if (err == ICMS_OK)
                result_print(options, &setup, options->capacity[c], &result);
        }
        if (err != ICMS_OK)
            return cli_fail(&options->cli, err, "capacity %.4g%%: %s", options->capacity[c] * 100,
                            why.text);
        (void)fflush(stdout);
    }
    return CLI_DONE;
}

static int replay_command(int argc, char **argv)
{
    struct options options;
    struct replay_trace trace;
    struct err_why why = {{0}};
    int status = options_parse(&options, argc, argv);
    bool standard;
    FILE *file;
    icms_err err;

    if (status >= 0)
        return status;
    standard = strcmp(options.path, "-") == 0;
    file = standard ? stdin : fopen(options.path, "re");
    if (file == NULL)
        return cli_fail(&options.cli, ICMS_NOT_FOUND, "%s cannot be opened: %s", options.path,
                        strerror(errno));
    err = replay_trace_read(file, standard ? "standard input" : options.path, options.format, &why,
                            &trace);
    status = err == ICMS_OK ? replays_run(&options, &trace)
                            : cli_fail(&options.cli, err, "%s", why.text);
    replay_trace_free(&trace);
    if (!standard)
        (void)fclose(file);
    return status;
}

const struct cli_command cli_replay = {
    .name = "replay",
    .summary = "show what a drive would have kept of a trace",
    .run = replay_command,
    .help = "usage: icms replay [options] TRACE\n"
            "Replay the prompts of a trace through caches of several sizes, without moving a\n"
            "byte, and print what each one would have had, and written for it. TRACE is a file\n"
            "with one JSON object a line, - is standard input.\n\n"
            "      --format NAME     mooncake (512 tokens a block) or qwen (16); default mooncake\n"
            "      --capacity LIST   sizes, in parts of the distinct blocks of the trace;\n"
            "                        default 2%,5%,10%,20%,50%\n"
            "      --policy LIST     fifo, lru, s3-fifo, default (what drives do), due, run-wise,\n"
            "                        belady (the most block hits there can be)\n"
            "      --loops N         times the trace goes by, with other blocks each; default 3\n"
            "      --budget SIZE     bytes that may be written a day, or 50%: a part of what\n"
            "                        default writes without a budget\n"
            "      --block SIZE      of a value; default 2MiB\n"
            "      --segment SIZE    of a segment; default 16MiB\n"
            "      --json            answer with one JSON object a line\n"
            "  -h, --help            print this\n"
            "\nExit status: 0 done, 1 the trace or a size is not usable, 2 usage.\n",
};
