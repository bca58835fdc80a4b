/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load or compute, as prefix_cache.c does it.
 *
 * Goal: no prompt takes longer than loading or computing all of it, as far as was known; what was
 * not known costs a bounded time; and a block is placed behind those before it, whatever comes.
 * Method: the file itself on a stand-in of llama.cpp and of a tier, which have one clock: a path
 * brings one block after the other.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "prefix_cache.h"

enum { BLOCKS = 32, TOKENS = 16, SPARE = 1, SEQUENCE = 0, DEADLINE_MS = 2000 };

#define COMPUTE_S 0.1
#define PROMPT_S  (BLOCKS * COMPUTE_S)
#define PLACE_S   0.0001
#define SLACK     0.05
#define UNKNOWN   (-1.0)

struct icms_request {
    struct icms_block *io;
    double over_s, deadline_s; /* when it comes; when it is late */
    uint32_t block;
};

/* A block of the prompt, in the tier. */
struct block {
    bool is_there;
    double near_s;     /* from then on in the agent's memory */
    double takes_s;    /* from the path, when that is free */
    double expected_s; /* of that; UNKNOWN                 */
};

static struct {
    double now_s, free_s, place_s;
    struct block blocks[BLOCKS];
    uint32_t chained;         /* blocks of the chain that is made */
    uint32_t placed, spare;   /* blocks in the sequence, block in the spare one */
    uint32_t tried, computed; /* prefetched, computed by the cache */
    bool by_program;          /* it decodes */
} world;

static bool is_near(const struct block *block)
{
    return world.now_s >= block->near_s;
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Of prefix_cache.c: its clock_gettime has this name. */
int stand_in_clock(clockid_t clock, struct timespec *out_time)
{
    (void)clock;
    out_time->tv_sec = (time_t)world.now_s;
    out_time->tv_nsec = (long)((world.now_s - (double)out_time->tv_sec) * 1e9);
    return 0;
}

/* ---- the tier ------------------------------------------------------------------------------- */

void icms_options_init(struct icms_options *options)
{
    memset(options, 0, sizeof(*options));
}

void icms_request_options_init(struct icms_request_options *options)
{
    memset(options, 0, sizeof(*options));
}

void icms_prestage_options_init(struct icms_prestage_options *options)
{
    memset(options, 0, sizeof(*options));
}

icms_err icms_open(const char *where, const struct icms_options *options, char *why,
                   size_t why_bytes, struct icms **out_icms)
{
    (void)where, (void)options, (void)why, (void)why_bytes;
    *out_icms = NULL;
    return ICMS_OK;
}

void icms_close(struct icms **icms)
{
    (void)icms;
}

icms_err icms_volume_open(struct icms *icms, const char *name, char *why, size_t why_bytes,
                          struct icms_volume **out_volume)
{
    (void)icms, (void)name, (void)why, (void)why_bytes;
    *out_volume = NULL;
    return ICMS_OK;
}

void icms_volume_info(const struct icms_volume *volume, struct icms_volume_info *out_info)
{
    (void)volume;
    memset(out_info, 0, sizeof(*out_info));
    out_info->value_bytes_max = sizeof(uint32_t);
}

void icms_chain_init(struct icms_chain *chain, const struct icms_volume *volume,
                     const struct icms_layout *layout)
{
    (void)volume, (void)layout;
    memset(chain, 0, sizeof(*chain));
}

/* The only prompt: a key is the number of its block. */
void icms_chain_next(struct icms_chain *chain, const void *content, size_t bytes,
                     struct icms_key *out_key)
{
    uint32_t token;

    (void)chain;
    assert_int_equal(bytes, TOKENS * sizeof(llama_token));
    memcpy(&token, content, sizeof(token));
    memset(out_key, 0, sizeof(*out_key));
    out_key->bytes[0] = (uint8_t)(token / TOKENS);
}

icms_err icms_exists(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                     const struct icms_request_options *options)
{
    (void)volume, (void)options;
    for (size_t i = 0; i < count; i++)
        blocks[i].status = world.blocks[blocks[i].key.bytes[0]].is_there ? ICMS_OK : ICMS_MISS;
    return ICMS_OK;
}

icms_err icms_match_estimate(struct icms_volume *volume, const struct icms_key *keys, size_t count,
                             const struct icms_request_options *options,
                             struct icms_estimate *out_estimates, size_t *out_matched)
{
    double load_s = 0;

    (void)volume, (void)options;
    for (size_t i = 0; i < count; i++) {
        const struct block *block = &world.blocks[keys[i].bytes[0]];

        memset(&out_estimates[i], 0, sizeof(out_estimates[i]));
        if (is_near(block) || load_s < 0)
            ;
        else if (block->expected_s < 0)
            load_s = UNKNOWN;
        else
            load_s += block->expected_s;
        out_estimates[i].load_us = load_s < 0 ? ICMS_ESTIMATE_UNKNOWN : (uint64_t)(load_s * 1e6);
    }
    *out_matched = count;
    return ICMS_OK;
}

icms_err icms_get_start(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                        const struct icms_request_options *options,
                        struct icms_request **out_request)
{
    struct icms_request *request = calloc(1, sizeof(*request));
    uint32_t number = blocks[0].key.bytes[0];
    struct block *block = &world.blocks[number];
    uint32_t ms = options->deadline_ms != 0 ? options->deadline_ms : DEADLINE_MS;

    (void)volume;
    assert_int_equal(count, 1);
    assert_non_null(request);
    *request =
        (struct icms_request){.io = blocks, .deadline_s = world.now_s + ms * 1e-3, .block = number};
    request->over_s = world.now_s;
    if (!is_near(block)) { /* what is not awaited any more is not sent */
        request->over_s = later(world.free_s, world.now_s) + block->takes_s;
        world.free_s = later(world.free_s, fmin(request->over_s, request->deadline_s));
        if (request->over_s <= request->deadline_s)
            block->near_s = request->over_s;
    }
    world.tried += blocks[0].data == NULL;
    *out_request = request;
    return ICMS_OK;
}

icms_err icms_request_wait(struct icms_request *request, int timeout_ms)
{
    double over_s = fmin(request->over_s, request->deadline_s);
    double until_s = world.now_s + timeout_ms * 1e-3;

    if (over_s > until_s) {
        world.now_s = until_s;
        return ICMS_BUSY;
    }
    world.now_s = later(world.now_s, over_s);
    return ICMS_OK;
}

void icms_request_cancel(struct icms_request *request)
{
    request->deadline_s = fmin(request->deadline_s, world.now_s);
}

icms_err icms_request_end(struct icms_request **request)
{
    struct icms_request *ended = *request;
    struct block *block = &world.blocks[ended->block];
    struct icms_block *io = ended->io;

    assert_int_equal(icms_request_wait(ended, 3600 * 1000), ICMS_OK);
    io->status = ICMS_OK;
    io->reason = ICMS_MISS_NONE;
    if (!block->is_there) {
        io->status = ICMS_MISS;
        io->reason = ICMS_MISS_ABSENT;
    } else if (ended->over_s > ended->deadline_s) {
        io->status = ICMS_MISS;
        io->reason = ICMS_MISS_DEADLINE;
    } else {
        io->bytes = sizeof(ended->block);
        if (io->data != NULL)
            memcpy(io->data, &ended->block, sizeof(ended->block));
    }
    free(ended);
    *request = NULL;
    return ICMS_OK;
}

/* Not of this test. */
icms_err icms_put_start(struct icms_volume *volume, struct icms_block *blocks, size_t count,
                        const struct icms_request_options *options,
                        struct icms_request **out_request)
{
    (void)volume, (void)blocks, (void)count, (void)options, (void)out_request;
    return ICMS_LIMIT;
}

icms_err icms_prestage(struct icms_volume *volume, const struct icms_key *keys, size_t count,
                       const struct icms_prestage_options *options, size_t *out_taken)
{
    (void)volume, (void)keys, (void)count, (void)options;
    *out_taken = 0;
    return ICMS_OK;
}

/* ---- llama.cpp ------------------------------------------------------------------------------ */

struct llama_batch llama_batch_init(int32_t tokens, int32_t embeddings, int32_t sequences)
{
    struct llama_batch batch = {0};
    size_t count = (size_t)tokens;

    (void)embeddings;
    assert_int_equal(sequences, 1);
    batch.token = calloc(count, sizeof(*batch.token));
    batch.pos = calloc(count, sizeof(*batch.pos));
    batch.n_seq_id = calloc(count, sizeof(*batch.n_seq_id));
    batch.seq_id = calloc(count, sizeof(llama_seq_id *));
    batch.logits = calloc(count, sizeof(*batch.logits));
    batch.seq_id[0] = calloc(count, sizeof(**batch.seq_id));
    for (size_t i = 1; i < count; i++)
        batch.seq_id[i] = batch.seq_id[0] + i;
    return batch;
}

void llama_batch_free(struct llama_batch batch)
{
    free(batch.token);
    free(batch.pos);
    free(batch.n_seq_id);
    free(batch.seq_id[0]);
    free(batch.seq_id);
    free(batch.logits);
}

int32_t llama_decode(struct llama_context *context, struct llama_batch batch)
{
    (void)context;
    assert_int_equal(batch.n_tokens, TOKENS);
    assert_int_equal(batch.pos[0], world.placed * TOKENS);
    world.now_s += COMPUTE_S;
    world.placed++;
    world.computed++;
    return 0;
}

llama_memory_t llama_get_memory(const struct llama_context *context)
{
    (void)context;
    return NULL;
}

const struct llama_model *llama_get_model(const struct llama_context *context)
{
    (void)context;
    return NULL;
}

bool llama_model_is_hybrid(const struct llama_model *model)
{
    return model != NULL;
}

bool llama_model_is_recurrent(const struct llama_model *model)
{
    return model != NULL;
}

int32_t llama_model_n_swa(const struct llama_model *model)
{
    return model != NULL;
}

uint32_t llama_n_batch(const struct llama_context *context)
{
    (void)context;
    return TOKENS;
}

uint32_t llama_n_seq_max(const struct llama_context *context)
{
    (void)context;
    return SPARE + 1;
}

void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to, llama_pos begin,
                         llama_pos end)
{
    (void)memory;
    assert_int_equal(from, SPARE);
    assert_int_equal(to, SEQUENCE);
    assert_int_equal(begin, world.spare * TOKENS);
    assert_int_equal(end, begin + TOKENS);
    assert_int_equal(world.spare, world.placed); /* those before it are there */
    world.placed++;
}

bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id sequence, llama_pos begin,
                         llama_pos end)
{
    (void)memory, (void)end;
    if (sequence == SEQUENCE)
        world.placed = (uint32_t)begin / TOKENS;
    return true;
}

llama_pos llama_memory_seq_pos_min(llama_memory_t memory, llama_seq_id sequence)
{
    (void)memory, (void)sequence;
    return (llama_pos)(world.spare * TOKENS);
}

llama_pos llama_memory_seq_pos_max(llama_memory_t memory, llama_seq_id sequence)
{
    return llama_memory_seq_pos_min(memory, sequence) + TOKENS - 1;
}

size_t llama_state_seq_get_size(struct llama_context *context, llama_seq_id sequence)
{
    (void)context, (void)sequence;
    return 0;
}

size_t llama_state_seq_get_data(struct llama_context *context, uint8_t *out, size_t bytes,
                                llama_seq_id sequence)
{
    (void)context, (void)out, (void)bytes, (void)sequence;
    return 0;
}

size_t llama_state_seq_set_data(struct llama_context *context, const uint8_t *data, size_t bytes,
                                llama_seq_id sequence)
{
    (void)context;
    assert_int_equal(sequence, SPARE);
    assert_int_equal(bytes, sizeof(world.spare));
    memcpy(&world.spare, data, sizeof(world.spare));
    world.now_s += world.place_s;
    return bytes;
}

/* ---- prompts -------------------------------------------------------------------------------- */

static int setup(void **state)
{
    static const uint8_t digest[PREFIX_CACHE_DIGEST_BYTES];
    static const struct prefix_cache_options options = {
        .where = "here",
        .volume = "kv",
        .digest = digest,
        .block_tokens = TOKENS,
        .spare = SPARE,
    };
    char why[256] = "";

    memset(&world, 0, sizeof(world));
    world.now_s = 1000;
    world.place_s = PLACE_S;
    *state = prefix_cache_open(NULL, &options, why, sizeof(why));
    return *state != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    prefix_cache_close(*state);
    return 0;
}

/* Blocks from first on take so long each, behind before_s, and so long is expected of them. */
static void path(uint32_t first, double before_s, double takes_s, double expected_s)
{
    for (uint32_t i = first; i < BLOCKS; i++) {
        double more_s = i == first ? before_s : 0;

        world.blocks[i] = (struct block){
            .is_there = true,
            .near_s = INFINITY,
            .takes_s = takes_s + more_s,
            .expected_s = expected_s < 0 ? UNKNOWN : expected_s + more_s,
        };
    }
}

/* Blocks before this one are in the agent's memory. */
static void near(uint32_t end)
{
    for (uint32_t i = 0; i < end; i++)
        world.blocks[i] = (struct block){.is_there = true};
}

static void knows_computing(struct prefix_cache *cache)
{
    prefix_cache_computed(cache, BLOCKS * TOKENS, PROMPT_S);
}

/* Seconds until all of the prompt is in place; *out_loaded blocks came from the tier. */
static double prompt(struct prefix_cache *cache, uint32_t *out_loaded)
{
    llama_token tokens[BLOCKS * TOKENS + 1];
    struct prefix_cache_report report;
    double begin_s = world.now_s;
    uint32_t done = 0;

    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++)
        tokens[i] = (llama_token)i;
    assert_true(
        prefix_cache_begin(cache, SEQUENCE, tokens, sizeof(tokens) / sizeof(tokens[0]), 0, &done));
    assert_int_equal(done, world.placed * TOKENS);
    prefix_cache_report(cache, &report);
    *out_loaded = report.loaded;
    world.now_s += (BLOCKS - world.placed) * COMPUTE_S; /* by the program */
    return world.now_s - begin_s;
}

static void takes(struct prefix_cache *cache, double at_most_s, uint32_t loads)
{
    uint32_t loaded;
    double took_s = prompt(cache, &loaded);

    if (took_s > at_most_s || loaded != loads)
        fail_msg("%.3f s, %u blocks loaded, expected at most %.3f s, %u blocks", took_s, loaded,
                 at_most_s, loads);
}

static void a_fast_path_is_used(void **state)
{
    knows_computing(*state);
    path(0, 0, 0.01, 0.01);
    takes(*state, BLOCKS * (0.01 + PLACE_S), BLOCKS);
    assert_int_equal(world.tried, 0);
}

static void a_slow_path_costs_the_slack(void **state)
{
    knows_computing(*state);
    for (int known = 0; known < 2; known++) {
        path(0, 0, 0.5, known ? 0.5 : UNKNOWN);
        world.now_s += 100;
        takes(*state, PROMPT_S * (1 + SLACK) + 0.001, 0);
    }
}

static void what_is_ahead_of_the_first_block_is_awaited(void **state)
{
    knows_computing(*state);
    for (double ahead_s = 0.2; ahead_s < 2; ahead_s *= 2) {
        path(0, ahead_s, 0.005, 0.005);
        world.now_s += 100;
        takes(*state, 1.01 * (ahead_s + BLOCKS * (0.005 + PLACE_S)), BLOCKS);
    }
}

static void blocks_of_a_slow_server_are_awaited_where_they_stand(void **state)
{
    knows_computing(*state);
    path(0, 0, 0.3, 0.3); /* the first two, and all others at once */
    path(2, 0, 0.001, 0.001);
    takes(*state, 1.01 * (0.6 + BLOCKS * (0.001 + PLACE_S)), BLOCKS);
}

static void a_path_that_became_slow_is_left(void **state)
{
    knows_computing(*state);
    path(0, 0, 0.5, 0.001);
    takes(*state, PROMPT_S * 1.1 + 0.001, 0);
}

static void a_path_that_was_repaired_is_used(void **state)
{
    static const double expected_s[] = {0.5, 3600};

    knows_computing(*state);
    for (size_t i = 0; i < sizeof(expected_s) / sizeof(expected_s[0]); i++) {
        path(0, 0, expected_s[i], expected_s[i]);
        world.now_s += 100;
        takes(*state, PROMPT_S * (1 + SLACK) + 0.001, 0);
        path(0, 0, 0.01, expected_s[i]);
        world.now_s = world.free_s += 60;
        takes(*state, BLOCKS * (0.01 + PLACE_S) + 0.001, BLOCKS);
    }
}

static void trials_leave_half_of_a_path(void **state)
{
    static const uint32_t nears[] = {0, BLOCKS - 2, BLOCKS - 1};

    knows_computing(*state);
    world.place_s = 0.005;
    for (size_t i = 0; i < sizeof(nears) / sizeof(nears[0]); i++) {
        double end_s = (world.now_s += 100) + 50, takes_s = 0.4;
        uint32_t loaded;

        world.tried = 0;
        while (world.now_s < end_s) {
            near(nears[i]);
            path(nears[i], 0, takes_s, takes_s);
            (void)prompt(*state, &loaded);
            assert_in_range(loaded, nears[i], nears[i] + 1);
        }
        assert_true(world.tried > 0);
        assert_true(world.tried * takes_s <= 25 + 4 * takes_s);
    }
}

/* Behind a hole the path is as slow as before it. */
static void what_is_behind_a_hole_is_compared(void **state)
{
    for (int known = 0; known < 2; known++)
        for (uint32_t hole = 0; hole < 3; hole++) {
            path(0, 0, 0.5, known ? 0.5 : UNKNOWN);
            near(hole);
            world.blocks[hole].is_there = false;
            world.now_s += 100;
            takes(*state, PROMPT_S * (1 + SLACK) + 0.01, hole);
        }
}

static void holes_are_filled(void **state)
{
    knows_computing(*state);
    for (int round = 0; round < 2; round++) {
        path(0, 0, 0.003, round == 0 ? 0.003 : UNKNOWN);
        for (uint32_t i = 3; i < BLOCKS; i += 7)
            world.blocks[i].is_there = world.blocks[i - 1].is_there = false;
        world.computed = 0;
        world.now_s += 100;
        takes(*state, 10 * COMPUTE_S + 22 * (0.003 + PLACE_S) + 0.001, 22);
        assert_int_equal(world.computed, 8); /* the last two are the program's */
    }
}

static void one_late_block_ends_a_load_of_which_nothing_is_known(void **state)
{
    path(0, 0, 5, UNKNOWN);
    takes(*state, DEADLINE_MS * 1e-3 + PROMPT_S + 0.001, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_fast_path_is_used, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_path_costs_the_slack, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_ahead_of_the_first_block_is_awaited, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(blocks_of_a_slow_server_are_awaited_where_they_stand, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_path_that_became_slow_is_left, setup, teardown),
        cmocka_unit_test_setup_teardown(a_path_that_was_repaired_is_used, setup, teardown),
        cmocka_unit_test_setup_teardown(trials_leave_half_of_a_path, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_behind_a_hole_is_compared, setup, teardown),
        cmocka_unit_test_setup_teardown(holes_are_filled, setup, teardown),
        cmocka_unit_test_setup_teardown(one_late_block_ends_a_load_of_which_nothing_is_known, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
