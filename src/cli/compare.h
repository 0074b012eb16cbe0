/* What `compare`, `compare --run`, `rerun` and `tune` share. */
#ifndef COMPARE_H
#define COMPARE_H

#include "base/stats.h"
#include "cli/cli.h"
#include "report/results.h"

/* What was found, as a document: of sides called `a` and `b`; rounds 0: they did not take turns. */
json_t *compared_create(const char *a, const char *b, double threshold, double alpha);
/* Adds a row; `judged` false: it explains another one and has no verdict. */
void compared_add(json_t *compared, const struct results_run *, const char *stage,
                  const struct comparison *, enum compare_verdict, bool judged);
bool compared_is_slower(const json_t *);

/* Runs experiments by a command and reads their results; `cli` is what that command gets, and
 * `path` what the results are called. Returns its exit code; *out has no root where it left no
 * results. */
int compare_run(struct cli *cli, int (*command)(const struct cli *), const char *path,
                struct results *out);

/* Two sides that take turns, in rounds of A B or B A. */
enum { TURNS_STAGES = 32, TURNS_ROUNDS = 4096 };
struct turns {
    /* A turn of a side: the median of each stage, in ns; adds what it took to spent_ns. Returns an
     * exit code. */
    int (*take)(void *arg, uint32_t side, double *median);
    void *arg;
    uint32_t n_stages, total;        /* which stage is judged */
    double threshold, alpha;         /* by these */
    double *figure[TURNS_STAGES];    /* [rounds] logarithms of B / A */
    double *median[TURNS_STAGES][2]; /* [rounds] ns */
    uint32_t rounds, look;           /* look: as in turns_judge() */
    uint64_t spent_ns;
    bool progress; /* is shown */
};
/* Room for all rounds of n_stages. */
void turns_init(struct turns *, struct arena *, uint32_t n_stages);
/* Rounds until it is decided or the budget has no room for another; the exit code of the turn that
 * failed. */
int turns_take(struct turns *, uint64_t budget_ns, enum compare_verdict *verdict);
/* What the rounds, one at least, say of a stage, with the medians of all turns. Sorts `median`. */
enum compare_verdict turns_result(struct turns *, uint32_t stage, struct comparison *);
/* Whether a progress line goes to standard error. */
bool turns_show_progress(const struct cli *);

/* Of a stage of the only run; NAN: it has none. */
double turns_percentile(const struct results *, const char *stage, uint32_t permille,
                        uint64_t *samples);
/* A command with more --set, quiet, its results in memory: as compare_run(). */
int turns_run(const struct cli *, int (*command)(const struct cli *), const char *const *set,
              uint32_t n, struct results *out);
/* Refuses to start ranks where this is one of several processes already. */
enum epa_status turns_check_alone(const char *command, struct epa_error *);

/* Compares by --threshold, --alpha and --force. `documents`: --json and --markdown are for what
 * comes out. */
int compare_results(const struct cli *, const struct results *a, const struct results *b,
                    bool documents);

/* Whether a run of `a` and the one of `b` may be compared; says in what they differ. */
enum epa_status compare_check(const struct cli *, FILE *notes, const struct results *a,
                              const struct results *b, struct epa_error *);

/* Prints a comparison, which is taken, and writes documents. */
enum epa_status compare_print(const struct cli *, json_t *compared, const char *taken,
                              bool documents, struct epa_error *);

#endif
