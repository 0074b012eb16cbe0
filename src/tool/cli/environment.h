/* Environment variables of the program. */
#ifndef ENVIRONMENT_H
#define ENVIRONMENT_H

#include "base/text.h"

/* A variable of the environment that this program reads. */
struct variable {
    const char *name, *help; /* NULL ends the list */
};
extern const struct variable environment[];

/* Adds a table of the variables, and the text about variables in files. */
void environment_add(struct text *out);

/* Warns about unknown variables whose names begin with EPA2A_. */
void environment_warn(void);

#endif
