/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins: blocks that stay for a time, within limits of volume and user, in memory and on the own
 * drive; and that no pins stop the agent, whoever makes them. And hints of who gives no proof.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "base/check.h"

#define MS    RIG_MS
#define S     (1000 * MS)
#define KV    0
#define BYTES 20000u
#define SLOTS 64
#define AT    (3u << 20) /* in staging memory, behind what puts use */

#define USER   1001
#define OTHERS 1003

/* An agent with memory for SLOTS blocks of a volume, of which pins take half. */
static struct agent_rig *rig_of(struct rig_opts opts)
{
    opts.seed = 13;
    opts.enclosures = 1;
    opts.slots = SLOTS;
    opts.block_bytes = BYTES;
    opts.pin_percent = 50;
    return rig_new(&opts);
}

static struct rig_client *client_of(struct agent_rig *rig, uint32_t uid)
{
    const struct agent_user user = {.uid = uid, .gid = uid};
    icms_err err;
    struct rig_client *client = rig_client_as(rig, &user, &err);

    assert_non_null(client);
    return client;
}

/* What the agent is asked about keys first, first + 1, ... of KV. */
struct pins {
    uint32_t first, count, pin_s, tier;
    uint8_t flags;
    uint64_t need_ns; /* from now; 0: a second */
};

/* How many it takes; the others are refused with this reason. */
static uint32_t pins_asked(struct rig_client *client, const struct pins *pins,
                           enum icms_miss otherwise)
{
    struct shm_submit entry = {.op = SHM_OP_PRESTAGE,
                               .offset = AT,
                               .bytes = pins->count,
                               .flags = pins->flags,
                               .lease = shm_hint(pins->tier, 0, pins->pin_s),
                               .aside = rig_now_ns(client->rig) +
                                        (pins->need_ns != 0 ? pins->need_ns : 1 * S),
                               .deadline_ns = rig_now_ns(client->rig) + 2 * S};
    uint8_t *memory = client->ring.staging + AT, *reasons;
    const struct shm_complete *answer;
    uint32_t taken = 0;

    for (uint32_t i = 0; i < pins->count; i++) {
        rig_put_key(memory, i, pins->first + i);
    }
    reasons = memory + pins->count * sizeof(struct shm_key);
    memset(reasons, 0xee, pins->count);
    answer = rig_wait(client, rig_submit(client, &entry));
    assert_non_null(answer);
    assert_int_equal(answer->status, ICMS_OK);
    for (uint32_t i = 0; i < pins->count; i++) {
        if (reasons[i] != ICMS_MISS_NONE)
            assert_int_equal(reasons[i], otherwise);
        taken += reasons[i] == ICMS_MISS_NONE;
    }
    return taken;
}

static uint32_t pin(struct rig_client *client, uint32_t first, uint32_t count, uint32_t pin_s)
{
    const struct pins pins = {.first = first, .count = count, .pin_s = pin_s};

    return pins_asked(client, &pins, ICMS_MISS_QUOTA);
}

static uint32_t unpin(struct rig_client *client, uint32_t first, uint32_t count)
{
    const struct pins pins = {.first = first, .count = count, .flags = SHM_FLAG_FORGET};

    return pins_asked(client, &pins, ICMS_MISS_ABSENT);
}

static void flash(struct agent_rig *rig, uint32_t first, uint32_t count)
{
    for (uint32_t n = first; n < first + count; n++)
        rig_flash(rig, 0, KV, n, BYTES);
}

/* Each hint that was taken is somewhere, or has ended once, and what is over holds nothing. */
static void assert_sums(struct agent_rig *rig)
{
    const struct agent_prestage_stats *stats = rig_hints(rig);

    (void)rig_hints_left(rig);
    if (stats->pins == 0)
        assert_int_equal(stats->pinned_bytes + stats->pinned_drive_bytes, 0);
}

/* Other blocks, of this volume, take all of the memory that they may have. */
static void memory_turns_over(struct rig_client *client, uint32_t volume)
{
    for (uint32_t n = 5000; n < 5000 + 3 * SLOTS; n++) {
        rig_flash(client->rig, 0, volume, n, BYTES);
        (void)rig_load(client, volume, n, BYTES);
        rig_run(client->rig, 5 * MS);
    }
}

static void a_pinned_block_stays_for_its_time(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, 6);
    assert_int_equal(pin(client, 0, 6, 60), 6);
    rig_run(rig, 200 * MS);
    assert_int_equal(rig_in_arena_of(client, KV, 0, 6), 6);
    assert_int_equal(rig_hints(rig)->pins, 6);
    assert_true(rig_hints(rig)->pinned_bytes >= 6 * BYTES);
    assert_int_equal(rig_hints(rig)->kept_bytes, 0);
    assert_true(rig_load(client, KV, 0, BYTES)); /* a read ends no pin */
    memory_turns_over(client, KV);
    assert_int_equal(rig_in_arena_of(client, KV, 0, 6), 6);
    assert_int_equal(rig_hints(rig)->pins_again, 0);
    rig_run(rig, 40 * S);
    memory_turns_over(client, KV);
    assert_int_equal(rig_in_arena_of(client, KV, 0, 6), 6);
    rig_run(rig, 25 * S); /* 60 s are over */
    assert_int_equal(rig_hints(rig)->pins, 0);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_IN_TIME], 1);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_UNUSED], 5);
    assert_sums(rig);
    memory_turns_over(client, KV);
    assert_int_equal(rig_in_arena_of(client, KV, 0, 6), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Without the pin these blocks are gone. */
static void a_hint_that_was_read_keeps_nothing(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, 6);
    assert_int_equal(pin(client, 0, 6, 0), 6);
    rig_run(rig, 200 * MS);
    for (uint32_t n = 0; n < 6; n++)
        assert_true(rig_load(client, KV, n, BYTES));
    memory_turns_over(client, KV);
    assert_int_equal(rig_in_arena_of(client, KV, 0, 6), 0);
    rig_client_free(client);
    rig_free(rig);
}

static void a_pin_is_taken_back_at_once(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, 4);
    assert_int_equal(pin(client, 0, 4, 600), 4);
    assert_int_equal(pin(client, 0, 4, 900), 4); /* longer, and no second pin */
    rig_run(rig, 200 * MS);
    assert_int_equal(rig_hints(rig)->pins, 4);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_JOINED], 4);
    assert_int_equal(unpin(client, 0, 5), 4);
    assert_int_equal(unpin(client, 0, 4), 0);
    assert_int_equal(rig_hints(rig)->pins, 0);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_CANCELED], 4);
    assert_sums(rig);
    assert_int_equal(pin(client, 0, 4, 600), 4); /* what is there is pinned where it is */
    assert_int_equal(rig_hints(rig)->waiting, 4);
    memory_turns_over(client, KV);
    assert_int_equal(rig_in_arena_of(client, KV, 0, 4), 4);
    rig_client_free(client);
    rig_free(rig);
}

static void a_hint_becomes_a_pin(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, 2);
    assert_int_equal(pin(client, 0, 2, 0), 2);
    rig_run(rig, 100 * MS);
    assert_true(rig_hints(rig)->kept_bytes > 0);
    assert_int_equal(pin(client, 0, 2, 60), 2);
    assert_int_equal(rig_hints(rig)->kept_bytes, 0); /* it counts as one of both */
    assert_int_equal(rig_hints(rig)->pins, 2);
    rig_run(rig, 20 * S);
    memory_turns_over(client, KV);
    assert_int_equal(rig_in_arena_of(client, KV, 0, 2), 2);
    assert_int_equal(unpin(client, 0, 2), 2);
    assert_sums(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* A pin of a block for which there is a hint has the pin's time, wherever that hint is. */
static void a_hint_that_becomes_a_pin_has_its_time(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    const struct pins later = {.first = 0, .count = 1, .need_ns = 600 * S};

    flash(rig, 0, 2);
    assert_int_equal(pins_asked(client, &later, ICMS_MISS_NONE), 1);
    rig_run(rig, 100 * MS);
    assert_true(rig_in_arena(client, KV, 0));
    assert_int_equal(pin(client, 0, 1, 1), 1); /* READY, and needed much later */
    rig_run(rig, 15 * S);
    assert_int_equal(rig_hints(rig)->pins, 0);

    rig->fake[0]->delay_ns = 3 * S;
    assert_int_equal(pin(client, 1, 1, 0), 1); /* loading, and then queued again: late for a hint */
    assert_int_equal(pin(client, 1, 1, 60), 1);
    rig_run(rig, 5 * S);
    assert_int_equal(rig_hints(rig)->pins, 1);
    rig->fake[0]->delay_ns = 0;
    rig_run(rig, 15 * S);
    assert_true(rig_in_arena(client, KV, 1));
    assert_sums(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* Bytes of memory that a user has pinned, and none of the drive. */
static uint64_t pinned_by(struct agent_rig *rig, uint32_t uid)
{
    struct agent_user_stats user;
    uint64_t bytes = 0;
    uint32_t found = 0;

    for (uint32_t i = 0; i < AGENT_USERS; i++)
        if (agent_user_stats(rig->agent, i, KV, &user) && user.uid == uid && !user.owner) {
            assert_int_equal(found++, 0);
            assert_int_equal(user.pinned_drive_bytes, 0);
            bytes = user.pinned_bytes;
        }
    return bytes;
}

/* A user has half of what is free of the volume's part, and the next one half of the rest. */
static void limits_are_kept(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *first = client_of(rig, USER), *second = client_of(rig, OTHERS);
    uint64_t most = rig_stats(rig)->volumes[KV].arena_bytes / 2;
    uint32_t own = 0, others = 0;

    flash(rig, 0, 200);
    for (uint32_t n = 0; n < 100; n++) {
        own += pin(first, n, 1, 600);
        rig_run(rig, 20 * MS);
    }
    assert_in_range(own, SLOTS / 4 - 6, SLOTS / 4);
    assert_true(rig_hints(rig)->pinned_bytes <= most / 2);
    assert_int_equal(rig_hints(rig)->pins_refused, 100 - own);
    for (uint32_t n = 100; n < 200; n++) {
        others += pin(second, n, 1, 600);
        rig_run(rig, 20 * MS);
    }
    assert_in_range(others, own / 4, own - 1);
    assert_true(rig_hints(rig)->pinned_bytes <= most);
    assert_int_equal(rig_in_arena_of(first, KV, 0, own), own);
    assert_true(pinned_by(rig, USER) >= (uint64_t)own * BYTES);
    assert_int_equal(unpin(second, 0, 100), 0); /* they are another user's */
    assert_int_equal(unpin(first, 0, own), own);
    assert_sums(rig);
    rig_client_free(first);
    rig_client_free(second);
    rig_free(rig);
}

/* Many at once are counted with what blocks usually take, and what they take when they are there:
 * not more than the limit is ever pinned. */
static void a_batch_cannot_pass_the_limit(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = client_of(rig, USER);
    uint64_t most = rig_stats(rig)->volumes[KV].arena_bytes / 4;

    flash(rig, 0, 100);
    (void)pin(client, 0, 100, 600); /* nothing is known of sizes */
    for (int i = 0; i < 50; i++) {
        rig_run(rig, 10 * MS);
        assert_true(rig_hints(rig)->pinned_bytes <= most + BYTES);
    }
    assert_true(rig_hints(rig)->pins > 8 && rig_hints(rig)->pins_refused > 0);
    rig_run(rig, 3 * S);
    assert_sums(rig);
    rig_client_free(client);
    rig_free(rig);
}

static void without_a_part_all_are_refused(void **state)
{
    struct rig_opts opts = {.seed = 13, .enclosures = 1, .slots = SLOTS, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, 3);
    assert_int_equal(pin(client, 0, 3, 60), 0);
    assert_int_equal(rig_hints(rig)->pins_refused, 3);
    assert_int_equal(rig_hints(rig)->taken, 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Who pins all that he may, with leases on the rest, and large blocks that find no hole between
 * pins: loads and stores go on. */
static void pins_stop_nobody(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.value_bytes = 16 * BYTES});
    struct rig_client *wrong = client_of(rig, USER), *client = client_of(rig, OTHERS);

    flash(rig, 0, 400);
    for (uint32_t n = 0; n < 400; n += 8) { /* all over the memory */
        (void)pin(wrong, n, 1, 86400);
        rig_run(rig, 20 * MS);
        for (uint32_t i = 1; i < 8; i++)
            (void)rig_load(wrong, KV, n + i, BYTES);
    }
    assert_true(rig_hints(rig)->pins > 4);
    for (uint32_t n = 1000; n < 1020; n++) {
        rig_flash(rig, 0, KV, n, 15 * BYTES);
        (void)rig_load(client, KV, n, 15 * BYTES);
        assert_int_equal(
            rig_wait(client, rig_put(client, KV, n + 1000, 15 * BYTES, 0, 2 * S))->status, ICMS_OK);
        rig_run(rig, 20 * MS);
    }
    memory_turns_over(client, KV);
    assert_sums(rig);
    rig_client_free(wrong);
    rig_client_free(client);
    rig_free(rig);
}

/* Its volume is pinned all over, and other volumes get what it has over its floor. */
static void pins_hold_no_memory_from_other_volumes(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.memory = 20});
    struct rig_client *client = rig_client_new(rig);
    uint64_t before;

    memory_turns_over(client, KV);
    before = rig_stats(rig)->volumes[KV].arena_bytes;
    for (uint32_t n = 5000; n < 5000 + 3 * SLOTS; n += 4)
        (void)pin(client, n, 1, 86400);
    assert_true(rig_hints(rig)->pins > 8);
    rig_run(rig, 100 * S);
    for (int i = 0; i < 4; i++) {
        memory_turns_over(client, 1);
        rig_run(rig, 5 * S);
    }
    assert_true(rig_stats(rig)->volumes[KV].arena_bytes < before / 2);
    assert_true(rig_hints(rig)->pins_again > 0);
    assert_sums(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* What is pinned is read again and again, so that other slabs go first: of those that are left pins
 * have their part, and no more. */
static void pins_keep_their_part_of_less_memory(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.memory = 40});
    struct rig_client *clients[] = {client_of(rig, USER), client_of(rig, OTHERS)};
    uint64_t before;
    uint32_t over = 0;

    memory_turns_over(clients[0], KV);
    before = rig_stats(rig)->volumes[KV].arena_bytes;
    for (uint32_t n = 0; n < 60; n++) {
        flash(rig, n, 1);
        (void)pin(clients[n % 2], n, 1, 86400);
        rig_run(rig, 20 * MS);
    }
    assert_true(rig_hints(rig)->pinned_bytes > before / 4);
    for (uint32_t n = 9000; n < 9000 + 8 * SLOTS; n++) {
        const struct agent_volume_stats *volume;

        rig_flash(rig, 0, 1, n, BYTES);
        (void)rig_load(clients[0], 1, n, BYTES);
        for (uint32_t i = 0; n % 8 == 0 && i < 60; i++)
            if (rig_in_arena(clients[0], KV, i))
                (void)rig_load(clients[0], KV, i, BYTES);
        rig_run(rig, 100 * MS);
        volume = &rig_stats(rig)->volumes[KV];
        over += volume->prestage.pinned_bytes > volume->arena_bytes / 2;
        assert_sums(rig);
    }
    assert_true(rig_stats(rig)->volumes[KV].arena_bytes < before / 2);
    assert_int_equal(over, 0);
    assert_true(rig_hints(rig)->pins > 0 && rig_hints(rig)->pins_refused > 0);
    assert_in_range(pinned_by(rig, USER), pinned_by(rig, OTHERS) / 2, 2 * pinned_by(rig, OTHERS));
    rig_client_free(clients[0]);
    rig_client_free(clients[1]);
    rig_free(rig);
}

static void what_goes_is_brought_again(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, 2);
    assert_int_equal(pin(client, 0, 2, 600), 2);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_wait(client, rig_put(client, KV, 0, BYTES, 0, 1 * S))->status, ICMS_OK);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_hints(rig)->pins_again, 1);
    assert_int_equal(rig_hints(rig)->pins, 2);
    memory_turns_over(client, KV);
    assert_int_equal(rig_in_arena_of(client, KV, 0, 2), 2);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, 0, 1 * S))->status,
                     ICMS_OK);
    rig_run(rig, 500 * MS); /* a block that is removed is not pinned any more */
    assert_int_equal(rig_hints(rig)->pins, 1);
    assert_false(rig_in_arena(client, KV, 0));
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_ABSENT], 1);
    assert_sums(rig);
    rig_client_free(client);
    rig_free(rig);
}

static void what_cannot_come_is_counted(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    assert_int_equal(pin(client, 700, 8, 600), 8); /* there are no such blocks */
    rig_run(rig, 500 * MS);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_ABSENT], 8);
    assert_int_equal(rig_hints(rig)->pins, 0);
    flash(rig, 0, 1);
    rig->fake[0]->delay_ns = 3 * S; /* after its deadline, and it is wanted all the same */
    assert_int_equal(pin(client, 0, 1, 600), 1);
    rig_run(rig, 2 * S);
    assert_int_equal(rig_hints(rig)->pins, 1);
    rig->fake[0]->delay_ns = 0;
    rig_run(rig, 20 * S);
    assert_true(rig_in_arena(client, KV, 0));
    assert_sums(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* An enclosure that is away, and one that answers with errors, end no pin. */
static void a_pin_waits_for_its_enclosure(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, 4);
    assert_int_equal(pin(client, 0, 2, 600), 2);
    rig_run(rig, 100 * MS);
    rig->fake[0]->status = NVME_SC_INTERNAL;
    assert_int_equal(pin(client, 2, 1, 600), 1); /* its first load fails */
    rig_run(rig, 100 * MS);
    rig->fake[0]->refuse_connect = true;
    rig_on_fake(rig, 0, fake_target_drop);
    assert_int_equal(pin(client, 3, 1, 600), 1);
    rig_run(rig, 30 * S);
    assert_int_equal(rig_hints(rig)->pins, 4);
    rig->fake[0]->status = 0;
    rig->fake[0]->refuse_connect = false;
    rig_run(rig, 30 * S);
    assert_int_equal(rig_hints(rig)->pins, 4);
    assert_int_equal(rig_in_arena_of(client, KV, 0, 4), 4);
    assert_int_equal(unpin(client, 0, 4), 4);
    assert_int_equal(rig_hints(rig)->pins, 0);
    assert_sums(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* One that rests is taken back, read, and over in its time, too. */
static void a_pin_that_rests_ends_as_any(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, 3);
    rig->fake[0]->status = NVME_SC_INTERNAL;
    assert_int_equal(pin(client, 0, 2, 600), 2);
    assert_int_equal(pin(client, 2, 1, 4), 1);
    rig_run(rig, 1 * S);
    assert_int_equal(rig_hints(rig)->queued, 3);
    assert_int_equal(unpin(client, 0, 1), 1);
    assert_int_equal(rig_hints(rig)->pins, 2);
    rig->fake[0]->status = 0;
    assert_int_equal(rig_wait(client, rig_get(client, KV, 1, 9, 2000 * MS))->status, ICMS_OK);
    rig_run(rig, 5 * S);
    assert_int_equal(rig_hints(rig)->pins, 1);
    assert_int_equal(rig_hints(rig)->queued, 0);
    memory_turns_over(client, KV);
    assert_int_equal(rig_in_arena_of(client, KV, 1, 1), 1);
    assert_sums(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* A pin goes on when its process ends, and not when another user has the place. */
static void a_pin_belongs_to_its_user(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = client_of(rig, USER), *next;

    flash(rig, 0, 2);
    assert_int_equal(pin(client, 0, 2, 3600), 2);
    rig_run(rig, 100 * MS);
    rig_client_free(client);
    rig_run(rig, 30 * S);
    assert_int_equal(rig_hints(rig)->pins, 2);
    client = client_of(rig, USER);
    assert_int_equal(unpin(client, 0, 1), 1);
    rig_client_free(client);
    for (uint32_t uid = 0; uid < AGENT_USERS; uid++) { /* until the places are used up */
        next = client_of(rig, 5000 + uid);
        assert_int_equal(unpin(next, 0, 2), 0);
        rig_client_free(next);
    }
    rig_run(rig, 30 * S);
    assert_int_equal(rig_hints(rig)->pins, 0);
    assert_sums(rig);
    rig_free(rig);
}

/* ---- on the own drive ----------------------------------------------------------------------- */

#define DRIVE ((uint64_t)32 << 20)

static void a_pin_on_the_drive_is_brought_again(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.own_drive_bytes = DRIVE});
    struct rig_client *client = rig_client_new(rig);
    const struct pins pins = {.first = 0, .count = 4, .pin_s = 3600, .tier = ICMS_TIER_LOCAL};
    struct key key;
    uint32_t there = 0;

    flash(rig, 0, 4);
    assert_int_equal(pins_asked(client, &pins, ICMS_MISS_QUOTA), 4);
    rig_run(rig, 500 * MS);
    assert_int_equal(rig_stats(rig)->tier.prestaged, 4);
    assert_true(rig_hints(rig)->pinned_drive_bytes >= 4 * BYTES);
    assert_int_equal(rig_hints(rig)->pinned_bytes, 0);
    for (uint32_t n = 10000; n < 10000 + DRIVE / BYTES * 3; n += 8) { /* the drive turns over */
        const struct pins others = {.first = n, .count = 8, .tier = ICMS_TIER_LOCAL};

        flash(rig, n, 8);
        (void)pins_asked(client, &others, ICMS_MISS_SHED);
        rig_run(rig, 60 * MS);
    }
    rig_run(rig, 60 * S);
    assert_true(rig_stats(rig)->tier.evicted > 0);
    assert_int_equal(rig_hints(rig)->pins, 4);
    for (uint32_t n = 0; n < 4; n++) {
        rig_key(n, &key);
        there += agent_tier_has(&rig->agent->reactors[0].shards[KV], &key);
    }
    assert_int_equal(there, 4);
    assert_int_equal(unpin(client, 0, 4), 4);
    assert_sums(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* A drive that is slow for a while, and one whose budget is used up, end no pin. */
static void a_pin_waits_for_its_drive(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.own_drive_bytes = DRIVE});
    struct rig_client *client = rig_client_new(rig);
    const struct pins pins = {.first = 0, .count = 4, .pin_s = 3600, .tier = ICMS_TIER_LOCAL};

    flash(rig, 0, 12);
    assert_int_equal(pins_asked(client, &pins, ICMS_MISS_QUOTA), 4);
    rig_run(rig, 500 * MS);
    assert_int_equal(rig_stats(rig)->tier.prestaged, 4);
    memory_turns_over(client, KV);
    sim_file_slow(rig->node, RIG_DRIVE, 100000);
    for (uint32_t n = 0; n < 4; n++) /* late reads make it slow */
        (void)rig_wait(client, rig_get(client, KV, n, 9, 2000 * MS));
    assert_false(agent_tier_is_up(&rig->agent->reactors[0].shards[KV]));
    rig_run(rig, 40 * S);
    assert_int_equal(rig_hints(rig)->pins, 4);
    sim_file_slow(rig->node, RIG_DRIVE, 1);
    rig_run(rig, 60 * S);
    assert_true(agent_tier_is_up(&rig->agent->reactors[0].shards[KV]));
    assert_int_equal(rig_hints(rig)->pins, 4);
    assert_int_equal(rig_hints(rig)->waiting, 4);
    assert_sums(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* Nor do they take more than a quota of the volume on the drive allows. */
static void pins_on_the_drive_keep_a_quota(void **state)
{
    struct agent_rig *rig =
        rig_of((struct rig_opts){.own_drive_bytes = DRIVE, .quota_bytes = DRIVE / 4});
    struct rig_client *client = rig_client_new(rig);

    for (uint32_t n = 0; n < DRIVE / BYTES; n += 16) {
        const struct pins pins = {.first = n, .count = 16, .pin_s = 60, .tier = ICMS_TIER_LOCAL};

        flash(rig, n, 16);
        (void)pins_asked(client, &pins, ICMS_MISS_QUOTA);
        rig_run(rig, 60 * MS);
        assert_true(rig_hints(rig)->pinned_drive_bytes <= DRIVE / 4 / 4);
    }
    assert_true(rig_hints(rig)->pins_refused > 0 && rig_hints(rig)->pins > 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Half of what is free of the volume's part, and of the half of the drive that all volumes have. */
static void pins_on_the_drive_have_limits(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.own_drive_bytes = DRIVE});
    struct rig_client *client = rig_client_new(rig);
    uint64_t most = rig_stats(rig)->tier.bytes_max / 4;

    for (uint32_t n = 0; n < DRIVE / BYTES; n += 16) {
        const struct pins pins = {.first = n, .count = 16, .pin_s = 60, .tier = ICMS_TIER_LOCAL};

        flash(rig, n, 16);
        (void)pins_asked(client, &pins, ICMS_MISS_QUOTA);
        rig_run(rig, 60 * MS);
        assert_true(rig_hints(rig)->pinned_drive_bytes <= most);
    }
    assert_true(rig_hints(rig)->pins_refused > 0);
    assert_true(rig_hints(rig)->pinned_drive_bytes > most / 2);
    rig_run(rig, 90 * S);
    assert_int_equal(rig_hints(rig)->pins, 0);
    assert_sums(rig);
    rig_client_free(client);
    rig_free(rig);
}

/* ---- hostile -------------------------------------------------------------------------------- */

static void a_pin_that_is_too_long_is_refused(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    static const uint32_t seconds[] = {ICMS_PIN_SECONDS_MAX + 1, (1u << 24) - 1};

    for (int i = 0; i < 2; i++) {
        struct shm_submit entry = {.op = SHM_OP_PRESTAGE,
                                   .offset = AT,
                                   .bytes = 1,
                                   .lease = shm_hint(ICMS_TIER_DRAM, 0, seconds[i]),
                                   .aside = rig_now_ns(rig) + 1 * S,
                                   .deadline_ns = rig_now_ns(rig) + 1 * S};

        assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_INVALID);
    }
    assert_int_equal(rig_hints(rig)->taken, 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Over a port that asks for no proof anybody gives hints; what stays is the owner's. */
static void strangers_pin_nothing(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    const struct agent_user stranger = {.uid = UINT32_MAX, .gid = UINT32_MAX};
    struct key key;
    struct agent_hints hints = {.user = &stranger,
                                .volume = "kv",
                                .keys = &key,
                                .count = 1,
                                .deadline_ms = 1000,
                                .pin_s = 60};
    struct err_why why = {""};

    rig_key(0, &key);
    flash(rig, 0, 1);
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_AUTH);
    assert_non_null(strstr(why.text, "token"));
    hints.pin_s = 0;
    hints.priority = 1;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_AUTH);
    hints.priority = 0;
    hints.cancel = true;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_AUTH);
    hints.cancel = false;
    hints.user = NULL;
    hints.pin_s = ICMS_PIN_SECONDS_MAX + 1;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_INVALID);
    hints.pin_s = 60;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_OK);
    rig_run(rig, 200 * MS);
    assert_int_equal(rig_hints(rig)->pins, 1);
    assert_int_equal(rig_hints(rig)->taken, 1);
    hints.pin_s = 0;
    hints.cancel = true; /* by the owner */
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_OK);
    rig_run(rig, 10 * MS);
    assert_int_equal(rig_hints(rig)->pins, 0);
    rig_free(rig);
}

/* Nor do they use up the owner's hints. */
static void strangers_leave_room_for_hints(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    const struct agent_user stranger = {.uid = UINT32_MAX, .gid = UINT32_MAX};
    static struct key keys[1024];
    struct agent_hints hints = {
        .user = &stranger, .volume = "kv", .keys = keys, .count = 1024, .deadline_ms = 600000};
    struct err_why why = {""};
    uint32_t taken = 0;

    rig->fake[0]->delay_ns = 60 * S;
    for (uint32_t i = 0; i < AGENT_HINTS / 1024; i++) {
        for (uint32_t n = 0; n < 1024; n++)
            rig_key(100000 + i * 1024 + n, &keys[n]);
        assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_OK);
        rig_run(rig, 10 * MS);
    }
    assert_in_range(rig_hints(rig)->taken, 1024, AGENT_HINTS_GUEST);
    for (uint32_t n = 0; n < AGENT_HINTS / 4; n += 16) {
        const struct pins more = {.first = n, .count = 16, .need_ns = 600 * S};

        taken += pins_asked(client, &more, ICMS_MISS_SHED);
    }
    assert_int_equal(taken, AGENT_HINTS / 4);
    rig_client_free(client);
    rig_free(rig);
}

/* Hints over the port for keys first, first + 1, ...: of a stranger, or of the owner. */
static void port_hints(struct agent_rig *rig, bool is_stranger, uint32_t first, uint32_t count,
                       uint32_t deadline_ms, bool cancel)
{
    const struct agent_user stranger = {.uid = UINT32_MAX, .gid = UINT32_MAX};
    struct key keys[SLOTS];
    const struct agent_hints hints = {.user = is_stranger ? &stranger : NULL,
                                      .volume = "kv",
                                      .keys = keys,
                                      .count = count,
                                      .deadline_ms = deadline_ms,
                                      .cancel = cancel};
    struct err_why why = {""};

    assert_true(count <= SLOTS);
    for (uint32_t i = 0; i < count; i++)
        rig_key(first + i, &keys[i]);
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_OK);
    rig_run(rig, 200 * MS);
}

/* Theirs for the same block neither outlives the owner's cancel nor makes the owner's last longer,
 * whoever comes first. */
static void strangers_change_no_hint(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});

    flash(rig, 0, 3);
    port_hints(rig, false, 0, 1, 5000, false);
    port_hints(rig, true, 0, 1, 600000, false);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_JOINED], 1);
    assert_int_equal(rig_hints(rig)->waiting, 1);
    port_hints(rig, false, 0, 1, 1000, true);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_CANCELED], 1);
    assert_int_equal(rig_hints_left(rig), 0);
    port_hints(rig, true, 1, 1, 600000, false);
    port_hints(rig, true, 1, 1, 600000, false);
    port_hints(rig, false, 1, 1, 5000, false);
    assert_int_equal(rig_hints(rig)->waiting, 1);
    port_hints(rig, false, 1, 1, 1000, true);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_CANCELED], 2);
    assert_int_equal(rig_hints_left(rig), 0);
    port_hints(rig, true, 1, 1, 600000, false);
    port_hints(rig, false, 1, 2, 1000, false);
    port_hints(rig, true, 1, 2, 600000, false);
    assert_int_equal(rig_hints(rig)->waiting, 2);
    rig_run(rig, 3 * S);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_UNUSED], 2);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_free(rig);
}

/* What is kept for others stays, however soon they say that they need theirs. */
static void strangers_take_no_place_of_others(void **state)
{
    const struct pins more = {.first = 200, .count = SLOTS, .need_ns = 60 * S};

    for (int who = 0; who < 2; who++) {
        struct agent_rig *rig = rig_of((struct rig_opts){0});
        struct rig_client *client = client_of(rig, USER);
        uint64_t kept;

        flash(rig, 0, SLOTS);
        flash(rig, 100, 8);
        flash(rig, 200, SLOTS);
        if (who == 0)
            port_hints(rig, false, 200, SLOTS, 60000, false);
        else
            assert_int_equal(pins_asked(client, &more, ICMS_MISS_NONE), SLOTS);
        rig_run(rig, 200 * MS);
        kept = rig_in_arena_of(client, KV, 200, SLOTS);
        assert_in_range(kept, SLOTS / 4, SLOTS - 8);
        port_hints(rig, true, 0, 8, 2000, false);
        assert_int_equal(rig_in_arena_of(client, KV, 0, 8), 0);
        rig_run(rig, 10 * S); /* theirs are over */
        assert_int_equal(rig_in_arena_of(client, KV, 200, SLOTS), kept);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* And theirs goes for the owner's, though that is needed later. */
static void strangers_give_place_to_the_owner(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, SLOTS);
    flash(rig, 100, 8);
    port_hints(rig, true, 0, SLOTS, 60000, false);
    assert_in_range(rig_in_arena_of(client, KV, 0, SLOTS), SLOTS / 4, SLOTS - 8);
    port_hints(rig, false, 100, 8, 600000, false);
    assert_int_equal(rig_in_arena_of(client, KV, 100, 8), 8);
    rig_client_free(client);
    rig_free(rig);
}

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Pins, hints, cancels, gets, puts and removes at random of two users, in both tiers, while the pod
 * is slow or lost at times: every sum is right, no byte is wrong. */
static void anything_keeps_the_sums(void **state)
{
    enum { KEYS = 90, STEPS = 3000 };
    struct agent_rig *rig = rig_of((struct rig_opts){.own_drive_bytes = DRIVE / 2});
    struct rig_client *clients[] = {client_of(rig, USER), client_of(rig, OTHERS)};
    uint64_t seed = 7;

    flash(rig, 0, KEYS);
    for (int step = 0; step < STEPS; step++) {
        struct rig_client *client = clients[random_next(&seed) % 2];
        uint32_t n = (uint32_t)(random_next(&seed) % KEYS), what = random_next(&seed) % 100;
        struct pins pins = {.first = n,
                            .count = 1 + (uint32_t)(random_next(&seed) % 4),
                            .pin_s = (uint32_t)(random_next(&seed) % 3 * 4),
                            .tier = random_next(&seed) % 2};

        if (client->next_tag >= RIG_ANSWERS - 16)
            continue;
        pins.flags = what >= 35 && what < 45 ? SHM_FLAG_FORGET : 0;
        if (what < 35)
            (void)pins_asked(client, &pins, ICMS_MISS_QUOTA);
        else if (what < 45)
            (void)pins_asked(client, &pins, ICMS_MISS_ABSENT);
        else if (what < 75)
            (void)rig_wait(client, rig_op(client, SHM_OP_EXISTS, KV, n, 500 * MS));
        else if (what < 80)
            (void)rig_wait(client, rig_put(client, KV, n, BYTES, 0, 500 * MS));
        else if (what < 83)
            (void)rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, n, 500 * MS));
        else if (what < 86)
            rig->fake[0]->delay_ns = random_next(&seed) % 4 * 10 * MS;
        else if (what < 87)
            rig->fake[0]->wrong = FAKE_RESET;
        else
            rig_run(rig, random_next(&seed) % 40 * MS);
        assert_sums(rig);
    }
    rig_run(rig, 40 * S);
    assert_int_equal(rig_hints(rig)->pins, 0);
    assert_sums(rig);
    rig_client_free(clients[0]);
    rig_client_free(clients[1]);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pinned_block_stays_for_its_time),
        cmocka_unit_test(a_hint_that_was_read_keeps_nothing),
        cmocka_unit_test(a_pin_is_taken_back_at_once),
        cmocka_unit_test(a_hint_becomes_a_pin),
        cmocka_unit_test(a_hint_that_becomes_a_pin_has_its_time),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(a_batch_cannot_pass_the_limit),
        cmocka_unit_test(without_a_part_all_are_refused),
        cmocka_unit_test(pins_stop_nobody),
        cmocka_unit_test(pins_hold_no_memory_from_other_volumes),
        cmocka_unit_test(pins_keep_their_part_of_less_memory),
        cmocka_unit_test(what_goes_is_brought_again),
        cmocka_unit_test(what_cannot_come_is_counted),
        cmocka_unit_test(a_pin_waits_for_its_enclosure),
        cmocka_unit_test(a_pin_that_rests_ends_as_any),
        cmocka_unit_test(a_pin_belongs_to_its_user),
        cmocka_unit_test(a_pin_on_the_drive_is_brought_again),
        cmocka_unit_test(a_pin_waits_for_its_drive),
        cmocka_unit_test(pins_on_the_drive_keep_a_quota),
        cmocka_unit_test(pins_on_the_drive_have_limits),
        cmocka_unit_test(a_pin_that_is_too_long_is_refused),
        cmocka_unit_test(strangers_pin_nothing),
        cmocka_unit_test(strangers_leave_room_for_hints),
        cmocka_unit_test(strangers_change_no_hint),
        cmocka_unit_test(strangers_take_no_place_of_others),
        cmocka_unit_test(strangers_give_place_to_the_owner),
        cmocka_unit_test(anything_keeps_the_sums),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
