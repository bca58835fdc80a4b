/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Authentication of a queue pair by DH-HMAC-CHAP (wire/nvme_auth.h has the conversation).
 *
 * Runs on the queue pair's loop; exponentiation and responses are computed by the loop's worker
 * (loop_job), a bounded number at a time, and the others wait in line. Woken by AUTH Send and AUTH
 * Receive (admin.c), by jobs, and by the queue pair's timer, which bounds all of it.
 *
 * Life: NEGOTIATE -> OFFER -> CHALLENGE -> REPLY -> VERIFY -> SUCCESS1 -> [SUCCESS2] -> NEGOTIATE;
 * every mistake of the host leads to FAILURE1, which it may fetch before the connection is closed.
 * Invariants: is_passed is set in two places, both after a response was found right; a host that is
 * unknown or has no secret takes the same way, with the same computations, as one with a wrong
 * secret; a challenge is used once.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "crypt/dhchap.h"
#include "nvmf/target/target_int.h"
#include "wire/nvme_auth.h"

/* Jobs of one loop at a time; the worker has room for others. And hosts whose challenge waits for
 * one: 0.1 s of computations with the groups that are allowed by default. Addresses take turns, and
 * one more puts out one of the address that has most. Who has no place is told so after a pause:
 * one that asks at once again would find the place that is free before others do. */
#define AUTH_JOBS_MAX    16
#define AUTH_WAITING_MAX 64
#define AUTH_RETRY_NS    ((uint64_t)20 * 1000 * 1000)
#define AUTH_PAUSE_NS    ((uint64_t)250 * 1000 * 1000)

enum auth_state {
    AUTH_NEGOTIATE, /* idle; woken by AUTH Send with NEGOTIATE                                   */
    AUTH_OFFER,     /* the DH value is computed; woken by auth_job_done                          */
    AUTH_CHALLENGE, /* woken by AUTH Receive, which takes CHALLENGE                              */
    AUTH_REPLY,     /* woken by AUTH Send with REPLY                                             */
    AUTH_VERIFY,    /* the response is compared; woken by auth_job_done                          */
    AUTH_SUCCESS1,  /* woken by AUTH Receive, which takes SUCCESS1                               */
    AUTH_SUCCESS2,  /* the host was answered; woken by AUTH Send with SUCCESS2 or FAILURE2       */
    AUTH_FAILURE1,  /* woken by AUTH Receive, which takes FAILURE1; then the connection ends     */
};

struct nvmft_auth {
    enum auth_state state;
    struct secret *memory;     /* in which this lies                                              */
    struct nvmft_qpair *qpair; /* whose                                                           */
    struct dhchap_talk talk;
    uint8_t response[DHCHAP_DIGEST_BYTES_MAX]; /* of the host                                     */
    bool is_mutual;                            /* the host challenges us                          */
    uint8_t answer[DHCHAP_DIGEST_BYTES_MAX];   /* our response                                    */
    enum nvmf_target_auth_result result;       /* of a job                                      */
    uint64_t key_id;                           /* of the secret that the response proved        */
    enum nvme_auth_why why;                    /* FAILURE1: what the host is told               */
    struct nvmft_req *req;                     /* OFFER, VERIFY: the AUTH Send that waits       */
    struct loop_job job;                       /* OFFER, VERIFY                                 */
    struct list link;                          /* waits in one of the shard's lists             */
    uint64_t turn;                             /* OFFER: waits for it; the lowest goes first    */
    uint64_t pause_ns;                         /* in auth_paused: until then                    */
};

static void auth_jobs_next(struct nvmft_shard *shard);

/* ---- events --------------------------------------------------------------------------------- */

bool nvmft_auth_passed(const struct nvmft_qpair *qpair)
{
    return qpair->ctrl != NULL && (!qpair->ctrl->is_auth_wanted || qpair->is_passed);
}

bool nvmf_target_auth_is_pass(enum nvmf_target_auth_result result)
{
    return result == NVMF_TARGET_AUTH_PASSED || result == NVMF_TARGET_AUTH_MUTUAL ||
           result == NVMF_TARGET_AUTH_TLS;
}

/* Where an event goes; NULL: there is no place. One that let somebody in takes the place of the
 * newest that did not: a flood of failures hides none. */
static struct nvmf_target_auth *auth_event_place(struct nvmft_auth_events *events, bool is_pass)
{
    if (events->count < NVMFT_AUTH_EVENTS)
        return &events->event[(events->first + events->count++) % NVMFT_AUTH_EVENTS];
    events->missed++;
    for (uint32_t i = events->count; is_pass && i-- > 0;) {
        struct nvmf_target_auth *at = &events->event[(events->first + i) % NVMFT_AUTH_EVENTS];

        if (!nvmf_target_auth_is_pass(at->result))
            return at;
    }
    return NULL;
}

void nvmft_auth_event(struct nvmf_target *target, const struct nvmf_target_auth *event)
{
    struct nvmft_auth_events *events = &target->auth_events;
    struct nvmf_target_auth *place;

    check(pthread_mutex_lock(&events->lock) == 0);
    place = auth_event_place(events, nvmf_target_auth_is_pass(event->result));
    if (place != NULL)
        *place = *event;
    check(pthread_mutex_unlock(&events->lock) == 0);
}

void nvmft_auth_say(const struct nvmft_qpair *qpair, const char *hostnqn,
                    enum nvmf_target_auth_result result)
{
    struct nvmf_target_auth event = {.qid = qpair->qid,
                                     .cntlid = qpair->ctrl != NULL ? qpair->ctrl->cntlid : 0,
                                     .peer = qpair->conn->peer,
                                     .result = result};

    snprintf(event.hostnqn, sizeof(event.hostnqn), "%s", hostnqn);
    nvmft_auth_event(qpair->shard->target, &event);
}

static void auth_event(struct nvmft_qpair *qpair, enum nvmf_target_auth_result result)
{
    if (nvmf_target_auth_is_pass(result))
        counter_add(&qpair->shard->counters.auths_passed, 1);
    else
        counter_add(&qpair->shard->counters.auths_failed, 1);
    nvmft_auth_say(qpair, qpair->ctrl->hostnqn, result);
}

bool nvmf_target_auth_take(struct nvmf_target *target, struct nvmf_target_auth *out_auth,
                           uint64_t *out_missed)
{
    struct nvmft_auth_events *events = &target->auth_events;
    bool is_taken;

    check(pthread_mutex_lock(&events->lock) == 0);
    is_taken = events->count > 0;
    if (is_taken) {
        *out_auth = events->event[events->first];
        *out_missed = events->missed;
        events->first = (events->first + 1) % NVMFT_AUTH_EVENTS;
        events->count--;
        events->missed = 0;
    }
    check(pthread_mutex_unlock(&events->lock) == 0);
    return is_taken;
}

const char *nvmf_target_auth_text(enum nvmf_target_auth_result result)
{
    static const char *const texts[] = {
        [NVMF_TARGET_AUTH_PASSED] = "passed",
        [NVMF_TARGET_AUTH_MUTUAL] = "passed, mutual",
        [NVMF_TARGET_AUTH_UNKNOWN] = "the host has no secret here",
        [NVMF_TARGET_AUTH_WRONG] = "wrong secret",
        [NVMF_TARGET_AUTH_NO_ANSWER] =
            ("the host wants mutual authentication, and there is no controller_secret for it"),
        [NVMF_TARGET_AUTH_PROTOCOL] = "the host broke the protocol of authentication",
        [NVMF_TARGET_AUTH_NOTHING_COMMON] = "the host offers no hash or group that is allowed here",
        [NVMF_TARGET_AUTH_REFUSED] = "the host refused the controller_secret of this enclosure",
        [NVMF_TARGET_AUTH_BUSY] = "too many hosts authenticate at once; it may try again",
        [NVMF_TARGET_AUTH_TIMEOUT] = "the host did not authenticate in time",
        [NVMF_TARGET_AUTH_REPLACED] =
            "connection ended: the secret that it proved was replaced; if it is meant to, give the "
            "host the new one",
        [NVMF_TARGET_AUTH_TLS] = "passed",
        [NVMF_TARGET_AUTH_TLS_FAILED] = "TLS handshake refused",
        [NVMF_TARGET_AUTH_TLS_OTHER] = "the TLS key is of another host, or for another subsystem",
        [NVMF_TARGET_AUTH_TLS_REPLACED] =
            "connection ended: its TLS key was replaced; if it is meant to, give the host the new "
            "one",
        [NVMF_TARGET_AUTH_NO_TLS] = "the host has to use TLS, and does not",
        [NVMF_TARGET_AUTH_NO_VOLUME] = "the host may use no volume here, or asks for another "
                                       "subsystem",
        [NVMF_TARGET_AUTH_NAMESPACE] = "the host may not use a namespace that it names",
    };

    return texts[result];
}

const char *nvmf_target_auth_method(enum nvmf_target_auth_result result)
{
    if (result <= NVMF_TARGET_AUTH_REPLACED)
        return "chap";
    return result <= NVMF_TARGET_AUTH_NO_TLS ? "tls" : NULL;
}

/* ---- ends ----------------------------------------------------------------------------------- */

static void auth_wipe(struct nvmft_auth *auth)
{
    secret_wipe(auth->talk.private, sizeof(auth->talk.private));
    secret_wipe(auth->talk.challenge, sizeof(auth->talk.challenge));
    secret_wipe(auth->response, sizeof(auth->response));
}

/* The host gets FAILURE1 when it asks. */
static void auth_fail(struct nvmft_auth *auth, enum nvme_auth_why why,
                      enum nvmf_target_auth_result result)
{
    auth->qpair->is_passed = false;
    auth->state = AUTH_FAILURE1;
    auth->why = why;
    auth_wipe(auth);
    auth_event(auth->qpair, result);
}

/* False: the secret was replaced since the response was compared. Whoever looks for connections
 * with such a one comes behind that (nvmft_qpair_judge), so none is forgotten. */
static bool auth_pass(struct nvmft_auth *auth, enum nvmf_target_auth_result result)
{
    struct nvmft_qpair *qpair = auth->qpair;

    if (!nvmft_auth_accepts(&qpair->shard->target->auth_hosts, qpair->ctrl->auth_host,
                            auth->key_id)) {
        auth_fail(auth, NVME_AUTH_WHY_FAILED, NVMF_TARGET_AUTH_WRONG);
        return false;
    }
    qpair->is_passed = true;
    qpair->secret_id = auth->key_id;
    loop_timer_stop(qpair->shard->loop, &qpair->timer);
    auth_wipe(auth);
    auth_event(qpair, result);
    if (!qpair->is_proven_sent)
        loop_send(qpair->shard->target->opts.loops[0], &qpair->proven_msg, nvmft_registry_proven);
    qpair->is_proven_sent = true;
    return true;
}

void nvmft_auth_timeout(struct nvmft_qpair *qpair)
{
    auth_event(qpair, NVMF_TARGET_AUTH_TIMEOUT);
    qpair->is_passed = false;
}

void nvmft_auth_free(struct nvmft_qpair *qpair)
{
    struct secret *memory = qpair->auth != NULL ? qpair->auth->memory : NULL;

    secret_free(&memory);
    qpair->auth = NULL;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

static void auth_work_offer(struct nvmft_auth *auth)
{
    if (auth->talk.group != DHCHAP_NONE &&
        dhchap_public(auth->talk.group, auth->talk.private, auth->talk.public) != ICMS_OK)
        auth->result = NVMF_TARGET_AUTH_PROTOCOL;
}

/* Every secret is tried, whichever is right, and as many more as a host may have: how long it takes
 * does not tell whether the host is known. */
static bool auth_response_right(struct nvmft_auth *auth, const struct nvmft_auth_host *host,
                                const struct dhchap_question *question)
{
    struct key_plain key = {.hash = KEY_HASH_SHA256, .bytes = 32};
    uint32_t count = host != NULL ? host->secret_count : 0;
    size_t bytes = dhchap_hash_bytes(auth->talk.hash);
    uint8_t want[DHCHAP_DIGEST_BYTES_MAX];
    bool is_right = false;

    auth->result = auth->qpair->ctrl->lacks_tls ? NVMF_TARGET_AUTH_NO_TLS
                   : count > 0                  ? NVMF_TARGET_AUTH_WRONG
                                                : NVMF_TARGET_AUTH_UNKNOWN;
    for (uint32_t i = 0; i < count || i < LIMIT_HOST_KEYS; i++) {
        bool is_same;

        if (i < count)
            dhchap_key_copy(host->secrets[i], &key);
        is_same = dhchap_response(&key, question, want) == ICMS_OK &&
                  dhchap_equal(want, auth->response, bytes);
        if (is_same && i < count)
            auth->key_id = key_id(&key);
        is_right |= is_same && i < count;
    }
    secret_wipe(&key, sizeof(key));
    secret_wipe(want, sizeof(want));
    return is_right;
}

static void auth_work_verify(struct nvmft_auth *auth)
{
    const struct nvmft_ctrl *ctrl = auth->qpair->ctrl;
    const struct nvmft_auth_host *host = ctrl->auth_host;
    uint8_t shared[DHCHAP_VALUE_BYTES_MAX] = {0};
    struct key_plain key;
    struct dhchap_question question =
        dhchap_talk_question(&auth->talk, false, shared, ctrl->hostnqn, ctrl->target->opts.nqn);

    if (auth->talk.group != DHCHAP_NONE &&
        dhchap_shared(auth->talk.group, auth->talk.private, auth->talk.peer, shared) != ICMS_OK) {
        auth->result = NVMF_TARGET_AUTH_PROTOCOL;
        return;
    }
    if (auth_response_right(auth, host, &question)) {
        auth->result = auth->is_mutual ? NVMF_TARGET_AUTH_NO_ANSWER : NVMF_TARGET_AUTH_PASSED;
        question =
            dhchap_talk_question(&auth->talk, true, shared, ctrl->hostnqn, ctrl->target->opts.nqn);
        if (auth->is_mutual && host->controller_secret != NULL) {
            dhchap_key_copy(host->controller_secret, &key);
            if (dhchap_response(&key, &question, auth->answer) == ICMS_OK)
                auth->result = NVMF_TARGET_AUTH_MUTUAL;
            secret_wipe(&key, sizeof(key));
        }
    }
    secret_wipe(shared, sizeof(shared));
}

static void auth_work(struct loop_job *job)
{
    struct nvmft_auth *auth = container_of(job, struct nvmft_auth, job);

    if (auth->state == AUTH_OFFER)
        auth_work_offer(auth);
    else
        auth_work_verify(auth);
}

/* What was computed counts. */
static void auth_worked(struct nvmft_auth *auth)
{
    if (auth->state == AUTH_OFFER && auth->result == NVMF_TARGET_AUTH_PASSED) {
        auth->state = AUTH_CHALLENGE;
        return;
    }
    switch (auth->result) {
    case NVMF_TARGET_AUTH_PASSED:
        if (auth_pass(auth, auth->result))
            auth->state = AUTH_SUCCESS1;
        break;
    case NVMF_TARGET_AUTH_MUTUAL: /* passed with SUCCESS2 */
        auth->state = AUTH_SUCCESS1;
        break;
    case NVMF_TARGET_AUTH_PROTOCOL:
        auth_fail(auth, NVME_AUTH_WHY_PAYLOAD, auth->result);
        break;
    default:
        auth_fail(auth, NVME_AUTH_WHY_FAILED, auth->result);
    }
}

static void auth_job_done(struct loop_job *job)
{
    struct nvmft_auth *auth = container_of(job, struct nvmft_auth, job);
    struct nvmft_qpair *qpair = auth->qpair;
    struct nvmft_req *req = auth->req;

    check(qpair->shard->auth_jobs > 0 && req->state == NVMFT_REQ_AUTH);
    qpair->shard->auth_jobs--;
    auth_jobs_next(qpair->shard);
    auth->req = NULL;
    if (qpair->conn_open) {
        auth_worked(auth);
        req->state = NVMFT_REQ_RESPOND;
    } else {
        req->state = NVMFT_REQ_DONE;
    }
    nvmft_req_run(req);
}

/* Those whose response waits go first, and I/O queues, which only a host that has authenticated can
 * connect: strangers cannot keep them back with challenges. */
static bool auth_is_first(const struct nvmft_auth *auth)
{
    return auth->state == AUTH_VERIFY || auth->qpair->qid != 0;
}

static struct list *auth_waiting_pop(struct nvmft_shard *shard)
{
    struct list *link = list_pop(&shard->auth_replied);

    if (link != NULL)
        return link;
    link = list_pop(&shard->auth_waiting);
    if (link != NULL) {
        shard->auth_waiting_count--;
        shard->auth_turn = container_of(link, struct nvmft_auth, link)->turn;
    }
    return link;
}

/* Puts one in line: behind those of other addresses that have waited for as many turns. */
static void auth_waiting_push(struct nvmft_shard *shard, struct nvmft_auth *auth)
{
    const char *host = auth->qpair->conn->peer.host;
    struct list *before = &shard->auth_waiting;

    auth->turn = shard->auth_turn;
    list_for_each (link, &shard->auth_waiting) {
        const struct nvmft_auth *other = container_of(link, struct nvmft_auth, link);

        if (strcmp(other->qpair->conn->peer.host, host) == 0)
            auth->turn = other->turn + 1;
    }
    list_for_each (link, &shard->auth_waiting)
        if (container_of(link, struct nvmft_auth, link)->turn > auth->turn) {
            before = link;
            break;
        }
    list_push(before, &auth->link);
    shard->auth_waiting_count++;
}

/* There is no place: says so, and the host hears it after a pause. */
static void auth_pause(struct nvmft_auth *auth)
{
    struct nvmft_shard *shard = auth->qpair->shard;

    auth_event(auth->qpair, NVMF_TARGET_AUTH_BUSY);
    auth_wipe(auth);
    auth->state = AUTH_NEGOTIATE;
    auth->pause_ns = loop_now_ns(shard->loop) + AUTH_PAUSE_NS;
    list_push(&shard->auth_paused, &auth->link);
    if (!loop_timer_armed(&shard->auth_timer))
        loop_timer_start(shard->loop, &shard->auth_timer, auth->pause_ns);
}

static void auth_pauses_end(struct nvmft_shard *shard)
{
    while (!list_empty(&shard->auth_paused)) {
        struct nvmft_auth *auth = container_of(shard->auth_paused.next, struct nvmft_auth, link);
        struct nvmft_req *req = auth->req;

        if (auth->pause_ns > loop_now_ns(shard->loop)) {
            if (!loop_timer_armed(&shard->auth_timer))
                loop_timer_start(shard->loop, &shard->auth_timer, auth->pause_ns);
            return;
        }
        list_remove(&auth->link);
        auth->req = NULL;
        if (auth->qpair->conn_open)
            nvmft_req_fail(req, NVME_SC_TRANSIENT);
        else
            req->state = NVMFT_REQ_DONE;
        nvmft_req_run(req);
    }
}

/* Starts those that wait, oldest first; passes over those whose host left. */
static void auth_jobs_next(struct nvmft_shard *shard)
{
    struct list *link;

    while (shard->auth_jobs < AUTH_JOBS_MAX && (link = auth_waiting_pop(shard)) != NULL) {
        struct nvmft_auth *auth = container_of(link, struct nvmft_auth, link);
        struct nvmft_req *req = auth->req;

        if (!auth->qpair->conn_open) {
            auth->req = NULL;
            req->state = NVMFT_REQ_DONE;
            nvmft_req_run(req);
        } else if (loop_job_start(shard->loop, &auth->job, auth_work, auth_job_done) == ICMS_OK) {
            shard->auth_jobs++;
        } else { /* the worker is full of other work */
            shard->auth_waiting_count += !auth_is_first(auth);
            list_push_front(auth_is_first(auth) ? &shard->auth_replied : &shard->auth_waiting,
                            &auth->link);
            loop_timer_start(shard->loop, &shard->auth_timer,
                             loop_now_ns(shard->loop) + AUTH_RETRY_NS);
            return;
        }
    }
}

void nvmft_auth_retry(struct loop_timer *timer)
{
    struct nvmft_shard *shard = container_of(timer, struct nvmft_shard, auth_timer);

    auth_jobs_next(shard);
    auth_pauses_end(shard);
}

static void auth_job(struct nvmft_auth *auth, enum auth_state state, struct nvmft_req *req)
{
    struct nvmft_shard *shard = auth->qpair->shard;

    auth->state = state;
    auth->result = NVMF_TARGET_AUTH_PASSED;
    auth->req = req;
    req->state = NVMFT_REQ_AUTH;
    if (auth_is_first(auth)) {
        list_push(&shard->auth_replied, &auth->link);
        return;
    }
    auth_waiting_push(shard, auth);
    if (shard->auth_waiting_count <= AUTH_WAITING_MAX)
        return;
    auth = container_of(shard->auth_waiting.prev, struct nvmft_auth, link);
    list_remove(&auth->link);
    shard->auth_waiting_count--;
    auth_pause(auth);
}

/* ---- AUTH Send ------------------------------------------------------------------------------ */

/* The first of ours that the host has; 0 .. count: its index; count: none. */
static uint32_t auth_choose(const uint8_t *ours, uint32_t count, const uint8_t *theirs,
                            uint32_t their_count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < their_count; j++)
            if (ours[i] == theirs[j])
                return i;
    return count;
}

static void auth_negotiate(struct nvmft_auth *auth, const struct nvme_auth_msg *msg,
                           struct nvmft_req *req)
{
    const struct nvmf_target_opts *opts = &auth->qpair->shard->target->opts;
    struct loop *loop = auth->qpair->shard->loop;
    uint32_t hash =
        auth_choose(opts->auth_hashes, opts->auth_hash_count, msg->hashes, msg->hash_count);
    uint32_t group =
        auth_choose(opts->auth_groups, opts->auth_group_count, msg->groups, msg->group_count);

    auth->talk.t_id = msg->t_id;
    if (msg->concat != 0) {
        auth_fail(auth, NVME_AUTH_WHY_CONCAT, NVMF_TARGET_AUTH_NOTHING_COMMON);
        return;
    }
    if (hash == opts->auth_hash_count || group == opts->auth_group_count) {
        auth_fail(auth,
                  msg->hash_count == 0            ? NVME_AUTH_WHY_PROTOCOL
                  : hash == opts->auth_hash_count ? NVME_AUTH_WHY_HASH
                                                  : NVME_AUTH_WHY_GROUP,
                  NVMF_TARGET_AUTH_NOTHING_COMMON);
        return;
    }
    auth->talk.hash = (enum key_hash)opts->auth_hashes[hash];
    auth->talk.group = (enum dhchap_group)opts->auth_groups[group];
    loop_entropy(loop, auth->talk.challenge, sizeof(auth->talk.challenge));
    loop_entropy(loop, auth->talk.private, sizeof(auth->talk.private));
    loop_entropy(loop, &auth->talk.seqnum, sizeof(auth->talk.seqnum));
    auth->talk.seqnum += auth->talk.seqnum == 0;
    auth_job(auth, AUTH_OFFER, req);
}

static void auth_reply(struct nvmft_auth *auth, const struct nvme_auth_msg *msg,
                       struct nvmft_req *req)
{
    size_t bytes = dhchap_hash_bytes((uint8_t)auth->talk.hash);

    if (msg->value_bytes != bytes ||
        msg->dh_bytes != dhchap_group_bytes((uint8_t)auth->talk.group) ||
        (msg->challenge != NULL && dhchap_equal(msg->challenge, auth->talk.challenge, bytes))) {
        auth_fail(auth, NVME_AUTH_WHY_PAYLOAD, NVMF_TARGET_AUTH_PROTOCOL);
        return;
    }
    memcpy(auth->response, msg->value, bytes);
    auth->is_mutual = msg->challenge != NULL;
    if (auth->is_mutual)
        memcpy(auth->talk.challenge2, msg->challenge, bytes);
    auth->talk.seqnum2 = msg->seqnum;
    if (msg->dh_bytes > 0)
        memcpy(auth->talk.peer, msg->dh, msg->dh_bytes);
    auth_job(auth, AUTH_VERIFY, req);
}

static void auth_message(struct nvmft_auth *auth, const struct nvme_auth_msg *msg,
                         struct nvmft_req *req)
{
    if (msg->id == NVME_AUTH_NEGOTIATE && auth->state == AUTH_NEGOTIATE) {
        auth_negotiate(auth, msg, req);
    } else if (auth->state != AUTH_NEGOTIATE && msg->t_id != auth->talk.t_id) {
        auth_fail(auth, NVME_AUTH_WHY_PAYLOAD, NVMF_TARGET_AUTH_PROTOCOL);
    } else if (msg->id == NVME_AUTH_REPLY && auth->state == AUTH_REPLY) {
        auth_reply(auth, msg, req);
    } else if (msg->id == NVME_AUTH_SUCCESS2 && auth->state == AUTH_SUCCESS2) {
        auth->qpair->auth_close = !auth_pass(auth, NVMF_TARGET_AUTH_MUTUAL);
        if (!auth->qpair->auth_close)
            auth->state = AUTH_NEGOTIATE;
    } else if (msg->id == NVME_AUTH_FAILURE2 &&
               (auth->state == AUTH_REPLY || auth->state == AUTH_SUCCESS2)) {
        auth_fail(auth, NVME_AUTH_WHY_FAILED, NVMF_TARGET_AUTH_REFUSED);
        auth->qpair->auth_close = true;
    } else {
        auth_fail(auth, NVME_AUTH_WHY_MESSAGE, NVMF_TARGET_AUTH_PROTOCOL);
    }
}

/* The state of a conversation is made with its first message. A second one, of a host that passed,
 * has to be over in time as well. */
static struct nvmft_auth *auth_begin(struct nvmft_qpair *qpair)
{
    struct nvmft_shard *shard = qpair->shard;

    if (qpair->auth == NULL) {
        struct secret *memory;

        if (secret_new(sizeof(*qpair->auth), NULL, &memory) != ICMS_OK)
            return NULL;
        qpair->auth = (struct nvmft_auth *)(void *)secret_bytes(memory);
        qpair->auth->memory = memory;
        qpair->auth->qpair = qpair;
        list_init(&qpair->auth->link);
    }
    if (!loop_timer_armed(&qpair->timer))
        loop_timer_start(shard->loop, &qpair->timer,
                         loop_now_ns(shard->loop) +
                             (uint64_t)shard->target->opts.header_timeout_ms * 1000000);
    return qpair->auth;
}

void nvmft_auth_send(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;
    struct nvmft_auth *auth;
    struct nvme_auth_msg msg;
    uint32_t bytes;

    if (!qpair->ctrl->is_auth_wanted) {
        nvmft_req_fail(req, NVME_SC_OPCODE);
        return;
    }
    if (req->status != NVME_SC_SUCCESS) {
        nvmft_req_fail(req, req->status); /* the data digest did not match */
        return;
    }
    if (nvme_auth_cmd_decode(&req->sqe, &bytes) != ICMS_OK || bytes == 0) {
        nvmft_req_fail(req, NVME_SC_FIELD);
        return;
    }
    if (req->buffer == NULL || req->io.data_moved != bytes) {
        nvmft_req_fail(req, NVME_SC_SGL_LENGTH);
        return;
    }
    auth = auth_begin(qpair);
    if (auth == NULL || auth->req != NULL || auth->state == AUTH_FAILURE1) {
        nvmft_req_fail(req, auth == NULL ? NVME_SC_INTERNAL : NVME_SC_SEQUENCE);
        return;
    }
    req->state = NVMFT_REQ_RESPOND;
    if (nvme_auth_decode(req->buffer, bytes, &msg) != ICMS_OK)
        auth_fail(auth, NVME_AUTH_WHY_PAYLOAD, NVMF_TARGET_AUTH_PROTOCOL);
    else
        auth_message(auth, &msg, req);
    auth_jobs_next(qpair->shard);
}

/* ---- AUTH Receive --------------------------------------------------------------------------- */

/* What the host gets now, and the state that follows. */
static struct nvme_auth_msg auth_next(struct nvmft_auth *auth)
{
    struct nvme_auth_msg msg = {.t_id = auth->talk.t_id};
    uint8_t bytes = (uint8_t)dhchap_hash_bytes((uint8_t)auth->talk.hash);

    if (auth->state == AUTH_CHALLENGE) {
        msg.id = NVME_AUTH_CHALLENGE;
        msg.hash = (uint8_t)auth->talk.hash;
        msg.group = (uint8_t)auth->talk.group;
        msg.value_bytes = bytes;
        msg.value = auth->talk.challenge;
        msg.seqnum = auth->talk.seqnum;
        msg.dh_bytes = (uint16_t)dhchap_group_bytes((uint8_t)auth->talk.group);
        msg.dh = auth->talk.public;
        auth->state = AUTH_REPLY;
        return msg;
    }
    if (auth->state == AUTH_SUCCESS1) {
        msg.id = NVME_AUTH_SUCCESS1;
        msg.value_bytes = bytes; /* Linux compares it, also without a response */
        msg.value = auth->is_mutual ? auth->answer : NULL;
        auth->state = auth->is_mutual ? AUTH_SUCCESS2 : AUTH_NEGOTIATE;
        return msg;
    }
    if (auth->state != AUTH_FAILURE1)
        auth_fail(auth, NVME_AUTH_WHY_MESSAGE, NVMF_TARGET_AUTH_PROTOCOL);
    msg.id = NVME_AUTH_FAILURE1;
    msg.reason = 1;
    msg.why = (uint8_t)auth->why;
    auth->qpair->auth_close = true;
    return msg;
}

void nvmft_auth_receive(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;
    struct nvme_auth_msg msg;
    struct nvme_sgl sgl;
    uint32_t bytes;
    uint16_t status;

    if (!qpair->ctrl->is_auth_wanted) {
        nvmft_req_fail(req, NVME_SC_OPCODE);
        return;
    }
    if (nvme_auth_cmd_decode(&req->sqe, &bytes) != ICMS_OK || bytes == 0) {
        nvmft_req_fail(req, NVME_SC_FIELD);
        return;
    }
    if (nvme_sgl_decode(&req->sqe.sgl, &sgl, &status) != ICMS_OK || sgl.in_capsule) {
        nvmft_req_fail(req, NVME_SC_SGL_TYPE);
        return;
    }
    if (sgl.bytes < bytes || req->buffer == NULL || qpair->auth == NULL ||
        qpair->auth->req != NULL || qpair->auth->state == AUTH_NEGOTIATE) {
        nvmft_req_fail(req, sgl.bytes < bytes ? NVME_SC_SGL_LENGTH : NVME_SC_SEQUENCE);
        return;
    }
    msg = auth_next(qpair->auth);
    req->io.data = req->buffer;
    req->io.data_moved = 0;
    req->io.data_bytes = (uint32_t)nvme_auth_encode(&msg, req->buffer);
    req->state = NVMFT_REQ_RESPOND;
    if (req->io.data_bytes > bytes) {
        auth_fail(qpair->auth, NVME_AUTH_WHY_PAYLOAD, NVMF_TARGET_AUTH_PROTOCOL);
        req->io.data_bytes = 0;
        nvmft_req_fail(req, NVME_SC_FIELD);
    }
}
