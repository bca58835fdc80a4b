/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/health.c: what `smartctl --json -A` wrote of a drive. JSON is YAML, so the bounded reader of
 * configurations reads it. Control threads.
 *
 * Two objects of it are looked at: nvme_smart_health_information_log (critical_warning,
 * percentage_used, temperature) and temperature (current, op_limit_max), and of newer versions
 * nvme_composite_temperature_threshold (warning, critical). Of what is not there nothing is known.
 */
#include <stdlib.h>
#include <string.h>

#include "conf/conf_int.h"

/* The number of a member of a map; false: there is none from min to max. */
static bool number_of(const struct conf_node *map, const char *key, long min, long max,
                      long *out_number)
{
    const struct conf_node *node =
        map != NULL && map->kind == CONF_NODE_MAP ? conf_node_get(map, key) : NULL;
    char *end;
    long number;

    if (node == NULL || node->kind != CONF_NODE_SCALAR || node->text[0] == '\0')
        return false;
    number = strtol(node->text, &end, 10);
    if (*end != '\0' || number < min || number > max)
        return false;
    *out_number = number;
    return true;
}

icms_err conf_health_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                           struct conf_health *out_health)
{
    const struct conf_source source = {.name = name, .why = why};
    struct conf_health health = {.used_percent = -1,
                                 .temperature_c = CONF_HEALTH_NO_TEMPERATURE,
                                 .warning_c = CONF_HEALTH_NO_TEMPERATURE,
                                 .critical_c = CONF_HEALTH_NO_TEMPERATURE};
    const struct conf_node *root, *log, *limits;
    struct conf_doc *doc = NULL;
    icms_err err = conf_doc_parse(&source, text, bytes, &doc);
    long number;

    if (err != ICMS_OK)
        return err;
    root = conf_doc_root(doc);
    if (root->kind != CONF_NODE_MAP) {
        conf_doc_free(&doc);
        return conf_fail(&source, 1, "it is not what `smartctl --json -A` writes");
    }
    log = conf_node_get(root, "nvme_smart_health_information_log");
    limits = conf_node_get(root, "nvme_composite_temperature_threshold");
    if (number_of(log, "critical_warning", 0, 255, &number))
        health.warnings = (uint8_t)number;
    if (number_of(log, "percentage_used", 0, 255, &number))
        health.used_percent = (int)number;
    if (number_of(log, "temperature", -100, 300, &number) ||
        number_of(conf_node_get(root, "temperature"), "current", -100, 300, &number))
        health.temperature_c = (int)number;
    if (number_of(limits, "warning", 1, 300, &number) ||
        number_of(conf_node_get(root, "temperature"), "op_limit_max", 1, 300, &number))
        health.warning_c = (int)number;
    if (number_of(limits, "critical", 1, 300, &number))
        health.critical_c = (int)number;
    if (log == NULL && health.temperature_c == CONF_HEALTH_NO_TEMPERATURE)
        err = conf_fail(&source, 1,
                        "it has neither nvme_smart_health_information_log nor temperature: write "
                        "it with `smartctl --json -A`");
    conf_doc_free(&doc);
    if (err == ICMS_OK)
        *out_health = health;
    return err;
}

icms_err conf_health_read(const char *path, struct err_why *why, struct conf_health *out_health)
{
    size_t bytes = 0;
    char *text = NULL;
    icms_err err = conf_file_read(path, "`health` of the drive", why, &text, &bytes);

    if (err == ICMS_OK)
        err = conf_health_parse(text, bytes, path, why, out_health);
    free(text);
    return err;
}
