/* `expect:` what a result must come to. An option a figure; its text says for which rows of
 * the table and how much: "120us", "total 120us, dispatch 60us". */
#ifndef EXPECT_H
#define EXPECT_H

#include "config/experiment.h"
#include "config/options.h"

enum expect_unit {
    EXPECT_NS,    /* at most */
    EXPECT_RATE,  /* GB/s; at least */
    EXPECT_SHARE, /* of the limit; at least */
};

/* Figures of a row; they are the options of `expect` but `wrong`. */
enum expect_figure {
    EXPECT_MIN,
    EXPECT_MEDIAN,
    EXPECT_P95,
    EXPECT_P99,
    EXPECT_P999,
    EXPECT_MAX,
    EXPECT_MEAN,
    EXPECT_GOODPUT,
    EXPECT_WIRE,
    EXPECT_BOTTLENECK,
    EXPECT_OF_PEAK,
    EXPECT_FIGURES,
};

struct expectation {
    enum expect_figure figure;
    char row[32]; /* "": the last one, total or wall */
    double bound; /* in its unit */
    uint32_t at;  /* byte of the option's text at which it begins */
};

enum { EXPECT_MOST = 64 }; /* of one option */

extern const struct epa_option expect_table[]; /* of struct expect_options */
extern const char *const expect_name[EXPECT_FIGURES];

enum expect_unit expect_unit_of(enum expect_figure);

/* What option `figure` says; 0: nothing. UINT32_MAX: its text cannot be read; what is wrong
 * stands in the error, and where in out[0].at. An experiment that was read has none such. */
uint32_t expect_read(const struct expect_options *, enum expect_figure,
                     struct expectation out[EXPECT_MOST], struct value_error *);

/* Whether anything is expected; of verify only `wrong` counts. */
bool expect_is_set(const struct expect_options *);
bool expect_wrong_is_set(const struct expect_options *);

#endif
