/* SPDX-License-Identifier: Apache-2.0 */
/*
 * man_make: makes manual pages of templates: NAME.in to standard output, with a line @TARGET_KEYS@,
 * @AGENT_KEYS@, @SEAL_KEYS@, @NIXL_KEYS@, @POD_KEYS@, @ERRORS@ or @MISSES@ replaced by a list made
 * from the table that the programs use. Runs at build time only.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "conf/conf.h"

/* Text as mdoc: backslashes and a control character at the head are made harmless. */
static void text_put(const char *text)
{
    if (*text == '.' || *text == '\'')
        (void)fputs("\\&", stdout);
    for (; *text != '\0'; text++)
        if (*text == '\\')
            (void)fputs("\\e", stdout);
        else
            (void)putchar(*text);
}

/* Each sentence on a line of its own, as mdoc wants it. */
static void sentences_put(const char *text)
{
    while (*text != '\0') {
        const char *end = strstr(text, ". ");
        size_t bytes = end != NULL ? (size_t)(end - text) + 1 : strlen(text);
        char line[512];

        (void)snprintf(line, sizeof(line), "%.*s", (int)bytes, text);
        text_put(line);
        (void)putchar('\n');
        text += bytes;
        text += strspn(text, " ");
    }
}

static void key_put(void *arg, const struct conf_key_doc *doc)
{
    (void)arg;
    (void)printf(".It Cm %s : ", doc->name);
    (void)printf("Ar %s\n", doc->type);
    sentences_put(doc->doc);
    if (strcmp(doc->fallback, "required") == 0)
        (void)printf("Required.\n");
    else if (doc->fallback[0] != '\0')
        (void)printf("Default: %s.\n", doc->fallback);
    if (doc->range[0] != '\0')
        (void)printf("Range: %s.\n", doc->range);
}

static void errors_put(void)
{
#define XX(name, number, text, retry, nvme)                                                        \
    (void)printf(".It %d Ta ICMS_%s Ta %s Ta %s Ta %03xh\n", number, #name, text,                  \
                 (retry) ? "yes" : "no", nvme);
    ICMS_ERR_MAP(XX)
#undef XX
}

static void misses_put(void)
{
#define XX(name, number, text) (void)printf(".It %d Ta ICMS_MISS_%s Ta %s\n", number, #name, text);
    ICMS_MISS_MAP(XX)
#undef XX
}

/* Replaces a line that is a mark; false when it is none. */
static int mark_put(const char *line)
{
    if (strcmp(line, "@TARGET_KEYS@\n") == 0)
        conf_target_keys(key_put, NULL);
    else if (strcmp(line, "@AGENT_KEYS@\n") == 0)
        conf_agent_keys(key_put, NULL);
    else if (strcmp(line, "@SEAL_KEYS@\n") == 0)
        conf_seal_keys(key_put, NULL);
    else if (strcmp(line, "@NIXL_KEYS@\n") == 0)
        conf_nixl_keys(key_put, NULL);
    else if (strcmp(line, "@POD_KEYS@\n") == 0)
        conf_pod_keys(key_put, NULL);
    else if (strcmp(line, "@ERRORS@\n") == 0)
        errors_put();
    else if (strcmp(line, "@MISSES@\n") == 0)
        misses_put();
    else
        return 0;
    return 1;
}

int main(int argc, char **argv)
{
    char line[4096];
    FILE *file = argc == 2 ? fopen(argv[1], "re") : NULL;

    if (file == NULL) {
        (void)fprintf(stderr, "usage: man_make TEMPLATE\n");
        return 2;
    }
    while (fgets(line, sizeof(line), file) != NULL)
        if (!mark_put(line))
            (void)fputs(line, stdout);
    (void)fclose(file);
    return fflush(stdout) == 0 ? 0 : 1;
}
