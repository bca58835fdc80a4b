/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench.h: how fast icms is beside what the machine could do at most, measured in one run.
 *
 * A bench compares two sides on the same work: a ceiling (raw disk, raw TCP, memcpy) and icms. They
 * take turns in slices of a second or two, because machines change from minute to minute; each pair
 * of neighbours gives one ratio. A row has the median of these ratios with its 95 % interval, the
 * throughput, the processor time of all processes together and the latencies of both sides.
 *
 * One bench at a time in a process; bench_run blocks and may start threads and processes of its
 * own, which are gone when it returns. What it writes goes to a directory of its own, removed at
 * the end. Numbers here are measurements, never a test's verdict.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdbool.h>

#include "base/err.h"
#include "base/limits.h"

enum bench_op {
    BENCH_GET,   /* a value from where it lies into memory               */
    BENCH_PUT,   /* a new value                                          */
    BENCH_LEASE, /* arena: a block in place, no byte moves               */
    BENCH_COPY,  /* arena: a block of the agent's memory, checked        */
    BENCH_OPEN,  /* restart: a whole drive                               */
    BENCH_MATCH, /* match: the longest prefix of many keys               */
    BENCH_OPS,
};

/* "get", "put", "lease", "copy", "open", "match" */
const char *bench_op_name(enum bench_op op);

#define BENCH_EXTRA_MAX 8

/* A number that only some benches have, "index_bytes_per_block". */
struct bench_extra {
    const char *name; /* static                     */
    double value;     /* measured                   */
    double at_most;   /* its goal; 0: it has none   */
};

/* What one side did in all its slices. Latencies are from the moment an operation was due. */
struct bench_figures {
    const char *name;     /* "raw disk", "store"                                    */
    double gb_per_s;      /* median over slices; 1 GB is 10^9 bytes of values       */
    double cpu_s_per_gb;  /* user and system time of all processes, of all slices   */
    double cpu_us_per_op; /* the same for an operation                              */
    double p50_us;        /* the median operation                                   */
    double p99_us;        /* one of a hundred is slower                             */
    double p999_us;       /* one of a thousand is slower                            */
    uint64_t ops;         /* operations done                                        */
    uint64_t bytes;       /* of values moved                                        */
    uint64_t errors;      /* operations that failed, missed or gave a wrong byte    */
    icms_err error;       /* what one of them was                                   */
    uint64_t from_memory; /* loads that memory above the drive answered: right, and not counted as
                             operations                                             */
    uint64_t verified;    /* bytes whose content was checked                        */
};

/* One line of the result. */
struct bench_row {
    const char *bench;            /* "store"                                        */
    const char *op;               /* "get"                                          */
    const char *variant;          /* "" or what else tells rows apart: "daemon"     */
    uint64_t size_bytes;          /* of a value; 0: does not apply                  */
    uint32_t depth;               /* operations in flight; 0: open loop             */
    double ops_per_s;             /* open loop: how many are due each second        */
    uint32_t slices;              /* of each side; 0: it was not a comparison       */
    struct bench_figures ceiling; /* name NULL: there is none                       */
    struct bench_figures subject; /* icms                                           */
    double ratio;                 /* median of subject / ceiling throughput, paired */
    double ratio_low, ratio_high; /* its 95 % interval                              */
    double ratio_goal;            /* at least; 0: none                              */
    double cpu_goal;              /* cpu_s_per_gb at most; 0: none                  */
    double p50_goal_us;           /* p50_us at most; 0: none                        */
    uint32_t extra_count;         /* of extra                                       */
    struct bench_extra extra[BENCH_EXTRA_MAX];
};

struct bench_opts {
    const char *dir;      /* where drive files go; a directory of its own is made in it      */
    uint64_t space_bytes; /* most that the drive files take together                         */
    uint32_t slices;      /* of each side and row; at least 6, or there is no interval       */
    uint32_t slice_ms;    /* how long each takes                                             */
    uint64_t size_bytes;  /* only this size of values; 0: 128 KiB, 256 KiB, 1 MiB, 4 MiB     */
    uint32_t depth;       /* only this many in flight; 0: 1 and 16                           */
    uint32_t reactors;    /* of agents and targets, where a bench starts them; cores: only this
                             many; 0: 1                                                      */
    const char *op;       /* only this operation, by its name; NULL: all                     */
    const char *variant;  /* only this variant; NULL: all                                    */

    /* One row is ready; valid inside the call. */
    void (*row)(void *arg, const struct bench_row *row);

    /* Said before each step: what is done now, and which part of all is done (0 .. 1). */
    void (*progress)(void *arg, const char *what, double part);
    void *arg;
};

/* The current directory, 20 GiB (hosts of virtual disks keep some GiB in memory, which would favour
 * one side), 20 slices of 1 s, everything. */
void bench_opts_init(struct bench_opts *opts);

/* A bench that can be run. */
struct bench {
    const char *name;     /* "store"                                          */
    const char *summary;  /* "the flash engine on one drive, in-process"      */
    const char *ceiling;  /* "raw O_DIRECT io_uring"; "": none                */
    unsigned ops;         /* bit i: it has enum bench_op i                    */
    const char *variants; /* their names, or what those begin with; "": none  */
    bool has_depth;       /* it does so many at a time as it is told          */
    icms_err (*run)(const struct bench_opts *opts, struct err_why *why);
};

/* All of them, ended by one without a name. */
const struct bench *bench_list(void);

/* Runs a bench; every row goes to opts->row. NOT_FOUND: there is no such bench. INVALID: an option
 * that cannot be; NO_SPACE, UNSUPPORTED and others with a sentence in why. */
icms_err bench_run(const char *name, const struct bench_opts *opts,
                   struct err_why *why) ICMS_MUST_CHECK;

/* The bench under way ends soon, with CANCELED, and leaves nothing behind. For signal handlers. */
void bench_cancel(void);

#endif
