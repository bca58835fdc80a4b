/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_volume.c: icms volume erase: makes the values of an encrypted volume unreadable, and
 * shows that they do not open.
 *
 * In this order, so that a run that was cut short can be repeated: everything is planned and
 * nothing changed; the sample is read with the volume's keys, a block of this program among it, so
 * that there is something to lose; the generation is raised in the configurations that were named;
 * the files of the keys get another name and are overwritten (secret_erase); the volume goes from
 * the list of keys; the files are removed; the sample is read again, with other keys under the same
 * ids, so that a value that still lies somewhere is tried and does not open. That shows what who
 * has no key sees, and not that no copy of a key is left: what this machine cannot do is listed for
 * the operator.
 */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conf/conf.h"
#include "crypt/secret.h"
#include "crypt/volume_key.h"
#include "icms_cli.h"

/* The block that the program stores itself. */
#define PROBE_NAME "icms volume erase"

/* Two digits a byte, and some blanks: the largest file of a key. */
#define KEY_BYTES_MAX (2 * WRAPPED_KEY_BYTES + 16)

/* One key of the volume. */
struct erase_key {
    const struct conf_seal_key *conf;
    const char *path; /* of the file that goes                   */
    bool missing;     /* there was none                          */
    bool half;        /* a run that was cut short erased it      */
    bool gone;        /* it is overwritten, or there was none    */
};

/* What a sample of blocks came to. */
struct erase_sample {
    size_t readable;                 /* values that opened                     */
    size_t reasons[ICMS_MISS_COUNT]; /* the others, by the reason of the miss  */
    size_t failed;                   /* or by an error                         */
};

struct erase {
    struct cli *cli;
    const char *list; /* of keys                                     */
    struct conf_seal *seal;
    const struct conf_seal_volume *volume; /* in it; NULL: it is not listed               */
    struct erase_key keys[LIMIT_VOLUME_KEYS];
    uint32_t key_count, missing_count, half_count;
    struct secret
        *loaded[LIMIT_AGENT_VOLUMES][LIMIT_VOLUME_KEYS]; /* of the list; NULL: it could not */
    struct conf_edit list_edit;
    struct conf_edit config_edits[CLI_CONFIGS_MAX];
    uint32_t generation; /* the new one                              */
    struct cli_blocks blocks;
    struct icms_volume_info info; /* of the volume, before                    */
    struct erase_sample before, after;
    bool was_read;                    /* before is set                            */
    bool is_renewed;                  /* the tier has another generation          */
    char not_open[ERR_WHY_BYTES_MAX]; /* why the tier has no volume afterwards; ""   */
    json_t *left;                     /* sentences for the operator               */
};

static void erase_left(struct erase *erase, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void erase_left(struct erase *erase, const char *format, ...)
{
    char text[3 * LIMIT_PATH_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)json_array_append_new(erase->left, json_string(text));
}

static void erase_free(struct erase *erase)
{
    for (uint32_t i = 0; i < erase->cli->config_count; i++)
        conf_edit_fini(&erase->config_edits[i]);
    conf_edit_fini(&erase->list_edit);
    cli_blocks_free(&erase->blocks);
    json_decref(erase->left);
    for (uint32_t i = 0; i < LIMIT_AGENT_VOLUMES; i++)
        for (uint32_t j = 0; j < LIMIT_VOLUME_KEYS; j++)
            secret_free(&erase->loaded[i][j]);
    free(erase->seal);
}

/* ---- the plan ------------------------------------------------------------------------------- */

static const char *key_path(const struct conf_seal_key *key)
{
    return key->file[0] != 0 ? key->file : key->wrapped;
}

static bool same_file(const char *a, const char *b)
{
    struct stat as, bs;

    return strcmp(a, b) == 0 || (stat(a, &as) == 0 && stat(b, &bs) == 0 && as.st_dev == bs.st_dev &&
                                 as.st_ino == bs.st_ino);
}

/* Loads the keys of one volume of the list; says which of another one could not be compared. */
static uint32_t plan_load(struct erase *erase, uint32_t i)
{
    const struct conf_seal_volume *volume = &erase->seal->volumes[i];
    uint32_t count = 0;

    for (uint32_t j = 0; j < volume->key_count; j++) {
        const struct conf_seal_key *key = &volume->keys[j];
        const struct volume_key_source source = {.file = key->file,
                                                 .wrapped = key->wrapped,
                                                 .kek_file = key->kek_file,
                                                 .key_command = key->key_command};
        struct err_why why = {""};

        if (volume_key_load(&source, &why, &erase->loaded[i][j]) == ICMS_OK)
            count++;
        else if (volume != erase->volume)
            erase_left(erase,
                       "find out whether key %u of volume %s is a key of volume %s, too: it could "
                       "not be compared: %s",
                       key->id, volume->name, erase->volume->name, why.text);
    }
    return count;
}

/* Whether a key of the volume is that one. */
static bool same_key(const struct erase *erase, uint32_t own, uint32_t i, uint32_t j)
{
    struct secret *left = erase->loaded[erase->volume - erase->seal->volumes][own];
    struct secret *right = erase->loaded[i][j];

    return left != NULL && right != NULL && volume_key_same(left, right);
}

/* A key that another volume has, too, or that wraps: then more would be lost, or this one not. */
static int plan_shared(const struct erase *erase, const struct conf_seal_key *key)
{
    uint32_t own = (uint32_t)(key - erase->volume->keys);

    for (uint32_t i = 0; i < erase->seal->volume_count; i++) {
        const struct conf_seal_volume *other = &erase->seal->volumes[i];

        for (uint32_t j = 0; j < other->key_count; j++) {
            const struct conf_seal_key *with = &other->keys[j];

            if (with->kek_file[0] != 0 && same_file(key_path(key), with->kek_file))
                return cli_fail(erase->cli, ICMS_CONFIG,
                                "key %u of volume %s is the key-encryption key of key %u of volume "
                                "%s (%s): give that one another first; nothing was changed",
                                key->id, erase->volume->name, with->id, other->name,
                                with->kek_file);
            if (other != erase->volume &&
                (same_file(key_path(key), key_path(with)) || same_key(erase, own, i, j)))
                return cli_fail(erase->cli, ICMS_CONFIG,
                                "key %u of volume %s is also key %u of volume %s (%s): give that "
                                "volume a key of its own first, or erase it as well; nothing was "
                                "changed",
                                key->id, erase->volume->name, with->id, other->name,
                                key_path(with));
        }
    }
    return -1;
}

/* Whether its file can be overwritten and removed by this user. */
static int plan_key(struct erase *erase, const struct conf_seal_key *key)
{
    const char *path = key_path(key);
    char folder[LIMIT_PATH_BYTES];
    struct stat status;

    erase->keys[erase->key_count] = (struct erase_key){.conf = key, .path = path};
    if (lstat(path, &status) != 0 && errno == ENOENT) {
        struct erase_key *gone = &erase->keys[erase->key_count];

        gone->half = secret_is_erased(path);
        gone->missing = gone->gone = !gone->half;
        erase->half_count += gone->half;
        erase->missing_count += gone->missing;
        if (gone->missing) {
            erase->key_count++;
            return -1;
        }
    }
    (void)snprintf(folder, sizeof(folder), "%s", path);
    if (access(dirname(folder), W_OK) != 0 ||
        (geteuid() != 0 && lstat(path, &status) == 0 && status.st_uid != geteuid()))
        return cli_fail(erase->cli, ICMS_PERMISSION,
                        "cannot erase %s of key %u: this user may not overwrite or remove it; run "
                        "it as its owner; nothing was changed",
                        path, key->id);
    erase->key_count++;
    return plan_shared(erase, key);
}

/* The new texts of all configurations, with the same generation in each. */
static int plan_configs(struct erase *erase)
{
    const struct cli *cli = erase->cli;
    struct err_why why = {""};

    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < cli->config_count; i++) {
            icms_err err;

            conf_edit_fini(&erase->config_edits[i]);
            err = conf_generation_raise(cli->configs[i], cli->volume, erase->generation, &why,
                                        &erase->config_edits[i]);
            if (err != ICMS_OK)
                return cli_fail(cli, err, "%s; nothing was changed", why.text);
            if (erase->config_edits[i].to > erase->generation)
                erase->generation = erase->config_edits[i].to;
        }
    return -1;
}

static int plan(struct erase *erase)
{
    struct err_why why = {""};
    icms_err err = conf_seal_read(erase->list, &why, erase->seal);
    int status = -1;

    if (err != ICMS_OK)
        return cli_fail(erase->cli, err, "%s", why.text);
    for (uint32_t i = 0; i < erase->seal->volume_count; i++)
        if (strcmp(erase->seal->volumes[i].name, erase->cli->volume) == 0)
            erase->volume = &erase->seal->volumes[i];
    if (erase->volume == NULL && strncmp(erase->cli->where, "dir:", 4) == 0)
        return cli_fail(erase->cli, ICMS_NO_VOLUME, "%s has no key of a volume '%s'", erase->list,
                        erase->cli->volume);
    if (erase->volume == NULL)
        return -1;
    if (plan_load(erase, (uint32_t)(erase->volume - erase->seal->volumes)) > 0)
        for (uint32_t i = 0; i < erase->seal->volume_count; i++)
            if (&erase->seal->volumes[i] != erase->volume)
                (void)plan_load(erase, i);
    for (uint32_t i = 0; i < erase->volume->key_count && status < 0; i++)
        status = plan_key(erase, &erase->volume->keys[i]);
    if (status < 0)
        status = plan_configs(erase);
    if (status >= 0)
        return status;
    err = conf_seal_remove(erase->list, erase->cli->volume, &why, &erase->list_edit);
    return err == ICMS_OK ? -1 : cli_fail(erase->cli, err, "%s; nothing was changed", why.text);
}

/* ---- the sample ----------------------------------------------------------------------------- */

/* Reads every block of the sample. False: no memory. */
static bool sample_read(struct erase *erase, struct erase_sample *sample)
{
    struct cli *cli = erase->cli;
    struct icms_request_options options = cli_options(cli);
    void *data = malloc(cli->info.value_bytes_max);

    *sample = (struct erase_sample){0};
    for (size_t i = 0; data != NULL && i < erase->blocks.count; i++) {
        struct icms_block block = {
            .key = erase->blocks.blocks[i].key, .data = data, .bytes = cli->info.value_bytes_max};

        if (icms_get(cli->handle, &block, 1, &options) == ICMS_OK)
            sample->readable++;
        else if (block.status == ICMS_MISS && block.reason < ICMS_MISS_COUNT)
            sample->reasons[block.reason]++;
        else
            sample->failed++;
    }
    free(data);
    return data != NULL;
}

/* The program's own block: the last of the sample. */
static int probe_put(struct erase *erase)
{
    struct cli *cli = erase->cli;
    struct icms_request_options options = cli_options(cli);
    struct icms_block block = {.key = erase->blocks.blocks[erase->blocks.count - 1].key,
                               .data = (char[]){PROBE_NAME},
                               .bytes = sizeof(PROBE_NAME)};
    icms_err err;

    options.put_ack = ICMS_PUT_ON_FLASH;
    err = icms_put(cli->handle, &block, 1, &options);
    if (err == ICMS_OK)
        return -1;
    return cli_fail(cli, err,
                    "cannot store a block to prove the erasure with: %s%s%s; nothing was changed",
                    icms_err_text(err), block.reason != ICMS_MISS_NONE ? ", " : "",
                    block.reason != ICMS_MISS_NONE ? icms_miss_name(block.reason) : "");
}

static int before_read(struct erase *erase)
{
    struct cli *cli = erase->cli;
    int status = cli_open(cli, erase->blocks.blocks, erase->blocks.count);

    if (status >= 0)
        return status;
    erase->info = cli->info;
    status = probe_put(erase);
    if (status < 0 && !sample_read(erase, &erase->before))
        status = cli_fail(cli, ICMS_NO_MEMORY, "out of memory; nothing was changed");
    cli_close(cli);
    erase->was_read = true;
    if (status < 0 && erase->before.readable == 0)
        status =
            cli_fail(cli, ICMS_MISS,
                     "no block of the sample can be read, so nothing could be proven: see icms "
                     "status; nothing was changed");
    return status;
}

/* ---- other keys under the same ids ---------------------------------------------------------- */

struct decoy {
    char folder[64], list[80];
    uint32_t count;
};

static void decoy_path(const struct decoy *decoy, uint32_t number, char out[96])
{
    (void)snprintf(out, 96, "%s/%u", decoy->folder, number);
}

static void decoy_free(struct decoy *decoy)
{
    char path[96];

    for (uint32_t i = 0; i < decoy->count; i++) {
        decoy_path(decoy, i, path);
        (void)unlink(path);
    }
    (void)unlink(decoy->list);
    (void)rmdir(decoy->folder);
}

/* A list with a new random key for each id that the volume had; 1 when that is not known. */
static bool decoy_make(const struct erase *erase, struct decoy *decoy)
{
    uint8_t key[SEAL_KEY_BYTES];
    char path[96], text[LIMIT_VOLUME_KEYS * 160 + 256];
    size_t n;

    *decoy = (struct decoy){.folder = "/tmp/icms-erase-XXXXXX"};
    if (mkdtemp(decoy->folder) == NULL)
        return false;
    (void)snprintf(decoy->list, sizeof(decoy->list), "%s/list", decoy->folder);
    n = (size_t)snprintf(text, sizeof(text), "volumes:\n  - name: %s\n    keys:\n",
                         erase->cli->volume);
    for (uint32_t i = 0; i == 0 || i < erase->key_count; i++) {
        decoy_path(decoy, i, path);
        secret_random(key, sizeof(key));
        if (secret_write(path, key, sizeof(key), NULL) != ICMS_OK)
            return false;
        decoy->count++;
        n += (size_t)snprintf(text + n, sizeof(text) - n, "      - {id: %u, file: %s}\n",
                              erase->volume != NULL ? erase->keys[i].conf->id : 1, path);
    }
    return secret_write(decoy->list, text, n, NULL) == ICMS_OK;
}

/* Opens the volume as whoever has no key does, and reads the sample. */
static int after_read(struct erase *erase)
{
    struct cli *cli = erase->cli;
    struct icms_options options;
    struct decoy decoy;
    icms_err err = ICMS_IO;
    int status = -1;

    if (decoy_make(erase, &decoy)) {
        icms_options_init(&options);
        options.keys = decoy.list;
        err = icms_open(cli->where, &options, erase->not_open, sizeof(erase->not_open), &cli->icms);
        if (err == ICMS_OK)
            err = icms_volume_open(cli->icms, cli->volume, erase->not_open, sizeof(erase->not_open),
                                   &cli->handle);
    } else {
        status = cli_fail(cli, ICMS_IO, "cannot make a list of other keys in /tmp");
    }
    if (err == ICMS_OK) {
        icms_volume_info(cli->handle, &cli->info);
        erase->is_renewed = erase->was_read &&
                            memcmp(cli->info.uuid, erase->info.uuid, sizeof(erase->info.uuid)) != 0;
        for (size_t i = 0; !erase->was_read && i < erase->blocks.count; i++)
            cli_key_of_volume(cli, &erase->blocks.blocks[i].key);
        if (!sample_read(erase, &erase->after))
            status = cli_fail(cli, ICMS_NO_MEMORY, "out of memory");
    } else if (status < 0 && (!erase->was_read || err != ICMS_NO_VOLUME)) {
        status = cli_fail(cli, err, "%s", erase->not_open);
    }
    cli_close(cli);
    decoy_free(&decoy);
    return status;
}

/* ---- the erasure ---------------------------------------------------------------------------- */

static int erase_run(struct erase *erase)
{
    const struct cli *cli = erase->cli;
    struct err_why why = {""};
    icms_err err = ICMS_OK;

    for (uint32_t i = 0; i < cli->config_count && err == ICMS_OK; i++)
        err = conf_edit_write(cli->configs[i], &erase->config_edits[i], &why);
    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s; no key was erased", why.text);
    for (uint32_t i = 0; i < erase->key_count && err == ICMS_OK; i++) {
        if (!erase->keys[i].gone)
            err = secret_erase(erase->keys[i].path, KEY_BYTES_MAX, &why);
        erase->keys[i].gone = err == ICMS_OK;
    }
    if (err == ICMS_OK)
        err = conf_edit_write(erase->list, &erase->list_edit, &why);
    for (uint32_t i = 0; i < erase->key_count && err == ICMS_OK; i++) {
        if (!erase->keys[i].missing)
            err = secret_erased_remove(erase->keys[i].path, &why);
        if (err == ICMS_NOT_FOUND) /* the same file under two ids */
            err = ICMS_OK;
    }
    return err == ICMS_OK ? -1
                          : cli_fail(cli, err, "%s; run it again when that is mended", why.text);
}

/* ---- what is left for the operator ---------------------------------------------------------- */

static void left_keys(struct erase *erase)
{
    for (uint32_t i = 0; i < erase->key_count; i++) {
        const struct conf_seal_key *key = erase->keys[i].conf;

        if (erase->keys[i].missing)
            erase_left(erase, "find out where %s is: it was not there, so nothing overwrote it",
                       erase->keys[i].path);
        if (key->key_command[0] != 0)
            erase_left(erase,
                       "delete the key-encryption key of key %u in the system behind %s: until "
                       "then each copy of %s can be unwrapped",
                       key->id, key->key_command, key->wrapped);
        else if (key->kek_file[0] != 0)
            erase_left(erase,
                       "%s stays, for it may wrap other keys: with it each copy of %s can be "
                       "unwrapped",
                       key->kek_file, key->wrapped);
    }
    erase_left(erase,
               "end or restart every process that has volume %s open: it has the keys in memory",
               erase->cli->volume);
    erase_left(erase,
               "erase copies of the keys, and take volume %s out of the lists of keys, on other "
               "machines, of other users and in backups",
               erase->cli->volume);
}

static void left_generation(struct erase *erase)
{
    const struct cli *cli = erase->cli;

    if (strncmp(cli->where, "dir:", 4) == 0)
        return;
    if (cli->config_count == 0)
        erase_left(erase,
                   "raise the generation of volume %s by one in the configuration of every target "
                   "and agent, and restart them: until then exists and match find blocks that "
                   "nobody can read",
                   cli->volume);
    else
        erase_left(erase,
                   "write generation %u for volume %s in the configuration of all other targets "
                   "and agents, and restart all%s",
                   erase->generation, cli->volume,
                   erase->is_renewed ? "" : ": this tier still has the former one");
}

/* ---- answers -------------------------------------------------------------------------------- */

static json_t *sample_json(const struct erase_sample *sample, size_t count)
{
    json_t *reasons = json_object();

    for (int i = 0; i < ICMS_MISS_COUNT; i++)
        if (sample->reasons[i] > 0)
            (void)json_object_set_new(reasons, icms_miss_name((enum icms_miss)i),
                                      json_integer((json_int_t)sample->reasons[i]));
    return json_pack("{s:I, s:I, s:o, s:I}", "tried", (json_int_t)count, "readable",
                     (json_int_t)sample->readable, "missed", reasons, "failed",
                     (json_int_t)sample->failed);
}

static void answer_json(const struct erase *erase, bool done)
{
    const struct cli *cli = erase->cli;
    json_t *keys = json_array(), *configs = json_array();
    json_t *root = json_pack("{s:s, s:b, s:s, s:o, s:o, s:O}", "volume", cli->volume, "erased",
                             done && erase->volume != NULL, "list", erase->list, "keys", keys,
                             "configurations", configs, "left", erase->left);

    for (uint32_t i = 0; i < erase->key_count; i++)
        (void)json_array_append_new(
            keys, json_pack("{s:I, s:s, s:b, s:b}", "id", (json_int_t)erase->keys[i].conf->id,
                            "file", erase->keys[i].path, "gone", erase->keys[i].gone, "missing",
                            erase->keys[i].missing));
    for (uint32_t i = 0; i < cli->config_count && erase->volume != NULL; i++)
        (void)json_array_append_new(configs,
                                    json_pack("{s:s, s:I, s:I}", "file", cli->configs[i],
                                              "generation", (json_int_t)erase->config_edits[i].to,
                                              "former", (json_int_t)erase->config_edits[i].from));
    if (erase->was_read)
        (void)json_object_set_new(root, "before", sample_json(&erase->before, erase->blocks.count));
    if (done) {
        (void)json_object_set_new(root, "after", sample_json(&erase->after, erase->blocks.count));
        (void)json_object_set_new(root, "renewed", json_boolean(erase->is_renewed));
        (void)json_object_set_new(root, "not_open", json_string(erase->not_open));
    }
    cli_json_print(root);
    json_decref(root);
}

static void print_sample(const char *when, const struct erase_sample *sample, size_t count)
{
    (void)printf("%s: %zu of %zu blocks readable", when, sample->readable, count);
    for (int i = 0; i < ICMS_MISS_COUNT; i++)
        if (sample->reasons[i] > 0)
            (void)printf(", %zu %s", sample->reasons[i], icms_miss_name((enum icms_miss)i));
    if (sample->failed > 0)
        (void)printf(", %zu failed", sample->failed);
    (void)printf("\n");
}

static void answer_text(const struct erase *erase, bool done)
{
    const struct cli *cli = erase->cli;
    size_t at;
    json_t *line;

    for (uint32_t i = 0; i < erase->key_count; i++)
        (void)printf("key %u: %s %s\n", erase->keys[i].conf->id, erase->keys[i].path,
                     erase->keys[i].missing ? "is not there, so nothing overwrites it"
                     : erase->keys[i].half && done
                         ? "overwritten again, after a run that was cut short, and removed"
                     : erase->keys[i].half
                         ? "was being erased by a run that was cut short; it would be overwritten "
                           "again and removed"
                     : done ? "overwritten and removed"
                            : "would be overwritten and removed");
    if (erase->volume != NULL)
        (void)printf("%s: volume %s %s\n", erase->list, cli->volume,
                     done ? "taken out" : "would be taken out");
    else
        (void)printf("%s: no key of volume %s, so there is nothing to erase\n", erase->list,
                     cli->volume);
    for (uint32_t i = 0; i < cli->config_count && erase->volume != NULL; i++)
        (void)printf("%s: generation %u %s %u\n", cli->configs[i], erase->config_edits[i].from,
                     done ? "raised to" : "would be raised to", erase->config_edits[i].to);
    if (erase->was_read)
        print_sample("before", &erase->before, erase->blocks.count);
    if (!done) {
        (void)printf("nothing was changed; to erase it for good, add --yes\n");
        return;
    }
    print_sample("after, with other keys", &erase->after, erase->blocks.count);
    if (erase->not_open[0] != 0)
        (void)printf("after: %s\n", erase->not_open);
    (void)printf("left to do:\n");
    json_array_foreach(erase->left, at, line)(void) printf("  - %s\n", json_string_value(line));
}

static void answer(const struct erase *erase, bool done)
{
    if (erase->cli->json)
        answer_json(erase, done);
    else if (!erase->cli->quiet)
        answer_text(erase, done);
}

/* ---- the command ---------------------------------------------------------------------------- */

static int erase_volume(struct erase *erase)
{
    int status = plan(erase);

    if (status < 0 && erase->volume != NULL &&
        erase->missing_count + erase->half_count == 0) /* else nobody opens it */
        status = before_read(erase);
    if (status < 0 && !erase->cli->yes && erase->volume != NULL) {
        answer(erase, false);
        return CLI_DONE;
    }
    if (status < 0 && erase->volume != NULL)
        status = erase_run(erase);
    if (status < 0)
        status = after_read(erase);
    if (status >= 0)
        return status;
    left_keys(erase);
    left_generation(erase);
    answer(erase, true);
    return erase->after.readable == 0 && erase->after.failed == 0 && erase->missing_count == 0
               ? CLI_DONE
               : CLI_MISSED;
}

/* The keys of the command line, those of standard input for "-", and the program's own. */
static int erase_blocks(struct cli *cli, struct cli_blocks *blocks)
{
    bool from_stdin = cli->argc == 1 && strcmp(cli->argv[0], "-") == 0;
    int status = -1;

    if (from_stdin)
        cli->argc = 0;
    if (from_stdin || cli->argc > 0)
        status = cli_blocks_read(cli, from_stdin, blocks);
    return status < 0 ? cli_blocks_add_name(cli, blocks, PROBE_NAME) : status;
}

static int volume_run(int argc, char **argv)
{
    const char *list;
    struct cli cli;
    struct erase erase = {.cli = &cli};
    int status = cli_parse(&cli_volume, argc, argv, &cli);

    if (status >= 0)
        return status;
    if (cli.argc > 0 && cli_volume_is_of_file(cli.argv[0]))
        return cli_volume_file(&cli);
    if (cli.argc < 1 || strcmp(cli.argv[0], "erase") != 0)
        return cli_usage(&cli, "it takes 'list', 'create', 'set', 'reset', 'delete' or 'erase'");
    if (cli.file != NULL || cli.dry_run || cli.pod != NULL)
        return cli_usage(&cli, "--file, --pod and --dry-run are not for erase, which takes "
                               "--config");
    cli.argc--;
    cli.argv++;
    if (!cli.volume_named)
        return cli_usage(&cli, "name the volume with --volume: there is no default for this");
    if (strlen(cli.volume) >= LIMIT_NAME_BYTES)
        return cli_usage(&cli, "--volume: a name has at most %d bytes", LIMIT_NAME_BYTES - 1);
    list = cli.keys != NULL ? cli.keys : secure_getenv("ICMS_KEYS");
    if (list == NULL || list[0] == 0)
        return cli_usage(&cli, "name the list of keys with --keys or ICMS_KEYS");
    erase.list = list;
    erase.seal = calloc(1, sizeof(*erase.seal));
    erase.left = json_array();
    if (erase.seal == NULL || erase.left == NULL)
        status = cli_fail(&cli, ICMS_NO_MEMORY, "out of memory");
    if (status < 0)
        status = erase_blocks(&cli, &erase.blocks);
    if (status < 0)
        status = erase_volume(&erase);
    erase_free(&erase);
    return status;
}

const struct cli_command cli_volume = {
    .name = "volume",
    .summary = "list, change and erase volumes",
    .takes = CLI_TAKES_TIER | CLI_TAKES_KEYS | CLI_TAKES_ERASE | CLI_TAKES_VOLUMES,
    .run = volume_run,
    .help =
        "usage: icms volume list [--file FILE] [options]\n"
        "       icms volume create|set NAME [KEY=VALUE ...] [--file FILE] [--pod FILE] [options]\n"
        "       icms volume reset|delete NAME --yes [--file FILE] [--pod FILE] [options]\n"
        "       icms volume erase --volume NAME [options] [KEY ... | -]\n"
        "Show or change the volumes of a target's file: what would change is shown, then the\n"
        "file is written. Send SIGHUP to its icms-target, which applies it while it runs.\n\n"
        "  list    the volumes of the file\n"
        "  create  a new volume, with values as in its configuration: quota=1TiB; after a\n"
        "          delete of its name with generation=N, higher than it had, or the old\n"
        "          blocks are found again\n"
        "  set     other values; KEY= takes it out of the file; a list is written [A, B];\n"
        "          sealed and encrypted stay as they were created\n"
        "  reset   raise the generation by one: everything before is unreachable at once\n"
        "  delete  the volume goes\n\n"
        "      --file FILE      of the target; default /etc/icms/target.yaml\n"
        "      --pod FILE       the pod map, which is changed with it: both are planned before\n"
        "                       one is written, and have the same generation afterwards\n"
        "      --dry-run        show what would change, and change nothing\n"
        "      --yes            reset, delete, set of a lower quota: although blocks are lost;\n"
        "                       set of a smaller value_max: although larger blocks are no longer\n"
        "                       stored; set of hosts and of a lower require: although more or\n"
        "                       fewer hosts may use it\n\n"
        "erase: make all values of an encrypted volume unreadable, wherever they lie: overwrite "
        "and\n"
        "remove the files of its keys, take it out of the list of keys, raise its generation.\n"
        "Read the blocks under each KEY and one that it stores itself before and after, and\n"
        "count how many can be read. Without --yes say what would be done, and change nothing.\n\n"
        "KEY is 1 to 16 bytes of text, or 0x and hex; - reads them from standard input, one\n"
        "a line.\n\n"
        "  -v, --volume NAME    the volume; there is no default\n"
        "      --keys FILE      the list of keys; default $ICMS_KEYS\n"
        "      --config FILE    configuration of a target or an agent on this machine, in which\n"
        "                       the generation is raised; may be repeated\n"
        "      --yes            erase: do it; it cannot be undone\n"
        "  -o, --open WHERE     unix:SOCKET, pod:FILE or dir:DIRECTORY; default $ICMS_OPEN, else\n"
        "                       the agent at $ICMS_SOCKET or at the default socket\n"
        "  -d, --deadline TIME  500ms, 2s; default: the agent's\n"
        "      --hex            keys are hex, as with 0x in front\n"
        "      --name           keys are names of any length\n"
        "      --json           answer with JSON\n"
        "  -q, --quiet          no answer but the exit status\n"
        "  -h, --help           print this\n"
        "\nExit status: 0 done and no block is readable, 1 it failed, one is, or the file of a\n"
        "key was not there, 2 usage or connection.\n",
};
