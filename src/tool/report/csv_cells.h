/* Cells of CSV. */
#ifndef CSV_CELLS_H
#define CSV_CELLS_H

#include "base/json.h"

/* Adds the further cells of CSV to rows: percentiles and rates of stages, and a cell for each key
 * of the experiment. Returns an object with the names of these columns, in order. */
json_t *export_cells(json_t *rows, bool stages);

#endif
