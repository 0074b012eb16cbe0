/* What `epa2a help` can be asked: pages of prose, commands, keys of an experiment, plugins
 * and their options, variables of the environment. Help, completions and man pages all have
 * them from here, and here they come from the tables. */
#ifndef TOPICS_H
#define TOPICS_H

#include <stdio.h>

#include "experiment/batch.h"

enum { TOPIC_MAX = 128 };

/* A variable of the environment that this program reads. */
struct variable {
    const char *name, *help; /* NULL ends the list */
};
extern const struct variable environment[];

/* A page of prose: help/TOPIC.txt, embedded in the program, or made by a table. */
struct help_page {
    const char *topic;          /* NULL ends the list */
    const char *text;           /* its first line is what the page is about */
    void (*add)(struct text *); /* or NULL: what comes behind, by a table */
};
extern const struct help_page help_pages[];

/* All of a page. */
void help_page_add(const struct help_page *, struct text *out);

struct command;

struct topic {
    char name[TOPIC_MAX];
    const char *help; /* one line on it, without a full stop; of a page its first */
    /* One of these: */
    const struct help_page *page;
    const struct variable *variable;
    const struct command *command;
    const struct batch_key *batch;
    /* Or these: */
    const struct section *section;      /* NULL: a key at the top */
    const struct registry_entry *entry; /* a plugin; NULL: not of one */
    const struct epa_option *option;    /* NULL: the section or plugin as a whole */
    const void *defaults;               /* the struct that the option is in */
};

struct topics {
    struct topic *item;
    uint32_t n;
};

/* `entry` as registry_list() gives it; none: all that needs no plugin. */
void topics_make(const struct registry_entry *entry, uint32_t n, struct topics *out);
void topics_free(struct topics *);

/* The section whose plugins are of that kind. */
const struct section *topics_section(enum epa_plugin_kind);

/* Warns on `to` of variables EPA2A_... that are set and unknown. */
void environment_warn(FILE *to);

#endif
