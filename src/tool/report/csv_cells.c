/* Cells of CSV: figures of stages and keys of experiments. */
#include "report/csv_cells.h"

#include "base/memory.h"
#include "base/text.h"
#include "report/results.h"

/* Adds the figures of stages. */
static void add_figures(json_t *row, json_t *cells)
{
    json_object_update(cells, json_object_get(row, "cells"));
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
