/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/test_hist.h: quantiles of histograms, for tests.
 */
#ifndef BASE_TEST_HIST_H
#define BASE_TEST_HIST_H

#include "base/hist.h"

/* The upper bound of the bucket that holds the quantile (0 < q <= 1); 0 when empty. */
static inline uint64_t hist_quantile(const struct hist *hist, double q)
{
    uint64_t rank = (uint64_t)(q * (double)hist->total);
    uint64_t seen = 0;

    if (hist->total == 0)
        return 0;
    for (unsigned i = 0; i < HIST_BUCKETS; i++) {
        seen += hist->count[i];
        if (seen >= rank && seen > 0)
            return hist_bucket_max(i);
    }
    return hist_bucket_max(HIST_BUCKETS - 1);
}

#endif
