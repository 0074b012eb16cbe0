/* The search of `epa2a tune`: a pass tries each value of each option alone, drops the slower half
 * again and again, and then tries those that won together; the next pass begins with the best. In a
 * round all settings that are left take turns with the file's own, so that what drifts is in all of
 * them; each is verified first. At the end the best and the file's settings take turns as in
 * `compare --run`.
 *
 * Every decision follows from what turns measured and how long they took, and from nothing else:
 * --resume reads those of a journal and comes to where the search was. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/tune.h"

enum {
    ROUNDS = 6,       /* of a contest before it drops half, at least; */
    ROUNDS_MOST = 30, /* by then it is known well enough, or the machine is busy */
    WINNERS = 4,      /* that are combined */
    PASSES = 4,
    ITERATIONS_LEAST = 10,  /* of a turn */
    ITERATIONS_MOST = 10000 /* beyond those of the file */
};
#define GAIN 0.005     /* of a median; with less one is no better than another */
#define THRESHOLD 0.01 /* of the last comparison */

/* ---- turns ---- */

bool tune_is_interrupted(int code)
{
    return code == exit_code(EPA_ERR_INTERRUPTED, SIGINT) ||
           code == exit_code(EPA_ERR_INTERRUPTED, SIGTERM);
}

static int take_turn(struct tune_search *s, const struct tune_setting *x, bool verify,
                     struct tune_turn *out)
{
    int code = s->take(s, x, verify, out);

    s->took_ns = out->took_ns;
    s->t.spent_ns += out->took_ns;
    s->t.turns += out->took_ns > 0;
    if (!verify && code == EXIT_OK)
        s->t.samples = out->samples;
    if (!verify && out->took_ns > 0 && s->iterations > 0) {
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
static uint64_t search_end(const struct tune_search *s)
{
    double budget = (double)s->t.budget_ns, last = 48 * (double)turn_ns(s);

    return (uint64_t)(budget - fmin(fmax(last, 0.3 * budget), TUNE_LAST_MOST * budget));
}

/* What becomes of a setting after a turn: a failure of its own drops it, and ends the search if it
 * is the file's. */
static int settle(struct tune_search *s, struct tune_setting *x, int code, const char *why)
{
    if (code == EXIT_OK || s->err.status != EPA_OK || tune_is_interrupted(code))
        return code;
    x->dropped = true;
    x->why = why;
    if (x != s->t.setting[0])
        return EXIT_OK;
    epa_fail(&s->err, EPA_ERR_CONFIG, "%s: the file's settings fail: %s", s->t.cli->arg[0], why);
    return code;
}

/* Before its first turn that is measured. */
static int verify(struct tune_search *s, struct tune_setting *x)
{
    struct tune_turn turn = {0};
    int code = x->verified ? EXIT_OK : take_turn(s, x, true, &turn);

    x->verified = true;
    return settle(s, x, code, turn.why);
}

/* One setting's turn in a round. */
static int take_part(struct tune_search *s, struct tune_setting *x, double file_ns)
{
    struct tune_turn turn = {0};
    int code = verify(s, x);

    if (code != EXIT_OK || x->dropped)
        return code;
    code = take_turn(s, x, false, &turn);
    if (code != EXIT_OK)
        return settle(s, x, code, turn.why);
    x->ns[x->rounds] = turn.median_ns;
    x->log_ratio[x->rounds++] = isnan(file_ns) ? 0 : log(turn.median_ns / file_ns);
    return EXIT_OK;
}

static void show_progress(const struct tune_search *s, const char *what)
{
    if (turns_show_progress(s->t.cli))
        fprintf(stderr, what == NULL ? "\r\033[K" : "\r\033[Kturn %u: %.60s", s->t.turns, what);
}

static int take_round(struct tune_search *s, struct tune_setting **list, uint32_t n, bool back,
                      uint64_t until_ns)
{
    struct tune_setting *file = s->t.setting[0];
    int code = take_part(s, file, NAN);

    for (uint32_t i = 0; i < n && code == EXIT_OK; i++) {
        struct tune_setting *x = list[back ? n - 1 - i : i];

        if (s->t.spent_ns + turn_ns(s) > until_ns)
            break;
        show_progress(s, x->name);
        if (!x->dropped && x->rounds < TUNE_ROUNDS)
            code = take_part(s, x, file->ns[file->rounds - 1]);
    }
    show_progress(s, NULL);
    return code;
}

static uint32_t half_of(uint32_t n, uint32_t keep)
{
    return (n + 1) / 2 > keep ? (n + 1) / 2 : n > keep ? keep : n;
}

static int by_ratio(const void *a, const void *b)
{
    const struct tune_setting *x = *(struct tune_setting *const *)a;
    const struct tune_setting *y = *(struct tune_setting *const *)b;
    double of_x = tune_ratio(x, x->from), of_y = tune_ratio(y, y->from);

    return (of_x > of_y) - (of_x < of_y);
}

/* Whether it is known which are kept, as the others are clearly behind, or how fast those are: to
 * GAIN, or to a tenth of what they gain or lose. */
static bool is_settled(struct tune_setting **list, uint32_t n, uint32_t keep)
{
    bool settled = true;

    qsort(list, n, sizeof(struct tune_setting *), by_ratio);
    if (keep > 0 && keep < n &&
        tune_ratio(list[keep], list[keep]->from) -
                tune_ratio(list[keep - 1], list[keep - 1]->from) >
            3 * (tune_error(list[keep]) + tune_error(list[keep - 1])))
        return true;
    for (uint32_t i = 0; i < n && i < keep; i++)
        settled = settled &&
                  tune_error(list[i]) < fmax(GAIN, fabs(tune_ratio(list[i], list[i]->from)) / 10);
    return settled;
}

/* Leaves in the list who had a turn; the others say why not. */
static uint32_t keep_tried(struct tune_setting **list, uint32_t n)
{
    uint32_t m = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (!list[i]->dropped && list[i]->rounds > list[i]->from)
            list[m++] = list[i];
        else if (!list[i]->dropped)
            list[i]->why = "not reached: the budget was spent";
    }
    return m;
}

/* Rounds until it is known which half of the list is faster, and the other half dropped, until
 * `keep` are left, the best first. */
static int hold_contest(struct tune_search *s, struct tune_setting **list, uint32_t *n,
                        uint32_t keep, uint64_t until_ns)
{
    uint32_t cuts = 0;
    int code = EXIT_OK;

    for (uint32_t i = 0; i < *n; i++) {
        list[i]->from = list[i]->rounds;
        if (list[i]->rounds > 0) { /* dropped by another contest at most */
            list[i]->dropped = false;
            list[i]->why = NULL;
        }
    }
    for (uint32_t m = *n; m > keep; m = half_of(m, keep))
        cuts++;
    for (uint32_t cut = 0; (cut == 0 || cut < cuts) && code == EXIT_OK; cut++) {
        double left = until_ns > s->t.spent_ns ? (double)(until_ns - s->t.spent_ns) : 0;
        double part = left / (cuts > 0 ? cuts - cut : 1);
        uint64_t end_ns = s->t.spent_ns + (uint64_t)part;
        uint32_t m = *n, next;
        uint32_t least = (uint32_t)fmax(1, fmin(ROUNDS, part / ((m + 1) * (double)turn_ns(s))));

        for (uint32_t r = 0;
             r < ROUNDS_MOST && code == EXIT_OK && s->t.spent_ns < until_ns &&
             s->t.setting[0]->rounds < TUNE_ROUNDS &&
             (r < least || (s->t.spent_ns < end_ns && !is_settled(list, m, half_of(m, keep))));
             r++) {
            code = take_round(s, list, m, r % 2 == 1, until_ns);
            m = keep_tried(list, m);
        }
        m = keep_tried(list, m);
        next = half_of(m, keep);
        qsort(list, m, sizeof(*list), by_ratio);
        for (uint32_t i = next; i < m; i++) {
            double behind = tune_ratio(list[i], list[i]->from) - tune_ratio(list[0], list[0]->from);

            list[i]->dropped = true;
            list[i]->why = arena_printf(s->t.arena, "dropped, %.1f %% behind the best of %u",
                                        100 * expm1(behind), m);
        }
        *n = next;
    }
    return code;
}

/* ---- the search ---- */

/* The file's settings, and how long a turn is to be: as many iterations as the file has, or as take
 * as long as all else, so that short ones are not lost in what differs from second to second. */
static int take_first(struct tune_search *s)
{
    struct tune_setting *file = s->t.setting[0];
    const struct bench_options *bench = &file->x->bench;
    double ns, beside; /* all that a turn is but for its iterations */
    int code;

    s->longest_ns = s->t.budget_ns / 40;
    code = take_part(s, file, NAN);
    if (code != EXIT_OK)
        return code;
    ns = file->ns[0];
    file->rounds = 0;
    beside = fmax(0, (double)s->took_ns - ns * (double)(s->t.samples + bench->warmup));
    s->iterations = (uint32_t)fmin(fmax(bench->iterations, fmin(beside / ns, ITERATIONS_MOST)),
                                   fmax(ITERATIONS_LEAST, (double)s->t.budget_ns / 200 / ns));
    s->warmup = bench->warmup < s->iterations / 2 ? bench->warmup : s->iterations / 2;
    s->longest_ns = (uint64_t)fmax(1e7, 5 * s->iterations * ns);
    return EXIT_OK;
}

/* Several changes to one setting, that won each alone. */
static void combine(struct tune_search *s, struct tune_setting **winner, uint32_t n, uint32_t pass,
                    struct tune_setting **list, uint32_t *n_list)
{
    for (uint32_t mask = 1; mask < 1u << n; mask++) {
        const struct tune_setting *parent = winner[0]->parent;
        const char **set = arena_alloc(s->t.arena, (parent->n + n + 1) * sizeof(*set));
        uint32_t size = parent->n, changes = 0;
        struct tune_setting *one;

        memcpy(set, parent->set, size * sizeof(*set));
        for (uint32_t i = 0; i < n; i++) {
            if ((mask >> i & 1) == 0)
                continue;
            size = tune_merge(s, winner[0]->base, set, size, winner[i]->change);
            changes++;
        }
        one = changes < 2 ? NULL
                          : tune_add_setting(s, winner[0]->base, set, size, parent, NULL, pass);
        if (one != NULL)
            list[(*n_list)++] = one;
    }
}

static uint64_t part_of_rest(const struct tune_search *s, double part)
{
    uint64_t end = search_end(s), spent = s->t.spent_ns;

    return end > spent ? spent + (uint64_t)(part * (double)(end - spent)) : spent;
}

/* In the median and in more rounds than the standard deviation of chance allows: what comes and
 * goes on a busy machine is not combined. */
static bool is_faster(const struct tune_setting *x, double before)
{
    int rounds = (int)(x->rounds - x->from), more = -rounds; /* rounds it won, less those it lost */

    for (uint32_t i = x->from; i < x->rounds; i++)
        more += x->log_ratio[i] < before ? 2 : 0;
    return tune_ratio(x, x->from) < before - GAIN && more > 0 && more * more >= rounds;
}

/* One pass; *best is its best, and *more whether that is better than before. */
static int take_pass(struct tune_search *s, uint32_t pass, struct tune_setting **best, bool *more)
{
    struct tune_setting **list =
        arena_alloc(s->t.arena, TUNE_SETTINGS * sizeof(struct tune_setting *));
    struct tune_setting *winner[WINNERS], *file = s->t.setting[0];
    uint32_t n = 0, winners = 0;
    double before;
    int code = EXIT_OK;

    *more = false;
    for (uint32_t i = 0; i < s->n_bases && pass == 1 && code == EXIT_OK; i++) {
        struct tune_setting *base =
            i == 0 ? file : tune_add_setting(s, i, NULL, 0, NULL, NULL, pass);

        if (base == NULL)
            continue;
        code = verify(s, base);
        if (i > 0)
            list[n++] = base;
        if (!base->dropped)
            tune_add_changes(s, base, pass, list, &n);
    }
    if (pass > 1 && *best != file)
        list[n++] = *best;
    if (pass > 1)
        tune_add_changes(s, *best, pass, list, &n);
    if (n <= (pass > 1 ? 1u : 0u) || code != EXIT_OK)
        return code;
    code = hold_contest(s, list, &n, WINNERS, part_of_rest(s, 0.6));
    before = *best == file ? 0 : tune_ratio(*best, (*best)->from);
    for (uint32_t i = 0; i < n && code == EXIT_OK; i++) {
        if (!is_faster(list[i], before) && list[i] != *best)
            list[i]->why = "dropped, no faster than before";
        else if (list[i] != *best && (winners == 0 || (list[i]->parent == winner[0]->parent &&
                                                       list[i]->change != NULL)))
            winner[winners++] = list[i];
    }
    if (winners == 0 || code != EXIT_OK)
        return code;
    list[0] = winner[0];
    n = 1;
    if (winner[0]->change != NULL)
        combine(s, winner, winners, pass, list, &n);
    if (n > 1)
        code = hold_contest(s, list, &n, 1, part_of_rest(s, 0.6));
    if (code == EXIT_OK && n > 0) {
        *best = list[0];
        *more = s->t.spent_ns < search_end(s);
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

        code = take_turn(s, side == 0 ? s->t.setting[0] : s->t.best, false, &turn);
        median[0][side] = turn.median_ns;
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
                              .progress = turns_show_progress(s->t.cli)};
    turns_init(&s->turns, s->t.arena, 1);
    code = turns_take(&s->turns, s->t.budget_ns, &verdict);
    s->t.rounds = s->turns.rounds;
    if (s->t.rounds > 0)
        (void)turns_result(&s->turns, 0, &s->t.last);
    s->t.is_better = s->t.rounds > 0 && s->t.last.high < 1;
    return code;
}

int tune_search(struct tune_search *s)
{
    struct tune_setting *best = s->t.setting[0];
    bool more = true;
    int code = take_first(s);

    for (uint32_t pass = 1; pass <= PASSES && more && code == EXIT_OK; pass++)
        code = take_pass(s, pass, &best, &more);
    for (uint32_t i = 0; i < s->t.n && tune_is_interrupted(code); i++) {
        struct tune_setting *x = s->t.setting[i];

        if (x->rounds > 0 && !x->dropped && tune_ratio(x, 0) < tune_ratio(best, 0))
            best = x;
    }
    s->t.best = best;
    if (code == EXIT_OK && best != s->t.setting[0])
        code = compare_last(s);
    if (tune_is_interrupted(code))
        s->t.stopped = code;
    return code;
}
