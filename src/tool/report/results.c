/* Reads results with jansson. Strings belong to the JSON document; samples are copied as
 * doubles. */
#include "report/results.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "op/op.h"
#include "op/operations.h"
#include "report/figures_json.h"
#include "report/result_parts.h"

/* Collectives of other programs, from imported results. */
static const char *const collective_head[] = {"collective", NULL, NULL};
static const struct operation collective = {.name = "collective",
                                            .size_key = "collective.bytes",
                                            .size_label = "bytes",
                                            .head = collective_head,
                                            .unit = "bytes"};

/* ---- keys of experiments and machines ---- */

/* Returns true if a key is one of those words, or below one. */
static bool is_below_one_of(const char *words, const char *key)
{
    for (size_t bytes; *words != '\0'; words += bytes + (words[bytes] == ' ')) {
        bytes = strcspn(words, " ");
        if (strncmp(key, words, bytes) == 0 && (key[bytes] == '\0' || key[bytes] == '.'))
            return true;
    }
    return false;
}

/* Returns true if a key of the experiment, or of the machine, belongs to the part. */
static bool is_of_part(enum results_part part, const char *key)
{
    switch (part) {
    case RESULTS_SHAPE:
        return key_role_of(key) == KEY_TASK;
    case RESULTS_MEANS:
        return key_role_of(key) == KEY_MEANS;
    case RESULTS_MACHINE: /* clocks, power and heat of a GPU vary during its work */
        return !is_below_one_of(
            "device.clock device.memory_clock device.throttle device.power "
            "device.temperature host kernel load_average timer_ns memory_bytes build.version "
            "build.git build.compiler build.libc build.plugin_abi "
            "build.isa_refused environment links",
            key);
    case RESULTS_ALL:
        break;
    }
    return true;
}

static void flatten(const json_t *from, enum results_part part, const char *prefix, json_t *out)
{
    for (struct json_walk it = {json_is_object(from) ? from : NULL}; json_next(&it);) {
        char path[256];

        snprintf(path, sizeof(path), "%s%s%s", prefix, *prefix == '\0' ? "" : ".", it.key);
        if (json_is_object(it.value))
            flatten(it.value, part, path, out);
        else if (is_of_part(part, path))
            json_object_set(out, path, it.value);
    }
}

json_t *results_part(const json_t *experiment, enum results_part part)
{
    json_t *out = json_object();

    flatten(experiment, part, "", out);
    return out;
}

void results_add_value(struct text *out, const json_t *value, bool quoted)
{
    if (json_is_string(value) && !quoted)
        text_add(out, "%s", json_string_value(value));
    else if (value != NULL)
        json_write(out, value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_DIGITS);
    else
        text_add(out, "absent");
}

/* Reads the keys of an experiment or a machine that belong to a part. */
static uint32_t read_keys(const json_t *from, enum results_part part, struct arena *arena,
                          struct results_key **out)
{
    json_auto_t *all = results_part(from, part);
    uint32_t n = 0;

    *out = arena_alloc(arena, json_object_size(all) * sizeof(**out));
    for (struct json_walk it = {all}; json_next(&it);) {
        text_auto value = {0}, shown = {0};

        results_add_value(&value, it.value, false);
        results_add_value(&shown, it.value, true);
        (*out)[n++] = (struct results_key){
            .path = arena_printf(arena, "%s", it.key),
            .value = arena_printf(arena, "%s", value.bytes > 0 ? value.data : ""),
            .shown = arena_printf(arena, "%s", shown.data),
            .is_means = is_of_part(RESULTS_MEANS, it.key)};
    }
    return n;
}

/* ---- reading ---- */

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

    to->name = json_text_at(from, "name");
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

/* Reads the output properties. */
static void read_delivers(const struct results *r, const json_t *from, struct results_run *to)
{
    struct op_property *out = arena_alloc(r->arena, json_object_size(from) * sizeof(*out));

    to->delivers = out;
    for (struct json_walk it = {json_is_object(from) ? from : NULL}; json_next(&it);) {
        text_auto value = {0};

        results_add_value(&value, it.value, false);
        out[to->n_delivers++] = (struct op_property){
            .name = it.key,
            .value = json_is_null(it.value)
                         ? NULL
                         : arena_printf(r->arena, "%s", value.bytes > 0 ? value.data : ""),
            .is_flag = json_is_boolean(it.value)};
    }
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
    struct results_key *key;

    *to = (struct results_run){.path = r->reading,
                               .id = json_text_at(from, "id"),
                               .label = json_text_at(from, "label"),
                               .named = json_text_at(from, "run"),
                               .name = json_text_at(from, "name"),
                               .verb = json_text_at(from, "verb"),
                               .status = json_text_at(from, "status"),
                               .json = from};
    if (to->label[0] == '\0')
        to->label = to->name;
    for (uint32_t o = 0; operation_at(o) != NULL && !(to->size > 0); o++) {
        to->operation = operation_at(o);
        to->size = json_number_at(json_object_get(from, "experiment"), to->operation->size_key);
    }
    for (uint32_t o = 0; operation_at(o) != NULL && !(to->size > 0); o++)
        if (strcmp(operation_at(o)->name, json_text_at(from, "operation")) == 0)
            to->operation = operation_at(o);
    if (json_at(from, "experiment.collective") != NULL) {
        to->operation = &collective;
        to->size = json_number_at(from, "experiment.collective.bytes");
    }
    to->size = to->size > 0 ? to->size : 0;
    to->imported = json_object_get(from, "source") != NULL;
    to->fault = json_is_object(json_object_get(from, "fault"));
    /* A run that missed its expectations still has valid measurements. */
    to->ok = strcmp(to->status, "ok") == 0 || strcmp(to->status, "missed") == 0;
    to->stage = arena_alloc(r->arena, json_array_size(stages) * sizeof(*to->stage));
    for (struct json_walk stage = {stages}; json_next(&stage);) {
        if (status == EPA_OK)
            status = read_stage(r, path, stage.value, &to->stage[to->n_stages++], err);
    }
    read_figures(from, to);
    to->n_keys = read_keys(json_object_get(from, "experiment"), RESULTS_ALL, r->arena, &key);
    to->key = key;
    to->n_facts = read_keys(json_object_get(from, "machine"), RESULTS_MACHINE, r->arena, &key);
    to->fact = key;
    to->iterations = json_number_at(from, "iterations");
    to->elapsed_s = json_number_at(from, "elapsed_s");
    read_summary(document, to);
    read_delivers(r, json_object_get(from, "delivers"), to);
    return status;
}

/* Adds the runs of one document, whose reference is taken. */
static enum epa_status read_document(struct results *r, const char *path, json_t *root,
                                     struct epa_error *err)
{
    const json_t *runs = json_object_get(root, "results");
    json_int_t schema = json_integer_value(json_object_get(root, "schema"));
    enum epa_status status = EPA_OK;

    json_array_append_new(r->root, root);
    if (strcmp(json_text_at(root, "program"), "epa2a") != 0 || !json_is_array(runs))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: not results that epa2a --json wrote", path);
    if (schema != RESULT_SCHEMA)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: schema %lld is not known; this program reads %d",
                        path, (long long)schema, RESULT_SCHEMA);
    r->run = memory_grow(r->run, (r->n + json_array_size(runs) + 1) * sizeof(*r->run));
    for (struct json_walk run = {runs}; json_next(&run);) {
        if (status == EPA_OK)
            status = read_run(r, path, root, run.value, &r->run[r->n++], err);
    }
    return status;
}

static void begin(struct results *r, const char *path)
{
    r->reading = path;
    if (r->root != NULL)
        return;
    r->path = path;
    r->root = json_array();
    r->arena = arena_create();
}

enum epa_status results_of(const char *path, json_t *document, struct results *out,
                           struct epa_error *err)
{
    begin(out, path);
    return read_document(out, path, document, err);
}

/* Parses a document, or several from --json-lines. */
static enum epa_status parse_documents(const char *path, const struct text *text,
                                       struct results *out, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (size_t at = 0; status == EPA_OK && (at == 0 || at < text->bytes);) {
        json_error_t why;
        json_t *root = json_loadb(text->data + at, text->bytes - at,
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

    begin(out, path);
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

void results_free(struct results *r)
{
    free(r->run);
    json_decref(r->root);
    arena_destroy(r->arena);
    *r = (struct results){0};
}

const char *results_order(const struct results *r, uint64_t *seed)
{
    const json_t *first = json_array_get(r->root, 0);

    *seed = (uint64_t)json_integer_value(json_object_get(first, "order_seed"));
    return json_text_at(first, "order");
}

/* ---- differences between runs ---- */

bool results_picked(const struct results_run *run, const struct results_wish *wish)
{
    for (uint32_t i = 0; i < wish->n_only; i++)
        if (fnmatch(wish->only[i], run->label, 0) == 0 || strcmp(wish->only[i], run->label) == 0 ||
            fnmatch(wish->only[i], run->id, 0) == 0)
            return true;
    return wish->n_only == 0;
}

const struct run_stage *results_stage(const struct results_run *run, const char *name)
{
    for (uint32_t i = 0; i < run->n_stages; i++)
        if (strcmp(run->stage[i].name, name) == 0 && run->stage[i].n > 0)
            return &run->stage[i];
    return NULL;
}

/* Names of rows of whole iterations, the usual one first. */
static const char *const totals[] = {"total", "wall", "latency"};
enum { TOTALS = sizeof(totals) / sizeof(totals[0]) };

bool results_is_total(const char *stage)
{
    for (size_t i = 0; i < TOTALS; i++)
        if (strcmp(stage, totals[i]) == 0)
            return true;
    return false;
}

const struct run_stage *results_total(const struct results_run *run)
{
    const struct run_stage *stage = NULL;

    for (size_t i = 0; i < TOTALS && stage == NULL; i++)
        stage = results_stage(run, totals[i]);
    return stage;
}

uint32_t results_choose(struct results *r, const struct results_wish *wish)
{
    uint32_t kept = 0, without = 0;

    for (uint32_t i = 0; i < r->n; i++) {
        struct results_run *run = &r->run[i];

        if (!run->ok || !results_picked(run, wish))
            continue;
        run->timed = wish->stage != NULL ? results_stage(run, wish->stage) : results_total(run);
        without += run->timed == NULL;
        if (run->timed != NULL)
            r->run[kept++] = *run;
    }
    r->n = kept;
    return without;
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

/* Prints one line for all runs with the same end. */
void results_warn_failed(const struct results *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const struct results_run *run = &r->run[i];
        uint32_t before = 0, after = 0;

        for (uint32_t k = 0; k < r->n && !run->ok && before == 0; k++)
            if (strcmp(r->run[k].status, run->status) == 0 &&
                strcmp(r->run[k].path, run->path) == 0)
                *(k < i ? &before : &after) += 1;
        if (run->ok || before > 0)
            continue;
        if (after > 1)
            text_warn("%s: '%s' and %u more ended with status %s and are left out", run->path,
                      run->label, after - 1, run->status);
        else
            text_warn("%s: '%s' ended with status %s and is left out", run->path, run->label,
                      run->status);
    }
}

static json_t *part_of(const struct results_run *run, enum results_part part)
{
    return results_part(
        json_object_get(run->json, part == RESULTS_MACHINE ? "machine" : "experiment"), part);
}

const char *results_value(const struct results_run *run, const char *section, const char *key)
{
    size_t bytes = section != NULL ? strlen(section) : 0;

    for (uint32_t i = 0; i < run->n_keys; i++) {
        const char *path = run->key[i].path;

        if (section != NULL && strncmp(path, section, bytes) == 0 && path[bytes] == '.' &&
            strcmp(path + bytes + 1, key) == 0)
            return run->key[i].value;
        if (section == NULL && strcmp(path, key) == 0)
            return run->key[i].value;
    }
    return NULL;
}

const char *results_text(const struct results_run *run, const char *path)
{
    return json_text_at(run->json, path);
}

double results_number(const struct results_run *run, const char *path)
{
    return json_number_at(run->json, path);
}

void results_experiment(const struct results_run *run, struct text *out)
{
    json_write(out, json_object_get(run->json, "experiment"), JSON_INDENT(1));
}

/* Returns the value of a key as `shown`; NULL: absent. */
static const char *find_shown(const struct results_key *key, uint32_t n, const char *path)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(key[i].path, path) == 0)
            return key[i].shown;
    return NULL;
}

bool results_differ(const struct results_run *a, const struct results_run *b,
                    enum results_part part, char *what, uint32_t room)
{
    bool machine = part == RESULTS_MACHINE;
    const struct results_key *of_a = machine ? a->fact : a->key, *of_b = machine ? b->fact : b->key;
    uint32_t n_a = machine ? a->n_facts : a->n_keys, n_b = machine ? b->n_facts : b->n_keys;

    for (uint32_t i = 0; i < n_a + n_b; i++) { /* keys of `a`, then keys that only `b` has */
        const struct results_key *key = i < n_a ? &of_a[i] : &of_b[i - n_a];
        const char *in_a = i < n_a ? key->shown : find_shown(of_a, n_a, key->path);
        const char *in_b = i < n_a ? find_shown(of_b, n_b, key->path) : key->shown;

        if (!is_of_part(part, key->path) ||
            (in_a != NULL && in_b != NULL && strcmp(in_a, in_b) == 0))
            continue;
        snprintf(what, room, "%s: %s, and %s", key->path, in_a != NULL ? in_a : "absent",
                 in_b != NULL ? in_b : "absent");
        return true;
    }
    return false;
}

void results_question(const struct results_run *run, const char *const *across, uint32_t n,
                      struct text *out)
{
    json_t *shape = part_of(run, RESULTS_SHAPE), *machine = part_of(run, RESULTS_MACHINE);
    json_t *delivers = json_copy(json_object_get(run->json, "delivers"));
    const json_t *source = json_object_get(run->json, "source");
    json_auto_t *all =
        json_pack("{s:s, s:o, s:o, s:O?, s:o?}", "verb", run->verb, "shape", shape, "machine",
                  machine, "timing", json_object_get(run->json, "timing"), "delivers", delivers);

    if (source != NULL)
        json_object_set_new(all, "source",
                            json_object_of("program", json_text(json_text_at(source, "program")),
                                           "clock", json_text(json_text_at(source, "clock")),
                                           NULL));
    if (run->size > 0)
        json_object_del(shape, run->operation->size_key);
    for (uint32_t i = 0; i < n; i++)
        json_object_del(delivers, across[i]);
    json_write(out, all, JSON_COMPACT | JSON_SORT_KEYS | JSON_DIGITS);
}

bool results_agree(const char *question, const char *other)
{
    json_auto_t *a = json_loads(question, 0, NULL), *b = json_loads(other, 0, NULL);

    for (int i = 0; i < 2; i++) {
        const char *const part = i == 0 ? "shape" : "delivers";
        const json_t *others = json_object_get(b, part);

        for (struct json_walk it = {json_object_get(a, part)}; json_next(&it);)
            if (json_object_get(others, it.key) != NULL &&
                !json_equal(json_object_get(others, it.key), it.value) &&
                strcmp(json_text_at(others, it.key), "unknown") != 0 &&
                strcmp(json_is_string(it.value) ? json_string_value(it.value) : "", "unknown") != 0)
                return false;
    }
    return json_is_object(json_object_get(a, "delivers")) ==
           json_is_object(json_object_get(b, "delivers"));
}

void results_context(const struct results_run *run, struct text *out)
{
    for (struct json_walk it = {json_object_get(run->json, "context")}; json_next(&it);) {
        const char *words = json_string_value(it.value);

        text_add(out, "%s%s=%s", out->bytes == 0 ? "" : ", ", it.key, words == NULL ? "?" : words);
    }
    if (out->bytes == 0)
        text_add(out, "none");
    text_clean(out->data);
}
