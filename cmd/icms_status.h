/* SPDX-License-Identifier: Apache-2.0 */
/* cmd/icms_status.h: what the tables of agents and targets share. One thread. */
#ifndef CMD_ICMS_STATUS_H
#define CMD_ICMS_STATUS_H

#include "base/limits.h"
#include "icms_cli.h"

/* A number of bytes for people into text; returns text. */
#define STATUS_BYTES_TEXT 32
const char *status_bytes(double bytes, char text[STATUS_BYTES_TEXT]);

/* A whole number of a key, or "-", into text; returns text. */
#define STATUS_WHOLE_TEXT 24
const char *status_whole(const json_t *object, const char *key, char text[STATUS_WHOLE_TEXT]);

/* The value of a key, or "-"; 0. */
const char *status_text(const json_t *object, const char *key);
double status_number(const json_t *object, const char *key);

/* The last error of an enclosure, or of a link, with its age: it may be over. "-": none, or one
 * that stands at a link of the enclosure, which has several. */
#define STATUS_ERROR_BYTES (LIMIT_REASON_BYTES + 32)
const char *status_error(const json_t *enclosure, char text[STATUS_ERROR_BYTES]);

/* Name and readiness: the first line. */
void status_ready(const json_t *root);

/* icms pod status WHERE ...: what each of these daemons answers, {"where", "status"} or {"where",
 * "error"}; tables of it, with the agent that was asked first; the same for --json; whether all
 * answered, all drives are in service, and all agents are ready and have this epoch. */
json_t *pod_ask(char **where, int count);
void pod_asked_text(const json_t *asked, const json_t *agent);
json_t *pod_asked_json(const json_t *asked);
bool pod_asked_is_well(const json_t *asked, uint32_t epoch);

/* --target: asks the target that cli.target names, prints, returns the exit status. */
int status_target(const struct cli *cli);

#endif
