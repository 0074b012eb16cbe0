/* The text of --help. */
#ifndef USAGE_H
#define USAGE_H

#include "base/text.h"
#include "cli/commands.h"

/* Adds the text of --help for a command; NULL: for the program. */
void commands_add_help(const struct command *, struct text *out);
/* Adds the list of commands. */
void commands_add(struct text *out);

#endif
