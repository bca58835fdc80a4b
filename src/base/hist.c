/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets: values 0..3 have their own; above, the two bits after the leading one choose the
 * quarter. One writer.
 */
#include "base/counter.h"
#include "base/hist.h"

static unsigned hist_bucket(uint64_t value)
{
    unsigned log2;

    if (value < HIST_SUB)
        return (unsigned)value;
    log2 = 63 - (unsigned)__builtin_clzll(value);
    return (log2 - 1) * HIST_SUB + (unsigned)((value >> (log2 - 2)) & (HIST_SUB - 1));
}

uint64_t hist_bucket_max(unsigned i)
{
    unsigned log2;
    uint64_t quarter;

    if (i < HIST_SUB)
        return i;
    log2 = i / HIST_SUB + 1;
    quarter = (uint64_t)1 << (log2 - 2);
    return ((uint64_t)1 << log2) + (i % HIST_SUB + 1) * quarter - 1;
}

void hist_add(struct hist *hist, uint64_t value)
{
    counter_add(&hist->count[hist_bucket(value)], 1);
    counter_add(&hist->sum, value);
    counter_add(&hist->total, 1);
}

void hist_merge(struct hist *hist, const struct hist *from)
{
    for (unsigned i = 0; i < HIST_BUCKETS; i++)
        hist->count[i] += counter_get(&from->count[i]);
    hist->total += counter_get(&from->total);
    hist->sum += counter_get(&from->sum);
}
