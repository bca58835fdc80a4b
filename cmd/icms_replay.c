/* SPDX-License-Identifier: Apache-2.0 */
/*
 * icms replay: what a drive of some size would have kept of a trace, and what it would have
 * written for that. One thread; nothing is opened but the trace, and with --payload a drive's file.
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
#include "replay/model.h"
#include "replay/tiers.h"

#define CAPACITIES_MAX 32
#define LOOPS_MAX      1000

/* Values and segments without bytes, and with them: so small that a trace's part fits on a disk. */
#define BLOCK_BYTES           ((uint64_t)2 << 20)
#define SEGMENT_BYTES         ((uint64_t)16 << 20)
#define PAYLOAD_BLOCK_BYTES   ((uint64_t)64 << 10)
#define PAYLOAD_SEGMENT_BYTES ((uint64_t)1 << 20)

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
    uint64_t block_bytes, segment_bytes;  /* of the drives; 0: not said                */
    const char *payload;                  /* where the store's drive goes; NULL: none  */
    uint64_t space_bytes;                 /* that its file may take                    */
    double budget_part;                   /* of what `default` writes; 0: none         */
    uint64_t budget_bytes_day;            /* or so many; 0: none                       */
    uint32_t enclosures;                  /* placement in so many; 0: caches instead   */
    double tiers[REPLAY_TIERS];           /* parts of the footprint, with --tiers      */
    bool is_tiers;                        /* --tiers was said                          */
    bool is_exclusive;                    /* drive and pod have each its share of runs */
};

enum {
    OPTION_FORMAT = 256,
    OPTION_CAPACITY,
    OPTION_POLICY,
    OPTION_LOOPS,
    OPTION_BUDGET,
    OPTION_PLACEMENT,
    OPTION_TIERS,
    OPTION_EXCLUSIVE,
    OPTION_BLOCK,
    OPTION_SEGMENT,
    OPTION_PAYLOAD,
    OPTION_SPACE,
    OPTION_JSON
};

static const struct option replay_options[] = {
    {"format", required_argument, NULL, OPTION_FORMAT},
    {"capacity", required_argument, NULL, OPTION_CAPACITY},
    {"policy", required_argument, NULL, OPTION_POLICY},
    {"loops", required_argument, NULL, OPTION_LOOPS},
    {"budget", required_argument, NULL, OPTION_BUDGET},
    {"placement", required_argument, NULL, OPTION_PLACEMENT},
    {"tiers", required_argument, NULL, OPTION_TIERS},
    {"exclusive", no_argument, NULL, OPTION_EXCLUSIVE},
    {"block", required_argument, NULL, OPTION_BLOCK},
    {"segment", required_argument, NULL, OPTION_SEGMENT},
    {"payload", required_argument, NULL, OPTION_PAYLOAD},
    {"space", required_argument, NULL, OPTION_SPACE},
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

/* Memory, the own drive and the pod; the last two may be 0%. */
static int tiers_take(struct options *options, const char *text)
{
    for (int i = 0; i < REPLAY_TIERS; i++) {
        size_t length = strcspn(text, ",");
        bool is_none = i > 0 && length == 2 && strncmp(text, "0%", 2) == 0;

        options->tiers[i] = 0;
        if ((!is_none && !percent_parse(text, length, &options->tiers[i])) ||
            (text[length] == 0) != (i == REPLAY_TIERS - 1))
            return cli_usage(&options->cli,
                             "--tiers %s: memory, own drive and pod are parts of the footprint, as "
                             "in 2%%,10%%,20%%; the last two may be 0%%",
                             optarg);
        text += length + 1;
    }
    options->is_tiers = true;
    return -1;
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
                             "--policy %s: there are fifo, lru, s3-fifo, default, belady and "
                             "store",
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
    case OPTION_PLACEMENT:
        loops = strtoul(optarg, &end, 10);
        if (*end != 0 || end == optarg || loops < 1 || loops > LIMIT_ENCLOSURES)
            return cli_usage(&options->cli, "--placement %s: a number of enclosures from 1 to %d",
                             optarg, LIMIT_ENCLOSURES);
        options->enclosures = (uint32_t)loops;
        return -1;
    case OPTION_EXCLUSIVE:
        options->is_exclusive = true;
        return -1;
    case OPTION_TIERS:
        return tiers_take(options, optarg);
    case OPTION_BLOCK:
        return size_take(options, "block", 1, (uint64_t)8 << 20, &options->block_bytes);
    case OPTION_SEGMENT:
        return size_take(options, "segment", (uint64_t)64 << 10, (uint64_t)256 << 20,
                         &options->segment_bytes);
    case OPTION_PAYLOAD:
        options->payload = optarg;
        return -1;
    case OPTION_SPACE:
        return size_take(options, "space", 1, UINT64_MAX / 2, &options->space_bytes);
    case OPTION_JSON:
        return -1;
    default:
        return cli_usage(&options->cli, "unknown option");
    }
}

/* What was not said, and what does not go together. */
static int options_complete(struct options *options)
{
    bool payload = options->payload != NULL, store = false;

    if (options->is_tiers && (options->kind_count > 0 || payload || options->enclosures != 0 ||
                              options->budget_part != 0))
        return cli_usage(&options->cli, "--tiers stands alone: it goes with --format, --loops, "
                                        "--block, --segment and a --budget in bytes");
    if (options->is_exclusive && !options->is_tiers)
        return cli_usage(&options->cli, "--exclusive goes with --tiers");
    if (options->kind_count == 0 && payload) {
        options->kinds[options->kind_count++] = REPLAY_DEFAULT;
        options->kinds[options->kind_count++] = REPLAY_STORE;
    } else if (options->kind_count == 0) {
        static const enum replay_kind usual[] = {REPLAY_FIFO, REPLAY_LRU, REPLAY_S3FIFO,
                                                 REPLAY_DEFAULT, REPLAY_BELADY};

        memcpy(options->kinds, usual, sizeof(usual));
        options->kind_count = sizeof(usual) / sizeof(usual[0]);
    }
    for (uint32_t i = 0; i < options->kind_count; i++)
        store = store || options->kinds[i] == REPLAY_STORE;
    if (store && !payload)
        return cli_usage(&options->cli, "the policy store writes to a drive: say where with "
                                        "--payload");
    if (payload && !store)
        return cli_usage(&options->cli, "--payload is for the policy store; name it in --policy");
    if (options->block_bytes == 0)
        options->block_bytes = payload ? PAYLOAD_BLOCK_BYTES : BLOCK_BYTES;
    if (options->segment_bytes == 0)
        options->segment_bytes = payload ? PAYLOAD_SEGMENT_BYTES : SEGMENT_BYTES;
    return -1;
}

static int options_parse(struct options *options, int argc, char **argv)
{
    int code, status;

    *options = (struct options){.cli = {.command = &cli_replay},
                                .capacity = {0.02, 0.05, 0.1, 0.2, 0.5},
                                .capacities = 5,
                                .loops = 3,
                                .space_bytes = (uint64_t)8 << 30};
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
            return cli_usage(&options->cli, "unknown option '%s'", argv[optind - 1]);
        status = option_take(options, code);
        if (status >= 0)
            return status;
    }
    if (argc - optind != 1)
        return cli_usage(&options->cli, "it takes one file with a trace, or - for standard input");
    options->path = argv[optind];
    return options_complete(options);
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
            "%7.4g%% %9llu %8llu %-8s %8.4f %8.4f %12.1f %6.3f %9llu\n", capacity * 100,
            (unsigned long long)setup->capacity_blocks, (unsigned long long)result->segments, name,
            ratio(result->block_hits, result->refs), ratio(result->token_hits, result->tokens),
            (double)result->written_bytes / (1 << 30), amplification,
            (unsigned long long)result->refused);
        return;
    }
    cli_json("{s:f, s:I, s:I, s:s, s:f, s:f, s:I, s:I, s:f, s:I, s:I, s:I}", "capacity", capacity,
             "capacity_blocks", (json_int_t)setup->capacity_blocks, "segments",
             (json_int_t)result->segments, "policy", name, "block_hit_ratio",
             ratio(result->block_hits, result->refs), "token_hit_ratio",
             ratio(result->token_hits, result->tokens), "written_bytes",
             (json_int_t)result->written_bytes, "admitted_bytes",
             (json_int_t)result->admitted_bytes, "write_amplification", amplification, "refused",
             (json_int_t)result->refused, "budget_bytes_day", (json_int_t)setup->budget_bytes_day,
             "compared_bytes", (json_int_t)result->compared_bytes);
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

static struct replay_setup setup_make(const struct options *options)
{
    return (struct replay_setup){.block_bytes = options->block_bytes,
                                 .segment_bytes = options->segment_bytes,
                                 .loops = options->loops,
                                 .dir = options->payload};
}

/* Whether every drive will fit; said before the first one is made. -1, or an exit status. */
static int space_check(const struct options *options, const struct replay_trace *trace)
{
    struct replay_setup setup = setup_make(options);
    struct err_why why = {{0}};
    uint64_t bytes;
    icms_err err;

    for (uint32_t c = 0; options->payload != NULL && c < options->capacities; c++) {
        setup.capacity_blocks = (uint64_t)(options->capacity[c] * trace->block_count);
        err = replay_file_bytes(&setup, &why, &bytes);
        if (err == ICMS_OK && bytes > options->space_bytes)
            err = err_set(&why, ICMS_NO_SPACE,
                          "its drive takes %llu MiB and --space allows %llu: allow more, or take "
                          "smaller values (--block) or other sizes (--capacity)",
                          (unsigned long long)(bytes >> 20),
                          (unsigned long long)(options->space_bytes >> 20));
        if (err != ICMS_OK)
            return cli_fail(&options->cli, err, "capacity %.4g%%: %s", options->capacity[c] * 100,
                            why.text);
    }
    return -1;
}

static int replays_run(const struct options *options, const struct replay_trace *trace)
{
    struct replay_setup setup = setup_make(options);
    struct replay_result result;
    struct err_why why = {{0}};
    int status = space_check(options, trace);
    icms_err err;

    if (status >= 0)
        return status;

    if (!options->cli.json)
        (void)printf("%u requests, %u blocks of which %u are distinct, %u loops\n"
                     "capacity    blocks segments policy     blocks   tokens  written GiB"
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

/* One tier, by its blocks of longest prefixes. */
static void tier_print(const struct options *options, enum replay_tier tier, uint64_t blocks,
                       const struct replay_tiers_result *result)
{
    double hits = ratio(result->tiers[tier].block_hits, result->refs);

    if (options->cli.json)
        cli_json("{s:s, s:f, s:I, s:I, s:f, s:I, s:I}", "tier", replay_tier_names[tier], "capacity",
                 options->tiers[tier], "capacity_blocks", (json_int_t)blocks, "segments",
                 (json_int_t)result->tiers[tier].segments, "prefix_hit_ratio", hits,
                 "written_bytes", (json_int_t)result->tiers[tier].written_bytes, "refused",
                 (json_int_t)result->tiers[tier].refused);
    else
        (void)printf("%-6s %7.4g%% %9llu %8llu %8.4f %12.1f %9llu\n", replay_tier_names[tier],
                     options->tiers[tier] * 100, (unsigned long long)blocks,
                     (unsigned long long)result->tiers[tier].segments, hits,
                     (double)result->tiers[tier].written_bytes / (1 << 30),
                     (unsigned long long)result->tiers[tier].refused);
}

/* A line for each tier, one for all of them, and one LRU of the summed size beside it. */
static int tiers_run(const struct options *options, const struct replay_trace *trace)
{
    struct replay_setup setup = setup_make(options);
    struct replay_tiers_result result;
    struct replay_result lru;
    uint64_t blocks[REPLAY_TIERS];
    struct err_why why = {{0}};
    double hits, of, share = 0;
    icms_err err;

    setup.budget_bytes_day = options->budget_bytes_day;
    for (int i = 0; i < REPLAY_TIERS; i++) {
        blocks[i] = (uint64_t)(options->tiers[i] * trace->block_count);
        setup.capacity_blocks += blocks[i];
    }
    if (options->is_exclusive && blocks[REPLAY_LOCAL] > 0)
        share = (double)blocks[REPLAY_LOCAL] / (double)(blocks[REPLAY_LOCAL] + blocks[REPLAY_POD]);
    err = replay_tiers_run(trace, &setup, blocks, share, &why, &result);
    setup.kind = REPLAY_LRU;
    if (err == ICMS_OK)
        err = replay_one(trace, &setup, &why, &lru);
    if (err != ICMS_OK)
        return cli_fail(&options->cli, err, "%s", why.text);
    if (!options->cli.json)
        (void)printf("%u requests, %u blocks of which %u are distinct, %u loops\n"
                     "tier    capacity  blocks segments   blocks  written GiB   refused\n",
                     trace->request_count, trace->ref_count, trace->block_count, options->loops);
    for (enum replay_tier tier = REPLAY_DRAM; tier < REPLAY_TIERS; tier++)
        tier_print(options, tier, blocks[tier], &result);
    hits = ratio(result.token_hits, result.tokens);
    of = ratio(lru.token_hits, lru.tokens);
    if (options->cli.json)
        cli_json("{s:s, s:I, s:f, s:f}", "tier", "all", "capacity_blocks",
                 (json_int_t)setup.capacity_blocks, "token_hit_ratio", hits, "lru_token_hit_ratio",
                 of);
    else
        (void)printf("tokens hit: %.4f; by one LRU of all %llu blocks: %.4f\n", hits,
                     (unsigned long long)setup.capacity_blocks, of);
    return CLI_DONE;
}

/* A line for each length of a run. */
static int placement_run(const struct options *options, const struct replay_trace *trace)
{
    if (!options->cli.json)
        (void)printf("%u requests, %u blocks of which %u are distinct, %u enclosures\n"
                     "run_blocks  stored max/mean  read max/mean  prefix kept, 1 lost\n",
                     trace->request_count, trace->ref_count, trace->block_count,
                     options->enclosures);
    for (uint32_t run_blocks = 1; run_blocks <= 64; run_blocks *= 2) {
        struct replay_placement placement;
        struct err_why why = {{0}};
        icms_err err = replay_placement(trace, options->enclosures, run_blocks, &why, &placement);

        if (err != ICMS_OK)
            return cli_fail(&options->cli, err, "%s", why.text);
        if (options->cli.json)
            cli_json("{s:i, s:i, s:f, s:f, s:f}", "enclosures", (int)options->enclosures,
                     "run_blocks", (int)run_blocks, "stored_max", placement.stored_max, "read_max",
                     placement.read_max, "prefix_kept", placement.kept);
        else
            (void)printf("%10u %16.2f %14.2f %20.3f\n", run_blocks, placement.stored_max,
                         placement.read_max, placement.kept);
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
    if (err != ICMS_OK)
        status = cli_fail(&options.cli, err, "%s", why.text);
    else if (options.enclosures != 0)
        status = placement_run(&options, &trace);
    else if (options.is_tiers)
        status = tiers_run(&options, &trace);
    else
        status = replays_run(&options, &trace);
    replay_trace_free(&trace);
    if (!standard)
        (void)fclose(file);
    return status;
}

const struct cli_command cli_replay = {
    .name = "replay",
    .summary = "simulate the hits of a trace on a drive",
    .run = replay_command,
    .help =
        "usage: icms replay [options] TRACE\n"
        "Replay the prompts of a trace through caches of several sizes and print what each\n"
        "one would have had, and written for it; no byte is moved but with --payload. TRACE\n"
        "is a file with one JSON object a line, - is standard input.\n\n"
        "      --format NAME     mooncake (512 tokens a block) or qwen (16); default mooncake\n"
        "      --capacity LIST   sizes, in parts of the distinct blocks of the trace;\n"
        "                        default 2%,5%,10%,20%,50%\n"
        "      --policy LIST     fifo, lru, s3-fifo, default (what drives do), belady (the most\n"
        "                        block hits there can be), store (with --payload: the store\n"
        "                        itself)\n"
        "      --loops N         times the trace goes by, with other blocks each; default 3\n"
        "      --budget SIZE     bytes that may be written a day, or 50%: a part of what\n"
        "                        default writes without a budget\n"
        "      --placement N     instead: how evenly runs of several lengths lie in a pod of N\n"
        "                        enclosures, and what is left of prompts without one of them\n"
        "      --tiers D,L,P     instead: through memory, own drive and pod of one server, whose\n"
        "                        sizes are parts as in --capacity, such as 2%,10%,20%; hits and\n"
        "                        bytes written by tier, beside one LRU of the summed size\n"
        "      --exclusive       with --tiers: drive and pod have each the runs of its share\n"
        "      --block SIZE      of a value; default 2MiB, with --payload 64KiB\n"
        "      --segment SIZE    of a segment; default 16MiB, with --payload 1MiB\n"
        "      --payload DIR     through the store itself too, with real values on a drive that\n"
        "                        is a file in DIR; every byte that is read is compared\n"
        "      --space SIZE      what that file may take at most; default 8GiB\n"
        "      --json            answer with one JSON object a line\n"
        "  -h, --help            print this\n"
        "\nExit status: 0 done, 1 the trace or a size is not usable, 2 usage.\n",
};
