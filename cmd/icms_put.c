/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_put.c: icms put and icms get, one block a call, from and to files.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "icms_cli.h"

#define HELP_TIER                                                                                  \
    "  -o, --open WHERE     unix:SOCKET, pod:FILE or dir:DIRECTORY; default $ICMS_OPEN, else\n"    \
    "                       the agent at $ICMS_SOCKET or at the default socket\n"                  \
    "  -v, --volume NAME    default $ICMS_VOLUME, else kv\n"                                       \
    "      --keys FILE      keys of encrypted volumes; default $ICMS_KEYS\n"                       \
    "  -d, --deadline TIME  500ms, 2s; default: the agent's\n"
#define HELP_KEY                                                                                   \
    "      --hex            KEY is hex, as with 0x in front\n"                                     \
    "      --name           KEY is a name of any length\n"
#define HELP_ANSWER                                                                                \
    "      --json           answer with one JSON object a line\n"                                  \
    "  -q, --quiet          no answer but the exit status\n"                                       \
    "  -h, --help           print this\n"

/* ---- put ------------------------------------------------------------------------------------ */

/* Reads a file to its end, at most bytes_max + 1 bytes. */
static icms_err put_read(const char *path, uint64_t bytes_max, uint8_t **out_data,
                         uint64_t *out_bytes)
{
    bool standard = path == NULL || strcmp(path, "-") == 0;
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    uint8_t *data = malloc(bytes_max + 1);
    icms_err err = fd < 0 ? err_from_errno(errno) : data == NULL ? ICMS_NO_MEMORY : ICMS_OK;
    uint64_t bytes = 0;

    while (err == ICMS_OK && bytes <= bytes_max) {
        ssize_t n = read(fd, data + bytes, bytes_max + 1 - bytes);

        if (n == 0)
            break;
        if (n > 0)
            bytes += (uint64_t)n;
        else if (errno != EINTR)
            err = err_from_errno(errno);
    }
    if (fd >= 0 && !standard)
        (void)close(fd);
    if (err != ICMS_OK) {
        free(data);
        return err;
    }
    *out_data = data;
    *out_bytes = bytes;
    return ICMS_OK;
}

static int put_one(struct cli *cli, const char *key, struct icms_block *block)
{
    struct icms_request_options options = cli_options(cli);
    struct icms_request *request;
    icms_err err = icms_put_start(cli->handle, block, 1, &options, &request);

    if (err == ICMS_OK)
        err = cli_wait(cli, request, "storing");
    if (block->status == ICMS_OK) {
        cli_answer(cli, key, block, cli->on_flash ? "stored on flash" : "stored");
        return CLI_DONE;
    }
    if (cli->json)
        return cli_miss(cli, key, block);
    if (block->status == ICMS_EXISTS)
        return cli_fail(cli, block->status, "%s is in volume %s already and was left as it is", key,
                        cli->volume);
    if (block->status == ICMS_MISS)
        return cli_fail(cli, block->status, "%s was not stored in volume %s (%s); try again", key,
                        cli->volume, icms_miss_name(block->reason));
    (void)cli_fail(cli, block->status, "cannot store %s in volume %s: %s%s%s%s", key, cli->volume,
                   icms_err_text(block->status), block->reason != ICMS_MISS_NONE ? ", " : "",
                   block->reason != ICMS_MISS_NONE ? icms_miss_name(block->reason) : "",
                   icms_err_retry(block->status) ? "; try again" : "");
    return err == ICMS_MISS ? CLI_MISSED : CLI_USAGE;
}

static int put_run(int argc, char **argv)
{
    struct icms_block block = {0};
    struct cli cli;
    const char *file;
    uint8_t *data = NULL;
    int status = cli_parse(&cli_put, argc, argv, &cli);
    icms_err err;

    if (status >= 0)
        return status;
    if (cli.argc < 1 || cli.argc > 2 || (cli.argc == 2 && cli.file != NULL))
        return cli_usage(&cli, "expected a key and at most one file");
    file = cli.argc == 2 ? cli.argv[1] : cli.file;
    status = cli_block_key(&cli, cli.argv[0], &block.key);
    if (status < 0)
        status = cli_open(&cli, &block, 1);
    if (status >= 0)
        return status;
    err = put_read(file, cli.info.value_bytes_max, &data, &block.bytes);
    if (err != ICMS_OK)
        status = cli_fail(&cli, err, "cannot read %s: %s", file == NULL ? "standard input" : file,
                          icms_err_text(err));
    else if (block.bytes == 0)
        status = cli_fail(&cli, ICMS_VALUE_SIZE, "%s is empty; a value has at least one byte",
                          file == NULL ? "standard input" : file);
    else if (block.bytes > cli.info.value_bytes_max)
        status = cli_fail(&cli, ICMS_VALUE_SIZE,
                          "%s has more than %llu bytes, the largest value of volume %s",
                          file == NULL ? "standard input" : file,
                          (unsigned long long)cli.info.value_bytes_max, cli.volume);
    block.data = data;
    if (status < 0)
        status = put_one(&cli, cli.argv[0], &block);
    cli_close(&cli);
    free(data);
    return status;
}

const struct cli_command cli_put = {
    .name = "put",
    .summary = "store a block",
    .takes = CLI_TAKES_TIER | CLI_TAKES_KEYS | CLI_TAKES_STORE,
    .run = put_run,
    .help = "usage: icms put [options] KEY [FILE]\n"
            "Store the bytes of FILE, or of standard input, under KEY.\n\n"
            "KEY is 1 to 16 bytes of text, or 0x and hex.\n\n" HELP_TIER HELP_KEY
            "      --input FILE     the same as the argument FILE\n"
            "      --on-flash       done when a drive has it, not when the agent has taken it\n"
            "      --if-absent      fail when the key exists; its block stays as it is\n"
            "      --once           it is read once at most: the agent's memory evicts it "
            "first\n" HELP_ANSWER "\nExit status: 0 stored, 1 not stored, 2 usage or connection.\n",
};

/* ---- get ------------------------------------------------------------------------------------ */

static icms_err get_write(const char *path, const uint8_t *data, uint64_t bytes)
{
    bool standard = path == NULL || strcmp(path, "-") == 0;
    int fd = standard ? STDOUT_FILENO : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    icms_err err = fd < 0 ? err_from_errno(errno) : ICMS_OK;
    uint64_t done = 0;

    while (err == ICMS_OK && done < bytes) {
        ssize_t n = write(fd, data + done, bytes - done);

        if (n >= 0)
            done += (uint64_t)n;
        else if (errno != EINTR)
            err = err_from_errno(errno);
    }
    if (fd >= 0 && !standard && close(fd) != 0 && err == ICMS_OK)
        err = err_from_errno(errno);
    return err;
}

static int get_one(struct cli *cli, const char *key, const char *file, struct icms_block *block)
{
    struct icms_request_options options = cli_options(cli);
    struct icms_request *request;
    bool to_stdout = file == NULL || strcmp(file, "-") == 0;
    icms_err err = icms_get_start(cli->handle, block, 1, &options, &request);

    if (err == ICMS_OK)
        err = cli_wait(cli, request, "loading");
    if (block->status != ICMS_OK && cli->json)
        return cli_miss(cli, key, block);
    if (block->status == ICMS_MISS)
        return cli_fail(cli, block->status, "%s: missing in volume %s (%s)", key, cli->volume,
                        icms_miss_name(block->reason));
    if (block->status != ICMS_OK)
        return cli_fail(cli, block->status, "cannot load %s from volume %s: %s", key, cli->volume,
                        icms_err_text(block->status));
    err = get_write(file, block->data, block->bytes);
    if (err != ICMS_OK)
        return cli_fail(cli, ICMS_IO, "cannot write %s: %s", to_stdout ? "standard output" : file,
                        icms_err_text(err));
    if (!to_stdout)
        cli_answer(cli, key, block, "loaded");
    return CLI_DONE;
}

static int get_run(int argc, char **argv)
{
    struct icms_block block = {0};
    const char *file;
    struct cli cli;
    int status = cli_parse(&cli_get, argc, argv, &cli);

    if (status >= 0)
        return status;
    if (cli.argc < 1 || cli.argc > 2 || (cli.argc == 2 && cli.file != NULL))
        return cli_usage(&cli, "expected a key and at most one file");
    file = cli.argc == 2 ? cli.argv[1] : cli.file;
    if (cli.json && (file == NULL || strcmp(file, "-") == 0))
        return cli_usage(&cli, "--json answers on standard output, so the value needs a file");
    status = cli_block_key(&cli, cli.argv[0], &block.key);
    if (status < 0)
        status = cli_open(&cli, &block, 1);
    if (status >= 0)
        return status;
    block.bytes = cli.info.value_bytes_max;
    block.data = malloc(block.bytes);
    if (block.data == NULL)
        status = cli_fail(&cli, ICMS_NO_MEMORY, "out of memory");
    else
        status = get_one(&cli, cli.argv[0], file, &block);
    cli_close(&cli);
    free(block.data);
    return status;
}

const struct cli_command cli_get = {
    .name = "get",
    .summary = "load a block",
    .takes = CLI_TAKES_TIER | CLI_TAKES_KEYS | CLI_TAKES_FILE,
    .run = get_run,
    .help = "usage: icms get [options] KEY [FILE]\n"
            "Load the block under KEY and write its bytes to FILE, or to standard output.\n\n"
            "KEY is 1 to 16 bytes of text, or 0x and hex.\n\n" HELP_TIER HELP_KEY
            "      --output FILE    the same as the argument FILE\n"
            "      --once           it is not read again: the agent's memory evicts it "
            "first\n" HELP_ANSWER
            "\nExit status: 0 loaded, 1 missing (with the reason), 2 usage or connection.\n",
};
