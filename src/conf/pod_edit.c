/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/pod_edit.c: what `icms pod` changes in the file of a pod map. Called by cmd, on its thread.
 *
 * As in edit.c only the lines of the change are other ones afterwards. A change is refused first by
 * what it means (change_check), then made line by line (change_make), and the new text, parsed,
 * must be the old map with the change and nothing else (change_verify).
 */
#include "conf/pod.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "conf/conf_int.h"

static const char by_hand[] = "change the file by hand, and raise its epoch";

/* One change on its way. */
struct change {
    const struct conf_pod_change *asked;
    const char *path;
    struct err_why *why;
    struct conf_pod *before, *after;
    uint32_t index; /* of the enclosure or volume in before; its count: none */
};

static bool is_of_volume(const struct conf_pod_change *asked)
{
    return asked->what >= CONF_POD_VOLUME_CREATE;
}

/* ---- what it means -------------------------------------------------------------------------- */

static icms_err refuse(const struct change *change, icms_err err, const char *sentence)
{
    return err_set(change->why, err, "%s: %s %s: %s; nothing was changed", change->path,
                   is_of_volume(change->asked) ? "volume" : "enclosure", change->asked->name,
                   sentence);
}

static icms_err unknown(const struct change *change)
{
    const char *names[LIMIT_VOLUMES + 1] = {NULL};
    bool is_volume = is_of_volume(change->asked);
    uint32_t count = is_volume ? change->before->volume_count : change->before->enclosure_count;
    const char *nearest;
    char sentence[LIMIT_NAME_BYTES + 64];

    for (uint32_t i = 0; i < count; i++)
        names[i] = is_volume ? change->before->volumes[i].name : change->before->enclosures[i].name;
    nearest = conf_word_nearest(names, change->asked->name);
    if (nearest == NULL)
        return refuse(change, ICMS_NOT_FOUND, "the map has none of this name");
    (void)snprintf(sentence, sizeof(sentence), "the map has none of this name; did you mean %s?",
                   nearest);
    return refuse(change, ICMS_NOT_FOUND, sentence);
}

/* Whether another one than this is in the state. */
static bool is_other(const struct change *change, enum conf_enclosure_state state)
{
    for (uint32_t i = 0; i < change->before->enclosure_count; i++)
        if (i != change->index && change->before->enclosures[i].state == state)
            return true;
    return false;
}

/* Whether the weight of another one than this changes. */
static bool is_other_weighed(const struct change *change)
{
    for (uint32_t i = 0; i < change->before->enclosure_count; i++)
        if (i != change->index && change->before->enclosures[i].former_weight > 0)
            return true;
    return false;
}

/* The weight that is asked for, which values_check has found to be one. */
static double weight_asked(const struct change *change)
{
    struct conf_enclosure enclosure = {.weight = 0};
    struct err_why reason;

    (void)!conf_pod_value_set("weight", change->asked->weight, &reason, &enclosure);
    return enclosure.weight;
}

static bool is_weight(double a, double b)
{
    return !(a < b || a > b);
}

/* Whether the weight of this one changes, and does not just go back to what it was: what is written
 * meanwhile is found then where it belongs by the weight that becomes the former one. */
static bool is_weighed(const struct change *change)
{
    const struct conf_enclosure *is = &change->before->enclosures[change->index];

    return change->index < change->before->enclosure_count && is->former_weight > 0 &&
           !(change->asked->what == CONF_POD_WEIGHT &&
             is_weight(weight_asked(change), is->former_weight));
}

/* Agents ask two enclosures for a block: its owner, and who would own it if none joined, none
 * drained and no weight changed. What an enclosure between the two has is missed. A drain takes no
 * block from one that joins. */
static icms_err alone_check(const struct change *change)
{
    if (change->asked->yes)
        return ICMS_OK;
    if (is_weighed(change))
        return refuse(change, ICMS_INVALID,
                      "its weight is changing: blocks that others have by its former weight would "
                      "be missed; settle it first, or add --yes");
    if (is_other_weighed(change))
        return refuse(change, ICMS_INVALID,
                      "the weight of another one is changing: blocks that were written since then "
                      "would be missed; settle it first, or add --yes");
    if (change->asked->what != CONF_POD_DRAIN && is_other(change, CONF_ENCLOSURE_JOINING))
        return refuse(change, ICMS_INVALID,
                      "another one is joining: blocks that only that one has would be missed; "
                      "settle it first, or add --yes");
    return !is_other(change, CONF_ENCLOSURE_DRAINING)
               ? ICMS_OK
               : refuse(change, ICMS_INVALID,
                        "another one is draining: blocks that were written since then would be "
                        "missed; remove it first, or add --yes");
}

static icms_err weight_check(const struct change *change, const struct conf_enclosure *is)
{
    if (is_weight(weight_asked(change), is->weight))
        return refuse(change, ICMS_EXISTS, "its weight is that already");
    if (is->state != CONF_ENCLOSURE_UP)
        return refuse(change, ICMS_INVALID,
                      is->state == CONF_ENCLOSURE_JOINING
                          ? "it is joining: settle it first"
                          : "it is not up, so it takes no blocks: see undrain");
    return alone_check(change);
}

/* Blocks are copied when they are read. What was not read since the change is still where it was,
 * and that is not asked any more. */
static icms_err settle_check(const struct change *change)
{
    const struct conf_enclosure *is = &change->before->enclosures[change->index];
    bool is_weight = is->former_weight > 0;

    if (!is_weight && is->state == CONF_ENCLOSURE_UP)
        return refuse(change, ICMS_EXISTS, "it is up already");
    if (!is_weight && is->state == CONF_ENCLOSURE_OUT)
        return refuse(change, ICMS_INVALID, "it is out, not joining: see undrain");
    if (!is_weight && is->state != CONF_ENCLOSURE_JOINING)
        return refuse(change, ICMS_INVALID, "it is draining, not joining: see undrain");
    if (change->asked->yes)
        return ICMS_OK;
    return refuse(change, ICMS_INVALID,
                  is_weight
                      ? "blocks that were not read since its weight changed are missed then, as "
                        "who had them before is not asked any more; when "
                        "icms_agent_former_found_total of the agents (icms status) does not rise "
                        "any more, add --yes"
                      : "blocks that were not read since it joined are missed then, and all of its "
                        "share while it is down, as who had them before is not asked any more; "
                        "when it is up (icms pod status), and icms_agent_former_found_total of "
                        "the agents (icms status) does not rise any more, add --yes");
}

/* One that drains may be the only one that has a block, for as long as nobody asked for it: it is
 * copied when it is read. Once nobody reads anything there, using it no more costs no hit that is
 * missed. */
static icms_err unread_check(const struct change *change)
{
    bool is_out = change->asked->what == CONF_POD_OUT;
    char sentence[ERR_WHY_BYTES_MAX];

    if (change->asked->yes || change->asked->is_unread)
        return ICMS_OK;
    (void)snprintf(sentence, sizeof(sentence),
                   "%s: blocks that no other enclosure has %s when it was not read for 10 min, or "
                   "add --yes",
                   change->asked->read != NULL ? change->asked->read
                                               : "nobody asked its icms-target when it was read",
                   is_out ? "are misses while it is out; set it to out"
                          : "become misses; remove it");
    return refuse(change, ICMS_INVALID, sentence);
}

/* Of one that is out nobody reads anything, so nobody is asked when that was: what it has could be
 * brought back until now, whatever was confirmed when it was set to out. */
static icms_err remove_check(const struct change *change, enum conf_enclosure_state state)
{
    if (change->before->enclosure_count == 1)
        return refuse(change, ICMS_INVALID,
                      "it is the last one of the pod: stop the agents instead");
    if (!is_other(change, CONF_ENCLOSURE_UP))
        return refuse(change, ICMS_INVALID,
                      "no other one is up, so no enclosure would take blocks; settle another "
                      "one first");
    if (state == CONF_ENCLOSURE_OUT && !change->asked->yes)
        return refuse(change, ICMS_INVALID,
                      "it is out, and could come back with its blocks (undrain): what is there is "
                      "lost for the pod; add --yes");
    if (state == CONF_ENCLOSURE_OUT)
        return ICMS_OK;
    if (state != CONF_ENCLOSURE_DRAINING && is_other(change, CONF_ENCLOSURE_DRAINING))
        return refuse(change, ICMS_INVALID,
                      "it is not drained, and another one is: is that the one? Else undrain or "
                      "remove that one first");
    if (state == CONF_ENCLOSURE_DRAINING || change->asked->yes)
        return unread_check(change);
    return refuse(change, ICMS_INVALID,
                  "it is not drained: the blocks that it has become misses; drain it first, or "
                  "add --yes");
}

/* It can come back with all that it has: only misses while it is out are asked about. */
static icms_err out_check(const struct change *change, enum conf_enclosure_state state)
{
    if (state == CONF_ENCLOSURE_OUT)
        return refuse(change, ICMS_EXISTS, "it is out already");
    if (!is_other(change, CONF_ENCLOSURE_UP))
        return refuse(change, ICMS_INVALID,
                      "no other one is up, so no enclosure would take blocks; settle another one "
                      "first");
    if (state == CONF_ENCLOSURE_DRAINING || change->asked->yes)
        return unread_check(change);
    return refuse(change, ICMS_INVALID,
                  "it is not drained: the blocks that it has are misses while it is out; drain it "
                  "first, or add --yes");
}

static icms_err volume_check(const struct change *change)
{
    const struct conf_pod *before = change->before;
    bool is_there = change->index < before->volume_count;

    if (change->asked->what == CONF_POD_VOLUME_CREATE) {
        if (is_there)
            return refuse(change, ICMS_EXISTS, "the map has it already");
        return before->volume_count < LIMIT_VOLUMES
                   ? ICMS_OK
                   : refuse(change, ICMS_LIMIT, "the map has 1024, and more are not possible");
    }
    if (!is_there)
        return unknown(change);
    switch (change->asked->what) {
    case CONF_POD_VOLUME_SET:
        return change->asked->value_count > 0
                   ? ICMS_OK
                   : refuse(change, ICMS_INVALID, "say what changes, as in run_blocks=16");
    case CONF_POD_VOLUME_RESET:
        if (before->volumes[change->index].generation == UINT32_MAX)
            return refuse(change, ICMS_CONFIG, "its generation is the last one");
        return change->asked->yes ? ICMS_OK
                                  : refuse(change, ICMS_INVALID,
                                           "all of its blocks become misses at once; add --yes");
    default:
        if (before->volume_count == 1)
            return refuse(change, ICMS_INVALID, "it is the last one of the map");
        return change->asked->yes
                   ? ICMS_OK
                   : refuse(change, ICMS_INVALID,
                            "agents end its use, and its blocks become misses; add --yes");
    }
}

static icms_err change_check(const struct change *change)
{
    enum conf_enclosure_state state;

    if (change->before->epoch == UINT32_MAX)
        return err_set(change->why, ICMS_CONFIG,
                       "%s: no change can follow epoch %u, the last one there can be; write a low "
                       "epoch by hand, and restart every agent of the pod: one that starts takes "
                       "any epoch",
                       change->path, change->before->epoch);
    if (change->asked->what == CONF_POD_SHRINK)
        return ICMS_OK;
    if (is_of_volume(change->asked))
        return volume_check(change);
    if (change->asked->what == CONF_POD_ADD) {
        if (change->index != change->before->enclosure_count)
            return refuse(change, ICMS_EXISTS, "the map has it already");
        if (change->before->enclosure_count == LIMIT_ENCLOSURES)
            return refuse(change, ICMS_LIMIT, "the map has 64 already, and more are not possible");
        return alone_check(change);
    }
    if (change->index == change->before->enclosure_count)
        return unknown(change);
    state = (enum conf_enclosure_state)change->before->enclosures[change->index].state;
    switch (change->asked->what) {
    case CONF_POD_WEIGHT:
        return weight_check(change, &change->before->enclosures[change->index]);
    case CONF_POD_SETTLE:
        return settle_check(change);
    case CONF_POD_UNDRAIN:
        if (state == CONF_ENCLOSURE_UP)
            return refuse(change, ICMS_EXISTS, "it is up already");
        return state != CONF_ENCLOSURE_JOINING
                   ? alone_check(change)
                   : refuse(change, ICMS_INVALID, "it is joining, not draining: see settle");
    case CONF_POD_DRAIN:
        if (state == CONF_ENCLOSURE_DRAINING)
            return refuse(change, ICMS_EXISTS, "it is draining already");
        if (state == CONF_ENCLOSURE_OUT)
            return refuse(change, ICMS_INVALID, "it is out, and nobody reads it: see undrain");
        return is_other(change, CONF_ENCLOSURE_UP)
                   ? alone_check(change)
                   : refuse(change, ICMS_INVALID,
                            "no other one is up, so no enclosure would take blocks; settle another "
                            "one first");
    case CONF_POD_OUT:
        return out_check(change, state);
    default:
        return remove_check(change, state);
    }
}

/* ---- lines ---------------------------------------------------------------------------------- */

static icms_err number_set(struct conf_edit_text *edit, const char *key, uint32_t value)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%u", value);
    return conf_edit_key_set(edit, conf_doc_root(edit->doc), key, text, "epoch", by_hand);
}

/* One of the addresses of the command line, which have commas between them; returns where the next
 * one begins, NULL: behind the last. */
static const char *address_split(const char *asked, char out[CONF_ADDRESS_BYTES])
{
    size_t bytes = strcspn(asked, ",");

    (void)snprintf(out, CONF_ADDRESS_BYTES, "%.*s", (int)bytes, asked);
    return asked[bytes] == ',' ? asked + bytes + 1 : NULL;
}

/* As they are written in the file: [::1]:4420 would be a list. */
static void addresses_write(const char *asked, char *out, size_t bytes)
{
    bool is_list = strchr(asked, ',') != NULL;
    char address[CONF_ADDRESS_BYTES];
    size_t used = 0;

    for (const char *at = asked; at != NULL && used < bytes;) {
        const char *next = address_split(at, address);
        const char *quote = address[0] == '[' ? "\"" : "";

        used += (size_t)snprintf(out + used, bytes - used, "%s%s%s%s%s",
                                 !is_list      ? ""
                                 : at == asked ? "["
                                               : ", ",
                                 quote, address, quote, is_list && next == NULL ? "]" : "");
        at = next;
    }
}

/* Whether an enclosure has just these. */
static bool addresses_are(const struct conf_enclosure *enclosure, const char *asked)
{
    char address[CONF_ADDRESS_BYTES];
    uint32_t i = 0;

    for (const char *at = asked; at != NULL; i++) {
        at = address_split(at, address);
        if (i == enclosure->address_count || strcmp(enclosure->address[i], address) != 0)
            return false;
    }
    return i == enclosure->address_count;
}

/* The lines of the new enclosure. */
static icms_err entry_add(struct conf_edit_text *edit, const struct conf_pod_change *asked)
{
    char addresses[LIMIT_LINKS * (CONF_ADDRESS_BYTES + 4) + 3];
    const struct {
        const char *key, *value;
    } lines[] = {{"name", asked->name}, {"address", addresses},        {"uuid", asked->uuid},
                 {"nqn", asked->nqn},   {"capacity", asked->capacity}, {"weight", asked->weight},
                 {"http", asked->http}, {"state", "joining"}};
    char text[LIMIT_NAME_BYTES + sizeof(addresses) + LIMIT_NQN_BYTES + CONF_URL_BYTES + 512];
    size_t used = 0;

    addresses_write(asked->address, addresses, sizeof(addresses));
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        if (lines[i].value != NULL)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s: %s\n", lines[i].key,
                                     lines[i].value);
    return conf_edit_entry_add(edit, NULL, text, by_hand);
}

/* A value of the command line: "key=value", of which key gets its own end. */
static const char *value_split(const char *asked, char key[LIMIT_NAME_BYTES])
{
    const char *equals = strchr(asked, '=');

    if (equals == NULL || (size_t)(equals - asked) >= LIMIT_NAME_BYTES)
        return NULL;
    memcpy(key, asked, (size_t)(equals - asked));
    key[equals - asked] = '\0';
    return equals + 1;
}

/* Of the values of a volume: some tens of hosts; more are written by hand. */
#define VALUES_BYTES 16384

/* The lines of the new volume. */
static icms_err volume_add(const struct change *change, struct conf_edit_text *edit)
{
    const struct conf_pod_change *asked = change->asked;
    char text[VALUES_BYTES], key[LIMIT_NAME_BYTES];
    int used = snprintf(text, sizeof(text), "name: %s\n", asked->name);

    for (uint32_t i = 0; i < asked->value_count && used < (int)sizeof(text); i++) {
        const char *value = value_split(asked->values[i], key);

        if (value[0] != '\0')
            used += snprintf(text + used, sizeof(text) - (size_t)used, "%s: %s\n", key, value);
    }
    if (used >= (int)sizeof(text))
        return conf_edit_refuse(edit, edit->list->line, by_hand);
    return conf_edit_entry_add(edit, change->before->volume_count == 0 ? "volumes" : NULL, text,
                               by_hand);
}

static icms_err volume_set(const struct change *change, struct conf_edit_text *edit)
{
    char key[LIMIT_NAME_BYTES];
    icms_err err = ICMS_OK;

    for (uint32_t i = 0; i < change->asked->value_count && err == ICMS_OK; i++) {
        const char *value = value_split(change->asked->values[i], key);

        if (!conf_edit_find(edit, change->asked->name)) /* in the text as it is now */
            return conf_edit_refuse(edit, edit->list->line, by_hand);
        err = value[0] != '\0' ? conf_edit_key_set(edit, edit->entry, key, value, "name", by_hand)
                               : conf_edit_key_remove(edit, edit->entry, key, by_hand);
    }
    return err;
}

/* Sets a key of the enclosure, of the text as it is now; value NULL: it is not written any more. */
static icms_err key_put(const struct change *change, struct conf_edit_text *edit, const char *key,
                        const char *value)
{
    if (!conf_edit_find(edit, change->asked->name))
        return conf_edit_refuse(edit, edit->list->line, by_hand);
    return value != NULL ? conf_edit_key_set(edit, edit->entry, key, value, "name", by_hand)
                         : conf_edit_key_remove(edit, edit->entry, key, by_hand);
}

/* The new weight, and the one that it had, as configurations have it: with millionths at most. */
static icms_err weight_set(const struct change *change, struct conf_edit_text *edit)
{
    char former[400];
    int used =
        snprintf(former, sizeof(former), "%.6f", change->before->enclosures[change->index].weight);
    icms_err err = key_put(change, edit, "weight", change->asked->weight);

    while (former[used - 1] == '0')
        former[--used] = '\0';
    if (former[used - 1] == '.')
        former[--used] = '\0';
    return err == ICMS_OK ? key_put(change, edit, "former_weight", former) : err;
}

/* Only one that is up has a former weight. */
static icms_err state_set(const struct change *change, struct conf_edit_text *edit,
                          const char *state)
{
    icms_err err = key_put(change, edit, "former_weight", NULL);

    return err == ICMS_OK ? key_put(change, edit, "state", state) : err;
}

static icms_err volume_reset(const struct change *change, struct conf_edit_text *edit)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%u", change->before->volumes[change->index].generation + 1);
    return conf_edit_key_set(edit, edit->entry, "generation", text, "name", by_hand);
}

/* Whether a volume that is set loses blocks or is open to more hosts, by values that
 * volume_values_check has looked at. A list of hosts lists one, or is not written. */
static bool is_volume_shrinking(const struct change *change)
{
    const struct conf_pod_volume *was = &change->before->volumes[change->index];
    struct conf_pod_volume is = {
        .quota_bytes = was->quota_bytes, .host_count = was->host_count, .require = was->require};
    struct err_why reason;
    char key[LIMIT_NAME_BYTES];

    for (uint32_t i = 0; i < change->asked->value_count; i++) {
        const char *value = value_split(change->asked->values[i], key);

        if (value[0] != '\0')
            (void)!conf_pod_volume_set(key, value, &reason, &is);
        else if (strcmp(key, "quota") == 0)
            is.quota_bytes = 0;
        else if (strcmp(key, "hosts") == 0)
            is.host_count = 0;
        else if (strcmp(key, "require") == 0)
            is.require = 0;
    }
    return conf_quota_is_lower(was->quota_bytes, is.quota_bytes) ||
           conf_hosts_open(was->host_count, is.host_count) ||
           conf_require_is_lower(was->require, is.require);
}

/* Whether something leaves, shrinks or is opened, which the operator has confirmed: daemons that
 * miss several such changes, or that one drained first, see all of them at once. */
static bool is_shrinking(const struct change *change)
{
    switch (change->asked->what) {
    case CONF_POD_OUT:
    case CONF_POD_REMOVE:
    case CONF_POD_SHRINK:
    case CONF_POD_VOLUME_DELETE:
        return true;
    case CONF_POD_VOLUME_SET:
        return is_volume_shrinking(change);
    default:
        return false;
    }
}

static icms_err change_make(const struct change *change, struct conf_edit_text *edit)
{
    uint32_t epoch = change->before->epoch + 1;
    icms_err err = number_set(edit, "epoch", epoch);

    if (err == ICMS_OK && is_shrinking(change))
        err = number_set(edit, "shrink_epoch", epoch);
    if (err != ICMS_OK)
        return err;
    if (change->asked->name != NULL && change->asked->what != CONF_POD_ADD &&
        change->asked->what != CONF_POD_VOLUME_CREATE && !conf_edit_find(edit, change->asked->name))
        return conf_edit_refuse(edit, edit->list->line, by_hand);
    switch (change->asked->what) {
    case CONF_POD_ADD:
        return entry_add(edit, change->asked);
    case CONF_POD_WEIGHT:
        return weight_set(change, edit);
    case CONF_POD_SETTLE:
        if (change->before->enclosures[change->index].former_weight > 0)
            return key_put(change, edit, "former_weight", NULL);
        return key_put(change, edit, "state", "up");
    case CONF_POD_UNDRAIN:
        return conf_edit_key_set(edit, edit->entry, "state", "joining", "name", by_hand);
    case CONF_POD_DRAIN:
        return state_set(change, edit, "draining");
    case CONF_POD_OUT:
        return state_set(change, edit, "out");
    case CONF_POD_REMOVE:
        return conf_edit_entry_remove(edit, by_hand);
    case CONF_POD_SHRINK:
        return ICMS_OK;
    case CONF_POD_VOLUME_CREATE:
        return volume_add(change, edit);
    case CONF_POD_VOLUME_SET:
        return volume_set(change, edit);
    case CONF_POD_VOLUME_RESET:
        return volume_reset(change, edit);
    case CONF_POD_VOLUME_DELETE:
        return conf_edit_entry_remove(edit, by_hand);
    }
    return ICMS_OK;
}

/* ---- what came of it ------------------------------------------------------------------------ */

/* Of a volume. Its identity is not set by hand: reset makes another one. Only a new one has a
 * generation to begin with: its name may be that of a volume whose blocks are still on drives. */
static icms_err volume_values_check(const struct change *change)
{
    struct conf_pod_volume volume;
    struct err_why reason = {""};
    char key[LIMIT_NAME_BYTES];

    if (conf_pod_volume_set("name", change->asked->name, &reason, &volume) != ICMS_OK)
        return err_set(change->why, ICMS_INVALID, "name: %s; nothing was changed", reason.text);
    for (uint32_t i = 0; i < change->asked->value_count; i++) {
        const char *value = value_split(change->asked->values[i], key);

        if (value == NULL)
            return err_set(
                change->why, ICMS_INVALID,
                "%s: write a key and its value, as in run_blocks=16; nothing was changed",
                change->asked->values[i]);
        if (strcmp(key, "name") == 0 || strcmp(key, "uuid") == 0 ||
            (strcmp(key, "generation") == 0 && change->asked->what != CONF_POD_VOLUME_CREATE))
            return err_set(change->why, ICMS_INVALID,
                           "%s: it is not set: reset gives a volume another generation; nothing "
                           "was changed",
                           key);
        /* what ends a line or begins a comment would be another key, or none */
        for (const char *at = value; *at != '\0'; at++)
            if ((unsigned char)*at < ' ' || *at == '#' || *at == 0x7f)
                return err_set(change->why, ICMS_INVALID,
                               "%s: a value has no line ends, control bytes or number signs; "
                               "nothing was changed",
                               key);
        if (conf_pod_volume_set(key, value, &reason, &volume) != ICMS_OK)
            return err_set(change->why, ICMS_INVALID, "%s: %s; nothing was changed", key,
                           reason.text);
    }
    return ICMS_OK;
}

static icms_err addresses_check(const struct change *change)
{
    char address[CONF_ADDRESS_BYTES];
    struct conf_enclosure enclosure;
    struct err_why reason = {""};
    uint32_t count = 0;

    for (const char *at = change->asked->address; at != NULL; count++) {
        at = address_split(at, address);
        if (count == LIMIT_LINKS)
            return err_set(change->why, ICMS_INVALID,
                           "address: more than %d of them; nothing was changed", LIMIT_LINKS);
        if (conf_pod_value_set("address", address, &reason, &enclosure) != ICMS_OK)
            return err_set(change->why, ICMS_INVALID, "address: %s; nothing was changed",
                           reason.text);
    }
    return ICMS_OK;
}

/* Values of the command line have to be right before they are written between others. */
static icms_err values_check(const struct change *change)
{
    const struct conf_pod_change *asked = change->asked;
    const struct {
        const char *key, *value;
    } values[] = {{"name", asked->name},         {"uuid", asked->uuid},     {"nqn", asked->nqn},
                  {"capacity", asked->capacity}, {"weight", asked->weight}, {"http", asked->http}};
    struct conf_enclosure enclosure;
    struct err_why reason = {""};

    if (is_of_volume(asked))
        return volume_values_check(change);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (values[i].value != NULL &&
            conf_pod_value_set(values[i].key, values[i].value, &reason, &enclosure) != ICMS_OK)
            return err_set(change->why, ICMS_INVALID, "%s: %s; nothing was changed", values[i].key,
                           reason.text);
    return asked->address == NULL ? ICMS_OK : addresses_check(change);
}

/* The generation that the volume has afterwards. */
static uint32_t generation_wanted(const struct change *change)
{
    const struct conf_pod_change *asked = change->asked;
    struct conf_pod_volume volume = {.generation = 0};
    struct err_why reason;
    char key[LIMIT_NAME_BYTES];

    if (asked->what != CONF_POD_VOLUME_CREATE)
        return change->before->volumes[change->index].generation +
               (asked->what == CONF_POD_VOLUME_RESET);
    for (uint32_t i = 0; i < asked->value_count; i++) {
        const char *value = value_split(asked->values[i], key);

        if (strcmp(key, "generation") == 0 &&
            conf_pod_volume_set(key, value, &reason, &volume) != ICMS_OK)
            return 0; /* not so: volume_values_check looked */
    }
    return volume.generation;
}

/* Of volumes: what is set, and the UUID that follows from the generation, is taken as it was
 * parsed. */
static bool volume_is_right(const struct change *change, struct conf_pod *wanted)
{
    const struct conf_pod_change *asked = change->asked;
    const struct conf_pod *after = change->after;
    uint32_t count = wanted->volume_count, at = change->index;
    bool is_new = asked->what == CONF_POD_VOLUME_CREATE;

    if (asked->what == CONF_POD_VOLUME_DELETE) {
        memmove(&wanted->volumes[at], &wanted->volumes[at + 1],
                (count - 1 - at) * sizeof(wanted->volumes[0]));
        memset(&wanted->volumes[count - 1], 0, sizeof(wanted->volumes[0]));
        wanted->volume_count--;
        return true;
    }
    if (after->volume_count != count + is_new ||
        strcmp(after->volumes[at].name, asked->name) != 0 ||
        after->volumes[at].generation != generation_wanted(change))
        return false;
    if (asked->what == CONF_POD_VOLUME_RESET) {
        wanted->volumes[at].generation++;
        wanted->volumes[at].uuid = after->volumes[at].uuid;
    } else {
        memcpy(&wanted->volumes[at], &after->volumes[at], sizeof(wanted->volumes[0]));
    }
    wanted->volume_count += is_new;
    return true;
}

/* The map that shall come of it; of a new enclosure what was parsed, if it is the right one. */
static bool change_is_right(const struct change *change, struct conf_pod *wanted)
{
    const struct conf_pod_change *asked = change->asked;
    const struct conf_pod *after = change->after;
    uint32_t count = wanted->enclosure_count;
    struct conf_enclosure *at = &wanted->enclosures[change->index];

    wanted->epoch++;
    if (is_shrinking(change))
        wanted->shrink_epoch = wanted->epoch;
    if (is_of_volume(asked))
        return volume_is_right(change, wanted) && conf_pod_equal(wanted, after);
    switch (asked->what) {
    case CONF_POD_ADD:
        if (after->enclosure_count != count + 1 ||
            strcmp(after->enclosures[count].name, asked->name) != 0 ||
            !addresses_are(&after->enclosures[count], asked->address) ||
            after->enclosures[count].state != CONF_ENCLOSURE_JOINING)
            return false;
        memcpy(at, &after->enclosures[count], sizeof(*at));
        wanted->enclosure_count++;
        break;
    case CONF_POD_WEIGHT:
        at->former_weight = at->weight;
        at->weight = weight_asked(change);
        break;
    case CONF_POD_SETTLE:
        at->state = CONF_ENCLOSURE_UP;
        at->former_weight = 0;
        break;
    case CONF_POD_UNDRAIN:
        at->state = CONF_ENCLOSURE_JOINING;
        break;
    case CONF_POD_DRAIN:
        at->state = CONF_ENCLOSURE_DRAINING;
        at->former_weight = 0;
        break;
    case CONF_POD_OUT:
        at->state = CONF_ENCLOSURE_OUT;
        at->former_weight = 0;
        break;
    case CONF_POD_REMOVE:
        memmove(at, at + 1, (count - 1 - change->index) * sizeof(*at));
        memset(&wanted->enclosures[count - 1], 0, sizeof(*at));
        wanted->enclosure_count--;
        break;
    case CONF_POD_SHRINK:
        break;
    default:
        return false;
    }
    return conf_pod_equal(wanted, after);
}

/* Whether nothing but the epoch differs. */
static bool is_as_before(const struct change *change)
{
    struct conf_pod *after = change->after;
    bool is_same;

    after->epoch--;
    is_same = conf_pod_equal(change->before, after);
    after->epoch++;
    return is_same;
}

/* Of a volume: its format is not changed under blocks that are stored, and nothing is lost without
 * a question. */
static icms_err volume_check_after(const struct change *change)
{
    const struct conf_pod_change *asked = change->asked;
    bool is_new = asked->what == CONF_POD_VOLUME_CREATE;
    char text[CONF_VOLUME_REFUSAL_BYTES];
    struct volume_spec was, is;
    const char *refusal;

    if (!is_new && asked->what != CONF_POD_VOLUME_SET)
        return ICMS_OK;
    if (!is_new && is_as_before(change))
        return refuse(change, ICMS_EXISTS, "it is so already");
    if (!is_new)
        conf_pod_volume_spec(&change->before->volumes[change->index], &was);
    conf_pod_volume_spec(&change->after->volumes[change->index], &is);
    refusal = conf_volume_refusal(&(struct conf_volume_step){.was = is_new ? NULL : &was,
                                                             .is = &is,
                                                             .values = asked->values,
                                                             .value_count = asked->value_count,
                                                             .yes = asked->yes},
                                  text);
    return refusal == NULL ? ICMS_OK : refuse(change, ICMS_INVALID, refusal);
}

static icms_err change_verify(const struct change *change, const struct conf_edit_text *edit)
{
    struct conf_pod *wanted = malloc(sizeof(*wanted));
    icms_err err;

    if (wanted == NULL)
        return err_set(change->why, ICMS_NO_MEMORY, "%s: out of memory", change->path);
    memcpy(wanted, change->before, sizeof(*wanted)); /* lists of hosts are borrowed */
    err = conf_pod_parse(edit->text, edit->bytes, change->path, change->why, change->after);
    if (err == ICMS_OK)
        err = volume_check_after(change);
    if (err == ICMS_OK && !change_is_right(change, wanted))
        err = conf_edit_refuse(edit, edit->list->line, by_hand);
    free(wanted);
    return err;
}

/* Reads the map, and finds the enclosure. */
static icms_err change_begin(struct change *change)
{
    icms_err err = conf_pod_read(change->path, change->why, change->before);

    if (err != ICMS_OK)
        return err;
    if (is_of_volume(change->asked))
        while (change->index < change->before->volume_count &&
               strcmp(change->before->volumes[change->index].name, change->asked->name) != 0)
            change->index++;
    else
        while (change->index < change->before->enclosure_count &&
               (change->asked->name == NULL ||
                strcmp(change->before->enclosures[change->index].name, change->asked->name) != 0))
            change->index++;
    err = values_check(change);
    return err == ICMS_OK ? change_check(change) : err;
}

icms_err conf_pod_change(const char *path, const struct conf_pod_change *asked, struct err_why *why,
                         struct conf_pod *out_before, struct conf_pod *out_after,
                         struct conf_edit *out_edit)
{
    struct change change = {
        .asked = asked, .path = path, .why = why, .before = out_before, .after = out_after};
    struct conf_edit_text edit = {0};
    struct conf_edit made = {0};
    icms_err err;

    conf_edit_begin(path, &made);
    err = change_begin(&change);
    if (err != ICMS_OK)
        return err;
    err = conf_edit_open(
        &edit, path, is_of_volume(asked) && out_before->volume_count > 0 ? "volumes" : "enclosures",
        why, &made);
    if (err == ICMS_OK)
        err = change_make(&change, &edit);
    if (err == ICMS_OK)
        err = change_verify(&change, &edit);
    if (err == ICMS_OK) {
        made.text = edit.text;
        made.bytes = edit.bytes;
        made.from = out_before->epoch;
        made.to = out_after->epoch;
        edit.text = NULL;
        *out_edit = made;
    }
    conf_edit_close(&edit);
    return err;
}
