/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/types.h: the nouns that several modules share. Plain data, no behaviour.
 */
#ifndef BASE_TYPES_H
#define BASE_TYPES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/limits.h"

/* The key of a block in NVMe commands, on flash and in DRAM: 1..16 bytes; the bytes past length are
 * zero. Two keys are one when bytes and length are equal. In sealed volumes a client compares more:
 * the digest in the trailer (wire/sealed.h). */
struct key {
    uint8_t bytes[LIMIT_KEY_BYTES];
    uint8_t length;
};

static inline bool key_equal(const struct key *a, const struct key *b)
{
    return a->length == b->length && memcmp(a->bytes, b->bytes, LIMIT_KEY_BYTES) == 0;
}

/* A name of 16 bytes (RFC 4122 order). */
struct uuid {
    uint8_t bytes[16];
};

static inline bool uuid_is_nil(const struct uuid *uuid)
{
    static const struct uuid nil;

    return memcmp(uuid->bytes, nil.bytes, sizeof(nil.bytes)) == 0;
}

static inline bool uuid_equal(const struct uuid *a, const struct uuid *b)
{
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

#define UUID_TEXT_BYTES 37

/* The value of a hex digit of either case; -1 for any other character. */
int hex_digit(char c);

/* So many bytes from twice as many hex digits, of either case; false: one is none, and out_bytes
 * holds those in front of it. */
bool hex_read(const char *text, size_t bytes, uint8_t *out_bytes);

/* A key in hex, 2 to 32 digits of either case; false: it is none, and *out_key stays. */
bool key_parse(const char *text, struct key *out_key);

/* Parses "8-4-4-4-12" hex digits; false when it is anything else. */
bool uuid_parse(const char *text, struct uuid *out_uuid);

/* Writes the 36 characters and a zero; returns text. */
char *uuid_format(const struct uuid *uuid, char text[UUID_TEXT_BYTES]);

/* The serial number of the NVM subsystem of an icms-target: the first 8 bytes of its UUID. */
#define UUID_SERIAL_BYTES 17
char *uuid_serial(const struct uuid *uuid, char serial[UUID_SERIAL_BYTES]);

/* Who waits for a command: each class has its own queue pair, so no class queues behind another. */
enum io_class {
    IO_CLASS_LOAD,     /* an engine waits                          */
    IO_CLASS_PRESTAGE, /* an engine will ask soon                  */
    IO_CLASS_STORE,    /* nobody waits; shed first                 */
    IO_CLASS_COUNT,
};

/* How the packets of a connection are marked, for switches that have queues by such marks. */
struct net_mark {
    uint8_t dscp;     /* DiffServ code point, 0..63; 0: as they are             */
    uint8_t priority; /* Linux' socket priority, 0..NET_PRIORITY_MAX; 0: what it makes of dscp */
};

/* A higher one takes CAP_NET_ADMIN. */
#define NET_PRIORITY_MAX 6

struct net_marks {
    struct net_mark control;            /* admin queues                   */
    struct net_mark io[IO_CLASS_COUNT]; /* I/O queue pairs, by who waits   */
};

/* What may be written to a drive a day. All 0: as much as it takes. */
struct write_budget {
    uint64_t bytes_day;   /* so many bytes, or                                      */
    double drive_writes;  /* the drive's size so many times (DWPD)                  */
    uint64_t burst_bytes; /* what quiet times save is at most this; 0: a day's      */
};

/* A user or a group of this machine. */
struct local_id {
    char name[LIMIT_NAME_BYTES]; /* as written: a name or a number */
    uint32_t id;                 /* what the kernel calls it       */
};

/* What a host has to have proven before it may use something; a sum. */
#define REQUIRE_CHAP 1u /* by DH-HMAC-CHAP, on each of its connections         */
#define REQUIRE_TLS  2u /* by TLS with a pre-shared key, on all its connections */

/* What tenants have of an enclosure when they compete, and what they may have at most. */
struct tenant_spec {
    char name[LIMIT_NAME_BYTES]; /* for people                                               */
    uint32_t weight;             /* of its part: 1..FAIR_WEIGHT_MAX                          */
    uint64_t load_bytes_per_s;   /* limits of all its hosts together; 0: none                */
    uint64_t store_bytes_per_s;
    uint32_t load_ops_per_s;
    uint32_t store_ops_per_s;
};

/* One tenant's blocks of one model and layout; the same in the target, the agent and the client. */
struct volume_spec {
    struct uuid uuid;              /* its name for ever                      */
    char name[LIMIT_NAME_BYTES];   /* its name for people, unique in a pod   */
    char tenant[LIMIT_NAME_BYTES]; /* whose it is; "": a tenant of the volume's name   */
    uint32_t generation;           /* of its content; a part of uuid         */
    uint64_t quota_bytes;          /* flash an enclosure gives it; 0: all    */
    uint64_t value_bytes_max;      /* largest plain value                    */
    uint64_t memory_bytes_min;     /* agent: memory that its blocks always have   */
    uint64_t memory_bytes_max;     /* agent: the most that they have; 0: all      */
    uint32_t weight;               /* agent: its part of what volumes share; 0: 1 */
    double pin_percent_max;        /* agent: of its memory, and of the own drive, for pins */
    uint32_t run_blocks;           /* client: blocks that are placed together */
    bool sealed;                   /* values end in a trailer; false: raw    */
    bool encrypted;                /* sealed: by clients with keys that daemons do not have */
    uint8_t require;               /* target: REQUIRE_*, of each host        */
    uint32_t host_count;           /* 0: any host may use it                 */
    char (
        *host_nqn)[LIMIT_NQN_BYTES];  /* target: hosts that may use it; kept by whoever made this */
    uint32_t user_count, group_count; /* both 0: whoever can connect to the agent's socket  */
    struct local_id users[LIMIT_VOLUME_USERS];  /* agent: users that may use it             */
    struct local_id groups[LIMIT_VOLUME_USERS]; /* agent: groups whose members may          */
};

/* By which daemons and drives compare the names of their pods; never 0. Pure; any thread. */
uint32_t pod_name_hash(const char *name);

/* Whether the first LIMIT_RUN_BYTES of the volume's 16-byte keys are a run, which places them. All
 * keys of a sealed volume are made by libicms. Those of a raw one are whatever hosts choose, names
 * that begin alike perhaps: the whole key places them. */
static inline bool volume_has_runs(const struct volume_spec *volume)
{
    return volume->sealed;
}

/* Pieces of a value that is encrypted, and its bytes then: head, ciphertext and tags. */
static inline uint32_t sealed_pieces(uint64_t plain_bytes)
{
    return (uint32_t)((plain_bytes + LIMIT_PIECE_BYTES - 1) / LIMIT_PIECE_BYTES);
}

static inline uint64_t sealed_bytes(uint64_t plain_bytes)
{
    return LIMIT_SEALED_HEAD_BYTES + plain_bytes +
           (uint64_t)sealed_pieces(plain_bytes) * LIMIT_TAG_BYTES;
}

/* The other way round; 0: no value has so many. */
static inline uint64_t sealed_plain_bytes(uint64_t bytes)
{
    const uint64_t piece_bytes = LIMIT_PIECE_BYTES + LIMIT_TAG_BYTES;
    uint64_t rest;

    if (bytes <= LIMIT_SEALED_HEAD_BYTES)
        return 0;
    bytes -= LIMIT_SEALED_HEAD_BYTES;
    rest = bytes % piece_bytes;
    if (rest != 0 && rest <= LIMIT_TAG_BYTES)
        return 0;
    return bytes - (bytes + piece_bytes - 1) / piece_bytes * LIMIT_TAG_BYTES;
}

/* Where pieces [0, count) of an encrypted value end, the last one of the value not among them; and
 * how many such pieces so many of its first bytes have. */
static inline uint64_t sealed_pieces_end(uint32_t count)
{
    return LIMIT_SEALED_HEAD_BYTES + count * (LIMIT_PIECE_BYTES + LIMIT_TAG_BYTES);
}

static inline uint32_t sealed_pieces_in(uint64_t bytes)
{
    return bytes < LIMIT_SEALED_HEAD_BYTES ? 0
                                           : (uint32_t)((bytes - LIMIT_SEALED_HEAD_BYTES) /
                                                        (LIMIT_PIECE_BYTES + LIMIT_TAG_BYTES));
}

/* Bytes of a value as agents see them, the trailer not counted: plain, or all that is sealed. */
static inline uint64_t volume_carried_bytes_max(const struct volume_spec *volume)
{
    return volume->encrypted ? sealed_bytes(volume->value_bytes_max) : volume->value_bytes_max;
}

/* Bytes of a value as the enclosure sees them: with the trailer when the volume is sealed. */
static inline uint64_t volume_stored_bytes_max(const struct volume_spec *volume)
{
    return volume_carried_bytes_max(volume) + (volume->sealed ? LIMIT_TRAILER_BYTES : 0);
}

#endif
