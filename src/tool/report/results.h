/* Results of files, which results_json.h reads, and of runs of this process, which process_results.h adds. */
#ifndef RESULTS_H
#define RESULTS_H

#include <epa2a/status.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/text.h"
#include "report/result_keys.h"
#include "report/rows.h"
#include "result/result.h"

struct operation;
struct op_property;

/* The machine of a run. "": unknown. */
struct results_machine {
    const char *host;
    const char *version; /* of epa2a */
};

struct results_run {
    const char
        *path; /* path of its file; of a run of this process: of the file of --json, or "now" */
    const char *file;  /* of the experiment */
    const char *id;    /* of the experiment: the same on all machines; "": the file has none */
    const char *label; /* name for display: ends with "#2" for a repetition */
    const char *named; /* its name in runs:; "": none */
    const char *name;  /* name of the experiment */
    const char *verb, *status;
    const char *started;               /* RFC 3339; "": unknown */
    const char *context;               /* notes of --context, as "switch=a, rack=3"; "none" */
    const char *program, *clock;       /* of an imported run; otherwise "" */
    const struct operation *operation; /* the operation that defines the size, */
    double size;                       /* of each rank; 0: none */
    bool ok;                           /* the run was successful */
    bool fault;                        /* a fault was injected */
    bool imported;                     /* another program printed it */
    struct run_stage *stage;
    uint32_t n_stages;
    const struct run_stage *timed; /* the selected stage */
    struct run_figures figures;    /* the same rows, and figures of summaries */
    double elapsed_s;
    double time_ns[ROW_TIMES]; /* in "summary" of a document with this run alone; NaN: unknown */
    double iterations;         /* requested; NaN: unknown */
    const struct results_key *key; /* [n_keys] of the experiment */
    uint32_t n_keys;
    /* [n_facts] keys of the machine, and "timing", "plugins" and "world": the measurement of time, names
     * and hashes of plugins, and the start of ranks. */
    const struct results_key *fact;
    uint32_t n_facts;
    struct results_machine machine;
    double ranks;                       /* NaN: unknown */
    const struct op_property *delivers; /* [n_delivers] output properties */
    uint32_t n_delivers;
    bool has_delivers;    /* false: the properties are unknown */
    const char *recorded; /* the whole result as JSON, if `keeps_records` */
};

/* Results of one file or more, or of this process; initially {0}. */
struct results {
    const char *path, *reading; /* the first file, and the last */
    struct results_run *run;
    uint32_t n;
    const char *order;   /* of runs, in the first document; NULL: unknown */
    uint64_t order_seed; /* of that order */
    bool keeps_records;  /* the caller needs `recorded` of runs */
    struct arena *arena; /* owns texts and samples */
};

/* Begins results of that path, unless they have begun. */
void results_begin(struct results *, const char *path);
/* Adds a run, initially zero. */
struct results_run *results_append(struct results *);
/* Sets operation and size of a run by its keys, or the operation by its name. */
void results_find_operation(struct results_run *, const char *operation);
/* Adds a copy of a run of other results. */
void results_add_copy(struct results *, const struct results_run *);
void results_free(struct results *);

/* Selection of runs and of their times. */
struct results_wish {
    const char *stage;       /* NULL: whole iterations */
    const char *const *only; /* globs of labels or ids; empty: all */
    uint32_t n_only;
};
bool results_picked(const struct results_run *, const struct results_wish *);
/* Keeps the successful runs that are picked and have samples of that stage. Returns the number of
 * runs without samples. */
uint32_t results_choose(struct results *, const struct results_wish *);

/* Returns the stage of that name; NULL: the run has no such stage, or no samples of it. */
const struct run_stage *results_stage(const struct results_run *, const char *name);

/* Returns the number of bytes of a label without the number of a repetition. */
size_t results_label_bytes(const char *label);

/* Returns true for the name of a row of whole iterations. */
bool results_is_total(const char *stage);
/* Returns the row of whole iterations; NULL: none. */
const struct run_stage *results_total(const struct results_run *);

/* Warns about failed runs, which are left out. */
void results_warn_failed(const struct results *);

enum results_part {
    RESULTS_SHAPE,   /* the problem, without seeds, names and lengths of a run */
    RESULTS_MEANS,   /* algorithm, transport, backend, launcher */
    RESULTS_MACHINE, /* processor, cores, device, kind of build */
};

/* Finds the first difference between two runs, as "bench.warmup: 20, and 10"; returns false if the
 * runs are equal. */
bool results_differ(const struct results_run *a, const struct results_run *b, enum results_part,
                    char *what, uint32_t room);

/* Returns the value of a key of the experiment: of a section, or at the top (section NULL); NULL: the
 * run has no such key. */
const char *results_value(const struct results_run *, const char *section, const char *key);

/* Returns the number of a key of the experiment; NaN: the run has no such key, or no number. */
double results_key_number(const struct results_run *, const char *path);

/* The problem of a run: two runs are comparable if it is equal. A list of keys in groups: "shape"
 * (RESULTS_SHAPE without the size), "machine" (RESULTS_MACHINE), "timing", "delivers" (output properties
 * except the keys of `across`), "verb" and, of an imported run, "source". A key without a path is the value
 * of its whole group. */
struct question_key {
    const char *group, *path, *shown;
};
struct results_question {
    struct question_key *key; /* [n], in order of group and path */
    uint32_t n;
};

void results_ask(const struct results_run *, const char *const *across, uint32_t n_across,
                 struct arena *, struct results_question *out);
bool results_same_question(const struct results_question *, const struct results_question *);
/* Returns true if two problems agree in all keys known for both, except machine, clock and size:
 * for imported runs, which have few keys. */
bool results_agree(const struct results_question *, const struct results_question *other);

#endif
