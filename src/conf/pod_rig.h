/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/pod_rig.h: maps as text, in a folder of their own: what is read of them, and what a sentence
 * says that refuses them. Tests only; a failed step ends the test. Included by one file of a
 * program, behind cmocka.h.
 */
#ifndef CONF_POD_RIG_H
#define CONF_POD_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conf/conf_int.h"
#include "conf/pod.h"

static struct conf_pod pod, other;
static struct err_why why;
static char folder[64], path[96], special[96];

static inline int folder_make(void **state)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/icms-pod-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/pod.yaml", folder);
    (void)snprintf(special, sizeof(special), "%s/special", folder);
    return 0;
}

static inline int folder_remove(void **state)
{
    (void)unlink(path);
    (void)unlink(special);
    (void)rmdir(special);
    return rmdir(folder);
}

static inline icms_err parse(const char *text, struct conf_pod *out)
{
    why.text[0] = '\0';
    return conf_pod_parse(text, strlen(text), "p.yaml", &why, out);
}

/* With the line that ends a map. Valid until it is called again. */
static inline const char *ended(const char *text)
{
    static char whole[4096];

    assert_true((size_t)snprintf(whole, sizeof(whole), "%s...\n", text) < sizeof(whole));
    return whole;
}

static inline void accepted(const char *text, struct conf_pod *out)
{
    if (parse(ended(text), out) != ICMS_OK)
        fail_msg("%s\nrefused: %s", text, why.text);
}

/* The sentence begins with the place and holds the word. */
static inline void refused(const char *text, const char *place, const char *word)
{
    icms_err err = parse(text, &pod);

    if (err != ICMS_CONFIG || strncmp(why.text, place, strlen(place)) != 0 ||
        strstr(why.text, word) == NULL)
        fail_msg("%s\nanswered %s '%s', wanted '%s ... %s'", text, icms_err_name(err), why.text,
                 place, word);
}

#define HEAD  "name: pod0\nepoch: 4\nenclosures:\n"
#define E0    "- name: e0\n  address: 10.0.0.1:4420\n"
#define E1    "- name: e1\n  address: 10.0.0.2:4420\n"
#define E2    "- name: e2\n  address: 10.0.0.3:4420\n"
#define LINKS "- name: e0\n  address: [10.0.0.1:4420, e0-b.example:4420]\n"
#define UUID7 "70000000-0000-4000-8000-000000000007"

static inline void file_write(const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fputs(text, file) < 0, 0);
    assert_int_equal(fclose(file), 0);
}

static inline enum conf_pod_verdict compare(const char *before, const char *next,
                                            uint64_t *out_gone)
{
    accepted(before, &pod);
    accepted(next, &other);
    why.text[0] = '\0';
    return conf_pod_compare(&pod, &other, "p.yaml", &why, out_gone);
}

#define EPOCH(n)  "name: pod0\nepoch: " #n "\nenclosures:\n"
#define SHRUNK(n) "name: pod0\nepoch: " #n "\nshrink_epoch: " #n "\nenclosures:\n"

#define V_KV "volumes:\n# of llama\n- name: kv # chat\n  generation: 3\n"
#define V_B  "- name: b\n  run_blocks: 4\n"

#endif
