/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/estimate.h: how long loads take at one server (an enclosure, a drive), from those that were
 * completed there and what is in flight now.
 *
 * Model. Values leave a server one after the other, at a rate. A load that finds the server idle
 * takes first_ns, of which a part is latency. So the time until the last of some bytes has come is
 *   server idle:                 first_ns + (bytes - first_bytes) / rate
 *   busy, nothing has come yet:  the same, less the time since it became busy, as far as what is
 *                                in flight takes that
 *   busy, values come:           (bytes in flight + bytes) / rate, less the time since the last one
 *                                came, as far as the next one takes that
 * first_ns and first_bytes are averages over loads that were alone. Until one was, the first of
 * several stands for them, which may take more: those that share a server may all come late, and
 * together. The rate is what came in busy intervals since the value before, or since it was asked
 * for if that was later, over the time that this took; the first of several took its latency, too,
 * which is left out. It is the bandwidth where that is the bottleneck, and what a window of loads
 * gets where latency is. Without a rate the first loads stand for it, which expects too much time
 * and never too little.
 *
 * Memory. first_ns and first_bytes are averages over the last ESTIMATE_FIRSTS loads, the rate is
 * one over the last ESTIMATE_MEMORY or ESTIMATE_MEMORY_NS of busy time, whichever is more: of
 * several that are asked for together, the first are slow and the last are fast. So what is older
 * fades when a server becomes busy, and only where it always is in between. After
 * ESTIMATE_SURPRISES loads in a row that took more than twice, or less than half, of what was
 * expected, all that was learnt before is dropped, with the errors of it: the server is not what it
 * was. Several that are asked for together share the server, and come in any order: none takes too
 * long before the group (below) does, and none is too fast that takes half of what it takes alone.
 * A group that has come in half of its time counts as a surprise for each of its loads.
 *
 * What counts. A load that ended with its value. One that ended at its deadline took longer than
 * that: it counts when more was expected of the server, which then is as fast as if the value had
 * come at that moment, behind those that did come. Misses, refusals and what ended with the
 * connection say nothing of how long a value takes.
 *
 * Error. What is expected of a load is said of all that was asked for before it, too, so it is held
 * against the moment at which they all have come: of several that share a server, the first may
 * come with the last. Loads are judged in groups: one mark at a time, at the load that was asked
 * for last before one of its group ended; when all up to the mark have ended, what they took is one
 * error. Of the last ESTIMATE_ERRORS groups nine of ten are within estimate_error(). A group with a
 * load that says nothing is left out.
 *
 * One thread, but for the fields that are said to be counters. Takes no memory, knows no clock; all
 * numbers are bounded: no time, and no size that a server says, makes them overflow.
 */
#ifndef BASE_ESTIMATE_H
#define BASE_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

#define ESTIMATE_FIRSTS    16
#define ESTIMATE_MEMORY    64
#define ESTIMATE_MEMORY_NS ((uint64_t)50 * 1000 * 1000)
#define ESTIMATE_SURPRISES 3
#define ESTIMATE_ERRORS    32

/* Nothing is known yet. */
#define ESTIMATE_UNKNOWN UINT64_MAX

/* No estimate is larger: an hour. */
#define ESTIMATE_NS_MAX ((uint64_t)3600 * 1000 * 1000 * 1000)

/* Errors are in thousandths of what was expected, this at most. */
#define ESTIMATE_ERROR_MAX 65535

/* A group of loads that is to be judged: those up to a number. */
struct estimate_mark {
    uint64_t number;      /* of the last one                                     */
    uint64_t loads;       /* of it                                               */
    uint64_t left;        /* of them that have not ended; 0: there is no group   */
    uint64_t bytes;       /* that they were expected to bring                    */
    uint64_t came_bytes;  /* that they brought                                   */
    uint64_t since_ns;    /* from then on the server worked for them             */
    uint64_t asked_ns;    /* the last one                                        */
    uint64_t expected_ns; /* from then on; ESTIMATE_UNKNOWN                      */
    bool has_ended;       /* one of them: no later load joins                    */
    bool is_late;         /* one ended at its deadline                           */
    bool has_none;        /* one ended with nothing that counts                  */
};

/* All zeros: nothing is known. */
struct estimate {
    /* now */
    uint64_t in_flight, in_flight_bytes; /* loads, and what they are expected to bring         */
    uint64_t busy_ns;                    /* in_flight > 0: since when                          */
    uint64_t came_ns;                    /* when a value came last since then; 0: none did     */
    uint64_t came_bytes;                 /* that came since then                               */
    /* learnt */
    uint64_t first_ns, first_bytes; /* averages of loads alone; counters; first_ns 0: none     */
    uint64_t rate_ns, rate_bytes;   /* sums of what followed them; counters; rate_ns 0: none   */
    uint32_t firsts, rates;         /* how many there are in them                              */
    bool was_alone;                 /* false: they are firsts of several                       */
    uint32_t surprises;             /* in a row                                                */
    uint64_t dropped_ns;            /* when all was dropped last                               */
    /* judged */
    uint64_t asked;                   /* loads so far                                            */
    struct estimate_mark mark;        /* of the group that is in flight                          */
    uint16_t errors[ESTIMATE_ERRORS]; /* of the last groups, in any order                        */
    uint32_t error_count;             /* of them; those before are overwritten in turn         */
    uint32_t error_next;
    uint64_t error_told; /* estimate_error(), as the last group left it; counter               */
};

/* A load that is in flight; its owner embeds it. */
struct estimate_load {
    uint64_t number; /* loads of this server are counted as they are asked for        */
    uint64_t asked_ns;
    uint64_t bytes;       /* that it is expected to bring                            */
    uint64_t ahead_bytes; /* in flight when it was asked for, with its own           */
    uint64_t expected_ns; /* from then on; ESTIMATE_UNKNOWN                          */
    uint64_t least_ns;    /* if the server did nothing else; 0: not known            */
};

enum estimate_end {
    ESTIMATE_CAME,    /* with its value                               */
    ESTIMATE_LATE,    /* at its deadline, without                     */
    ESTIMATE_NOTHING, /* it says nothing: a miss, a refusal, a cancel */
};

/* The server was away: what was learnt says nothing of it now. What is in flight stays. */
void estimate_forget(struct estimate *estimate);

/* From now until so many bytes would have come if they were asked for now, all at once, behind what
 * is in flight. ESTIMATE_UNKNOWN; else ESTIMATE_NS_MAX at most. */
uint64_t estimate_ns(const struct estimate *estimate, uint64_t bytes, uint64_t now_ns);

/* In thousandths of estimate_ns; 1000 without a group that could be judged. */
uint64_t estimate_error(const struct estimate *estimate);

/* A load is sent. Whatever became of it, estimate_ended follows, once. */
void estimate_begun(struct estimate *estimate, struct estimate_load *load, uint64_t bytes,
                    uint64_t now_ns);

/* It ended; came_bytes: CAME, its value. Returns the error of what was expected of the group that
 * ends with it, in thousandths; ESTIMATE_UNKNOWN: none does, or it says nothing. */
uint64_t estimate_ended(struct estimate *estimate, const struct estimate_load *load,
                        enum estimate_end end, uint64_t came_bytes, uint64_t now_ns);

/* Any thread: bytes in a second, the time of a first load, and the error, as of a moment ago;
 * false: nothing is known. */
struct estimate_told {
    uint64_t bytes_per_s; /* 0: not known */
    uint64_t first_ns;    /* 0: not known */
    uint64_t error;       /* thousandths  */
};
bool estimate_tell(const struct estimate *estimate, struct estimate_told *out_told);

#endif
