/* The search of `epa2a tune`. First each value of each option has a turn alone. Then settings are
 * drawn at random, with one value for each option: faster values and values with few measurements
 * are drawn more often. So each turn measures all options, and values that are fast only together
 * are drawn together. Least squares over all turns give the effect of each value; effects are
 * logarithms and add up. The estimate of a setting is the sum of its effects, corrected by its own
 * turns. Turns are grouped in rounds, and the fit gives each round a level of its own, since machines
 * drift. Each round has a turn of the file's settings and a turn of the best setting so far. A value
 * that is much slower alone is not combined with others. The first turn of a setting checks results,
 * and a verify turn checks the best setting. At the end the best and the file's settings take turns
 * as in `compare --run`. */
#include "cli/tune_search.h"

#include <math.h>
#include <signal.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/random.h"
#include "cli/cli.h"
#include "cli/progress_line.h"
#include "cli/tune.h"
#include "cli/tune_candidates.h"

enum {
    ROUND = 5,  /* settings in a round, in addition to the file's settings */
    ROUNDS = 4, /* least and greatest number of rounds with drawn settings */
    ROUNDS_MOST = 80,
    FIT_PASSES = 12,
    OWN = 2,               /* weight of the sum of effects, in turns of the setting */
    ITERATIONS_LEAST = 20, /* least iterations of a turn; more if file and budget allow: */
    HOSTS_LEAST = 100,     /* iterations on hosts */
    GRAPHS_LEAST = 20,     /* samples of graphs */
    ITERATIONS_MOST = 10000
};
#define GAIN 0.005   /* relative gain of a median below which two settings are equal */
#define HOPELESS 1.0 /* logarithm of the loss alone that excludes a value from combinations */
#define NOISE 0.03   /* prior of the noise of a turn, with the weight of NOISE_TURNS turns */
#define NOISE_TURNS 10
#define THRESHOLD 0.01 /* threshold of the last comparison */

/* Effect of a value of an option, or of another algorithm. */
struct effect {
    const struct tune_setting *alone;
    double log, error;
    uint32_t turns;
};

struct measured {
    struct tune_setting *x;
    uint32_t round;
    double log_ns, left; /* left: residual after the level of the round and the effects */
};

struct search {
    struct tune_search *s;
    struct effect *effect;
    struct measured *turn;
    uint32_t effects, turns, rounds;
    uint64_t begun_ns;     /* spent time that does not count for the end of the search */
    double noise, file_ns; /* noise: of a turn's logarithm; file_ns: file's settings, this round */
    struct random random;
};

/* ---- turns ---- */

bool tune_is_interrupted(int code)
{
    return code == exit_code(EPA_ERR_INTERRUPTED, SIGINT) ||
           code == exit_code(EPA_ERR_INTERRUPTED, SIGTERM);
}

static int take_counted_turn(struct tune_search *s, const struct tune_setting *x,
                             enum tune_verb verb, struct tune_turn *out)
{
    bool verify = verb == TUNE_VERIFY;
    int code = s->take(s, x, verb, out);

    s->took_ns = out->took_ns;
    s->t.spent_ns += out->took_ns;
    s->t.turns += out->took_ns > 0;
    if (!verify && code == EXIT_OK)
        s->t.samples = out->samples;
    if (!verify && out->took_ns > 0) {
        s->bench_ns += out->took_ns;
        s->benches++;
    }
    return code;
}

static uint64_t turn_ns(const struct tune_search *s)
{
    return s->benches > 0 ? s->bench_ns / s->benches : s->took_ns;
}

/* Returns the time at which the turns of the search end. The rest of the budget is reserved for the
 * last comparison, which needs 10 rounds for a verdict. */
static uint64_t search_end(const struct search *q)
{
    double budget = (double)(q->s->t.budget_ns - q->begun_ns), last = 40 * (double)turn_ns(q->s);
    double reserved = fmin(fmax(last, 0.3 * budget), TUNE_LAST_MOST * budget);

    return q->s->t.budget_ns - (uint64_t)reserved;
}

/* Handles the exit code of a turn. A failure of the setting drops the setting; a failure of the file's
 * settings ends the search. */
static int handle_outcome(struct tune_search *s, struct tune_setting *x, int code,
                          const struct tune_turn *turn)
{
    if (code == EXIT_OK || s->err.status != EPA_OK || tune_is_interrupted(code))
        return code;
    x->dropped = true;
    x->why = turn->why;
    if (x != s->t.setting[0])
        return EXIT_OK;
    epa_fail(&s->err, EPA_ERR_CONFIG, "%s: the file's settings fail: %s", s->t.cli->arg[0],
             turn->why);
    return code;
}

static double figure_of(const struct tune_search *s, const struct tune_turn *turn)
{
    return s->t.permille == TURNS_FASTEST ? turn->fastest_ns : turn->median_ns;
}

/* Takes the turn of a setting in a round. The first turn of a setting checks its results. */
static int take_round_turn(struct search *q, struct tune_setting *x)
{
    struct tune_turn turn = {0};
    int code = take_counted_turn(q->s, x, x->rounds > 0 ? TUNE_BENCH : TUNE_CHECKED, &turn);
    double ns;

    if (code != EXIT_OK)
        return handle_outcome(q->s, x, code, &turn);
    ns = figure_of(q->s, &turn);
    if (x == q->s->t.setting[0])
        q->file_ns = ns;
    x->ns[x->rounds] = ns;
    x->log_ratio[x->rounds++] = log(ns / q->file_ns);
    q->turn[q->turns++] = (struct measured){x, q->rounds, log(ns), 0};
    return EXIT_OK;
}

/* Returns true if a setting was faster than the file's settings in its last turn. */
static bool is_any_faster(const struct tune *t)
{
    for (uint32_t i = 1; i < t->n; i++) {
        const struct tune_setting *x = t->setting[i];

        if (x->rounds > 0 && !x->dropped && x->log_ratio[x->rounds - 1] < -GAIN)
            return true;
    }
    return false;
}

/* Returns true if the budget allows another turn of the search. If no setting is faster so far,
 * search_end() applies to the remaining budget only. */
static bool has_budget_for_turn(struct search *q)
{
    const struct tune *t = &q->s->t;
    uint64_t next_ns = t->spent_ns + turn_ns(q->s);

    if (next_ns >= search_end(q) && next_ns < t->budget_ns && !is_any_faster(t))
        q->begun_ns = t->spent_ns;
    return next_ns < search_end(q) && q->rounds < TUNE_ROUNDS;
}

static int take_search_round(struct search *q, struct tune_setting **list, uint32_t n)
{
    bool shown = progress_is_on(q->s->t.cli);
    int code = take_round_turn(q, q->s->t.setting[0]);

    for (uint32_t i = 0; i < n && code == EXIT_OK && has_budget_for_turn(q); i++) {
        if (shown)
            (void)progress_show("turn %u: %.60s", q->s->t.turns, list[i]->name);
        if (!list[i]->dropped)
            code = take_round_turn(q, list[i]);
    }
    if (shown)
        progress_clear();
    q->rounds++;
    return code;
}

/* Returns the number of calls in a sample; a graph has many. */
static double calls_of(const struct experiment *x)
{
    const struct bench_options *bench = &x->bench;
    bool graphs = !is_on_hosts(x) && (bench->clock == CLOCK_AUTO || bench->clock == CLOCK_GRAPH);

    return graphs && bench->cache != CACHE_COLD ? bench->calls_per_graph : 1;
}

/* Sets the number of iterations of the next turns. */
static void set_iterations(struct tune_search *s, double n)
{
    uint32_t warmup = s->t.setting[0]->x->bench.warmup;

    s->iterations = (uint32_t)n;
    s->warmup = warmup < s->iterations / 2 ? warmup : s->iterations / 2;
}

/* Verifies the file's settings and chooses the number of iterations of a turn. Short turns have more
 * noise, and the budget allows fewer long turns: iterations take a third of the time of the rest of a
 * turn, with a minimum. Turns of few and of many iterations give the duration of an iteration,
 * including its untimed parts. */
static int calibrate_turns(struct search *q)
{
    struct tune_search *s = q->s;
    struct tune_setting *file = s->t.setting[0];
    double all = file->x->bench.iterations, calls = calls_of(file->x);
    double few = fmax(1, fmin(all / 10, ITERATIONS_LEAST)), iterations = few, few_ns = INFINITY;
    double n_few = 0, ns = 0; /* ns: duration of an iteration */
    uint32_t busy = 0;
    struct tune_turn turn = {0};
    int code = handle_outcome(s, file, take_counted_turn(s, file, TUNE_VERIFY, &turn), &turn);

    s->longest_ns = s->t.budget_ns / 40;
    for (uint32_t i = 0; i < 3 && code == EXIT_OK; i++) {
        double n;

        set_iterations(s, iterations);
        code = handle_outcome(s, file, take_counted_turn(s, file, TUNE_BENCH, &turn), &turn);
        n = s->warmup + (double)turn.samples;
        busy += turns_are_busy(turn.median_ns, turn.fastest_ns);
        ns = turn.median_ns * calls;
        if (i == 2) {
            ns = fmax(ns, ((double)s->took_ns - few_ns) / fmax(n - n_few, 1));
        } else {
            few_ns = fmin(few_ns, (double)s->took_ns);
            n_few = n;
            iterations = i == 0 ? few : fmax(5 * few, fmin(few_ns / 2 / ns, ITERATIONS_MOST));
        }
    }
    s->t.permille = busy > 1 ? TURNS_FASTEST : 500;
    iterations = fmax(fmin(all, calls > 1 ? GRAPHS_LEAST : HOSTS_LEAST),
                      fmin((few_ns / ns - n_few) / 3, ITERATIONS_MOST));
    iterations = fmin(iterations, fmax(ITERATIONS_LEAST, (double)s->t.budget_ns / 200 / ns));
    set_iterations(s, iterations);
    s->longest_ns = (uint64_t)fmax(1e7, 5 * iterations * ns);
    s->bench_ns = s->benches = 0;
    return code;
}

/* ---- effects of values ---- */

static bool has_effect(const struct tune_setting *x, const struct effect *e)
{
    if (x->base != e->alone->base || e->alone->change == NULL)
        return x->base == e->alone->base;
    for (uint32_t i = 0; i < x->n; i++)
        if (strcmp(x->set[i], e->alone->change) == 0)
            return true;
    return false;
}

/* Subtracts from the residuals their mean over the turns with effect e, and returns the mean. For
 * e == NULL uses the turns of the round that starts at *k, and advances *k. Residuals are clipped at
 * 3 deviations to limit the effect of other programs. */
static double subtract_mean(struct search *q, const struct effect *e, uint32_t *k, uint32_t *n)
{
    uint32_t first = e != NULL ? 0 : *k, end = first;
    double sum = 0, mean;

    *n = 0;
    for (; end < q->turns && (e != NULL || q->turn[end].round == q->turn[first].round); end++) {
        if (e != NULL && !has_effect(q->turn[end].x, e))
            continue;
        sum += fmin(fmax(q->turn[end].left, -3 * q->noise), 3 * q->noise);
        (*n)++;
    }
    mean = *n > 0 ? sum / *n : 0;
    for (uint32_t i = first; i < end; i++)
        q->turn[i].left -= e == NULL || has_effect(q->turn[i].x, e) ? mean : 0;
    if (k != NULL)
        *k = end;
    return mean;
}

/* Fits effects and levels of rounds by least squares: each in turn from the residuals of the
 * others. */
static void fit_effects(struct search *q)
{
    double *left = arena_alloc(q->s->t.arena, q->turns * sizeof(*left));
    uint32_t n;

    for (uint32_t i = 0; i < q->effects; i++)
        q->effect[i].log = 0;
    for (uint32_t k = 0; k < q->turns; k++)
        q->turn[k].left = q->turn[k].log_ns;
    for (uint32_t pass = 0; pass < FIT_PASSES; pass++) {
        double noise = q->noise;

        if (pass < FIT_PASSES / 2) /* no clipping */
            q->noise = INFINITY;
        for (uint32_t k = 0; k < q->turns;)
            (void)subtract_mean(q, NULL, &k, &n);
        for (uint32_t i = 0; i < q->effects; i++) {
            q->effect[i].log += subtract_mean(q, &q->effect[i], NULL, &n);
            q->effect[i].turns = n;
        }
        q->noise = noise;
    }
    for (uint32_t k = 0; k < q->turns; k++)
        left[k] = fabs(q->turn[k].left);
    q->noise = (1.48 * stats_quantile(left, q->turns, 500) * q->turns + NOISE * NOISE_TURNS) /
               (q->turns + NOISE_TURNS);
    for (uint32_t i = 0; i < q->effects; i++) {
        struct effect *e = &q->effect[i];

        e->error =
            e->turns == 0 ? 0 : q->noise * sqrt(1.0 / e->turns + 1.0 / (q->turns - e->turns + 1));
    }
}

/* Updates the estimates of all settings; returns the best setting. */
static struct tune_setting *find_best(struct search *q)
{
    struct tune *t = &q->s->t;
    struct tune_setting *best = t->setting[0];

    fit_effects(q);
    for (uint32_t i = 0; i < t->n; i++) {
        struct tune_setting *x = t->setting[i];
        double sum = 0;

        if (x->hopeless)
            continue;
        x->log = 0;
        for (uint32_t k = 0; k < q->effects; k++)
            x->log += has_effect(x, &q->effect[k]) ? q->effect[k].log : 0;
        for (uint32_t k = 0; k < q->turns; k++)
            sum += q->turn[k].x == x ? fmin(fmax(q->turn[k].left, -3 * q->noise), 3 * q->noise) : 0;
        x->log += sum / (x->rounds + OWN);
        if (x->rounds > 0 && !x->dropped && x->log < best->log - (best == t->setting[0] ? GAIN : 0))
            best = x;
    }
    return best;
}

/* Returns true if more turns would hardly change the selected values: each value is known to gain, to
 * lose, or to have little effect. */
static bool is_converged(const struct search *q, const struct tune_setting *best)
{
    bool settled = best->rounds >= ROUNDS;

    for (uint32_t i = 0; i < q->effects; i++) {
        const struct effect *e = &q->effect[i];

        settled = settled &&
                  (e->error < GAIN || e->log + 2 * e->error < 0 || e->log - 2 * e->error > -GAIN);
    }
    return settled;
}

/* ---- the search ---- */

/* Draws from a normal distribution, by Box and Muller. */
static double draw_normal(struct search *q)
{
    double radius = sqrt(-2 * log(1 - random_unit(&q->random)));

    return radius * cos(2 * acos(-1) * random_unit(&q->random));
}

/* Adds the setting of the values with the best estimates. With `random` each estimate is perturbed by
 * its error. NULL: the values are not valid together. */
static struct tune_setting *draw_setting(struct search *q, bool random)
{
    struct tune_search *s = q->s;
    const char **set = arena_alloc(s->t.arena, (q->effects + 1) * sizeof(*set)), **best_set;
    uint32_t best_n = 0, best_base = 0;
    double best = INFINITY;

    best_set = arena_alloc(s->t.arena, (q->effects + 1) * sizeof(*set));
    for (uint32_t base = 0; base < s->n_bases; base++) {
        const char *key = "", *value = NULL;
        double sum = base > 0 ? INFINITY : 0, least = 0; /* INFINITY: the base had no turn yet */
        uint32_t n = 0;

        for (uint32_t i = 0; i <= q->effects; i++) {
            const struct effect *e = i < q->effects ? &q->effect[i] : NULL;
            const char *change = e != NULL ? e->alone->change : NULL;
            double log;

            if (e != NULL && (e->alone->base != base || e->turns == 0 || e->alone->dropped))
                continue;
            if (e == NULL || change == NULL ||
                strncmp(change, key, strcspn(change, "=") + 1) != 0) {
                sum += least;
                if (value != NULL)
                    n = tune_merge(s, base, set, n, value);
                value = NULL;
                least = 0;
                key = change != NULL ? change : "";
            }
            if (e == NULL)
                break;
            log =
                e->log + (random ? 2 * draw_normal(q) * fmax(e->error, e->log / 2 / sqrt(e->turns))
                                 : GAIN / 2);
            if (change == NULL)
                sum = log;
            else if (log < least)
                least = log, value = change;
        }
        if (sum < best) {
            best = sum;
            best_n = n;
            best_base = base;
            memcpy(best_set, set, n * sizeof(*set));
        }
    }
    return tune_add_setting(s, best_base, best_set, best_n, NULL, 2);
}

static bool is_effect(const struct search *q, const struct tune_setting *x)
{
    for (uint32_t i = 0; i < q->effects; i++)
        if (q->effect[i].alone == x)
            return true;
    return false;
}

/* Removes the turns of a very slow setting from the fit: one such turn would dominate the fit, and
 * its residual would count as noise. */
static void exclude_from_fit(struct search *q, struct tune_setting *x)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < q->turns; i++)
        if (q->turn[i].x != x)
            q->turn[n++] = q->turn[i];
    q->turns = n;
    x->log = x->log_ratio[0];
    x->hopeless = true;
}

/* Takes a turn of each setting of a list, and adds the effects. */
static int measure_alone(struct search *q, struct tune_setting **list, uint32_t n)
{
    int code = EXIT_OK;

    for (uint32_t i = 0; i < n && code == EXIT_OK; i += ROUND) {
        if (has_budget_for_turn(q))
            code = take_search_round(q, &list[i], n - i < ROUND ? n - i : ROUND);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (list[i]->rounds == 0 && !list[i]->dropped)
            list[i]->why = "not reached: the budget is spent";
        if (list[i]->rounds == 0 || is_effect(q, list[i]))
            continue;
        if (list[i]->change != NULL && list[i]->rounds == 1 && list[i]->log_ratio[0] > HOPELESS)
            exclude_from_fit(q, list[i]);
        else
            q->effect[q->effects++].alone = list[i];
    }
    return code;
}

/* Chooses the settings of a round: the best so far, the one with the best estimates, and random
 * ones. */
static uint32_t draw_round(struct search *q, struct tune_setting *best, struct tune_setting **out)
{
    struct tune_setting *file = q->s->t.setting[0];
    uint32_t n = 0;

    if (best != file)
        out[n++] = best;
    for (uint32_t i = 0; i < 2 * ROUND && n < ROUND; i++) {
        struct tune_setting *x = draw_setting(q, i > 0);
        bool is_new = x != NULL && x != file && !x->dropped;

        for (uint32_t k = 0; k < n; k++)
            is_new = is_new && out[k] != x;
        if (is_new)
            out[n++] = x;
    }
    return n;
}

static int search_rounds(struct search *q)
{
    struct tune_search *s = q->s;
    struct tune_setting **list = arena_alloc(s->t.arena, TUNE_SETTINGS * sizeof(*list));
    struct tune_setting *file = s->t.setting[0], *best = file;
    uint32_t n = 0, bases;
    int code;

    for (uint32_t i = 1; i < s->n_bases; i++) {
        list[n] = tune_add_setting(s, i, NULL, 0, NULL, 1);
        n += list[n] != NULL;
    }
    code = measure_alone(q, list, n);
    bases = n;
    tune_add_changes(s, file, 1, list, &n);
    for (uint32_t i = 0; i < bases; i++) {
        if (!list[i]->dropped)
            tune_add_changes(s, list[i], 1, list, &n);
    }
    if (code == EXIT_OK)
        code = measure_alone(q, list + bases, n - bases);
    for (uint32_t r = 0; code == EXIT_OK && r < ROUNDS_MOST && has_budget_for_turn(q); r++) {
        struct tune_setting *before = best;

        best = find_best(q);
        n = 0;
        if (best != before) /* adds values that are valid only with the new best setting */
            tune_add_changes(s, best, 2, list, &n);
        code = measure_alone(q, list, n);
        n = draw_round(q, best, list);
        if (code != EXIT_OK || n == 0 || (r >= ROUNDS && is_converged(q, best)))
            break;
        code = take_search_round(q, list, n);
    }
    return code;
}

/* Takes a round of the last comparison; implements turns.take. */
static int take_last_round(void *arg, uint32_t first, double median[][2], double *figure)
{
    struct tune_search *s = arg;
    int code = EXIT_OK;

    for (uint32_t i = 0; i < 2 && code == EXIT_OK; i++) {
        uint32_t side = (i + first) % 2;
        struct tune_turn turn = {0};

        code = take_counted_turn(s, side == 0 ? s->t.setting[0] : s->t.best, TUNE_BENCH, &turn);
        median[0][side] = figure_of(s, &turn);
        s->turns.spent_ns += s->took_ns;
        if (code != EXIT_OK && !tune_is_interrupted(code) && s->err.status == EPA_OK)
            epa_fail(&s->err, EPA_ERR_CONFIG, "%s: %s",
                     side == 0 ? "the file's settings" : s->t.best->name, turn.why);
    }
    figure[0] = log(median[0][1] / median[0][0]);
    return code;
}

static int compare_last(struct tune_search *s)
{
    enum compare_verdict verdict;
    int code;

    s->turns = (struct turns){.take = take_last_round,
                              .arg = s,
                              .threshold = THRESHOLD,
                              .alpha = s->t.cli->alpha,
                              .spent_ns = s->t.spent_ns,
                              .progress = progress_is_on(s->t.cli)};
    turns_init(&s->turns, s->t.arena, 1);
    code = turns_take(&s->turns, s->t.budget_ns, &verdict);
    s->t.rounds = s->turns.rounds;
    if (s->t.rounds > 0)
        (void)turns_result(&s->turns, 0, &s->t.last);
    s->t.is_better = s->t.rounds > 0 && s->t.last.high < 1;
    return code;
}

/* Finds the best setting that passes verify. */
static int verify_best(struct search *q, struct tune_setting **best)
{
    struct tune_search *s = q->s;
    int code = EXIT_OK;

    do {
        struct tune_turn turn = {0};

        *best = find_best(q);
        if (*best == s->t.setting[0])
            break;
        code = handle_outcome(s, *best, take_counted_turn(s, *best, TUNE_VERIFY, &turn), &turn);
    } while (code == EXIT_OK && (*best)->dropped);
    return code;
}

int tune_search(struct tune_search *s)
{
    struct search q = {.s = s, .noise = NOISE};
    struct tune_setting *best = s->t.setting[0];
    int code;

    q.effect = arena_alloc(s->t.arena, TUNE_SETTINGS * sizeof(*q.effect));
    q.turn = arena_alloc(s->t.arena, TUNE_ROUNDS * (ROUND + 1) * sizeof(*q.turn));
    code = calibrate_turns(&q);
    if (code == EXIT_OK)
        code = search_rounds(&q);
    if (code == EXIT_OK)
        code = verify_best(&q, &best);
    else if (tune_is_interrupted(code) && q.turns > 0)
        best = find_best(&q);
    s->t.best = best;
    for (uint32_t i = 1; i < s->t.n; i++) {
        struct tune_setting *x = s->t.setting[i];

        if (x->rounds > 0 && !x->dropped && x != best)
            x->why = arena_printf(s->t.arena, "dropped, %.1f %% behind the best",
                                  100 * expm1(x->log - best->log));
    }
    if (code == EXIT_OK && best != s->t.setting[0])
        code = compare_last(s);
    if (tune_is_interrupted(code))
        s->t.stopped = code;
    return code;
}
