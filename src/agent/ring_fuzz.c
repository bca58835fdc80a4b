/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer of what a local process reaches: the rings, the lease tables and the staging memory of an
 * agent with two enclosures and a drive of its own.
 *
 * An input is a list of steps of 12 bytes (enum step); STEP_RAW takes the 64 bytes behind it.
 * Whatever the client wrote, afterwards nothing of it is in flight, and another client stores and
 * loads as before.
 */
#include <string.h>

#include "agent/agent_rig.h"
#include "base/bytes.h"
#include "base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define STEP_BYTES  12
#define STEPS_MAX   120
#define VALUE_BYTES 5000u
#define OWN_BLOCK   1000 /* of the other client */

enum step {
    STEP_ENTRY,   /* an entry that is nearly right                       */
    STEP_RAW,     /* 64 bytes as an entry                                */
    STEP_STAGING, /* a value, keys or bytes go into staging memory       */
    STEP_LEASE,   /* a word of the lease table                           */
    STEP_TAKE,    /* answers are taken, or the ring says something wrong */
    STEP_RUN,     /* time passes                                         */
    STEP_HOLD,    /* enclosures keep commands, or let them go            */
    STEP_COUNTER, /* a counter of the client                             */
    STEP_COUNT,
};

static struct agent_rig *rig;
static struct rig_client *liar, *other;

static void fuzz_publish(void)
{
    for (uint32_t r = 0; r < liar->attached.reactor_count; r++) {
        (void)shm_submit_publish(&liar->rings[r]);
        loop_event_signal(liar->attached.agent_events[r]);
    }
}

/* at: op, flags, key, volume and identity, lease, bytes (2), offset (2), time, aside. */
static void fuzz_entry(const uint8_t *at)
{
    struct shm_submit entry = {
        .tag = at[2],
        .op = at[0],
        .flags = at[1],
        .volume = at[3] % 4,
        .lease = at[4],
        .bytes = (uint32_t)at[5] | (uint32_t)at[6] << 8,
        .offset = ((uint64_t)at[7] | (uint64_t)at[8] << 8) * 64,
        .deadline_ns = rig_now_ns(rig) + at[9] * RIG_MS,
        .aside = at[10] == 0 ? 0 : rig_now_ns(rig) + at[10] * RIG_MS,
        .key_length = 16,
    };
    struct key key;

    rig_key(at[2], &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    if (entry.volume < RIG_VOLUMES)
        entry.identity = (uint8_t)(liar->arenas[entry.volume].identity + (at[3] >> 6));
    for (uint32_t r = 0; r < liar->attached.reactor_count; r++)
        if ((at[3] & (0x10u << r)) == 0)
            (void)shm_submit_push(&liar->rings[r], &entry);
}

static void fuzz_raw(const uint8_t *at)
{
    struct shm_submit entry;

    memcpy(&entry, at, sizeof(entry));
    (void)shm_submit_push(&liar->rings[0], &entry);
}

/* at: kind, offset (2), count, then whatever. */
static void fuzz_staging(const uint8_t *at)
{
    uint64_t offset = ((uint64_t)at[1] | (uint64_t)at[2] << 8) * 64;
    uint8_t value[VALUE_BYTES + LIMIT_TRAILER_BYTES];
    struct key key;

    if (offset + sizeof(value) > liar->ring.staging_bytes)
        return;
    rig_value(at[3], VALUE_BYTES, value);
    memset(value + VALUE_BYTES, at[4], LIMIT_TRAILER_BYTES);
    if (at[0] % 3 == 0) {
        memcpy(liar->ring.staging + offset, value, sizeof(value));
    } else if (at[0] % 3 == 1) {
        for (uint32_t i = 0; i < at[3] && i < VALUE_BYTES / sizeof(struct shm_key); i++) {
            struct shm_key made = {.length = i == at[5] ? at[6] : 16};

            rig_key(i, &key);
            memcpy(made.bytes, key.bytes, sizeof(made.bytes));
            memcpy(liar->ring.staging + offset + i * sizeof(made), &made, sizeof(made));
        }
    } else {
        memset(liar->ring.staging + offset, at[4], VALUE_BYTES);
    }
}

/* at: what, ring, value (4). */
static void fuzz_take(const uint8_t *at)
{
    struct shm_qpair *qpair = liar->rings[at[1] % liar->attached.reactor_count].qpair;
    uint32_t value;

    memcpy(&value, at + 2, sizeof(value));
    if (at[0] < 200)
        atomic_store(&qpair->complete_head, atomic_load(&qpair->complete_tail));
    else if (at[0] < 230)
        atomic_store(&qpair->complete_head, value);
    else if (at[0] < 240)
        atomic_store(&qpair->submit_head, value);
    else if (at[0] < 250)
        atomic_store(&qpair->agent_heartbeat_ns, value);
    else
        atomic_store(&qpair->submit_tail, value);
}

static void fuzz_step(enum step step, const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at + 2, sizeof(value));
    switch (step) {
    case STEP_ENTRY:
        fuzz_entry(at);
        break;
    case STEP_STAGING:
        fuzz_staging(at);
        break;
    case STEP_LEASE:
        atomic_store(&liar->ring.leases[at[0] * 2 % SHM_LEASES], at[1] & 1 ? value : at[6]);
        atomic_store(&liar->ring.lease_shards[at[0] * 2 % SHM_LEASES], at[1] & 2 ? value : at[7]);
        break;
    case STEP_TAKE:
        fuzz_take(at);
        break;
    case STEP_RUN:
        fuzz_publish();
        rig_run(rig, at[0] * RIG_MS);
        break;
    case STEP_HOLD:
        rig->fake[0]->hold = (at[0] & 1) != 0;
        rig->fake[1]->hold_stores = (at[0] & 2) != 0;
        if ((at[0] & 4) != 0)
            rig_on_fake(rig, 0, fake_target_drop);
        break;
    default:
        atomic_store(&liar->ring.counts[at[0] % LIMIT_AGENT_VOLUMES][at[1] % SHM_COUNTS], value);
        break;
    }
}

static void fuzz_begin(void)
{
    static const struct rig_opts opts = {.enclosures = 2,
                                         .slots = 16,
                                         .loops = 2,
                                         .many = true,
                                         .own_drive_bytes = 8 << 20,
                                         .own_drive_share = 0.25};

    if (rig == NULL) {
        rig = rig_new(&opts);
        other = rig_client_new(rig);
        for (uint32_t n = 0; n < 40; n++)
            rig_flash(rig, n % 2, n % 2, n, VALUE_BYTES);
        rig_run(rig, 1000 * RIG_MS);
    }
    liar = rig_client_new(rig);
}

/* Enclosures answer again, and the client goes. */
static void fuzz_end(void)
{
    rig->fake[0]->hold = rig->fake[1]->hold_stores = false;
    for (uint32_t i = 0; i < 2; i++)
        rig_on_fake(rig, i, fake_target_release);
    rig_client_free(liar);
    rig_run(rig, 2000 * RIG_MS);
    check(rig_stats(rig)->in_flight == 0 && rig_stats(rig)->clients == 1);
    other->next_tag = 1;
    memset(other->got, 0, sizeof(other->got));
    check(rig_wait(other, rig_put(other, 0, OWN_BLOCK, VALUE_BYTES, 0, 0))->status == ICMS_OK);
    check(rig_value_is(other, 0, OWN_BLOCK, VALUE_BYTES,
                       rig_wait(other, rig_get(other, 0, OWN_BLOCK, 0, 0))));
    rig_lease_give(other, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < STEP_BYTES || bytes > (size_t)STEPS_MAX * STEP_BYTES)
        return 0;
    fuzz_begin();
    for (size_t at = 0; at + STEP_BYTES <= bytes; at += STEP_BYTES) {
        enum step step = (enum step)(data[at] % STEP_COUNT);

        if (step == STEP_RAW && at + 1 + sizeof(struct shm_submit) <= bytes)
            fuzz_raw(data + at + 1);
        else if (step != STEP_RAW)
            fuzz_step(step, data + at + 1);
    }
    fuzz_publish();
    rig_run(rig, 20 * RIG_MS);
    fuzz_end();
    return 0;
}
