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
    const struct report_row *of; /* the first of these runs */
    double sum;
    uint32_t n;
};

/* Returns the value of an option of algorithm, transport, backend or launcher; NULL: not set. */
static const char *setting_of(const struct report_row *row, const char *path)
{
    for (uint32_t i = 0; i < row->n_keys; i++)
        if (row->key[i].is_means && strcmp(row->key[i].path, path) == 0)
            return row->key[i].value;
    return NULL;
}

static bool have_equal_setting(const struct report_row *a, const struct report_row *b,
                               const char *path)
{
    const char *of_a = setting_of(a, path), *of_b = setting_of(b, path);

    return of_a == NULL || of_b == NULL ? of_a == of_b : strcmp(of_a, of_b) == 0;
}

static bool have_equal_settings(const struct report_row *a, const struct report_row *b)
{
    uint32_t balance = 0; /* number of settings in `b` minus number in `a` */

    for (uint32_t i = 0; i < a->n_keys; i++) {
        if (a->key[i].is_means && !have_equal_setting(a, b, a->key[i].path))
            return false;
        balance -= a->key[i].is_means;
    }
    for (uint32_t i = 0; i < b->n_keys; i++)
        balance += b->key[i].is_means;
    return balance == 0;
}

/* Adds "ll_v2", or "ll_v2 buffers=1" if other entries of that algorithm have another value. */
static void add_means_name(struct text *out, const struct means *all, uint32_t n,
                           const struct report_row *of)
{
    const char *algorithm = setting_of(of, "algorithm.name");

    text_add(out, "%s", algorithm != NULL ? algorithm : "?");
    for (uint32_t k = 0; k < of->n_keys; k++) {
        const char *path = of->key[k].path;
        bool differs = false;

        for (uint32_t i = 0; i < n && of->key[k].is_means; i++)
            differs = differs || (have_equal_setting(all[i].of, of, "algorithm.name") &&
                                  !have_equal_setting(all[i].of, of, path));
        if (differs)
            text_add(out, " %s=%s", strncmp(path, "algorithm.", 10) == 0 ? path + 10 : path,
                     of->key[k].value);
    }
}

static void add_total(struct means *means, uint32_t *n, const struct report_row *row, double ns)
{
    uint32_t k = 0;

    while (k < *n && !have_equal_settings(means[k].of, row))
        k++;
    if (k == *n)
        means[(*n)++].of = row;
    means[k].sum += log(ns);
    means[k].n++;
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
        add_means_name(out, means, n, means[i].of);
        text_add(out, " %.1f us", exp(means[i].sum / shapes) / 1e3);
    }
    free(means);
}
