/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Disks of simulated nodes.
 *
 * A file has two images. The view is what reads see: every completed write is in it. The medium is
 * what a power loss leaves: a write gets there when it was flushed, or when the drive makes room in
 * its cache. Between the two, the write waits in file->unflushed with its data, in order.
 *
 * An operation (struct sim_io) reads or writes the daemon's memory at its end and not before; until
 * then a strict simulation scribbles into what is to be read and remembers a hash of what is to be
 * written. Operations on one file overtake each other.
 *
 * Faults act on sectors of 512 bytes: a torn write leaves each sector old or new. What was
 * discarded reads as it was, as zeros or as garbage, piece by piece.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/limits.h"
#include "loop/sim_int.h"

/* Bytes of completed writes that a drive keeps in its volatile cache. */
#define SIM_DISK_CACHE_BYTES ((uint64_t)8 << 20)

/* What was discarded is looked at in pieces of so many bytes. */
#define SIM_DISCARD_BYTES 8192

enum sim_fate {
    SIM_KEPT,
    SIM_TORN,
    SIM_LOST,
};

static enum sim_fate sim_fate(struct sim *sim)
{
    return (enum sim_fate)sim_below(sim, 3);
}

/* ---- the two images ------------------------------------------------------------------------- */

/* The oldest completed write becomes durable. */
static void file_destage(struct sim_file *file)
{
    struct list *link = list_pop(&file->unflushed);
    struct sim_unflushed *write = container_of(link, struct sim_unflushed, link);

    memcpy(file->medium + write->offset, write->data, write->bytes);
    file->unflushed_bytes -= write->bytes;
    free(write);
}

/* A write is complete: reads see it, a power loss may still take it away. */
static void file_apply(struct sim_file *file, uint64_t offset, const uint8_t *data, uint32_t bytes)
{
    struct sim_unflushed *write = sim_alloc(sizeof(*write) + bytes);

    check(offset + bytes <= file->bytes);
    memcpy(file->view + offset, data, bytes);
    write->number = file->writes++;
    write->offset = offset;
    write->bytes = bytes;
    memcpy(write->data, data, bytes);
    list_push(&file->unflushed, &write->link);
    file->unflushed_bytes += bytes;
    while (file->unflushed_bytes > SIM_DISK_CACHE_BYTES)
        file_destage(file);
}

/* Calls apply for what remains of a write of which each sector is kept or lost at random. */
static void file_tear(struct sim_file *file, uint64_t offset, const uint8_t *data, uint32_t bytes,
                      void (*apply)(struct sim_file *file, uint64_t offset, const uint8_t *data,
                                    uint32_t bytes))
{
    for (uint32_t at = 0; at < bytes;) {
        uint32_t room = SIM_SECTOR - (uint32_t)((offset + at) % SIM_SECTOR);
        uint32_t part = room < bytes - at ? room : bytes - at;

        if (sim_below(file->node->sim, 2) == 0)
            apply(file, offset + at, data + at, part);
        at += part;
    }
}

static void file_apply_fate(struct sim_file *file, enum sim_fate fate, uint64_t offset,
                            const uint8_t *data, uint32_t bytes)
{
    if (fate == SIM_KEPT)
        file_apply(file, offset, data, bytes);
    else if (fate == SIM_TORN)
        file_tear(file, offset, data, bytes, file_apply);
}

static void file_harden(struct sim_file *file, uint64_t offset, const uint8_t *data, uint32_t bytes)
{
    memcpy(file->medium + offset, data, bytes);
}

/* Power is lost: each write in the cache gets to the medium, in part, or not. Drives differ: of one
 * loss nearly all writes are kept, of another nearly none, of a third any. */
static void file_power_loss(struct sim_file *file)
{
    struct sim *sim = file->node->sim;
    enum sim_fate usual = sim_fate(sim);

    list_for_each (link, &file->unflushed) {
        struct sim_unflushed *write = container_of(link, struct sim_unflushed, link);
        enum sim_fate fate = usual == SIM_TORN || sim_below(sim, 8) == 0 ? sim_fate(sim) : usual;

        if (fate == SIM_KEPT)
            file_harden(file, write->offset, write->data, write->bytes);
        else if (fate == SIM_TORN)
            file_tear(file, write->offset, write->data, write->bytes, file_harden);
    }
    list_for_each_safe (again, &file->unflushed) {
        struct sim_unflushed *write = container_of(again, struct sim_unflushed, link);

        memcpy(file->view + write->offset, file->medium + write->offset, write->bytes);
        list_remove(again);
        free(write);
    }
    file->unflushed_bytes = 0;
}

/* Writes, or lies. */
static icms_err file_write(struct sim_file *file, uint64_t offset, const uint8_t *data,
                           uint32_t bytes)
{
    struct sim *sim = file->node->sim;
    enum sim_fate fate = SIM_KEPT;
    icms_err err = ICMS_OK;

    if (file->dead)
        return ICMS_IO;
    if (file->full)
        return ICMS_NO_SPACE;
    if (sim_fault(sim, sim->opts.disk_write_error_ppm)) {
        err = ICMS_IO;
        fate = sim_fate(sim);
    } else if (sim_fault(sim, sim->opts.disk_write_lost_ppm)) {
        fate = SIM_LOST;
    } else if (sim_fault(sim, sim->opts.disk_write_torn_ppm)) {
        fate = SIM_TORN;
    }
    if (fate != SIM_KEPT)
        sim_trace(sim, SIM_TRACE_FAULT, file->node, offset, fate);
    file_apply_fate(file, fate, offset, data, bytes);
    return err;
}

static void file_discard(struct sim_file *file, uint64_t offset, uint32_t bytes)
{
    struct sim *sim = file->node->sim;
    uint64_t words[SIM_DISCARD_BYTES / 8];

    for (uint32_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < SIM_DISCARD_BYTES ? bytes - at : SIM_DISCARD_BYTES;
        switch (sim_below(sim, 3)) {
        case 0:
            continue;
        case 1:
            memset(words, 0, n);
            break;
        default:
            for (uint32_t i = 0; i < n / 8; i++)
                words[i] = sim_random(sim);
        }
        file_apply(file, offset + at, (const uint8_t *)words, n);
    }
}

static icms_err file_read(struct sim_file *file, uint64_t offset, uint8_t *to, size_t bytes)
{
    struct sim *sim = file->node->sim;

    if (file->dead || sim_fault(sim, sim->opts.disk_read_error_ppm)) {
        sim_trace(sim, SIM_TRACE_FAULT, file->node, offset, ICMS_IO);
        sim_scribble(sim, to, bytes);
        return ICMS_IO;
    }
    if (sim_fault(sim, sim->opts.disk_corrupt_ppm)) {
        uint64_t at = offset + sim_below(sim, bytes);
        uint8_t flip = (uint8_t)(1u << sim_below(sim, 8));

        sim_trace(sim, SIM_TRACE_FAULT, file->node, at, flip);
        file->view[at] ^= flip;
        file->medium[at] ^= flip;
    }
    memcpy(to, file->view + offset, bytes);
    return ICMS_OK;
}

/* ---- operations ----------------------------------------------------------------------------- */

static struct sim_handle *handle_of(struct loop_file *file)
{
    return container_of(file, struct sim_handle, file);
}

static void io_free(struct sim_io *io)
{
    sim_not(io->file->node->sim, &io->event);
    list_remove(&io->link);
    free(io);
}

static void io_done(struct sim_io *io, icms_err err, uint32_t bytes)
{
    struct loop_op *op = io->op;

    sim_trace(io->file->node->sim, SIM_TRACE_DISK, io->file->node, op->offset, bytes);
    io_free(io);
    sim_op_ready(op, err, bytes);
}

/* The bytes that are to be written must not have changed since they were handed over. */
static void io_unchanged(const struct sim_io *io)
{
    if (io->file->node->sim->opts.strict)
        check(hash64(io->op->memory, io->op->length) == io->hash);
}

static void io_read_end(struct sim_io *io)
{
    struct loop_op *op = io->op;
    uint64_t left = io->file->bytes > op->offset ? io->file->bytes - op->offset : 0;
    uint32_t bytes = (uint32_t)u64_min(op->length, left);
    icms_err err = bytes > 0 ? file_read(io->file, op->offset, op->memory, bytes) : ICMS_IO;

    io_done(io, bytes < op->length ? ICMS_IO : err, err == ICMS_OK ? bytes : 0);
}

static void io_end(struct loop_timer *event)
{
    struct sim_io *io = container_of(event, struct sim_io, event);
    struct sim_file *file = io->file;
    struct sim *sim = file->node->sim;
    struct loop_op *op = io->op;
    struct sim_io *other = container_of(list_first(&file->ios), struct sim_io, link);

    if (other != io && other->op->kind == LOOP_READ)
        sim_scribble(sim, other->op->memory, other->op->length);
    switch ((enum loop_kind)op->kind) {
    case LOOP_READ:
        io_read_end(io);
        break;
    case LOOP_WRITE: {
        icms_err err;

        io_unchanged(io);
        err = file_write(file, op->offset, op->memory, op->length);
        if (err == ICMS_OK)
            memset(file->streams + op->offset / LIMIT_DISK_ALIGN, op->stream,
                   (op->length + LIMIT_DISK_ALIGN - 1) / LIMIT_DISK_ALIGN);
        io_done(io, err, err == ICMS_OK ? op->length : 0);
        break;
    }
    case LOOP_DISCARD:
        if (file->dead || !sim->opts.disk_discard) {
            io_done(io, file->dead ? ICMS_IO : ICMS_UNSUPPORTED, 0);
            break;
        }
        file_discard(file, op->offset, op->length);
        io_done(io, ICMS_OK, 0);
        break;
    default:
        check(op->kind == LOOP_FLUSH);
        if (file->dead) {
            io_done(io, ICMS_IO, 0);
            break;
        }
        while (!list_empty(&file->unflushed) &&
               container_of(list_first(&file->unflushed), struct sim_unflushed, link)->number <
                   io->flush_number)
            file_destage(file);
        io_done(io, ICMS_OK, 0);
    }
}

/* When an operation of so many bytes ends. */
static uint64_t io_end_ns(struct sim_file *file, uint32_t bytes)
{
    struct sim *sim = file->node->sim;
    uint64_t slow = (uint64_t)file->node->disk_slow * file->slow;
    uint64_t transfer_ns = (uint64_t)bytes * 1000000000u / sim->opts.disk_bytes_per_s * slow;
    uint64_t delay_ns = sim_delay(sim, sim->opts.disk_delay_min_ns, sim->opts.disk_delay_max_ns);

    file->busy_ns = u64_max(sim->now_ns, file->busy_ns) + transfer_ns;
    return file->busy_ns + delay_ns * slow;
}

void sim_disk_start(struct loop_op *op)
{
    struct sim_handle *handle = container_of(op->target, struct sim_handle, file.target);
    struct sim_file *file = handle->disk;
    struct sim *sim = file->node->sim;
    struct sim_io *io;

    if ((op->kind == LOOP_WRITE || op->kind == LOOP_DISCARD) &&
        (!handle->write || op->offset + op->length > file->bytes)) {
        sim_op_ready(op, handle->write ? ICMS_NO_SPACE : ICMS_INVALID, 0);
        return;
    }
    io = sim_alloc(sizeof(*io));
    io->event.fire = io_end;
    io->file = file;
    io->op = op;
    io->flush_number = file->writes;
    list_push(&file->ios, &io->link);
    op->words[0] = (uintptr_t)io;
    if (op->kind == LOOP_READ)
        sim_scribble(sim, op->memory, op->length);
    else if (op->kind == LOOP_WRITE && sim->opts.strict)
        io->hash = hash64(op->memory, op->length);
    sim_at(sim, &io->event, io_end_ns(file, op->kind == LOOP_DISCARD ? 0 : op->length));
}

/* A loop ends in order: its kernel finishes what is in flight. */
void sim_disk_drop(struct sim_node *node, struct loop *loop)
{
    list_for_each (link, &node->files) {
        struct sim_file *file = container_of(link, struct sim_file, link);

        list_for_each_safe (flying, &file->ios) {
            struct sim_io *io = container_of(flying, struct sim_io, link);
            struct loop_op *op = io->op;

            if (!sim_op_of(op, loop))
                continue;
            if (op->kind == LOOP_WRITE) {
                io_unchanged(io);
                file_apply(file, op->offset, op->memory, op->length);
            } else if (op->kind == LOOP_DISCARD && node->sim->opts.disk_discard) {
                file_discard(file, op->offset, op->length);
            }
            io_free(io);
            loop_op_release(op);
        }
    }
}

/* ---- open and close ------------------------------------------------------------------------- */

static struct sim_file *file_find(struct sim_node *node, const char *path)
{
    list_for_each (link, &node->files) {
        struct sim_file *file = container_of(link, struct sim_file, link);

        if (strcmp(file->path, path) == 0)
            return file;
    }
    return NULL;
}

static void file_resize(struct sim_file *file, uint64_t bytes)
{
    file->bytes = bytes;
    if (bytes > 0) {
        file->view = sim_alloc(bytes);
        file->medium = sim_alloc(bytes);
        file->streams = sim_alloc(bytes / LIMIT_DISK_ALIGN + 1);
    }
}

static struct sim_file *file_new(struct sim_node *node, const char *path)
{
    struct sim_file *file = sim_alloc(sizeof(*file));

    file->node = node;
    file->slow = 1;
    file->path = strdup(path);
    check(file->path != NULL);
    list_init(&file->unflushed);
    list_init(&file->ios);
    list_push(&node->files, &file->link);
    return file;
}

icms_err sim_file_open(struct loop_env *env, const struct loop_file_opts *opts, struct err_why *why,
                       struct loop_file **out_file)
{
    struct sim_node *node = sim_node_of(env);
    struct sim_file *file = file_find(node, opts->path);
    struct sim_handle *handle;

    if (sim_memory_refused(node))
        return err_set(why, ICMS_NO_MEMORY, "open %s: out of memory", opts->path);
    if (file == NULL && !opts->create)
        return err_set(why, ICMS_NOT_FOUND, "cannot open %s: no such file: create it first",
                       opts->path);
    if (file != NULL && opts->exclusive && file->holder != NULL)
        return err_set(why, ICMS_LOCKED, "%s is in use by another daemon: stop it first",
                       opts->path);
    if (file == NULL)
        file = file_new(node, opts->path);
    if (file->bytes == 0 && opts->create)
        file_resize(file, opts->bytes);
    handle = sim_alloc(sizeof(*handle));
    handle->file.target.env = env;
    handle->file.bytes = file->bytes;
    handle->file.direct = opts->direct;
    handle->file.streams = opts->write ? node->sim->opts.disk_streams : 0;
    handle->disk = file;
    handle->write = opts->write;
    if (opts->exclusive)
        file->holder = handle;
    list_push(&node->handles, &handle->link);
    *out_file = &handle->file;
    return ICMS_OK;
}

void sim_file_close(struct loop_file *file)
{
    struct sim_handle *handle = handle_of(file);

    if (handle->disk != NULL && handle->disk->holder == handle)
        handle->disk->holder = NULL;
    list_remove(&handle->link);
    free(handle);
}

icms_err sim_file_read_now(struct loop_file *file, uint64_t offset, void *memory, size_t bytes)
{
    struct sim_file *disk = handle_of(file)->disk;

    if (offset > disk->bytes || bytes > disk->bytes - offset)
        return ICMS_IO;
    return bytes > 0 ? file_read(disk, offset, memory, bytes) : ICMS_OK;
}

icms_err sim_file_write_now(struct loop_file *file, uint64_t offset, const void *memory,
                            size_t bytes)
{
    struct sim_handle *handle = handle_of(file);

    if (!handle->write)
        return ICMS_INVALID;
    if (offset > handle->disk->bytes || bytes > handle->disk->bytes - offset)
        return ICMS_NO_SPACE;
    return file_write(handle->disk, offset, memory, (uint32_t)bytes);
}

icms_err sim_file_flush_now(struct loop_file *file)
{
    struct sim_file *disk = handle_of(file)->disk;

    if (disk->dead)
        return ICMS_IO;
    while (!list_empty(&disk->unflushed))
        file_destage(disk);
    return ICMS_OK;
}

/* ---- many blocking reads --------------------------------------------------------------------- */

struct sim_reads {
    struct loop_reads reads; /* common part                            */
    struct list flying;      /* loop_read.link; they end in any order  */
};

static struct sim_reads *sim_reads_of(struct loop_reads *reads)
{
    return container_of(reads, struct sim_reads, reads);
}

icms_err sim_reads_new(struct loop_file *file, uint32_t depth, struct err_why *why,
                       struct loop_reads **out_reads)
{
    struct sim_reads *own;

    if (sim_memory_refused(sim_node_of(file->target.env)))
        return err_set(why, ICMS_NO_MEMORY, "reads at start: out of memory");
    own = sim_alloc(sizeof(*own));
    own->reads = (struct loop_reads){.file = file, .depth = depth};
    list_init(&own->flying);
    *out_reads = &own->reads;
    return ICMS_OK;
}

void sim_reads_start(struct loop_reads *reads, struct loop_read *read)
{
    sim_scribble(handle_of(reads->file)->disk->node->sim, read->memory, read->bytes);
    list_push(&sim_reads_of(reads)->flying, &read->link);
}

struct loop_read *sim_reads_wait(struct loop_reads *reads)
{
    struct sim_reads *own = sim_reads_of(reads);
    struct list *link = list_first(&own->flying);
    struct loop_read *read;

    for (uint64_t n = sim_below(handle_of(reads->file)->disk->node->sim, reads->busy); n > 0; n--)
        link = link->next;
    list_remove(link);
    read = container_of(link, struct loop_read, link);
    read->err = sim_file_read_now(reads->file, read->offset, read->memory, read->bytes);
    return read;
}

void sim_reads_free(struct loop_reads *reads)
{
    free(sim_reads_of(reads));
}

/* ---- crash and end -------------------------------------------------------------------------- */

void sim_disk_crash(struct sim_node *node, bool power)
{
    list_for_each (link, &node->files) {
        struct sim_file *file = container_of(link, struct sim_file, link);

        list_for_each_safe (flying, &file->ios) {
            struct sim_io *io = container_of(flying, struct sim_io, link);
            struct loop_op *op = io->op;

            if (op->kind == LOOP_WRITE)
                file_apply_fate(file, sim_fate(node->sim), op->offset, op->memory, op->length);
            else if (op->kind == LOOP_DISCARD && node->sim->opts.disk_discard)
                file_discard(file, op->offset, op->length);
            io_free(io);
            loop_op_release(op);
        }
        if (power)
            file_power_loss(file);
        file->holder = NULL;
    }
    list_for_each (open, &node->handles)
        container_of(open, struct sim_handle, link)->disk = NULL;
}

void sim_disk_fini(struct sim_node *node)
{
    struct list *link;

    while ((link = list_first(&node->handles)) != NULL)
        sim_file_close(&container_of(link, struct sim_handle, link)->file);
    while ((link = list_pop(&node->files)) != NULL) {
        struct sim_file *file = container_of(link, struct sim_file, link);

        check(list_empty(&file->ios)); /* else a loop was neither freed nor crashed */
        while (!list_empty(&file->unflushed))
            file_destage(file);
        free(file->view);
        free(file->medium);
        free(file->streams);
        free(file->path);
        free(file);
    }
}

void sim_file_slow(struct sim_node *node, const char *path, uint32_t factor)
{
    struct sim_file *file = file_find(node, path);

    check(file != NULL);
    file->slow = factor;
}

void sim_disk_dead(struct sim_node *node, const char *path, bool dead)
{
    struct sim_file *file = file_find(node, path);

    check(file != NULL);
    file->dead = dead;
}

void sim_disk_full(struct sim_node *node, const char *path, bool full)
{
    struct sim_file *file = file_find(node, path);

    check(file != NULL);
    file->full = full;
}

uint8_t *sim_file_medium(struct sim_node *node, const char *path, uint64_t *out_bytes)
{
    struct sim_file *file = file_find(node, path);

    if (file == NULL)
        return NULL;
    *out_bytes = file->bytes;
    return file->view;
}

uint32_t sim_file_stream(struct sim_node *node, const char *path, uint64_t offset)
{
    struct sim_file *file = file_find(node, path);

    check(file != NULL && offset < file->bytes);
    return file->streams[offset / LIMIT_DISK_ALIGN];
}
