/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/volume.c: volumes of a handle.
 *
 * Any thread. A volume is found among the arenas of the link. A "dir:" makes one that is missing:
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

/* Whether no reactor knows of an enclosure that has it. */
static bool volume_is_missing(const struct client_link *link, const struct shm_arena *shards)
{
    bool missing = true;

    for (uint32_t r = 0; r < link->reactor_count; r++)
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

/* The volume lies in these shards now. */
static void volume_shards_set(struct icms_volume *volume, const struct client_link *link,
                              const struct shm_arena *shards)
{
    volume->arena = *shards;
    volume->shards = shards;
    free(volume->checked);
    volume->checked =
        calloc((size_t)link->reactor_count * shards->slot_count, sizeof(*volume->checked));
}

void client_volumes_refresh(struct icms *icms)
{
    list_for_each (at, &icms->volumes) {
        struct icms_volume *volume = container_of(at, struct icms_volume, link);
        const struct shm_arena *arena = volume_find(icms->link, volume->info.name);

        volume->gone = arena == NULL || arena->encrypted != (volume->keys != NULL) ||
                       (arena->encrypted && sealed_plain_bytes(arena->value_bytes_max) == 0) ||
                       memcmp(arena->uuid.bytes, volume->info.uuid, sizeof(volume->info.uuid)) != 0;
        if (!volume->gone)
            volume_shards_set(volume, icms->link, arena);
    }
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
static struct client_account *volume_account(struct icms *icms, const struct uuid *uuid)
{
    for (uint32_t i = 0; i < LIMIT_AGENT_VOLUMES; i++) {
        struct client_account *account = &icms->accounts[i];

        if (account->used && uuid_equal(&account->uuid, uuid))
            return account;
        if (!account->used) {
            account->used = true;
            account->uuid = *uuid;
            return account;
        }
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

/* With OK the volume has the keys. Lock. */
static icms_err volume_new(struct icms *icms, const struct shm_arena *arena,
                           struct client_keys *keys, struct icms_volume **out_volume)
{
    struct client_account *account = volume_account(icms, &arena->uuid);
    struct icms_volume *volume;

    if (account == NULL)
        return ICMS_LIMIT;
    volume = calloc(1, sizeof(*volume));
    if (volume == NULL)
        return ICMS_NO_MEMORY;
    volume->magic = CLIENT_VOLUME_MAGIC;
    volume->icms = icms;
    volume->account = account;
    volume_shards_set(volume, icms->link, arena);
    memcpy(volume->info.name, arena->name, sizeof(volume->info.name));
    memcpy(volume->info.uuid, arena->uuid.bytes, sizeof(volume->info.uuid));
    volume->keys = keys;
    volume->info.value_bytes_max = client_value_bytes_max(volume);
    volume->info.run_blocks = arena->run_blocks;
    volume->info.sealed = arena->sealed;
    volume->info.encrypted = arena->encrypted;
    list_push(&icms->volumes, &volume->link);
    *out_volume = volume;
    return ICMS_OK;
}

static icms_err volume_open(struct icms *icms, const char *name, struct client_keys *keys,
                            struct err_why *why, struct icms_volume **out_volume)
{
    const struct shm_arena *arena;
    char names[256];
    icms_err err;

    if (name[0] == 0 || strlen(name) >= ICMS_NAME_BYTES)
        return err_set(why, ICMS_INVALID, "a volume's name has 1 to %d bytes", ICMS_NAME_BYTES - 1);
    if (icms->local != NULL && client_local_makes_volumes(icms->local)) {
        err = volume_make_once(icms, name, keys != NULL, why);
        if (err != ICMS_OK)
            return err;
    }
    err = client_call_begin(icms);
    if (err != ICMS_OK)
        return err_set(why, err, "cannot open the volume %s: %s", name, icms_err_text(err));
    client_lock(icms);
    arena = volume_find(icms->link, name);
    if (arena != NULL && volume_is_missing(icms->link, arena)) {
        err =
            err_set(why, ICMS_NO_VOLUME,
                    "no enclosure of the pod has the volume %s, or lets this host use it: name it "
                    "in the configuration of the targets, with this host's NQN among its hosts",
                    name);
    } else if (arena != NULL) {
        err = volume_keys_check(icms, arena, keys, why);
        if (err == ICMS_OK)
            err = volume_new(icms, arena, keys, out_volume);
    } else {
        volume_names(icms->link, names, sizeof(names));
        err = err_set(why, ICMS_NO_VOLUME,
                      "cannot open volume %s: no such volume, or not allowed for this host (known: "
                      "%s); volumes are listed in the agent's configuration",
                      name, names);
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
    if (err == ICMS_OK)
        err = volume_open_guarded(icms, name, keys, &sentence, out_volume);
    if (err != ICMS_OK)
        client_keys_free(&keys);
    client_why(&sentence, why, why_bytes);
    return err;
}

void client_volume_free(struct icms_volume *volume)
{
    volume->magic = 0;
    client_keys_free(&volume->keys);
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
    *out_info = volume->info;
}
