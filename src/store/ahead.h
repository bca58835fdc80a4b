/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/ahead.h: pieces of a drive, read ahead in a given order. Private to the store; blocking,
 * for recovery.
 *
 * Its caller says, one after the other, where the pieces lie, and takes them in that order; while
 * it looks at one, the following ones are on their way.
 */
#ifndef STORE_AHEAD_H
#define STORE_AHEAD_H

#include "loop/loop.h"
#include "store/layout.h"

struct store_ahead;

/* A piece of the drive. */
struct store_piece {
    uint64_t offset; /* a multiple of a page        */
    uint32_t pages;  /* 1 .. piece_pages            */
};

/* For pieces of so many pages at most; takes 32 MiB of memory, and touches what is read. NO_MEMORY,
 * LIMIT ... with a sentence. Freed before the file is closed. */
icms_err store_ahead_new(struct loop_file *file, uint32_t piece_pages, struct err_why *why,
                         struct store_ahead **out_ahead) ICMS_MUST_CHECK;

/* Waits for what is on its way. *ahead may be NULL. */
void store_ahead_free(struct store_ahead **ahead);

/* Begins a sequence, when all of the one before was taken. next names its next piece; false: there
 * are no more. */
void store_ahead_begin(struct store_ahead *ahead,
                       bool (*next)(void *arg, struct store_piece *out_piece), void *arg);

/* The next piece, good until the next call; there is one. On an error its pages are zeros. */
icms_err store_ahead_take(struct store_ahead *ahead, const uint8_t **out_pages) ICMS_MUST_CHECK;

#endif
