/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The armed fault points. One thread arms; any thread visits, also while a test arms and disarms: a
 * set is written while nobody knows it and then published whole.
 */
#include "base/fault.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAULT_POINTS_MAX 16
#define FAULT_NAME_BYTES 64

/* A set is written again only after this many armings: whoever visits it has left it by then. */
#define FAULT_SETS 8

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

struct fault_set {
    struct fault_point points[FAULT_POINTS_MAX];
    unsigned count; /* of them that are armed */
};

bool fault_armed;

static struct fault_set fault_sets[FAULT_SETS];
static unsigned fault_set_next;           /* the one to be written next; the arming thread's */
static struct fault_set *fault_set_armed; /* atomic; NULL: none                              */

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

static icms_err fault_point_parse(struct fault_set *set, char *text, struct err_why *why)
{
    struct fault_point *point = &set->points[set->count];
    char *rest = NULL;
    char *name = strtok_r(text, ":", &rest);
    char *visit = strtok_r(NULL, ":", &rest);
    char *action = strtok_r(NULL, ":", &rest);
    char *end = NULL;

    if (set->count == FAULT_POINTS_MAX)
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
    set->count++;
    return ICMS_OK;
}

icms_err fault_arm(const char *text, struct err_why *why)
{
    struct fault_set *set = &fault_sets[fault_set_next];
    char copy[1024];
    char *rest = NULL;

    __atomic_store_n(&fault_armed, false, __ATOMIC_RELAXED);
    __atomic_store_n(&fault_set_armed, NULL, __ATOMIC_RELEASE);
    if (text == NULL || text[0] == '\0')
        return ICMS_OK;
    if (strlen(text) >= sizeof(copy))
        return err_set(why, ICMS_CONFIG, "ICMS_FAULT: longer than %zu bytes", sizeof(copy) - 1);
    memcpy(copy, text, strlen(text) + 1);
    set->count = 0;
    for (char *one = strtok_r(copy, ",", &rest); one != NULL; one = strtok_r(NULL, ",", &rest)) {
        icms_err err = fault_point_parse(set, one, why);

        if (err != ICMS_OK)
            return err;
    }
    fault_set_next = (fault_set_next + 1) % FAULT_SETS;
    __atomic_store_n(&fault_set_armed, set, __ATOMIC_RELEASE);
    __atomic_store_n(&fault_armed, set->count > 0, __ATOMIC_RELAXED);
    return ICMS_OK;
}

icms_err fault_init(struct err_why *why)
{
    return fault_arm(getenv("ICMS_FAULT"), why);
}

bool fault_visit(const char *name)
{
    struct fault_set *set = __atomic_load_n(&fault_set_armed, __ATOMIC_ACQUIRE);
    bool fail = false;

    for (unsigned i = 0; set != NULL && i < set->count; i++) {
        struct fault_point *point = &set->points[i];
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
