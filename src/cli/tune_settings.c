/* What `epa2a tune` can try: the runs of its file, other algorithms, and settings that differ from
 * them in options with candidates (epa2a/option.h, `tune`). All are read, and refused, as a file
 * would be. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/tune.h"
#include "config/options.h"
#include "op/op.h"
#include "report/result.h"

#define HOPELESS 0.1 /* alone so much slower: not tried with others */

/* ---- experiments ---- */

const struct runs *tune_read_runs(struct tune_search *s, const char *text, const char **set,
                                  uint32_t n, char why[CLI_FAILURE])
{
    struct tune_kept *kept = arena_alloc(s->t.arena, sizeof(*kept));
    struct diag *diag = diag_create();
    struct epa_error err = {EPA_OK, ""};
    struct cli one = *s->t.cli;
    enum epa_status status;

    if (text != NULL) {
        one.text = text;
        one.n_only = 0;
        one.set = set;
        one.n_sets = n;
    }
    status = runs_read(&one, s->registry, diag, &kept->runs, &err);
    kept->next = s->kept;
    s->kept = kept;
    if (text == NULL) {
        diag_print(diag, stderr);
    } else if (diag_errors(diag) > 0) {
        char *data = NULL, *at;
        size_t bytes;
        FILE *file = open_memstream(&data, &bytes);

        diag_print_first(diag, file);
        fclose(file);
        at = strstr(data, "error: ");
        at = at != NULL ? at + strlen("error: ") : data;
        snprintf(why, CLI_FAILURE, "%.*s", (int)strcspn(at, "\n"), at);
        free(data);
    } else if (status == EPA_OK && kept->runs.run[0].x == NULL) {
        status = kept->runs.run[0].refused.status;
        snprintf(why, CLI_FAILURE, "%.290s", kept->runs.run[0].refused.text);
    }
    if (err.status != EPA_OK)
        s->err = err;
    diag_destroy(diag);
    return status == EPA_OK ? &kept->runs : NULL;
}

static char *show(struct tune_search *s, const struct experiment *x)
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
                                               show(s, x), show(s, &bare), x};
}

json_t *tune_delivered(const struct tune_search *s, const struct experiment *x)
{
    const struct operation *op = operation_of_experiment(x);
    json_t *out = op->delivers != NULL ? op->delivers(x, &x->footprint) : json_object();

    for (uint32_t i = 0; i < s->t.cli->n_across; i++)
        json_object_del(out, s->t.cli->across[i]);
    return out;
}

/* "it delivers rows bf16 instead of fp8"; false: it delivers the same. */
static bool delivers_other(const struct tune_search *s, const struct experiment *x,
                           char why[CLI_FAILURE])
{
    json_auto_t *now = tune_delivered(s, x);
    const char *key;
    json_t *value;

    json_object_foreach(now, key, value)
    {
        const json_t *was = json_object_get(s->delivers, key);
        text_auto a = {0}, b = {0};

        if (json_equal(value, was))
            continue;
        json_write(&a, value, JSON_ENCODE_ANY);
        json_write(&b, was, JSON_ENCODE_ANY);
        snprintf(why, CLI_FAILURE,
                 "it delivers other outputs (%s %s, not %s); --across %s tries it", key, a.data,
                 b.data != NULL ? b.data : "null", key);
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

/* --algorithms: the file's first run by another algorithm, which gets what both have. */
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
    if (runs != NULL)
        add_base(s, name, runs->run[0].x);
    else
        json_array_append_new(s->t.not_tried, json_object_of("setting", json_text(name), "why",
                                                             json_text(why), NULL));
    return EPA_OK;
}

enum epa_status tune_read_bases(struct tune_search *s)
{
    const struct cli *cli = s->t.cli;
    const struct runs *runs = tune_read_runs(s, NULL, NULL, 0, NULL);
    json_auto_t *first = NULL;

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
        first = first != NULL ? first : json_incref(shape);
        if (!json_equal(first, shape))
            epa_fail(&s->err, EPA_ERR_CONFIG,
                     "%s: '%s' has another task than '%s': tune takes one problem, by several "
                     "algorithms if you like; --only picks runs, --dry-run of bench lists them",
                     cli->arg[0], run->label, runs->run[0].label);
        add_base(s, run->label, run->x);
        json_decref(shape);
    }
    if (s->n_bases == 0 && s->err.status == EPA_OK)
        epa_fail(&s->err, EPA_ERR_UNSUPPORTED, "%s: no run of it can run here", cli->arg[0]);
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
                                      uint32_t n, const struct tune_setting *parent,
                                      const char *change, uint32_t pass)
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
            return NULL;
    runs = tune_read_runs(s, s->base[base].text, set, n, why);
    if (runs == NULL || delivers_other(s, runs->run[0].x, why) || t->n == TUNE_SETTINGS) {
        if (pass == 1 && change != NULL)
            json_array_append_new(t->not_tried, json_object_of("setting", json_text(name.data),
                                                               "why", json_text(why), NULL));
        return NULL;
    }
    out = t->setting[t->n++] = arena_alloc(t->arena, sizeof(*out));
    *out = (struct tune_setting){.base = base,
                                 .n = n,
                                 .name = arena_strndup(t->arena, name.data, name.bytes),
                                 .parent = parent,
                                 .change = change,
                                 .x = runs->run[0].x,
                                 .log_ratio = arena_alloc(t->arena, TUNE_ROUNDS * sizeof(double)),
                                 .ns = arena_alloc(t->arena, TUNE_ROUNDS * sizeof(double)),
                                 .pass = pass};
    out->set = arena_alloc(t->arena, (n + 1) * sizeof(*out->set));
    memcpy(out->set, set, n * sizeof(*set));
    return out;
}

/* Whether that change alone was much slower than what it was made to. */
static bool is_hopeless(const struct tune_search *s, uint32_t base, const char *change)
{
    for (uint32_t i = 0; i < s->t.n; i++) {
        const struct tune_setting *x = s->t.setting[i];

        if (x->base == base && x->n == 1 && x->pass == 1 && strcmp(x->set[0], change) == 0)
            return x->rounds == 0 || tune_ratio(x, 0) - tune_ratio(x->parent, 0) > HOPELESS;
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
    const struct epa_backend_plugin *backend = (const void *)x->backend.plugin;
    bool on_gpus = (backend->memory & EPA_MEMORY_CUDA) != 0;

    for (const struct section *of = experiment_sections; of->name != NULL; of++) {
        const struct chosen *chosen = (const void *)((const char *)x + of->offset);
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
                if (strcmp(value.data, now.data) != 0 &&
                    (pass == 1 || !is_hopeless(s, from->base, change)))
                    one = tune_add_setting(s, from->base, set,
                                           tune_merge(s, from->base, set, from->n, change), from,
                                           change, pass);
                if (one != NULL)
                    list[(*n)++] = one;
                text_free(&value);
            }
        }
    }
}
