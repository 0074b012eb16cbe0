/* The runs of a file: `runs:` (named sets of overrides), each with each point of `matrix:` (a cross
 * product), each with each point of `zip:` (parallel lists), each `repeat:` times, with ratios over
 * the runs of `baseline:`. The other keys are the base of all runs. A file without these keys has
 * one run. */
#ifndef BATCH_H
#define BATCH_H

#include "config/experiment.h"
#include "config/tree.h"

/* Limits of the number of runs in a file: the default, and the maximum of --max-runs. A run
 * occupies memory before it begins. */
enum { BATCH_RUNS_MOST = 4096, BATCH_RUNS_LIMIT = 100000 };

/* A top-level key of a file that does not belong to the experiment. */
struct batch_key {
    const char *name, *help; /* NULL ends the list */
};
extern const struct batch_key batch_keys[];
bool batch_is_key(const char *key);

/* Selection of runs by label or id; each glob adds runs; no glob: all runs. */
struct batch_pick {
    const char *const *glob;
    uint32_t n;
    bool thorough; /* also the variants of each run (thorough_variants) */
    bool skips;    /* other files have runs: a missing plugin skips the only run of this file */
};
/* id: NULL if unknown. */
bool batch_picks(const struct batch_pick *, const char *label, const char *id);

struct batch_run {
    const char *label;    /* never NULL */
    struct experiment *x; /* NULL: a plugin is missing, or the run has errors and is not picked */
    struct epa_error absent; /* the missing plugin and the reason */
    uint32_t repetition;     /* from 1 */
    bool baseline;           /* the denominator of ratios */
    bool variant;            /* a rejected variant is left out, with the reason */
};

struct batch {
    struct arena *arena; /* outlives the experiments */
    const char *file;
    uint32_t n;
    struct batch_run *run; /* in the order of the file */
};

/* Reads a file, or YAML from memory (text; messages call it `name`), and builds the picked runs:
 * mistakes in other runs are not errors, and leave their `x` NULL. `sets` replace keys of a run,
 * except for matrix, zip and repeat. max_runs 0: builds the base only, without the keys of runs.
 * Errors are added to `diag`; the status is EPA_ERR_CONFIG, or EPA_ERR_UNSUPPORTED if the only
 * errors are plugins that cannot be loaded here. If there are several runs, or the pick skips, a
 * run with a missing plugin is not an error. */
enum epa_status batch_read(const char *name, const char *text, const char *const *sets,
                           uint32_t n_sets, const struct batch_pick *, uint32_t max_runs,
                           struct registry *, struct diag *, struct batch **out);
void batch_destroy(struct batch *);

/* Reads the tree of a file with its included files and the sets of matrix, zip and repeat; root is
 * NULL after an error that leaves no tree. */
void batch_read_tree(struct tree *, const char *file, const char *const *sets, uint32_t n_sets);

/* Adds the labels of all runs of a file, without repetitions, as far as the file can be read. Loads
 * no plugin. */
void batch_labels(const char *file, const char *const *sets, uint32_t n_sets,
                  void (*fn)(void *arg, const char *label), void *arg);

/* ---- variants.c: the variants of a run for verify --thorough ---- */

enum { VARIANT_KEYS = 10 };

struct variant {
    const char *name;              /* NULL ends the list */
    uint32_t ops;                  /* operations of the variant, bits 1 << enum epa_op; 0: all */
    const char *set[VARIANT_KEYS]; /* "key=value", applied to the run; NULL ends the list */
    /* Adds keys that depend on the run; returns false if the variant does not fit the run. NULL: no
     * such keys. */
    bool (*fit)(struct arena *, const struct experiment *, const char *set[VARIANT_KEYS]);
};
extern const struct variant thorough_variants[];

/* Returns the variant for a run; false if it does not fit the run. */
bool variant_fit(const struct variant *, struct arena *, const struct experiment *,
                 struct variant *out);

/* ---- read.c: from the tree of one run to a checked experiment ---- */

/* Reads the tree in the arena that the experiment will own: resolves plugins, and calls the
 * algorithm's plan(), so that all errors are found early. All errors are added to the tree's diag.
 * Returns EPA_ERR_CONFIG after an error, EPA_ERR_UNSUPPORTED if the only errors are plugins that
 * cannot be loaded here. flawed: the file already has errors, so plan() is not called. Sets *absent
 * if the only errors are missing plugins. */
enum epa_status experiment_build(const char *file, struct tree *, bool flawed, struct registry *,
                                 struct epa_error *absent, struct experiment **out);

/* ---- points.c ---- */

/* Calls the algorithm's plan() for a transport with `flags`; fills `footprint`. */
enum epa_status experiment_plan(struct experiment *, uint32_t flags, struct epa_error *);

/* The same for another number of ranks, which may exceed this machine. Between nodes, a transport
 * of one node is assumed to have puts. Beyond the ranks that the algorithm accepts, the plan is
 * extrapolated from *planned ranks. Other errors are added to diag, with EPA_ERR_CONFIG. *out lives
 * as long as `from`. */
enum epa_status experiment_resize(const struct experiment *from, uint32_t ranks,
                                  uint32_t ranks_per_node, struct diag *, struct experiment *out,
                                  uint32_t *planned);

/* The points of `matrix:` or `zip:`: a list of maps of keys to values. */

/* Reads the points of `matrix` or `zip` at the top of the tree; an empty point without the key. Any
 * number above `most` counts as most + 1. Errors are added to the tree's diag. */
struct node *points_read(struct tree *, const char *of, uint32_t most);

/* Rejects keys of the whole file in overrides of a run. */
void points_check_overrides(struct tree *, const struct node *map, const char *of);

/* Returns true if two points differ in that key. */
bool points_vary(const struct node *points, const char *key);

#endif
