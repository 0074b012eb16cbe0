/* The parser of a command line. */
#ifndef LINE_H
#define LINE_H

#include <stdbool.h>

#include "cli/commands.h"

/* Parser state of a command line. Options may be anywhere, are never abbreviated, and end at
 * "--". */
struct line {
    const struct command *command; /* NULL: the line has no command yet */
    struct cli cli;
    bool given[OPTIONS_MOST];
    bool options_ended;
    struct arena *arena; /* owns all memory of `cli` */
};

/* Initialises an empty line with room for `argc` words. The caller destroys the arena. */
void line_init(struct line *, int argc);
/* Parses a word. `next` is the following word or NULL; sets *used if `next` is the value of this
 * option. */
enum epa_status line_take(struct line *, const char *word, const char *next, bool *used,
                          struct epa_error *);

#endif
