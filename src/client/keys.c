/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/keys.c: the keys of encrypted volumes, the contexts that use them, and private memory for
 * what was decrypted in place of the agent's.
 *
 * Keys are loaded when a volume is opened and wiped when it is closed: in between they lie in
 * memory that is in no core dump and in no child of fork(). No lock is held and no check is near
 * while they are loaded. A context is taken for the time of one value, by any thread.
 */
#include <sched.h>
#include <stdlib.h>

#include "base/check.h"
#include "client/client_int.h"
#include "conf/conf.h"
#include "crypt/volume_key.h"

/* ---- loading -------------------------------------------------------------------------------- */

void client_keys_free(struct client_keys **keys)
{
    struct client_keys *k = *keys;

    *keys = NULL;
    for (uint32_t i = 0; k != NULL && i < k->count; i++)
        secret_free(&k->keys[i].secret);
    free(k);
}

static icms_err keys_load_one(const struct conf_seal_key *from, struct err_why *why,
                              struct secret **out_secret)
{
    const struct volume_key_source source = {.file = from->file,
                                             .wrapped = from->wrapped,
                                             .kek_file = from->kek_file,
                                             .key_command = from->key_command};

    return volume_key_load(&source, why, out_secret);
}

static icms_err keys_load_volume(const struct conf_seal_volume *from, struct err_why *why,
                                 struct client_keys **out_keys)
{
    struct client_keys *keys = calloc(1, sizeof(*keys));
    icms_err err = keys == NULL ? err_set(why, ICMS_NO_MEMORY, "out of memory") : ICMS_OK;

    for (uint32_t i = 0; i < from->key_count && err == ICMS_OK; i++) {
        struct err_why cause = {{0}};

        keys->keys[i].id = from->keys[i].id;
        err = keys_load_one(&from->keys[i], &cause, &keys->keys[i].secret);
        if (err == ICMS_OK)
            keys->count++;
        else
            (void)err_set(why, err, "cannot load key %u of volume %s: %s", from->keys[i].id,
                          from->name, cause.text);
    }
    if (err != ICMS_OK) {
        client_keys_free(&keys);
        return err;
    }
    *out_keys = keys;
    return ICMS_OK;
}

icms_err client_keys_load(const char *path, const char *volume, struct err_why *why,
                          struct client_keys **out_keys)
{
    struct conf_seal *conf = calloc(1, sizeof(*conf));
    icms_err err;

    if (conf == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    err = conf_seal_read(path, why, conf);
    for (uint32_t i = 0; err == ICMS_OK && volume != NULL && i < conf->volume_count; i++)
        if (strcmp(conf->volumes[i].name, volume) == 0) {
            err = keys_load_volume(&conf->volumes[i], why, out_keys);
            break;
        }
    free(conf);
    return err;
}

const struct client_key *client_keys_find(const struct client_keys *keys, uint32_t id)
{
    for (uint32_t i = 0; i < keys->count; i++)
        if (keys->keys[i].id == id)
            return &keys->keys[i];
    return NULL;
}

/* ---- what a handle with keys has ------------------------------------------------------------ */

icms_err client_crypt_new(struct client_crypt **out_crypt)
{
    struct client_crypt *crypt = calloc(1, sizeof(*crypt));
    icms_err err = crypt == NULL ? ICMS_NO_MEMORY : ICMS_OK;

    for (uint32_t i = 0; i < CLIENT_SEALS && err == ICMS_OK; i++)
        err = seal_new(&crypt->seals[i]);
    if (err == ICMS_OK)
        err = staging_init(&crypt->staging, CLIENT_PRIVATE_BYTES);
    if (err == ICMS_OK) { /* pages that were never used take no memory */
        crypt->base = aligned_alloc(STAGING_GRANULE, CLIENT_PRIVATE_BYTES);
        err = crypt->base == NULL ? ICMS_NO_MEMORY : ICMS_OK;
    }
    if (err != ICMS_OK) {
        client_crypt_free(&crypt);
        return err;
    }
    *out_crypt = crypt;
    return ICMS_OK;
}

void client_crypt_free(struct client_crypt **crypt)
{
    struct client_crypt *c = *crypt;

    *crypt = NULL;
    if (c == NULL)
        return;
    for (uint32_t i = 0; i < CLIENT_SEALS; i++)
        seal_free(&c->seals[i]);
    staging_fini(&c->staging);
    free(c->base);
    free(c);
}

struct seal *client_seal_take(struct client_crypt *crypt, uint32_t *out_number)
{
    uint64_t taken = atomic_load_explicit(&crypt->taken, memory_order_relaxed);

    for (;;) {
        uint32_t bit;

        if (taken == UINT64_MAX) { /* as many threads as that are at it; each is done soon */
            (void)sched_yield();
            taken = atomic_load_explicit(&crypt->taken, memory_order_relaxed);
            continue;
        }
        bit = (uint32_t)__builtin_ctzll(~taken);
        if (atomic_compare_exchange_weak_explicit(&crypt->taken, &taken, taken | (uint64_t)1 << bit,
                                                  memory_order_acquire, memory_order_relaxed)) {
            *out_number = bit;
            return crypt->seals[bit];
        }
    }
}

enum seal_memory client_seal_memory(const struct icms_request *request)
{
    return request->link_used->inside != NULL ? SEAL_OWN : SEAL_SHARED;
}

void client_seal_give(struct client_crypt *crypt, uint32_t number)
{
    (void)atomic_fetch_and_explicit(&crypt->taken, ~((uint64_t)1 << number), memory_order_release);
}
