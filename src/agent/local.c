/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/local.c: a drive of the agent's own instead of a pod: "dir:", and tests without a network.
 *
 * On reactor 0, the only one of an agent with its own drive. At most AGENT_LOCAL_BUFFERS operations
 * are at the store, each with a buffer for its record; more wait in line (wait.c). Answers come by
 * op->answered, never inside agent_local_ask.
 *
 * In place. A record's checks depend on a secret of its segment, so other processes must not see
 * them. Where none maps the arenas, slots have space for a record around their value
 * (volume_region), and the device reads and writes them where they are, if they are pinned; whoever
 * leases a slot meanwhile sees the value alone. Else records are laid out in the buffer, and values
 * copied.
 *
 * A block that a client in this process wants in its own memory (direct) is copied there when all
 * of it was read and checked, right before the answer: the device never writes there. Its trailer
 * is checked in that pass, so the client compares the digest and does not sum the value again.
 *
 * Where such memory is on its way to a GPU, the record may be read past the host (opts.reader): it
 * comes to the buffer all the same, is verified there, and the reader is told whether what it has
 * may be used. One that is late is left alone, and the loop reads.
 *
 * What a device was asked for cannot be taken back: an operation whose deadline passes meanwhile
 * goes on, and its buffer is in use until the device is done. Its requests do not wait for that.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

#include "base/fault.h"

static void local_begin(struct agent_local *local, struct agent_op *op);

/* ---- the end of an operation ---------------------------------------------------------------- */

static void local_back(struct loop_msg *msg)
{
    struct agent_op *op = container_of(msg, struct agent_op, msg);

    op->answered(op);
}

static void local_buffer_give(struct agent_local *local, struct agent_op *op)
{
    struct agent_op *next;
    struct list *link;
    uint32_t share;

    if (op->buffer == NULL)
        return;
    local->buffers[local->free_count++] = op->buffer;
    op->buffer = NULL;
    link = line_pop(&local->waiting, &share);
    if (link == NULL)
        return;
    next = container_of(link, struct agent_op, link);
    line_charge(&local->waiting, share,
                next->kind == AGENT_OP_STORE ? next->stored_bytes : next->space);
    local_begin(local, next);
}

static void local_load_ended(const struct agent_op *op, icms_err err)
{
    struct agent_local *local = op->shard->agent->local;
    enum estimate_end end = err == ICMS_OK         ? ESTIMATE_CAME
                            : err == ICMS_DEADLINE ? ESTIMATE_LATE
                                                   : ESTIMATE_NOTHING;
    uint64_t error;

    if (op->kind != AGENT_OP_LOAD)
        return;
    error = estimate_ended(&local->estimate, &op->load, end, op->value_bytes,
                           reactor_now_ns(local->reactor));
    if (error != ESTIMATE_UNKNOWN)
        hist_add(&local->estimate_error, error);
}

/* Answers from a callback of the store. */
static void local_done(struct agent_op *op, icms_err err, enum icms_miss reason)
{
    struct agent *agent = op->shard->agent;

    loop_timer_stop(agent->local->reactor->loop, &op->timer);
    op->err = err;
    op->reason = reason;
    local_load_ended(op, err);
    local_buffer_give(agent->local, op);
    op->answered(op);
}

/* Answers what could not be started: later. */
static void local_fail(struct agent_local *local, struct agent_op *op, icms_err err)
{
    op->err = err;
    op->reason = ICMS_MISS_NONE;
    local_load_ended(op, err);
    local_buffer_give(local, op);
    loop_send(local->reactor->loop, &op->msg, local_back);
}

/* Copies what was read to where it is wanted, if it is not there: the slot, or the memory of a
 * request, if that is still waiting. */
static icms_err local_deliver(struct agent_op *op, const struct store_read *read)
{
    if (read->value_bytes > op->shard->stored_bytes_max ||
        (op->direct == NULL && read->value_bytes > op->space))
        return ICMS_VALUE_SIZE;
    if (op->direct != NULL && list_empty(&op->waiters))
        return ICMS_DEADLINE;
    if (op->direct != NULL)
        return agent_direct_deliver(op, read);
    if (read->value != agent_shard_memory(op->shard, op->slot))
        memcpy(agent_shard_memory(op->shard, op->slot), read->value, read->value_bytes);
    return ICMS_OK;
}

/* A read that need not be the loop's. */
static bool local_instead(struct store_read *read, int fd, uint64_t offset, uint32_t bytes)
{
    struct agent_op *op = container_of(read, struct agent_op, u.read);

    if (!op->is_asked &&
        list_empty(&op->waiters)) /* the request is over, and its memory is not ours */
        return false;
    return agent_reading_begin(&op->reading, op->direct, read, fd, offset, bytes);
}

static void local_read_done(struct store_read *read)
{
    struct agent_op *op = container_of(read, struct agent_op, u.read);
    icms_err err = read->err;
    enum icms_miss reason = err == ICMS_MISS ? read->reason : ICMS_MISS_NONE;

    if (err == ICMS_OK) {
        op->value_bytes = read->value_bytes;
        op->record = read->record;
        err = local_deliver(op, read);
        if (err == ICMS_OK)
            counter_add(&op->shard->agent->local->load_bytes, read->value_bytes);
        else if (err == ICMS_CORRUPT)
            op->bad = true;
    }
    agent_reading_end(&op->reading, read, err);
    local_done(op, err, reason);
}

static void local_write_done(struct store_write *write)
{
    struct agent_op *op = container_of(write, struct agent_op, u.write);

    if (write->err == ICMS_OK)
        counter_add(&op->shard->agent->local->store_bytes, op->stored_bytes);
    local_done(op, write->err, ICMS_MISS_NONE);
}

static void local_delete_done(struct store_delete *delete)
{
    local_done(container_of(delete, struct agent_op, u.delete), delete->err, ICMS_MISS_NONE);
}

static void local_flush_done(struct store_flush *flush)
{
    local_done(container_of(flush, struct agent_op, u.flush), flush->err, ICMS_MISS_NONE);
}

static void local_deadline(struct loop_timer *timer)
{
    struct agent_op *op = container_of(timer, struct agent_op, timer);
    struct agent_local *local = op->shard->agent->local;

    if (op->buffer != NULL) {
        (void)agent_reading_leave(&op->reading);
        return;
    }
    line_leave(&local->waiting, agent_share(op->shard, op->user), &op->link); /* it waits */
    local_fail(local, op, ICMS_DEADLINE);
}

/* ---- the start ------------------------------------------------------------------------------ */

/* Where the record of a load or a store lies: the value, and around it what the store adds. */
static uint8_t *local_record(const struct agent_op *op)
{
    if (op->direct != NULL || !op->shard->in_place)
        return op->buffer;
    return agent_shard_memory(op->shard, op->slot) - STORE_HEADER_BYTES;
}

static icms_err local_start(struct agent_local *local, struct agent_op *op)
{
    struct agent_shard *shard = op->shard;
    uint8_t *record;

    switch (op->kind) {
    case AGENT_OP_LOAD:
        record = local_record(op);
        op->u.read = (struct store_read){
            .volume = shard->number,
            .key = op->key,
            .memory = record,
            .memory_bytes = record == op->buffer ? local->buffer_bytes
                                                 : agent_shard_slot_bytes(shard, op->slot),
            .done = local_read_done};
        if (op->direct != NULL && shard->agent->opts.reader != NULL)
            op->u.read.instead = local_instead;
        return store_read(local->store, &op->u.read);
    case AGENT_OP_STORE:
        record = local_record(op);
        if (record == op->buffer)
            memcpy(record + STORE_HEADER_BYTES, agent_shard_memory(shard, op->slot),
                   op->stored_bytes);
        op->u.write = (struct store_write){.volume = shard->number,
                                           .key = op->key,
                                           .memory = record,
                                           .value_bytes = op->stored_bytes,
                                           .if_absent = op->if_absent,
                                           .done = local_write_done};
        return store_write(local->store, &op->u.write);
    case AGENT_OP_DELETE:
        op->u.delete = (struct store_delete){.volume = shard->number,
                                             .key = op->key,
                                             .only_record = op->record,
                                             .done = local_delete_done};
        return store_delete(local->store, &op->u.delete);
    case AGENT_OP_FLUSH:
        op->u.flush = (struct store_flush){.done = local_flush_done};
        return store_flush(local->store, &op->u.flush);
    case AGENT_OP_EXIST:
        break;
    }
    return ICMS_INVALID;
}

/* It has what it waited for. */
static void local_begin(struct agent_local *local, struct agent_op *op)
{
    icms_err err;

    if (op->kind != AGENT_OP_FLUSH)
        op->buffer = local->buffers[--local->free_count];
    err = local_start(local, op);
    if (err == ICMS_OK)
        return;
    loop_timer_stop(local->reactor->loop, &op->timer);
    local_fail(local, op, err);
}

uint64_t agent_local_bytes(struct agent_local *local, const struct agent_shard *shard,
                           const struct key *key)
{
    uint64_t bytes = 0;

    return store_exists(local->store, shard->number, key, &bytes) ? bytes : 0;
}

enum icms_miss agent_local_exists(struct agent_local *local, const struct agent_shard *shard,
                                  const struct key *key)
{
    if (store_exists(local->store, shard->number, key, NULL))
        return ICMS_MISS_NONE;
    return store_miss_reason(local->store, shard->number, key);
}

void agent_local_ask(struct agent_local *local, struct agent_op *op)
{
    loop_timer_init(&op->timer, local_deadline);
    if (op->kind == AGENT_OP_EXIST) {
        op->reason = agent_local_exists(local, op->shard, &op->key);
        op->err = op->reason == ICMS_MISS_NONE ? ICMS_OK : ICMS_MISS;
        loop_send(local->reactor->loop, &op->msg, local_back);
        return;
    }
    if (op->kind == AGENT_OP_LOAD)
        estimate_begun(&local->estimate, &op->load, agent_local_bytes(local, op->shard, &op->key),
                       reactor_now_ns(local->reactor));
    if (op->deadline_ns != 0 && op->kind != AGENT_OP_FLUSH)
        loop_timer_start(local->reactor->loop, &op->timer, op->deadline_ns);
    if (op->kind != AGENT_OP_FLUSH && local->free_count == 0) {
        line_push(&local->waiting, agent_share(op->shard, op->user), &op->link);
        return;
    }
    op->is_asked = true;
    local_begin(local, op);
    op->is_asked = false;
}

/* ---- life ----------------------------------------------------------------------------------- */

/* Lets the device at arenas, as many as are pinned: a buffer that is pinned costs less than a slot
 * that is not. */
static void local_pin(struct agent_local *local, struct agent *agent)
{
    uint64_t left = AGENT_LOCAL_PINNED_BYTES;

    for (uint32_t i = 0; i < agent->arena_count; i++) {
        struct loop_region *region = agent->arenas[i].region;

        if (loop_region_bytes(region) > left)
            continue;
        if (fault_hit("agent.pin") ||
            loop_region_register(local->reactor->loop, region, NULL) != ICMS_OK)
            return;
        left -= loop_region_bytes(region);
        for (uint32_t j = 0; j < agent->volume_count; j++)
            if (agent->volumes[j].arena == i)
                local->reactor->shards[j].in_place = true;
    }
}

static icms_err local_buffers(struct agent_local *local, struct agent *agent, struct err_why *why)
{
    uint8_t *base;
    icms_err err;

    err = loop_region_new(agent->env, "icms-local", AGENT_LOCAL_BUFFERS * local->buffer_bytes,
                          false, why, &local->region);
    if (err != ICMS_OK)
        return err;
    /* Without locked pages it works unpinned, and arenas are not tried. */
    if (loop_region_register(local->reactor->loop, local->region, NULL) == ICMS_OK &&
        agent->opts.own_process)
        local_pin(local, agent);
    base = loop_region_base(local->region);
    for (uint32_t i = 0; i < AGENT_LOCAL_BUFFERS; i++)
        local->buffers[i] = base + i * local->buffer_bytes;
    local->free_count = AGENT_LOCAL_BUFFERS;
    return ICMS_OK;
}

void agent_local_store_opts(const struct agent_opts *opts, struct store_opts *out)
{
    store_opts_init(out);
    out->path = opts->local_path;
    out->bytes = opts->local_bytes;
    out->sparse = opts->local_sparse;
    out->budget = opts->local_budget;
    if (opts->local_segment_bytes != 0)
        out->segment_bytes = opts->local_segment_bytes;
    out->value_bytes_max = LIMIT_DISK_ALIGN;
    for (uint32_t i = 0; i < opts->volume_count; i++)
        out->value_bytes_max =
            u64_max(out->value_bytes_max, volume_stored_bytes_max(&opts->volumes[i]));
    out->writes_max = AGENT_LOCAL_BUFFERS;
}

icms_err agent_local_check(const struct agent_opts *opts, struct err_why *why)
{
    struct store_opts store;

    agent_local_store_opts(opts, &store);
    return store_check(&store, why);
}

/* For store_ops: volumes have the numbers of the agent. */
static void local_told(void *arg, uint32_t volume, const struct key *key, bool is_there)
{
    agent_events_drive(arg, volume, key, is_there);
}

/* For store_ops. */
static void local_down(void *arg)
{
    agent_events_drive_lost(arg);
}

/* A drive that an agent has beside a pod holds what the pod may have replaced since, and would be
 * trusted there again. */
static icms_err local_owner(const struct agent *agent, const struct store_opts *opts,
                            struct err_why *why)
{
    struct agent_tier_note_df note;
    struct uuid drive;
    bool lost = false;
    icms_err err = store_note_read(agent->env, opts->path, why, &drive, &note, &lost);

    if (err != ICMS_OK || !agent_tier_note_is(&note))
        return err;
    return err_set(why, ICMS_FOREIGN, "%s is the own drive of an agent beside a pod", opts->path);
}

static icms_err local_open(struct agent_local *local, struct agent *agent, struct err_why *why)
{
    struct uuid volumes[LIMIT_AGENT_VOLUMES];
    struct store_opts opts;
    icms_err err;

    for (uint32_t i = 0; i < agent->volume_count; i++)
        volumes[i] = agent->volumes[i].spec.uuid;
    agent_local_store_opts(&agent->opts, &opts);
    opts.volumes = volumes;
    opts.volume_count = agent->volume_count;
    opts.ops = (struct store_ops){.down = local_down,
                                  .index = agent->opts.events != 0 ? local_told : NULL};
    opts.owner = agent;
    local->buffer_bytes = store_record_bytes(opts.value_bytes_max);
    err = local_buffers(local, agent, why);
    if (err != ICMS_OK)
        return err;
    err = store_format(agent->env, &opts, false, why);
    if (err == ICMS_EXISTS)
        err = local_owner(agent, &opts, why);
    if (err == ICMS_OK)
        err = store_open(local->reactor->loop, &opts, why, &local->store);
    if (err == ICMS_FOREIGN || err == ICMS_VERSION || err == ICMS_CORRUPT) {
        struct err_why cause = *why;

        return err_set(why, err, "%.400s; use another path, or empty it first", cause.text);
    }
    for (uint32_t i = 0; i < agent->volume_count && err == ICMS_OK; i++)
        err = store_volume_limit(local->store, i, agent->volumes[i].spec.quota_bytes, NULL, why);
    return err;
}

icms_err agent_local_new(struct agent *agent, struct err_why *why)
{
    struct agent_local *local = calloc(1, sizeof(*local));

    if (local == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the drive %s", agent->opts.local_path);
    agent->local = local;
    local->reactor = &agent->reactors[0];
    local->line_memory = malloc(line_bytes(agent->volume_count, AGENT_MEMBERS));
    if (local->line_memory == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the users of the drive %s",
                       agent->opts.local_path);
    line_init(&local->waiting, local->line_memory, agent->volume_count, AGENT_MEMBERS,
              agent->weights);
    return local_open(local, agent, why);
}

/* After the loops ended: no reader comes back to it. */
void agent_local_stop(struct agent_local *local)
{
    for (uint32_t i = 0; i < AGENT_OPS; i++)
        agent_reading_stop(&local->reactor->ops[i].reading);
}

void agent_local_free(struct agent_local **local)
{
    if (*local == NULL)
        return;
    store_close(&(*local)->store);
    loop_region_free(&(*local)->region);
    free((*local)->line_memory);
    free(*local);
    *local = NULL;
}
