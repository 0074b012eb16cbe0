/* `fault:` a failure that is planted, to rehearse what then happens. */
#ifndef FAULT_H
#define FAULT_H

#include "config/experiment.h"

extern const struct epa_option fault_table[]; /* of struct fault_options */

/* Whether one is planted in it. */
bool fault_is_planted(const struct experiment *);

/* "rank 1 is killed before combine of iteration 10". */
struct text;
void fault_describe(const struct fault_options *, struct text *out);

/* "kill", "stop", "straggle" or "none". */
const char *fault_name(const struct fault_options *);

#endif
