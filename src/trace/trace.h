/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace/trace.h: how long requests were in which state, and which of them are remembered.
 *
 * A request has a struct trace, which its state setter writes. When it is over, the loop that it
 * ends on adds it to its book: the book sums requests and time by state, and remembers the last
 * requests and the slowest ones of the last one to two minutes.
 *
 * Threads. A trace belongs to the thread that its request is on. trace_add is called by one thread
 * a book and never waits: while somebody reads the book a request is not remembered, only counted
 * (`missed`). All else of a book may be called from any thread.
 */
#ifndef TRACE_TRACE_H
#define TRACE_TRACE_H

#include <pthread.h>

#include "base/err.h"
#include "base/types.h"

#define TRACE_STEPS     16   /* states of one life that are told apart; the last one has the rest */
#define TRACE_STATES    32   /* numbers of states are below this                                 */
#define TRACE_RECENT    1024 /* requests that a book remembers because they are the last ones     */
#define TRACE_SLOW      32   /* because they are the slowest, of a window                         */
#define TRACE_SHOWN     64   /* requests that one text has at most                               */
#define TRACE_WINDOW_NS ((uint64_t)60 * 1000 * 1000 * 1000)
#define TRACE_NOWHERE   UINT32_MAX /* trace_entry.place: nobody was asked                         */

struct trace {
    uint64_t begin_ns;
    uint64_t last_ns;               /* when the last step began                              */
    uint16_t steps;                 /* so many are there, of TRACE_STEPS                     */
    uint8_t state[TRACE_STEPS];     /* in this order                                         */
    uint32_t since_us[TRACE_STEPS]; /* when each began, after begin_ns; the first one: 0     */
};

/* One request that is over. */
struct trace_entry {
    struct trace trace;
    uint64_t end_ns;
    struct key key; /* length 0: it had none, or several                                        */
    uint32_t volume;
    uint32_t place; /* whom it asked last: an enclosure, a drive; TRACE_NOWHERE               */
    uint64_t bytes; /* of the value; 0: none                                                   */
    icms_err err;
    enum icms_miss reason;
    uint8_t op;
};

/* Requests and time in one state, of requests that are over. */
struct trace_sum {
    uint64_t count; /* counters (base/counter.h) */
    uint64_t us;
};

struct trace_slow {
    uint32_t count;
    uint32_t least; /* of a full one: which is the fastest */
    struct trace_entry entries[TRACE_SLOW];
};

struct trace_book {
    pthread_mutex_t lock;       /* of all that follows but sums and missed                  */
    uint64_t added;             /* the last one is entry (added - 1) % TRACE_RECENT         */
    uint64_t window_ns;         /* when the window of slow[0] began                         */
    struct trace_slow *slow;    /* [2]: this window's, the one's before                     */
    struct trace_entry *recent; /* [TRACE_RECENT]                                           */
    uint64_t missed;            /* not remembered, because the book was being read          */
    struct trace_sum sums[TRACE_STATES];
};

/* The same of several books, with the state's name. */
struct trace_stats {
    const char *name; /* NULL: there is no state of this number */
    uint64_t count;
    uint64_t us;
};

/* What numbers mean. All pointers stay the caller's. */
struct trace_names {
    const char *const *ops; /* [op_count]; NULL: "?"                                            */
    unsigned op_count;
    const char *const *states; /* [state_count]                                                 */
    unsigned state_count;
    /* The name of a volume; NULL: the reader learns nothing of its requests. */
    const char *(*volume)(void *arg, uint32_t volume);
    const char *(*place)(void *arg, uint32_t place); /* an enclosure, a drive                   */
    const char *place_is;                            /* the name of the field: "enclosure"      */
    unsigned key_bytes; /* of a key so many are shown, unless it was asked for                  */
    void *arg;
};

/* ---- one request ---------------------------------------------------------------------------- */

static inline void trace_begin(struct trace *trace, uint8_t state, uint64_t now_ns)
{
    trace->begin_ns = trace->last_ns = now_ns;
    trace->steps = 1;
    trace->state[0] = state;
    trace->since_us[0] = 0;
}

/* The request is in this state from now on. Clocks of two loops may differ by a moment: time does
 * not go back. */
static inline void trace_state(struct trace *trace, uint8_t state, uint64_t now_ns)
{
    uint64_t us;

    if (trace->steps == TRACE_STEPS || trace->state[trace->steps - 1] == state)
        return;
    if (now_ns > trace->last_ns)
        trace->last_ns = now_ns;
    us = (trace->last_ns - trace->begin_ns) / 1000;
    trace->state[trace->steps] = state;
    trace->since_us[trace->steps] = us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
    trace->steps++;
}

/* ---- a book --------------------------------------------------------------------------------- */

/* NO_MEMORY. trace_book_fini frees it, also after an error. */
icms_err trace_book_init(struct trace_book *book) ICMS_MUST_CHECK;
void trace_book_fini(struct trace_book *book);

/* A request is over. */
void trace_add(struct trace_book *book, const struct trace_entry *entry);

/* Names the states, and adds what a book counted of them. */
void trace_stats_add(const struct trace_book *book, const char *const *names, unsigned count,
                     struct trace_stats *io_stats);

/* One JSON object, for who has to free() it: the requests of all books that are remembered of a
 * key, the last one first, TRACE_SHOWN at most; key NULL: the slowest ones, the slowest first,
 * TRACE_SLOW at most. NULL: out of memory. now_ns: of the clock that traces have. */
char *trace_text(struct trace_book *const *books, unsigned count, const struct key *key,
                 const struct trace_names *names, uint64_t now_ns);

#endif
