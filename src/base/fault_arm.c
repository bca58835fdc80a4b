/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The armed fault points. One thread arms; any thread visits, also while a test arms and disarms: a
 * set is written while nobody knows it and then published whole.
 *
 * A library of its own, which only tests link: what is installed cannot arm anything.
 */
#include "base/fault_arm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAULT_POINTS_MAX 16
#define FAULT_NAME_BYTES 64
#define FAULT_PATH_BYTES 256

/* Of a process, or of microseconds. */
#define FAULT_NUMBER_MAX 1000000000L

/* A set is written again only after this many armings: whoever visits it has left it by then. */
#define FAULT_SETS 8

enum fault_action {
    FAULT_KILL,    /* SIGKILL to pid                    */
    FAULT_STOP,    /* SIGSTOP to pid                    */
    FAULT_FAIL,    /* this visit fails                  */
    FAULT_FAIL_ON, /* this visit and all after it fail */
    FAULT_SLOW_ON, /* they take longer                 */
};

struct fault_point {
    char name[FAULT_NAME_BYTES]; /* the place                       */
    char path[FAULT_PATH_BYTES]; /* visits act while it is there; "": one visit acts */
    unsigned long visit;         /* which visit acts, from 1        */
    unsigned long visits;        /* visits so far; atomic           */
    enum fault_action action;    /* what happens                    */
    pid_t pid;                   /* whom a signal goes to           */
    uint32_t slow_us;            /* how much longer                 */
};

struct fault_set {
    struct fault_point points[FAULT_POINTS_MAX];
    unsigned count; /* of them that are armed */
};

static struct fault_set fault_sets[FAULT_SETS];
static unsigned fault_set_next;           /* the one to be written next; the arming thread's */
static struct fault_set *fault_set_armed; /* atomic; NULL: none                              */

/* Whether the action acts in this visit. */
static bool fault_is_due(const struct fault_point *point, unsigned long visit)
{
    bool on = point->action == FAULT_FAIL_ON || point->action == FAULT_SLOW_ON;

    if (point->path[0] != '\0')
        return access(point->path, F_OK) == 0;
    return visit == point->visit || (visit > point->visit && on);
}

static bool fault_visit(const char *name, uint32_t *out_slow_us)
{
    struct fault_set *set = __atomic_load_n(&fault_set_armed, __ATOMIC_ACQUIRE);
    bool fail = false;

    for (unsigned i = 0; set != NULL && i < set->count; i++) {
        struct fault_point *point = &set->points[i];

        if (strcmp(point->name, name) != 0 ||
            !fault_is_due(point, __atomic_add_fetch(&point->visits, 1, __ATOMIC_RELAXED)))
            continue;
        if (point->action == FAULT_KILL)
            (void)kill(point->pid, SIGKILL);
        else if (point->action == FAULT_STOP)
            (void)kill(point->pid, SIGSTOP);
        else if (point->action == FAULT_SLOW_ON && out_slow_us != NULL)
            *out_slow_us = point->slow_us;
        else
            fail = point->action != FAULT_SLOW_ON;
    }
    return fail;
}

/* A number behind '='; false when it is none from 2 to most. */
static bool fault_number_parse(const char *text, long most, long *out_number)
{
    char *end = NULL;

    *out_number = strtol(text, &end, 10);
    return end != text && *end == '\0' && *out_number > 1 && *out_number <= most;
}

static bool fault_action_parse(const char *text, struct fault_point *point)
{
    const char *value = strchr(text, '=');
    size_t n = value != NULL ? (size_t)(value - text) : strlen(text);
    long number = getpid();

    if (value != NULL && !fault_number_parse(value + 1, FAULT_NUMBER_MAX, &number))
        return false;
    point->pid = (pid_t)number;
    if (n == 4 && strncmp(text, "kill", n) == 0)
        point->action = FAULT_KILL;
    else if (n == 4 && strncmp(text, "stop", n) == 0)
        point->action = FAULT_STOP;
    else if (value == NULL && strcmp(text, "fail") == 0)
        point->action = FAULT_FAIL;
    else if (value == NULL && strcmp(text, "fail+") == 0)
        point->action = FAULT_FAIL_ON;
    else if (value != NULL && n == 4 && strncmp(text, "slow", n) == 0)
        point->action = FAULT_SLOW_ON;
    else
        return false;
    point->slow_us = point->action == FAULT_SLOW_ON ? (uint32_t)number : 0;
    return true;
}

/* Which visits act: a number, or the path of a file. */
static bool fault_visit_parse(const char *text, struct fault_point *point)
{
    char *end = NULL;

    if (text[0] == '/') {
        (void)snprintf(point->path, sizeof(point->path), "%s", text);
        return strlen(text) < sizeof(point->path);
    }
    point->visit = strtoul(text, &end, 10);
    return *end == '\0' && point->visit != 0;
}

static icms_err fault_point_parse(struct fault_set *set, char *text, struct err_why *why)
{
    struct fault_point *point = &set->points[set->count];
    char *rest = NULL;
    char *name = strtok_r(text, ":", &rest);
    char *visit = strtok_r(NULL, ":", &rest);
    char *action = strtok_r(NULL, ":", &rest);

    if (set->count == FAULT_POINTS_MAX)
        return err_set(why, ICMS_LIMIT, "ICMS_FAULT: more than %d places", FAULT_POINTS_MAX);
    if (name == NULL || visit == NULL || action == NULL || strlen(name) >= FAULT_NAME_BYTES)
        return err_set(why, ICMS_CONFIG, "ICMS_FAULT: '%s' is not NAME:N:ACTION", text);
    memset(point, 0, sizeof(*point));
    memcpy(point->name, name, strlen(name) + 1);
    if (!fault_visit_parse(visit, point) || !fault_action_parse(action, point))
        return err_set(why, ICMS_CONFIG,
                       "ICMS_FAULT: %s:%s:%s: N is 1 or more, or a path from the root, ACTION is "
                       "kill, kill=PID, stop, stop=PID, fail, fail+ or slow=US",
                       name, visit, action);
    set->count++;
    return ICMS_OK;
}

icms_err fault_arm(const char *text, struct err_why *why)
{
    struct fault_set *set = &fault_sets[fault_set_next];
    char copy[1024];
    char *rest = NULL;

    __atomic_store_n(&fault_visitor, NULL, __ATOMIC_RELAXED);
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
    if (set->count > 0)
        __atomic_store_n(&fault_visitor, fault_visit, __ATOMIC_RELAXED);
    return ICMS_OK;
}

icms_err fault_arm_environment(struct err_why *why)
{
    return fault_arm(secure_getenv("ICMS_FAULT"), why);
}
