/* What an experiment may say: the option tables of all that is not a plugin. */
#ifndef EXPERIMENT_TABLE_H
#define EXPERIMENT_TABLE_H

#include "config/experiment.h"

enum { EXPERIMENT_VERSION = 1 };

/* A map at the top of the file. */
struct section {
    const char *name; /* NULL ends the list */
    const char *help;
    const char *main; /* the key that a bare value stands for: `transport: shm`; or NULL */
    size_t offset;    /* in struct experiment, of its options or its struct chosen */
    /* Plugins: the options are those of the plugin named. */
    bool plugin;
    enum epa_plugin_kind kind;
    const char *chosen; /* the default; of launchers also "auto", which is no plugin */
    uint32_t ops;       /* operations it is for, bits 1 << enum epa_op; 0: all */
    struct epa_options options;
};

extern const struct epa_options experiment_options; /* of struct experiment itself */
extern const struct section experiment_sections[];
extern const struct epa_option bench_table[]; /* bench_table.c */

const struct section *section_find(const char *name);

/* Whether it is for the operation of this algorithm, or that of the experiment; of one that
 * is not known (NULL) it may be. */
bool section_is_for(const struct section *, const struct epa_algorithm_plugin *);
bool section_applies(const struct section *, const struct experiment *);

/* Where values came from: the tree of the file with all --set in it, bare values made maps.
 * */
struct origin {
    const struct node *root;
};

/* The node that set `key` ("ranks", "moe.hidden"); NULL: nothing did, it is the default. */
const struct node *origin_find(const struct experiment *, const char *key);

/* The options of a section and the struct they are in. */
const struct epa_options *section_options(const struct section *, const struct experiment *);
const void *section_values(const struct section *, const struct experiment *);

/* False: the option says nothing with the section's kind as it is; `needs` says which
 * would. */
bool option_applies(const struct experiment *, const struct section *, const char *option,
                    const char **needs);

/* The same of a kind by its name, of which nothing is read yet. */
bool option_has_kind(const struct section *, const char *option, const char *kind);

/* experiment_check.c: what one value alone does not tell. Errors go to diag; where it had
 * `before` of them and still has, the plugins are asked too. */
void experiment_check(const struct experiment *, uint32_t before, struct diag *);

#endif
