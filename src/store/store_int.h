/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/store_int.h: what the files of the store share. Private.
 *
 * Everything here belongs to the store's loop. Counters that other threads read are written with
 * store_stat_add and read with store_stat_get.
 */
#ifndef STORE_STORE_INT_H
#define STORE_STORE_INT_H

#include "base/check.h"
#include "base/list.h"
#include "policy/policy.h"
#include "store/ghost.h"
#include "store/index.h"
#include "store/layout.h"
#include "store/store.h"

/* Failed device writes (reads) in a row after which the drive is out of service. */
#define STORE_WRITE_ERRORS_MAX 8
#define STORE_READ_ERRORS_MAX  64

/* Streams: one for each volume that has its own, and one that the others share. */
#define STORE_SHARED  LIMIT_VOLUMES
#define STORE_STREAMS (LIMIT_VOLUMES + 1)

/* A volume has its own stream when its quota is 0 or at least so many segments. */
#define STORE_OWN_SEGMENTS_MIN 4

/* Own streams: at most one for so many segments, so that open segments stay a small part. */
#define STORE_SEGMENTS_A_STREAM 16

/* Summary pages read in one piece by reclaim. */
#define STORE_RECLAIM_PAGES 16

/* Entries of the index looked at in one go by a sweep. */
#define STORE_SWEEP_STEPS 16384

/* Changes that are under way are found by key in a table of so many chains. */
#define STORE_KEY_CHAINS 1024

/* Segments that are discarded in one go, and how long after it the next batch may begin. */
#define STORE_DISCARD_BATCH    4
#define STORE_DISCARD_PAUSE_NS ((uint64_t)250 * 1000 * 1000)

/* An open that finds more blocks than the index holds drops one part in so many at a time. */
#define STORE_INDEX_PART 16

/* No summary on flash: reclaim sweeps the index instead. */
#define STORE_NO_SUMMARY UINT32_MAX

#define STORE_MAGIC        0x73746f72u
#define STORE_CHANGE_MAGIC 0x73746368u
#define STORE_READ_MAGIC   0x73747264u
#define STORE_FLUSH_MAGIC  0x7374666cu

struct store_summary;

/* Something to be called from the loop, not from inside the call that found it. */
struct store_later {
    struct list link;                       /* store.later */
    void (*run)(struct store_later *later); /* what to call */
};

enum store_segment_state {
    SEGMENT_FREE,       /* nothing in the index points here; waits in store.free to be opened;
                           woken by store_opener_kick                                          */
    SEGMENT_OPENING,    /* header and its copy are on their way; woken by store_opener_done */
    SEGMENT_OPEN,       /* takes records, or waits to (its stream's next); leaves when one does
                           not fit                                                             */
    SEGMENT_SEALING,    /* takes no more; waits for its records, then for its summary; woken by
                           store_change_written, store_seal_done                               */
    SEGMENT_SEALED,     /* rests until store_reclaim_kick picks it, or its last block dies     */
    SEGMENT_RECLAIMING, /* its summary is read and its blocks are evicted; woken by
                           store_reclaim_read_done, store_reclaim_swept                        */
    SEGMENT_DISCARDING, /* like FREE, but on its way to be empty on flash, too; woken by
                           store_discard_done                                                  */
    SEGMENT_STATES,
};

struct store_segment {
    struct list link;  /* FREE: store.free; SEALING, SEALED, RECLAIMING: its stream's segments  */
    uint64_t nonce;    /* of this life                                                        */
    uint64_t sequence; /* of its opening; orders segments by age; 0: never opened              */
    uint64_t since_ns; /* when it was opened; 0: before the store was                          */
    uint64_t present;  /* volumes (bits) with any record on flash, live or dead                */
    uint64_t live;     /* volumes that may have live blocks                                    */
    uint64_t hides;    /* volumes with records that hide older ones elsewhere: tombstones,
                          newer versions. It may not be written over before those              */
    uint64_t covers;   /* those of them whose older records may lie in segments that live on, and
                          not only in free ones: it may not be reclaimed before those          */
    uint64_t partial;  /* volumes of which blocks were evicted, though it lives on             */
    struct store_summary *summary; /* OPEN, SEALING: entries so far                             */
    struct policy_segment recency; /* its last access                                         */
    uint32_t live_blocks;          /* index entries that point here, marks too                */
    uint32_t live_pages;           /* of their records, without marks                         */
    uint32_t generation;           /* how often it was opened                                 */
    uint32_t summary_pages;        /* SEALED: on flash, or STORE_NO_SUMMARY                   */
    uint32_t pins;                 /* reads in flight; FREE: not opened while above 0         */
    uint32_t writes;               /* record writes in flight                                 */
    uint32_t next_page;            /* OPEN: where the next record goes                        */
    uint32_t evicted;              /* store.evicted chain: evictions that are not final yet   */
    uint64_t moved;                /* blocks have newer records elsewhere, which are durable once
                                      the flush of this number is over; 0: none               */
    uint64_t evicted_turn;         /* of the ghosts, at the first eviction of this life; plus 1 */
    bool forgotten;                /* ghosts do not know all that is on flash and not in the
                                      index: they forgot it, or its write failed              */
    bool clean;                    /* FREE: the device was told that it is empty               */
    bool refused;                  /* FREE: its header could not be written; others go first   */
    uint8_t state;                 /* enum store_segment_state                                */
    uint8_t stream;                /* OPEN..RECLAIMING: whose list                            */
};

/* Entries of a segment in memory, in the form they have on flash; from a pool. */
struct store_summary {
    struct list link;               /* store.summaries while unused                  */
    struct store *store;            /* its owner                                     */
    struct store_segment *segment;  /* whose entries                                 */
    struct loop_op op;              /* the flush of the records, then the write of the
                                       summary and the footer                        */
    struct store_summary_df *pages; /* room for all entries, and a footer page       */
    uint32_t count;                 /* entries                                       */
    uint32_t placed;                /* records placed: entries there will be at most */
    uint32_t flash_pages;           /* SEALING: being written, without the footer    */
    uint64_t flush;                 /* number of the flush                           */
    struct store_later later;       /* ends the write when a fault point failed it   */
};

struct store_stream {
    struct store_segment *open; /* takes records; NULL: none                       */
    struct store_segment *next; /* OPEN and empty: takes them when that one is full */
    struct list segments;       /* SEALING, SEALED, RECLAIMING; oldest first       */
    uint32_t segment_count;     /* in segments                                     */
    bool wants;                 /* a change waits for a segment to be opened       */
    uint32_t hint;              /* write stream of the device; 0: none             */
};

/* Evictions of one volume that become final when their segment is opened again. */
struct store_evicted {
    uint32_t next;   /* in the chain of the segment, or of unused ones; 0: the last */
    uint32_t count;  /* blocks                                                      */
    uint32_t volume; /* slot; LIMIT_VOLUMES: one that was forgotten                  */
};

struct store_volume {
    struct uuid uuid;         /* its name on flash */
    bool used;                /* slot is taken: found on flash or added                   */
    bool added;               /* by store_volume_add: its blocks are visible              */
    bool own;                 /* has a stream of its own                                  */
    bool over;                /* a write waits for the volume's own oldest to be evicted  */
    uint64_t quota_bytes;     /* 0: all                                                   */
    uint64_t need_bytes;      /* over: of the write that waits                            */
    uint64_t flight_bytes;    /* records placed and not yet written                       */
    uint64_t evictions_final; /* whose segment was written over: what headers carry       */
    uint32_t partial;         /* segments with partial set for it                         */
    struct list parked;       /* store_change.link, in order of arrival                   */
    /* read by any thread */
    uint64_t blocks;    /* live */
    uint64_t bytes;     /* of flash, of live records */
    uint64_t evictions; /* since the format */
};

enum store_change_state {
    CHANGE_KEY,     /* an earlier change of the same key is under way; woken by store_change_end */
    CHANGE_PARKED,  /* waits in its volume's queue for room: a slot, flash, an index entry, the
                       quota; woken by store_pump                                              */
    CHANGE_DEVICE,  /* its record is being written; woken by store_change_written               */
    CHANGE_FLUSH,   /* its record waits for a flush; woken by store_witness_flushed             */
    CHANGE_WITNESS, /* its witness is being written; woken by store_witness_written            */
    CHANGE_ANSWER,  /* the answer is known; woken by store_later_run                            */
};

/* The private part of store_write and store_delete. */
struct store_change {
    uint32_t magic;                /* STORE_CHANGE_MAGIC until done */
    uint8_t state;                 /* enum store_change_state             */
    bool is_delete;                /* in a store_delete, else store_write */
    bool was_there;                /* delete: the block was in the index  */
    bool witness;                  /* it replaces a value that can be read */
    bool fresh;                    /* it replaces nothing                 */
    bool admitted;                 /* the write budget was charged        */
    icms_err err;                  /* the answer                          */
    struct store *store;           /* where to */
    struct store_segment *segment; /* DEVICE: where its record goes                     */
    struct list link;              /* PARKED: volume.parked; KEY: waiters of the first;
                                      FLUSH: witness.waiting, then witness.flushing     */
    struct list waiters;           /* later changes of the same key, in order           */
    struct list key_link;          /* store.keys, while it is the first of its key      */
    uint64_t sequence;             /* of its record                                     */
    uint32_t page;                 /* of its record                                     */
    uint32_t pages;                /* of its record                                     */
    struct store_later later;      /* ANSWER; DEVICE, WITNESS at a fault point */
    struct loop_op op;             /* DEVICE, WITNESS: the write */
};
static_assert(sizeof(struct store_change) <= sizeof(((struct store_write *)0)->private_words),
              "a change fits in a store_write");
static_assert(sizeof(struct store_change) <= sizeof(((struct store_delete *)0)->private_words),
              "a change fits in a store_delete");

/* The write that a change is the private part of. */
static inline struct store_write *store_change_write(struct store_change *change)
{
    check(change->magic == STORE_CHANGE_MAGIC && !change->is_delete);
    return container_of((uint64_t *)(void *)change, struct store_write, private_words);
}

/* The private part of store_read. */
struct store_read_private {
    uint32_t magic;           /* STORE_READ_MAGIC until done */
    bool on_device;           /* the read was started and its done has not run */
    struct store *store;      /* where from */
    struct store_spot spot;   /* of the record */
    struct store_later later; /* an answer without the device */
    struct loop_op op;        /* the read */
};
static_assert(sizeof(struct store_read_private) <= sizeof(((struct store_read *)0)->private_words),
              "fits");

/* The private part of store_flush. */
struct store_flush_private {
    uint32_t magic;           /* STORE_FLUSH_MAGIC until done */
    struct store *store;      /* which one */
    uint64_t flush;           /* its number */
    struct store_later later; /* an answer without the device */
    struct loop_op op;        /* the flush */
};
static_assert(sizeof(struct store_flush_private) <=
                  sizeof(((struct store_flush *)0)->private_words),
              "fits");

/* Changes that replace a value: a flush at a time for all that are there when it begins. */
struct store_witness {
    struct list waiting;      /* store_change.link: for the next flush                    */
    struct list flushing;     /* the same: what the flush under way is for                */
    bool busy;                /* a flush is under way                                     */
    uint64_t flush;           /* its number                                               */
    struct store_later later; /* ends it when a fault point failed it                 */
    struct loop_op op;        /* the flush */
};

/* The steps of opening a segment. The header is durable before anything else of the old life is
 * written over: a torn header leaves the old footer, and so the old life, in place, and evictions
 * that are durable are in a header that is. */
enum store_opener_step {
    OPENER_FLUSH_BEFORE, /* of a segment that hides: what was written over before is durable
                            first; of one whose blocks moved: where they moved to, unless
                            a flush has seen that since                                     */
    OPENER_HEADER,       /* the new life begins                                             */
    OPENER_FLUSH_AFTER,  /* the header is durable                                           */
    OPENER_FOOTER,       /* the header again, over the old footer                           */
    OPENER_FINISHED,
};

/* Opens one segment at a time. */
struct store_opener {
    struct store_segment *segment;  /* NULL: idle                                      */
    uint32_t stream;                /* for whom                                        */
    uint32_t cursor;                /* the stream that is looked at first              */
    uint8_t step;                   /* enum store_opener_step; woken by store_opener_done */
    uint64_t flush;                 /* number of the flush under way                   */
    bool flush_before;              /* the old life hid records, or blocks moved away  */
    struct store_later later;       /* ends a step when a fault point failed it        */
    struct loop_op op;              /* of the step */
    struct store_header_df *header; /* aligned page */
};

/* The steps of discarding a batch of segments: all take the first three, then all the others. */
enum store_discard_step {
    DISCARD_FLUSH_BEFORE, /* as OPENER_FLUSH_BEFORE                                */
    DISCARD_HEADER,       /* an empty life begins; the next segment, or            */
    DISCARD_FLUSH,        /* all headers are durable                               */
    DISCARD_FOOTER,       /* the empty life is over, so that no open scans it      */
    DISCARD_DEVICE,       /* what lies between them is discarded; the next segment */
};

/* Discards one batch at a time. */
struct store_discard {
    bool on;                                          /* wanted, and the device takes it    */
    uint8_t step;                                     /* woken by store_discard_done        */
    uint32_t count;                                   /* segments of the batch; 0: idle     */
    uint32_t at;                                      /* of them: the one under way         */
    struct store_segment *batch[STORE_DISCARD_BATCH]; /* in the order they were freed       */
    uint64_t flush;                                   /* number of the flush under way      */
    uint64_t next_ns;                                 /* no batch begins before             */
    void *page;                                       /* aligned; header, then footer       */
    struct loop_op op;                                /* of the step                        */
};

/* Reclaims one segment at a time. */
struct store_reclaim {
    struct store_segment *segment;  /* NULL: idle                                      */
    uint32_t volume;                /* STORE_SHARED: all blocks; else those of one      */
    uint32_t page;                  /* summary page the chunk begins with, from 0       */
    uint32_t pages;                 /* in the chunk                                     */
    bool footer_known;              /* rows[] is set                                    */
    uint8_t rows[LIMIT_VOLUMES];    /* slots of the volumes in the footer; LIMIT_VOLUMES: none */
    uint32_t sweep_cursor;          /* in the index                                     */
    uint32_t quota_cursor;          /* the volume that is looked at first               */
    bool whole;                     /* the segment is to be free in the end             */
    bool stopped;                   /* enough was evicted before the end                */
    struct store_later later;       /* next slice of a sweep                            */
    struct loop_op op;              /* the read of the chunk */
    struct store_summary_df *chunk; /* STORE_RECLAIM_PAGES aligned pages                */
};

struct store {
    uint32_t magic;            /* STORE_MAGIC */
    bool down;                 /* out of service                                      */
    bool free_low;             /* free segments under the low-water mark               */
    bool tight;                /* a change waits for an index entry                    */
    bool pumping;              /* inside store_pump                                    */
    bool pump_more;            /* store_pump was called from inside itself             */
    uint32_t forgotten;        /* segments with forgotten set                         */
    bool dropped;              /* blocks left the index since the open that are still on flash */
    struct loop *loop;         /* whose thread all of this is on */
    struct loop_file *file;    /* the drive */
    struct store_super super;  /* sizes */
    uint32_t segment_pages;    /* of each segment */
    uint32_t value_bytes_max;  /* from the options */
    uint32_t writes_max;       /* from the options */
    uint32_t writes;           /* records in flight */
    uint32_t volumes_added;    /* slots with added set */
    uint32_t write_errors;     /* in a row */
    uint32_t read_errors;      /* in a row */
    uint64_t sequence;         /* the last one given */
    uint64_t flushes;          /* flushes of the device that began */
    uint64_t flushed;          /* the last of them that is known to have succeeded */
    struct store_index *index; /* where blocks are */
    struct store_ghost *ghost; /* what was evicted lately */
    struct store_segment *segments;             /* by number */
    struct store_volume volumes[LIMIT_VOLUMES]; /* by slot */
    struct store_stream streams[STORE_STREAMS]; /* by slot; the last is shared */
    struct list free;                   /* in the order of reclaim: the next to open is the first */
    uint32_t free_count;                /* segments in free */
    uint32_t free_reserve;              /* reclaim begins when fewer are free              */
    uint32_t next_count;                /* streams that have their next segment            */
    uint32_t free_low_mark;             /* fewer: free_low                                 */
    struct list summaries;              /* unused                                          */
    struct list keys[STORE_KEY_CHAINS]; /* first changes of their key (key_link)   */
    uint64_t key_seed;                  /* of the chains */
    uint64_t hash_seed;                 /* of the salts                                    */
    uint64_t salts[LIMIT_VOLUMES];      /* of the index: made of the seed and the volume   */
    uint64_t parked_map;                /* volumes with parked changes                     */
    uint32_t pump_cursor;               /* volume that goes first                          */
    struct store_evicted *evicted;      /* pool; [0] is not used                        */
    uint32_t evicted_unused;            /* chain                                        */
    struct store_opener opener;         /* opens segments */
    struct store_reclaim reclaim;       /* frees them */
    struct store_discard discard;       /* tells the device what is free */
    struct store_witness witness;       /* of changes that replace a value */
    struct policy *policy;              /* says which, and what is written at all */
    struct policy_opts policy_opts;     /* what it was made of */
    struct store_later kick;            /* the first store_pump, when the loop runs        */
    struct list later;                  /* store_later.link                                */
    struct loop_msg later_msg;          /* runs them                                       */
    bool later_sent;                    /* later_msg is on its way */
    void (*on_down)(void *arg);         /* called once; may be NULL */
    void *on_down_arg;                  /* its argument */
    uint64_t evictions_final;           /* all volumes, forgotten ones too */
    void *buffers[2 * STORE_STREAMS + 8]; /* to free in the end */
    uint32_t buffer_count;                /* in buffers */
    /* read by any thread */
    uint64_t budget_ms;       /* when stats.budget_left_bytes was right */
    struct store_stats stats; /* but for down and free_low */
    struct hist evicted_age_ns;
    uint64_t since_ns; /* when the store was opened; 0: it is being opened */
};

/* ---- counters ---- */

static inline void store_stat_set(uint64_t *stat, uint64_t value)
{
    __atomic_store_n(stat, value, __ATOMIC_RELAXED);
}

static inline void store_stat_add(uint64_t *stat, uint64_t n)
{
    store_stat_set(stat, *stat + n);
}

static inline uint64_t store_stat_get(const uint64_t *stat)
{
    return __atomic_load_n(stat, __ATOMIC_RELAXED);
}

/* ---- store.c ---- */

static inline uint64_t store_volume_bit(uint32_t volume)
{
    return (uint64_t)1 << volume;
}

static inline uint32_t store_segment_number(const struct store *store,
                                            const struct store_segment *segment)
{
    return (uint32_t)(segment - store->segments);
}

/* Where a page of a segment lies on the drive. */
static inline uint64_t store_segment_offset(const struct store *store, uint32_t segment,
                                            uint32_t page)
{
    return STORE_DATA_OFFSET + segment * store->super.segment_bytes +
           (uint64_t)page * STORE_PAGE_BYTES;
}

/* To which write stream of the device a segment goes, so that its erase units hold what is
 * reclaimed together; 0: to none. */
static inline uint32_t store_segment_hint(const struct store *store,
                                          const struct store_segment *segment)
{
    return store->streams[segment->stream].hint;
}

/* A flush of the device begins; returns its number. What was written before is durable when
 * store_flush_end was told so. */
static inline uint64_t store_flush_begin(struct store *store)
{
    return ++store->flushes;
}

static inline void store_flush_end(struct store *store, uint64_t flush, icms_err err)
{
    if (err == ICMS_OK && flush > store->flushed)
        store->flushed = flush;
}

/* A block of the segment has a newer record elsewhere: the next flush makes it durable. */
static inline void store_segment_moved(struct store *store, uint32_t segment)
{
    store->segments[segment].moved = store->flushes + 1;
}

/* Aligned zeroed pages that live as long as the store; NULL: no memory. */
void *store_pages_new(struct store *store, uint64_t pages);

/* Counts what was written beside values, for the write budget too. */
void store_overhead_written(struct store *store, uint64_t bytes);

/* Notes what is left of the write budget, for other threads. */
void store_budget_note(struct store *store);

/* Runs later->run from the loop. */
void store_later_run(struct store *store, struct store_later *later,
                     void (*run)(struct store_later *));

/* Counts the outcome of a record's write, or of a read; too many failures in a row take the drive
 * out. */
void store_write_outcome(struct store *store, icms_err err);
void store_read_outcome(struct store *store, icms_err err);

/* The same for headers, summaries and flushes, whose success says nothing about records. */
static inline void store_overhead_outcome(struct store *store, icms_err err)
{
    if (err != ICMS_OK)
        store_write_outcome(store, err);
}

/* ---- volume.c ---- */

/* The slot of a uuid; -1: it has none. */
int store_volume_slot_find(const struct store *store, const struct uuid *uuid);

/* The same, taken if need be; -1: all 64 are. */
int store_volume_slot(struct store *store, const struct uuid *uuid);

/* ---- segment.c ---- */

void store_segment_free(struct store *store, struct store_segment *segment);

/* A record of the volume that nothing hides stays in the segment while that lives on: its block was
 * evicted, or its write failed. */
void store_segment_partial_begin(struct store *store, struct store_segment *segment,
                                 uint32_t volume);

/* No record of these volumes in the segment was evicted any more: they, or it, are gone. */
void store_segment_partial_end(struct store *store, struct store_segment *segment,
                               uint64_t volumes);

/* SEALED, nothing alive and nothing hidden elsewhere: it can go at once. */
bool store_segment_is_dead(const struct store_segment *segment);
void store_segment_live_add(struct store *store, uint32_t volume, const struct store_spot *spot);
void store_segment_live_sub(struct store *store, uint32_t volume, const struct store_spot *spot);

/* Takes a block out of the index to make room; a mark of a damaged one goes without being counted.
 */
void store_segment_evict(struct store *store, const struct store_block *block);
bool store_segment_fits(const struct store *store, const struct store_segment *segment,
                        uint32_t pages);
void store_segment_seal(struct store *store, struct store_segment *segment);
void store_segment_written(struct store *store, struct store_segment *segment);
void store_segment_unpin(struct store *store, struct store_segment *segment);

/* Appends the entry of a record that is on flash. */
void store_summary_add(struct store_summary *summary, const struct store_record *record,
                       uint32_t page, uint32_t volume);

/* Makes the summary pages and the footer of a segment; returns how many pages that is. */
uint32_t store_summary_make(struct store *store, struct store_summary *summary);
bool store_summary_pool_add(struct store *store);
void store_opener_kick(struct store *store);

/* Whether the segment that is being opened may still have its old life on flash. */
bool store_opener_before(const struct store *store);

/* The old life of the segment is over: draws a new one and makes its header page. */
void store_life_begin(struct store *store, struct store_segment *segment,
                      struct store_header_df *out_header);

/* The header of the new life is durable: nothing of the old one counts any more. */
void store_life_begun(struct store *store, struct store_segment *segment);

/* Makes the footer page of its life, for so many records. */
void store_life_end(struct store *store, const struct store_segment *segment, uint32_t records,
                    struct store_footer_df *out_footer);
void store_free_count_set(struct store *store, uint32_t count);

/* Notes that the ghosts do not know all of it, until it is written over. */
void store_segment_forget(struct store *store, struct store_segment *segment);

/* Whether a block that is not in the index may be on flash, where the next open would find it. */
bool store_segment_trace(const struct store *store, uint32_t volume, const struct key *key);

/* ---- write.c ---- */

/* The record of a change, and its witness when it has one, is on flash, or could not be written:
 * puts it into index and summary, and answers. */
void store_change_stored(struct store_change *change, icms_err err);

/* Lets parked changes go on, then the opener and reclaim. */
void store_pump(struct store *store);

/* ---- store.c ---- */

/* What the policy knows the block as. */
uint64_t store_policy_hash(uint32_t volume, const struct key *key);

/* A block was read, or offered while it was present. */
void store_accessed(struct store *store, struct store_segment *segment, uint32_t volume,
                    const struct key *key);

uint64_t store_now_ms(const struct store *store);

/* What the policy knows its run as: whole keys of one run begin with the same bytes; shorter keys
 * are runs of their own. */
uint64_t store_policy_run(uint32_t volume, const struct key *key);

/* ---- reclaim.c ---- */

/* What a volume may hold: its quota, else its part of the drive. */
double store_volume_share(const struct store *store, uint32_t volume);

void store_reclaim_kick(struct store *store);

/* ---- witness.c ---- */

/* The record of a change that replaces a value was written: ends it (store_change_stored) when that
 * is durable and has its witness, or could not get it. */
void store_witness_add(struct store_change *change);

/* ---- discard.c ---- */

/* Begins a batch when there is one, and it is time. Called by store_pump. */
void store_discard_kick(struct store *store);

/* Whether segments of its batch may still have their old life on flash. */
bool store_discard_before(const struct store *store);

/* ---- recover.c ---- */

/* Fills index, segments, volumes and counters from the drive. Blocking. */
icms_err store_recover(struct store *store, struct err_why *why) ICMS_MUST_CHECK;

#endif
