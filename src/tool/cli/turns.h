/* Two sides that take turns in rounds. */
#ifndef TURNS_H
#define TURNS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/stats.h"
#include "base/arena.h"
#include "base/text.h"

/* Quantile, in per mille, that represents a turn on a busy machine. */
enum { TURNS_FASTEST = 10 };
/* Returns true if the samples of a turn show that other programs use the cores. */
bool turns_are_busy(double median, double fastest);

/* Two sides that take turns, in rounds of A B or B A. A turn is one measurement of one side. */
enum { TURNS_STAGES = 32, TURNS_ROUNDS = 4096 };
struct turns {
    /* Takes a turn of each side, side `first` first. Stores for each stage the medians in ns and
     * the logarithm of B / A; adds the elapsed time to spent_ns. Returns an exit code. */
    int (*take)(void *arg, uint32_t first, double median[][2], double *figure);
    void *arg;
    uint32_t n_stages, total;        /* total: index of the stage that decides */
    double threshold, alpha;         /* criteria of the decision */
    double *figure[TURNS_STAGES];    /* [rounds] logarithms of B / A */
    double *median[TURNS_STAGES][2]; /* [rounds] ns */
    uint32_t rounds, look;           /* look: as in turns_judge() */
    bool is_last;                    /* the budget is spent without a decision */
    uint64_t spent_ns;
    bool progress; /* show the progress line */
};
/* Allocates arrays for all rounds of n_stages stages. */
void turns_init(struct turns *, struct arena *, uint32_t n_stages);
/* Takes rounds until the verdict is clear or the budget has no time for another round. Returns the
 * exit code of the turn that failed. */
int turns_take(struct turns *, uint64_t budget_ns, enum compare_verdict *verdict);
/* Returns the verdict on a stage after at least one round, with the medians of all turns. Sorts
 * `median`. */
enum compare_verdict turns_result(struct turns *, uint32_t stage, struct comparison *);

/* Fails if a launcher such as mpirun started this process as one of several. */
enum epa_status turns_check_alone(const char *command, struct epa_error *);

#endif
