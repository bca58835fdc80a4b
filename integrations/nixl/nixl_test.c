/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin without NIXL: its settings, its keys and its transfers, against an agent that does
 * whatever a test wants. With NIXL and real daemons it is tested by tests/.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/fake_agent.h"
#include "conf/conf.h"
#include "device/fake_device.h"
#include "nixl/nixl.h"

#define BLOCK_BYTES 4096

/* ---- settings ------------------------------------------------------------------------------- */

static char why[512];

static icms_err settings_read(enum nixl_backend backend, const struct nixl_param *params,
                              size_t count, struct nixl_settings *out)
{
    why[0] = '\0';
    return nixl_settings_read(backend, params, count, why, sizeof(why), out);
}

#define READ(backend, out, ...)                                                                    \
    settings_read(backend, (const struct nixl_param[]){__VA_ARGS__},                               \
                  sizeof((const struct nixl_param[]){__VA_ARGS__}) / sizeof(struct nixl_param),    \
                  out)

static void refused(icms_err err, const char *word)
{
    if (err == ICMS_OK || strstr(why, word) == NULL)
        fail_msg("answered %s '%s', wanted '... %s'", icms_err_name(err), why, word);
}

static void test_defaults_can_be_handed_back(void **state)
{
    struct nixl_param params[16];
    struct nixl_settings settings;
    size_t count = 0;

    while (nixl_settings_default(NIXL_ICMS, count, &params[count]))
        count++;
    assert_int_equal(count, 10);
    refused(settings_read(NIXL_ICMS, params, count, &settings), "volume is missing");
    params[count++] = (struct nixl_param){"volume", "kv"};
    assert_int_equal(settings_read(NIXL_ICMS, params, count, &settings), ICMS_OK);
    assert_string_equal(settings.connection, "unix:");
    assert_int_equal(settings.load_deadline_ms, 2000);
    assert_int_equal(settings.store_deadline_ms, 10000);
    assert_int_equal(settings.blocks_max, 8192);
    assert_int_equal(settings.key_form, NIXL_KEY_NAME);
    assert_int_equal(settings.put_ack, ICMS_PUT_ON_FLASH);
    assert_false(settings.query_assume);
    assert_false(settings.absent_is_zeros);
}

static void test_parameters_are_taken_as_written(void **state)
{
    struct nixl_settings settings;

    assert_int_equal(READ(NIXL_ICMS, &settings, {"volume", "kv"},
                          {"connection", "pod:/etc/icms/agent.yaml"}, {"keys", "/etc/icms/k"},
                          {"deadline_ms", "250"}, {"store_deadline_ms", "3600000"},
                          {"key_form", "hex"}, {"put_ack", "accepted"}, {"num_tasks", "16"},
                          {"query_mem_mode", "assume_success"}, {"ignore_read_not_found", "true"}),
                     ICMS_OK);
    assert_string_equal(settings.connection, "pod:/etc/icms/agent.yaml");
    assert_string_equal(settings.keys, "/etc/icms/k");
    assert_string_equal(settings.volume, "kv");
    assert_int_equal(settings.load_deadline_ms, 250);
    assert_int_equal(settings.store_deadline_ms, 3600000);
    assert_int_equal(settings.blocks_max, 16);
    assert_int_equal(settings.key_form, NIXL_KEY_HEX);
    assert_int_equal(settings.put_ack, ICMS_PUT_ACCEPTED);
    assert_true(settings.query_assume);
    assert_true(settings.absent_is_zeros);
}

static void test_wrong_parameters_are_refused(void **state)
{
    struct nixl_settings s;

    refused(READ(NIXL_ICMS, &s, {"volume", "kv"}, {"bucket", "b"}), "no parameter 'bucket'");
    refused(READ(NIXL_ICMS, &s, {"volume", "kv"}, {"nguid", "00"}), "no parameter 'nguid'");
    refused(READ(NIXL_DOCA_MEMOS, &s, {"volume", "kv"}), "no parameter 'volume'");
    refused(READ(NIXL_ICMS, &s, {"volume", "kv"}, {"num_tasks", "0"}), "num_tasks is '0'");
    refused(READ(NIXL_ICMS, &s, {"volume", "kv"}, {"num_tasks", "1e3"}), "num_tasks is '1e3'");
    refused(READ(NIXL_ICMS, &s, {"volume", "kv"}, {"deadline_ms", "-1"}), "deadline_ms is '-1'");
    refused(READ(NIXL_ICMS, &s, {"volume", "kv"}, {"deadline_ms", "99999999999999999999"}),
            "from 1 to 3600000");
    refused(READ(NIXL_ICMS, &s, {"volume", "kv"}, {"query_mem_mode", "maybe"}),
            "actual or assume_success");
    refused(READ(NIXL_ICMS, &s, {"volume", "kv"}, {"ignore_read_not_found", "yes"}),
            "false or true");
    refused(READ(NIXL_ICMS, &s,
                 {"volume", "0123456789012345678901234567890123456789"
                            "012345678901234567890123456789"}),
            "volume is too long");
}

#define NGUID "000102030405060708090a0b0c0d0e0f"

static void test_devices_of_cmx_stand_for_what_the_table_says(void **state)
{
    static const char table[] = "devices:\n"
                                "  - device_name: /dev/nvme0n1\n"
                                "    connection: unix:/run/x.sock\n"
                                "    keys: /etc/icms/k\n"
                                "    load_deadline: 300ms\n"
                                "    volumes:\n"
                                "      - nguid: 00000000000000000000000000000000\n"
                                "        volume: any\n"
                                "      - nguid: " NGUID "\n"
                                "        volume: kv\n"
                                "        uuid: 6ba7b810-9dad-11d1-80b4-00c04fd430c8\n";
    char path[] = "/tmp/icms-nixl-test-XXXXXX";
    struct nixl_settings settings;
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, table, sizeof(table) - 1), sizeof(table) - 1);
    assert_int_equal(close(fd), 0);
    assert_int_equal(setenv("ICMS_NIXL_CONFIG", path, 1), 0);
    assert_int_equal(READ(NIXL_DOCA_MEMOS, &settings, {"device_name", "/dev/nvme0n1"}), ICMS_OK);
    assert_string_equal(settings.connection, "unix:/run/x.sock");
    assert_string_equal(settings.keys, "/etc/icms/k");
    assert_string_equal(settings.volume, "any");
    assert_int_equal(settings.load_deadline_ms, 300);
    assert_int_equal(settings.store_deadline_ms, 10000);
    assert_int_equal(settings.key_form, NIXL_KEY_HEX);
    assert_int_equal(settings.put_ack, ICMS_PUT_ON_FLASH);
    assert_int_equal(settings.blocks_max, 8192);
    assert_true(settings.query_assume);
    assert_int_equal(READ(NIXL_DOCA_MEMOS, &settings, {"device_name", "/dev/nvme0n1"},
                          {"nguid", "000102030405060708090A0B0C0D0E0F"},
                          {"query_mem_mode", "actual"}),
                     ICMS_OK);
    assert_string_equal(settings.volume, "kv");
    assert_int_equal(settings.uuid[0], 0x6b);
    assert_false(settings.query_assume);
    refused(READ(NIXL_DOCA_MEMOS, &settings, {"nguid", NGUID}), "device_name is missing");
    refused(READ(NIXL_DOCA_MEMOS, &settings, {"device_name", "/dev/nvme1n1"}),
            "'/dev/nvme1n1' is not in");
    refused(READ(NIXL_DOCA_MEMOS, &settings, {"device_name", "/dev/nvme0n1"}, {"nguid", "00"}),
            "32 hex digits");
    refused(READ(NIXL_DOCA_MEMOS, &settings, {"device_name", "/dev/nvme0n1"},
                 {"nguid", "ffffffffffffffffffffffffffffffff"}),
            "no volume for the nguid ff");
    assert_int_equal(remove(path), 0);
    refused(READ(NIXL_DOCA_MEMOS, &settings, {"device_name", "/dev/nvme0n1"}), "ICMS_NIXL_CONFIG");
    assert_int_equal(unsetenv("ICMS_NIXL_CONFIG"), 0);
}

/* The key is that of a name of these bytes. */
static void key_is(enum nixl_key_form form, const char *name, const void *bytes, size_t length)
{
    struct icms_key key, named;

    assert_int_equal(nixl_key_make(form, name, strlen(name), 7, &key), ICMS_OK);
    icms_key_from_name(bytes, length, &named);
    assert_memory_equal(&key, &named, sizeof(key));
}

static void test_names_become_keys(void **state)
{
    struct icms_key key, other;

    key_is(NIXL_KEY_HEX, NGUID, "\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16\17", 16);
    key_is(NIXL_KEY_HEX, "ff", "\377", 1);
    assert_int_equal(nixl_key_make(NIXL_KEY_HEX, "0123456789abcdefg", 17, 7, &key), ICMS_KEY_SIZE);
    assert_int_equal(nixl_key_make(NIXL_KEY_HEX, NGUID "00", 34, 7, &key), ICMS_KEY_SIZE);
    key_is(NIXL_KEY_NAME, "ff", "ff", 2);
    key_is(NIXL_KEY_NAME, "0123456789abcdef", "0123456789abcdef", 16);
    assert_int_equal(nixl_key_make(NIXL_KEY_NAME, NGUID, 32, 7, &key), ICMS_OK);
    assert_int_equal(key.length, 16);
    assert_int_equal(nixl_key_make(NIXL_KEY_NAME, NGUID "x", 33, 7, &other), ICMS_OK);
    assert_memory_not_equal(key.bytes, other.bytes, 16);
}

/* Names of which one reads as the hex of the other, and objects without a name. */
static void test_distinct_names_have_distinct_keys(void **state)
{
    static const struct {
        const char *name;
        uint64_t device;
    } objects[] = {
        {"a", 0},
        {"61", 0},
        {"6", 0},
        {"36", 0},
        {"ff", 0},
        {"FF", 0},
        {"Ff", 0},
        {"\377", 0},
        {"", 7},
        {"", 8},
        {"7", 0},
        {"07", 0},
        {"kvbench0_3", 0},
        {"6b7662656e6368305f33", 0},
        {"0700000000000000", 0},
        {"ABCDEFABCDEFABCD", 0},
        {"abcdefabcdefabcd", 0},
        {"41424344454641424344454641424344", 0},
        {"AABBCCDDEEFFAABBCCDDEEFFAABBCCDD", 0},
        {"aabbccddeeffaabbccddeeffaabbccdd", 0},
        {"", 0x6867666564636261},
        {"abcdefgh", 0},
        {"6162636465666768", 0},
    };
    enum { COUNT = sizeof(objects) / sizeof(objects[0]) };
    struct icms_key keys[COUNT];

    for (int form = NIXL_KEY_NAME; form <= NIXL_KEY_HEX; form++) {
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(nixl_key_make((enum nixl_key_form)form, objects[i].name,
                                           strlen(objects[i].name), objects[i].device, &keys[i]),
                             ICMS_OK);
        for (int i = 0; i < COUNT; i++)
            for (int j = 0; j < i; j++)
                if (memcmp(keys[i].bytes, keys[j].bytes, sizeof(keys[i].bytes)) == 0)
                    fail_msg("form %d: '%s' and '%s' have one key", form, objects[i].name,
                             objects[j].name);
    }
}

/* What is stored must be found by the next version: `icms get --name "icms nixl name
 * v1/kvbench0_3"` finds the same block. */
static void test_hashed_keys_are_those_of_names(void **state)
{
    static const char name[] = "icms nixl name v1/kvbench0_3";
    static const char device[] = "icms nixl device v1/\7\0\0\0\0\0\0";
    struct icms_key key, named;

    assert_int_equal(nixl_key_make(NIXL_KEY_HEX, "kvbench0_3", 10, 7, &key), ICMS_OK);
    icms_key_from_name(name, strlen(name), &named);
    assert_memory_equal(&key, &named, sizeof(key));
    for (int form = NIXL_KEY_NAME; form <= NIXL_KEY_HEX; form++) {
        assert_int_equal(nixl_key_make((enum nixl_key_form)form, "", 0, 7, &key), ICMS_OK);
        icms_key_from_name(device, sizeof(device), &named);
        assert_memory_equal(&key, &named, sizeof(key));
    }
}

/* ---- transfers ------------------------------------------------------------------------------ */

struct fixture {
    struct agent *agent;
    struct fake_socket *socket;
    char path[64];
    struct nixl_settings settings;
    struct nixl_tier *tier;
};

/* How often each was said in this test. */
enum news { NEWS_ABSENT, NEWS_THERE, NEWS_WRONG, NEWS_COUNT };
static _Atomic int heard[NEWS_COUNT];

static void hear(void *arg, const char *line)
{
    if (strstr(line, "no agent: ") != NULL)
        atomic_fetch_add(&heard[NEWS_ABSENT], 1);
    else if (strstr(line, "attached to the agent") != NULL)
        atomic_fetch_add(&heard[NEWS_THERE], 1);
    else
        atomic_fetch_add(&heard[NEWS_WRONG], 1);
}

static int setup(void **state)
{
    static int number;
    struct fixture *f = calloc(1, sizeof(*f));

    fake_reset();
    for (int news = 0; news < NEWS_COUNT; news++)
        atomic_store(&heard[news], 0);
    (void)snprintf(f->path, sizeof(f->path), "/tmp/icms-nixl-test-%d-%d.sock", (int)getpid(),
                   number++);
    f->agent = fake_agent_start();
    f->socket = fake_socket_start(f->agent, f->path);
    if (READ(NIXL_ICMS, &f->settings, {"volume", "kv"}) != ICMS_OK)
        return -1;
    (void)snprintf(f->settings.connection, sizeof(f->settings.connection), "unix:%s", f->path);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    fake_reset();
    nixl_tier_close(&f->tier);
    if (f->socket != NULL)
        fake_socket_stop(&f->socket);
    agent_stop(f->agent);
    agent_free(&f->agent);
    free(f);
    return 0;
}

/* Opens the tier with the fixture's settings. */
static struct nixl_tier *tier_of(struct fixture *f)
{
    if (nixl_tier_open(&f->settings, hear, why, sizeof(why), &f->tier) != ICMS_OK)
        fail_msg("%s", why);
    return f->tier;
}

static struct icms_key key_of(uint64_t number)
{
    struct icms_key key;

    icms_key_from_name(&number, sizeof(number), &key);
    return key;
}

/* A transfer of count blocks with keys from first on, in memory. */
static struct nixl_xfer *xfer_of(struct nixl_tier *tier, bool store, uint64_t first, size_t count,
                                 uint8_t *memory)
{
    struct nixl_xfer *xfer = nixl_xfer_new(tier, store, count);

    assert_non_null(xfer);
    for (size_t i = 0; i < count; i++) {
        struct icms_key key = key_of(first + i);

        nixl_xfer_set(xfer, i, &key, memory + i * BLOCK_BYTES, BLOCK_BYTES);
    }
    return xfer;
}

/* Polls until it is over. */
static struct nixl_outcome xfer_wait(const struct nixl_xfer *xfer)
{
    struct nixl_outcome outcome = {.err = ICMS_OK};

    for (int i = 0; !nixl_xfer_over(xfer, &outcome); i++) {
        assert_true(i < 30000);
        (void)usleep(1000);
    }
    return outcome;
}

static struct nixl_outcome xfer_run(struct nixl_tier *tier, bool store, uint64_t first,
                                    size_t count, uint8_t *memory)
{
    struct nixl_xfer *xfer = xfer_of(tier, store, first, count, memory);
    struct nixl_outcome outcome;

    assert_int_equal(nixl_xfer_post(xfer), ICMS_OK);
    outcome = xfer_wait(xfer);
    nixl_xfer_free(&xfer);
    return outcome;
}

static uint8_t *memory_of(size_t count, uint8_t seed)
{
    uint8_t *memory = malloc(count * BLOCK_BYTES);

    assert_non_null(memory);
    for (size_t i = 0; i < count * BLOCK_BYTES; i++)
        memory[i] = (uint8_t)(seed + i / BLOCK_BYTES * 31 + i * 7);
    return memory;
}

static void test_what_was_stored_is_found_and_loaded(void **state)
{
    struct nixl_tier *tier = tier_of(*state);
    uint8_t *in = memory_of(5, 1), *out = memory_of(5, 99), found[6];
    struct icms_key keys[6];

    for (uint64_t i = 0; i < 6; i++)
        keys[i] = key_of(i);
    assert_int_equal(nixl_tier_value_bytes_max(tier), 65536);
    assert_int_equal(nixl_tier_query(tier, keys, 6, found), ICMS_OK);
    assert_memory_equal(found, "\0\0\0\0\0\0", 6);
    assert_int_equal(xfer_run(tier, true, 0, 5, in).err, ICMS_OK);
    assert_int_equal(xfer_run(tier, false, 0, 5, out).err, ICMS_OK);
    assert_memory_equal(in, out, (size_t)5 * BLOCK_BYTES);
    assert_int_equal(nixl_tier_query(tier, keys, 6, found), ICMS_OK);
    assert_memory_equal(found, "\1\1\1\1\1\0", 6);
    free(in);
    free(out);
}

/* A key with the same 16 bytes and another digest: a query takes it for the one that is stored, a
 * READ does not, and says why; nor does it read as zeros. */
static void test_another_block_of_the_same_16_bytes_is_not_read(void **state)
{
    struct fixture *f = *state;
    uint8_t *in = memory_of(1, 1), *out = memory_of(1, 99), found = 0;
    struct icms_key twin = key_of(0);
    struct nixl_outcome outcome;
    struct nixl_tier *tier;
    struct nixl_xfer *load;

    f->settings.absent_is_zeros = true;
    tier = tier_of(f);
    twin.digest[ICMS_DIGEST_BYTES - 1] ^= 1;
    assert_int_equal(xfer_run(tier, true, 0, 1, in).err, ICMS_OK);
    assert_int_equal(nixl_tier_query(tier, &twin, 1, &found), ICMS_OK);
    assert_int_equal(found, 1);
    load = xfer_of(tier, false, 0, 1, out);
    nixl_xfer_set(load, 0, &twin, out, BLOCK_BYTES);
    assert_int_equal(nixl_xfer_post(load), ICMS_OK);
    outcome = xfer_wait(load);
    assert_int_equal(outcome.err, ICMS_MISS);
    assert_int_equal(outcome.reason, ICMS_MISS_COLLISION);
    nixl_xfer_free(&load);
    assert_int_equal(xfer_run(tier, false, 0, 1, out).err, ICMS_OK);
    assert_memory_equal(in, out, BLOCK_BYTES);
    free(in);
    free(out);
}

/* "Absent" is an answer; that there is none is an error, and nothing is said of any key. */
static void test_a_question_without_an_answer_is_an_error(void **state)
{
    struct fixture *f = *state;
    struct nixl_tier *tier = tier_of(f);
    struct icms_key keys[2] = {key_of(1), key_of(2)};
    uint8_t found[2] = {7, 7};

    for (size_t count = 1; count <= 2; count++) {
        atomic_store(&fake.status, ICMS_BUSY);
        assert_int_equal(nixl_tier_query(tier, keys, count, found), ICMS_BUSY);
        atomic_store(&fake.status, ICMS_OK);
        assert_memory_equal(found, "\7\7", 2);
    }
    keys[1].length = 0;
    assert_int_equal(nixl_tier_query(tier, keys, 2, found), ICMS_KEY_SIZE);
    assert_memory_equal(found, "\7\7", 2);
}

static void test_a_question_ends_by_the_deadline(void **state)
{
    struct fixture *f = *state;
    struct icms_key key = key_of(1);
    uint8_t found = 7;

    f->settings.load_deadline_ms = 0; /* it has passed when the question begins */
    assert_int_equal(nixl_tier_query(tier_of(f), &key, 1, &found), ICMS_DEADLINE);
    assert_int_equal(found, 7);
}

static void test_a_transfer_can_be_posted_again(void **state)
{
    struct nixl_tier *tier = tier_of(*state);
    uint8_t *in = memory_of(2, 1), *out = memory_of(2, 99);
    struct nixl_xfer *store = xfer_of(tier, true, 0, 2, in),
                     *load = xfer_of(tier, false, 0, 2, out);
    struct nixl_outcome outcome;

    assert_false(nixl_xfer_over(store, &outcome));
    for (int i = 0; i < 3; i++) {
        in[0] = (uint8_t)i;
        assert_int_equal(nixl_xfer_post(store), ICMS_OK);
        assert_int_equal(xfer_wait(store).err, ICMS_OK);
        assert_int_equal(nixl_xfer_post(load), ICMS_OK);
        assert_int_equal(xfer_wait(load).err, ICMS_OK);
        assert_memory_equal(in, out, (size_t)2 * BLOCK_BYTES);
    }
    atomic_store(&fake.swallow, true);
    assert_int_equal(nixl_xfer_post(store), ICMS_OK);
    assert_true(nixl_xfer_under_way(store));
    assert_int_equal(nixl_xfer_post(store), ICMS_BUSY);
    atomic_store(&fake.swallow, false);
    assert_int_equal(xfer_wait(store).err, ICMS_OK);
    nixl_xfer_free(&store);
    nixl_xfer_free(&load);
    free(in);
    free(out);
}

/* As LMCache's pool of names does: there are more chunks than names, and a name that is free again
 * gets another chunk. What is loaded is the last chunk of each name. */
static void test_a_pool_has_fewer_names_than_chunks(void **state)
{
    enum { NAMES = 4, CHUNKS = 14 };
    struct nixl_tier *tier = tier_of(*state);
    uint8_t *chunks = memory_of(CHUNKS, 1), *out = memory_of(NAMES, 99);

    for (uint64_t i = 0; i < CHUNKS; i++) {
        uint8_t *chunk = chunks + i * BLOCK_BYTES;

        assert_int_equal(xfer_run(tier, true, i % NAMES, 1, chunk).err, ICMS_OK);
        assert_int_equal(xfer_run(tier, false, i % NAMES, 1, out).err, ICMS_OK);
        assert_memory_equal(out, chunk, BLOCK_BYTES);
    }
    assert_int_equal(xfer_run(tier, false, 0, NAMES, out).err, ICMS_OK);
    for (uint64_t i = CHUNKS - NAMES; i < CHUNKS; i++)
        assert_memory_equal(out + i % NAMES * BLOCK_BYTES, chunks + i * BLOCK_BYTES, BLOCK_BYTES);
    free(chunks);
    free(out);
}

static void test_a_hole_fails_the_transfer_and_the_others_arrive(void **state)
{
    struct nixl_tier *tier = tier_of(*state);
    uint8_t *in = memory_of(5, 1), *out = memory_of(5, 99);
    struct nixl_outcome outcome;

    assert_int_equal(xfer_run(tier, true, 0, 2, in).err, ICMS_OK);
    assert_int_equal(xfer_run(tier, true, 3, 2, in + (size_t)3 * BLOCK_BYTES).err, ICMS_OK);
    outcome = xfer_run(tier, false, 0, 5, out);
    assert_int_equal(outcome.err, ICMS_MISS);
    assert_int_equal(outcome.reason, ICMS_MISS_ABSENT);
    assert_int_equal(outcome.failed, 1);
    assert_int_equal(outcome.block, 2);
    assert_memory_equal(in, out, (size_t)2 * BLOCK_BYTES);
    assert_memory_equal(in + (size_t)3 * BLOCK_BYTES, out + (size_t)3 * BLOCK_BYTES,
                        (size_t)2 * BLOCK_BYTES);
    free(in);
    free(out);
}

static void test_a_hole_may_read_as_zeros(void **state)
{
    struct fixture *f = *state;
    uint8_t *in = memory_of(2, 1), *out = memory_of(2, 99);
    static const uint8_t zeros[BLOCK_BYTES];

    f->settings.absent_is_zeros = true;
    (void)tier_of(f);
    assert_int_equal(xfer_run(f->tier, true, 1, 1, in + BLOCK_BYTES).err, ICMS_OK);
    assert_int_equal(xfer_run(f->tier, false, 0, 2, out).err, ICMS_OK);
    assert_memory_equal(out, zeros, BLOCK_BYTES);
    assert_memory_equal(out + BLOCK_BYTES, in + BLOCK_BYTES, BLOCK_BYTES);
    /* What is there and cannot be had is not "not there". */
    atomic_store(&fake.status, ICMS_IO);
    assert_int_equal(xfer_run(f->tier, false, 7, 1, out).err, ICMS_IO);
    free(in);
    free(out);
}

static void test_a_value_of_another_size_is_an_error(void **state)
{
    struct nixl_tier *tier = tier_of(*state);
    uint8_t *memory = memory_of(2, 1);
    struct icms_key key = key_of(1);
    struct nixl_xfer *xfer = nixl_xfer_new(tier, false, 1);
    struct nixl_outcome outcome;

    assert_int_equal(xfer_run(tier, true, 1, 1, memory).err, ICMS_OK);
    for (int i = -1; i <= 1; i += 2) {
        nixl_xfer_set(xfer, 0, &key, memory, (uint64_t)(BLOCK_BYTES + i));
        assert_int_equal(nixl_xfer_post(xfer), ICMS_OK);
        outcome = xfer_wait(xfer);
        assert_int_equal(outcome.err, ICMS_VALUE_SIZE);
        assert_int_equal(outcome.bytes, BLOCK_BYTES);
    }
    nixl_xfer_free(&xfer);
    free(memory);
}

static void test_no_more_blocks_are_with_the_tier_than_allowed(void **state)
{
    struct fixture *f = *state;
    uint8_t *in = memory_of(9, 1), *out = memory_of(9, 99);
    struct nixl_xfer *first, *second;

    f->settings.blocks_max = 2;
    f->settings.load_deadline_ms = 60000;
    (void)tier_of(f);
    assert_int_equal(xfer_run(f->tier, true, 0, 9, in).err, ICMS_OK);
    assert_int_equal(atomic_load(&fake.puts), 9);
    atomic_store(&fake.forget, true);
    assert_int_equal(xfer_run(f->tier, true, 100, 1, in).err, ICMS_OK);
    atomic_store(&fake.forget, false);
    atomic_store(&fake.swallow, true);
    first = xfer_of(f->tier, false, 0, 9, out);
    second = xfer_of(f->tier, false, 0, 1, out);
    assert_int_equal(nixl_xfer_post(first), ICMS_OK);
    assert_int_equal(nixl_xfer_post(second), ICMS_OK);
    (void)usleep(100000);
    assert_true(nixl_xfer_under_way(first) && nixl_xfer_under_way(second));
    atomic_store(&fake.swallow, false);
    assert_int_equal(xfer_wait(second).err, ICMS_OK);
    assert_int_equal(xfer_wait(first).err, ICMS_OK);
    assert_memory_equal(in, out, (size_t)9 * BLOCK_BYTES);
    nixl_xfer_free(&first);
    nixl_xfer_free(&second);
    free(in);
    free(out);
}

static void test_a_silent_agent_ends_by_the_deadline(void **state)
{
    struct fixture *f = *state;
    uint8_t *out = memory_of(3, 99);
    struct nixl_xfer *started, *waiting;

    f->settings.load_deadline_ms = 100;
    f->settings.blocks_max = 2;
    (void)tier_of(f);
    atomic_store(&fake.mute, true);
    started = xfer_of(f->tier, false, 0, 2, out);
    waiting = xfer_of(f->tier, false, 2, 1, out);
    assert_int_equal(nixl_xfer_post(started), ICMS_OK);
    assert_int_equal(nixl_xfer_post(waiting), ICMS_OK);
    assert_int_equal(xfer_wait(waiting).err, ICMS_DEADLINE);
    assert_int_equal(xfer_wait(started).reason, ICMS_MISS_DEADLINE);
    nixl_xfer_free(&started);
    nixl_xfer_free(&waiting);
    free(out);
}

static void test_an_agent_that_died_is_an_error_and_its_successor_is_found(void **state)
{
    struct fixture *f = *state;
    uint8_t *memory = memory_of(1, 1);

    f->settings.load_deadline_ms = 500;
    (void)tier_of(f);
    assert_int_equal(xfer_run(f->tier, true, 0, 1, memory).err, ICMS_OK);
    fake_socket_stop(&f->socket);
    assert_int_equal(xfer_run(f->tier, false, 0, 1, memory).err, ICMS_PEER_DOWN);
    f->socket = fake_socket_start(f->agent, f->path);
    for (int i = 0; xfer_run(f->tier, false, 0, 1, memory).err != ICMS_OK; i++) {
        assert_true(i < 1000);
        (void)usleep(10000);
    }
    free(memory);
}

static void test_nothing_is_written_after_a_transfer_was_freed(void **state)
{
    struct fixture *f = *state;
    uint8_t *in = memory_of(4, 1), *out = memory_of(4, 99), *before = memory_of(4, 99);
    struct nixl_xfer *xfer;

    f->settings.load_deadline_ms = 300;
    (void)tier_of(f);
    assert_int_equal(xfer_run(f->tier, true, 0, 4, in).err, ICMS_OK);
    for (int mute = 0; mute < 2; mute++) {
        atomic_store(mute ? &fake.mute : &fake.swallow, true);
        xfer = xfer_of(f->tier, false, 0, 4, out);
        assert_int_equal(nixl_xfer_post(xfer), ICMS_OK);
        (void)usleep(20000);
        memcpy(before, out, (size_t)4 * BLOCK_BYTES);
        nixl_xfer_free(&xfer);
        assert_null(xfer);
        atomic_store(mute ? &fake.mute : &fake.swallow, false);
        (void)usleep(50000);
        assert_memory_equal(out, before, (size_t)4 * BLOCK_BYTES);
    }
    free(in);
    free(out);
    free(before);
}

static void test_closing_ends_what_is_under_way(void **state)
{
    struct fixture *f = *state;
    uint8_t *memory = memory_of(4, 1);

    f->settings.store_deadline_ms = 300;
    for (unsigned round = 0; round < 20; round++) {
        struct nixl_xfer *xfer;

        (void)tier_of(f);
        atomic_store(&fake.swallow, round == 0);
        xfer = xfer_of(f->tier, true, 0, 4, memory);
        if (round % 2 == 1)
            (void)usleep(2000); /* the thread sleeps by now */
        assert_int_equal(nixl_xfer_post(xfer), ICMS_OK);
        nixl_tier_close(&f->tier);
        assert_null(f->tier);
        nixl_xfer_free(&xfer);
        fake_socket_stop(&f->socket); /* it takes few clients in its life */
        f->socket = fake_socket_start(f->agent, f->path);
    }
    free(memory);
}

static void test_a_wrong_tier_is_refused_when_it_is_opened(void **state)
{
    struct fixture *f = *state;

    (void)snprintf(f->settings.volume, sizeof(f->settings.volume), "nosuch");
    refused(nixl_tier_open(&f->settings, hear, why, sizeof(why), &f->tier), "nosuch");
    (void)snprintf(f->settings.volume, sizeof(f->settings.volume), "kv");
    f->settings.uuid[3] = 1;
    refused(nixl_tier_open(&f->settings, hear, why, sizeof(why), &f->tier), "another UUID");
    f->settings.uuid[3] = 0;
    (void)snprintf(f->settings.connection, sizeof(f->settings.connection), "pod:/nonexistent");
    refused(nixl_tier_open(&f->settings, hear, why, sizeof(why), &f->tier), "/nonexistent");
    assert_null(f->tier);
}

/* Waits until so much was said. */
static void wait_heard(enum news news, int times)
{
    for (int i = 0; atomic_load(&heard[news]) < times; i++) {
        assert_true(i < 30000);
        (void)usleep(1000);
    }
}

static void test_an_agent_that_comes_later_is_used(void **state)
{
    struct fixture *f = *state;
    uint8_t *in = memory_of(2, 1), *out = memory_of(2, 2), found;
    struct icms_key key = key_of(0);

    fake_socket_stop(&f->socket);
    (void)tier_of(f);
    wait_heard(NEWS_ABSENT, 1);
    assert_true(nixl_tier_value_bytes_max(f->tier) == UINT64_MAX);
    assert_int_equal(nixl_tier_query(f->tier, &key, 1, &found), ICMS_PEER_DOWN);
    assert_int_equal(xfer_run(f->tier, true, 0, 2, in).err, ICMS_PEER_DOWN);
    assert_int_equal(xfer_run(f->tier, false, 0, 2, out).err, ICMS_PEER_DOWN);
    f->socket = fake_socket_start(f->agent, f->path);
    wait_heard(NEWS_THERE, 1);
    assert_int_equal(nixl_tier_value_bytes_max(f->tier), 65536);
    assert_int_equal(xfer_run(f->tier, true, 0, 2, in).err, ICMS_OK);
    assert_int_equal(xfer_run(f->tier, false, 0, 2, out).err, ICMS_OK);
    assert_memory_equal(in, out, 2 * BLOCK_BYTES);
    assert_int_equal(heard[NEWS_ABSENT], 1);
    assert_int_equal(heard[NEWS_WRONG], 0);
    free(in);
    free(out);
}

static void test_an_agent_that_comes_later_and_is_wrong_is_told(void **state)
{
    struct fixture *f = *state;
    uint8_t *in = memory_of(1, 1), found;
    struct icms_key key = key_of(0);

    fake_socket_stop(&f->socket);
    f->settings.uuid[3] = 1;
    (void)tier_of(f);
    wait_heard(NEWS_ABSENT, 1);
    f->socket = fake_socket_start(f->agent, f->path);
    wait_heard(NEWS_THERE, 1);
    assert_int_equal(xfer_run(f->tier, true, 0, 1, in).err, ICMS_CONFIG);
    assert_int_equal(nixl_tier_query(f->tier, &key, 1, &found), ICMS_CONFIG);
    assert_int_equal(heard[NEWS_WRONG], 1);
    free(in);
}

static void test_closing_does_not_wait_for_an_agent(void **state)
{
    struct fixture *f = *state;

    fake_socket_stop(&f->socket);
    for (int i = 0; i < 20; i++) {
        (void)tier_of(f);
        wait_heard(NEWS_ABSENT, i + 1);
        nixl_tier_close(&f->tier);
    }
}

static void test_a_child_of_fork_is_told(void **state)
{
    struct nixl_tier *tier = tier_of(*state);
    uint8_t *memory = memory_of(1, 1), found;
    struct nixl_xfer *xfer = xfer_of(tier, true, 0, 1, memory);
    struct icms_key key = key_of(0);
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        bool told = nixl_xfer_post(xfer) == ICMS_FORKED &&
                    nixl_tier_query(tier, &key, 1, &found) == ICMS_FORKED;

        nixl_tier_close(&tier);
        _exit(told ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(nixl_xfer_post(xfer), ICMS_OK);
    assert_int_equal(xfer_wait(xfer).err, ICMS_OK);
    nixl_xfer_free(&xfer);
    free(memory);
}

/* ---- threads -------------------------------------------------------------------------------- */

#define WORKERS       4
#define WORKER_ROUNDS 60
#define WORKER_BLOCKS 3

struct worker {
    struct nixl_tier *tier;
    uint64_t first;       /* its keys                       */
    unsigned wrong, hits; /* bytes that differ, loads that came */
    pthread_t thread;
};

/* Stores, loads, asks, and lets go of transfers in the middle. */
static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    uint8_t *in = memory_of(WORKER_BLOCKS, (uint8_t)worker->first);
    uint8_t *out = memory_of(WORKER_BLOCKS, 0), found[WORKER_BLOCKS];
    struct icms_key keys[WORKER_BLOCKS];

    for (uint64_t i = 0; i < WORKER_BLOCKS; i++)
        keys[i] = key_of(worker->first + i);
    for (int round = 0; round < WORKER_ROUNDS; round++) {
        bool store = round % 3 == 0;
        struct nixl_xfer *xfer =
            xfer_of(worker->tier, store, worker->first, WORKER_BLOCKS, store ? in : out);

        if (nixl_xfer_post(xfer) != ICMS_OK)
            worker->wrong++;
        if (round % 7 != 5 && xfer_wait(xfer).err == ICMS_OK && !store) {
            worker->hits++;
            if (memcmp(in, out, (size_t)WORKER_BLOCKS * BLOCK_BYTES) != 0)
                worker->wrong++;
        }
        nixl_xfer_free(&xfer);
        memset(out, round, (size_t)WORKER_BLOCKS * BLOCK_BYTES);
        if (nixl_tier_query(worker->tier, keys, WORKER_BLOCKS, found) != ICMS_OK)
            worker->wrong++;
    }
    free(in);
    free(out);
    return NULL;
}

static void test_threads_share_a_tier(void **state)
{
    struct fixture *f = *state;
    struct worker workers[WORKERS];

    f->settings.blocks_max = 8;
    f->settings.load_deadline_ms = f->settings.store_deadline_ms = 60000;
    (void)tier_of(f);
    atomic_store(&fake.delay_us, 100);
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.tier = f->tier, .first = (uint64_t)i * WORKER_BLOCKS};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].wrong, 0);
        assert_true(workers[i].hits > 0);
    }
}

/* ---- memory of a GPU ------------------------------------------------------------------------- */

#define VRAM_BYTES ((size_t)16 * BLOCK_BYTES)

static const struct fake_device *gpu;

static void vram_write(uint64_t address, size_t count, uint8_t seed)
{
    uint8_t *memory = memory_of(count, seed);

    gpu->write(address, memory, count * BLOCK_BYTES);
    free(memory);
}

static void vram_is(uint64_t address, size_t count, uint8_t seed)
{
    uint8_t *wanted = memory_of(count, seed), *got = memory_of(count, 0);

    gpu->read(address, got, count * BLOCK_BYTES);
    assert_memory_equal(got, wanted, count * BLOCK_BYTES);
    free(wanted);
    free(got);
}

static void *vram(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static void test_memory_of_a_gpu_is_stored_and_loaded(void **state)
{
    struct nixl_tier *tier = tier_of(*state);
    uint64_t address = gpu->alloc(gpu->context(0), VRAM_BYTES);
    struct nixl_memory *whole = NULL, *part = NULL, *none = NULL;
    uint8_t *host = memory_of(1, 3);

    assert_int_equal(nixl_memory_register(tier, host, BLOCK_BYTES, why, sizeof(why), &none),
                     ICMS_INVALID);
    refused(ICMS_INVALID, "is not CUDA memory");
    assert_int_equal(xfer_run(tier, true, 0, 2, vram(address)).err, ICMS_NOT_REGISTERED);
    assert_int_equal(
        nixl_memory_register(tier, vram(address), VRAM_BYTES, why, sizeof(why), &whole), ICMS_OK);
    assert_int_equal(nixl_memory_register(tier, vram(address + BLOCK_BYTES), BLOCK_BYTES, why,
                                          sizeof(why), &part),
                     ICMS_OK);
    vram_write(address, 4, 9);
    assert_int_equal(xfer_run(tier, true, 0, 4, vram(address)).err, ICMS_OK);
    assert_int_equal(nixl_memory_unregister(tier, &whole), ICMS_OK);
    assert_null(whole);
    assert_int_equal(xfer_run(tier, false, 0, 4, vram(address + 8 * BLOCK_BYTES)).err, ICMS_OK);
    vram_is(address + 8 * BLOCK_BYTES, 4, 9); /* the part keeps it */
    assert_int_equal(nixl_memory_unregister(tier, &part), ICMS_OK);
    assert_int_equal(xfer_run(tier, false, 0, 4, vram(address)).err, ICMS_NOT_REGISTERED);
    gpu->alloc_free(address);
    free(host);
}

static void test_memory_of_a_gpu_waits_for_the_agent(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(gpu->context(0), VRAM_BYTES);
    struct nixl_memory *memory = NULL, *wrong = NULL;
    struct nixl_tier *tier;

    fake_socket_stop(&f->socket);
    tier = tier_of(f);
    vram_write(address, 2, 5);
    assert_int_equal(
        nixl_memory_register(tier, vram(address), VRAM_BYTES, why, sizeof(why), &memory), ICMS_OK);
    assert_int_equal(nixl_memory_register(tier, f, 100, why, sizeof(why), &wrong), ICMS_INVALID);
    assert_int_equal(xfer_run(tier, true, 0, 2, vram(address)).err, ICMS_PEER_DOWN);
    f->socket = fake_socket_start(f->agent, f->path);
    wait_heard(NEWS_THERE, 1);
    assert_int_equal(xfer_run(tier, true, 0, 2, vram(address)).err, ICMS_OK);
    assert_int_equal(xfer_run(tier, false, 0, 2, vram(address + 4 * BLOCK_BYTES)).err, ICMS_OK);
    vram_is(address + 4 * BLOCK_BYTES, 2, 5);
    nixl_tier_close(&f->tier); /* it is forgotten with it */
    gpu->alloc_free(address);
    assert_int_equal(gpu->count(FAKE_DEVICE_PINS), 0);
}

int main(void)
{
    const struct CMUnitTest settings[] = {
        cmocka_unit_test(test_defaults_can_be_handed_back),
        cmocka_unit_test(test_parameters_are_taken_as_written),
        cmocka_unit_test(test_wrong_parameters_are_refused),
        cmocka_unit_test(test_devices_of_cmx_stand_for_what_the_table_says),
        cmocka_unit_test(test_names_become_keys),
        cmocka_unit_test(test_distinct_names_have_distinct_keys),
        cmocka_unit_test(test_hashed_keys_are_those_of_names),
    };
#define XFER_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest transfers[] = {
        XFER_TEST(test_what_was_stored_is_found_and_loaded),
        XFER_TEST(test_another_block_of_the_same_16_bytes_is_not_read),
        XFER_TEST(test_a_question_without_an_answer_is_an_error),
        XFER_TEST(test_a_question_ends_by_the_deadline),
        XFER_TEST(test_a_transfer_can_be_posted_again),
        XFER_TEST(test_a_pool_has_fewer_names_than_chunks),
        XFER_TEST(test_a_hole_fails_the_transfer_and_the_others_arrive),
        XFER_TEST(test_a_hole_may_read_as_zeros),
        XFER_TEST(test_a_value_of_another_size_is_an_error),
        XFER_TEST(test_no_more_blocks_are_with_the_tier_than_allowed),
        XFER_TEST(test_a_silent_agent_ends_by_the_deadline),
        XFER_TEST(test_an_agent_that_died_is_an_error_and_its_successor_is_found),
        XFER_TEST(test_nothing_is_written_after_a_transfer_was_freed),
        XFER_TEST(test_closing_ends_what_is_under_way),
        XFER_TEST(test_a_wrong_tier_is_refused_when_it_is_opened),
        XFER_TEST(test_an_agent_that_comes_later_is_used),
        XFER_TEST(test_an_agent_that_comes_later_and_is_wrong_is_told),
        XFER_TEST(test_closing_does_not_wait_for_an_agent),
        XFER_TEST(test_a_child_of_fork_is_told),
        XFER_TEST(test_threads_share_a_tier),
        XFER_TEST(test_memory_of_a_gpu_is_stored_and_loaded),
        XFER_TEST(test_memory_of_a_gpu_waits_for_the_agent),
    };
    int failed;

    gpu = fake_device_load("libcuda.so.1");
    assert_non_null(gpu);
    failed = cmocka_run_group_tests(settings, NULL, NULL);

    return failed + cmocka_run_group_tests(transfers, NULL, NULL);
}
