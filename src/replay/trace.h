/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay/trace.h: traces of prompts, for icms replay and its tests.
 *
 * A trace is lines of JSON, one request a line. hash_ids names the blocks of its prompt from the
 * first on: equal ids are equal blocks behind equal prefixes. Files are hostile: lines, numbers and
 * counts are bounded, and errors name file and line.
 */
#ifndef REPLAY_TRACE_H
#define REPLAY_TRACE_H

#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* Bounds of a trace. */
#define REPLAY_LINE_BYTES_MAX ((size_t)8 << 20)
#define REPLAY_REFS_MAX       ((uint32_t)1 << 30)
#define REPLAY_TOKENS_MAX     ((uint64_t)1 << 32)
#define REPLAY_SECONDS_MAX    ((uint64_t)100 * 366 * 86400)

enum replay_format {
    REPLAY_MOONCAKE, /* timestamp in ms, 512 tokens a block                  */
    REPLAY_QWEN,     /* timestamp in s, 16 tokens a block, chats with turns  */
};

struct replay_request {
    uint64_t time_ms; /* since the first request; never goes back            */
    uint64_t tokens;  /* of the prompt                                       */
    uint32_t first;   /* in replay_trace.refs                                */
    uint32_t count;   /* blocks; the last may be filled in part              */
};

struct replay_trace {
    struct replay_request *requests; /* in order of time                        */
    uint32_t *refs;                  /* blocks, numbered from 0 as they appear  */
    uint64_t *names;                 /* private: ids, while reading             */
    uint32_t *table;                 /* private: id to number                   */
    uint64_t tokens;                 /* of all prompts                          */
    uint32_t request_count;          /* in requests                             */
    uint32_t request_room;           /* private                                 */
    uint32_t ref_count;              /* in refs                                 */
    uint32_t ref_room;               /* private                                 */
    uint32_t block_count;            /* distinct blocks                         */
    uint32_t table_room;             /* private: a power of two                 */
    uint32_t block_tokens;           /* of a whole block                        */
    uint64_t first_ms;               /* private: time of the first request      */
};

/* Reads a whole trace; name is for errors. CONFIG with file and line, NO_MEMORY, IO. The trace is
 * freed by replay_trace_free, after an error too. */
icms_err replay_trace_read(FILE *file, const char *name, enum replay_format format,
                           struct err_why *why, struct replay_trace *out_trace) ICMS_MUST_CHECK;
void replay_trace_free(struct replay_trace *trace);

#endif
