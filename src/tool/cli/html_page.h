/* The HTML page of a batch. */
#ifndef HTML_PAGE_H
#define HTML_PAGE_H

#include <epa2a/status.h>

#include "base/text.h"

/* Fails with the remedy if this machine cannot write a page. */
enum epa_status page_check(struct epa_error *);
/* Writes a self-contained HTML page with this title about a document of results. */
enum epa_status page_html(const char *title, const struct text *document, struct text *out,
                          struct epa_error *);

#endif
