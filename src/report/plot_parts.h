/* What the files that make charts share. */
#ifndef PLOT_PARTS_H
#define PLOT_PARTS_H

#include "report/plot.h"
#include "report/plot_label.h"

struct plot_making {
    const struct plot_wish *wish;
    struct plot *plot;
    struct plot_source *source;
    uint32_t n, without; /* runs that are drawn; that have no such samples */
};

int plot_by_value(const void *, const void *); /* of doubles, for qsort() */
enum epa_status plot_too_many(uint32_t most, const char *what, struct epa_error *);

/* Titles, axes and points. The runs are there, at least one. */
enum epa_status plot_make_skew(struct plot_making *, struct epa_error *);
enum epa_status plot_make_stages(struct plot_making *, struct epa_error *);

#endif
