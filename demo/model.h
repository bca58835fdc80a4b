/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demo/model.h: the language model of the demo's engine, with its KV cache cut into blocks.
 *
 * llama.cpp keeps one opaque state for each sequence, which cannot be addressed by block. So the
 * context has two sequences over one unified cache: 0 is the conversation, 1 holds one block while
 * it is copied out or in. Block i is the KV of tokens [i * MODEL_BLOCK_TOKENS, (i+1) * ...).
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
#define MODEL_DIGEST_BYTES 32

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

/* A SHA-256 of the model file: KV is only good for exactly these weights. */
const uint8_t *model_digest(const struct model *model);

/* Makes the text a user's turn of at most tokens_max tokens, which it keeps; returns how many, or
 * -1. */
int model_prompt(struct model *model, const char *text, size_t bytes, int tokens_max);
const int32_t *model_tokens(const struct model *model);

/* Computes the KV of tokens [from, to) in chunks of a block; all tokens before must be there. */
bool model_decode(struct model *model, int from, int to);

/* Bytes that block i takes when saved; 0 when it cannot be saved. */
size_t model_block_bytes(struct model *model, int i);

/* Copies block i into buf; returns its bytes, or 0. */
size_t model_block_save(struct model *model, int i, uint8_t *buf, size_t bytes_max);

/* Puts a saved block in its place, so that its tokens need no decoding. */
bool model_block_load(struct model *model, int i, const uint8_t *buf, size_t bytes);

/* Generates count tokens greedily after the prompt, whose last token it decodes first. */
bool model_generate(struct model *model, int count, struct model_output *out_output);

#endif
