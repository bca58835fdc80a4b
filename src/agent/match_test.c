/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many keys of one request: each has its own answer, whoever is asked and whatever happens to them
 * meanwhile; with exist-many, and with a command a key where that is not offered or not wanted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "base/check.h"
#include "icms/icms.h"
#include "wire/nvme.h"

#define MS    RIG_MS
#define KV    0
#define RAW   1
#define NONE  2
#define ANY   UINT32_MAX
#define BYTES 500u
#define KEYS  SHM_MATCH_KEYS
#define AT    (3u << 20) /* in staging memory, behind what puts use */

/* Ways to ask: with exist-many, where it is not offered, where it is not wanted, across loops. */
static const struct rig_opts ways[] = {
    {.enclosures = 3, .slots = 256, .many = true},
    {.enclosures = 3, .slots = 256},
    {.enclosures = 3, .slots = 256, .many = true, .one_by_one = true},
    {.enclosures = 3, .slots = 256, .many = true, .loops = 3},
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

static bool uses_exist_many(const struct rig_opts *opts)
{
    return opts->many && !opts->one_by_one;
}

/* Asks for keys first, first + 1, ... with what lies at this place of staging memory; for those of
 * one enclosure, or of any. */
static uint64_t ask_of(struct rig_client *client, uint32_t volume, uint32_t at, uint32_t first,
                       uint32_t count, uint64_t timeout_ns, uint32_t owner)
{
    struct shm_submit entry = {
        .op = SHM_OP_EXISTS_MANY,
        .volume = volume,
        .offset = at,
        .bytes = count,
        .deadline_ns = timeout_ns == 0 ? 0 : rig_now_ns(client->rig) + timeout_ns,
    };
    uint8_t *memory = client->ring.staging + at;

    for (uint32_t i = 0, n = first; i < count; n++) {
        if (owner != ANY && rig_owner(client->rig, KV, n) != owner)
            continue;
        rig_put_key(memory, i++, n);
    }
    memset(memory + count * sizeof(struct shm_key), 0xee, count);
    return rig_submit(client, &entry);
}

static uint64_t ask(struct rig_client *client, uint32_t volume, uint32_t at, uint32_t first,
                    uint32_t count, uint64_t timeout_ns)
{
    return ask_of(client, volume, at, first, count, timeout_ns, ANY);
}

static const uint8_t *answers_at(struct rig_client *client, uint32_t at, uint32_t count)
{
    return client->ring.staging + at + count * sizeof(struct shm_key);
}

/* The same, waiting for it; status OK. */
static const uint8_t *match(struct rig_client *client, uint32_t first, uint32_t count,
                            uint64_t timeout_ns)
{
    const struct shm_complete *answer =
        rig_wait(client, ask(client, KV, AT, first, count, timeout_ns));

    assert_non_null(answer);
    assert_int_equal(answer->status, ICMS_OK);
    return answers_at(client, AT, count);
}

/* Every third key from first on is with its owner. */
static void fill(struct agent_rig *rig, uint32_t first, uint32_t count)
{
    for (uint32_t n = first; n < first + count; n++)
        if (n % 3 == 0)
            rig_flash(rig, rig_owner(rig, KV, n), KV, n, BYTES);
}

static uint32_t commands(const struct agent_rig *rig, bool many)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < rig->enclosure_count; i++)
        count += many ? rig->fake[i]->exist_manys : rig->fake[i]->exists;
    return count;
}

static void fake_detach(struct fake_target *target)
{
    target->volume_count = 0;
    fake_target_event(target);
}

/* The enclosure is gone and does not come back. */
static void enclosure_kill(struct agent_rig *rig, uint32_t enclosure)
{
    rig->fake[enclosure]->silent = true;
    rig_on_fake(rig, enclosure, fake_target_drop);
}

/* ---- in fair weather ------------------------------------------------------------------------ */

static void each_key_has_its_own_answer_after_one_round_trip(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        bool many = uses_exist_many(&ways[way]);
        const uint8_t *answers;
        uint64_t began_ns;

        fill(rig, 0, KEYS);
        for (uint32_t n = 1; n < 31; n += 3) /* in the arena alone: the enclosures lose them */
            assert_int_equal(rig_wait(client, rig_put(client, KV, n, BYTES, 0, 0))->status,
                             ICMS_OK);
        rig_run(rig, 200 * MS);
        for (uint32_t n = 1; n < 31; n += 3) {
            struct key key;

            rig_key(n, &key);
            assert_true(fake_target_remove(rig->fake[rig_owner(rig, KV, n)], 1, &key));
        }
        for (uint32_t i = 0; i < rig->enclosure_count; i++)
            rig->fake[i]->delay_ns = 20 * MS;
        began_ns = rig_now_ns(rig);
        answers = match(client, 0, KEYS, 5000 * MS);
        if (many)
            assert_true(rig_now_ns(rig) - began_ns < 39 * MS);
        for (uint32_t n = 0; n < KEYS; n++)
            assert_int_equal(answers[n], n % 3 == 0 || (n % 3 == 1 && n < 31) ? ICMS_MISS_NONE
                                                                              : ICMS_MISS_ABSENT);
        assert_in_range(commands(rig, true), many ? (KEYS - 10) / 64 : 0,
                        many ? KEYS / 64 + rig->enclosure_count * client->attached.reactor_count
                             : 0);
        assert_int_equal(commands(rig, false), many ? 0 : KEYS - 10);
        rig_client_free(client);
        rig_free(rig);
    }
}

static void batches_of_all_sizes(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct rig_client *client = rig_client_new(rig);

    fill(rig, 0, 200);
    for (uint32_t count = 1; count < 200; count++) {
        const uint8_t *answers = match(client, 0, count, 500 * MS);

        for (uint32_t n = 0; n < count; n++)
            assert_int_equal(answers[n], n % 3 == 0 ? ICMS_MISS_NONE : ICMS_MISS_ABSENT);
    }
    rig_client_free(client);
    rig_free(rig);
}

static void a_drive_of_its_own_is_looked_at_too(void **state)
{
    const struct rig_opts own = {.enclosures = 0};
    struct agent_rig *rig = rig_new(&own);
    struct rig_client *client = rig_client_new(rig);
    const uint8_t *answers;
    uint64_t tag = rig_put(client, KV, 5, BYTES, SHM_FLAG_ON_FLASH, 1000 * MS);

    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    for (uint32_t n = 1000; n < 1100; n++) /* out of the arena */
        assert_int_equal(
            rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 0))->status, ICMS_OK);
    answers = match(client, 0, 100, 500 * MS);
    for (uint32_t n = 0; n < 100; n++)
        assert_int_equal(answers[n], n == 5 ? ICMS_MISS_NONE : ICMS_MISS_ABSENT);
    rig_client_free(client);
    rig_free(rig);
}

static void what_makes_no_sense_is_refused(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct rig_client *client = rig_client_new(rig);
    uint64_t end = client->ring.staging_bytes;
    struct shm_submit entry = {.op = SHM_OP_EXISTS_MANY, .offset = AT, .bytes = 0};
    struct shm_key bad[2] = {{.length = 16}, {.length = 17}};

    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_INVALID);
    entry.bytes = KEYS + 1;
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_INVALID);
    entry.bytes = UINT32_MAX;
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_INVALID);
    entry.bytes = 10;
    entry.offset = end - SHM_MATCH_BYTES(10) + 1;
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_INVALID);
    entry.offset = UINT64_MAX;
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_INVALID);
    entry.offset = AT;
    entry.bytes = 2;
    memcpy(client->ring.staging + AT, bad, sizeof(bad));
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_KEY_SIZE);
    bad[1].length = 0;
    memcpy(client->ring.staging + AT, bad, sizeof(bad));
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_KEY_SIZE);
    assert_int_equal(commands(rig, true), 0);
    (void)match(client, 0, 10, 500 * MS);
    rig_client_free(client);
    rig_free(rig);
}

/* ---- in bad weather ------------------------------------------------------------------------- */

static void keys_of_an_enclosure_that_dies_half_way_are_asked_of_the_next(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        const uint8_t *answers;
        uint32_t lost = 0;
        uint64_t tag;

        fill(rig, 0, 600);
        for (uint32_t n = 1; n < 600; n += 30) /* the others have some that are not theirs */
            for (uint32_t i = 1; i < 3; i++)
                rig_flash(rig, i, KV, n, BYTES);
        rig->fake[0]->hold = true;
        tag = ask(client, KV, AT, 0, 600, 5000 * MS);
        rig_run(rig, 20 * MS);
        assert_int_equal(client->got[tag], 0);
        enclosure_kill(rig, 0);
        assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
        answers = answers_at(client, AT, 600);
        for (uint32_t n = 0; n < 600; n++) {
            bool mine = rig_owner(rig, KV, n) == 0;
            bool there = (n % 3 == 0 && !mine) || n % 30 == 1;

            assert_int_equal(answers[n], there  ? ICMS_MISS_NONE
                                         : mine ? ICMS_MISS_ENCLOSURE_DOWN
                                                : ICMS_MISS_ABSENT);
            lost += answers[n] == ICMS_MISS_ENCLOSURE_DOWN;
        }
        assert_true(lost > 100);
        answers = match(client, 0, 600, 500 * MS); /* it is excluded now */
        for (uint32_t n = 0; n < 600; n++)
            lost -= answers[n] == ICMS_MISS_ENCLOSURE_DOWN;
        assert_int_equal(lost, 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

static void at_the_deadline_what_is_known_is_told(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        uint64_t began_ns, tag;
        const uint8_t *answers;

        fill(rig, 0, 300);
        rig->fake[0]->hold = true;
        began_ns = rig_now_ns(rig);
        tag = ask(client, KV, AT, 0, 300, 200 * MS);
        assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
        assert_in_range(client->got_ns[tag] - began_ns, 199 * MS, 220 * MS);
        answers = answers_at(client, AT, 300);
        for (uint32_t n = 0; n < 300; n++)
            assert_int_equal(answers[n], rig_owner(rig, KV, n) == 0 ? ICMS_MISS_DEADLINE
                                         : n % 3 == 0               ? ICMS_MISS_NONE
                                                                    : ICMS_MISS_ABSENT);
        rig_on_fake(rig, 0, fake_target_release);
        answers = match(client, 0, 300, 500 * MS);
        for (uint32_t n = 0; n < 300; n++)
            assert_int_equal(answers[n], n % 3 == 0 ? ICMS_MISS_NONE : ICMS_MISS_ABSENT);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* More batches, and more of their commands, than the agent has space for: they wait, and all are
 * answered; those that an enclosure keeps waiting by their deadline. */
static void more_than_there_is_space_for_waits(void **state)
{
    enum { ASKS = 40, EACH = 1500 };

    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        uint64_t tags[ASKS];

        fill(rig, 0, 60);
        for (int held = 1; held >= 0; held--) {
            for (uint32_t i = 0; i < rig->enclosure_count; i++)
                rig->fake[i]->hold = held;
            for (uint32_t i = 0; i < ASKS; i++)
                tags[i] = ask(client, KV, AT / 2 + i * (uint32_t)SHM_MATCH_BYTES(EACH), 0, EACH,
                              (held ? 200 : 20000) * MS);
            for (uint32_t i = 0; i < ASKS; i++) {
                const struct shm_complete *answer = rig_wait(client, tags[i]);
                const uint8_t *answers =
                    answers_at(client, AT / 2 + i * (uint32_t)SHM_MATCH_BYTES(EACH), EACH);

                assert_non_null(answer);
                if (held && answer->status != ICMS_OK) {
                    assert_int_equal(answer->status, ICMS_MISS);
                    assert_int_equal(answer->reason, ICMS_MISS_DEADLINE);
                    continue;
                }
                assert_int_equal(answer->status, ICMS_OK);
                for (uint32_t n = 0; n < EACH; n++)
                    assert_int_equal(answers[n], held                   ? ICMS_MISS_DEADLINE
                                                 : n < 60 && n % 3 == 0 ? ICMS_MISS_NONE
                                                                        : ICMS_MISS_ABSENT);
            }
            for (uint32_t i = 0; i < rig->enclosure_count; i++)
                rig_on_fake(rig, i, fake_target_release);
            rig_run(rig, 500 * MS);
        }
        rig_client_free(client);
        rig_free(rig);
    }
}

/* One enclosure is asked key by key and answers nothing, the other has space again: whoever waits
 * for the first does not hold up who waits for the second. */
static void one_enclosure_does_not_hold_up_another(void **state)
{
    const uint32_t fill = AGENT_MATCH_CMDS * NVME_KV_EXIST_MANY_KEYS / KEYS;
    const struct rig_opts two = {.enclosures = 2, .slots = 256, .many = true};
    struct agent_rig *rig = rig_new(&two);
    struct rig_client *client = rig_client_new(rig);
    uint32_t at = AT / 2;
    uint64_t alone, behind;

    rig->fake[0]->many = false;
    rig_on_fake(rig, 0, fake_target_drop);
    rig_run(rig, 1000 * MS);
    rig->fake[0]->hold = rig->fake[1]->hold = true;
    for (uint32_t i = 0; i < fill; i++, at += SHM_MATCH_BYTES(KEYS)) /* all parts */
        (void)ask_of(client, KV, at, 0, KEYS, 9000 * MS, 1);
    for (uint32_t i = 0; i < AGENT_OPS / KEYS;
         i++, at += SHM_MATCH_BYTES(KEYS)) /* all operations */
        (void)ask_of(client, KV, at, 0, KEYS, 9000 * MS, 0);
    rig_run(rig, 10 * MS);
    alone = ask_of(client, KV, at, 0, 10, 9000 * MS, 0);
    rig_run(rig, 1 * MS);
    behind = ask_of(client, KV, at + SHM_MATCH_BYTES(10), 0, 10, 9000 * MS, 1);
    rig_run(rig, 1 * MS);
    rig_on_fake(rig, 1, fake_target_release);
    rig_run(rig, 10 * MS);
    rig_take(client);
    assert_int_equal(client->got[behind], 1);
    assert_int_equal(answers_at(client, at + SHM_MATCH_BYTES(10), 10)[9], ICMS_MISS_ABSENT);
    assert_int_equal(client->got[alone], 0);
    rig_on_fake(rig, 0, fake_target_release);
    assert_int_equal(rig_wait(client, alone)->status, ICMS_OK);
    assert_int_equal(answers_at(client, at, 10)[9], ICMS_MISS_ABSENT);
    rig_client_free(client);
    rig_free(rig);
}

static void a_client_that_dies_leaves_nothing(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        struct rig_client *other = rig_client_new(rig);

        for (uint32_t i = 0; i < rig->enclosure_count; i++)
            rig->fake[i]->hold = true;
        for (uint32_t i = 0; i < 20; i++)
            (void)ask(client, KV, AT / 2 + i * (uint32_t)SHM_MATCH_BYTES(800), 0, 800, 9000 * MS);
        rig_run(rig, 20 * MS);
        rig_client_free(client);
        for (uint32_t i = 0; i < rig->enclosure_count; i++)
            rig_on_fake(rig, i, fake_target_release);
        assert_int_equal(match(other, 0, KEYS, 9000 * MS)[7], ICMS_MISS_ABSENT);
        rig_client_free(other);
        rig_free(rig);
    }
}

static void what_another_one_took_over_is_found(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        const uint8_t *answers;

        enclosure_kill(rig, 0);
        rig_run(rig, 100 * MS);
        for (uint32_t n = 0; n < 30; n++)
            assert_int_equal(
                rig_wait(client, rig_put(client, RAW, n, BYTES, SHM_FLAG_ON_FLASH, 0))->status,
                ICMS_OK);
        for (uint32_t n = 100; n < 400; n++) /* they leave the arena */
            assert_int_equal(
                rig_wait(client, rig_put(client, RAW, n, BYTES, SHM_FLAG_ON_FLASH, 0))->status,
                ICMS_OK);
        rig->fake[0]->silent = false;
        rig_run(rig, 2000 * MS);
        assert_int_equal(rig_wait(client, ask(client, RAW, AT, 0, 60, 500 * MS))->status, ICMS_OK);
        answers = answers_at(client, AT, 60);
        for (uint32_t n = 0; n < 60; n++)
            assert_int_equal(answers[n], n < 30 ? ICMS_MISS_NONE : ICMS_MISS_ABSENT);
        rig_client_free(client);
        rig_free(rig);
    }
}

static void enclosures_that_lack_the_volume(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        const uint8_t *answers;

        assert_int_equal(rig_wait(client, ask(client, NONE, AT, 0, 60, 500 * MS))->status,
                         ICMS_NO_VOLUME);
        rig_on_fake(rig, 0, fake_detach);
        rig_run(rig, 100 * MS);
        answers = match(client, 0, 200, 500 * MS);
        for (uint32_t n = 0; n < 200; n++)
            assert_int_equal(answers[n],
                             rig_owner(rig, KV, n) == 0 ? ICMS_MISS_NO_VOLUME : ICMS_MISS_ABSENT);
        rig->fake[1]->volume_count = 0; /* and one of which nobody knows it yet */
        rig->fake[1]->status = NVME_SC_NAMESPACE;
        answers = match(client, 0, 200, 500 * MS);
        for (uint32_t n = 0; n < 200; n++)
            assert_int_equal(answers[n],
                             rig_owner(rig, KV, n) == 2 ? ICMS_MISS_ABSENT : ICMS_MISS_NO_VOLUME);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* An enclosure that comes back without exist-many is asked key by key. */
static void exist_many_may_be_gone_after_a_reconnect(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct rig_client *client = rig_client_new(rig);

    (void)match(client, 0, 300, 500 * MS);
    assert_int_equal(commands(rig, false), 0);
    rig->fake[0]->many = false;
    rig_on_fake(rig, 0, fake_target_drop);
    rig_run(rig, 1000 * MS);
    assert_int_equal(match(client, 0, 300, 500 * MS)[0], ICMS_MISS_ABSENT);
    assert_true(rig->fake[0]->exists > 50);
    assert_true(rig->fake[1]->exist_manys > 1);
    rig_client_free(client);
    rig_free(rig);
}

/* An answer that makes no sense for this command is no block; one that offers exist-many and does
 * not know it is asked key by key. */
static void an_error_is_never_a_block(void **state)
{
    static const uint16_t statuses[] = {
        NVME_SC_OPCODE,      NVME_SC_INTERNAL,  NVME_SC_KV_EXISTS, NVME_SC_KV_VALUE_SIZE,
        NVME_SC_KV_KEY_SIZE, NVME_SC_KV_NO_KEY, NVME_SC_TRANSIENT};

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        struct agent_rig *rig = rig_new(&ways[0]);
        struct rig_client *client = rig_client_new(rig);
        const uint8_t *answers;

        for (uint32_t j = 0; j < rig->enclosure_count; j++)
            rig->fake[j]->status = statuses[i];
        answers = match(client, 0, 200, 500 * MS);
        for (uint32_t n = 0; n < 200; n++) {
            assert_int_not_equal(answers[n], ICMS_MISS_NONE);
            assert_int_not_equal(answers[n], ICMS_MISS_DEADLINE);
        }
        assert_in_range(commands(rig, true), 1, 12);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* A batch that waits on behind what it took is charged for that: small ones of another user do not
 * wait for all of it. */
static void what_is_taken_in_pieces_is_charged(void **state)
{
    enum { LARGE_KEYS = 2048, LARGE = 12, SMALL = 4, SPACE = 1 << 16 };
    const struct rig_opts opts = {.enclosures = 1, .slots = 64, .many = true};
    const struct agent_user users[] = {{.uid = 1000, .gid = 1000}, {.uid = 1001, .gid = 1001}};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *clients[2];
    uint64_t large[LARGE], small[SMALL];
    uint32_t before;
    icms_err err;

    for (int i = 0; i < 2; i++)
        clients[i] = rig_client_as(rig, &users[i], &err);
    rig->fake[0]->hold = true;
    for (uint32_t i = 0; i < LARGE; i++)
        large[i] = ask(clients[0], KV, i * SPACE, i * LARGE_KEYS, LARGE_KEYS, 20000 * MS);
    rig_run(rig, 100 * MS);
    for (uint32_t i = 0; i < SMALL; i++)
        small[i] = ask(clients[1], KV, i * SPACE, 50000 + i * 64, 64, 20000 * MS);
    rig_run(rig, 100 * MS);
    rig_on_fake(rig, 0, fake_target_release);
    for (uint32_t i = 0; i < SMALL; i++)
        assert_int_equal(rig_wait(clients[1], small[i])->status, ICMS_OK);
    before = rig->fake[0]->exist_manys;
    print_message("  %u commands\n", before);
    assert_true(before <= 230); /* 127 had gone before */
    for (uint32_t i = 0; i < LARGE; i++)
        assert_int_equal(rig_wait(clients[0], large[i])->status, ICMS_OK);
    for (int i = 0; i < 2; i++)
        rig_client_free(clients[i]);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_key_has_its_own_answer_after_one_round_trip),
        cmocka_unit_test(batches_of_all_sizes),
        cmocka_unit_test(a_drive_of_its_own_is_looked_at_too),
        cmocka_unit_test(what_makes_no_sense_is_refused),
        cmocka_unit_test(keys_of_an_enclosure_that_dies_half_way_are_asked_of_the_next),
        cmocka_unit_test(at_the_deadline_what_is_known_is_told),
        cmocka_unit_test(more_than_there_is_space_for_waits),
        cmocka_unit_test(one_enclosure_does_not_hold_up_another),
        cmocka_unit_test(a_client_that_dies_leaves_nothing),
        cmocka_unit_test(what_another_one_took_over_is_found),
        cmocka_unit_test(enclosures_that_lack_the_volume),
        cmocka_unit_test(exist_many_may_be_gone_after_a_reconnect),
        cmocka_unit_test(an_error_is_never_a_block),
        cmocka_unit_test(what_is_taken_in_pieces_is_charged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
