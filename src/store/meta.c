/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata writes: headers, dead maps, footers, summaries and the owner's note. All but summaries
 * say which records count, so each of them succeeds, or the drive goes out of service.
 *
 *   store_meta_start   -> a flush when the job asks for one first: what the writes rely on is
 * durable meta_write         -> all writes of the job at once, in any order store_meta_written ->
 * the last one: a flush when the job asks for one meta_ended         -> done, or the whole job
 * again
 *
 * Loop's thread. Invariant: a job that failed is repeated as a whole, its writes too when only the
 * flush failed: nobody knows what a failed flush left on flash. Missing space is waited for. After
 * STORE_ATTEMPTS other failures the drive is out of service. A summary is not needed, so its job
 * has one attempt.
 */
#include "store/store_int.h"

static void meta_begin(struct store_meta *meta);

static void meta_done(struct store_meta *meta)
{
    icms_err err = meta->failed || meta->no_space ? ICMS_IO : ICMS_OK;

    meta->store->metas--;
    meta->done(meta, meta->store->down ? ICMS_DRIVE_DOWN : err);
}

static void store_meta_retry(struct loop_timer *timer)
{
    struct store_meta *meta = container_of(timer, struct store_meta, timer);

    if (meta->store->down)
        meta_done(meta);
    else
        meta_begin(meta);
}

/* The writes, and the flush if there is one, came back. */
static void meta_ended(struct store_meta *meta)
{
    struct store *store = meta->store;

    if (meta->failed && !meta->once && ++meta->attempts >= STORE_ATTEMPTS)
        store_down(store);
    if (store->down || meta->once || (!meta->failed && !meta->no_space)) {
        meta_done(meta);
    } else if (meta->no_space) {
        loop_timer_init(&meta->timer, store_meta_retry);
        loop_timer_start(store->loop, &meta->timer, loop_now_ns(store->loop) + STORE_RETRY_NS);
    } else {
        meta_begin(meta);
    }
}

static void meta_outcome(struct store_meta *meta, icms_err err, const char *what, uint64_t offset)
{
    store_overhead_outcome(meta->store, err, what, offset);
    meta->no_space = meta->no_space || err == ICMS_NO_SPACE;
    meta->failed = meta->failed || (err != ICMS_OK && err != ICMS_NO_SPACE);
}

static void store_meta_flushed(struct loop_op *op)
{
    struct store_meta *meta = container_of(op, struct store_meta, op);

    meta_outcome(meta, store_answer(op, meta->flush_fault), "flush", STORE_ERROR_NOWHERE);
    meta_ended(meta);
}

static void store_meta_written(struct loop_op *op)
{
    struct store_meta_write *write = container_of(op, struct store_meta_write, op);
    struct store_meta *meta = write->meta;
    struct store *store = meta->store;
    icms_err err = store_answer(op, meta->fault);

    if (err == ICMS_OK)
        store_overhead_written(store, write->bytes);
    meta_outcome(meta, err, meta->what, write->offset);
    if (--meta->in_flight > 0)
        return;
    if (!meta->flush || meta->failed || meta->no_space)
        meta_ended(meta);
    else
        loop_file_flush(store->loop, &meta->op, store->file, store_meta_flushed);
}

static void meta_write(struct store_meta *meta)
{
    struct store *store = meta->store;

    meta->in_flight = meta->count;
    for (uint32_t i = 0; i < meta->count; i++) {
        struct store_meta_write *write = &meta->writes[i];

        write->meta = meta;
        loop_file_write(store->loop, &write->op, store->file, write->hint, write->offset,
                        write->memory, write->bytes, store_meta_written);
    }
}

static void store_meta_first_flushed(struct loop_op *op)
{
    struct store_meta *meta = container_of(op, struct store_meta, op);
    icms_err err = store_answer(op, meta->flush_fault);

    meta_outcome(meta, err, "flush", STORE_ERROR_NOWHERE);
    if (err != ICMS_OK || meta->store->down)
        meta_ended(meta);
    else
        meta_write(meta);
}

static void meta_begin(struct store_meta *meta)
{
    struct store *store = meta->store;

    meta->failed = meta->no_space = false;
    if (meta->flush_first)
        loop_file_flush(store->loop, &meta->op, store->file, store_meta_first_flushed);
    else
        meta_write(meta);
}

void store_meta_start(struct store *store, struct store_meta *meta)
{
    check(meta->count > 0 && meta->done != NULL);
    meta->store = store;
    meta->attempts = 0;
    store->metas++;
    meta_begin(meta);
}
