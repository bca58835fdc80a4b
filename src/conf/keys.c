/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every key of the daemons' configuration files and of the pod map, in the order in which they are
 * shown; those of clients' files are in keys_client.c. These tables make the parser, the defaults,
 * the example files and the key lists of the manual pages.
 */
#include "conf/keys_int.h"
#include "conf/pod.h"

#include <assert.h>
#include <string.h>

#include "base/fair.h"

static_assert(LIMIT_VOLUMES == 1024 && LIMIT_TENANTS == 1024 && LIMIT_AGENT_VOLUMES == 64 &&
                  LIMIT_VOLUME_HOSTS == 4096 && CONF_FILE_HOSTS == 262144,
              "the sentences of the keys name these limits");

/* Segments: what the flash engine can format. */
#define SEGMENT_MIN (64 * KIB)
#define SEGMENT_MAX (256 * MIB)

/* ---- entries -------------------------------------------------------------------------------- */

static const char *const drive_states[] = {
    [CONF_DRIVE_UP] = "up",
    [CONF_DRIVE_DRAINING] = "draining",
    NULL,
};

static const struct conf_key drive_keys[] = {
    {"path", CONF_PATH, true, AT(struct conf_drive, path), .example = "/var/lib/icms/drive0",
     .doc = "A block device, or a file. A zoned block device is refused."},
    {"size", CONF_BYTES, false, AT(struct conf_drive, bytes), .min = 0, .max = 1024 * TIB,
     .fallback = "0",
     .doc = "How large to make a missing file. 0 takes a device or a file as large as it is."},
    {"state", CONF_CHOICE, false, AT(struct conf_drive, state), .fallback = "up",
     .choices = drive_states,
     .doc = "up: the drive takes and gives blocks. draining: it is read and takes no new blocks; "
            "what is loaded from it moves to the other drives, and all else, too, as long as those "
            "have free space. Removing it costs nothing when it is empty, as `icms status "
            "--target` shows. One "
            "drive at least is up."},
    {"health", CONF_PATH, false, AT(struct conf_drive, health), .computed = "the device is asked",
     .example = "/var/lib/icms/drive0.smart",
     .doc =
         "A file with the output of `smartctl --json -A` of the drive, written anew from time to "
         "time, for instance by a timer of systemd. Without it an NVMe device is asked for its "
         "health log, which needs the right to do so, and of others the temperature is taken "
         "from /sys. A drive that is worn, hot or often slow gets fewer new blocks: 50% of its "
         "share from 90% of its rated writes or its warning temperature on, 25% from 100% or "
         "its critical temperature on or when it says that its spare or reliability is low, "
         "none when it says that it is read-only. A part falls at once, and rises after 10 "
         "minutes in which all was better. What is on the drive stays there."},
    {"format_empty", CONF_BOOL, false, AT(struct conf_drive, format_empty), .fallback = "false",
     .doc = "Whether a missing file is made, and a drive that holds nothing is formatted, at the "
            "start. With false such a drive is out of service until icms-target is started with "
            "--format: a file can also be missing because its file system is not mounted, or be "
            "empty because it was truncated. Set it to true where drives are made on demand."},
    {"bytes_per_block", CONF_BYTES, false, AT(struct conf_drive, bytes_per_block),
     .min = LIMIT_DISK_ALIGN, .max = LIMIT_VALUE_BYTES, .fallback = "64KiB",
     .doc = "Usual size of a block on the drive: its index in memory has an entry of 32 bytes for "
            "each so many bytes of the drive. Set it lower when most blocks are smaller: blocks "
            "that the index has no entries for are evicted before the drive is full."},
    {"write_budget", CONF_BUDGET, false, AT(struct conf_drive, budget), .fallback = "0",
     .doc = "What may be written to the drive a day: 1DWPD is its whole size once, as in the "
            "endurance that its maker rates; or bytes, like 500GiB. All writes count. When it runs "
            "short, blocks that come for the first time are refused (a store answers that it was "
            "shed), and those that were refused or evicted lately are taken; new blocks of "
            "runs that were read are refused later than others. 0 is no limit."},
    {"write_burst", CONF_BYTES, false, AT(struct conf_drive, budget.burst_bytes), .min = 0,
     .max = 1024 * TIB, .fallback = "0",
     .doc = "Most of the write budget that may be saved up. 0 is the budget of a day. After each "
            "start there is a quarter of an hour's worth."},
};
static const struct conf_table drive_table = {"a drive", KEYS(drive_keys)};

static const struct conf_key tenant_keys[] = {
    {"name", CONF_NAME, true, AT(struct tenant_spec, name), .example = "team-a",
     .doc = "The tenant's name, as volumes name it in tenant. A volume that names none belongs to "
            "the tenant that is called like the volume."},
    {"weight", CONF_COUNT, false, AT(struct tenant_spec, weight), .min = 1, .max = FAIR_WEIGHT_MAX,
     .fallback = "1",
     .doc = "Its part of the bytes that are loaded, and of those that are stored, relative to the "
            "other tenants whose commands wait at the same time. What a tenant does not use goes "
            "to the others. Tenants that are not listed have 1."},
    {"load_bytes_per_s", CONF_BYTES, false, AT(struct tenant_spec, load_bytes_per_s), .min = 0,
     .max = 1 * TIB, .fallback = "0",
     .doc = "Bytes a second that all hosts of the tenant together may load; 0 is no limit. At the "
            "limit loads wait. Commands count in whole pages of 4 KiB."},
    {"load_ops_per_s", CONF_COUNT, false, AT(struct tenant_spec, load_ops_per_s), .min = 0,
     .max = 1000000000, .fallback = "0",
     .doc = "The same in operations a second: loads of a value, deletions, List and Flush count "
            "one each, Exist and exist-many one for each key. At the limit they wait."},
    {"store_bytes_per_s", CONF_BYTES, false, AT(struct tenant_spec, store_bytes_per_s), .min = 0,
     .max = 1 * TIB, .fallback = "0",
     .doc = "Bytes a second that all hosts of the tenant together may store; 0 is no limit. At the "
            "limit stores wait, and are shed when too many do."},
    {"store_ops_per_s", CONF_COUNT, false, AT(struct tenant_spec, store_ops_per_s), .min = 0,
     .max = 1000000000, .fallback = "0", .doc = "The same in stores a second."},
};
static const struct conf_table tenant_table = {"a tenant", KEYS(tenant_keys)};

/* Of a volume in a target's file, and in the pod map: for targets alone. */
#define VOLUME_TENANT(type)                                                                        \
    {                                                                                              \
        "tenant", CONF_NAME, false, AT(type, tenant),                                              \
            .computed = "the volume's name", .example = "team-a",                                  \
            .doc = "The tenant that the volume belongs to, one of tenants. Volumes of one tenant " \
                   "share its part of the enclosure and its limits. Only icms-target uses it."     \
    }
#define VOLUME_QUOTA(type)                                                                         \
    {                                                                                              \
        "quota", CONF_BYTES, false, AT(type, quota_bytes),                                         \
            .min = 0, .max = 1024 * TIB, .fallback = "0",                                          \
            .doc = "Flash that an enclosure gives the volume, on all of its drives together; in "  \
                   "an agent's file what its own drive gives it; 0 is all of it. A full volume "   \
                   "evicts its own oldest blocks. More than the drives together is an error."      \
    }
#define VOLUME_REQUIRE(type)                                                                       \
    {                                                                                              \
        "require", CONF_REQUIRE, false, AT(type, require),                                         \
            .fallback = "none",                                                                    \
            .doc = "chap: for a host that does not authenticate the volume does not exist; tls: "  \
                   "nor for one whose connections are not encrypted with TLS; chap+tls: both. On " \
                   "top of require of the target and of the host. Only icms-target uses it."       \
    }
#define VOLUME_HOSTS(type)                                                                         \
    {                                                                                              \
        "hosts", CONF_NQNS, false, LIST_AT(type, host_nqn, host_count),                            \
            .min = 1, .max = LIMIT_VOLUME_HOSTS, .computed = "any host",                           \
            .example = "[nqn.2014-08.org.nvmexpress:uuid:6f9c2f7a-5d0a-4f0e-9d53-3c8a4b8f5e11]",   \
            .doc = "NQNs of the hosts that may use the volume. It is hidden from all others. A "   \
                   "volume lists at most 4096, all volumes of a file together at most 262144. "    \
                   "Only icms-target uses it."                                                     \
    }

static const struct conf_key volume_keys[] = {
    {"name", CONF_NAME, true, AT(struct volume_spec, name), .example = "kv",
     .doc = "The volume's name: one tenant's blocks of one model. Unique in the pod."},
    {"uuid", CONF_UUID, false, AT(struct volume_spec, uuid), .computed = "made from the name",
     .doc = "The volume's identity. Targets and agents that know the name make the same one."},
    VOLUME_TENANT(struct volume_spec),
    {"generation", CONF_COUNT, false, AT(struct volume_spec, generation), .min = 0,
     .max = UINT32_MAX, .fallback = "0",
     .doc = "Generation of the volume's content, a part of its identity. Raise it by 1 in all "
            "daemons of the pod to reset the volume: no block of another generation is found, "
            "also after restarts and on drives that were away, and drives reuse their space "
            "first. Drives remember the highest one of a name, also when the volume was deleted: a "
            "lower one is refused. The same in all daemons of the pod."},
    VOLUME_QUOTA(struct volume_spec),
    {"value_max", CONF_BYTES, false, AT(struct volume_spec, value_bytes_max), .min = 1,
     .max = LIMIT_VALUE_BYTES, .fallback = "8MiB",
     .doc = "The largest block that can be stored. The same in all daemons of the pod."},
    {"sealed", CONF_BOOL, false, AT(struct volume_spec, sealed), .fallback = "true",
     .doc = "Values end in a trailer with their checksum, made and checked by the clients. false "
            "keeps raw values for foreign NVMe hosts, and places each key by all of its bytes. The "
            "same in all daemons of the pod."},
    {"encrypted", CONF_BOOL, false, AT(struct volume_spec, encrypted), .fallback = "false",
     .doc = "Clients encrypt values with keys that they alone have (icms-keys.yaml(5)): memory of "
            "agents, network and drives hold ciphertext. A part of the volume's identity: turning "
            "it on or off makes an empty volume. An encrypted volume is sealed, and value_max is "
            "at most 64 MiB less 4 KiB. The same in all daemons of the pod."},
    {"memory_min", CONF_BYTES, false, AT(struct volume_spec, memory_bytes_min), .min = 0,
     .max = 16 * TIB, .fallback = "0",
     .doc = "Memory of an agent that the volume's blocks always have; other volumes cannot have it "
            "even while the volume is idle. One block of value_max for each of the agent's loops "
            "at least. Raise it for a volume that must not lose its blocks to busier ones. All "
            "floors together fit into the agent's memory. Only icms-agent uses it."},
    {"memory_max", CONF_BYTES, false, AT(struct volume_spec, memory_bytes_max), .min = 0,
     .max = 16 * TIB, .fallback = "0",
     .doc = "The most memory of an agent that the volume's blocks have; 0 is all of the agent's. "
            "At the limit the volume evicts its own blocks. Only icms-agent uses it."},
    {"weight", CONF_COUNT, false, AT(struct volume_spec, weight), .min = 1, .max = FAIR_WEIGHT_MAX,
     .fallback = "1",
     .doc = "The volume's part of what requests of an agent's clients wait for, in bytes, relative "
            "to other volumes whose requests wait at the same time: the backlog of stores, "
            "operations of a loop, places in the queue pairs to enclosures. Users of a volume "
            "have equal parts of that. What a volume does not use goes to the others. Only "
            "icms-agent uses it; weights of tenants are for enclosures."},
    {"pin_max", CONF_PERCENT, false, AT(struct volume_spec, pin_percent_max), .fallback = "25%",
     .doc =
         "How much of the memory that the volume has, and of the agent's own drive beside a pod, "
         "pinned blocks of the volume may take; at most 50%. A user may pin half of what is "
         "free of that. At the limit pins are refused, and when other volumes take memory of the "
         "volume, pins beyond the limit end. 0% refuses all. Raise it where sessions are pinned "
         "on purpose. Only icms-agent uses it."},
    {"run_blocks", CONF_COUNT, false, AT(struct volume_spec, run_blocks), .min = 1, .max = 65536,
     .fallback = "8",
     .doc = "Largest run: consecutive blocks of one chain that lie on one drive of one enclosure. "
            "Runs double from one block up to it. Larger values keep more of a prompt when an "
            "enclosure is lost, and load enclosures less evenly; icms-replay(1), --placement, "
            "shows both for a trace. Only icms-agent uses it; the same in all agents of the pod."},
    VOLUME_REQUIRE(struct volume_spec),
    VOLUME_HOSTS(struct volume_spec),
    {"users", CONF_USERS, false, LIST_AT(struct volume_spec, users, user_count), .min = 1,
     .max = LIMIT_VOLUME_USERS, .computed = "whoever may connect", .example = "[vllm, 1001]",
     .doc = "Users of this machine, by name or number, whose processes may read and write the "
            "volume through the agent. For all others it does not exist, unless groups lists one "
            "of theirs; root and the agent's own user may use every volume. Without users and "
            "groups everybody may who can connect, see socket_mode. Only icms-agent uses it."},
    {"groups", CONF_GROUPS, false, LIST_AT(struct volume_spec, groups, group_count), .min = 1,
     .max = LIMIT_VOLUME_USERS, .computed = "none", .example = "[inference]",
     .doc = "Groups, by name or number, whose members may use the volume as well, also those that "
            "have it as a supplementary group. Only icms-agent uses it."},
};
const struct conf_table conf_volume_table = {"a volume", KEYS(volume_keys), conf_volume_rules};

static const struct conf_key host_keys[] = {
    {"nqn", CONF_NQN, true, AT(struct conf_host, nqn),
     .example = "nqn.2014-08.org.nvmexpress:uuid:6f9c2f7a-5d0a-4f0e-9d53-3c8a4b8f5e11",
     .doc = "The NQN of the host: host_nqn of an agent, /etc/nvme/hostnqn of a Linux host."},
    {"secrets", CONF_PATHS, false, LIST_AT(struct conf_host, secrets, secret_count), .min = 1,
     .max = LIMIT_HOST_KEYS, .computed = "none", .example = "[/etc/icms/host0.secret]",
     .doc =
         "Files of secrets of DH-HMAC-CHAP (DHHC-1:..., mode 0600), made by icms key gen or nvme "
         "gen-dhchap-key. The host has to prove one of them on each of its connections. Several "
         "are for rotation: any of them passes. Read at start and at SIGHUP."},
    {"controller_secret", CONF_PATH, false, AT(struct conf_host, controller_secret),
     .computed = "none", .example = "/etc/icms/enclosure0.secret",
     .doc = "File of the secret with which the target proves itself to this host, when the host "
            "asks for that. It must differ from the host's."},
    {"psks", CONF_PATHS, false, LIST_AT(struct conf_host, psks, psk_count), .min = 1,
     .max = LIMIT_HOST_KEYS, .computed = "none", .example = "[/etc/icms/host0.psk]",
     .doc =
         "Files of TLS keys (NVMeTLSkey-1:..., mode 0600), made by icms key gen --type tls or nvme "
         "gen-tls-key. A connection of the host that proves one of them is encrypted with TLS "
         "1.3. Several are for rotation: any of them passes."},
    {"require", CONF_REQUIRE, false, AT(struct conf_host, require),
     .computed = "require of the target, and chap when the host has secrets", .example = "chap",
     .doc = "What this host has to prove, instead of require of the target."},
};
static const struct conf_table host_table = {"a host", KEYS(host_keys), conf_host_rules};

/* Of an enclosure in an agent's file, and in the pod map. */
#define ENCLOSURE_IDENTITY                                                                         \
    {"uuid",                                                                                       \
     CONF_UUID,                                                                                    \
     false,                                                                                        \
     AT(struct conf_enclosure, uuid),                                                              \
     .computed = "made from the name",                                                             \
     .doc = "Written here when it is written in the configuration of the target."},                \
    {                                                                                              \
        "nqn", CONF_NQN, false, AT(struct conf_enclosure, nqn),                                    \
            .computed = "made from the uuid",                                                      \
            .doc = "Written here when it is written in the configuration of the target."           \
    }

#define LINKS_DOC                                                                                  \
    "the agent connects to each, spreads commands over them by what they have in flight, and "     \
    "goes "                                                                                        \
    "on with the others while one fails. All of them have to lead to the same icms-target. Each "  \
    "reactor of the agent has 4 connections to each address. Which network interface of the "      \
    "server is used for an address is what its routes say: give the addresses of an enclosure "    \
    "different subnets where a server has several interfaces. An IPv6 address is in quotes: "      \
    "\"[2001:db8::10]:4420\"."

/* What an agent proves to an enclosure, in its file, or for one of the pod map. */
#define ENCLOSURE_KEYS                                                                             \
    {"secret",                                                                                     \
     CONF_PATH,                                                                                    \
     false,                                                                                        \
     AT(struct conf_enclosure, secret),                                                            \
     .computed = "secret of the agent",                                                            \
     .example = "/etc/icms/agent.secret",                                                          \
     .doc = "File of the secret of DH-HMAC-CHAP that this enclosure knows of the agent's host."},  \
        {"controller_secret",                                                                      \
         CONF_PATH,                                                                                \
         false,                                                                                    \
         AT(struct conf_enclosure, controller_secret),                                             \
         .computed = "controller_secret of the agent",                                             \
         .example = "/etc/icms/enclosure0.secret",                                                 \
         .doc = "File of the secret that this enclosure has to prove."},                           \
        {"psk",                                                                                    \
         CONF_PATH,                                                                                \
         false,                                                                                    \
         AT(struct conf_enclosure, psk),                                                           \
         .computed = "psk of the agent",                                                           \
         .example = "/etc/icms/agent.psk",                                                         \
         .doc = "File of the TLS key that this enclosure knows of the agent's host."},             \
    {                                                                                              \
        "require", CONF_REQUIRE, false, AT(struct conf_enclosure, require),                        \
            .computed = "require of the agent", .example = "chap",                                 \
            .doc = "What has to be in force with this enclosure, instead of require of the agent." \
    }

static const struct conf_key enclosure_keys[] = {
    {"name", CONF_NAME, true, AT(struct conf_enclosure, name), .example = "enclosure0",
     .doc = "The name that the enclosure's icms-target has."},
    {"address", CONF_PORTALS, true, LIST_AT(struct conf_enclosure, address, address_count),
     .min = 1, .max = LIMIT_LINKS, .example = "127.0.0.1:4420",
     .doc = "Address and port on which its icms-target listens, or a list of them, as in "
            "[192.0.2.10:4420, 198.51.100.10:4420]: " LINKS_DOC},
    ENCLOSURE_IDENTITY,
    {"weight", CONF_NUMBER, false, AT(struct conf_enclosure, weight), .fallback = "1",
     .doc = "Its share of the blocks, relative to the other enclosures: healthy capacity in any "
            "unit. The same in all agents of the pod."},
    ENCLOSURE_KEYS,
};
static const struct conf_table enclosure_table = {"an enclosure", KEYS(enclosure_keys),
                                                  conf_enclosure_rules};

/* Keys of one enclosure of a pod map: what is private stays in the agent's file. */
static const struct conf_key enclosure_key_keys[] = {
    {"name", CONF_NAME, true, AT(struct conf_enclosure, name), .example = "enclosure0",
     .doc = "The enclosure's name in the pod map."},
    ENCLOSURE_KEYS,
};
static const struct conf_table enclosure_key_table = {"an entry of enclosure_keys",
                                                      KEYS(enclosure_key_keys)};

static const struct conf_key events_keys[] = {
    {"volume", CONF_NAME, true, AT(struct conf_events, volume), .example = "kv",
     .doc = "The volume, by its name in volumes."},
    {"endpoint", CONF_PATH, true, AT(struct conf_events, endpoint),
     .example = "ipc:///run/icms/kv-events",
     .doc = "Where subscribers connect: ipc:// and the absolute path of a unix socket, or tcp:// "
            "with a numeric address and port, which needs open."},
    {"replay", CONF_PATH, false, AT(struct conf_events, replay), .computed = "none",
     .example = "ipc:///run/icms/kv-events-replay",
     .doc = "Where a subscriber that missed a sequence number asks for what is kept from there on, "
            "written as endpoint is."},
    {"window", CONF_BYTES, false, AT(struct conf_events, window_bytes), .min = 128 * KIB,
     .max = 1 * GIB, .fallback = "4MiB",
     .doc = "Memory for batches that replay answers with; the oldest go. An event takes 9 bytes, "
            "and a batch about 300 more."},
    {"mode", CONF_MODE, false, AT(struct conf_events, mode), .fallback = "0600",
     .doc = "Permission bits of the unix sockets: whoever may connect reads which blocks come and "
            "go, whether he may use the volume or not. A mode with bits for others is warned "
            "about."},
    {"open", CONF_BOOL, false, AT(struct conf_events, open), .fallback = "false",
     .doc = "true: endpoints may be tcp. Nothing proves who reads there: every process that "
            "reaches the address does, those of all users of this machine among them."},
};
static const struct conf_table events_table = {"an entry of events", KEYS(events_keys)};

#define HTTP_LISTEN_DOC                                                                            \
    "Where /metrics, /healthz, /readyz and /status are served; none for nowhere. An address that " \
    "other machines reach needs token, client_ca or open: all."

/* Of both daemons. */
#define HTTP_KEYS                                                                                  \
    {"token",                                                                                      \
     CONF_PATH,                                                                                    \
     false,                                                                                        \
     AT(struct conf_http, token),                                                                  \
     .computed = "none",                                                                           \
     .example = "/etc/icms/http.token",                                                            \
     .doc = "File of a bearer token (one line of at least 16 characters, mode 0600), made by "     \
            "icms key gen --type token. Requests have to carry it in the header Authorization. "   \
            "Without certificate it travels in clear text. Read at start."},                       \
        {"certificate",                                                                            \
         CONF_PATH,                                                                                \
         false,                                                                                    \
         AT(struct conf_http, certificate),                                                        \
         .computed = "none",                                                                       \
         .example = "/etc/icms/http.crt",                                                          \
         .doc = "File of the server's certificate and its chain, PEM: pages are served over TLS "  \
                "1.3 alone. Read at start."},                                                      \
        {"key",                                                                                    \
         CONF_PATH,                                                                                \
         false,                                                                                    \
         AT(struct conf_http, key),                                                                \
         .computed = "none",                                                                       \
         .example = "/etc/icms/http.key",                                                          \
         .doc = "File of the private key of certificate, PEM, mode 0600. Read at start."},         \
        {"client_ca",                                                                              \
         CONF_PATH,                                                                                \
         false,                                                                                    \
         AT(struct conf_http, client_ca),                                                          \
         .computed = "none",                                                                       \
         .example = "/etc/icms/clients.crt",                                                       \
         .doc = "File of certificates of authorities, PEM. A client that proves a certificate of " \
                "one of them, for client authentication, needs no token. It needs certificate. "   \
                "Read at start."},                                                                 \
    {                                                                                              \
        "open", CONF_NAME, false, AT(struct conf_http, open),                                      \
            .computed = "all without token and client_ca, else none", .example = "metrics",        \
            .doc = "What may be read without token and client certificate. all: every page; "      \
                   "metrics: /metrics; none: nothing. /healthz and /readyz always answer with "    \
                   "their status, for probes, and say the reason to those who may read /status."   \
    }

/* Of connections, by what they carry. */
#define CLASS_KEY(name, most, example_text, text)                                                  \
    {                                                                                              \
#name, CONF_COUNT, false, AT(struct conf_classes, name),                                   \
            .min = 0, .max = (most), .fallback = "0", .example = (example_text), .doc = (text)     \
    }
#define DSCP_KEY(name, example_text, text) CLASS_KEY(name, 63, example_text, text)
#define PRIORITY_KEY(name, text)           CLASS_KEY(name, NET_PRIORITY_MAX, NULL, text)

static const struct conf_key dscp_keys[] = {
    DSCP_KEY(loads, "26",
             "Of connections for loads and lookups, for switches that keep them before others; 0 "
             "to 63, 0 leaves them unmarked."),
    DSCP_KEY(prestage, "18", "Of those for blocks that will be asked for soon."),
    DSCP_KEY(stores, "10", "Of those for stores."),
    DSCP_KEY(control, "48", "Of those for administration: health, discovery, keep-alives."),
};
static const struct conf_table dscp_table = {"dscp", KEYS(dscp_keys), NULL};

static const struct conf_key priority_keys[] = {
    PRIORITY_KEY(loads,
                 "Of connections for loads and lookups: Linux maps it to a queue of the network "
                 "card and to a VLAN priority, for fabrics with priority flow control; 0 to 6, 0 "
                 "leaves what Linux makes of dscp."),
    PRIORITY_KEY(prestage, "Of those for blocks that will be asked for soon."),
    PRIORITY_KEY(stores, "Of those for stores."),
    PRIORITY_KEY(control, "Of those for administration."),
};
static const struct conf_table priority_table = {"priority", KEYS(priority_keys), NULL};

static const struct conf_key target_http_keys[] = {
    {"listen", CONF_ADDRESSES, false, AT(struct conf_http, listen), .fallback = "127.0.0.1:9420",
     .doc = HTTP_LISTEN_DOC},
    HTTP_KEYS,
};
static const struct conf_table target_http_table = {"http", KEYS(target_http_keys),
                                                    conf_http_rules};

static const struct conf_key agent_http_keys[] = {
    {"listen", CONF_ADDRESSES, false, AT(struct conf_http, listen), .fallback = "127.0.0.1:9421",
     .doc = HTTP_LISTEN_DOC},
    HTTP_KEYS,
};
static const struct conf_table agent_http_table = {"http", KEYS(agent_http_keys), conf_http_rules};

/* A drive of the agent itself, in fields of struct conf_agent. The member sits at offset 0. */
static const struct conf_key local_keys[] = {
    {"path", CONF_PATH, true, AT(struct conf_agent, local_path), .example = "/var/lib/icms/local",
     .doc = "A block device, or a file, which is made when it is missing. A zoned block device is "
            "refused. Beside a pod it is a cache: it is formatted when the agent that used it did "
            "not end cleanly (a crash, SIGKILL, a drive that failed), or used it with another pod, "
            "and the log says so. One that an enclosure, or an agent without a pod, has used is "
            "left alone, and the agent goes on without it; an agent without a pod does not start "
            "with one that was used beside a pod."},
    {"size", CONF_BYTES, false, AT(struct conf_agent, local_bytes), .min = 0, .max = 1024 * TIB,
     .fallback = "0",
     .doc = "How large to make a missing file: four segments and 64KiB, or more. 0 takes a device "
            "or a file as large as it is."},
    {"segment", CONF_BYTES, false, AT(struct conf_agent, local_segment_bytes), .min = SEGMENT_MIN,
     .max = SEGMENT_MAX, .fallback = "64MiB",
     .doc = "Unit of reclaim, when the drive is formatted. A power of two."},
    {"exclusive", CONF_PERCENT, false, AT(struct conf_agent, local_exclusive_percent),
     .fallback = "0%",
     .doc =
         "Beside a pod, the share of the runs that are stored on this drive and not in the pod. "
         "0% is inclusive: the pod gets every store, and the drive has copies of what was read. "
         "Set it where the drive is large beside what the pod has for this server, to its part of "
         "both together: a block then takes space in one of them. Other servers do not find the "
         "blocks of that share, and they are lost with the drive, and when the agent does not end "
         "cleanly, flushed or not. Stores that the drive does not take, and those of blocks that "
         "the pod has, go to the pod, which is asked first: nothing is stored without it."},
    {"write_budget", CONF_BUDGET, false, AT(struct conf_agent, local_budget), .fallback = "0",
     .doc =
         "What may be written to the drive a day, as for a drive of icms-target: 1DWPD, or bytes, "
         "like 500GiB. When it runs short, blocks that come for the first time are not written, "
         "and those that were refused or evicted lately are. 0 is no limit."},
    {"write_burst", CONF_BYTES, false, AT(struct conf_agent, local_budget.burst_bytes), .min = 0,
     .max = 1024 * TIB, .fallback = "0",
     .doc = "Most of the write budget that may be saved up. 0 is the budget of a day. After each "
            "start there is a quarter of an hour's worth."},
};
static const struct conf_table local_table = {"local", KEYS(local_keys)};

/* ---- icms-target ---------------------------------------------------------------------------- */

static const struct conf_key target_keys[] = {
    {"name", CONF_NAME, true, AT(struct conf_target, name), .example = "enclosure0",
     .doc = "The enclosure's name, unique in the pod."},
    {"uuid", CONF_UUID, false, AT(struct conf_target, uuid), .computed = "made from the name",
     .doc = "The enclosure's identity: placement follows it, wherever the enclosure moves to."},
    {"nqn", CONF_NQN, false, AT(struct conf_target, nqn), .computed = "made from the uuid",
     .doc = "The NVMe qualified name of its subsystem."},
    {"listen", CONF_PORTALS, false, LIST_AT(struct conf_target, listen, listen_count),
     .max = LIMIT_PORTALS, .fallback = "127.0.0.1:4420",
     .doc =
         "NVMe/TCP data port, or a list of them: one for each link of the enclosure, as in "
         "[192.0.2.10:4420, 198.51.100.10:4420]. All of them lead to the same subsystem, so that "
         "hosts can use several and go on when one fails. icms-target does not start when it "
         "cannot listen on one of them. Port 0 picks a free one. An IPv6 address is in quotes: "
         "\"[2001:db8::10]:4420\"."},
    {"advertise", CONF_PORTALS, false, LIST_AT(struct conf_target, advertise, advertise_count),
     .min = 1, .max = LIMIT_PORTALS, .computed = "as listen", .example = "192.0.2.10:4420",
     .doc = "The addresses that discovery tells to hosts: one for each of listen, in the same "
            "order. A wildcard stands for the address that the host connected to."},
    {"loops", CONF_COUNT, false, AT(struct conf_target, loops), .min = 1, .max = LIMIT_LOOPS,
     .fallback = "1", .doc = "Reactor threads. Drives and connections are spread over them."},
    {"busy_poll", CONF_BOOL, false, AT(struct conf_target, busy_poll), .fallback = "false",
     .doc = "Threads spin instead of sleeping: only for cores that have nothing else to do."},
    {"poll_us", CONF_COUNT, false, AT(struct conf_target, poll_us), .min = 0, .max = 1000000,
     .fallback = "0",
     .doc = "Threads look for answers and messages for so many microseconds after the last one "
            "before they sleep: saves the wake-up of each when cores are there for it. 0 sleeps at "
            "once."},
    {"segment", CONF_BYTES, false, AT(struct conf_target, segment_bytes), .min = SEGMENT_MIN,
     .max = SEGMENT_MAX, .fallback = "64MiB",
     .doc = "Unit of reclaim, when a drive is formatted. A power of two."},
    {"discard", CONF_BOOL, false, AT(struct conf_target, discard), .fallback = "true",
     .doc = "Drives are told which segments are free, a few at a time. Block devices on Linux 6.12 "
            "and later take that; files keep their room."},
    {"memory", CONF_BYTES, false, AT(struct conf_target, memory_bytes), .min = 1 * MIB,
     .max = 16 * TIB, .fallback = "256MiB",
     .doc = "Data buffers, shared by all commands in progress. Taken at start. With the indexes of "
            "the "
            "drives (bytes_per_block), more than this machine, or a control group around the "
            "target, has is refused at the start."},
    {"connections_max", CONF_COUNT, false, AT(struct conf_target, connections_max), .min = 4,
     .max = 65534, .fallback = "1024",
     .doc = "Connections at the same time. Of an agent each reactor (its loops) opens four to each "
            "address of listen that it uses: 100 agents with two loops and two addresses are "
            "1600. Each takes about "
            "11 KiB, and 2 KiB for each command that it ever had in progress at a time, or 3 KiB "
            "where those look for many keys. When all are in use, hosts that connect wait until "
            "others disconnect; the log says so, and icms_target_connections_full_total counts "
            "it."},
    {"queue_entries_max", CONF_COUNT, false, AT(struct conf_target, queue_entries_max), .min = 2,
     .max = 1024, .fallback = "128", .doc = "Commands in progress a queue pair."},
    {"header_timeout", CONF_DURATION, false, AT(struct conf_target, header_timeout_ms), .min = 100,
     .max = 600000, .fallback = "5s",
     .doc = "A peer that began a message must have sent all of it by then, or is dropped."},
    {"dscp", CONF_MAP, false, AT(struct conf_target, dscp), .table = &dscp_table,
     .doc =
         "DiffServ code points of what is sent to hosts. The connections of a foreign host count "
         "as those of loads, unless their Connect names a priority."},
    {"priority", CONF_MAP, false, AT(struct conf_target, priority), .table = &priority_table,
     .doc = "Socket priorities of what is sent to hosts."},
    {"in_capsule", CONF_BYTES, false, AT(struct conf_target, in_capsule_bytes), .min = 0,
     .max = 64 * KIB, .fallback = "8KiB",
     .doc = "Values up to this size travel inside their command. A multiple of 16 bytes."},
    {"ready_quota_max", CONF_PERCENT, false, AT(struct conf_target, ready_quota_percent_max),
     .fallback = "0%",
     .doc = "/readyz refuses when a volume uses more of its quota; 0% never does, as a full "
            "volume is normal: it evicts."},
    {"ready_drives_out_max", CONF_PERCENT, false, AT(struct conf_target, ready_out_percent_max),
     .fallback = "25%",
     .doc =
         "/readyz refuses when a larger share of the drives is out of service, so that an update "
         "of the pod, one enclosure after the other, stops where drives are missing. Its answer "
         "names the drives, also below the limit. 100% refuses only when no drive is left."},
    {"http", CONF_MAP, false, AT(struct conf_target, http), .table = &target_http_table,
     .doc = "Metrics and health."},
    {"require", CONF_REQUIRE, false, AT(struct conf_target, require),
     .computed = "none when listen is a loopback address, else chap", .example = "chap",
     .doc =
         "What hosts have to prove, but for those with a require of their own. chap: they "
         "authenticate with DH-HMAC-CHAP before anything else; a host that is not listed under "
         "hosts cannot. tls: connections without TLS are refused, those of discovery among them. "
         "chap+tls: both. none: whoever reaches the port is the host that it says it is; hosts "
         "with psks may use TLS. Whatever is required, a host with secrets authenticates unless a "
         "require of its own leaves chap out. On an address that other "
         "machines reach, icms-target does not start without secrets or psks unless none is "
         "written."},
    {"chap_hashes", CONF_PATHS, false, LIST_AT(struct conf_target, chap_hashes, chap_hash_count),
     .min = 1, .max = 3, .computed = "[sha512, sha384, sha256]",
     .example = "[sha512, sha384, sha256]",
     .doc = "Hashes of DH-HMAC-CHAP that are allowed, best first; the first that the host has is "
            "used."},
    {"chap_groups", CONF_PATHS, false, LIST_AT(struct conf_target, chap_groups, chap_group_count),
     .min = 1, .max = 6, .computed = "[ffdhe3072, ffdhe2048, ffdhe4096, null]",
     .example = "[ffdhe3072, ffdhe2048, ffdhe4096, \"null\"]",
     .doc =
         "Diffie-Hellman groups of DH-HMAC-CHAP that are allowed, best first; the first that the "
         "host has is used. \"null\" is none. Larger groups take more CPU time a connection, also "
         "of "
         "a host that then fails: ffdhe4096 1.5 ms for each of two computations, ffdhe6144 3 ms, "
         "ffdhe8192 7 ms. The last two are not allowed unless they are listed."},
    {"audit", CONF_PATH, false, AT(struct conf_target, audit), .computed = "none",
     .example = "/var/log/icms/audit.log",
     .doc =
         "A file that gets one line of JSON for each authentication of a host, with DH-HMAC-CHAP "
         "or "
         "TLS, that passed or failed, each refusal, and at the start for each volume and each host "
         "with keys; journal: they go to standard error with the log. At most one a minute for "
         "each host and result; those of all hosts that were left out are counted in the next."},
    {"hosts", CONF_MAPS, false, LIST_AT(struct conf_target, hosts, host_count), .min = 1,
     .max = LIMIT_HOSTS, .table = &host_table, .own = true, .computed = "none",
     .example = "[{nqn: nqn.2014-08.org.nvmexpress:uuid:6f9c2f7a-5d0a-4f0e-9d53-3c8a4b8f5e11, "
                "secrets: [/etc/icms/host0.secret]}]",
     .doc = "Hosts whose keys the target knows; at most 4096. Who may use which volume is said "
            "there, under hosts of the volume."},
    {"drives", CONF_MAPS, true, LIST_AT(struct conf_target, drives, drive_count), .min = 1,
     .max = LIMIT_DRIVES, .table = &drive_table, .example = "[{path: /var/lib/icms/drive0}]",
     .doc = "The drives of the enclosure."},
    {"pod", CONF_PATH, false, AT(struct conf_target, pod), .computed = "none",
     .example = "/etc/icms/pod.yaml",
     .doc = "File of the pod map (icms-pod.yaml(5)), instead of tenants and volumes, which are "
            "the map's then. It is watched: a new epoch of it takes effect without a restart. At "
            "the start it must be there, right, and list volumes; later a map that is refused "
            "changes nothing and is logged. A map that has this enclosure with another UUID or "
            "NQN is refused; one that does not have it is a warning: agents do not use the "
            "enclosure yet."},
    {"tenants", CONF_MAPS, false, LIST_AT(struct conf_target, tenants, tenant_count), .min = 1,
     .max = LIMIT_TENANTS, .table = &tenant_table, .computed = "one a volume, all of weight 1",
     .example = "[{name: team-a, weight: 3}]",
     .doc = "Weights and limits of tenants; at most 1024. Not with pod."},
    {"volumes", CONF_MAPS, true, LIST_AT(struct conf_target, volumes, volume_count), .min = 1,
     .max = LIMIT_VOLUMES, .table = &conf_volume_table, .unless = "pod",
     .computed = "required without pod", .example = "[{name: kv}]",
     .doc = "The volumes, each an NVMe Key-Value namespace; at most 1024. Not with pod."},
};
const struct conf_table conf_target_table = {"the configuration of icms-target", KEYS(target_keys),
                                             conf_target_rules};

/* ---- icms-agent ----------------------------------------------------------------------------- */

static const struct conf_key agent_keys[] = {
    {"name", CONF_NAME, false, AT(struct conf_agent, name), .computed = "the host's name",
     .doc = "The agent's name, unique in the pod."},
    {"host_id", CONF_UUID, false, AT(struct conf_agent, host_id),
     .computed = "made from the machine and the name",
     .doc = "The NVMe host identifier that enclosures see."},
    {"host_nqn", CONF_NQN, false, AT(struct conf_agent, host_nqn),
     .computed = "made from the host_id",
     .doc = "The NVMe host name that enclosures see; the hosts of a volume name it."},
    {"socket", CONF_PATH, false, AT(struct conf_agent, socket),
     .computed = "of the user, see below",
     .doc = "Unix socket for clients: /run/icms/agent.sock for root, $XDG_RUNTIME_DIR/icms/"
            "agent.sock for others."},
    {"socket_mode", CONF_MODE, false, AT(struct conf_agent, socket_mode), .fallback = "0600",
     .doc = "Who may connect to it, in octal. Volumes that list neither users nor groups are for "
            "all of them."},
    {"user_clients_max", CONF_COUNT, false, AT(struct conf_agent, user_clients_max), .min = 1,
     .max = LIMIT_CLIENTS, .fallback = "32",
     .doc = "Processes of one user that may be attached at a time, so that one user cannot take "
            "all 64 places. Root and the agent's own user have no such limit. More are refused."},
    {"loops", CONF_COUNT, false, AT(struct conf_agent, loops), .min = 1, .max = LIMIT_LOOPS,
     .fallback = "1",
     .doc =
         "Reactor threads. Each has the blocks of its own keys: an equal part of the memory, four "
         "connections to every address of every enclosure, and rings of its own with every "
         "client. More than one "
         "is for agents whose copies and checksums keep a core busy; an agent with a drive of its "
         "own has one. An enclosure with one address and 1,000 agents of 8 reactors needs 32,000 "
         "connections."},
    {"memory", CONF_BYTES, false, AT(struct conf_agent, memory_bytes), .min = 1 * MIB,
     .max = 16 * TIB, .fallback = "1GiB",
     .doc =
         "Shared memory for the blocks of all volumes; each loop has an equal part. A block takes "
         "as many bytes as it has, rounded up to 64; at most 15% are lost between blocks if "
         "value_max is at most a 32nd of it. Volumes that list the same users and groups share it: "
         "one that needs room takes a piece that another one did not access for longest. Volumes "
         "with different users share nothing, because memory that a process has mapped stays "
         "readable for it: each has its memory_min, and an equal part of what all memory_min "
         "leave. When the memory is full, blocks are evicted, those of more than a quarter of what "
         "their volume may have first. The agent takes 52 bytes more for each 4 KiB that a volume "
         "may have at the start, and 104 for each that has a block: of blocks of less than 4 KiB "
         "a volume holds no more than of such. More than this machine, or a control group around "
         "the "
         "agent, has is refused at the start."},
    {"busy_poll", CONF_BOOL, false, AT(struct conf_agent, busy_poll), .fallback = "false",
     .doc = "Threads spin instead of sleeping: only for cores that have nothing else to do."},
    {"prefault", CONF_BOOL, false, AT(struct conf_agent, prefault), .fallback = "false",
     .doc =
         "The memory for blocks is taken at the start, which takes longer then, and no store pays "
         "for memory that is used for the first time. false: as it fills."},
    {"poll_us", CONF_COUNT, false, AT(struct conf_agent, poll_us), .min = 0, .max = 1000000,
     .fallback = "0",
     .doc = "Threads look for answers and messages for so many microseconds after the last one "
            "before they sleep: saves the wake-up of each when cores are there for it. 0 sleeps at "
            "once."},
    {"header_digest", CONF_BOOL, false, AT(struct conf_agent, header_digest), .fallback = "false",
     .doc = "NVMe/TCP checksums over headers."},
    {"data_digest", CONF_BOOL, false, AT(struct conf_agent, data_digest), .fallback = "false",
     .doc = "NVMe/TCP checksums over data. Sealed volumes check every value anyway."},
    {"dscp", CONF_MAP, false, AT(struct conf_agent, dscp), .table = &dscp_table,
     .doc = "DiffServ code points of what is sent to enclosures."},
    {"priority", CONF_MAP, false, AT(struct conf_agent, priority), .table = &priority_table,
     .doc = "Socket priorities of what is sent to enclosures."},
    {"secret", CONF_PATH, false, AT(struct conf_agent, secret), .computed = "none",
     .example = "/etc/icms/agent.secret",
     .doc =
         "File of the secret of this host (DHHC-1:..., mode 0600), made by icms key gen. With it "
         "the agent authenticates at enclosures that ask for it. Read at start and at SIGHUP."},
    {"controller_secret", CONF_PATH, false, AT(struct conf_agent, controller_secret),
     .computed = "none", .example = "/etc/icms/enclosures.secret",
     .doc = "File of the secret that enclosures have to prove; one that does not is not used. It "
            "must differ from secret."},
    {"psk", CONF_PATH, false, AT(struct conf_agent, psk), .computed = "none",
     .example = "/etc/icms/agent.psk",
     .doc =
         "File of the TLS key of this host (NVMeTLSkey-1:..., mode 0600). With it connections "
         "to enclosures are encrypted with TLS 1.3, and an enclosure that does not prove that it "
         "knows the key is not used. There is no way back to connections without TLS."},
    {"require", CONF_REQUIRE, false, AT(struct conf_agent, require),
     .computed = "tls or chap, by what there is a key for, at addresses of other machines; none on "
                 "loopback",
     .example = "chap+tls",
     .doc =
         "What has to be in force with every enclosure, which is not used otherwise: chap, "
         "authentication with DH-HMAC-CHAP; tls, TLS; or chap+tls. It is an error when secret or "
         "psk is missing for it. An enclosure at an address of another machine (also any DNS name "
         "but localhost) without psk or secret is an error, in a pod map as well, unless none is "
         "written here or for the enclosure: then whoever answers there is used. With chap "
         "enclosures prove themselves where controller_secret is written; secret alone proves the "
         "agent."},
    {"audit", CONF_PATH, false, AT(struct conf_agent, audit), .computed = "none",
     .example = "/var/log/icms/audit.log",
     .doc =
         "A file that gets one line of JSON when an enclosure with which keys are used comes up or "
         "is marked down, when users of this machine are refused, at most one a minute, and at the "
         "start for each volume; journal: they go to standard error with the log."},
    {"exist_many", CONF_BOOL, false, AT(struct conf_agent, exist_many), .fallback = "true",
     .doc = "Enclosures that offer it are asked for up to 64 blocks with one command of icms' own; "
            "false: with the standard's, one command a block."},
    {"queue_entries", CONF_COUNT, false, AT(struct conf_agent, queue_entries), .min = 2,
     .max = 1024, .fallback = "64", .doc = "Commands in progress a queue pair."},
    {"connect_timeout", CONF_DURATION, false, AT(struct conf_agent, connect_timeout_ms), .min = 50,
     .max = 60000, .fallback = "1s", .doc = "For an enclosure to accept a connection."},
    {"keep_alive", CONF_DURATION, false, AT(struct conf_agent, keep_alive_ms), .min = 1000,
     .max = 600000, .fallback = "5s",
     .doc = "An enclosure forgets an agent that was silent for so long."},
    {"silence", CONF_DURATION, false, AT(struct conf_agent, silence_ms), .min = 50, .max = 60000,
     .fallback = "500ms",
     .doc = "I/O timeout after which an enclosure is marked down: a command is outstanding, and "
            "nothing was received for this long."},
    {"probe", CONF_DURATION, false, AT(struct conf_agent, probe_ms), .min = 50, .max = 60000,
     .fallback = "500ms", .doc = "Interval at which an enclosure that is down is retried."},
    {"load_deadline", CONF_DURATION, false, AT(struct conf_agent, load_deadline_ms), .min = 1,
     .max = LIMIT_DEADLINE_MS, .fallback = "2s",
     .doc = "A load that has no deadline of its own is a miss after this."},
    {"store_deadline", CONF_DURATION, false, AT(struct conf_agent, store_deadline_ms), .min = 1,
     .max = LIMIT_DEADLINE_MS, .fallback = "10s",
     .doc = "A store that has no deadline of its own is given up after this."},
    {"store_backlog", CONF_BYTES, false, AT(struct conf_agent, store_backlog_bytes), .min = 1 * MIB,
     .max = 1 * TIB, .fallback = "256MiB",
     .doc = "Writes are rejected when the send queue exceeds this size. When it does, users that "
            "have no more in it than their equal part may still write."},
    {"client_memory", CONF_BYTES, false, AT(struct conf_agent, client_bytes), .min = 1 * MIB,
     .max = 1 * TIB, .fallback = "64MiB",
     .doc = "Staging memory for the stores of one client, and the most that one may ask for."},
    {"ready_memory_max", CONF_PERCENT, false, AT(struct conf_agent, ready_memory_percent_max),
     .fallback = "0%",
     .doc = "/readyz refuses when values take more of the memory; 0% never does, as a full memory "
            "is normal: it evicts."},
    {"http", CONF_MAP, false, AT(struct conf_agent, http), .table = &agent_http_table,
     .doc = "Metrics and health."},
    {"local", CONF_MAP, false, .offset = 0, .size = (uint32_t)sizeof(struct conf_agent),
     .table = &local_table, .computed = "none",
     .doc = "A drive of the agent's own. Beside enclosures or pod it is a cache between memory and "
            "pod: blocks that memory evicts, and that were read, are written there, and loads look "
            "there first. Without them it stands for a pod: for one machine alone. An agent with "
            "such a drive has one loop."},
    {"enclosures", CONF_MAPS, false, LIST_AT(struct conf_agent, enclosures, enclosure_count),
     .min = 1, .max = LIMIT_ENCLOSURES, .table = &enclosure_table,
     .example = "[{name: enclosure0, address: 127.0.0.1:4420}]",
     .doc = "The enclosures of the pod, read at start. The same in all its agents. pod, instead, "
            "names a file that is watched."},
    {"pod", CONF_PATH, false, AT(struct conf_agent, pod), .computed = "none",
     .example = "/etc/icms/pod.yaml",
     .doc = "File of the pod map (icms-pod.yaml(5)), instead of enclosures. It is watched: a new "
            "epoch of it takes effect without a restart. At the start it must be there and right; "
            "later a map that is refused changes nothing and is logged."},
    {"enclosure_keys", CONF_MAPS, false,
     LIST_AT(struct conf_agent, enclosure_keys, enclosure_key_count), .min = 1,
     .max = LIMIT_ENCLOSURES, .table = &enclosure_key_table,
     .computed = "secret, controller_secret, psk and require of the agent, for all",
     .doc = "With pod: keys of enclosures that have others than those of the agent, by their names "
            "in the pod map, which holds no keys. Enclosures that are not in the map yet may be "
            "listed."},
    {"volumes", CONF_MAPS, true, LIST_AT(struct conf_agent, volumes, volume_count), .min = 1,
     .max = LIMIT_AGENT_VOLUMES, .table = &conf_volume_table, .example = "[{name: kv}]",
     .doc = "The volumes that clients may use; at most 64. Entries can be copied from a target's "
            "file."},
    {"events", CONF_MAPS, false, LIST_AT(struct conf_agent, events, events_count), .min = 1,
     .max = LIMIT_AGENT_VOLUMES, .table = &events_table, .computed = "none",
     .doc =
         "Volumes whose blocks are announced to routers, in the way of vLLM's KV events, as they "
         "come into memory or the own drive and leave them. Of other volumes nothing is said."},
    {"models", CONF_MAPS, false, LIST_AT(struct conf_agent, models, model_count), .min = 1,
     .max = LIMIT_AGENT_VOLUMES, .table = &conf_model_table, .computed = "none",
     .doc = "Models by whose names routers and gateways may ask and give hints over HTTP, with "
            "the tokens of a prompt or its engine's hashes, instead of volume and keys."},
};
const struct conf_table conf_agent_table = {"the configuration of icms-agent", KEYS(agent_keys),
                                            conf_agent_rules};

/* ---- the pod map ---------------------------------------------------------------------------- */

static const char *const pod_states[] = {
    [CONF_ENCLOSURE_UP] = "up",
    [CONF_ENCLOSURE_JOINING] = "joining",
    [CONF_ENCLOSURE_DRAINING] = "draining",
    [CONF_ENCLOSURE_OUT] = "out",
    NULL,
};

const char *conf_enclosure_state_name(enum conf_enclosure_state state)
{
    return pod_states[state];
}

static const struct conf_key pod_enclosure_keys[] = {
    {"name", CONF_NAME, true, AT(struct conf_enclosure, name), .example = "enclosure0",
     .doc = "The name that the enclosure's icms-target has."},
    {"address", CONF_HOSTS, true, LIST_AT(struct conf_enclosure, address, address_count),
     .max = LIMIT_LINKS, .example = "192.0.2.10:4420",
     .doc = "Address and port on which its icms-target listens, or a list of them, as in "
            "[192.0.2.10:4420, 198.51.100.10:4420]: " LINKS_DOC
            " An address is numeric, or a DNS name, which is resolved when the map is taken, and "
            "again while nothing answers there. Of several addresses of a name the first is used, "
            "and while it is down the next: write a list to use several."},
    ENCLOSURE_IDENTITY,
    {"capacity", CONF_BYTES, false, AT(struct conf_enclosure, capacity_bytes), .min = GIB,
     .max = 65536 * TIB, .computed = "none", .example = "14TiB",
     .doc = "What its drives hold together. Its weight follows from it, and icms pod status says "
            "when the drives that its icms-target has in service hold more or less. Daemons of a "
            "version that does not have this key refuse a map with it."},
    {"weight", CONF_NUMBER, false, AT(struct conf_enclosure, weight),
     .computed = "1, or with capacity how many GiB that is, rounded", .example = "2",
     .doc = "Its share of the blocks, relative to the other enclosures: healthy capacity in any "
            "unit, or in GiB where other enclosures have their weight from capacity: there each "
            "has its capacity."},
    {"former_weight", CONF_NUMBER, false, AT(struct conf_enclosure, former_weight),
     .computed = "none: its weight is not changing", .example = "1",
     .doc =
         "The weight that it had before, while it changes: a block that its owner by the weights "
         "does not have is asked of the one that owned it by the former weights, and copied. "
         "Only for an enclosure that is up. icms pod weight writes it, and icms pod settle "
         "removes it. Daemons of a version that does not have this key refuse a map with it."},
    {"state", CONF_CHOICE, false, AT(struct conf_enclosure, state), .fallback = "up",
     .choices = pod_states,
     .doc = "up: it takes and gives blocks. joining: it takes its share of new blocks, and what it "
            "does not have yet is asked of the enclosure that had it before. draining: it is read "
            "and takes no new blocks. out: agents do not use it, as if it were not in the map, and "
            "no other enclosure has its name, UUID or addresses; daemons of a version that does "
            "not have this state refuse a map with it. One enclosure at least is up."},
    {"http", CONF_URL, false, AT(struct conf_enclosure, http),
     .computed = "none: nobody is told where it shows its status",
     .example = "https://192.0.2.10:9420",
     .doc =
         "Where its icms-target shows its status (http.listen of its file), for icms pod status: "
         "http:// or https://, an address or a DNS name, and the port. Agents and targets do "
         "not use it. Those of a version that does not have this key refuse a map with it: "
         "write it when all are newer."},
};
static const struct conf_table pod_enclosure_table = {"an enclosure", KEYS(pod_enclosure_keys),
                                                      conf_enclosure_rules};

icms_err conf_pod_value_set(const char *key, const char *text, struct err_why *why,
                            struct conf_enclosure *out_enclosure)
{
    for (uint32_t i = 0; i < pod_enclosure_table.count; i++)
        if (strcmp(pod_enclosure_keys[i].name, key) == 0)
            return conf_value_set(&pod_enclosure_keys[i], text, why, out_enclosure);
    return err_set(why, ICMS_CONFIG, "an enclosure has no key '%s'", key);
}

static const struct conf_key pod_volume_keys[] = {
    {"name", CONF_NAME, true, AT(struct conf_pod_volume, name), .example = "kv",
     .doc = "The volume's name, as agents and targets list it."},
    {"uuid", CONF_UUID, false, AT(struct conf_pod_volume, uuid), .computed = "made from the name",
     .doc = "The volume's identity. Written here when it is written in the configuration of "
            "targets without the map."},
    VOLUME_TENANT(struct conf_pod_volume),
    {"generation", CONF_COUNT, false, AT(struct conf_pod_volume, generation), .min = 0,
     .max = UINT32_MAX, .fallback = "0",
     .doc = "Generation of the volume's content. Raising it resets the volume: agents forget its "
            "blocks at once, and ask enclosures for the namespace of the new generation only; "
            "targets begin it, empty. Until a target has it, the volume is missing there. icms pod "
            "volume reset does it."},
    VOLUME_QUOTA(struct conf_pod_volume),
    {"value_max", CONF_BYTES, false, AT(struct conf_pod_volume, value_bytes_max), .min = 1,
     .max = LIMIT_VALUE_BYTES, .fallback = "8MiB",
     .doc = "The largest block that can be stored. Agents take another one at their start. A "
            "target refuses one that is larger than all that it started with, until it is "
            "restarted."},
    {"sealed", CONF_BOOL, false, AT(struct conf_pod_volume, sealed), .fallback = "true",
     .doc = "Values end in a trailer with their checksum; false: raw values for foreign NVMe "
            "hosts. Agents take another one at their start, targets with another generation."},
    {"encrypted", CONF_BOOL, false, AT(struct conf_pod_volume, encrypted), .fallback = "false",
     .doc = "Clients encrypt values. A part of the volume's identity. Agents take another one at "
            "their start."},
    {"run_blocks", CONF_COUNT, false, AT(struct conf_pod_volume, run_blocks), .min = 1,
     .max = 65536, .fallback = "8",
     .doc = "Blocks of a chain that are placed together, at most. Agents take another one at "
            "their start. Only icms-agent uses it."},
    VOLUME_REQUIRE(struct conf_pod_volume),
    VOLUME_HOSTS(struct conf_pod_volume),
};
static const struct conf_table pod_volume_table = {"a volume of the pod", KEYS(pod_volume_keys),
                                                   conf_pod_volume_rules};

/* A list on one line; the map's parser looks at what it lists. */
static icms_err pod_list_set(const char *text, struct err_why *why)
{
    size_t bytes = strlen(text);

    return bytes > 2 && text[0] == '[' && text[bytes - 1] == ']'
               ? ICMS_OK
               : err_set(why, ICMS_CONFIG, "a list is wanted here, as in [NQN, NQN]");
}

icms_err conf_pod_volume_set(const char *key, const char *text, struct err_why *why,
                             struct conf_pod_volume *out_volume)
{
    for (uint32_t i = 0; i < pod_volume_table.count; i++) {
        const struct conf_key *is = &pod_volume_keys[i];

        if (strcmp(is->name, key) != 0)
            continue;
        if (text[0] == '\0' && !is->required)
            return ICMS_OK;
        return is->kind == CONF_NQNS ? pod_list_set(text, why)
                                     : conf_value_set(is, text, why, out_volume);
    }
    return err_set(why, ICMS_CONFIG,
                   "a volume of a pod map has no key '%s'; it has quota, hosts, tenant, require, "
                   "value_max, sealed, encrypted, run_blocks, and generation when it is created",
                   key);
}

static const struct conf_key pod_keys[] = {
    {"name", CONF_NAME, true, AT(struct conf_pod, name), .example = "pod0",
     .doc = "The name of the pod. A daemon that has a map takes none of another name."},
    {"epoch", CONF_COUNT, true, AT(struct conf_pod, epoch), .min = 1, .max = UINT32_MAX,
     .example = "1",
     .doc = "Raise it by 1 with each change. A daemon takes no map with a lower epoch than it has, "
            "and none that differs under the same epoch."},
    {"shrink_epoch", CONF_COUNT, false, AT(struct conf_pod, shrink_epoch), .min = 0,
     .max = UINT32_MAX, .fallback = "0",
     .doc =
         "The last epoch in which enclosures that were not drained, or volumes, were to leave, or "
         "a quota was to become lower. A daemon whose map has a lower epoch than that takes a map "
         "that lacks them, has them out, or has such a quota. Otherwise agents wait until the "
         "enclosures that are missing in the map, or out, do not answer any more and one that "
         "stays does, targets and icms-etcd refuse such a map, and all refuse one that lacks a "
         "volume, has another one under its name and generation, lowers a quota, or opens a "
         "volume to more hosts (no hosts where there were some, or a lower require). It is not "
         "above epoch, and stays in later maps, for daemons that missed some. icms pod out, icms "
         "pod remove, icms pod volume delete, icms pod volume set of a lower quota, of no hosts "
         "and of a lower require and, for maps edited by hand, icms pod reload --yes write it."},
    {"enclosures", CONF_MAPS, true, LIST_AT(struct conf_pod, enclosures, enclosure_count), .min = 1,
     .max = LIMIT_ENCLOSURES, .table = &pod_enclosure_table,
     .example = "[{name: enclosure0, address: 192.0.2.10:4420}]",
     .doc = "The enclosures of the pod."},
    {"tenants", CONF_MAPS, false, LIST_AT(struct conf_pod, tenants, tenant_count), .min = 1,
     .max = LIMIT_TENANTS, .table = &tenant_table, .computed = "one a volume, all of weight 1",
     .example = "[{name: team-a, weight: 3}]",
     .doc = "Weights and limits of tenants, at each enclosure; at most 1024. Only icms-target uses "
            "them."},
    {"volumes", CONF_MAPS, false, LIST_AT(struct conf_pod, volumes, volume_count), .min = 1,
     .max = LIMIT_VOLUMES, .table = &pod_volume_table,
     .computed = "none: each daemon's file says it",
     .doc = "What all daemons must agree about, of each volume. What is local to a node (users, "
            "groups, memory_min, memory_max, weight) stays in the agent's file, under the same "
            "name. An agent serves the volumes that both list, a target with pod all of them."},
};
const struct conf_table conf_pod_table = {"the pod map", KEYS(pod_keys), conf_pod_rules};
