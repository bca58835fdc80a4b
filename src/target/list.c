/* SPDX-License-Identifier: Apache-2.0 */
/*
 * List: the keys of a volume on all drives, in one stable order.
 *
 * A pass visits every drive in service for its first TARGET_LIST_KEYS keys from a start on and
 * keeps the first TARGET_LIST_KEYS of all of them; a key on two drives counts once. The pass's keys
 * are written to the host's data; if they were all there was room for in memory and the data has
 * room for more, another pass starts behind the last one. The memory for keys belongs to the loop
 * the command came from; one List at a time uses it, the others wait in order.
 */
#include "base/check.h"
#include "target/target_int.h"
#include "wire/nvme_kv.h"

/* The order of store_list: by the 16 bytes, then by length. */
static int list_compare(const struct key *a, const struct key *b)
{
    int order = memcmp(a->bytes, b->bytes, sizeof(a->bytes));

    return order != 0 ? order : (int)a->length - (int)b->length;
}

static uint32_t list_home(const struct target_req *req)
{
    for (uint32_t i = 0; i < req->target->opts.loops; i++)
        if (req->target->loops[i] == req->nvmf->loop)
            return i;
    check(!"commands come from our loops");
    return 0;
}

/* Merges found into keys; what does not fit at the end is dropped. */
static void list_merge(struct target_list *list, uint32_t found_count)
{
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t n = 0;

    while (n < TARGET_LIST_KEYS && (a < list->key_count || b < found_count)) {
        int order = a == list->key_count ? 1
                    : b == found_count   ? -1
                                         : list_compare(&list->keys[a], &list->found[b]);

        list->merged[n++] = order <= 0 ? list->keys[a] : list->found[b];
        a += order <= 0;
        b += order >= 0;
    }
    memcpy(list->keys, list->merged, n * sizeof(list->keys[0]));
    list->key_count = n;
}

/* Writes the keys of a pass behind those written before; false when the host's data is full. */
static bool list_write(struct target_req *req, struct target_list *list,
                       struct nvme_kv_list_writer *writer)
{
    for (uint32_t i = 0; i < list->key_count; i++) {
        if (req->list_past && list_compare(&list->keys[i], &req->list_from) == 0)
            continue;
        if (!nvme_kv_list_write_key(writer, &list->keys[i]))
            return false;
    }
    return true;
}

static void list_pass(struct target_req *req, struct target_list *list)
{
    list->key_count = 0;
    req->index = 0;
}

/* On the queue pair's loop: takes the loop's list memory, or waits for it. */
enum target_step target_list_begin(struct target_req *req)
{
    struct target_list *list;
    struct nvme_kv_list_writer writer;

    req->home = list_home(req);
    list = &req->target->lists[req->home];
    if (list->owner != NULL && list->owner != req) {
        req->state = TARGET_REQ_LIST_WAIT;
        list_push(&list->parked, &req->link);
        return TARGET_WAIT;
    }
    list->owner = req;
    req->list_from = req->nvmf->key;
    req->list_past = false;
    nvme_kv_list_write_begin(&writer, req->nvmf->memory, req->nvmf->host_bytes);
    req->list_bytes = writer.bytes;
    req->list_count = writer.count;
    list_pass(req, list);
    req->state = TARGET_REQ_LIST;
    return TARGET_NEXT;
}

/* On the queue pair's loop: the answer is whole; the next in line may start. */
static enum target_step list_end(struct target_req *req, struct target_list *list)
{
    struct list *link = list_pop(&list->parked);

    list->owner = NULL;
    req->nvmf->value = req->nvmf->memory;
    req->nvmf->done_bytes = req->list_bytes;
    req->nvmf->err = ICMS_OK;
    req->state = TARGET_REQ_REPLY;
    if (link != NULL) {
        struct target_req *next = container_of(link, struct target_req, link);

        list->owner = next;
        target_req_run(next);
    }
    return TARGET_NEXT;
}

/* A pass is over: write it down. */
static enum target_step list_pass_end(struct target_req *req, struct target_list *list)
{
    struct nvme_kv_list_writer writer = {
        .memory = req->nvmf->memory,
        .bytes_max = req->nvmf->host_bytes,
        .bytes = req->list_bytes,
        .count = req->list_count,
    };
    bool room = list_write(req, list, &writer);

    nvme_kv_list_write_end(&writer);
    req->list_bytes = writer.bytes;
    req->list_count = writer.count;
    if (!room || list->key_count < TARGET_LIST_KEYS)
        return list_end(req, list);
    req->list_from = list->keys[TARGET_LIST_KEYS - 1];
    req->list_past = true;
    list_pass(req, list);
    return TARGET_NEXT;
}

enum target_step target_list_run(struct target_req *req)
{
    struct target *target = req->target;
    struct target_list *list = &target->lists[req->home];
    struct target_drive *drive;

    while (req->index < target->opts.drive_count && !target_drive_in(target, req->index))
        req->index++;
    if (req->index == target->opts.drive_count) {
        if (!target_req_at(req, req->nvmf->loop))
            return TARGET_WAIT;
        return list_pass_end(req, list);
    }
    drive = &target->drives[req->index];
    if (!target_req_at(req, drive->loop))
        return TARGET_WAIT;
    list_merge(list, store_list(drive->store, drive->volume[req->nvmf->ns],
                                req->list_from.length == 0 ? NULL : &req->list_from, list->found,
                                TARGET_LIST_KEYS));
    req->index++;
    return TARGET_NEXT;
}
