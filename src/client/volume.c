/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/volume.c: volumes of a handle.
 *
 * Any thread. A view (struct volume_view) is what a volume is known by: its shards with their
 * identity, and what icms_volume_info says. Each call looks whether the newest one still holds
 * (client_volume_look), which a reset of the volume ends; views never change.
 *
 * A volume is found among the arenas of the link. A "dir:" makes one that is missing:
 * its agent takes all volumes at its start, so it is replaced, in between requests, by one that
 * knows the new volume; leases and buffers keep it from being replaced.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "client/client_int.h"

/* The shards of a volume; NULL: the agent does not have it. */
static const struct shm_arena *volume_find(const struct client_link *link, const char *name)
{
    for (uint32_t i = 0; link != NULL && i < link->arena_count; i++)
        if (strcmp(link->shards[i * link->reactor_count].name, name) == 0)
            return &link->shards[i * link->reactor_count];
    return NULL;
}

struct client_map *client_volume_map(struct client_link *link, const char *name)
{
    const struct shm_arena *arena = volume_find(link, name);

    return arena == NULL ? NULL : &link->maps[(arena - link->shards) / link->reactor_count];
}

/* Whether no reactor knows of an enclosure that has it. */
static bool volume_is_missing(const struct shm_arena *shards, uint32_t reactor_count)
{
    bool missing = true;

    for (uint32_t r = 0; r < reactor_count; r++)
        missing = missing && atomic_load_explicit(&shards[r].header->volume_missing,
                                                  memory_order_acquire) != 0;
    return missing;
}

/* "a, b, c": what there is, for the sentence of an error. */
static void volume_names(const struct client_link *link, char *out, size_t bytes)
{
    size_t at = 0;

    (void)snprintf(out, bytes, "none");
    for (uint32_t i = 0; i < link->arena_count && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, "%s%s", i == 0 ? "" : ", ",
                               link->shards[i * link->reactor_count].name);
}

/* An encrypted volume needs keys, and keys an encrypted volume: what an agent says of it never
 * turns into plain text. */
static icms_err volume_keys_check(const struct icms *icms, const struct shm_arena *arena,
                                  const struct client_keys *keys, struct err_why *why)
{
    if (arena->encrypted && keys == NULL)
        return err_set(why, ICMS_NO_KEY,
                       "cannot open volume %s: it is encrypted, and %s; list its keys in the file "
                       "that the option keys or ICMS_KEYS names",
                       arena->name,
                       icms->keys_path[0] == 0 ? "no list of keys was given"
                                               : "the list of keys does not have it");
    if (!arena->encrypted && keys != NULL)
        return err_set(why, ICMS_CONFIG,
                       "cannot open volume %s: %s has keys of it, and it is not encrypted; write "
                       "'encrypted: true' in the configuration of agent and targets, or take it "
                       "out of the list of keys",
                       arena->name, icms->keys_path);
    if (keys != NULL && sealed_plain_bytes(arena->value_bytes_max) == 0)
        return err_set(why, ICMS_PROTOCOL,
                       "cannot open volume %s: its largest value makes no sense", arena->name);
    return ICMS_OK;
}

/* Why a volume of this name cannot be used with the keys that there are, at the agent of a link.
 * Lock.
 */
static icms_err volume_refuse(const struct icms *icms, const char *name,
                              const struct shm_arena *arena, const struct client_keys *keys,
                              struct err_why *why)
{
    char names[256];

    if (arena != NULL && volume_is_missing(arena, icms->link->reactor_count))
        return err_set(why, ICMS_NO_VOLUME,
                       "no enclosure of the pod has the volume %s, or lets this host use it: name "
                       "it in the configuration of the targets, with this host's NQN among its "
                       "hosts, and with `generation` and `encrypted` as the agent has them",
                       name);
    if (arena != NULL)
        return volume_keys_check(icms, arena, keys, why);
    volume_names(icms->link, names, sizeof(names));
    return err_set(
        why, ICMS_NO_VOLUME,
        "cannot open volume %s: no such volume, or this user may not use it (known: %s); "
        "volumes, with their users and groups, are listed in the agent's configuration",
        name, names);
}

/* ---- what it is known by -------------------------------------------------------------------- */

/* A view of shards; NULL: none. NULL when there is no memory, or there were too many. Lock. */
static struct volume_view *view_new(struct icms_volume *volume, const struct shm_arena *shards,
                                    uint32_t count)
{
    struct volume_view *view;

    if (volume->view_count == CLIENT_VIEWS_MAX)
        return NULL;
    view = calloc(1, sizeof(*view) + count * sizeof(view->shards[0]));
    if (view == NULL)
        return NULL;
    volume->view_count++;
    view->shard_count = count;
    view->before = atomic_load(&volume->view);
    view->gone = ICMS_NO_VOLUME;
    if (view->before != NULL) {
        view->info = view->before->info;
        view->arena = view->before->arena;
    }
    if (count > 0) {
        memcpy(view->shards, shards, count * sizeof(view->shards[0]));
        view->arena = shards[0];
    }
    return view;
}

/* Asks all shards. False: they are changing, or some have changed and others have not. */
static bool view_identify(struct volume_view *view)
{
    for (uint32_t r = 0; r < view->shard_count; r++)
        if (!shm_arena_identify(&view->shards[r]) ||
            !uuid_equal(&view->shards[r].uuid, &view->shards[0].uuid))
            return false;
    if (view->shard_count > 0)
        view->arena = view->shards[0];
    return true;
}

static bool view_is_current(const struct volume_view *view)
{
    for (uint32_t r = 0; r < view->shard_count; r++)
        if (!shm_arena_is_current(&view->shards[r]))
            return false;
    return true;
}

/* The view is what the volume is known by from now on. Lock. */
static void view_set(struct icms_volume *volume, struct volume_view *view)
{
    const struct shm_arena *arena = &view->arena;

    view->gone = view->shard_count == 0 || uuid_is_nil(&arena->uuid)
                     ? ICMS_NO_VOLUME
                     : volume_keys_check(volume->icms, arena, volume->keys, NULL);
    if (view->gone == ICMS_OK) {
        memcpy(view->info.name, arena->name, sizeof(view->info.name));
        memcpy(view->info.uuid, arena->uuid.bytes, sizeof(view->info.uuid));
        view->info.value_bytes_max = volume->keys == NULL
                                         ? arena->value_bytes_max
                                         : sealed_plain_bytes(arena->value_bytes_max);
        view->info.run_blocks = arena->run_blocks;
        view->info.sealed = arena->sealed;
        view->info.encrypted = arena->encrypted;
    }
    atomic_store_explicit(&volume->view, view, memory_order_release);
}

/* No call is under way, or the volume is new. */
static void volume_checked_reset(struct icms_volume *volume, const struct client_link *link,
                                 const struct shm_arena *shards)
{
    free(volume->checked);
    volume->checked =
        calloc((size_t)link->reactor_count * shards->slot_count, sizeof(*volume->checked));
}

void client_volumes_refresh(struct icms *icms)
{
    list_for_each (at, &icms->volumes) {
        struct icms_volume *volume = container_of(at, struct icms_volume, link);
        const struct shm_arena *shards = volume_find(icms->link, client_view(volume)->info.name);
        struct volume_view *view;

        volume->view_count = 0;
        view = view_new(volume, shards, shards == NULL ? 0 : icms->link->reactor_count);
        if (view == NULL) { /* shards of the link before are not there any more */
            atomic_load(&volume->view)->shard_count = 0;
            atomic_load(&volume->view)->gone = ICMS_NO_VOLUME;
            continue;
        }
        volume->unsaid =
            volume_refuse(icms, view->info.name, shards, volume->keys, NULL) != ICMS_OK;
        if (shards != NULL)
            volume_checked_reset(volume, icms->link, shards);
        (void)view_identify(view); /* changing: it is gone until client_volume_look finds it */
        view_set(volume, view);
    }
}

bool client_volumes_unsaid(struct icms *icms, struct err_why *why)
{
    list_for_each (at, &icms->volumes) {
        struct icms_volume *volume = container_of(at, struct icms_volume, link);
        const char *name = client_view(volume)->info.name;

        if (!volume->unsaid)
            continue;
        volume->unsaid = false;
        if (volume_refuse(icms, name, volume_find(icms->link, name), volume->keys, why) != ICMS_OK)
            return true;
    }
    return false;
}

icms_err client_volume_look(struct icms_volume *volume)
{
    const struct volume_view *now = client_view(volume);
    struct volume_view *view;

    if (view_is_current(now))
        return now->gone;
    client_lock(volume->icms);
    now = client_view(volume); /* another thread may have looked */
    view = view_is_current(now) ? NULL : view_new(volume, now->shards, now->shard_count);
    if (view != NULL && view_identify(view)) {
        view_set(volume, view);
        now = view;
    } else if (view != NULL) { /* not for long: the next call looks again */
        volume->view_count--;
        free(view);
    }
    client_unlock(volume->icms);
    return view_is_current(now) ? now->gone : ICMS_NO_VOLUME;
}

void client_accounts_lose(struct icms *icms)
{
    for (uint32_t i = 0; i < LIMIT_AGENT_VOLUMES; i++) {
        struct client_account *account = &icms->accounts[i];
        uint64_t puts = atomic_load(&account->puts);

        if (atomic_exchange(&account->flushed, puts) != puts)
            atomic_store(&account->lost, true);
    }
}

/* The account of a volume, which stays as long as the handle; NULL when there are too many. Lock.
 */
static struct client_account *volume_account(struct icms *icms, const char *name)
{
    for (uint32_t i = 0; i < LIMIT_AGENT_VOLUMES; i++) {
        struct client_account *account = &icms->accounts[i];

        if (account->name[0] == 0)
            (void)snprintf(account->name, sizeof(account->name), "%s", name);
        if (strcmp(account->name, name) == 0)
            return account;
    }
    return NULL;
}

/* Why the agent cannot be replaced now. Lock. */
static icms_err volume_obstacle(const struct icms *icms, const char *name, struct err_why *why)
{
    if (icms->link == NULL || !client_link_used(icms->link))
        return ICMS_OK;
    return err_set(why, ICMS_BUSY,
                   "the volume %s has to be made, which needs all leases and buffers of this "
                   "handle back: open volumes first",
                   name);
}

/* Starts the agent with the volumes that the directory has now. */
static icms_err volume_start(struct icms *icms, struct err_why *why)
{
    struct client_link *link = NULL;
    icms_err err = client_local_start(icms->local, why, &link);

    if (err != ICMS_OK)
        return err;
    client_lock(icms);
    icms->link = link;
    err = client_link_watch(icms);
    client_volumes_refresh(icms);
    client_unlock(icms);
    return err;
}

/* Waits until no device reads what the agent has, as long as a copier waits at its end. */
static icms_err volume_unpin(struct icms *icms, const char *name, struct err_why *why)
{
    uint64_t until_ns = client_now_ns() + (uint64_t)DEVICE_DRAIN_MS * 1000000;
    bool gone;

    client_lock(icms);
    while (!(gone = icms->link == NULL || client_arenas_unpin(icms, icms->link)) &&
           client_now_ns() < until_ns)
        client_wait_until(icms, until_ns);
    client_unlock(icms);
    if (gone)
        return ICMS_OK;
    return err_set(why, ICMS_BUSY,
                   "the volume %s has to be made, which needs all copies to devices to be over: "
                   "open volumes first",
                   name);
}

/* dir: notes the volume and replaces the agent. The handle's state is RESTART; no lock held. */
static icms_err volume_make(struct icms *icms, const char *name, bool encrypted,
                            struct err_why *why)
{
    icms_err err;

    client_quiesce(icms);
    client_lock(icms);
    err = volume_obstacle(icms, name, why);
    client_unlock(icms);
    if (err == ICMS_OK)
        err = volume_unpin(icms, name, why);
    if (err == ICMS_OK)
        err = client_local_volume_add(icms->local, name, encrypted, why);
    if (err != ICMS_OK)
        return err;
    client_ops_reset(icms);
    client_link_free(&icms->link);
    err = volume_start(icms, why);
    if (err == ICMS_OK)
        return ICMS_OK;
    /* With the others it went: they go on without the new one. */
    client_local_volume_drop(icms->local);
    if (client_local_volumes(icms->local) != 0)
        (void)!volume_start(icms, NULL);
    return err;
}

static icms_err volume_make_once(struct icms *icms, const char *name, bool encrypted,
                                 struct err_why *why)
{
    icms_err err = ICMS_OK;
    bool make = false;

    client_lock(icms);
    while (icms->state == ICMS_STATE_RESTART)
        client_wait(icms);
    if (icms->state == ICMS_STATE_CLOSING) {
        err = ICMS_CLOSED;
    } else if (volume_find(icms->link, name) == NULL) {
        icms->state = ICMS_STATE_RESTART;
        make = true;
    }
    client_unlock(icms);
    if (!make)
        return err;
    err = volume_make(icms, name, encrypted, why);
    client_lock(icms);
    icms->state = ICMS_STATE_OPEN;
    check(pthread_cond_broadcast(&icms->changed) == 0);
    client_unlock(icms);
    return err;
}

/* shards NULL: the agent is not there. With OK the volume has the keys. Lock. */
static icms_err volume_new(struct icms *icms, const char *name, const struct shm_arena *shards,
                           struct client_keys *keys, struct icms_volume **out_volume)
{
    struct icms_volume *volume = calloc(1, sizeof(*volume));
    struct volume_view *view =
        volume == NULL ? NULL
                       : view_new(volume, shards, shards == NULL ? 0 : icms->link->reactor_count);
    icms_err err = ICMS_OK;

    if (view == NULL)
        err = ICMS_NO_MEMORY;
    else if (shards != NULL && (!view_identify(view) || uuid_is_nil(&view->arena.uuid)))
        err = ICMS_NO_VOLUME;
    else if ((volume->account = volume_account(icms, name)) == NULL)
        err = ICMS_LIMIT;
    if (err != ICMS_OK) {
        free(view);
        free(volume);
        return err;
    }
    volume->magic = CLIENT_VOLUME_MAGIC;
    volume->icms = icms;
    volume->keys = keys;
    (void)snprintf(view->info.name, sizeof(view->info.name), "%s", name);
    if (shards != NULL)
        volume_checked_reset(volume, icms->link, shards);
    view_set(volume, view);
    list_push(&icms->volumes, &volume->link);
    *out_volume = volume;
    return ICMS_OK;
}

/* Begins a call; *out_volume is set where the agent is optional and not there: no call has begun.
 */
static icms_err volume_begin(struct icms *icms, const char *name, struct client_keys *keys,
                             struct icms_volume **out_volume)
{
    icms_err err;

    do {
        err = client_call_begin(icms);
        if (err != ICMS_PEER_DOWN || icms->options.agent_optional == 0)
            return err;
        client_lock(icms);
        if (icms->link == NULL || icms->link->down)
            err = volume_new(icms, name, NULL, keys, out_volume);
        client_unlock(icms);
    } while (err == ICMS_PEER_DOWN); /* it came between the two */
    return err;
}

static icms_err volume_open(struct icms *icms, const char *name, struct client_keys *keys,
                            struct err_why *why, struct icms_volume **out_volume)
{
    const struct shm_arena *arena;
    icms_err err;

    if (name[0] == 0 || strlen(name) >= ICMS_NAME_BYTES)
        return err_set(why, ICMS_INVALID, "a volume's name has 1 to %d bytes", ICMS_NAME_BYTES - 1);
    if (icms->local != NULL && client_local_makes_volumes(icms->local)) {
        err = volume_make_once(icms, name, keys != NULL, why);
        if (err != ICMS_OK)
            return err;
    }
    err = volume_begin(icms, name, keys, out_volume);
    if (err != ICMS_OK)
        return err_set(why, err, "cannot open the volume %s: %s", name, icms_err_text(err));
    if (*out_volume != NULL)
        return ICMS_OK;
    client_lock(icms);
    arena = volume_find(icms->link, name);
    err = volume_refuse(icms, name, arena, keys, why);
    if (err == ICMS_OK) {
        err = volume_new(icms, name, arena, keys, out_volume);
        if (err == ICMS_NO_VOLUME)
            err = err_set(why, err,
                          "cannot open volume %s: the pod does not have it now, or it is being "
                          "reset; look at `icms pod volume list`, and try again",
                          name);
    }
    client_call_leave(icms);
    client_unlock(icms);
    return err;
}

struct volume_call {
    struct icms *icms;
    const char *name;
    struct client_keys *keys; /* NULL: none of it */
    struct err_why *why;
    struct icms_volume *volume;
    icms_err err;
};

static void volume_open_inside(void *arg)
{
    struct volume_call *call = arg;

    call->err = volume_open(call->icms, call->name, call->keys, call->why, &call->volume);
    if (call->err == ICMS_OK)
        client_arenas_pin(call->icms);
}

static icms_err volume_open_guarded(struct icms *icms, const char *name, struct client_keys *keys,
                                    struct err_why *why, struct icms_volume **out_volume)
{
    struct volume_call call = {.icms = icms, .name = name, .keys = keys, .why = why};

    if (!client_guarded(icms, volume_open_inside, &call))
        return err_set(why, ICMS_CLOSED, "cannot open the volume %s: %s", name,
                       icms_err_text(ICMS_CLOSED));
    if (call.err == ICMS_OK)
        *out_volume = call.volume;
    return call.err;
}

icms_err icms_volume_open(struct icms *icms, const char *name, char *why, size_t why_bytes,
                          struct icms_volume **out_volume)
{
    struct client_keys *keys = NULL;
    struct err_why sentence = {{0}};
    icms_err err = ICMS_OK;

    if (icms == NULL || name == NULL || out_volume == NULL)
        err = err_set(&sentence, ICMS_INVALID,
                      "icms_volume_open needs a handle, a name and a "
                      "place for the volume");
    else if (client_forked(icms))
        err = err_set(&sentence, ICMS_FORKED,
                      "this handle was opened before fork(): open one in "
                      "this process");
    else if (icms->keys_path[0] != 0)
        err = client_keys_load(icms->keys_path, name, &sentence, &keys);
    device_drivers_look();
    if (err == ICMS_OK)
        err = volume_open_guarded(icms, name, keys, &sentence, out_volume);
    if (err == ICMS_OK)
        client_arenas_say(icms);
    else
        client_keys_free(&keys);
    client_why(&sentence, why, why_bytes);
    return err;
}

void client_volume_free(struct icms_volume *volume)
{
    struct volume_view *view = atomic_load(&volume->view);

    volume->magic = 0;
    client_keys_free(&volume->keys);
    while (view != NULL) {
        struct volume_view *before = view->before;

        free(view);
        view = before;
    }
    free(volume->checked);
    free(volume);
}

static void volume_close_inside(void *arg)
{
    struct icms_volume *volume = arg;

    client_lock(volume->icms);
    list_remove(&volume->link);
    client_unlock(volume->icms);
    client_volume_free(volume);
}

void icms_volume_close(struct icms_volume **volume)
{
    struct icms_volume *v = volume == NULL ? NULL : *volume;

    if (v == NULL)
        return;
    *volume = NULL;
    if (v->magic != CLIENT_VOLUME_MAGIC || client_forked(v->icms))
        return;
    (void)!client_guarded(v->icms, volume_close_inside, v); /* failed: icms_close frees it */
}

void icms_volume_info(const struct icms_volume *volume, struct icms_volume_info *out_info)
{
    *out_info = client_view(volume)->info;
}

struct state_call {
    struct icms_volume *volume;
    icms_err err;
};

static void volume_state_inside(void *arg)
{
    struct state_call *call = arg;
    const struct volume_view *view;

    call->err = client_call_begin(call->volume->icms);
    if (call->err != ICMS_OK)
        return;
    call->err = client_volume_look(call->volume);
    view = client_view(call->volume);
    /* Calls ask the agent all the same: its memory may have blocks. */
    if (call->err == ICMS_OK && volume_is_missing(view->shards, view->shard_count))
        call->err = ICMS_NO_VOLUME;
    client_call_end(call->volume->icms);
}

icms_err icms_volume_state(struct icms_volume *volume)
{
    struct state_call call = {.volume = volume};

    if (volume == NULL || volume->magic != CLIENT_VOLUME_MAGIC)
        return ICMS_INVALID;
    if (client_forked(volume->icms))
        return ICMS_FORKED;
    return client_guarded(volume->icms, volume_state_inside, &call) ? call.err : ICMS_CLOSED;
}
