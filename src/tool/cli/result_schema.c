/* `epa2a config schema --results`: the JSON Schema (draft-07) of results. result_schema.json has the
 * keys that occur once; the table of figures adds the keys of a stage, and the table of `expect` the
 * names of bounds. */
#include "cli/result_schema.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "config/experiment.h"
#include "result/figures.h"
#include "schema_texts.h"

/* Returns the schema of the value of a figure. */
static json_t *figure_schema(const struct figure *f)
{
    static const char *const definition[] = {
        [FIGURE_COUNT] = "count",
        [FIGURE_NS] = "count_or_null",
        [FIGURE_INTERVAL] = "interval_or_null",
        [FIGURE_RATE] = "number_or_null",
        [FIGURE_RATIO] = "number_or_null",
    };
    json_t *schema =
        json_pack("{s:o}", "$ref", json_sprintf("#/definitions/%s", definition[f->kind]));

    if (f->help != NULL)
        json_object_set_new(schema, "description", json_string(f->help));
    return schema;
}

/* Adds the schema of a key at a path such as "ns.median" to the schema of an object, and requires the
 * key. A part of the path before a dot is an object of the same form. */
static void add_figure(json_t *object, const char *path, json_t *schema)
{
    const char *dot = strchr(path, '.');
    json_t *required;

    if (dot != NULL) {
        text_auto inner = {0};

        text_add(&inner, "properties.%.*s", (int)(dot - path), path);
        add_figure(json_at(object, inner.data), dot + 1, schema);
        return;
    }
    required = json_object_get(object, "required");
    if (required == NULL) {
        required = json_array();
        json_object_set_new(object, "required", required);
    }
    json_array_append_new(required, json_string(path));
    json_object_set_new(json_object_get(object, "properties"), path, schema);
}

void result_schema_print(void)
{
    json_auto_t *schema = json_loads(result_schema_json, JSON_REJECT_DUPLICATES, NULL);
    json_t *bounds = json_at(schema, "definitions.expectation.properties.figure.enum");

    for (const struct figure *f = figures; f->path != NULL; f++)
        add_figure(json_at(schema, "definitions.stage"), f->path, figure_schema(f));
    for (const struct epa_option *o = expect_figures; o->name != NULL; o++)
        json_array_append_new(bounds, json_string(o->name));
    json_dumpf(schema, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    printf("\n");
}
