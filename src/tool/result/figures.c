/* The figures of a stage, in the order of JSON and of columns. */
#include "result/figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

#define AT(member) offsetof(struct stage_figures, member)
/* Times of samples, in the order of the members: name in JSON, member, columns of CSV and tables,
 * quantile. */
#define TIME(member, ...) \
    { \
        "ns." #member, FIGURE_NS, AT(ns.member), FIGURE_SMALLER, __VA_ARGS__ \
    }

const struct figure figures[] = {
    {"ns.n", FIGURE_COUNT, AT(ns.n), .heading = NULL},
    TIME(min, .csv = "min_us", .heading = "min", .label = "0"),
    TIME(median, .csv = "median_us", .heading = "median", .label = "0.5"),
    TIME(p95, .csv = "p95_us", .heading = "p95", .label = "0.95"),
    TIME(p99, .csv = "p99_us", .heading = "p99", .label = "0.99"),
    TIME(p999, FIGURE_TAIL, "p999_us", "p99.9", "0.999",
         "99.9th percentile; null: fewer than 1000 samples"),
    TIME(max, .csv = "max_us", .heading = "max", .label = "1"),
    TIME(mean, .csv = "mean_us"),
    TIME(stdev, .csv = "stdev_us"),
    TIME(mad, .help = "median absolute deviation, not scaled"),
    {"ns.in_pair", FIGURE_NS, AT(in_pair), FIGURE_SMALLER, FIGURE_PAIRS, "in_pair_us", "in pair",
     NULL,
     "of dispatch or combine inside a pair in a graph, by time stamps of kernels: median of the "
     "slowest rank; null: not measured"},
    {"ns.ci95", FIGURE_INTERVAL, AT(ns.low),
     .help = "95 % interval of the median, by order statistics; null: fewer than 6 samples"},
    {"ns.outliers", FIGURE_COUNT, AT(ns.outliers), .heading = NULL},
    {"cv", FIGURE_RATIO, AT(ns.cv), FIGURE_SMALLER,
     .help = "coefficient of variation: stdev / mean; lower is better"},
    {"rate.goodput", FIGURE_RATE, AT(goodput), FIGURE_LARGER, FIGURE_ALWAYS, "goodput_gb_s",
     "goodput", "goodput",
     "traffic.STAGE.needed_bytes by the median: mean over ranks of the token bytes that a rank "
     "needs moved; higher is better"},
    {"rate.wire", FIGURE_RATE, AT(wire), FIGURE_NEITHER, FIGURE_ALWAYS, "wire_gb_s", "wire", "wire",
     "traffic.STAGE.wire_bytes by the median: mean over ranks of all bytes that leave a rank; at "
     "one goodput, lower is better"},
    {"rate.bottleneck", FIGURE_RATE, AT(bottleneck), FIGURE_NEITHER, FIGURE_ALWAYS,
     "bottleneck_gb_s", "bottleneck", "bottleneck",
     "traffic.STAGE.bottleneck_bytes by the median: the most that any rank sends or receives; "
     "compare it with the links"},
    {"peak_ns", FIGURE_NS, AT(peak_ns), FIGURE_NEITHER, FIGURE_LINKS, "peak_us", "at peak", NULL,
     "the least time that launches, links, device memory and real experts allow; epa2a help "
     "bandwidth"},
    {"of_peak", FIGURE_RATIO, AT(of_peak), FIGURE_LARGER, FIGURE_LINKS, "of_peak", "of peak", NULL,
     "peak_ns by the median; 1 cannot be beaten"},
    {0},
};
_Static_assert(AT(ns.high) == AT(ns.low) + sizeof(double), "an interval is two doubles");

static const char *const units[] = {
    [FIGURE_COUNT] = "",    [FIGURE_NS] = "ns",      [FIGURE_INTERVAL] = "ns",
    [FIGURE_RATE] = "GB/s", [FIGURE_RATIO] = "part",
};

uint32_t figures_count(void)
{
    uint32_t n = 0;

    while (figures[n].path != NULL)
        n++;
    return n;
}

const char *figure_name(const struct figure *f)
{
    const char *dot = strrchr(f->path, '.');

    return dot != NULL ? dot + 1 : f->path;
}

const struct figure *figure_find(const char *name)
{
    for (const struct figure *f = figures; f->path != NULL; f++)
        if (strcmp(figure_name(f), name) == 0)
            return f;
    return NULL;
}

const struct figure *figure_default(void)
{
    return figure_find("median");
}

enum epa_status figure_select(const char *name, const struct figure **out, struct epa_error *err)
{
    const struct figure *found = name != NULL ? figure_find(name) : figure_default();
    text_auto known = {0};

    if (found != NULL && found->better != FIGURE_NEITHER) {
        *out = found;
        return EPA_OK;
    }
    for (const struct figure *f = figures; f->path != NULL; f++)
        if (f->better != FIGURE_NEITHER)
            text_add(&known, "%s%s", known.bytes > 0 ? ", " : "", figure_name(f));
    return epa_fail(err, EPA_ERR_CONFIG, "--figure %s: %s; use one of %s", name,
                    found != NULL ? "neither a smaller nor a larger value is better"
                                  : "there is no such figure",
                    known.data);
}

const char *figure_unit(const struct figure *f)
{
    return units[f->kind];
}

double figure_value(const struct figure *f, const struct stage_figures *from)
{
    const char *at = (const char *)from + f->offset;
    uint64_t count;
    double value;

    if (f->kind == FIGURE_INTERVAL)
        return NAN;
    if (f->kind == FIGURE_COUNT) {
        memcpy(&count, at, sizeof(count));
        return (double)count;
    }
    memcpy(&value, at, sizeof(value));
    return value;
}

static double round_figure(enum figure_kind kind, double value)
{
    char digits[32];

    if (kind == FIGURE_NS || kind == FIGURE_INTERVAL)
        return round(value);
    snprintf(digits, sizeof(digits), "%.9g", value); /* as in key_add_real() */
    return strtod(digits, NULL);
}

void figures_round(struct stage_figures *stage)
{
    for (const struct figure *f = figures; f->path != NULL; f++) {
        char *at = (char *)stage + f->offset;
        uint32_t n = f->kind == FIGURE_COUNT ? 0 : f->kind == FIGURE_INTERVAL ? 2 : 1;

        for (double value; n > 0; n--, at += sizeof(value)) {
            memcpy(&value, at, sizeof(value));
            value = round_figure(f->kind, value);
            memcpy(at, &value, sizeof(value));
        }
    }
}
