/* The search of `epa2a tune`. Each value of each option has a turn alone. Then settings are drawn
 * at random: for each option a value, the more often the faster it seems, and the more often the
 * less is known of it. So each turn says something of all options, and two that only gain together
 * meet. What a value is worth is what least squares make of all turns (effects of values, as
 * logarithms, add up); what a setting is worth is their sum, and what its own turns say beyond
 * that. Turns go by rounds, which have a level of their own, as machines drift; each has one of
 * the file's settings and one of the best so far. What loses much alone is left at that. A setting
 * is checked in its first turn, and the best is verified. At the end the best and the file's
 * settings take turns as in `compare --run`.
 *
 * Every decision follows from what turns measured and how long they took, and from nothing else:
 * --resume reads those of a journal and comes to where the search was. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "cli/cli.h"
#include "cli/tune.h"

enum {
    ROUND = 5,        /* settings that take turns, beside the file's */
    ROUNDS = 4,       /* at least, */
    ROUNDS_MOST = 80, /* and at most, after each value alone */
    FIT_PASSES = 12,
    OWN = 2,               /* turns of a setting say as much as the sum of effects */
    ITERATIONS_LEAST = 20, /* of a turn, and where the file and the budget have so many, */
    HOSTS_LEAST = 100,
    GRAPHS_LEAST = 20, /* samples */
    ITERATIONS_MOST = 10000
};
#define GAIN 0.005   /* of a median; with less one is no better than another */
#define HOPELESS 1.0 /* of a value alone: what loses so much is not tried with others */
#define NOISE 0.03   /* of a turn, until it is known from more than NOISE_TURNS */
#define NOISE_TURNS 10
#define THRESHOLD 0.01 /* of the last comparison */

/* A value of an option, or another algorithm. */
struct effect {
    const struct tune_setting *alone;
    double log, error;
    uint32_t turns;
};

struct measured {
    struct tune_setting *x;
    uint32_t round;
    double log_ns, left; /* left: of the level of its round and of effects */
};

struct search {
    struct tune_search *s;
    struct effect *effect;
    struct measured *turn;
    uint32_t effects, turns, rounds;
    uint64_t begun_ns;     /* what was spent before that has no part in when the search ends */
    double noise, file_ns; /* of a turn, as a logarithm; file_ns: in this round */
    struct random random;
};

/* ---- turns ---- */

bool tune_is_interrupted(int code)
{
    return code == exit_code(EPA_ERR_INTERRUPTED, SIGINT) ||
           code == exit_code(EPA_ERR_INTERRUPTED, SIGTERM);
}

static int take_turn(struct tune_search *s, const struct tune_setting *x, enum tune_verb verb,
                     struct tune_turn *out)
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

/* When turns of the search have to end: the last comparison says nothing before 10 rounds. */
static uint64_t search_end(const struct search *q)
{
    double budget = (double)(q->s->t.budget_ns - q->begun_ns), last = 40 * (double)turn_ns(q->s);
    double reserved = fmin(fmax(last, 0.3 * budget), TUNE_LAST_MOST * budget);

    return q->s->t.budget_ns - (uint64_t)reserved;
}

/* What becomes of a setting after a turn: a failure of its own drops it, and ends the search if it
 * is the file's. */
static int settle(struct tune_search *s, struct tune_setting *x, int code,
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

/* One setting's turn in a round; its first is checked. */
static int take_part(struct search *q, struct tune_setting *x)
{
    struct tune_turn turn = {0};
    int code = take_turn(q->s, x, x->rounds > 0 ? TUNE_BENCH : TUNE_CHECKED, &turn);
    double ns;

    if (code != EXIT_OK)
        return settle(q->s, x, code, &turn);
    ns = figure_of(q->s, &turn);
    if (x == q->s->t.setting[0])
        q->file_ns = ns;
    x->ns[x->rounds] = ns;
    x->log_ratio[x->rounds++] = log(ns / q->file_ns);
    q->turn[q->turns++] = (struct measured){x, q->rounds, log(ns), 0};
    return EXIT_OK;
}

/* A setting did better than the file's when it last had a turn. */
static bool is_any_faster(const struct tune *t)
{
    for (uint32_t i = 1; i < t->n; i++) {
        const struct tune_setting *x = t->setting[i];

        if (x->rounds > 0 && !x->dropped && x->log_ratio[x->rounds - 1] < -GAIN)
            return true;
    }
    return false;
}

/* Where there is nothing to compare yet, what is left of the budget is one of its own. */
static bool may_go_on(struct search *q)
{
    const struct tune *t = &q->s->t;
    uint64_t next_ns = t->spent_ns + turn_ns(q->s);

    if (next_ns >= search_end(q) && next_ns < t->budget_ns && !is_any_faster(t))
        q->begun_ns = t->spent_ns;
    return next_ns < search_end(q) && q->rounds < TUNE_ROUNDS;
}

static int take_round(struct search *q, struct tune_setting **list, uint32_t n)
{
    bool shown = progress_is_on(q->s->t.cli);
    int code = take_part(q, q->s->t.setting[0]);

    for (uint32_t i = 0; i < n && code == EXIT_OK && may_go_on(q); i++) {
        if (shown)
            (void)progress_show("turn %u: %.60s", q->s->t.turns, list[i]->name);
        if (!list[i]->dropped)
            code = take_part(q, list[i]);
    }
    if (shown)
        progress_clear();
    q->rounds++;
    return code;
}

/* Calls in a sample: graphs have many. */
static double calls_of(const struct experiment *x)
{
    const struct bench_options *bench = &x->bench;
    bool graphs = !is_on_hosts(x) && (bench->clock == CLOCK_AUTO || bench->clock == CLOCK_GRAPH);

    return graphs && bench->cache != CACHE_COLD ? bench->calls_per_graph : 1;
}

/* Of turns from now on. */
static void set_iterations(struct tune_search *s, double n)
{
    uint32_t warmup = s->t.setting[0]->x->bench.warmup;

    s->iterations = (uint32_t)n;
    s->warmup = warmup < s->iterations / 2 ? warmup : s->iterations / 2;
}

/* The file's settings, and how long a turn is to be. Short ones say less, and of long ones there
 * are few: as many iterations as take a third of the time of all else, and some at least. What one
 * takes, with all of it that is not timed, is known from turns of few and of many. */
static int take_first(struct search *q)
{
    struct tune_search *s = q->s;
    struct tune_setting *file = s->t.setting[0];
    double all = file->x->bench.iterations, calls = calls_of(file->x);
    double few = fmax(1, fmin(all / 10, ITERATIONS_LEAST)), iterations = few, few_ns = INFINITY;
    double n_few = 0, ns = 0; /* of an iteration */
    uint32_t busy = 0;
    struct tune_turn turn = {0};
    int code = settle(s, file, take_turn(s, file, TUNE_VERIFY, &turn), &turn);

    s->longest_ns = s->t.budget_ns / 40;
    for (uint32_t i = 0; i < 3 && code == EXIT_OK; i++) {
        double n;

        set_iterations(s, iterations);
        code = settle(s, file, take_turn(s, file, TUNE_BENCH, &turn), &turn);
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

/* ---- what a value is worth ---- */

static bool has_effect(const struct tune_setting *x, const struct effect *e)
{
    if (x->base != e->alone->base || e->alone->change == NULL)
        return x->base == e->alone->base;
    for (uint32_t i = 0; i < x->n; i++)
        if (strcmp(x->set[i], e->alone->change) == 0)
            return true;
    return false;
}

/* Its mean over turns with e (NULL: those of one round, from *k on, which it goes beyond) is taken
 * from what is left of them. Other programs' load counts as 3 deviations at most. */
static double take_mean(struct search *q, const struct effect *e, uint32_t *k, uint32_t *n)
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

/* Effects and levels by least squares, each in turn from what the others leave. */
static void fit(struct search *q)
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
            (void)take_mean(q, NULL, &k, &n);
        for (uint32_t i = 0; i < q->effects; i++) {
            q->effect[i].log += take_mean(q, &q->effect[i], NULL, &n);
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

/* What all settings are worth; returns the best. */
static struct tune_setting *find_best(struct search *q)
{
    struct tune *t = &q->s->t;
    struct tune_setting *best = t->setting[0];

    fit(q);
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

/* Whether more turns would hardly change which values are taken: it is known of each that it gains,
 * that it does not, or that it is worth little. */
static bool is_settled(const struct search *q, const struct tune_setting *best)
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

/* From a normal distribution, by Box and Muller. */
static double draw_normal(struct search *q)
{
    double radius = sqrt(-2 * log(1 - random_unit(&q->random)));

    return radius * cos(2 * acos(-1) * random_unit(&q->random));
}

/* The values that seem fastest, `random`: by as much as their errors let them; NULL: they cannot be
 * together. */
static struct tune_setting *draw_setting(struct search *q, bool random)
{
    struct tune_search *s = q->s;
    const char **set = arena_alloc(s->t.arena, (q->effects + 1) * sizeof(*set)), **best_set;
    uint32_t best_n = 0, best_base = 0;
    double best = INFINITY;

    best_set = arena_alloc(s->t.arena, (q->effects + 1) * sizeof(*set));
    for (uint32_t base = 0; base < s->n_bases; base++) {
        const char *key = "", *value = NULL;
        double sum = base > 0 ? INFINITY : 0, least = 0; /* until it had a turn itself */
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

static bool is_known(const struct search *q, const struct tune_setting *x)
{
    for (uint32_t i = 0; i < q->effects; i++)
        if (q->effect[i].alone == x)
            return true;
    return false;
}

/* What takes many times as long is no part of the fit: one such turn would say more than all
 * others, and what it is off counts as noise. */
static void forget(struct search *q, struct tune_setting *x)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < q->turns; i++)
        if (q->turn[i].x != x)
            q->turn[n++] = q->turn[i];
    q->turns = n;
    x->log = x->log_ratio[0];
    x->hopeless = true;
}

/* Each of a list alone. */
static int try_alone(struct search *q, struct tune_setting **list, uint32_t n)
{
    int code = EXIT_OK;

    for (uint32_t i = 0; i < n && code == EXIT_OK; i += ROUND) {
        if (may_go_on(q))
            code = take_round(q, &list[i], n - i < ROUND ? n - i : ROUND);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (list[i]->rounds == 0 && !list[i]->dropped)
            list[i]->why = "not reached: the budget was spent";
        if (list[i]->rounds == 0 || is_known(q, list[i]))
            continue;
        if (list[i]->change != NULL && list[i]->rounds == 1 && list[i]->log_ratio[0] > HOPELESS)
            forget(q, list[i]);
        else
            q->effect[q->effects++].alone = list[i];
    }
    return code;
}

/* Settings for a round: the best so far, what seems to be best, and others at random. */
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

static int take_rounds(struct search *q)
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
    code = try_alone(q, list, n);
    bases = n;
    tune_add_changes(s, file, 1, list, &n);
    for (uint32_t i = 0; i < bases; i++) {
        if (!list[i]->dropped)
            tune_add_changes(s, list[i], 1, list, &n);
    }
    if (code == EXIT_OK)
        code = try_alone(q, list + bases, n - bases);
    for (uint32_t r = 0; code == EXIT_OK && r < ROUNDS_MOST && may_go_on(q); r++) {
        struct tune_setting *before = best;

        best = find_best(q);
        n = 0;
        if (best != before) /* what only goes with that */
            tune_add_changes(s, best, 2, list, &n);
        code = try_alone(q, list, n);
        n = draw_round(q, best, list);
        if (code != EXIT_OK || n == 0 || (r >= ROUNDS && is_settled(q, best)))
            break;
        code = take_round(q, list, n);
    }
    return code;
}

/* For turns_take(). */
static int take_last(void *arg, uint32_t first, double median[][2], double *figure)
{
    struct tune_search *s = arg;
    int code = EXIT_OK;

    for (uint32_t i = 0; i < 2 && code == EXIT_OK; i++) {
        uint32_t side = (i + first) % 2;
        struct tune_turn turn = {0};

        code = take_turn(s, side == 0 ? s->t.setting[0] : s->t.best, TUNE_BENCH, &turn);
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

    s->turns = (struct turns){.take = take_last,
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

/* The best that is right. */
static int verify_best(struct search *q, struct tune_setting **best)
{
    struct tune_search *s = q->s;
    int code = EXIT_OK;

    do {
        struct tune_turn turn = {0};

        *best = find_best(q);
        if (*best == s->t.setting[0])
            break;
        code = settle(s, *best, take_turn(s, *best, TUNE_VERIFY, &turn), &turn);
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
    code = take_first(&q);
    if (code == EXIT_OK)
        code = take_rounds(&q);
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
