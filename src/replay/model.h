/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay/model.h: caches that a trace is replayed through, without moving a byte.
 *
 * One replay is one cache of one size. A request asks for its blocks from the first on, up to the
 * first that is not there (the longest prefix: the tokens that are saved); then it offers all its
 * blocks, the last one first, so that those in front were wanted last. `default` and fifo are
 * drives: logs of segments, run by the code of src/policy that the store calls. `store` is the
 * store itself with real values on a real file. lru, s3-fifo and belady are ideal caches: they know
 * each block's place and write no byte twice.
 */
#ifndef REPLAY_MODEL_H
#define REPLAY_MODEL_H

#include <stdbool.h>

#include "replay/trace.h"

enum replay_kind {
    REPLAY_FIFO,    /* a log that evicts its oldest segment, read or not                        */
    REPLAY_LRU,     /* ideal: the block that was not wanted for the longest time goes           */
    REPLAY_S3FIFO,  /* ideal: new blocks in a small queue, those that were read in a large one  */
    REPLAY_DEFAULT, /* what the store does                                                      */
    REPLAY_BELADY,  /* ideal: the block that is wanted last goes; the most block hits there are */
    REPLAY_STORE,   /* the store itself, on a file                                              */
    REPLAY_KINDS,
};

/* The name of a kind, as --policy knows it. */
extern const char *const replay_kind_names[REPLAY_KINDS];

struct replay_setup {
    enum replay_kind kind;     /* which cache                                                */
    uint64_t capacity_blocks;  /* that it holds; drives: segments that hold so many          */
    uint64_t block_bytes;      /* of a value                                                 */
    uint64_t segment_bytes;    /* drives: of a segment                                       */
    uint64_t budget_bytes_day; /* drives: that may be written a day; 0: any */
    uint32_t loops;            /* how often the trace goes by, each time with other blocks   */
    const char *dir;           /* store: a directory with room for its drive                 */
    void (*progress)(void *arg, uint64_t requests, uint64_t of); /* now and then; may be NULL */
    void *progress_arg; /* its argument                                               */
};

struct replay_result {
    uint64_t refs;           /* blocks asked for                                     */
    uint64_t tokens;         /* of all prompts                                       */
    uint64_t block_hits;     /* blocks that were there                               */
    uint64_t token_hits;     /* tokens of longest prefixes                           */
    uint64_t refused;        /* blocks that were offered and not written             */
    uint64_t admitted_bytes; /* values offered and written                           */
    uint64_t written_bytes;  /* all that goes to the drive, headers and summaries too */
    uint64_t compared_bytes; /* store: values read, every byte compared              */
    uint64_t segments;       /* of the drive; 0: not one                             */
    uint64_t time_ms;        /* of the trace, all loops                              */
};

/* Bytes of the file that a replay through the store makes. INVALID (the capacity is too small). */
icms_err replay_file_bytes(const struct replay_setup *setup, struct err_why *why,
                           uint64_t *out_bytes) ICMS_MUST_CHECK;

/* Replays. INVALID (the capacity is too small) with a sentence, NO_MEMORY. store: also what making
 * and opening its drive says, EXISTS when its file is there already, CORRUPT when the bytes of a
 * value are not those that were written. */
icms_err replay_run(const struct replay_trace *trace, const struct replay_setup *setup,
                    struct err_why *why, struct replay_result *out_result) ICMS_MUST_CHECK;

/* Where runs of some length lie in a pod of equal enclosures; the trace goes by once. */
struct replay_placement {
    double stored_max; /* distinct blocks of the fullest enclosure, divided by the mean      */
    double read_max;   /* blocks asked of the busiest enclosure, divided by the mean         */
    double kept;       /* of all blocks of prompts those in front of the first one lost, when one
                          enclosure is lost; the mean over enclosures                         */
};

/* enclosures: 1 .. LIMIT_ENCLOSURES; run_blocks: at least 1. NO_MEMORY. */
icms_err replay_placement(const struct replay_trace *trace, uint32_t enclosures,
                          uint32_t run_blocks, struct err_why *why,
                          struct replay_placement *out_placement) ICMS_MUST_CHECK;

#endif
