/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/names.c: see names.h. For people who are about to hand a map out: who runs with one is
 * told by pod_map.c.
 *
 * names_meet: all names are asked for at once -> names_wait -> each is compared with all before it.
 */
#include "inprocess/names.h"

#include <stdlib.h>
#include <time.h>

#include "inprocess/resolve.h"

#define NAMES_LOOK_MS 10

/* An address of an enclosure, and where it leads to. */
struct name {
    const struct conf_enclosure *enclosure;
    const char *address;
    struct resolve *resolve; /* asked for, and not answered; NULL: it is */
    struct resolve_answer answer;
};

static struct name *names_ask(const struct conf_pod *pod, uint32_t *out_count)
{
    struct name *names = calloc((size_t)LIMIT_ENCLOSURES * LIMIT_LINKS, sizeof(*names));
    struct err_why why;

    *out_count = 0;
    for (uint32_t i = 0; i < pod->enclosure_count && names != NULL; i++)
        for (uint32_t k = 0; k < pod->enclosures[i].address_count; k++) {
            if (pod->enclosures[i].state == CONF_ENCLOSURE_OUT)
                continue; /* no agent asks for it */

            struct name *name = &names[(*out_count)++];

            name->enclosure = &pod->enclosures[i];
            name->address = pod->enclosures[i].address[k];
            if (loop_addr_parse(name->address, &why, &name->answer.addrs[0]) == ICMS_OK)
                name->answer.count = 1;
            else
                (void)!resolve_start(name->address, &why, &name->resolve);
        }
    return names;
}

/* Until all are answered, or it took too long. */
static void names_wait(struct name *names, uint32_t count)
{
    const struct timespec pause = {.tv_nsec = NAMES_LOOK_MS * 1000000L};
    bool is_over = false;

    for (int looks = NAMES_WAIT_MS / NAMES_LOOK_MS; looks > 0 && !is_over; looks--) {
        is_over = true;
        for (uint32_t i = 0; i < count; i++)
            if (names[i].resolve != NULL && resolve_poll(names[i].resolve, &names[i].answer))
                resolve_free(&names[i].resolve);
            else
                is_over = is_over && names[i].resolve == NULL;
        if (!is_over)
            (void)nanosleep(&pause, NULL);
    }
}

static bool leads_to(const struct name *name, const struct loop_addr *addr)
{
    return name->answer.count == 1 && loop_addr_equal(&name->answer.addrs[0], addr);
}

/* Whom the agent does not use a name for, as it leads nowhere else: of two names the second. A name
 * with several addresses has a choice. NULL: it may use it. */
static const struct name *name_met(const struct name *names, uint32_t count, uint32_t at)
{
    struct err_why why;
    struct loop_addr numeric;
    const struct name *met = NULL;

    for (uint32_t a = 0; a < names[at].answer.count; a++) {
        const struct name *taken = NULL;

        for (uint32_t i = 0; i < count && taken == NULL; i++)
            if (i != at && leads_to(&names[i], &names[at].answer.addrs[a]) &&
                (i < at || loop_addr_parse(names[i].address, &why, &numeric) == ICMS_OK))
                taken = &names[i];
        if (taken == NULL)
            return NULL;
        met = taken;
    }
    return met;
}

bool names_meet(const struct conf_pod *pod, struct err_why *why)
{
    char text[LIMIT_ADDRESS_BYTES];
    uint32_t count;
    struct name *names = names_ask(pod, &count);
    bool found = false;

    if (names == NULL)
        return false;
    names_wait(names, count);
    for (uint32_t i = 0; i < count && !found; i++) {
        const struct name *met = NULL;
        struct loop_addr numeric;

        if (loop_addr_parse(names[i].address, why, &numeric) != ICMS_OK)
            met = name_met(names, count, i);
        found = met != NULL;
        if (found)
            (void)err_set(why, ICMS_CONFIG,
                          "enclosure %s: its address %s is %s, which enclosure %s has, too, as %s: "
                          "an agent uses one of the two",
                          names[i].enclosure->name, names[i].address,
                          loop_addr_format(&names[i].answer.addrs[0], text, sizeof(text)),
                          met->enclosure->name, met->address);
    }
    for (uint32_t i = 0; i < count; i++)
        resolve_free(&names[i].resolve);
    free(names);
    if (!found)
        why->text[0] = '\0';
    return found;
}
