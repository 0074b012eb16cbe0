/* Results, read by jansson. Strings stay where jansson has them; samples are copied, as they are
 * computed with. */
#include "report/results.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "base/file.h"
#include "base/json.h"
#include "op/op.h"

enum { SCHEMA = 1 };

static enum epa_status read_stage(const char *path, const json_t *from, struct results_stage *to,
                                  struct epa_error *err)
{
    const json_t *samples = json_object_get(from, "samples_ns"), *value;
    size_t i;

    to->name = json_text_at(from, "name");
    if (to->name[0] == '\0' || !json_is_array(samples))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: a stage without name or samples_ns; was it written by epa2a "
                        "bench --json?",
                        path);
    to->sample = calloc(json_array_size(samples) + 1, sizeof(*to->sample));
    if (to->sample == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for samples", path);
    json_array_foreach(samples, i, value)
    {
        double ns = json_number_value(value);

        if (!(ns > 0))
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: sample %llu of stage %s is not a time above 0", path,
                            (unsigned long long)i, to->name);
        to->sample[to->n++] = ns;
    }
    return EPA_OK;
}

static enum epa_status read_run(const char *path, const json_t *document, const json_t *from,
                                struct results_run *to, struct epa_error *err)
{
    const json_t *stages = json_object_get(from, "stages"), *stage;
    enum epa_status status = EPA_OK;
    size_t i;

    *to = (struct results_run){.id = json_text_at(from, "id"),
                               .label = json_text_at(from, "label"),
                               .named = json_text_at(from, "run"),
                               .name = json_text_at(from, "name"),
                               .verb = json_text_at(from, "verb"),
                               .status = json_text_at(from, "status"),
                               .json = from,
                               .document = document};
    if (to->label[0] == '\0')
        to->label = to->name;
    to->fault = json_is_object(json_object_get(from, "fault"));
    /* What missed its expectations was measured as well as any other. */
    to->ok = strcmp(to->status, "ok") == 0 || strcmp(to->status, "missed") == 0;
    to->stage = calloc(json_array_size(stages) + 1, sizeof(*to->stage));
    if (to->stage == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for stages", path);
    json_array_foreach(stages, i, stage)
    {
        if (status == EPA_OK)
            status = read_stage(path, stage, &to->stage[to->n_stages++], err);
    }
    return status;
}

/* Adds the runs of one document, which `r` owns by now. */
static enum epa_status read_document(struct results *r, const char *path, const json_t *root,
                                     struct epa_error *err)
{
    const json_t *runs = json_object_get(root, "results"), *run;
    json_int_t schema = json_integer_value(json_object_get(root, "schema"));
    enum epa_status status = EPA_OK;
    struct results_run *grown;
    size_t i;

    if (strcmp(json_text_at(root, "program"), "epa2a") != 0 || !json_is_array(runs))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: not results that epa2a --json wrote", path);
    if (schema != SCHEMA)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: schema %lld is not known; this program reads %d",
                        path, (long long)schema, SCHEMA);
    grown = realloc(r->run, (r->n + json_array_size(runs) + 1) * sizeof(*r->run));
    if (grown == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for runs", path);
    r->run = grown;
    json_array_foreach(runs, i, run)
    {
        if (status == EPA_OK)
            status = read_run(path, root, run, &r->run[r->n++], err);
    }
    return status;
}

/* A document, or several, as --json-lines writes them. */
enum epa_status results_parse(const char *path, const struct text *text, struct results *out,
                              struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    *out = (struct results){.path = path, .root = json_array()};
    for (size_t at = 0; status == EPA_OK;) {
        json_error_t why;
        json_t *root = json_loadb(text->data + at, text->bytes - at,
                                  JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &why);

        for (size_t i = 0; root == NULL && i < at; i++)
            why.line += text->data[i] == '\n';
        if (root == NULL)
            status = epa_fail(err, EPA_ERR_CONFIG, "%s:%d:%d: error: not JSON: %s", path, why.line,
                              why.column, why.text);
        else if (json_array_append_new(out->root, root) != 0)
            status = epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for results", path);
        else
            status = read_document(out, path, root, err);
        at += root != NULL ? (size_t)why.position : 0;
        at += text->data != NULL ? strspn(text->data + at, " \t\r\n") : 0;
        if (at >= text->bytes)
            break;
    }
    if (status != EPA_OK)
        results_free(out);
    return status;
}

enum epa_status results_read(const char *path, struct results *out, struct epa_error *err)
{
    struct text text = {0};
    struct stat at;
    char *file = NULL;
    bool folder = stat(path, &at) == 0 && S_ISDIR(at.st_mode);
    enum epa_status status;

    *out = (struct results){0};
    if (folder && asprintf(&file, "%s/results.jsonl", path) < 0)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for a path", path);
    status = file_read(folder ? file : path, &text, err);
    while (folder && text.bytes > 0 && text.data[text.bytes - 1] != '\n')
        text.data[--text.bytes] = '\0';
    if (status == EPA_OK && folder && text.bytes == 0)
        *out = (struct results){.path = path, .root = json_array()};
    else if (status == EPA_OK)
        status = results_parse(folder ? file : path, &text, out, err);
    out->path = path;
    text_free(&text);
    free(file);
    return status;
}

static void free_run(struct results_run *run)
{
    for (uint32_t k = 0; k < run->n_stages; k++)
        free(run->stage[k].sample);
    free(run->stage);
}

void results_drop(struct results *r, uint32_t i)
{
    free_run(&r->run[i]);
    memmove(&r->run[i], &r->run[i + 1], (--r->n - i) * sizeof(*r->run));
}

void results_free(struct results *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        free_run(&r->run[i]);
    free(r->run);
    json_decref(r->root);
    *r = (struct results){0};
}

/* ---- what differs ---- */

static bool starts_with_one_of(const char *key, const char *const *list)
{
    for (; *list != NULL; list++) {
        size_t bytes = strlen(*list);

        if (strncmp(key, *list, bytes) == 0 && (key[bytes] == '\0' || key[bytes] == '.'))
            return true;
    }
    return false;
}

bool results_picked(const struct results_run *run, const char *const *only, uint32_t n_only)
{
    for (uint32_t i = 0; i < n_only; i++)
        if (fnmatch(only[i], run->label, 0) == 0 || strcmp(only[i], run->label) == 0 ||
            fnmatch(only[i], run->id, 0) == 0)
            return true;
    return n_only == 0;
}

const struct results_stage *results_stage(const struct results_run *run, const char *name)
{
    for (uint32_t i = 0; i < run->n_stages; i++)
        if (strcmp(run->stage[i].name, name) == 0 && run->stage[i].n > 0)
            return &run->stage[i];
    return NULL;
}

const struct results_stage *results_total(const struct results_run *run)
{
    static const char *const usual[] = {"total", "wall", "latency"};
    const struct results_stage *stage = NULL;

    for (size_t i = 0; i < 3 && stage == NULL; i++)
        stage = results_stage(run, usual[i]);
    return stage;
}

double results_size(const struct results_run *run, const struct operation **out)
{
    double size = 0;

    for (uint32_t o = 0; operation_at(o) != NULL && !(size > 0); o++) {
        const char *key = operation_at(o)->size_key, *dot = strchr(key, '.');
        const json_t *section =
            json_object_getn(json_object_get(run->json, "experiment"), key, (size_t)(dot - key));

        *out = operation_at(o);
        size = json_number_value(json_object_get(section, dot + 1));
    }
    return size;
}

size_t results_label_bytes(const char *label)
{
    const char *hash = strrchr(label, '#');
    bool number =
        hash != NULL && hash[1] != '\0' && strspn(hash + 1, "0123456789") == strlen(hash + 1);
    size_t bytes = number ? (size_t)(hash - label) : strlen(label);

    while (bytes > 0 && label[bytes - 1] == ' ')
        bytes--;
    return bytes;
}

void results_tell_failed(const struct results *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (!r->run[i].ok)
            fprintf(stderr, "epa2a: %swarning:%s %s: '%s' ended with status %s and is left out\n",
                    colour_on(stderr, COLOUR_WARNING), colour_off(stderr), r->path, r->run[i].label,
                    r->run[i].status);
}

enum epa_status results_read_all(const char *const *path, uint32_t n, struct results *out,
                                 uint32_t *n_read, struct epa_error *err)
{
    for (*n_read = 0; *n_read < n; ++*n_read) {
        enum epa_status status = results_read(path[*n_read], &out[*n_read], err);

        if (status != EPA_OK)
            return status;
    }
    for (uint32_t i = 0; i < n; i++)
        results_tell_failed(&out[i]);
    return EPA_OK;
}

bool results_key_is_length(const char *key)
{
    static const char *const length[] = {"name",
                                         "seed",
                                         "timeout",
                                         "bench.iterations",
                                         "bench.warmup",
                                         "run",
                                         "bench.ci95",
                                         "bench.min_iterations",
                                         "bench.min_time",
                                         "bench.max_time",
                                         "profile",
                                         "expect",
                                         "bench.check",
                                         "verify",
                                         NULL};

    return starts_with_one_of(key, length);
}

/* Keys that are not of this part, and those that may differ without saying anything. */
static bool is_free(enum results_part part, const char *key)
{
    static const char *const means[] = {"algorithm", "transport", "backend", "launcher", NULL};
    static const char *const passing[] = {"host",
                                          "kernel",
                                          "load_average",
                                          "timer_ns",
                                          "memory_bytes",
                                          "build.version",
                                          "build.git",
                                          "build.compiler",
                                          "build.libc",
                                          "build.plugin_abi",
                                          "environment",
                                          "links",
                                          NULL};

    if (part == RESULTS_MACHINE)
        return starts_with_one_of(key, passing);
    if (part == RESULTS_MEANS)
        return !starts_with_one_of(key, means);
    return starts_with_one_of(key, means) || results_key_is_length(key);
}

bool results_key_is_shape(const char *key)
{
    return !is_free(RESULTS_SHAPE, key);
}

static void print_value(const json_t *value, char *out, size_t room)
{
    char *text = value == NULL ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

    snprintf(out, room, "%s", text == NULL ? "absent" : text);
    free(text);
}

static bool differ(const json_t *a, const json_t *b, enum results_part part, const char *prefix,
                   char *what, uint32_t room);

static bool differ_at(const json_t *x, const json_t *y, enum results_part part, const char *prefix,
                      const char *key, char *what, uint32_t room)
{
    char path[256], left[100], right[100];

    snprintf(path, sizeof(path), "%s%s%s", prefix, prefix[0] == '\0' ? "" : ".", key);
    if (is_free(part, path) || json_equal(x, y))
        return false;
    if (json_is_object(x) && json_is_object(y))
        return differ(x, y, part, path, what, room);
    print_value(x, left, sizeof(left));
    print_value(y, right, sizeof(right));
    snprintf(what, room, "%s: %s, and %s", path, left, right);
    return true;
}

static bool differ(const json_t *a, const json_t *b, enum results_part part, const char *prefix,
                   char *what, uint32_t room)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)a, key, value)
    {
        if (differ_at(value, json_object_get(b, key), part, prefix, key, what, room))
            return true;
    }
    json_object_foreach((json_t *)b, key, value)
    {
        if (json_object_get(a, key) == NULL &&
            differ_at(NULL, value, part, prefix, key, what, room))
            return true;
    }
    return false;
}

bool results_differ(const struct results_run *a, const struct results_run *b,
                    enum results_part part, char *what, uint32_t room)
{
    const char *key = part == RESULTS_MACHINE ? "machine" : "experiment";

    return differ(json_object_get(a->json, key), json_object_get(b->json, key), part, "", what,
                  room);
}

/* Of what differ() looks at, all of it. */
static json_t *kept(const json_t *from, enum results_part part, const char *prefix,
                    const char *without)
{
    json_t *out = json_object(), *value;
    const char *key;

    json_object_foreach((json_t *)from, key, value)
    {
        char path[256];

        snprintf(path, sizeof(path), "%s%s%s", prefix, prefix[0] == '\0' ? "" : ".", key);
        if (is_free(part, path) || strcmp(path, without) == 0)
            continue;
        json_put(&out, key,
                 json_is_object(value) ? kept(value, part, path, without) : json_incref(value));
    }
    return out;
}

void results_question(const struct results_run *run, const char *const *across, uint32_t n,
                      struct text *out)
{
    const struct operation *op;
    const char *size = results_size(run, &op) > 0 ? op->size_key : "";
    const json_t *timing = json_object_get(run->json, "timing");
    json_t *delivers = json_copy(json_object_get(run->json, "delivers"));

    for (uint32_t i = 0; i < n; i++)
        json_object_del(delivers, across[i]);
    (void)json_write(
        out,
        json_object_of("verb", json_text(run->verb), "shape",
                       kept(json_object_get(run->json, "experiment"), RESULTS_SHAPE, "", size),
                       "machine",
                       kept(json_object_get(run->json, "machine"), RESULTS_MACHINE, "", ""),
                       "timing", timing != NULL ? json_deep_copy(timing) : json_null(), "delivers",
                       delivers != NULL ? delivers : json_null(), NULL),
        JSON_COMPACT | JSON_SORT_KEYS);
}

/* ---- names ---- */

static bool is_chosen(const char *key)
{
    return strcmp(key, "name") == 0 || strcmp(key, "kind") == 0;
}

/* What says nothing of how a run differs, or is said anyway. */
static bool is_said(const struct results_run *run, const char *key)
{
    bool plugins = run->named[0] == '\0';

    for (uint32_t i = 0; operation_at(i) != NULL; i++)
        if (strcmp(key, operation_at(i)->size_key) == 0)
            return true;
    return results_key_is_length(key) || strcmp(key, "version") == 0 ||
           (plugins && (strcmp(key, "algorithm.name") == 0 || strcmp(key, "transport.name") == 0));
}

/* Runs of one name are looked at alone; and an option beside those of the same plugin or kind, as what
 * others do not have is no difference. */
static char *slot_of(const struct results_run *run, const json_t *section, const char *path,
                     const char *key)
{
    bool chosen = key == NULL || is_chosen(key);
    char *slot;

    return asprintf(&slot, "%s\n%s\n%s\n%s", path, run->named,
                    chosen ? "" : json_text_at(section, "name"),
                    chosen ? "" : json_text_at(section, "kind")) < 0
               ? NULL
               : slot;
}

/* Calls `fn` for each value of the experiment: of a section, or one at the top, without a key. */
static void visit_values(const struct results_run *run,
                         void (*fn)(void *arg, const char *slot, const char *path,
                                    const json_t *value),
                         void *arg)
{
    const char *section, *key;
    json_t *value, *part;

    json_object_foreach(json_object_get(run->json, "experiment"), section, value)
    {
        char path[256];
        char *slot = json_is_object(value) || is_said(run, section)
                         ? NULL
                         : slot_of(run, NULL, section, NULL);

        if (slot != NULL)
            fn(arg, slot, section, value);
        free(slot);
        json_object_foreach(value, key, part)
        {
            snprintf(path, sizeof(path), "%s.%s", section, key);
            slot = is_said(run, path) ? NULL : slot_of(run, value, path, key);
            if (is_chosen(key))
                path[strlen(section)] = '\0';
            if (slot != NULL)
                fn(arg, slot, path, part);
            free(slot);
        }
    }
}

/* How many runs have what `slot` stands for. */
static void count_slot(struct results_names *names, const char *slot)
{
    json_int_t n = json_integer_value(json_object_get(names->count, slot));

    json_object_set_new(names->count, slot, json_integer(n + 1));
}

static void note_value(void *arg, const char *slot, const char *path, const json_t *value)
{
    struct results_names *names = arg;
    const json_t *before = json_object_get(names->seen, slot);

    (void)path;
    count_slot(names, slot);
    if (before == NULL)
        json_object_set(names->seen, slot, (json_t *)value);
    else if (!json_equal(before, value))
        json_object_set_new(names->differ, slot, json_true());
}

void results_names_add(struct results_names *names, const struct results_run *run)
{
    const char *section;
    json_t *value;

    if (names->seen == NULL) {
        names->seen = json_object();
        names->differ = json_object();
        names->count = json_object();
    }
    json_object_foreach(json_object_get(run->json, "experiment"), section, value)
    {
        char *slot = slot_of(run, value, section, "");

        if (slot != NULL && json_is_object(value))
            count_slot(names, slot);
        free(slot);
    }
    visit_values(run, note_value, names);
}

struct naming {
    const struct results_names *names;
    const struct results_run *run;
    struct text *out;
};

/* Whether others of its plugin have another value, or none. */
static bool tells_apart(const struct naming *naming, const char *slot, const char *path)
{
    const json_t *x = json_object_get(naming->run->json, "experiment"),
                 *count = naming->names->count;
    char section[256], *all;
    bool some = false;

    snprintf(section, sizeof(section), "%.*s", (int)strcspn(path, "."), path);
    all = slot_of(naming->run, json_object_get(x, section), section, "");
    if (all != NULL && strchr(path, '.') != NULL)
        some = json_integer_value(json_object_get(count, slot)) !=
               json_integer_value(json_object_get(count, all));
    free(all);
    return some || json_object_get(naming->names->differ, slot) != NULL;
}

static void add_value(void *arg, const char *slot, const char *path, const json_t *value)
{
    const struct naming *naming = arg;
    char *dump;

    if (!tells_apart(naming, slot, path))
        return;
    dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    text_add(naming->out, " %s=%s", path, json_is_string(value) ? json_string_value(value) : dump);
    free(dump);
}

void results_name(const struct results_names *names, const struct results_run *run,
                  struct text *out)
{
    const json_t *x = json_object_get(run->json, "experiment");
    const char *algorithm = json_text_at(json_object_get(x, "algorithm"), "name");
    const char *transport = json_text_at(json_object_get(x, "transport"), "name");

    if (run->named[0] != '\0')
        text_add(out, "%s", run->named);
    else
        text_add(out, "%s/%s", algorithm[0] != '\0' ? algorithm : "?",
                 transport[0] != '\0' ? transport : "?");
    visit_values(run, add_value, &(struct naming){names, run, out});
    text_clean(out->data);
}

void results_names_free(struct results_names *names)
{
    json_decref(names->seen);
    json_decref(names->differ);
    json_decref(names->count);
    *names = (struct results_names){0};
}

void results_context(const struct results_run *run, struct text *out)
{
    const char *key;
    json_t *value;

    json_object_foreach(json_object_get(run->json, "context"), key, value)
    {
        const char *words = json_string_value(value);

        text_add(out, "%s%s=%s", out->bytes == 0 ? "" : ", ", key, words == NULL ? "?" : words);
    }
    if (out->bytes == 0)
        text_add(out, "none");
    text_clean(out->data);
}
