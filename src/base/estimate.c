/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/estimate.c: see the header for the model.
 *
 * Sums and products are made in double: 53 bits are more than any of these numbers is worth, and
 * nothing wraps.
 */
#include "base/estimate.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/counter.h"

/* No load counts as larger: what a server says of sizes is not believed beyond it. */
#define ESTIMATE_BYTES_MAX ((uint64_t)1 << 40)

void estimate_forget(struct estimate *estimate)
{
    counter_set(&estimate->first_ns, 0);
    counter_set(&estimate->first_bytes, 0);
    counter_set(&estimate->rate_ns, 0);
    counter_set(&estimate->rate_bytes, 0);
    estimate->firsts = estimate->rates = estimate->surprises = 0;
    estimate->was_alone = false;
}

static uint64_t bounded_ns(double ns)
{
    return ns >= (double)ESTIMATE_NS_MAX ? ESTIMATE_NS_MAX : (uint64_t)ns;
}

/* Nanoseconds a byte; 0: nothing is known. */
static double pace(uint64_t first_ns, uint64_t first_bytes, uint64_t rate_ns, uint64_t rate_bytes)
{
    if (rate_ns != 0)
        return (double)rate_ns / (double)u64_max(rate_bytes, 1);
    return first_ns == 0 ? 0 : (double)first_ns / (double)u64_max(first_bytes, 1);
}

static double known_pace(const struct estimate *estimate)
{
    return pace(estimate->first_ns, estimate->first_bytes, estimate->rate_ns, estimate->rate_bytes);
}

/* So many bytes from an idle server. The first of them brings its latency along. A smaller one than
 * the average takes less, but not less than by its bytes. */
static double idle_ns(const struct estimate *estimate, double bytes)
{
    double ns_a_byte = known_pace(estimate), least = bytes * ns_a_byte, ns = least;

    if (estimate->first_ns == 0)
        return least;
    if (bytes >= (double)estimate->first_bytes)
        ns += (double)estimate->first_ns - (double)estimate->first_bytes * ns_a_byte;
    else
        ns = (double)estimate->first_ns - ((double)estimate->first_bytes - bytes) * ns_a_byte;
    return ns < least ? least : ns;
}

/* For how long the server has worked at what comes next, as far as that was to take so long. */
static uint64_t under_way_ns(const struct estimate *estimate, uint64_t now_ns)
{
    double in_flight_bytes = (double)estimate->in_flight_bytes;

    if (estimate->in_flight == 0)
        return 0;
    if (estimate->came_ns == 0)
        return u64_min(now_ns - estimate->busy_ns, bounded_ns(idle_ns(estimate, in_flight_bytes)));
    return u64_min(now_ns - estimate->came_ns, bounded_ns(in_flight_bytes * known_pace(estimate) /
                                                          (double)estimate->in_flight));
}

uint64_t estimate_ns(const struct estimate *estimate, uint64_t bytes, uint64_t now_ns)
{
    double ns_a_byte = known_pace(estimate), ns;
    double total = (double)estimate->in_flight_bytes + (double)bytes;
    bool values_come = estimate->in_flight != 0 && estimate->came_ns != 0;

    if (ns_a_byte == 0)
        return ESTIMATE_UNKNOWN;
    ns = values_come ? total * ns_a_byte : idle_ns(estimate, total);
    if (values_come || estimate->first_ns != 0)
        ns -= (double)u64_min(under_way_ns(estimate, now_ns), bounded_ns(ns));
    return bounded_ns(ns);
}

/* ---- error ---------------------------------------------------------------------------------- */

static int error_compare(const void *a, const void *b)
{
    uint16_t left = *(const uint16_t *)a, right = *(const uint16_t *)b;

    return left < right ? -1 : left > right;
}

uint64_t estimate_error(const struct estimate *estimate)
{
    uint16_t errors[ESTIMATE_ERRORS];
    uint32_t count = estimate->error_count;

    if (count == 0)
        return 1000;
    memcpy(errors, estimate->errors, count * sizeof(errors[0]));
    qsort(errors, count, sizeof(errors[0]), error_compare);
    return errors[(count * 9 - 1) / 10];
}

static uint64_t error_of(uint64_t expected_ns, uint64_t took_ns)
{
    double off = (double)took_ns - (double)expected_ns;
    double error = (off < 0 ? -off : off) * 1000 / (double)u64_max(expected_ns, 1);

    return error >= ESTIMATE_ERROR_MAX ? ESTIMATE_ERROR_MAX : (uint64_t)error;
}

static void error_add(struct estimate *estimate, uint64_t error)
{
    estimate->errors[estimate->error_next] = (uint16_t)error;
    estimate->error_next = (estimate->error_next + 1) % ESTIMATE_ERRORS;
    if (estimate->error_count < ESTIMATE_ERRORS)
        estimate->error_count++;
    counter_set(&estimate->error_told, estimate_error(estimate));
}

/* A load that begins: the last of its group, unless one of that has ended. */
static void mark_move(struct estimate *estimate, const struct estimate_load *load,
                      uint64_t since_ns)
{
    if (estimate->mark.left > 0 && estimate->mark.has_ended)
        return;
    estimate->mark = (struct estimate_mark){
        .number = load->number,
        .loads = estimate->in_flight,
        .left = estimate->in_flight,
        .bytes = estimate->in_flight_bytes,
        .since_ns = since_ns,
        .asked_ns = load->asked_ns,
        .expected_ns = load->expected_ns,
    };
}

/* Whether a load that is in flight is of the group. */
static bool mark_has(const struct estimate_mark *mark, const struct estimate_load *load)
{
    return mark->left > 0 && load->number <= mark->number;
}

static uint64_t mark_took_ns(const struct estimate_mark *mark, uint64_t now_ns)
{
    return u64_min(u64_max(now_ns - mark->asked_ns, 1), ESTIMATE_NS_MAX);
}

/* A load that ended. The error of its group, when that has ended with it. */
static uint64_t mark_ended(struct estimate *estimate, const struct estimate_load *load,
                           enum estimate_end end, uint64_t came_bytes, uint64_t now_ns)
{
    struct estimate_mark *mark = &estimate->mark;
    uint64_t took_ns;

    if (!mark_has(mark, load))
        return ESTIMATE_UNKNOWN;
    mark->has_ended = true;
    mark->left--;
    mark->came_bytes += came_bytes;
    if (end == ESTIMATE_NOTHING)
        mark->has_none = true;
    else if (end == ESTIMATE_LATE)
        mark->is_late = true;
    if (mark->left > 0 || mark->has_none || mark->expected_ns == ESTIMATE_UNKNOWN)
        return ESTIMATE_UNKNOWN;
    took_ns = mark_took_ns(mark, now_ns);
    if (mark->is_late && took_ns <= mark->expected_ns)
        return ESTIMATE_UNKNOWN;
    return error_of(mark->expected_ns, took_ns);
}

/* ---- loads ---------------------------------------------------------------------------------- */

/* Halves what was learnt of the rate, when it is so many times as much as is to be remembered. */
static void rate_fade(struct estimate *estimate, uint32_t times)
{
    if (estimate->rates < times * ESTIMATE_MEMORY || estimate->rate_ns < times * ESTIMATE_MEMORY_NS)
        return;
    counter_set(&estimate->rate_ns, estimate->rate_ns / 2);
    counter_set(&estimate->rate_bytes, estimate->rate_bytes / 2);
    estimate->rates /= 2;
}

static void rate_add(struct estimate *estimate, uint64_t bytes, uint64_t took_ns)
{
    rate_fade(estimate, 2);
    estimate->rates++;
    counter_set(&estimate->rate_ns, u64_min(estimate->rate_ns + took_ns, ESTIMATE_NS_MAX));
    counter_set(&estimate->rate_bytes,
                u64_min(estimate->rate_bytes + bytes, ESTIMATE_BYTES_MAX * ESTIMATE_MEMORY));
}

void estimate_begun(struct estimate *estimate, struct estimate_load *load, uint64_t bytes,
                    uint64_t now_ns)
{
    uint64_t since_ns = now_ns - under_way_ns(estimate, now_ns);

    bytes = u64_min(bytes, ESTIMATE_BYTES_MAX);
    *load = (struct estimate_load){
        .number = ++estimate->asked,
        .asked_ns = now_ns,
        .bytes = bytes,
        .ahead_bytes = estimate->in_flight_bytes + bytes,
        .expected_ns = estimate_ns(estimate, bytes, now_ns),
        .least_ns = bounded_ns(idle_ns(estimate, (double)bytes)),
    };
    if (estimate->in_flight == 0) {
        estimate->busy_ns = now_ns;
        estimate->came_ns = estimate->came_bytes = 0;
        rate_fade(estimate, 1);
    }
    estimate->in_flight++;
    estimate->in_flight_bytes += bytes;
    mark_move(estimate, load, since_ns);
}

static uint64_t average(uint64_t average, uint64_t value, uint32_t count)
{
    double weight = 1.0 / (double)u64_min(count, ESTIMATE_FIRSTS);

    return (uint64_t)((double)average + ((double)value - (double)average) * weight);
}

static void first_add(struct estimate *estimate, uint64_t bytes, uint64_t took_ns, bool was_alone)
{
    if (was_alone && !estimate->was_alone) {
        estimate->was_alone = true;
        estimate->firsts = 0;
    }
    estimate->firsts = (uint32_t)u64_min((uint64_t)estimate->firsts + 1, ESTIMATE_FIRSTS);
    counter_set(&estimate->first_ns,
                u64_max(average(estimate->first_ns, took_ns, estimate->firsts), 1));
    counter_set(&estimate->first_bytes, average(estimate->first_bytes, bytes, estimate->firsts));
}

/* What is not its bytes in the time that a load takes alone; 0: nothing is known. */
static uint64_t latency_ns(const struct estimate *estimate)
{
    double ns = (double)estimate->first_ns - (double)estimate->first_bytes * known_pace(estimate);

    return ns > 0 ? (uint64_t)ns : 0;
}

/* All that is known from now on: so many bytes took so long. */
static void begin_anew(struct estimate *estimate, uint64_t bytes, uint64_t took_ns, uint64_t now_ns)
{
    estimate_forget(estimate);
    estimate->error_count = estimate->error_next = 0;
    counter_set(&estimate->error_told, estimate_error(estimate));
    estimate->dropped_ns = now_ns;
    rate_add(estimate, bytes, took_ns);
}

/* By a load, which took so long with all that was ahead of it. Behind one that did not come all of
 * that may still come: what came since the server became busy counts, and this one as if it had
 * come now. */
static void begin_anew_by(struct estimate *estimate, const struct estimate_load *load, bool came,
                          uint64_t now_ns)
{
    if (came)
        begin_anew(estimate, load->ahead_bytes, u64_max(now_ns - load->asked_ns, 1), now_ns);
    else
        begin_anew(estimate, estimate->came_bytes + load->bytes,
                   u64_max(now_ns - estimate->busy_ns, 1), now_ns);
}

/* What a load says of the server. */
enum verdict {
    AS_EXPECTED,   /* or nothing was expected                                               */
    SURPRISE,      /* left out of all averages: it may be a pause                            */
    CHANGED,       /* the last of so many surprises                                         */
    GROUP_CHANGED, /* it is the last of a group that is faster: each of them is a surprise */
};

/* From when the server was asked for what the group waits for until now. */
static uint64_t mark_span_ns(const struct estimate_mark *mark, uint64_t now_ns)
{
    return u64_max(now_ns - mark->since_ns, 1);
}

/* All have come, with what was expected of them, and in half of the time. */
static bool is_faster_group(const struct estimate_mark *mark, uint64_t now_ns)
{
    return mark->left == 0 && mark->loads >= ESTIMATE_SURPRISES && !mark->is_late &&
           !mark->has_none && mark->came_bytes >= mark->bytes / 2 &&
           mark_span_ns(mark, now_ns) < (mark->asked_ns - mark->since_ns + mark->expected_ns) / 2;
}

/* of_group: it was one of those that are marked. */
static enum verdict judge(struct estimate *estimate, const struct estimate_load *load,
                          bool of_group, bool is_alone, uint64_t now_ns)
{
    const struct estimate_mark *mark = &estimate->mark;
    uint64_t took_ns = u64_max(now_ns - load->asked_ns, 1);
    bool is_slow = took_ns / 2 > load->expected_ns, is_fast = took_ns < load->least_ns / 2;

    if (load->expected_ns == ESTIMATE_UNKNOWN || load->asked_ns < estimate->dropped_ns)
        return AS_EXPECTED;
    if (is_alone && estimate->firsts > 0 && !estimate->was_alone && took_ns < load->expected_ns)
        return AS_EXPECTED;
    if (of_group && mark->expected_ns != ESTIMATE_UNKNOWN) {
        if (is_faster_group(mark, now_ns))
            return GROUP_CHANGED;
        if (is_slow && mark_took_ns(mark, now_ns) / 2 <= mark->expected_ns)
            return AS_EXPECTED; /* the group decides */
    }
    if (is_slow || is_fast)
        return ++estimate->surprises < ESTIMATE_SURPRISES ? SURPRISE : CHANGED;
    estimate->surprises = 0;
    return AS_EXPECTED;
}

/* Whether it is known what the first value of several takes that is not their rate: from loads that
 * were alone, or in the rate. */
static bool has_first(const struct estimate *estimate)
{
    return estimate->was_alone || (estimate->firsts == 0 && estimate->rate_ns != 0);
}

/* What the end of a load teaches; of_group as for judge(). */
static void learn(struct estimate *estimate, const struct estimate_load *load, bool of_group,
                  bool came, uint64_t came_bytes, uint64_t now_ns)
{
    uint64_t took_ns = u64_max(now_ns - load->asked_ns, 1);
    bool is_alone = estimate->came_ns == 0 && estimate->in_flight == 0 &&
                    load->ahead_bytes == load->bytes && load->number == estimate->asked;
    enum verdict verdict = judge(estimate, load, of_group, is_alone, now_ns);

    if (verdict == CHANGED)
        begin_anew_by(estimate, load, came, now_ns);
    else if (verdict == GROUP_CHANGED)
        begin_anew(estimate, estimate->mark.came_bytes, mark_span_ns(&estimate->mark, now_ns),
                   now_ns);
    else if (verdict == SURPRISE)
        return;
    else if (!came && estimate->first_ns + estimate->rate_ns == 0)
        begin_anew_by(estimate, load, false, now_ns);
    else if (came && estimate->came_ns != 0)
        rate_add(estimate, came_bytes, now_ns - u64_max(estimate->came_ns, load->asked_ns));
    else if (came && (is_alone || !has_first(estimate)))
        first_add(estimate, came_bytes, took_ns, is_alone);
    else if (came)
        rate_add(estimate, came_bytes, took_ns - u64_min(latency_ns(estimate), took_ns - 1));
}

uint64_t estimate_ended(struct estimate *estimate, const struct estimate_load *load,
                        enum estimate_end end, uint64_t came_bytes, uint64_t now_ns)
{
    uint64_t took_ns = u64_min(u64_max(now_ns - load->asked_ns, 1), ESTIMATE_NS_MAX);
    bool of_group = mark_has(&estimate->mark, load);
    uint64_t error;

    check(estimate->in_flight > 0 && estimate->in_flight_bytes >= load->bytes);
    check(now_ns >= load->asked_ns);
    estimate->in_flight--;
    estimate->in_flight_bytes -= load->bytes;
    came_bytes = end == ESTIMATE_CAME ? u64_min(came_bytes, ESTIMATE_BYTES_MAX) : 0;
    error = mark_ended(estimate, load, end, came_bytes, now_ns);
    if (error != ESTIMATE_UNKNOWN)
        error_add(estimate, error);
    if (end == ESTIMATE_CAME || (end == ESTIMATE_LATE && (load->expected_ns == ESTIMATE_UNKNOWN ||
                                                          took_ns > load->expected_ns)))
        learn(estimate, load, of_group, end == ESTIMATE_CAME, came_bytes, now_ns);
    if (end == ESTIMATE_CAME) {
        estimate->came_ns = now_ns;
        estimate->came_bytes += came_bytes;
    }
    return error;
}

/* ---- other threads -------------------------------------------------------------------------- */

bool estimate_tell(const struct estimate *estimate, struct estimate_told *out_told)
{
    double ns_a_byte = pace(counter_get(&estimate->first_ns), counter_get(&estimate->first_bytes),
                            counter_get(&estimate->rate_ns), counter_get(&estimate->rate_bytes));

    if (ns_a_byte == 0)
        return false;
    *out_told = (struct estimate_told){
        .bytes_per_s = 1e9 / ns_a_byte < (double)ESTIMATE_BYTES_MAX ? (uint64_t)(1e9 / ns_a_byte)
                                                                    : ESTIMATE_BYTES_MAX,
        .first_ns = counter_get(&estimate->first_ns),
        .error = counter_get(&estimate->error_told),
    };
    return true;
}
