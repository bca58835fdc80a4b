/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig of client_rig.h. Called by tests of libicms on their threads.
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "client/client_int.h"
#include "client/client_rig.h"

int client_rig_open(struct client_rig *rig, const struct icms_options *options)
{
    static int number;
    struct icms_options patient;
    char why[256];

    icms_options_init(&patient);
    patient.load_deadline_ms = patient.store_deadline_ms = RIG_GRACE_MS;
    if (options == NULL)
        options = &patient;
    fake_reset();
    (void)snprintf(rig->path, sizeof(rig->path), "/tmp/icms-client-test-%d-%d.sock", (int)getpid(),
                   number++);
    (void)snprintf(rig->where, sizeof(rig->where), "unix:%s", rig->path);
    rig->agent = fake_agent_start();
    rig->socket = fake_socket_start(rig->agent, rig->path);
    if (icms_open(rig->where, options, why, sizeof(why), &rig->icms) == ICMS_OK &&
        icms_volume_open(rig->icms, "kv", why, sizeof(why), &rig->kv) == ICMS_OK &&
        icms_volume_open(rig->icms, "raw", why, sizeof(why), &rig->raw) == ICMS_OK &&
        icms_volume_open(rig->icms, "big", why, sizeof(why), &rig->big) == ICMS_OK)
        return 0;
    (void)fprintf(stderr, "%s\n", why);
    return -1;
}

void client_rig_close(struct client_rig *rig)
{
    fake_reset();
    icms_close(&rig->icms);
    if (rig->socket != NULL)
        fake_socket_stop(&rig->socket);
    agent_stop(rig->agent);
    agent_free(&rig->agent);
}

int client_rig_setup(void **state)
{
    struct client_rig *rig = calloc(1, sizeof(*rig));

    check(rig != NULL);
    *state = rig;
    return client_rig_open(rig, NULL);
}

int client_rig_teardown(void **state)
{
    client_rig_close(*state);
    free(*state);
    return 0;
}

struct icms_key rig_key(uint64_t number)
{
    uint8_t digest[ICMS_DIGEST_BYTES] = {[ICMS_DIGEST_BYTES - 1] = 1};
    struct icms_key key;

    memcpy(digest, &number, sizeof(number));
    icms_key_from_digest(NULL, digest, &key);
    return key;
}

void rig_fill(uint8_t *data, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(hash64_mix(seed + i / 8) >> (8 * (i % 8)));
}

icms_err rig_put_one(struct icms_volume *volume, uint64_t number, size_t bytes)
{
    uint8_t *data = malloc(bytes);
    struct icms_block block = {.key = rig_key(number), .data = data, .bytes = bytes};
    icms_err err;

    rig_fill(data, bytes, number);
    err = icms_put(volume, &block, 1, NULL);
    assert_int_equal(err == ICMS_OK, block.status == ICMS_OK);
    free(data);
    return block.status;
}

icms_err rig_get_one(struct icms_volume *volume, uint64_t number, size_t bytes,
                     struct icms_block *out_block)
{
    uint8_t *data = malloc(bytes + 1), *wanted = malloc(bytes + 1);
    struct icms_block block = {.key = rig_key(number), .data = data, .bytes = bytes};
    icms_err err = icms_get(volume, &block, 1, NULL);

    assert_int_equal(err == ICMS_OK, block.status == ICMS_OK);
    if (block.status == ICMS_OK) {
        assert_int_equal(block.bytes, bytes);
        rig_fill(wanted, bytes, number);
        assert_memory_equal(data, wanted, bytes);
    }
    if (out_block != NULL)
        *out_block = block;
    free(data);
    free(wanted);
    return block.status;
}

icms_err rig_get_one_soon(struct icms_volume *volume, uint64_t number, size_t bytes)
{
    uint64_t begin = client_now_ns();

    while (rig_get_one(volume, number, bytes, NULL) != ICMS_OK) {
        if (rig_elapsed_ms(begin) > RIG_GRACE_MS)
            return ICMS_MISS;
        usleep(20000);
    }
    return ICMS_OK;
}

icms_err rig_put_one_soon(struct icms_volume *volume, uint64_t number, size_t bytes)
{
    uint64_t begin = client_now_ns();
    icms_err err;

    while ((err = rig_put_one(volume, number, bytes)) != ICMS_OK) {
        if (rig_elapsed_ms(begin) > RIG_GRACE_MS)
            return err;
        usleep(20000);
    }
    return ICMS_OK;
}

uint64_t rig_elapsed_ms(uint64_t since_ns)
{
    return (client_now_ns() - since_ns) / 1000000;
}

struct icms_request *rig_poll_next(struct icms *icms)
{
    struct icms_request *request;
    uint64_t begin = client_now_ns();

    while ((request = icms_poll(icms)) == NULL) {
        struct pollfd event = {.fd = icms_event_fd(icms), .events = POLLIN};

        if (rig_elapsed_ms(begin) > RIG_GRACE_MS)
            return NULL;
        (void)poll(&event, 1, RIG_GRACE_MS);
    }
    return request;
}
