/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/store_verify.h: compares the index of a store with what a full scan of its drive finds. For
 * tests.
 */
#ifndef STORE_STORE_VERIFY_H
#define STORE_STORE_VERIFY_H

#include "store/store.h"

/* The number of differences; the first one in why. Blocking; only while the loop does not run. */
uint64_t store_verify(struct store *store, struct err_why *why);

#endif
