/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/conf_rig.h: files of a target and of an agent as texts, for tests. One thread.
 */
#ifndef CONF_CONF_RIG_H
#define CONF_CONF_RIG_H

#include "conf/conf_int.h"

/* The shortest files that are right. */
#define TARGET_MIN                                                                                 \
    "name: e0\n"                                                                                   \
    "drives:\n"                                                                                    \
    "  - path: /tmp/d0\n"                                                                          \
    "    size: 1GiB\n"                                                                             \
    "volumes:\n"                                                                                   \
    "  - name: kv\n"

#define AGENT_MIN                                                                                  \
    "enclosures:\n"                                                                                \
    "  - name: e0\n"                                                                               \
    "    address: 127.0.0.1:4420\n"                                                                \
    "volumes:\n"                                                                                   \
    "  - name: kv\n"

/* What the last call of these made, and why it did not. */
extern struct conf_target target;
extern struct conf_agent agent;
extern struct err_why why;

icms_err target_parse(const char *text);

/* The file is refused, and the sentence begins with the place and has the word. */
void target_refused(const char *text, const char *place, const char *word);
void agent_refused(const char *text, const char *place, const char *word);

void target_accepted(const char *text);
void agent_accepted(const char *text);

#endif
