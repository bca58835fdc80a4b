/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The run of a store: everything that waits goes on, as far as it can.
 *
 * Called on the loop's thread when something began to wait, and by each part of the store that
 * ended what others may wait for (store->run).
 */
#include "store/store_int.h"

void store_run(struct store *store)
{
    check(store->magic == STORE_MAGIC);
    if (store->running) {
        store->run_again = true;
        return;
    }
    store->running = true;
    do {
        store->run_again = false;
        while (store_mutations_run(store))
            ;
        store_kill_run(store);
        store_reclaim_run(store);
        store_opener_run(store);
        store_discard_run(store);
    } while (store->run_again);
    store->running = false;
    store_budget_note(store);
}
