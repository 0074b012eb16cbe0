/* The HTML page of a batch. */
#ifndef HTML_PAGE_H
#define HTML_PAGE_H

#include "cli/documents.h"
#include "report/rows.h"

/* Adds a self-contained HTML page about a batch. */
void page_html(struct text *out, const struct documents *, const struct report_batch *);

#endif
