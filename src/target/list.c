/* SPDX-License-Identifier: Apache-2.0 */
/*
 * List: the keys of a volume on all drives, in the order of store_list.
 *
 * A pass gives the keys between two positions of that order. Drives that drain are asked first: a
 * value goes from them to the others, and is there before it is gone here, so a key that moves is
 * found at one of the two. The first drive that is asked decides how far the pass goes: it is asked
 * for its part of TARGET_LIST_KEYS keys, in slices of TARGET_LIST_STEPS places of its index; the
 * other drives are asked for what they have up to there. Between slices the request goes to the end
 * of its loop's line, so loads that came meanwhile go first. A key on two drives counts once. The
 * keys are written to the host's data, and if that has room for more, another pass begins where
 * this one ended.
 *
 * The memory for keys belongs to the loop the command came from. One pass at a time uses it; Lists
 * take turns by pass. A List whose host is gone ends with its pass.
 *
 * The order is the same until the enclosure restarts: it follows the seed of the drives' indexes,
 * which is secret so that keys cannot be chosen to share a chain.
 */
#include "base/check.h"
#include "target/target_int.h"
#include "wire/nvme_kv.h"

/* Merges what a drive has into keys; what does not fit at the end is dropped, and is for the next
 * pass. */
static void list_merge(struct target_list *list)
{
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t n = 0;

    while (n < TARGET_LIST_KEYS && (a < list->key_count || b < list->found_count)) {
        int order = a == list->key_count ? 1
                    : b == list->found_count
                        ? -1
                        : store_position_compare(&list->keys[a], &list->found[b]);

        list->merged[n++] = order <= 0 ? list->keys[a] : list->found[b];
        a += order <= 0;
        b += order >= 0;
    }
    if (a < list->key_count || b < list->found_count)
        list->until = list->merged[n - 1];
    memcpy(list->keys, list->merged, n * sizeof(list->keys[0]));
    list->key_count = n;
}

/* Writes the keys of a pass behind those written before; false when the host's data is full. */
static bool list_write(struct target_req *req, const struct target_list *list)
{
    struct nvme_kv_list_writer writer = {
        .memory = req->nvmf->memory,
        .bytes_max = req->nvmf->host_bytes,
        .bytes = req->list_bytes,
        .count = req->list_count,
    };
    bool room = true;

    for (uint32_t i = 0; i < list->key_count && room; i++)
        if (store_position_compare(&list->keys[i], &list->until) <= 0)
            room = nvme_kv_list_write_key(&writer, &list->keys[i].key);
    nvme_kv_list_write_end(&writer);
    req->list_bytes = writer.bytes;
    req->list_count = writer.count;
    return room;
}

/* The turn of a drive in a pass is its number, or, for one that does not drain, so much more. */
static void list_ask(struct target_req *req, struct target_list *list, uint32_t turn)
{
    req->index = turn;
    list->at = req->list_from;
    list->slices = list->found_count = 0;
}

/* A pass begins, perhaps anew. */
static void list_pass(struct target_req *req, struct target_list *list)
{
    list->drains = atomic_load_explicit(&req->target->drains, memory_order_acquire);
    list->until = store_position_end;
    list->open = true;
    list->key_count = 0;
    list_ask(req, list, 0);
}

/* Whether a drive in service has this turn. */
static bool list_turn(const struct target_req *req, const struct target_list *list)
{
    uint32_t drive = req->index % LIMIT_DRIVES;
    bool drains = (list->drains >> drive & 1) != 0;

    return drains == (req->index < LIMIT_DRIVES) && target_drive_in(req->target, drive);
}

/* On the queue pair's loop, new. */
enum target_step target_list_begin(struct target_req *req)
{
    struct nvme_kv_list_writer writer;

    req->home = target_loop_index(req->target, req->nvmf->loop);
    req->list_from = (struct store_position){0};
    req->list_placed = req->nvmf->key.length == 0;
    nvme_kv_list_write_begin(&writer, req->nvmf->memory, req->nvmf->host_bytes);
    req->list_bytes = writer.bytes;
    req->list_count = writer.count;
    target_req_state_set(req, TARGET_REQ_LIST_WAIT);
    return TARGET_NEXT;
}

/* The memory goes to the next in line, which begins in a later turn. */
static void list_hand_on(struct target_list *list)
{
    struct list *link = list_pop(&list->parked);

    list->owner = link == NULL ? NULL : container_of(link, struct target_req, link);
    if (list->owner != NULL)
        target_req_defer(list->owner);
}

static enum target_step list_answer(struct target_req *req)
{
    req->nvmf->value = req->nvmf->memory;
    req->nvmf->done_bytes = req->list_bytes;
    req->nvmf->err = ICMS_OK;
    target_req_state_set(req, TARGET_REQ_REPLY);
    return TARGET_NEXT;
}

/* On the queue pair's loop: takes the loop's list memory for a pass, or waits for it. */
enum target_step target_list_wait(struct target_req *req)
{
    struct target_list *list = &req->target->lists[req->home];

    if (list->owner != NULL && list->owner != req) {
        list_push(&list->parked, &req->link);
        return TARGET_WAIT;
    }
    if (req->nvmf->unwanted) {
        list_hand_on(list);
        return list_answer(req);
    }
    list->owner = req;
    list_pass(req, list);
    target_req_state_set(req, TARGET_REQ_LIST);
    return TARGET_NEXT;
}

/* A pass is over: write it down. */
static enum target_step list_pass_end(struct target_req *req, struct target_list *list)
{
    bool more =
        list_write(req, list) && store_position_compare(&list->until, &store_position_end) < 0;

    req->list_from = list->until;
    list_hand_on(list);
    if (!more)
        return list_answer(req);
    target_req_state_set(req, TARGET_REQ_LIST_WAIT);
    return TARGET_NEXT;
}

/* One slice of a drive; true when the drive has given its part of the pass. On the drive's loop. */
static bool list_slice(struct target_req *req, struct target_list *list,
                       const struct target_drive *drive)
{
    uint32_t volume = req->nvmf->ns;
    uint32_t keys_max =
        (uint32_t)(list->open ? TARGET_LIST_KEYS / u64_max(target_listed(req->target), 1)
                              : TARGET_LIST_KEYS);

    if (!req->list_placed)
        list->at = req->list_from = store_position_before(drive->store, volume, &req->nvmf->key);
    req->list_placed = true;
    list->found_count +=
        store_list(drive->store, volume, &list->at, &list->until, TARGET_LIST_STEPS,
                   &list->found[list->found_count], keys_max - list->found_count);
    if (store_position_compare(&list->at, &list->until) >= 0)
        return true;
    if (list->found_count < keys_max && !(list->open && ++list->slices == TARGET_LIST_SLICES))
        return false;
    list->until = list->at; /* the first drive sets the end, or one has more than there is room */
    return true;
}

enum target_step target_list_run(struct target_req *req)
{
    struct target *target = req->target;
    struct target_list *list = &target->lists[req->home];
    struct target_drive *drive;

    while (req->index < 2 * LIMIT_DRIVES && !list_turn(req, list))
        list_ask(req, list, req->index + 1);
    if (req->index == 2 * LIMIT_DRIVES) {
        if (!target_req_at(req, req->nvmf->loop))
            return TARGET_WAIT;
        if (list->drains == atomic_load_explicit(&target->drains, memory_order_acquire))
            return list_pass_end(req, list);
        list_pass(req, list); /* others drain now */
        return TARGET_NEXT;
    }
    drive = &target->drives[req->index % LIMIT_DRIVES];
    if (!target_req_at(req, drive->loop))
        return TARGET_WAIT;
    if (list_slice(req, list, drive)) {
        list_merge(list);
        list->open = false;
        list_ask(req, list, req->index + 1);
    }
    target_req_defer(req);
    return TARGET_WAIT;
}
