/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Enclosures with several addresses: commands are spread over the links, a link that is lost,
 * silent or late costs no miss, it comes back by itself, and the pod may add and remove addresses
 * of an enclosure that is in use. base/slow_test.c has the rule for late ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "icms/icms.h"

#define MS    RIG_MS
#define KV    0
#define BYTES 20000u

static const struct rig_opts one = {.enclosures = 1, .links = 2, .slots = 2048};

static const struct agent_enclosure_stats *seen(struct agent_rig *rig, uint32_t enclosure)
{
    return &rig_stats(rig)->enclosures[enclosure];
}

static uint32_t next_key = 1000;

/* Blocks from here on, in the enclosure that owns them; each of a run of its own. */
static uint32_t flash(struct agent_rig *rig, uint32_t count)
{
    uint32_t first = next_key;

    for (uint32_t i = 0; i < count; i++, next_key += 4)
        rig_flash(rig, rig_owner(rig, KV, next_key), KV, next_key, BYTES);
    return first;
}

/* Loads them, so many at a time; returns how many are hits of the right bytes. */
static uint32_t loads(struct agent_rig *rig, struct rig_client *client, uint32_t first,
                      uint32_t count, uint32_t parallel)
{
    uint64_t tags[64];
    uint32_t hits = 0;

    assert_true(parallel <= 64 && count % parallel == 0);
    for (uint32_t i = 0; i < count; i += parallel) {
        for (uint32_t j = 0; j < parallel; j++)
            tags[j] = rig_get(client, KV, first + (i + j) * 4, j, 2000 * MS);
        for (uint32_t j = 0; j < parallel; j++) {
            hits += rig_value_is(client, KV, first + (i + j) * 4, BYTES, rig_wait(client, tags[j]));
            rig_lease_give(client, j);
        }
    }
    return hits;
}

/* ---- spread --------------------------------------------------------------------------------- */

static void commands_are_spread_over_the_links(void **state)
{
    static const struct rig_opts opts = {.enclosures = 1, .links = 3, .slots = 2048};

    for (uint32_t parallel = 1; parallel <= 16; parallel *= 16) {
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *client = rig_client_new(rig);
        uint32_t first = flash(rig, 240);

        assert_int_equal(loads(rig, client, first, 240, parallel), 240);
        assert_int_equal(seen(rig, 0)->link_count, 3);
        for (uint32_t i = 0; i < 3; i++) {
            const struct agent_link_stats *link = &seen(rig, 0)->links[i];

            assert_int_equal(link->state, AGENT_ENCLOSURE_UP);
            assert_in_range(link->commands, 70, 90);
            assert_in_range(link->load_bytes, (uint64_t)70 * BYTES, (uint64_t)90 * (BYTES + 4096));
            assert_int_equal(link->in_flight, 0);
            assert_int_equal(link->in_flight_bytes, 0);
            assert_int_equal(link->excluded_count, 0);
        }
        assert_int_equal(seen(rig, 0)->failovers, 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* A link that keeps what it has for longer takes less, while there is always more to do. */
static void a_link_with_much_in_flight_takes_less(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint32_t first = flash(rig, 480), sent = 0, hits = 0;
    uint64_t tags[16];

    sim_net_far(rig->link_node[0][1], 10 * MS); /* 20 ms: late by no rule */
    for (; sent < 16; sent++)
        tags[sent] = rig_get(client, KV, first + sent * 4, sent, 2000 * MS);
    for (uint32_t turns = 0; hits < 480; turns++) {
        assert_true(turns < 5000);
        rig_run(rig, MS);
        rig_take(client);
        for (uint32_t j = 0; j < 16; j++) {
            if (tags[j] == 0 || client->got[tags[j]] == 0)
                continue;
            assert_int_equal(client->answers[tags[j]].status, ICMS_OK);
            rig_lease_give(client, j);
            hits++;
            tags[j] = sent == 480 ? 0 : rig_get(client, KV, first + sent * 4, j, 2000 * MS);
            sent += tags[j] != 0;
        }
    }
    assert_true(seen(rig, 0)->links[0].commands >= 360);
    assert_true(seen(rig, 0)->links[1].commands >= 20);
    assert_int_equal(seen(rig, 0)->links[1].slow_total, 0);
    rig_client_free(client);
    rig_free(rig);
}

/* ---- lost links ----------------------------------------------------------------------------- */

/* Nothing comes by the link any more, and nobody says so. */
static void a_silent_link_costs_no_miss_and_comes_back(void **state)
{
    for (int many = 0; many < 2; many++) {
        struct rig_opts opts = {.enclosures = 2, .links = 2, .slots = 2048, .many = many == 1};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *client = rig_client_new(rig);
        uint32_t first = flash(rig, 640);
        uint64_t commands;

        assert_int_equal(loads(rig, client, first, 160, 16), 160);
        sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], true);
        assert_int_equal(loads(rig, client, first + 160 * 4, 160, 16), 160);
        assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_EXCLUDED);
        assert_int_equal(seen(rig, 0)->links[0].excluded_count, 1);
        assert_non_null(strstr(seen(rig, 0)->links[0].last_error, "10.1.2.1:4420"));
        assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_UP);
        assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_UP);
        assert_int_equal(seen(rig, 0)->excluded_count, 0);
        assert_true(seen(rig, 0)->failovers > 0);
        assert_int_equal(loads(rig, client, first + 320 * 4, 160, 16), 160);
        sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], false);
        rig_run(rig, 5000 * MS);
        assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_UP);
        commands = seen(rig, 0)->links[0].commands;
        assert_int_equal(loads(rig, client, first + 480 * 4, 160, 16), 160);
        assert_true(seen(rig, 0)->links[0].commands > commands + 20);
        /* it was never away: nobody else has its blocks */
        assert_int_equal(atomic_load(&rig->agent->reactors[0].enclosures[0].included_ns), 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* Who waits with a load whose own deadline has passed has the other link, too, when that one's is
 * lost. */
static void a_late_load_on_a_silent_link_costs_no_miss(void **state)
{
    enum { GETS = 8 };
    struct rig_opts opts = {.enclosures = 1, .links = 2, .slots = 2048};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t first = flash(rig, GETS), missed = 0;
    uint64_t tags[GETS];

    sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], true);
    for (uint32_t i = 0; i < GETS; i++)
        tags[i] = rig_get(client, KV, first + i * 4, SHM_SLOT_NONE, 100 * MS);
    for (uint32_t i = 0; i < GETS; i++)
        missed += rig_wait(client, tags[i])->status != ICMS_OK;
    assert_in_range(missed, 1, GETS - 1);
    for (uint32_t i = 0; i < GETS; i++)
        tags[i] = rig_get(client, KV, first + i * 4, SHM_SLOT_NONE, 5000 * MS);
    for (uint32_t i = 0; i < GETS; i++)
        assert_int_equal(rig_wait(client, tags[i])->status, ICMS_OK);
    rig_client_free(client);
    rig_free(rig);
}

/* Whatever it is that goes by the link when the connection ends. */
static void each_operation_goes_on_by_the_other_link(void **state)
{
    for (int many = 0; many < 2; many++) {
        struct rig_opts opts = {.enclosures = 2, .links = 2, .many = many == 1};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *client = rig_client_new(rig);
        uint32_t n = flash(rig, 1), mine = rig_owner(rig, KV, n);
        struct fake_target *fake = rig->fake[mine];
        struct key key;

        rig_key(n, &key);
        fake->wrong = FAKE_RESET;
        assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_EXISTS, KV, n, 2000 * MS))->status,
                         ICMS_OK);
        assert_int_equal(seen(rig, mine)->failovers, 1);
        rig_run(rig, 2000 * MS);
        fake->wrong = FAKE_RESET;
        assert_int_equal(loads(rig, client, n, 1, 1), 1);
        assert_int_equal(seen(rig, mine)->failovers, 2);
        rig_run(rig, 2000 * MS);
        assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, n, 0))->status,
                         ICMS_OK);
        fake->wrong = FAKE_RESET;
        assert_int_equal(
            rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 2000 * MS))->status,
            ICMS_OK);
        assert_non_null(fake_target_find(fake, KV + 1, &key));
        assert_int_equal(seen(rig, mine)->failovers, 3);
        rig_run(rig, 2000 * MS);
        fake->wrong = FAKE_RESET;
        assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_FLUSH, KV, 0, 2000 * MS))->status,
                         ICMS_OK);
        assert_int_equal(seen(rig, mine)->failovers, 4);
        rig_run(rig, 2000 * MS);
        fake->wrong = FAKE_RESET;
        assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, n, 2000 * MS))->status,
                         ICMS_OK);
        assert_int_equal(seen(rig, mine)->failovers, 5);
        assert_null(fake_target_find(fake, KV + 1, &key));
        assert_int_equal(seen(rig, mine)->excluded_count, 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* A batch of lookups is a command, too. */
static void a_batch_goes_on_by_the_other_link(void **state)
{
    static const struct rig_opts opts = {.enclosures = 1, .links = 2, .many = true};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t first = flash(rig, 16);
    struct shm_submit entry = {
        .op = SHM_OP_EXISTS_MANY, .bytes = 16, .deadline_ns = rig_now_ns(rig) + 2000 * MS};
    const uint8_t *answers = client->ring.staging + 16 * sizeof(struct shm_key);

    for (uint32_t i = 0; i < 16; i++) {
        rig_put_key(client->ring.staging, i, first + i * 4);
    }
    rig->fake[0]->wrong = FAKE_RESET;
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_OK);
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(answers[i], ICMS_MISS_NONE);
    assert_int_equal(seen(rig, 0)->failovers, 1);
    assert_int_equal(rig->fake[0]->exist_manys, 2);
    rig_client_free(client);
    rig_free(rig);
}

static void drop(struct fake_target *target)
{
    fake_target_drop(target);
}

/* The next enclosure is asked when no link is left, and not before. */
static void an_enclosure_is_excluded_when_all_its_links_are(void **state)
{
    static const struct rig_opts opts = {.enclosures = 2, .links = 2};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t first = flash(rig, 32), n = first;
    const struct shm_complete *answer;

    while (rig_owner(rig, KV, n) != 0)
        n += 4;
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], true);
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][1], true);
    answer = rig_wait(client, rig_get(client, KV, n, UINT32_MAX, 2000 * MS));
    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, ICMS_MISS_ENCLOSURE_DOWN);
    rig_run(rig, 3000 * MS);
    assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_EXCLUDED);
    assert_int_equal(seen(rig, 0)->excluded_count, 1);
    for (uint32_t i = 0; i < 2; i++) /* however often it is tried again */
        assert_int_equal(seen(rig, 0)->links[i].excluded_count, 1);
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][1], false);
    rig_run(rig, 5000 * MS);
    assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_UP);
    assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_EXCLUDED);
    assert_int_equal(loads(rig, client, n, 1, 1), 1);
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], false);
    rig_run(rig, 5000 * MS);
    assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_UP);
    /* all connections end at once */
    rig_on_fake(rig, 0, drop);
    rig_run(rig, 3000 * MS);
    assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_UP);
    assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_UP);
    assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_UP);
    assert_int_equal(seen(rig, 0)->excluded_count, 2);
    rig_client_free(client);
    rig_free(rig);
}

/* A rack without power: one enclosure has a command in flight, and nobody asks the others. */
static void what_fails_together_is_noticed_together(void **state)
{
    static const struct rig_opts opts = {.enclosures = 4, .links = 2, .slots = 2048};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t first = flash(rig, 1);

    rig_run(rig, 1000 * MS);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t j = 0; j < 2; j++)
            sim_net_cut(rig->sim, rig->node, rig->link_node[(rig_owner(rig, KV, first) + i) % 4][j],
                        true);
    (void)rig_get(client, KV, first, 0, 2000 * MS);
    rig_run(rig, 900 * MS);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(seen(rig, (rig_owner(rig, KV, first) + i) % 4)->state,
                         i < 3 ? AGENT_ENCLOSURE_EXCLUDED : AGENT_ENCLOSURE_UP);
    rig_client_free(client);
    rig_free(rig);
}

/* A network that loses large packets: whoever connects gets answers, who loads gets none. */
static void what_takes_connections_alone_is_not_used(void **state)
{
    static const struct rig_opts opts = {.enclosures = 2, .slots = 2048, .many = true};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t first = flash(rig, 600), connects, asked = 0;
    uint64_t begin_ns;

    assert_int_equal(loads(rig, client, first, 100, 1), 100);
    rig->fake[0]->mute = 1 + IO_CLASS_LOAD;
    (void)loads(rig, client, first + 400, 16, 16);
    assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_EXCLUDED);
    connects = rig->fake[0]->connects;
    for (uint32_t i = 116; i < 516; i++) {
        uint32_t retrieves = rig->fake[0]->retrieves;

        begin_ns = rig_now_ns(rig);
        (void)loads(rig, client, first + i * 4, 1, 1);
        assert_true(rig_now_ns(rig) - begin_ns < 100 * MS);
        rig_run(rig, 50 * MS);
        asked += rig->fake[0]->retrieves - retrieves;
    }
    assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_EXCLUDED);
    assert_int_equal(seen(rig, 0)->excluded_count, 1);
    assert_true(rig->fake[0]->connects > connects + 5);
    assert_int_equal(asked, rig->fake[0]->connects - connects); /* probes */
    rig->fake[0]->mute = 0;
    rig_run(rig, 2000 * MS);
    assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_UP);
    assert_int_equal(loads(rig, client, first + 520 * 4, 80, 1), 80);
    rig_client_free(client);
    rig_free(rig);
}

/* ---- late links ----------------------------------------------------------------------------- */

static void a_slow_link_is_passed_over_and_comes_back(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint32_t first = flash(rig, 700);
    uint64_t commands, begin_ns;

    assert_int_equal(loads(rig, client, first, 100, 1), 100);
    sim_net_far(rig->link_node[0][1], 150 * MS);
    assert_int_equal(loads(rig, client, first + 100 * 4, 100, 1), 100);
    assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_SLOW);
    assert_int_equal(seen(rig, 0)->links[1].slow_total, 1);
    assert_non_null(strstr(seen(rig, 0)->links[1].last_error, "by its other addresses"));
    assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_UP);
    assert_int_equal(seen(rig, 0)->slow_total, 0);
    commands = seen(rig, 0)->links[1].commands;
    begin_ns = rig_now_ns(rig);
    assert_int_equal(loads(rig, client, first + 200 * 4, 200, 1), 200);
    assert_true(rig_now_ns(rig) - begin_ns < 2000 * MS);
    assert_int_equal(seen(rig, 0)->links[1].commands, commands);
    /* alone it is better than nothing */
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], true);
    assert_int_equal(loads(rig, client, first + 400 * 4, 16, 16), 16);
    assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_UP);
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], false);
    rig_run(rig, 5000 * MS);
    assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_SLOW);
    sim_net_far(rig->link_node[0][1], 0);
    rig_run(rig, 5000 * MS);
    assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_UP);
    commands = seen(rig, 0)->links[1].commands;
    assert_int_equal(loads(rig, client, first + 500 * 4, 200, 1), 200);
    assert_true(seen(rig, 0)->links[1].commands > commands + 50);
    rig_client_free(client);
    rig_free(rig);
}

/* What is late by all links is no fault of a link. */
static void an_enclosure_that_is_late_has_no_slow_link(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint32_t first = flash(rig, 100);

    rig->fake[0]->delay_ns = 300 * MS;
    assert_int_equal(loads(rig, client, first, 100, 4), 100);
    assert_int_equal(seen(rig, 0)->links[0].slow_total + seen(rig, 0)->links[1].slow_total, 0);
    rig_client_free(client);
    rig_free(rig);
}

/* ---- where addresses lead to ---------------------------------------------------------------- */

/* The second address is another enclosure's, which has the same NQN. */
static void an_address_that_leads_elsewhere_is_never_used(void **state)
{
    static const struct rig_opts opts = {.enclosures = 3, .members = 2, .links = 1, .epoch = 1};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    struct agent_enclosure_opts list[2];
    struct err_why why = {""};
    uint32_t first;

    rig->fake[2]->serial = "OTHER";
    memcpy(list, rig->enclosures, sizeof(list));
    list[0].addrs[list[0].addr_count++] = rig->enclosures[2].addrs[0];
    assert_int_equal(rig_pod(rig, 2, list, 2, &why), ICMS_OK);
    rig_run(rig, 1000 * MS);
    assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_EXCLUDED);
    assert_true(seen(rig, 0)->links[1].is_misdirected);
    assert_string_equal(seen(rig, 0)->links[1].last_error,
                        "misdirected: 10.1.2.3:4420 leads to another enclosure: serial number "
                        "OTHER, not FAKE; it is not used: correct the addresses, or restart "
                        "icms-agent if the enclosure was exchanged");
    assert_false(seen(rig, 0)->links[0].is_misdirected);
    assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_UP);
    first = flash(rig, 64);
    assert_int_equal(loads(rig, client, first, 64, 16), 64);
    assert_int_equal(rig->fake[2]->retrieves, 0);
    /* corrected */
    list[0].addrs[1] = rig->enclosures[0].addrs[0];
    list[0].addrs[1].port = 4421; /* nothing listens there */
    assert_int_equal(rig_pod(rig, 3, list, 2, &why), ICMS_OK);
    rig_run(rig, 1000 * MS);
    assert_int_equal(rig->fake[2]->conn_count, 0);
    assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_EXCLUDED);
    assert_false(seen(rig, 0)->links[1].is_misdirected); /* it leads nowhere */
    rig_client_free(client);
    rig_free(rig);
}

/* Enclosures 0 and 1, where the second address of enclosure 0 is that of enclosure 2. */
static struct agent_rig *wrong_list(const char *serial, uint32_t loops,
                                    struct agent_enclosure_opts list[2])
{
    const struct rig_opts opts = {
        .enclosures = 3, .members = 2, .links = 1, .epoch = 1, .loops = loops};
    struct agent_rig *rig = rig_new(&opts);

    rig->fake[0]->serial = serial;
    rig->fake[2]->serial = "OTHER";
    memcpy(list, rig->enclosures, 2 * sizeof(*list));
    list[0].addrs[list[0].addr_count++] = rig->enclosures[2].addrs[0];
    return rig;
}

static void enclosure0_cut(struct agent_rig *rig, bool is_cut)
{
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], is_cut);
    rig_run(rig, 8000 * MS);
}

/* What was used stays known while no link is up, whichever is up first then. */
static void what_is_known_of_an_enclosure_stays_known(void **state)
{
    for (uint32_t loops = 1; loops <= 2; loops++) {
        struct agent_enclosure_opts list[2];
        struct agent_rig *rig = wrong_list(NULL, loops, list);
        struct err_why why = {""};

        rig_run(rig, 1000 * MS);
        assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_UP);
        enclosure0_cut(rig, true);
        assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_EXCLUDED);
        assert_int_equal(rig_pod(rig, 2, list, 2, &why), ICMS_OK);
        rig_run(rig, 8000 * MS);
        assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_EXCLUDED);
        assert_true(seen(rig, 0)->links[1].is_misdirected);
        assert_false(seen(rig, 0)->links[0].is_misdirected);
        enclosure0_cut(rig, false);
        assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_UP);
        assert_true(seen(rig, 0)->links[1].is_misdirected);
        assert_int_equal(seen(rig, 0)->links[1].excluded_count, loops); /* it was never up */
        /* another NQN is another subsystem, of which nothing is known */
        strcpy(list[0].nqn, "nqn.2014-08.org.nvmexpress:uuid:exchanged");
        rig->fake[0]->serial = "EXCHANGED";
        list[0].addr_count = 1;
        assert_int_equal(rig_pod(rig, 3, list, 2, &why), ICMS_OK);
        rig_run(rig, 8000 * MS);
        assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_UP);
        rig_free(rig);
    }
}

/* The wrong one is up first. The right one is known by its UUID. */
static void an_enclosure_is_known_by_its_uuid(void **state)
{
    for (uint32_t loops = 1; loops <= 2; loops++) {
        struct agent_enclosure_opts list[2];
        struct agent_rig *rig = wrong_list("1010101010101010", loops, list);
        struct rig_client *client = rig_client_new(rig);
        struct err_why why = {""};
        uint64_t retrieves;
        uint32_t first;

        enclosure0_cut(rig, true);
        rig->agent->pod.known[0].identity = 0; /* as at the start of an agent */
        assert_int_equal(rig_pod(rig, 2, list, 2, &why), ICMS_OK);
        rig_run(rig, 8000 * MS);
        assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_UP);
        enclosure0_cut(rig, false);
        assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_UP);
        assert_true(seen(rig, 0)->links[1].is_misdirected);
        assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_EXCLUDED);
        retrieves = rig->fake[2]->retrieves;
        first = flash(rig, 64);
        assert_int_equal(loads(rig, client, first, 64, 16), 64);
        assert_int_equal(rig->fake[2]->retrieves, retrieves);
        enclosure0_cut(rig, true); /* and when the right one fails */
        assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_EXCLUDED);
        assert_int_equal(rig->fake[2]->retrieves, retrieves);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* Two processes with one serial number, of which each tells its own number. Enclosure 0 has the
 * second address from now on. */
static struct agent_rig *two_processes(uint32_t loops, uint64_t second,
                                       struct agent_enclosure_opts list[2])
{
    struct agent_rig *rig = wrong_list("1010101010101010", loops, list);
    struct err_why why = {""};

    rig->fake[2]->serial = rig->fake[0]->serial;
    rig->fake[0]->instance = 0x1111;
    rig->fake[2]->instance = second;
    rig_on_fake(rig, 0, fake_target_drop); /* its number is told with the next connection */
    rig_run(rig, 3000 * MS);
    assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_UP);
    assert_int_equal(rig_pod(rig, 2, list, 2, &why), ICMS_OK);
    rig_run(rig, 5000 * MS);
    return rig;
}

static void another_process_of_one_identity_is_not_used(void **state)
{
    for (uint32_t loops = 1; loops <= 2; loops++) {
        struct agent_enclosure_opts list[2];
        struct agent_rig *rig = two_processes(loops, 0x2222, list);
        struct rig_client *client = rig_client_new(rig);
        uint32_t first = flash(rig, 64);

        assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_EXCLUDED);
        assert_true(seen(rig, 0)->links[1].is_misdirected);
        assert_string_equal(seen(rig, 0)->links[1].last_error,
                            "misdirected: another process with this UUID answers at 10.1.2.3:4420 "
                            "than at 10.1.2.1:4420; it is not used: stop one of the two "
                            "icms-target, or give it a UUID and NQN of its own");
        assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_UP);
        assert_false(seen(rig, 0)->links[0].is_misdirected);
        assert_int_equal(seen(rig, 0)->state, AGENT_ENCLOSURE_UP);
        assert_int_equal(loads(rig, client, first, 64, 16), 64);
        assert_int_equal(rig->fake[2]->retrieves, 0);
        /* the first one ends: the other one is the enclosure, with what it has */
        enclosure0_cut(rig, true);
        assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_UP);
        assert_false(seen(rig, 0)->links[1].is_misdirected);
        enclosure0_cut(rig, false);
        assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_UP);
        assert_true(seen(rig, 0)->links[0].is_misdirected);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* One that tells no number, as targets of others and older ones, is told apart by nothing. */
static void a_process_without_a_number_is_used(void **state)
{
    struct agent_enclosure_opts list[2];
    struct agent_rig *rig = two_processes(1, 0, list);

    assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_UP);
    assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_UP);
    rig_free(rig);
}

static void restarted(struct fake_target *target)
{
    target->instance++;
    fake_target_drop(target);
}

/* After a restart all links are lost, and come back with the other number. */
static void a_target_that_is_restarted_is_used(void **state)
{
    static const struct rig_opts opts = {.enclosures = 1, .links = 2, .slots = 2048};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t first = flash(rig, 64);

    for (uint32_t n = 0; n < 3; n++) {
        uint64_t lost = seen(rig, 0)->links[0].excluded_count;

        rig_on_fake(rig, 0, restarted);
        rig_run(rig, 3000 * MS);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(seen(rig, 0)->links[i].state, AGENT_ENCLOSURE_UP);
            assert_false(seen(rig, 0)->links[i].is_misdirected);
            assert_int_equal(seen(rig, 0)->links[i].excluded_count, lost + 1);
        }
        assert_int_equal(loads(rig, client, first, 64, 16), 64);
    }
    rig_client_free(client);
    rig_free(rig);
}

/* One link does not learn of the restart: its end is lost on the way. The other one is used when
 * that is known, after the silence, and loads that were sent by the dead one go on with it. */
static void a_link_that_missed_the_restart_costs_no_miss(void **state)
{
    static const struct rig_opts opts = {.enclosures = 1, .links = 2, .slots = 2048};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t first = flash(rig, 64);
    const struct agent_link *links = rig->agent->reactors[0].enclosures[0].links;

    rig_on_fake(rig, 0, restarted);
    rig_run(rig, 3000 * MS);
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], true);
    rig_on_fake(rig, 0, restarted);
    for (uint32_t turns = 0; links[1].other != &links[0]; turns++) {
        assert_true(turns < 1000);
        rig_run(rig, MS);
    }
    assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_UP); /* as far as is known */
    assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_EXCLUDED);
    assert_int_equal(loads(rig, client, first, 16, 16), 16);
    assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_EXCLUDED);
    assert_int_equal(seen(rig, 0)->links[1].state, AGENT_ENCLOSURE_UP);
    assert_false(seen(rig, 0)->links[1].is_misdirected);
    assert_int_equal(seen(rig, 0)->excluded_count, 1); /* of the first restart */
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][0], false);
    rig_run(rig, 5000 * MS);
    assert_int_equal(seen(rig, 0)->links[0].state, AGENT_ENCLOSURE_UP);
    rig_client_free(client);
    rig_free(rig);
}

static void what_cannot_be_is_refused(void **state)
{
    static const struct rig_opts opts = {.enclosures = 2, .links = 2, .epoch = 1};
    struct agent_rig *rig = rig_new(&opts);
    struct agent_enclosure_opts list[2];
    struct err_why why = {""};

    memcpy(list, rig->enclosures, sizeof(list));
    list[1].addrs[1] = list[0].addrs[1];
    assert_int_equal(rig_pod(rig, 2, list, 2, &why), ICMS_CONFIG);
    assert_string_equal(why.text,
                        "enclosures e0 and e1 have the same address, port 4420 of 10.1.3.1");
    list[1].addrs[1] = list[1].addrs[0];
    assert_int_equal(rig_pod(rig, 2, list, 2, &why), ICMS_CONFIG);
    assert_string_equal(why.text, "enclosure e1 has an address twice: port 4420 of 10.1.2.2");
    list[1].addr_count = 0;
    assert_int_equal(rig_pod(rig, 2, list, 2, &why), ICMS_CONFIG);
    list[1].addr_count = LIMIT_LINKS + 1;
    assert_int_equal(rig_pod(rig, 2, list, 2, &why), ICMS_CONFIG);
    assert_string_equal(why.text, "enclosure e1 has 9 addresses: 1 to 8 are possible");
    rig_free(rig);
}

/* ---- addresses come and go ------------------------------------------------------------------ */

/* Under load, with requests in flight at each change. */
static void addresses_of_an_enclosure_in_use_change(void **state)
{
    static const struct rig_opts opts = {
        .enclosures = 1, .links = 3, .slots = 2048, .epoch = 1, .loops = 2};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    const struct agent_enclosure_opts all = rig->enclosures[0];
    struct agent_enclosure_opts list = all;
    uint32_t first = flash(rig, 768), n = first;
    struct err_why why = {""};
    uint64_t tags[16];

    for (uint32_t round = 0; round < 48; round++) {
        uint32_t out = round % 4;

        list.addr_count = 0;
        for (uint32_t i = 0; i < 3; i++)
            if (i != out)
                list.addrs[list.addr_count++] = all.addrs[i];
        rig->fake[0]->delay_ns = 2 * MS;
        for (uint32_t i = 0; i < 16; i++)
            tags[i] = rig_get(client, KV, n + i * 4, i, 2000 * MS);
        rig_run(rig, MS);
        assert_int_equal(rig_pod(rig, round + 2, &list, 1, &why), ICMS_OK);
        for (uint32_t i = 0; i < 16; i++) {
            assert_true(rig_value_is(client, KV, n + i * 4, BYTES, rig_wait(client, tags[i])));
            rig_lease_give(client, i);
        }
        n += 16 * 4;
        rig_run(rig, 50 * MS);
        assert_int_equal(seen(rig, 0)->link_count, list.addr_count);
        for (uint32_t i = 0; i < list.addr_count; i++)
            assert_int_equal(seen(rig, 0)->links[i].state, AGENT_ENCLOSURE_UP);
        assert_int_equal(seen(rig, 0)->excluded_count, 0);
    }
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_are_spread_over_the_links),
        cmocka_unit_test(a_link_with_much_in_flight_takes_less),
        cmocka_unit_test(a_silent_link_costs_no_miss_and_comes_back),
        cmocka_unit_test(a_late_load_on_a_silent_link_costs_no_miss),
        cmocka_unit_test(each_operation_goes_on_by_the_other_link),
        cmocka_unit_test(a_batch_goes_on_by_the_other_link),
        cmocka_unit_test(an_enclosure_is_excluded_when_all_its_links_are),
        cmocka_unit_test(what_fails_together_is_noticed_together),
        cmocka_unit_test(what_takes_connections_alone_is_not_used),
        cmocka_unit_test(a_slow_link_is_passed_over_and_comes_back),
        cmocka_unit_test(an_enclosure_that_is_late_has_no_slow_link),
        cmocka_unit_test(an_address_that_leads_elsewhere_is_never_used),
        cmocka_unit_test(what_is_known_of_an_enclosure_stays_known),
        cmocka_unit_test(an_enclosure_is_known_by_its_uuid),
        cmocka_unit_test(another_process_of_one_identity_is_not_used),
        cmocka_unit_test(a_process_without_a_number_is_used),
        cmocka_unit_test(a_target_that_is_restarted_is_used),
        cmocka_unit_test(a_link_that_missed_the_restart_costs_no_miss),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(addresses_of_an_enclosure_in_use_change),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
