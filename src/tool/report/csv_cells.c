/* Cells of CSV: figures of stages and keys of experiments. */
#include "report/csv_cells.h"

#include "base/memory.h"
#include "base/text.h"
#include "report/fill.h"
#include "report/results.h"

/* Adds the cells of a row by the names of their columns: for each stage "dispatch.p95_us", ... */
static void add_figures(json_t *row, json_t *cells)
{
    static const char *const figures[][2] = {{"min_us", "{ns.min/1e3%.6g}"},
                                             {"median_us", "{ns.median/1e3%.6g}"},
                                             {"p95_us", "{ns.p95/1e3%.6g}"},
                                             {"p99_us", "{ns.p99/1e3%.6g}"},
                                             {"p999_us", "{ns.p999/1e3%.6g}"},
                                             {"max_us", "{ns.max/1e3%.6g}"},
                                             {"mean_us", "{ns.mean/1e3%.6g}"},
                                             {"stdev_us", "{ns.stdev/1e3%.6g}"},
                                             {"goodput_gb_s", "{rate.goodput%.6g}"},
                                             {"wire_gb_s", "{rate.wire%.6g}"},
                                             {"bottleneck_gb_s", "{rate.bottleneck%.6g}"},
                                             {"peak_us", "{peak_ns/1e3%.6g}"},
                                             {"of_peak", "{of_peak%.6g}"}};

    for (struct json_walk stage = {json_object_get(row, "stages")}; json_next(&stage);) {
        for (uint32_t k = 0; k < sizeof(figures) / sizeof(figures[0]); k++) {
            text_auto cell = {0}, key = {0};

            text_add(&key, "%s.%s", json_text_at(stage.value, "name"), figures[k][0]);
            fill_add(&cell, figures[k][1], stage.value, NULL);
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
