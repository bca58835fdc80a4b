/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/resolve.h: addresses of a DNS name, without waiting for them.
 *
 * A question runs on a thread of the C library (getaddrinfo_a), so that nobody has to wait for a
 * resolver that does not answer: who asks looks whether it is answered, and may go at any time.
 * Control threads.
 */
#ifndef INPROCESS_RESOLVE_H
#define INPROCESS_RESOLVE_H

#include "loop/loop.h"

/* Addresses of one name that are looked at. */
#define RESOLVE_ADDRS 16

struct resolve;

struct resolve_answer {
    uint32_t count; /* 0: why says the reason */
    struct loop_addr addrs[RESOLVE_ADDRS];
    struct err_why why;
};

/* Asks for HOST:PORT. NO_MEMORY, LIMIT. */
icms_err resolve_start(const char *address, struct err_why *why,
                       struct resolve **out_resolve) ICMS_MUST_CHECK;

/* True: it is answered, and out_answer is set. */
bool resolve_poll(struct resolve *resolve, struct resolve_answer *out_answer);

/* Answered or not; *resolve may be NULL. */
void resolve_free(struct resolve **resolve);

#endif
