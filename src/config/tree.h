/* Changes to an experiment's tree before it is read: --set, the keys of a run, and a file
 * laid over the one that it includes. */
#ifndef TREE_H
#define TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <epa2a/status.h>

/* Errors about a text the user wrote: collected, then printed compiler style, with the
 * source line and a caret. Nothing stops at the first. */

struct diag;

/* A place: file:line:column, 1-based, and how many columns the caret underlines. `file` is
 * "--set" for a value from the command line; `source` is all of its text, for the snippet. */
struct source_location {
    const char *file, *source;
    uint32_t line, column, width;
};

struct diag *diag_create(void);
void diag_destroy(struct diag *);
uint32_t diag_errors(const struct diag *);

/* `hint` (may be NULL) goes behind the caret: did you mean 'transport'? */
__attribute__((format(printf, 4, 5))) void diag_error(struct diag *, const struct source_location *,
                                                      const char *hint, const char *fmt, ...);
__attribute__((format(printf, 3, 4))) void diag_note(struct diag *, const struct source_location *,
                                                     const char *fmt, ...);
/* Between these, errors are of one run of `file`. One that another run has already is not
 * reported again, only counted. run NULL: all that was reported for it is forgotten. skipped: the
 * run is skipped for these errors, and the command goes on. */
void diag_run_begin(struct diag *);
void diag_run_end(struct diag *, const char *file, const char *run, bool skipped);
void diag_print(const struct diag *, FILE *);       /* at most 20 errors, then how many more */
void diag_print_first(const struct diag *, FILE *); /* one line, or nothing */
const char *diag_first_text(const struct diag *);   /* without its place; NULL: no error */

/* Where a line of a text begins, counted from 1, by YAML's line breaks; NULL: there are not so
 * many. How many characters are before `end`. */
const char *diag_line(const char *text, uint32_t line);
uint32_t diag_characters(const char *text, const char *end);

/* The tree of one file, and the collector of its errors. */
struct tree {
    struct arena *arena;
    struct diag *diag;
    struct node *root; /* a map */
};

struct section;

struct node *tree_word(struct arena *, const char *text, const struct source_location *);
/* A deep copy that one run can change; texts are shared. */
struct node *tree_copy(struct arena *, const struct node *);
bool tree_equal(const struct node *, const struct node *);

/* `transport: shm` as `transport: {name: shm}`, a list of `tokens` as a map; anything else
 * as it is. The section may be NULL. */
struct node *tree_whole(struct arena *, const struct section *, struct node *value);

/* Lays `over` on the tree. Maps are merged key by key; one that names the plugin or the kind
 * stands for the whole section, as a bare value does, except for keys of a model. With `dotted`,
 * "bench.warmup" is a key of the section `bench`. `model: NAME` lays that model on the tree first.
 * `over` is copied. */
void tree_lay(struct tree *, const struct node *over, bool dotted);

/* Replaces `model: NAME` at the top by the keys of that model, below all other keys. */
void tree_expand_model(struct tree *);

/* A path as it is seen from the folder of the file that names it. */
const char *tree_beside(struct arena *, const char *file, const char *path);

/* Reads a file, the files that it includes, and models. The tree has no `include`. */
enum epa_status tree_read_file(struct arena *, const char *file, struct diag *, struct node **out);

/* --set "key=value". In matrix and zip, keys have points in them: what is behind the first
 * point is one key. */
void tree_set(struct tree *, const char *argument);

/* ----  ---- */

struct arena;
struct text;

enum node_kind { NODE_SCALAR, NODE_MAP, NODE_LIST };

struct node {
    enum node_kind kind;
    struct source_location location;
    const char *text;      /* scalar: its value; never NULL there */
    bool quoted;           /* scalar: in quotes, so a string whatever it looks like */
    const char *variables; /* scalar: of the environment, that are in it; or NULL */
    bool refused;          /* an error was reported about it: no second one need be */
    bool from_model;       /* a model (config/model.h) gives it, not the user */
    uint32_t n;            /* map: pairs; list: items */
    struct node **key;     /* map: [n] scalars */
    struct node **item;    /* map: [n] values; list: [n] items */
};

/* What is in `text` from byte `from` on: all before it is of its first line and one byte a column,
 * as in --set key=value. expands: values may have ${NAME} in them, as those of a file. All errors
 * go to diag. *out is NULL if there is no tree to go on with. `name` is what messages call the
 * text; text and name are copied into the arena. */
enum epa_status yaml_parse(struct arena *, const char *name, const char *text, size_t bytes,
                           size_t from, bool expands, struct diag *, struct node **out);
enum epa_status yaml_read(struct arena *, const char *path, struct diag *, struct node **out);

/* The value of `key`; NULL if there is none, or `map` is NULL or no map. */
struct node *node_find(const struct node *map, const char *key);
struct node *node_make(struct arena *, enum node_kind, const struct source_location *);
/* At the end; key is NULL in a list. Does not look for the same key. */
void node_append(struct arena *, struct node *, struct node *key, struct node *item);
/* Adds the pair, or puts key and value in place of the pair of that key. */
void node_set(struct arena *, struct node *map, struct node *key, struct node *value);
/* Takes the pair of `key` out, if there is one. */
void node_drop(struct node *map, const char *key);

/* Replaces ${NAME} and ${NAME:-default} in the text of a scalar that was just read; $${ is a
 * literal ${. What is put in is not looked at again and stays text: it makes no lists or maps.
 * False: the reason is reported, and the scalar is marked as refused. */
bool expand_scalar(struct arena *, struct diag *, struct node *);

/* Adds `text` as a value of a file has to be written to come out as that. */
void expand_escape(const char *text, struct text *out);

#endif
