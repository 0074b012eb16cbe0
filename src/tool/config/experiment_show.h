/* Output of a resolved experiment: as YAML, as a list of its values, and their hash. */
#ifndef CONFIG_EXPERIMENT_SHOW_H
#define CONFIG_EXPERIMENT_SHOW_H

#include "config/experiment.h"

/* Writes the resolved experiment as YAML that reads back as the same experiment; with origins, each
 * value has a comment with its origin: default, file:line:column, or --set. */
void experiment_show(const struct experiment *, bool with_origin, struct text *out);

/* Visits all scalars of the resolved experiment in that order. */
struct experiment_value {
    const char *section, *key; /* section NULL: top-level key */
    const char *path, *value;  /* "moe.hidden"; value in YAML notation */
    bool string;               /* free text: in quotes in YAML */
    bool quoted;               /* in quotes in JSON */
    const struct node *origin; /* NULL: default */
};
void experiment_visit(const struct experiment *,
                      void (*fn)(void *arg, const struct experiment_value *), void *arg);

/* Adds the values of keys with that role, a line "moe.hidden: 7168" each. Equal experiments have equal
 * texts. */
void experiment_part(const struct experiment *, enum key_role, struct text *out);

/* Returns 48 bits over all values of a run except names, traces, expectations and the launcher. */
uint64_t experiment_hash(const struct experiment *);
/* The same over the values that a file or --set gives to the launcher. */
uint64_t experiment_launcher_hash(const struct experiment *);

#endif
