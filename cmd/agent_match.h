/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_match.h: POST /v1/match of icms-agent: how much of a prefix this server has itself.
 *
 *   volume       name of a volume of the agent
 *   keys, names  as of POST /v1/prestage, first to last; or chain with tokens or hashes
 *   model        instead of volume and chain
 *
 * The answer is {"of": n, "dram": n, "local": n}: the keys that were asked for; of the first ones
 * those that lie in the agent's memory; those that lie there or on its own drive. With model or
 * chain it has "block_tokens", too: the tokens that each stands for. What enclosures
 * have is not asked: any agent of the pod would say the same.
 */
#ifndef CMD_AGENT_MATCH_H
#define CMD_AGENT_MATCH_H

#include "base/limits.h"
#include "base/types.h"
#include "conf/conf.h"
#include "ctl/ctl.h"

/* Reads a body; volumes: bit i: its sender may use volume i. On ICMS_OK *out_keys is malloc's and
 * the caller's; *out_block_tokens 0: its keys are not of a chain. INVALID, LIMIT, UNSUPPORTED or
 * NO_MEMORY with a sentence. */
icms_err agent_match_read(const char *body, size_t bytes, const struct conf_agent *conf,
                          uint64_t volumes, struct err_why *why, char out_volume[LIMIT_NAME_BYTES],
                          struct key **out_keys, size_t *out_count,
                          uint32_t *out_block_tokens) ICMS_MUST_CHECK;

/* For struct ctl_post; arg is a struct agent_page. Status 200, or {"error": name, "why": sentence}
 * with another one; 503 when the agent does not answer within a second, and for those that come
 * right after that, within 50 ms. */
unsigned agent_match_post(void *arg, const char *body, size_t bytes, struct ctl_page *page);

#endif
