/* The document of a comparison. */
#include "cli/compared_json.h"

/* Returns a value of a side; times are whole nanoseconds. */
static json_t *side_json(const struct compared *c, double value)
{
    return c->figure->kind == FIGURE_NS ? json_whole(value) : json_number(value);
}

/* Returns the rows; the values of the sides have the keys `a` and `b`. */
static json_t *rows_json(const struct compared *c, const char *a, const char *b)
{
    json_t *rows = json_array();

    for (uint32_t i = 0; i < c->n; i++) {
        const struct compared_row *row = &c->row[i];

        json_array_append_new(
            rows, json_object_of(
                      "run", json_text(row->run), "stage", json_text(row->stage), a,
                      side_json(c, row->of.a), b, side_json(c, row->of.b), "ratio",
                      json_number(row->of.ratio), "low", json_number(row->of.low), "high",
                      json_number(row->of.high), "p", json_number(row->of.p), "runs_a",
                      json_count(row->of.runs_a), "runs_b", json_count(row->of.runs_b), "verdict",
                      row->judged ? json_text(compared_word(c, row)) : json_null(), NULL));
    }
    return rows;
}

json_t *compared_json(const struct compared *c)
{
    bool samples = compared_is_by_samples(c);
    json_t *out = json_object_of(
        "schema", json_integer(1), "program", json_text("epa2a"), "a", json_text(c->a), "b",
        json_text(c->b), "rounds", json_count_or_null(c->turns.rounds), "threshold",
        json_number(c->threshold), "alpha", json_number(c->alpha), "compared",
        samples ? rows_json(c, "a_ns", "b_ns") : rows_json(c, "a", "b"), NULL);

    if (!samples) {
        json_object_set_new(out, "figure", json_text(figure_name(c->figure)));
        json_object_set_new(out, "unit", json_text(figure_unit(c->figure)));
    }
    if (c->turns.rounds > 0) {
        json_object_set_new(out, "alternated", json_boolean(c->turns.alternated));
        json_object_set_new(out, "percentile", json_number(c->turns.percentile));
    }
    return out;
}
