/* The HTML page of a batch. */
#ifndef HTML_PAGE_H
#define HTML_PAGE_H

#include "base/text.h"
#include "report/results.h"
#include "report/rows.h"
#include "report/warning_lines.h"

/* Adds a self-contained HTML page about a batch. Comparisons and charts remove runs from `results`. */
void page_html(struct text *out, const struct report_batch *, const struct warnings *,
               struct results *results);

#endif
