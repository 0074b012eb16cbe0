/* Finds the fastest run of results: for each problem (computation, machine, clock and output) and
 * each size, all comparable runs, the fastest first. */
#ifndef REPORT_BEST_H
#define REPORT_BEST_H

#include "base/stats.h"
#include "result/figures.h"
#include "report/results.h"

struct best_wish {
    struct results_wish which;
    const char *const *across; /* [n_across] keys of "delivers" that may differ */
    uint32_t n_across;
    double close;                /* a loss up to this fraction counts as none */
    const struct figure *figure; /* compared figure, one with a direction */
};

/* A run in the comparison. */
struct best_entry {
    const struct results_run *run;
    struct results_question question;
    const char *name;
    uint32_t group;
    double size;
};

/* A run with its repetitions, at one size. */
struct best_candidate {
    const struct best_entry *first; /* the first of n repetitions */
    uint32_t n;
    struct spread spread;
    double loss;     /* relative to the fastest of the contest: 0.1 is 10 % */
    double loss_low; /* bounds of the loss by the bounds of both medians */
    double loss_high;
    bool best;
    bool few; /* the bounds do not meet, but chance separates so few equal runs in over 5 % */
    enum compare_verdict verdict; /* against the best: SAME, SLOWER or UNCLEAR */
};

/* Candidates of one size, the fastest first. */
struct best_contest {
    double size;
    struct best_candidate *candidate;
    uint32_t n;
};

/* Distance of a setting from the best, over all sizes. */
struct best_overall {
    const char *name;
    double mean, worst; /* geometric mean and maximum of (time / best time) */
};

struct best_group {
    const char *title, *delivers, *note; /* note: difference from an earlier title, or "" */
    const struct best_entry *first;
    struct best_contest *contest;
    uint32_t n;
    struct best_overall overall; /* name NULL: one size, or no setting covers all sizes */
    bool one_run;                /* a candidate has a single run */
};

struct best {
    const struct best_wish *wish;
    struct arena *arena;
    struct best_entry *entry;
    uint32_t n_entries;
    struct best_group *group;
    uint32_t n_groups;
};

/* Compares the results. Runs that do not take part are removed; the results must outlive *out.
 * EPA_ERR_CONFIG: there are no runs to compare; err has the reason. */
enum epa_status best_create(struct results *, const struct best_wish *, struct best **out,
                            struct epa_error *);
void best_destroy(struct best *);

void best_text(FILE *, const struct best *);
void best_markdown(struct text *, const struct best *);

/* Returns true if runs are compared by their samples; otherwise by one figure of each run. */
bool best_is_by_samples(const struct best *);
/* Returns the word for the verdict on a candidate in tables and JSON. */
const char *best_verdict_word(const struct best_candidate *);
/* Returns the loss of a candidate in words: "+14.4 %", "+1.0 % close", or for an undecided
 * comparison "+37.0 % unclear (-5.1 % to +153.0 %)". */
const char *best_loss_text(const struct best *, const struct best_candidate *);

#endif
