/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_prestage.h: what POST /v1/prestage of icms-agent takes: one JSON object.
 *
 *   volume       name of a volume of the agent
 *   keys         array of keys in hex, 2 to 32 digits each, as in NVMe commands and `icms trace`,
 *                or 72, of run and digest
 *   names        array of names, as icms_key_from_name and `icms put --name` take them
 *   deadline_ms  from now, 1 to 600000; default 1000
 *   priority     0 to 3; default 0
 *   tier         "dram" or "local"; default "dram"
 *   pin_seconds  how long the blocks stay, up to ICMS_PIN_SECONDS_MAX; default 0: no pins
 *
 *   chain, tokens, hashes  instead of keys and names: see agent_chain.h
 *   model        instead of volume and chain: one of the configuration's models
 *
 * There is at least one of keys and names, or chain, or model. Other members are refused: a typing
 * error is not a default.
 */
#ifndef CMD_AGENT_PRESTAGE_H
#define CMD_AGENT_PRESTAGE_H

#include "agent/agent.h"
#include "conf/conf.h"
#include "ctl/ctl.h"

/* Reads a body; volumes: bit i: its sender may use volume i. On ICMS_OK out_hints->keys is malloc's
 * and the caller's, and volume points into out_volume. INVALID, LIMIT, UNSUPPORTED or NO_MEMORY
 * with a sentence. */
icms_err agent_prestage_read(const char *body, size_t bytes, const struct conf_agent *conf,
                             uint64_t volumes, struct err_why *why,
                             char out_volume[LIMIT_NAME_BYTES],
                             struct agent_hints *out_hints) ICMS_MUST_CHECK;

/* For struct ctl_http_opts; arg is a struct agent_page. Writes {"hints": n} with status 202, or
 * {"error": name, "why": sentence} with another one. */
unsigned agent_prestage_post(void *arg, const char *body, size_t bytes, struct ctl_page *page);

#endif
