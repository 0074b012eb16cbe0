/* The journal of a search: a line for each turn. */
#include "cli/tune_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "cli/run_folder.h"

static const char option[] = "--out-dir";

static bool has_line(const json_t *lines, const json_t *line)
{
    for (struct json_walk before = {lines}; json_next(&before);)
        if (json_equal(before.value, line))
            return true;
    return false;
}

/* Reads the complete lines and returns their length in bytes. Leaves out repeated lines, as in two
 * concatenated journals: different turns have different times. */
static size_t read_lines(const struct text *text, json_t *out)
{
    const char *at = text->data, *end;

    for (; at != NULL && (end = strchr(at, '\n')) != NULL; at = end + 1) {
        json_t *line = json_loadb(at, (size_t)(end - at), 0, NULL);

        if (line == NULL)
            break;
        if (!has_line(out, line))
            json_array_append(out, line);
        json_decref(line);
    }
    return at != NULL ? (size_t)(at - text->data) : 0;
}

enum epa_status tune_journal_next(struct tune_journal *j, const json_t *what, const json_t **out,
                                  struct epa_error *err)
{
    const json_t *turn = json_array_get(j->old, j->at), *old = json_object_get(turn, "what");

    *out = turn;
    for (struct json_walk it = {turn != NULL ? what : NULL}; json_next(&it);) {
        const json_t *before = json_object_get(old, it.key);
        text_auto was = {0}, is = {0};

        if (json_equal(before, it.value))
            continue;
        json_write(&was, before, JSON_ENCODE_ANY | JSON_COMPACT);
        json_write(&is, it.value, JSON_ENCODE_ANY | JSON_COMPACT);
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--resume: %s, line %zu, belongs to another search: %s was %s, and is %s; "
                        "--force without --resume starts over",
                        j->path, j->at + 1, it.key, was.data != NULL ? was.data : "absent",
                        is.data);
    }
    j->at += turn != NULL;
    return EPA_OK;
}

enum epa_status tune_journal_add(struct tune_journal *j, const json_t *turn, struct epa_error *err)
{
    const struct file_stream stream = {option, j->path, j->fd};
    text_auto line = {0};

    if (j->path == NULL)
        return EPA_OK;
    json_write(&line, turn, JSON_COMPACT | JSON_DIGITS);
    text_add(&line, "\n");
    return file_stream_add(&stream, &line, err);
}

/* Returns the path of a task's journal; task 0: the only task. The caller frees the path. */
static char *journal_path(const struct cli *cli, uint32_t task)
{
    return task == 0 ? memory_printf("%s/tune.jsonl", cli->out_dir)
                     : memory_printf("%s/tune-%u.jsonl", cli->out_dir, task);
}

enum epa_status tune_journals_check(const struct cli *cli, uint32_t tasks, struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    struct stat at;

    if (cli->out_dir == NULL)
        return EPA_OK;
    if (stat(cli->out_dir, &at) != 0)
        return folder_check(option, cli->out_dir, err);
    for (uint32_t task = 1; task <= tasks && status == EPA_OK; task++) {
        char *path = journal_path(cli, task);

        status = file_check(option, path, true, err);
        free(path);
    }
    return status;
}

enum epa_status tune_journal_open(struct tune_journal *j, const struct cli *cli, uint32_t task,
                                  const json_t *head, struct epa_error *err)
{
    json_auto_t *line = json_object_of("what", json_deep_copy(head), NULL);
    const json_t *old = NULL;
    text_auto text = {0};
    enum epa_status status;
    size_t bytes;

    *j = (struct tune_journal){.fd = -1, .lock_fd = -1, .old = json_array()};
    if (cli->out_dir == NULL)
        return EPA_OK;
    j->path = journal_path(cli, task);
    status = run_folder_lock(cli->out_dir, &j->lock_fd, err);
    if (status == EPA_OK && !cli->resume && !cli->force && access(j->path, F_OK) == 0)
        status = epa_fail(err, EPA_ERR_CONFIG,
                          "%s %s: the folder already has a search: --resume continues it, --force "
                          "starts over",
                          option, cli->out_dir);
    if (status == EPA_OK && cli->resume && access(j->path, F_OK) == 0)
        status = file_read_text(j->path, FILE_MOST, &text, err);
    bytes = read_lines(&text, j->old);
    if (status == EPA_OK)
        status = tune_journal_next(j, head, &old, err);
    if (status != EPA_OK)
        return status;
    j->fd = open(j->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (j->fd < 0 || ftruncate(j->fd, (off_t)bytes) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", option, j->path, strerror(errno));
    return old != NULL ? EPA_OK : tune_journal_add(j, line, err);
}

void tune_journal_close(struct tune_journal *j)
{
    free(j->path);
    json_decref(j->old);
    if (j->fd >= 0)
        close(j->fd);
    if (j->lock_fd >= 0)
        close(j->lock_fd);
}
