/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/client_rig.h: a handle of libicms on a fake agent behind a unix socket, for tests.
 *
 * Life: client_rig_open -> requests -> client_rig_close; or the cmocka fixtures, whose state is the
 * rig. Any one thread; assertions are cmocka's.
 */
#ifndef CLIENT_CLIENT_RIG_H
#define CLIENT_CLIENT_RIG_H

#include "client/fake_agent.h"
#include "icms/icms.h"

/* What a loaded machine may take for anything that is not a wait. Only a call that hangs takes
 * longer, so an assertion on it is one of liveness. It is the deadline of calls without one as
 * well. */
#define RIG_GRACE_MS 20000

struct client_rig {
    struct agent *agent;                /* fake                                   */
    struct fake_socket *socket;         /* where it listens; NULL: stopped        */
    struct icms *icms;                  /* open                                   */
    struct icms_volume *kv, *raw, *big; /* its volumes                            */
    char path[64], where[80];           /* of the socket; the same for icms_open  */
};

/* Starts an agent and opens everything; options may be NULL: deadlines of RIG_GRACE_MS. 0, or -1
 * after it said why. */
int client_rig_open(struct client_rig *rig, const struct icms_options *options);
void client_rig_close(struct client_rig *rig);

/* The same as fixtures of cmocka. */
int client_rig_setup(void **state);
int client_rig_teardown(void **state);

/* Key number n; bytes that follow from a seed. */
struct icms_key rig_key(uint64_t number);
void rig_fill(uint8_t *data, size_t bytes, uint64_t seed);

/* Puts value number n of these bytes; its status. */
icms_err rig_put_one(struct icms_volume *volume, uint64_t number, size_t bytes);

/* Gets one block and compares; its status. out_block may be NULL. */
icms_err rig_get_one(struct icms_volume *volume, uint64_t number, size_t bytes,
                     struct icms_block *out_block);

/* The same, repeated until it is a hit, for RIG_GRACE_MS: the agent is about to come back. */
icms_err rig_get_one_soon(struct icms_volume *volume, uint64_t number, size_t bytes);

/* The same for a put: the agent is about to look at its rings again. */
icms_err rig_put_one_soon(struct icms_volume *volume, uint64_t number, size_t bytes);

uint64_t rig_elapsed_ms(uint64_t since_ns);

/* The next request that is over; NULL: none within RIG_GRACE_MS. */
struct icms_request *rig_poll_next(struct icms *icms);

#endif
