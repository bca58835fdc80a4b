/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pod map is used: texts are offered to a map whose agent is a table in memory, and time is a
 * number. Names are resolved by the C library, of this machine.
 */
#include <setjmp.h>
#include <netdb.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "inprocess/pod_map.h"

#define SECOND ((uint64_t)1000 * 1000 * 1000)

/* The agent, and what was said. */
static struct {
    uint64_t epoch;
    uint32_t applied; /* times */
    uint32_t count;
    struct agent_enclosure_opts enclosures[LIMIT_ENCLOSURES];
    char secret[64]; /* of the first one */
    struct agent_identity volumes[LIMIT_AGENT_VOLUMES];
    icms_err answer;   /* to the next ones */
    const char *lacks; /* what it says with OK; NULL: nothing */
    struct uuid down[LIMIT_ENCLOSURES];
    uint32_t down_count;
    uint16_t down_port;      /* the address with this port; 0: none */
    bool are_all_connecting; /* those that are not down do not answer yet */
    uint32_t said;
    enum pod_map_say how;
    char sentence[1024];
} fake;

static struct conf_agent conf;
static struct pod_map *map;
static uint64_t now_ns;

static icms_err fake_apply(void *arg, uint64_t epoch, const struct agent_enclosure_opts *enclosures,
                           uint32_t count, const struct agent_identity *volumes,
                           struct err_why *why)
{
    if (fake.answer != ICMS_OK)
        return err_set(why, fake.answer, "the agent is busy");
    fake.applied++;
    fake.epoch = epoch;
    fake.count = count;
    if (volumes != NULL)
        memcpy(fake.volumes, volumes, conf.volume_count * sizeof(*volumes));
    memcpy(fake.enclosures, enclosures, count * sizeof(*enclosures));
    (void)snprintf(fake.secret, sizeof(fake.secret), "%s",
                   enclosures[0].secret != NULL ? enclosures[0].secret : "");
    return fake.lacks == NULL ? ICMS_OK : err_set(why, ICMS_OK, "%s", fake.lacks);
}

static bool fake_is_down(void *arg, const struct uuid *uuid, const struct loop_addr *addr)
{
    if (addr != NULL && fake.down_port != 0)
        return addr->port == fake.down_port;
    for (uint32_t i = 0; i < fake.down_count; i++)
        if (uuid_equal(&fake.down[i], uuid))
            return true;
    return false;
}

static bool fake_answers(void *arg, const struct uuid *uuid)
{
    for (uint32_t i = 0; i < fake.count; i++)
        if (uuid_equal(&fake.enclosures[i].uuid, uuid))
            return !fake.are_all_connecting && !fake_is_down(arg, uuid, NULL);
    return false;
}

static void fake_say(void *arg, enum pod_map_say how, const char *sentence)
{
    fake.said++;
    fake.how = how;
    (void)snprintf(fake.sentence, sizeof(fake.sentence), "%s", sentence);
}

static void fake_down(const char *name)
{
    conf_enclosure_uuid(name, &fake.down[fake.down_count++]);
}

/* With the line that ends a map. Valid until it is called again. */
static const char *ended(const char *text)
{
    static char whole[4096];

    assert_true((size_t)snprintf(whole, sizeof(whole), "%s...\n", text) < sizeof(whole));
    return whole;
}

static void begin_with(const char *agent, const char *text)
{
    const struct pod_map_opts opts = {.conf = &conf,
                                      .apply = fake_apply,
                                      .is_down = fake_is_down,
                                      .answers = fake_answers,
                                      .say = fake_say};
    const struct agent_enclosure_opts *enclosures;
    static struct conf_pod pod;
    struct err_why why = {""};
    uint32_t count;

    pod_map_free(&map);
    memset(&fake, 0, sizeof(fake));
    now_ns = SECOND;
    assert_int_equal(conf_agent_parse(agent, strlen(agent), "a", &why, &conf), ICMS_OK);
    text = ended(text);
    if (conf_pod_parse(text, strlen(text), "p", &why, &pod) != ICMS_OK)
        fail_msg("%s", why.text);
    assert_int_equal(pod_map_new(&opts, &pod, &why, &map), ICMS_OK);
    for (int i = 0; !pod_map_first(map, &enclosures, &count) && i < 1000; i++)
        usleep(10000);
    assert_int_equal(count, pod.enclosure_count);
    (void)fake_apply(NULL, pod.epoch, enclosures, count, NULL, NULL);
    fake.applied = 0;
}

static void begin(const char *text)
{
    begin_with("pod: /p\nsecret: /s\nrequire: none\nvolumes: [{name: kv}]\n", text);
}

static int end(void **state)
{
    pod_map_free(&map);
    return 0;
}

/* As often as it wants to. */
static void turn(void)
{
    for (int i = 0; pod_map_turn(map, now_ns) && i < 1000; i++)
        usleep(10000);
}

/* When an agent that is cut off would have noticed it: keep_alive and silence. */
static void turn_later(void)
{
    turn();
    now_ns += 6 * SECOND;
    turn();
}

static void offer(const char *text)
{
    text = ended(text);
    pod_map_offer(map, text, strlen(text), "p.yaml");
    turn();
}

#define EPOCH(n) "name: pod0\nepoch: " #n "\nenclosures:\n"
#define E0       "- {name: e0, address: 10.0.0.1:4420}\n"
#define E1       "- {name: e1, address: 10.0.0.2:4420}\n"
#define E2       "- {name: e2, address: 10.0.0.3:4420}\n"

static void said(uint32_t times, enum pod_map_say how, const char *word)
{
    if (fake.said != times || fake.how != how || strstr(fake.sentence, word) == NULL)
        fail_msg("said %u times, %d: %s; wanted %u, %d: %s", fake.said, (int)fake.how,
                 fake.sentence, times, (int)how, word);
}

static void test_a_new_epoch_is_given_to_the_agent(void **state)
{
    begin(EPOCH(4) E0 E1);
    assert_int_equal(fake.count, 2);
    assert_string_equal(fake.enclosures[1].addrs[0].host, "10.0.0.2");
    assert_string_equal(fake.secret, "/s");
    offer(EPOCH(5) E0 E1 "- {name: e2, address: 10.0.0.3:4420, state: joining, weight: 2}\n");
    assert_int_equal(fake.applied, 1);
    assert_int_equal(fake.epoch, 5);
    assert_int_equal(fake.count, 3);
    assert_int_equal(fake.enclosures[2].state, AGENT_POD_JOINING);
    assert_true(fake.enclosures[2].weight == 2.0);
    assert_string_equal(fake.secret, "/s");
    said(1, POD_MAP_TAKEN, "pod pod0: epoch 4 -> 5: e2 added (joining)");
    assert_int_equal(pod_map_used(map)->epoch, 5);
    offer(EPOCH(5) E0 E1 "- {name: e2, address: 10.0.0.3:4420, state: joining, weight: 2}\n");
    assert_int_equal(fake.applied, 1);
    said(1, POD_MAP_TAKEN, "");
}

static void test_what_is_wrong_changes_nothing_and_is_said_once(void **state)
{
    begin(EPOCH(4) E0 E1);
    offer(EPOCH(5) E0 "- {name: e1, adress: b:1}\n");
    said(1, POD_MAP_REFUSED, "p.yaml:5: ");
    offer(EPOCH(5) E0 "- {name: e1, adress: b:1}\n");
    said(1, POD_MAP_REFUSED, "p.yaml:5: ");
    offer(EPOCH(3) E0 E1);
    said(2, POD_MAP_REFUSED, "epoch 3 is lower than 4");
    offer(EPOCH(4) E0 E2);
    said(3, POD_MAP_REFUSED, "has its epoch, 4: raise it");
    offer("name: pod1\nepoch: 9\nenclosures:\n" E0);
    said(4, POD_MAP_REFUSED, "the pod 'pod1'");
    pod_map_unreadable(map, "cannot read p.yaml: gone");
    pod_map_unreadable(map, "cannot read p.yaml: gone");
    said(5, POD_MAP_REFUSED, "gone");
    assert_int_equal(fake.applied, 0);
    offer(EPOCH(4) E1 E0);
    said(5, POD_MAP_REFUSED, ""); /* as before: nothing to say */
    pod_map_unreadable(map, "cannot read p.yaml: gone");
    said(6, POD_MAP_REFUSED, "gone"); /* once more, later */
    offer(EPOCH(5) E0 E1 E2);
    assert_int_equal(fake.epoch, 5);
}

/* Others see it for as long as it is so, not only once. */
static void test_what_is_not_in_use_is_told_until_it_is(void **state)
{
    begin(EPOCH(4) E0 E1 E2);
    assert_string_equal(pod_map_refused(map), "");
    offer(EPOCH(4) E0 E1);
    assert_non_null(strstr(pod_map_refused(map), "has its epoch, 4: raise it"));
    pod_map_again(map); /* to be said once more: it still holds */
    turn();
    assert_non_null(strstr(pod_map_refused(map), "raise it"));
    offer(EPOCH(4) E0 E1 E2);
    assert_string_equal(pod_map_refused(map), "");
    offer(EPOCH(5) E0 "- {name: e1, adress: b:1}\n");
    assert_non_null(strstr(pod_map_refused(map), "p.yaml:5: "));
    pod_map_unreadable(map, "cannot read p.yaml: gone");
    assert_string_equal(pod_map_refused(map), "cannot read p.yaml: gone");
    offer(EPOCH(5) E0);
    assert_non_null(strstr(pod_map_refused(map), "lacks 2 of 3 enclosures"));
    fake.answer = ICMS_BUSY;
    offer("shrink_epoch: 5\n" EPOCH(5) E0 E1);
    assert_non_null(strstr(pod_map_refused(map), "epoch 5 is not in use: the agent is busy"));
    fake.answer = ICMS_OK;
    now_ns += 3 * SECOND;
    turn();
    assert_int_equal(fake.epoch, 5);
    assert_string_equal(pod_map_refused(map), "");
    offer(EPOCH(9) E2 "- {name: e1, adress: b:1}\n");
    offer(EPOCH(6) E0 E1 E2);
    assert_int_equal(fake.epoch, 6);
    assert_string_equal(pod_map_refused(map), "");
}

static void test_a_shrunken_map_waits_until_nobody_answers(void **state)
{
    begin(EPOCH(4) E0 E1 E2);
    offer(EPOCH(5) E0);
    said(1, POD_MAP_WAITS, "lacks 2 of 3 enclosures");
    fake_down("e1");
    turn_later();
    assert_int_equal(fake.applied, 0);
    said(1, POD_MAP_WAITS, "");
    fake_down("e2");
    turn();
    assert_int_equal(fake.applied, 0); /* e0 has not answered since */
    turn_later();
    assert_int_equal(fake.epoch, 5);
    assert_int_equal(fake.count, 1);
    begin(EPOCH(4) E0 E1 E2);
    offer(EPOCH(5) E0);
    assert_int_equal(fake.applied, 0);
    offer(EPOCH(5) E0 E1 E2); /* it was damaged */
    assert_int_equal(fake.count, 3);
    begin(EPOCH(4) E0 E1 E2);
    offer("shrink_epoch: 5\n" EPOCH(5) E0); /* the operator says so */
    assert_int_equal(fake.epoch, 5);
}

/* An agent whose own network is gone finds everybody down, and knows nothing of what left. */
static void test_an_agent_that_is_cut_off_believes_no_shrunken_map(void **state)
{
    begin(EPOCH(4) E0 E1 E2);
    offer(EPOCH(5) E0 E1);
    for (uint32_t i = 0; i < 3; i++)
        fake_down(i == 0 ? "e0" : i == 1 ? "e1" : "e2");
    turn_later();
    assert_int_equal(fake.applied, 0);
    said(1, POD_MAP_WAITS, "it waits until it does not answer and one that stays does");
    fake.are_all_connecting = true; /* e0 and e1 are not known to be up yet */
    fake.down_count = 0;
    fake_down("e2");
    turn_later();
    assert_int_equal(fake.applied, 0);
    fake.are_all_connecting = false;
    turn_later();
    assert_int_equal(fake.epoch, 5);
    begin(EPOCH(4) E0 E1 E2);
    fake_down("e2");
    offer(EPOCH(5) "- {name: e0, address: 10.0.0.1:4420, state: out}\n"
                   "- {name: e7, address: 10.0.0.7:4420}\n");
    assert_int_equal(fake.applied, 0); /* e0 and e1 answer */
    fake_down("e1");
    fake_down("e0");
    turn_later();
    assert_int_equal(fake.applied, 0); /* nobody that it knows stays */
}

/* It notices that at one enclosure after the other. */
static void test_an_agent_that_is_being_cut_off_believes_none(void **state)
{
    begin(EPOCH(4) E0 E1 E2);
    offer(EPOCH(5) E0 E1);
    fake_down("e2");
    turn();
    now_ns += 4 * SECOND;
    turn();
    assert_int_equal(fake.applied, 0);
    fake_down("e0");
    fake_down("e1");
    turn_later();
    assert_int_equal(fake.applied, 0);
    fake.down_count = 1; /* e2 alone: from here on */
    turn();
    now_ns += 4 * SECOND;
    turn();
    assert_int_equal(fake.applied, 0);
    turn_later();
    assert_int_equal(fake.epoch, 5);
}

#define AS(state, n) "- {name: e" #n ", address: 10.0.0.1" #n ":4420, state: " state "}\n"

/* The agent never hears of one that is out: not of its name, and it needs no key for it. */
static void test_one_that_is_out_is_not_used(void **state)
{
    const char *far = "- {name: e7, address: host7.invalid:1, state: out}\n"
                      "- {name: e8, address: 10.9.9.9:1, state: out}\n";
    char text[1024];

    begin_with("pod: /p\nvolumes: [{name: kv}]\n",
               "name: pod0\nepoch: 3\nenclosures:\n- {name: e1, address: 127.0.0.1:1}\n");
    (void)snprintf(text, sizeof(text), "%s%s",
                   "name: pod0\nepoch: 4\nenclosures:\n- {name: e1, address: 127.0.0.1:1}\n", far);
    offer(text);
    said(1, POD_MAP_TAKEN, "epoch 3 -> 4: e7 added (out), e8 added (out)");
    assert_int_equal(fake.count, 1);
    begin(EPOCH(4) AS("draining", 0) E1 E2);
    offer(EPOCH(5) AS("out", 0) E1 E2);
    said(1, POD_MAP_TAKEN, "e0 out");
    assert_int_equal(fake.count, 2);
    assert_string_equal(fake.enclosures[0].name, "e1");
    assert_string_equal(fake.enclosures[1].name, "e2");
    offer(EPOCH(5) AS("out", 0) E1 E2); /* the same */
    said(1, POD_MAP_TAKEN, "e0 out");
    offer(EPOCH(6) AS("joining", 0) E1 E2);
    assert_int_equal(fake.count, 3);
    assert_int_equal(fake.enclosures[0].state, AGENT_POD_JOINING);
    assert_true(fake.enclosures[0].addrs[0].port != 0);
}

/* To be out is to leave: of one that has not drained it is believed as that is. */
static void test_one_that_did_not_drain_is_not_out_at_once(void **state)
{
    begin(EPOCH(6) AS("joining", 0) E1 E2);
    offer(EPOCH(7) AS("out", 0) AS("out", 1) E2);
    said(1, POD_MAP_WAITS, "epoch 7 sets to out 2 of 3 enclosures, e0 among them");
    fake_down("e0");
    turn_later();
    assert_int_equal(fake.applied, 0);
    fake_down("e1");
    turn_later();
    assert_int_equal(fake.epoch, 7);
    assert_int_equal(fake.count, 1);
    begin(EPOCH(6) AS("joining", 0) E1 E2);
    offer("shrink_epoch: 7\n" EPOCH(7) AS("out", 0) AS("out", 1) E2); /* the operator says so */
    assert_int_equal(fake.epoch, 7);
}

static void test_a_wrong_map_takes_the_place_of_one_that_waits(void **state)
{
    begin(EPOCH(4) E0 E1 E2);
    offer(EPOCH(5) E0);
    offer(EPOCH(4) E0 E1 E2);
    fake_down("e1");
    fake_down("e2");
    turn_later();
    assert_int_equal(fake.applied, 0);
}

static void test_a_map_that_waits_ends_with_its_file(void **state)
{
    begin(EPOCH(4) E0 E1 E2);
    offer(EPOCH(5) E0);
    pod_map_unreadable(map, "p.yaml: it is gone");
    said(2, POD_MAP_REFUSED, "it is gone");
    fake_down("e1");
    fake_down("e2");
    turn_later();
    assert_int_equal(fake.applied, 0);
}

static void test_an_agent_that_is_busy_gets_it_later(void **state)
{
    begin(EPOCH(4) E0);
    fake.answer = ICMS_BUSY;
    offer(EPOCH(5) E0 E1);
    said(1, POD_MAP_WAITS, "epoch 5 is not in use: the agent is busy");
    fake.answer = ICMS_OK;
    turn();
    assert_int_equal(fake.applied, 0); /* not at once */
    now_ns += 3 * SECOND;
    turn();
    assert_int_equal(fake.epoch, 5);
    said(2, POD_MAP_TAKEN, "epoch 4 -> 5");
}

static uint32_t lookups;
static const char *hung_port; /* a resolver that does not answer for names with this one; or NULL */
static uint32_t lookups_hung; /* of those                                                         */

int __real_getaddrinfo_a(int mode, struct gaicb *list[], int count, struct sigevent *event);
int __wrap_getaddrinfo_a(int mode, struct gaicb *list[], int count, struct sigevent *event);
int __wrap_getaddrinfo_a(int mode, struct gaicb *list[], int count, struct sigevent *event)
{
    lookups++;
    if (hung_port != NULL && strcmp(list[0]->ar_service, hung_port) == 0) {
        lookups_hung++;
        list[0]->__return = EAI_INPROGRESS;
        return 0;
    }
    return __real_getaddrinfo_a(mode, list, count, event);
}

/* Lookups of names within twelve seconds. */
static uint32_t lookups_of_a_while(void)
{
    uint32_t before = lookups;

    for (uint32_t times = 0; times < 4; times++) {
        now_ns += 3 * SECOND;
        turn();
        turn();
    }
    return lookups - before;
}

/* It may wait for hours, and be refused again and again. */
static void test_names_are_resolved_while_another_map_waits(void **state)
{
#define NAMED "- {name: e0, address: localhost:4420}\n"
    begin(EPOCH(4) NAMED E1 E2);
    fake_down("e0");
    offer(EPOCH(5) NAMED); /* e1 and e2 answer */
    assert_true(lookups_of_a_while() >= 3);
    assert_int_equal(fake.epoch, 4);
    begin(EPOCH(4) NAMED E1 E2);
    fake_down("e0");
    fake.answer = ICMS_BUSY;
    offer("shrink_epoch: 5\n" EPOCH(5) NAMED E1);
    assert_true(lookups_of_a_while() >= 3);
}

/* The enclosure itself is up. */
static void test_the_name_of_one_address_is_resolved_while_that_is_down(void **state)
{
    begin(EPOCH(4) "- {name: e0, address: ['10.0.0.1:4420', localhost:4421]}\n");
    assert_int_equal(fake.enclosures[0].addr_count, 2);
    assert_string_equal(fake.enclosures[0].addrs[0].host, "10.0.0.1");
    assert_int_equal(fake.enclosures[0].addrs[1].port, 4421);
    assert_int_equal(lookups_of_a_while(), 0);
    fake.down_port = 4421;
    assert_true(lookups_of_a_while() >= 3);
    fake.down_port = 4420; /* which is no name */
    assert_true(lookups_of_a_while() <= 1);
    fake.down_port = 0;
    offer(EPOCH(5) "- {name: e0, address: ['10.0.0.2:4420', localhost:4421, '10.0.0.1:4420']}\n");
    assert_int_equal(fake.epoch, 5);
    assert_int_equal(fake.enclosures[0].addr_count, 3);
    assert_string_equal(fake.enclosures[0].addrs[2].host, "10.0.0.1");
    assert_non_null(strstr(fake.sentence, "e0 address 10.0.0.2:4420 added"));
}

/* Of localhost a machine has one address or two; nobody listens on the port. */
static void test_names_are_resolved_and_again_while_down(void **state)
{
    struct loop_addr first;

    begin(EPOCH(4) "- {name: e0, address: localhost:4420}\n");
    first = fake.enclosures[0].addrs[0];
    assert_true(strcmp(first.host, "127.0.0.1") == 0 || strcmp(first.host, "::1") == 0);
    assert_int_equal(first.port, 4420);
    turn();
    assert_int_equal(fake.applied, 0);
    fake_down("e0");
    assert_true(lookups_of_a_while() >= 3);
    if (fake.applied > 0) { /* it has another address: that is tried */
        assert_int_equal(fake.epoch, 4);
        assert_true(strstr(fake.sentence, "e0: localhost:4420 is ") != NULL);
        assert_int_equal(fake.enclosures[0].addrs[0].port, 4420);
    }
}

/* The resolver of one zone hangs; the names of others are in another one. */
static void test_a_name_that_hangs_holds_no_other_up(void **state)
{
    uint32_t before;

    begin(EPOCH(4) "- {name: e0, address: localhost:4420}\n"
                   "- {name: e1, address: localhost:4421}\n"
                   "- {name: e2, address: localhost:4422}\n");
    fake_down("e0");
    fake_down("e1");
    hung_port = "4420";
    lookups_hung = 0;
    before = lookups;
    for (int i = 0; lookups - before < 6 && i < 1000; i++) {
        now_ns += SECOND;
        (void)pod_map_turn(map, now_ns);
        usleep(10000);
    }
    assert_true(lookups - before >= 6); /* of e1, again and again */
    assert_int_equal(lookups_hung, 1);
    before = lookups; /* not more often than every two seconds */
    for (int i = 0; i < 20; i++) {
        (void)pod_map_turn(map, now_ns);
        usleep(10000);
    }
    assert_true(lookups - before <= 1);
    hung_port = NULL;
}

/* Of localhost a machine has one address or two: what another place has is not used, and the rest
 * of the map is. */
static void test_two_that_lead_to_one_address_hold_nothing_up(void **state)
{
#define BOTH "- {name: e0, address: ['127.0.0.1:4420', '[::1]:4420']}\n"
    begin(EPOCH(4) BOTH "- {name: e1, address: localhost:4420}\n");
    assert_int_equal(fake.how, POD_MAP_WAITS);
    assert_non_null(strstr(fake.sentence, "enclosure e1: cannot use localhost:4420: it is "));
    assert_non_null(strstr(fake.sentence, "which enclosure e0 has already, as "));
    assert_int_equal(fake.enclosures[0].addrs[0].port, 4420);
    assert_int_equal(fake.enclosures[1].addrs[0].port, 0);
    /* a name that was used, and is a number of another enclosure in the next map */
    begin(EPOCH(4) "- {name: e0, address: 10.0.0.1:4420}\n"
                   "- {name: e1, address: localhost:4420}\n");
    assert_int_equal(fake.enclosures[1].addrs[0].port, 4420);
    offer(EPOCH(5) BOTH "- {name: e1, address: localhost:4420}\n");
    assert_int_equal(fake.epoch, 5);
    assert_string_equal(fake.enclosures[0].addrs[0].host, "127.0.0.1");
    assert_int_equal(fake.enclosures[1].addrs[0].port, 0);
}

/* A name that is not resolved again by then, and whose address another enclosure has now: what is
 * left is where nothing listens. */
static void test_a_name_whose_address_is_anothers_now_holds_nothing_up(void **state)
{
    const char *text;

    begin(EPOCH(4) "- {name: e0, address: 10.0.0.1:4420}\n"
                   "- {name: e1, address: localhost:4420}\n");
    text = ended(EPOCH(5) BOTH "- {name: e1, address: localhost:4420}\n");
    pod_map_offer(map, text, strlen(text), "p");
    (void)pod_map_turn(map, now_ns);
    now_ns += 3 * SECOND;
    (void)pod_map_turn(map, now_ns);
    assert_int_equal(fake.epoch, 5);
    assert_string_equal(fake.enclosures[0].addrs[0].host, "127.0.0.1");
    assert_int_equal(fake.enclosures[1].addrs[0].port, 0);
}

/* What the agent cannot use of a map is said once, and it is asked again until it can. */
static void test_keys_that_are_not_read_yet_are_tried_again(void **state)
{
    begin(EPOCH(4) E0);
    fake.lacks = "enclosure e1: it is not used: no key";
    offer(EPOCH(5) E0 E1);
    assert_int_equal(fake.epoch, 5);
    assert_int_equal(fake.applied, 1);
    assert_int_equal(fake.how, POD_MAP_WAITS);
    assert_string_equal(fake.sentence, fake.lacks);
    fake.said = 0;
    for (uint32_t i = 0; i < 5; i++) {
        now_ns += 3 * SECOND;
        turn();
    }
    assert_int_equal(fake.said, 0);
    assert_int_equal(fake.applied, 6);
    fake.lacks = NULL;
    now_ns += 3 * SECOND;
    turn();
    now_ns += 3 * SECOND;
    turn();
    assert_int_equal(fake.applied, 7);
}

static void test_a_name_that_is_unknown_holds_nothing_up(void **state)
{
    begin(EPOCH(4) E0);
    offer(EPOCH(5) E0 "- {name: e1, address: e1.invalid:4420}\n"
                      "- {name: e2, address: e2.invalid:4420}\n");
    if (fake.applied == 0) { /* a resolver that does not answer: after a while without it */
        now_ns += 3 * SECOND;
        turn();
    }
    assert_int_equal(fake.epoch, 5);
    assert_int_equal(fake.enclosures[1].addrs[0].port, 0);
    assert_string_not_equal(fake.enclosures[1].addrs[0].host, fake.enclosures[2].addrs[0].host);
    assert_string_equal(fake.enclosures[0].addrs[0].host, "10.0.0.1");
}

#define AGENT "pod: /p\nrequire: none\nvolumes: [{name: kv}, {name: b, memory_max: 1GiB}]\n"
#define KV(n) "volumes:\n- {name: kv, generation: " #n "}\n"

/* The map says which content a volume has; the agent's file, that it is served. */
static void test_volumes_follow_the_map(void **state)
{
    struct uuid first;

    begin_with(AGENT, EPOCH(1) E0 KV(0));
    first = pod_map_volumes(map)[0].uuid;
    assert_false(uuid_is_nil(&first));
    assert_true(uuid_is_nil(&pod_map_volumes(map)[1].uuid)); /* the map does not have it */
    assert_int_equal(pod_map_volumes(map)[1].memory_bytes_max, (uint64_t)1 << 30);
    offer(EPOCH(2) E0 KV(1));
    said(1, POD_MAP_TAKEN, "volume kv generation 0 -> 1");
    assert_int_equal(fake.volumes[0].generation, 1);
    assert_false(uuid_equal(&fake.volumes[0].uuid, &first));
    offer(EPOCH(3) E0 "volumes: [{name: b}, {name: other}]\n");
    said(2, POD_MAP_REFUSED,
         "p.yaml: epoch 3 lacks 1 of 1 volumes, kv, whose blocks would be lost");
    offer("shrink_epoch: 3\n" EPOCH(3) E0 "volumes: [{name: b}, {name: other}]\n");
    said(3, POD_MAP_TAKEN,
         "volume b added (generation 0), volume other added (generation 0), "
         "volume kv deleted (generation 1)");
    assert_true(uuid_is_nil(&fake.volumes[0].uuid));
    assert_false(uuid_is_nil(&fake.volumes[1].uuid));
    offer(EPOCH(4) E0 KV(
        0) "- {name: b}\n- {name: other}\n"); /* the content of epoch 1, which was reset */
    said(4, POD_MAP_REFUSED, "p.yaml: volume kv had generation 1 since this agent started");
    offer(EPOCH(4) E0 KV(1) "- {name: b}\n- {name: other}\n");
    assert_false(uuid_is_nil(&fake.volumes[0].uuid) || uuid_equal(&fake.volumes[0].uuid, &first));
    offer(EPOCH(5) E0 KV(0) "- {name: b}\n- {name: other}\n");
    said(6, POD_MAP_REFUSED, "p.yaml: generation 0 of volume kv is lower than 1");
}

/* A volume whose memory and rings would be others than at the start waits for the next one; it
 * keeps no reset of another volume away. */
static void test_a_volume_that_does_not_fit_waits_alone(void **state)
{
    struct uuid first;

    begin_with(AGENT, EPOCH(1) E0 KV(0));
    first = pod_map_volumes(map)[0].uuid;
    offer(EPOCH(2) E0 KV(0) "- {name: b, value_max: 64KiB}\n");
    said(2, POD_MAP_WAITS,
         "volume b: its value_max is another one than when this agent started: it "
         "is not served until");
    assert_true(uuid_is_nil(&fake.volumes[1].uuid));
    assert_true(uuid_equal(&fake.volumes[0].uuid, &first));
    offer(EPOCH(3) E0 KV(1) "- {name: b, value_max: 64KiB}\n");
    assert_int_equal(fake.volumes[0].generation, 1);
    offer("shrink_epoch: 4\n" EPOCH(4) E0 "volumes: [{name: kv, generation: 1, run_blocks: 32}]\n");
    said(6, POD_MAP_WAITS,
         "volume kv: its run_blocks is another one than when this agent started: "
         "it is served as it was until");
    assert_int_equal(fake.volumes[0].generation, 1);
    assert_false(uuid_is_nil(&fake.volumes[0].uuid));
    offer(EPOCH(5) E0 "volumes: [{name: kv, generation: 2, run_blocks: 32}]\n");
    assert_true(uuid_is_nil(&fake.volumes[0].uuid)); /* what was reset is not served */
}

static void test_without_volumes_the_file_says(void **state)
{
    begin_with("pod: /p\nrequire: none\nvolumes: [{name: kv, generation: 7}]\n", EPOCH(1) E0);
    assert_int_equal(pod_map_volumes(map)[0].generation, 7);
    offer(EPOCH(2) E0 E1);
    assert_int_equal(fake.volumes[0].generation, 7);
    assert_true(uuid_equal(&fake.volumes[0].uuid, &conf.volumes[0].uuid));
}

static void test_volumes_that_cannot_be_are_refused(void **state)
{
    begin_with(AGENT, EPOCH(1) E0 KV(0));
    offer(EPOCH(4) E0);
    said(1, POD_MAP_REFUSED, "it lists no volumes");
    offer(EPOCH(1) E0 KV(1));
    said(2, POD_MAP_REFUSED, "volume kv generation 0 -> 1");
    offer(EPOCH(5) E0 "volumes: [{name: kv}, {name: kv}]\n");
    said(3, POD_MAP_REFUSED, "listed twice");
    assert_int_equal(fake.applied, 0);
    offer(EPOCH(5) E0 KV(1));
    assert_int_equal(fake.applied, 1);
}

#define KEYED                                                                                      \
    "pod: /p\nsecret: /s\nrequire: none\nvolumes: [{name: kv}]\n"                                  \
    "enclosure_keys: [{name: e1, secret: /t, controller_secret: /c}"

/* An enclosure that is renamed has to prove what it had to. */
static void test_a_rename_drops_no_keys(void **state)
{
    begin_with(KEYED "]\n", EPOCH(4) E0 E1);
    offer(EPOCH(5) E0 "- {name: e9, address: 10.0.0.2:4420}\n");
    assert_int_equal(fake.applied, 0);
    said(1, POD_MAP_REFUSED, "p.yaml: enclosure e1 is called e9 now");
    offer("shrink_epoch: 5\n" EPOCH(5) E0 E2); /* another enclosure in its place */
    assert_int_equal(fake.applied, 1);
    begin_with(KEYED ", {name: e9, secret: /t, controller_secret: /c}]\n", EPOCH(4) E0 E1);
    offer("shrink_epoch: 5\n" EPOCH(5) E0 "- {name: e9, address: 10.0.0.2:4420}\n");
    assert_int_equal(fake.applied, 1);
    begin_with("pod: /p\nsecret: /s\nrequire: none\nvolumes: [{name: kv}]\n", EPOCH(4) E0 E1);
    offer("shrink_epoch: 5\n" EPOCH(5) E0
          "- {name: e9, address: 10.0.0.2:4420}\n"); /* the keys of all stay */
    assert_int_equal(fake.applied, 1);
}

/* An epoch that names another machine, of which no proof is asked. */
static void test_a_map_brings_nobody_in_without_a_proof(void **state)
{
#define NEAR "- {name: e0, address: 127.0.0.1:4420}\n"
    static const char agent[] = "pod: /p\nvolumes: [{name: kv}]\nenclosure_keys: [{name: e2, "
                                "secret: /t, controller_secret: /c}]\n";
    const struct pod_map_opts opts = {.conf = &conf};
    static struct conf_pod pod;
    struct pod_map *other = NULL;
    struct err_why why = {""};
    const char *text;

    begin_with(agent, EPOCH(4) NEAR);
    offer(EPOCH(5) NEAR E1);
    said(1, POD_MAP_REFUSED,
         "p.yaml: other machines can answer at 10.0.0.2:4420, and the enclosure 'e1' has to prove "
         "nothing: write psk, or secret");
    offer(EPOCH(5) NEAR "- {name: e1, address: 'e1.example.com:4420'}\n");
    said(2, POD_MAP_REFUSED, "e1.example.com:4420");
    assert_int_equal(fake.applied, 0);
    offer(EPOCH(5) NEAR E2);
    assert_int_equal(fake.applied, 1);
    assert_int_equal(fake.enclosures[1].require, REQUIRE_CHAP);
    text = ended(EPOCH(1) E0);
    assert_int_equal(conf_pod_parse(text, strlen(text), "p", &why, &pod), ICMS_OK);
    assert_int_equal(pod_map_new(&opts, &pod, &why, &other), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "/p: other machines can answer at 10.0.0.1:4420"));
#undef NEAR
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_new_epoch_is_given_to_the_agent, end),
        cmocka_unit_test_teardown(test_what_is_wrong_changes_nothing_and_is_said_once, end),
        cmocka_unit_test_teardown(test_what_is_not_in_use_is_told_until_it_is, end),
        cmocka_unit_test_teardown(test_a_shrunken_map_waits_until_nobody_answers, end),
        cmocka_unit_test_teardown(test_an_agent_that_is_cut_off_believes_no_shrunken_map, end),
        cmocka_unit_test_teardown(test_an_agent_that_is_being_cut_off_believes_none, end),
        cmocka_unit_test_teardown(test_one_that_is_out_is_not_used, end),
        cmocka_unit_test_teardown(test_one_that_did_not_drain_is_not_out_at_once, end),
        cmocka_unit_test_teardown(test_a_wrong_map_takes_the_place_of_one_that_waits, end),
        cmocka_unit_test_teardown(test_a_map_that_waits_ends_with_its_file, end),
        cmocka_unit_test_teardown(test_names_are_resolved_while_another_map_waits, end),
        cmocka_unit_test_teardown(test_an_agent_that_is_busy_gets_it_later, end),
        cmocka_unit_test_teardown(test_names_are_resolved_and_again_while_down, end),
        cmocka_unit_test_teardown(test_a_name_that_hangs_holds_no_other_up, end),
        cmocka_unit_test_teardown(test_the_name_of_one_address_is_resolved_while_that_is_down, end),
        cmocka_unit_test_teardown(test_two_that_lead_to_one_address_hold_nothing_up, end),
        cmocka_unit_test_teardown(test_a_name_whose_address_is_anothers_now_holds_nothing_up, end),
        cmocka_unit_test_teardown(test_keys_that_are_not_read_yet_are_tried_again, end),
        cmocka_unit_test_teardown(test_a_name_that_is_unknown_holds_nothing_up, end),
        cmocka_unit_test_teardown(test_volumes_follow_the_map, end),
        cmocka_unit_test_teardown(test_without_volumes_the_file_says, end),
        cmocka_unit_test_teardown(test_volumes_that_cannot_be_are_refused, end),
        cmocka_unit_test_teardown(test_a_volume_that_does_not_fit_waits_alone, end),
        cmocka_unit_test_teardown(test_a_rename_drops_no_keys, end),
        cmocka_unit_test_teardown(test_a_map_brings_nobody_in_without_a_proof, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
