/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demo/model.c: llama.cpp behind model.h.
 *
 * Called by demo/engine.c from its only thread; llama.cpp uses MODEL_THREADS of its own inside
 * a call.
 */
#include "model.h"

#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct model {
    struct llama_model *weights;          /* as loaded from the file                 */
    struct llama_context *context;        /* KV cache and buffers                    */
    const struct llama_vocab *vocab;      /* belongs to weights                      */
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

struct model *model_open(const char *path)
{
    struct llama_model_params model_params = llama_model_default_params();
    struct llama_context_params params = llama_context_default_params();
    struct model *model = calloc(1, sizeof(*model));

    if (model == NULL)
        return NULL;
    llama_log_set(log_errors, NULL);
    llama_backend_init();
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

struct llama_context *model_context(struct model *model)
{
    return model->context;
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
    llama_seq_id main_sequence = MODEL_SEQUENCE;
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
