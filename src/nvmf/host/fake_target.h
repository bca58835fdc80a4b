/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/host/fake_target.h: a small enclosure for tests of the initiator and of the agent. It speaks
 * the protocol well until a test tells it to do something else, once or from now on.
 *
 * It shares the PDU framing with the initiator and nothing else. One loop; heap memory as needed.
 */
#ifndef NVMF_HOST_FAKE_TARGET_H
#define NVMF_HOST_FAKE_TARGET_H

#include "base/list.h"
#include "net/net.h"
#include "nvmf/pdu.h"
#include "wire/nvme_kv.h"

#define FAKE_VOLUMES LIMIT_VOLUMES
#define FAKE_CONNS   64

/* What a target can do wrong, to the next I/O command that gives the opportunity. */
enum fake_wrong {
    FAKE_RIGHT,
    FAKE_DATA_LONG,    /* one byte more than the host has room for               */
    FAKE_DATA_OFFSET,  /* data that leaves a hole                                */
    FAKE_DATA_CID,     /* data for a command that is not under way               */
    FAKE_DATA_OLD,     /* data for an earlier command in the slot of this one    */
    FAKE_DATA_SHORT,   /* success after half of the value                        */
    FAKE_CQE_CID,      /* completion of a command that is not under way          */
    FAKE_CQE_OLD,      /* completion of an earlier command in the slot           */
    FAKE_CQE_TWICE,    /* two completions                                        */
    FAKE_R2T_RANGE,    /* asks for one byte more than the command has            */
    FAKE_R2T_OFFSET,   /* asks for data that leaves a hole                       */
    FAKE_R2T_TWICE,    /* asks again before the data came                        */
    FAKE_R2T_NEXT,     /* asks for the next data before the first came           */
    FAKE_R2T_CID,      /* asks for data of a command that has none               */
    FAKE_STORE_DATA,   /* data for a command that has none to take                */
    FAKE_STORE_UNREAD, /* success without taking the data                        */
    FAKE_TERM,         /* TermReq                                                */
    FAKE_RESET,        /* ends the connection                                    */
    FAKE_WRONGS,
};

/* What a target does that asks for authentication: it has no secret, and lies. */
enum fake_auth {
    FAKE_AUTH_NONE,            /* it does not ask                                            */
    FAKE_AUTH_CHANNEL,         /* asks for a secure channel, too                             */
    FAKE_AUTH_REFUSE,          /* FAILURE1 instead of a challenge                            */
    FAKE_AUTH_NOTHING,         /* no message                                                 */
    FAKE_AUTH_CUT,             /* half a challenge                                           */
    FAKE_AUTH_TRANSACTION,     /* a challenge of another transaction                         */
    FAKE_AUTH_HASH,            /* a hash that does not exist                                 */
    FAKE_AUTH_LENGTH,          /* a challenge as long as that of another hash                */
    FAKE_AUTH_GROUP,           /* a group that does not exist                                */
    FAKE_AUTH_DH_LENGTH,       /* a DH value of another group                                */
    FAKE_AUTH_DH_ZERO,         /* a DH value of 0                                            */
    FAKE_AUTH_DH_LARGE,        /* a DH value above p                                         */
    FAKE_AUTH_SUCCESS_FIRST,   /* SUCCESS1 instead of a challenge                            */
    FAKE_AUTH_CHALLENGE_TWICE, /* a challenge instead of SUCCESS1                          */
    FAKE_AUTH_STATUS,          /* AUTH Send fails                                            */
    FAKE_AUTH_BUSY,            /* the first auth_busy NEGOTIATE find no place                */
    FAKE_AUTH_BLIND,           /* takes any reply, proves nothing                            */
    FAKE_AUTH_WRONG,           /* takes any reply, proves itself wrongly                     */
};

struct fake_volume {
    struct uuid uuid;         /* zeros: a foreign namespace, named by its NGUID       */
    uint32_t value_bytes_max; /* as stored                                            */
    bool sealed;
    bool encrypted;
    bool foreign; /* tells nothing of icms; uuid goes into the NGUID      */
};

struct fake_block {
    struct list link;
    uint32_t nsid;
    struct key key;
    uint32_t record; /* another one for each block that was ever put */
    uint32_t bytes;
    uint8_t *data;
};

struct fake_target {
    struct loop *loop;
    struct net_listener listener;
    struct loop_addr addr; /* where it listens                                 */
    struct fake_volume volumes[FAKE_VOLUMES];
    uint32_t volume_count; /* nsids 1 .. volume_count                          */
    struct list blocks;    /* struct fake_block                                */
    struct list conns;     /* struct fake_conn                                 */
    /* what the test says */
    const char *serial;  /* of its subsystem; NULL: "FAKE"                   */
    uint64_t instance;   /* of its process; 0, or with no extension: not told */
    bool timed;          /* offers the vendor Store and Retrieve             */
    bool many;           /* offers exist-many                                */
    bool store_data;     /* offers large stores with their data              */
    bool records;        /* offers to delete one record                      */
    uint32_t no_room;    /* so many of those are answered NVME_ICMS_ASK      */
    bool settings;       /* compares settings of hosts                       */
    uint32_t others[4];  /* what others have, by NVME_FEATURE_ICMS_*; 0: the same */
    bool no_epoch;       /* it does not know NVME_FEATURE_ICMS_EPOCH         */
    uint32_t pod;        /* DW1 of that                                      */
    bool no_write_cache; /* Flush is not needed, and not known               */
    bool refuse_connect; /* Connect answers "host not allowed"               */
    bool no_subsystem;   /* Connect answers that the subsystem's name is wrong */
    bool silent;         /* takes everything, answers nothing                */
    uint16_t mute;       /* I/O queue on which nothing is answered; 0: none  */
    bool hold;           /* keeps I/O commands until fake_target_release     */
    bool hold_stores;    /* the same for stores: no R2T                      */
    bool hold_prestage;  /* the same for class PRESTAGE, until it is expedited */
    bool expedites;      /* offers that                                      */
    uint64_t delay_ns;   /* I/O commands take this long                      */
    uint32_t c2h_bytes;  /* data of one C2HData PDU; 0: all                  */
    uint32_t r2t_bytes;  /* of one R2T; 0: all                               */
    uint32_t h2c_bytes;  /* MAXH2CDATA                                       */
    uint32_t in_capsule_bytes;
    uint8_t mdts;           /* largest transfer: 2^mdts pages; 0: no limit      */
    bool success_flag;      /* C2HData says success, no completion              */
    uint8_t digests;        /* granted at most                                  */
    uint16_t status;        /* I/O commands fail with it; 0: they work          */
    uint32_t reason;        /* DW1 of failures                                  */
    enum fake_auth auth;    /* of each Connect                                  */
    uint32_t auth_failures; /* FAILURE2 that came                              */
    uint32_t auth_replies;  /* REPLY that came                                 */
    uint32_t auth_busy;     /* AUTH_BUSY: so many NEGOTIATE more               */
    enum fake_wrong wrong;  /* next one; back to FAKE_RIGHT when done           */
    bool bad_digest;        /* of the next data of an I/O command               */
    /* what the test sees */
    uint32_t connects; /* Connect commands of admin queues                 */
    uint32_t keep_alives;
    uint32_t asked;         /* for a sign of life on an I/O queue               */
    uint32_t told[4];       /* settings, likewise: how often                    */
    uint32_t told_nsid;     /* of the last one                                */
    uint32_t told_value[4]; /* what                                           */
    uint32_t r2ts;          /* asked for data                                   */
    uint32_t stores, retrieves, exists, deletes, flushes, lists; /* begun             */
    uint32_t time_left_us;   /* of the last vendor Store or Retrieve             */
    uint32_t exist_manys;    /* exist-many commands begun                        */
    uint32_t expedited;      /* commands that were named in expedites            */
    uint32_t by_class[4];    /* I/O commands by queue id - 1                     */
    uint32_t terms_in;       /* connections that ended by the host's TermReq     */
    uint32_t conn_count;     /* open now                                         */
    uint32_t records_put;    /* records that ever were                           */
    uint32_t record_deletes; /* of deletes: of one record                      */
};

/* Listens on host:0. Set the fields before the loop runs, or on its thread. */
void fake_target_open(struct fake_target *target, struct loop *loop, const char *host,
                      uint16_t port);

/* After the loop was freed. Forgets all blocks. */
void fake_target_fini(struct fake_target *target);

/* Runs what was held. */
void fake_target_release(struct fake_target *target);

/* Tells all hosts that namespaces changed. */
void fake_target_event(struct fake_target *target);

/* Ends every connection. */
void fake_target_drop(struct fake_target *target);

/* Blocks, as stored. */
struct fake_block *fake_target_find(struct fake_target *target, uint32_t nsid,
                                    const struct key *key);
void fake_target_put(struct fake_target *target, uint32_t nsid, const struct key *key,
                     const void *data, uint32_t bytes);
bool fake_target_remove(struct fake_target *target, uint32_t nsid, const struct key *key);

#endif
