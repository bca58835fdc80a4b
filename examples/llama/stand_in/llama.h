/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stand_in/llama.h: of llama.cpp what prefix_cache.c calls, for its test.
 */
#ifndef STAND_IN_LLAMA_H
#define STAND_IN_LLAMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LLAMA_STATE_SEQ_VERSION 1

typedef int32_t llama_token, llama_pos, llama_seq_id;
typedef struct stand_in_memory *llama_memory_t;
struct llama_context;
struct llama_model;

struct llama_batch {
    int32_t n_tokens;
    llama_token *token;
    llama_pos *pos;
    int32_t *n_seq_id;
    llama_seq_id **seq_id;
    int8_t *logits;
};

struct llama_batch llama_batch_init(int32_t tokens, int32_t embeddings, int32_t sequences);
void llama_batch_free(struct llama_batch batch);
int32_t llama_decode(struct llama_context *context, struct llama_batch batch);
llama_memory_t llama_get_memory(const struct llama_context *context);
const struct llama_model *llama_get_model(const struct llama_context *context);
bool llama_model_is_hybrid(const struct llama_model *model);
bool llama_model_is_recurrent(const struct llama_model *model);
int32_t llama_model_n_swa(const struct llama_model *model);
uint32_t llama_n_batch(const struct llama_context *context);
uint32_t llama_n_seq_max(const struct llama_context *context);
void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to, llama_pos begin,
                         llama_pos end);
bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id sequence, llama_pos begin,
                         llama_pos end);
llama_pos llama_memory_seq_pos_min(llama_memory_t memory, llama_seq_id sequence);
llama_pos llama_memory_seq_pos_max(llama_memory_t memory, llama_seq_id sequence);
size_t llama_state_seq_get_size(struct llama_context *context, llama_seq_id sequence);
size_t llama_state_seq_get_data(struct llama_context *context, uint8_t *out, size_t bytes,
                                llama_seq_id sequence);
size_t llama_state_seq_set_data(struct llama_context *context, const uint8_t *data, size_t bytes,
                                llama_seq_id sequence);

#endif
