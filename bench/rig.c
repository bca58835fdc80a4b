/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/rig.c: a pod of targets and one agent, as a user would configure it, for the benches
 * that go the whole way.
 *
 * Called on the thread of bench_run. bench_rig_up -> bench_rig_open -> work -> bench_rig_close ->
 * (open again) -> bench_rig_down. Daemons die with this process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/check.h"
#include "bench/bench_int.h"
#include "crypt/key_text.h"
#include "crypt/seal.h"
#include "crypt/secret.h"

#define RIG_UP_MS        10000
#define RIG_STATUS_BYTES 65536
#define RIG_REQUESTS     64 /* values that may be on their way at a time, for each loop */
#define RIG_DRIVES_BYTES ((size_t)32 * BENCH_PATH_BYTES)

static uint32_t rig_loops(const struct bench_rig *rig)
{
    return rig->loops > 0 ? rig->loops : 1;
}

/* Memory for values under way: the agent's staging, its backlog, the target's buffers. */
static uint64_t rig_memory(const struct bench_rig *rig)
{
    return rig_loops(rig) * RIG_REQUESTS * ((uint64_t)rig->size + 2 * LIMIT_DISK_ALIGN) +
           ((uint64_t)32 << 20);
}

/* ---- secrets, in files of the bench --------------------------------------------------------- */

#define RIG_HOST_NQN "nqn.2026-01.org.icms:bench:host"

/* A new key of NVMe/TCP with TLS. */
static icms_err rig_psk_write(const char *path, struct err_why *why)
{
    struct key_plain key = {.hash = KEY_HASH_SHA256, .bytes = key_hash_bytes(KEY_HASH_SHA256)};
    char text[KEY_TEXT_BYTES_MAX];
    size_t length;

    secret_random(key.key, key.bytes);
    length = key_text_make(KEY_TEXT_TLS, &key, text);
    return secret_write(path, text, length, why);
}

/* Where a file of the bench is. */
static void rig_path(const struct bench_rig *rig, const char *name, char out[BENCH_PATH_BYTES + 16])
{
    (void)snprintf(out, BENCH_PATH_BYTES + 16, "%s/%s", rig->dir, name);
}

/* The keys that this pod needs, and the list of the volume's. */
static icms_err rig_secrets(struct bench_rig *rig, struct err_why *why)
{
    char path[BENCH_PATH_BYTES + 16], list[BENCH_PATH_BYTES], text[BENCH_PATH_BYTES + 128];
    uint8_t key[SEAL_KEY_BYTES];
    icms_err err;

    if (rig->protect == BENCH_PLAIN)
        return ICMS_OK;
    rig_path(rig, "secret", path);
    if (rig->protect == BENCH_TLS)
        return rig_psk_write(path, why);
    secret_random(key, sizeof(key));
    err = secret_write(path, key, sizeof(key), why);
    (void)snprintf(text, sizeof(text),
                   "volumes:\n  - name: kv\n    keys:\n      - {id: 1, file: \"%s\"}\n", path);
    if (err == ICMS_OK)
        err = proc_file_write(rig->dir, "keys.yaml", text, why, list, sizeof(list));
    return err;
}

/* How many enclosures the pod has. */
static uint32_t rig_enclosures(const struct bench_rig *rig)
{
    return rig->enclosures > 0 ? rig->enclosures : 1;
}

/* The drives of target i, as its file names them. */
static void rig_drives_text(const struct bench_rig *rig, uint32_t i, char *out, size_t bytes)
{
    size_t n = 0;

    for (uint32_t d = 0; (d == 0 || d < rig->drives) && n < bytes; d++) {
        uint32_t number = i * (rig->drives > 0 ? rig->drives : 1) + d;
        char suffix[16] = "";

        if (number > 0)
            (void)snprintf(suffix, sizeof(suffix), ".%u", number);
        n += (size_t)snprintf(out + n, bytes - n,
                              "  - path: \"%s%s\"\n    size: %llu\n    format_empty: true\n",
                              rig->drive, suffix, (unsigned long long)rig->drive_bytes);
    }
    check(n < bytes);
}

/* The first drive of the first enclosure is there, others are made. */
static icms_err rig_target_start(struct bench_rig *rig, uint32_t i, struct err_why *why)
{
    static const char *const format[] = {"--format=all", NULL};
    char *drives = malloc(RIG_DRIVES_BYTES), *text = malloc(2 * RIG_DRIVES_BYTES);
    char path[BENCH_PATH_BYTES], name[32];
    char hosts[BENCH_PATH_BYTES + 128] = "";
    icms_err err;

    rig->targets[i].name = "icms-target";
    if (drives == NULL || text == NULL) {
        free(drives);
        free(text);
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    }
    rig_drives_text(rig, i, drives, RIG_DRIVES_BYTES);
    (void)snprintf(name, sizeof(name), "target%u.yaml", i);
    if (rig->protect == BENCH_TLS)
        (void)snprintf(hosts, sizeof(hosts),
                       "require: tls\nhosts:\n  - {nqn: \"" RIG_HOST_NQN
                       "\", psks: [\"%s/secret\"]}\n",
                       rig->dir);
    (void)snprintf(text, 2 * RIG_DRIVES_BYTES,
                   "# Made by icms bench.\n"
                   "name: bench%u\n"
                   "loops: %u\n"
                   "listen: 127.0.0.1:0\n"
                   "segment: %llu\n"
                   "memory: %llu\n"
                   "http:\n  listen: none\n"
                   "drives:\n%s"
                   "volumes:\n  - name: kv\n    value_max: %u\n    encrypted: %s\n%s",
                   i, rig_loops(rig), (unsigned long long)bench_segment_bytes(rig->drive_bytes),
                   (unsigned long long)rig_memory(rig), drives, rig->size,
                   rig->protect == BENCH_ENCRYPTED ? "true" : "false", hosts);
    err = proc_file_write(rig->dir, name, text, why, path, sizeof(path));
    if (err == ICMS_OK)
        err = proc_child_start(&rig->targets[i], rig->dir, path, format, &bench_canceled, why);
    free(drives);
    free(text);
    return err;
}

icms_err bench_rig_up(struct bench_rig *rig, struct err_why *why)
{
    icms_err err = ICMS_OK;

    rig->agent.name = "icms-agent";
    rig->targets = calloc(rig_enclosures(rig), sizeof(*rig->targets));
    if (rig->targets == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    err = rig_secrets(rig, why);
    for (uint32_t i = 0; i < rig_enclosures(rig) && err == ICMS_OK; i++)
        err = rig_target_start(rig, i, why);
    return err;
}

void bench_rig_down(struct bench_rig *rig)
{
    bench_rig_close(rig);
    for (uint32_t i = 0; rig->targets != NULL && i < rig_enclosures(rig); i++)
        proc_child_stop(&rig->targets[i]);
    free(rig->targets);
    rig->targets = NULL;
}

/* Where the agent's socket is. */
static icms_err rig_socket(const struct bench_rig *rig, struct err_why *why, char *out,
                           size_t bytes)
{
    /* sun_path has 108 bytes. */
    if ((size_t)snprintf(out, bytes, "%s/agent.sock", rig->dir) >= bytes || strlen(out) >= 108)
        return err_set(why, ICMS_INVALID, "%s is too long for a socket in it; take a shorter --dir",
                       rig->dir);
    return ICMS_OK;
}

/* The number behind a name of the status text; 0 when it is not there. */
static uint64_t rig_number(const char *text, const char *name)
{
    const char *at = strstr(text, name);

    return at == NULL ? 0 : strtoull(at + strlen(name), NULL, 10);
}

/* How many enclosures the status text says are up. */
static uint32_t rig_count_up(const char *text)
{
    static const char up[] = "\"state\":\"up\"";
    uint32_t count = 0;

    for (const char *at = strstr(text, up); at != NULL; at = strstr(at + sizeof(up) - 1, up))
        count++;
    return count;
}

/* Waits until the agent reaches its enclosures. */
static icms_err rig_wait_up(struct bench_rig *rig, struct err_why *why)
{
    char *text = malloc(RIG_STATUS_BYTES);
    icms_err err = text == NULL ? ICMS_NO_MEMORY : ICMS_OK;
    bool up = false;
    size_t bytes;

    for (int ms = 0; err == ICMS_OK && !up && ms < RIG_UP_MS; ms += 10) {
        struct timespec pause = {.tv_nsec = 10000000};

        err = icms_status(rig->icms, text, RIG_STATUS_BYTES, &bytes);
        up = err == ICMS_OK && rig_count_up(text) >= rig_enclosures(rig);
        if (!up)
            (void)nanosleep(&pause, NULL);
    }
    free(text);
    if (err != ICMS_OK)
        return err_set(why, err, "the agent does not tell its status: %s", icms_err_text(err));
    return up ? ICMS_OK : err_set(why, ICMS_PEER_DOWN, "the agent does not reach the target");
}

/* The agent's configuration. */
static icms_err rig_configure(struct bench_rig *rig, const char *socket, struct err_why *why)
{
    char text[3 * BENCH_PATH_BYTES], address[64], psk[BENCH_PATH_BYTES + 64] = "";
    uint64_t slot_bytes =
        bytes_align(sealed_bytes(rig->size) + LIMIT_TRAILER_BYTES, LIMIT_DISK_ALIGN);
    size_t n;

    if (rig->protect == BENCH_TLS)
        (void)snprintf(psk, sizeof(psk), "host_nqn: \"" RIG_HOST_NQN "\"\npsk: \"%s/secret\"\n",
                       rig->dir);
    n = (size_t)snprintf(text, sizeof(text),
                         "# Made by icms bench.\n"
                         "name: bench-agent\n"
                         "loops: %u\n"
                         "socket: \"%s\"\n"
                         "client_memory: %llu\n"
                         "store_backlog: %llu\n"
                         "exist_many: %s\n"
                         "http:\n  listen: none\n"
                         "memory: %llu\n%s"
                         "volumes:\n  - name: kv\n    value_max: %u\n    encrypted: %s\n"
                         "enclosures:\n",
                         rig_loops(rig), socket, (unsigned long long)rig_memory(rig),
                         (unsigned long long)(rig_memory(rig) * rig_loops(rig)), /* of each loop */
                         rig->standard_commands ? "false" : "true",
                         (unsigned long long)(slot_bytes * rig->arena_slots), psk, rig->size,
                         rig->protect == BENCH_ENCRYPTED ? "true" : "false");

    for (uint32_t i = 0; i < rig_enclosures(rig) && n < sizeof(text); i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "  - name: bench%u\n    address: %s\n", i,
                              proc_ready_word(&rig->targets[i], "nvme", address, sizeof(address)));
    check(n < sizeof(text)); /* the socket is at most 108 bytes, and enclosures are few */
    return proc_file_write(rig->dir, "agent.yaml", text, why, rig->config, sizeof(rig->config));
}

/* A handle on "unix:PATH" or "pod:PATH". */
static icms_err rig_attach(const struct bench_rig *rig, const char *kind, const char *path,
                           struct err_why *why, struct icms **out_icms)
{
    struct icms_options options;
    char where[BENCH_PATH_BYTES + 8], keys[BENCH_PATH_BYTES + 16];

    (void)snprintf(where, sizeof(where), "%s:%s", kind, path);
    icms_options_init(&options);
    options.buffer_bytes = rig_memory(rig);
    rig_path(rig, "keys.yaml", keys);
    options.keys = rig->protect == BENCH_ENCRYPTED ? keys : "";
    return icms_open(where, &options, why->text, sizeof(why->text), out_icms);
}

icms_err bench_rig_open(struct bench_rig *rig, bool daemon, struct err_why *why)
{
    char socket[BENCH_PATH_BYTES];
    icms_err err = rig_socket(rig, why, socket, sizeof(socket));

    if (err == ICMS_OK)
        err = rig_configure(rig, socket, why);
    if (err == ICMS_OK && daemon)
        err = proc_child_start(&rig->agent, rig->dir, rig->config, NULL, &bench_canceled, why);
    if (err != ICMS_OK)
        return err;
    err = rig_attach(rig, daemon ? "unix" : "pod", daemon ? socket : rig->config, why, &rig->icms);
    if (err == ICMS_OK)
        err = rig_wait_up(rig, why);
    if (err == ICMS_OK)
        err = icms_volume_open(rig->icms, "kv", why->text, sizeof(why->text), &rig->volume);
    return err;
}

icms_err bench_rig_client(const struct bench_rig *rig, struct icms **out_icms,
                          struct icms_volume **out_volume, struct err_why *why)
{
    char socket[BENCH_PATH_BYTES];
    icms_err err = rig_socket(rig, why, socket, sizeof(socket));

    if (err == ICMS_OK)
        err = rig_attach(rig, "unix", socket, why, out_icms);
    if (err == ICMS_OK)
        err = icms_volume_open(*out_icms, "kv", why->text, sizeof(why->text), out_volume);
    return err;
}

bool bench_rig_kernel_tls(const struct bench_rig *rig)
{
    char *text = malloc(RIG_STATUS_BYTES);
    size_t bytes;
    bool kernel = text != NULL &&
                  icms_status(rig->icms, text, RIG_STATUS_BYTES, &bytes) == ICMS_OK &&
                  strstr(text, "\"tls\":\"kernel\"") != NULL;

    free(text);
    return kernel;
}

void bench_rig_close(struct bench_rig *rig)
{
    icms_volume_close(&rig->volume);
    icms_close(&rig->icms);
    proc_child_stop(&rig->agent);
}

void bench_rig_pids(const struct bench_rig *rig, struct bench_side *side)
{
    side->pids = 0;
    for (uint32_t i = 0; i < rig_enclosures(rig) && side->pids < BENCH_PIDS_MAX - 1; i++)
        side->pid[side->pids++] = rig->targets[i].pid;
    if (rig->agent.pid != 0)
        side->pid[side->pids++] = rig->agent.pid;
}

icms_err bench_rig_hits(const struct bench_rig *rig, struct err_why *why,
                        struct bench_hits *out_hits)
{
    char *text = malloc(RIG_STATUS_BYTES), *hits = NULL;
    size_t bytes;
    icms_err err = ICMS_NO_MEMORY;

    if (text != NULL)
        err = icms_status(rig->icms, text, RIG_STATUS_BYTES, &bytes);
    if (err == ICMS_OK)
        hits = strstr(text, "\"hits\":{");
    if (hits != NULL)
        *out_hits = (struct bench_hits){.dram = rig_number(hits, "\"dram\":"),
                                        .pod = rig_number(hits, "\"pod\":")};
    else
        err = err_set(why, err == ICMS_OK ? ICMS_PROTOCOL : err,
                      "the agent does not tell where its hits came from");
    free(text);
    return err;
}

struct icms_key bench_icms_key(uint64_t n, uint64_t age)
{
    struct key key = bench_key(n, age);
    struct icms_key icms_key = {.length = key.length};

    memcpy(icms_key.bytes, key.bytes, sizeof(icms_key.bytes));
    memcpy(icms_key.digest, key.bytes, sizeof(key.bytes));
    return icms_key;
}
