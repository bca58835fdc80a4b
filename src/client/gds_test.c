/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive that is read past the host into memory of a GPU (cuFile, GDS), over fakes of both
 * libraries, with the real agent inside: which way is chosen, what becomes of reads that fail, hang
 * or bring other bytes, and what does not. The drive is that of a dir:, or the own drive beside a
 * pod of one enclosure that runs already:
 *
 *   gds_test
 *   gds_test pod HOST:PORT NQN
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/gds_rig.h"

/* ---- the choice ------------------------------------------------------------------------------ */

static void the_faster_way_is_used(void **state)
{
    struct fixture *f = *state;
    struct icms_block blocks[32];
    int reads;

    choose_device(f);
    reads_pass_the_host(f, 8);
    status_has(f, "\"devices\":[{\"device\":\"CUDA 0\",\"drive_reads\":\"cufile\",\"why\":\"cuFile "
                  "(GDS) reads the drive: of 2");
    assert_int_equal(status_of(f, "past_host"), 8);
    assert_true(status_of(f, "past_host_bytes") > (uint64_t)8 * BYTES);
    assert_int_equal(icms_memory_unregister(&f->memory), ICMS_OK);
    assert_int_equal(gpu->count(FAKE_DEVICE_FILES), 0);
    gpu->set(FAKE_DEVICE_IN_DELAY_US, SLOW_US);
    f->lines = 0;
    choose_device(f); /* another copier measures again */
    /* More at a time than there are lanes: the host takes what they do not. */
    reads = gpu->count(FAKE_DEVICE_FILE_READS);
    for (uint64_t i = 0; i < 32; i++)
        blocks[i] = block_of(f->next + i, device_at(f, f->next + i));
    assert_int_equal(icms_get(f->volume, blocks, 32, NULL), ICMS_OK);
    for (uint64_t i = 0; i < 32; i++)
        device_is(f, f->next + i, true);
    assert_true(gpu->count(FAKE_DEVICE_FILE_READS) > reads);
}

static void the_slower_way_is_not_used(void **state)
{
    struct fixture *f = *state;

    gpu->set(FAKE_DEVICE_FILE_DELAY_US, SLOW_US);
    register_memory(f);
    status_has(f, "\"drive_reads\":\"undecided\",\"why\":\"\"");
    assert_int_equal(icms_memory_unregister(&f->memory), ICMS_OK);
    choose(f, "CUDA device 0: the host reads the drive: of ");
    reads_take_the_host(f, 8);
    status_has(f, "\"drive_reads\":\"host\",\"why\":\"the host reads the drive: of 2");
    assert_int_equal(status_of(f, "past_host"), 0);
}

static void what_cannot_be_used_is_said(void **state)
{
    struct fixture *f = *state;
    static const struct {
        int what, value;
        const char *words;
    } cases[] = {
        {FAKE_DEVICE_FILE_OPEN, 5001, "cuFileDriverOpen failed: error 5001"},
        {FAKE_DEVICE_FILE_TAKE, 5010, "cuFile (GDS) does not take its file: error 5010"},
        {FAKE_DEVICE_FILE_READ, -5, "a read by cuFile (GDS) failed"},
        {FAKE_DEVICE_FILE_READ, 4096, "a read by cuFile (GDS) failed"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        gpu->set(cases[i].what, cases[i].value);
        atomic_store(&f->lines, 0);
        choose(f, cases[i].words);
        gpu->set(cases[i].what, 0);
        reads_take_the_host(f, 2);
        assert_int_equal(atomic_load(&f->lines), 1);
        assert_int_equal(icms_memory_unregister(&f->memory), ICMS_OK);
    }
}

/* The engine has opened it already, and the library does not take the memory of lanes: it reads to
 * its own first. */
static void what_the_library_refuses_is_not_needed(void **state)
{
    struct fixture *f = *state;

    choose_device(f);
    assert_int_equal(gpu->count(FAKE_DEVICE_FILE_MEMORIES), LANES);
    assert_int_equal(icms_memory_unregister(&f->memory), ICMS_OK);
    assert_int_equal(gpu->count(FAKE_DEVICE_FILE_MEMORIES), 0);
    gpu->set(FAKE_DEVICE_FILE_OPEN, 5026);
    gpu->set(FAKE_DEVICE_FILE_MEMORY, 5023);
    f->lines = 0;
    choose_device(f);
    assert_int_equal(gpu->count(FAKE_DEVICE_FILE_MEMORIES), 0);
    reads_pass_the_host(f, 4);
}

/* In a process that the loader leaves without the library, or with one that lacks functions. */
static void library_child(bool is_old)
{
    char folder[] = "icms-gds-none-XXXXXX", path[64], old[64], real[PATH_MAX];
    const void *reset;
    Dl_info library;
    int status = 0;
    pid_t child;

    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/libcuda.so.1", folder);
    memcpy(&reset, &gpu->reset, sizeof(reset));
    assert_int_not_equal(dladdr(reset, &library), 0);
    assert_non_null(realpath(library.dli_fname, real));
    assert_int_equal(symlink(real, path), 0);
    (void)snprintf(old, sizeof(old), "%s/libcufile.so.0", folder);
    assert_true(!is_old || symlink(real, old) == 0);
    child = fork();
    if (child == 0) {
        (void)setenv("LD_LIBRARY_PATH", folder, 1);
        (void)execl("/proc/self/exe", "gds_test", is_old ? "old" : "none", (char *)NULL);
        _exit(9);
    }
    assert_true(waitpid(child, &status, 0) == child);
    (void)unlink(old);
    (void)unlink(path);
    (void)rmdir(folder);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void without_the_library_the_host_reads(void **state)
{
    library_child(false);
    library_child(true);
}

static void the_library_is_too_old(void **state)
{
    struct fixture *f = *state;

    choose(f, "the host reads the drive, not cuFile (GDS): libcufile.so.0 is too old: it has no "
              "cuFileDriverOpen");
    assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
}

static void there_is_no_library(void **state)
{
    struct fixture *f = *state;

    choose(f, "the host reads the drive, not cuFile (GDS): there is no libcufile.so.0");
    assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
}

/* Pieces, and a stream that is held: the copies are those of every other get. */
static void pieces_and_streams_are_as_ever(void **state)
{
    struct fixture *f = *state;
    struct icms_request_options options;
    struct icms_piece pieces[3];
    struct icms_block block;
    void *stream;
    int reads;

    choose_device(f);
    reads = gpu->count(FAKE_DEVICE_FILE_READS);
    stream = gpu->stream_new(f->context);
    gpu->stream_hold(stream, true);
    icms_request_options_init(&options);
    options.pieces = 3;
    options.stream = stream;
    pieces[0] = (struct icms_piece){.data = device_at(f, f->next), .bytes = 7};
    pieces[1] = (struct icms_piece){.data = (char *)pieces[0].data + 7, .bytes = 200001};
    pieces[2] =
        (struct icms_piece){.data = (char *)pieces[1].data + 200001, .bytes = BYTES - 200008};
    block = block_of(f->next, pieces);
    assert_int_equal(icms_get(f->volume, &block, 1, &options), ICMS_OK);
    device_is(f, f->next, false);
    gpu->stream_hold(stream, false);
    for (uint64_t begin = now_ms(); !gpu->stream_idle(stream); usleep(1000))
        assert_true(now_ms() - begin < WAIT_MS);
    device_is(f, f->next++, true);
    assert_int_equal(gpu->count(FAKE_DEVICE_FILE_READS), reads + 1);
    gpu->stream_free(stream);
    reads_pass_the_host(f, 6); /* its lane came back */
}

/* A get of the next block, whose read hangs in the library. */
static struct icms_request *read_hangs(struct fixture *f, struct icms_block *block)
{
    struct icms_request *request = NULL;
    int asked;

    choose_device(f);
    asked = gpu->count(FAKE_DEVICE_FILE_ASKED);
    gpu->set(FAKE_DEVICE_FILE_HANG, 1);
    *block = block_of(f->next, device_at(f, f->next));
    assert_int_equal(icms_get_start(f->volume, block, 1, NULL, &request), ICMS_OK);
    wait_count(FAKE_DEVICE_FILE_ASKED, asked + 1);
    return request;
}

/* Nobody waits for the read that hangs. Beside a pod the host may have the block by then. */
static void cancel(struct icms_request *request)
{
    int status;

    icms_request_cancel(request);
    status = icms_request_end(&request);
    if (enclosure == NULL || status != ICMS_OK)
        assert_int_equal(status, ICMS_MISS);
}

/* A block that is written while it is read: the value that is answered is the one that comes,
 * though another one was read past the host for it before. */
static void a_block_is_written_during_a_read(void **state)
{
    struct fixture *f = *state;
    struct icms_request *request = NULL;
    struct icms_block block, written;
    uint8_t *data = malloc(BYTES), *got = malloc(BYTES);

    gpu->set(FAKE_DEVICE_PIN_MAX, (int)(17 * MIB)); /* not the agent's memory */
    request = read_hangs(f, &block);
    fill(data, BLOCKS);
    written = block_of(f->next, data);
    written.bytes = BYTES - 5000;
    assert_int_equal(icms_put(f->volume, &written, 1, NULL), ICMS_OK);
    gpu->set(FAKE_DEVICE_FILE_HANG, 0);
    assert_int_equal(icms_request_end(&request), ICMS_OK);
    assert_int_equal(block.bytes, BYTES - 5000);
    gpu->read(f->address + f->next * BYTES, got, BYTES);
    assert_memory_equal(got, data, BYTES - 5000);
    f->next++;
    free(got);
    free(data);
    reads_pass_the_host(f, 6); /* its lane came back */
}

static void put_bytes(struct fixture *f, uint64_t number, uint64_t value)
{
    uint8_t *data = malloc(BYTES);
    struct icms_block block = block_of(number, data);

    fill(data, value);
    assert_int_equal(icms_put(f->volume, &block, 1, NULL), ICMS_OK);
    free(data);
}

/* What was read past the host, while the block was written, is there in the lane still when the new
 * value comes from the pod into the request's memory. True: it went that way. */
static bool new_value_from_the_pod(struct fixture *f)
{
    uint64_t number = f->next, past = status_of(f, "past_host");
    int asked = gpu->count(FAKE_DEVICE_FILE_ASKED);
    struct icms_block block = block_of(number, device_at(f, number));
    struct icms_request *request = NULL;

    gpu->set(FAKE_DEVICE_FILE_HANG, 1);
    assert_int_equal(icms_get_start(f->volume, &block, 1, NULL, &request), ICMS_OK);
    wait_count(FAKE_DEVICE_FILE_ASKED, asked + 1);
    put_bytes(f, number, BLOCKS + number);
    for (uint64_t i = 0; i < 4; i++) /* they take its place in memory */
        put_bytes(f, 2 * BLOCKS + i, i);
    gpu->set(FAKE_DEVICE_FILE_HANG, 0);
    assert_int_equal(icms_request_end(&request), ICMS_OK);
    device_is_value(f, number, BLOCKS + number);
    f->next++;
    return block.source == ICMS_SOURCE_POD && status_of(f, "past_host") == past + 1;
}

static void a_value_of_the_pod_is_not_an_older_one(void **state)
{
    struct fixture *f = *state;

    choose_device(f);
    while (!new_value_from_the_pod(f)) /* the drive's time was over: 100 ms */
        assert_true(f->next < BLOCKS - 8);
    reads_pass_the_host(f, 6);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

/* Other bytes come to the GPU than lie on the drive: none of them is the caller's, and the drive is
 * not to blame. */
static void bytes_that_are_wrong_are_read_again(void **state)
{
    struct fixture *f = *state;
    static const int flips[] = {1, 70, 4096, 150000, BYTES, BYTES + 70};

    choose_device(f);
    for (size_t i = 0; i < sizeof(flips) / sizeof(*flips); i++) {
        int reads = gpu->count(FAKE_DEVICE_FILE_READS);
        int between = gpu->count(FAKE_DEVICE_BETWEEN);

        gpu->set(FAKE_DEVICE_FILE_FLIP, flips[i]);
        assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
        assert_int_equal(gpu->count(FAKE_DEVICE_FILE_READS), reads + 1);
        assert_int_equal(gpu->count(FAKE_DEVICE_BETWEEN), between);
        gpu->set(FAKE_DEVICE_FILE_FLIP, 0);
        reads_pass_the_host(f, 1);
    }
    gpu->set(FAKE_DEVICE_FILE_FLIP, 150000);
    for (int i = 0; i < 3; i++)
        assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
    reads_take_the_host(f, 3);
}

/* Errors and short reads: the host reads the block, and after some the drive. */
static void reads_that_fail_are_the_hosts(void **state)
{
    struct fixture *f = *state;

    choose_device(f);
    gpu->set(FAKE_DEVICE_FILE_READ, -5);
    assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
    gpu->set(FAKE_DEVICE_FILE_READ, 4096);
    assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
    gpu->set(FAKE_DEVICE_FILE_READ, 0);
    reads_pass_the_host(f, 2); /* so far it is tried again */
    gpu->set(FAKE_DEVICE_FILE_READ, -5);
    for (int i = 0; i < 3; i++)
        assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
    gpu->set(FAKE_DEVICE_FILE_READ, 0);
    reads_take_the_host(f, 3);
    assert_int_equal(atomic_load(&f->lines), 2);
    assert_non_null(strstr(f->line, "reads of the drive by cuFile (GDS) failed"));
    assert_int_equal(atomic_load(&f->slack), 1); /* of a lane */
    status_has(f, "\"drive_reads\":\"host\",\"why\":\"reads of the drive by cuFile (GDS) failed");
}

/* All lanes hang: the host reads. They come back, and what came late is not used: the first blocks
 * are as they were, with their values or without. */
static void lanes_come_late(struct fixture *f, int reads, bool filled)
{
    reads_take_the_host(f, 4);
    gpu->set(FAKE_DEVICE_FILE_HANG, 0);
    wait_count(FAKE_DEVICE_FILE_READS, reads + LANES);
    (void)usleep(50000);
    for (uint64_t i = 1; i <= LANES; i++)
        device_is(f, i, filled);
    reads_pass_the_host(f, 4);
}

/* Each costs its deadline and has its lane; without a lane the host reads. They come back. */
static void a_read_that_hangs_costs_its_deadline(void **state)
{
    struct fixture *f = *state;
    int asked, reads;

    choose_device(f);
    asked = gpu->count(FAKE_DEVICE_FILE_ASKED);
    reads = gpu->count(FAKE_DEVICE_FILE_READS);
    gpu->set(FAKE_DEVICE_FILE_HANG, 1);
    for (int i = 0; i < LANES; i++) {
        enum icms_miss reason;

        assert_int_equal(get_next(f, 100, &reason), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_DEADLINE);
    }
    wait_count(FAKE_DEVICE_FILE_ASKED, asked + LANES);
    lanes_come_late(f, reads, false);
}

/* The read of a get that is over hangs. */
static void get_hangs(struct fixture *f)
{
    bool alone = enclosure == NULL;

    gpu->set(FAKE_DEVICE_FILE_HANG, 1);
    assert_int_equal(get_next(f, alone ? 50 : 0, NULL), alone ? ICMS_MISS : ICMS_OK);
}

/* Beside a pod the host reads the block in the time that is left, the drive is not to blame, and
 * without a lane blocks come as ever. */
static void a_read_that_hangs_is_the_hosts(void **state)
{
    struct fixture *f = *state;
    int asked, reads;
    uint64_t past;

    choose_device(f);
    past = status_of(f, "past_host");
    asked = gpu->count(FAKE_DEVICE_FILE_ASKED);
    reads = gpu->count(FAKE_DEVICE_FILE_READS);
    gpu->set(FAKE_DEVICE_FILE_HANG, 1);
    for (int i = 0; i < LANES; i++) {
        assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
        assert_int_equal(f->source, ICMS_SOURCE_LOCAL);
    }
    wait_count(FAKE_DEVICE_FILE_ASKED, asked + LANES);
    assert_int_equal(status_of(f, "past_host"), past);
    assert_int_equal(status_of(f, "given_up"), 0);
    assert_int_equal(status_of(f, "slow_total"), 0);
    lanes_come_late(f, reads, true);
}

static void *hang_ends(void *arg)
{
    (void)usleep(200000);
    gpu->set(FAKE_DEVICE_FILE_HANG, 0);
    return arg;
}

/* The request goes, then the memory, while the library has the read. */
static void memory_is_unregistered_during_a_read(void **state)
{
    struct fixture *f = *state;
    struct icms_request *request = NULL;
    struct icms_block block;
    pthread_t thread;

    request = read_hangs(f, &block);
    assert_int_equal(icms_memory_unregister(&f->memory), ICMS_BUSY);
    assert_int_equal(pthread_create(&thread, NULL, hang_ends, NULL), 0);
    cancel(request);
    while (icms_memory_unregister(&f->memory) == ICMS_BUSY)
        (void)usleep(1000);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (enclosure == NULL)
        device_is(f, f->next, false);
    f->next++;
    assert_int_equal(gpu->count(FAKE_DEVICE_FILES), 0);
    register_memory(f);
    assert_int_equal(get_next(f, 0, NULL), ICMS_OK);
}

static void *driver_recovers(void *arg)
{
    (void)usleep(200000);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    gpu->set(FAKE_DEVICE_QUERY, 0);
    return arg;
}

/* The driver fails to say whether it has ended to copy from a lane: its memory stays until then. */
static void a_driver_that_fails_keeps_the_memory_of_a_read(void **state)
{
    struct fixture *f = *state;
    struct icms_request *request = NULL;
    struct icms_block block;
    pthread_t thread;
    int asked;

    request = read_hangs(f, &block);
    cancel(request);
    asked = gpu->count(FAKE_DEVICE_ASKED);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    gpu->set(FAKE_DEVICE_QUERY, 999);
    gpu->set(FAKE_DEVICE_FILE_HANG, 0);
    wait_count(FAKE_DEVICE_ASKED, asked + 1);
    assert_int_equal(pthread_create(&thread, NULL, driver_recovers, NULL), 0);
    while (icms_memory_unregister(&f->memory) == ICMS_BUSY)
        (void)usleep(1000);
    assert_int_equal(gpu->get(FAKE_DEVICE_STUCK), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(gpu->count(FAKE_DEVICE_FILES), 0);
}

static void a_handle_is_closed_during_a_read(void **state)
{
    struct fixture *f = *state;
    pthread_t thread;

    choose_device(f);
    get_hangs(f);
    assert_int_equal(pthread_create(&thread, NULL, hang_ends, NULL), 0);
    icms_close(&f->icms);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* The request is over, and its agent ends, as when a volume is made, while the library has the
 * read: what comes back later finds nobody. */
static void an_agent_ends_during_a_read(void **state)
{
    struct fixture *f = *state;
    struct icms_request *request = NULL;
    struct icms_volume *later = NULL;
    struct icms_block block;
    char why[256] = "";
    int reads, asked;

    choose_device(f);
    asked = gpu->count(FAKE_DEVICE_FILE_ASKED);
    reads = gpu->count(FAKE_DEVICE_FILE_READS);
    gpu->set(FAKE_DEVICE_FILE_HANG, 1);
    block = block_of(f->next, device_at(f, f->next));
    assert_int_equal(icms_get_start(f->volume, &block, 1, NULL, &request), ICMS_OK);
    wait_count(FAKE_DEVICE_FILE_ASKED, asked + 1);
    cancel(request);
    if (icms_volume_open(f->icms, "later", why, sizeof(why), &later) != ICMS_OK)
        fail_msg("%s", why);
    gpu->set(FAKE_DEVICE_FILE_HANG, 0);
    wait_count(FAKE_DEVICE_FILE_READS, reads + 1);
    (void)usleep(50000);
    if (enclosure == NULL)
        device_is(f, f->next, false);
    f->next++;
    reads_pass_the_host(f, 6); /* its lane came back */
    icms_volume_close(&later);
}

/* The library does not return at all: the agent goes on with the host, and ends. In a process that
 * then ends with all that was left behind. */
static void hang_inside(void **state)
{
    struct fixture *f = *state;

    choose_device(f);
    get_hangs(f);
    icms_close(&f->icms);
    folder_remove(f);
    _exit(0);
}

static void a_library_that_does_not_return_is_left_behind(void **state)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        (void)alarm(WAIT_MS / 1000);
        (void)execl("/proc/self/exe", "gds_test", "hang", enclosure, nqn, (char *)NULL);
        _exit(9);
    }
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_context_is_destroyed_during_a_read(void **state)
{
    struct fixture *f = *state;
    struct icms_request *request = NULL;
    struct icms_block block;

    f->context = gpu->context_new(0);
    request = read_hangs(f, &block);
    gpu->context_destroy(f->context);
    gpu->set(FAKE_DEVICE_FILE_HANG, 0);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    assert_int_equal(block.status, ICMS_DEVICE);
    icms_close(&f->icms);
    gpu->add(FAKE_DEVICE_FILE_MEMORIES, -LANES); /* it took them along */
}

/* Another agent, as when a volume is made, has the same drive. */
static void another_agent_reads_the_same_drive(void **state)
{
    struct fixture *f = *state;
    struct icms_volume *later = NULL;
    char why[256] = "";

    choose_device(f);
    reads_pass_the_host(f, 2);
    if (icms_volume_open(f->icms, "later", why, sizeof(why), &later) != ICMS_OK)
        fail_msg("%s", why);
    reads_pass_the_host(f, 2);
    icms_volume_close(&later);
}

static void file_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    (void)fputs(text, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

/* Another directory, with keys for its volume "kv". */
static void open_encrypted(struct fixture *f, const char *folder, char *key, char *list)
{
    (void)snprintf(key, 64, "%s/key", folder);
    (void)snprintf(list, 64, "%s/keys.yaml", folder);
    file_write(key, "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff");
    file_write(list, "volumes:\n  - name: kv\n    keys:\n      - id: 1\n        file: key\n");
    (void)snprintf(f->where, sizeof(f->where), "dir:%s/kv", folder);
    open_tier(f, list);
}

/* Its values come by the host, which is said once of each volume. */
static void an_encrypted_volume_is_never_read_past_the_host(void **state)
{
    struct fixture *f = *state, own = {.context = f->context};
    char folder[] = "icms-gds-vault-XXXXXX", key[64], list[64];
    int asked = gpu->count(FAKE_DEVICE_FILE_ASKED);

    assert_non_null(mkdtemp(folder));
    (void)snprintf(own.folder, sizeof(own.folder), "%s", folder);
    open_encrypted(&own, folder, key, list);
    for (uint64_t i = 0; i < 8; i++)
        put_bytes(&own, i, i);
    assert_int_equal(icms_flush(own.volume, NULL), ICMS_OK);
    icms_close(&own.icms);
    open_encrypted(&own, folder, key, list);
    assert_int_equal(atomic_load(&own.lines), 0); /* as long as there is no GPU */
    for (int i = 0; i < 2; i++) {
        register_memory(&own);
        assert_int_equal(get_next(&own, 0, NULL), ICMS_OK);
        assert_int_equal(get_next(&own, 0, NULL), ICMS_OK);
        assert_int_equal(icms_memory_unregister(&own.memory), ICMS_OK);
    }
    assert_int_equal(gpu->count(FAKE_DEVICE_FILE_ASKED), asked);
    assert_int_equal(atomic_load(&own.lines), 1);
    assert_string_equal(own.line, "volume kv: encrypted: its values are decrypted in pinned memory "
                                  "of the host and copied to the GPU from there; cuFile (GDS) "
                                  "never reads them");
    icms_close(&own.icms);
    (void)unlink(key);
    (void)unlink(list);
    folder_remove(&own);
}

static void a_child_of_fork_has_no_part_in_it(void **state)
{
    struct fixture *f = *state;
    int status = 0;
    pid_t child;

    choose_device(f);
    child = fork();
    if (child == 0) {
        struct icms_block block = block_of(f->next, device_at(f, f->next));
        bool right = icms_get(f->volume, &block, 1, NULL) == ICMS_FORKED;

        icms_close(&f->icms);
        _exit(right ? 0 : 1);
    }
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    reads_pass_the_host(f, 2);
}

static int tests_of_pod(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_faster_way_is_used),
        CASE(the_slower_way_is_not_used),
        CASE(what_cannot_be_used_is_said),
        CASE(what_the_library_refuses_is_not_needed),
        CASE(pieces_and_streams_are_as_ever),
        CASE(a_block_is_written_during_a_read),
        cmocka_unit_test_setup_teardown(a_value_of_the_pod_is_not_an_older_one, gds_setup_small,
                                        gds_teardown),
        CASE(bytes_that_are_wrong_are_read_again),
        CASE(reads_that_fail_are_the_hosts),
        CASE(a_read_that_hangs_is_the_hosts),
        CASE(memory_is_unregistered_during_a_read),
        CASE(a_driver_that_fails_keeps_the_memory_of_a_read),
        CASE(a_handle_is_closed_during_a_read),
        cmocka_unit_test(a_library_that_does_not_return_is_left_behind),
        CASE(a_context_is_destroyed_during_a_read),
        CASE(a_child_of_fork_has_no_part_in_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest none[] = {CASE(there_is_no_library)};
    const struct CMUnitTest old[] = {CASE(the_library_is_too_old)};
    const struct CMUnitTest hang[] = {CASE(hang_inside)};
    const struct CMUnitTest tests[] = {
        CASE(the_faster_way_is_used),
        CASE(the_slower_way_is_not_used),
        CASE(what_cannot_be_used_is_said),
        CASE(what_the_library_refuses_is_not_needed),
        cmocka_unit_test(without_the_library_the_host_reads),
        CASE(pieces_and_streams_are_as_ever),
        CASE(a_block_is_written_during_a_read),
        CASE(bytes_that_are_wrong_are_read_again),
        CASE(reads_that_fail_are_the_hosts),
        CASE(a_read_that_hangs_costs_its_deadline),
        CASE(memory_is_unregistered_during_a_read),
        CASE(a_driver_that_fails_keeps_the_memory_of_a_read),
        CASE(a_handle_is_closed_during_a_read),
        cmocka_unit_test(a_library_that_does_not_return_is_left_behind),
        CASE(a_context_is_destroyed_during_a_read),
        CASE(another_agent_reads_the_same_drive),
        CASE(an_agent_ends_during_a_read),
        CASE(an_encrypted_volume_is_never_read_past_the_host),
        CASE(a_child_of_fork_has_no_part_in_it),
    };

    gpu = fake_device_load("libcuda.so.1");
    if (gpu == NULL) {
        (void)fprintf(stderr, "no fake libcuda.so.1 in LD_LIBRARY_PATH\n");
        return 1;
    }
    if (argc == 2 && strcmp(argv[1], "none") == 0)
        return cmocka_run_group_tests(none, NULL, NULL);
    if (argc == 2 && strcmp(argv[1], "old") == 0)
        return cmocka_run_group_tests(old, NULL, NULL);
    if (argc == 4) { /* pod, or hang in one */
        enclosure = argv[2];
        nqn = argv[3];
    }
    if (argc >= 2 && strcmp(argv[1], "hang") == 0) {
        gds_run = 1000;
        return cmocka_run_group_tests(hang, NULL, NULL);
    }
    if (enclosure != NULL)
        return tests_of_pod();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
