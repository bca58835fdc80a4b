/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_pod_add.c: icms pod add: whether the enclosure that is added is where the map will say.
 *
 * Its target is asked for its status where --http names it, and each of its addresses is connected
 * to as a host that has no secret and sends no I/O: Connect names the NQN, and a target refuses
 * another one. One that wants a host to authenticate has answered for its NQN already. Nothing of
 * what comes is printed unless it is text of this program, or cleaned (status_place.h).
 *
 * looks_begin resolves and opens -> look_up or look_down, on the loop's thread -> look_closed;
 * pod_add_look waits for all of them, ends the loop, and only then reads what they found.
 */
#include <curl/curl.h>
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "icms_pod.h"
#include "icms_status.h"
#include "inprocess/resolve.h"
#include "nvmf/host.h"
#include "status_place.h"

#define LOOK_PAUSE_MS 10
#define LOOK_CLOSE_MS 1000 /* what an association may take to end behind its deadline */

/* By which the targets that are asked know this command. */
static const char look_host_nqn[] = "nqn.2026-01.io.icms:icms-pod-add";
static const struct uuid look_host_id = {{'i', 'c', 'm', 's', 'p', 'o', 'd', 'a', 'd', 'd'}};

/* One address, numeric or a name. */
struct look {
    const char *address;
    struct resolve *resolve; /* asked for, and not answered; NULL: it is             */
    struct resolve_answer answer;
    bool is_found;      /* the enclosure is there; of a name, at one of its addresses */
    struct err_why why; /* else: what happened                                        */
};

/* One association. */
struct look_try {
    struct looks *looks;
    struct look *look;
    struct nvmf_ctrl *ctrl;
};

struct looks {
    uint64_t until_ns; /* of the monotonic clock                               */
    struct loop *loop;
    sem_t closed; /* once for each try                                         */
    uint32_t count;
    struct look looks[LIMIT_LINKS];
    uint32_t try_count;
    struct look_try tries[LIMIT_LINKS * RESOLVE_ADDRS];
};

/* ---- what comes, on the loop ---------------------------------------------------------------- */

static void look_up(struct nvmf_ctrl *ctrl)
{
    struct look_try *try = nvmf_ctrl_owner(ctrl);

    try->look->is_found = true;
    nvmf_ctrl_close(ctrl, ICMS_CANCELED);
}

static void look_changed(struct nvmf_ctrl *ctrl)
{
    (void)ctrl;
}

/* AUTH: it has the subsystem, and does not let this host in. */
static void look_down(struct nvmf_ctrl *ctrl, icms_err err, const char *why)
{
    struct look *look = ((struct look_try *)nvmf_ctrl_owner(ctrl))->look;

    if (err == ICMS_AUTH)
        look->is_found = true;
    else
        (void)err_set(&look->why, err, "%.400s", why);
}

static void look_closed(struct nvmf_ctrl *ctrl)
{
    (void)sem_post(&((struct look_try *)nvmf_ctrl_owner(ctrl))->looks->closed);
}

static const struct nvmf_ctrl_ops look_ops = {
    .up = look_up, .changed = look_changed, .down = look_down, .closed = look_closed};

/* ---- asking --------------------------------------------------------------------------------- */

static void looks_resolve(struct looks *looks)
{
    const struct timespec pause = {.tv_nsec = LOOK_PAUSE_MS * 1000000L};
    bool is_over = false;

    for (uint32_t i = 0; i < looks->count; i++) {
        struct look *look = &looks->looks[i];

        (void)err_set(&look->why, ICMS_DEADLINE, "%s: no answer", look->address);
        if (loop_addr_parse(look->address, &look->answer.why, &look->answer.addrs[0]) == ICMS_OK)
            look->answer.count = 1;
        else
            (void)!resolve_start(look->address, &look->why, &look->resolve);
    }
    while (!is_over) {
        is_over = true;
        for (uint32_t i = 0; i < looks->count; i++) {
            struct look *look = &looks->looks[i];

            if (look->resolve == NULL)
                continue;
            is_over = false;
            if (!resolve_poll(look->resolve, &look->answer))
                continue;
            resolve_free(&look->resolve);
            if (look->answer.count == 0)
                look->why = look->answer.why;
        }
        if (!is_over && loop_env_now_ns(loop_env_uring()) >= looks->until_ns)
            break;
        if (!is_over)
            (void)nanosleep(&pause, NULL);
    }
}

static icms_err looks_begin(struct looks *looks, const struct conf_enclosure *enclosure,
                            struct err_why *why)
{
    struct loop_opts loop_opts;
    struct nvmf_ctrl_opts opts;
    icms_err err;

    loop_opts_init(&loop_opts);
    err = loop_new(loop_env_uring(), &loop_opts, why, &looks->loop);
    nvmf_ctrl_opts_init(&opts);
    opts.subnqn = enclosure->nqn;
    opts.hostnqn = look_host_nqn;
    opts.host_id = look_host_id;
    opts.queue_entries = 2;
    opts.silence_ns = 0; /* the deadline is enough */
    opts.ops = &look_ops;
    for (uint32_t i = 0; i < looks->count && err == ICMS_OK; i++)
        for (uint32_t k = 0; k < looks->looks[i].answer.count && err == ICMS_OK; k++) {
            struct look_try *try = &looks->tries[looks->try_count];

            *try = (struct look_try){.looks = looks, .look = &looks->looks[i]};
            opts.addr = looks->looks[i].answer.addrs[k];
            opts.owner = try;
            err = nvmf_ctrl_new(looks->loop, &opts, why, &try->ctrl);
            if (err != ICMS_OK)
                return err;
            looks->try_count++;
            nvmf_ctrl_open(try->ctrl, looks->until_ns);
        }
    return err == ICMS_OK ? loop_start(looks->loop, why) : err;
}

static void looks_wait(struct looks *looks)
{
    uint64_t until_ns = looks->until_ns + LOOK_CLOSE_MS * (uint64_t)1000000;
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                                   .tv_nsec = (long)(until_ns % 1000000000)};

    for (uint32_t left = looks->try_count; left > 0;) {
        int result = sem_clockwait(&looks->closed, CLOCK_MONOTONIC, &until);

        if (result == 0)
            left--;
        else if (errno != EINTR)
            break;
    }
    loop_stop(looks->loop);
    loop_join(looks->loop);
}

static void looks_free(struct looks *looks)
{
    loop_free(&looks->loop);
    for (uint32_t i = 0; i < looks->try_count; i++)
        nvmf_ctrl_free(&looks->tries[i].ctrl);
    for (uint32_t i = 0; i < looks->count; i++)
        resolve_free(&looks->looks[i].resolve);
    (void)sem_destroy(&looks->closed);
    free(looks);
}

/* Whether its target is at each of its addresses. */
static icms_err look_addresses(const struct conf_enclosure *enclosure, uint32_t timeout_ms,
                               struct err_why *why)
{
    struct looks *looks = calloc(1, sizeof(*looks));
    icms_err err;

    if (looks == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    check(sem_init(&looks->closed, 0, 0) == 0);
    looks->until_ns = loop_env_now_ns(loop_env_uring()) + timeout_ms * (uint64_t)1000000;
    looks->count = enclosure->address_count;
    for (uint32_t i = 0; i < looks->count; i++)
        looks->looks[i].address = enclosure->address[i];
    looks_resolve(looks);
    err = looks_begin(looks, enclosure, why);
    if (err == ICMS_OK)
        looks_wait(looks);
    for (uint32_t i = 0; i < looks->count && err == ICMS_OK; i++)
        if (!looks->looks[i].is_found)
            err = err_set(why, ICMS_CONFIG, "%.400s", looks->looks[i].why.text);
    looks_free(looks);
    return err;
}

/* Its status, where --http says. */
static icms_err look_http(const struct cli *cli, const struct conf_enclosure *enclosure,
                          uint32_t timeout_ms, struct err_why *why)
{
    struct status_proof proof = {.token = NULL};
    icms_err err = status_proof_read(&proof, cli->token, cli->ca, cli->cert, cli->cert_key, why);

    if (err == ICMS_OK && curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        err = err_set(why, ICMS_NO_MEMORY, "cannot ask over HTTP: out of memory");
    else if (err == ICMS_OK) {
        err = pod_ask_same(enclosure, &proof, timeout_ms, why);
        curl_global_cleanup();
    }
    status_proof_fini(&proof);
    return err;
}

icms_err pod_add_look(const struct pod *pod, const char *name, struct err_why *why)
{
    const struct cli *cli = pod->cli;
    const struct conf_enclosure *enclosure = NULL;
    uint32_t timeout_ms = cli->deadline_ms != 0 ? cli->deadline_ms : POD_STATUS_MS;
    struct err_why cause = {""};
    icms_err err = ICMS_OK;

    for (uint32_t i = 0; i < pod->after->enclosure_count; i++)
        if (strcmp(pod->after->enclosures[i].name, name) == 0)
            enclosure = &pod->after->enclosures[i];
    check(enclosure != NULL);
    if (enclosure->http[0] != '\0')
        err = look_http(cli, enclosure, timeout_ms, &cause);
    if (err == ICMS_FOREIGN)
        return err_set(why, ICMS_CONFIG,
                       "%.350s; nothing was changed; correct --http, the name, --uuid or --nqn",
                       cause.text);
    if (cli->yes)
        return ICMS_OK;
    if (err == ICMS_OK)
        err = look_addresses(enclosure, timeout_ms, &cause);
    if (err == ICMS_OK)
        return ICMS_OK;
    return err_set(why, err,
                   "enclosure %s: cannot find its target: %.300s; nothing was changed; correct "
                   "--address, --uuid or --nqn, or start its icms-target; add --yes if it is to be "
                   "added unseen",
                   name, cause.text);
}
