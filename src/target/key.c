/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutations of one key, one after the other, whatever drives they go to.
 *
 * Two stores of a key may go to different drives, as one was slow or went out of service between
 * them. Each then deletes the key on all other drives: without an order they delete each other's
 * value, which was acknowledged. So each key has a home: the loop of the drive that was the first
 * of its order when the enclosure started, and that loop stays it whatever drives come and go
 * (target.home). A store or delete goes there before all else (target_run_key), and holds the
 * key or waits for the one that does. When it is over, with any answer, it goes there once more and
 * wakes the one that waits longest (target_run_key_end).
 *
 * A table of chains for each loop has the mutations of its keys. Only that loop touches the table
 * and the links. Invariants: the first mutation of a key in its chain holds the key, all others
 * wait, oldest first; a mutation is answered only after it left the chain. A holder waits for
 * drives and notes, never for another key or for a buffer, so every key is released.
 *
 * What waits holds a buffer that no drive counts (slow.c): together at most one part in
 * TARGET_SHARE of the memory, or a single mutation. More is shed.
 */
#include "base/check.h"
#include "base/hash.h"
#include "target/target_int.h"

static uint32_t key_home(const struct target_req *req)
{
    return req->target->home[req->slot];
}

static struct list *key_chain(const struct target_req *req)
{
    const struct key *key = &req->nvmf->key;
    uint64_t seed = req->target->hash_seed ^ hash64_mix(req->nvmf->ns);
    uint64_t hash = hash64_seed(key->bytes, sizeof(key->bytes), seed);

    return &req->target->keys[key_home(req) * TARGET_KEY_CHAINS + hash % TARGET_KEY_CHAINS];
}

/* The mutation that holds the key of this one; NULL: none. */
static struct target_req *key_holder(const struct target_req *req)
{
    list_for_each (link, key_chain(req)) {
        struct target_req *holder = container_of(link, struct target_req, key_link);

        if (holder->nvmf->ns == req->nvmf->ns && key_equal(&holder->nvmf->key, &req->nvmf->key))
            return holder;
    }
    return NULL;
}

/* May so much more wait? Counts it. */
static bool key_wait_add(struct target *target, uint64_t bytes)
{
    uint64_t before =
        atomic_fetch_add_explicit(&target->key_wait_bytes, bytes, memory_order_relaxed);

    if (before == 0 || before + bytes <= target->opts.nvmf.memory_bytes / TARGET_SHARE)
        return true;
    atomic_fetch_sub_explicit(&target->key_wait_bytes, bytes, memory_order_relaxed);
    return false;
}

enum target_step target_run_key(struct target_req *req)
{
    bool is_held;

    if (!target_req_at(req, req->target->loops[key_home(req)]))
        return TARGET_WAIT;
    is_held = key_holder(req) != NULL;
    if (is_held && !key_wait_add(req->target, req->nvmf->memory_bytes))
        return target_req_answer(req, ICMS_BUSY, ICMS_MISS_SHED);
    list_push(key_chain(req), &req->key_link);
    req->has_key = true;
    if (!is_held)
        return target_req_mutate(req);
    target_req_state_set(req, TARGET_REQ_KEY_WAIT);
    return TARGET_WAIT;
}

enum target_step target_run_key_wait(struct target_req *req)
{
    check(key_holder(req) == req);
    atomic_fetch_sub_explicit(&req->target->key_wait_bytes, req->nvmf->memory_bytes,
                              memory_order_relaxed);
    if (target_req_late(req))
        return target_req_answer(req, ICMS_DEADLINE, ICMS_MISS_DEADLINE);
    return target_req_mutate(req);
}

enum target_step target_run_key_end(struct target_req *req)
{
    struct target_req *next;

    if (!target_req_at(req, req->target->loops[key_home(req)]))
        return TARGET_WAIT;
    check(key_holder(req) == req);
    list_remove(&req->key_link);
    req->has_key = false;
    if (req->value_drive != UINT32_MAX)
        atomic_fetch_sub(&req->target->drives[req->value_drive].values, 1);
    next = key_holder(req);
    if (next != NULL)
        target_req_defer(next);
    target_req_state_set(req, TARGET_REQ_REPLY);
    return TARGET_NEXT;
}
