/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads with everything a handle can do, while the agent stops, swallows, damages, forgets, dies
 * and comes back. Whatever happens: no hit has wrong bytes, every call ends in time; and when it is
 * quiet again everything works and all room is back.
 *
 * usage: stress_test [SECONDS]
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "client/client_int.h"
#include "client/fake_agent.h"

#define STRESS_THREADS     4
#define STRESS_KEYS        64
#define STRESS_VALUE_MAX   20000
#define STRESS_DEADLINE_MS 40

/* Beyond deadline and grace: what a loaded machine may take. Only a call that hangs takes longer.
 */
#define STRESS_SLACK_MS 20000

static unsigned stress_ms = 1500;

struct stress {
    struct agent *agent;
    struct fake_socket *socket;
    struct icms *icms;
    struct icms_volume *kv;
    atomic_bool stop;
    atomic_uint wrong, late, odd; /* bytes, calls, statuses that should not be */
    atomic_uint hits, calls;
    char path[64];
};

static size_t value_of(uint64_t number, uint8_t *data)
{
    size_t bytes = 1 + hash64_mix(number) % STRESS_VALUE_MAX;

    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(number * 7 + i);
    return bytes;
}

static bool value_right(uint64_t number, const void *data, uint64_t bytes)
{
    static _Thread_local uint8_t wanted[STRESS_VALUE_MAX];

    return value_of(number, wanted) == bytes && memcmp(wanted, data, bytes) == 0;
}

static struct icms_key key_of(uint64_t number)
{
    uint8_t digest[ICMS_DIGEST_BYTES] = {[ICMS_DIGEST_BYTES - 1] = 1};
    struct icms_key key;

    memcpy(digest, &number, sizeof(number));
    icms_key_from_digest(NULL, digest, &key);
    return key;
}

static void judge(struct stress *s, const struct icms_block *block, uint64_t number, bool get)
{
    switch (block->status) {
    case ICMS_OK:
        if (get && !value_right(number, block->data, block->bytes))
            atomic_fetch_add(&s->wrong, 1);
        if (get)
            atomic_fetch_add(&s->hits, 1);
        break;
    case ICMS_MISS:
    case ICMS_DEADLINE:
    case ICMS_PEER_DOWN:
    case ICMS_CANCELED:
    case ICMS_EXISTS:
        break;
    default:
        atomic_fetch_add(&s->odd, 1);
    }
}

static struct icms_request_options options(void)
{
    struct icms_request_options o;

    icms_request_options_init(&o);
    o.deadline_ms = STRESS_DEADLINE_MS;
    return o;
}

/* A batch of one kind, synchronous or not. */
static void stress_batch(struct stress *s, uint64_t random, uint8_t *memory)
{
    struct icms_block blocks[6];
    uint64_t numbers[6];
    struct icms_request_options o = options();
    size_t count = 1 + random % 6;
    bool get = (random >> 8) % 2 != 0, later = (random >> 9) % 3 == 0;
    struct icms_request *request;

    for (size_t i = 0; i < count; i++) {
        uint8_t *data = memory + i * STRESS_VALUE_MAX;

        numbers[i] = (random >> (10 + i)) % STRESS_KEYS;
        blocks[i] =
            (struct icms_block){.key = key_of(numbers[i]), .data = data, .bytes = STRESS_VALUE_MAX};
        if (!get)
            blocks[i].bytes = value_of(numbers[i], data);
    }
    if (!later) {
        (void)!(get ? icms_get(s->kv, blocks, count, &o) : icms_put(s->kv, blocks, count, &o));
    } else {
        icms_err err = get ? icms_get_start(s->kv, blocks, count, &o, &request)
                           : icms_put_start(s->kv, blocks, count, &o, &request);

        if (err == ICMS_OK) {
            if ((random >> 40) % 8 == 0)
                icms_request_cancel(request);
            (void)!icms_request_end(&request);
        }
    }
    for (size_t i = 0; i < count; i++)
        judge(s, &blocks[i], numbers[i], get);
}

static void stress_other(struct stress *s, uint64_t random, uint8_t *memory)
{
    struct icms_request_options o = options();
    uint64_t number = (random >> 8) % STRESS_KEYS;
    struct icms_block block = {.key = key_of(number)};
    struct icms_lease lease;
    void *buffer;
    size_t matched;

    switch (random % 5) {
    case 0:
        if (icms_lease_take(s->kv, &block.key, &o, NULL, &lease) == ICMS_OK) {
            if (!value_right(number, lease.data, lease.bytes))
                atomic_fetch_add(&s->wrong, 1);
            icms_lease_give(&lease);
        }
        break;
    case 1:
        if (icms_buffer_take(s->icms, STRESS_VALUE_MAX, &buffer) == ICMS_OK) {
            block.data = buffer;
            block.bytes = value_of(number, buffer);
            (void)!icms_put(s->kv, &block, 1, &o);
            judge(s, &block, number, false);
            icms_buffer_give(s->icms, buffer);
        }
        break;
    case 2:
        (void)!icms_match(s->kv, &block.key, 1, &o, &matched);
        break;
    case 3:
        (void)!icms_remove(s->kv, &block, 1, &o);
        judge(s, &block, number, false);
        break;
    default:
        (void)!icms_exists(s->kv, &block, 1, &o);
        judge(s, &block, number, false);
    }
}

static void *stress_work(void *arg)
{
    static atomic_uint next;
    struct stress *s = arg;
    uint8_t *memory = malloc((size_t)6 * STRESS_VALUE_MAX);
    uint64_t random = hash64_mix(atomic_fetch_add(&next, 1));

    while (!atomic_load(&s->stop)) {
        uint64_t begin = client_now_ns();

        random = hash64_mix(random);
        if (random >> 62 == 0)
            stress_other(s, random, memory);
        else
            stress_batch(s, random, memory);
        if (client_now_ns() - begin >
            (uint64_t)(STRESS_DEADLINE_MS + 100 + STRESS_SLACK_MS) * 1000000)
            atomic_fetch_add(&s->late, 1);
        atomic_fetch_add(&s->calls, 1);
    }
    free(memory);
    return NULL;
}

static void stress_chaos(struct stress *s)
{
    uint64_t begin = client_now_ns(), random = begin;

    while (client_now_ns() - begin < (uint64_t)stress_ms * 1000000) {
        random = hash64_mix(random);
        atomic_store(&fake.mute, random % 8 == 0);
        atomic_store(&fake.swallow, (random >> 8) % 8 == 0);
        atomic_store(&fake.forget, (random >> 16) % 2 == 0);
        atomic_store(&fake.corrupt, (random >> 24) % 6 == 0);
        atomic_store(&fake.delay_us, (random >> 32) % 4 == 0 ? 300 : 0);
        if ((random >> 40) % 16 == 0) {
            fake_socket_stop(&s->socket);
            usleep(5000);
            s->socket = fake_socket_start(s->agent, s->path);
        }
        usleep((useconds_t)(1000 + (random >> 48) % 60000));
    }
    fake_reset();
}

static void nothing_wrong_nothing_late_nothing_lost(void **state)
{
    static struct stress s;
    uint8_t data[STRESS_VALUE_MAX];
    pthread_t threads[STRESS_THREADS];
    struct icms_block block = {.key = key_of(1), .data = data};
    char where[80];
    bool right = false;

    (void)snprintf(s.path, sizeof(s.path), "/tmp/icms-stress-%d.sock", (int)getpid());
    (void)snprintf(where, sizeof(where), "unix:%s", s.path);
    fake_reset();
    s.agent = fake_agent_start();
    s.socket = fake_socket_start(s.agent, s.path);
    assert_int_equal(icms_open(where, NULL, NULL, 0, &s.icms), ICMS_OK);
    assert_int_equal(icms_volume_open(s.icms, "kv", NULL, 0, &s.kv), ICMS_OK);
    for (int i = 0; i < STRESS_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, stress_work, &s), 0);
    stress_chaos(&s);
    atomic_store(&s.hits, 0); /* and it is well again */
    for (int i = 0; i < 200 && atomic_load(&s.hits) < 100; i++)
        usleep(20000);
    atomic_store(&s.stop, true);
    for (int i = 0; i < STRESS_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    print_message("%u calls, %u hits at the end\n", atomic_load(&s.calls), atomic_load(&s.hits));
    assert_int_equal(atomic_load(&s.wrong), 0);
    assert_int_equal(atomic_load(&s.late), 0);
    assert_int_equal(atomic_load(&s.odd), 0);
    assert_true(atomic_load(&s.hits) >= 100);

    /* Late answers bring everything back. */
    for (int tries = 0; tries < 200 && !right; tries++) {
        uint32_t free_ops = 0;

        block.bytes = value_of(1, data);
        assert_int_equal(icms_put(s.kv, &block, 1, NULL), ICMS_OK);
        list_for_each (link, &s.icms->ops_free)
            free_ops++;
        right = free_ops == CLIENT_OPS && fake_agent_leases(s.agent) == 0 &&
                s.icms->link->staging.free_count == s.icms->link->staging.granules &&
                list_empty(&s.icms->retired) && s.icms->calls == 0;
        usleep(1000);
    }
    assert_true(right);
    icms_close(&s.icms);
    fake_socket_stop(&s.socket);
    agent_stop(s.agent);
    agent_free(&s.agent);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_wrong_nothing_late_nothing_lost),
    };

    if (argc > 1)
        stress_ms = (unsigned)strtoul(argv[1], NULL, 10) * 1000;
    return cmocka_run_group_tests_name("client-stress", tests, NULL, NULL);
}
