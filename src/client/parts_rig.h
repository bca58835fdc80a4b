/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/parts_rig.h: volumes whose values arrive in pieces, for tests: the keys of one that is
 * encrypted, what the fake agent has of a value, and what the agent's thread tells a client of it.
 */
#ifndef CLIENT_PARTS_RIG_H
#define CLIENT_PARTS_RIG_H

#include "client/client_rig.h"

#define VAULT  "vault"
#define PIECE  ((uint32_t)LIMIT_PIECE_BYTES)
#define PIECES (VALUE / PIECE) /* but for the last one */
#define VALUE  ((uint32_t)FAKE_VAULT_BYTES)
#define STORED (sealed_bytes(VALUE) + LIMIT_TRAILER_BYTES)

/* The list of keys of VAULT, in a folder of its own. */
struct parts_keys {
    char folder[64], list[96], key[96];
};

/* 0, or -1: there is no folder. */
int parts_keys_write(struct parts_keys *keys);
void parts_keys_remove(const struct parts_keys *keys);

/* Puts a value of these bytes under key 1; out_stored[STORED] is what the agent has of it. */
void parts_put(const struct client_rig *rig, struct icms_volume *volume, const uint8_t *value,
               uint32_t bytes, uint8_t *out_stored);

/* Only a hang takes longer than a part of RIG_GRACE_MS. */
bool soon(bool (*is)(uint32_t arg), uint32_t arg);

/* In the agent's thread: tells the client, and waits until it has taken that out of its ring. */
void part_send(struct fake_arriving *arriving, const struct shm_complete *part);

/* So many bytes are there, or pieces of an encrypted value. */
void part_bytes(struct fake_arriving *arriving, uint32_t bytes);
void part_pieces(struct fake_arriving *arriving, uint32_t count);

#endif
