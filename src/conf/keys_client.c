/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every key of clients' files: the list of keys of encrypted volumes, and the table of the NIXL
 * plugin. See keys.c.
 */
#include "conf/keys_int.h"

/* ---- the keys of clients -------------------------------------------------------------------- */

static const struct conf_key seal_key_keys[] = {
    {"id", CONF_COUNT, true, AT(struct conf_seal_key, id), .min = 1, .max = UINT32_MAX,
     .doc = "Names the key in every value that is encrypted with it. Never give the id of a key, "
            "also of one that is gone, to another key of the volume."},
    {"file", CONF_PATH, false, AT(struct conf_seal_key, file), .computed = "none",
     .example = "/etc/icms/keys/kv-1",
     .doc =
         "File with the key: 32 bytes, or 64 hex digits, as icms key gen --type volume writes "
         "it. A path that is not absolute, here as in wrapped and kek_file, begins in the folder "
         "of this list. It must belong to the user of the process or to root, with mode 0600 or "
         "0400."},
    {"wrapped", CONF_PATH, false, AT(struct conf_seal_key, wrapped), .computed = "none",
     .doc = "Instead of file: file with the key encrypted under a key-encryption key, as icms key "
            "wrap writes it: AES-256 key wrap (RFC 3394), 40 bytes, or 80 hex digits."},
    {"kek_file", CONF_PATH, false, AT(struct conf_seal_key, kek_file), .computed = "none",
     .doc = "With wrapped: file with the key-encryption key, in the form of file."},
    {"key_command", CONF_PATH, false, AT(struct conf_seal_key, key_command), .computed = "none",
     .doc = "With wrapped, instead of kek_file: program that prints the key-encryption key, 64 "
            "hex digits or 32 bytes, and ends within 10 s. Its absolute path and its arguments, "
            "with blanks between them; there is no shell and no quoting. What it prints on "
            "standard error is in the error when it fails."},
};
static const struct conf_table seal_key_table = {"a key", KEYS(seal_key_keys), conf_seal_key_rules};

static const struct conf_key seal_volume_keys[] = {
    {"name", CONF_NAME, true, AT(struct conf_seal_volume, name), .example = "kv",
     .doc = "The volume's name. A volume that is listed must be encrypted."},
    {"keys", CONF_MAPS, true, LIST_AT(struct conf_seal_volume, keys, key_count), .min = 1,
     .max = LIMIT_VOLUME_KEYS, .table = &seal_key_table,
     .doc = "Its keys. The first one encrypts; all of them decrypt. At most 16."},
};
static const struct conf_table seal_volume_table = {"a volume", KEYS(seal_volume_keys),
                                                    conf_seal_volume_rules};

static const struct conf_key seal_keys[] = {
    {"volumes", CONF_MAPS, true, LIST_AT(struct conf_seal, volumes, volume_count),
     .max = LIMIT_AGENT_VOLUMES, .table = &seal_volume_table,
     .doc = "The encrypted volumes that the process has keys of; at most 64."},
};
const struct conf_table conf_seal_table = {"the list of keys", KEYS(seal_keys), conf_seal_rules};

/* ---- the NIXL plugin ------------------------------------------------------------------------ */

static const struct conf_key nixl_volume_keys[] = {
    {"nguid", CONF_NAME, true, AT(struct conf_nixl_volume, nguid),
     .doc = "What users of the backend write as nguid: 32 hex digits. All zeros stand for users "
            "that write none."},
    {"volume", CONF_NAME, true, AT(struct conf_nixl_volume, name),
     .doc = "The volume's name in the pod."},
    {"uuid", CONF_UUID, false, AT(struct conf_nixl_volume, uuid), .computed = "not looked at",
     .doc = "The UUID that the volume must have; with another one no backend is created."},
};
static const struct conf_table nixl_volume_table = {"a volume", KEYS(nixl_volume_keys),
                                                    conf_nixl_volume_rules};

static const struct conf_key nixl_device_keys[] = {
    {"device_name", CONF_PATH, true, AT(struct conf_nixl_device, name),
     .doc = "What users of the backend write as device_name. There need not be such a file."},
    {"connection", CONF_PATH, true, AT(struct conf_nixl_device, connection),
     .doc = "What it stands for: unix:SOCKET, an icms-agent of this machine; pod:FILE, the agent "
            "inside the process; or dir:FOLDER, for one process alone."},
    {"keys", CONF_PATH, false, AT(struct conf_nixl_device, keys),
     .computed = "the file that ICMS_KEYS names",
     .doc = "List of the keys of encrypted volumes, see icms-keys.yaml(5)."},
    {"load_deadline", CONF_DURATION, false, AT(struct conf_nixl_device, load_deadline_ms), .min = 1,
     .max = LIMIT_DEADLINE_MS, .fallback = "2s", .doc = "A READ or a query ends after this."},
    {"store_deadline", CONF_DURATION, false, AT(struct conf_nixl_device, store_deadline_ms),
     .min = 1, .max = LIMIT_DEADLINE_MS, .fallback = "10s", .doc = "A WRITE ends after this."},
    {"volumes", CONF_MAPS, true, LIST_AT(struct conf_nixl_device, volumes, volume_count), .min = 1,
     .max = LIMIT_AGENT_VOLUMES, .table = &nixl_volume_table,
     .doc = "The volumes that can be reached through it; at most 64."},
};
static const struct conf_table nixl_device_table = {"a device", KEYS(nixl_device_keys),
                                                    conf_nixl_device_rules};

static const struct conf_key nixl_keys[] = {
    {"devices", CONF_MAPS, true, LIST_AT(struct conf_nixl, devices, device_count), .min = 1,
     .max = CONF_NIXL_DEVICES, .table = &nixl_device_table,
     .doc = "The devices that users of the NIXL backend DOCA_MEMOS name."},
};
const struct conf_table conf_nixl_table = {"the configuration of the NIXL plugin", KEYS(nixl_keys),
                                           conf_nixl_rules};
