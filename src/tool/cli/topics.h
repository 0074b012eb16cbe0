/* Topics of `epa2a help`: pages of prose, commands, keys of an experiment, plugins and their
 * options, environment variables. topics_make() collects them from the option tables for help,
 * completions and man pages. */
#ifndef TOPICS_H
#define TOPICS_H

#include <stdint.h>

#include "experiment/batch.h"
#include "experiment/batch_keys.h"
#include "registry/registry.h"

enum { TOPIC_MAX = 128 };

struct command;

struct topic {
    char name[TOPIC_MAX];
    const char *help; /* one line without a full stop; for a page its first line */
    /* Subject of the topic: one of the next four members, or the last four together. */
    const struct help_page *page;
    const struct variable *variable;
    const struct command *command;
    const struct batch_key *batch;
    const struct section *section;      /* NULL: a key at the top level */
    const struct registry_entry *entry; /* plugin; NULL: the topic belongs to no plugin */
    const struct epa_option *option;    /* NULL: the whole section or plugin */
    const void *defaults;               /* struct with the default of `option` */
};

struct topics {
    struct topic *item;
    uint32_t n;
};

/* Collects all topics. `entry` is the list of registry_list(); n == 0 leaves out the topics of
 * plugins. */
void topics_make(const struct registry_entry *entry, uint32_t n, struct topics *out);
void topics_free(struct topics *);

/* Returns the section that selects plugins of a kind. */
const struct section *topics_section(enum epa_plugin_kind);

#endif
