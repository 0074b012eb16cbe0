/* Geometric means of totals. */
#include "report/means.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "report/results.h"

const struct report_row *report_base(const struct report_row *row, uint32_t n, const char *question)
{
    const struct report_row *first = NULL;

    for (uint32_t i = 0; i < n && question != NULL; i++) {
        if (row[i].question == NULL || strcmp(row[i].question, question) != 0 ||
            !(row[i].time_ns[ROW_TOTAL] > 0))
            continue;
        if (row[i].baseline)
            return &row[i];
        first = first != NULL ? first : &row[i];
    }
    return first;
}

/* Runs with one algorithm, transport, backend and launcher: logarithms of their totals, summed over
 * shapes. */
struct means {
    json_t *keys; /* results_part() */
    double sum;
    uint32_t n;
};

static const json_t *means_algorithm(const struct means *m)
{
    return json_object_get(m->keys, "algorithm.name");
}

/* Adds "ll_v2", or "ll_v2 buffers=1" if other entries of that algorithm have another value. */
static void add_means_name(struct text *out, const struct means *all, uint32_t n,
                           const struct means *of)
{
    text_add(out, "%s", json_string_value(means_algorithm(of)));
    for (struct json_walk it = {of->keys}; json_next(&it);) {
        bool differs = false;

        for (uint32_t i = 0; i < n; i++)
            differs = differs || (json_equal(means_algorithm(&all[i]), means_algorithm(of)) &&
                                  !json_equal(json_object_get(all[i].keys, it.key), it.value));
        if (!differs)
            continue;
        text_add(out, " %s=", strncmp(it.key, "algorithm.", 10) == 0 ? it.key + 10 : it.key);
        results_add_value(out, it.value, false);
    }
}

static void add_total(struct means *means, uint32_t *n, const struct report_row *row, double ns)
{
    json_t *keys = results_part(row->experiment, RESULTS_MEANS);
    uint32_t k = 0;

    while (k < *n && !json_equal(means[k].keys, keys))
        k++;
    if (k == *n)
        means[(*n)++].keys = json_incref(keys);
    means[k].sum += log(ns);
    means[k].n++;
    json_decref(keys);
}

static double time_of(const struct report_row *row, enum means_of of)
{
    return of == MEANS_OF_MEDIANS ? row->time_ns[ROW_TOTAL] : row->mean_ns;
}

void report_means(const struct report_row *row, uint32_t n_rows, enum means_of of, struct text *out)
{
    static const struct {
        const char *what;
        uint32_t settings; /* minimum */
    } kinds[MEANS_OF] = {[MEANS_OF_MEDIANS] = {"totals", 2}, [MEANS_OF_MEANS] = {"mean totals", 1}};
    struct means *means = memory_alloc(n_rows + 1, sizeof(*means));
    uint32_t n = 0, shapes = 0, whole = 0;

    for (uint32_t i = 0; i < n_rows; i++) {
        shapes += report_base(row, n_rows, row[i].question) == &row[i];
        if (time_of(&row[i], of) > 0)
            add_total(means, &n, &row[i], time_of(&row[i], of));
    }
    for (uint32_t i = 0; i < n; i++)
        whole += means[i].n == shapes;
    for (uint32_t i = 0, done = 0; i < n && shapes > 1 && whole >= kinds[of].settings; i++) {
        if (means[i].n != shapes)
            continue;
        if (done++ == 0)
            text_add(out, "geometric means of %s over %u shapes: ", kinds[of].what, shapes);
        else
            text_add(out, ", ");
        add_means_name(out, means, n, &means[i]);
        text_add(out, " %.1f us", exp(means[i].sum / shapes) / 1e3);
    }
    for (uint32_t i = 0; i < n; i++)
        json_decref(means[i].keys);
    free(means);
}
