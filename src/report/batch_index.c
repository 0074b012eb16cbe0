/* An index is written as a whole and read by jansson. What was read is not trusted: names of
 * files in it are names of results and nothing else. */
#include "report/batch_index.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"

static const char *const status_names[] = {[INDEX_PLANNED] = "planned",
                                           [INDEX_RUNNING] = "running",
                                           [INDEX_DONE] = "done",
                                           [INDEX_FAILED] = "failed",
                                           [INDEX_SKIPPED] = "skipped"};

const char *index_status_name(enum index_status status)
{
    return status_names[status];
}

void index_result_name(const char *id, uint32_t nth, char out[BATCH_INDEX_NAME])
{
    if (nth > 1)
        snprintf(out, BATCH_INDEX_NAME, "%.12s-%u.json", id, nth);
    else
        snprintf(out, BATCH_INDEX_NAME, "%.12s.json", id);
}

bool index_is_result_name(const char *name)
{
    size_t n = strspn(name, "0123456789abcdef");

    if (n != 12)
        return false;
    if (name[n] == '-') {
        size_t digits = strspn(name + n + 1, "0123456789");

        if (digits == 0 || digits > 9)
            return false;
        n += 1 + digits;
    }
    return strcmp(name + n, ".json") == 0;
}

/* ---- writing ---- */

static json_t *words_or_null(const char *bytes)
{
    return bytes != NULL && bytes[0] != 0 ? json_text(bytes) : json_null();
}

/* As it was measured, so that a table made of it is the same table. */
static json_t *time_json(double ns)
{
    if (!isfinite(ns))
        return json_null();
    return ns == floor(ns) ? json_integer((json_int_t)ns) : json_real(ns);
}

static json_t *count(uint64_t n)
{
    return json_integer((json_int_t)n);
}

static json_t *run_json(const struct index_run *run)
{
    const struct report_row *row = &run->row;
    bool ended = run->status >= INDEX_DONE;

    return json_pack("{so si so so si ss so so so so so so so so so so so so so so}", "id",
                     words_or_null(row->id), "nth", (int)run->nth, "file", json_text(row->file),
                     "label", json_text(row->label), "at", (int)run->at, "status",
                     index_status_name(run->status), "exit_code",
                     run->exit_code >= 0 ? json_integer(run->exit_code) : json_null(), "cause",
                     ended ? json_text(result_status_name(row->status)) : json_null(), "error",
                     words_or_null(row->error), "result", words_or_null(run->result), "dispatch_ns",
                     time_json(row->dispatch_ns), "experts_ns",
                     time_json(row->experts_ns > 0 ? row->experts_ns : NAN), "combine_ns",
                     time_json(row->combine_ns), "total_ns", time_json(row->total_ns), "iterations",
                     count(row->checked), "compared", count(row->compared), "wrong",
                     count(row->wrong), "samples", count(row->samples), "stop",
                     words_or_null(stop_name(row->stop)), "ci95", time_json(row->ci95));
}

static json_t *files_json(const struct batch_index *index)
{
    json_t *files = json_array();

    for (uint32_t i = 0; i < index->n; i++) {
        bool known = false;

        for (size_t k = json_array_size(files); k > 0 && !known; k--)
            known = strcmp(json_string_value(json_array_get(files, k - 1)),
                           index->run[i].row.file) == 0;
        if (!known)
            json_array_append_new(files, json_text(index->run[i].row.file));
    }
    return files;
}

enum epa_status batch_index_text(const struct batch_index *index, struct text *out,
                                 struct epa_error *err)
{
    bool mixed = strcmp(index->order, "declared") != 0;
    json_t *runs = json_array(), *root;
    bool lost = runs == NULL;
    char *dump;

    for (uint32_t i = 0; i < index->n && !lost; i++)
        lost = json_array_append_new(runs, run_json(&index->run[i])) != 0;
    root = json_pack("{si ss ss ss so ss so so sO so}", "schema", BATCH_INDEX_SCHEMA, "program",
                     "epa2a", "version", EPA2A_VERSION, "verb", index->verb, "files",
                     files_json(index), "order", index->order, "order_seed",
                     mixed ? count(index->seed) : json_null(), "exit_code",
                     index->exit_code >= 0 ? json_integer(index->exit_code) : json_null(),
                     "commands", (json_t *)index->commands, "runs", runs);
    dump = lost ? NULL : json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    json_decref(root);
    if (dump == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for an index of %u runs", index->n);
    text_add(out, "%s\n", dump);
    free(dump);
    return EPA_OK;
}

enum epa_status batch_index_command(struct batch_index *index, char *const *line,
                                    const char *started, const char *host, struct epa_error *err)
{
    json_t *argv = json_array(), *command;

    for (; line != NULL && *line != NULL; line++)
        json_array_append_new(argv, json_text(*line));
    if (index->commands == NULL)
        index->commands = json_array();
    command = json_pack("{so ss so so}", "line", argv, "version", EPA2A_VERSION, "host",
                        words_or_null(host), "started", words_or_null(started));
    if (json_array_append_new(index->commands, command) != 0)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a command line");
    return EPA_OK;
}

/* ---- reading ---- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}

const char *batch_index_last(const struct batch_index *index, const char *key)
{
    size_t n = json_array_size(index->commands);

    return n == 0 ? "" : text_of(json_array_get(index->commands, n - 1), key);
}

static double time_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

static uint64_t count_of(const json_t *object, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(object, key));

    return value > 0 ? (uint64_t)value : 0;
}

static bool find_status(const char *name, enum index_status *out)
{
    for (uint32_t i = 0; i < sizeof(status_names) / sizeof(status_names[0]); i++) {
        if (strcmp(name, status_names[i]) == 0) {
            *out = (enum index_status)i;
            return true;
        }
    }
    return false;
}

static enum stop_reason stop_of(const json_t *from)
{
    enum stop_reason stop = STOP_NOT;

    for (enum stop_reason i = STOP_ITERATIONS; i <= STOP_TIME; i++)
        if (strcmp(stop_name(i), text_of(from, "stop")) == 0)
            stop = i;
    return stop;
}

static enum epa_status read_run(const char *path, const json_t *from, uint32_t i,
                                struct index_run *to, struct epa_error *err)
{
    const json_t *code = json_object_get(from, "exit_code");
    const char *id = text_of(from, "id"), *result = text_of(from, "result");

    *to = (struct index_run){
        .row = {.file = text_of(from, "file"),
                .label = text_of(from, "label"),
                .id = *id != 0 ? id : NULL,
                .dispatch_ns = time_of(from, "dispatch_ns"),
                .experts_ns = time_of(from, "experts_ns"),
                .combine_ns = time_of(from, "combine_ns"),
                .total_ns = time_of(from, "total_ns"),
                .checked = count_of(from, "iterations"),
                .compared = count_of(from, "compared"),
                .wrong = count_of(from, "wrong"),
                .samples = count_of(from, "samples"),
                .stop = stop_of(from),
                .ci95 = time_of(from, "ci95")},
        .nth = (uint32_t)count_of(from, "nth"),
        .at = (uint32_t)count_of(from, "at"),
        .exit_code = json_is_integer(code) ? (int)json_integer_value(code) : -1,
    };
    snprintf(to->row.error, sizeof(to->row.error), "%s", text_of(from, "error"));
    if (!find_status(text_of(from, "status"), &to->status))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: runs[%u]: status '%.40s' is not one of planned, running, done, "
                        "failed, skipped",
                        path, i, text_of(from, "status"));
    if (to->row.label[0] == 0 || to->nth == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: runs[%u]: label or nth is missing", path, i);
    if (*result != 0 && !index_is_result_name(result))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: runs[%u]: '%.60s' names no result", path, i,
                        result);
    if (to->status == INDEX_DONE && (*result == 0 || to->row.id == NULL))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: runs[%u]: it is done, and has no %s", path, i,
                        *result == 0 ? "result" : "id");
    snprintf(to->result, sizeof(to->result), "%s", result);
    return EPA_OK;
}

static enum epa_status read_root(const char *path, struct batch_index *out, struct epa_error *err)
{
    const json_t *runs = json_object_get(out->root, "runs"), *run;
    const json_t *code = json_object_get(out->root, "exit_code");
    json_int_t schema = json_integer_value(json_object_get(out->root, "schema"));
    enum epa_status status = EPA_OK;
    size_t i;

    if (strcmp(text_of(out->root, "program"), "epa2a") != 0 || !json_is_array(runs) ||
        !json_is_array(json_object_get(out->root, "commands")))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: not the index of a results folder", path);
    if (schema != BATCH_INDEX_SCHEMA)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: schema %lld is not known; this program reads %d",
                        path, (long long)schema, BATCH_INDEX_SCHEMA);
    out->verb = text_of(out->root, "verb");
    out->order = text_of(out->root, "order");
    out->seed = count_of(out->root, "order_seed");
    out->exit_code = json_is_integer(code) ? (int)json_integer_value(code) : -1;
    out->commands = json_incref(json_object_get(out->root, "commands"));
    out->run = calloc(json_array_size(runs) + 1, sizeof(*out->run));
    if (out->run == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for runs", path);
    json_array_foreach(runs, i, run)
    {
        if (status == EPA_OK)
            status = read_run(path, run, (uint32_t)i, &out->run[out->n++], err);
    }
    return status;
}

enum epa_status batch_index_read(const char *path, struct batch_index *out, struct epa_error *err)
{
    json_error_t why;
    FILE *file = fopen(path, "re");
    enum epa_status status;

    *out = (struct batch_index){.exit_code = -1};
    if (file == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    out->root = json_loadf(file, JSON_REJECT_DUPLICATES, &why);
    fclose(file);
    if (out->root == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s:%d:%d: error: not JSON: %s", path, why.line,
                        why.column, why.text);
    status = read_root(path, out, err);
    if (status != EPA_OK)
        batch_index_finish(out);
    return status;
}

void batch_index_finish(struct batch_index *index)
{
    json_decref(index->commands);
    json_decref(index->root);
    free(index->run);
    *index = (struct batch_index){.exit_code = -1};
}
