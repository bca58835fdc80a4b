/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms-etcd.c: the pod map in etcd, and the file of it that agents watch.
 *
 * PREFIX/map holds the text of the map, as icms-pod.yaml(5) describes it; PREFIX/targets/NAME what
 * a target says of itself, for as long as it lives. `follow` keeps a file like the map; agents know
 * the file alone, so that etcd is on no path of theirs: while it is away, the file stays. What is
 * written into the file has passed the same rules as an agent's: a map that is wrong, of another
 * pod or of an earlier epoch is refused, and said once. So is one that lost an enclosure, in the
 * file and in etcd alike: who starts believes what the file has.
 */
#include "icms_etcd.h"

#include <curl/curl.h>
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "conf/conf.h"
#include "conf/pod.h"
#include "crypt/secret.h"

#define FILE_DEFAULT   "/etc/icms/pod.yaml"
#define PREFIX_DEFAULT "/icms/pod"
#define TIMEOUT_MS     2000

/* follow asks so often, sooner or later by a fifth, so that the servers of a pod take turns. */
#define FOLLOW_MS 1000

/* A user that is refused costs etcd a look at a password. */
#define REFUSED_MS 30000

static const char usage_text[] =
    "usage: icms-etcd push|pull|follow|status [options] [FILE]\n"
    "       icms-etcd pod [options] -- WORD ...\n"
    "       icms-etcd register [options] TARGET.yaml\n"
    "Keep the pod map (icms-pod.yaml(5)) in etcd. FILE is the map's file; default\n"
    "/etc/icms/pod.yaml.\n\n"
    "  push      put the map of FILE into etcd, if it is a later epoch of the one that is there\n"
    "  pull      write the map of etcd into FILE, if it is a later epoch of the one that is there\n"
    "  follow    pull whenever the map in etcd changes, until a signal comes; agents watch FILE\n"
    "  pod       change the map in etcd by icms pod, which gets what follows --, as in\n"
    "            icms-etcd pod -- drain enclosure2\n"
    "  status    what etcd has and what differs from FILE; which targets are registered\n"
    "  register  say in etcd that the target of this configuration is there, as long as it "
    "answers\n\n"
    "      --prefix PREFIX        begin of the keys; default /icms/pod\n"
    "      --endpoints URL,...    etcd's addresses; default $ETCDCTL_ENDPOINTS, else\n"
    "                             http://127.0.0.1:2379\n"
    "      --cacert FILE          who signs etcd's certificates; default $ETCDCTL_CACERT\n"
    "      --cert FILE            certificate for etcd; default $ETCDCTL_CERT\n"
    "      --key FILE             its key; default $ETCDCTL_KEY\n"
    "      --user NAME            default: the name in $ETCDCTL_USER\n"
    "      --password-file FILE   one line, mode 0600; default: what follows ':' in\n"
    "                             $ETCDCTL_USER, else $ETCDCTL_PASSWORD\n"
    "      --timeout TIME         for each question to one of the addresses; default 2s\n"
    "      --dry-run              push, pull: say what would change, and change nothing\n"
    "      --yes                  push: although the map in etcd cannot be read\n"
    "      --json                 push, pull, status: answer with JSON\n"
    "  -V, --version              print the version\n"
    "  -h, --help                 print this\n"
    "\nExit status: 0 done; 1 it failed, or status found differences; 2 wrong usage.\n";

enum option_code {
    OPTION_PREFIX = 256,
    OPTION_ENDPOINTS,
    OPTION_CACERT,
    OPTION_CERT,
    OPTION_KEY,
    OPTION_USER,
    OPTION_PASSWORD,
    OPTION_TIMEOUT,
    OPTION_DRY_RUN,
    OPTION_YES,
    OPTION_JSON,
};

static const struct option option_table[] = {
    {"prefix", required_argument, NULL, OPTION_PREFIX},
    {"endpoints", required_argument, NULL, OPTION_ENDPOINTS},
    {"cacert", required_argument, NULL, OPTION_CACERT},
    {"cert", required_argument, NULL, OPTION_CERT},
    {"key", required_argument, NULL, OPTION_KEY},
    {"user", required_argument, NULL, OPTION_USER},
    {"password-file", required_argument, NULL, OPTION_PASSWORD},
    {"timeout", required_argument, NULL, OPTION_TIMEOUT},
    {"dry-run", no_argument, NULL, OPTION_DRY_RUN},
    {"yes", no_argument, NULL, OPTION_YES},
    {"json", no_argument, NULL, OPTION_JSON},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* ---- the end -------------------------------------------------------------------------------- */

static void signals_block(sigset_t *out_set)
{
    (void)sigemptyset(out_set);
    (void)sigaddset(out_set, SIGINT);
    (void)sigaddset(out_set, SIGTERM);
    (void)sigaddset(out_set, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, out_set, NULL);
}

enum etcd_wake etcd_sleep(uint32_t ms)
{
    static sigset_t set;
    static bool is_blocked;
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    int number;

    if (!is_blocked)
        signals_block(&set);
    is_blocked = true;
    do
        number = sigtimedwait(&set, NULL, &time);
    while (number < 0 && errno == EINTR);
    return number < 0 ? ETCD_WAKE_TIME : number == SIGHUP ? ETCD_WAKE_ASKED : ETCD_WAKE_END;
}

static int failed(const struct err_why *why)
{
    (void)fprintf(stderr, "icms-etcd: %s\n", why->text);
    return EXIT_FAILURE;
}

/* ---- maps ----------------------------------------------------------------------------------- */

/* Two maps: what is there, and what shall be. */
struct maps {
    struct conf_pod *was, *is;
    char name[ETCD_KEY_BYTES + 64]; /* of the map in etcd, for sentences */
    struct etcd_value value;        /* its text; freed with the maps     */
};

static icms_err maps_begin(struct maps *maps, struct err_why *why)
{
    *maps = (struct maps){.was = calloc(1, sizeof(*maps->was)), .is = calloc(1, sizeof(*maps->is))};
    return maps->was != NULL && maps->is != NULL ? ICMS_OK
                                                 : err_set(why, ICMS_NO_MEMORY, "out of memory");
}

/* Before the next two are read. */
static void maps_forget(struct maps *maps)
{
    conf_pod_fini(maps->was);
    conf_pod_fini(maps->is);
}

static void maps_end(struct maps *maps)
{
    conf_pod_free(&maps->was);
    conf_pod_free(&maps->is);
    free(maps->value.text);
}

/* The map in etcd as a text. NOT_FOUND: there is none. */
static icms_err maps_fetch(const struct etcd_run *run, struct maps *maps, struct err_why *why)
{
    char key[ETCD_KEY_BYTES];
    icms_err err;

    free(maps->value.text);
    maps->value.text = NULL;
    (void)snprintf(key, sizeof(key), "%s/map", run->prefix);
    err = etcd_get(run->etcd, key, &maps->value, why);
    if (err != ICMS_OK)
        return err;
    (void)snprintf(maps->name, sizeof(maps->name), "etcd %s revision %llu", key,
                   (unsigned long long)maps->value.revision);
    if (maps->value.text == NULL)
        return err_set(why, ICMS_NOT_FOUND,
                       "etcd has no key %s: icms-etcd push puts the map of a file there", key);
    return ICMS_OK;
}

/* What the map `is` is to the one that was, when there was one. One that shrank waits for the line
 * that allows it: there is nobody here who knows whether an enclosure answers, and what was put
 * without the line nobody would pull. */
static icms_err maps_compare(const struct maps *maps, const char *name, bool has_was,
                             bool *out_is_new, struct err_why *why)
{
    enum conf_pod_verdict verdict = CONF_POD_NEW;
    struct err_why cause = {""};
    uint64_t gone;

    if (has_was)
        verdict = conf_pod_compare(maps->was, maps->is, name, &cause, &gone);
    *out_is_new = verdict == CONF_POD_NEW;
    if (verdict == CONF_POD_SHRUNKEN)
        return err_set(why, ICMS_INVALID,
                       "%.400s; icms-etcd, which asks no enclosure, waits for that line",
                       cause.text);
    return verdict == CONF_POD_REFUSED ? err_set(why, ICMS_INVALID, "%s", cause.text) : ICMS_OK;
}

static void maps_say(const struct maps *maps, bool has_was, const char *where, char *out,
                     size_t bytes)
{
    char differs[ERR_WHY_BYTES_MAX] = "";

    if (has_was)
        (void)conf_pod_differs(maps->was, maps->is, differs, sizeof(differs));
    if (has_was)
        (void)snprintf(out, bytes, "%s: pod %s: epoch %u -> %u: %s", where, maps->is->name,
                       maps->was->epoch, maps->is->epoch,
                       differs[0] != '\0' ? differs : "nothing differs");
    else
        (void)snprintf(out, bytes, "%s: pod %s: epoch %u, %u enclosures", where, maps->is->name,
                       maps->is->epoch, maps->is->enclosure_count);
}

/* 0: of no map, or one that is not right. */
static json_t *epoch_json(uint32_t epoch)
{
    return epoch != 0 ? json_integer((json_int_t)epoch) : json_null();
}

static void json_say(json_t *root)
{
    (void)json_dumpf(root, stdout, JSON_COMPACT);
    (void)printf("\n");
    json_decref(root);
}

/* What became of a map, at the name of a key or a file. */
static void map_json(const char *what, const char *name, const struct conf_pod *was,
                     const struct conf_pod *is, bool is_written)
{
    char differs[ERR_WHY_BYTES_MAX] = "";

    if (was->epoch != 0)
        (void)conf_pod_differs(was, is, differs, sizeof(differs));
    json_say(json_pack("{s:s, s:s, s:o, s:o, s:s, s:b}", what, name, "pod", is->name, "epoch",
                       epoch_json(is->epoch), "former_epoch", epoch_json(was->epoch), "changes",
                       differs, "written", is_written));
}

/* Puts the text of the map `is` into etcd, if the key is as it was fetched, and says what differs.
 */
static icms_err map_put(const struct etcd_run *run, const struct maps *maps, bool has_was,
                        const char *text, size_t bytes, struct err_why *why)
{
    char key[ETCD_KEY_BYTES], sentence[2 * ERR_WHY_BYTES_MAX];
    icms_err err = ICMS_OK;
    uint64_t revision;

    (void)snprintf(key, sizeof(key), "%s/map", run->prefix);
    if (!run->dry_run)
        err = etcd_put(run->etcd, key, text, bytes, maps->value.revision, 0, &revision, why);
    maps_say(maps, has_was, key, sentence, sizeof(sentence));
    if (err == ICMS_OK && run->json)
        map_json("key", key, maps->was, maps->is, !run->dry_run);
    else if (err == ICMS_OK)
        (void)printf("%s%s\n", sentence, run->dry_run ? "; nothing was changed (--dry-run)" : "");
    return err;
}

/* The map is in etcd already, and is not put there. */
static void map_is_there(const struct etcd_run *run, const struct maps *maps,
                         const struct conf_pod *map, const char *words)
{
    char key[ETCD_KEY_BYTES];

    (void)snprintf(key, sizeof(key), "%s/map", run->prefix);
    if (run->json)
        map_json("key", key, map, map, false);
    else
        (void)printf("%s: epoch %u%s\n", maps->name, map->epoch, words);
}

/* ---- push ----------------------------------------------------------------------------------- */

static icms_err push(const struct etcd_run *run, struct maps *maps, struct err_why *why)
{
    char *text = NULL;
    size_t bytes = 0;
    bool has_was, is_new = false;
    icms_err err = conf_pod_text(run->file, why, &text, &bytes);

    if (err == ICMS_OK)
        err = conf_pod_parse(text, bytes, run->file, why, maps->is);
    if (err != ICMS_OK) {
        free(text);
        return err;
    }
    err = maps_fetch(run, maps, why);
    has_was = err == ICMS_OK;
    if (err == ICMS_NOT_FOUND)
        err = ICMS_OK;
    if (has_was && conf_pod_parse(maps->value.text, maps->value.bytes, maps->name, why,
                                  maps->was) != ICMS_OK) {
        has_was = false;
        err = run->yes ? ICMS_OK : ICMS_CONFIG;
    }
    if (err == ICMS_OK)
        err = maps_compare(maps, run->file, has_was, &is_new, why);
    if (err == ICMS_OK && !is_new && maps->value.bytes == bytes &&
        memcmp(maps->value.text, text, bytes) == 0)
        map_is_there(run, maps, maps->is, " is there already");
    else if (err == ICMS_OK)
        err = map_put(run, maps, has_was, text, bytes, why);
    free(text);
    return err;
}

/* ---- pull and follow ------------------------------------------------------------------------ */

/* Whether FILE has this text. */
static bool file_is(const char *path, const char *text, size_t bytes)
{
    struct err_why why;
    char *old = NULL;
    size_t old_bytes = 0;
    bool is_same = conf_pod_text(path, &why, &old, &old_bytes) == ICMS_OK && old_bytes == bytes &&
                   memcmp(old, text, bytes) == 0;

    free(old);
    return is_same;
}

/* Writes the map of etcd into FILE, if it is later; out_sentence: what changed, "" nothing. */
static icms_err pull(const struct etcd_run *run, struct maps *maps, char *out_sentence,
                     size_t bytes, struct err_why *why)
{
    struct err_why old = {""};
    bool has_was, is_new;
    icms_err err, had;

    out_sentence[0] = '\0';
    err = maps_fetch(run, maps, why);
    if (err != ICMS_OK || file_is(run->file, maps->value.text, maps->value.bytes))
        return err;
    maps_forget(maps);
    err = conf_pod_parse(maps->value.text, maps->value.bytes, maps->name, why, maps->is);
    if (err != ICMS_OK)
        return err;
    had = conf_pod_read(run->file, &old, maps->was);
    if (had != ICMS_OK && had != ICMS_NOT_FOUND)
        return err_set(why, had, "%s: repair the file, or remove it to have the map of etcd",
                       old.text);
    has_was = had == ICMS_OK;
    err = maps_compare(maps, maps->name, has_was, &is_new, why);
    if (err == ICMS_OK && !run->dry_run)
        err = conf_file_put(run->file, maps->value.text, maps->value.bytes, why);
    if (err == ICMS_OK)
        maps_say(maps, has_was, run->file, out_sentence, bytes);
    return err;
}

static icms_err pull_once(const struct etcd_run *run, struct maps *maps, struct err_why *why)
{
    char sentence[2 * ERR_WHY_BYTES_MAX];
    icms_err err = pull(run, maps, sentence, sizeof(sentence), why);
    bool is_same = sentence[0] == '\0';

    if (err == ICMS_OK && run->json) {
        if (is_same) /* nor is it told whether both are right */
            (void)!conf_pod_parse(maps->value.text, maps->value.bytes, maps->name, why, maps->is);
        map_json("file", run->file, is_same ? maps->is : maps->was, maps->is,
                 !is_same && !run->dry_run);
    } else if (err == ICMS_OK) {
        (void)printf("%s%s\n", is_same ? "nothing differs" : sentence,
                     run->dry_run ? "; nothing was changed (--dry-run)" : "");
    }
    return err;
}

uint32_t etcd_soon(uint32_t ms)
{
    uint32_t random = 0;

    (void)getrandom(&random, sizeof(random), GRND_NONBLOCK);
    return ms - ms / 5 + random % (2 * (ms / 5) + 1);
}

void etcd_said(struct etcd_talk *talk, enum log_level level, const char *sentence)
{
    if (strcmp(talk->said, sentence) == 0)
        return;
    (void)snprintf(talk->said, sizeof(talk->said), "%s", sentence);
    log_line(level, "%s", sentence);
}

static icms_err follow(const struct etcd_run *run, struct maps *maps, struct err_why *why)
{
    struct etcd_talk talk = {""};
    char sentence[2 * ERR_WHY_BYTES_MAX];
    enum etcd_wake wake = etcd_sleep(0); /* signals come there alone from here on */

    log_line(LOG_INFO, "following %s/map at %s into %s", run->prefix, etcd_endpoint(run->etcd),
             run->file);
    while (wake != ETCD_WAKE_END) {
        icms_err err = pull(run, maps, sentence, sizeof(sentence), why);

        if (wake == ETCD_WAKE_ASKED)
            talk.said[0] = '\0';
        if (err != ICMS_OK)
            etcd_said(&talk, LOG_WARN, why->text);
        else if (sentence[0] != '\0')
            etcd_said(&talk, LOG_INFO, sentence);
        else if (talk.is_failing || wake == ETCD_WAKE_ASKED)
            etcd_said(&talk, LOG_INFO, "etcd answers, and the file is as it has it");
        talk.is_failing = err != ICMS_OK;
        wake = etcd_sleep(etcd_soon(err == ICMS_PERMISSION ? REFUSED_MS : FOLLOW_MS));
    }
    log_line(LOG_INFO, "ended; %s stays as it is", run->file);
    return ICMS_OK;
}

/* ---- pod ------------------------------------------------------------------------------------ */

#define POD_WORDS        64
#define POD_FOLDER_BYTES 1024

/* The icms that lies beside this program, else the one of $PATH. */
static void program_find(char *out, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", out, bytes - 1);
    char *slash;

    out[length < 0 ? 0 : length] = '\0';
    slash = strrchr(out, '/');
    if (slash != NULL && (size_t)(slash - out) + sizeof("/icms") <= bytes) {
        memcpy(slash, "/icms", sizeof("/icms"));
        if (access(out, X_OK) == 0)
            return;
    }
    (void)snprintf(out, bytes, "icms");
}

static bool pod_has(const struct etcd_run *run, const char *word)
{
    for (int i = 0; i < run->word_count; i++)
        if (strcmp(run->words[i], word) == 0)
            return true;
    return false;
}

/* Whether icms pod gets an option; it takes one that is cut, as in `--dry`, too. */
static bool pod_has_option(const struct etcd_run *run, const char *option, const char *shortest)
{
    for (int i = 0; i < run->word_count; i++)
        if (strncmp(run->words[i], shortest, strlen(shortest)) == 0 &&
            strncmp(run->words[i], option, strlen(run->words[i])) == 0)
            return true;
    return false;
}

/* Whether icms pod only tells: it changes nothing. */
static bool pod_tells(const struct etcd_run *run)
{
    return pod_has_option(run, "--dry-run", "--dr") || pod_has(run, "status") ||
           pod_has(run, "list");
}

/* Words of icms pod that are about a file of a server. */
static icms_err pod_words_check(const struct etcd_run *run, struct err_why *why)
{
    for (int i = 0; i < run->word_count; i++)
        if (strncmp(run->words[i], "--file", strlen("--file")) == 0)
            return err_set(why, ICMS_INVALID, "pod: --file: the map is that of etcd");
    if (pod_has(run, "reload"))
        return err_set(why, ICMS_INVALID,
                       "pod: reload waits for an agent that follows a file: icms pod reload --file "
                       "FILE on its server; with --yes it changes that file, which icms-etcd push "
                       "FILE then puts into etcd");
    return ICMS_OK;
}

/* MISS: it failed, and has said why. A change is told when etcd has it. mask: signals that it
 * blocks. */
static icms_err pod_change(const struct etcd_run *run, char *file, const sigset_t *mask,
                           struct err_why *why)
{
    char name[] = "icms", word[] = "pod", option[] = "--file", quiet[] = "--quiet";
    char *words[POD_WORDS + 6] = {name, word}, program[4096];
    int count = 2, state, err;
    posix_spawnattr_t attributes;
    pid_t child;

    for (int i = 0; i < run->word_count; i++)
        words[count++] = run->words[i];
    words[count++] = option;
    words[count++] = file;
    if (!pod_tells(run))
        words[count] = quiet;
    program_find(program, sizeof(program));
    (void)fflush(NULL);
    if (posix_spawnattr_init(&attributes) != 0)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    (void)posix_spawnattr_setsigmask(&attributes, mask);
    err = posix_spawnp(&child, program, NULL, &attributes, words, environ);
    (void)posix_spawnattr_destroy(&attributes);
    if (err != 0)
        return err_set(why, ICMS_IO, "cannot run %s: %s", program, strerror(err));
    while (waitpid(child, &state, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(state) && WEXITSTATUS(state) == 0 ? ICMS_OK : ICMS_MISS;
}

/* Puts the file into etcd, if it is another map than the one there, and that is still there. */
static icms_err pod_put(const struct etcd_run *run, struct maps *maps, const char *file,
                        struct err_why *why)
{
    char *text = NULL;
    size_t bytes = 0;
    bool is_new;
    icms_err err;

    if (file_is(file, maps->value.text, maps->value.bytes)) {
        if (!pod_tells(run))
            map_is_there(run, maps, maps->was, ": it is so already");
        return ICMS_OK;
    }
    err = conf_pod_text(file, why, &text, &bytes);
    if (err == ICMS_OK)
        err = conf_pod_parse(text, bytes, "the changed map", why, maps->is);
    if (err == ICMS_OK)
        err = maps_compare(maps, "the changed map", true, &is_new, why);
    if (err == ICMS_OK)
        err = map_put(run, maps, true, text, bytes, why);
    free(text);
    return err;
}

/* `icms pod` changes a file; the map of etcd is one for as long as that takes. */
static icms_err pod(const struct etcd_run *run, struct maps *maps, struct err_why *why)
{
    const char *temporary = secure_getenv("TMPDIR");
    char folder[POD_FOLDER_BYTES], file[POD_FOLDER_BYTES + sizeof("/pod.yaml")];
    sigset_t ends, mask;
    icms_err err = pod_words_check(run, why);

    if (err == ICMS_OK)
        err = maps_fetch(run, maps, why);
    if (err == ICMS_OK)
        err = conf_pod_parse(maps->value.text, maps->value.bytes, maps->name, why, maps->was);
    if (err != ICMS_OK)
        return err;
    (void)snprintf(folder, sizeof(folder), "%s/icms-etcd-XXXXXX",
                   temporary != NULL && temporary[0] == '/' ? temporary : "/tmp");
    (void)sigprocmask(SIG_BLOCK, NULL, &mask);
    signals_block(&ends); /* until the folder is gone */
    if (mkdtemp(folder) == NULL) {
        (void)sigprocmask(SIG_SETMASK, &mask, NULL);
        return err_set(why, ICMS_IO, "cannot make a folder %s: %s", folder, strerror(errno));
    }
    (void)snprintf(file, sizeof(file), "%s/pod.yaml", folder);
    err = conf_file_put(file, maps->value.text, maps->value.bytes, why);
    if (err == ICMS_OK)
        err = pod_change(run, file, &mask, why);
    if (err == ICMS_OK)
        err = pod_put(run, maps, file, why);
    (void)unlink(file);
    (void)rmdir(folder);
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
    return err;
}

/* ---- status --------------------------------------------------------------------------------- */

/* Letters, digits and what addresses have. */
static bool is_plain(const char *text)
{
    return text[0] != '\0' &&
           text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "0123456789._-:[]")] == '\0';
}

/* The addresses of a target, one or a list of them, with commas between them. False: it has none,
 * or what no register writes. */
#define ADDRESSES_BYTES (LIMIT_PORTALS * (LIMIT_ADDRESS_BYTES + 2))
static bool addresses_text(const json_t *one, char out[ADDRESSES_BYTES])
{
    const json_t *address = json_object_get(one, "address");
    size_t count = json_is_array(address) ? json_array_size(address) : 1, used = 0;

    for (size_t i = 0; i < count; i++) {
        const char *text =
            json_string_value(json_is_array(address) ? json_array_get(address, i) : address);

        if (i == LIMIT_PORTALS || text == NULL || !is_plain(text) ||
            strlen(text) >= LIMIT_ADDRESS_BYTES)
            return false;
        used +=
            (size_t)snprintf(out + used, ADDRESSES_BYTES - used, "%s%s", i > 0 ? ", " : "", text);
    }
    return count > 0;
}

static void status_visit(void *arg, const char *key, const char *text, size_t bytes)
{
    json_t *one = json_loadb(text, bytes, 0, NULL);
    const char *name = json_string_value(json_object_get(one, "name"));
    char addresses[ADDRESSES_BYTES];

    /* What a machine of a target wrote: shown where it is what register writes. */
    if (name != NULL && is_plain(name) && addresses_text(one, addresses) &&
        strcmp(name, strrchr(key, '/') + 1) == 0)
        (void)json_array_append(arg, one);
    json_decref(one);
}

static bool map_has(const struct conf_pod *map, const char *name)
{
    for (uint32_t i = 0; i < map->enclosure_count; i++)
        if (strcmp(map->enclosures[i].name, name) == 0)
            return true;
    return false;
}

static bool targets_have(const json_t *targets, const char *name)
{
    const json_t *one;
    size_t i;

    json_array_foreach(targets, i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "name")), name) == 0)
            return true;
    }
    return false;
}

/* The enclosures that agents use and whose targets are not registered, as an array of names. None
 * where no target is registered at all: then the pod does not use that. */
static json_t *status_missing(const struct conf_pod *map, const json_t *targets)
{
    json_t *missing = json_array();

    for (uint32_t i = 0; i < map->enclosure_count && json_array_size(targets) > 0; i++) {
        const struct conf_enclosure *enclosure = &map->enclosures[i];

        if (enclosure->state != CONF_ENCLOSURE_OUT && !targets_have(targets, enclosure->name))
            (void)json_array_append_new(missing, json_string(enclosure->name));
    }
    return missing;
}

/* What a person reads of targets, those that the map does not have among them; how many these are.
 */
static uint32_t status_targets(const struct conf_pod *map, const json_t *targets, bool is_said)
{
    uint32_t differs = 0;
    const json_t *one;
    size_t i;

    json_array_foreach(targets, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "name"));
        bool is_there = map_has(map, name);
        char addresses[ADDRESSES_BYTES];

        differs += !is_there;
        if (is_said && addresses_text(one, addresses))
            (void)printf("target %s: %s%s\n", name, addresses,
                         is_there ? "" : ": not in the map; icms pod add puts it there");
    }
    return differs;
}

static void status_json(const struct etcd_run *run, const struct maps *maps, bool is_same,
                        json_t *targets, json_t *missing)
{
    json_t *root = json_pack("{s:s, s:s, s:I, s:s, s:I, s:s, s:b, s:O, s:O}", "endpoint",
                             etcd_endpoint(run->etcd), "prefix", run->prefix, "revision",
                             (json_int_t)maps->value.revision, "pod", maps->is->name, "epoch",
                             (json_int_t)maps->is->epoch, "file", run->file, "file_is_same",
                             is_same, "targets", targets, "targets_missing", missing);

    json_say(root);
}

/* The same for a person. */
static void status_print(const struct etcd_run *run, struct maps *maps, bool is_same,
                         const json_t *missing)
{
    char sentence[2 * ERR_WHY_BYTES_MAX];
    struct err_why old = {""};
    const json_t *name;
    size_t i;

    (void)printf("%s at %s: pod %s, epoch %u, %u enclosures\n", maps->name,
                 etcd_endpoint(run->etcd), maps->is->name, maps->is->epoch,
                 maps->is->enclosure_count);
    if (is_same)
        (void)printf("%s: the same\n", run->file);
    else if (conf_pod_read(run->file, &old, maps->was) != ICMS_OK)
        (void)printf("%s\n", old.text);
    else {
        maps_say(maps, true, run->file, sentence, sizeof(sentence));
        (void)printf("%s, as etcd has it\n", sentence);
    }
    json_array_foreach(missing, i, name)
    {
        (void)printf("enclosure %s: no target of this name is registered: it does not answer, or "
                     "icms-etcd register does not run there\n",
                     json_string_value(name));
    }
}

static icms_err status(const struct etcd_run *run, struct maps *maps, struct err_why *why)
{
    json_t *targets = json_array(), *missing;
    char prefix[ETCD_KEY_BYTES];
    size_t differs;
    bool is_same;
    icms_err err = maps_fetch(run, maps, why);

    if (err == ICMS_OK)
        err = conf_pod_parse(maps->value.text, maps->value.bytes, maps->name, why, maps->is);
    (void)snprintf(prefix, sizeof(prefix), "%s/targets/", run->prefix);
    if (err == ICMS_OK)
        err = etcd_list(run->etcd, prefix, status_visit, targets, why);
    if (err == ICMS_OK) {
        is_same = file_is(run->file, maps->value.text, maps->value.bytes);
        missing = status_missing(maps->is, targets);
        if (run->json)
            status_json(run, maps, is_same, targets, missing);
        else
            status_print(run, maps, is_same, missing);
        differs = status_targets(maps->is, targets, !run->json) + json_array_size(missing);
        if (!is_same || differs > 0)
            err = err_set(why, ICMS_MISS, "%s", "");
        json_decref(missing);
    }
    json_decref(targets);
    return err;
}

/* ---- the command line ----------------------------------------------------------------------- */

static const struct word {
    const char *name;
    icms_err (*run)(const struct etcd_run *run, struct maps *maps, struct err_why *why);
} words[] = {
    {"push", push}, {"pull", pull_once}, {"follow", follow},
    {"pod", pod},   {"status", status},  {"register", NULL},
};

static int usage(const char *format, const char *what)
{
    (void)fprintf(stderr, "icms-etcd: ");
    (void)fprintf(stderr, format, what);
    (void)fprintf(stderr, "; icms-etcd --help says more\n");
    return 2;
}

static const char *environment(const char *name)
{
    const char *value = secure_getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* $ETCDCTL_USER is "name" or "name:password". */
static void user_of_environment(struct etcd_run *run)
{
    const char *user = environment("ETCDCTL_USER");
    const char *colon = user != NULL ? strchr(user, ':') : NULL;

    run->opts.password = environment("ETCDCTL_PASSWORD");
    if (user == NULL || run->opts.user != NULL)
        return;
    (void)snprintf(run->user, sizeof(run->user), "%.*s",
                   (int)(colon != NULL ? (size_t)(colon - user) : strlen(user)), user);
    run->opts.user = run->user;
    if (colon != NULL)
        run->opts.password = colon + 1;
}

static icms_err password_read(struct etcd_run *run, const char *path, struct err_why *why)
{
    icms_err err;

    if (path == NULL)
        return ICMS_OK;
    err = secret_read_line(path, why, &run->password);
    if (err == ICMS_OK)
        run->opts.password = (const char *)secret_bytes(run->password);
    return err;
}

/* Where the value of an option goes; NULL: it has none, or is no text. */
static const char **option_text(struct etcd_run *run, int code, const char **password)
{
    switch (code) {
    case OPTION_PREFIX:
        return &run->prefix;
    case OPTION_ENDPOINTS:
        return &run->opts.endpoints;
    case OPTION_CACERT:
        return &run->opts.cacert;
    case OPTION_CERT:
        return &run->opts.cert;
    case OPTION_KEY:
        return &run->opts.key;
    case OPTION_USER:
        return &run->opts.user;
    case OPTION_PASSWORD:
        return password;
    default:
        return NULL;
    }
}

/* -1: go on. */
static int option_take(struct etcd_run *run, int code, const char *written)
{
    struct err_why why = {""};

    switch (code) {
    case OPTION_TIMEOUT:
        if (conf_duration_parse(optarg, &why, &run->opts.timeout_ms) == ICMS_OK &&
            run->opts.timeout_ms >= 10 && run->opts.timeout_ms <= 60000)
            return -1;
        return usage("--timeout %s: a time from 10ms to 60s", optarg);
    case OPTION_DRY_RUN:
        run->dry_run = true;
        return -1;
    case OPTION_YES:
        run->yes = true;
        return -1;
    case OPTION_JSON:
        run->json = true;
        return -1;
    case 'V':
        (void)printf("icms-etcd %s\n", ETCD_VERSION);
        return EXIT_SUCCESS;
    case 'h':
        (void)fputs(usage_text, stdout);
        return EXIT_SUCCESS;
    case ':':
        return usage("'%s' needs a value", written);
    default:
        return usage("there is no option '%s'", written);
    }
}

/* -1: go on. */
static int options_read(struct etcd_run *run, int argc, char **argv, const char **out_password)
{
    int code, status = -1;

    while (status < 0 && (code = getopt_long(argc, argv, ":Vh", option_table, NULL)) != -1) {
        const char **text = option_text(run, code, out_password);

        if (text != NULL)
            *text = optarg;
        else
            status = option_take(run, code, argv[optind - 1]);
    }
    return status;
}

/* Options of another word are mistakes. -1: go on. */
static int word_check(const struct etcd_run *run, const char *word)
{
    bool is_push = strcmp(word, "push") == 0;

    if (run->dry_run && !is_push && strcmp(word, "pull") != 0)
        return usage("--dry-run is for push and pull; that of icms pod stands behind --%s", "");
    if (run->yes && !is_push)
        return usage("--yes is for push; that of icms pod stands behind --%s", "");
    if (run->json && !is_push && strcmp(word, "pull") != 0 && strcmp(word, "status") != 0)
        return usage("--json is for push, pull and status; that of icms pod stands behind --%s",
                     "");
    if (run->prefix[0] == '\0' || strlen(run->prefix) > 200)
        return usage("--prefix %s: 1 to 200 characters", run->prefix);
    return -1;
}

static int word_run(struct etcd_run *run, const struct word *word)
{
    struct err_why why = {""};
    struct maps maps;
    icms_err err = etcd_new(&run->opts, &why, &run->etcd);

    if (err != ICMS_OK)
        return failed(&why);
    if (word->run == NULL) {
        err = etcd_register(run, &why);
    } else {
        err = maps_begin(&maps, &why);
        if (err == ICMS_OK)
            err = word->run(run, &maps, &why);
        maps_end(&maps);
    }
    etcd_free(&run->etcd);
    if (err == ICMS_MISS)
        return EXIT_FAILURE; /* what differs was said */
    return err == ICMS_OK ? EXIT_SUCCESS : failed(&why);
}

int main(int argc, char **argv)
{
    struct etcd_run run = {
        .prefix = PREFIX_DEFAULT,
        .opts = {.endpoints = environment("ETCDCTL_ENDPOINTS"),
                 .cacert = environment("ETCDCTL_CACERT"),
                 .cert = environment("ETCDCTL_CERT"),
                 .key = environment("ETCDCTL_KEY"),
                 .timeout_ms = TIMEOUT_MS},
    };
    char prefix[256];
    const char *password = NULL;
    const struct word *word = NULL;
    struct err_why why = {""};
    int status = options_read(&run, argc, argv, &password);

    if (status >= 0)
        return status;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (optind < argc && strcmp(argv[optind], words[i].name) == 0)
            word = &words[i];
    if (word == NULL)
        return usage("it takes 'push', 'pull', 'follow', 'pod', 'status' or 'register'%s", "");
    if (word->run == pod) {
        run.words = argv + optind + 1;
        run.word_count = argc - optind - 1;
        if (run.word_count == 0 || run.word_count > POD_WORDS)
            return usage("pod takes words of icms pod behind --, as in -- drain enclosure2%s", "");
    } else {
        if (argc - optind > 2 || (word->run == NULL && argc - optind != 2))
            return usage("%s takes one file", word->name);
        run.file = argc - optind == 2 ? argv[optind + 1] : FILE_DEFAULT;
    }
    status = word_check(&run, word->name);
    if (status >= 0)
        return status;
    run.json = run.json || pod_has_option(&run, "--json", "--j");
    if (run.opts.endpoints == NULL)
        run.opts.endpoints = "http://127.0.0.1:2379";
    user_of_environment(&run);
    if (password != NULL && run.opts.user == NULL)
        return usage("--password-file needs --user%s", "");
    (void)snprintf(prefix, sizeof(prefix), "%s", run.prefix);
    while (strlen(prefix) > 1 && prefix[strlen(prefix) - 1] == '/')
        prefix[strlen(prefix) - 1] = '\0';
    run.prefix = prefix;
    log_name_set("icms-etcd");
    if (password_read(&run, password, &why) != ICMS_OK)
        return failed(&why);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return usage("libcurl does not start%s", "");
    status = word_run(&run, word);
    curl_global_cleanup();
    secret_free(&run.password);
    return status;
}
