/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/drive_health.c: what the drives say of themselves; see drive_health.h.
 */
#include "drive_health.h"

#include <fcntl.h>
#include <glob.h>
#include <linux/nvme_ioctl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"

/* ---- what it means -------------------------------------------------------------------------- */

/* Bits of critical_warning (NVM Express Base Specification, SMART / Health Information). */
enum {
    WARNING_SPARE = 1,
    WARNING_TEMPERATURE = 2,
    WARNING_RELIABILITY = 4,
    WARNING_READ_ONLY = 8,
};

static bool over(int value, int limit)
{
    return value != CONF_HEALTH_NO_TEMPERATURE && limit != CONF_HEALTH_NO_TEMPERATURE &&
           value >= limit;
}

uint8_t drive_health_wanted(const struct conf_health *health, uint32_t slow_points,
                            char out_why[128])
{
    static const struct conf_health unknown = {.used_percent = -1,
                                               .temperature_c = CONF_HEALTH_NO_TEMPERATURE,
                                               .warning_c = CONF_HEALTH_NO_TEMPERATURE,
                                               .critical_c = CONF_HEALTH_NO_TEMPERATURE};
    const struct conf_health *h = health != NULL ? health : &unknown;

    out_why[0] = '\0';
    if ((h->warnings & WARNING_READ_ONLY) != 0)
        return (void)snprintf(out_why, 128, "it says that it is read-only"), 0;
    if ((h->warnings & (WARNING_SPARE | WARNING_RELIABILITY)) != 0)
        (void)snprintf(out_why, 128, "it says that its %s is low",
                       (h->warnings & WARNING_SPARE) != 0 ? "spare" : "reliability");
    else if (h->used_percent >= 100)
        (void)snprintf(out_why, 128, "%d %% of its rated writes are used", h->used_percent);
    else if (over(h->temperature_c, h->critical_c))
        (void)snprintf(out_why, 128, "it has %d C, and its critical temperature is %d C",
                       h->temperature_c, h->critical_c);
    else if (slow_points >= HEALTH_SLOW_QUARTER)
        (void)snprintf(out_why, 128, "it was slow %u times lately", slow_points);
    if (out_why[0] != '\0')
        return 25;
    if (h->used_percent >= 90)
        (void)snprintf(out_why, 128, "%d %% of its rated writes are used", h->used_percent);
    else if (over(h->temperature_c, h->warning_c))
        (void)snprintf(out_why, 128, "it has %d C, and its warning temperature is %d C",
                       h->temperature_c, h->warning_c);
    else if ((h->warnings & WARNING_TEMPERATURE) != 0)
        (void)snprintf(out_why, 128, "it says that it is too hot or too cold");
    else if (slow_points >= HEALTH_SLOW_HALF)
        (void)snprintf(out_why, 128, "it was slow %u times lately", slow_points);
    return out_why[0] != '\0' ? 50 : 100;
}

bool drive_health_step(struct drive_health *drive, uint8_t wanted_percent, uint64_t now_ns)
{
    if (wanted_percent < drive->part_percent) {
        drive->part_percent = wanted_percent;
        drive->better_ns = 0;
        return true;
    }
    if (wanted_percent == drive->part_percent) {
        drive->better_ns = 0;
        return false;
    }
    if (drive->better_ns == 0) {
        drive->better_ns = now_ns;
        drive->better_percent = wanted_percent;
    }
    if (wanted_percent < drive->better_percent)
        drive->better_percent = wanted_percent;
    if (now_ns < drive->better_ns + HEALTH_RISE_NS)
        return false;
    drive->part_percent = drive->better_percent;
    drive->better_ns = 0;
    return true;
}

void drive_health_slow(struct drive_health *drive, uint64_t slow_total, uint64_t now_ns)
{
    if (drive->slow_points == 0)
        drive->slow_ns = now_ns;
    if (slow_total > drive->slow_total)
        drive->slow_points += (uint32_t)(slow_total - drive->slow_total);
    if (drive->slow_points > HEALTH_SLOW_MAX)
        drive->slow_points = HEALTH_SLOW_MAX;
    drive->slow_total = slow_total;
    if (drive->slow_points > 0 && now_ns >= drive->slow_ns + HEALTH_SLOW_NS) {
        drive->slow_points--;
        drive->slow_ns = now_ns;
    }
}

/* ---- what is asked -------------------------------------------------------------------------- */

static int celsius(uint32_t kelvin)
{
    return kelvin == 0 ? CONF_HEALTH_NO_TEMPERATURE : (int)kelvin - 273;
}

void drive_health_page(const uint8_t page[512], uint32_t warning_k, uint32_t critical_k,
                       struct conf_health *out_health)
{
    *out_health = (struct conf_health){.warnings = page[0],
                                       .used_percent = page[5],
                                       .temperature_c = celsius(page[1] | (uint32_t)page[2] << 8),
                                       .warning_c = celsius(warning_k),
                                       .critical_c = celsius(critical_k)};
}

/* An admin command that returns data; false: the device, or this user, has none. */
static bool nvme_admin(int fd, uint8_t opcode, uint32_t nsid, uint32_t cdw10, void *data,
                       uint32_t bytes)
{
    struct nvme_admin_cmd cmd = {.opcode = opcode,
                                 .nsid = nsid,
                                 .addr = (uint64_t)(uintptr_t)data,
                                 .data_len = bytes,
                                 .cdw10 = cdw10,
                                 .timeout_ms = 5000};

    return ioctl(fd, NVME_IOCTL_ADMIN_CMD, &cmd) == 0;
}

/* Identify Controller, then log page 02h. */
static bool nvme_ask(const char *path, struct conf_health *out_health)
{
    static uint8_t identify[4096], page[512]; /* of this one thread */
    uint32_t warning_k = 0, critical_k = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool known;

    if (fd < 0)
        return false;
    if (nvme_admin(fd, 0x06, 0, 1, identify, sizeof(identify))) {
        warning_k = identify[266] | (uint32_t)identify[267] << 8;
        critical_k = identify[268] | (uint32_t)identify[269] << 8;
    }
    known =
        nvme_admin(fd, 0x02, UINT32_MAX, 0x02 | (sizeof(page) / 4 - 1) << 16, page, sizeof(page));
    (void)close(fd);
    if (known)
        drive_health_page(page, warning_k, critical_k, out_health);
    return known;
}

/* A number of millidegrees in a file of /sys. */
static int sysfs_celsius(const struct stat *device, const char *pattern, const char *name)
{
    char path[160];
    glob_t found = {0};
    long millidegrees;
    FILE *file = NULL;
    int degrees = CONF_HEALTH_NO_TEMPERATURE;

    (void)snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s/%s", major(device->st_rdev),
                   minor(device->st_rdev), pattern, name);
    if (glob(path, 0, NULL, &found) == 0)
        file = fopen(found.gl_pathv[0], "re");
    globfree(&found);
    if (file == NULL)
        return degrees;
    if (fscanf(file, "%ld", &millidegrees) == 1 && millidegrees > -100000 && millidegrees < 300000)
        degrees = (int)(millidegrees / 1000);
    (void)fclose(file);
    return degrees;
}

static bool sysfs_ask(const struct stat *device, struct conf_health *out_health)
{
    static const char *const patterns[] = {"device/hwmon*", "device/hwmon/hwmon*",
                                           "../device/hwmon*", "../device/hwmon/hwmon*"};

    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        int degrees = sysfs_celsius(device, patterns[i], "temp1_input");

        if (degrees == CONF_HEALTH_NO_TEMPERATURE)
            continue;
        *out_health =
            (struct conf_health){.used_percent = -1,
                                 .temperature_c = degrees,
                                 .warning_c = sysfs_celsius(device, patterns[i], "temp1_max"),
                                 .critical_c = sysfs_celsius(device, patterns[i], "temp1_crit")};
        return true;
    }
    return false;
}

static bool device_ask(const char *path, struct conf_health *out_health)
{
    struct stat device;

    return stat(path, &device) == 0 && S_ISBLK(device.st_mode) &&
           (nvme_ask(path, out_health) || sysfs_ask(&device, out_health));
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* A drive, and what was read last. */
struct reading {
    char path[LIMIT_PATH_BYTES], file[LIMIT_PATH_BYTES];
    bool is_known;
    struct conf_health health;
    struct err_why why; /* the file could not be read; "" */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct reading readings[LIMIT_DRIVES]; /* under the lock */
static uint32_t reading_count;                /* likewise       */
static uint64_t round_number;                 /* likewise: of the configuration */

/* One drive; what is read counts if the configuration is the same still. */
static void drive_ask(uint32_t i)
{
    struct reading reading;
    uint64_t number;

    (void)pthread_mutex_lock(&lock);
    reading = readings[i];
    number = i < reading_count ? round_number : UINT64_MAX;
    (void)pthread_mutex_unlock(&lock);
    if (number == UINT64_MAX)
        return;
    reading.why.text[0] = '\0';
    reading.is_known = reading.file[0] != '\0' ? conf_health_read(reading.file, &reading.why,
                                                                  &reading.health) == ICMS_OK
                                               : device_ask(reading.path, &reading.health);
    (void)pthread_mutex_lock(&lock);
    if (number == round_number)
        readings[i] = reading;
    (void)pthread_mutex_unlock(&lock);
}

static void *health_run(void *arg)
{
    (void)arg;
    for (;;) {
        for (uint32_t i = 0; i < LIMIT_DRIVES; i++)
            drive_ask(i);
        (void)nanosleep(&(struct timespec){.tv_sec = HEALTH_LOOK_S}, NULL);
    }
    return NULL;
}

icms_err drive_health_start(struct err_why *why)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, health_run, NULL) != 0)
        return err_set(why, ICMS_LIMIT, "cannot make a thread that looks at the drives' health");
    (void)pthread_detach(thread); /* it may hang in a device: nobody waits for it */
    return ICMS_OK;
}

void drive_health_conf(const struct conf_target *conf)
{
    (void)pthread_mutex_lock(&lock);
    round_number++;
    reading_count = conf->drive_count;
    for (uint32_t i = 0; i < conf->drive_count; i++) {
        memset(&readings[i], 0, sizeof(readings[i]));
        (void)snprintf(readings[i].path, sizeof(readings[i].path), "%s", conf->drives[i].path);
        (void)snprintf(readings[i].file, sizeof(readings[i].file), "%s", conf->drives[i].health);
    }
    (void)pthread_mutex_unlock(&lock);
}

/* ---- the main thread ------------------------------------------------------------------------ */

/* What was read of a drive; false: nothing. */
static bool reading_of(const char *path, struct reading *out_reading)
{
    bool found = false;

    (void)pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < reading_count && !found; i++) {
        found = strcmp(readings[i].path, path) == 0;
        if (found)
            *out_reading = readings[i];
    }
    (void)pthread_mutex_unlock(&lock);
    return found;
}

static void part_tell(const struct target_drive_stats *drive, const struct drive_health *state,
                      const char *why)
{
    if (state->part_percent == 100)
        log_line(LOG_INFO, "drive %u (%s): takes its whole share of new blocks again",
                 drive->number, drive->path);
    else
        log_line(LOG_WARN,
                 "drive %u (%s): takes %u %% of its share of new blocks: %s; look after it, or "
                 "drain it: `icms drive drain`",
                 drive->number, drive->path, state->part_percent,
                 why[0] != '\0' ? why : "it is better, and not well yet");
}

static void file_tell(const char *path, const char *why)
{
    static char said[LIMIT_DRIVES][LIMIT_PATH_BYTES];
    uint32_t i = 0;

    while (i < LIMIT_DRIVES && said[i][0] != '\0' && strcmp(said[i], path) != 0)
        i++;
    if (i == LIMIT_DRIVES || said[i][0] != '\0')
        return; /* once */
    (void)snprintf(said[i], sizeof(said[i]), "%s", path);
    log_line(LOG_WARN, "drive %s: its health is not known: %s", path, why);
}

void drive_health_look(struct target *target, const struct target_stats *stats)
{
    static struct drive_health states[LIMIT_DRIVES];
    static struct reading reading;
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());
    uint8_t parts[LIMIT_DRIVES];

    memset(parts, 100, sizeof(parts));
    for (uint32_t i = 0; i < stats->drive_count; i++) {
        const struct target_drive_stats *drive = &stats->drives[i];
        struct drive_health *state = &states[drive->number];
        char why[128];
        bool found = reading_of(drive->path, &reading);
        uint8_t wanted;

        if (strcmp(state->path, drive->path) != 0) { /* the number is another drive's now */
            *state = (struct drive_health){.part_percent = 100, .slow_total = drive->slow_total};
            memcpy(state->path, drive->path, sizeof(state->path));
        }
        drive_health_slow(state, drive->slow_total, now_ns);
        wanted = drive_health_wanted(found && reading.is_known ? &reading.health : NULL,
                                     state->slow_points, why);
        if (found && reading.why.text[0] != '\0')
            file_tell(drive->path, reading.why.text);
        if (drive_health_step(state, wanted, now_ns))
            part_tell(drive, state, why);
        parts[drive->number] = state->part_percent;
    }
    target_drives_weigh(target, parts);
}
