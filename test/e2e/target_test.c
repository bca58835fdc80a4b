/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real icms-target on loopback: starts, mistakes, kill -9 under load, floods with bounded
 * memory, metrics, drain.
 *
 *   target_test ICMS_TARGET [ROUNDS]
 *
 * Method: a host made of the wire codecs talks to the process over real sockets; a model of what
 * was acknowledged judges it after every SIGKILL.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <errno.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "e2e/target_e2e.h"

#define KEYS      256
#define VALUE_MAX 300000

static unsigned rounds = 10;
static uint8_t value[VALUE_MAX + 8], back[VALUE_MAX + 8];

static struct peer *admin_new(struct e2e *e2e)
{
    struct peer *peer = peer_new_socket(&e2e->addr);

    assert_non_null(peer);
    assert_true(peer_admin(peer, 0));
    return peer;
}

static struct peer *io_new(struct e2e *e2e, struct peer *admin, uint16_t qid, uint8_t digests)
{
    struct peer *peer = peer_new_socket(&e2e->addr);

    assert_non_null(peer);
    assert_true(peer_io(peer, admin, qid, digests));
    return peer;
}

static uint32_t value_bytes(uint64_t seed)
{
    return 1 + (uint32_t)(hash64_mix(seed) % VALUE_MAX);
}

static void value_make(uint64_t seed)
{
    uint32_t bytes = value_bytes(seed);

    for (uint32_t i = 0; i < bytes; i += 8) {
        uint64_t word = hash64_mix(seed + i);

        memcpy(value + i, &word, 8);
    }
}

static const char *key_text(uint32_t i)
{
    static char text[24];

    snprintf(text, sizeof(text), "run%05u-blk%04u", i / 4 % 100000, i % 10000);
    return text;
}

static uint16_t put(struct peer *io, uint32_t i, uint64_t seed)
{
    struct nvme_cqe cqe;

    value_make(seed);
    return peer_store(io, 1, key_text(i), value, value_bytes(seed), 0, &cqe);
}

/* Reads a block; returns its status, and whether these are the bytes of the seed. */
static uint16_t get(struct peer *io, uint32_t i, uint64_t seed, bool *out_is)
{
    uint32_t bytes = VALUE_MAX;
    struct nvme_cqe cqe;
    uint16_t status = peer_retrieve(io, 1, key_text(i), back, &bytes, &cqe);

    value_make(seed);
    *out_is =
        status == NVME_SC_SUCCESS && bytes == value_bytes(seed) && memcmp(back, value, bytes) == 0;
    return status;
}

static bool get_is(struct peer *io, uint32_t i, uint64_t seed)
{
    bool is;

    get(io, i, seed, &is);
    return is;
}

static void it_serves_and_counts(void **state)
{
    struct e2e *e2e = *state;
    static char body[65536];
    struct peer *admin, *io[3];

    e2e_configure(e2e, "loops: 2\nmemory: 64MiB\nconnections_max: 64\nsegment: 4MiB\n", 2, "96MiB",
                  "    value_max: 1MiB\n");
    e2e_start_ok(e2e, NULL);
    admin = admin_new(e2e);
    for (uint16_t q = 0; q < 3; q++)
        io[q] = io_new(e2e, admin, (uint16_t)(q + 1), q == 2 ? 3 : 0);
    for (uint32_t i = 0; i < 60; i++)
        assert_int_equal(put(io[i % 3], i, i), NVME_SC_SUCCESS);
    for (uint32_t i = 0; i < 60; i++)
        assert_true(get_is(io[(i + 1) % 3], i, i));
    assert_false(get_is(io[0], 999, 0));
    assert_true(e2e_metric(e2e, "icms_target_ops_total{op=\"store\",status=\"OK\"}") == 60);
    assert_true(e2e_metric(e2e, "icms_target_ops_total{op=\"retrieve\",status=\"OK\"}") == 60);
    assert_true(e2e_metric(e2e, "icms_target_ops_total{op=\"retrieve\",status=\"MISS\"}") == 1);
    assert_true(e2e_metric(e2e, "icms_target_misses_total{reason=\"absent\"}") == 1);
    assert_true(e2e_metric(e2e, "icms_target_op_seconds_count{op=\"retrieve\"}") == 61);
    assert_true(e2e_metric(e2e, "icms_target_blocks{volume=\"kv\"}") == 60);
    assert_true(e2e_metric(e2e, "icms_target_used_bytes{volume=\"kv\"}") > 60 * 1000);
    assert_true(e2e_metric(e2e, "icms_target_connections") == 4);
    assert_true(e2e_metric(e2e, "icms_target_bytes_total{dir=\"in\"}") ==
                e2e_metric(e2e, "icms_target_bytes_total{dir=\"out\"}"));
    assert_true(e2e_metric(e2e, "kv_cache_usage_perc") > 0);
    assert_true(e2e_metric(e2e, "icms_target_hits_total{volume=\"kv\"}") == 60);
    assert_true(e2e_metric(e2e, "icms_target_ready") == 1);
    assert_int_equal(e2e_get(e2e, "/readyz", body, sizeof(body)), 200);
    assert_int_equal(e2e_get(e2e, "/status", body, sizeof(body)), 200);
    assert_non_null(strstr(body, "\"ready\":true"));
    for (int q = 0; q < 3; q++)
        peer_free(&io[q]);
    peer_free(&admin);
    assert_int_equal(e2e_end(e2e, SIGTERM), 0);
}

static void sigterm_ends_with_hosts_connected(void **state)
{
    struct e2e *e2e = *state;
    struct peer *admin;
    struct peer *io;

    e2e_configure(e2e, "memory: 64MiB\nconnections_max: 64\nsegment: 4MiB\n", 1, "64MiB",
                  "    value_max: 1MiB\n");
    e2e_start_ok(e2e, NULL);
    admin = admin_new(e2e);
    io = io_new(e2e, admin, 1, 0);
    assert_int_equal(put(io, 1, 1), NVME_SC_SUCCESS);
    assert_int_equal(e2e_end(e2e, SIGTERM), 0);
    peer_free(&io);
    peer_free(&admin);
}

/* A store of which the value is not there yet when the signal comes is stored, answered, and there
 * at the next start; meanwhile the target says that it is not ready. */
static void sigterm_waits_for_commands_in_flight(void **state)
{
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_STORE, .nsid = 1, .key = peer_key(key_text(7))};
    struct e2e *e2e = *state;
    struct nvme_sqe_wf sqe;
    struct peer *admin, *io;
    struct nvme_cqe cqe;
    char body[256] = "";
    uint64_t seed = 1;
    uint16_t cid;
    int ready = 200;

    e2e_configure(e2e, "memory: 64MiB\nconnections_max: 64\nsegment: 4MiB\n", 1, "64MiB",
                  "    value_max: 1MiB\n");
    e2e_start_ok(e2e, NULL);
    admin = admin_new(e2e);
    io = io_new(e2e, admin, 1, 0);
    while (value_bytes(seed) < 100000)
        seed++;
    value_make(seed);
    cmd.bytes = value_bytes(seed);
    nvme_kv_cmd_encode(&cmd, &sqe);
    cid = peer_submit(io, &sqe, cmd.bytes);
    /* Until it has a buffer for the value: that of the Connect before may be in use still. */
    for (int i = 0; i < 20000 && e2e_metric(e2e, "icms_target_buffers_used_bytes") < cmd.bytes; i++)
        peer_sleep(io, 1);
    assert_int_equal(kill(e2e->pid, SIGTERM), 0);
    for (int i = 0; i < 5000 && ready == 200; i++) {
        ready = e2e_get(e2e, "/readyz", body, sizeof(body));
        peer_sleep(io, 1);
    }
    assert_int_equal(ready, 503);
    assert_non_null(strstr(body, "draining"));
    assert_int_equal(e2e_get(e2e, "/healthz", body, sizeof(body)), 200);
    assert_true(peer_complete(io, cid, value, cmd.bytes, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(e2e_end(e2e, 0), 0);
    peer_free(&io);
    peer_free(&admin);
    e2e_start_ok(e2e, NULL);
    admin = admin_new(e2e);
    io = io_new(e2e, admin, 1, 0);
    assert_true(get_is(io, 7, seed));
    peer_free(&io);
    peer_free(&admin);
    assert_int_equal(e2e_end(e2e, SIGTERM), 0);
}

/* The thread of a daemon that has this name; 0: none. */
static pid_t thread_of(const struct e2e *e2e, const char *name)
{
    char path[64], text[32];
    struct dirent *entry;
    pid_t found = 0;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/task", e2e->pid);
    dir = opendir(path);
    assert_non_null(dir);
    while (found == 0 && (entry = readdir(dir)) != NULL) {
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/task/%.10s/comm", e2e->pid, entry->d_name);
        file = fopen(path, "r");
        if (file == NULL)
            continue;
        if (fgets(text, sizeof(text), file) != NULL && strncmp(text, name, strlen(name)) == 0 &&
            text[strlen(name)] == '\n')
            found = (pid_t)strtol(entry->d_name, NULL, 10);
        fclose(file);
    }
    closedir(dir);
    return found;
}

/* Waits, at most twenty seconds, until /healthz answers so; returns the last answer. */
static int healthz_until(const struct e2e *e2e, int status, char *body, size_t bytes)
{
    struct timespec pause = {.tv_nsec = 50000000};
    int answer = 0;

    for (int i = 0; i < 400 && answer != status; i++) {
        nanosleep(&pause, NULL);
        answer = e2e_get(e2e, "/healthz", body, bytes);
    }
    return answer;
}

/* Waits, at most twenty seconds, until the log has a text; returns whether it does. */
static bool logged_until(const struct e2e *e2e, const char *text)
{
    for (int i = 0; i < 400 && !e2e_logged(e2e, text, NULL); i++)
        usleep(50000);
    return e2e_logged(e2e, text, NULL);
}

/* One more host waits until another one leaves, and the log says so. */
static void a_host_waits_for_a_free_connection(void **state)
{
    struct e2e *e2e = *state;
    struct peer *peers[4], *late;

    e2e_configure(e2e, "memory: 64MiB\nconnections_max: 4\nheader_timeout: 10min\nsegment: 4MiB\n",
                  1, "64MiB", "    value_max: 1MiB\n");
    e2e_start_ok(e2e, NULL);
    for (int i = 0; i < 4; i++) {
        peers[i] = peer_new_socket(&e2e->addr);
        assert_non_null(peers[i]);
    }
    assert_true(logged_until(e2e, "connections: all are in use: hosts that connect wait"));
    assert_true(e2e_metric(e2e, "icms_target_connections") == 4);
    assert_true(e2e_metric(e2e, "icms_target_connections_max") == 4);
    assert_true(e2e_metric(e2e, "icms_target_connections_full_total") == 1);
    late = peer_new_socket(&e2e->addr);
    assert_non_null(late);
    peer_free(&peers[0]);
    assert_true(peer_admin(late, 0));
    assert_true(e2e_metric(e2e, "icms_target_connections_full_total") == 2);
    peer_free(&late);
    for (int i = 1; i < 4; i++)
        peer_free(&peers[i]);
    assert_int_equal(e2e_end(e2e, SIGTERM), 0);
}

/* One reactor is stopped, as a debugger does it; the others and HTTP go on. It stays so until the
 * main thread has logged it, too, which looks less often. */
static void a_stuck_reactor_is_named(void **state)
{
    struct e2e *e2e = *state;
    char body[256] = "";
    bool is_logged;
    pid_t thread;
    int answer;

    e2e_configure(e2e, "loops: 2\nmemory: 64MiB\nconnections_max: 64\nsegment: 4MiB\n", 1, "64MiB",
                  "    value_max: 1MiB\n");
    e2e_start_ok(e2e, NULL);
    assert_int_equal(e2e_get(e2e, "/healthz", body, sizeof(body)), 200);
    thread = thread_of(e2e, "icms-1");
    assert_true(thread > 0);
    if (ptrace(PTRACE_SEIZE, thread, NULL, NULL) != 0) {
        print_message("no thread can be stopped here: %s\n", strerror(errno));
        assert_int_equal(e2e_end(e2e, SIGTERM), 0);
        skip();
    }
    /* It goes on before anything is asserted: a process with a stopped thread cannot be waited for.
     */
    (void)ptrace(PTRACE_INTERRUPT, thread, NULL, NULL);
    (void)waitpid(thread, NULL, __WALL);
    answer = healthz_until(e2e, 503, body, sizeof(body));
    is_logged = logged_until(e2e, "reactor 1 is stuck");
    (void)ptrace(PTRACE_DETACH, thread, NULL, NULL);
    assert_int_equal(answer, 503);
    assert_non_null(strstr(body, "reactor 1 is stuck"));
    assert_true(is_logged);
    assert_int_equal(healthz_until(e2e, 200, body, sizeof(body)), 200);
    assert_true(logged_until(e2e, "all reactors answer again"));
    assert_int_equal(e2e_end(e2e, SIGTERM), 0);
}

static void mistakes_have_their_own_sentences(void **state)
{
    struct e2e *e2e = *state;
    struct e2e second;
    char path[128];
    char extra[128];
    int status = 0;
    int fd;

    e2e_configure(e2e, "memory: 64MiB\nconnections_max: 64\nnonsense: 1\n", 1, "64MiB", "");
    assert_false(e2e_start(e2e, NULL, &status));
    assert_int_equal(status, 2);
    assert_true(e2e_logged(e2e, "nonsense", NULL));
    e2e_configure(e2e, "memory: 64KiB\nconnections_max: 64\nsegment: 4MiB\n", 1, "64MiB",
                  "    value_max: 1MiB\n");
    assert_false(e2e_start(e2e, NULL, &status));
    assert_int_not_equal(status, 0);
    e2e_configure(e2e, "memory: 64MiB\nconnections_max: 64\nsegment: 16MiB\n", 1, "128MiB", "");
    e2e_start_ok(e2e, NULL);
    /* The address, and the drive, are in use. */
    assert_true(e2e_new(&second, e2e_program));
    snprintf(extra, sizeof(extra), "memory: 64MiB\nconnections_max: 64\nsegment: 16MiB\n");
    e2e_configure(&second, extra, 1, "128MiB", "");
    {
        FILE *file = fopen(second.config, "r+");
        char text[2048];
        size_t bytes = fread(text, 1, sizeof(text) - 1, file);
        char *listen;

        text[bytes] = '\0';
        listen = strstr(text, "127.0.0.1:0");
        assert_non_null(listen);
        rewind(file);
        fprintf(file, "%.*s127.0.0.1:%u%s", (int)(listen - text), text, e2e->addr.port,
                listen + strlen("127.0.0.1:0"));
        fclose(file);
    }
    assert_false(e2e_start(&second, NULL, &status));
    assert_int_equal(status, 1);
    assert_true(e2e_logged(&second, "in use", NULL));
    memcpy(second.config, e2e->config, sizeof(second.config));
    assert_false(e2e_start(&second, NULL, &status));
    assert_int_equal(status, 1);
    assert_true(e2e_logged(&second, "drive0", NULL));
    snprintf(second.config, sizeof(second.config), "%s/target.yaml", second.directory);
    e2e_free(&second);
    assert_int_equal(e2e_end(e2e, SIGTERM), 0);
    /* A drive with somebody's data on it. */
    snprintf(path, sizeof(path), "%s/drive0", e2e->directory);
    assert_int_equal(unlink(path), 0);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)128 << 20) == 0);
    assert_true(pwrite(fd, "somebody's data", 16, 0) == 16);
    close(fd);
    assert_false(e2e_start(e2e, NULL, &status));
    assert_int_equal(status, 1);
    assert_true(e2e_logged(e2e, "drive0", NULL));
    assert_true(e2e_logged(e2e, "start with `--format drive0`", NULL));
    assert_false(e2e_start(e2e, "--format=drive1", &status)); /* there is none */
    assert_int_equal(status, 2);
    assert_true(e2e_logged(e2e, "no such drive", NULL));
    e2e_start_ok(e2e, "--format=drive0");
    assert_int_equal(e2e_end(e2e, SIGTERM), 0);
}

/* A child that stores until the target is killed under it, and tells what was acknowledged. */
static void storm(struct e2e *e2e, int out, uint64_t seed)
{
    struct peer *admin = peer_new_socket(&e2e->addr);
    struct peer *io = peer_new_socket(&e2e->addr);

    if (admin == NULL || io == NULL || !peer_admin(admin, 0) || !peer_io(io, admin, 1, 0))
        _exit(1);
    for (uint64_t n = 0;; n++) {
        uint64_t random = hash64_mix(seed + n);
        uint64_t record[3] = {random % KEYS, random, 0};

        if (write(out, record, sizeof(record)) != sizeof(record))
            _exit(1);
        if (put(io, (uint32_t)record[0], record[1]) != NVME_SC_SUCCESS)
            _exit(0);
        record[2] = 1;
        if (write(out, record, sizeof(record)) != sizeof(record))
            _exit(1);
    }
}

/* What may be read of each key: the last acknowledged value, or one that was under way when the
 * target died. */
struct model {
    uint64_t seed, pending;
    bool there, maybe;
};

/* Reads until so many stores were acknowledged, or to the end. */
static void model_read(struct model *model, int in, unsigned acknowledged)
{
    uint64_t record[3];

    while (acknowledged > 0 && read(in, record, sizeof(record)) == sizeof(record)) {
        struct model *m = &model[record[0]];

        if (record[2]) {
            m->seed = record[1];
            m->there = true;
            m->maybe = false;
            acknowledged--;
        } else {
            m->pending = record[1];
            m->maybe = true;
        }
    }
}

/* The block is what the model says, or gone: then it returns true, and an eviction has to be
 * counted. Anything else, an older value above all, ends the test. */
static bool model_judge(struct model *model, struct peer *io, unsigned round, uint32_t i,
                        unsigned *there)
{
    bool had = model->there, is = false;
    uint16_t status = get(io, i, model->seed, &is);

    if (!(had && is) && model->maybe && status == NVME_SC_SUCCESS) {
        get(io, i, model->pending, &is);
        model->seed = model->pending;
        had = true;
    }
    if (status == NVME_SC_SUCCESS ? !(had && is) : status != NVME_SC_KV_NO_KEY)
        fail_msg("round %u: block %u is not what was acknowledged (status %#x)", round, i, status);
    model->there = status == NVME_SC_SUCCESS;
    model->maybe = false;
    *there += model->there;
    return had && !model->there;
}

static void acknowledged_blocks_survive_kill_9(void **state)
{
    struct e2e *e2e = *state;
    static struct model model[KEYS];
    struct peer *admin, *io;
    uint64_t evicted_before = 0;

    memset(model, 0, sizeof(model));
    e2e_configure(e2e, "loops: 2\nmemory: 64MiB\nconnections_max: 64\nsegment: 4MiB\n", 2, "256MiB",
                  "    value_max: 1MiB\n");
    for (unsigned round = 0; round < rounds; round++) {
        struct timespec pause = {.tv_nsec = (long)(hash64_mix(round) % 4000) * 1000};
        int fds[2];
        pid_t child;
        unsigned there = 0, missed = 0;
        double evicted;

        e2e_start_ok(e2e, NULL);
        assert_int_equal(pipe(fds), 0);
        child = fork();
        if (child == 0)
            storm(e2e, fds[1], hash64_mix(round + 1000));
        close(fds[1]);
        model_read(model, fds[0], 5 + hash64_mix(round + 1) % 80);
        nanosleep(&pause, NULL);
        assert_int_equal(e2e_end(e2e, SIGKILL), 128 + SIGKILL);
        model_read(model, fds[0], UINT_MAX);
        close(fds[0]);
        kill(child, SIGKILL);
        assert_true(waitpid(child, NULL, 0) == child);
        e2e_start_ok(e2e, NULL);
        admin = admin_new(e2e);
        io = io_new(e2e, admin, 1, 0);
        for (uint32_t i = 0; i < KEYS; i++)
            missed += model_judge(&model[i], io, round, i, &there);
        evicted = e2e_metric(e2e, "icms_target_evictions_total{volume=\"kv\"}");
        if (evicted < 0 || missed > (uint64_t)evicted - evicted_before)
            fail_msg("round %u: %u blocks are gone, %.0f were evicted", round, missed,
                     evicted - (double)evicted_before);
        evicted_before = (uint64_t)evicted;
        assert_true(round < 9 || there > 20);
        peer_free(&io);
        peer_free(&admin);
        assert_int_equal(e2e_end(e2e, SIGKILL), 128 + SIGKILL);
    }
}

static void floods_do_not_grow_it(void **state)
{
    struct e2e *e2e = *state;
    struct peer *admin, *io;
    uint64_t before;
    uint8_t junk[4096];

    e2e_configure(e2e,
                  "loops: 2\nmemory: 64MiB\nconnections_max: 64\nsegment: 4MiB\n"
                  "header_timeout: 300ms\n",
                  1, "64MiB", "    value_max: 1MiB\n");
    e2e_start_ok(e2e, NULL);
    admin = admin_new(e2e);
    io = io_new(e2e, admin, 1, 0);
    assert_int_equal(put(io, 1, 1), NVME_SC_SUCCESS);
    before = e2e_resident_bytes(e2e);
    memset(junk, 0x5a, sizeof(junk));
    for (int wave = 0; wave < 20; wave++) {
        struct peer *flood[100];

        for (int i = 0; i < 100; i++) {
            flood[i] = peer_new_socket(&e2e->addr);
            if (flood[i] == NULL)
                continue;
            if (i % 4 == 1)
                (void)peer_send_bytes(flood[i], junk, sizeof(junk));
            if (i % 4 == 2) {
                union nvme_tcp_pdu pdu;

                nvme_tcp_ic_req_encode(&pdu, 0, 0, 1);
                (void)peer_send_pdu(flood[i], &pdu, NULL, 0);
                (void)peer_send_bytes(flood[i], junk, sizeof(junk));
            }
        }
        for (int i = 0; i < 100; i++)
            peer_free(&flood[i]);
        /* A polite host does not notice. */
        assert_true(get_is(io, 1, 1));
    }
    assert_true(e2e_resident_bytes(e2e) < before + (16 << 20));
    assert_true(e2e_metric(e2e, "icms_target_nvmf_protocol_errors_total") > 0);
    peer_free(&io);
    peer_free(&admin);
    assert_int_equal(e2e_end(e2e, SIGTERM), 0);
}

/* Lines of the log about a lost controller. */
static int lost_lines(const struct e2e *e2e)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *copy = open_memstream(&text, &bytes);
    int lines = 0;

    assert_non_null(copy);
    (void)e2e_logged(e2e, "", copy);
    (void)fclose(copy);
    for (const char *at = text; (at = strstr(at, ": controller lost: ")) != NULL; at++)
        lines++;
    free(text);
    return lines;
}

/* A host that goes without a word is named, with why; one that does so all the time is counted. */
static void lost_hosts_are_logged_at_a_bounded_rate(void **state)
{
    struct nvme_property shutdown = {
        .set = true, .offset = NVME_REG_CC, .value = NVME_CC_START | NVME_CC_SHN_NORMAL};
    struct e2e *e2e = *state;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    time_t begin = time(NULL);
    struct peer *admin, *io;

    e2e_configure(e2e, "memory: 64MiB\nconnections_max: 64\nsegment: 4MiB\n", 1, "64MiB",
                  "    value_max: 1MiB\n");
    e2e_start_ok(e2e, NULL);
    admin = admin_new(e2e);
    io = io_new(e2e, admin, 1, 0);
    peer_free(&io);
    nvme_property_encode(&shutdown, &sqe);
    assert_true(peer_plain(admin, &sqe, &cqe));
    peer_free(&admin);
    for (int i = 0; i < 200; i++) {
        admin = admin_new(e2e);
        io = io_new(e2e, admin, 1, 0);
        peer_free(&io);
        peer_free(&admin);
        if (i % 50 == 0)
            usleep(700000); /* what is kept is logged meanwhile */
    }
    assert_true(logged_until(e2e,
                             "warning: host nqn.2026-01.io.icms:test-host: controller lost: the "
                             "host closed the connection without a shutdown; portal="));
    assert_int_equal(e2e_end(e2e, SIGTERM), 0);
    /* Ten, and one more each ten seconds. */
    assert_in_range(lost_lines(e2e), 1, 11 + (time(NULL) - begin) / 10);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_serves_and_counts, e2e_setup, e2e_teardown),
        cmocka_unit_test_setup_teardown(sigterm_ends_with_hosts_connected, e2e_setup, e2e_teardown),
        cmocka_unit_test_setup_teardown(sigterm_waits_for_commands_in_flight, e2e_setup,
                                        e2e_teardown),
        cmocka_unit_test_setup_teardown(a_host_waits_for_a_free_connection, e2e_setup,
                                        e2e_teardown),
        cmocka_unit_test_setup_teardown(a_stuck_reactor_is_named, e2e_setup, e2e_teardown),
        cmocka_unit_test_setup_teardown(mistakes_have_their_own_sentences, e2e_setup, e2e_teardown),
        cmocka_unit_test_setup_teardown(acknowledged_blocks_survive_kill_9, e2e_setup,
                                        e2e_teardown),
        cmocka_unit_test_setup_teardown(floods_do_not_grow_it, e2e_setup, e2e_teardown),
        cmocka_unit_test_setup_teardown(lost_hosts_are_logged_at_a_bounded_rate, e2e_setup,
                                        e2e_teardown),
    };

    check(argc >= 2);
    e2e_program = argv[1];
    if (argc >= 3)
        rounds = (unsigned)strtoul(argv[2], NULL, 10);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
