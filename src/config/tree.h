/* Changes to an experiment's tree before it is read: --set, the keys of a run, and files that
 * override the files that they include. */
#ifndef TREE_H
#define TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <epa2a/status.h>

/* Errors about a text of the user: collected, then printed in compiler style, with the source line
 * and a caret. Reading continues after an error. */

struct diag;

/* A source location: file:line:column, 1-based, and the number of columns that the caret
 * underlines. `file` is "--set" for a value from the command line; `source` is its whole text, for
 * the snippet. */
struct source_location {
    const char *file, *source;
    uint32_t line, column, width;
};

struct diag *diag_create(void);
void diag_destroy(struct diag *);
uint32_t diag_errors(const struct diag *);

/* `hint` (may be NULL) is printed after the caret: did you mean 'transport'? */
__attribute__((format(printf, 4, 5))) void diag_error(struct diag *, const struct source_location *,
                                                      const char *hint, const char *fmt, ...);
__attribute__((format(printf, 3, 4))) void diag_note(struct diag *, const struct source_location *,
                                                     const char *fmt, ...);
/* Between these calls, errors belong to one run of `file`. An error that another run has already is
 * counted, but not reported again. run NULL: the errors of the run are discarded. skipped: these
 * errors skip the run, and the command continues. */
void diag_run_begin(struct diag *);
void diag_run_end(struct diag *, const char *file, const char *run, bool skipped);
/* At most 20 errors, then the number of further errors. */
void diag_print(const struct diag *, FILE *);
void diag_print_first(const struct diag *, FILE *); /* prints one line, or nothing */
const char *diag_first_text(const struct diag *);   /* without its location; NULL: no error */

/* diag_line() returns the begin of a line of a text, counted from 1, by YAML's line breaks; NULL:
 * the text has fewer lines. The next function counts the characters before `end`. */
const char *diag_line(const char *text, uint32_t line);
uint32_t diag_characters(const char *text, const char *end);

/* The tree of one file, and its error collector. */
struct tree {
    struct arena *arena;
    struct diag *diag;
    struct node *root; /* a map */
};

struct section;

struct node *tree_word(struct arena *, const char *text, const struct source_location *);
/* Returns a deep copy that one run can change; texts are shared. */
struct node *tree_copy(struct arena *, const struct node *);
bool tree_equal(const struct node *, const struct node *);

/* Returns `transport: shm` as `transport: {name: shm}`, and a list of `tokens` as a map; returns
 * other values unchanged. The section may be NULL. */
struct node *tree_whole(struct arena *, const struct section *, struct node *value);

/* Merges a copy of `over` into the tree, key by key. A map that names the plugin or the kind
 * replaces the whole section, like a bare value, except for keys of a model. With `dotted`,
 * "bench.warmup" is a key of the section `bench`. `model: NAME` first merges that model into the
 * tree. */
void tree_lay(struct tree *, const struct node *over, bool dotted);

/* Replaces `model: NAME` at the top by the keys of that model, below all other keys. */
void tree_expand_model(struct tree *);

/* Returns a path relative to the folder of the file that names it. */
const char *tree_beside(struct arena *, const char *file, const char *path);

/* Reads a file, the files that it includes, and models. The tree has no `include`. */
enum epa_status tree_read_file(struct arena *, const char *file, struct diag *, struct node **out);

/* Applies --set "key=value". In matrix and zip, keys contain dots: the text after the first dot is
 * one key. */
void tree_set(struct tree *, const char *argument);

/* ----  ---- */

struct arena;
struct text;

enum node_kind { NODE_SCALAR, NODE_MAP, NODE_LIST };

struct node {
    enum node_kind kind;
    struct source_location location;
    const char *text;      /* scalar: its value; never NULL there */
    bool quoted;           /* scalar: in quotes, so always a string */
    const char *variables; /* scalar: environment variables in its text; or NULL */
    bool refused;          /* an error about the node was reported: no second report is needed */
    bool from_model;       /* the node comes from a model (config/model.h), not from the user */
    uint32_t n;            /* map: pairs; list: items */
    struct node **key;     /* map: [n] scalars */
    struct node **item;    /* map: [n] values; list: [n] items */
};

/* Parses `text` from byte `from` on; the bytes before it belong to its first line, one column each,
 * as in --set key=value. expands: values may contain ${NAME}, like the values of a file. All errors
 * are added to diag. *out is NULL if there is no usable tree. `name` identifies the text in
 * messages; text and name are copied into the arena. */
enum epa_status yaml_parse(struct arena *, const char *name, const char *text, size_t bytes,
                           size_t from, bool expands, struct diag *, struct node **out);
enum epa_status yaml_read(struct arena *, const char *path, struct diag *, struct node **out);

/* Returns the value of `key`; NULL if the key is missing, or `map` is NULL or not a map. */
struct node *node_find(const struct node *map, const char *key);
struct node *node_make(struct arena *, enum node_kind, const struct source_location *);
/* Appends a pair or item; key is NULL in a list. Does not search for an equal key. */
void node_append(struct arena *, struct node *, struct node *key, struct node *item);
/* Adds the pair, or replaces key and value of the existing pair. */
void node_set(struct arena *, struct node *map, struct node *key, struct node *value);
/* Removes the pair of `key`, if it exists. */
void node_drop(struct node *map, const char *key);

/* Replaces ${NAME} and ${NAME:-default} in the text of a scalar that was just read; $${ is a
 * literal ${. The inserted text is not expanded again and stays text: it creates no lists or maps.
 * Returns false after an error was reported; the scalar is then marked as refused. */
bool expand_scalar(struct arena *, struct diag *, struct node *);

/* Adds `text` in the notation of a file that reads back as this text. */
void expand_escape(const char *text, struct text *out);

#endif
