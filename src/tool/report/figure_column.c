/* Columns of tables that show figures. */
#include "report/figure_column.h"

#include <string.h>

struct table_column figure_column(const struct figure *f, const char *key, int width)
{
    /* Unit in tables, divisor of the value in JSON, and digits behind the point. */
    static const struct {
        const char *unit;
        double scale;
        int digits;
    } kinds[] = {
        [FIGURE_COUNT] = {NULL, 0, 0},      [FIGURE_NS] = {"us", 1e3, 1},
        [FIGURE_INTERVAL] = {"us", 1e3, 1}, [FIGURE_RATE] = {"GB/s", 0, -2},
        [FIGURE_RATIO] = {"%", 0.01, 1},
    };
    const char *heading = f->heading != NULL ? f->heading : figure_name(f);
    int least = (int)strlen(heading);

    return (struct table_column){key,
                                 heading,
                                 kinds[f->kind].unit,
                                 kinds[f->kind].scale,
                                 kinds[f->kind].digits,
                                 width > least ? width : least};
}
