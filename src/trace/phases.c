/* Traces that tell of no iterations, as kernels write them of themselves: when many lanes were
 * in each phase. A phase is a name; its slices are those of all lanes of one rank. */
#include "trace/read.h"

#include <stdlib.h>
#include <string.h>

struct phase {
    uint32_t pid;
    const char *name;
    const struct trace_item **slice;
    size_t n;
    int64_t begun_ns; /* the first */
};

static int64_t begin_of(const struct trace_item *i)
{
    return i->ts_ns;
}

static int64_t end_of(const struct trace_item *i)
{
    return i->ts_ns + i->dur_ns;
}

static int by_phase(const void *left, const void *right)
{
    const struct trace_item *a = *(const struct trace_item *const *)left;
    const struct trace_item *b = *(const struct trace_item *const *)right;
    int order = a->pid != b->pid ? (a->pid < b->pid ? -1 : 1) : strcmp(a->name, b->name);

    return order != 0 ? order : a->ts_ns < b->ts_ns ? -1 : a->ts_ns > b->ts_ns;
}

static int by_begin(const void *left, const void *right)
{
    const struct phase *a = left, *b = right;

    if (a->pid != b->pid)
        return a->pid < b->pid ? -1 : 1;
    return a->begun_ns < b->begun_ns ? -1 : a->begun_ns > b->begun_ns;
}

static int by_value(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;

    return a < b ? -1 : a > b;
}

/* Of a phase, sorted into `value`, which has room for its slices. */
static void sort_times(const struct phase *p, int64_t (*time)(const struct trace_item *),
                       int64_t *value)
{
    for (size_t i = 0; i < p->n; i++)
        value[i] = time(p->slice[i]);
    qsort(value, p->n, sizeof(*value), by_value);
}

static void print_phase(struct text *out, const struct phase *p, int64_t zero, int64_t *value)
{
    double sum = 0;

    for (size_t i = 0; i < p->n; i++)
        sum += (double)p->slice[i]->dur_ns;
    text_add(out, "  %4u  %-28s %7zu", p->pid, p->name, p->n);
    sort_times(p, begin_of, value);
    text_add(out, " %9.2f %9.2f", (double)(value[0] - zero) * 1e-3,
             (double)(value[p->n / 2] - zero) * 1e-3);
    sort_times(p, end_of, value);
    text_add(out, " %9.2f %9.2f %9.2f\n", (double)(value[p->n / 2] - zero) * 1e-3,
             (double)(value[p->n - 1] - zero) * 1e-3, sum / (double)p->n * 1e-3);
}

/* Slices by rank, name and begin; phases in the order in which they begin. */
static size_t find_phases(const struct trace_item **slice, size_t n, struct phase *phase)
{
    size_t phases = 0;

    qsort(slice, n, sizeof(*slice), by_phase);
    for (size_t i = 0; i < n; i++) {
        struct phase *last = phases > 0 ? &phase[phases - 1] : NULL;

        if (last != NULL && last->pid == slice[i]->pid && strcmp(last->name, slice[i]->name) == 0) {
            last->n++;
            continue;
        }
        phase[phases++] =
            (struct phase){slice[i]->pid, slice[i]->name, &slice[i], 1, slice[i]->ts_ns};
    }
    qsort(phase, phases, sizeof(*phase), by_begin);
    return phases;
}

enum epa_status trace_phases(const struct trace_file *f, struct text *out, struct epa_error *err)
{
    const struct trace_item **slice = calloc(f->n + 1, sizeof(*slice));
    struct phase *phase = calloc(f->n + 1, sizeof(*phase));
    int64_t *value = calloc(f->n + 1, sizeof(*value)), zero = INT64_MAX;
    bool ok = slice != NULL && phase != NULL && value != NULL;
    size_t n = 0, phases;

    for (size_t i = 0; i < f->n && ok; i++) {
        if (f->item[i].ph != 'X')
            continue;
        slice[n++] = &f->item[i];
        zero = f->item[i].ts_ns < zero ? f->item[i].ts_ns : zero;
    }
    if (ok) {
        phases = find_phases(slice, n, phase);
        text_add(out,
                 "# %s: %zu slices, and no iterations: when lanes were in each phase, in us\n"
                 "# rank  %-28s %7s %9s %9s %9s %9s %9s\n# %5s %-28s %7s %9s %9s %9s %9s %9s\n",
                 f->path, n, "phase", "slices", "begins", "begin", "end", "ends", "lasts", "", "",
                 "", "first", "median", "median", "last", "mean");
        for (size_t i = 0; i < phases; i++)
            print_phase(out, &phase[i], zero, value);
    }
    free(slice);
    free(phase);
    free(value);
    return ok ? EPA_OK : epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for its summary", f->path);
}
