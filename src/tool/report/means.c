/* Geometric means of totals. */
#include "report/means.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "report/results.h"

const json_t *report_base(const json_t *lines, const json_t *question)
{
    const json_t *first = NULL;

    for (struct json_walk line = {lines}; json_next(&line);) {
        if (!json_equal(json_object_get(line.value, "question"), question) ||
            !(json_number_at(line.value, "total_ns") > 0))
            continue;
        if (json_is_true(json_object_get(line.value, "baseline")))
            return line.value;
        first = first != NULL ? first : line.value;
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

static void add_total(struct means *means, uint32_t *n, const json_t *line, const char *time)
{
    json_t *keys = results_part(json_object_get(line, "experiment"), RESULTS_MEANS);
    uint32_t k = 0;

    while (k < *n && !json_equal(means[k].keys, keys))
        k++;
    if (k == *n)
        means[(*n)++].keys = json_incref(keys);
    means[k].sum += log(json_number_at(line, time));
    means[k].n++;
    json_decref(keys);
}

void report_means(const json_t *lines, enum means_of of, struct text *out)
{
    static const struct {
        const char *time, *what;
        uint32_t settings; /* minimum */
    } kinds[MEANS_OF] = {[MEANS_OF_MEDIANS] = {"total_ns", "totals", 2},
                         [MEANS_OF_MEANS] = {"mean_ns", "mean totals", 1}};
    struct means *means = memory_alloc(json_array_size(lines) + 1, sizeof(*means));
    uint32_t n = 0, shapes = 0, whole = 0;

    for (struct json_walk line = {lines}; json_next(&line);) {
        shapes += report_base(lines, json_object_get(line.value, "question")) == line.value;
        if (json_number_at(line.value, kinds[of].time) > 0)
            add_total(means, &n, line.value, kinds[of].time);
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
