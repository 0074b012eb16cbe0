/* The journal of a search, and what is said at its end: a table with its path, JSON, and the
 * experiment that won. */
#include "cli/tune.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/runs.h"
#include "report/result.h"
#include "report/table.h"

/* ---- the journal ---- */

static const char option[] = "--out-dir";

/* Lines up to one that was cut short. */
static json_t *read_lines(const struct text *text)
{
    json_t *out = json_array();
    const char *at = text->data, *end;

    for (; at != NULL && (end = strchr(at, '\n')) != NULL; at = end + 1) {
        json_t *line = json_loadb(at, (size_t)(end - at), 0, NULL);

        if (line == NULL)
            break;
        json_array_append_new(out, line);
    }
    return out;
}

/* What differs between two searches. */
static enum epa_status check_head(const struct tune_journal *j, const json_t *head,
                                  struct epa_error *err)
{
    const json_t *old = json_array_get(j->old, 0);
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)head, key, value)
    {
        const json_t *before = json_object_get(old, key);
        text_auto was = {0}, is = {0};

        if (json_equal(before, value))
            continue;
        json_write(&was, before, JSON_ENCODE_ANY | JSON_COMPACT);
        json_write(&is, value, JSON_ENCODE_ANY | JSON_COMPACT);
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--resume: the search in %s is another: %s was %s, and is %s; --force "
                        "without --resume begins again",
                        j->path, key, was.data != NULL ? was.data : "absent", is.data);
    }
    return EPA_OK;
}

static enum epa_status read_old(struct tune_journal *j, const struct cli *cli, const json_t *head,
                                struct epa_error *err)
{
    text_auto text = {0};
    struct stat at;
    enum epa_status status;

    if (stat(j->path, &at) != 0)
        return EPA_OK;
    if (!cli->resume)
        return cli->force ? EPA_OK
                          : epa_fail(err, EPA_ERR_CONFIG,
                                     "%s %s: a search is there already: --resume goes on with it, "
                                     "--force begins again",
                                     option, cli->out_dir);
    status = file_read(j->path, FILE_MOST, &text, err);
    if (status == EPA_OK) {
        json_decref(j->old);
        j->old = read_lines(&text);
        status = check_head(j, head, err);
    }
    return status;
}

enum epa_status tune_journal_open(struct tune_journal *j, const struct cli *cli, json_t *head,
                                  struct epa_error *err)
{
    text_auto text = {0};
    enum epa_status status;

    *j = (struct tune_journal){.fd = -1, .lock_fd = -1, .at = 1, .old = json_array()};
    if (cli->out_dir == NULL)
        return EPA_OK;
    j->path = memory_printf("%s/tune.jsonl", cli->out_dir);
    status = run_folder_lock(cli->out_dir, &j->lock_fd, err);
    if (status == EPA_OK)
        status = read_old(j, cli, head, err);
    if (status == EPA_OK && json_array_size(j->old) == 0)
        json_array_append(j->old, head);
    for (size_t i = 0; i < json_array_size(j->old); i++) {
        json_write(&text, json_array_get(j->old, i), JSON_COMPACT | JSON_DIGITS);
        text_add(&text, "\n");
    }
    if (status == EPA_OK)
        status = file_write(option, j->path, true, &text, err);
    if (status == EPA_OK && (j->fd = open(j->path, O_WRONLY | O_APPEND | O_CLOEXEC)) < 0)
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", option, j->path, strerror(errno));
    return status;
}

enum epa_status tune_journal_next(struct tune_journal *j, const json_t *what, const json_t **out,
                                  struct epa_error *err)
{
    const json_t *turn = json_array_get(j->old, j->at);

    *out = turn;
    if (turn == NULL)
        return EPA_OK;
    if (!json_equal(json_object_get(turn, "what"), what))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--resume: %s, line %zu: another turn than this search would take there; "
                        "--force without --resume begins again",
                        j->path, j->at + 1);
    j->at++;
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

void tune_journal_close(struct tune_journal *j)
{
    free(j->path);
    json_decref(j->old);
    if (j->fd >= 0)
        close(j->fd);
    if (j->lock_fd >= 0)
        close(j->lock_fd);
}

/* ---- what is said ---- */

static double median_of(const double *x, uint32_t n)
{
    double sorted[TUNE_ROUNDS];

    memcpy(sorted, x, n * sizeof(*x));
    stats_sort(sorted, n);
    return n > 0 ? stats_percentile(sorted, n, 500) : NAN;
}

double tune_ratio(const struct tune_setting *s, uint32_t from)
{
    return median_of(s->log_ratio + from, s->rounds - from);
}

static json_t *setting_json(const struct tune *t, const struct tune_setting *s)
{
    json_t *set = json_array();

    for (uint32_t i = 0; i < s->n; i++)
        json_array_append_new(set, json_text(s->set[i]));
    return json_object_of("setting", json_text(s->name), "set", set, "pass", json_count(s->pass),
                          "rounds", json_count(s->rounds), "median_ns",
                          json_whole(median_of(s->ns, s->rounds)), "ratio",
                          json_number(exp(tune_ratio(s, 0))), "outcome",
                          json_text(s == t->best && s != t->setting[0] ? "best"
                                    : s->why != NULL                   ? s->why
                                                                       : "kept"),
                          NULL);
}

/* "best: ...", a sentence without its end. */
static void add_verdict(const struct tune *t, struct text *out)
{
    const struct comparison *x = &t->last;
    bool missed = false;

    for (uint32_t i = 1; i < t->n; i++)
        missed = missed || (t->setting[i]->rounds == 0 && !t->setting[i]->dropped);
    if (t->stopped != EXIT_OK)
        text_add(out, "the search was interrupted; best so far, not compared in turns: %s",
                 t->best->name);
    else if (t->best == t->setting[0])
        text_add(out, "no setting was faster: the file's settings stay%s",
                 missed ? "; some were not reached: a larger --budget tries them" : "");
    else if (t->rounds == 0 || isnan(x->low))
        text_add(out,
                 "%s was faster, but %u rounds in turns with the file's settings are too few to "
                 "know: they stay; a larger --budget decides",
                 t->best->name, t->rounds);
    else
        text_add(out,
                 "%s%s: %.3f of the median of the file's settings, %.3f to %.3f (%g %%), %u "
                 "rounds of A B or B A%s",
                 t->is_better ? "best: " : "", t->best->name, x->ratio, x->low, x->high,
                 100 * (1 - t->cli->alpha), t->rounds,
                 t->is_better ? "" : "; not clearly faster, so the file's settings stay");
}

static void add_head(const struct tune *t, struct text *out)
{
    text_add(out, "%u settings in %u turns of %llu samples, %.1f s of %.1f s", t->n, t->turns,
             (unsigned long long)t->samples, (double)t->spent_ns / 1e9, (double)t->budget_ns / 1e9);
}

void tune_print(FILE *file, const struct tune *t)
{
    static const struct table_column columns[] = {{"setting", "setting", .width = 0},
                                                  {"rounds", "rounds", NULL, 0, 0, 6},
                                                  {"median_ns", "median", "us", 1e3, 2, 10},
                                                  {"ratio", "ratio", NULL, 0, 3, 7},
                                                  {"outcome", "", .width = 0},
                                                  {0}};
    json_auto_t *rows = json_array();
    text_auto text = {0}, verdict = {0};
    json_t *row;
    uint32_t pass = 0;
    size_t i;

    add_head(t, &text);
    text_comment(file, "epa2a tune: %s: %s", t->cli->arg[0], text.data);
    text_comment(file, "ratio: to the file's settings, median over rounds in which all took turns");
    for (uint32_t k = 0; k < t->n; k++) {
        if (t->setting[k]->pass != pass)
            json_array_append_new(
                rows, json_object_of("setting",
                                     json_sprintf("pass %u:", pass = t->setting[k]->pass), NULL));
        json_array_append_new(rows, setting_json(t, t->setting[k]));
    }
    table_text(file, columns, rows);
    json_array_foreach(t->not_tried, i, row) text_comment(
        file, "not tried: %s: %s", json_text_at(row, "setting"), json_text_at(row, "why"));
    add_verdict(t, &verdict);
    text_comment(file, "%s", verdict.data);
}

json_t *tune_json(const struct tune *t)
{
    json_t *settings = json_array(), *turns = json_null();

    for (uint32_t k = 0; k < t->n; k++)
        json_array_append_new(settings, setting_json(t, t->setting[k]));
    if (t->rounds > 0)
        turns = json_object_of("rounds", json_count(t->rounds), "file_ns", json_whole(t->last.a),
                               "best_ns", json_whole(t->last.b), "ratio",
                               json_number(t->last.ratio), "low", json_number(t->last.low), "high",
                               json_number(t->last.high), "p", json_number(t->last.p), NULL);
    return json_object_of(
        "schema", json_integer(1), "program", json_text("epa2a"), "file", json_text(t->cli->arg[0]),
        "budget_s", json_number((double)t->budget_ns / 1e9), "spent_s",
        json_number((double)t->spent_ns / 1e9), "turns", json_count(t->turns), "samples",
        json_count(t->samples), "settings", settings, "not_tried", json_incref(t->not_tried),
        "best", setting_json(t, t->best), "in_turns", turns, "better", json_boolean(t->is_better),
        "interrupted", json_boolean(t->stopped != EXIT_OK), "machine", facts_collect(""), NULL);
}

void tune_yaml(const struct tune *t, const struct text *yaml, struct text *out)
{
    json_auto_t *machine = facts_collect("");
    text_auto lines = {0};
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;

    if (gmtime_r(&now, &utc) != NULL)
        strftime(date, sizeof(date), "%Y-%m-%d", &utc);
    text_add(&lines, "%s by epa2a %s tune, %s, on %s: %s, %.0f cores, %s\n",
             t->is_better ? "Tuned" : "As it was: looked at", EPA2A_VERSION, date,
             json_text_at(machine, "host"), json_text_at(machine, "cpu"),
             json_number_at(machine, "cores"), json_text_at(machine, "kernel"));
    text_add(&lines, "From %s; ", t->cli->arg[0]);
    add_head(t, &lines);
    text_add(&lines, "\n");
    add_verdict(t, &lines);
    text_add(&lines, "\n");
    if (t->rounds > 0)
        text_add(&lines, "Medians in turns: %.2f us with the file's settings, %.2f us with %s\n",
                 t->last.a / 1e3, t->last.b / 1e3, t->best->name);
    for (char *save = NULL, *line = strtok_r(lines.data, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save))
        text_add(out, "# %s\n", text_clean(line));
    text_add(out, "%s", yaml->data);
}
