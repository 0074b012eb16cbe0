/* The fastest run of results. */
#ifndef REPORT_BEST_H
#define REPORT_BEST_H

#include "report/results.h"

/* Compares the results. Runs that do not take part are removed; the results must outlive *out.
 * EPA_ERR_CONFIG: there are no runs to compare; err has the reason. */
enum epa_status best_create(struct results *, const struct best_wish *, struct best **out,
                            struct epa_error *);
void best_destroy(struct best *);

void best_text(FILE *, const struct best *);
void best_markdown(struct text *, const struct best *);
json_t *best_json(const struct best *);

#endif
