/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/store.h: the flash engine. One store is one drive: a log of fixed segments with an index in
 * memory. It knows no protocol, no tenant rules beyond a volume's quota, and no other drive.
 *
 * Threads. A store belongs to one loop; every call is made on it, except those marked "any thread".
 * store_format, store_open and store_close run before the loop starts or after it was joined.
 *
 * Contract of operations: *returns ICMS_OK: done is called exactly once, later, on the same loop,
 * even on failure; returns anything else: done is never called.* The owner embeds the operation and
 * keeps it, and the memory it names, until done.
 *
 * What is promised. A write completes only after the device answered for its record; from then on
 * the block is found after a crash of the process, until it is evicted, and the eviction is
 * counted. After store_flush it also survives power loss. A read returns the bytes that were
 * written, or a miss. A flipped byte anywhere on the drive leaves the right bytes, or a miss with
 * reason CHECKSUM, and is counted. A key has at most one record that counts: one that was deleted
 * or replaced is marked as dead in place, durably, before done is called, and never comes back. A
 * write that fails leaves the value that was there. Whole segments are evicted, of the volume that
 * is most over its share the one whose last access is oldest first. A block may move meanwhile: its
 * record gets another number then.
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include <stdatomic.h>

#include "base/hist.h"
#include "base/types.h"
#include "loop/loop.h"

struct store;

/* Bytes of the header in front of a value on flash, which is there again behind it: callers of
 * store_write leave this much room before the value (struct store_write.memory), so a record goes
 * to the device in one write without a copy. */
#define STORE_HEADER_BYTES 64

/* Bytes of the buffer that a write or read of a value needs: header, value, header again, up to the
 * alignment. */
uint64_t store_record_bytes(uint64_t value_bytes);

/* What the owner of a store is told, on its loop; each may be NULL. */
struct store_ops {
    /* Once, when the drive goes out of service (repeated device errors): every operation from then
     * on answers DRIVE_DOWN. */
    void (*down)(void *owner);
    /* The stores of the other drives have to look at the quotas that they share with this one:
     * store_quota_look, on the loop of each. It may be called often. */
    void (*quota)(void *owner);
    /* A block can be read from now on, or cannot any more: stored, replaced by nothing, evicted,
     * damaged. Not of what is there when the store is opened, nor after down. It calls no function
     * of the store. */
    void (*index)(void *owner, uint32_t volume, const struct key *key, bool is_there);
};

struct store_opts {
    const char *path;         /* file or block device                                         */
    uint64_t bytes;           /* file: size to make; 0: as it is. Device: 0                   */
    uint64_t segment_bytes;   /* format: power of two, 64 KiB .. 256 MiB                      */
    uint64_t value_bytes_max; /* largest stored value, trailer included; fits in a segment    */
    uint64_t blocks_max; /* index entries to take; 0: one for bytes_per_block, 1,024 at least */
    uint64_t bytes_per_block; /* of the drive, for an entry of the index; 0: 64 KiB           */
    uint64_t hash_seed;       /* secret; stores that have it in common list keys in one order; 0: a
                                 random one                                                   */
    uint32_t writes_max;      /* writes in flight; more are parked                            */
    struct write_budget budget; /* what may be written a day                                  */
    const struct uuid *volumes; /* that blocks may belong to; read by store_open only          */
    uint32_t volume_count;      /* of them, 1,024 at most; operations name a volume by its
                                   number in this order                                        */
    const void *note;           /* format: STORE_NOTE_BYTES, the owner's; NULL: zeros         */
    bool sparse;                /* format: a new file takes space as it is written            */
    bool discard;               /* the device is told what is free, where it takes that       */
    struct store_ops ops;       /* whom it tells what                                         */
    void *owner;                /* for ops                                                    */
};

/* Defaults: 64 MiB segments, 8 MiB values, 64 writes in flight, no write budget, discards. */
void store_opts_init(struct store_opts *opts);

/* Whether a store can be made with these options: their sizes go together, and with bytes those of
 * the drive. INVALID, NO_SPACE with a sentence. No I/O. */
icms_err store_check(const struct store_opts *opts, struct err_why *why) ICMS_MUST_CHECK;

enum store_holds {
    STORE_HOLDS_NO_FILE, /* there is no such file                       */
    STORE_HOLDS_ZEROS,   /* zeros, as far as it is looked at, or no byte */
    STORE_HOLDS_STORE,   /* a store of this version                     */
};

struct store_contents {
    enum store_holds holds;
    uint64_t bytes;         /* of the file or device                    */
    uint64_t store_bytes;   /* STORE: of the drive when it was formatted */
    uint64_t segment_bytes; /* STORE: as it was formatted               */
};

/* What is on a drive; nothing is changed or locked, and another process may have it open. FOREIGN,
 * VERSION, CORRUPT, IO and what opening a file answers, with a sentence. Blocking. */
icms_err store_look(struct loop_env *env, const char *path, struct err_why *why,
                    struct store_contents *out_found) ICMS_MUST_CHECK;

/* Memory that store_open takes for a drive of so many bytes. */
uint64_t store_memory_bytes(const struct store_opts *opts, uint64_t drive_bytes);

/* Writes an empty store. Refuses with FOREIGN, leaving every byte as it is, when the drive holds
 * anything that is not zeros and not an icms store, unless overwrite is set; EXISTS when it is an
 * icms store already and overwrite is not set. Blocking. */
icms_err store_format(struct loop_env *env, const struct store_opts *opts, bool overwrite,
                      struct err_why *why) ICMS_MUST_CHECK;

/* Opens a formatted drive: takes the lock, checks the superblock, reads the summaries of sealed
 * segments, scans open ones. Blocking. FOREIGN, VERSION, LOCKED, NOT_FOUND, IO (truncated too),
 * CORRUPT (both superblocks damaged), INVALID (value_bytes_max does not fit, the write budget saves
 * up less than a record) with a sentence. */
icms_err store_open(struct loop *loop, const struct store_opts *opts, struct err_why *why,
                    struct store **out_store) ICMS_MUST_CHECK;

/* Out of service from now on; true: nothing is in flight, and the store does nothing any more that
 * was not asked for, so that it may be closed. On its loop, again and again until then. */
bool store_rest(struct store *store);

/* Frees everything. Only after loop_free of its loop (nothing can be in flight), or when store_rest
 * said so. *store may be NULL. */
void store_close(struct store **store);

/* ---- volumes -------------------------------------------------------------------------------- */

/* The life of a volume on a drive. It has a number, below 1,024, that it keeps until the store is
 * closed.
 *
 *   FREE -> LIVE      store_open with it among the volumes of the options, or store_volume_begin
 *   LIVE -> RETIRED   store_volume_retire: operations go on as before, but the drive has nothing
 * for it any more: its segments are evicted before those of others RETIRED -> LIVE
 * store_volume_begin with its UUID: what was not evicted is found again
 *
 * At the next open a volume that is not among the options has no number; its records are kept until
 * their segments are evicted, before all others. A number is not used for another volume. */

/* Begins a volume while the loop runs. BUSY: the drive has records of it that were not read at the
 * open, where it was not configured; with them a key could have two records that count. EXISTS:
 * another volume has the number. With a sentence; nothing is changed then. */
icms_err store_volume_begin(struct store *store, uint32_t number, const struct uuid *uuid,
                            struct err_why *why) ICMS_MUST_CHECK;
/* Nothing happens when the number has no volume. */
void store_volume_retire(struct store *store, uint32_t number);

/* What a volume holds on several drives together: records that are live, and those that are being
 * written. Embedded by the owner of the stores; all zeros with bytes_max and share_min set before
 * store_volume_limit. The stores write it, each on its loop. */
struct store_quota {
    _Atomic uint64_t bytes_max; /* on all drives                                           */
    _Atomic uint64_t share_min; /* of the drive that is to have the least                  */
    _Atomic uint64_t bytes;     /* on all drives in service                                  */
    _Atomic uint64_t waiting;   /* bytes of writes that wait for it, the first of each drive */
};

/* Limits what a volume (by its number) holds. quota_bytes is this drive's part of the quota; 0:
 * there is no limit. shared: the quota of all drives that have a part, which stays until the last
 * store was closed; NULL: this drive's alone. A volume without a limit, or with a part of four
 * segments at least, gets an append stream of its own, as far as there are some (64, and one for 16
 * segments of the drive; those of retired volumes are used again); the others share one. It keeps
 * that stream when the limit changes. One that is not limited shares.
 *
 * Again, on the loop: another limit. The owner changes *shared before, and calls store_quota_look
 * on each drive after. What the volume holds beyond a lower quota is evicted; a write that waits
 * and is larger than the quota by now ends with QUOTA. NO_MEMORY: only the first time. */
icms_err store_volume_limit(struct store *store, uint32_t volume, uint64_t quota_bytes,
                            struct store_quota *shared, struct err_why *why) ICMS_MUST_CHECK;

/* See store_ops.quota. */
void store_quota_look(struct store *store);

/* ---- the owner's note ----------------------------------------------------------------------- */

/* Bytes that the owner of the store may keep on the drive in each of so many pages; a new format
 * has zeros, and in page 0 store_opts.note. */
#define STORE_NOTE_BYTES 4072
#define STORE_NOTES      6

/* The UUID that the drive got when it was formatted, which names it whatever its path is, and what
 * was kept in page 0; *out_lost: both copies are damaged, and the
 * bytes are zeros. Before store_open, blocking. NO_MEMORY, IO, and what store_open answers to a
 * drive that is not a store. */
icms_err store_note_read(struct loop_env *env, const char *path, struct err_why *why,
                         struct uuid *out_drive, void *out_bytes, bool *out_lost) ICMS_MUST_CHECK;

/* All pages of a drive, as store_note answers them; nothing is changed or locked, and another
 * process may have it open. out_pages: STORE_NOTES * STORE_NOTE_BYTES. Blocking. NO_MEMORY, and
 * what store_look answers to a drive that is not a store. */
icms_err store_notes_look(struct loop_env *env, const char *path, struct err_why *why,
                          void *out_pages) ICMS_MUST_CHECK;

/* What is kept in a page: STORE_NOTE_BYTES, zeros when both copies are damaged. Stays until the
 * page is replaced. On the store's loop, or before it starts. */
const void *store_note(const struct store *store, uint32_t page);

/* Replaces a page, durably. Blocking; before the loop starts. */
icms_err store_note_put_now(struct store *store, uint32_t page, const void *bytes,
                            struct err_why *why) ICMS_MUST_CHECK;

struct store_note {
    uint32_t page;                         /* below STORE_NOTES                               */
    const void *bytes;                     /* STORE_NOTE_BYTES; taken before the call returns */
    void (*done)(struct store_note *note); /* called once                                     */
    icms_err err;                          /* OK, DRIVE_DOWN                                  */
};

/* Replaces a page, durably against power loss when done is called; one at a time. A note that
 * cannot be written takes the drive out of service. DRIVE_DOWN. */
icms_err store_note_put(struct store *store, struct store_note *note) ICMS_MUST_CHECK;

/* ---- operations ----------------------------------------------------------------------------- */

struct store_write {
    /* in: set by the caller */
    uint32_t volume;      /* its number in store_opts.volumes                  */
    struct key key;       /* 1..16 bytes                                       */
    uint8_t *memory;      /* aligned to LIMIT_DISK_ALIGN; store_record_bytes() big;
                             the value starts at memory + STORE_HEADER_BYTES; the
                             store fills all around it                         */
    uint32_t value_bytes; /* 1 .. value_bytes_max                              */
    bool if_absent;       /* EXISTS when the key is there                      */
    uint64_t only_record; /* relocate only this one (store_read.record): it does not count as
                             stored; MISS when the key has another, or none. 0: whatever is there */
    void (*done)(struct store_write *write); /* called once                                      */
    /* out, valid in done */
    icms_err err; /* OK, EXISTS, MISS, QUOTA, NO_SPACE, IO, DRIVE_DOWN; BUSY: the write budget
                     runs short, and the block was not offered or there lately */
    /* private */
    uint64_t private_words[64];
};

/* Appends, and kills the record that the key had before. All that is written to the drive counts
 * for its write budget; when that runs short, new blocks are refused at once, deletes never. Two
 * writes of one key: the one that was submitted later wins. */
icms_err store_write(struct store *store, struct store_write *write) ICMS_MUST_CHECK;

/* Records of at least so many bytes are read in parts by who asks for it (store_read.more). */
#define STORE_READ_SPLIT_BYTES ((uint32_t)400 << 10)

struct store_read {
    /* in */
    uint32_t volume;
    struct key key;
    uint8_t *memory;                       /* aligned; the record is read here                   */
    uint64_t memory_bytes;                 /* room; store_record_bytes(value) is needed          */
    void (*more)(struct store_read *read); /* a large value is read in pieces, and this is called
                                              when good_bytes grew; NULL: read it in one         */
    void (*done)(struct store_read *read); /* called once                                        */
    /* Without more: the whole record can be read another way. True: that has begun, to `memory`,
     * and store_read_came follows, later, on the same loop; false: the store reads it. What does
     * not hold then is read again by the store, and that counts. NULL */
    bool (*instead)(struct store_read *read, int fd, uint64_t offset, uint32_t bytes);
    /* out, valid in more and done */
    bool instead_wrong;   /* what came `instead` did not hold: the store has read it again       */
    uint8_t *value;       /* inside memory                                                       */
    uint32_t value_bytes; /* whole value                                                         */
    uint64_t record;      /* the record that was read: no other of this drive ever has this number;
                             also with MISS and reason CHECKSUM                                  */
    uint32_t good_bytes;  /* in more: of the value, from its begin, in memory and verified; whole
                             pieces of 256 KiB, and never all of the value                       */
    /* out, valid in done */
    icms_err err;          /* OK, MISS, IO, VALUE_SIZE (room too small), DRIVE_DOWN              */
    enum icms_miss reason; /* with MISS: ABSENT, EVICTED, CHECKSUM, DRIVE_DOWN                   */
    /* private */
    uint64_t private_words[152];
};

/* Reads and verifies one block. A bad checksum is a miss with reason CHECKSUM, counted once; it
 * stays that until the block is stored, deleted or evicted, and store_exists says no. A block that
 * is deleted, replaced or evicted during the read is read all the same.
 *
 * With more, a record of STORE_READ_SPLIT_BYTES or above is read in parts, several at a time. Each
 * piece of the value is verified by its own CRC when it is in memory, in order. more is called for
 * pieces whose bytes are what was stored, and not after one that is not; a read may fail after it.
 * The device writes to memory until done. */
icms_err store_read(struct store *store, struct store_read *read) ICMS_MUST_CHECK;

/* After `instead`. came: memory has the record, as the drive would have read it. False: nobody
 * writes to memory any more; the store reads it. */
void store_read_came(struct store_read *read, bool came);

/* Answers from the index, no I/O. out_bytes (may be NULL): an upper bound of the value's bytes
 * (exact to the record's alignment). */
bool store_exists(struct store *store, uint32_t volume, const struct key *key,
                  uint64_t *out_bytes_max);

/* The record that a key has now (store_read.record), damaged or not; 0: none. No I/O. */
uint64_t store_record_now(struct store *store, uint32_t volume, const struct key *key);

/* Counts an access to a block, as a read or a write with if_absent does. No I/O. */
void store_touch(struct store *store, uint32_t volume, const struct key *key);

/* Why a key is not there: CHECKSUM when its value is known to be damaged, EVICTED when the ghost
 * filter remembers it, else ABSENT. */
enum icms_miss store_miss_reason(struct store *store, uint32_t volume, const struct key *key);

struct store_delete {
    uint32_t volume;
    struct key key;
    uint64_t only_record; /* delete only this one (store_read.record); 0: whatever is there */
    void (*done)(struct store_delete *delete); /* called once */
    icms_err err; /* OK, MISS (was not there, or is another record), DRIVE_DOWN */
    uint64_t private_words[64];
};

/* Forgets a block for good: its record is marked as dead, durably. */
icms_err store_delete(struct store *store, struct store_delete *delete) ICMS_MUST_CHECK;

struct store_flush {
    void (*done)(struct store_flush *flush); /* called once */
    icms_err err;                            /* OK, IO */
    uint64_t private_words[64];
};

/* Makes every completed write durable against power loss. DRIVE_DOWN when the store is out of
 * service. */
icms_err store_flush(struct store *store, struct store_flush *flush) ICMS_MUST_CHECK;

struct store_probe {
    uint8_t *memory; /* aligned, LIMIT_DISK_ALIGN bytes                     */
    void (*done)(struct store_probe *probe); /* called once */
    icms_err err;                            /* OK, IO */
    uint64_t private_words[64];
};

/* Reads one page of the drive: how long does it take? Its outcome counts nowhere. DRIVE_DOWN when
 * the store is out of service. */
icms_err store_probe(struct store *store, struct store_probe *probe) ICMS_MUST_CHECK;

/* ---- listing keys --------------------------------------------------------------------------- */

/* A position in the order in which the keys of a volume are listed: by their hash, then by the key.
 * It is the same for all stores with one opts.hash_seed. All zeros is before the first key. */
struct store_position {
    uint64_t hash;
    struct key key;
};

/* Behind the last key. */
extern const struct store_position store_position_end;

/* Less than, equal to or greater than 0, as memcmp. */
int store_position_compare(const struct store_position *a, const struct store_position *b);

/* The position just before a key, which need not be there. */
struct store_position store_position_before(const struct store *store, uint32_t volume,
                                            const struct key *key);

/* Positions of the volume's keys behind *from, up to until, in order; returns how many, keys_max at
 * most. Looks at about steps_max places of the index, and moves *from to where it got: behind the
 * last key that was given, or to until when there are no more. A key that is there throughout is
 * given exactly once by calls that go on from each other, whatever else changes between them. No
 * I/O. */
uint32_t store_list(struct store *store, uint32_t volume, struct store_position *from,
                    const struct store_position *until, uint32_t steps_max,
                    struct store_position *keys, uint32_t keys_max);

/* ---- state ---------------------------------------------------------------------------------- */

struct store_volume_stats {
    uint64_t blocks; /* live blocks                                */
    uint64_t bytes;  /* of flash held by live records              */
    uint64_t quota_bytes;
    uint64_t evictions; /* blocks evicted since the store was opened   */
};

struct store_stats {
    /* counters, for any thread */
    uint64_t segments, segments_free, segments_open;
    uint64_t free_low_ns; /* free segments are under the low-water mark since; 0: they are not */
    uint64_t drive_bytes; /* size of the drive                               */
    uint64_t capacity_bytes, used_bytes; /* used: live records                             */
    uint64_t blocks, blocks_max, index_bytes;
    uint64_t reads, writes, deletes;  /* completed                                       */
    uint64_t read_bytes, write_bytes; /* values                                          */
    uint64_t device_write_bytes;      /* all that went to the device                     */
    uint64_t admitted_bytes;          /* records of values that were stored              */
    uint64_t discarded_bytes;         /* that the device was told are free               */
    uint64_t write_streams;           /* of the device; 0: it has none                   */
    uint64_t refused;                 /* writes that the write budget did not allow      */
    uint64_t budget_bytes_day;        /* 0: no write budget                              */
    uint64_t budget_left_bytes;       /* that may be written at once; 0 while some are owed */
    uint64_t evictions;               /* blocks since the format, kept over restarts     */
    uint64_t checksum_errors; /* damage that was met: values lost, headers read from their copy,
                                 pages of a segment that had to be replaced */
    uint64_t io_errors;       /* operations that the device failed                               */
    uint64_t no_space_errors; /* writes for which what is below the store had no space           */
    uint64_t recovered_blocks, recovery_ns; /* of the last open                                */
    uint64_t list_steps;                    /* places of the index that store_list looked at   */
    /* of the store */
    bool full;                         /* the last write of a record was one of no_space_errors */
    bool down;                         /* out of service after device errors              */
    const struct hist *evicted_age_ns; /* of evicted blocks: since their segment was opened, or
                                          since the store was                             */
};

/* Any thread; numbers a moment old. */
void store_stats(const struct store *store, struct store_stats *out_stats);
void store_volume_stats(const struct store *store, uint32_t volume,
                        struct store_volume_stats *out_stats);

/* Something that the drive did wrong. */
struct store_error {
    const char *what; /* "read of a value"; static                                           */
    icms_err err;     /* CORRUPT: the bytes are not those that were written; NO_SPACE; else what
                         the device answered                                                 */
    uint64_t offset;  /* on the drive; STORE_ERROR_NOWHERE: of all of it                     */
    uint32_t volume;  /* whose block it is, by its number; STORE_ERROR_NO_BLOCK: of none     */
    struct key key;   /* of that block                                                       */
};
#define STORE_ERROR_NOWHERE  UINT64_MAX
#define STORE_ERROR_NO_BLOCK UINT32_MAX

/* The oldest error that was not taken yet, and how many after the one before it found no place;
 * false: none. 64 are kept. One thread at a time, any. */
bool store_error_take(struct store *store, struct store_error *out_error, uint64_t *out_missed);

#endif
