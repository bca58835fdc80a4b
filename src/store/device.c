/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store and its device: memory for I/O, what an outcome means, out of service.
 *
 * Loop's thread, but for what open does before it runs.
 */
#include <stdlib.h>

#include "store/store_int.h"

void *store_pages_new(struct store *store, uint64_t pages)
{
    void *memory;

    if (store->buffer_count == sizeof(store->buffers) / sizeof(store->buffers[0]))
        return NULL;
    memory = aligned_alloc(STORE_PAGE_BYTES, pages * STORE_PAGE_BYTES);
    if (memory == NULL)
        return NULL;
    memset(memory, 0, pages * STORE_PAGE_BYTES);
    store->buffers[store->buffer_count++] = memory;
    return memory;
}

void store_down(struct store *store)
{
    if (store->down)
        return;
    __atomic_store_n(&store->down, true, __ATOMIC_RELAXED);
    store_quota_leave(store);
    if (store->ops.down != NULL) /* the owner knows before it gets an answer that comes of it */
        store->ops.down(store->owner);
    store->run(store); /* answers what is parked */
}

void store_write_outcome(struct store *store, icms_err err, struct store_error error)
{
    if (err == ICMS_OK || err == ICMS_NO_SPACE)
        __atomic_store_n(&store->full, err == ICMS_NO_SPACE, __ATOMIC_RELAXED);
    if (err == ICMS_OK) {
        store->write_errors = 0;
        return;
    }
    error.err = err;
    store_error_add(store, &error, 1);
    if (err == ICMS_NO_SPACE)
        return;
    if (++store->write_errors >= STORE_WRITE_ERRORS_MAX)
        store_down(store);
}

void store_read_outcome(struct store *store, icms_err err, struct store_error error)
{
    if (err == ICMS_OK) {
        store->read_errors = 0;
        return;
    }
    error.err = err;
    store_error_add(store, &error, 1);
    if (++store->read_errors >= STORE_READ_ERRORS_MAX)
        store_down(store);
}
