/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the drive did wrong: counted, and kept for the owner's log.
 *
 * store_error_add by whoever has the store (its loop; the thread that opens it, before); taken by
 * any one thread. A ring with one writer and one reader: what finds it full is counted and dropped.
 */
#include "store/store_int.h"

void store_error_add(struct store *store, const struct store_error *error, uint64_t count)
{
    struct store_errors *errors = &store->errors;
    uint32_t written = atomic_load_explicit(&errors->written, memory_order_relaxed);

    if (error->err == ICMS_CORRUPT)
        counter_add(&store->stats.checksum_errors, count);
    else if (error->err == ICMS_NO_SPACE)
        counter_add(&store->stats.no_space_errors, count);
    else
        counter_add(&store->stats.io_errors, count);
    if (written - atomic_load_explicit(&errors->taken, memory_order_acquire) == STORE_ERRORS) {
        atomic_fetch_add_explicit(&errors->missed, 1, memory_order_relaxed);
        return;
    }
    errors->error[written % STORE_ERRORS] = *error;
    atomic_store_explicit(&errors->written, written + 1, memory_order_release);
}

bool store_error_take(struct store *store, struct store_error *out_error, uint64_t *out_missed)
{
    struct store_errors *errors = &store->errors;
    uint32_t taken = atomic_load_explicit(&errors->taken, memory_order_relaxed);

    if (atomic_load_explicit(&errors->written, memory_order_acquire) == taken)
        return false;
    *out_missed = atomic_exchange_explicit(&errors->missed, 0, memory_order_relaxed);
    *out_error = errors->error[taken % STORE_ERRORS];
    atomic_store_explicit(&errors->taken, taken + 1, memory_order_release);
    return true;
}
