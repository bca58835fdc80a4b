/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/store_int.h: what the files of the store share. Private.
 *
 * Everything here belongs to the store's loop. Counters that other threads read are written with
 * store_stat_add and read with store_stat_get.
 */
#ifndef STORE_STORE_INT_H
#define STORE_STORE_INT_H

#include <stdatomic.h>

#include "base/check.h"
#include "base/counter.h"
#include "base/fault.h"
#include "base/list.h"
#include "policy/policy.h"
#include "store/index.h"
#include "store/layout.h"
#include "store/store.h"

/* Failed device writes (reads) in a row after which the drive is out of service. */
#define STORE_WRITE_ERRORS_MAX 8
#define STORE_READ_ERRORS_MAX  64

/* Streams: the one that volumes share, those of volumes of their own, and one for the segments of
 * volumes that are not configured, or retired and without their stream. */
#define STORE_SHARED    0
#define STORE_OWN_MAX   64
#define STORE_STRANGERS (STORE_OWN_MAX + 1)
#define STORE_STREAMS   (STORE_OWN_MAX + 2)

/* A volume has its own stream when its quota is 0 or at least so many segments. */
#define STORE_OWN_SEGMENTS_MIN 4

/* Own streams: at most one for so many segments, so that open segments stay a small part. */
#define STORE_SEGMENTS_A_STREAM 16

/* Volumes without a number whose UUIDs are kept. */
#define STORE_STRANGERS_MAX 256

/* No volume; a segment's records belong to several. */
#define STORE_NO_VOLUME   UINT32_MAX
#define STORE_ALL_VOLUMES (UINT32_MAX - 1)

/* Segments that reclaim keeps ready, at most. */
#define STORE_RESERVE_MAX 8

/* Entries of a segment that reclaim takes out of the index in one go. */
#define STORE_RECLAIM_STEPS 2048

/* Blocks that a quota evicts at a time. */
#define STORE_QUOTA_EVICTIONS 32

/* Entries of the index looked at in one go by a sweep. */
#define STORE_SWEEP_STEPS 16384

/* Segments whose dead maps one batch of kills writes. */
#define STORE_KILL_SEGMENTS 32

/* Attempts at a metadata write (meta.c), before the drive goes out of service. */
#define STORE_ATTEMPTS 3

/* Errors that are kept for the log. */
#define STORE_ERRORS 64

/* After so long, metadata that found no space is written again; that is no attempt. */
#define STORE_RETRY_NS ((uint64_t)100 * 1000 * 1000)

/* Mutations in flight are found by key in a table of so many chains. */
#define STORE_KEY_CHAINS 1024

/* At least so long between the ends of two discards and the begin of the next. */
#define STORE_DISCARD_PAUSE_NS ((uint64_t)60 * 1000 * 1000)

/* No summary on flash: reclaim sweeps the index instead. */
#define STORE_NO_SUMMARY UINT32_MAX

#define STORE_MAGIC          0x73746f72u
#define STORE_MUTATION_MAGIC 0x73746368u
#define STORE_READ_MAGIC     0x73747264u

struct store_summary;

enum store_segment_state {
    SEGMENT_FREE,       /* no record in it counts; waits in store.free for a new life            */
    SEGMENT_RENEWING,   /* gets a new life; until its header is durable, blocks of the life before
                           can be read; woken by store_life_begun                                 */
    SEGMENT_READY,      /* its new life is on flash and empty; waits in store.ready for a stream  */
    SEGMENT_DISCARDING, /* as READY; the device is told to forget its records; woken by
                           store_life_discarded                                                  */
    SEGMENT_OPENING,    /* the copy of its header is being written; woken by store_opener_done   */
    SEGMENT_OPEN,       /* takes records until one does not fit, or will (its stream's next)     */
    SEGMENT_SEALING,    /* takes no more; waits for its records, then for its summary; woken by
                           store_segment_written, store_seal_done                                */
    SEGMENT_SEALED,     /* rests until reclaim chooses it, or its last block dies                */
};

struct store_segment {
    struct list link;  /* FREE: store.free; READY: store.ready; SEALING, SEALED: its stream's     */
    uint64_t nonce;    /* of this life                                                           */
    uint64_t sequence; /* of its begin; 0: never had a life                                      */
    uint64_t since_ns; /* when it was opened; 0: before the store was                            */
    uint64_t volumes;  /* of which it may have live blocks: bit number % 64                      */
    struct store_summary *summary; /* OPEN, SEALING: entries so far                              */
    struct policy_segment recency; /* its last access                                            */
    struct key last_key;           /* of the block that was accessed last                        */
    uint32_t last_volume;          /* its volume                                                 */
    uint32_t live_blocks;          /* index entries that point here, marks too                   */
    uint32_t marks;                /* of them: damaged ones                                      */
    uint32_t evicted;              /* blocks of this life that a quota evicted                   */
    uint32_t summary_pages;        /* SEALED: on flash, or STORE_NO_SUMMARY                      */
    uint32_t pins;                 /* reads in flight; READY: not opened while above 0           */
    uint32_t writes;               /* mutations whose record is in it, not completed             */
    uint32_t kills;                /* of its records, in a batch and not answered: its life stays */
    uint32_t next_page;            /* OPEN: where the next record goes                           */
    uint32_t volume;               /* the only one it has records of, as the open or stream_take
                                      found; or STORE_NO_VOLUME                                  */
    bool killed;                   /* at open: its dead map has bits, or is damaged              */
    bool strangers;                /* it has records of volumes that are not configured          */
    uint8_t state;                 /* enum store_segment_state                                   */
    uint8_t stream;                /* OPENING .. SEALED: whose list                              */
};

struct store_stream {
    struct store_segment *open; /* takes records; NULL: none                       */
    struct store_segment *next; /* OPEN and empty: takes them when that one is full */
    struct list segments;       /* SEALING, SEALED; oldest first                   */
    struct list link;           /* store.wanting: a mutation waits for a segment; store.ahead:
                                   one will soon                                   */
    uint32_t segment_count;     /* in segments                                     */
    uint32_t hint;              /* write stream of the device; 0: none             */
};

struct store_volume {
    struct uuid uuid;          /* its name on flash                                     */
    uint32_t stream;           /* of its own, or STORE_SHARED                           */
    bool used;                 /* the number has a volume: LIVE or RETIRED              */
    bool retired;              /* RETIRED                                               */
    bool limited;              /* store_volume_limit was called                         */
    uint64_t quota_bytes;      /* its part of the quota; 0: there is none. Any thread reads it */
    uint64_t need_bytes;       /* of the write that waits for the quota; 0: none        */
    uint64_t need_ns;          /* since when                                            */
    bool gives_all;            /* it waits too long: this drive gives whatever it holds */
    struct store_quota *quota; /* of all drives; NULL: there is none                */
    struct store_quota own;    /* of this drive alone                               */
    uint64_t flight_bytes;     /* records placed and not completed                      */
    struct list parked;        /* store_mutation.link, in order of arrival              */
    struct list link;          /* store.parked, while any mutation is parked            */
    struct list over_link;     /* store.over: blocks have to be evicted                 */
    /* read by any thread */
    uint64_t blocks;    /* live */
    uint64_t bytes;     /* of flash, of live records */
    uint64_t evictions; /* since the store was opened */
};

enum store_mutation_kind {
    MUTATION_WRITE,  /* of store_write                                     */
    MUTATION_DELETE, /* of store_delete                                    */
    MUTATION_EVICT,  /* of reclaim: one block, for the quota of its volume */
};

enum store_mutation_state {
    MUTATION_KEY,    /* an earlier mutation of the key is in flight; woken by its end            */
    MUTATION_PARKED, /* waits in its volume's queue for capacity: a segment, an index entry, the
                        quota; woken by store_run                                                */
    MUTATION_DEVICE, /* its record is being written; woken by store_mutation_written            */
    MUTATION_KILL,   /* a record is being killed; woken by mutation_killed                       */
    MUTATION_ANSWER, /* the answer is known; woken by store_mutation_answer                      */
};

/* The private part of store_write and store_delete. */
struct store_mutation {
    uint32_t magic; /* STORE_MUTATION_MAGIC until done                            */
    uint8_t kind;   /* enum store_mutation_kind                                   */
    uint8_t state;  /* enum store_mutation_state                                  */
    bool placed;    /* its record has a place in segment                          */
    bool admitted;  /* the write budget was charged                               */
    uint32_t volume;
    struct key key;
    icms_err err;                  /* the answer                                   */
    struct store *store;           /* where to                                     */
    struct store_segment *segment; /* placed: where its record goes                */
    struct list link;              /* PARKED: volume.parked; KILL: of kill         */
    struct list key_link;          /* store.keys: the first of its key has it      */
    struct store_location target;  /* KILL: the record to kill                     */
    uint32_t page;                 /* of its record                                */
    uint32_t pages;                /* of its record                                */
    struct loop_msg msg;           /* ANSWER: to its own loop                      */
    struct loop_op op;             /* DEVICE: the write                           */
    /* KILL: the record is dead, durably, or in a life that is over; or the drive is out of service
     */
    void (*killed)(struct store_mutation *mutation, icms_err err);
    void (*evicted)(struct store *store); /* MUTATION_EVICT: it ended               */
};
static_assert(sizeof(struct store_mutation) <= sizeof(((struct store_write *)0)->private_words),
              "a mutation fits in a store_write");
static_assert(sizeof(struct store_mutation) <= sizeof(((struct store_delete *)0)->private_words),
              "a mutation fits in a store_delete");

/* Parts of a record that are with the device at a time: its tail, and two more. A device that has
 * more of them shares its throughput among them, and the first is there hardly before the last: of
 * 1 MiB in four parts of 256 KiB at once the first came after 0.7 to 1.0 of the time of all, two at
 * a time after 0.5, with the last as late. */
#define STORE_READ_PARTS 3

/* Pages of a record: one device read. */
struct store_read_part {
    struct store_reading *reading; /* of which read                                         */
    uint32_t page;                 /* of the record: the first                              */
    uint32_t end_page;             /* of the record: behind the last; 0: not in use         */
    struct loop_op op;             /* the device's                                          */
};

/* The private part of store_read. */
struct store_reading {
    uint32_t magic;                 /* STORE_READ_MAGIC until done */
    struct store *store;            /* where from */
    uint64_t nonce;                 /* of the record's segment when the read began */
    struct store_location location; /* of the record */
    struct loop_msg msg;            /* an answer without the device */
    icms_err err;                   /* what the read ends with; once set no part is begun */
    icms_err device_err;            /* of the first part that the device refused */
    struct store_record record;     /* its header; value_bytes 0: not known yet */
    bool instead;                   /* it is read another way than by the loop */
    bool damaged_copy;              /* the header or the CRCs of the pieces do not hold */
    bool pieces_hold;               /* the CRCs of the pieces do: pieces are verified one by one */
    bool tail_landed;               /* part[0] is in memory */
    uint32_t tail_page;             /* of the record: where part[0] begins; 0: it is all */
    uint32_t asked_page;            /* of the record: pages before it, and the tail, were begun */
    uint32_t landed_page;           /* of the record: pages before it are in memory */
    uint32_t busy;                  /* parts that are with the device */
    struct store_value_crc crc;     /* of the pieces that were verified */
    struct store_read_part part[STORE_READ_PARTS];
};
static_assert(sizeof(struct store_reading) <= sizeof(((struct store_read *)0)->private_words),
              "fits");

/* The private part of store_flush. */
struct store_flushing {
    struct store *store; /* which one */
    struct loop_op op;   /* the flush */
};
static_assert(sizeof(struct store_flushing) <= sizeof(((struct store_flush *)0)->private_words),
              "fits");

/* Errors for the owner's log; see error.c. */
struct store_errors {
    _Atomic uint32_t written, taken; /* of all that ever were                */
    _Atomic uint64_t missed;         /* since the last one was taken         */
    struct store_error error[STORE_ERRORS];
};

/* One write of a metadata job. */
struct store_meta_write {
    uint64_t offset;         /* on the drive                                    */
    const void *memory;      /* aligned                                         */
    uint32_t bytes;          /* whole pages                                     */
    uint32_t hint;           /* write stream of the device; 0: none             */
    struct store_meta *meta; /* its job                                         */
    struct loop_op op;       /* the write                                       */
};

/* A metadata job: writes that succeed, or the drive goes out of service (meta.c). */
struct store_meta {
    const char *what;                /* for the log                                     */
    const char *fault, *flush_fault; /* fault points of a write, and of a flush; or NULL */
    struct store_meta_write *writes; /* at least one                                    */
    uint32_t count;                  /* of them                                         */
    bool flush_first;                /* the device is flushed before them               */
    bool flush;                      /* and behind them                                 */
    bool once;                       /* it may fail: IO then                            */
    void (*done)(struct store_meta *meta, icms_err err); /* OK or DRIVE_DOWN            */
    struct store *store;                                 /* from here on meta.c's       */
    bool failed;                                         /* in this attempt             */
    bool no_space;                                       /* in this attempt             */
    uint32_t in_flight;                                  /* writes                      */
    uint32_t attempts;                                   /* that failed                 */
    struct loop_timer timer; /* the next attempt, when there was no space        */
    struct loop_op op;       /* the flush                                        */
};

/* Entries of a segment in memory, in the form they have on flash; from a pool. */
struct store_summary {
    struct list link;                          /* store.summaries while unused                  */
    struct store *store;                       /* its owner                                     */
    struct store_segment *segment;             /* whose entries                                 */
    struct store_meta meta;                    /* SEALING: writes them, and the footer          */
    struct store_meta_write write;             /* of it                                         */
    struct store_summary_df *pages;            /* capacity for all entries, and a footer page   */
    uint32_t count;                            /* entries                                       */
    uint32_t placed;                           /* records placed: entries there will be at most */
    uint32_t volume_count;                     /* rows below                                    */
    struct uuid volume[STORE_SEGMENT_VOLUMES]; /* of the entries                     */
};

/* The dead map of one segment in a batch of kills. */
struct store_kill_map {
    struct store_segment *segment; /* whose map                                       */
    struct list mutations;         /* store_mutation.link: records to kill there      */
    void *pages;                   /* aligned; the map as it is written               */
};

/* Kills: one batch of dead maps and one flush at a time. */
struct store_kill {
    struct list waiting;    /* store_mutation.link: for a next batch                */
    bool busy;              /* a batch is in flight                                 */
    bool replaces;          /* one of its records is replaced by a newer one         */
    uint32_t count;         /* maps of the batch                                    */
    struct store_meta meta; /* writes them                                          */
    struct store_meta_write write[STORE_KILL_SEGMENTS];
    struct store_kill_map map[STORE_KILL_SEGMENTS];
};

/* Writes the owner's note: one at a time, its first copy and then the second. */
struct store_note_writer {
    struct store_note *note;  /* NULL: idle                                          */
    struct store_note_df *df; /* [STORE_NOTE_PAGES], aligned: the last ones          */
    uint32_t copy;            /* that is written: 0 or 1                             */
    struct store_meta meta;   /* writes it                                           */
    struct store_meta_write write;
};

/* Takes the ready segment to a stream, one at a time. */
struct store_opener {
    struct store_segment *segment;  /* NULL: idle                                      */
    uint32_t stream;                /* for whom                                        */
    struct store_header_df *header; /* aligned page: the copy of the header            */
    struct store_meta meta;         /* writes it                                       */
    struct store_meta_write write;
};

/* Discards one segment at a time. */
struct store_discard {
    bool on;                       /* wanted, and the device takes it      */
    struct store_segment *segment; /* NULL: idle                           */
    uint64_t next_ns;              /* none begins before                   */
    struct loop_op op;             /* the discard                          */
};

/* Makes segments ready, and room in the quotas of volumes that share a stream: one job at a time.
 */
struct store_reclaim {
    struct store_segment *segment;    /* NULL: idle                                      */
    uint32_t volume;                  /* whose blocks go for a quota, or STORE_ALL_VOLUMES */
    struct store_life life;           /* new: given to the segment when its header is durable */
    uint32_t entry;                   /* the next one of the summary                     */
    uint32_t sweep_cursor;            /* in the index                                    */
    bool used;                        /* it had a life: the device keeps records of it   */
    bool open;                        /* its summary is in memory: it is not sealed      */
    bool skipped;                     /* a mutation of a block's key was in flight       */
    bool evicted;                     /* a block was evicted for the quota               */
    uint32_t evicting;                /* mutations below in flight                       */
    struct store_mutation *mutations; /* STORE_QUOTA_EVICTIONS of them                 */
    struct loop_msg msg;              /* the next slice                                  */
    struct loop_op op;                /* the read of the summary                         */
    struct store_meta meta;           /* writes the new life                             */
    struct store_meta_write write;    /* of it                                           */
    struct store_summary *summary;    /* the entries that were read, or that a sweep made */
    void *page_memory;                /* aligned; header, dead map or footer             */
};

/* Relocates blocks: one at a time. */
struct store_relocate {
    struct store_segment *segment; /* that lives for it alone; NULL: idle        */
    uint8_t *memory;               /* aligned; for the largest record            */
    struct store_read read;        /* of it                                      */
    struct store_write write;      /* of it, elsewhere                           */
};

struct store {
    uint32_t magic; /* STORE_MAGIC */
    bool down;      /* out of service                                      */
    bool full;      /* no space for the last record; read by any thread    */
    bool tight;     /* a mutation waits for an index entry                 */
    /* store_run: called when something ended that others may wait for */
    void (*run)(struct store *store);
    bool running;                   /* inside store_run, or before the first one           */
    bool run_again;                 /* store_run was called from inside itself             */
    struct loop *loop;              /* whose thread all of this is on */
    struct loop_file *file;         /* the drive */
    struct store_super super;       /* sizes */
    uint32_t segment_pages;         /* of each segment */
    uint32_t map_pages;             /* of each segment's dead map */
    uint32_t value_bytes_max;       /* from the options */
    uint32_t writes_max;            /* from the options */
    uint32_t writes;                /* records in flight */
    uint64_t write_bytes;           /* of them */
    uint32_t reads;                 /* values being read */
    uint64_t read_ns;               /* when the last one began */
    uint32_t metas;                 /* metadata jobs that have not ended */
    uint32_t write_errors;          /* in a row */
    uint32_t read_errors;           /* in a row */
    uint64_t sequence;              /* the last one given */
    uint64_t evictions_ended;       /* of lives that are over: what headers carry */
    struct store_index *index;      /* where blocks are */
    struct store_segment *segments; /* by number */
    struct store_dead_df *dead;     /* their dead maps: what is on flash, or about to be */
    struct store_volume *volumes;   /* by number */
    uint32_t volume_count;          /* numbers in use are below it; STORE_VOLUMES_MAX fit      */
    uint32_t volumes_live;          /* of them, LIVE                                          */
    struct uuid *strangers;         /* at the open: volumes of records that have no number    */
    uint32_t stranger_count;        /* of them; STORE_STRANGERS_MAX: perhaps more             */
    uint32_t stranger_segments;     /* segments that may have such records                    */
    struct store_stream streams[STORE_STREAMS];
    uint32_t stream_count;                /* in use: the shared one and those of volumes */
    struct list free;                     /* FREE */
    struct list ready;                    /* READY and DISCARDING */
    uint32_t free_count;                  /* in free */
    uint32_t ready_count;                 /* in ready */
    uint32_t next_count;                  /* streams that have their next segment        */
    uint32_t reserve;                     /* reclaim works when fewer are ready          */
    uint32_t free_low_mark;               /* fewer: stats.free_low_ns                    */
    struct list wanting;                  /* streams that wait for a segment             */
    struct list ahead;                    /* streams that will                           */
    struct list summaries;                /* unused                                      */
    struct list keys[STORE_KEY_CHAINS];   /* mutations in flight (key_link), oldest first */
    uint64_t key_seed;                    /* of the chains */
    uint64_t hash_seed;                   /* of the salts                                */
    uint64_t *salts;                      /* of the index: made of the seed and the volume */
    struct list parked;                   /* volumes with parked mutations               */
    struct list over;                     /* volumes that evict for a quota              */
    struct store_opener opener;           /* gives segments to streams */
    struct store_reclaim reclaim;         /* makes them ready */
    struct store_relocate relocate;       /* saves blocks of segments that go */
    struct store_discard discard;         /* tells the device what is free */
    struct store_kill kill;               /* marks records as dead */
    struct store_note_writer note;        /* what the owner keeps here */
    struct store_errors errors;           /* for its log */
    struct policy *policy;                /* says which, and what is written at all */
    struct policy_opts policy_opts;       /* what it was made of */
    struct loop_msg first_run;            /* the first store_run, when the loop runs     */
    struct store_ops ops;                 /* from the options */
    void *owner;                          /* from the options */
    void *buffers[2 * STORE_STREAMS + 9]; /* to free in the end */
    uint32_t buffer_count;                /* in buffers */
    /* read by any thread */
    uint64_t budget_ms;         /* when budget_left_bytes was right */
    uint64_t budget_left_bytes; /* an int64_t: below 0 is owed */
    struct store_stats stats;   /* its counters, but for budget_left_bytes */
    struct hist evicted_age_ns;
    uint64_t since_ns; /* when the store was opened; 0: it is being opened */
};

/* ---- device.c, budget.c ---- */

static inline uint32_t store_segment_number(const struct store *store,
                                            const struct store_segment *segment)
{
    return (uint32_t)(segment - store->segments);
}

/* Where a page of a segment lies on the drive. */
static inline uint64_t store_segment_offset(const struct store *store,
                                            const struct store_segment *segment, uint32_t page)
{
    return STORE_DATA_OFFSET + store_segment_number(store, segment) * store->super.segment_bytes +
           (uint64_t)page * STORE_PAGE_BYTES;
}

/* An error of no block. */
static inline struct store_error store_error_at(const char *what, icms_err err, uint64_t offset)
{
    return (struct store_error){
        .what = what, .err = err, .offset = offset, .volume = STORE_ERROR_NO_BLOCK};
}

/* The dead map of a segment. */
static inline struct store_dead_df *store_segment_dead(const struct store *store,
                                                       const struct store_segment *segment)
{
    return &store->dead[(size_t)store_segment_number(store, segment) *
                        store_dead_sectors(store->segment_pages)];
}

/* To which write stream of the device a segment goes, so that its erase units hold what is
 * reclaimed together; 0: to none. */
static inline uint32_t store_segment_hint(const struct store *store,
                                          const struct store_segment *segment)
{
    return store->streams[segment->stream].hint;
}

/* Tells the record at a location from all others that the drive ever had. */
static inline uint64_t store_record_id(const struct store *store,
                                       const struct store_location *location)
{
    return store->segments[location->segment].sequence << 16 | location->page;
}

static inline uint64_t store_volume_bit(uint32_t volume)
{
    return (uint64_t)1 << volume % 64;
}

/* Aligned zeroed pages that live as long as the store; NULL: no memory. */
void *store_pages_new(struct store *store, uint64_t pages);

/* Counts what was written beside values, for the write budget too. */
void store_overhead_written(struct store *store, uint64_t bytes);

/* Notes what is left of the write budget, for other threads: whenever it was charged. */
void store_budget_note(struct store *store);

/* What the device answered, or IO at a fault point (NULL: there is none): nobody knows what a write
 * that failed left on flash. */
static inline icms_err store_answer(const struct loop_op *op, const char *fault)
{
    return fault != NULL && fault_hit(fault) ? ICMS_IO : op->err;
}

/* Counts the outcome of a record's write, or of a read; too many failures in a row take the drive
 * out. Space that is missing does not: it may come back. error says what it was, without its err.
 */
void store_write_outcome(struct store *store, icms_err err, struct store_error error);
void store_read_outcome(struct store *store, icms_err err, struct store_error error);

/* The same for headers, summaries and flushes, whose success says nothing about records. */
static inline void store_overhead_outcome(struct store *store, icms_err err, const char *what,
                                          uint64_t offset)
{
    if (err != ICMS_OK)
        store_write_outcome(store, err, store_error_at(what, err, offset));
}

/* What is left of the write budget, if nothing was written since it was noted. Any thread. */
uint64_t store_budget_left(const struct store *store);

/* Takes the budget of the options; INVALID: it never lets the largest value through. */
icms_err store_budget_open(struct store *store, const struct store_opts *opts,
                           struct err_why *why) ICMS_MUST_CHECK;

/* Takes the drive out of service: every operation from then on answers DRIVE_DOWN. */
void store_down(struct store *store);

/* What the policy knows the block as. */
uint64_t store_policy_hash(uint32_t volume, const struct key *key);

/* What the policy knows its run as: whole keys of one run begin with the same bytes; shorter keys
 * are runs of their own. */
uint64_t store_policy_run(uint32_t volume, const struct key *key);

/* A block of the segment was written, read or offered. */
void store_recency(struct store *store, struct store_segment *segment, uint32_t volume,
                   const struct key *key);

/* A block was read, or offered while it was present. */
void store_accessed(struct store *store, struct store_segment *segment, uint32_t volume,
                    const struct key *key);

uint64_t store_now_ms(const struct store *store);

/* ---- error.c ---- */

/* Counts an error, so many times, and keeps it for the log. */
void store_error_add(struct store *store, const struct store_error *error, uint64_t count);

/* Damage of what lies at an offset, other than a value. */
static inline void store_damage_add(struct store *store, const char *what, uint64_t offset,
                                    uint64_t count)
{
    struct store_error error = store_error_at(what, ICMS_CORRUPT, offset);

    if (count > 0)
        store_error_add(store, &error, count);
}

/* ---- meta.c ---- */

/* Begins a job whose fields in front of store are set; it ends with done, once, later. */
void store_meta_start(struct store *store, struct store_meta *meta);

/* ---- quota.c ---- */

/* Whether there is space for a write of so many bytes; else it waits, and drives are asked to
 * evict. store_run comes back to it. */
bool store_quota_fits(struct store *store, struct store_volume *volume, uint64_t bytes);

/* Takes the space; false: it is gone. */
bool store_quota_take(struct store *store, struct store_volume *volume, uint64_t bytes);
void store_quota_give(struct store *store, struct store_volume *volume, uint64_t bytes);

/* No write of the volume waits for it any more, or another one is the first. */
void store_quota_wait_end(struct store_volume *volume);

/* Whether the quota has space for all that waits, and a little more, so that not each write has to
 * wait, or other drives evict for that; evicting_bytes: about to come free. */
bool store_quota_is_fine(const struct store_volume *volume, uint64_t evicting_bytes);

/* The drive went out of service: what it holds is nobody's, and what it writes is given back when
 * it ends. */
void store_quota_leave(struct store *store);

/* ---- volume.c ---- */

/* The number of a configured volume; -1: it is not. */
int store_volume_find(const struct store *store, const struct uuid *uuid);

/* At the open: the drive has live records of a volume that is not configured. */
void store_stranger_add(struct store *store, const struct uuid *uuid);

/* Takes the volumes of the options; NO_MEMORY, LIMIT, EXISTS (one is named twice). */
icms_err store_volumes_new(struct store *store, const struct store_opts *opts,
                           struct err_why *why) ICMS_MUST_CHECK;

/* How many segments reclaim keeps ready: two, one more for each stream above two, and a 16th of the
 * drive at most. */
void store_reserve_set(struct store *store);

/* What a volume may hold: its quota, else its part of the drive. */
double store_volume_share(const struct store *store, uint32_t volume);

/* ---- segment.c ---- */

/* Puts a segment without records that count into store.free. */
void store_segment_free(struct store *store, struct store_segment *segment);

/* Puts a segment with an empty life into store.ready. */
void store_segment_ready(struct store *store, struct store_segment *segment);

/* Moves between lists change these: tells statistics. */
void store_free_count_note(struct store *store);

/* Appends a segment to the list of a stream, and takes it out. */
void store_stream_add(struct store *store, uint32_t stream, struct store_segment *segment);
void store_stream_remove(struct store *store, struct store_segment *segment);

void store_segment_live_add(struct store *store, uint32_t volume,
                            const struct store_location *location);
void store_segment_live_sub(struct store *store, uint32_t volume,
                            const struct store_location *location);

/* Says that a block can be read, or cannot any more (store_ops.index). */
static inline void store_index_tell(struct store *store, uint32_t volume, const struct key *key,
                                    bool is_there)
{
    if (store->ops.index != NULL && !store->down)
        store->ops.index(store->owner, volume, key, is_there);
}

/* Takes a block out of the index to make room; a mark of a damaged one goes without being counted.
 */
void store_segment_evict(struct store *store, const struct store_block *block);

/* Only a mark is left of a block, whose value does not hold. Nothing changes when it is one. */
void store_segment_damage(struct store *store, const struct store_block *block);

/* Whether a record of a volume fits: its pages, its entry and the volume's row. */
bool store_segment_fits(const struct store *store, const struct store_segment *segment,
                        uint32_t volume, uint32_t pages);
void store_segment_seal(struct store *store, struct store_segment *segment);

/* A mutation whose record is in the segment completed. */
void store_segment_written(struct store *store, struct store_segment *segment);
void store_segment_unpin(struct store *store, struct store_segment *segment);

/* What its header says of it. */
struct store_life store_segment_life(const struct store *store,
                                     const struct store_segment *segment);

/* Appends the entry of a record that is on flash; false: it has a volume too many. */
bool store_summary_add(struct store_summary *summary, const struct store_record *record,
                       uint32_t page);

/* Makes the summary pages and the footer of a segment; returns how many pages that is. */
uint32_t store_summary_make(struct store *store, struct store_summary *summary);

/* Takes the summary and the footer of a segment's life, which are in summary->pages as they lie on
 * flash. False: they are damaged. */
bool store_summary_load(const struct store *store, const struct store_segment *segment,
                        struct store_summary *summary);
bool store_summary_pool_add(struct store *store);

/* An unused summary for a segment, from the pool, which has one. */
struct store_summary *store_summary_take(struct store *store, struct store_segment *segment);

/* Gives ready segments to streams that want one. Called by store_run. */
void store_opener_run(struct store *store);

/* ---- mutation.c ---- */

/* Evicts one block for the quota of its volume; evicted: called in the end. False: another mutation
 * of its key is in flight, and nothing was started. */
bool store_evict_start(struct store *store, struct store_mutation *mutation,
                       const struct store_block *block, void (*evicted)(struct store *store));

/* One round over the volumes that have parked mutations, one of each; true: one went on. Called by
 * store_run. */
bool store_mutations_run(struct store *store);

/* ---- kill.c ---- */

/* Kills the record at mutation->target: ends with mutation->killed. */
void store_kill_add(struct store_mutation *mutation);

/* Begins a batch when none is in flight. Called by store_run. */
void store_kill_run(struct store *store);

/* ---- note.c ---- */

/* Reads the owner's note; NO_MEMORY. */
icms_err store_note_open(struct store *store, struct err_why *why) ICMS_MUST_CHECK;

/* ---- relocate.c ---- */

/* A segment is about to be evicted: relocates the block of another one of its stream that lives for
 * that block alone, if there is one and none is being relocated. */
void store_relocate_for(struct store *store, const struct store_segment *victim);

/* ---- reclaim.c ---- */

/* Begins a job when there is one. Called by store_run. */
void store_reclaim_run(struct store *store);

/* ---- run.c ---- */

/* Lets parked mutations go on, then kills, reclaim and the opener. */
void store_run(struct store *store);

/* ---- recover.c ---- */

/* Fills index, segments and counters from the drive. Blocking. */
icms_err store_recover(struct store *store, struct err_why *why) ICMS_MUST_CHECK;

#endif
