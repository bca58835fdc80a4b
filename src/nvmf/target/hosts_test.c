/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of hosts: lists as long as they may be, and hosts that come and go in any order, against
 * arrays that are walked.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/hash.h"
#include "nvmf/target/target_int.h"

#define CONNECTIONS 300

static char names[LIMIT_VOLUME_HOSTS + 1][LIMIT_NQN_BYTES]; /* the last one is in no list */

static int group_setup(void **state)
{
    (void)state;
    for (uint32_t i = 0; i <= LIMIT_VOLUME_HOSTS; i++)
        (void)snprintf(names[i], LIMIT_NQN_BYTES, "nqn.2026-01.org.icms:host-%u", i);
    return 0;
}

static uint64_t first_64(const struct nvmft_spaces *spaces, const char *hostnqn)
{
    struct nvmft_ns_set set;

    nvmft_ns_allowed(spaces, hostnqn, 0, &set);
    return set.word[0];
}

/* Of three namespaces: one for the first host, one for all in the list, one for anybody. */
static void a_list_may_have_4096_names(void **state)
{
    static const uint32_t counts[3] = {1, LIMIT_VOLUME_HOSTS, 0};
    struct nvmft_spaces *spaces = calloc(1, sizeof(*spaces));

    (void)state;
    assert_non_null(spaces);
    spaces->count = 3;
    for (int i = 0; i < 3; i++)
        assert_int_equal(nvmft_host_set_init(&spaces->hosts[i],
                                             (const char(*)[LIMIT_NQN_BYTES])names, counts[i]),
                         ICMS_OK);
    for (uint32_t i = 0; i <= LIMIT_VOLUME_HOSTS; i++)
        assert_int_equal(first_64(spaces, names[i]), i == 0 ? 7 : i < LIMIT_VOLUME_HOSTS ? 6 : 4);
    assert_int_equal(first_64(spaces, "nqn.2026-01.org.icms:host-"), 4);
    assert_int_equal(first_64(spaces, ""), 4);
    for (int i = 0; i < 3; i++)
        nvmft_host_set_fini(&spaces->hosts[i]);
    free(spaces);
}

/* Of 1,024 namespaces: each fifth for the first host, each other one for the second. */
static void there_may_be_1024_lists(void **state)
{
    struct nvmft_spaces *spaces = calloc(1, sizeof(*spaces));
    struct nvmft_ns_set set;

    (void)state;
    assert_non_null(spaces);
    assert_int_equal(LIMIT_VOLUMES, 1024);
    spaces->count = LIMIT_VOLUMES;
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++)
        assert_int_equal(
            nvmft_host_set_init(&spaces->hosts[i],
                                (const char(*)[LIMIT_NQN_BYTES])names[i % 5 == 4 ? 0 : 1], 1),
            ICMS_OK);
    for (uint32_t host = 0; host < 2; host++) {
        nvmft_ns_allowed(spaces, names[host], 0, &set);
        assert_int_equal(nvmft_ns_first(&set), host == 0 ? 4 : 0);
        for (uint32_t i = 0; i < LIMIT_VOLUMES; i++)
            assert_int_equal(nvmft_ns_has(&set, i), (i % 5 == 4) == (host == 0));
        assert_false(nvmft_ns_has(&set, LIMIT_VOLUMES));
        assert_false(nvmft_ns_has(&set, UINT32_MAX));
    }
    nvmft_ns_allowed(spaces, names[2], 0, &set);
    assert_int_equal(nvmft_ns_first(&set), LIMIT_VOLUMES);
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++)
        nvmft_host_set_fini(&spaces->hosts[i]);
    free(spaces);
}

static void hosts_come_and_go(void **state)
{
    struct nvmft_hosts hosts = {.buckets = 0};
    uint32_t host[CONNECTIONS] = {0}, name[CONNECTIONS], held = 0, most = 0;

    (void)state;
    assert_int_equal(nvmft_hosts_init(&hosts, CONNECTIONS), ICMS_OK);
    for (uint64_t turn = 0; turn < 200000; turn++) {
        uint64_t draw = hash64_mix(turn);

        /* More come for a while, then more go. */
        if (held == 0 || (held < CONNECTIONS && draw % 8 < (turn / 5000 % 2 == 0 ? 6 : 2))) {
            name[held] = (uint32_t)(draw >> 8) % (CONNECTIONS + CONNECTIONS / 2);
            host[held] = nvmft_hosts_hold(&hosts, names[name[held]]);
            hosts.host[host[held]].qpairs++;
            held++;
        } else {
            uint32_t which = (uint32_t)(draw >> 8) % held--;

            hosts.host[host[which]].qpairs--;
            nvmft_hosts_rele(&hosts, host[which]);
            host[which] = host[held];
            name[which] = name[held];
        }
        most = held > most ? held : most;
        for (uint32_t i = 0, count = 0; turn % 500 == 0 && i < held; i++, count = 0) {
            for (uint32_t j = 0; j < held; j++) {
                assert_true((name[i] == name[j]) == (host[i] == host[j]));
                count += name[i] == name[j];
            }
            assert_int_equal(nvmft_hosts_qpairs(&hosts, names[name[i]]), count);
        }
        assert_int_equal(nvmft_hosts_qpairs(&hosts, names[LIMIT_VOLUME_HOSTS]), 0);
    }
    assert_int_equal(most, CONNECTIONS);
    nvmft_hosts_fini(&hosts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_may_have_4096_names),
        cmocka_unit_test(there_may_be_1024_lists),
        cmocka_unit_test(hosts_come_and_go),
    };

    return cmocka_run_group_tests_name("nvmf-target-hosts", tests, group_setup, NULL);
}
