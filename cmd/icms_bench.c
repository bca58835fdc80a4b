/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_bench.c: icms bench: measures icms beside what this machine could do at most.
 *
 * One thread; bench starts those it needs. Rows go to standard output as they are ready, as
 * lines of a table or, with --json, one object a line; progress goes to standard error when that is
 * a terminal.
 */
#include <getopt.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "conf/conf.h"
#include "icms_cli.h"

/* What one run prints. */
struct bench_cli {
    struct cli cli;         /* how to complain                 */
    struct bench_opts opts; /* what to run                     */
    bool heading;           /* the table's head was printed    */
    bool progress;          /* a line of progress stands there */
};

enum bench_option {
    BENCH_JSON = 256,
    BENCH_DIR,
    BENCH_SPACE,
    BENCH_SLICES,
    BENCH_SLICE,
    BENCH_SIZE,
    BENCH_DEPTH,
    BENCH_REACTORS,
    BENCH_OP,
    BENCH_VARIANT,
    BENCH_LIST,
};

static const struct option bench_options[] = {
    {"json", no_argument, NULL, BENCH_JSON},
    {"dir", required_argument, NULL, BENCH_DIR},
    {"space", required_argument, NULL, BENCH_SPACE},
    {"slices", required_argument, NULL, BENCH_SLICES},
    {"slice", required_argument, NULL, BENCH_SLICE},
    {"size", required_argument, NULL, BENCH_SIZE},
    {"depth", required_argument, NULL, BENCH_DEPTH},
    {"reactors", required_argument, NULL, BENCH_REACTORS},
    {"op", required_argument, NULL, BENCH_OP},
    {"variant", required_argument, NULL, BENCH_VARIANT},
    {"list", no_argument, NULL, BENCH_LIST},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* ---- rows ------------------------------------------------------------------------------------ */

static void progress_clear(struct bench_cli *bench)
{
    if (bench->progress)
        (void)fputs("\r\033[K", stderr);
    bench->progress = false;
}

static void progress_show(void *arg, const char *what, double part)
{
    struct bench_cli *bench = arg;

    if (!isatty(STDERR_FILENO))
        return;
    (void)fprintf(stderr, "\r\033[K%s ... %.0f %%", what, part * 100);
    bench->progress = true;
}

/* A size as people say it. */
static const char *size_text(uint64_t bytes, char *out, size_t room)
{
    if (bytes == 0)
        (void)snprintf(out, room, "-");
    else if (bytes % (1 << 20) == 0)
        (void)snprintf(out, room, "%llu MiB", (unsigned long long)(bytes >> 20));
    else
        (void)snprintf(out, room, "%llu KiB", (unsigned long long)(bytes >> 10));
    return out;
}

/* A number of three decimals in a column; a dash for what was not measured. */
static void column(int width, double value)
{
    if (value > 0)
        (void)printf(" %*.3f", width, value);
    else
        (void)printf(" %*s", width, "-");
}

/* What one of the errors was. */
static const char *row_error(const struct bench_row *row)
{
    return icms_err_name(row->subject.errors > 0 ? row->subject.error : row->ceiling.error);
}

static void row_text(struct bench_cli *bench, const struct bench_row *row)
{
    const struct bench_figures *subject = &row->subject, *ceiling = &row->ceiling;
    char size[32], depth[32], what[64];

    if (!bench->heading)
        (void)printf("%-22s %8s %9s %7s %7s %6s %15s %6s %6s %9s %9s %9s\n", "bench", "size",
                     "depth", "GB/s", "ceiling", "ratio", "95 %", "CPU", "ceil.", "p50 us",
                     "p99 us", "p99.9 us");
    bench->heading = true;
    (void)snprintf(what, sizeof(what), "%s %s%s%s", row->bench, row->op,
                   row->variant[0] != 0 ? " " : "", row->variant);
    if (row->depth > 0)
        (void)snprintf(depth, sizeof(depth), "%u", row->depth);
    else if (row->ops_per_s > 0)
        (void)snprintf(depth, sizeof(depth), "%.0f/s", row->ops_per_s);
    else
        (void)snprintf(depth, sizeof(depth), "-");
    (void)printf("%-22s %8s %9s", what, size_text(row->size_bytes, size, sizeof(size)), depth);
    column(7, subject->gb_per_s);
    column(7, ceiling->gb_per_s);
    column(6, row->ratio);
    if (ceiling->name != NULL)
        (void)printf(" %7.3f-%7.3f", row->ratio_low, row->ratio_high);
    else
        (void)printf(" %15s", "-");
    column(6, subject->cpu_s_per_gb);
    column(6, ceiling->cpu_s_per_gb);
    (void)printf(" %9.1f %9.1f %9.1f", subject->p50_us, subject->p99_us, subject->p999_us);
    for (uint32_t i = 0; i < row->extra_count; i++)
        (void)printf("  %s=%.4g", row->extra[i].name, row->extra[i].value);
    if (subject->errors + ceiling->errors > 0)
        (void)printf("  ERRORS %llu (%s)", (unsigned long long)(subject->errors + ceiling->errors),
                     row_error(row));
    if (subject->from_memory > 0)
        (void)printf("  %llu more came from memory: give more --space",
                     (unsigned long long)subject->from_memory);
    (void)putchar('\n');
    (void)fflush(stdout);
}

static void json_figure(json_t *object, const char *name, double value)
{
    (void)json_object_set_new(object, name, json_real(value));
}

static void row_json(const struct bench_row *row)
{
    const struct bench_figures *subject = &row->subject, *ceiling = &row->ceiling;
    json_t *object = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "bench", row->bench,
                               "op", row->op, "variant", row->variant, "size_bytes",
                               (json_int_t)row->size_bytes, "depth", (json_int_t)row->depth,
                               "slices", (json_int_t)row->slices, "ops", (json_int_t)subject->ops,
                               "errors", (json_int_t)(subject->errors + ceiling->errors),
                               "verified_bytes", (json_int_t)subject->verified);

    if (object == NULL)
        return;
    if (subject->errors + ceiling->errors > 0)
        (void)json_object_set_new(object, "error", json_string(row_error(row)));
    if (subject->from_memory > 0)
        (void)json_object_set_new(object, "from_memory",
                                  json_integer((json_int_t)subject->from_memory));
    json_figure(object, "gb_per_s", subject->gb_per_s);
    json_figure(object, "cpu_s_per_gb", subject->cpu_s_per_gb);
    json_figure(object, "cpu_us_per_op", subject->cpu_us_per_op);
    json_figure(object, "p50_us", subject->p50_us);
    json_figure(object, "p99_us", subject->p99_us);
    json_figure(object, "p999_us", subject->p999_us);
    if (row->depth == 0 && row->ops_per_s > 0)
        json_figure(object, "ops_per_s", row->ops_per_s);
    if (ceiling->name != NULL) {
        (void)json_object_set_new(object, "ceiling", json_string(ceiling->name));
        json_figure(object, "ceiling_gb_per_s", ceiling->gb_per_s);
        json_figure(object, "ratio", row->ratio);
        json_figure(object, "ratio_low", row->ratio_low);
        json_figure(object, "ratio_high", row->ratio_high);
        json_figure(object, "ceiling_cpu_s_per_gb", ceiling->cpu_s_per_gb);
        json_figure(object, "ceiling_p50_us", ceiling->p50_us);
        json_figure(object, "ceiling_p99_us", ceiling->p99_us);
        json_figure(object, "ceiling_p999_us", ceiling->p999_us);
    }
    if (row->ratio_goal > 0)
        json_figure(object, "ratio_goal", row->ratio_goal);
    if (row->cpu_goal > 0)
        json_figure(object, "cpu_goal", row->cpu_goal);
    if (row->p50_goal_us > 0)
        json_figure(object, "p50_goal_us", row->p50_goal_us);
    for (uint32_t i = 0; i < row->extra_count; i++) {
        char name[64];

        json_figure(object, row->extra[i].name, row->extra[i].value);
        (void)snprintf(name, sizeof(name), "%s_at_most", row->extra[i].name);
        if (row->extra[i].at_most > 0)
            json_figure(object, name, row->extra[i].at_most);
    }
    (void)json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    (void)putchar('\n');
    (void)fflush(stdout);
    json_decref(object);
}

static void row_show(void *arg, const struct bench_row *row)
{
    struct bench_cli *bench = arg;

    progress_clear(bench);
    if (bench->cli.json)
        row_json(row);
    else
        row_text(bench, row);
}

static int list_show(void)
{
    for (const struct bench *bench = bench_list(); bench->name != NULL; bench++)
        (void)printf("%-8s %s%s%s\n", bench->name, bench->summary,
                     bench->ceiling[0] != 0 ? "; beside it: " : "", bench->ceiling);
    return CLI_DONE;
}

/* ---- the command line ------------------------------------------------------------------------ */

/* A whole number from 1. */
static int number_take(const struct bench_cli *bench, const char *option, uint32_t *out)
{
    char *end;
    unsigned long number = strtoul(optarg, &end, 10);

    if (end == optarg || *end != 0 || number == 0 || number > UINT32_MAX)
        return cli_usage(&bench->cli, "%s %s: not a whole number from 1", option, optarg);
    *out = (uint32_t)number;
    return -1;
}

static int bytes_take(const struct bench_cli *bench, const char *option, uint64_t *out)
{
    struct err_why why = {{0}};

    if (conf_bytes_parse(optarg, &why, out) != ICMS_OK)
        return cli_usage(&bench->cli, "%s %s: a size is written 256KiB or 8GiB", option, optarg);
    return -1;
}

/* One option; an exit status to end with, or -1. */
static int bench_option_take(struct bench_cli *bench, int code)
{
    struct bench_opts *opts = &bench->opts;
    struct err_why why = {{0}};

    switch (code) {
    case BENCH_JSON:
        bench->cli.json = true;
        return -1;
    case BENCH_DIR:
        opts->dir = optarg;
        return -1;
    case BENCH_OP:
        opts->op = optarg;
        return -1;
    case BENCH_VARIANT:
        opts->variant = optarg;
        return -1;
    case BENCH_SPACE:
        return bytes_take(bench, "--space", &opts->space_bytes);
    case BENCH_SIZE:
        return bytes_take(bench, "--size", &opts->size_bytes);
    case BENCH_SLICES:
        return number_take(bench, "--slices", &opts->slices);
    case BENCH_DEPTH:
        return number_take(bench, "--depth", &opts->depth);
    case BENCH_REACTORS:
        return number_take(bench, "--reactors", &opts->reactors);
    case BENCH_SLICE:
        if (conf_duration_parse(optarg, &why, &opts->slice_ms) != ICMS_OK)
            return cli_usage(&bench->cli, "--slice %s: a time is written 500ms or 2s", optarg);
        return -1;
    case BENCH_LIST:
        return list_show();
    case 'h':
        (void)fputs(cli_bench.help, stdout);
        return CLI_DONE;
    case ':':
        return cli_usage(&bench->cli, "an option needs a value");
    default:
        return cli_usage(&bench->cli, "it has no such option");
    }
}

/* Ctrl-C and the like: the bench ends and takes its files and daemons along. */
static void bench_on_signal(int number)
{
    (void)number;
    bench_cancel();
}

static void bench_signals(void)
{
    struct sigaction action = {.sa_handler = bench_on_signal, .sa_flags = SA_RESTART};

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
}

static int bench_run_command(int argc, char **argv)
{
    struct bench_cli bench = {.cli = {.command = &cli_bench}};
    struct err_why why = {{0}};
    icms_err err;
    int code, status;

    bench_opts_init(&bench.opts);
    bench.opts.row = row_show;
    bench.opts.progress = progress_show;
    bench.opts.arg = &bench;
    optind = 0;
    while ((code = getopt_long(argc, argv, ":h", bench_options, NULL)) != -1) {
        status = bench_option_take(&bench, code);
        if (status >= 0)
            return status;
    }
    if (argc - optind != 1)
        return cli_usage(&bench.cli, "name one bench; icms bench --list tells which there are");
    bench_signals();
    err = bench_run(argv[optind], &bench.opts, &why);
    progress_clear(&bench);
    if (err == ICMS_OK)
        return CLI_DONE;
    if (err == ICMS_INVALID || err == ICMS_NOT_FOUND)
        return cli_usage(&bench.cli, "%s", why.text);
    return cli_fail(&bench.cli, err, "%s: %s", argv[optind], why.text);
}

const struct cli_command cli_bench = {
    .name = "bench",
    .summary = "benchmark against the hardware limits",
    .run = bench_run_command,
    .help =
        "usage: icms bench [options] NAME\n"
        "Measure a part of icms and its ceiling (raw disk, raw TCP, memcpy) in turns, slice by\n"
        "slice, and print the median of the paired ratios with its 95 % interval, throughput,\n"
        "processor seconds for a GB of all processes, and latencies. Nothing of a running pod\n"
        "is touched.\n\n"
        "      --list           the benches there are\n"
        "      --dir DIRECTORY  where drive files go for the time; default: the current one\n"
        "      --space SIZE     most that they take together; default 20GiB\n"
        "      --slices N       slices of each side and row; default 20\n"
        "      --slice TIME     length of each; default 1s\n"
        "      --size SIZE      only values of this size; default 128KiB, 256KiB, 1MiB, 4MiB\n"
        "      --depth N        only this many in flight; default 1 and 16\n"
        "      --reactors N     of the daemons that pod, arena, gpu, match and crypt start,\n"
        "                       default 1; of cores only this many\n"
        "      --op OP          only get or put; of arena only lease or copy\n"
        "      --variant NAME   only this variant of a bench that has several\n"
        "      --json           one JSON object a row\n"
        "  -h, --help           print this\n\n"
        "Exit status: 0 done, 1 it failed, 2 usage.\n",
};
