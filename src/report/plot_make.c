/* Results to charts. Runs of one label are one experiment: their samples are taken together. */
#include <fnmatch.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "report/plot_parts.h"

enum { FEW = 20 }; /* samples; with fewer, p5 and p95 are the least and the most */

int plot_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static const json_t *json_of(const struct plot_source *s)
{
    return s->run->json;
}

enum epa_status plot_too_many(uint32_t most, const char *what, struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_CONFIG,
                    "more than %u %s cannot be distinguished; --only selects runs", most, what);
}

/* ---- which runs ---- */

static const struct results_stage *find_stage(const struct results_run *run, const char *name)
{
    const struct results_stage *found = NULL;

    for (uint32_t i = 0; i < run->n_stages && found == NULL; i++) {
        if (strcmp(run->stage[i].name, name) == 0 && run->stage[i].n > 0)
            found = &run->stage[i];
    }
    return found;
}

/* The operation is the one whose size the experiment has. */
static void find_size(struct plot_source *s)
{
    for (uint32_t i = 0; operation_at(i) != NULL && !(s->size > 0); i++) {
        s->operation = operation_at(i);
        s->size = json_number_value(plot_value(s, s->operation->size_key));
    }
}

static const struct results_stage *wanted_stage(const struct plot_making *m,
                                                const struct results_run *run)
{
    const struct results_stage *total;

    if (m->wish->stage != NULL)
        return find_stage(run, m->wish->stage);
    total = find_stage(run, "total");
    if (total == NULL)
        total = find_stage(run, "wall");
    return total != NULL ? total : find_stage(run, "latency");
}

static bool is_picked(const struct plot_wish *wish, const struct results_run *run)
{
    for (uint32_t i = 0; i < wish->n_only; i++) {
        if (fnmatch(wish->only[i], run->label, 0) == 0 || strcmp(wish->only[i], run->label) == 0 ||
            fnmatch(wish->only[i], run->id, 0) == 0)
            return true;
    }
    return wish->n_only == 0;
}

static void collect(struct plot_making *m, const struct results *results, uint32_t n)
{
    uint32_t runs = 0;

    for (uint32_t i = 0; i < n; i++)
        runs += results[i].n;
    m->source = arena_alloc(m->plot->arena, (runs + 1) * sizeof(*m->source));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < results[i].n; k++) {
            const struct results_run *run = &results[i].run[k];
            struct plot_source *s = &m->source[m->n];

            if (!run->ok || !is_picked(m->wish, run))
                continue;
            *s = (struct plot_source){
                .run = run, .path = results[i].path, .stage = wanted_stage(m, run)};
            find_size(s);
            if (s->stage != NULL)
                m->n++;
            else
                m->without++;
        }
    }
}

static enum epa_status check(const struct plot_making *m, const struct results *results, uint32_t n,
                             struct epa_error *err)
{
    const char *stage = m->wish->stage != NULL ? m->wish->stage : "total";

    if (m->n > 0)
        return EPA_OK;
    if (m->without > 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: no run has samples of stage %s; bench and run take them, verify "
                        "does not",
                        results[0].path, stage);
    if (m->wish->n_only > 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--only '%s': no run that ended well has that label or id",
                        m->wish->only[0]);
    return epa_fail(err, EPA_ERR_CONFIG, "%s%s: no run in it that ended well", results[0].path,
                    n > 1 ? " and others" : "");
}

static enum plot_kind choose(const struct plot_making *m)
{
    for (uint32_t i = 1; i < m->n; i++) {
        double a = m->source[0].size, b = m->source[i].size;

        if (a > 0 && b > 0 && (a < b || a > b))
            return PLOT_TOKENS;
    }
    return m->n == 1 ? PLOT_DISTRIBUTION : PLOT_STAGES;
}

/* ---- lines ---- */

/* Samples of all runs of one label and, with `sized`, of one size: sorted. */
static double *pool(const struct plot_making *m, const struct plot_source *of, bool sized,
                    uint64_t *n)
{
    double *all;
    uint64_t room = 0;

    for (uint32_t i = 0; i < m->n; i++)
        room += m->source[i].stage->n;
    all = malloc((room + 1) * sizeof(*all));
    *n = 0;
    for (uint32_t i = 0; i < m->n && all != NULL; i++) {
        const struct plot_source *s = &m->source[i];

        if (strcmp(s->label, of->label) != 0 ||
            (sized && (s->size < of->size || s->size > of->size)))
            continue;
        memcpy(all + *n, s->stage->sample, s->stage->n * sizeof(*all));
        *n += s->stage->n;
    }
    if (all != NULL)
        qsort(all, *n, sizeof(*all), plot_by_value);
    return all;
}

static int by_label(const void *a, const void *b)
{
    const struct plot_source *x = a, *y = b;
    int order = strcmp(x->label, y->label);

    return order != 0 ? order : plot_by_value(&x->size, &y->size);
}

/* Runs in order of their labels become lines; `add` makes points of the runs from `at` on
 * that it takes together, and says how many those were. */
static enum epa_status make_lines(struct plot_making *m,
                                  uint32_t (*add)(struct plot_making *, uint32_t at,
                                                  struct plot_series *),
                                  struct epa_error *err)
{
    struct plot *p = m->plot;

    qsort(m->source, m->n, sizeof(*m->source), by_label);
    p->series = arena_alloc(p->arena, PLOT_SERIES * sizeof(*p->series));
    for (uint32_t i = 0; i < m->n;) {
        bool same =
            p->n_series > 0 && strcmp(p->series[p->n_series - 1].name, m->source[i].label) == 0;
        uint32_t taken;

        if (!same && p->n_series == PLOT_SERIES)
            return plot_too_many(PLOT_SERIES, "lines", err);
        if (!same)
            p->series[p->n_series++].name = m->source[i].label;
        taken = add(m, i, &p->series[p->n_series - 1]);
        if (taken == 0)
            return epa_fail(err, EPA_ERR_NOMEM, "no memory for samples");
        i += taken;
    }
    return EPA_OK;
}

static uint32_t add_tokens(struct plot_making *m, uint32_t at, struct plot_series *out)
{
    const struct plot_source *s = &m->source[at];
    uint32_t taken = 1;
    uint64_t n;
    double *all = pool(m, s, true, &n);

    if (all == NULL)
        return 0;
    if (out->point == NULL)
        out->point = arena_alloc(m->plot->arena, (m->n - at) * sizeof(*out->point));
    out->point[out->n++] =
        (struct plot_point){.x = s->size,
                            .y = plot_percentile(all, n, 50) / 1e3,
                            .low = plot_percentile(all, n, n < FEW ? 0 : 5) / 1e3,
                            .high = plot_percentile(all, n, n < FEW ? 100 : 95) / 1e3};
    free(all);
    while (at + taken < m->n && by_label(s, s + taken) == 0)
        taken++;
    return taken;
}

enum { ECDF_STEPS = 200 };

static uint32_t add_ecdf(struct plot_making *m, uint32_t at, struct plot_series *out)
{
    uint64_t n;
    uint32_t taken = 1;
    double *all = pool(m, &m->source[at], false, &n);

    if (all == NULL)
        return 0;
    out->point = arena_alloc(m->plot->arena, (ECDF_STEPS + 1) * sizeof(*out->point));
    for (uint64_t i = 0; i <= ECDF_STEPS; i++) {
        uint64_t rank = (n - 1) * i / ECDF_STEPS;

        out->point[out->n++] =
            (struct plot_point){all[rank] / 1e3, 100.0 * (double)(rank + 1) / (double)n, NAN, NAN};
    }
    free(all);
    while (at + taken < m->n && strcmp(m->source[at].label, m->source[at + taken].label) == 0)
        taken++;
    return taken;
}

/* Axes that hold every point and whisker. */
static void fit_axes(struct plot *p)
{
    double x[2] = {INFINITY, -INFINITY}, y[2] = {INFINITY, -INFINITY};

    for (uint32_t s = 0; s < p->n_series; s++) {
        for (uint32_t i = 0; i < p->series[s].n; i++) {
            const struct plot_point *at = &p->series[s].point[i];

            x[0] = fmin(x[0], at->x);
            x[1] = fmax(x[1], at->x);
            y[0] = fmin(y[0], fmin(at->y, at->low));
            y[1] = fmax(y[1], fmax(at->y, at->high));
        }
    }
    plot_axis_fit(&p->x, x[0], x[1]);
    plot_axis_fit(&p->y, y[0], y[1]);
}

static enum epa_status make_tokens(struct plot_making *m, struct epa_error *err)
{
    struct plot *p = m->plot;
    const struct operation *op;
    enum epa_status status;

    for (uint32_t i = 0; i < m->n; i++) {
        if (!(m->source[i].size > 0))
            return epa_fail(err, EPA_ERR_CONFIG, "%s: '%s' has no %s", m->source[i].path,
                            m->source[i].run->label, operation_at(0)->size_key);
    }
    plot_label_lines(p->arena, m->source, m->n);
    op = m->source[0].operation;
    p->unit = op->unit;
    p->title = arena_printf(p->arena, "Latency against %s: %s", op->unit, m->source[0].stage->name);
    p->x = (struct plot_axis){
        .label = arena_printf(p->arena, "%s (%s)", op->size_label, op->size_key), .base = 2};
    p->y = (struct plot_axis){.label = "time [us]", .base = 10};
    p->note = "medians; whiskers: 5 % to 95 % of samples, all of them where they are under 20";
    status = make_lines(m, add_tokens, err);
    if (status == EPA_OK)
        fit_axes(p);
    return status;
}

static enum epa_status make_histogram(struct plot_making *m, struct epa_error *err)
{
    struct plot *p = m->plot;
    struct plot_series *s = arena_alloc(p->arena, sizeof(*s));
    struct plot_bins bins;
    uint64_t n;
    double *all = pool(m, &m->source[0], false, &n);
    char median[PLOT_NUMBER], most[PLOT_NUMBER];

    if (all == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for samples");
    for (uint64_t i = 0; i < n; i++)
        all[i] /= 1e3;
    plot_bins(all, n, &bins);
    s->name = m->source[0].label;
    s->n = bins.n;
    s->point = arena_alloc(p->arena, bins.n * sizeof(*s->point));
    for (uint32_t i = 0; i < bins.n; i++) {
        double low = bins.low + i * bins.width;

        s->point[i] =
            (struct plot_point){low + bins.width / 2, (double)bins.count[i], low, low + bins.width};
    }
    p->note =
        arena_printf(p->arena, "%llu samples, median %s us, largest %s us%s", (unsigned long long)n,
                     plot_number(median, sizeof(median), plot_percentile(all, n, 50)),
                     plot_number(most, sizeof(most), all[n - 1]),
                     bins.open ? "; the last bin has all above it, too" : "");
    free(all);
    p->series = s;
    p->n_series = 1;
    p->bars = true;
    p->open = bins.open;
    p->x = (struct plot_axis){"time [us]", 0, s->point[0].low, s->point[s->n - 1].high};
    p->y = (struct plot_axis){.label = "samples"};
    plot_axis_fit(&p->y, 0, (double)n);
    return EPA_OK;
}

static enum epa_status make_distribution(struct plot_making *m, struct epa_error *err)
{
    struct plot *p = m->plot;
    enum epa_status status;
    bool one = true;

    plot_label_runs(p->arena, m->source, m->n);
    for (uint32_t i = 1; i < m->n; i++)
        one = one && strcmp(m->source[0].label, m->source[i].label) == 0;
    p->title = arena_printf(p->arena, "Distribution of samples: %s%s%s", m->source[0].stage->name,
                            one ? ", " : "", one ? m->source[0].label : "");
    if (one)
        return make_histogram(m, err);
    p->x = (struct plot_axis){.label = "time [us]"};
    p->y = (struct plot_axis){.label = "samples up to that time [%]"};
    p->note = "a line that is further left is faster, one that is steeper is steadier";
    status = make_lines(m, add_ecdf, err);
    if (status != EPA_OK)
        return status;
    fit_axes(p);
    p->y.low = 0;
    p->y.high = 100;
    return EPA_OK;
}

/* ---- all of it ---- */

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "?";
}

/* The machine, and that there are others. */
static const char *caption(const struct plot_making *m)
{
    const json_t *machine = json_object_get(json_of(&m->source[0]), "machine");
    const json_t *build = json_object_get(machine, "build");
    const json_t *device = json_object_get(json_object_get(machine, "device"), "device");
    bool others = false;
    char *text;

    for (uint32_t i = 1; i < m->n; i++) {
        const json_t *other = json_object_get(json_of(&m->source[i]), "machine");

        others = others || strcmp(text_at(machine, "host"), text_at(other, "host")) != 0 ||
                 strcmp(text_at(machine, "cpu"), text_at(other, "cpu")) != 0;
    }
    text = arena_printf(
        m->plot->arena, "%s, %lld cores%s%s, on %s%s; epa2a %s", text_at(machine, "cpu"),
        (long long)json_integer_value(json_object_get(machine, "cores")),
        json_is_string(device) ? ", " : "", json_is_string(device) ? json_string_value(device) : "",
        text_at(machine, "host"), others ? " and other machines" : "", text_at(build, "version"));
    for (char *c = text; *c != '\0'; c++)
        *c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c;
    return text;
}

enum epa_status plot_make(const struct results *results, uint32_t n, const struct plot_wish *wish,
                          struct plot *out, struct epa_error *err)
{
    static enum epa_status (*const make[])(struct plot_making *, struct epa_error *) = {
        [PLOT_TOKENS] = make_tokens,
        [PLOT_DISTRIBUTION] = make_distribution,
        [PLOT_SKEW] = plot_make_skew,
        [PLOT_STAGES] = plot_make_stages};
    struct plot plot = {.arena = arena_create(), .kind = wish->kind};
    struct plot_making m = {.wish = wish, .plot = &plot};
    enum epa_status status;

    collect(&m, results, n);
    status = check(&m, results, n, err);
    if (status == EPA_OK && plot.kind == PLOT_AUTO)
        plot.kind = choose(&m);
    if (status == EPA_OK)
        status = make[plot.kind](&m, err);
    if (status != EPA_OK) {
        plot_free(&plot);
        return status;
    }
    plot.caption = caption(&m);
    *out = plot;
    return EPA_OK;
}
