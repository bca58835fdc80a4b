/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_key.c: icms key: makes secrets. A new secret goes into a new file that only its owner
 * can read, and nowhere else: it is not printed, and never an argument.
 */
#include <stdio.h>
#include <string.h>

#include "crypt/key_text.h"
#include "crypt/secret.h"
#include "crypt/volume_key.h"
#include "icms_cli.h"

#define TYPES  (sizeof(types) / sizeof(*types))
#define TOKEN  "token"  /* --type: a bearer token of an HTTP port                              */
#define VOLUME "volume" /* --type: the key of an encrypted volume, or one that wraps such keys */

static const struct {
    const char *name; /* --type                */
    const char *form; /* of crypt/key_text.h   */
    enum key_hash last;
} types[] = {
    {"dhchap", KEY_TEXT_DHCHAP, KEY_HASH_SHA512},
    {"tls", KEY_TEXT_TLS, KEY_HASH_SHA384},
};

static const char *const hashes[] = {
    [KEY_HASH_NONE] = "none",
    [KEY_HASH_SHA256] = "sha256",
    [KEY_HASH_SHA384] = "sha384",
    [KEY_HASH_SHA512] = "sha512",
};

/* A new key of that form, in a new file. */
static icms_err key_gen(const char *form, enum key_hash hash, const char *path, struct err_why *why)
{
    struct key_plain key = {.hash = hash, .bytes = key_hash_bytes(hash)};
    char text[KEY_TEXT_BYTES_MAX];
    size_t length;
    icms_err err;

    secret_random(key.key, key.bytes);
    length = key_text_make(form, &key, text);
    text[length] = '\n';
    err = secret_write(path, text, length + 1, why);
    secret_wipe(text, sizeof(text));
    secret_wipe(&key, sizeof(key));
    return err;
}

/* Bytes as hex digits and a line end, into a new file. */
static icms_err key_write_hex(const char *path, const uint8_t *bytes, size_t count,
                              struct err_why *why)
{
    char text[2 * WRAPPED_KEY_BYTES + 1];
    icms_err err;

    for (size_t i = 0; i < count; i++) {
        text[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    text[2 * count] = '\n';
    err = secret_write(path, text, 2 * count + 1, why);
    secret_wipe(text, sizeof(text));
    return err;
}

/* Random bytes as hex digits: the key of a volume, or a token. */
static int key_gen_plain(const struct cli *cli)
{
    uint8_t key[SEAL_KEY_BYTES];
    struct err_why why = {""};
    icms_err err;

    if (cli->hash != NULL || cli->kek != NULL)
        return cli_usage(cli, "--type %s: it has no --hash and no --kek", cli->type);
    secret_random(key, sizeof(key));
    err = key_write_hex(cli->argv[1], key, sizeof(key), &why);
    secret_wipe(key, sizeof(key));
    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s", why.text);
    if (cli->json)
        cli_json("{s:s, s:s}", "file", cli->argv[1], "type", cli->type);
    else
        (void)printf("%s: new %s%s\n", cli->argv[1], cli->type,
                     strcmp(cli->type, VOLUME) == 0 ? " key" : "");
    return CLI_DONE;
}

/* icms key wrap --kek FILE KEY WRAPPED */
static int key_wrap(const struct cli *cli)
{
    struct secret *key = NULL, *kek = NULL;
    uint8_t wrapped[WRAPPED_KEY_BYTES];
    struct err_why why = {""};
    icms_err err;

    if (cli->argc != 3 || cli->kek == NULL || cli->type != NULL || cli->hash != NULL)
        return cli_usage(cli,
                         "wrap takes --kek FILE, the file of a key and the name of a new file");
    err = volume_key_read(cli->kek, &why, &kek);
    if (err == ICMS_OK)
        err = volume_key_read(cli->argv[1], &why, &key);
    if (err == ICMS_OK && !volume_key_wrap(key, kek, wrapped))
        err = err_set(&why, ICMS_UNSUPPORTED, "libcrypto has no AES-256 key wrap");
    if (err == ICMS_OK)
        err = key_write_hex(cli->argv[2], wrapped, sizeof(wrapped), &why);
    secret_free(&key);
    secret_free(&kek);
    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s", why.text);
    if (cli->json)
        cli_json("{s:s, s:s}", "file", cli->argv[2], "kek", cli->kek);
    else
        (void)printf("%s: %s, wrapped under %s\n", cli->argv[2], cli->argv[1], cli->kek);
    return CLI_DONE;
}

static int key_run(int argc, char **argv)
{
    const char *type_name, *hash_name;
    struct err_why why = {""};
    enum key_hash hash = KEY_HASH_NONE;
    size_t type = 0;
    struct cli cli;
    icms_err err;
    int status = cli_parse(&cli_key, argc, argv, &cli);

    if (status >= 0)
        return status;
    if (cli.argc > 0 && strcmp(cli.argv[0], "wrap") == 0)
        return key_wrap(&cli);
    if (cli.argc != 2 || strcmp(cli.argv[0], "gen") != 0)
        return cli_usage(&cli, "it takes 'gen' and the name of a new file, or 'wrap'");
    if (cli.type != NULL && (strcmp(cli.type, VOLUME) == 0 || strcmp(cli.type, TOKEN) == 0))
        return key_gen_plain(&cli);
    if (cli.kek != NULL)
        return cli_usage(&cli, "--kek is for 'wrap'");
    type_name = cli.type != NULL ? cli.type : "dhchap";
    hash_name = cli.hash != NULL ? cli.hash : "sha256";
    while (type < TYPES && strcmp(types[type].name, type_name) != 0)
        type++;
    if (type == TYPES)
        return cli_usage(&cli, "--type %s: it is dhchap, tls, volume or token", type_name);
    while (hash <= types[type].last && strcmp(hashes[hash], hash_name) != 0)
        hash++;
    if (hash > types[type].last)
        return cli_usage(&cli, "--hash %s: it is none, sha256%s", hash_name,
                         types[type].last == KEY_HASH_SHA512 ? ", sha384 or sha512" : " or sha384");
    err = key_gen(types[type].form, hash, cli.argv[1], &why);
    if (err != ICMS_OK)
        return cli_fail(&cli, err, "%s", why.text);
    if (cli.json)
        cli_json("{s:s, s:s, s:s}", "file", cli.argv[1], "type", type_name, "hash", hash_name);
    else
        (void)printf("%s: new %s key, %s\n", cli.argv[1], type_name, hash_name);
    return CLI_DONE;
}

const struct cli_command cli_key = {
    .name = "key",
    .summary = "make a secret",
    .takes = CLI_TAKES_GEN,
    .run = key_run,
    .help =
        "usage: icms key gen [options] FILE\n"
        "       icms key wrap --kek FILE KEY WRAPPED\n"
        "Write a new random secret to FILE, which must not exist. Only its owner can read it;\n"
        "the secret is not printed.\n\n"
        "      --type TYPE      dhchap: a secret of DH-HMAC-CHAP (DHHC-1), the default;\n"
        "                       tls: a pre-shared key of NVMe/TCP with TLS (NVMeTLSkey-1);\n"
        "                       volume: a key of an encrypted volume, or one that wraps such "
        "keys;\n"
        "                       token: a bearer token of the HTTP ports of daemons\n"
        "      --hash HASH      none, sha256 (the default), sha384 or sha512 (not tls): the hash\n"
        "                       that makes the secret one host's; its length follows\n"
        "      --kek FILE       wrap: encrypt the key in KEY under the key in FILE (RFC 3394) "
        "into\n"
        "                       the new file WRAPPED\n"
        "      --json           answer with JSON\n"
        "  -h, --help           print this\n"
        "\nExit status: 0 done, 1 it failed, 2 usage.\n",
};
