/* Charts of rows: ranks against each other, and stages on top of each other. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "report/plot_parts.h"

static struct plot_row *new_row(struct plot *p, const char *name)
{
    struct plot_row *row = &p->row[p->n_rows++];

    row->name = name;
    row->mark = NAN;
    row->value = arena_alloc(p->arena, (p->n_columns + 1) * sizeof(*row->value));
    for (uint32_t i = 0; i < p->n_columns; i++)
        row->value[i] = NAN;
    return row;
}

static enum epa_status begin_rows(struct plot_making *m, struct epa_error *err)
{
    struct plot *p = m->plot;

    if (m->n > PLOT_ROWS)
        return plot_too_many(PLOT_ROWS, "runs", err);
    plot_label_runs(p->arena, m->source, m->n);
    p->row = arena_alloc(p->arena, (PLOT_ROWS + 1) * sizeof(*p->row));
    return EPA_OK;
}

static const json_t *stage_json(const struct plot_source *s, const char *name)
{
    const json_t *stages = json_object_get((const json_t *)s->run->json, "stages"), *stage;
    size_t i;

    json_array_foreach(stages, i, stage)
    {
        const char *have = json_string_value(json_object_get(stage, "name"));

        if (have != NULL && strcmp(have, name) == 0)
            return stage;
    }
    return NULL;
}

static void fill_ranks(struct plot *p, const struct plot_source *s, const char *stage,
                       const char *name)
{
    const json_t *ranks = json_object_get(stage_json(s, stage), "ranks"), *rank;
    double known[4096];
    uint32_t n = 0;
    struct plot_row *row = new_row(p, name);
    size_t i;

    json_array_foreach(ranks, i, rank)
    {
        const json_t *ns = json_object_get(rank, "median_ns");

        if (i >= p->n_columns || !json_is_number(ns))
            continue;
        row->value[i] = json_number_value(ns) / 1e3;
        if (n < sizeof(known) / sizeof(known[0]))
            known[n++] = row->value[i];
    }
    if (n < 2) { /* a rank alone is nobody's equal */
        p->n_rows--;
        return;
    }
    qsort(known, n, sizeof(known[0]), plot_by_value);
    row->mark = plot_percentile(known, n, 50);
}

enum epa_status plot_make_skew(struct plot_making *m, struct epa_error *err)
{
    struct plot *p = m->plot;
    const struct results_run *one = m->source[0].run;
    enum epa_status status = begin_rows(m, err);
    size_t most = 0;

    for (uint32_t i = 0; i < m->n && status == EPA_OK; i++) {
        const json_t *stage = stage_json(&m->source[i], m->source[i].stage->name);
        size_t ranks = json_array_size(json_object_get(stage, "ranks"));

        most = ranks > most ? ranks : most;
    }
    p->n_columns = most < 4096 ? (uint32_t)most : 4096;
    p->column = arena_alloc(p->arena, (p->n_columns + 1) * sizeof(*p->column));
    for (uint32_t i = 0; i < p->n_columns; i++)
        p->column[i] = arena_printf(p->arena, "%u", i);
    for (uint32_t i = 0; i < m->n && m->n > 1 && status == EPA_OK; i++)
        fill_ranks(p, &m->source[i], m->source[i].stage->name, m->source[i].label);
    for (uint32_t i = 0; i < one->n_stages && m->n == 1 && status == EPA_OK; i++) {
        if (one->stage[i].n > 0 && p->n_rows < PLOT_ROWS)
            fill_ranks(p, &m->source[0], one->stage[i].name, one->stage[i].name);
    }
    if (status == EPA_OK && p->n_rows == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: no run has times of two ranks or more to compare",
                        m->source[0].path);
    p->title = m->n == 1 ? arena_printf(p->arena, "Ranks: %s", m->source[0].label)
                         : arena_printf(p->arena, "Ranks: %s", m->source[0].stage->name);
    p->x.label = "rank";
    p->y.label = "off the median of its row [%]";
    p->note = "each rank's median against the median of the ranks of its row";
    return status;
}

static void find_columns(struct plot_making *m)
{
    struct plot *p = m->plot;

    p->column = arena_alloc(p->arena, (PLOT_SERIES + 1) * sizeof(*p->column));
    for (uint32_t i = 0; i < m->n; i++) {
        const struct results_run *run = m->source[i].run;

        for (uint32_t k = 0; k < run->n_stages; k++) {
            const char *name = run->stage[k].name;
            bool known = strcmp(name, "total") == 0 || run->stage[k].n == 0;

            for (uint32_t c = 0; c < p->n_columns; c++)
                known = known || strcmp(p->column[c], name) == 0;
            if (!known && p->n_columns < PLOT_SERIES)
                p->column[p->n_columns++] = name;
        }
    }
}

enum epa_status plot_make_stages(struct plot_making *m, struct epa_error *err)
{
    struct plot *p = m->plot;
    enum epa_status status = begin_rows(m, err);
    double longest = 0;

    find_columns(m);
    for (uint32_t i = 0; i < m->n && status == EPA_OK; i++) {
        const struct plot_source *s = &m->source[i];
        const json_t *peak = json_object_get(stage_json(s, s->stage->name), "peak_ns");
        struct plot_row *row = new_row(p, s->label);
        double sum = 0;

        row->mark = json_is_number(peak) ? json_number_value(peak) / 1e3 : NAN;
        for (uint32_t c = 0; c < p->n_columns; c++) {
            const json_t *stage = stage_json(s, p->column[c]);
            const json_t *ns = json_object_get(json_object_get(stage, "ns"), "median");

            if (!json_is_number(ns))
                continue;
            row->value[c] = json_number_value(ns) / 1e3;
            sum += row->value[c];
        }
        longest = fmax(longest, fmax(sum, row->mark));
    }
    if (status == EPA_OK && p->n_columns == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: no run has stages beside the total",
                        m->source[0].path);
    p->title = "Stages";
    p->x.label = "time [us]";
    p->note = "medians of stages, one after the other; limit: the least time the links allow";
    plot_axis_fit(&p->x, 0, longest);
    return status;
}
