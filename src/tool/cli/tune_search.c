/* The search of `epa2a tune`: successive halving. A pool of settings takes turns in rounds. After
 * each round the slower half leaves the pool. While the budget allows, new settings take the free
 * places: settings of the pool with one more value, and the values with the largest gains together.
 * Then the pool shrinks to the fastest setting, with more turns for each of the fewer settings.
 *
 * First each value of each option has a turn alone. A value that is much slower alone is not added to
 * others. The gain of a value is the mean over all settings that added it; values with large gains
 * and values with few measurements are drawn more often. The estimate of a setting is the mean
 * logarithm of its ratios to the file's settings. A turn of the file's settings precedes and follows
 * every few turns, since machines drift. The last few settings of the pool take turns until the
 * differences of their turns show which is slower. The first turn of a setting checks results, and a
 * verify turn checks the best setting. At the end the best and the file's settings take turns as in
 * `compare --run`. */
#include "cli/tune_search.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/random.h"
#include "cli/cli.h"
#include "cli/progress_line.h"
#include "cli/tune.h"
#include "cli/tune_candidates.h"

enum {
    GROUP = 8,        /* turns between two turns of the file's settings */
    ROUNDS_LEAST = 4, /* rounds of the last settings of the pool before one leaves */
    FINALISTS = 4,
    GENERATIONS = 6, /* rounds with new settings; their number sets the size of the pool */
    GENERATIONS_MOST = 40,
    IDLE = 6, /* rounds without a faster setting before the pool shrinks */
    PLACES_LEAST = 4,
    PLACES_MOST = 48,
    DRAWS = 4,       /* attempts to draw a setting for one place */
    PRIOR = 3,       /* weight of NOISE, in turns of the file's settings */
    LAST_TURNS = 32, /* turns of the last comparison, which has looks after 10 and 15 rounds */
    ITERATIONS_LEAST = 20, /* least iterations of a turn; more if file and budget allow: */
    HOSTS_LEAST = 100,     /* iterations on hosts */
    GRAPHS_LEAST = 20,     /* samples of graphs */
    ITERATIONS_MOST = 10000
};
#define GAIN 0.005     /* relative gain of a median below which two settings are equal */
#define HOPELESS 1.0   /* logarithm of the loss alone that excludes a value from combinations */
#define NOISE 0.03     /* noise of a turn before it is known */
#define CLIP 0.1       /* largest distance of a turn's logarithm from their median */
#define DISTURBED 3    /* difference of two turns that other programs cause, in noise */
#define RELATIVE 0.25  /* error of a gain relative to the gain, for one setting */
#define SURE 0.5       /* error of a gain, in errors, that a clear gain exceeds */
#define BOUND 2        /* bound of a difference of finalists, in errors of their mean */
#define SPREAD 2       /* perturbation of drawn gains, in errors */
#define RESERVED 0.15  /* least part of the budget for the last comparison */
#define THRESHOLD 0.01 /* threshold of the last comparison */

/* A value of an option. */
struct value {
    const struct tune_setting *alone;
    double sum; /* logarithms of the change of time by the value */
    uint32_t n; /* settings in `sum` */
};

struct search {
    struct tune_search *s;
    struct value *value;         /* [values] */
    struct tune_setting **place; /* [places] the pool, fastest first */
    uint32_t values, places;
    uint64_t begun_ns; /* spent time that does not count for the end of the search */
    double file_log;   /* last turn of the file's settings */
    bool is_timed;     /* the file's settings had a turn */
    double noise;      /* of the logarithm of a turn */
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
 * last comparison. */
static uint64_t search_end(const struct search *q)
{
    double budget = (double)(q->s->t.budget_ns - q->begun_ns),
           last = LAST_TURNS * (double)turn_ns(q->s);
    double reserved = fmin(fmax(last, RESERVED * budget), TUNE_LAST_MOST * budget);

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

/* Takes a turn of a setting, whose first turn checks its results. *log_ns: logarithm of the time. */
static int take_setting_turn(struct search *q, struct tune_setting *x, double *log_ns)
{
    struct tune_turn turn = {0};
    int code = take_counted_turn(q->s, x, x->rounds > 0 ? TUNE_BENCH : TUNE_CHECKED, &turn);

    if (code != EXIT_OK)
        return handle_outcome(q->s, x, code, &turn);
    *log_ns = log(figure_of(q->s, &turn));
    if (x->rounds < TUNE_ROUNDS) {
        x->ns[x->rounds] = figure_of(q->s, &turn);
        x->log_ratio[x->rounds++] = 0;
    }
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
    return next_ns < search_end(q);
}

/* Estimates the noise from the differences of successive turns of the file's settings. */
static void update_noise(struct search *q)
{
    const struct tune_setting *file = q->s->t.setting[0];
    double difference[TUNE_ROUNDS], sum = NOISE * PRIOR;
    uint32_t n = 0;

    for (; n + 1 < file->rounds; n++)
        difference[n] = fabs(log(file->ns[n + 1] / file->ns[n]));
    if (n > 0)
        sum += 1.05 * n * stats_quantile(difference, n, 500);
    q->noise = sum / (n + PRIOR);
}

/* Returns the time of the file's settings between two of their turns. Other programs only lengthen a
 * turn, so the shorter of two very different turns counts. */
static double file_log_between(const struct search *q, double before, double after)
{
    bool disturbed = fabs(before - after) > DISTURBED * q->noise;

    return disturbed ? fmin(before, after) : (before + after) / 2;
}

/* Takes turns of up to GROUP settings, between two turns of the file's settings. */
static int take_group(struct search *q, struct tune_setting **list, uint32_t n)
{
    struct tune_setting *file = q->s->t.setting[0];
    double log_ns[GROUP], before = q->file_log;
    bool shown = progress_is_on(q->s->t.cli);
    uint32_t taken = 0;
    int code = q->is_timed ? EXIT_OK : take_setting_turn(q, file, &before);

    q->is_timed = q->is_timed || code == EXIT_OK;
    while (taken < n && code == EXIT_OK && has_budget_for_turn(q)) {
        if (shown)
            (void)progress_show("turn %u: %.60s", q->s->t.turns, list[taken]->name);
        code = take_setting_turn(q, list[taken], &log_ns[taken]);
        taken += code == EXIT_OK;
    }
    q->file_log = before;
    if (code == EXIT_OK && taken > 0)
        code = take_setting_turn(q, file, &q->file_log);
    update_noise(q);
    for (uint32_t i = 0; i < taken; i++)
        if (!list[i]->dropped)
            list[i]->log_ratio[list[i]->rounds - 1] =
                log_ns[i] - file_log_between(q, before, q->file_log);
    if (shown)
        progress_clear();
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

/* ---- estimates ---- */

static int by_number(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Estimates the logarithm of the ratio of a setting to the file's settings. Clips turns that other
 * programs disturbed. */
static void estimate_setting(struct tune_setting *x)
{
    double sorted[TUNE_ROUNDS], sum = 0, median;

    if (x->rounds == 0)
        return;
    memcpy(sorted, x->log_ratio, x->rounds * sizeof(*sorted));
    qsort(sorted, x->rounds, sizeof(*sorted), by_number);
    median = sorted[(x->rounds - 1) / 2];
    for (uint32_t k = 0; k < x->rounds; k++)
        sum += fmin(fmax(sorted[k], median - CLIP), median + CLIP);
    x->log = sum / x->rounds;
}

static double gain_of(const struct value *v)
{
    return v->sum / v->n;
}

static int by_estimate(const void *a, const void *b)
{
    const struct tune_setting *x = *(struct tune_setting *const *)a,
                              *y = *(struct tune_setting *const *)b;

    if (x->dropped != y->dropped)
        return x->dropped - y->dropped;
    return (x->log > y->log) - (x->log < y->log);
}

/* Returns the fastest setting, or the file's settings. A setting with one turn may be fast by chance,
 * so it counts only if no setting has more. */
static struct tune_setting *find_best(const struct tune *t)
{
    struct tune_setting *best = t->setting[0];
    uint32_t least = 1;

    for (uint32_t i = 1; i < t->n; i++)
        if (!t->setting[i]->dropped && t->setting[i]->rounds > 1)
            least = 2;
    for (uint32_t i = 1; i < t->n; i++) {
        struct tune_setting *x = t->setting[i];

        if (x->rounds >= least && !x->dropped && !x->hopeless &&
            x->log < best->log - (best == t->setting[0] ? GAIN : 0))
            best = x;
    }
    return best;
}

/* ---- the pool ---- */

static double draw_normal(struct search *q)
{
    double radius = sqrt(-2 * log(1 - random_unit(&q->random)));

    return radius * cos(2 * acos(-1) * random_unit(&q->random));
}

static bool has_change(const struct tune_setting *x, const char *change)
{
    for (uint32_t i = 0; i < x->n; i++)
        if (strcmp(x->set[i], change) == 0)
            return true;
    return false;
}

static bool has_key(const struct tune_setting *x, const char *change)
{
    for (uint32_t i = 0; i < x->n; i++)
        if (strncmp(x->set[i], change, strcspn(change, "=") + 1) == 0)
            return true;
    return false;
}

static void sort_pool(struct search *q)
{
    if (q->places > 0)
        qsort(q->place, q->places, sizeof(struct tune_setting *), by_estimate);
    while (q->places > 0 && q->place[q->places - 1]->dropped)
        q->places--;
}

/* Corrects the gains of values by the first turns of new settings. */
static void correct_gains(struct search *q)
{
    for (uint32_t i = 0; i < q->places; i++) {
        const struct tune_setting *x = q->place[i];
        struct value *v = &q->value[x->added];

        if (x->parent == NULL || x->rounds != 1)
            continue;
        v->sum += x->log_ratio[0] - x->parent->log;
        v->n++;
    }
}

/* Takes a round of the pool: a turn of each setting, or fewer if the budget ends. */
static int measure_pool(struct search *q)
{
    int code = EXIT_OK;

    for (uint32_t i = 0; i < q->places && code == EXIT_OK && has_budget_for_turn(q); i += GROUP)
        code = take_group(q, &q->place[i], q->places - i < GROUP ? q->places - i : GROUP);
    correct_gains(q);
    for (uint32_t i = 0; i < q->places; i++)
        estimate_setting(q->place[i]);
    sort_pool(q);
    return code;
}

/* Takes a turn of each setting of a list, whose settings differ from others in one value. Settings
 * that are not hopeless join the pool. `expected`: estimate without the value. */
static int measure_alone(struct search *q, struct tune_setting **list, uint32_t n, double expected)
{
    int code = EXIT_OK;

    for (uint32_t i = 0; i < n && code == EXIT_OK && has_budget_for_turn(q); i += GROUP)
        code = take_group(q, &list[i], n - i < GROUP ? n - i : GROUP);
    for (uint32_t i = 0; i < n; i++) {
        struct tune_setting *x = list[i];

        if (x->rounds == 0 && !x->dropped)
            x->why = "not reached: the budget is spent";
        if (x->rounds == 0 || x->dropped)
            continue;
        x->log = x->log_ratio[0];
        x->hopeless = x->change != NULL && x->log - expected > HOPELESS;
        if (x->hopeless)
            continue;
        q->place[q->places++] = x;
        if (x->change != NULL)
            q->value[q->values++] = (struct value){x, x->log - expected, 1};
    }
    sort_pool(q);
    return code;
}

static double error_of(const struct search *q, const struct value *v)
{
    return fmax(q->noise, fabs(gain_of(v)) * RELATIVE) / sqrt(v->n);
}

/* Draws a value that a setting can add: the least gain, each perturbed by its error. */
static struct value *draw_value(struct search *q, const struct tune_setting *parent)
{
    struct value *out = NULL;
    double least = INFINITY;

    for (uint32_t i = 0; i < q->values; i++) {
        struct value *v = &q->value[i];
        double drawn = gain_of(v) + SPREAD * error_of(q, v) * draw_normal(q);

        if (v->alone->dropped || v->alone->base != parent->base ||
            has_change(parent, v->alone->change) || drawn >= least)
            continue;
        least = drawn;
        out = v;
    }
    return out;
}

/* Adds to the pool a new setting: `parent` with one more value. */
static bool add_child(struct search *q, const struct tune_setting *parent)
{
    struct tune_search *s = q->s;

    for (uint32_t i = 0; i < DRAWS; i++) {
        const char **set = arena_alloc(s->t.arena, (parent->n + 2) * sizeof(*set));
        struct value *v = draw_value(q, parent);
        uint32_t settings = s->t.n;
        struct tune_setting *x;

        if (v == NULL)
            return false;
        if (parent->n > 0)
            memcpy(set, parent->set, parent->n * sizeof(*set));
        x = tune_add_setting(s, parent->base, set,
                             tune_merge(s, parent->base, set, parent->n, v->alone->change), NULL,
                             2);
        if (x == NULL || s->t.n == settings)
            continue;
        x->parent = parent;
        x->added = (uint32_t)(v - q->value);
        x->log = parent->log + gain_of(v);
        q->place[q->places++] = x;
        return true;
    }
    return false;
}

/* Returns true if no other value of the same option has a smaller number in `gain`. */
static bool is_best_of_key(const struct search *q, const double *gain, uint32_t i)
{
    const struct tune_setting *x = q->value[i].alone;
    size_t bytes = strcspn(x->change, "=") + 1;

    for (uint32_t k = 0; k < q->values; k++) {
        const struct tune_setting *o = q->value[k].alone;

        if (o->base == x->base && !o->dropped && gain[k] < gain[i] &&
            strncmp(o->change, x->change, bytes) == 0)
            return false;
    }
    return true;
}

/* Adds to the pool, unless it was tried, a setting with `from` and the values that gain, of options
 * that `from` does not set. `spread`: perturbation of the gains, in errors; 0: only clear gains. */
static bool add_gains(struct search *q, const struct tune_setting *from, double spread)
{
    struct tune_search *s = q->s;
    const char **set = arena_alloc(s->t.arena, (from->n + q->values + 1) * sizeof(*set));
    double *gain = arena_alloc(s->t.arena, (q->values + 1) * sizeof(*gain)), sum = from->log;
    uint32_t n = from->n, settings = s->t.n;
    struct tune_setting *x;

    if (n > 0)
        memcpy(set, from->set, n * sizeof(*set));
    for (uint32_t i = 0; i < q->values; i++)
        gain[i] = gain_of(&q->value[i]) + spread * error_of(q, &q->value[i]) * draw_normal(q);
    for (uint32_t i = 0; i < q->values; i++) {
        const struct tune_setting *alone = q->value[i].alone;

        if (alone->base != from->base || alone->dropped ||
            gain[i] > (spread > 0 ? 0 : -fmax(GAIN, SURE * error_of(q, &q->value[i]))) ||
            !is_best_of_key(q, gain, i) || has_key(from, alone->change))
            continue;
        n = tune_merge(s, from->base, set, n, alone->change);
        sum += gain_of(&q->value[i]);
    }
    x = tune_add_setting(s, from->base, set, n, NULL, 2);
    if (x == NULL || s->t.n == settings)
        return false;
    x->log = sum;
    q->place[q->places++] = x;
    return true;
}

static const struct tune_setting *find_plain(const struct search *q, uint32_t base)
{
    for (uint32_t i = 1; base > 0 && i < q->s->t.n; i++)
        if (q->s->t.setting[i]->base == base && q->s->t.setting[i]->n == 0)
            return q->s->t.setting[i];
    return q->s->t.setting[0];
}

/* Fills the pool up to `room` settings. Returns false if no setting is new. */
static bool fill_pool(struct search *q, uint32_t room)
{
    uint32_t parents = q->places, failed = 0;

    (void)add_gains(q, q->place[0], 0);
    for (uint32_t i = 0; q->places < room && failed < 2 * parents + DRAWS; i++) {
        const struct tune_setting *parent = q->place[i / 2 % parents];
        bool added =
            i % 4 == 0 ? add_gains(q, find_plain(q, parent->base), SPREAD) : add_child(q, parent);

        failed += !added;
    }
    return q->places > parents;
}

static uint32_t turns_left(const struct search *q)
{
    uint64_t end = search_end(q), spent = q->s->t.spent_ns;

    return spent < end ? (uint32_t)fmin((double)(end - spent) / (double)turn_ns(q->s), 1e6) : 0;
}

/* Measures the values that are valid only with the best setting. */
static int measure_more_values(struct search *q, const struct tune_setting *best)
{
    struct tune_setting **list = arena_alloc(q->s->t.arena, TUNE_SETTINGS * sizeof(*list));
    uint32_t n = 0;

    tune_add_changes(q->s, best, 2, list, &n);
    return measure_alone(q, list, n, best->log);
}

/* Returns the mean difference of the logarithms of the last turns of two settings, which had these
 * turns in the same rounds. *error: of the mean. */
static double compare_settings(const struct tune_setting *a, const struct tune_setting *b,
                               double *error)
{
    uint32_t n = a->rounds < b->rounds ? a->rounds : b->rounds;
    const double *x = a->log_ratio + a->rounds - n, *y = b->log_ratio + b->rounds - n;
    double sum = 0, squares = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += x[i] - y[i];
    for (uint32_t i = 0; i < n; i++)
        squares += (x[i] - y[i] - sum / n) * (x[i] - y[i] - sum / n);
    *error = n > 1 ? sqrt(squares / (n - 1) / n) : INFINITY;
    return sum / n;
}

/* Removes finalists that are slower than the fastest by more than chance. Returns true if one remains
 * or all are equally fast. */
static bool judge_finalists(struct search *q)
{
    bool equal = true;
    uint32_t n = 1;

    for (uint32_t i = 1; i < q->places; i++) {
        double error, mean = compare_settings(q->place[i], q->place[0], &error);
        bool few = q->place[i]->rounds < ROUNDS_LEAST || q->place[0]->rounds < ROUNDS_LEAST;

        if (!few && mean - BOUND * error > 0)
            continue;
        equal = equal && !few && mean + BOUND * error < GAIN;
        q->place[n++] = q->place[i];
    }
    q->places = n;
    return equal && q->place[0]->rounds >= ROUNDS_LEAST;
}

/* Takes rounds of the pool. While no new settings enter, each round of the search has the same number
 * of turns, so that the fewer settings have more turns each. */
static int measure_rounds(struct search *q, uint32_t room, bool fills)
{
    uint32_t rounds = fills || q->places > room ? 1 : room / q->places;
    int code = EXIT_OK;

    for (uint32_t i = 0; i < rounds && code == EXIT_OK && q->places > 0; i++)
        code = measure_pool(q);
    return code;
}

/* Halves the pool until the fastest setting remains. */
static int halve_pool(struct search *q)
{
    uint32_t room = (uint32_t)fmin(fmax(turns_left(q) / GENERATIONS, PLACES_LEAST), PLACES_MOST);
    const struct tune_setting *best = NULL;
    uint32_t idle = 0, kept, end = (uint32_t)log2(room) - 1; /* halvings without new settings */
    bool fills = true, is_new = true; /* is_new: some settings had no turns */
    int code = EXIT_OK;

    for (uint32_t g = 0; code == EXIT_OK && q->places > 0 && has_budget_for_turn(q); g++) {
        idle = q->place[0] == best ? idle + 1 : 0;
        fills = fills && g < GENERATIONS_MOST && idle < IDLE && turns_left(q) > end * room;
        if (q->place[0] != best && fills) {
            best = q->place[0];
            code = measure_more_values(q, best);
        }
        best = q->place[0];
        if (!fills && q->places <= FINALISTS) {
            if (judge_finalists(q)) {
                if (!is_new || best->log < -GAIN)
                    break;
                fills = true; /* no setting is faster: try others */
                idle = 0;
            }
        } else {
            kept = fills ? room / 2 : (q->places + 1) / 2;
            q->places = q->places < kept ? q->places : kept;
        }
        if (fills) {
            fills = is_new = fill_pool(q, room);
            if (!is_new)
                room = q->places < PLACES_LEAST ? PLACES_LEAST : q->places;
        }
        if (code == EXIT_OK)
            code = measure_rounds(q, room, fills);
    }
    return code;
}

static int search_settings(struct search *q)
{
    struct tune_search *s = q->s;
    struct tune_setting **list = arena_alloc(s->t.arena, TUNE_SETTINGS * sizeof(*list));
    uint32_t n = 0, bases;
    int code;

    for (uint32_t i = 1; i < s->n_bases; i++) {
        list[n] = tune_add_setting(s, i, NULL, 0, NULL, 1);
        n += list[n] != NULL;
    }
    code = measure_alone(q, list, n, 0);
    bases = n;
    tune_add_changes(s, s->t.setting[0], 1, list, &n);
    if (code == EXIT_OK)
        code = measure_alone(q, list + bases, n - bases, 0);
    for (uint32_t i = 0; i < bases && code == EXIT_OK; i++) {
        uint32_t from = n;

        if (list[i]->dropped)
            continue;
        tune_add_changes(s, list[i], 1, list, &n);
        code = measure_alone(q, list + from, n - from, list[i]->log);
    }
    return code == EXIT_OK ? halve_pool(q) : code;
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
static int verify_best(struct tune_search *s, struct tune_setting **best)
{
    int code = EXIT_OK;

    do {
        struct tune_turn turn = {0};

        *best = find_best(&s->t);
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

    q.value = arena_alloc(s->t.arena, TUNE_SETTINGS * sizeof(*q.value));
    q.place = arena_alloc(s->t.arena, (TUNE_SETTINGS + PLACES_MOST) * sizeof(*q.place));
    code = calibrate_turns(&q);
    if (code == EXIT_OK)
        code = search_settings(&q);
    if (code == EXIT_OK)
        code = verify_best(s, &best);
    else if (tune_is_interrupted(code))
        best = find_best(&s->t);
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
