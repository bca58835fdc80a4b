/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the policy of a store is told, and its write budget.
 *
 * Loop's thread; store_budget_left from any.
 */
#include "base/hash.h"
#include "store/format.h"
#include "store/store_int.h"

/* Bytes a day of a budget on a drive of this size. */
static uint64_t store_budget_day(const struct write_budget *budget, uint64_t drive_bytes)
{
    double bytes = budget->drive_writes * (double)drive_bytes;

    if (budget->bytes_day != 0 || bytes <= 0)
        return budget->bytes_day;
    return bytes < 0x1p60 ? u64_max((uint64_t)bytes, 1) : (uint64_t)1 << 60;
}

/* What a write budget saves up at most. */
static uint64_t store_budget_burst(const struct write_budget *budget, uint64_t day)
{
    return budget->burst_bytes != 0 ? budget->burst_bytes : day;
}

icms_err store_budget_check(const struct store_opts *opts, uint64_t drive_bytes,
                            struct err_why *why)
{
    uint64_t day = store_budget_day(&opts->budget, drive_bytes);
    uint64_t burst = store_budget_burst(&opts->budget, day);
    uint64_t record = store_record_bytes(opts->value_bytes_max);

    if (day != 0 && burst < record)
        return err_set(why, ICMS_INVALID,
                       "%s: a write budget that saves up %llu bytes never lets the largest value, "
                       "a record of %llu bytes, through: raise the budget or its burst",
                       opts->path, (unsigned long long)burst, (unsigned long long)record);
    return ICMS_OK;
}

icms_err store_budget_open(struct store *store, const struct store_opts *opts, struct err_why *why)
{
    uint64_t day = store_budget_day(&opts->budget, store->super.bytes);
    icms_err err = store_budget_check(opts, store->super.bytes, why);

    if (err != ICMS_OK)
        return err;
    store->policy_opts = (struct policy_opts){
        .budget_bytes_day = day, .burst_bytes = store_budget_burst(&opts->budget, day)};
    store->stats.budget_bytes_day = day;
    return ICMS_OK;
}

uint64_t store_policy_hash(uint32_t volume, const struct key *key)
{
    return hash64_seed(key->bytes, sizeof(key->bytes), (uint64_t)volume << 8 | key->length);
}

uint64_t store_policy_run(uint32_t volume, const struct key *key)
{
    return hash64_seed(
        key->bytes, key->length == LIMIT_KEY_BYTES ? LIMIT_RUN_BYTES : sizeof(key->bytes), volume);
}

void store_recency(struct store *store, struct store_segment *segment, uint32_t volume,
                   const struct key *key)
{
    policy_access(store->policy, &segment->recency, store_policy_hash(volume, key));
    segment->last_volume = volume;
    segment->last_key = *key;
}

void store_accessed(struct store *store, struct store_segment *segment, uint32_t volume,
                    const struct key *key)
{
    store_recency(store, segment, volume, key);
    policy_read(store->policy, store_policy_run(volume, key));
}

uint64_t store_now_ms(const struct store *store)
{
    return loop_now_ns(store->loop) / 1000000;
}

void store_overhead_written(struct store *store, uint64_t bytes)
{
    counter_add(&store->stats.device_write_bytes, bytes);
    policy_charge(store->policy, bytes, store_now_ms(store));
    store_budget_note(store);
}

void store_budget_note(struct store *store)
{
    uint64_t now_ms = store_now_ms(store);

    if (store->policy_opts.budget_bytes_day == 0)
        return;
    counter_set(&store->budget_left_bytes, (uint64_t)policy_budget_left(store->policy, now_ms));
    counter_set(&store->budget_ms, now_ms);
}

uint64_t store_budget_left(const struct store *store)
{
    const struct policy_opts *opts = &store->policy_opts;
    uint64_t now_ms = loop_env_now_ns(loop_env(store->loop)) / 1000000;
    uint64_t then_ms = counter_get(&store->budget_ms);
    double gained = (double)(now_ms > then_ms ? now_ms - then_ms : 0) *
                    ((double)opts->budget_bytes_day / (24.0 * 3600 * 1000));
    double left = (double)(int64_t)counter_get(&store->budget_left_bytes) + gained;

    if (left <= 0)
        return 0;
    return left < (double)opts->burst_bytes ? (uint64_t)left : opts->burst_bytes;
}
