/* Pages of prose of `epa2a help`. */
#ifndef HELP_PAGES_H
#define HELP_PAGES_H

#include "base/text.h"

/* A page of prose. topics.txt holds the pages; the build embeds them in the program. */
struct help_page {
    const char *topic;          /* NULL ends the list */
    const char *text;           /* the first line states the subject of the page */
    void (*add)(struct text *); /* adds a table after the text; or NULL */
};
extern const struct help_page help_pages[];

/* Adds the text and the table of a page. */
void help_page_add(const struct help_page *, struct text *out);

#endif
