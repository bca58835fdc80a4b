/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench.c: which benches there are, and how one is started.
 */
#include <string.h>

#include "base/check.h"
#include "bench/bench_int.h"

#define SLICES_MAX   1000
#define SLICE_MS_MAX 60000
#define VALUE_MIN    4096
#define VALUE_MAX    ((uint64_t)4 << 20)
#define SPACE_MIN    ((uint64_t)512 << 20)

static const struct bench benches[] = {
    {"store", "the flash engine on one drive, in-process", "raw O_DIRECT io_uring",
     1u << BENCH_GET | 1u << BENCH_PUT, "", true, bench_store_run},
    {"drives", "an enclosure of four drives, without the network",
     "raw O_DIRECT io_uring on four files", 1u << BENCH_GET | 1u << BENCH_PUT, "loops-1 loops-2",
     true, bench_drives_run},
    {"wire", "Retrieve and Store over NVMe/TCP, initiator and target in two processes",
     "raw TCP, two processes", 1u << BENCH_GET | 1u << BENCH_PUT, "poll", true, bench_wire_run},
    {"pod", "client, agent, target and drive: the whole way through libicms",
     "raw O_DIRECT io_uring", 1u << BENCH_GET | 1u << BENCH_PUT, "inprocess daemon", true,
     bench_pod_run},
    {"arena", "a block in the agent's memory: leased in place, or copied and checked", "memcpy",
     1u << BENCH_LEASE | 1u << BENCH_COPY, "", false, bench_arena_run},
    {"crypt", "encryption: of a value in memory, of a pod's values, of its connections",
     "AES-256-GCM in place; a plain pod", 1u << BENCH_GET | 1u << BENCH_PUT, "own pod tls", true,
     bench_crypt_run},
    {"gpu", "blocks between the agent's memory and memory of a GPU",
     "the driver's copies, pinned memory", 1u << BENCH_GET | 1u << BENCH_PUT, "", true,
     bench_gpu_run},
    {"match", "the longest prefix of 2,048 keys, with a map of 36 enclosures", "",
     1u << BENCH_MATCH, "arena wire standard wire-1", false, bench_match_run},
    {"restart", "opening a drive of a million blocks", "reading the same summaries",
     1u << BENCH_OPEN, "", false, bench_restart_run},
    {"idle", "a pod that nobody asks, and its first answers then", "", 1u << BENCH_GET, "", false,
     bench_idle_run},
    {"cores", "a pod with 1, 2, 4 and 8 reactors a side, and what keeps cores busy",
     "a pod with one reactor", 1u << BENCH_GET | 1u << BENCH_PUT, "memory pod", true,
     bench_cores_run},
    {"scale",
     "an enclosure with 8 to 1,152 agents, an agent with 1 to 36 enclosures: what each takes", "",
     1u << BENCH_GET, "agents- enclosures-", false, bench_scale_run},
    {"ceiling", "the ceilings of the other benches: raw disk and raw TCP", "fio and iperf3",
     1u << BENCH_GET | 1u << BENCH_PUT, "disk twins checked tcp", true, bench_ceiling_run},
    {NULL, NULL, NULL, 0, NULL, false, NULL},
};

const struct bench *bench_list(void)
{
    return benches;
}

const char *bench_op_name(enum bench_op op)
{
    static const char *const names[BENCH_OPS] = {"get", "put", "lease", "copy", "open", "match"};

    check(op < BENCH_OPS);
    return names[op];
}

volatile sig_atomic_t bench_canceled;

void bench_cancel(void)
{
    bench_canceled = 1;
}

icms_err bench_go_on(struct err_why *why)
{
    return bench_canceled == 0 ? ICMS_OK : err_set(why, ICMS_CANCELED, "ended by a signal");
}

static void no_progress(void *arg, const char *what, double part)
{
    (void)arg;
    (void)what;
    (void)part;
}

void bench_opts_init(struct bench_opts *opts)
{
    *opts = (struct bench_opts){.dir = ".",
                                .space_bytes = (uint64_t)20 << 30,
                                .slices = 20,
                                .slice_ms = 1000,
                                .progress = no_progress};
}

static icms_err opts_check(const struct bench_opts *opts, struct err_why *why)
{
    if (opts->slices == 0 || opts->slices > SLICES_MAX)
        return err_set(why, ICMS_INVALID, "%u slices: 1 to %u can be run", opts->slices,
                       SLICES_MAX);
    if (opts->slice_ms == 0 || opts->slice_ms > SLICE_MS_MAX)
        return err_set(why, ICMS_INVALID, "slices of %u ms: they take 1 ms to %u ms",
                       opts->slice_ms, SLICE_MS_MAX);
    if (opts->size_bytes != 0 && (opts->size_bytes < VALUE_MIN || opts->size_bytes > VALUE_MAX ||
                                  opts->size_bytes % VALUE_MIN != 0))
        return err_set(why, ICMS_INVALID, "values of %llu bytes: whole 4 KiB up to 4 MiB",
                       (unsigned long long)opts->size_bytes);
    if (opts->depth > 64)
        return err_set(why, ICMS_INVALID, "depth %u: 64 at most", opts->depth);
    if (opts->reactors > LIMIT_LOOPS)
        return err_set(why, ICMS_INVALID, "%u reactors: %d at most", opts->reactors, LIMIT_LOOPS);
    if (opts->space_bytes < SPACE_MIN)
        return err_set(why, ICMS_INVALID, "a bench needs 512 MiB of space at least");
    return ICMS_OK;
}

static bool bench_has_op(const struct bench *bench, const char *op)
{
    for (int i = 0; i < BENCH_OPS; i++)
        if ((bench->ops >> i & 1) != 0 && strcmp(op, bench_op_name((enum bench_op)i)) == 0)
            return true;
    return false;
}

/* A name that ends with '-' stands for all that begin with it. */
static bool bench_has_variant(const struct bench *bench, const char *variant)
{
    for (const char *at = bench->variants; *at != '\0'; at += *at == ' ') {
        size_t bytes = strcspn(at, " ");
        bool is_many = at[bytes - 1] == '-';

        if (strncmp(at, variant, bytes) == 0 && (is_many || variant[bytes] == '\0'))
            return true;
        at += bytes;
    }
    return false;
}

/* What was asked for and this bench does not do is no reason to measure something else. */
static icms_err bench_fits(const struct bench *bench, const struct bench_opts *opts,
                           struct err_why *why)
{
    if (opts->op != NULL && !bench_has_op(bench, opts->op))
        return err_set(why, ICMS_INVALID, "the bench %s has no operation '%s'", bench->name,
                       opts->op);
    if (opts->variant != NULL && !bench_has_variant(bench, opts->variant))
        return err_set(why, ICMS_INVALID, "the bench %s has no variant '%s': it has %s",
                       bench->name, opts->variant,
                       bench->variants[0] != '\0' ? bench->variants : "none");
    if (opts->depth > 1 && !bench->has_depth)
        return err_set(why, ICMS_INVALID, "the bench %s does one at a time: leave out --depth",
                       bench->name);
    return ICMS_OK;
}

/* Counts the rows on their way. */
struct bench_rows {
    const struct bench_opts *opts;
    uint32_t count;
};

static void rows_row(void *arg, const struct bench_row *row)
{
    struct bench_rows *rows = arg;

    rows->count++;
    rows->opts->row(rows->opts->arg, row);
}

static void rows_progress(void *arg, const char *what, double part)
{
    const struct bench_rows *rows = arg;

    rows->opts->progress(rows->opts->arg, what, part);
}

static icms_err bench_rows_run(const struct bench *bench, const struct bench_opts *opts,
                               struct err_why *why)
{
    struct bench_rows rows = {.opts = opts};
    struct bench_opts counted = *opts;
    icms_err err;

    counted.row = rows_row;
    counted.progress = rows_progress;
    counted.arg = &rows;
    err = bench->run(&counted, why);
    if (err == ICMS_OK && rows.count == 0)
        return err_set(why, ICMS_INVALID,
                       "the bench %s has nothing to measure with these options together",
                       bench->name);
    return err;
}

icms_err bench_run(const char *name, const struct bench_opts *opts, struct err_why *why)
{
    icms_err err = opts_check(opts, why);

    if (err != ICMS_OK)
        return err;
    for (const struct bench *bench = benches; bench->name != NULL; bench++) {
        if (strcmp(bench->name, name) != 0)
            continue;
        err = bench_fits(bench, opts, why);
        return err == ICMS_OK ? bench_rows_run(bench, opts, why) : err;
    }
    return err_set(why, ICMS_NOT_FOUND, "there is no bench '%s'", name);
}
