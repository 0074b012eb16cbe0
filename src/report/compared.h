/* What a comparison found, a row for each stage: as text, Markdown and JSON. */
#ifndef COMPARED_H
#define COMPARED_H

#include <stdio.h>

#include "base/stats.h"
#include "base/text.h"
#include "report/results.h"

struct compared_row {
    char run[200]; /* what it is called */
    const char *stage;
    struct comparison x;
    enum compare_verdict verdict;
    bool judged; /* false: it is there to explain another row, and has no verdict */
};

struct compared {
    const char *a, *b; /* what the sides are called */
    double threshold, alpha;
    uint32_t rounds;   /* in which sides took turns; 0: they did not */
    const char *taken; /* how turns were taken, in words; or NULL */
    struct compared_row *row;
    uint32_t n, room;
};

/* A run without the number of its repetition. Returns out. */
char *compared_name(const struct results_run *, char *out, size_t room);

/* A row to fill, at the end; NULL: no memory. */
struct compared_row *compared_add(struct compared *);
void compared_free(struct compared *);

uint32_t compared_count(const struct compared *, enum compare_verdict);

/* With what to do where something is unclear. */
void compared_text(FILE *, const struct compared *);
void compared_markdown(struct text *, const struct compared *);
enum epa_status compared_json(struct text *, const struct compared *, struct epa_error *);

#endif
