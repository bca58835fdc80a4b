/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads traces: a line, its JSON, its blocks. Called by icms replay, its tests and its fuzzer.
 *
 *   replay_trace_read -> trace_line for each line -> request_take -> block_number of each id
 */
#include "replay/trace.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* Where a line is, for errors. */
struct place {
    const char *file;    /* its name */
    unsigned long line;  /* from 1   */
    struct err_why *why; /* to fill  */
};

static icms_err wrong(const struct place *at, const char *what)
{
    return err_set(at->why, ICMS_CONFIG, "%s:%lu: %s", at->file, at->line, what);
}

static icms_err no_memory(const struct place *at)
{
    return err_set(at->why, ICMS_NO_MEMORY, "%s:%lu: no memory for so long a trace", at->file,
                   at->line);
}

/* Makes room for more elements; the array doubles. */
static bool room_make(void **array, uint32_t *room, uint64_t need, size_t bytes)
{
    uint64_t more = *room == 0 ? 1024 : *room;
    void *grown;

    while (more < need)
        more *= 2;
    if (more == *room)
        return true;
    grown = realloc(*array, more * bytes);
    if (grown == NULL)
        return false;
    *array = grown;
    *room = (uint32_t)more;
    return true;
}

/* ---- blocks ------------------------------------------------------------------------------------
 */

static uint32_t *table_slot(const struct replay_trace *trace, uint64_t name)
{
    uint32_t at = (uint32_t)hash64_mix(name) & (trace->table_room - 1);

    while (trace->table[at] != 0 && trace->names[trace->table[at] - 1] != name)
        at = (at + 1) & (trace->table_room - 1);
    return &trace->table[at];
}

/* Doubles the table, at most half of which is used; names grows with it. */
static bool table_grow(struct replay_trace *trace)
{
    uint32_t room = trace->table_room == 0 ? 4096 : 2 * trace->table_room;
    uint64_t *names = realloc(trace->names, room / 2 * sizeof(names[0]));
    uint32_t *table = calloc(room, sizeof(table[0]));

    if (names != NULL)
        trace->names = names;
    if (names == NULL || table == NULL) {
        free(table);
        return false;
    }
    free(trace->table);
    trace->table = table;
    trace->table_room = room;
    for (uint32_t i = 0; i < trace->block_count; i++)
        *table_slot(trace, names[i]) = i + 1;
    return true;
}

/* The number of a block, a new one when its id is new. */
static bool block_number(struct replay_trace *trace, uint64_t name, uint32_t *out_number)
{
    uint32_t *slot;

    if (trace->block_count >= trace->table_room / 2 && !table_grow(trace))
        return false;
    slot = table_slot(trace, name);
    if (*slot == 0) {
        trace->names[trace->block_count] = name;
        *slot = ++trace->block_count;
    }
    *out_number = *slot - 1;
    return true;
}

static icms_err blocks_take(struct replay_trace *trace, const struct place *at, const json_t *ids)
{
    size_t count = json_array_size(ids);

    if (count > REPLAY_REFS_MAX - trace->ref_count)
        return wrong(at, "the trace has more blocks than can be replayed");
    if (!room_make((void **)&trace->refs, &trace->ref_room, trace->ref_count + (uint64_t)count,
                   sizeof(trace->refs[0])))
        return no_memory(at);
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(ids, i);

        if (!json_is_integer(id))
            return wrong(at, "hash_ids has something that is not a whole number");
        if (!block_number(trace, (uint64_t)json_integer_value(id), &trace->refs[trace->ref_count]))
            return no_memory(at);
        trace->ref_count++;
    }
    return ICMS_OK;
}

/* ---- requests ----------------------------------------------------------------------------------
 */

static bool number_get(const json_t *line, const char *name, double most, double *out_number)
{
    const json_t *number = json_object_get(line, name);

    if (!json_is_number(number))
        return false;
    *out_number = json_number_value(number);
    return *out_number >= 0 && *out_number <= most;
}

/* What a line of a chat has besides. */
static icms_err chat_check(const struct place *at, const json_t *line)
{
    double turn;

    if (!json_is_integer(json_object_get(line, "chat_id")) ||
        !json_is_integer(json_object_get(line, "parent_chat_id")))
        return wrong(at, "chat_id and parent_chat_id have to be whole numbers");
    if (!json_is_string(json_object_get(line, "type")))
        return wrong(at, "type has to be a text");
    if (!number_get(line, "turn", 1e9, &turn))
        return wrong(at, "turn has to be a number from 0 on");
    return ICMS_OK;
}

static icms_err request_take(struct replay_trace *trace, enum replay_format format,
                             const struct place *at, const json_t *line)
{
    const json_t *ids = json_object_get(line, "hash_ids");
    double scale = format == REPLAY_QWEN ? 1000 : 1, time, tokens, output;
    struct replay_request request = {.first = trace->ref_count};
    icms_err err = format == REPLAY_QWEN ? chat_check(at, line) : ICMS_OK;

    if (err != ICMS_OK)
        return err;
    if (!number_get(line, "timestamp", (double)REPLAY_SECONDS_MAX * 1000 / scale, &time))
        return wrong(at, "timestamp has to be a number from 0 on, a hundred years at most");
    if (!number_get(line, "input_length", (double)REPLAY_TOKENS_MAX, &tokens) ||
        !number_get(line, "output_length", (double)REPLAY_TOKENS_MAX, &output))
        return wrong(at, "input_length and output_length have to be numbers of tokens");
    if (!json_is_array(ids))
        return wrong(at, "hash_ids has to be a list");
    request.tokens = (uint64_t)tokens;
    if (json_array_size(ids) > (request.tokens + trace->block_tokens - 1) / trace->block_tokens)
        return wrong(at, "hash_ids has more blocks than input_length has tokens for");
    request.count = (uint32_t)json_array_size(ids);
    request.time_ms = (uint64_t)(time * scale);
    if (trace->request_count == 0)
        trace->first_ms = request.time_ms;
    if (request.time_ms < trace->first_ms ||
        (trace->request_count > 0 &&
         request.time_ms - trace->first_ms < trace->requests[trace->request_count - 1].time_ms))
        return wrong(at, "timestamp goes back: sort the trace by it");
    request.time_ms -= trace->first_ms;
    err = blocks_take(trace, at, ids);
    if (err != ICMS_OK)
        return err;
    if (trace->request_count == UINT32_MAX / 2 ||
        !room_make((void **)&trace->requests, &trace->request_room,
                   (uint64_t)trace->request_count + 1, sizeof(trace->requests[0])))
        return no_memory(at);
    trace->requests[trace->request_count++] = request;
    trace->tokens += request.tokens;
    return ICMS_OK;
}

static icms_err trace_line(struct replay_trace *trace, enum replay_format format,
                           const struct place *at, const char *text, size_t bytes)
{
    json_error_t error;
    json_t *line = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    icms_err err;

    if (line == NULL)
        return err_set(at->why, ICMS_CONFIG, "%s:%lu: not JSON: %s", at->file, at->line,
                       error.text);
    err = json_is_object(line) ? request_take(trace, format, at, line)
                               : wrong(at, "not an object in braces");
    json_decref(line);
    return err;
}

/* Reads one line into text, without its end; false at the end of the file, or when it is longer
 * than allowed (*out_bytes is then that much). */
static bool line_read(FILE *file, char *text, size_t *out_bytes)
{
    size_t bytes = 0;
    int c;

    while ((c = getc_unlocked(file)) != EOF && c != '\n') {
        if (bytes == REPLAY_LINE_BYTES_MAX)
            break;
        text[bytes++] = (char)c;
    }
    *out_bytes = bytes;
    return c != EOF ? c == '\n' : bytes > 0;
}

icms_err replay_trace_read(FILE *file, const char *name, enum replay_format format,
                           struct err_why *why, struct replay_trace *out_trace)
{
    struct place at = {.file = name, .line = 0, .why = why};
    char *text = malloc(REPLAY_LINE_BYTES_MAX);
    icms_err err = ICMS_OK;
    size_t bytes = 0;

    *out_trace = (struct replay_trace){.block_tokens = format == REPLAY_QWEN ? 16 : 512};
    if (text == NULL)
        return no_memory(&at);
    while (err == ICMS_OK && line_read(file, text, &bytes)) {
        at.line++;
        if (bytes > 0)
            err = trace_line(out_trace, format, &at, text, bytes);
    }
    free(text);
    at.line++;
    if (err == ICMS_OK && bytes == REPLAY_LINE_BYTES_MAX)
        err = wrong(&at, "a line may have 8 MiB at most");
    if (err == ICMS_OK && ferror(file))
        err = err_set(why, ICMS_IO, "%s: it cannot be read", name);
    if (err == ICMS_OK && out_trace->ref_count == 0)
        err = err_set(why, ICMS_CONFIG, "%s: there is no block in it", name);
    return err;
}

void replay_trace_free(struct replay_trace *trace)
{
    free(trace->requests);
    free(trace->refs);
    free(trace->names);
    free(trace->table);
    *trace = (struct replay_trace){.requests = NULL};
}
