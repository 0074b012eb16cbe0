/* The figures of a stage, in the order of JSON and of columns. */
#include "report/figures.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

#define AT(member) offsetof(struct stage_figures, member)

const struct figure figures[] = {
    {"ns.n", FIGURE_COUNT, AT(ns.n), NULL, NULL, NULL},
    {"ns.min", FIGURE_NS, AT(ns.min), "min_us", "min", "0"},
    {"ns.median", FIGURE_NS, AT(ns.median), "median_us", "median", "0.5"},
    {"ns.p95", FIGURE_NS, AT(ns.p95), "p95_us", "p95", "0.95"},
    {"ns.p99", FIGURE_NS, AT(ns.p99), "p99_us", "p99", "0.99"},
    {"ns.p999", FIGURE_NS, AT(ns.p999), "p999_us", "p99.9", "0.999"},
    {"ns.max", FIGURE_NS, AT(ns.max), "max_us", "max", "1"},
    {"ns.mean", FIGURE_NS, AT(ns.mean), "mean_us", NULL, NULL},
    {"ns.stdev", FIGURE_NS, AT(ns.stdev), "stdev_us", NULL, NULL},
    {"ns.mad", FIGURE_NS, AT(ns.mad), NULL, NULL, NULL},
    {"ns.ci95", FIGURE_INTERVAL, AT(ns.low), NULL, NULL, NULL},
    {"ns.outliers", FIGURE_COUNT, AT(ns.outliers), NULL, NULL, NULL},
    {"cv", FIGURE_RATIO, AT(ns.cv), NULL, NULL, NULL},
    {"rate.goodput", FIGURE_RATE, AT(goodput), "goodput_gb_s", "goodput", "goodput"},
    {"rate.wire", FIGURE_RATE, AT(wire), "wire_gb_s", "wire", "wire"},
    {"rate.bottleneck", FIGURE_RATE, AT(bottleneck), "bottleneck_gb_s", "bottleneck", "bottleneck"},
    {"peak_ns", FIGURE_NS, AT(peak_ns), "peak_us", "at peak", NULL},
    {"of_peak", FIGURE_RATIO, AT(of_peak), "of_peak", "of peak", NULL},
    {0},
};
_Static_assert(AT(ns.high) == AT(ns.low) + sizeof(double), "an interval is two doubles");

static json_t *figure_json(const struct figure *f, const struct stage_figures *from)
{
    const char *at = (const char *)from + f->offset;
    uint64_t count = 0;
    double value[2] = {NAN, NAN};
    json_t *interval;

    if (f->kind == FIGURE_COUNT) {
        memcpy(&count, at, sizeof(count));
        return json_count(count);
    }
    memcpy(value, at, (f->kind == FIGURE_INTERVAL ? 2 : 1) * sizeof(*value));
    if (f->kind == FIGURE_NS)
        return json_whole(value[0]);
    if (f->kind != FIGURE_INTERVAL)
        return json_number(value[0]);
    if (isnan(value[0]))
        return json_null();
    interval = json_array();
    json_array_append_new(interval, json_whole(value[0]));
    json_array_append_new(interval, json_whole(value[1]));
    return interval;
}

void figures_write(json_t *stage, const struct stage_figures *from)
{
    for (const struct figure *f = figures; f->path != NULL; f++)
        json_set_at(stage, f->path, figure_json(f, from));
}
