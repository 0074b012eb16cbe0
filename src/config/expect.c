/* The table of `expect`, and the small language of its texts: [ROW] BOUND, with commas
 * between. */
#include "config/experiment.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "config/options.h"

#define BOUND(figure, what) \
    { \
        .name = #figure, EPA_STRING(struct expect_options, figure), .help = what \
    }

/* In the order of enum expect_figure; then `wrong`. */
const struct epa_option expect_table[] = {
    BOUND(min, "upper bound of the shortest sample; as median"),
    BOUND(median,
          "upper bound of the median: 120us of the total, or \"dispatch 60us, total 120us\" of "
          "these rows"),
    BOUND(p95, "upper bound of the 95th percentile; as median"),
    BOUND(p99, "upper bound of the 99th percentile; as median"),
    BOUND(p999, "upper bound of the 99.9th percentile, which needs 1000 samples; as median"),
    BOUND(max, "upper bound of the longest sample; as median"),
    BOUND(mean, "upper bound of the mean; as median"),
    BOUND(goodput,
          "lower bound in GB/s: 40, or \"dispatch 40, combine 60\"; `epa2a help bandwidth`"),
    BOUND(wire, "lower bound in GB/s; as goodput"),
    BOUND(bottleneck, "lower bound in GB/s; as goodput"),
    BOUND(of_peak,
          "lower bound of the percentage of peak, by the median: 50%, or \"dispatch 50%\""),
    {.name = "wrong",
     EPA_U32(struct expect_options, wrong),
     .max = 1000000000,
     .help = "maximum number of wrong elements; elements must have been compared; the only bound "
             "that verify checks"},
    {0},
};

const char *const expect_name[EXPECT_FIGURES] = {"min",  "median",     "p95",    "p99",
                                                 "p999", "max",        "mean",   "goodput",
                                                 "wire", "bottleneck", "of_peak"};

enum expect_unit expect_unit_of(enum expect_figure figure)
{
    if (figure == EXPECT_OF_PEAK)
        return EXPECT_SHARE;
    return figure < EXPECT_GOODPUT ? EXPECT_NS : EXPECT_RATE;
}

static const char *text_of(const struct expect_options *x, enum expect_figure figure)
{
    return *(const char *const *)(const void *)((const char *)x + expect_table[figure].offset);
}

/* With what a bound of this figure is written as. */
static bool refuse(struct value_error *error, enum expect_figure figure, const char *what)
{
    static const char *const forms[] = {[EXPECT_NS] = "such as 120us or dispatch 60us",
                                        [EXPECT_RATE] = "GB/s, such as 40 or dispatch 40",
                                        [EXPECT_SHARE] = "such as 50% or dispatch 50%"};

    snprintf(error->what, sizeof(error->what), "%s", what);
    snprintf(error->hint, sizeof(error->hint), "%s", forms[expect_unit_of(figure)]);
    return false;
}

/* One piece between commas, without blanks around it. */
static bool read_one(enum expect_figure figure, const char *piece, struct expectation *out,
                     struct value_error *error)
{
    enum expect_unit unit = expect_unit_of(figure);
    size_t n = isalpha((unsigned char)*piece) ? strcspn(piece, " \t") : 0;
    const char *bound = piece + n + strspn(piece + n, " \t");
    bool percent = strchr(bound, '%') != NULL;
    uint64_t ns;

    if (n >= sizeof(out->row))
        return refuse(error, figure, "names a row that is too long");
    if (*bound == '\0')
        return refuse(error, figure, n > 0 ? "says no bound" : "has nothing there");
    out->figure = figure;
    snprintf(out->row, sizeof(out->row), "%.*s", (int)n, piece);
    if (unit == EXPECT_NS) {
        if (!value_duration(bound, &ns, error))
            return false;
        out->bound = (double)ns;
        return true;
    }
    if (!value_real(bound, &out->bound, error))
        return false;
    if (out->bound < 0)
        return refuse(error, figure, "is negative");
    if (percent != (unit == EXPECT_SHARE))
        return refuse(error, figure, percent ? "has the unit %" : "has no %");
    return true;
}

uint32_t expect_read(const struct expect_options *x, enum expect_figure figure,
                     struct expectation out[EXPECT_MOST], struct value_error *error)
{
    const char *text = text_of(x, figure);
    uint32_t n = 0;

    for (const char *at = text; at != NULL; n++) {
        const char *start = at + strspn(at, " \t\n");
        size_t bytes = strcspn(start, ",");
        char piece[128];
        bool good;

        at = start[bytes] == ',' ? start + bytes + 1 : NULL;
        while (bytes > 0 && isspace((unsigned char)start[bytes - 1]))
            bytes--;
        snprintf(piece, sizeof(piece), "%.*s", (int)bytes, start);
        out[n].at = (uint32_t)(start - text);
        if (bytes >= sizeof(piece) || n + 1 == EXPECT_MOST)
            good = refuse(error, figure, n + 1 == EXPECT_MOST ? "says too much" : "is too long");
        else
            good = read_one(figure, piece, &out[n], error);
        if (!good) {
            out[0].at = out[n].at;
            return UINT32_MAX;
        }
    }
    return n;
}

bool expect_wrong_is_set(const struct expect_options *x)
{
    return option_is_set(&expect_table[EXPECT_FIGURES], x);
}

bool expect_is_set(const struct expect_options *x)
{
    for (uint32_t i = 0; i < EXPECT_FIGURES; i++)
        if (text_of(x, i) != NULL)
            return true;
    return expect_wrong_is_set(x);
}
