/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/change.h: a change of one entry of a list in the file of a target: a volume, a drive.
 *
 * As in edit.c only the lines of the change are other ones afterwards. A change is refused first by
 * what it means (kind->check), then made line by line (kind->make). The new text, parsed as a
 * target does, must differ from the old one in what was asked for and in nothing else
 * (kind->is_asked): so no value can bring a line of its own. In the end the kind may refuse what
 * would be lost (kind->check_after). Called by cmd, on its thread.
 */
#ifndef CONF_CHANGE_H
#define CONF_CHANGE_H

#include "conf/conf_int.h"

/* Bytes of a value with its key. */
#define CONF_CHANGE_VALUE_BYTES (LIMIT_PATH_BYTES + 64)

struct conf_change;

struct conf_change_kind {
    const char *list; /* "volumes"                                    */
    const char *key;  /* that tells its entries apart: "name"         */
    const char *noun; /* "volume"                                     */

    /* Whether what is asked for may be, in the file as it is. */
    icms_err (*check)(struct conf_change *change);

    /* The sentence that refuses a key as a value's; NULL: it may be set. */
    const char *(*key_refusal)(const struct conf_change *change, const char *key);

    /* The lines; the entry is found if the file had it. */
    icms_err (*make)(const struct conf_change *change, struct conf_edit_text *edit);

    /* Whether a difference is asked for. rest: what stands behind "volumes[kv]", ".quota" or "". */
    bool (*is_asked)(const struct conf_change *change, const char *rest);

    /* Whether the file may be as it is now; NULL: it may. */
    icms_err (*check_after)(const struct conf_change *change);
};

struct conf_change {
    const struct conf_change_kind *kind;
    const void *asked;
    const char *path;          /* of the file                                              */
    const char *name;          /* of the entry: what its key says                          */
    const char *other;         /* the name that it gets, or NULL                           */
    const char *const *values; /* "quota=1GiB"                                             */
    uint32_t value_count;
    bool is_new;      /* it is added                                                       */
    uint32_t index;   /* of it in before; UINT32_MAX: there is none                        */
    uint32_t version; /* that check picks, and make writes                                 */
    struct err_why *why;
    struct conf_live *before, *after;
    uint32_t differences; /* of before and after                                           */
    bool is_other;        /* one of them was not asked for                                 */
};

/* Makes a change of which kind, asked, path, name, other, values, is_new and why are set. visit is
 * called for each difference. */
icms_err conf_change_run(struct conf_change *change,
                         void (*visit)(void *arg, const char *key, const char *was, const char *is),
                         void *arg, struct conf_edit *out_edit) ICMS_MUST_CHECK;

/* "FILE: volume kv: SENTENCE; nothing was changed". */
icms_err conf_change_refuse(const struct conf_change *change, icms_err err, const char *sentence);

/* Each value in its line; one of nothing loses its line. */
icms_err conf_change_values(const struct conf_change *change,
                            struct conf_edit_text *edit) ICMS_MUST_CHECK;

/* The entry in the text as it is now. */
icms_err conf_change_find(const struct conf_change *change,
                          struct conf_edit_text *edit) ICMS_MUST_CHECK;

/* What an operator does where the style of the file does not allow a change. */
extern const char conf_change_by_hand[];

#endif
