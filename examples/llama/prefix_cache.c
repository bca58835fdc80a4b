/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefix_cache.c: see prefix_cache.h. Called by the program that takes it over, from the thread
 * that uses the context.
 *
 * prefix_cache_begin: plan_blocks (keys) -> look_up (one batch) -> for each part that is there:
 * fill_hole before it -> choose_part, with a trial -> load_part: for each block in order of
 * position load_start a few ahead, load_finish (when it is late, and goes_on says so, again).
 * prefix_cache_store: plan_blocks, look_up, store_start a few
 * at a time, store_finish. A block that moves has slot i % WINDOW from ..._start to ..._finish;
 * none is in progress between calls, but blocks of a trial that are late.
 */
#include "prefix_cache.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    WINDOW = 2,             /* blocks under way: enough to overlap the tier with copying  */
    CHUNK_TOKENS_MAX = 512, /* computed at a time where a block is larger                 */
    COMPUTED_MEMORY = 8,    /* times that it was computed, which are averaged             */
    TRIAL_BLOCKS = 2,       /* one alone would tell its latency, and no rate              */
    TRIAL_PAUSE_S = 60,     /* at most, for what a path is expected to take               */
};

/* How much longer than expected the tier may take: of the time to compute the same, and in seconds
 * at least. */
#define SLACK         0.05
#define SLACK_LEAST_S 0.005

struct slot {
    uint8_t *buf;                 /* block_bytes_max of the cache                 */
    struct icms_block io;         /* what was asked, what came                    */
    struct icms_request *request; /* NULL when none is under way                  */
};

/* Loads of the blocks [from, end) are expected, each in its time; all others have the deadline of
 * the cache. */
struct expected {
    uint32_t from, end;
    double begin_s; /* when the first of them was asked for */
    double slack_s; /* so much later they may come          */
};

struct prefix_cache {
    struct llama_context *context;      /* the program's                             */
    llama_memory_t memory;              /* the context's                             */
    struct icms *tier;                  /* ours                                      */
    struct icms_volume *volume;         /* ours                                      */
    struct icms_chain begin;            /* of every prompt                           */
    uint32_t block_tokens;              /* tokens a block                            */
    uint32_t chunk_tokens;              /* computed at a time                        */
    uint32_t deadline_ms;               /* of a load                                 */
    bool store_on_flash;                /* of a store                                */
    llama_seq_id spare;                 /* where a block stands alone                */
    uint64_t block_bytes_max;           /* a volume's largest value                  */
    struct slot slots[WINDOW];          /* blocks under way                          */
    struct prefix_cache_block *blocks;  /* of the last call                         */
    struct icms_block *looks;           /* of the same: is it there                  */
    struct icms_key *keys;              /* of the same, for estimates                */
    struct icms_estimate *estimates;    /* of these                                  */
    uint32_t block_count, block_room;   /* used, allocated                           */
    double computed_tokens, computed_s; /* lately: what computing takes             */
    uint32_t computed_count;            /* additions to these                        */
    double place_s;                     /* to put a block into the context, lately   */
    struct expected expected;           /* of the last call                          */
    double *due_s;                      /* of the same blocks: seconds from its begin */
    struct slot trials[TRIAL_BLOCKS];   /* without buf; may outlive a call           */
    double next_trial_s;                /* not before                                */
    uint64_t bytes;                     /* moved in the last call                    */
    double begin_s, computing_s;        /* of the last call: its begin, what it took
                                           to compute holes                          */
    double end_s;                       /* and its end                               */
};

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Ends what is in progress in a slot; its io then says how. */
static void slot_wait(struct slot *slot)
{
    icms_err err;

    if (slot->request == NULL)
        return;
    err = icms_request_end(&slot->request);
    /* The answer for the one block is also the answer for the batch. */
    if (err != ICMS_OK && slot->io.status == ICMS_OK)
        slot->io.status = err;
}

/* The same, soon: it is not awaited any more. */
static void slot_end(struct slot *slot)
{
    if (slot->request != NULL)
        icms_request_cancel(slot->request);
    slot_wait(slot);
}

bool prefix_cache_digest(const char *path, uint8_t out_digest[PREFIX_CACHE_DIGEST_BYTES])
{
    static uint8_t buf[1 << 20];
    EVP_MD_CTX *sha = EVP_MD_CTX_new();
    FILE *file = fopen(path, "rb");
    bool ok = file != NULL && sha != NULL && EVP_DigestInit_ex(sha, EVP_sha256(), NULL) == 1;

    while (ok) {
        size_t n = fread(buf, 1, sizeof(buf), file);

        if (n == 0)
            break;
        ok = EVP_DigestUpdate(sha, buf, n) == 1;
    }
    ok = ok && !ferror(file) && EVP_DigestFinal_ex(sha, out_digest, NULL) == 1;
    if (file != NULL)
        fclose(file);
    EVP_MD_CTX_free(sha);
    return ok;
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Says why this context cannot be used with these options; NULL when it can. */
static const char *context_wrong(const struct llama_context *context,
                                 const struct prefix_cache_options *options)
{
    const struct llama_model *model = llama_get_model(context);

    if (options->block_tokens == 0 || options->digest == NULL || options->where == NULL ||
        options->volume == NULL)
        return "where, volume, digest and block_tokens have to be given";
    if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model) ||
        llama_model_n_swa(model) > 0)
        return "the model's memory is recurrent or has windows, so it cannot be cut into blocks";
    if (options->spare < 0 || (uint32_t)options->spare >= llama_n_seq_max(context))
        return "the context has no such spare sequence: raise n_seq_max by one";
    if (llama_n_batch(context) < options->block_tokens && llama_n_batch(context) < CHUNK_TOKENS_MAX)
        return "n_batch of the context is less than a block";
    return NULL;
}

/* Keys have in them all that a block depends on but its tokens. */
static void begin_chain(struct prefix_cache *cache, const struct prefix_cache_options *options)
{
    char layout[64];
    const struct icms_layout all = {
        .tenant = options->tenant,
        .model = options->model,
        .weights = options->digest,
        .weights_bytes = PREFIX_CACHE_DIGEST_BYTES,
        .dtype = options->dtype,
        .layout = layout,
        .block_tokens = options->block_tokens,
        .ranks = {1, 1, 1, 1},
    };

    snprintf(layout, sizeof(layout), "llama.cpp sequence state %d", LLAMA_STATE_SEQ_VERSION);
    icms_chain_init(&cache->begin, cache->volume, &all);
}

static bool open_tier(struct prefix_cache *cache, const struct prefix_cache_options *options,
                      char *why, size_t why_bytes)
{
    struct icms_options how;
    struct icms_volume_info info;

    icms_options_init(&how);
    how.keys = options->keys;
    if (icms_open(options->where, &how, why, why_bytes, &cache->tier) != ICMS_OK ||
        icms_volume_open(cache->tier, options->volume, why, why_bytes, &cache->volume) != ICMS_OK)
        return false;
    icms_volume_info(cache->volume, &info);
    cache->block_bytes_max = info.value_bytes_max;
    for (int i = 0; i < WINDOW; i++) {
        cache->slots[i].buf = malloc(cache->block_bytes_max);
        if (cache->slots[i].buf == NULL) {
            snprintf(why, why_bytes, "no memory for %d blocks of %llu bytes", WINDOW,
                     (unsigned long long)cache->block_bytes_max);
            return false;
        }
    }
    begin_chain(cache, options);
    return true;
}

struct prefix_cache *prefix_cache_open(struct llama_context *context,
                                       const struct prefix_cache_options *options, char *why,
                                       size_t why_bytes)
{
    const char *wrong = context_wrong(context, options);
    struct prefix_cache *cache = wrong == NULL ? calloc(1, sizeof(*cache)) : NULL;

    if (cache == NULL) {
        snprintf(why, why_bytes, "%s", wrong != NULL ? wrong : "no memory");
        return NULL;
    }
    cache->context = context;
    cache->memory = llama_get_memory(context);
    cache->block_tokens = options->block_tokens;
    cache->chunk_tokens = options->block_tokens;
    if (cache->chunk_tokens > llama_n_batch(context))
        cache->chunk_tokens = CHUNK_TOKENS_MAX;
    cache->deadline_ms = options->deadline_ms;
    cache->store_on_flash = options->store_on_flash;
    cache->spare = options->spare;
    if (!open_tier(cache, options, why, why_bytes)) {
        prefix_cache_close(cache);
        return NULL;
    }
    return cache;
}

void prefix_cache_close(struct prefix_cache *cache)
{
    if (cache == NULL)
        return;
    for (int i = 0; i < TRIAL_BLOCKS; i++)
        slot_end(&cache->trials[i]);
    icms_close(&cache->tier);
    for (int i = 0; i < WINDOW; i++)
        free(cache->slots[i].buf);
    free(cache->blocks);
    free(cache->looks);
    free(cache->keys);
    free(cache->estimates);
    free(cache->due_s);
    free(cache);
}

void prefix_cache_report(const struct prefix_cache *cache, struct prefix_cache_report *out_report)
{
    *out_report = (struct prefix_cache_report){
        .blocks = cache->blocks,
        .block_count = cache->block_count,
        .bytes = cache->bytes,
        .tier_seconds = cache->end_s - cache->begin_s - cache->computing_s,
    };
    for (uint32_t i = 0; i < cache->block_count; i++) {
        out_report->loaded += cache->blocks[i].fate == PREFIX_CACHE_LOADED;
        out_report->computed += cache->blocks[i].fate == PREFIX_CACHE_COMPUTED;
        out_report->stored += cache->blocks[i].fate == PREFIX_CACHE_STORED;
    }
}

/* ---- blocks --------------------------------------------------------------------------------- */

static bool grow(void **array, size_t count, size_t bytes)
{
    void *grown = realloc(*array, count * bytes);

    if (grown != NULL)
        *array = grown;
    return grown != NULL;
}

/* Begins a call on the whole blocks of count tokens. False: no memory. */
static bool plan_blocks(struct prefix_cache *cache, const llama_token *tokens, uint32_t count)
{
    struct icms_chain chain = cache->begin;
    uint32_t blocks = count / cache->block_tokens;

    cache->begin_s = now();
    cache->computing_s = 0;
    cache->bytes = 0;
    cache->block_count = 0;
    cache->expected = (struct expected){0};
    if (blocks > cache->block_room &&
        !(grow((void **)&cache->blocks, blocks, sizeof(*cache->blocks)) &&
          grow((void **)&cache->looks, blocks, sizeof(*cache->looks)) &&
          grow((void **)&cache->keys, blocks, sizeof(*cache->keys)) &&
          grow((void **)&cache->estimates, blocks, sizeof(*cache->estimates)) &&
          grow((void **)&cache->due_s, blocks, sizeof(*cache->due_s))))
        return false;
    if (blocks > cache->block_room)
        cache->block_room = blocks;
    for (uint32_t i = 0; i < blocks; i++) {
        cache->blocks[i] = (struct prefix_cache_block){.fate = PREFIX_CACHE_KEPT};
        icms_chain_next(&chain, tokens + (size_t)i * cache->block_tokens,
                        cache->block_tokens * sizeof(*tokens), &cache->blocks[i].key);
        cache->keys[i] = cache->blocks[i].key;
        cache->looks[i] = (struct icms_block){.key = cache->blocks[i].key};
    }
    cache->block_count = blocks;
    return true;
}

/* Asks which blocks from `from` on are there; a tier that does not answer has none. */
static void look_up(struct prefix_cache *cache, uint32_t from, uint32_t deadline_ms)
{
    struct icms_request_options options;

    icms_request_options_init(&options);
    options.deadline_ms = deadline_ms;
    for (uint32_t at = from; at < cache->block_count; at += ICMS_BATCH_MAX) {
        uint32_t left = cache->block_count - at;
        icms_err err = icms_exists(cache->volume, &cache->looks[at],
                                   left < ICMS_BATCH_MAX ? left : ICMS_BATCH_MAX, &options);

        (void)err; /* whatever it says of the whole, each block has its status */
    }
    for (uint32_t i = from; i < cache->block_count; i++) {
        cache->blocks[i].status = cache->looks[i].status;
        cache->blocks[i].reason = cache->looks[i].reason;
    }
}

/* Notes why a block did not come or was not taken. */
static void block_lost(struct prefix_cache_block *block, enum prefix_cache_fate fate,
                       const struct icms_block *io)
{
    block->fate = fate;
    block->status = io->status;
    block->reason = io->reason;
}

/* ---- what is expected ----------------------------------------------------------------------- */

/* To compute a block, lately; 0: not known. */
static double compute_block_s(const struct prefix_cache *cache)
{
    return cache->computed_count == 0
               ? 0
               : cache->computed_s / cache->computed_tokens * cache->block_tokens;
}

static double slack_s(double computing_s)
{
    return computing_s * SLACK > SLACK_LEAST_S ? computing_s * SLACK : SLACK_LEAST_S;
}

/* So many seconds, at most the deadline of the cache. */
static uint32_t deadline_ms(const struct prefix_cache *cache, double seconds)
{
    double ms = seconds * 1e3 > 1 ? seconds * 1e3 : 1;

    return ms < (cache->deadline_ms != 0 ? cache->deadline_ms : INT32_MAX) ? (uint32_t)ms
                                                                           : cache->deadline_ms;
}

/* To wait for an answer what there is of so many blocks. */
static uint32_t patience_ms(const struct prefix_cache *cache, uint32_t blocks)
{
    return cache->computed_count == 0
               ? cache->deadline_ms
               : deadline_ms(cache, slack_s(blocks * compute_block_s(cache)));
}

/* Blocks [from, end) come at this pace, behind before_s seconds. */
static void expect_pace(struct prefix_cache *cache, uint32_t from, uint32_t end, double before_s,
                        double block_s)
{
    for (uint32_t i = from; i < end; i++)
        cache->due_s[i] = before_s + (i - from + 1) * block_s;
}

/* Loads of the blocks [from, end) begin, whose due_s is known. Of the slack a block has as long as
 * it takes to compute at least: else one of few could not show that it is faster. */
static void expect(struct prefix_cache *cache, uint32_t from, uint32_t end)
{
    double compute_s = compute_block_s(cache), slack = slack_s((end - from) * compute_s);

    cache->expected = (struct expected){
        .from = from,
        .end = end,
        .begin_s = now(),
        .slack_s = slack > compute_s ? slack : compute_s,
    };
}

static bool is_expected(const struct prefix_cache *cache, uint32_t i)
{
    return i >= cache->expected.from && i < cache->expected.end;
}

/* Block i is late. Whether it and those behind it come sooner than they are computed, at the pace
 * of those that came; that is then what is expected of them. */
static bool goes_on(struct prefix_cache *cache, uint32_t i)
{
    uint32_t came = i - cache->expected.from;
    double block_s = came == 0 ? 0 : (now() - cache->expected.begin_s) / came;

    if (came == 0 || block_s > compute_block_s(cache))
        return false;
    expect_pace(cache, i, cache->expected.end, 0, block_s);
    expect(cache, i, cache->expected.end);
    return true;
}

/* ---- into the context ----------------------------------------------------------------------- */

static void load_start(struct prefix_cache *cache, uint32_t i)
{
    struct slot *slot = &cache->slots[i % WINDOW];
    struct icms_request_options options;
    icms_err err;

    icms_request_options_init(&options);
    options.deadline_ms = cache->deadline_ms;
    slot->io = (struct icms_block){
        .key = cache->blocks[i].key, .data = slot->buf, .bytes = cache->block_bytes_max};
    if (is_expected(cache, i)) {
        double left_s = cache->expected.begin_s + cache->due_s[i] + cache->expected.slack_s - now();

        if (left_s <= 0) {
            slot->io.status = ICMS_MISS;
            slot->io.reason = ICMS_MISS_DEADLINE;
            return;
        }
        options.deadline_ms = deadline_ms(cache, left_s);
    }
    err = icms_get_start(cache->volume, &slot->io, 1, &options, &slot->request);
    if (err != ICMS_OK)
        slot->io.status = err; /* nothing was started: as a miss */
}

/* Puts a block into its place in the sequence; false when llama.cpp does not take it. */
static bool block_place(struct prefix_cache *cache, llama_seq_id sequence, uint32_t i,
                        const struct icms_block *io)
{
    llama_pos from = (llama_pos)(i * cache->block_tokens);
    bool ok =
        llama_state_seq_set_data(cache->context, io->data, io->bytes, cache->spare) == io->bytes;

    /* It stands where it stood when it was saved: its key says which tokens are before it. */
    ok = ok && llama_memory_seq_pos_min(cache->memory, cache->spare) == from &&
         llama_memory_seq_pos_max(cache->memory, cache->spare) ==
             from + (llama_pos)cache->block_tokens - 1;
    if (ok)
        llama_memory_seq_cp(cache->memory, cache->spare, sequence, from,
                            from + (llama_pos)cache->block_tokens);
    llama_memory_seq_rm(cache->memory, cache->spare, -1, -1);
    return ok;
}

static bool is_late(const struct slot *slot)
{
    return slot->io.status == ICMS_MISS && slot->io.reason == ICMS_MISS_DEADLINE;
}

/* Waits for block i and puts it into its place; false when it did not come. */
static bool load_finish(struct prefix_cache *cache, llama_seq_id sequence, uint32_t i)
{
    struct slot *slot = &cache->slots[i % WINDOW];
    struct prefix_cache_block *block = &cache->blocks[i];

    double begin_s;

    slot_wait(slot);
    begin_s = now();
    if (slot->io.status == ICMS_OK && !block_place(cache, sequence, i, &slot->io))
        slot->io.status = ICMS_FOREIGN;
    if (slot->io.status == ICMS_OK)
        cache->place_s += (now() - begin_s - cache->place_s) / 4;
    if (slot->io.status != ICMS_OK) {
        block_lost(block, PREFIX_CACHE_LEFT, &slot->io);
        return false;
    }
    block->fate = PREFIX_CACHE_LOADED;
    block->source = slot->io.source;
    block->bytes = slot->io.bytes;
    cache->bytes += slot->io.bytes;
    return true;
}

/* Computes tokens [from, to) of the sequence; those before must be there. */
static bool compute(struct prefix_cache *cache, llama_seq_id sequence, const llama_token *tokens,
                    uint32_t from, uint32_t to)
{
    struct llama_batch batch = llama_batch_init((int32_t)cache->chunk_tokens, 0, 1);
    uint32_t begin = from;
    double begin_s = now();
    bool ok = true;

    while (ok && from < to) {
        batch.n_tokens = 0;
        for (; from < to && (uint32_t)batch.n_tokens < cache->chunk_tokens; from++) {
            int32_t at = batch.n_tokens++;

            batch.token[at] = tokens[from];
            batch.pos[at] = (llama_pos)from;
            batch.n_seq_id[at] = 1;
            batch.seq_id[at][0] = sequence;
            batch.logits[at] = 0;
        }
        ok = llama_decode(cache->context, batch) == 0;
    }
    llama_batch_free(batch);
    cache->computing_s += now() - begin_s;
    if (ok)
        prefix_cache_computed(cache, to - begin, now() - begin_s);
    return ok;
}

/* ---- load or compute ------------------------------------------------------------------------ */

void prefix_cache_computed(struct prefix_cache *cache, uint32_t tokens, double seconds)
{
    if (tokens < cache->block_tokens || seconds <= 0)
        return;
    if (cache->computed_count >= COMPUTED_MEMORY) {
        cache->computed_count /= 2;
        cache->computed_tokens /= 2;
        cache->computed_s /= 2;
    }
    cache->computed_count++;
    cache->computed_tokens += tokens;
    cache->computed_s += seconds;
}

/* Whether something of the last trial may still come: the path is slow, and not free. */
static bool trial_is_outstanding(const struct prefix_cache *cache)
{
    for (int i = 0; i < TRIAL_BLOCKS; i++)
        if (cache->trials[i].request != NULL &&
            icms_request_wait(cache->trials[i].request, 0) != ICMS_OK)
            return true;
    return false;
}

/* Brings a few of the blocks [first, first + count) into the agent's memory, although they are
 * expected to take expected_s, which is longer than computing them: a path may be faster than what
 * is known of it. How many came within the slack, and what each took. Others may come while they
 * are computed, so that the agent learns how slow the path is. After a trial in vain there is none
 * until trials are no more than half of what the path can bring, or for TRIAL_PAUSE_S. Where one
 * takes more than the slack of its prompt, or twice as much where others have the cores, there is
 * none until that is as small a part of the time. */
static uint32_t try_few(struct prefix_cache *cache, uint32_t first, uint32_t count,
                        double expected_s, double *out_block_s)
{
    double begin_s = now(), computing_s = count * compute_block_s(cache), took_s, pause_s,
           came_s = 0;
    struct icms_request_options options;
    uint32_t tried = count < TRIAL_BLOCKS ? count : TRIAL_BLOCKS, came = 0;

    if (computing_s < SLACK_LEAST_S || begin_s < cache->next_trial_s || trial_is_outstanding(cache))
        return 0;
    icms_request_options_init(&options);
    options.deadline_ms = deadline_ms(cache, computing_s);
    for (uint32_t i = 0; i < tried; i++) {
        struct slot *slot = &cache->trials[i];

        slot_end(slot); /* of a trial before */
        slot->io = (struct icms_block){.key = cache->keys[first + i]};
        slot->io.status = icms_get_start(cache->volume, &slot->io, 1, &options, &slot->request);
    }
    for (; came < tried && cache->trials[came].request != NULL; came++) {
        double left_ms = (begin_s + slack_s(computing_s) - now()) * 1e3;

        if (icms_request_wait(cache->trials[came].request, left_ms > 0 ? (int)left_ms : 0) !=
            ICMS_OK)
            break;
        slot_wait(&cache->trials[came]);
        if (cache->trials[came].io.status != ICMS_OK)
            break;
        came_s = now() - begin_s;
    }
    took_s = now() - begin_s;
    if (came > 0) {
        /* Until the last one came, not until the wait ended: a path that is faster than computing
         * would look up to twice as slow. The next one, which has not come, bounds it, too. */
        double least_s = came < tried ? took_s / (came + 1) : 0, mean_s = came_s / came;

        *out_block_s = (mean_s > least_s ? mean_s : least_s) + cache->place_s;
    }
    pause_s = 2 * expected_s < TRIAL_PAUSE_S ? 2 * expected_s : TRIAL_PAUSE_S;
    if ((computing_s * SLACK < SLACK_LEAST_S || took_s > 2 * computing_s * SLACK) &&
        took_s / SLACK > pause_s)
        pause_s = took_s / SLACK;
    if (came == 0 || *out_block_s > compute_block_s(cache))
        cache->next_trial_s = begin_s + pause_s;
    return came;
}

/* What the first so many of the blocks that were matched are expected to take, without placing. */
static double load_s(const struct prefix_cache *cache, uint32_t blocks)
{
    return blocks == 0 ? 0 : (double)cache->estimates[blocks - 1].load_us * 1e-6;
}

/* The same for all of them, as far as it is known, with their places: when each block from first on
 * is due. How many are known. */
static uint32_t match(struct prefix_cache *cache, uint32_t first, uint32_t count)
{
    struct icms_request_options options;
    uint32_t known = 0;
    size_t matched = 0;

    icms_request_options_init(&options);
    options.deadline_ms = patience_ms(cache, count);
    if (icms_match_estimate(cache->volume, cache->keys + first, count, &options, cache->estimates,
                            &matched) != ICMS_OK)
        return 0;
    while (known < matched && cache->estimates[known].load_us != ICMS_ESTIMATE_UNKNOWN) {
        known++;
        cache->due_s[first + known - 1] = load_s(cache, known) + known * cache->place_s;
    }
    return known;
}

/* How many of the blocks [first, first + count), which are there, are loaded, so that all of them
 * are in place first: the others are computed. All, as long as nothing is known. */
static uint32_t choose_part(struct prefix_cache *cache, uint32_t first, uint32_t count)
{
    double compute_s = compute_block_s(cache), best_s = count * compute_s, block_s = 0;
    uint32_t best = 0, known, tried, came;

    if (cache->computed_count == 0)
        return count;
    known = match(cache, first, count);
    for (uint32_t loads = 1; loads <= known; loads++) {
        double there_s = cache->due_s[first + loads - 1] + (count - loads) * compute_s;

        if (there_s <= best_s) {
            best_s = there_s;
            best = loads;
        }
    }
    if (best < count) {
        double before_s = best == 0 ? 0 : cache->due_s[first + best - 1];

        tried = known < best + TRIAL_BLOCKS ? known : best + TRIAL_BLOCKS;
        came = try_few(cache, first + best, count - best,
                       load_s(cache, tried) - load_s(cache, best), &block_s);
        /* Those that came are in the agent's memory now. */
        expect_pace(cache, first + best, first + best + came, before_s, cache->place_s);
        best += came;
        if (came > 0 && block_s <= compute_s) {
            expect_pace(cache, first + best, first + count, cache->due_s[first + best - 1],
                        block_s);
            best = count;
        }
    }
    if (best > 0)
        expect(cache, first, first + best);
    return best;
}

/* Computes the blocks [*done, i), which are holes. */
static bool fill_hole(struct prefix_cache *cache, llama_seq_id sequence, const llama_token *tokens,
                      uint32_t i, uint32_t *done)
{
    bool ok = *done >= i || compute(cache, sequence, tokens, *done * cache->block_tokens,
                                    i * cache->block_tokens);

    for (; ok && *done < i; ++*done)
        cache->blocks[*done].fate = PREFIX_CACHE_COMPUTED;
    return ok;
}

/* Loads the blocks [first, end), which are said to be there, in order of position, and computes
 * those that did not come before others. *done: those that are in place from 0 on. *out_late: one
 * came too late, so that those from there on are computed sooner. */
static bool load_part(struct prefix_cache *cache, llama_seq_id sequence, const llama_token *tokens,
                      uint32_t first, uint32_t end, uint32_t *done, bool *out_late)
{
    uint32_t started = first;
    bool ok = true, is_there;

    *out_late = false;
    for (uint32_t i = first; i < end && ok && !*out_late; i++) {
        for (; started < end && started < i + WINDOW; started++)
            load_start(cache, started);
        /* A block can be placed only when those before it are; they are computed only then. */
        ok = fill_hole(cache, sequence, tokens, i, done);
        while (!(is_there = ok && load_finish(cache, sequence, i)) && ok && is_expected(cache, i) &&
               is_late(&cache->slots[i % WINDOW]) && goes_on(cache, i))
            load_start(cache, i);
        if (is_there)
            *done = i + 1;
        else
            *out_late = is_late(&cache->slots[i % WINDOW]);
    }
    for (int i = 0; i < WINDOW; i++)
        slot_end(&cache->slots[i]);
    return ok;
}

bool prefix_cache_begin(struct prefix_cache *cache, llama_seq_id sequence,
                        const llama_token *tokens, uint32_t count, uint32_t have,
                        uint32_t *out_done)
{
    uint32_t first = have / cache->block_tokens, done, there, end;
    bool ok = true, is_over = false;

    /* The last token is always computed: its logits begin the answer. */
    if (count == 0 || !plan_blocks(cache, tokens, count - 1))
        return false;
    if (first > cache->block_count)
        first = cache->block_count;
    llama_memory_seq_rm(cache->memory, sequence, (llama_pos)(first * cache->block_tokens), -1);
    for (uint32_t i = first; i < cache->block_count; i++)
        cache->blocks[i].fate = PREFIX_CACHE_LEFT;
    look_up(cache, first, patience_ms(cache, cache->block_count - first));
    /* Blocks that are there, part by part; a hole before one is computed first. */
    for (done = first; ok && !is_over; first = there) {
        while (first < cache->block_count && cache->looks[first].status != ICMS_OK)
            first++;
        there = first;
        while (there < cache->block_count && cache->looks[there].status == ICMS_OK)
            there++;
        if (there == first)
            break;
        ok = fill_hole(cache, sequence, tokens, first, &done);
        end = ok ? first + choose_part(cache, first, there - first) : first;
        ok = ok && load_part(cache, sequence, tokens, first, end, &done, &is_over);
        is_over = is_over || end < there;
    }
    cache->end_s = now();
    if (ok)
        *out_done = done * cache->block_tokens;
    return ok;
}

/* ---- out of the context --------------------------------------------------------------------- */

static void store_finish(struct prefix_cache *cache, uint32_t i)
{
    struct slot *slot = &cache->slots[i % WINDOW];
    struct prefix_cache_block *block = &cache->blocks[i];

    slot_wait(slot);
    if (slot->io.status == ICMS_OK) {
        block->fate = PREFIX_CACHE_STORED;
        block->status = ICMS_OK;
        block->reason = ICMS_MISS_NONE;
        block->bytes = slot->io.bytes;
        cache->bytes += slot->io.bytes;
    } else if (slot->io.status != ICMS_EXISTS) { /* else another server was faster */
        block_lost(block, PREFIX_CACHE_REFUSED, &slot->io);
    }
}

/* Copies block i of the sequence out; 0 when llama.cpp fails, and more than there is room for when
 * the volume is too small. */
static uint64_t block_save(struct prefix_cache *cache, llama_seq_id sequence, uint32_t i,
                           uint8_t *buf)
{
    llama_pos from = (llama_pos)(i * cache->block_tokens);
    uint64_t bytes;

    llama_memory_seq_cp(cache->memory, sequence, cache->spare, from,
                        from + (llama_pos)cache->block_tokens);
    bytes = llama_state_seq_get_size(cache->context, cache->spare);
    if (bytes <= cache->block_bytes_max)
        bytes = llama_state_seq_get_data(cache->context, buf, cache->block_bytes_max, cache->spare);
    llama_memory_seq_rm(cache->memory, cache->spare, -1, -1);
    return bytes;
}

/* False: llama.cpp fails. */
static bool store_start(struct prefix_cache *cache, llama_seq_id sequence, uint32_t i)
{
    struct slot *slot = &cache->slots[i % WINDOW];
    struct icms_request_options options;
    uint64_t bytes = block_save(cache, sequence, i, slot->buf);
    icms_err err;

    if (bytes == 0)
        return false;
    slot->io = (struct icms_block){
        .key = cache->blocks[i].key,
        .data = slot->buf,
        .bytes = bytes,
    };
    if (bytes > cache->block_bytes_max) {
        slot->io.status = ICMS_VALUE_SIZE;
        return true;
    }
    icms_request_options_init(&options);
    options.put_if_absent = 1;
    options.put_ack = cache->store_on_flash ? ICMS_PUT_ON_FLASH : ICMS_PUT_ACCEPTED;
    err = icms_put_start(cache->volume, &slot->io, 1, &options, &slot->request);
    if (err != ICMS_OK)
        slot->io.status = err; /* nothing was started */
    return true;
}

bool prefix_cache_store(struct prefix_cache *cache, llama_seq_id sequence,
                        const llama_token *tokens, uint32_t count)
{
    uint32_t under_way[WINDOW], waiting = 0, hits = 0;
    bool ok = true;

    if (!plan_blocks(cache, tokens, count))
        return false;
    look_up(cache, 0, cache->deadline_ms);
    while (hits < cache->block_count && cache->looks[hits].status == ICMS_OK)
        hits++;
    for (uint32_t i = hits; i < cache->block_count && ok; i++) {
        if (cache->looks[i].status == ICMS_OK)
            continue;
        /* Its slot is that of an earlier block. */
        for (uint32_t j = 0; j < waiting; j++)
            if (under_way[j] % WINDOW == i % WINDOW) {
                store_finish(cache, under_way[j]);
                under_way[j] = under_way[--waiting];
                break;
            }
        ok = store_start(cache, sequence, i);
        if (ok)
            under_way[waiting++] = i;
    }
    for (uint32_t j = 0; j < waiting; j++)
        store_finish(cache, under_way[j]);
    cache->end_s = now();
    return ok;
}

/* ---- hints ---------------------------------------------------------------------------------- */

uint32_t prefix_cache_prestage(struct prefix_cache *cache, const llama_token *tokens,
                               uint32_t count, uint32_t need_ms)
{
    struct icms_prestage_options options;
    struct icms_key *keys;
    size_t taken = 0;

    if (count == 0 || !plan_blocks(cache, tokens, count - 1) || cache->block_count == 0)
        return 0;
    keys = malloc(cache->block_count * sizeof(*keys));
    if (keys == NULL)
        return 0;
    for (uint32_t i = 0; i < cache->block_count; i++)
        keys[i] = cache->blocks[i].key;
    icms_prestage_options_init(&options);
    options.deadline_ms = need_ms;
    /* Blocks of hints that it does not take are loaded when they are asked for. */
    (void)!icms_prestage(cache->volume, keys, cache->block_count, &options, &taken);
    free(keys);
    return (uint32_t)taken;
}
