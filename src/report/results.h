/* Results that were written with --json, --json-lines or --out-dir, read again. */
#ifndef RESULTS_H
#define RESULTS_H

#include <epa2a/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

struct results_stage {
    const char *name;
    double *sample; /* [n] ns, in order; owned */
    uint64_t n;
};

struct results_run {
    const char *id;    /* of the experiment: alike on all machines; "": the file has none */
    const char *label; /* what people call it: ends with "#2" where it was repeated */
    const char *named; /* its name in runs:; "": it has none */
    const char *name;  /* the experiment's */
    const char *verb, *status;
    bool ok;    /* it ended well */
    bool fault; /* one was planted in it */
    struct results_stage *stage;
    uint32_t n_stages;
    const json_t *json;     /* all of it */
    const json_t *document; /* that it stands in */
};

struct results {
    const char *path;
    struct results_run *run;
    uint32_t n;
    json_t *root; /* owns the strings */
};

/* A file, or the results of a folder, of which a last line that was cut short is no part.
 * EPA_ERR_CONFIG says what is wrong with it, EPA_ERR_SYSTEM why it cannot be read. */
enum epa_status results_read(const char *path, struct results *out, struct epa_error *err);
/* The same from memory; `path` is what it is called. */
enum epa_status results_parse(const char *path, const struct text *, struct results *out,
                              struct epa_error *err);
void results_free(struct results *);
/* Takes run i out. */
void results_drop(struct results *, uint32_t i);

/* Whether one of the globs is its label or id; there are none: all are. */
bool results_picked(const struct results_run *, const char *const *only, uint32_t n_only);

/* The stage of that name; NULL: it has none, or no samples of it. */
const struct results_stage *results_stage(const struct results_run *, const char *name);

/* How many bytes of a label say what was run: without the number of a repetition. */
size_t results_label_bytes(const char *label);

/* That of whole iterations; NULL: it has none. */
const struct results_stage *results_total(const struct results_run *);

/* How much each rank has, by the operation whose key the experiment has; 0: it has none. */
struct operation;
double results_size(const struct results_run *, const struct operation **out);

/* Warns of runs that did not end well, which are left out. */
void results_tell_failed(const struct results *);
/* Reads n files to `out`, and warns of such runs. *n_read of them are the caller's to free, also
 * where one of them cannot be read. */
enum epa_status results_read_all(const char *const *path, uint32_t n, struct results *out,
                                 uint32_t *n_read, struct epa_error *);

enum results_part {
    RESULTS_SHAPE,   /* what was to be done; seeds, names and lengths of a run aside */
    RESULTS_MEANS,   /* by what: algorithm, transport, backend, launcher */
    RESULTS_MACHINE, /* where: processor, cores, device, links, kind of build */
};

/* The first thing in which two runs differ, as "bench.warmup: 20, and 10"; false: none. */
bool results_differ(const struct results_run *a, const struct results_run *b, enum results_part,
                    char *what, uint32_t room);
/* Of an experiment: it says what is to be done, and not by what (algorithm, transport, backend, launcher),
 * how long and under which name. */
bool results_key_is_shape(const char *key);
/* Of an experiment: it says how long and under which name a run goes, and not what it does. */
bool results_key_is_length(const char *key);

/* All that two runs must have alike to be answers to one question, as text: RESULTS_SHAPE without the
 * size, RESULTS_MACHINE, how times were taken, and what is delivered without the `n` keys `across`. */
void results_question(const struct results_run *, const char *const *across, uint32_t n,
                      struct text *out);

/* What runs are called beside each other: their names in runs:, else "ALGORITHM/TRANSPORT", and the
 * keys in which those of that name, or of that algorithm, differ; the size is none of them. */
struct results_names {
    json_t *seen, *differ, *count; /* by what is looked at: {0} to begin with */
};
void results_names_add(struct results_names *, const struct results_run *);
void results_name(const struct results_names *, const struct results_run *, struct text *out);
void results_names_free(struct results_names *);

/* Its notes of --context, as "switch=a, rack=3"; "none". */
void results_context(const struct results_run *, struct text *out);

#endif
