/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits in an agent is woken: for operations, for flushes, and whose stores count for whom.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_rig.h"
#include "agent/wait.h"
#include "base/check.h"

#define MS RIG_MS
#define KV 0

/* The agent's operations of class prestage at a time, and gets that wait for one. */
#define OPS   512
#define WAITS 600

static void fake_release(struct fake_target *target)
{
    target->hold = target->hold_stores = false;
    fake_target_release(target);
}

/* Two clients want the same blocks while all operations are in use: when there are some again, the
 * second's gets need none. All are looked at. */
static void who_waits_for_an_operation_is_woken_though_others_needed_none(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 2048};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *clients[3];
    uint64_t last[2], began_ns;

    for (int i = 0; i < 3; i++)
        clients[i] = rig_client_new(rig);
    for (uint32_t n = 0; n < WAITS; n++)
        rig_flash(rig, 0, KV, 1000 + n, 100);
    rig->fake[0]->hold = true;
    for (uint32_t n = 0; n < OPS; n++)
        (void)rig_prestage(clients[0], n, 20000 * MS);
    rig_run(rig, 100 * MS);
    for (int i = 0; i < 2; i++)
        for (uint32_t n = 0; n < WAITS; n++)
            last[i] = rig_prestage(clients[1 + i], 1000 + n, 20000 * MS);
    rig_run(rig, 100 * MS);
    began_ns = rig_now_ns(rig);
    rig_on_fake(rig, 0, fake_release);
    for (int i = 0; i < 2; i++)
        assert_int_equal(rig_wait(clients[1 + i], last[i])->status, ICMS_OK);
    assert_true(rig_now_ns(rig) - began_ns < 2000 * MS);
    for (int i = 0; i < 3; i++)
        rig_client_free(clients[i]);
    rig_free(rig);
}

/* A block is said to be bad while others wait for an operation that has just become free: it is not
 * its turn, and nothing comes of it. */
static void what_is_suspect_does_not_pass_who_waits(void **state)
{
    static const uint64_t pauses_ns[] = {1000, 8000, 50000};
    const struct rig_opts opts = {.enclosures = 1, .slots = 2048};
    const struct agent_user user = {.uid = 1000, .gid = 1000};

    for (size_t i = 0; i < sizeof(pauses_ns) / sizeof(pauses_ns[0]); i++) {
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *clients[2];
        uint64_t last = 0;
        icms_err err;

        for (int c = 0; c < 2; c++)
            clients[c] = rig_client_as(rig, &user, &err);
        rig->fake[0]->hold = true;
        for (uint32_t n = 0; n < OPS; n++)
            (void)rig_prestage(clients[0], n, 20000 * MS);
        rig_run(rig, 100 * MS);
        for (uint32_t n = 0; n < 400; n++)
            last = rig_prestage(clients[0], 2000 + n, 20000 * MS);
        rig_run(rig, 100 * MS);
        rig_on_fake(rig, 0, fake_release);
        for (uint32_t n = 0; n < 2000; n++) {
            (void)rig_op(clients[1], SHM_OP_SUSPECT, KV, 5000 + n, 5000 * MS);
            if (n % 8 == 7)
                rig_run(rig, pauses_ns[i]);
        }
        assert_int_equal(rig_wait(clients[0], last)->status, ICMS_MISS);
        for (int c = 0; c < 2; c++)
            rig_client_free(clients[c]);
        rig_free(rig);
    }
}

/* A flush that finds nothing left, since another one took it, is not over before that one is. */
static void a_flush_waits_for_the_flush_before_it(void **state)
{
    const struct rig_opts opts = {.enclosures = 1};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint64_t first, second;

    assert_int_equal(rig_wait(client, rig_put(client, KV, 1, 100, 0, 0))->status, ICMS_OK);
    rig_run(rig, 100 * MS);
    rig->fake[0]->hold = true;
    first = rig_op(client, SHM_OP_FLUSH, KV, 0, 5000 * MS);
    rig_run(rig, 50 * MS);
    second = rig_op(client, SHM_OP_FLUSH, KV, 0, 5000 * MS);
    rig_run(rig, 50 * MS);
    rig_take(client);
    assert_int_equal(client->got[first], 0);
    assert_int_equal(client->got[second], 0);
    rig_on_fake(rig, 0, fake_release);
    assert_int_equal(rig_wait(client, first)->status, ICMS_OK);
    assert_int_equal(rig_wait(client, second)->status, ICMS_OK);
    rig_client_free(client);
    rig_free(rig);
}

/* A client gets the number of one that is gone: what that one stored is not its business. */
static void a_flush_says_nothing_of_who_had_the_number_before(void **state)
{
    const struct rig_opts opts = {.enclosures = 1};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t number = client->attached.client;
    struct agent_stats stats;
    uint64_t tag;

    assert_int_equal(rig_wait(client, rig_put(client, KV, 1, 100, 0, 0))->status, ICMS_OK);
    rig_run(rig, 100 * MS);
    rig->fake[0]->hold_stores = true;
    assert_int_equal(rig_wait(client, rig_put(client, KV, 2, 100, 0, 0))->status, ICMS_OK);
    rig_client_free(client);
    client = rig_client_new(rig);
    assert_int_equal(client->attached.client, number);
    rig->fake[0]->hold = true; /* neither its flush, nor anything else, is answered */
    tag = rig_op(client, SHM_OP_FLUSH, KV, 0, 100 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    rig->fake[0]->status = 0x0006; /* the store fails */
    rig_on_fake(rig, 0, fake_release);
    rig_run(rig, 100 * MS);
    agent_stats(rig->agent, &stats);
    assert_int_equal(stats.volumes[KV].store_failures, 1);
    assert_int_equal(stats.backlog_bytes, 0);
    tag = rig_op(client, SHM_OP_FLUSH, KV, 0, 100 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    rig_client_free(client);
    rig_free(rig);
}

/* Stores that do not get on hold their share of the arena; the rest of it is for loads. */
static void stores_leave_slots_to_loads(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 8, .block_bytes = 20000};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint64_t tags[10], load;

    rig_flash(rig, 0, KV, 50, 100);
    rig->fake[0]->hold_stores = true;
    for (uint32_t i = 0; i < 10; i++)
        tags[i] = rig_put(client, KV, i, 20000, SHM_FLAG_ON_FLASH, 5000 * MS);
    rig_run(rig, 100 * MS);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(client->got[tags[i]], 0);
    load = rig_get(client, KV, 50, UINT32_MAX, 200 * MS);
    assert_int_equal(rig_wait(client, load)->status, ICMS_OK);
    rig_on_fake(rig, 0, fake_release);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(rig_wait(client, tags[i])->status, ICMS_OK);
    rig_client_free(client);
    rig_free(rig);
}

/* An accepted put is answered before it is on flash: the drain waits for that, too. */
static void a_drain_waits_for_requests_and_for_accepted_stores(void **state)
{
    const struct rig_opts opts = {.enclosures = 1};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint64_t tag;

    rig_flash(rig, 0, KV, 1, 100);
    rig->fake[0]->hold_stores = true;
    assert_int_equal(rig_wait(client, rig_put(client, KV, 2, 20000, 0, 5000 * MS))->status,
                     ICMS_OK);
    rig_run(rig, 2 * MS);
    assert_int_equal(rig_stats(rig)->in_flight, 0);
    assert_true(rig_stats(rig)->backlog_bytes > 0);
    assert_false(agent_drain(rig->agent, 5)); /* time stands still in there */
    rig_on_fake(rig, 0, fake_release);
    rig_run(rig, 50 * MS);
    assert_true(agent_drain(rig->agent, 5));
    rig_client_free(client);
    rig_free(rig);

    rig = rig_new(&opts);
    client = rig_client_new(rig);
    rig_flash(rig, 0, KV, 1, 100);
    rig->fake[0]->hold = true;
    tag = rig_get(client, KV, 1, 0, 5000 * MS);
    rig_run(rig, 2 * MS);
    assert_int_equal(rig_stats(rig)->in_flight, 1);
    assert_false(agent_drain(rig->agent, 5));
    rig_on_fake(rig, 0, fake_release);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK); /* begun before, so it is answered */
    assert_true(agent_drain(rig->agent, 5));
    rig_client_free(client);
    rig_free(rig);
}

/* Something that needs space, and perhaps an operation, of which there are so many. */
struct taker {
    struct agent_waiter waiter;
    struct takers *all;
    uint32_t share;
    bool needs_op;
};

struct takers {
    struct line space, ops;
    struct taker takers[9]; /* the first three are of share 0 */
    uint32_t spaces, free_ops;
    uint32_t got[2]; /* by share */
};

#define TAKER_BYTES ((uint64_t)1 << 20)

static uint64_t taker_wake(struct agent_waiter *waiter, struct agent_op *op)
{
    struct taker *taker = container_of(waiter, struct taker, waiter);
    struct takers *all = taker->all;

    if (all->spaces == 0) {
        agent_line_wait(waiter, &all->space, taker->share);
        return 0;
    }
    if (taker->needs_op && all->free_ops == 0) {
        agent_line_wait(waiter, &all->ops, taker->share);
        return 0;
    }
    all->spaces--;
    all->free_ops -= taker->needs_op;
    all->got[taker->share]++;
    return TAKER_BYTES;
}

/* So much is given back; who took something wants the next afterwards. */
static void takers_wake(struct takers *all, struct line *line, uint32_t spaces, uint32_t ops)
{
    all->spaces = spaces;
    all->free_ops = ops;
    agent_line_wake(line, 1);
    for (int i = 0; i < 9; i++)
        if (all->takers[i].waiter.line == NULL)
            agent_line_wait(&all->takers[i].waiter, &all->space, all->takers[i].share);
}

/* Of two users one needs an operation besides space. In the first half of each round there is space
 * and no operation: the other user gets it, since the first one has turns that it cannot use. In
 * the second half there is both. It is charged for what it got and not for those turns, so it is
 * first, and third, of three. */
static void who_waits_for_two_things_is_charged_once(void **state)
{
    struct takers *all = calloc(1, sizeof(*all));
    void *memory = malloc(2 * line_bytes(1, 2));

    check(all != NULL && memory != NULL);
    line_init(&all->space, memory, 1, 2, NULL);
    line_init(&all->ops, (uint8_t *)memory + line_bytes(1, 2), 1, 2, NULL);
    for (int i = 0; i < 9; i++) {
        struct taker *taker = &all->takers[i];

        *taker = (struct taker){.all = all, .share = i > 2, .needs_op = i <= 2};
        taker->waiter.wake = taker_wake;
        list_init(&taker->waiter.link);
        agent_line_wait(&taker->waiter, &all->space, taker->share);
    }
    for (int round = 0; round < 200; round++) {
        takers_wake(all, &all->space, 3, 0);
        takers_wake(all, &all->ops, 0, 3);
        takers_wake(all, &all->space, 3, 3);
    }
    print_message("  %u and %u\n", all->got[0], all->got[1]);
    assert_int_equal(all->got[0] + all->got[1], 6 * 200);
    assert_in_range(all->got[0], 2 * 200 - 5, 2 * 200 + 5);
    for (int i = 0; i < 9; i++)
        agent_waiter_leave(&all->takers[i].waiter);
    free(memory);
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drain_waits_for_requests_and_for_accepted_stores),
        cmocka_unit_test(who_waits_for_an_operation_is_woken_though_others_needed_none),
        cmocka_unit_test(what_is_suspect_does_not_pass_who_waits),
        cmocka_unit_test(a_flush_waits_for_the_flush_before_it),
        cmocka_unit_test(a_flush_says_nothing_of_who_had_the_number_before),
        cmocka_unit_test(stores_leave_slots_to_loads),
        cmocka_unit_test(who_waits_for_two_things_is_charged_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
