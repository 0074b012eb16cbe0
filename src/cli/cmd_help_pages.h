/* The pages of `epa2a help` that are prose. */
#ifndef CMD_HELP_PAGES_H
#define CMD_HELP_PAGES_H

struct help_page {
    const char *topic; /* NULL ends the list */
    const char *text;
};
extern const struct help_page help_pages[];

#endif
