/* Checks the expectations of a result. An expectation on a figure that was not measured is missed: a
 * user that expects a rate must learn that no rate was measured. */
#include "report/verdicts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/text.h"
#include "config/expect.h"
#include "config/experiment.h"
#include "config/option_text.h"
#include "report/figures.h"
#include "report/fill.h"
#include "report/result_parts.h"

/* ---- expectations ---- */

static void append_verdict(json_t *result, const char *row, const char *figure, const char *unit,
                           bool most, double bound, double measured)
{
    json_t *verdict = json_object_of(
        "stage", json_text_or_null(row), "figure", json_text(figure), "unit", json_text(unit),
        most ? "most" : "least", most ? json_whole(bound) : json_number(bound), "measured",
        most ? json_whole(measured) : json_number(measured), "met",
        json_boolean(most ? measured <= bound : measured >= bound), NULL); /* false for NaN */

    json_array_append_new(json_object_get(result, "expect"), verdict);
}

/* Adds the verdict on one bound. The ranks have already rejected unknown rows; an empty name means
 * the last row. */
static void add_verdict(json_t *result, const char *name, const struct epa_option *figure,
                        double bound)
{
    const struct figure *of = figure_find(figure->name);
    const json_t *row = name[0] == '\0'
                            ? result_total(result)
                            : json_find(json_object_get(result, "stages"), "name", name);

    append_verdict(result, row != NULL ? json_text_at(row, "name") : name, figure->name,
                   figure_unit(of), figure->type == EPA_OPTION_DURATION, bound,
                   json_number_at(row, of->path));
}

/* ---- words ---- */

/* Expectation; then "131.4 us (+9.5 %)", or the reason of a missing figure. */
static const char wanted[] =
    "[{of=elements}wrong <= {most%.0f} elements|{of=ns}{row} {figure} <= {most/scale%.10g} {in}"
    "|{of=part}{row} >= {least/.01%.10g} % of its limit|{row} {figure} >= {least%.10g} GB/s]";
static const char found[] =
    "[{of=elements}{measured%.0f}|{of=ns}{measured/scale%.4g} {in}[ ({off/.01%+.1f} %)]"
    "|{of=part}{measured/.01%.4g} %|{measured%.4g} GB/s[ ({off/.01%+.1f} %)]"
    "|not known: [{of=elements}[{verify.unchecked}|nothing was compared]"
    "|{no_sample=true}there is no sample"
    "|{figure=p999}{stop.samples<1000}it needs 1000 samples (bench.iterations)"
    "|{of=part}{no_links=true}the transport does not measure its links"
    "|this row has no such figure]]";

/* Returns the result and a verdict, with a unit of time in which the measured value is at least
 * 1. */
static json_t *verdict_facts(const json_t *result, const json_t *v)
{
    static const struct {
        double ns;
        const char *name;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    double most = json_number_at(v, "most"), measured = json_number_at(v, "measured");
    double bound = fmax(most, json_number_at(v, "least"));
    size_t i = 0;

    while (i < 3 && !((isnan(measured) ? most : measured) >= units[i].ns))
        i++;
    return json_object_of(
        "verify", json_incref(json_object_get(result, "verify")), "stop",
        json_incref(json_object_get(result, "stop")), "row", json_text(json_text_at(v, "stage")),
        "figure", json_text(json_text_at(v, "figure")), "of", json_text(json_text_at(v, "unit")),
        "most", json_number(most), "least", json_number(json_number_at(v, "least")), "measured",
        json_number(measured), "off", json_number(bound > 0 ? measured / bound - 1 : NAN), "scale",
        json_number(units[i].ns), "in", json_text(units[i].name), "no_sample",
        json_boolean(!(json_number_at(result, "stop.samples") > 0)), "no_links",
        json_boolean(json_is_null(json_at(result, "machine.links"))), NULL);
}

void verdict_add(struct text *out, const json_t *result, const json_t *v, const char *between)
{
    json_auto_t *facts = verdict_facts(result, v);

    fill_add(out, wanted, facts, NULL);
    text_add(out, "%s", between);
    fill_add(out, found, facts, NULL);
}

/* Writes "expected total median <= 120 us, it is 131.4 us (+9.5 %), and 1 more". */
static void explain_missed(json_t *result)
{
    text_auto text = {0};
    unsigned missed = 0;

    for (struct json_walk v = {json_object_get(result, "expect")}; json_next(&v);) {
        if (json_is_true(json_object_get(v.value, "met")) || missed++ > 0)
            continue;
        text_add(&text, "expected ");
        verdict_add(&text, result, v.value, ", it is ");
    }
    if (missed == 0)
        return;
    if (missed > 1)
        text_add(&text, ", and %u more", missed - 1);
    json_object_set_new(result, "status", json_text("missed"));
    json_object_set_new(result, "exit_code", json_integer(EXIT_WRONG));
    json_object_set_new(
        result, "error",
        json_object_of("status", json_text("missed"), "text", json_text(text.data), NULL));
}

/* A verify without comparable outputs has verified nothing. */
static void check_overflow(json_t *result)
{
    if (!(json_number_at(result, "verify.outputs_overflowed") > 0) ||
        json_number_at(result, "verify.outputs_compared") > 0)
        return;
    json_object_set_new(result, "status", json_text("missed"));
    json_object_set_new(result, "exit_code", json_integer(EXIT_WRONG));
    json_object_set_new(result, "error",
                        json_object_of("status", json_text("missed"), "text",
                                       json_text("no output was compared: the right values of all "
                                                 "outputs may overflow; use smaller "
                                                 "routing.hidden_states"),
                                       NULL));
}

/* verify measures no times: only `wrong` is evaluated. */
void verdicts_make(json_t *result, const struct session *s)
{
    const struct expect_options *x = &s->experiment->expect;
    double compared = json_number_at(result, "verify.compared");
    const struct expect_bounds *bounds;
    const char *row;

    if (strcmp(json_text_at(result, "status"), "ok") != 0)
        return;
    for (const struct epa_option *o = expect_figures; o->name != NULL; o++)
        for (uint32_t i = 0; (bounds = expect_row_at(x, i, &row)) != NULL; i++)
            if (s->verb != VERB_VERIFY && option_is_set(o, bounds))
                add_verdict(result, row, o, expect_bound(o, bounds));
    if (expect_wrong_is_set(x))
        append_verdict(result, "", "wrong", "elements", true, x->wrong,
                       compared > 0 ? json_number_at(result, "verify.wrong") : NAN);
    explain_missed(result);
    if (s->verb == VERB_VERIFY && strcmp(json_text_at(result, "status"), "ok") == 0)
        check_overflow(result);
}
