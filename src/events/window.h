/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events/window.h: the last batches that were sent, for those who missed some: as many as fit into
 * memory that is taken once. The oldest go.
 */
#ifndef EVENTS_WINDOW_H
#define EVENTS_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct events_window_entry {
    uint64_t seq;
    uint64_t at; /* where it begins, counted without an end */
    uint32_t bytes;
};

struct events_window {
    uint8_t *memory;
    uint64_t size;
    uint64_t end; /* where the next one begins, without an end: modulo size */
    struct events_window_entry *entries; /* [entry_max], by number modulo      */
    uint64_t entry_max, first, next;     /* numbers of the oldest, and of the next one */
};

/* NO_MEMORY. */
icms_err events_window_init(struct events_window *window, uint64_t size) ICMS_MUST_CHECK;
void events_window_fini(struct events_window *window);

/* Keeps a batch of at most half of the size; sequence numbers rise. */
void events_window_add(struct events_window *window, uint64_t seq, const void *payload,
                       uint32_t bytes);

/* The oldest batch that is kept with at least this sequence number; valid until the next
 * events_window_add. False: there is none. */
bool events_window_from(const struct events_window *window, uint64_t seq, uint64_t *out_seq,
                        const void **out_payload, uint32_t *out_bytes);

#endif
