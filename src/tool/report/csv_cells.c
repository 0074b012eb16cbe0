/* Cells of CSV: figures of stages and keys of experiments. */
#include "report/csv_cells.h"

#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "result/figures.h"
#include "report/results.h"

/* Adds the figures of stages by the names of their columns: "dispatch.p95_us", ... */
static void add_figures(const struct report_row *row, json_t *cells)
{
    for (uint32_t i = 0; i < row->n_stages; i++)
        for (const struct figure *f = figures; f->path != NULL; f++) {
            double value = figure_value(f, &row->stage[i].figures);
            char name[128], cell[32] = "";

            if (f->csv == NULL)
                continue;
            snprintf(name, sizeof(name), "%s.%s", row->stage[i].name, f->csv);
            if (isfinite(value))
                snprintf(cell, sizeof(cell), "%.6g", f->kind == FIGURE_NS ? value / 1e3 : value);
            json_object_set_new(cells, name, json_text(cell));
        }
}

/* Adds all keys of the experiment. */
static void add_keys(const struct report_row *row, json_t *cells)
{
    json_auto_t *keys = results_part(row->experiment, RESULTS_ALL);

    for (struct json_walk it = {keys}; json_next(&it);) {
        text_auto cell = {0};

        results_add_value(&cell, it.value, false);
        json_object_set_new(cells, it.key, json_text(cell.data));
    }
}

struct csv_cells export_cells(struct arena *arena, const struct report_row *row, uint32_t n,
                              bool stages)
{
    json_auto_t *names = json_object(), *all = json_array();
    struct csv_cells out = {.n = 0};
    const char **cell;

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(all, json_object());
    for (uint32_t pass = stages ? 0 : 1; pass < 2; pass++)
        for (uint32_t i = 0; i < n; i++) {
            json_t *cells = json_array_get(all, i);

            (pass == 0 ? add_figures : add_keys)(&row[i], cells);
            json_object_update_missing(names, cells);
        }
    out.name = arena_alloc(arena, json_object_size(names) * sizeof(*out.name));
    for (struct json_walk it = {names}; json_next(&it);)
        out.name[out.n++] = arena_printf(arena, "%s", it.key);
    cell = arena_alloc(arena, (size_t)n * out.n * sizeof(*cell));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < out.n; k++) {
            const json_t *value = json_object_get(json_array_get(all, i), out.name[k]);

            cell[(size_t)i * out.n + k] =
                arena_printf(arena, "%s", value != NULL ? json_string_value(value) : "");
        }
    out.cell = cell;
    return out;
}
