/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One command of a host on its way through the drives.
 *
 * A request starts on the loop of its queue pair (ops.kv of nvmf/target), visits the loops of the
 * drives it concerns by message, and is answered where it started. It is on one loop at a time:
 * each state that needs a drive begins with target_req_at, which sends it there and runs the same
 * state again. The order of drives for a key is place_rank's; drives out of service are skipped.
 *
 * Load:   NEW -> LOOK -> READ -> REPLY, and from LOOK or READ on to the next drive's LOOK on a
 * miss; not from READ when some of the value may have been sent Store:  NEW -> KEY -> [KEY_WAIT] ->
 * [PROBE] -> APPEND -> WRITE -> KILL, KILL_END for each other drive, before the first that has an
 * older value VALUE_SYNC, VALUE_FLUSH -> NOTE -> KEY_END -> REPLY; if one of these fails -> UNDO ->
 * KILL_END -> KEY_END. A store that fails after a drive went out of service with its value: -> NOTE
 * -> KEY_END Delete: NEW -> KEY -> [KEY_WAIT] -> KILL, KILL_END for each drive -> NOTE -> KEY_END
 * -> REPLY Exist:  NEW -> LOOK -> REPLY; exist-many: NEW -> SCAN -> REPLY; flush: NEW -> SYNC ->
 * FLUSH ->
 *         ... -> REPLY; list: list.c
 *
 * A mutation (store, delete) holds its key from KEY to KEY_END (key.c): between them no other
 * mutation of that key is at any drive. What ends early goes to KEY_END, too (target_req_answer).
 */
#include "base/bytes.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/hash.h"
#include "target/target_int.h"

/* ---- moving about --------------------------------------------------------------------------- */

static void target_req_arrived(struct loop_msg *msg)
{
    struct target_req *req = container_of(msg, struct target_req, msg);

    check(req->magic == TARGET_REQ_MAGIC && loop_is_mine(req->at));
    target_req_run(req);
}

bool target_req_at(struct target_req *req, struct loop *loop)
{
    if (req->at == loop)
        return true;
    req->at = loop;
    loop_send(loop, &req->msg, target_req_arrived);
    return false;
}

void target_req_defer(struct target_req *req)
{
    loop_send(req->at, &req->msg, target_req_arrived);
}

/* The first of these drives (bits) in the order of a slot; the order goes on behind PLACE_RANKS
 * with all others, those of this loop first. NULL: there is none. */
static struct target_drive *target_first(struct target_req *req, uint32_t slot, uint32_t drives)
{
    struct target *target = req->target;
    struct place_map *map = atomic_load_explicit(&target->map, memory_order_acquire);
    uint32_t here;

    if (drives == 0)
        return NULL;
    for (uint32_t rank = 0; rank < PLACE_RANKS; rank++) {
        uint32_t drive = place_rank(map, slot, rank);

        if (drive == UINT32_MAX)
            break;
        if ((drives >> drive & 1) != 0)
            return &target->drives[drive];
    }
    here = drives & target_loop_drives(target, target_loop_index(target, req->at));
    return &target->drives[__builtin_ctz(here != 0 ? here : drives)];
}

/* The next of these drives for the key. */
static struct target_drive *target_req_next(struct target_req *req, uint32_t drives)
{
    return target_first(req, req->slot, drives & ~req->asked);
}

/* The next one in service. It is asked once (target_req_asked), whatever comes, goes or changes its
 * place in the order meanwhile. */
static struct target_drive *target_req_drive(struct target_req *req)
{
    return target_req_next(req, target_in(req->target));
}

static void target_req_asked(struct target_req *req, const struct target_drive *drive)
{
    req->asked |= (uint32_t)1 << drive->index;
}

/* Those that are not passed over by new loads and stores. */
static uint32_t target_quick(const struct target *target)
{
    return target_in(target) & ~atomic_load_explicit(&target->slow, memory_order_acquire);
}

/* The next one for a value: none that drains. */
static struct target_drive *target_req_store_drive(struct target_req *req)
{
    struct target *target = req->target;
    uint32_t drains = atomic_load_explicit(&target->drains, memory_order_acquire);

    return target_req_next(req, target_quick(target) & ~drains);
}

/* How often a value of the key may have gone from one drive to another. */
static _Atomic uint32_t *target_moves(const struct target_req *req)
{
    return &req->target->moves[req->slot % TARGET_MOVES];
}

/* Nothing was found. True, and a search begins anew: a value went from a drive that was not asked
 * yet to one that had been, or may have. It goes to the other drive first. */
static bool target_search_again(struct target_req *req, uint32_t moves)
{
    if (moves == req->moves || ++req->searches == TARGET_SEARCHES_MAX)
        return false;
    req->moves = moves;
    req->asked = req->index = 0;
    req->reason = ICMS_MISS_NONE;
    return true;
}

static uint32_t target_slot(const struct target_req *req, const struct key *key)
{
    return place_slot(req->target->map, key, req->target->sealed[req->nvmf->ns]); /* has runs */
}

enum target_step target_req_answer(struct target_req *req, icms_err err, enum icms_miss reason)
{
    req->nvmf->err = err;
    req->nvmf->reason = reason;
    target_req_state_set(req, req->has_key ? TARGET_REQ_KEY_END : TARGET_REQ_REPLY);
    return TARGET_NEXT;
}

/* Which of two reasons tells the user more? */
static void target_req_reason(struct target_req *req, enum icms_miss reason)
{
    static const uint8_t weight[] = {
        [ICMS_MISS_NONE] = 0,    [ICMS_MISS_ABSENT] = 1,   [ICMS_MISS_DRIVE_DOWN] = 2,
        [ICMS_MISS_EVICTED] = 3, [ICMS_MISS_CHECKSUM] = 4, [ICMS_MISS_SHED] = 5,
    };

    check((unsigned)reason < sizeof(weight));
    if (weight[reason] > weight[req->reason])
        req->reason = reason;
}

/* No drive has it. If the first in order is out, that is the likely reason. */
static enum target_step target_req_miss(struct target_req *req)
{
    uint32_t first = place_rank(req->target->map, req->slot, 0);

    if (req->state == TARGET_REQ_LOOK && target_search_again(req, atomic_load(target_moves(req))))
        return TARGET_NEXT;
    if (first == UINT32_MAX || !target_drive_in(req->target, first) ||
        target_drive_slow(req->target, first))
        target_req_reason(req, ICMS_MISS_DRIVE_DOWN);
    target_req_reason(req, ICMS_MISS_ABSENT);
    return target_req_answer(req, ICMS_MISS, req->reason);
}

bool target_req_late(const struct target_req *req)
{
    return req->nvmf->deadline_ns != 0 && loop_now_ns(req->at) >= req->nvmf->deadline_ns;
}

/* ---- new ------------------------------------------------------------------------------------ */

static enum target_step target_run_new(struct target_req *req)
{
    struct nvmf_target_req *nvmf = req->nvmf;

    if (nvmf->key.length > 0)
        req->slot = target_slot(req, &nvmf->key);
    switch (nvmf->op) {
    case NVMF_TARGET_STORE:
    case NVMF_TARGET_DELETE:
        target_req_state_set(req, TARGET_REQ_KEY);
        return TARGET_NEXT;
    case NVMF_TARGET_RETRIEVE:
    case NVMF_TARGET_EXIST:
        req->moves = atomic_load(target_moves(req));
        target_req_state_set(req, TARGET_REQ_LOOK);
        return TARGET_NEXT;
    case NVMF_TARGET_EXIST_MANY:
        target_req_state_set(req, TARGET_REQ_SCAN);
        return TARGET_NEXT;
    case NVMF_TARGET_LIST:
        return target_list_begin(req);
    case NVMF_TARGET_FLUSH:
        target_req_state_set(req, TARGET_REQ_SYNC);
        return TARGET_NEXT;
    default:
        check(!"nvmf/target knows no other command");
        return TARGET_END;
    }
}

/* ---- loads ---------------------------------------------------------------------------------- */

static void target_read_done(struct store_read *read)
{
    target_req_run(container_of(read, struct target_req, op.read));
}

/* A record's name for hosts: no other drive's record has the same, but for one in 2^32. */
static uint32_t target_record(const struct target_drive *drive, uint64_t record)
{
    uint64_t hash = hash64_seed(drive->uuid.bytes, sizeof(drive->uuid.bytes), record);

    return (uint32_t)hash != 0 ? (uint32_t)hash : 1;
}

/* Where the value of a load is, how large it is, and what it is called. */
static void target_read_found(struct target_req *req)
{
    const struct store_read *read = &req->op.read;

    req->nvmf->value = read->value;
    req->nvmf->done_bytes = read->value_bytes;
    req->nvmf->record = target_record(&req->target->drives[req->drive], read->record);
}

/* Only value, done_bytes and record of the command are read here: the rest is the drive's loop's.
 */
static void target_more_arrived(struct loop_msg *msg)
{
    struct target_req *req = container_of(msg, struct target_req, more_msg);

    atomic_store(&req->more_sent, false); /* before the bytes are read: none is missed */
    nvmf_target_req_more(req->nvmf, atomic_load(&req->good_bytes));
}

/* More of the value is verified. One message at a time is on its way; it takes the latest number
 * along. The answer leaves this loop later, so it never arrives before. */
static void target_read_more(struct store_read *read)
{
    struct target_req *req = container_of(read, struct target_req, op.read);

    check(req->magic == TARGET_REQ_MAGIC && req->state == TARGET_REQ_READ);
    if (!req->streamed)
        target_read_found(req);
    req->streamed = true;
    atomic_store(&req->good_bytes, read->good_bytes);
    if (req->at == req->nvmf->loop)
        nvmf_target_req_more(req->nvmf, read->good_bytes);
    else if (!atomic_exchange(&req->more_sent, true))
        loop_send(req->nvmf->loop, &req->more_msg, target_more_arrived);
}

/* Reads the value of the key at a drive, to state. */
static enum target_step target_read(struct target_req *req, struct target_drive *drive,
                                    enum target_req_state state)
{
    const struct nvmf_target_req *nvmf = req->nvmf;
    icms_err err;

    req->op.read = (struct store_read){
        .volume = nvmf->ns,
        .key = nvmf->key,
        .memory = nvmf->memory,
        .memory_bytes = nvmf->memory_bytes,
        .more = req->call == NULL ? target_read_more : NULL,
        .done = target_read_done,
    };
    target_req_state_set(req, state);
    err = store_read(drive->store, &req->op.read);
    if (err == ICMS_OK) /* its own err may be set already */
        return TARGET_WAIT;
    req->op.read.err = err;
    return TARGET_NEXT;
}

static enum target_step target_run_look(struct target_req *req)
{
    struct target_drive *drive = target_req_next(req, target_quick(req->target));
    struct nvmf_target_req *nvmf = req->nvmf;
    uint64_t bytes_max;

    if (drive == NULL)
        return target_req_miss(req);
    if (!target_req_at(req, drive->loop))
        return TARGET_WAIT;
    if (target_req_late(req))
        return target_req_answer(req, ICMS_DEADLINE, ICMS_MISS_DEADLINE);
    if (!store_exists(drive->store, nvmf->ns, &nvmf->key, &bytes_max)) {
        target_req_reason(req, store_miss_reason(drive->store, nvmf->ns, &nvmf->key));
        target_req_asked(req, drive);
        return TARGET_NEXT;
    }
    if (nvmf->op == NVMF_TARGET_EXIST)
        return target_req_answer(req, ICMS_OK, ICMS_MISS_NONE);
    if (store_record_bytes(bytes_max) > nvmf->memory_bytes) {
        nvmf->done_bytes = store_record_bytes(bytes_max);
        return target_req_answer(req, ICMS_VALUE_SIZE, ICMS_MISS_NONE);
    }
    if (target_slow_clogged(drive, false)) {
        target_req_reason(req, ICMS_MISS_SHED);
        target_req_asked(req, drive);
        return TARGET_NEXT;
    }
    target_slow_begin(drive, req);
    return target_read(req, drive, TARGET_REQ_READ);
}

/* On the drive's loop. That the enclosure was read lately counts only loads that got all
 * of their value: an agent that finds a link slow repeats its last load into 64 KiB of memory
 * (AGENT_PROBE_BYTES), to see how long that takes, and nobody uses what came. */
static void target_load_count(const struct target_req *req)
{
    counter_add(&req->target->drives[req->drive].hits[req->nvmf->ns], 1);
    if (req->op.read.value_bytes <= req->nvmf->host_bytes)
        atomic_store_explicit(&req->target->loaded_ns[req->drive][req->nvmf->ns],
                              loop_now_ns(req->at), memory_order_relaxed);
}

/* The fault point target.memory: a bit of the value flips behind the checks of its record, before
 * any of it is sent. Only a trailer can tell, so a raw value stays as it is. */
static void target_read_flip(const struct target_req *req)
{
    const struct store_read *read = &req->op.read;

    if (req->target->sealed[req->nvmf->ns] && !req->streamed && fault_hit("target.memory"))
        read->value[read->value_bytes / 2] ^= 4;
}

static enum target_step target_run_read(struct target_req *req)
{
    const struct store_read *read = &req->op.read;

    target_slow_end(req);
    if (read->err == ICMS_OK && !fault_hit("target.retrieve")) {
        target_read_flip(req);
        target_load_count(req);
        target_move_used(&req->target->drives[req->drive], req->nvmf->ns, &req->nvmf->key);
        if (!req->streamed)
            target_read_found(req);
        return target_req_answer(req, ICMS_OK, ICMS_MISS_NONE);
    }
    target_req_reason(req, read->err == ICMS_MISS ? read->reason : ICMS_MISS_DRIVE_DOWN);
    if (req->streamed) /* another drive's value is not its other half */
        return target_req_answer(req, ICMS_MISS, req->reason);
    target_req_asked(req, &req->target->drives[req->drive]);
    target_req_state_set(req, TARGET_REQ_LOOK);
    return TARGET_NEXT;
}

/* ---- stores --------------------------------------------------------------------------------- */

enum target_step target_req_mutate(struct target_req *req)
{
    if (req->nvmf->op == NVMF_TARGET_DELETE)
        target_req_state_set(req, TARGET_REQ_KILL);
    else if (req->from != NULL)
        target_req_state_set(req, TARGET_REQ_FETCH);
    else
        target_req_state_set(req, req->nvmf->options != 0 ? TARGET_REQ_PROBE : TARGET_REQ_APPEND);
    return TARGET_NEXT;
}

/* Conditions look at all drives in service. What they find stays true until the write, as the key
 * is held; but for evictions, which may always be. */
static enum target_step target_run_probe(struct target_req *req)
{
    struct target_drive *drive = target_req_drive(req);
    bool if_absent = (req->nvmf->options & NVMF_TARGET_IF_ABSENT) != 0;

    if (drive == NULL) {
        if (!if_absent)
            return target_req_answer(req, ICMS_MISS, ICMS_MISS_ABSENT);
        target_req_state_set(req, TARGET_REQ_APPEND);
        return TARGET_NEXT;
    }
    if (!target_req_at(req, drive->loop))
        return TARGET_WAIT;
    if (!store_exists(drive->store, req->nvmf->ns, &req->nvmf->key, NULL)) {
        target_req_asked(req, drive);
        return TARGET_NEXT;
    }
    if (if_absent) {
        store_touch(drive->store, req->nvmf->ns, &req->nvmf->key);
        return target_req_answer(req, ICMS_EXISTS, ICMS_MISS_NONE);
    }
    target_req_state_set(req, TARGET_REQ_APPEND);
    return TARGET_NEXT;
}

/* The value that moves; the host's command is the mover's own. */
static enum target_step target_run_fetch(struct target_req *req)
{
    if (!target_drive_in(req->target, req->from->index))
        return target_req_answer(req, ICMS_MISS, ICMS_MISS_DRIVE_DOWN);
    if (!target_req_at(req, req->from->loop))
        return TARGET_WAIT;
    return target_read(req, req->from, TARGET_REQ_FETCH_END);
}

static enum target_step target_run_fetch_end(struct target_req *req)
{
    const struct store_read *read = &req->op.read;

    if (read->err != ICMS_OK)
        return target_req_answer(req, read->err, read->reason);
    check(read->value == req->nvmf->memory + STORE_HEADER_BYTES);
    req->nvmf->value_bytes = read->value_bytes;
    target_req_state_set(req, TARGET_REQ_APPEND);
    return TARGET_NEXT;
}

static void target_write_done(struct store_write *write)
{
    target_req_run(container_of(write, struct target_req, op.write));
}

static enum target_step target_req_note(struct target_req *req)
{
    target_req_state_set(req, TARGET_REQ_NOTE);
    return TARGET_NEXT;
}

/* A drive that went out of service meanwhile may have the new value all the same: it is noted like
 * one that missed a store, or that value would be there when the drive comes back. */
static enum target_step target_store_failed(struct target_req *req, icms_err err,
                                            enum icms_miss reason)
{
    if (!req->is_left || req->from != NULL) /* a move leaves the value that there is anyway */
        return target_req_answer(req, err, reason);
    req->err = err;
    req->reason = reason;
    return target_req_note(req);
}

static enum target_step target_run_append(struct target_req *req)
{
    struct target_drive *drive;
    struct nvmf_target_req *nvmf = req->nvmf;

    req->asked = 0;
    drive = target_req_store_drive(req);
    if (drive == NULL)
        return target_store_failed(req, ICMS_DRIVE_DOWN, ICMS_MISS_DRIVE_DOWN);
    if (!target_req_at(req, drive->loop))
        return TARGET_WAIT;
    if (target_req_late(req))
        return target_store_failed(req, ICMS_DEADLINE, ICMS_MISS_DEADLINE);
    if (target_slow_clogged(drive, true))
        return target_store_failed(req, ICMS_BUSY, ICMS_MISS_SHED);
    req->op.write = (struct store_write){
        .volume = nvmf->ns,
        .key = nvmf->key,
        .memory = nvmf->memory,
        .value_bytes = nvmf->value_bytes,
        .done = target_write_done,
    };
    target_req_state_set(req, TARGET_REQ_WRITE);
    target_slow_begin(drive, req);
    req->op.write.err = store_write(drive->store, &req->op.write);
    return req->op.write.err == ICMS_OK ? TARGET_WAIT : TARGET_NEXT;
}

static void target_flush_done(struct store_flush *flush)
{
    target_req_run(container_of(flush, struct target_req, op.flush));
}

static enum target_step target_flush(struct target_req *req, struct target_drive *drive,
                                     enum target_req_state state)
{
    req->op.flush = (struct store_flush){.done = target_flush_done};
    target_req_state_set(req, state);
    req->op.flush.err = store_flush(drive->store, &req->op.flush);
    return req->op.flush.err == ICMS_OK ? TARGET_WAIT : TARGET_NEXT;
}

/* A deletion is durable at once, a write after a flush: a value that moves or is replaced would be
 * nowhere if the power failed between the two. */
static enum target_step target_run_value_sync(struct target_req *req)
{
    struct target_drive *drive = &req->target->drives[req->value_drive];

    if (!target_req_at(req, drive->loop))
        return TARGET_WAIT;
    return target_flush(req, drive, TARGET_REQ_VALUE_FLUSH);
}

static enum target_step target_run_write(struct target_req *req)
{
    icms_err err = fault_hit("target.store") ? ICMS_IO : req->op.write.err;
    enum icms_miss reason = ICMS_MISS_NONE;

    target_slow_end(req);
    switch (err) {
    case ICMS_OK:
        req->value_drive = req->drive;
        atomic_fetch_add(&req->target->drives[req->drive].values, 1);
        req->asked = 0;
        target_req_state_set(req, TARGET_REQ_KILL);
        return TARGET_NEXT;
    case ICMS_DRIVE_DOWN:
        if (!target_drive_in(req->target, req->drive)) {
            req->is_left = true;
            target_req_state_set(req, TARGET_REQ_APPEND); /* its runs go to the next one */
            return TARGET_NEXT;
        }
        reason = ICMS_MISS_DRIVE_DOWN;
        break;
    case ICMS_QUOTA:
    case ICMS_NO_SPACE:
        atomic_fetch_add_explicit(&req->target->quota_errors, 1, memory_order_relaxed);
        reason = ICMS_MISS_QUOTA;
        break;
    case ICMS_BUSY: /* the drive's write budget runs short */
        reason = ICMS_MISS_SHED;
        break;
    default:
        break;
    }
    return target_store_failed(req, err, reason);
}

/* ---- one key, one value --------------------------------------------------------------------- */

enum target_step target_req_mutated(struct target_req *req)
{
    if (req->err != ICMS_OK)
        return target_req_answer(req, req->err, req->reason);
    /* with no drive left nobody noted what the drives that were out before missed */
    if (target_in(req->target) == 0)
        return target_req_answer(req, ICMS_DRIVE_DOWN, ICMS_MISS_DRIVE_DOWN);
    if (req->nvmf->op == NVMF_TARGET_STORE || req->found)
        return target_req_answer(req, ICMS_OK, ICMS_MISS_NONE);
    return target_req_miss(req);
}

static void target_delete_done(struct store_delete *delete)
{
    target_req_run(container_of(delete, struct target_req, op.delete));
}

/* The record that has to go, if only a damaged one; 0: none. */
static uint64_t target_req_record(const struct target_req *req, const struct target_drive *drive)
{
    uint32_t only = req->nvmf->only_record;
    uint64_t record = store_record_now(drive->store, req->nvmf->ns, &req->nvmf->key);

    return only == 0 || (record != 0 && only == target_record(drive, record)) ? record : 0;
}

static enum target_step target_kill_at(struct target_req *req, struct target_drive *drive)
{
    req->op.delete = (struct store_delete){
        .volume = req->nvmf->ns,
        .key = req->nvmf->key,
        .only_record = req->nvmf->only_record != 0 ? target_req_record(req, drive) : 0,
        .done = target_delete_done,
    };
    target_req_state_set(req, TARGET_REQ_KILL_END);
    if (req->value_drive != UINT32_MAX) /* first: who does not find it here looks once more */
        atomic_fetch_add(target_moves(req), 1);
    target_slow_begin(drive, req);
    req->op.delete.err = store_delete(drive->store, &req->op.delete);
    return req->op.delete.err == ICMS_OK ? TARGET_WAIT : TARGET_NEXT;
}

/* An older value is left, or may be. A store that fails must not leave the new one beside it. */
static enum target_step target_kill_failed(struct target_req *req, icms_err err,
                                           enum icms_miss reason)
{
    if (req->value_drive == UINT32_MAX)
        return target_req_answer(req, err, reason);
    req->err = err;
    req->reason = reason;
    target_req_state_set(req, TARGET_REQ_UNDO);
    return TARGET_NEXT;
}

/* Whether a drive that is out cannot have another value: of one record there is no other, a value
 * that moves is the one that there was, and who stores under names of the content, in a sealed
 * volume, has one value for a key. */
static bool target_misses_nothing(const struct target_req *req)
{
    return req->nvmf->only_record != 0 || req->from != NULL ||
           ((req->nvmf->options & NVMF_TARGET_IF_ABSENT) != 0 &&
            req->target->sealed[req->nvmf->ns]);
}

/* A delete kills on every drive in service; a store on all but the one that has the new value, as
 * an older one may come first in order. It is no success before all of them did. */
static enum target_step target_run_kill(struct target_req *req)
{
    struct target_drive *drive = target_req_drive(req);

    if (drive == NULL) {
        if (req->err != ICMS_OK)
            return target_kill_failed(req, req->err, ICMS_MISS_DRIVE_DOWN);
        if (target_misses_nothing(req))
            return target_req_mutated(req);
        return target_req_note(req);
    }
    if (drive->index != req->value_drive && !target_req_at(req, drive->loop))
        return TARGET_WAIT;
    if (drive->index == req->value_drive || target_req_record(req, drive) == 0) {
        target_req_asked(req, drive);
        return TARGET_NEXT;
    }
    if (req->nvmf->op == NVMF_TARGET_STORE && target_slow_clogged(drive, true))
        return target_kill_failed(req, ICMS_BUSY, ICMS_MISS_SHED);
    if (req->value_drive != UINT32_MAX && !req->is_durable) {
        target_req_state_set(req, TARGET_REQ_VALUE_SYNC);
        return TARGET_NEXT;
    }
    return target_kill_at(req, drive);
}

static enum target_step target_run_value_flush(struct target_req *req)
{
    if (req->op.flush.err != ICMS_OK) /* the older value stays where it is */
        return target_kill_failed(req, req->op.flush.err, ICMS_MISS_DRIVE_DOWN);
    req->is_durable = true;
    target_req_state_set(req, TARGET_REQ_KILL);
    return TARGET_NEXT;
}

static enum target_step target_run_undo(struct target_req *req)
{
    struct target_drive *drive = &req->target->drives[req->value_drive];

    if (!target_req_at(req, drive->loop))
        return TARGET_WAIT;
    return target_kill_at(req, drive);
}

static enum target_step target_run_kill_end(struct target_req *req)
{
    icms_err err = req->op.delete.err;

    target_slow_end(req);
    if (req->drive == req->value_drive) { /* undone */
        req->is_left = req->is_left || err == ICMS_DRIVE_DOWN;
        return target_store_failed(req, req->err, req->reason);
    }
    if (err == ICMS_OK)
        req->found = true;
    else if (err != ICMS_MISS && err != ICMS_DRIVE_DOWN)
        req->err = err; /* it may still be there */
    target_req_asked(req, &req->target->drives[req->drive]);
    target_req_state_set(req, TARGET_REQ_KILL);
    return TARGET_NEXT;
}

/* ---- exist-many ----------------------------------------------------------------------------- */

/* Does a drive of this loop hold a key? Those of its order first. */
static bool target_scan_key(struct target_req *req, const struct key *key, uint32_t loop)
{
    uint32_t left = target_in(req->target) & target_loop_drives(req->target, loop);
    uint32_t slot = target_slot(req, key);
    struct target_drive *drive;

    for (; (drive = target_first(req, slot, left)) != NULL; left &= ~((uint32_t)1 << drive->index))
        if (store_exists(drive->store, req->nvmf->ns, key, NULL))
            return true;
    return false;
}

static uint32_t target_moves_all(const struct target *target)
{
    uint32_t moves = 0;

    for (uint32_t i = 0; i < TARGET_MOVES; i++)
        moves += atomic_load_explicit(&target->moves[i], memory_order_acquire);
    return moves;
}

static enum target_step target_run_scan(struct target_req *req)
{
    struct nvmf_target_req *nvmf = req->nvmf;
    struct target *target = req->target;

    if (req->index == 0 && req->searches == 0)
        req->moves = target_moves_all(target);
    while (req->index < target->opts.loops &&
           (target_in(target) & target_loop_drives(target, req->index)) == 0)
        req->index++;
    if (req->index == target->opts.loops) {
        uint64_t all = nvmf->key_count == 64 ? UINT64_MAX : ((uint64_t)1 << nvmf->key_count) - 1;

        if (nvmf->map != all && target_search_again(req, target_moves_all(target)))
            return TARGET_NEXT;
        return target_req_answer(req, ICMS_OK, ICMS_MISS_NONE);
    }
    if (!target_req_at(req, target->loops[req->index]))
        return TARGET_WAIT;
    for (uint32_t i = 0; i < nvmf->key_count; i++)
        if ((nvmf->map >> i & 1) == 0 && target_scan_key(req, &nvmf->keys[i], req->index))
            nvmf->map |= (uint64_t)1 << i;
    req->index++;
    return TARGET_NEXT;
}

/* ---- flush ---------------------------------------------------------------------------------- */

static enum target_step target_run_sync(struct target_req *req)
{
    struct target *target = req->target;
    struct target_drive *drive;

    while (req->index < LIMIT_DRIVES && !target_drive_in(target, req->index))
        req->index++;
    if (req->index == LIMIT_DRIVES)
        return target_req_answer(req, req->err,
                                 req->err == ICMS_OK ? ICMS_MISS_NONE : ICMS_MISS_DRIVE_DOWN);
    drive = &target->drives[req->index];
    if (!target_req_at(req, drive->loop))
        return TARGET_WAIT;
    return target_flush(req, drive, TARGET_REQ_FLUSH);
}

static enum target_step target_run_flush(struct target_req *req)
{
    if (req->err == ICMS_OK)
        req->err = req->op.flush.err;
    req->index++;
    target_req_state_set(req, TARGET_REQ_SYNC);
    return TARGET_NEXT;
}

/* ---- the machine ---------------------------------------------------------------------------- */

static void target_req_remember(const struct target_req *req)
{
    const struct nvmf_target_req *nvmf = req->nvmf;
    struct trace_entry entry = {.trace = req->trace,
                                .end_ns = loop_now_ns(req->at),
                                .volume = nvmf->ns,
                                .place = req->drive,
                                .err = nvmf->err,
                                .reason = nvmf->reason,
                                .op = (uint8_t)nvmf->op};

    if (nvmf->op != NVMF_TARGET_LIST)
        entry.key = nvmf->key;
    if (nvmf->op == NVMF_TARGET_STORE)
        entry.bytes = nvmf->value_bytes;
    else if (nvmf->op == NVMF_TARGET_RETRIEVE && nvmf->err == ICMS_OK)
        entry.bytes = nvmf->done_bytes;
    trace_add(&req->target->books[target_loop_index(req->target, req->at)], &entry);
}

static enum target_step target_run_reply(struct target_req *req)
{
    if (!target_req_at(req, req->nvmf->loop))
        return TARGET_WAIT;
    target_req_remember(req);
    req->state = TARGET_REQ_FREE;
    if (req->call != NULL)
        req->call->done(req->call);
    else
        nvmf_target_req_done(req->nvmf);
    return TARGET_END;
}

const struct target_state target_states[TARGET_REQ_STATES] = {
    [TARGET_REQ_NEW] = {"new", target_run_new},
    [TARGET_REQ_LOOK] = {"look", target_run_look},
    [TARGET_REQ_READ] = {"read", target_run_read},
    [TARGET_REQ_KEY] = {"key", target_run_key},
    [TARGET_REQ_KEY_WAIT] = {"key_wait", target_run_key_wait},
    [TARGET_REQ_PROBE] = {"probe", target_run_probe},
    [TARGET_REQ_FETCH] = {"fetch", target_run_fetch},
    [TARGET_REQ_FETCH_END] = {"fetch_end", target_run_fetch_end},
    [TARGET_REQ_APPEND] = {"append", target_run_append},
    [TARGET_REQ_WRITE] = {"write", target_run_write},
    [TARGET_REQ_VALUE_SYNC] = {"value_sync", target_run_value_sync},
    [TARGET_REQ_VALUE_FLUSH] = {"value_flush", target_run_value_flush},
    [TARGET_REQ_UNDO] = {"undo", target_run_undo},
    [TARGET_REQ_KILL] = {"kill", target_run_kill},
    [TARGET_REQ_KILL_END] = {"kill_end", target_run_kill_end},
    [TARGET_REQ_NOTE] = {"note", target_run_note},
    [TARGET_REQ_SCAN] = {"scan", target_run_scan},
    [TARGET_REQ_LIST_WAIT] = {"list_wait", target_list_wait},
    [TARGET_REQ_LIST] = {"list", target_list_run},
    [TARGET_REQ_SYNC] = {"sync", target_run_sync},
    [TARGET_REQ_FLUSH] = {"flush", target_run_flush},
    [TARGET_REQ_KEY_END] = {"key_end", target_run_key_end},
    [TARGET_REQ_REPLY] = {"reply", target_run_reply},
};

void target_req_run(struct target_req *req)
{
    enum target_step step;

    do {
        check(req->magic == TARGET_REQ_MAGIC && req->state != TARGET_REQ_FREE);
        step = target_states[req->state].run(req);
    } while (step == TARGET_NEXT);
}

/* ---- who gives us commands ------------------------------------------------------------------ */

static void target_req_begin(struct target *target, struct target_req *req,
                             struct nvmf_target_req *nvmf, struct target_call *call,
                             struct target_drive *from)
{
    req->magic = TARGET_REQ_MAGIC;
    req->state = TARGET_REQ_NEW;
    req->target = target;
    req->nvmf = nvmf;
    req->call = call;
    req->from = from;
    req->at = nvmf->loop;
    req->slot = req->asked = req->index = req->searches = 0;
    req->drive = TRACE_NOWHERE;
    trace_begin(&req->trace, TARGET_REQ_NEW, loop_now_ns(req->at));
    req->value_drive = UINT32_MAX;
    req->has_key = req->found = req->is_durable = req->is_left = req->streamed = false;
    req->reason = ICMS_MISS_NONE;
    req->err = ICMS_OK;
    list_init(&req->link);
    list_init(&req->key_link);
    target_req_run(req);
}

static void target_kv(void *owner, struct nvmf_target_req *nvmf)
{
    target_req_begin(owner, nvmf_target_req_area(nvmf), nvmf, NULL, NULL);
}

static void call_begin(struct target *target, struct loop *loop, struct target_call *call,
                       struct target_drive *from)
{
    static_assert(sizeof(struct target_req) <= sizeof(call->private_words), "room for a request");
    check(loop_is_mine(loop) && call->req.ns < LIMIT_VOLUMES);
    call->req.loop = loop;
    call->req.map = call->req.done_bytes = 0;
    call->req.record = 0;
    target_req_begin(target, (struct target_req *)(void *)call->private_words, &call->req, call,
                     from);
}

void target_call(struct target *target, struct loop *loop, struct target_call *call)
{
    call_begin(target, loop, call, NULL);
}

void target_call_move(struct target_drive *from, struct target_call *call)
{
    call_begin(from->target, from->loop, call, from);
}

static uint64_t target_used_bytes(void *owner, uint32_t ns)
{
    const struct target *target = owner;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        struct store *store = target->drives[i].store;
        struct store_volume_stats stats;

        if (store == NULL)
            continue;
        store_volume_stats(store, ns, &stats);
        bytes += stats.bytes;
    }
    return bytes;
}

static void target_health(void *owner, struct nvmf_target_health *out_health)
{
    const struct target *target = owner;
    uint32_t in = (uint32_t)__builtin_popcount(target_in(target)), all = target_listed(target);

    *out_health = (struct nvmf_target_health){0};
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        struct store *store = target->drives[i].store;
        struct store_stats stats;

        if (store == NULL)
            continue;
        store_stats(store, &stats);
        out_health->media_errors += stats.checksum_errors;
    }
    out_health->spare_percent = (uint8_t)(in * 100 / u64_max(all, 1));
    out_health->degraded = in < all;
}

const struct nvmf_target_ops target_nvmf_ops = {
    .kv = target_kv,
    .used_bytes = target_used_bytes,
    .health = target_health,
    .buffer_bytes = store_record_bytes,
};
