/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_tokens.h: token ids of a prompt in a body of JSON, as base64 (RFC 4648, with its
 * padding) of their int32, little-endian: a million of them are 5.6 MB. They are cut out before
 * anything is parsed, so the JSON that is left stays small, and nothing is made of each id.
 *
 * Pure; ctl's HTTP thread.
 */
#ifndef CMD_AGENT_TOKENS_H
#define CMD_AGENT_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* The text of a member "tokens" that is a string, where it begins and ends in the body. False:
 * there is none. It may be a member of something inside: then the object that it is cut from says
 * so. */
bool agent_tokens_find(const char *body, size_t bytes, size_t *out_begin, size_t *out_end);

/* Reads it; *out_ids is malloc's and the caller's, 4 bytes an id. INVALID, NO_MEMORY with a
 * sentence. */
icms_err agent_tokens_read(const char *text, size_t length, struct err_why *why, uint8_t **out_ids,
                           size_t *out_count) ICMS_MUST_CHECK;

#endif
