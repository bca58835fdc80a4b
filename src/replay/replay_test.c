/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays: the readers take what they should and say where the rest is wrong; lru agrees with a
 * few lines that only remember times; drives keep their bounds; the store itself, with real values
 * on a real file, has the hits that the drive without bytes has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "replay/model.h"

static void sample_read(const char *name, enum replay_format format, struct replay_trace *trace)
{
    char path[1024];
    struct err_why why = {{0}};
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/test/replay/%s", getenv("SOURCE_ROOT"), name);
    file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(replay_trace_read(file, path, format, &why, trace), ICMS_OK);
    (void)fclose(file);
}

static void test_mooncake(void **state)
{
    struct replay_trace trace;

    (void)state;
    sample_read("mooncake.jsonl", REPLAY_MOONCAKE, &trace);
    assert_int_equal(trace.request_count, 900);
    assert_int_equal(trace.block_tokens, 512);
    assert_int_equal(trace.ref_count, 12046);
    assert_int_equal(trace.block_count, 7648);
    for (uint32_t i = 0; i < trace.request_count; i++)
        assert_int_equal(trace.refs[trace.requests[i].first], 0); /* the shared first block */
    replay_trace_free(&trace);
}

static void test_qwen(void **state)
{
    struct replay_trace trace;

    (void)state;
    sample_read("qwen.jsonl", REPLAY_QWEN, &trace);
    assert_int_equal(trace.request_count, 60);
    assert_int_equal(trace.block_tokens, 16);
    assert_int_equal(trace.requests[0].time_ms, 0);
    assert_true(trace.requests[59].time_ms > 10000);
    replay_trace_free(&trace);
}

static void refuse(enum replay_format format, const char *text, const char *why_part)
{
    FILE *file = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
    struct replay_trace trace;
    struct err_why why = {{0}};

    assert_non_null(file);
    assert_int_equal(replay_trace_read(file, "trace", format, &why, &trace), ICMS_CONFIG);
    if (strstr(why.text, why_part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", why.text, why_part);
    replay_trace_free(&trace);
    (void)fclose(file);
}

#define GOOD "{\"timestamp\":5,\"input_length\":600,\"output_length\":1,\"hash_ids\":[7,8]}\n"

static void test_refused(void **state)
{
    (void)state;
    refuse(REPLAY_MOONCAKE, "\n\n", "trace: there is no block in it");
    refuse(REPLAY_MOONCAKE, GOOD "{\"timestamp\":", "trace:2: not JSON");
    refuse(REPLAY_MOONCAKE, GOOD "\n[1]\n", "trace:3: not an object");
    refuse(REPLAY_MOONCAKE, GOOD "{}", "trace:2: timestamp has to be");
    refuse(REPLAY_MOONCAKE,
           "{\"timestamp\":-1,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}",
           "trace:1: timestamp has to be");
    refuse(REPLAY_MOONCAKE,
           "{\"timestamp\":1,\"input_length\":1e30,\"output_length\":1,\"hash_ids\":[]}",
           "trace:1: input_length");
    refuse(REPLAY_MOONCAKE,
           "{\"timestamp\":1,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1,2]}",
           "trace:1: hash_ids has more blocks");
    refuse(REPLAY_MOONCAKE,
           "{\"timestamp\":1,\"input_length\":512,\"output_length\":1,\"hash_ids\":[\"1\"]}",
           "trace:1: hash_ids has something");
    refuse(REPLAY_MOONCAKE,
           "{\"timestamp\":1,\"input_length\":512,\"output_length\":1,\"hash_ids\":3}",
           "trace:1: hash_ids has to be a list");
    refuse(REPLAY_MOONCAKE,
           GOOD "{\"timestamp\":4,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1]}",
           "trace:2: timestamp goes back");
    refuse(REPLAY_QWEN, GOOD, "trace:1: chat_id");
}

static void test_long_line(void **state)
{
    size_t bytes = REPLAY_LINE_BYTES_MAX + 1;
    char *text = malloc(bytes + 1);

    (void)state;
    assert_non_null(text);
    memset(text, ' ', bytes);
    text[bytes] = 0;
    refuse(REPLAY_MOONCAKE, text, "trace:1: a line may have 8 MiB");
    free(text);
}

/* An LRU of times only: the block that is there and has the smallest time goes. */
static void lru_reference(const struct replay_trace *trace, uint32_t loops, uint64_t capacity,
                          uint64_t *out_block_hits, uint64_t *out_token_hits)
{
    uint64_t *time = calloc((size_t)loops * trace->block_count, sizeof(*time));
    uint64_t now = 0, there = 0;

    assert_non_null(time);
    *out_block_hits = *out_token_hits = 0;
    for (uint32_t r = 0; r < loops * trace->request_count; r++) {
        const struct replay_request *request = &trace->requests[r % trace->request_count];
        uint32_t base = r / trace->request_count * trace->block_count;
        const uint32_t *refs = &trace->refs[request->first];
        uint64_t prefix = 0;

        for (uint32_t i = 0; i < request->count; i++) {
            prefix += prefix == i && time[base + refs[i]] != 0;
            *out_block_hits += time[base + refs[i]] != 0;
        }
        *out_token_hits += prefix * trace->block_tokens < request->tokens
                               ? prefix * trace->block_tokens
                               : request->tokens;
        for (uint32_t i = request->count; i-- > 0;) {
            uint64_t *oldest = NULL;

            if (time[base + refs[i]] == 0 && there++ == capacity) {
                for (uint64_t *t = time; t < time + (size_t)loops * trace->block_count; t++)
                    if (*t != 0 && (oldest == NULL || *t < *oldest))
                        oldest = t;
                *oldest = 0;
                there--;
            }
            time[base + refs[i]] = ++now;
        }
    }
    free(time);
}

static void test_lru(void **state)
{
    const uint64_t capacities[] = {100, 700, 3000};
    struct replay_trace trace;

    (void)state;
    sample_read("mooncake.jsonl", REPLAY_MOONCAKE, &trace);
    for (int i = 0; i < 3; i++) {
        struct replay_setup setup = {.kind = REPLAY_LRU,
                                     .capacity_blocks = capacities[i],
                                     .block_bytes = 1 << 20,
                                     .loops = 2};
        struct replay_result result;
        uint64_t block_hits, token_hits;

        assert_int_equal(replay_run(&trace, &setup, NULL, &result), ICMS_OK);
        lru_reference(&trace, 2, capacities[i], &block_hits, &token_hits);
        assert_int_equal(result.block_hits, block_hits);
        assert_int_equal(result.token_hits, token_hits);
        assert_int_equal(result.refs, 2 * trace.ref_count);
    }
    replay_trace_free(&trace);
}

static struct replay_result drive_run(const struct replay_trace *trace, enum replay_kind kind,
                                      uint64_t capacity, uint64_t budget_bytes_day)
{
    struct replay_setup setup = {.kind = kind,
                                 .capacity_blocks = capacity,
                                 .block_bytes = 1 << 20,
                                 .segment_bytes = 4 << 20,
                                 .budget_bytes_day = budget_bytes_day,
                                 .loops = 3};
    struct replay_result result;

    assert_int_equal(replay_run(trace, &setup, NULL, &result), ICMS_OK);
    return result;
}

/* 400 conversations of 24 blocks begin with one system prompt. */
static void conversations_make(uint32_t system, struct replay_trace *trace)
{
    enum { REQUESTS = 400, COUNT = 24 };
    uint32_t next = system;

    *trace = (struct replay_trace){.request_count = REQUESTS,
                                   .ref_count = REQUESTS * COUNT,
                                   .block_count = system + REQUESTS * (COUNT - system),
                                   .block_tokens = 16};
    trace->requests = calloc(REQUESTS, sizeof(trace->requests[0]));
    trace->refs = calloc(trace->ref_count, sizeof(trace->refs[0]));
    assert_true(trace->requests != NULL && trace->refs != NULL);
    for (uint32_t r = 0; r < REQUESTS; r++) {
        trace->requests[r] = (struct replay_request){.first = r * COUNT, .count = COUNT};
        for (uint32_t i = 0; i < COUNT; i++)
            trace->refs[r * COUNT + i] = i < system ? i : next++;
    }
}

static struct replay_placement placement_of(uint32_t system, uint32_t enclosures,
                                            uint32_t run_blocks)
{
    struct replay_placement placement;
    struct replay_trace trace;

    conversations_make(system, &trace);
    assert_int_equal(replay_placement(&trace, enclosures, run_blocks, NULL, &placement), ICMS_OK);
    free(trace.requests);
    free(trace.refs);
    return placement;
}

/* Longer runs keep more of a prompt without an enclosure. A system prompt of one block that
 * everybody has puts nothing else in its place; one that ends in the middle of a run takes the rest
 * of that. */
static void test_placement(void **state)
{
    struct replay_placement one = placement_of(1, 8, 1), eight = placement_of(1, 8, 8), middle;

    (void)state;
    assert_true(one.stored_max >= 1 && one.stored_max < 1.1);
    assert_true(eight.stored_max < 1.3 && eight.read_max < 1.6);
    assert_true(one.kept < eight.kept && eight.kept < 0.875);
    middle = placement_of(9, 8, 8); /* blocks 9 to 15 of all lie where block 8 does: 7 of 15 */
    assert_true(middle.stored_max > 3.7 && middle.stored_max < 4.5);
    one = placement_of(1, 1, 8);
    assert_true(one.stored_max > 0.99 && one.stored_max < 1.01 && one.kept < 0.001);
}

/* Against lru at a part of the footprint: above it, or so many per cent of its tokens. */
static void lru_compare(const struct replay_trace *trace, uint32_t percent, uint64_t least)
{
    uint64_t capacity = trace->block_count * (uint64_t)percent / 100;
    struct replay_result lru = drive_run(trace, REPLAY_LRU, capacity, 0);
    struct replay_result ours = drive_run(trace, REPLAY_DEFAULT, capacity, 0);

    if (ours.token_hits * 100 < lru.token_hits * least)
        fail_msg("%u %%: %llu tokens, lru %llu", percent, (unsigned long long)ours.token_hits,
                 (unsigned long long)lru.token_hits);
    assert_true(ours.written_bytes * 100 <= ours.admitted_bytes * 108); /* 3 blocks a segment */
}

/* default beside lru, which holds single blocks and writes none twice. Segments of this trace have
 * three blocks each, and there are 50 to 1,274 of them. */
static void test_beside_lru(void **state)
{
    struct replay_trace trace;

    (void)state;
    sample_read("mooncake.jsonl", REPLAY_MOONCAKE, &trace);
    lru_compare(&trace, 2, 95);
    lru_compare(&trace, 5, 94); /* 7 of 127 segments are kept free */
    lru_compare(&trace, 10, 95);
    lru_compare(&trace, 20, 95);
    lru_compare(&trace, 50, 95);
    replay_trace_free(&trace);
}

/* belady is above everything; default is above fifo at a bounded price. */
static void test_order(void **state)
{
    struct replay_trace trace;

    (void)state;
    sample_read("mooncake.jsonl", REPLAY_MOONCAKE, &trace);
    for (uint64_t capacity = 700; capacity < 4000; capacity *= 2) {
        struct replay_result best = drive_run(&trace, REPLAY_BELADY, capacity, 0);
        struct replay_result fifo = drive_run(&trace, REPLAY_FIFO, capacity, 0);
        struct replay_result ours = drive_run(&trace, REPLAY_DEFAULT, capacity, 0);

        for (enum replay_kind kind = 0; kind <= REPLAY_BELADY; kind++)
            assert_true(drive_run(&trace, kind, capacity, 0).block_hits <= best.block_hits);
        assert_true(ours.token_hits > fifo.token_hits);
        assert_int_equal(ours.refused, 0);
    }
    replay_trace_free(&trace);
}

/* With half the bytes a day no more than half is written and what there was, and most hits stay. */
static void test_budget(void **state)
{
    struct replay_trace trace;
    struct replay_result all, half;
    uint64_t begin, day;

    (void)state;
    sample_read("mooncake.jsonl", REPLAY_MOONCAKE, &trace);
    all = drive_run(&trace, REPLAY_DEFAULT, 1500, 0);
    day = (uint64_t)((double)all.written_bytes / 2 * 86400e3 / (double)all.time_ms);
    begin = day / 96; /* what a drive begins with; headers and summaries are a hundredth */
    half = drive_run(&trace, REPLAY_DEFAULT, 1500, day);
    assert_true(half.refused > 0);
    assert_true(half.written_bytes <= (all.written_bytes / 2 + begin) * 101 / 100);
    assert_true(half.token_hits >= all.token_hits * 75 / 100);
    replay_trace_free(&trace);
}

static void test_too_small(void **state)
{
    struct replay_setup setup = {.kind = REPLAY_DEFAULT,
                                 .capacity_blocks = 50,
                                 .block_bytes = 1 << 20,
                                 .segment_bytes = 4 << 20,
                                 .loops = 1};
    struct replay_trace trace;
    struct replay_result result;
    struct err_why why = {{0}};

    (void)state;
    sample_read("mooncake.jsonl", REPLAY_MOONCAKE, &trace);
    assert_int_equal(replay_run(&trace, &setup, &why, &result), ICMS_INVALID);
    assert_non_null(strstr(why.text, "segments"));
    setup.block_bytes = 8 << 20;
    assert_int_equal(replay_run(&trace, &setup, &why, &result), ICMS_INVALID);
    assert_non_null(strstr(why.text, "does not fit"));
    setup.loops = UINT32_MAX;
    assert_int_equal(replay_run(&trace, &setup, &why, &result), ICMS_INVALID);
    assert_non_null(strstr(why.text, "loops"));
    replay_trace_free(&trace);
}

/* ---- through the store ------------------------------------------------------------------------
 */

/* Values that make records of one page; 60 fill a segment. */
#define STORE_BLOCK_BYTES   3964
#define STORE_SEGMENT_BYTES (256 << 10)

static struct replay_setup store_setup(enum replay_kind kind, const char *dir)
{
    return (struct replay_setup){.kind = kind,
                                 .capacity_blocks = 2200,
                                 .block_bytes = STORE_BLOCK_BYTES,
                                 .segment_bytes = STORE_SEGMENT_BYTES,
                                 .loops = 1,
                                 .dir = dir};
}

/* a is b within so many thousandths. */
static void assert_near(uint64_t a, uint64_t b, uint64_t permille)
{
    if ((a > b ? a - b : b - a) * 1000 > b * permille)
        fail_msg("%llu is not within %llu thousandths of %llu", (unsigned long long)a,
                 (unsigned long long)permille, (unsigned long long)b);
}

/* The drive without bytes and the store: hits and bytes within 3 %, and 5 % with a budget. They
 * cannot be the same: the store notes a value when the device answered, reclaims meanwhile, and
 * remembers what left under other hashes. */
static void compare_with_store(const struct replay_trace *trace, uint64_t budget_bytes_day)
{
    const uint64_t near = budget_bytes_day == 0 ? 30 : 50;
    char dir[] = "/var/tmp/icms-replay-XXXXXX";
    struct replay_setup setup = store_setup(REPLAY_DEFAULT, NULL);
    struct replay_result ours, store;
    struct err_why why = {{0}};

    setup.budget_bytes_day = budget_bytes_day;
    assert_int_equal(replay_run(trace, &setup, NULL, &ours), ICMS_OK);
    assert_non_null(mkdtemp(dir));
    setup.kind = REPLAY_STORE;
    setup.dir = dir;
    if (replay_run(trace, &setup, &why, &store) != ICMS_OK)
        fail_msg("%s", why.text);
    assert_int_equal(rmdir(dir), 0); /* and nothing is left in it */
    assert_int_equal(store.segments, ours.segments);
    assert_int_equal(store.refs, ours.refs);
    assert_near(store.token_hits, ours.token_hits, near);
    assert_near(store.block_hits, ours.block_hits, near);
    assert_near(store.admitted_bytes, ours.admitted_bytes, near);
    assert_near(store.written_bytes, ours.written_bytes, near);
    assert_near(store.refused, ours.refused, near);
    assert_near(store.compared_bytes, ours.block_hits * STORE_BLOCK_BYTES, near);
}

static void test_store(void **state)
{
    struct replay_trace trace;

    (void)state;
    sample_read("mooncake.jsonl", REPLAY_MOONCAKE, &trace);
    compare_with_store(&trace, 0);
    replay_trace_free(&trace);
}

/* Half of the bytes a day: it is the trace's day that counts. */
static void test_store_budget(void **state)
{
    struct replay_setup setup = store_setup(REPLAY_DEFAULT, NULL);
    struct replay_trace trace;
    struct replay_result all;
    uint64_t budget_bytes_day;

    (void)state;
    sample_read("mooncake.jsonl", REPLAY_MOONCAKE, &trace);
    assert_int_equal(replay_run(&trace, &setup, NULL, &all), ICMS_OK);
    budget_bytes_day = (uint64_t)((double)all.written_bytes / 2 * 86400e3 / (double)all.time_ms);
    setup.budget_bytes_day = budget_bytes_day;
    assert_int_equal(replay_run(&trace, &setup, NULL, &all), ICMS_OK);
    assert_true(all.refused > 100);
    compare_with_store(&trace, budget_bytes_day);
    replay_trace_free(&trace);
}

static void store_refuses(const struct replay_trace *trace, const char *dir, icms_err expected,
                          const char *words)
{
    struct replay_setup setup = store_setup(REPLAY_STORE, dir);
    struct replay_result result;
    struct err_why why = {{0}};

    assert_int_equal(replay_run(trace, &setup, &why, &result), expected);
    if (strstr(why.text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", why.text, words);
}

/* What lies in the drive's place stays as it is. */
static void test_store_refused(void **state)
{
    char dir[] = "/var/tmp/icms-replay-XXXXXX", path[64], gone[64], text[8] = "";
    struct replay_trace trace;
    FILE *file;

    (void)state;
    sample_read("qwen.jsonl", REPLAY_QWEN, &trace);
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/icms-replay.drive", dir);
    (void)snprintf(gone, sizeof(gone), "%s/gone", dir);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs("mine", file) >= 0);
    assert_int_equal(fclose(file), 0);
    store_refuses(&trace, dir, ICMS_EXISTS, "is there already");
    store_refuses(&trace, path, ICMS_INVALID, "not a directory");
    store_refuses(&trace, gone, ICMS_NOT_FOUND, "cannot be used");
    file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof(text), file));
    assert_string_equal(text, "mine");
    (void)fclose(file);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    replay_trace_free(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mooncake),      cmocka_unit_test(test_qwen),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_lru),           cmocka_unit_test(test_order),
        cmocka_unit_test(test_placement),     cmocka_unit_test(test_beside_lru),
        cmocka_unit_test(test_budget),        cmocka_unit_test(test_too_small),
        cmocka_unit_test(test_store),         cmocka_unit_test(test_store_budget),
        cmocka_unit_test(test_store_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
