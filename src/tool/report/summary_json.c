/* Documents of results, with the rows of a batch. */
#include "report/summary_json.h"

#include <string.h>

#include "report/result_parts.h"
#include "report/summary.h"

static void add_summary_value(void *arg, uint32_t row, const struct summary_value *v)
{
    json_t *rows = arg, *value;

    if (row == json_array_size(rows))
        json_array_append_new(rows, json_object());
    if (!v->is_text)
        value = json_number(v->cell.number);
    else
        value = v->cell.text != NULL ? json_text(v->cell.text) : json_null();
    json_object_set_new(json_array_get(rows, row), v->key, value);
}

json_t *report_document(json_t *results, const struct report_batch *batch)
{
    json_t *rows,
        *out = json_object_of("schema", json_integer(RESULT_SCHEMA), "program", json_text("epa2a"),
                              "percentiles", json_text("nearest rank"), "results", results, NULL);

    if (batch == NULL)
        return out;
    rows = json_array();
    summary_visit(batch, add_summary_value, rows);
    json_object_set_new(out, "order", json_text(batch->order));
    json_object_set_new(out, "order_seed",
                        report_is_declared(batch) ? json_null() : json_count(batch->seed));
    json_object_set_new(out, "summary", rows);
    return out;
}
