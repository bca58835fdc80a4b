/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demo/model.h: the language model of the demo's engine.
 *
 * The context has two sequences: MODEL_SEQUENCE is the conversation, MODEL_SPARE is lent to
 * prefix_cache.h. Block i is the KV of tokens [i * MODEL_BLOCK_TOKENS, (i+1) * ...).
 *
 * To get bit-identical results with and without loaded blocks, tokens are always decoded in the
 * same chunks: one block each, counted from the first token. One thread at a time.
 */
#ifndef DEMO_MODEL_H
#define DEMO_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_BLOCK_TOKENS 256  /* tokens in a block                              */
#define MODEL_TOKENS_MAX   8192 /* the context: SmolLM2 was trained for as many   */
#define MODEL_THREADS      2
#define MODEL_SEQUENCE     0
#define MODEL_SPARE        1

struct llama_context;
struct model;

/* What the model has generated. */
struct model_output {
    int32_t tokens[256]; /* the generated tokens                                     */
    int count;           /* how many                                                 */
    double logit_sum;    /* sum of their logits: tells more than the tokens alone    */
    double first_s;      /* when the first came, on the monotonic clock, in seconds  */
    char text[2048];     /* the same as text, cut where it does not fit              */
};

/* Seconds on the monotonic clock. */
double model_now(void);

/* Loads the model file and makes its context; returns NULL after a message on stderr. */
struct model *model_open(const char *path);
void model_close(struct model *model);

/* Its context, which stays its own. */
struct llama_context *model_context(struct model *model);

/* Makes the text a user's turn of at most tokens_max tokens, which it keeps; returns how many, or
 * -1. */
int model_prompt(struct model *model, const char *text, size_t bytes, int tokens_max);
const int32_t *model_tokens(const struct model *model);

/* Computes the KV of tokens [from, to) in chunks of a block; all tokens before must be there. */
bool model_decode(struct model *model, int from, int to);

/* Generates count tokens greedily after the prompt, whose last token it decodes first. */
bool model_generate(struct model *model, int count, struct model_output *out_output);

#endif
