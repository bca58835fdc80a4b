/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/host/auth.c: the host's side of DH-HMAC-CHAP (wire/nvme_auth.h has the conversation), on
 * each queue pair after its Connect.
 *
 * Called by queue.c, and by its own commands and job, on the association's loop. Queue pairs open
 * one after the other, so there is one conversation at a time.
 *
 * Life: AUTH_NEGOTIATE -> AUTH_CHALLENGE -> AUTH_COMPUTE -> AUTH_REPLY -> AUTH_SUCCESS1 ->
 * [AUTH_SUCCESS2] -> the queue pair is live; whatever does not fit ends the association, after
 * FAILURE2 (AUTH_FAILURE2) where it is the target that did not prove itself. Invariant: a queue
 * pair that has to authenticate becomes live in auth_done() alone.
 */
#include <stdlib.h>

#include "base/check.h"
#include "crypt/dhchap.h"
#include "nvmf/host/host_int.h"
#include "wire/nvme_auth.h"

/* Data that every target takes with a fabrics command (NVMe/TCP). */
#define AUTH_CAPSULE_BYTES 8192

/* Room for a message, larger than any: what is longer is cut. */
#define AUTH_ROOM 4096
static_assert(AUTH_ROOM >= NVME_AUTH_BYTES_MAX, "a message fits");

/* NEGOTIATE goes so often to a target that has too many hosts, and waits so long before the next:
 * together less than a target waits for a host. */
#define AUTH_TRIES    8
#define AUTH_AGAIN_NS ((uint64_t)100 * 1000 * 1000)

struct nvmf_auth {
    struct secret *memory;    /* in which this lies                                               */
    struct nvmf_ctrl *ctrl;   /* whose                                                            */
    struct nvmf_queue *queue; /* that authenticates                                               */
    struct nvmf_req req;      /* AUTH Send and Receive, one at a time                             */
    struct loop_job job;      /* AUTH_COMPUTE                                                     */
    struct dhchap_talk talk;
    uint8_t response[DHCHAP_DIGEST_BYTES_MAX]; /* ours                                            */
    uint8_t expected[DHCHAP_DIGEST_BYTES_MAX]; /* response of a target that has its secret        */
    icms_err result;                           /* of the job                                    */
    uint32_t tries;                            /* NEGOTIATE messages sent                       */
    uint8_t message[AUTH_ROOM];                /* that goes or comes                            */
};

static void auth_sent(struct nvmf_req *req);
static void auth_received(struct nvmf_req *req);

/* ---- life ----------------------------------------------------------------------------------- */

icms_err nvmf_auth_new(struct nvmf_ctrl *ctrl)
{
    struct secret *memory;
    icms_err err = secret_new(sizeof(*ctrl->auth), NULL, &memory);

    if (err != ICMS_OK)
        return err;
    ctrl->auth = (struct nvmf_auth *)(void *)secret_bytes(memory);
    ctrl->auth->memory = memory;
    ctrl->auth->ctrl = ctrl;
    return ICMS_OK;
}

static void auth_wipe(struct nvmf_auth *auth)
{
    secret_wipe(auth->talk.private, sizeof(auth->talk.private));
    secret_wipe(auth->response, sizeof(auth->response));
    secret_wipe(auth->expected, sizeof(auth->expected));
}

void nvmf_auth_free(struct nvmf_ctrl *ctrl)
{
    struct secret *memory = ctrl->auth != NULL ? ctrl->auth->memory : NULL;

    secret_free(&memory);
    ctrl->auth = NULL;
}

bool nvmf_auth_busy(const struct nvmf_ctrl *ctrl)
{
    return ctrl->auth != NULL && loop_job_busy(&ctrl->auth->job);
}

static void auth_send(struct nvmf_auth *auth, enum nvmf_ctrl_state state,
                      const struct nvme_auth_msg *msg)
{
    uint32_t bytes = (uint32_t)nvme_auth_encode(msg, auth->message);

    auth->ctrl->state = state;
    nvme_auth_cmd_encode(true, bytes, &auth->req.sqe);
    auth->req.direction = NVME_DIRECTION_H2C;
    auth->req.data[0] = (struct iovec){auth->message, bytes};
    auth->req.done = auth_sent;
    nvmf_req_start(&auth->req);
}

static void auth_receive(struct nvmf_auth *auth, enum nvmf_ctrl_state state)
{
    auth->ctrl->state = state;
    nvme_auth_cmd_encode(false, sizeof(auth->message), &auth->req.sqe);
    auth->req.direction = NVME_DIRECTION_C2H;
    auth->req.data[0] = (struct iovec){auth->message, sizeof(auth->message)};
    auth->req.done = auth_received;
    nvmf_req_start(&auth->req);
}

static void auth_negotiate(struct nvmf_auth *auth)
{
    struct nvme_auth_msg msg = {.id = NVME_AUTH_NEGOTIATE, .t_id = ++auth->talk.t_id};

    for (uint8_t hash = DHCHAP_HASHES - 1; hash > 0; hash--)
        msg.hashes[msg.hash_count++] = hash;
    for (uint8_t group = 0; group < DHCHAP_GROUPS; group++)
        msg.groups[msg.group_count++] = group;
    auth->tries++;
    auth_send(auth, NVMF_CTRL_AUTH_NEGOTIATE, &msg);
}

void nvmf_auth_start(struct nvmf_queue *queue)
{
    struct nvmf_auth *auth = queue->ctrl->auth;

    auth->queue = queue;
    auth->tries = 0;
    nvmf_req_init(&auth->req, queue->ctrl, queue);
    queue->in_capsule_max = AUTH_CAPSULE_BYTES;
    auth_negotiate(auth);
}

void nvmf_auth_again(struct loop_timer *timer)
{
    struct nvmf_ctrl *ctrl = container_of(timer, struct nvmf_ctrl, auth_timer);

    check(ctrl->state == NVMF_CTRL_AUTH_NEGOTIATE);
    auth_negotiate(ctrl->auth);
}

/* The queue pair is authenticated, both ways if that was wanted. */
static void auth_done(struct nvmf_auth *auth)
{
    auth_wipe(auth);
    auth->ctrl->stats.auths++;
    nvmf_queue_live(auth->queue);
}

static void auth_broken(struct nvmf_auth *auth, const char *what)
{
    auth->ctrl->stats.violations++;
    nvmf_ctrl_fail(auth->ctrl, ICMS_PROTOCOL,
                   "the target broke the protocol of authentication on the %s queue: %s",
                   auth->queue->name, what);
}

/* ---- computing ------------------------------------------------------------------------------ */

static void auth_work(struct loop_job *job)
{
    struct nvmf_auth *auth = container_of(job, struct nvmf_auth, job);
    const struct nvmf_ctrl *ctrl = auth->ctrl;
    uint8_t shared[DHCHAP_VALUE_BYTES_MAX] = {0};
    struct key_plain key;
    struct dhchap_question question =
        dhchap_talk_question(&auth->talk, false, shared, ctrl->hostnqn, ctrl->subnqn);

    auth->result = ICMS_OK;
    if (auth->talk.group != DHCHAP_NONE)
        auth->result = dhchap_public(auth->talk.group, auth->talk.private, auth->talk.public);
    if (auth->result == ICMS_OK && auth->talk.group != DHCHAP_NONE)
        auth->result = dhchap_shared(auth->talk.group, auth->talk.private, auth->talk.peer, shared);
    if (auth->result == ICMS_OK) {
        dhchap_key_copy(ctrl->auth_key, &key);
        auth->result = dhchap_response(&key, &question, auth->response);
    }
    if (auth->result == ICMS_OK && ctrl->auth_controller_key != NULL) {
        question = dhchap_talk_question(&auth->talk, true, shared, ctrl->hostnqn, ctrl->subnqn);
        dhchap_key_copy(ctrl->auth_controller_key, &key);
        auth->result = dhchap_response(&key, &question, auth->expected);
    }
    secret_wipe(&key, sizeof(key));
    secret_wipe(shared, sizeof(shared));
}

static void auth_computed(struct loop_job *job)
{
    struct nvmf_auth *auth = container_of(job, struct nvmf_auth, job);
    struct nvmf_ctrl *ctrl = auth->ctrl;
    struct nvme_auth_msg msg = {.id = NVME_AUTH_REPLY,
                                .t_id = auth->talk.t_id,
                                .value_bytes = (uint8_t)dhchap_hash_bytes((uint8_t)auth->talk.hash),
                                .value = auth->response,
                                .dh_bytes = (uint16_t)dhchap_group_bytes((uint8_t)auth->talk.group),
                                .dh = auth->talk.public};

    if (ctrl->state == NVMF_CTRL_CLOSING) {
        nvmf_ctrl_poke(ctrl); /* nothing else held it up perhaps */
        return;
    }
    check(ctrl->state == NVMF_CTRL_AUTH_COMPUTE);
    if (auth->result == ICMS_AUTH) {
        auth_broken(auth, "a Diffie-Hellman value that is none");
        return;
    }
    if (auth->result != ICMS_OK) {
        nvmf_ctrl_fail(ctrl, auth->result, "cannot authenticate: %s", icms_err_text(auth->result));
        return;
    }
    if (ctrl->auth_controller_key != NULL) {
        msg.challenge = auth->talk.challenge2;
        msg.seqnum = auth->talk.seqnum2;
    }
    auth_send(auth, NVMF_CTRL_AUTH_REPLY, &msg);
}

/* ---- messages ------------------------------------------------------------------------------- */

static void auth_challenged(struct nvmf_auth *auth, const struct nvme_auth_msg *msg)
{
    struct loop *loop = auth->ctrl->loop;
    size_t bytes = dhchap_hash_bytes(msg->hash);
    icms_err err;

    if (bytes == 0 || msg->group >= DHCHAP_GROUPS || msg->value_bytes != bytes ||
        msg->dh_bytes != dhchap_group_bytes(msg->group)) {
        auth_broken(auth, "a challenge with a hash or group that was not offered");
        return;
    }
    auth->talk.hash = (enum key_hash)msg->hash;
    auth->talk.group = (enum dhchap_group)msg->group;
    auth->talk.seqnum = msg->seqnum;
    memcpy(auth->talk.challenge, msg->value, bytes);
    if (msg->dh_bytes > 0)
        memcpy(auth->talk.peer, msg->dh, msg->dh_bytes);
    loop_entropy(loop, auth->talk.private, sizeof(auth->talk.private));
    loop_entropy(loop, auth->talk.challenge2, sizeof(auth->talk.challenge2));
    loop_entropy(loop, &auth->talk.seqnum2, sizeof(auth->talk.seqnum2));
    auth->talk.seqnum2 += auth->talk.seqnum2 == 0;
    auth->ctrl->state = NVMF_CTRL_AUTH_COMPUTE;
    err = loop_job_start(loop, &auth->job, auth_work, auth_computed);
    if (err != ICMS_OK)
        nvmf_ctrl_fail(auth->ctrl, err, "cannot authenticate now: too many computations wait");
}

static void auth_succeeded(struct nvmf_auth *auth, const struct nvme_auth_msg *msg)
{
    struct nvme_auth_msg answer = {.id = NVME_AUTH_SUCCESS2, .t_id = auth->talk.t_id};
    size_t bytes = dhchap_hash_bytes((uint8_t)auth->talk.hash);

    if (auth->ctrl->auth_controller_key == NULL) {
        auth_done(auth);
        return;
    }
    if (msg->value != NULL && msg->value_bytes == bytes &&
        dhchap_equal(msg->value, auth->expected, bytes)) {
        auth_send(auth, NVMF_CTRL_AUTH_SUCCESS2, &answer);
        return;
    }
    answer.id = NVME_AUTH_FAILURE2;
    answer.reason = 1;
    answer.why = NVME_AUTH_WHY_FAILED;
    auth_send(auth, NVMF_CTRL_AUTH_FAILURE2, &answer);
}

static void auth_refused(struct nvmf_auth *auth, const struct nvme_auth_msg *msg)
{
    struct nvmf_ctrl *ctrl = auth->ctrl;

    ctrl->stats.auths_refused++;
    if (msg->why == NVME_AUTH_WHY_FAILED)
        nvmf_ctrl_fail(ctrl, ICMS_AUTH,
                       "the target refused the secret of host %s; check `secret` here, and `hosts` "
                       "there%s",
                       ctrl->hostnqn,
                       ctrl->auth_controller_key != NULL ? ", which needs a controller_secret"
                                                         : "");
    else
        nvmf_ctrl_fail(ctrl, ICMS_AUTH, "the target refused to authenticate host %s: %s (%u)",
                       ctrl->hostnqn,
                       msg->why == NVME_AUTH_WHY_HASH    ? "it allows other hashes"
                       : msg->why == NVME_AUTH_WHY_GROUP ? "it allows other groups"
                                                         : "it found a message wrong",
                       msg->why);
}

static void auth_received(struct nvmf_req *req)
{
    struct nvmf_auth *auth = container_of(req, struct nvmf_auth, req);
    struct nvmf_ctrl *ctrl = auth->ctrl;
    struct nvme_auth_msg msg;

    if (ctrl->state == NVMF_CTRL_CLOSING)
        return;
    if (req->err != ICMS_OK) {
        nvmf_ctrl_fail(ctrl, req->status != 0 ? ICMS_AUTH : req->err,
                       "authenticating on the %s queue: AUTH Receive: %s (NVMe status %03xh)",
                       auth->queue->name, icms_err_text(req->err), req->status);
        return;
    }
    if (nvme_auth_decode(auth->message, u64_min(req->value_bytes, sizeof(auth->message)), &msg) !=
            ICMS_OK ||
        msg.t_id != auth->talk.t_id)
        auth_broken(auth, "a message that makes no sense");
    else if (msg.id == NVME_AUTH_FAILURE1)
        auth_refused(auth, &msg);
    else if (msg.id == NVME_AUTH_CHALLENGE && ctrl->state == NVMF_CTRL_AUTH_CHALLENGE)
        auth_challenged(auth, &msg);
    else if (msg.id == NVME_AUTH_SUCCESS1 && ctrl->state == NVMF_CTRL_AUTH_SUCCESS1)
        auth_succeeded(auth, &msg);
    else
        auth_broken(auth, "a message out of order");
}

static void auth_sent(struct nvmf_req *req)
{
    struct nvmf_auth *auth = container_of(req, struct nvmf_auth, req);
    struct nvmf_ctrl *ctrl = auth->ctrl;

    if (ctrl->state == NVMF_CTRL_CLOSING)
        return;
    if (ctrl->state == NVMF_CTRL_AUTH_FAILURE2) { /* whatever became of it */
        ctrl->stats.auths_refused++;
        nvmf_ctrl_fail(ctrl, ICMS_AUTH,
                       "the target did not prove that it has the controller_secret; check "
                       "`controller_secret` here and there, and that %s is the enclosure",
                       ctrl->addr_text);
        return;
    }
    if (req->err != ICMS_OK) {
        if (req->status == NVME_SC_TRANSIENT && ctrl->state == NVMF_CTRL_AUTH_NEGOTIATE &&
            auth->tries < AUTH_TRIES)
            loop_timer_start(ctrl->loop, &ctrl->auth_timer,
                             loop_now_ns(ctrl->loop) + AUTH_AGAIN_NS);
        else if (req->status == NVME_SC_TRANSIENT)
            nvmf_ctrl_fail(ctrl, ICMS_BUSY,
                           "the target has too many hosts that authenticate at once; host %s tries "
                           "again",
                           ctrl->hostnqn);
        else if (req->status == NVME_SC_OPCODE)
            nvmf_ctrl_fail(ctrl, ICMS_AUTH,
                           "the target does not authenticate host %s, which `require` or "
                           "`controller_secret` asks for; list the host and its secret there",
                           ctrl->hostnqn);
        else
            nvmf_ctrl_fail(ctrl, req->status != 0 ? ICMS_AUTH : req->err,
                           "authenticating on the %s queue: AUTH Send: %s (NVMe status %03xh)",
                           auth->queue->name, icms_err_text(req->err), req->status);
        return;
    }
    if (ctrl->state == NVMF_CTRL_AUTH_NEGOTIATE)
        auth_receive(auth, NVMF_CTRL_AUTH_CHALLENGE);
    else if (ctrl->state == NVMF_CTRL_AUTH_REPLY)
        auth_receive(auth, NVMF_CTRL_AUTH_SUCCESS1);
    else
        auth_done(auth);
}
