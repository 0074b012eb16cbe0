/* The pages of `epa2a help` that are prose. */
#ifndef CMD_HELP_PAGES_H
#define CMD_HELP_PAGES_H

#include "base/text.h"

struct help_page {
    const char *topic;          /* NULL ends the list */
    const char *text;           /* its first line is what the page is about */
    void (*add)(struct text *); /* or NULL: what comes behind, by a table */
};
extern const struct help_page help_pages[];

/* All of a page. */
void help_page_add(const struct help_page *, struct text *out);

#endif
