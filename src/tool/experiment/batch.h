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

/* Selection of runs by label or id; each glob adds runs; no glob: all runs. */
struct batch_pick {
    const char *const *glob;
    uint32_t n;
    bool thorough; /* also the variants of each run (thorough_variants) */
    bool skips;    /* other files have runs: a missing plugin skips the only run of this file */
    /* If not NULL and the file has several runs: the experiment of a run that passes is released at
     * once, so that a list of many runs needs little memory. */
    bool (*passes)(void *arg, const struct experiment *);
    void *passes_arg;
};
/* id: NULL if unknown. */
bool batch_picks(const struct batch_pick *, const char *label, const char *id);

struct batch_run {
    const char *label;    /* never NULL */
    struct experiment *x; /* NULL: a plugin is missing, the run has errors and is not picked, or its
                             experiment has passed and is released */
    const char *id;       /* NULL: without an experiment */
    uint64_t hash, launcher; /* of the experiment, for the id */
    bool passed;
    bool repeats;            /* passed, and further repetitions pass as well */
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

#endif
