/* The runs of a file: `runs:` (named sets of overrides), each with every point of `matrix:`
 * (a cross product), each with every one of `zip:` (lists taken together), each `repeat:`
 * times, with ratios over the runs of `baseline:`. The other keys are the base of all. A file with
 * none of these has one run. */
#ifndef BATCH_H
#define BATCH_H

#include "config/experiment.h"
#include "config/tree.h"

/* Runs of a file: by default, and the limit of --max-runs. A run takes memory before it begins. */
enum { BATCH_RUNS_MOST = 4096, BATCH_RUNS_LIMIT = 100000 };

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
    bool thorough; /* of each run also its variants (thorough_variants) */
    bool skips;    /* other files have runs: a missing plugin skips the only run of this one */
};
/* id: NULL where it is not known. */
bool batch_picks(const struct batch_pick *, const char *label, const char *id);

struct batch_run {
    const char *label;       /* never NULL */
    struct experiment *x;    /* NULL: a plugin is not here, or it is wrong and not picked */
    struct epa_error absent; /* which, and why */
    uint32_t repetition;     /* from 1 */
    bool baseline;           /* the denominator of ratios */
    bool variant;            /* one that is refused is left out, with the reason */
};

struct batch {
    struct arena *arena; /* outlives the experiments */
    const char *file;
    uint32_t n;
    struct batch_run *run; /* in the order of the file */
};

/* Reads a file, or YAML from memory (text; messages call it `name`), and builds the picked runs:
 * mistakes of other runs are no error, and leave their `x` NULL. `sets` replace keys of a run,
 * except for matrix, zip and repeat. max_runs 0: the base alone, as if it asked for no runs. Errors go to `diag` and are EPA_ERR_CONFIG, or
 * EPA_ERR_UNSUPPORTED if all there is to say is that plugins cannot be loaded here; where
 * there are several runs, or the pick skips, one whose plugin is not here is no error. */
enum epa_status batch_read(const char *name, const char *text, const char *const *sets,
                           uint32_t n_sets, const struct batch_pick *, uint32_t max_runs,
                           struct registry *, struct diag *, struct batch **out);
void batch_destroy(struct batch *);

/* The tree of a file with its included files and the sets of matrix, zip and repeat; root is NULL
 * after an error that leaves no tree. */
void batch_read_tree(struct tree *, const char *file, const char *const *sets, uint32_t n_sets);

/* Labels of all runs of a file, repetitions aside, as far as it can be read: no plugin is asked. */
void batch_labels(const char *file, const char *const *sets, uint32_t n_sets,
                  void (*fn)(void *arg, const char *label), void *arg);

/* ---- variants.c: the variants of a run for verify --thorough ---- */

enum { VARIANT_KEYS = 10 };

struct variant {
    const char *name;              /* NULL ends the list */
    uint32_t ops;                  /* operations it is for, bits 1 << enum epa_op; 0: all */
    const char *set[VARIANT_KEYS]; /* "key=value", laid over the run; NULL: no more */
    /* Adds keys that depend on the run; false: the variant is not for such runs. NULL: there are
     * no such keys. */
    bool (*fit)(struct arena *, const struct experiment *, const char *set[VARIANT_KEYS]);
};
extern const struct variant thorough_variants[];

/* The variant for a run; false: it is not for such runs. */
bool variant_fit(const struct variant *, struct arena *, const struct experiment *,
                 struct variant *out);

/* ---- read.c: from the tree of one run to a checked experiment ---- */

/* Reads the tree, in the arena that the experiment will own: resolves plugins, and asks the
 * algorithm for its plan, so that what can be refused is. All errors go to the tree's diag;
 * EPA_ERR_CONFIG if there was any, EPA_ERR_UNSUPPORTED if all there is to say is that plugins
 * cannot be loaded here. flawed: something was reported for the file already, so the algorithm is
 * not asked. *absent is set where all that is wrong is that plugins are not here. */
enum epa_status experiment_build(const char *file, struct tree *, bool flawed, struct registry *,
                                 struct epa_error *absent, struct experiment **out);

/* ---- points.c ---- */

/* Calls the algorithm's plan() for a transport that gives `flags`; fills `footprint`. */
enum epa_status experiment_plan(struct experiment *, uint32_t flags, struct epa_error *);

/* The same for another number of ranks, which may be more than this machine can run. Between
 * nodes, a transport of one node is assumed to have puts. Beyond the ranks that the algorithm
 * takes, the plan is extrapolated from *planned ranks. Other refusals go to diag,
 * EPA_ERR_CONFIG. *out lives as long as `from`. */
enum epa_status experiment_resize(const struct experiment *from, uint32_t ranks,
                                  uint32_t ranks_per_node, struct diag *, struct experiment *out,
                                  uint32_t *planned);

/* The points of `matrix:` or `zip:`: a list of maps of keys to values. */

/* Points of `matrix` or `zip` at the top of the tree; an empty point without the key. More than
 * `most` count as most + 1. Errors go to the tree's diag. */
struct node *points_read(struct tree *, const char *of, uint32_t most);

/* Refuses keys of the file as a whole in what is laid over it. */
void points_check_overrides(struct tree *, const struct node *map, const char *of);

/* Whether two points differ in that key. */
bool points_vary(const struct node *points, const char *key);

#endif
