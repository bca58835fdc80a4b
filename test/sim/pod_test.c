/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole pod in one thread: three enclosures with two drives each, two agents, three processes
 * beside each agent, for many seeds, under everything that can go wrong; then healed, and held to
 * exact accounts.
 *
 *   pod_test [--seed N] [--runs N] [--again N] [--all] [--large] [--brief] [--flood] [--chatty]
 *            [--verbose]
 *            [--canary NAME]
 *
 * pod_lib_test is the same with libicms in the processes beside the agents (lib.h).
 *
 * Each seed runs in a process of its own, so that a crash costs one seed and names it; --again N
 * runs every Nth seed twice and compares the histories. At the end of several runs stands how often
 * each trouble was drawn, and what came of it where that can be counted; with --all each has to
 * have been, and to have come to something. One seed alone runs in this process, for a debugger. A
 * canary breaks the system on purpose and has to be found: the exit status is 0 when it was, in
 * every seed.
 */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "pod.h"

static const char *const canary_names[POD_CANARY_COUNT] = {
    [POD_CANARY_NONE] = "none", [POD_CANARY_FORGET] = "forget", [POD_CANARY_CORRUPT] = "corrupt",
    [POD_CANARY_LATE] = "late", [POD_CANARY_TWICE] = "twice",   [POD_CANARY_WRITE] = "write",
};

/* How a canary may be found. */
static bool canary_found(enum pod_canary canary, int status)
{
    switch (canary) {
    case POD_CANARY_FORGET:
        return status == POD_FAULT_FORGOT;
    case POD_CANARY_CORRUPT: /* whoever reads it, or holds it while it happens */
    case POD_CANARY_WRITE:
        return status == POD_FAULT_BYTES || status == POD_FAULT_BUFFER;
    case POD_CANARY_LATE:
        return status == POD_FAULT_LATE;
    case POD_CANARY_TWICE:
        return status == POD_FAULT_ANSWER;
    default:
        return status == POD_FAULT_NONE;
    }
}

/* ---- what is said --------------------------------------------------------------------------- */

static struct pod_world *said_world; /* for a failed check */
static const char *said_program;     /* how it was called  */

static void say_replay(const struct pod_options *options)
{
    (void)printf("replay: %s --seed %llu%s%s --canary %s --chatty --verbose\n", said_program,
                 (unsigned long long)options->seed, options->large ? " --large" : "",
                 options->flood   ? " --flood"
                 : options->brief ? " --brief"
                                  : "",
                 canary_names[options->canary]);
    (void)fflush(stdout);
}

static void say_dump(void *arg)
{
    (void)arg;
    if (said_world == NULL)
        return;
    (void)printf("at %.3f ms\n", (double)sim_now_ns(said_world->sim) / MS);
    say_replay(&said_world->options);
}

void pod_fail(struct pod_world *world, enum pod_fault fault, const char *format, ...)
{
    va_list args;

    (void)printf("seed %llu FAILS at %.3f ms, %d: ", (unsigned long long)world->options.seed,
                 (double)sim_now_ns(world->sim) / MS, (int)fault);
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    (void)printf("\n");
    say_replay(&world->options);
    _exit((int)fault);
}

void pod_tell(struct pod_world *world, const char *format, ...)
{
    va_list args;

    if (!world->options.chatty)
        return;
    (void)printf("%12.6f ms ", (double)sim_now_ns(world->sim) / MS);
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    (void)printf("\n");
    (void)fflush(stdout);
}

static uint64_t sum(const uint64_t *numbers, size_t count)
{
    uint64_t all = 0;

    for (size_t i = 0; i < count; i++)
        all += numbers[i];
    return all;
}

static void say_counts(const struct pod_world *world)
{
    const struct pod_counts *counts = &world->counts;

    (void)printf("sent %llu hits %llu+%llu+%llu misses", (unsigned long long)sum(counts->sent, 8),
                 (unsigned long long)counts->source[ICMS_SOURCE_DRAM],
                 (unsigned long long)counts->source[ICMS_SOURCE_LOCAL],
                 (unsigned long long)counts->source[ICMS_SOURCE_POD]);
    for (unsigned i = 0; i < 9; i++)
        (void)printf("%c%llu", i == 0 ? ' ' : ',', (unsigned long long)counts->miss[i]);
    (void)printf(" flips %llu puts %llu errors %llu dropped %llu troubles %llu drives %llu "
                 "replaced %llu swapped %llu unaccepted %llu pinned %llu slow "
                 "%llu moved %llu "
                 "failovers %llu",
                 (unsigned long long)counts->flips, (unsigned long long)counts->ok[SHM_OP_PUT],
                 (unsigned long long)sum(counts->error, 64), (unsigned long long)counts->dropped,
                 (unsigned long long)sum(counts->trouble, POD_TROUBLE_KINDS),
                 (unsigned long long)counts->drives, (unsigned long long)counts->replaced,
                 (unsigned long long)counts->swapped, (unsigned long long)counts->unaccepted,
                 (unsigned long long)counts->pinned_evicted, (unsigned long long)counts->slow,
                 (unsigned long long)counts->moved, (unsigned long long)counts->failovers);
}

/* Of all seeds: memory that is shared with their processes. */
static struct pod_counts *all_counts;

static void all_add(const struct pod_counts *counts)
{
    for (int i = 0; i < POD_TROUBLE_KINDS; i++)
        all_counts->trouble[i] += counts->trouble[i];
    all_counts->swapped += counts->swapped;
    all_counts->unaccepted += counts->unaccepted;
    all_counts->sim.packets_lost += counts->sim.packets_lost;
    all_counts->sim.streams_held += counts->sim.streams_held;
    all_counts->sim.memory_refused += counts->sim.memory_refused;
    all_counts->sim.locked_refused += counts->sim.locked_refused;
    all_counts->sim.wall_reads += counts->sim.wall_reads;
}

static bool all_said(const char *what, uint64_t count)
{
    (void)printf("  %-32s %llu\n", what, (unsigned long long)count);
    return count > 0;
}

/* Whether each trouble was drawn, and came to something. */
static bool all_say(void)
{
    const struct sim_stats *sim = &all_counts->sim;
    bool is_all = true;

    (void)printf("troubles:\n");
    for (int i = 0; i < POD_TROUBLE_KINDS; i++)
        is_all =
            all_said(pod_trouble_name((enum pod_trouble_kind)i), all_counts->trouble[i]) && is_all;
    is_all = all_said("drives swapped", all_counts->swapped) && is_all;
    is_all = all_said("connections not accepted", all_counts->unaccepted) && is_all;
    is_all = all_said("packets lost", sim->packets_lost) && is_all;
    is_all = all_said("streams held, too large", sim->streams_held) && is_all;
    is_all = all_said("allocations refused", sim->memory_refused) && is_all;
    is_all = all_said("registrations refused", sim->locked_refused) && is_all;
    (void)all_said("wall clocks read", sim->wall_reads); /* none reads them in a loop */
    return is_all;
}

/* ---- running -------------------------------------------------------------------------------- */

/* A whole life; the hash over all that happened. */
static uint64_t run_once(const struct pod_options *options, bool say)
{
    struct pod_world *world = pod_world_new(options);
    uint64_t hash;

    said_world = world;
    if (options->flood)
        pod_flood(world);
    else
        pod_storm(world);
    if (options->flood)
        pod_storm_end(world);
    else if (options->brief)
        pod_settle_brief(world);
    else
        pod_settle(world);
    hash = hash64_mix(sim_trace_hash(world->sim) ^ world->history);
    sim_stats(world->sim, &world->counts.sim);
    if (say) {
        all_add(&world->counts);
        (void)printf("seed %llu hash %016llx %.1f s %llu events ",
                     (unsigned long long)options->seed, (unsigned long long)hash,
                     (double)sim_now_ns(world->sim) / 1e9,
                     (unsigned long long)sim_events(world->sim));
        say_counts(world);
        (void)printf("\n");
        (void)fflush(stdout);
    }
    said_world = NULL;
    pod_world_free(&world);
    return hash;
}

static int run_seed(const struct pod_options *options, bool again)
{
    uint64_t hash = run_once(options, true);

    if (again && run_once(options, false) != hash) {
        (void)printf("seed %llu FAILS: one seed, two histories\n",
                     (unsigned long long)options->seed);
        say_replay(options);
        return POD_FAULT_TRACE;
    }
    return POD_FAULT_NONE;
}

/* In a process of its own; its exit status, or 128 and the signal. */
static int run_apart(const struct pod_options *options, bool again)
{
    int status = 0;
    pid_t child;

    (void)fflush(stdout);
    child = fork();
    check(child >= 0);
    if (child == 0)
        exit(run_seed(options, again));
    check(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    (void)printf("seed %llu FAILS: signal %d\n", (unsigned long long)options->seed,
                 WTERMSIG(status));
    say_replay(options);
    return 128 + WTERMSIG(status);
}

static int usage(void)
{
    (void)fprintf(stderr,
                  "usage: %s [--seed N] [--runs N] [--again N] [--all] [--large] [--brief] "
                  "[--flood] [--chatty] "
                  "[--verbose] [--canary forget|corrupt|late|twice|write]\n",
                  said_program);
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"seed", required_argument, NULL, 's'},
        {"runs", required_argument, NULL, 'r'},
        {"again", required_argument, NULL, 'a'},
        {"brief", no_argument, NULL, 'k'},
        {"chatty", no_argument, NULL, 'c'},
        {"verbose", no_argument, NULL, 'v'},
        {"canary", required_argument, NULL, 'b'},
        {"flood", no_argument, NULL, 'f'},
        {"large", no_argument, NULL, 'l'},
        {"all", no_argument, NULL, 'x'},
        {NULL, 0, NULL, 0},
    };
    struct pod_options options = {.seed = 1};
    uint64_t runs = 1, again = 0, wrong = 0;
    bool wants_all = false;
    int option;

    said_program = basename(argv[0]);
    while ((option = getopt_long(argc, argv, "", longs, NULL)) >= 0) {
        switch (option) {
        case 's':
            options.seed = strtoull(optarg, NULL, 0);
            break;
        case 'r':
            runs = strtoull(optarg, NULL, 0);
            break;
        case 'a':
            again = strtoull(optarg, NULL, 0);
            break;
        case 'k':
            options.brief = true;
            break;
        case 'f':
            options.flood = true;
            break;
        case 'l':
            options.large = true;
            break;
        case 'x':
            wants_all = true;
            break;
        case 'c':
            options.chatty = true;
            break;
        case 'v':
            options.verbose = true;
            break;
        case 'b':
            while (options.canary < POD_CANARY_COUNT &&
                   strcmp(canary_names[options.canary], optarg) != 0)
                options.canary++;
            if (options.canary < POD_CANARY_COUNT)
                break;
            return usage();
        default:
            return usage();
        }
    }
    all_counts =
        mmap(NULL, sizeof(*all_counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(all_counts != MAP_FAILED);
    check_dump(say_dump, NULL);
    if (runs == 1 && options.canary == POD_CANARY_NONE)
        return run_seed(&options, again == 1);
    for (uint64_t i = 0; i < runs; i++, options.seed++)
        wrong += !canary_found(options.canary, run_apart(&options, again > 0 && i % again == 0));
    if (!all_say() && wants_all) {
        (void)printf("a trouble did not happen, or came to nothing: see above for 0\n");
        wrong++;
    }
    (void)printf("%llu seeds, %llu wrong\n", (unsigned long long)runs, (unsigned long long)wrong);
    return wrong == 0 ? 0 : 1;
}
