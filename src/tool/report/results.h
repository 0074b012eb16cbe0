/* Reads the results that --json, --json-lines or --out-dir wrote. */
#ifndef RESULTS_H
#define RESULTS_H

#include <epa2a/status.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/json.h"
#include "base/text.h"
#include "report/result_keys.h"
#include "report/rows.h"
#include "result/result.h"

struct operation;
struct op_property;

struct results_run {
    const char *path;  /* path of its file */
    const char *id;    /* of the experiment: the same on all machines; "": the file has none */
    const char *label; /* name for display: ends with "#2" for a repetition */
    const char *named; /* its name in runs:; "": none */
    const char *name;  /* name of the experiment */
    const char *verb, *status;
    const char *title;                 /* name in a chart */
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
    const struct results_key *fact; /* [n_facts] of the machine, as of RESULTS_MACHINE */
    uint32_t n_facts;
    const struct op_property *delivers; /* [n_delivers] output properties; none: unknown */
    uint32_t n_delivers;
    const json_t *json; /* the whole result of a file; NULL: of compare --run */
};

/* Results of one file or more; initially {0}. */
struct results {
    const char *path, *reading; /* the first file, and the last */
    struct results_run *run;
    uint32_t n;
    json_t *root;        /* owns the strings */
    struct arena *arena; /* owns the samples */
};

/* Adds the runs of a file, or of a folder, without a truncated last line. EPA_ERR_CONFIG: err
 * describes the defect of the file; EPA_ERR_SYSTEM: err has the reason why it cannot be read. */
enum epa_status results_read(const char *path, struct results *out, struct epa_error *err);
/* Adds the runs of a document in memory, whose reference is taken; `path` is its name. */
enum epa_status results_of(const char *path, json_t *document, struct results *out,
                           struct epa_error *err);
void results_free(struct results *);
/* Returns the name of the order of runs in the first document, and its seed; "": unknown. */
const char *results_order(const struct results *, uint64_t *seed);
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
/* Reads n files, and warns about failed runs. */
enum epa_status results_read_all(const char *const *path, uint32_t n, struct results *out,
                                 struct epa_error *);

enum results_part {
    RESULTS_SHAPE,   /* the problem, without seeds, names and lengths of a run */
    RESULTS_MEANS,   /* algorithm, transport, backend, launcher */
    RESULTS_MACHINE, /* processor, cores, device, kind of build */
    RESULTS_ALL,     /* the whole experiment */
};

/* Finds the first difference between two runs, as "bench.warmup: 20, and 10"; returns false if the
 * runs are equal. */
bool results_differ(const struct results_run *a, const struct results_run *b, enum results_part,
                    char *what, uint32_t room);

/* Returns the value of a key of the experiment: of a section, or at the top (section NULL); NULL: the
 * run has no such key. */
const char *results_value(const struct results_run *, const char *section, const char *key);

/* Return a text or a number at a path of a result, "machine.cpu"; "" and NaN: unknown. */
const char *results_text(const struct results_run *, const char *path);
double results_number(const struct results_run *, const char *path);
/* Adds the experiment of a run as indented JSON. */
void results_experiment(const struct results_run *, struct text *out);

/* Adds a value in plain notation; strings without quotes, unless `quoted`. */
void results_add_value(struct text *, const json_t *, bool quoted);

/* Returns {"algorithm.name": "ll_v2", "moe.hidden": 7168, ...}: the keys of that part of an
 * experiment, or of a machine; owned by the caller. */
json_t *results_part(const json_t *experiment, enum results_part);

/* Writes the problem of a run as text. Two runs are comparable if it is equal: RESULTS_SHAPE
 * without the size, RESULTS_MACHINE, the clock, and the output properties except the `n` keys of
 * `across`. */
/* The problem of an imported run names its program; see results_agree(). */
void results_question(const struct results_run *, const char *const *across, uint32_t n,
                      struct text *out);

/* Returns true if two problems agree in all keys known for both, except machine, clock and size:
 * for imported runs, which have few keys. */
bool results_agree(const char *question, const char *other);

/* Adds the notes of --context, as "switch=a, rack=3"; "none". */
void results_context(const struct results_run *, struct text *out);

#endif
