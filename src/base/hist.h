/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/hist.h: latency histogram with power-of-two buckets split in four (error under 19 %).
 *
 * One writer; readers on other threads may see a count a moment old.
 */
#ifndef BASE_HIST_H
#define BASE_HIST_H

#include <stdint.h>

#define HIST_SUB     4
#define HIST_BUCKETS (63 * HIST_SUB) /* the last one ends with UINT64_MAX */

struct hist {
    uint64_t count[HIST_BUCKETS]; /* values a bucket */
    uint64_t total;               /* values          */
    uint64_t sum;                 /* of all values   */
};

void hist_add(struct hist *hist, uint64_t value);

/* Adds what from holds to hist. */
void hist_merge(struct hist *hist, const struct hist *from);

/* The largest value that falls into bucket i. */
uint64_t hist_bucket_max(unsigned i);

#endif
