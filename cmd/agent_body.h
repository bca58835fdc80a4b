/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_body.h: what the bodies of POST to icms-agent have in common: JSON objects that name a
 * volume and keys. A member that is not known is refused: a typing error is not a default.
 */
#ifndef CMD_AGENT_BODY_H
#define CMD_AGENT_BODY_H

#include <jansson.h>

#include "agent_page.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/types.h"
#include "ctl/ctl.h"

/* Keys, and hashes of tokens, that a body may have: each is made on the thread of HTTP. A million
 * token ids in blocks of 16 are half of that. */
#define AGENT_BODY_KEYS 131072

/* A body that was read. */
struct agent_body {
    json_t *root; /* an object                                               */
    uint8_t *ids; /* token ids that came as base64, 4 bytes each; NULL: none */
    size_t id_count;
    const struct conf_model *model; /* whose chain it has; NULL: its own, or none    */
    uint32_t block_tokens;          /* of its chain, from agent_body_keys on; 0: it has none  */
};

/* Reads a body as a JSON object; agent_body_end, whatever this returns. members: those that there
 * may be, as a sentence lists them; the last one is NULL. "model", a name of conf's models, becomes
 * the volume and the chain of the model; one of a volume whose bit volumes lacks is as unknown as
 * any. INVALID, LIMIT with a sentence. */
icms_err agent_body_read(const char *text, size_t bytes, const struct conf_agent *conf,
                         uint64_t volumes, const char *const *members, struct err_why *why,
                         struct agent_body *out_body) ICMS_MUST_CHECK;
void agent_body_end(struct agent_body *body);

/* "volume": a name. */
icms_err agent_body_volume(const json_t *root, struct err_why *why,
                           char out_volume[LIMIT_NAME_BYTES]) ICMS_MUST_CHECK;

/* "keys" and "names", one of them at least, or "chain" with "tokens" or "hashes" (agent_chain.h);
 * *out_keys is malloc's and the caller's. */
icms_err agent_body_keys(struct agent_body *body, struct err_why *why, struct key **out_keys,
                         size_t *out_count) ICMS_MUST_CHECK;

/* Reads 2 digits of hex a byte; the number of bytes, 0: it is no hex, or too long. */
size_t agent_body_hex(const json_t *value, uint8_t *bytes, size_t room);

/* A whole number between two bounds, or what it is without one. */
icms_err agent_body_number(const json_t *root, const char *name, uint32_t least, uint32_t most,
                           struct err_why *why, uint32_t *io_value) ICMS_MUST_CHECK;

/* As whom a body's sender acts: NULL, the owner, where the port asked for a proof. */
const struct agent_user *agent_body_user(const struct agent_page *page);

/* Bit i: he may use volume i. */
uint64_t agent_body_volumes(const struct agent_page *page);

/* Writes {"error": name, "why": sentence}; returns the status of HTTP. */
unsigned agent_body_refuse(struct ctl_page *page, icms_err err, const struct err_why *why);

#endif
