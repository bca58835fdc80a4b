/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A value whose trailer fails, under a record that is whole, is stored in a real icms-target by a
 * host that does not seal: a get misses it with reason checksum, a put with if_absent repairs it,
 * and the next get is a hit. A byte that flips in the middle of a large value, whose first pieces
 * the target sends before it reads that one, is the same. The agent is in this process, so large
 * values do not pass its arena.
 *
 *   repair_test ICMS_TARGET
 */
#include <fcntl.h>
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
#include "e2e/target_e2e.h"
#include "icms/icms.h"

#define VALUE_MAX 200000u
#define LARGE     ((uint32_t)3 << 20)

static uint8_t value[LARGE], back[LARGE];

static void start(struct e2e *e2e)
{
    FILE *file = fopen(e2e->config, "w");

    assert_non_null(file);
    (void)fprintf(file,
                  "name: e2e\nnqn: nqn.2026-01.io.icms:test\nlisten: 127.0.0.1:0\nsegment: 8MiB\n"
                  "http: {listen: 127.0.0.1:0}\nvolumes: [{name: kv, value_max: 3MiB}]\ndrives:\n");
    for (int i = 0; i < 2; i++)
        (void)fprintf(file, "  - {path: %s/drive%d, size: 64MiB, format_empty: true}\n",
                      e2e->directory, i);
    assert_int_equal(fclose(file), 0);
    e2e_start_ok(e2e, NULL);
}

static struct icms *open_pod(const struct e2e *e2e, struct icms_volume **out_volume)
{
    char path[128], where[140], why[256] = "";
    struct icms *icms = NULL;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/pod.yaml", e2e->directory);
    (void)snprintf(where, sizeof(where), "pod:%s", path);
    file = fopen(path, "w");
    assert_non_null(file);
    (void)fprintf(file,
                  "http: {listen: none}\nenclosures: [{name: e2e, nqn: "
                  "\"nqn.2026-01.io.icms:test\", address: 127.0.0.1:%u}]\n"
                  "volumes: [{name: kv, value_max: 3MiB, memory_max: 32MiB}]\n",
                  e2e->addr.port);
    assert_int_equal(fclose(file), 0);
    if (icms_open(where, NULL, why, sizeof(why), &icms) != ICMS_OK ||
        icms_volume_open(icms, "kv", NULL, 0, out_volume) != ICMS_OK)
        fail_msg("cannot open %s: %s", where, why);
    assert_int_equal(unlink(path), 0);
    for (int i = 0; i < 1000; i++) { /* until it is connected */
        struct icms_block block = {.data = back, .bytes = sizeof(back)};

        icms_key_from_name("nobody", 6, &block.key);
        assert_int_equal(icms_get(*out_volume, &block, 1, NULL), ICMS_MISS);
        if (block.reason == ICMS_MISS_ABSENT)
            return icms;
        (void)usleep(10000);
    }
    fail_msg("the agent does not connect");
    return NULL;
}

static void store_bad(struct peer *io, const struct icms_key *key, uint32_t bytes)
{
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_STORE, .nsid = 1, .bytes = bytes};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    cmd.key.length = key->length;
    memcpy(cmd.key.bytes, key->bytes, key->length);
    memset(value, 0x5a, bytes);
    nvme_kv_cmd_encode(&cmd, &sqe);
    assert_true(peer_command(io, &sqe, value, bytes, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
}

static void a_put_that_does_not_replace_repairs_a_bad_value(void **state)
{
    static const uint32_t sizes[] = {1000, 5000, 40000, VALUE_MAX};
    struct e2e *e2e = *state;
    struct icms_request_options if_absent;
    struct icms_volume *volume = NULL;
    struct peer *admin, *io;
    struct icms *icms;

    start(e2e);
    admin = peer_new_socket(&e2e->addr);
    io = peer_new_socket(&e2e->addr);
    assert_true(admin != NULL && io != NULL && peer_admin(admin, 0) && peer_io(io, admin, 1, 0));
    icms = open_pod(e2e, &volume);
    icms_request_options_init(&if_absent);
    if_absent.put_if_absent = 1;
    for (uint32_t i = 0; i < 4 * sizeof(sizes) / sizeof(*sizes); i++) {
        uint32_t bytes = sizes[i / 4];
        struct icms_block block = {.data = back, .bytes = sizeof(back)};
        char name[16];

        (void)snprintf(name, sizeof(name), "block-%u", i);
        icms_key_from_name(name, strlen(name), &block.key);
        store_bad(io, &block.key, bytes + LIMIT_TRAILER_BYTES);
        assert_int_equal(icms_get(volume, &block, 1, NULL), ICMS_MISS);
        assert_int_equal(block.reason, ICMS_MISS_CHECKSUM);
        block.data = value;
        block.bytes = bytes;
        memset(value, (int)i, bytes);
        assert_int_equal(icms_put(volume, &block, 1, &if_absent), ICMS_OK);
        (void)!icms_put(volume, &block, 1, &if_absent);
        assert_int_equal(block.status, ICMS_EXISTS);
        for (int again = 0; again < 3; again++) {
            block.data = back;
            block.bytes = sizeof(back);
            assert_int_equal(icms_get(volume, &block, 1, NULL), ICMS_OK);
            assert_int_equal(block.bytes, bytes);
            assert_memory_equal(back, value, bytes);
        }
    }
    icms_close(&icms);
    peer_free(&io);
    peer_free(&admin);
}

/* A byte at this offset of the value flips on a drive, in each record of it. */
static void drive_flip(const struct e2e *e2e, int drive, uint32_t offset)
{
    static uint8_t memory[64 << 20];
    char path[160];
    uint8_t *at = memory;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/drive%d", e2e->directory, drive);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, memory, sizeof(memory), 0), (ssize_t)sizeof(memory));
    while ((at = memmem(at, (size_t)(memory + sizeof(memory) - at), value + offset, 64)) != NULL) {
        *at ^= 1;
        assert_int_equal(pwrite(fd, at, 1, at - memory), 1);
        assert_int_equal(fdatasync(fd), 0);
    }
    assert_int_equal(close(fd), 0);
}

static void a_large_value_with_a_bad_piece_is_a_checksum_miss(void **state)
{
    struct e2e *e2e = *state;
    struct icms_request_options on_flash;
    struct icms_volume *volume = NULL;
    struct icms_block block;
    struct icms *icms;

    start(e2e);
    icms_request_options_init(&on_flash);
    on_flash.put_ack = ICMS_PUT_ON_FLASH;
    on_flash.put_if_absent = 1;
    icms_key_from_name("large", 5, &block.key);
    for (uint32_t i = 0; i < LARGE; i++)
        value[i] = (uint8_t)(hash64_mix(i / 8) >> i % 8 * 8);
    icms = open_pod(e2e, &volume);
    for (uint32_t bad = 0; bad < LARGE; bad += LARGE / 3 + 1000) {
        block.data = value;
        block.bytes = LARGE;
        assert_int_equal(icms_put(volume, &block, 1, &on_flash), ICMS_OK);
        icms_close(&icms);
        icms = open_pod(e2e, &volume); /* whose arena is empty */
        block.data = back;
        block.bytes = LARGE;
        assert_int_equal(icms_get(volume, &block, 1, NULL), ICMS_OK);
        assert_int_equal(block.source, ICMS_SOURCE_POD);
        assert_int_equal(block.bytes, LARGE);
        assert_memory_equal(back, value, LARGE);
        drive_flip(e2e, 0, bad);
        drive_flip(e2e, 1, bad);
        icms_close(&icms);
        icms = open_pod(e2e, &volume);
        for (int again = 0; again < 2; again++) {
            block.bytes = LARGE;
            assert_int_equal(icms_get(volume, &block, 1, NULL), ICMS_MISS);
            assert_int_equal(block.reason, ICMS_MISS_CHECKSUM);
        }
    }
    icms_close(&icms);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_put_that_does_not_replace_repairs_a_bad_value, e2e_setup,
                                        e2e_teardown),
        cmocka_unit_test_setup_teardown(a_large_value_with_a_bad_piece_is_a_checksum_miss,
                                        e2e_setup, e2e_teardown),
    };

    check(argc == 2);
    e2e_program = argv[1];
    return cmocka_run_group_tests_name("e2e-repair", tests, NULL, NULL);
}
