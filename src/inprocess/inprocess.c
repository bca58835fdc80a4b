/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/inprocess.c: client/local.h: the agent inside this process, for "pod:" and "dir:".
 *
 * Called by icms_open, icms_volume_open and icms_close, one at a time a handle. The agent is the
 * same code as in icms-agent; we attach to it as any client does, only without a socket.
 *
 * A directory of "dir:" holds
 *   icms.lock    locked while a process has it open; its text is that process's id
 *   volumes      "icms-dir 1 SEGMENT_BYTES", then a line a volume: NAME VALUE_BYTES_MAX RUN_BLOCKS
 *   icms.store   the flash store, made by the agent
 * The file of volumes is replaced whole (written beside it, synced, renamed), so a crash leaves the
 * old or the new one.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "agent/agent.h"
#include "client/local.h"
#include "conf/conf.h"
#include "inprocess/agent_opts.h"
#include "inprocess/pod_watch.h"

/* How long an in-process agent may take for accepted stores when its handle is closed. */
#define INSIDE_DRAIN_MS 10000

#define LOCAL_HEAD "icms-dir 1 "

/* A volume's share of memory: this much, and at least this many of its largest values. The agent
 * pins up to AGENT_LOCAL_PINNED_BYTES of it; of the rest, pages that were never used cost nothing.
 */
#define LOCAL_ARENA_BYTES ((uint64_t)64 << 20)
#define LOCAL_ARENA_SLOTS 24

#define LOCAL_DIRECTORY_BYTES ((uint64_t)1 << 30)
#define LOCAL_DIRECTORY_ALIGN ((uint64_t)1 << 20)
#define LOCAL_SEGMENT_MIN     ((uint64_t)1 << 20)
#define LOCAL_SEGMENT_MAX     ((uint64_t)64 << 20)
#define LOCAL_SEGMENTS        5           /* a store needs four, and its superblocks */
#define LOCAL_ENCRYPTED       "encrypted" /* fourth word of a volume's line, if it is */
#define LOCAL_VOLUMES_BYTES                                                                        \
    16384 /* of the file of volumes; LIMIT_AGENT_VOLUMES lines need less                           \
           */

/* How long an agent tries its enclosures before a handle to it is given out. */
#define LOCAL_TRIED_MS 2000

struct client_local {
    struct conf_agent conf;           /* what the agent is started with                      */
    uint64_t staging_bytes;           /* of the options; 0: the agent's default              */
    uint64_t value_bytes_max;         /* dir: of new volumes                                 */
    char directory[LIMIT_PATH_BYTES]; /* dir:; "" for pod:                                   */
    int lock_fd;                      /* dir: the locked file; -1                            */
    struct pod_watch *watch;          /* pod: of the map's file, until the agent has it; NULL   */
    char path[LIMIT_PATH_BYTES];      /* pod: of the configuration                           */
    struct pod_watch_told told;       /* pod: who hears of maps that are not used            */
    void (*log)(void *log_arg, const char *line); /* of the options                          */
    void *log_arg;
    /* only while the agent starts */
    struct agent_enclosure_opts enclosures[LIMIT_ENCLOSURES];
    struct agent_opts opts;
};

static icms_err local_new(const struct icms_options *options, struct err_why *why,
                          struct client_local **out_local)
{
    struct client_local *local = calloc(1, sizeof(*local));

    if (local == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    local->lock_fd = -1;
    local->staging_bytes = options->buffer_bytes;
    local->value_bytes_max = options->value_bytes_max;
    conf_agent_init(&local->conf);
    *out_local = local;
    return ICMS_OK;
}

void client_local_close(struct client_local **local)
{
    if (*local == NULL)
        return;
    if ((*local)->lock_fd >= 0) {
        (void)!ftruncate((*local)->lock_fd, 0); /* the next holder has another id */
        loop_fd_close((*local)->lock_fd);
    }
    pod_watch_free(&(*local)->watch);
    conf_agent_fini(&(*local)->conf);
    free(*local);
    *local = NULL;
}

bool client_local_makes_volumes(const struct client_local *local)
{
    return local->directory[0] != 0;
}

bool client_local_has_drive(const struct client_local *local)
{
    return client_local_makes_volumes(local) || local->conf.local_path[0] != 0;
}

uint32_t client_local_volumes(const struct client_local *local)
{
    return local->conf.volume_count;
}

/* A map that is used is no news to a program, one that is not is. */
static void local_say(void *arg, enum pod_map_say how, const char *sentence)
{
    const struct client_local *local = arg;
    char line[LIMIT_PATH_BYTES + ERR_WHY_BYTES_MAX + 512];

    if (how == POD_MAP_TAKEN)
        return;
    (void)snprintf(line, sizeof(line), "pod:%s: %s", local->path, sentence);
    if (local->log != NULL)
        local->log(local->log_arg, line);
    else
        (void)fprintf(stderr, "icms: %s\n", line);
}

icms_err client_local_open_pod(const char *path, const struct icms_options *options,
                               struct err_why *why, struct client_local **out_local)
{
    struct client_local *local = NULL;
    icms_err err = local_new(options, why, &local);

    if (err != ICMS_OK)
        return err;
    if (access(path, R_OK) == 0)
        err = conf_agent_read(path, why, &local->conf);
    else
        err = err_set(why, err_from_errno(errno),
                      "cannot read %s: %s; write the path of an agent's configuration after pod:",
                      path, strerror(errno));
    (void)snprintf(local->path, sizeof(local->path), "%s", path);
    local->told = (struct pod_watch_told){.say = local_say, .arg = local};
    local->log = options->log;
    local->log_arg = options->log_arg;
    if (err == ICMS_OK)
        err = pod_watch_new(&local->conf, &local->told, why, &local->watch);
    if (err != ICMS_OK) {
        client_local_close(&local);
        return err;
    }
    *out_local = local;
    return ICMS_OK;
}

/* ---- dir: ----------------------------------------------------------------------------------- */

static icms_err local_path(const struct client_local *local, const char *name, char *out,
                           size_t bytes)
{
    int n = snprintf(out, bytes, "%s/%s", local->directory, name);

    return n > 0 && (size_t)n < bytes ? ICMS_OK : ICMS_INVALID;
}

/* The holder's id, as it wrote it; it may be about to. 0 when it has not. */
static long local_holder(int fd)
{
    for (int tries = 0; tries < 20; tries++) {
        struct timespec pause = {.tv_nsec = 5000000};
        char text[32] = {0};
        long pid;

        if (pread(fd, text, sizeof(text) - 1, 0) > 0 && (pid = strtol(text, NULL, 10)) > 0)
            return pid;
        (void)nanosleep(&pause, NULL);
    }
    return 0;
}

#define LOCAL_ONE_PROCESS                                                                          \
    "one process has a directory at a time: end it, or share an icms-agent (unix:)"

static icms_err local_lock(struct client_local *local, struct err_why *why)
{
    char path[LIMIT_PATH_BYTES];
    char text[32];
    icms_err err = local_path(local, "icms.lock", path, sizeof(path));
    int n;

    if (err != ICMS_OK)
        return err_set(why, err, "the directory's path is too long: %s", local->directory);
    local->lock_fd = loop_fd_own(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (local->lock_fd < 0) {
        err = err_from_errno(errno);
        return err_set(why, err, "cannot open %s: %s", path, icms_err_text(err));
    }
    if (flock(local->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        long holder = local_holder(local->lock_fd);

        loop_fd_close(local->lock_fd);
        local->lock_fd = -1; /* it is not ours to empty */
        if (holder == 0)
            return err_set(why, ICMS_LOCKED, "%s is in use by another process; " LOCAL_ONE_PROCESS,
                           local->directory);
        return err_set(why, ICMS_LOCKED, "%s is in use by process %ld; " LOCAL_ONE_PROCESS,
                       local->directory, holder);
    }
    if (ftruncate(local->lock_fd, 0) != 0) {
        err = err_from_errno(errno);
        return err_set(why, err, "cannot write %s: %s", path, icms_err_text(err));
    }
    /* The lock holds without the id, which a full file system does not take: a directory that
     * filled it is still there to be read. */
    n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    (void)!pwrite(local->lock_fd, text, (size_t)n, 0);
    return ICMS_OK;
}

static bool local_name_right(const char *name)
{
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                 "._-");

    return name[0] != 0 && name[length] == 0 && length < LIMIT_NAME_BYTES;
}

/* Appends a volume to the configuration; the caller looked for its name and limits. */
static void local_volume_push(struct client_local *local, const char *name,
                              uint64_t value_bytes_max, uint32_t run_blocks, bool encrypted)
{
    struct volume_spec *volume = &local->conf.volumes[local->conf.volume_count++];
    uint64_t slots = LOCAL_ARENA_SLOTS * (value_bytes_max + (uint64_t)2 * LIMIT_DISK_ALIGN);

    conf_volume_init(volume);
    conf_volume_uuid(name, &volume->uuid);
    (void)snprintf(volume->name, sizeof(volume->name), "%s", name);
    volume->value_bytes_max = value_bytes_max;
    volume->run_blocks = run_blocks;
    volume->sealed = true;
    if (encrypted)
        conf_volume_encrypt(volume);
    volume->memory_bytes_max = u64_max(LOCAL_ARENA_BYTES, slots);
}

static bool local_volume_known(const struct client_local *local, const char *name)
{
    for (uint32_t i = 0; i < local->conf.volume_count; i++)
        if (strcmp(local->conf.volumes[i].name, name) == 0)
            return true;
    return false;
}

/* One line of the file; false when it makes no sense. */
static bool local_volume_line(struct client_local *local, const char *line)
{
    char name[LIMIT_NAME_BYTES];
    uint64_t value_bytes_max;
    uint32_t run_blocks;
    bool encrypted;
    int end = 0;

    if (sscanf(line, "%63s %" SCNu64 " %" SCNu32 " %n", name, &value_bytes_max, &run_blocks,
               &end) != 3)
        return false;
    encrypted = strcmp(line + end, LOCAL_ENCRYPTED) == 0;
    if (line[end] != 0 && !encrypted)
        return false;
    if (!local_name_right(name) || local_volume_known(local, name) || value_bytes_max == 0 ||
        value_bytes_max > LIMIT_VALUE_BYTES || run_blocks == 0 ||
        local->conf.volume_count == LIMIT_AGENT_VOLUMES)
        return false;
    local_volume_push(local, name, value_bytes_max, run_blocks, encrypted);
    return true;
}

/* The rest of the first line. */
static bool local_head_line(struct client_local *local, char *text, char **out_rest)
{
    uint64_t bytes;
    int end = 0;

    if (sscanf(text, "%" SCNu64 "%n", &bytes, &end) != 1 || text[end] != '\n' ||
        !bytes_power_of_two(bytes) || bytes < LOCAL_SEGMENT_MIN || bytes > LOCAL_SEGMENT_MAX)
        return false;
    local->conf.local_segment_bytes = bytes;
    *out_rest = text + end + 1;
    return true;
}

static icms_err local_volumes_read(struct client_local *local, struct err_why *why)
{
    char path[LIMIT_PATH_BYTES];
    char *text, *line = NULL;
    icms_err err = local_path(local, "volumes", path, sizeof(path));
    ssize_t n;
    int fd, number = 1;

    if (err != ICMS_OK)
        return err_set(why, err, "the directory's path is too long: %s", local->directory);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return ICMS_OK;
    text = calloc(1, LOCAL_VOLUMES_BYTES + 1);
    n = fd < 0 || text == NULL ? -1 : read(fd, text, LOCAL_VOLUMES_BYTES);
    err = n < 0 ? err_from_errno(errno) : ICMS_OK;
    if (fd >= 0)
        (void)close(fd);
    if (err != ICMS_OK) {
        free(text);
        return err_set(why, err, "cannot read %s: %s", path, icms_err_text(err));
    }
    if (strncmp(text, LOCAL_HEAD, strlen(LOCAL_HEAD)) != 0)
        err = err_set(why, ICMS_FOREIGN,
                      "%s is not a list of volumes that this version wrote; "
                      "use another directory",
                      path);
    else if (!local_head_line(local, text + strlen(LOCAL_HEAD), &line))
        err = err_set(why, ICMS_CORRUPT, "%s:1: no size of segments", path);
    while (err == ICMS_OK && *line != 0) {
        char *end = strchrnul(line, '\n');

        number++;
        if (*end != 0)
            *end++ = 0;
        if (!local_volume_line(local, line))
            err = err_set(why, ICMS_CORRUPT,
                          "%s:%d: \"%.80s\" is not NAME BYTES RUN_BLOCKS [encrypted]", path, number,
                          line);
        line = end;
    }
    free(text);
    return err;
}

static icms_err local_volumes_write(const struct client_local *local, struct err_why *why)
{
    char path[LIMIT_PATH_BYTES], beside[LIMIT_PATH_BYTES];
    bool whole;
    icms_err err;
    FILE *file;

    if (local_path(local, "volumes", path, sizeof(path)) != ICMS_OK ||
        local_path(local, "volumes.new", beside, sizeof(beside)) != ICMS_OK)
        return err_set(why, ICMS_INVALID, "the directory's path is too long: %s", local->directory);
    file = fopen(beside, "we");
    if (file == NULL) {
        err = err_from_errno(errno);
        return err_set(why, err, "cannot write %s: %s", beside, icms_err_text(err));
    }
    whole = fprintf(file, LOCAL_HEAD "%" PRIu64 "\n", local->conf.local_segment_bytes) > 0;
    for (uint32_t i = 0; i < local->conf.volume_count; i++) {
        const struct volume_spec *volume = &local->conf.volumes[i];

        whole = whole && fprintf(file, "%s %" PRIu64 " %" PRIu32 "%s\n", volume->name,
                                 volume->value_bytes_max, volume->run_blocks,
                                 volume->encrypted ? " " LOCAL_ENCRYPTED : "") > 0;
    }
    whole = fflush(file) == 0 && fsync(fileno(file)) == 0 && whole;
    err = whole ? ICMS_OK : err_from_errno(errno);
    if (fclose(file) != 0 && err == ICMS_OK)
        err = err_from_errno(errno);
    if (err == ICMS_OK && rename(beside, path) != 0)
        err = err_from_errno(errno);
    if (err != ICMS_OK)
        return err_set(why, err, "cannot write %s: %s", path, icms_err_text(err));
    return ICMS_OK;
}

icms_err client_local_volume_add(struct client_local *local, const char *name, bool encrypted,
                                 struct err_why *why)
{
    uint64_t value_bytes_max = local->value_bytes_max;
    struct volume_spec kept;
    icms_err err;

    if (local_volume_known(local, name))
        return ICMS_OK;
    if (!local_name_right(name))
        return err_set(why, ICMS_INVALID,
                       "a volume's name is made of letters, digits, '.', '_' and "
                       "'-', at most %d: \"%.80s\"",
                       LIMIT_NAME_BYTES - 1, name);
    if (value_bytes_max == 0)
        value_bytes_max = u64_min(LIMIT_VALUE_BYTES_DEFAULT, local->conf.local_segment_bytes / 2);
    if (value_bytes_max > local->conf.local_segment_bytes / 2)
        return err_set(why, ICMS_VALUE_SIZE,
                       "%s was made for values of at most %llu bytes: take smaller ones for %s, or "
                       "another directory",
                       local->directory, (unsigned long long)local->conf.local_segment_bytes / 2,
                       name);
    if (local->conf.volume_count == LIMIT_AGENT_VOLUMES)
        return err_set(why, ICMS_LIMIT, "%s holds %d volumes already, which is the limit",
                       local->directory, LIMIT_AGENT_VOLUMES);
    conf_volume_init(&kept);
    local_volume_push(local, name, value_bytes_max, kept.run_blocks != 0 ? kept.run_blocks : 1,
                      encrypted);
    err = local_volumes_write(local, why);
    if (err != ICMS_OK)
        local->conf.volume_count--;
    return err;
}

/* Segments of a new store: 64 of them or more, if two of the largest values fit into one. */
static uint64_t local_segment_bytes(const struct client_local *local)
{
    uint64_t value_bytes_max =
        local->value_bytes_max != 0 ? local->value_bytes_max : LIMIT_VALUE_BYTES_DEFAULT;
    uint64_t bytes = LOCAL_SEGMENT_MIN;

    while (bytes < LOCAL_SEGMENT_MAX &&
           (bytes < 2 * value_bytes_max || 128 * bytes <= local->conf.local_bytes))
        bytes *= 2;
    return bytes;
}

void client_local_volume_drop(struct client_local *local)
{
    check(local->conf.volume_count > 0);
    local->conf.volume_count--;
    (void)!local_volumes_write(local, NULL); /* it could be written a moment ago */
}

/* A store keeps the size it was made with. */
static icms_err local_size_check(struct client_local *local, uint64_t asked_bytes,
                                 struct err_why *why)
{
    asked_bytes -= asked_bytes % LOCAL_DIRECTORY_ALIGN;
    if (asked_bytes == 0 || asked_bytes == local->conf.local_bytes)
        return ICMS_OK;
    return err_set(why, ICMS_INVALID,
                   "cannot open %s with directory_bytes %llu: it was made with %llu; pass that or "
                   "0, or remove it to make it anew",
                   local->directory, (unsigned long long)asked_bytes,
                   (unsigned long long)local->conf.local_bytes);
}

static icms_err local_directory(struct client_local *local, const char *path,
                                const struct icms_options *options, struct err_why *why)
{
    struct stat stat_;
    icms_err err;

    if (path[0] == 0 || strlen(path) >= sizeof(local->directory))
        return err_set(why, ICMS_INVALID, "dir: needs the path of a directory");
    if (options->value_bytes_max > LIMIT_VALUE_BYTES)
        return err_set(why, ICMS_INVALID, "value_bytes_max is over the limit of %llu bytes",
                       (unsigned long long)LIMIT_VALUE_BYTES);
    memcpy(local->directory, path, strlen(path) + 1);
    local->conf.memory_bytes = 0; /* each volume has its own: local_volume_push() */
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        err = err_from_errno(errno);
        return err_set(why, err, "cannot make the directory %s: %s", path, icms_err_text(err));
    }
    if (stat(path, &stat_) != 0 || !S_ISDIR(stat_.st_mode))
        return err_set(why, ICMS_INVALID, "%s is not a directory", path);
    err = local_lock(local, why);
    if (err == ICMS_OK)
        err = local_volumes_read(local, why);
    if (err == ICMS_OK && local_path(local, "icms.store", local->conf.local_path,
                                     sizeof(local->conf.local_path)) != ICMS_OK)
        err = err_set(why, ICMS_INVALID, "the directory's path is too long: %s", path);
    if (err != ICMS_OK)
        return err;
    if (stat(local->conf.local_path, &stat_) == 0 && stat_.st_size > 0) {
        local->conf.local_bytes = (uint64_t)stat_.st_size;
        return local_size_check(local, options->directory_bytes, why);
    }
    local->conf.local_bytes =
        options->directory_bytes != 0 ? options->directory_bytes : LOCAL_DIRECTORY_BYTES;
    local->conf.local_bytes -= local->conf.local_bytes % LOCAL_DIRECTORY_ALIGN;
    if (local->conf.volume_count == 0) /* else the volumes' file says it */
        local->conf.local_segment_bytes = local_segment_bytes(local);
    if (local->conf.local_bytes < LOCAL_SEGMENTS * local->conf.local_segment_bytes)
        return err_set(why, ICMS_INVALID,
                       "directory_bytes is too little for %s: at least %llu for values of this "
                       "size",
                       path,
                       (unsigned long long)(LOCAL_SEGMENTS * local->conf.local_segment_bytes));
    return ICMS_OK;
}

icms_err client_local_open_dir(const char *path, const struct icms_options *options,
                               struct err_why *why, struct client_local **out_local)
{
    struct client_local *local = NULL;
    icms_err err = local_new(options, why, &local);

    if (err != ICMS_OK)
        return err;
    err = local_directory(local, path, options, why);
    if (err != ICMS_OK) {
        client_local_close(&local);
        return err;
    }
    *out_local = local;
    return ICMS_OK;
}

/* ---- the agent ------------------------------------------------------------------------------ */

/* The agent of a link. */
struct client_inside {
    struct agent *agent;
    struct pod_watch *watch; /* pod: of the map's file; NULL: none */
    bool started, attached;  /* how far it came      */
    uint32_t client;         /* our number there     */
};

void client_inside_free(struct client_inside **inside)
{
    struct client_inside *own = *inside;

    *inside = NULL;
    if (own->attached) {
        (void)agent_drain(own->agent, INSIDE_DRAIN_MS); /* accepted stores reach the flash */
        agent_client_detach_wait(own->agent, own->client);
    }
    pod_watch_free(&own->watch);
    if (own->started)
        agent_stop(own->agent);
    agent_free(&own->agent);
    free(own);
}

size_t client_inside_status(struct client_inside *inside, char *out, size_t bytes)
{
    return agent_status(inside->agent, out, bytes);
}

icms_err client_inside_trace(struct client_inside *inside, const struct icms_key *icms_key,
                             char *out, size_t bytes, size_t *out_bytes)
{
    struct key key = {0};
    char *text;

    if (icms_key != NULL) {
        key.length = icms_key->length;
        memcpy(key.bytes, icms_key->bytes, key.length);
    }
    text = agent_trace(inside->agent, NULL, icms_key == NULL ? NULL : &key);
    if (text == NULL)
        return ICMS_NO_MEMORY;
    *out_bytes = (size_t)snprintf(out, bytes, "%s", text) + 1;
    free(text);
    return ICMS_OK;
}

static icms_err local_attach(struct client_link *link, uint64_t staging_bytes, struct err_why *why)
{
    struct agent_client_map *client = calloc(1, sizeof(*client));
    struct client_inside *inside = link->inside;
    icms_err err;

    if (client == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    err = agent_client_attach(inside->agent, staging_bytes, why, client);
    if (err != ICMS_OK) {
        free(client);
        return err;
    }
    inside->attached = true;
    agent_client_trust(inside->agent, client->client);
    inside->client = client->client;
    link->region.base = loop_region_base(client->region);
    link->region.bytes = loop_region_bytes(client->region);
    link->arena_count = client->volume_count;
    for (uint32_t i = 0; i < client->volume_count; i++) {
        link->maps[i].base = loop_region_base(client->arenas[i]);
        link->maps[i].bytes = loop_region_bytes(client->arenas[i]);
    }
    link->reactor_count = client->reactor_count;
    for (uint32_t i = 0; i < client->reactor_count; i++)
        link->agent_events[i] = loop_event_fd(client->agent_events[i]);
    link->client_event = loop_event_fd(client->client_event);
    free(client);
    return client_link_view(link, why);
}

static icms_err local_start(struct client_local *local, struct client_link *link,
                            struct err_why *why)
{
    struct client_inside *inside = link->inside = calloc(1, sizeof(*link->inside));
    icms_err err;

    if (inside == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    err = agent_opts_from_conf(&local->conf, local->enclosures, why, &local->opts);
    local->opts.own_process = true;
    local->opts.reader = client_reader();
    local->opts.local_sparse = local->directory[0] != 0;
    if (local->staging_bytes != 0) /* the process is its own operator */
        local->opts.client_bytes = local->staging_bytes;
    if (err == ICMS_OK) {
        pod_watch_opts(local->watch, &local->opts);
        err = agent_new(loop_env_uring(), &local->opts, why, &inside->agent);
    }
    if (err == ICMS_OK) {
        err = agent_start(inside->agent, why);
        inside->started = err == ICMS_OK;
    }
    if (err == ICMS_OK) {
        inside->watch = local->watch;
        local->watch = NULL;
        err = pod_watch_start(inside->watch, inside->agent, why);
    }
    if (err != ICMS_OK)
        return err;
    agent_wait_tried(inside->agent, LOCAL_TRIED_MS);
    return local_attach(link, local->staging_bytes, why);
}

icms_err client_local_start(struct client_local *local, struct err_why *why,
                            struct client_link **out_link)
{
    struct client_link *link;
    icms_err err = client_link_new(&link);

    if (err != ICMS_OK)
        return err_set(why, err, "out of memory");
    err = local_start(local, link, why);
    if (err == ICMS_OK)
        *out_link = link;
    else
        client_link_free(&link);
    return err;
}
