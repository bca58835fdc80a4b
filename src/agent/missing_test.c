/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Enclosures that lack a volume, or hide it from this host: its keys are misses with a reason and
 * go to the next enclosure, until somebody attaches the volume. Nobody has it: an error.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/agent_rig.h"
#include "base/check.h"
#include "icms/icms.h"
#include "wire/nvme.h"

#define MS    RIG_MS
#define RAW   1 /* the volume that is lacked: the last namespace of an enclosure */
#define BYTES 5000u

static const struct rig_opts two = {.enclosures = 2};
static const struct rig_opts two_loops = {.enclosures = 2, .loops = 3};

/* The volume goes, and the hosts are told. */
static void fake_detach(struct fake_target *target)
{
    target->volume_count = RAW;
    fake_target_event(target);
}

/* It goes, and nobody is told: commands to it fail from then on. */
static void fake_detach_silently(struct fake_target *target)
{
    target->volume_count = RAW;
    target->status = NVME_SC_NAMESPACE;
}

/* It comes, and nobody is told. */
static void fake_attach_silently(struct fake_target *target)
{
    target->volume_count = RAW + 1;
    target->status = 0;
}

static void assert_miss(const struct shm_complete *answer, enum icms_miss reason)
{
    assert_non_null(answer);
    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, reason);
}

/* A key from n on that this enclosure owns. */
static uint32_t key_of(struct agent_rig *rig, uint32_t enclosure, uint32_t n)
{
    while (rig_owner(rig, RAW, n) != enclosure)
        n++;
    return n;
}

static bool is_missing(struct rig_client *client)
{
    return atomic_load(&client->arenas[RAW].header->volume_missing) != 0;
}

static void its_keys_are_misses_with_a_reason_and_go_to_the_next(const struct rig_opts *opts)
{
    struct agent_rig *rig = rig_new(opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t lost = key_of(rig, 0, 1), other = key_of(rig, 1, 1), put = key_of(rig, 0, lost + 1);
    char text[8192];
    uint64_t tag;
    struct key key;

    rig_on_fake(rig, 0, fake_detach);
    rig_run(rig, 100 * MS);
    assert_miss(rig_wait(client, rig_get(client, RAW, lost, 0, 500 * MS)), ICMS_MISS_NO_VOLUME);
    assert_miss(rig_wait(client, rig_op(client, SHM_OP_EXISTS, RAW, lost, 500 * MS)),
                ICMS_MISS_NO_VOLUME);
    assert_miss(rig_wait(client, rig_get(client, RAW, other, 0, 500 * MS)), ICMS_MISS_ABSENT);
    assert_int_equal(rig_stats(rig)->volumes[RAW].misses[ICMS_MISS_NO_VOLUME], 1);
    assert_int_equal(rig_stats(rig)->enclosures[0].missing, 1u << RAW | 1u << 2);
    assert_int_equal(rig_stats(rig)->enclosures[1].missing, 1u << 2);
    assert_true(agent_status(rig->agent, text, sizeof(text)) < sizeof(text));
    assert_non_null(strstr(text, "\"lacks\":[\"raw\",\"none\"]"));
    assert_false(is_missing(client));

    tag = rig_put(client, RAW, put, BYTES, SHM_FLAG_ON_FLASH, 500 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    rig_key(put, &key);
    assert_null(fake_target_find(rig->fake[0], RAW + 1, &key));
    assert_non_null(fake_target_find(rig->fake[1], RAW + 1, &key));
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_FLUSH, RAW, 0, 500 * MS))->status,
                     ICMS_OK);
    rig_flash(rig, 1, RAW, lost, BYTES);
    assert_int_equal(rig_wait(client, rig_get(client, RAW, lost, 0, 500 * MS))->status, ICMS_OK);
    rig_lease_give(client, 0);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, RAW, put, 500 * MS))->status,
                     ICMS_OK);
    assert_null(fake_target_find(rig->fake[1], RAW + 1, &key));
    rig_client_free(client);
    rig_free(rig);
}

static void an_enclosure_that_lacks_a_volume_is_passed_over(void **state)
{
    its_keys_are_misses_with_a_reason_and_go_to_the_next(&two);
    its_keys_are_misses_with_a_reason_and_go_to_the_next(&two_loops);
}

static void a_volume_that_is_attached_later_is_found(void **state)
{
    struct agent_rig *rig = rig_new(&two);
    struct rig_client *client = rig_client_new(rig);
    uint32_t n = key_of(rig, 0, 1), more = key_of(rig, 0, n + 1);
    uint64_t tag;
    struct key key;

    rig_on_fake(rig, 0, fake_detach);
    rig_run(rig, 100 * MS);
    rig_flash(rig, 1, RAW, n, BYTES); /* stored while the next stood in */
    rig_on_fake(rig, 0, fake_attach_silently);
    rig_run(rig, 3000 * MS); /* probes are 300 ms, a look is due after five of them */
    assert_int_equal(rig_stats(rig)->enclosures[0].missing, 1u << 2);
    tag = rig_put(client, RAW, more, BYTES, SHM_FLAG_ON_FLASH, 500 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    rig_key(more, &key);
    assert_non_null(fake_target_find(rig->fake[0], RAW + 1, &key));
    /* what the other one took meanwhile is found */
    assert_int_equal(rig_wait(client, rig_get(client, RAW, n, 0, 500 * MS))->status, ICMS_OK);
    rig_lease_give(client, 0);
    assert_miss(rig_wait(client, rig_get(client, RAW, key_of(rig, 0, more + 1), 0, 500 * MS)),
                ICMS_MISS_ABSENT);
    rig_client_free(client);
    rig_free(rig);
}

static void one_that_loses_a_volume_without_a_word_is_found_out(void **state)
{
    struct agent_rig *rig = rig_new(&two);
    struct rig_client *client = rig_client_new(rig);
    uint32_t n = key_of(rig, 0, 1), kept = key_of(rig, 0, n + 1), put = key_of(rig, 0, kept + 1);
    uint64_t tag;

    tag = rig_put(client, RAW, kept, BYTES, SHM_FLAG_ON_FLASH, 500 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    rig_on_fake(rig, 0, fake_detach_silently);
    assert_miss(rig_wait(client, rig_get(client, RAW, n, 0, 500 * MS)), ICMS_MISS_NO_VOLUME);
    assert_int_equal(rig->fake[1]->retrieves, 1); /* it was asked instead */
    assert_int_equal(rig_stats(rig)->enclosures[0].missing, 1u << RAW | 1u << 2);
    tag = rig_put(client, RAW, put, BYTES, SHM_FLAG_ON_FLASH, 500 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    /* what it had is lost, which a flush says once */
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_FLUSH, RAW, 0, 500 * MS))->status,
                     ICMS_NO_VOLUME);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_FLUSH, RAW, 0, 500 * MS))->status,
                     ICMS_OK);
    rig_client_free(client);
    rig_free(rig);
}

static void a_volume_that_nobody_has_is_an_error(void **state)
{
    struct agent_rig *rig = rig_new(&two);
    struct rig_client *client = rig_client_new(rig);
    const uint8_t ops[] = {SHM_OP_EXISTS, SHM_OP_REMOVE};
    uint64_t tag;

    rig_on_fake(rig, 0, fake_detach);
    rig_on_fake(rig, 1, fake_detach);
    rig_run(rig, 100 * MS);
    assert_true(is_missing(client));
    assert_int_equal(rig_wait(client, rig_get(client, RAW, 1, 0, 500 * MS))->status,
                     ICMS_NO_VOLUME);
    for (size_t i = 0; i < sizeof(ops); i++)
        assert_int_equal(rig_wait(client, rig_op(client, ops[i], RAW, 1, 500 * MS))->status,
                         ICMS_NO_VOLUME);
    tag = rig_put(client, RAW, 1, BYTES, 0, 500 * MS); /* not accepted to be lost */
    assert_int_equal(rig_wait(client, tag)->status, ICMS_NO_VOLUME);

    /* Of one that is away nobody knows what it has. */
    rig->fake[1]->silent = true;
    rig_on_fake(rig, 1, fake_target_drop);
    rig_run(rig, 100 * MS);
    assert_false(is_missing(client));
    assert_miss(rig_wait(client, rig_get(client, RAW, 1, 0, 500 * MS)), ICMS_MISS_ENCLOSURE_DOWN);
    rig->fake[1]->silent = false;
    rig_on_fake(rig, 1, fake_attach_silently);
    rig_run(rig, 3000 * MS);
    assert_false(is_missing(client));
    tag = rig_put(client, RAW, 1, BYTES, SHM_FLAG_ON_FLASH, 500 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    rig_client_free(client);
    rig_free(rig);
}

/* The reason that operators read: whole, however long the names in it are. */
static void why_an_enclosure_is_refused_is_never_cut(void **state)
{
    static const struct rig_opts opts = {.enclosures = 1, .long_names = true};
    struct agent_rig *rig = rig_new(&opts);
    const char *nqn = rig->enclosures[0].nqn, *host = rig->opts.host_nqn;
    char expected[2048];

    assert_int_equal(strlen(nqn), LIMIT_NQN_BYTES - 1);
    assert_int_equal(strlen(host), LIMIT_NQN_BYTES - 1);
    rig->fake[0]->no_subsystem = true;
    rig_on_fake(rig, 0, fake_target_drop);
    rig_run(rig, 1000 * MS);
    (void)snprintf(expected, sizeof(expected),
                   "10.1.1.1:4420: the target has no subsystem %s that host %s may use; check the "
                   "enclosure's name or nqn, and its volumes' hosts",
                   nqn, host);
    assert_string_equal(rig_stats(rig)->enclosures[0].last_error, expected);
    rig->fake[0]->no_subsystem = false;
    rig->fake[0]->refuse_connect = true;
    rig_run(rig, 1000 * MS);
    (void)snprintf(expected, sizeof(expected),
                   "10.1.1.1:4420: the target does not allow host %s to use subsystem %s", host,
                   nqn);
    assert_string_equal(rig_stats(rig)->enclosures[0].last_error, expected);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_enclosure_that_lacks_a_volume_is_passed_over),
        cmocka_unit_test(a_volume_that_is_attached_later_is_found),
        cmocka_unit_test(one_that_loses_a_volume_without_a_word_is_found_out),
        cmocka_unit_test(a_volume_that_nobody_has_is_an_error),
        cmocka_unit_test(why_an_enclosure_is_refused_is_never_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
