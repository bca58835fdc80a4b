/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The armed fault points. Armed before threads start; visits count atomically.
 */
#include "base/fault.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAULT_POINTS_MAX 16
#define FAULT_NAME_BYTES 64

enum fault_action {
    FAULT_KILL,    /* SIGKILL to pid                    */
    FAULT_STOP,    /* SIGSTOP to pid                    */
    FAULT_FAIL,    /* this visit fails                  */
    FAULT_FAIL_ON, /* this visit and all after it fail */
};

struct fault_point {
    char name[FAULT_NAME_BYTES]; /* the place                       */
    unsigned long visit;         /* which visit acts, from 1        */
    unsigned long visits;        /* visits so far; atomic           */
    enum fault_action action;    /* what happens                    */
    pid_t pid;                   /* whom a signal goes to           */
};

bool fault_armed;

static struct fault_point fault_points[FAULT_POINTS_MAX];
static unsigned fault_point_count;

static bool fault_action_parse(const char *text, struct fault_point *point)
{
    const char *value = strchr(text, '=');
    size_t n = value != NULL ? (size_t)(value - text) : strlen(text);
    char *end = NULL;
    long pid = getpid();

    if (value != NULL) {
        pid = strtol(value + 1, &end, 10);
        if (end == value + 1 || *end != '\0' || pid <= 1)
            return false;
    }
    point->pid = (pid_t)pid;
    if (n == 4 && strncmp(text, "kill", n) == 0)
        point->action = FAULT_KILL;
    else if (n == 4 && strncmp(text, "stop", n) == 0)
        point->action = FAULT_STOP;
    else if (value == NULL && strcmp(text, "fail") == 0)
        point->action = FAULT_FAIL;
    else if (value == NULL && strcmp(text, "fail+") == 0)
        point->action = FAULT_FAIL_ON;
    else
        return false;
    return true;
}

static icms_err fault_point_parse(char *text, struct err_why *why)
{
    struct fault_point *point = &fault_points[fault_point_count];
    char *rest = NULL;
    char *name = strtok_r(text, ":", &rest);
    char *visit = strtok_r(NULL, ":", &rest);
    char *action = strtok_r(NULL, ":", &rest);
    char *end = NULL;

    if (fault_point_count == FAULT_POINTS_MAX)
        return err_set(why, ICMS_LIMIT, "ICMS_FAULT: more than %d places", FAULT_POINTS_MAX);
    if (name == NULL || visit == NULL || action == NULL || strlen(name) >= FAULT_NAME_BYTES)
        return err_set(why, ICMS_CONFIG, "ICMS_FAULT: '%s' is not NAME:N:ACTION", text);
    memset(point, 0, sizeof(*point));
    memcpy(point->name, name, strlen(name) + 1);
    point->visit = strtoul(visit, &end, 10);
    if (*end != '\0' || point->visit == 0 || !fault_action_parse(action, point))
        return err_set(why, ICMS_CONFIG,
                       "ICMS_FAULT: %s:%s:%s: N is 1 or more, ACTION is kill, kill=PID, stop, "
                       "stop=PID, fail or fail+",
                       name, visit, action);
    fault_point_count++;
    return ICMS_OK;
}

icms_err fault_arm(const char *text, struct err_why *why)
{
    char copy[1024];
    char *rest = NULL;

    fault_point_count = 0;
    fault_armed = false;
    if (text == NULL || text[0] == '\0')
        return ICMS_OK;
    if (strlen(text) >= sizeof(copy))
        return err_set(why, ICMS_CONFIG, "ICMS_FAULT: longer than %zu bytes", sizeof(copy) - 1);
    memcpy(copy, text, strlen(text) + 1);
    for (char *one = strtok_r(copy, ",", &rest); one != NULL; one = strtok_r(NULL, ",", &rest)) {
        icms_err err = fault_point_parse(one, why);

        if (err != ICMS_OK)
            return err;
    }
    fault_armed = fault_point_count > 0;
    return ICMS_OK;
}

icms_err fault_init(struct err_why *why)
{
    return fault_arm(getenv("ICMS_FAULT"), why);
}

bool fault_visit(const char *name)
{
    bool fail = false;

    for (unsigned i = 0; i < fault_point_count; i++) {
        struct fault_point *point = &fault_points[i];
        unsigned long visit;

        if (strcmp(point->name, name) != 0)
            continue;
        visit = __atomic_add_fetch(&point->visits, 1, __ATOMIC_RELAXED);
        if (visit < point->visit || (visit > point->visit && point->action != FAULT_FAIL_ON))
            continue;
        if (point->action == FAULT_KILL)
            (void)kill(point->pid, SIGKILL);
        else if (point->action == FAULT_STOP)
            (void)kill(point->pid, SIGSTOP);
        else
            fail = true;
    }
    return fail;
}
