/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/store_million.h: a drive with very many blocks, made in seconds, for tests and benches of
 * store_open. Called by store_million_test and by benches; the blocking calls of loop only.
 *
 *   bytes = store_million_bytes(&million);       make a file of that size, holes will do
 *   store_million_make(env, &million, ...);      format it, write what an open reads
 *   store_million_raw(env, &million, ...);       the time of reading that, and doing nothing with
 * it store_open(loop, ...);                       the time is in store_stats.recovery_ns
 *
 * Only headers, summaries and footers are written, where a store would have written them; records
 * stay holes. So the index is what it would be, and reads of blocks are misses with reason
 * CHECKSUM.
 */
#ifndef STORE_STORE_MILLION_H
#define STORE_STORE_MILLION_H

#include "base/types.h"
#include "loop/loop.h"

struct store_million {
    const char *path;       /* the file or device                                      */
    uint64_t blocks;        /* how many, 1 at least                                    */
    uint32_t value_bytes;   /* of each                                                 */
    uint64_t segment_bytes; /* power of two, 64 KiB .. 256 MiB; a value fits           */
    struct uuid volume;     /* whose blocks                                            */
};

/* Defaults: 1,000,000 blocks of 512 KiB and a trailer in segments of 64 MiB. */
void store_million_init(struct store_million *million);

/* How large the drive has to be. */
uint64_t store_million_bytes(const struct store_million *million);

/* The name of block n, 0 .. blocks - 1. */
struct key store_million_key(uint64_t n);

/* Formats the drive, which holds zeros, and fills it. INVALID, EXISTS, FOREIGN, LIMIT, IO ... with
 * a sentence. Blocking. */
icms_err store_million_make(struct loop_env *env, const struct store_million *million,
                            struct err_why *why) ICMS_MUST_CHECK;

/* Reads what store_open has to read of such a drive, many reads at a time: how many bytes that is
 * and how long it took, nanoseconds. Blocking. */
icms_err store_million_raw(struct loop_env *env, const struct store_million *million,
                           struct err_why *why, uint64_t *out_bytes,
                           uint64_t *out_ns) ICMS_MUST_CHECK;

#endif
