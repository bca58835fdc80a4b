/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/lease.c: blocks and buffers without a copy.
 *
 * Any thread. A lease is an entry of the client's table in shared memory: while it names a slot,
 * the agent leaves the slot as it is, and when this process ends the agent takes the entry back.
 * A buffer is staging memory that the caller fills itself.
 */
#include "base/check.h"
#include "client/client_int.h"

icms_err icms_lease_take(struct icms_volume *volume, const struct icms_key *key,
                         const struct icms_request_options *options, enum icms_miss *out_reason,
                         struct icms_lease *out_lease)
{
    struct icms_request request = {0};
    struct icms_block block = {0};
    struct icms *icms;
    icms_err err;

    if (volume == NULL || key == NULL || out_lease == NULL)
        return ICMS_INVALID;
    block.key = *key;
    err = client_lease_load(volume, &block, options, &request);
    if (out_reason != NULL)
        *out_reason = block.reason;
    if (request.magic != CLIENT_REQUEST_MAGIC)
        return err; /* the call never began */
    icms = volume->icms;
    if (err == ICMS_OK) {
        check(request.lease_index != CLIENT_LEASE_NONE);
        out_lease->data = request.lease_data;
        out_lease->bytes = block.bytes;
        out_lease->index = request.lease_index;
        out_lease->owner = icms->link;
        check(pthread_mutex_lock(&icms->lock) == 0);
        icms->link->leases++;
        check(pthread_mutex_unlock(&icms->lock) == 0);
    }
    client_call_end(icms);
    return err;
}

void icms_lease_give(struct icms_lease *lease)
{
    struct client_link *link;
    struct icms *icms;

    if (lease == NULL || lease->owner == NULL)
        return;
    link = lease->owner;
    icms = link->icms;
    if (!client_forked(icms)) {
        client_lease_give(link, lease->index);
        check(pthread_mutex_lock(&icms->lock) == 0);
        check(link->leases > 0);
        link->leases--;
        client_link_rele(link);
        check(pthread_mutex_unlock(&icms->lock) == 0);
    }
    *lease = (struct icms_lease){0};
}

/* ---- buffers -------------------------------------------------------------------------------- */

icms_err icms_buffer_take(struct icms *icms, uint64_t bytes, void **out_data)
{
    icms_err err;

    if (icms == NULL || out_data == NULL || bytes == 0)
        return ICMS_INVALID;
    err = client_call_begin(icms);
    if (err != ICMS_OK)
        return err;
    check(pthread_mutex_lock(&icms->lock) == 0);
    err = ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < CLIENT_BUFFERS; i++) {
        struct client_buffer *buffer = &icms->link->buffers[i];

        if (buffer->used)
            continue;
        if (bytes <= LIMIT_VALUE_BYTES &&
            staging_take(&icms->link->staging, bytes + LIMIT_TRAILER_BYTES, &buffer->offset)) {
            *buffer = (struct client_buffer){.offset = buffer->offset,
                                             .bytes = bytes + LIMIT_TRAILER_BYTES,
                                             .room = bytes,
                                             .used = true};
            *out_data = icms->link->ring.staging + buffer->offset;
            err = ICMS_OK;
        }
        break;
    }
    check(pthread_mutex_unlock(&icms->lock) == 0);
    client_call_end(icms);
    return err;
}

/* True when data was a buffer of this link; it is free again, or when its put is answered. Lock. */
static bool buffer_give(struct client_link *link, const void *data)
{
    for (uint32_t i = 0; i < CLIENT_BUFFERS; i++) {
        struct client_buffer *buffer = &link->buffers[i];

        if (!buffer->used || buffer->given || link->ring.staging + buffer->offset != data)
            continue;
        if (buffer->busy) {
            buffer->given = true; /* client_op_free frees it */
            return true;
        }
        staging_give(&link->staging, buffer->offset, buffer->bytes);
        buffer->used = false;
        return true;
    }
    return false;
}

void icms_buffer_give(struct icms *icms, void *data)
{
    bool found = false;

    if (icms == NULL || data == NULL || client_forked(icms))
        return;
    check(pthread_mutex_lock(&icms->lock) == 0);
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
    check(pthread_mutex_unlock(&icms->lock) == 0);
}
