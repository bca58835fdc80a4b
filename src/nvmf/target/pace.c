/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a command may hold its buffer because of its host.
 *
 * Runs in the sweeps of a queue pair's loop. A host that moves a few bytes now and then is never
 * silent, so the timeout of a stalled peer does not end it; here each command has a time for its
 * data: LIMIT_DATA_SECONDS, and what its queue pair moves in that direction up to the end of this
 * command, at LIMIT_DATA_BYTES_PER_SECOND. A command that takes longer ends its connection.
 *
 * Invariant: time counts only in sweeps that find the command waiting for its host: not while it
 * waits for a drive or a buffer, nor while we ourselves do not read the connection, nor while the
 * loop stood still. The connection gives the buffers back when no transfer touches them.
 */
#include "base/check.h"
#include "nvmf/target/target_int.h"

#define PACE_SECOND_NS ((uint64_t)1000 * 1000 * 1000)

static enum nvmft_pace pace_of(const struct nvmft_req *req)
{
    switch (req->state) {
    case NVMFT_REQ_H2C:
        return NVMFT_PACE_SEND;
    case NVMFT_REQ_SENDING:
        return NVMFT_PACE_TAKE;
    default:
        return NVMFT_PACE_NONE;
    }
}

static void pace_begin(struct nvmft_req *req, enum nvmft_pace pace, uint64_t owed_bytes)
{
    req->pace = pace;
    req->pace_ns = 0;
    req->pace_ns_max = LIMIT_DATA_SECONDS * PACE_SECOND_NS +
                       owed_bytes * (PACE_SECOND_NS / LIMIT_DATA_BYTES_PER_SECOND);
}

static void pace_close(struct nvmft_qpair *qpair)
{
    struct nvmf_target *target = qpair->shard->target;

    counter_add(&qpair->shard->counters.slow_hosts, 1);
    pthread_mutex_lock(&target->slow_lock);
    memcpy(target->slow_host, qpair->ctrl->hostnqn, sizeof(target->slow_host));
    pthread_mutex_unlock(&target->slow_lock);
    nvmft_qpair_close(qpair, ICMS_DEADLINE);
}

bool nvmft_pace_sweep(struct nvmft_qpair *qpair, uint64_t step_ns, bool *out_busy)
{
    uint64_t owed[NVMFT_PACE_COUNT] = {0};
    bool unread = qpair->conn->is_paused; /* its data may lie in the socket */

    *out_busy = false;
    if (qpair->state != NVMFT_QPAIR_READY)
        return true;
    for (uint32_t i = 0; i < qpair->slots_touched && qpair->reqs_used > 0; i++) {
        const struct nvmft_req *req = nvmft_qpair_slot(qpair, i);
        enum nvmft_pace pace = pace_of(req);

        *out_busy = *out_busy || pace != NVMFT_PACE_NONE;
        if (req->state == NVMFT_REQ_STREAM) /* it is in the way of others, and waits for a drive */
            owed[NVMFT_PACE_TAKE] += req->io.data_bytes;
        else if (pace == NVMFT_PACE_SEND || (pace == NVMFT_PACE_TAKE && req->io.data_busy))
            owed[pace] += req->io.data_bytes;
    }
    for (uint32_t i = 0; i < qpair->slots_touched && *out_busy; i++) {
        struct nvmft_req *req = nvmft_qpair_slot(qpair, i);
        enum nvmft_pace pace = pace_of(req);

        if (pace != req->pace)
            pace_begin(req, pace, owed[pace]);
        else if (pace == NVMFT_PACE_TAKE || (pace == NVMFT_PACE_SEND && !unread))
            req->pace_ns += step_ns;
        if (pace != NVMFT_PACE_NONE && req->pace_ns > req->pace_ns_max) {
            pace_close(qpair);
            return false;
        }
    }
    return true;
}
