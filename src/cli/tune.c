/* The journal of a search, its reports (a table, JSON, the fastest experiment), and its
 * candidates. */
#include "cli/tune.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <fnmatch.h>
#include <stdio.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/runs.h"
#include "report/result.h"
#include "report/origin.h"
#include "report/results.h"
#include "report/summary.h"
#include "report/export.h"
#include "report/fill.h"
#include "config/options.h"
#include "config/experiment_show.h"
#include "config/option_text.h"
#include "op/op.h"

/* ---- the journal ---- */

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

/* ---- reports ---- */

static double median_of(const double *x, uint32_t n)
{
    double sorted[TUNE_ROUNDS];

    memcpy(sorted, x, n * sizeof(*x));
    return stats_quantile(sorted, n, 500);
}

double tune_median(const struct tune_setting *s)
{
    return s->rounds > 0 ? median_of(s->ns, s->rounds) : NAN;
}

static json_t *setting_json(const struct tune *t, const struct tune_setting *s)
{
    json_t *set = json_array();

    for (uint32_t i = 0; i < s->n; i++)
        json_array_append_new(set, json_text(s->set[i]));
    return json_object_of(
        "setting", json_text(s->name), "set", set, "pass", json_count(s->pass), "rounds",
        json_count(s->rounds), "median_ns", json_whole(median_of(s->ns, s->rounds)), "ratio",
        json_number(exp(median_of(s->log_ratio, s->rounds))), "estimate",
        json_number(s->rounds > 0 ? exp(s->log - t->setting[0]->log) : NAN), "outcome",
        json_text(s == t->best && s != t->setting[0] ? "best"
                  : s->why != NULL                   ? s->why
                                                     : "kept"),
        NULL);
}

void tune_verdict(const struct tune *t, struct text *out)
{
    const struct comparison *x = &t->last;
    double mean_turn = t->turns > 0 ? (double)t->spent_ns / t->turns : 0;
    bool missed = false;

    for (uint32_t i = 1; i < t->n; i++)
        missed = missed || (t->setting[i]->rounds == 0 && t->setting[i]->why != NULL &&
                            !t->setting[i]->dropped);
    if (t->stopped != EXIT_OK)
        text_add(out, "the search was interrupted; best so far, not compared in turns: %s",
                 t->best->name);
    else if (t->best == t->setting[0])
        text_add(out, "no setting was faster: the file's settings stay%s",
                 missed ? "; some settings were not reached: a larger --budget tries them" : "");
    else if (t->rounds == 0 || isnan(x->low))
        text_add(out,
                 "%s was faster, but %u rounds in turns with the file's settings are not enough "
                 "for a verdict: the file's settings stay; use --budget %.0fs",
                 t->best->name, t->rounds,
                 ceil(2 * turns_look(1) * mean_turn / TUNE_LAST_MOST / 1e9));
    else
        text_add(out,
                 "%s%s: %.3f of the median of the file's settings, %.3f to %.3f (%g %%), %u "
                 "rounds of A B or B A%s",
                 t->is_better ? "best: " : "", t->best->name, x->ratio, x->low, x->high,
                 100 * (1 - t->cli->alpha), t->rounds,
                 t->is_better ? "" : "; not clearly faster, so the file's settings stay");
}

static void add_summary(const struct tune *t, struct text *out)
{
    text_add(out, "%u settings in %u turns of %llu samples, %.1f s of %.1f s", t->n, t->turns,
             (unsigned long long)t->samples, (double)t->spent_ns / 1e9, (double)t->budget_ns / 1e9);
    if (t->threads)
        text_add(out, "; ranks were threads of one process");
    if (t->permille == TURNS_FASTEST)
        text_add(out, "; other programs use the cores, so the fastest 1 %% of a turn counts "
                      "instead of its median");
}

void tune_print(FILE *file, const struct tune *t)
{
    static const struct table_column columns[] = {{"setting", "setting", .width = 0},
                                                  {"rounds", "rounds", NULL, 0, 0, 6},
                                                  {"median_ns", "time", "us", 1e3, 2, 10},
                                                  {"ratio", "ratio", NULL, 0, 3, 7},
                                                  {"estimate", "estimate", NULL, 0, 3, 8},
                                                  {"outcome", "", .width = 0},
                                                  {0}};
    json_auto_t *rows = json_array();
    text_auto text = {0}, verdict = {0};
    uint32_t pass = 0;

    add_summary(t, &text);
    text_comment(file, "epa2a tune: %s: %s", t->cli->arg[0], text.data);
    text_comment(
        file, "ratio: median ratio to the file's settings in the same rounds; estimate: the same "
              "ratio, fitted to the turns of all settings");
    for (uint32_t k = 0; k < t->n; k++) {
        const struct tune_setting *x = t->setting[k];

        if (x->pass == 2 && x->rounds < TUNE_SHOWN && x != t->best)
            continue;
        if (x->pass != pass)
            json_array_append_new(
                rows,
                json_object_of("setting", json_text(x->pass == 1 ? "alone:" : "together:"), NULL));
        pass = x->pass;
        json_array_append_new(rows, setting_json(t, x));
    }
    table_text(file, columns, rows);
    for (struct json_walk row = {t->not_tried}; json_next(&row);)
        text_comment(file, "not tried: %s: %s", json_text_at(row.value, "setting"),
                     json_text_at(row.value, "why"));
    tune_verdict(t, &verdict);
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
    return json_object_of("schema", json_integer(1), "program", json_text("epa2a"), "file",
                          json_text(t->cli->arg[0]), "percentile", json_number(t->permille / 10.0),
                          "budget_s", json_number((double)t->budget_ns / 1e9), "spent_s",
                          json_number((double)t->spent_ns / 1e9), "turns", json_count(t->turns),
                          "samples", json_count(t->samples), "settings", settings, "not_tried",
                          json_incref(t->not_tried), "best", setting_json(t, t->best), "in_turns",
                          turns, "better", json_boolean(t->is_better), "interrupted",
                          json_boolean(t->stopped != EXIT_OK), "machine", facts_collect(""), NULL);
}

void tune_origin(const char *what, const char *from, const char *how, struct text *out)
{
    json_auto_t *machine = facts_collect("");
    text_auto line = {0};
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;

    if (gmtime_r(&now, &utc) != NULL)
        strftime(date, sizeof(date), "%Y-%m-%d", &utc);
    text_add(&line, "%s by epa2a %s tune, %s, on %s: %s, %.0f cores, %s", what, EPA2A_VERSION, date,
             json_text_at(machine, "host"), json_text_at(machine, "cpu"),
             json_number_at(machine, "cores"), json_text_at(machine, "kernel"));
    text_add(out, "# %s\n", text_clean(line.data));
    text_free(&line);
    text_add(&line, "From %s; %s", from, how);
    text_add(out, "# %s\n", text_clean(line.data));
}

void tune_yaml(const struct tune *t, const struct text *yaml, struct text *out)
{
    text_auto head = {0}, verdict = {0};

    add_summary(t, &head);
    tune_origin(t->is_better ? "Tuned" : "Unchanged: searched", t->cli->arg[0], head.data, out);
    tune_verdict(t, &verdict);
    text_add(out, "# %s\n", text_clean(verdict.data));
    if (t->rounds > 0)
        text_add(out, "# Times in turns: %.2f us with the file's settings, %.2f us with %s\n",
                 t->last.a / 1e3, t->last.b / 1e3, t->best->name);
    text_add(out, "%s", yaml->data);
}

/* Candidates of `epa2a tune`: the runs of its file, other algorithms, and settings that differ from
 * them in options with candidates (epa2a/plugin.h, `tune`). Each setting is read and checked like a
 * file. */

/* ---- experiments ---- */

const struct runs *tune_read_runs(struct tune_search *s, const char *text, const char **set,
                                  uint32_t n, char why[CLI_FAILURE])
{
    struct tune_kept *kept = arena_alloc(s->t.arena, sizeof(*kept));
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status =
        text == NULL ? runs_read_files(s->t.cli, s->registry, NULL, &kept->runs, &err)
                     : runs_read_text(s->t.cli, s->registry, text, set, n, &kept->runs, why, &err);

    kept->next = s->kept;
    s->kept = kept;
    if (err.status != EPA_OK)
        s->err = err;
    return status == EPA_OK ? &kept->runs : NULL;
}

static char *experiment_text(struct tune_search *s, const struct experiment *x)
{
    text_auto text = {0};

    experiment_show(x, false, &text);
    return arena_strndup(s->t.arena, text.data, text.bytes);
}

static void add_base(struct tune_search *s, const char *name, const struct experiment *x)
{
    struct experiment bare = *x;

    memcpy(&bare.expect, section_find("expect")->options.defaults, sizeof(bare.expect));
    memcpy(&bare.profile, section_find("profile")->options.defaults, sizeof(bare.profile));
    s->base[s->n_bases++] = (struct tune_base){arena_strndup(s->t.arena, name, strlen(name)),
                                               experiment_text(s, x), experiment_text(s, &bare), x};
}

json_t *tune_delivered(const struct tune_search *s, const struct experiment *x)
{
    const struct operation *op = operation_of_experiment(x);
    json_t *out = op->delivers != NULL ? op->delivers(x, &x->footprint) : json_object();

    for (uint32_t i = 0; i < s->t.cli->n_across; i++)
        json_object_del(out, s->t.cli->across[i]);
    return out;
}

/* Returns true, with the reason in `why`, if an experiment delivers other outputs than the file's
 * settings. */
static bool delivers_other_outputs(const struct tune_search *s, const struct experiment *x,
                                   char why[CLI_FAILURE])
{
    json_auto_t *now = tune_delivered(s, x);

    for (struct json_walk it = {now}; json_next(&it);) {
        const json_t *was = json_object_get(s->delivers, it.key);
        text_auto a = {0}, b = {0};

        if (json_equal(it.value, was))
            continue;
        json_write(&a, it.value, JSON_ENCODE_ANY);
        json_write(&b, was, JSON_ENCODE_ANY);
        snprintf(why, CLI_FAILURE, "its outputs differ (%s %s, not %s); --across %s tries it",
                 it.key, a.data, b.data != NULL ? b.data : "null", it.key);
        return true;
    }
    return false;
}

struct finding {
    const char *key;
    struct text *value;
};

static void find_value(void *arg, const struct experiment_value *v)
{
    struct finding *f = arg;

    if (strcmp(v->path, f->key) == 0)
        text_add(f->value, "%s", v->value);
}

/* Finds the base with the same plugins and options as `x`. Name, seed, repetition and length may
 * differ. */
static const struct tune_base *find_same_setting(const struct tune_search *s,
                                                 const struct experiment *x)
{
    json_auto_t *means = result_means(x);
    const struct tune_base *found = NULL;

    for (uint32_t i = 0; i < s->n_bases && found == NULL; i++) {
        json_auto_t *other = result_means(s->base[i].x);

        found = json_equal(means, other) ? &s->base[i] : NULL;
    }
    return found;
}

/* --algorithms: adds the first run of the file with another algorithm, which gets the options that
 * both algorithms have. */
static enum epa_status add_algorithm(struct tune_search *s, const char *name)
{
    const struct experiment *x = s->base[0].x;
    const struct epa_options *have = &x->algorithm.plugin->options;
    const struct epa_plugin *plugin;
    const char *set[130];
    void *scratch;
    uint32_t n = 0;
    char why[CLI_FAILURE] = "";
    const struct runs *runs;

    if (registry_find(s->registry, EPA_PLUGIN_ALGORITHM, name, &plugin, &s->err) != EPA_OK)
        return s->err.status;
    scratch = arena_alloc(s->t.arena, plugin->options.size + 1);
    set[n++] = arena_printf(s->t.arena, "algorithm=%s", name);
    for (const struct epa_option *o = have->table; o != NULL && o->name != NULL && n < 129; o++) {
        const struct epa_option *other = option_find(&plugin->options, o->name);
        struct value_error ignored;
        text_auto value = {0};

        if (other == NULL || other->type != o->type || !option_is_set(o, x->algorithm.config))
            continue;
        option_text(o, x->algorithm.config, &value);
        if (value.data != NULL && o->type != EPA_OPTION_U32_LIST &&
            option_parse(other, value.data, scratch, &ignored))
            set[n++] = arena_printf(s->t.arena, "algorithm.%s=%s", o->name, value.data);
    }
    runs = tune_read_runs(s, s->base[0].whole, set, n, why);
    if (runs != NULL && find_same_setting(s, runs->run[0].x) == NULL)
        add_base(s, name, runs->run[0].x);
    else if (runs == NULL)
        json_array_append_new(s->t.not_tried, json_object_of("setting", json_text(name), "why",
                                                             json_text(why), NULL));
    return EPA_OK;
}

/* Returns the label of a run without the number of its repetition, or its name. */
static const char *label_of_setting(struct tune_search *s, const struct run *run)
{
    size_t bytes = results_label_bytes(run->label);

    return bytes > 0 ? arena_strndup(s->t.arena, run->label, bytes) : run->x->name;
}

/* Adds the task of a run to the list, if the list does not have it. */
static void add_task(struct tune_search *s, const struct run *run, json_t *shape)
{
    size_t bytes = results_label_bytes(run->label);

    if (s->tasks == NULL)
        s->tasks = json_array();
    for (struct json_walk task = {s->tasks}; json_next(&task);)
        if (json_equal(json_object_get(task.value, "shape"), shape))
            return;
    json_array_append_new(
        s->tasks, json_object_of("name",
                                 json_text(bytes > 0 ? tune_task_name(s->t.arena, run->label, bytes)
                                                     : run->x->name),
                                 "shape", json_incref(shape), NULL));
}

enum epa_status tune_read_bases(struct tune_search *s)
{
    const struct cli *cli = s->t.cli;
    const struct runs *runs = tune_read_runs(s, NULL, NULL, 0, NULL);

    if (runs == NULL)
        return s->err.status != EPA_OK ? s->err.status : EPA_ERR_CONFIG;
    s->base = arena_alloc(s->t.arena,
                          (runs->n + strlen(cli->algorithms != NULL ? cli->algorithms : "") + 1) *
                              sizeof(*s->base));
    for (uint32_t i = 0; i < runs->n && s->err.status == EPA_OK; i++) {
        const struct run *run = &runs->run[i];
        json_t *shape;

        if (run->x == NULL) {
            json_array_append_new(s->t.not_tried,
                                  json_object_of("setting", json_text(run->label), "why",
                                                 json_text(run->refused.text), NULL));
            continue;
        }
        shape = result_shape(run->x);
        if (s->shape == NULL)
            s->shape = json_incref(shape);
        add_task(s, run, shape);
        if (!json_equal(s->shape, shape)) {
            json_decref(shape);
            continue;
        }
        if (find_same_setting(s, run->x) == NULL)
            add_base(s, label_of_setting(s, run), run->x);
        else if (run->repetition == 1)
            json_array_append_new(
                s->t.not_tried,
                json_object_of("setting", json_text(run->label), "why",
                               json_sprintf("same settings as '%s': only names, seeds or lengths "
                                            "of runs differ",
                                            find_same_setting(s, run->x)->name),
                               NULL));
        json_decref(shape);
    }
    if (s->n_bases == 0 && s->err.status == EPA_OK)
        epa_fail(&s->err, EPA_ERR_UNSUPPORTED, "%s: no run of the file can run here", cli->arg[0]);
    if (s->err.status == EPA_OK && cli->algorithms != NULL) {
        char *names = arena_strndup(s->t.arena, cli->algorithms, strlen(cli->algorithms)), *save;

        s->base[0].name = s->base[0].x->algorithm.plugin->name;
        for (char *name = strtok_r(names, ",", &save); name != NULL && s->err.status == EPA_OK;
             name = strtok_r(NULL, ",", &save))
            if (strcmp(name, s->base[0].name) != 0)
                (void)add_algorithm(s, name);
    }
    return s->err.status;
}

/* ---- settings ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

uint32_t tune_merge(struct tune_search *s, uint32_t base, const char **set, uint32_t n,
                    const char *change)
{
    size_t bytes = strcspn(change, "=");
    text_auto now = {0};
    struct finding f = {arena_strndup(s->t.arena, change, bytes), &now};
    uint32_t out = 0;

    for (uint32_t i = 0; i < n; i++)
        if (strncmp(set[i], change, bytes + 1) != 0)
            set[out++] = set[i];
    experiment_visit(s->base[base].x, find_value, &f);
    if (now.data == NULL || strcmp(now.data, change + bytes + 1) != 0)
        set[out++] = change;
    qsort(set, out, sizeof(*set), by_text);
    return out;
}

struct tune_setting *tune_add_setting(struct tune_search *s, uint32_t base, const char **set,
                                      uint32_t n, const char *change, uint32_t pass)
{
    struct tune *t = &s->t;
    struct tune_setting *out;
    text_auto name = {0};
    char why[CLI_FAILURE] = "";
    const struct runs *runs;

    text_add(&name, "%s", s->n_bases > 1 ? s->base[base].name : "");
    for (uint32_t i = 0; i < n; i++)
        text_add(&name, "%s%s", name.bytes > 0 ? " " : "", set[i]);
    if (base == 0 && n == 0)
        text_add(&name, "%sthe file's settings", s->n_bases > 1 ? ": " : "");
    for (uint32_t i = 0; i < t->n; i++)
        if (strcmp(t->setting[i]->name, name.data) == 0)
            return t->setting[i];
    runs = tune_read_runs(s, s->base[base].text, set, n, why);
    if (runs == NULL || delivers_other_outputs(s, runs->run[0].x, why) || t->n == TUNE_SETTINGS) {
        if (pass == 1 && change != NULL)
            json_array_append_new(t->not_tried, json_object_of("setting", json_text(name.data),
                                                               "why", json_text(why), NULL));
        return NULL;
    }
    out = t->setting[t->n++] = arena_alloc(t->arena, sizeof(*out));
    *out = (struct tune_setting){.base = base,
                                 .n = n,
                                 .name = arena_strndup(t->arena, name.data, name.bytes),
                                 .change = change,
                                 .x = runs->run[0].x,
                                 .log_ratio = arena_alloc(t->arena, TUNE_ROUNDS * sizeof(double)),
                                 .ns = arena_alloc(t->arena, TUNE_ROUNDS * sizeof(double)),
                                 .pass = pass};
    out->set = arena_alloc(t->arena, (n + 1) * sizeof(*out->set));
    if (n > 0)
        memcpy(out->set, set, n * sizeof(*set));
    return out;
}

static bool was_tried(const struct tune_search *s, uint32_t base, const char *change)
{
    for (uint32_t i = 0; i < s->t.n; i++) {
        const struct tune_setting *x = s->t.setting[i];

        if (x->base == base && x->change != NULL && strcmp(x->change, change) == 0)
            return true;
    }
    return false;
}

static bool is_picked(const struct cli *cli, const char *key)
{
    for (uint32_t i = 0; i < cli->n_keys; i++)
        if (fnmatch(cli->keys[i], key, 0) == 0)
            return true;
    return cli->n_keys == 0;
}

void tune_add_changes(struct tune_search *s, const struct tune_setting *from, uint32_t pass,
                      struct tune_setting **list, uint32_t *n)
{
    const struct experiment *x = from->x;
    bool on_gpus = (backend_of(x)->memory & EPA_MEMORY_CUDA) != 0;

    for (const struct section *of = experiment_sections; of->name != NULL; of++) {
        const struct chosen *chosen = (const void *)((const char *)x + of->offset);
        const struct epa_options *table = of->plugin ? &chosen->plugin->options : &of->options;
        const void *values = of->plugin ? chosen->config : chosen;

        if (!section_is_for(of, (const void *)x->algorithm.plugin) ||
            (s->t.threads && strcmp(of->name, "launcher") == 0)) /* thread replaces the launcher */
            continue;
        for (const struct epa_option *o = table->table; o != NULL && o->name != NULL; o++) {
            const char *key = arena_printf(s->t.arena, "%s.%s", of->name, o->name);
            text_auto value = {0}, now = {0};

            option_text(o, values, &now);
            for (uint32_t i = 0; is_picked(s->t.cli, key) && option_applies(x, of, o->name) &&
                                 option_candidate(o, on_gpus, i, &value);
                 i++) {
                const char *change = arena_printf(s->t.arena, "%s=%s", key, value.data);
                const char **set = arena_alloc(s->t.arena, (from->n + 2) * sizeof(*set));
                struct tune_setting *one = NULL;

                memcpy(set, from->set, from->n * sizeof(*set));
                if (strcmp(value.data, now.data) != 0 && !was_tried(s, from->base, change))
                    one = tune_add_setting(s, from->base, set,
                                           tune_merge(s, from->base, set, from->n, change), change,
                                           pass);
                if (one != NULL)
                    list[(*n)++] = one;
                text_free(&value);
            }
        }
    }
}
