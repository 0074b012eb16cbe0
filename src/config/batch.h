/* The runs of a file: `runs:` (named sets of overrides), each with every point of `matrix:`
 * (a cross product), each with every one of `zip:` (lists taken together), each `repeat:`
 * times. The other keys are the base of all. A file with none of these has one run. */
#ifndef BATCH_H
#define BATCH_H

#include "config/experiment.h"
#include "config/tree.h"

enum { BATCH_RUNS_MOST = 4096 }; /* unless the caller wants more */

/* The keys at the top of a file that are not of the experiment. */
struct batch_key {
    const char *name, *help; /* NULL ends the list */
};
extern const struct batch_key batch_keys[];
bool batch_is_key(const char *key);

/* Runs by label or id, each glob a choice more; none: all. */
struct batch_pick {
    const char *const *glob;
    uint32_t n;
};
/* id: NULL where it is not known. */
bool batch_picks(const struct batch_pick *, const char *label, const char *id);

struct batch_run {
    const char *label;       /* never NULL */
    struct experiment *x;    /* NULL: a plugin is not here, or it is wrong and not picked */
    struct epa_error absent; /* which, and why */
    uint32_t repetition;     /* from 1 */
};

struct batch {
    struct arena *arena; /* outlives the experiments */
    const char *file;
    uint32_t n;
    struct batch_run *run; /* in the order of the file */
};

/* Reads `file` and builds all its runs. `sets` go over what a run sets, but for those of
 * matrix, zip and repeat. As experiment_read() otherwise; where there are several runs, one
 * whose plugin is not here is no error, though `diag` has it. */
enum epa_status batch_read(const char *file, const char *const *sets, uint32_t n_sets,
                           uint32_t max_runs, struct registry *, struct diag *, struct batch **out);
/* The same of those runs that are picked: what others have wrong is no error, and they have
 * no `x` then. text: YAML that is in no file, and `name` what messages call it; or NULL. */
enum epa_status batch_read_some(const char *name, const char *text, const char *const *sets,
                                uint32_t n_sets, const struct batch_pick *, uint32_t max_runs,
                                struct registry *, struct diag *, struct batch **out);
void batch_destroy(struct batch *);

/* The tree of a file with what it includes and the sets of matrix, zip and repeat; root is
 * NULL where there is none to go on with. */
void batch_read_tree(struct tree *, const char *file, const char *const *sets, uint32_t n_sets);
/* Applies the other sets. */
void batch_set_all(struct tree *, const char *const *sets, uint32_t n_sets);

/* Refuses keys of the file as a whole in what is laid over it. */
void batch_check_overrides(struct tree *, const struct node *map, const char *of);

/* Points of a matrix or a zip: maps of keys, with points in them, to values. */
struct points {
    uint32_t n, room;
    struct node **item;
};
/* batch_points.c: where `node` is NULL there is one point that says nothing. Errors go to
 * the tree's diag; more than `most` points are one. */
void points_of_matrix(struct tree *, const struct node *node, uint32_t most, struct points *out);
void points_of_zip(struct tree *, const struct node *node, uint32_t most, struct points *out);

/* batch_label.c: "NAME key=value key=value #2", the keys of both points; NULL: it would be
 * empty, as for the only run of a file. */
const char *batch_label(struct arena *, const char *name, const struct node *matrix,
                        const struct node *zip, uint32_t repetition);
/* 48 bits over every value of the resolved experiment but `name` and `profile`. */
uint64_t batch_hash(const struct experiment *);

#endif
