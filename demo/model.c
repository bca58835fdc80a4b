/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demo/model.c: llama.cpp behind model.h.
 *
 * Called by demo/engine.c from its only thread; llama.cpp uses MODEL_THREADS of its own inside
 * a call. Sequence 1 is empty between calls.
 */
#include "model.h"

#include <llama.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SEQUENCE_MAIN = 0,  /* the conversation                  */
    SEQUENCE_BLOCK = 1, /* one block on its way in or out    */
};

struct model {
    struct llama_model *weights;          /* as loaded from the file                 */
    struct llama_context *context;        /* KV cache and buffers                    */
    const struct llama_vocab *vocab;      /* belongs to weights                      */
    llama_memory_t memory;                /* belongs to context                      */
    uint8_t digest[MODEL_DIGEST_BYTES];   /* of the model file                       */
    llama_token prompt[MODEL_TOKENS_MAX]; /* the tokens of the prompt                */
    int prompt_count;                     /* how many                                */
};

double model_now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void log_errors(enum ggml_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static bool file_digest(const char *path, uint8_t *out_digest)
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

struct model *model_open(const char *path)
{
    struct llama_model_params model_params = llama_model_default_params();
    struct llama_context_params params = llama_context_default_params();
    struct model *model = calloc(1, sizeof(*model));

    if (model == NULL)
        return NULL;
    llama_log_set(log_errors, NULL);
    llama_backend_init();
    if (!file_digest(path, model->digest)) {
        fprintf(stderr, "engine: cannot read the model %s\n", path);
        model_close(model);
        return NULL;
    }
    model_params.n_gpu_layers = 0;
    model->weights = llama_model_load_from_file(path, model_params);
    if (model->weights == NULL) {
        fprintf(stderr, "engine: llama.cpp cannot load the model %s\n", path);
        model_close(model);
        return NULL;
    }
    params.n_ctx = MODEL_TOKENS_MAX;
    params.n_batch = MODEL_BLOCK_TOKENS;
    params.n_ubatch = MODEL_BLOCK_TOKENS;
    params.n_threads = MODEL_THREADS;
    params.n_threads_batch = MODEL_THREADS;
    params.n_seq_max = 2;
    params.kv_unified = true;
    model->context = llama_init_from_model(model->weights, params);
    if (model->context == NULL) {
        fprintf(stderr, "engine: llama.cpp cannot make a context of %d tokens\n", MODEL_TOKENS_MAX);
        model_close(model);
        return NULL;
    }
    model->vocab = llama_model_get_vocab(model->weights);
    model->memory = llama_get_memory(model->context);
    return model;
}

void model_close(struct model *model)
{
    if (model == NULL)
        return;
    if (model->context != NULL)
        llama_free(model->context);
    if (model->weights != NULL)
        llama_model_free(model->weights);
    llama_backend_free();
    free(model);
}

const uint8_t *model_digest(const struct model *model)
{
    return model->digest;
}

int model_prompt(struct model *model, const char *text, size_t bytes, int tokens_max)
{
    /* The model was trained on turns that are marked like this. */
    static const char before[] = "<|im_start|>user\n";
    static const char after[] = "<|im_end|>\n<|im_start|>assistant\n";
    size_t chat_bytes = sizeof(before) + bytes + sizeof(after);
    char *chat = malloc(chat_bytes);
    /* A token is at least a byte, so this many always suffice. */
    llama_token *all = malloc((chat_bytes + 8) * sizeof(*all));
    int n = -1;

    if (chat != NULL && all != NULL) {
        int written = snprintf(chat, chat_bytes, "%s%.*s%s", before, (int)bytes, text, after);

        n = llama_tokenize(model->vocab, chat, written, all, (int32_t)chat_bytes + 8, true, true);
    }
    if (n > tokens_max)
        n = tokens_max;
    if (n > MODEL_TOKENS_MAX - MODEL_BLOCK_TOKENS)
        n = MODEL_TOKENS_MAX - MODEL_BLOCK_TOKENS;
    if (n > 0)
        memcpy(model->prompt, all, (size_t)n * sizeof(*all));
    model->prompt_count = n > 0 ? n : 0;
    free(chat);
    free(all);
    return n;
}

const int32_t *model_tokens(const struct model *model)
{
    return model->prompt;
}

bool model_decode(struct model *model, int from, int to)
{
    llama_token chunk[MODEL_BLOCK_TOKENS];
    llama_pos positions[MODEL_BLOCK_TOKENS];
    int32_t sequence_counts[MODEL_BLOCK_TOKENS];
    llama_seq_id main_sequence = SEQUENCE_MAIN;
    llama_seq_id *sequences[MODEL_BLOCK_TOKENS];
    int8_t wants_logits[MODEL_BLOCK_TOKENS];

    while (from < to) {
        int end = from - from % MODEL_BLOCK_TOKENS + MODEL_BLOCK_TOKENS;
        int n = (end < to ? end : to) - from;
        struct llama_batch batch = {.n_tokens = n,
                                    .token = chunk,
                                    .pos = positions,
                                    .n_seq_id = sequence_counts,
                                    .seq_id = sequences,
                                    .logits = wants_logits};

        for (int i = 0; i < n; i++) {
            chunk[i] = model->prompt[from + i];
            positions[i] = from + i;
            sequence_counts[i] = 1;
            sequences[i] = &main_sequence;
            wants_logits[i] = i == n - 1;
        }
        if (llama_decode(model->context, batch) != 0)
            return false;
        from += n;
    }
    return true;
}

/* Makes sequence 1 the block i of sequence 0. */
static void block_select(struct model *model, int i)
{
    llama_memory_seq_cp(model->memory, SEQUENCE_MAIN, SEQUENCE_BLOCK, i * MODEL_BLOCK_TOKENS,
                        (i + 1) * MODEL_BLOCK_TOKENS);
}

static void block_unselect(struct model *model)
{
    llama_memory_seq_rm(model->memory, SEQUENCE_BLOCK, -1, -1);
}

size_t model_block_bytes(struct model *model, int i)
{
    size_t bytes;

    block_select(model, i);
    bytes = llama_state_seq_get_size(model->context, SEQUENCE_BLOCK);
    block_unselect(model);
    return bytes;
}

size_t model_block_save(struct model *model, int i, uint8_t *buf, size_t bytes_max)
{
    size_t bytes;

    block_select(model, i);
    bytes = llama_state_seq_get_size(model->context, SEQUENCE_BLOCK);
    if (bytes <= bytes_max)
        bytes = llama_state_seq_get_data(model->context, buf, bytes_max, SEQUENCE_BLOCK);
    else
        bytes = 0;
    block_unselect(model);
    return bytes;
}

bool model_block_load(struct model *model, int i, const uint8_t *buf, size_t bytes)
{
    size_t used = llama_state_seq_set_data(model->context, buf, bytes, SEQUENCE_BLOCK);
    bool ok = used == bytes;

    if (ok)
        llama_memory_seq_cp(model->memory, SEQUENCE_BLOCK, SEQUENCE_MAIN, i * MODEL_BLOCK_TOKENS,
                            (i + 1) * MODEL_BLOCK_TOKENS);
    block_unselect(model);
    return ok;
}

static int best_token(const float *logits, int count)
{
    int best = 0;

    for (int i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

bool model_generate(struct model *model, int count, struct model_output *out_output)
{
    int vocab_count = llama_vocab_n_tokens(model->vocab);
    int tokens_max = (int)(sizeof(out_output->tokens) / sizeof(out_output->tokens[0]));
    llama_token token = model->prompt[model->prompt_count - 1];
    size_t text_bytes = 0;

    memset(out_output, 0, sizeof(*out_output));
    for (int i = 0; i < count && i < tokens_max; i++) {
        const float *logits;
        int piece;

        if (llama_decode(model->context, llama_batch_get_one(&token, 1)) != 0)
            return false;
        logits = llama_get_logits_ith(model->context, -1);
        token = best_token(logits, vocab_count);
        if (i == 0)
            out_output->first_s = model_now();
        out_output->tokens[out_output->count++] = token;
        out_output->logit_sum += (double)logits[token];
        piece = llama_token_to_piece(model->vocab, token, out_output->text + text_bytes,
                                     (int32_t)(sizeof(out_output->text) - 1 - text_bytes), 0, true);
        if (piece > 0)
            text_bytes += (size_t)piece;
    }
    return true;
}
