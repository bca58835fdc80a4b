/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns and rates: parts by weight whatever the sizes, against an ideal fluid that divides each
 * byte, with members that come and go.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/fair.h"
#include "base/hash.h"

#define MIB     ((uint64_t)1 << 20)
#define MEMBERS 64

struct member {
    struct fair_member turn;
    uint32_t bytes_max; /* of its commands, 1 at least                 */
    uint64_t next;      /* bytes of the command that waits             */
    uint64_t got;       /* bytes that went                             */
    uint64_t got_then;  /* at the start of the interval that is judged */
};

static uint64_t random_state;

static uint64_t dice(uint64_t sides)
{
    random_state = hash64_mix(random_state + 1);
    return random_state % sides;
}

/* Sizes of all magnitudes up to the largest. */
static uint64_t size_of(const struct member *member)
{
    uint64_t bytes = dice(member->bytes_max) + 1;

    return dice(2) == 0 ? bytes : bytes >> dice(20) | 1;
}

static uint64_t charged(uint64_t bytes)
{
    return (bytes + FAIR_PAGE_BYTES - 1) / FAIR_PAGE_BYTES * FAIR_PAGE_BYTES;
}

static struct member *serve(struct fair *fair)
{
    struct fair_member *first = fair_first(fair);
    struct member *member = (struct member *)first;

    assert_non_null(first);
    fair_charge(fair, first, member->next);
    member->got += charged(member->next);
    member->next = size_of(member);
    return member;
}

static void members_make(struct fair *fair, struct member *members, uint32_t count)
{
    fair_init(fair);
    memset(members, 0, count * sizeof(*members));
    for (uint32_t i = 0; i < count; i++) {
        fair_member_init(&members[i].turn, 1 + (uint32_t)dice(dice(2) ? 8 : FAIR_WEIGHT_MAX));
        members[i].bytes_max = (uint32_t)(dice(3) == 0 ? 64 * MIB : (uint64_t)1 << dice(24));
        members[i].next = size_of(&members[i]);
    }
}

/* What an ideal fluid gives each member, divided by its weight, is the same. Here two may differ by
 * one command of each, and by what rounding costs. */
static void expect_fair(const struct member *a, const struct member *b)
{
    double part_a = (double)(a->got - a->got_then) / a->turn.weight;
    double part_b = (double)(b->got - b->got_then) / b->turn.weight;
    double bound = (double)charged(a->bytes_max) / a->turn.weight +
                   (double)charged(b->bytes_max) / b->turn.weight;

    /* weight / FAIR_SCALE of each command at most */
    if (fabs(part_a - part_b) > bound + 0.016 * fmax(part_a, part_b))
        fail_msg("weights %u and %u: %.0f and %.0f bytes a weight, %.0f apart are allowed",
                 a->turn.weight, b->turn.weight, part_a, part_b, bound);
}

/* All wait all the time, for any interval. */
static void members_that_wait_share_by_weight(void **state)
{
    static struct member members[MEMBERS];
    struct fair fair;

    for (uint64_t seed = 1; seed <= 60; seed++) {
        uint32_t count = 2;

        random_state = seed;
        count += (uint32_t)dice(MEMBERS - 1);
        members_make(&fair, members, count);
        for (uint32_t i = 0; i < count; i++)
            fair_push(&fair, &members[i].turn);
        for (int interval = 0; interval < 8; interval++) {
            for (uint32_t i = 0; i < count; i++)
                members[i].got_then = members[i].got;
            for (uint64_t turns = dice(3000); turns > 0; turns--)
                (void)serve(&fair);
            for (uint32_t i = 1; i < count; i++)
                expect_fair(&members[0], &members[i]);
        }
    }
}

/* The same while others come and go, at any place of the heap. */
static void members_that_come_and_go_disturb_nobody(void **state)
{
    static struct member members[MEMBERS];
    struct fair fair;

    for (uint64_t seed = 1; seed <= 60; seed++) {
        uint64_t queued = 0, turns = 0;

        random_state = seed;
        members_make(&fair, members, MEMBERS);
        fair_push(&fair, &members[0].turn);
        fair_push(&fair, &members[1].turn);
        for (int step = 0; step < 6000; step++) {
            struct member *other = &members[2 + dice(MEMBERS - 2)];

            switch (dice(4)) {
            case 0:
                if (!other->turn.link.queued)
                    fair_push(&fair, &other->turn);
                break;
            case 1:
                fair_remove(&fair, &other->turn);
                break;
            default:
                (void)serve(&fair);
                turns++;
            }
            expect_fair(&members[0], &members[1]);
        }
        for (uint32_t i = 0; i < MEMBERS; i++)
            queued += members[i].turn.link.queued;
        for (uint32_t i = 0; i < MEMBERS; i++) {
            struct fair_member *first = fair_first(&fair);

            if (first == NULL)
                break;
            fair_remove(&fair, first);
            queued--;
        }
        assert_int_equal(queued, 0);
        assert_true(turns > 1000);
    }
}

/* A queue of queues: hosts of a tenant share what the tenant gets. */
static void hosts_share_what_their_tenant_gets(void **state)
{
    enum { TENANTS = 3, HOSTS = 5 };
    static struct member hosts[TENANTS][HOSTS];
    struct fair_member tenants[TENANTS];
    struct fair top, inner[TENANTS];
    uint64_t got[TENANTS] = {0};

    random_state = 7;
    fair_init(&top);
    for (int t = 0; t < TENANTS; t++) {
        members_make(&inner[t], hosts[t], HOSTS);
        fair_member_init(&tenants[t], (uint32_t)t + 1);
        for (int h = 0; h <= 2 * t; h++) { /* tenants have 1, 3 and 5 hosts */
            hosts[t][h].turn.weight = 1;
            fair_push(&inner[t], &hosts[t][h].turn);
        }
        fair_push(&top, &tenants[t]);
    }
    for (int i = 0; i < 100000; i++) {
        uint64_t t = (uint64_t)(fair_first(&top) - tenants);
        struct member *host = (struct member *)fair_first(&inner[t]);
        uint64_t bytes = host->next;

        (void)serve(&inner[t]);
        fair_charge(&top, &tenants[t], bytes);
        got[t] += charged(bytes);
    }
    for (int t = 0; t < TENANTS; t++) {
        double parts = (double)got[t] / (t + 1) / (double)got[0];

        assert_true(parts > 0.98 && parts < 1.02);
        for (int h = 1; h <= 2 * t; h++)
            expect_fair(&hosts[t][0], &hosts[t][h]);
    }
}

/* Who was idle gets its part from now on, and neither more nor less for the time before. */
static void an_idle_member_costs_nothing_and_saves_nothing(void **state)
{
    struct member a = {.bytes_max = 1, .next = 1}, b = {.bytes_max = 1, .next = 1};
    struct fair fair;
    uint32_t turns = 0;

    fair_init(&fair);
    fair_member_init(&a.turn, 1);
    fair_member_init(&b.turn, 1);
    fair_push(&fair, &a.turn);
    for (int i = 0; i < 1000; i++) /* all of it goes to the other */
        assert_ptr_equal(serve(&fair), &a);
    fair_push(&fair, &b.turn);
    for (int i = 0; i < 100; i++)
        turns += serve(&fair) == &b;
    assert_in_range(turns, 50, 51);
}

/* A command that goes before its turn is paid for later. */
static void what_went_before_its_turn_counts(void **state)
{
    struct fair_member a, b;
    struct fair fair;
    uint32_t turns = 0;

    fair_init(&fair);
    fair_member_init(&a, 1);
    fair_member_init(&b, 1);
    fair_push(&fair, &b);
    for (int i = 0; i < 10; i++)
        fair_charge(&fair, &a, MIB);
    fair_push(&fair, &a);
    while (fair_first(&fair) == &b) {
        fair_charge(&fair, &b, MIB);
        turns++;
    }
    assert_in_range(turns, 10, 11);
}

/* Virtual time wraps around after some 2^48 pages. */
static void virtual_time_may_wrap(void **state)
{
    static struct member members[4];
    struct fair fair;

    random_state = 3;
    members_make(&fair, members, 4);
    fair.now = UINT64_MAX - 1000;
    for (int i = 0; i < 3; i++)
        fair_push(&fair, &members[i].turn);
    for (int i = 0; i < 5000; i++)
        (void)serve(&fair);
    assert_true(fair.now < UINT64_MAX / 2); /* it did */
    expect_fair(&members[0], &members[1]);
    expect_fair(&members[0], &members[2]);
    members[3].turn.start = fair.now + UINT64_MAX / 2 - 5; /* idle for half of the numbers */
    fair_push(&fair, &members[3].turn);
    for (int i = 0; i < 5000 && members[3].got == 0; i++)
        (void)serve(&fair);
    assert_true(members[3].got > 0);
}

/* Bytes that go in a second when there is always a command that waits. */
static uint64_t rate_run(struct fair_rate *rate, uint64_t units, uint64_t start_ns, uint64_t for_ns)
{
    uint64_t went = 0;

    for (uint64_t now = start_ns; now < start_ns + for_ns;) {
        uint64_t ready = fair_rate_ready_ns(rate);

        if (ready > now) {
            now = ready;
            continue;
        }
        fair_rate_charge(rate, units, now);
        went += units;
    }
    return went;
}

static void a_rate_holds_whatever_the_size(void **state)
{
    static const uint64_t rates[] = {1000, 100 * MIB, 10000 * MIB};
    static const uint64_t second = (uint64_t)1000 * 1000 * 1000;

    for (size_t i = 0; i < 3; i++)
        for (uint64_t units = 1; units <= 64 * MIB; units *= 16) {
            struct fair_rate rate = {.per_s = rates[i]};
            uint64_t seconds = 10 + 200 * units / rates[i];
            double went;

            if (rates[i] / units > 1000000)
                continue; /* too many turns */
            went = (double)rate_run(&rate, units, 5 * second, seconds * second);
            went /= (double)(seconds * rates[i]);
            if (went < 0.98 || went > 1.02)
                fail_msg("%llu units at %llu a second: %.3f of it", (unsigned long long)units,
                         (unsigned long long)rates[i], went);
        }
}

static void a_rate_saves_nothing_up(void **state)
{
    static const uint64_t second = (uint64_t)1000 * 1000 * 1000;
    struct fair_rate rate = {.per_s = 1000};
    struct fair_rate none = {0};

    assert_in_range(rate_run(&rate, 1, 1000 * second, second), 1000, 1012);
    assert_in_range(rate_run(&rate, 1, 9000 * second, second), 1000, 1012);
    fair_rate_charge(&none, 64 * MIB, second);
    assert_int_equal(fair_rate_ready_ns(&none), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_that_wait_share_by_weight),
        cmocka_unit_test(members_that_come_and_go_disturb_nobody),
        cmocka_unit_test(hosts_share_what_their_tenant_gets),
        cmocka_unit_test(an_idle_member_costs_nothing_and_saves_nothing),
        cmocka_unit_test(what_went_before_its_turn_counts),
        cmocka_unit_test(virtual_time_may_wrap),
        cmocka_unit_test(a_rate_holds_whatever_the_size),
        cmocka_unit_test(a_rate_saves_nothing_up),
    };

    return cmocka_run_group_tests_name("fair", tests, NULL, NULL);
}
