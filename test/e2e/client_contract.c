/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of icms.h on a real tier: what must hold in a directory, through an agent and with
 * the agent in this process alike.
 *
 * usage: client_contract WHERE      WHERE as icms_open takes it; volume kv, sealed, 8 MiB values
 *
 * Keys are made from the process id and the time, so it can run again on the same tier.
 */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "icms/icms.h"

#define MIB ((size_t)1 << 20)

static const char *contract_where;
static uint64_t contract_salt;

struct fixture {
    struct icms *icms;
    struct icms_volume *kv;
    struct icms_volume_info info;
};

static void open_tier(struct fixture *f)
{
    char why[512] = "";

    if (icms_open(contract_where, NULL, why, sizeof(why), &f->icms) != ICMS_OK ||
        icms_volume_open(f->icms, "kv", why, sizeof(why), &f->kv) != ICMS_OK)
        fail_msg("%s", why);
    icms_volume_info(f->kv, &f->info);
}

static int setup(void **state)
{
    static struct fixture f;

    contract_salt += 1000000;
    open_tier(&f);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    icms_close(&f->icms);
    return 0;
}

static struct icms_key key_of(uint64_t number)
{
    uint8_t digest[ICMS_DIGEST_BYTES] = {0};
    uint64_t salted = contract_salt + number;
    struct icms_key key;

    memcpy(digest, &salted, sizeof(salted));
    memcpy(digest + 8, &number, sizeof(number));
    digest[16] = 1;
    icms_key_from_digest(NULL, digest, &key);
    return key;
}

static void fill(uint8_t *data, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        data[i] = (uint8_t)(seed >> 56);
    }
}

static uint8_t *value_new(uint64_t number, size_t bytes)
{
    uint8_t *data = malloc(bytes);

    assert_non_null(data);
    fill(data, bytes, number);
    return data;
}

static icms_err put_one(struct fixture *f, uint64_t number, size_t bytes,
                        const struct icms_request_options *options)
{
    uint8_t *data = value_new(number, bytes);
    struct icms_block block = {.key = key_of(number), .data = data, .bytes = bytes};
    icms_err err = icms_put(f->kv, &block, 1, options);

    assert_int_equal(err == ICMS_OK, block.status == ICMS_OK);
    free(data);
    return block.status;
}

static icms_err get_one(struct fixture *f, uint64_t number, size_t bytes, enum icms_miss *reason)
{
    uint8_t *data = malloc(bytes), *wanted = value_new(number, bytes);
    struct icms_block block = {.key = key_of(number), .data = data, .bytes = bytes};
    icms_err err = icms_get(f->kv, &block, 1, NULL);

    assert_int_equal(err == ICMS_OK, block.status == ICMS_OK);
    if (err == ICMS_OK) {
        assert_int_equal(block.bytes, bytes);
        assert_memory_equal(data, wanted, bytes);
        assert_int_not_equal(block.source, ICMS_SOURCE_NONE);
    }
    if (reason != NULL)
        *reason = block.reason;
    free(data);
    free(wanted);
    return block.status;
}

static struct icms_request_options on_flash(void)
{
    struct icms_request_options options;

    icms_request_options_init(&options);
    options.put_ack = ICMS_PUT_ON_FLASH;
    return options;
}

/* ---- the cases ------------------------------------------------------------------------------ */

static void values_of_all_sizes_come_back_equal(void **state)
{
    static const size_t sizes[] = {1,    2,    63,    64,     65,      4031,        4032,
                                   4033, 4096, 65536, 100000, 1048576, 8 * MIB - 1, 8 * MIB};
    struct icms_request_options flash = on_flash();
    struct fixture *f = *state;

    assert_int_equal(f->info.value_bytes_max, 8 * MIB);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        assert_int_equal(put_one(f, i, sizes[i], i % 2 == 0 ? &flash : NULL), ICMS_OK);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        assert_int_equal(get_one(f, i, sizes[i], NULL), ICMS_OK);
}

static void what_is_on_flash_outlives_the_handle(void **state)
{
    struct icms_request_options flash = on_flash();
    struct fixture *f = *state;

    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(put_one(f, i, 5000 + i, &flash), ICMS_OK);
    assert_int_equal(icms_flush(f->kv, NULL), ICMS_OK);
    icms_close(&f->icms);
    open_tier(f);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(get_one(f, i, 5000 + i, NULL), ICMS_OK);
}

static void what_was_accepted_outlives_an_orderly_close(void **state)
{
    struct fixture *f = *state;

    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(put_one(f, i, 5000 + i, NULL), ICMS_OK);
    icms_close(&f->icms);
    open_tier(f);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(get_one(f, i, 5000 + i, NULL), ICMS_OK);
}

static void the_last_put_wins(void **state)
{
    static const size_t sizes[] = {100, 200000};
    struct icms_request_options flash = on_flash();
    struct fixture *f = *state;

    for (size_t i = 0; i < 2; i++) {
        uint8_t *data = malloc(sizes[i]), *back = malloc(sizes[i]);
        struct icms_block put = {.key = key_of(i), .data = data, .bytes = sizes[i]};
        struct icms_block get = {.key = key_of(i), .data = back, .bytes = sizes[i]};

        for (uint8_t round = 0; round < 20; round++) {
            memset(data, round, sizes[i]);
            assert_int_equal(icms_put(f->kv, &put, 1, round % 3 == 0 ? &flash : NULL), ICMS_OK);
            memset(data, 0xff, sizes[i]); /* the caller's again */
            get.bytes = sizes[i];
            assert_int_equal(icms_get(f->kv, &get, 1, NULL), ICMS_OK);
            memset(data, round, sizes[i]);
            assert_memory_equal(back, data, sizes[i]);
        }
        free(data);
        free(back);
    }
}

static void absent_blocks_are_misses_and_removed_ones_too(void **state)
{
    struct fixture *f = *state;
    struct icms_block blocks[2] = {{.key = key_of(1)}, {.key = key_of(2)}};
    enum icms_miss reason;

    assert_int_equal(get_one(f, 1, 100, &reason), ICMS_MISS);
    assert_int_equal(reason, ICMS_MISS_ABSENT);
    assert_int_equal(put_one(f, 1, 100, NULL), ICMS_OK);
    assert_int_equal(icms_exists(f->kv, blocks, 2, NULL), ICMS_MISS);
    assert_int_equal(blocks[0].status, ICMS_OK);
    assert_int_equal(blocks[1].status, ICMS_MISS);
    assert_int_equal(icms_remove(f->kv, blocks, 2, NULL), ICMS_MISS);
    assert_int_equal(blocks[0].status, ICMS_OK);
    assert_int_equal(blocks[1].status, ICMS_MISS);
    assert_int_equal(get_one(f, 1, 100, &reason), ICMS_MISS);
    assert_int_equal(put_one(f, 1, 100, NULL), ICMS_OK);
    assert_int_equal(get_one(f, 1, 100, NULL), ICMS_OK);
}

static void if_absent_leaves_what_is_there(void **state)
{
    struct icms_request_options options = on_flash();
    struct fixture *f = *state;
    uint8_t other[100] = {0};
    struct icms_block block = {.key = key_of(1), .data = other, .bytes = sizeof(other)};

    options.put_if_absent = 1;
    assert_int_equal(put_one(f, 1, 100, &options), ICMS_OK);
    assert_int_equal(icms_put(f->kv, &block, 1, &options), ICMS_MISS);
    assert_int_equal(block.status, ICMS_EXISTS);
    assert_int_equal(get_one(f, 1, 100, NULL), ICMS_OK);
}

static void a_chain_is_matched_up_to_its_first_hole(void **state)
{
    struct fixture *f = *state;
    struct icms_layout layout = {.tenant = "t", .model = "m", .dtype = "f16", .block_tokens = 16};
    struct icms_block blocks[100];
    static uint8_t data[100][300];
    struct icms_key keys[100];
    struct icms_chain chain;
    size_t matched;

    layout.weights = &contract_salt;
    layout.weights_bytes = sizeof(contract_salt);
    icms_chain_init(&chain, f->kv, &layout);
    for (uint32_t i = 0; i < 100; i++) {
        icms_chain_next(&chain, &i, sizeof(i), &keys[i]);
        fill(data[i], sizeof(data[i]), i);
        blocks[i] = (struct icms_block){.key = keys[i], .data = data[i], .bytes = sizeof(data[i])};
    }
    assert_int_equal(icms_match(f->kv, keys, 100, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 0);
    assert_int_equal(icms_put(f->kv, blocks, 100, NULL), ICMS_OK);
    assert_int_equal(icms_match(f->kv, keys, 100, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 100);
    assert_int_equal(icms_remove(f->kv, &blocks[70], 1, NULL), ICMS_OK);
    assert_int_equal(icms_match(f->kv, keys, 100, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 70);
    memset(data, 0, sizeof(data));
    assert_int_equal(icms_get(f->kv, blocks, 100, NULL), ICMS_MISS);
    for (uint32_t i = 0; i < 100; i++) {
        uint8_t wanted[300];

        fill(wanted, sizeof(wanted), i);
        assert_int_equal(blocks[i].status, i == 70 ? ICMS_MISS : ICMS_OK);
        if (i != 70)
            assert_memory_equal(data[i], wanted, sizeof(wanted));
    }
}

/* ---- keys with the same 16 bytes ------------------------------------------------------------ */

/* Other digests behind the same 16 bytes. */
enum twin {
    TWIN_FIRST,    /* differs in a byte that gave way to the run                            */
    TWIN_LAST,     /* in the last bit                                                       */
    TWIN_CHECKSUM, /* in bytes that leave its CRC32C, and that of a trailer, as it was      */
    TWINS,
};

static struct icms_key twin_of(uint64_t number, enum twin which)
{
    struct icms_key twin = key_of(number);
    uint64_t polynomial = 0x105ec76f1; /* of CRC32C, as it lies in bytes: a multiple adds nothing */

    switch (which) {
    case TWIN_FIRST:
        twin.digest[0] ^= 1;
        break;
    case TWIN_LAST:
        twin.digest[ICMS_DIGEST_BYTES - 1] ^= 0x80;
        break;
    default:
        for (int i = 0; i < 5; i++)
            twin.digest[20 + i] ^= (uint8_t)(polynomial >> 8 * i);
    }
    return twin;
}

/* A get of this key finds the other one's block: a miss that says so. */
static void assert_collides(struct fixture *f, struct icms_key key, size_t room)
{
    uint8_t *data = malloc(room);
    struct icms_block block = {.key = key, .data = data, .bytes = room};
    enum icms_miss reason = ICMS_MISS_NONE;
    struct icms_request *request;
    struct icms_lease lease;

    assert_non_null(data);
    for (int again = 0; again < 2; again++) { /* past the arena, and out of it */
        block.bytes = room;
        assert_int_equal(icms_get(f->kv, &block, 1, NULL), ICMS_MISS);
        assert_int_equal(block.status, ICMS_MISS);
        assert_int_equal(block.reason, ICMS_MISS_COLLISION);
        assert_int_equal(block.source, ICMS_SOURCE_NONE);
    }
    block.bytes = room;
    assert_int_equal(icms_get_start(f->kv, &block, 1, NULL, &request), ICMS_OK);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    assert_int_equal(block.reason, ICMS_MISS_COLLISION);
    assert_int_equal(icms_lease_take(f->kv, &key, NULL, &reason, &lease), ICMS_MISS);
    assert_int_equal(reason, ICMS_MISS_COLLISION);
    free(data);
}

static uint64_t collisions_counted(struct fixture *f)
{
    static char text[1 << 20];
    size_t bytes;
    char *at;

    assert_int_equal(icms_status(f->icms, text, sizeof(text), &bytes), ICMS_OK);
    assert_true(bytes <= sizeof(text));
    at = strstr(text, "\"collision\":");
    assert_non_null(at);
    return strtoull(at + strlen("\"collision\":"), NULL, 10);
}

/* Nothing but the digest tells them apart. Whichever was put last is there, whole, at every door,
 * whether it lies on flash or in DRAM and whether or not somebody looked at it before; the other
 * one is not, and asking for it does no harm. */
static void keys_with_the_same_16_bytes_never_share_a_value(void **state)
{
    static const size_t sizes[] = {300, 70000, 1048576}, behind[] = {0, 10, 64, 4096};
    struct icms_request_options flash = on_flash(), absent;
    struct fixture *f = *state;
    uint64_t number = 0, before;
    size_t matched;

    icms_request_options_init(&absent);
    absent.put_if_absent = 1;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (enum twin which = 0; which < TWINS; which++, number++) {
            struct icms_key key = key_of(number), twin = twin_of(number, which);
            uint8_t *other = value_new(~number, sizes[i]);
            uint8_t *back = malloc(sizes[i]);
            struct icms_block put = {.key = twin, .data = other, .bytes = sizes[i]};
            struct icms_block get = {.key = twin, .data = back, .bytes = sizes[i]};

            assert_non_null(back);
            assert_memory_equal(key.bytes, twin.bytes, sizeof(key.bytes));
            assert_memory_not_equal(key.digest, twin.digest, sizeof(key.digest));
            assert_int_equal(put_one(f, number, sizes[i], &flash), ICMS_OK);
            assert_collides(f, twin, sizes[i]);
            assert_int_equal(get_one(f, number, sizes[i], NULL), ICMS_OK);
            for (size_t j = 0; j < sizeof(behind) / sizeof(*behind); j++) {
                icms_close(&f->icms); /* an agent in this process begins with an empty arena */
                open_tier(f);
                assert_collides(f, twin, sizes[i] + behind[j]);
                assert_int_equal(get_one(f, number, sizes[i], NULL), ICMS_OK);
            }
            before = collisions_counted(f);
            assert_collides(f, twin, sizes[i]);
            assert_int_equal(collisions_counted(f), before + 4);

            /* What looks at the 16 bytes alone takes one for the other, as icms.h says. */
            assert_int_equal(icms_exists(f->kv, &get, 1, NULL), ICMS_OK);
            assert_int_equal(icms_match(f->kv, &twin, 1, NULL, &matched), ICMS_OK);
            assert_int_equal(matched, 1);
            assert_int_equal(icms_put(f->kv, &put, 1, &absent), ICMS_MISS);
            assert_int_equal(put.status, ICMS_EXISTS);
            assert_int_equal(get_one(f, number, sizes[i], NULL), ICMS_OK);

            assert_int_equal(icms_put(f->kv, &put, 1, which == TWIN_LAST ? &flash : NULL), ICMS_OK);
            assert_collides(f, key, sizes[i]);
            assert_int_equal(icms_get(f->kv, &get, 1, NULL), ICMS_OK);
            assert_memory_equal(back, other, sizes[i]);
            free(other);
            free(back);
        }
}

static void bad_blocks_are_refused_and_good_ones_stored(void **state)
{
    struct fixture *f = *state;
    static uint8_t data[64];
    struct icms_block blocks[5];
    struct icms_volume *volume = NULL;
    char why[512];

    for (uint64_t i = 0; i < 5; i++)
        blocks[i] = (struct icms_block){.key = key_of(i), .data = data, .bytes = sizeof(data)};
    blocks[0].key.length = 0;
    blocks[1].key.length = 17;
    blocks[2].bytes = f->info.value_bytes_max + 1;
    assert_int_equal(icms_key_raw("sixteen bytes ok", 16, &blocks[4].key), ICMS_OK);
    assert_int_equal(icms_put(f->kv, blocks, 5, NULL), ICMS_MISS);
    assert_int_equal(blocks[0].status, ICMS_KEY_SIZE);
    assert_int_equal(blocks[1].status, ICMS_KEY_SIZE);
    assert_int_equal(blocks[2].status, ICMS_VALUE_SIZE);
    assert_int_equal(blocks[3].status, ICMS_OK);
    assert_int_equal(blocks[4].status, ICMS_INVALID);
    if (strncmp(contract_where, "dir:", 4) != 0) {
        assert_int_equal(icms_volume_open(f->icms, "nope", why, sizeof(why), &volume),
                         ICMS_NO_VOLUME);
        assert_non_null(strstr(why, "kv"));
    }
}

/* More room than the value needs, by less and by more than a trailer; from flash first, then from
 * wherever the agent has it. */
static void room_may_be_larger_than_the_value(void **state)
{
    static const size_t more[] = {0, 1, 63, 64, 65, 5000};
    const size_t bytes = 100000;
    struct fixture *f = *state;
    struct icms_request_options options;
    uint8_t *data = malloc(bytes + 5000);

    assert_non_null(data);
    icms_request_options_init(&options);
    options.put_ack = ICMS_PUT_ON_FLASH;
    for (uint64_t i = 0; i < sizeof(more) / sizeof(*more); i++)
        assert_int_equal(put_one(f, i, bytes, &options), ICMS_OK);
    icms_close(&f->icms); /* the memory of pod: and dir: goes with it */
    open_tier(f);
    for (uint64_t i = 0; i < 3 * sizeof(more) / sizeof(*more); i++) {
        uint64_t number = i % (sizeof(more) / sizeof(*more));
        uint8_t *wanted = value_new(number, bytes);
        struct icms_block block = {
            .key = key_of(number), .data = data, .bytes = bytes + more[number]};

        assert_int_equal(icms_get(f->kv, &block, 1, NULL), ICMS_OK);
        assert_int_equal(block.bytes, bytes);
        assert_memory_equal(data, wanted, bytes);
        block.bytes = bytes - 1;
        assert_int_equal(icms_get(f->kv, &block, 1, NULL), ICMS_MISS);
        assert_int_equal(block.status, ICMS_VALUE_SIZE);
        assert_int_equal(block.bytes, bytes);
        free(wanted);
    }
    free(data);
}

#define ASYNC 200

static void requests_overlap_and_come_back_once(void **state)
{
    struct fixture *f = *state;
    static uint8_t data[ASYNC][3000], back[ASYNC][3000];
    static struct icms_block blocks[2 * ASYNC];
    struct icms_request_options options;
    struct icms_request *request;
    int over = 0;

    icms_request_options_init(&options);
    for (uint64_t i = 0; i < ASYNC; i++) {
        fill(data[i], sizeof(data[i]), i);
        blocks[i] =
            (struct icms_block){.key = key_of(i), .data = data[i], .bytes = sizeof(data[i])};
        blocks[ASYNC + i] =
            (struct icms_block){.key = key_of(i), .data = back[i], .bytes = sizeof(back[i])};
        options.tag = &blocks[i];
        assert_int_equal(icms_put_start(f->kv, &blocks[i], 1, &options, &request), ICMS_OK);
    }
    while (over < 2 * ASYNC) {
        struct pollfd event = {.fd = icms_event_fd(f->icms), .events = POLLIN};
        struct icms_block *block;

        request = icms_poll(f->icms);
        if (request == NULL) {
            assert_int_equal(poll(&event, 1, 15000), 1);
            continue;
        }
        over++;
        block = icms_request_tag(request);
        assert_int_equal(icms_request_end(&request), ICMS_OK);
        if (block < blocks + ASYNC) { /* stored: load it */
            options.tag = block + ASYNC;
            assert_int_equal(icms_get_start(f->kv, block + ASYNC, 1, &options, &request), ICMS_OK);
        }
    }
    assert_memory_equal(data, back, sizeof(data));
}

static void leases_show_the_block_in_place(void **state)
{
    struct fixture *f = *state;
    uint8_t *wanted = value_new(1, MIB);
    struct icms_key key = key_of(1), absent = key_of(2);
    enum icms_miss reason;
    struct icms_lease lease;

    assert_int_equal(put_one(f, 1, MIB, NULL), ICMS_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(icms_lease_take(f->kv, &key, NULL, &reason, &lease), ICMS_OK);
        assert_int_equal(lease.bytes, MIB);
        assert_memory_equal(lease.data, wanted, MIB);
        icms_lease_give(&lease);
    }
    assert_int_equal(icms_lease_take(f->kv, &absent, NULL, &reason, &lease), ICMS_MISS);
    assert_int_equal(reason, ICMS_MISS_ABSENT);
    free(wanted);
}

static void buffers_are_stored_in_place(void **state)
{
    struct fixture *f = *state;
    struct icms_block block = {.key = key_of(1), .bytes = MIB};
    void *data;

    assert_int_equal(icms_buffer_take(f->icms, MIB, &data), ICMS_OK);
    fill(data, MIB, 1);
    block.data = data;
    assert_int_equal(icms_put(f->kv, &block, 1, NULL), ICMS_OK);
    icms_buffer_give(f->icms, data);
    assert_int_equal(get_one(f, 1, MIB, NULL), ICMS_OK);
}

#define THREADS 4

static void *thread_work(void *arg)
{
    static _Atomic uint64_t next;
    struct fixture *f = arg;
    uint64_t base = 10000 * ++next;

    for (uint64_t i = 0; i < 50; i++) {
        size_t bytes = 1 + (base * 31 + i * 7919) % 200000;

        if (put_one(f, base + i, bytes, NULL) != ICMS_OK ||
            get_one(f, base + i, bytes, NULL) != ICMS_OK)
            return f;
    }
    return NULL;
}

static void threads_share_a_handle(void **state)
{
    struct fixture *f = *state;
    pthread_t threads[THREADS];
    void *result;

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, thread_work, f), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_null(result);
    }
}

/* Far from 1 ms, and from the default deadline that a call without one would get: a loaded machine
 * passes, a deadline that is not looked at does not. */
#define TINY_GRACE_S 20.0

static void a_tiny_deadline_is_kept(void **state)
{
    struct icms_request_options options;
    struct fixture *f = *state;
    struct timespec begin, end;
    struct icms_block blocks[64];
    double passed;

    icms_request_options_init(&options);
    options.deadline_ms = 1;
    for (uint64_t i = 0; i < 64; i++)
        blocks[i] = (struct icms_block){.key = key_of(i)};
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &begin), 0);
    assert_int_equal(icms_get(f->kv, blocks, 64, &options), ICMS_MISS);
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &end), 0);
    passed = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    assert_true(passed < TINY_GRACE_S);
    for (int i = 0; i < 64; i++)
        assert_true(blocks[i].reason == ICMS_MISS_DEADLINE ||
                    blocks[i].reason == ICMS_MISS_ABSENT || blocks[i].reason == ICMS_MISS_SHED);
}

static void status_is_one_json_object(void **state)
{
    struct fixture *f = *state;
    size_t bytes = 0;
    char *text;

    assert_int_equal(icms_status(f->icms, NULL, 0, &bytes), ICMS_OK);
    text = malloc(bytes + 100);
    assert_int_equal(icms_status(f->icms, text, bytes + 100, &bytes), ICMS_OK);
    assert_int_equal(text[0], '{');
    assert_int_equal(text[strlen(text) - 1], '}');
    assert_non_null(strstr(text, "\"volumes\""));
    free(text);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(values_of_all_sizes_come_back_equal),
        TEST(what_is_on_flash_outlives_the_handle),
        TEST(what_was_accepted_outlives_an_orderly_close),
        TEST(the_last_put_wins),
        TEST(absent_blocks_are_misses_and_removed_ones_too),
        TEST(if_absent_leaves_what_is_there),
        TEST(a_chain_is_matched_up_to_its_first_hole),
        TEST(keys_with_the_same_16_bytes_never_share_a_value),
        TEST(bad_blocks_are_refused_and_good_ones_stored),
        TEST(room_may_be_larger_than_the_value),
        TEST(requests_overlap_and_come_back_once),
        TEST(leases_show_the_block_in_place),
        TEST(buffers_are_stored_in_place),
        TEST(threads_share_a_handle),
        TEST(a_tiny_deadline_is_kept),
        TEST(status_is_one_json_object),
    };

    if (argc != 2) {
        (void)fprintf(stderr, "usage: client_contract WHERE\n");
        return 2;
    }
    contract_where = argv[1];
    contract_salt = ((uint64_t)getpid() << 40) + (uint64_t)time(NULL) * 1000003;
    return cmocka_run_group_tests_name("client_contract", tests, NULL, NULL);
}
