/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/conf_int.h: private to the module: the tree of a YAML file, the table of keys, and errors
 * that begin with FILE:LINE.
 *
 * A text goes through three steps: doc.c makes a bounded tree of it and knows no key; bind.c walks
 * the tree along a table of keys (keys.c) and fills the struct; rules.c then checks what concerns
 * several keys and fills in defaults that are computed. All on the caller's thread.
 */
#ifndef CONF_CONF_INT_H
#define CONF_CONF_INT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conf/conf.h"

/* ---- errors (value.c) ----------------------------------------------------------------------- */

struct conf_source {
    const char *name;    /* of the file, for errors        */
    struct err_why *why; /* where the sentence goes; or NULL */
};

/* Writes "NAME:LINE: sentence" and returns ICMS_CONFIG. */
icms_err conf_fail(const struct conf_source *source, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Copies a text from a file for an error: cut, quotes and control bytes made harmless. */
#define CONF_SHOW_BYTES 64
const char *conf_show(const char *text, char out[CONF_SHOW_BYTES]);

/* ---- files (conf.c) ------------------------------------------------------------------------- */

/* Reads a whole file, at most one byte more than is allowed: the parser refuses that. remedy: where
 * its name is given. The text is the caller's to free. */
icms_err conf_file_read(const char *path, const char *remedy, struct err_why *why, char **out_text,
                        size_t *out_bytes) ICMS_MUST_CHECK;

/* ---- the tree (doc.c) ----------------------------------------------------------------------- */

/* Names in the lists of hosts of one file, together: those of 64 volumes with full lists. More are
 * a mistake, or would take hundreds of megabytes of text. */
#define CONF_FILE_HOSTS ((size_t)64 * LIMIT_VOLUME_HOSTS)

/* Of a file: 1 MiB, 2 KiB for each volume, and the names of hosts, half as long as they can be. */
#define CONF_FILE_BYTES_MAX                                                                        \
    (((size_t)1 << 20) + (size_t)LIMIT_VOLUMES * 2048 + CONF_FILE_HOSTS * LIMIT_NQN_BYTES / 2)

/* Maps and lists in each other; values, those of lists of hosts among them. */
#define CONF_DEPTH_MAX 8
#define CONF_NODES_MAX ((size_t)16384 + (size_t)LIMIT_VOLUMES * 16 + CONF_FILE_HOSTS)

enum conf_node_kind {
    CONF_NODE_SCALAR,
    CONF_NODE_MAP,
    CONF_NODE_LIST,
};

struct conf_node {
    enum conf_node_kind kind;
    uint32_t line;           /* where the value begins, from 1     */
    uint32_t key_line;       /* member of a map: where its key is  */
    const char *key;         /* member of a map: its key; or NULL  */
    const char *text;        /* scalar: its text                   */
    struct conf_node *first; /* map, list: members in order        */
    struct conf_node *last;
    struct conf_node *next; /* in the map or list that holds it   */
};

struct conf_doc;

/* Parses one document of YAML: no anchors, aliases, tags; bounded. Keys may repeat here. */
icms_err conf_doc_parse(const struct conf_source *source, const char *text, size_t bytes,
                        struct conf_doc **out_doc) ICMS_MUST_CHECK;
const struct conf_node *conf_doc_root(const struct conf_doc *doc);
void conf_doc_free(struct conf_doc **doc);

/* The member of a map with this key; NULL when there is none. */
const struct conf_node *conf_node_get(const struct conf_node *map, const char *key);

/* The line of an item of a list, or of a value that stands for a list of one. */
uint32_t conf_node_item_line(const struct conf_node *node, uint32_t i);

/* The line of a member, or of the map when the member is not written. */
uint32_t conf_node_line(const struct conf_node *map, const char *key);

/* ---- the table of keys (keys.c) ------------------------------------------------------------- */

enum conf_kind {
    CONF_NAME,      /* char[size]: letters, digits, . _ -                   */
    CONF_PATH,      /* char[size]: any text but an empty one                */
    CONF_NQN,       /* char[size]                                           */
    CONF_ADDRESS,   /* char[size]: numeric host:port                        */
    CONF_ADDRESSES, /* the same, or "none", which is ""                     */
    CONF_PORTALS,   /* one address or a list of them: char[size], max how many; min: of a port */
    CONF_HOST,      /* char[size]: host:port, numeric or a DNS name         */
    CONF_HOSTS,     /* one of them or a list: char[size], max how many      */
    CONF_URL,       /* char[size]: http:// or https://, and what CONF_HOST is */
    CONF_UUID,      /* struct uuid                                          */
    CONF_BYTES,     /* uint64_t                                             */
    CONF_BUDGET,    /* struct write_budget: a size a day, or a number and DWPD */
    CONF_DURATION,  /* uint32_t, milliseconds                               */
    CONF_COUNT,     /* uint32_t                                             */
    CONF_MODE,      /* uint32_t, written in octal                           */
    CONF_BOOL,      /* bool                                                 */
    CONF_REQUIRE,   /* uint8_t, REQUIRE_*; with CONF_REQUIRE_WRITTEN until rules.c looked */
    CONF_CHOICE,    /* uint8_t: number of a word of choices                 */
    CONF_PERCENT,   /* double, 0..100                                       */
    CONF_NUMBER,    /* double, over 0                                       */
    CONF_MAP,       /* a struct of its own table                            */
    CONF_MAPS,      /* a list of them; size is of one, max how many         */
    CONF_NQNS,      /* a list of char[size] in memory of its own, max how many */
    CONF_PATHS,     /* a list of char[size], max how many                   */
    CONF_USERS,     /* a list of struct local_id, their numbers by rules.c  */
    CONF_GROUPS,    /* the same                                             */
};

struct conf_table;

struct conf_key {
    const char *name;
    enum conf_kind kind;
    bool required;                  /* has no default and must be written                      */
    bool own;                       /* CONF_MAPS: a list in memory of its own                  */
    const char *unless;             /* required only where this key is not written; or NULL    */
    uint32_t offset;                /* in the struct                                           */
    uint32_t size;                  /* text: room; list: of one member                         */
    uint32_t count_offset;          /* list: its uint32_t count in the struct                  */
    uint64_t min, max;              /* of a number in its unit; of a list: members             */
    const char *fallback;           /* the default as it would be written; NULL: none          */
    const char *computed;           /* how the default is found, for documents; or NULL        */
    const char *example;            /* for the example file where there is no fallback         */
    const char *const *choices;     /* CONF_CHOICE: words; NULL behind the last one            */
    const struct conf_table *table; /* of CONF_MAP and CONF_MAPS                               */
    const char *doc;                /* sentences for the example file and the manual           */
};

/* Of a CONF_REQUIRE: it was written, and none is not the default. */
#define CONF_REQUIRE_WRITTEN 0x80u

struct conf_table {
    const char *what; /* "a volume", for errors                     */
    const struct conf_key *keys;
    uint32_t count;
    /* What concerns several keys, and computed defaults; or NULL. Runs when all is bound. */
    icms_err (*rules)(const struct conf_source *source, const struct conf_node *map, void *object);
};

extern const struct conf_table conf_target_table;
extern const struct conf_table conf_agent_table;
extern const struct conf_table conf_volume_table;
extern const struct conf_table conf_model_table;
extern const struct conf_table conf_seal_table;
extern const struct conf_table conf_nixl_table;
extern const struct conf_table conf_pod_table;

/* Whether two volumes have the same lists of hosts, as they are written. */
struct conf_pod;
struct conf_pod_volume;
bool conf_pod_hosts_equal(const struct conf_pod_volume *a, const struct conf_pod_volume *b);

/* Whether an enclosure has an address among its first ones. */
bool conf_enclosure_has(const struct conf_enclosure *enclosure, uint32_t count,
                        const char *address);

/* The volume of this name, the enclosure of this UUID; NULL: the map has none. */
const struct conf_pod_volume *conf_pod_volume_find(const struct conf_pod *pod, const char *name);
const struct conf_enclosure *conf_pod_enclosure_find(const struct conf_pod *pod,
                                                     const struct uuid *uuid);

/* Whether the last line of a map, or of a target's configuration, is `...`. */
icms_err conf_pod_ended(const struct conf_source *source, const char *text,
                        size_t bytes) ICMS_MUST_CHECK;

/* ---- binding (bind.c) ----------------------------------------------------------------------- */

/* The word that is written most alike; NULL when none is near. words ends with NULL. */
const char *conf_word_nearest(const char *const *words, const char *text);

/* Sets every default that is written in the table. */
void conf_table_init(const struct conf_table *table, void *object);

/* Fills the struct from a map. The struct holds its defaults already. */
icms_err conf_table_bind(const struct conf_table *table, const struct conf_source *source,
                         const struct conf_node *map, void *object) ICMS_MUST_CHECK;

/* ---- values (value.c) ----------------------------------------------------------------------- */

/* Sets one scalar; the sentence in why has no file and line. */
icms_err conf_value_set(const struct conf_key *key, const char *text, struct err_why *why,
                        void *object) ICMS_MUST_CHECK;

/* One value of an enclosure of a pod map, by the name of its key (keys.c). */
icms_err conf_pod_value_set(const char *key, const char *text, struct err_why *why,
                            struct conf_enclosure *out_enclosure) ICMS_MUST_CHECK;

/* Likewise of a volume of a pod map; "" is not written. Of a list only its form is looked at. */
icms_err conf_pod_volume_set(const char *key, const char *text, struct err_why *why,
                             struct conf_pod_volume *out_volume) ICMS_MUST_CHECK;

/* Why a target cannot be connected to by this address, behind the address; NULL: it can. */
const char *conf_address_wrong(const char *address);

/* Likewise why nothing can listen there. */
const char *conf_address_wrong_listen(const char *address);

/* Who can write a configuration decides who is believed, and who may use which volume: PERMISSION
 * for a file that every user of the machine can write. */
icms_err conf_file_check(int fd, const char *path, struct err_why *why) ICMS_MUST_CHECK;

/* Whether other machines reach what listens there; "" is nowhere. */
bool conf_address_is_wide(const char *address);

/* The first address of an enclosure at which another machine can answer, and any DNS name but
 * localhost; NULL: it has none. */
const char *conf_enclosure_remote(const struct conf_enclosure *enclosure);

/* ---- rules (rules.c) ------------------------------------------------------------------------ */

icms_err conf_target_rules(const struct conf_source *source, const struct conf_node *map,
                           void *object);
icms_err conf_agent_rules(const struct conf_source *source, const struct conf_node *map,
                          void *object);
icms_err conf_http_rules(const struct conf_source *source, const struct conf_node *map,
                         void *object) ICMS_MUST_CHECK;
icms_err conf_volume_rules(const struct conf_source *source, const struct conf_node *map,
                           void *object);
icms_err conf_host_rules(const struct conf_source *source, const struct conf_node *map,
                         void *object);

/* The NQN made from a UUID: "nqn.2014-08.org.nvmexpress:uuid:...". */
void conf_uuid_nqn(const struct uuid *uuid, char out[LIMIT_NQN_BYTES]);
icms_err conf_enclosure_rules(const struct conf_source *source, const struct conf_node *map,
                              void *object);
icms_err conf_pod_volume_rules(const struct conf_source *source, const struct conf_node *map,
                               void *object);

/* Notes which keys of volumes are written that a pod map may have, too. */
extern const char *const conf_shared_names[CONF_SHARED_COUNT];
void conf_shared_note(const struct conf_source *source, const struct conf_node *map,
                      struct conf_agent *agent);

icms_err conf_pod_rules(const struct conf_source *source, const struct conf_node *map,
                        void *object);

/* Name, UUID and address are each one enclosure's. list: where they are written in map. */
icms_err conf_enclosures_unique(const struct conf_source *source, const struct conf_node *map,
                                const struct conf_enclosure *enclosures,
                                uint32_t count) ICMS_MUST_CHECK;

/* Endpoints that can be listened on, each one's own; volumes that there are. */
icms_err conf_events_rules(const struct conf_source *source, const struct conf_node *map,
                           struct conf_agent *agent) ICMS_MUST_CHECK;

/* Segments that a drive must hold at least, so that one can be filled while others are reclaimed.
 */
#define CONF_DRIVE_SEGMENTS_MIN 4

/* Of an agent with a drive of its own: a size that a drive can have, quotas that fit it. */
icms_err conf_local_rules(const struct conf_source *source, const struct conf_node *map,
                          const struct conf_agent *agent) ICMS_MUST_CHECK;

/* Each has a name of its own, a volume that there is, and a state in hex. hash_seed and hash_tokens
 * that are not written become those of vLLM. */
icms_err conf_models_rules(const struct conf_source *source, const struct conf_node *map,
                           struct conf_agent *agent) ICMS_MUST_CHECK;

/* Enclosures, a pod map or a drive of its own: one of them. */
icms_err conf_agent_pod_rules(const struct conf_source *source, const struct conf_node *map,
                              const struct conf_agent *agent) ICMS_MUST_CHECK;

/* Keys of enclosures that are not written are the agent's; what is required has a key; one at an
 * address of another machine has to prove something unless it is written that it need not. */
icms_err conf_enclosure_keys_rules(const struct conf_source *source, const struct conf_node *map,
                                   struct conf_agent *agent) ICMS_MUST_CHECK;

/* Whether the largest block of a volume fits into a segment. */
static inline bool conf_segment_holds(uint64_t segment, const struct volume_spec *volume)
{
    return volume_stored_bytes_max(volume) + 2 * LIMIT_DISK_ALIGN <= segment;
}

/* What volumes and tenants have to fit to: own: the target's file; map: where volumes and tenants
 * are written, the same or that of the pod map. */
struct conf_target_lists {
    const struct conf_source *own;
    const struct conf_node *own_root;
    const struct conf_source *map;
    const struct conf_node *map_root;
};
icms_err conf_target_lists_rules(const struct conf_target_lists *lists,
                                 struct conf_target *target) ICMS_MUST_CHECK;

/* A tenant is listed once. */
icms_err conf_tenants_unique(const struct conf_source *source, const struct conf_node *map,
                             const struct tenant_spec *tenants, uint32_t count) ICMS_MUST_CHECK;

/* Volume number i names a tenant that is listed, or none ("": its own). */
icms_err conf_tenant_known(const struct conf_source *source, const struct conf_node *map,
                           uint32_t i, const char *tenant, const struct tenant_spec *tenants,
                           uint32_t count) ICMS_MUST_CHECK;

/* Fills in volumes and tenants of a target from a map; lists of hosts stay the map's. CONFIG: the
 * map lists no volumes, or has this enclosure with another UUID or NQN. */
icms_err conf_pod_target(const struct conf_pod *pod, const struct conf_source *source,
                         const struct conf_node *map, struct conf_target *target) ICMS_MUST_CHECK;

/* Entry number i of a list that was bound from map. */
const struct conf_node *conf_entry(const struct conf_node *map, const char *list, uint32_t i);

/* ---- warn.c: what is right, and worth a line of the log all the same; a few are kept ----------
 */

void conf_warn(struct conf_warnings *warnings, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* When other machines reach the address. */
void conf_warn_wide(struct conf_warnings *warnings, const char *key, const char *address,
                    const char *consequence);
void conf_warn_http(struct conf_warnings *warnings, const struct conf_http *http);

/* Volumes that require what no host has. */
void conf_warn_volumes(struct conf_target *target);

/* Models of volumes that list users, behind an HTTP port that asks for no proof. */
void conf_warn_models(struct conf_agent *agent);
void conf_warn_seeds(struct conf_agent *agent);

/* Hosts that list the same file of a secret or TLS key. */
void conf_warn_shared_keys(struct conf_target *target);

/* An enclosure of another machine that only asks for a proof, and gives none. */
void conf_warn_plain(struct conf_agent *agent);

/* What is not written of require is what stands above it. */
uint8_t conf_require_of(uint8_t written, uint8_t above);

icms_err conf_seal_key_rules(const struct conf_source *source, const struct conf_node *map,
                             void *object);
icms_err conf_seal_volume_rules(const struct conf_source *source, const struct conf_node *map,
                                void *object);
icms_err conf_seal_rules(const struct conf_source *source, const struct conf_node *map,
                         void *object);
icms_err conf_nixl_volume_rules(const struct conf_source *source, const struct conf_node *map,
                                void *object);
icms_err conf_nixl_device_rules(const struct conf_source *source, const struct conf_node *map,
                                void *object);
icms_err conf_nixl_rules(const struct conf_source *source, const struct conf_node *map,
                         void *object);

/* ---- changing a file line by line (edit.c) --------------------------------------------------- */

/* A file and its tree. */
struct conf_edit_text {
    char *text;
    size_t bytes;
    struct conf_source source;
    struct conf_doc *doc;
    const struct conf_node *list;  /* of the entries              */
    const struct conf_node *entry; /* the one that is changed     */
};

/* Before a file is read otherwise, too: what is read then and what is changed is one text. */
void conf_edit_begin(const char *path, struct conf_edit *out_edit);

/* Reads the file, and finds its list of that name. EXISTS: it is another one than at
 * conf_edit_begin. */
icms_err conf_edit_open(struct conf_edit_text *edit, const char *path, const char *list,
                        struct err_why *why, struct conf_edit *io_edit) ICMS_MUST_CHECK;

/* Finds the entry whose name is this; false: there is none. */
bool conf_edit_find(struct conf_edit_text *edit, const char *name);

/* The same by another key than the name. */
bool conf_edit_find_key(struct conf_edit_text *edit, const char *key, const char *text);

void conf_edit_close(struct conf_edit_text *edit);

/* A key of a map gets a value, in its line, or in a new one behind that of the key `after`; loses
 * it. by_hand: what the operator does where the style of the file does not allow it. */
icms_err conf_edit_key_set(struct conf_edit_text *edit, const struct conf_node *map,
                           const char *key, const char *value, const char *after,
                           const char *by_hand) ICMS_MUST_CHECK;
icms_err conf_edit_key_remove(struct conf_edit_text *edit, const struct conf_node *map,
                              const char *key, const char *by_hand) ICMS_MUST_CHECK;

/* An entry is added behind the last one, or, with the name of a list that the file does not have,
 * as its first one at the end of the file. lines: "name: kv\nquota: 1GiB\n". */
icms_err conf_edit_entry_add(struct conf_edit_text *edit, const char *list, const char *lines,
                             const char *by_hand) ICMS_MUST_CHECK;

/* The lines of the entry go. */
icms_err conf_edit_entry_remove(struct conf_edit_text *edit, const char *by_hand) ICMS_MUST_CHECK;

/* The line cannot be changed; what: what the operator does instead. */
icms_err conf_edit_refuse(const struct conf_edit_text *edit, uint32_t line, const char *what);

/* ---- volume_change.c ------------------------------------------------------------------------ */

/* A change of a volume on its way. */
struct conf_volume_step {
    const struct volume_spec *was, *is; /* was: NULL: it is created                   */
    const char *const *values;          /* that are asked for: "quota=1GiB"           */
    uint32_t value_count;
    bool yes; /* although blocks are lost, or more hosts are let in, or some out      */
};

#define CONF_VOLUME_REFUSAL_BYTES (LIMIT_NQN_BYTES + 64)

/* Why the change is refused, as a clause, perhaps in text: an NQN that nobody has among the hosts
 * that are set, another format, or, without yes, what is lost by it. NULL: it may be made. */
const char *conf_volume_refusal(const struct conf_volume_step *step,
                                char text[CONF_VOLUME_REFUSAL_BYTES]);

/* Whether blocks that a volume holds may be above its next quota; 0 is none. */
bool conf_quota_is_lower(uint64_t was_bytes, uint64_t is_bytes);

/* Whether any host may use a volume afterwards, where only those on its list might. */
bool conf_hosts_open(uint32_t was_count, uint32_t is_count);

/* Whether hosts have to prove less afterwards; REQUIRE_*. */
bool conf_require_is_lower(uint8_t was, uint8_t is);

/* A volume of a map as targets have it; its list of hosts stays the map's. */
void conf_pod_volume_spec(const struct conf_pod_volume *from, struct volume_spec *to);

#endif
