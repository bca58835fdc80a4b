/* SPDX-License-Identifier: Apache-2.0 */
/* cmd/icms_status.h: what the tables of agents and targets share. One thread. */
#ifndef CMD_ICMS_STATUS_H
#define CMD_ICMS_STATUS_H

#include "base/limits.h"
#include "conf/pod.h"
#include "icms_cli.h"

struct status_proof;

/* A number of bytes for people into text; returns text. */
#define STATUS_BYTES_TEXT 32
const char *status_bytes(double bytes, char text[STATUS_BYTES_TEXT]);

/* A whole number of a key, or "-", into text; returns text. */
#define STATUS_WHOLE_TEXT 24
const char *status_whole(const json_t *object, const char *key, char text[STATUS_WHOLE_TEXT]);

/* The first entry of a list in which a key has this text, "" where it is missing; NULL: there is
 * none. */
const json_t *status_entry(const json_t *object, const char *list, const char *key,
                           const char *text);

/* The value of a key, or "-"; 0. */
const char *status_text(const json_t *object, const char *key);
double status_number(const json_t *object, const char *key);

/* A number of seconds for people, as in "3 min", into text; returns text. "-": no number, or one
 * that no age has. */
#define STATUS_AGE_TEXT 32
const char *status_age(const json_t *seconds, char text[STATUS_AGE_TEXT]);

/* When a target was last read, by its status, as in "14 min ago" or "not since its start 2 h ago",
 * into text; returns how many seconds that is. "-" and -1: it does not tell. */
#define STATUS_READ_TEXT (STATUS_AGE_TEXT + 32)
double status_read(const json_t *status, char text[STATUS_READ_TEXT]);

/* The epoch that a host told a target, "6-7" where its controllers told several, into text; returns
 * text. "none": it has no pod map; "-": it told none. */
#define STATUS_EPOCH_TEXT 48
const char *status_epoch(const json_t *host, char text[STATUS_EPOCH_TEXT]);

/* The last error of an enclosure, or of a link, with its age: it may be over. "-": none, or one
 * that stands at a link of the enclosure, which has several. */
#define STATUS_ERROR_BYTES (LIMIT_REASON_BYTES + 32)
const char *status_error(const json_t *enclosure, char text[STATUS_ERROR_BYTES]);

/* Name and readiness: the first line. */
void status_ready(const json_t *root);

/* icms pod status: what the targets of the map's enclosures answer, and the daemons that the
 * operator names, inside curl_global_init(): {"where", "enclosure", "status"} or {"where",
 * "enclosure", "error"} of each; without "enclosure": it is none of the map; with "again": of one
 * that answered before. It takes timeout_ms at most. */
json_t *pod_ask(const struct conf_pod *map, char **where, size_t count,
                const struct status_proof *proof, uint32_t timeout_ms);

/* One that drains and was not read for so long is removed without a question. */
#define POD_UNREAD_S 600

/* When an enclosure was last read. */
struct pod_read {
    char text[ERR_WHY_BYTES_MAX]; /* in words, or why that is not known      */
    bool is_unread;               /* for POD_UNREAD_S                        */
};

/* Asks its target, which takes timeout_ms at most; inside curl_global_init(). */
void pod_ask_read(const struct conf_enclosure *enclosure, const struct status_proof *proof,
                  uint32_t timeout_ms, struct pod_read *out_read);

/* Whether who answers at its http is this enclosure: its NQN, name and UUID, as far as it tells
 * them; it takes timeout_ms at most; inside curl_global_init(). FOREIGN: it is somebody else; else
 * why it could not be asked; with a sentence. */
icms_err pod_ask_same(const struct conf_enclosure *enclosure, const struct status_proof *proof,
                      uint32_t timeout_ms, struct err_why *why) ICMS_MUST_CHECK;

/* Whether pod_ask() asks its target: the map says where, and agents use it. */
bool pod_is_asked(const struct conf_enclosure *enclosure);

/* The entry of an enclosure, one with a status if there is one; NULL: it was not asked. */
const json_t *pod_asked_of(const json_t *asked, const char *enclosure);

/* All agents: own, which was asked itself (NULL: none), those among asked, and those that targets
 * name; each once, with "nqn", "told" (to each target), "map" (to that of the file: current, older,
 * newer, none, other (of another pod), unknown) and, where it was asked itself, what it said, with
 * "links", those that are not up. */
json_t *pod_agents(const json_t *asked, const json_t *own, const struct conf_pod *map);

/* The highest epoch above that of the map which a target among asked uses, of the same pod; 0:
 * none. *out_name: of its enclosure, as long as asked. */
uint32_t pod_asked_later(const json_t *asked, const struct conf_pod *map, const char **out_name);

/* Tables of them; the entries from this one on for --json; whether all answered and are ready, all
 * drives are in service, and no daemon has another epoch or pod, or refuses a map. */
void pod_asked_text(const json_t *asked, const json_t *agents, const struct conf_pod *map);
json_t *pod_asked_json(const json_t *asked, size_t from);
bool pod_asked_is_well(const json_t *asked, const json_t *agents, const struct conf_pod *map);

/* --target: asks the target that cli.target names, prints, returns the exit status. */
int status_target(const struct cli *cli);

#endif
