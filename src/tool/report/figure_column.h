/* Columns of tables that show figures. */
#ifndef FIGURE_COLUMN_H
#define FIGURE_COLUMN_H

#include "report/table.h"
#include "result/figures.h"

/* Returns a column that shows the figure of rows at `key` in the unit of tables. `width` is the least
 * width; the heading is not cut. */
struct table_column figure_column(const struct figure *, const char *key, int width);

#endif
