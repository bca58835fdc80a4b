/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses texts, and compares what is said of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "conf/conf_rig.h"

struct conf_target target;
struct conf_agent agent;
struct err_why why;

icms_err target_parse(const char *text)
{
    why.text[0] = '\0';
    conf_target_fini(&target);
    return conf_target_parse(text, strlen(text), "t.yaml", &why, &target);
}

static icms_err agent_parse(const char *text)
{
    why.text[0] = '\0';
    conf_agent_fini(&agent);
    return conf_agent_parse(text, strlen(text), "a.yaml", &why, &agent);
}

void target_refused(const char *text, const char *place, const char *word)
{
    icms_err err = target_parse(text);

    if (err != ICMS_CONFIG || strncmp(why.text, place, strlen(place)) != 0 ||
        strstr(why.text, word) == NULL)
        fail_msg("%s\nanswered %s '%s', wanted '%s ... %s'", text, icms_err_name(err), why.text,
                 place, word);
}

void agent_refused(const char *text, const char *place, const char *word)
{
    icms_err err = agent_parse(text);

    if (err != ICMS_CONFIG || strncmp(why.text, place, strlen(place)) != 0 ||
        strstr(why.text, word) == NULL)
        fail_msg("%s\nanswered %s '%s', wanted '%s ... %s'", text, icms_err_name(err), why.text,
                 place, word);
}

void target_accepted(const char *text)
{
    if (target_parse(text) != ICMS_OK)
        fail_msg("%s\nrefused: %s", text, why.text);
}

void agent_accepted(const char *text)
{
    if (agent_parse(text) != ICMS_OK)
        fail_msg("%s\nrefused: %s", text, why.text);
}
