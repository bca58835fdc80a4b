/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/tier_stats.c: what is told of the own drive beside the pod, and of volumes on any own
 * drive. Any thread.
 */
#include "agent/agent_int.h"

uint32_t agent_tier_volume(const struct agent_tier *tier, uint32_t number)
{
    for (uint32_t i = 0; number != AGENT_TIER_NO_NUMBER && i < tier->agent->volume_count; i++)
        if (atomic_load_explicit(&tier->numbers[i], memory_order_relaxed) == number)
            return i;
    return STORE_ERROR_NO_BLOCK;
}

void agent_tier_stats(struct agent_tier *tier, struct agent_tier_stats *out)
{
    struct store_stats store = {0};

    *out = (struct agent_tier_stats){
        .state = (enum agent_tier_state)atomic_load_explicit(&tier->state, memory_order_relaxed),
        .emptied = tier->emptied,
        .promoted = counter_get(&tier->promoted),
        .promoted_bytes = counter_get(&tier->promoted_bytes),
        .given_up = counter_get(&tier->given_up),
        .passed = counter_get(&tier->passed),
        .failed_reads = counter_get(&tier->failed_reads),
        .stored = counter_get(&tier->stored),
        .stored_bytes = counter_get(&tier->stored_bytes),
        .demoted = counter_get(&tier->demoted),
        .demoted_bytes = counter_get(&tier->demoted_bytes),
        .prestaged = counter_get(&tier->prestaged),
        .prestaged_bytes = counter_get(&tier->prestaged_bytes),
        .kept = counter_get(&tier->kept),
        .unread = counter_get(&tier->unread),
        .refused = counter_get(&tier->refused),
        .shed = counter_get(&tier->shed),
        .failed_writes = counter_get(&tier->failed_writes),
        .forgotten = counter_get(&tier->forgotten),
        .slow_total = counter_get(&tier->slow_total),
    };
    pthread_mutex_lock(&tier->text_lock);
    memcpy(out->why, tier->text, sizeof(out->why));
    pthread_mutex_unlock(&tier->text_lock);
    if (tier->store == NULL)
        return;
    store_stats(tier->store, &store);
    out->blocks = store.blocks;
    out->bytes = store.used_bytes;
    out->bytes_max = store.capacity_bytes;
    out->evicted = store.evictions;
    out->budget_bytes_day = store.budget_bytes_day;
    out->budget_left_bytes = store.budget_left_bytes;
}

void agent_volume_drive_stats(const struct agent *agent, uint32_t volume,
                              struct agent_volume_stats *out_stats)
{
    const struct agent_tier *tier = agent->tier;
    const struct store *store = tier != NULL           ? tier->store
                                : agent->local != NULL ? agent->local->store
                                                       : NULL;
    uint32_t number = volume;
    struct store_volume_stats stats;

    if (tier != NULL)
        number = atomic_load_explicit(&tier->numbers[volume], memory_order_relaxed);
    if (store == NULL || number == AGENT_TIER_NO_NUMBER)
        return;
    store_volume_stats(store, number, &stats);
    out_stats->drive_blocks = stats.blocks;
    out_stats->drive_bytes = stats.bytes;
}
