/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only the io_uring back end meets: a kernel that refuses, other processes, limits.
 *
 * Refusals are made in child processes: by a seccomp filter, by limits, by giving up root.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/loop.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/fault_arm.h"
#include "loop/loop.h"

#define REGION_BYTES ((uint64_t)32 << 20)

/* Runs a function in a child; its result is the exit status. */
static int in_child(int (*run)(void))
{
    int status = -1;
    pid_t child = fork();

    if (child == 0)
        _exit(run());
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* ---- refusals ------------------------------------------------------------------------------- */

static int refuse_io_uring(unsigned error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof(code) / sizeof(code[0]), code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

/* 0 when loop_new fails so, with a sentence of one line that has the words. */
static int new_fails(icms_err expected, const char *words, const char *more)
{
    struct err_why why = {""};
    struct loop_opts opts;
    struct loop *loop = NULL;

    loop_opts_init(&opts);
    if (loop_new(loop_env_uring(), &opts, &why, &loop) != expected)
        return 1;
    if (strstr(why.text, words) == NULL || strstr(why.text, more) == NULL)
        return 2;
    return strchr(why.text, '\n') != NULL ? 3 : 0;
}

static int forbidden(void)
{
    return refuse_io_uring(EPERM) != 0
               ? 9
               : new_fails(ICMS_UNSUPPORTED, "kernel.io_uring_disabled", "seccomp");
}

static int missing(void)
{
    return refuse_io_uring(ENOSYS) != 0 ? 9 : new_fails(ICMS_UNSUPPORTED, "Linux 6.1", "sandbox");
}

static int no_descriptors(void)
{
    struct rlimit limit = {3, 3};

    return setrlimit(RLIMIT_NOFILE, &limit) != 0 ? 9
                                                 : new_fails(ICMS_LIMIT, "ulimit -n", "io_uring");
}

static void a_refused_io_uring_is_one_line_with_the_remedy(void **state)
{
    assert_int_equal(in_child(forbidden), 0);
    assert_int_equal(in_child(missing), 0);
    assert_int_equal(in_child(no_descriptors), 0);
}

static int too_few_locked_pages(void)
{
    struct rlimit limit = {REGION_BYTES / 4, REGION_BYTES / 4};
    struct err_why why = {""};
    struct loop_region *region = NULL;
    struct loop_opts opts;
    struct loop *loop = NULL;

    loop_opts_init(&opts);
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (getuid() == 0 && setuid(65534) != 0))
        return 9;
    if (loop_new(loop_env_uring(), &opts, NULL, &loop) != ICMS_OK)
        return 1;
    if (loop_region_new(loop_env_uring(), "test", REGION_BYTES, true, NULL, &region) != ICMS_OK)
        return 2;
    if (loop_region_register(loop, region, &why) != ICMS_LIMIT)
        return 3;
    if (strstr(why.text, "ulimit -l") == NULL || strstr(why.text, "32 MiB") == NULL)
        return 4;
    if (loop_start(loop, NULL) != ICMS_OK) /* it works unpinned */
        return 5;
    loop_stop(loop);
    loop_join(loop);
    loop_free(&loop);
    loop_region_free(&region);
    return 0;
}

static void too_few_locked_pages_are_no_end(void **state)
{
    assert_int_equal(in_child(too_few_locked_pages), 0);
}

static void a_cpu_that_is_not_there_is_an_error(void **state)
{
    struct err_why why = {""};
    struct loop_opts opts;
    struct loop *loop = NULL;

    loop_opts_init(&opts);
    opts.cpu = CPU_SETSIZE - 1;
    assert_int_equal(loop_new(loop_env_uring(), &opts, NULL, &loop), ICMS_OK);
    assert_int_equal(loop_start(loop, &why), ICMS_INVALID);
    assert_non_null(strstr(why.text, "CPU 1023"));
    loop_stop(loop);
    loop_join(loop);
    loop_free(&loop);
}

/* ---- other processes ------------------------------------------------------------------------ */

static void a_file_locked_by_another_process_names_its_pid(void **state)
{
    char path[] = "/var/tmp/icms-lock-XXXXXX";
    struct loop_file_opts opts = {.path = path, .write = true, .exclusive = true};
    struct loop_file *file = NULL;
    struct err_why why = {""};
    int fd = mkstemp(path);
    int up[2], down[2];
    char text[32], byte = 0;
    pid_t child;

    assert_true(fd >= 0 && pipe(up) == 0 && pipe(down) == 0);
    (void)close(fd);
    child = fork();
    if (child == 0) {
        icms_err err = loop_file_open(loop_env_uring(), &opts, NULL, &file);

        (void)!write(up[1], &byte, 1);
        (void)!read(down[0], &byte, 1); /* until the other is done */
        _exit(err == ICMS_OK ? 0 : 1);
    }
    assert_true(read(up[0], &byte, 1) == 1);
    assert_int_equal(loop_file_open(loop_env_uring(), &opts, &why, &file), ICMS_LOCKED);
    (void)snprintf(text, sizeof(text), "process %d", (int)child);
    assert_non_null(strstr(why.text, text));
    assert_true(write(down[1], &byte, 1) == 1);
    assert_true(waitpid(child, NULL, 0) == child);
    assert_int_equal(loop_file_open(loop_env_uring(), &opts, &why, &file), ICMS_OK);
    loop_file_close(&file);
    (void)unlink(path);
    for (int i = 0; i < 2; i++) {
        (void)close(up[i]);
        (void)close(down[i]);
    }
}

static void a_shared_region_cannot_shrink_and_can_be_sealed(void **state)
{
    struct loop_region *region = NULL;
    struct stat stat_;
    uint8_t *base;
    void *map;
    int fd;

    assert_int_equal(loop_region_new(loop_env_uring(), "test", 10000, false, NULL, &region),
                     ICMS_OK);
    assert_int_equal(loop_region_bytes(region), 12288);
    base = loop_region_base(region);
    fd = loop_region_fd(region);
    assert_int_equal(fstat(fd, &stat_), 0);
    assert_int_equal(stat_.st_mode & 07777, 0600); /* others only map it */
    assert_int_not_equal(ftruncate(fd, 0), 0);
    map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    (void)munmap(map, 4096);
    assert_int_equal(loop_region_seal(region, NULL), ICMS_OK);
    assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    base[5] = 77;
    assert_int_equal(((const uint8_t *)map)[5], 77);
    (void)munmap(map, 4096);
    loop_region_free(&region);
}

/* Bytes of the mapping that begins at base which lie in large pages, by /proc/self/smaps. */
static uint64_t large_bytes(const void *base)
{
    char wanted[32], line[512];
    unsigned long long kib = 0;
    bool mine = false;
    FILE *file = fopen("/proc/self/smaps", "re");

    assert_non_null(file);
    (void)snprintf(wanted, sizeof(wanted), "%lx-", (unsigned long)(uintptr_t)base);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, wanted, strlen(wanted)) == 0)
            mine = true;
        else if (mine && sscanf(line, "ShmemPmdMapped: %llu kB", &kib) == 1)
            break;
    }
    (void)fclose(file);
    return (uint64_t)kib << 10;
}

/* Whether this machine gives large pages to a memfd that asks for them itself. */
static bool large_pages_can_be_had(void)
{
    const size_t large = (size_t)2 << 20;
    int fd = memfd_create("test", MFD_CLOEXEC);
    uint8_t *room = mmap(NULL, 2 * large, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *base = room + (large - (uintptr_t)room % large) % large;
    bool can = fd >= 0 && room != MAP_FAILED && ftruncate(fd, (off_t)large) == 0 &&
               mmap(base, large, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == base &&
               memset(base, 1, 1) == base && madvise(base, large, 25 /* MADV_COLLAPSE */) == 0;

    (void)munmap(room, 2 * large);
    (void)close(fd);
    return can;
}

/* The bytes of a region that lie in large pages: at once when it is touched ahead, else when it is
 * registered. An end of less than a large page is touched, too. */
static uint64_t large_region(bool prefault)
{
    const uint64_t bytes = ((uint64_t)8 << 20) + 4096;
    struct loop_region *region = NULL;
    struct loop_opts opts;
    struct loop *loop = NULL;
    uint64_t large;
    uint8_t *base;

    loop_opts_init(&opts);
    assert_int_equal(loop_new(loop_env_uring(), &opts, NULL, &loop), ICMS_OK);
    assert_int_equal(loop_region_new(loop_env_uring(), "test", bytes, prefault, NULL, &region),
                     ICMS_OK);
    base = loop_region_base(region);
    if (!prefault) {
        assert_int_equal(large_bytes(base), 0);
        assert_int_equal(loop_region_register(loop, region, NULL), ICMS_OK);
    }
    large = large_bytes(base);
    base[bytes - 1] = 1;
    for (uint64_t at = 0; at < bytes - 1; at++)
        assert_int_equal(base[at], 0);
    loop_free(&loop);
    loop_region_free(&region);
    return large;
}

/* The kernel may have none for a moment, when memory is in pieces: then it is asked again, while it
 * says that it has some. */
static void memory_for_drives_lies_in_large_pages(void **state)
{
    for (int prefault = 0; prefault < 2; prefault++) {
        const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
        int tries = 40;

        while (large_region(prefault != 0) < (uint64_t)4 << 20 && tries-- > 0)
            (void)nanosleep(&pause, NULL);
        if (tries >= 0)
            continue;
        print_message("no large pages here\n");
        assert_false(large_pages_can_be_had());
    }
}

/* ---- polling -------------------------------------------------------------------------------- */

#define POLL_US 300000

static void poll_nothing(struct loop_msg *msg)
{
    (void)msg;
}

/* Iterations and sleeps until now. */
static struct loop_stats poll_stats(const struct loop *loop)
{
    struct loop_stats stats;

    loop_stats(loop, &stats);
    return stats;
}

/* Sends a message and looks how the loop falls asleep after it. False when this thread or the
 * loop's got no processor meanwhile, so that nothing can be said. */
static bool poll_watch(struct loop *loop)
{
    uint64_t begin_ns = loop_env_now_ns(loop_env_uring());
    struct loop_stats before = poll_stats(loop), after;
    uint64_t messages = before.messages;
    struct loop_msg msg;

    loop_send(loop, &msg, poll_nothing);
    while (poll_stats(loop).messages == messages)
        (void)usleep(100);
    before = poll_stats(loop);
    if (loop_env_now_ns(loop_env_uring()) - begin_ns > POLL_US * UINT64_C(500))
        return false; /* it may be asleep by now */
    do {
        (void)usleep(1000);
        after = poll_stats(loop);
    } while (after.wakes == before.wakes); /* it sleeps in the end, or the test never ends */
    assert_int_equal(after.wakes, before.wakes + 1);
    assert_true(loop_env_now_ns(loop_env_uring()) - begin_ns >= POLL_US * UINT64_C(1000));
    if (after.iterations <= before.iterations + 10)
        return false;
    (void)usleep(20000);
    assert_true(poll_stats(loop).iterations <= after.iterations + 1); /* it sleeps */
    return true;
}

/* After a message it goes round without sleeping for a while, then it sleeps. */
static void a_loop_looks_for_work_for_a_while_before_it_sleeps(void **state)
{
    struct loop_opts opts;
    struct loop *loop = NULL;
    int tries = 20;

    loop_opts_init(&opts);
    opts.poll_us = POLL_US;
    assert_int_equal(loop_new(loop_env_uring(), &opts, NULL, &loop), ICMS_OK);
    assert_int_equal(loop_start(loop, NULL), ICMS_OK);
    while (!poll_watch(loop)) {
        assert_true(tries-- > 0);
        (void)usleep(2 * POLL_US); /* it sleeps again */
    }
    loop_stop(loop);
    loop_join(loop);
    loop_free(&loop);
}

/* ---- a slow drive --------------------------------------------------------------------------- */

#define SLOW_US 30000

/* A write, then a read of the same page. */
struct slow_disk {
    struct loop_msg msg;    /* slow_begin          */
    struct loop_op op;      /* the one, then the other */
    struct loop *loop;      /* of both             */
    struct loop_file *file; /* of both             */
    uint8_t *page;          /* memory              */
    uint64_t begin_ns;      /* of the write        */
    uint64_t written_ns;    /* when it was over    */
    uint32_t failed;        /* operations          */
    atomic_bool over;       /* both are            */
};

static void slow_read_done(struct loop_op *op)
{
    struct slow_disk *mine = container_of(op, struct slow_disk, op);

    mine->failed += op->err != ICMS_OK || mine->page[77] != 7;
    atomic_store(&mine->over, true);
}

static void slow_write_done(struct loop_op *op)
{
    struct slow_disk *mine = container_of(op, struct slow_disk, op);

    mine->failed += op->err != ICMS_OK;
    mine->written_ns = loop_now_ns(mine->loop);
    mine->page[77] = 0;
    loop_file_read(mine->loop, op, mine->file, 0, mine->page, 4096, slow_read_done);
}

static void slow_begin(struct loop_msg *msg)
{
    struct slow_disk *mine = container_of(msg, struct slow_disk, msg);

    mine->begin_ns = loop_now_ns(mine->loop);
    mine->page[77] = 7;
    loop_file_write(mine->loop, &mine->op, mine->file, 0, 0, mine->page, 4096, slow_write_done);
}

/* The fault loop.write: writes take longer, by as much at least, and do what they do. */
static void a_drive_can_be_made_slow(void **state)
{
    char path[] = "/var/tmp/icms-slow-XXXXXX";
    struct loop_file_opts file = {.path = path, .write = true};
    struct slow_disk mine = {.page = aligned_alloc(4096, 4096)};
    struct loop_opts opts;
    int fd = mkstemp(path);

    assert_true(fd >= 0 && mine.page != NULL);
    (void)close(fd);
    loop_opts_init(&opts);
    assert_int_equal(fault_arm("loop.write:1:slow=30000", NULL), ICMS_OK);
    assert_int_equal(loop_new(loop_env_uring(), &opts, NULL, &mine.loop), ICMS_OK);
    assert_int_equal(loop_file_open(loop_env_uring(), &file, NULL, &mine.file), ICMS_OK);
    assert_int_equal(loop_start(mine.loop, NULL), ICMS_OK);
    loop_send(mine.loop, &mine.msg, slow_begin);
    for (int ms = 0; !atomic_load(&mine.over) && ms < 10000; ms++)
        (void)usleep(1000);
    assert_true(atomic_load(&mine.over));
    loop_stop(mine.loop);
    loop_join(mine.loop);
    assert_int_equal(fault_arm(NULL, NULL), ICMS_OK);
    assert_int_equal(mine.failed, 0);
    assert_true(mine.written_ns - mine.begin_ns >= SLOW_US * UINT64_C(1000));
    loop_free(&mine.loop);
    loop_file_close(&mine.file);
    assert_int_equal(unlink(path), 0);
    free(mine.page);
}

/* ---- a clock of one's own ------------------------------------------------------------------- */

#define HOUR_NS ((uint64_t)3600 * 1000000000)

/* A timer far away, and a message that moves the clock to it. */
struct replayed {
    struct loop_timer timer; /* fires at HOUR_NS           */
    struct loop_msg msg;     /* replayed_begin             */
    struct loop *loop;       /* whose clock it is          */
    uint64_t begin_ns;       /* before the clock was moved */
    uint64_t moved_ns;       /* after it                   */
    uint64_t fired_ns;       /* when the timer fired       */
    atomic_bool over;        /* the timer fired            */
};

static void replayed_fired(struct loop_timer *timer)
{
    struct replayed *mine = container_of(timer, struct replayed, timer);

    mine->fired_ns = loop_now_ns(mine->loop);
    atomic_store(&mine->over, true);
}

static void replayed_begin(struct loop_msg *msg)
{
    struct replayed *mine = container_of(msg, struct replayed, msg);

    mine->begin_ns = loop_now_ns(mine->loop);
    loop_timer_start(mine->loop, &mine->timer, HOUR_NS);
    loop_replay_to(mine->loop, HOUR_NS);
    loop_replay_to(mine->loop, HOUR_NS / 2); /* never back */
    mine->moved_ns = loop_now_ns(mine->loop);
}

/* An hour passes at once, and no time but that. */
static void a_replayed_clock_stands_until_it_is_moved(void **state)
{
    struct loop_env *env = loop_env_replay_new();
    struct replayed mine = {.over = false};
    struct loop_opts opts;

    assert_non_null(env);
    loop_opts_init(&opts);
    assert_int_equal(loop_new(env, &opts, NULL, &mine.loop), ICMS_OK);
    loop_timer_init(&mine.timer, replayed_fired);
    assert_int_equal(loop_start(mine.loop, NULL), ICMS_OK);
    assert_int_equal(loop_env_now_ns(env), 0);
    loop_send(mine.loop, &mine.msg, replayed_begin);
    for (int ms = 0; !atomic_load(&mine.over) && ms < 10000; ms++)
        (void)usleep(1000);
    assert_true(atomic_load(&mine.over));
    loop_stop(mine.loop);
    loop_join(mine.loop);
    assert_int_equal(mine.begin_ns, 0);
    assert_int_equal(mine.moved_ns, HOUR_NS);
    assert_int_equal(mine.fired_ns, HOUR_NS);
    assert_int_equal(loop_env_now_ns(env), HOUR_NS);
    loop_free(&mine.loop);
    loop_env_replay_free(&env);
}

/* ---- discards ------------------------------------------------------------------------------- */

#define DRIVE_BYTES ((uint64_t)1 << 20)

struct drive {
    int file, device; /* what is behind the block device; it                  */
    char path[32];    /* of the device                                        */
    struct loop *loop;
    struct loop_file *opened;
    struct loop_op op;
    uint8_t *page;
};

/* A block device made of a file of ones; false where that is not allowed. */
static bool drive_make(struct drive *drive)
{
    char name[] = "/var/tmp/icms-discard-XXXXXX";
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    int number = control < 0 ? -1 : ioctl(control, LOOP_CTL_GET_FREE);

    drive->device = -1;
    drive->file = mkstemp(name);
    assert_true(drive->file >= 0);
    (void)unlink(name);
    memset(drive->page, 1, 4096);
    for (uint64_t at = 0; at < DRIVE_BYTES; at += 4096)
        assert_int_equal(pwrite(drive->file, drive->page, 4096, (off_t)at), 4096);
    (void)snprintf(drive->path, sizeof(drive->path), "/dev/loop%d", number);
    if (number >= 0)
        drive->device = open(drive->path, O_RDWR | O_CLOEXEC);
    if (control >= 0)
        (void)close(control);
    return drive->device >= 0 && ioctl(drive->device, LOOP_SET_FD, drive->file) == 0;
}

static void drive_done(struct loop_op *op)
{
    loop_stop(op->loop);
}

/* Discards the second quarter; what the operation said. */
static icms_err drive_discard(struct drive *drive, const char *path)
{
    struct loop_file_opts opts = {.path = path, .write = true, .direct = true};
    struct err_why why = {""};
    struct loop_opts loop_opts;

    loop_opts_init(&loop_opts);
    assert_int_equal(loop_new(loop_env_uring(), &loop_opts, &why, &drive->loop), ICMS_OK);
    assert_int_equal(loop_file_open(loop_env_uring(), &opts, &why, &drive->opened), ICMS_OK);
    loop_file_discard(drive->loop, &drive->op, drive->opened, DRIVE_BYTES / 4, DRIVE_BYTES / 4,
                      drive_done);
    assert_int_equal(loop_start(drive->loop, &why), ICMS_OK);
    loop_join(drive->loop);
    return drive->op.err;
}

/* What reads as zeros begins and ends exactly where it should. */
static void drive_look(struct drive *drive)
{
    for (uint64_t at = 0; at < DRIVE_BYTES; at += 4096) {
        bool gone = at >= DRIVE_BYTES / 4 && at < DRIVE_BYTES / 2;

        assert_int_equal(loop_file_read_now(drive->opened, at, drive->page, 4096), ICMS_OK);
        assert_int_equal(drive->page[0], gone ? 0 : 1);
        assert_int_equal(drive->page[4095], gone ? 0 : 1);
    }
}

static void drive_end(struct drive *drive)
{
    loop_free(&drive->loop);
    loop_file_close(&drive->opened);
}

/* A file says that it does not take discards, and keeps its bytes and its room; so does, before
 * Linux 6.12, a device. */
static void discards_reach_block_devices_and_spare_files(void **state)
{
    struct drive drive = {.page = aligned_alloc(4096, 4096)};
    bool made = drive_make(&drive);
    char path[32];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", drive.file);
    assert_int_equal(drive_discard(&drive, path), ICMS_UNSUPPORTED);
    assert_int_equal(loop_file_read_now(drive.opened, DRIVE_BYTES / 4, drive.page, 4096), ICMS_OK);
    assert_int_equal(drive.page[0], 1);
    drive_end(&drive);
    if (made) {
        icms_err err = drive_discard(&drive, drive.path);

        assert_true(err == ICMS_OK || err == ICMS_UNSUPPORTED);
        if (err == ICMS_OK)
            drive_look(&drive);
        print_message("a block device: %s\n", icms_err_name(err));
        drive_end(&drive);
        assert_int_equal(ioctl(drive.device, LOOP_CLR_FD, 0), 0);
    } else {
        print_message("a block device: none may be made here\n");
    }
    if (drive.device >= 0)
        (void)close(drive.device);
    (void)close(drive.file);
    free(drive.page);
}

/* Who writes says how long the bytes of a file live; a file has no write streams. */
static void a_file_says_how_long_it_lives(void **state)
{
    char path[] = "/var/tmp/icms-hint-XXXXXX";
    struct loop_file_opts opts = {.path = path, .write = false};
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    for (int write = 0; write < 2; write++) {
        struct loop_file *file;
        struct err_why why;
        uint64_t life = RWH_WRITE_LIFE_EXTREME;

        opts.write = write;
        assert_int_equal(loop_file_open(loop_env_uring(), &opts, &why, &file), ICMS_OK);
        assert_int_equal(loop_file_streams(file), 0);
        assert_int_equal(fcntl(fd, F_GET_RW_HINT, &life), 0);
        assert_int_equal(life, write ? RWH_WRITE_LIFE_MEDIUM : RWH_WRITE_LIFE_NOT_SET);
        loop_file_close(&file);
    }
    (void)close(fd);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_io_uring_is_one_line_with_the_remedy),
        cmocka_unit_test(too_few_locked_pages_are_no_end),
        cmocka_unit_test(a_cpu_that_is_not_there_is_an_error),
        cmocka_unit_test(a_file_locked_by_another_process_names_its_pid),
        cmocka_unit_test(a_shared_region_cannot_shrink_and_can_be_sealed),
        cmocka_unit_test(memory_for_drives_lies_in_large_pages),
        cmocka_unit_test(a_loop_looks_for_work_for_a_while_before_it_sleeps),
        cmocka_unit_test(a_drive_can_be_made_slow),
        cmocka_unit_test(a_replayed_clock_stands_until_it_is_moved),
        cmocka_unit_test(discards_reach_block_devices_and_spare_files),
        cmocka_unit_test(a_file_says_how_long_it_lives),
    };

    return cmocka_run_group_tests_name("loop-uring", tests, NULL, NULL);
}
