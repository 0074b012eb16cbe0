/* The table of `expect`, and the small language of its texts: [ROW] BOUND, with commas
 * between. */
#include "config/expect.h"

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

static bool refuse(struct value_error *error, const char *what, const char *hint)
{
    snprintf(error->what, sizeof(error->what), "%s", what);
    snprintf(error->hint, sizeof(error->hint), "%s", hint);
    return false;
}

/* What one is written as, for hints. */
static const char *form(enum expect_unit unit)
{
    static const char *const form[] = {[EXPECT_NS] = "such as 120us or dispatch 60us",
                                       [EXPECT_RATE] = "GB/s, such as 40 or dispatch 40",
                                       [EXPECT_SHARE] = "such as 50% or dispatch 50%"};

    return form[unit];
}

static bool read_bound(enum expect_unit unit, const char *text, double *out,
                       struct value_error *error)
{
    uint64_t ns;

    if (unit == EXPECT_NS) {
        if (!value_duration(text, &ns, error))
            return false;
        *out = (double)ns;
        return true;
    }
    if (!value_real(text, out, error))
        return false;
    if (*out < 0)
        return refuse(error, "is negative", form(unit));
    if (unit == EXPECT_SHARE && strchr(text, '%') == NULL)
        return refuse(error, "has no %", form(unit));
    if (unit == EXPECT_RATE && strchr(text, '%') != NULL)
        return refuse(error, "has the unit %", form(unit));
    return true;
}

/* One piece between commas, without blanks around it. */
static bool read_one(enum expect_figure figure, const char *piece, struct expectation *out,
                     struct value_error *error)
{
    enum expect_unit unit = expect_unit_of(figure);
    size_t n = 0;

    out->figure = figure;
    out->row[0] = '\0';
    if (*piece == '\0')
        return refuse(error, "has nothing there", form(unit));
    if (isalpha((unsigned char)*piece)) {
        n = strcspn(piece, " \t");
        if (n >= sizeof(out->row))
            return refuse(error, "names a row that is too long", form(unit));
        memcpy(out->row, piece, n);
        out->row[n] = '\0';
        n += strspn(piece + n, " \t");
        if (piece[n] == '\0')
            return refuse(error, "says no bound", form(unit));
    }
    return read_bound(unit, piece + n, &out->bound, error);
}

uint32_t expect_read(const struct expect_options *x, enum expect_figure figure,
                     struct expectation out[EXPECT_MOST], struct value_error *error)
{
    const char *text = text_of(x, figure), *at = text;
    uint32_t n = 0;

    while (at != NULL) {
        size_t blanks = strspn(at, " \t\n"), bytes = strcspn(at + blanks, ",");
        const char *next = at[blanks + bytes] == ',' ? at + blanks + bytes + 1 : NULL;
        char piece[128];

        out[n].at = (uint32_t)(at + blanks - text);
        while (bytes > 0 && isspace((unsigned char)at[blanks + bytes - 1]))
            bytes--;
        snprintf(piece, sizeof(piece), "%.*s", (int)bytes, at + blanks);
        if (bytes >= sizeof(piece) || n + 1 == EXPECT_MOST) {
            out[0].at = out[n].at;
            (void)refuse(error, bytes >= sizeof(piece) ? "is too long" : "says too much",
                         form(expect_unit_of(figure)));
            return UINT32_MAX;
        }
        if (!read_one(figure, piece, &out[n], error)) {
            out[0].at = out[n].at;
            return UINT32_MAX;
        }
        n++;
        at = next;
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
