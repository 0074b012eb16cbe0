/* Results that were written with --json, --json-lines or --out-dir, read again. */
#ifndef RESULTS_H
#define RESULTS_H

#include <epa2a/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/text.h"
#include "base/json.h"

struct operation;

struct results_stage {
    const char *name;
    double *sample; /* [n] ns, in order */
    uint64_t n;
};

struct results_run {
    const char *path;  /* of its file */
    const char *id;    /* of the experiment: the same on all machines; "": the file has none */
    const char *label; /* what people call it: ends with "#2" where it was repeated */
    const char *named; /* its name in runs:; "": it has none */
    const char *name;  /* the experiment's */
    const char *verb, *status;
    const char *title;                 /* what a chart calls it */
    const struct operation *operation; /* that whose size the experiment has, */
    double size;                       /* of each rank; 0: it has none */
    bool ok;                           /* it ended well */
    bool fault;                        /* one was planted in it */
    bool imported;                     /* another program printed it */
    struct results_stage *stage;
    uint32_t n_stages;
    const struct results_stage *timed; /* the one that was chosen */
    const json_t *json;                /* all of it */
    const json_t *document;            /* that contains it */
};

/* Of one file or more; {0} to begin with. */
struct results {
    const char *path, *reading; /* the first file, and the last */
    struct results_run *run;
    uint32_t n;
    json_t *root;        /* owns the strings */
    struct arena *arena; /* and the samples */
};

/* Adds the runs of a file, or of a folder, of which a last line that was cut short is no part.
 * EPA_ERR_CONFIG says what is wrong with it, EPA_ERR_SYSTEM why it cannot be read. */
enum epa_status results_read(const char *path, struct results *out, struct epa_error *err);
/* Of a document in memory, which it takes; `path` is what it is called. */
enum epa_status results_of(const char *path, json_t *document, struct results *out,
                           struct epa_error *err);
void results_free(struct results *);
/* Which runs, and which of their times. */
struct results_wish {
    const char *stage;       /* NULL: whole iterations */
    const char *const *only; /* globs of labels or ids; none: all */
    uint32_t n_only;
};
bool results_picked(const struct results_run *, const struct results_wish *);
/* Keeps those that ended well, are picked and have samples of that stage. Returns how many have
 * none. */
uint32_t results_choose(struct results *, const struct results_wish *);

/* The stage of that name; NULL: it has none, or no samples of it. */
const struct results_stage *results_stage(const struct results_run *, const char *name);

/* How many bytes of a label say what was run: without the number of a repetition. */
size_t results_label_bytes(const char *label);

/* That of whole iterations; NULL: it has none. */
const struct results_stage *results_total(const struct results_run *);

/* Warns of runs that did not end well, which are left out. */
void results_warn_failed(const struct results *);
/* Reads n files, and warns of such runs. */
enum epa_status results_read_all(const char *const *path, uint32_t n, struct results *out,
                                 struct epa_error *);

enum results_part {
    RESULTS_SHAPE,   /* what was to be done; seeds, names and lengths of a run aside */
    RESULTS_MEANS,   /* by what: algorithm, transport, backend, launcher */
    RESULTS_MACHINE, /* where: processor, cores, device, kind of build */
    RESULTS_ALL,     /* of an experiment */
};

/* The first thing in which two runs differ, as "bench.warmup: 20, and 10"; false: none. */
bool results_differ(const struct results_run *a, const struct results_run *b, enum results_part,
                    char *what, uint32_t room);

/* Adds a value as people write it; strings without quotes, unless `quoted`. */
void results_add_value(struct text *, const json_t *, bool quoted);

/* {"algorithm.name": "ll_v2", "moe.hidden": 7168, ...}: the keys of that part of an experiment, or
 * of a machine; owned by the caller. */
json_t *results_part(const json_t *experiment, enum results_part);

/* The problem of a run as text. Two runs are compared if it is equal: RESULTS_SHAPE without the
 * size, RESULTS_MACHINE, the clock, and what is delivered except the `n` keys of `across`. */
/* An imported one is another program's question; see results_agree(). */
void results_question(const struct results_run *, const char *const *across, uint32_t n,
                      struct text *out);

/* Whether two questions differ in nothing that both say, machine, clock and size aside: for
 * imported runs, which say little. */
bool results_agree(const char *question, const char *other);

/* Names that tell runs apart: the name in runs:, else "ALGORITHM/TRANSPORT", followed by the
 * keys in which runs of that name or algorithm differ, except the size. */
struct results_names {
    json_t *slots; /* {0} to begin with */
};
void results_names_add(struct results_names *, const struct results_run *);
void results_name(const struct results_names *, const struct results_run *, struct text *out);
void results_names_free(struct results_names *);

/* Its notes of --context, as "switch=a, rack=3"; "none". */
void results_context(const struct results_run *, struct text *out);

/* Which run of results is fastest: for each question (what is computed, where, how it is timed and
 * what is delivered) and each size, all runs that answer it, the fastest first. */

struct best_wish {
    struct results_wish which;
    const char *const *across; /* [n_across] what may differ: keys of "delivers" */
    uint32_t n_across;
    double close; /* a loss up to this, as a fraction, is none */
};

struct best;

/* The results, of which those are left that take part, must outlive it. EPA_ERR_CONFIG: there is
 * nothing to choose from, in words. */
enum epa_status best_create(struct results *, const struct best_wish *, struct best **out,
                            struct epa_error *);
void best_destroy(struct best *);

void best_text(FILE *, const struct best *);
void best_markdown(struct text *, const struct best *);
json_t *best_json(const struct best *);

/* Charts of results, drawn by gnuplot: as text, SVG or PNG. */

enum plot_kind {
    PLOT_AUTO,         /* by what the results hold */
    PLOT_TOKENS,       /* latency against tokens, a line for each algorithm and transport */
    PLOT_DISTRIBUTION, /* of samples: a histogram of one run, ECDFs of several */
    PLOT_SKEW,         /* medians of ranks against each other */
    PLOT_STAGES,       /* medians of stages on top of each other, with the limit */
};

enum plot_form { PLOT_TEXT, PLOT_SVG, PLOT_PNG };

struct plot_wish {
    enum plot_kind kind;
    enum plot_form form;
    uint32_t columns; /* of PLOT_TEXT */
    struct results_wish which;
};

/* The script that makes gnuplot draw to its standard output. Text of results comes from
 * elsewhere: nothing of it can be a command there. */
enum epa_status plot_script(struct results *, const struct plot_wish *, struct text *out,
                            struct epa_error *err);

/* The same of a sweep of `epa2a predict` (report/summary.h): its times against ranks. */
enum epa_status plot_prediction(const json_t *document, enum plot_form, uint32_t columns,
                                struct text *out, struct epa_error *err);

/* Imports the output of other benchmarks: `epa2a help importing`. */

/* Adds the results of `text`, which is written to; `path` is the name of the file. `set` are
 * "moe.hidden=7168" or "delivers.rows=fp8" that the file does not say. Lines that cannot be read are
 * left out: `unread` then gets one line of text with the first of them and their number.
 * EPA_ERR_CONFIG: a wrong `set`, or no line could be read, with line and column of the first. */
enum epa_status import_text(const char *path, char *text, const char *const *set, uint32_t n_sets,
                            json_t *results, struct text *unread, struct epa_error *err);

#endif
