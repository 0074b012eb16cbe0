/* Candidates of `epa2a tune`: the runs of its file, other algorithms, and settings that differ from
 * them in options with candidates (epa2a/plugin.h, `tune`). Each setting is read and checked like a
 * file. */
#include "cli/tune_candidates.h"

#include <stdarg.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cli/runs.h"
#include "cli/tune.h"
#include "cli/tune_tasks.h"
#include "config/experiment_show.h"
#include "config/option_text.h"
#include "options/option.h"
#include "experiment/operation.h"
#include "report/results.h"

/* ---- experiments ---- */

const struct runs *tune_read_runs(struct tune_search *s, const char *text, const char **set,
                                  uint32_t n, char why[RUNS_FAILURE])
{
    struct tune_kept *kept = arena_alloc(s->t.arena, sizeof(*kept));
    const struct runs_wish wish = runs_wish(s->t.cli);
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status =
        text == NULL ? runs_read_files(&wish, s->registry, NULL, &kept->runs, &err)
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

/* Records a setting that the search cannot try, and the reason. */
__attribute__((format(printf, 3, 4))) static void skip_setting(struct tune *t, const char *setting,
                                                               const char *fmt, ...)
{
    struct tune_skipped **end = &t->not_tried, *one = arena_alloc(t->arena, sizeof(*one));
    char why[600];
    va_list args;

    va_start(args, fmt);
    vsnprintf(why, sizeof(why), fmt, args);
    va_end(args);
    *one = (struct tune_skipped){arena_printf(t->arena, "%s", setting),
                                 arena_printf(t->arena, "%s", why), NULL};
    while (*end != NULL)
        end = &(*end)->next;
    *end = one;
}

static bool is_across(const struct cli *cli, const char *property)
{
    for (uint32_t i = 0; i < cli->n_across; i++)
        if (strcmp(cli->across[i], property) == 0)
            return true;
    return false;
}

uint32_t tune_delivered(const struct tune_search *s, const struct experiment *x,
                        struct op_property out[OP_PROPERTIES])
{
    const struct operation *op = operation_of_experiment(x);
    struct op_property all[OP_PROPERTIES];
    uint32_t n = op->delivers != NULL ? op->delivers(&x->problem, &x->footprint, all) : 0, kept = 0;

    for (uint32_t i = 0; i < n; i++)
        if (!is_across(s->t.cli, all[i].name))
            out[kept++] = all[i];
    return kept;
}

/* Returns the value of the property of that name as in results: "fp8" with quotes, true, null. */
static const char *property_text(struct arena *arena, const struct op_property *list, uint32_t n,
                                 const char *name)
{
    uint32_t i = 0;

    while (i < n && strcmp(list[i].name, name) != 0)
        i++;
    if (i == n || list[i].value == NULL)
        return "null";
    return list[i].is_flag ? list[i].value : arena_printf(arena, "\"%s\"", list[i].value);
}

/* Returns true, with the reason in `why`, if an experiment delivers other outputs than the file's
 * settings. */
static bool delivers_other_outputs(const struct tune_search *s, const struct experiment *x,
                                   char why[RUNS_FAILURE])
{
    struct op_property now[OP_PROPERTIES];
    uint32_t n = tune_delivered(s, x, now);

    for (uint32_t i = 0; i < n; i++) {
        const char *name = now[i].name, *value = property_text(s->t.arena, now, n, name);
        const char *was = property_text(s->t.arena, s->delivers, s->n_delivers, name);

        if (strcmp(value, was) == 0)
            continue;
        snprintf(why, RUNS_FAILURE, "its outputs differ (%s %s, not %s); --across %s tries it",
                 name, value, was, name);
        return true;
    }
    return false;
}

struct key_value {
    const char *key;
    struct text *value;
};

static void find_value(void *arg, const struct experiment_value *v)
{
    struct key_value *f = arg;

    if (strcmp(v->path, f->key) == 0)
        text_add(f->value, "%s", v->value);
}

/* Finds the base with the same plugins and options as `x`. Name, seed, repetition and length may
 * differ. */
static const struct tune_base *find_same_setting(const struct tune_search *s,
                                                 const struct experiment *x)
{
    const struct tune_base *found = NULL;
    text_auto means = {0};

    experiment_part(x, KEY_MEANS, &means);
    for (uint32_t i = 0; i < s->n_bases && found == NULL; i++) {
        text_auto other = {0};

        experiment_part(s->base[i].x, KEY_MEANS, &other);
        found = strcmp(means.data, other.data) == 0 ? &s->base[i] : NULL;
    }
    return found;
}

/* --algorithms: adds the first run of the file with another algorithm, which gets the options that
 * both algorithms have. */
static enum epa_status add_algorithm_candidates(struct tune_search *s, const char *name)
{
    const struct experiment *x = s->base[0].x;
    const struct epa_options *have = &x->algorithm.plugin->options;
    const struct epa_plugin *plugin;
    const char *set[130];
    void *scratch;
    uint32_t n = 0;
    char why[RUNS_FAILURE] = "";
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
        skip_setting(&s->t, name, "%s", why);
    return EPA_OK;
}

/* Returns the label of a run without the number of its repetition, or its name. */
static const char *label_of_setting(struct tune_search *s, const struct run *run)
{
    size_t bytes = results_label_bytes(run->label);

    return bytes > 0 ? arena_strndup(s->t.arena, run->label, bytes) : run->x->name;
}

/* Adds the task of a run to the list, if the list does not have it. */
static void add_task(struct tune_search *s, const struct run *run, const char *shape)
{
    size_t bytes = results_label_bytes(run->label);

    for (uint32_t i = 0; i < s->n_tasks; i++)
        if (strcmp(s->task[i].shape, shape) == 0)
            return;
    s->task[s->n_tasks++] = (struct tune_task){
        bytes > 0 ? tune_task_name(s->t.arena, run->label, bytes) : run->x->name, shape};
}

enum epa_status tune_read_bases(struct tune_search *s)
{
    const struct cli *cli = s->t.cli;
    const struct runs *runs = tune_read_runs(s, NULL, NULL, 0, NULL);

    if (runs == NULL)
        return s->err.status != EPA_OK ? s->err.status : EPA_ERR_CONFIG;
    s->base = arena_alloc(
        s->t.arena,
        (runs->n + strlen(cli->tune.algorithms != NULL ? cli->tune.algorithms : "") + 1) *
            sizeof(*s->base));
    s->task = arena_alloc(s->t.arena, runs->n * sizeof(*s->task));
    for (uint32_t i = 0; i < runs->n && s->err.status == EPA_OK; i++) {
        const struct run *run = &runs->run[i];
        const char *shape;
        text_auto text = {0};

        if (run->x == NULL) {
            skip_setting(&s->t, run->label, "%s", run->refused.text);
            continue;
        }
        experiment_part(run->x, KEY_TASK, &text);
        shape = arena_strndup(s->t.arena, text.data, text.bytes);
        if (s->shape == NULL)
            s->shape = shape;
        add_task(s, run, shape);
        if (strcmp(s->shape, shape) != 0)
            continue;
        if (find_same_setting(s, run->x) == NULL)
            add_base(s, label_of_setting(s, run), run->x);
        else if (run->repetition == 1)
            skip_setting(&s->t, run->label,
                         "same settings as '%s': only names, seeds or lengths of runs differ",
                         find_same_setting(s, run->x)->name);
    }
    if (s->n_bases == 0 && s->err.status == EPA_OK)
        epa_fail(&s->err, EPA_ERR_UNSUPPORTED, "%s: no run of the file can run here", cli->arg[0]);
    if (s->err.status == EPA_OK && cli->tune.algorithms != NULL) {
        char *names = arena_strndup(s->t.arena, cli->tune.algorithms, strlen(cli->tune.algorithms)),
             *save;

        s->base[0].name = s->base[0].x->algorithm.plugin->name;
        for (char *name = strtok_r(names, ",", &save); name != NULL && s->err.status == EPA_OK;
             name = strtok_r(NULL, ",", &save))
            if (strcmp(name, s->base[0].name) != 0)
                (void)add_algorithm_candidates(s, name);
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
    struct key_value f = {arena_strndup(s->t.arena, change, bytes), &now};
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
    char why[RUNS_FAILURE] = "";
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
            skip_setting(t, name.data, "%s", why);
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
    for (uint32_t i = 0; i < cli->tune.n_keys; i++)
        if (fnmatch(cli->tune.keys[i], key, 0) == 0)
            return true;
    return cli->tune.n_keys == 0;
}

void tune_add_changes(struct tune_search *s, const struct tune_setting *from, uint32_t pass,
                      struct tune_setting **list, uint32_t *n)
{
    const struct experiment *x = from->x;
    bool on_gpus = (backend_of(x)->memory & EPA_MEMORY_CUDA) != 0;

    for (const struct section *of = experiment_sections; of->name != NULL; of++) {
        const struct ep_choice *chosen = (const void *)((const char *)x + of->offset);
        const struct epa_options *table = of->plugin ? &chosen->plugin->options : &of->options;
        const void *values = of->plugin ? chosen->config : chosen;

        if (!section_is_for(of, (const void *)x->algorithm.plugin))
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
