/* A comparison of two sides, with a row for each stage: its table. */
#ifndef COMPARED_H
#define COMPARED_H

#include "base/stats.h"
#include "cli/cli.h"
#include "result/figures.h"
#include "report/results.h"

/* A stage of a run on both sides. */
struct compared_row {
    const char *run, *stage; /* owned by the arena */
    struct comparison of;
    enum compare_verdict verdict;
    bool judged; /* false: the row has no verdict and only explains another row */
};

/* Turns of compare --run. */
struct compared_turns {
    uint32_t rounds; /* 0: the sides did not take turns */
    double percentile;
    bool alternated;
    const char *taken; /* a sentence about the turns */
};

struct compared {
    const char *a, *b; /* names of the sides */
    double threshold, alpha;
    const struct figure *figure; /* figure_default(): the sides are compared by samples */
    struct compared_turns turns;
    struct compared_row *row; /* [n] */
    uint32_t n;
    struct arena *arena; /* of the caller */
};

/* Adds a row, with a copy of the names. */
void compared_add(struct compared *, const struct results_run *, const char *stage,
                  const struct comparison *, enum compare_verdict, bool judged);
/* Returns true if a row has the verdict COMPARE_SLOWER. */
bool compared_is_slower(const struct compared *);
/* Returns true if the sides are compared by their samples. */
bool compared_is_by_samples(const struct compared *);
/* Returns the word for a verdict, and a value of a side: times are whole nanoseconds. */
const char *compared_word(const struct compared *, const struct compared_row *);
double compared_value(const struct compared *, double);
/* Writes the label of a run without the number of its repetition, or its name. Returns out. */
char *compared_name(const struct results_run *run, char *out, size_t room);

/* Prints a comparison; with `documents` also writes --json and --markdown. */
enum epa_status compare_print(const struct cli *, const struct compared *, bool documents,
                              struct epa_error *);

#endif
