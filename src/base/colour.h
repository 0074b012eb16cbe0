/* Colour for terminals: a word of an error, a warning, a verdict. Never in files or pipes,
 * unless it was asked for, and never the only thing that says something. */
#ifndef COLOUR_H
#define COLOUR_H

#include <stdio.h>

enum colour_mode { COLOUR_AUTO, COLOUR_ALWAYS, COLOUR_NEVER };

enum colour { COLOUR_ERROR, COLOUR_WARNING, COLOUR_BAD, COLOUR_GOOD, COLOUR_LOCATION };

/* --color, told once before anything is printed. Auto: standard output and standard error have
 * colour where they are terminals, TERM is not dumb and NO_COLOR is not set. */
void colour_choose(enum colour_mode);

/* What is written before and behind; "" where there is to be no colour. */
const char *colour_on(FILE *, enum colour);
const char *colour_off(FILE *);

#endif
