/* Results, read by jansson. Strings stay where jansson has them; samples are
 * copied, as they are computed with. */
#include "report/results.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "report/batch_index.h"

enum { SCHEMA = 1 };

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}

/* ---- samples ---- */

static enum epa_status read_stage(const char *path, const json_t *from, struct results_stage *to,
                                  struct epa_error *err)
{
    const json_t *samples = json_object_get(from, "samples_ns"), *value;
    size_t i;

    to->name = text_of(from, "name");
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

static enum epa_status read_run(const char *path, const json_t *from, struct results_run *to,
                                struct epa_error *err)
{
    const json_t *stages = json_object_get(from, "stages"), *stage;
    enum epa_status status = EPA_OK;
    size_t i;

    *to = (struct results_run){.id = text_of(from, "id"),
                               .label = text_of(from, "label"),
                               .name = text_of(from, "name"),
                               .verb = text_of(from, "verb"),
                               .status = text_of(from, "status"),
                               .json = from};
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

    if (strcmp(text_of(root, "program"), "epa2a") != 0 || !json_is_array(runs))
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
            status = read_run(path, run, &r->run[r->n++], err);
    }
    if (r->n > 0)
        r->version = text_of(json_object_get(json_object_get(r->run[0].json, "machine"), "build"),
                             "version");
    return status;
}

/* A document, or several, as --json-lines writes them. */
static enum epa_status read_file(struct results *r, const char *path, struct epa_error *err)
{
    json_error_t why;
    FILE *file = fopen(path, "re");
    enum epa_status status = EPA_OK;
    int next = 0;

    if (file == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    while (status == EPA_OK && next != EOF) {
        json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &why);

        if (root == NULL)
            status = epa_fail(err, EPA_ERR_CONFIG, "%s:%d:%d: error: not JSON: %s", path, why.line,
                              why.column, why.text);
        else if (json_array_append_new(r->root, root) != 0)
            status = epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for results", path);
        else
            status = read_document(r, path, root, err);
        do
            next = getc(file);
        while (next == ' ' || next == '\n' || next == '\r' || next == '\t');
        if (next != EOF)
            ungetc(next, file);
    }
    fclose(file);
    return status;
}

/* Results of all runs that have ended, in the order of the batch. */
static enum epa_status read_folder(struct results *r, const char *path, struct epa_error *err)
{
    struct batch_index index;
    enum epa_status status = EPA_OK;
    char *file = NULL;

    if (asprintf(&file, "%s/index.json", path) < 0)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for a path", path);
    status = batch_index_read(file, &index, err);
    free(file);
    for (uint32_t i = 0; i < index.n && status == EPA_OK; i++) {
        const struct index_run *run = &index.run[i];

        if (run->result[0] == '\0') {
            r->missing++;
            continue;
        }
        if (asprintf(&file, "%s/%s", path, run->result) < 0) {
            status = epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for a path", path);
        } else {
            status = read_file(r, file, err);
            free(file);
        }
    }
    batch_index_finish(&index);
    return status;
}

enum epa_status results_read(const char *path, struct results *out, struct epa_error *err)
{
    struct stat at;
    enum epa_status status;

    *out = (struct results){.path = path, .version = "", .root = json_array()};
    if (out->root == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for results", path);
    if (stat(path, &at) == 0 && S_ISDIR(at.st_mode))
        status = read_folder(out, path, err);
    else
        status = read_file(out, path, err);
    if (status != EPA_OK)
        results_free(out);
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

/* Keys that are not of this part, and those that may differ without saying anything. */
static bool is_free(enum results_part part, const char *key)
{
    static const char *const means[] = {"algorithm", "transport", "backend", "launcher", NULL};
    static const char *const length[] = {
        "name",           "seed",           "timeout",    "bench.iterations",
        "bench.warmup",   "bench.check",    "run",        "verify",
        "profile",        "expect",         "bench.ci95", "bench.min_iterations",
        "bench.min_time", "bench.max_time", NULL};
    static const char *const passing[] = {"host",
                                          "kernel",
                                          "load_average",
                                          "timer_ns",
                                          "memory_bytes",
                                          "build.version",
                                          "build.compiler",
                                          "build.libc",
                                          "build.plugin_abi",
                                          "build.git",
                                          "environment",
                                          "links",
                                          NULL};

    if (part == RESULTS_MACHINE)
        return starts_with_one_of(key, passing);
    if (part == RESULTS_MEANS)
        return !starts_with_one_of(key, means);
    return starts_with_one_of(key, means) || starts_with_one_of(key, length);
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
    for (char *c = out->data; *c != 0; c++) /* a terminal shows it */
        *c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c;
}
