/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors of drives as lines; see drive_log.h. Called by the main threads of icms-target and
 * icms-agent, a few times a second.
 */
#include "drive_log.h"

#include <stdio.h>

#include "base/log.h"

/* Lines of a drive at once, and the interval after which there may be one more. */
#define DRIVE_LOG_LINES 10
#define DRIVE_LOG_NS    ((uint64_t)10 * 1000 * 1000 * 1000)

/* Without an error for so long there is space again. */
#define DRIVE_LOG_SPACE_NS ((uint64_t)2 * 1000 * 1000 * 1000)

#define DRIVE_LOG_PLACE_BYTES (LIMIT_NAME_BYTES + 128)

/* "volume kv key 00ab... offset 4096": what is known of it. */
static const char *error_place(const struct drive_log_source *source,
                               const struct store_error *error, char out[DRIVE_LOG_PLACE_BYTES])
{
    char key[2 * LIMIT_KEY_BYTES + 1] = "";
    int n = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < error->key.length; i++)
        (void)snprintf(key + (size_t)2 * i, 3, "%02x", error->key.bytes[i]);
    if (error->volume != STORE_ERROR_NO_BLOCK)
        n = snprintf(out, DRIVE_LOG_PLACE_BYTES, " volume=%s key=%s",
                     source->volume(source->arg, error->volume), key);
    if (error->offset != STORE_ERROR_NOWHERE)
        (void)snprintf(out + n, DRIVE_LOG_PLACE_BYTES - (size_t)n, " offset=%llu",
                       (unsigned long long)error->offset);
    return out;
}

static void error_line(struct drive_log *log, const struct drive_log_source *source,
                       const struct store_error *error, const struct store_stats *stats)
{
    char place[DRIVE_LOG_PLACE_BYTES];

    if (error->err == ICMS_CORRUPT)
        log_line(LOG_WARN,
                 "%s: damaged %s: its bytes are not those that were written; a block that is lost "
                 "is a miss; replace the drive if this goes on;%s checksum_errors=%llu "
                 "unlogged=%llu",
                 source->name, error->what, error_place(source, error, place),
                 (unsigned long long)stats->checksum_errors, (unsigned long long)log->unlogged);
    else
        log_line(
            LOG_WARN,
            "%s: %s failed: %s; look for it in the kernel's log, and replace the drive if this "
            "goes on;%s io_errors=%llu unlogged=%llu",
            source->name, error->what, icms_err_text(error->err), error_place(source, error, place),
            (unsigned long long)stats->io_errors, (unsigned long long)log->unlogged);
    log->unlogged = 0;
}

static void look_space(struct drive_log *log, uint64_t now_ns, const char *name,
                       const struct store_stats *stats)
{
    bool more = stats->no_space_errors > log->no_space_errors;

    if (more && log->no_space_ns == 0)
        log_line(LOG_ERROR,
                 "%s: no space in the file system or the pool below it: its stores fail, loads go "
                 "on, and it stays in service; free space there; no_space_errors=%llu",
                 name, (unsigned long long)stats->no_space_errors);
    if (more)
        log->no_space_ns = now_ns;
    else if (log->no_space_ns != 0 && !stats->full &&
             now_ns > log->no_space_ns + DRIVE_LOG_SPACE_NS) {
        log->no_space_ns = 0;
        log_line(LOG_INFO, "%s: there is space again; no_space_errors=%llu", name,
                 (unsigned long long)stats->no_space_errors);
    }
    log->no_space_errors = stats->no_space_errors;
}

void drive_log_look(struct drive_log *log, uint64_t now_ns, const struct drive_log_source *source,
                    const struct store_stats *stats)
{
    struct store_error error;
    uint64_t missed;

    if (now_ns >= log->line_ns + DRIVE_LOG_NS) {
        log->line_ns = now_ns;
        log->lines -= log->lines > 0;
    }
    look_space(log, now_ns, source->name, stats);
    while (source->take(source->arg, &error, &missed)) {
        log->unlogged += missed;
        if (error.err == ICMS_NO_SPACE)
            continue;
        if (log->lines == DRIVE_LOG_LINES) {
            log->unlogged++;
            continue;
        }
        log->lines++;
        error_line(log, source, &error, stats);
    }
}
