/* Results that were written with --json, --json-lines or --out-dir, read again. */
#ifndef RESULTS_H
#define RESULTS_H

#include <epa2a/status.h>
#include <stdbool.h>
#include <stdint.h>

struct results_stage {
    const char *name;
    double *sample; /* [n] ns, in order; owned */
    uint64_t n;
};

struct results_run {
    const char *id;    /* of the experiment: alike on all machines; "": the file has none */
    const char *label; /* what people call it: ends with "#2" where it was repeated */
    const char *name;  /* the experiment's */
    const char *verb, *status;
    bool ok;    /* it ended well */
    bool fault; /* one was planted in it */
    struct results_stage *stage;
    uint32_t n_stages;
    const void *json; /* the whole of it, for results_differ() */
};

struct results {
    const char *path;
    const char *version; /* of the program that wrote it */
    struct results_run *run;
    uint32_t n;
    uint32_t missing; /* runs of a folder that have no result (yet) */
    void *root;       /* owns the strings */
};

/* A file, or a folder: what its index says is there. EPA_ERR_CONFIG says what is wrong with
 * it, EPA_ERR_SYSTEM why it cannot be read. */
enum epa_status results_read(const char *path, struct results *out, struct epa_error *err);
void results_free(struct results *);
/* Takes run i out. */
void results_drop(struct results *, uint32_t i);

enum results_part {
    RESULTS_SHAPE,   /* what was to be done; seeds, names and lengths of a run aside */
    RESULTS_MEANS,   /* by what: algorithm, transport, backend, launcher */
    RESULTS_MACHINE, /* where: processor, cores, device, links, kind of build */
};

/* The first thing in which two runs differ, as "bench.warmup: 20, and 10"; false: none. */
bool results_differ(const struct results_run *a, const struct results_run *b, enum results_part,
                    char *what, uint32_t room);

/* Its notes of --context, as "switch=a, rack=3"; "none". */
struct text;
void results_context(const struct results_run *, struct text *out);

#endif
