/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host that authenticates message by message, for tests of the target: its secrets, in files of a
 * folder, and a target's options with them.
 */
#ifndef NVMF_TARGET_AUTH_RIG_H
#define NVMF_TARGET_AUTH_RIG_H

#include "nvmf/target/target_test.h"

#include "crypt/dhchap.h"
#include "wire/nvme_auth.h"

#define HOST    "nqn.2026-01.io.icms:test-host"
#define OTHER   "nqn.2026-01.io.icms:other-host"
#define SUB     "nqn.2026-01.io.icms:test"
#define AUTH_MS 5000 /* the target's header timeout */

/* ---- secrets -------------------------------------------------------------------------------- */

enum { KEY_HOST, KEY_OLD, KEY_CTRL, KEY_OTHER, KEY_NONE, KEYS };

extern char auth_paths[KEYS][LIMIT_PATH_BYTES];
extern struct key_plain auth_keys[KEYS];

/* Of a group of tests: the files. */
int auth_setup(void **state);
int auth_teardown(void **state);

/* What with_auth() allows; 0: every hash. */
extern uint8_t only_hash, only_group;

/* One host with two secrets that may ask for ours, one without secrets of ours towards it; whoever
 * else comes has to authenticate, too, and cannot. */
void with_auth(struct nvmf_target_opts *opts);

/* ---- a conversation ------------------------------------------------------------------------- */

extern uint32_t host_kato_ms; /* of the next talk_new(); 0: no keep-alive timeout */

struct talk {
    struct peer *peer;
    uint16_t t_id;
    struct nvme_auth_msg challenge; /* as it came                              */
    uint8_t in[4096];               /* it                                      */
    uint8_t private[DHCHAP_PRIVATE_BYTES], public[DHCHAP_VALUE_BYTES_MAX];
    uint8_t shared[DHCHAP_VALUE_BYTES_MAX];
    uint8_t response[DHCHAP_DIGEST_BYTES_MAX], ours[DHCHAP_DIGEST_BYTES_MAX];
    const char *host; /* NULL: the peer's */
};

/* A queue pair that is connected and asked to authenticate. */
struct talk talk_new(struct rig *rig, const struct peer *admin, uint16_t qid, const char *host);

uint16_t talk_send(struct talk *talk, const void *data, uint32_t bytes);
uint16_t talk_send_msg(struct talk *talk, const struct nvme_auth_msg *msg);
uint16_t talk_receive(struct talk *talk, struct nvme_auth_msg *out_msg);
struct nvme_auth_msg talk_negotiation(const struct talk *talk);

/* NEGOTIATE and CHALLENGE. */
void talk_challenge(struct talk *talk);

/* A right REPLY to the challenge with a key. */
struct nvme_auth_msg talk_reply(struct talk *talk, const struct key_plain *key, bool is_mutual);

/* All of it; true: passed. */
bool talk_all(struct talk *talk, const struct key_plain *key, bool is_mutual);

/* What the target tells of the last authentication. */
enum nvmf_target_auth_result event_last(struct rig *rig, const char *host);

#endif
