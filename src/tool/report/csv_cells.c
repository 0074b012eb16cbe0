/* Cells of CSV: figures of stages and keys of experiments. */
#include "report/csv_cells.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "result/figures.h"
#include "report/results.h"

/* The columns, and the row that is being filled. */
struct making {
    struct arena *arena;
    const char **name; /* [n] */
    uint32_t n, room;
    uint32_t next;     /* column after the last one: rows have most keys in the same order */
    const char **cell; /* [n]: cells of the row; NULL: only the names are collected */
};

/* Returns the column of that name, and adds it if it is new. */
static uint32_t find_column(struct making *m, const char *name)
{
    const char **grown;

    for (uint32_t i = 0; i < m->n; i++) {
        uint32_t at = (m->next + i) % m->n;

        if (strcmp(m->name[at], name) == 0)
            return at;
    }
    if (m->n == m->room) {
        m->room = 2 * m->room + 64;
        grown = arena_alloc(m->arena, m->room * sizeof(*grown));
        for (uint32_t i = 0; i < m->n; i++)
            grown[i] = m->name[i];
        m->name = grown;
    }
    m->name[m->n] = arena_printf(m->arena, "%s", name);
    return m->n++;
}

static void add_cell(struct making *m, const char *name, const char *text)
{
    uint32_t at = find_column(m, name);

    m->next = at + 1;
    if (m->cell != NULL)
        m->cell[at] = arena_printf(m->arena, "%s", text);
}

/* Adds the figures of stages by the names of their columns: "dispatch.p95_us", ... */
static void add_figures(struct making *m, const struct report_row *row)
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
            add_cell(m, name, cell);
        }
}

/* Adds all keys of the experiment. */
static void add_keys(struct making *m, const struct report_row *row)
{
    for (uint32_t i = 0; i < row->n_keys; i++)
        add_cell(m, row->key[i].path, row->key[i].value);
}

struct csv_cells export_cells(struct arena *arena, const struct report_row *row, uint32_t n,
                              bool stages)
{
    struct making m = {.arena = arena};
    const char **cell;

    for (uint32_t i = 0; i < n && stages; i++)
        add_figures(&m, &row[i]);
    for (uint32_t i = 0; i < n; i++)
        add_keys(&m, &row[i]);
    cell = arena_alloc(arena, (size_t)n * m.n * sizeof(*cell));
    for (size_t i = 0; i < (size_t)n * m.n; i++)
        cell[i] = "";
    for (uint32_t i = 0; i < n; i++) {
        m.cell = cell + (size_t)i * m.n;
        if (stages)
            add_figures(&m, &row[i]);
        add_keys(&m, &row[i]);
    }
    return (struct csv_cells){.n = m.n, .name = m.name, .cell = cell};
}
