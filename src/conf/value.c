/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One written value to one field: sizes, times, names, addresses. Each refusal says what was
 * written and what would be right. Pure; any thread.
 */
#include "conf/conf_int.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdarg.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"

#define BYTES_UNITS    "B, KiB, MiB, GiB or TiB"
#define DURATION_UNITS "ms, s or min"

/* Drives are rated for 0.1 to 100 writes of all of them a day. */
#define DWPD_MIN 0.001
#define DWPD_MAX 1000.0

icms_err conf_fail(const struct conf_source *source, uint32_t line, const char *format, ...)
{
    char sentence[ERR_WHY_BYTES_MAX];
    size_t bytes = strlen(source->name);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    /* A long path loses its head, not the sentence. */
    return err_set(source->why, ICMS_CONFIG, "%s%s:%u: %s", bytes > 160 ? "..." : "",
                   source->name + (bytes > 160 ? bytes - 160 : 0), line, sentence);
}

const char *conf_show(const char *text, char out[CONF_SHOW_BYTES])
{
    size_t i;

    for (i = 0; text[i] != '\0' && i < CONF_SHOW_BYTES - 1; i++)
        out[i] = text[i] >= ' ' && text[i] <= '~' && text[i] != '\'' ? text[i] : '?';
    out[i] = '\0';
    if (text[i] != '\0')
        memcpy(out + CONF_SHOW_BYTES - 4, "...", 4);
    return out;
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* A decimal number: whole part, and millionths of it. */
struct decimal {
    uint64_t whole;
    uint32_t millionths;
    bool fraction; /* a point was written */
};

/* Reads digits[.digits] at the head of text; returns what follows, NULL when there is no number or
 * it does not fit. */
static const char *decimal_parse(const char *text, struct decimal *out_number)
{
    struct decimal number = {0};
    const char *at = text;

    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(number.whole, 10, &number.whole) ||
            __builtin_add_overflow(number.whole, (uint64_t)(*at - '0'), &number.whole))
            return NULL;
    if (at == text)
        return NULL;
    if (*at == '.') {
        uint32_t scale = 100000;
        const char *first = ++at;

        number.fraction = true;
        for (; *at >= '0' && *at <= '9'; at++, scale /= 10)
            number.millionths += (uint32_t)(*at - '0') * scale;
        if (at == first)
            return NULL;
    }
    *out_number = number;
    return at;
}

struct unit {
    const char *name;
    uint64_t factor;
};

/* number times the unit that text names, into out; false when there is no such unit or it does not
 * fit 64 bits. */
static bool unit_apply(const struct unit *units, const char *text, const struct decimal *number,
                       uint64_t *out_value)
{
    for (; units->name != NULL; units++) {
        uint64_t value, part;

        if (strcmp(text, units->name) != 0)
            continue;
        part = number->millionths * units->factor / 1000000; /* under 2^20 * 2^40 */
        if (__builtin_mul_overflow(number->whole, units->factor, &value) ||
            __builtin_add_overflow(value, part, &value))
            return false;
        *out_value = value;
        return true;
    }
    return false;
}

icms_err conf_bytes_parse(const char *text, struct err_why *why, uint64_t *out_bytes)
{
    static const struct unit units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", (uint64_t)1 << 10},
        {"MiB", (uint64_t)1 << 20},
        {"GiB", (uint64_t)1 << 30},
        {"TiB", (uint64_t)1 << 40},
        {NULL, 0},
    };
    char shown[CONF_SHOW_BYTES];
    struct decimal number;
    const char *unit = decimal_parse(text, &number);

    if (unit == NULL)
        return err_set(why, ICMS_CONFIG,
                       "'%s' is not a size: write a number and a unit, like 64MiB (" BYTES_UNITS
                       ")",
                       conf_show(text, shown));
    while (*unit == ' ')
        unit++;
    if (!unit_apply(units, unit, &number, out_bytes) || (number.fraction && *unit == '\0'))
        return err_set(why, ICMS_CONFIG,
                       "'%s' is not a size: the unit must be " BYTES_UNITS
                       ", and the number fit 64 bits",
                       conf_show(text, shown));
    return ICMS_OK;
}

icms_err conf_duration_parse(const char *text, struct err_why *why, uint32_t *out_ms)
{
    static const struct unit units[] = {{"ms", 1}, {"s", 1000}, {"min", 60000}, {NULL, 0}};
    char shown[CONF_SHOW_BYTES];
    struct decimal number;
    const char *unit = decimal_parse(text, &number);
    uint64_t ms = 0;

    while (unit != NULL && *unit == ' ')
        unit++;
    if (unit == NULL || !unit_apply(units, unit, &number, &ms) || ms > UINT32_MAX)
        return err_set(why, ICMS_CONFIG,
                       "'%s' is not a time: write a number and a unit, like 500ms (" DURATION_UNITS
                       ")",
                       conf_show(text, shown));
    *out_ms = (uint32_t)ms;
    return ICMS_OK;
}

const char *conf_bytes_format(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned unit = 0;

    while (unit < 4 && bytes != 0 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    (void)snprintf(out, 32, "%llu%s", (unsigned long long)bytes, units[unit]);
    return out;
}

static icms_err bytes_set(const struct conf_key *key, const char *text, struct err_why *why,
                          uint64_t *field)
{
    uint64_t bytes;
    char low[32], high[32], shown[CONF_SHOW_BYTES];
    icms_err err = conf_bytes_parse(text, why, &bytes);

    if (err != ICMS_OK)
        return err;
    if (bytes < key->min || bytes > key->max)
        return err_set(why, ICMS_CONFIG, "%s is out of range: %s to %s", conf_show(text, shown),
                       conf_bytes_format(key->min, low), conf_bytes_format(key->max, high));
    *field = bytes;
    return ICMS_OK;
}

/* "500GiB" or "0.5DWPD", a day. */
static icms_err budget_set(const char *text, struct err_why *why, struct write_budget *field)
{
    char shown[CONF_SHOW_BYTES];
    struct decimal number;
    const char *unit = decimal_parse(text, &number);
    struct write_budget budget = {.burst_bytes = field->burst_bytes};

    while (unit != NULL && *unit == ' ')
        unit++;
    if (unit != NULL && strcmp(unit, "DWPD") == 0) {
        budget.drive_writes = (double)number.whole + number.millionths / 1e6;
        if (budget.drive_writes < DWPD_MIN || budget.drive_writes > DWPD_MAX)
            return err_set(why, ICMS_CONFIG, "%s is out of range: 0.001DWPD to 1000DWPD, or 0",
                           conf_show(text, shown));
    } else if (conf_bytes_parse(text, NULL, &budget.bytes_day) != ICMS_OK) {
        return err_set(why, ICMS_CONFIG,
                       "'%s' is not a write budget: write drive writes a day, like 1DWPD, bytes a "
                       "day, like 500GiB, or 0",
                       conf_show(text, shown));
    }
    *field = budget;
    return ICMS_OK;
}

static icms_err duration_set(const struct conf_key *key, const char *text, struct err_why *why,
                             uint32_t *field)
{
    char shown[CONF_SHOW_BYTES];
    uint32_t ms;
    icms_err err = conf_duration_parse(text, why, &ms);

    if (err != ICMS_OK)
        return err;
    if (ms < key->min || ms > key->max)
        return err_set(why, ICMS_CONFIG, "%s is out of range: %llums to %llums",
                       conf_show(text, shown), (unsigned long long)key->min,
                       (unsigned long long)key->max);
    *field = ms;
    return ICMS_OK;
}

static icms_err count_set(const struct conf_key *key, const char *text, struct err_why *why,
                          uint32_t *field)
{
    char shown[CONF_SHOW_BYTES];
    struct decimal number;
    const char *end = decimal_parse(text, &number);

    if (end == NULL || *end != '\0' || number.fraction)
        return err_set(why, ICMS_CONFIG, "'%s' is not a whole number (no unit)",
                       conf_show(text, shown));
    if (number.whole < key->min || number.whole > key->max)
        return err_set(why, ICMS_CONFIG, "%s is out of range: %llu to %llu", conf_show(text, shown),
                       (unsigned long long)key->min, (unsigned long long)key->max);
    *field = (uint32_t)number.whole;
    return ICMS_OK;
}

static icms_err mode_set(const char *text, struct err_why *why, uint32_t *field)
{
    char shown[CONF_SHOW_BYTES];
    uint32_t mode = 0;
    size_t i;

    for (i = 0; i < 5 && text[i] >= '0' && text[i] <= '7'; i++)
        mode = mode * 8 + (uint32_t)(text[i] - '0');
    if (i < 3 || text[i] != '\0' || mode > 0777)
        return err_set(why, ICMS_CONFIG, "'%s' is not a file mode: write octal digits, like 0660",
                       conf_show(text, shown));
    *field = mode;
    return ICMS_OK;
}

/* A percentage (an optional % sign) or a positive number. */
static icms_err double_set(const struct conf_key *key, const char *text, struct err_why *why,
                           double *field)
{
    char shown[CONF_SHOW_BYTES];
    struct decimal number;
    const char *end = decimal_parse(text, &number);
    bool percent = key->kind == CONF_PERCENT;
    double value;

    if (end != NULL && percent && *end == '%')
        end++;
    if (end == NULL || *end != '\0')
        return err_set(why, ICMS_CONFIG, "'%s' is not %s", conf_show(text, shown),
                       percent ? "a percentage, like 95%" : "a number, like 1 or 2.5");
    value = (double)number.whole + number.millionths / 1e6;
    if (percent ? value > 100 : value <= 0)
        return err_set(why, ICMS_CONFIG, "%s is out of range: %s", conf_show(text, shown),
                       percent ? "0% to 100%" : "it must be more than 0");
    *field = value;
    return ICMS_OK;
}

/* ---- texts ---------------------------------------------------------------------------------- */

static icms_err text_set(const struct conf_key *key, const char *text, struct err_why *why,
                         char *field)
{
    size_t bytes = strlen(text);

    if (bytes == 0)
        return err_set(why, ICMS_CONFIG, "it is empty");
    if (bytes >= key->size)
        return err_set(why, ICMS_CONFIG, "it is longer than %u bytes", key->size - 1);
    memcpy(field, text, bytes + 1);
    return ICMS_OK;
}

static icms_err name_set(const struct conf_key *key, const char *text, struct err_why *why,
                         char *field)
{
    char shown[CONF_SHOW_BYTES];

    for (size_t i = 0; text[i] != '\0'; i++)
        if (!isalnum((unsigned char)text[i]) && strchr("._-", text[i]) == NULL)
            return err_set(why, ICMS_CONFIG,
                           "'%s' is not a name: use letters, digits, '.', '_' and '-'",
                           conf_show(text, shown));
    return text_set(key, text, why, field);
}

/* nqn.yyyy-mm.reverse.domain:rest */
static bool nqn_valid(const char *text)
{
    static const char form[] = "nqn.dddd-dd.";
    const char *at = text;

    for (const char *f = form; *f != '\0'; f++, at++)
        if (*f == 'd' ? !isdigit((unsigned char)*at) : *f != *at)
            return false;
    if (strncmp(text + 9, "01", 2) < 0 || strncmp(text + 9, "12", 2) > 0)
        return false;
    if (!isalnum((unsigned char)*at))
        return false;
    while (isalnum((unsigned char)*at) || *at == '.' || *at == '-')
        at++;
    if (*at++ != ':' || *at == '\0')
        return false;
    while (*at > ' ' && *at <= '~')
        at++;
    return *at == '\0';
}

static icms_err nqn_set(const struct conf_key *key, const char *text, struct err_why *why,
                        char *field)
{
    char shown[CONF_SHOW_BYTES];

    if (!nqn_valid(text))
        return err_set(why, ICMS_CONFIG,
                       "'%s' is not an NVMe qualified name: write nqn.YYYY-MM.reverse.domain:name",
                       conf_show(text, shown));
    return text_set(key, text, why, field);
}

/* A numeric address and port. */
struct address {
    bool is_four;
    struct in_addr four;
    struct in6_addr six;
    uint16_t port;
};

/* "127.0.0.1:4420" or "[::1]:4420"; an IPv4 address that is written as one of IPv6 is IPv4. */
static bool address_parse(const char *text, struct address *out_address)
{
    char host[64];
    const char *colon = strrchr(text, ':');
    size_t bytes = colon != NULL ? (size_t)(colon - text) : 0;
    struct address address = {.is_four = true};
    unsigned port = 0;
    const char *at;

    if (bytes == 0 || bytes >= sizeof(host) || colon[1] == '\0' || strlen(colon + 1) > 5)
        return false;
    for (at = colon + 1; isdigit((unsigned char)*at) && port <= UINT16_MAX; at++)
        port = port * 10 + (unsigned)(*at - '0');
    if (*at != '\0' || port > UINT16_MAX)
        return false;
    memcpy(host, text, bytes);
    host[bytes] = '\0';
    if (host[0] == '[' && host[bytes - 1] == ']') {
        host[bytes - 1] = '\0';
        if (inet_pton(AF_INET6, host + 1, &address.six) != 1)
            return false;
        address.is_four = IN6_IS_ADDR_V4MAPPED(&address.six);
        memcpy(&address.four, address.six.s6_addr + 12, sizeof(address.four));
    } else if (inet_pton(AF_INET, host, &address.four) != 1) {
        return false;
    }
    address.port = (uint16_t)port;
    *out_address = address;
    return true;
}

bool conf_address_is_wide(const char *address)
{
    struct address numeric;

    if (address[0] == '\0' || !address_parse(address, &numeric))
        return false;
    return numeric.is_four ? ntohl(numeric.four.s_addr) >> 24 != 127
                           : !IN6_IS_ADDR_LOOPBACK(&numeric.six);
}

const char *conf_enclosure_remote(const struct conf_enclosure *enclosure)
{
    struct address numeric;

    for (uint32_t i = 0; i < enclosure->address_count; i++) {
        const char *address = enclosure->address[i];

        if (address_parse(address, &numeric) ? conf_address_is_wide(address)
                                             : strncasecmp(address, "localhost:", 10) != 0)
            return address;
    }
    return NULL;
}

static bool address_is_numeric(const char *address)
{
    struct address numeric;

    return address_parse(address, &numeric);
}

const char *conf_address_wrong_listen(const char *address)
{
    struct address numeric;

    if (!address_parse(address, &numeric) ||
        !(numeric.is_four
              ? IN_MULTICAST(ntohl(numeric.four.s_addr)) || numeric.four.s_addr == INADDR_BROADCAST
              : IN6_IS_ADDR_MULTICAST(&numeric.six)))
        return NULL;
    return "is a multicast or broadcast address: write that of one machine";
}

const char *conf_address_wrong(const char *address)
{
    struct address numeric;

    if (!address_parse(address, &numeric) ||
        !(numeric.is_four ? numeric.four.s_addr == 0 : IN6_IS_ADDR_UNSPECIFIED(&numeric.six)))
        return conf_address_wrong_listen(address);
    return "stands for all addresses of a machine: write the one by which agents reach it";
}

/* One spelling of an address, by which two of them are compared; returns out. */
static char *address_plain(const char *address, char out[CONF_ADDRESS_BYTES])
{
    struct address numeric;
    char host[INET6_ADDRSTRLEN];
    size_t bytes;

    if (address_parse(address, &numeric)) {
        (void)inet_ntop(numeric.is_four ? AF_INET : AF_INET6,
                        numeric.is_four ? (const void *)&numeric.four : &numeric.six, host,
                        sizeof(host));
        (void)snprintf(out, CONF_ADDRESS_BYTES, numeric.is_four ? "%s:%u" : "[%s]:%u", host,
                       numeric.port);
        return out;
    }
    bytes = strcspn(address, ":");
    (void)snprintf(out, CONF_ADDRESS_BYTES, "%.*s:%lu",
                   (int)(bytes > 0 && address[bytes - 1] == '.' ? bytes - 1 : bytes), address,
                   address[bytes] == ':' ? strtoul(address + bytes + 1, NULL, 10) : 0);
    for (char *at = out; *at != '\0'; at++)
        *at = (char)tolower((unsigned char)*at);
    return out;
}

bool conf_address_same(const char *a, const char *b)
{
    char plain[2][CONF_ADDRESS_BYTES];

    return strcmp(address_plain(a, plain[0]), address_plain(b, plain[1])) == 0;
}

/* Labels of letters, digits, '-' and '_' with dots between them, at most 253 bytes. What looks like
 * a numeric address and is none is no name: its last label begins with a digit. */
static bool dns_name_valid(const char *name, size_t bytes)
{
    size_t label = 0, last = 0;

    if (bytes == 0 || bytes > 253)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        if (name[i] == '.' && label == 0)
            return false;
        if (name[i] != '.' && !isalnum((unsigned char)name[i]) && strchr("-_", name[i]) == NULL)
            return false;
        if (label == 0)
            last = i;
        label = name[i] == '.' ? 0 : label + 1;
        if (label > 63 || (label == 1 && name[i] == '-'))
            return false;
    }
    return !isdigit((unsigned char)name[last]);
}

/* Several of them that are not written as a list. */
static icms_err address_list_refuse(const char *text, struct err_why *why)
{
    char shown[CONF_SHOW_BYTES];

    return err_set(why, ICMS_CONFIG,
                   "'%s' is not one address: write several as a list in brackets, as in "
                   "[192.0.2.10:4420, 198.51.100.10:4420]",
                   conf_show(text, shown));
}

static icms_err port_refuse(const char *text, struct err_why *why)
{
    char shown[CONF_SHOW_BYTES];

    return err_set(why, ICMS_CONFIG,
                   "'%s' has port 0, on which nothing listens: write the port, as in "
                   "192.0.2.10:4420",
                   conf_show(text, shown));
}

/* The port behind an address or a DNS name; above UINT16_MAX: it is neither. */
static unsigned long host_port(const char *text)
{
    const char *colon = strrchr(text, ':');
    size_t digits = colon != NULL ? strspn(colon + 1, "0123456789") : 0;

    if (digits < 1 || digits > 5 || colon[1 + digits] != '\0' ||
        (!address_is_numeric(text) && !dns_name_valid(text, (size_t)(colon - text))))
        return ULONG_MAX;
    return strtoul(colon + 1, NULL, 10);
}

static icms_err host_set(const struct conf_key *key, const char *text, struct err_why *why,
                         char *field)
{
    char shown[CONF_SHOW_BYTES];
    unsigned long port = host_port(text);

    if (strchr(text, ',') != NULL && key->kind == CONF_HOSTS)
        return address_list_refuse(text, why);
    if (port > UINT16_MAX)
        return err_set(why, ICMS_CONFIG,
                       "'%s' is not an address and port: write 192.0.2.10:4420, "
                       "\"[2001:db8::10]:4420\" (with the quotes) or a DNS name, as in "
                       "e0.example.com:4420",
                       conf_show(text, shown));
    return port == 0 ? port_refuse(text, why) : text_set(key, text, why, field);
}

static icms_err url_set(const struct conf_key *key, const char *text, struct err_why *why,
                        char *field)
{
    size_t scheme = strncmp(text, "https://", 8) == 0  ? 8
                    : strncmp(text, "http://", 7) == 0 ? 7
                                                       : 0;
    unsigned long port = scheme != 0 ? host_port(text + scheme) : 0;
    const char *wrong;
    char shown[CONF_SHOW_BYTES];

    if (port == 0 || port > UINT16_MAX)
        return err_set(why, ICMS_CONFIG,
                       "'%s' is not the URL of a daemon: write http:// or https://, an address or "
                       "a DNS name, and the port, as in https://192.0.2.10:9420",
                       conf_show(text, shown));
    wrong = conf_address_wrong(text + scheme);
    return wrong == NULL
               ? text_set(key, text, why, field)
               : err_set(why, ICMS_CONFIG, "%s %s", conf_show(text + scheme, shown), wrong);
}

static icms_err address_set(const struct conf_key *key, const char *text, struct err_why *why,
                            char *field)
{
    char shown[CONF_SHOW_BYTES];
    struct address address;

    if (key->kind == CONF_ADDRESSES && (text[0] == '\0' || strcmp(text, "none") == 0)) {
        field[0] = '\0';
        return ICMS_OK;
    }
    if (strchr(text, ',') != NULL && key->kind == CONF_PORTALS)
        return address_list_refuse(text, why);
    if (!address_parse(text, &address))
        return err_set(why, ICMS_CONFIG,
                       "'%s' is not a numeric address and port: write 127.0.0.1:4420 or "
                       "\"[::1]:4420\" (with the quotes)%s",
                       conf_show(text, shown), key->kind == CONF_ADDRESSES ? ", or none" : "");
    return address.port < key->min ? port_refuse(text, why) : text_set(key, text, why, field);
}

static icms_err uuid_set(const char *text, struct err_why *why, struct uuid *field)
{
    char shown[CONF_SHOW_BYTES];
    static const struct uuid zero;
    struct uuid uuid;

    if (!uuid_parse(text, &uuid) || uuid_equal(&uuid, &zero))
        return err_set(why, ICMS_CONFIG,
                       "'%s' is not a UUID: write 36 characters, as uuidgen(1) prints them",
                       conf_show(text, shown));
    *field = uuid;
    return ICMS_OK;
}

static icms_err bool_set(const char *text, struct err_why *why, bool *field)
{
    char shown[CONF_SHOW_BYTES];

    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return err_set(why, ICMS_CONFIG, "'%s' is neither true nor false", conf_show(text, shown));
    *field = text[0] == 't';
    return ICMS_OK;
}

static const char *const require_names[] = {
    [0] = "none",
    [REQUIRE_CHAP] = "chap",
    [REQUIRE_TLS] = "tls",
    [REQUIRE_CHAP | REQUIRE_TLS] = "chap+tls",
};

const char *conf_require_name(uint8_t require)
{
    return require_names[require & (REQUIRE_CHAP | REQUIRE_TLS)];
}

static icms_err require_set(const char *text, struct err_why *why, uint8_t *field)
{
    char shown[CONF_SHOW_BYTES];

    for (uint8_t i = 0; i < sizeof(require_names) / sizeof(require_names[0]); i++)
        if (strcmp(text, require_names[i]) == 0) {
            *field = (uint8_t)(CONF_REQUIRE_WRITTEN | i);
            return ICMS_OK;
        }
    return err_set(why, ICMS_CONFIG, "'%s' is not none, chap, tls or chap+tls",
                   conf_show(text, shown));
}

static icms_err choice_set(const struct conf_key *key, const char *text, struct err_why *why,
                           uint8_t *field)
{
    char shown[CONF_SHOW_BYTES], list[128];
    const char *nearest = conf_word_nearest(key->choices, text);
    size_t used = 0;

    for (uint8_t i = 0; key->choices[i] != NULL; i++) {
        if (strcmp(text, key->choices[i]) == 0) {
            *field = i;
            return ICMS_OK;
        }
        if (used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "",
                                     key->choices[i]);
    }
    if (nearest != NULL)
        return err_set(why, ICMS_CONFIG, "'%s' is none of %s; did you mean '%s'?",
                       conf_show(text, shown), list, nearest);
    return err_set(why, ICMS_CONFIG, "'%s' is none of %s", conf_show(text, shown), list);
}

icms_err conf_value_set(const struct conf_key *key, const char *text, struct err_why *why,
                        void *object)
{
    void *field = (char *)object + key->offset;

    switch (key->kind) {
    case CONF_NAME:
        return name_set(key, text, why, field);
    case CONF_PATH:
        return text_set(key, text, why, field);
    case CONF_NQN:
        return nqn_set(key, text, why, field);
    case CONF_ADDRESS:
    case CONF_ADDRESSES:
        return address_set(key, text, why, field);
    case CONF_HOSTS: /* one */
        *(uint32_t *)(void *)((char *)object + key->count_offset) = 1;
        return host_set(key, text, why, field);
    case CONF_PORTALS: /* one */
        *(uint32_t *)(void *)((char *)object + key->count_offset) = 1;
        return address_set(key, text, why, field);
    case CONF_HOST:
        return host_set(key, text, why, field);
    case CONF_URL:
        return url_set(key, text, why, field);
    case CONF_CHOICE:
        return choice_set(key, text, why, field);
    case CONF_UUID:
        return uuid_set(text, why, field);
    case CONF_BYTES:
        return bytes_set(key, text, why, field);
    case CONF_BUDGET:
        return budget_set(text, why, field);
    case CONF_DURATION:
        return duration_set(key, text, why, field);
    case CONF_COUNT:
        return count_set(key, text, why, field);
    case CONF_MODE:
        return mode_set(text, why, field);
    case CONF_BOOL:
        return bool_set(text, why, field);
    case CONF_REQUIRE:
        return require_set(text, why, field);
    case CONF_PERCENT:
    case CONF_NUMBER:
        return double_set(key, text, why, field);
    case CONF_MAP:
    case CONF_MAPS:
    case CONF_NQNS:
    case CONF_PATHS:
    case CONF_USERS:
    case CONF_GROUPS:
        break;
    }
    check(!"a map or list is not a scalar");
    return ICMS_CONFIG;
}

struct net_marks conf_marks(const struct conf_classes *dscp, const struct conf_classes *priority)
{
    return (struct net_marks){
        .control = {(uint8_t)dscp->control, (uint8_t)priority->control},
        .io = {[IO_CLASS_LOAD] = {(uint8_t)dscp->loads, (uint8_t)priority->loads},
               [IO_CLASS_PRESTAGE] = {(uint8_t)dscp->prestage, (uint8_t)priority->prestage},
               [IO_CLASS_STORE] = {(uint8_t)dscp->stores, (uint8_t)priority->stores}},
    };
}
