/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/limits.h: every limit of icms, named once. Memory is taken at start from these.
 */
#ifndef BASE_LIMITS_H
#define BASE_LIMITS_H

/* NVMe KV: a key is 1 to 16 bytes. */
#define LIMIT_KEY_BYTES 16

/* A 16-byte key of ours begins with its run, which places it. 2^32 runs are enough for that: where
 * two are called the same they lie together. It is hashed into 65,536 slots anyway (place.h). */
#define LIMIT_RUN_BYTES 4

/* SHA-256: what a block of ours is known by; more of it than its key has. */
#define LIMIT_DIGEST_BYTES 32

/* Largest value a volume may allow, trailer not counted; one NVMe command moves one value. */
#define LIMIT_VALUE_BYTES ((uint64_t)64 << 20)

/* What a volume takes when nobody says. */
#define LIMIT_VALUE_BYTES_DEFAULT ((uint64_t)8 << 20)

/* The sealed trailer that follows a value (wire/sealed.h). */
#define LIMIT_TRAILER_BYTES 64

/* Encryption (crypt/seal.h): a value is sealed in pieces, each with a tag, behind a head with a
 * salt (wire/sealed.h). */
#define LIMIT_SEALED_HEAD_BYTES 32
#define LIMIT_PIECE_BYTES       ((uint64_t)256 << 10)
#define LIMIT_TAG_BYTES         16
#define LIMIT_SEALED_SALT_BYTES 24

/* Encryption keys of one volume, and bytes of the file that lists keys. */
#define LIMIT_VOLUME_KEYS 16

/* Volumes of an enclosure, and of each of its drives. */
#define LIMIT_VOLUMES 1024

/* Tenants of an enclosure or an agent: each volume may be one. */
#define LIMIT_TENANTS LIMIT_VOLUMES

/* Volumes of an agent: a client gets a descriptor for the arena of each in one message, and a map
 * of 64 bits says which it may use. */
#define LIMIT_AGENT_VOLUMES 64

/* Drives of an enclosure. */
#define LIMIT_DRIVES 32

/* Enclosures of a pod. */
#define LIMIT_ENCLOSURES 64

/* Addresses of an enclosure: an agent has a link to each. */
#define LIMIT_LINKS 8

/* Loops (cores) of a daemon. */
#define LIMIT_LOOPS 32

/* Addresses that a target listens on: all that an agent has a link to. */
#define LIMIT_PORTALS LIMIT_LINKS

/* NVMe names end with a zero byte inside 256. */
#define LIMIT_NQN_BYTES  224
#define LIMIT_NAME_BYTES 64
#define LIMIT_PATH_BYTES 1024

/* An address with its port, as text; and why an enclosure is not used: an address, a sentence that
 * names a subsystem and a host. */
#define LIMIT_ADDRESS_BYTES 64
#define LIMIT_REASON_BYTES  (LIMIT_ADDRESS_BYTES + 2 * LIMIT_NQN_BYTES + 192)

/* Host NQNs that one volume lists. */
#define LIMIT_VOLUME_HOSTS 4096

/* Hosts whose keys a target knows, and keys of one kind of each: several, so that they can be
 * rotated. */
#define LIMIT_HOSTS     4096
#define LIMIT_HOST_KEYS 4

/* Users, and groups, of a machine that one volume lists. */
#define LIMIT_VOLUME_USERS 32

/* Client processes attached to one agent. */
#define LIMIT_CLIENTS 64

/* Keys of one exist, match or batch call. */
#define LIMIT_BATCH_KEYS 4096

/* Data of one command, in one direction: a host has LIMIT_DATA_SECONDS, and one second more for
 * each LIMIT_DATA_BYTES_PER_SECOND that its queue pair owes or is owed when the transfer begins. */
#define LIMIT_DATA_SECONDS          10
#define LIMIT_DATA_BYTES_PER_SECOND ((uint64_t)1000 * 1000)

/* The longest deadline that a configuration may name, for requests without one: an hour. */
#define LIMIT_DEADLINE_MS 3600000

/* O_DIRECT: offset, length and memory are multiples of this. */
#define LIMIT_DISK_ALIGN 4096

/* Jobs of a loop that wait for its worker, the running one among them. */
#define LIMIT_LOOP_JOBS 64

/* Write streams of a device that are used at most. */
#define LIMIT_WRITE_STREAMS 255

/* HTTP of a daemon (metrics and health): connections, those that wait to be accepted, one page, the
 * body of a request (a million token ids as base64, and the rest), of that the JSON, large bodies
 * of all requests, how long a peer may be silent, and a file of certificates or of a key. */
#define LIMIT_HTTP_CONNECTIONS     16
#define LIMIT_HTTP_BACKLOG         128
#define LIMIT_HTTP_PAGE_BYTES      ((size_t)8 << 20)
#define LIMIT_HTTP_BODY_BYTES      ((size_t)6 << 20)
#define LIMIT_HTTP_JSON_BYTES      ((size_t)256 << 10)
#define LIMIT_HTTP_BODIES_BYTES    ((size_t)16 << 20)
#define LIMIT_HTTP_SILENCE_SECONDS 10
#define LIMIT_HTTP_BODY_SECONDS    30 /* from its first byte to its last */
#define LIMIT_HTTP_PEM_BYTES       ((size_t)64 << 10)

#endif
