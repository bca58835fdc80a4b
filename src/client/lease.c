/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/lease.c: blocks and buffers without a copy.
 *
 * Any thread. A lease is an entry of the client's table in shared memory: while it names a slot,
 * the agent leaves the slot as it is, and when this process ends the agent takes the entry back.
 * A buffer is staging memory that the caller fills itself. In a handle with keys both are private
 * memory where the agent would see plain bytes: leases of encrypted volumes, and all buffers.
 */
#include "base/check.h"
#include "client/client_int.h"

struct lease_call {
    struct icms_volume *volume;
    const struct icms_request_options *options;
    struct icms_block block;
    struct icms_lease lease;
    icms_err err;
};

/* A lease of an encrypted volume is memory of ours: the slot is the agent's again. Lock. */
static void lease_private(struct client_link *link, const struct icms_request *request)
{
    if (request->private_bytes == 0)
        return;
    link->privates[request->lease_index].offset = request->private_offset;
    link->privates[request->lease_index].bytes = request->private_bytes;
    atomic_store_explicit(&link->rings[0].leases[request->lease_index], 0, memory_order_release);
}

static void lease_take_inside(void *arg)
{
    struct lease_call *call = arg;
    struct icms *icms = call->volume->icms;
    struct icms_request request = {0};

    call->err = client_lease_load(call->volume, &call->block, call->options, &request);
    if (request.magic != CLIENT_REQUEST_MAGIC)
        return; /* the call never began */
    client_lock(icms);
    if (call->err == ICMS_OK) {
        check(request.lease_index != CLIENT_LEASE_NONE);
        call->lease = (struct icms_lease){
            .data = request.lease_data,
            .bytes = call->block.bytes,
            .index = request.lease_index,
            .owner = icms->link,
        };
        lease_private(icms->link, &request);
    } else if (request.private_bytes != 0) {
        staging_give(&icms->crypt->staging, request.private_offset, request.private_bytes);
    }
    client_call_leave(icms);
    icms->link->leases += call->err == ICMS_OK; /* nothing fails from here on */
    client_unlock(icms);
}

icms_err icms_lease_take(struct icms_volume *volume, const struct icms_key *key,
                         const struct icms_request_options *options, enum icms_miss *out_reason,
                         struct icms_lease *out_lease)
{
    struct lease_call call = {.volume = volume, .options = options};

    if (volume == NULL || key == NULL || out_lease == NULL || volume->magic != CLIENT_VOLUME_MAGIC)
        return ICMS_INVALID;
    if (client_forked(volume->icms))
        return ICMS_FORKED;
    call.block.key = *key;
    if (!client_guarded(volume->icms, lease_take_inside, &call)) {
        call.block.reason = ICMS_MISS_NONE;
        call.err = ICMS_CLOSED;
    }
    if (out_reason != NULL)
        *out_reason = call.block.reason;
    if (call.err == ICMS_OK)
        *out_lease = call.lease;
    return call.err;
}

static void lease_give_inside(void *arg)
{
    const struct icms_lease *lease = arg;
    struct client_link *link = lease->owner;
    struct icms *icms = link->icms;

    client_lock(icms);
    if (client_lease_back(link, lease->index))
        client_link_rele(link); /* it may be gone then */
    client_unlock(icms);
}

void icms_lease_give(struct icms_lease *lease)
{
    struct client_link *link;

    if (lease == NULL || lease->owner == NULL)
        return;
    link = lease->owner;
    if (!client_forked(link->icms) && !client_guarded(link->icms, lease_give_inside, lease))
        client_failed_lease_give(link, lease->index);
    *lease = (struct icms_lease){0};
}

/* ---- buffers -------------------------------------------------------------------------------- */

struct buffer_call {
    struct icms *icms;
    uint64_t bytes;
    void *data;
    icms_err err;
};

static uint8_t *buffer_memory(const struct client_link *link, const struct client_buffer *buffer)
{
    return (buffer->is_private ? link->icms->crypt->base : link->rings[0].staging) + buffer->offset;
}

static void buffer_take_inside(void *arg)
{
    struct buffer_call *call = arg;
    struct icms *icms = call->icms;
    uint64_t bytes = call->bytes;

    call->err = client_call_begin(icms);
    if (call->err != ICMS_OK)
        return;
    client_lock(icms);
    call->err = ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < CLIENT_BUFFERS; i++) {
        struct client_buffer *buffer = &icms->link->buffers[i];

        if (buffer->used)
            continue;
        if (bytes <= LIMIT_VALUE_BYTES &&
            staging_take(icms->crypt != NULL ? &icms->crypt->staging : &icms->link->staging,
                         bytes + LIMIT_TRAILER_BYTES, &buffer->offset)) {
            *buffer = (struct client_buffer){.offset = buffer->offset,
                                             .bytes = bytes + LIMIT_TRAILER_BYTES,
                                             .room = bytes,
                                             .is_private = icms->crypt != NULL,
                                             .used = true};
            call->data = buffer_memory(icms->link, buffer);
            call->err = ICMS_OK;
        }
        break;
    }
    client_call_leave(icms);
    client_unlock(icms);
}

icms_err icms_buffer_take(struct icms *icms, uint64_t bytes, void **out_data)
{
    struct buffer_call call = {.icms = icms, .bytes = bytes};

    if (icms == NULL || out_data == NULL || bytes == 0)
        return ICMS_INVALID;
    if (client_forked(icms))
        return ICMS_FORKED;
    if (!client_guarded(icms, buffer_take_inside, &call))
        return ICMS_CLOSED;
    if (call.err == ICMS_OK)
        *out_data = call.data;
    return call.err;
}

/* True when data was a buffer of this link; it is free again, or when its put is answered. Lock. */
static bool buffer_give(struct client_link *link, const void *data)
{
    for (uint32_t i = 0; i < CLIENT_BUFFERS; i++) {
        struct client_buffer *buffer = &link->buffers[i];

        if (!buffer->used || buffer->given || buffer_memory(link, buffer) != data)
            continue;
        if (buffer->busy) {
            buffer->given = true; /* client_op_free frees it */
            return true;
        }
        staging_give(buffer->is_private ? &link->icms->crypt->staging : &link->staging,
                     buffer->offset, buffer->bytes);
        buffer->used = false;
        return true;
    }
    return false;
}

static void buffer_give_inside(void *arg)
{
    const struct buffer_call *call = arg;
    struct icms *icms = call->icms;
    void *data = call->data;
    bool found = false;

    client_lock(icms);
    if (icms->link != NULL && buffer_give(icms->link, data)) {
        found = true;
        icms->room_epoch++;
        client_wake(icms);
    }
    list_for_each_safe (at, &icms->retired) {
        struct client_link *link = container_of(at, struct client_link, retired);

        if (!found && buffer_give(link, data)) {
            found = true;
            client_link_rele(link);
        }
    }
    client_unlock(icms);
}

void icms_buffer_give(struct icms *icms, void *data)
{
    struct buffer_call call = {.icms = icms, .data = data};

    if (icms == NULL || data == NULL || client_forked(icms))
        return;
    (void)!client_guarded(icms, buffer_give_inside, &call); /* failed: icms_close frees it */
}
