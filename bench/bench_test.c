/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bench_test.c: that the figures of a bench say what happened: medians and intervals, sides
 * in turns, walks, values, generators. No speed is judged here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "bench/bench_int.h"

/* For n from 6 on, the ranks of a table of the sign test. */
static void test_median_interval(void **state)
{
    double values[20], low, high;

    for (int i = 0; i < 20; i++)
        values[i] = (i * 7) % 20 + 1;
    assert_true(bench_median(values, 20, &low, &high) == 10.5);
    assert_true(low == 6 && high == 15);
    for (int i = 0; i < 6; i++)
        values[i] = 6 - i;
    assert_true(bench_median(values, 6, &low, &high) == 3.5);
    assert_true(low == 1 && high == 6);
    values[0] = 4;
    assert_true(bench_median(values, 1, &low, &high) == 4);
    assert_true(low == 4 && high == 4);
}

static void test_walk_meets_each_once(void **state)
{
    static const uint64_t counts[] = {1, 2, 3, 7, 64, 1000, 4097};

    for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++) {
        uint8_t *seen = calloc(counts[c], 1);

        for (uint64_t n = 0; n < counts[c]; n++) {
            uint64_t at = bench_walk(n, counts[c]);

            assert_true(at < counts[c]);
            assert_int_equal(seen[at]++, 0);
            assert_int_equal(at, bench_walk(n + counts[c], counts[c]));
        }
        free(seen);
    }
}

static void test_values_are_told_apart(void **state)
{
    uint8_t *memory = malloc(8192);

    bench_value_noise(memory, 8192);
    bench_value_stamp(memory, 8192, 5, 1);
    assert_true(bench_value_is(memory, 8192, 5, 1));
    assert_false(bench_value_is(memory, 8192, 6, 1));
    assert_false(bench_value_is(memory, 8192, 5, 2));
    assert_false(bench_value_is(memory, 4096, 5, 1));
    memory[8191] ^= 1;
    assert_false(bench_value_is(memory, 8192, 5, 1));
    free(memory);
}

/* ---- sides in turns -------------------------------------------------------------------------- */

/* A side whose slices are made up. */
struct fake {
    struct bench_side side;
    char letter;      /* written to order     */
    char *order;      /* who ran, in order    */
    uint64_t wall_ns; /* of each slice        */
    icms_err err;     /* of its operations    */
    int ops;          /* of each slice        */
    int from_memory;  /* loads beside them    */
};

static icms_err fake_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                         struct bench_slice *slice, struct err_why *why)
{
    struct fake *fake = side->owner;

    fake->order[strlen(fake->order)] = fake->letter;
    for (int i = 0; i < fake->ops; i++)
        bench_slice_add(slice, fake->err, work->size_bytes, work->size_bytes, (uint64_t)i * 1000);
    slice->from_memory = (uint64_t)fake->from_memory;
    slice->wall_ns = fake->wall_ns;
    return ICMS_OK;
}

static void fake_init(struct fake *fake, char letter, char *order, uint64_t wall_ns)
{
    *fake = (struct fake){.letter = letter, .order = order, .wall_ns = wall_ns, .ops = 100};
    fake->side = (struct bench_side){.name = "fake", .run = fake_run, .owner = fake};
}

static void test_compare_takes_turns(void **state)
{
    const struct bench_work work = {.op = BENCH_GET, .size_bytes = 1000, .depth = 1};
    struct bench_row row = {.bench = "fake", .variant = ""};
    struct bench_opts opts;
    struct fake a, b;
    char order[64] = "";

    bench_opts_init(&opts);
    opts.slices = 4;
    fake_init(&a, 'a', order, 1000);
    fake_init(&b, 'b', order, 2000);
    assert_int_equal(bench_compare(&opts, &work, &a.side, &b.side, &row, NULL), ICMS_OK);
    assert_string_equal(order, "abbaabbaab");
    assert_true(row.ratio == 0.5 && row.ratio_low == 0.5 && row.ratio_high == 0.5);
    assert_true(row.ceiling.gb_per_s == 100 && row.subject.gb_per_s == 50);
    assert_int_equal(row.subject.ops, 400);
    assert_int_equal(row.subject.verified, 400000);
    assert_true(row.subject.p50_us == 50 && row.subject.p99_us == 99);
    assert_int_equal(row.slices, 4);
}

/* A side that does so many loads in a slice, and says where each slice began. */
struct walker {
    struct bench_side side;
    struct bench_trail trail;
    uint64_t ops;
    uint64_t began[8];
    int slices;
};

static icms_err walker_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                           struct bench_slice *slice, struct err_why *why)
{
    struct walker *walker = side->owner;

    walker->began[walker->slices++] = walker->trail.next;
    for (uint64_t i = 0; i < walker->ops; i++, walker->trail.next++)
        bench_slice_add(slice, ICMS_OK, work->size_bytes, work->size_bytes, 1000);
    slice->wall_ns = 1000;
    return ICMS_OK;
}

static void walkers_run(struct walker *a, struct walker *b, enum bench_op op)
{
    const struct bench_work work = {.op = op, .size_bytes = 1000, .depth = 1};
    struct bench_row row = {.bench = "fake", .variant = ""};
    struct bench_opts opts;

    bench_opts_init(&opts);
    opts.slices = 3;
    a->side =
        (struct bench_side){.name = "fake", .run = walker_run, .owner = a, .trail = &a->trail};
    b->side =
        (struct bench_side){.name = "fake", .run = walker_run, .owner = b, .trail = &b->trail};
    assert_int_equal(bench_compare(&opts, &work, &a->side, &b->side, &row, NULL), ICMS_OK);
    assert_int_equal(a->slices, 4);
    assert_int_equal(b->slices, 4);
}

/* Whoever came further leads; stores go their own ways. */
static void test_compare_begins_pairs_at_one_place(void **state)
{
    struct walker a = {.ops = 10, .trail = {.next = 3, .count = 1000}};
    struct walker b = {.ops = 25, .trail = {.count = 1000}};

    walkers_run(&a, &b, BENCH_GET);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(a.began[i], 3 + 25 * i);
        assert_int_equal(b.began[i], 3 + 25 * i);
    }
    a.slices = b.slices = 0;
    walkers_run(&a, &b, BENCH_PUT);
    assert_int_equal(a.began[3], a.began[0] + 30);
    assert_int_equal(b.began[3], b.began[0] + 75);
}

/* The leader is nearly once around further: where it is lies what memory still holds of the other's
 * last loads. Both go on behind that. */
static void test_compare_spares_what_memory_holds(void **state)
{
    struct walker a = {.ops = 100, .trail = {.count = 100}};
    struct walker b = {.ops = 10, .trail = {.count = 100, .kept = 20}};

    walkers_run(&a, &b, BENCH_GET);
    assert_int_equal(b.began[0], 0);
    /* 90 on it would meet the last 10 of its own. */
    assert_int_equal(b.began[1], 120);
    assert_int_equal(a.began[1], 120);
    assert_int_equal(b.began[2], 240);
}

static void test_compare_fails_when_nothing_works(void **state)
{
    const struct bench_work work = {.op = BENCH_GET, .size_bytes = 1000, .depth = 1};
    struct bench_row row = {.bench = "fake", .variant = ""};
    struct err_why why = {""};
    struct bench_opts opts;
    struct fake b;
    char order[64] = "";

    bench_opts_init(&opts);
    fake_init(&b, 'b', order, 2000);
    b.err = ICMS_MISS;
    assert_int_equal(bench_compare(&opts, &work, NULL, &b.side, &row, &why), ICMS_IO);
    assert_non_null(strstr(why.text, "none of 100"));
}

static void test_loads_from_memory_are_told_and_not_counted(void **state)
{
    const struct bench_work work = {.op = BENCH_GET, .size_bytes = 1000, .depth = 1};
    struct bench_row row = {.bench = "fake", .variant = ""};
    struct err_why why = {""};
    struct bench_opts opts;
    struct fake b;
    char order[64] = "";

    bench_opts_init(&opts);
    opts.slices = 4;
    fake_init(&b, 'b', order, 2000);
    b.from_memory = 7;
    assert_int_equal(bench_compare(&opts, &work, NULL, &b.side, &row, &why), ICMS_OK);
    assert_int_equal(row.subject.ops, 400);
    assert_int_equal(row.subject.errors, 0);
    assert_int_equal(row.subject.from_memory, 28);
    b.ops = 0;
    assert_int_equal(bench_compare(&opts, &work, NULL, &b.side, &row, &why), ICMS_INVALID);
    assert_non_null(strstr(why.text, "more --space"));
}

/* A side in whose slice somebody asks for the end. */
static icms_err cancel_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                           struct bench_slice *slice, struct err_why *why)
{
    bench_cancel();
    return fake_run(side, work, ns, slice, why);
}

static void test_compare_ends_when_asked(void **state)
{
    const struct bench_work work = {.op = BENCH_GET, .size_bytes = 1000, .depth = 1};
    struct bench_row row = {.bench = "fake", .variant = ""};
    struct err_why why = {""};
    struct bench_opts opts;
    struct fake b;
    char order[64] = "";

    bench_opts_init(&opts);
    fake_init(&b, 'b', order, 2000);
    b.side.run = cancel_run;
    assert_int_equal(bench_compare(&opts, &work, NULL, &b.side, &row, &why), ICMS_CANCELED);
    assert_string_equal(order, "b");
    bench_canceled = 0;
}

/* What is asked for is measured, or refused. */
static void test_what_a_bench_does_not_have_is_refused(void **state)
{
    static const struct {
        const char *bench, *variant;
        uint32_t depth;
        const char *words;
    } wrong[] = {{"cores", "memroy", 0, "cores has no variant 'memroy': it has memory pod"},
                 {"cores", "po", 0, "has no variant 'po'"},
                 {"cores", "", 0, "has no variant ''"},
                 {"store", "daemon", 0, "store has no variant 'daemon': it has none"},
                 {"scale", "agents", 0, "has no variant 'agents'"},
                 {"match", NULL, 4, "match does one at a time"}};
    struct bench_opts opts;
    struct err_why why;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        bench_opts_init(&opts);
        opts.variant = wrong[i].variant;
        opts.depth = wrong[i].depth;
        why.text[0] = '\0';
        assert_int_equal(bench_run(wrong[i].bench, &opts, &why), ICMS_INVALID);
        if (strstr(why.text, wrong[i].words) == NULL)
            fail_msg("%s", why.text);
    }
    bench_opts_init(&opts); /* stores have no variant memory */
    opts.variant = "memory";
    opts.op = "put";
    assert_int_equal(bench_run("cores", &opts, &why), ICMS_INVALID);
    assert_non_null(strstr(why.text, "nothing to measure"));
}

/* ---- generators ------------------------------------------------------------------------------ */

#define TIMED_SLOTS 4
#define TIMED_NS    2000000

/* Operations that last TIMED_NS. */
struct timed {
    struct bench_gen gen;
    struct timed_slot {
        struct loop_timer timer;
        struct bench_slot *slot;
    } slot[TIMED_SLOTS];
    uint32_t busy, most; /* in flight, and the most so far */
};

static void timed_fire(struct loop_timer *timer)
{
    struct timed_slot *mine = container_of(timer, struct timed_slot, timer);
    struct timed *timed = mine->slot->gen->owner;

    timed->busy--;
    bench_gen_done(mine->slot, ICMS_OK, 10, 10);
}

static void timed_start(struct bench_slot *slot, uint64_t n)
{
    struct timed *timed = slot->gen->owner;
    struct timed_slot *mine = &timed->slot[slot->index];

    if (++timed->busy > timed->most)
        timed->most = timed->busy;
    mine->slot = slot;
    loop_timer_init(&mine->timer, timed_fire);
    loop_timer_start(slot->gen->loop, &mine->timer,
                     loop_env_now_ns(loop_env(slot->gen->loop)) + TIMED_NS);
}

/* Every tenth fails, at once. */
static void instant_start(struct bench_slot *slot, uint64_t n)
{
    bench_gen_done(slot, n % 10 == 9 ? ICMS_MISS : ICMS_OK, 10, 10);
}

static struct loop *loop_up(void)
{
    struct loop_opts opts;
    struct err_why why;
    struct loop *loop;

    loop_opts_init(&opts);
    assert_int_equal(loop_new(loop_env_uring(), &opts, &why, &loop), ICMS_OK);
    assert_int_equal(loop_start(loop, &why), ICMS_OK);
    return loop;
}

static void loop_down(struct loop *loop)
{
    loop_stop(loop);
    loop_join(loop);
    loop_free(&loop);
}

static void test_gen_keeps_the_depth(void **state)
{
    const struct bench_work work = {.op = BENCH_GET, .size_bytes = 10, .depth = 3};
    struct bench_slice slice = {0};
    struct timed timed = {0};
    struct loop *loop = loop_up();

    bench_gen_init(&timed.gen, loop, TIMED_SLOTS, timed_start, &timed);
    bench_gen_run(&timed.gen, &work, 50000000, &slice);
    assert_int_equal(timed.most, 3);
    assert_int_equal(timed.busy, 0);
    assert_true(slice.ops >= 3 && slice.ops <= 78);
    assert_int_equal(slice.bytes, slice.ops * 10);
    assert_true(slice.wall_ns >= 50000000);
    loop_down(loop);
}

/* Due a hundred times as often as it can be done: all are counted from when they were due. */
static void test_gen_open_loop_counts_waiting(void **state)
{
    const struct bench_work work = {.op = BENCH_GET, .size_bytes = 10, .ops_per_s = 200000};
    uint32_t kept[1024];
    struct bench_slice slice = {.sample = {.ns = kept, .max = 1024, .state = 1}};
    struct timed timed = {0};
    struct loop *loop = loop_up();

    bench_gen_init(&timed.gen, loop, TIMED_SLOTS, timed_start, &timed);
    bench_gen_run(&timed.gen, &work, 50000000, &slice);
    assert_int_equal(timed.most, TIMED_SLOTS);
    assert_true(slice.ops <= 108);
    assert_true(bench_sample_quantile(&slice.sample, 0.999) > 20000000);
    loop_down(loop);
}

static void test_gen_counts(void **state)
{
    const struct bench_work work = {.op = BENCH_PUT, .size_bytes = 10, .depth = 2};
    struct err_why why = {""};
    struct timed timed = {0};
    struct loop *loop = loop_up();

    bench_gen_init(&timed.gen, loop, TIMED_SLOTS, instant_start, &timed);
    assert_int_equal(bench_gen_count(&timed.gen, &work, 9, &why), ICMS_OK);
    assert_int_equal(bench_gen_count(&timed.gen, &work, 100, &why), ICMS_IO);
    assert_string_equal(why.text, "10 of 100 puts of 10 bytes failed");
    loop_down(loop);
}

/* Of two values one has another checksum than the other end thinks: every other operation fails.
 * A slice is filled at every depth. */
static void test_raw_tcp_sees_wrong_bytes(void **state)
{
    struct bench_side side = {.name = "raw TCP", .run = bench_tcp_run};
    struct bench_work work = {.size_bytes = 64 << 10, .depth = 3};
    struct bench_pool pool;
    struct bench_tcp *tcp;
    struct err_why why;

    assert_int_equal(bench_pool_new(work.size_bytes, 128 << 10, &why, &pool), ICMS_OK);
    assert_int_equal(pool.count, 2);
    assert_int_not_equal(pool.crc[0], pool.crc[1]);
    pool.crc[1] ^= 1;
    assert_int_equal(bench_tcp_new(&pool, 3, &why, &tcp), ICMS_OK);
    side.owner = tcp;
    for (uint32_t i = 0; i < 4; i++) {
        struct bench_slice slice = {.ops = 0};

        work.op = i % 2 == 0 ? BENCH_GET : BENCH_PUT;
        work.depth = i < 2 ? 1 : 3;
        assert_int_equal(bench_tcp_run(&side, &work, 5000000, &slice, &why), ICMS_OK);
        assert_in_range(slice.wall_ns, 5000000, UINT64_MAX);
        assert_in_range(slice.ops, work.depth, UINT64_MAX);
        assert_in_range(slice.errors, slice.ops / 2, slice.ops / 2 + 1);
        assert_int_equal(slice.error, ICMS_CORRUPT);
        assert_int_equal(slice.verified, (slice.ops - slice.errors) * work.size_bytes);
    }
    bench_tcp_free(&tcp);
    bench_pool_free(&pool);
}

/* Values of one piece, of the most parts, and of whole eighths; a file that is shorter than it
 * should be ends the stream. */
static void test_raw_stream_moves_whole_values(void **state)
{
    char path[] = "bench_test.stream.XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    for (uint32_t pieces = 1; pieces <= 16; pieces += pieces == 1 ? 14 : 1) {
        uint32_t size = pieces * BENCH_STREAM_PIECE;
        struct bench_work work = {.op = BENCH_GET, .size_bytes = size, .depth = 1};
        struct bench_slice slice = {.ops = 0};
        struct bench_stream *stream;
        struct bench_side side;
        struct err_why why;

        assert_int_equal(bench_file_make(path, 2 * size, &why), ICMS_OK);
        assert_int_equal(bench_stream_new(path, 2, size, &why, &stream), ICMS_OK);
        side = bench_stream_side(stream);
        assert_int_equal(side.run(&side, &work, 5000000, &slice, &why), ICMS_OK);
        assert_in_range(slice.ops, 1, UINT64_MAX);
        assert_int_equal(slice.errors, 0);
        assert_int_equal(slice.verified, slice.ops * size);
        assert_in_range(slice.wall_ns, 5000000, UINT64_MAX);
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(side.run(&side, &work, 5000000, &slice, &why), ICMS_RESET);
        bench_stream_free(&stream);
    }
    (void)close(fd);
    (void)unlink(path);
}

static icms_err process_fails(void *arg, struct bench_listening *listening, struct err_why *why)
{
    return err_set(why, ICMS_NO_SPACE, "%s", (const char *)arg);
}

static icms_err process_leaves(void *arg, struct bench_listening *listening, struct err_why *why)
{
    _exit(0);
}

static void test_a_process_that_fails_says_why(void **state)
{
    char sentence[] = "the moon is full";
    struct bench_process process;
    struct err_why why;

    assert_int_equal(bench_process_start("moon", process_fails, sentence, &why, &process),
                     ICMS_NO_SPACE);
    assert_string_equal(why.text, sentence);
    assert_int_equal(process.pid, 0);
    assert_int_equal(bench_process_start("moon", process_leaves, NULL, &why, &process),
                     ICMS_PEER_DOWN);
    assert_non_null(strstr(why.text, "moon"));
}

static void test_instructions_are_counted(void **state)
{
    struct bench_instructions counters;
    volatile uint64_t sum = 0;
    uint64_t before, after;

    assert_false(bench_instructions_open(&counters, -1));
    assert_int_equal(bench_instructions_read(&counters), 0);
    if (!bench_instructions_open(&counters, getpid())) {
        print_message("no counter of instructions here\n");
        skip();
    }
    before = bench_instructions_read(&counters);
    for (uint64_t i = 0; i < 1000000; i++)
        sum = sum + i;
    after = bench_instructions_read(&counters);
    bench_instructions_close(&counters);
    assert_in_range(after - before, 1000000, 100000000);
    assert_int_equal(counters.count, 0);
}

static void test_options_are_checked(void **state)
{
    struct err_why why = {""};
    struct bench_opts opts;

    bench_opts_init(&opts);
    assert_int_equal(bench_run("nothing", &opts, &why), ICMS_NOT_FOUND);
    opts.size_bytes = 1000;
    assert_int_equal(bench_run("store", &opts, &why), ICMS_INVALID);
    bench_opts_init(&opts);
    opts.slices = 0;
    assert_int_equal(bench_run("store", &opts, &why), ICMS_INVALID);
    bench_opts_init(&opts);
    opts.op = "list";
    assert_int_equal(bench_run("store", &opts, &why), ICMS_INVALID);
    opts.op = "lease";
    assert_int_equal(bench_run("store", &opts, &why), ICMS_INVALID);
    bench_opts_init(&opts);
    opts.dir = "/no/such/directory";
    assert_int_equal(bench_run("store", &opts, &why), ICMS_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_median_interval),
        cmocka_unit_test(test_walk_meets_each_once),
        cmocka_unit_test(test_values_are_told_apart),
        cmocka_unit_test(test_compare_takes_turns),
        cmocka_unit_test(test_compare_begins_pairs_at_one_place),
        cmocka_unit_test(test_compare_spares_what_memory_holds),
        cmocka_unit_test(test_compare_fails_when_nothing_works),
        cmocka_unit_test(test_loads_from_memory_are_told_and_not_counted),
        cmocka_unit_test(test_compare_ends_when_asked),
        cmocka_unit_test(test_what_a_bench_does_not_have_is_refused),
        cmocka_unit_test(test_gen_keeps_the_depth),
        cmocka_unit_test(test_gen_open_loop_counts_waiting),
        cmocka_unit_test(test_gen_counts),
        cmocka_unit_test(test_raw_tcp_sees_wrong_bytes),
        cmocka_unit_test(test_raw_stream_moves_whole_values),
        cmocka_unit_test(test_a_process_that_fails_says_why),
        cmocka_unit_test(test_instructions_are_counted),
        cmocka_unit_test(test_options_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
