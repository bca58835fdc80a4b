/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the plugin: parameters as NIXL hands them over, with a table of defaults for each
 * backend, and for DOCA_MEMOS the file that says what its devices stand for. Keys of objects.
 * Called by plugin.cpp when a backend is created or an object registered, on the caller's thread.
 *
 * A parameter that is not in the table is an error, not ignored; an empty value is the default.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/err.h"
#include "conf/conf.h"
#include "nixl/nixl.h"

#define CONFIG_DEFAULT "/etc/icms/nixl.yaml"

#define DEADLINE_MS_MAX 3600000ul
#define BLOCKS_MAX_MAX  ((unsigned long)1 << 20)

/* What a backend's parameters are while they are read. */
struct reading {
    struct nixl_settings settings;
    const char *device; /* device_name, or ""  */
    const char *nguid;  /* "" is all zeros     */
    struct err_why why;
};

struct option {
    const char *name;
    const char *fallback[2]; /* by enum nixl_backend; NULL: this backend has no such parameter */
    /* CONFIG with a sentence when the value is wrong. The value lives as long as the reading. */
    icms_err (*take)(struct reading *reading, const char *name, const char *value);
};

/* ---- values --------------------------------------------------------------------------------- */

static icms_err number_parse(struct reading *reading, const char *name, const char *value,
                             unsigned long max, uint32_t *out)
{
    char *end = NULL;
    unsigned long number;

    errno = 0;
    number = isdigit((unsigned char)value[0]) ? strtoul(value, &end, 10) : 0;
    if (number == 0 || number > max || errno != 0 || *end != '\0')
        return err_set(&reading->why, ICMS_CONFIG, "%s is '%.40s': write a number from 1 to %lu",
                       name, value, max);
    *out = (uint32_t)number;
    return ICMS_OK;
}

/* One of two words. */
static icms_err word_parse(struct reading *reading, const char *name, const char *value,
                           const char *no, const char *yes, bool *out)
{
    *out = strcmp(value, yes) == 0;
    if (*out || strcmp(value, no) == 0)
        return ICMS_OK;
    return err_set(&reading->why, ICMS_CONFIG, "%s is '%.40s': write %s or %s", name, value, no,
                   yes);
}

static icms_err text_take(struct reading *reading, const char *name, const char *value, char *out,
                          size_t bytes)
{
    if (strlen(value) >= bytes)
        return err_set(&reading->why, ICMS_CONFIG, "%s is too long: it has at most %zu characters",
                       name, bytes - 1);
    memcpy(out, value, strlen(value) + 1);
    return ICMS_OK;
}

static icms_err take_connection(struct reading *reading, const char *name, const char *value)
{
    return text_take(reading, name, value, reading->settings.connection,
                     sizeof(reading->settings.connection));
}

static icms_err take_keys(struct reading *reading, const char *name, const char *value)
{
    return text_take(reading, name, value, reading->settings.keys, sizeof(reading->settings.keys));
}

static icms_err take_volume(struct reading *reading, const char *name, const char *value)
{
    return text_take(reading, name, value, reading->settings.volume,
                     sizeof(reading->settings.volume));
}

static icms_err take_load_deadline(struct reading *reading, const char *name, const char *value)
{
    return number_parse(reading, name, value, DEADLINE_MS_MAX, &reading->settings.load_deadline_ms);
}

static icms_err take_store_deadline(struct reading *reading, const char *name, const char *value)
{
    return number_parse(reading, name, value, DEADLINE_MS_MAX,
                        &reading->settings.store_deadline_ms);
}

static icms_err take_key_form(struct reading *reading, const char *name, const char *value)
{
    bool hex;
    icms_err err = word_parse(reading, name, value, "name", "hex", &hex);

    reading->settings.key_form = hex ? NIXL_KEY_HEX : NIXL_KEY_NAME;
    return err;
}

static icms_err take_put_ack(struct reading *reading, const char *name, const char *value)
{
    bool flash;
    icms_err err = word_parse(reading, name, value, "accepted", "flash", &flash);

    reading->settings.put_ack = flash ? ICMS_PUT_ON_FLASH : ICMS_PUT_ACCEPTED;
    return err;
}

static icms_err take_num_tasks(struct reading *reading, const char *name, const char *value)
{
    return number_parse(reading, name, value, BLOCKS_MAX_MAX, &reading->settings.blocks_max);
}

static icms_err take_query_mode(struct reading *reading, const char *name, const char *value)
{
    return word_parse(reading, name, value, "actual", "assume_success",
                      &reading->settings.query_assume);
}

static icms_err take_ignore(struct reading *reading, const char *name, const char *value)
{
    return word_parse(reading, name, value, "false", "true", &reading->settings.absent_is_zeros);
}

static icms_err take_device(struct reading *reading, const char *name, const char *value)
{
    reading->device = value;
    return ICMS_OK;
}

static icms_err take_nguid(struct reading *reading, const char *name, const char *value)
{
    reading->nguid = value;
    return ICMS_OK;
}

/* ---- the table of parameters ---------------------------------------------------------------- */

static const struct option options[] = {
    {"connection", {"unix:", NULL}, take_connection},
    {"volume", {"", NULL}, take_volume},
    {"keys", {"", NULL}, take_keys},
    {"deadline_ms", {"2000", NULL}, take_load_deadline},
    {"store_deadline_ms", {"10000", NULL}, take_store_deadline},
    {"key_form", {"name", NULL}, take_key_form},
    {"put_ack", {"flash", NULL}, take_put_ack},
    {"device_name", {NULL, ""}, take_device},
    {"nguid", {NULL, ""}, take_nguid},
    {"num_tasks", {"8192", "8192"}, take_num_tasks},
    {"query_mem_mode", {"actual", "assume_success"}, take_query_mode},
    {"ignore_read_not_found", {"false", "false"}, take_ignore},
};
#define OPTIONS (sizeof(options) / sizeof(options[0]))

bool nixl_settings_default(enum nixl_backend backend, size_t index, struct nixl_param *out_param)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        if (options[i].fallback[backend] == NULL || index-- != 0)
            continue;
        *out_param = (struct nixl_param){options[i].name, options[i].fallback[backend]};
        return true;
    }
    return false;
}

static icms_err param_unknown(struct reading *reading, enum nixl_backend backend, const char *name)
{
    char list[ERR_WHY_BYTES_MAX / 2] = "";
    size_t used = 0;
    struct nixl_param param;

    for (size_t i = 0; used < sizeof(list) && nixl_settings_default(backend, i, &param); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "",
                                 param.name);
    return err_set(&reading->why, ICMS_CONFIG, "there is no parameter '%.40s'; there are %s", name,
                   list);
}

/* The value that was handed over, or the default. */
static icms_err option_read(struct reading *reading, enum nixl_backend backend,
                            const struct option *option, const struct nixl_param *params,
                            size_t count)
{
    const char *value = option->fallback[backend];

    for (size_t i = 0; i < count; i++)
        if (strcmp(params[i].name, option->name) == 0 && params[i].value[0] != '\0')
            value = params[i].value;
    return option->take(reading, option->name, value);
}

static bool param_known(enum nixl_backend backend, const char *name)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (options[i].fallback[backend] != NULL && strcmp(options[i].name, name) == 0)
            return true;
    return false;
}

/* ---- DOCA_MEMOS ----------------------------------------------------------------------------- */

static const struct conf_nixl_device *device_find(const struct conf_nixl *conf, const char *name)
{
    for (uint32_t i = 0; i < conf->device_count; i++)
        if (strcmp(conf->devices[i].name, name) == 0)
            return &conf->devices[i];
    return NULL;
}

static const struct conf_nixl_volume *volume_find(const struct conf_nixl_device *device,
                                                  const struct uuid *nguid)
{
    for (uint32_t i = 0; i < device->volume_count; i++)
        if (uuid_equal(&device->volumes[i].nguid_bytes, nguid))
            return &device->volumes[i];
    return NULL;
}

/* Takes device_name and nguid to a connection and a volume. */
static icms_err devices_apply(struct reading *reading, const char *path,
                              const struct conf_nixl *conf)
{
    const struct conf_nixl_device *device = device_find(conf, reading->device);
    const struct conf_nixl_volume *volume;
    struct nixl_settings *settings = &reading->settings;
    struct uuid nguid = {0};

    if (device == NULL)
        return err_set(&reading->why, ICMS_CONFIG,
                       "the device_name '%.200s' is not in %s: add it there", reading->device,
                       path);
    if (reading->nguid[0] != '\0' && !conf_nguid_parse(reading->nguid, &nguid))
        return err_set(&reading->why, ICMS_CONFIG, "nguid is '%.40s': it has 32 hex digits",
                       reading->nguid);
    volume = volume_find(device, &nguid);
    if (volume == NULL)
        return err_set(&reading->why, ICMS_CONFIG,
                       "%s has no volume for the nguid %s of the device %.200s: add it there", path,
                       reading->nguid[0] != '\0' ? reading->nguid : "of all zeros",
                       reading->device);
    memcpy(settings->connection, device->connection, sizeof(device->connection));
    memcpy(settings->keys, device->keys, sizeof(device->keys));
    memcpy(settings->volume, volume->name, sizeof(volume->name));
    memcpy(settings->uuid, volume->uuid.bytes, sizeof(settings->uuid));
    settings->load_deadline_ms = device->load_deadline_ms;
    settings->store_deadline_ms = device->store_deadline_ms;
    settings->key_form = NIXL_KEY_HEX;
    settings->put_ack = ICMS_PUT_ON_FLASH;
    return ICMS_OK;
}

static icms_err devices_read(struct reading *reading)
{
    const char *path = secure_getenv("ICMS_NIXL_CONFIG");
    struct conf_nixl *conf;
    icms_err err;

    if (reading->device[0] == '\0')
        return err_set(&reading->why, ICMS_CONFIG,
                       "device_name is missing, as in device_name=/dev/nvme0n1");
    if (path == NULL || path[0] == '\0')
        path = CONFIG_DEFAULT;
    conf = malloc(sizeof(*conf));
    if (conf == NULL)
        return err_set(&reading->why, ICMS_NO_MEMORY, "out of memory");
    err = conf_nixl_read(path, &reading->why, conf);
    if (err == ICMS_OK)
        err = devices_apply(reading, path, conf);
    free(conf);
    return err;
}

static icms_err settings_read(enum nixl_backend backend, const struct nixl_param *params,
                              size_t count, struct reading *reading)
{
    icms_err err = ICMS_OK;

    for (size_t i = 0; i < count; i++)
        if (!param_known(backend, params[i].name))
            return param_unknown(reading, backend, params[i].name);
    for (size_t i = 0; i < OPTIONS && err == ICMS_OK; i++)
        if (options[i].fallback[backend] != NULL)
            err = option_read(reading, backend, &options[i], params, count);
    if (err == ICMS_OK && backend == NIXL_DOCA_MEMOS)
        err = devices_read(reading);
    if (err == ICMS_OK && reading->settings.volume[0] == '\0')
        err = err_set(&reading->why, ICMS_CONFIG, "volume is missing, as in volume=kv");
    return err;
}

icms_err nixl_settings_read(enum nixl_backend backend, const struct nixl_param *params,
                            size_t count, char *why, size_t why_bytes,
                            struct nixl_settings *out_settings)
{
    struct reading reading = {.device = "", .nguid = ""};
    icms_err err = settings_read(backend, params, count, &reading);

    _Static_assert(sizeof(reading.settings.connection) ==
                       sizeof(((struct conf_nixl_device *)0)->connection),
                   "copied whole");
    _Static_assert(sizeof(reading.settings.keys) == sizeof(((struct conf_nixl_device *)0)->keys),
                   "copied whole");
    _Static_assert(sizeof(reading.settings.volume) == sizeof(((struct conf_nixl_volume *)0)->name),
                   "copied whole");
    if (err == ICMS_OK)
        *out_settings = reading.settings;
    else if (why_bytes != 0)
        (void)snprintf(why, why_bytes, "%s", reading.why.text);
    return err;
}

/* ---- keys ----------------------------------------------------------------------------------- */

/* Put in front of what is hashed, so that it is longer than what 32 digits write. */
#define KEY_TAG_NAME   "icms nixl name v1/"
#define KEY_TAG_DEVICE "icms nixl device v1/"

/* The value of a lower-case hex digit; -1 for anything else. */
static int digit_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* True when all of the name is hex digits in either case, two a byte, and has room in a key. */
static bool hex_is(const char *name, size_t bytes)
{
    if (bytes % 2 != 0 || bytes > (size_t)2 * ICMS_KEY_BYTES)
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (!isxdigit((unsigned char)name[i]))
            return false;
    return true;
}

/* True when all digits are lower-case: one name for each value, so no two names share a key. */
static bool hex_decode(const char *name, size_t bytes, uint8_t out[ICMS_KEY_BYTES])
{
    for (size_t i = 0; i < bytes; i += 2) {
        int high = digit_value(name[i]), low = digit_value(name[i + 1]);

        if (high < 0 || low < 0)
            return false;
        out[i / 2] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* The hash of a tag and up to 32 bytes. */
static void key_hash(const char *tag, const void *data, size_t bytes, struct icms_key *out_key)
{
    char text[64];
    size_t length = strlen(tag);

    check(bytes <= (size_t)2 * ICMS_KEY_BYTES && length + bytes <= sizeof(text));
    memcpy(text, tag, length);
    memcpy(text + length, data, bytes);
    icms_key_from_name(text, length + bytes, out_key);
}

icms_err nixl_key_make(enum nixl_key_form form, const char *name, size_t bytes, uint64_t device,
                       struct icms_key *out_key)
{
    uint8_t raw[ICMS_KEY_BYTES];
    le64 number = le64_of(device);
    bool hex;

    if (bytes == 0) {
        key_hash(KEY_TAG_DEVICE, &number, sizeof(number), out_key);
        return ICMS_OK;
    }
    if (form == NIXL_KEY_NAME) {
        icms_key_from_name(name, bytes, out_key);
        return ICMS_OK;
    }
    check(form == NIXL_KEY_HEX);
    hex = hex_is(name, bytes);
    if (!hex && bytes > ICMS_KEY_BYTES)
        return ICMS_KEY_SIZE;
    if (hex && hex_decode(name, bytes, raw))
        icms_key_from_name(raw, bytes / 2, out_key);
    else
        key_hash(KEY_TAG_NAME, name, bytes, out_key);
    return ICMS_OK;
}
