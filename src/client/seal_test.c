/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encrypted volumes of libicms, with an agent that has no key and may lie: what it is shown, what
 * it can make of it, and what of that a get believes.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/crc.h"
#include "client/client_int.h"
#include "client/client_rig.h"
#include "wire/sealed.h"

#define KIB      ((uint32_t)1024)
#define VAULT    "vault"
#define PLAIN_MB ((uint32_t)1 << 20)

/* Of a rig, and files of keys in a folder of their own. */
struct fixture {
    struct client_rig rig;
    struct icms_volume *vault;
    char folder[64], list[96];
};

static void file_write(const struct fixture *f, const char *name, const char *text)
{
    char path[128];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s", f->folder, name);
    (void)unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(close(fd), 0);
}

/* The list of keys of a volume: ids in this order; the file of id N is key-N. */
static void list_write(const struct fixture *f, const char *volume, const int *ids, size_t count)
{
    char text[1024];
    size_t at = (size_t)snprintf(text, sizeof(text), "volumes:\n  - name: %s\n    keys:\n", volume);

    for (size_t i = 0; i < count; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at,
                               "      - id: %d\n        file: %s/key-%d\n", ids[i], f->folder,
                               ids[i]);
    file_write(f, "keys.yaml", text);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct icms_options options;
    const int first[] = {1};
    char text[80];

    assert_non_null(f);
    *state = f;
    (void)snprintf(f->folder, sizeof(f->folder), "/tmp/icms-seal-test-XXXXXX");
    if (mkdtemp(f->folder) == NULL)
        return -1;
    (void)snprintf(f->list, sizeof(f->list), "%s/keys.yaml", f->folder);
    for (int id = 1; id <= 3; id++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "key-%d", id);
        for (int i = 0; i < 64; i++)
            text[i] = "0123456789abcdef"[(i * id + i / 7) % 16];
        text[64] = 0;
        file_write(f, name, text);
    }
    list_write(f, VAULT, first, 1);
    icms_options_init(&options);
    options.load_deadline_ms = options.store_deadline_ms = RIG_GRACE_MS;
    options.buffer_bytes = (uint64_t)4 << 20;
    options.keys = f->list;
    if (client_rig_open(&f->rig, &options) != 0)
        return -1;
    return icms_volume_open(f->rig.icms, VAULT, text, sizeof(text), &f->vault) == ICMS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    static const char *const names[] = {"/keys.yaml", "/key-1", "/key-2", "/key-3", ""};
    struct fixture *f = *state;
    char path[128];

    client_rig_close(&f->rig);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", f->folder, names[i]);
        (void)remove(path);
    }
    free(f);
    return 0;
}

/* Another handle on the same agent; keys NULL: without. */
static struct icms *another(const struct fixture *f, const char *keys)
{
    struct icms_options options;
    struct icms *icms = NULL;
    char why[256] = "";

    icms_options_init(&options);
    options.load_deadline_ms = options.store_deadline_ms = RIG_GRACE_MS;
    options.keys = keys == NULL ? "" : keys;
    if (icms_open(f->rig.where, &options, why, sizeof(why), &icms) != ICMS_OK)
        fail_msg("%s", why);
    return icms;
}

static void volume_refused(struct icms *icms, const char *name, icms_err err, const char *word)
{
    struct icms_volume *volume = NULL;
    char why[512] = "";

    assert_int_equal(icms_volume_open(icms, name, why, sizeof(why), &volume), err);
    assert_null(volume);
    if (strstr(why, word) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", word, why);
}

static uint64_t counted(const struct icms_volume *volume, enum shm_count count)
{
    return atomic_load(
        &volume->icms->link->rings[0].counts[client_view(volume)->arena.volume][count]);
}

static void wait_suspects(unsigned wanted)
{
    for (int tries = 0; atomic_load(&fake.suspects) < wanted && tries < RIG_GRACE_MS; tries++)
        usleep(1000);
    assert_int_equal(atomic_load(&fake.suspects), wanted);
}

/* A get that has to miss for this reason, and leaves nothing but zeros. */
static void get_misses(struct icms_volume *volume, uint64_t number, uint32_t bytes,
                       enum icms_miss reason)
{
    uint8_t *data = malloc(bytes);
    struct icms_block block = {.key = rig_key(number), .data = data, .bytes = bytes};

    memset(data, 0x5a, bytes);
    assert_int_equal(icms_get(volume, &block, 1, NULL), ICMS_MISS);
    assert_int_equal(block.status, ICMS_MISS);
    assert_int_equal(block.reason, reason);
    assert_int_equal(block.source, ICMS_SOURCE_NONE);
    if (reason != ICMS_MISS_NO_KEY) /* where nothing was decrypted */
        for (uint32_t i = 0; i < bytes; i++)
            if (data[i] != 0 && data[i] != 0x5a)
                fail_msg("byte %u of a block that does not open is 0x%02x", i, data[i]);
    free(data);
}

static void every_size_comes_back(void **state)
{
    static const uint32_t sizes[] = {
        1, 15, 16, 64 * KIB, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1, PLAIN_MB, FAKE_VAULT_BYTES};
    struct fixture *f = *state;
    struct icms_volume_info info;
    struct icms_block block;

    icms_volume_info(f->vault, &info);
    assert_int_equal(info.value_bytes_max, FAKE_VAULT_BYTES);
    assert_int_equal(info.encrypted, 1);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        assert_int_equal(rig_put_one(f->vault, i, sizes[i]), ICMS_OK);
        assert_int_equal(rig_get_one(f->vault, i, sizes[i], &block), ICMS_OK);
        assert_int_equal(rig_get_one(f->vault, i, sizes[i], &block), ICMS_OK); /* from the arena */
        assert_int_equal(block.source, ICMS_SOURCE_DRAM);
        if (sizes[i] > 1) {
            assert_int_equal(rig_get_one(f->vault, i, sizes[i] - 1, &block), ICMS_VALUE_SIZE);
            assert_int_equal(block.bytes, sizes[i]);
        }
    }
    assert_int_equal(rig_put_one(f->vault, 99, FAKE_VAULT_BYTES + 1), ICMS_VALUE_SIZE);
    assert_int_equal(atomic_load(&fake.suspects), 0);
}

static void the_agent_sees_ciphertext_only(void **state)
{
    static const char marker[] = "a sentence that nobody else may read";
    struct fixture *f = *state;
    struct icms_block block = {.key = rig_key(1)};
    struct icms_lease lease;
    void *buffer = NULL;

    for (int in_buffer = 0; in_buffer < 2; in_buffer++) {
        block.bytes = 100000;
        if (in_buffer) /* of the handle: for others memory that it shares with the agent */
            assert_int_equal(icms_buffer_take(f->rig.icms, block.bytes, &buffer), ICMS_OK);
        block.data = in_buffer ? buffer : malloc(block.bytes);
        for (size_t i = 0; i + sizeof(marker) <= block.bytes; i += sizeof(marker))
            memcpy((char *)block.data + i, marker, sizeof(marker));
        assert_int_equal(icms_put(f->vault, &block, 1, NULL), ICMS_OK);
        assert_int_equal(icms_get(f->vault, &block, 1, NULL), ICMS_OK);
        assert_string_equal(block.data, marker);
        assert_int_equal(icms_lease_take(f->vault, &block.key, NULL, NULL, &lease), ICMS_OK);
        assert_string_equal(lease.data, marker);
        assert_false(fake_agent_memory_has(f->rig.agent, marker, sizeof(marker)));
        icms_lease_give(&lease);
        if (in_buffer)
            icms_buffer_give(f->rig.icms, buffer);
        else
            free(block.data);
    }
    /* The search finds what is there. */
    block.data = malloc(block.bytes);
    memcpy(block.data, marker, sizeof(marker));
    assert_int_equal(icms_put(f->rig.big, &block, 1, NULL), ICMS_OK);
    assert_true(fake_agent_memory_has(f->rig.agent, marker, sizeof(marker)));
    free(block.data);
}

/* Two puts of one value have nothing in common. */
static void no_two_ciphertexts_are_alike(void **state)
{
    enum { BYTES = 64 };
    struct fixture *f = *state;
    const uint32_t sealed = LIMIT_SEALED_HEAD_BYTES + BYTES + 16;
    uint8_t one[LIMIT_SEALED_HEAD_BYTES + BYTES + 16 + LIMIT_TRAILER_BYTES], two[sizeof(one)];
    struct icms_key icms_key = rig_key(1);
    struct key key = client_key(&icms_key);

    assert_int_equal(rig_put_one(f->vault, 1, BYTES), ICMS_OK);
    assert_int_equal(fake_agent_value_take(f->rig.agent, FAKE_VAULT, &key, one, sizeof(one)),
                     sealed);
    assert_int_equal(rig_put_one(f->vault, 1, BYTES), ICMS_OK);
    assert_int_equal(fake_agent_value_take(f->rig.agent, FAKE_VAULT, &key, two, sizeof(two)),
                     sealed);
    assert_memory_not_equal(one, two, LIMIT_SEALED_SALT_BYTES);
    for (uint32_t i = LIMIT_SEALED_HEAD_BYTES; i < sealed; i += 8)
        assert_memory_not_equal(one + i, two + i, 8);
}

/* Damage: of every byte of a small value and its trailer, of some of a large one. The agent is
 * told. */
static void every_flipped_byte_is_a_miss(void **state)
{
    struct fixture *f = *state;
    const uint32_t small = 40, large = 300 * KIB;
    unsigned suspects = 0;

    assert_int_equal(rig_put_one(f->vault, 1, small), ICMS_OK);
    for (uint32_t at = 1; at <= sealed_bytes(small) + LIMIT_TRAILER_BYTES; at++) {
        assert_int_equal(rig_put_one(f->vault, 1, small), ICMS_OK); /* out of the arena */
        atomic_store(&fake.damage, at);
        get_misses(f->vault, 1, small, ICMS_MISS_CHECKSUM);
        atomic_store(&fake.damage, 0);
        wait_suspects(++suspects);
    }
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(rig_put_one(f->vault, 2, large), ICMS_OK);
        atomic_store(&fake.damage,
                     1 + i * (((uint32_t)sealed_bytes(large) + LIMIT_TRAILER_BYTES - 1) / 19));
        get_misses(f->vault, 2, large, ICMS_MISS_CHECKSUM);
        atomic_store(&fake.damage, 0);
        wait_suspects(++suspects);
    }
    assert_int_equal(counted(f->vault, SHM_COUNT_TAG_ERRORS), 0);
    assert_int_equal(rig_put_one(f->vault, 2, large), ICMS_OK);
    assert_int_equal(rig_get_one(f->vault, 2, large, NULL), ICMS_OK);
}

/* What an agent gives out that knows all but the keys: whole by its checksums. */
static void forge(const struct fixture *f, uint64_t number, const uint8_t *sealed, uint32_t bytes,
                  bool encrypted)
{
    uint8_t *value = malloc(bytes + LIMIT_TRAILER_BYTES);
    struct icms_key icms_key = rig_key(number);
    struct key key = client_key(&icms_key);

    memcpy(value, sealed, bytes);
    if (encrypted)
        sealed_trailer_make_encrypted(&client_view(f->vault)->arena.uuid, &key, icms_key.digest,
                                      bytes, crc32c(value, bytes), value + bytes);
    else
        sealed_trailer_make(&client_view(f->vault)->arena.uuid, &key, icms_key.digest, bytes,
                            crc32c(value, bytes), value + bytes);
    fake_agent_value_give(f->rig.agent, FAKE_VAULT, &key, value, bytes);
    free(value);
}

static void what_an_agent_forges_is_a_miss(void **state)
{
    const uint32_t plain = 300 * KIB, bytes = (uint32_t)sealed_bytes(plain);
    const uint32_t piece = (uint32_t)sealed_pieces_end(1);
    struct fixture *f = *state;
    uint8_t *value = malloc(bytes + LIMIT_TRAILER_BYTES), *other = malloc(bytes);
    struct icms_key icms_key = rig_key(1);
    struct key key = client_key(&icms_key);
    struct sealed_head head;
    uint64_t tag_errors = 0;

    assert_int_equal(rig_put_one(f->vault, 1, plain), ICMS_OK);
    assert_int_equal(
        fake_agent_value_take(f->rig.agent, FAKE_VAULT, &key, value, bytes + LIMIT_TRAILER_BYTES),
        bytes);
    assert_int_equal(sealed_head_read(value, &head), ICMS_OK);
    assert_int_equal(head.key_id, 1);
    assert_int_equal(head.length, plain);
    forge(f, 1, value, bytes, true); /* as it was: it does open */
    assert_int_equal(rig_get_one(f->vault, 1, plain, NULL), ICMS_OK);

    for (int bit = 0; bit < 16; bit++) { /* a bit of the text */
        memcpy(other, value, bytes);
        other[LIMIT_SEALED_HEAD_BYTES + bit * 18000] ^= (uint8_t)(1 << bit % 8);
        forge(f, 1, other, bytes, true);
        get_misses(f->vault, 1, plain, ICMS_MISS_CHECKSUM);
        tag_errors++;
    }
    for (uint32_t at = 0; at < LIMIT_SEALED_HEAD_BYTES; at++) { /* the head: all but the key's id */
        if (at >= LIMIT_SEALED_SALT_BYTES && at < LIMIT_SEALED_SALT_BYTES + sizeof(head.key_id))
            continue;
        memcpy(other, value, bytes);
        other[at] ^= 1;
        forge(f, 1, other, bytes, true);
        get_misses(f->vault, 1, plain, ICMS_MISS_CHECKSUM);
        tag_errors++;
    }
    forge(f, 2, value, bytes, true); /* another block's */
    get_misses(f->vault, 2, plain, ICMS_MISS_CHECKSUM);
    forge(f, 1, value, piece, true); /* cut behind a piece */
    get_misses(f->vault, 1, plain, ICMS_MISS_CHECKSUM);
    forge(f, 1, value, bytes - 20, true); /* and inside of one */
    get_misses(f->vault, 1, plain, ICMS_MISS_CHECKSUM);
    tag_errors += 3;
    assert_int_equal(counted(f->vault, SHM_COUNT_TAG_ERRORS), tag_errors);
    assert_int_equal(atomic_load(&fake.suspects), 0); /* whole: nobody deletes it */

    forge(f, 1, value, LIMIT_SEALED_HEAD_BYTES + 16, true); /* a length that no value has */
    get_misses(f->vault, 1, plain, ICMS_MISS_CHECKSUM);
    wait_suspects(1);

    forge(f, 1, value, bytes, false); /* plain, they say */
    get_misses(f->vault, 1, bytes, ICMS_MISS_CHECKSUM);
    wait_suspects(2);
    free(value);
    free(other);
}

static void another_value_of_the_same_16_bytes_is_a_collision(void **state)
{
    struct fixture *f = *state;
    uint8_t data[100];
    struct icms_block block = {.key = rig_key(1), .data = data, .bytes = sizeof(data)};

    assert_int_equal(rig_put_one(f->vault, 1, sizeof(data)), ICMS_OK);
    for (int at = 0; at < ICMS_DIGEST_BYTES; at++) {
        block.key = rig_key(1);
        block.key.digest[at] ^= 2;
        block.bytes = sizeof(data);
        assert_int_equal(icms_get(f->vault, &block, 1, NULL), ICMS_MISS);
        assert_int_equal(block.reason, ICMS_MISS_COLLISION);
    }
    assert_int_equal(atomic_load(&fake.suspects), 0);
}

/* Whatever its length is, and what it would be in this version: nothing is opened. Flipped without
 * the trailer's checksum, the version is damage as any other byte. */
static void a_value_of_another_version_is_left_alone(void **state)
{
    static const uint32_t sizes[] = {1, 40, 300 * KIB};
    struct fixture *f = *state;
    struct icms_block size = {.key = rig_key(1)};
    struct icms_lease lease;
    enum icms_miss reason;
    uint64_t count = 0;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        assert_int_equal(rig_put_one(f->vault, 1, sizes[i]), ICMS_OK);
        atomic_store(&fake.version, SEALED_VERSION + 1);
        get_misses(f->vault, 1, sizes[i], ICMS_MISS_VERSION); /* by message, then from the arena */
        get_misses(f->vault, 1, sizes[i], ICMS_MISS_VERSION);
        get_misses(f->vault, 1, 1, ICMS_MISS_VERSION); /* its length is not known */
        size.bytes = 0;
        assert_int_equal(icms_get(f->vault, &size, 1, NULL), ICMS_MISS);
        assert_int_equal(size.reason, ICMS_MISS_VERSION);
        assert_int_equal(icms_lease_take(f->vault, &size.key, NULL, &reason, &lease), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_VERSION);
        assert_int_equal(counted(f->vault, SHM_COUNT_VERSIONS), count += 5);
        atomic_store(&fake.version, 0);
    }
    forge(f, 1, (const uint8_t *)"short", 5, true); /* nothing that this version has is so short */
    atomic_store(&fake.version, SEALED_VERSION + 1);
    get_misses(f->vault, 1, 1000, ICMS_MISS_VERSION);
    atomic_store(&fake.version, 0);
    assert_int_equal(counted(f->vault, SHM_COUNT_VERSIONS), ++count);
    assert_int_equal(rig_put_one(f->vault, 1, 40), ICMS_OK); /* behind them in the ring */
    assert_int_equal(rig_get_one(f->vault, 1, 40, NULL), ICMS_OK);
    assert_int_equal(atomic_load(&fake.suspects), 0);
    assert_int_equal(counted(f->vault, SHM_COUNT_TAG_ERRORS), 0);

    assert_int_equal(rig_put_one(f->vault, 1, 40), ICMS_OK);
    atomic_store(&fake.damage, (uint32_t)sealed_bytes(40) + 4 + 1);
    get_misses(f->vault, 1, 40, ICMS_MISS_CHECKSUM);
    atomic_store(&fake.damage, 0);
    wait_suspects(1);
    assert_int_equal(counted(f->vault, SHM_COUNT_VERSIONS), count);
}

static void keys_rotate_without_rewriting(void **state)
{
    const int both[] = {2, 1}, second[] = {2}, third[] = {1};
    struct fixture *f = *state;
    struct icms_volume *volume = NULL;
    struct icms *icms;
    char digits[65];

    assert_int_equal(rig_put_one(f->vault, 1, 1000), ICMS_OK);
    list_write(f, VAULT, both, 2);
    icms = another(f, f->list);
    assert_int_equal(icms_volume_open(icms, VAULT, NULL, 0, &volume), ICMS_OK);
    assert_int_equal(rig_get_one(volume, 1, 1000, NULL), ICMS_OK);
    assert_int_equal(rig_put_one(volume, 2, 1000), ICMS_OK); /* under the first one of the list */
    get_misses(f->vault, 2, 1000, ICMS_MISS_NO_KEY);
    assert_int_equal(counted(f->vault, SHM_COUNT_NO_KEYS), 1);
    icms_close(&icms);

    list_write(f, VAULT, second, 1);
    icms = another(f, f->list);
    assert_int_equal(icms_volume_open(icms, VAULT, NULL, 0, &volume), ICMS_OK);
    get_misses(volume, 1, 1000, ICMS_MISS_NO_KEY);
    assert_int_equal(rig_get_one(volume, 2, 1000, NULL), ICMS_OK);
    icms_close(&icms);

    /* The right id and another key. */
    memset(digits, '7', 64);
    digits[64] = 0;
    file_write(f, "key-1", digits);
    list_write(f, VAULT, third, 1);
    icms = another(f, f->list);
    assert_int_equal(icms_volume_open(icms, VAULT, NULL, 0, &volume), ICMS_OK);
    get_misses(volume, 1, 1000, ICMS_MISS_CHECKSUM);
    assert_int_equal(counted(volume, SHM_COUNT_TAG_ERRORS), 1);
    icms_close(&icms);
    assert_int_equal(atomic_load(&fake.suspects), 0);
    assert_int_equal(rig_get_one(f->vault, 1, 1000, NULL), ICMS_OK); /* it is still there */
}

static void plain_and_encrypted_never_mix(void **state)
{
    const int first[] = {1};
    struct fixture *f = *state;
    struct icms *icms = another(f, NULL);

    volume_refused(icms, VAULT, ICMS_NO_KEY, "encrypted");
    icms_close(&icms);
    list_write(f, "big", first, 1);
    icms = another(f, f->list);
    volume_refused(icms, VAULT, ICMS_NO_KEY, "does not have it");
    volume_refused(icms, "big", ICMS_CONFIG, "encrypted: true");
    icms_close(&icms);
    /* An agent that lies about it, either way. */
    list_write(f, VAULT, first, 1);
    fake_agent_encrypted_set(f->rig.agent, FAKE_VAULT, false);
    fake_agent_encrypted_set(f->rig.agent, 0, true);
    icms = another(f, f->list);
    volume_refused(icms, VAULT, ICMS_CONFIG, "not encrypted");
    volume_refused(icms, "kv", ICMS_NO_KEY, "encrypted");
    icms_close(&icms);
    assert_int_equal(rig_put_one(f->vault, 1, 100), ICMS_OK); /* who opened it before goes on */
    fake_agent_encrypted_set(f->rig.agent, FAKE_VAULT, true);
    fake_agent_encrypted_set(f->rig.agent, 0, false);
}

/* The agent that comes back says that the volume is not encrypted: nothing is put there, and calls
 * say what icms_volume_open would. */
static void an_agent_that_comes_back_otherwise_gets_nothing(void **state)
{
    struct fixture *f = *state;
    uint8_t data[100] = {0};
    struct icms_block block = {.key = rig_key(1), .data = data, .bytes = sizeof(data)};
    icms_err err = ICMS_PEER_DOWN;

    assert_int_equal(rig_put_one(f->rig.big, 1, 100), ICMS_OK);
    fake_socket_stop(&f->rig.socket);
    fake_agent_encrypted_set(f->rig.agent, FAKE_VAULT, false);
    f->rig.socket = fake_socket_start(f->rig.agent, f->rig.path);
    assert_int_equal(rig_put_one_soon(f->rig.big, 1, 100), ICMS_OK);
    err = icms_put(f->vault, &block, 1, NULL);
    assert_int_equal(err, ICMS_CONFIG);
    assert_int_equal(icms_get(f->vault, &block, 1, NULL), ICMS_CONFIG);
}

static void leases_are_private_and_bounded(void **state)
{
    struct fixture *f = *state;
    struct icms_lease leases[70];
    struct icms_key key = rig_key(1);
    enum icms_miss reason;
    unsigned count = 0;
    icms_err err = ICMS_OK;
    uint8_t *wanted = malloc(PLAIN_MB);

    rig_fill(wanted, PLAIN_MB, 1);
    assert_int_equal(rig_put_one(f->vault, 1, PLAIN_MB), ICMS_OK);
    while (count < 70 &&
           (err = icms_lease_take(f->vault, &key, NULL, &reason, &leases[count])) == ICMS_OK) {
        assert_int_equal(leases[count].bytes, PLAIN_MB);
        assert_memory_equal(leases[count].data, wanted, PLAIN_MB);
        count++;
    }
    assert_int_equal(err, ICMS_LIMIT);
    assert_int_equal(count, CLIENT_PRIVATE_BYTES / PLAIN_MB);
    assert_int_equal(fake_agent_leases(f->rig.agent), 0); /* the agent's memory is free */
    icms_lease_give(&leases[7]);
    assert_int_equal(icms_lease_take(f->vault, &key, NULL, &reason, &leases[7]), ICMS_OK);
    assert_memory_equal(leases[7].data, wanted, PLAIN_MB);
    for (unsigned i = 0; i < count; i++)
        icms_lease_give(&leases[i]);
    /* A lease that fails gives its memory back. */
    for (unsigned i = 0; i < 70; i++) {
        assert_int_equal(rig_put_one(f->vault, 1, PLAIN_MB), ICMS_OK);
        atomic_store(&fake.damage, 100);
        assert_int_equal(icms_lease_take(f->vault, &key, NULL, &reason, &leases[0]), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_CHECKSUM);
        atomic_store(&fake.damage, 0);
    }
    assert_int_equal(f->rig.icms->crypt->staging.free_count,
                     CLIENT_PRIVATE_BYTES / STAGING_GRANULE);
    free(wanted);
}

struct writer {
    struct fixture *f;
    uint64_t first;
    bool right;
};

static void *write_and_read(void *arg)
{
    struct writer *w = arg;

    w->right = true;
    for (uint64_t i = 0; i < 60; i++) {
        uint32_t bytes = (uint32_t)(1 + (i * 7919) % 70000);

        w->right = w->right && rig_put_one(w->f->vault, w->first + i % 4, bytes) == ICMS_OK &&
                   rig_get_one(w->f->vault, w->first + i % 4, bytes, NULL) == ICMS_OK;
    }
    return NULL;
}

static void threads_share_a_key(void **state)
{
    enum { THREADS = 4 }; /* as many as the volume has slots: each has one leased */
    struct writer writers[THREADS];
    pthread_t threads[THREADS];

    for (uint64_t i = 0; i < THREADS; i++) {
        writers[i] = (struct writer){.f = *state, .first = 100 * i};
        assert_int_equal(pthread_create(&threads[i], NULL, write_and_read, &writers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(writers[i].right);
    }
    assert_int_equal(atomic_load(&((struct fixture *)*state)->rig.icms->crypt->taken), 0);
}

static void a_child_of_fork_has_no_key(void **state)
{
    struct fixture *f = *state;
    struct secret *secret = f->vault->keys->keys[0].secret;
    uint8_t *bytes = secret_bytes(secret), zeros[SEAL_KEY_BYTES] = {0};
    int status = 0;
    pid_t pid;

    assert_memory_not_equal(bytes, zeros, SEAL_KEY_BYTES);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        bool right = memcmp(bytes, zeros, SEAL_KEY_BYTES) == 0;

        icms_volume_close(&f->vault);
        icms_close(&f->rig.icms);
        _exit(right ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(rig_put_one(f->vault, 1, 100), ICMS_OK);
}

/* What is wrong with lists and files of keys is said when the handle or the volume is opened. */
static void wrong_keys_are_refused_in_words(void **state)
{
    const int missing[] = {9};
    struct fixture *f = *state;
    struct icms_options options;
    struct icms *icms = NULL;
    char why[512], path[128];

    icms_options_init(&options);
    options.keys = f->list;
    file_write(f, "keys.yaml", "volumes:\n  - name: vault\n");
    assert_int_equal(icms_open(f->rig.where, &options, why, sizeof(why), &icms), ICMS_CONFIG);
    assert_non_null(strstr(why, "keys.yaml:2"));
    options.keys = "/nonexistent/keys";
    assert_int_equal(icms_open(f->rig.where, &options, why, sizeof(why), &icms), ICMS_NOT_FOUND);
    assert_null(icms);
    list_write(f, VAULT, missing, 1);
    icms = another(f, f->list);
    volume_refused(icms, VAULT, ICMS_NOT_FOUND, "key 9 of volume vault");
    file_write(f, "key-9", "0123");
    volume_refused(icms, VAULT, ICMS_CONFIG, "64 hex digits");
    (void)snprintf(path, sizeof(path), "%s/key-9", f->folder);
    assert_int_equal(chmod(path, 0644), 0);
    volume_refused(icms, VAULT, ICMS_PERMISSION, "0600");
    assert_int_equal(unlink(path), 0);
    icms_close(&icms);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_size_comes_back),
        TEST(the_agent_sees_ciphertext_only),
        TEST(no_two_ciphertexts_are_alike),
        TEST(every_flipped_byte_is_a_miss),
        TEST(what_an_agent_forges_is_a_miss),
        TEST(another_value_of_the_same_16_bytes_is_a_collision),
        TEST(a_value_of_another_version_is_left_alone),
        TEST(keys_rotate_without_rewriting),
        TEST(plain_and_encrypted_never_mix),
        TEST(an_agent_that_comes_back_otherwise_gets_nothing),
        TEST(leases_are_private_and_bounded),
        TEST(threads_share_a_key),
        TEST(a_child_of_fork_has_no_key),
        TEST(wrong_keys_are_refused_in_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
