/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes with libicms in them: what pod_client.c is by hand, here several threads do with one
 * handle. Some have the agent inside ("pod:"), most attach to it ("unix:").
 *
 * A process: NONE -> its first thread opens the handle and the volumes (OPENING) -> all threads
 * call (RUNS) -> told to leave, they end their calls, and the first one closes (CLOSING) -> GONE,
 * until the agents let go of it. Killed: GONE at once, from wherever its threads are.
 *
 * In some processes the last thread polls for all asynchronous calls, as an engine does: it looks
 * when the handle's event is readable and never otherwise, so a notification that is lost is a call
 * that is late. In others each thread waits for its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"
#include "lib.h"

#define CLIENT_RETRY (5 * MS)  /* between two attempts to open                              */
#define CLIENT_LOOK  (20 * MS) /* the thread that polls looks after other things so often   */
#define CLIENT_FEW   8         /* keys that are asked for most                               */
#define CLIENT_SPINS 1000      /* the event is readable, and icms_poll has nothing: no more  */

const bool pod_clients_verify = true;
const uint32_t pod_client_leases = SHM_LEASES;

/* Longer than a deadline and the grace: libicms gives up what the agent answers later. */
const uint64_t pod_agent_pause_ns = 250 * MS;

/* What the heap of a killed process had: kept, so that nobody takes it for a leak. */
#define CLIENT_KILLED 4096
__attribute__((used)) static struct icms *client_killed[CLIENT_KILLED];
static uint32_t client_killed_count;

/* ---- calls ---------------------------------------------------------------------------------- */

static uint64_t client_now(void)
{
    return sim_now_ns(lib_world->sim);
}

static struct lib_call *client_call_new(struct lib_process *process)
{
    for (uint32_t i = 0; i < LIB_CALLS; i++) {
        struct lib_call *call = &process->calls[i];

        if (call->used)
            continue;
        call->used = true;
        call->number++;
        call->async = call->waited = call->active = false;
        call->report = NULL;
        call->flags = 0;
        call->count = 1;
        return call;
    }
    return NULL;
}

static void client_options(struct lib_call *call, struct icms_request_options *options)
{
    uint64_t now_ns =
        client_now(); /* the thread may have stood still since the deadline was made */
    uint64_t left_ns = call->deadline_ns > now_ns ? call->deadline_ns - now_ns : 0;

    icms_request_options_init(options);
    options->deadline_ms = (uint32_t)u64_max(left_ns / MS, 1);
    call->left_ns = options->deadline_ms * MS;
    if ((call->flags & SHM_FLAG_ON_FLASH) != 0)
        options->put_ack = ICMS_PUT_ON_FLASH;
    options->put_if_absent = (call->flags & SHM_FLAG_IF_ABSENT) != 0;
    if ((call->flags & SHM_FLAG_PRESTAGE) != 0)
        options->class_ = ICMS_CLASS_PRESTAGE;
    options->once = (call->flags & SHM_FLAG_ONCE) != 0;
    options->tag = (void *)(uintptr_t)call;
}

static void client_call_sync(struct lib_process *process, struct lib_call *call)
{
    struct icms_volume *volume = process->volumes[call->volume];
    struct icms_request_options options;
    icms_err err;

    lib_call_begin(process, call);
    client_options(call, &options);
    call->active = true;
    switch (call->op) {
    case SHM_OP_PUT:
        err = icms_put(volume, call->blocks, call->count, &options);
        break;
    case SHM_OP_GET:
        err = icms_get(volume, call->blocks, call->count, &options);
        break;
    case SHM_OP_EXISTS:
        err = icms_exists(volume, call->blocks, call->count, &options);
        break;
    case SHM_OP_EXISTS_MANY:
        if (call->count % 2 == 0)
            err = icms_match_estimate(volume, call->match_keys, call->count, &options,
                                      call->estimates, &call->matched);
        else
            err = icms_match(volume, call->match_keys, call->count, &options, &call->matched);
        break;
    case SHM_OP_REMOVE:
        err = icms_remove(volume, call->blocks, call->count, &options);
        break;
    default:
        err = icms_flush(volume, &options);
    }
    lib_call_end(process, call, err);
}

/* Its deadline stays: libicms has read the clock, perhaps after a thread stood still. */
static void client_call_begun(const struct lib_process *process, struct lib_call *call)
{
    call->deadline_ns = u64_max(call->deadline_ns, process->stalled_ns + call->left_ns);
    call->left_ns = 0;
}

/* False: it did not begin, and its result is judged. */
static bool client_call_start(struct lib_process *process, struct lib_call *call)
{
    struct icms_volume *volume = process->volumes[call->volume];
    struct icms_request_options options;
    struct icms_request *request = NULL;
    uint32_t number = call->number;
    icms_err err;

    lib_call_begin(process, call);
    client_options(call, &options);
    call->async = call->active = true;
    switch (call->op) {
    case SHM_OP_PUT:
        err = icms_put_start(volume, call->blocks, call->count, &options, &request);
        break;
    case SHM_OP_GET:
        err = icms_get_start(volume, call->blocks, call->count, &options, &request);
        break;
    case SHM_OP_EXISTS:
        err = icms_exists_start(volume, call->blocks, call->count, &options, &request);
        break;
    case SHM_OP_REMOVE:
        err = icms_remove_start(volume, call->blocks, call->count, &options, &request);
        break;
    default:
        err = icms_flush_start(volume, &options, &request);
    }
    if (err == ICMS_OK && call->number == number) /* else who polls has ended it by now */
        client_call_begun(process, call);
    if (err != ICMS_OK)
        lib_call_end(process, call, err);
    else if (call->waited)
        call->request = request;
    return err == ICMS_OK;
}

/* Its own thread waits for it, with some patience, and may cancel it. */
static void client_call_wait(struct lib_process *process, struct lib_call *call)
{
    while (lib_chance(3) != 0 && icms_request_wait(call->request, (int)lib_chance(4)) != ICMS_OK)
        if (call->report == NULL && lib_chance(8) == 0) {
            call->canceled = true;
            icms_request_cancel(call->request);
        }
    lib_call_end(process, call, icms_request_end(&call->request));
}

/* Runs the call in one of its forms. */
static void client_call_run(struct lib_process *process, struct lib_call *call)
{
    bool async = call->op != SHM_OP_EXISTS_MANY && lib_chance(2) == 0;

    if (!async) {
        client_call_sync(process, call);
        return;
    }
    call->waited = !process->polls;
    if (client_call_start(process, call) && !process->polls)
        client_call_wait(process, call);
}

/* ---- by chance ------------------------------------------------------------------------------ */

/* A third of all keys asked for are a few that stay in the arena, half of the others hot ones;
 * written: at some time. */
static uint32_t client_any_key(bool written)
{
    const struct pod_model *model = &lib_world->model;
    bool hot = lib_chance(2) == 0;
    uint32_t key = (uint32_t)lib_chance(model->storm_count);

    if (lib_chance(3) == 0)
        return (uint32_t)lib_chance(CLIENT_FEW);
    for (int i = 0; i < 40; i++) {
        if ((!hot || model->keys[key].hot) && (!written || model->keys[key].versions > 0))
            break;
        key = (uint32_t)lib_chance(model->storm_count);
    }
    return key;
}

/* The keys behind the first one, of its volume. */
static void client_any_keys(struct lib_call *call, uint32_t first, uint32_t count)
{
    const struct pod_model *model = &lib_world->model;
    uint32_t at = first;

    call->volume = model->keys[first].volume;
    call->count = 0;
    do {
        if (model->keys[at].volume == call->volume)
            call->keys[call->count++] = at;
        at = at + 1 < model->storm_count ? at + 1 : 0;
    } while (call->count < count && at != first);
}

static uint32_t client_any_count(uint8_t op)
{
    if (lib_chance(2) == 0)
        return 1;
    if (op == SHM_OP_PUT || op == SHM_OP_REMOVE || lib_chance(8) != 0)
        return 1 + (uint32_t)lib_chance(LIB_CALL_BLOCKS);
    return 1 + (uint32_t)lib_chance(LIB_CALL_MANY);
}

static void client_any_deadline(struct lib_call *call)
{
    uint64_t deadline_ns =
        lib_chance(8) == 0 ? MS + lib_chance(3 * MS) : 5 * MS + lib_chance(120 * MS);

    if (call->op == SHM_OP_REMOVE || call->op == SHM_OP_FLUSH)
        deadline_ns += 50 * MS;
    if (call->op == SHM_OP_PUT && lib_chance(8) != 0)
        deadline_ns += 15 * MS + lib_chance(180 * MS);
    call->deadline_ns = client_now() + deadline_ns;
}

static void client_any_call(struct lib_process *process)
{
    static const uint8_t ops[] = {SHM_OP_GET,    SHM_OP_GET,   SHM_OP_GET,         SHM_OP_GET,
                                  SHM_OP_PUT,    SHM_OP_PUT,   SHM_OP_PUT,         SHM_OP_EXISTS,
                                  SHM_OP_REMOVE, SHM_OP_FLUSH, SHM_OP_EXISTS_MANY, SHM_OP_GET};
    struct lib_call *call = client_call_new(process);
    uint64_t kind = lib_chance(10);

    if (call == NULL)
        return;
    call->op = ops[lib_chance(sizeof(ops))];
    client_any_keys(call, client_any_key(call->op != SHM_OP_PUT && lib_chance(8) != 0),
                    client_any_count(call->op));
    if (call->op == SHM_OP_FLUSH)
        call->count = 1;
    if (call->op == SHM_OP_GET && kind == 0)
        call->flags = SHM_FLAG_PRESTAGE;
    if (call->op == SHM_OP_PUT && kind < 5)
        call->flags = kind == 4 ? SHM_FLAG_IF_ABSENT : SHM_FLAG_ON_FLASH;
    if (lib_chance(4) == 0)
        call->flags |= SHM_FLAG_ONCE;
    for (uint32_t i = 0; i < call->count && call->op == SHM_OP_PUT; i++)
        call->versions[i] = pod_model_put(lib_world, call->keys[i], 0);
    client_any_deadline(call);
    client_call_run(process, call);
}

/* ---- leases --------------------------------------------------------------------------------- */

static void client_lease_end(struct lib_lease *lease)
{
    if (crc32c(lease->lease.data, lease->lease.bytes) != lease->crc)
        pod_fail(lib_world, POD_FAULT_BUFFER, "a block changed while it was leased");
    icms_lease_give(&lease->lease);
    lease->used = false;
}

static void client_leases_end(struct lib_process *process, bool all)
{
    for (uint32_t i = 0; i < LIB_LEASES; i++) {
        struct lib_lease *lease = &process->leases[i];

        if (lease->used && !lease->busy && (all || lease->release_ns <= client_now())) {
            lease->busy = true;
            client_lease_end(lease);
            lease->busy = false;
        }
    }
}

/* A call of one block that is not copied. */
static void client_any_lease(struct lib_process *process)
{
    struct lib_lease *lease = NULL;
    struct lib_call *call = client_call_new(process);
    struct icms_request_options options;
    icms_err err;

    for (uint32_t i = 0; i < LIB_LEASES; i++)
        if (!process->leases[i].used)
            lease = &process->leases[i];
    if (call == NULL || lease == NULL) {
        if (call != NULL)
            call->used = false;
        return;
    }
    lease->used = lease->busy = true;
    call->op = SHM_OP_GET;
    client_any_keys(call, client_any_key(true), 1);
    client_any_deadline(call);
    lib_call_begin(process, call);
    client_options(call, &options);
    call->active = true;
    call->rooms[0] = POD_STAGE_BYTES;
    call->blocks[0].data = NULL;
    err = icms_lease_take(process->volumes[call->volume], &call->match_keys[0], &options,
                          &call->blocks[0].reason, &lease->lease);
    call->blocks[0].status = err;
    call->blocks[0].source = ICMS_SOURCE_DRAM; /* it is not told */
    if (err == ICMS_OK) {
        lib_lease_judge(call->keys[0], &lease->lease);
        lease->crc = crc32c(lease->lease.data, lease->lease.bytes);
        lease->release_ns =
            client_now() + (lib_chance(4) == 0 ? lib_chance(100 * MS) : lib_chance(2 * MS));
    }
    lease->used = err == ICMS_OK;
    lease->busy = false;
    lib_call_end(process, call, err == ICMS_OK || err == ICMS_PEER_DOWN ? err : ICMS_MISS);
}

/* ---- hints ---------------------------------------------------------------------------------- */

/* What an agent that lives, dies or is about to end may say of hints; has_tier: it has what they
 * are for; is_pin: there is a limit for them. */
static void client_hint_judge(const struct lib_call *call, bool has_tier, bool is_pin, icms_err err,
                              size_t taken)
{
    bool is_known = err == ICMS_OK || (err == ICMS_UNSUPPORTED && !has_tier) ||
                    (err == ICMS_LIMIT && is_pin) || err == ICMS_MISS || err == ICMS_BUSY ||
                    err == ICMS_DEADLINE || err == ICMS_NO_VOLUME || err == ICMS_PEER_DOWN;

    if (!is_known || taken > call->count || (err == ICMS_OK && taken != call->count))
        pod_fail(lib_world, POD_FAULT_ANSWER, "of %u hints %zu are taken, with %s", call->count,
                 taken, icms_err_name(err));
}

/* Says of keys that they will be asked for, and sometimes that they will not. Whatever becomes of
 * that, loads have to be right. */
static void client_any_hint(struct lib_process *process)
{
    struct lib_call *call = client_call_new(process);
    struct icms_prestage_options options;
    struct icms_volume *volume;
    size_t taken = 0;
    bool has_drive;
    icms_err err;

    if (call == NULL)
        return;
    call->op = SHM_OP_EXISTS_MANY;
    client_any_keys(call, client_any_key(lib_chance(8) != 0), client_any_count(call->op));
    client_any_deadline(call);
    lib_call_begin(process, call);
    volume = process->volumes[call->volume];
    icms_prestage_options_init(&options);
    options.timeout_ms = 1 + (uint32_t)lib_chance(50);
    options.deadline_ms = (uint32_t)lib_chance(300);
    options.priority = (uint32_t)lib_chance(ICMS_PRIORITY_MAX + 1);
    options.tier = lib_chance(3) == 0 ? ICMS_TIER_LOCAL : ICMS_TIER_DRAM;
    options.pin_seconds = lib_chance(3) == 0 ? 1 : 0;
    options.once = options.tier == ICMS_TIER_DRAM && options.pin_seconds == 0 && lib_chance(2) == 0;
    if (lib_chance(6) == 0)
        err = icms_prestage_cancel(volume, call->match_keys, call->count, &taken);
    else
        err = icms_prestage(volume, call->match_keys, call->count, &options, &taken);
    has_drive = lib_world->weather.own_drives && !process->inside;
    client_hint_judge(call, has_drive || options.tier == ICMS_TIER_DRAM, options.pin_seconds > 0,
                      err, taken);
    call->used = false;
}

/* ---- a list of jobs ------------------------------------------------------------------------- */

static bool client_job(struct lib_process *process)
{
    struct pod_client *client = process->client;
    struct lib_call *call;
    struct pod_job *job;

    if (client->jobs == NULL || client->job_next == client->job_count)
        return false;
    call = client_call_new(process);
    if (call == NULL)
        return false;
    job = &client->jobs[client->job_next++];
    call->op = job->op;
    call->flags = job->flags;
    call->keys[0] = job->key;
    call->versions[0] = job->version;
    call->volume = job->op == SHM_OP_FLUSH ? job->key : lib_world->model.keys[job->key].volume;
    call->deadline_ns = client_now() + job->deadline_ns;
    call->report = job;
    client_call_run(process, call);
    return true;
}

/* ---- threads -------------------------------------------------------------------------------- */

/* Its agent is there, and nothing of the handle is in use. */
static bool client_is_clean(const struct lib_process *process)
{
    const struct icms *icms = process->icms;
    const struct client_link *link = icms->link;

    if (icms->state != ICMS_STATE_OPEN || link == NULL || link->down || link->silent ||
        (link->sock >= 0 && lib_fd_readable(link->sock)))
        return false;
    for (uint32_t i = 0; i < CLIENT_OPS; i++)
        if (icms->ops[i].state != OP_FREE)
            return false;
    for (uint32_t i = 0; i < SHM_LEASES / 64; i++)
        if (atomic_load_explicit(&link->leases_taken[i], memory_order_relaxed) != 0)
            return false;
    for (uint32_t i = 0; i < CLIENT_BUFFERS; i++)
        if (link->buffers[i].used)
            return false;
    return link->staging.free_count == link->staging.granules && icms->calls == 0 &&
           list_empty(&icms->under_way) && list_empty(&icms->ready) && list_empty(&icms->over) &&
           list_empty(&icms->retired);
}

/* Somebody has to call, or nobody takes late answers. */
static void client_probe(struct lib_process *process)
{
    struct lib_call *call = client_call_new(process);

    if (call == NULL)
        return;
    call->op = SHM_OP_GET;
    client_any_keys(call, client_any_key(false), 1);
    call->deadline_ns = client_now() + 50 * MS;
    client_call_sync(process, call);
}

/* What a thread does in one round. */
static void client_round(struct lib_process *process)
{
    struct pod_client *client = process->client;

    client_leases_end(process, client->pace_ns == 0);
    if (client->pace_ns != 0 && client->jobs == NULL) {
        if (lib_chance(8) == 0)
            client_any_lease(process);
        else if (lib_chance(8) == 0)
            client_any_hint(process);
        else
            client_any_call(process);
        lib_sleep(lib_chance(2 * u64_max(client->pace_ns, MS)));
    } else if (!client_job(process)) {
        if (client->jobs == NULL && !client_is_clean(process))
            client_probe(process);
        lib_sleep(client->jobs == NULL ? CLIENT_RETRY : MS);
    }
}

static void client_polled(struct lib_process *process, struct icms_request *request)
{
    struct lib_call *call = icms_request_tag(request);

    check(call >= process->calls && call < process->calls + LIB_CALLS);
    if (!call->used || !call->async || call->waited || call->polled)
        pod_fail(lib_world, POD_FAULT_ANSWER, "icms_poll returns a request twice, or too early");
    call->polled = true;
    lib_call_end(process, call, icms_request_end(&request));
}

/* As an engine's loop: sleeps on the event, and takes what there is. */
static void client_poll(struct lib_process *process)
{
    const int fds[LIB_WAIT_FDS] = {icms_event_fd(process->icms), -1, -1};
    struct icms_request *request;

    if (!lib_wait_fds(fds, client_now() + CLIENT_LOOK)) {
        process->spins = 0;
        return;
    }
    request = icms_poll(process->icms);
    if (client_now() <= process->stalled_ns || process->icms->room_epoch != process->spins_epoch)
        process->spins = 0; /* a thread stands still, or others give room back */
    process->spins_epoch = process->icms->room_epoch;
    if (request == NULL && ++process->spins > CLIENT_SPINS)
        pod_fail(lib_world, POD_FAULT_ANSWER, "the event stays readable and icms_poll has nothing");
    for (; request != NULL; request = icms_poll(process->icms)) {
        process->spins = 0;
        client_polled(process, request);
    }
}

static bool client_calls_used(const struct lib_process *process)
{
    for (uint32_t i = 0; i < LIB_CALLS; i++)
        if (process->calls[i].used)
            return true;
    return false;
}

static void client_thread(struct lib_thread *thread)
{
    struct lib_process *process = thread->process;

    if (process->polls && thread->number == LIB_CALLERS - 1)
        while (process->state == LIB_PROCESS_RUNS || client_calls_used(process))
            client_poll(process);
    else
        while (process->state == LIB_PROCESS_RUNS)
            client_round(process);
}

/* A failed check: libicms closes the handle, and says so. */
static void process_log(void *arg, const char *line)
{
    if (strstr(line, "internal error") == NULL)
        return; /* its agent is gone, or another one is used */
    pod_fail(lib_world, POD_FAULT_ANSWER, "client %u: %s",
             ((struct lib_process *)arg)->client->number, line);
}

static bool client_open(struct lib_process *process)
{
    struct icms_options options;
    bool whole = true;

    icms_options_init(&options);
    options.log = process_log;
    options.log_arg = process;
    options.agent_optional = (uint32_t)lib_chance(2);
    options.buffer_bytes = (uint64_t)(64 + lib_chance(512)) << 10;
    if (icms_open(process->inside ? "pod:agent" : "unix:agent", &options, NULL, 0,
                  &process->icms) != ICMS_OK)
        return false;
    for (uint32_t i = 0; i < POD_VOLUMES; i++)
        whole = whole && icms_volume_open(process->icms, lib_world->volumes[i].name, NULL, 0,
                                          &process->volumes[i]) == ICMS_OK;
    if (!whole)
        icms_close(&process->icms);
    return whole;
}

static void client_main(struct lib_thread *thread)
{
    struct lib_process *process = thread->process;

    while (process->state == LIB_PROCESS_OPENING && !client_open(process))
        lib_sleep(CLIENT_RETRY);
    if (process->icms == NULL) {
        process->state = LIB_PROCESS_GONE;
        return;
    }
    if (process->state == LIB_PROCESS_OPENING)
        process->state = LIB_PROCESS_RUNS;
    for (uint32_t i = 1; i < LIB_CALLERS; i++)
        lib_thread_start(&process->threads[i], process, client_thread);
    client_thread(thread);
    for (uint32_t i = 1; i < LIB_CALLERS; i++)
        while (process->threads[i].state != LIB_OVER)
            lib_sleep(MS);
    client_leases_end(process, true);
    for (uint32_t i = 0; i < POD_VOLUMES; i++)
        if (lib_chance(2) == 0)
            icms_volume_close(&process->volumes[i]);
    icms_close(&process->icms);
    process->state = LIB_PROCESS_GONE;
}

/* ---- control -------------------------------------------------------------------------------- */

/* Whatever lies in the memory of its calls is no fault. */
static void client_memory_forget(struct lib_process *process)
{
    for (uint32_t i = 0; i < LIB_CALLS; i++)
        memset(process->calls[i].memory, POD_POISON, LIB_CALL_BLOCKS * POD_STAGE_BYTES);
}

/* kill -9: what its threads were about to do is not done. */
static void client_kill(struct lib_process *process)
{
    for (uint32_t i = 0; i < LIB_THREADS; i++)
        lib_thread_kill(&process->threads[i]);
    if (process->icms != NULL)
        client_killed[client_killed_count++ % CLIENT_KILLED] = process->icms;
    process->icms = NULL;
    lib_fds_close(process);
    for (uint32_t i = 0; i < LIB_CALLS; i++) {
        struct lib_call *call = &process->calls[i];

        lib_world->counts.dropped += call->active;
        call->used = call->active = false;
    }
    memset(process->leases, 0, sizeof(process->leases));
    process->killed = true;
    process->state = LIB_PROCESS_GONE;
}

static void client_start(struct lib_process *process)
{
    process->inside = lib_chance(4) == 0;
    process->polls = lib_chance(2) == 0;
    process->stalled_ns = 0;
    process->spins = 0;
    process->killed = false;
    process->state = LIB_PROCESS_OPENING;
    lib_thread_start(&process->threads[0], process, client_main);
}

/* With its agent, if that is inside: it would write into memory that nobody has. */
static void client_end(struct lib_process *process)
{
    if (process->inside)
        pod_agent_crash(process->client->agent, false);
    client_kill(process);
}

void pod_client_leave(struct pod_client *client)
{
    struct lib_process *process = client->process;
    bool runs = process->state == LIB_PROCESS_OPENING || process->state == LIB_PROCESS_RUNS;

    if (runs && lib_chance(2) == 0)
        process->state = LIB_PROCESS_CLOSING;
    else if (runs || process->state == LIB_PROCESS_CLOSING)
        client_end(process);
}

void pod_client_drive(struct pod_client *client)
{
    struct lib_process *process = client->process;

    if (client->number == 0)
        lib_conns_drive();
    if (process->inside && client->agent->state != POD_MACHINE_UP &&
        process->state != LIB_PROCESS_NONE && process->state != LIB_PROCESS_GONE)
        client_kill(process);
    if (process->state == LIB_PROCESS_GONE && lib_conns_gone(process)) {
        if (process->killed) /* its agent, which stops in order, received blocks until now */
            client_memory_forget(process);
        process->state = LIB_PROCESS_NONE;
    }
    if (process->state == LIB_PROCESS_NONE && client->agent->state == POD_MACHINE_UP)
        client_start(process);
}

void pod_client_judge(struct pod_client *client)
{
    for (uint32_t i = 0; i < LIB_CALLS; i++)
        lib_call_judge(client->process, &client->process->calls[i]);
    lib_rings_judge(client->process, true);
}

void pod_client_jobs(struct pod_client *client, struct pod_job *jobs, uint32_t count,
                     uint32_t parallel)
{
    client->jobs = jobs;
    client->job_count = count;
    client->job_next = 0;
    client->pace_ns = 0;
}

bool pod_client_idle(const struct pod_client *client)
{
    const struct lib_process *process = client->process;

    return process->state == LIB_PROCESS_RUNS && !client_calls_used(process) &&
           (client->jobs == NULL || client->job_next == client->job_count) &&
           client_is_clean(process);
}

void pod_client_agent_free(struct pod_agent *agent)
{
    lib_agent_free(agent);
}

/* The canary of the clients that are made by hand. */
bool pod_client_break_lease(struct pod_client *client)
{
    return false;
}

void pod_client_init(struct pod_client *client, struct pod_world *world, uint32_t number)
{
    struct lib_process *process = calloc(1, sizeof(*process));
    struct loop_opts opts;
    char host[48];

    check(process != NULL);
    lib_world = world;
    client->world = world;
    client->number = number;
    client->agent = &world->agents[number / POD_CLIENTS];
    client->process = process;
    process->client = client;
    for (uint32_t i = 0; i < LIB_CALLS; i++) {
        process->calls[i].memory = malloc(LIB_CALL_BLOCKS * POD_STAGE_BYTES);
        check(process->calls[i].memory != NULL);
        memset(process->calls[i].memory, POD_POISON, LIB_CALL_BLOCKS * POD_STAGE_BYTES);
    }
    (void)snprintf(host, sizeof(host), "10.3.%u.%u", client->agent->number + 1,
                   number % POD_CLIENTS + 1);
    client->node = sim_node_new(world->sim, host);
    loop_opts_init(&opts);
    check(loop_new(sim_node_env(client->node), &opts, NULL, &client->loop) == ICMS_OK);
    check(loop_start(client->loop, NULL) == ICMS_OK);
}

void pod_client_fini(struct pod_client *client)
{
    struct lib_process *process = client->process;

    client_kill(process);
    sim_node_crash(client->node, false, false);
    if (client->number == client->world->client_count - 1)
        lib_conns_free();
    for (uint32_t i = 0; i < LIB_CALLS; i++)
        free(process->calls[i].memory);
    free(process);
    client->process = NULL;
}
