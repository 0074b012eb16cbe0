/* Checks the expectations of a result. An expectation on a figure that was not measured is missed: a
 * user that expects a rate must learn that no rate was measured. */
#include "result/verdicts.h"

#include <math.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "config/expect.h"
#include "config/experiment.h"
#include "config/option_text.h"

/* ---- expectations ---- */

const char *verdict_name(const struct run_verdict *v)
{
    return v->figure != NULL ? figure_name(v->figure) : "wrong";
}

const char *verdict_unit(const struct run_verdict *v)
{
    return v->figure != NULL ? figure_unit(v->figure) : "elements";
}

/* A larger time and more wrong elements are worse; a larger rate is better. */
static bool has_upper_bound(const struct figure *figure)
{
    return figure == NULL || figure->better == FIGURE_SMALLER;
}

static void append_verdict(struct run_figures *f, const char *row, const struct figure *figure,
                           double bound, double measured)
{
    bool is_most = has_upper_bound(figure);

    f->verdict[f->n_verdicts++] = (struct run_verdict){
        .stage = arena_printf(f->arena, "%s", row),
        .figure = figure,
        .is_most = is_most,
        .met = is_most ? measured <= bound : measured >= bound, /* false for NaN */
        .bound = bound,
        .measured = measured};
}

/* Adds the verdict on one bound. The ranks have already rejected unknown rows; an empty name means
 * the last row. */
static void add_verdict(struct run_figures *f, const char *name, const struct epa_option *option,
                        const struct expect_bounds *bounds)
{
    const struct figure *figure = figure_find(option->name);
    const struct run_stage *row = name[0] == '\0' ? run_total(f) : run_stage_of(f, name);

    append_verdict(f, row != NULL ? row->name : name, figure, expect_bound(option, bounds),
                   row != NULL ? figure_value(figure, &row->figures) : NAN);
}

/* ---- words ---- */

/* A unit of time in which the measured value is at least 1. */
struct time_unit {
    double ns;
    const char *name;
};

static const struct time_unit *unit_of(double ns)
{
    static const struct time_unit units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    const struct time_unit *unit = units;

    while (unit->ns > 1 && !(ns >= unit->ns))
        unit++;
    return unit;
}

/* Adds a figure in its unit. `digits`: significant digits. */
static void add_figure(struct text *out, const struct run_verdict *v, double value, int digits)
{
    const struct time_unit *unit = unit_of(isnan(v->measured) ? v->bound : v->measured);

    if (v->figure == NULL)
        text_add(out, "%.0f", value);
    else if (v->figure->kind == FIGURE_NS)
        text_add(out, "%.*g %s", digits, value / unit->ns, unit->name);
    else if (v->figure->kind == FIGURE_RATIO)
        text_add(out, "%.*g %%", digits, value / 0.01);
    else
        text_add(out, "%.*g GB/s", digits, value);
}

static void add_expectation(struct text *out, const struct run_verdict *v)
{
    bool is_ratio = v->figure != NULL && v->figure->kind == FIGURE_RATIO;

    if (v->figure == NULL)
        text_add(out, "wrong");
    else if (is_ratio)
        text_add(out, "%s", v->stage);
    else
        text_add(out, "%s %s", v->stage, figure_name(v->figure));
    text_add(out, v->is_most ? " <= " : " >= ");
    add_figure(out, v, v->bound, 10);
    text_add(out, v->figure == NULL ? " elements" : is_ratio ? " of its limit" : "");
}

/* Returns the reason of a missing figure. */
static const char *missing_reason(const struct run_figures *f, const struct run_verdict *v)
{
    const char *unchecked = f->verify.unchecked;

    if (v->figure == NULL)
        return unchecked != NULL && unchecked[0] != '\0' ? unchecked : "nothing was compared";
    if (f->stop.samples == 0)
        return "there is no sample";
    if (v->figure->needs == FIGURE_TAIL && f->stop.samples < STATS_P999_LEAST)
        return "it needs 1000 samples (bench.iterations)";
    if (v->figure->needs == FIGURE_LINKS && !run_has_links(f))
        return "the transport does not measure its links";
    return "this row has no such figure";
}

void verdict_add(struct text *out, const struct run_figures *f, const struct run_verdict *v,
                 const char *between)
{
    add_expectation(out, v);
    text_add(out, "%s", between);
    if (!isfinite(v->measured)) {
        text_add(out, "not known: %s", missing_reason(f, v));
        return;
    }
    add_figure(out, v, v->measured, 4);
    if (v->figure != NULL && v->figure->kind != FIGURE_RATIO && v->bound > 0)
        text_add(out, " (%+.1f %%)", 100 * (v->measured / v->bound - 1));
}

static void set_missed(struct run_figures *f, const char *text)
{
    f->status = f->error = "missed";
    f->exit_code = EXIT_WRONG;
    f->error_text = text;
}

/* Writes "expected total median <= 120 us, it is 131.4 us (+9.5 %), and 1 more". */
static void explain_missed(struct run_figures *f)
{
    text_auto text = {0};
    unsigned missed = 0;

    for (uint32_t i = 0; i < f->n_verdicts; i++) {
        if (f->verdict[i].met || missed++ > 0)
            continue;
        text_add(&text, "expected ");
        verdict_add(&text, f, &f->verdict[i], ", it is ");
    }
    if (missed > 1)
        text_add(&text, ", and %u more", missed - 1);
    if (missed > 0)
        set_missed(f, arena_printf(f->arena, "%s", text.data));
}

/* Counts the bounds of an experiment, with `wrong`. */
static uint32_t count_bounds(const struct expect_options *x)
{
    const struct expect_bounds *bounds;
    const char *row;
    uint32_t n = 1;

    for (uint32_t i = 0; (bounds = expect_row_at(x, i, &row)) != NULL; i++)
        for (const struct epa_option *o = expect_figures; o->name != NULL; o++)
            n += option_is_set(o, bounds);
    return n;
}

/* verify measures no times: only `wrong` is evaluated. A verify without comparable outputs has
 * verified nothing. */
void verdicts_make(struct run_figures *f, const struct session *s)
{
    const struct expect_options *x = &s->experiment->expect;
    const struct op_share *share = &f->verify.share;
    const struct expect_bounds *bounds;
    const char *row;

    if (strcmp(f->status, "ok") != 0)
        return;
    f->verdict = arena_alloc(f->arena, count_bounds(x) * sizeof(*f->verdict));
    for (const struct epa_option *o = expect_figures; o->name != NULL; o++)
        for (uint32_t i = 0; (bounds = expect_row_at(x, i, &row)) != NULL; i++)
            if (s->verb != VERB_VERIFY && option_is_set(o, bounds))
                add_verdict(f, row, o, bounds);
    if (expect_wrong_is_set(x))
        append_verdict(f, "", NULL, x->wrong,
                       f->verify.compared > 0 ? (double)f->verify.wrong : NAN);
    explain_missed(f);
    if (s->verb == VERB_VERIFY && f->error == NULL && share->overflowed > 0 && share->compared == 0)
        set_missed(f, "no output was compared: the right values of all outputs may overflow; use "
                      "smaller routing.hidden_states");
}
