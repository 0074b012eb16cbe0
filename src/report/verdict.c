/* Expectations, judged. A figure that was not measured misses whatever was expected of it:
 * who asks for a rate wants to hear that there is none. */
#include "report/result.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"

static double figure_of(const struct result_stage *row, enum expect_figure figure)
{
    const struct stats *s = &row->slowest;

    switch (figure) {
    case EXPECT_MIN:
        return s->min;
    case EXPECT_MEDIAN:
        return s->median;
    case EXPECT_P95:
        return s->p95;
    case EXPECT_P99:
        return s->p99;
    case EXPECT_P999:
        return s->p999;
    case EXPECT_MAX:
        return s->max;
    case EXPECT_MEAN:
        return s->mean;
    case EXPECT_GOODPUT:
        return row->goodput;
    case EXPECT_WIRE:
        return row->wire;
    case EXPECT_BOTTLENECK:
        return row->bottleneck;
    case EXPECT_OF_PEAK:
        return row->peak_ns / s->median;
    case EXPECT_FIGURES:
        break;
    }
    return NAN;
}

/* Ranks have refused names that are no row; the last row is meant by none. */
static const struct result_stage *row_of(const struct result *result, const char *name)
{
    for (uint32_t i = 0; i < result->n_stages; i++)
        if (strcmp(result->stage[i].name, name) == 0)
            return &result->stage[i];
    return name[0] == '\0' ? &result->stage[result->n_stages - 1] : NULL;
}

static void judge(const struct result *result, const struct expectation *e, struct verdict *out)
{
    const struct result_stage *row = row_of(result, e->row);
    bool most = expect_unit_of(e->figure) == EXPECT_NS;
    double x = row == NULL ? NAN : figure_of(row, e->figure);

    snprintf(out->row, sizeof(out->row), "%s", row != NULL ? row->name : e->row);
    out->figure = e->figure;
    out->bound = e->bound;
    out->measured = x;
    out->met = most ? x <= e->bound : x >= e->bound; /* false of NaN */
}

static void judge_wrong(const struct result *result, struct verdict *out)
{
    *out = (struct verdict){.figure = EXPECT_FIGURES,
                            .bound = result->session->experiment->expect.wrong,
                            .measured = NAN};
    if (result->compared > 0)
        out->measured = (double)result->wrong;
    out->met = out->measured <= out->bound;
}

/* ---- words ---- */

struct unit {
    double ns;
    const char *name;
};

/* The one in which `ns` is at least 1. */
static struct unit unit_of(double ns)
{
    static const struct unit units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    size_t i = 0;

    while (i < 3 && !(ns >= units[i].ns))
        i++;
    return units[i];
}

char *verdict_wanted(const struct verdict *v, char *buf, size_t room)
{
    struct unit unit = unit_of(isnan(v->measured) ? v->bound : v->measured);

    if (v->figure == EXPECT_FIGURES)
        snprintf(buf, room, "wrong <= %.0f elements", v->bound);
    else if (expect_unit_of(v->figure) == EXPECT_NS)
        snprintf(buf, room, "%s %s <= %.10g %s", v->row, expect_name[v->figure], v->bound / unit.ns,
                 unit.name);
    else if (v->figure == EXPECT_OF_PEAK)
        snprintf(buf, room, "%s >= %.10g %% of its limit", v->row, 100 * v->bound);
    else
        snprintf(buf, room, "%s %s >= %.10g GB/s", v->row, expect_name[v->figure], v->bound);
    return buf;
}

/* Why there is no figure. */
static const char *why_not(const struct result *result, const struct verdict *v)
{
    if (v->figure == EXPECT_FIGURES)
        return result->unchecked[0] != '\0' ? result->unchecked : "nothing was compared";
    if (result->n_samples == 0)
        return "there is no sample";
    if (v->figure == EXPECT_P999 && result->n_samples < STATS_P999_LEAST)
        return "it needs 1000 samples (bench.iterations)";
    if (v->figure == EXPECT_OF_PEAK && !result->peak.known)
        return "the transport does not measure what its links can do";
    return "this row has no such figure";
}

char *verdict_found(const struct result *result, const struct verdict *v, char *buf, size_t room)
{
    struct unit unit = unit_of(v->measured);
    char off[32] = "";

    if (v->bound > 0)
        snprintf(off, sizeof(off), " (%+.1f %%)", 100 * (v->measured / v->bound - 1));
    if (isnan(v->measured))
        snprintf(buf, room, "not known: %s", why_not(result, v));
    else if (v->figure == EXPECT_FIGURES)
        snprintf(buf, room, "%.0f", v->measured);
    else if (expect_unit_of(v->figure) == EXPECT_NS)
        snprintf(buf, room, "%.4g %s%s", v->measured / unit.ns, unit.name, off);
    else if (v->figure == EXPECT_OF_PEAK)
        snprintf(buf, room, "%.4g %%", 100 * v->measured);
    else
        snprintf(buf, room, "%.4g GB/s%s", v->measured, off);
    return buf;
}

/* "expected total median <= 120 us, it is 131.4 us (+9.5 %), and 1 more". */
static void explain(struct result *result)
{
    char wanted[128], found[256], more[32] = "";
    const struct verdict *v = result->verdict;

    while (v->met)
        v++;
    if (result->n_missed > 1)
        snprintf(more, sizeof(more), ", and %u more", result->n_missed - 1);
    snprintf(result->error, sizeof(result->error), "expected %s, it is %s%s",
             verdict_wanted(v, wanted, sizeof(wanted)),
             verdict_found(result, v, found, sizeof(found)), more);
}

/* verify takes no times: `wrong` alone. */
static bool applies(const struct result *result)
{
    return result->status == EPA_OK && result->n_stages > 0 &&
           (result->session->verb != VERB_VERIFY ||
            expect_wrong_is_set(&result->session->experiment->expect));
}

enum epa_status verdicts_make(struct result *result)
{
    const struct expect_options *x = &result->session->experiment->expect;
    bool times = result->session->verb != VERB_VERIFY;
    struct value_error ignored;

    if (!applies(result) || !expect_is_set(x))
        return EPA_OK;
    result->verdict = calloc(EXPECT_FIGURES * EXPECT_MOST + 1, sizeof(*result->verdict));
    if (result->verdict == NULL)
        return EPA_ERR_NOMEM;
    for (uint32_t i = 0; i < EXPECT_FIGURES && times; i++) {
        struct expectation all[EXPECT_MOST];
        uint32_t n = expect_read(x, i, all, &ignored);

        for (uint32_t k = 0; k < n && n != UINT32_MAX; k++)
            judge(result, &all[k], &result->verdict[result->n_verdicts++]);
    }
    if (expect_wrong_is_set(x))
        judge_wrong(result, &result->verdict[result->n_verdicts++]);
    for (uint32_t i = 0; i < result->n_verdicts; i++)
        result->n_missed += !result->verdict[i].met;
    if (result->n_missed > 0) {
        result->exit_code = EXIT_WRONG;
        explain(result);
    }
    return EPA_OK;
}
