/* Cells of CSV: figures of stages and keys of experiments. */
#include "report/csv_cells.h"

#include "base/memory.h"
#include "base/text.h"
#include "report/figures.h"
#include "report/fill.h"
#include "report/results.h"

/* Adds the cells of a row by the names of their columns: for each stage "dispatch.p95_us", ... */
static void add_figures(json_t *row, json_t *cells)
{
    for (struct json_walk stage = {json_object_get(row, "stages")}; json_next(&stage);) {
        for (const struct figure *f = figures; f->path != NULL; f++) {
            text_auto cell = {0}, key = {0}, form = {0};

            if (f->csv == NULL)
                continue;
            text_add(&key, "%s.%s", json_text_at(stage.value, "name"), f->csv);
            text_add(&form, "{%s%s%%.6g}", f->path, f->kind == FIGURE_NS ? "/1e3" : "");
            fill_add(&cell, form.data, stage.value, NULL);
            json_object_set_new(cells, key.data, json_text(cell.data));
        }
    }
}

/* Adds all keys of the experiment. */
static void add_keys(json_t *row, json_t *cells)
{
    json_auto_t *keys = results_part(json_object_get(row, "experiment"), RESULTS_ALL);

    for (struct json_walk it = {keys}; json_next(&it);) {
        text_auto cell = {0};

        results_add_value(&cell, it.value, false);
        json_object_set_new(cells, it.key, json_text(cell.data));
    }
}

json_t *export_cells(json_t *rows, bool stages)
{
    json_t *names = json_object();

    for (uint32_t pass = stages ? 0 : 1; pass < 2; pass++)
        for (struct json_walk row = {rows}; json_next(&row);) {
            json_auto_t *cells = json_object();

            (pass == 0 ? add_figures : add_keys)(row.value, cells);
            json_object_update_missing(names, cells);
            json_object_update_missing(row.value, cells);
        }
    return names;
}
