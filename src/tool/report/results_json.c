/* Reads results with jansson: their texts, samples and keys are copied into structs. */
#include "report/results_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "op/op.h"
#include "report/figures_json.h"
#include "report/result_parts.h"

enum { HEAD = 256 }; /* a document of epa2a names its program in these first bytes */

/* Returns a copy of the text at a path, "" for another type. */
static const char *copy_text_at(const struct results *r, const json_t *from, const char *path)
{
    return arena_printf(r->arena, "%s", json_text_at(from, path));
}

/* ---- keys ---- */

static void add_key_value(struct key_list *out, const char *path, const json_t *value)
{
    text_auto shown = {0};

    json_write(&shown, value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_DIGITS);
    key_list_add(out, path, json_is_string(value) ? json_string_value(value) : shown.data,
                 shown.data);
}

/* Adds the values below an object with their paths, "moe.hidden", or a value of another type. */
static void add_values(struct key_list *out, const char *path, const json_t *from)
{
    for (struct json_walk it = {json_is_object(from) ? from : NULL}; json_next(&it);) {
        char below[256];

        snprintf(below, sizeof(below), "%s%s%s", path, *path == '\0' ? "" : ".", it.key);
        add_values(out, below, it.value);
    }
    if (from != NULL && !json_is_object(from))
        add_key_value(out, path, from);
}

static void read_keys(const struct results *r, const json_t *from, struct results_run *to)
{
    static const char *const others[] = {"timing", "plugins", "world.launcher", "world.started_by"};
    struct key_list key = {.arena = r->arena}, fact = {.arena = r->arena};
    const json_t *x = json_object_get(from, "experiment"), *m = json_object_get(from, "machine");

    add_values(&key, "", json_is_object(x) ? x : NULL);
    add_values(&fact, "", json_is_object(m) ? m : NULL);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        add_values(&fact, others[i], json_at(from, others[i]));
    to->key = key.key;
    to->n_keys = key.n;
    to->fact = fact.key;
    to->n_facts = fact.n;
}

static void read_machine(const struct results *r, const json_t *from, struct results_machine *to)
{
    *to = (struct results_machine){.host = copy_text_at(r, from, "host"),
                                   .version = copy_text_at(r, from, "build.version")};
}

/* Returns the notes of the user as text. */
static const char *read_context(const struct results *r, const json_t *from)
{
    text_auto out = {0};

    for (struct json_walk it = {from}; json_next(&it);) {
        const char *words = json_string_value(it.value);

        text_add(&out, "%s%s=%s", out.bytes == 0 ? "" : ", ", it.key, words == NULL ? "?" : words);
    }
    if (out.bytes == 0)
        text_add(&out, "none");
    return arena_printf(r->arena, "%s", text_clean(out.data));
}

static void read_delivers(const struct results *r, const json_t *from, struct results_run *to)
{
    struct op_property *out = arena_alloc(r->arena, json_object_size(from) * sizeof(*out));
    struct key_list value = {.arena = r->arena};

    to->delivers = out;
    to->has_delivers = json_is_object(from);
    for (struct json_walk it = {to->has_delivers ? from : NULL}; json_next(&it);) {
        add_key_value(&value, it.key, it.value);
        out[to->n_delivers++] = (struct op_property){
            .name = value.key[value.n - 1].path,
            .value = json_is_null(it.value) ? NULL : value.key[value.n - 1].value,
            .is_flag = json_is_boolean(it.value)};
    }
}

/* ---- runs ---- */

/* Returns a count; 0: unknown. */
static uint64_t count_at(const json_t *from, const char *path)
{
    return (uint64_t)json_integer_value(json_at(from, path));
}

/* Reads the times of ranks. */
static void read_ranks(const struct results *r, const json_t *from, struct run_stage *to)
{
    to->rank = arena_alloc(r->arena, json_array_size(from) * sizeof(*to->rank));
    for (struct json_walk it = {from}; json_next(&it);)
        to->rank[to->n_ranks++] = (struct stats){.min = json_number_at(it.value, "min_ns"),
                                                 .median = json_number_at(it.value, "median_ns"),
                                                 .p95 = json_number_at(it.value, "p95_ns"),
                                                 .max = json_number_at(it.value, "max_ns")};
}

static enum epa_status read_stage(const struct results *r, const char *path, const json_t *from,
                                  struct run_stage *to, struct epa_error *err)
{
    const json_t *samples = json_object_get(from, "samples_ns");

    to->name = copy_text_at(r, from, "name");
    if (to->name[0] == '\0' || !json_is_array(samples))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: a stage without name or samples_ns; was it written by epa2a "
                        "bench --json?",
                        path);
    figures_read(from, &to->figures);
    to->beaten = json_is_true(json_object_get(from, "beaten"));
    read_ranks(r, json_object_get(from, "ranks"), to);
    to->sample = arena_alloc(r->arena, json_array_size(samples) * sizeof(*to->sample));
    for (struct json_walk it = {samples}; json_next(&it);) {
        double ns = json_number_value(it.value);

        if (!json_is_number(it.value) || !(ns >= 0)) /* 0: below one step of the clock */
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: sample %llu of stage %s is not a time of 0 or more", path,
                            (unsigned long long)(it.n - 1), to->name);
        to->sample[to->n++] = ns;
    }
    return EPA_OK;
}

/* Reads the times of a run in the summary of its document. */
static void read_summary(const json_t *document, struct results_run *to)
{
    static const char *const key[] = {[ROW_DISPATCH] = "dispatch_ns",
                                      [ROW_EXPERTS] = "experts_ns",
                                      [ROW_COMBINE] = "combine_ns",
                                      [ROW_TOTAL] = "total_ns"};
    bool alone = json_array_size(json_object_get(document, "results")) == 1;

    for (uint32_t i = 0; i < ROW_TIMES; i++)
        to->time_ns[i] = alone ? json_number_at(json_at(document, "summary.0"), key[i]) : NAN;
}

/* Reads figures of the whole run; the stages are read before. */
static void read_figures(const json_t *from, struct results_run *to)
{
    struct run_figures *f = &to->figures;
    double flops_ns = json_number_at(from, "compute.limit.flops_ns");

    *f = (struct run_figures){.operation = to->operation,
                              .stage = to->stage,
                              .n_stages = to->n_stages,
                              .partial = json_is_object(json_object_get(from, "partial")),
                              .status = to->status,
                              .exit_code =
                                  (int)json_integer_value(json_object_get(from, "exit_code"))};
    f->compute.flops = fmax(json_number_at(from, "compute.flops"), 0);
    f->compute.flops_ns = flops_ns;
    f->stop.reason = stop_reason(json_text_at(from, "stop.reason"));
    f->stop.samples = count_at(from, "stop.samples");
    f->stop.ci95 = json_number_at(from, "stop.ci95");
    f->verify.iterations = count_at(from, "verify.iterations");
    f->verify.compared = count_at(from, "verify.compared");
    f->verify.wrong = count_at(from, "verify.wrong");
}

static enum epa_status read_run(const struct results *r, const char *path, const json_t *document,
                                const json_t *from, struct results_run *to, struct epa_error *err)
{
    const json_t *stages = json_object_get(from, "stages");
    enum epa_status status = EPA_OK;

    *to = (struct results_run){.path = r->reading,
                               .file = copy_text_at(r, from, "file"),
                               .id = copy_text_at(r, from, "id"),
                               .label = copy_text_at(r, from, "label"),
                               .named = copy_text_at(r, from, "run"),
                               .name = copy_text_at(r, from, "name"),
                               .verb = copy_text_at(r, from, "verb"),
                               .status = copy_text_at(r, from, "status"),
                               .started = copy_text_at(r, from, "started"),
                               .context = read_context(r, json_object_get(from, "context")),
                               .program = copy_text_at(r, from, "source.program"),
                               .clock = copy_text_at(r, from, "source.clock"),
                               .iterations = json_number_at(from, "iterations"),
                               .elapsed_s = json_number_at(from, "elapsed_s"),
                               .ranks = json_number_at(from, "world.size")};
    if (to->label[0] == '\0')
        to->label = to->name;
    to->imported = json_object_get(from, "source") != NULL;
    to->fault = json_is_object(json_object_get(from, "fault"));
    /* A run that missed its expectations still has valid measurements. */
    to->ok = strcmp(to->status, "ok") == 0 || strcmp(to->status, "missed") == 0;
    read_keys(r, from, to);
    results_find_operation(to, json_text_at(from, "operation"));
    read_machine(r, json_object_get(from, "machine"), &to->machine);
    read_delivers(r, json_object_get(from, "delivers"), to);
    to->stage = arena_alloc(r->arena, json_array_size(stages) * sizeof(*to->stage));
    for (struct json_walk stage = {stages}; json_next(&stage);) {
        if (status == EPA_OK)
            status = read_stage(r, path, stage.value, &to->stage[to->n_stages++], err);
    }
    read_figures(from, to);
    read_summary(document, to);
    if (r->keeps_records) {
        text_auto whole = {0};

        json_write(&whole, from, JSON_COMPACT | JSON_DIGITS);
        to->recorded = arena_strndup(r->arena, whole.data, whole.bytes);
    }
    return status;
}

/* Adds the runs of one document. */
static enum epa_status read_document(struct results *r, const char *path, const json_t *root,
                                     struct epa_error *err)
{
    const json_t *runs = json_object_get(root, "results");
    json_int_t schema = json_integer_value(json_object_get(root, "schema"));
    enum epa_status status = EPA_OK;

    if (r->order == NULL) {
        r->order = copy_text_at(r, root, "order");
        r->order_seed = (uint64_t)json_integer_value(json_object_get(root, "order_seed"));
    }
    if (strcmp(json_text_at(root, "program"), "epa2a") != 0 || !json_is_array(runs))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: not results that epa2a --json wrote", path);
    if (schema != RESULT_SCHEMA)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: schema %lld is not known; this program reads %d",
                        path, (long long)schema, RESULT_SCHEMA);
    for (struct json_walk run = {runs}; json_next(&run);) {
        if (status == EPA_OK)
            status = read_run(r, path, root, run.value, results_append(r), err);
    }
    return status;
}

/* Parses a document, or several from --json-lines. */
static enum epa_status parse_documents(const char *path, const struct text *text,
                                       struct results *out, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (size_t at = 0; status == EPA_OK && (at == 0 || at < text->bytes);) {
        json_error_t why;
        json_auto_t *root = json_loadb(text->data + at, text->bytes - at,
                                       JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &why);

        for (size_t i = 0; root == NULL && i < at; i++)
            why.line += text->data[i] == '\n';
        if (root == NULL)
            return epa_fail(err, EPA_ERR_CONFIG, "%s:%d:%d: error: not JSON: %s", path, why.line,
                            why.column, why.text);
        status = read_document(out, path, root, err);
        at += (size_t)why.position;
        at += strspn(text->data + at, " \t\r\n");
        at += text_mark_bytes(text->data + at, text->bytes - at); /* of an appended file */
    }
    return status;
}

enum epa_status results_read(const char *path, struct results *out, struct epa_error *err)
{
    text_auto text = {0}, file = {0};
    struct stat at;
    bool folder = stat(path, &at) == 0 && S_ISDIR(at.st_mode);
    enum epa_status status;

    results_begin(out, path);
    text_add(&file, "%s%s", path, folder ? "/results.jsonl" : "");
    status = file_read_text(file.data, FILE_MOST, &text, err);
    while (folder && text.bytes > 0 && text.data[text.bytes - 1] != '\n')
        text.data[--text.bytes] = '\0';
    if (status != EPA_OK || (folder && text.bytes == 0))
        return status;
    return parse_documents(file.data, &text, out, err);
}

enum epa_status results_read_all(const char *const *path, uint32_t n, struct results *out,
                                 struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < n && status == EPA_OK; i++)
        status = results_read(path[i], out, err);
    if (status == EPA_OK)
        results_warn_failed(out);
    return status;
}

json_t *results_recorded(const struct results_run *run)
{
    return json_loads(run->recorded, 0, NULL);
}

bool results_are_text(const struct text *text)
{
    const char *begin = text->data + strspn(text->data, " \t\r\n");
    char head[HEAD + 1];
    json_auto_t *root = NULL;

    if (*begin != '{')
        return false;
    root = json_loads(begin, JSON_DISABLE_EOF_CHECK, NULL);
    if (root != NULL)
        return json_is_array(json_object_get(root, "results"));
    snprintf(head, sizeof(head), "%s", begin);
    return strstr(head, "\"program\": \"epa2a\"") != NULL ||
           strstr(head, "\"program\":\"epa2a\"") != NULL;
}
