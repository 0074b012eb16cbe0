/* Shared by `compare --run` and `tune`: two sides take turns in rounds until one is known to be
 * faster. */
#include "cli/turns.h"

#include <math.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "cli/progress_line.h"
#include "boot/process_id.h"

/* Ratio of the median to the fastest samples above which other programs use the cores. The median
 * then measures the other programs: with 40 runnable threads on 2 cores the logarithm of a round's
 * ratio had a deviation of 0.7 by medians, 0.12 by the fastest 5 % and 0.03 by the fastest 1 % of
 * 100 to 370 alternating samples. */
static const double BUSY = 1.5;

bool turns_are_busy(double median, double fastest)
{
    return fastest > 0 && median > BUSY * fastest;
}

/* ---- rounds ---- */

void turns_init(struct turns *t, struct arena *arena, uint32_t n_stages)
{
    t->n_stages = n_stages;
    for (uint32_t i = 0; i < n_stages; i++) {
        t->figure[i] = arena_alloc(arena, TURNS_ROUNDS * sizeof(double));
        t->median[i][0] = arena_alloc(arena, TURNS_ROUNDS * sizeof(double));
        t->median[i][1] = arena_alloc(arena, TURNS_ROUNDS * sizeof(double));
    }
}

/* Takes a round. The order of the sides follows the Thue-Morse sequence (A B, B A, B A, A B ...), so
 * that drift and the effect of the preceding turn affect both sides equally often. */
static int take_turns_round(struct turns *t)
{
    uint32_t first = (uint32_t)__builtin_parity(t->rounds);
    double median[TURNS_STAGES][2], figure[TURNS_STAGES];
    int code = t->take(t->arg, first, median, figure);

    for (uint32_t s = 0; s < t->n_stages && code == EXIT_OK; s++) {
        t->median[s][0][t->rounds] = median[s][0];
        t->median[s][1][t->rounds] = median[s][1];
        t->figure[s][t->rounds] = figure[s];
    }
    t->rounds += code == EXIT_OK;
    return code;
}

int turns_take(struct turns *t, uint64_t budget_ns, enum compare_verdict *verdict)
{
    struct comparison x = {.ratio = 1};
    uint64_t longest = 0;
    int code = EXIT_OK;

    t->look = 1;
    *verdict = COMPARE_UNCLEAR;
    while (*verdict == COMPARE_UNCLEAR && t->spent_ns + longest <= budget_ns &&
           t->rounds < TURNS_ROUNDS && code == EXIT_OK) {
        uint64_t before = t->spent_ns;

        code = take_turns_round(t);
        if (code != EXIT_OK)
            break;
        longest = t->spent_ns - before > longest ? t->spent_ns - before : longest;
        if (t->rounds < turns_look(t->look)) {
            x.ratio = exp(t->figure[t->total][t->rounds - 1]);
        } else {
            *verdict =
                turns_judge(t->figure[t->total], t->rounds, t->look, t->threshold, t->alpha, &x);
            t->look += *verdict == COMPARE_UNCLEAR;
        }
        if (t->progress)
            (void)progress_show("round %u: B / A %.3f", t->rounds, x.ratio);
    }
    if (t->progress)
        progress_clear();
    t->is_last = *verdict == COMPARE_UNCLEAR;
    return code;
}

enum compare_verdict turns_result(struct turns *t, uint32_t stage, struct comparison *x)
{
    /* The looks before look k use up alpha (1 - 1 / k). The last look may use the rest of alpha,
     * since no look follows. */
    double alpha = t->is_last ? t->alpha * (t->look + 1) : t->alpha;
    enum compare_verdict verdict =
        turns_judge(t->figure[stage], t->rounds, t->look, t->threshold, alpha, x);

    x->runs_a = x->runs_b = t->rounds;
    x->a = stats_quantile(t->median[stage][0], t->rounds, 500);
    x->b = stats_quantile(t->median[stage][1], t->rounds, 500);
    return verdict;
}

enum epa_status turns_check_alone(const char *command, struct epa_error *err)
{
    struct process_job job = {0};
    enum epa_status status = process_id_find(&job, err);

    if (status == EPA_OK && job.process_id.size > 1)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s starts ranks itself, but this is one process of %u already (%s)",
                        command, job.process_id.size, job.process_id.source);
    return status;
}
