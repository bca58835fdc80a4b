/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/parts_rig.c: see parts_rig.h.
 */
#include "client/parts_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "client/client_int.h"

static_assert(VALUE % LIMIT_PIECE_BYTES != 0, "the last piece is a short one");

static void file_write(const char *path, const char *text)
{
    FILE *file;

    (void)unlink(path);
    file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

int parts_keys_write(struct parts_keys *keys)
{
    char text[256];

    (void)snprintf(keys->folder, sizeof(keys->folder), "/tmp/icms-parts-test-XXXXXX");
    if (mkdtemp(keys->folder) == NULL)
        return -1;
    (void)snprintf(keys->list, sizeof(keys->list), "%s/keys.yaml", keys->folder);
    (void)snprintf(keys->key, sizeof(keys->key), "%s/key", keys->folder);
    memset(text, '3', 64);
    text[64] = 0;
    file_write(keys->key, text);
    (void)snprintf(text, sizeof(text),
                   "volumes:\n  - name: %s\n    keys:\n      - {id: 1, file: %s}\n", VAULT,
                   keys->key);
    file_write(keys->list, text);
    return 0;
}

void parts_keys_remove(const struct parts_keys *keys)
{
    (void)remove(keys->list);
    (void)remove(keys->key);
    (void)remove(keys->folder);
}

void parts_put(const struct client_rig *rig, struct icms_volume *volume, const uint8_t *value,
               uint32_t bytes, uint8_t *out_stored)
{
    struct icms_key icms_key = rig_key(1);
    struct key key = client_key(&icms_key);
    uint8_t *copy = malloc(bytes);
    struct icms_block block = {.key = icms_key, .data = copy, .bytes = bytes};

    memcpy(copy, value, bytes);
    assert_int_equal(icms_put(volume, &block, 1, NULL), ICMS_OK);
    assert_int_equal(fake_agent_value_take(rig->agent, client_view(volume)->arena.volume, &key,
                                           out_stored, (uint32_t)STORED),
                     client_carried_bytes(volume, bytes));
    free(copy);
}

bool soon(bool (*is)(uint32_t arg), uint32_t arg)
{
    for (int tries = 0; tries < RIG_GRACE_MS / 2; tries++) {
        if (is(arg))
            return true;
        usleep(1000);
    }
    return false;
}

void part_send(struct fake_arriving *arriving, const struct shm_complete *part)
{
    struct shm_qpair *qpair = arriving->ring->qpair;

    check(shm_complete_part(arriving->ring, part));
    if (shm_complete_publish(arriving->ring))
        loop_event_signal(arriving->event);
    for (int tries = 0; tries < RIG_GRACE_MS / 2; tries++) {
        if (atomic_load(&qpair->complete_head) == atomic_load(&qpair->complete_tail))
            return;
        usleep(1000);
    }
    check(false);
}

void part_bytes(struct fake_arriving *arriving, uint32_t bytes)
{
    struct shm_complete part = *arriving->answer;

    part.value_bytes = bytes;
    part.part = 1;
    part_send(arriving, &part);
}

void part_pieces(struct fake_arriving *arriving, uint32_t count)
{
    part_bytes(arriving, (uint32_t)sealed_pieces_end(count));
}
