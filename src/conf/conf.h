/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/conf.h: one YAML file a daemon, one for the keys of clients and one for the NIXL plugin,
 * turned into structs.
 *
 * An unknown key, a duplicate, a wrong unit or a value out of its range is an error whose sentence
 * begins with FILE:LINE. Sizes are written 64KiB, 8MiB, 10GiB (or bytes), times 500ms, 2s. Keys
 * are named like the fields here without the unit: segment_bytes is `segment`. One table of keys
 * (keys.c) makes the parser, the defaults, the example files and the manual pages. Nothing is
 * started or touched while a file is read. Control threads only.
 *
 * The structs have up to five megabytes: keep them on the heap or static.
 */
#ifndef CONF_CONF_H
#define CONF_CONF_H

#include "base/err.h"
#include "base/types.h"

enum conf_drive_state {
    CONF_DRIVE_UP,       /* takes and gives                          */
    CONF_DRIVE_DRAINING, /* is read, and gives what it has to others */
};

/* A drive of a target: `path`, `size`, `state`, `health`, `format_empty`, `bytes_per_block`,
 * `write_budget` and `write_burst` (both in budget). */
struct conf_drive {
    char path[LIMIT_PATH_BYTES];   /* file or block device             */
    uint8_t state;                 /* enum conf_drive_state            */
    char health[LIMIT_PATH_BYTES]; /* file (conf_health_read); "": the device is asked */
    uint64_t bytes;                /* file: made with this size; 0: as it is */
    bool format_empty;             /* without being asked                    */
    uint64_t bytes_per_block;      /* of the drive, for an entry of its index */
    struct write_budget budget;    /* what may be written to it a day  */
};

/* What is allowed and yet worth a line in the log, such as a port that other machines reach. */
#define CONF_WARNINGS 8
struct conf_warnings {
    uint32_t count;
    char text[CONF_WARNINGS][256]; /* sentences */
};

/* Metrics and health of a daemon: HTTP. */
struct conf_http {
    char listen[64];                    /* "127.0.0.1:9420"; "" for none                     */
    char open[8];                       /* "all" (or ""), "metrics", "none": for everybody  */
    char token[LIMIT_PATH_BYTES];       /* file of a bearer token; "": none                  */
    char certificate[LIMIT_PATH_BYTES]; /* file of the server's, PEM; "": no TLS             */
    char key[LIMIT_PATH_BYTES];         /* file of its private key                           */
    char client_ca[LIMIT_PATH_BYTES];   /* file of CAs of clients; "": none                  */
};

/* A host that a target knows: `hosts`. */
struct conf_host {
    char nqn[LIMIT_NQN_BYTES];
    uint8_t require;                                 /* REQUIRE_*; default: the target's      */
    uint32_t psk_count;                              /* of psks                               */
    char psks[LIMIT_HOST_KEYS][LIMIT_PATH_BYTES];    /* files of TLS keys                     */
    uint32_t secret_count;                           /* of secrets                            */
    char secrets[LIMIT_HOST_KEYS][LIMIT_PATH_BYTES]; /* files of DHHC-1 secrets            */
    char controller_secret[LIMIT_PATH_BYTES];        /* file of the target's towards it; "": none */
};

/* A number for the connections of each class: `dscp`, `priority`. */
struct conf_classes {
    uint32_t control, loads, prestage, stores; /* 0: none */
};

/* icms-target: an enclosure. */
struct conf_target {
    char name[LIMIT_NAME_BYTES]; /* for people                                         */
    struct uuid uuid;            /* of the enclosure: placement follows it             */
    char nqn[LIMIT_NQN_BYTES];   /* its subsystem; default made from the uuid          */
    /* Portals: NVMe/TCP data ports, and what discovery tells hosts of each; as many. */
    char listen[LIMIT_PORTALS][64], advertise[LIMIT_PORTALS][64];
    uint32_t listen_count, advertise_count;
    uint32_t loops;         /* cores                                              */
    bool busy_poll;         /* loops never sleep                                  */
    uint32_t poll_us;       /* they spin for so long first; 0: not at all         */
    uint64_t segment_bytes; /* used when a drive is formatted                     */
    bool discard;           /* drives are told what is free                       */
    uint64_t memory_bytes;  /* pool of data buffers                               */
    uint32_t connections_max;
    uint32_t queue_entries_max;         /* commands a queue pair                              */
    uint32_t header_timeout_ms;         /* a started PDU must be whole by then                */
    struct conf_classes dscp, priority; /* of connections                             */
    uint64_t in_capsule_bytes;
    double ready_quota_percent_max; /* readiness limit on quota use; 0: off               */
    double ready_out_percent_max;   /* readiness limit on drives out of service:
                                       `ready_drives_out_max` */
    struct conf_http http;
    uint8_t require;         /* REQUIRE_*: of hosts that do not say otherwise      */
    uint32_t host_count;     /* of hosts                                           */
    struct conf_host *hosts; /* freed by conf_target_fini                          */
    uint32_t chap_hash_count, chap_group_count; /* as written: 0: all              */
    char chap_hashes[3][16];      /* names, best first                                 */
    char chap_groups[6][16];      /* likewise                                          */
    char audit[LIMIT_PATH_BYTES]; /* file, "journal", or "" for none               */
    char pod[LIMIT_PATH_BYTES];   /* file of the pod map (conf/pod.h), whose volumes and tenants are
                                     the target's (conf_live_join); ""             */
    uint32_t drive_count;
    struct conf_drive drives[LIMIT_DRIVES];
    uint32_t tenant_count;
    struct tenant_spec tenants[LIMIT_TENANTS];
    uint32_t volume_count;
    struct volume_spec volumes[LIMIT_VOLUMES];
    struct conf_warnings warnings;
};

/* What an enclosure of a pod is there for. */
enum conf_enclosure_state {
    CONF_ENCLOSURE_UP,       /* takes and gives                                             */
    CONF_ENCLOSURE_JOINING,  /* new: what it has not yet is asked of the former owner, too  */
    CONF_ENCLOSURE_DRAINING, /* leaves: is read, and takes no new blocks                    */
    CONF_ENCLOSURE_OUT,      /* agents do not use it; what it is called stays taken         */
};

/* A name of up to 253 bytes, and a port. */
#define CONF_ADDRESS_BYTES 264

/* "https://" before that. */
#define CONF_URL_BYTES (CONF_ADDRESS_BYTES + 8)

/* Whether two addresses with ports, numeric or with a name, are one that is spelled in two ways. */
bool conf_address_same(const char *a, const char *b);

/* An enclosure in the list of an agent, or in a pod map, which has no keys. */
struct conf_enclosure {
    char name[LIMIT_NAME_BYTES];
    struct uuid uuid;
    char nqn[LIMIT_NQN_BYTES];
    uint32_t address_count; /* of address: its links                                 */
    char address[LIMIT_LINKS][CONF_ADDRESS_BYTES]; /* NVMe/TCP of its target; in a pod map also DNS
                                                      names                          */
    char http[CONF_URL_BYTES];     /* of a pod map: where its target shows its status; "": not said;
                                      agents do not look at it                        */
    uint8_t state;                 /* enum conf_enclosure_state; UP without a pod map */
    uint64_t capacity_bytes;       /* of a pod map: of its drives; 0: not said        */
    double weight;                 /* healthy capacity in any unit, same for all; 1, or the GiB of
                                      capacity_bytes                                  */
    double former_weight;          /* of a pod map, UP: before it changed; 0: as it is */
    uint8_t require;               /* REQUIRE_*: what it has to give; default: the agent's */
    bool is_require_written;       /* there or for the agent, if only as none         */
    char psk[LIMIT_PATH_BYTES];    /* file of the TLS key; default: the agent's; "": none */
    char secret[LIMIT_PATH_BYTES]; /* file of this host's DHHC-1 secret; likewise  */
    char controller_secret[LIMIT_PATH_BYTES]; /* file of the one it has to prove; likewise    */
};

/* icms-agent, and the agent inside a process (pod:FILE). */
/* Keys of a volume about which all agents of a pod have to agree (conf/pod.h). */
enum conf_shared {
    CONF_SHARED_UUID,
    CONF_SHARED_GENERATION,
    CONF_SHARED_VALUE_MAX,
    CONF_SHARED_SEALED,
    CONF_SHARED_ENCRYPTED,
    CONF_SHARED_RUN_BLOCKS,
    CONF_SHARED_COUNT,
};

/* A volume whose events are published. */
struct conf_events {
    char volume[LIMIT_NAME_BYTES];
    char endpoint[128]; /* ipc://PATH or tcp://ADDRESS:PORT       */
    char replay[128];   /* likewise; "": none                     */
    uint64_t window_bytes;
    uint32_t mode; /* permission bits of ipc                      */
    bool open;     /* whoever reaches a tcp endpoint may read     */
};

/* What the keys of a model's blocks are made of. */
enum conf_model_of {
    CONF_MODEL_TOKENS,
    CONF_MODEL_HASHES,
};

/* How an engine hashes token ids, if that is known: --prefix-caching-hash-algo of vLLM. */
enum conf_model_hash {
    CONF_MODEL_HASH_NONE,
    CONF_MODEL_SHA256,
    CONF_MODEL_SHA256_CBOR,
};

#define CONF_HASH_SEED_BYTES 64
#define CONF_HASH_SEED       "vllm-none-hash" /* vLLM's where PYTHONHASHSEED is not set */

/* Tokens of a block, and of what is hashed at a time. */
#define CONF_BLOCK_TOKENS_MAX 65536
#define CONF_HASH_TOKENS_MAX  4096

/* A model by whose name routers give hints: how the keys of its engines are made. */
struct conf_model {
    char name[128];
    char volume[LIMIT_NAME_BYTES];
    char state[2 * 32 + 1]; /* struct icms_chain's, in hex                     */
    char suffix[16 + 1];    /* in hex, behind each hash; "": none              */
    uint32_t block_tokens;
    uint8_t of;           /* enum conf_model_of                                      */
    uint8_t hash;         /* enum conf_model_hash; of others than hashes: NONE       */
    uint32_t hash_tokens; /* of what is hashed at a time; block_tokens is a multiple */
    char hash_seed[CONF_HASH_SEED_BYTES];
};

struct conf_agent {
    char name[LIMIT_NAME_BYTES];
    char host_nqn[LIMIT_NQN_BYTES]; /* default: made from host_id                         */
    struct uuid host_id;            /* default: from the machine id and the name          */
    char socket[104];               /* unix socket for clients                            */
    uint32_t socket_mode;           /* permission bits, default 0600                      */
    uint32_t user_clients_max;      /* processes of one user                              */
    uint32_t loops;
    bool busy_poll;                     /* loops never sleep                                  */
    bool prefault;                      /* memory for blocks is taken at the start            */
    uint32_t poll_us;                   /* they spin for so long first; 0: not at all         */
    bool header_digest, data_digest;    /* NVMe/TCP digests                                   */
    struct conf_classes dscp, priority; /* of connections                                  */
    bool exist_many;               /* look for many blocks with one command where that is offered */
    uint32_t queue_entries;        /* commands a queue pair                              */
    uint8_t require;               /* REQUIRE_*: what enclosures have to give            */
    char psk[LIMIT_PATH_BYTES];    /* file of the TLS key; "": none                      */
    char secret[LIMIT_PATH_BYTES]; /* file of this host's DHHC-1 secret; "": none     */
    char controller_secret[LIMIT_PATH_BYTES]; /* file of the one that enclosures have to prove   */
    char audit[LIMIT_PATH_BYTES];             /* file, "journal", or "" for none                 */
    uint32_t connect_timeout_ms;
    uint32_t keep_alive_ms;    /* KATO                                               */
    uint32_t silence_ms;       /* no answer at all for this long: excluded           */
    uint32_t probe_ms;         /* background probing of excluded enclosures          */
    uint32_t load_deadline_ms; /* default deadlines of requests without one          */
    uint32_t store_deadline_ms;
    uint64_t memory_bytes;           /* for the blocks of all volumes                      */
    uint64_t store_backlog_bytes;    /* more than this waiting: stores are shed            */
    uint64_t client_bytes;           /* staging memory of a client, and the most it may ask for */
    double ready_memory_percent_max; /* readiness limit on its use; 0: off                 */
    struct conf_http http;
    char local_path[LIMIT_PATH_BYTES]; /* a drive of its own, beside a pod or instead; ""    */
    uint64_t local_bytes;              /* its size                                           */
    uint64_t local_segment_bytes;
    double local_exclusive_percent;   /* of the runs, on it and not in the pod             */
    struct write_budget local_budget; /* what may be written to it a day                     */
    char pod[LIMIT_PATH_BYTES];       /* file of the pod map (conf/pod.h); "": enclosures   */
    uint32_t enclosure_count;         /* with a pod map: none until conf_pod_join           */
    struct conf_enclosure enclosures[LIMIT_ENCLOSURES];
    uint32_t enclosure_key_count; /* with a pod map: the keys of single enclosures      */
    struct conf_enclosure enclosure_keys[LIMIT_ENCLOSURES];
    struct conf_enclosure keys; /* with a pod map: those of all others                 */
    uint32_t volume_count;
    struct volume_spec volumes[LIMIT_AGENT_VOLUMES];
    uint32_t events_count;
    struct conf_events events[LIMIT_AGENT_VOLUMES];
    uint32_t model_count;
    struct conf_model models[LIMIT_AGENT_VOLUMES];
    /* Lines of the keys of a volume that a pod map may have, too; 0: not written. */
    uint32_t shared_lines[LIMIT_AGENT_VOLUMES][CONF_SHARED_COUNT];
    char file[LIMIT_PATH_BYTES]; /* where all of this was read                     */
    struct conf_warnings warnings;
};

/* A key of an encrypted volume: `file`, or `wrapped` with `kek_file` or `key_command`. */
struct conf_seal_key {
    uint32_t id; /* not 0 */
    char file[LIMIT_PATH_BYTES];
    char wrapped[LIMIT_PATH_BYTES];
    char kek_file[LIMIT_PATH_BYTES];
    char key_command[LIMIT_PATH_BYTES]; /* an absolute path, and arguments */
};

struct conf_seal_volume {
    char name[LIMIT_NAME_BYTES];
    uint32_t key_count;
    struct conf_seal_key keys[LIMIT_VOLUME_KEYS]; /* the first one seals */
};

/* The keys of a process that uses encrypted volumes: what icms_open() takes as `keys`. */
struct conf_seal {
    uint32_t volume_count;
    struct conf_seal_volume volumes[LIMIT_AGENT_VOLUMES];
};

/* A volume behind a device of the NIXL plugin. */
struct conf_nixl_volume {
    char nguid[33];              /* 32 hex digits, as NIXL's users write them            */
    struct uuid nguid_bytes;     /* the same                                             */
    char name[LIMIT_NAME_BYTES]; /* of the volume in the pod: `volume`                   */
    struct uuid uuid;            /* that it must have; all zero: any                     */
};

/* What a device_name of the NIXL backend DOCA_MEMOS stands for. */
struct conf_nixl_device {
    char name[LIMIT_PATH_BYTES];       /* as NIXL's users write it: `device_name`              */
    char connection[LIMIT_PATH_BYTES]; /* unix:, pod: or dir:, as icms_open() takes it         */
    char keys[LIMIT_PATH_BYTES];       /* list of keys of encrypted volumes; "": ICMS_KEYS     */
    uint32_t load_deadline_ms;         /* of a READ and a query                                */
    uint32_t store_deadline_ms;        /* of a WRITE                                           */
    uint32_t volume_count;
    struct conf_nixl_volume volumes[LIMIT_AGENT_VOLUMES];
};

/* The table of the NIXL plugin: whose CMX devices are what here. */
#define CONF_NIXL_DEVICES 64
struct conf_nixl {
    uint32_t device_count;
    struct conf_nixl_device devices[CONF_NIXL_DEVICES];
};

/* Every default that needs no file: no drive, no volume, no enclosure, and of the target no name.
 * The agent's name, host id and socket are those of this machine and user. */
void conf_target_init(struct conf_target *conf);
void conf_agent_init(struct conf_agent *conf);

/* One volume with every default: no name, no UUID. */
void conf_volume_init(struct volume_spec *volume);

/* Makes it encrypted: its UUID is another one then. Once, after the UUID was set. */
void conf_volume_encrypt(struct volume_spec *volume);

/* UUIDs that are not written are made from names, so that daemons which know the same name agree
 * without being told. */
void conf_volume_uuid(const char *name, struct uuid *out_uuid);
void conf_enclosure_uuid(const char *name, struct uuid *out_uuid);

/* Where an agent of this user listens: /run/icms/agent.sock for root, else
 * $XDG_RUNTIME_DIR/icms/agent.sock, else /tmp/icms-UID/agent.sock. */
void conf_socket_default(char out[104]);

/* Where a client of this user looks: the same, or when nothing is there and the machine's own agent
 * is, /run/icms/agent.sock. */
void conf_socket_find(char out[104]);

icms_err conf_target_read(const char *path, struct err_why *why,
                          struct conf_target *out_conf) ICMS_MUST_CHECK;
icms_err conf_agent_read(const char *path, struct err_why *why,
                         struct conf_agent *out_conf) ICMS_MUST_CHECK;
icms_err conf_nixl_read(const char *path, struct err_why *why,
                        struct conf_nixl *out_conf) ICMS_MUST_CHECK;

/* PERMISSION, too: others than the user of the process and root can write the list. */
icms_err conf_seal_read(const char *path, struct err_why *why,
                        struct conf_seal *out_conf) ICMS_MUST_CHECK;

/* Frees the lists of hosts, those of volumes and the target's, which a target with these volumes
 * reads while it lives. After a read or a parse that was right; harmless a second time. */
void conf_target_fini(struct conf_target *conf);
void conf_agent_fini(struct conf_agent *conf);

/* The same from memory; name stands for the file in errors. */
icms_err conf_target_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                           struct conf_target *out_conf) ICMS_MUST_CHECK;
icms_err conf_agent_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                          struct conf_agent *out_conf) ICMS_MUST_CHECK;
icms_err conf_seal_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                         struct conf_seal *out_conf) ICMS_MUST_CHECK;
icms_err conf_nixl_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                         struct conf_nixl *out_conf) ICMS_MUST_CHECK;

/* By its name; NULL: there is none. */
const struct volume_spec *conf_agent_volume(const struct conf_agent *agent, const char *name);
const struct conf_model *conf_agent_model(const struct conf_agent *agent, const char *name);

/* Whose configuration a file is. */
enum conf_file_kind {
    CONF_FILE_TARGET,
    CONF_FILE_POD,
    CONF_FILE_NIXL,
    CONF_FILE_AGENT,
    CONF_FILE_SEAL,
};

/* "icms-target", "pod map"; static. */
const char *conf_file_kind_name(enum conf_file_kind kind);

/* Which kind a file is, by its keys, and whether it is right as far as the file itself tells. */
icms_err conf_check(const char *path, struct err_why *why,
                    enum conf_file_kind *out_kind) ICMS_MUST_CHECK;

/* Calls visit for each value that differs in meaning between two files of one kind: its key, as
 * "volumes[kv].quota", and both as they are written. INVALID: they are of two kinds. */
icms_err conf_diff(const char *was_path, const char *is_path,
                   void (*visit)(void *arg, const char *key, const char *was, const char *is),
                   void *arg, struct err_why *why) ICMS_MUST_CHECK;

/* A target's file as it was read, with its lines, and its pod map if it has one: what runs, or what
 * shall. */
struct conf_live;
struct conf_pod;

/* Reads the file; *out_live for conf_live_free. remedy: where its name is given: "--config". */
icms_err conf_live_read(const char *path, const char *remedy, struct err_why *why,
                        struct conf_live **out_live) ICMS_MUST_CHECK;
void conf_live_free(struct conf_live **live);

/* The same from memory; name stands for the file in errors. */
icms_err conf_live_parse(const char *name, const char *text, size_t bytes, struct err_why *why,
                         struct conf_live **out_live) ICMS_MUST_CHECK;

/* The same file once more, without a map. */
icms_err conf_live_again(const struct conf_live *live, struct err_why *why,
                         struct conf_live **out_live) ICMS_MUST_CHECK;

/* Of a file with `pod`, once: volumes and tenants become those of this map, whose text it is; name
 * stands for its file in errors. CONFIG, with file and line: the map is wrong, lists no volumes,
 * has this enclosure with another UUID or NQN, or does not fit to the target's file; live is of no
 * use then. That the map does not have the enclosure is one of the warnings. */
icms_err conf_live_join(struct conf_live *live, const char *text, size_t bytes, const char *name,
                        struct err_why *why) ICMS_MUST_CHECK;

/* As long as live; of a file with `pod`, without volumes until conf_live_join. */
const struct conf_target *conf_live_target(const struct conf_live *live);

/* NULL: there is none. */
const struct conf_pod *conf_live_pod(const struct conf_live *live);

/* Whether a target that runs with one file may go on with the other: only volumes, tenants, which
 * drives there are, and their states differ in meaning, and the last line is `...` if it was.
 * CONFIG with file, line and both values otherwise. What the maps are to each other says
 * conf_pod_compare(). */
icms_err conf_live_check(const struct conf_live *was, const struct conf_live *is,
                         struct err_why *why) ICMS_MUST_CHECK;

/* Calls visit for each difference, as conf_diff, those of the maps among them. */
void conf_live_diff(const struct conf_live *was, const struct conf_live *is,
                    void (*visit)(void *arg, const char *key, const char *was, const char *is),
                    void *arg);

/* The line of a key of a volume, by its place in the list; of the volume where the key is not
 * written. UINT32_MAX: of a key of the file; 1 where that is not written. *out_file: the file that
 * it is a line of, which is the map's where that lists the volumes; as long as live. */
uint32_t conf_live_line(const struct conf_live *live, uint32_t volume, const char *key,
                        const char **out_file);

/* The line of a drive, by its place in the list. UINT32_MAX: of the list. */
uint32_t conf_live_drive_line(const struct conf_live *live, uint32_t drive);

/* What is known of the health of a drive. */
#define CONF_HEALTH_NO_TEMPERATURE (-1000)
struct conf_health {
    uint8_t warnings;                         /* critical_warning of NVMe              */
    int used_percent;                         /* of its rated writes; -1: not known    */
    int temperature_c, warning_c, critical_c; /* CONF_HEALTH_NO_TEMPERATURE: not known */
};

/* What `smartctl --json -A` wrote; CONFIG: it is nothing like it. Blocking. */
icms_err conf_health_read(const char *path, struct err_why *why,
                          struct conf_health *out_health) ICMS_MUST_CHECK;

/* The same from memory; name stands for the file in errors. */
icms_err conf_health_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                           struct conf_health *out_health) ICMS_MUST_CHECK;

/* A configuration file that shall be changed: its new text, for conf_edit_fini. */
struct conf_edit {
    char *text;
    size_t bytes;
    uint32_t from, to;  /* the generation, or the epoch of a pod map     */
    uint64_t was_bytes; /* the file that was read: its length, and where */
    uint64_t was[2];    /* it is; when it was written                    */
    uint64_t was_time_ns;
};

/* The file of a target or an agent with the volume's generation raised by one, to at_least if that
 * is more. Nothing is written. Only its line changes, or is added. NO_VOLUME: the file does not
 * have it. CONFIG: the file is wrong, or written in a style that cannot be changed line by line. */
icms_err conf_generation_raise(const char *path, const char *volume, uint32_t at_least,
                               struct err_why *why, struct conf_edit *out_edit) ICMS_MUST_CHECK;

/* What shall happen to a volume in the file of a target. */
enum conf_volume_what {
    CONF_VOLUME_CREATE, /* it is added, with values                              */
    CONF_VOLUME_SET,    /* it gets values                                        */
    CONF_VOLUME_RESET,  /* its generation is raised by one                       */
    CONF_VOLUME_DELETE, /* it goes                                               */
};

struct conf_volume_change {
    enum conf_volume_what what;
    const char *name;          /* of the volume                                           */
    const char *const *values; /* CREATE, SET: "quota=1TiB"; "quota=": not written        */
                               /* CREATE alone: "generation=3", behind a deleted volume's */
    uint32_t value_count;
    bool yes; /* although blocks are lost, or more hosts may use it                       */
};

/* The file of a target with the change; visit is called for each difference, as conf_diff. Nothing
 * is written (conf_edit_write). out_edit->from: the generation that the volume had. EXISTS,
 * NOT_FOUND, INVALID: refused with a sentence. CONFIG: the file is wrong, or written in a style
 * that cannot be changed line by line. */
icms_err
conf_volume_change(const char *path, const struct conf_volume_change *asked,
                   void (*visit)(void *arg, const char *key, const char *was, const char *is),
                   void *arg, struct err_why *why, struct conf_edit *out_edit) ICMS_MUST_CHECK;

/* What shall happen to a drive in the file of a target. */
enum conf_drive_what {
    CONF_DRIVE_ADD,     /* it is added, with values                              */
    CONF_DRIVE_DRAIN,   /* its state becomes draining                            */
    CONF_DRIVE_UNDRAIN, /* and up                                                */
    CONF_DRIVE_REMOVE,  /* it goes: one that drains, or any one with yes         */
    CONF_DRIVE_REPLACE, /* another path takes its place; likewise                */
};

struct conf_drive_change {
    enum conf_drive_what what;
    const char *path;          /* of the drive                      */
    const char *other;         /* REPLACE: of the one that comes    */
    const char *const *values; /* ADD: "size=10GiB"                 */
    uint32_t value_count;
    bool yes; /* although blocks are lost */
};

/* The file of a target with the change; as conf_volume_change. EXISTS: it is so already; NOT_FOUND,
 * INVALID: refused with a sentence. */
icms_err
conf_drive_change(const char *path, const struct conf_drive_change *asked,
                  void (*visit)(void *arg, const char *key, const char *was, const char *is),
                  void *arg, struct err_why *why, struct conf_edit *out_edit) ICMS_MUST_CHECK;

/* The list of keys without a volume; the same otherwise. */
icms_err conf_seal_remove(const char *path, const char *volume, struct err_why *why,
                          struct conf_edit *out_edit) ICMS_MUST_CHECK;

/* Puts the new text in the place of the file, durably and at once, with its mode and owner. After a
 * failure the file is as it was. EXISTS: somebody else edits it, or has since it was read. */
icms_err conf_edit_write(const char *path, const struct conf_edit *edit,
                         struct err_why *why) ICMS_MUST_CHECK;
void conf_edit_fini(struct conf_edit *edit);

/* Puts a text in the place of a file, durably and at once, with the mode and owner of the one that
 * is there, or makes the file, with mode 0644. After a failure the file is as it was. */
icms_err conf_file_put(const char *path, const char *text, size_t bytes,
                       struct err_why *why) ICMS_MUST_CHECK;

/* Marks as they are configured. */
struct net_marks conf_marks(const struct conf_classes *dscp, const struct conf_classes *priority);

/* Bytes to "64KiB": the largest unit that divides them. Returns out. */
const char *conf_bytes_format(uint64_t bytes, char out[32]);

/* "64KiB", "8MiB", "1.5GiB", "4096" to bytes; "250ms", "2s" to milliseconds. */
icms_err conf_bytes_parse(const char *text, struct err_why *why,
                          uint64_t *out_bytes) ICMS_MUST_CHECK;
icms_err conf_duration_parse(const char *text, struct err_why *why,
                             uint32_t *out_ms) ICMS_MUST_CHECK;

/* REQUIRE_* as it is written: "none", "chap", "tls", "chap+tls". Static. */
const char *conf_require_name(uint8_t require);

/* 32 hex digits to 16 bytes; false, and nothing is set, when it is anything else. */
bool conf_nguid_parse(const char *text, struct uuid *out_nguid);

/* An example file with every key, its default and a comment, for `--print-config`. Static. */
const char *conf_target_example(void);
const char *conf_agent_example(void);

/* A key, for documents. */
struct conf_key_doc {
    const char *name;     /* "volumes[].quota"                                       */
    const char *type;     /* "size"                                                  */
    const char *fallback; /* "64MiB", "required", "made from the name"               */
    const char *range;    /* "64KiB to 256MiB"; "" when there is none                */
    const char *doc;      /* sentences                                               */
};

/* Calls visit for every key in the order of the example file. */
void conf_target_keys(void (*visit)(void *arg, const struct conf_key_doc *doc), void *arg);
void conf_agent_keys(void (*visit)(void *arg, const struct conf_key_doc *doc), void *arg);
void conf_seal_keys(void (*visit)(void *arg, const struct conf_key_doc *doc), void *arg);
void conf_nixl_keys(void (*visit)(void *arg, const struct conf_key_doc *doc), void *arg);
void conf_pod_keys(void (*visit)(void *arg, const struct conf_key_doc *doc), void *arg);

#endif
