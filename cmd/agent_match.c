/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_match.c: see agent_match.h. Called by ctl's HTTP thread, which waits for the agent's
 * reactors for MATCH_WAIT_MS at most: a question and its answer belong to whoever of the two ends
 * last. One that waited for that long says that a reactor stands still: those after it wait for
 * MATCH_LATE_MS, until one is answered or MATCH_LATE_NS are over, so that other pages are not kept
 * waiting by each of them.
 */
#include "agent_match.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <time.h>

#include "agent_body.h"
#include "agent_page.h"
#include "base/check.h"

#define MATCH_WAIT_MS 1000
#define MATCH_LATE_MS 50
#define MATCH_LATE_NS ((uint64_t)5 * 1000 * 1000 * 1000)

#define STATUS_OK 200 /* of HTTP */

struct match_question {
    _Atomic uint32_t holders; /* this thread, and the agent until it has answered */
    sem_t answered;
    bool is_whole;
    struct agent_looked looked;
};

static void question_leave(struct match_question *question)
{
    if (atomic_fetch_sub(&question->holders, 1) != 1)
        return;
    (void)sem_destroy(&question->answered);
    free(question);
}

static void question_answered(void *arg, const struct agent_looked *looked)
{
    struct match_question *question = arg;

    question->is_whole = looked != NULL;
    if (looked != NULL)
        question->looked = *looked;
    (void)sem_post(&question->answered);
    question_leave(question);
}

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* True: the answer came in time. */
static bool question_wait(struct match_question *question, struct agent_page *page)
{
    uint64_t begin_ns = now_ns();
    bool is_late = page->match_late_ns != 0 && begin_ns - page->match_late_ns < MATCH_LATE_NS;
    uint64_t until_ns = begin_ns + (uint64_t)(is_late ? MATCH_LATE_MS : MATCH_WAIT_MS) * 1000000;
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                                   .tv_nsec = (long)(until_ns % 1000000000)};
    int result;

    do
        result = sem_clockwait(&question->answered, CLOCK_MONOTONIC, &until);
    while (result != 0 && errno == EINTR);
    if (result == 0)
        page->match_late_ns = 0;
    else if (!is_late)
        page->match_late_ns = now_ns();
    return result == 0 && question->is_whole;
}

static icms_err match_ask(struct agent_page *page, const char *volume, const struct key *keys,
                          size_t count, struct err_why *why, struct agent_looked *out_looked)
{
    struct match_question *question = calloc(1, sizeof(*question));
    icms_err err;

    if (question == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    check(sem_init(&question->answered, 0, 0) == 0);
    question->holders = 2;
    err = agent_look_start(page->agent, agent_body_user(page), volume, keys, count, why,
                           question_answered, question);
    if (err != ICMS_OK)
        question_leave(question); /* for the agent */
    else if (question_wait(question, page))
        *out_looked = question->looked;
    else
        err = err_set(why, ICMS_DEADLINE, "the agent did not answer in time; try again later");
    question_leave(question);
    return err;
}

struct match_answer {
    size_t count;
    uint32_t block_tokens; /* 0: not known */
    struct agent_looked looked;
};

static void answer_write(void *arg, struct json *json)
{
    const struct match_answer *answer = arg;

    json_put_object(json, NULL);
    json_put_uint(json, "of", answer->count);
    json_put_uint(json, "dram", answer->looked.dram);
    json_put_uint(json, "local", answer->looked.local);
    if (answer->block_tokens != 0)
        json_put_uint(json, "block_tokens", answer->block_tokens);
    json_put_end(json);
}

icms_err agent_match_read(const char *body, size_t bytes, const struct conf_agent *conf,
                          uint64_t volumes, struct err_why *why, char out_volume[LIMIT_NAME_BYTES],
                          struct key **out_keys, size_t *out_count, uint32_t *out_block_tokens)
{
    static const char *const members[] = {"volume", "keys",   "names",  "model",
                                          "chain",  "tokens", "hashes", NULL};
    struct agent_body read;
    icms_err err = agent_body_read(body, bytes, conf, volumes, members, why, &read);

    if (err == ICMS_OK)
        err = agent_body_volume(read.root, why, out_volume);
    if (err == ICMS_OK)
        err = agent_body_keys(&read, why, out_keys, out_count);
    if (err == ICMS_OK)
        *out_block_tokens = read.block_tokens;
    agent_body_end(&read);
    return err;
}

unsigned agent_match_post(void *arg, const char *body, size_t bytes, struct ctl_page *page)
{
    struct agent_page *own = arg;
    struct match_answer answer = {0};
    struct err_why why = {""};
    char volume[LIMIT_NAME_BYTES];
    struct key *keys = NULL;
    icms_err err = agent_match_read(body, bytes, own->conf, agent_body_volumes(own), &why, volume,
                                    &keys, &answer.count, &answer.block_tokens);

    if (err == ICMS_OK)
        err = match_ask(own, volume, keys, answer.count, &why, &answer.looked);
    free(keys);
    if (err != ICMS_OK)
        return agent_body_refuse(page, err, &why);
    ctl_json(page, answer_write, &answer);
    return STATUS_OK;
}
