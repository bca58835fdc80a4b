/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/volume_key.c: keys of encrypted volumes, see volume_key.h.
 *
 * Called by libicms when a volume is opened and by `icms key`, on the caller's thread. Keys go from
 * file or pipe into memory of crypt/secret and through no other buffer, but for libcrypto's own.
 */
#include "crypt/volume_key.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"

/* Two digits a byte, and some blanks around them. */
#define KEY_FILE_BYTES_MAX (2 * WRAPPED_KEY_BYTES + 16)

/* Words of a command, and what is kept of its standard error. */
#define COMMAND_WORDS_MAX   64
#define COMMAND_ERROR_BYTES 256

extern char **environ;

/* ---- the two forms -------------------------------------------------------------------------- */

static bool is_blank(uint8_t byte)
{
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

/* A key of exactly key_bytes out of what was read: as it is, or hex digits. */
static icms_err key_decode(const uint8_t *text, size_t bytes, size_t key_bytes, const char *what,
                           struct err_why *why, struct secret **out_key)
{
    struct secret *key = NULL;
    bool right = bytes == key_bytes;
    icms_err err = secret_new(key_bytes, why, &key);

    if (err != ICMS_OK)
        return err;
    if (right)
        memcpy(secret_bytes(key), text, bytes);
    while (!right && bytes > 0 && is_blank(text[bytes - 1]))
        bytes--;
    while (!right && bytes > 0 && is_blank(*text)) {
        text++;
        bytes--;
    }
    if (!right && bytes == 2 * key_bytes)
        right = hex_read((const char *)text, key_bytes, secret_bytes(key));
    if (right && !secret_is_zero(secret_bytes(key), key_bytes)) {
        *out_key = key;
        return ICMS_OK;
    }
    secret_free(&key);
    if (right)
        return err_set(why, ICMS_CONFIG, "%.300s: " SECRET_ZERO, what);
    return err_set(why, ICMS_CONFIG, "%.300s: not a key: %zu bytes, or %zu hex digits, are one",
                   what, key_bytes, 2 * key_bytes);
}

static icms_err key_file_read(const char *path, size_t key_bytes, struct err_why *why,
                              struct secret **out_key)
{
    struct secret *file = NULL;
    icms_err err = secret_read(path, KEY_FILE_BYTES_MAX, why, &file);

    if (err == ICMS_OK)
        err = key_decode(secret_bytes(file), secret_length(file), key_bytes, path, why, out_key);
    secret_free(&file);
    return err;
}

icms_err volume_key_read(const char *path, struct err_why *why, struct secret **out_key)
{
    return key_file_read(path, SEAL_KEY_BYTES, why, out_key);
}

/* ---- key wrap ------------------------------------------------------------------------------- */

/* True: out has out_bytes. */
static bool wrap_run(bool wrap, struct secret *kek, const uint8_t *in, int in_bytes, uint8_t *out,
                     int out_bytes)
{
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, "AES-256-WRAP", NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int done = 0, last = 0;
    bool right = false;

    if (cipher != NULL && context != NULL) {
        EVP_CIPHER_CTX_set_flags(context, EVP_CIPHER_CTX_FLAG_WRAP_ALLOW);
        right = EVP_CipherInit_ex2(context, cipher, secret_bytes(kek), NULL, wrap, NULL) == 1 &&
                EVP_CipherUpdate(context, out, &done, in, in_bytes) == 1 &&
                EVP_CipherFinal_ex(context, out + done, &last) == 1 && done + last == out_bytes;
    }
    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(cipher);
    return right;
}

bool volume_key_wrap(struct secret *key, struct secret *kek, uint8_t out_wrapped[WRAPPED_KEY_BYTES])
{
    check(secret_length(key) == SEAL_KEY_BYTES && secret_length(kek) == SEAL_KEY_BYTES);
    return wrap_run(true, kek, secret_bytes(key), SEAL_KEY_BYTES, out_wrapped, WRAPPED_KEY_BYTES);
}

icms_err volume_key_unwrap(const char *path, struct secret *kek, struct err_why *why,
                           struct secret **out_key)
{
    struct secret *wrapped = NULL, *key = NULL;
    icms_err err;

    check(secret_length(kek) == SEAL_KEY_BYTES);
    err = key_file_read(path, WRAPPED_KEY_BYTES, why, &wrapped);
    if (err == ICMS_OK) /* libcrypto writes the integrity block behind the key */
        err = secret_new(WRAPPED_KEY_BYTES, why, &key);
    if (err == ICMS_OK && !wrap_run(false, kek, secret_bytes(wrapped), WRAPPED_KEY_BYTES,
                                    secret_bytes(key), SEAL_KEY_BYTES))
        err = err_set(why, ICMS_AUTH,
                      "cannot unwrap the key in %.300s: it was wrapped under another "
                      "key-encryption key, or the file is damaged",
                      path);
    secret_free(&wrapped);
    if (err != ICMS_OK) {
        secret_free(&key);
        return err;
    }
    *out_key = key;
    return ICMS_OK;
}

/* ---- a command ------------------------------------------------------------------------------ */

struct command {
    char text[1024]; /* its words, cut            */
    char *argv[COMMAND_WORDS_MAX + 1];
    int out[2], err[2]; /* pipes; -1                 */
    pid_t pid;
    size_t out_bytes, err_bytes;     /* read so far               */
    char error[COMMAND_ERROR_BYTES]; /* of its standard error     */
    uint64_t until_ns;
};

static uint64_t command_now_ns(void)
{
    struct timespec now;

    check(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool command_split(struct command *command, const char *text)
{
    char *at = command->text, *rest = NULL;
    size_t words = 0;

    if (strlen(text) >= sizeof(command->text))
        return false;
    memcpy(at, text, strlen(text) + 1);
    for (char *word = strtok_r(at, " \t", &rest); word != NULL;
         word = strtok_r(NULL, " \t", &rest)) {
        if (words == COMMAND_WORDS_MAX)
            return false;
        command->argv[words++] = word;
    }
    return words > 0 && command->argv[0][0] == '/';
}

static void command_close(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

/* Starts it: nothing to read, two pipes to write into, signals as a new program has them, a process
 * group of its own, so that all of it can be killed. 0, or an errno. */
static int command_start(struct command *command)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    int error;

    if (pipe2(command->out, O_CLOEXEC) != 0 || pipe2(command->err, O_CLOEXEC) != 0)
        return errno;
    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    error = posix_spawn_file_actions_init(&files);
    if (error != 0)
        return error;
    error = posix_spawnattr_init(&attributes);
    if (error != 0) {
        (void)posix_spawn_file_actions_destroy(&files);
        return error;
    }
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                                    POSIX_SPAWN_SETSIGDEF);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setsigdefault(&attributes, &all);
    error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&files, command->out[1], 1);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&files, command->err[1], 2);
    if (error == 0)
        error = posix_spawn(&command->pid, command->argv[0], &files, &attributes, command->argv,
                            environ);
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&attributes);
    command_close(&command->out[1]);
    command_close(&command->err[1]);
    return error;
}

/* Reads what fits, and the rest into nothing. False: the end. */
static bool command_read(int fd, uint8_t *to, size_t bytes, size_t *had)
{
    uint8_t nothing[256];
    ssize_t n =
        *had < bytes ? read(fd, to + *had, bytes - *had) : read(fd, nothing, sizeof(nothing));

    secret_wipe(nothing, sizeof(nothing));
    if (n > 0 && *had < bytes)
        *had += (size_t)n;
    else if (n > 0)
        *had = bytes + 1; /* too much */
    return n > 0 || (n < 0 && errno == EINTR);
}

/* Until both pipes ended. False: it took too long. */
static bool command_listen(struct command *command, struct secret *output)
{
    while (command->out[0] >= 0 || command->err[0] >= 0) {
        struct pollfd fds[2] = {{.fd = command->out[0], .events = POLLIN},
                                {.fd = command->err[0], .events = POLLIN}};
        uint64_t now = command_now_ns();

        if (now >= command->until_ns)
            return false;
        if (poll(fds, 2, (int)((command->until_ns - now) / 1000000) + 1) < 0)
            continue;
        if (fds[0].revents != 0 && !command_read(command->out[0], secret_bytes(output),
                                                 secret_length(output), &command->out_bytes))
            command_close(&command->out[0]);
        if (fds[1].revents != 0 && !command_read(command->err[0], (uint8_t *)command->error,
                                                 sizeof(command->error) - 1, &command->err_bytes))
            command_close(&command->err[0]);
    }
    return true;
}

/* Waits for its end: by until_ns, or killed. True: it ended by itself, without an error. Where this
 * process lets nobody wait for its children nothing is known, and what was printed decides. */
static bool command_wait(struct command *command, bool ended)
{
    int status = 0;
    pid_t pid = 0;

    while (ended && (pid = waitpid(command->pid, &status, WNOHANG)) == 0) {
        struct timespec pause = {.tv_nsec = 2000000};

        if (command_now_ns() >= command->until_ns)
            ended = false;
        else
            (void)nanosleep(&pause, NULL);
    }
    if (!ended) {
        (void)kill(-command->pid, SIGKILL);
        while (waitpid(command->pid, &status, 0) < 0 && errno == EINTR) {
        }
        return false;
    }
    return pid < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Its standard error as part of a sentence: one line of what can be printed. */
static void command_error_clean(struct command *command)
{
    size_t bytes = command->err_bytes < sizeof(command->error) ? command->err_bytes
                                                               : sizeof(command->error) - 1;

    while (bytes > 0 && is_blank((uint8_t)command->error[bytes - 1]))
        bytes--;
    command->error[bytes] = 0;
    for (size_t i = 0; i < bytes; i++)
        if (command->error[i] < ' ' || command->error[i] > '~')
            command->error[i] = command->error[i] == '\n' ? ' ' : '?';
}

static icms_err command_run(struct command *command, struct secret *output, struct err_why *why)
{
    int error = command_start(command);
    bool ended;

    if (error != 0)
        return err_set(why, err_from_errno(error), "cannot run key_command %.200s: %s",
                       command->argv[0], strerror(error));
    ended = command_listen(command, output);
    if (command_wait(command, ended))
        return ICMS_OK;
    command_error_clean(command);
    return err_set(why, ICMS_IO, "key_command %.200s %s%s%.*s", command->argv[0],
                   ended ? "failed" : "did not end in time",
                   command->error[0] != 0 ? ": " : "; it wrote nothing to standard error",
                   COMMAND_ERROR_BYTES, command->error);
}

icms_err volume_key_command(const char *text, uint32_t timeout_ms, struct err_why *why,
                            struct secret **out_key)
{
    struct command command = {.out = {-1, -1}, .err = {-1, -1}};
    struct secret *output = NULL;
    icms_err err;

    if (!command_split(&command, text))
        return err_set(why, ICMS_CONFIG,
                       "key_command: write the absolute path of a program and at most %d words",
                       COMMAND_WORDS_MAX - 1);
    err = secret_new(KEY_FILE_BYTES_MAX, why, &output);
    if (err != ICMS_OK)
        return err;
    command.until_ns = command_now_ns() + (uint64_t)timeout_ms * 1000000;
    err = command_run(&command, output, why);
    for (int i = 0; i < 2; i++) {
        command_close(&command.out[i]);
        command_close(&command.err[i]);
    }
    if (err == ICMS_OK && command.out_bytes > secret_length(output))
        err =
            err_set(why, ICMS_CONFIG,
                    "key_command %.200s printed more than %d bytes: a key has %d, or %d hex digits",
                    command.argv[0], KEY_FILE_BYTES_MAX, SEAL_KEY_BYTES, 2 * SEAL_KEY_BYTES);
    if (err == ICMS_OK)
        err = key_decode(secret_bytes(output), command.out_bytes, SEAL_KEY_BYTES, command.argv[0],
                         why, out_key);
    secret_free(&output);
    return err;
}

/* ---- a key, from wherever it is ------------------------------------------------------------- */

icms_err volume_key_load(const struct volume_key_source *source, struct err_why *why,
                         struct secret **out_key)
{
    struct secret *kek = NULL;
    icms_err err;

    if (source->file[0] != 0)
        return volume_key_read(source->file, why, out_key);
    if (source->kek_file[0] != 0)
        err = volume_key_read(source->kek_file, why, &kek);
    else
        err = volume_key_command(source->key_command, VOLUME_KEY_COMMAND_MS, why, &kek);
    if (err == ICMS_OK)
        err = volume_key_unwrap(source->wrapped, kek, why, out_key);
    secret_free(&kek);
    return err;
}

bool volume_key_same(struct secret *a, struct secret *b)
{
    return CRYPTO_memcmp(secret_bytes(a), secret_bytes(b), SEAL_KEY_BYTES) == 0;
}
