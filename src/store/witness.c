/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes that replace a value, from the end of their record's write.
 *
 *   store_witness_add      -> CHANGE_FLUSH, until a flush that began after its record was written
 *   store_witness_flushed  -> CHANGE_WITNESS, the first page of the record once more, behind it
 *   store_witness_written  -> store_change_stored
 *
 * Until the witness is on flash a crash or a power cut leaves the old value where the new one is
 * not whole; from there on the old one never comes back, whatever happens to the new one's bytes.
 * The flush in between keeps a power cut from leaving the witness of a record that was torn.
 * Nothing that needs room waits here: the page of the witness was taken together with the record.
 */
#include "base/fault.h"
#include "store/store_int.h"

static struct store_change *witness_change(struct list *link)
{
    return container_of(link, struct store_change, link);
}

/* The device answered for the witness. */
static void witness_written(struct store_change *change, icms_err err)
{
    check(change->magic == STORE_CHANGE_MAGIC && change->state == CHANGE_WITNESS);
    store_write_outcome(change->store, err);
    store_change_stored(change, err);
}

static void store_witness_written(struct loop_op *op)
{
    witness_written(container_of(op, struct store_change, op), op->err);
}

static void store_witness_fault(struct store_later *later)
{
    witness_written(container_of(later, struct store_change, later), ICMS_IO);
}

static void witness_write(struct store_change *change)
{
    struct store *store = change->store;
    uint32_t number = store_segment_number(store, change->segment);

    change->state = CHANGE_WITNESS;
    if (fault_hit("store.witness"))
        store_later_run(store, &change->later, store_witness_fault);
    else
        loop_file_write_stream(
            store->loop, &change->op, store->file, store_segment_hint(store, change->segment),
            store_segment_offset(store, number, change->page + change->pages),
            store_change_write(change)->memory, STORE_PAGE_BYTES, store_witness_written);
}

static void witness_kick(struct store *store);

static void witness_flushed(struct store *store, icms_err err)
{
    struct store_witness *witness = &store->witness;
    struct list *link;

    store_flush_end(store, witness->flush, err);
    store_overhead_outcome(store, err); /* one failure, however many waited */
    while ((link = list_pop(&witness->flushing)) != NULL) {
        struct store_change *change = witness_change(link);

        check(change->magic == STORE_CHANGE_MAGIC && change->state == CHANGE_FLUSH);
        if (err == ICMS_OK)
            witness_write(change);
        else
            store_change_stored(change, err);
    }
    witness->busy = false;
    witness_kick(store);
}

static void store_witness_flushed(struct loop_op *op)
{
    witness_flushed(container_of(op, struct store, witness.op), op->err);
}

static void store_witness_flush_fault(struct store_later *later)
{
    witness_flushed(container_of(later, struct store, witness.later), ICMS_IO);
}

static void witness_kick(struct store *store)
{
    struct store_witness *witness = &store->witness;
    struct list *link;

    if (witness->busy || list_empty(&witness->waiting))
        return;
    witness->busy = true;
    while ((link = list_pop(&witness->waiting)) != NULL)
        list_push(&witness->flushing, link);
    witness->flush = store_flush_begin(store);
    if (fault_hit("store.witness_flush"))
        store_later_run(store, &witness->later, store_witness_flush_fault);
    else
        loop_file_flush(store->loop, &witness->op, store->file, store_witness_flushed);
}

void store_witness_add(struct store_change *change)
{
    change->state = CHANGE_FLUSH;
    list_push(&change->store->witness.waiting, &change->link);
    witness_kick(change->store);
}
