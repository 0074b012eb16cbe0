/* The table of `epa2a predict --dry-run`. */
#include "cli/predict_table.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "report/lines.h"
#include "report/table.h"

static const struct table_column columns[] = {{"ranks", "ranks", NULL, 0, 0, 6},
                                              {"nodes", "nodes", NULL, 0, 0, 6},
                                              {"stage", "stage", .width = 0, .digits = 10},
                                              {"rows", "rows", NULL, 0, 0, 9},
                                              {"choices", "choices", NULL, 0, 0, 9},
                                              {"rank_bytes", "rank", "MB", 1e6, 2, 9},
                                              {"node_bytes", "node", "MB", 1e6, 2, 9},
                                              {"messages", "messages", NULL, 0, 0, 9},
                                              {"memory_bytes", "memory", "MiB", 1048576, 0, 7},
                                              {0}};
enum { CELLS = sizeof(columns) / sizeof(columns[0]) - 1 };

static void print_plan_runs(FILE *file, const struct predict_plan *p)
{
    text_auto ranks = {0};

    for (uint32_t i = 0; i < p->n_measured; i++)
        text_add(&ranks, "%s%u", i > 0 ? ", " : "", p->measured[i]);
    text_comment(file, "epa2a predict: %s: %u runs of %s ranks would be measured here",
                 p->cli->arg[0], p->n_runs, ranks.data);
    text_comment(file, "rank, node: bytes of the busiest rank and node to or from other nodes");
}

void predict_table(FILE *file, const struct predict_plan *p)
{
    struct table_cell cell[COUNTED_MOST * OP_PHASES][CELLS];
    struct table_row row[COUNTED_MOST * OP_PHASES];
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_worlds; i++) {
        const struct predict_world *world = &p->world[i];

        for (uint32_t k = 0; world->why == NULL && k < p->op->n_phases; k++, n++) {
            const struct op_load *load = &world->load[k];
            const struct table_cell cells[CELLS] = {{NULL, world->ranks},
                                                    {NULL, world->nodes},
                                                    {p->op->phase[k].name, NAN},
                                                    {NULL, load->rows},
                                                    {NULL, load->entries},
                                                    {NULL, load->rank_bytes},
                                                    {NULL, load->node_bytes},
                                                    {NULL, load->messages},
                                                    {NULL, (double)world->memory_bytes}};

            memcpy(cell[n], cells, sizeof(cells));
            row[n] = (struct table_row){cell[n], TABLE_PLAIN};
        }
    }
    print_plan_runs(file, p);
    table_text(file, columns, row, n);
    for (uint32_t i = 0; i < p->n_worlds; i++)
        if (p->world[i].why != NULL)
            text_comment(file, "%u ranks: %s", p->world[i].ranks, p->world[i].why);
}
