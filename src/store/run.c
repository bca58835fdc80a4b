/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The run of a store: everything that waits goes on, as far as it can.
 *
 * Called on the loop's thread when something began to wait, and by each part of the store that
 * ended what others may wait for (store->run).
 */
#include "store/store_int.h"

/* Whether free segments are few when all that can go on has gone on: one that becomes free and is
 * taken at once is none. */
static void run_low_note(struct store *store)
{
    if (store->free_count + store->ready_count >= store->free_low_mark)
        counter_set(&store->stats.free_low_ns, 0);
    else if (store->stats.free_low_ns == 0)
        counter_set(&store->stats.free_low_ns, loop_env_now_ns(loop_env(store->loop)));
}

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
    } while (store->run_again);
    store->running = false;
    store_budget_note(store);
    run_low_note(store);
}
