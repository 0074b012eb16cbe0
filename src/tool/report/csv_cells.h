/* Cells of CSV. */
#ifndef CSV_CELLS_H
#define CSV_CELLS_H

#include <stdbool.h>
#include <stdint.h>

#include "report/rows.h"

struct arena;

/* Further columns of CSV; in the arena. */
struct csv_cells {
    uint32_t n;
    const char **name;       /* [n], in order */
    const char *const *cell; /* [rows][n]; NULL: the row has no such figure or key */
};

/* Returns the figures of stages (if `stages` is set) and the keys of the experiments of `n` rows. */
struct csv_cells export_cells(struct arena *, const struct report_row *, uint32_t n, bool stages);

#endif
