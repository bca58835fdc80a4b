/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/copy.c: blocks in device memory: their values lie in pinned memory of a copier
 * (src/device) on the way.
 *
 * A get takes its copy before anything else (send.c); its value is received, verified and decrypted
 * in the copy's memory as in a caller's. One that lies in a pinned arena is verified there, and the
 * copy reads it there, with the lease of its slot, which it gives back when it has ended; its
 * pinned memory is free at once (client_copy_from_arena). When the block would be done with OK, it
 * is copied to the device instead (client_copy_hold), and done when that is over
 * (client_copies_take). With an agent in this process that has the block on its own drive, the
 * value may have been read to the device already (client_reader): the copy is the same, and comes
 * from there. A put starts its copy first, and its value goes on from the copy's memory
 * when that is over. Each end of a block gives its copy back; what the driver still has then is the
 * copier's to wait for.
 *
 * Runs on the request's thread. A driver is asked for nothing here but to record an event on the
 * stream that the call named.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "client/client_int.h"
#include "client/local.h"

/* How long a request waits for its copies without sleeping, all in all. */
#define COPIES_LOOK_NS ((uint64_t)50 * 1000)

struct device_copy *client_copy_find(const struct icms_request *request, size_t index)
{
    list_for_each (at, &request->copies) {
        struct device_copy *copy = container_of(at, struct device_copy, link);

        if (copy->index == index)
            return copy;
    }
    return NULL;
}

/* A range of the device on which all device memory of a request lies. OK with NULL: it has none.
 * Lock. */
static icms_err mark_memory(const struct icms_request *request, struct icms_memory **out_memory)
{
    *out_memory = NULL;
    for (size_t i = 0; i < request->count; i++) {
        struct icms_memory *memory;

        if (request->pieces != 0 && request->blocks[i].data == NULL)
            continue;
        memory = client_memory_find(request->icms, client_block_begin(request, i));
        if (memory == NULL || memory->device == NULL)
            continue;
        if (*out_memory != NULL && memory->device != (*out_memory)->device)
            return ICMS_INVALID;
        *out_memory = memory;
    }
    return ICMS_OK;
}

icms_err client_copy_mark(struct icms_request *request)
{
    struct icms *icms = request->icms;
    struct icms_memory *memory = NULL;
    bool marked;
    icms_err err;
    int code;

    if ((uintptr_t)request->stream == DEVICE_STREAM_PER_THREAD)
        return ICMS_INVALID;
    client_lock(icms);
    err = mark_memory(request, &memory);
    if (err == ICMS_OK && memory != NULL) {
        request->marked = memory->device->copier;
        (void)atomic_fetch_add(&memory->users, 1); /* it keeps the copier */
    }
    client_unlock(icms);
    if (err != ICMS_OK || memory == NULL)
        return err;
    marked =
        device_mark_take(request->marked, request->stream, &memory->users, &request->mark, &code);
    (void)atomic_fetch_sub(&memory->users, 1);
    if (marked)
        return ICMS_OK;
    if (device_is_capture(code))
        return ICMS_INVALID;
    return code == 0 ? ICMS_LIMIT : ICMS_DEVICE;
}

icms_err client_copy_take(struct icms_request *request, size_t index, struct icms_memory *memory,
                          struct device_copy **out_copy)
{
    const struct icms_block *block = &request->blocks[index];
    struct device_copier *copier = memory->device->copier;
    uint64_t address = (uint64_t)(uintptr_t)block->data, bytes = block->bytes;
    struct device_piece pieces[ICMS_PIECES_MAX];
    struct device_copy *copy;

    *out_copy = NULL;
    if (request->pieces == 0 && bytes > memory->bytes - (address - memory->address))
        return ICMS_INVALID;
    if (client_pieces_device(request, index, memory, pieces) != ICMS_OK)
        return ICMS_INVALID;
    if (device_copier_is_failed(copier))
        return ICMS_DEVICE;
    if (request->stream != NULL && request->marked != copier)
        return ICMS_INVALID; /* registered after the call began */
    if (bytes > client_value_bytes_max(request->volume))
        bytes = client_value_bytes_max(request->volume);
    if (bytes > device_copier_bytes(copier))
        return ICMS_LIMIT;
    copy = device_copy_take(copier, bytes, &memory->users);
    if (copy == NULL)
        return ICMS_OK;
    if (request->pieces != 0)
        device_copy_pieces(copy, pieces, request->pieces);
    copy->index = index;
    copy->order = (struct device_order){
        .direction = request->op == SHM_OP_PUT ? DEVICE_OUT : DEVICE_IN,
        .address = address,
        .id = memory->id,
        .mark = request->mark,
        .stream = request->op == SHM_OP_PUT ? NULL : request->stream,
    };
    list_push(&request->copies, &copy->link);
    atomic_fetch_add(&request->copy_count, 1);
    *out_copy = copy;
    return ICMS_OK;
}

/* A copy does not read the slot any more. The copier's lock is held, so nothing here may fail. */
static void copy_let_go(void *arg, uint32_t lease)
{
    struct client_link *link = arg;

    client_lease_let_go(link, lease);
    (void)atomic_fetch_sub(&link->device_leases, 1);
}

bool client_copy_from_arena(const struct icms_request *request, struct device_copy *copy,
                            const uint8_t *value, uint32_t value_bytes, uint32_t *lease)
{
    struct client_link *link = request->link_used;

    if (atomic_fetch_add(&link->device_leases, 1) >= CLIENT_LEASES_DEVICE ||
        !device_copy_from(copy, value, value_bytes, copy_let_go, link, *lease)) {
        (void)atomic_fetch_sub(&link->device_leases, 1);
        return false;
    }
    *lease = CLIENT_LEASE_NONE;
    return true;
}

void client_copy_start(struct icms_request *request, struct device_copy *copy, uint64_t bytes)
{
    struct device_order order = copy->order;

    check(client_copy_find(request, copy->index) == copy);
    order.bytes = bytes;
    device_copy_start(copy, &order);
}

bool client_copy_hold(struct icms_request *request, size_t index, icms_err status)
{
    struct device_copy *copy = client_copy_find(request, index);

    if (copy == NULL)
        return false;
    if (request->op == SHM_OP_GET && status == ICMS_OK && !copy->started) {
        client_copy_start(request, copy, request->blocks[index].bytes);
        return true;
    }
    list_remove(&copy->link);
    atomic_fetch_sub(&request->copy_count, 1);
    device_copy_give(copy);
    request->copies_given = true;
    return false;
}

bool client_copies_are_over(const struct icms_request *request)
{
    list_for_each (at, &request->copies) {
        const struct device_copy *copy = container_of(at, struct device_copy, link);

        if (!copy->started || device_copy_is_over(copy) == COPY_NOT_OVER)
            continue;
        if (request->op == SHM_OP_GET || (request->copying && copy->index == request->next))
            return true;
    }
    return false;
}

void client_copies_take(struct icms_request *request)
{
    if (request->op != SHM_OP_GET)
        return; /* client_send_next looks itself */
    list_for_each_safe (at, &request->copies) {
        const struct device_copy *copy = container_of(at, struct device_copy, link);
        enum device_copy_over over = device_copy_is_over(copy);
        size_t index = copy->index;

        if (!copy->started || over == COPY_NOT_OVER)
            continue;
        if (over == COPY_FAILED)
            request->blocks[index].source = ICMS_SOURCE_NONE;
        client_block_done(request, index, over == COPY_DONE ? ICMS_OK : ICMS_DEVICE,
                          ICMS_MISS_NONE);
    }
}

/* The device has it, and a get waits for it. */
static bool copy_is_waited_for(const struct icms_request *request, const struct device_copy *copy)
{
    return request->op == SHM_OP_GET && copy->started && device_copy_is_over(copy) == COPY_NOT_OVER;
}

bool client_copies_are_started(const struct icms_request *request)
{
    list_for_each (at, &request->copies)
        if (copy_is_waited_for(request, container_of(at, struct device_copy, link)))
            return true;
    return false;
}

void client_copies_look(struct icms_request *request, uint64_t until_ns)
{
    uint64_t begin, now;

    if (request->looked_ns >= COPIES_LOOK_NS ||
        !(request->copying || client_copies_are_started(request)))
        return;
    begin = now = client_now_ns();
    until_ns = u64_min(until_ns, begin + COPIES_LOOK_NS - request->looked_ns);
    while (now < until_ns && !client_copies_are_over(request))
        now = client_now_ns();
    request->looked_ns += now - begin;
}

void client_copies_lose(struct icms_request *request, icms_err why)
{
    /* Blocks of a put that were not sent are given up with the others. */
    list_for_each_safe (at, &request->copies) {
        const struct device_copy *copy = container_of(at, struct device_copy, link);

        if (copy_is_waited_for(request, copy))
            client_block_give_up(request, copy->index, why);
    }
}

void client_copies_end(struct icms_request *request)
{
    struct icms *icms = request->icms;

    if (request->copies_given &&
        (!list_empty(&icms->rooms[ROOM_COPIES]) || !list_empty(&icms->rooms[ROOM_LEASES]))) {
        icms->room_epoch++;
        client_wake(icms);
    }
    request->copies_given = false;
    if (request->done == request->count && request->mark != NULL) {
        device_mark_give(request->mark);
        request->mark = NULL;
    }
}

const struct block_reader *client_reader(void)
{
    return &device_cufile_reader;
}
