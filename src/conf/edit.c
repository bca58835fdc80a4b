/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/edit.c: what `icms volume erase` changes in configuration files: the generation of a volume,
 * and a volume of a list of keys that goes; and the lines that drive_edit.c, pod_edit.c and
 * volume_edit.c change.
 * Called by cmd, on its thread.
 *
 * Only the lines of the change are other ones afterwards: comments and order stay. The tree of the
 * text says which lines they are; how they are written decides whether they can be changed line by
 * line. The new text is parsed before anybody gets it, and must be what was asked for. A style that
 * this file does not know is refused, with what to write by hand.
 */
#include "conf/conf_int.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"

void conf_edit_close(struct conf_edit_text *edit)
{
    conf_doc_free(&edit->doc);
    free(edit->text);
    edit->text = NULL;
}

/* Which file it is, and which of its texts. */
static void edit_note(struct conf_edit *edit, const struct stat *status)
{
    edit->was_bytes = (uint64_t)status->st_size;
    edit->was[0] = (uint64_t)status->st_dev;
    edit->was[1] = (uint64_t)status->st_ino;
    edit->was_time_ns =
        (uint64_t)status->st_mtim.tv_sec * 1000000000 + (uint64_t)status->st_mtim.tv_nsec;
}

static bool edit_is_same(const struct conf_edit *edit, const struct stat *status)
{
    struct conf_edit now = {0};

    edit_note(&now, status);
    return now.was_bytes == edit->was_bytes && now.was[0] == edit->was[0] &&
           now.was[1] == edit->was[1] && now.was_time_ns == edit->was_time_ns;
}

static icms_err edit_is_stale(const char *path, struct err_why *why)
{
    return err_set(why, ICMS_EXISTS, "%s was changed since it was read: try again", path);
}

void conf_edit_begin(const char *path, struct conf_edit *out_edit)
{
    struct stat status = {0};

    if (stat(path, &status) == 0) /* else reading says why */
        edit_note(out_edit, &status);
}

/* Finds the list in the tree. */
static icms_err edit_list_find(struct conf_edit_text *edit, const char *list)
{
    const struct conf_node *root = conf_doc_root(edit->doc);

    edit->list = root != NULL && root->kind == CONF_NODE_MAP ? conf_node_get(root, list) : NULL;
    edit->entry = NULL;
    if (edit->list == NULL || edit->list->kind != CONF_NODE_LIST)
        return err_set(edit->source.why, ICMS_CONFIG, "%s: it has no list of %s", edit->source.name,
                       list);
    return ICMS_OK;
}

icms_err conf_edit_open(struct conf_edit_text *edit, const char *path, const char *list,
                        struct err_why *why, struct conf_edit *io_edit)
{
    struct stat status = {0};
    icms_err err;

    if (io_edit->was[1] == 0)
        conf_edit_begin(path, io_edit);
    else if (stat(path, &status) == 0 && !edit_is_same(io_edit, &status))
        return edit_is_stale(path, why);
    edit->source = (struct conf_source){.name = path, .why = why};
    err = conf_file_read(path, "its name", why, &edit->text, &edit->bytes);
    if (err == ICMS_OK)
        err = conf_doc_parse(&edit->source, edit->text, edit->bytes, &edit->doc);
    return err == ICMS_OK ? edit_list_find(edit, list) : err;
}

/* Another text in its place, which is parsed; the list is found again. Takes the text. */
static icms_err edit_again(struct conf_edit_text *edit, char *text, size_t bytes)
{
    char list[LIMIT_NAME_BYTES];
    icms_err err;

    if (text == NULL)
        return err_set(edit->source.why, ICMS_NO_MEMORY, "%s: out of memory", edit->source.name);
    (void)snprintf(list, sizeof(list), "%s", edit->list->key);
    conf_edit_close(edit);
    edit->text = text;
    edit->bytes = bytes;
    err = conf_doc_parse(&edit->source, text, bytes, &edit->doc);
    return err == ICMS_OK ? edit_list_find(edit, list) : err;
}

bool conf_edit_find_key(struct conf_edit_text *edit, const char *key, const char *text)
{
    for (const struct conf_node *at = edit->list->first; at != NULL; at = at->next) {
        const struct conf_node *node = at->kind == CONF_NODE_MAP ? conf_node_get(at, key) : NULL;

        if (node != NULL && node->kind == CONF_NODE_SCALAR && strcmp(node->text, text) == 0) {
            edit->entry = at;
            return true;
        }
    }
    return false;
}

bool conf_edit_find(struct conf_edit_text *edit, const char *name)
{
    return conf_edit_find_key(edit, "name", name);
}

/* The same, with the entry of a volume. */
static icms_err edit_open_volume(struct conf_edit_text *edit, const char *path, const char *volume,
                                 struct err_why *why, struct conf_edit *io_edit)
{
    icms_err err = conf_edit_open(edit, path, "volumes", why, io_edit);
    const struct conf_node *root = edit->doc != NULL ? conf_doc_root(edit->doc) : NULL;

    if (err == ICMS_CONFIG && root != NULL && root->kind == CONF_NODE_MAP &&
        conf_node_get(root, "pod") != NULL)
        return err_set(why, ICMS_CONFIG,
                       "%s: its volumes are those of the pod map that `pod` names: leave this file "
                       "out, and raise the generation there with `icms pod volume reset`",
                       path);
    if (err == ICMS_OK && !conf_edit_find(edit, volume))
        err = err_set(why, ICMS_NO_VOLUME, "%s: it has no volume '%s'", path, volume);
    return err;
}

/* One line, with its line end. */
struct line {
    size_t begin, end; /* in the text */
};

static struct line line_at(const struct conf_edit_text *edit, uint32_t number)
{
    struct line line = {0};

    for (uint32_t i = 0; i < number; i++) {
        const char *end = memchr(edit->text + line.end, '\n', edit->bytes - line.end);

        line.begin = line.end;
        line.end = end == NULL ? edit->bytes : (size_t)(end - edit->text) + 1;
    }
    return line;
}

icms_err conf_edit_refuse(const struct conf_edit_text *edit, uint32_t line, const char *what)
{
    return conf_fail(&edit->source, line,
                     "cannot change this line, for it is not written as one line a key: %s", what);
}

/* Where `word:` begins in a line of which it is the first key, past blanks and the dash of a list;
 * 0 is not possible in a list, and says that it is anything else. */
static size_t edit_key_column(const struct conf_edit_text *edit, struct line line, const char *word)
{
    size_t at = line.begin, bytes = strlen(word);

    while (at < line.end && (edit->text[at] == ' ' || edit->text[at] == '-'))
        at++;
    if (at == line.begin || line.end - at <= bytes || memcmp(edit->text + at, word, bytes) != 0 ||
        edit->text[at + bytes] != ':')
        return 0;
    return at - line.begin;
}

/* The text with bytes [from, to) replaced; NULL: no memory. */
/* The text with bytes [from, to) replaced; NULL: no memory. */
static char *edit_splice(const struct conf_edit_text *edit, size_t from, size_t to,
                         const char *with, size_t *out_bytes)
{
    size_t added = strlen(with), bytes = edit->bytes - (to - from) + added;
    char *text = malloc(bytes + 1);

    if (text == NULL)
        return NULL;
    memcpy(text, edit->text, from);
    memcpy(text + from, with, added);
    memcpy(text + from + added, edit->text + to, edit->bytes - to);
    text[bytes] = 0;
    *out_bytes = bytes;
    return text;
}

/* ---- a generation --------------------------------------------------------------------------- */

/* The generation that a text gives the volume; whose configuration it is follows from the drives,
 * which a target has and an agent has not. */
static icms_err generation_of(const struct conf_edit_text *edit, const char *text, size_t bytes,
                              const char *volume, uint32_t *out_generation)
{
    bool target = conf_node_get(conf_doc_root(edit->doc), "drives") != NULL;
    struct conf_target *as_target = calloc(1, sizeof(*as_target));
    struct conf_agent *as_agent = calloc(1, sizeof(*as_agent));
    const struct volume_spec *volumes = NULL;
    uint32_t count = 0;
    icms_err err = ICMS_NO_MEMORY;

    if (as_target != NULL && as_agent != NULL)
        err = target
                  ? conf_target_parse(text, bytes, edit->source.name, edit->source.why, as_target)
                  : conf_agent_parse(text, bytes, edit->source.name, edit->source.why, as_agent);
    if (err == ICMS_OK) {
        volumes = target ? as_target->volumes : as_agent->volumes;
        count = target ? as_target->volume_count : as_agent->volume_count;
    }
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(volumes[i].name, volume) == 0)
            *out_generation = volumes[i].generation;
    if (err == ICMS_OK) {
        conf_target_fini(as_target);
        conf_agent_fini(as_agent);
    }
    free(as_target);
    free(as_agent);
    return err;
}

/* The line of a generation that is written: its digits are replaced. */
static icms_err generation_replace(const struct conf_edit_text *edit,
                                   const struct conf_node *written, uint32_t generation,
                                   char **out_text, size_t *out_bytes)
{
    struct line line = line_at(edit, written->key_line);
    size_t column = edit_key_column(edit, line, "generation"), from, to;
    char number[16];

    if (column == 0 || written->line != written->key_line)
        return conf_edit_refuse(edit, written->key_line, "write the next generation yourself");
    for (from = line.begin + column + strlen("generation:"); edit->text[from] == ' '; from++) {
    }
    for (to = from; to < line.end && edit->text[to] >= '0' && edit->text[to] <= '9'; to++) {
    }
    if (to == from)
        return conf_edit_refuse(edit, written->key_line, "write the next generation yourself");
    (void)snprintf(number, sizeof(number), "%u", generation);
    *out_text = edit_splice(edit, from, to, number, out_bytes);
    return *out_text == NULL ? ICMS_NO_MEMORY : ICMS_OK;
}

/* None is written: a line behind the volume's name. */
static icms_err generation_insert(const struct conf_edit_text *edit, uint32_t generation,
                                  char **out_text, size_t *out_bytes)
{
    const struct conf_node *name = conf_node_get(edit->entry, "name");
    struct line line = line_at(edit, name->key_line);
    size_t column = edit_key_column(edit, line, "name");
    bool ended = line.end > line.begin && edit->text[line.end - 1] == '\n';
    char added[LIMIT_NAME_BYTES];

    if (column == 0 || column > 32 || name->line != name->key_line)
        return conf_edit_refuse(edit, name->key_line, "write the next generation yourself");
    (void)snprintf(added, sizeof(added), "%s%*sgeneration: %u\n", ended ? "" : "\n", (int)column,
                   "", generation);
    *out_text = edit_splice(edit, line.end, line.end, added, out_bytes);
    return *out_text == NULL ? ICMS_NO_MEMORY : ICMS_OK;
}

icms_err conf_generation_raise(const char *path, const char *volume, uint32_t at_least,
                               struct err_why *why, struct conf_edit *out_edit)
{
    struct conf_edit_text edit = {0};
    struct conf_edit made = {0};
    const struct conf_node *written = NULL;
    uint32_t seen = 0;
    icms_err err = edit_open_volume(&edit, path, volume, why, &made);

    if (err == ICMS_OK)
        err = generation_of(&edit, edit.text, edit.bytes, volume, &made.from);
    if (err == ICMS_OK && made.from == UINT32_MAX)
        err = err_set(why, ICMS_CONFIG, "%s: generation %u is the last one", path, made.from);
    if (err == ICMS_OK) {
        made.to = made.from + 1 > at_least ? made.from + 1 : at_least;
        written = conf_node_get(edit.entry, "generation");
        err = written != NULL ? generation_replace(&edit, written, made.to, &made.text, &made.bytes)
                              : generation_insert(&edit, made.to, &made.text, &made.bytes);
    }
    if (err == ICMS_OK)
        err = generation_of(&edit, made.text, made.bytes, volume, &seen);
    if (err == ICMS_OK && seen != made.to)
        err = conf_edit_refuse(&edit, edit.entry->line, "write the next generation yourself");
    conf_edit_close(&edit);
    if (err != ICMS_OK) {
        free(made.text);
        return err;
    }
    *out_edit = made;
    return ICMS_OK;
}

/* ---- a list of keys ------------------------------------------------------------------------- */

/* The last line of a node and of all below it. */
static uint32_t last_line(const struct conf_node *node)
{
    uint32_t last = node->line > node->key_line ? node->line : node->key_line;

    for (const struct conf_node *at = node->first; at != NULL; at = at->next) {
        uint32_t below = last_line(at);

        last = below > last ? below : last;
    }
    return last;
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* Where `key:` begins in its line, behind blanks and the dash of a list; false: it is not the first
 * key there. */
static bool key_find(const struct conf_edit_text *edit, struct line line, const char *key,
                     size_t *out_column)
{
    size_t at = line.begin, bytes = strlen(key);

    while (at < line.end && (edit->text[at] == ' ' || edit->text[at] == '-'))
        at++;
    if (line.end - at <= bytes || memcmp(edit->text + at, key, bytes) != 0 ||
        edit->text[at + bytes] != ':')
        return false;
    *out_column = at - line.begin;
    return true;
}

/* Bytes of the value in its line, without the blanks around it and without a comment. */
static void value_find(const struct conf_edit_text *edit, struct line line, size_t from,
                       size_t *out_from, size_t *out_to)
{
    size_t to;

    while (from < line.end && edit->text[from] == ' ')
        from++;
    for (to = from; to < line.end && strchr("\r\n", edit->text[to]) == NULL; to++)
        if (edit->text[to] == '#' && to > from && edit->text[to - 1] == ' ')
            break;
    while (to > from && edit->text[to - 1] == ' ')
        to--;
    *out_from = from;
    *out_to = to;
}

/* A map's key gets a value: in its line, or in a new one behind that of the key `after`. */
icms_err conf_edit_key_set(struct conf_edit_text *edit, const struct conf_node *map,
                           const char *key, const char *value, const char *after,
                           const char *by_hand)
{
    const struct conf_node *written = conf_node_get(map, key);
    const struct conf_node *node = written != NULL ? written : conf_node_get(map, after);
    struct line line;
    size_t column, from, to, bytes = 0;
    bool is_ended;
    char *added, *text;

    check(node != NULL);
    line = line_at(edit, node->key_line);
    if (last_line(node) != node->key_line || node->kind == CONF_NODE_MAP ||
        !key_find(edit, line, written != NULL ? key : after, &column) || column > 32)
        return conf_edit_refuse(edit, node->key_line, by_hand);
    if (written != NULL) {
        value_find(edit, line, line.begin + column + strlen(key) + 1, &from, &to);
        text = edit_splice(edit, from, to, value, &bytes);
    } else {
        is_ended = line.end > line.begin && edit->text[line.end - 1] == '\n';
        if (asprintf(&added, "%s%*s%s: %s\n", is_ended ? "" : "\n", (int)column, "", key, value) <
            0)
            return err_set(edit->source.why, ICMS_NO_MEMORY, "%s: out of memory",
                           edit->source.name);
        text = edit_splice(edit, line.end, line.end, added, &bytes);
        free(added);
    }
    return edit_again(edit, text, bytes);
}

/* Where the dash of an entry is in its line; false: it has none there. */
/* Where the dash of an entry is in its line; false: it has none there. */
static bool dash_find(const struct conf_edit_text *edit, struct line line, size_t *out_column)
{
    size_t at = line.begin;

    while (at < line.end && edit->text[at] == ' ')
        at++;
    *out_column = at - line.begin;
    return at < line.end && edit->text[at] == '-' && *out_column <= 32;
}

icms_err conf_edit_entry_remove(struct conf_edit_text *edit, const char *by_hand)
{
    struct line first = line_at(edit, edit->entry->line);
    struct line last = line_at(edit, last_line(edit->entry));
    size_t column, bytes = 0;
    char *text;

    if (!dash_find(edit, first, &column))
        return conf_edit_refuse(edit, edit->entry->line, by_hand);
    text = edit_splice(edit, first.begin, last.end, "", &bytes);
    return edit_again(edit, text, bytes);
}

/* The lines of an entry whose dash stands in a column, behind `head`. NULL: no memory. */
static char *entry_text(const char *head, const char *lines, size_t column)
{
    size_t count = 0, bytes, used;
    char *text;

    for (const char *at = lines; *at != '\0'; at++)
        count += *at == '\n';
    bytes = strlen(head) + strlen(lines) + count * (column + 2) + 1;
    text = malloc(bytes);
    if (text == NULL)
        return NULL;
    used = (size_t)snprintf(text, bytes, "%s", head);
    for (const char *at = lines; *at != '\0';) {
        int length = (int)strcspn(at, "\n") + 1;

        used += (size_t)snprintf(text + used, bytes - used, "%*s%s%.*s", (int)column, "",
                                 at == lines ? "- " : "  ", length, at);
        at += length;
    }
    return text;
}

icms_err conf_edit_entry_add(struct conf_edit_text *edit, const char *list, const char *lines,
                             const char *by_hand)
{
    const struct conf_node *last = list != NULL ? conf_doc_root(edit->doc) : edit->list->last;
    struct line behind = line_at(edit, last_line(last));
    bool is_ended = behind.end > behind.begin && edit->text[behind.end - 1] == '\n';
    char head[LIMIT_NAME_BYTES + 4], *added, *text = NULL;
    size_t column = 0, bytes = 0;

    if (list == NULL && !dash_find(edit, line_at(edit, last->line), &column))
        return conf_edit_refuse(edit, last->line, by_hand);
    (void)snprintf(head, sizeof(head), "%s%s%s", is_ended ? "" : "\n", list != NULL ? list : "",
                   list != NULL ? ":\n" : "");
    added = entry_text(head, lines, column);
    if (added != NULL)
        text = edit_splice(edit, behind.end, behind.end, added, &bytes);
    free(added);
    return edit_again(edit, text, bytes);
}

icms_err conf_edit_key_remove(struct conf_edit_text *edit, const struct conf_node *map,
                              const char *key, const char *by_hand)
{
    const struct conf_node *node = conf_node_get(map, key);
    struct line line;
    size_t column, dash, bytes = 0;
    char *text;

    if (node == NULL)
        return ICMS_OK;
    line = line_at(edit, node->key_line);
    if (last_line(node) != node->key_line || !key_find(edit, line, key, &column) ||
        dash_find(edit, line, &dash))
        return conf_edit_refuse(edit, node->key_line, by_hand);
    text = edit_splice(edit, line.begin, line.end, "", &bytes);
    return edit_again(edit, text, bytes);
}

/* ---- what is left of a list of keys ------------------------------------------------------------
 */

/* Whether `left` is `all` without the volume. */
static bool seal_lacks(const struct conf_seal *left, const struct conf_seal *all,
                       const char *volume)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < all->volume_count; i++)
        if (strcmp(all->volumes[i].name, volume) != 0 &&
            (at == left->volume_count ||
             memcmp(&left->volumes[at++], &all->volumes[i], sizeof(*all->volumes)) != 0))
            return false;
    return at == left->volume_count;
}

/* The text without the volume's lines; of the last one the empty list stays. */
static icms_err seal_cut(const struct conf_edit_text *edit, char **out_text, size_t *out_bytes)
{
    static const char by_hand[] = "take the volume out yourself";
    struct line first = line_at(edit, edit->entry->line);
    struct line last = line_at(edit, last_line(edit->entry));
    struct line list = line_at(edit, edit->list->key_line);
    size_t dash = first.begin;

    while (dash < first.end && edit->text[dash] == ' ')
        dash++;
    if (dash == first.end || edit->text[dash] != '-')
        return conf_edit_refuse(edit, edit->entry->line, by_hand);
    if (edit->list->first != edit->list->last) {
        *out_text = edit_splice(edit, first.begin, last.end, "", out_bytes);
    } else {
        if (list.end - list.begin < strlen("volumes:") ||
            memcmp(edit->text + list.begin, "volumes:", strlen("volumes:")) != 0 ||
            list.end > first.begin)
            return conf_edit_refuse(edit, edit->list->key_line, by_hand);
        *out_text = edit_splice(edit, list.begin, last.end, "volumes: []\n", out_bytes);
    }
    return *out_text == NULL ? ICMS_NO_MEMORY : ICMS_OK;
}

icms_err conf_seal_remove(const char *path, const char *volume, struct err_why *why,
                          struct conf_edit *out_edit)
{
    struct conf_seal *all = calloc(1, sizeof(*all)), *left = calloc(1, sizeof(*left));
    struct conf_edit_text edit = {0};
    struct conf_edit made = {0};
    icms_err err = edit_open_volume(&edit, path, volume, why, &made);

    if (err == ICMS_OK && (all == NULL || left == NULL))
        err = err_set(why, ICMS_NO_MEMORY, "%s: out of memory", path);
    if (err == ICMS_OK)
        err = conf_seal_parse(edit.text, edit.bytes, path, why, all);
    if (err == ICMS_OK)
        err = seal_cut(&edit, &made.text, &made.bytes);
    if (err == ICMS_OK)
        err = conf_seal_parse(made.text, made.bytes, path, why, left);
    if (err == ICMS_OK && !seal_lacks(left, all, volume))
        err = conf_edit_refuse(&edit, edit.entry->line, "take the volume out yourself");
    conf_edit_close(&edit);
    free(all);
    free(left);
    if (err != ICMS_OK) {
        free(made.text);
        return err;
    }
    *out_edit = made;
    return ICMS_OK;
}

/* ---- writing -------------------------------------------------------------------------------- */

static int edit_write_all(int fd, const char *text, size_t bytes)
{
    size_t done = 0;

    while (done < bytes) {
        ssize_t n = write(fd, text + done, bytes - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        done += (size_t)n;
    }
    return fsync(fd) != 0 ? errno : 0;
}

/* What a rename did in a folder survives a power loss. An errno, or 0. */
static int edit_folder_flush(const char *path)
{
    char folder[PATH_MAX];
    int fd, error;

    (void)snprintf(folder, sizeof(folder), "%s", path);
    fd = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    error = fsync(fd) != 0 ? errno : 0;
    (void)close(fd);
    return error;
}

/* Beside the file, under a name that no other process takes; then in its place, if it is still the
 * one that was read (NULL: whatever it is). An errno, or 0. */
static int file_put(const char *real, const char *text, size_t bytes, const struct conf_edit *was)
{
    char beside[PATH_MAX + 16];
    struct stat status;
    bool is_there = stat(real, &status) == 0;
    int fd, error = 0;

    if (!is_there && errno != ENOENT)
        return errno;
    if (is_there && !S_ISREG(status.st_mode))
        return EINVAL;
    (void)snprintf(beside, sizeof(beside), "%s.XXXXXX", real);
    fd = mkostemp(beside, O_CLOEXEC);
    if (fd < 0)
        return errno;
    if (is_there && fchown(fd, status.st_uid, status.st_gid) != 0)
        error = errno;
    if (error == 0 && fchmod(fd, is_there ? status.st_mode & 07777 : 0644) != 0)
        error = errno;
    if (error == 0)
        error = edit_write_all(fd, text, bytes);
    if (close(fd) != 0 && error == 0)
        error = errno;
    /* an editor, which does not wait, may have saved while this was written */
    if (error == 0 && was != NULL)
        error = stat(real, &status) != 0 ? errno : edit_is_same(was, &status) ? 0 : ESTALE;
    if (error == 0 && rename(beside, real) != 0)
        error = errno;
    if (error != 0) {
        (void)unlink(beside);
        return error;
    }
    return edit_folder_flush(real);
}

/* Who edits has the file locked meanwhile; the lock of who is killed ends. The one that waited for
 * nothing opened a file that is not there any more, and finds another one (file_put). A file system
 * without locks has no two operators. An errno, or 0. */
static int edit_put(const char *real, const struct conf_edit *edit)
{
    int fd = open(real, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int error = fd < 0 ? errno : 0;

    if (error == 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        error = EWOULDBLOCK;
    if (error == 0)
        error = file_put(real, edit->text, edit->bytes, edit);
    if (fd >= 0)
        (void)close(fd);
    return error;
}

icms_err conf_edit_write(const char *path, const struct conf_edit *edit, struct err_why *why)
{
    char real[PATH_MAX];
    int error = realpath(path, real) == NULL ? errno : edit_put(real, edit);

    if (error == EWOULDBLOCK)
        return err_set(why, ICMS_EXISTS, "cannot write %s: somebody else changes it now; try again",
                       path);
    if (error == ESTALE)
        return edit_is_stale(path, why);
    if (error != 0)
        return err_set(why, err_from_errno(error), "cannot write %s: %s", path, strerror(error));
    return ICMS_OK;
}

icms_err conf_file_put(const char *path, const char *text, size_t bytes, struct err_why *why)
{
    char real[PATH_MAX];
    struct stat link;
    int error = 0;

    if (realpath(path, real) == NULL) { /* a link stays one */
        error = errno;
        if (error == ENOENT && lstat(path, &link) == 0)
            return err_set(why, ICMS_NOT_FOUND, "cannot write %s: it is a link to nothing", path);
        if (error == ENOENT && snprintf(real, sizeof(real), "%s", path) < (int)sizeof(real))
            error = 0;
    }
    if (error == 0)
        error = file_put(real, text, bytes, NULL);
    return error == 0 ? ICMS_OK
                      : err_set(why, err_from_errno(error), "cannot write %s: %s", path,
                                error == EINVAL ? "it is not a regular file" : strerror(error));
}

void conf_edit_fini(struct conf_edit *edit)
{
    free(edit->text);
    *edit = (struct conf_edit){0};
}
