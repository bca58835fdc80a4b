/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads: what lies where the index points is the block that was asked for, and it stays there while
 * it is read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "loop/sim.h"
#include "store/layout.h"
#include "store/store_int.h"
#include "store/store_rig.h"

#define SEGMENT_PAGES ((uint32_t)(RIG_SEGMENT_BYTES / STORE_PAGE_BYTES))

/* ---- a valid record of something else ------------------------------------------------------- */

static void record_same(struct store_record *record)
{
}

static void record_other_volume(struct store_record *record)
{
    record->volume.bytes[15] ^= 1;
}

static void record_other_key(struct store_record *record)
{
    record->key.bytes[record->key.length - 1] ^= 1;
}

static void record_shorter_key(struct store_record *record)
{
    record->key.bytes[--record->key.length] = 0;
}

static void record_shorter_value(struct store_record *record)
{
    record->value_bytes--;
}

/* Writes the first record of the first segment again, with every checksum right, as change leaves
 * it; its value stays. */
static void record_forge(struct rig *rig, uint32_t bytes, void (*change)(struct store_record *))
{
    const uint32_t first = store_first_page(SEGMENT_PAGES);
    const uint64_t offset = STORE_DATA_OFFSET + first * STORE_PAGE_BYTES;
    uint32_t pages = store_record_pages(bytes);
    uint64_t tail = (uint64_t)pages * STORE_PAGE_BYTES - STORE_HEADER_BYTES;
    uint8_t page[STORE_PAGE_BYTES];
    struct store_record_df df;
    struct store_super super;
    struct store_record record;
    struct store_life life;

    rig_peek(rig, 0, page, sizeof(page));
    assert_int_equal(store_super_check((const struct store_super_df *)(const void *)page, &super),
                     ICMS_OK);
    rig_peek(rig, STORE_DATA_OFFSET, page, sizeof(page));
    assert_int_equal(store_header_check(&super.drive, 0,
                                        (const struct store_header_df *)(const void *)page, &life),
                     ICMS_OK);
    rig_peek(rig, offset, &df, sizeof(df));
    assert_int_equal(store_record_check(life.nonce, first, SEGMENT_PAGES, &df, &record), ICMS_OK);
    change(&record);
    store_record_make(life.nonce, first, &record, &df);
    rig_poke(rig, offset, &df, sizeof(df));
    rig_poke(rig, offset + tail, &df, sizeof(df));
}

/* The index may point to a record that is whole and of another block: after a flipped byte in the
 * index itself, or a drive that wrote to another place. Never are its bytes the answer. */
static void a_whole_record_of_another_block_is_a_checksum_miss(void **state)
{
    static void (*const changes[])(struct store_record *) = {
        record_other_volume, record_other_key, record_shorter_key, record_shorter_value};
    enum { BYTES = 5000 };
    struct rig *rig = *state;
    enum icms_miss reason;

    rig_one_volume(rig);
    for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
        assert_int_equal(store_format(rig->env, &rig->opts, i > 0, NULL), ICMS_OK);
        rig_up(rig);
        assert_int_equal(rig_put(rig, 0, 1, BYTES, 1, 0), ICMS_OK);
        record_forge(rig, BYTES, record_same); /* this alone does no harm */
        assert_int_equal(rig_get(rig, 0, 1, BYTES, 1, NULL), ICMS_OK);
        record_forge(rig, BYTES, changes[i]);
        assert_int_equal(rig_get(rig, 0, 1, BYTES, 1, &reason), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_CHECKSUM);
        rig_down(rig);
    }
}

/* ---- pieces -----------------------------------------------------------------------------------
 */

/* A record says how many pages it has in 12 bits, whatever its size is; they hold the value, what
 * is beside it, and less than one part in 256 more. */
static void sizes_of_records_are_what_the_index_can_say(void **state)
{
    (void)state;
    for (uint64_t bytes = 1; bytes <= LIMIT_VALUE_BYTES + LIMIT_TRAILER_BYTES;
         bytes += 1 + bytes / 7) {
        uint64_t least =
            bytes + 2 * STORE_HEADER_BYTES + 4 * (uint64_t)store_pieces((uint32_t)bytes);
        uint32_t pages = store_record_pages((uint32_t)bytes), shift = store_pages_shift(pages);

        assert_true(pages <= STORE_RECORD_PAGES_MAX && shift <= 7);
        assert_int_equal(pages >> shift << shift, pages);
        assert_in_range(pages >> shift, 1, 511);
        assert_true((uint64_t)pages * STORE_PAGE_BYTES >= least);
        assert_true((uint64_t)pages * STORE_PAGE_BYTES < least + STORE_PAGE_BYTES + least / 256);
        assert_int_equal(store_record_bytes(bytes), (uint64_t)pages * STORE_PAGE_BYTES);
    }
}

/* The largest value there may be goes to flash and comes back, with a CRC for each 256 KiB behind
 * it that is right; a byte of any piece that flips is found. */
static void a_large_value_has_a_crc_for_each_piece(void **state)
{
    const uint32_t bytes = (uint32_t)LIMIT_VALUE_BYTES + LIMIT_TRAILER_BYTES;
    const uint32_t pieces = store_pieces(bytes);
    struct rig *rig = *state;
    uint8_t *expected = calloc(pieces, 4), *stored = calloc(pieces, 4);
    struct store_value_crc crc;
    struct rig_op *op;
    uint64_t at;
    enum icms_miss reason;

    assert_true(expected != NULL && stored != NULL);
    rig_one_volume(rig);
    rig->opts.segment_bytes = (uint64_t)128 << 20;
    rig->opts.bytes = STORE_DATA_OFFSET + 4 * rig->opts.segment_bytes;
    rig->opts.value_bytes_max = bytes;
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, bytes, 1, 0), ICMS_OK);
    assert_int_equal(rig_get(rig, 0, 1, bytes, 1, NULL), ICMS_OK);
    at = STORE_DATA_OFFSET +
         store_first_page((uint32_t)(rig->opts.segment_bytes / STORE_PAGE_BYTES)) *
             (uint64_t)STORE_PAGE_BYTES;
    op = rig_op_new(rig, RIG_READ, bytes);
    rig_peek(rig, at, op->memory, STORE_HEADER_BYTES + (uint64_t)bytes);
    rig_peek(rig, at + STORE_HEADER_BYTES + bytes, stored, (uint64_t)pieces * 4);
    for (uint32_t odd = 1; odd <= 5000; odd += 4999) { /* in parts of any size */
        store_value_crc_begin(&crc, rig->store->segments[0].nonce,
                              store_first_page(rig->store->segment_pages));
        for (uint32_t done = 0, n; done < bytes; done += n) {
            n = bytes - done < odd * 1000 + 1 ? bytes - done : odd * 1000 + 1;
            store_value_crc_add(&crc, op->memory + STORE_HEADER_BYTES + done, n, expected);
        }
        (void)store_value_crc_end(&crc, expected);
        assert_memory_equal(stored, expected, (size_t)pieces * 4);
    }
    rig_op_free(op);
    rig_restart(rig);
    assert_int_equal(rig_get(rig, 0, 1, bytes, 1, NULL), ICMS_OK);
    rig_flip(rig, at + STORE_HEADER_BYTES + bytes - 1, 1);
    assert_int_equal(rig_get(rig, 0, 1, bytes, 1, &reason), ICMS_MISS);
    assert_int_equal(reason, ICMS_MISS_CHECKSUM);
    free(expected);
    free(stored);
}

/* ---- reading in pieces ------------------------------------------------------------------------
 */

enum { PIECE = STORE_PIECE_BYTES, LARGE = 16 * PIECE + 64 };

/* What the store said of a read in pieces. */
static struct {
    uint64_t seed;         /* of the value                                             */
    uint32_t calls;        /* of more                                                  */
    uint32_t good_bytes;   /* of the last one                                          */
    uint32_t first_landed; /* bytes of the record in memory at the first one */
    uint32_t first_asked;  /* bytes that the device had been asked for then  */
    bool wrong;            /* what was handed on is no whole pieces in order, or not pinned, or not
                              what was stored */
    void (*at_first)(struct rig *rig);
    void (*at_second)(struct rig *rig);
} seen;

static void piece_more(struct rig_op *op)
{
    const struct store_read *read = &op->u.read;
    const struct store_reading *reading =
        (const struct store_reading *)(const void *)read->private_words;

    seen.wrong |= read->good_bytes <= seen.good_bytes || read->good_bytes % PIECE != 0 ||
                  read->good_bytes >= read->value_bytes ||
                  !rig_check(read->value, read->good_bytes, seen.seed) ||
                  op->rig->store->segments[reading->location.segment].pins != 1;
    seen.good_bytes = read->good_bytes;
    if (seen.calls++ == 0) {
        seen.first_landed = reading->landed_page * STORE_PAGE_BYTES;
        seen.first_asked = reading->asked_page * STORE_PAGE_BYTES;
    }
    if (seen.calls == 1 && seen.at_first != NULL)
        seen.at_first(op->rig);
    if (seen.calls == 2 && seen.at_second != NULL)
        seen.at_second(op->rig);
}

/* A store of large values with one of them under key 1; offset of its record on the drive. */
static uint64_t pieces_up(struct rig *rig, uint32_t bytes)
{
    rig_one_volume(rig);
    rig->opts.segment_bytes = (uint64_t)8 << 20;
    rig->opts.bytes = STORE_DATA_OFFSET + 8 * rig->opts.segment_bytes;
    rig->opts.value_bytes_max = LARGE;
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, bytes, 1, 0), ICMS_OK);
    return STORE_DATA_OFFSET +
           store_first_page((uint32_t)(rig->opts.segment_bytes / STORE_PAGE_BYTES)) *
               (uint64_t)STORE_PAGE_BYTES;
}

/* Reads key 1 in pieces; what done said. The value is checked when it is right; its segment is
 * pinned while pieces come, and not any more when it is over. */
static icms_err pieces_get(struct rig *rig, uint32_t bytes, enum icms_miss *out_reason)
{
    struct rig_op *op = rig_op_new(rig, RIG_READ, LARGE);
    icms_err err;

    seen.seed = 1;
    seen.calls = seen.good_bytes = seen.first_landed = seen.first_asked = 0;
    seen.wrong = false;
    op->key = rig_key(1);
    op->more = piece_more;
    rig_op_start(op);
    rig_op_wait(op);
    err = op->err;
    *out_reason = op->reason;
    assert_false(seen.wrong);
    if (err == ICMS_OK) {
        assert_int_equal(op->value_bytes, bytes);
        assert_true(rig_check(op->u.read.value, bytes, 1));
    }
    rig_op_free(op);
    for (uint32_t i = 0; i < rig->store->super.segments; i++)
        assert_int_equal(rig->store->segments[i].pins, 0);
    seen.at_first = seen.at_second = NULL;
    return err;
}

/* What is read at a time: an eighth of the record, in whole pieces. */
static uint32_t part_bytes(uint32_t value_bytes)
{
    uint32_t pieces = (uint32_t)(store_record_bytes(value_bytes) / 8 / PIECE);

    return (pieces > 0 ? pieces : 1) * PIECE;
}

/* The first pieces of a value are handed on, verified and in order, before the device was asked for
 * the last ones; it has two parts at a time. */
static void a_large_value_comes_piece_by_piece(void **state)
{
    static const uint32_t sizes[] = {1,         PIECE,         PIECE + 64, STORE_READ_SPLIT_BYTES,
                                     2 * PIECE, 4 * PIECE - 1, 4 * PIECE,  4 * PIECE + 64,
                                     LARGE - 1, LARGE};
    struct rig *rig = *state;
    enum icms_miss reason;
    struct store_stats stats;

    (void)pieces_up(rig, 1);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        assert_int_equal(rig_put(rig, 0, 1, sizes[i], 1, 0), ICMS_OK);
        assert_int_equal(pieces_get(rig, sizes[i], &reason), ICMS_OK);
        assert_true(seen.calls == 0 || store_record_bytes(sizes[i]) >= STORE_READ_SPLIT_BYTES);
        /* two parts, the last one perhaps half as long again, and the ends of both in a page */
        assert_true(seen.first_asked - seen.first_landed <=
                    5 * part_bytes(sizes[i]) / 2 + 2 * STORE_PAGE_BYTES);
    }
    /* of the largest no more than was with the device at once */
    assert_true(seen.calls > 2);
    assert_in_range(seen.first_landed, 1, LARGE / 2 + STORE_PAGE_BYTES);
    rig_stats(rig, &stats);
    assert_int_equal(stats.checksum_errors, 0);
    rig_verify(rig);
}

/* What is handed on ends before the piece that is bad, wherever that is, and the block is marked.
 */
static void a_bad_piece_ends_the_read(void **state)
{
    static const uint32_t bad[] = {0, 1, 7, 15, 16};
    struct rig *rig = *state;
    struct store_stats stats;
    enum icms_miss reason;
    uint64_t at = pieces_up(rig, LARGE);

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        rig_down(rig);
        assert_int_equal(store_format(rig->env, &rig->opts, true, NULL), ICMS_OK);
        rig_up(rig);
        assert_int_equal(rig_put(rig, 0, 1, LARGE, 1, 0), ICMS_OK);
        rig_flip(rig, at + STORE_HEADER_BYTES + bad[i] * (uint64_t)PIECE + 63, 4);
        assert_int_equal(pieces_get(rig, LARGE, &reason), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_CHECKSUM);
        assert_true(seen.good_bytes <= bad[i] * PIECE);
        assert_true(bad[i] <= 1 || seen.good_bytes > 0); /* a part has two pieces */
        rig_stats(rig, &stats);
        assert_int_equal(stats.checksum_errors, 1);
        assert_int_equal(stats.reads, 1);
        assert_int_equal(stats.read_bytes, 0);
        assert_false(rig_exists(rig, 0, 1));
        assert_int_equal(pieces_get(rig, LARGE, &reason), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_CHECKSUM);
        assert_int_equal(seen.calls, 0);
    }
}

/* The CRCs of the pieces and the header are not the value: that is right, and the damage is
 * counted. Without its CRCs no piece is handed on before the value is known to be right. */
static void damage_beside_the_pieces_costs_no_value(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;
    enum icms_miss reason;
    uint64_t at = pieces_up(rig, LARGE);
    uint64_t table = at + STORE_HEADER_BYTES + LARGE;
    uint64_t copy = at + store_record_bytes(LARGE) - STORE_HEADER_BYTES;

    for (uint32_t piece = 0; piece < store_pieces(LARGE); piece += 8) {
        rig_flip(rig, table + 4 * piece, 1);
        assert_int_equal(pieces_get(rig, LARGE, &reason), ICMS_OK);
        assert_int_equal(seen.calls, 0);
        rig_flip(rig, table + 4 * piece, 1);
        rig_stats(rig, &stats);
        assert_int_equal(stats.checksum_errors, piece / 8 + 1);
    }
    rig_flip(rig, at + 8, 1);
    assert_int_equal(pieces_get(rig, LARGE, &reason), ICMS_OK);
    assert_true(seen.calls > 0);
    rig_stats(rig, &stats);
    assert_int_equal(stats.checksum_errors, 4);
    /* A piece that is bad under CRCs that are bad. */
    rig_flip(rig, table, 1);
    rig_flip(rig, at + STORE_HEADER_BYTES + 5 * PIECE, 1);
    assert_int_equal(pieces_get(rig, LARGE, &reason), ICMS_MISS);
    assert_int_equal(reason, ICMS_MISS_CHECKSUM);
    assert_int_equal(seen.calls, 0);
    rig_flip(rig, at + STORE_HEADER_BYTES + 5 * PIECE, 1);
    /* Neither header. */
    rig_restart(rig);
    rig_flip(rig, copy + 8, 1);
    assert_int_equal(pieces_get(rig, LARGE, &reason), ICMS_MISS);
    assert_int_equal(seen.calls, 0);
}

static void drive_dies(struct rig *rig)
{
    sim_disk_dead(rig->node, rig->path, true);
}

static void drive_goes_down(struct rig *rig)
{
    store_down(rig->store);
}

/* A drive that fails, or goes out of service, in the middle: the read says so, and asks for no more
 * parts. It counts as one error. */
static void a_drive_that_fails_in_the_middle_ends_the_read(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;
    enum icms_miss reason;

    (void)pieces_up(rig, LARGE);
    for (int i = 0; i < 1000; i++) /* nothing else is under way */
        (void)sim_step(rig->sim);
    seen.at_second = drive_dies;
    assert_int_equal(pieces_get(rig, LARGE, &reason), ICMS_IO);
    assert_true(seen.calls > 1 && seen.good_bytes < LARGE);
    assert_int_equal(rig->store->read_errors, 1);
    rig_stats(rig, &stats);
    assert_int_equal(stats.checksum_errors, 0);
    assert_true(rig_exists(rig, 0, 1));
    sim_disk_dead(rig->node, rig->path, false);
    assert_int_equal(pieces_get(rig, LARGE, &reason), ICMS_OK);
    seen.at_first = drive_goes_down;
    assert_int_equal(pieces_get(rig, LARGE, &reason), ICMS_DRIVE_DOWN);
    assert_int_equal(reason, ICMS_MISS_DRIVE_DOWN);
    assert_true(seen.good_bytes < LARGE);
    assert_int_equal(seen.calls, 1);
    assert_true(seen.first_asked < LARGE); /* that is what was not read */
}

/* ---- pins ----------------------------------------------------------------------------------- */

static void call_nothing(struct rig *rig, void *arg)
{
}

/* Writes blocks that fill the drive several times over; each is there when it was written. */
static void drive_turn_over(struct rig *rig, uint64_t first, uint32_t times)
{
    uint64_t bytes = rig->opts.bytes - STORE_DATA_OFFSET;

    for (uint64_t i = 0; i < times * bytes / 30000; i++) {
        assert_int_equal(rig_put(rig, 0, first + i, 30000, i, 0), ICMS_OK);
        assert_int_equal(rig_get(rig, 0, first + i, 30000, i, NULL), ICMS_OK);
    }
}

/* A device of which one operation may take long without being in the way of others. */
static int wide_setup(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    struct sim_opts opts;

    assert_non_null(rig);
    sim_opts_init(&opts, 1);
    opts.disk_bytes_per_s = (uint64_t)1 << 60;
    rig_sim_init(rig, &opts);
    *state = rig;
    return 0;
}

/* A read that takes very long: its segment is given up meanwhile, and is not written over. */
static void a_segment_that_is_being_read_is_not_written_over(void **state)
{
    enum { PUTS = 20 }; /* more than the drive holds */
    struct rig *rig = *state;
    struct rig_op *op, *put[PUTS];
    struct store_stats stats;

    rig_one_volume(rig);
    rig->opts.bytes = STORE_DATA_OFFSET + 12 * RIG_SEGMENT_BYTES;
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 20000, 1, 0), ICMS_OK);
    op = rig_op_new(rig, RIG_READ, 20000);
    op->key = rig_key(1);
    sim_file_slow(rig->node, rig->path, 10000000);
    rig_op_start(op);
    rig_call(rig, call_nothing, NULL); /* the read is with the device */
    sim_file_slow(rig->node, rig->path, 1);
    for (uint64_t i = 0; i < PUTS; i++) {
        put[i] = rig_op_new(rig, RIG_WRITE, 30000);
        put[i]->key = rig_key(100 + i);
        put[i]->seed = i;
        put[i]->value_bytes = 30000;
        rig_op_start(put[i]);
    }
    while (rig_exists(rig, 0, 1))
        ;
    assert_int_equal(atomic_load(&op->done), 0); /* its segment is given up, and still read */
    for (uint64_t i = 0; i < PUTS; i++) {
        rig_op_wait(put[i]);
        assert_int_equal(put[i]->err, ICMS_OK);
        rig_op_free(put[i]);
    }
    drive_turn_over(rig, 1000, 4);
    rig_op_wait(op);
    assert_int_equal(op->err, ICMS_OK);
    assert_int_equal(op->value_bytes, 20000);
    assert_true(rig_check(op->u.read.value, op->value_bytes, 1));
    rig_op_free(op);
    drive_turn_over(rig, 5000, 2);
    rig_stats(rig, &stats);
    assert_int_equal(stats.checksum_errors, 0);
    rig_verify(rig);
}

/* Every segment is read from in every turn of the drive: a pin that stayed would take one segment
 * after the other out of use. */
static void a_finished_read_leaves_its_segment_free_to_reuse(void **state)
{
    struct rig *rig = *state;

    rig_one_volume(rig);
    rig->opts.bytes = STORE_DATA_OFFSET + 8 * RIG_SEGMENT_BYTES;
    rig_format(rig);
    rig_up(rig);
    drive_turn_over(rig, 1000, 5);
    rig_verify(rig);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_sim_setup, rig_sim_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_of_records_are_what_the_index_can_say),
        TEST(a_large_value_has_a_crc_for_each_piece),
        TEST(a_whole_record_of_another_block_is_a_checksum_miss),
        cmocka_unit_test_setup_teardown(a_segment_that_is_being_read_is_not_written_over,
                                        wide_setup, rig_sim_teardown),
        TEST(a_finished_read_leaves_its_segment_free_to_reuse),
        TEST(a_large_value_comes_piece_by_piece),
        TEST(a_bad_piece_ends_the_read),
        TEST(damage_beside_the_pieces_costs_no_value),
        TEST(a_drive_that_fails_in_the_middle_ends_the_read),
    };

    return cmocka_run_group_tests_name("store-read", tests, NULL, NULL);
}
