/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/warn.c: what is right, and worth a line of the log all the same. Called by the rules of the
 * daemons' configurations, on the caller's thread.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "conf/conf_int.h"

void conf_warn(struct conf_warnings *warnings, const char *format, ...)
{
    va_list args;

    if (warnings->count == CONF_WARNINGS)
        return;
    va_start(args, format);
    (void)vsnprintf(warnings->text[warnings->count++], sizeof(warnings->text[0]), format, args);
    va_end(args);
}

void conf_warn_wide(struct conf_warnings *warnings, const char *key, const char *address,
                    const char *consequence)
{
    if (conf_address_is_wide(address))
        conf_warn(warnings, "%s: %s can be reached from other machines: %s", key, address,
                  consequence);
}

void conf_warn_http(struct conf_warnings *warnings, const struct conf_http *http)
{
    if (strcmp(http->open, "all") == 0)
        conf_warn_wide(warnings, "http.listen", http->listen,
                       "anybody there can read metrics and status");
    else if (http->certificate[0] == '\0')
        conf_warn_wide(warnings, "http.listen", http->listen,
                       "the token travels in clear text: write certificate and key");
}

/* Volumes that require what no host has. */
void conf_warn_volumes(struct conf_target *target)
{
    bool keys = false, secrets = false;

    for (uint32_t i = 0; i < target->host_count; i++) {
        keys = keys || target->hosts[i].psk_count > 0;
        secrets = secrets || target->hosts[i].secret_count > 0;
    }
    for (uint32_t i = 0; i < target->volume_count; i++) {
        const struct volume_spec *volume = &target->volumes[i];
        bool chap = (volume->require & REQUIRE_CHAP) != 0 && !secrets;

        if (chap || ((volume->require & REQUIRE_TLS) != 0 && !keys))
            conf_warn(&target->warnings,
                      "volumes: '%s' requires %s, and no host has a %s: list %s of hosts, else "
                      "nobody can use it",
                      volume->name, chap ? "chap" : "tls", chap ? "secret" : "key",
                      chap ? "secrets" : "psks");
    }
}

/* Says which enclosure of another machine is neither asked for a proof nor reached with TLS, though
 * nobody wrote that it need not be. */
void conf_warn_plain(struct conf_agent *agent)
{
    for (uint32_t i = 0; i < agent->enclosure_count; i++) {
        const struct conf_enclosure *enclosure = &agent->enclosures[i];
        const char *remote = conf_enclosure_remote(enclosure);

        if (enclosure->is_require_written || enclosure->psk[0] != '\0' ||
            enclosure->controller_secret[0] != '\0' || remote == NULL)
            continue;
        conf_warn(&agent->warnings,
                  "enclosures: whoever asks for a proof at %s is taken for the enclosure '%s', and "
                  "nothing is encrypted on the way: write psk or controller_secret; or `require: "
                  "chap` if that is meant",
                  remote, enclosure->name);
        return; /* once for all */
    }
}
