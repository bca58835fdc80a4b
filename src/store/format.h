/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/format.h: superblock and options, for format and open. Private; blocking.
 */
#ifndef STORE_FORMAT_H
#define STORE_FORMAT_H

#include "store/layout.h"
#include "store/store.h"

/* INVALID with a sentence when sizes do not go together. */
icms_err store_opts_check(const struct store_opts *opts, struct err_why *why) ICMS_MUST_CHECK;

/* INVALID with a sentence when the write budget of a drive of this size never lets the largest
 * value through. */
icms_err store_budget_check(const struct store_opts *opts, uint64_t drive_bytes,
                            struct err_why *why) ICMS_MUST_CHECK;

/* The superblock, from whichever copy is whole; FOREIGN, VERSION, CORRUPT or IO with a sentence. */
icms_err store_super_read(struct loop_file *file, const char *path, struct err_why *why,
                          struct store_super *out_super) ICMS_MUST_CHECK;

#endif
